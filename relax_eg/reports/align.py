"""Aligns the programs of several reports: finds the kernels that do the same work, and what changed.

Kernels are aligned by the user's source lines. The cost of a kernel that computes several lines is divided among them
in proportion to their costs in the program as written. If a report has no lines, all reports are aligned by operator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from relax_eg.errors import OptionError
from relax_eg.extract.costs.detail import KernelPart
from relax_eg.extract.report import AS_WRITTEN, ProgramCost
from relax_eg.figures import binding_text
from relax_eg.reports.record import ReportRecord

NO_LINE = "(no source line)"
MOST_CHANGES = 3  # limit: changes that are reported
NOTHING = 1e-9  # chosen: seconds up to which a difference is ignored
MOST_RULES = 3  # limit: rules named as a cause if no rule made a kernel at the line itself


@dataclass(frozen=True)
class Column:
    """One program of a comparison.

    - `label`: its name in the comparison.
    - `report`: the report that contains it.
    - `as_written`: whether it is the report's program as written; if not, it is the chosen program.
    """

    label: str
    report: ReportRecord
    as_written: bool = False

    @property
    def cost(self) -> ProgramCost:
        return self.report.before if self.as_written else self.report.after

    @property
    def measured(self) -> float | None:
        """The measured seconds of a call; None if the program was not timed. Two timings of one program, of the one as
        written and of what was chosen where that is the one as written, differ by chance; the first counts."""
        rows = [r for r in self.report.measured if dict(r.at) == dict(self.report.at) or not r.at]
        if self.as_written or self.report.kept_as_written:
            wanted = [r for r in rows if r.label == AS_WRITTEN]
        elif self.runs_as_written:
            wanted = [r for r in rows if r.label != AS_WRITTEN]
        else:
            wanted = [r for r in rows if r.chosen]
        return wanted[0].seconds if wanted else None

    @property
    def runs_as_written(self) -> bool:
        """Whether the first calls have shown that the program as written is faster than this one, so that it runs."""
        report = self.report
        if self.as_written or report.kept_as_written:
            return False
        here = (r for r in report.measured if dict(r.at) == dict(report.at))
        return any(r.chosen and r.label == AS_WRITTEN for r in here)


@dataclass
class AlignedRow:
    """The kernels that do the same work in all programs.

    - `where`: the user's line, or the operator.
    - `parts`: for each column, the kernels that do the work.
    - `causes`: for each column, the causes of its difference from the first column.
    - `code`: the source text of the line.
    """

    where: str
    parts: list[list[KernelPart]]
    causes: list[list[str]] = field(default_factory=list[list[str]])
    code: str = ""

    def seconds(self, column: int) -> float:
        return sum(p.seconds for p in self.parts[column] if not p.ahead)

    def delta(self, column: int) -> float:
        """The seconds in `column` minus those in the first column; below 0 is a gain."""
        return self.seconds(column) - self.seconds(0)

    @property
    def spread(self) -> float:
        """The largest difference in seconds between two columns."""
        every = [self.seconds(i) for i in range(len(self.parts))]
        return max(every) - min(every)


@dataclass(frozen=True)
class AlignedPrograms:
    """The programs of reports, aligned.

    - `columns`: the programs; all others are compared with the first.
    - `by`: the key by which kernels are aligned, "line" or "operator".
    - `rows`: the kernels that do the same work in each program; rows that differ most come first.
    - `statements`: what can be compared and what cannot.
    """

    columns: tuple[Column, ...]
    by: str
    rows: tuple[AlignedRow, ...]
    statements: tuple[str, ...]

    @property
    def reports(self) -> tuple[ReportRecord, ...]:
        return tuple({id(c.report): c.report for c in self.columns}.values())

    def changes(self, column: int, most: int = MOST_CHANGES) -> list[AlignedRow]:
        """The `most` rows that differ most between the first column and `column`."""
        moved = [r for r in self.rows if abs(r.delta(column)) > NOTHING]
        return sorted(moved, key=lambda r: (-abs(r.delta(column)), r.where))[:most]


def aligned(
    columns: Sequence[Column],
    labels: Sequence[str] | None = None,
    against: str | None = None,
    as_written: bool | None = None,
) -> AlignedPrograms:
    """The programs of reports, aligned; the options are those of `compare`. A column without a label gets one by the
    properties in which the reports differ."""
    reports = list({id(c.report): c.report for c in columns}.values())
    if labels is not None and len(labels) != len(columns):
        raise OptionError(f"labels={list(labels)!r}: one for each of the {len(columns)} reports is accepted")
    default = [c.label or label for c, label in zip(columns, _labels([c.report for c in columns]), strict=True)]
    called = labels if labels is not None else _numbered(default)
    columns = [replace(c, label=label) for c, label in zip(columns, called, strict=True)]
    if len(columns) == 1 if as_written is None else as_written and not any(c.as_written for c in columns):
        columns.insert(0, Column(AS_WRITTEN, reports[0], True))
    if against is not None:
        first = next((c for c in columns if c.label == against), None)
        if first is None:
            raise OptionError(f"against={against!r}: one of {', '.join(repr(c.label) for c in columns)} is accepted")
        columns.remove(first)
        columns.insert(0, first)
    by, rows = _rows_of(columns)
    return AlignedPrograms(tuple(columns), by, tuple(rows), tuple(_statements(reports, by, rows)))


def _labels(reports: Sequence[ReportRecord]) -> list[str]:
    """A label for each report, made of the properties in which the reports differ."""
    facets: list[list[str]] = [
        [r.name for r in reports],
        [r.target for r in reports],
        [binding_text(r.at) for r in reports],
        [r.execution for r in reports],
        [r.rule_set for r in reports],
        [f"release {r.versions.get('relax-eg', 'unknown')}" for r in reports],
    ]
    differing = [f for f in facets if len(set(f)) > 1] or [facets[1]]
    found = [", ".join(f[i] for f in differing if f[i]) or f"report {i + 1}" for i in range(len(reports))]
    if len(reports) == 1:
        return ["chosen"]
    return found


def _numbered(labels: Sequence[str]) -> list[str]:
    """The labels, with a number after those that several have."""
    every, seen, found = Counter(labels), Counter[str](), list[str]()
    for label in labels:
        seen[label] += 1
        found.append(f"{label} ({seen[label]})" if every[label] > 1 else label)
    return found


def _statements(reports: Sequence[ReportRecord], by: str, rows: Sequence[AlignedRow]) -> list[str]:
    """Statements about what can be compared and what cannot."""
    found: list[str] = []
    names = list(dict.fromkeys(r.name for r in reports))
    signatures = list(dict.fromkeys(r.signature for r in reports if r.signature))
    if len(names) > 1:
        shown = " and ".join(names) if len(names) == 2 else f"{len(names)} programs"
        found.append(
            f"these are reports of different programs ({shown}): totals can be compared, and kernels only where they "
            "share a source line"
        )
    elif len(signatures) > 1:
        found.append(f"{names[0]} has {len(signatures)} signatures in these reports: other shapes, or another function")
    if by == "operator":
        old = [r for r in reports if r.before.rows and not r.before.parts]
        releases = ", ".join(dict.fromkeys(r.versions.get("relax-eg", "unknown") for r in old))
        why = f"a report of release {releases} has none" if old else "a report has none"
        found.append(f"compared by operator, not by source line: {why}")
    common = [r for r in rows if all(r.parts)]
    if not common and len(reports) > 1 and rows:
        found.append(
            f"no kernel is for the same {'source line' if by == 'line' else 'operator'} in all of them: only totals "
            "can be compared"
        )
    execution = list(dict.fromkeys(r.execution for r in reports))
    if len(execution) > 1:
        ways = ", ".join(execution)
        found.append(f"prices are of different ways to execute ({ways}): times can be compared, launches cannot")
    assumed = [r for r in reports if r.assumed_at]
    if assumed:
        found.append(
            f"sizes were assumed, not given, in {len(assumed)} of {len(reports)}: {binding_text(assumed[0].at)}"
        )
    if unproved := [r for r in reports if r.not_proved]:
        from relax_eg.reports.text import not_proved  # loads rich

        found += dict.fromkeys(f"{r.name} {not_proved(r)}" for r in unproved)
    newer = [r for r in reports if r.more is not None]
    if newer:
        found.append(f"{len(newer)} of {len(reports)} hold fields that this release does not know; they are kept as is")
    return found


def _rows_of(columns: Sequence[Column]) -> tuple[str, list[AlignedRow]]:
    """The key by which the columns are aligned ("line" or "operator"), and the rows, sorted by falling difference."""
    by = "line" if all(_has_lines(c.cost) for c in columns) else "operator"
    parts = [_parts(c, by) for c in columns]
    rows: dict[str, AlignedRow] = {}
    for i, side in enumerate(parts):
        for p in side:
            where = p.what if by == "operator" else p.line or NO_LINE
            if where not in rows:
                code = next((text for c in columns if (text := c.report.code.get(where))), "")
                rows[where] = AlignedRow(where, [[] for _ in columns], code=code)
            row = rows[where]
            row.parts[i].append(p)
    made = [list(dict.fromkeys(r for p in side for r in _rules([p]))) for side in parts]
    for row in rows.values():
        row.causes = [[], *(_causes(columns, row, i, made[i]) for i in range(1, len(columns)))]
    return by, sorted(rows.values(), key=lambda r: (-r.spread, -r.seconds(0), r.where))


def _has_lines(cost: ProgramCost) -> bool:
    return any(p.lines for p in cost.parts) or not cost.rows


def _parts(column: Column, by: str) -> list[KernelPart]:
    """The kernels of a program. A kernel of several lines is divided into one part per line, and the seconds of the
    parts add up to those of the kernel."""
    if by == "operator":
        rows = [r for r in column.cost.rows if r.seconds]
        return [KernelPart(r.op, "", "", (), "", r.count, r.flops, r.bytes, r.launches, r.seconds) for r in rows]
    written: dict[str, float] = {}
    for p in column.report.before.parts:
        written[p.line] = written.get(p.line, 0.0) + p.seconds
    return [share for p in column.cost.parts for share in _split_by_line(p, written)]


def _split_by_line(p: KernelPart, written: Mapping[str, float]) -> Iterator[KernelPart]:
    if len(p.lines) < 2:
        yield p
        return
    weights = [written.get(line, 0.0) for line in p.lines]
    total = sum(weights)
    for line, w in zip(p.lines, weights, strict=True):
        share = w / total if total > 0 else 1 / len(p.lines)
        yield replace(p, lines=(line,), seconds=share * p.seconds)


def _rules(parts: Sequence[KernelPart]) -> list[str]:
    """The rules that made these kernels, those of the most expensive kernel first."""
    return list(dict.fromkeys(r for p in sorted(parts, key=lambda p: -p.seconds) for r in p.rules))


def _causes(columns: Sequence[Column], row: AlignedRow, i: int, made: Sequence[str]) -> list[str]:
    """The rules and choices that make a row in column `i` different from the row in the first column. `made`: the rules
    that made any kernel in column `i`."""
    base, here = columns[0], columns[i]
    old, new = row.parts[0], row.parts[i]
    before, after = _rules(old), _rules(new)
    causes: list[str] = []
    gained, lost = [r for r in after if r not in before], [r for r in before if r not in after]
    if gained:
        causes.append(f"by {', '.join(gained)}")
    if lost:
        causes.append(f"without {', '.join(lost)}")
    ahead = sum(p.count for p in new if p.ahead) - sum(p.count for p in old if p.ahead)
    if ahead > 0:
        causes.append(f"{ahead} {'value' if ahead == 1 else 'values'} computed once from the weights")
    elif ahead < 0:
        causes.append(f"{-ahead} no longer computed ahead of the calls")
    causes += _circumstances(base.report, here.report)
    if not causes and _work(old) != _work(new):
        by = f", rewritten by {', '.join(made[:MOST_RULES])}{', ...' if len(made) > MOST_RULES else ''}" if made else ""
        causes.append(f"what reads it does without{by}" if not _work(new) else f"as other values are at hand{by}")
    return causes if _work(old) != _work(new) or row.delta(i) else []


def _work(parts: Sequence[KernelPart]) -> list[tuple[str, str, int]]:
    return sorted((p.what, p.result, p.count) for p in parts if not p.ahead)


def _circumstances(a: ReportRecord, b: ReportRecord) -> list[str]:
    """Other differences between two reports that change prices."""
    found: list[str] = []
    if a.target != b.target:
        found.append(f"on {b.target}")
    if dict(a.at) != dict(b.at):
        found.append("at other sizes")
    if a.execution != b.execution:
        found.append(f"executed as {b.execution}")
    releases = [r.versions.get("relax-eg", "") for r in (a, b)]
    if releases[0] != releases[1]:
        found.append(f"priced by release {releases[1]}")
    return found
