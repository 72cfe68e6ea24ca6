"""ONNX's If, Loop and Scan. Known conditions are decided, loops whose number of steps is known become scans, others
become loops with a condition. Branches and bodies are functions of the module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from relax_eg.errors import OnnxError, RelaxEgError
from relax_eg.frontends.jax.control import bodies
from relax_eg.frontends.onnx.nodes import Handler, OnnxNode
from relax_eg.frontends.onnx.values import Held, KnownArray, Nothing, TensorList, Value, tensor
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.control import cond, scan, while_loop
from relax_eg.ir.expr import CONSTANT, VAR, Expr, postorder, tuple_, tuple_get, var
from relax_eg.ir.module import Function, pure_function
from relax_eg.ops import api as op
from relax_eg.shapes import Dim

MOST_UNROLLED = 64  # limit: steps of a loop whose steps are written one after the other
_TRUE = KnownArray(np.array(True), "bool")


@dataclass(frozen=True)
class _Captured:
    """The values outside that subgraphs read.

    - `values`: the value of each name inside a function.
    - `operands`: the expression outside of each parameter that stands for one of them.
    """

    values: Mapping[str, Held]
    operands: Mapping[Expr, Expr]

    def read_by(self, outputs: Sequence[Expr]) -> tuple[Expr, ...]:
        """The parameters that expressions read."""
        read = set(postorder(outputs))
        return tuple(p for p in self.operands if p in read)

    def outer(self, inner: Sequence[Expr]) -> tuple[Expr, ...]:
        """The expressions outside of such parameters."""
        return tuple(self.operands[p] for p in inner)


def _captured(graphs: Sequence[Any]) -> _Captured:
    values: dict[str, Held] = {}
    operands: dict[Expr, Expr] = {}
    for name, value in sorted({k: v for g in graphs for k, v in g.outside.items()}.items()):
        if isinstance(value, TensorList | Nothing) or (isinstance(value, KnownArray) and value.weight is None):
            values[name] = value
            continue
        outer = tensor(value)
        if outer.op == CONSTANT:
            values[name] = value
            continue
        inner = var(f"c{len(operands)}", outer.annotation)
        operands[inner] = outer
        values[name] = inner if isinstance(value, Expr) else _with_parameter(value, inner)
    return _Captured(values, operands)


def _with_parameter(value: KnownArray, inner: Expr) -> KnownArray:
    return replace(value, weight=lambda: inner)


def _function(graph: Any, params: Sequence[Expr], outputs: Sequence[Expr]) -> Function:
    """A function that returns a tuple."""
    named = [var(f"gv{i or ''}", e.annotation) for i, e in enumerate(outputs)]
    made = pure_function("body", params, outputs, tuple_(named))
    inside = {e: graph.origins[e] for e in postorder(outputs) if e in graph.origins}
    return replace(made, origins=MappingProxyType(inside))


def _deciding(condition: Expr) -> str:
    """What decides a condition, as text: values of inputs, and sizes."""
    inside = postorder([condition])
    values = sorted({str(e.attr("name")) for e in inside if e.op == VAR})
    dims = [d for e in inside if e.op == "dim_value" for d in e.attr("dim")]
    sizes = sorted({v for d in dims for v in d.variables})
    return " and ".join(text for text, there in (
        (f"inputs={{{', '.join(f'{name!r}: its value' for name in values)}}}", values),
        (f"specs in inputs that say the size{'s' * (len(sizes) > 1)} {', '.join(sizes)}", sizes),
    ) if there)  # fmt: skip


def _if(n: OnnxNode) -> Sequence[Held]:
    branches = [n.at("else_branch"), n.at("then_branch")]
    condition = n.required_input(0)
    if isinstance(condition, KnownArray):
        return branches[bool(condition.array.reshape(()))].run([])
    captured = _captured(branches)
    try:
        outputs = [[tensor(v) for v in b.run([], captured.values, closed=True)] for b in branches]
    except OnnxError as error:
        # A branch that cannot be read for these sizes may be one that these inputs never take.
        said, what = str(error), _deciding(tensor(condition))
        raise OnnxError(f"{said}; or what decides the If: {what}" if what else said) from None
    inner = captured.read_by([e for out in outputs for e in out])
    made = [_function(b, inner, out) for b, out in zip(branches, outputs, strict=True)]
    found = [[v.annotation for v in out] for out in outputs]
    if found[0] != found[1]:
        said = " and ".join(", ".join(map(str, f)) for f in found)
        raise n.error(f"branches that give {said}", "branches that give the same shapes and dtypes")
    refs, sizes = bodies(n.functions, "branch", made)
    value = cond(op.reshape(tensor(condition), ()), refs, (*sizes, *captured.outer(inner)))
    return [tuple_get(value, i) for i in range(len(outputs[0]))]


def _loop(n: OnnxNode) -> Sequence[Held]:
    body = n.at("body")
    trips, condition = n.value(0), n.value(1)
    carried = [v for i in range(2, len(n.inputs)) if (v := n.held(i)) is not None]
    scans = body.output_count - 1 - len(carried)
    if scans < 0:
        raise n.error(f"a body of {body.output_count} outputs", f"at least {1 + len(carried)}")
    known = not isinstance(condition, Expr)
    first = True if not isinstance(condition, KnownArray) else bool(condition.array.reshape(()))
    count = _trip_count(trips)
    if known and not first:
        count = Dim.of(0)
    problem: RelaxEgError | None = None
    if known and count is not None:
        before = n.functions.mark()
        try:
            if (found := _as_scan(n, body, count, carried, scans)) is not None:
                return found
        except RelaxEgError as error:  # a step changes the shape of a value, or needs its number as a constant
            problem = error
            n.functions.back_to(before)
    if known and (count is None or (count.is_const and count.value <= MOST_UNROLLED)):
        found = _unrolled(n, body, None if count is None else count.value, carried, scans)
        if found is not None:
            return found
    if problem is not None:
        raise problem
    if scans:
        raise n.error("outputs of each step, of which there are as many as the loop finds", "a known number of steps")
    return _as_while(n, body, trips, condition, carried)


def _trip_count(trips: Value | None) -> Dim | None:
    """The known number of steps; None if there is no limit, or an unknown one."""
    if not isinstance(trips, KnownArray):
        return None
    found = trips.array.reshape(()).item()
    return found if isinstance(found, Dim) else Dim.of(max(int(found), 0))


def _as_scan(n: OnnxNode, body: Any, count: Dim, carried: Sequence[Held], scans: int) -> list[Held] | None:
    """The outputs of a loop whose condition stays true; None if it may become false."""
    captured = _captured([body])
    state = [tensor(v) for v in carried]
    step = var("i", Tensor((), "int64"))
    params = [var(f"x{i}", e.annotation) for i, e in enumerate(state)]
    going, *rest = body.run([step, _TRUE, *params], captured.values, closed=True)
    if not isinstance(going, KnownArray) or not bool(going.array.all()):
        return None
    outputs = [tensor(v) for v in rest]
    inner = captured.read_by(outputs)
    function = _function(body, (*inner, *params, step), outputs)
    (ref,), sizes = bodies(n.functions, "body", [function])
    value = scan(ref, (*sizes, *captured.outer(inner)), state, [op.arange(count, dtype="int64")], length=count)
    return [tuple_get(value, i) for i in range(len(carried) + scans)]


def _unrolled(n: OnnxNode, body: Any, count: int | None, carried: Sequence[Held], scans: int) -> list[Held] | None:
    """The outputs of a loop with its steps one after the other; None if a condition is not known, or there are too
    many steps."""
    values = list(carried)
    rows: list[list[Expr]] = [[] for _ in range(scans)]
    for i in range(MOST_UNROLLED + 1):
        if i == count:
            break
        going, *rest = body.run([KnownArray(np.array(i, np.int64), "int64"), _TRUE, *values])
        if i == MOST_UNROLLED or not isinstance(going, KnownArray):
            return None
        values, made = list(rest[: len(values)]), rest[len(values) :]
        for row, value in zip(rows, made, strict=True):
            row.append(tensor(value))
        if not bool(going.array.all()):
            break
    if any(not row for row in rows):
        raise n.error("outputs of each step, and no step", "at least one step")
    return [*values, *(op.stack(row) for row in rows)]


def _as_while(
    n: OnnxNode, body: Any, trips: Value | None, condition: Value | None, carried: Sequence[Held]
) -> list[Held]:
    """The outputs of a loop whose number of steps is found when the model runs."""
    captured = _captured([body])
    state = [tensor(v) for v in carried]
    step, going = var("i", Tensor((), "int64")), var("going", Tensor((), "bool"))
    params = [var(f"x{i}", e.annotation) for i, e in enumerate(state)]
    outputs = [tensor(v) for v in body.run([step, going, *params], captured.values, closed=True)]
    inner = captured.read_by(outputs)
    looped = _function(body, (*inner, step, going, *params), [step + 1, op.reshape(outputs[0], ()), *outputs[1:]])
    limit = var("limit", Tensor((), "int64"))
    test = pure_function("condition", (limit, step, going, *params), [op.logical_and(going, op.less(step, limit))])
    most = op.full((), np.iinfo(np.int64).max, "int64") if trips is None else op.reshape(tensor(trips), ())
    start = op.full((), True, "bool") if condition is None else op.reshape(tensor(condition), ())
    (test_ref,), first = bodies(n.functions, "condition", [test])
    (body_ref,), second = bodies(n.functions, "body", [looped])
    constants = (*second, *captured.outer(inner))
    carry = (op.full((), 0, "int64"), start, *state)
    value = while_loop(test_ref, body_ref, (*first, most), constants, carry)
    return [tuple_get(value, i + 2) for i in range(len(carried))]


def _scan(n: OnnxNode) -> Sequence[Held]:
    body, count = n.at("body"), n.at("num_scan_inputs")
    if n.opset >= 9:
        return _scanned(n, body, [n[i] for i in range(len(n.inputs))], count)
    if n.value(0) is not None:
        raise n.error("sequence_lens", "a Scan without them")
    given = [n[i] for i in range(1, len(n.inputs))]
    batch = given[0].shape[0]
    if not batch.is_const or not 0 < batch.value <= MOST_UNROLLED:
        raise n.error(f"{batch} scans side by side", f"1 to {MOST_UNROLLED} in opset 8, or opset 9")
    each = [_scanned(n, body, [x[b] for x in given], count) for b in range(batch.value)]
    return [op.stack([tensor(v) for v in values]) for values in zip(*each, strict=True)]


def _scanned(n: OnnxNode, body: Any, given: Sequence[Expr], count: int) -> list[Held]:
    states, xs = list(given[: len(given) - count]), list(given[len(given) - count :])
    outs = body.output_count - len(states)
    in_axes, out_axes = n.at("scan_input_axes", [0] * count), n.at("scan_output_axes", [0] * outs)
    in_back = n.at("scan_input_directions", n.at("directions", [0] * count))
    out_back = n.at("scan_output_directions", [0] * outs)
    if not xs or len(in_axes) != count or len(out_axes) != outs or len(in_back) != count or len(out_back) != outs:
        raise n.error("axes and directions that do not fit", "one for each scanned input and output")
    for i, (axis, back) in enumerate(zip(in_axes, in_back, strict=True)):
        x, along = xs[i], n.normal_axis(axis, xs[i].ndim)
        x = op.permute_dims(x, (along, *(a for a in range(x.ndim) if a != along)))
        xs[i] = op.flip(x, 0) if back else x
    captured = _captured([body])
    params = [var(f"x{i}", s.annotation) for i, s in enumerate(states)]
    params += [var(f"y{i}", Tensor(x.shape[1:], x.dtype)) for i, x in enumerate(xs)]
    outputs = [tensor(v) for v in body.run(params, captured.values, closed=True)]
    inner = captured.read_by(outputs)
    (ref,), sizes = bodies(n.functions, "body", [_function(body, (*inner, *params), outputs)])
    value = scan(ref, (*sizes, *captured.outer(inner)), states, xs, length=xs[0].shape[0])
    made: list[Held] = [tuple_get(value, i) for i in range(len(states))]
    for i in range(outs):
        y = tuple_get(value, len(states) + i)
        y = op.flip(y, 0) if out_back[i] else y
        at = n.normal_axis(out_axes[i], y.ndim)
        order = list(range(1, y.ndim))
        order.insert(at, 0)
        made.append(op.permute_dims(y, tuple(order)))
    return made


HANDLERS: dict[str, Handler] = {"If": _if, "Loop": _loop, "Scan": _scan}
