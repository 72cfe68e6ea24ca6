"""Derivations: from the program as written to the chosen one, by rules, as text and as steps that were replayed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import relax_eg as rx
from benchmarks import scale
from benchmarks.cases import CASES
from relax_eg.egraph import EGraph, recording
from relax_eg.explain.check import replay
from relax_eg.explain.derive import derive
from relax_eg.explain.programs import changes
from relax_eg.explain.result import Derivation, DerivationPart
from relax_eg.explain.steps import CongruenceStep, Equation, Goal, RuleStep, equations_of, goals_in_order
from relax_eg.explain.values import draw
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, const, node, var
from relax_eg.ir.module import pure_function
from relax_eg.ops import api as op
from relax_eg.rules import Numerics, Schema
from relax_eg.rules.checking.schema_answers import Answers
from relax_eg.rules.conditions import ValueTest
from relax_eg.rules.schemas import ProgramQueries
from relax_eg.shapes import Dim, Scope

Explained = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], list[str]]


def trace_of_product(a, b):
    return jnp.trace(a @ b)


def lora(x, w, a, b):
    return x @ (w + a @ b)


def qkv(params, x):
    return x @ params["q"], x @ params["k"], x @ params["v"]


def chain(a, b, c, d, v):
    return a @ b @ c @ d @ v


def logs(x, y):
    return jnp.exp(jnp.log(x)) + jnp.log(jnp.exp(y))


def iterate(a, b, x):
    return jax.lax.fori_loop(0, 40, lambda i, y: y + 0.1 * ((a @ b) @ y), x)


def recurrent(x, w, u):
    def step(h, row):
        h = jnp.tanh(h @ w + row @ u)
        return h, h

    return jax.lax.scan(step, jnp.zeros((x.shape[1], w.shape[0])), x)


def sliced(x, y):
    both = jnp.concatenate([x, y], axis=1)
    return jnp.split(both, 2, axis=1)[0] * jnp.split(both, 2, axis=1)[1]


SQUARE = "64 64"
# Sums of products are one step, and so are terms of elements. Without these rules the same program takes several.
SINGLE_LAWS = rx.rules.default - "sum_products" - "pointwise"
PROGRAMS: dict[str, Explained] = {
    "trace": (
        trace_of_product, ("n k", "k n"), {"at": {"n": 256, "k": 64}, "rules": SINGLE_LAWS}, ["trace_of_product"],
    ),
    "lora": (lora, ("b n", "n n", "n 4", "4 n"), {"at": {"b": 8, "n": 256}}, ["same_sum_of_products"]),
    "qkv": (
        qkv, ({k: "256 256" for k in "qkv"}, "s 256"), {"weights": ("params",), "at": {"s": 32}, "target": "a100"},
        ["same_elements"],  # slices of the merged product are products of slices
    ),
    "chain": (chain, (*["n n"] * 4, "n"), {"at": {"n": 128}}, ["same_sum_of_products"]),
    "facts": (logs, ("n", "n"), {"facts": {"x": "positive"}, "at": {"n": 100_000}}, ["shorter_term"]),
    "single facts": (
        logs, ("n", "n"), {"facts": {"x": "positive"}, "at": {"n": 100_000}, "rules": SINGLE_LAWS},
        ["exp_of_log", "log_of_exp"],
    ),
    "invariant": (iterate, (SQUARE, SQUARE, "64"), {"target": "h100"}, ["loop_invariants", "matmul_vector_associates"]),
    "steps": (recurrent, ("t b 64", "128 128", "64 128"), {"at": {"t": 100, "b": 4}}, ["loop_steps"]),
    "exact": (sliced, ("n n", "n n"), {"numerics": "exact", "at": {"n": 256}}, ["first_slice_of_concat"]),
    "decoder": (
        scale.decoder, (scale.decoder_specs(4), "b s @ int32"), {"weights": ("params",), "at": {"b": 8, "s": 64}},
        ["calls_ahead", "same_sum_of_products"],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def explained() -> Callable[[str], rx.types.Explanation]:
    known: dict[str, rx.types.Explanation] = {}

    def of(name: str) -> rx.types.Explanation:
        if name not in known:
            fn, specs, options, _ = PROGRAMS[name]
            known[name] = rx.optimize(fn, *specs, **options).explain()
        return known[name]

    return of


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_step_is_a_rule_that_was_replayed(name: str, explained: Callable[[str], rx.types.Explanation]) -> None:
    found, rules = explained(name), PROGRAMS[name][3]
    assert found.replayed is not None
    assert set(rules) <= {s.rule for s in found.steps}
    assert found.replayed.not_evaluated == []
    assert found.replayed.compared >= found.replayed.equations > 0


def test_it_reads_like_a_proof(explained: Callable[[str], rx.types.Explanation]) -> None:
    text = str(explained("trace"))
    first, second = text.index("trace_of_product, as written"), text.index("trace_of_product, as chosen")
    assert first < text.index("trace(a @ b)      test_explain.py:") < text.index("= sum(a * b.T)") < second
    assert "by trace_of_product: trace(a @ b)  =>  sum(a * b.T)      reduction.py:" in text
    assert "proved (real)" in text
    assert "3 steps from the program as written to the one chosen" in text


@pytest.mark.parametrize("name", ["facts", "single facts"])
def test_facts_show_as_conditions(name: str, explained: Callable[[str], rx.types.Explanation]) -> None:
    assert "as positive(x): derived from what is declared and from the operators" in str(explained(name))


def test_repeated_blocks_are_explained_once(explained: Callable[[str], rx.types.Explanation]) -> None:
    found = explained("decoder")
    text = str(found)
    assert "a block that is repeated becomes function `block`, called 3 times" in text
    assert text.count("block, as written") == 1
    inside = [s.rule for s in found.steps if s.function == "block"]
    assert inside.count("matmul_merge_three") == 3  # one use, three results


def test_no_step_is_taken_only_to_be_taken_back(explained: Callable[[str], rx.types.Explanation]) -> None:
    assert sorted(s.rule for s in explained("exact").steps) == ["first_slice_of_concat", "last_slice_of_concat"]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_every_pattern_has_a_derivation(case: Any) -> None:
    weights = ("params",) if case.weights else ()
    best = rx.optimize(case.written, *case.specs, at=case.at(256), weights=weights)
    found = best.explain()
    if best.report.kept_as_written:
        assert "kept as written, so there is nothing to explain" in str(found)
    else:
        assert found.replayed is not None and found.replayed.not_evaluated == []
        assert found.steps or weights or not best.report.rules  # the same operators, lowered otherwise than JAX does


def test_the_chosen_program_says_which_rule_made_a_value() -> None:
    best = rx.optimize(trace_of_product, "n k", "k n", at={"n": 256, "k": 64}, rules=SINGLE_LAWS)
    text = str(best.module)
    assert "by trace_of_product, reduction.py:" in text and "# test_explain.py:" in text
    assert rx.parse(str(best.module)) == best.module


def test_what_was_kept_has_nothing_to_explain() -> None:
    best = rx.optimize(lambda x: x + 1.0, "n")
    assert "kept as written, so there is nothing to explain" in str(best.explain())


def test_explaining_something_from_the_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAX_EG_CACHE", "1")
    monkeypatch.setenv("RELAX_EG_CACHE_DIR", str(tmp_path))
    for _ in range(2):
        best = rx.optimize(trace_of_product, "n n", "n n", at={"n": 256})
    assert best.report.cached
    assert "same_sum_of_products" in {s.rule for s in best.explain().steps}


def test_keys_are_compared_by_their_words() -> None:
    def halved(key, a, b):
        return jax.random.split(key), jnp.trace(a @ b)

    key = jax.eval_shape(lambda: jax.random.key(0))
    best = rx.optimize(halved, key, "n k", "k n", at={"n": 256, "k": 64})
    found = best.explain().replayed
    assert found is not None and found.not_evaluated == [] and found.end_deviation is not None
    best.certificate().verify(rx.rules.default)


def test_weights_alone() -> None:
    best = rx.optimize(lora, "b n", "n n", "n 4", "4 n", at={"b": 8, "n": 256}, weights=("w", "a", "b"))
    assert "the gain is in what runs once, ahead of the calls, on weights alone, or in how loops are lowered" in str(
        best.explain()
    )


# --- what does not hold is found ---


def broken(
    name: str, explained: Callable[[str], rx.types.Explanation], change: Callable[[DerivationPart], DerivationPart]
) -> Derivation:
    d = explained(name).derivation
    return replace(d, parts=(*(change(p) for p in d.parts[:1]), *d.parts[1:]))


def test_a_step_that_leads_elsewhere_is_refused(explained: Callable[[str], rx.types.Explanation]) -> None:
    def change(part: DerivationPart) -> DerivationPart:
        (goal,) = part.results
        return replace(part, results=(Goal(goal.start, goal.end, goal.steps[:-1]),))

    with pytest.raises(rx.errors.ExplanationError, match="the steps do not lead to what they are said to lead to"):
        replay(broken("lora", explained, change))


def test_a_derivation_of_something_else_is_refused(explained: Callable[[str], rx.types.Explanation]) -> None:
    def change(part: DerivationPart) -> DerivationPart:
        (goal,) = part.results
        return replace(part, results=(Goal(goal.start, goal.start, []),))

    with pytest.raises(rx.errors.ExplanationError, match="the derivation does not end at the chosen program"):
        replay(broken("lora", explained, change))


def saying(pairs: Mapping[Expr, Expr], numerics: Numerics = "exact") -> Schema:
    """A rule about whole nodes that exchanges the operands of sums, which is what it is tested on, and proposes `pairs`
    besides, right or wrong."""

    def propose(e: Expr, queries: ProgramQueries) -> Expr | None:
        return pairs[e] if e in pairs else op.add(e.args[1], e.args[0]) if e.op == "add" else None

    return Schema("said", "what is said", numerics, frozenset(), propose, frozenset(("add", "multiply")))


def test_a_wrong_value_is_found_by_evaluation() -> None:
    """A rule about whole nodes that is wrong for few of them may pass its test; evaluation looks at these very ones."""
    x = var("x", rx.Tensor("n"))
    wrong = Equation(saying({x + x: x * const(3.0)}), ((x + x, x * const(3.0)),), answers=Answers())
    goal = Goal(x + x, x * const(3.0), [(RuleStep(wrong, 0, True), x * const(3.0))])
    best = rx.optimize(lambda x: x + x, "n").explain().derivation
    f = best.shared.main
    (block,) = f.blocks
    (binding,) = block.bindings
    chosen = rx.types.Module((replace(f, blocks=(replace(block, bindings=(replace(binding, value=goal.end),)),)),))
    d = replace(
        best,
        chosen=chosen,
        functions={f.name: chosen.main},
        parts=(DerivationPart(f.name, 0, (goal,)),),
        rules=rx.rules.default,
    )
    with pytest.raises(rx.errors.ExplanationError, match=r"step by rule `\w+` .*: the values differ at n="):
        replay(d)


def said_to_be(*values: Expr) -> Derivation:
    """That the first of `values` of x is the last, by steps of rules that say so."""
    steps = [
        Equation(saying({a: b}, "reassociate"), ((a, b),), answers=Answers()) for a, b in itertools.pairwise(values)
    ]
    goal = Goal(values[0], values[-1], [(RuleStep(e, 0, True), b) for e, b in zip(steps, values[1:], strict=True)])
    best = rx.optimize(lambda x: x + x, "n").explain().derivation
    before, after = (rx.types.Module((pure_function("main", (X,), [e]),)) for e in (values[0], values[-1]))
    return replace(
        best, written=before, shared=before, chosen=after, functions={"main": after.main},
        parts=(DerivationPart("main", 0, (goal,)),), rules=rx.rules.default,
    )  # fmt: skip


X = var("x", rx.Tensor("n"))


def test_steps_that_drift_off_are_refused() -> None:
    """Each step is right within its rounding; the end is not."""
    factors = [1.0, 1.0004, 1.0008, 1.0012]
    with pytest.raises(
        rx.errors.ExplanationError,
        match=r"in `main`: the values differ at n=2: .* became .* at index \(\d,\)",
    ):
        replay(said_to_be(*(X * const(f) for f in factors)))


def test_sizes_that_a_step_says_are_equal_are_those_that_differ() -> None:
    d = said_to_be(X + X, X * const(2.0))
    (part,) = d.parts
    (goal,) = part.results
    other = CongruenceStep((None,) * len(goal.end.args), ((Dim.of("n"), Dim.of("n + 1")),))
    longer = Goal(goal.start, goal.end, [*goal.steps, (other, goal.end)])
    with pytest.raises(rx.errors.ExplanationError, match="says of other sizes of multiply that they are equal"):
        replay(replace(d, parts=(replace(part, results=(longer,)),)))


def test_a_program_between_of_wrong_shapes_is_refused() -> None:
    """A step whose sides agree in shape and in value, with an operator inside that cannot have the shape it says."""
    one = const(1.0)
    wrong = node("multiply", (X, one), (), rx.Tensor("(n+1)"))
    inside = node("add", (wrong, wrong), (), rx.Tensor("n"))
    with pytest.raises(rx.errors.ExplanationError, match=r"the shape of multiply: not proved: n == n \+ 1"):
        replay(said_to_be(X + X, inside, X + X))


@pytest.mark.parametrize("name", ["single facts", "decoder"])
def test_every_step_makes_a_whole_program_and_is_evaluated(
    name: str, explained: Callable[[str], rx.types.Explanation]
) -> None:
    found = explained(name)
    replayed = found.replayed
    assert replayed is not None
    programs = 0
    for part in found.derivation.parts:
        steps = sum(isinstance(step, RuleStep) for g in goals_in_order(part.results) for step, _ in g.steps)
        made = [change.rule_step for change in changes(part.results)]
        assert sum(use is not None for use in made) == steps > 0
        assert all(replayed.deviations[use.equation, use.result] < 1e-4 for use in made if use is not None)
        programs += len(made)
    assert replayed.programs == programs
    assert replayed.end_deviation is not None and replayed.end_deviation < 1e-4
    text = str(found)
    assert re.search(r"program 2: both sides evaluated, (off by|the same bits)", text)
    assert re.search(r"pairs evaluated, off by \S+ of the largest value, shapes of \d+ operators proved; ", text)
    assert f"; {programs} whole programs; the chosen program against the one as written: " in text


@pytest.mark.parametrize("name", ["single facts", "qkv", "decoder"])
def test_the_programs_lead_from_the_one_as_written_to_the_one_chosen(
    name: str, explained: Callable[[str], rx.types.Explanation]
) -> None:
    """Changes made in place, one after the other, on expressions alone, give the chosen program."""
    for part in explained(name).derivation.parts:
        roots = [g.start for g in part.results]
        for change in changes(part.results):
            now = change.replacement
            for place in reversed(change.places):
                step, _ = place.goal.steps[place.done]
                assert isinstance(step, CongruenceStep)
                below = [
                    g.end if g is not None and i < place.operand else a
                    for i, (g, a) in enumerate(zip(step.operands, place.at.args, strict=True))
                ]
                below[place.operand] = now
                now = node(place.at.op, below, place.at.attrs, place.at.annotation)
            roots[change.result] = now
        assert roots == [g.end for g in part.results]


def test_a_gap_is_an_error_not_a_step() -> None:
    from relax_eg.explain.record import Recording

    x = var("x", rx.Tensor("n"))
    with pytest.raises(
        rx.errors.ExplanationError, match=r"no derivation was found from .*the matches on record do not lead"
    ):
        derive(Recording(), [x + x], [x * const(2.0)], [], lambda g, e: True)


def test_congruence_is_explained_by_operands() -> None:
    """sin(x) = sin(y) follows from x = y, and from y = z follows sin(sin(x)) = sin(sin(z))."""
    from relax_eg.explain.closure import Closure

    schema = rx.rules.functions.schemas[0]
    x, y, z = (var(n, rx.Tensor("n")) for n in "xyz")
    closure = Closure({}, {})
    a, b = rx.op.sin(rx.op.sin(x)), rx.op.sin(rx.op.sin(z))
    closure.add(a), closure.add(b)
    assert not closure.equal(a, b)
    closure.learn(Equation(schema, ((x, y),)))
    assert closure.equal(a, rx.op.sin(rx.op.sin(y))) and not closure.equal(a, b)
    closure.learn(Equation(schema, ((y, z),)))
    assert closure.equal(a, b)
    goal = closure.goal(a, b)
    assert (goal.start, goal.end) == (a, b)
    assert any(isinstance(step, CongruenceStep) for step, _ in goal.steps)
    assert goal.steps[-1][1] is b


def test_sizes_that_are_proved_equal_are_conditions_of_a_step() -> None:
    """A reshape to 8*(n//8) is none where 8 divides n; what is said of it holds under that assumption alone."""
    x = var("x", rx.Tensor("n"))
    rounded = Dim.of("8*(n//8)")
    reshaped = node("reshape", (x,), (("shape", (rounded,)),), rx.Tensor((rounded,), "float32"))
    written, chosen = (rx.op.sum(rx.op.exp(e)) for e in (reshaped, x))
    scope = Scope(assume=["n % 8 == 0"])
    with EGraph([written], rx.rules.default, scope, record=True) as egraph:
        egraph.saturate(rx.Budget())
        results = derive(recording(egraph), [written], [chosen], [], lambda g, e: True)
    assert [e.rule.name for e in equations_of(goals_in_order(results))] == ["reshape_to_itself"]

    def derivation(scope: Scope) -> Derivation:
        before, after = (rx.types.Module((pure_function("main", (x,), [e]),)) for e in (written, chosen))
        functions = {"main": after.main}
        parts = (DerivationPart("main", 0, tuple(results)),)
        return Derivation("f", before, before, after, functions, parts, rx.rules.default, ("exact",), scope, {})

    done = replay(derivation(scope))
    assert any(
        c.startswith("n == 8*(n//8): proved (") or c.startswith("8*(n//8) == n: proved (") for c in done.equal_sizes
    )
    with pytest.raises(rx.errors.ExplanationError, match=r"not proved: "):
        replay(derivation(Scope()))


def test_values_are_drawn_that_pass_tests_and_have_helper_facts() -> None:
    """The facts of a function's parameters may be those that only premises of rules about facts name."""
    x = var("x", Tensor("n"))
    held = frozenset({"nonnegative", "identity_mask", ValueTest("", "==", 0.0)})
    (value,), _ = draw(pure_function("f", (x,), [x]), Scope(), {"x": held}, seed=0)
    assert value.size and not value.any()
