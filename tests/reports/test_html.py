"""Reports as pages: they need nothing else, nothing is cut off, and they follow phone, paper, light and dark."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import relax_eg as rx
from relax_eg.cli import app
from relax_eg.errors import OptionError
from relax_eg.extract.report import Crossover, Curve, Series
from relax_eg.reports.html import Section, page
from tests.reports import browser
from tests.reports.programs import SPECS, attend, attention, in_kernels, line, unfused_in_kernels

SEEN = pytest.mark.skipif(not browser.CHROMIUM, reason=browser.WHY_NOT)
CURVE = Curve(
    "s",
    {},
    (1, 4, 16, 64, 256),
    (Series("s <= 31", (1e-5, 2e-5, 4e-5, 3e-4, None)), Series("s >= 32", (None, 4e-5, 5e-5, 1e-4, 3e-4))),
    (Crossover(32, "s <= 31", "s >= 32"),),
)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    best = in_kernels()
    report = replace(best.report, curves=(CURVE,), name="attend<script>alert(1)</script>")
    devices = [attention(target=t).report for t in ("cpu", "a100")]
    ablated = [unfused_in_kernels().report]
    made = {
        "one": lambda p: report.to_html(p),
        "many": lambda p: rx.compare(best.report, *ablated, *devices).to_html(p),
        "sections": lambda p: page(
            "All of it",
            [Section("Before and after", rx.compare(best)), Section("Devices", rx.compare(*devices))],
            p,
            derivation="a\n= b   by a_rule",
        ),
    }
    for name, write in made.items():
        write(folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in made}


@pytest.mark.parametrize("name", ["one", "many", "sections"])
def test_a_page_needs_nothing_else(pages: dict[str, Path], name: str) -> None:
    text = pages[name].read_text()
    assert not re.findall(r"https?://|<script|<link|@import|url\(|src=|href=", text)
    assert text.count("<html") == text.count("</html>") == 1
    assert text.count("<svg") == text.count("</svg>") >= 3


def test_names_are_escaped(pages: dict[str, Path]) -> None:
    assert "attend&lt;script&gt;" in pages["one"].read_text()


def test_a_page_says_what_the_text_says(pages: dict[str, Path]) -> None:
    text = pages["one"].read_text()
    for words in ("What changed most", "Where the time goes", "Roofline of cpu", "Memory over the program", "s=32"):
        assert words in text
    for words in ("Growth of the search", "Cost over s", "fuse_stages", line("softmax").rpartition(":")[2]):
        assert words in text
    assert "How it was derived" in pages["sections"].read_text()


@SEEN
@pytest.mark.parametrize("width", [500, 1200])
@pytest.mark.parametrize("name", ["one", "many", "sections"])
def test_nothing_is_cut_off_and_nothing_is_loaded(pages: dict[str, Path], name: str, width: int) -> None:
    seen = browser.look(pages[name], width)
    assert seen["bad"] == [] and seen["loaded"] == [] and seen["plots"] >= 3


@SEEN
def test_light_and_dark(pages: dict[str, Path]) -> None:
    assert browser.look(pages["one"], 1000)["paper"] == "rgb(255, 255, 255)"
    assert browser.look(pages["one"], 1000, dark=True)["paper"] == "rgb(20, 24, 29)"


@SEEN
@pytest.mark.parametrize("dark", [False, True])
def test_screenshots_show_something(pages: dict[str, Path], dark: bool) -> None:
    image = pytest.importorskip("matplotlib.image")
    picture = image.imread(browser.screenshot(pages["many"], 1000, 1600, dark))[:, :, :3]
    assert picture.shape == (1600, 1000, 3)
    corner = picture[2, 2].mean()
    assert corner < 0.2 if dark else corner > 0.95
    # Ink on every fifth of the page, and the colours of several columns.
    assert all(
        (abs(part - picture[2, 2]).max(axis=2) > 0.3).mean() > 0.003 for part in picture.reshape(5, 320, 1000, 3)
    )
    assert len({tuple(c) for c in (picture[::4, ::4].reshape(-1, 3) * 8).round().astype(int)}) > 12


@SEEN
def test_paper(pages: dict[str, Path]) -> None:
    pdf = browser.printed(pages["one"]).read_bytes()
    assert pdf.startswith(b"%PDF") and len(pdf) > 20_000


def test_in_a_notebook() -> None:
    best = attention()
    for shown in (best.report._repr_html_(), rx.compare(best)._repr_html_()):
        assert shown.startswith('<div class="relax-eg">') and "What changed most" in shown
        assert "<html" not in shown and "<script" not in shown


def test_the_picture_of_an_egraph() -> None:
    view = rx.debug.view(attend, *SPECS, at={"s": 128}, target="cpu", value=line("return"), depth=1)
    asked = [b for b in view.picture.boxes if b.asked]
    assert asked and all(line("return") in b.title for b in asked)
    chosen = [n for b in view.picture.boxes for n in b.nodes if n.chosen]
    assert any(n.written for b in asked for n in b.nodes) and chosen and any(n.rule for n in chosen)
    svg = view.to_svg()
    assert svg.count('class="class') == len(view.picture.boxes) and 'class="edge chosen"' in svg
    dot = view.to_dot()
    assert dot.count("subgraph") == len(view.picture.boxes) and dot.count("style=bold") > len(chosen) / 2
    whole = rx.debug.view(attend, *SPECS, at={"s": 128}, target="cpu", most=5)
    assert len(whole.picture.boxes) == 5 and whole.picture.left_out > 10


def test_a_picture_of_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"attend: no value at 'conv'; a source line \(programs\.py:.*matmul"):
        rx.debug.view(attend, *SPECS, target="cpu", value="conv")
    with pytest.raises(OptionError, match="most=0: at least one class is accepted"):
        rx.debug.view(attend, *SPECS, most=0)
    (tmp_path / "model.py").write_text("def twice(x, a, b):\n    return (x @ a) @ b\n")
    specs = [w for s in ("n 64", "64 64", "64 64") for w in ("--spec", s)]
    args = ["view", f"{tmp_path / 'model.py'}:twice", *specs, "--target", "cpu", "--html", str(tmp_path / "e.html")]
    run = CliRunner().invoke(app, [*args, "--dot", str(tmp_path / "e.dot"), "--value", "matmul"])
    assert run.exit_code == 0 and "twice: around matmul" in run.output
    assert "<svg" in (tmp_path / "e.html").read_text() and (tmp_path / "e.dot").read_text().startswith("digraph")


@SEEN
def test_a_picture_in_a_browser(tmp_path: Path) -> None:
    rx.debug.view(attend, *SPECS, at={"s": 128}, target="cpu").to_html(tmp_path / "e.html")
    assert browser.look(tmp_path / "e.html", 1200)["bad"] == []
