"""Positions that are out of range at some sizes: a program traced once gives what `jax.jit` gives at each of them.

In JAX an index that is out of range is moved inside, and a slice ends where its axis does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.backend.lowering.lower import run_function
from relax_eg.dynamic import plan
from relax_eg.errors import RelaxEgError
from relax_eg.frontends.jax.indexing import _slice_length  # type: ignore[reportPrivateUsage]
from relax_eg.frontends.jax.trace import trace_function
from relax_eg.frontends.symbolic import SymbolicSizes
from relax_eg.ops.interpret import evaluate
from relax_eg.shapes import Dim, ceildiv, dim_min

Array = Any
ROWS = (1, 2, 3, 5, 8)

INDEXED: dict[str, Callable[[Array], Any]] = {
    "second column": lambda x: x.T[:, 1],
    "fourth row": lambda x: x[3],
    "third row from the end": lambda x: x[-3],
    "one element": lambda x: x[4, -7],
    "listed": lambda x: x[np.array([0, 5])],
    "listed, evenly": lambda x: x[np.array([1, 3, 5])],
    "listed along two axes": lambda x: x[np.array([0, 3, 5]), np.array([4, 1, -7])],
    "computed": lambda x: x[jnp.argmax(x, 0) + 2],
    "computed from the end": lambda x: x[-jnp.argmax(x, 0) - 3],
    "taken": lambda x: jnp.take(x, np.array([0, 3, -1, 9]), axis=0),
    "taken, clipped": lambda x: jnp.take(x, np.array([0, 3, -4, 9]), axis=0, mode="clip"),
    "got, filled": lambda x: x.at[3].get(mode="fill", fill_value=7.0),
    "got, filled at several": lambda x: x.at[np.array([0, 4])].get(mode="fill", fill_value=-1.0),
    "along an axis": lambda x: jnp.take_along_axis(x, jnp.argsort(x, 0) + 2, 0, mode="promise_in_bounds"),
    "every second of one": lambda x: x[1:2:2],
    "every second from the fourth": lambda x: x[3:5:2],
    "every second but the last": lambda x: x[1:-1:2],
    "every third from the end": lambda x: x[-3:5:3],
    "backwards by two": lambda x: x[3:1:-2],
    "backwards by two to the fourth": lambda x: x[-1:2:-2],
    "last three": lambda x: x[-3:],
    "all but the last three": lambda x: x[:-3].sum(0),
    "from the fourth": lambda x: x[3:].sum(0),
    "at a computed start": lambda x: jax.lax.dynamic_slice_in_dim(x, jnp.argmax(x[:, 0]) + 2, 1, 0),
    "written beyond": lambda x: x.at[3].set(0.0),
    "written where promised": lambda x: x.at[jnp.argmax(x, 0) + 2].set(1.0, mode="promise_in_bounds"),
    "written, clipped": lambda x: x.at[np.array([3, 1])].add(1.0, mode="clip"),
    "updated": lambda x: jax.lax.dynamic_update_slice(x, x[:1] * 0, (2, 0)),
}


def rows(n: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(n).permutation(np.arange(2.0 * n, dtype=np.float32)).reshape(n, 2)


def assert_same(have: Any, want: Any, what: str) -> None:
    np.testing.assert_allclose(np.asarray(have), np.asarray(want), rtol=1e-5, err_msg=what, strict=True)


@pytest.mark.parametrize("name", INDEXED)
def test_positions_out_of_range(name: str) -> None:
    """As the reference has it, in one XLA program, and at capacity, where all sizes run in the same executable."""
    fn = INDEXED[name]
    module = rx.trace(fn, "n 2")
    room = max(ROWS)
    at_capacity = jax.jit(plan(module).lower({"n": room}))
    for n in ROWS:
        x = rows(n)
        wanted = jax.jit(fn)(x)
        assert_same(evaluate(module, [x]), wanted, f"reference at {n}")
        assert_same(jax.jit(lambda y: run_function(module, module.main, [y]))(x), wanted, f"whole at {n}")
        padded = np.full((room, 2), np.nan, np.float32)
        padded[:n] = x
        found = np.asarray(at_capacity([padded], {"n": np.int32(n)}))
        assert_same(found[tuple(map(slice, wanted.shape))], wanted, f"{n} of {room}")


@pytest.mark.parametrize("name", ["second column", "listed", "every second of one", "every second from the fourth"])
def test_positions_out_of_range_in_kernels_and_families(name: str) -> None:
    fn = INDEXED[name]
    kernels = rx.optimize(fn, "n 2", execution="kernels")
    family = rx.optimize(fn, "n 2", bounds={"n": (1, 8)}, at=[{"n": 1}, {"n": 8}])
    for n in (1, 2, 4):
        wanted = jax.jit(fn)(rows(n))
        assert_same(kernels(rows(n)), wanted, f"kernels at {n}")
        assert_same(family(rows(n)), wanted, f"family at {n}")


def test_a_slice_that_is_inside_stays_a_slice() -> None:
    text = str(rx.trace(lambda x: (x[0], x[-1], x[::2], x[1::3], x[1:7:2], x[::-2], x[2:5:2]), "n 2"))
    assert "take" not in text and "gather" not in text
    traced = trace_function(lambda x: x[5], ("n 2",), bounds={"n": (6, 9)})
    assert "begin=(5, 0)" in str(traced.module)


@pytest.mark.parametrize("stride", [2, 3])
def test_the_length_of_a_slice_is_read_off_its_count(stride: int) -> None:
    n, sizes = Dim.of("n"), SymbolicSizes()
    length = dim_min(n, 5) - dim_min(n, 3)
    for shorter in (length, dim_min(n, 7) - 1):
        count = ceildiv(shorter, stride)
        reach = _slice_length(count, stride, n, sizes)
        assert reach is not None and ceildiv(reach, stride) is count
        assert all(0 <= reach.evaluate({"n": k}) <= max(0, shorter.evaluate({"n": k})) for k in range(1, 12))
    assert _slice_length(n // 5, stride, n, sizes) is None


SLICED = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 2), dtype="float32")) -> R.Tensor((2, 2), dtype="float32"):
        with R.dataflow():
            y: R.Tensor((2, 2), dtype="float32") = R.strided_slice(x, begin=(3, 0), end=(5, 2), strides=(1, 1))
            z: R.Tensor((2, 2), dtype="float32") = R.exp(y)
            R.output(z)
        return z
"""

IN_STEPS = """
@I.ir_module
class Module:
    @R.function
    def main(w: R.Tensor(("k", 2), dtype="float32")) -> R.Tensor((2, 2), dtype="float32"):
        x: R.Tensor(("n", 2), dtype="float32") = R.match_cast(R.exp(w), R.Tensor(("n", 2), dtype="float32"))
        with R.dataflow():
            y: R.Tensor((2, 2), dtype="float32") = R.strided_slice(x, begin=(3, 0), end=(5, 2), strides=(1, 1))
            R.output(y)
        return y
"""


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (SLICED, {}), (SLICED, {"execution": "kernels"}), (SLICED, {"dynamic": "capacity"}), (IN_STEPS, {}),
        (SLICED, {"dynamic": "auto"}),
    ],
)  # fmt: skip
def test_a_module_whose_slice_does_not_fit_is_refused(text: str, options: dict[str, Any]) -> None:
    """Of a module that says itself where a slice ends, being inside is a precondition; at capacity, too."""
    run = rx.optimize(rx.parse(text), **options)
    for n in (5, 8, 6, 7):
        assert np.asarray(run(rows(n))).shape == (2, 2)
    for n in (4, 3, 1):
        with pytest.raises(RelaxEgError, match=rf"axis 0: 5 is more than {n}|reads p0 at .* on axis 0, whose extent"):
            run(rows(n))


def test_a_call_of_a_tensor_program_that_reads_beyond_is_refused() -> None:
    run = rx.optimize(rx.debug.legalize(rx.parse(SLICED)), dynamic="capacity")
    for n in (5, 8, 6):
        np.testing.assert_allclose(np.asarray(run(rows(n))), np.exp(rows(n)[3:5]), rtol=1e-5)
    for n in (4, 1):
        with pytest.raises(RelaxEgError, match=r"reads x at .* on axis 0, whose extent"):
            run(rows(n))
    assert not any(row.exact for row in run.statistics().sizes if row.sizes["n"] >= 5)


def test_the_reference_refuses_a_slice_that_does_not_fit() -> None:
    with pytest.raises(RelaxEgError, match="strided_slice: x"):
        evaluate(rx.parse(SLICED), [rows(4)])
