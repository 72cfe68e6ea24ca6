"""At which capacity a call runs, and what options say so."""

from __future__ import annotations

import re
from typing import Any

import pytest

from relax_eg.dynamic.policy import Dynamic, Policy, earns_exact, read_policy
from relax_eg.errors import BoundsError, OptionError
from relax_eg.shapes import Scope


def policy(capacities: Any = "powers of two", scope: Scope | None = None, names: str = "s") -> Policy:
    scope = Scope({"s": (1, 100)}) if scope is None else scope
    return read_policy("f", names.split(), scope, Dynamic(mode="capacity", capacities=capacities, executables=64))


@pytest.mark.parametrize(
    ("capacities", "expected"),
    [
        ("powers of two", {1: 1, 2: 2, 3: 4, 33: 64, 65: 100, 100: 100}),
        (16, {1: 16, 16: 16, 17: 32, 97: 100}),
        ([32, 16], {1: 16, 17: 32, 33: 64, 65: 96, 97: 100}),
        ("bound", {1: 100, 100: 100}),
        ({"s": 10}, {1: 10, 11: 20}),
        ({}, {5: 8}),
    ],
)
def test_capacities(capacities: Any, expected: dict[int, int]) -> None:
    p = policy(capacities)
    assert {n: p.capacities({"s": n}, ["s"])["s"] for n in expected} == expected  # type: ignore[index]


def test_every_size_fits_and_every_capacity_is_reached_once() -> None:
    for capacities in ("powers of two", 7, [3, 20], "bound"):
        p = policy(capacities)
        used = {p.capacities({"s": n}, ["s"])["s"] for n in range(1, 101)}  # type: ignore[index]
        assert all(p.capacities({"s": n}, ["s"])["s"] >= n for n in range(1, 101))  # type: ignore[index]
        ahead = [s["s"] for s in p.all_capacities("f", ["s"], {})]
        assert sorted(ahead) == sorted(used) and len(set(ahead)) == len(ahead)


def test_capacities_keep_what_is_assumed_of_sizes() -> None:
    p = policy(10, Scope(assume=["s % 8 == 0"]))
    assert p.capacities({"s": 8}, ["s"]) == {"s": 16}
    p = policy("bound", Scope({"s": (1, 100)}, assume=["s % 8 == 0"]))
    assert p.capacities({"s": 8}, ["s"]) == {"s": 96}
    # Both grow, and are no longer as far apart as they must be.
    p = policy("powers of two", Scope(assume=["t == s + 1"]), "s t")
    assert p.capacities({"s": 8, "t": 9}, ["s", "t"]) == {"s": 15, "t": 16}


def test_sizes_that_have_no_capacity_stay() -> None:
    assert policy(names="b s").capacities({"b": 3, "s": 5}, ["s"]) == {"b": 3, "s": 8}


def test_an_executable_is_earned_by_what_it_would_have_saved() -> None:
    assert not earns_exact(calls=9, seconds=0.1, share=0.5, compiling=0.5)
    assert earns_exact(calls=11, seconds=0.1, share=0.5, compiling=0.5)
    assert not earns_exact(calls=10**9, seconds=0.1, share=0.0, compiling=0.5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mode": "always"}, "mode='always'): one of 'exact', 'capacity', 'auto' is accepted"),
        ({"executables": 0}, "executables=0): how many to keep, a number >= 1, is accepted"),
        ({"background": 1}, "background=1): True or False is accepted"),
        ({"capacities": "doubling"}, "capacities='doubling' for n: 'powers of two', a number (its multiples), a list"),
        ({"capacities": 0}, "capacities=0 for n: "),
        ({"capacities": []}, "capacities=[] for n: "),
        ({"capacities": {"n": [4, -1]}}, "capacities=[4, -1] for n: "),
        ({"capacities": "bound"}, "capacities='bound': n has no upper bound; declare bounds={'n': (1, 4096)}"),
    ],
)
def test_options_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=re.escape(said)):
        read_policy("f", ["n"], Scope(), Dynamic(**given))


def test_unknown_size_refused() -> None:
    said = re.escape("f(): no size is named `m` (capacities={'m': ...}); its sizes are n")
    with pytest.raises(BoundsError, match=said):
        read_policy("f", ["n"], Scope(), Dynamic(capacities={"m": 8}, executables=8))


def test_there_is_no_last_capacity_without_a_bound() -> None:
    with pytest.raises(OptionError, match=r"compile_ahead\(\): s of f\(\) has no upper bound"):
        policy(scope=Scope()).all_capacities("f", ["s"], {})
    with pytest.raises(OptionError, match=r"4096 combinations of capacities of f\(\); pass those"):
        policy(1, Scope({"b": (1, 64), "s": (1, 64)}), "b s").all_capacities("f", ["b", "s"], {})
