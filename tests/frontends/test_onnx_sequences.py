"""ONNX's sequences, optionals, and results whose sizes depend on values."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx_models import FLOAT, INT64, ints, model, node

import relax_eg as rx
from relax_eg.errors import OnnxError

RNG = np.random.default_rng(11)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def run_both(proto: Any, *arrays: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The results of the module, which no rule changes, and of onnxruntime."""
    found = rx.optimize(rx.from_onnx(proto), rules=rx.RuleSet("none"))(*arrays)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, {i.name: x for i, x in zip(proto.graph.input, arrays, strict=True)})
    return [np.asarray(f) for f in (found if isinstance(found, tuple) else (found,))], wanted


def alike(proto: Any, *arrays: Any) -> None:
    found, wanted = run_both(proto, *arrays)
    for f, w in zip(found, wanted, strict=True):
        assert f.shape == w.shape and f.dtype == w.dtype
        np.testing.assert_allclose(f, w, rtol=1e-5, atol=1e-6)


def test_sequences_leave_no_trace() -> None:
    nodes = [
        node("SequenceConstruct", "x x", "s"), node("Neg", "x", "m"), node("SequenceInsert", "s m first", "t"),
        node("SequenceErase", "t last", "u"), node("SequenceAt", "u first", "a"), node("SequenceLength", "u", "n"),
        node("ConcatFromSequence", "u", "c", axis=1), node("ConcatFromSequence", "u", "d", axis=-1, new_axis=1),
    ]  # fmt: skip
    held = {"first": np.array(0), "last": np.array(-1)}
    proto = model(nodes, {"x": (("n", 3), FLOAT)}, ["a", "n", "c", "d"], held)
    alike(proto, floats(2, 3))


def test_a_split_into_a_sequence() -> None:
    nodes = [node("SplitToSequence", "x parts", "s", axis=1), node("SequenceAt", "s one", "y")]
    held = {"parts": ints(1, 2), "one": np.array(1)}
    alike(model(nodes, {"x": (("n", 3), FLOAT)}, weights=held), floats(4, 3))
    with pytest.raises(OnnxError, match=r"parts of \[1, 1\] of an axis of 3\n  accepted: lengths whose sum"):
        rx.from_onnx(model(nodes, {"x": (("n", 3), FLOAT)}, weights={**held, "parts": ints(1, 1)}))
    split = [node("SplitToSequence", "x", "s"), node("SequenceAt", "s one", "y")]
    with pytest.raises(OnnxError, match=r"parts of an axis of n\n  accepted: a fixed size"):
        rx.from_onnx(model(split, {"x": (("n", 3), FLOAT)}, weights=held))


def test_what_is_no_tensor_is_refused() -> None:
    given = {"x": ((2,), FLOAT)}
    with pytest.raises(OnnxError, match=r"node 1 \(Neg, opset 17\): input 0 is a sequence\n  accepted: a tensor"):
        rx.from_onnx(model([node("SequenceConstruct", "x", "s"), node("Neg", "s")], given))
    at = [node("SequenceConstruct", "x", "s"), node("SequenceAt", "s two")]
    with pytest.raises(OnnxError, match="position 2 in a sequence of 1\n  accepted: positions from -1 to 0"):
        rx.from_onnx(model(at, given, weights={"two": np.array(2)}))


def sequence_input() -> Any:
    """A model that takes a sequence."""
    element = helper.make_tensor_type_proto(FLOAT, None)
    given = helper.make_value_info("s", helper.make_sequence_type_proto(element))
    made = model([node("ConcatFromSequence", "s", axis=0)], {})
    made.graph.input.append(given)
    return made


def test_a_sequence_as_input() -> None:
    module = rx.from_onnx(sequence_input(), inputs={"s": ["n 2", "3 2"]})
    assert [str(p.annotation) for p in module.main.params] == [str(rx.Tensor("n 2")), str(rx.Tensor("3 2"))]
    a, b = floats(4, 2), floats(3, 2)
    np.testing.assert_array_equal(rx.optimize(module)(a, b), np.concatenate([a, b]))
    with pytest.raises(OnnxError, match=r"input `s` is a sequence\n  accepted: a spec for each element: inputs"):
        rx.from_onnx(sequence_input())


def test_nonzero_of_values_is_a_step() -> None:
    nodes = [
        node("NonZero", "x", "at"), node("Transpose", "at", "rows", perm=[1, 0]), node("GatherND", "x rows", "v"),
        node("Mul", "v v", "y"), node("Shape", "y", "n"),
    ]  # fmt: skip
    proto = model(nodes, {"x": (("n", 3), FLOAT)}, ["at", "y", "n"])
    for count in (1, 2, 5):
        x = floats(count, 3)
        x[np.abs(x) < 0.5] = 0
        alike(proto, x)
    assert not all(b.dataflow for b in rx.from_onnx(proto).main.blocks)


def test_nonzero_of_constants_is_known() -> None:
    nodes = [node("NonZero", "c", "at"), node("Squeeze", "at zero", "i"), node("Gather", "x i")]
    weights = {"c": np.array([1, 0, 2]), "zero": ints(0)}
    module = rx.from_onnx(model(nodes, {"x": ((3, 2), FLOAT)}, weights=weights))
    assert all(b.dataflow for b in module.main.blocks) and str(module.main.annotation) == str(rx.Tensor("2 2"))


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_compress(axis: int | None) -> None:
    more = {} if axis is None else {"axis": axis}
    proto = model([node("Compress", "x c", **more)], {"x": ((3, 4), FLOAT), "c": ((3,), TensorProto.BOOL)})
    alike(proto, floats(3, 4), np.array([True, False, True]))


@pytest.mark.parametrize("ascending", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_unique(ascending: int, axis: int | None) -> None:
    more = {} if axis is None else {"axis": axis}
    names = ["y", "at", "inverse", "counts"]
    nodes = [helper.make_node("Unique", ["x"], names, sorted=ascending, **more)]
    shape = (6, 2) if axis != -1 else (2, 6)
    proto = model(nodes, {"x": (("n", 2) if axis != -1 else (2, "n"), FLOAT)}, names)
    alike(proto, RNG.integers(0, 2, shape).astype(np.float32))


@pytest.mark.parametrize("centred", [0, 1])
def test_non_max_suppression(centred: int) -> None:
    given = {"b": ((2, "n", 4), FLOAT), "s": ((2, 3, "n"), FLOAT)}
    held = {"most": ints(4), "overlap": np.array([0.3], np.float32), "least": np.array([0.2], np.float32)}
    proto = model([node("NonMaxSuppression", "b s most overlap least", center_point_box=centred)], given, weights=held)
    alike(proto, np.abs(floats(2, 20, 4)) + (0 if centred else 0.1), RNG.random((2, 3, 20)).astype(np.float32))


def test_sizes_that_depend_on_values_stay_out_of_branches() -> None:
    branch = helper.make_graph([node("NonZero", "x", "z")], "b", [], [helper.make_empty_tensor_value_info("z")])
    made = model([node("If", "c", then_branch=branch, else_branch=branch)],
                 {"x": ((3,), FLOAT), "c": ((), TensorProto.BOOL)})  # fmt: skip
    with pytest.raises(OnnxError, match="sizes that depend on values, inside a branch or loop\n  accepted: it in"):
        rx.from_onnx(made)


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
def test_tf_idf(mode: str) -> None:
    made = node("TfIdfVectorizer", "x", mode=mode, min_gram_length=1, max_gram_length=3, max_skip_count=2,
                ngram_counts=[0, 3, 7], ngram_indexes=[0, 2, 1, 3, 4, 5],
                pool_int64s=[1, 2, 3, 1, 2, 2, 2, 1, 2, 3], weights=[1.0, 0.5, 2.0, 3.0, 0.25, 4.0])  # fmt: skip
    alike(model([made], {"x": (("n", 9), INT64)}), RNG.integers(1, 4, (5, 9)))
    with pytest.raises(OnnxError, match="no pool of integers\n  accepted: pool_int64s"):
        made = node("TfIdfVectorizer", "x", mode=mode, min_gram_length=1, max_gram_length=1, max_skip_count=0,
                    ngram_counts=[0], ngram_indexes=[0], pool_strings=["a"])  # fmt: skip
        rx.from_onnx(model([made], {"x": ((9,), INT64)}))
