"""Reads records from plain data, keeps fields that this release does not know, and writes texts to files.

Pydantic reads records by their classes. A field that is missing in the data gets its default. Fields that the class
lacks are kept apart (`left_over`), and put back when the record is written again, so that a report passes through an
older release without loss.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from relax_eg.accepted import shown
from relax_eg.errors import OptionError
from relax_eg.plain_data import write_file

if TYPE_CHECKING:
    from pydantic import TypeAdapter

# limit: seconds, bytes, flops, sizes: a float holds the quotients and products of two such numbers
LEAST, LARGEST = 1e-100, 1e100
# By the type of pydantic's error.
_ACCEPTED = {
    "int_type": "a whole number", "float_type": "a number", "bool_type": "a truth value", "string_type": "a text",
    "tuple_type": "a list", "dict_type": "an object", "mapping_type": "an object", "dataclass_type": "an object",
}  # fmt: skip


class Mismatch(ValueError):
    """Data that does not fit its record; the text names the place."""


@lru_cache(1 << 7)  # a report, and the kinds of values of artifacts and of the cache
def reader(kind: Any) -> TypeAdapter[Any]:
    """Pydantic's reader of a record, tuple, mapping or scalar."""
    from pydantic import TypeAdapter  # only who reads files waits for the import

    return TypeAdapter(kind)


def read(kind: Any, data: Any, where: str) -> Any:
    """`data` as a value of type `kind`: a record, tuple, mapping or scalar. Mismatch if it does not fit; `where` names
    the place in the error."""
    try:
        # As JSON, because there lists are tuples and objects are records even where no other value is converted.
        found = reader(kind).validate_json(json.dumps(data), strict=True)
    except (TypeError, ValueError, RecursionError) as e:  # a ValidationError is a ValueError
        raise Mismatch(_told(e, where)) from None
    for place, number in () if Any in get_args(kind) else _numbers(found, where):
        if not (number == 0 or LEAST <= abs(number) <= LARGEST):
            raise Mismatch(f"{place} is {shown(number)}; 0 and numbers from {LEAST:g} to {LARGEST:g} are accepted")
    return found


def _told(e: Exception, where: str) -> str:
    """The first error of pydantic in our words."""
    from pydantic import ValidationError

    if not isinstance(e, ValidationError):
        return f"{where} is no plain data: {e}"
    errors = e.errors(include_url=False)
    first, at = errors[0], errors[0]["loc"]
    kind, value, around = first["type"], first["input"], _place(where, at[:-1])
    if kind == "json_invalid":
        return f"{where} has a text that is no Unicode, or lists that are nested too deeply"
    if kind == "missing" and isinstance(at[-1], str):
        return f"{around} lacks `{at[-1]}`"
    if kind == "missing":
        wanted = 1 + max(int(x["loc"][-1]) for x in errors if x["type"] == kind and x["loc"][:-1] == at[:-1])
        return f"{around} has {len(value)} values; {wanted} are accepted"
    if kind == "too_long":
        return f"{_place(where, at)} has {len(value)} values; {first['ctx']['max_length']} are accepted"  # type: ignore[reportTypedDictNotRequiredAccess]
    return f"{_place(where, at)} is {shown(value)}; {_ACCEPTED.get(kind, first['msg'])} is accepted"


def _place(where: str, steps: Iterable[int | str]) -> str:
    return where + "".join(f"[{x}]" if isinstance(x, int) else f".{x}" for x in steps)


def _numbers(value: Any, where: str) -> Iterator[tuple[str, float]]:
    """All numbers of a record with their places."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield where, value
    elif isinstance(value, tuple):
        for i, x in enumerate(cast("tuple[Any, ...]", value)):
            yield from _numbers(x, f"{where}[{i}]")
    elif isinstance(value, Mapping):
        for k, x in cast("Mapping[str, Any]", value).items():
            yield from _numbers(x, f"{where}.{k}")
    elif is_dataclass(value):
        for f in fields(value):
            yield from _numbers(getattr(value, f.name), f"{where}.{f.name}")


def left_over(given: Any, written: Any) -> Any:
    """The parts of `given` that `written` lacks: further keys of objects, also inside lists; None if there are none."""
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
    """`written` with the parts that `left_over` kept, as far as their places still exist."""
    if more is None:
        return written
    if isinstance(written, Mapping):
        old = cast("Mapping[str, Any]", written)
        return {**more["new"], **{k: put_back(v, more["in"].get(k)) for k, v in old.items()}}
    if isinstance(written, list | tuple):
        return [put_back(v, more["in"].get(str(i))) for i, v in enumerate(cast("list[Any]", list(written)))]
    return written


def written(text: str, path: str | Path | None) -> None:
    """Writes `text` to `path`, and creates missing folders; does nothing if `path` is None."""
    if path is not None:
        with suppress(OSError, TypeError):  # `write_file` then raises the error
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_file(path, text, OptionError, "the report")
