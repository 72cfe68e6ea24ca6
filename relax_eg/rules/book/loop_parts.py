"""Scans that read parts of their slices: the parts are slices of their own.

XLA for CPUs takes a step's slice where it is read. A kernel that reads it at several places is not vectorised
(`extract.fusions.cpu`), as where the gates of a recurrent cell are parts of one projection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from relax_eg.ir.annotations import Tensor
from relax_eg.ir.calls import function_ref, substitute_exprs
from relax_eg.ir.control import group_arguments, scan
from relax_eg.ir.expr import Expr, fresh_name, var
from relax_eg.ir.module import Function
from relax_eg.ir.partition import missing_sizes, remaining_origins, replace_names
from relax_eg.ops import api as op
from relax_eg.ops import pattern_kind, site_of
from relax_eg.ops.record import TABLE, call
from relax_eg.rules.pieces.fission import readers_of
from relax_eg.rules.schemas import ProgramQueries
from relax_eg.tir import PatternKind

_Parts = dict[tuple[Expr, Expr], Expr]  # by a slice and a part of it, as an expression, the parameter for the part


def steps_in_parts(e: Expr, queries: ProgramQueries) -> Expr | None:
    """a scan that reads several parts of a slice has a slice for each part

    The scan `e` with a slice for each part that its body reads of a slice, where the body reads several parts of
    one, and nothing else of it; None if it does not. Of the body in its best form, else as written."""
    name = str(group_arguments(e.op, e.args, dict(e.attrs)).functions[0].attr("name"))
    best, written = queries.best(name), queries.as_written(name)
    bodies = [f for f in dict.fromkeys((best, written)) if f is not None]
    return next((made for f in bodies if (made := in_parts(e, f, queries)) is not None), None)


def in_parts(e: Expr, body: Function, queries: ProgramQueries) -> Expr | None:
    """The scan `e`, whose body is `body`, as by `steps_in_parts`."""
    p = group_arguments(e.op, e.args, dict(e.attrs))
    n = len(p.constants) + len(p.carry)
    steps = dict(zip(body.params[n:], p.xs, strict=True))
    names, parts = _cut(
        body, [s for s, x in steps.items() if isinstance(s.annotation, Tensor) and x.shape[1:] == s.shape]
    )
    if not parts:
        return None
    blocks, result = replace_names(body, names)
    left = {s: x for s, x in steps.items() if all(s != t for t, _ in parts)}
    params, origins = (*body.params[:n], *left, *parts.values()), remaining_origins(body, names)
    made = replace(body, params=params, blocks=blocks, result=result, origins=origins)
    if missing_sizes(made):
        return None
    xs = list(left.values())
    for s, part in parts:
        begin, end, by = (part.attr(name) for name in ("begin", "end", "strides"))
        xs.append(op.strided_slice(steps[s], (0, *begin), (steps[s].shape[0], *end), (1, *by)))
    more = {name: e.attr(name) for name in ("length", "reverse", "unroll")}
    return scan(function_ref(queries.add(made, "parts")), p.constants, p.carry, xs, **more)


def _cut(function: Function, steps: Sequence[Expr]) -> tuple[Mapping[Expr, Expr], _Parts]:
    """What takes the place of parts of values in a body, and the parameters for parts of its slices `steps`.

    A part of a value that is computed element by element, and of which only parts are read, is computed of parts."""
    expressions = list(function.expressions())
    readers = readers_of(expressions, ())
    kept = {function.result, *function.values}
    # The values of which only parts are read.
    cut: set[Expr] = set()
    for e in reversed(expressions):
        read = readers.get(e, ())
        if read and e not in kept and all(r.op == "strided_slice" or (r in cut and _same(r, e)) for r in read):
            cut.add(e)
    several = {s for s in steps if s in cut}
    parts: _Parts = {}
    taken = {str(p.attr("name")) for p in function.params}
    known: dict[tuple[Expr, Expr], Expr] = {}

    def part_of(e: Expr, of: Expr) -> Expr:
        """The part of the value `e` that the slice `of` takes of a value of its shape, or of the shape to which it is
        broadcast."""
        after = len(of.shape) - e.ndim
        whole = of.args[0].shape[after:]
        begin, end, by = (of.attr(name)[after:] for name in ("begin", "end", "strides"))
        at = [(b, x, s) if d == n else (0, 1, 1) for b, x, s, d, n in zip(begin, end, by, e.shape, whole, strict=True)]
        if e in cut and _is_pointwise(e):
            if (e, of) not in known:
                known[e, of] = call(e.op, [part_of(a, of) for a in e.args], dict(e.attrs))
            return known[e, of]
        is_whole = all(a == (0, d, 1) for a, d in zip(at, e.shape, strict=True))
        part = e if is_whole and e not in several else op.strided_slice(e, *zip(*at, strict=True))
        if e not in several:
            return part
        if (e, part) not in parts:
            name = fresh_name(f"{e.attr('name')}_part", taken)
            parts[e, part] = var(name, part.annotation)
        return parts[e, part]

    names: dict[Expr, Expr] = {}
    for e in expressions:
        if e.op == "strided_slice" and e.args[0] in cut:
            (names[e],) = substitute_exprs([part_of(e.args[0], e)], names)
    counts = {s: sum(t is s for t, _ in parts) for s in several}
    fewer = [s for s, n in counts.items() if n > 1]
    return (names, parts) if len(fewer) == len(counts) else _cut(function, fewer)


def _same(reader: Expr, e: Expr) -> bool:
    """Whether each element of `reader` reads the element of `e` at its own place."""
    return _is_pointwise(reader) and reader.shape == e.shape


def _is_pointwise(e: Expr) -> bool:
    return e.op in TABLE and pattern_kind(site_of(e)) == PatternKind.ELEMENT_WISE
