"""From the engine to an extraction graph, and from a choice of candidates back to expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from relax_eg.debug import stage
from relax_eg.egraph.engine import Row, Value
from relax_eg.egraph.saturate import EGraph
from relax_eg.egraph.vocabulary import MAX_RANK, Opcode
from relax_eg.errors import OperatorError, RelaxEgError
from relax_eg.extract.graph import Candidate, ExtractionGraph
from relax_eg.ir.annotations import Annotation, Tensor, with_sizes
from relax_eg.ir.expr import CALL, CONTROL, FUNCTION, Expr
from relax_eg.ops import Site, call
from relax_eg.shapes import Dim

_T = TypeVar("_T")
_Key = tuple[str, tuple[int, ...], tuple[Dim, ...]]  # a node: its opcode's symbol, classes of operands, sizes


class UnsoundRuleError(RelaxEgError):
    """Two annotations that differ met in one e-class: some rule equated values of different shape or dtype."""


@dataclass(slots=True)
class Dump:
    """An extraction graph and how to rebuild expressions from it. `written`: the expressions of the program as written
    that each class holds.

    Where sizes of different form are equal, as after `n == 2*m` or bounds that fix a size, the graph says them in one
    form, and parameters in that of the signature. Most operators take either; `one_form`: some did not, so parameters
    get the graph's form first. `forms`: what nodes of fixed annotation were given as they came; they keep these forms.
    """

    graph: ExtractionGraph
    payloads: list[tuple[Opcode, tuple[Dim, ...]] | Expr]
    written: dict[int, list[Expr]]
    forms: Mapping[_Key, tuple[Annotation, ...]] = field(default_factory=dict[_Key, tuple[Annotation, ...]])
    one_form: bool = False

    @stage("decode")
    def decode(self, choice: Sequence[int]) -> list[Expr]:
        """The roots' expressions when class `c` is computed by candidate `choice[c]`. The choice must be acyclic."""
        return self.decode_with_rules(choice)[0]

    def decode_with_rules(self, choice: Sequence[int]) -> tuple[list[Expr], dict[Expr, str], dict[Expr, int]]:
        """As `decode`; of the expressions that a rule made, which; and the class of each expression."""
        done = self.settled(lambda: self._built(choice))
        made = {e: self.graph.candidates[c][choice[c]].made_by for c, e in done.items()}
        classes = {e: c for c, e in done.items()}
        return [done[r] for r in self.graph.roots], {e: rule for e, rule in made.items() if rule}, classes

    def _built(self, choice: Sequence[int]) -> dict[int, Expr]:
        """The expressions of the classes that the roots need, operands first."""
        done: dict[int, Expr] = {}
        graph = self.graph
        for root in graph.roots:
            stack = [root]
            while stack:
                c = stack[-1]
                if c in done:
                    stack.pop()
                    continue
                candidate = graph.candidates[c][choice[c]]
                missing = [k for k in candidate.children if k not in done]
                if missing:
                    stack.extend(reversed(missing))
                    continue
                done[c] = self.build(c, choice[c], [done[k] for k in candidate.children])
                stack.pop()
        return done

    def build(self, c: int, k: int, operands: Sequence[Expr]) -> Expr:
        """Candidate `k` of class `c` over these operands."""
        candidate = self.graph.candidates[c][k]
        payload = self.payloads[candidate.payload]
        if isinstance(payload, Expr):
            return self._in_form(payload, c)
        opcode, dims = payload
        forms = self.forms.get((opcode.symbol, candidate.children, dims))
        if opcode.annotation is not None and forms is not None:
            operands = [_renamed(e, a) for e, a in zip(operands, forms, strict=True)]
        try:
            return self._in_form(opcode.build(tuple(operands), dims), c)
        except OperatorError:
            named = [_renamed(e, self.graph.annotations[x]) for e, x in zip(operands, candidate.children, strict=True)]
            if named == list(operands):
                raise
            self.one_form = True
            return self._in_form(opcode.build(tuple(named), dims), c)

    def settled(self, make: Callable[[], _T]) -> _T:
        """What `make` builds: again where it turned out on the way that parameters need the graph's forms of sizes."""
        before, found = self.one_form, make()
        return found if self.one_form == before else make()

    def _in_form(self, e: Expr, c: int) -> Expr:
        return _renamed(e, self.graph.annotations[c]) if self.one_form else e


def _renamed(e: Expr, wanted: Annotation) -> Expr:
    """`e` with sizes in the form `wanted`, which equal its own: by a slice that leaves nothing out."""
    if e.annotation == wanted or not (isinstance(e.annotation, Tensor) and isinstance(wanted, Tensor)):
        return e
    if wanted.shape is None or e.annotation.ndim != wanted.ndim or e.annotation.dtype != wanted.dtype:
        return e
    zeros, ones = (0,) * len(wanted.shape), (1,) * len(wanted.shape)
    return call("strided_slice", (e,), {"begin": zeros, "end": wanted.shape, "strides": ones})


@stage("dump")
def dump(egraph: EGraph) -> Dump:
    """Read the e-graph out. O(nodes). Nodes without an annotation cannot be formed and are left out."""
    tables = egraph.tables()
    dims = _forms_of_sizes(egraph, tables)
    annotations = _annotations(egraph, tables, dims)
    classes: dict[Value, int] = {}
    graph = ExtractionGraph()

    def number(value: Value) -> int:
        if value not in classes:
            classes[value] = len(classes)
            graph.candidates.append([])
            graph.annotations.append(annotations[value])
        return classes[value]

    payloads: list[tuple[Opcode, tuple[Dim, ...]] | Expr] = []
    functions: dict[int, str] = {}  # classes of functions of the module
    for r in tables["Leaf"]:
        if r.output in annotations:
            e = egraph.words.leaf_list[egraph.engine.integer(r.inputs[0])]
            graph.candidates[number(r.output)].append(Candidate(e.op, Site(e.op, (), dict(e.attrs)), (), len(payloads)))
            if e.op == FUNCTION:
                functions[number(r.output)] = e.attr("name")
            payloads.append(e)
    where: dict[_Key, tuple[int, int]] = {}
    for symbol, o in egraph.words.by_symbol.items():
        made = {r.inputs: egraph.engine.text(r.output) for r in tables.get(f"made_{symbol}", ())}
        for r in tables.get(symbol, ()):
            args, sizes = r.inputs[: o.arity], tuple(dims[v] for v in r.inputs[o.arity :])
            if r.output not in annotations or any(a not in annotations for a in args):
                continue
            children = tuple(map(number, args))
            c = number(r.output)
            attrs = o.attributes(sizes)
            if functions and (o.op in CONTROL or (o.op == CALL and children[0] in functions)):
                attrs["functions"] = tuple(functions[k] for k in children if k in functions)
            site = Site(o.op, tuple(graph.annotations[k] for k in children), attrs)
            where[symbol, children, sizes] = (c, len(graph.candidates[c]))
            graph.candidates[c].append(Candidate(o.op, site, children, len(payloads), made.get(r.inputs, "")))
            payloads.append((o, sizes))
    one = {egraph.words.dim_at(egraph.engine.integer(r.inputs[0])): dims[r.output] for r in tables["D"]}
    written = _mark_as_written(egraph, graph, classes, where, one)
    class_of = {egraph.engine.integer(r.inputs[0]): classes[r.output] for r in tables["node"]}
    forms: dict[_Key, tuple[Annotation, ...]] = {}
    for e in egraph.number:
        if not egraph.words.is_leaf(e) and egraph.words.opcode(e)[0].annotation is not None:
            key = _key(egraph, e, class_of, one)
            forms.setdefault(key, tuple(a.annotation for a in e.args))
    return Dump(graph, payloads, written, forms)


def _forms_of_sizes(egraph: EGraph, tables: dict[str, list[Row]]) -> dict[Value, Dim]:
    """The form that stands for each size: of equal ones a number, or else the one that was there first, in which every
    variable that an equality gives is replaced. So a size stays the sum or product of what it was made of."""
    found: dict[Value, Dim] = {}
    for r in tables["D"]:
        d = egraph.words.dim_at(egraph.engine.integer(r.inputs[0]))
        if r.output not in found or (d.is_const and not found[r.output].is_const):
            found[r.output] = d
    if not egraph.solved:
        return found
    return {value: d.substitute(egraph.solved) for value, d in found.items()}


def _key(egraph: EGraph, e: Expr, class_of: Mapping[int, int], one: Mapping[Dim, Dim]) -> _Key:
    opcode, dims = egraph.words.opcode(e)
    return opcode.symbol, tuple(class_of[egraph.number[a]] for a in e.args), tuple(one[d] for d in dims)


def _annotations(egraph: EGraph, tables: dict[str, list[Row]], dims: dict[Value, Dim]) -> dict[Value, Annotation]:
    terms: dict[Value, Annotation] = {}
    one = {egraph.words.dim_at(egraph.engine.integer(r.inputs[0])): dims[r.output] for r in tables["D"]}
    for r in tables["Other"]:
        terms[r.output] = with_sizes(egraph.words.other_at(egraph.engine.integer(r.inputs[0])), one)
    for rank in range(MAX_RANK + 1):
        for r in tables.get(f"Tensor{rank}_", ()):
            terms[r.output] = Tensor(tuple(dims[v] for v in r.inputs[1:]), egraph.engine.text(r.inputs[0]))
    found: dict[Value, Annotation] = {}
    for r in tables["has_ann"]:
        value, annotation = r.inputs[0], terms[r.inputs[1]]
        if found.setdefault(value, annotation) != annotation:
            culprits = _makers(egraph, tables, value) or sorted(egraph.matches)
            raise UnsoundRuleError(
                f"a rule equated values annotated {found[value]} and {annotation}; one of these rules is unsound: "
                f"{', '.join(culprits) or 'none fired'}"
            )
    return found


def _makers(egraph: EGraph, tables: dict[str, list[Row]], value: Value) -> list[str]:
    """The rules that made a node of this class."""
    made = {
        egraph.engine.text(how.output)
        for symbol in egraph.words.by_symbol
        for r in tables.get(symbol, ())
        if r.output == value
        for how in tables.get(f"made_{symbol}", ())
        if how.inputs == r.inputs
    }
    return sorted(made - {""})


def _mark_as_written(
    egraph: EGraph,
    graph: ExtractionGraph,
    classes: dict[Value, int],
    where: dict[_Key, tuple[int, int]],
    one: Mapping[Dim, Dim],
) -> dict[int, list[Expr]]:
    """Marks what the program as written uses; gives its expressions by class. `one`: for every size the one of its
    equals that stands for it."""
    written: dict[int, list[Expr]] = {}
    class_of = {egraph.engine.integer(r.inputs[0]): classes[r.output] for r in egraph.tables()["node"]}
    graph.as_written = [-1] * len(graph.candidates)
    # Operands come first, so of two written nodes that turned out equal the earlier stays and no cycle can arise.
    for i, e in enumerate(egraph.written):
        c, k = class_of[i], 0
        written.setdefault(c, []).append(e)
        if e.args or not egraph.words.is_leaf(e):
            _, k = where[_key(egraph, e, class_of, one)]
            if graph.candidates[c][k].made_by:  # by a rule too
                graph.candidates[c][k] = replace(graph.candidates[c][k], made_by="")
        if graph.as_written[c] < 0:
            graph.as_written[c] = k
    graph.roots = tuple(class_of[egraph.number[r]] for r in egraph.roots)
    return written
