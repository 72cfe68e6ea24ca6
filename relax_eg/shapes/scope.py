"""`Scope`: what is known of the variables of a function, and what follows for sizes by interval arithmetic.

Answers are sound and immediate; what they leave open is for the prover.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import cast

from relax_eg.errors import BoundsError, SpecError
from relax_eg.shapes.binder import Binder, said
from relax_eg.shapes.dim import Dim
from relax_eg.shapes.interval import ANY, Interval, interval_of

_DEFAULT_SAID = "every size is at least 1 unless declared otherwise"
_ACCEPTED = "accepted: (low, high) with low <= high, either may be None, or one integer for a fixed size"


@dataclass(frozen=True, slots=True)
class _Bound:
    """What one variable may be, and who said so."""

    low: int | None
    high: int | None
    low_said: str
    high_said: str


_DEFAULT = _Bound(1, None, _DEFAULT_SAID, "")


class Scope:
    """Bounds of variables. A variable is at least 1 unless declared otherwise.

    `bounds` maps a name to `(low, high)`, where None leaves that side as it is by default, or to one integer, which
    fixes the size.
    """

    def __init__(self, bounds: Mapping[str, tuple[int | None, int | None] | int] | None = None) -> None:
        self._bounds: dict[str, _Bound] = {}
        for name, bound in (bounds or {}).items():
            low, high = _pair(name, bound)
            self.declare(name, low, high)

    def declare(
        self, name: str, low: int | None = None, high: int | None = None, said_by: str = "optimize(bounds=...)"
    ) -> None:
        """Adds that `low <= name <= high`; what was declared before still holds. `said_by` is named in errors.

        The first lower bound that is given replaces the default of 1.
        """
        Dim.var(name)
        low, high = _pair(name, (low, high))
        before = self._bounds.get(name, _DEFAULT)
        low_said, high_said = before.low_said, before.high_said
        if low is None or (low_said != _DEFAULT_SAID and before.low is not None and before.low >= low):
            low = before.low
        else:
            low_said = f"declared in {said_by}"
        if high is None or (before.high is not None and before.high <= high):
            high = before.high
        else:
            high_said = f"declared in {said_by}"
        if low is not None and high is not None and low > high:
            raise BoundsError(
                f"no size satisfies the bounds of `{name}`: at least {low} ({low_said}) "
                f"and at most {high} ({high_said}); {_ACCEPTED}"
            )
        self._bounds[name] = _Bound(low, high, low_said, high_said)

    def bounds(self, name: str) -> Interval:
        """The lower and upper bound of the variable `name`; None where there is none."""
        bound = self._bounds.get(name, _DEFAULT)
        return bound.low, bound.high

    def interval(self, d: Dim | int) -> Interval:
        """Bounds of the value of `d` wherever it is defined; None where none is known. Sound, not always tight."""
        dim = Dim.of(d)
        fixed = {
            name: low for name in dim.variables for low, high in [self.bounds(name)] if low == high and low is not None
        }
        if not fixed:
            return interval_of(dim, self.bounds)
        try:
            return interval_of(dim.substitute(fixed), self.bounds)
        except SpecError:  # a divisor is fixed at zero: there is no value to enclose
            return ANY

    def equal(self, a: Dim | int, b: Dim | int) -> bool | None:
        """True or False where equality or difference, for all sizes in bounds, is plain to see; else None."""
        difference = Dim.of(a) - b
        low, high = (difference.const, difference.const) if difference.is_const else self.interval(difference)
        if low == high == 0:
            return True
        if (low is not None and low > 0) or (high is not None and high < 0):
            return False
        return None

    def check(self, env: Mapping[str, int], where: str) -> None:
        """BoundsError for the first size in `env` outside its bounds; `where` names the function that was called."""
        for name, size in env.items():
            bound = self._bounds.get(name, _DEFAULT)
            if bound.high is not None and size > bound.high:
                raise BoundsError(
                    f"{said(where)}: {name} = {size} exceeds its bound {bound.high} ({bound.high_said}); "
                    f"raise the bound or split the input"
                )
            if bound.low is not None and size < bound.low:
                raise BoundsError(
                    f"{said(where)}: {name} = {size} is below its bound {bound.low} ({bound.low_said}); "
                    f"lower the bound or pass a larger input"
                )

    def bind(
        self,
        patterns: Sequence[Sequence[Dim | None]],
        sizes: Sequence[Sequence[int]],
        names: Sequence[str],
        where: str,
    ) -> dict[str, int]:
        """The variables' values at which the arguments `names` have these `sizes`, checked against the bounds.

        ShapeError and BoundsError say what does not fit. To bind many times, keep a `Binder`.
        """
        env = Binder(patterns, names, where).bind(sizes)
        self.check(env, where)
        return env

    def __repr__(self) -> str:
        return f"Scope({ {name: self.bounds(name) for name in self._bounds} })"


def _pair(name: str, bound: object) -> Interval:
    """`bound` as a pair of integers or None; BoundsError for anything else."""
    pair = cast("Sequence[object]", bound) if isinstance(bound, (tuple, list)) else (bound, bound)
    if len(pair) != 2 or bound is None:
        raise BoundsError(f"the bounds of `{name}` are {bound!r}; {_ACCEPTED}")
    low, high = (_side(name, side) for side in pair)
    if low is not None and high is not None and low > high:
        raise BoundsError(f"the bounds of `{name}` are empty: ({low}, {high}); {_ACCEPTED}")
    return low, high


def _side(name: str, side: object) -> int | None:
    if side is None:
        return None
    if isinstance(side, Integral) and side is not True and side is not False:
        return int(side)
    raise BoundsError(f"the bounds of `{name}` hold {side!r}, which is no integer; {_ACCEPTED}")
