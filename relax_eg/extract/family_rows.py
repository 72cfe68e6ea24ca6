"""What a report tells of a family of programs: how it was found, and which variant serves which sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VariantRow:
    """A variant of a family: the sizes it serves (`guard`); the binding its report is at; the rules that made nodes of
    it; of the sizes sampled the share it serves, and the most that it costs there more than the best program known
    (`regret`, a share); whether it is the `fallback` of symbolic sizes; and the bytes it prepares from weights."""

    label: str
    guard: str
    at: Mapping[str, int]
    rules: tuple[str, ...]
    share: float
    regret: float
    kept_as_written: bool
    fallback: bool
    prepared_bytes: int


@dataclass(frozen=True, slots=True)
class FamilyRow:
    """How a family was found: `extractions`, until `stop`, gave `programs` different ones, priced at `points`
    sizes; `cover`: how it was proved that exactly one guard holds at all sizes allowed; `regret`: the most that a
    variant costs more than the best of these programs, a share; `prepared_bytes`: of all variants together, shared
    values once; `seconds`: that all this took."""

    extractions: int
    stop: str
    programs: int
    points: int
    cover: str
    regret: float
    prepared_bytes: int
    seconds: float


def told(family: FamilyRow, variants: Sequence[VariantRow]) -> list[str]:
    """The lines of a report on its family."""
    lines = [
        f"family of {len(variants)} {'variant' if len(variants) == 1 else 'variants'}, at most "
        f"{100 * family.regret:.2g}% dearer than the best of {family.programs} programs at {family.points} sizes; "
        f"{family.extractions} extractions, stopped: {family.stop}; cover of the bounds {family.cover}"
    ]
    for v in variants:
        what = "as written" if v.kept_as_written else ", ".join(v.rules[:3]) + (", ..." if len(v.rules) > 3 else "")
        last = "; also for symbolic sizes" if v.fallback and len(variants) > 1 else ""
        lines.append(f"  {v.guard}: {what}{last}")
    return lines
