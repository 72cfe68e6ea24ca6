"""Deduction: what follows of the result, from operands known fully or in part."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ops_samples import USES
from sampling import sampled

from relax_eg.errors import OperatorError, UndecidedError
from relax_eg.ir.annotations import Annotation, Tensor, Tuple
from relax_eg.ir.expr import Expr, var
from relax_eg.ir.lattice import covers
from relax_eg.ops import TABLE, deduce, get
from relax_eg.ops import api as op
from relax_eg.ops.record import Attribute, Operator, attributes_of, call
from relax_eg.ops.site import Site
from relax_eg.shapes import Dim
from relax_eg.tir import Counts

DTYPES = ("float32", "int32", "bool", "complex64", "bfloat16")


def t(spec: str, name: str = "x") -> Expr:
    return var(name, Tensor(spec))


def coarse(ndim: int | None = None, dtype: str | None = "float32", name: str = "x") -> Expr:
    return var(name, Tensor(ndim=ndim, dtype=dtype))


# --- known fully ---


def test_sizes_are_computed() -> None:
    x = t("a b c d")
    assert op.reshape(x, ("d", "c", "b", -1)).annotation == Tensor("d c b a")
    assert op.reshape(x, (2, -1, "a")).annotation == Tensor((2, "(b*c*d)//2", "a"), "float32")
    assert op.reshape(x, -1).annotation == Tensor("a*b*c*d")
    assert op.concat([t("a b0"), t("a b1"), t("a b2")], 1).annotation == Tensor("a b0+b1+b2")
    parts = op.split(t("a b"), 3, 1).annotation
    third = Tensor(("a", "ceildiv(b, 3)"), "float32")
    assert parts == Tuple((third, third, Tensor(("a", "b - 2*ceildiv(b, 3)"), "float32")))
    assert (t("m 1") + t("n")).annotation == Tensor("m n")


def test_a_use_is_deduced_once_and_attributes_of_other_kinds_are_other_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[type] = []

    def deduction(site: Site) -> Tensor:
        asked.append(type(site["a"]))
        return Tensor(site.shape(), {int: "int32", bool: "bool", float: "float32"}[asked[-1]])

    def nothing(site: Site) -> Counts:
        return Counts(Dim.of(0), Dim.of(0), Dim.of(0))

    told = Operator("told", ("x",), deduction, "jax.lax.neg", None, (Attribute("a"),), np.negative, nothing)
    monkeypatch.setitem(TABLE, "told", told)
    found = [call("told", (t("n"),), {"a": a}).dtype for a in (1, True, 1.0, 1)]
    assert found == ["int32", "bool", "float32", "int32"] and asked == [int, bool, float]


def test_what_the_sizes_decide() -> None:
    assert op.concat([t("a 3"), t("b 4")], 1).annotation == Tensor(dtype="float32", ndim=2)
    with pytest.raises(OperatorError, match="on axis 0: sizes 2 and 5 differ"):
        op.concat([t("2 3"), t("5 4")], 1)
    with pytest.raises(OperatorError, match=r"on axis 0: sizes a and a \+ 1 differ"):
        op.concat([t("a 3"), t("a+1 4")], 1)
    with pytest.raises(OperatorError, match=r"on axis 0: sizes 2\*n and 2\*m \+ 1 differ"):  # one is even, one odd
        op.concat([t("2*n 3"), t("2*m+1 4")], 1)
    with pytest.raises(OperatorError, match=r"axis -1 does not broadcast: sizes m and m \+ 1 differ"):
        op.add(t("m"), t("m+1"))
    with pytest.raises(OperatorError, match=r"sizes k and k \+ 1 differ"):
        op.matmul(t("m k"), t("k+1 n"))
    with pytest.raises(UndecidedError, match=r"sizes m\*n and 4\*n cannot be shown equal"):
        op.reshape(t("n m"), ("n", 4))
    # Strictly, what is not shown does not hold.
    joined, halved = op.concat([t("a 3"), t("b 4")], 1), op.reshape(t("n"), (2, -1))
    for e in (joined, halved):
        with pytest.raises(UndecidedError):
            deduce(e.op, tuple(a.annotation for a in e.args), dict(e.attrs), strict=True)


# --- known in part ---


CASES: list[tuple[Any, Annotation]] = [
    (lambda: op.exp(coarse(2)), Tensor(ndim=2, dtype="float32")),
    (lambda: op.exp(coarse()), Tensor(dtype="float32")),
    (lambda: op.exp(coarse(2, None)), Tensor(ndim=2)),
    (lambda: op.equal(coarse(None, None), coarse(None, None, "y")), Tensor(dtype="bool")),
    (lambda: coarse(2, None) + t("n 3"), Tensor(ndim=2, dtype="float32")),
    (lambda: coarse(1) + t("4 3"), Tensor("4 3")),
    (lambda: coarse(1) + t("4 n"), Tensor(ndim=2, dtype="float32")),
    (lambda: coarse(2) + t("4 3"), Tensor("4 3")),
    (lambda: coarse(2) + t("1 3"), Tensor(ndim=2, dtype="float32")),
    (lambda: coarse(2) + t(""), Tensor(ndim=2, dtype="float32")),
    (lambda: coarse() + t("4 3"), Tensor(dtype="float32")),
    (lambda: op.where(coarse(1, "bool", "c"), t("3"), 0.0), Tensor("3")),
    (lambda: op.astype(coarse(3), "int8"), Tensor(ndim=3, dtype="int8")),
    (lambda: call("astype", [coarse(None, None)], {"dtype": "int8"}), Tensor(dtype="int8")),
    (lambda: coarse(2) @ t("k m"), Tensor(ndim=2, dtype="float32")),
    (lambda: coarse(2, None) @ t("k", "y"), Tensor(ndim=1, dtype="float32")),
    (lambda: coarse(3) @ t("k m"), Tensor(ndim=3, dtype="float32")),
    (lambda: coarse() @ t("k m"), Tensor(dtype="float32")),
    (lambda: op.sum(coarse(3), (0, 2)), Tensor(ndim=1, dtype="float32")),
    (lambda: op.sum(coarse(3)), Tensor("")),
    (lambda: op.argmax(coarse(2, None)), Tensor(ndim=1, dtype="int32")),
    (lambda: op.concat([coarse(2), t("n 3")], 0), Tensor(ndim=2, dtype="float32")),
    (lambda: call("concat", [coarse(None, None), t("n 3")], {"axis": 0}), Tensor(ndim=2, dtype="float32")),
    (
        lambda: call("split", [coarse(2)], {"sections": (1, 3), "axis": 1}),
        Tuple((Tensor(ndim=2, dtype="float32"),) * 2),
    ),
    (lambda: call("split", [coarse(1)], {"sections": ("n", 3), "axis": 0}), Tuple((Tensor("n"), Tensor("3")))),
    (lambda: op.reshape(coarse(), ("n", 4)), Tensor("n 4")),
    (lambda: op.reshape(coarse(2, None), ("n", 4)), Tensor(("n", 4))),
    (lambda: op.broadcast_to(coarse(), ("n", 4)), Tensor("n 4")),
    (lambda: op.permute_dims(coarse(3), (2, 0, 1)), Tensor(ndim=3, dtype="float32")),
    (lambda: call("permute_dims", [coarse()], {"axes": (1, 0)}), Tensor(ndim=2, dtype="float32")),
    (lambda: op.expand_dims(coarse(1), 0), Tensor(ndim=2, dtype="float32")),
    (lambda: op.squeeze(coarse(1), 0), Tensor("")),
    (lambda: call("take", [coarse(2), t("4 @int32")], {"axis": 0, "mode": "fill"}), Tensor(ndim=2, dtype="float32")),
    (lambda: call("take", [t("n"), coarse(2, "int32")], {"axis": 0, "mode": "fill"}), Tensor(ndim=2, dtype="float32")),
    (lambda: call("bitcast", [coarse(2, None)], {"dtype": "int32"}), Tensor(dtype="int32")),
    (lambda: call("top_k", [coarse(1)], {"k": (3,), "axis": 0}), Tuple((Tensor("3"), Tensor("3 @int32")))),
    (lambda: op.softmax(coarse(2)), Tensor(ndim=2, dtype="float32")),
    (lambda: op.fft(coarse(1, "complex64"), "fft", ("n",)), Tensor(ndim=1, dtype="complex64")),
    (lambda: op.dynamic_slice(coarse(2), [0, 0], ("n", 4)), Tensor("n 4")),
]  # fmt: skip


@pytest.mark.parametrize(("build", "wanted"), CASES, ids=range(len(CASES)))
def test_known_in_part(build: Any, wanted: Annotation) -> None:
    assert build().annotation == wanted


REFUSED = [
    (lambda: op.exp(coarse(2, "int32")), "exp(rank 2 int32): operand 0 is int32; float or complex is needed"),
    (lambda: coarse(2) + t("n @int32"), "add(rank 2 float32, (n,) int32): operand 0 is float32 and operand 1 is int32"),
    (lambda: coarse(0) @ t("k"), "matmul(rank 0 float32, (k,) float32, precision=None, out_dtype=None): a scalar has"),
    (lambda: call("sum", [coarse(2)], {"axes": (2,)}), "axis 2 does not exist at rank 2"),
    (lambda: call("permute_dims", [coarse(3)], {"axes": (1, 0)}), "axes has 2 entries; 3 are needed"),
    (lambda: op.concat([coarse(2), t("3")], 0), "operand 1 has rank 1, operand 0 rank 2"),
]


@pytest.mark.parametrize(("build", "text"), REFUSED, ids=range(len(REFUSED)))
def test_what_no_operand_of_that_kind_can_be_is_refused(build: Any, text: str) -> None:
    with pytest.raises(OperatorError) as error:
        build()
    assert text in str(error.value)


def test_a_number_beside_an_unknown_dtype() -> None:
    with pytest.raises(OperatorError, match=r"multiply: 2.0 stands beside operands of unknown dtype; const\("):
        _ = coarse(2, None) * 2.0


def coarsened(a: Annotation) -> Iterator[Annotation]:
    """`a` and what says less of a tensor."""
    assert isinstance(a, Tensor)
    for shape, rank, dtype in itertools.product((a.shape, None), (a.ndim, None), (a.dtype, None)):
        if shape is None or rank is not None:
            yield Tensor(shape, dtype, rank)


@pytest.mark.parametrize("name", sampled(sorted(TABLE), 5))
def test_the_coarse_answer_follows_from_the_exact_one(name: str) -> None:
    """Whatever is left out of the operands, what is then deduced is true of the result."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    tried = 0
    for use, dtype in itertools.product(USES[name], DTYPES):
        operands = tuple(Tensor(s, None if "@" in s else dtype) for s in use.operands)
        attrs = attributes_of(get(name), use.attrs)
        try:
            exact = deduce(name, operands, attrs)
        except OperatorError:
            continue
        ways = list(itertools.product(*map(coarsened, operands)))
        for way in rng.permutation(len(ways))[:5]:
            found = deduce(name, ways[way], attrs)
            assert covers(found, exact), f"{name} of {ways[way]} {attrs}: {found}, of {operands}: {exact}"
            tried += 1
    assert tried or not get(name).parameters
