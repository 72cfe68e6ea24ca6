"""What a terminal shows, as text; and the one form of tables in it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.table import Table


def rendered_text(*shown: RenderableType, width: int = 100) -> str:
    """The text that a terminal of this width would show, without colours."""
    console = Console(width=width, no_color=True, highlight=False)
    with console.capture() as capture:
        for x in shown:
            console.print(x)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def plain_table(texts: Sequence[str], figures: Sequence[str] = (), no_wrap: bool = False) -> Table:
    """A table without lines: columns of text, then columns of figures, which are flush right. `no_wrap`: whether a
    figure stands on one line."""
    made = Table(box=None, pad_edge=False, header_style="dim")
    for title in texts:
        made.add_column(title, overflow="fold")
    for title in figures:
        made.add_column(title, justify="right", overflow="fold", no_wrap=no_wrap)
    return made
