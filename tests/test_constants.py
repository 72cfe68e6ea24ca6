"""Numbers that are named in the package: each says where it comes from, and of those that were chosen nothing depends.

Programs are chosen in a process of their own, in which constants are scaled as they are imported (`constants.py`), and
priced here, by the constants as they are.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import pytest

from benchmarks.families import CASES
from relax_eg.driver.prices import NEVER_SLOWER, ByProfile, call_seconds, price_at
from relax_eg.extract.profiles.devices import profile
from relax_eg.ops.text import parse
from tests.chosen_programs import PROGRAMS, chosen_programs
from tests.constants import KINDS, PACKAGE, Constant, constants, constants_of, scaled

Factors = Sequence[tuple[str, str, float]]


@lru_cache(None)
def cost_of(name: str, which: int, text: str) -> float:
    asked, case = PROGRAMS[name], CASES[PROGRAMS[name].case]
    options = ByProfile(profile(asked.target), asked.execution)
    module = parse(text)
    return call_seconds(price_at(module, options, asked.at[which], set(case.weights)), options)


def outcome(factors: Factors, *only: str) -> dict[str, float]:
    """What is chosen where these constants are scaled costs, by case and size."""
    command = [sys.executable, "-m", "tests.chosen_programs", json.dumps(list(factors)), *only]
    ran = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{factors}: {ran.stderr[-2000:]}"
    return costs(json.loads(ran.stdout.splitlines()[-1]))


def costs(found: Mapping[str, Any]) -> dict[str, float]:
    of_programs = {f"{n} {i}": cost_of(n, i, text) for n in PROGRAMS for i, text in enumerate(found.get(n, ()))}
    return of_programs | {n: value for n, value in found.items() if n not in PROGRAMS}


def worse(found: Mapping[str, float], usual: Mapping[str, float]) -> dict[str, float]:
    """By how many times; what predictions are said not to tell is left out."""
    return {name: round(cost / usual[name], 3) for name, cost in found.items() if cost > NEVER_SLOWER * usual[name]}


@pytest.fixture(scope="module")
def named() -> list[Constant]:
    return list(constants())


def test_every_number_says_where_it_comes_from(named: list[Constant]) -> None:
    assert len(named) > 400
    unsaid = [f"{c.label}, line {c.line}" for c in named if not c.kind]
    assert not unsaid, f"a comment that begins with one of {', '.join(KINDS)} and a colon is missing: {unsaid}"
    vague = [c.label for c in named if c.kind == "measured" and not re.search(r"`[^`]+`", c.comment)]
    assert not vague, f"no command in the comment of what was measured: {vague}"


def test_comments_are_read_behind_and_above() -> None:
    text = (
        "A = 1  # limit: rows\n# chosen: a share\n# of all\nB, C = 0.5, 1 << 4\n\nD = {'x': 2}\nE = 'text'\n"
        "F = f(1, g=3)  # type: ignore\nlower = 4\nG = 5  # chosen\n"
    )
    found = {c.names: c.kind for c in constants_of(text, "m")}
    assert found == {("A",): "limit", ("B", "C"): "chosen", ("D",): "", ("F",): "", ("G",): ""}


def test_how_a_constant_is_scaled() -> None:
    assert [scaled(x, 2) for x in (3, 0, -1, 0.25, 8.0, 0.9, 1.5)] == [6, 0, -1, 0.5, 16.0, pytest.approx(0.8), 2.0]
    assert [scaled(x, 0.5) for x in (3, 1, 1.5)] == [2, 1, 1.25]


def is_perturbed(c: Constant) -> bool:
    """What was chosen, but for how strictly rules are tested: another strictness refuses other rules."""
    return c.kind == "chosen" and (not c.module.startswith("relax_eg.rules.") or ".book" in c.module)


@pytest.fixture(scope="module")
def outcomes(named: list[Constant]) -> dict[str, dict[str, float]]:
    """As constants are; and with each that was chosen twice or half of that, by chance, and the other way around."""
    chosen, rng = [(c.module, c.names[0]) for c in named if is_perturbed(c)], random.Random(0)
    mixed = [(*c, rng.choice((0.5, 2.0))) for c in chosen]
    asked = {"mixed": mixed, "reverse": [(m, n, 1 / f) for m, n, f in mixed]}
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(outcome, asked.values())
        return {"usual": costs(chosen_programs())} | dict(zip(asked, found, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("which", ["mixed", "reverse"])
def test_nothing_depends_on_what_was_chosen(which: str, outcomes: Mapping[str, dict[str, float]]) -> None:
    """All at once: three minutes of processor time."""
    assert not worse(outcomes[which], outcomes["usual"])


@pytest.mark.slow
def test_what_matters_is_seen(outcomes: Mapping[str, dict[str, float]]) -> None:
    """As written is best where nothing gains enough."""
    far = outcome([("relax_eg.driver.prices", "NEVER_SLOWER", 1000.0)], "family")
    assert worse(far, outcomes["usual"])


@pytest.mark.slow
def test_nothing_depends_on_any_that_was_chosen(
    named: list[Constant], outcomes: Mapping[str, dict[str, float]]
) -> None:
    """One at a time: 25 minutes of processor time."""
    tried = [(c.module, c.names[0], factor) for c in named if is_perturbed(c) for factor in (0.5, 2.0)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda one: worse(outcome([one]), outcomes["usual"]), tried)
    assert not {one: lost for one, lost in zip(tried, found, strict=True) if lost}
