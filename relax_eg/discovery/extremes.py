"""Whether the sides of a pair agree in floats at infinities and large numbers.

Sample points over the reals have neither: `where(x == inf, 0, x) = x` holds over the reals, and `log(1 + exp(x))`
overflows where `x` is no small number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relax_eg.discovery.grammar import Grammar
from relax_eg.discovery.table import EqualPair
from relax_eg.discovery.terms import Term
from relax_eg.discovery.values import SamplePoints
from relax_eg.dtypes import is_float, numpy_dtype
from relax_eg.errors import RelaxEgError
from relax_eg.ops.interpret import evaluate_points

# chosen: what elements of floats are replaced by
_SPECIAL = (np.inf, -np.inf, 1e4, -1e4, 100.0, -100.0)
_MISSING = (*_SPECIAL, np.nan, np.nan)
_SHARE = 0.5  # chosen: share of the elements that are replaced, in every second draw; a third of it in the others
_ROUNDS = 16  # chosen: draws for each sample point
_TIE = 0.3  # chosen: share of the elements at which variables of one type get the same number
_APART = 1e-2  # chosen: difference beyond rounding in float32, relative to the left side, or to 1

Array = np.ndarray[Any, Any]


class Extremes:
    """Draws of the variables of a grammar with infinities and large numbers, and such with NaN besides.

    - `grammar`: whose variables are drawn.
    - `points`: sample points over the reals, some elements of which are replaced.
    """

    def __init__(self, grammar: Grammar, points: SamplePoints) -> None:
        self._grammar, self._at = grammar, points.sizes[0]
        self._drawn = {
            missing: self._draw(points.values[0], _MISSING if missing else _SPECIAL) for missing in (False, True)
        }

    def _draw(self, points: Sequence[Array], special: Sequence[float]) -> list[Array]:
        rng = np.random.default_rng(0)
        found: list[Array] = []
        before: dict[tuple[int, ...], Array] = {}
        for v, drawn in zip(self._grammar.variables, points, strict=False):
            made = np.concatenate([drawn] * _ROUNDS).astype(numpy_dtype(v.dtype))
            if is_float(v.dtype):
                share = np.where(np.arange(len(made)) % 2, _SHARE / 3, _SHARE).reshape(-1, *[1] * (made.ndim - 1))
                own = np.where(rng.random(made.shape) < share, rng.choice(special, made.shape), made)
                made = np.where(rng.random(made.shape) < _TIE, before.get(made.shape, own), own)
                before[made.shape] = made
                made = made.astype(numpy_dtype(v.dtype))
            found.append(made)
        return found

    def agree(self, c: EqualPair, missing: bool = False) -> bool:
        """Whether the right side has the value of the left one wherever that is finite, or no float, and variables are
        finite of which the condition says so. `missing`: at NaN too, where laws of class `reassociate` may say
        something else, and NaN is NaN; laws about what is no float may not."""
        sides = tuple(self._grammar.expression(t) for t in (c.left, c.right))
        values = list(self._drawn[missing or not is_float(sides[0].dtype)])
        for v in (v for v, fact in c.condition.claims if fact == "finite") if c.condition is not None else ():
            values[v] = np.where(np.isfinite(values[v]), values[v], values[v].dtype.type(1))
        env, count = dict(zip(self._grammar.variables, values, strict=False)), len(values[0])
        try:
            with np.errstate(all="ignore"):
                left, right = (np.asarray(x) for x in evaluate_points(sides, env, self._at, count, ordered=True))
                if not is_float(sides[0].dtype):
                    return bool(np.array_equal(left, right))
                left, right = left.astype(np.float64), right.astype(np.float64)
                near = np.abs(left - right) <= _APART * np.maximum(np.abs(left), 1)
                is_free = np.isinf(left) | (np.isnan(left) & (np.isnan(right) | (not missing)))
                return bool(np.all(near | is_free))
        except RelaxEgError:
            return False

    def accept(self, c: EqualPair) -> bool:
        """Whether the sides agree, at NaN too if one of them tests for it."""
        return self.agree(c, missing=tests_for_nan(c, self._grammar))


def tests_for_nan(c: EqualPair, grammar: Grammar) -> bool:
    """Whether a truth value comes from one float alone, as of `x != x`. Over the reals it is always the same."""

    def tests(t: Term) -> bool:
        if isinstance(t, int):
            return False
        is_truth = grammar.type_of(t)[1] == "bool" and all(is_float(grammar.type_of(a)[1]) for a in t[1:])
        return (is_truth and len(set(t[1:])) == 1) or any(map(tests, t[1:]))

    return tests(c.left) or tests(c.right)
