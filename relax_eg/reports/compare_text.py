"""A comparison as text: the totals; then the largest changes, each with the rule or choice that caused it; then a table
of all rows."""

from __future__ import annotations

from rich.console import RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from relax_eg.extract.costs.detail import KernelPart
from relax_eg.figures import binding_text, integer_text, si, time
from relax_eg.reports.align import AlignedPrograms, AlignedRow
from relax_eg.reports.short import measured_seconds, ratio
from relax_eg.reports.terminal import plain_table

MOST_ROWS = 12  # limit: rows of the table by source line
MOST_COLUMNS = 5  # limit: columns of that table; the HTML has all
MOST_CODE = 90  # limit: characters of a source line
MOST_KERNELS = 3  # limit: kernels of each program that the line on a change names


def comparison(c: AlignedPrograms) -> RenderResult:
    """The printed form of a comparison."""
    yield Text(headline(c), style="bold")
    for s in c.statements:
        yield Text(f"note: {s}", style="yellow")
    yield _totals(c)
    for i, column in enumerate(c.columns[1:], 1):
        changes = c.changes(i)
        yield Text(f"{column.label} against {c.columns[0].label}: {summary(c, i)}", style="bold")
        for row in changes:
            yield Text.assemble(f"  {row.where}", (f"   {row.code[:MOST_CODE]}" if row.code else "", "cyan"))
            yield Padding(Text(change_line(row, i)), (0, 0, 0, 4))
        rules = rule_changes(c, i)
        if rules:
            yield Text(f"  {rules}", style="dim")
    if len(c.rows) > 1 and len(c.columns) <= MOST_COLUMNS:
        yield _by_row(c)


def headline(c: AlignedPrograms) -> str:
    """The headline of a comparison: the programs, and the target and the sizes if they are the same for all."""
    first = c.columns[0].report
    names = dict.fromkeys(x.report.name for x in c.columns)
    targets = {x.report.target for x in c.columns}
    ats = {binding_text(x.report.at) for x in c.columns}
    told = [", ".join(names)]
    told += [first.target] if len(targets) == 1 else []
    told += [f"at {binding_text(first.at)}"] if len(ats) == 1 and first.at else []
    return ", ".join(told)


def summary(c: AlignedPrograms, i: int) -> str:
    """The line that says how many times faster or slower a column is than the first."""
    x, y = c.columns[0].cost.seconds, c.columns[i].cost.seconds
    if x <= 0 or y <= 0:
        return f"{time(x)} -> {time(y)} predicted"
    if (change := ratio(x, y)) == "as fast":
        return f"the same predicted time, {time(y)}"
    text = f"{change}, {time(x)} -> {time(y)} predicted"
    if measured := measured_seconds((c.columns[0], c.columns[i])):
        text += f"; {measured[0] / measured[1]:.3g}x measured, {time(measured[0])} -> {time(measured[1])}"
    return text


def rule_changes(c: AlignedPrograms, i: int) -> str:
    """The line on the rules that a column's program uses more often than the first column's program, and on those that
    it uses less often; "" if there are none."""
    base, here = c.columns[0], c.columns[i]
    old = {} if base.as_written else dict(base.report.rules)
    new = {} if here.as_written else dict(here.report.rules)
    more = [f"{r} x{n - old.get(r, 0)}" for r, n in new.items() if n > old.get(r, 0)]
    less = [f"{r} x{n - new.get(r, 0)}" for r, n in old.items() if n > new.get(r, 0)]
    first = "rules used" if base.as_written else "rules used more"
    both = [f"{first}: {', '.join(more)}"] * bool(more) + [f"rules used less: {', '.join(less)}"] * bool(less)
    return "; ".join(both)


def change_line(row: AlignedRow, i: int) -> str:
    """The line on a row: the change of its time and kernels in column `i`, and the causes."""
    x, y = row.seconds(0), row.seconds(i)
    sign = "-" if y < x else "+"
    change = f"{time(x)} -> {time(y)} ({sign}{time(abs(y - x))})"
    kernels = f"{kernels_of(row.parts[0])} -> {kernels_of(row.parts[i])}"
    if _names(row.parts[0]) == _names(row.parts[i]):
        kernels = kernels_of(row.parts[i])
    why = "; ".join(row.causes[i])
    return f"{change}: {kernels}" + (f"; {why}" if why else "")


def kernels_of(parts: list[KernelPart]) -> str:
    """The kernels of a row as text, the most expensive first: "2 matmul, softmax"."""
    counts = _names(parts)
    shown = [f"{n} {what}" if n > 1 else what for what, n in list(counts.items())[:MOST_KERNELS]]
    more = len(counts) - MOST_KERNELS
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "") if shown else "nothing"


def _names(parts: list[KernelPart]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for p in sorted(parts, key=lambda p: -p.seconds):
        if not p.ahead:
            counts[p.what] = counts.get(p.what, 0) + p.count
    return counts


def _totals(c: AlignedPrograms) -> Table:
    """A table with one line for each program. Columns without any value are left out."""
    first = c.columns[0].cost
    columns: list[tuple[str, list[str]]] = [
        ("predicted", [time(x.cost.seconds) for x in c.columns]),
        ("measured", ["" if x.measured is None else time(x.measured) for x in c.columns]),
        ("times faster", [f"{first.seconds / x.cost.seconds:.2f}" if x.cost.seconds else "" for x in c.columns]),
        ("flops", [si(x.cost.flops) for x in c.columns]),
        ("bytes", [si(x.cost.bytes) for x in c.columns]),
        ("launches", [integer_text(x.cost.launches) for x in c.columns]),
        ("peak", ["" if x.cost.memory is None else f"{si(x.cost.memory.peak)}B" for x in c.columns]),
        ("prepared", [f"{si(x.cost.prepared_bytes)}B" if x.cost.prepared_bytes else "" for x in c.columns]),
    ]
    shown = [(label, values) for label, values in columns if any(values)]
    table = plain_table([""], [label for label, _ in shown])
    for i, x in enumerate(c.columns):
        table.add_row(x.label, *(values[i] for _, values in shown))
    return table


def _by_row(c: AlignedPrograms) -> Table:
    table = plain_table(["source line" if c.by == "line" else "operator"], [column.label for column in c.columns])
    for row in c.rows[:MOST_ROWS]:
        table.add_row(row.where, *(time(row.seconds(i)) for i in range(len(c.columns))))
    if len(c.rows) > MOST_ROWS:
        rest = [sum(r.seconds(i) for r in c.rows[MOST_ROWS:]) for i in range(len(c.columns))]
        table.add_row(f"{len(c.rows) - MOST_ROWS} more", *map(time, rest), style="dim")
    return table
