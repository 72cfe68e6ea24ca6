"""What the operators refuse, and how they say it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, var
from relax_eg.ops import api as op
from relax_eg.ops import call, get


def t(spec: str, name: str = "x") -> Expr:
    return var(name, Tensor(spec))


ERRORS: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: t("2 3") @ t("4 5"),
        "matmul((2, 3) float32, (4, 5) float32, precision=None, out_dtype=None): "
        "axis 1 of operand 0 meets axis 0 of operand 1: sizes 3 and 4 differ",
    ),
    (lambda: t("2 n") @ t("m 5"), "sizes n and m cannot be shown equal"),
    (lambda: t("") @ t("3"), "a scalar has no axis to contract; multiply scales"),
    (
        lambda: t("n 3") + t("n 4"),
        "add((n, 3) float32, (n, 4) float32): axis -1 does not broadcast: sizes 3 and 4 differ",
    ),
    (lambda: t("n") + t("m"), "axis -1 does not broadcast: sizes n and m cannot be shown equal"),
    (lambda: t("n") + t("n+1"), "sizes n and n + 1 differ"),
    (
        lambda: t("n") + t("n @ int32"),
        "operand 0 is float32 and operand 1 is int32; one dtype is needed (astype converts)",
    ),
    (lambda: op.exp(t("n @ int32")), "exp((n,) int32): operand 0 is int32; float or complex is needed"),
    (lambda: op.logical_and(t("n"), t("n")), "operand 0 is float32; bool is needed"),
    (lambda: t("n @ uint8") + 300, "add: 300 is not of dtype uint8, which the other operand has; astype converts"),
    (lambda: t("n @ int32") * 2.5, "multiply: 2.5 is not of dtype int32"),
    (lambda: t("n") + "m", "add: 'm' is not an operand"),
    (lambda: op.sum(t("n m"), axis=2), "sum: axis 2 does not exist at rank 2; axes are -2 to 1"),
    (lambda: op.softmax(t(""), axis=0), "softmax: axis 0 does not exist at rank 0; there are none"),
    (lambda: op.sum(t("n m"), axis=(0, -2)), "sum: axes (0, -2) name an axis twice"),
    (lambda: call("sum", [t("n m")], {"axes": (1, 0)}), "axes must be ascending and distinct"),
    (lambda: call("sum", [t("n")], {"axes": (1,)}), "axis 1 does not exist at rank 1; axes are 0 to 0"),
    (lambda: call("sum", [t("n")], {"axis": 0}), "sum has no attribute `axis`; it has: axes, keepdims"),
    (lambda: call("sum", [t("n")]), "sum needs attribute `axes`"),
    (lambda: call("exp", [t("n"), t("n")]), "exp takes 1 operands (x), got 2"),
    (lambda: op.reshape(t("2 3"), (4,)), "the number of elements changes: sizes 6 and 4 differ"),
    (lambda: op.reshape(t("n m"), ("n", 4)), "the number of elements changes: sizes m*n and 4*n cannot be shown equal"),
    (lambda: op.reshape(t("n"), (-1, -1)), "reshape: 2 sizes are -1; one may be"),
    (lambda: op.reshape(t("n"), (-1, 0)), "reshape: -1 beside a size of 0 in (-1, 0) could be anything"),
    (lambda: op.reshape(var("x", Tensor(ndim=2)), (-1, 4)), "reshape to -1 needs the sizes of its operand, which is"),
    (lambda: op.squeeze(t("n 3"), 1), "axis 1 cannot be squeezed: sizes 3 and 1 differ"),
    (lambda: op.broadcast_to(t("3"), (2, 4)), "axis -1 does not broadcast: sizes 3 and 4 differ"),
    (lambda: op.broadcast_to(t("n"), ()), "rank 1 does not broadcast to rank 0"),
    (lambda: op.concat([t("2 3"), t("2 4")]), "operands 0 and 1 do not fit together on axis 1: sizes 3 and 4 differ"),
    (lambda: op.concat([t("2"), t("2 4")]), "operand 1 has rank 2, operand 0 rank 1"),
    (lambda: op.split(t("1"), 3), "split((1,) float32, sections=(1, 1, -1), axis=0): a section: 0 is more than -1"),
    (lambda: op.split(t("7"), 0), "split: 0 parts of axis 0; at least 1 of an axis from 0 to 0"),
    (lambda: op.split(var("x", Tensor(ndim=1)), 2), "split into a number of parts needs the sizes of its operand"),
    (lambda: call("split", [t("7")], {"sections": 2, "axis": 0}), "split: sections is 2; a tuple of sizes is needed"),
    (lambda: t("4")[5], "end and size of axis 0: 6 is more than 4"),
    (lambda: t("4")[0, 0], "getitem: 2 indices for rank 1"),
    (lambda: t("4")[1.5], "getitem: 1.5 is not an index"),
    (lambda: t("4")[::-2], "getitem: step -2; integers >= 1 are accepted, and -1 in [::-1]"),
    (lambda: op.take(t("4"), t("3"), 0), "operand 1 is float32; int or uint is needed"),
    (lambda: op.take(t("4"), [0], 0, mode="wrap"), "mode 'wrap'; accepted: clip, fill, promise"),
    (lambda: op.argmax(t("0")), "axis 0 is empty and has no extreme element"),
    (lambda: op.integer_pow(t("n @ int32"), -1), "int32 to the power -1 is no integer"),
    (lambda: op.astype(t("n"), "float33"), "no dtype 'float33'; there are: bool"),
    (lambda: op.matmul(t("2 2"), t("2 2"), precision="max"), "precision 'max'; accepted: None, default, high, highest"),
    (
        lambda: op.matmul(t("2 2"), t("2 2"), out_dtype="float16"),
        "out_dtype 'float16'; a dtype of the same kind is needed",
    ),
    (lambda: op.triu(t("3")), "rank 1 has no last two axes"),
    (lambda: op.diag(t("3 3")), "diag: rank 2; a vector is needed"),
    (lambda: op.layer_norm(t("2 3"), t("2"), t("3")), "axis 0 of operand 1 does not fit the normalised axes"),
    (lambda: op.layer_norm(t("2 3"), t("2"), t("2"), axes=0), "axes must be the last axes of rank 2"),
    (lambda: op.pad(t("3"), [(-2, -2)]), "the padded size of axis 0: 0 is more than -1"),
    (lambda: op.iota(3, dtype="bool"), "dtype 'bool'; accepted: int4"),
    (
        lambda: call("random_seed", [t("@ int32")], {"impl": "mine"}),
        "impl 'mine'; accepted: threefry2x32, rbg, unsafe_rbg",
    ),
    (lambda: call("random_seed", [t("")]), "operand 0 is float32; int or uint is needed"),
    (
        lambda: call("random_bits", [t("4 @ uint32")], {"shape": (2,), "bit_width": 32}),
        "operand 0 is uint32; one of key<fry>, key<rbg>, key<urbg> is needed",
    ),
    (lambda: call("random_wrap", [t("n 4 @ uint32")]), "the last axis, and the words of a key: sizes 4 and 2 differ"),
    (lambda: call("add", [t("@ key<fry>")] * 2), "operand 0 is key<fry>; int, uint, float or complex is needed"),
    (lambda: call("exp", [t("n @ float8_e5m2")]), "which is moved, converted, compared, added and multiplied only"),
    (
        lambda: op.matmul(t("2 2"), t("2 2"), precision=("high",)),
        "a pair of these, or an algorithm such as BF16_BF16_F32",
    ),
    (lambda: call("eig", [t("2 3")]), "operand 0 must be square: sizes 2 and 3 differ"),
    (lambda: call("cholesky_update", [t("3 3 @ complex64"), t("3 @ complex64")]), "float32 or float64 is needed"),
    (lambda: call("approx_top_k", [t("9")], {"k": (0,), "axis": 0}), "one, and k: 1 is more than 0"),
    (lambda: call("ragged_dot", [t("n 4"), t("3 4 5"), t("2 @ int32")]), "the matrices, and the sizes of groups"),
    (
        lambda: call("reduce_precision", [t("n")], {"exponent_bits": 0, "mantissa_bits": 3}),
        "accepted: integers, at least 1 bit of exponent and 0 of mantissa",
    ),
    (lambda: get("matmull"), "no operator `matmull`; did you mean `matmul`"),
]


@pytest.mark.parametrize(("build", "text"), ERRORS, ids=[text[:40] for _, text in ERRORS])
def test_text(build: Callable[[], Any], text: str) -> None:
    with pytest.raises(OperatorError) as error:
        build()
    assert text in str(error.value)


def test_a_size_of_one_gives_way() -> None:
    assert (t("n") + t("1")).annotation == Tensor("n")
    assert (t("1 m") + t("n 1")).annotation == Tensor("n m")
