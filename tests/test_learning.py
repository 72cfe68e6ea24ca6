"""Prices that a machine's own timings correct: kept by process, read once, robust."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

import relax_eg as rx
from relax_eg.cache_folder import store
from relax_eg.driver.clock import learning
from relax_eg.driver.clock.outcomes import Outcomes
from relax_eg.driver.clock.settling import TrialOutcome
from relax_eg.extract.profiles.devices import CPU
from relax_eg.extract.profiles.kinds import CALL
from relax_eg.extract.profiles.profile import Profile
from relax_eg.measure.device import this_machine
from relax_eg.store import StoreWarning

HERE = replace(CPU, machine=this_machine(), doubts={"kinds": 0.4, "programs": 0.2})


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("RELAX_EG_CACHE", "1")
    monkeypatch.setenv("RELAX_EG_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("RELAX_EG_CALIBRATE", "auto")
    learning._known.clear()
    yield tmp_path / "cache"
    learning._known.clear()


def in_another_process(p: Profile = HERE) -> Profile:
    learning._known.clear()
    return learning.on_this_machine(p)


def observe(first: int, last: int, slower: float = 4.0, p: Profile = HERE) -> None:
    for i in range(first, last):
        kinds = {CALL: 1e-5, ("sort", "matmul")[i % 2]: 1e-4 * (1 + i)}
        learning.observe(p, f"program {i}", kinds, slower * sum(kinds.values()))


def factor(p: Profile, kind: str = "sort") -> float:
    return p.corrections.get("all", 1.0) * p.corrections.get(kind, 1.0)


def test_later_processes_know_what_was_timed() -> None:
    assert learning.on_this_machine(HERE) == HERE
    observe(0, 8)
    assert learning.on_this_machine(HERE) == HERE  # the same in all of a process
    found = in_another_process()
    assert factor(found) == pytest.approx(4.0, rel=0.2)
    assert found.doubts["sort"] < HERE.doubts["kinds"]
    assert learning.on_this_machine(found) is found
    assert rx.optimize(lambda x: jnp.sort(x) + 1, "64", target=HERE).report.device is not None


def test_the_price_is_corrected() -> None:
    observe(0, 8)
    learning._known.clear()
    sort = rx.optimize(lambda x: jnp.sort(x), "4096", target=HERE).report.after
    assert sort.seconds / rx.optimize(lambda x: jnp.sort(x), "4096", target="cpu").report.after.seconds > 3
    assert sort.kinds == rx.optimize(lambda x: jnp.sort(x), "4096", target="cpu").report.after.kinds


def test_factors_change_when_the_number_of_programs_has_doubled() -> None:
    counts = list[int]()
    for i in range(20):
        observe(i, i + 1)
        counts.append(learning._count(store(), learning._key(HERE)))
    assert counts == [0, 0, 0, *[4] * 4, *[8] * 8, *[16] * 5]


def test_the_same_program_counts_once() -> None:
    for _ in range(3):
        observe(0, 3)
    assert len(store().entries()) == 3


def test_the_oldest_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "MOST", 6)
    observe(0, 12)
    assert len([p for p, _ in store().entries() if p.name.startswith("timed-")]) == 6


def test_other_machines_and_other_profiles_learn_nothing() -> None:
    observe(0, 8, p=CPU)
    observe(0, 8, p=replace(HERE, machine=replace(this_machine(), cores=99)))
    assert store().entries() == []
    observe(0, 8)
    assert in_another_process(replace(HERE, vector_rate=1e9)).corrections == {}
    assert in_another_process(replace(HERE, name="mine", modes=())).corrections != {}


def test_doubts_of_another_machine_are_not_known_here() -> None:
    other = replace(HERE, machine=replace(this_machine(), processor="another"))
    assert learning.on_this_machine(other).doubts == {}


def test_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    observe(0, 8)
    monkeypatch.setenv("RELAX_EG_CALIBRATE", "off")
    assert in_another_process() == HERE
    observe(8, 30)
    assert len(store().entries()) == 9
    monkeypatch.setenv("RELAX_EG_CALIBRATE", "auto")
    with rx.debug.options(cache=False):
        assert in_another_process() == HERE


def test_clearing_the_cache_forgets() -> None:
    observe(0, 8)
    assert rx.debug.cache.clear() == 9
    assert in_another_process() == HERE


DAMAGED = [
    b"",
    b"{}",
    b"[]",
    b'{"corrections": {"all": "x"}, "doubts": {}}',
    b'{"corrections": {"all": 0}, "doubts": {}}',
    b'{"corrections": {"all": 1e99}}',
]


@pytest.mark.parametrize("payload", DAMAGED)
def test_damaged_entries(payload: bytes) -> None:
    key = learning._key(HERE)
    store().write(f"learned-{key}", payload)
    with pytest.warns(StoreWarning, match="it is nothing that was learned"):
        assert in_another_process() == HERE
    store().write(f"timed-{key}-0", payload)
    with pytest.warns(StoreWarning, match="it is no timed program"):
        observe(0, 8)
    assert factor(in_another_process()) == pytest.approx(4.0, rel=0.2)


def test_a_folder_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("RELAX_EG_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(StoreWarning):
        observe(0, 8)
        assert in_another_process() == HERE


def test_threads_lose_nothing() -> None:
    threads = [threading.Thread(target=observe, args=(8 * i, 8 * i + 8)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len([p for p, _ in store().entries() if p.name.startswith("timed-")]) == 32
    learning.relearn(HERE)
    assert factor(in_another_process()) == pytest.approx(4.0, rel=0.2)


def test_settled_outcomes_are_observed() -> None:
    best = rx.optimize(lambda a, b, v: (a @ b) @ v, "64 64", "64 64", "64", target=HERE)
    outcome = TrialOutcome(True, 1e-4, 3e-4, 3.0, 2.9, 3.1, 20)
    Outcomes(best.solution).learn({}, False, outcome)
    found = [json.loads(store().read(p.stem) or b"") for p, _ in store().entries() if p.name.startswith("timed-")]
    assert sorted(t["seconds"] for t in found) == [1e-4, 3e-4]
    assert {tuple(sorted(t["kinds"])) for t in found} == {
        ("call", "matmul", "matmul, few rows"),
        ("call", "matmul, few rows"),
    }
    assert len({t["group"] for t in found}) == 1


def test_measured_programs_are_observed() -> None:
    rx.optimize(lambda a, b, v: (a @ b) @ v, "64 64", "64 64", "64", target=HERE, measure=1)
    names = [p.name for p, _ in store().entries() if p.name.startswith("timed-")]
    assert len(names) == 2


def test_a_report_tells_what_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    def chain(a: Any, b: Any, v: Any) -> Any:
        return (a @ b) @ v

    r = rx.optimize(chain, "512 512", "512 512", "512", target=HERE).report
    assert r.expected is not None and 1 < r.expected.low < r.expected.gain < r.expected.high
    assert r.expected.gain == pytest.approx(r.before.call / r.after.call)
    line = f"predicted of a call: {r.expected}"
    assert [x for x in str(r).splitlines() if x.startswith("predicted of a call")] == [line]
    assert rx.types.CostReport.from_json(r.to_json()).expected == r.expected
    assert rx.optimize(lambda x: x + 1, "8", target=HERE).report.expected is None


@pytest.mark.parametrize(("doubt", "settles"), [(0.01, False), (2.0, True)])
def test_what_is_settled_follows_from_the_interval(doubt: float, settles: bool) -> None:
    p = replace(HERE, doubts={"programs": doubt, "kinds": 0.01})
    best = rx.optimize(lambda a, b, v: (a @ b) @ v, "512 512", "512 512", "512", target=p, measure="auto")
    assert (best.report.expected.low < 1) == settles
    a, v = jnp.ones((512, 512)), jnp.ones(512)
    for _ in range(5):
        best(a, a, v)
    assert (best._settling is not None) == settles
