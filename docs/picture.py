"""Draws the README's picture, `docs/before_after.svg`: a program as written and as chosen, with the predicted cost.

    python -m docs.picture [another.svg]

Everything in it comes from `optimize`: the two modules, and the report's prices.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

import relax_eg as rx
from examples.algebra import PROGRAMS
from relax_eg.ir.expr import CONSTANT, VAR, Expr, constant_value, postorder
from relax_eg.ir.module import Function

BOX, HIGH, GAP_X, GAP_Y = 132, 44, 22, 40
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1c2330; text-anchor: middle }
  .shape { font-size: 11px; fill: #5b6575 } .title { font-size: 15px; font-weight: 600 }
  .cost { font-size: 13px; fill: #1c2330 } .op { fill: #dbe7fb; stroke: #4a74b8 } .in { fill: #f3f4f6; stroke: #9aa3b0 }
  .line { stroke: #7b8494; fill: none; stroke-width: 1.3 } .page { fill: #ffffff }
  @media (prefers-color-scheme: dark) {
    text, .cost { fill: #e6e9ef } .shape { fill: #a4adbb } .op { fill: #24385c; stroke: #6f98dc }
    .in { fill: #2a2f38; stroke: #6b7482 } .line { stroke: #8b94a4 } .page { fill: #14181f }
  }
"""
NAMES = {"matmul": "@", "multiply": "×", "add": "+", "linear": "@"}


def nodes(function: Function) -> list[Expr]:
    """The expressions to draw, operands first; what only scales by a number is drawn with its number."""
    roots = [b.value for block in function.blocks for b in block.bindings]
    return [e for e in postorder(roots) if e.op != CONSTANT]


def label(e: Expr) -> str:
    if e.op == VAR:
        return str(e.attr("name"))
    numbers = [f"{constant_value(a).item():g}" for a in e.args if a.op == CONSTANT and a.ndim == 0]
    return " ".join([NAMES.get(e.op, e.op), *numbers])


def shape(e: Expr) -> str:
    return " × ".join(map(str, e.shape))


def draw(function: Function, left: float, top: float) -> tuple[list[str], float, float]:
    """SVG elements of one program, its width and height. Layered by the longest path from the inputs."""
    level: dict[Expr, int] = {}
    for e in nodes(function):
        below = [level[a] for a in e.args if a in level]
        level[e] = 1 + max(below) if below else 0
    # An input stands right above its first reader, not all inputs in one row.
    for e in level:
        if e.op == VAR:
            level[e] = min((level[u] for u in level if e in u.args), default=1) - 1
    rows: dict[int, list[Expr]] = {}
    for e in level:
        rows.setdefault(level[e], []).append(e)
    width = max(len(r) for r in rows.values()) * (BOX + GAP_X) - GAP_X
    at: dict[Expr, tuple[float, float]] = {}
    for y, row in rows.items():
        start = left + (width - (len(row) * (BOX + GAP_X) - GAP_X)) / 2
        for x, e in enumerate(row):
            at[e] = (start + x * (BOX + GAP_X), top + y * (HIGH + GAP_Y))
    parts: list[str] = []
    for e, (x, y) in at.items():
        for a in e.args:
            if a in at:
                x0, y0 = at[a]
                start, end, bend = x0 + BOX / 2, x + BOX / 2, 22
                near, far = start, end
                if level[e] - level[a] > 1:  # around the boxes in between
                    near = far = left - 40
                    bend = 50
                curve = f"C{near:.0f} {y0 + HIGH + bend:.0f} {far:.0f} {y - bend:.0f} {end:.0f} {y:.0f}"
                parts.append(f'<path class="line" d="M{start:.0f} {y0 + HIGH:.0f} {curve}"/>')
    for e, (x, y) in at.items():
        kind = "in" if e.op == VAR else "op"
        parts.append(f'<rect class="{kind}" x="{x:.0f}" y="{y:.0f}" width="{BOX}" height="{HIGH}" rx="7"/>')
        parts.append(f'<text x="{x + BOX / 2:.0f}" y="{y + 19:.0f}">{escape(label(e))}</text>')
        parts.append(f'<text class="shape" x="{x + BOX / 2:.0f}" y="{y + 35:.0f}">{escape(shape(e))}</text>')
    return parts, width, (max(rows) + 1) * (HIGH + GAP_Y) - GAP_Y


def main(path: Path) -> None:
    program = next(p for p in PROGRAMS if p.title == "LoRA layer")
    best = rx.optimize(program.fn, *program.specs, at=program.at)
    report = best.report
    before = rx.trace(program.fn, *program.specs).main
    margin, head = 24, 64
    a, wide_a, high_a = draw(before, margin, head)
    b, wide_b, high_b = draw(best.module.main, margin + wide_a + 64, head)
    width, height = 2 * margin + wide_a + 64 + wide_b, head + max(high_a, high_b) + margin
    titles: list[str] = []
    for x, name, cost in (
        (margin + wide_a / 2, "as written", report.before),
        (margin + wide_a + 64 + wide_b / 2, "chosen", report.after),
    ):
        text = f"{cost.flops / 1e6:.1f} Mflop, {cost.seconds * 1e6:.0f} µs predicted"
        titles.append(f'<text class="title" x="{x:.0f}" y="26">{name}</text>')
        titles.append(f'<text class="cost" x="{x:.0f}" y="46">{text}</text>')
    svg = "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
            f'aria-label="A LoRA layer before and after optimization">',
            f"<style>{STYLE}</style>",
            f'<rect class="page" width="{width:.0f}" height="{height:.0f}"/>',
            *titles,
            *a,
            *b,
            "</svg>",
        ]
    )
    path.write_text(svg + "\n")


if __name__ == "__main__":
    main(Path(*sys.argv[1:2] or [Path(__file__).with_name("before_after.svg")]))
