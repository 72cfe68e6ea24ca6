"""Translates primitives of sorting, linear algebra, Fourier transforms, and of JAX's generators: random keys and bits,
for the kinds of keys that operators know."""

from __future__ import annotations

from collections.abc import Sequence

from relax_eg.frontends.jax.equation import JaxprEquation, Rule, permute
from relax_eg.frontends.symbolic import to_dim
from relax_eg.ir.expr import Expr, const, tuple_get
from relax_eg.ops.record import call


def _fields(value: Expr, count: int) -> list[Expr]:
    return [tuple_get(value, i) for i in range(count)]


def _sort(e: JaxprEquation) -> Sequence[Expr]:
    attrs = {"axis": e["dimension"], "num_keys": e["num_keys"], "stable": e["is_stable"]}
    made = call("sort", e.args, attrs)
    return [made] if len(e.args) == 1 else _fields(made, len(e.args))


def _top_k(e: JaxprEquation) -> Sequence[Expr]:
    axis = e.params.get("axis", e.x.ndim - 1)
    return _fields(call("top_k", e.args, {"k": (to_dim(e["k"]),), "axis": axis % e.x.ndim}), 2)


def _triangular_solve(e: JaxprEquation) -> Expr:
    names = ("left_side", "lower", "transpose_a", "conjugate_a", "unit_diagonal")
    return call("triangular_solve", e.args, {name: bool(e[name]) for name in names})


def _lu(e: JaxprEquation) -> Sequence[Expr]:
    return _fields(call("lu", e.args), 3)


def _are_unset(e: JaxprEquation, *names: str) -> bool:
    """Whether the parameters that select an algorithm or a part of the result are absent or None."""
    return all(e.params.get(name) is None for name in names)


def _qr(e: JaxprEquation) -> Sequence[Expr] | None:
    if not _are_unset(e, "use_magma"):
        return None
    pivoting = bool(e.params.get("pivoting"))
    return _fields(call("qr", e.args, {"full_matrices": e["full_matrices"], "pivoting": pivoting}), 2 + pivoting)


def _eigh(e: JaxprEquation) -> Sequence[Expr] | None:
    if not _are_unset(e, "subset_by_index", "algorithm", "implementation") or not e.params.get(
        "sort_eigenvalues", True
    ):
        return None
    return _fields(call("eigh", e.args, {"lower": e["lower"]}), 2)


def _svd(e: JaxprEquation) -> Sequence[Expr] | None:
    if not _are_unset(e, "subset_by_index"):
        return None
    way = getattr(e.params.get("algorithm"), "name", "DEFAULT").lower()
    attrs = {
        "full_matrices": e["full_matrices"], "compute_uv": e["compute_uv"],
        "algorithm": None if way == "default" else way,
    }  # fmt: skip
    made = call("svd", e.args, attrs)
    return _fields(made, 3) if e["compute_uv"] else [made]


def _eig(e: JaxprEquation) -> Sequence[Expr] | None:
    if not _are_unset(e, "implementation"):
        return None
    left, right = bool(e["compute_left_eigenvectors"]), bool(e["compute_right_eigenvectors"])
    made = call("eig", e.args, {"left": left, "right": right})
    return _fields(made, 1 + left + right) if left or right else [made]


def _schur(e: JaxprEquation) -> Sequence[Expr] | None:
    if e["sort_eig_vals"] or not _are_unset(e, "select_callable"):
        return None
    made = call("schur", e.args, {"vectors": e["compute_schur_vectors"]})
    return _fields(made, 2) if e["compute_schur_vectors"] else [made]


def _results(name: str, count: int) -> Rule:
    """The rule for a primitive with `count` results and without significant parameters."""
    return lambda e: _fields(call(name, e.args), count)


def _tridiagonal(e: JaxprEquation) -> Sequence[Expr]:
    return _fields(call("tridiagonal", e.args, {"lower": e["lower"]}), 4)


def _tridiagonal_solve(e: JaxprEquation) -> Expr | None:
    return None if e.params.get("perturb_singular") else call("tridiagonal_solve", e.args)


def _symmetric_product(e: JaxprEquation) -> Expr:
    """`alpha * a @ a.T + beta * c`, as JAX lowers it if there is no routine for it."""
    a, c = e.args
    turned = permute(a, (*range(a.ndim - 2), a.ndim - 1, a.ndim - 2))
    product = call("matmul", (a, turned), {"precision": "highest"})
    scaled = [call("multiply", (const(e[name], x.dtype), x)) for name, x in (("alpha", product), ("beta", c))]
    return call("add", scaled)


def _permutation(e: JaxprEquation) -> Expr:
    return call("lu_pivots_to_permutation", e.args, {"size": (to_dim(e["permutation_size"]),)})


def _approx_top_k(e: JaxprEquation) -> Sequence[Expr] | None:
    """The operator if the partial results are aggregated to `k` values. Otherwise None: the device then decides the
    number of values."""
    if not e["aggregate_to_topk"]:
        return None
    axis = e["reduction_dimension"] % e.x.ndim
    attrs = {"k": (to_dim(e["k"]),), "axis": axis, "largest": e["is_max_k"], "recall": float(e["recall_target"])}
    return _fields(call("approx_top_k", e.args, attrs), 2)


def _fft(e: JaxprEquation) -> Expr:
    lengths = tuple(map(to_dim, e["fft_lengths"]))
    return call("fft", e.args, {"kind": e["fft_type"].name.lower(), "lengths": lengths})


# --- random keys and bits ---

_ALGORITHMS = {0: "default", 1: "three_fry", 2: "philox"}  # by number in jax.lax.RandomAlgorithm


def _from_data(name: str) -> Rule:
    """The rule for a primitive that makes keys for a generator. The operator refuses generators that are not JAX's."""
    return lambda e: call(name, e.args, {"impl": e["impl"].name})


def _split_keys(e: JaxprEquation) -> Expr:
    return call("random_split", e.args, {"shape": tuple(map(to_dim, e["shape"]))})


def _bits(e: JaxprEquation) -> Expr:
    return call("random_bits", e.args, {"shape": tuple(map(to_dim, e["shape"])), "bit_width": int(e["bit_width"])})


def _generate(e: JaxprEquation) -> Sequence[Expr]:
    algorithm = _ALGORITHMS[int(e["algorithm"])]
    attrs = {"shape": tuple(map(to_dim, e["shape"])), "dtype": str(e.out[1].dtype), "algorithm": algorithm}
    return _fields(call("rng_bit_generator", e.args, attrs), 2)


RULES: dict[str, Rule] = {
    "sort": _sort,
    "top_k": _top_k,
    "triangular_solve": _triangular_solve,
    "lu": _lu,
    "qr": _qr,
    "eigh": _eigh,
    "svd": _svd,
    "fft": _fft,
    "eig": _eig,
    "schur": _schur,
    "hessenberg": _results("hessenberg", 2),
    "geqrf": _results("geqrf", 2),
    "tridiagonal": _tridiagonal,
    "tridiagonal_solve": _tridiagonal_solve,
    "ormqr": lambda e: call("ormqr", e.args, {"left": e["left"], "transpose": e["transpose"]}),
    "symmetric_product": _symmetric_product,
    "lu_pivots_to_permutation": _permutation,
    "approx_top_k": _approx_top_k,
    "random_seed": _from_data("random_seed"),
    "random_wrap": _from_data("random_wrap"),
    "random_unwrap": lambda e: call("random_unwrap", e.args),
    "random_fold_in": lambda e: call("random_fold_in", e.args),
    "random_split": _split_keys,
    "random_bits": _bits,
    "random_clone": lambda e: e.args,
    "random_gamma": lambda e: call("random_gamma", e.args, {"log_space": e["log_space"]}),
    "threefry2x32": lambda e: _fields(call("threefry2x32", e.args), 2),
    "rng_bit_generator": _generate,
}
