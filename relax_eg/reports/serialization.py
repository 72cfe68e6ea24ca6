"""Serialization of reports: reads records from plain data, preserves unknown fields, and writes texts to files.

The fields of a record follow from its class. A field that is missing in the data gets its default. Fields that the
class lacks are kept apart (`unknown_fields`) and written back with the record (`restore_unknown_fields`), so that a
report passes through an older release without loss.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from relax_eg.argument_checks import short_repr
from relax_eg.errors import OptionError
from relax_eg.plain_data import write_file

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


def unknown_fields(given: Any, written: Any) -> Any:
    """The keys of objects in `given` that `written` lacks, with their values, at any depth; None if there are none."""
    if isinstance(given, Mapping) and isinstance(written, Mapping):
        pairs = cast("Mapping[str, Any]", given), cast("Mapping[str, Any]", written)
        found = {k: v for k, v in pairs[0].items() if k not in pairs[1]}
        inside = {k: unknown_fields(v, pairs[1][k]) for k, v in pairs[0].items() if k in pairs[1]}
        nested = {k: v for k, v in inside.items() if v is not None}
        return {"new": found, "in": nested} if found or nested else None
    if isinstance(given, list | tuple) and isinstance(written, list | tuple):
        pair = cast("list[Any]", list(given)), cast("list[Any]", list(written))
        found = {str(i): unknown_fields(a, b) for i, (a, b) in enumerate(zip(*pair, strict=False))}
        nested = {k: v for k, v in found.items() if v is not None}
        return {"new": {}, "in": nested} if nested else None
    return None


def restore_unknown_fields(written: Any, more: Any) -> Any:
    """`written` with the fields that `unknown_fields` found, as far as the objects around them still exist."""
    if more is None:
        return written
    if isinstance(written, Mapping):
        old = cast("Mapping[str, Any]", written)
        return {**more["new"], **{k: restore_unknown_fields(v, more["in"].get(k)) for k, v in old.items()}}
    if isinstance(written, list | tuple):
        return [
            restore_unknown_fields(v, more["in"].get(str(i))) for i, v in enumerate(cast("list[Any]", list(written)))
        ]
    return written


def write_text(text: str, path: str | Path | None) -> None:
    """Writes `text` to `path`, and creates missing folders; does nothing if `path` is None."""
    if path is not None:
        with suppress(OSError, TypeError):  # `write_file` then raises the error
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_file(path, text, OptionError, "the report")
