"""Random programs that index, slice, merge axes and ask where elements stand, at sizes that vary.

They give what `jax.jit` gives at each size: in the reference, as one XLA program, at capacity with NaN in the padding,
in kernels, and by `rx.jit`. `RELAX_EG_PROGRAMS=600 pytest tests/dynamic/test_random_positions.py` runs more of them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import QUICKLY

import relax_eg as rx
from relax_eg.backend.lowering.lower import run_function
from relax_eg.dynamic import plan
from relax_eg.errors import TraceError
from relax_eg.ir import Module
from relax_eg.ops.interpret import evaluate

Array = Any
Step = tuple[str, Callable[[Array], Array]]
PROGRAMS = int(os.environ.get("RELAX_EG_PROGRAMS", "12"))
FIRST = int(os.environ.get("RELAX_EG_FIRST", "0"))
# What a capacity of 4 by 4 holds: filled, one below, and one; and what is beyond it.
SIZES = [(4, 4), (3, 4), (4, 1), (1, 1), (2, 3), (5, 2)]


def place(rng: np.random.Generator) -> Any:
    return rng.choice([None, 0, 1, 2, 3, 5, -1, -2, -3])


def a_slice(rng: np.random.Generator) -> slice:
    low, high = (None if v is None else int(v) for v in (place(rng), place(rng)))
    return slice(low, high, rng.choice([None, 1, 2, 3, -1, -2]))


def places(rng: np.random.Generator) -> np.ndarray[Any, Any]:
    return rng.integers(-6, 7, int(rng.integers(1, 4))).astype(np.int32)


def step(rng: np.random.Generator, rank: int) -> Step:
    """A step for an array of this rank, as text and as a function."""
    axis = int(rng.integers(rank))
    before = (slice(None),) * axis
    s, i, at, mode = a_slice(rng), int(rng.integers(-4, 6)), places(rng), str(rng.choice(["clip", "fill"]))
    steps: list[Step] = [
        (f"x[{s}] on {axis}", lambda x: x[(*before, s)]),
        (f"x[{s}] on {axis} ", lambda x: x[(*before, s)]),
        (f"x[{at.tolist()}] on {axis}", lambda x: x[(*before, at)]),
        (f"take({at.tolist()}, {mode}) on {axis}", lambda x: jnp.nan_to_num(jnp.take(x, at, axis=axis, mode=mode))),
        (f"at[{i}].set on {axis}", lambda x: x.at[(*before, i)].set(1.0)),
        (f"at[{s}].add on {axis}", lambda x: x.at[(*before, slice(s.start, s.stop))].add(2.0)),
        (f"at[{at.tolist()}].max on {axis}", lambda x: x.at[(*before, at)].max(3.0)),
        ("ravel", jnp.ravel), ("ravel of the transposed", lambda x: x.T.ravel()), ("transposed", lambda x: x.T),
        (f"cumsum on {axis}", lambda x: jnp.cumsum(x, axis)), (f"sort on {axis}", lambda x: jnp.sort(x, axis)),
        (f"argsort on {axis}", lambda x: jnp.argsort(x, axis).astype("float32")),
        (f"diff on {axis}", lambda x: jnp.diff(x, axis=axis)), (f"flip on {axis}", lambda x: jnp.flip(x, axis)),
        (f"roll by {i} on {axis}", lambda x: jnp.roll(x, i, axis)), ("roll", lambda x: jnp.roll(x, 1)),
        (f"twice on {axis}", lambda x: jnp.concatenate([x, x], axis)),
        (f"padded on {axis}", lambda x: jnp.pad(x, [(1, 2) if a == axis else (0, 0) for a in range(x.ndim)])),
        ("by place", lambda x: x.ravel() * jnp.arange(x.size)),
        (f"less its sum on {axis}", lambda x: x - x.sum(axis, keepdims=True)),  # whole numbers: no order by rounding
        (f"moved on {axis}", lambda x: jax.lax.dynamic_slice_in_dim(x, jnp.int32(x.ravel()[0]), 1, axis)),
        (f"gathered on {axis}", lambda x: jnp.take_along_axis(x, jnp.argmax(x, axis, keepdims=True) + 1, axis)),
        ("one more axis", lambda x: x[None] if x.ndim < 3 else x[0]), ("merged", lambda x: x.reshape(1, -1)),
        ("compared", lambda x: jnp.where(x > 0, x, -1.0)),
    ]  # fmt: skip
    if rank > 1:
        steps += [
            (f"x[{i}] on {axis}", lambda x: x[(*before, i)]),
            (f"x[{i}] on {axis} ", lambda x: x[(*before, i)]),
            (f"argmax on {axis}", lambda x: jnp.argmax(x, axis).astype("float32")),
            (f"sum on {axis}", lambda x: x.sum(axis)),
            (f"the {i}th index is {at.tolist()}", lambda x: x[at, at] if x.ndim == 2 else x[at, 0]),
        ]
    return steps[int(rng.integers(len(steps)))]


ENDS: list[Step] = [
    ("itself", lambda x: x), ("argmax", jnp.argmax), ("argmin of all", lambda x: jnp.argmin(x.reshape(1, -1), 1)),
    ("sum", jnp.sum), ("all in a row", jnp.ravel), ("largest", lambda x: jax.lax.top_k(x.ravel(), 1)),
    ("where it is largest", lambda x: jnp.unravel_index(jnp.argmax(x), x.shape)),
    ("order", lambda x: jnp.argsort(x, None)),
]  # fmt: skip


def program(seed: int) -> tuple[str, Callable[[Array], Any]]:
    """A program, as text and as a function. What JAX itself does not take at any rank is not part of it."""
    rng = np.random.default_rng(seed)
    made: list[Step] = []
    x: Any = jax.ShapeDtypeStruct((4, 5), np.float32)
    for _ in range(int(rng.integers(1, 5))):
        text, f = step(rng, len(x.shape))
        try:
            after = jax.eval_shape(f, x)
        except (TypeError, ValueError, IndexError):
            continue
        if after.shape:
            made.append((text, f))
            x = after
    made.append(ENDS[int(rng.integers(len(ENDS)))])

    def run(x: Array) -> Any:
        for _, f in made:
            x = f(x)
        return x

    return "; ".join(text for text, _ in made), run


def given(n: int, m: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(10 * n + m).permutation(np.arange(n * m, dtype=np.float32)).reshape(n, m) - 2


def plainly(fn: Callable[[Array], Any], x: Array) -> Any:
    """What `jax.jit` gives; None where it refuses: it takes no extreme of nothing."""
    try:
        return jax.tree.leaves(jax.jit(fn)(x))
    except (TypeError, ValueError, IndexError):
        return None


def padded_to(x: np.ndarray[Any, Any], room: int) -> np.ndarray[Any, Any]:
    out = np.full((room, room), np.nan, np.float32)
    out[: x.shape[0], : x.shape[1]] = x
    return out


def ways(fn: Callable[[Array], Any], module: Module | None, rest: bool) -> Mapping[str, Callable[[Array], Any]]:
    found: dict[str, Callable[[Array], Any]] = {}
    if module is not None:
        p = plan(module)
        found["reference"] = lambda x: evaluate(module, [x])
        found["whole"] = lambda x: jax.jit(lambda y: run_function(module, module.main, [y]), compiler_options=QUICKLY)(
            x
        )
        if not p.exact:
            for room in (4, 6):
                run = jax.jit(p.lower({"n": room, "m": room}), compiler_options=QUICKLY)

                def at_capacity(x: Array, run: Any = run, room: int = room) -> Any:
                    return None if max(x.shape) > room else run(
                        [padded_to(x, room)], {"n": np.int32(x.shape[0]), "m": np.int32(x.shape[1])}
                    )  # fmt: skip

                found[f"capacity {room}"] = at_capacity
        if rest:
            found["kernels"] = rx.optimize(fn, "n m", execution="kernels")
            found["optimized at capacity"] = rx.optimize(fn, "n m", dynamic="capacity")
    if rest:
        found["rx.jit"] = rx.jit(fn)
    return found


def check(seed: int, rest: bool, counts: Counter[str]) -> None:
    text, fn = program(seed)
    wanted = {s: plainly(fn, given(*s)) for s in SIZES}
    try:
        module = rx.trace(fn, "n m")
    except TraceError:  # JAX compares sizes there: a program for each
        module = None
        counts["traced at each size only"] += 1
    for name, run in ways(fn, module, rest).items():
        for s, want in wanted.items():
            if want is None:
                continue
            found = run(given(*s))
            if found is None:
                continue
            counts[name] += 1
            for have, w in zip(jax.tree.leaves(found), want, strict=True):
                array = np.asarray(have)
                if name.startswith("capacity"):
                    array = array[tuple(map(slice, w.shape))]
                what = f"program {seed}, {name}, at {s}: {text}"
                np.testing.assert_allclose(array, np.asarray(w), rtol=1e-4, atol=1e-4, err_msg=what, strict=True)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + PROGRAMS))
def test_a_random_program_of_positions(seed: int) -> None:
    check(seed, os.environ.get("RELAX_EG_PROGRAMS") is not None, Counter())
