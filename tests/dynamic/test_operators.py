"""Every operator of the table at capacity: at random sizes below it, whatever the padding holds, it gives what it gives
at exact sizes; or it says that it cannot.

`RELAX_EG_FACETS=50` draws so many random uses of each operator in place of a few.
"""

from __future__ import annotations

import os
import zlib
from typing import Any

import jax
import numpy as np
import pytest
from compiling import CLAMPING, QUICKLY
from facets import Case, accepted, by_mode, make, same_value, sizes_of
from ops_draws import DRAWS
from ops_samples import USES
from padding import POISONS, capacities, padded, within
from sampling import sampled

from relax_eg.backend.lowering.lower import run_at
from relax_eg.dynamic import plan
from relax_eg.ir import Tuple
from relax_eg.ops import TABLE
from relax_eg.ops.keys import to_jax

DRAWN = int(os.environ.get("RELAX_EG_FACETS", "1"))
SEED = int(os.environ.get("RELAX_EG_FACETS_SEED", "0"))
NAMES = sorted(TABLE)
TOGETHER = 40
SLOW = frozenset(
    "random_gamma igamma igammac igamma_grad_a betainc cholesky_update random_split random_fold_in".split()
)
COARSER = {"float64": "float32", "complex128": "complex64"}


def cases(name: str, rng: np.random.Generator) -> list[Case]:
    drawn = min(DRAWN, 1) if name in SLOW else DRAWN
    uses = [*USES[name], *(DRAWS[name](rng) for _ in range(drawn))]
    made: list[Case] = []
    for place, use in enumerate(uses[:2] if name in SLOW else uses):
        taken, _ = accepted(name, use)
        any_one = taken[int(rng.integers(len(taken)))]
        for dtype in dict.fromkeys([taken[0], any_one] if place == 0 else [any_one]):
            sizes = {v: max(1, n) for v, n in sizes_of(use, rng).items()}
            made.append(make(name, use, dtype, sizes, rng))
    return made


@pytest.mark.parametrize("name", sampled(NAMES, 8))
def test_an_operator_at_capacity(name: str) -> None:
    rng = np.random.default_rng([zlib.crc32(name.encode()), SEED])
    found = cases(name, rng)
    plans = {id(c): plan(c.module) for c in found}
    for c in found:
        assert all(e.startswith(name) for e in plans[id(c)].exact)
    for group in by_mode([c for c in found if not plans[id(c)].exact]):
        for i in range(0, len(group), TOGETHER):
            compare(group[i : i + TOGETHER], plans, rng)


def compare(group: list[Case], plans: dict[int, Any], rng: np.random.Generator) -> None:
    room = [capacities(c.sizes, rng) for c in group]
    poisons = [POISONS[int(rng.integers(3))] for _ in group]
    given: list[Any] = []
    for c, caps, kind in zip(group, room, poisons, strict=True):
        p = plans[id(c)]
        shapes = p.input_shapes({v: caps[v] for v in p.dims})
        given.append([padded(x, s, kind, rng) for x, s in zip(c.arrays, shapes, strict=True)])

    def exactly(operands: Any) -> list[Any]:
        return [run_at(c.module, c.module.main, (*xs, *c.rest), c.sizes) for c, xs in zip(group, operands, strict=True)]

    def at_capacity(operands: Any, sizes: Any) -> list[Any]:
        return [
            plans[id(c)].lower({v: caps[v] for v in plans[id(c)].dims})(xs, at)
            for c, caps, xs, at in zip(group, room, operands, sizes, strict=True)
        ]

    (x64,) = {c.x64 for c in group}
    quickly = CLAMPING if any(c.site.op == "clip" for c in group) else QUICKLY
    with jax.enable_x64(x64):
        wanted = jax.jit(exactly, compiler_options=quickly)([list(map(_given, c.arrays)) for c in group])
        sizes = [{v: np.int32(n) for v, n in c.sizes.items()} for c in group]
        got = jax.jit(at_capacity, compiler_options=quickly)([list(map(_given, xs)) for xs in given], sizes)
        for c, caps, kind, want, have in zip(group, room, poisons, wanted, got, strict=True):
            what = f"{c} at capacity {caps} with {kind}\n{plans[id(c)]}"
            wants, haves = _listed(want), _listed(have)
            p, made = plans[id(c)], plans[id(c)].module.main.annotation
            fields = made.fields if isinstance(made, Tuple) else (made,)
            assert [h.shape for h in haves] == [p.shape_of(f, {v: caps[v] for v in p.dims}) for f in fields], what
            haves = [within(h, w.shape) for w, h in zip(wants, haves, strict=True)]
            if c.use.settle is not None:
                wants, haves = (c.use.settle([np.asarray(v) for v in values]) for values in (wants, haves))
            for w, h, part in zip(wants, haves, c.fields, strict=True):
                assert str(h.dtype) == str(w.dtype), what
                dtype = str(part.dtype)
                if "F32" in str(c.use.attrs.get("precision")):  # asked to multiply in float32, whatever goes in
                    dtype = COARSER.get(dtype, dtype)
                same_value(h, w, dtype, what, 4 * c.use.looser)


def _given(x: Any) -> Any:
    return to_jax(x) if x.dtype.names else x


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]
