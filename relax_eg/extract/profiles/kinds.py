"""Kinds of kernel, by which the errors of predicted times are known.

A kind is a text such as "matmul, few rows, from memory": the operator's sort, then in which context it runs. Its price
is corrected by the product of the factors of its features: "all", "matmul", "matmul, few rows" and "matmul, from
memory". So a kind that was never timed shares what is known of its sort.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from relax_eg.extract.costs.cost_model import NodeCost
from relax_eg.extract.costs.numbers import Number, choose
from relax_eg.ir.annotations import Tensor
from relax_eg.limits import KEPT
from relax_eg.ops import Site, get, pattern_kind
from relax_eg.ops.libraries import library_of
from relax_eg.ops.movement import moves_last_axis
from relax_eg.ops.record import TABLE, operators_run_as
from relax_eg.tir import PatternKind

ALL = "all"  # the feature of every kernel
CALL = "call"  # dispatch, and waking other cores
FEW_ROWS = 16  # chosen: rows of a matmul up to which its time is that of reading the weight
_MATMULS = operators_run_as("matmul", "transposed_matmul")
_SORTS = {
    **dict.fromkeys((PatternKind.ELEMENT_WISE, PatternKind.BROADCAST, PatternKind.INJECTIVE), "elementwise"),
    PatternKind.REDUCTION: "reduction",
}


@dataclass(frozen=True, slots=True)
class KernelKind:
    """The kind of a kernel at a binding, or at many.

    - `sort`: what it computes.
    - `few`: whether it is a matmul of few rows.
    - `far`: whether it reads and writes more bytes than the cache has.
    """

    sort: str
    few: Number = False
    far: Number = False

    def __str__(self) -> str:
        """The kind at a single binding."""
        return self.sort + (", few rows" if self.few else "") + (", from memory" if self.far else "")

    def factor(self, corrections: Mapping[str, float]) -> Number:
        """The factor on the predicted seconds."""

        def of(few: bool, far: bool) -> float:
            return math.prod(corrections.get(f, 1.0) for f in features(str(replace(self, few=few, far=far))))

        near = choose(self.few, of(True, False), of(False, False))
        return choose(self.far, choose(self.few, of(True, True), of(False, True)), near)


@lru_cache(KEPT)
def features(kind: str) -> tuple[str, ...]:
    """The features of a kind, of which each has a factor and a doubt of its own."""
    sort, *contexts = kind.split(", ")
    return (ALL, sort, *(f"{sort}, {c}" for c in contexts))


def kernel_kind(site: Site, cost: NodeCost, cache_bytes: Number, rows: Number) -> KernelKind:
    """The kind of the kernel that an operator is.

    - `cost`: its cost.
    - `cache_bytes`: bytes of the cache.
    - `rows`: of a matmul, the rows of its result.
    """
    far = cost.bytes > cache_bytes
    if site.op in _MATMULS:
        return KernelKind(str(get(site.op).kernel), rows <= FEW_ROWS, far)
    return KernelKind(_sort(site), far=far)


def _sort(site: Site) -> str:
    library = library_of(site)
    if library is not None:
        return library.name
    if site.op not in TABLE or any(isinstance(a, Tensor) and a.shape is None for a in site.operands):
        return site.op
    record = get(site.op)
    if record.kernel is not None:
        return "grouped conv" if record.kernel == "conv" and site["groups"] != 1 else record.kernel
    if moves_last_axis(site):
        return "transpose"
    return _SORTS.get(pattern_kind(site), site.op)
