"""Rows of reports on a family of programs: how it was found, and which variant serves which sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VariantRow:
    """One variant of a family.

    - `label`: its name.
    - `guard`: the sizes that it serves.
    - `at`: the binding of its report.
    - `rules`: the rules that made nodes of it.
    - `share`: the share of the sampled sizes that it serves.
    - `regret`: the largest share by which it costs more there than the best program known.
    - `kept_as_written`: whether it is the program as written.
    - `fallback`: whether it serves symbolic sizes.
    - `prepared_bytes`: bytes of the values that it prepares from weights.
    - `execution`: how it is executed: "whole" or "kernels".
    """

    label: str
    guard: str
    at: Mapping[str, int]
    rules: tuple[str, ...]
    share: float
    regret: float
    kept_as_written: bool
    fallback: bool
    prepared_bytes: int
    execution: str = "whole"


@dataclass(frozen=True, slots=True)
class FamilyRow:
    """How a family of programs was found.

    - `extractions`: number of extractions.
    - `stop`: why no further extraction was made.
    - `programs`: number of different programs that the extractions gave.
    - `points`: number of bindings at which these were priced.
    - `cover`: how it was proved that exactly one guard holds at each allowed binding.
    - `regret`: the largest share by which a variant costs more than the best of these programs.
    - `prepared_bytes`: bytes of the prepared values of all variants together; shared values count once.
    - `seconds`: seconds that the search for the family took.
    """

    extractions: int
    stop: str
    programs: int
    points: int
    cover: str
    regret: float
    prepared_bytes: int
    seconds: float


def family_lines(family: FamilyRow, variants: Sequence[VariantRow]) -> list[str]:
    """The lines on a family in the text of a report."""
    lines = [
        f"family of {len(variants)} {'variant' if len(variants) == 1 else 'variants'}, at most "
        f"{100 * family.regret:.2g}% dearer than the best of {family.programs} programs at {family.points} sizes; "
        f"{family.extractions} extractions, stopped: {family.stop}; cover of the bounds {family.cover}"
    ]
    several = len({v.execution for v in variants}) > 1
    for v in variants:
        what = "as written" if v.kept_as_written else ", ".join(v.rules[:3]) + (", ..." if len(v.rules) > 3 else "")
        last = "; also for symbolic sizes" if v.fallback and len(variants) > 1 else ""
        lines.append(f"  {v.guard}: {what}{f' ({v.execution})' if several else ''}{last}")
    return lines
