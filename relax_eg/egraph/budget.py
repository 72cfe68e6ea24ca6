"""Limits of saturation and extraction, and the figures that saturation reports."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from relax_eg.argument_checks import short_repr
from relax_eg.errors import OptionError

ALGEBRA_ROUNDS = 6  # limit: rounds of the algebra phase by default
# limit: nodes that algebra may find for each node at first, by default. Associativity alone would find as many as the
# cube of the length of a chain, so the time of a search would grow faster than the program.
GROWTH = 10.0
EXTRACTION_SECONDS = 20.0  # limit: five times what 32 decoder layers take in kernels (benchmarks.scale)


class StopReason(enum.Enum):
    """Why saturation ended."""

    SATURATED = "saturated"
    PHASES_DONE = "phase plan completed"
    NODE_LIMIT = "node limit"
    TIME_LIMIT = "time limit"


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a search.

    - `nodes`: nodes of the e-graph.
    - `seconds`: seconds of rule application; laws (`rules.schemas`) are asked for up to 0.7 of them.
    - `rounds`: rounds of the algebra phase.
    - `growth`: no round of the algebra phase begins once the e-graph has this many times the nodes that it began with,
      and at least 2,000, nor after one in which a rule did not fit. So the time of a search is proportional to the
      program.
    - `extraction`: seconds of choosing among candidates, over all stages; with a memory limit, over all programs that
      are considered, and XLA compiles them for up to twice as long. When they are used up, extraction returns the best
      program so far.

    Seconds are computing time: other processes on the machine use none of them, so they do not change the outcome.

    Saturation ends after the first round that exceeds a limit. Each round is bounded before it runs, and no round grows
    the graph beyond twice `nodes`. A budget of 0 nodes or 0 seconds leaves the program as written. OptionError if a
    value is not a number of the accepted kind.
    """

    nodes: int = 200_000
    seconds: float = 20.0
    rounds: int = ALGEBRA_ROUNDS
    extraction: float = EXTRACTION_SECONDS
    growth: float = GROWTH

    def __post_init__(self) -> None:
        for name, kinds, accepted in (
            ("nodes", (int,), "a whole number"),
            ("seconds", (int, float), "a number"),
            ("rounds", (int,), "a whole number"),
            ("extraction", (int, float), "a number"),
            ("growth", (int, float), "a number"),
        ):
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kinds) or not value >= 0:
                raise OptionError(f"Budget({name}={short_repr(value)}): {accepted} that is at least 0 is accepted")


@dataclass(frozen=True, slots=True)
class RuleFigures:
    """Figures of one rule.

    - `matches`: matches of its left side.
    - `nodes`: nodes of the graph that the rule made; a node that several rules made counts for one of them.
    - `milliseconds`: time spent finding and applying its matches, to about one millisecond (the engine's precision).
    """

    matches: int
    nodes: int
    milliseconds: float


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A rule that was left out of a search.

    - `rule`: its name.
    - `matches`, `nodes`: upper bounds on its matches and on the nodes that they would add.
    - `at`: nodes of the graph when it was left out.
    - `reason`: the limit that it would exceed.
    """

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
    """Figures of one round: its phase, the nodes of the graph after it, and its matches."""

    phase: str
    nodes: int
    matches: int


@dataclass(slots=True)
class Saturation:
    """The outcome of saturation.

    - `stop`: why it ended.
    - `nodes`: nodes at the end.
    - `peak`: most nodes after any round.
    - `rounds`: number of rounds.
    - `rules`: figures of each rule.
    - `seconds`: seconds of computing time by phase.
    - `left_out`: rules left out because their possible growth did not fit the budget.
    - `growth`: figures of every round; the first entry is the graph as it was built.
    - `unproved`: guards of rules that were neither proved nor refuted.
    """

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
