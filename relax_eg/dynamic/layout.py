"""How values lie in arrays at capacity.

An axis of size n with capacity N is an array axis of N elements, of which the first n are valid: a *box*. A reshape
that merges axes, (b, s) to b*s, moves nothing: the result is an axis of B*S elements with two *digits*, (b in B) and (s
in S), and a place is valid if each of its digits is. An axis is brought into a box when an operator depends on
positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from relax_eg.dynamic.content import ANY, Content, join_contents, padding_content
from relax_eg.ir.annotations import Tensor
from relax_eg.shapes import Dim

Moves = Callable[[Dim], bool]
"""Whether a size moves: it has a capacity, and its true value differs from call to call."""


@dataclass(frozen=True)
class Digit:
    """A factor of an axis.

    - `size`: its true size.
    - `content`: what its padding holds; meaningless if the size is fixed.
    """

    size: Dim
    content: Content


Axis = tuple[Digit, ...]


@dataclass(frozen=True)
class TensorLayout:
    """How a tensor lies in its array.

    - `axes`: the digits of each axis, the outermost digit first.
    - `dtype`: the dtype of the elements.
    """

    axes: tuple[Axis, ...]
    dtype: str

    @property
    def is_box(self) -> bool:
        return all(len(axis) == 1 for axis in self.axes)

    def with_mask(self, axis: int, digit: int, fill: Content) -> TensorLayout:
        """The layout after the padding of a digit was overwritten with `fill`."""
        axes: list[Axis] = []
        for a, digits in enumerate(self.axes):
            after: list[Digit] = []
            for d, one in enumerate(digits):
                # Where the paddings of two axes meet, the value is now `fill`.
                content = fill if (a, d) == (axis, digit) else join_contents(one.content, fill)
                after.append(replace(one, content=content))
            axes.append(tuple(after))
        return TensorLayout(tuple(axes), self.dtype)


Layouts = TensorLayout | tuple["Layouts", ...] | None
"""The layout of a value: of a tuple the layouts of its fields; None for a value that is no tensor."""


def boxed_layout(annotation: Tensor, content: Content | None = None) -> TensorLayout:
    """The layout of a tensor as an input: boxes, with `content` in the padding (None: anything)."""
    content = content or padding_content(annotation.dtype or "float32")
    return TensorLayout(tuple((Digit(d, content),) for d in annotation.shape or ()), annotation.dtype or "float32")


def unmerge_layout(layout: TensorLayout) -> TensorLayout:
    """The layout after every axis was brought into a box. A place beyond a new box may hold an element from
    anywhere."""
    content = padding_content(layout.dtype)
    return TensorLayout(tuple(a if len(a) == 1 else (Digit(axis_size(a), content),) for a in layout.axes), layout.dtype)


def axis_size(axis: Axis) -> Dim:
    return math.prod((digit.size for digit in axis), start=Dim.of(1))


def merge_digits(digits: Iterable[Digit], moves: Moves) -> Axis:
    """The axis of these digits, with as few digits as possible: a digit of fixed size joins the one before it; leading
    fixed sizes are a digit of their own."""
    out: list[Digit] = []
    for digit in digits:
        if digit.size.is_const and digit.size.value == 1:
            continue
        if out and not moves(digit.size):
            out[-1] = Digit(out[-1].size * digit.size, out[-1].content)
        else:
            out.append(digit)
    return tuple(out) or (Digit(Dim.of(1), ANY),)


def join_layouts(a: Layouts, b: Layouts) -> Layouts:
    """The layout of a value that is one of two values, both in boxes."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return tuple(join_layouts(x, y) for x, y in zip(a, b, strict=True))
    if not isinstance(a, TensorLayout) or not isinstance(b, TensorLayout):
        return None
    axes = tuple(
        (Digit(x.size, join_contents(x.content, y.content)),) for (x,), (y,) in zip(a.axes, b.axes, strict=True)
    )
    return TensorLayout(axes, a.dtype)
