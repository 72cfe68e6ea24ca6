"""The profiles that ship: a CPU that was measured by hand, and devices by their makers' data sheets.

The CPU is a 2-core x86-64 machine with JAX 0.10's CPU backend. The other profiles have the peak figures of data sheets
(float32 matmuls run as TF32 on the GPUs, which is JAX's default), with assumed launch times and shares of linear
algebra. None is calibrated: `relax-eg calibrate` measures the machine that it runs on.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from relax_eg.argument_checks import short_repr
from relax_eg.errors import OptionError
from relax_eg.extract.profiles.profile import Mode, Profile
from relax_eg.ops.multiprocessors import MULTIPROCESSORS

# The mode without XLA's newer kernels for matmuls on CPUs, in which a weight that is stored output axis first is slow.
WITHOUT_YNN = Mode(
    "ynn off",
    {"xla_cpu_experimental_ynn_fusion_type": ""},
    {
        "linear_penalty": ((24.0, 4.0), (64.0, 3.0), (256.0, 1.6)),
        "gemv_bytes": math.inf,
        "gemv_gain": 1.0,
        "sums_as_matmuls": False,
    },
)

# XLA for GPUs records five kernels or more in a row as a CUDA graph (a command buffer). These are the two other ways.
WITHOUT_GRAPHS = Mode("graphs off", {"xla_gpu_enable_command_buffer": ""}, {"graph_kernels": math.inf})
SHORT_GRAPHS = Mode("short graphs", {"xla_gpu_graph_min_graph_size": "1"}, {"graph_kernels": 2.0})

# measured: by hand on a 2-core x86-64 machine with jax 0.10; `relax-eg calibrate` measures the machine it runs on
CPU = Profile(
    name="cpu",
    matmul_rate={"float32": 120e9, "float64": 60e9, "float16": 10e9, "bfloat16": 20e9, "int32": 4e9, "int8": 480e9},
    vector_rate=8e9,
    bandwidth=15e9,
    cache_bandwidth=60e9,
    cache_bytes=1 << 20,
    launch=1.5e-6,
    loop_launch=0.07e-6,
    library_launch=0.5e-6,
    dispatch=9e-6,
    fork=5e-6,
    fork_flops=2048.0,
    join=10e-6,
    join_flops=1048576.0,
    step=1e-6,
    fresh_bytes=float(32 << 20),
    fresh_rate=1.5e9,
    linear_penalty=((24, 1.7), (48, 1.2)),
    gemv_bytes=4e6,
    gemv_gain=1.3,
    sums_as_matmuls=True,
    conv_factor=1.1,
    window_row=14e-9,
    tap_rate=28e9,
    group_share=0.14,
    group_half=(23.0, 20.0),
    transpose_rate=4e9,
    cores=2,
    modes=(WITHOUT_YNN,),
    scalar_rate={
        "sort": 0.8e9,
        "reduce_window": 2e9,
        "window_scatter": 0.15e9,
        **dict.fromkeys(("argmax", "argmin"), 1.2e9),
        **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), 0.4e9),
        # Functions that XLA computes element by element, by the flops that their records count.
        "sin": 2.2e9,
        "cos": 1.7e9,
        **dict.fromkeys(("tan", "cbrt"), 0.5e9),
        **dict.fromkeys(("asin", "acos", "atan", "atan2"), 1e9),
        **dict.fromkeys(("sinh", "cosh", "asinh", "acosh", "atanh", "power"), 3e9),
        **dict.fromkeys(("remainder", "floor_mod"), 0.17e9),
        "rsqrt": 2e9,
    },
)


# given: blocks of cuBLAS's matmuls, of at least 64 rows: FlashDecoding++ (Hong et al., 2023, section 2).
_TILES = ((64.0, 64.0), (64.0, 128.0), (128.0, 128.0), (128.0, 256.0))


# given: (devices, bytes/s in one direction, seconds of a step). Bandwidths are of the makers' data sheets: NVLink 4 has
# 900 GB/s and NVLink 3 600 GB/s in both directions together; between machines of eight, DGX H100 has 400 Gb/s of
# InfiniBand for each GPU and DGX A100 200; GPUs on PCIe 4.0 x16 have 32 GB/s, and 100 Gb/s of Ethernet between
# machines. Steps are assumed: two microseconds in a machine, five through a network.
_LINKS = {
    "h100": ((8.0, 450e9, 2e-6), (math.inf, 50e9, 5e-6)),
    "h200": ((8.0, 450e9, 2e-6), (math.inf, 50e9, 5e-6)),
    "a100": ((8.0, 300e9, 2e-6), (math.inf, 25e9, 5e-6)),
    "rtx4090": ((8.0, 32e9, 3e-6), (math.inf, 12.5e9, 10e-6)),
}

# given: bytes/s in one direction of the link to the host, by the makers' data sheets: PCIe 5.0 x16 has 64 GB/s and PCIe
# 4.0 x16 32 GB/s. Copies of pinned memory are assumed to reach 0.8 of that.
_HOST_RATES = {"h100": 51e9, "h200": 51e9, "a100": 25.6e9, "rtx4090": 25.6e9}


def _gpu(
    name: str, tf32: float, half: float, double: float, vector: float, bandwidth: float, l2_bytes: float,
    memory: float, notes: str,
) -> Profile:  # fmt: skip
    """The profile of a GPU from its data sheet.

    - `tf32`, `half`, `double`: dense tensor-core rates, flop/s.
    - `vector`: float32 vector rate, flop/s.
    - `bandwidth`: bytes/s of memory.
    - `l2_bytes`: bytes of the level-2 cache.
    - `memory`: bytes of its memory.
    """
    return Profile(
        name=name,
        # Tensor cores multiply bytes twice as fast as 16-bit floats.
        matmul_rate={
            "float32": tf32,
            "float64": double,
            "float16": half,
            "bfloat16": half,
            "int32": vector / 4,
            "int8": 2 * half,
        },
        vector_rate=vector,
        bandwidth=bandwidth,
        cache_bandwidth=3 * bandwidth,
        cache_bytes=l2_bytes,
        launch=2.5e-6,
        dispatch=20e-6,
        step=10e-6,
        matmul_half=(96.0, 96.0, 64.0),
        cores=MULTIPROCESSORS[name].count,
        tiles=_TILES,
        group_share=0.1,
        factor_share=0.3,
        factor_half=16384.0,
        solve_share=0.3,
        solve_half=(4096.0, 512.0),
        scalar_rate={"sort": 0.4e9, **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), 50e9)},
        # Assumed for every GPU, from published figures of an H100 (sources in docs/kernels.md); a launch inside a graph
        # as measured on one (docs/gpu.md).
        fused_share=0.76,
        pallas_share=0.52,
        library_speed=dict.fromkeys((f"cudnn.attention{kind}" for kind in ("", "_mask", "_bias", "_causal")), 0.8),
        graph_kernels=5.0,
        graph_launch=2.5e-6,
        graph_kernel=1.4e-6,
        modes=(WITHOUT_GRAPHS, SHORT_GRAPHS),
        links=_LINKS[name],
        memory=memory,
        host_rate=_HOST_RATES[name],
        platform="gpu",
        pallas=True,
        notes=notes,
    )


# given: data sheets of 8 cores with AVX2 and two channels of DDR5; what is not here is as measured on CPU
LAPTOP = replace(
    CPU,
    name="laptop",
    matmul_rate={"float32": 350e9, "float64": 175e9, "float16": 30e9, "bfloat16": 60e9, "int32": 15e9, "int8": 700e9},
    vector_rate=40e9,
    bandwidth=50e9,
    cache_bandwidth=250e9,
    cache_bytes=8 << 20,
    dispatch=8e-6,
    fresh_rate=6e9,
    tap_rate=140e9,
    transpose_rate=8e9,
    cores=8,
    notes="8 cores with AVX2, two channels of DDR5",
)

PROFILES: dict[str, Profile] = {
    p.name: p
    for p in (
        CPU,
        LAPTOP,
        _gpu(
            "rtx4090",
            82.6e12,
            165e12,
            1.29e12,
            82.6e12,
            1.008e12,
            72 << 20,
            24e9,
            "GeForce RTX 4090, 24 GB",
        ),
        _gpu("a100", 156e12, 312e12, 19.5e12, 19.5e12, 2.039e12, 40 << 20, 80e9, "A100 SXM, 80 GB"),
        _gpu("h100", 494e12, 989e12, 67e12, 67e12, 3.35e12, 50 << 20, 80e9, "H100 SXM, 80 GB"),
        _gpu("h200", 494e12, 989e12, 67e12, 67e12, 4.8e12, 50 << 20, 141e9, "H200 SXM, 141 GB"),
    )
}


def nearest_profile(platform: str, kind: str) -> Profile:
    """The profile of a device by the platform and kind that JAX reports.

    For a CPU it is `CPU`. For any other device it is the data sheet whose name is in `kind`, or else that of the A100
    with a name that says that it is only the nearest."""
    if platform == "cpu":
        return CPU
    plain = kind.lower().replace(" ", "")
    found = next((p for n, p in PROFILES.items() if p not in (CPU, LAPTOP) and n.replace("rtx", "") in plain), None)
    sheet = found or PROFILES["a100"]
    return replace(sheet, name=f"{sheet.name}{'' if found else f', the nearest to {kind}'}, uncalibrated")


def profile(target: str | Path | Profile) -> Profile:
    """The profile of a target: a name of `PROFILES`, the path of a JSON file that `relax-eg calibrate` wrote, or a
    profile itself.

    OptionError for any other target."""
    if isinstance(target, Profile):
        return target
    if isinstance(target, str) and target in PROFILES:
        return PROFILES[target]
    if isinstance(target, (str, Path)) and str(target).endswith(".json"):
        return Profile.from_json(Path(target))
    names = ", ".join(sorted(PROFILES))
    raise OptionError(
        f"target={short_repr(target)}: one of {names}, the path of a .json profile, or a Profile is accepted"
    )
