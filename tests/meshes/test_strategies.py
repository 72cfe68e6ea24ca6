"""Strategies follow from index equations; placements as text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_eg.errors import OperatorError, OptionError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, var
from relax_eg.ir.placements import DeviceMesh, MeshPlacement
from relax_eg.meshes.strategies import SplitStrategy, strategies
from relax_eg.ops import api as op
from relax_eg.ops.interpret import evaluate_expr
from relax_eg.shapes import Dim

PARTIAL = {"P[sum]": np.add, "P[max]": np.maximum, "P[min]": np.minimum}


def tensor(name: str, *shape: int) -> Expr:
    return var(name, Tensor(tuple(Dim.of(n) for n in shape), "float32"))


def of(e: Expr) -> tuple[SplitStrategy, ...]:
    return strategies(e.op, [a.annotation for a in e.args], e.attrs, e.annotation)


def parts(e: Expr) -> set[tuple[object, ...]]:
    return {(*s.operands, "->", s.result) for s in of(e)}


def test_a_matmul_splits_rows_columns_and_its_sum() -> None:
    assert parts(op.matmul(tensor("a", 8, 4), tensor("b", 4, 6))) == {
        ("R", "R", "->", "R"), (0, "R", "->", 0), ("R", 1, "->", 1), (1, 0, "->", "P[sum]"),
        ("P[sum]", "R", "->", "P[sum]"), ("R", "P[sum]", "->", "P[sum]"),
    }  # fmt: skip


def test_what_is_gathered_is_whole() -> None:
    table, ids = tensor("t", 10, 4), var("i", Tensor((Dim.of(8),), "int32"))
    found = parts(op.take(table, ids, 0))
    assert ("R", 0, "->", 0) in found and (1, "R", "->", 1) in found
    assert not any(f[0] == 0 for f in found)


def test_a_reshape_keeps_the_slowest_of_merged_axes() -> None:
    merged = of(op.reshape(tensor("x", 4, 6, 5), (24, 5)))
    assert SplitStrategy((0,), 0, (Dim.of(4),), Dim.of(4)) in merged
    assert not any(s.operands == (1,) for s in merged)
    assert any(s.operands == (2,) and s.result == 1 for s in merged)


CASES = {
    "tanh": lambda: op.tanh(tensor("x", 8, 4)),
    "add": lambda: op.add(tensor("x", 8, 4), tensor("y", 4)),
    "matmul": lambda: op.matmul(tensor("x", 8, 4), tensor("y", 4, 12)),
    "batched": lambda: op.matmul(tensor("x", 4, 8, 4), tensor("y", 4, 4, 2)),
    "transpose": lambda: op.permute_dims(tensor("x", 8, 4, 2), (2, 0, 1)),
    "sum": lambda: op.sum(tensor("x", 8, 4), 0),
    "max": lambda: op.max(tensor("x", 8, 4), 1, keepdims=True),
    "softmax": lambda: op.softmax(tensor("x", 8, 4), 1),
    "concat": lambda: op.concat([tensor("x", 8, 4), tensor("y", 4, 4)], 0),
    "broadcast": lambda: op.broadcast_to(tensor("x", 8, 4), (6, 8, 4)),
    "merge": lambda: op.reshape(tensor("x", 4, 6), (24,)),
    "split": lambda: op.reshape(tensor("x", 24, 2), (4, 6, 2)),
    "outer": lambda: op.multiply(tensor("x", 8, 1), tensor("y", 1, 4)),
}


@pytest.mark.parametrize("name", CASES)
@given(st.integers(0, 2**32 - 1))
def test_parts_make_up_the_whole(name: str, seed: int) -> None:
    """Two devices compute the operator on parts of the operands; their results, joined or summed, are that of one."""
    e = CASES[name]()
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=[int(d) for d in a.shape]).astype(np.float32) for a in e.args]
    whole = evaluate_expr(e, dict(zip(e.args, arrays, strict=True)), {})
    for s in of(e):
        if s.whole or any(int(d) % 2 for d in s.extents):
            continue
        pieces = []
        for device in range(2):
            mine = [
                np.split(x, 2, p)[device] if isinstance(p, int) else x for x, p in zip(arrays, s.operands, strict=True)
            ]
            pieces.append(applied(e, mine, s))
        found = PARTIAL[s.result](*pieces) if isinstance(s.result, str) else np.concatenate(pieces, s.result)
        np.testing.assert_allclose(found, whole, rtol=1e-5, atol=1e-5, err_msg=str(s))


def applied(e: Expr, arrays: list[np.ndarray], s: SplitStrategy) -> np.ndarray:
    """The operator of `e` on parts of its operands, with the attributes of a part of the result."""
    from relax_eg.ops.record import call

    args = [tensor(f"p{i}", *x.shape) for i, x in enumerate(arrays)]
    attrs = dict(e.attrs)
    if "shape" in attrs:
        halved = s.result if isinstance(s.result, int) else -1
        attrs["shape"] = tuple(d // 2 if i == halved else d for i, d in enumerate(attrs["shape"]))
    made = call(e.op, args, attrs)
    return evaluate_expr(made, dict(zip(args, arrays, strict=True)), {})


def test_text_of_placements_and_meshes() -> None:
    mesh = DeviceMesh.of("data=4, model=2")
    assert mesh == DeviceMesh.of({"data": 4, "model": 2}) and str(mesh) == "data=4, model=2" and mesh.devices == 8
    p = MeshPlacement.parse("S[1], P[sum]")
    assert str(p) == "S[1], P[sum]" and p.splits(2, mesh) == (1, 4) and p.is_partial


def test_a_mesh_may_begin_at_a_device() -> None:
    mesh, alone = DeviceMesh.of("cuda:4, data=2, model=2"), DeviceMesh.of("cpu:1")
    assert (str(mesh), mesh.device, mesh.sizes) == ("gpu:4, data=2, model=2", "gpu:4", (2, 2))
    assert DeviceMesh.of(str(mesh)) == mesh != DeviceMesh.of("data=2, model=2")
    assert (str(alone), alone.axes, alone.devices) == ("cpu:1", (), 1) and MeshPlacement.parse("").parts == ()


@pytest.mark.parametrize("given", [{}, {"x": 0}, "x", {"x": True}, 8, "x=2, x=4"])
def test_other_meshes_are_refused(given: object) -> None:
    with pytest.raises(OptionError, match=r"axes with different names and sizes >= 1 are accepted"):
        DeviceMesh.of(given)


def test_annotations_that_do_not_fit_are_refused() -> None:
    x = tensor("x", 4, 6)
    for placement, text in {
        "S[0]": "has 1 parts; one for each of a=8, b=2",
        "S[0], R": "of size 4, over 8 devices",
        "S[2], R": "which has rank 2",
        "P[sum], R": "is partial",
        "X, R": "'X'; 'R', 'S\\[dimension\\]'",
    }.items():
        with pytest.raises(OperatorError, match=text):
            op.annotate_sharding(x, "a=8, b=2", placement)
    with pytest.raises(OperatorError, match="cpu:1 is one device"):
        op.annotate_sharding(x, "cpu:1", "")
