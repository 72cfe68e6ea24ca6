"""Plan files: versioned JSON, checked when a file is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relax_eg.errors import MemoryPlanError
from relax_eg.ir import Module
from relax_eg.memory.check import problems
from relax_eg.memory.placement import Place, Placement, Storage
from relax_eg.memory.plan import Plan, bindings_of
from relax_eg.memory.program import MemoryProgram, Temporary
from relax_eg.memory.steps import program_of
from relax_eg.memory.temporaries import Temporaries
from relax_eg.plain_data import DAMAGED, read_json, write_file
from relax_eg.shapes import Dim, Scope

FORMAT = "relax_eg memory plan"
VERSION = 2  # given: version of the format; other versions are refused


def to_data(plan: Plan) -> dict[str, Any]:
    """The plan as JSON data: its order and places, a hash of its program, its sizes, and its proofs."""
    values = plan.written.values
    rows = [
        {
            "value": v,
            "name": values[v].name,
            "bytes": str(values[v].bytes),
            "storage": p.storage,
            "offset": str(p.offset),
        }
        for v, p in sorted(plan.places.items())
    ]
    proofs = [
        {
            "value": r.value,
            "after": r.before,
            "granted": r.granted,
            "statement": f"{r.comparison.left} {r.comparison.op} {r.comparison.right}",
            "verdict": str(r.comparison.verdict),
        }
        for r in plan.reuses
    ]
    data: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "function": plan.program.name,
        "kernels": program_key(plan.written),
        "sizes": list(plan.scope.statements),
        "at": dict(plan.at),
        "layout": plan.layout,
        "static": plan.static,
        "bytes": str(plan.bytes),
        "bound": [str(d) for d in plan.bound],
        "temporaries": {
            "source": plan.temporaries.source,
            "at": dict(plan.temporaries.at),
            "bytes": {name: str(d) for name, d in plan.temporaries.of_step.items()},
        },
        "order": list(plan.placement.order),
        "storages": [{"bytes": str(s.bytes), "itemsize": s.itemsize, "dtype": s.dtype} for s in plan.storages],
        "values": rows,
        "proofs": proofs,
    }
    return {**data, "checksum": _checksum(data)}


def save(plan: Plan, path: str | Path) -> None:
    """Write the plan to a JSON file."""
    write_file(path, json.dumps(to_data(plan), indent=1) + "\n", MemoryPlanError, "the plan")


def load(path: str | Path, module: Module, temporary: Temporary | None = None) -> Placement:
    """The placement in a plan file, for the entry of `module`, whose kernels must be those of the plan.

    The plan is replayed first. MemoryPlanError for a file that is no plan, is of another version or program, was
    changed after it was written, or would destroy a value that is still needed.
    """
    where = str(path)
    try:
        data: Any = read_json(Path(path).read_bytes())
    except (OSError, ValueError) as e:
        raise MemoryPlanError(f"{where}: cannot be read as JSON: {e}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise MemoryPlanError(f'{where}: this is no memory plan; a file with "format": "{FORMAT}" is accepted')
    if data.get("version") != VERSION:
        raise MemoryPlanError(f"{where}: version {data.get('version')!r}; version {VERSION} is accepted")
    program = _temporaries(where, data).of(program_of(module, temporary))
    if data.get("kernels") != program_key(program):
        raise MemoryPlanError(f"{where}: the plan is of other kernels than those of {program.name}()")
    try:
        scope = Scope(assume=data["sizes"])
        placed = Placement(
            tuple(int(n) for n in data["order"]),
            tuple(Storage(Dim.of(s["bytes"]), int(s["itemsize"]), str(s["dtype"])) for s in data["storages"]),
            {int(r["value"]): Place(int(r["storage"]), Dim.of(r["offset"])) for r in data["values"]},
        )
        found = problems(program, placed, bindings_of(scope, program.variables))
    except DAMAGED as e:
        raise MemoryPlanError(f"{where}: not a plan that can be followed: {type(e).__name__}: {e}") from None
    if found:
        raise MemoryPlanError(f"{where}: the plan does not hold: {found[0]}")
    if data.get("checksum") != _checksum({k: v for k, v in data.items() if k != "checksum"}):
        raise MemoryPlanError(
            f"{where}: changed after it was written (its checksum is another); plan again to change it"
        )
    return placed


def _temporaries(where: str, data: Mapping[str, Any]) -> Temporaries:
    """The bytes that kernels allocate themselves, from a plan file."""
    try:
        return Temporaries(of_step={str(name): Dim.of(d) for name, d in data["temporaries"]["bytes"].items()})
    except DAMAGED as e:
        raise MemoryPlanError(f"{where}: not a plan that can be followed: {type(e).__name__}: {e}") from None


def program_key(program: MemoryProgram) -> str:
    """A hash of what a plan depends on: the values and their sizes, and the kernels that read and write them."""
    lines = [f"{x.number} {x.role} {x.annotation}" for x in program.values]
    lines += [f"{s.name} {s.operands} {s.writes} {s.workspaces} {s.overwritable} {s.region}" for s in program.steps]
    return hashlib.sha256("\n".join([*lines, str(program.result)]).encode()).hexdigest()


def _checksum(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
