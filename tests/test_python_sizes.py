"""Python code that looks at sizes: what is optimized for all sizes runs where the function, traced, is that program."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from benchmarks.python_sizes import LIBRARY, LOOKS, random_program, shapes_of
from benchmarks.python_sizes import compared as compared_with_jax
from relax_eg.errors import BoundsError, OptionError, OtherProgramError, TraceError
from relax_eg.frontends.canonical.aligned import is_same_aligned
from relax_eg.frontends.canonical.nodes import Nodes
from relax_eg.frontends.canonical.walk import canonical_form
from relax_eg.frontends.jax.trace import trace_function
from relax_eg.frontends.trace_check import TraceCheck

Array = Any
# Which program serves a call is tested, not what rules make of it.
jitted, compared = (functools.partial(f, rules=rx.RuleSet("none")) for f in (rx.jit, compared_with_jax))


def ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def looked_up(x: Array) -> Array:
    return jnp.cumsum(x, 0) * {2: 10.0, 3: 20.0}.get(x.shape[0], 1.0)


@pytest.mark.parametrize("look", LOOKS)
def test_python_may_look_at_sizes(look: str) -> None:
    def program(x: Array) -> Array:
        return jnp.cumsum(x) * LOOKS[look](x.shape[0])

    assert list(compared(program, [(n,) for n in (5, 2, 4, 8, 0)])) == []


@pytest.mark.parametrize("look", ["a key of a dictionary", "its text", "greater", "a remainder"])
def test_python_may_look_at_sizes_that_dims_tell(look: str) -> None:
    def program(x: Array) -> Array:
        return jnp.cumsum(x) * LOOKS[look](x.shape[0])

    assert list(compared(program, [(n,) for n in (5, 2, 8)], dims=["n"])) == []


@pytest.mark.parametrize("name", ["unravel_index", "array_split", "interp", "linspace"])
def test_library_functions_may_look_at_sizes(name: str) -> None:
    assert list(compared(LIBRARY[name], [(4, 3), (5, 7), (8, 8)])) == []


@pytest.mark.parametrize("seed", range(4))
def test_random_programs_that_look_at_sizes(seed: int) -> None:
    assert list(compared(random_program(seed), shapes_of(seed, 1, 5))) == []


def test_only_sizes_that_differ_have_executables_of_their_own() -> None:
    fast = jitted(looked_up)
    for n in (9, 5, 6, 2, 7, 3):
        np.testing.assert_allclose(fast(ones(n)), looked_up(ones(n)))
    found = fast.statistics()
    assert found is not None and [(r.kind, dict(r.at)) for r in found.executables] == [("capacity", {"n0": 8})]
    assert [dict(r.sizes) for r in found.sizes] == [{"n0": 5}, {"n0": 6}, {"n0": 7}]


@pytest.mark.parametrize("trust", [False, True])
def test_each_combination_of_sizes_is_traced_once(trust: bool) -> None:
    seen: list[Any] = []

    def program(x: Array) -> Array:
        seen.append(x.shape[0])
        return jnp.cumsum(x)

    fast = jitted(program, dynamic=rx.Dynamic(trust=trust))
    for n in (3, 5, 6, 7, 5, 6, 7, 5):
        fast(ones(n))
    traced = Counter(n for n in seen if isinstance(n, int) and n != 3)  # 3, the first, is optimized by itself
    assert traced == ({} if trust else {5: 1, 6: 1, 7: 1})


def test_who_promises_is_believed() -> None:
    best = rx.optimize(looked_up, "n", dynamic=rx.Dynamic(mode="capacity", trust=True))
    np.testing.assert_allclose(best(ones(3)), [1, 2, 3])
    for make in (
        lambda: jitted(looked_up, dynamic=rx.Dynamic(trust=1)),
        lambda: rx.optimize(looked_up, "n", dynamic=rx.Dynamic(trust="yes")),
    ):  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="True or False is accepted"):
            make()


@pytest.mark.parametrize(
    "options",
    [{}, {"dynamic": "exact"}, {"dynamic": "capacity"}, {"execution": "kernels"}, {"at": [{"n": 4}, {"n": 64}]}],
)
def test_what_optimize_returns_runs_as_written_where_the_function_is_another(options: dict[str, Any]) -> None:
    def program(w: Array, a: Array, x: Array) -> Array:
        return (x @ (w + a @ a.T)) * {2: 10.0, 3: 20.0}.get(x.shape[0], 1.0)

    w, a = np.eye(32, dtype=np.float32), ones(32, 2)
    best = rx.optimize(program, "32 32", "32 2", "n 32", weights=("w", "a"), **options)
    ready = best.prepare(w, a)
    nested = jax.jit(best.to_jax())
    for n in (4, 3, 6, 2, 3):
        for run in (lambda x: best(w, a, x), ready, lambda x: nested(w, a, x)):
            np.testing.assert_allclose(run(ones(n, 32)), program(w, a, ones(n, 32)), rtol=1e-5)


def test_statistics_say_which_sizes_are_another_program() -> None:
    best = rx.optimize(looked_up, "n", dynamic="capacity")
    for n in (4, 3):
        best(ones(n))
    line = looked_up.__code__.co_firstlineno + 1
    text = "return jnp.cumsum(x, 0) * {2: 10.0, 3: 20.0}.get(x.shape[0], 1.0)"
    assert best.statistics().exact == {
        "looked_up at n = 3": f"another program, first at test_python_sizes.py:{line}: {text}"
    }


def test_weights_that_are_gone_cannot_be_run_as_written() -> None:
    def program(w: Array, a: Array, x: Array) -> Array:
        return (x @ (w + a @ a.T)) * (2 if x.shape[0] in {3} else 1)

    best = rx.optimize(program, "32 32", "32 2", "n 32", weights=("w", "a"), at={"n": 4096}, target="cpu")
    assert best.report.predicted_gain > 1  # the weights are prepared
    ready = best.prepare(jnp.eye(32), jnp.ones((32, 2)))
    ready(ones(4, 32))
    with pytest.raises(OtherProgramError, match="at n = 3 the function is another program than the one"):
        ready(ones(3, 32))


@pytest.mark.parametrize("options", [{}, {"dims": ["n"]}])
def test_what_a_function_raises_at_some_sizes_is_raised(options: dict[str, Any]) -> None:
    def program(x: Array) -> Array:
        if x.shape[0] in (3, 4):
            raise KeyError("mine")
        return jnp.cumsum(x)

    fast = jitted(program, **options)
    for n in (5, 3, 6, 4, 3):
        if n in (3, 4):
            with pytest.raises(KeyError, match="mine"):
                fast(ones(n))
        else:
            np.testing.assert_allclose(fast(ones(n)), np.arange(1, n + 1))
    best = rx.optimize(program, "n")
    with pytest.raises(KeyError, match="mine"):
        best(ones(3))


def test_static_donated_and_keyword_arguments() -> None:
    def program(state: Array, x: Array, flip: bool = False) -> tuple[Array, Array]:
        return state + 1, jnp.cumsum(-x if flip else x) * {2: 10.0}.get(x.shape[0], 1.0)

    fast = jitted(program, static_argnames="flip", donate_argnames="state")
    for n in (5, 2, 3, 2, 4):
        for flip in (False, True):
            given = jnp.zeros(3)
            state, found = fast(given, x=ones(n), flip=flip)
            np.testing.assert_allclose(found, program(jnp.zeros(3), ones(n), flip)[1])
            assert given.is_deleted() and float(state[0]) == 1


def test_threads_may_meet_other_sizes() -> None:
    fast, wrong = jitted(looked_up), list[int]()

    def work(start: int) -> None:
        for i in range(16):
            n = 1 + (start + i) % 7
            if not np.allclose(fast(ones(n)), np.arange(1, n + 1) * {2: 10.0, 3: 20.0}.get(n, 1.0)):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_dims_take_arrays_with_nothing_in_them() -> None:
    fast = jitted(lambda x: jnp.cumsum(x, 0).sum(0), dims=["n 3"])
    for n in (4, 0, 2, 0):
        np.testing.assert_allclose(fast(ones(n, 3)), np.cumsum(ones(n, 3), 0).sum(0))
    bounded = jitted(lambda x: x * 2.0, dims=["n"], bounds={"n": (2, 8)})
    with pytest.raises(BoundsError, match="n = 0 is below its bound 2"):
        bounded(ones(0))


@pytest.mark.parametrize("options", [{}, {"dims": ["n 4"]}])
def test_settings_of_jax_are_part_of_the_key(options: dict[str, Any]) -> None:
    def program(x: Array) -> Array:
        return jnp.cumsum(x @ x.T) * (1 if jax.config.jax_numpy_rank_promotion == "allow" else 5)

    fast = jitted(program, **options)
    for n in (5, 3, 4, 3, 8):
        x = np.arange(4 * n, dtype=np.float32).reshape(n, 4)
        np.testing.assert_allclose(fast(x), jax.jit(program)(x))
        with jax.numpy_rank_promotion("warn"):
            for _ in range(5):
                np.testing.assert_allclose(fast(x), 5 * np.cumsum(x @ x.T))
        np.testing.assert_allclose(fast(x), jax.jit(program)(x))


def test_the_default_kind_of_keys_counts_where_sizes_are_new() -> None:
    def program(x: Array) -> Array:
        return jax.random.key_data(jax.random.key(0)).sum() + 0 * jnp.cumsum(x).astype(jnp.uint32).sum()

    fast, slow = jitted(program), jax.jit(program)
    for kind, n in (("threefry2x32", 3), ("rbg", 5), ("threefry2x32", 6), ("rbg", 6), ("rbg", 7), ("threefry2x32", 5)):
        with jax.default_prng_impl(kind):
            assert int(fast(ones(n))) == int(slow(ones(n)))


@pytest.mark.parametrize("options", [{}, pytest.param({"dims": ["n"]}, marks=pytest.mark.slow)])
def test_no_tracer_leaks(options: dict[str, Any]) -> None:
    with jax.checking_leaks():
        fast = jitted(looked_up, **options)
        for n in (4, 5):
            fast(ones(n))


# --- one program in other words ---


def own(function: Any, spec: str, exact: bool = False, **sizes: int) -> str | None:
    return TraceCheck(trace_function(function, (spec,)), exact).difference(sizes)


SAME = {
    "indices": lambda x: (x[0], x[-1], x[:, 1:-1], x[::2], x[::-1], x[-2:], x[: x.shape[0] // 2]),
    "computed indices": lambda x: (x[jnp.argmax(x[:, 0])], x[0, jnp.argmax(x[0])]),
    "derivatives of slices": jax.grad(lambda x: (x[1:-1] ** 2).sum() + x[::2].sum() + x[jnp.argmax(x[:, 0]), 0]),
    "means": lambda x: (x.mean(), x.var(0), x / x.shape[0], x * (1 / x.shape[1]), x * (x.shape[0] / 2)),
    "loops": lambda x: jax.lax.fori_loop(0, x.shape[0], lambda i, c: c + x[i] * x.shape[1], jnp.zeros(x.shape[1])),
    "scans": lambda x: jax.lax.scan(lambda c, row: (c + row / x.shape[0], c), jnp.zeros(x.shape[1]), x),
    "splits": lambda x: jnp.split(jnp.concatenate([x, x]), 2),
    "products": lambda x: (x[None] @ x.T[None], jnp.einsum("ij,kj->ik", x, x), jnp.outer(x[0], x[:, 0])),
    "callbacks": lambda x: jax.pure_callback(lambda v: np.asarray(v), jax.ShapeDtypeStruct((), x.dtype), x.sum()),
    "choices": lambda x: jax.lax.cond(x[0, 0] > 0, lambda: x * x.shape[0], lambda: x),
    "custom derivatives": lambda x: jax.nn.relu(x) + jax.checkpoint(jnp.sin)(x) + jax.nn.softmax(x),
}


@pytest.mark.parametrize("name", SAME)
def test_one_program_in_other_words(name: str) -> None:
    for n, m in ((5, 7), (4, 4), (8, 3), (70, 6)):
        assert own(SAME[name], "n m", n=n, m=m) is None


def test_batches_of_one_are_the_same_program() -> None:
    def attention(x: Array) -> Array:
        return jax.nn.softmax(x @ x.swapaxes(1, 2), -1) @ x

    assert own(attention, "b s 4", b=1, s=5) is None


def called(x: Array, k: float) -> Array:
    return jax.pure_callback(lambda v: v * k, jax.ShapeDtypeStruct((), x.dtype), x.sum())


OTHER = {
    "a number": lambda x: x * {5: 2.0}.get(x.shape[0], 1.0),
    "an operator": lambda x: jnp.sin(x) if x.shape[0] in {5} else jnp.cos(x),
    "an axis": lambda x: x.sum({5: 0}.get(x.shape[0], 1)),
    "an order": lambda x: x - x.T if x.shape[0] in {5} else x.T - x,
    "an operand more": lambda x: jnp.concatenate([x] * {5: 3}.get(x.shape[0], 2)).sum(0),
    "a result more": lambda x: [x] * {5: 2}.get(x.shape[0], 1),
    "a weak type": lambda x: 1.0 if x.shape[0] in {5} else jnp.float32(1.0),
    "inside a loop": lambda x: jax.lax.map(lambda r: r * {5: 2.0}.get(x.shape[0], 1.0), x),
    "the steps of a loop": lambda x: jax.lax.fori_loop(0, {5: 2}.get(x.shape[0], 3), lambda i, c: c * 2, x),
    "a constant": lambda x: x * np.arange(100.0 + {5: 2}.get(x.shape[0], 3)).sum(),
    "inside a branch": lambda x: jax.lax.cond(x[0, 0] > 0, lambda: x * {5: 2.0}.get(x.shape[0], 1.0), lambda: x),
    "inside a callback": lambda x: called(x, {5: 2.0}.get(x.shape[0], 1.0)),
}


@pytest.mark.parametrize("name", OTHER)
def test_another_program(name: str) -> None:
    function: Any = OTHER[name]
    assert own(function, "n n", n=5) is not None
    assert own(function, "n n", n=6) is None


def layer(x: Array) -> Array:
    """A layer with places, masks and a loop: what its two traces compute from sizes differs in form."""
    places = jnp.cos(jnp.ones((50, 4))[jnp.arange(x.shape[0])])
    y = jax.nn.softmax(jnp.where(x @ x.T > 0, 0.0, -1e9), -1) @ (x + places)
    return jax.nn.gelu(y) / x.shape[0] + jax.lax.map(jax.nn.relu, x) + y.var(-1, keepdims=True)


def test_traces_of_the_same_equations_are_compared_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = trace_function(layer, ("n 4",), bounds={"n": (1, 50)})
    with monkeypatch.context() as patched:
        patched.setattr("relax_eg.frontends.trace_check.canonical_form", lambda *_: pytest.fail("a canonical form"))
        for n in (5, 6, 20):
            assert TraceCheck(traced, False).difference({"n": n}) is None
    assert TraceCheck(traced, False).difference({"n": 1}) is None  # where JAX's own functions make other equations


def test_what_is_the_same_one_by_one_has_one_canonical_form(monkeypatch: pytest.MonkeyPatch) -> None:
    aligned: list[bool] = []

    def both(nodes: Nodes, general: Any, special: Any, sizes: Any) -> bool:
        found = is_same_aligned(nodes, general, special, sizes)
        nodes = Nodes(nodes.exact)
        whole = nodes.difference(canonical_form(nodes, general, sizes), canonical_form(nodes, special))
        assert whole is None or not found
        aligned.append(found)
        return found

    monkeypatch.setattr("relax_eg.frontends.trace_check.is_same_aligned", both)
    for function in (*SAME.values(), *OTHER.values()):
        for exact in (False, True):
            with contextlib.suppress(TraceError):
                traced = trace_function(function, ("n n",))
                for n in (1, 5, 6):
                    TraceCheck(traced, exact).difference({"n": n})
    assert aligned.count(True) > 20 and aligned.count(False) > 20


def test_arrays_that_a_function_holds_are_compared_by_content() -> None:
    held = {"table": jnp.arange(100.0)}

    def program(x: Array) -> Array:
        return x * held["table"].sum()

    found = TraceCheck(trace_function(program, ("n",)), False)
    assert found.difference({"n": 3}) is None
    held["table"] = jnp.arange(100.0)
    assert found.difference({"n": 4}) is None
    held["table"] = jnp.arange(100.0) + 1
    assert found.difference({"n": 5}) is not None and found.difference({"n": 3}) is None


def test_numbers_are_compared_up_to_rounding_unless_every_bit_counts() -> None:
    def program(x: Array) -> Array:
        return x * (x.shape[0] * 0.1 + 0.3)

    differs = [n for n in range(1, 40) if own(program, "n", True, n=n)]
    assert differs and not any(own(program, "n", n=n) for n in range(1, 40))
