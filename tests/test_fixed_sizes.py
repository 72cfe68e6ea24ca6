"""Sizes that bounds or equalities fix: programs say them in one way, and give what `jax.jit` gives there."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.driver.fixed import with_fixed_sizes
from relax_eg.errors import BoundsError, TraceError
from relax_eg.ir import Tensor
from relax_eg.ops.interpret import evaluate
from relax_eg.shapes import Dim, Scope
from relax_eg.shapes.spec import parse_spec

Array = Any
Case = tuple[Any, Sequence[str], dict[str, Any], Mapping[str, int]]


def attention(x: Array, wq: Array, wk: Array, wv: Array) -> Array:
    b, s, width = x.shape

    def heads(t: Array) -> Array:
        return t.reshape(b, s, 4, width // 4).transpose(0, 2, 1, 3)

    q, k, v = heads(x @ wq), heads(x @ wk), heads(x @ wv)
    mixed = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / 2, axis=-1) @ v
    return mixed.transpose(0, 2, 1, 3).reshape(b, s, width)


def grouped(x: Array, wq: Array, wk: Array, wv: Array) -> Array:
    """Two heads of keys and values for four of queries."""
    b, s, width = x.shape
    q = (x @ wq).reshape(b, s, 2, 2, width // 4)
    k, v = (x @ wk).reshape(b, s, 2, width // 4), (x @ wv).reshape(b, s, 2, width // 4)
    weights = jax.nn.softmax(jnp.einsum("bsghd,btgd->bghst", q, k), axis=-1)
    return jnp.einsum("bghst,btgd->bsghd", weights, v).reshape(b, s, width)


def flattened(x: Array, w: Array) -> Array:
    b, s, d = x.shape
    return jax.nn.softmax((x.reshape(b * s, d) @ w).reshape(b, s, d) + x, axis=1)


def steps(x: Array, w: Array) -> Array:
    b, s, d = x.shape

    def body(carry: Array, row: Array) -> tuple[Array, Array]:
        carry = jnp.tanh(carry @ w + row)
        return carry, carry.reshape(b, 2, d // 2).sum(1)

    last, rows = jax.lax.scan(body, jnp.zeros((b, d)), x.transpose(1, 0, 2))
    return last, rows.transpose(1, 0, 2).reshape(b, s, d // 2)


def thirds(x: Array, y: Array) -> Array:
    rows = x.reshape(y.shape[0], 12)
    return jax.nn.softmax(rows @ rows.T, axis=-1) @ y, jax.nn.softmax(x, axis=0)


def squeezed(x: Array) -> Array:
    n, m = x.shape
    return jnp.squeeze(jnp.sum(x, axis=1, keepdims=True) * 2, 1) + x.reshape(n * m)[:1]


QKV = ("b s 16", "16 16", "16 16", "16 16")
GROUPED = ("b s 16", "16 16", "16 8", "16 8")
CASES: dict[str, Case] = {
    "batch of one": (attention, QKV, {"bounds": {"b": (1, 1)}}, {"b": 1, "s": 5}),
    "batch of one, assumed": (attention, QKV, {"bounds": "b == 1"}, {"b": 1, "s": 5}),
    "length of one": (attention, QKV, {"bounds": {"s": (1, 1)}}, {"b": 3, "s": 1}),
    "both one": (attention, QKV, {"bounds": {"b": 1, "s": 1}}, {"b": 1, "s": 1}),
    "as many as heads": (attention, QKV, {"bounds": {"b": (4, 4)}}, {"b": 4, "s": 5}),
    "square": (attention, QKV, {"bounds": ["b == s"]}, {"b": 3, "s": 3}),
    "square, the other way": (attention, QKV, {"bounds": ["s == b"]}, {"b": 3, "s": 3}),
    "twice": (attention, QKV, {"bounds": ["b == 2*s"]}, {"b": 6, "s": 3}),
    "grouped, length of one": (grouped, GROUPED, {"bounds": {"s": (1, 1)}}, {"b": 3, "s": 1}),
    "grouped, one": (grouped, GROUPED, {"bounds": {"b": (1, 1)}}, {"b": 1, "s": 5}),
    "grouped, square": (grouped, GROUPED, {"bounds": ["b == s"]}, {"b": 3, "s": 3}),
    "a product": (flattened, ("b s 8", "8 8"), {"bounds": ["b*s == 64"]}, {"b": 4, "s": 16}),
    "a ratio": (flattened, ("b s 8", "8 8"), {"bounds": ["2*b == 3*s"]}, {"b": 6, "s": 4}),
    "a sum": (flattened, ("b s 8", "8 8"), {"bounds": ["b + s == 20"]}, {"b": 6, "s": 14}),
    "flat": (flattened, ("b s 8", "8 8"), {"bounds": {"s": (1, 1)}}, {"b": 5, "s": 1}),
    "a loop": (steps, ("b s 8", "8 8"), {"bounds": {"b": 1}}, {"b": 1, "s": 5}),
    "a loop of one": (steps, ("b s 8", "8 8"), {"bounds": {"s": 1}}, {"b": 3, "s": 1}),
    "a square loop": (steps, ("b s 8", "8 8"), {"bounds": ["b == s"]}, {"b": 3, "s": 3}),
    "three times": (thirds, ("n 4", "m 4"), {"bounds": ["n == 3*m"]}, {"n": 15, "m": 5}),
    "squeezed": (squeezed, ("n m",), {"bounds": {"m": 1}}, {"n": 4, "m": 1}),
}
MODES: dict[str, dict[str, Any]] = {
    "whole": {"dynamic": "exact"},
    "kernels": {"execution": "kernels", "dynamic": "exact"},
    "capacity": {"dynamic": "capacity"},
}


def arrays(specs: Sequence[str], sizes: Mapping[str, int]) -> list[Array]:
    draw = np.random.default_rng(0)
    shapes = [[d.evaluate(sizes) for d in parse_spec(s).dims] for s in specs]  # type: ignore[union-attr]
    return [draw.standard_normal(shape).astype(np.float32) for shape in shapes]


def assert_same(found: Any, expected: Any) -> None:
    def same(a: Array, b: Array) -> None:
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)

    jax.tree.map(same, found, expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_what_jax_gives(name: str, mode: str) -> None:
    fn, specs, known, sizes = CASES[name]
    best = rx.optimize(fn, *specs, **known, **MODES[mode])
    assert rx.parse(str(best.module)) == best.module
    args = arrays(specs, sizes)
    assert_same(best(*args), jax.jit(fn)(*args))
    if mode == "whole":
        best.explain()  # raises where the program does not follow from the one as written


@pytest.mark.parametrize("name", ["length of one", "both one", "square", "twice", "grouped, length of one", "a loop"])
def test_a_module_in_place_of_the_function(name: str) -> None:
    """JAX did not know of the equality while it traced."""
    fn, specs, known, sizes = CASES[name]
    best = rx.optimize(rx.trace(fn, *specs), **known)
    args = arrays(specs, sizes)
    assert_same(best(*args), jax.jit(fn)(*args))
    with pytest.raises(BoundsError):
        best(*arrays(specs, {v: n + 1 + i for i, (v, n) in enumerate(sizes.items())}))


def test_a_fixed_size_is_a_number_everywhere_and_calls_are_still_told() -> None:
    best = rx.optimize(grouped, *GROUPED, bounds={"b": (1, 1)}, execution="kernels")
    main = best.module.main
    assert main.params[0].annotation == Tensor("1 s 16") and main.annotation == Tensor("1 s 16")
    assert main.size_variables == ("s",)
    with pytest.raises(BoundsError, match=r"grouped\(\): b = 2, and its bounds fix it to 1"):
        best(*arrays(GROUPED, {"b": 2, "s": 5}))


def test_the_other_sizes_of_a_changed_program_have_capacities() -> None:
    """The chosen program says the fixed size as a number, so it has no variable of that name."""

    def appended(w: Array, bias: Array, x: Array, cache: Array) -> Array:
        return jnp.concatenate([cache, jnp.tanh(x @ w.T + bias)], axis=1)

    bounds = {"b": 1, "t": (1, 64)}
    best = rx.optimize(
        appended, "512 512", "512", "b 512", "b t", bounds=bounds, weights=("w",), dynamic="capacity", target="cpu"
    )
    assert "transposed_weight_as_stored" in best.report.rules
    w, bias, x = jnp.eye(512), jnp.ones(512), jnp.ones((1, 512))
    ready = best.prepare(w)
    for t in (3, 4, 5):
        cache = jnp.arange(float(t))[None]
        assert_same(ready(bias, x, cache), appended(w, bias, x, cache))
    found = best.statistics()
    assert not found.exact and [dict(r.at) for r in found.executables] == [{"b": 1, "t": 4}, {"b": 1, "t": 8}]


@pytest.mark.parametrize("execution", ["whole", pytest.param("kernels", marks=pytest.mark.slow)])
def test_it_comes_from_the_cache(execution: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAX_EG_CACHE", "1")
    monkeypatch.setenv("RELAX_EG_CACHE_DIR", str(tmp_path))
    options: dict[str, Any] = {"bounds": {"s": (1, 1)}, "execution": execution}
    first, again = (rx.optimize(grouped, *GROUPED, **options) for _ in range(2))
    assert not first.report.cached and again.report.cached
    assert again.module == first.module


def test_functions_of_a_module_get_the_numbers_that_they_are_called_with() -> None:
    module = rx.trace(steps, "b s 8", "8 8", bounds=["b <= 4", "b*s <= 99"])
    fixed = with_fixed_sizes(module, Scope({"b": 2}))
    assert len(fixed.functions) == len(module.functions) > 1
    assert all("b" not in f.size_variables for f in fixed)
    assert fixed.main.assume == ("2*s <= 99",)
    assert rx.parse(str(fixed)) == fixed
    args = arrays(("b s 8", "8 8"), {"b": 2, "s": 3})
    assert_same(evaluate(fixed, args), evaluate(module, args))
    assert with_fixed_sizes(module, Scope({"b": (1, 2)})) is module


@pytest.mark.parametrize(
    ("bounds", "assume", "solved"),
    [
        ({"n": (3, 3), "m": (1, 4)}, (), {"n": "3"}),
        ({}, ("n == 2*m", "m == k"), {"n": "2*k", "m": "k"}),
        ({"m": 2}, ("n == 2*m",), {"m": "2", "n": "4"}),
        ({}, ("2*m == n",), {"n": "2*m"}),
        ({}, ("n % 8 == 0", "2*a == 3*b", "a*b == 6", "n != m"), {}),
        ({}, ("a == b", "b == a"), {"a": "b"}),
    ],
)
def test_what_equalities_give(bounds: Any, assume: tuple[str, ...], solved: dict[str, str]) -> None:
    assert Scope(bounds, assume=assume).determined_variables() == {v: Dim.of(d) for v, d in solved.items()}


def test_traced_parameters_have_the_form_in_which_jax_says_equal_sizes() -> None:
    """Else what reads them is nothing that JAX's form of the result follows from, and stays opaque."""
    best = rx.optimize(thirds, "n 4", "m 4", bounds=["n == 3*m"])
    assert best.report.opaque == ()


def test_the_example_encoder_for_one_sentence_and_for_one_token() -> None:
    path = Path(__file__).parents[1] / "examples" / "minilm.py"
    spec = importlib.util.spec_from_file_location("minilm_of_one", path)
    assert spec is not None and spec.loader is not None
    minilm = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(minilm)
    except ModuleNotFoundError as missing:
        pytest.skip(f"the example needs {missing.name}")
    draw = np.random.default_rng(0)

    def normal(*shape: int) -> Array:
        return (draw.standard_normal(shape) / 5).astype(np.float32)

    def pair(out: int, given: int) -> dict[str, Array]:
        return {"weight": normal(out, given), "bias": normal(out)}

    norm = {"weight": normal(24), "bias": normal(24)}
    projections = {name: pair(24, 24) for name in ("query", "key", "value", "output")}
    layer = {**projections, "attention_norm": norm, "norm": norm, "up": pair(48, 24), "down": pair(24, 48)}
    tables = {"word": normal(50, 24), "position": normal(16, 24), "type": normal(2, 24), "norm": norm}
    params = {**tables, "layers": [layer, layer]}
    for bounds, shape in (({"b": (1, 1)}, (1, 7)), ({"s": (1, 1)}, (3, 1)), ({"b": 1, "s": 1}, (1, 1))):
        best = rx.optimize(minilm.encode, params, "b s @ int32", "b s @ int32", bounds=bounds)
        ids, mask = draw.integers(0, 50, shape, dtype=np.int32), np.ones(shape, np.int32)
        assert_same(best(params, ids, mask), jax.jit(minilm.encode)(params, ids, mask))


def test_a_scan_over_a_symbolic_length_is_told_what_to_do() -> None:
    with pytest.raises(TraceError) as refused:
        rx.optimize(lambda x: jax.lax.associative_scan(jnp.add, x), "n 4")
    assert str(refused.value).endswith(
        "accepted: an integer for that size in the spec; or rx.jit without dims, which makes a program for each size"
    )
