"""E-graphs of other tools in the egraph-serialize format: reading, extraction, and writing of the choice.

The format is JSON: `nodes`, each with `op`, `children` (names of nodes, each of which stands for its class), `eclass`,
`cost` and optionally `subsumed` (such a node is for matching only and is never chosen); `root_eclasses`; and
`class_data`, which is ignored.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from relax_eg.errors import ExtractionError
from relax_eg.extract.costs.numbers import gap
from relax_eg.extract.selection.greedy import dag_greedy
from relax_eg.extract.selection.helper import start_helper
from relax_eg.extract.selection.problem import Problem, choice_cost, impossible_classes, tree_choice, used_classes
from relax_eg.extract.selection.solve import Progress, Solved, SolverEffort, solve
from relax_eg.plain_data import read_json as read_data

CHOICE_SCHEMA = "relax_eg.choice/1"
Method = Literal["all", "tree", "dag", "ilp"]
METHODS = ("all", "tree", "dag", "ilp")
_ALONE = 1000  # chosen: nodes up to which no second process is started, because that takes longer than it saves
_NAMED = 5  # limit: classes or nodes named in one message


@dataclass(frozen=True, slots=True)
class ForeignGraph:
    """An e-graph that was read.

    - `problem`: its selection problem.
    - `classes`: the names of the classes.
    - `nodes[c][k]`: the name of the node that is candidate `k` of class `c`.
    """

    problem: Problem
    classes: list[str]
    nodes: list[list[str]]

    @property
    def node_count(self) -> int:
        return self.problem.node_count


@dataclass(frozen=True, slots=True)
class Extracted:
    """The result of one extraction method.

    - `method`: "tree", "dag" or "ilp".
    - `choice`: the name of the node of each class that the roots need, by the name of the class.
    - `cost`: its cost.
    - `bound`: a lower bound on the cost of any choice; None if the method gives none.
    - `how`: how the choice was found: "greedy", "ilp" or "proved optimal".
    - `seconds`: seconds that the method took.
    """

    method: str
    choice: Mapping[str, str]
    cost: float
    bound: float | None
    how: str
    seconds: float

    @property
    def gap(self) -> float | None:
        """The largest possible saving of another choice, as a share of the cost."""
        return None if self.bound is None else gap(self.cost, self.bound)

    def as_data(self) -> dict[str, Any]:
        """Plain data for JSON, with a schema version."""
        return {
            "schema": CHOICE_SCHEMA,
            "method": self.method,
            "cost": self.cost,
            "bound": self.bound,
            "gap": self.gap,
            "how": self.how,
            "seconds": self.seconds,
            "choice": dict(self.choice),
        }


def read_egraph(path: str | Path) -> ForeignGraph:
    """The e-graph in a file. ExtractionError if it cannot be read or is inconsistent."""
    return egraph_of(read_json(path), str(path))


def read_json(path: str | Path) -> Any:
    """The JSON in a file. ExtractionError if the file cannot be read or is not JSON."""
    try:
        return read_data(Path(path).read_bytes())
    except OSError as e:
        raise ExtractionError(f"{path} cannot be read: {e.strerror or e}") from None
    except ValueError as e:
        raise ExtractionError(f"{path} is not JSON: {e}") from None


def egraph_of(data: Any, name: str = "the e-graph") -> ForeignGraph:
    """The e-graph that `data` (parsed JSON) describes; `name` is its name in messages. ExtractionError if it is
    inconsistent."""
    nodes = data.get("nodes") if isinstance(data, dict) else None
    if not isinstance(nodes, dict) or not nodes:
        raise ExtractionError(
            f"{name} has no nodes; the egraph-serialize format is accepted: "
            '{"nodes": {id: {"op": ..., "children": [ids], "eclass": ..., "cost": ...}}, "root_eclasses": [...]}'
        )
    class_of: dict[str, int] = {}
    where: dict[str, int] = {}
    classes: list[str] = []
    for node, n in nodes.items():
        eclass = n.get("eclass") if isinstance(n, dict) else None
        if not isinstance(eclass, str | int):
            raise ExtractionError(f'{name}: node {node!r} names no class; an "eclass" is needed')
        if str(eclass) not in class_of:
            class_of[str(eclass)] = len(classes)
            classes.append(str(eclass))
        where[node] = class_of[str(eclass)]
    reads: list[list[tuple[int, ...]]] = [[] for _ in classes]
    costs: list[list[float]] = [[] for _ in classes]
    names: list[list[str]] = [[] for _ in classes]
    for node, n in nodes.items():
        c = where[node]
        children = n.get("children", [])
        if not isinstance(children, list):
            raise ExtractionError(
                f"{name}: the children of node {node!r} are {children!r}; a list of nodes is accepted"
            )
        try:
            below = tuple(dict.fromkeys([where[str(x)] for x in children]))
        except KeyError as e:
            what = "a class; children are named by nodes" if e.args[0] in class_of else "not a node"
            raise ExtractionError(f"{name}: node {node!r} has the child {e.args[0]!r}, which is {what}") from None
        reads[c].append(below)
        cost = _cost(n.get("cost", 1.0), node, name)
        costs[c].append(math.inf if n.get("subsumed") else cost)
        names[c].append(node)
    roots = data.get("root_eclasses")
    if not isinstance(roots, list) or not roots:
        raise ExtractionError(f"{name} has no root_eclasses; a list of at least one class is accepted")
    unknown = [r for r in roots if str(r) not in class_of]
    if unknown:
        what = "a node; roots are named by classes" if str(unknown[0]) in where else "no class of any node"
        raise ExtractionError(f"{name}: the root {unknown[0]!r} is {what}")
    if sum(max((x for x in row if x < math.inf), default=0.0) for row in costs) == math.inf:
        dearest, cost = max(_finite(names, costs), key=lambda found: found[1])
        raise ExtractionError(
            f"{name}: costs add up to more than a float holds; the dearest node {dearest!r} costs {cost!r}, "
            f"inf is accepted for never"
        )
    graph = ForeignGraph(Problem(reads, costs, tuple(dict.fromkeys(class_of[str(r)] for r in roots))), classes, names)
    _check_computable(graph, name)
    return graph


def _finite(names: list[list[str]], costs: list[list[float]]) -> Iterator[tuple[str, float]]:
    for row, prices in zip(names, costs, strict=True):
        yield from ((n, x) for n, x in zip(row, prices, strict=True) if x < math.inf)


def _cost(cost: Any, node: str, name: str) -> float:
    """A cost as a number; "inf" and null (which some writers make of it) stand for a node that cannot be chosen."""
    if isinstance(cost, int | float) and not isinstance(cost, bool) and cost >= 0:
        try:
            return float(cost)
        except OverflowError:
            raise ExtractionError(
                f"{name}: node {node!r} costs more than a float holds (1.8e308); inf is accepted for never"
            ) from None
    if cost is None or (isinstance(cost, str) and cost.lower() in ("inf", "infinity")):
        return math.inf
    raise ExtractionError(f"{name}: node {node!r} costs {cost!r}; a number >= 0 is accepted, or inf for never")


def _check_computable(graph: ForeignGraph, name: str) -> None:
    problem = graph.problem
    tree = tree_choice(problem)
    reached = impossible_classes(problem, tree)
    if not reached:
        return
    dear = [c for c in reached if all(x == math.inf for x in problem.costs[c])]
    root = graph.classes[next(r for r in problem.roots if tree[r] < 0)]
    if dear:
        raise ExtractionError(
            f"{name}: the root {root!r} cannot be computed: every node of class {_list(graph, dear)} costs "
            "infinity or is subsumed"
        )
    raise ExtractionError(
        f"{name}: the root {root!r} cannot be computed: classes {_list(graph, reached)} can only be computed "
        "from themselves; each circle needs a node that leads out of it"
    )


def _list(graph: ForeignGraph, classes: Sequence[int]) -> str:
    shown = ", ".join(repr(graph.classes[c]) for c in classes[:_NAMED])
    return shown + (f" and {len(classes) - _NAMED} more" if len(classes) > _NAMED else "")


def extract(
    graph: ForeignGraph,
    method: Method = "ilp",
    seconds: float = 60.0,
    progress: Progress | None = None,
    seed: int = 0,
    jobs: int = 1,
) -> list[Extracted]:
    """The results of one method, or of all three with "all".

    "tree" counts the cost of a class for every use. "dag" is greedy and counts shared classes once. "ilp" starts from
    the choices of both and searches until no cheaper choice exists or `seconds` are over.

    - `progress`: as in `solve`.
    - `seed`: random seed of the neighbourhoods that "ilp" searches.
    - `jobs`: 2 starts a second process that improves choices; the result then depends on the clock.
    """
    if method not in METHODS:
        raise ExtractionError(f"method {method!r}; {', '.join(METHODS)} are accepted")
    problem = graph.problem
    results: list[Extracted] = []

    def add(name: str, choice: Sequence[int], bound: float | None, how: str, started: float) -> None:
        used = sorted(used_classes(problem, choice))
        named = {graph.classes[c]: graph.nodes[c][choice[c]] for c in used}
        cost = choice_cost(problem, choice)
        results.append(Extracted(name, named, cost, bound, how, time.perf_counter() - started))

    started = time.perf_counter()
    tree = tree_choice(problem)
    add("tree", tree, None, "greedy", started)
    if method == "tree":
        return results
    if progress is not None:
        progress("greedy", results[0].cost, 0.0)
    again = time.perf_counter()
    dag = dag_greedy(problem)
    add("dag", dag, None, "greedy", again)
    if method != "dag":
        effort = SolverEffort(seed=seed)
        with (
            start_helper(problem, dag, effort) if jobs > 1 and problem.node_count > _ALONE else nullcontext() as partner
        ):
            left = max(0.0, seconds - (time.perf_counter() - started))
            solved: Solved = solve(problem, [tree, dag], replace(effort, seconds=left), progress, partner)
        add("ilp", solved.choice, solved.bound, solved.how, started)
    return results if method == "all" else results[-1:]
