"""The report of a spread program: who holds what, and what is sent when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from relax_eg.byte_units import format_bytes
from relax_eg.figures import time
from relax_eg.ir.placements import DeviceMesh, MeshPlacement

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_ROWS = 40  # limit: rows of a table in the text
_BARS = 60  # limit: collectives that the picture names
_COLOURS = {"all-reduce": "#b3402e", "reduce-scatter": "#c9822b", "all-gather": "#2f6f9f", "all-to-all": "#6a4c93"}
_COMPUTING, _OTHER = "#9aa5ad", "#444"


@dataclass(frozen=True, slots=True)
class HeldRow:
    """An argument or a result.

    - `name`: its name in the signature; "result 0" for a result.
    - `type`: its shape and dtype.
    - `placement`: where it is, as text.
    - `bytes`: bytes on each device.
    """

    name: str
    type: str
    placement: str
    bytes: int


@dataclass(frozen=True, slots=True)
class SentRow:
    """A collective.

    - `kind`: "all-reduce", "reduce-scatter", "all-gather" or "all-to-all".
    - `axis`: the axis of the mesh.
    - `what`: the operator whose value is sent, with its type.
    - `line`: the source line that computes it; "" if it is not known.
    - `before`, `after`: its parts along the axis.
    - `bytes`: bytes of the result on each device, of one run.
    - `times`: runs in a call.
    - `seconds`: of all runs.
    """

    kind: str
    axis: str
    what: str
    line: str
    before: str
    after: str
    bytes: int
    times: float
    seconds: float


@dataclass(frozen=True)
class SpreadReport:
    """How a program is spread over a mesh.

    - `name`, `target`, `mesh`: the program, the device, and the mesh as text.
    - `devices`: the number of devices.
    - `at`: the sizes at which it is priced.
    - `arguments`, `results`: who holds what.
    - `sent`: the collectives, in the order of the program.
    - `computing`, `sending`: predicted seconds of a call on each device.
    - `bound`: a lower bound on their sum, for any placement and any algebra that the rules give.
    - `one_device`: predicted seconds of a call on one device.
    - `memory`, `limit`: predicted bytes in memory of a device at the peak, and those that it may have.
    - `rules`: the rules that made operators of the program.
    - `whole`: operators without index equations, which every device computes whole, with their number.
    - `seconds`: of the search for placements.
    - `pipeline`: its stages and microbatches, if its layers run as a pipeline.
    - `proved`: how many of the ways in which operators are split are proved; `tested`: the others, which are tested, by
      operator and why.
    - `kept`: nodes whose authors have placed them (`shard_map`), with their number; what they send has no price.
    """

    name: str
    target: str
    mesh: str
    devices: int
    at: Mapping[str, int]
    arguments: tuple[HeldRow, ...]
    results: tuple[HeldRow, ...]
    sent: tuple[SentRow, ...]
    computing: float
    sending: float
    bound: float
    one_device: float
    memory: float
    limit: float
    rules: Mapping[str, int] = field(default_factory=dict[str, int])
    whole: Mapping[str, int] = field(default_factory=dict[str, int])
    seconds: float = 0.0
    kept: Mapping[str, int] = field(default_factory=dict[str, int])
    pipeline: str = ""
    proved: int = 0
    tested: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def input_placements(self) -> tuple[MeshPlacement, ...]:
        """For each array of the arguments, in order."""
        return tuple(MeshPlacement.parse(r.placement) for r in self.arguments)

    @property
    def output_placements(self) -> tuple[MeshPlacement, ...]:
        """For each array of the results, in order."""
        return tuple(MeshPlacement.parse(r.placement) for r in self.results)

    @property
    def total(self) -> float:
        """Predicted seconds of a call: computing, then sending, which does not overlap with it."""
        return self.computing + self.sending

    @property
    def gap(self) -> float:
        """The share by which another choice could at most be cheaper."""
        return max(0.0, 1 - self.bound / self.total) if self.total > 0 else 0.0

    def sent_bytes(self) -> dict[str, float]:
        """Bytes of the results of all collectives of a call on each device, by kind."""
        found: dict[str, float] = {}
        for row in self.sent:
            found[row.kind] = found.get(row.kind, 0.0) + row.bytes * row.times
        return found

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table

        yield f"[bold]{self.name}[/bold] on {self.devices} x {self.target}, mesh {self.mesh}"
        yield (
            f"{time(self.total)} a call (computing {time(self.computing)}, sending {time(self.sending)}); one device "
            f"{time(self.one_device)}; at most {100 * self.gap:.1f}% from the best"
        )
        limit = f" of {format_bytes(int(self.limit))}" if self.limit < float("inf") else ""
        yield f"memory of a device: {format_bytes(int(self.memory))}{limit}"
        if self.pipeline:
            yield f"pipeline: {self.pipeline}"
        held = Table("argument or result", "type", "placement", "bytes a device", box=None, pad_edge=False)
        for row in (*self.arguments, *self.results)[:_ROWS]:
            held.add_row(row.name, row.type, row.placement.replace("[", "\\["), format_bytes(row.bytes))
        yield held
        if self.sent:
            sent = Table("sent", "axis", "value", "line", "from", "to", "bytes", "times", "time", box=None,
                         pad_edge=False)  # fmt: skip
            for s in self.sent[:_ROWS]:
                parts = (p.replace("[", "\\[") for p in (s.before, s.after))
                sent.add_row(s.kind, s.axis, s.what, s.line, *parts, format_bytes(s.bytes), f"{s.times:g}",
                             time(s.seconds))  # fmt: skip
            yield sent
            if len(self.sent) > _ROWS:
                yield f"and {len(self.sent) - _ROWS} more"
        if self.rules:
            yield "rules: " + ", ".join(f"{n} x {rule}" for rule, n in self.rules.items())
        if self.whole:
            yield "computed whole on every device: " + ", ".join(f"{n} x {op}" for op, n in self.whole.items())
        if self.proved or self.tested:
            others = "".join(f"; tested: {n} x {what}" for what, n in self.tested.items())
            yield f"ways to split operators: {self.proved} proved{others}"
        if self.kept:
            yield "kept as written: " + ", ".join(f"{n} x {op}" for op, n in self.kept.items())

    def __str__(self) -> str:
        from relax_eg.reports.terminal import rendered_text

        return rendered_text(self, width=140)  # given: columns of a wide terminal

    def to_data(self) -> dict[str, object]:
        """The report as plain data, for JSON."""
        return asdict(self)

    def to_svg(self) -> str:
        """A picture: each argument and result with the part that a device holds, and the collectives in order, as wide
        as they take time."""
        width, row, left = 900, 22, 330  # given: pixels
        held = [*self.arguments, *self.results]
        shown = self.sent[:_BARS]
        height = row * (len(held) + len(shown) + 5)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="sans-serif" font-size="12" fill="currentColor">',
            f'<text x="8" y="16" font-weight="bold">{escape(self.name)} on {escape(self.mesh)}: who holds what</text>',
        ]
        y = row + 8
        for h in held:
            share = _share(h.placement, self.mesh)
            parts.append(f'<text x="8" y="{y + 13}">{escape(f"{h.name}  {h.type}")[:52]}</text>')
            parts.append(f'<rect x="{left}" y="{y}" width="300" height="16" fill="none" stroke="#888"/>')
            parts.append(
                f'<rect x="{left}" y="{y}" width="{max(2.0, 300 * share):.1f}" height="16" fill="#5b8c5a"/>'
                f'<text x="{left + 310}" y="{y + 13}">{escape(h.placement)}  {format_bytes(h.bytes)}</text>'
            )
            y += row
        y += row
        parts.append(f'<text x="8" y="{y}" font-weight="bold">what is sent when: {time(self.total)} a call</text>')
        kinds = {_COMPUTING: "computing", **{_COLOURS.get(s.kind, _OTHER): s.kind for s in shown}}
        for i, (colour, kind) in enumerate(kinds.items()):
            x = left + 120 * i
            parts.append(
                f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>'
                f'<text x="{x + 17}" y="{y}">{kind}</text>'
            )
        y += 8
        scale, at = (width - left - 20) / max(self.total, 1e-30), 0.0
        gaps = self.computing / (len(shown) + 1)
        for s in shown:
            x = left + scale * (at + gaps)
            parts.append(f'<text x="8" y="{y + 13}">{escape(f"{s.kind} {s.axis}: {s.what}")[:52]}</text>')
            parts.append(
                f'<rect x="{left + scale * at:.1f}" y="{y}" width="{scale * gaps:.1f}" height="16" '
                f'fill="{_COMPUTING}"/>'
                f'<rect x="{x:.1f}" y="{y}" width="{max(1.0, scale * s.seconds):.1f}" height="16" '
                f'fill="{_COLOURS.get(s.kind, _OTHER)}"><title>{escape(s.line)} {time(s.seconds)}</title></rect>'
            )
            at += gaps + s.seconds
            y += row
        parts.append("</svg>")
        return "\n".join(parts)

    def to_html(self, path: str | Path | None = None) -> str:
        """The report as one page, with the picture; also written to `path` if one is given. OptionError if that
        fails."""
        from relax_eg.reports.pages import page_of_spreading

        return page_of_spreading(f"{self.name} on {self.devices} x {self.target}", self.to_svg(), str(self), path)


def _share(placement: str, mesh: str) -> float:
    """The share of a tensor that a device holds."""
    found = 1.0
    for part, size in zip(placement.split(", "), DeviceMesh.of(mesh).sizes, strict=True):
        found /= size if part.startswith("S") else 1
    return found
