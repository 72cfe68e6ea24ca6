"""Compares the results of two programs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from relax_eg.dtypes import RECORDS
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.module import Module
from relax_eg.ops.difference import largest_difference, largest_magnitude
from relax_eg.ops.interpret import evaluate_within
from relax_eg.ops.keys import words_of_keys

AS_WRITTEN = "the function as written"
INTERPRETED = "the reference interpreter"
ITSELF = "itself, since it runs as it was written"
_MOST_WORK = 20_000_000  # limit: flops and bytes of a program that is interpreted, about a second


@dataclass(frozen=True, slots=True)
class Check:
    """The error of an optimized function's results on one input, compared with those of the function as written.

    - `passed`: whether no error exceeds `tolerance` and there are no `violations`.
    - `max_error`: the largest error, relative to the largest magnitude of its result.
    - `tolerance`: the tolerance of the numerics class; 0 for "exact".
    - `worst`: the result with the largest error.
    - `violations`: declared facts that these arguments do not have, each with an entry that shows it.
    - `against`: what computed the other results.

    A module that runs as written is compared with the reference interpreter, within the rounding of the module's
    dtypes, unless that takes too much work. Anything else that runs as written is compared with itself, which
    `against` says.
    """

    passed: bool
    max_error: float
    tolerance: float
    worst: str
    violations: tuple[str, ...] = ()
    against: str = AS_WRITTEN

    def __str__(self) -> str:
        equal = self.max_error <= self.tolerance
        sign, verdict = ("<=", "equal") if equal else (">", "NOT equal")
        found = f"{verdict}: largest relative error {self.max_error:.3g} {sign} {self.tolerance:.3g} (in {self.worst})"
        found += "" if self.against == AS_WRITTEN else f", against {self.against}"
        return "\n".join((*(f"fact violated: {v}" for v in self.violations), found))


def compare_results(ours: Any, theirs: Any, tolerance: float, against: str = AS_WRITTEN) -> Check:
    """Compares two results of the same structure. `against`: what computed `theirs`."""
    pairs = zip(jax.tree_util.tree_leaves_with_path(ours), jax.tree_util.tree_leaves(theirs), strict=True)
    errors = [(_error(_numbers(x), _numbers(y)), f"result{jax.tree_util.keystr(k)}") for (k, x), y in pairs]
    worst, where = max(errors, default=(0.0, "no result"))
    return Check(worst <= tolerance, worst, tolerance, where, against=against)


def compare_with_reference(module: Module, ours: Any, args: Any, tolerance: float) -> Check | None:
    """Compares the results of a module with those of the reference interpreter.

    None where interpreting takes too much work, or the interpreter does not know a routine of the module.
    """
    meant = evaluate_within(module, args, _MOST_WORK)
    if meant is None:
        return None
    dtypes = {
        e.annotation.dtype for f in module for e in (*f.params, *f.expressions()) if isinstance(e.annotation, Tensor)
    }
    near = max((tolerance, *(RECORDS[d].tolerance for d in dtypes if d in RECORDS)))
    return compare_results(ours, meant, near, INTERPRETED)


def _numbers(x: Any) -> np.ndarray[Any, Any]:
    """A result as a numpy array; a PRNG key as its words."""
    is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return words_of_keys(x) if is_key else np.asarray(x)


def _error(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> float:
    """The largest error of `x` (`largest_difference`), relative to the largest finite magnitude of `y`; infinite where
    dtypes differ."""
    if x.dtype != y.dtype:
        return math.inf
    return largest_difference(x, y, largest_magnitude(y) or 1.0)
