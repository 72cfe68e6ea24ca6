"""Upper bounds on the bytes that an executable allocates beside its arguments and results.

`memory_analysis` reports the buffers that XLA assigns. On CPUs, XLA treats a fusion for its kernel library as one
instruction and does not report what the library allocates inside. So each value inside such a fusion is counted as if
it had a buffer of its own, which bounds what the library allocates.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import jax

from relax_eg.memo import Memo

# XLA does not report what fusions for its CPU library allocate, and its default CPU scheduler ignores memory.
FRUGAL = {"xla_cpu_experimental_ynn_fusion_type": "", "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}

_LIBRARY_FUSION = re.compile(r"fusion\(.*calls=(%[\w.\-]+).*\"__ynn_fusion\"")
_COMPUTATION = re.compile(r"^(?:ENTRY )?(%[\w.\-]+) .*\{$")
_VALUE = re.compile(r"^\s+(ROOT )?%[\w.\-]+ = ([a-z]+\d*[a-z0-9]*)\[([\d,]*)\]")
# given: bytes per element of some HLO dtypes; the names of all others tell the bits
_BYTES = {"pred": 1, "s4": 1, "u4": 1, "bf16": 2, "c64": 8, "c128": 16}
_MOST_KNOWN = 1 << 14  # limit: kernels whose allocated bytes are remembered
_allocated_bytes = Memo["tuple[bytes, Any, str, bool]", int](_MOST_KNOWN)

# given: XLA assigns buffers before LLVM sees the program; a program of which only these are asked needs no fast code
_QUICKLY = {"xla_backend_optimization_level": 0}
# given: in a quarter of the time; with older emitters, of which some loops need a value less, and others a few bytes
_ROUGHLY = {**_QUICKLY, "xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}


def is_on_cpu() -> bool:
    """Whether programs run on a CPU here, where the options `FRUGAL` apply."""
    return jax.default_backend() == "cpu"


def compiled_for_account(lowered: Any, exactly: bool = True) -> Any:
    """`lowered`, a result of `jax.jit(...).lower(...)`, compiled for the device at hand with buffers as those of the
    program that runs, in less time. `exactly`: whether none may differ: in some loops a value is missing otherwise."""
    return lowered.compile((_QUICKLY if exactly else _ROUGHLY) if is_on_cpu() else None)


def allocated_bytes(compiled: Any) -> int:
    """An upper bound on the bytes that `compiled` allocates beside arguments and results.

    `compiled`: a result of `jax.jit(...).lower(...).compile()`.
    """
    analysis = compiled.memory_analysis()
    buffers = 0 if analysis is None else int(analysis.temp_size_in_bytes)
    return buffers + library_fusion_bytes(compiled.as_text() or "")


def lowered_allocated_bytes(lowered: Any, options: Mapping[str, str], exactly: bool = True) -> int:
    """`allocated_bytes` of `lowered`, a result of `jax.jit(...).lower(...)`, compiled with these options of XLA's.
    `exactly`: as of `compiled_for_account`.

    Programs with the same text are compiled once: the candidates of a search under a memory limit share kernels.
    """
    text = blake2b(lowered.as_text().encode(), digest_size=16).digest()
    key = (text, tuple(sorted(options.items())), jax.default_backend(), exactly)
    found = _allocated_bytes.get(key)
    if found is None:
        found = _allocated_bytes[key] = allocated_bytes(compiled_for_account(lowered, exactly))
    return found


def library_fusion_bytes(text: str) -> int:
    """Bytes of all values inside the library fusions of an optimized HLO module, without the fusions' results."""
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
    each = _BYTES.get(dtype) or (max(1, int(bits[0]) // 8) if bits else 1)
    return math.prod(map(int, filter(None, shape.split(","))), start=each)
