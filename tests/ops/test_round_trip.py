"""What an operator is lowered to becomes operators again when it is traced, with the same results."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from facets import attributes_at, by_equations, jax_dtype, make, same_value, sizes_of
from jax import lax
from ops_draws import DRAWS
from sampling import sampled
from test_facets import NAMES, accepted, one_of, rng_for

from relax_eg.frontends import trace_function
from relax_eg.ir.expr import CALL_DPS_LIBRARY
from relax_eg.ops import get
from relax_eg.ops.interpret import evaluate
from relax_eg.ops.keys import dtype_name

QUICK = 3


def retraced(function: Any, operands: list[Any]) -> tuple[Any, set[str]]:
    """What a function of these operands becomes, and what of it stays opaque."""
    structs = [jax.ShapeDtypeStruct(a.shape, jax_dtype(dtype_name(a))) for a in operands]
    module = trace_function(function, tuple(structs)).module
    found = [e for f in module.functions for e in f.expressions()]
    return module, {str(e.attr("name")) for e in found if e.op == CALL_DPS_LIBRARY}


# A sharding of the user's own names devices, a transfer a memory, and an order states when what runs. A module has none
# of them: they stay calls of JAX's.
TRACED = [name for name in NAMES if name not in ("annotate_sharding", "on_host", "from_host", "after")]


@pytest.mark.parametrize("name", sampled(TRACED, 2))
def test_a_lowering_traces_back(name: str) -> None:
    rng = rng_for(name, 5)
    for _ in range(QUICK):
        use = DRAWS[name](rng)
        taken, _ = accepted(name, use)
        case = make(name, use, one_of(taken, rng), sizes_of(use, rng), rng)
        attrs, lower = attributes_at(case), get(name).jax_function()
        with jax.enable_x64(case.x64):
            module, opaque = retraced(lambda *xs, lower=lower, attrs=attrs: lower(*xs, **attrs), list(case.arrays))
        assert not opaque, f"{case}: {opaque}"
        results = evaluate(module, case.arrays)
        settle = use.settle or list
        stated = by_equations(case.concrete, case.arrays, {})
        got = list(results) if isinstance(results, tuple) else [results]
        for g, w, part in zip(settle(got), settle(stated), case.fields, strict=True):
            same_value(w, g, str(part.dtype), f"{case}, traced back", 4 * use.looser)


_SPACE = "DHW"


def layout(rng: np.random.Generator, letters: str) -> str:
    return "".join(letters[i] for i in rng.permutation(len(letters)))


@pytest.mark.parametrize("seed", range(12))
def test_convolutions_in_any_layout(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    space = _SPACE[3 - rank :]
    layouts = layout(rng, "NC" + space), layout(rng, "OI" + space), layout(rng, "NC" + space)
    groups, batch_groups = [(1, 1), (2, 1), (1, 2)][seed % 3]
    sizes = {"N": 2 * batch_groups, "C": 2 * groups, "O": 2 * groups * batch_groups, "I": 2}
    x = rng.normal(size=[sizes.get(c) or 5 for c in layouts[0]]).astype(np.float32)
    w = rng.normal(size=[sizes.get(c) or 2 for c in layouts[1]]).astype(np.float32)
    many = {k: tuple(map(int, rng.integers(1, 3, rank))) for k in ("window_strides", "lhs_dilation", "rhs_dilation")}
    padding = [tuple(map(int, rng.integers(-1, 3, 2))) for _ in range(rank)]

    def convolution(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x, w, padding=padding, dimension_numbers=layouts, feature_group_count=groups,
            batch_group_count=batch_groups, **many,
        )  # fmt: skip

    module, opaque = retraced(convolution, [x, w])
    assert not opaque
    np.testing.assert_allclose(evaluate(module, [x, w]), jax.jit(convolution)(x, w), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(12))
def test_contractions_of_any_axes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [2, 3, 4, 1, 5]
    batch, inner, left, right = (int(rng.integers(0, n)) for n in (3, 3, 3, 3))
    names = [f"{kind}{i}" for kind, n in (("b", batch), ("k", inner), ("l", left), ("r", right)) for i in range(n)]
    size = {name: sizes[int(rng.integers(5))] for name in names}
    a, b = ([n for n in names if n[0] in kinds] for kinds in ("bkl", "bkr"))
    a, b = ([axes[i] for i in rng.permutation(len(axes))] for axes in (a, b))
    shared = [[n for n in names if n[0] == kind] for kind in "kb"]
    numbers = tuple(tuple(tuple(axes.index(n) for n in found) for axes in (a, b)) for found in shared)
    dtype, out = [("float32", None), ("bfloat16", "float32"), ("int8", "int32"), ("bool", None)][seed % 4]
    x, y = (rng.integers(-3, 4, [size[n] for n in axes]).astype(jax.numpy.dtype(dtype)) for axes in (a, b))

    def product(x: Any, y: Any) -> Any:
        return lax.dot_general(x, y, numbers, preferred_element_type=out)

    module, opaque = retraced(product, [x, y])
    assert not opaque
    same_value(evaluate(module, [x, y]), jax.jit(product)(x, y), out or dtype, f"{a} with {b}")
