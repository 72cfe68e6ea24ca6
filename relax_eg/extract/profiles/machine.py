"""The machine that a profile is of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relax_eg.errors import OptionError


@dataclass(frozen=True, slots=True)
class Machine:
    """What decides how fast a machine runs XLA's programs, as far as it can be read off.

    - `processor`: the name of the processor, or of the accelerator.
    - `cores`: processors that the process may use.
    - `vector_bits`: bits of the widest vector registers; 0 if unknown.
    - `caches`: bytes of the data caches of one processor, the smallest first; empty if unknown.
    """

    processor: str
    cores: int
    vector_bits: int = 0
    caches: tuple[int, ...] = ()

    def __str__(self) -> str:
        caches = " + ".join(f"{n / 2**20:.3g}" for n in self.caches)
        vectors = f", {self.vector_bits}-bit vectors" if self.vector_bits else ""
        return f"{self.processor}, {self.cores} cores{vectors}" + (f", caches of {caches} MiB" if caches else "")

    def differences(self, other: Machine) -> list[str]:
        """What is different on `other`, as text."""
        names = ("processor", "cores", "vector_bits", "caches")
        pairs = ((n.replace("_", " "), getattr(self, n), getattr(other, n)) for n in names)
        return [f"{name} {theirs} in place of {ours}" for name, ours, theirs in pairs if ours != theirs]

    @staticmethod
    def from_data(data: Any, where: str) -> Machine:
        """The machine whose fields are `data`. OptionError, which begins with `where`."""
        if isinstance(data, Mapping):
            found: dict[str, Any] = {str(k): v for k, v in data.items()}  # type: ignore[reportUnknownArgumentType]
            caches = found.get("caches", ())
            numbers = (found.get("cores"), found.get("vector_bits", 0), *(caches if _is_list(caches) else ()))
            if (
                found.keys() <= {"processor", "cores", "vector_bits", "caches"}
                and isinstance(found.get("processor"), str)
                and _is_list(caches)
                and all(type(n) is int and 0 <= n < 1 << 62 for n in numbers)
            ):
                found["caches"] = tuple(caches)
                return Machine(**found)
        accepted = '{"processor": "...", "cores": 2, "vector_bits": 256, "caches": [32768, 1048576]}'
        raise OptionError(f"{where}: machine = {data!r:.80}; {accepted} is accepted")


def _is_list(x: Any) -> bool:
    return isinstance(x, (list, tuple))
