"""A comparison in a few sentences: the gain, its line and cause, and the lines with most of the remaining
time."""

from __future__ import annotations

from relax_eg.figures import binding_text, time
from relax_eg.reports.align import AlignedPrograms, AlignedRow, Column
from relax_eg.reports.roofline import roofline

_SAME = 5e-3  # chosen: share of a time up to which a difference counts as none
_MOST_CODE = 60  # limit: characters of a source line
_MOST_LINES = 3  # limit: source lines that are named
_LIMITS = {"memory": "the device's memory", "cache": "the device's cache", "arithmetic": "the device's arithmetic"}


def highlights(c: AlignedPrograms) -> list[tuple[str, str]]:
    """The most important facts of a comparison, as pairs of a topic and a sentence. Empty if there are fewer than two
    columns, or if a column has no cost."""
    if len(c.columns) < 2 or not all(x.cost.seconds > 0 for x in c.columns):
        return []
    if len(c.columns) == 2:
        facts = (
            ("Runs", _what_runs(c)),
            ("Time", _gain_sentence(c)),
            ("Changed", _main_change(c)),
            ("Where time still goes", _remaining_time(c, 1)),
        )
    else:
        facts = ("Times", _ranking(c)), ("Where time goes", _shares(c))
    return [(topic, sentence) for topic, sentence in facts if sentence]


def measured_seconds(columns: tuple[Column, ...]) -> list[float] | None:
    """The measured seconds of all columns; None if a column was not measured."""
    found = [x.measured for x in columns]
    return [x for x in found if x is not None] if None not in found else None


def ratio(before: float, after: float) -> str:
    """Text that says how many times faster or slower `after` is: "1.5x faster"."""
    if abs(after - before) <= _SAME * before:
        return "as fast"
    return f"{before / after:.3g}x faster" if after < before else f"{after / before:.3g}x slower"


def _gain_sentence(c: AlignedPrograms) -> str:
    base, here = c.columns
    told, measured = [x.cost.seconds for x in c.columns], measured_seconds(c.columns)
    x, y = measured or told
    how = f"measured (predicted: {ratio(*told)})" if measured else "predicted"
    where = f" on {here.report.target}" if here.report.target == base.report.target else ""
    where += f", at {binding_text(here.report.at)}" if here.report.at == base.report.at and here.report.at else ""
    if abs(y - x) <= _SAME * x:
        return f"A call takes {time(y)} {how}, {base.label} and {here.label} alike{where}."
    return f"A call takes {time(y)} ({here.label}) instead of {time(x)} ({base.label}): {ratio(x, y)}, {how}{where}."


def _what_runs(c: AlignedPrograms) -> str:
    """A sentence where the program as written runs."""
    base, here = c.columns
    if base.as_written and here.report.kept_as_written and here.report is base.report:
        return "The program as written: no other was predicted to be enough faster, so both columns are one program."
    if not here.runs_as_written:
        return ""
    return "The program as written: the first calls have timed both, and what is shown here as chosen was not faster."


def _main_change(c: AlignedPrograms) -> str:
    """A sentence on the row with most of the difference, its cause, and the sum of the other differences."""
    total = c.columns[1].cost.seconds - c.columns[0].cost.seconds
    if abs(total) <= _SAME * c.columns[0].cost.seconds or not c.rows:
        return ""
    most = min(c.rows, key=lambda r: r.delta(1)) if total < 0 else max(c.rows, key=lambda r: r.delta(1))
    rest = total - most.delta(1)
    made = "; ".join(most.causes[1]).removesuffix(", ...")
    elsewhere = f"; elsewhere {_change_text(rest)}" if abs(rest) > _SAME * c.columns[0].cost.seconds else ""
    return f"{_change_text(most.delta(1))} predicted at {_line(most)}" + (f", {made}" if made else "") + f"{elsewhere}."


def _change_text(seconds: float) -> str:
    return f"{time(abs(seconds))} {'less' if seconds < 0 else 'more'}"


def _remaining_time(c: AlignedPrograms, i: int) -> str:
    """A sentence on the lines that take most of a column's time, and on its limit in the roofline model."""
    x = c.columns[i]
    rows = sorted((r for r in c.rows if r.seconds(i)), key=lambda r: -r.seconds(i))[:_MOST_LINES]
    if not rows:
        return ""
    shares = [_percent(r.seconds(i) / x.cost.seconds) for r in rows]
    first = f"{shares[0]} of the {time(x.cost.seconds)} predicted is at {_line(rows[0])}"
    text = _list([first, *(f"{share} at {r.where}" for share, r in zip(shares[1:], rows[1:], strict=True))])
    if x.report.device is not None:
        roof = roofline(x.cost, x.report.device)
        at = f"{_percent(roof.share)} of what {_LIMITS[roof.bound]} allows"
        text += f"; on the whole it reaches {at}"
    return text + "."


def _ranking(c: AlignedPrograms) -> str:
    measured = measured_seconds(c.columns)
    seconds = measured or [x.cost.seconds for x in c.columns]
    base, first = c.columns[0], seconds[0]
    rest = list(zip(c.columns[1:], seconds[1:], strict=True))
    same = [x.label for x, s in rest if abs(s - first) <= _SAME * first]
    other = [f"{x.label} is {ratio(first, s)} ({time(s)})" for x, s in rest if x.label not in same]
    how = "measured" if measured else "predicted"
    told = [f"Beside {base.label} ({time(first)} {how}) "]
    told.append(_list(other) if other else "nothing differs")
    told.append(f"; the same: {', '.join(same)}." if same and other else ".")
    return "".join(told)


def _shares(c: AlignedPrograms) -> str:
    """A sentence on the most expensive line of the first column, with its share of the time of each column."""
    if not c.rows:
        return ""
    row = max(c.rows, key=lambda r: r.seconds(0))
    shares = [(x.label, row.seconds(i) / x.cost.seconds) for i, x in enumerate(c.columns)]
    low, high = min(s for _, s in shares), max(s for _, s in shares)
    if len(shares) <= _MOST_LINES:
        told = _list([f"{_percent(s)} on {label}" for label, s in shares])
    else:
        told = _percent(low) if _percent(low) == _percent(high) else f"{_percent(low)} to {_percent(high)}"
    return f"{_line(row)} takes {told} of the predicted time."


def _line(r: AlignedRow) -> str:
    code = r.code.partition("#")[0].strip()
    shown = code if len(code) <= _MOST_CODE else code[: _MOST_CODE - 3] + "..."
    return f"{r.where} ({shown})" if shown else r.where


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%" if share >= 0.01 else f"{100 * share:.1g}%"


def _list(parts: list[str]) -> str:
    return ", ".join(parts[:-1]) + f" and {parts[-1]}" if len(parts) > 1 else "".join(parts)
