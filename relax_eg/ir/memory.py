"""Explicit memory: storages, tensors in them, kernels that fill tensors, and the end of a tensor's life.

    storage = alloc_storage(size, device, dtype)            size bytes
    x = alloc_tensor(storage, offset, shape, dtype)         a tensor in it, from byte `offset` on
    call_into(kernel, x, ...)                               the kernel's results are written there (Relax, Figure 5)
    kill(x)                                                 what is there is not needed any more

All four are steps: whole values of bindings outside dataflow blocks, done in the order in which they stand. Storages
and tensors are told apart by the variables they are bound to. A kernel is a call of a tensor program or of a library,
an operator, a branch or a loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from relax_eg.errors import WellFormedError
from relax_eg.ir.annotations import Annotation, Object, Tensor, Tuple, itemsize
from relax_eg.ir.expr import ALLOC_STORAGE, ALLOC_TENSOR, CALL_INTO, KILL, VAR, Expr, node, postorder
from relax_eg.ir.module import Function
from relax_eg.shapes import Dim

NOTHING = Tuple(())


def alloc_storage(size: int | str | Dim, device: str = "cpu", dtype: str = "uint8") -> Expr:
    """A storage of `size` bytes on `device`; `dtype` is what it mostly holds, for devices that ask."""
    return node(ALLOC_STORAGE, (), (("size", Dim.of(size)), ("device", device), ("dtype", dtype)), Object())


def alloc_tensor(storage: Expr, offset: int | str | Dim, shape: Iterable[int | str | Dim], dtype: str) -> Expr:
    """A tensor in a storage, from byte `offset` on. Its contents are whatever is there."""
    return node(ALLOC_TENSOR, (storage,), (("offset", Dim.of(offset)),), Tensor(tuple(map(Dim.of, shape)), dtype))


def call_into(kernel: Expr, into: Iterable[Expr]) -> Expr:
    """`kernel`, its results written to the tensors `into`, one for each."""
    return node(CALL_INTO, (kernel, *into), (), NOTHING)


def kill(tensor: Expr) -> Expr:
    """The end of a tensor's life."""
    return node(KILL, (tensor,), (), NOTHING)


def outputs_of(annotation: Annotation) -> tuple[Annotation, ...]:
    """What a kernel of this annotation fills, one by one."""
    if not isinstance(annotation, Tuple):
        return (annotation,)
    return tuple(a for field in annotation.fields for a in outputs_of(field))


def tensor_bytes(annotation: Annotation) -> Dim | None:
    """Bytes of a tensor, None where its shape or dtype is not known."""
    if not isinstance(annotation, Tensor) or annotation.shape is None or annotation.dtype is None:
        return None
    count = Dim.of(itemsize(annotation.dtype))
    for d in annotation.shape:
        count = count * d
    return count


def check_memory(function: Function) -> None:
    """Raise WellFormedError where explicit memory is used wrongly: a tensor before it is allocated or after its end, in
    what is no storage or does not hold it, or a kernel into tensors that are not what it fills. Linear."""
    sizes: dict[Expr, Dim] = {}
    tensors: dict[Expr, bool] = {}  # those of storages, and whether they live
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
                    raise WellFormedError(f"{where}: kill of {_shown(dead)}; a tensor made by alloc_tensor is accepted")
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
            f"{where}: {_shown(storage)} is no storage; a variable bound to alloc_storage is accepted"
        )
    needed = tensor_bytes(e.annotation)
    if needed is None:
        raise WellFormedError(f"{where}: alloc_tensor needs the shape and dtype of the tensor, got {e.annotation}")
    offset: Dim = e.attr("offset")
    room = sizes[storage] - offset - needed
    if (room.is_const and room.value < 0) or (offset.is_const and offset.value < 0):
        raise WellFormedError(
            f"{where}: the tensor has bytes {offset} to {offset + needed}, its storage {_shown(storage)} has "
            f"{sizes[storage]}"
        )


def _check_filled(where: str, e: Expr, tensors: Mapping[Expr, bool]) -> None:
    kernel, *into = e.args
    for t in into:
        if t not in tensors:
            raise WellFormedError(f"{where}: call_into fills {_shown(t)}; tensors made by alloc_tensor are accepted")
    filled, given = outputs_of(kernel.annotation), tuple(t.annotation for t in into)
    if filled != given:
        wanted, got = (", ".join(map(str, a)) or "nothing" for a in (filled, given))
        raise WellFormedError(f"{where}: the kernel fills {wanted}; given: {got}")


def _shown(e: Expr) -> str:
    return f"`{e.attr('name')}`" if e.op == VAR else f"<{e.op}>"
