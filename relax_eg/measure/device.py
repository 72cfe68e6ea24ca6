"""The device that JAX runs on, its machine, and the profile that ships for it."""

from __future__ import annotations

import datetime
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax

from relax_eg.extract.profiles.devices import nearest_profile
from relax_eg.extract.profiles.machine import Machine
from relax_eg.extract.profiles.profile import Profile
from relax_eg.processor import cores, processor_flags, processor_name

# given: by the processor flags of Linux, the bits of vector registers, widest first
_VECTORS = (("avx512f", 512), ("sve", 256), ("avx", 256), ("asimd", 128), ("neon", 128), ("sse2", 128))


def device() -> Any:
    """JAX's default device."""
    chosen: Any = jax.config.jax_default_device  # type: ignore[reportAttributeAccessIssue]
    if chosen is None:
        return jax.devices()[0]
    return jax.devices(chosen)[0] if isinstance(chosen, str) else chosen


def default_profile() -> Profile:
    """The profile that ships for JAX's default device: that of a CPU measured by hand, or the nearest data sheet."""
    found = device()
    return nearest_profile(found.platform, found.device_kind)


def processes() -> int:
    """The number of processes that JAX runs one program on."""
    return jax.process_count()


def this_machine() -> Machine:
    """The machine of JAX's default device; of a CPU, what the system says of its first processor."""
    found = device()
    return host() if found.platform == "cpu" else Machine(found.device_kind, cores())


def host() -> Machine:
    """The machine whose processors this process may use."""
    return Machine(*_processor(cores()))


def today() -> str:
    return datetime.date.today().isoformat()


def measured_here(p: Profile, **fields: Any) -> Profile:
    """`p`, measured today on this machine, with other `fields`."""
    machine = this_machine()
    return replace(p, machine=machine, measured=f"{machine}, {today()}, jax {jax.__version__}", **fields)


@lru_cache(8)
def _processor(count: int) -> tuple[str, int, int, tuple[int, ...]]:
    flags = processor_flags()
    vector = next((bits for flag, bits in _VECTORS if flag in flags), 0)
    caches: list[int] = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        with suppress(OSError, ValueError):
            if (index / "type").read_text().strip() != "Instruction":
                caches.append(int((index / "size").read_text().strip().removesuffix("K")) << 10)
    return processor_name(), count, vector, tuple(sorted(caches))
