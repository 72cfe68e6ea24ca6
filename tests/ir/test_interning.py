"""One object for equal expressions, and only for those."""

from __future__ import annotations

import gc
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from module_strategies import Numbers

from relax_eg import ir, tir
from relax_eg.ir import Foreign, Tensor, const, node, var
from relax_eg.ir import expr as module_of_expr
from relax_eg.shapes import Dim

X = var("x", Tensor("n 4"))


def with_attr(value: object) -> ir.Expr:
    return node("op", (X,), (("a", value),), Tensor("n"))


def test_equal_parts_give_one_object() -> None:
    assert with_attr((1, Dim.of("n + n"))) is with_attr((1, Dim.of("2*n")))
    assert const(1.5) is const(np.float32(1.5)) is const(np.array(1.5, ">f4"))
    assert const(float("nan")) is const(float("nan"))
    assert with_attr(float("nan")) is with_attr(float("nan"))
    assert with_attr(ml_dtypes.bfloat16(2)) is with_attr(ml_dtypes.bfloat16(2))
    assert ir.Tensor("n 2*m") == ir.Tensor(("n", "m + m"), "float32")


@pytest.mark.parametrize(
    "values",
    [
        (1, True, 1.0, Dim.of(1), np.int32(1), np.int64(1), np.float64(1), ml_dtypes.bfloat16(1), "1"),
        (0.0, -0.0, np.float32(0.0), np.float32(-0.0), 0, False, None, ()),
        ((1,), (True,), (1.0,), Numbers((1,), 0.0), Numbers((True,), 0.0), Foreign((1,)), Foreign((True,))),
        (Foreign(0.0), Foreign(-0.0), Foreign((0.0,)), Foreign((-0.0,)), Foreign(Numbers((), 0.0))),
    ],
)
def test_values_that_python_calls_equal_stay_apart(values: tuple[object, ...]) -> None:
    assert len({with_attr(v) for v in values}) == len(values)
    assert len({with_attr((v,)) for v in values}) == len(values)


def test_constants_are_told_apart_by_dtype_and_bits() -> None:
    nan = np.frombuffer(struct.pack("<I", 0x7FC00001), np.float32)[0]
    made = [const(1), const(True), const(1.0), const(1.0, "float16"), const(1.0, "bfloat16"), const([1.0])]
    made += [const(0.0), const(-0.0), const(float("nan")), const(nan)]
    assert len(set(made)) == len(made)


def test_what_nobody_holds_is_forgotten() -> None:
    gc.collect()
    before = len(module_of_expr._table)
    e = X
    for i in range(2_000):
        e = node("op", (e,), (("i", i),), Tensor("n"))
    assert len(module_of_expr._table) >= before + 2_000
    del e
    gc.collect()
    assert len(module_of_expr._table) <= before


@pytest.mark.parametrize(
    "make",
    [with_attr, lambda of: (Dim.var(of[0]) + 6 * of[1]) // 7, lambda of: tir.index(of[1]) * tir.index(Dim.var(of[0]))],
    ids=["expressions", "sizes", "terms"],
)
def test_threads_get_the_same_object(make: Callable[[tuple[str, int]], object]) -> None:
    def build(_: int) -> list[object]:
        made: list[object] = []
        for i in range(100):
            # Some are dropped at once, so that they die while other threads look them up.
            make(("dropped", i))
            made.append(make(("kept", i)))
        return made

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(build, range(32)))
    assert all(a is b for result in results for a, b in zip(results[0], result, strict=True))


def test_foreign_objects() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError

        __hash__ = None  # type: ignore[assignment]

    class Loud:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError

        def __hash__(self) -> int:
            return 1

    odd, plain = Odd(), {"a": 1}
    assert Foreign(odd) == Foreign(odd) and Foreign(odd) != Foreign(Odd())
    assert Foreign(Loud()) != Foreign(Loud())
    assert Foreign(plain) == Foreign(plain) and Foreign(plain) != Foreign(dict(plain))
    assert Foreign(Numbers((1,), 2.0)) == Foreign(Numbers((1,), 2.0)) != Foreign((1, 2.0))
    assert hash(Foreign((1, 2))) == hash(Foreign((1, 2)))
    assert str(Foreign((1, 2))) == str(Foreign((1, 2))) != str(Foreign((True, 2)))


def test_call_annotations() -> None:
    result = ir.Tuple((Tensor("m n"), Tensor("k*q"), Tensor("k")))
    callee = ir.Callable((Tensor("n m"), ir.Tuple((Tensor("k"),))), result)
    args = [Tensor("m 4"), ir.Tuple((Tensor("2*m"),))]
    assert ir.call_annotation(callee, args) == ir.Tuple(
        (Tensor("4 m"), Tensor(dtype="float32", ndim=1), Tensor(("2*m",), "float32"))
    )
