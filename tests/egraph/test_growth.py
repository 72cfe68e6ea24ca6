"""Budgets: no round takes the graph beyond twice the node budget, whatever the rules, and what is cut is said."""

from __future__ import annotations

import functools
import itertools
import logging
import math
import operator
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import relax_eg as rx
from relax_eg.egraph import Budget, Dump, EGraph, Saturation, StopReason, dump, saturate
from relax_eg.egraph.engine import Engine
from relax_eg.egraph.growth import Forecast, Growth
from relax_eg.egraph.patterns import Compiled, QueryAtom
from relax_eg.egraph.saturate import MERGE_NODES
from relax_eg.egraph.vocabulary import PRELUDE
from relax_eg.errors import OptionError
from relax_eg.extract.costs.cost import WholeCost
from relax_eg.extract.profiles.devices import CPU
from relax_eg.extract.selection.select import select
from relax_eg.ir.expr import Expr, postorder, var
from relax_eg.logs import options
from relax_eg.shapes import Scope

sums, chains, joins, deep, asking = (rx.RuleSet(n) for n in ("sums", "chains", "joins", "deep", "asking"))
pairs, twos = rx.RuleSet("pairs"), rx.RuleSet("twos")


@sums.rule("a: n, b: n", check=False)
def add_commutes(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """a + b = b + a"""
    return a + b, b + a


@sums.rule("a: n, b: n, c: n", both=True, check=False)
def add_associates(a: Expr, b: Expr, c: Expr) -> tuple[Expr, Expr]:
    """(a + b) + c = a + (b + c)"""
    return (a + b) + c, a + (b + c)


@sums.rule("a: n, b: n, c: n", both=True, check=False)
def multiply_distributes(a: Expr, b: Expr, c: Expr) -> tuple[Expr, Expr]:
    """a (b + c) = a b + a c"""
    return a * (b + c), a * b + a * c


@chains.rule("a: n n, b: n n, c: n n", both=True, check=False)
def matmul_associates(a: Expr, b: Expr, c: Expr) -> tuple[Expr, Expr]:
    """(A B) C = A (B C)"""
    return (a @ b) @ c, a @ (b @ c)


@chains.rule("a: n n, b: n n, c: n n", both=True, check=False)
def matmul_distributes(a: Expr, b: Expr, c: Expr) -> tuple[Expr, Expr]:
    """A (B + C) = A B + A C"""
    return a @ (b + c), a @ b + a @ c


@chains.rule("a: n n, b: n n", both=True, check=False)
def transposed_product(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """(A B)' = B' A'"""
    return (a @ b).T, b.T @ a.T


@joins.rule("a: n n, b: n n, c: n n, d: n n, e: n n, f: n n, g: n n, h: n n", check=False)
def any_four_products(*m: Expr) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    """four products that have nothing to do with each other"""
    left = (m[0] @ m[1], m[2] @ m[3], m[4] @ m[5], m[6] @ m[7])
    return left, tuple(x + y - y for x, y in zip(left, left[1:] + left[:1], strict=True))


@joins.rule("x: n n, a: n n, b: n n, c: n n", check=False)
def any_three_of_one(x: Expr, a: Expr, b: Expr, c: Expr) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    """three products with one first factor"""
    return (x @ a, x @ b, x @ c), (x @ (a + b - b), x @ (b + c - c), x @ (c + a - a))


@twos.rule("x: n n, a: n n, b: n n", check=False)
def any_two_of_one(x: Expr, a: Expr, b: Expr) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    """two products with one first factor"""
    return (x @ a, x @ b), (x @ (a + b - b), x @ (b + a - a))


@deep.rule("a: n, b: n, c: n, d: n, e: n, f: n, g: n, h: n", check=False)
def sums_of_eight(a: Expr, b: Expr, c: Expr, d: Expr, e: Expr, f: Expr, g: Expr, h: Expr) -> tuple[Expr, Expr]:
    """((a+b)(c+d)) ((e+f)(g+h)) = ((a+b)(e+f)) ((c+d)(g+h)), on classes with hundreds of members"""
    return ((a + b) * (c + d)) * ((e + f) * (g + h)), ((a + b) * (e + f)) * ((c + d) * (g + h))


@asking.rule("a: n n, b: n n, c: n n, d: n n, e: n n, f: n n, g: n n, h: n n", when="n % 3 == 0", check=False)
def four_products_if(*m: Expr) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    """the same, and a question about sizes for each four"""
    return any_four_products(*m)


@pairs.rule("a: n n, b: n n, c: n n, d: n n", phase="merge", check=False)
def sum_of_two_products(a: Expr, b: Expr, c: Expr, d: Expr) -> tuple[Expr, Expr]:
    """A B + C D = [A, C] [B; D]"""
    return a @ b + c @ d, rx.op.concat([a, c], 1) @ rx.op.concat([b, d], 0)


def vectors(count: int) -> list[Expr]:
    return [var(f"x{i}", rx.Tensor("n")) for i in range(count)]


def matrices(count: int) -> list[Expr]:
    return [var(f"A{i}", rx.Tensor("n n")) for i in range(count)]


def left_sum(terms: list[Expr]) -> Expr:
    total = terms[0]
    for t in terms[1:]:
        total = total + t
    return total


def scaled_sum(count: int) -> list[Expr]:
    factor, *terms = vectors(count + 1)
    return [factor * left_sum(terms)]


def matmul_chain(count: int) -> list[Expr]:
    product, *others = matrices(count)
    for m in others:
        product = product @ m
    return [(product @ (others[0] + others[1])).T]


def products(count: int) -> list[Expr]:
    ms = matrices(count)
    return [ms[0] @ m for m in ms]


def squared_sum(count: int) -> list[Expr]:
    s = left_sum(vectors(count))
    return [(s * s) * (s * s)]


PROGRAMS = {
    "sum of 14 terms": (scaled_sum(14), sums),
    "matmul chain": (matmul_chain(16), chains),
    "joins": (products(120), joins),
    "wide classes": (squared_sum(7), sums + deep),
}


@dataclass
class Run:
    saturation: Saturation
    nodes: list[int]  # after annotating, and after every round
    read: Dump


def run(roots: list[Expr], rules: rx.RuleSet, budget: Budget) -> Run:
    nodes: list[int] = []
    with EGraph(roots, rules, Scope()) as egraph:
        with options(progress=lambda _, n, __: nodes.append(n)):
            saturation = egraph.saturate(budget)
        return Run(saturation, nodes, dump(egraph))


def assert_graceful(roots: list[Expr], done: Run, budget: Budget) -> None:
    """The budget was kept, and the program as written is there, and what is chosen is no dearer."""
    written = len(postorder(roots))
    assert max(done.nodes, default=0) <= max(2 * budget.nodes, written)
    assert done.saturation.peak == max(done.nodes, default=written)
    assert done.read.decode(done.read.graph.as_written) == roots
    model = WholeCost(CPU, {"n": 64})
    graph = done.read.graph
    costs = [
        [model.price(c.site, a).seconds for c in row]
        for row, a in zip(graph.candidates, graph.annotations, strict=True)
    ]
    chosen = select(graph, costs)
    assert chosen.cost <= chosen.written_cost


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("factor", [0.5, 1, 1.5, 4, 30])
def test_no_round_takes_the_graph_beyond_twice_the_budget(name: str, factor: float) -> None:
    roots, rules = PROGRAMS[name]
    budget = Budget(nodes=int(factor * len(postorder(roots))))
    done = run(roots, rules, budget)
    assert done.saturation.stop is StopReason.NODE_LIMIT
    assert_graceful(roots, done, budget)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 3000), st.integers(0, 8), st.sampled_from(["sum of 14 terms", "matmul chain", "wide classes"]))
def test_any_budget(nodes: int, rounds: int, name: str) -> None:
    roots, rules = PROGRAMS[name]
    budget = Budget(nodes=nodes, rounds=rounds)
    assert_graceful(roots, run(roots, rules, budget), budget)


def test_a_program_beyond_its_budget_stays_as_written() -> None:
    roots = scaled_sum(14)
    done = run(roots, sums, Budget(nodes=20))
    assert done.saturation.stop is StopReason.NODE_LIMIT
    assert done.saturation.rounds == 0 and done.nodes == [len(postorder(roots))]


def test_the_rule_that_explodes_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "relax_eg"):  # other libraries change the level of the root logger
        done = run(products(120), joins, Budget(nodes=100_000))
    assert [x.rule for x in done.saturation.left_out] == ["any_four_products", "any_three_of_one"]
    four, three = done.saturation.left_out
    assert (four.matches, three.matches) == (120**4, 120**3)
    assert str(three) == (
        "rule `any_three_of_one` was left out from 240 nodes on (node limit): "
        "up to 1,728,000 matches and 15,552,000 new nodes"
    )
    assert str(three) in caplog.text


@pytest.mark.parametrize(("most", "merged"), [(MERGE_NODES, True), (100, False)])
def test_merging_all_pairs_of_many_ways_is_left_out(most: int, merged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the seven ways to compute one addend goes with each of the other's, for 15 pairs of addends."""
    monkeypatch.setattr("relax_eg.egraph.saturate.MERGE_NODES", most)
    ms = matrices(48)
    addends = [functools.reduce(operator.matmul, ms[i : i + 8]) for i in range(0, 48, 8)]
    done = run([a + b for a, b in itertools.combinations(addends, 2)], chains + pairs, Budget(rounds=8))
    before = [r.nodes for r in done.saturation.growth if r.phase == "algebra"][-1]
    if merged:
        assert done.saturation.rules["sum_of_two_products"].matches == 15 * 7 * 7
        assert before + max(before, 100) < done.saturation.nodes
    else:
        (left_out,) = done.saturation.left_out
        assert (left_out.rule, left_out.at, left_out.reason) == ("sum_of_two_products", before, StopReason.NODE_LIMIT)
        assert done.saturation.nodes == before


def test_others_go_on_where_one_rule_explodes() -> None:
    (A, B, v, *more) = [*matrices(2), var("v", rx.Tensor("n")), *matrices(120)[2:]]
    done = run([(A @ B) @ v, *(A @ m for m in more)], joins + rx.rules.contraction, Budget(nodes=2000))
    assert {x.rule for x in done.saturation.left_out} == {"any_four_products", "any_three_of_one"}
    assert done.saturation.rules["matmul_vector_associates"].matches > 0


@pytest.mark.parametrize(
    ("growth", "rules"), [(10.0, ["any_four_products", "any_two_of_one"]), (math.inf, ["any_four_products"])]
)
def test_rules_that_run_one_by_one_keep_the_growth(growth: float, rules: list[str]) -> None:
    only = joins.only("any_four_products") + twos
    done = run(products(40), only, Budget(nodes=20_000, rounds=1, growth=growth))
    assert [x.rule for x in done.saturation.left_out] == rules
    assert (done.saturation.nodes > saturate.LEAST_GROWN) == (growth == math.inf)


def test_no_round_of_algebra_follows_one_in_which_a_rule_did_not_fit() -> None:
    roots = [*products(40), *matmul_chain(8)]
    alone = run(roots, chains, Budget(nodes=20_000, growth=math.inf)).saturation
    beside = run(roots, chains + joins.only("any_four_products"), Budget(nodes=20_000, growth=math.inf)).saturation
    assert [x.rule for x in beside.left_out] == ["any_four_products"] and alone.left_out == ()
    assert sum(r.phase == "algebra" for r in alone.growth) > 1
    assert sum(r.phase == "algebra" for r in beside.growth) == 1


def test_a_saturating_rule_set_is_not_cut_short() -> None:
    """All ways to multiply 30 matrices: in a round near the end the matches ask for ten times the nodes it adds."""
    only = chains.only("matmul_associates") + chains.only("matmul_associates_reversed")
    product, *others = matrices(30)
    for m in others:
        product = product @ m
    ways = math.comb(31, 3) + 30  # i < k < j, and the matrices
    done = run([product], only, Budget(nodes=5000, rounds=12, growth=math.inf))
    assert done.saturation.left_out == () and done.saturation.nodes == ways
    assert done.saturation.stop is StopReason.SATURATED


def test_questions_that_could_not_be_gone_through_are_not_asked() -> None:
    done = run(products(120), asking, Budget(nodes=1000))
    (left_out,) = done.saturation.left_out
    assert left_out.rule == "four_products_if" and left_out.matches == 120**4
    assert done.saturation.stop is left_out.reason is StopReason.TIME_LIMIT
    assert str(left_out).endswith("was left out from 240 nodes on (time limit): up to 207,360,000 matches")


def test_a_round_that_would_take_too_long_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saturate, "APPLIED_PER_SECOND", 1.0)
    monkeypatch.setattr(saturate, "SPEED_SAMPLE", 100)
    done = run(scaled_sum(14), sums, Budget(seconds=40.0))  # as if 80 matches were to be had
    assert done.saturation.stop is StopReason.TIME_LIMIT
    first = done.saturation.left_out[0]
    assert first.reason is StopReason.TIME_LIMIT and first.matches > 100
    assert_graceful(scaled_sum(14), done, Budget())


def test_no_time_leaves_the_program_as_written() -> None:
    roots = scaled_sum(14)
    done = run(roots, sums, Budget(seconds=1e-9))
    assert done.saturation.stop is StopReason.TIME_LIMIT and done.saturation.rounds == 0
    assert done.read.decode(done.read.graph.as_written) == roots


@pytest.mark.parametrize(
    ("given", "accepted"),
    [
        ({"nodes": -1}, "Budget(nodes=-1): a whole number that is at least 0 is accepted"),
        ({"nodes": 1.5}, "Budget(nodes=1.5): a whole number that is at least 0 is accepted"),
        ({"nodes": True}, "Budget(nodes=True): a whole number that is at least 0 is accepted"),
        ({"nodes": None}, "Budget(nodes=None): a whole number that is at least 0 is accepted"),
        ({"seconds": -0.1}, "Budget(seconds=-0.1): a number that is at least 0 is accepted"),
        ({"seconds": math.nan}, "Budget(seconds=nan): a number that is at least 0 is accepted"),
        ({"seconds": "10"}, "Budget(seconds='10'): a number that is at least 0 is accepted"),
        ({"rounds": -1}, "Budget(rounds=-1): a whole number that is at least 0 is accepted"),
    ],
)
def test_a_budget_that_is_none_is_refused(given: dict[str, object], accepted: str) -> None:
    with pytest.raises(OptionError) as error:
        Budget(**given)  # type: ignore[arg-type]
    assert str(error.value) == accepted


def test_an_endless_budget_is_one() -> None:
    assert run(matmul_chain(5), chains, Budget(seconds=math.inf, nodes=10**9)).saturation.left_out == ()


def test_figures_of_the_rules() -> None:
    done = run(scaled_sum(8), sums, Budget(nodes=300))
    made = Counter(c.made_by for row in done.read.graph.candidates for c in row if c.made_by)
    figures = done.saturation.rules
    # A node as written that a rule made too may bear either name.
    written = len(postorder(scaled_sum(8)))
    assert all(made[r] <= f.nodes <= made[r] + written for r, f in figures.items())
    assert done.saturation.nodes - written <= sum(f.nodes for f in figures.values()) <= done.saturation.nodes
    assert all(f.matches > 0 for f in figures.values())
    assert done.saturation.matches == {r: f.matches for r, f in figures.items()}
    assert all(f.milliseconds >= 0 for f in figures.values())


def test_the_report_says_what_was_cut() -> None:
    module = rx.parse(str(rx.trace(lambda *xs: xs[0] * sum(xs[2:], xs[1]), *["n"] * 15)))
    report = rx.optimize(module, rules=sums, budget=Budget(nodes=1000)).report
    assert report.stop.startswith("node limit") and report.peak <= 2000  # extraction may have no time on a busy machine
    rows = {r.rule: r for r in report.searched}
    assert {r: row.matches for r, row in rows.items() if row.matches} == report.matches
    assert rows["add_associates"].left_out.startswith("rule `add_associates` was left out from ")
    text = " ".join(str(report).split())
    assert rows["add_associates"].left_out in text
    busiest = max(report.searched, key=lambda r: r.nodes)
    assert f"busiest rules: {busiest.rule} ({busiest.matches} matches, {busiest.nodes} new nodes" in text
    assert [r["rule"] for r in report.as_data()["searched"]] == sorted(rows)
    assert rx.types.CostReport.from_json(report.to_json()).searched == report.searched


@pytest.mark.parametrize("nodes", [30, 100, 1000])
def test_what_is_cut_short_by_nodes_is_the_same_every_time(nodes: int) -> None:
    roots, rules = PROGRAMS["sum of 14 terms"]
    first, second = (run(roots, rules, Budget(nodes=nodes)) for _ in range(2))
    assert first.nodes == second.nodes and first.saturation.left_out == second.saturation.left_out
    assert first.read.graph.candidates == second.read.graph.candidates


# The bounds themselves, on random graphs of two operators `f` (T T) and `g` (T Dim), against a plain enumeration.

TABLES = {"f": (2, 0), "g": (1, 1)}
NODES = st.lists(st.tuples(st.sampled_from("fg"), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12)
ATOMS = st.lists(st.tuples(st.sampled_from("fg"), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=3)


def engine_of(nodes: list[tuple[str, int, int]], unions: list[tuple[int, int]]) -> Engine:
    """Leaves 0 to 2, then each node over the classes before it."""
    engine = Engine()
    engine.run(PRELUDE)
    engine.run(["(constructor f (T T) T)", "(constructor g (T Dim) T)", "(ruleset rule)"])
    engine.run(f"(set (node {i}) (Leaf {i}))" for i in range(3))
    for i, (table, a, b) in enumerate(nodes, start=3):
        second = f"(node {b % i})" if table == "f" else f"(D {b % 3})"
        engine.run([f"(set (node {i}) ({table} (node {a % i}) {second}))"])
    n = len(nodes) + 3
    engine.run(f"(union (node {a % n}) (node {b % n}))" for a, b in unions)
    # Every class is annotated, and some twice.
    engine.run(["(rule ((= x (node i))) ((has_ann x (Other 0)) (has_ann x (Other (% i 2)))) :ruleset rule)"])
    engine.step("rule")
    engine.saturate("annotate")
    return engine


def pattern_of(atoms: list[tuple[str, int, int]]) -> tuple[QueryAtom, ...]:
    """Atoms, operands first: the operands of each are earlier atoms or variables; the last two may be roots alike."""
    made: list[QueryAtom] = []
    for i, (table, a, b) in enumerate(atoms):
        pool = [*(x.output for x in made), *(f"v_{k}" for k in range(5))]
        operands = (pool[a % len(pool)], pool[b % len(pool)])[: TABLES[table][0]]
        made.append(QueryAtom(table, operands, (f"s_{b % 2}",) * TABLES[table][1], f"e{i}"))
    return tuple(made)


def enumerated(engine: Engine, atoms: tuple[QueryAtom, ...]) -> int:
    """Matches, found by trying every row for every atom."""
    tables = engine.tables()
    found = 0
    for rows in itertools.product(*(tables[a.table] for a in atoms)):
        bound: dict[str, object] = {}
        pairs = [
            (v, x)
            for a, r in zip(atoms, rows, strict=True)
            for v, x in zip(a.columns, (*r.inputs, r.output), strict=True)
        ]
        found += all(bound.setdefault(v, x) == x for v, x in pairs)
    return found


def nodes_of(engine: Engine) -> int:
    sizes = engine.sizes()
    return sizes["Leaf"] + sizes["f"] + sizes["g"]


@settings(max_examples=60, deadline=None)
@given(NODES, st.lists(st.tuples(st.integers(0, 14), st.integers(0, 14)), max_size=4), ATOMS, ATOMS, st.booleans())
def test_bounds_hold_on_random_graphs(
    nodes: list[tuple[str, int, int]],
    unions: list[tuple[int, int]],
    left: list[tuple[str, int, int]],
    right: list[tuple[str, int, int]],
    hard: bool,
) -> None:
    engine = engine_of(nodes, unions)
    atoms = pattern_of(left)
    bound = {v for a in atoms for v in (*a.operands, a.output)}
    sizes = sorted({v for a in atoms for v in a.sizes})
    # A right side over what the left side binds.
    made: list[QueryAtom] = []
    for i, (table, a, b) in enumerate(right):
        pool = [*sorted(bound), *(x.output for x in made)]
        if table == "g" and not sizes:
            continue
        operands = (pool[a % len(pool)], pool[b % len(pool)])[: TABLES[table][0]]
        made.append(QueryAtom(table, operands, (sizes[b % len(sizes)],) if table == "g" else (), f"r{i}"))
    facts = " ".join(a.fact for a in atoms)
    actions = " ".join(f"(let {a.output} {a.row})" for a in made) or f"(union {atoms[-1].output} {atoms[-1].output})"
    engine.run(["(ruleset real)", f'(rule ({facts}) ({actions}) :ruleset real :name "real")'])
    forecasts = Growth(engine, TABLES)
    forecasts.add("real", (), Compiled([], atoms, (), facts, tuple(made), (), 0, False))
    if hard:
        forecasts._affordable = 0  # pyright: ignore[reportPrivateUsage]

    def bounds(room: Forecast) -> Forecast:
        return forecasts.forecast(["real"], engine.sizes(), nodes_of(engine), room)

    endless, none = Forecast(10**9, 10**9), Forecast(0, 0)
    truth = enumerated(engine, atoms)
    assert truth <= bounds(endless).matches  # by table sizes
    sharp = bounds(none)
    assert truth <= sharp.matches <= bounds(endless).matches and (hard or sharp.matches == truth)
    before = nodes_of(engine)
    tables = engine.sizes()
    alone = forecasts.forecast_alone("real", tables, before, none)
    # Counting leaves nothing behind.
    assert {name: n for name, n in engine.sizes().items() if n} == {name: n for name, n in tables.items() if n}
    engine.step("real")
    engine.saturate("annotate")
    forecasts.record_run(["real"])
    added = nodes_of(engine) - before
    assert added <= alone.nodes <= sharp.nodes
    if not hard:
        assert bounds(none).matches >= enumerated(engine, atoms) - truth  # what is new since
    engine.close()
