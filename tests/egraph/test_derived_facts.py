"""Facts in the e-graph: rules fire where they hold and nowhere else, and nothing is derived that nobody asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import relax_eg as rx
from relax_eg import op
from relax_eg.egraph import Budget, EGraph
from relax_eg.egraph.facts import FactBase
from relax_eg.ir import Expr, Function, Module, const, var
from relax_eg.ir.calls import call_function, function_ref
from relax_eg.ops.facts import FACTS, with_implied
from relax_eg.rules import Claim, Rule, RuleSet, systems, values
from relax_eg.rules.facts.parameter_facts import DeclaredFacts, facts_of_functions
from relax_eg.rules.facts.propagation import KnownFacts, constant_has, required_facts
from relax_eg.rules.rule import instances
from relax_eg.shapes import Scope

Facts = Mapping[str, str]


def tensors(spec: str) -> list[Expr]:
    """Variables from "A: n n, v: n @ int32"."""
    parts = [p.partition(":") for p in spec.split(",")]
    return [var(name.strip(), rx.Tensor(sizes.strip())) for name, _, sizes in parts]


def given(facts: Facts | None = None, weights: str = "", exact: bool = False) -> DeclaredFacts:
    declared = {n: frozenset(f.split()) for n, f in (facts or {}).items()}
    return DeclaredFacts(declared, frozenset(weights.split()), exact)


def fired(e: Expr, rules: RuleSet, known: DeclaredFacts | None = None) -> set[str]:
    """The rules that match somewhere in the e-graph of `e`."""
    with EGraph([e], rules, Scope(), declared=known) as egraph:
        egraph.saturate(Budget())
        return set(egraph.matches)


# --- every rule of the books ---


def fires(rule: Rule, left_out: Claim | None = None) -> bool:
    """Whether a rule matches its own left side, its variables having the facts it asks for, one of them left out."""
    instance = next(instances(rule))
    facts: dict[str, str] = {}
    for g in instance.guards:
        if isinstance(g, Claim) and g is not left_out:
            facts[g.name] = f"{facts.get(g.name, '')} {g.fact}".strip()
    return rule.name in fired(instance.left[0], RuleSet("one", [rule]), given(facts))


ASK = [r for r in (*values, *systems) if r.required_facts]


@pytest.mark.parametrize("rule", ASK, ids=lambda r: r.name)
def test_a_rule_fires_under_its_facts_only(rule: Rule) -> None:
    assert fires(rule)
    for g in next(instances(rule)).guards:
        if isinstance(g, Claim):
            assert not fires(rule, left_out=g), f"{rule.name} fires without {g}"


# --- derived facts ---

abs_, transposed = rx.RuleSet("abs"), values.only("transpose_of_symmetric")


@abs_.rule("x: *b", when="nonnegative(x)", phase="simplify", tags=("sign",))
def abs_of_nonnegative(x: Any) -> Any:
    """|x| = x for x >= 0"""
    return op.abs(x), x


@pytest.mark.parametrize(
    ("spec", "program", "facts", "yes"),
    [
        ("x: n", lambda x: op.exp(x) + 1.0, {}, True),
        ("x: n", lambda x: op.exp(x) - 1.0, {}, False),
        ("x: n, y: n", lambda x, y: op.exp(x) + y, {}, False),
        ("x: n, y: n", lambda x, y: op.exp(x) + y, {"y": "positive"}, True),
        ("x: n, y: n", lambda x, y: x * y, {"x": "nonnegative", "y": "nonnegative"}, True),
        ("x: n, y: n", lambda x, y: x * y, {"x": "nonnegative"}, False),
        ("x: n m", lambda x: op.sum(op.softmax(x), 0), {}, True),
        ("x: n m", lambda x: op.permute_dims(op.square(x), (1, 0))[1:], {}, True),
        ("x: n", lambda x: op.concat([op.abs(x), op.exp(x)]), {}, True),
        ("x: n", lambda x: op.concat([op.abs(x), x]), {}, False),
        ("x: n", lambda x: op.where(op.less(x, 0.0), 2.0, 0.5), {}, True),
        ("x: n", lambda x: op.where(op.less(x, 0.0), -2.0, 0.5), {}, False),
    ],
)
def test_nonnegative_is_derived(spec: str, program: Any, facts: Facts, yes: bool) -> None:
    e = op.abs(program(*tensors(spec)))
    assert ("abs_of_nonnegative" in fired(e, abs_, given(facts))) is yes


@pytest.mark.parametrize(
    ("spec", "program", "facts", "yes", "bits"),
    [
        ("A: m n", lambda A: A.T @ A, {}, True, True),
        ("A: m n", lambda A: A @ A.T + op.eye(A.shape[0]), {}, True, True),
        ("A: n n", lambda A: A + A.T, {}, True, True),
        ("A: n n", lambda A: A, {"A": "diagonal"}, True, True),
        ("A: n n, D: n n", lambda A, D: A.T @ (D @ A), {"D": "symmetric"}, True, False),
        ("A: n n, D: n n", lambda A, D: D @ A, {"D": "symmetric", "A": "symmetric"}, False, False),
        ("A: n n, s:", lambda A, s: A * s, {"A": "symmetric"}, True, True),
        ("A: n n, v: n", lambda A, v: A * v, {"A": "symmetric"}, False, False),
        ("A: n n, B: m n", lambda A, B: A @ B.T, {"A": "symmetric"}, False, False),
    ],
)
def test_symmetric_is_derived(spec: str, program: Any, facts: Facts, yes: bool, bits: bool) -> None:
    e = program(*tensors(spec))
    e = op.permute_dims(e, (1, 0))
    assert ("transpose_of_symmetric" in fired(e, transposed, given(facts))) is yes
    # Where every bit is to be kept, only what holds of values as computed counts.
    assert ("transpose_of_symmetric" in fired(e, transposed, given(facts, exact=True))) is bits


def test_a_fact_of_one_form_is_a_fact_of_the_others() -> None:
    book = RuleSet("book")
    book.rule("x: *b, y: *b", name="opens", phase="simplify", check=False)(lambda x, y: (op.atan2(x, y), op.exp(x) * y))
    x, y = tensors("x: n, y: n")
    e = op.abs(op.atan2(x, y))
    assert "abs_of_nonnegative" not in fired(e, book + abs_, given({"x": "finite"}))
    assert "abs_of_nonnegative" in fired(e, book + abs_, given({"y": "positive"}))


def test_what_rules_make_has_facts_too() -> None:
    x, y, z = tensors("x: n, y: n, z: n")
    e = op.log(x) + op.log(y) + op.log(z)
    found = fired(e, values.only("sum_of_logs"), given({"y": "positive", "z": "positive"}))
    assert found == {"sum_of_logs"}
    with EGraph([e], values.only("sum_of_logs"), Scope(), declared=given({"y": "positive", "z": "positive"})) as egraph:
        egraph.saturate(Budget())
        assert egraph.engine.sizes()[egraph.words.opcode(op.log(x))[0].symbol] == 5  # log(x y) and log(x y z) too


def test_values_alike_in_everything_but_facts_are_told_apart() -> None:
    x, y = tensors("x: n, y: n")
    with EGraph([op.abs(x), op.abs(y)], abs_, Scope(), declared=given({"x": "nonnegative"})) as egraph:
        egraph.saturate(Budget())
        tables = egraph.engine.tables()["node"]
        classes = {egraph.engine.integer(r.inputs[0]): r.output for r in tables}
        of = {e: classes[i] for e, i in egraph.number.items()}
        assert of[op.abs(x)] == of[x]
        assert of[op.abs(y)] != of[y]


# --- where values come from ---


def words(when: str | tuple[str, ...]) -> RuleSet:
    book = RuleSet("book")
    book.rule("x: *b, c: *b", when=when, name="r", phase="simplify", check=False)(lambda x, c: (x * c, c * x))
    return book


def test_constants_and_weights() -> None:
    x, w, v = tensors("x: 4, w: 4, v: 4")
    two = op.full((4,), 2.0)
    assert fired(x * (two + 1.0), words("is_constant(c)"))
    assert not fired(x * (w + 1.0), words("is_constant(c)"), given(weights="w"))
    assert fired(x * (w + two), words("is_weight(c)"), given(weights="w v"))
    assert not fired(x * (w + v), words("is_weight(c)"), given(weights="w"))
    assert fired(x * op.full((4,), 2.0), words("is_weight(c)"))
    # A size that only the call tells is no constant, and none of the weights'.
    (y,) = tensors("y: n")
    assert not fired(y * op.full(y.shape, 2.0), words("is_constant(c)"))
    assert not fired(y * op.full(y.shape, 2.0), words("is_weight(c)"), given(weights="w"))


def test_constants_that_rules_make() -> None:
    book = words("is_constant(c)")
    book.rule("x: *b", name="opens", phase="simplify", check=False)(lambda x: (op.atan(x), op.exp(x) * 1.0))
    (x,) = tensors("x: 4")
    two = op.full((4,), 2.0)
    assert "r" in fired(x * op.atan(two) + x * two, book)


def test_used_once() -> None:
    x, y = tensors("x: n, y: n")
    shared, alone = op.exp(x), op.exp(y)
    assert fired(y * shared, words("used_once(c)"))
    assert not fired((y * shared) + shared, words("used_once(c)"))
    with EGraph([y * shared, shared], words("used_once(c)"), Scope()) as egraph:
        egraph.saturate(Budget())
        assert egraph.matches == {}
    assert not fired(alone * alone, words("used_once(c)"))


@pytest.mark.parametrize(
    ("test", "value", "yes"),
    [
        ("c == 2", 2.0, True),
        ("c == 2", 3.0, False),
        ("c > 1", 1.0, False),
        ("c >= 1", 1.0, True),
        ("c != 0", 0.0, False),
    ],
)
def test_tests_of_constants(test: str, value: float, yes: bool) -> None:
    (x,) = tensors("x: 4")
    for c in (const([value] * 4, "float32"), op.full((4,), value), op.broadcast_to(op.full((1,), value), (4,))):
        assert bool(fired(x * c, words(test))) is yes
    assert not fired(x * tensors("y: 4")[0], words(test))


# --- how much is done ---


class Counted:
    """How often the program as written was looked at, and the engine asked for derivations."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.attempts = self.kept_up = 0
        attempt, derive = KnownFacts._attempt, FactBase._derive_maintained  # pyright: ignore[reportPrivateUsage]

        def counted(known: KnownFacts, e: Expr, fact: str) -> Any:
            self.attempts += 1
            return attempt(known, e, fact)

        def kept(base: FactBase, present: Any) -> None:
            self.kept_up += 1
            derive(base, present)

        monkeypatch.setattr(KnownFacts, "_attempt", counted)
        monkeypatch.setattr(FactBase, "_derive_maintained", kept)


def test_what_nobody_asks_for_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    count = Counted(monkeypatch)
    x, w, v = tensors("x: b s n, w: n m, v: m k")
    fired(op.relu(op.softmax(op.tanh(x) @ w) @ v), rx.rules.default)
    fired(op.tanh(x) * op.cos(x) + 2.0, rx.rules.default, given({"x": "finite"}))
    assert (count.attempts, count.kept_up) == (0, 0)


def test_work_is_linear_in_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def attempts(length: int, facts: Facts) -> int:
        count = Counted(monkeypatch)
        (x,) = tensors("x: n")
        e = x
        for _ in range(length):
            e = op.tanh(e) + x
        fired(op.abs(e), abs_, given(facts))
        return count.attempts

    for facts in ({}, {"x": "nonnegative"}):
        short, long = attempts(100, facts), attempts(1000, facts)
        assert 100 <= long <= 11 * short + 100


def test_the_engine_derives_what_is_known_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what is loaded of the program as written, the engine comes to the same facts by itself."""
    x, A, i = tensors("x: n, A: n n, i: n @ int32")
    ridge = A.T @ A + op.eye(A.shape[0]) * 0.1
    parts = [
        op.softmax(op.abs(x) + 1.0), op.sqrt(op.square(x)), op.log1p(op.exp(x)), op.sort(x) * 2.0, op.floor(x) + 3.0,
        op.cholesky(ridge) @ x, ridge.T @ x, op.tril(A) @ x, op.maximum(x, 0.0), op.where(op.less(i, 0), i + 3, i),
        op.concat([op.exp(x), x])[1:], op.tanh(x) / (1.0 + op.square(op.tanh(x))),
    ]  # fmt: skip
    declared = {"x": frozenset({"finite"}), "A": frozenset({"finite"})}
    scope = Scope()
    ask = RuleSet("ask")
    for fact in FACTS:
        shapes = "x: n n" if FACTS[fact].axes == 2 else "x: n"
        ask.rule(shapes, name=f"asks_{fact}", when=f"{fact}(x)", phase="simplify", check=False)(
            lambda x: (op.exp(x), op.exp(x) * 1.0)
        )
    roots = [*parts, op.exp(x), op.exp(A)]
    monkeypatch.setattr("relax_eg.egraph.engine.Engine.load", _load_no_facts)
    with EGraph(roots, ask, scope, declared=DeclaredFacts(declared)) as egraph:
        egraph.saturate(Budget())
        base = egraph.facts
        symbols = base._symbols  # pyright: ignore[reportPrivateUsage]
        classes = {egraph.engine.integer(r.inputs[0]): r.output for r in egraph.engine.tables()["node"]}
        held = {f: {r.inputs[0] for r in egraph.engine.tables()[symbols[f]]} for f in FACTS if f in symbols}
        known = KnownFacts(lambda e, f: _leaf(e, f, declared), False, lambda d: True)
        for e, n in egraph.number.items():
            if e.op == "exp" and e.args[0] in (x, A):
                continue  # equal to exp(x) * 1.0, which rules made
            for f in held:
                assert (classes[n] in held[f]) == known.has(e, f), (f, e)
    assert required_facts(frozenset(FACTS)) >= set(held)


def _load_no_facts(engine: Any, relation: str, rows: Any) -> None:
    for row in rows if not relation.startswith("row_fact_") else ():
        engine.run([f"({relation} {' '.join(map(str, row))})"])


def _leaf(e: Expr, fact: str, declared: Mapping[str, frozenset[str]]) -> bool:
    if e.op != "var":
        return constant_has(e, fact)
    return fact in with_implied(declared.get(str(e.attr("name")), frozenset()))


# --- functions that the entry calls ---


def test_facts_of_a_function_are_those_of_every_call() -> None:
    a, b = tensors("a: n, b: n")
    inner = Function("inner", (a, b), (), op.abs(a) * b)
    x, y = tensors("x: n, y: n")
    first = call_function(function_ref(inner), [op.exp(x), op.abs(y)])
    second = call_function(function_ref(inner), [y, y])
    main = Function("main", (x, y), (), first + second)
    module = Module((main, inner))
    rules = values
    found = facts_of_functions(module, {"y": frozenset({"nonnegative"})}, rules, False)
    assert found["inner"]["a"] >= {"nonnegative"}
    assert "positive" not in found["inner"]["a"]
    assert "nonnegative" in found["inner"]["b"]
    assert found["main"] == {"y": frozenset({"nonnegative"})}
    nothing = facts_of_functions(module, {}, rules, False)
    assert nothing == {"main": {}}
    once = Module((Function("main", (x, y), (), first), inner))
    found = facts_of_functions(once, {"x": frozenset({"finite"})}, rules, False)
    assert found["inner"]["a"] >= {"positive", "nonnegative"}
