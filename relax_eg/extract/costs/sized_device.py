"""A device at sizes: what every model of costs evaluates amounts with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relax_eg.extract.costs.numbers import Number, evaluate, is_column, maximum
from relax_eg.extract.profiles.profile import Profile
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ops.expansions import Expansion, expansion_of
from relax_eg.shapes import Dim
from relax_eg.tir import Buffer

ASSUMED_SIZE = 128  # chosen: value of a size variable that is not bound


class SizedDevice:
    """A device at one binding of the size variables, or at many.

    - `profile`: the device.
    - `binding`: the value of each size variable: a number, or a column of numbers; all columns are equally long.
    """

    def __init__(self, profile: Profile, binding: Mapping[str, Number]) -> None:
        self.profile = profile
        self.binding: dict[str, Number] = dict(binding)
        self._values: dict[Dim, Number] = {}

    def evaluate(self, d: Dim) -> Number:
        """The value of an amount or a size at the binding, with `ASSUMED_SIZE` for unbound variables. Negative values
        become 0, because a slice of `n - 4` rows has no negative size."""
        found = self._values.get(d)
        if found is None:
            unknown = d.variables - self.binding.keys()
            at = {**dict.fromkeys(unknown, ASSUMED_SIZE), **self.binding} if unknown else self.binding
            found = self._values[d] = maximum(evaluate(d, at), 0)
        return found

    def representative(self, d: Dim) -> float:
        """The value of a size at the binding, of many bindings at the last one: by it fusions are decided for all."""
        found = self.evaluate(d)
        return float(found[-1] if is_column(found) else found)

    def expansion(self, op: str, operands: Sequence[Annotation | Buffer]) -> Expansion | None:
        """What the device runs of an operator's loop in place of the scalar function of JAX; None where it does not.

        Integer quotients by one number, which XLA multiplies, are priced as expansions: both are vectorised."""
        first = operands[0] if operands and self.profile.platform == "cpu" else None
        return expansion_of(op, first.dtype) if isinstance(first, (Tensor, Buffer)) else None

    def loop_rate(self, op: str, operands: Sequence[Annotation | Buffer]) -> float:
        """The flop/s, of the flops that its record counts, of an operator's loop over arrays of known types."""
        found, p = self.expansion(op, operands), self.profile
        return p.scalar_rate.get(op, p.vector_rate) if found is None else found.share * p.vector_rate
