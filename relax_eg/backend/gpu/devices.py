"""The GPUs that are known by name, and target-config files, from which XLA's compiler knows a device.

The figures are those that the makers publish and that a driver reports of a device.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from pathlib import Path

from relax_eg.argument_checks import short_repr
from relax_eg.errors import OptionError
from relax_eg.ops.multiprocessors import MULTIPROCESSORS, Multiprocessors, multiprocessors_of

_LARGEST_FILE = 1 << 20  # limit: bytes of a target-config file
_MEMORY = re.compile(r"\bdevice_memory_size\s*:\s*(\d+)")
_FIGURES = {
    field: re.compile(rf"\b{name}\s*:\s*(\d+)")
    for field, name in {
        "count": "core_count",
        "threads": "threads_per_core_limit",
        "registers": "registers_per_core_limit",
        "shared_bytes": "shared_memory_per_core",
        "block_shared_bytes": "shared_memory_per_block_optin",
    }.items()
}
_KIND = re.compile(r"\bdevice_description_str\s*:\s*\"([^\"\n]*)\"")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device for which XLA compiles.

    - `name`: its name for users.
    - `kind`: the name by which drivers and JAX know it.
    - `memory_bytes`: bytes of its memory; 0 where a file does not say.
    - `config`: its description in XLA's text format of `GpuTargetConfigProto`.
    - `multiprocessors`: its multiprocessors.
    """

    name: str
    kind: str
    memory_bytes: int
    config: str
    multiprocessors: Multiprocessors


def _gpu(
    name: str, kind: str, capability: tuple[int, int], clock: float, fpus: int, cache: float, memory_bytes: int,
    bandwidth: float,
) -> Gpu:  # fmt: skip
    """A device by its figures.

    - `capability`: CUDA's compute capability.
    - `clock`: highest clock, GHz.
    - `fpus`: float32 units of a multiprocessor.
    - `cache`: level-2 cache, MiB.
    - `memory_bytes`: bytes of memory.
    - `bandwidth`: of memory, GB/s.
    """
    major, minor = capability
    has = MULTIPROCESSORS[name]
    accelerated = "feature_extension: ACCELERATED_FEATURES" if major >= 9 and major < 12 else ""
    config = f"""
gpu_device_info {{
  cuda_compute_capability {{ major: {major} minor: {minor} {accelerated} }}
  core_count: {has.count}  fpus_per_core: {fpus}  clock_rate_ghz: {clock}
  threads_per_warp: 32  threads_per_block_limit: 1024  threads_per_core_limit: {has.threads}
  thread_dim_limit_x: 1024  thread_dim_limit_y: 1024  thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  shared_memory_per_core: {has.shared_bytes}  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {has.block_shared_bytes}
  registers_per_core_limit: {has.registers}  registers_per_block_limit: {has.registers}
  l2_cache_size: {round(cache * (1 << 20))}
  device_memory_size: {memory_bytes}  memory_bandwidth: {round(1e9 * bandwidth)}
  runtime_version: "12.8.0"  dnn_version: "9.10.0"  name: "{kind}"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{kind}"
"""
    return Gpu(name, kind, memory_bytes, config, has)


# given: published figures, and memory as drivers report it.
GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        _gpu("a100", "NVIDIA A100-SXM4-80GB", (8, 0), 1.41, 64, 40.0, 85100068864, 2039.04),
        _gpu("h100", "NVIDIA H100 80GB HBM3", (9, 0), 1.98, 128, 50.0, 84942979072, 3352.32),
        _gpu("h200", "NVIDIA H200", (9, 0), 1.98, 128, 50.0, 151397597184, 4800.0),
        _gpu("b200", "NVIDIA B200", (10, 0), 1.965, 128, 126.5, 191514411008, 7672.32),
        _gpu("rtx4090", "NVIDIA GeForce RTX 4090", (8, 9), 2.52, 128, 72.0, 25386352640, 1008.0),
        _gpu("l4", "NVIDIA L4", (8, 9), 2.04, 128, 48.0, 23800000000, 300.0),
    )
}


def find_gpu(device: str | Path, also: tuple[str, ...] = ()) -> Gpu:
    """The device of a name of `GPUS`, or of the path of a target-config file.

    `also`: names that the caller takes as well, for the error.

    OptionError for a name that is not known, with the nearest; for a file that cannot be read or is none.
    """
    if isinstance(device, str) and (found := GPUS.get(device.lower())) is not None:
        return found
    path = Path(device)
    if isinstance(device, Path) or path.suffix or path.is_file():
        return _from_file(path)
    names = (*GPUS, *also)
    near = difflib.get_close_matches(device.lower(), names, 2, cutoff=0.5)
    nearest = f"; the nearest: {', '.join(near)}" if near else ""
    raise OptionError(
        f"device={short_repr(device)}: one of {', '.join(names)}, or the path of a file with a GpuTargetConfigProto of "
        f"XLA's as text is accepted{nearest}"
    )


def _from_file(path: Path) -> Gpu:
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise OptionError(f"device file {path}: it has over {_LARGEST_FILE >> 20} MiB and is no target config")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise OptionError(f"device file {path} cannot be read: {e}") from None
    missing = [w for w in ("gpu_device_info", "platform_name", "device_description_str") if w not in text]
    if missing:
        raise OptionError(
            f"device file {path}: it lacks {', '.join(missing)}; a GpuTargetConfigProto of XLA's as text is accepted "
            "(xla/backends/gpu/target_config/specs in openxla/xla)"
        )
    memory, kind = _MEMORY.search(text), _KIND.search(text)
    named = kind[1] if kind else path.stem
    return Gpu(path.stem, named, int(memory[1]) if memory else 0, text, _multiprocessors(text, named))


def _multiprocessors(text: str, kind: str) -> Multiprocessors:
    """The multiprocessors that a target config describes; where it does not say, those of the GPU of this kind."""
    known = multiprocessors_of(kind)
    told = {field: int(found[1]) for field, pattern in _FIGURES.items() if (found := pattern.search(text))}
    return replace(known, **told)
