"""64-bit numbers: what a module says of them holds where JAX has none switched on, however the module runs."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.backend.calls import program
from relax_eg.errors import ShapeError, SpecError, TraceError
from relax_eg.frontends.modules import with_dataflow_blocks
from relax_eg.ops.interpret import evaluate

NONE = rx.RuleSet("none", ())

SQUARES = """
def main(x: R.Tensor((n,), "int32")):
    y = R.op.astype(x, "int64")
    return R.op.astype(y * y, "float32")
"""
CONSTANT = """
def main(x: R.Tensor((n,), "int32")):
    return (R.const(1099511627776, "int64"), R.const(18446744073709551615, "uint64"), R.const(0.1, "float64"))
"""
SUMS = """
def main(x: R.Tensor((n, 3), "int64"), w: R.Tensor((3, 2), "int64")):
    with R.dataflow():
        y = x @ w + R.op.iota((n, 2), 0, "int64")
        R.output(y)
    return y
"""
FLOATS = """
def main(x: R.Tensor((n, 3), "float64"), w: R.Tensor((3,), "float64")):
    return R.op.sum(x * w, 1)
"""
POSITIONS = """
def main(x: R.Tensor((n,), "float64")):
    return (R.op.argmax(x, 0, False, "int64"), R.op.argsort(x, 0, "int64"), R.op.arange(n, dtype="int64"))
"""
SIZES = """
def main(x: R.Tensor((n,), "int8")):
    return (R.op.dim_value(n * n * n * n, "int64"), R.op.dim_value(3000000000 * n, "float64"))
"""
NARROWED = """
def main(x: R.Tensor((n,), "int64"), y: R.Tensor((n,), "uint64")):
    z = R.op.divide(R.op.astype(y, "int64"), 3)
    return (R.op.astype(x, "int32"), R.op.astype(y, "float32"), R.op.astype(x, "uint64"), z)
"""
COMPLEX = """
def main(x: R.Tensor((n,), "complex128")):
    return (x * x, R.op.real(x), R.op.astype(R.op.imag(x), "float32"))
"""
LOOP = """
def body(i: R.Tensor((), "int32"), c: R.Tensor((n,), "int64")):
    return (i + 1, c * 3)

def test(i: R.Tensor((), "int32"), c: R.Tensor((n,), "int64")):
    return i < 25

def main(x: R.Tensor((n,), "int32")):
    t = R.while_loop(test, body, R.const(0, "int32"), R.op.astype(x, "int64"), condition_constants=0, body_constants=0)
    return t[1]
"""
BRANCH = """
def main(x: R.Tensor((n,), "int32")):
    y = R.op.astype(x, "int64") * 4294967296
    if R.op.any(y > 8589934592):
        z = y + 1
    else:
        z = y - 1
    return z
"""
STEPS = """
def main(x: R.Tensor((n,), "int64")):
    u = R.op.unique(x * 4294967296)
    v = R.match_cast(u, R.Tensor((m,), "int64"))
    return (v + 1, R.op.dim_value(m, "uint64"))
"""
UNKNOWN = """
def main(x: R.Tensor(ndim=1)):
    return x
"""
TIMES = """
def main(x: R.Tensor((n,), "int32")):
    return x * 3
"""
FAR = """
def main(x: R.Tensor((4,), "float32"), i: R.Tensor((k,), "int64"), u: R.Tensor((k,), "uint64")):
    return (
        R.op.take(x, i, 0, "fill"), R.op.take(x, u, 0, "fill"), R.op.take(x, u, 0, "clip"), R.op.take(x, i, 0, "clip"),
        R.op.scatter(x, i, R.op.astype(i, "float32"), "set", "fill"),
    )
"""


def of(text: str, *dtypes: str) -> tuple[str, list[Any]]:
    return text, [np.array([100000, -(2**20), 7], d) if d == "int32" else np.array([3, 1, 2], d) for d in dtypes]


WRAPPED = """
def main(x: R.Tensor((n,), "int32"), y: R.Tensor((n,), "int64")):
    a = x * x
    b = R.op.integer_pow(y, y=2)
    c = R.op.abs(x)
    zero = R.const(0, "int32")
    eight = R.const(8, "int32")
    signs = (R.op.less(a, zero), R.op.less(b, R.const(0, "int64")), R.op.less(c, zero), R.op.greater_equal(a, zero))
    return (signs, R.op.abs(a), R.op.abs(b), R.op.divide(a, eight), R.op.divide(c, eight), R.op.square(x))
"""
PROGRAMS: dict[str, tuple[str, list[Any]]] = {
    "squares": of(SQUARES, "int32"),
    "constant": of(CONSTANT, "int32"),
    "sums": (SUMS, [np.arange(6).reshape(2, 3) * 2**33, np.arange(6).reshape(3, 2) - 2**30]),
    "floats": (FLOATS, [np.arange(6).reshape(2, 3) / 3, np.array([1.0, 1e-12, 1e-9])]),
    "positions": (POSITIONS, [np.array([0.1, 0.3, 0.2])]),
    "sizes": (SIZES, [np.zeros(1000, np.int8)]),
    "narrowed": (NARROWED, [np.array([2**40 + 5, -(2**62)]), np.array([2**64 - 1, 3], np.uint64)]),
    "complex": (COMPLEX, [np.array([1 + 1e-12j, 2j])]),
    # XLA alone takes a square for never negative, and the magnitude of the least integer, too.
    "wrapped": (WRAPPED, [np.array([50000, 3, -(2**31)], np.int32), np.array([2**32 - 5, 3 * 10**9, -(2**63)])]),
    "loop": of(LOOP, "int32"),
    "branch": of(BRANCH, "int32"),
    "steps": (STEPS, [np.array([5, 2**20, 5])]),
    "unknown": (UNKNOWN, [np.array([2**40, 1])]),
    "far": (FAR, [np.arange(4, dtype=np.float32), np.array([2**32, -(2**32), 1]),
                  np.array([2**64 - 1, 2**32, 2], np.uint64)]),
}  # fmt: skip
IN_STEPS = ("steps", "unknown")


def same(ours: Any, theirs: Any) -> None:
    for x, y in zip(jax.tree_util.tree_leaves(ours), jax.tree_util.tree_leaves(theirs), strict=True):
        assert np.asarray(x).dtype == y.dtype
        near = 1e-15 if y.dtype in (np.float64, np.complex128) else 1e-6
        exact = y.dtype.kind in "biu"
        np.testing.assert_allclose(np.asarray(x), y, 0 if exact else near, 0, strict=True)


def once_more(best: rx.types.Optimized, folder: Any) -> rx.types.Optimized:
    best.save(folder / "saved")
    return rx.load(folder / "saved")


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_one_meaning(name: str, tmp_path: Any) -> None:
    text, args = PROGRAMS[name]
    assert not jax.config.values["jax_enable_x64"]
    module = rx.parse(text)
    meant = evaluate(module, args)
    ways: list[dict[str, Any]] = [{}]
    ways += [] if name in IN_STEPS else [{"execution": "kernels"}, {"dynamic": "capacity"}]
    for options in ways:
        best = rx.optimize(module, rules=NONE, **options)
        same(best(*args), meant)
        found = best.check(*args)
        assert found.passed, f"{options}: {found}"
    best = rx.optimize(module)
    same(once_more(best, tmp_path)(*args), meant)
    if name not in IN_STEPS:
        same(best.to_jax()(*args), meant)
        with jax.enable_x64(True):
            same(jax.jit(best.to_jax())(*args), meant)


@pytest.mark.parametrize("name", ["squares", "constant", "positions", "loop", "branch"])
def test_inside_a_program_that_has_no_64_bits(name: str) -> None:
    """Results of 64 bits come out of somebody else's `jax.jit`; parameters of 64 bits cannot go in."""
    text, args = PROGRAMS[name]
    module = rx.parse(text)
    run = jax.jit(rx.optimize(module).to_jax())
    if name == "positions":
        with pytest.raises(ShapeError, match=r"`x` should be float64, got float32.*enable_x64\(True\)"):
            run(*args)
        return
    same(run(*args), evaluate(module, args))


@pytest.mark.parametrize("name", ["positions", "far"])
def test_legalised(name: str) -> None:
    text, args = PROGRAMS[name]
    module = rx.debug.legalize(with_dataflow_blocks(rx.parse(text)))
    assert module.programs
    same(rx.optimize(module, rules=NONE)(*args), evaluate(rx.parse(text), args))


def test_random_bits_that_jax_cannot_lower_elsewhere() -> None:
    key = jax.random.key(0)
    with jax.enable_x64(True):
        module = rx.trace(lambda k: jax.random.bits(k, (3,), "uint64"), "@ key")
        meant = np.asarray(jax.random.bits(key, (3,), "uint64"))
    best = rx.optimize(module)
    same(best(key), meant)
    with pytest.raises(TraceError, match=r"draws 64 random bits at once.*\n.*enable_x64"):
        jax.jit(best.to_jax())(key)
    with jax.enable_x64(True):
        same(jax.jit(best.to_jax())(key), meant)


def test_weights_are_prepared_with_64_bits() -> None:
    text, args = PROGRAMS["sums"]
    module = rx.parse(text)
    meant = evaluate(module, args)
    for options in ({}, {"execution": "kernels"}, {"dynamic": "capacity"}):
        best = rx.optimize(module, weights=["w"], **options)
        same(best.prepare(args[1])(args[0]), meant)
        held = best.prepare(w=args[1])
        assert all(x.dtype == np.int64 for x in jax.tree_util.tree_leaves(held.prepared))
        same(held(args[0]), meant)


def test_memory_of_64_bit_values() -> None:
    text, args = PROGRAMS["sums"]
    best = rx.optimize(rx.parse(text), execution="kernels", rules=NONE, memory_limit="1 MiB", at={"n": 2})
    same(best(*args), evaluate(rx.parse(text), args))
    assert best.runner.measured_plan({"n": 2}).program.values[0].annotation.dtype == "int64"
    assert rx.optimize(rx.parse(text), measure=1, at={"n": 4}).report is not None


def test_a_family_of_64_bit_programs() -> None:
    text, args = PROGRAMS["sums"]
    best = rx.optimize(rx.parse(text), bounds={"n": (1, 4096)})
    same(best(*args), evaluate(rx.parse(text), args))


def test_numpy_arrays_are_what_jax_takes_them_for_where_nothing_else_is_said() -> None:
    """Beside a parameter of 64 bits, an array of float64 for one of float32 is taken as JAX takes it."""
    module = rx.parse("""
def main(x: R.Tensor((n,), "float32"), y: R.Tensor((n,), "float64")):
    return (x + x, y + y)
""")
    x = np.array([0.1, 0.2])
    for options in ({}, {"execution": "kernels"}, {"dynamic": "exact"}):
        best = rx.optimize(module, **options)
        same(best(x, x), (x.astype(np.float32) * 2, x + x))
        same(best.to_jax()(x, x), (x.astype(np.float32) * 2, x + x))
        assert best.check(x, x).passed
    with jax.enable_x64(True), pytest.raises(ShapeError, match="`x` should be float32, got float64"):
        best(x, x)
    with pytest.raises(ShapeError, match="`y` should be float64, got float32"):
        best(x, x.astype(np.float32))


@pytest.mark.parametrize("execution", ["whole", "kernels"])
def test_tuples_and_shapes_of_64_bits(execution: Any) -> None:
    """In a tuple, too, each array is taken for what its place is declared to be."""
    module = rx.parse("""
def main(t: R.Tuple(R.Tensor((n,), "int64"), R.Tensor((n,), "float32")), s: R.Shape(["n"])):
    return ((t[0] * 4294967296, t[1] + 1.0), R.op.dim_value(n * 4294967296, "uint64"))
""")
    whole, halves = np.array([3, 4]), np.array([1.5, 2.5])
    best = rx.optimize(module, rules=NONE, execution=execution)
    same(best((whole, halves), (2,)), evaluate(module, [(whole, halves.astype(np.float32)), (2,)]))
    assert best.check((whole, halves), (2,)).passed


def test_python_numbers() -> None:
    module = rx.parse("""
def main(i: R.Tensor((), "int64"), j: R.Tensor((), "int32")):
    return (i + 1, j + 1)
""")
    best = rx.optimize(module)
    same(best(2**40, 3), (np.int64(2**40 + 1), np.int32(4)))
    with pytest.raises(ShapeError, match="`j` should be int32, which does not hold 1099511627776"):
        best(1, 2**40)
    narrow = rx.optimize(lambda j: j + 1, "@ int32")
    with pytest.raises(ShapeError, match="`j` should be int32, which does not hold 1099511627776"):
        narrow(2**40)


def test_a_trace_is_as_jax_has_it() -> None:
    """With x64 off a function of 64 bits is one of 32, and specs say so; with x64 on it is one of 64 for good."""

    def function(x: Any) -> Any:
        return jnp.arange(x.shape[0]) * 2**20 * x.astype("int64")

    x = np.array([1, 2**20, 3], np.int32)
    with pytest.warns(UserWarning, match="int64"):
        narrow = rx.optimize(function, "n @ int32")
        assert narrow(x).dtype == np.int32
    with pytest.raises(SpecError, match="int64 is switched off"):
        rx.optimize(function, "n @ int64")
    with jax.enable_x64(True):
        wide = rx.optimize(function, "n @ int32")
        meant = np.asarray(jax.jit(function)(x))
        same(wide(x), meant)
    same(wide(x), meant)
    assert wide.check(x).passed


def test_gradients_of_64_bit_programs() -> None:
    module = rx.parse(FLOATS)
    x, w = PROGRAMS["floats"][1]
    for options in ({}, {"execution": "kernels"}):
        function = rx.optimize(module, **options).to_jax()
        with jax.enable_x64(True):
            found = jax.grad(lambda x, w, function=function: function(x, w).sum(), 1)(x, w)
        same(found, x.sum(0))


def test_other_programs_are_as_they_were() -> None:
    """JAX's mode is left alone, and a program without 64-bit numbers computes with none."""
    text, args = PROGRAMS["sums"]
    rx.optimize(rx.parse(text))(*args)
    assert jnp.arange(3).dtype == np.int32
    narrow = rx.parse('def main(x: R.Tensor((n,), "float32")):\n    return x * 2.0\n')
    assert not narrow.wide and rx.parse(text).wide
    assert rx.optimize(narrow)(np.ones(3)).dtype == np.float32


def test_compiled_in_a_thread() -> None:
    text, args = PROGRAMS["sums"]
    best = rx.optimize(rx.parse(text), dynamic=rx.Dynamic(mode="capacity", background=True))
    best.compile_ahead({"n": 2}, background=True)
    same(best(*args), evaluate(rx.parse(text), args))


def test_a_check_is_of_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that runs as it was written is compared with the reference interpreter: what XLA gets wrong shows."""
    module = rx.parse(SQUARES)
    best = rx.optimize(module, rules=NONE)
    x = PROGRAMS["squares"][1][0]
    assert best.check(x).passed and "against the reference interpreter" in str(best.check(x))
    monkeypatch.setattr(program, "width_context", lambda wide: nullcontext())
    monkeypatch.setattr(program, "has_x64", lambda: True)
    best = rx.optimize(module, rules=NONE)
    with pytest.warns(UserWarning, match="int64"):
        found = best.check(x)
    assert not found.passed and found.max_error > 0.1
    large = np.zeros(10**7, np.int32)
    assert "reference" not in str(rx.optimize(rx.parse(TIMES)).check(large))


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint64", "int8"])
def test_quotients_that_xla_knows(dtype: str) -> None:
    """XLA ends the process where it divides an integer by a constant 0 while it compiles."""
    least = np.iinfo(dtype).min
    module = rx.parse(f"""
def main(x: R.Tensor((2,), "{dtype}")):
    zero = R.const(0, "{dtype}")
    least = R.const({least}, "{dtype}")
    seven = R.const(7, "{dtype}")
    one = R.op.bitwise_not(zero)
    y = x * zero
    return (
        R.op.divide(seven, zero) + y, R.op.remainder(seven, zero) + y, R.op.divide(least, one) + y,
        R.op.remainder(least, one) + y, R.op.divide(x, y), R.op.remainder(x, y), R.op.divide(x, zero),
    )
""")
    x = np.array([5, 3], dtype)
    meant = evaluate(module, [x])
    assert int(meant[0][0]) == (np.iinfo(dtype).max if dtype.startswith("u") else -1) and int(meant[1][0]) == 7
    for options in ({}, {"execution": "kernels"}):
        same(rx.optimize(module, rules=NONE, **options)(x), meant)
    same(rx.optimize(rx.debug.legalize(with_dataflow_blocks(module)), rules=NONE)(x), meant)


def test_a_check_with_itself_says_so() -> None:
    best = rx.optimize(lambda x: x + 1, "n", rules=NONE)
    assert str(best.check(np.ones(3, np.float32))).endswith("against itself, since it runs as it was written")
    large = rx.parse('def main(x: R.Tensor(("n", "n"), "float32")):\n    return x @ x\n')
    best = rx.optimize(large, rules=NONE)
    for n, against in ((4, "the reference interpreter"), (512, "itself, since it runs as it was written")):
        assert best.check(np.ones((n, n), np.float32)).against == against
