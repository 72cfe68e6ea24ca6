"""Profiles as files, and data sheets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import relax_eg as rx
from relax_eg.errors import OptionError
from relax_eg.extract.profiles.devices import CPU, PROFILES, profile
from relax_eg.extract.profiles.profile import Profile


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_is_read_as_it_was_written(name: str, tmp_path: Path) -> None:
    p = PROFILES[name]
    path = tmp_path / "p.json"
    text = p.to_json(path)
    assert path.read_text() == text
    assert Profile.from_json(path) == Profile.from_json(text) == p == profile(str(path))
    assert not p.calibrated and p.label == name


def edited(change: Callable[[dict[str, Any]], Any]) -> str:
    data = json.loads(CPU.to_json())
    change(data)
    return json.dumps(data)


WRONG: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (
        lambda d: d.update({"relax_eg profile": 99}),
        r"of version 99; 12 to 12 are accepted: run `relax-eg calibrate` again",
    ),
    (lambda d: d.pop("relax_eg profile"), "no device profile: `relax-eg calibrate` writes one"),
    (lambda d: d.update(speed=3), "has a field `speed`; known are name, matmul_rate"),
    (lambda d: d.pop("launch"), "lacks the field `launch`"),
    (lambda d: d.update(launch=-1.0), r"launch = -1.0; numbers >= 0 are accepted"),
    (lambda d: d.update(launch="fast"), r"launch = 'fast'; numbers >= 0 are accepted"),
    (lambda d: d["matmul_rate"].update(float32=float("nan")), "matmul_rate = .*nan.*; numbers > 0 are accepted"),
    (lambda d: d.update(modes=[{"name": "fast"}]), "modes has .*'fast'.*; .*\"options\".* is accepted"),
    (lambda d: d["modes"][0]["changes"].update(speed=1), "mode `ynn off` changes `speed`; known are bandwidth, "),
    (lambda d: d["modes"][0]["changes"].update(launch=-1.0), "mode `ynn off`: launch = -1.0; numbers >= 0 are"),
    (lambda d: d["matmul_rate"].pop("float32"), "matmul_rate lacks float32, which stands for all dtypes"),
]


@pytest.mark.parametrize(("change", "text"), WRONG, ids=range(len(WRONG)))
def test_what_is_no_profile(change: Callable[[dict[str, Any]], Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        Profile.from_json(edited(change))


def test_what_is_no_target(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"target='tpu': one of a100, cpu, h100, .*, the path of a .json profile"):
        rx.optimize(lambda x: x, "n", target="tpu")
    with pytest.raises(OptionError, match=r"profile .*nowhere.json cannot be read: .*No such file"):
        rx.optimize(lambda x: x, "n", target=str(tmp_path / "nowhere.json"))
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(OptionError, match=r"profile .*bad.json cannot be read: Expecting"):
        rx.optimize(lambda x: x, "n", target=str(tmp_path / "bad.json"))


def test_devices_choose_differently() -> None:
    """One row through two matrices and their low-rank update: what a product costs decides."""

    def chain(a: Any, b: Any, v: Any) -> Any:
        return (a @ b) @ v

    reports = {n: rx.optimize(chain, "n n", "n n", "n", at={"n": 1024}, target=n).report for n in ("cpu", "h100")}
    assert reports["cpu"].target == "cpu" and reports["h100"].target == "h100"
    assert reports["cpu"].after.seconds > 5 * reports["h100"].after.seconds
