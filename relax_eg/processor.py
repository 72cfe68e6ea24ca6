"""The processors of this machine, as the system describes them."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path


@lru_cache(1)
def _described() -> Mapping[str, str]:
    found: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
    return found


def processor_name() -> str:
    """The name of the processor's model; of its architecture where the system does not say."""
    return _described().get("model name") or platform.processor() or platform.machine()


def processor_flags() -> tuple[str, ...]:
    """The sorted names of the instruction sets that the processor has; empty where the system does not say."""
    found = _described()
    return tuple(sorted({*found.get("flags", "").split(), *found.get("Features", "").split()}))


def cores() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
