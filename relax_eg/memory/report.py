"""Plans as text: bytes, bound and gap; the tensors at the peak; which values reuse whose memory, with the proofs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from relax_eg.byte_units import format_bytes
from relax_eg.memory.proofs import Reuse
from relax_eg.memory.steps import MemoryProgram
from relax_eg.shapes import Dim, Refuted

if TYPE_CHECKING:
    from relax_eg.memory.planner import Plan

LINES = 12  # limit: tensors, and proofs, that are listed
WIDTH = 80  # limit: characters of an expression


def plan_text(plan: Plan) -> str:
    """The text that `print(plan)` shows."""
    at = ", ".join(f"{n} = {v}" for n, v in plan.at.items())
    here = f" at {at}" if at and not plan.static else ""
    offsets, needed = plan.offsets, plan.bound_at(plan.largest)
    whole = ", ".join(f"{n} = {v}" for n, v in plan.largest.items())
    arena = plan.bytes_at(plan.at)
    storages = plan.runtime.bytes_at(plan.at)
    least = plan.bound_at(plan.at)
    planned = len(plan.live.lifetimes)
    inside = plan.runtime.inside_at(plan.at)
    lines = [
        f"memory of {plan.program.name}(): {len(plan.program.steps)} kernels, {planned} allocations"
        + (f" for {len(offsets.of_value)} tensors" if len(offsets.of_value) > planned else ""),
        f"  arena          {format_bytes(arena)}{here}"
        + (", fixed for all sizes in bounds" if plan.static else f" = {_shown(plan.bytes)} bytes"),
        f"  needed at once {format_bytes(needed)}{f' at {whole}' if whole else ''}: gap {plan.gap:.2%}"
        + (", and no packing is lower" if offsets.optimal else ""),
        f"  whole storages {format_bytes(storages)}{f' at {at}' if at else ''} in {len(plan.runtime.storages)} of them"
        f" ({plan.runtime.aliasing}): {storages / max(least, 1):.2f} times what is needed at once",
        f"  order          {_order(plan)}",
    ]
    lines.append(f"  temporaries    {_temporaries(plan, inside, at)}")
    if plan.results != 0:
        lines.append(f"  handed out     {_bytes_of(plan.results, plan)} beside the arena")
    if plan.live.unsized:
        names = ", ".join(plan.program.values[v].name for v in plan.live.unsized[:LINES])
        lines.append(f"  not planned    {names}: their sizes are known only when they are there")
    lines += ["", f"  at the peak{f' ({at})' if at else ''}:"] if plan.peak else []
    lines += [
        f"    {format_bytes(int(x.bytes.evaluate(plan.at))):>12}  {_names(plan.program, x.values)}"
        for x in plan.peak[:LINES]
    ]
    lines += [f"    and {len(plan.peak) - LINES} more"] if len(plan.peak) > LINES else []
    for what, reuses in (("arena", offsets.reuses), ("storages", plan.runtime.reuses)):
        lines += proofs_text(plan.program, what, reuses)
    return "\n".join(lines)


def proofs_text(program: MemoryProgram, what: str, reuses: Sequence[Reuse]) -> list[str]:
    """Which values of a plan reuse whose memory, with the proofs, and which do not, with the counterexamples; each pair
    of sizes once."""
    out: list[str] = []
    for granted in (True, False):
        chosen = {
            (r.comparison.left, r.comparison.op, r.comparison.right): r
            for r in reversed(reuses)
            if r.granted == granted
        }
        rows = list(reversed(chosen.values()))
        if not rows:
            continue
        out += ["", f"  {what}: {'memory taken over' if granted else 'not taken over'}"]
        out += [f"    {_reuse(program, r)}" for r in rows[:LINES]]
        out += [f"    and {len(rows) - LINES} more"] if len(rows) > LINES else []
    return out


def _reuse(program: MemoryProgram, r: Reuse) -> str:
    taker, before = program.values[r.value].name, program.values[r.before].name
    c = r.comparison
    why = f"not proved: {c.verdict}" if not c.holds and not isinstance(c.verdict, Refuted) else str(c.verdict)
    return f"{taker} after {before}: {_shown(c.left)} {c.op} {_shown(c.right)} {why}"


def _temporaries(plan: Plan, inside: Sequence[int], at: str) -> str:
    """What executables allocate themselves, and how that is known."""
    told = plan.temporaries
    measured = ", ".join(f"{n} = {v}" for n, v in told.at.items())
    how = {
        "measured": f"measured{f' at {measured}' if measured else ''}",
        "estimated": "estimated from the equations",
        "given": "as given",
        "none": "only what the module states",
    }[told.source]
    most = max(inside, default=0)
    if not most:
        return f"none ({how})"
    kernel = plan.runtime.steps[inside.index(most)].step.name
    total = format_bytes(plan.runtime.peak_at(plan.at))
    where = f" at {at}" if at else ""
    return f"{format_bytes(most)} at most{where}, inside {kernel} ({how}); {total} with the storages"


def _order(plan: Plan) -> str:
    o = plan.order
    searched = f"{o.exact} of {o.blocks} blocks ordered exactly" if o.blocks else "nothing to choose"
    if o.after < o.before:
        always = f"never more, whatever the sizes: {plan.lower_everywhere.verdict}"
        return f"{format_bytes(o.after)} at once instead of {format_bytes(o.before)} as written ({searched}; {always})"
    return f"as written ({searched})"


def _bytes_of(d: Dim, plan: Plan) -> str:
    if d.variables <= plan.at.keys():
        return format_bytes(int(d.evaluate(plan.at)))
    return f"{_shown(d)} bytes"


def _names(program: MemoryProgram, values: Iterable[int]) -> str:
    named = [program.values[v] for v in values]
    shape = named[-1].annotation.short
    return f"{' then '.join(x.name for x in named[-2:])} {shape}"


def _shown(d: Dim) -> str:
    text = str(d)
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 3]}..."
