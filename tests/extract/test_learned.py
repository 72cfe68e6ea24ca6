"""What timed programs teach: kinds of kernel, factors found from times that a wrong profile does not explain."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relax_eg as rx
from relax_eg.driver.prices import ByProfile, call_seconds, kinds_at, price_at, seconds_at
from relax_eg.extract.profiles.devices import CPU
from relax_eg.extract.profiles.kinds import features
from relax_eg.extract.profiles.learned import KINDS, PROGRAMS, UNKNOWN, TimedProgram, corrected, expect, learn


def layer(x, w, v):
    return jnp.exp(jnp.tanh(x @ w).T) @ jnp.sort(x @ v)


MODULE = rx.trace(layer, "n 64", "64 m", "64 m")
AT = {"n": 32, "m": 256}


def total(p: Any, module: Any = MODULE, at: dict[str, int] = AT) -> float:
    return call_seconds(price_at(module, ByProfile(p), at), ByProfile(p))


def test_kinds_of_a_program() -> None:
    kinds = kinds_at(MODULE, ByProfile(CPU), AT)
    assert set(kinds) == {"call", "matmul", "elementwise", "transpose", "sort"}
    assert sum(kinds.values()) == pytest.approx(total(CPU), rel=1e-3)
    assert "matmul, few rows" in kinds_at(MODULE, ByProfile(CPU), {"n": 8, "m": 256})
    assert "matmul, from memory" in kinds_at(MODULE, ByProfile(CPU), {"n": 4096, "m": 512})
    assert kinds_at(MODULE, ByProfile(CPU, "kernels"), AT) == {}
    assert features("matmul, few rows, from memory") == (
        "all",
        "matmul",
        "matmul, few rows",
        "matmul, from memory",
    )


FACTORS = {"all": 2.0, "matmul": 0.5, "matmul, few rows": 3.0, "sort": 10.0, "call": 4.0, "transpose": 7.0}


@pytest.mark.parametrize("n", [8, 32, 4096])
def test_prices_are_corrected_by_kind(n: int) -> None:
    wrong, at = replace(CPU, corrections=FACTORS), {"n": n, "m": 256}
    kinds = kinds_at(MODULE, ByProfile(CPU), at)
    assert kinds_at(MODULE, ByProfile(wrong), at) == pytest.approx(kinds)
    assert total(wrong, at=at) == pytest.approx(corrected(kinds, FACTORS), rel=1e-3)


def test_columns_of_sizes_are_corrected_as_single_ones() -> None:
    wrong: Any = ByProfile(replace(CPU, corrections=FACTORS))
    sizes = np.array([1, 8, 16, 17, 300, 5000])
    found = seconds_at(MODULE, wrong, {"n": sizes, "m": np.full(6, 256)})
    assert found == pytest.approx([total(wrong.profile, at={"n": int(n), "m": 256}) for n in sizes])


def programs(rng: np.random.Generator, count: int, true: dict[str, float], noise: float = 0.05) -> list[TimedProgram]:
    """Timed programs in groups of two, on a machine whose kernels take `true` times as long as predicted."""
    sorts = ["matmul", "matmul, few rows", "matmul, from memory", "elementwise", "sort", "transpose", "reduction"]
    made: list[TimedProgram] = []
    for i in range(count):
        few = rng.choice(sorts, rng.integers(1, 4), replace=False)
        kinds = {"call": 1e-5} | {str(k): float(10 ** rng.uniform(-5, -3)) for k in few}
        seconds = corrected(kinds, true) * math.exp(noise * rng.standard_normal())
        made.append(TimedProgram(f"group {i // 2}", kinds, seconds))
    return made


def errors(timed: list[TimedProgram], corrections: Any) -> np.ndarray:
    return np.array([abs(math.log(corrected(t.kinds, corrections) / t.seconds)) for t in timed])


@pytest.mark.parametrize(
    "true",
    [{}, {"all": 4.0}, {"all": 0.25}, {"sort": 10.0}, {"all": 4.0, "transpose": 10.0, "matmul, few rows": 0.4}],
    ids=str,
)
def test_factors_are_found_and_hold_for_other_programs(true: dict[str, float]) -> None:
    rng = np.random.default_rng(3)
    found = learn(programs(rng, 60, true))
    others = programs(rng, 200, true)
    assert float(np.median(errors(others, found.corrections))) < math.log(1.1)
    assert found.doubts[PROGRAMS] < 0.2
    assert all(found.doubts[f] < UNKNOWN[KINDS] for f in ("matmul", "elementwise", "sort"))


def test_wrong_measurements_change_little() -> None:
    rng = np.random.default_rng(4)
    timed = programs(rng, 80, {"all": 4.0, "sort": 3.0})
    spoiled = [replace(t, seconds=t.seconds * 50) if i % 10 == 0 else t for i, t in enumerate(timed)]
    found, as_spoiled = learn(timed).corrections, learn(spoiled).corrections
    for kind in ("matmul", "sort", "elementwise"):
        assert corrected({kind: 1.0}, as_spoiled) == pytest.approx(corrected({kind: 1.0}, found), rel=0.3)


def test_pairs_that_are_further_off_than_was_known_raise_the_doubt() -> None:
    rng = np.random.default_rng(5)
    timed = [replace(t, seconds=t.seconds * float(rng.choice([1.0, 3.0]))) for t in programs(rng, 80, {})]
    assert learn(timed, {**UNKNOWN, PROGRAMS: 0.15}).doubts[PROGRAMS] > 0.3


def test_nothing_is_learned_of_nothing_and_little_of_little() -> None:
    assert learn([]).corrections == {} and learn([]).doubts == {}
    found = learn([TimedProgram("one", {"sort": 1e-3, "call": 1e-5}, 2e-3)])
    assert 1.0 < corrected({"sort": 1.0}, found.corrections) < 2.2
    assert found.doubts[PROGRAMS] == pytest.approx(UNKNOWN[PROGRAMS])


def test_small_changes_of_times_leave_the_factors_as_they_are() -> None:
    """Factors are rounded, so that searches in the cache stay valid."""
    timed = programs(np.random.default_rng(5), 64, {"all": 2.0}, noise=0.0)
    moved = [replace(t, seconds=t.seconds * (1.001 if i % 2 else 0.999)) for i, t in enumerate(timed)]
    assert learn(timed).corrections == learn(moved).corrections


def test_on_an_unknown_machine_a_gain_of_two_is_sure() -> None:
    same = {"matmul": 1e-4, "call": 1e-5}
    assert expect(1.9, same, same, {}, {}).low < 1 < expect(2.0, same, same, {}, {}).low
    assert expect(1.9, {}, {}, {}, {}).low < 1 < expect(2.0, {}, {}, {}, {}).low


def test_a_gain_between_kinds_is_less_sure_than_one_within() -> None:
    within = expect(1.5, {"matmul": 3e-4}, {"matmul": 2e-4}, {}, {KINDS: 0.3, PROGRAMS: 0.1})
    between = expect(1.5, {"matmul": 3e-4}, {"sort": 2e-4}, {}, {KINDS: 0.3, PROGRAMS: 0.1})
    known = expect(1.5, {"matmul": 3e-4}, {"sort": 2e-4}, {}, {KINDS: 0.3, "matmul": 0.05, "sort": 0.05, PROGRAMS: 0.1})
    assert between.low < known.low < within.low and between.sure < known.sure < within.sure < 1
    assert str(within) == "1.50 times as fast (1.16 to 1.94), faster with 100%"


@given(st.floats(0.1, 100), st.floats(0, 1), st.floats(0.01, 1))
def test_an_interval_holds_its_gain(gain: float, share: float, doubt: float) -> None:
    found = expect(gain, {"sort": 1.0}, {"sort": 1 - share, "matmul": share + 1e-9}, {}, {PROGRAMS: doubt})
    assert found.low < gain < found.high
    assert (found.sure > 0.5) == (gain > 1) or gain == 1


@pytest.mark.parametrize("wrong", [{"seconds": 0.0}, {"seconds": math.nan}, {"kinds": {}}, {"kinds": {"sort": -1.0}}])
def test_what_is_no_timed_program(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="seconds > 0 are accepted"):
        TimedProgram(**{"group": "", "kinds": {"sort": 1.0}, "seconds": 1.0, **wrong})
