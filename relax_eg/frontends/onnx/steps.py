"""Results whose sizes depend on values. They are steps of the module's entry: library calls, and casts that name the
sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from relax_eg.frontends.specs import identifier
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, match_cast, var
from relax_eg.ir.module import Binding
from relax_eg.ops.data_dependent import call_routine
from relax_eg.shapes import Dim


@dataclass
class Steps:
    """The steps of an entry, in order.

    - `taken`: the names of variables in use.
    - `sizes`: the names of sizes in use.
    """

    taken: set[str]
    sizes: set[str] = field(default_factory=set[str])
    bindings: list[Binding] = field(default_factory=list[Binding])

    def new_size(self) -> Dim:
        return Dim.var(identifier("found", self.sizes))

    def nonzero(self, x: Expr) -> Expr:
        """The indices of the elements that are not zero: a row for each axis."""
        return self._found("nonzero", (x,), (Dim.of(x.ndim), self.new_size()), dtype="int64")

    def selected(self, x: Expr, mask: Expr, size: Dim) -> Expr:
        """The elements along the first axis at which `mask` holds; there are `size` of them."""
        return self._found("masked_select", (x, mask), (size, *x.shape[1:]))

    def _found(self, routine: str, args: tuple[Expr, ...], shape: Sequence[Dim], **attributes: str) -> Expr:
        called = self._bound(call_routine(routine, args, attributes))
        assert isinstance(called.annotation, Tensor)
        return self._bound(match_cast(called, Tensor(tuple(shape), called.annotation.dtype)))

    def _bound(self, value: Expr) -> Expr:
        name = var(identifier("step", self.taken), value.annotation)
        self.bindings.append(Binding(name, value))
        return name
