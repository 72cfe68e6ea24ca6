"""Every kind of primitive through `trace`: well-formed, annotated as JAX says, equal to the function at two sizes."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from frontend_library import CASES, Case
from frontend_programs import Layer
from frontend_support import assert_close, interpret, routines, sample
from sampling import sampled

import relax_eg as rx
from relax_eg.errors import ShapeError
from relax_eg.frontends import Traced, trace, trace_function
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr
from relax_eg.ir.module import Function
from relax_eg.ir.wellformed import check
from relax_eg.shapes import Dim


@functools.cache
def traced(name: str) -> Traced:
    case = next(c for c in CASES if c.name == name)
    return trace_function(case.fn, case.specs, case.kwspecs)


def results(function: Function) -> list[Expr]:
    return list(function.result.args) if function.result.op == "tuple" else [function.result]


def ids(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_is_well_formed_and_fully_translated(case: Case) -> None:
    found = traced(case.name)
    check(found.module)
    assert case.opaque == {"any"} or routines(found.module.main) == case.opaque


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_equals_the_function(case: Case) -> None:
    assert_equal(case, 2)


@pytest.mark.parametrize("case", sampled({c.name: c for c in CASES}, 8))
def test_equals_the_function_at_other_sizes(case: Case) -> None:
    assert_equal(case, 4)


def assert_equal(case: Case, base: int) -> None:
    found = traced(case.name)
    sizes = {v: base + i for i, v in enumerate(found.module.main.size_variables)}
    leaves = sample(found, sizes)
    args, kwargs = jax.tree_util.tree_unflatten(found.in_tree, leaves)
    wanted, tree = jax.tree_util.tree_flatten(jax.jit(case.fn)(*args, **kwargs))
    assert tree == found.out_tree
    avals = jax.tree_util.tree_leaves(jax.eval_shape(case.fn, *args, **kwargs))
    for value, aval in zip(results(found.module.main), avals, strict=True):
        shape = tuple(d.evaluate(sizes) for d in value.shape)
        assert (shape, value.dtype) == (aval.shape, str(aval.dtype))
    for i, (got, want) in enumerate(zip(interpret(found, leaves), wanted, strict=True)):
        assert_close(got, np.asarray(want), max(case.tolerance, 2e-5), f"output {i}")


def test_tracing_twice_gives_the_same_module() -> None:
    case = next(c for c in CASES if c.name == "attention")
    assert trace(case.fn, *case.specs) == traced("attention").module


def ops(function: Function) -> list[str]:
    return [e.op for e in function.expressions() if e.op not in ("var", "constant", "tuple")]


def only(fn, *specs) -> Expr:
    """The expression a function of one output becomes."""
    return trace(fn, *specs).main.blocks[-1].bindings[-1].value


def test_last_token_is_a_slice() -> None:
    e = only(lambda x: x[:, -1], "b s 8")
    assert e.op == "squeeze"
    piece = e.args[0]
    assert piece.op == "strided_slice"
    s = Dim.var("s")
    assert piece.attr("begin") == (Dim.of(0), s - 1, Dim.of(0))
    assert piece.attr("end") == (Dim.var("b"), s, Dim.of(8))


def test_symbolic_slices_with_steps_are_one_slice_each() -> None:
    assert ops(trace(lambda x: x[1:, ::2], "b s").main) == ["strided_slice"]
    assert ops(trace(lambda x: x[::-1], "b s").main) == ["flip"]


def test_a_linear_layer_is_one_matmul() -> None:
    assert ops(trace(lambda x, w: x @ w, "b s 4", "4 5").main) == ["matmul"]
    assert ops(trace(lambda x, w: jnp.einsum("bsi,oi->bso", x, w), "b s 4", "5 4").main) == ["permute_dims", "matmul"]


def test_the_weights_of_an_attention_are_not_moved() -> None:
    """JAX multiplies values by weights; as the exchanged product, the weights are read as they are."""
    main = trace(lambda w, v: jnp.einsum("bhqk,bkhd->bqhd", w, v), "2 3 5 7", "2 7 3 4").main
    (product,) = (e for e in main.expressions() if e.op == "matmul")
    assert product.args[0] is main.params[0]
    assert ops(trace(jnp.dot, "4", "4").main) == ["matmul"]
    assert ops(trace(jnp.outer, "n", "m").main) == ["expand_dims", "broadcast_to", "multiply"] or ops(
        trace(jnp.outer, "n", "m").main
    ) == ["expand_dims", "expand_dims", "multiply"]


def test_precision_and_accumulation_are_kept() -> None:
    e = only(lambda a, b: jnp.matmul(a, b, precision="highest"), "n 4", "4 4")
    assert (e.attr("precision"), e.attr("out_dtype")) == ("highest", None)
    e = only(lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.float32), "n 4 @ bf16", "4 4 @ bf16")
    assert (e.attr("precision"), e.attr("out_dtype")) == (None, "float32")


def test_no_ops_leave_nothing() -> None:
    def fn(x):
        y = jax.lax.stop_gradient(x).astype(jnp.float32).transpose(0, 1).reshape(x.shape)
        return jnp.broadcast_to(jnp.pad(y, 0), x.shape)[:, :]

    assert only(fn, "n m").op == "var"


def test_index_take_keeps_its_mode() -> None:
    take = {m: only(lambda x, i, m=m: jnp.take(x, i, axis=0, mode=m), "9 4", "n @ int32") for m in ("clip", "fill")}
    assert {m: e.attr("mode") for m, e in take.items()} == {"clip": "clip", "fill": "fill"}


def test_names_follow_the_arguments() -> None:
    params = {"layers": [{"w": "4 4"}, {"w": "4 4"}], "x": ""}
    found = trace_function(lambda params, *rest, key: rest[0], (params, "n"), {"key": [Layer("2", "3")]})
    assert found.leaf_names == (
        "params['layers'][0]['w']", "params['layers'][1]['w']", "params['x']", "rest[0]", "key[0].w", "key[0].b",
    )  # fmt: skip
    assert [p.attr("name") for p in found.module.main.params] == [
        "params_layers_0_w", "params_layers_1_w", "params_x", "rest_0", "key_0_w", "key_0_b",
    ]  # fmt: skip
    assert found.arg_names == ("params", "rest", "key")


def test_names_never_meet() -> None:
    found = trace_function(lambda gv, p, p_a: (gv + p["a"], p_a), ("n", {"a": "n"}, "n"))
    check(found.module)
    names = [p.attr("name") for p in found.module.main.params]
    assert len(set(names)) == 3


def test_module_name() -> None:
    def my_model(x):
        return x

    assert trace(my_model, "n").main.name == "my_model"
    assert trace(lambda x: x, "n").main.name == "main"
    assert trace(functools.partial(my_model), "n", name="other").main.name == "other"


def test_binding_a_call() -> None:
    best = rx.optimize(lambda x, y=1.0, *, z: x * y + z, "n", z="")
    x, z = jnp.ones(3), jnp.asarray(2.0)
    assert best(x, z=z).tolist() == best(z=z, x=x).tolist() == [3.0, 3.0, 3.0]
    with pytest.raises(ShapeError, match="missing a required argument: 'x'"):
        best(z=z)


def test_python_numbers_are_weakly_typed() -> None:
    found = trace_function(lambda x, a: x * a, ("n @ bf16", 2.0))
    assert [leaf.weak_type for leaf in found.leaves] == [False, True]
    assert found.out_avals[0].dtype == jnp.bfloat16
    assert trace_function(lambda a: a + 1, (2,)).out_avals[0].weak_type


def test_sources_are_the_users_lines() -> None:
    def fn(x):
        y = jnp.where(x > 0, x, 0.0)
        return jnp.tanh(y)

    first = fn.__code__.co_firstlineno
    main = trace(fn, "n").main
    lines = {e.op: str(main.origins[e]) for e in main.expressions() if e in main.origins}
    assert lines["where"] == f"test_trace.py:{first + 1}"
    assert lines["tanh"] == f"test_trace.py:{first + 2}"


def test_bounds_decide_python_branches() -> None:
    def fn(x):
        return x * 2 if x.shape[0] > 3 else x

    assert trace_function(fn, ("n",), bounds={"n": (4, 100)}).module.main.params[0].annotation == Tensor("n")
    assert only(lambda x: x[: x.shape[0] // 2], "n").shape == (Dim.of("n//2"),)


def test_a_jitted_function_and_jax_functions_can_be_traced() -> None:
    assert trace(jax.jit(lambda x: x + 1), "n").main.params[0].attr("name") == "x"
    assert trace(jnp.tanh, "n").main.name == "tanh"
    assert trace(jax.nn.softmax, "n m").main.name == "softmax"


def test_deep_programs() -> None:
    def fn(x):
        for _ in range(1500):
            x = jnp.sin(x) + 1
        return x

    check(trace(fn, "n"))


def test_x64() -> None:
    with jax.enable_x64(True):
        found = trace_function(lambda x, i: (x + 1, i.sum(), jnp.argmax(x)), ("n @ float64", "n @ int64"))
        assert [v.dtype for v in results(found.module.main)] == ["float64", "int64", "int64"]
        leaves = sample(found, {"n": 3})
        assert_close(interpret(found, leaves)[0], leaves[0] + 1, 1e-12)
