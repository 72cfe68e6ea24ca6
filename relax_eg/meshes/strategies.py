"""Strategies: the ways in which an operator can be computed on parts of its operands, along one axis of a mesh.

They follow from the index equations of the operator (`tir.slicing`). A loop over an axis of the result can be split:
each device computes a part of the result from the same parts of the operands that have this loop, and from the whole
of the others. A loop that is reduced can be split too: each device then has a partial sum. What is linear in operands
that are partial sums is one too. An operator without equations that say so is computed whole on every device. No
operator is named here but those that regroup axes, whose equations divide positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ir.expr import Attrs
from relax_eg.ir.heads import CORE
from relax_eg.ir.placements import PARTIAL, PARTIAL_SUM, REPLICATED, Part
from relax_eg.limits import MANY_KEPT
from relax_eg.meshes.linearity import linear_operands
from relax_eg.ops.record import movement_operators
from relax_eg.ops.sizes import product
from relax_eg.rules.pieces.regions import axis_with_elements_ahead
from relax_eg.rules.pieces.slicing import equations_of
from relax_eg.shapes import Dim
from relax_eg.tir.expr import Apply, Read, Reduce, loop_of, walk
from relax_eg.tir.program import TensorProgram, dims_of
from relax_eg.tir.slicing import dimensions

_FEWEST_IN_RING = 2  # given: operands of what is computed by pieces: one that goes round, one that stays
_VIEWS = movement_operators("view")  # equations of some divide positions, so splits follow from the two shapes


@dataclass(frozen=True, slots=True)
class Ring:
    """How an operator is computed in as many pieces as there are devices, while these send pieces on to a neighbour.

    - `passed`: the operand whose pieces go round; None: the sums of pieces of the result do.
    - `axes`: the axis of each operand that the pieces divide; None for an operand that they leave whole.
    - `axis`: the axis of the result that they divide.
    """

    passed: int | None
    axes: tuple[int | None, ...]
    axis: int


@dataclass(frozen=True, slots=True)
class SplitStrategy:
    """A way to compute an operator along one axis of a mesh.

    - `operands`: the part of each operand.
    - `result`: the part of the result.
    - `extents`: the sizes of all that is split; each has to have a place for every device.
    - `merged`: the elements that stay together, if the split axis is one of several that a reshape merges: the number
      of devices has to divide this size.
    - `halo`: the rows of the first operand that each device gets from a neighbour, where places are read at a constant
      distance. XLA makes a collective-permute of that.
    - `ring`: the pieces in which it is computed; None: it is computed at once.
    - `whole`: nothing is split: each device computes all of it, of partial sums that of its own.
    """

    operands: tuple[Part, ...]
    result: Part
    extents: tuple[Dim, ...] = ()
    merged: Dim | None = None
    halo: int = 0
    ring: Ring | None = None

    @property
    def whole(self) -> bool:
        return not self.extents

    @property
    def takes_sums(self) -> bool:
        """Whether operands are partial sums; the result is one, too."""
        return PARTIAL_SUM in self.operands

    @property
    def passes(self) -> bool:
        """Whether operands that are partial sums alone make a partial sum."""
        return self.takes_sums and self.whole


def strategies(op: str, operands: Sequence[Annotation], attrs: Attrs, result: Annotation) -> tuple[SplitStrategy, ...]:
    """The strategies of one use of an operator, the one that splits nothing first."""
    return _strategies(op, tuple(operands), attrs, result)


@lru_cache(MANY_KEPT)
def _strategies(
    op: str, operands: tuple[Annotation, ...], attrs: Attrs, result: Annotation
) -> tuple[SplitStrategy, ...]:
    whole = SplitStrategy((REPLICATED,) * len(operands), REPLICATED)
    program = _equations(op, operands, attrs, result)
    if program is None:
        return (whole,)
    found = dict.fromkeys((whole,))
    shapes = [_shape(a) for a in operands]
    for d in dimensions(program):
        if d.kind is not None and d.kind not in PARTIAL:
            continue
        parts = tuple(REPLICATED if place is None else place for place in d.inputs)
        if d.output is None:
            extents = tuple(shapes[i][p] for i, p in enumerate(parts) if isinstance(p, int))
            found[SplitStrategy(parts, PARTIAL[str(d.kind)], extents[:1])] = None
        else:
            found[SplitStrategy(parts, d.output, (_shape(result)[d.output],))] = None
    for axis, inputs in _gathering(program):
        parts = tuple(REPLICATED if place is None else place for place in inputs)
        found[SplitStrategy(parts, axis, (_shape(result)[axis],))] = None
    found |= dict.fromkeys(_shifted(program))
    found |= dict.fromkeys(_accumulated(program))
    if op in _VIEWS and len(operands) == 1:
        found |= dict.fromkeys(_regrouped(shapes[0], _shape(result)))
    for summed in linear_operands(program):
        parts = tuple(PARTIAL_SUM if i in summed else REPLICATED for i in range(len(operands)))
        found[SplitStrategy(parts, PARTIAL_SUM)] = None
    return tuple(found)


def rings(op: str, operands: Sequence[Annotation], attrs: Attrs, result: Annotation) -> tuple[SplitStrategy, ...]:
    """The strategies of one use of an operator that sums products (a matmul) in which devices send pieces while they
    compute. They follow from two loops of its equations:

    - one over an axis of the result that one operand alone has, and another one over an axis of the result: the pieces
      of that operand go round, and each device computes its part of the other axis for one piece after the other;
    - one over an axis of the result, and a reduced one: each device adds its share of a piece of the result to the sum
      that its neighbour sends, and passes that on."""
    program = _equations(op, tuple(operands), attrs, result)
    has_sizes = any(isinstance(x, Dim) for _, v in attrs for x in (v if isinstance(v, tuple) else (v,)))
    if program is None or len(operands) < _FEWEST_IN_RING or has_sizes:
        return ()
    shapes, made = [_shape(a) for a in operands], _shape(result)
    known = dimensions(program)
    if not any(d.kind == "sum" and d.is_product for d in known):
        return ()
    found: list[SplitStrategy] = []
    for pieces in known:
        i, having = pieces.output, [p for p, place in enumerate(pieces.inputs) if place is not None]
        if i is None:
            continue
        for other in known:
            o, split = other.output, [REPLICATED if place is None else place for place in other.inputs]
            if o is None and other.kind == "sum" and other.is_product:
                if all(isinstance(split[p], int) for p in having):
                    reduced = next(shapes[p][a] for p, a in enumerate(other.inputs) if a is not None)
                    ring = Ring(None, pieces.inputs, i)
                    found.append(SplitStrategy(tuple(split), i, (made[i], reduced), ring=ring))
            elif o is not None and o != i and len(having) == 1 and other.inputs[having[0]] is None:
                (q,) = having
                ring, own = Ring(q, pieces.inputs, i), pieces.inputs[q]
                parts = [own if p == q and own is not None else x for p, x in enumerate(split)]
                if REPLICATED not in parts:
                    found.append(SplitStrategy(tuple(parts), o, (made[o], made[i]), ring=ring))
    return tuple(dict.fromkeys(found))


def _equations(op: str, operands: tuple[Annotation, ...], attrs: Attrs, result: Annotation) -> TensorProgram | None:
    """What an operator of tensors computes, in any precision, by its equations or its definition; None if it has
    neither."""
    if op in CORE:
        return None
    return equations_of((op, operands, tuple((k, None if k == "precision" else v) for k, v in attrs), result))


def _gathering(program: TensorProgram) -> list[tuple[int, tuple[int | None, ...]]]:
    """The axes of the result of a program that reads at computed positions, each with the axes of the inputs that have
    its places. What is read at computed positions is read whole; the positions may be split."""
    stage = program.stages[0]
    terms = list(walk(stage.value))
    reads = [t for t in terms if isinstance(t, Read)]
    if len(program.stages) > 1 or stage.scans or all(isinstance(at, Dim) for r in reads for at in r.indices):
        return []
    found: list[tuple[int, tuple[int | None, ...]]] = []
    for axis, index in enumerate(stage.indices):
        name = loop_of(index)
        if name is None or any(name in d.variables for t in terms if not isinstance(t, Read) for d in dims_of(t)):
            continue
        places: dict[str, set[int | None]] = {}
        for r in reads:
            fixed = [(p, at) for p, at in enumerate(r.indices) if isinstance(at, Dim) and name in at.variables]
            same = [
                p for p, at in fixed if at == index and program.buffers[r.buffer].shape[p] == stage.output.shape[axis]
            ]
            place = -1 if len(same) < len(fixed) or len(same) > 1 else same[0] if same else None
            places.setdefault(r.buffer, set()).add(place)
        if all(len(p) == 1 and -1 not in p for p in places.values()):
            found.append((axis, tuple(next(iter(places.get(b.name, {None}))) for b in program.inputs)))
    return [(axis, inputs) for axis, inputs in found if any(p is not None for p in inputs)]


def _accumulated(program: TensorProgram) -> list[SplitStrategy]:
    """The strategies of a program that adds a sum to an input (a scatter): each device adds the terms of which it has
    the operands. The input is a partial sum then, of which one device has all."""
    stage = program.stages[-1]
    terms = stage.value.args if isinstance(stage.value, Apply) and stage.value.fn == "add" else ()
    sums = [t for t in terms if isinstance(t, Reduce) and t.kind == "sum"]
    to = [t.buffer for t in terms if isinstance(t, Read) and all(isinstance(i, Dim) for i in t.indices)]
    if len(program.stages) > 1 or stage.scans or len(terms) != len((*sums, *to)) or len(sums) != 1 or len(to) != 1:
        return []
    if any(isinstance(t, Read) and t.buffer == to[0] for t in walk(sums[0])):
        return []
    found: list[SplitStrategy] = []
    for d in dimensions(replace(program, stages=(replace(stage, value=sums[0]),))):
        pairs = list(zip(program.inputs, d.inputs, strict=True))
        extents = [b.shape[place] for b, place in pairs if place is not None]
        if d.output is None and d.kind == "sum" and extents:
            parts = [PARTIAL_SUM if b.name == to[0] else REPLICATED if place is None else place for b, place in pairs]
            found.append(SplitStrategy(tuple(parts), PARTIAL_SUM, tuple(extents[:1])))
    return found


def _shifted(program: TensorProgram) -> list[SplitStrategy]:
    """The strategies of a program that reads one input once, at a constant distance along an axis, and others
    whole."""
    stage = program.stages[0]
    reads = [t for t in walk(stage.value) if isinstance(t, Read)]
    moved = [r for r in reads if r.indices]
    if len(program.stages) > 1 or stage.scans or len(moved) != 1 or moved[0].buffer != program.inputs[0].name:
        return []
    found: list[SplitStrategy] = []
    shape = program.inputs[0].shape
    for axis, index in enumerate(stage.indices):
        name = loop_of(index)
        places = [p for p, at in enumerate(moved[0].indices) if isinstance(at, Dim) and name in at.variables]
        if name is None or len(places) != 1 or shape[places[0]] != stage.output.shape[axis]:
            continue
        distance = moved[0].indices[places[0]] - index  # type: ignore[operator]
        if isinstance(distance, Dim) and not distance.variables and int(distance) != 0:
            parts = (places[0], *[REPLICATED] * (len(program.inputs) - 1))
            found.append(SplitStrategy(parts, axis, (shape[places[0]],), shape[places[0]], abs(int(distance))))
    return found


def _regrouped(before: Sequence[Dim], after: Sequence[Dim]) -> list[SplitStrategy]:
    """The strategies of a reshape along an axis that it merges with others, or splits."""
    found: list[SplitStrategy] = []
    for axis in range(len(before)):
        other = axis_with_elements_ahead(after, product(before[:axis]))
        if other is not None:
            one, two = before[axis], after[other]
            shared = two if one // two * two == one else one if two // one * one == two else None
            if shared is not None and shared != 1:
                found.append(SplitStrategy((axis,), other, (shared,), None if one == two else shared))
    return found


def _shape(a: Annotation) -> tuple[Dim, ...]:
    return (a.shape or ()) if isinstance(a, Tensor) else ()
