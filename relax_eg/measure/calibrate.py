"""Measuring a device: what the cost model asks of it, from small programs that XLA compiles and runs here.

Every figure is the lower quartile of many samples: less than what other users of a machine add, more than what is
reached once in a while, since waking threads is part of what a kernel takes. Rates that depend on size (thin matmuls,
memory beyond the caches) are fitted: the parameters of `Profile` that explain the measured times best, by the mean of
squared logarithms, found by coordinate search. About two minutes in all; XLA compiles some 140 programs.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from relax_eg.extract.cost import share_of_peak
from relax_eg.extract.profile import Mode, Profile
from relax_eg.measure.device import device, here
from relax_eg.measure.timing import cores, interleaved, typical

SECONDS = 0.15  # of samples for one figure
_FLOATS = ("float32", "float64", "float16", "bfloat16")
Step = Callable[[str, int, int], None]  # what is measured, how many figures are done, of how many


@dataclass
class Bench:
    """Times functions of arrays on the default device; tells `progress` of each."""

    progress: Step | None
    total: int
    seconds: float = SECONDS
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    done: int = 0

    def time(self, what: str, fn: Callable[..., Any], *args: Any) -> float:
        """Seconds of one call of `fn`, compiled with XLA's `options`."""
        self._tell(what)
        options: Any = dict(self.options) or None
        compiled: Any = jax.jit(fn).lower(*args).compile(compiler_options=options)
        return typical(lambda: compiled(*args), self.seconds)

    def ratio(self, what: str, fn: Callable[..., Any], other: Callable[..., Any], *args: Any) -> float:
        """How many times longer `fn` takes than `other`: the median over rounds in which they take turns."""
        self._tell(what)
        options: Any = dict(self.options) or None
        calls: dict[str, Any] = {}
        for name, f in (("fn", fn), ("other", other)):
            compiled: Any = jax.jit(f).lower(*args).compile(compiler_options=options)
            calls[name] = functools.partial(compiled, *args)
        samples = interleaved(calls, 2 * self.seconds)
        return float(np.median(samples["fn"] / samples["other"]))

    def _tell(self, what: str) -> None:
        if self.progress is not None:
            self.progress(what, self.done, self.total)
        self.done += 1


def calibrate(name: str = "", seconds: float = SECONDS, progress: Step | None = None) -> Profile:
    """The profile of JAX's default device, measured now.

    `seconds`: of samples for each figure; `progress(what, done, of)` is called before each.
    """
    on, start = device(), here()
    bench = Bench(progress, _FIGURES + len(start.modes) * (len(_SHAPES) + 10), seconds)
    key = jax.random.key(0)
    dispatch = bench.time("dispatch", lambda x: x, jnp.zeros(8))
    launch = _slope(bench, "kernel launch", _chain_of_reductions, (4, 36))
    step = _slope(bench, "loop step", _loop, (100, 1100)) - launch  # of the kernel in it
    p = replace(start, dispatch=dispatch, launch=max(launch, 1e-8), step=max(step, 1e-8))
    p = replace(p, **_memory(bench, p))
    p = replace(p, vector_rate=_vector_rate(bench, p))
    p = replace(p, transpose_rate=_transposes(bench, p, key))
    p = replace(p, **_matmuls(bench, p, key))
    p = replace(p, matmul_rate=_rates(bench, p, key))
    p = replace(p, **_layouts(bench, p, key))
    p = replace(p, **_convolutions(bench, p, key))
    p = replace(p, scalar_rate=_slow_loops(bench, p, key))
    p = replace(p, modes=tuple(_in_mode(bench, p, key, m) for m in start.modes))
    today = datetime.date.today().isoformat()
    kind = f"{on.device_kind}, {cores()} cores" if on.platform == "cpu" else on.device_kind
    return replace(
        p,
        name=name or on.platform,
        calibrated=True,
        measured=f"{kind}, {today}, jax {jax.__version__}",
        notes="measured by `relax-eg calibrate`",
    )


def _slope(bench: Bench, what: str, make: Callable[[int], Callable[[Any], Any]], counts: tuple[int, int]) -> float:
    """Seconds that one more of something takes."""
    few, many = counts
    x = jnp.linspace(0.0, 1.0, 64)
    a, b = (bench.time(f"{what} x{n}", make(n), x) for n in counts)
    return (b - a) / (many - few)


def _chain_of_reductions(count: int) -> Callable[[Any], Any]:
    def run(x: Any) -> Any:
        for _ in range(count):
            x = x - jnp.max(x)  # each waits for the one before, and is a kernel
        return x

    return run


def _loop(count: int) -> Callable[[Any], Any]:
    return lambda x: lax.fori_loop(0, count, lambda i, y: y - jnp.max(y), x)


def _memory(bench: Bench, p: Profile) -> dict[str, float]:
    """Bandwidth of memory and cache, and where the one becomes the other."""
    largest = 1 << 27 if p.bandwidth < 3e11 else 1 << 30
    sizes = [largest >> k for k in range(0, 16, 2)]
    found: list[tuple[float, float]] = []
    for n in sizes:
        x = jnp.zeros(n // 4)
        seconds = bench.time(f"memory, {n >> 10} KiB", lambda x: x + 1.0, x)
        found.append((2.0 * n, max(seconds - p.dispatch, 1e-9)))
    rates = [moved / s for moved, s in found]
    slow, fast = rates[0], max(rates)
    grid = [largest >> k for k in range(1, 18)]

    def error(cache: float) -> float:
        model = replace(p, bandwidth=slow, cache_bandwidth=fast, cache_bytes=cache)
        return _error((model.move(moved), s) for moved, s in found if moved >= 1 << 18)

    return {"bandwidth": slow, "cache_bandwidth": fast, "cache_bytes": float(min(grid, key=error))}


def _vector_rate(bench: Bench, p: Profile) -> float:
    """Flop/s of elementwise code in one loop, counted as the cost model counts."""
    n, depth = (1 << 14, 64) if p.bandwidth < 3e11 else (1 << 24, 64)

    def run(x: Any) -> Any:
        for _ in range(depth):
            x = x * x + 0.5
        return x

    seconds = bench.time("elementwise", run, jnp.zeros(n))
    return 2 * depth * n / max(seconds - p.dispatch, 1e-9)


_SHAPES = [
    *((m, 1024, 1024) for m in (1, 2, 4, 8, 16, 64, 256, 1024)),
    *((1024, n, 1024) for n in (4, 16, 64, 256)),
    *((1024, 1024, k) for k in (4, 16, 64, 256)),
    *((n, n, n) for n in (8, 12, 16, 20, 24, 32, 48, 64, 128, 256, 512)),
    (8, 384, 384), (64, 384, 1536), (128, 64, 128), (2048, 2048, 2048),
]  # fmt: skip
_FIGURES = 1 + 2 * 2 + 8 + 1 + 2 + len(_SHAPES) + 1 + len(_FLOATS) + 10 + 4 + 3


def _matmuls(bench: Bench, p: Profile, key: Any) -> dict[str, Any]:
    """The peak rate of float32, how thin sides lower it, and what waking all cores takes: fitted over shapes."""
    found: list[tuple[tuple[int, int, int], float]] = []
    for m, n, k in _SHAPES:
        a, b = _normal(key, (m, k)), _normal(key, (k, n))
        seconds = bench.time(f"matmul {m}x{k}x{n}", jnp.matmul, a, b)
        found.append(((m, n, k), max(seconds - p.dispatch, 1e-9)))

    def predicted(q: Profile, m: int, n: int, k: int) -> float:
        share = share_of_peak((m, n, k), q.matmul_half)
        flops, moved = 2.0 * m * n * k, 4.0 * (m * k + k * n + m * n)
        return q.kernel(max(flops / (q.rate("float32") * share), q.move(moved)))

    def error(values: Mapping[str, float]) -> float:
        q = replace(
            p,
            matmul_rate={"float32": values["rate"]},
            matmul_half=(values["m"], values["n"], values["k"]),
            fork=values["fork"],
            fork_from=values["fork_from"],
        )
        return _error((predicted(q, *shape), s) for shape, s in found)

    peak = max(2.0 * m * n * k / s for (m, n, k), s in found)
    halves = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 96.0, 128.0, 192.0]
    choices = {
        "rate": [peak * f for f in (1.0, 1.1, 1.25, 1.5)],
        "m": halves,
        "n": halves,
        "k": halves,
        "fork": [0.0, 1e-6, 3e-6, 5e-6, 1e-5, 2e-5, 3e-5],
        "fork_from": [1e-7, 2e-7, 4e-7, 1e-6, 5e-6, 2e-5],
    }
    best = _search(error, choices)
    return {
        "matmul_rate": {**p.matmul_rate, "float32": best["rate"]},
        "matmul_half": (best["m"], best["n"], best["k"]),
        "fork": best["fork"],
        "fork_from": best["fork_from"],
    }


def _rates(bench: Bench, p: Profile, key: Any) -> dict[str, float]:
    """Peak rates of matmul by dtype: that of float32, times how much faster or slower another is at one size."""
    rates = {"float32": p.rate("float32")}
    size = 512 if p.bandwidth < 3e11 else 4096
    square = _normal(key, (size, size))
    base = bench.time("matmul float32", jnp.matmul, square, square)
    for dtype in (*_FLOATS[1:], "int32"):
        if dtype == "float64" and not jax.config.jax_enable_x64:  # type: ignore[reportAttributeAccessIssue]
            with jax.enable_x64(True):  # type: ignore[reportAttributeAccessIssue]
                x = square.astype(dtype)
                seconds = bench.time("matmul float64", jnp.matmul, x, x)
        else:
            x = square.astype(dtype)
            seconds = bench.time(f"matmul {dtype}", jnp.matmul, x, x)
        rates[dtype] = rates["float32"] * base / seconds
    return rates


def _in_mode(bench: Bench, p: Profile, key: Any, mode: Mode) -> Mode:
    """What matmuls and layouts are like when XLA compiles in another way."""
    inside = Bench(bench.progress, bench.total, bench.seconds, mode.options, bench.done)
    changes = _matmuls(inside, p, key)
    changes |= _layouts(inside, replace(p, **changes), key)
    bench.done = inside.done
    scale = changes["matmul_rate"]["float32"] / p.rate("float32")
    changes["matmul_rate"] = {dtype: scale * rate for dtype, rate in p.matmul_rate.items()}
    return replace(mode, changes=changes)


def _transposes(bench: Bench, p: Profile, key: Any) -> float:
    """Elements/s of a transpose that another kernel reads: what it takes longer than to read in order."""
    n = 768 if p.bandwidth < 3e11 else 8192
    a, b = _normal(key, (n, n)), _normal(key, (n, n))
    plain = bench.time("sum of products", lambda a, b: jnp.sum(a * b), a, b)
    turned = bench.time("sum of products, one transposed", lambda a, b: jnp.sum(a * b.T), a, b)
    return n * n / max(turned - plain, n * n / p.cache_bandwidth)


def _layouts(bench: Bench, p: Profile, key: Any) -> dict[str, Any]:
    """How many times longer a matmul takes with its weight stored output axis first, by rows."""
    weight = _normal(key, (768, 768))
    factors: list[tuple[float, float]] = []
    for rows in (2, 4, 8, 16, 24, 32, 48, 64, 128):
        x = _normal(key, (rows, 768))
        factors.append((rows, bench.ratio(f"weight out x in, {rows} rows", _linear, jnp.matmul, x, weight)))
    big = _normal(key, (2048, 2048))
    row = _normal(key, (1, 2048))
    gain = bench.ratio("one row", jnp.matmul, _linear, row, big)
    return {
        "linear_penalty": _steps(factors),
        "gemv_gain": gain if gain > 1.05 else 1.0,
        "gemv_bytes": 4e6 if gain > 1.05 else math.inf,
    }


def _linear(x: Any, w: Any) -> Any:
    return lax.dot_general(x, w, (((1,), (1,)), ((), ())))


def _steps(factors: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """(rows up to, factor) where the factor is not about 1; neighbours that are about equal together."""
    steps: list[tuple[float, float]] = []
    for rows, factor in factors:
        f = 1.0 if 0.95 < factor < 1.05 else round(factor, 2)
        if steps and abs(steps[-1][1] - f) < 0.1:
            steps[-1] = (rows, steps[-1][1])
        else:
            steps.append((rows, f))
    while steps and steps[-1][1] == 1.0:
        steps.pop()
    return tuple(steps)


def _convolutions(bench: Bench, p: Profile, key: Any) -> dict[str, float]:
    """How much longer a convolution takes than the matmul of its windows, at the geometric mean of a few."""
    ratios: list[float] = []
    for channels, size in ((64, 28), (128, 14), (32, 56)):
        x, w = _normal(key, (1, channels, size, size)), _normal(key, (channels, channels, 3, 3))
        seconds = bench.time(f"convolution {channels}x{size}x{size}", _conv, x, w) - p.dispatch
        rows, depth = size * size, 9 * channels
        share = share_of_peak((rows, channels, depth), p.matmul_half)
        ratios.append(max(seconds, 1e-9) * p.rate("float32") * share / (2.0 * rows * channels * depth))
    channels, size = 128, 28
    x, w = _normal(key, (1, channels, size, size)), _normal(key, (channels, 1, 3, 3))
    seconds = bench.time("depthwise convolution", lambda x, w: _conv(x, w, channels), x, w) - p.dispatch
    flops = 2.0 * 9 * channels * size * size
    share = (1.0 / (1.0 + p.group_half[0])) * (9.0 / (9.0 + p.group_half[1]))
    reached = flops / max(seconds, 1e-9) / p.rate("float32")
    return {"conv_factor": max(1.0, _mean(ratios)), "group_share": min(1.0, reached / share)}


def _conv(x: Any, w: Any, groups: int = 1) -> Any:
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", feature_group_count=groups)


def _slow_loops(bench: Bench, p: Profile, key: Any) -> dict[str, float]:
    """Flop/s, as their records count, of operators whose loops do not vectorise."""
    from relax_eg import ir
    from relax_eg.ops import api as op
    from relax_eg.ops import counts, site_of

    n = 512
    x = _normal(key, (n, n))
    spec = ir.var("x", ir.Tensor((n, n), "float32"))
    programs: list[tuple[tuple[str, ...], Callable[[Any], Any], Any]] = [
        (("sort",), lambda a: jnp.sort(a, axis=-1), op.sort(spec)),
        (("argmax", "argmin"), lambda a: jnp.argmax(a, axis=-1), op.argmax(spec, 1)),
        (("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), lambda a: jnp.cumsum(a, -1), op.cumsum(spec, 1)),
    ]
    rates = dict(p.scalar_rate)
    for names, fn, written in programs:
        (e,) = [e for e in ir.postorder([written]) if e.op == names[0]]
        seconds = bench.time(names[0], fn, x) - p.dispatch
        rates |= dict.fromkeys(names, counts(site_of(e)).flops.value / max(seconds, 1e-9))
    return rates


def _normal(key: Any, shape: tuple[int, ...]) -> Any:
    return jax.random.normal(key, shape, jnp.float32)


def _mean(values: Iterable[float]) -> float:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs))


def _error(pairs: Iterable[tuple[float, float]]) -> float:
    """Mean square of the logarithms of predicted over measured times."""
    logs = [math.log(a / b) ** 2 for a, b in pairs]
    return sum(logs) / len(logs)


def _search(error: Callable[[Mapping[str, float]], float], choices: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The values of least error, one after the other until none changes; from each corner of the middle thirds."""
    best: tuple[float, dict[str, float]] | None = None
    for third in itertools.product((1, 2), repeat=len(choices)):
        at = {n: v[len(v) * t // 3] for (n, v), t in zip(choices.items(), third, strict=True)}
        while True:
            before = dict(at)
            for n, values in choices.items():
                at[n] = min(values, key=lambda v, n=n, at=at: error({**at, n: v}))
            if at == before:
                break
        found = (error(at), at)
        best = found if best is None or found[0] < best[0] else best
    assert best is not None
    return best[1]
