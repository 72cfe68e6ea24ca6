"""The values of a whole program, with all ways to compute them: e-graphs of functions joined where functions are run.

A function that a loop or several calls run is here once; `times` counts its steps. The values that it passes from step
to step (and from call to call) are *tied*: the placement in which the function takes such a parameter is the one in
which it is given at first and comes back. The condition of a `while` takes them where the body does. An operand of a
`cond` has one placement for all branches, whose functions bring it elsewhere. Everything is near-linear in the
candidates of the e-graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from relax_eg.errors import OptionError
from relax_eg.extract.costs.cost import WholeCost
from relax_eg.extract.costs.cost_model import NodeCost
from relax_eg.extract.graph import Candidate, ExtractionGraph
from relax_eg.ir import heads
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ir.control import alternatives, group_arguments, runs_of
from relax_eg.ir.expr import Expr
from relax_eg.ir.module import Function
from relax_eg.ir.placements import REPLICATED, DeviceMesh, MeshPlacement, Part
from relax_eg.meshes.strategies import SplitStrategy, rings, strategies
from relax_eg.ops import bytes_of
from relax_eg.ops.placing import ANNOTATE_SHARDING
from relax_eg.shapes import Dim
from relax_eg.traversal import reached

# Nodes whose functions are spread like the code around them. What others run is computed whole on every device.
FOLLOWED = frozenset((heads.SCAN, heads.WHILE, heads.COND, heads.CALL))
# Library calls whose results are their operands, which no compiler may look through. Each result is placed like its
# operand.
_CONSTRAINT = "jax.sharding_constraint"
HANDING_ON = frozenset(("jax.optimization_barrier",))


@dataclass(frozen=True)
class FunctionGraph:
    """The e-graph of a function.

    - `function`: the function as written.
    - `graph`: its extraction graph.
    - `leaf(c, k)`: the expression of a candidate without operands; None for others.
    - `build(c, k, operands)`: the expression of a candidate over these operands.
    - `taken`: the candidate of each class that is chosen for one device. Of candidates that run functions, only these
      are looked at.
    """

    function: Function
    graph: ExtractionGraph
    leaf: Callable[[int, int], Expr | None]
    build: Callable[[int, int, Sequence[Expr]], Expr]
    taken: Mapping[int, int]

    def fields(self) -> list[tuple[str, int]] | None:
        """The results: each a class ("class", c) or a parameter ("parameter", i). None for results of another form."""
        bindings = list(self.function.bindings)
        classes = {b.var: c for b, c in zip(bindings, self.graph.roots, strict=True)}
        result, params = self.function.result, self.function.params
        found: list[tuple[str, int]] = []
        for e in result.args if result.op == heads.TUPLE else (result,):
            if e in classes:
                found.append(("class", classes[e]))
            elif e in params:
                found.append(("parameter", params.index(e)))
            else:
                return None
        return found


@dataclass(slots=True)
class ValueWay:
    """One way to compute a value.

    - `along`: for what its author has placed (a `shard_map`, a sharding constraint): its strategies along each axis of
      the mesh.
    - `op`: its operator, for messages.
    - `children`: the values that it reads, without functions.
    - `strategies`: along one axis of a mesh.
    - `cost`: its price on one device.
    - `candidate`: its number in the e-graph; -1 for what only passes a value on.
    - `made_by`: the rule that proposed it.
    - `rings`: strategies by pieces, of which `meshes.rings` makes those of use strategies.
    """

    op: str
    children: tuple[int, ...]
    strategies: tuple[SplitStrategy, ...]
    cost: NodeCost = field(default_factory=NodeCost)
    candidate: int = -1
    made_by: str = ""
    along: tuple[tuple[SplitStrategy, ...], ...] = ()
    rings: tuple[SplitStrategy, ...] = ()

    def strategies_along(self, axis: int) -> tuple[SplitStrategy, ...]:
        """Its strategies along an axis of the mesh."""
        return self.along[axis] if self.along else self.strategies


@dataclass(slots=True)
class SpreadValue:
    """A value of the program.

    - `annotation`: its annotation.
    - `bytes`: its bytes on one device.
    - `times`: how often a call of the program computes it.
    - `function`, `number`: its function, and its class there; -1 for a parameter that no class is.
    - `ways`: the ways to compute it.
    - `parameter`: the parameter of its function that it is; -1 for others.
    """

    annotation: Annotation
    bytes: float
    times: float
    function: str
    number: int
    ways: list[ValueWay] = field(default_factory=list[ValueWay])
    parameter: int = -1

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def shape(self) -> tuple[Dim, ...]:
        return (self.annotation.shape or ()) if isinstance(self.annotation, Tensor) else ()

    @property
    def is_free(self) -> bool:
        """Whether every device makes any part of it for nothing: it is a constant."""
        return any(w.op == heads.CONSTANT for w in self.ways)


@dataclass(slots=True)
class SpreadProgram:
    """All values of a program.

    - `values`: the values.
    - `inputs`: the values of the entry's parameters, in order.
    - `outputs`: the values of its results, in order.
    - `tied`: pairs (parameter, value) of a function that runs several times: the value is needed in the placement of
      the parameter if the parameter is used.
    - `graphs`: the e-graphs of its functions.
    - `parameters`: the values of each function's parameters.
    - `fields`: the values of each function's results.
    - `handed_on`: for a node that hands on its operands, by function and class: the values of its results, by index.
    - `arguments`: the values that a `cond` hands to its branches, by function, class and position.
    - `results`: for the result of a function, the values that are read from it, with their operand that it is.
    - `staying`: parameters that are given where their argument is, and brought elsewhere inside the function: those of
      branches and conditions, and the slices of a loop, so that no device ever has all slices gathered.
    - `kept`: nodes whose authors have placed their operands and results.
    - `opaque`: operators without index equations that are computed whole on every device.
    - `joined`: for values that may be partial sums, how many sums are sent at once with theirs (`meshes.sums`).
    - `share`: how many devices share the rates of the profile: all of the mesh, if it has no links, for then they are
      threads of one machine.
    """

    values: list[SpreadValue] = field(default_factory=list[SpreadValue])
    inputs: list[int] = field(default_factory=list[int])
    outputs: list[int] = field(default_factory=list[int])
    tied: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    graphs: dict[str, FunctionGraph] = field(default_factory=dict[str, FunctionGraph])
    parameters: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    fields: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    handed_on: dict[tuple[str, int], dict[int, int]] = field(default_factory=dict[tuple[str, int], dict[int, int]])
    arguments: dict[tuple[str, int, int], int] = field(default_factory=dict[tuple[str, int, int], int])
    results: dict[int, list[tuple[int, int]]] = field(default_factory=dict[int, list[tuple[int, int]]])
    staying: set[int] = field(default_factory=set[int])
    kept: dict[str, int] = field(default_factory=dict[str, int])
    opaque: dict[str, int] = field(default_factory=dict[str, int])
    joined: dict[int, int] = field(default_factory=dict[int, int])
    share: int = 1

    def read_inside(self) -> list[set[int]]:
        """For each value the values of its own function that its ways read."""
        values = self.values
        return [{c for w in x.ways for c in w.children if values[c].function == x.function} for x in values]

    def splits_along(self, axis: int) -> bool:
        """Whether the program's author has split something over an axis of the mesh."""
        ways = (w.along[axis] for v in self.values for w in v.ways if w.along)
        return any(len(s) == 1 and isinstance(s[0].result, int) for s in ways)


def hands_on(k: Candidate) -> bool:
    """Whether a candidate returns its operands, as a tuple."""
    return k.op == heads.CALL_DPS_LIBRARY and k.site.attrs.get("name") in HANDING_ON and len(k.children) > 0


def any_part(rank: int) -> list[Part]:
    """The parts that a value of this rank can have, but for partial sums."""
    return [REPLICATED, *range(rank)]


def join_graphs(
    graphs: Mapping[str, FunctionGraph], order: Sequence[str], model: WholeCost, mesh: DeviceMesh
) -> SpreadProgram:
    """The values of a program.

    - `graphs`: the e-graphs of its functions, the entry's among them.
    - `order`: names of these, callers before callees; the entry first.
    - `model`: prices candidates on one device.
    - `mesh`: the mesh over which a `shard_map` has to be. OptionError for another.
    """
    return _Joining(graphs, model, mesh).run(order)


class _Joining:
    def __init__(self, graphs: Mapping[str, FunctionGraph], model: WholeCost, mesh: DeviceMesh) -> None:
        self.graphs, self.model, self.mesh = graphs, model, mesh
        self.found = SpreadProgram(graphs=dict(graphs), share=1 if model.profile.links else mesh.devices)
        self.number: dict[tuple[str, int], int] = {}
        self.times: dict[str, float] = {}
        # For each function: the nodes that run it, as (function, class, candidate, number of the run).
        self.sites: dict[str, list[tuple[str, int, Candidate, int]]] = {}

    def run(self, order: Sequence[str]) -> SpreadProgram:
        self.times[order[0]] = 1.0
        for name in order:
            if name in self.times:
                self._add_values(name)
        for name in order:
            if name in self.times:
                self._link(name, is_entry=name == order[0])
        self.found.inputs = self.found.parameters[order[0]]
        self.found.outputs = self.found.fields[order[0]]
        return self.found

    def followed(self, name: str, k: Candidate) -> tuple[str, ...]:
        """The functions that a candidate runs, if they are spread with the code around it; else none."""
        if k.op not in FOLLOWED:
            return ()
        found: list[str] = []
        for c in group_arguments(k.op, k.children, k.site.attrs).functions:
            is_function = self.graphs[name].graph.candidates[c][0].op == heads.FUNCTION
            leaf = self.graphs[name].leaf(c, 0) if is_function else None
            inner = None if leaf is None else self.graphs.get(str(leaf.attr("name")))
            if inner is None or inner.fields() is None:
                return ()
            found.append(inner.function.name)
        return tuple(found)

    def candidates(self, name: str, c: int) -> Iterator[tuple[int, Candidate]]:
        """The candidates of a class that are looked at."""
        g = self.graphs[name]
        for i, k in enumerate(g.graph.candidates[c]):
            if k.op not in heads.RUNNING or g.taken.get(c) == i:
                yield i, k

    def _add_values(self, name: str) -> None:
        """Makes the values of a function, and counts the runs of those that it runs."""
        g = self.graphs[name]
        times = self.times[name]
        parameters = {p: i for i, p in enumerate(g.function.params)}
        mine = self.found.parameters[name] = [-1] * len(parameters)
        for c in reached(g.graph.roots, lambda c: (x for _, k in self.candidates(name, c) for x in k.children)):
            annotation = g.graph.annotations[c]
            n = self.number[name, c] = len(self.found.values)
            self.found.values.append(SpreadValue(annotation, self.size(annotation), times, name, c))
            for i, k in self.candidates(name, c):
                leaf = g.leaf(c, i) if not k.children else None
                if leaf is not None and leaf in parameters:
                    mine[parameters[leaf]] = n
                    self.found.values[n].parameter = parameters[leaf]
                called = self.followed(name, k)
                if called:
                    # Branches are taken to be equally likely.
                    steps = self.model.representative(self.model.times(k.site)) / alternatives(k.op, k.site.attrs)
                    for j, target in enumerate(called):
                        self.times[target] = self.times.get(target, 0.0) + times * steps
                        self.sites.setdefault(target, []).append((name, c, k, j))
        for p, i in parameters.items():
            if mine[i] < 0:
                mine[i] = len(self.found.values)
                self.found.values.append(
                    SpreadValue(p.annotation, self.size(p.annotation), times, name, -1, parameter=i)
                )
        fields = g.fields() or []
        self.found.fields[name] = [self.number[name, c] if kind == "class" else mine[c] for kind, c in fields]

    def size(self, annotation: Annotation) -> float:
        return float(self.model.representative(bytes_of(annotation)))

    def _link(self, name: str, is_entry: bool) -> None:
        """Adds the ways to compute the values of a function."""
        for i, n in enumerate(self.found.parameters[name]):
            self._add_parameter(name, i, n, is_entry)
        for (owner, c), n in self.number.items():
            if owner != name or self.found.values[n].parameter >= 0:
                continue
            for i, k in self.candidates(name, c):
                self._add_way(name, i, k, n)

    def _add_parameter(self, name: str, i: int, n: int, is_entry: bool) -> None:
        value = self.found.values[n]
        if is_entry:
            value.ways = [ValueWay(heads.VAR, (), tuple(SplitStrategy((), p) for p in any_part(value.rank)))]
            return
        sources: list[tuple[int, int]] = []  # an operand, and by how many axes it has more than the parameter
        tied: list[int] = []
        stays = False
        for owner, node, k, j in self.sites.get(name, ()):
            runs = runs_of(k.op, k.children, k.site.attrs)
            run = runs[j]
            c, shift = [*((c, 0) for c in (*run.constants, *run.carry)), *((c, 1) for c in run.slices)][i]
            carried = i - len(run.constants) if len(run.constants) <= i < len(run.constants) + len(run.carry) else -1
            stays = stays or bool(shift) or k.op == heads.COND
            if carried >= 0 and run is not runs[-1]:  # a condition
                body = self.found.parameters[self.followed(owner, k)[-1]]
                sources.append((body[len(runs[-1].constants) + carried], 0))
                stays = True
                continue
            operand = self.argument(owner, node, i, c) if k.op == heads.COND else self.number[owner, c]
            if carried >= 0:
                tied += [operand, self.found.fields[name][carried]]
            elif len(self.sites[name]) > 1 and self._depends(owner, c, name):
                tied.append(operand)
            else:
                sources.append((operand, shift))
        if tied:  # what does not come from the function itself is tied too: it is needed in the same placement
            tied += [operand for operand, shift in sources if not shift]
            sources = [s for s in sources if s[1]]
            self.found.tied += [(n, x) for x in dict.fromkeys(tied)]
        if stays:
            self.found.staying.add(n)
        found = [
            SplitStrategy(tuple(p + shift if isinstance(p, int) else p for _, shift in sources), p)
            for p in any_part(value.rank)
        ]
        value.ways = [ValueWay("parameter", tuple(x for x, _ in sources), tuple(found))]

    def argument(self, owner: str, node: int, i: int, c: int) -> int:
        """The value that the `cond` of class `node` hands to its branches at position `i`: class `c`."""
        n = self.found.arguments.get((owner, node, i))
        if n is None:
            source = self.number[owner, c]
            given = self.found.values[source]
            n = self.found.arguments[owner, node, i] = len(self.found.values)
            same = tuple(SplitStrategy((p,), p) for p in any_part(given.rank))
            way = ValueWay("argument", (source,), same)
            self.found.values.append(SpreadValue(given.annotation, given.bytes, given.times, owner, -1, [way]))
        return n

    def _depends(self, owner: str, c: int, name: str) -> bool:
        """Whether a class of `owner` depends on what `name` returns, as it is chosen for one device."""
        found = reached((c,), lambda x: [y for _, k in self.candidates(owner, x) for y in k.children])
        return any(name in self.followed(owner, k) for x in found for _, k in self.candidates(owner, x))

    def _add_way(self, name: str, i: int, k: Candidate, n: int) -> None:
        g, value = self.graphs[name], self.found.values[n]
        if k.op == heads.FUNCTION or (self.followed(name, k) and not isinstance(value.annotation, Tensor)):
            return
        if self.followed(name, k):
            value.ways.append(self._result(name, k, 0, n))
            return
        if k.op == heads.TUPLE_GET:
            index, inner = int(k.site.attrs["index"]), k.children[0]
            for _, t in self.candidates(name, inner):
                if self.followed(name, t):
                    value.ways.append(self._result(name, t, index, n))
                    return
                if hands_on(t):
                    self.found.handed_on.setdefault((name, inner), {})[index] = n
                    source = self.number[name, t.children[index]]
                    value.ways.append(
                        ValueWay("result", (source,), tuple(SplitStrategy((p,), p) for p in any_part(value.rank)))
                    )
                    return
                if t.op == heads.SHARD_MAP:
                    parts_along = self._along(t.site.attrs["out_specs"].value[index])
                    fixed = tuple((SplitStrategy((REPLICATED,), p),) for p in parts_along)
                    value.ways.append(ValueWay(k.op, (self.number[name, inner],), (), NodeCost(), i, along=fixed))
                    return
                if t.op == heads.TUPLE:
                    source = self.number[name, t.children[index]]
                    parts = tuple(SplitStrategy((p,), p) for p in any_part(value.rank))
                    value.ways.append(ValueWay(k.op, (source,), parts))
                    return
        children = tuple(self.number[name, x] for x in k.children if g.graph.candidates[x][0].op != heads.FUNCTION)
        cost = self.price(k, value.annotation)
        if k.op == heads.CONSTANT:
            value.ways.append(ValueWay(k.op, (), tuple(SplitStrategy((), p) for p in any_part(value.rank)), cost, i))
            return
        attrs = tuple(k.site.attrs.items())
        constrained = self._constrained(name, k)
        if constrained:
            value.ways.append(ValueWay(k.op, children[:1], (), along=constrained))
            return
        if k.op == heads.SHARD_MAP:
            value.ways.append(ValueWay(k.op, children, (), cost, i, k.made_by, self._placed(name, k, len(children))))
            return
        # Functions that are run whole are no operands of the strategies.
        found = (
            (SplitStrategy((REPLICATED,) * len(children), REPLICATED),)
            if k.op in heads.RUNNING
            else strategies(k.op, k.site.operands, attrs, value.annotation)
        )
        if all(s.whole for s in found) and children and value.rank and k.op not in (heads.TUPLE, heads.TUPLE_GET):
            what = str(k.site.attrs["name"]) if k.op == heads.CALL_DPS_LIBRARY else k.op
            self.found.opaque[what] = self.found.opaque.get(what, 0) + 1
        pieces = () if k.op in heads.RUNNING else rings(k.op, k.site.operands, attrs, value.annotation)
        value.ways.append(ValueWay(k.op, children, found, cost, i, k.made_by, rings=pieces))

    def price(self, k: Candidate, annotation: Annotation) -> NodeCost:
        """The price of a candidate on a device, at its share of the machine."""
        cost, share = self.model.price(k.site, annotation), self.found.share
        launching = cost.launches * self.model.profile.launch
        return replace(cost, bytes=cost.bytes * share, seconds=launching + (cost.seconds - launching) * share)

    def _keep(self, name: str, what: str, theirs: DeviceMesh, accepted: str = "") -> None:
        """Counts a node that its author has placed over a mesh. OptionError if that is not the mesh here."""
        if theirs != self.mesh:
            raise OptionError(
                f"{name}(): its {what} is over the mesh {theirs}; the mesh here is {self.mesh}\n  accepted: that "
                f"mesh{accepted}"
            )
        self.found.kept[what] = self.found.kept.get(what, 0) + 1

    def _constrained(self, name: str, k: Candidate) -> tuple[tuple[SplitStrategy, ...], ...]:
        """The strategies along each axis of a node that states a placement; none for other nodes."""
        free: Sequence[int] = ()
        if k.op == ANNOTATE_SHARDING:
            self._keep(name, k.op, DeviceMesh.of(k.site.attrs["mesh"]))
            parts = MeshPlacement.parse(k.site.attrs["placement"]).parts
        elif k.op == heads.CALL_DPS_LIBRARY and k.site.attrs.get("name") == _CONSTRAINT:
            given = dict(k.site.attrs["attrs"])
            sharding: Any = getattr(given["sharding"], "value", None)
            free = given.get("unconstrained_dims", ())
            free = tuple(getattr(free, "value", free))
            if not hasattr(sharding, "spec"):
                return ()
            self._keep(name, _CONSTRAINT.removeprefix("jax."), DeviceMesh.of(sharding.mesh))
            parts = self._along(sharding.spec)
        else:
            return ()
        # An axis that is not named may split a dimension about which nothing is said.
        return tuple(tuple(SplitStrategy((q,), q) for q in ((p, *free) if p == REPLICATED else (p,))) for p in parts)

    def _placed(self, name: str, k: Candidate, n: int) -> tuple[tuple[SplitStrategy, ...], ...]:
        """The strategy of a `shard_map` with `n` operands along each axis: that of its specs."""
        anew = ", or free_shard_maps=True, which reads the body on the global view and places it anew"
        self._keep(name, k.op, DeviceMesh.of(k.site.attrs["mesh"].value), anew)
        specs = k.site.attrs["in_specs"].value
        parts = [(REPLICATED,) * len(self.mesh.axes)] * (n - len(specs)) + [self._along(s) for s in specs]
        return tuple((SplitStrategy(tuple(p[axis] for p in parts), REPLICATED),) for axis in range(len(self.mesh.axes)))

    def _along(self, spec: Any) -> tuple[Part, ...]:
        """The part along each axis of the mesh that a `PartitionSpec` states."""
        found: dict[str, Part] = {}
        for d, names in enumerate(tuple(spec)):
            listed = names if isinstance(names, tuple) else (names,)
            found |= {name: d for name in listed if isinstance(name, str)}
        return tuple(found.get(name, REPLICATED) for name in self.mesh.names)

    def _result(self, name: str, k: Candidate, index: int, n: int) -> ValueWay:
        """The way to value `n`, a result of the functions that candidate `k` runs."""
        called = self.followed(name, k)
        runs = runs_of(k.op, k.children, k.site.attrs)
        parts = any_part(self.found.values[n].rank)
        last = self.found.fields[called[-1]][index]
        read: list[tuple[int, Part | None]] = []  # each operand, with its part; None: that of the result
        if k.op == heads.COND:
            read.append((self.number[name, group_arguments(k.op, k.children, k.site.attrs).index], REPLICATED))
            read += [(self.found.fields[f][index], None) for f in called]
        elif k.op == heads.WHILE:
            read.append((self.found.fields[called[0]][0], REPLICATED))
        if k.op != heads.COND and index < len(runs[-1].carry):
            read.append((self.found.parameters[called[-1]][len(runs[-1].constants) + index], None))
        shift = 1 if k.op == heads.SCAN and index >= len(runs[-1].carry) else 0
        if k.op != heads.COND:
            read.append((last, None))
        for slot, (v, _) in enumerate(read):
            self.found.results.setdefault(v, []).append((n, slot))
        found = [
            SplitStrategy(
                tuple((p - shift if isinstance(p, int) else p) if fixed is None else fixed for _, fixed in read), p
            )
            for p in parts
            if not (shift and p == 0)
        ]
        return ValueWay("result", tuple(v for v, _ in read), tuple(found))
