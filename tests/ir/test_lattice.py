"""Which annotation says more, what two have in common, when no value fits both."""

from __future__ import annotations

import itertools

import pytest

from relax_eg.ir import Annotation, Callable, Object, Shape, Tensor, Tuple
from relax_eg.ir.lattice import annotation_clash, covers, join, sizes_equal
from relax_eg.shapes import Dim

N4 = Tensor("n 4")
FINER: list[tuple[Annotation, Annotation]] = [
    (Object(), N4),
    (Object(), Shape("n")),
    (Tensor(), N4),
    (Tensor(dtype="float32"), N4),
    (Tensor(ndim=2), N4),
    (Tensor(dtype="float32", ndim=2), N4),
    (Tensor((4,)), Tensor("4")),
    (Tensor(ndim=1), Tensor((4,))),
    (Shape(), Shape("n")),
    (Shape(ndim=2), Shape("n m")),
    (Tuple((Tensor(), Object())), Tuple((N4, N4))),
]


@pytest.mark.parametrize(("coarse", "fine"), FINER, ids=str)
def test_finer(coarse: Annotation, fine: Annotation) -> None:
    assert covers(coarse, fine) and not covers(fine, coarse)
    assert join(coarse, fine) == join(fine, coarse) == coarse
    assert annotation_clash(coarse, fine) is None and annotation_clash(fine, coarse) is None


def test_sizes_are_compared_by_what_is_proved() -> None:
    assert covers(Tensor(("4*n",)), Tensor(("n*4",))) and not covers(Tensor("n"), Tensor("m"))
    assert annotation_clash(Tensor("n"), Tensor("m")) is None
    assert join(Tensor("n"), Tensor("m")) == Tensor(dtype="float32", ndim=1)
    both, total = Tensor(("k", "max(n, m) + min(n, m)")), Tensor(("k", "n + m"))
    assert covers(both, total) and covers(total, both)
    assert join(both, total) == both and join(total, both) == total
    assert join(Shape(both.shape), Shape(total.shape)) == Shape(both.shape)
    # A match_cast's size may be 0, so a size here too: there is no (n*m)//m at m = 0, and n*0 is m*0.
    assert sizes_equal(Dim.of("(n*m)//m"), Dim.of("n")) is None
    assert (
        sizes_equal(Dim.of("n*m + n"), Dim.of("n*m")) is None
        and sizes_equal(Dim.of("n*m + n + 1"), Dim.of("n*m")) is False
    )


CLASHES: list[tuple[Annotation, Annotation, str]] = [
    (N4, Tensor("n 5"), "axis 1: sizes 4 and 5 differ"),
    (Tensor("n"), Tensor(("n + 1",), "float32"), "axis 0: sizes n and n + 1 differ"),
    (Tensor(("2*n",)), Tensor(("2*m + 1",)), "axis 0: sizes 2*n and 2*m + 1 differ"),
    (Shape(("k", "max(n, 4)")), Shape("m 3"), "axis 1: sizes max(4, n) and 3 differ"),
    (N4, Tensor("n"), "ranks 2 and 1 differ"),
    (N4, Tensor(dtype="int32"), "dtypes float32 and int32 differ"),
    (Shape("n 2"), Shape("n 3"), "axis 1: sizes 2 and 3 differ"),
    (Shape(ndim=1), Shape("n 3"), "ranks 1 and 2 differ"),
    (N4, Shape("n 4"), "a tensor and a shape"),
    (Tuple((N4,)), Tuple((N4, N4)), "tuples of 1 and 2"),
    (Tuple((N4, N4)), Tuple((N4, Shape("n"))), "field 1: a tensor and a shape"),
    (Callable((N4,), N4), Tuple(()), "a function and a tuple"),
    (Callable((N4,), N4), Callable((), N4), "functions of 1 and 0 parameters"),
]


@pytest.mark.parametrize(("a", "b", "why"), CLASHES, ids=[why for _, _, why in CLASHES])
def test_clash(a: Annotation, b: Annotation, why: str) -> None:
    assert annotation_clash(a, b) == why
    assert annotation_clash(b, a) is not None
    assert not covers(a, b) and not covers(b, a)


def test_a_join_covers_both() -> None:
    some = list(dict.fromkeys(a for pair in FINER for a in pair))
    for a, b in itertools.product(some, repeat=2):
        assert covers(join(a, b), a) and covers(join(a, b), b)
        if covers(a, b):
            assert join(a, b) == a
