"""Primitives that become operators without equations: order, linear algebra, Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence

from relax_eg.frontends.jax_equation import Equation, Rule
from relax_eg.frontends.symbolic import to_dim
from relax_eg.ir.expr import Expr, tuple_get
from relax_eg.ops.record import call


def _fields(value: Expr, count: int) -> list[Expr]:
    return [tuple_get(value, i) for i in range(count)]


def _sort(e: Equation) -> Sequence[Expr]:
    attrs = {"axis": e["dimension"], "num_keys": e["num_keys"], "stable": e["is_stable"]}
    made = call("sort", e.args, attrs)
    return [made] if len(e.args) == 1 else _fields(made, len(e.args))


def _top_k(e: Equation) -> Sequence[Expr]:
    axis = e.params.get("axis", e.x.ndim - 1)
    return _fields(call("top_k", e.args, {"k": (to_dim(e["k"]),), "axis": axis % e.x.ndim}), 2)


def _cholesky(e: Equation) -> Expr:
    """The operator leaves the upper triangle 0; what the primitive leaves there is not said, and nobody reads it."""
    return call("cholesky", e.args)


def _triangular_solve(e: Equation) -> Expr:
    names = ("left_side", "lower", "transpose_a", "conjugate_a", "unit_diagonal")
    return call("triangular_solve", e.args, {name: bool(e[name]) for name in names})


def _lu(e: Equation) -> Sequence[Expr]:
    return _fields(call("lu", e.args), 3)


def _unset(e: Equation, *names: str) -> bool:
    """Whether parameters that ask for a certain algorithm or a part of the result are absent or None."""
    return all(e.params.get(name) is None for name in names)


def _qr(e: Equation) -> Sequence[Expr] | None:
    if e.params.get("pivoting") or not _unset(e, "use_magma"):
        return None
    return _fields(call("qr", e.args, {"full_matrices": e["full_matrices"]}), 2)


def _eigh(e: Equation) -> Sequence[Expr] | None:
    if not _unset(e, "subset_by_index", "algorithm", "implementation") or not e.params.get("sort_eigenvalues", True):
        return None
    return _fields(call("eigh", e.args, {"lower": e["lower"]}), 2)


def _svd(e: Equation) -> Sequence[Expr] | None:
    if not _unset(e, "subset_by_index", "algorithm"):
        return None
    attrs = {"full_matrices": e["full_matrices"], "compute_uv": e["compute_uv"]}
    made = call("svd", e.args, attrs)
    return _fields(made, 3) if e["compute_uv"] else [made]


def _fft(e: Equation) -> Expr:
    lengths = tuple(map(to_dim, e["fft_lengths"]))
    return call("fft", e.args, {"kind": e["fft_type"].name.lower(), "lengths": lengths})


RULES: dict[str, Rule] = {
    "sort": _sort,
    "top_k": _top_k,
    "cholesky": _cholesky,
    "triangular_solve": _triangular_solve,
    "lu": _lu,
    "qr": _qr,
    "eigh": _eigh,
    "svd": _svd,
    "fft": _fft,
}
