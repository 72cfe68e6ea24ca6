# ruff: noqa: F821  (the names in a tensor program are its own)
"""Tensor programs through Pallas: run in its interpreter, and lowered for GPUs, where none is."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from sampling import is_sampled

import relax_eg as rx
from benchmarks.triton import attention as benchmarked_attention
from benchmarks.triton import cases
from relax_eg import ir
from relax_eg.backend.kernels import InKernels, KernelRunner
from relax_eg.backend.pallas.choice import Pallas
from relax_eg.backend.pallas.plan import Unsuitable, pallas_plan
from relax_eg.backend.pallas.programs import lower_pallas
from relax_eg.backend.pallas.tiles import BlockModel, BlockSizes, Need
from relax_eg.ops.multiprocessors import MULTIPROCESSORS
from relax_eg.ops.triton import unsupported_reason
from relax_eg.tir import TensorProgram, evaluate

TOLERANCE = 2e-5  # of the largest element, in float32
DEVICE = MULTIPROCESSORS["h100"]


@rx.tensor_program
def decoded_matmul(
    X: rx.Buffer("n 32*g"), words: rx.Buffer("4*g m", "uint32"), scales: rx.Buffer("g m"), Y: rx.Buffer("n m")
):
    W = rx.script.local("32*g m")
    nibble = (words[i // 8, j] >> cast(index(i % 8 * 4), "uint32")) & const(15, "uint32")
    W[i, j] = (cast(nibble, "float32") - 8.0) * scales[i // 32, j]
    Y[i, j] = rx.sum(X[i, k] * W[k, j], over=(k, 32 * g))


@rx.tensor_program
def attention(
    Q: rx.Buffer("2*g n d"), K: rx.Buffer("g m d"), V: rx.Buffer("g m e"), C: rx.Buffer(""), Y: rx.Buffer("2*g n e")
):
    S = rx.script.local("2*g n m")
    S[a, i, j] = rx.sum(Q[a, i, k] * K[a // 2, j, k], over=(k, d)) * C[()]
    L = rx.script.local("2*g n m")
    L[a, i, j] = select(i + 40 >= j, S[a, i, j], const(-1e30, "float32"))
    M = rx.script.local("2*g n")
    M[a, i] = rx.max(L[a, i, j], over=(j, m))
    E = rx.script.local("2*g n m")
    E[a, i, j] = exp(L[a, i, j] - M[a, i])
    T = rx.script.local("2*g n")
    T[a, i] = rx.sum(E[a, i, j], over=(j, m))
    P = rx.script.local("2*g n m")
    P[a, i, j] = E[a, i, j] / T[a, i]
    Y[a, i, j] = rx.sum(P[a, i, k] * V[a // 2, k, j], over=(k, m))


@rx.tensor_program
def split_k(X: rx.Buffer("n 192"), W: rx.Buffer("192 m"), Y: rx.Buffer("n m")):
    P = rx.script.workspace("6 n m")
    P[s, i, j] = rx.sum(X[i, s * 32 + k] * W[s * 32 + k, j], over=(k, 32))
    Y[i, j] = rx.maximum(rx.sum(P[s, i, j], over=(s, 6)), 0.0)


@rx.tensor_program
def normed_lookup(
    X: rx.Buffer("n k"), codes: rx.Buffer("k m", "uint8"), table: rx.Buffer("16"), Y: rx.Buffer("n m", "float16")
):
    R = rx.script.local("n")
    R[i] = rsqrt(rx.sum(X[i, c] * X[i, c], over=(c, k)))
    low = cast(codes[c, j] & const(15, "uint8"), "int32")
    Y[i, j] = cast(rx.sum(X[i, c] * R[i] * table[low], over=(c, k)), "float16")


CASES: list[tuple[TensorProgram, dict[str, int]]] = [
    (decoded_matmul, {"n": 1, "g": 1, "m": 5}),
    (decoded_matmul, {"n": 3, "g": 3, "m": 70}),
    (decoded_matmul, {"n": 70, "g": 2, "m": 129}),
    (attention, {"g": 2, "n": 1, "m": 7, "d": 8, "e": 8}),
    (attention, {"g": 1, "n": 67, "m": 150, "d": 24, "e": 20}),
    (attention, {"g": 1, "n": 3, "m": 65, "d": 300, "e": 270}),
    (split_k, {"n": 1, "m": 5}),
    (split_k, {"n": 67, "m": 70}),
]


@rx.tensor_program
def by_groups(
    X: rx.Buffer("n g 12"), codes: rx.Buffer("g 12 m", "uint8"), scales: rx.Buffer("g m"), Y: rx.Buffer("n m")
):
    Y[i, j] = rx.sum(X[i, b, k] * cast(codes[b, k, j], "float32") * scales[b, j], over=((b, g), (k, 12)))


LOOKUP = (normed_lookup, {"n": 37, "k": 62, "m": 73})


def arguments(program: TensorProgram, sizes: dict[str, int], seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    found: list[Any] = []
    for b in program.inputs:
        shape = tuple(d.evaluate(sizes) for d in b.shape)
        if b.dtype.startswith("uint"):
            found.append(rng.integers(0, np.iinfo(b.dtype).max, shape, dtype=b.dtype))
        else:
            found.append(np.asarray(rng.normal(size=shape), b.dtype))
    return found


def pallas_free_shapes(jaxpr: Any) -> Iterator[tuple[int, ...]]:
    """The shapes of what is computed outside of kernels."""
    for eqn in jaxpr.eqns:
        yield from (v.aval.shape for v in eqn.outvars)
        if eqn.primitive.name != "pallas_call":
            for inner in jaxprs_in_params(eqn.params):
                yield from pallas_free_shapes(inner)


def assert_close(got: Any, want: Any) -> None:
    np.testing.assert_allclose(got, want, atol=TOLERANCE * float(np.nanmax(np.abs(want))))


@pytest.mark.parametrize(("program", "sizes"), CASES, ids=lambda x: str(getattr(x, "name", "")))
def test_the_interpreter_computes_what_the_reference_does(program: TensorProgram, sizes: dict[str, int]) -> None:
    args = arguments(program, sizes)
    (got,) = jax.jit(lower_pallas(program, sizes, DEVICE, interpret=True).run)(*args)
    assert_close(got, evaluate(program, args, sizes)[0])


def test_sums_over_several_loops() -> None:
    sizes = {"n": 3, "g": 5, "m": 40}
    args = arguments(by_groups, sizes)
    (got,) = lower_pallas(by_groups, sizes, DEVICE, interpret=True).run(*args)
    assert_close(got, evaluate(by_groups, args, sizes)[0])


def test_random_sizes() -> None:
    rng = np.random.default_rng(7)
    for seed in range(3):
        sizes = {"n": int(rng.integers(1, 40)), "k": int(rng.integers(17, 90)), "m": int(rng.integers(17, 100))}
        args = arguments(normed_lookup, sizes, seed)
        (got,) = lower_pallas(normed_lookup, sizes, DEVICE, interpret=True).run(*args)
        want = evaluate(normed_lookup, args, sizes)[0]
        np.testing.assert_allclose(got, want, atol=2e-3 * float(np.max(np.abs(want))))


lowers_without_gpu = pytest.mark.skipif(
    tuple(map(int, jaxlib.__version__.split(".")[:3])) > (0, 10, 2),
    reason="lowering compiles Triton's code there, which takes JAX's plugin for GPUs",
)


@lowers_without_gpu
@pytest.mark.parametrize(("program", "sizes"), [*CASES[2::3], LOOKUP], ids=lambda x: str(getattr(x, "name", "")))
def test_it_is_lowered_for_gpus_where_none_is(program: TensorProgram, sizes: dict[str, int]) -> None:
    lowered = lower_pallas(program, sizes, DEVICE)
    traced = jax.jit(lowered.run).trace(*arguments(program, sizes))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("triton") >= len(pallas_plan(program, sizes, DEVICE).kernels)
    assert "stablehlo.dot_general" not in text and "stablehlo.reduce" not in text, "something is left to XLA"


@lowers_without_gpu
@pytest.mark.parametrize(
    ("dtype", "one_in"),
    [("bfloat16", 3), *(pytest.param(d, 1, marks=pytest.mark.slow) for d in ("bfloat16", "float16", "float32"))],
)
def test_what_is_not_left_out_is_lowered(dtype: str, one_in: int) -> None:
    """Every scalar function, cast and reduction, and attention; `python -m benchmarks.triton` compiles them too."""
    found = 0
    for name, _, program in cases([dtype]):
        if unsupported_reason(program) or not is_sampled(name, one_in):
            continue
        found += 1
        run = lower_pallas(program, {}, DEVICE).run
        shapes = [jax.ShapeDtypeStruct(tuple(d.const for d in b.shape), b.dtype) for b in program.inputs]
        with jax.enable_x64(True):
            text = jax.jit(run).trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()
        assert "triton" in text, name
    assert found > 60 // one_in


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_attention_in_sixteen_bits(dtype: str) -> None:
    program, rng = benchmarked_attention(dtype), np.random.default_rng(3)
    args = [jnp.asarray(rng.normal(size=(64, 64)) / 2, dtype) for _ in program.inputs]
    got = np.asarray(lower_pallas(program, {}, DEVICE, interpret=True).run(*args)[0], "float32")
    wide = [np.asarray(a, "float32") for a in args]
    scores = np.exp(wide[0] @ wide[1].T)
    np.testing.assert_allclose(got, scores / scores.sum(1, keepdims=True) @ wide[2], atol=0.05)


def test_what_triton_does_not_compile_is_xlas_and_priced_so() -> None:
    """Attention with scores through erf, which Pallas does not lower, has its scores in memory."""

    def capped(act: Any) -> Any:
        return lambda q, k, v: jax.nn.softmax(act(q @ k.transpose(0, 2, 1))) @ v

    specs, at = ("16 s 64",) * 3, {"s": 2048}
    plain, special = (in_kernels(capped(act), specs, at) for act in (jnp.tanh, jax.scipy.special.erf))
    scores = 4 * 16 * 2048**2  # bytes
    assert plain.report.after.launches == 1 and plain.report.after.bytes < scores
    assert special.report.after.launches == 2 and special.report.after.bytes > 2 * scores


def test_rows_that_are_masked_throughout_and_values_that_are_none() -> None:
    sizes = {"g": 1, "n": 3, "m": 70, "d": 8, "e": 8}
    q, k, v, scale = arguments(attention, sizes)
    q, k, scale = np.abs(q), np.abs(k), np.ones_like(scale)
    q[0, 0], q[1, 1, 2] = -np.inf, np.nan
    q[0, 1] = -np.inf
    k[0, 65] = np.inf
    (got,) = lower_pallas(attention, sizes, DEVICE, interpret=True).run(q, k, v, scale)
    with np.errstate(all="ignore"):
        want = evaluate(attention, [q, k, v, scale], sizes)[0]
    assert 0 < np.isnan(want).mean() < 1
    np.testing.assert_allclose(got, want, atol=TOLERANCE)


@rx.tensor_program
def plain(X: rx.Buffer("n 64"), W: rx.Buffer("64 m"), Y: rx.Buffer("n m")):
    Y[i, j] = rx.sum(X[i, k] * (W[k, j] + 1.0), over=(k, 64))


def test_what_is_left_to_xla_says_why() -> None:
    def chosen(model: BlockModel) -> tuple[BlockSizes, Need]:
        raise AssertionError("blocks are chosen although nothing goes through Pallas")

    with pytest.raises(Unsuitable, match="no decoded operand, no softmax before a contraction, no workspace"):
        pallas_plan(plain, {"n": 8, "m": 8}, DEVICE, chosen)
    with pytest.raises(Unsuitable, match="X has 0 elements"):
        pallas_plan(decoded_matmul, {"n": 0, "g": 1, "m": 4}, DEVICE)


def quantised(x: Any, words: Any, scales: Any) -> Any:
    nibbles = (words[:, None] >> (jnp.arange(8, dtype="uint32") * 4)[:, None]) & 15
    weight = nibbles.reshape(-1, words.shape[1]).astype("float32") - 8.0
    return x @ (weight.reshape(-1, 32, words.shape[1]) * scales[:, None]).reshape(weight.shape)


def causal(q: Any, k: Any, v: Any) -> Any:
    seen = jnp.arange(q.shape[1])[:, None] >= jnp.arange(k.shape[1])
    return jax.nn.softmax(jnp.where(seen, q @ k.transpose(0, 2, 1) * 0.25, -jnp.inf)) @ v


def in_kernels(fn: Any, specs: Sequence[str], at: dict[str, int]) -> InKernels:
    best = rx.optimize(fn, *specs, at=at, execution="kernels", target="h100")
    assert isinstance(best, InKernels)
    return best


def test_a_decoded_weight_is_never_in_memory() -> None:
    best = in_kernels(quantised, ("n 256", "32 96 @ uint32", "8 96"), {"n": 5})
    rng = np.random.default_rng(0)
    args = (
        rng.normal(size=(5, 256)).astype("float32"),
        rng.integers(0, 2**32, (32, 96), dtype="uint32"),
        rng.normal(size=(8, 96)).astype("float32"),
    )
    pallas = Pallas(interpret=True)
    runner = KernelRunner(best.module, pallas=pallas)
    got = runner.run([jnp.asarray(a) for a in args], {"n": 5})
    assert_close(got, quantised(*args))
    assert list(pallas.taken.values()) == ["a contraction with a decoded operand"] and not pallas.left
    (kernel,) = runner.kernels()
    program = kernel.attr("program").value
    traced = jax.make_jaxpr(lower_pallas(program, {"n": 5}, DEVICE, interpret=True).run)
    shapes = [jax.ShapeDtypeStruct(tuple(d.evaluate({"n": 5}) for d in b.shape), b.dtype) for b in program.inputs]
    assert max(np.prod(shape) for shape in pallas_free_shapes(traced(*shapes).jaxpr)) < 256 * 96
    # And priced so: what moves is less than the decoded weight.
    assert best.report.after.bytes < 4 * 256 * 96


def averaged(x: Any, v: Any) -> Any:
    return jax.nn.softmax(x) @ v


@pytest.mark.parametrize(
    ("fn", "specs", "why"),
    [
        (causal, ("4 s 16", "4 s 16", "4 s 16"), "a softmax between contractions"),
        (averaged, ("s 200", "200 20"), "a softmax before a contraction"),
    ],
    ids=("attention", "averaged"),
)
def test_a_softmax_is_one_pass(fn: Any, specs: tuple[str, ...], why: str) -> None:
    best = in_kernels(fn, specs, {"s": 70})
    shapes = [tuple(70 if n == "s" else int(n) for n in spec.split()) for spec in specs]
    args = [jnp.asarray(np.random.default_rng(n).normal(size=s), "float32") for n, s in enumerate(shapes)]
    pallas = Pallas(interpret=True)
    got = KernelRunner(best.module, pallas=pallas).run(args, {"s": 70})
    assert_close(got, fn(*args))
    assert list(pallas.taken.values()) == [why] and not pallas.left


def test_xla_has_what_does_not_compile(caplog: pytest.LogCaptureFixture) -> None:
    best = in_kernels(quantised, ("n 64", "8 24 @ uint32", "2 24"), {"n": 3})
    args = [jnp.ones((3, 64)), jnp.full((8, 24), 0x12345678, "uint32"), jnp.ones((2, 24))]
    pallas = Pallas()  # as on a GPU, which is not here
    runner = KernelRunner(best.module, pallas=pallas)
    with caplog.at_level(logging.WARNING, "relax_eg"):
        assert_close(runner.run(args, {"n": 3}), quantised(*args))
    assert "is left to XLA: Pallas failed: ValueError: Only interpret mode is supported on CPU" in caplog.text
    assert not pallas.taken and len(pallas.left) == 1


def test_profiles_say_who_gets_it(tmp_path: Path) -> None:
    best = in_kernels(quantised, ("n 64", "8 24 @ uint32", "2 24"), {"n": 3})
    best.save(tmp_path / "q.rxe")
    loaded = rx.load(tmp_path / "q.rxe")
    assert isinstance(loaded, InKernels) and best.pallas and loaded.pallas
    assert best.runner.pallas is None or jax.default_backend() == "gpu"
    assert Pallas.for_default_device(False) is None
    exact = rx.optimize(best.module, execution="kernels", target="h100", numerics="exact", at={"n": 3})
    assert exact.report.kept_as_written and exact.report.execution == "whole"  # without Pallas it is XLA's as written


def test_a_workspace_is_written_by_one_kernel_and_read_by_another() -> None:
    x, w = ir.var("x", ir.Tensor("n 192")), ir.var("w", ir.Tensor("192 70"))
    module = rx.types.Module((ir.pure_function("main", [x, w], [ir.call_tir(split_k, [x, w])]),))
    best = rx.optimize(module, execution="kernels", target="h100", at={"n": 2})
    args = [jnp.asarray(a) for a in arguments(split_k, {"n": 2, "m": 70})]
    pallas = Pallas(interpret=True)
    got = KernelRunner(best.module, pallas=pallas).run(args, {"n": 2})
    assert_close(got, jnp.maximum(args[0] @ args[1], 0))
    assert list(pallas.taken.values()) == ["a reduction split over a workspace"] and not pallas.left
