"""Plans as text."""

from __future__ import annotations

from relax_eg.memory.plan import Plan


def mib(count: int) -> str:
    """Bytes, as people read them."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} bytes"


def plan_text(plan: Plan) -> str:
    return ""
