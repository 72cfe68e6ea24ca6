"""`optimize` on JAX functions: arguments, weights, sizes, derivatives, transformations, effects, reports."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.egraph import Budget, EGraph, Saturation

Array = Any


def chain(a: Array, b: Array, v: Array) -> Array:
    return (a @ b) @ v


def normal(seed: int, *shape: int, dtype: Any = np.float32) -> Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def close(x: Any, y: Any, tolerance: float = 2e-5) -> None:
    """Equal structure, dtypes, weak types and, up to `tolerance` of the largest, values."""
    assert jax.tree_util.tree_structure(x) == jax.tree_util.tree_structure(y)
    for p, q in zip(jax.tree_util.tree_leaves(x), jax.tree_util.tree_leaves(y), strict=True):
        assert jax.typeof(p) == jax.typeof(q)
        a, b = np.asarray(p, np.float64), np.asarray(q, np.float64)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1.0, np.max(np.abs(b), initial=0)))


def test_algebra_decides_and_the_result_is_that_of_the_function() -> None:
    best = rx.optimize(chain, "n n", "n n", "n", at={"n": 512})
    assert best.report.predicted_gain > 5 and not best.report.kept_as_written
    args = normal(0, 64, 64), normal(1, 64, 64), normal(2, 64)
    close(best(*args), chain(*args))
    assert best.check(*args).passed


def quadratic(x: Array, q: Array, u: Array, r: Array) -> Array:
    return x @ q @ x + u @ r @ u


def pooled(x: Array) -> Array:
    return jax.lax.reduce_window(x * (1 / 255), 0.0, jax.lax.add, (1, 4, 4), (1, 4, 4), "VALID") / 16


@pytest.mark.parametrize(
    ("f", "specs", "is_again"),
    [(quadratic, ("n", "n n", "k", "k k"), False), (pooled, ("n 64 64",), True)],
)
def test_an_e_graph_is_saturated_again_where_new_proposals_gain(
    f: Callable[..., Any], specs: tuple[str, ...], is_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are asked about again, since the first choice gains; extraction without rules says whether it pays."""
    saturated: list[bool] = []
    saturate = EGraph.saturate

    def counted(egraph: EGraph, budget: Budget) -> Saturation:
        saturated.append(budget.nodes > 0)
        return saturate(egraph, budget)

    monkeypatch.setattr(EGraph, "saturate", counted)
    with rx.debug.options(cache=False):
        rx.optimize(f, *specs)
    assert saturated == [True, False, *([True] if is_again else [])]


def test_pytrees_and_keywords() -> None:
    def layer(params: dict[str, Any], x: Array, *, scale: Array, flags: tuple[Any, ...] = ()) -> dict[str, Any]:
        hidden = (x @ params["w"][0]) @ params["w"][1]
        return {"out": hidden * scale + params["b"], "parts": [x.T, (scale,)]}

    spec = {"w": ["k k", "k k"], "b": "k"}
    best = rx.optimize(layer, spec, "n k", scale="", at={"n": 1, "k": 256})
    params = {"w": [normal(0, 8, 8), normal(1, 8, 8)], "b": normal(2, 8)}
    x, scale = normal(3, 4, 8), normal(4)
    close(best(params, x, scale=scale), layer(params, x, scale=scale))
    close(best(params=params, x=x, scale=scale), layer(params, x, scale=scale))
    close(best.to_jax()(params, x, scale=2.0), layer(params, x, scale=jnp.float32(2.0)))
    assert best.report.name == "layer"


def test_arrays_are_their_own_specs() -> None:
    args = normal(0, 256, 256), normal(1, 256, 256), normal(2, 256)
    best = rx.optimize(chain, *args)
    assert best.report.at == {} and not best.report.assumed_at
    close(best(*args), chain(*args))


def adapted(w: Array, lora: dict[str, Array], x: Array) -> Array:
    return x @ (w + lora["a"] @ lora["b"])


ADAPTED = ("k n", {"a": "k r", "b": "r n"}, "s k")


def adapted_arguments(s: int = 3) -> tuple[Any, ...]:
    return normal(0, 32, 48), {"a": normal(1, 32, 4), "b": normal(2, 4, 48)}, normal(3, s, 32)


@pytest.mark.parametrize("weights", [("w", "lora"), (0, 1), ("lora", 0), (-3, -2)])
def test_weights_by_name_and_position(weights: tuple[Any, ...]) -> None:
    best = rx.optimize(adapted, *ADAPTED, at={"k": 512, "n": 512, "r": 8, "s": 64}, weights=weights)
    w, lora, x = adapted_arguments()
    close(best(w, lora, x), adapted(w, lora, x))
    ready = best.prepare(w, lora)
    for other in (x, normal(9, 7, 32)):
        close(ready(other), adapted(w, lora, other))
    # The merged weight replaces the three it is made of.
    assert best.report.after.prepared_bytes == 512 * 512 * 4
    assert [p.shape for p in ready.prepared] == [(32, 48)]
    close(best.prepare(lora=lora, w=w)(x), adapted(w, lora, x))


@pytest.mark.parametrize(
    ("weights", "named"),
    [
        ((1, 2), ("ws[0]", "ws[1]")),
        (("ws",), ("ws[0]", "ws[1]")),
        ((-1,), ("ws[1]",)),
        (("ws[1]", "ws[0]"), ("ws[0]", "ws[1]")),
    ],
)
def test_each_of_the_remaining_positional_arguments_is_an_argument(weights: Any, named: tuple[str, ...]) -> None:
    """Of `*ws`, `ws` names all, `ws[1]` and positions name one."""

    def product(x: Any, *ws: Any) -> Any:
        return x @ (ws[0] @ ws[1])

    x, *ws = (jnp.asarray(np.random.default_rng(i).standard_normal((8, 8)), jnp.float32) for i in range(3))
    best = rx.optimize(product, "n 8", "8 8", "8 8", weights=weights, facts={"ws": "finite"}, at={"n": 512})
    held = [w for w, n in zip(ws, ("ws[0]", "ws[1]"), strict=True) if n in named]
    others = [w for w, n in zip(ws, ("ws[0]", "ws[1]"), strict=True) if n not in named]
    close(best.prepare(*held)(x, *others), product(x, *ws))
    with pytest.raises(rx.errors.OptionError, match=r"has no argument 3; its arguments are x, ws\[0\], ws\[1\]"):
        rx.optimize(product, "n 8", "8 8", "8 8", weights=(3,))


def test_prepared_program_under_jax_takes_the_weights_as_an_argument() -> None:
    best = rx.optimize(adapted, *ADAPTED, at={"k": 512, "n": 512, "r": 8, "s": 64}, weights=("w", "lora"))
    w, lora, x = adapted_arguments()
    ready = best.prepare(w, lora)
    run = jax.jit(ready.to_jax())
    close(run(ready.prepared, x), adapted(w, lora, x))
    assert not jax.make_jaxpr(ready.to_jax())(ready.prepared, x).consts


def test_other_weights_are_prepared_anew() -> None:
    best = rx.optimize(adapted, *ADAPTED, at={"k": 512, "n": 512, "r": 8, "s": 64}, weights=("w", "lora"))
    w, lora, x = adapted_arguments()
    close(best(w, lora, x), adapted(w, lora, x))
    changed = {"a": 2 * lora["a"], "b": lora["b"]}
    close(best(w, changed, x), adapted(w, changed, x))
    held = np.asarray(w).copy()
    close(best(held, lora, x), adapted(w, lora, x))
    held *= 3  # numpy arrays change in place, so nothing computed from them is kept
    close(best(held, lora, x), adapted(jnp.asarray(held), lora, x))


def test_prepare_of_what_is_kept_as_written() -> None:
    best = rx.optimize(lambda w, x: jnp.tanh(x) * w, "n", "n", weights=("w",))
    assert best.report.kept_as_written
    w, x = normal(0, 5), normal(1, 5)
    close(best.prepare(w)(x), jnp.tanh(x) * w)


def test_several_sizes_to_be_best_at() -> None:
    def product(x: Array, a: Array, b: Array) -> Array:
        return x @ (a @ b)

    few = rx.optimize(product, "n 256", "256 256", "256 256", at={"n": 1})
    both = rx.optimize(product, "n 256", "256 256", "256 256", at=[{"n": 1}, {"n": 4}])
    many = rx.optimize(product, "n 256", "256 256", "256 256", at={"n": 65536})
    assert not few.report.kept_as_written and not both.report.kept_as_written
    assert many.report.kept_as_written
    args = normal(0, 6, 256), normal(1, 256, 256), normal(2, 256, 256)
    for best in (few, both, many):
        close(best(*args), product(*args), 1e-4)


def test_sizes_left_out_are_assumed_and_said_so() -> None:
    assert rx.optimize(chain, "n n", "n n", "n").report.assumed_at
    assert not rx.optimize(chain, "n n", "n n", "n", at={"n": 64}).report.assumed_at
    assert rx.optimize(chain, "n n", "n n", "n", bounds={"n": (1, 16)}).report.at == {"n": 16}


def test_bounds_hold_at_every_call() -> None:
    best = rx.optimize(chain, "n n", "n n", "n", at={"n": 16}, bounds={"n": (8, 32)})
    args = normal(0, 9, 9), normal(1, 9, 9), normal(2, 9)
    close(best(*args), chain(*args))
    with pytest.raises(rx.errors.BoundsError):
        best(normal(0, 4, 4), normal(1, 4, 4), normal(2, 4))


def test_bounds_let_python_compare_sizes() -> None:
    def cut(x: Array) -> Array:
        return x[:8] if x.shape[0] > 8 else x

    best = rx.optimize(cut, "n", bounds={"n": (16, 64)})
    close(best(normal(0, 20)), normal(0, 20)[:8])


def test_exact_leaves_reassociation_out() -> None:
    exact = rx.optimize(chain, "n n", "n n", "n", at={"n": 512}, numerics="exact")
    assert exact.report.kept_as_written and set(exact.report.numerics) <= {"exact"}

    def transposes(a: Array, b: Array) -> Array:
        return jnp.negative(jnp.negative((a.T @ b.T).T))

    best = rx.optimize(transposes, "256 256", "256 256", numerics="exact")
    assert not best.report.kept_as_written and best.report.numerics == ("exact",)
    args = normal(0, 256, 256), normal(1, 256, 256)
    assert best.check(*args).max_error <= 1e-6


def test_what_gains_nothing_runs_the_function_itself() -> None:
    calls: list[str] = []

    def plain(x: Array) -> Array:
        calls.append("traced")
        return jnp.tanh(x) + 1

    best = rx.optimize(plain, "n")
    assert best.report.kept_as_written and calls == ["traced"]
    close(best(normal(0, 3)), jnp.tanh(normal(0, 3)) + 1)
    assert calls == ["traced", "traced"]


def scalar_loss(fn: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *args: jnp.sum(jnp.sin(fn(*args)))


@jax.custom_vjp
def doubled_gradient(x: Array) -> Array:
    return x * 1.0


doubled_gradient.defvjp(lambda x: (x, None), lambda _, g: (2 * g,))


@jax.custom_jvp
def tripled_tangent(x: Array) -> Array:
    return x * 1.0


tripled_tangent.defjvp(lambda primals, tangents: (primals[0], 3 * tangents[0]))


@pytest.mark.parametrize(
    "inner",
    [lambda v: v, doubled_gradient, tripled_tangent, jax.lax.stop_gradient, jax.checkpoint(jnp.tanh), jax.jit(jnp.exp)],
    ids=["plain", "custom_vjp", "custom_jvp", "stop_gradient", "checkpoint", "jit"],
)
def test_derivatives_are_those_of_the_function_as_written(inner: Callable[[Array], Array]) -> None:
    def program(a: Array, b: Array, v: Array) -> Array:
        return (a @ b) @ inner(v)

    best = rx.optimize(program, "n n", "n n", "n", at={"n": 512})
    assert not best.report.kept_as_written
    args = normal(0, 6, 6), normal(1, 6, 6), normal(2, 6)
    ours, theirs = scalar_loss(best.to_jax()), scalar_loss(program)
    close(jax.grad(ours, (0, 1, 2))(*args), jax.grad(theirs, (0, 1, 2))(*args))
    close(jax.jit(jax.grad(ours))(*args), jax.grad(theirs)(*args))
    close(jax.grad(scalar_loss(best))(*args), jax.grad(theirs)(*args))
    if inner is not doubled_gradient:  # JAX has no forward mode of a custom_vjp
        close(jax.jvp(ours, args, args), jax.jvp(theirs, args, args))
        close(jax.hessian(ours, 2)(*args), jax.hessian(theirs, 2)(*args), 1e-4)


def test_transformations_compose() -> None:
    best = rx.optimize(chain, "n n", "n n", "n", at={"n": 512}).to_jax()
    a, b, v = normal(0, 6, 6), normal(1, 6, 6), normal(2, 6)
    many = normal(3, 5, 6)
    close(jax.vmap(best, (None, None, 0))(a, b, many), jax.vmap(chain, (None, None, 0))(a, b, many))
    close(jax.jit(jax.vmap(jax.grad(scalar_loss(best)), (None, None, 0)))(a, b, many),
          jax.vmap(jax.grad(scalar_loss(chain)), (None, None, 0))(a, b, many))  # fmt: skip
    close(jax.checkpoint(best)(a, b, v), chain(a, b, v))
    close(jax.grad(scalar_loss(jax.checkpoint(best)))(a, b, v), jax.grad(scalar_loss(chain))(a, b, v))
    close(jax.lax.map(lambda w: best(a, b, w), many), jax.vmap(chain, (None, None, 0))(a, b, many))
    close(best(np.asarray(a), np.asarray(b), np.asarray(v)), chain(a, b, v))


def test_debug_callbacks_keep_their_order() -> None:
    seen: list[tuple[str, float]] = []

    def noted(what: str, x: Array) -> None:
        jax.debug.callback(lambda value: seen.append((what, float(value))), x[0], ordered=True)

    def program(a: Array, b: Array, v: Array) -> Array:
        noted("start", v)
        y = (a @ b) @ v
        noted("middle", y)
        noted("middle", y)
        z = (a @ b) @ y
        noted("end", z)
        return z

    args = normal(0, 6, 6), normal(1, 6, 6), normal(2, 6)
    best = rx.optimize(program, "n n", "n n", "n", at={"n": 512})
    assert seen == []
    result = best(*args)
    jax.effects_barrier()
    ours = list(seen)
    seen.clear()
    close(result, jax.jit(program)(*args))
    jax.effects_barrier()
    assert [what for what, _ in ours] == ["start", "middle", "middle", "end"]
    np.testing.assert_allclose([x for _, x in ours], [x for _, x in seen], rtol=1e-4)


def test_pure_callbacks_are_called() -> None:
    def program(a: Array, b: Array, v: Array) -> Array:
        w = jax.pure_callback(lambda x: np.sort(x), jax.ShapeDtypeStruct(v.shape, v.dtype), v)
        return (a @ b) @ w

    best = rx.optimize(program, normal(0, 256, 256), normal(1, 256, 256), normal(2, 256))
    args = normal(0, 256, 256), normal(1, 256, 256), normal(3, 256)
    close(best(*args), program(*args))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "int8", "uint8", "complex64"])
def test_dtypes(dtype: str) -> None:
    best = rx.optimize(chain, f"n n @ {dtype}", f"n n @ {dtype}", f"n @ {dtype}", at={"n": 512})
    rng = np.random.default_rng(0)
    a, b, v = (jnp.asarray(rng.integers(0, 3, shape), dtype) for shape in ((7, 7), (7, 7), (7,)))
    result, expected = best(a, b, v), chain(a, b, v)
    assert result.dtype == expected.dtype
    assert np.array_equal(np.asarray(result, complex), np.asarray(expected, complex))


def test_weak_types_of_arguments_and_results() -> None:
    def program(x: Array, s: Array) -> tuple[Array, ...]:
        return x * s, s * 2, jnp.asarray(3), s

    best = rx.optimize(program, "n @ bfloat16", 1.0)
    x = normal(0, 4, dtype=jnp.bfloat16)
    close(best(x, 2.0), jax.jit(program)(x, 2.0))


def test_a_module_is_optimized() -> None:
    module = rx.trace(chain, "n n", "n n", "n")
    direct = rx.optimize(chain, "n n", "n n", "n", at={"n": 512})
    best = rx.optimize(module, at={"n": 512})
    assert str(best.module) == str(direct.module)
    assert str(rx.optimize(rx.parse(str(module)), at={"n": 512}).module) == str(best.module)
    args = normal(0, 6, 6), normal(1, 6, 6), normal(2, 6)
    close(best(*args), chain(*args))


def test_a_module_whose_sizes_stand_in_expressions_only() -> None:
    module = rx.trace(lambda a, b: (a @ b).sum(), "2*n k", "k 3*m")
    best = rx.optimize(module, at={"n": 64, "k": 64, "m": 64})
    assert not best.report.kept_as_written
    a, b = normal(0, 4, 5), normal(1, 5, 6)
    close(best(a, b), (a @ b).sum())


def test_repetition_gives_the_same_bytes() -> None:
    made = {str(rx.optimize(adapted, *ADAPTED, at={"k": 512, "n": 512, "r": 8, "s": 1}).module) for _ in range(3)}
    assert len(made) == 1


def test_optimize_is_thread_safe() -> None:
    def program(i: int) -> Callable[..., Array]:
        def run(a: Array, b: Array, v: Array) -> Array:
            y = v
            for _ in range(1 + i):
                y = (a @ b) @ y
            return y + float(i)

        run.__name__ = f"run{i}"
        return run

    def optimized(i: int) -> rx.types.Optimized:
        return rx.optimize(program(i), "n n", "n n", "n", at={"n": 512})

    alone = [str(optimized(i).module) for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(optimized, range(4)))
    assert [str(best.module) for best in together] == alone
    args = normal(0, 4, 4), normal(1, 4, 4), normal(2, 4)
    for i, best in enumerate(together):
        close(best(*args), program(i)(*args))


def test_partials_and_objects_with_a_call() -> None:
    class Model:
        def __init__(self) -> None:
            self.w = normal(0, 64, 64)

        def __call__(self, x: Array) -> Array:
            return (self.w @ self.w) @ x

    model = Model()
    close(rx.optimize(model, "64")(normal(1, 64)), model(normal(1, 64)), 1e-4)
    part = functools.partial(chain, model.w)
    close(rx.optimize(part, "64 64", "64")(model.w, normal(1, 64)), part(model.w, normal(1, 64)), 1e-4)


def test_a_busy_machine_changes_nothing() -> None:
    """A budget's seconds are of computing: however long the search waits, it finds the same and ends for the same."""
    options: dict[str, Any] = {"at": {"n": 512}, "budget": rx.Budget(seconds=0.3)}
    idle = rx.optimize(chain, "n n", "n n", "n", **options)
    with rx.debug.options(progress=lambda *_: time.sleep(0.2)):
        busy = rx.optimize(chain, "n n", "n n", "n", **options)
    assert busy.report.stop == idle.report.stop and "time" not in busy.report.stop
    assert str(busy.module) == str(idle.module) and not busy.report.kept_as_written


def test_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    with rx.debug.options(progress=lambda *x: told.append(x)):
        rx.optimize(chain, "n n", "n n", "n", at={"n": 512})
    phases = [phase for phase, _, _ in told]
    assert phases[-1] == "extract" and "algebra" in phases
    assert all(isinstance(nodes, int) and nodes > 0 for _, nodes, _ in told)


# --- the report ---


def test_report_as_json() -> None:
    report = rx.optimize(chain, "n n", "n n", "n", at={"n": 512}).report
    data = json.loads(report.to_json())
    assert data["schema"] == "relax_eg.report/1"
    assert data["at"] == {"n": 512} and data["target"] == "cpu" and data["execution"] == "whole"
    assert data["predicted_gain"] == pytest.approx(report.predicted_gain)
    for side, cost in (("before", report.before), ("after", report.after)):
        assert data[side]["total"]["flops"] == cost.flops == sum(row["flops"] for row in data[side]["rows"])
        assert data[side]["total"]["seconds"] == pytest.approx(cost.seconds)
    assert data["rules"] == {"same_sum_of_products": 2}
    assert set(data["versions"]) == {"relax-eg", "jax", "egglog", "numpy"}


def test_report_goes_to_a_file(tmp_path: Any) -> None:
    report = rx.optimize(chain, "n n", "n n", "n", at={"n": 512}).report
    text = report.to_json(tmp_path / "new" / "report.json")
    assert json.loads((tmp_path / "new" / "report.json").read_text()) == json.loads(text)


REPORT = """\
chain   cpu, whole, at n=512
                 as written   chosen   ratio
operators                 2        2    1.00
kernel launches           2        2    1.00
flops                  269M    1.05M  256.50
bytes moved            4.2M    2.11M    1.99
"""


def test_report_as_text() -> None:
    text = str(rx.optimize(chain, "n n", "n n", "n", at={"n": 512}).report)
    # Predicted times change with the profile, and columns with them; what is counted does not.
    assert [line.split() for line in text.splitlines()][:6] == [line.split() for line in REPORT.splitlines()]
    assert "\nrules used: same_sum_of_products x2\n" in text
    assert "stopped: saturated; numerics: reassociate" in text


def test_report_names_what_it_could_not_look_into() -> None:
    def called_back(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x) + 1

    best = rx.optimize(called_back, "4")
    (opaque,) = best.report.opaque
    assert opaque.name == "jax.pure_callback" and opaque.source.startswith("test_optimize.py:")
    assert "opaque: jax.pure_callback at test_optimize.py:" in str(best.report)
