"""Foreign e-graphs: read, extracted from, saved, and the saved choice recomputed; what is wrong is named."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from typer.testing import CliRunner, Result

from benchmarks.egraphs import KINDS
from relax_eg.cli import app
from relax_eg.errors import ExtractionError
from relax_eg.extract.selection.check_choice import check_choice
from relax_eg.extract.selection.foreign import egraph_of, extract, read_egraph
from relax_eg.extract.selection.problem import Problem
from tests.extract.problems import optimum, problems


def node(eclass: str, cost: Any, *children: str, **more: Any) -> dict[str, Any]:
    return {"op": "f", "children": list(children), "eclass": eclass, "cost": cost, **more}


def egraph(nodes: dict[str, Any], *roots: str) -> dict[str, Any]:
    return {"nodes": nodes, "root_eclasses": list(roots), "class_data": {}}


# f = g(x, x') or h(x): x is dear and used twice.
SHARED = egraph(
    {
        "x": node("X", 10.0),
        "a": node("A", 1.0, "x"),
        "b": node("B", 1.0, "x"),
        "f1": node("F", 1.0, "a", "b"),
        "f2": node("F", 12.5),
    },
    "F",
)


def serialized(problem: Problem) -> dict[str, Any]:
    nodes = {
        f"n{c}.{k}": node(f"c{c}", problem.costs[c][k], *(f"n{x}.0" for x in reads))
        for c, row in enumerate(problem.reads)
        for k, reads in enumerate(row)
    }
    return egraph(nodes, *(f"c{r}" for r in problem.roots))


@settings(max_examples=100)
@given(problems())
def test_every_method_is_complete_acyclic_and_costs_what_it_says(problem: Problem) -> None:
    best = optimum(problem)
    data = serialized(problem)
    if best == math.inf:
        with pytest.raises(ExtractionError, match="cannot be computed"):
            egraph_of(data)
        assume(False)
    results = extract(egraph_of(data), "all")
    assert [r.method for r in results] == ["tree", "dag", "ilp"]
    for r in results:
        # Through JSON, as it is saved.
        checked = check_choice(data, json.loads(json.dumps(r.as_data())))
        assert checked.faults == ()
        assert checked.cost == pytest.approx(r.cost)
        assert checked.classes == len(r.choice)
    assert results[2].cost == pytest.approx(best)
    assert results[2].cost <= results[1].cost + 1e-9


def test_the_checker_names_what_is_wrong() -> None:
    good = extract(egraph_of(SHARED))[-1].as_data()
    assert good["cost"] == 12.5 and check_choice(SHARED, good).ok

    def faults(choice: Any, cost: Any, data: dict[str, Any] = SHARED) -> str:
        return "; ".join(check_choice(data, {"choice": choice, "cost": cost}).faults)

    whole = {"F": "f1", "A": "a", "B": "b", "X": "x"}
    assert faults(whole, 13.0) == ""
    assert faults(whole, 12.0) == "the choice costs 13.0, not 12.0 as it says"
    assert faults(whole, None) == "the choice costs 13.0, not None as it says"
    assert "class 'X' is needed and has no node" in faults({k: v for k, v in whole.items() if k != "X"}, 3.0)
    assert "class 'X' is needed and has 'y', which is no node" in faults({**whole, "X": "y"}, 3.0)
    assert "class 'A' has the node 'b', which belongs to class 'B'" in faults({**whole, "A": "b"}, 12.0)
    assert "there is no `choice`" in faults([], 1.0)
    circle = copy.deepcopy(SHARED)
    circle["nodes"]["x2"] = node("X", 0.0, "f1")
    assert "class 'F' depends on itself" in faults({**whole, "X": "x2"}, 3.0, circle)
    circle["nodes"]["f2"]["subsumed"] = True
    assert "class 'F' has the node 'f2', which is subsumed" in faults({"F": "f2"}, 12.5, circle)
    assert faults(whole, 13.0, circle) == ""
    assert extract(egraph_of(circle))[-1].choice["F"] == "f1"
    never = copy.deepcopy(SHARED)
    never["nodes"]["x"]["cost"] = None
    infinite = "class 'X' has the node 'x', which costs inf: it cannot be had"
    assert faults(whole, 3.0, never) == f"{infinite}; the choice costs inf, not 3.0 as it says"
    assert faults(whole, math.inf, never) == infinite


BAD: list[tuple[Any, str]] = [
    ([], "has no nodes; the egraph-serialize format is accepted"),
    ({"nodes": {}}, "has no nodes"),
    (egraph({"a": {"op": "f"}}, "A"), "node 'a' names no class"),
    (egraph({"a": 3}, "A"), "node 'a' names no class"),
    (egraph({"a": node("A", 1.0, "b")}, "A"), "node 'a' has the child 'b', which is not a node"),
    (
        egraph({"a": node("A", 1.0, "B"), "b": node("B", 1.0)}, "A"),
        "node 'a' has the child 'B', which is a class; children are named by nodes",
    ),
    (egraph({"a": {**node("A", 1.0), "children": "b"}}, "A"), "the children of node 'a' are 'b'; a list of nodes"),
    (egraph({"a": node("A", 1.0)}, "B"), "the root 'B' is no class of any node"),
    (egraph({"a": node("A", 1.0)}), "has no root_eclasses; a list of at least one class is accepted"),
    (egraph({"a": node("A", -1.0)}, "A"), "node 'a' costs -1.0; a number >= 0 is accepted, or inf for never"),
    (egraph({"a": node("A", math.nan)}, "A"), "node 'a' costs nan; a number >= 0"),
    (egraph({"a": node("A", "dear")}, "A"), "node 'a' costs 'dear'; a number >= 0"),
    (egraph({"a": node("A", True)}, "A"), "node 'a' costs True; a number >= 0"),
    (egraph({"a": node("A", 10**5000)}, "A"), "node 'a' costs more than a float holds (1.8e308); inf is accepted"),
    (
        egraph({"a": node("A", 1e308, "b"), "b": node("B", 9e307)}, "A"),
        "costs add up to more than a float holds; the dearest node 'a' costs 1e+308",
    ),
    (egraph({"a": node("A", 1.0)}, "a"), "the root 'a' is a node; roots are named by classes"),
    (
        egraph({"a": node("A", 1.0, "b"), "b": node("B", math.inf)}, "A"),
        "the root 'A' cannot be computed: every node of class 'B' costs infinity or is subsumed",
    ),
    (
        egraph({"a": node("A", 1.0, "b"), "b": node("B", 1.0, "a")}, "A"),
        "the root 'A' cannot be computed: classes 'A', 'B' can only be computed from themselves",
    ),
]


@pytest.mark.parametrize(("data", "message"), BAD, ids=range(len(BAD)))
def test_what_does_not_fit_together_is_named(data: Any, message: str) -> None:
    with pytest.raises(ExtractionError) as refusal:
        egraph_of(data, "g.json")
    assert message in str(refusal.value) and "g.json" in str(refusal.value)


def test_infinite_costs_are_read_in_every_spelling() -> None:
    for never in (math.inf, None, "inf", "Infinity"):
        data = egraph({"a": node("A", never), "b": node("A", 2)}, "A")
        assert extract(egraph_of(data))[-1].choice == {"A": "b"}


@pytest.mark.parametrize("unit", [5e-324, 1e-300, 1 / 3, 10**40, 1e300])
def test_the_optimum_is_found_whatever_costs_are_counted_in(unit: float) -> None:
    data = KINDS["cyclic"](120, 0)
    best = extract(egraph_of(data))[-1]
    assert best.how == "proved optimal"
    other = copy.deepcopy(data)
    for n in other["nodes"].values():
        n["cost"] = int(n["cost"]) * unit
    found = extract(egraph_of(other))[-1]
    assert found.how == "proved optimal"
    assert found.cost == pytest.approx(best.cost * unit, rel=1e-9)
    assert check_choice(other, json.loads(json.dumps(found.as_data()))).ok


def test_nodes_that_stand_twice_or_read_themselves_and_roots_named_twice_change_nothing() -> None:
    data = copy.deepcopy(SHARED)
    data["nodes"] |= {"x2": node("X", 10.0), "f3": node("F", 0.0, "f1", "a"), "a2": node("A", 0.0, "a2")}
    data["root_eclasses"] = ["F", "A", "F"]
    for r in extract(egraph_of(data), "all"):
        assert check_choice(data, r.as_data()).ok
    assert r.cost == 13.0 and r.how == "proved optimal"


def test_values_shared_at_every_level_cost_once_however_deep() -> None:
    # Each use paid in full, the last one costs 2 ** 1200: more than a float holds.
    nodes = {"0": node("0", 1.0)}
    for i in range(1, 1200):
        nodes |= {f"{i}l": node(f"{i}l", 1.0, f"{i - 1}"), f"{i}r": node(f"{i}r", 1.0, f"{i - 1}")}
        nodes |= {f"{i}": node(f"{i}", 1.0, f"{i}l", f"{i}r"), f"{i}'": node(f"{i}", 4.0, f"{i}l", f"{i}r")}
    data = egraph(nodes, "1199")
    for r in extract(egraph_of(data), "all"):
        assert r.cost == 3 * 1199 + 1
        assert check_choice(data, r.as_data()).ok


def test_a_cost_left_out_is_one() -> None:
    data = egraph({"a": {"op": "f", "children": [], "eclass": "A"}}, "A")
    assert extract(egraph_of(data))[-1].cost == 1.0


def test_nothing_to_pay_is_proved_at_once() -> None:
    (found,) = extract(egraph_of(egraph({"a": node("A", 0.0)}, "A")))
    assert (found.cost, found.bound, found.gap, found.how) == (0.0, 0.0, 0.0, "proved optimal")


def test_a_deep_chain_needs_no_recursion() -> None:
    nodes = {"n0": node("0", 1.0)} | {f"n{i}": node(str(i), 1.0, f"n{i - 1}") for i in range(1, 4_000)}
    data = egraph(nodes, "3999")
    results = extract(egraph_of(data), "all")
    assert [r.cost for r in results] == [4_000.0] * 3
    assert check_choice(data, results[-1].as_data()).ok


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["extract", *map(str, arguments)], env={"COLUMNS": "120"})


def test_the_command_prints_saves_and_checks(tmp_path: Path) -> None:
    graph, choice = tmp_path / "g.json", tmp_path / "choice.json"
    graph.write_text(json.dumps(KINDS["tensors"](400, 0)))
    shown = run(graph, "--save", choice)
    assert shown.exit_code == 0, shown.output
    size = f"{read_egraph(graph).node_count} nodes"
    for text in ("tree", "dag", "ilp", "lower bound", "gap", "proved optimal", size):
        assert text in shown.output
    checked = run(graph, "--check", choice)
    assert checked.exit_code == 0 and "complete, acyclic" in checked.output
    saved = json.loads(choice.read_text())
    assert saved["schema"] == "relax_eg.choice/1"
    choice.write_text(json.dumps({**saved, "cost": 0.5 * saved["cost"]}))
    refused = run(graph, "--check", choice)
    assert refused.exit_code == 1 and "as it says" in " ".join(refused.output.split())
    choice.write_text("[]")
    assert "is not a choice" in run(graph, "--check", choice).output


def test_two_processes_find_no_worse_than_greedy() -> None:
    data = KINDS["cyclic"](1300, 0)
    results = {r.method: r for r in extract(egraph_of(data), "all", 6.0, jobs=2)}
    assert results["ilp"].cost < results["dag"].cost
    assert check_choice(data, results["ilp"].as_data()).ok


def test_the_command_prints_json(tmp_path: Path) -> None:
    graph = tmp_path / "g.json"
    graph.write_text(json.dumps(SHARED))
    shown = json.loads(run(graph, "--json", "--method", "dag").stdout)
    assert (shown["nodes"], shown["classes"]) == (5, 4)
    (row,) = shown["results"]
    assert row["method"] == "dag" and row["cost"] == 12.5 and row["bound"] is None


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("{", (), "is not JSON"),
        (None, (), "cannot be read: No such file or directory"),
        (json.dumps(SHARED), ("--method", "best"), "--method 'best': all, tree, dag, ilp are accepted"),
        (json.dumps(SHARED), ("--time-limit", "-1"), "--time-limit -1.0: a number of seconds >= 0 is accepted"),
        (json.dumps(SHARED), ("--jobs", "3"), "--jobs 3: 1 or 2 is accepted"),
        (json.dumps(SHARED), ("--check", "nowhere.json"), "nowhere.json cannot be read"),
        (json.dumps(SHARED), ("--method", "tree", "--save", "no/such/c.json"), "--save: cannot write no/such/c.json"),
    ],
)
def test_the_command_says_what_is_wrong(
    tmp_path: Path, text: str | None, options: tuple[str, ...], message: str
) -> None:
    graph = tmp_path / "g.json"
    if text is not None:
        graph.write_text(text)
    shown = run(graph, *options)
    assert shown.exit_code == 1
    assert message in " ".join(shown.output.split())
