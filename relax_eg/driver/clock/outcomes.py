"""What the first calls of functions settled on this machine (`driver.clock.settling`), kept in the disk cache.

An outcome is known by the chosen programs, the sizes, the machine and the versions of this package and of XLA. So a
process that calls the same function at the same sizes need not time it again.
"""

from __future__ import annotations

import json
import os
import platform
import threading
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from hashlib import blake2b
from typing import Any

from relax_eg.backend.family import Solution
from relax_eg.cache_folder import read_entry, store, surroundings
from relax_eg.driver.clock.learning import observe
from relax_eg.driver.clock.settling import TrialOutcome
from relax_eg.driver.prices import ByProfile, held_parameters, kinds_at
from relax_eg.extract.profiles.profile import Profile
from relax_eg.logs import cache_is_on, fallback, raise_if_exhausted
from relax_eg.measure.device import device, host
from relax_eg.plain_data import read_record


class Outcomes:
    """The outcomes for a function.

    - `solution`: its chosen programs.
    - `learns`: whether outcomes correct prices (`driver.clock.learning`); not those at capacity, whose sizes are
      larger.
    """

    def __init__(self, solution: Solution, learns: bool = True) -> None:
        self._solution = solution
        self._learns = learns and len(solution.variants) == 1 and not solution.variants[0].compiler_options

    def read(self, at: Mapping[str, int], is_bound: bool) -> TrialOutcome | None:
        """The outcome at these sizes, for calls with weights bound or with all arguments; None if none is known."""
        if not cache_is_on():
            return None

        def made(data: Any) -> TrialOutcome:
            return read_record(TrialOutcome, data, "outcome")

        return read_entry(store(), self._name(at, is_bound), made, "no outcome")

    def write(self, at: Mapping[str, int], is_bound: bool, outcome: TrialOutcome) -> None:
        if cache_is_on():
            store().write(self._name(at, is_bound), json.dumps(asdict(outcome)).encode())
            if self._learns:  # large programs take a while to price
                threading.Thread(target=self.learn, args=(at, is_bound, outcome), name="relax_eg learn").start()

    def learn(self, at: Mapping[str, int], is_bound: bool, outcome: TrialOutcome) -> None:
        """Lets an outcome correct the prices of the machine."""
        try:
            program, kept = self._solution.program, self._solution.program.at_sizes.get("profile")
            chosen = self._solution.variants[0].chosen
            if kept is None or chosen is None:
                return
            p = Profile.from_data(kept)
            held = held_parameters(program, self._solution.weights) if is_bound else None
            group = self._name(at, is_bound)
            for module, weights, seconds in (
                (program.written(), None, outcome.written_seconds),
                (chosen, held, outcome.chosen_seconds),
            ):
                observe(p, group, kinds_at(module, ByProfile(p), at, weights), seconds)
        except Exception as e:
            raise_if_exhausted(e)
            fallback("an outcome did not correct prices", e)

    def _name(self, at: Mapping[str, int], is_bound: bool) -> str:
        content = repr((self._key, sorted(at.items()), is_bound))
        return blake2b(content.encode(), digest_size=32).hexdigest()

    @cached_property
    def _key(self) -> str:
        variants = [(str(v.module), sorted(v.compiler_options.items()), v.guard) for v in self._solution.variants]
        content = surroundings(), machine(), self._solution.weights, str(self._solution.variants[0].written()), variants
        return blake2b(repr(content).encode(), digest_size=32).hexdigest()


def machine() -> tuple[str, ...]:
    """What outcomes depend on beside the program: the device, its host, and XLA's flags."""
    return device().platform, device().device_kind, platform.machine(), str(host()), os.environ.get("XLA_FLAGS", "")
