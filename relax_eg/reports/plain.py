"""Records to plain data and back, keeping what this release does not know; and what is told of them, to files.

A record's fields follow from its class: what is missing in the data has its default, what the class lacks is kept apart
(`left_over`) and put back when the record is written again, so that a report survives a release that is older than it.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from relax_eg.errors import OptionError
from relax_eg.plain_data import write_file

LEAST, LARGEST = 1e-100, 1e100  # seconds, bytes, flops, sizes: of their quotients and products a float holds each


class Mismatch(ValueError):
    """Data that does not fit its record; the text says where."""


@lru_cache
def hints(cls: type) -> dict[str, Any]:
    """The types of a record's fields."""
    return get_type_hints(cls)


def read(kind: Any, data: Any, where: str) -> Any:
    """`data` as a value of type `kind`: a record, tuple, mapping or scalar. Mismatch says what does not fit."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        if data is None:
            return None
        return read(next(k for k in get_args(kind) if k is not type(None)), data, where)
    if is_dataclass(kind):
        return _record(cast("type", kind), data, where)
    if origin is tuple:
        if not isinstance(data, list | tuple):
            raise Mismatch(f"{where} is {_shown(data)}; a list is accepted")
        items = cast("list[Any]", list(data))
        inner = get_args(kind)
        if len(inner) == 2 and inner[1] is Ellipsis:
            return tuple(read(inner[0], x, f"{where}[{i}]") for i, x in enumerate(items))
        if len(items) != len(inner):
            raise Mismatch(f"{where} has {len(items)} values; {len(inner)} are accepted")
        return tuple(read(k, x, f"{where}[{i}]") for i, (k, x) in enumerate(zip(inner, items, strict=True)))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(data, Mapping):
            raise Mismatch(f"{where} is {_shown(data)}; an object is accepted")
        inner = get_args(kind)[1]
        return {str(k): read(inner, v, f"{where}.{k}") for k, v in cast("Mapping[Any, Any]", data).items()}
    return _scalar(kind, data, where)


def _record(cls: type, data: Any, where: str) -> Any:
    if isinstance(data, cls):
        return data
    if not isinstance(data, Mapping):
        raise Mismatch(f"{where} is {_shown(data)}; an object is accepted")
    found: dict[str, Any] = {}
    for f in fields(cls):
        if f.name in data:
            found[f.name] = read(hints(cls)[f.name], data[f.name], f"{where}.{f.name}")
        elif f.default is MISSING and f.default_factory is MISSING:
            raise Mismatch(f"{where} lacks `{f.name}`")
    return cls(**found)


def _scalar(kind: Any, data: Any, where: str) -> Any:
    if kind is Any:
        return data
    is_number = isinstance(data, int | float) and not isinstance(data, bool)
    if is_number and not (data == 0 or LEAST <= abs(data) <= LARGEST):
        raise Mismatch(f"{where} is {_shown(data)}; 0 and numbers from {LEAST:g} to {LARGEST:g} are accepted")
    if kind is float and is_number:
        return data  # a whole one stays as it is written
    if kind is int and isinstance(data, int) and not isinstance(data, bool):
        return data
    if kind in (bool, str) and isinstance(data, kind):
        return data
    raise Mismatch(f"{where} is {_shown(data)}; a {_WORDS.get(kind, kind)} is accepted")


_WORDS = {float: "number", int: "whole number", bool: "truth value", str: "text"}


def _shown(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 40 else f"{text[:37]}..."


def left_over(given: Any, written: Any) -> Any:
    """What `given` has and `written` lacks: of objects further keys, of lists by place; None where there is none."""
    if isinstance(given, Mapping) and isinstance(written, Mapping):
        pairs = cast("Mapping[str, Any]", given), cast("Mapping[str, Any]", written)
        found = {k: v for k, v in pairs[0].items() if k not in pairs[1]}
        inside = {k: left_over(v, pairs[1][k]) for k, v in pairs[0].items() if k in pairs[1]}
        nested = {k: v for k, v in inside.items() if v is not None}
        return {"new": found, "in": nested} if found or nested else None
    if isinstance(given, list | tuple) and isinstance(written, list | tuple):
        pair = cast("list[Any]", list(given)), cast("list[Any]", list(written))
        found = {str(i): left_over(a, b) for i, (a, b) in enumerate(zip(*pair, strict=False))}
        nested = {k: v for k, v in found.items() if v is not None}
        return {"new": {}, "in": nested} if nested else None
    return None


def put_back(written: Any, more: Any) -> Any:
    """`written` with what `left_over` kept, where its place is still there."""
    if more is None:
        return written
    if isinstance(written, Mapping):
        old = cast("Mapping[str, Any]", written)
        return {**more["new"], **{k: put_back(v, more["in"].get(k)) for k, v in old.items()}}
    if isinstance(written, list | tuple):
        return [put_back(v, more["in"].get(str(i))) for i, v in enumerate(cast("list[Any]", list(written)))]
    return written


def written(text: str, path: str | Path | None) -> None:
    """Write `text` to `path`, in folders that are made where there are none; to nowhere if it is None."""
    if path is not None:
        with suppress(OSError, TypeError):  # writing tells what is wrong
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_file(path, text, OptionError, "the report")
