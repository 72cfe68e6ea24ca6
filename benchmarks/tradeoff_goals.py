"""The goals that fronts of memory against time are held against, from the rows of `benchmarks.tradeoff`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from relax_eg.byte_units import format_bytes, parse_bytes

Row = tuple[str, ...]  # program, way, bytes, share of as written, time predicted, time measured

WRITTEN, CHECKPOINT, FRONT = "as written", "jax.checkpoint", "front"
# given: shares of the activations as written (the bytes beside arguments and results) that a front reaches at equal
# time and, for training steps and for attentions over 8,192 places and more, at 10% more; and the time as a share of
# the one as written at which it keeps 40% of the activations
EQUAL, LONGER, EQUAL_SHARE, STEP_SHARE, ATTENTION_SHARE, LIMIT_SHARE, LIMIT_TIME = 1.0, 1.1, 0.6, 0.3, 0.1, 0.4, 1.05
# given: bytes in one program, by the name of the program
MOST = {"perceptron, training step, batch 2,048": "8MiB", "attention over 8,192 places": "10MiB"}
HEADINGS = (
    "program", "time", "results", "activations at equal time: 60% wanted",
    "at 10% more: 30% wanted, of long attention 10%", "time at 40%: 1.05 wanted", "jax.checkpoint", "least bytes",
)  # fmt: skip


@dataclass(frozen=True)
class Point:
    """Bytes, and the time as a share of that of the program as written; None: not known."""

    bytes: int
    time: float | None


def number(text: str) -> float | None:
    """The first number of a cell."""
    found = re.match(r"[0-9.]+", text)
    return None if found is None else float(found[0])


def points(rows: Sequence[Row]) -> tuple[dict[str, Point], bool]:
    """The ways of one program, and whether their times were measured, all in turns."""
    is_timed = all(row[5] for row in rows)
    times = {row[1]: number(row[5] if is_timed else row[4]) for row in rows}
    written = times[WRITTEN] or 1.0
    return {
        row[1]: Point(
            parse_bytes(row[2].replace(" ", ""), "bytes"), None if (t := times[row[1]]) is None else t / written
        )
        for row in rows
    }, is_timed


def _judged(value: str, reached: bool) -> str:
    return value if reached else f"**{value}**"


def _share_within(front: Sequence[Point], activations: Callable[[Point], float], longest: float, wanted: float) -> str:
    within = [activations(p) for p in front if p.time is not None and p.time <= longest]
    if not within:
        return "no program" if wanted >= 1 else "**no program**"
    return _judged(f"{min(within):.0%}", min(within) <= wanted)


def goals(rows: Mapping[str, Sequence[Row]], results: Mapping[str, int]) -> list[Row]:
    """A row for each program: what of the goals is missed stands in bold. `results`: the bytes of its results."""
    made: list[Row] = []
    for name, of in rows.items():
        known, is_timed = points(of)

        def activations(p: Point, own: int = results[name], written: int = known[WRITTEN].bytes) -> float:
            """The bytes beside arguments and results, as a share of those as written."""
            return (p.bytes - own) / (written - own)

        front = [p for way, p in known.items() if way.startswith(FRONT)]
        is_step = "training step" in name or "gradients" in name
        wanted = STEP_SHARE if is_step else 1.0 if "2,048" in name else ATTENTION_SHARE
        times = [p.time for p in front if activations(p) <= LIMIT_SHARE and p.time is not None]
        at_limit = _judged(f"{min(times):.2f}", min(times) <= LIMIT_TIME) if times else "**no program**"
        least = min(p.bytes for p in front)
        enough = name not in MOST or least <= parse_bytes(MOST[name], "bytes")
        made.append((
            name,
            "measured" if is_timed else "predicted",
            format_bytes(results[name]),
            _share_within(front, activations, EQUAL, EQUAL_SHARE),
            _share_within(front, activations, LONGER, wanted),
            at_limit,
            _beside_checkpoint(front, known.get(CHECKPOINT)),
            _judged(format_bytes(least), enough) + (f" of {MOST[name]}" if name in MOST else ""),
        ))  # fmt: skip
    return made


def _beside_checkpoint(front: Sequence[Point], other: Point | None) -> str:
    """Whether a program of a front needs at most the bytes of `jax.checkpoint` in its time, if this is known."""
    if other is None:
        return ""
    if other.time is None:
        least = min(p.bytes for p in front)
        return _judged(f"least bytes {least / other.bytes:.0%} of its", least <= other.bytes)
    within = [p.bytes for p in front if p.time is not None and p.time <= other.time]
    return (
        _judged(f"{min(within) / other.bytes:.0%} of its", min(within) <= other.bytes)
        if within
        else "**no program in its time**"
    )
