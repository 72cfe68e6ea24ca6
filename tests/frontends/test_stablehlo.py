"""Modules from StableHLO and from what `jax.export` writes compute what JAX computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import relax_eg as rx
from relax_eg.backend.lowering.lower import run_function
from relax_eg.errors import StableHloError

RNG = np.random.default_rng(2)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def exported(f: Callable[..., Any], *args: Any) -> export.Exported:
    """`f` exported for arrays, or for symbolic shapes given as text."""
    scope = export.SymbolicScope()
    specs = [
        jax.ShapeDtypeStruct(export.symbolic_shape(a, scope=scope), np.float32)
        if isinstance(a, str)
        else jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype), a)
        for a in args
    ]
    return export.export(jax.jit(f))(*specs)


def agrees(module: rx.types.Module, f: Callable[..., Any], *args: Any) -> None:
    leaves = jax.tree.leaves(args)
    with jax.enable_x64(module.wide):
        found = jax.tree.leaves(jax.jit(lambda *xs: run_function(module, module.main, xs))(*leaves))
    for a, b in zip(found, jax.tree.leaves(jax.jit(f)(*args)), strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype and np.shape(a) == np.shape(b)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def libraries(module: rx.types.Module) -> list[str]:
    return [str(e.attr("name")) for f in module for e in f.expressions() if e.op == "call_dps_library"]


def mlp(x, weights):
    h = jax.nn.gelu(x @ weights["a"] + weights["b"])
    return jax.nn.log_softmax(h @ weights["c"])


def attention(x, w):
    q, k, v = jnp.split(x @ w, 3, axis=-1)
    heads = [t.reshape(*t.shape[:2], 2, -1).transpose(0, 2, 1, 3) for t in (q, k, v)]
    scores = heads[0] @ heads[1].swapaxes(-1, -2) / 2
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    out = jax.nn.softmax(jnp.where(causal, scores, -1e9)) @ heads[2]
    return out.transpose(0, 2, 1, 3).reshape(x.shape)


def conv_net(x, w):
    y = lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    y = lax.reduce_window(jax.nn.relu(y), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return jnp.mean(y, axis=(1, 2))


def recurrent(xs, w):
    def step(c, x):
        c = jnp.tanh(c @ w + x)
        return c, c * 2

    return lax.scan(step, jnp.zeros(w.shape[0], xs.dtype), xs)


def places(x, i):
    y = x.at[i].add(1.0).at[0, 1].set(5.0).at[:, 2].max(0.5)
    return y, x[i], jnp.take_along_axis(x, jnp.argsort(-x, axis=1), 1), lax.dynamic_slice(x, (i[0], 1), (2, 2))


def choices(x):
    y = lax.cond(x[0, 0] > 0, lambda v: v * 2, lambda v: v - 1, x)
    z = lax.switch(jnp.argmax(x[0]), [jnp.sin, jnp.cos, jnp.tanh, jnp.exp], x)
    return y, z, lax.while_loop(lambda v: jnp.sum(v) < 50, lambda v: v * v + 1, x)


def ordered(x):
    keys = jnp.round(x)
    found = lax.sort((keys, -x, x), dimension=0, num_keys=2)
    return jnp.sort(x, axis=0), jnp.sort(x, descending=True), *found, *lax.top_k(x, 2), jnp.cumsum(x, axis=1)


def elementwise(x):
    y = lax.expm1(x) + jnp.log1p(jnp.abs(x)) + jnp.round(x) + lax.rsqrt(x * x + 1) + jnp.cbrt(x) + jnp.sinh(x)
    bits = lax.bitcast_convert_type(x, np.uint32) >> 3
    half = x.astype(jnp.bfloat16) * jnp.array([1.5, 2, 3, 4], jnp.bfloat16)
    padded = jnp.pad(x, ((1, 0), (0, 2)), constant_values=3.0)[::-1]
    return y, bits, half.astype(jnp.float32), padded, jnp.clip(x, -1, 1), jnp.where(x > 0, x, x**3), lax.erf(x)


def extremes(x):
    reversed_ties = jnp.round(x)
    return jnp.argmax(x, 1), jnp.argmin(reversed_ties, 0), jnp.argmax(jnp.where(x > 1, jnp.nan, x)), jnp.max(x), x.all()


def general_reduction(x):
    """A reduction that is no argmax: the last greatest element."""

    def later(a, b):
        better = (b[0] > a[0]) | ((b[0] == a[0]) & (b[1] > a[1]))
        return jnp.where(better, b[0], a[0]), jnp.where(better, b[1], a[1])

    places = lax.broadcasted_iota(np.int32, x.shape, 1)
    return lax.reduce((jnp.round(x), places), (np.float32(-np.inf), np.int32(0)), later, (1,))


def noise(x):
    return x + jax.random.normal(jax.random.key(3), x.shape)


WEIGHTS = {"a": floats(4, 8), "b": floats(8), "c": floats(8, 3)}
CASES: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (mlp, (floats(5, 4), WEIGHTS)),
    (attention, (floats(2, 6, 8), floats(8, 24))),
    (conv_net, (floats(2, 9, 8, 3), floats(3, 3, 3, 4))),
    (recurrent, (floats(6, 4), floats(4, 4))),
    (places, (floats(5, 4), np.array([3, 0], np.int32))),
    (choices, (floats(2, 4),)),
    (ordered, (floats(5, 4),)),
    (elementwise, (floats(3, 4),)),
    (extremes, (floats(5, 6),)),
    (noise, (floats(3, 4),)),
]


@pytest.mark.parametrize(("f", "args"), CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_what_jax_exports(f: Callable[..., Any], args: tuple[Any, ...]) -> None:
    module = rx.from_stablehlo(exported(f, *args))
    agrees(module, f, *args)
    assert rx.parse(str(module)).main.expressions() == module.main.expressions()
    assert libraries(module) == []


def factors(a, b):
    spd = a @ a.T + 5 * jnp.eye(4)
    upper = jnp.linalg.cholesky(spd, upper=True)
    solved = jnp.linalg.solve(a, b), jax.scipy.linalg.solve_triangular(a, b, trans=1, lower=True, unit_diagonal=True)
    q, r = jnp.linalg.qr(b)
    values, vectors = jnp.linalg.eigh(spd)
    u, s, vt = jnp.linalg.svd(b, full_matrices=False)
    flags = jnp.isnan(jnp.linalg.cholesky(-spd))
    return upper, solved, q @ r, values, vectors**2, (u * s) @ vt, jnp.linalg.svd(b, compute_uv=False), flags


def complex_factors(a, b):
    z = a + (0.5 + 2j) * jnp.eye(4)
    return jnp.linalg.solve(z, b + 0j), jnp.linalg.eigvalsh(z @ jnp.conj(z.T)), jnp.abs(jnp.linalg.qr(z)[1])


def transforms(a, _):
    weights = np.exp(1j * np.arange(4)).astype(np.complex64)
    return jnp.fft.rfft(a), jnp.fft.ifft2(a * weights), jnp.fft.irfft(a * (1 - 2j))


@pytest.mark.parametrize("f", [factors, complex_factors, transforms])
def test_linear_algebra_is_read_from_the_routines_that_jax_calls(f: Callable[..., Any]) -> None:
    args = floats(4, 4), floats(4, 3)
    module = rx.from_stablehlo(exported(f, *args))
    assert not libraries(module)
    agrees(module, f, *args)


def test_solutions_of_any_number_of_systems() -> None:
    module = rx.from_stablehlo(exported(jnp.linalg.solve, "b, 4, 4", "b, 4, 1"))
    for n in (1, 3):
        agrees(module, jnp.linalg.solve, floats(n, 4, 4), floats(n, 4, 1))


def test_arguments_that_nothing_reads_are_arguments() -> None:
    module = rx.from_stablehlo(exported(lambda a, b, c: a - c, *map(np.float32, (1, 2, 3))))
    agrees(module, lambda a, b, c: a - c, *map(np.float32, (1, 2, 3)))


def test_other_reductions_are_library_calls() -> None:
    x = floats(4, 7)
    module = rx.from_stablehlo(exported(general_reduction, x))
    agrees(module, general_reduction, x)
    assert libraries(module) == ["jax.reduce"]


def test_sources(tmp_path: Path) -> None:
    """A text, MLIR's bytes, serialized bytes and files of these have the same operators."""
    args = floats(5, 4), WEIGHTS
    found = exported(mlp, *args)
    path = tmp_path / "mlp.mlir"
    path.write_text(found.mlir_module())
    (tmp_path / "mlp.bin").write_bytes(found.serialize())
    wanted = rx.from_stablehlo(found)
    names = ["arg0", "arg1_a", "arg1_b", "arg1_c"]
    assert [p.attr("name") for p in wanted.main.params] == names and wanted.main.name == "mlp"
    sources = [found.mlir_module(), found.mlir_module_serialized, bytes(found.serialize()), path, str(path)]
    for source in (*sources, tmp_path / "mlp.bin"):
        module = rx.from_stablehlo(source)
        assert [e.op for e in module.main.expressions()] == [e.op for e in wanted.main.expressions()]
        agrees(module, mlp, *args)


def test_symbolic_sizes_are_kept() -> None:
    f = exported(attention, "b, 2*s, 8", floats(8, 24))
    module = rx.from_stablehlo(f)
    assert [str(p.annotation) for p in module.main.params] == [str(rx.Tensor("b 2*s 8")), str(rx.Tensor("8 24"))]
    assert str(module.main.annotation) == str(rx.Tensor("b 2*s 8"))
    w = floats(8, 24)
    for shape in ((1, 4, 8), (3, 6, 8)):
        agrees(module, attention, floats(*shape), w)
    best = rx.optimize(module, at={"b": 2, "s": 3})
    x = floats(2, 6, 8)
    np.testing.assert_allclose(best(x, w), attention(x, w), rtol=1e-4, atol=1e-5)


def test_constraints_are_kept() -> None:
    (n,) = export.symbolic_shape("n", constraints=["mod(n, 8) == 0"])
    made = export.export(jax.jit(lambda x: jnp.tanh(x)))(jax.ShapeDtypeStruct((n,), np.float32))
    assert rx.from_stablehlo(made).main.assume == ("mod(n, 8) == 0",)


def test_unknown_sizes_of_a_text() -> None:
    text = exported(lambda x, y: jnp.sum(jnp.exp(x), 0) + y, "b, 4", "4").mlir_module()
    module = rx.from_stablehlo(text)
    assert str(module.main.params[0].annotation) == str(rx.Tensor("arg0_0 4"))
    named = rx.from_stablehlo(text, inputs=["2*k 4", "4"])
    assert str(named.main.params[0].annotation) == str(rx.Tensor("2*k 4"))
    with pytest.raises(StableHloError, match=r"inputs\[0\] = 'k 5'; the module has '\? 4'\n  accepted: its known"):
        rx.from_stablehlo(text, inputs=["k 5", "4"])
    with pytest.raises(StableHloError, match="1 specs for 2 inputs\n  accepted: one for each"):
        rx.from_stablehlo(text, inputs=["k 4"])


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_known_integers_are_divided_by_zero_as_xla_divides(dtype: str) -> None:
    text = """func.func public @main(%x: tensor<4xi32>) -> tensor<4xi32> {
      %a = stablehlo.constant dense<5> : tensor<i32>
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %d = stablehlo.divide %a, %zero : tensor<i32>
      %r = stablehlo.remainder %a, %zero : tensor<i32>
      %s = stablehlo.add %d, %r : tensor<i32>
      %b = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<i32>) -> tensor<4xi32>
      %y = stablehlo.add %x, %b : tensor<4xi32>
      return %y : tensor<4xi32>
    }"""
    x = np.arange(4, dtype=dtype)
    module = rx.from_stablehlo(text.replace("i32", {"int32": "i32", "uint32": "ui32"}[dtype]))
    agrees(module, lambda x: x + 4, x)  # -1 + 5; XLA ends the process at the quotient


def test_an_exported_function_is_read_where_it_is_called() -> None:
    f = exported(mlp, "b, 4", WEIGHTS)
    module = rx.trace(lambda x: f.call(jnp.sin(x), WEIGHTS) * 2, "n 4")
    assert libraries(module) == [] and str(module.main.annotation) == str(rx.Tensor("n 3"))
    agrees(module, lambda x: mlp(jnp.sin(x), WEIGHTS) * 2, floats(3, 4))
    several = export.export(jax.jit(jnp.sin), platforms=("cpu", "cuda"))(jax.ShapeDtypeStruct((3, 3), np.float32))
    opaque = rx.trace(several.call, "3 3")
    assert libraries(opaque) == ["jax.call_exported"]


MODULE = "func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {{\n{}\n  return %a : tensor<4xf32>\n}}"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("no module {", "no StableHLO .*\n  accepted: the text or bytes of a module"),
        (b"ML\xefR nothing", "no StableHLO"),
        (b"\xff\xfe", "from_stablehlo: bytes of no module .*\n  accepted: the text or bytes"),
        ("missing.mlir", "from_stablehlo: cannot read missing.mlir: No such file"),
        ("", "from_stablehlo: got nothing to read\n  accepted: the text or bytes of a StableHLO module, a path"),
        (3, "from_stablehlo: got a int\n  accepted: the text or bytes of a StableHLO module, a path"),
        (MODULE.replace("public @main", "private @other").format(""), "without a function `main`, of 0 public"),
        (MODULE.format("%b = stablehlo.replica_id : tensor<ui32>\n  %c = stablehlo.replica_id : tensor<ui32>\n"
                       "  %d = stablehlo.custom_call @mine(%a) : (tensor<4xf32>) -> tensor<4xf32>"),
         r"main: 2 operations are not supported: stablehlo.custom_call @mine \(1\), stablehlo.replica_id \(2\)\n"),
        (MODULE.format('%c = stablehlo.constant dense<false> : tensor<i1>\n  stablehlo.custom_call @shape_assertion'
                       '(%c) {error_message = "no", has_side_effect = true} : (tensor<i1>) -> ()'), "asserts: no"),
        (MODULE.replace("f32", "f8E3M4").format(""), "elements of type f8E3M4\n  accepted: i1, "),
        (MODULE.format("%b = stablehlo.uniform_quantize %a : (tensor<4xf32>) -> "
                       "tensor<4x!quant.uniform<i8:f32, 0.5:3>>"),
         "elements of type !quant.uniform<i8:f32, 0.5:3>\n  accepted: i1, "),
    ],
)  # fmt: skip
def test_what_cannot_be_read_says_so(source: Any, text: str) -> None:
    with pytest.raises(StableHloError, match=text):
        rx.from_stablehlo(source)


def test_an_index_out_of_range_takes_the_last_branch() -> None:
    branches = ", ".join(f"{{\n  %{n} = stablehlo.constant dense<{n}> : tensor<i32>\n  stablehlo.return %{n} : "
                         "tensor<i32>\n}" for n in (10, 11, 12))  # fmt: skip
    text = f"""func.func public @main(%f: tensor<f32>) -> tensor<i32> {{
  %i = stablehlo.convert %f : (tensor<f32>) -> tensor<i32>
  %r = "stablehlo.case"(%i) ({branches}) : (tensor<i32>) -> tensor<i32>
  return %r : tensor<i32>
}}"""
    best = rx.optimize(rx.from_stablehlo(text))
    assert [int(best(np.float32(i))) for i in (-1, 0, 1, 2, 7)] == [12, 10, 11, 12, 12]


def rows_mixed(xs):
    return lax.fori_loop(0, 5, lambda i, c: c + xs[i] * xs[4 - i] + xs[0], jnp.zeros(2))


def counted_from_two(h):
    return lax.while_loop(lambda c: c[0] < 9, lambda c: (c[0] + 1, jnp.sin(c[1]) + c[0]), (2, h))[1]


def counted_in_twos(h):
    return lax.while_loop(lambda c: c[0] < 9, lambda c: (c[0] + 2, jnp.sin(c[1]) + c[0]), (0, h))[1]


def cells(w, h, xs, reverse=False):
    def step(c, x):
        c = jnp.tanh(c @ w + x["a"]) * x["b"]
        return c, {"sum": c.sum(-1), "all": c}

    return lax.scan(step, h, xs, reverse=reverse)


def backward_cells(w, h, xs):
    return cells(w, h, xs, reverse=True)


CELLS = floats(4, 4), floats(2, 4), {"a": floats(7, 2, 4), "b": floats(7, 1, 4)}
LOOPS = [
    (cells, CELLS, "scan", 0), (backward_cells, CELLS, "scan", 0),
    (lambda h: lax.fori_loop(0, 9, lambda i, c: jnp.sin(c) + i, h), (floats(3),), "scan", 0),
    (rows_mixed, (floats(5, 2),), "scan", 2), (counted_from_two, (floats(3),), "while_loop", 0),
    (counted_in_twos, (floats(3),), "while_loop", 0),
    (lambda h: lax.while_loop(lambda v: jnp.sum(v) < 50, lambda v: v * v + 1, h), (floats(3),), "while_loop", 0),
]  # fmt: skip


@pytest.mark.parametrize("case", LOOPS, ids=lambda c: c[0].__name__)
def test_a_loop_that_counts_is_a_scan(case: Any) -> None:
    """Rows that a step reads or writes at the count are those of the scan's arrays, so no slice of them is left."""
    f, args, kind, slices = case
    module = rx.from_stablehlo(exported(f, *args))
    ops = [e.op for g in module for e in g.expressions()]
    assert kind in ops and {"scan": "while_loop", "while_loop": "scan"}[kind] not in ops
    assert ops.count("dynamic_slice") == slices and "dynamic_update_slice" not in ops
    agrees(module, f, *args)


def test_a_gradient_of_a_scan_is_two_scans() -> None:
    def loss(w, h, xs):
        return jax.grad(lambda *a: jnp.sum(cells(*a)[1]["sum"] ** 2), argnums=(0, 2))(w, h, xs)

    module = rx.from_stablehlo(exported(loss, *CELLS))
    ops = [e.op for g in module for e in g.expressions()]
    assert ops.count("scan") == 2 and "while_loop" not in ops and "dynamic_slice" not in ops
    agrees(module, loss, *CELLS)


def test_normalisations_by_given_moments_and_names_of_pytorch() -> None:
    text = """
    func.func @main(%x: tensor<2x3xf32>, %s: tensor<3xf32>, %o: tensor<3xf32>, %m: tensor<3xf32>, %v: tensor<3xf32>)
        -> tensor<2x3xf32> {
      %0 = "stablehlo.batch_norm_inference"(%x, %s, %o, %m, %v) <{epsilon = 0.5 : f32, feature_index = 1 : i64}>
        : (tensor<2x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
      %1 = stablehlo.custom_call @mhlo.erf(%0) : (tensor<2x3xf32>) -> tensor<2x3xf32>
      return %1 : tensor<2x3xf32>
    }"""
    args = floats(2, 3), floats(3), floats(3), floats(3), floats(3) ** 2
    agrees(
        rx.from_stablehlo(text),
        lambda x, s, o, m, v: lax.erf((x - m) / jnp.sqrt(v + 0.5) * s + o),
        *args,
    )
