"""What an operator costs on a device, inside one XLA program (`execution="whole"`).

Flops and bytes come from the operators' index equations, as expressions in the sizes. XLA fuses elementwise code,
broadcasts and slices into their readers and never materialises a reshape; matmuls, reductions, gathers,
concatenations and opaque calls are kernels of their own. The model prices just that, operator by operator, so that a
program costs the sum over its distinct nodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from relax_eg.extract.profile import Profile
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ir.expr import CALL_DPS_LIBRARY, CORE, MATCH_CAST
from relax_eg.ops import Site, bytes_of, counts, pattern_kind
from relax_eg.shapes import Dim
from relax_eg.tir import PatternKind

_FREE = frozenset(("reshape", "expand_dims", "squeeze", "broadcast_to", "full", "iota", "dim_value"))
_COPIES = frozenset(("concat", "pad", "take"))
# Blocked arithmetic inside: about half the matmul rate.
_DENSE = frozenset(("conv", "cholesky", "triangular_solve", "lu", "qr", "eigh", "svd"))
# Of the traffic of a fusible operator, the share that is paid: its value often stays in registers.
_FUSED_SHARE = 0.3
_EPSILON = 1e-9  # seconds: a node is never quite free, or useless ones would pile up


@dataclass(frozen=True, slots=True)
class NodeCost:
    """Cost of one node at a binding: flops, bytes moved, kernel launches, seconds."""

    flops: int = 0
    bytes: int = 0
    launches: int = 0
    seconds: float = 0.0


class CostModel(Protocol):
    """Anything with this method can price programs."""

    def price(self, site: Site, result: Annotation) -> NodeCost:
        """The cost of one use of an operator; `result` annotates its value."""
        ...


class WholeCost:
    """The default cost model at one binding of the size variables. Prices are memoised by use."""

    def __init__(self, profile: Profile, binding: Mapping[str, int]) -> None:
        self.profile = profile
        self.binding = dict(binding)
        self._memo: dict[tuple[object, ...], NodeCost] = {}

    def price(self, site: Site, result: Annotation) -> NodeCost:
        # A library call's result is its own to say; everything else follows from operands and attributes.
        key = (result, site.op, site.operands, tuple(site.attrs.items()))
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = self._price(site, result)
        return found

    def _price(self, site: Site, result: Annotation) -> NodeCost:
        if site.op in CORE:
            return self._opaque(site, result) if site.op in (CALL_DPS_LIBRARY, MATCH_CAST) else NodeCost()
        if any(not _known(a) for a in (*site.operands, result)):
            return self._opaque(site, result)
        count = counts(site)
        flops, moved = self._at(count.flops), self._at(count.bytes_read) + self._at(count.bytes_written)
        p = self.profile
        if site.op in _FREE:
            return NodeCost(0, 0, 0, _EPSILON)
        if site.op in ("matmul", "linear"):
            return NodeCost(flops, moved, 1, p.kernel(self._matmul(site, flops, moved)))
        if site.op in _DENSE:
            return NodeCost(flops, moved, 1, p.kernel(max(2 * flops / p.rate(site.dtype(0)), p.move(moved))))
        if site.op == "strided_slice":
            # Sometimes a part of its reader, sometimes a copy: a kernel's start, and the fused share of the traffic.
            return NodeCost(flops, moved, 1, p.launch + _FUSED_SHARE * p.move(moved))
        if site.op in _COPIES:
            return NodeCost(flops, moved, 1, p.kernel(p.move(moved)))
        kind = pattern_kind(site)
        if kind in (PatternKind.ELEMENT_WISE, PatternKind.BROADCAST, PatternKind.INJECTIVE):
            return NodeCost(flops, moved, 0, _EPSILON + flops / p.vector_rate + _FUSED_SHARE * p.move(moved))
        return NodeCost(flops, moved, 1, p.kernel(flops / p.vector_rate + p.move(moved)))

    def _matmul(self, site: Site, flops: int, moved: int) -> float:
        """Seconds of a matmul: peak rate scaled down for thin sides, or memory, and the weight's layout."""
        a = [self._at(d) for d in site.shape(0)]
        b = [self._at(d) for d in site.shape(1)]
        # With a plain matrix on the right all leading axes are rows; with batches on both sides the last is.
        rows = math.prod(a[:-1]) if len(b) <= 2 else math.prod(a[-2:-1])
        columns = b[0] if site.op == "linear" else math.prod(b[1:][-1:])
        share = 1.0
        for size, half in zip((rows, columns, a[-1]), self.profile.matmul_half, strict=True):
            share *= size / (size + half)
        seconds = max(flops / (self.profile.rate(site.dtype(0)) * max(share, 1e-3)), self.profile.move(moved))
        if site.op == "linear":
            seconds *= self.profile.linear_factor(rows, self._at(bytes_of(site.operands[1])))
        return seconds

    def _opaque(self, site: Site, result: Annotation) -> NodeCost:
        moved = sum(self._at(bytes_of(a)) for a in (*site.operands, result))
        return NodeCost(0, moved, 1, self.profile.launch + self.profile.move(moved))

    def _at(self, d: Dim) -> int:
        return int(d.evaluate(self.binding))


def _known(a: Annotation) -> bool:
    return not isinstance(a, Tensor) or (a.shape is not None and a.dtype is not None)
