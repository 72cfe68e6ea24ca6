"""Values that change their parts along several axes of a mesh: in which turn, and what XLA makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest

import relax_eg as rx
from relax_eg.ir.placements import PARTIAL_SUM, REPLICATED
from relax_eg.meshes.choices import after_turns, turns

MESH = {"slow": 8, "fast": 8}
ROWS = "4194304 512 @bfloat16"  # so many that each device sums its own
SQUARE = "4096 4096 @bfloat16"


def test_the_order_of_changes() -> None:
    p, r = PARTIAL_SUM, REPLICATED
    assert turns((p, p), (0, 1), True) == [(1,), (0,)]  # the faster link has the more bytes
    assert turns((p, p), (0, 0), True) == [(0, 1)]
    assert turns((p, p), (0, r), True) == [(0,), (1,)]
    assert turns((p, p), (0, r), False) == [(0, 1)]
    assert turns((0, 1), (r, r), True) == [(0,), (1,)]
    assert turns((0, 0), (r, r), True) == [(1,), (0,)]
    assert turns((0, 1, 0), (r, r, r), True) == [(2,), (0,), (1,)]
    assert turns((0, 1), (1, r), True) == [(1,), (0,)]
    assert turns((p, r), (p, 0), True) == [(1,)]
    assert after_turns((p, p, 0), (0, 1, r), [1, 2]) == (p, 1, r)


def product(x: jax.Array, y: jax.Array) -> jax.Array:
    return x.T @ y


def doubled(x: jax.Array) -> jax.Array:
    return x * 2


@pytest.mark.parametrize(
    ("fn", "before", "after"),
    [
        *((product, "S[0], S[0]", after) for after in ("S[0], S[1]", "S[1], S[0]", "R, S[0]", "S[0], R", "S[0], S[0]")),
        (product, "S[0], S[0]", "R, R"),
        *((doubled, before, "R, R") for before in ("S[0], S[1]", "S[1], S[0]", "S[0], S[0]")),
        *((doubled, "S[0], S[0]", after) for after in ("R, S[0]", "S[1], R", "S[1], S[0]")),
        *((doubled, "S[0], S[1]", after) for after in ("S[1], S[0]", "S[1], S[1]", "S[1], R", "S[0], R")),
    ],
)
def test_xla_inserts_what_is_priced(fn: Callable[..., Any], before: str, after: str) -> None:
    """Kinds and bytes, exactly."""
    given = {"x": before, "y": before} if fn is product else {"x": before}
    specs = (ROWS, ROWS) if fn is product else (SQUARE,)
    best = rx.spread(fn, *specs, mesh=MESH, target="h100", inputs=given, outputs=after, seconds=5)
    assert all(s.kind != "collective-permute" or s.times == 1 for s in best.spreading.sent)
    assert best.compile_spread("h100").bytes_by_kind() == best.spreading.sent_bytes(), best.spreading
