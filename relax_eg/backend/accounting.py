"""What an executable allocates beside its arguments and results, nothing left out.

`memory_analysis` tells the buffers that XLA assigns. On CPUs a fusion for its library of kernels is one instruction to
it, and what the library allocates for values inside is in no account. So all that such a fusion computes or reads in
another order counts, as if each value had memory of its own: no more is allocated than that.
"""

from __future__ import annotations

import re
from typing import Any

import jax

# XLA's CPU library keeps what its fusions allocate out of the account, and its usual scheduler has no eye for memory.
FRUGAL = {"xla_cpu_experimental_ynn_fusion_type": "", "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}

_LIBRARY_FUSION = re.compile(r"fusion\(.*calls=(%[\w.\-]+).*\"__ynn_fusion\"")
_COMPUTATION = re.compile(r"^(?:ENTRY )?(%[\w.\-]+) .*\{$")
_VALUE = re.compile(r"^\s+(ROOT )?%[\w.\-]+ = ([a-z]+\d*[a-z0-9]*)\[([\d,]*)\]")
_BYTES = {"pred": 1, "s4": 1, "u4": 1, "bf16": 2, "c64": 8, "c128": 16}


def is_on_cpu() -> bool:
    """Whether programs run on a CPU here, whose library of kernels `FRUGAL` does without."""
    return jax.default_backend() == "cpu"


def allocated(compiled: Any) -> int:
    """Bytes that `jax.jit(...).lower(...).compile()` allocates beside arguments and results, at most."""
    analysis = compiled.memory_analysis()
    buffers = 0 if analysis is None else int(analysis.temp_size_in_bytes)
    return buffers + inside_library_fusions(compiled.as_text() or "")


def inside_library_fusions(text: str) -> int:
    """Bytes of all values inside of the library fusions of an optimized HLO module, results of these left out."""
    if "__ynn_fusion" not in text:
        return 0
    lines = text.splitlines()
    called = [found[1] for line in lines if (found := _LIBRARY_FUSION.search(line))]
    inside: dict[str, int] = {}
    name = ""
    for line in lines:
        if (found := _COMPUTATION.match(line)) is not None:
            name = found[1]
        elif (found := _VALUE.match(line)) is not None and not found[1]:
            inside[name] = inside.get(name, 0) + _bytes_of(found[2], found[3])
    return sum(inside.get(c, 0) for c in called)


def _bytes_of(dtype: str, shape: str) -> int:
    bits = re.search(r"\d+", dtype)
    count = _BYTES.get(dtype) or (max(1, int(bits[0]) // 8) if bits else 1)
    for n in filter(None, shape.split(",")):
        count *= int(n)
    return count
