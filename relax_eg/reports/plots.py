"""Plots as SVG: rooflines, cost over a size, memory over a program, growth of e-graphs.

The SVG is written here without a plotting library, so that colours follow light and dark mode, text has reading size on
a phone, and no script is needed. Lines and words take their colours from variables of the page (`page.css`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from relax_eg.extract.report import Crossover, Curve, DeviceRow, Series
from relax_eg.figures import si, time
from relax_eg.reports.align import Column
from relax_eg.reports.roofline import kernel_roofline, roofline
from relax_eg.traversal import grouped

# Curves of cost over a size, from reports at several bindings of sizes. Nothing is priced again.


def curves_over_bindings(columns: Sequence[Column]) -> list[Curve]:
    """For each size variable, the curves of all columns over this size. A curve has the bindings in which all other
    sizes are as in the report's own binding. Columns with fewer than two such bindings are left out."""
    variables = dict.fromkeys(v for c in columns for v in c.report.at)
    found: list[Curve] = []
    for v in variables:
        lines = [(c.label, _seconds_by_size(c, v)) for c in columns]
        lines_drawn = [(label, line) for label, line in lines if len(line) > 1]
        if not lines_drawn:
            continue
        sizes = sorted({n for _, line in lines_drawn for n in line})
        series = tuple(Series(label, tuple(line.get(n) for n in sizes)) for label, line in lines_drawn)
        fixed = {k: n for k, n in columns[0].report.at.items() if k != v}
        found.append(Curve(v, fixed, tuple(sizes), series, tuple(_crossovers(sizes, series))))
    return found


def _seconds_by_size(c: Column, variable: str) -> Mapping[int, float]:
    """The seconds of a column by size, at the bindings that differ from the report's own binding in this size only."""
    own = {k: n for k, n in c.report.at.items() if k != variable}
    found: dict[int, float] = {}
    for r in c.report.at_each():
        if variable in r.at and {k: n for k, n in r.at.items() if k != variable} == own:
            found[r.at[variable]] = (r.before if c.as_written else r.after).seconds
    return found


def _crossovers(sizes: Sequence[int], series: Sequence[Series]) -> list[Crossover]:
    """The crossovers: the first of `sizes` at which another program is the cheapest, for each such change."""
    found: list[Crossover] = []
    best = ""
    for i, n in enumerate(sizes):
        here = [(s.seconds[i], s.label) for s in series]
        cheapest = min(((x, label) for x, label in here if x is not None), default=None)
        if cheapest is None:
            continue
        if best and cheapest[1] != best:
            found.append(Crossover(n, best, cheapest[1]))
        best = cheapest[1]
    return found


WIDTH, HEIGHT = 440, 300  # chosen: pixels of a plot
LEFT, RIGHT, TOP, BOTTOM = 58, 24, 12, 44  # chosen: pixels around the plot, for labels
COLOURS = 8  # given: colours of the page; further columns reuse them
_LEAST = 1e-300  # limit: smallest value on a logarithmic axis
MOST_POINTS = 24  # limit: kernels of a program in a roofline, the most expensive ones


@dataclass
class Axis:
    """An axis of a plot, which maps values to pixels.

    - `low`, `high`: the values at its ends.
    - `start`, `end`: the pixels of its ends.
    - `show`: formats a value.
    - `log`: whether the axis is logarithmic.
    """

    low: float
    high: float
    start: float
    end: float
    show: Callable[[float], str]
    log: bool = False

    def __post_init__(self) -> None:
        if self.log:  # a report from a file may have rates of 0
            self.low, self.high = max(self.low, _LEAST), max(self.high, _LEAST)

    def at(self, value: float) -> float:
        """The pixel of a value."""
        low, high, v = self.low, self.high, value
        if self.log:
            low, high, v = math.log10(low), math.log10(high), math.log10(max(value, _LEAST))
        share = (v - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, most: int = 5) -> list[float]:
        """Round values along the axis, about `most` of them."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            for leading in ((1, 2, 5), (1, 3), (1,)):
                found = [m * 10.0**e for e in range(first, last + 1) for m in leading]
                found = [v for v in found if self.low * (1 - 1e-9) <= v <= self.high * (1 + 1e-9)]
                if len(found) <= most:
                    break
            found = found[:: max(1, math.ceil(len(found) / most))]
            return found if len(found) > 1 else [self.low, self.high]
        if self.high <= self.low:
            return [self.low]
        rough = (self.high - self.low) / most
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(m * unit for m in (1, 2, 5, 10) if m * unit >= rough)
        return [n * step for n in range(math.ceil(self.low / step), math.floor(self.high / step + 1e-9) + 1)]


@dataclass
class Plot:
    """A plot.

    - `title`: a description of the plot in words.
    - `x`, `y`: its axes.
    - `x_label`, `y_label`: their labels.
    - `drawn`: the elements between the axes.
    """

    title: str
    x: Axis
    y: Axis
    x_label: str
    y_label: str
    drawn: list[Markup] = field(default_factory=list[Markup])

    def line(self, points: Sequence[tuple[float, float]], colour: int | None, kind: str = "line") -> None:
        path = " ".join(f"{self.x.at(x)},{self.y.at(y)}" for x, y in points)
        self.drawn.append(Markup('<polyline class="{} {}" points="{}"/>').format(kind, _colour(colour), path))

    def point(self, x: float, y: float, colour: int, radius: float, text: str, kind: str = "point") -> None:
        place = Markup('<circle class="{} {}" cx="{}" cy="{}" r="{}"><title>{}</title></circle>')
        self.drawn.append(place.format(kind, _colour(colour), self.x.at(x), self.y.at(y), radius, text))

    def words(self, x: float, y: float, text: str, anchor: str = "start", dy: float = 0) -> None:
        place = Markup('<text class="note" x="{}" y="{}" text-anchor="{}">{}</text>')
        self.drawn.append(place.format(self.x.at(x), self.y.at(y) + dy, anchor, text))

    def svg(self) -> Markup:
        return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
            WIDTH, HEIGHT, self.title, Markup("").join([*self._frame(), *self.drawn])
        )

    def _frame(self) -> Iterator[Markup]:
        bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        for v in self.x.ticks():
            at = self.x.at(v)
            yield Markup('<line class="grid" x1="{0}" y1="{1}" x2="{0}" y2="{2}"/>').format(at, TOP, bottom)
            place = Markup('<text class="tick" x="{}" y="{}" text-anchor="middle">{}</text>')
            yield place.format(at, bottom + 15, self.x.show(v))
        for v in self.y.ticks():
            at = self.y.at(v)
            yield Markup('<line class="grid" x1="{1}" y1="{0}" x2="{2}" y2="{0}"/>').format(at, LEFT, right)
            place = Markup('<text class="tick" x="{}" y="{}" text-anchor="end">{}</text>')
            yield place.format(LEFT - 5, at + 4, self.y.show(v))
        label = Markup('<text class="label" x="{}" y="{}" text-anchor="middle">{}</text>')
        yield label.format((LEFT + right) / 2, HEIGHT - 8, self.x_label)
        turned = Markup('<text class="label" text-anchor="middle" transform="translate({} {}) rotate(-90)">{}</text>')
        yield turned.format(12, (TOP + bottom) / 2, self.y_label)


def _colour(i: int | None) -> str:
    return "plain" if i is None else f"c{i % COLOURS}"


def _x(low: float, high: float, show: Callable[[float], str], log: bool = False) -> Axis:
    return Axis(low, high, LEFT, WIDTH - RIGHT, show, log)


def _y(low: float, high: float, show: Callable[[float], str], log: bool = False) -> Axis:
    return Axis(low, high, HEIGHT - BOTTOM, TOP, show, log)


def roofline_plot(device: DeviceRow, columns: Sequence[tuple[int, Column]]) -> Markup | None:
    """The roofline plot of programs on one device, each with its number among all columns. Large dots are whole
    programs, and small dots their most expensive kernels. The lines are the limits of the device. None if no program
    has flops and bytes."""
    whole = [(i, c, roofline(c.cost, device)) for i, c in columns if c.cost.flops and c.cost.bytes]
    if not whole:
        return None
    kernels = [
        (i, p, kernel_roofline(p, device))
        for i, c in columns
        for p in [p for p in c.cost.parts if p.launches and p.flops and p.bytes and not p.ahead][:MOST_POINTS]
    ]
    every = [r for _, _, r in whole] + [r for _, _, r in kernels]
    peak = max(r.peak for r in every)
    ridge = peak / device.bandwidth
    x = _x(min(ridge, *(r.intensity for r in every)) / 3, max(ridge, *(r.intensity for r in every)) * 5, si, True)
    y = _y(min(r.reached for r in every) / 3, peak * 3, si, True)
    title = f"roofline of {device.name}: " + "; ".join(
        f"{c.label} at {r.intensity:.3g} flops a byte reaches {si(r.reached)}flop/s" for _, c, r in whole
    )
    plot = Plot(title, x, y, "flops for each byte read or written", "flop/s")
    for speed, kind in ((device.cache_bandwidth, "roof cached"), (device.bandwidth, "roof")):
        start = max(x.low, y.low / speed)
        plot.line([(start, start * speed), (peak / speed, peak), (x.high, peak)], None, kind)
    plot.words(x.high, peak, f"arithmetic: {si(peak)}flop/s", "end", -6)
    for i, p, r in kernels:
        text = f"{p.what} at {p.line or 'no line'}: {time(p.seconds)}, {r.intensity:.3g} flops a byte"
        plot.point(r.intensity, max(r.reached, y.low), i, 3, text)
    for i, c, r in whole:
        text = f"{c.label}: {si(r.reached)}flop/s, {100 * r.share:.3g}% of what {r.bound} allows"
        plot.point(r.intensity, r.reached, i, 7, text, "whole")
    return plot.svg()


def memory_plot(columns: Sequence[tuple[int, Column]]) -> Markup | None:
    """A plot of the bytes alive while a program runs, over its kernels in order. None if no report has this data."""
    found = [(i, c, c.cost.memory) for i, c in columns if c.cost.memory is not None and c.cost.memory.moments]
    if not found:
        return None
    high = max(m.peak for _, _, m in found)
    title = "memory: " + "; ".join(f"{c.label} peaks at {si(m.peak)}B" for _, c, m in found)
    x, y = _x(0, 1, lambda v: f"{100 * v:.0f}%"), _y(0, max(high, 1) * 1.08, si)
    plot = Plot(title, x, y, "share of the kernels that have run", "bytes alive")
    for i, _, m in found:
        n = len(m.moments)
        steps = [(x, t.bytes) for k, t in enumerate(m.moments) for x in (k / n, (k + 1) / n)]
        plot.line(steps, i)
        peak = max(range(n), key=lambda k: m.moments[k].bytes)
        text = f"peak {si(m.peak)}B while {m.peak_at} runs"
        plot.point((peak + 0.5) / n, m.moments[peak].bytes, i, 4, text, "whole")
    return plot.svg()


def growth_plot(columns: Sequence[tuple[int, Column]]) -> Markup | None:
    """A plot of the e-nodes of the largest e-graph of each search, by round. None if no search has two rounds."""
    lines: list[tuple[int, str, list[int]]] = []
    for i, c in columns:
        by = grouped((r.function, r.nodes) for r in c.report.growth)
        if by:
            lines.append((i, c.label, max(by.values(), key=max)))
    if not lines or max(len(nodes) for _, _, nodes in lines) < 2:
        return None
    rounds = max(len(nodes) for _, _, nodes in lines) - 1
    high = max(max(nodes) for _, _, nodes in lines)
    title = "growth: " + "; ".join(f"{label} ends at {nodes[-1]} nodes" for _, label, nodes in lines)
    x, y = _x(0, rounds, lambda v: f"{v:g}"), _y(0, high * 1.08, si)
    plot = Plot(title, x, y, "round of the search", "e-graph nodes")
    for i, _, nodes in lines:
        plot.line(list(enumerate(map(float, nodes))), i)
        plot.point(len(nodes) - 1, nodes[-1], i, 3, f"{nodes[-1]} nodes after {len(nodes) - 1} rounds", "whole")
    return plot.svg()


def curve_plot(curve: Curve) -> Markup | None:
    """A plot of cost over a size, with one line per program and with the crossovers. None if there are fewer than two
    points."""
    rows = [zip(curve.sizes, x.seconds, strict=True) for x in curve.series]
    # A cost of 0 has no place on a logarithmic axis.
    found = [[(n, s) for n, s in row if s is not None and s > 0] for row in rows]
    flat = [p for line in found for p in line]
    if len(flat) < 2:
        return None
    sizes, costs = [n for n, _ in flat], [s for _, s in flat]
    log = min(sizes) > 0 and max(sizes) >= 16 * min(sizes)
    x = _x(min(sizes), max(sizes), lambda v: f"{v:g}", log)
    y = _y(min(costs) / 1.5, max(costs) * 1.5, time, True)
    title = f"cost over {curve.variable}: " + ", ".join(s.label for s in curve.series)
    plot = Plot(title, x, y, f"size {curve.variable}", "predicted time")
    for c in curve.crossovers:
        plot.line([(c.size, y.low), (c.size, y.high)], None, "crossing")
        plot.words(c.size, y.high, f"{curve.variable}={c.size}", "start" if c.size < max(sizes) / 2 else "end", 12)
    for i, line in enumerate(found):
        plot.line(line, i)
        for n, s in line:
            plot.point(n, s, i, 2.5, f"{curve.series[i].label}: {time(s)} at {curve.variable}={n}")
    return plot.svg()


def key(labels: Sequence[tuple[int, str]]) -> Markup:
    """The key of the colours: a swatch and a label for each column."""
    one = '<span class="key"><i class="swatch {}"></i>{}</span>'
    return Markup(" ").join(Markup(one).format(_colour(i), escape(label)) for i, label in labels)
