"""Why a rule did not fire: the nearest match, the user's line, and what failed there."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

import relax_eg as rx
from benchmarks.corpus import CORPUS, Program
from relax_eg.cli import app
from relax_eg.driver.options import read_options
from relax_eg.driver.program_ends import traced_program
from relax_eg.driver.why import RecordedSearch
from relax_eg.extract.costs.numbers import TINY
from relax_eg.rules.schemas import MEMORY

mine = rx.RuleSet("mine")


@mine.rule(shapes="a: m k, b: k n", when="k % 8 == 0")
def doubled_in_blocks(a, b):
    """2 (a b) = (2 a) b, where k is a multiple of 8"""
    return (a @ b) * 2.0, (a * 2.0) @ b


def two_products(x, w1, y, w2):
    return x @ w1 + y @ w2


def gated(x, y):
    return y * jax.nn.sigmoid(x)


def associated(a, b, v):
    return (a @ b) @ v


Asked = tuple[Any, Callable[..., Any], tuple[str, ...], dict[str, Any], str, str]
PRODUCTS, MATRIX_VECTOR = ("n 4", "4 5", "n 4", "4 5"), ("n n", "n n", "n")
EXPECTED: dict[str, Asked] = {
    "other values": (
        "product_with_sigmoid", gated, ("n", "n"), {}, "no match",
        "needs the same `x` in both places: found y and x, which are different values",
    ),
    "other operator": (
        "log_of_exp", lambda x: jnp.log(jnp.sin(x)), ("n",), {}, "no match",
        "needs `exp`, as in exp(x), where there is sin(x)",
    ),
    "no operator": (
        "log_of_exp", two_products, PRODUCTS, {}, "no match",
        "the program has no `exp`, `log`, which its left side needs",
    ),
    "other shape": (
        "trace_of_product", two_products, PRODUCTS, {}, "no match", "should be n, it is 5 (refuted at n = ",
    ),
    "rank": (
        mine["doubled_in_blocks"], lambda a, b: (a @ b) * 2.0, ("n 8", "8"), {}, "no match",
        "`b` should have 2 axes (k n): b has 1 axis (8,)",
    ),
    "dtype": (
        rx.rules.default["plus_zero_int"], lambda x: x + 0.0, ("n",), {}, "no match", "needs 0 where there is 0.0",
    ),
    "condition refuted": (
        mine["doubled_in_blocks"], lambda a, b: (a @ b) * 2.0, ("n 12", "12 5"), {}, "no match",
        "its condition k % 8 == 0, with k = 12: refuted: 4 == 0 is false",
    ),
    "condition open": (
        mine["doubled_in_blocks"], lambda a, b: (a @ b) * 2.0, ("n k", "k 5"), {}, "no match",
        "its condition k % 8 == 0, with k = k: refuted at k = 1: 1 == 0 is false",
    ),
    "fact": (
        "exp_of_log", lambda x: jnp.exp(jnp.log(x)), ("n",), {}, "no match",
        "its condition positive(x): x is not known to be positive; facts={'x': 'positive'} declares it",
    ),
    "numerics": (
        "matmul_vector_associates", associated, MATRIX_VECTOR, {"numerics": "exact"}, "not allowed",
        "its class is reassociate; numerics='exact' allows exact. numerics='reassociate' allows it",
    ),
    "fired": (
        "matmul_vector_associates", associated, MATRIX_VECTOR,
        {"at": {"n": 512}, "rules": rx.rules.default - "sum_products"}, "fired",
        "what it made is in the chosen program",
    ),
    "price": (
        "adapter_applies", lambda x, w, a, b: x @ (w + a @ b), ("b n", "n n", "n 4", "4 n"),
        {"at": {"b": 100_000, "n": 64}}, "not chosen", "in the e-graph, but priced dearer: ",
    ),
    "part only": (
        "trace_of_product", lambda a, b: jnp.tanh(a @ b), ("n n", "n n"), {}, "no match",
        "needs `where`, as in where(iota(shape=(n, n), axis=0, dtype=int32) == ",
    ),
    "a schema": (
        rx.rules.functions.schemas[0], two_products, PRODUCTS, {}, "no match",
        "the program has no `scan` or `while_loop`",
    ),
    "a schema that proposes nothing": (
        "same_sum_of_products", gated, ("n", "n"), {}, "no match",
        "it proposes nothing for any `multiply` there",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_why(name: str) -> None:
    rule, fn, specs, options, outcome, said = EXPECTED[name]
    found = rx.debug.why_not(rule, fn, *specs, **options)
    assert found.outcome == outcome, str(found)
    assert any(said in r for r in found.reasons), str(found)
    if found.match:
        assert found.source.startswith("test_why_not.py:")


def test_it_answers_beside_a_loop_that_was_proposed() -> None:
    """What is computed in pieces has a function, constants and iotas that no expression as written is."""

    def attention(x, w, y):
        return jax.nn.softmax(x @ w) @ y

    found = rx.debug.why_not(
        "exp_of_log", attention, "n 4096", "4096 m", "m 64", at={"n": 4096, "m": 4096}, target="cpu"
    )
    assert found.outcome == "no match" and "needs `log`" in found.reasons[0], str(found)


def seconds(text: str) -> float:
    return float(text.split()[0]) * {"ms": 1e-3, "us": 1e-6}[text.split()[1]]


@pytest.mark.parametrize(
    ("rule", "fn", "specs", "at"),
    [
        ("adapter_applies", lambda x, w, a, b: x @ (w + a @ b), ("b n", "n n", "n 4", "4 n"), {"b": 100_000, "n": 64}),
        ("computed_in_pieces", lambda x, w: jax.nn.softmax(x @ w) @ w.T, ("n k", "k m"), {"k": 64, "m": 512, "n": 512}),
    ],
    ids=["rule", "schema"],
)
def test_both_prices_of_what_is_in_the_e_graph(rule: str, fn: Any, specs: Any, at: Any) -> None:
    found = RecordedSearch(
        traced_program(fn, specs), replace(read_options(traced_program(fn, specs), at=at), held=TINY)
    )
    answer = found.why(RULES[rule])
    match = re.fullmatch(
        r"in the e-graph, but priced dearer: (\S+ [mu]s) against (\S+ [mu]s), at (.*)", answer.reasons[0]
    )
    assert answer.outcome == "not chosen" and match is not None, str(answer)
    assert seconds(match[1]) > seconds(match[2])
    assert match[3] == ", ".join(f"{k}={v}" for k, v in sorted(at.items()))
    assert answer.source.startswith("test_why_not.py:") and answer.match


RULES = {r.name: r for r in (*rx.rules.default, *rx.rules.default.schemas)}


def answered(program: Program, in_pieces: bool, rules: int) -> Counter[str]:
    """The outcomes for the rules that matched in a program and for `rules` others, drawn by its name."""
    options = dict(program.options)
    bounds = options.pop("bounds", None)
    traced = traced_program(program.made_of, program.specs, program.keywords, bounds)
    given = rx.rules.default if in_pieces else rx.rules.default - MEMORY
    # With a price on each byte, the schemas that save memory are asked about every value.
    held = TINY if in_pieces else 0.0
    search = RecordedSearch(traced, replace(read_options(traced, rules=given, bounds=bounds, **options), held=held))
    matched = {name for o in search.found.outcomes for name in (*o.nodes_by_rule, *o.saturation.matches)}
    drawn = random.Random(program.name).sample(sorted(RULES), rules)
    found = [search.why(RULES[name]) for name in sorted(matched & RULES.keys() | {*drawn})]
    for x in found:
        assert x.reasons and str(x)
        assert x.outcome in ("fired", "not chosen") if x.rule.name in matched else x.outcome == "no match", str(x)
    return Counter(x.outcome for x in found)


@pytest.mark.parametrize("in_pieces", [False, True], ids=["", "in pieces"])
@pytest.mark.parametrize("name", ["feed_forward", "grouped_query_attention", "sgd_epochs", "elman_network"])
def test_it_answers_on_programs_of_the_corpus(name: str, in_pieces: bool) -> None:
    assert answered(CORPUS[name], in_pieces, 12)["no match"]


@pytest.mark.slow
@pytest.mark.parametrize("in_pieces", [False, True], ids=["", "in pieces"])
@pytest.mark.parametrize("name", CORPUS)
def test_it_answers_on_every_program_of_the_corpus(name: str, in_pieces: bool) -> None:
    assert answered(CORPUS[name], in_pieces, 60)


def test_it_prints_rule_place_and_reason() -> None:
    first, second, third = repr(rx.debug.why_not("product_with_sigmoid", gated, "n", "n")).splitlines()
    assert first.startswith("product_with_sigmoid: x * sigmoid(x)  =>  silu(x)      elementwise.py:")
    line = gated.__code__.co_firstlineno + 1
    assert second == f"nearest match: test_why_not.py:{line}  y * sigmoid(x)"
    assert third == "  needs the same `x` in both places: found y and x, which are different values"


@mine.rule(shapes="a: m k, b: k n, v: n")
def tanh_of_two_steps(a, b, v):
    """tanh is odd"""
    return rx.op.tanh(a @ (b @ v)), -rx.op.tanh(-(a @ (b @ v)))


def test_what_other_rules_made_is_looked_at() -> None:
    """As written there is no a @ (b @ v)."""
    found = rx.debug.why_not(mine["tanh_of_two_steps"], lambda a, b, v: jnp.sin((a @ b) @ v), *MATRIX_VECTOR)
    assert found.reasons == ("needs `tanh`, as in tanh(a @ (b @ v)): only sin reads this",)


def test_a_module_will_do() -> None:
    module = rx.trace(gated, "n", "n")
    assert "different values" in str(rx.debug.why_not("product_with_sigmoid", module))


def test_an_unknown_name() -> None:
    with pytest.raises(rx.errors.OptionError, match="no rule `log_of_exps` in set `default`; did you mean `log_of_exp"):
        rx.debug.why_not("log_of_exps", two_products, *PRODUCTS)


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text("import jax\n\ndef gated(x, y):\n    return y * jax.nn.sigmoid(x)\n")
    specs = ["--spec", "n", "--spec", "n"]
    done = CliRunner().invoke(app, ["why-not", "product_with_sigmoid", f"{path}:gated", *specs])
    assert done.exit_code == 0, done.output
    assert "nearest match: model.py:4  y * sigmoid(x)" in done.output
    assert "found y and x, which are different values" in done.output
    refused = CliRunner().invoke(app, ["why-not", "nothing", f"{path}:gated", *specs])
    assert refused.exit_code == 1


def test_schemas_are_rules_of_the_set_asked_about() -> None:
    """A general law that fired is said to be in the chosen program; one that proposed nothing names operators that
    the program has."""
    found = rx.debug.why_not("same_sum_of_products", lambda a, b, c: a @ b + a @ c, "n n", "n n", "n n", at={"n": 64})
    assert (found.outcome, found.reasons) == ("fired", ("what it made is in the chosen program",))
    none = rx.debug.why_not("same_elements", lambda a, b: a @ b, "n n", "n n", at={"n": 64})
    assert (none.outcome, none.reasons) == ("no match", ("it proposes nothing for any `matmul` there",))


def test_a_schema_outside_of_the_rules_is_added() -> None:
    (schema,) = rx.rules.sum_products.schemas
    found = rx.debug.why_not(
        schema, lambda a, b, c: a @ b + a @ c, "n n", "n n", "n n", at={"n": 64}, rules=rx.RuleSet("none")
    )
    assert found.reasons == ("it is not in the rules asked about; with it added it is used",)
