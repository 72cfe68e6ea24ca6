"""Rules about functions are tested like all others, and wrong ones are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.ir import CALL, SCAN, Expr, call_function
from relax_eg.ir.control import group_arguments, scan
from relax_eg.ops import api as op
from relax_eg.rules import RuleSet, Schema
from relax_eg.rules.book.functions import functions
from relax_eg.rules.book.sums import sums
from relax_eg.rules.checking.certificates import known_verdict
from relax_eg.rules.content import content_hash
from relax_eg.rules.pointwise.tables import ABSOLUTE, RELATIVE, are_close
from relax_eg.rules.schemas import ModuleAnswers, ProgramQueries


@pytest.mark.parametrize("schema", (*functions.schemas, *sums.schemas), ids=lambda s: s.name)
def test_what_ships_is_tested_and_on_file(schema: Schema) -> None:
    (verdict,) = rx.verify(schema)
    assert verdict.status == "tested" and verdict.samples >= 10
    on_file = known_verdict(schema)
    assert on_file is not None and on_file.samples == verdict.samples


def test_the_table_lists_them() -> None:
    text = str(rx.verify(functions))
    assert all(s.name in text for s in functions.schemas) and "8 rules, 0 proved, 0 axioms, 0 refuted" in text


def forwards(e: Expr, queries: ProgramQueries) -> Expr | None:
    """Forgets that a scan may go backwards."""
    p = group_arguments(e.op, e.args, dict(e.attrs))
    return scan(p.functions[0], p.constants, p.carry, p.xs, length=e.attr("length"))


def twice(e: Expr, queries: ProgramQueries) -> Expr | None:
    """Calls with what the call gave."""
    return call_function(e.args[0], [*e.args[1:3], e[0], e.args[4]])


def cut_short(e: Expr, queries: ProgramQueries) -> Expr | None:
    """Keeps only the first of what a body computes."""
    p = group_arguments(e.op, e.args, dict(e.attrs))
    body = queries.best(str(p.functions[0].attr("name")))
    if body is None:
        return None
    from relax_eg.ir import function_ref, tuple_

    first = body.result.args[0]
    shorter = queries.add(replace(body, result=tuple_((first, first))), "short")
    return scan(
        function_ref(shorter), p.constants, p.carry, p.xs, length=e.attr("length"), reverse=bool(e.attr("reverse"))
    )


def silent(e: Expr, queries: ProgramQueries) -> Expr | None:
    return None


def schema(propose: Callable[[Expr, ProgramQueries], Expr | None]) -> Schema:
    looks_at = frozenset((CALL,) if propose is twice else (SCAN,))
    return Schema(propose.__name__, propose.__doc__ or "", "exact", frozenset(), propose, looks_at)


@pytest.mark.parametrize("wrong", [forwards, twice, cut_short])
def test_a_wrong_one_is_refuted_and_does_not_run(wrong: Callable[..., Expr | None]) -> None:
    (verdict,) = rx.verify(schema(wrong))
    assert verdict.status == "refuted"
    assert "becomes" in verdict.problem and " at\n  w = " in verdict.problem
    assert str(verdict).startswith(
        f"test_schemas.py:{wrong.__code__.co_firstlineno} rule `{wrong.__name__}` is refuted"
    )
    with pytest.raises(rx.errors.RuleError, match=rf"rule `{wrong.__name__}`: is refuted and does not run"):
        rx.optimize(jnp.sin, "n", rules=RuleSet("wrong", schemas=[schema(wrong)]))


def test_one_that_proposes_nothing_is_not_trusted() -> None:
    (verdict,) = rx.verify(schema(silent))
    assert verdict.status == "refuted" and "it proposes nothing" in verdict.problem


def test_one_about_what_no_test_program_has_is_refused() -> None:
    (verdict,) = rx.verify(replace(schema(silent), operators=frozenset(("sort",))))
    assert verdict.status == "refuted"
    kinds = "scan, while_loop, call, add, subtract, call_tir, matmul"
    assert f"no test programs have sort; {kinds} do" in verdict.problem


def test_other_content_is_another_rule() -> None:
    assert content_hash(schema(forwards)) != content_hash(replace(schema(twice), name="forwards"))


def test_sets_of_them() -> None:
    default = rx.rules.default
    assert "loop_steps" in default and "loop_steps" not in default - "loops"
    left = [s.name for s in (default - "fusion" - "loop_steps").schemas]
    loops = ["loop_invariants", "steps_in_parts", "calls_ahead", "calls_inlined", "steps_unrolled"]
    loops += ["loop_in_one_kernel", "written_loop_in_one_kernel"]
    sums = ["sums_in_order"]
    codes = [
        "integer_product",
        "integer_convolution",
        "codes_of_codes",
        "bytes_for_weights",
        "bytes_for_operands",
        "nibbles_for_weights",
        "floats_of_eight_bits",
    ]
    pieces = ["computed_again", "kept_on_host", "computed_in_pieces", "accumulated_over_pieces", "computed_one_by_one"]
    reductions = ["out_of_reductions", "out_of_reductions_over_reals", "position_of_increasing"]
    matrices = ["factors_that_cancel", "determinant_of_factors"]
    first = [
        "operands_without_broadcasts",
        "same_elements",
        *matrices,
        *(s.name for s in rx.rules.windows.schemas),
        "same_sum_of_products",
        "cheapest_order_of_product",
        "same_sum_in_semiring",
        *reductions,
    ]
    assert left == [
        *first,
        "shorter_exact_term",
        "shorter_term",
        *sums,
        *loops,
        "matmul_splits",
        "small_product",
        "decoded_inside",
        *codes,
        *pieces,
        "value_of_no_input",
        "sort_of_few",
    ]
    assert [s.name for s in default.only("loops").schemas] == [
        "loop_invariants", "loop_steps", "steps_in_parts", "steps_unrolled", "loop_in_one_kernel",
        "written_loop_in_one_kernel",
    ]  # fmt: skip
    assert (rx.rules.algebra + functions).schemas == functions.schemas
    assert "loop_steps: a contraction" in str(default)


def test_what_may_not_move() -> None:
    """What depends on the step before, and what has an effect, stays."""

    def waits(x, w):
        return jax.lax.scan(lambda h, row: (jnp.tanh((h + row) @ w), None), jnp.zeros(128), x)[0]

    best = rx.optimize(waits, "t 128", "128 128", at={"t": 100})
    assert not {"loop_steps", "loop_invariants"} & set(best.report.rules)

    def tells(x, w):
        def step(h, row):
            jax.debug.print("{}", h[0])
            return jnp.tanh(h + row @ w), None

        return jax.lax.scan(step, jnp.zeros(128), x)[0]

    best = rx.optimize(tells, "t 128", "128 128", at={"t": 100})
    assert not {"loop_steps", "loop_invariants"} & set(best.report.rules)


def test_an_operator_of_scalars_alone_is_no_function_of_elements() -> None:
    x = rx.ir.var("x", rx.ir.Tensor((), "float32"))
    padded = op.pad(x, (), rx.ir.const(1.0))
    (schema,) = (s for s in rx.rules.pointwise.schemas if s.name == "shorter_exact_term")
    assert schema.proposals(padded, ModuleAnswers({})) == ()
    assert schema.proposals(op.maximum(x, x), ModuleAnswers({})) == (x,)


def test_bits_of_floats_are_no_function_of_numbers() -> None:
    """Samples of floats are float64; `jnp.signbit` was an error."""
    x = rx.ir.var("x", rx.ir.Tensor((), "float32"))
    for schema in rx.rules.pointwise.schemas:
        assert schema.proposals(op.right_shift(op.bitcast(x, "int32"), rx.ir.const(31)), ModuleAnswers({})) == ()
        assert schema.proposals(op.nextafter(x, x + 1.0) - x, ModuleAnswers({})) == ()


def test_values_of_terms_are_compared_up_to_rounding_and_no_number_equals_itself() -> None:
    values = np.array([1.0, 1 + 1e-10, 1 + 1e-6, 0.0, 1e-12, 1e300, np.inf, -np.inf, np.nan])
    for x in values:
        expected = np.isclose(values, x, RELATIVE, ABSOLUTE, equal_nan=True)
        assert np.array_equal(are_close(values, np.full_like(values, x)), expected)


def test_one_step_is_written_out_and_many_are_not() -> None:
    def rolled(steps: int) -> str:
        def f(w: jax.Array, h: jax.Array, xs: jax.Array) -> object:
            return jax.lax.scan(lambda h, x: (jnp.tanh(w @ h + x), h), h, xs, reverse=True)

        return str(rx.optimize(f, "8 8", "8", f"{steps} 8").module)

    assert "R.scan" not in rolled(1) and "R.scan" in rolled(5)
