"""Which rules of a set save something on which programs, besides other rules: `rank_by_savings`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from relax_eg.rules.rule import Rule
from relax_eg.rules.rule_set import RuleSet

LEAST_SAVING = 0.02  # given: share of the predicted time below which a saving is within what prices tell apart

Optimize = Callable[[RuleSet], Any]


@dataclass(frozen=True)
class Saving:
    """What rules save on a program.

    - `program`: its name.
    - `before`, `after`: predicted seconds of a call, with the rules that are known and with the others too.
    - `rules`: the names of the others that made a part of the chosen program; where none did, because all of it was
      there, of few with which it is chosen.
    """

    program: str
    before: float
    after: float
    rules: tuple[str, ...]

    @property
    def share(self) -> float:
        """The share of the time that is saved."""
        return 1 - self.after / self.before if self.before else 0.0

    def __str__(self) -> str:
        times = f"{1e6 * self.before:.1f} us -> {1e6 * self.after:.1f} us"
        return f"{self.program}: {times} ({100 * self.share:.0f}% less) by {', '.join(self.rules)}"


def rank_by_savings(programs: Mapping[str, Optimize], found: RuleSet, known: RuleSet) -> list[Saving]:
    """What `found` saves on programs where `known` rules are used too, the largest share first.

    - `programs`: by name, a function that optimizes the program with a set of rules and returns the `Optimized`.

    A program is searched twice, so that takes the time of two searches each; more where the laws must be told apart.
    """
    savings: list[Saving] = []
    names = {r.name for r in found}
    for name, optimize in programs.items():
        before, after = optimize(known).report, optimize(known + found).report
        enough = (1 - LEAST_SAVING) * before.after.seconds
        if after.after.seconds < enough:
            used = tuple(r for r in after.rules if r in names) or _needed(optimize, list(found), known, enough)
            savings.append(Saving(name, before.after.seconds, after.after.seconds, used))
    return sorted(savings, key=lambda s: -s.share)


def _needed(optimize: Optimize, found: list[Rule], known: RuleSet, enough: float) -> tuple[str, ...]:
    """The names of few of these rules with which a program takes less than `enough` seconds: parts without which it
    still does are left out, halves first."""
    size = (len(found) + 1) // 2
    while size and len(found) > 1:
        for start in reversed(range(0, len(found), size)):
            rest = [*found[:start], *found[start + size :]]
            if rest and optimize(known + RuleSet("rest", rest)).report.after.seconds < enough:
                found = rest
        size = min(size // 2, len(found) // 2) if size > 1 else 0
    return tuple(r.name for r in found)
