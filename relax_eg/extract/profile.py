"""Device profiles: what a device can do, as numbers the cost model reads.

The built-in CPU profile was measured on a 2-core x86-64 machine with JAX 0.10's CPU backend; it is a starting point,
marked uncalibrated. Convolutions are priced as shares of the matmul rate, which carry over to other machines best.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from relax_eg.errors import OptionError


@dataclass(frozen=True, slots=True)
class Profile:
    """A device.

    `matmul_rate`: peak flop/s of matmul by dtype ("float32" is the fallback); `vector_rate`: flop/s of fused
    elementwise code; `scalar_rate`: flop/s of operators whose loops do not vectorise, by name; `bandwidth`: bytes/s
    of memory, `cache_bandwidth` while the working set is below `cache_bytes`; `launch`: seconds per kernel inside one
    executable; `dispatch`: seconds per call of an executable; `fork`: seconds to start all cores, which kernels of
    `fork_from` seconds or more pay; `step`: seconds of a loop's step, or of a choice between branches, besides what
    is done in it; `matmul_half`: sizes (m, n, k) at which a matmul reaches half its peak; `linear_penalty`: (rows up
    to, factor) pairs: how many times longer a matmul takes when its weight lies output axis first; `gemv_bytes`,
    `gemv_gain`: with one row and a weight of so many bytes or more that layout is the faster one, by this factor;
    `conv_factor`: how many times longer a convolution takes than the matmul of its windows; `group_share`: of the
    matmul rate, what a convolution in groups reaches at most; `group_half`: channels out and window elements a group
    at which it reaches half that; `calibrated`: whether this machine was measured.
    """

    name: str
    matmul_rate: Mapping[str, float]
    vector_rate: float
    bandwidth: float
    cache_bandwidth: float
    cache_bytes: float
    launch: float
    dispatch: float
    fork: float = 0.0
    fork_from: float = float("inf")
    step: float = 0.0
    matmul_half: tuple[float, float, float] = (4.0, 8.0, 16.0)
    linear_penalty: tuple[tuple[float, float], ...] = ()
    gemv_bytes: float = float("inf")
    gemv_gain: float = 1.0
    conv_factor: float = 1.0
    group_share: float = 1.0
    group_half: tuple[float, float] = (8.0, 16.0)
    scalar_rate: Mapping[str, float] = field(default_factory=dict[str, float])
    calibrated: bool = False
    notes: str = field(default="", compare=False)

    def rate(self, dtype: str) -> float:
        return self.matmul_rate.get(dtype, self.matmul_rate["float32"])

    def kernel(self, seconds: float) -> float:
        """Seconds of a kernel of its own whose work takes `seconds`."""
        return self.launch + seconds + (self.fork if seconds >= self.fork_from else 0.0)

    def linear_factor(self, rows: float, weight_bytes: float) -> float:
        """How many times longer a matmul of `rows` rows takes with its weight stored output axis first."""
        if rows <= 1 and weight_bytes >= self.gemv_bytes:
            return 1.0 / self.gemv_gain
        return next((factor for limit, factor in self.linear_penalty if rows <= limit), 1.0)

    def move(self, n_bytes: float) -> float:
        """Seconds to move `n_bytes` once: from cache where they fit, from memory where they stream past it."""
        hit = min(1.0, (self.cache_bytes / n_bytes) ** 4) if n_bytes > 0 else 1.0
        return n_bytes * (hit / self.cache_bandwidth + (1.0 - hit) / self.bandwidth)


CPU = Profile(
    name="cpu",
    matmul_rate={"float32": 120e9, "float64": 60e9, "float16": 10e9, "bfloat16": 20e9, "int32": 4e9},
    vector_rate=8e9,
    bandwidth=15e9,
    cache_bandwidth=60e9,
    cache_bytes=1 << 20,
    launch=1.5e-6,
    dispatch=9e-6,
    fork=5e-6,
    fork_from=20e-6,
    step=1e-6,
    linear_penalty=((24, 1.7), (48, 1.2)),
    gemv_bytes=4e6,
    gemv_gain=1.3,
    conv_factor=1.1,
    group_share=0.14,
    group_half=(23.0, 20.0),
    scalar_rate={
        "sort": 0.8e9,
        "reduce_window": 2e9,
        "window_scatter": 0.15e9,
        **dict.fromkeys(("argmax", "argmin"), 0.18e9),
        **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), 0.1e9),
    },
)

PROFILES: dict[str, Profile] = {"cpu": CPU}


def profile(target: str | Profile) -> Profile:
    """The profile of a target: a name of `PROFILES`, or a profile itself."""
    if isinstance(target, Profile):
        return target
    if target not in PROFILES:
        raise OptionError(f"target={target!r}: one of {', '.join(sorted(PROFILES))}, or a Profile, is accepted")
    return PROFILES[target]
