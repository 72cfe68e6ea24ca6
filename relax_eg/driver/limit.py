"""`memory_limit` of `optimize`: the bytes that a call may need, or the time within which it is to need least."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from relax_eg.argument_checks import short_repr
from relax_eg.byte_units import parse_bytes
from relax_eg.errors import OptionError

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}  # given: seconds
_NUMBER = r"([0-9]{1,18}(?:\.[0-9]{1,18})?(?:e-[0-9]{1,2})?)"
_LEAST = "least within "


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """The predicted time that a call may take, where the program is to need least memory.

    - `share`: as a multiple of the time of the program that is chosen without a limit; None: `seconds` says.
    - `seconds`: seconds of a call.
    """

    share: float | None = None
    seconds: float | None = None

    def allows(self, seconds: float, usual: float) -> bool:
        """Whether a call may take that many seconds; `usual`: those of the program chosen without a limit."""
        most = self.seconds if self.share is None else self.share * usual
        assert most is not None
        return seconds <= most * (1 + _ROUNDING)

    def __str__(self) -> str:
        return f"{self.seconds:g} s" if self.share is None else f"+{100 * (self.share - 1):g}%"


def read_limit(value: Any, option: str = "memory_limit") -> int | TimeLimit:
    """Returns the limit in a value of the option: bytes (`parse_bytes`), or the time in "least within +10%" or "least
    within 2 ms". OptionError, which names `option`, for any other value."""
    if isinstance(value, TimeLimit):
        return value
    if not isinstance(value, str) or not value.startswith(_LEAST):
        return parse_bytes(value, option)
    text = value.removeprefix(_LEAST)
    if (found := re.fullmatch(rf"\s*\+\s*{_NUMBER}\s*%\s*", text)) is not None:
        return TimeLimit(share=1 + float(found[1]) / 100)
    if (found := re.fullmatch(rf"\s*{_NUMBER}\s*(s|ms|us)\s*", text)) is not None and float(found[1]) > 0:
        return TimeLimit(seconds=float(found[1]) * _UNITS[found[2]])
    raise OptionError(f"{option}={short_repr(value)}: 'least within +10%', or 'least within 2 ms', is accepted")


_ROUNDING = 1e-9  # chosen: prices that differ by less are equal
