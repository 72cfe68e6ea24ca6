"""`Site`: one use of an operator, which the functions of its record take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relax_eg.errors import OperatorError, UndecidedError
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.shapes import Dim


@dataclass(frozen=True, slots=True)
class Site:
    """One use of an operator, the argument of the functions of its record.

    - `op`: the operator's name.
    - `operands`: annotations of the operands.
    - `attrs`: attributes by name.
    - `strict`: whether sizes that the operator needs to be equal must be provably equal.
    - `operands_in_errors`: the operands that error messages show instead of `operands`.
    """

    op: str
    operands: tuple[Annotation, ...]
    attrs: Mapping[str, Any]
    strict: bool = False
    operands_in_errors: tuple[Annotation, ...] | None = None

    def __getitem__(self, name: str) -> Any:
        return self.attrs[name]

    def tensor(self, i: int) -> Tensor:
        """Returns the annotation of operand `i`, which must be a tensor. Raises OperatorError."""
        a = self.operands[i]
        if not isinstance(a, Tensor):
            raise self.error(f"operand {i} is {a}; a tensor is needed")
        return a

    def shape(self, i: int = 0) -> tuple[Dim, ...]:
        """Returns the sizes of operand `i`, whose shape must be known. Raises OperatorError."""
        shape = self.tensor(i).shape
        if shape is None:
            raise self.error(f"the shape of operand {i} is not known ({self.operands[i]}); match_cast names it")
        return shape

    def dtype(self, i: int = 0) -> str:
        dtype = self.tensor(i).dtype
        if dtype is None:
            raise self.error(f"the dtype of operand {i} is not known; match_cast names it")
        return dtype

    def error(self, text: str) -> OperatorError:
        """Returns an error that names the operator, its operands and attributes."""
        return OperatorError(self._with_site(text))

    def undecided_error(self, text: str) -> UndecidedError:
        """As `error`, for a use where the sizes decide whether the operator applies."""
        return UndecidedError(self._with_site(text))

    def _with_site(self, text: str) -> str:
        operands = ", ".join(
            a.short if isinstance(a, Tensor) else str(a) for a in self.operands_in_errors or self.operands
        )
        attrs = "".join(f", {k}={_plain(v)}" for k, v in self.attrs.items())
        return f"{self.op}({operands}{attrs}): {text}"


def _plain(value: Any) -> str:
    return f"({', '.join(map(_plain, value))})" if isinstance(value, tuple) else str(value)  # type: ignore[reportUnknownVariableType]
