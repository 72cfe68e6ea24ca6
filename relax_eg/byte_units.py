"""Formats and parses numbers of bytes with units: `2.5 MiB`."""

from __future__ import annotations

import re
from typing import Any

from relax_eg.argument_checks import short_repr
from relax_eg.errors import OptionError

_BINARY = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))  # given: bytes per unit
# given: bytes per unit
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, **{name.lower(): size for name, size in _BINARY}}


def format_bytes(count: int) -> str:
    """Returns a number of bytes with four significant digits, in the largest of GiB, MiB, KiB and B that is not
    larger."""
    for unit, size in _BINARY:
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"


def parse_bytes(value: Any, option: str) -> int:
    """Returns the number of bytes, at least one, in `value`: an integer, or a text such as "512 MiB" or "1.5 GB" in any
    case. OptionError, which names `option`, for any other value."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    found = (
        re.fullmatch(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([a-zA-Z]*)\s*", value) if isinstance(value, str) else None
    )
    if found is not None and found[2].lower() in _UNITS:
        count = int(float(found[1]) * _UNITS[found[2].lower()])
        if count > 0:
            return count
    wrong = found is not None and found[2].lower() not in _UNITS
    unit = f" ({found[2]!r} is no unit: B, KB, MB, GB, KiB, MiB and GiB are)" if wrong and found is not None else ""
    raise OptionError(f"{option}={short_repr(value)}: bytes, or a text such as '512 MiB' or '2 GB', is accepted{unit}")
