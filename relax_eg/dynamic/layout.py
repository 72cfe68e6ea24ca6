"""How values lie in arrays at capacity.

An axis of size n with capacity N is an array axis of N elements of which the first n count: a *box*. What a reshape
merges, (b, s) to b*s, stays as it lies: an axis of B*S elements with two *digits*, (b in B) and (s in S), of which a
place counts where each of its digits does. An axis is brought into a box where an operator asks for positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from relax_eg.dynamic.content import ANY, Content, joined, of_dtype
from relax_eg.ir.annotations import Tensor
from relax_eg.shapes import Dim

Moves = Callable[[Dim], bool]
"""Whether a size is one that capacities stand for."""


@dataclass(frozen=True)
class Digit:
    """A factor of an axis: its true size, and what its padding holds (of no meaning where the size is fixed)."""

    size: Dim
    content: Content


Axis = tuple[Digit, ...]


@dataclass(frozen=True)
class State:
    """How a tensor lies in its array: its axes, outermost digit first."""

    axes: tuple[Axis, ...]
    dtype: str

    @property
    def is_box(self) -> bool:
        return all(len(axis) == 1 for axis in self.axes)

    def with_mask(self, axis: int, digit: int, fill: Content) -> State:
        """The state after the padding of a digit was overwritten."""
        axes: list[Axis] = []
        for a, digits in enumerate(self.axes):
            after: list[Digit] = []
            for d, one in enumerate(digits):
                # Where the paddings of two axes meet, `fill` stands now.
                content = fill if (a, d) == (axis, digit) else joined(one.content, fill)
                after.append(replace(one, content=content))
            axes.append(tuple(after))
        return State(tuple(axes), self.dtype)


States = State | tuple["States", ...] | None
"""Of a value; of a tuple, that of each field; None of what is no tensor."""


def boxed(annotation: Tensor) -> State:
    """A tensor as it comes: boxes, with anything beside them."""
    content = of_dtype(annotation.dtype or "float32")
    return State(tuple((Digit(d, content),) for d in annotation.shape or ()), annotation.dtype or "float32")


def unmerged(state: State) -> State:
    """The state after every axis was brought into a box. What a place beyond the box then is, was anywhere before."""
    content = of_dtype(state.dtype)
    return State(tuple(a if len(a) == 1 else (Digit(size_of(a), content),) for a in state.axes), state.dtype)


def size_of(axis: Axis) -> Dim:
    total = Dim.of(1)
    for digit in axis:
        total = total * digit.size
    return total


def merged(digits: Iterable[Digit], moves: Moves) -> Axis:
    """The axis of these digits, as few as it can be: what follows a digit at fixed sizes belongs to it, and fixed
    sizes before everything else are a digit of their own."""
    out: list[Digit] = []
    for digit in digits:
        if digit.size.is_const and digit.size.value == 1:
            continue
        if out and not moves(digit.size):
            out[-1] = Digit(out[-1].size * digit.size, out[-1].content)
        else:
            out.append(digit)
    return tuple(out) or (Digit(Dim.of(1), ANY),)


def joined_states(a: States, b: States) -> States:
    """How what is either of two values lies, both in boxes."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return tuple(joined_states(x, y) for x, y in zip(a, b, strict=True))
    if not isinstance(a, State) or not isinstance(b, State):
        return None
    axes = tuple((Digit(x.size, joined(x.content, y.content)),) for (x,), (y,) in zip(a.axes, b.axes, strict=True))
    return State(axes, a.dtype)
