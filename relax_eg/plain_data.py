"""Reads untrusted files: the only reader of JSON and of records, and the checks of what a file may contain.

A file is data. It names things by words from lists that are defined here or in the package that uses them. Nothing that
a file names is imported, called, or looked up as an attribute. The fields of a record follow from its class; a field
that is missing in the data gets its default.
"""

from __future__ import annotations

import json
import os
import re
import types
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from relax_eg.argument_checks import short_repr
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


# --- records ---

# limit: seconds, bytes, flops, sizes: a float holds the quotients and products of two such numbers
LEAST, LARGEST = 1e-100, 1e100


class Mismatch(ValueError):
    """Data that does not fit its record; the text names the place."""


@lru_cache(1 << 7)  # reports have 30 classes of records
def hints(cls: type) -> dict[str, Any]:
    """The types of a record's fields."""
    return get_type_hints(cls)


def read_record(kind: Any, data: Any, where: str) -> Any:
    """`data` as a value of type `kind`: a record, tuple, mapping or scalar. Mismatch if it does not fit; `where` names
    the place in the error."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        if data is None:
            return None
        return read_record(next(k for k in get_args(kind) if k is not type(None)), data, where)
    if is_dataclass(kind):
        return _record(cast("type", kind), data, where)
    if origin is tuple:
        if not isinstance(data, list | tuple):
            raise Mismatch(f"{where} is {short_repr(data)}; a list is accepted")
        items = cast("list[Any]", list(data))
        inner = get_args(kind)
        if len(inner) == 2 and inner[1] is Ellipsis:
            return tuple(read_record(inner[0], x, f"{where}[{i}]") for i, x in enumerate(items))
        if len(items) != len(inner):
            raise Mismatch(f"{where} has {len(items)} values; {len(inner)} are accepted")
        return tuple(read_record(k, x, f"{where}[{i}]") for i, (k, x) in enumerate(zip(inner, items, strict=True)))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(data, Mapping):
            raise Mismatch(f"{where} is {short_repr(data)}; an object is accepted")
        inner = get_args(kind)[1]
        return {str(k): read_record(inner, v, f"{where}.{k}") for k, v in cast("Mapping[Any, Any]", data).items()}
    return _scalar(kind, data, where)


def _record(cls: type, data: Any, where: str) -> Any:
    if isinstance(data, cls):
        return data
    if not isinstance(data, Mapping):
        raise Mismatch(f"{where} is {short_repr(data)}; an object is accepted")
    found: dict[str, Any] = {}
    for f in fields(cls):
        if f.name in data:
            found[f.name] = read_record(hints(cls)[f.name], data[f.name], f"{where}.{f.name}")
        elif f.default is MISSING and f.default_factory is MISSING:
            raise Mismatch(f"{where} lacks `{f.name}`")
    return cls(**found)


def _scalar(kind: Any, data: Any, where: str) -> Any:
    if kind is Any:
        return data
    is_number = isinstance(data, int | float) and not isinstance(data, bool)
    if is_number and not (data == 0 or LEAST <= abs(data) <= LARGEST):
        raise Mismatch(f"{where} is {short_repr(data)}; 0 and numbers from {LEAST:g} to {LARGEST:g} are accepted")
    if kind is float and is_number:
        return data  # an int stays an int, so that it is written back unchanged
    if kind is int and isinstance(data, int) and not isinstance(data, bool):
        return data
    if kind in (bool, str) and isinstance(data, kind):
        return data
    raise Mismatch(f"{where} is {short_repr(data)}; a {_WORDS.get(kind, kind)} is accepted")


_WORDS = {float: "number", int: "whole number", bool: "truth value", str: "text"}
