"""The JSON Schema of reports, generated from their classes and the first sentences of their docstrings.

python -m relax_eg.reports.schema > docs/report.schema.json
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Union, cast, get_args, get_origin

from relax_eg.reports.plain import hints
from relax_eg.reports.report import SCHEMA, CostReport

_SCALARS: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    Any: {},
}
# The totals that `as_data` adds to the fields, for readers without relax_eg.
_TOTAL = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "flops": {"type": "integer"},
        "bytes": {"type": "integer"},
        "launches": {"type": "integer"},
        "seconds": {"type": "number"},
    },
}


def schema() -> dict[str, Any]:
    """The schema of the output of `CostReport.to_json`. It allows further fields, because newer releases add some."""
    defined: dict[str, Any] = {}
    report = _record(CostReport, defined)
    report["properties"] |= {"schema": {"const": SCHEMA}, "predicted_gain": {"type": "number"}}
    report["required"] = ["schema", *report["required"]]
    for side in ("before", "after"):
        report["properties"][side] = {"allOf": [report["properties"][side], {"properties": {"total": _TOTAL}}]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "relax_eg cost report",
        "description": _first_sentence(CostReport),
        **report,
        "$defs": dict(sorted(defined.items())),
    }


def _record(cls: type, defined: dict[str, Any]) -> dict[str, Any]:
    shown = [f for f in fields(cls) if f.name != "more"]
    properties = {f.name: _kind(hints(cls)[f.name], defined) for f in shown}
    required = [f.name for f in shown if f.default is MISSING and f.default_factory is MISSING]
    return {"type": "object", "properties": properties, "required": required}


def _kind(kind: Any, defined: dict[str, Any]) -> dict[str, Any]:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return {"anyOf": [{"type": "null"} if k is type(None) else _kind(k, defined) for k in get_args(kind)]}
    if is_dataclass(kind):
        cls = cast("type", kind)
        if cls.__name__ not in defined:
            defined[cls.__name__] = {}
            defined[cls.__name__] = {"description": _first_sentence(cls), **_record(cls, defined)}
        return {"$ref": f"#/$defs/{cls.__name__}"}
    if origin is tuple:
        inner = get_args(kind)
        if len(inner) == 2 and inner[1] is Ellipsis:
            return {"type": "array", "items": _kind(inner[0], defined)}
        return {"type": "array", "prefixItems": [_kind(k, defined) for k in inner], "minItems": len(inner)}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _kind(get_args(kind)[1], defined)}
    return _SCALARS[kind]


def _first_sentence(cls: type) -> str:
    text = " ".join((cls.__doc__ or "").split())
    return text.split(". ")[0].rstrip(".") + "."


def text() -> str:
    """The text of the schema file."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(text())
