"""Reads untrusted files: the only reader of JSON, and the checks of what a file may contain.

A file is data. It names things by words from lists that are defined here or in the package that uses them. Nothing that
a file names is imported, called, or looked up as an attribute.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from relax_eg.errors import OptionError, RelaxEgError
from relax_eg.limits import JSON_DEPTH, JSON_DIGITS, SIZE_DIGITS

DAMAGED: tuple[type[Exception], ...] = (
    RelaxEgError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError, AssertionError, SyntaxError,
    RecursionError, MemoryError,
)  # fmt: skip
"""The exceptions that code raises while it reads malformed data, such as a missing key or a number for a list."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_INTEGER = re.compile(rb"(?<![\d.eE+-])-?\d{%d,}(?![\d.eE])" % (JSON_DIGITS + 1))
_BLOCK = 1 << 20  # chosen: bytes that are scanned at once
_STEP = np.zeros(256, np.int64)
_STEP[list(b"[{")] = 1  # given: one level deeper
_STEP[list(b"]}")] = -1  # given: one level less deep

_FLAG = re.compile(r"True|False")  # the spelling that XLA's compiler reads
_NUMBER = re.compile(r"\d{1,6}")
_COMPILER_OPTIONS: Mapping[str, re.Pattern[str]] = {
    "xla_cpu_experimental_ynn_fusion_type": re.compile(r"(LIBRARY_FUSION_TYPE_\w{1,40}(,|$))*"),
    "xla_cpu_enable_concurrency_optimized_scheduler": _FLAG,
    "xla_cpu_scheduler_type": re.compile(r"CPU_SCHEDULER_TYPE_\w{1,40}"),
    "xla_cpu_multi_thread_eigen": _FLAG,
    "xla_cpu_prefer_vector_width": _NUMBER,
    "xla_backend_optimization_level": _NUMBER,
    "xla_llvm_disable_expensive_passes": _FLAG,
    "xla_gpu_autotune_level": _NUMBER,
    "xla_gpu_dot_merger_threshold_mb": _NUMBER,
    "xla_gpu_enable_command_buffer": re.compile(r"([A-Z0-9_]{1,40}(,|$))*"),
    "xla_gpu_enable_cublaslt": _FLAG,
    "xla_gpu_enable_latency_hiding_scheduler": _FLAG,
    "xla_gpu_enable_triton_gemm": _FLAG,
    "xla_gpu_graph_min_graph_size": _NUMBER,
}
"""Options of XLA's compiler that change only the speed of a program, with the values that they take."""


def read_json(source: str | bytes) -> Any:
    """Returns the data in a JSON text. Takes time and memory in proportion to the text.

    ValueError if the text is not JSON, has more levels or digits than are accepted, or does not fit into memory.
    """
    try:
        text = source if isinstance(source, str) else source.decode("utf-8")
        plain = _STRING.sub(b'""', text.encode("utf-8", "surrogatepass"))
        if (depth := _depth(plain)) > JSON_DEPTH:
            raise ValueError(f"lists and objects are nested {depth} deep; at most {JSON_DEPTH} are accepted")
        if long := _INTEGER.search(plain):
            digits = len(long[0].lstrip(b"-"))
            raise ValueError(f"an integer of {digits} digits; at most {JSON_DIGITS} are accepted")
        return json.loads(text)
    except MemoryError:
        raise ValueError("it is more than fits into memory") from None
    except RecursionError:  # the caller already uses most of the stack
        raise ValueError("lists and objects are nested more than can be read here") from None


def _depth(plain: bytes) -> int:
    """The maximal nesting depth of lists and objects in a JSON text whose strings were emptied."""
    deepest = now = 0
    for start in range(0, len(plain), _BLOCK):
        at = now + np.cumsum(_STEP[np.frombuffer(plain[start : start + _BLOCK], np.uint8)])
        deepest, now = max(deepest, int(at.max())), int(at[-1])
    return deepest


def is_count(text: str) -> bool:
    """Whether a text is a count: 1 to `SIZE_DIGITS` of the digits 0 to 9."""
    return re.fullmatch(rf"[0-9]{{1,{SIZE_DIGITS}}}", text) is not None


def compiler_options(options: Any) -> dict[str, str]:
    """Returns the options of XLA's compiler that a file gives, after a check. OptionError for an option that is not in
    the list, or for a value that it does not take: other options could make XLA write files, for instance."""
    if not isinstance(options, Mapping):
        raise OptionError(f"compiler options are {options!r:.80}; an object of texts is accepted")
    found: dict[str, str] = {}
    for name, value in options.items():  # type: ignore[reportUnknownVariableType]
        fits = _COMPILER_OPTIONS.get(name) if isinstance(name, str) else None
        if fits is None or not isinstance(value, str) or not fits.fullmatch(value):
            raise OptionError(
                f"the option {name!r:.80} = {value!r:.80} of XLA's compiler is none that a file may set\n"
                f"  accepted: {', '.join(_COMPILER_OPTIONS)}, with flags, numbers and names as values"
            )
        found[str(name)] = value
    return found


def write_file(path: str | Path, data: str | bytes, error: type[RelaxEgError], what: str) -> None:
    """Writes a file atomically. Raises `error`, whose text begins with `what`, if the file cannot be written."""
    content = data.encode("utf-8") if isinstance(data, str) else data
    part: Path | None = None
    where = str(path) if isinstance(path, (str, Path)) else f"<{type(path).__name__}>"
    try:
        to = Path(path)
        part = to.with_name(f"{to.name}.{os.getpid()}.part")
        part.write_bytes(content)
        os.replace(part, to)
    except (OSError, ValueError, TypeError) as e:
        with suppress(OSError):
            if part is not None:
                part.unlink(missing_ok=True)
        why = e.strerror if isinstance(e, OSError) else str(e)
        raise error(f"{what}: cannot write {where:.200}: {why}\n  accepted: a path that can be written") from None
