"""Sorting and top-k. They have no index equations, because an element's place depends on the values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from relax_eg.dtypes import is_float, itemsize, kind
from relax_eg.ir.annotations import Annotation, Tensor, Tuple
from relax_eg.ops.attribute_values import one_axis
from relax_eg.ops.lazy_jax import lax
from relax_eg.ops.packed_sorts import is_of_integers, packed_bits, packed_sort
from relax_eg.ops.record import Attribute, Operator, Site, register
from relax_eg.ops.sizes import ONE, need_at_most, need_axis, need_equal, need_kind, operand_annotation, product
from relax_eg.shapes import Dim
from relax_eg.tir import (
    Buffer,
    Counts,
    Index,
    Scalar,
    TensorProgram,
    cast,
    compute,
    const,
    equal,
    less,
    loop,
    not_equal,
    program,
    reduce,
    select,
)
from relax_eg.tir.expr import INDEX_DTYPE

Array = np.ndarray[Any, Any]
SORTS = frozenset(("sort",))

# measured: flops that a comparison of two elements costs: of keys that XLA's own code compares, and of integers that a
# library sorts (`python -m benchmarks.patterns --cases sort`)
_COMPARISON, _OF_INTEGERS = 10, 2


def log2_of(size: Dim) -> int:
    """Returns the binary logarithm of a size, rounded up and at least 1; for a symbolic size that of a thousand."""
    return max(1, (size.value - 1).bit_length()) if size.is_const else 10


def _sort(site: Site) -> Annotation:
    if not site.operands:
        raise site.error("at least one operand is needed")
    keys, shape = site["num_keys"], site.shape(0)
    if not isinstance(keys, int) or not 1 <= keys <= len(site.operands):
        raise site.error(f"num_keys is {keys}; 1 to {len(site.operands)} operands can be keys")
    need_axis(site, site["axis"], len(shape))
    for i in range(len(site.operands)):
        need_kind(site, "biufc", i)
        if len(site.shape(i)) != len(shape):
            raise site.error(f"operand {i} has rank {len(site.shape(i))}, operand 0 rank {len(shape)}")
        for a, (p, q) in enumerate(zip(shape, site.shape(i), strict=True)):
            need_equal(site, p, q, f"operands 0 and {i} do not fit together on axis {a}")
    fields = tuple(operand_annotation(site, i) for i in range(len(site.operands)))
    return fields[0] if len(fields) == 1 else Tuple(fields)


def _comparable(x: Array) -> Array:
    """Returns `x` in a dtype that numpy sorts in the same order: NaN last, zeros of both signs equal."""
    return x.astype(np.float32) if x.dtype.kind == "V" else x


def _keys(x: Array) -> list[Array]:
    """Returns the keys of `x` for `np.lexsort`, which compares the last one first: the real part of complex numbers."""
    return [x.imag, x.real] if x.dtype.kind == "c" else [_comparable(x)]


def _sort_definition(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram | None:
    """Each result is the element whose rank, the number of elements that come before it, is the result's place."""
    key, axis = buffers[0], site["axis"]
    if site["num_keys"] != 1 or not site["stable"] or kind(key.dtype) not in "iuf":
        return None
    n = key.shape[axis]

    def at(i: tuple[Dim, ...], place: Dim) -> tuple[Dim, ...]:
        return (*i[:axis], place, *i[axis + 1 :])

    def is_less(x: Scalar, y: Scalar) -> Scalar:  # NaN is the greatest
        return less(x, y) | (not_equal(y, y) & equal(x, x)) if is_float(key.dtype) else less(x, y)

    def sorted_along(x: Buffer, i: tuple[Dim, ...]) -> Scalar:
        j, k = loop("j"), loop("k")
        here, other = key[at(i, j)], key[at(i, k)]
        later = less(Index(j), Index(k)) & is_less(other, here)
        before = select(less(Index(k), Index(j)), ~is_less(here, other), later)
        rank = reduce("sum", cast(before, INDEX_DTYPE), ((k, n),))
        nothing = const(-0.0 if is_float(x.dtype) else 0, x.dtype)  # a zero of either sign plus this is the same zero
        chosen = select(equal(rank, Index(i[axis])), x[at(i, j)], nothing)
        return reduce("sum", chosen, ((j, n),))

    stages = [compute(f"out{m}", x.shape, lambda *i, x=x: sorted_along(x, i)) for m, x in enumerate(buffers)]
    return program("sort", buffers, *stages)


def _sort_reference(*xs: Array, axis: int, num_keys: int, stable: bool) -> Any:
    order = np.lexsort([key for x in reversed(xs[:num_keys]) for key in _keys(x)], axis=axis)
    results = tuple(np.take_along_axis(x, order, axis) for x in xs)
    return results[0] if len(results) == 1 else results


def _sort_cost(site: Site) -> Counts:
    moved = Dim.of(0)
    for i in range(len(site.operands)):
        moved = moved + product(site.shape(i)) * itemsize(site.dtype(i))
    rounds = log2_of(site.shape(0)[site["axis"]])
    of_integers = _packed_bits(site) is not None or is_of_integers(_dtypes(site))
    each = _OF_INTEGERS if of_integers else _COMPARISON * site["num_keys"]
    return Counts(product(site.shape(0)) * rounds * each, moved * rounds, moved * rounds)


def _slower_sort(site: Site, size: Callable[[Dim], float]) -> float:
    return 1.0 if _packed_bits(site) is None else site["num_keys"] * _COMPARISON / _OF_INTEGERS


def _dtypes(site: Site) -> list[str]:
    return [site.dtype(i) for i in range(len(site.operands))]


def _packed_bits(site: Site) -> int | None:
    return packed_bits(_dtypes(site), site["num_keys"], site.shape(0)[site["axis"]])


def _jax_sort(*xs: Any, axis: int, num_keys: int, stable: bool) -> Any:
    def plain(*xs: Any) -> Any:
        return lax.sort(xs[0] if len(xs) == 1 else xs, dimension=axis, num_keys=num_keys, is_stable=stable)

    bits = packed_bits([x.dtype.name for x in xs], num_keys, xs[0].shape[axis])
    return plain(*xs) if bits is None else packed_sort(plain, axis, num_keys, bits)(*xs)


def _top_k(site: Site) -> Annotation:
    dtype, shape = need_kind(site, "biuf"), site.shape()
    axis = need_axis(site, site["axis"], len(shape))
    if len(site["k"]) != 1:
        raise site.error(f"k is one size; got {len(site['k'])}")
    (k,) = site["k"]
    need_at_most(site, Dim.of(0), k, "0, and k")
    need_at_most(site, k, shape[axis], f"k, and the size of axis {axis}")
    result = (*shape[:axis], k, *shape[axis + 1 :])
    return Tuple((Tensor(result, dtype), Tensor(result, "int32")))


def _top_k_reference(x: Array, *, k: tuple[Any], axis: int) -> tuple[Array, Array]:
    # Takes the end of the sorted reversed axis: of equal elements the first comes first, and NaN is the greatest.
    turned = np.flip(_comparable(x), axis)
    order = np.flip(np.argsort(turned, axis=axis, kind="stable"), axis)
    first = np.take(x.shape[axis] - 1 - order, np.arange(int(k[0])), axis=axis)
    return np.take_along_axis(x, first, axis), first.astype(np.int32)


def _approx_top_k(site: Site) -> Annotation:
    need_kind(site, "f")
    if not 0 < site["recall"] <= 1:
        raise site.error(f"recall is {site['recall']}; a number above 0, up to 1, is needed")
    for k in site["k"]:
        need_at_most(site, ONE, k, "one, and k")
    return _top_k(site)


def _approx_top_k_reference(x: Array, *, k: tuple[Any], axis: int, largest: bool, recall: float) -> tuple[Array, Array]:
    """Returns the exact answer, which is one of the allowed ones."""
    values = _comparable(x)
    order = np.argsort(-values if largest else values, axis=axis, kind="stable")
    first = np.take(order, np.arange(int(k[0])), axis=axis)
    return np.take_along_axis(x, first, axis), first.astype(np.int32)


def _jax_approx_top_k(x: Any, *, k: tuple[int], axis: int, largest: bool, recall: float) -> Any:
    function = lax.approx_max_k if largest else lax.approx_min_k
    return tuple(function(x, k[0], axis, recall))


def _top_k_cost(site: Site) -> Counts:
    (k,), elements = site["k"], product(site.shape())
    kept = product((*site.shape()[: site["axis"]], k, *site.shape()[site["axis"] + 1 :]))
    rounds = log2_of(site.shape()[site["axis"]])
    return Counts(elements * rounds, elements * itemsize(site.dtype()), kept * (itemsize(site.dtype()) + 4))


def _jax_top_k(x: Any, *, k: tuple[int], axis: int) -> Any:
    return tuple(lax.top_k(x, k[0], axis=axis))


for _operator in (
    Operator("sort", ("*x",), _sort, _jax_sort, None,
             (Attribute("axis", omitted=-1, values=one_axis), Attribute("num_keys", default=1),
              Attribute("stable", default=True)), _sort_reference, _sort_cost,
             capacity="sort", definition=_sort_definition, slower=_slower_sort,
             doc="operands put in the ascending order of the first num_keys of them; a tuple where there are several"),
    Operator("top_k", ("x",), _top_k, _jax_top_k, None,
             (Attribute("k", "dims"), Attribute("axis", omitted=-1, values=one_axis)),
             _top_k_reference, _top_k_cost, capacity="top_k",
             doc="the k greatest along the axis, descending, and where they are"),
    Operator("approx_top_k", ("x",), _approx_top_k, _jax_approx_top_k, None,
             (Attribute("k", "dims"), Attribute("axis", values=one_axis), Attribute("largest", default=True),
              Attribute("recall", default=0.95)),
             _approx_top_k_reference, _top_k_cost,
             capacity="top_k",
             doc="k of the greatest or least along the axis, as many as `recall` of them right, in order"),
):  # fmt: skip
    register(_operator)
