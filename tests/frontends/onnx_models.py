"""Small ONNX models for the tests, and the results of their modules."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import relax_eg as rx
from relax_eg.backend.lowering.lower import run_function
from relax_eg.frontends.model import ModelModule

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def model(nodes, inputs, outputs=("y",), weights=None, opset=17):
    """A model of these nodes; `inputs`: name -> (sizes, kind)."""
    given = [helper.make_tensor_value_info(n, kind, shape) for n, (shape, kind) in inputs.items()]
    made = [helper.make_empty_tensor_value_info(n) for n in outputs]
    held = [numpy_helper.from_array(v, n) for n, v in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", given, made, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def node(kind: str, inputs: str, outputs: str = "y", **attributes: Any):
    names = [n if n != "-" else "" for n in inputs.split()]
    return helper.make_node(kind, names, outputs.split(), **attributes)


def results(module: ModelModule, *arrays: Any) -> list[np.ndarray]:
    """Returns the results of a module, with 64-bit numbers."""
    with jax.enable_x64(True):
        run = jax.jit(lambda *xs: run_function(module, module.main, xs))
        found = run(*arrays, *module.weights.values())
    return [np.asarray(f) for f in (found if isinstance(found, tuple) else (found,))]


def agrees(proto: Any, *arrays: Any, rtol: float = 2e-5) -> ModelModule:
    """Returns the module of a model, after a check that its results are those of ONNX's reference."""
    module = rx.from_onnx(proto)
    assert rx.parse(str(module)).main.expressions() == module.main.expressions()
    names = [i.name for i in proto.graph.input]
    wanted = ReferenceEvaluator(proto).run(None, dict(zip(names, arrays, strict=True)))
    for f, w in zip(results(module, *arrays), wanted, strict=True):
        assert (f.shape, f.dtype) == (w.shape, w.dtype)
        np.testing.assert_allclose(f, w, rtol=rtol, atol=1e-5)
    return module


def runs_alike(proto: Any, *arrays: Any, rtol: float = 2e-5) -> ModelModule:
    """Returns the module of a model, after a check that its results are those of onnxruntime, whose kernels are right
    where the reference is not."""
    module = rx.from_onnx(proto)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, {i.name: x for i, x in zip(proto.graph.input, arrays, strict=True)})
    for f, w in zip(results(module, *arrays), wanted, strict=True):
        assert (f.shape, f.dtype) == (w.shape, w.dtype)
        np.testing.assert_allclose(f, w, rtol=rtol, atol=1e-5)
    return module


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)
