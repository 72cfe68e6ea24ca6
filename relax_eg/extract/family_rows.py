"""Rows of reports on a family of programs: how it was found, and which variant serves which sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VariantRow:
    """One variant of a family.

    - `guard`: the sizes it serves.
    - `at`: the binding of its report.
    - `rules`: the rules that made nodes of it.
    - `share`: share of the sampled sizes that it serves.
    - `regret`: the most that it costs there above the best program known, as a share.
    - `fallback`: whether it serves symbolic sizes.
    - `prepared_bytes`: bytes that it prepares from weights.
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

    - `extractions`: number of extractions, until `stop`.
    - `programs`: different programs that they gave.
    - `points`: number of sizes at which these were priced.
    - `cover`: how it was proved that exactly one guard holds at all allowed sizes.
    - `regret`: the most that a variant costs above the best of these programs, as a share.
    - `prepared_bytes`: bytes of all variants together; shared values count once.
    - `seconds`: time that finding it took.
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
    """The lines of a report on its family."""
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
