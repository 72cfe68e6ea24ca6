"""Every operator of the table through every facet of its record: at random sizes and attributes, ranks 0 to 4, axes of
no elements, every dtype it takes, with and without JAX's x64 mode.

`RELAX_EG_FACETS=200` draws so many random uses of each operator in place of a few; `RELAX_EG_FACETS_SEED` others.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from facets import (
    DTYPES,
    Case,
    accepted,
    by_equations,
    by_mode,
    check,
    jax_takes,
    lowered,
    lowered_equations,
    make,
    random_operands,
    sizes_of,
)
from ops_draws import DRAWS
from ops_samples import USES
from ops_use import ANY, Use
from sampling import is_sampled

from relax_eg.dtypes import names_where
from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import Tensor
from relax_eg.ops import TABLE, Operator, get
from relax_eg.ops.elementwise import pointwise
from relax_eg.shapes import Dim
from relax_eg.tir import Counts

DRAWN = int(os.environ.get("RELAX_EG_FACETS", "1"))
SEED = int(os.environ.get("RELAX_EG_FACETS_SEED", "0"))
TOGETHER = 60  # cases in one XLA program
NAMES = sorted(TABLE)
# Their lowerings are loops, or come in many kinds, and compile for long: less is tried of them, unless asked for.
SLOW = frozenset(
    "random_gamma igamma igammac igamma_grad_a betainc cholesky_update random_split random_fold_in".split()
)
# Operators made of + - * only, comparisons and moves: exact arithmetic on small integers is numpy's.
RING = frozenset(
    """negative abs sign square integer_pow add subtract multiply maximum minimum equal not_equal less less_equal
    greater greater_equal where clip matmul linear sum prod max min any all argmax argmin cumsum cumprod cummax cummin
    conv reduce_window dynamic_slice dynamic_update_slice gather permute_dims reshape after expand_dims
    squeeze broadcast_to concat split strided_slice pad take flip triu tril full iota one_hot dim_value
    relu ragged_dot ragged_outer reduce_or reduce_and reduce_xor""".split()
)

_NARROW = names_where(lambda d: d.is_narrow)
# Kinds of dtype that a lowering would take and its operator does not. Of narrow dtypes and keys it need not say so.
OTHERWISE: dict[str, str] = {
    # There is another operator for them.
    **dict.fromkeys(("any", "all", "logical_and", "logical_or", "logical_xor", "logical_not"), "iu"),
    **dict.fromkeys(("reduce_or", "reduce_and", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"), "b"),
    "right_shift_logical": "u", **dict.fromkeys(("less_total", "less_equal_total", "equal_total"), "biuc"),
    # The lowering is a function of JAX that converts first; traced programs have the conversion before the operator.
    **dict.fromkeys(("gelu", "gelu_tanh", "mean", "softmax", "log_softmax", "layer_norm", "rms_norm"), "biuc"),
    "abs": "u", "isfinite": "biuc",
    **dict.fromkeys(("isnan", "silu", "relu", "cumlogsumexp", "geqrf", "fft"), "biuc"),
    # JAX traces it, and there is no such routine.
    **dict.fromkeys("cholesky cholesky_update eig eigh geqrf hessenberg householder_product lu qr".split(), "biuch"),
    **dict.fromkeys("ormqr schur svd triangular_solve tridiagonal tridiagonal_solve window_scatter".split(), "biuch"),
    "random_seed": "bfc", "random_gamma": "biufch",
    # Complex numbers have no order here; truth values are not convolved.
    **dict.fromkeys("argmax argmin atan2 clip cummax cummin max min reduce_window".split(), "c"),
    "window_gather": "c", "conv": "b", "ragged_dot": "b", "ragged_outer": "b",
}  # fmt: skip


def rng_for(name: str, seed: int = SEED) -> np.random.Generator:
    return np.random.default_rng([zlib.crc32(name.encode()), seed])


def one_of(items: list[str], rng: np.random.Generator) -> str:
    return items[int(rng.integers(len(items)))]


def fixed_cases(name: str, rng: np.random.Generator, one_in: int = 1) -> list[Case]:
    """The first use at every dtype or a sample of them, one in `one_in`; the others at one. Each is made at random
    sizes, and once at the least: 0 where there may be none."""
    assert name in USES, f"tests/ops/ops_samples.py has no uses of operator `{name}`"
    cases: list[Case] = []
    for n, use in enumerate(USES[name]):
        taken, _ = accepted(name, use)
        assert taken, f"{name} takes no dtype in {use}"
        several = [taken[0], *(d for d in taken[1:] if is_sampled(f"{name} {d}", one_in))]
        for dtype in several if n == 0 else [one_of(taken, rng)]:
            cases.append(make(name, use, dtype, sizes_of(use, rng), rng))
        if name in SLOW:
            continue
        least = {v: low for v, (low, _) in use.sizes.items()}
        cases.append(make(name, use, one_of(taken, rng), least, rng))
        if n == 0:
            cases += [make(name, use, taken[0], sizes_of(use, rng), rng, x64) for x64 in (False, True)]
    return cases


def drawn_cases(name: str, rng: np.random.Generator, count: int) -> list[Case]:
    assert name in DRAWS, f"tests/ops/ops_draws.py does not say how to draw a use of operator `{name}`"
    cases: list[Case] = []
    for _ in range(count):
        use = DRAWS[name](rng)
        taken, refused = accepted(name, use)
        assert taken, f"{name} takes no dtype in {use}: {refused}"
        cases.append(make(name, use, one_of(taken, rng), sizes_of(use, rng), rng))
    return cases


def run(cases: list[Case]) -> None:
    for group in by_mode(cases):
        for i in range(0, len(group), TOGETHER):
            part = group[i : i + TOGETHER]
            for case, results, stated in zip(part, lowered(part), lowered_equations(part), strict=True):
                check(case, results, stated)


@pytest.mark.parametrize("name", NAMES)
def test_facets(name: str) -> None:
    every_facet(name, 8)
    assert get(name).doc


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_facets_at_every_dtype(name: str) -> None:
    every_facet(name, 1)


def every_facet(name: str, one_in: int) -> None:
    rng = rng_for(name)
    count = DRAWN if name not in SLOW or "RELAX_EG_FACETS" in os.environ else 0
    run(fixed_cases(name, rng, one_in) + drawn_cases(name, rng, count))


@pytest.mark.parametrize("name", NAMES)
def test_refusals(name: str) -> None:
    """What an operator refuses is refused with its name, the dtype and what is needed; and JAX would refuse it too."""
    use = USES[name][0]
    _, refused = accepted(name, use)
    for dtype, text in refused.items():
        assert text.startswith(f"{name}(") and dtype in text and "is needed" in text, text
        letter = {"bool": "b", "comp": "c", "uint": "u"}.get(dtype[:4]) or {"i": "i"}.get(dtype[0], "f")
        half = dtype in ("float16", "bfloat16") and "h" in OTHERWISE.get(name, "")
        if dtype in _NARROW or dtype.startswith("key") or half or letter in OTHERWISE.get(name, ""):
            continue
        assert not jax_takes(name, use, dtype, rng_for(name)), f"{name} refuses {dtype}, which JAX takes: {text}"


@pytest.mark.parametrize("name", sorted(RING & TABLE.keys()))
def test_exact_domain(name: str) -> None:
    """On small integers exact arithmetic gives what numpy gives."""
    rng = rng_for(name)
    for case in fixed_cases(name, rng) + drawn_cases(name, rng, 2):
        dtypes = [str(t.dtype) for t in (*case.site.operands, *case.fields) if isinstance(t, Tensor)]
        if any(d.startswith(("key", "complex")) or d in _NARROW for d in dtypes):
            continue  # keys are no numbers, complex ones are tested as points of a line, narrow floats hold few
        if name == "integer_pow" and case.site["y"] < 0:
            continue
        arrays = random_operands(case.concrete, case.use, rng, integral=True)
        numeric = by_equations(case.site, arrays, case.sizes)
        for got, want in zip(by_equations(case.site, arrays, case.sizes, "exact"), numeric, strict=True):
            pairs = zip(got.ravel().tolist(), want.ravel().tolist(), strict=True)
            assert all(g == w or w != w or abs(w) > 2048 for g, w in pairs), str(case)


def test_every_operator_has_samples_and_draws() -> None:
    assert set(USES) == set(DRAWS) == set(TABLE)


def test_draws_have_every_rank_and_no_elements() -> None:
    ranks: set[int] = set()
    empty = 0
    for case in drawn_cases("add", rng_for("add"), 200):
        ranks.add(len(case.fields[0].shape or ()))
        empty += 0 in [int(d) for d in case.fields[0].shape or ()]
    assert ranks == {0, 1, 2, 3, 4} and empty > 10
    assert {str(c.site.dtype()) for c in fixed_cases("equal", rng_for("equal"))} == {
        d for d in DTYPES if not d.startswith("key")
    }


# --- records that are wrong in one facet are found out ---


def _deduce(site: Any) -> Any:
    """As elementwise functions of one float are deduced."""
    if site.dtype() not in ("float32", "bfloat16"):
        raise site.error(f"operand 0 is {site.dtype()}; float32 or bfloat16 is needed")
    return Tensor(site.shape(), site.dtype())


def _double(x: Any) -> Any:
    return x + x


_TWICE = pointwise(lambda site, x: x + x)

WRONG: list[tuple[str, dict[str, Any]]] = [
    ("Mismatched elements", {"equations": pointwise(lambda site, x: x + x + 1)}),
    ("Mismatched elements", {"equations": None, "reference": lambda x: x, "cost": lambda site: _nothing()}),
    ("float32 was deduced|bfloat16 was deduced", {"lower": lambda x: (x + x).astype("float16")}),
    (r"\(.*\) was deduced", {"lower": lambda x: (x + x)[None]}),
    ("the dtype is weak", {"lower": lambda x: 1.0 * len(x.shape)}),
    ("deduction at known sizes", {"deduce": lambda site: _bigger(site)}),
    ("flops of", {"cost": lambda site: Counts(Dim.of(-1), Dim.of(0), Dim.of(10**6))}),
    ("writes fewer bytes", {"cost": lambda site: Counts(Dim.of(1), Dim.of(0), Dim.of(0))}),
]


def _nothing() -> Counts:
    return Counts(Dim.of(0), Dim.of(0), Dim.of(10**6))


def _bigger(site: Any) -> Any:
    found = _deduce(site)
    return Tensor((*site.shape()[:-1], 4), found.dtype) if all(d.is_const for d in site.shape()) else found


@pytest.mark.parametrize(("text", "change"), WRONG, ids=[t for t, _ in WRONG])
def test_a_wrong_record_is_found_out(text: str, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"twice_{zlib.crc32(repr(sorted(change)).encode())}_{len(text)}"
    right: dict[str, Any] = {"deduce": _deduce, "lower": _double, "equations": _TWICE, "doc": "x + x"}
    monkeypatch.setitem(TABLE, name, Operator(name, ("x",), **{**right, **change}))
    use = Use(("n 3",), {}, {"n": (1, 4)}, 1, 2)
    with pytest.raises(AssertionError, match=text):
        run([make(name, use, dtype, {"n": 2}, rng_for(name)) for dtype in ("float32", "bfloat16")])


def test_a_right_record_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLE, "twice", Operator("twice", ("x",), _deduce, _double, _TWICE, doc="x + x"))
    run([make("twice", Use(("n 3",), {}, ANY), d, {"n": 2, "m": 0}, rng_for("")) for d in ("float32", "bfloat16")])


def test_a_missing_facet_is_an_error() -> None:
    deduce: Callable[..., Any] = lambda site: site.tensor(0)  # noqa: E731
    with pytest.raises(OperatorError, match="give a numpy reference and a cost"):
        Operator("sort", ("x",), deduce, "jax.lax.sort")
    with pytest.raises(AssertionError, match="has no uses of operator `none`"):
        fixed_cases("none", rng_for(""))
    with pytest.raises(AssertionError, match="does not say how to draw a use of operator `none`"):
        drawn_cases("none", rng_for(""), 1)
