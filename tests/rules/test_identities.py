"""The identities of bits that the formal checker uses, on all special values."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import tuple_ as make_tuple
from relax_eg.ir.expr import var
from relax_eg.ops import api as op
from relax_eg.ops.interpret import evaluate_expr
from relax_eg.tir.functions import FUNCTIONS

_SPECIAL = (0.0, -0.0, 1.0, -1.0, 3.3, -7e-42, np.inf, -np.inf, np.nan, 1e38, -1e38)


def _f(name: str) -> Callable[..., Any]:
    return lambda *xs: FUNCTIONS[name]([np.asarray(x, "float32") for x in xs], "float32")


IDENTITIES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "-(-x)": (lambda x: _f("negative")(_f("negative")(x)), lambda x: x),
    "|-x|": (lambda x: _f("abs")(_f("negative")(x)), _f("abs")),
    "||x||": (lambda x: _f("abs")(_f("abs")(x)), _f("abs")),
    "square": (_f("square"), lambda x: _f("multiply")(x, x)),
    "x*1": (lambda x: _f("multiply")(x, 1.0), lambda x: x),
    "1*x": (lambda x: _f("multiply")(1.0, x), lambda x: x),
    "x/1": (lambda x: _f("divide")(x, 1.0), lambda x: x),
    "x-0": (lambda x: _f("subtract")(x, 0.0), lambda x: x),
    "x+-0": (lambda x: _f("add")(x, -0.0), lambda x: x),
    "-x*-y": (lambda x, y: _f("multiply")(_f("negative")(x), _f("negative")(y)), _f("multiply")),
    "(x-y)(x-y)": (
        lambda x, y: _f("multiply")(_f("subtract")(x, y), _f("subtract")(x, y)),
        lambda x, y: _f("multiply")(_f("subtract")(y, x), _f("subtract")(y, x)),
    ),
    "x+-y": (lambda x, y: _f("add")(x, _f("negative")(y)), _f("subtract")),
    "x--y": (lambda x, y: _f("subtract")(x, _f("negative")(y)), _f("add")),
    "x+y": (_f("add"), lambda x, y: _f("add")(y, x)),
    "x*y": (_f("multiply"), lambda x, y: _f("multiply")(y, x)),
    "max(x,x)": (lambda x: _f("maximum")(x, x), lambda x: x),
    "min(x,x)": (lambda x: _f("minimum")(x, x), lambda x: x),
    "max(-inf,x)": (lambda x: _f("maximum")(-np.inf, x), lambda x: x),
    "max(x,-inf)": (lambda x: _f("maximum")(x, -np.inf), lambda x: x),
    "min(inf,x)": (lambda x: _f("minimum")(np.inf, x), lambda x: x),
    "min(x,inf)": (lambda x: _f("minimum")(x, np.inf), lambda x: x),
    "clip(y,clip(y,x,z),z)": (
        lambda x, y, z: _f("clamp")(y, _f("clamp")(y, x, z), z),
        lambda x, y, z: _f("clamp")(y, x, z),
    ),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_identities_of_bits(name: str) -> None:
    left, right = IDENTITIES[name]
    for xs in itertools.product(_SPECIAL, repeat=max(1, sum(v in name for v in "xyz"))):
        a, b = (np.asarray(f(*xs), "float32") for f in (left, right))
        assert a.tobytes() == b.tobytes() or (np.isnan(a) and np.isnan(b)), (name, xs)


@pytest.mark.parametrize("which", ["max", "min"])
def test_identities_of_extremes(which: str) -> None:
    """-max(x) = min(-x) bit for bit, in the order in which the reference folds."""
    dual = {"max": "min", "min": "max"}[which]
    for xs in itertools.product(_SPECIAL, repeat=3):
        x = var("x", Tensor("3"))
        sides = (op.negative(getattr(op, which)(x)), getattr(op, dual)(-x))
        a, b = evaluate_expr(make_tuple(sides), {x: np.asarray(xs, "float32")}, {}, ordered=True)
        assert a.tobytes() == b.tobytes() or (np.isnan(a) and np.isnan(b)), xs
