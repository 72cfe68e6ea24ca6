"""Matmuls by pieces, whose sending overlaps with computing: where they are of use, and the loops that compute them.

Where a matmul waits for an operand that is gathered, the pieces of the operand go round instead: each device multiplies
the piece that it has, while it sends it on to its neighbour. Where what follows waits for a sum that is scattered, the
sums of its pieces go round (Wang et al., "Overlap communication with dependent computation", 2023). Elsewhere XLA runs
kernels beside a collective anyway, and pieces would only make the kernels smaller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relax_eg.extract.profiles.links import link_for
from relax_eg.extract.profiles.profile import Profile
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.calls import function_ref, inline_call
from relax_eg.ir.control import scan
from relax_eg.ir.expr import Expr, tuple_, tuple_get, var
from relax_eg.ir.module import Function, pure_function
from relax_eg.ir.placements import DeviceMesh
from relax_eg.meshes.program import SpreadProgram
from relax_eg.meshes.strategies import Ring
from relax_eg.ops import api as op
from relax_eg.shapes import Dim
from relax_eg.traversal import grouped, reached

Numbers = np.ndarray[Any, Any]
Built = tuple[Expr, Function]


def add_rings(program: SpreadProgram, mesh: DeviceMesh, profile: Profile) -> None:
    """Adds the strategies by pieces of matmuls that take long enough, where nothing else could run beside the sending.

    An operand that does not depend on a matmul, of one that does, can be gathered earlier. A sum for which no matmul
    waits can be scattered later, if there is a matmul on which it does not depend."""
    if profile.platform != "gpu":  # elsewhere nothing is sent beside computing
        return
    sizes = [(n, link_for(profile, mesh.span(a))) for a, n in enumerate(mesh.sizes) if n > 1]
    least = min((mesh.devices * n * (link.latency + profile.launch) for n, link in sizes), default=math.inf)
    values = program.values
    large = {v for v, x in enumerate(values) if any(w.rings and w.cost.seconds >= least for w in x.ways)}
    if not large:
        return
    inside = program.read_inside()
    readers = grouped((c, v) for v, children in enumerate(inside) for c in children)
    carried, handed = {p for p, _ in program.tied}, {v for _, v in program.tied}
    # What depends on a matmul, of this step of a loop or of the one before; and what one waits for, or the next step.
    late = reached(large | carried, lambda v: readers.get(v, ()))
    awaited = reached(large | handed, inside.__getitem__)
    for v in large:
        before = reached([v], inside.__getitem__)
        beside = any(u not in before and values[u].function == values[v].function for u in large)
        ends = v in handed or not awaited.keys().isdisjoint(readers.get(v, ()))
        for way in values[v].ways:
            waits = [c in late for c in way.children]
            way.strategies += tuple(
                s
                for s in way.rings
                if s.ring is not None
                and (ends or not beside if s.ring.passed is None else waits[s.ring.passed] or not any(waits))
            )


# --- loops ---

Batch = Callable[[Function, Sequence[bool], Dim], Function | None]


@dataclass(frozen=True)
class RingLoop:
    """The loop in which the devices along an axis compute an operator by pieces.

    An operand that a strategy splits along the axis has the devices in front. Each device has one of the pieces of the
    operand that is passed on, and of an operand that the pieces of a sum divide all of them, behind the devices.

    - `name`: of the function of a step.
    - `piece`: the operator for one piece on one device: a function of one result.
    - `mapped`: which operands have the devices in front.
    - `ring`: what goes round.
    - `n`: the number of devices.
    - `batch`: batches a function over slices; None if it cannot.
    - `placed(x, i)`: returns operand `i`, or a result (None), annotated to be split over the devices.
    """

    name: str
    piece: Function
    mapped: tuple[bool, ...]
    ring: Ring
    n: int
    batch: Batch
    placed: Callable[[Expr, int | None], Expr]

    def built(self, operands: Sequence[Expr]) -> Built | None:
        """The result, with the devices in front, and the function of a step. Where an operand is passed on, the result
        has its pieces behind the devices. None if the operator cannot be batched."""
        each = self.batch(self.piece, self.mapped, Dim.of(self.n))
        if each is None:
            return None
        device, step = np.arange(self.n)[:, None], np.arange(self.n)
        if self.ring.passed is not None:
            return self._passing_operand(each, operands, (device - step) % self.n)
        return self._passing_sums(each, operands, (device + self.n - 1 - step) % self.n)

    def _passing_operand(self, each: Function, operands: Sequence[Expr], order: Numbers) -> Built | None:
        """`order` (device, piece): the step in which a device computes a piece."""
        q = self.ring.passed
        assert q is not None
        constants = [x for i, x in enumerate(operands) if i != q]
        params = [var(f"c{i}", x.annotation) for i, x in enumerate(constants)]
        mine = var("piece", operands[q].annotation)

        def product(of: Expr, others: Sequence[Expr]) -> Expr:
            return self.placed(inline_call(each, [*others[:q], of, *others[q:]])[0], None)

        body = _step(self.name, [*params, mine], [self.placed(_turned(mine), q), product(mine, params)])
        loop = scan(function_ref(body), constants, [operands[q]], [], length=Dim.of(self.n - 1))
        last = op.expand_dims(product(tuple_get(loop, 0), constants), 0)
        made = op.concat([tuple_get(loop, 1), last], 0)  # steps, devices, ...
        by_device = op.permute_dims(made, (1, 0, *range(2, made.ndim)))
        found = self._ordered(by_device, order)
        return None if found is None else (self.placed(found, None), body)

    def _passing_sums(self, each: Function, operands: Sequence[Expr], order: Numbers) -> Built | None:
        """`order` (device, step): the piece that a device computes in a step."""
        divided = [axis is not None for axis in self.ring.axes]
        first: list[Expr] = []
        later: list[Expr] = []
        for x, d in zip(operands, divided, strict=True):
            if not d:
                first.append(x)
                continue
            one, rest = self._ordered(x, order[:, :1]), self._ordered(x, order[:, 1:])
            if one is None or rest is None:
                return None
            first.append(op.reshape(one, (self.n, *x.shape[2:])))
            later.append(op.permute_dims(rest, (1, 0, *range(2, x.ndim))))
        begun = self.placed(inline_call(each, first)[0], None)
        constants = [x for x, d in zip(operands, divided, strict=True) if not d]
        params = [var(f"c{i}", x.annotation) for i, x in enumerate(constants)]
        slices = [var(f"x{i}", x.annotation) for i, (x, d) in enumerate(zip(first, divided, strict=True)) if d]
        total, own, pieces = var("total", begun.annotation), iter(params), iter(slices)
        share = inline_call(each, [next(pieces) if d else next(own) for d in divided])[0]
        came = self.placed(_turned(total), None)
        body = _step(self.name, [*params, total, *slices], [self.placed(op.add(came, self.placed(share, None)), None)])
        loop = scan(function_ref(body), constants, [begun], later, length=Dim.of(self.n - 1))
        return tuple_get(loop, 0), body

    def _ordered(self, x: Expr, order: Numbers) -> Expr | None:
        """`x` (device, place, ...) with the places that `order` (device, new place) says."""
        one = [var("x", Tensor(x.shape[1:], x.dtype)), var("order", Tensor((Dim.of(order.shape[1]),), "int32"))]
        taken = self.batch(pure_function("taken", one, [op.take(one[0], one[1], 0, "clip")]), (True, True), x.shape[0])
        return None if taken is None else inline_call(taken, [x, op.const(order.astype(np.int32))])[0]


def _turned(x: Expr) -> Expr:
    """What each device has, at the next one: `x` moved along its first axis."""
    ends = [Dim.of(0)] * x.ndim, list(x.shape)
    last = op.strided_slice(x, [ends[1][0] - 1, *ends[0][1:]], ends[1])
    others = op.strided_slice(x, ends[0], [ends[1][0] - 1, *ends[1][1:]])
    return op.concat([last, others], 0)


def _step(name: str, params: Sequence[Expr], fields: Sequence[Expr]) -> Function:
    made = pure_function(name, params, fields)
    return pure_function(name, params, fields, tuple_(b.var for b in made.blocks[0].bindings))
