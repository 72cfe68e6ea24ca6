"""What a node of an ONNX graph is asked for: inputs as expressions or known arrays, attributes, its opset's version.

A node remembers what of it was read. What nobody read may mean anything, so the reader of the graph refuses it
(`unread`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relax_eg.errors import OnnxError
from relax_eg.frontends.onnx.values import Array, Known, Value, dims
from relax_eg.ir.expr import Expr
from relax_eg.shapes import Dim


@dataclass(frozen=True, eq=False)
class Node:
    """A node: `where` tells it in errors. `inputs` that are left out are None. `outputs`: for each output that the node
    names, whether anything reads it. Attributes that are tensors are `Known`."""

    kind: str
    where: str
    inputs: tuple[Value | None, ...]
    attributes: Mapping[str, Any]
    outputs: tuple[bool, ...]
    opset: int
    _names: set[str] = field(default_factory=set[str])
    _places: set[int] = field(default_factory=set[int])

    def error(self, problem: str, accepted: str) -> OnnxError:
        return OnnxError(f"{self.where}: {problem}\n  accepted: {accepted}")

    # --- inputs ---

    def value(self, i: int) -> Value | None:
        """Input `i`, or None where it is left out."""
        self._places.add(i)
        return self.inputs[i] if i < len(self.inputs) else None

    def needed(self, i: int) -> Value:
        """Input `i`, which must be there."""
        found = self.value(i)
        if found is None:
            raise self.error(f"input {i} is left out", f"a {self.kind} with this input")
        return found

    def given(self, i: int) -> Expr | None:
        """Input `i` as an expression, or None where it is left out."""
        value = self.value(i)
        return value.expr if isinstance(value, Known) else value

    def __getitem__(self, i: int) -> Expr:
        """Input `i` as an expression."""
        value = self.needed(i)
        return value.expr if isinstance(value, Known) else value

    @property
    def all(self) -> list[Expr]:
        """Every input as an expression; at least one."""
        if not self.inputs:
            raise self.error("no inputs", f"a {self.kind} of at least one input")
        return [self[i] for i in range(len(self.inputs))]

    def shape(self, i: int) -> tuple[Dim, ...]:
        """The shape of input `i`, of which nothing else is read."""
        value = self.needed(i)
        return tuple(map(Dim.of, value.array.shape)) if isinstance(value, Known) else value.shape

    def dtype(self, i: int) -> str:
        """The dtype of input `i`, of which nothing else is read."""
        return self.needed(i).dtype

    def known(self, i: int, what: str) -> Array | None:
        """Input `i` as an array that is known now; None where it is left out."""
        value = self.value(i)
        if value is None or isinstance(value, Known):
            return None if value is None else value.array
        raise self.error(f"{what} computed when the model runs", f"{what} computed of sizes and constants")

    # --- attributes ---

    def at(self, name: str, default: Any = None) -> Any:
        """Attribute `name`, or `default` where it is left out."""
        self._names.add(name)
        return self.attributes.get(name, default)

    def flag(self, name: str, default: int = 0) -> bool:
        """Attribute `name`, which is 0 or 1."""
        found = self.at(name, default)
        if found not in (0, 1):
            raise self.error(f"{name}={found}", f"{name}=0 or {name}=1")
        return bool(found)

    def choice(self, name: str, default: Any, *accepted: Any) -> Any:
        """Attribute `name`, which is one of `accepted`."""
        found = self.at(name, default)
        if found not in accepted:
            raise self.error(f"{name}={found!r}", ", ".join(f"{name}={a!r}" for a in accepted))
        return found

    def axis(self, default: int | None, rank: int, last: bool = False) -> int:
        """Attribute `axis` counted from the front; with `last` the one behind the last axis counts, too."""
        found = self.at("axis", default)
        return self.from_the_front(found, rank, last)

    def from_the_front(self, axis: Any, rank: int, last: bool = False) -> int:
        """An axis of a value of `rank` counted from the front."""
        most = rank if last else rank - 1
        if not isinstance(axis, int) or not -rank <= axis <= most:
            raise self.error(f"axis {axis} of a value of rank {rank}", f"axes from {-rank} to {most}")
        return axis % rank if axis < 0 else axis

    def without_effect(self, *names: str) -> None:
        """Attributes that change nothing in what the node gives."""
        self._names.update(names)

    # --- what was an attribute and is an input ---

    def listed(self, name: str, i: int) -> list[int] | None:
        """Whole numbers that are an attribute in older versions, input `i` in newer ones."""
        found = self.sizes(name, i)
        return None if found is None else [d.value for d in found]

    def sizes(self, name: str, i: int) -> tuple[Dim, ...] | None:
        """As `listed`, of sizes, which may be symbolic."""
        if (found := self.at(name)) is not None:
            return dims(np.array(found))
        array = self.known(i, f"the {name}")
        if array is not None and array.dtype.kind not in "iuO":
            raise self.error(f"the {name}, {array.dtype}", "whole numbers")
        return None if array is None else dims(array)

    def all_sizes(self, name: str, i: int) -> tuple[Dim, ...]:
        """As `sizes`, which must be there."""
        found = self.sizes(name, i)
        if found is None:
            raise self.error(f"input {i} is left out", f"a {self.kind} with this input")
        return found

    def steps(self, name: str, rank: int) -> list[int]:
        """Attribute `name`, a whole number from 1 on for each of `rank` axes of space; ones where it is left out."""
        found = [int(v) for v in self.at(name, [1] * rank)]
        if len(found) != rank or any(v < 1 for v in found):
            raise self.error(f"{name}={found} for {rank} axes of space", "a whole number >= 1 for each")
        return found

    # --- outputs ---

    def wants(self, i: int) -> bool:
        """Whether anything reads output `i`."""
        return i < len(self.outputs) and self.outputs[i]

    # --- after all ---

    def afresh(self) -> Node:
        """The node, of which nothing was read yet."""
        return Node(self.kind, self.where, self.inputs, self.attributes, self.outputs, self.opset)

    def unread(self) -> str | None:
        """An attribute or input that the node has and nobody read, as text; None where there is none."""
        for name, value in self.attributes.items():
            if name not in self._names:
                text = repr(value)
                return f"{name}={text}" if len(text) <= 40 else name
        for i, value in enumerate(self.inputs):
            if value is not None and i not in self._places:
                return f"input {i}"
        return None


Handler = Callable[[Node], "Value | Sequence[Value]"]
