"""Linear systems: solutions without an inverse, and solutions that use what is known of the matrix.

One rule reads products, transposes, solutions, inverses and factorisations as sums of products in which factors cancel.
What it does not cover is spelled. The left sides are what `jnp.linalg.solve` and `jnp.linalg.inv` trace to, once
`index_not_negative` has found that the order of rows needs no correction; `tests/rules/test_values.py` optimizes such
programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from relax_eg.dtypes import is_float
from relax_eg.errors import RelaxEgError
from relax_eg.ir.expr import TUPLE_GET, Expr, postorder
from relax_eg.ir.module import Function
from relax_eg.ops import api as op
from relax_eg.ops.partial_annotations import is_known_tensor
from relax_eg.ops.record import TABLE, operators_run_as
from relax_eg.rules.checking.value_trials import determinants_of_products, matrix_words
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schemas import FactsOf, ProgramQueries, schema
from relax_eg.rules.sums_of_products.region import ARITHMETIC, terms_of
from relax_eg.tir.functions import FUNCTIONS

_FACTS = frozenset(
    (
        "diagonal",
        "invertible",
        "lower_triangular",
        "orthogonal",
        "positive_definite",
        "symmetric",
        "upper_triangular",
    )
)
_FACTORISATIONS = operators_run_as("factorisation", "solve")
_OPERATORS = (
    frozenset(n for n, o in TABLE.items() if o.equations is not None and (n not in FUNCTIONS or n in ARITHMETIC))
    | _FACTORISATIONS
    | {"integer_pow"}
)
# The operators that a determinant, or the logarithm of one's absolute value, ends with.
_OF_DETERMINANTS = frozenset(("integer_pow", "multiply", "where"))
_MOST_NODES = 96  # limit: operators among which a factorisation is looked for


def factors_that_cancel(e: Expr, queries: ProgramQueries) -> tuple[Expr, ...] | None:
    """products with matrices and their inverses, in which factors cancel, are equal"""
    if not is_known_tensor(e) or not is_float(e.dtype):
        return None
    is_root = _is_root(e, queries)
    if not (is_root or e.op in _FACTORISATIONS) or not _may_cancel(e, queries):
        return None
    # z3 and the prover are imported by nothing else here.
    from relax_eg.rules.matrices.forms import forms

    found = dict.fromkeys(forms(e, queries, is_root))
    return tuple(found) or None


def _is_root(e: Expr, queries: ProgramQueries) -> bool:
    """Whether `e` has a reader that does not add, multiply or solve, or no reader, or several."""
    readers = queries.readers(e)
    if len(readers) != 1:
        return e.op in _FACTORISATIONS or terms_of(e) is not None or e.op == "integer_pow"
    (reader,) = readers
    return reader.op not in _OPERATORS or (reader.op in _FACTORISATIONS and reader.args[0] is e)


def _may_cancel(e: Expr, queries: ProgramQueries) -> bool:
    """Whether a factorisation, or a matrix of which something is known, is multiplied."""
    for x in postorder((e,), stop=lambda x: x.op not in _OPERATORS and x.op != TUPLE_GET)[-_MOST_NODES:]:
        if x.op in _FACTORISATIONS or (x.op not in _OPERATORS and queries.facts(x) & _FACTS):
            return True
    return False


def determinant_of_factors(e: Expr, queries: ProgramQueries) -> Expr | None:
    """the determinant of a product is the product of the determinants of its factors"""
    if not is_known_tensor(e) or not is_float(e.dtype):
        return None
    if not any(x.op in _FACTORISATIONS for x in postorder((e,))[-_MOST_NODES:]):
        return None
    from relax_eg.rules.matrices.forms import determinants

    return determinants(e, queries)


def _prove(left: Expr, right: Expr, facts: FactsOf, functions: Mapping[str, Function]) -> str:
    from relax_eg.rules.matrices.forms import are_same

    try:
        return "" if are_same(left, right, facts) else "the sums of products differ"
    except RelaxEgError as e:
        return str(e)


systems = RuleSet(
    "systems",
    schemas=(
        schema(
            factors_that_cancel,
            "approximate",
            ("solve",),
            _OPERATORS,
            (matrix_words,),
            asks_again=True,
            facts=_FACTS,
            prove=_prove,
        ),
        schema(
            determinant_of_factors,
            "approximate",
            ("determinant",),
            _OF_DETERMINANTS,
            (determinants_of_products,),
            facts=_FACTS | {"nonzero"},
        ),
    ),
)
_rule = systems.rule


def solved(a: Any, b: Any) -> Any:
    """`jnp.linalg.solve(a, b)` for a vector b."""
    factors, _, order = op.lu(a)
    rows = op.take(op.expand_dims(b, 1), order, 0, mode="clip")
    return op.squeeze(_backward(factors, _forward(factors, rows)), 1)


def solved_columns(a: Any, b: Any) -> Any:
    """`jnp.linalg.solve(a, b)` for a matrix b."""
    factors, _, order = op.lu(a)
    n, k = b.shape
    rows = op.take(op.expand_dims(b.T, 2), order, 1, mode="clip")
    rows = op.reshape(op.permute_dims(rows, (1, 2, 0)), (n, k))
    middle = op.reshape(op.reshape(_forward(factors, rows), (n, 1, k)), (n, k))
    columns = op.reshape(_backward(factors, middle), (n, 1, k))
    return op.squeeze(op.permute_dims(columns, (2, 0, 1)), 2).T


def _forward(factors: Any, rows: Any, unit_diagonal: bool = True) -> Any:
    return op.triangular_solve(factors, rows, lower=True, unit_diagonal=unit_diagonal)


def _backward(factors: Any, rows: Any) -> Any:
    return op.triangular_solve(factors, rows)


def eye(n: Any, dtype: str) -> Any:
    """`jnp.eye(n)`."""
    return op.astype(eye_mask_as_traced(n), dtype)


def eye_mask_as_traced(n: Any) -> Any:
    """The boolean identity matrix as `jnp.eye` builds it."""
    return op.equal(op.iota((n, n), axis=0, dtype="int32") + 0, op.iota((n, n), axis=1, dtype="int32"))


# --- the smaller of two systems ---


@_rule("a: n n, u: n k, b: n", when=("diagonal(a)", "positive definite(a)"), numerics="approximate",
       tags=("solve", "diagonal"))  # fmt: skip
def diagonal_plus_low_rank(a: Any, u: Any, b: Any) -> Any:
    """solve(D + UU', b) = z - W solve(I + U'W, U'z) for z = b / d, W = U / d (Woodbury): k equations in place of n"""
    d = op.sum(a, 1)
    z, w = b / d, u / op.expand_dims(d, 1)
    small = solved(eye(u.shape[1], a.dtype) + u.T @ w, u.T @ z)
    return solved(a + u @ u.T, b), z - w @ small


# --- systems whose matrix is known: as accurate, so that they need no looser class ---


def _solution(name: str, matrix: str, how: str, when: str | tuple[str, ...], tag: str, of: Any) -> None:
    """Adds the rules for a vector and for a matrix b. `of(a, b)`: the solution for a matrix b."""

    def vector(a: Any, b: Any) -> Any:
        return solved(a, b), op.squeeze(of(a, op.expand_dims(b, 1)), 1)

    def columns(a: Any, b: Any) -> Any:
        return solved_columns(a, b), of(a, b)

    of_vector = _rule("a: n n, b: n", name=name, doc=f"solve({matrix}, b) {how}", when=when, tags=("solve", tag))
    of_matrix = _rule(
        "a: n n, b: n k", name=f"{name}_columns", doc=f"solve({matrix}, B) {how}", when=when, tags=("solve", tag)
    )
    of_vector(vector)
    of_matrix(columns)


# Rounding may leave a matrix that follows to be positive definite without a factor, such as X'X + cI where c is small.
_solution("solve_definite", "S", "by the Cholesky factor of positive definite S, if rounding leaves one: half the work",
          "positive definite(a)", "cholesky",
          lambda a, b: op.definite_solve(op.cholesky(a), b, a))  # fmt: skip
_solution("solve_lower", "L", "by substitution for invertible lower triangular L",
          ("lower triangular(a)", "invertible(a)"), "triangular", partial(_forward, unit_diagonal=False))  # fmt: skip
_solution("solve_upper", "U", "by substitution for upper triangular U", "upper triangular(a)", "triangular",
          _backward)  # fmt: skip


@_rule("a: n n, b: n", when=("diagonal(a)", "invertible(a)"), tags=("solve", "diagonal"))
def solve_diagonal(a: Any, b: Any) -> Any:
    """solve(D, b) = b / rowsum(D) for invertible diagonal D"""
    return solved(a, b), b / op.sum(a, 1)


# --- factors ---


@_rule("a: n n", when="positive definite(a)", tags=("cholesky",))
def cholesky_recomposed(a: Any) -> Any:
    """L L' = S for the Cholesky factor L of S"""
    factor = op.cholesky(a)
    return factor @ factor.T, a


@_rule("a: n n", when=("diagonal(a)", "positive definite(a)"), tags=("cholesky", "diagonal"))
def cholesky_of_diagonal(a: Any) -> Any:
    """cholesky(D) = sqrt(D) for positive definite diagonal D"""
    return op.cholesky(a), op.sqrt(a)
