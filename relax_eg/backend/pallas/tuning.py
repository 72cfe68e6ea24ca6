"""Blocks of kernels, chosen by the clock where a GPU is at hand, and remembered in the folder of the cache.

The model of `tiles` ranks the choices. The best of different blocks are compiled and timed on random arrays, and XLA's
own lowering beside them, which may be faster. This is done once for a program, its sizes, the GPU and the versions of
JAX.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import jax
import jax.numpy as jnp

from relax_eg.backend.lowering.tensor_programs import lower_program
from relax_eg.backend.pallas.plan import Chosen
from relax_eg.backend.pallas.tiles import BlockModel, BlockSizes, Need
from relax_eg.cache_folder import calibration_mode, read_entry, store, version_of
from relax_eg.dtypes import RECORDS, itemsize, kind
from relax_eg.limits import FEW_KEPT
from relax_eg.logs import machine_is_kept, raise_if_exhausted
from relax_eg.memo import Memo
from relax_eg.tir import TensorProgram

log = logging.getLogger("relax_eg")

MOST_TIMED = 8  # limit: choices of blocks that are timed
XLA = -1  # given: the rank that stands for XLA's lowering
_CLEARLY = 1.03  # chosen: a choice further down the ranking has to be so many times as fast
_ROUNDS = 5  # chosen: rounds of timing, of which the median counts
_ROUND = 2e-3  # chosen: seconds of a round of one choice
_MOST_BYTES = 2 << 30  # limit: bytes of the arrays of a program that is timed
_FORMAT = 1  # given: version of the entries
_rankings = Memo[Any, list[tuple[BlockSizes, Need]]](FEW_KEPT)


@dataclass(frozen=True, slots=True)
class Tuned:
    """What the clock says of a program.

    - `rank`: the number of the fastest choice in the ranking by the model; `XLA` for XLA's lowering.
    - `seconds`: of each choice that was timed, by rank; infinite for one that does not compile.
    - `xla`: seconds of XLA's lowering.
    """

    rank: int
    seconds: tuple[float, ...]
    xla: float

    @classmethod
    def of(cls, seconds: Sequence[float], xla: float) -> Tuned:
        """The choice among these: a later one, or XLA's lowering, only where it is clearly faster."""
        best = 0
        for rank, found in enumerate(seconds):
            if found * _CLEARLY < seconds[best]:
                best = rank
        rank = XLA if xla * _CLEARLY < seconds[best] else best
        return cls(rank, tuple(seconds), xla)

    @property
    def why(self) -> str:
        """The choice, as a reason."""
        least = min(self.seconds, default=math.inf)
        return f"{self.xla * 1e6:.1f} us by XLA, {least * 1e6:.1f} us through Pallas, timed"


def ranked(model: BlockModel) -> list[tuple[BlockSizes, Need]]:
    """The choices that the clock may decide between, those of fewest clocks first: the best of each blocks and warps.
    Empty where none fits."""
    return _rankings.get_or_make(model.key, lambda: _ranked(model))


def _ranked(model: BlockModel) -> list[tuple[BlockSizes, Need]]:
    best: dict[Any, tuple[BlockSizes, Need]] = {}
    for tiles in model.candidates():
        need = model.need(tiles)
        key = tuple(tiles.blocks.items()), tiles.keys if model.scores else tiles.depth, tiles.warps
        if not math.isinf(need.clocks) and (key not in best or need.clocks < best[key][1].clocks):
            best[key] = tiles, need
    return sorted(best.values(), key=lambda each: (each[1].clocks, each[1].shared_bytes))[:MOST_TIMED]


@lru_cache(MOST_TIMED)
def of_rank(rank: int) -> Chosen:
    """Chooses the blocks of this rank; the last, where there are fewer."""

    def chosen(model: BlockModel) -> tuple[BlockSizes, Need]:
        found = ranked(model)
        if not found:
            return min(((t, model.need(t)) for t in model.candidates()), key=lambda each: each[1].shared_bytes)
        return found[min(rank, len(found) - 1)]

    return chosen


class Tuner:
    """Times the choices of programs on JAX's default device, each program once.

    - `lowers`: lowers a program at its sizes with the choice of a rank.
    - `clock`: seconds of calls of functions on arrays, infinite for one that fails.
    """

    def __init__(
        self,
        lowers: Callable[[TensorProgram, Mapping[str, int], Chosen], Callable[..., Any]],
        clock: Callable[[Sequence[Callable[..., Any]], Sequence[Any]], list[float]] | None = None,
    ) -> None:
        self._lowers, self._clock = lowers, clock or seconds_of
        self._known = Memo[str, Tuned](FEW_KEPT)
        self._lock = threading.Lock()

    @classmethod
    def here(cls, lowers: Callable[[TensorProgram, Mapping[str, int], Chosen], Callable[..., Any]]) -> Tuner | None:
        """A tuner; None where this machine is not measured."""
        return cls(lowers) if calibration_mode() == "auto" else None

    def tuned(self, program: TensorProgram, sizes: Mapping[str, int]) -> Tuned | None:
        """What the clock says of a program; None where its arrays are too large to be made for that. `Unsuitable` as
        `pallas_plan`."""
        shapes = [tuple(int(d.evaluate(sizes)) for d in b.shape) for b in program.parameters]
        if sum(math.prod(s) * itemsize(b.dtype) for s, b in zip(shapes, program.parameters, strict=True)) > _MOST_BYTES:
            return None
        precision = jax.config.jax_default_matmul_precision  # type: ignore[reportAttributeAccessIssue]
        content = (
            _FORMAT, str(program), sorted(sizes.items()), jax.devices()[0].device_kind, version_of("jax"),
            version_of("jaxlib"), precision, os.environ.get("XLA_FLAGS", ""),
        )  # fmt: skip
        key = blake2b(repr(content).encode(), digest_size=16).hexdigest()

        def find() -> Tuned:
            kept, name = store() if machine_is_kept() else None, f"blocks-{key}"
            found = None if kept is None else read_entry(kept, name, _read, "no times of kernels")
            if found is None:
                found = self._timed(program, sizes, shapes, precision)
                if kept is not None:
                    kept.write(name, json.dumps(asdict(found)).encode())
            log.info("%s: %s", program.name, found.why)
            return found

        with self._lock:
            return self._known.get_or_make(key, find)

    def _timed(
        self, program: TensorProgram, sizes: Mapping[str, int], shapes: Sequence[tuple[int, ...]], precision: Any
    ) -> Tuned:
        def time_all() -> Tuned:
            runs = [self._lowers(program, sizes, of_rank(rank)) for rank in range(MOST_TIMED)]
            arrays = [
                random_array(b.dtype, shape, i)
                for i, (b, shape) in enumerate(zip(program.parameters, shapes, strict=True))
            ]
            made = [_with_precision(run, precision) for run in (*runs, lower_program(program, sizes))]
            *ours, xla = self._clock(made, arrays)
            return Tuned.of(ours, xla)

        # Another thread has no trace of JAX, in which nothing would run.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(time_all).result()


def _read(data: Any) -> Tuned:
    rank, seconds, xla = int(data["rank"]), tuple(float(s) for s in data["seconds"]), float(data["xla"])
    if not XLA <= rank < len(seconds):
        raise ValueError(f"the choice {rank} of {len(seconds)}")
    return Tuned(rank, seconds, xla)


def _with_precision(run: Callable[..., Any], precision: Any) -> Callable[..., Any]:
    def at_precision(*arrays: Any) -> Any:
        with jax.default_matmul_precision(precision):
            return run(*arrays)

    return jax.jit(at_precision)


def random_array(dtype: str, shape: Sequence[int], seed: int) -> Any:
    """A random array on JAX's default device. Wide integers may be places, so they are 0."""
    key = jax.random.key(seed)
    if (kind(dtype) in "iu" and itemsize(dtype) <= 2) or dtype == "uint32":
        return jax.random.bits(key, shape, f"uint{8 * itemsize(dtype)}").astype(dtype)
    if kind(dtype) == "f":
        return (jax.random.normal(key, shape, "float32") * shape[-1] ** -0.5 if shape else jnp.float32(1)).astype(dtype)
    return jnp.zeros(shape, RECORDS[dtype].numpy)


def seconds_of(functions: Sequence[Callable[..., Any]], arrays: Sequence[Any]) -> list[float]:
    """The median seconds of a call of each function, in turns; they are compiled at the same time."""

    def compiled(f: Callable[..., Any]) -> Any:
        try:
            jax.block_until_ready(f(*arrays))
        except Exception as e:  # any error of Pallas, Triton, XLA or the driver: it is not chosen
            raise_if_exhausted(e)
            return None
        return f

    with ThreadPoolExecutor(len(functions)) as pool:
        good = {i: f for i, f in enumerate(pool.map(compiled, functions)) if f is not None}
    counts = {i: max(1, int(_ROUND / max(_once(f, arrays, 1), 1e-6))) for i, f in good.items()}
    found: dict[int, list[float]] = {i: [] for i in good}
    for i in itertools.chain.from_iterable(itertools.repeat(list(good), _ROUNDS)):
        found[i].append(_once(good[i], arrays, counts[i]))
    return [statistics.median(found[i]) if i in found else math.inf for i in range(len(functions))]


def _once(f: Callable[..., Any], arrays: Sequence[Any], count: int) -> float:
    started, last = time.perf_counter(), None
    for _ in range(count):
        last = f(*arrays)
    jax.block_until_ready(last)
    return (time.perf_counter() - started) / count
