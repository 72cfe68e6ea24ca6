"""Devices that a program names, and copies of values to them.

A device is named by its platform and number, "cpu:1" or "gpu:0": it is a mesh without axes (`ir.placements`). A copy,
`R.to_vdevice(x, "cpu:1")`, is a call of a function of the host and so a step. A function is on the device that its
attribute `vdevice` names.
"""

from __future__ import annotations

import ast

from relax_eg.errors import SpecError
from relax_eg.ir.annotations import Annotation, Tensor, Tuple
from relax_eg.ir.expr import Expr
from relax_eg.ir.host_calls import HOST, OWN, host_call, is_host_call
from relax_eg.ir.module import Function
from relax_eg.ir.placements import device_name

TO_DEVICE = OWN + "to_device"
ANNOTATE_SHARDING = "annotate_sharding"  # the operator that places its operand on a mesh
ATTRIBUTE = "vdevice"  # of a function


def written_device(node: ast.expr) -> str:
    """Returns the device that an expression of a text names. SpecError."""
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = [a.value for a in node.args if isinstance(a, ast.Constant)]
        if name in ("device", "vdevice") and given:
            return device_name(":".join(map(str, given[:2])))
        return device_name(f"{name}:{given[0] if given else 0}")
    return device_name(node.value if isinstance(node, ast.Constant) else ast.unparse(node))


def declared_device(annotation: ast.expr | None) -> str | None:
    """Returns the device in the text of a tensor's annotation, `R.Tensor((4,), "float32", "cpu:1")`, or None."""
    if not isinstance(annotation, ast.Call) or ast.unparse(annotation.func).rpartition(".")[2] != "Tensor":
        return None
    said = [k.value for k in annotation.keywords if k.arg == "vdevice"] or annotation.args[2:3]
    if not said or (isinstance(said[0], ast.Constant) and said[0].value is None):
        return None
    return written_device(said[0])


def to_device(x: Expr, device: str) -> Expr:
    """Returns the copy of a tensor, or of a tuple of tensors, on a device. SpecError for another value."""
    if not is_copied(x.annotation):
        raise SpecError(f"a copy to {device} of {x.annotation}\n  accepted: a tensor, or a tuple of tensors")
    return host_call(TO_DEVICE, [x], x.annotation, pure=True, literals=[(1, device)])


def is_copied(a: Annotation) -> bool:
    """Whether values of this annotation are copied between devices."""
    return all(map(is_copied, a.fields)) if isinstance(a, Tuple) else isinstance(a, Tensor)


def copied_to(e: Expr) -> str | None:
    """Returns the device to which `e` copies its operand, or None if it is no copy."""
    if not is_host_call(e) or e.attr("name") != HOST + TO_DEVICE:
        return None
    return str(dict(e.attr("attrs"))["literals"][0][1])


def mesh_of(e: Expr) -> str | None:
    """Returns the mesh of devices on which `e` places its operand, or None if it states no placement."""
    return str(e.attr("mesh")) if e.op == ANNOTATE_SHARDING else None


def mesh_in(f: Function) -> str:
    """A mesh on which a function places values; "" if there is none."""
    return next((m for e in f.expressions() if (m := mesh_of(e))), "")


def device_of(f: Function) -> str | None:
    """Returns the device on which a function is declared to run. SpecError for an attribute that names none."""
    said = dict(f.attributes).get(ATTRIBUTE)
    return None if said is None else device_name(said)
