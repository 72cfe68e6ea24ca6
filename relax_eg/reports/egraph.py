"""Draws an e-graph: e-classes as boxes with their e-nodes, and edges from e-nodes to the e-classes that they read.

The layout has layers (Sugiyama's method: longest path, then a few sweeps that put a box below the middle of its
readers). It is implemented here because `pip install` does not provide the layout programs that do it better; `to_dot`
writes their input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from relax_eg.traversal import grouped, operands_first

# chosen: pixels: width of a letter, height of a row, gap between boxes, gap between layers
LETTER, LINE, GAP, BETWEEN = 7.0, 17.0, 18.0, 46.0
SWEEPS = 6  # limit: sweeps over the layers that move boxes near their readers and the boxes that they read
MOST_ROWS = 8  # limit: e-nodes that a box shows


@dataclass(frozen=True)
class ENode:
    """An e-node of a drawn e-class.

    - `label`: its text.
    - `rule`: the rule that made it; "" for an e-node of the program as written.
    - `reads`: the numbers of the e-classes that it reads.
    - `chosen`, `written`: whether it is part of the chosen program, and of the program as written.
    """

    label: str
    rule: str
    reads: tuple[int, ...]
    chosen: bool
    written: bool


@dataclass(frozen=True)
class Box:
    """A drawn e-class.

    - `number`: the number of the e-class.
    - `title`: the text above its e-nodes.
    - `nodes`: its e-nodes.
    - `asked`: whether the user asked for this e-class.
    """

    number: int
    title: str
    nodes: tuple[ENode, ...]
    asked: bool = False

    @property
    def rows(self) -> list[ENode]:
        """The e-nodes that are drawn: chosen ones first, then those of the program as written."""
        return sorted(self.nodes, key=lambda n: (not n.chosen, not n.written))[:MOST_ROWS]

    @property
    def hidden(self) -> int:
        """The number of e-nodes that are not drawn."""
        return len(self.nodes) - len(self.rows)


@dataclass(frozen=True)
class Picture:
    """A drawing of an e-graph.

    - `title`: what the drawing shows.
    - `boxes`: the e-classes, roots first.
    - `left_out`: number of e-classes that are not drawn.
    """

    title: str
    boxes: tuple[Box, ...]
    left_out: int = 0

    def to_svg(self) -> str:
        """The picture as SVG; its colours come from the CSS of the page around it."""
        return str(_to_svg(self))

    def to_dot(self) -> str:
        """The picture in the language of Graphviz, for `dot -Tsvg`."""
        known = {b.number for b in self.boxes}
        lines = ["digraph egraph {", '  node [shape=box, fontname="sans-serif"];', "  compound=true;"]
        for b in self.boxes:
            lines.append(f'  subgraph cluster_{b.number} {{ label="{_quoted(b.title)}"; style=rounded;')
            for i, n in enumerate(b.nodes):
                style = "bold" if n.chosen else "dashed" if n.written else "solid"
                lines.append(f'    n{b.number}_{i} [label="{_quoted(_row(n))}", style={style}];')
            lines.append("  }")
        for b in self.boxes:
            for i, n in enumerate(b.nodes):
                for r in n.reads:
                    if r in known:
                        bold = ", style=bold" if n.chosen else ""
                        lines.append(f"  n{b.number}_{i} -> n{r}_0 [lhead=cluster_{r}{bold}];")
        return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _row(n: ENode) -> str:
    return f"{n.label}   by {n.rule}" if n.rule else n.label


def _layers(boxes: Sequence[Box]) -> list[list[int]]:
    """The numbers of the boxes by layer, readers above the boxes that they read. Edges that would close a cycle are
    ignored."""
    reads = {b.number: sorted({r for n in b.nodes for r in n.reads}) for b in boxes}
    chosen = {b.number: [r for n in b.nodes if n.chosen for r in n.reads] for b in boxes}

    def inside(c: int) -> list[int]:
        # The chosen e-nodes form no cycle, so their edges are followed first.
        return [r for r in dict.fromkeys([*chosen[c], *reads[c]]) if r in reads and r != c]

    height: dict[int, int] = {}
    for c in operands_first(reads, inside):
        height[c] = 1 + max((height[r] for r in inside(c) if r in height), default=-1)
    top = max(height.values(), default=0)
    layers: list[list[int]] = [[] for _ in range(top + 1)]
    for c, h in height.items():
        layers[top - h].append(c)
    return layers


def _to_svg(p: Picture) -> Markup:
    boxes = {b.number: b for b in p.boxes}
    layers = _layers(p.boxes)
    sizes = {c: _size(b) for c, b in boxes.items()}
    reads = sorted({(b.number, r) for b in p.boxes for n in b.nodes for r in n.reads if r in boxes and r != b.number})
    readers, below = grouped((r, c) for c, r in reads), grouped(reads)
    x = _places(layers, sizes, readers, below)
    width = max((x[c] + sizes[c][0] / 2 for c in boxes), default=100.0) + GAP
    y: dict[int, float] = {}
    at = GAP
    for layer in layers:
        for c in layer:
            y[c] = at
        at += max((sizes[c][1] for c in layer), default=0.0) + BETWEEN
    edges = {(c, r, n.chosen) for c, b in boxes.items() for n in b.nodes for r in n.reads if r in boxes}
    drawn = [_edge((x[c], y[c] + sizes[c][1]), (x[r], y[r]), chosen) for c, r, chosen in sorted(edges)]
    drawn += [_box(b, x[c] - sizes[c][0] / 2, y[c], sizes[c]) for c, b in boxes.items()]  # drawn over the edges
    size = Markup('viewBox="0 0 {0} {1}" style="width:{0}px; max-width:none"').format(round(width), round(at))
    shown = Markup('<svg class="egraph" {} role="img" aria-label="{}">{}</svg>')
    return shown.format(size, p.title, Markup("").join(drawn))


def _size(b: Box) -> tuple[float, float]:
    rows = [b.title, *map(_row, b.rows)]
    return max(map(len, rows)) * LETTER + 20, LINE * (len(b.rows) + 1 + bool(b.hidden)) + 12


def _places(
    layers: Sequence[Sequence[int]],
    sizes: Mapping[int, tuple[float, float]],
    readers: Mapping[int, Sequence[int]],
    below: Mapping[int, Sequence[int]],
) -> dict[int, float]:
    """The horizontal position of the middle of each box."""
    x: dict[int, float] = {}
    for layer in layers:
        _place_layer(list(layer), {c: float(i) for i, c in enumerate(layer)}, sizes, x)
    for sweep in range(SWEEPS):
        near = readers if sweep % 2 == 0 else below
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            wanted = {c: sum(x[r] for r in near[c]) / len(near[c]) if near.get(c) else x[c] for c in layer}
            _place_layer(sorted(layer, key=lambda c: wanted[c]), wanted, sizes, x)
    first = min((x[c] - sizes[c][0] / 2 for c in x), default=0.0)
    return {c: at - first + GAP for c, at in x.items()}


def _place_layer(
    order: Sequence[int], wanted: Mapping[int, float], sizes: Mapping[int, tuple[float, float]], x: dict[int, float]
) -> None:
    """Places the boxes of a layer side by side in this order, near their `wanted` positions, and stores their positions
    in `x`."""
    end = float("-inf")
    for c in order:
        half = sizes[c][0] / 2
        x[c] = max(wanted[c], end + GAP + half)
        end = x[c] + half
    shift = sum(wanted[c] - x[c] for c in order) / max(1, len(order))
    for c in order:
        x[c] += shift


def _box(b: Box, left: float, top: float, size: tuple[float, float]) -> Markup:
    kind = "class asked" if b.asked else "class"
    made = [
        Markup('<rect class="{}" x="{:.0f}" y="{:.0f}" width="{:.0f}" height="{:.0f}" rx="7"/>').format(
            kind, left, top, *size
        ),
        Markup('<text class="tick" x="{:.0f}" y="{:.0f}">{}</text>').format(left + 10, top + LINE, b.title),
    ]
    for i, n in enumerate(b.rows):
        at = top + LINE * (i + 1) + 6
        style = " ".join(["node", *(["chosen"] if n.chosen else []), *(["written"] if n.written else [])])
        frame = Markup('<rect class="{}" x="{:.0f}" y="{:.0f}" width="{:.0f}" height="{:.0f}" rx="3"/>')
        made.append(frame.format(style, left + 4, at, size[0] - 8, LINE - 1))
        made.append(Markup('<text x="{:.0f}" y="{:.0f}">{}</text>').format(left + 10, at + 12.5, _row(n)))
    if b.hidden:
        at = top + LINE * (len(b.rows) + 1) + 18
        made.append(
            Markup('<text class="note" x="{:.0f}" y="{:.0f}">and {} more</text>').format(left + 10, at, b.hidden)
        )
    return Markup("").join(made)


def _edge(start: tuple[float, float], end: tuple[float, float], chosen: bool) -> Markup:
    (x1, y1), (x2, y2) = start, end
    middle = (y1 + y2) / 2
    place = Markup('<path class="{}" d="M{:.0f},{:.0f} C{:.0f},{:.0f} {:.0f},{:.0f} {:.0f},{:.0f}"/>')
    return place.format("edge chosen" if chosen else "edge", x1, y1, x1, middle, x2, middle, x2, y2)
