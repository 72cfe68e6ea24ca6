"""Fits the parameters of a profile to measured times.

On a shared machine, single times are wrong by factors. So the fits predict whole calls, including dispatch, and
minimize the mean of absolute logarithms of predicted over measured times, on which outliers have little effect. A
parameter that can only fall with size is fitted as a falling function. Values that no device has (for example, float64
faster than float32) are clipped.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import geometric_mean, median_high
from typing import Any

import numpy as np

from relax_eg.extract.costs.matmuls import Matmul, calling_seconds, matmul_seconds, share_of_peak
from relax_eg.extract.fusions.seconds import SHARED_BYTES, SHARED_ELEMENTS
from relax_eg.extract.profiles.profile import Mode, Profile
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, postorder, var
from relax_eg.measure import figures
from relax_eg.ops import counts, site_of
from relax_eg.shapes import Dim

Times = Mapping[str, float]  # seconds per call, by the name of the figure
_HALVES = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 96.0]  # chosen: sizes that may halve the rate of a matmul
_LEAST = 1e-8  # chosen: seconds; smaller differences are lost in the noise
_MOST_FORK, _LEAST_FORK = 1e-4, 5e-7  # chosen: seconds to wake cores; more is noise, and less counts as 0
_MOST_PENALTY = 16.0  # chosen: largest factor between two layouts; a larger one comes from a disturbed measurement
_PAGED = 1.5  # chosen: factor in seconds per byte above which memory was returned to the system between calls
_STALLED = 4.0  # chosen: factor over the predicted time above which a linear algebra routine was stalled
# chosen: largest factor over the rate of float32. 16-bit floats reach two to four times on devices with units for them,
# and bytes (AMX, VNNI, tensor cores) up to 16 times.
_MOST_RATE = {"float64": 1.0, "int32": 1.0, "float16": 4.0, "bfloat16": 4.0, "int8": 16.0}


def _transpose_rate(p: Profile, times: Times) -> float:
    count = figures.transposed_size(p) ** 2
    return count / max(times["transposed"] - times["in order"], count / p.cache_bandwidth)


def fit_profile(start: Profile, times: Times) -> Profile:
    """The profile that explains `times`; parameters that no figure measures are those of `start`."""
    p = replace(start, dispatch=times["dispatch"], **_overheads(times, figures.CHAINS))
    if figures.has_threads(p):
        p = replace(p, **_fit_fork(times), **_fit_join(times))
    n = figures.vector_size(p)
    p = replace(p, vector_rate=2 * figures.DEPTH * n / _work(p, times["elementwise"], True))
    p = replace(p, **_memory(p, times), **_fresh(p, times))
    p = replace(p, transpose_rate=_transpose_rate(p, times))
    if figures.has_threads(p):
        p = replace(p, **_matmuls(p, times, ""), **_layouts(p, times, ""))
    p = replace(p, matmul_rate=_rates(p, times))
    p = replace(p, **_convolutions(p, times), **_taps(p, times))
    p = replace(p, **_linear_algebra(p, times))
    p = replace(p, scalar_rate={**p.scalar_rate, **_slow_loops(p, times)})
    return replace(p, modes=tuple(_fit_mode(p, times, m) for m in start.modes)) if figures.has_threads(p) else p


def _overheads(times: Times, chains: tuple[int, int]) -> dict[str, float]:
    """Seconds per kernel besides its work, alone (`launch`) and in loops, and of a call with many kernels."""

    def each(name: str, counts: tuple[int, int] = figures.LOOPS) -> float:
        few, many = counts
        return max((times[f"{name} {many}"] - times[f"{name} {few}"]) / (many - few), _LEAST)

    launch = each("chain", chains)
    found = {"launch": launch, "step": max(each("loop") - launch, _LEAST)}
    if f"loop of kernels {figures.LOOPS[0]}" in times:  # on CPUs
        found["launch"] = launch / figures.IN_A_CHAIN
        here, handed = (times.get(f"chain {n}", 0.0) for n in figures.HANDED)
        found["handoff"] = min(max(handed - here - launch, 0.0), _MOST_FORK)
        found["loop_launch"] = each("loop of kernels") / figures.IN_A_STEP
        found["library_launch"] = max(each("loop of matmuls") / figures.IN_A_STEP - found["loop_launch"], 0.0)
        tiny = each("loop of tiny matmuls") / figures.IN_A_STEP - found["loop_launch"] - found["library_launch"]
        found["tiny_launch"] = max(tiny, 0.0)
        found["vector_launch"] = max(each("loop of vectors") / figures.IN_A_STEP - found["loop_launch"], 0.0)
    return found


def matmul_errors(p: Profile, times: Times) -> list[float]:
    """The error of a profile for each matmul that was timed: absolute logarithm of predicted over measured seconds."""
    known = [s for s in figures.MATMULS if _matmul_name(s) in times]
    return [abs(math.log(_matmul_seconds(p, *s) / times[_matmul_name(s)])) for s in known]


def fit_few(start: Profile, times: Times) -> Profile:
    """The profile that explains the `times` of a quick calibration (`measure.quick`).

    Rates of memory, of elementwise code, of transposes and of matmuls are measured, the seconds of dispatch, of
    kernels and of waking other cores, and the layout of weights at a few numbers of rows. All else is as in
    `start`, in proportion: the columns and depths that halve a matmul's rate, the rates of dtypes, and the shares
    of convolutions and linear algebra, which differ least between machines.
    """
    p = replace(start, dispatch=times["dispatch"], **_overheads(times, figures.FEW_CHAINS))
    n = figures.vector_size(p)
    vector_rate = 2 * figures.DEPTH * n / _work(p, times["elementwise"], True)
    p = replace(p, vector_rate=vector_rate, tap_rate=p.tap_rate * vector_rate / p.vector_rate)
    p = replace(p, **_memory(p, times))
    p = replace(p, transpose_rate=_transpose_rate(p, times))
    known = [s for s in figures.MATMULS if _matmul_name(s) in times]

    def error(at: Mapping[str, float]) -> float:
        half = at["m"], *p.matmul_half[1:]
        q = replace(p, matmul_rate={"float32": at["rate"]}, matmul_half=half, fork=at["fork"])
        alone = ((_matmul_seconds(q, *s), times[_matmul_name(s)]) for s in known)
        chained = (
            (_chain_seconds(q, r, figures.LAYOUT), times[f"in x out {r} {figures.LAYOUT}"]) for r in figures.FEW_ROWS
        )
        return _error([*alone, *chained])

    choices = {"rate": [p.rate("float32") * 2.0 ** (k / 4) for k in range(-20, 29)], "m": _HALVES}
    choices["fork"] = [start.fork * 2.0 ** (k / 2) for k in range(-2, 7)]
    found = _search(error, choices)
    faster = found["rate"] / p.rate("float32")
    rates = {dtype: faster * rate for dtype, rate in p.matmul_rate.items()}
    p = replace(p, matmul_half=(found["m"], *p.matmul_half[1:]), fork=found["fork"])
    side = float(figures.rate_side(p))
    flops = 2.0 * side**3
    # Machines differ most in their products of bytes: few have units for them.
    reached = flops / _work(p, times["rate int8"], flops >= p.fork_flops) / share_of_peak((side,) * 3, p.matmul_half)
    rates["int8"] = min(float(reached), _MOST_RATE["int8"] * rates["float32"])
    p = replace(p, matmul_rate=rates)
    gain = min(max(1.0 / _layout_ratio(p, times, "", 1, figures.ONE_ROW[1]), 1.0), _MOST_PENALTY)
    return replace(p, gemv_gain=gain, **_penalties(p, times, "", figures.FEW_ROWS, figures.FEW_PAGED))


def _matmul_name(shape: Sequence[int]) -> str:
    return f"matmul {' '.join(map(str, shape))}"


def _matmul_seconds(p: Profile, m: int, n: int, k: int) -> float:
    """The predicted seconds of a call of a matmul, as the fits see it."""
    flops, moved = 2.0 * m * n * k, 4.0 * (m * k + k * n + m * n)
    seconds = max(flops / (p.rate("float32") * share_of_peak((m, n, k), p.matmul_half)), p.move(moved))
    called = p.launch + float(calling_seconds(p, Matmul(flops, m, n, k, "float32")))
    return p.call(called + seconds + p.joining(m, flops), flops >= p.fork_flops)


def _chain_seconds(p: Profile, rows: int, side: int) -> float:
    """The predicted seconds of a call of a chain of matmuls (`figures.chains_of_matmuls`), weights stored in order."""
    around = float(p.call(0.0, 2.0 * rows * side * side >= p.fork_flops))
    return around + figures.chained_weights(side) * (_matmul_seconds(p, rows, side, side) - around)


def _chain_work(p: Profile, seconds: float, rows: int, side: int) -> float:
    """The seconds of work of one matmul of a chain, without its overheads: at least a tenth of all."""
    flops = 2.0 * rows * side * side
    around, count = p.call(0.0, flops >= p.fork_flops), figures.chained_weights(side)
    called = p.launch + float(calling_seconds(p, Matmul(flops, rows, side, side, "float32")))
    apart = called + float(p.joining(rows, flops))
    return max((seconds - around) / count - apart, 0.1 * seconds / count)


def _layout_ratio(p: Profile, times: Times, mode: str, rows: int, side: int) -> float:
    """How many times longer a matmul works if its weight is stored output axis first."""
    ways = (times[f"{mode}{way} {rows} {side}"] for way in ("out x in", "in x out"))
    stored, plain = (_chain_work(p, t, rows, side) for t in ways)
    return stored / plain


def _page_ratio(p: Profile, times: Times, mode: str, rows: int) -> float:
    """How many times longer a matmul works if rows of its weight are multiples of a page: seconds per element of the
    weight, over those of another weight."""
    sides = figures.PAGED, figures.LAYOUT
    paged, plain = (_chain_work(p, times[f"{mode}in x out {rows} {n}"], rows, n) / (n * n) for n in sides)
    return paged / plain


def _penalties(p: Profile, times: Times, mode: str, rows: Sequence[int], paged: Sequence[int]) -> dict[str, Any]:
    """The fields of a profile for layouts of weights, from matmuls of these `rows` with both layouts, and with weights
    whose rows are multiples of a page. The factor of a weight stored output axis first falls with the rows."""

    def table(at: Sequence[int], factors: Sequence[float]) -> tuple[tuple[float, float], ...]:
        return merge_factors([(float(r), min(max(f, 1.0), _MOST_PENALTY)) for r, f in zip(at, factors, strict=True)])

    return {
        "linear_penalty": table(rows, fit_falling([_layout_ratio(p, times, mode, r, figures.LAYOUT) for r in rows])),
        "page_penalty": table(paged, [_page_ratio(p, times, mode, r) for r in paged]),
    }


def _work(p: Profile, seconds: float, wakes: bool) -> float:
    """The seconds of work of a call's single kernel: those of the call without its overheads, at least a tenth of the
    call. `wakes`: whether it wakes other cores."""
    return max(seconds - p.call(p.launch, wakes), 0.1 * seconds)


def _fit_fork(times: Times, mode: str = "") -> dict[str, float]:
    """The seconds to wake other cores, and the flops from which on they are woken: a step in the times of small
    matmuls."""
    peak = max(2.0 * m * n * k / times[f"{mode}matmul {m} {n} {k}"] for m, n, k in figures.MATMULS)
    found = [(2.0 * n**3, times[f"{mode}matmul {n} {n} {n}"] - 2.0 * n**3 / peak) for n in figures.SMALL]
    found.insert(0, (1.0, times["dispatch"]))

    def error(split: int) -> float:
        parts = found[:split], found[split:]
        return sum(abs(math.log(s / median_high(t for _, t in part))) for part in parts for _, s in part)

    split = min(range(1, len(found) + 1), key=error)
    if split == len(found):
        return {"fork": 0.0, "fork_flops": math.inf}
    below, above = (median_high(t for _, t in part) for part in (found[:split], found[split:]))
    fork = min(above - below, _MOST_FORK)
    if fork < _LEAST_FORK:
        return {"fork": 0.0, "fork_flops": math.inf}
    return {"fork": fork, "fork_flops": math.sqrt(found[split - 1][0] * found[split][0])}


def _memory(p: Profile, times: Times) -> dict[str, float]:
    """The bandwidths of memory and cache, and the bytes of the cache, fitted to reads of two arrays and to copies."""
    sizes = [n for n in figures.memory_sizes(p) if f"read {n}" in times]
    found: list[tuple[float, bool, float]] = []  # bytes, whether other cores are woken, seconds
    for n in sizes:
        found.append((2.0 * n, n // 4 >= SHARED_ELEMENTS, times[f"read {n}"]))
        if f"copy {n}" in times:
            found.append((2.0 * n, 2 * n >= SHARED_BYTES, times[f"copy {n}"]))
    rates = [moved / _work(p, s, wakes) for moved, wakes, s in found]

    def error(at: Mapping[str, float]) -> float:
        q = replace(p, bandwidth=at["slow"], cache_bandwidth=max(at["fast"], at["slow"]), cache_bytes=at["bytes"])
        return _error((q.call(q.launch + q.move(moved), wakes), s) for moved, wakes, s in found)

    top, bottom = max(rates), rates[0]
    choices = {
        "slow": [bottom * f for f in (0.8, 1.0, 1.25, 1.5, 2.0, 3.0)],
        "fast": [top * f for f in (0.2, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2)],
        "bytes": [float(sizes[0] >> k) for k in range(10)],
    }
    at = _search(error, choices)
    return {"bandwidth": at["slow"], "cache_bandwidth": max(at["fast"], at["slow"]), "cache_bytes": at["bytes"]}


def _fresh(p: Profile, times: Times) -> dict[str, float]:
    """The bytes from which on the memory of a result is allocated page by page, and the rate of that: a step in the
    seconds per byte."""
    sizes = figures.result_sizes(p)
    found = [times[name] / n for n, name in sizes]

    def error(split: int) -> float:
        return sum(abs(math.log(s / median_high(part))) for part in (found[:split], found[split:]) for s in part)

    split = min(range(1, len(found)), key=error, default=0)
    if not split or median_high(found[split:]) < _PAGED * median_high(found[:split]):
        return {"fresh_bytes": math.inf, "fresh_rate": math.inf}
    rate = 1 / (median_high(found[split:]) - median_high(found[:split]))
    return {"fresh_bytes": float(sizes[split][0]), "fresh_rate": rate}


def _matmuls(p: Profile, times: Times, mode: str) -> dict[str, Any]:
    """The peak rate of float32 matmuls, and the sizes at which thin sides halve it, fitted over shapes."""
    found = [(shape, times[mode + _matmul_name(shape)]) for shape in figures.MATMULS]
    chained = [(rows, times[f"{mode}in x out {rows} {figures.LAYOUT}"]) for rows in figures.ROWS]

    def error(at: Mapping[str, float]) -> float:
        q = replace(p, matmul_rate={"float32": at["rate"]}, matmul_half=(at["m"], at["n"], at["k"]))
        alone = ((_matmul_seconds(q, *shape), s) for shape, s in found)
        return _error([*alone, *((_chain_seconds(q, rows, figures.LAYOUT), s) for rows, s in chained)])

    peak = max(2.0 * m * n * k / s for (m, n, k), s in found)
    choices = {"rate": [peak * f for f in (0.8, 0.9, 1.0, 1.1, 1.25, 1.5)], "m": _HALVES, "n": _HALVES, "k": _HALVES}
    best = _search(error, choices)
    return {
        "matmul_rate": {**p.matmul_rate, "float32": best["rate"]},
        "matmul_half": (best["m"], best["n"], best["k"]),
        "tiles": (),
    }


def _rates(p: Profile, times: Times) -> dict[str, float]:
    """Peak rates of matmul by dtype: the rate of float32, on devices with threads the one fitted over shapes, times the
    ratio of the dtypes at one size."""
    flops = 2.0 * figures.rate_side(p) ** 3
    seconds = {d: _work(p, times[f"rate {d}"], flops >= p.fork_flops) for d in (*figures.FLOATS, "int32", "int8")}
    single = p.rate("float32") if figures.has_threads(p) else flops / seconds["float32"]
    shares = {d: min(seconds["float32"] / s, _MOST_RATE.get(d, 1.0)) for d, s in seconds.items()}
    return {d: single * share for d, share in shares.items()}


def _layouts(p: Profile, times: Times, mode: str) -> dict[str, Any]:
    """The fields of a profile for layouts of weights with several rows; for one row, the gain of a weight stored output
    axis first, and the bytes of the weight from which on there is a gain."""
    gains = [min(1.0 / _layout_ratio(p, times, mode, 1, n), _MOST_PENALTY) for n in figures.ONE_ROW]
    small = max((i for i, gain in enumerate(gains) if gain <= 1.05), default=-1)  # the last size without a gain
    return {
        **_penalties(p, times, mode, figures.ROWS, figures.ROWS),
        "gemv_gain": geometric_mean(gains[small + 1 :]) if gains[small + 1 :] else 1.0,
        "gemv_bytes": _threshold_bytes(figures.ONE_ROW, small + 1),
    }


def _fit_join(times: Times, mode: str = "") -> dict[str, float]:
    """The seconds that a matmul of several rows takes besides its work, and the flops from which on it takes them. They
    are the time of three matmuls minus that of one matmul with the work of all three, halved."""
    extra = [(times[f"{mode}apart {n}"] - times[f"{mode}as one {n}"]) / 2 for n in figures.APART]

    def error(split: int) -> float:
        above = median_high(extra[split:]) if split < len(extra) else 0.0
        return sum(map(abs, extra[:split])) + sum(abs(x - above) for x in extra[split:])

    split = min(range(len(extra) + 1), key=error)
    join = min(median_high(extra[split:]), _MOST_FORK) if split < len(extra) else 0.0
    longer = [times[f"{mode}apart {n}"] / times[f"{mode}as one {n}"] for n in figures.APART[split:]]
    if join < _LEAST_FORK or median_high(longer) < 1.05:
        return {"join": 0.0, "join_flops": math.inf}
    return {"join": join, "join_flops": figures.APART_ROWS / 2 * _threshold_bytes(figures.APART, split)}


def _threshold_bytes(sides: Sequence[int], first: int) -> float:
    """The bytes of a float32 weight from which on an effect holds. The effect is first seen at side `sides[first]`, so
    the threshold is between this side and the one before. Infinity if the effect is never seen."""
    if first == len(sides):
        return math.inf
    return 4.0 * sides[first] * sides[max(first - 1, 0)]


def fit_falling(values: Sequence[float]) -> list[float]:
    """The non-increasing values nearest to `values` in the mean square of logarithms (isotonic regression)."""
    from scipy.optimize import isotonic_regression  # only calibration needs it, and importing it takes long

    return np.exp(isotonic_regression(np.log(values), increasing=False).x).tolist()


def merge_factors(factors: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Simplified pairs (rows up to, factor): neighbours with about equal factors are merged, factors near 1 become 1,
    and a trailing factor of 1 is dropped."""
    found: list[tuple[float, float]] = []
    for rows, factor in factors:
        f = 1.0 if factor < 1.05 else round(factor, 2)
        if found and abs(found[-1][1] - f) < 0.1:
            found[-1] = (rows, found[-1][1])
        else:
            found.append((rows, f))
    while found and found[-1][1] == 1.0:
        found.pop()
    return tuple(found)


def _convolutions(p: Profile, times: Times) -> dict[str, float]:
    """The factor by which a convolution takes longer than the matmul of its windows, without the transposition of its
    images (the geometric mean over `CONVOLUTIONS`), the seconds of a row of a window, which count where there are few
    channels (`THIN`), and the share of the peak rate that grouped convolutions reach."""

    def of(name: str, channels: int, out: int, size: int) -> tuple[float, float, int]:
        """The seconds without the transposition, those of the matmul, and the rows of the matmul."""
        rows, depth = figures.images(p) * size * size, 9 * channels
        flops = 2.0 * rows * out * depth
        seconds = _work(p, times[name], flops >= p.fork_flops)
        turned = ((channels + out) * rows + depth * out) / p.transpose_rate
        product = float(matmul_seconds(p, Matmul(flops, rows, out, depth, "float32")))
        return max(seconds - turned, 0.1 * seconds), product, rows

    each = [of(f"convolution {channels} {size}", channels, channels, size) for channels, size in figures.CONVOLUTIONS]
    factor = max(1.0, geometric_mean([seconds / product for seconds, product, _ in each]))
    seconds, product, rows = of("thin convolution", *figures.THIN)
    row = max(0.0, seconds - factor * product) / (3 * rows)
    flops = 2.0 * 9 * 128 * 28 * 28 * figures.images(p)
    share = (1.0 / (1.0 + p.group_half[0])) * (9.0 / (9.0 + p.group_half[1]))
    reached = flops / _work(p, times["depthwise"], flops >= p.fork_flops) / p.rate("float32")
    return {"conv_factor": factor, "window_row": row, "group_share": min(1.0, reached / share)}


def taps_amounts() -> tuple[float, float]:
    """The flops of the figure of `TAPS`, and the bytes that it moves."""
    channels, size = figures.TAPS
    return 17.0 * channels * size**2, 4.0 * channels * (size**2 + (size + 2) ** 2 + 9)


def _taps(p: Profile, times: Times) -> dict[str, float]:
    """The rate of sums over taps with channels last."""
    if not p.tap_rate:
        return {}
    flops, moved = taps_amounts()
    return {
        "tap_rate": flops / max(_work(p, times["taps"], flops >= p.fork_flops) - p.move(moved), 0.1 * times["taps"])
    }


def _linear_algebra(p: Profile, times: Times) -> dict[str, Any]:
    """The shares of the matmul rate that factorisations and triangular solves reach, and the sizes at which small sides
    halve them."""
    from relax_eg.ops import api as op

    factors, systems = list[Timed](), list[Timed]()
    for n in figures.matrix_sides(p):
        for name, written in (("cholesky", op.cholesky(_matrix(n, n))), ("lu", op.lu(_matrix(n, n))[0])):
            factors.append(((n,), _flops(written, name), times[f"{name} {n}"]))
    for n, columns in figures.triangular_sizes(p):
        written = op.triangular_solve(_matrix(n, n), _matrix(n, columns))
        systems.append(((n, columns), _flops(written, "triangular_solve"), times[f"solve {n} {columns}"]))
    factor_share, factor_half = _shares(p, factors, p.factor_share, (p.factor_half,))
    solve_share, solve_half = _shares(p, systems, p.solve_share, p.solve_half)
    return {
        "factor_share": factor_share,
        "factor_half": factor_half[0],
        "solve_share": solve_share,
        "solve_half": solve_half,
    }


Timed = tuple[tuple[int, ...], int, float]  # sizes of operands, flops, seconds of a call


def _shares(
    p: Profile, found: Sequence[Timed], share: float, half: tuple[float, ...]
) -> tuple[float, tuple[float, ...]]:
    """The share of the matmul rate that a routine reaches on large operands, and the sizes at which it reaches half of
    that share. `share` and `half` are the estimates from which stalled calls are recognized.

    On CPUs, threads of these libraries yield their core while they wait for each other. If another process takes the
    core, a call of 50 microseconds takes 7 milliseconds. Such times are left out; if they are more than a third, the
    estimates are returned.
    """

    def predicted(sizes: Sequence[int], flops: int, share: float, half: Sequence[float]) -> float:
        seconds = flops / (p.rate("float32") * share * share_of_peak(sizes, half))
        return p.call(p.launch + seconds, flops >= p.fork_flops)

    most = _STALLED if p.platform == "cpu" else math.inf
    likely = [(sizes, flops, s) for sizes, flops, s in found if s < most * predicted(sizes, flops, share, half)]
    if 3 * len(likely) < 2 * len(found):
        return share, half
    halves = [float(n) for n in (1, 4, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 16384)]
    choices = [[0.05 * 1.2**k for k in range(17)], *(halves for _ in half)]
    best = min(
        itertools.product(*choices),
        key=lambda at: _error((predicted(sizes, flops, at[0], at[1:]), s) for sizes, flops, s in likely),
    )
    return best[0], best[1:]


def _slow_loops(p: Profile, times: Times) -> dict[str, float]:
    """The flop/s, in the flops that operator records count, of operators whose loops do not vectorise."""
    from relax_eg.ops import api as op

    x = _matrix(figures.slow_side(p), figures.slow_side(p))
    alike = {
        "sort": (("sort",), op.sort(x)),
        "argmax": (("argmax", "argmin"), op.argmax(x, 1)),
        "cumsum": (("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), op.cumsum(x, 1)),
    }
    rates: dict[str, float] = {}
    for name in figures.SLOW_LOOPS:
        names, written = alike[name]
        seconds = max(times[name] - float(p.call(p.launch, False)), 0.1 * times[name])
        rates |= dict.fromkeys(names, _flops(written, name) / seconds)
    return rates


def _matrix(rows: int, columns: int) -> Expr:
    return var("x", Tensor((Dim.of(rows), Dim.of(columns)), "float32"))


def _flops(written: Expr, op: str) -> int:
    """The flops of the only node of an operator in an expression, as the operator's record counts them."""
    (e,) = [e for e in postorder([written]) if e.op == op]
    return counts(site_of(e)).flops.value


def _fit_mode(p: Profile, times: Times, mode: Mode) -> Mode:
    """`mode` with the parameters of waking cores, matmuls and layouts measured in this compilation mode."""
    name = f"{mode.name}: "
    changes: dict[str, Any] = _fit_fork(times, name) | _fit_join(times, name)
    q = replace(p, **changes)
    changes |= _matmuls(q, times, name) | _layouts(q, times, name)
    scale = changes["matmul_rate"]["float32"] / p.rate("float32")
    changes["matmul_rate"] = {dtype: scale * rate for dtype, rate in p.matmul_rate.items()}
    return replace(mode, changes=changes)


def _error(pairs: Iterable[tuple[float, float]]) -> float:
    """The mean of the absolute logarithms of predicted over measured times."""
    logs = [abs(math.log(a / b)) for a, b in pairs]
    return sum(logs) / len(logs)


def _search(error: Callable[[Mapping[str, float]], float], choices: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The values with the least error that coordinate descent finds. It optimizes one value after another until none
    changes, and starts from each corner of the middle thirds of the choices."""
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
