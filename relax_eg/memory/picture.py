"""Pictures of a plan: bytes in use over the kernels, and the layout of the storages over time."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax_eg.byte_units import format_bytes
from relax_eg.errors import MemoryPlanError, RelaxEgError
from relax_eg.memory.liveness import Lifetime, liveness
from relax_eg.memory.plan import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMED = 0.05  # limit: share of all bytes from which a box is named, if there is room
LISTED = 10  # limit: tensors listed at the peak
LETTERS = 26  # limit: letters of a name
SHORT = 8  # limit: least letters of a truncated name
LINE = 130  # limit: letters over the whole width
TALL, WIDE = 130, 220  # limit: a box is outlined if at most so many of its height, and of its width, fit into the plot
COLORS = {"value": "#6f9fd8", "workspace": "#e0a458", "result": "#7fb685"}


@contextmanager
def picture(path: str | Path, error: type[RelaxEgError], rows: int = 1, **layout: Any) -> Generator[Any]:
    """Yields the axes of a picture, `rows` of them one above the other, which is then written to a file, as PNG, SVG or
    PDF by its suffix. `layout`: arguments of `pyplot.subplots`. Raises `error` without matplotlib, and for another
    suffix."""
    try:
        import matplotlib
    except ImportError:
        raise error("a picture needs matplotlib: pip install 'relax-eg[plot]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context({"font.size": 8, "svg.hashsalt": "relax_eg", "svg.fonttype": "none"}):
        figure: Any
        figure, axes = pyplot.subplots(rows, 1, layout="constrained", **layout)
        try:
            yield axes
            figure.savefig(path, dpi=150, metadata={"Date": None} if str(path).endswith(".svg") else None)
        except ValueError as e:
            raise error(f"{path}: {e}") from None
        finally:
            pyplot.close(figure)


def draw(plan: Plan, path: str | Path) -> None:
    """Writes the memory timeline to a file, as PNG, SVG or PDF by its suffix.

    The upper plot has the bytes alive at once, as written and as planned. The lower plot has the storages, one above
    the other, and above them the memory that executables allocate. Each allocation is a box over the kernels that need
    it. The peak is marked."""
    shape = {"figsize": (9, 6), "sharex": True, "height_ratios": (1, 2)}
    with picture(path, MemoryPlanError, 2, **shape) as (above, below):
        _needed(above, plan)
        _places(below, plan)


def _needed(axes: Axes, plan: Plan) -> None:
    """Draws the bytes alive at each kernel."""
    whole = plan.peak_at(plan.at)
    unit = 1 << 20 if whole >= 1 << 20 else 1 << 10
    steps = range(len(plan.program.steps) + 1)

    def line(amounts: list[int], **style: Any) -> None:
        axes.step(steps, [b / unit for b in [*amounts, *amounts[-1:]]], where="post", **style)

    written = liveness(plan.written, plan.live.results, plan.at.keys()).at(plan.at)
    planned = plan.live.at(plan.at)
    if plan.order.after < plan.order.before:
        line(written, color="#999999", linewidth=1, label=f"as written, {format_bytes(max(written))}")
    line(planned, color="#2f5f9e", linewidth=1.2, label=f"needed, {format_bytes(max(planned, default=0))}")
    label = f"{plan.layout}, {format_bytes(whole)}"
    axes.axhline(whole / unit, color="#b03a3a", linewidth=0.8, linestyle="--", label=label)
    axes.set_ylabel("MiB" if unit == 1 << 20 else "KiB")
    axes.set_ylim(0)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7, frameon=False)
    at = ", ".join(f"{n} = {v}" for n, v in plan.at.items())
    axes.set_title(f"memory of {plan.program.name}(){f' at {at}' if at else ''}", fontsize=9)


def _places(axes: Axes, plan: Plan) -> None:
    """Draws the storages, one above the other, over the kernels."""
    from matplotlib.patches import Patch, Rectangle

    whole = max(plan.peak_at(plan.at), 1)
    unit = 1 << 20 if whole >= 1 << 20 else 1 << 10
    count = len(plan.program.steps)
    needed = plan.live.at(plan.at)
    peak = plan.live.peak_step(plan.at)
    *bottoms, top = accumulate((int(s.bytes.evaluate(plan.at)) for s in plan.storages), initial=0)
    roles: dict[str, None] = {}
    for x in plan.live.lifetimes:
        size = int(x.bytes.evaluate(plan.at))
        place = plan.places.get(x.values[0])
        low = top if place is None else bottoms[place.storage] + int(place.offset.evaluate(plan.at))
        length = x.end - x.start + 1
        at_peak = x.start <= peak <= x.end
        # An outline would cover a box that is thinner than it.
        outlined = size * TALL >= whole and length * WIDE >= count
        axes.add_patch(
            Rectangle(
                (x.start, low / unit), length, size / unit, facecolor=COLORS[x.role], alpha=1.0 if at_peak else 0.6,
                edgecolor="#222222" if at_peak and outlined else "#ffffff",
                linewidth=(0.8 if at_peak else 0.4) if outlined else 0.1,
            )
        )  # fmt: skip
        roles[x.role] = None
        room = min(LETTERS, length * LINE // count)
        name = _label(plan, x, room)
        if size >= NAMED * whole and (len(name) >= SHORT or not name.endswith("…")):
            axes.text(x.start + length / 2, (low + size / 2) / unit, name, ha="center", va="center", fontsize=6)
    axes.axvspan(peak, peak + 1, color="#b03a3a", alpha=0.12, linewidth=0)
    name = plan.program.steps[peak].name if count else ""
    side = "right" if peak > count / 2 else "left"
    axes.annotate(
        f"peak: {format_bytes(max(needed, default=0))} in {name}",
        (peak + (0 if side == "right" else 1), whole / unit),
        ha=side, va="bottom", fontsize=7, color="#b03a3a",
    )  # fmt: skip
    axes.set_xlim(0, max(count, 1))
    axes.set_ylim(0, whole / unit * 1.08)
    axes.set_xlabel("kernels, in the order in which they run")
    axes.set_ylabel(f"place in the {plan.layout}, {'MiB' if unit == 1 << 20 else 'KiB'}")
    boxes = [Patch(color=COLORS[r], label=r) for r in roles]
    axes.legend(handles=boxes, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7, frameon=False)
    listed = [f"{format_bytes(int(x.bytes.evaluate(plan.at)))}  {_label(plan, x, LETTERS)}" for x in plan.peak[:LISTED]]
    listed += [f"and {len(plan.peak) - LISTED} more"] if len(plan.peak) > LISTED else []
    words = "\n".join(["at the peak:", *listed])
    axes.text(1.02, 0.72, words, transform=axes.transAxes, va="top", fontsize=6.5, linespacing=1.5)


def _label(plan: Plan, x: Lifetime, letters: int) -> str:
    name = plan.program.values[x.values[0]].name
    if len(x.values) > 1:
        name += f" +{len(x.values) - 1}"
    return name if len(name) <= letters else f"{name[: max(letters - 1, 1)]}…"
