"""Serialization of reports: preserves unknown fields, and writes texts to files.

Records are read by `plain_data.read_record`. Fields that the class of a record lacks are kept apart (`unknown_fields`)
and written back with the record (`restore_unknown_fields`), so that a report passes through an older release without
loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from relax_eg.errors import OptionError
from relax_eg.plain_data import is_count, read_json, write_file


def read_source(source: str | Path) -> tuple[Any, str]:
    """The data of a JSON text (it begins with `{`) or of a file, and the file's name. OptionError if it is not read."""
    is_text = isinstance(source, str) and source.lstrip().startswith("{")
    where = "" if is_text else str(source)
    try:
        return read_json(str(source) if is_text else Path(source).read_bytes()), where
    except OSError as e:
        raise OptionError(f"{where} cannot be read: {e.strerror or e}") from None
    except ValueError as e:
        named = where or "the text"
        raise OptionError(f"{named} is not whole JSON ({e}); was it cut off? Write the report again") from None


def check_schema(data: Mapping[str, Any], accepted: str, named: str) -> None:
    """OptionError unless data has the schema `accepted`, such as "relax_eg.report/1". `named` begins the message."""
    found = str(data["schema"])
    (family, _, version), (wanted, _, ours) = found.partition("/"), accepted.partition("/")
    if family == wanted and is_count(version) and int(version) > int(ours):
        raise OptionError(
            f"{named}a report of schema {found!r}, which a newer release of relax-eg wrote; {accepted!r} is accepted: "
            "upgrade relax-eg, or write the report again with this release"
        )
    if found != accepted:
        raise OptionError(f"{named}a report of schema {found!r}; {accepted!r} is accepted")


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
