"""Explicit memory: storages, tensors inside them, kernels that fill tensors, and the end of a tensor's life.

    storage = alloc_storage(size, device, dtype)            size in bytes
    x = alloc_tensor(storage, offset, shape, dtype)         a tensor in the storage, starting at byte `offset`
    call_into(kernel, x, ...)                               writes the kernel's results into x, ... (Relax, Figure 5)
    kill(x)                                                 the contents of x are no longer needed

`call_into` holds the kernel itself, so a module with explicit memory means the same as one without.

All four are steps: whole values of bindings outside dataflow blocks, executed in order. A storage or tensor is
identified by the variable it is bound to. A kernel is a call of a tensor program or of a library routine, an operator,
a branch or a loop.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from relax_eg.dtypes import itemsize
from relax_eg.errors import WellFormedError
from relax_eg.ir.annotations import Annotation, Object, Tensor, Tuple
from relax_eg.ir.calls import substitute_exprs
from relax_eg.ir.expr import (
    ALLOC_STORAGE,
    ALLOC_TENSOR,
    CALL_INTO,
    KILL,
    VAR,
    Expr,
    node,
    postorder,
    tuple_get,
    var,
)
from relax_eg.ir.heads import MEMORY
from relax_eg.ir.module import Binding, Block, Function
from relax_eg.shapes import Dim

NOTHING = Tuple(())


def alloc_storage(size: int | str | Dim, device: str = "cpu", dtype: str = "uint8") -> Expr:
    """Returns a storage of `size` bytes on `device`. `dtype` is its main element type, for devices that need one."""
    return node(ALLOC_STORAGE, (), (("size", Dim.of(size)), ("device", device), ("dtype", dtype)), Object())


def alloc_tensor(storage: Expr, offset: int | str | Dim, shape: Iterable[int | str | Dim], dtype: str) -> Expr:
    """Returns a tensor in a storage, starting at byte `offset`. Its contents are uninitialized."""
    return node(ALLOC_TENSOR, (storage,), (("offset", Dim.of(offset)),), Tensor(tuple(map(Dim.of, shape)), dtype))


def call_into(kernel: Expr, into: Iterable[Expr]) -> Expr:
    """Runs `kernel` and writes its results into the tensors `into`, one for each."""
    return node(CALL_INTO, (kernel, *into), (), NOTHING)


def kill(tensor: Expr) -> Expr:
    """Ends a tensor's life."""
    return node(KILL, (tensor,), (), NOTHING)


def first_explicit(functions: Iterable[Function]) -> str | None:
    """Returns the name of the first function with explicit memory, or None."""
    return next((f.name for f in functions if any(e.op in MEMORY for e in f.expressions())), None)


def without_memory(function: Function) -> Function | None:
    """Returns `function` with the results of kernels as values in place of the memory that they fill.

    None where a tensor is read that was not filled, or that another tensor of its storage may have overwritten. Linear
    in the function's size.
    """
    env: dict[Expr, Expr] = {}
    storage: dict[Expr, Expr] = {}  # of each tensor
    tensors: dict[Expr, list[Expr]] = {}  # in each storage
    blocks: list[Block] = []
    for block in function.blocks:
        made: list[Binding] = []
        for b in block.bindings:
            e = b.value
            if e.op == ALLOC_TENSOR:
                storage[b.var] = e.args[0]
                tensors.setdefault(e.args[0], []).append(b.var)
            if e.op in (ALLOC_STORAGE, ALLOC_TENSOR, KILL):
                continue
            root = e.args[0] if e.op == CALL_INTO else e
            if any(v in storage and v not in env for v in postorder([root])):
                return None
            (value,) = substitute_exprs([root], env)
            if e.op != CALL_INTO:
                made.append(Binding(b.var, value))
                continue
            into = e.args[1:]
            if len(set(into)) < len(into) or any(t not in storage for t in into):
                return None
            whole = var(b.name, value.annotation)
            made.append(Binding(whole, value))
            for i, t in enumerate(into):
                for other in tensors[storage[t]]:
                    env.pop(other, None)
                env[t] = whole if len(into) == 1 else tuple_get(whole, i)
        blocks.append(replace(block, bindings=tuple(made)))
    if any(v in storage and v not in env for v in postorder([function.result])):
        return None
    (result,) = substitute_exprs([function.result], env)
    return replace(function, blocks=tuple(blocks), result=result)


def outputs_of(annotation: Annotation) -> tuple[Annotation, ...]:
    """Returns the annotations of the outputs that a kernel of this annotation fills, tuples flattened."""
    if not isinstance(annotation, Tuple):
        return (annotation,)
    return tuple(a for field in annotation.fields for a in outputs_of(field))


def tensor_bytes(annotation: Annotation) -> Dim | None:
    """Returns the size of a tensor in bytes, or None if its shape or dtype is not known."""
    if not isinstance(annotation, Tensor) or annotation.shape is None or annotation.dtype is None:
        return None
    return math.prod(annotation.shape, start=Dim.of(itemsize(annotation.dtype)))


def check_memory(function: Function) -> None:
    """Raises WellFormedError where explicit memory is misused. Linear in the function's size.

    Misuses: a tensor used after its end; a kill of a value that is not an allocated tensor; a tensor in a value that is
    not a storage or is too small; a kernel into tensors that are not allocated or differ from its outputs.
    """
    sizes: dict[Expr, Dim] = {}
    tensors: dict[Expr, bool] = {}  # tensors in storages, and whether they are live
    for block in function.blocks:
        for b in block.bindings:
            where = f"function `{function.name}`, binding `{b.name}`"
            _check_uses(where, b.value, tensors)
            if b.value.op == ALLOC_STORAGE:
                sizes[b.var] = b.value.attr("size")
            elif b.value.op == ALLOC_TENSOR:
                _check_place(where, b.value, sizes)
                tensors[b.var] = True
            elif b.value.op == CALL_INTO:
                _check_filled(where, b.value, tensors)
            elif b.value.op == KILL:
                (dead,) = b.value.args
                if dead not in tensors:
                    raise WellFormedError(
                        f"{where}: kill of {_value_text(dead)}; a tensor made by alloc_tensor is accepted"
                    )
                tensors[dead] = False
    _check_uses(f"function `{function.name}`, the result", function.result, tensors)


def _check_uses(where: str, value: Expr, tensors: Mapping[Expr, bool]) -> None:
    for e in postorder([value], stop=lambda e: e.op == VAR):
        if tensors.get(e) is False:
            raise WellFormedError(f"{where}: `{e.attr('name')}` is used after it is killed")


def _check_place(where: str, e: Expr, sizes: Mapping[Expr, Dim]) -> None:
    storage = e.args[0]
    if storage not in sizes:
        raise WellFormedError(
            f"{where}: {_value_text(storage)} is no storage; a variable bound to alloc_storage is accepted"
        )
    needed = tensor_bytes(e.annotation)
    if needed is None:
        raise WellFormedError(f"{where}: alloc_tensor needs the shape and dtype of the tensor, got {e.annotation}")
    offset: Dim = e.attr("offset")
    room = sizes[storage] - offset - needed
    if (room.is_const and room.value < 0) or (offset.is_const and offset.value < 0):
        raise WellFormedError(
            f"{where}: the tensor has bytes {offset} to {offset + needed}, its storage {_value_text(storage)} has "
            f"{sizes[storage]}"
        )


def _check_filled(where: str, e: Expr, tensors: Mapping[Expr, bool]) -> None:
    kernel, *into = e.args
    for t in into:
        if t not in tensors:
            raise WellFormedError(
                f"{where}: call_into fills {_value_text(t)}; tensors made by alloc_tensor are accepted"
            )
    filled, given = outputs_of(kernel.annotation), tuple(t.annotation for t in into)
    if filled != given:
        wanted, got = (", ".join(map(str, a)) or "nothing" for a in (filled, given))
        raise WellFormedError(f"{where}: the kernel fills {wanted}; given: {got}")


def _value_text(e: Expr) -> str:
    return f"`{e.attr('name')}`" if e.op == VAR else f"<{e.op}>"
