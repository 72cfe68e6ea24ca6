"""ONNX's sequences and optionals. Their lengths are known while the graph is read, so no trace of them is left."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relax_eg.frontends.onnx.nodes import Handler, OnnxNode
from relax_eg.frontends.onnx.values import Held, KnownArray, Nothing, TensorList, tensor
from relax_eg.ops import api as op


def _identity(n: OnnxNode) -> Held:
    found = n.held(0)
    return n.required_input(0) if found is None else found


def _place(n: OnnxNode, i: int, count: int, last: bool = False) -> int:
    """The place in a sequence of `count` elements that input `i` names; with `last`, the one behind it too."""
    array = n.known_array(i, "the position")
    if array is None:
        return count if last else count - 1
    found = int(array.reshape(()))
    most = count if last else count - 1
    if not -count <= found <= most:
        raise n.error(f"position {found} in a sequence of {count}", f"positions from {-count} to {most}")
    return found + count if found < 0 else found


def _empty(n: OnnxNode) -> Held:
    n.ignore_attributes("dtype")
    return TensorList(())


def _at(n: OnnxNode) -> Held:
    found = n.sequence(0)
    return found[_place(n, 1, len(found))]


def _erase(n: OnnxNode) -> Held:
    found = n.sequence(0)
    at = _place(n, 1, len(found))
    return TensorList((*found[:at], *found[at + 1 :]))


def _insert(n: OnnxNode) -> Held:
    found = n.sequence(0)
    at = _place(n, 2, len(found), last=True)
    return TensorList((*found[:at], n.required_input(1), *found[at:]))


def _length(n: OnnxNode) -> Held:
    return KnownArray(np.array(len(n.sequence(0)), np.int64), "int64")


def _split(n: OnnxNode) -> Held:
    x, parts = n[0], n.known_array(1, "the lengths of the parts")
    axis, keep = n.axis(0, x.ndim), n.flag("keepdims", 1)
    size = x.shape[axis]
    if parts is None or parts.ndim == 0:
        if not size.is_const:
            raise n.error(f"parts of an axis of {size}", "a fixed size, or the length of each part")
        each = 1 if parts is None else max(int(parts), 1)
        ends = [min(start + each, size.value) for start in range(0, size.value, each)]
    else:
        ends = [int(e) for e in np.cumsum(parts)]
        if any(p < 0 for p in parts) or (size.is_const and (ends or [0])[-1] != size.value):
            raise n.error(f"parts of {[int(p) for p in parts]} of an axis of {size}", "lengths whose sum is the size")
    made = [
        op.getitem(x, tuple(slice(start, end) if a == axis else slice(None) for a in range(x.ndim)))
        for start, end in zip([0, *ends], ends, strict=False)
    ]
    return TensorList(tuple(op.squeeze(y, axis) if parts is None and not keep else y for y in made))


def _concat(n: OnnxNode) -> Held:
    found = [tensor(v) for v in n.sequence(0)]
    if not found:
        raise n.error("an empty sequence", "at least one tensor")
    new = n.flag("new_axis")
    axis = n.axis(None, found[0].ndim + new)
    return op.stack(found, axis) if new else op.concat(found, axis)


def _map(n: OnnxNode) -> Sequence[Held]:
    body, first = n.at("body"), n.sequence(0)
    others = [n.held(i) for i in range(1, len(n.inputs))]
    if any(isinstance(o, TensorList) and len(o.elements) != len(first) for o in others):
        raise n.error("sequences of different lengths", "equal lengths")
    rows: list[list[Held]] = []
    for i, element in enumerate(first):
        rest = [o.elements[i] if isinstance(o, TensorList) else o for o in others]
        rows.append(body.run([element, *rest]))
    columns = zip(*rows, strict=True) if rows else [()] * body.output_count
    return [TensorList(tuple(v if isinstance(v, KnownArray) else tensor(v) for v in column)) for column in columns]


def _optional(n: OnnxNode) -> Held:
    n.ignore_attributes("type")
    found = n.held(0)
    return Nothing() if found is None else found


def _get_element(n: OnnxNode) -> Held:
    found = n.held(0)
    if found is None or isinstance(found, Nothing):
        raise n.error("an empty optional", "an optional that has a value")
    return found


def _has_element(n: OnnxNode) -> Held:
    there = not isinstance(n.held(0), Nothing | None)
    return KnownArray(np.array(there), "bool")


HANDLERS: dict[str, Handler] = {
    "ConcatFromSequence": _concat,
    "Identity": _identity,
    "Optional": _optional,
    "OptionalGetElement": _get_element,
    "OptionalHasElement": _has_element,
    "SequenceAt": _at,
    "SequenceConstruct": lambda n: TensorList(tuple(n.required_input(i) for i in range(len(n.inputs)))),
    "SequenceEmpty": _empty,
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": _length,
    "SequenceMap": _map,
    "SplitToSequence": _split,
}
