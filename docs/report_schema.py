"""The JSON Schema of reports, which pydantic makes from their classes. It is a tool of the documentation.

python -m docs.report_schema > docs/report.schema.json
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from relax_eg.reports.record import SCHEMA
from relax_eg.reports.report import CostReport

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


class _Plain(GenerateJsonSchema):
    """Schemas without titles and defaults; the first sentence of a class describes it."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: Any) -> dict[str, Any]:
        return self.generate_inner(schema["schema"])

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        made = super().dataclass_schema(schema)
        made.pop("title", None)
        first, dot, _ = " ".join(made["description"].split()).partition(". ")
        return {**made, "description": f"{first}." if dot else first}


def schema() -> dict[str, Any]:
    """The schema of the output of `CostReport.to_json`. It allows further fields, because newer releases add some."""
    report = TypeAdapter(CostReport).json_schema(schema_generator=_Plain)
    properties = report["properties"]
    del properties["more"]
    properties |= {"schema": {"const": SCHEMA}, "predicted_gain": {"type": "number"}}
    for side in ("before", "after"):
        properties[side] = {"allOf": [properties[side], {"properties": {"total": _TOTAL}}]}
    report["required"] = ["schema", *report["required"]]
    defined = report.pop("$defs")
    title = "relax_eg cost report"
    return {"$schema": GenerateJsonSchema.schema_dialect, "title": title, **report, "$defs": defined}


def text() -> str:
    """The text of the schema file."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(text())
