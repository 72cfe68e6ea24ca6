"""Reads an extraction graph out of the engine, and rebuilds expressions from a choice of candidates."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from relax_eg.egraph.engine import TableRow, Value
from relax_eg.egraph.saturate import EGraph
from relax_eg.egraph.vocabulary import Opcode
from relax_eg.errors import OperatorError, RelaxEgError
from relax_eg.extract.graph import Candidate, ExtractionGraph
from relax_eg.ir.annotations import Annotation, Tensor, with_sizes
from relax_eg.ir.expr import CALL, FUNCTION, Expr
from relax_eg.ir.heads import CONTROL, LEAVES
from relax_eg.logs import stage
from relax_eg.ops import Site, call
from relax_eg.ops.partial_annotations import MAX_RANK
from relax_eg.shapes import Dim
from relax_eg.shapes.dim import is_plain
from relax_eg.traversal import grouped, operands_first

_T = TypeVar("_T")
_Key = tuple[str, tuple[int, ...], tuple[Dim, ...]]  # a node: its opcode's symbol, classes of its operands, its sizes


class UnsoundRuleError(RelaxEgError):
    """Two different annotations met in one e-class: some rule equated values of different shape or dtype."""


@dataclass(slots=True)
class Dump:
    """An extraction graph, with the data from which expressions are rebuilt.

    Equal sizes may have different forms, as after `n == 2*m` or where bounds fix a size. The graph uses one form for
    them; parameters keep the form of the signature. Most operators accept either form.

    - `graph`: the extraction graph.
    - `payloads`: what `Candidate.payload` indexes: a leaf, or an opcode with its sizes.
    - `written`: for each class, its expressions that are in the program as written.
    - `forms`: for each node of fixed annotation, the annotations of its operands as inserted; rebuilt operands keep
      these forms.
    - `one_form`: whether an operator rejected mixed forms; expressions are then built in the graph's form.
    """

    graph: ExtractionGraph
    payloads: list[tuple[Opcode, tuple[Dim, ...]] | Expr]
    written: dict[int, list[Expr]]
    forms: Mapping[_Key, tuple[Annotation, ...]] = field(default_factory=dict[_Key, tuple[Annotation, ...]])
    one_form: bool = False

    @stage("decode")
    def decode(self, choice: Sequence[int]) -> list[Expr]:
        """Returns the expressions of the roots where candidate `choice[c]` computes class `c`. The choice must be
        acyclic."""
        return self.decode_with_rules(choice)[0]

    def decode_with_rules(
        self, choice: Sequence[int]
    ) -> tuple[list[Expr], dict[Expr, tuple[str, ...]], dict[Expr, int]]:
        """Returns the expressions of the roots as `decode` does, the rule of each expression that a rule made, and the
        class of each expression."""
        done = self.rebuild_in_one_form(lambda: self._built(choice))
        made = {e: self.graph.candidates[c][choice[c]].made_by for c, e in done.items()}
        classes = {e: c for c, e in done.items()}
        return [done[r] for r in self.graph.roots], {e: (rule,) for e, rule in made.items() if rule}, classes

    def _built(self, choice: Sequence[int]) -> dict[int, Expr]:
        """Builds the expressions of the classes that the roots need, operands first."""
        done: dict[int, Expr] = {}
        rows = self.graph.candidates
        for c in operands_first(self.graph.roots, lambda c: rows[c][choice[c]].children):
            done[c] = self.build(c, choice[c], [done[k] for k in rows[c][choice[c]].children])
        return done

    def build(self, c: int, k: int, operands: Sequence[Expr]) -> Expr:
        """Builds candidate `k` of class `c` over `operands`."""
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

    def rebuild_in_one_form(self, make: Callable[[], _T]) -> _T:
        """Returns what `make` builds. If its first call sets `one_form`, `make` is called again, so that every
        expression has the graph's forms of sizes."""
        before, found = self.one_form, make()
        return found if self.one_form == before else make()

    def without(self, refused: Collection[tuple[int, int]]) -> Dump:
        """The same classes without the `refused` candidates, which rules made, and without those that read a class that
        has no candidate left. O(nodes)."""
        graph = self.graph
        gone = set(refused)
        places = ((k, (c, i)) for c, row in enumerate(graph.candidates) for i, k in enumerate(row))
        readers = grouped((child, place) for k, place in places for child in k.children)
        left = [len(row) for row in graph.candidates]
        todo = list(gone)
        while todo:
            c, _ = todo.pop()
            left[c] -= 1
            for place in () if left[c] else readers.get(c, ()):
                if place not in gone:
                    gone.add(place)
                    todo.append(place)
        kept = [[k for k in range(len(row)) if (c, k) not in gone] for c, row in enumerate(graph.candidates)]
        candidates = [[graph.candidates[c][k] for k in row] for c, row in enumerate(kept)]
        as_written = [row.index(k) if k >= 0 else -1 for row, k in zip(kept, graph.as_written, strict=True)]
        return replace(self, graph=ExtractionGraph(candidates, graph.annotations, graph.roots, as_written))

    def _in_form(self, e: Expr, c: int) -> Expr:
        return _renamed(e, self.graph.annotations[c]) if self.one_form else e


def _renamed(e: Expr, wanted: Annotation) -> Expr:
    """Returns `e` with the sizes of the equal annotation `wanted`, by a `strided_slice` that takes the whole tensor."""
    if e.annotation == wanted or not (isinstance(e.annotation, Tensor) and isinstance(wanted, Tensor)):
        return e
    if wanted.shape is None or e.annotation.ndim != wanted.ndim or e.annotation.dtype != wanted.dtype:
        return e
    zeros, ones = (0,) * len(wanted.shape), (1,) * len(wanted.shape)
    if e.op == "strided_slice" and e.attr("strides") == ones and e.args[0].annotation == wanted:
        return e.args[0]  # `e` has the same sizes in another form, so it is the whole of its operand
    return call("strided_slice", (e,), {"begin": zeros, "end": wanted.shape, "strides": ones})


@stage("dump")
def dump(egraph: EGraph) -> Dump:
    """Returns the e-graph as plain data. O(nodes). Nodes without an annotation cannot be formed and are left out.
    UnsoundRuleError if a class has two annotations."""
    tables = egraph.tables()
    dims = _forms_of_sizes(egraph, tables)
    one = {egraph.words.dim_at(egraph.engine.integer(r.inputs[0])): dims[r.output] for r in tables["D"]}
    annotations = _annotations(egraph, tables, dims, one)
    classes: dict[Value, int] = {}
    graph = ExtractionGraph()

    def number(value: Value) -> int:
        if value not in classes:
            classes[value] = len(classes)
            graph.candidates.append([])
            graph.annotations.append(annotations[value])
        return classes[value]

    payloads: list[tuple[Opcode, tuple[Dim, ...]] | Expr] = []
    functions: dict[int, str] = {}  # class -> name of the module's function in it
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
    written = _mark_as_written(egraph, graph, classes, where, one)
    class_of = {egraph.engine.integer(r.inputs[0]): classes[r.output] for r in tables["node"]}
    forms: dict[_Key, tuple[Annotation, ...]] = {}
    for e in egraph.number:
        if e.op not in LEAVES and egraph.words.opcode(e)[0].annotation is not None:
            key = _key(egraph, e, class_of, one)
            forms.setdefault(key, tuple(a.annotation for a in e.args))
    return Dump(graph, payloads, written, forms)


def _forms_of_sizes(egraph: EGraph, tables: dict[str, list[TableRow]]) -> dict[Value, Dim]:
    """Returns the form used for each size: of the equal ones a constant, else a polynomial, else the form that came
    first. Variables that an equality determines are then substituted, and extremes and quotients left out where facts
    do; apart from that a size keeps its form as a sum or product."""
    found: dict[Value, Dim] = {}
    for r in tables["D"]:
        d = egraph.words.dim_at(egraph.engine.integer(r.inputs[0]))
        # Operators compare canonical forms, and products of other sizes are equal to a polynomial only.
        if r.output not in found or (d.is_const, is_plain(d)) > (found[r.output].is_const, is_plain(found[r.output])):
            found[r.output] = d
    return {value: egraph.simple_form(d) for value, d in found.items()}


def _key(egraph: EGraph, e: Expr, class_of: Mapping[int, int], one: Mapping[Dim, Dim]) -> _Key:
    opcode, dims = egraph.words.opcode(e)
    return opcode.symbol, tuple(class_of[egraph.number[a]] for a in e.args), tuple(one[d] for d in dims)


def _annotations(
    egraph: EGraph, tables: dict[str, list[TableRow]], dims: dict[Value, Dim], one: Mapping[Dim, Dim]
) -> dict[Value, Annotation]:
    terms: dict[Value, Annotation] = {}
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


def _makers(egraph: EGraph, tables: dict[str, list[TableRow]], value: Value) -> list[str]:
    """Returns the names of the rules that made a node of this class."""
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
    """Marks the candidates that the program as written uses, and returns its expressions by class. `one`: the form used
    for each size."""
    written: dict[int, list[Expr]] = {}
    class_of = {egraph.engine.integer(r.inputs[0]): classes[r.output] for r in egraph.tables()["node"]}
    graph.as_written = [-1] * len(graph.candidates)
    # Operands come first. Of several written nodes in one class the first is marked, so no cycle can arise.
    for i, e in enumerate(egraph.written):
        c, k = class_of[i], 0
        written.setdefault(c, []).append(e)
        if e.args or e.op not in LEAVES:
            _, k = where[_key(egraph, e, class_of, one)]
            if graph.candidates[c][k].made_by:  # a rule made this written node too
                graph.candidates[c][k] = replace(graph.candidates[c][k], made_by="")
        if graph.as_written[c] < 0:
            graph.as_written[c] = k
    graph.roots = tuple(class_of[egraph.number[r]] for r in egraph.roots)
    return written
