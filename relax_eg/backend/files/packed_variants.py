"""Variants as bytes: the one format in which the disk cache and artifacts keep the programs that were chosen.

The bytes are the length of a JSON text (8 bytes, big-endian), the text, and the bytes of the constants. The text holds
the modules (`ir.packed`), each once, the records of the variants, and further data of the file. The reader trusts none
of it: every field is checked, and nothing that it names is imported, called or looked up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from relax_eg.backend.family import STEPS, SearchSpec, Variant
from relax_eg.ir.module import Module
from relax_eg.ir.packed import ExternalObjects, pack, unpack
from relax_eg.ir.wellformed import check as check_module
from relax_eg.ops.libraries import EXECUTIONS
from relax_eg.plain_data import compiler_options, read_json
from relax_eg.plain_data import read_record as checked
from relax_eg.reports import CostReport
from relax_eg.shapes.guards import Guard

_LENGTH = 8  # given: bytes of the length of the text


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The contents of bytes that `pack_variants` made.

    - `written`: the program as written, if the bytes contain it.
    - `variants`: the variants.
    - `data`: the further data.
    """

    written: Module | None
    variants: tuple[Variant, ...]
    data: Mapping[str, Any]

    @property
    def chosen(self) -> list[Module]:
        """The modules of the variants that do not run as written."""
        return [v.chosen for v in self.variants if v.chosen is not None]


def pack_variants(
    variants: Sequence[Variant], outside: ExternalObjects, data: Mapping[str, Any], written: Module | None = None
) -> bytes:
    """The bytes of variants.

    - `outside`: gives names to the objects of the modules that the bytes do not contain.
    - `data`: further plain data for JSON, by names other than "modules", "written" and "variants".
    - `written`: the program as written, to be contained in the bytes.
    """
    found = [] if written is None else [written]
    found += [v.chosen for v in variants if v.chosen is not None]
    places = {m: i for i, m in enumerate(dict.fromkeys(found))}
    modules, blob = pack(tuple(places), outside)
    rows = [
        {
            "module": None if v.chosen is None else places[v.chosen],
            "report": v.report.as_data(),
            "execution": v.execution,
            "compiler_options": compiler_options(v.compiler_options),
            "at": [dict(b) for b in v.at],
            "guard": v.guard,
            "fallback": v.fallback,
            "spec": asdict(v.spec),
        }
        for v in variants
    ]
    content = {**data, "modules": modules, "written": written is not None, "variants": rows}
    text = json.dumps(content, separators=(",", ":")).encode()
    return len(text).to_bytes(_LENGTH, "big") + text + blob


def unpack_variants(payload: bytes, outside: ExternalObjects, written: Callable[[], Module] | None = None) -> Unpacked:
    """The contents of bytes that `pack_variants` made.

    `written`: returns the program as written, where it is not part of the bytes.

    Malformed bytes raise one of `plain_data.DAMAGED`; a variant without a program among them does, too.
    """
    end = _LENGTH + int.from_bytes(payload[:_LENGTH], "big")
    data = read_json(payload[_LENGTH:end])
    modules = unpack(data["modules"], payload[end:], outside)
    for module in modules:
        check_module(module)
    first = modules[0] if checked(bool, data["written"], "written") else None
    as_written = written if first is None else lambda: first
    if as_written is None:
        raise ValueError("it lacks the program as written")
    variants = tuple(_variant(row, modules, as_written) for row in data["variants"])
    executions = {v.execution for v in variants}
    if not variants or (STEPS in executions and len(executions) > 1):
        raise ValueError(f"its variants are executed as {', '.join(sorted(executions)) or 'nothing: it has none'}")
    return Unpacked(first, variants, data)


def _variant(row: Mapping[str, Any], modules: Sequence[Module], written: Callable[[], Module]) -> Variant:
    place = checked(int | None, row["module"], "module")
    if place is not None and not 0 <= place < len(modules):
        raise ValueError(f"a variant has module {place}; it holds {len(modules)}")
    execution = checked(str, row["execution"], "execution")
    if execution not in (*EXECUTIONS, STEPS):
        raise ValueError(f"it is executed as {execution!r}; accepted: {', '.join(EXECUTIONS)}, {STEPS}")
    return Variant(
        None if place is None else modules[place],
        written,
        CostReport.from_data(row["report"]),
        execution,
        compiler_options(row["compiler_options"]),
        checked(tuple[Mapping[str, int], ...], row["at"], "at"),
        str(Guard.read(row["guard"])),
        checked(bool, row["fallback"], "fallback"),
        checked(SearchSpec, row["spec"], "spec"),
    )
