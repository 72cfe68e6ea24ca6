"""Outlining: repeated subgraphs, equal except for their inputs, become calls of one function.

The layers of a transformer are one graph repeated with other weights. Written operands first, such a program is
periodic. The repetitions become calls of a function that is optimized once. The last repetition stays in place, so that
it is optimized together with the code after it; code that does not repeat also stays.

The period is found by comparing the node sequence with itself, shifted: O(nodes) for each of a few periods. A block
starts where the fewest values cross; among such places, the one with the most repetitions wins. The first layer may be
interleaved with nodes that only it has. Its repetition is found by matching the graph backwards from the value that the
second layer reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from relax_eg.ir.annotations import Shape
from relax_eg.ir.calls import call_function, function_ref
from relax_eg.ir.expr import CONSTANT, FUNCTION, Expr, node, postorder, shape_value, tuple_, tuple_get, var
from relax_eg.ir.module import Binding, Block, Function
from relax_eg.ir.partition import missing_sizes
from relax_eg.logs import stage
from relax_eg.shapes import Dim
from relax_eg.traversal import operands_first

SMALLEST_PROGRAM = 256  # chosen: nodes; smaller programs are optimized as a whole
SMALLEST_BLOCK = 16  # chosen: nodes
_PERIODS = 8  # limit: candidate periods examined
_WAISTS = 4  # limit: candidate cut positions of a block
_ROUNDS = 8  # limit: kinds of repeated block per program
_LEAST_SAVED = 48  # chosen: nodes


Naming = Callable[[str], str]
# Whether a node stays in place: what is chosen of it is chosen with its neighbours, in other repetitions too.
Stays = Callable[[Expr], bool]


def _never(e: Expr) -> bool:
    return False


@stage("share")
def outline(function: Function, fresh: Naming, stays: Stays = _never) -> tuple[Function, list[Function]]:
    """Returns `function` with its repeated blocks replaced by calls, and the functions called.

    - `fresh(stem)` returns an unused function name.
    - `stays(e)`: whether a node is part of no block.
    """
    made: list[Function] = []
    blocks: list[Block] = []
    for block in function.blocks:
        for _ in range(_ROUNDS if block.dataflow else 0):
            found = _outline_block(block, fresh, function, stays)
            if found is None:
                break
            new, called = found
            block = Block(tuple(Binding(b.var, new[b.value]) for b in block.bindings))
            origins = {n: function.origins[e] for e, n in new.items() if e in function.origins}
            function = replace(function, origins=MappingProxyType({**function.origins, **origins}))
            made.append(called)
        blocks.append(block)
    if not made:
        return function, []
    return replace(function, blocks=tuple(blocks)), made


def _outline_block(
    block: Block, fresh: Naming, function: Function, stays: Stays
) -> tuple[dict[Expr, Expr], Function] | None:
    """Returns the replacement of each value of `block`, and the function they call; None if nothing repeats."""
    values = block.values
    order = [e for e in postorder(values) if e.args]
    if len(order) < SMALLEST_PROGRAM:
        return None
    whole = max((_extend_backwards(_same_wiring_run(r), order) for r in _repeats(order, stays)), key=len, default=[])
    rows = _same_wiring_run(whole)[:-1]
    if len(rows) < 2 or any(stays(e) for row in rows for e in row):
        return None
    outputs = _outputs(rows, order, values)
    called, operands = _function(rows, outputs, fresh("block"), function)
    done = _replace_with_calls(block, rows, outputs, called, operands)
    return None if done is None else (done, called)


def _repeats(order: Sequence[Expr], stays: Stays) -> list[list[list[Expr]]]:
    """Finds the repetition that saves the most nodes and returns one list of rows for each of its best cut positions.

    `rows[r][k]` is node k of repetition r, operands first. The nodes of a column have equal operators, attributes and
    annotations.
    """
    kinds: dict[Any, int] = {}
    kind_of = [(_kind(e), i if stays(e) else -1) for i, e in enumerate(order)]
    tokens = np.array([kinds.setdefault(k, len(kinds)) for k in kind_of])
    best: tuple[int, int, int, int] | None = None  # saved, period, start, length
    for period in _periods(tokens):
        for start, length in _runs(tokens[:-period] == tokens[period:]):
            repetitions = (length + period) // period
            saved = (repetitions - 2) * period
            if repetitions >= 3 and saved >= _LEAST_SAVED and (best is None or saved > best[0]):
                best = (saved, period, start, length + period)
    if best is None:
        return []
    _, period, start, length = best
    return [
        [list(order[i : i + period]) for i in range(waist, start + length - period + 1, period)]
        for waist in _waists(order, period, start)
    ]


def _kind(e: Expr) -> Any:
    # `repr` separates types: attribute 1 is not attribute True.
    return (e.op, e.attrs, repr(e.attrs), e.annotation, tuple(a.annotation for a in e.args))


def _periods(tokens: np.ndarray[Any, Any]) -> list[int]:
    """Returns candidate periods: frequent distances between equal nodes, and the median distances of rare kinds.

    A distance below `SMALLEST_BLOCK` is multiplied until it reaches it.
    """
    votes: Counter[int] = Counter()
    last: dict[int, int] = {}
    for i, t in enumerate(tokens.tolist()):
        if t in last:
            votes[i - last[t]] += 1
        last[t] = i
    found: dict[int, None] = {}
    for distance, _ in votes.most_common(_PERIODS):
        found[distance * -(-SMALLEST_BLOCK // distance)] = None
    # Kinds that occur several times in a block vote for shorter distances; kinds that occur once per block give the
    # period.
    counts = Counter(tokens.tolist())
    for n, _ in Counter(counts.values()).most_common(_PERIODS):
        rare = [t for t, c in counts.items() if c == n][:1] if n >= 3 else []
        for t in rare:
            places = np.flatnonzero(tokens == t)
            period = int(np.median(np.diff(places)))
            found[period * -(-SMALLEST_BLOCK // period)] = None
    return [p for p in found if p <= len(tokens) // 3]


def _runs(equal: np.ndarray[Any, Any]) -> Iterator[tuple[int, int]]:
    """Yields start and length of every run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], equal.astype(np.int8), [0]))))
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield start, end - start


def _waists(order: Sequence[Expr], period: int, start: int) -> list[int]:
    """Returns the first `_WAISTS` cut positions, within a period of `start`, that the fewest values cross."""
    place = {e: i for i, e in enumerate(order)}
    last_use = list(range(len(order)))
    for i, e in enumerate(order):
        for a in e.args:
            if a in place:
                last_use[place[a]] = i
    crossing = np.zeros(len(order) + 1, np.int64)
    for i, last in enumerate(last_use):
        crossing[i + 1] += 1
        crossing[last + 1] -= 1
    crossing = np.cumsum(crossing)  # crossing[b]: number of values computed before position b and read at b or later
    costs = crossing[start + period : start + 2 * period]
    return [start + s for s in np.flatnonzero(costs == costs.min()).tolist()[:_WAISTS]]


def _extend_backwards(rows: list[list[Expr]], order: Sequence[Expr]) -> list[list[Expr]]:
    """Returns the repetitions, preceded by earlier ones whose nodes are interleaved with other nodes."""
    while True:
        row = _preceding_row(rows, order)
        if row is None:
            return rows
        rows = [row, *rows]


def _preceding_row(rows: list[list[Expr]], order: Sequence[Expr]) -> list[Expr] | None:
    """Returns the repetition that feeds the first row as the first row feeds the second; None if there is none."""
    if len(rows) < 2:
        return None
    first, second = rows[0], rows[1]
    index = {e: k for k, e in enumerate(first)}
    for k, e in enumerate(second):
        for j, a in enumerate(e.args):
            if a in index and first[k].args[j].args:
                row = _match_template(first, index, index[a], first[k].args[j])
                if row is not None and not set(row) & set(first) and _is_closed(row, order):
                    return row
    return None


def _match_template(template: list[Expr], index: dict[Expr, int], root: int, at: Expr) -> list[Expr] | None:
    """Returns the nodes below `at` that correspond to the template's nodes below its node `root`; None unless each
    template node has one."""
    found: dict[int, Expr] = {root: at}
    work = [root]
    while work:
        k = work.pop()
        old, new = template[k], found[k]
        if _kind(old) != _kind(new):
            return None
        for a, b in zip(old.args, new.args, strict=True):
            m = index.get(a)
            if m is None:
                continue
            if m not in found:
                found[m] = b
                work.append(m)
            elif found[m] is not b:
                return None
    return [found[k] for k in range(len(template))] if len(found) == len(template) else None


def _is_closed(row: list[Expr], order: Sequence[Expr]) -> bool:
    """Whether no operand of `row` from outside the row depends on a node of the row."""
    members = set(row)
    follows: set[Expr] = set()
    inside = False
    for e in order:
        inside = inside or e in members
        if not inside:
            continue
        if e in members:
            if any(a in follows for a in e.args):
                return False
        elif any(a in members or a in follows for a in e.args):
            follows.add(e)
        if e is row[-1]:
            break
    return True


def _wiring(row: list[Expr]) -> tuple[int, ...]:
    """Returns, for each operand of each node, its index in the row, or -1 for an operand from outside."""
    place = {e: k for k, e in enumerate(row)}
    return tuple(place.get(a, -1) for e in row for a in e.args)


def _same_wiring_run(rows: list[list[Expr]]) -> list[list[Expr]]:
    """Returns the longest sequence of consecutive repetitions with the same wiring."""
    wiring = list(map(_wiring, rows))
    best: list[list[Expr]] = []
    start = 0
    for r in range(1, len(rows) + 1):
        if r == len(rows) or wiring[r] != wiring[start]:
            if r - start > len(best):
                best = rows[start:r]
            start = r
    return best


def _outputs(rows: list[list[Expr]], order: Sequence[Expr], values: Sequence[Expr]) -> list[int]:
    """Returns the indices of the nodes that are read outside their repetition, in at least one repetition."""
    owner = {e: (r, k) for r, row in enumerate(rows) for k, e in enumerate(row)}
    found = {owner[v][1] for v in values if v in owner}
    for e in order:
        mine = owner.get(e, (-1, 0))[0]
        found.update(owner[a][1] for a in e.args if a in owner and owner[a][0] != mine)
    return sorted(found)


def _function(
    rows: list[list[Expr]], outputs: Sequence[int], name: str, caller: Function
) -> tuple[Function, list[list[Expr]]]:
    """Returns the function of a repetition, and the operands of its call for each repetition.

    Each distinct tuple of outside operands, one per repetition, becomes a parameter. A constant or function that is the
    same in all repetitions stays inside the function.
    """
    slots: dict[tuple[Expr, ...], Expr] = {}
    place = {e: k for k, e in enumerate(rows[0])}
    new: list[Expr] = []
    for k, e in enumerate(rows[0]):
        args: list[Expr] = []
        for j, a in enumerate(e.args):
            given = tuple(row[k].args[j] for row in rows)
            if a in place:
                args.append(new[place[a]])
            elif a.op in (CONSTANT, FUNCTION) and all(g is a for g in given):
                args.append(a)
            else:
                args.append(slots.setdefault(given, var(f"x{len(slots)}", a.annotation)))
        new.append(node(e.op, args, e.attrs, e.annotation))
    origins = {n: caller.origins[e] for e, n in zip(rows[0], new, strict=True) if e in caller.origins}
    bindings = tuple(Binding(var(f"gv{i or ''}", new[k].annotation), new[k]) for i, k in enumerate(outputs))
    result = bindings[0].var if len(bindings) == 1 else tuple_(b.var for b in bindings)
    function = Function(name, tuple(slots.values()), (Block(bindings),), result, MappingProxyType(origins))
    operands = [[given[r] for given in slots] for r in range(len(rows))]
    sizes = tuple(Dim.var(v) for v in sorted(missing_sizes(function)))
    if sizes:
        function = replace(function, params=(var("sizes", Shape(sizes)), *function.params))
        operands = [[shape_value(sizes), *row] for row in operands]
    return function, operands


def _replace_with_calls(
    block: Block, rows: list[list[Expr]], outputs: Sequence[int], called: Function, operands: list[list[Expr]]
) -> dict[Expr, Expr] | None:
    """Returns the replacement of each value of `block`, and of every node below, when calls compute the repetitions'
    outputs.

    None if the annotation of a call's result differs from that of the value it replaces.
    """
    where = {row[k]: (r, i) for r, row in enumerate(rows) for i, k in enumerate(outputs)}
    ref = function_ref(called)
    done: dict[Expr, Expr] = {}

    def reads(e: Expr) -> Sequence[Expr]:
        return operands[where[e][0]] if e in where else e.args

    for e in operands_first((b.value for b in block.bindings), reads):
        args = [done[a] for a in reads(e)]
        if e not in where:
            done[e] = node(e.op, args, e.attrs, e.annotation)
            continue
        value = call_function(ref, args)
        done[e] = tuple_get(value, where[e][1]) if len(outputs) > 1 else value
        if done[e].annotation != e.annotation:
            return None
    return done
