"""The kernels that XLA's compiler for GPUs is predicted to make, beside those that it makes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import relax_eg as rx
from benchmarks.gpu_fidelity import FUNCTIONS, as_written, fidelity_row
from benchmarks.gpu_functions import functions
from benchmarks.llama_layer import Layer, Widths
from relax_eg.driver.program_ends import traced_program
from relax_eg.extract.costs.cost import WholeCost
from relax_eg.extract.fusions.gpu_products import Product, parts_of_depth
from relax_eg.extract.kernels.cost import KernelCost
from relax_eg.extract.profiles.devices import PROFILES
from relax_eg.extract.report import price_program

pytestmark = pytest.mark.xla_defaults

with_plugin = pytest.mark.skipif(
    importlib.util.find_spec("jax_plugins") is None or importlib.util.find_spec("jax_plugins.xla_cuda12") is None,
    reason="relax-eg[cuda] is not installed",
)
NONE = rx.RuleSet("none")
WIDE = "1024 1024 @ bfloat16"


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) * 0.125) @ v


def rms(x: Any, scale: Any, w: Any) -> Any:
    return (x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale) @ w


def biased(x: Any, w: Any, b: Any) -> Any:
    return jax.nn.relu(x @ w + b)


def low_rank(x: Any, w: Any, a: Any, b: Any) -> Any:
    return x @ (w + a @ b)


def momentum(p: Any, m: Any, g: Any) -> Any:
    m = 0.9 * m + 0.1 * g
    return p - 0.01 * m, m


def norm(x: Any) -> Any:
    c = x - x.mean(-1, keepdims=True)
    return c / jnp.sqrt((c * c).mean(-1, keepdims=True) + 1e-6)


def pooled(table: Any, places: Any, ids: Any, w: Any) -> Any:
    """The sum over places asks for these innermost, so XLA reduces columns in the norms before it."""
    return encoded(table, places, ids, w).sum(1)


def encoded(table: Any, places: Any, ids: Any, w: Any) -> Any:
    x = norm(table[ids] + places[jnp.arange(ids.shape[1])])
    return norm(x + x @ w)


def stored_transposed(x: Any, q: Any, k: Any, v: Any) -> Any:
    return x @ q.T, x @ k.T, x @ v.T


def gelu(x: Any, w: Any, b: Any) -> Any:
    return jax.nn.gelu(x @ w + b, approximate=False)


HEADS = ("1 16 512 64 @ bfloat16",) * 3
PROGRAMS: tuple[tuple[Callable[..., Any], tuple[str, ...]], ...] = (
    (attention, HEADS),
    (rms, ("8 1024 @ bfloat16", "1024 @ bfloat16", WIDE)),
    (biased, (WIDE, WIDE, "1024 @ bfloat16")),
    (low_rank, (WIDE, WIDE, "1024 16 @ bfloat16", "16 1024 @ bfloat16")),
    (momentum, (WIDE,) * 3),
    (lambda a, b: jnp.trace(a @ b), (WIDE, WIDE)),
    (lambda a, b: jnp.sum(a * b.T), (WIDE, WIDE)),  # no kernel both transposes and reduces
    (lambda a, b: jnp.sum(a * b.T, 1), ("1024 1024",) * 2),
    (lambda a: jnp.sum(a.T, 1), ("1024 1024",)),
    (lambda a, b, c: a @ b + a @ c, (WIDE,) * 3),
    (pooled, ("1000 384", "512 384", "1 128 @ int32", "384 384")),
    (encoded, ("1000 384", "512 384", "1 128 @ int32", "384 384")),
    (stored_transposed, (WIDE,) * 4),
    (gelu, ("1 128 384", "384 1536", "1536")),
    (gelu, ("128 384", "384 1536", "1536")),
)


@with_plugin
@pytest.mark.parametrize(("fn", "specs"), PROGRAMS, ids=lambda x: getattr(x, "__name__", None))
def test_launches_and_bytes_are_those_that_xla_compiles(fn: Callable[..., Any], specs: tuple[str, ...]) -> None:
    best = rx.optimize(fn, *specs, rules=NONE, target="h100")
    (made,) = best.compile("h100").programs
    assert made.predicted is not None
    assert made.predicted.launches == made.launches
    assert made.predicted.bytes == pytest.approx(made.bytes, rel=0.01)


@with_plugin
def test_weights_that_a_convolution_reorders_are_temporaries() -> None:
    def convolved(x: Any, w: Any) -> Any:
        dims = ("NHWC", "HWIO", "NHWC")
        y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=dims)
        return jax.lax.conv_general_dilated(jax.nn.relu(y), w, (1, 1), "SAME", dimension_numbers=dims)

    best = rx.optimize(convolved, "1 7 7 512", "3 3 512 512", rules=NONE, target="h100")
    (made,) = best.compile("h100").programs
    assert made.predicted is not None and made.predicted.temporary_bytes is not None
    assert made.predicted.temporary_bytes == pytest.approx(made.temporary_bytes, rel=0.05)


@with_plugin
def test_matmuls_of_one_operand_are_joined() -> None:
    specs = ("8 1024 @ bfloat16", WIDE, WIDE, WIDE)
    best = rx.optimize(lambda x, q, k, v: (x @ q, x @ k, x @ v), *specs, rules=NONE, target="h100")
    (made,) = best.compile("h100").programs
    assert made.predicted is not None
    assert made.predicted.launches == made.launches == 4  # one matmul, and a kernel for each of its parts


@with_plugin
@pytest.mark.parametrize(("columns", "parts", "stored"), [(256, 4, 0), (16, 8, 1024 * (1024 + 16) * 2)])
def test_joined_matmuls_of_few_columns_store_their_operands_side_by_side(columns: int, parts: int, stored: int) -> None:
    specs = ("8 1024 @ bfloat16", WIDE, f"1024 {columns} @ bfloat16")
    best = rx.optimize(lambda x, w, a: (x @ w, x @ a), *specs, rules=NONE, target="h100")
    (made,) = best.compile("h100").programs
    assert made.predicted is not None
    assert made.predicted.launches == made.launches == 3 + (stored > 0)
    # The parts of the depth are float32.
    assert made.predicted.temporary_bytes == made.temporary_bytes == stored + parts * 8 * (1024 + columns) * 4


@with_plugin
@pytest.mark.parametrize("device", ["h100", "a100"])
def test_operands_are_stored_with_zeros_where_parts_do_not_divide_the_depth(device: str) -> None:
    best = rx.optimize(lambda x, w: x @ w, "256 5000", "5000 256", rules=NONE, target=device)
    (made,) = best.compile(device).programs
    assert made.predicted is not None
    assert made.predicted.launches == made.launches == 4  # zeros behind both, the parts, and their sum
    assert made.predicted.bytes == pytest.approx(made.bytes, rel=0.01)
    assert made.predicted.temporary_bytes == pytest.approx(made.temporary_bytes, rel=0.02)


@with_plugin
def test_joined_matmuls_begin_together() -> None:
    """What the second one's result becomes is held from there on, however late it is read."""

    def attended(x: Any, q: Any, k: Any, v: Any) -> Any:
        def heads(y: Any) -> Any:
            return y.reshape(16, 128, 12, 32).transpose(0, 2, 1, 3)

        weights = jax.nn.softmax(heads(x @ q) @ heads(x @ k).transpose(0, 1, 3, 2) * 0.1)
        return (weights @ heads(x @ v)).transpose(0, 2, 1, 3)

    best = rx.optimize(attended, "16 128 384", *("384 384",) * 3, rules=NONE, target="a100")
    (made,) = best.compile("a100").programs
    assert made.predicted is not None
    scores, values = 16 * 12 * 128 * 128 * 4, 16 * 128 * 384 * 4
    assert made.predicted.temporary_bytes == made.temporary_bytes == 2 * scores + values


@with_plugin
def test_values_lie_in_the_places_of_results_before_these_are_written() -> None:
    specs = ("8 4096", "4096", "4096 4096")
    best = rx.optimize(rms, *specs, rules=NONE, target="h100")
    (made,) = best.compile("h100").programs
    parts = 8  # of the depth; what they are computed from has the size of the result
    assert made.predicted is not None
    assert made.predicted.temporary_bytes == made.temporary_bytes == parts * 8 * 4096 * 4


@with_plugin
def test_temporaries_are_those_that_xla_compiles() -> None:
    best = rx.optimize(attention, *HEADS, rules=NONE, target="h100")
    (made,) = best.compile("h100").programs
    assert made.predicted is not None
    assert made.predicted.temporary_bytes == made.temporary_bytes == 2 * 16 * 512 * 512 * 2


def test_a_product_that_the_next_one_reads_is_a_temporary() -> None:
    best = rx.optimize(lambda a, b, c: (a @ b) @ c, *("2048 2048 @ bfloat16",) * 3, rules=NONE, target="h100")
    memory = best.report.after.memory
    assert memory is not None and memory.temporary == 2 * 2048 * 2048


@with_plugin
def test_parts_of_matmuls_are_stored_in_place_of_results() -> None:
    def gated(x: Any, w: Any, v: Any) -> Any:
        return jax.nn.silu(x @ w) * (x @ v)

    best = rx.optimize(gated, "8 4096 @ bfloat16", *("4096 14336 @ bfloat16",) * 2, rules=NONE, target="h100")
    (made,) = best.compile("h100").programs
    assert made.predicted is not None
    parts = 4  # of the depth, in float32
    assert made.predicted.temporary_bytes == made.temporary_bytes == 2 * parts * 8 * 14336 * 4


@with_plugin
@pytest.mark.parametrize("after_matmul", [True, False])
def test_tables_of_keys_are_turned_where_a_matmul_computes_them(after_matmul: bool) -> None:
    def scores(q: Any, x: Any, w: Any, cos: Any) -> Any:
        k = (x @ w).reshape(1, 512, 8, 64).transpose(0, 2, 1, 3) if after_matmul else q
        return q @ (k * cos).transpose(0, 1, 3, 2)

    specs = ("1 8 512 64 @ bfloat16", "512 1024 @ bfloat16", "1024 512 @ bfloat16", "512 64 @ bfloat16")
    best = rx.optimize(scores, *specs, rules=NONE, target="h100")
    (made,) = best.compile("h100").programs
    turned = [k for k in made.executables[0].launches if k.name.startswith("wrapped_transpose")]
    assert [k.bytes for k in turned] == [2 * 512 * 64 * 2] * after_matmul
    assert made.predicted is not None and made.predicted.launches - made.launches == int(after_matmul)  # keys are moved


def test_closed_forms_are_those_of_the_kernels() -> None:
    best = rx.optimize(attention, *("b 16 s 64 @ bfloat16",) * 3, rules=NONE, target="h100", at={"b": 1, "s": 2048})
    told = best.report.expressions["after"]
    assert best.report.after.launches == 3
    assert best.report.after.bytes == 2 * 2048 * 2048 * 16 * 2 * 2 + 4 * 2048 * 64 * 16 * 2
    assert told["launches"] == "3"


def test_parts_of_the_depth() -> None:
    few, many = Product(1, 8, 4096, 4096, 2, 2), Product(1, 4096, 4096, 4096, 2, 2)
    assert parts_of_depth(few, "h100", 132) == 8
    assert parts_of_depth(many, "h100", 132) == 1


def test_a_small_matrix_times_a_vector_is_a_sum() -> None:
    assert Product(1, 1, 1024, 4096, 2, 2).is_sum
    assert not Product(1, 1, 4096, 4096, 2, 2).is_sum
    assert Product(32, 1, 1025, 128, 2, 4).is_sum
    assert not Product(1, 2, 2, 2, 2, 2).is_sum


def test_fusions_are_known_of_cpus_and_gpus_and_of_whole_programs_only() -> None:
    assert WholeCost(PROFILES["h100"], {}).knows_fusions
    assert WholeCost(PROFILES["cpu"], {}).knows_fusions
    assert not KernelCost(PROFILES["h100"], {}).knows_fusions


def test_a_graph_replaces_launches() -> None:
    p = PROFILES["h100"]
    alone, graph = p.call(1e-3, False, 4), p.call(1e-3, False, 100)
    assert alone == 1e-3 + p.dispatch
    assert graph == pytest.approx(alone - 100 * (p.launch - p.graph_kernel) + p.graph_launch)
    off = p.in_mode(next(m for m in p.modes if m.name == "graphs off"))
    assert off.call(1e-3, False, 100) == alone
    short = p.in_mode(next(m for m in p.modes if m.name == "short graphs"))
    assert short.call(1e-3, False, 4) < alone
    assert PROFILES["cpu"].call(1e-3, False, 100) == PROFILES["cpu"].call(1e-3, False)


def test_a_flip_is_no_permutation_of_axes() -> None:
    """Its axes are those along which the order is reversed; the rest stays."""
    for axes in ((0,), (1,), (0, 1)):
        best = rx.optimize(lambda x, a=axes: jnp.flip(x, a) * 2, "4096 4096", target="h100", rules=NONE)
        moved = 2 * 4 * 4096**2 / PROFILES["h100"].bandwidth
        assert best.report.after.seconds > 0.8 * moved


@with_plugin
def test_kernels_that_are_executables_are_priced_as_xla_compiles_them() -> None:
    """The depth of both matmuls is cut into parts, which further kernels add up."""
    specs = ("4096 4096 @ bfloat16", "4096 4096 @ bfloat16", "4096 16 @ bfloat16")
    best = rx.optimize(lambda a, b, c: (a @ b) @ c, *specs, target="h100", execution="kernels")
    (made,) = best.compile("h100").programs
    assert made.execution == "kernels" and made.predicted is not None
    assert made.predicted.launches == made.launches == 4
    assert made.predicted.bytes == pytest.approx(made.bytes, rel=0.01)
    assert made.predicted.temporary_bytes == pytest.approx(made.temporary_bytes, rel=0.01)


def test_values_that_many_paths_lead_to_are_looked_at_once() -> None:
    """There are 2**100 paths to the first one."""

    def scaled(x: Any, s: Any) -> Any:
        for _ in range(100):
            s = s * 0.5 + jnp.maximum(s, 0.1) * s
        return jax.nn.softmax(x * s) * s

    module = traced_program(scaled, ("512 512", "512")).module
    cost = price_program(module.main, WholeCost(PROFILES["h100"], {}, {f.name: f for f in module}))
    assert cost.launches >= 1 and cost.seconds > 0


def test_of_programs_that_wait_for_dispatch_the_one_with_less_work_is_chosen() -> None:
    """Both products take less than their dispatch in either order, and one order has 64 times the work."""
    best = rx.optimize(
        lambda q, k, v: (q @ k.T) @ v,
        *("n 64",) * 3,
        at={"n": 4096},
        target="h100",
        execution="kernels",
        measure="off",
    )
    assert best.report.after.flops < best.report.before.flops / 32


@with_plugin
@pytest.mark.parametrize(
    ("rows", "dtype", "device"),
    [
        (1, "bfloat16", "a100"),  # keys and values are sums of products, computed where they are appended
        (1, "float32", "h100"),
        # Parts of a matmul are added up twice, and stored on an A100.
        pytest.param(8, "bfloat16", "rtx4090", marks=pytest.mark.slow),
        (8, "float32", "a100"),
        (0, "bfloat16", "a100"),  # keys are turned by the kernel that rotates them
    ],
)
def test_layers_of_a_decoder_have_the_kernels_that_xla_compiles(rows: int, dtype: str, device: str) -> None:
    layer = Layer(Widths(4096, 32, 8, 14336), dtype)
    kind, fn = ("decode", layer.decode) if rows else ("prefill", layer.prefill)
    at = {"b": rows, "t": 1024} if rows else {"b": 1, "s": 2048}
    best = rx.optimize(fn, *layer.specs(kind), rules=NONE, target=device, at=at, measure="off", dynamic="exact")
    (made,) = best.compile(device, at=at).programs
    assert made.predicted is not None
    assert made.predicted.launches == made.launches
    assert made.predicted.bytes == pytest.approx(made.bytes, rel=0.02)


# Of each kind of kernel that XLA makes beside an operator's own, and of what is taken in after an operator.
SMALL = (
    "softmax of long rows",
    "gradient of a lookup",
    "norm",
    "tanh of norms of columns",
    "batch norm",
    "unit rows of masked means",
    "running means",
    "sorted rows",
    "rows set",
    "sums by segments",
    "convolution, ReLU, means",
    "strided convolution, bias, ReLU",
    "two convolutions",
)


@with_plugin
@pytest.mark.parametrize("name", SMALL)
def test_small_functions_have_the_kernels_that_xla_compiles(name: str) -> None:
    (subject,) = (s for s in functions(("float32",)) if s.name == name)
    row = fidelity_row(subject, "h100", FUNCTIONS, as_written(subject, "h100"))
    assert not {"launches", "bytes"} & set(row.misses), row
