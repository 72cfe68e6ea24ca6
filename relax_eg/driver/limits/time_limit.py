"""`time_limit` of `optimize`: how much longer than the fastest program a program may take, or how many seconds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from relax_eg.argument_checks import short_repr
from relax_eg.errors import OptionError

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}  # given: seconds
_ACCEPTED = "a share such as '+10%', seconds such as 0.002, or a text such as '2 ms'"
_NUMBER = r"([0-9]{1,18}(?:\.[0-9]{1,18})?)"


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """The predicted time that a call may take.

    - `share`: as a multiple of the time of the program that is chosen without a limit; None: `seconds` says.
    - `seconds`: seconds of a call.
    """

    share: float | None = None
    seconds: float | None = None

    @staticmethod
    def of(value: Any) -> TimeLimit:
        """The limit in an option's value. OptionError for any other value."""
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if 0 < value <= _LONGEST:
                return TimeLimit(seconds=float(value))
        elif isinstance(value, str):
            if (found := re.fullmatch(rf"\s*\+\s*{_NUMBER}\s*%\s*", value)) is not None:
                return TimeLimit(share=1 + float(found[1]) / 100)
            found = re.fullmatch(rf"\s*{_NUMBER}\s*(s|ms|us)\s*", value)
            if found is not None and float(found[1]) > 0:
                return TimeLimit(seconds=float(found[1]) * _UNITS[found[2]])
        raise OptionError(f"time_limit={short_repr(value)}: {_ACCEPTED} is accepted")

    def allows(self, seconds: float, usual: float) -> bool:
        """Whether a call may take that many seconds; `usual`: those of the program chosen without a limit."""
        most = self.seconds if self.share is None else self.share * usual
        assert most is not None
        return seconds <= most * (1 + _ROUNDING)

    def __str__(self) -> str:
        return f"{self.seconds:g} s" if self.share is None else f"+{100 * (self.share - 1):g}%"


_LONGEST = 1e9  # limit: seconds
_ROUNDING = 1e-9  # chosen: prices that differ by less are equal
