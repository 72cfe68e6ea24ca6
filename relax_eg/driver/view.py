"""`view`: a picture of the e-graph that a search made, or of the neighbourhood of a value in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relax_eg.argument_checks import TEXT, accepts, integer, one_of
from relax_eg.driver.options import KINDS, Execution, Sizes, Target, read_options, weight_names
from relax_eg.driver.program_ends import traced_program
from relax_eg.driver.units import Units
from relax_eg.egraph import Budget, Dump
from relax_eg.errors import OptionError
from relax_eg.extract.graph import Candidate, ExtractionGraph
from relax_eg.frontends.clashes import explain_clashes, specs_by_name
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import CONSTANT, VAR
from relax_eg.ir.module import Module
from relax_eg.ir.origin import NO_ORIGINS
from relax_eg.ops.libraries import EXECUTIONS
from relax_eg.reports.egraph import Box, ENode, Picture
from relax_eg.rules import Numerics, RuleSet
from relax_eg.shapes.relation import Bounds

_MOST_LISTED = 12  # limit: lines or operators that an error lists


@dataclass(frozen=True)
class View:
    """A picture of an e-graph: `to_html(path)`, `to_svg()`, `to_dot()`, or displayed in a notebook.

    - `picture`: the boxes and arrows as data.
    """

    picture: Picture

    def to_html(self, path: str | Path | None = None) -> str:
        """The picture as a self-contained page; also written to `path` if given."""
        from relax_eg.reports.pages import page_of_picture

        return page_of_picture(self.picture, path)

    def to_svg(self) -> str:
        return self.picture.to_svg()

    def to_dot(self) -> str:
        """The picture in Graphviz's language."""
        return self.picture.to_dot()

    def _repr_html_(self) -> str:
        from relax_eg.reports.pages import page_of_picture

        return page_of_picture(self.picture, None, notebook=True)


@dataclass(frozen=True)
class _WatchedGraph:
    """The e-graph of one function.

    - `function`: name of the function.
    - `read`: its tables.
    - `chosen`: the candidate chosen for each class that is computed.
    - `lines`: the source line of each class that the program as written has.
    """

    function: str
    read: Dump
    chosen: Mapping[int, int]
    lines: Mapping[int, str]


@explain_clashes
@accepts(
    **{**KINDS, "execution": one_of(*EXECUTIONS)},
    value=TEXT,
    depth=integer("a depth of 0 or more", 0),
    most=integer("at least one class", 1),
)
def view(
    program: Callable[..., Any] | Module,
    /,
    *args: Any,
    specs: Mapping[str, Any] | None = None,
    value: str = "",
    depth: int = 2,
    most: int = 40,
    rules: RuleSet | None = None,
    target: Target | None = None,
    at: Sizes | Sequence[Sizes] | None = None,
    bounds: Bounds | None = None,
    weights: Sequence[str | int] = (),
    numerics: Numerics = "reassociate",
    budget: Budget | None = None,
    execution: Execution = "whole",
    **kwspecs: Any,
) -> View:
    """Search as `optimize` does, and show the e-graph: e-classes with the e-nodes in each, the chosen ones marked, and
    for each node the rule that made it.

    `value`: a source line ("model.py:31") or an operator ("matmul"): its classes and those up to `depth` steps around
    them are shown; by default those of the chosen program and its alternatives. `most`: classes shown. OptionError if
    nothing has that name.
    """
    traced = traced_program(program, args, specs_by_name(specs, kwspecs), bounds)
    options = read_options(
        traced, rules=rules, target=target, at=at, bounds=bounds, weights=weights, numerics=numerics, budget=budget,
        execution=execution,
    )  # fmt: skip
    seen: list[_WatchedGraph] = []

    def watch(function: str, read: Dump, chosen: Mapping[int, int]) -> None:
        origins = units.module[function].origins if function in {f.name for f in units.module} else NO_ORIGINS
        lines = {c: str(origins[e].lines[0]) for c, every in read.written.items() for e in every if e in origins}
        seen.append(_WatchedGraph(function, read, dict(chosen), lines))

    units = Units(traced.module, options, weight_names(traced, options), watch=watch)
    units.run()
    found = _find_value(seen, value)
    if found is None:
        raise OptionError(_not_found(traced.name, seen, value))
    return View(_picture(traced.name, *found, value, depth, most))


def _find_value(seen: Sequence[_WatchedGraph], value: str) -> tuple[_WatchedGraph, list[int]] | None:
    """The e-graph that has the value, and the value's classes; without a value the largest e-graph and its roots."""
    if not value:
        largest = max(seen, key=lambda s: s.read.graph.node_count, default=None)
        return (largest, list(largest.read.graph.roots)) if largest is not None else None
    for s in sorted(seen, key=lambda s: -s.read.graph.node_count):
        by_line = [c for c, line in s.lines.items() if line == value]
        by_operator = [c for c, row in enumerate(s.read.graph.candidates) if any(x.op == value for x in row)]
        if by_line or by_operator:
            return s, by_line or by_operator
    return None


def _not_found(name: str, seen: Sequence[_WatchedGraph], value: str) -> str:
    if not seen:
        return f"{name}: there is nothing to search, so there is no e-graph"
    lines = sorted({line for s in seen for line in s.lines.values()})
    operators = sorted({x.op for s in seen for row in s.read.graph.candidates for x in row if x.children})
    places = ", ".join(lines[:_MOST_LISTED]) + (", ..." if len(lines) > _MOST_LISTED else "")
    words = ", ".join(operators[:_MOST_LISTED]) + (", ..." if len(operators) > _MOST_LISTED else "")
    accepted = f"a source line ({places or 'none are known'}) or an operator ({words}) is accepted"
    return f"{name}: no value at {value!r}; {accepted}"


def _picture(name: str, s: _WatchedGraph, asked: Sequence[int], value: str, depth: int, most: int) -> Picture:
    graph = s.read.graph
    order = _around(graph, s.chosen, asked, depth) if value else _below(graph, s.chosen)
    shown = order[:most]
    boxes = tuple(_box(s, c, bool(value) and c in asked) for c in shown)
    what = f"around {value}" if value else "the chosen program and its alternatives"
    title = f"{name}: {what}" if s.function == name else f"{name}, function {s.function}: {what}"
    return Picture(title, boxes, len(order) - len(shown))


def _below(graph: ExtractionGraph, chosen: Mapping[int, int]) -> list[int]:
    """The classes of the chosen program, then those that only its alternatives read, from the roots down."""
    first = _reached(graph.roots, lambda c: graph.candidates[c][chosen[c]].children if c in chosen else ())
    rest = _reached(first, lambda c: [k for x in graph.candidates[c] for k in x.children])
    return list(dict.fromkeys([*first, *rest]))


def _around(graph: ExtractionGraph, chosen: Mapping[int, int], asked: Sequence[int], depth: int) -> list[int]:
    """Classes up to `depth` steps from those asked for, the nearest first; at equal distance the chosen ones first."""
    near: dict[int, set[int]] = {}
    for c, row in enumerate(graph.candidates):
        for x in row:
            for k in x.children:
                near.setdefault(c, set()).add(k)
                near.setdefault(k, set()).add(c)
    found: dict[int, None] = dict.fromkeys(asked)
    edge = list(asked)
    for _ in range(depth):
        after = sorted({k for c in edge for k in near.get(c, ())} - found.keys(), key=lambda c: (c not in chosen, c))
        found |= dict.fromkeys(after)
        edge = after
    return list(found)


def _reached(start: Sequence[int], below: Callable[[int], Sequence[int]]) -> list[int]:
    found: dict[int, None] = dict.fromkeys(start)
    queue = list(start)
    for c in queue:
        new = [k for k in dict.fromkeys(below(c)) if k not in found]
        found |= dict.fromkeys(new)
        queue += new
    return list(found)


def _box(s: _WatchedGraph, c: int, asked: bool) -> Box:
    graph = s.read.graph
    nodes = tuple(
        ENode(_label(x), x.made_by, x.children, s.chosen.get(c) == k, not x.made_by)
        for k, x in enumerate(graph.candidates[c])
    )
    a = graph.annotations[c]
    shape = f"({', '.join(map(str, a.shape or ()))}) {a.dtype}" if isinstance(a, Tensor) else str(a)
    return Box(c, "  ".join(t for t in (shape, s.lines.get(c, "")) if t), nodes, asked)


def _label(x: Candidate) -> str:
    """An operator with the attributes that distinguish it from other uses of the operator."""
    if x.op in (VAR, CONSTANT):
        return str(x.site.attrs.get("name", x.op))
    attrs = [f"{k}={v}" for k, v in x.site.attrs.items() if isinstance(v, int | str | tuple)]
    text = f"{x.op}({', '.join(attrs)})" if attrs else x.op
    return text if len(text) <= 40 else f"{text[:37]}..."
