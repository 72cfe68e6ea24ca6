"""Every operator of the table, split over two devices by each of its strategies.

What a device does not have is replaced: by other values where its part of the result must not depend on them, by the
identity where it makes a partial sum.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from facets import TOLERANCE, Case, accepted, make, same_value, sizes_of
from ops_samples import USES

from relax_eg.dtypes import is_key
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.placements import PARTIAL, PARTIAL_SUM, REPLICATED
from relax_eg.meshes.strategies import SplitStrategy, strategies
from relax_eg.ops import TABLE
from relax_eg.ops.interpret import evaluate

DRAWS = 3
JOINED = {"P[sum]": np.add, "P[max]": np.maximum, "P[min]": np.minimum}
FEWEST = 100  # chosen: operators of the table that some strategy splits


def cases(name: str) -> Iterator[tuple[Case, Case]]:
    """Uses of an operator, each with another draw of the operands."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    for use in USES[name]:
        taken, _ = accepted(name, use)
        for dtype in dict.fromkeys([taken[0], *(["int32"] if "int32" in taken else [])]):
            if is_key(dtype) or use.settle is not None:
                continue
            for _ in range(DRAWS):
                sizes = {v: max(n, min(2, use.sizes[v][1])) for v, n in sizes_of(use, rng).items()}
                yield make(name, use, dtype, sizes, rng, False), make(name, use, dtype, sizes, rng, False)


def run(c: Case, arrays: Sequence[Any]) -> Any:
    return np.asarray(evaluate(c.module, (*arrays, *c.rest), sizes=c.sizes))


def applies(c: Case, s: SplitStrategy) -> bool:
    sizes = [int(d.evaluate(c.sizes)) for d in (*s.extents, *(() if s.merged is None else (s.merged,)))]
    return (
        all(n >= 2 for n in sizes) and (s.merged is None or sizes[-1] % 2 == 0) and 2 * s.halo <= min(sizes, default=0)
    )


def own(shape: Sequence[int], d: int, device: int, halo: int = 0) -> tuple[slice, ...]:
    """The part of a device of an array that is split along dimension `d`, with rows of its neighbours."""
    half = -(-shape[d] // 2)
    at = slice(0, half + halo) if device == 0 else slice(max(0, half - halo), shape[d])
    return (*[slice(None)] * d, at)


def with_own(x: Any, other: Any, part: Any, device: int, halo: int = 0) -> Any:
    """`x` where a device has it, `other` elsewhere."""
    if not isinstance(part, int):
        return x
    made = np.array(np.broadcast_to(other, x.shape))
    at = own(x.shape, part, device, halo)
    made[at] = x[at]
    return made


def identity(kind: str, dtype: Any) -> Any:
    if kind == "P[sum]":
        return np.zeros((), dtype)
    if dtype == np.bool_:
        return np.asarray(kind == "P[min]")
    if np.dtype(dtype).kind in "iu":
        limits = ml_dtypes.iinfo(dtype)
        return np.asarray(limits.min if kind == "P[max]" else limits.max, dtype)
    return np.asarray(-np.inf if kind == "P[max]" else np.inf, dtype)


def check(c: Case, other: Case, s: SplitStrategy) -> None:
    what = f"{c} by {s}"
    whole, dtype = run(c, c.arrays), str(c.fields[0].dtype)
    if s.passes:
        summed = [p == PARTIAL_SUM for p in s.operands]
        total = [a + b if here else a for a, b, here in zip(c.arrays, other.arrays, summed, strict=True)]
        rest = [b if here else a for a, b, here in zip(c.arrays, other.arrays, summed, strict=True)]
        # Sums of operands are rounded in the dtype of these.
        dtypes = [dtype, *(str(x.dtype) for x, here in zip(c.arrays, summed, strict=True) if here)]
        coarsest = max(dtypes, key=lambda d: TOLERANCE.get(d, 0))
        same_value(whole + run(c, rest), run(c, total), coarsest, what, 40 * c.use.looser)
    elif s.result in PARTIAL.values():
        parts = [
            run(c, [np.zeros_like(x) if p == PARTIAL_SUM and device else
                    with_own(x, identity(str(s.result), x.dtype), p, device)
                    for x, p in zip(c.arrays, s.operands, strict=True)])
            for device in range(2)
        ]  # fmt: skip
        same_value(JOINED[str(s.result)](*parts), whole, dtype, what, 4 * c.use.looser)
    else:
        assert isinstance(s.result, int), what
        for device in range(2):
            given = [
                with_own(x, y, p, device, s.halo) for x, y, p in zip(c.arrays, other.arrays, s.operands, strict=True)
            ]
            at = own(whole.shape, s.result, device)
            same_value(run(c, given)[at], whole[at], dtype, what, 4 * c.use.looser)


def of(c: Case) -> tuple[SplitStrategy, ...]:
    return strategies(c.site.op, c.site.operands, tuple(c.site.attrs.items()), c.deduced)


@pytest.mark.parametrize("name", sorted(TABLE))
def test_parts_make_up_the_whole(name: str) -> None:
    for c, other in cases(name):
        if not isinstance(c.deduced, Tensor) or any(is_key(str(a.dtype)) for a in c.fields):
            continue
        for s in of(c):
            if s.operands == (REPLICATED,) * len(s.operands) and s.whole:
                continue
            if applies(c, s) and not (c.use.special and PARTIAL_SUM in s.operands):
                check(c, other, s)


def test_most_operators_can_be_split() -> None:
    split = {n for n in TABLE if any(not s.whole for c, _ in cases(n) if isinstance(c.deduced, Tensor) for s in of(c))}
    assert len(split) >= FEWEST, len(split)
