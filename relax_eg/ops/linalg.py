"""Linear algebra and the Fourier transform: library routines, with a numpy reference and a cost.

Matrices are the last two axes; leading axes are batches. An empty matrix is not factored, but its results have their
shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import scipy

from relax_eg.dtypes import PARTS, dtype_of, is_complex, itemsize, names_where
from relax_eg.ir.annotations import Annotation, Tensor, Tuple
from relax_eg.ops.lazy_jax import jax, jnp, lax
from relax_eg.ops.record import Attribute, Operator, Site, bytes_of, deduce, register, routine_cost
from relax_eg.ops.sizes import Dims, need_equal, need_kind, need_same_dtype, product
from relax_eg.ops.sorting import log2_of
from relax_eg.shapes import Dim, dim_min
from relax_eg.tir import Counts

Array = np.ndarray[Any, Any]

_DTYPES = names_where(lambda d: d.kind in "fc" and d.part.bits >= 32)


def complex_of(dtype: str) -> str:
    """Returns the complex dtype whose parts are of `dtype`; a complex `dtype` itself."""
    made = dtype_of(dtype).complex
    return dtype if made is None else made.name


def need_matrix(site: Site, i: int = 0, square: bool = False) -> tuple[Dims, Dim, Dim]:
    """Returns batch axes, rows and columns of operand `i`, which must be a matrix of a dtype that the routines take."""
    shape, dtype = site.shape(i), site.dtype(i)
    if dtype not in _DTYPES:
        raise site.error(f"operand {i} is {dtype}; {', '.join(_DTYPES[:-1])} or {_DTYPES[-1]} is needed")
    if len(shape) < 2:
        raise site.error(f"operand {i} has rank {len(shape)}; a matrix, or a batch of them, is needed")
    if square:
        need_equal(site, shape[-2], shape[-1], f"operand {i} must be square")
    return shape[:-2], shape[-2], shape[-1]


def library_cost(flops: Callable[[Site], Dim]) -> Callable[[Site], Counts]:
    """Returns a cost: `flops(site)` multiply-adds, 4 times as many if complex; operands and results are moved once."""
    return routine_cost(lambda site: flops(site) * (4 if is_complex(site.dtype()) else 1))


def cubes(times: int) -> Callable[[Site], Dim]:
    """Returns a function for `times` * rows * columns * min(rows, columns) flops for each matrix."""

    def flops(site: Site) -> Dim:
        *batch, m, n = site.shape(0)
        return product(batch) * m * n * (m if m is n else dim_min(m, n)) * times

    return flops


def batched(function: Callable[..., Any], *arrays: Array, results: Sequence[tuple[tuple[int, ...], Any]]) -> Any:
    """Returns `function` of each matrix of a batch; `results`: shape and dtype of each result for one matrix."""
    batch = arrays[0].shape[:-2]
    made = [np.zeros((*batch, *shape), dtype) for shape, dtype in results]
    for at in np.ndindex(*batch):
        if all(a[at].size for a in arrays):
            parts = function(*(a[at] for a in arrays))
            for out, part in zip(made, parts, strict=True):
                out[at] = part
    return made[0] if len(made) == 1 else tuple(made)


# --- cholesky and triangular systems ---


def _cholesky(site: Site) -> Annotation:
    need_matrix(site, square=True)
    return Tensor(site.shape(), site.dtype())


def _cholesky_of(a: Array) -> tuple[Array]:
    lower = np.tril(a)
    try:
        return (np.linalg.cholesky(lower + np.tril(a, -1).conj().T),)
    except np.linalg.LinAlgError:
        return (np.full_like(lower, np.nan),)


def _cholesky_reference(a: Array) -> Any:
    return batched(_cholesky_of, a, results=[(a.shape[-2:], a.dtype)])


def _jax_cholesky(a: Any) -> Any:
    return jnp.tril(lax.linalg.cholesky(a, symmetrize_input=False))


def _triangular_solve(site: Site) -> Annotation:
    need_same_dtype(site, (0, 1))
    batch, n, _ = need_matrix(site, 0, square=True)
    others, rows, columns = need_matrix(site, 1)
    if len(batch) != len(others):
        raise site.error(f"ranks {len(batch) + 2} and {len(others) + 2}; equal ones are needed")
    for axis, (p, q) in enumerate(zip(batch, others, strict=True)):
        need_equal(site, p, q, f"batch axis {axis}")
    need_equal(site, n, rows if site["left_side"] else columns, "the matrix and the right side")
    return Tensor(site.shape(1), site.dtype())


def _triangular_solve_reference(
    a: Array, b: Array, *, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool, unit_diagonal: bool
) -> Any:
    def solve(m: Array, right: Array) -> tuple[Array]:
        m = m.conj() if conjugate_a else m
        if transpose_a == left_side:
            m = m.T
        below = lower != (transpose_a == left_side)
        found = _solve_triangle(m, right if left_side else right.T, below, unit_diagonal)
        return (found if left_side else found.T,)

    return batched(solve, a, b, results=[(b.shape[-2:], b.dtype)])


# chosen: rows of the largest system that is solved row by row: starting a library's threads would take longer.
_ROW_BY_ROW = 16


def _solve_triangle(m: Array, right: Array, lower: bool, unit_diagonal: bool) -> Array:
    """Returns x with m @ x = right for a triangle of m; x has infinities or NaN where a diagonal element is 0."""
    if len(m) > _ROW_BY_ROW and (unit_diagonal or np.diagonal(m).all()):
        return scipy.linalg.solve_triangular(m, right, 0, lower, unit_diagonal, check_finite=False)
    x = right.copy()
    with np.errstate(all="ignore"):
        for i in range(len(m)) if lower else reversed(range(len(m))):
            x[i] = x[i] if unit_diagonal else x[i] / m[i, i]
            rest = slice(i + 1, None) if lower else slice(0, i)
            x[rest] -= np.outer(m[rest, i], x[i])
    return x


def _definite_solve(site: Site) -> Annotation:
    if need_same_dtype(site, (0, 1, 2)) not in PARTS:
        raise site.error(f"operand 0 is {site.dtype()}; float32 or float64 is needed")
    (batch, n, _), (of_right, rows, _), (others, size, _) = (need_matrix(site, i, square=i != 1) for i in range(3))
    if batch or of_right or others:
        raise site.error("one matrix and its right sides are needed, no batch of them")
    need_equal(site, n, rows, "the factor and the right side")
    need_equal(site, n, size, "the factor and the matrix")
    return Tensor(site.shape(1), site.dtype())


def _definite_solve_reference(factor: Array, b: Array, a: Array) -> Array:
    if np.isfinite(factor[:1, :1]).all():
        half = _solve_triangle(factor, b, lower=True, unit_diagonal=False)
        return _solve_triangle(factor.T, half, lower=False, unit_diagonal=False)
    factors, _, order = _lu_reference(a)
    half = _solve_triangle(factors, b[order], lower=True, unit_diagonal=True)
    return _solve_triangle(factors, half, lower=False, unit_diagonal=False)


def _jax_definite_solve(factor: Any, b: Any, a: Any) -> Any:
    """Derivatives are those of a system with a symmetric `a`, so the solution is never differentiated itself."""
    return lax.custom_linear_solve(
        lambda x: jnp.matmul(a, x, precision="highest"), b, lambda _, b: _guarded(factor, b, a), symmetric=True
    )


def _guarded(factor: Any, b: Any, a: Any) -> Any:
    """`lax.cond` on the first number of each factor, whose triangle is NaN where there is none. Under `vmap` all
    matrices are solved in one way, because JAX would make both branches of a choice for each."""
    one = jax.custom_batching.custom_vmap(_by_factors)

    def many(size: int, is_batched: Sequence[bool], factor: Any, b: Any, a: Any) -> Any:
        if not is_batched[0] and not is_batched[2] and a.ndim == 2:  # right sides of one matrix
            found = _guarded(factor, jnp.concatenate(b, -1), a)
            return jnp.stack(jnp.split(found, size, -1)), True
        operands = zip((factor, b, a), is_batched, strict=True)
        return _guarded(*(x if there else jnp.broadcast_to(x, (size, *x.shape)) for x, there in operands)), True

    one.def_vmap(many)
    return one(factor, b, a)


def _by_factors(factor: Any, b: Any, a: Any) -> Any:
    def by_cholesky() -> Any:
        half = lax.linalg.triangular_solve(factor, b, left_side=True, lower=True)
        return lax.linalg.triangular_solve(factor, half, left_side=True, lower=True, transpose_a=True)

    return lax.cond(jnp.isfinite(factor[..., :1, :1]).all(), by_cholesky, lambda: jnp.linalg.solve(a, b))


# --- factorisations ---


def _lu(site: Site) -> Annotation:
    batch, m, n = need_matrix(site)
    pivots = Tensor((*batch, m if m is n else dim_min(m, n)), "int32")
    return Tuple((Tensor(site.shape(), site.dtype()), pivots, Tensor((*batch, m), "int32")))


def _lu_reference(a: Array) -> Any:
    m, n = a.shape[-2:]

    def factor(x: Array) -> tuple[Array, Array, Array]:
        # Not `scipy.linalg.lu_factor`: it warns of a singular matrix, which has factors all the same.
        getrf = cast("Callable[[Array], tuple[Array, Array, int]]", scipy.linalg.get_lapack_funcs("getrf", (x,)))
        lu, pivots, _ = getrf(x)
        order = np.arange(m)
        for i, p in enumerate(pivots):
            order[[i, p]] = order[[p, i]]
        return lu, pivots, order

    results = batched(factor, a, results=[((m, n), a.dtype), ((min(m, n),), np.int32), ((m,), np.int32)])
    if 0 in a.shape:
        results[2][...] = np.arange(m)
    return results


def _need_width(site: Site) -> tuple[Dims, Dim, Dim, Dim, bool]:
    """Returns batch axes, rows, columns, min(rows, columns), and attribute `full_matrices`."""
    batch, m, n = need_matrix(site)
    return batch, m, n, m if m is n else dim_min(m, n), site["full_matrices"]


def _qr(site: Site) -> Annotation:
    batch, m, n, k, full = _need_width(site)
    inner = m if full else k
    parts = (Tensor((*batch, m, inner), site.dtype()), Tensor((*batch, inner, n), site.dtype()))
    return Tuple((*parts, Tensor((*batch, n), "int32")) if site["pivoting"] else parts)


def _qr_reference(a: Array, *, full_matrices: bool, pivoting: bool) -> Any:
    m, n = a.shape[-2:]
    k = m if full_matrices else min(m, n)
    forms = [((m, k), a.dtype), ((k, n), a.dtype), *([((n,), np.int32)] if pivoting else [])]
    mode = "full" if full_matrices else "economic"
    q, r, *order = batched(lambda x: scipy.linalg.qr(x, mode=mode, pivoting=pivoting), a, results=forms)
    if 0 in (m, n):
        q[...] = np.eye(m, k)
    return (q, r, *order)


def _eigh(site: Site) -> Annotation:
    batch, n, _ = need_matrix(site, square=True)
    values = Tensor((*batch, n), dtype_of(site.dtype()).part.name)
    return Tuple((Tensor(site.shape(), site.dtype()), values))


def _eigh_reference(a: Array, *, lower: bool) -> Any:
    n, real = a.shape[-1], dtype_of(a.dtype.name).part.name

    def factor(x: Array) -> tuple[Array, Array]:
        values, vectors = np.linalg.eigh(x, "L" if lower else "U")
        return vectors, values

    return batched(factor, a, results=[((n, n), a.dtype), ((n,), real)])


def _jax_eigh(a: Any, *, lower: bool) -> Any:
    return tuple(lax.linalg.eigh(a, lower=lower, symmetrize_input=False))


# JAX's algorithms for a singular value decomposition; None is the platform's default.
_SVD = (None, "qr", "jacobi", "polar")


def _svd(site: Site) -> Annotation:
    batch, m, n, k, full = _need_width(site)
    values = Tensor((*batch, k), dtype_of(site.dtype()).part.name)
    if site["algorithm"] not in _SVD:
        raise site.error(f"algorithm {site['algorithm']!r}; accepted: {', '.join(map(str, _SVD))}")
    if not site["compute_uv"]:
        return values
    left, right = (m if full else k), (n if full else k)
    return Tuple((values, Tensor((*batch, m, left), site.dtype()), Tensor((*batch, right, n), site.dtype())))


def _svd_reference(a: Array, *, full_matrices: bool, compute_uv: bool, algorithm: str | None) -> Any:
    m, n = a.shape[-2:]
    k, real = min(m, n), dtype_of(a.dtype.name).part.name
    if not compute_uv:
        return batched(lambda x: (np.linalg.svd(x, compute_uv=False),), a, results=[((k,), real)])
    left, right = (m, n) if full_matrices else (k, k)

    def factor(x: Array) -> tuple[Array, Array, Array]:
        u, s, vt = np.linalg.svd(x, full_matrices)
        return s, u, vt

    s, u, vt = batched(factor, a, results=[((k,), real), ((m, left), a.dtype), ((right, n), a.dtype)])
    if k == 0:
        u[...], vt[...] = np.eye(m, left), np.eye(right, n)
    return s, u, vt


def _jax_svd(a: Any, *, full_matrices: bool, compute_uv: bool, algorithm: str | None) -> Any:
    way = None if algorithm is None else lax.linalg.SvdAlgorithm[algorithm.upper()]
    found = lax.linalg.svd(a, full_matrices=full_matrices, compute_uv=compute_uv, algorithm=way)
    if not compute_uv:
        return found
    u, s, vt = found
    return s, u, vt


# --- the Fourier transform ---

_TRANSFORMS = ("fft", "ifft", "rfft", "irfft")


def _fft(site: Site) -> Annotation:
    shape, dtype, lengths = site.shape(), site.dtype(), cast("Dims", site["lengths"])
    if site["kind"] not in _TRANSFORMS:
        raise site.error(f"kind {site['kind']!r}; accepted: {', '.join(_TRANSFORMS)}")
    if not 1 <= len(lengths) <= min(3, len(shape)):
        raise site.error(f"{len(lengths)} lengths; 1 to {min(3, len(shape))} of the last axes can be transformed")
    need_kind(site, "f" if site["kind"] == "rfft" else "c")
    first = len(shape) - len(lengths)
    half = lengths[-1] // 2 + 1
    for axis, size in enumerate(lengths):
        wanted = half if site["kind"] == "irfft" and axis == len(lengths) - 1 else size
        need_equal(site, shape[first + axis], wanted, f"axis {first + axis} and its length")
    if site["kind"] == "rfft":
        if dtype not in PARTS:
            raise site.error(f"operand 0 is {dtype}; float32 or float64 is needed")
        return Tensor((*shape[:first], *lengths[:-1], half), complex_of(dtype))
    if site["kind"] == "irfft":
        return Tensor((*shape[:first], *lengths), dtype_of(dtype).part.name)
    return Tensor(shape, dtype)


def _fft_reference(x: Array, *, kind: str, lengths: tuple[Any, ...]) -> Array:
    sizes = [int(n) for n in lengths]
    axes = list(range(-len(sizes), 0))
    transform: Any = {"fft": np.fft.fftn, "ifft": np.fft.ifftn, "rfft": np.fft.rfftn, "irfft": np.fft.irfftn}[kind]
    to_complex = x.dtype if x.dtype.kind == "c" else np.dtype(complex_of(x.dtype.name))
    made = dtype_of(x.dtype.name).part.name if kind == "irfft" else to_complex
    if not x.size:
        last = sizes[-1] // 2 + 1 if kind == "rfft" else sizes[-1]
        return np.zeros((*x.shape[: -len(sizes)], *sizes[:-1], last), made)
    return transform(x, sizes, axes).astype(made)


def _fft_cost(site: Site) -> Counts:
    result = deduce(site.op, site.operands, site.attrs)
    points = product((*site.shape()[: -len(site["lengths"])], *site["lengths"]))
    rounds = sum(map(log2_of, site["lengths"]))
    real = site["kind"] in ("rfft", "irfft")
    read = product(site.shape()) * itemsize(site.dtype())
    return Counts(points * rounds * (3 if real else 5), read, bytes_of(result))


_A = ("a",)
_FULL = Attribute("full_matrices", default=False)
_FLAGS = tuple(
    Attribute(name, default=False) for name in ("left_side", "lower", "transpose_a", "conjugate_a", "unit_diagonal")
)

for _operator in (
    Operator("cholesky", _A, _cholesky, _jax_cholesky, None, (), _cholesky_reference,
             library_cost(lambda site: product(site.shape()) * site.shape()[-1] // 2),  # half of lu's: one triangle
             kernel="factorisation", capacity="cholesky",
             doc="the lower triangle L with L @ L.H = a, of which the lower triangle is read; NaN where there is none"),
    Operator("triangular_solve", ("a", "b"), _triangular_solve, "jax.lax.linalg.triangular_solve", None, _FLAGS,
             _triangular_solve_reference, library_cost(lambda site: product(site.shape(1)) * site.shape(0)[-1]),
             kernel="solve", capacity="triangular_solve", poles=True,
             doc="x with a @ x = b, or x @ a = b unless left_side, for the lower or upper triangle of a"),
    Operator("definite_solve", ("factor", "b", "a"), _definite_solve, _jax_definite_solve, None, (),
             _definite_solve_reference, library_cost(lambda site: product(site.shape(1)) * site.shape()[-1] * 2),
             kernel="guarded_solve", capacity="definite_solve", poles=True,
             doc="x with a @ x = b for a symmetric a, by its Cholesky factor, or by LU factors where that is NaN"),
    Operator("lu", _A, _lu, "jax.lax.linalg.lu", None, (), _lu_reference, library_cost(cubes(1)),
             kernel="factorisation", capacity="lu", poles=True,
             doc="both triangles of a's factors in one matrix, the row exchanges, and the order of rows they make"),
    Operator("qr", _A, _qr, "jax.lax.linalg.qr", None, (_FULL, Attribute("pivoting", default=False)), _qr_reference,
             library_cost(cubes(4)),
             kernel="factorisation", capacity="qr",
             doc="an orthogonal and an upper triangular factor; with pivoting also the order of columns factored"),
    Operator("eigh", _A, _eigh, _jax_eigh, None, (Attribute("lower", default=True),), _eigh_reference,
             library_cost(cubes(9)),
             kernel="factorisation", capacity="whole_matrices",
             doc="eigenvectors and ascending eigenvalues of a Hermitian matrix, of which one triangle is read"),
    Operator("svd", _A, _svd, _jax_svd, None,
             (_FULL, Attribute("compute_uv", default=True), Attribute("algorithm", default=None)), _svd_reference,
             library_cost(cubes(14)), kernel="factorisation", capacity="whole_matrices",
             doc="singular values, descending, and the left and right singular vectors"),
    Operator("fft", ("x",), _fft, "jax.lax.fft", None, (Attribute("kind"), Attribute("lengths", "dims")),
             _fft_reference, _fft_cost, capacity="fft",
             doc="the discrete Fourier transform of the last axes: fft, ifft, rfft, irfft"),
):  # fmt: skip
    register(_operator)
