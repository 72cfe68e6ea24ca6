"""A report as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import RenderResult
from rich.table import Table
from rich.text import Text

from relax_eg.extract.family_rows import family_lines
from relax_eg.extract.report import KernelRow, OperatorRow, ProgramCost, RuleRow, SelectedRow
from relax_eg.figures import binding_text, count_text, integer_text, si, time
from relax_eg.reports.record import ReportRecord
from relax_eg.reports.terminal import plain_table

MOST_RULES = 3  # limit: rules whose work in the search the text shows; the JSON has all


def report(r: ReportRecord) -> RenderResult:
    """The printed form of a report."""
    title = f"{r.name}   {r.target}, {r.execution}" + (f", at {binding_text(r.at)}" if r.at else "")
    yield Text(title + (" (sizes that were not given are assumed)" if r.assumed_at else ""), style="bold")
    table = plain_table([""], ["as written", "chosen", "ratio"])
    b, a = r.before, r.after
    for label, x, y, show in (
        ("operators", b.count, a.count, integer_text),
        ("kernel launches", b.launches, a.launches, integer_text),
        ("flops", b.flops, a.flops, si),
        ("bytes moved", b.bytes, a.bytes, si),
        *(
            [("predicted call", b.call, a.call, time)]
            if r.executions
            else [("predicted time", b.seconds, a.seconds, time)]
        ),
    ):
        table.add_row(label, show(x), show(y), f"{x / y:.2f}" if y else "")
    if a.prepared_bytes:
        table.add_row("prepared from weights", "", f"{si(a.prepared_bytes)}B", "")
    yield table
    yield _operators(b, a)
    for line in note_lines(r):
        yield Text(line)


_NO_RULES = "none that the chosen program needs"


def _is_lowered_otherwise(r: ReportRecord) -> bool:
    """Whether the chosen program is the one as written, and gains by other kernels than JAX lowers it to."""
    before, after = (sorted((row.op, row.count) for row in side.rows) for side in (r.before, r.after))
    return r.execution == "whole" and before == after and r.before.seconds > r.after.seconds


def note_lines(r: ReportRecord) -> list[str]:
    """The lines below the tables of a report: rules, timings, memory, search, libraries, opaque calls."""
    none = "none: these operators, lowered otherwise than JAX does" if _is_lowered_otherwise(r) else _NO_RULES
    fired = ", ".join(f"{k} x{v}" for k, v in r.rules.items()) or none
    lines = [f"rules used: {fired}"]
    if r.spread is not None:
        each = f"computing {time(r.spread.computing)}, sending {time(r.spread.sending)}"
        lines.insert(0, f"chosen: figures of each of {r.spread.devices} devices: {each}; who holds what: report.spread")
    if r.not_proved:
        lines.append(not_proved(r))
    if r.kept_as_written:
        why = (
            "was measured to be faster"
            if r.measured
            else "was predicted to gain what a change has to (5% of a call; more in other modes or for memory)"
        )
        lines.append(f"kept as written: no program {why}")
    lines += [f"{name}: {what}" for name, what in r.language.items()]
    if r.expected is not None:
        lines.append(f"predicted of a call: {r.expected}")
    bindings = list({str(row.at): row.at for row in r.measured}.values())
    for at in bindings:
        where = f" at {binding_text(at)}" if len(bindings) > 1 else ""
        lines.append(f"measured{where}: " + "; ".join(str(row) for row in r.measured if row.at == at))
    if r.executions:
        each = ", ".join(f"{execution} {time(seconds)}" for execution, seconds in r.executions.items())
        lines.append(f"execution: {r.execution}; predicted for a call: {each}")
    if r.measured or r.compiler_options:
        told = ", ".join(f"{k}={v!r}" for k, v in r.compiler_options.items()) or "as usual"
        lines.append(f"compiler options: {told}")
    if r.family is not None:
        lines += family_lines(r.family, r.variants)
    if r.selected:
        lines.append(_selection(r.selected))
    if r.memory is not None:
        lines.append(str(r.memory))
    if r.runner_up is not None:
        lines.append(str(r.runner_up))
    if r.after.prepared_values:
        values = count_text(r.after.prepared_values, "value")
        lines.append(f"weights: {values} computed from them once, ahead of the calls")
    lines += [f"{k}: {v}" for k, v in r.expressions.get("after", {}).items() if r.at and v != "0"]
    if r.kernels:
        lines.append(_fused(r.kernels))
    if r.cached:
        lines.append("served from the disk cache; the search was made earlier:")
    total = sum(r.matches.values())
    lines.append(
        f"e-graph: {count_text(r.nodes, 'node')}, {count_text(total, 'rule match', 'rule matches')}, "
        f"{count_text(r.rounds, 'round')}, stopped: {r.stop}; "
        f"numerics: {', '.join(r.numerics) or 'exact'}"
    )
    busiest = sorted(r.searched, key=lambda x: (-x.nodes, -x.matches, x.rule))[:MOST_RULES]
    if busiest:
        lines.append("busiest rules: " + ", ".join(map(_rule_text, busiest)))
    lines += [row.left_out for row in r.searched if row.left_out]
    if r.unproved:
        more = f" and {len(r.unproved) - MOST_RULES} more" if len(r.unproved) > MOST_RULES else ""
        lines.append(f"a rule waits for what was not proved: {'; '.join(r.unproved[:MOST_RULES])}{more}")
    if r.refused:
        each = ", ".join(f"{rule} x{n}" for rule, n in r.refused.items())
        lines.append(f'refused, because the program would lose digits (numerics="approximate" allows it): {each}')
    lines += map(str, r.libraries)
    lines += [f"runs at its very sizes: {what}: {why}" for what, why in r.at_exact_sizes.items()]
    for o in r.opaque:
        where = f" at {o.source}" if o.source else ""
        lines.append(f"opaque: {o.name}{where}" + (f" x{o.count}" if o.count > 1 else "") + " is not looked into")
    return lines


def not_proved(r: ReportRecord) -> str:
    """One line on the user's rules that the chosen program depends on and that no proof covers."""
    told = "; ".join(f"{rule} ({what})" for rule, what in r.not_proved.items())
    return f"rests on what is not proved: {told}"


def _selection(rows: Sequence[SelectedRow]) -> str:
    """One line on the selection in all functions. It names the functions that are not proved optimal, those with the
    widest gap first."""
    candidates = sum(r.candidates for r in rows)
    open_ = sorted((r for r in rows if r.how != "proved optimal"), key=lambda r: (-r.gap, r.function))
    proved = f"selection among the {candidates} candidates kept: {len(rows) - len(open_)} of {len(rows)} proved optimal"
    shown = [f"{r.function} {r.how}, gap {100 * r.gap:.2g}%" for r in open_[:MOST_RULES]]
    rest = [f"{len(open_) - MOST_RULES} more below"] if len(open_) > MOST_RULES else []
    return "; ".join((proved, *shown, *rest, *_sensitivity(rows)))


def _sensitivity(rows: Sequence[SelectedRow]) -> list[str]:
    """The text on the cost of keeping fewer candidates, for the function in which it is largest; empty if none was
    computed."""
    more: dict[int, float] = {}
    for r in rows:
        for n, extra in r.fewer:
            more[n] = max(more.get(n, 0.0), extra)
    if not more:
        return []
    counts, shares = (", ".join(x) for x in (map(str, more), (f"{100 * x:.2g}%" for x in more.values())))
    return [f"keeping at most {counts} candidates of each value would cost {shares} more"]


def _fused(rows: Sequence[KernelRow]) -> str:
    """One line on all fused kernels: the numbers of operators and kernels, what fusion saves, and how often each fusion
    step was used."""
    steps: dict[str, int] = {}
    for r in rows:
        for step, n in r.steps.items():
            steps[step] = steps.get(step, 0) + n * r.times
    operators = sum(len(r.operators) * r.times for r in rows)
    saved = sum(r.saved_bytes * r.times for r in rows), sum(r.saved_launches * r.times for r in rows)
    used = ", ".join(f"{step} x{n}" for step, n in sorted(steps.items(), key=lambda kv: (-kv[1], kv[0])))
    return (
        f"fused: {count_text(operators, 'operator')} in {count_text(sum(r.times for r in rows), 'kernel')}, "
        f"{si(saved[0])}B moved and {count_text(saved[1], 'launch', 'launches')} less; {used}"
    )


def _rule_text(r: RuleRow) -> str:
    spent = f", {r.milliseconds:.0f} ms" if r.milliseconds >= 1 else ""
    return f"{r.rule} ({count_text(r.matches, 'match', 'matches')}, {count_text(r.nodes, 'new node')}{spent})"


def _operators(before: ProgramCost, after: ProgramCost, most: int = 8) -> Table:
    table = plain_table(["operator"], ["count", "flops", "bytes", "launches", "time"])
    old = {r.op: r for r in before.rows}
    new = {r.op: r for r in after.rows}
    none = OperatorRow("", 0, 0, 0, 0, 0.0)
    ops = sorted(old.keys() | new.keys(), key=lambda o: (-_dearest(old.get(o), new.get(o)), o))
    for op in ops[:most]:
        x, y = old.get(op, none), new.get(op, none)
        table.add_row(
            op,
            _pair(x.count, y.count, integer_text),
            _pair(x.flops, y.flops, si),
            _pair(x.bytes, y.bytes, si),
            _pair(x.launches, y.launches, integer_text),
            _pair(x.seconds, y.seconds, time),
        )
    if len(ops) > most:
        table.add_row(f"and {len(ops) - most} more", *[""] * 5, style="dim")
    return table


def _dearest(*rows: OperatorRow | None) -> float:
    return max((r.seconds for r in rows if r is not None), default=0.0)


def _pair(x: float, y: float, show: Any) -> str:
    return show(x) if x == y else f"{show(x)} -> {show(y)}"
