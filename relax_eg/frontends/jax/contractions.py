"""`dot_general` as `matmul`, with permutations and reshapes of the axes before and after it."""

from __future__ import annotations

from typing import Any

from relax_eg.dtypes import dtype_of
from relax_eg.frontends.jax.equation import JaxprEquation, astype, insert_axes, permute, reshape, squeeze
from relax_eg.ir.expr import Expr
from relax_eg.ops.contraction import PRECISIONS
from relax_eg.ops.record import call
from relax_eg.ops.sizes import product


def dot_general(e: JaxprEquation) -> Expr | None:
    """`dot_general` as operators, or None if `matmul` cannot express it.

    Batch axes come first on both sides. Without batch axes, a left side of any rank and a right side of rank 1 or 2
    need no reshape, as in numpy's matmul. Otherwise a reshape merges the free axes of each side into one. Where the
    right side is in the order of a left side, and the left side is not, the product is that of the sides exchanged: the
    result is moved, and not the right side, such as the weights of an attention, which XLA's loops on CPUs would copy.
    """
    a, b = e.args
    precision = precision_of(e["precision"])
    dtype = common_dtype(a, b, e.dtype)
    if precision == "odd" or dtype is None:
        return None
    a, b = astype(a, dtype), astype(b, dtype)
    (contract_a, contract_b), (batch_a, batch_b) = e["dimension_numbers"]
    # The pairs may be contracted in any order; the order of the left side needs the fewest moves.
    pairs = sorted(zip(contract_a, contract_b, strict=True))
    contract_a, contract_b = [p[0] for p in pairs], [p[1] for p in pairs]
    free_a = [i for i in range(a.ndim) if i not in contract_a and i not in batch_a]
    free_b = [i for i in range(b.ndim) if i not in contract_b and i not in batch_b]
    batch, moved = len(batch_a), 0
    as_left = [[*batch_a, *free_a, *contract_a], [*batch_b, *free_b, *contract_b]]
    if pairs and batch and free_a and free_b and as_left[0] != sorted(as_left[0]) and as_left[1] == sorted(as_left[1]):
        moved = len(free_a)
        a, b, batch_a, batch_b = b, a, batch_b, batch_a
        free_a, free_b, contract_a, contract_b = free_b, free_a, contract_b, contract_a
    a = permute(a, [*batch_a, *free_a, *contract_a])
    b = permute(b, [*batch_b, *contract_b, *free_b])
    if not pairs:
        return _outer(a, b, batch, len(free_a), e.dtype)
    out_dtype = None if e.dtype == a.dtype else e.dtype
    attrs = {"precision": precision, "out_dtype": out_dtype}
    lead, free, inner = a.shape[:batch], a.shape[batch : batch + len(free_a)], a.shape[batch + len(free_a) :]
    outer = b.shape[batch + len(pairs) :]
    k = product(inner)
    if batch == 0:
        a = reshape(a, (*free, k))
        b = reshape(b, (k,) if not outer else (k, product(outer)))
        return reshape(call("matmul", (a, b), attrs), e.shape)
    drop: list[int] = []
    if free_a:
        a = reshape(a, (*lead, product(free), k))
    else:
        a = insert_axes(reshape(a, (*lead, k)), (batch,))
        drop.append(batch)
    if outer:
        b = reshape(b, (*lead, k, product(outer)))
    else:
        b = insert_axes(reshape(b, (*lead, k)), (batch + 1,))
        drop.append(batch + 1)
    made = squeeze(call("matmul", (a, b), attrs), drop)
    if not moved:
        return reshape(made, e.shape)
    rows = len(e.shape) - batch - moved  # of what is now the left side
    made = reshape(made, (*e.shape[:batch], *e.shape[batch + moved :], *e.shape[batch : batch + moved]))
    return permute(made, [*range(batch), *range(batch + rows, len(e.shape)), *range(batch, batch + rows)])


def _outer(a: Expr, b: Expr, batch: int, free: int, dtype: str) -> Expr:
    """A product without contraction."""
    a, b = astype(a, dtype), astype(b, dtype)
    rank = a.ndim + b.ndim - batch
    times = "logical_and" if dtype == "bool" else "multiply"
    if not a.ndim or not b.ndim:
        return call(times, (a, b))
    b = insert_axes(b, range(batch, batch + free)) if batch else b
    return call(times, (insert_axes(a, range(a.ndim, rank)), b))


def ragged_dot(e: JaxprEquation) -> Expr | None:
    """`ragged_dot_general` as operators: the rows come in groups, and each group is multiplied by its own matrix, or
    yields its own matrix. `jax.lax.ragged_dot` and its derivatives have these forms. None for batch axes and for other
    ragged axes."""
    numbers = e["ragged_dot_dimension_numbers"]
    (contract_x, contract_y), batch = numbers.dot_dimension_numbers
    x, y, sizes = e.args
    precision, dtype = precision_of(e["precision"]), common_dtype(x, y, e.dtype)
    batched = any(map(len, batch))
    odd = batched or tuple(numbers.lhs_ragged_dimensions) != (0,) or (x.ndim, sizes.ndim) != (2, 1)
    if odd or precision == "odd" or dtype is None or e.params.get("group_offset") is not None:
        return None
    x, y = astype(x, dtype), astype(y, dtype)
    attrs = {"precision": precision, "out_dtype": None if e.dtype == dtype else e.dtype}
    groups, pair = tuple(numbers.rhs_group_dimensions), (tuple(contract_x), tuple(contract_y))
    if not groups and pair == ((0,), (0,)):
        return call("ragged_outer", (x, y, sizes), attrs)
    if len(groups) != 1 or pair[0] != (1,) or len(pair[1]) != 1:
        return None
    rest = [a for a in range(y.ndim) if a not in (groups[0], pair[1][0])]
    return call("ragged_dot", (x, permute(y, (groups[0], pair[1][0], *rest)), sizes), attrs)


def common_dtype(a: Expr, b: Expr, out: str) -> str | None:
    """The common dtype of the operands of a product: their own dtype, or that of the result if they differ, to which
    XLA converts both. None where an operand has more digits or bits than the result, of which the device decides when
    they are lost."""
    if a.dtype == b.dtype:
        return a.dtype
    return None if _is_narrower(out, a.dtype) or _is_narrower(out, b.dtype) else out


def _is_narrower(out: str, dtype: str) -> bool:
    """Whether a number type keeps fewer digits or bits than one of the same sort: floats and complex numbers, or
    integers."""
    parts = [dtype_of(name).part for name in (out, dtype)]
    return parts[0].is_float == parts[1].is_float and parts[0].bits < parts[1].bits


def precision_of(value: Any) -> str | tuple[str, str] | None:
    """The operator's spelling of a precision; "odd" for a precision that the operator cannot express."""
    if isinstance(value, tuple):
        first, second = map(precision_of, value)
        return first if first == second else (str(first).lower(), str(second).lower())
    if value is None:
        return None
    name, kind = str(getattr(value, "name", value)), type(value).__name__
    if kind == "Precision" and name.lower() in PRECISIONS:
        return name.lower()
    if kind == "DotAlgorithmPreset":
        return None if name == "DEFAULT" else name
    return "odd"
