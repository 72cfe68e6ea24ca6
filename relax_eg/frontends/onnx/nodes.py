"""What a node of an ONNX graph is asked for: inputs as expressions or known arrays, attributes, its opset's version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relax_eg.errors import OnnxError
from relax_eg.frontends.onnx.values import Array, Known, Value, dims
from relax_eg.ir.expr import Expr
from relax_eg.shapes import Dim


@dataclass(frozen=True)
class Node:
    """A node: `where` tells it in errors. `inputs` that are left out are None. `dtype_of`: the dtype that an ONNX
    element type has here."""

    kind: str
    where: str
    inputs: tuple[Value | None, ...]
    attributes: Mapping[str, Any]
    outputs: int
    opset: int

    def error(self, problem: str, accepted: str) -> OnnxError:
        return OnnxError(f"{self.where}: {problem}\n  accepted: {accepted}")

    def __getitem__(self, i: int) -> Expr:
        """Input `i` as an expression."""
        found = self.given(i)
        if found is None:
            raise self.error(f"input {i} is left out", f"a {self.kind} with this input")
        return found

    def given(self, i: int) -> Expr | None:
        """Input `i` as an expression, or None where it is left out."""
        value = self.inputs[i] if i < len(self.inputs) else None
        return value.expr if isinstance(value, Known) else value

    @property
    def all(self) -> list[Expr]:
        return [self[i] for i in range(len(self.inputs))]

    def at(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def known(self, i: int, what: str) -> Array | None:
        """Input `i` as an array that is known now; None where it is left out."""
        value = self.inputs[i] if i < len(self.inputs) else None
        if value is None or isinstance(value, Known):
            return None if value is None else value.array
        raise self.error(f"{what} are computed when the model runs", f"{what} that follow from sizes and constants")

    def listed(self, name: str, i: int) -> list[int] | None:
        """Whole numbers that are an attribute in older versions, input `i` in newer ones."""
        if name in self.attributes:
            found = self.attributes[name]
            return list(found) if isinstance(found, Sequence) else [int(found)]
        array = self.known(i, f"the {name}")
        return None if array is None else [int(d) for d in np.atleast_1d(array)]

    def sizes(self, name: str, i: int) -> tuple[Dim, ...] | None:
        """As `listed`, of sizes, which may be symbolic."""
        if name in self.attributes:
            return dims(np.array(self.attributes[name]))
        array = self.known(i, f"the {name}")
        return None if array is None else dims(array)


Handler = Callable[[Node], "Value | Sequence[Value]"]
