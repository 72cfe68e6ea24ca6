"""Pages of HTML that open offline: no script, no font, no request. They fit light and dark mode, phones and print."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from relax_eg.figures import integer_text, si, time
from relax_eg.reports.egraph import Picture
from relax_eg.reports.serialization import write_text


def page_of_picture(picture: Picture, path: str | Path | None = None, notebook: bool = False) -> str:
    """A page with the picture of an e-graph, or with `notebook` a fragment for a notebook."""
    svg = Markup(picture.to_svg())
    if notebook:
        inside = template("picture.html").render(picture=picture, svg=svg)
        return f'<div class="relax-eg"><style>{css()}</style>{inside}</div>'
    html = template("alone.html").render(title=picture.title, wide=True, picture=picture, svg=svg, css=css())
    write_text(html, path)
    return html


def page_of_laws(path: str | Path | None, **data: Any) -> str:
    """A page about laws that were found: `data` as the template `laws.html` has them."""
    html = template("laws.html").render(css=css(), wide=True, **data)
    write_text(html, path)
    return html


def page_of_spreading(title: str, svg: str, text: str, path: str | Path | None = None) -> str:
    """A page with the picture of a spread program and its report as text."""
    html = template("spread.html").render(title=title, wide=True, css=css(), svg=Markup(svg), text=text)
    write_text(html, path)
    return html


@lru_cache(1)
def _environment() -> Environment:
    folder = files("relax_eg.reports") / "templates"
    names = ("shell.html", "page.html", "section.html", "notebook.html", "picture.html", "alone.html", "laws.html",
             "spread.html")  # fmt: skip
    loader = DictLoader({n: (folder / n).read_text(encoding="utf-8") for n in names})
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {"time": time, "si": si, "plain": integer_text, "percent": _percent}
    return made


def _percent(x: float) -> str:
    return f"{100 * x:.1f}"


def template(name: str) -> Any:
    return _environment().get_template(name)


@lru_cache(1)
def css() -> Markup:
    return Markup((files("relax_eg.reports") / "templates" / "page.css").read_text(encoding="utf-8"))
