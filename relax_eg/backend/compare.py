"""How far results of two programs are apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from relax_eg.ir.annotations import Tensor
from relax_eg.ir.module import Module
from relax_eg.ops.interpret import evaluate_within

AS_WRITTEN = "the function as written"
INTERPRETED = "the reference interpreter"
ITSELF = "itself, since it runs as it was written"
ROUNDING = {"float64": 1e-6, "float32": 1e-3, "complex64": 1e-3, "float16": 2e-2, "bfloat16": 5e-2}
"""How far results may be from those of a definition, by the dtypes in it, relative to the largest of a result."""
_MOST_WORK = 20_000_000  # flops and bytes that are interpreted, about a second


@dataclass(frozen=True, slots=True)
class Check:
    """How far the optimized function's results are from those of the function as written, on one input.

    Errors are relative to the largest magnitude of each result; `passed` compares with the tolerance of the
    numerics class, 0 for "exact" and integers. `violations`: facts declared of arguments that these do not have, each
    with an entry that shows it; none may be. `against`: what computed the other results. Of a module that runs as it
    was written that is the reference interpreter, within the rounding of the module's dtypes, unless that were too much
    work. Anything else that runs as it was written is compared with itself, and says so.
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


def compared(ours: Any, theirs: Any, tolerance: float, against: str = AS_WRITTEN) -> Check:
    """How far results of one structure are apart. `against`: what computed the others."""
    pairs = zip(jax.tree_util.tree_leaves_with_path(ours), jax.tree_util.tree_leaves(theirs), strict=True)
    errors = [(_error(_numbers(x), _numbers(y)), f"result{jax.tree_util.keystr(k)}") for (k, x), y in pairs]
    worst, where = max(errors, default=(0.0, "no result"))
    return Check(worst <= tolerance, worst, tolerance, where, against=against)


def against_reference(module: Module, ours: Any, args: Any, tolerance: float) -> Check | None:
    """How far the results of a module are from those of the reference interpreter; None where that were too much work,
    or a routine of the module is not known to it."""
    meant = evaluate_within(module, args, _MOST_WORK)
    if meant is None:
        return None
    dtypes = {
        e.annotation.dtype for f in module for e in (*f.params, *f.expressions()) if isinstance(e.annotation, Tensor)
    }
    near = max(tolerance, *(ROUNDING.get(d or "", 0.0) for d in dtypes))
    return compared(ours, meant, near, INTERPRETED)


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
