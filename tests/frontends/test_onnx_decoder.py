"""A layer of a decoder as onnxruntime's tools for generation write it: packed weights, grouped heads with a cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from onnx_models import FLOAT, INT64, model, node, results

import relax_eg as rx

HEADS, GROUPS, EACH, WIDTH = 4, 2, 16, 64
COLUMNS = WIDTH + 2 * GROUPS * EACH
BLOCK, WORDS, PLACES = 32, 20, 32
RNG = np.random.default_rng(3)


def floats(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / 3).astype(np.float32)


def own(kind: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    made = node(kind, inputs, outputs, **attributes)
    given = [n if n != "-" else "" for n in outputs.split()]
    made.domain, made.output[:] = "com.microsoft", given
    return made


def layer() -> Any:
    nodes = [
        node("Gather", "words ids", "x"),
        node("SimplifiedLayerNormalization", "x scale", "n", axis=-1, epsilon=1e-5, stash_type=1),
        own("MatMulNBits", "n w ws wz", "qkv", N=COLUMNS, K=WIDTH, bits=4, block_size=BLOCK),
        node("ReduceSum", "mask one", "count", keepdims=0), node("Sub", "count one", "last"),
        node("Cast", "last", "lengths", to=TensorProto.INT32), node("Shape", "mask", "sizes"),
        node("Gather", "sizes second", "t"), node("Cast", "t", "total", to=TensorProto.INT32),
        own("GroupQueryAttention", "qkv - - keys values lengths total cos sin", "a k v", num_heads=HEADS,
            kv_num_heads=GROUPS, do_rotary=1, local_window_size=6),
        node("MatMul", "a out", "o"),
        own("SkipSimplifiedLayerNormalization", "x o scale", "y - - z", epsilon=1e-5),
    ]  # fmt: skip
    blocks = WIDTH // BLOCK
    weights = {
        "words": floats(WORDS, WIDTH), "scale": np.abs(floats(WIDTH)) + 0.5, "out": floats(WIDTH, WIDTH),
        "w": RNG.integers(0, 256, (COLUMNS, blocks, BLOCK // 2)).astype(np.uint8), "one": np.array([1]),
        "ws": (RNG.random(COLUMNS * blocks) / 20).astype(np.float32), "second": np.array(1),
        "wz": RNG.integers(0, 256, COLUMNS).astype(np.uint8), "cos": floats(PLACES, EACH // 2),
        "sin": floats(PLACES, EACH // 2),
    }  # fmt: skip
    cache = (("b", GROUPS, "past", EACH), FLOAT)
    inputs = {"ids": (("b", "s"), INT64), "mask": (("b", "total"), INT64), "keys": cache, "values": cache}
    made = model(nodes, inputs, ("y", "z", "k", "v"), weights)
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return made


def given(batch: int, queries: int, past: int) -> dict[str, np.ndarray]:
    cache = (batch, GROUPS, past, EACH)
    ids, mask = RNG.integers(0, WORDS, (batch, queries)), np.ones((batch, past + queries), np.int64)
    return {"ids": ids, "mask": mask, "keys": floats(*cache), "values": floats(*cache)}


def test_a_layer_of_a_decoder_with_and_without_a_past() -> None:
    proto = layer()
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    at = {"b": 2, "s": 1, "total": 8, "past": 7}
    best = rx.optimize(rx.from_onnx(proto), at=at, budget=rx.Budget(nodes=500, seconds=3))
    arrays = given(2, 1, 7)
    for f, w in zip(best(*arrays.values()), session.run(None, arrays), strict=True):
        np.testing.assert_allclose(f, w, rtol=1e-4, atol=1e-5)
    # Sizes are at least 1, so a prompt, which has no past, is another module.
    none = f"b {GROUPS} 0 {EACH}"
    prompt = rx.from_onnx(proto, inputs={"ids": "b s", "mask": "b s", "keys": none, "values": none})
    arrays = given(1, 5, 0)
    for f, w in zip(results(prompt, *arrays.values()), session.run(None, arrays), strict=True):
        np.testing.assert_allclose(f, w, rtol=1e-4, atol=1e-5)
