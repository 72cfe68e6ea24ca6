"""Placements: where the elements of a tensor are: on one device, or on a mesh of devices.

A device is named by its platform and number, "cpu:1"; it is a mesh without axes, on which a tensor is whole. A mesh has
named axes, and may begin at a device: "gpu:4, data=4". Along each axis a tensor is replicated, split along one of its
dimensions, or a partial sum: each device has a tensor of the full shape, and these combined are the value. The text is
Relax's: `S[0], R` is split along dimension 0 over the first axis of the mesh and replicated over the second.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from relax_eg.argument_checks import short_repr
from relax_eg.errors import OptionError, SpecError

# A part of a placement: a dimension (>= 0) along which the tensor is split, or one of these words.
Part = int | str
REPLICATED = "R"
PARTIAL_SUM = "P[sum]"
PARTIAL: Mapping[str, str] = {kind: f"P[{kind}]" for kind in ("sum", "max", "min")}

ACCEPTED = '"cpu", "cpu:1", "gpu:0", R.device("gpu", 0) or I.vdevice("cuda", 0)'
# given: names of Relax's targets, and of platforms of JAX
_PLATFORMS = {"llvm": "cpu", "c": "cpu", "cpu": "cpu", "cuda": "gpu", "rocm": "gpu", "gpu": "gpu", "tpu": "tpu"}
_DEVICE = re.compile(r"([a-z_]+)(?::(\d{1,4}))?(?::\w+)?")
_MOST_DEVICES = 1 << 20  # limit: devices along an axis; no machine has as many
_DIGITS = 7  # limit: digits of a size in a text: those of `_MOST_DEVICES`
_SPLIT = re.compile(r"S\[(\d+)\]")
_NAME = re.compile(r"[A-Za-z_]\w*")
_ACCEPTED = "'R', 'S[dimension]', 'P[sum]', 'P[max]' or 'P[min]' for each axis of the mesh"


@dataclass(frozen=True, slots=True)
class DeviceMesh:
    """A mesh of devices.

    - `axes`: the names and sizes of its axes, the slowest first; without any it is one device.
    - `device`: its first device, "gpu:4"; "": the first that JAX has.
    """

    axes: tuple[tuple[str, int], ...]
    device: str = ""

    @staticmethod
    def of(given: Any) -> DeviceMesh:
        """The mesh of a mapping `{"x": 8}`, of a text "x=8, y=4", "gpu:4, x=4" or "cpu:1", of a mesh of JAX, or of a
        `DeviceMesh`. OptionError for anything else."""
        if isinstance(given, DeviceMesh):
            return given
        shape = getattr(given, "shape", given)
        pairs: list[tuple[Any, Any]] = []
        device = ""
        if isinstance(shape, Mapping):
            pairs = list(shape.items())  # type: ignore[reportUnknownArgumentType, reportUnknownMemberType]
        elif isinstance(shape, str):
            first, *rest = shape.split(",")
            device = device_name(first.strip()) if _is_device(first.strip()) else ""
            named = [part.partition("=") for part in (rest if device else [first, *rest])]
            pairs = [(n.strip(), _number(size.strip())) for n, _, size in named]
        good = bool(pairs or device) and all(
            isinstance(n, str)
            and _NAME.fullmatch(n)
            and isinstance(k, int)
            and not isinstance(k, bool)
            and 1 <= k <= _MOST_DEVICES
            for n, k in pairs
        )
        if not good or len({n for n, _ in pairs}) != len(pairs):
            raise OptionError(
                f"mesh={short_repr(given)}: axes with different names and sizes >= 1 are accepted, {{'data': 8}} or "
                "'data=8, model=4'"
            )
        return DeviceMesh(tuple(pairs), device)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(n for n, _ in self.axes)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(k for _, k in self.axes)

    @property
    def devices(self) -> int:
        """The number of devices."""
        return math.prod(self.sizes)

    def span(self, axis: int) -> int:
        """The number of neighbouring devices among which a group along an axis lies: its size times those of the axes
        after it."""
        return math.prod(self.sizes[axis:])

    def __str__(self) -> str:
        return ", ".join([*([self.device] if self.device else []), *(f"{n}={k}" for n, k in self.axes)])


@dataclass(frozen=True, slots=True)
class MeshPlacement:
    """The placement of a tensor: a part for each axis of the mesh."""

    parts: tuple[Part, ...]

    @staticmethod
    def parse(text: str) -> MeshPlacement:
        """The placement of a text such as "S[0], R", which is empty for one device. OptionError says what is
        accepted."""
        parts: list[Part] = []
        for word in text.split(",") if text.strip() else ():
            w = word.strip()
            split = _SPLIT.fullmatch(w)
            if split is None and w not in (REPLICATED, *PARTIAL.values()):
                raise OptionError(f"placement {text[:200]!r}: {w[:80]!r}; {_ACCEPTED} is accepted")
            parts.append(int(split[1]) if split else w)
        return MeshPlacement(tuple(parts))

    @staticmethod
    def of_spec(mesh: DeviceMesh, spec: Iterable[Any], what: str) -> MeshPlacement:
        """The placement that a `PartitionSpec` states. OptionError, which begins with `what`, for an axis that the mesh
        does not have."""
        parts: list[Part] = [REPLICATED] * len(mesh.axes)
        for d, names in enumerate(spec):
            for name in names if isinstance(names, (tuple, list)) else (names,) if isinstance(names, str) else ():
                if name not in mesh.names:
                    raise OptionError(f"{what}: {spec} names the axis {name!r}; the mesh has {', '.join(mesh.names)}")
                parts[mesh.names.index(name)] = d
        return MeshPlacement(tuple(parts))

    @property
    def is_partial(self) -> bool:
        return any(p in PARTIAL.values() for p in self.parts)

    def axes_of(self, dimension: int) -> Iterator[int]:
        """The axes of the mesh over which a dimension is split, the slowest first."""
        return (i for i, p in enumerate(self.parts) if p == dimension)

    def splits(self, rank: int, mesh: DeviceMesh) -> tuple[int, ...]:
        """Into how many pieces each dimension is split."""
        found = [1] * rank
        for part, size in zip(self.parts, mesh.sizes, strict=True):
            if isinstance(part, int):
                found[part] *= size
        return tuple(found)

    def __str__(self) -> str:
        return ", ".join(f"S[{p}]" if isinstance(p, int) else p for p in self.parts)


def device_name(text: object) -> str:
    """Returns a device by the name that it has here: "llvm" is "cpu:0", "cuda:1" is "gpu:1". SpecError for another
    text."""
    found = _DEVICE.fullmatch(text) if isinstance(text, str) else None
    if found is None or found[1] not in _PLATFORMS:
        raise SpecError(f"{short_repr(text)} names no device\n  accepted: {ACCEPTED}")
    return f"{_PLATFORMS[found[1]]}:{int(found[2] or 0)}"


def _is_device(text: str) -> bool:
    """Whether a text names a device."""
    found = _DEVICE.fullmatch(text)
    return found is not None and found[1] in _PLATFORMS


def _number(text: str) -> int | str:
    """The size that a text states, or the text."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else text


def part_text(part: Part) -> str:
    """A part as text: `S[0]`, `R` or `P[sum]`."""
    return f"S[{part}]" if isinstance(part, int) else part
