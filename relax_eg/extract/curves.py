"""What a report tells of a family of programs: which variant serves which sizes, and what each costs over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Series:
    """Seconds of one program over the sizes of a curve; None outside of the sizes it serves."""

    label: str
    seconds: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Crossover:
    """From `size` on, another program is the cheaper one."""

    size: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Curve:
    """Predicted cost over one size variable, all others as in `at`, for several programs: the variants of a family, or
    the program as written beside the chosen one."""

    variable: str
    at: Mapping[str, int]
    sizes: tuple[int, ...]
    series: tuple[Series, ...]
    crossovers: tuple[Crossover, ...] = ()

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Curve:
        """The curve that `asdict` gave as plain data."""
        series = tuple(Series(s["label"], tuple(s["seconds"])) for s in data["series"])
        crossovers = tuple(Crossover(**c) for c in data["crossovers"])
        return Curve(data["variable"], data["at"], tuple(data["sizes"]), series, crossovers)


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

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> VariantRow:
        """The row that `asdict` gave as plain data."""
        given: dict[str, Any] = {**data, "rules": tuple(data["rules"])}
        return VariantRow(**given)


@dataclass(frozen=True, slots=True)
class FamilyRow:
    """How a family was found: `extractions` at as many bindings gave `programs` different ones, priced at `points`
    sizes; `cover`: how it was proved that exactly one guard holds at all sizes allowed; `regret`: the most that a
    variant costs more than the best of these programs, a share; `prepared_bytes`: of all variants together, shared
    values once; `seconds`: that all this took."""

    extractions: int
    programs: int
    points: int
    cover: str
    regret: float
    prepared_bytes: int
    seconds: float


def from_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a report that tell of its family, from the report as plain data."""
    return {
        "family": FamilyRow(**data["family"]) if data.get("family") else None,
        "variants": tuple(VariantRow.from_data(v) for v in data.get("variants", ())),
        "curves": tuple(Curve.from_data(c) for c in data.get("curves", ())),
    }


def told(family: FamilyRow, variants: Sequence[VariantRow]) -> list[str]:
    """The lines of a report on its family."""
    lines = [
        f"family of {len(variants)} {'variant' if len(variants) == 1 else 'variants'}, at most "
        f"{100 * family.regret:.2g}% dearer than the best of {family.programs} programs at {family.points} sizes; "
        f"cover of the bounds {family.cover}"
    ]
    for v in variants:
        what = "as written" if v.kept_as_written else ", ".join(v.rules[:3]) + (", ..." if len(v.rules) > 3 else "")
        last = "; also for symbolic sizes" if v.fallback and len(variants) > 1 else ""
        lines.append(f"  {v.guard}: {what}{last}")
    return lines
