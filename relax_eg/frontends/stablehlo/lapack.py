"""Routines of LAPACK, as JAX calls them in modules for CPUs, and those of cuSOLVER, cuSPARSE, hipSOLVER and JAX's own
kernels, as it calls them in modules for GPUs: as the calls of `jax.lax` that make such calls.

Each result has the place that it has in LAPACK. The last one, `info`, is 0: where a routine fails, the calls here give
NaN, and that is also what JAX writes into a module for an `info` other than 0. A result that JAX never reads, such as
what is left of a matrix, is an operand of its shape.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax._src.lax.linalg import geqp3, geqrf  # `jax.lax.linalg.qr` is made of them, and keeps them for itself
from jax.extend.core import primitives

from relax_eg.frontends.stablehlo.use import Use


def routine(target: str, options: object) -> str:
    """The name in `ROUTINES` of what a custom call calls, "lapack.potrf" for `lapack_spotrf_ffi` and for
    `cusolver_potrf_ffi`; "" for nothing there. `options`: its `mhlo.backend_config`. A call whose options are no
    mapping is one of an older interface, of other operands and results, and is not read."""
    found = re.fullmatch(r"(?:lapack_[sdcz]|(?:cu|hip)(?:solver|sparse)?_)(\w+?)(?:_ffi)?", target)
    name = "" if found is None or not isinstance(options, Mapping) else f"lapack.{_SAME.get(found[1], found[1])}"
    return name if name in ROUTINES else ""


# Names of routines that do what another one does: LAPACK's for complex numbers, and other methods of GPUs.
_SAME = {"ungqr": "orgqr", "unmqr": "ormqr", "heevd": "syevd", "hetrd": "sytrd", "gesvdp": "gesvdj"}


def _option(u: Use, name: str, default: Any = 0) -> Any:
    return u.at("mhlo.backend_config", {}).get(name, default)


def _letter(u: Use, name: str) -> str:
    """An option of a routine of LAPACK: `uplo`, `side`, `mode` and so on are letters."""
    return chr(_option(u, name))


def _is_lower(u: Use) -> bool:
    """Whether a routine reads the lower triangle, which routines of GPUs call an option of its own."""
    return bool(_option(u, "lower", _letter(u, "uplo") == "L"))


def _info(x: Any) -> Any:
    return jnp.zeros(x.shape[:-2], jnp.int32)


def cholesky(x: Any, lower: bool) -> Any:
    """The Cholesky factor of the matrix whose lower or upper triangle `x` has."""
    if not lower:
        return jnp.conj(jnp.swapaxes(cholesky(jnp.conj(jnp.swapaxes(x, -1, -2)), True), -1, -2))
    return lax.linalg.cholesky(x, symmetrize_input=False)


def _potrf(u: Use) -> list[Any]:
    """A Cholesky factor in a triangle of the matrix, whose other triangle stays as it is."""
    x = u.args[0]
    lower = _is_lower(u)
    factor = cholesky(x, lower)
    rows, columns = (lax.broadcasted_iota(jnp.int32, x.shape, axis) for axis in (x.ndim - 2, x.ndim - 1))
    return [jnp.where(rows >= columns if lower else rows <= columns, factor, x), _info(x)]


def _getrf(u: Use) -> list[Any]:
    x = u.args[0]
    both, pivots, _ = lax.linalg.lu(x)
    return [both, pivots + 1, _info(x)]  # LAPACK counts from 1


def _permutation(u: Use) -> Any:
    kind = u.op.types[0]
    assert kind is not None and kind.shape[-1] is not None
    return lax.linalg.lu_pivots_to_permutation(u.args[0], kind.shape[-1])


def _trsm(u: Use) -> Any:
    way = _letter(u, "trans_x")
    return lax.linalg.triangular_solve(
        u.args[0], u.args[1], left_side=_letter(u, "side") == "L", lower=_letter(u, "uplo") == "L",
        transpose_a=way in "TC", conjugate_a=way == "C", unit_diagonal=_letter(u, "diag") == "U",
    )  # fmt: skip


def _syevd(u: Use) -> list[Any]:
    x = u.args[0]
    vectors, values = lax.linalg.eigh(x, lower=_is_lower(u), symmetrize_input=False)
    return [vectors, values, _info(x)]


def _gesdd(u: Use) -> list[Any]:
    """Singular values and vectors. The first result is what is left of the matrix, which nobody reads; so are the
    vectors where none are asked for."""
    x, mode = u.args[0], _letter(u, "mode")
    if "full_matrices" in u.at("mhlo.backend_config", {}):  # a routine of GPUs
        mode = "N" if not _option(u, "compute_uv") else "A" if _option(u, "full_matrices") else "S"
    if mode == "N":
        return [x, lax.linalg.svd(x, compute_uv=False), x, x, _info(x)]
    left, values, right = lax.linalg.svd(x, full_matrices=mode == "A")
    return [x, values, left, right, _info(x)]


def _gesvd(u: Use) -> list[Any]:
    """Singular values and vectors, as `gesdd` gives them; of a transposed matrix, the vectors in the other order."""
    x, values, left, right, info = _gesdd(u)
    return [x, values, *((right, left) if _option(u, "transposed") else (left, right)), info]


def _gesvdj(u: Use) -> list[Any]:
    """Singular values and vectors, where those on the right are columns."""
    x, values, left, right, info = _gesdd(u)
    return [x, values, left, jnp.conj(jnp.swapaxes(right, -1, -2)), info]


def _geev(u: Use) -> list[Any]:
    """Eigenvalues, of a real matrix as two arrays, and eigenvectors: a matrix for those that are not asked for."""
    x, left, right = u.args[0], _letter(u, "compute_left") == "V", _letter(u, "compute_right") == "V"
    values, *vectors = lax.linalg.eig(x, compute_left_eigenvectors=left, compute_right_eigenvectors=right)
    absent = jnp.zeros(x.shape, values.dtype)
    parts = [values] if jnp.iscomplexobj(x) else [values.real, values.imag]
    return [*parts, vectors[0] if left else absent, vectors[-1] if right else absent, _info(x)]


def _gees(u: Use) -> list[Any]:
    """A Schur form and its vectors. JAX reads the form, the vectors and the last result."""
    x, vectors = u.args[0], _letter(u, "mode") == "V"
    form, *others = lax.linalg.schur(x, compute_schur_vectors=vectors)
    unread = [x[..., 0]] * (len(u.op.results) - 4)
    return [form, others[0] if vectors else x, *unread, _info(x), _info(x)]


def _geqp3(u: Use) -> list[Any]:
    matrix, order = u.args
    return list(geqp3(matrix, order))


def _sytrd(u: Use) -> list[Any]:
    x = u.args[0]
    return [*lax.linalg.tridiagonal(x, lower=_is_lower(u)), _info(x)]


ROUTINES: Mapping[str, Callable[[Use], Any]] = {
    "lapack.gees": _gees,
    "lapack.geev": _geev,
    "lapack.gehrd": lambda u: [*lax.linalg.hessenberg(u.args[0]), _info(u.args[0])],
    "lapack.geqp3": _geqp3,
    "lapack.geqrf": lambda u: list(geqrf(u.args[0])),
    "lapack.gesdd": _gesdd,
    "lapack.gesvd": _gesvd,
    "lapack.gesvdj": _gesvdj,
    "lapack.getrf": _getrf,
    "lapack.gtsv": lambda u: [*u.args[:3], lax.linalg.tridiagonal_solve(*u.args), _info(u.args[3])],
    "lapack.gtsv2": lambda u: lax.linalg.tridiagonal_solve(*u.args),
    "lapack.lu_pivots_to_permutation": _permutation,
    "lapack.orgqr": lambda u: lax.linalg.householder_product(u.args[0], u.args[1]),
    "lapack.ormqr": lambda u: lax.linalg.ormqr(*u.args, left=_option(u, "left"), transpose=_option(u, "transpose")),
    "lapack.potrf": _potrf,
    "lapack.syevd": _syevd,
    "lapack.sytrd": _sytrd,
    "lapack.threefry2x32": lambda u: list(primitives.threefry2x32_p.bind(*u.args)),
    "lapack.trsm": _trsm,
}
