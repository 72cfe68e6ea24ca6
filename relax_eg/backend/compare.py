"""How far results of two programs are apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np


@dataclass(frozen=True, slots=True)
class Check:
    """How far the optimized function's results are from those of the function as written, on one input.

    Errors are relative to the largest magnitude of each result; `passed` compares with the tolerance of the
    numerics class, 0 for "exact" and integers. `violations`: facts declared of arguments that these do not have, each
    with an entry that shows it; none may be.
    """

    passed: bool
    max_error: float
    tolerance: float
    worst: str
    violations: tuple[str, ...] = ()

    def __str__(self) -> str:
        equal = self.max_error <= self.tolerance
        sign, verdict = ("<=", "equal") if equal else (">", "NOT equal")
        found = f"{verdict}: largest relative error {self.max_error:.3g} {sign} {self.tolerance:.3g} (in {self.worst})"
        return "\n".join((*(f"fact violated: {v}" for v in self.violations), found))


def compared(ours: Any, theirs: Any, tolerance: float) -> Check:
    """How far results of one structure are apart."""
    pairs = zip(jax.tree_util.tree_leaves_with_path(ours), jax.tree_util.tree_leaves(theirs), strict=True)
    errors = [(_error(_numbers(x), _numbers(y)), f"result{jax.tree_util.keystr(k)}") for (k, x), y in pairs]
    worst, where = max(errors, default=(0.0, "no result"))
    return Check(worst <= tolerance, worst, tolerance, where)


def _numbers(x: Any) -> np.ndarray[Any, Any]:
    """A result as an array of numpy; PRNG keys by their words."""
    is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if is_key else x)


def _error(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> float:
    """Largest error relative to the largest finite magnitude of `y`; infinite where NaNs or infinities differ."""
    if x.shape != y.shape or x.dtype != y.dtype:
        return float("inf")
    if x.size == 0:
        return 0.0
    if x.dtype.kind in "biu":
        return float(np.max(x != y))
    wide = np.complex128 if x.dtype.kind == "c" else np.float64
    a, b = x.astype(wide), y.astype(wide)
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    scale = float(np.max(np.abs(b[finite]), initial=0.0))
    return float(np.max(np.abs(a[finite] - b[finite]), initial=0.0)) / (scale or 1.0)
