"""The profile of the machine at hand: measured once, kept, the same in all of a process. The clock is not read here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import pytest

import relax_eg as rx
from relax_eg.cache_folder import store
from relax_eg.driver.clock import at_hand, learning
from relax_eg.extract.profiles.devices import CPU
from relax_eg.extract.profiles.machine import Machine
from relax_eg.extract.profiles.profile import Profile
from relax_eg.measure import quick
from relax_eg.measure.device import this_machine
from relax_eg.store import StoreWarning

FAST = replace(CPU, name="cpu, calibrated quickly", vector_rate=5e10, machine=Machine("here", 2, 256, (32768, 1 << 20)))


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Profile]]:
    """A cache of its own; the list has what was measured. `FAST` is what a measurement finds."""
    made: list[Profile] = []

    def measure() -> Profile:
        made.append(FAST)
        return FAST

    monkeypatch.setenv("RELAX_EG_CACHE", "1")
    monkeypatch.setenv("RELAX_EG_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("RELAX_EG_CALIBRATE", "auto")
    monkeypatch.setattr(at_hand, "calibrate_quickly", measure)
    at_hand._known.clear()
    yield made
    at_hand._known.clear()


def in_another_process() -> Profile:
    at_hand._known.clear()
    return at_hand.profile_at_hand()


def test_a_machine_is_measured_once(measured: list[Profile]) -> None:
    best = rx.optimize(lambda x: jnp.exp(x) + 1, "8")
    assert best.report.target == "cpu, calibrated quickly"
    assert best.report.device is not None and best.report.device.vector_rate == 5e10
    found = in_another_process()
    assert found == FAST and found.machine == FAST.machine
    assert len(measured) == 1


def test_a_measurement_that_was_disturbed_is_repeated_on_another_day(
    measured: list[Profile], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = replace(FAST, notes=quick.DISTURBED, measured="here, 2001-02-03, jax 0.10")
    store().write(f"profile-{at_hand.machine_key()}", busy.to_json().encode())
    monkeypatch.setattr(at_hand, "today", lambda: "2001-02-03")
    assert in_another_process().notes == quick.DISTURBED and measured == []
    monkeypatch.setattr(at_hand, "today", lambda: "2001-02-04")
    assert in_another_process() == FAST and len(measured) == 1


def test_a_profile_by_name_needs_no_measurement(measured: list[Profile]) -> None:
    assert rx.optimize(lambda x: x + 1, "8", target="cpu").report.target == "cpu"
    assert measured == []


def test_the_environment_turns_it_off(measured: list[Profile], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAX_EG_CALIBRATE", "off")
    assert at_hand.profile_at_hand() is CPU
    monkeypatch.setenv("RELAX_EG_CALIBRATE", "sometimes")
    with pytest.raises(rx.errors.OptionError, match="RELAX_EG_CALIBRATE=sometimes: auto or off is accepted"):
        rx.optimize(lambda x: x + 1, "8")
    assert measured == []


def test_clearing_the_cache_removes_it(measured: list[Profile]) -> None:
    at_hand.profile_at_hand()
    assert rx.debug.cache.clear() == 1
    in_another_process()
    assert len(measured) == 2


def test_without_a_cache_nothing_is_measured(measured: list[Profile]) -> None:
    with rx.debug.options(cache=False):
        assert in_another_process() is CPU
    assert measured == []


def test_a_folder_that_cannot_be_written(
    measured: list[Profile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("RELAX_EG_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(StoreWarning, match="cannot read the cache"):
        assert in_another_process() is CPU
    assert measured == []


@pytest.mark.parametrize("payload", [b"", b"[1]", b'{"relax_eg profile": 6, "name": "x"}'])
def test_a_damaged_profile_is_measured_again(measured: list[Profile], payload: bytes) -> None:
    store().write(f"profile-{at_hand.machine_key()}", payload)
    with pytest.warns(StoreWarning, match="it is no profile"):
        assert in_another_process() == FAST
    assert in_another_process() == FAST and len(measured) == 1


def test_of_two_processes_one_measures(measured: list[Profile], monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"profile-{at_hand.machine_key()}"
    assert store().claim(name, 60.0) and not store().claim(name, 60.0)
    monkeypatch.setattr(at_hand.time, "sleep", lambda _: store().write(name, FAST.to_json().encode()))
    assert in_another_process() == FAST and measured == []


def test_a_process_that_ended_while_it_measured(measured: list[Profile], monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"profile-{at_hand.machine_key()}"
    assert store().claim(name, 60.0)
    monkeypatch.setattr(at_hand, "_WAIT", 0.0)
    assert in_another_process() is CPU  # the other one may still come to an end
    os.utime(store().folder / f"{name}.claim", (1.0, 1.0))
    assert in_another_process() == FAST and len(measured) == 1


def test_a_measurement_that_fails(measured: list[Profile], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Profile:
        raise ZeroDivisionError

    monkeypatch.setattr(at_hand, "calibrate_quickly", fail)
    with pytest.warns(UserWarning, match="this machine could not be calibrated"):
        assert in_another_process() is CPU
    assert store().entries() == []


def test_several_processes_choose_alike(measured: list[Profile], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_hand, "processes", lambda: 2)
    assert in_another_process() is CPU and measured == []


def test_other_cores_are_another_machine(measured: list[Profile], monkeypatch: pytest.MonkeyPatch) -> None:
    at_hand.profile_at_hand()
    monkeypatch.setattr(learning, "this_machine", lambda: replace(this_machine(), cores=99))
    assert at_hand.profile_at_hand() == FAST and len(measured) == 2


def test_a_machine_in_a_file() -> None:
    p = replace(CPU, machine=this_machine())
    assert Profile.from_json(p.to_json()).machine == this_machine()
    for wrong in ('"AMD"', '{"processor": "AMD", "cores": -1}', '{"processor": "AMD", "cores": 2, "caches": [0.5]}'):
        text = CPU.to_json().replace('"machine": null', f'"machine": {wrong}')
        with pytest.raises(rx.errors.OptionError, match=r"profile: machine = .* is accepted"):
            Profile.from_json(text)


def test_what_is_different_on_another_machine() -> None:
    here = Machine("Xeon", 2, 512, (49152,))
    assert here.differences(here) == []
    assert here.differences(replace(here, cores=8)) == ["cores 8 in place of 2"]
    assert str(here) == "Xeon, 2 cores, 512-bit vectors, caches of 0.0469 MiB"
