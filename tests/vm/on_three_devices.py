"""Programs that name devices run on them. `tests/test_devices.py` runs the checks."""

from __future__ import annotations

import tempfile

import jax
import numpy as np

import relax_eg as rx
from relax_eg.rules.checking.check import without_checks

SPLIT = """
@R.function
def head(x: R.Tensor(("n", 4), "float32"), w: R.Tensor((4, 4), "float32")) -> R.Tensor(("n", 4), "float32"):
    R.func_attr({"vdevice": "cpu:1"})
    return R.tanh(x @ w)

@R.function
def main(x: R.Tensor(("n", 4), "float32"), w: R.Tensor((4, 4), "float32"), v: R.Tensor((4, 4), "float32", "cpu:1")):
    y = R.exp(x)
    z = R.to_vdevice(y, "cpu:1")
    a = z @ v
    b = R.sum(y + 1.0, axis=[1])
    c = head(y, w)
    d: R.Tensor((), "float32", "cpu:2") = R.sum(a) + R.sum(b) + R.sum(c)
    return a, b, c, d
"""

RECURSIVE = """
@R.function
def power(
    x: R.Tensor((3,), "float32"), xs: R.Ref(R.Tensor((3,), "float32")), n: R.Tensor((), "int32")
) -> R.Tensor((3,), "float32"):
    R.func_attr({"vdevice": "cpu:2"})
    if n == 0:
        return R.read_ref(xs)
    R.write_ref(xs, R.read_ref(xs) * x)
    return power(x, xs, n - 1)

@R.function
def started(x: R.Tensor((3,), "float32"), n: R.Tensor((), "int32")) -> R.Tensor((3,), "float32"):
    R.func_attr({"vdevice": "cpu:2"})
    r = R.new_ref(x)
    return power(x, r, n)

@R.function
def main(x: R.Tensor((3,), "float32"), n: R.Tensor((), "int32")):
    u = R.unique(x)
    m = R.match_cast(u, R.Tensor(("m",), "float32"))
    return started(x, n), R.to_vdevice(m + 1.0, "cpu:1")
"""


LISTS = """
@R.data
class List(a):
    Nil = ()
    Cons = (a, List(a))

@R.function
def total(xs: List(R.Tensor((3,), "float32")), x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
    match xs:
        case List.Nil():
            return x
        case List.Cons(h, t):
            return total(t, h * 2.0 + x)

@R.function
def main(x: R.Tensor((3,), "float32")):
    y = R.to_vdevice(x + 1.0, "cpu:1")
    return total(List.Cons(y, List.Cons(x, List.Nil())), x)
"""


CLOSURES = """
@R.function
def apply(f: R.Callable((R.Tensor((4,), "float32"),), R.Tensor((4,), "float32")), x: R.Tensor((4,), "float32")
          ) -> R.Tensor((4,), "float32"):
    return f(f(x)) + x

@R.function
def there(x: R.Tensor((4,), "float32"), w: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
    R.func_attr({"vdevice": "cpu:1"})
    return R.tanh(x * w) + w

@R.function
def main(x: R.Tensor((4,), "float32"), w: R.Tensor((4,), "float32"), c: R.Tensor((), "bool")):
    w1 = R.to_vdevice(w, "cpu:2")
    def here(y: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        return y * w1
    if c:
        g = R.make_closure(there, (w1,))
    else:
        g = here
    return apply(g, x)
"""

RETURNED = """
@R.function
def there(x: R.Tensor((4,), "float32")
          ) -> R.Tuple(R.Tensor((4,), "float32", "cpu:2"), R.Tensor(ndim=1, dtype="float32")):
    R.func_attr({"vdevice": "cpu:1"})
    u = R.unique(x)
    y = R.match_cast(u, R.Tensor(("m",), "float32"))
    return R.exp(x), R.tanh(y)

@R.function
def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32", "cpu:1"):
    both = there(x)
    return both[0] + R.sum(both[1])
"""


def places(value: object) -> list[int]:
    return [d.id for x in jax.tree_util.tree_leaves(value) for d in x.devices()]


def check_values_and_functions() -> None:
    with without_checks():
        best = rx.optimize(rx.parse(SPLIT), dynamic="capacity")
    listed = "\n".join(map(str, best.strategy.instructions()))
    assert listed.count("copyto") == 4, listed  # x or y, w, v and the last sum
    with tempfile.TemporaryDirectory() as folder:
        best.save(f"{folder}/m.rxe")
        again = rx.load(f"{folder}/m.rxe")
    assert again.module == best.module
    w = np.eye(4, dtype=np.float32)
    for n in (3, 5, 6, 7):
        x = np.random.default_rng(n).normal(size=(n, 4)).astype(np.float32)
        y = np.exp(x)
        wanted = y, (y + 1).sum(1), np.tanh(y), y.sum() + (y + 1).sum() + np.tanh(y).sum()
        for fn in (best, again):
            found = fn(x, w, w)
            assert places(found) == [1, 1, 1, 2], places(found)
            for ours, theirs in zip(found, wanted, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert best.strategy.executables.executable_count == 6
    assert best.check(x, w, w).passed


def check_recursion_and_cells() -> None:
    with without_checks():
        best = rx.optimize(rx.parse(RECURSIVE))
    x = np.array([2, 3, 2], np.float32)
    for n in (0, 1, 3):
        power, more = best(x, np.int32(n))
        np.testing.assert_allclose(power, x ** (n + 1))
        np.testing.assert_array_equal(more, [3, 4])
        assert places((power, more)) == [2, 1], places((power, more))


def check_data_of_two_devices() -> None:
    """What a list holds may be on any device: a block that reads values of two copies one of them."""
    with without_checks():
        best = rx.optimize(rx.parse(LISTS))
    np.testing.assert_array_equal(best(np.ones(3, np.float32)), np.full(3, 7))


def check_closures_of_devices() -> None:
    """Who calls a closure does not know where it runs: it copies its arguments, and the caller its result."""
    with without_checks():
        best = rx.optimize(rx.parse(CLOSURES))
    x, w = np.array([0.1, 0.2, 0.3, 0.4], np.float32), np.array([1, 2, 3, 4], np.float32)
    np.testing.assert_allclose(best(x, w, np.bool_(False)), x * w * w + x, rtol=1e-5)
    _, profile = best.strategy.profiled([jax.numpy.asarray(x), jax.numpy.asarray(w), jax.numpy.bool_(True)])
    copies = [r for r in profile.rows.values() if "copyto" in r.text]
    # w and x for each call of there, its two results, and w to cpu:2 and, for the branches, back
    assert sum(r.count for r in copies) == 8, profile
    y = np.tanh(np.tanh(x * w) * w + w * w) + w + x
    np.testing.assert_allclose(best(x, w, np.bool_(True)), y, rtol=1e-5)


def check_results_on_devices() -> None:
    module = rx.parse(RETURNED)
    assert rx.parse(str(module)) == module
    for dynamic in ("exact", "capacity"):
        with without_checks():
            best = rx.optimize(module, dynamic=dynamic)
        for x in ([1, 2, 2, 3], [1, 1, 1, 1]):
            found = best(np.array(x, np.float32))
            assert places(found) == [1]
            np.testing.assert_allclose(found, np.exp(x) + np.tanh(np.unique(x)).sum(), rtol=1e-5)
