"""Operations of StableHLO: those that JAX writes of its own functions, and those that other exporters write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import relax_eg as rx
from relax_eg.errors import StableHloError
from relax_eg.frontends.stablehlo.sizes import Open, scalar
from tests.frontends.test_stablehlo import agrees, exported, floats, libraries

KEYS = floats(5, 4).round()
PLACES = np.array([3, 1, 1], np.int32)


def pooled(x: Any, kind: Any = lax.max, start: float = -np.inf) -> Any:
    return lax.reduce_window(x, start, kind, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def pool_slope(x):
    return jax.grad(lambda x: jnp.sum(pooled(x) ** 2))(x)


def accumulated(x):
    return lax.cumsum(x, 0), lax.cumprod(x, 1), lax.cummax(x, 0, reverse=True), lax.cummin(x, 1), lax.cumsum(x.T, 1)


def log_sums(x):
    return lax.cumlogsumexp(x, 0)


def subtracted(x):
    return x.at[PLACES].subtract(x[:3])


def applied(x):
    return x.at[PLACES, 0].apply(lambda v: v * v + 1), x.at[PLACES[:2]].apply(jnp.sin, unique_indices=True)


def recomputed(x):
    return jax.grad(lambda x: jnp.sum(jax.checkpoint(lambda v: jnp.sin(jnp.tanh(v @ v.T)))(x)))(x)


def special(x):
    y = jnp.abs(x) + 1.5
    return (
        jax.scipy.special.i1e(x),
        jax.scipy.special.polygamma(1, y),
        jax.scipy.special.zeta(y, y),
        jnp.nextafter(x, y),
    )


def conjugated(x):
    return jnp.conj(x + 2j * x), jnp.isinf(1 / x), jnp.isposinf(1 / x)


def greatest(x):
    return lax.approx_max_k(x, 2), lax.approx_min_k(x, 2)


def convolved(x):
    x = x.reshape(1, 5, 4, 1)
    return lax.conv_general_dilated(
        x, x[0, :3, :3, :, None], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


WRITTEN: list[tuple[Callable[..., Any], Any, list[str]]] = [
    (pool_slope, floats(2, 6, 7, 3), []), (accumulated, floats(5, 4), []),
    (log_sums, floats(5, 4), ["jax.reduce_window"]), (subtracted, floats(5, 4), []),
    (applied, floats(5, 4), ["jax.scatter"]), (recomputed, floats(3, 4), []),
    (special, floats(5, 4), []), (conjugated, KEYS, []), (greatest, floats(5, 4), []), (convolved, floats(5, 4), []),
]  # fmt: skip


@pytest.mark.parametrize(("f", "x", "calls"), WRITTEN, ids=lambda v: getattr(v, "__name__", ""))
def test_what_jax_writes(f: Callable[..., Any], x: Any, calls: list[str]) -> None:
    module = rx.from_stablehlo(exported(f, x))
    agrees(module, f, x)
    assert libraries(module) == calls


def test_a_cumulative_window_is_a_cumulative_sum() -> None:
    for shape in (floats(5, 4), "n, 4"):
        ops = [e.op for e in rx.from_stablehlo(exported(accumulated, shape)).main.expressions()]
        assert {"cumsum", "cumprod", "cummax", "cummin"} <= set(ops) and "reduce_window" not in ops


@pytest.mark.parametrize("place", [-9, -6, -1, 0, 3, 8])
def test_slices_begin_inside(place: int) -> None:
    """A start before the first element is the first one; JAX counts such starts from the end, before it writes them."""

    def f(x, i):
        part = lax.dynamic_slice(x, (i, 0), (2, 4), allow_negative_indices=False)
        return part, lax.dynamic_slice(x, (i, 0), (2, 4)), lax.dynamic_update_slice(x, 2 * part, (i, i))

    x = floats(5, 4), np.int32(place)
    agrees(rx.from_stablehlo(exported(f, *x)), f, *x)


def test_precision_is_kept() -> None:
    def f(x):
        y = lax.conv(x[None, None], x[None, None, :2, :2], (1, 1), "SAME", precision="highest")
        return jnp.matmul(x, x, precision=("default", "highest")), y

    (product, convolution) = [
        e for e in rx.from_stablehlo(exported(f, floats(4, 4))).main.expressions() if e.op in ("matmul", "conv")
    ]
    traced = [e for e in rx.trace(f, "4 4").main.expressions() if e.op in ("matmul", "conv")]
    assert [product.attr("precision"), convolution.attr("precision")] == [e.attr("precision") for e in traced]
    assert convolution.attr("precision") == "highest"


# --- sizes ---


def image(x, w):
    y = lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return pooled(y), pooled(y, lax.add, 0.0)


@pytest.mark.parametrize("size", [5, 6, 7, 8])
def test_padding_of_unknown_sizes(size: int) -> None:
    """`"SAME"` pads by quotients of negative numbers, which XLA rounds to 0."""
    w = floats(3, 3, 2, 4)
    module = rx.from_stablehlo(exported(image, "b, h, w, 2", w))
    agrees(module, image, floats(1, size, size + 1, 2), w)


@pytest.mark.parametrize("n", [4, 5, 6, 7])
def test_quotients_of_negative_sizes(n: int) -> None:
    def f(x):
        return x[: x.shape[0] + (-x.shape[0]) // 3], x[(-x.shape[0]) % 3 :]

    agrees(rx.from_stablehlo(exported(f, "n")), f, floats(n))


def test_what_sizes_do_not_decide_is_open() -> None:
    n, k = export.symbolic_shape("n, k")
    for a in (n, -n, n - 3, n - k, 5, -5):
        for b in (2, 3, 1):
            quotient, rest = scalar("divide", a, b), scalar("remainder", a, b)
            down = scalar("and", scalar("NE", scalar("sign", a), scalar("sign", b)), scalar("NE", rest, 0))
            assert scalar("select", down, scalar("subtract", quotient, 1), quotient) == a // b
            up = scalar("and", scalar("NE", scalar("LT", rest, 0), scalar("LT", b, 0)), scalar("NE", rest, 0))
            assert scalar("select", up, scalar("add", rest, b), rest) == a % b
    assert scalar("NE", n % 2, 0) == Open("NE", (n % 2, 0)) and scalar("EQ", n, k) == Open("EQ", (n, k))
    assert scalar("EQ", n + 1, n) is False and scalar("NE", n, n) is False
    assert scalar("and", scalar("EQ", n, k), False) is False and scalar("or", True, scalar("EQ", n, k)) is True


def test_a_choice_by_an_open_value_is_made_when_the_program_runs() -> None:
    text = """func.func @main(%x: tensor<?xf32>) -> tensor<i32> {
      %n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?xf32>) -> tensor<i32>
      %three = stablehlo.constant dense<3> : tensor<i32>
      %rest = stablehlo.remainder %n, %three : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %is = stablehlo.compare EQ, %rest, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %y = stablehlo.select %is, %n, %three : tensor<i1>, tensor<i32>
      return %y : tensor<i32>
    }"""
    for n in (3, 4, 5):
        agrees(rx.from_stablehlo(text), lambda x: np.int32(x.size if x.size % 3 == 1 else 3), floats(n))


# --- sorts ---


def sort_text(comparison: str, count: int = 1) -> str:
    pairs = ", ".join(f"%p{i}: tensor<f32>, %q{i}: tensor<f32>" for i in range(count))
    kinds, names = ", ".join(["tensor<5x4xf32>"] * count), [f"%x{i}" for i in range(count)]
    body = "\n".join(
        f"%{line.split(' = ')[0]} = stablehlo.{line.split(' = ')[1]}" if " = " in line else line
        for line in comparison.split("; ")
    )
    for word in ("LT", "LE", "GT", "EQ"):
        body = body.replace(f"stablehlo.{word} ", f"stablehlo.compare {word}, ")
    lines = [
        f"{line} : (tensor<f32>, tensor<f32>) -> tensor<i1>" if "compare" in line else
        f"{line} : tensor<{'i1' if any(w in line for w in (' = stablehlo.and', '.or', '.not')) else 'f32'}>"
        for line in body.splitlines()
    ]  # fmt: skip
    last = lines[-1].split(" = ")[0]
    result = f"%y:{count}" if count > 1 else "%y"
    given = ", ".join(f"%y#{i}" for i in range(count)) if count > 1 else "%y"
    return f"""func.func @main({", ".join(f"{n}: tensor<5x4xf32>" for n in names)}) -> ({kinds}) {{
      {result} = "stablehlo.sort"({", ".join(names)}) <{{dimension = 0 : i64, is_stable = true}}> ({{
      ^bb0({pairs}):
        {chr(10).join(lines)}
        stablehlo.return {last} : tensor<i1>
      }}) : ({kinds}) -> ({kinds})
      return {given} : {kinds}
    }}"""


def by(*keys: Callable[..., Any], falls: tuple[bool, ...] = ()) -> Callable[..., Any]:
    """Sorts by keys of the arrays, the first one first."""

    def run(*xs: Any) -> tuple[Any, ...]:
        for key, falling in reversed([*zip(keys, falls or (False,) * len(keys), strict=True)]):
            order = jnp.argsort(key(*xs), axis=0, stable=True, descending=falling)
            xs = tuple(jnp.take_along_axis(x, order, 0) for x in xs)
        return xs

    return run


COMPARISONS = [
    ("a = LT %p0, %q0", 1, by(lambda x: x)),
    ("a = GT %q0, %p0", 1, by(lambda x: x)),
    ("a = GT %p0, %q0", 1, by(lambda x: x, falls=(True,))),
    ("u = negate %p0; v = negate %q0; a = LT %u, %v", 1, by(lambda x: x, falls=(True,))),
    ("u = abs %p0; v = abs %q0; a = LE %u, %v", 1, by(jnp.abs)),
    ("a = LT %p1, %q1", 2, by(lambda x, y: y)),
    ("a = LE %q0, %p0; b = not %a", 1, by(lambda x: x)),
    ("a = LT %p0, %q0; e = EQ %p0, %q0; b = GT %p1, %q1; c = and %b, %e; d = or %a, %c", 2,
     by(lambda x, y: x, lambda x, y: y, falls=(False, True))),
    ("a = LT %p0, %q0; e = EQ %p0, %q0; u = abs %p1; v = abs %q1; b = LT %u, %v; c = and %e, %b; d = or %c, %a", 2,
     by(lambda x, y: x, lambda x, y: jnp.abs(y))),
]  # fmt: skip


@pytest.mark.parametrize(("comparison", "count", "wanted"), COMPARISONS)
def test_sorts_by_what_is_compared(comparison: str, count: int, wanted: Callable[..., Any]) -> None:
    module = rx.from_stablehlo(sort_text(comparison, count))
    agrees(module, wanted, *[KEYS, floats(5, 4)][:count])
    assert libraries(module) == []


def _chained(step: Callable[[str], str], count: int) -> str:
    """The comparison of what `count` steps make of either element."""
    sides = (
        [f"{v}{i + 1} = {step(f'%{v}{i}' if i else of)}" for i in range(count)]
        for v, of in (("u", "%p0"), ("v", "%q0"))
    )
    return "; ".join([*(line for side in sides for line in side), f"a = LT %u{count}, %v{count}"])


@pytest.mark.parametrize(
    "comparison",
    [
        "a = LT %p0, %q1; b = EQ %p1, %q1; c = or %a, %b",  # two different arrays
        "a = EQ %p0, %q0; b = EQ %p1, %q1; c = or %a, %b",  # no order
        "a = LT %p0, %q0; b = LT %p1, %q1; c = or %a, %b",  # none that one key decides
        "a = LT %p0, %p0; b = LT %p1, %q1; c = or %a, %b",
        _chained(lambda x: f"add {x}, {x}", 60),  # as a tree, of 2 ** 60 operations
        _chained(lambda x: f"negate {x}", 1000),  # deeper than Python's limit of recursion
    ],
)
def test_a_comparison_that_is_no_order_is_refused(comparison: str) -> None:
    with pytest.raises(StableHloError, match=r"sort by a comparison that is no order by keys\n  accepted: comparisons"):
        rx.from_stablehlo(sort_text(comparison, 2))


# --- what other exporters write ---

X, W = "tensor<5x4xf32>", "tensor<4x3xf32>"
SCALARS = "%p: tensor<f32>, %q: tensor<f32>"
OTHERS: list[tuple[str, Callable[..., Any], list[Any]]] = [
    (f"%0 = stablehlo.dot %a, %b : ({X}, {W}) -> tensor<5x3xf32>", jnp.matmul, [floats(5, 4), floats(4, 3)]),
    (f'%0 = "stablehlo.einsum"(%a, %b) <{{einsum_config = "ij,jk->ki"}}> : ({X}, {W}) -> tensor<3x5xf32>',
     lambda a, b: (a @ b).T, [floats(5, 4), floats(4, 3)]),
    (f'%0 = "stablehlo.torch_index_select"(%a, %b) <{{dim = 0 : i64, batch_dims = 0 : i64}}> '
     f": ({X}, tensor<3xi32>) -> tensor<3x4xf32>", lambda a, i: a[i], [floats(5, 4), PLACES]),
    (f'%0 = "stablehlo.map"(%a) <{{dimensions = array<i64: 0, 1>}}> ({{ ^bb0(%p: tensor<f32>):\n'
     f"  %s = stablehlo.sine %p : tensor<f32>\n  stablehlo.return %s : tensor<f32> }}) : ({X}) -> {X}", jnp.sin,
     [floats(5, 4)]),
    ("%0 = stablehlo.power %a, %b : tensor<5xi32>", lambda a, b: np.array([49, -1, 0, 1, 1], np.int32),
     [np.array([7, -1, 2, 1, 0], np.int32), np.array([2, -3, -1, -2, 0], np.int32)]),
    (f"%t = stablehlo.tuple %a, %a : tuple<{X}, {X}>\n"
     f"%0 = stablehlo.get_tuple_element %t[1] : (tuple<{X}, {X}>) -> {X}", lambda a: a, [floats(5, 4)]),
    (f"%0 = stablehlo.custom_call @mhlo.topk(%a) {{mhlo.attributes = {{k = 2 : i64, largest = true}}}} : ({X}) -> "
     "(tensor<5x2xf32>, tensor<5x2xi32>)", lambda a: lax.top_k(a, 2), [floats(5, 4)]),
    (f"%0 = stablehlo.custom_call @mhlo.topk(%a) {{mhlo.attributes = {{k = 2 : i64, largest = false}}}} : ({X}) -> "
     "(tensor<5x2xf32>, tensor<5x2xi32>)", lambda a: (jnp.sort(a)[:, :2], jnp.argsort(a)[:, :2]), [floats(5, 4)]),
    (f"%0 = chlo.broadcast_subtract %a, %b : ({X}, tensor<4xf32>) -> {X}", jnp.subtract, [floats(5, 4), floats(4)]),
    (f"%0 = chlo.broadcast_compare %a, %b {{comparison_direction = #chlo<comparison_direction GT>}} : "
     f"({X}, tensor<4xf32>) -> tensor<5x4xi1>", jnp.greater, [floats(5, 4), floats(4)]),
    ('%0 = "stablehlo.batch_norm_grad"(%a, %b, %c, %d, %e) <{epsilon = 0.5 : f32, feature_index = 1 : i64}> : '
     f"({X}, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, {X}) -> ({X}, tensor<4xf32>, tensor<4xf32>)",
     lambda x, s, m, v, g: jax.vjp(lambda x, s, o: (x - x.mean(0)) / jnp.sqrt(x.var(0) + 0.5) * s + o, x, s, m)[1](g),
     [MOMENTS := floats(5, 4), floats(4), MOMENTS.mean(0), MOMENTS.var(0), floats(5, 4)]),
    ("""%0 = "stablehlo.convolution"(%a, %b) <{window_strides = array<i64: 1>, padding = dense<1> : tensor<1x2xi64>,
      window_reversal = array<i1: true>, dimension_numbers = #stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>,
      feature_group_count = 1 : i64, batch_group_count = 1 : i64}> : (tensor<1x6x2xf32>, tensor<3x2x4xf32>)
      -> tensor<1x6x4xf32>""",
     lambda a, b: lax.conv_general_dilated(a, b[::-1], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")),
     [floats(1, 6, 2), floats(3, 2, 4)]),
    ("""%0 = "stablehlo.scatter"(%a, %b, %c, %d, %e) <{scatter_dimension_numbers = #stablehlo.scatter<
      update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0],
      index_vector_dim = 1>}> ({
      ^bb0(%p: tensor<f32>, %q: tensor<i32>, %r: tensor<f32>, %s: tensor<i32>):
       %1 = stablehlo.add %p, %r : tensor<f32>
       %2 = stablehlo.maximum %q, %s : tensor<i32>
       stablehlo.return %1, %2 : tensor<f32>, tensor<i32>
      }) : (tensor<5x4xf32>, tensor<5x4xi32>, tensor<3xi32>, tensor<3x4xf32>, tensor<3x4xi32>)
      -> (tensor<5x4xf32>, tensor<5x4xi32>)""",
     lambda a, b, i, u, v: (a.at[i].add(u), b.at[i].max(v)),
     [jnp.ones((5, 4)), jnp.zeros((5, 4), int), PLACES, floats(3, 4), np.arange(12, dtype=np.int32).reshape(3, 4)]),
    ("""%z = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %o = stablehlo.constant dense<0> : tensor<i32>
      %0:2 = "stablehlo.reduce_window"(%a, %b, %z, %o) <{window_dimensions = array<i64: 1, 2>,
        window_strides = array<i64: 1, 2>}> ({
      ^bb0(%p: tensor<f32>, %q: tensor<i32>, %r: tensor<f32>, %s: tensor<i32>):
       %1 = stablehlo.compare GE, %p, %r : (tensor<f32>, tensor<f32>) -> tensor<i1>
       %2 = stablehlo.select %1, %p, %r : tensor<i1>, tensor<f32>
       %3 = stablehlo.select %1, %q, %s : tensor<i1>, tensor<i32>
       stablehlo.return %2, %3 : tensor<f32>, tensor<i32>
      }) : (tensor<5x4xf32>, tensor<5x4xi32>, tensor<f32>, tensor<i32>) -> (tensor<5x2xf32>, tensor<5x2xi32>)""",
     lambda a, b: (a.reshape(5, 2, 2).max(2), 2 * jnp.arange(2) + a.reshape(5, 2, 2).argmax(2)),
     [floats(5, 4), np.broadcast_to(np.arange(4, dtype=np.int32), (5, 4))]),
    (f"""%z = stablehlo.constant dense<1.0> : tensor<f32>
      %0 = "stablehlo.select_and_scatter"(%a, %b, %z) <{{window_dimensions = array<i64: 1, 2>,
        window_strides = array<i64: 1, 2>}}> ({{ ^bb0({SCALARS}):
       %1 = stablehlo.compare GE, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>
       stablehlo.return %1 : tensor<i1>
      }}, {{ ^bb0({SCALARS}):
       %1 = stablehlo.add %p, %q : tensor<f32>
       stablehlo.return %1 : tensor<f32>
      }}) : ({X}, tensor<5x2xf32>, tensor<f32>) -> {X}""",
     lambda a, s: 1 + jax.vjp(lambda a: a.reshape(5, 2, 2).max(2), a)[1](s)[0], [floats(5, 4), floats(5, 2)]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "wanted", "args"), OTHERS, ids=lambda v: "")
def test_what_other_exporters_write(text: str, wanted: Callable[..., Any], args: list[Any]) -> None:
    kind = text.rpartition("->")[2].strip().strip("()") if "->" in text else text.rpartition(" : ")[2]
    count = kind.count("tensor")
    if count > 1:
        text = text.replace("%0 =", f"%0:{count} =")
    names = {"float32": "f32", "int32": "i32"}
    given = ", ".join(
        f"%{n}: tensor<{'x'.join(map(str, np.shape(a)))}x{names[str(jnp.asarray(a).dtype)]}>"
        for n, a in zip("abcde", args, strict=False)
    )
    results = ", ".join(f"%0#{i}" for i in range(count)) if count > 1 else "%0"
    module = rx.from_stablehlo(f"func.func @main({given}) -> ({kind}) {{\n{text}\nreturn {results} : {kind}\n}}")
    agrees(module, wanted, *args)


def test_the_only_public_function_is_the_program() -> None:
    inner = "func.func private @g(%a: tensor<4xf32>) -> tensor<4xf32> {\n return %a : tensor<4xf32>\n}\n"
    text = inner.replace("private @g", "@forward")
    agrees(rx.from_stablehlo(inner + text), lambda x: x, floats(4))
    with pytest.raises(
        StableHloError, match="without a function `main`, of 2 public functions: forward, h\n  accepted"
    ):
        rx.from_stablehlo(text + text.replace("forward", "h"))


def test_functions_that_recur_are_refused() -> None:
    call = "%b = func.call @{} (%a) : (tensor<4xf32>) -> tensor<4xf32>"
    text = "".join(
        f"func.func {a}(%a: tensor<4xf32>) -> tensor<4xf32> {{\n{call.format(b)}\n return %b : tensor<4xf32>\n}}\n"
        for a, b in (("@main", "g"), ("private @g", "h"), ("private @h", "g"))
    )
    with pytest.raises(
        StableHloError, match="main: function `g` calls itself\n  accepted: functions that do not recur"
    ):
        rx.from_stablehlo(text)


# --- keys and linear algebra ---


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_keys_are_arguments_and_results(impl: Any) -> None:
    def f(key):
        first, second = jax.random.split(key)
        return first, jax.random.normal(second, (3,))

    key = jax.random.key(5, impl=impl)
    module = rx.from_stablehlo(export.export(jax.jit(f))(jax.ShapeDtypeStruct((), key.dtype)))
    found, wanted = rx.optimize(module, rules=rx.RuleSet("none"))(key), f(key)
    assert found[0].dtype == key.dtype and jnp.array_equal(*map(jax.random.key_data, (found[0], wanted[0])))
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-6)


def other_factors(a, b):
    form, vectors = jax.scipy.linalg.schur(a)
    upper, turned = jax.scipy.linalg.hessenberg(a, calc_q=True)
    values = jnp.linalg.eigvals(a)
    solved = lax.linalg.tridiagonal_solve(b[:, 0], b[:, 1] + 9, b[:, 2], b)
    return vectors @ form @ vectors.T, turned @ upper @ turned.T, jnp.prod(values).real, solved


def test_less_common_routines() -> None:
    args = floats(4, 4), floats(4, 3)
    module = rx.from_stablehlo(exported(other_factors, *args))
    agrees(module, other_factors, *args)
    assert libraries(module) == []


def gpu_factors(a, b):
    spd = a @ a.T + 5 * jnp.eye(4)
    (u, s, vt), (w, t, zt) = (jnp.linalg.svd(x, full_matrices=False) for x in (a[:3], b))
    q, r = jnp.linalg.qr(b)
    values, vectors = jnp.linalg.eigh(spd)
    pairs = (u * s) @ vt, (w * t) @ zt, q @ r, (vectors * values) @ vectors.T
    return jnp.linalg.cholesky(spd), jnp.linalg.solve(a, b), *pairs, jnp.linalg.svd(a, compute_uv=False)


def test_routines_that_jax_calls_on_gpus() -> None:
    args = floats(4, 4), floats(4, 3)
    specs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in args]
    unchecked = [export.DisabledSafetyCheck.custom_call(f"cusolver_{n}_ffi") for n in ("potrf",)]
    made = export.export(jax.jit(gpu_factors), platforms=["cuda"], disabled_checks=unchecked)(*specs)
    assert "cusolver_gesvdj_ffi" in made.mlir_module()
    module = rx.from_stablehlo(made)
    agrees(module, gpu_factors, *args)
    assert libraries(module) == []
