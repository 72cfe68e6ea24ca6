"""StableHLO operations that combine elements by a region: reductions, windows, scatters, maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax import lax

from relax_eg.dtypes import dtype_of
from relax_eg.errors import StableHloError
from relax_eg.frontends.stablehlo.parsing import HloOp, HloRegion
from relax_eg.frontends.stablehlo.use import Use, pairs, word_in
from relax_eg.tir.functions import FUNCTIONS, REDUCTIONS
from relax_eg.tir.functions import identity as identity_of

_MONOIDS: Mapping[str, Callable[..., Any]] = {
    f"stablehlo.{r.function.removeprefix('bitwise_')}": getattr(lax, FUNCTIONS[r.function].primitive)
    for r in REDUCTIONS.values()
}


def part_of(region: HloRegion, params: Sequence[int], wanted: Sequence[int]) -> HloRegion | None:
    """The region of these parameters that returns the values `wanted`; None if they depend on other parameters."""
    needed, kept = set(wanted), list[HloOp]()
    for op in reversed(region.ops[:-1]):
        if needed & set(op.results):
            kept.append(op)
            needed |= {*op.operands, *(x for r in op.regions for inner in r.walk() for x in inner.operands)}
    if needed & (set(region.params) - set(params)):
        return None
    types = tuple(region.types[region.params.index(p)] for p in params)
    return HloRegion(tuple(params), types, (*kept[::-1], replace(region.ops[-1], operands=tuple(wanted))))


def _alone(region: HloRegion) -> list[HloRegion] | None:
    """The regions that combine one array each, of a region that combines several; None if arrays meet in it."""
    count = len(region.params) // 2
    found = [part_of(region, region.params[i::count], [r]) for i, r in enumerate(region.ops[-1].operands)]
    return None if None in found else [r for r in found if r is not None]


def _operation(region: HloRegion) -> str | None:
    """The operation of a region that combines its two parameters, of a monoid in any order; None for other regions."""
    first, *rest = region.ops
    if len(rest) != 1 or rest[0].operands != first.results or set(first.operands) != set(region.params):
        return None
    return first.name if first.operands == region.params or first.name in _MONOIDS else None


# The region by which JAX exports an argmax, as `_region_text` has it; an argmin has LT in place of GT.
_FIRST_GREATEST = (
    "compare GT 0 2; compare NE 0 0; or 4 5; compare EQ 0 2; compare LT 1 3; and 7 8; or 6 9; select 6 0 2; "
    "select 10 1 3; return 11 12"
)


def _region_text(region: HloRegion) -> str:
    """The operations of a region with numbers for its parameters and results."""
    numbers: dict[int, int] = {}
    texts: list[str] = []
    for p in region.params:
        numbers[p] = len(numbers)
    for op in region.ops:
        for r in op.results:
            numbers[r] = len(numbers)
        word = [word_in(op.at("comparison_direction"))] if op.name == "stablehlo.compare" else []
        operands = [str(numbers.get(x, -1)) for x in op.operands]
        texts.append(" ".join([op.name.removeprefix("stablehlo."), *word, *operands]))
    return "; ".join(texts)


def _first_extreme(u: Use, dim: int) -> list[Any] | None:
    """The values and places of the first greatest or least elements, if that is what a `reduce` of two arrays
    computes: an array and the places along the axis, from the neutral values."""
    x, _, start, place = u.args
    text = _region_text(u.op.regions[0])
    greatest = text == _FIRST_GREATEST
    if not greatest and text != _FIRST_GREATEST.replace("GT", "LT", 1):
        return None
    places = u.made_by(1, "iota", "dynamic_iota")
    if places is None or int(places.at("iota_dimension")) != dim:
        return None
    neutral = dtype_of(str(x.dtype)).extreme(not greatest)
    if not all(isinstance(v, np.ndarray) for v in (start, place)) or start != neutral or place != 0:
        return None
    value, index = (lax.reduce_max, lax.argmax) if greatest else (lax.reduce_min, lax.argmin)
    return [value(x, (dim,)), index(x, dim, u.args[1].dtype)]


def _folded(u: Use, fold: Callable[..., Any], one: Callable[..., Any]) -> list[Any]:
    """A fold of one or several arrays by a region. Arrays that do not meet in it are folded alone.

    - `fold(xs, starts, combine)`: the fold of a tuple of arrays.
    - `one(x, start, name)`: the fold of one array by the operation `name`, one of `_MONOIDS`.
    """
    region, count = u.op.regions[0], len(u.op.results)
    xs, starts = u.args[:count], u.args[count : 2 * count]
    parts = _alone(region)
    if parts is None:
        inner = u.function(region)
        return list(fold(tuple(xs), tuple(starts), lambda a, b: tuple(inner(*a, *b))))
    made: list[Any] = []
    for x, start, part in zip(xs, starts, parts, strict=True):
        name, inner = _operation(part), u.function(part)
        if name not in _MONOIDS:
            made += fold((x,), (start,), lambda a, b, inner=inner: tuple(inner(*a, *b)))
        else:
            made.append(one(x, start, name))
    return made


def _reduce(u: Use) -> Any:
    dims = tuple(int(d) for d in u.at("dimensions"))
    found = _first_extreme(u, dims[0]) if len(u.op.results) == 2 and len(dims) == 1 else None
    return found or _folded(
        u,
        lambda xs, starts, combine: lax.reduce(xs, starts, combine, dims),
        lambda x, start, name: lax.reduce(x, start, _MONOIDS[name], dims),
    )


_CUMULATIVE: Mapping[str, Callable[..., Any]] = {
    "stablehlo.add": lax.cumsum, "stablehlo.multiply": lax.cumprod, "stablehlo.maximum": lax.cummax,
    "stablehlo.minimum": lax.cummin,
}  # fmt: skip


def _reduce_window(u: Use) -> Any:
    """Windows, whose sizes and padding are attributes, or the operands of JAX's `dynamic_reduce_window`. Windows of all
    elements up to each place, or from it, are a cumulative sum or another such fold."""
    count = len(u.op.results)
    names = ("window_strides", "base_dilations", "window_dilations")
    shape = u.args[0].shape
    rank, at = len(shape), 2 * count
    ones = (1,) * rank
    window = u.sizes(at, "window_dimensions")
    strides, base, dilation = (u.sizes(at + 1 + i, name, ones) for i, name in enumerate(names))
    padding = pairs(u.sizes(at + 4, "padding", (0,) * (2 * rank)))
    axes = [a for a in range(rank) if window[a] != 1 or padding[a] != (0, 0)]
    plain = strides == base == dilation == ones and len(axes) == 1 and window[axes[0]] == shape[axes[0]]
    ends = (shape[axes[0]] - 1, 0) if plain else None

    def windows(xs: Any, starts: Any, combine: Callable[..., Any]) -> Any:
        return lax.reduce_window(xs, starts, combine, window, strides, padding, base, dilation)

    def one(x: Any, start: Any, name: str) -> Any:
        if ends is not None and padding[axes[0]] in (ends, ends[::-1]) and name in _CUMULATIVE and x.dtype != bool:
            made = _CUMULATIVE[name](x, axes[0], reverse=padding[axes[0]] != ends)
            neutral = identity_of(name.removeprefix("stablehlo."), str(x.dtype))
            return made if isinstance(start, np.ndarray) and start == neutral else _MONOIDS[name](start, made)
        return windows(x, start, _MONOIDS[name])

    return _folded(u, windows, one)


def _indices_last(indices: Any, axis: int) -> Any:
    """Start indices with their vectors along the last axis, as JAX has them."""
    if axis == len(indices.shape):
        return lax.expand_dims(indices, [axis])
    return jax.numpy.moveaxis(indices, axis, -1)


def _gather(u: Use) -> Any:
    d = u.at("dimension_numbers")
    numbers = lax.GatherDimensionNumbers(
        d["offset_dims"], d["collapsed_slice_dims"], d["start_index_map"], d["operand_batching_dims"],
        d["start_indices_batching_dims"],
    )  # fmt: skip
    indices = _indices_last(u.args[1], d["index_vector_dim"])
    return lax.gather(u.args[0], indices, numbers, u.sizes(2, "slice_sizes"), mode="clip")


_SCATTERS: Mapping[str, Callable[..., Any]] = {
    "stablehlo.add": lax.scatter_add, "stablehlo.multiply": lax.scatter_mul, "stablehlo.minimum": lax.scatter_min,
    "stablehlo.maximum": lax.scatter_max, "stablehlo.subtract": lax.scatter_sub,
}  # fmt: skip


def _scatter(u: Use) -> Any:
    count = len(u.op.results)
    parts = _alone(u.op.regions[0])
    if parts is None:
        raise StableHloError(
            "stablehlo.scatter whose region mixes its arrays\n  accepted: results that depend on one array each"
        )
    d = u.at("scatter_dimension_numbers")
    numbers = lax.ScatterDimensionNumbers(
        d["update_window_dims"], d["inserted_window_dims"], d["scattered_dims_to_operand_dims"],
        d["input_batching_dims"], d["scatter_indices_batching_dims"],
    )  # fmt: skip
    indices = _indices_last(u.args[count], d["index_vector_dim"])
    said = {name: bool(u.at(name, False)) for name in ("unique_indices", "indices_are_sorted")}

    def one(x: Any, updates: Any, part: HloRegion) -> Any:
        kind = lax.scatter if part.ops[0].operands == part.params[1:] else _SCATTERS.get(_operation(part) or "")
        if kind is not None:
            return kind(x, indices, updates, numbers, mode="drop", **said)
        inner, scalar = u.function(part), jax.ShapeDtypeStruct((), x.dtype)
        combine = jax.make_jaxpr(lambda a, b: inner(a, b)[0])(scalar, scalar)
        return lax.scatter_p.bind(
            x, indices, updates, update_jaxpr=combine.jaxpr, update_consts=tuple(combine.consts),
            dimension_numbers=numbers, mode=lax.GatherScatterMode.FILL_OR_DROP, **said,
        )  # fmt: skip

    return [one(*each) for each in zip(u.args[:count], u.args[count + 1 :], parts, strict=True)]


def _select_and_scatter(u: Use) -> Any:
    """The transpose of pooling. Sums of what is scattered are an operator; other combinations are JAX's own."""
    x, source, start = u.args
    select, scatter = u.op.regions
    rank = len(x.shape)
    window = {
        "window_dimensions": u.sizes(3, "window_dimensions", (1,) * rank),
        "window_strides": u.sizes(3, "window_strides", (1,) * rank),
        "padding": tuple(pairs(u.sizes(3, "padding", (0,) * (2 * rank)))),
    }
    way = word_in(select.ops[0].at("comparison_direction")) if _operation(select) == "stablehlo.compare" else ""
    if way in ("GE", "LE") and _operation(scatter) == "stablehlo.add":
        chosen = lax.ge_p if way == "GE" else lax.le_p
        made = lax.select_and_scatter_add_p.bind(source, x, select_prim=chosen, **window)
        return made if isinstance(start, np.ndarray) and start == 0 else lax.add(start, made)
    scalar = jax.ShapeDtypeStruct((), x.dtype)
    functions = map(u.function, (select, scatter))
    chooses, combines = (jax.make_jaxpr(lambda a, b, f=f: f(a, b)[0])(scalar, scalar) for f in functions)
    return lax.select_and_scatter_p.bind(
        x, source, start, select_jaxpr=chooses.jaxpr, select_consts=tuple(chooses.consts), scatter_jaxpr=combines.jaxpr,
        scatter_consts=tuple(combines.consts), **window,
    )  # fmt: skip


def mapped(function: Callable[..., Any], rank: int) -> Callable[..., Any]:
    """A function of scalars as one of arrays of this rank, element by element."""
    for _ in range(rank):
        function = jax.vmap(function)
    return function


def _map(u: Use) -> Any:
    return list(mapped(u.function(u.op.regions[0]), len(u.args[0].shape))(*u.args))


COMBINING: Mapping[str, Callable[[Use], Any]] = {
    "stablehlo.dynamic_gather": _gather, "stablehlo.dynamic_reduce_window": _reduce_window,
    "stablehlo.gather": _gather, "stablehlo.map": _map, "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _reduce_window, "stablehlo.scatter": _scatter,
    "stablehlo.select_and_scatter": _select_and_scatter,
}  # fmt: skip
