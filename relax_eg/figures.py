"""Formats figures for people: seconds, counts with a unit prefix, shares."""

from __future__ import annotations

from collections.abc import Mapping


def integer_text(x: float) -> str:
    return str(int(x))


def si(x: float) -> str:
    """A count with a prefix: 8.73M."""
    for prefix, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(x) >= scale:
            return f"{x / scale:.3g}{prefix}"
    return f"{x:.3g}"


def count_text(n: int, one: str, several: str = "") -> str:
    """A count with its noun, such as "1 call" or "2 calls". `several`: the plural; default: `one` with an s."""
    return f"{n} {one if n == 1 else several or one + 's'}"


def share(x: float) -> str:
    return f"{100 * x:.3g}%"


def time(seconds: float) -> str:
    if abs(seconds) >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if abs(seconds) >= 1e-3 else f"{seconds * 1e6:.3g} us"


def binding_text(at: Mapping[str, int]) -> str:
    """A binding of sizes as text: b=1, s=128."""
    return ", ".join(f"{k}={v}" for k, v in at.items())
