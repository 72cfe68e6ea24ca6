"""What is told of the work, and where stages are left."""

from __future__ import annotations

import io
import json
import logging
import re
from pathlib import Path

import pytest

import relax_eg as rx
import relax_eg.logs
from relax_eg.logs import clock, shorten_plugin_errors, stage


def product(a, b, v):  # type: ignore[no-untyped-def]
    return (a @ b) @ v


SPECS = ("n n", "n n", "n")


def test_stages_read_back(tmp_path: Path) -> None:
    with rx.debug.options(dump=tmp_path):
        best = rx.optimize(product, *SPECS, at={"n": 64})
        rx.optimize(product, *SPECS, at={"n": 64})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["product", "product_1"]
    place = tmp_path / "product"
    assert str(rx.parse((place / "1_traced.txt").read_text())) == str(rx.trace(product, *SPECS))
    assert str(rx.parse((place / "3_chosen.txt").read_text())) == str(best.module)
    assert json.loads((place / "report.json").read_text())["name"] == "product"


def test_a_small_gain_is_kept_if_asked() -> None:
    """Below the least gain a program stays as written; the cache keeps the two apart."""
    found = {}
    for least in (1.0, 1e6):
        with rx.debug.options(least_gain=least):
            found[least] = rx.optimize(product, *SPECS, at={"n": 64}, target="cpu").report
    assert not found[1.0].kept_as_written and found[1e6].kept_as_written
    assert found[1.0].after.seconds < found[1e6].after.seconds == found[1e6].before.seconds


def test_the_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAX_EG_DUMP", str(tmp_path / "out"))
    rx.optimize(product, *SPECS)
    assert (tmp_path / "out" / "product" / "3_chosen.txt").exists()


@pytest.mark.parametrize(("at", "lines"), [(0, 1), (2, 1), (3, 4)])
def test_a_plug_in_that_does_not_start_is_reported(at: int, lines: int) -> None:
    """As JAX reports what its plug-in for CUDA raises where cuDNN is missing."""
    shorten_plugin_errors()
    said = io.StringIO()
    jax_log, handler = logging.getLogger("jax._src.xla_bridge"), logging.StreamHandler(said)
    jax_log.addHandler(handler)
    try:
        with rx.debug.options(level=at):
            try:
                raise RuntimeError("Unable to load cuDNN. Is it installed?")
            except RuntimeError:
                jax_log.exception("Exception when calling %s.initialize()", "jax_plugins.xla_cuda12")
    finally:
        jax_log.removeHandler(handler)
    first = said.getvalue().splitlines()[0]
    assert first.startswith("Exception when calling jax_plugins.xla_cuda12.initialize()")
    assert len(said.getvalue().splitlines()) >= lines and ("Traceback" in said.getvalue()) is (at == 3)
    assert "RuntimeError: Unable to load cuDNN. Is it installed?" in said.getvalue()


@pytest.mark.parametrize(("at", "seen"), [(0, False), (1, False), (2, True), (4, True)])
def test_phases_are_told_from_level_two(at: int, seen: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "relax_eg"), rx.debug.options(level=at):
        rx.optimize(product, *SPECS)
    assert bool(re.search(r"algebra: \d+ nodes, \d+ matches, [\d.]+ ms", caplog.text)) is seen


def test_a_level_that_is_none() -> None:
    with (
        pytest.raises(rx.errors.OptionError, match=r"level=7: a number from 0 to 4 is accepted"),
        rx.debug.options(level=7),
    ):
        pass


def test_an_environment_level_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAX_EG_DEBUG", "much")
    with pytest.raises(rx.errors.OptionError, match="RELAX_EG_DEBUG=much: a number from 0 to 4 is accepted"):
        rx.optimize(product, *SPECS)


def test_the_clock_adds_up_stages() -> None:
    with clock() as seconds:
        rx.optimize(product, *SPECS)
    assert {"trace", "insert", "saturate", "dump", "select", "check"} <= seconds.keys()


def test_a_stage_inside_another_is_the_inner_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr(relax_eg.logs.time, "perf_counter", lambda: float(next(ticks)))

    @stage("inner")
    def inner() -> None:
        next(ticks)

    @stage("outer")
    def outer() -> None:
        inner()
        inner()

    with clock() as seconds:
        outer()
    assert seconds == {"inner": 4.0, "outer": 3.0}


def test_stages_are_told_from_level_two(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "relax_eg"), rx.debug.options(level=2):
        rx.optimize(product, *SPECS)
    assert re.search(r"trace: [\d.]+ ms", caplog.text)
    assert re.search(r"dump: [\d.]+ ms", caplog.text)


def test_a_line_says_what_a_long_search_is(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    said = "searching for a faster program of product (RELAX_EG_DEBUG=2 shows the phases)"
    rx.optimize(product, *SPECS, at={"n": 8})
    assert said not in caplog.messages
    monkeypatch.setattr(relax_eg.logs, "_LONG", 0.0)
    rx.optimize(product, *SPECS, at={"n": 9})
    assert caplog.messages.count(said) == 1
    with rx.debug.options(progress=lambda *_: None):
        rx.optimize(product, *SPECS, at={"n": 10})
    assert caplog.messages.count(said) == 1
