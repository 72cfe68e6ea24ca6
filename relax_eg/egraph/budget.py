"""What saturation may spend, and what came of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from relax_eg.accepted import shown
from relax_eg.errors import OptionError

ALGEBRA_ROUNDS = 6
EXTRACTION_SECONDS = 20.0  # five times what 32 layers of a decoder take in kernels (benchmarks.scale)


class StopReason(enum.Enum):
    """Why saturation ended."""

    SATURATED = "saturated"
    PHASES_DONE = "phase plan completed"
    NODE_LIMIT = "node limit"
    TIME_LIMIT = "time limit"
    ROUND_LIMIT = "round limit"


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a search.

    `nodes`: of the e-graph.
    `seconds`: of rule application.
    `rounds`: of the algebra phase.
    `extraction`: seconds of choosing among what was found, over all stages; with a memory limit, over all programs that
    are looked at. When they are over, the best program so far is taken.

    Seconds are of computing: what else runs on the machine takes none of them, so that the outcome is the same.

    Saturation ends with the first round that passes a limit. What a round can add is known before it runs, and none
    takes the graph beyond twice `nodes`. A budget of 0 nodes or 0 seconds leaves the program as written. OptionError
    for what is no such number.
    """

    nodes: int = 200_000
    seconds: float = 10.0
    rounds: int = ALGEBRA_ROUNDS
    extraction: float = EXTRACTION_SECONDS

    def __post_init__(self) -> None:
        for name, kinds, accepted in (
            ("nodes", (int,), "a whole number"),
            ("seconds", (int, float), "a number"),
            ("rounds", (int,), "a whole number"),
            ("extraction", (int, float), "a number"),
        ):
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kinds) or not value >= 0:
                raise OptionError(f"Budget({name}={shown(value)}): {accepted} that is at least 0 is accepted")


@dataclass(frozen=True, slots=True)
class RuleFigures:
    """What a rule did: matches, nodes of the graph that it made (of several makers one is named), and milliseconds
    spent finding and applying its matches (as far as the engine tells: to about one)."""

    matches: int
    nodes: int
    milliseconds: float


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A rule that was not let loose on a graph of `at` nodes, and the most matches and new nodes it could have had."""

    rule: str
    matches: int
    nodes: int
    at: int
    reason: StopReason

    def __str__(self) -> str:
        most = f"up to {self.matches:,} matches"
        if self.reason is StopReason.NODE_LIMIT:
            most += f" and {self.nodes:,} new nodes"
        return f"rule `{self.rule}` was left out from {self.at:,} nodes on ({self.reason.value}): {most}"


@dataclass(frozen=True, slots=True)
class RoundFigures:
    """One round: its phase, the nodes there were after it, and the matches that it had."""

    phase: str
    nodes: int
    matches: int


@dataclass(slots=True)
class Saturation:
    """What happened: stop reason, nodes at the end, the most there were after any round, rounds, what each rule did,
    seconds by phase, the rules that were left out because what they could have done did not fit the budget, every
    round (first the graph as it was made), and the guards of rules that could be neither proved nor refuted."""

    stop: StopReason
    nodes: int
    peak: int
    rounds: int
    rules: dict[str, RuleFigures]
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    left_out: tuple[LeftOut, ...] = ()
    growth: tuple[RoundFigures, ...] = ()
    unproved: tuple[str, ...] = ()

    @property
    def matches(self) -> dict[str, int]:
        """Matches of each rule."""
        return {name: f.matches for name, f in self.rules.items()}
