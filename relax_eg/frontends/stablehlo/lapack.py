"""LAPACK's routines, as JAX's CPU backend calls them in modules: as the calls of `jax.lax.linalg` that make such calls.

Each result has the place that it has in LAPACK. The last one, `info`, is 0: where a routine fails, the calls here give
NaN, and that is also what JAX writes into a module for an `info` other than 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax._src.lax.linalg import geqrf  # `jax.lax.linalg.qr` is made of it, and keeps it for itself

from relax_eg.frontends.stablehlo.operations import Use


def routine(target: str) -> str:
    """The name in `ROUTINES` of what a custom call calls, "lapack.potrf" for `lapack_spotrf_ffi`; "" for nothing
    there."""
    found = re.fullmatch(r"lapack_[sdcz](\w+)_ffi", target)
    name = "" if found is None else f"lapack.{_SAME.get(found[1], found[1])}"
    return name if name in ROUTINES else ""


# LAPACK's names of routines for complex numbers that do what another one does for real numbers.
_SAME = {"ungqr": "orgqr", "heevd": "syevd"}


def _letter(u: Use, name: str) -> str:
    """An option of a routine: `uplo`, `side`, `mode` and so on are letters."""
    return chr(u.at("mhlo.backend_config", {}).get(name, 0))


def _info(x: Any) -> Any:
    return jnp.zeros(x.shape[:-2], jnp.int32)


def _potrf(u: Use) -> list[Any]:
    """A Cholesky factor in a triangle of the matrix, whose other triangle stays as it is."""
    x = u.args[0]
    lower = _letter(u, "uplo") == "L"
    turned = x if lower else jnp.conj(jnp.swapaxes(x, -1, -2))
    factor = lax.linalg.cholesky(turned, symmetrize_input=False)
    if not lower:
        factor = jnp.conj(jnp.swapaxes(factor, -1, -2))
    rows, columns = (lax.broadcasted_iota(jnp.int32, x.shape, axis) for axis in (x.ndim - 2, x.ndim - 1))
    return [jnp.where(rows >= columns if lower else rows <= columns, factor, x), _info(x)]


def _getrf(u: Use) -> list[Any]:
    x = u.args[0]
    both, pivots, _ = lax.linalg.lu(x)
    return [both, pivots + 1, _info(x)]  # LAPACK counts from 1


def _trsm(u: Use) -> Any:
    way = _letter(u, "trans_x")
    return lax.linalg.triangular_solve(
        u.args[0], u.args[1], left_side=_letter(u, "side") == "L", lower=_letter(u, "uplo") == "L",
        transpose_a=way in "TC", conjugate_a=way == "C", unit_diagonal=_letter(u, "diag") == "U",
    )  # fmt: skip


def _syevd(u: Use) -> list[Any]:
    x = u.args[0]
    vectors, values = lax.linalg.eigh(x, lower=_letter(u, "uplo") == "L", symmetrize_input=False)
    return [vectors, values, _info(x)]


def _gesdd(u: Use) -> list[Any]:
    """Singular values and vectors. The first result is what is left of the matrix, which nobody reads; so are the
    vectors where none are asked for."""
    x, mode = u.args[0], _letter(u, "mode")
    if mode == "N":
        return [x, lax.linalg.svd(x, compute_uv=False), x, x, _info(x)]
    left, values, right = lax.linalg.svd(x, full_matrices=mode == "A")
    return [x, values, left, right, _info(x)]


ROUTINES: Mapping[str, Callable[[Use], Any]] = {
    "lapack.geqrf": lambda u: list(geqrf(u.args[0])),
    "lapack.gesdd": _gesdd,
    "lapack.getrf": _getrf,
    "lapack.orgqr": lambda u: lax.linalg.householder_product(u.args[0], u.args[1]),
    "lapack.potrf": _potrf,
    "lapack.syevd": _syevd,
    "lapack.trsm": _trsm,
}
