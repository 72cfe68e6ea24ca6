"""Rules that save memory by computing in pieces: of a large intermediate value only one piece exists at a time.

Examples are the scores of an attention, the hidden layer of a perceptron, and the products that a sum adds. If the
equations show that rows of the result follow from rows of the intermediate value, the result is computed for some rows
at a time and joined. A loop takes longer than one kernel, except that on CPUs memory for a large array is obtained page
by page, at every call. So the rules are tried for every value if `optimize` has a `memory_limit`; without one they are
tried for nodes whose result is smaller than an operand of at least `ProgramQueries.large_bytes` bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from relax_eg.ir.annotations import Tensor, dims_of
from relax_eg.ir.calls import function_ref
from relax_eg.ir.control import scan
from relax_eg.ir.expr import CONSTANT, VAR, Expr, tuple_, tuple_get, var
from relax_eg.ir.heads import CORE
from relax_eg.ir.module import pure_function
from relax_eg.ir.partition import missing_sizes
from relax_eg.ops import api as op
from relax_eg.ops import bytes_of
from relax_eg.ops.fused import program_at
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schema_trials import batches, rows
from relax_eg.rules.schemas import MEMORY, ProgramQueries, Schema
from relax_eg.rules.slicing import applied_again, with_sizes
from relax_eg.shapes import Dim, ceildiv
from relax_eg.tir.slicing import Axes, sliced_input_axes

ANCHORS = ("matmul", "linear", "conv", "sum", "mean", "max", "min", "add", "subtract", "multiply", "divide")
PIECES, _MOST_PIECES = 8, 64  # chosen: pieces of an axis: 8 under a memory limit, without one between both numbers
_ROOM = 2  # chosen: approximate number of arrays of the size of a piece that are live in a step
_LEAST = 2  # chosen: least elements of the axis in a piece under a memory limit, at the sizes of interest
_MOST = 48  # limit: operators computed in pieces together
_SHAPED = ("broadcast_to", "reshape", "full")  # operators whose attribute `shape` is the result's


Region = dict[Expr, tuple[int, Axes]]  # readers first: the cut axis of each node, and the cut axes of its operands


def _in_pieces(e: Expr, queries: ProgramQueries) -> Expr | None:
    found = _largest_part(e, queries)
    if found is None:
        return None
    axis, largest, region = found
    about = queries.largest_value if queries.large_bytes else queries.extent
    size = e.shape[axis]
    count = PIECES  # under a memory limit, a piece needs an eighth of the memory at any size
    while queries.large_bytes and count < _MOST_PIECES and largest * _ROOM > count * queries.large_bytes:
        count *= 2
    if queries.large_bytes and size.is_const:  # avoids padding, where less than twice as many pieces divide the axis
        count = next((n for n in range(count, 2 * count) if size.value % n == 0), count)
    if about(size) <= count:
        return _in_a_loop(e, axis, region, Dim.of(1), size, queries)
    return _in_a_loop(e, axis, region, ceildiv(size, count), Dim.of(count), queries)


def _one_by_one(e: Expr, queries: ProgramQueries) -> Expr | None:
    """Proposes pieces of one index each along an axis that `_in_pieces` does not cut, such as the matrices of a batch.
    They may be larger than the pieces of `_in_pieces`, and better at any size."""
    found = _largest_part(e, queries) if queries.large_bytes else None
    if found is None:
        return None
    for axis, d in enumerate(e.shape):
        if 2 <= queries.largest_value(d) <= _MOST_PIECES:
            if axis == found[0]:
                return None
            region = _region(e, axis, queries)
            if _most_inside(e, region, queries.largest_value) >= found[1]:
                return _in_a_loop(e, axis, region, Dim.of(1), d, queries)
    return None


def _largest_part(e: Expr, queries: ProgramQueries) -> tuple[int, int, Region] | None:
    """Returns the best axis to cut, the bytes of the largest value that is then computed in pieces, and the region."""
    if not isinstance(e.annotation, Tensor) or e.annotation.shape is None:
        return None
    if queries.large_bytes and not _reads_large(e, queries):
        return None
    about = queries.largest_value if queries.large_bytes else queries.extent
    found: list[tuple[bool, int, int, int, Region]] = []
    for axis, d in enumerate(e.annotation.shape):
        extent = about(d)
        if extent < (2 if queries.large_bytes else _LEAST * PIECES):
            continue
        region = _region(e, axis, queries)
        largest = _most_inside(e, region, about)
        small_enough = largest * _ROOM <= extent * queries.large_bytes or not queries.large_bytes
        if largest > about(bytes_of(e.annotation)) and largest >= queries.large_bytes:
            # Early axes give pieces of contiguous elements, read in place; with a limit, finer pieces need less.
            found.append((small_enough, largest, 0 if queries.large_bytes else extent, -axis, region))
    if not found:
        return None
    _, largest, _, axis, region = max(found, key=lambda f: f[:4])
    return -axis, largest, region


def _most_inside(e: Expr, region: Region, about: Callable[[Dim], int]) -> int:
    return max((about(bytes_of(x.annotation)) for x in region if x is not e), default=0)


def _reads_large(e: Expr, queries: ProgramQueries) -> bool:
    """Returns whether the result of a node is smaller than a large operand. So only the first such node after a large
    value is computed in pieces with it."""
    own = queries.largest_value(bytes_of(e.annotation))
    return any(queries.largest_value(bytes_of(a.annotation)) >= max(queries.large_bytes, own + 1) for a in e.args)


def _region(e: Expr, axis: int, queries: ProgramQueries) -> Region:
    """Returns the nodes that are computed in pieces with `e`, readers first, with the cut axis of each and those of its
    operands. Only nodes of the region read them; nodes that compute nothing may have other readers."""
    region: Region = {}
    wants: dict[Expr, list[int | None]] = {}
    todo = [(e, axis)]
    while todo and len(region) < _MOST:
        x, a = todo.pop()
        axes = _sliced(x, a)
        if axes is None:
            continue
        region[x] = a, axes
        for arg, place in zip(x.args, axes, strict=True):
            asked = wants.setdefault(arg, [])
            asked.append(place)
            if place is not None and len(asked) == len(queries.readers(arg)) and {*asked} == {place}:
                todo.append((arg, place))
        if not todo:
            todo += [
                (arg, asked[0])
                for arg, asked in wants.items()
                if arg.op in _SHAPED and arg not in region and asked[0] is not None and len({*asked}) == 1
                and _sliced(arg, asked[0]) is not None
            ][:1]  # fmt: skip
    return region


def _sliced(x: Expr, axis: int) -> Axes | None:
    if x.op in (VAR, CONSTANT) or x.op in CORE:
        return None
    placed = program_at(x.op, tuple(a.annotation for a in x.args), x.attrs, x.annotation)
    if placed is None or len(placed.program.inputs) != len(x.args):
        return None
    axes = sliced_input_axes(placed.program, axis)
    if axes is not None and x.op not in _SHAPED and any(True for _, v in x.attrs for _ in _sizes_in(v)):
        # Sizes among the attributes, such as a convolution's padding, may belong to this axis or to others.
        size = Dim.var(_unused(x, {}))
        pieces = [
            a if place is None else var(f"x{i}", Tensor(with_sizes(a.shape, {place: size}), a.dtype))
            for i, (a, place) in enumerate(zip(x.args, axes, strict=True))
        ]
        return axes if applied_again(x, pieces, {axis: size}) is not None else None
    return axes


def _sizes_in(value: Any) -> Iterator[Dim]:
    """Yields the sizes in an attribute's value."""
    if isinstance(value, Dim):
        yield value
    elif isinstance(value, tuple):
        for v in value:  # type: ignore[reportUnknownVariableType]
            yield from _sizes_in(v)


def _in_a_loop(e: Expr, axis: int, region: Region, rows: Dim, count: Dim, queries: ProgramQueries) -> Expr | None:
    """Returns `e` from `count` pieces of `rows` places along `axis`, computed one after the other and stacked. Zeros
    pad the end of the axis so that all pieces have one size; the results of the padding are cut off."""
    more = rows * count - e.shape[axis]
    size = rows if rows.is_const else Dim.var(_unused(e, region))
    whole: dict[Expr, Expr] = {}  # parameters of the loop's body for values that every step reads whole
    sliced: dict[tuple[Expr, int], Expr] = {}  # parameters for values of which a step reads a piece, along that axis
    made: dict[Expr, Expr] = {}
    for x in reversed(region):
        a, axes = region[x]
        args: list[Expr] = []
        for arg, place in zip(x.args, axes, strict=True):
            if arg in made and place is not None:
                args.append(made[arg])
            elif place is not None and arg.op == "iota":
                args.append(_places(arg, place, rows, count, size, sliced))
            elif place is not None:
                shape = with_sizes(arg.shape, {place: size})
                piece = sliced.setdefault((arg, place), var(f"x{len(sliced)}", Tensor(shape, arg.dtype)))
                args.append(piece)
            elif arg.op == CONSTANT:
                args.append(arg)
            else:
                args.append(whole.setdefault(arg, var(f"c{len(whole)}", arg.annotation)))
        piece = applied_again(x, args, {a: size})
        if piece is None:
            return None
        made[x] = piece
    body = pure_function(e.op, (*whole.values(), *sliced.values()), [made[e]])
    body = replace(body, result=tuple_((body.result,)))
    if not sliced or missing_sizes(body):
        return None
    xs = [_pieces(arg, place, rows, count, more) for arg, place in sliced]
    step = function_ref(queries.add(body, "in_pieces"))
    stacked = tuple_get(scan(step, list(whole), (), xs, length=count), 0)
    ahead = [*range(1, axis + 1), 0, *range(axis + 1, e.ndim + 1)]
    joined = op.reshape(op.permute_dims(stacked, ahead), with_sizes(e.shape, {axis: rows * count}))
    if more != 0:
        joined = op.strided_slice(joined, [Dim.of(0)] * e.ndim, e.shape)
    return joined if joined.annotation == e.annotation else None


def _places(x: Expr, axis: int, rows: Dim, count: Dim, size: Dim, sliced: dict[tuple[Expr, int], Expr]) -> Expr:
    """Returns a piece of an `iota`, computed where it is read."""
    shape = with_sizes(x.shape, {axis: size})
    if x.attr("axis") != axis:
        return op.iota(shape, x.attr("axis"), x.dtype)
    every = op.iota((rows * count,), 0, x.dtype)
    here = sliced.setdefault((every, 0), var(f"x{len(sliced)}", Tensor((size,), x.dtype)))
    return op.broadcast_to(op.reshape(here, [size if i == axis else 1 for i in range(x.ndim)]), shape)


def _pieces(x: Expr, axis: int, rows: Dim, count: Dim, more: Dim) -> Expr:
    """Returns `x` cut along `axis` and stacked, with zeros at its end."""
    if more != 0 and x.shape[axis] != rows * count:
        widths = [(Dim.of(0), more if i == axis else Dim.of(0)) for i in range(x.ndim)]
        x = op.pad(x, widths, op.zeros((), x.dtype))
    apart = (*x.shape[:axis], count, rows, *x.shape[axis + 1 :])
    return op.permute_dims(op.reshape(x, apart), [axis, *range(axis), *range(axis + 1, len(apart))])


def _unused(e: Expr, region: Region) -> str:
    """Returns a name for the size of a piece that no other size has."""
    inside = (e, *region)
    taken = {v for x in inside for y in (x, *x.args) for d in dims_of(y.annotation) for v in d.variables}
    taken |= {v for x in inside for _, value in x.attrs for d in _sizes_in(value) for v in d.variables}
    name, n = "rows", 0
    while name in taken:
        n += 1
        name = f"rows{n}"
    return name


pieces = RuleSet(
    "pieces",
    schemas=(
        Schema(
            "computed_in_pieces",
            "rows of a result are computed some at a time from rows of a large intermediate value, and joined",
            "exact",
            frozenset((MEMORY,)),
            _in_pieces,
            frozenset(ANCHORS),
            (rows, batches),
        ),
        Schema(
            "computed_one_by_one",
            "matrices of a batch are computed one at a time from a large intermediate value, and joined",
            "exact",
            frozenset((MEMORY,)),
            _one_by_one,
            frozenset(ANCHORS),
            (rows, batches),
        ),
    ),
)
