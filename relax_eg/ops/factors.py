"""More linear algebra: eigenvalues of general matrices, LAPACK's intermediate forms, systems and updates."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import scipy

from relax_eg.dtypes import PARTS, dtype_of
from relax_eg.ir.annotations import Annotation, Tensor, Tuple
from relax_eg.ops.lazy_jax import jnp, lax
from relax_eg.ops.linalg import batched, complex_of, cubes, library_cost, need_matrix
from relax_eg.ops.record import Attribute, Operator, Site, register
from relax_eg.ops.sizes import ONE, need_at_most, need_equal, need_length, need_same_dtype, product
from relax_eg.shapes import Dim, dim_min

Array = np.ndarray[Any, Any]


def _lapack(name: str, a: Array) -> Any:
    """Returns the LAPACK routine `name` for matrices of the dtype of `a`."""
    (found,) = cast("tuple[Any]", scipy.linalg.get_lapack_funcs((name,), (a,)))
    return found


# --- eigenvalues ---


def _eig(site: Site) -> Annotation:
    batch, n, _ = need_matrix(site, square=True)
    made = complex_of(site.dtype())
    vectors = Tensor((*batch, n, n), made)
    count = site["left"] + site["right"]
    return Tuple((Tensor((*batch, n), made), *[vectors] * count)) if count else Tensor((*batch, n), made)


def _eig_reference(a: Array, *, left: bool, right: bool) -> Any:
    n, made = a.shape[-1], complex_of(a.dtype.name)
    forms = [((n,), made), *[((n, n), made)] * (left + right)]

    def factor(x: Array) -> tuple[Array, ...]:
        found = scipy.linalg.eig(x, left=left, right=right)
        return found if left or right else (found,)

    return batched(factor, a, results=forms)


def _jax_eig(a: Any, *, left: bool, right: bool) -> Any:
    found = lax.linalg.eig(a, compute_left_eigenvectors=left, compute_right_eigenvectors=right)
    return tuple(found) if left or right else found[0]


def _schur(site: Site) -> Annotation:
    need_matrix(site, square=True)
    form = Tensor(site.shape(), site.dtype())
    return Tuple((form, form)) if site["vectors"] else form


def _schur_reference(a: Array, *, vectors: bool) -> Any:
    form = "complex" if a.dtype.kind == "c" else "real"

    def factor(x: Array) -> tuple[Array, ...]:
        t, z = cast("tuple[Array, Array]", scipy.linalg.schur(x, output=form))
        return (t, z) if vectors else (t,)

    return batched(factor, a, results=[(a.shape[-2:], a.dtype)] * (1 + vectors))


def _jax_schur(a: Any, *, vectors: bool) -> Any:
    found = lax.linalg.schur(a, compute_schur_vectors=vectors)
    return tuple(found) if vectors else found[0]


# --- reflectors: vectors v below a diagonal, each of which stands for I - tau * v @ v.H ---


def _hessenberg(site: Site) -> Annotation:
    batch, n, _ = need_matrix(site, square=True)
    need_at_most(site, ONE, n, "one, and the size of the matrix")
    return Tuple((Tensor(site.shape(), site.dtype()), Tensor((*batch, n - 1), site.dtype())))


def _hessenberg_reference(a: Array) -> Any:
    n = a.shape[-1]
    results = [((n, n), a.dtype), ((n - 1,), a.dtype)]
    return batched(lambda x: _lapack("gehrd", x)(x)[:2] if n > 1 else (x, np.zeros(0)), a, results=results)


def _tridiagonal(site: Site) -> Annotation:
    batch, n, _ = need_matrix(site, square=True)
    need_at_most(site, ONE, n, "one, and the size of the matrix")
    real = dtype_of(site.dtype()).part.name
    others = (Tensor((*batch, n), real), Tensor((*batch, n - 1), real), Tensor((*batch, n - 1), site.dtype()))
    return Tuple((Tensor(site.shape(), site.dtype()), *others))


def _tridiagonal_reference(a: Array, *, lower: bool) -> Any:
    n, real = a.shape[-1], dtype_of(a.dtype.name).part.name
    name = "hetrd" if a.dtype.kind == "c" else "sytrd"
    results = [((n, n), a.dtype), ((n,), real), ((n - 1,), real), ((n - 1,), a.dtype)]
    return batched(lambda x: _lapack(name, x)(x, lower=int(lower))[:4], a, results=results)


def _geqrf(site: Site) -> Annotation:
    batch, m, n = need_matrix(site)
    return Tuple((Tensor(site.shape(), site.dtype()), Tensor((*batch, m if m is n else dim_min(m, n)), site.dtype())))


def _geqrf_reference(a: Array) -> Any:
    results = [(a.shape[-2:], a.dtype), ((min(a.shape[-2:]),), a.dtype)]
    return batched(lambda x: _lapack("geqrf", x)(x)[:2], a, results=results)


def _jax_geqrf(a: Any) -> Any:
    turned, taus = jnp.linalg.qr(a, mode="raw")
    return turned.mT, taus


def _householder(site: Site) -> Annotation:
    need_same_dtype(site, (0, 1))
    batch, m, n = need_matrix(site)
    taus = site.shape(1)
    if len(taus) != len(batch) + 1:
        raise site.error(f"operand 1 has rank {len(taus)}; {len(batch) + 1} is needed, one factor for each reflector")
    for axis, (p, q) in enumerate(zip(batch, taus, strict=False)):
        need_equal(site, p, q, f"batch axis {axis}")
    need_at_most(site, n, m, "columns and rows")
    need_at_most(site, taus[-1], n, "reflectors and columns")
    return Tensor(site.shape(), site.dtype())


def _householder_reference(a: Array, taus: Array) -> Any:
    m, n = a.shape[-2:]
    out = np.zeros_like(a)
    for at in np.ndindex(*a.shape[:-2]):
        q = np.eye(m, dtype=a.dtype)
        for i, tau in enumerate(taus[at]):
            v = np.concatenate([np.zeros(i), np.ones(1), a[at][i + 1 :, i]]).astype(a.dtype)
            q = q - tau * np.outer(q @ v, v.conj())
        out[at] = q[:, :n]
    return out


def _ormqr(site: Site) -> Annotation:
    need_same_dtype(site, range(3))
    _householder(site)
    batch, m, _ = need_matrix(site)
    shape = site.shape(2)
    if len(shape) != len(batch) + 2:
        raise site.error(f"operand 2 has rank {len(shape)}; {len(batch) + 2} is needed")
    axis = -2 if site["left"] else -1
    for i, (p, q) in enumerate(zip((*batch, m), (*shape[:-2], shape[axis]), strict=True)):
        need_equal(site, p, q, f"batch axis {i}" if i < len(batch) else f"rows, and axis {axis} of operand 2")
    return Tensor(shape, site.dtype())


def _ormqr_reference(a: Array, taus: Array, c: Array, *, left: bool, transpose: bool) -> Any:
    m = a.shape[-2]
    reflectors = np.zeros((*a.shape[:-1], m), a.dtype)  # with columns of zeros, which are factors of no reflector
    reflectors[..., : a.shape[-1]] = a
    q = _householder_reference(reflectors, taus)
    q = np.conj(np.swapaxes(q, -1, -2)) if transpose else q
    return (q @ c if left else c @ q).astype(c.dtype)


def _ormqr_flops(site: Site) -> Dim:
    return product(site.shape(2)) * site.shape(1)[-1] * 2


# --- systems and updates ---


def _tridiagonal_solve(site: Site) -> Annotation:
    dtype = need_same_dtype(site, range(4))
    batch, n, _ = need_matrix(site, 3)
    for i in range(3):
        shape = site.shape(i)
        if len(shape) != len(batch) + 1:
            raise site.error(f"operand {i} has rank {len(shape)}; {len(batch) + 1}, one less than b's, is needed")
        for axis, (p, q) in enumerate(zip(shape, (*batch, n), strict=True)):
            need_equal(site, p, q, f"axis {axis} of operand {i}, and of the right side")
    return Tensor(site.shape(3), dtype)


def _tridiagonal_solve_reference(lower: Array, diagonal: Array, upper: Array, b: Array) -> Any:
    def solve(x: Array, right: Array) -> tuple[Array]:
        return (np.linalg.solve(x, right),)

    n = b.shape[-2]
    rows = np.arange(n)
    matrix = np.zeros((*b.shape[:-2], n, n), b.dtype)
    matrix[..., rows, rows] = diagonal
    matrix[..., rows[1:], rows[:-1]] = lower[..., 1:]
    matrix[..., rows[:-1], rows[1:]] = upper[..., :-1]
    return batched(solve, matrix, b, results=[(b.shape[-2:], b.dtype)])


def _cholesky_update(site: Site) -> Annotation:
    dtype = need_same_dtype(site, (0, 1))
    batch, n, _ = need_matrix(site, square=True)
    if dtype not in PARTS:
        raise site.error(f"operand 0 is {dtype}; float32 or float64 is needed")
    if batch or len(site.shape(1)) != 1:
        raise site.error("one matrix and one vector are needed")
    need_equal(site, site.shape(1)[0], n, "the vector, and the matrix")
    return Tensor(site.shape(), dtype)


def _cholesky_update_reference(r: Array, w: Array) -> Any:
    upper = np.triu(r)
    return np.linalg.cholesky(upper.T @ upper + np.outer(w, w)).T if r.size else r


def _permutation(site: Site) -> Annotation:
    if site.dtype() != "int32":
        raise site.error(f"operand 0 is {site.dtype()}; int32 is needed")
    (size,) = need_length(site, "size", 1, "the permutation")
    if not site.shape():
        raise site.error("a scalar has no axis of exchanges")
    need_at_most(site, site.shape()[-1], size, "exchanges and rows")
    return Tensor((*site.shape()[:-1], size), "int32")


def _permutation_reference(pivots: Array, *, size: tuple[Any]) -> Array:
    order = np.broadcast_to(np.arange(int(size[0]), dtype=np.int32), (*pivots.shape[:-1], int(size[0]))).copy()
    for at in np.ndindex(*pivots.shape[:-1]):
        for i, p in enumerate(pivots[at]):
            order[at][[i, p]] = order[at][[p, i]]
    return order


def _jax_permutation(pivots: Any, *, size: tuple[int]) -> Any:
    return lax.linalg.lu_pivots_to_permutation(pivots, size[0])


def _householder_flops(site: Site) -> Dim:
    return product(site.shape(0)) * site.shape(1)[-1] * 2


_A = ("a",)

for _operator in (
    Operator("eig", _A, _eig, _jax_eig, None, (Attribute("left", default=False), Attribute("right", default=True)),
             _eig_reference, library_cost(cubes(25)),
             capacity="whole_matrices",
             doc="eigenvalues of a square matrix, and its left and right eigenvectors where asked for"),
    Operator("schur", _A, _schur, _jax_schur, None, (Attribute("vectors", default=True),), _schur_reference,
             library_cost(cubes(25)), capacity="whole_matrices",
             doc="the upper (quasi-)triangle T with a = Z @ T @ Z.H, and Z where asked for"),
    Operator("hessenberg", _A, _hessenberg, "jax.lax.linalg.hessenberg", None, (), _hessenberg_reference,
             library_cost(cubes(3)), capacity="whole_matrices",
             doc="the upper Hessenberg form, the reflectors that lead to it below, and their factors"),
    Operator("tridiagonal", _A, _tridiagonal, "jax.lax.linalg.tridiagonal", None,
             (Attribute("lower", default=True),), _tridiagonal_reference, library_cost(cubes(2)),
             capacity="whole_matrices",
             doc="the tridiagonal form of a Hermitian matrix with its reflectors, its diagonals, and their factors"),
    Operator("geqrf", _A, _geqrf, _jax_geqrf, None, (), _geqrf_reference, library_cost(cubes(2)),
             capacity="geqrf",
             doc="the upper triangular factor of a QR factorisation with the reflectors below, and their factors"),
    Operator("householder_product", ("a", "taus"), _householder, "jax.lax.linalg.householder_product", None, (),
             _householder_reference, library_cost(_householder_flops), capacity="householder_product",
             doc="the first columns of the product of reflectors"),
    Operator("ormqr", ("a", "taus", "c"), _ormqr, "jax.lax.linalg.ormqr", None,
             (Attribute("left", default=True), Attribute("transpose", default=False)), _ormqr_reference,
             library_cost(_ormqr_flops), capacity="householder_product",
             doc="q @ c, or c @ q unless left, for the product q of reflectors, or its conjugate transpose"),
    Operator("tridiagonal_solve", ("lower", "diagonal", "upper", "b"), _tridiagonal_solve,
             "jax.lax.linalg.tridiagonal_solve", None, (), _tridiagonal_solve_reference,
             library_cost(lambda site: product(site.shape(3)) * 8), capacity="tridiagonal_solve",
             doc="x with A @ x = b for the matrix A with these diagonals"),
    Operator("cholesky_update", ("r", "w"), _cholesky_update, "jax.lax.linalg.cholesky_update", None, (),
             _cholesky_update_reference, library_cost(lambda site: product(site.shape()) * 2),
             capacity="cholesky_update", doc="the upper triangle R with R.T @ R = r.T @ r + w w.T"),
    Operator("lu_pivots_to_permutation", ("pivots",), _permutation, _jax_permutation, None,
             (Attribute("size", "dims"),), _permutation_reference, library_cost(lambda site: product(site.shape())),
             capacity="permutation", doc="the order of rows that successive exchanges make"),
):  # fmt: skip
    register(_operator)
