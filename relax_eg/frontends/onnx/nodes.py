"""The view of an ONNX node that handlers get: inputs as expressions or known arrays, attributes, and the opset version.

A node records which of its inputs and attributes were read. An unread one could change the meaning of the node, so the
reader of the graph refuses it (`unread_part`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from relax_eg.errors import OnnxError
from relax_eg.frontends.jax.control import TracedFunctions
from relax_eg.frontends.onnx.steps import Steps
from relax_eg.frontends.onnx.values import Array, Held, KnownArray, Nothing, TensorList, Value, dims
from relax_eg.ir.expr import Expr
from relax_eg.shapes import Dim


@dataclass(frozen=True, eq=False)
class OnnxNode:
    """A node of an ONNX graph.

    - `kind`: the name of its operator.
    - `where`: the description of the node in errors.
    - `inputs`: the inputs; None for one that is left out.
    - `attributes`: attributes by name; tensors are `KnownArray`.
    - `output_count`: the number of outputs that the node names.
    - `opset`: the version of the operator set that defines the node.
    - `functions`: the functions of the module, to which bodies of loops and branches are added.
    - `entry_steps`: the steps of the module, to which results are added whose sizes depend on values; None inside
      bodies of loops and branches.
    """

    kind: str
    where: str
    inputs: tuple[Held | None, ...]
    attributes: Mapping[str, Any]
    output_count: int
    opset: int
    functions: TracedFunctions
    entry_steps: Steps | None = None
    _names: set[str] = field(default_factory=set[str])
    _places: set[int] = field(default_factory=set[int])

    def error(self, problem: str, accepted: str) -> OnnxError:
        return OnnxError(f"{self.where}: {problem}\n  accepted: {accepted}")

    # --- inputs ---

    def value(self, i: int) -> Value | None:
        """Input `i`, or None if it is left out."""
        found = self.held(i)
        if isinstance(found, TensorList | Nothing):
            what = "a sequence" if isinstance(found, TensorList) else "an empty optional"
            raise self.error(f"input {i} is {what}", "a tensor")
        return found

    def held(self, i: int) -> Held | None:
        """Input `i`, which may be a sequence or an optional, or None if it is left out."""
        self._places.add(i)
        return self.inputs[i] if i < len(self.inputs) else None

    def sequence(self, i: int) -> tuple[Value, ...]:
        """The elements of input `i`, a sequence."""
        found = self.held(i)
        if not isinstance(found, TensorList):
            raise self.error(f"input {i} is no sequence", "a sequence of known length")
        return found.elements

    def required_input(self, i: int) -> Value:
        """Input `i`. OnnxError if it is left out."""
        found = self.value(i)
        if found is None:
            raise self.error(f"input {i} is left out", f"a {self.kind} with this input")
        return found

    def optional_input(self, i: int) -> Expr | None:
        """Input `i` as an expression, or None if it is left out."""
        value = self.value(i)
        return value.expr if isinstance(value, KnownArray) else value

    def __getitem__(self, i: int) -> Expr:
        """Input `i` as an expression. OnnxError if it is left out."""
        value = self.required_input(i)
        return value.expr if isinstance(value, KnownArray) else value

    @property
    def all(self) -> list[Expr]:
        """Every input as an expression. OnnxError if there are no inputs."""
        if not self.inputs:
            raise self.error("no inputs", f"a {self.kind} of at least one input")
        return [self[i] for i in range(len(self.inputs))]

    def shape(self, i: int) -> tuple[Dim, ...]:
        """The shape of input `i`; its value is not used."""
        value = self.required_input(i)
        return tuple(map(Dim.of, value.array.shape)) if isinstance(value, KnownArray) else value.shape

    def dtype(self, i: int) -> str:
        """The dtype of input `i`; its value is not used."""
        return self.required_input(i).dtype

    def known_array(self, i: int, what: str) -> Array | None:
        """Input `i` as a known array; None if it is left out. OnnxError, which calls it `what`, if it is not known."""
        value = self.value(i)
        if value is None or (isinstance(value, KnownArray) and not value.has_ratios):
            return None if value is None else value.array
        raise self.error(f"{what} computed when the model runs", f"{what} computed of sizes and constants")

    def one_size(self, i: int, what: str, accepted: str) -> Dim:
        """Input `i`, a known array of one number or size, as a size. OnnxError, which calls it `what`, for others."""
        found = self.known_array(i, f"the {what}")
        if found is None or found.size != 1:
            raise self.error(f"no single {what}", accepted)
        return dims(found.reshape(()))[0]

    # --- attributes ---

    def at(self, name: str, default: Any = None) -> Any:
        """Attribute `name`, or `default` if it is left out."""
        self._names.add(name)
        return self.attributes.get(name, default)

    def flag(self, name: str, default: int = 0) -> bool:
        """Attribute `name`, which must be 0 or 1, as a bool."""
        found = self.at(name, default)
        if found not in (0, 1):
            raise self.error(f"{name}={found}", f"{name}=0 or {name}=1")
        return bool(found)

    def choice(self, name: str, default: Any, *accepted: Any) -> Any:
        """Attribute `name`, which must be one of `accepted`."""
        found = self.at(name, default)
        if found not in accepted:
            raise self.error(f"{name}={found!r}", ", ".join(f"{name}={a!r}" for a in accepted))
        return found

    def axis(self, default: int | None, rank: int, last: bool = False) -> int:
        """Attribute `axis` counted from the front; with `last`, the position behind the last axis is accepted too."""
        found = self.at("axis", default)
        return self.normal_axis(found, rank, last)

    def normal_axis(self, axis: Any, rank: int, last: bool = False) -> int:
        """An axis of a value of `rank`, counted from the front. OnnxError if it is out of range."""
        most = rank if last else rank - 1
        if not isinstance(axis, int) or not -rank <= axis <= most:
            raise self.error(f"axis {axis} of a value of rank {rank}", f"axes from {-rank} to {most}")
        return axis % rank if axis < 0 else axis

    def ignore_attributes(self, *names: str) -> None:
        """Marks attributes as read that do not change the result of the node."""
        self._names.update(names)

    # --- values that are attributes in older opsets and inputs in newer ones ---

    def integer_list(self, name: str, i: int) -> list[int] | None:
        """Integers that are an attribute in older opsets, and input `i` in newer ones; None if they are left out."""
        found = self.sizes(name, i)
        return None if found is None else [d.value for d in found]

    def sizes(self, name: str, i: int) -> tuple[Dim, ...] | None:
        """Like `integer_list`, for sizes that may be symbolic."""
        if (found := self.at(name)) is not None:
            return dims(np.array(found))
        array = self.known_array(i, f"the {name}")
        if array is not None and array.dtype.kind not in "iuO":
            raise self.error(f"the {name}, {array.dtype}", "whole numbers")
        return None if array is None else dims(array)

    def all_sizes(self, name: str, i: int) -> tuple[Dim, ...]:
        """Like `sizes`. OnnxError if they are left out."""
        found = self.sizes(name, i)
        if found is None:
            raise self.error(f"input {i} is left out", f"a {self.kind} with this input")
        return found

    def steps(self, name: str, rank: int) -> list[int]:
        """Attribute `name`, an integer >= 1 for each of `rank` spatial axes; ones if it is left out."""
        found = [int(v) for v in self.at(name, [1] * rank)]
        if len(found) != rank or any(v < 1 for v in found):
            raise self.error(f"{name}={found} for {rank} axes of space", "a whole number >= 1 for each")
        return found

    # --- the check that everything was read ---

    def unread_copy(self) -> OnnxNode:
        """A copy of the node in which nothing counts as read."""
        return replace(self, _names=set(), _places=set())

    def unread_part(self) -> str | None:
        """An attribute or input of the node that was not read, as text; None if there is none."""
        for name, value in self.attributes.items():
            if name not in self._names:
                text = repr(value)
                return f"{name}={text}" if len(text) <= 40 else name
        for i, value in enumerate(self.inputs):
            if value is not None and i not in self._places:
                return f"input {i}"
        return None


Handler = Callable[[OnnxNode], "Held | Sequence[Held]"]
