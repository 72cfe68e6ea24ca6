"""StableHLO operations as calls of `jax.lax`, one each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from relax_eg.dtypes import dtype_of
from relax_eg.errors import StableHloError
from relax_eg.frontends.stablehlo.loops import as_scan
from relax_eg.frontends.stablehlo.parsing import HloOp, HloRegion
from relax_eg.tir.functions import FUNCTIONS, REDUCTIONS

Shape = tuple[Any, ...]  # sizes: integers, and JAX's symbolic dimensions


@dataclass(frozen=True)
class Use:
    """One use of an operation.

    - `args`: its operands as arrays.
    - `known`: its operands that are known as arrays of sizes; None for the others.
    - `function(region)`: a region as a function of arrays that returns a list.
    - `is_truth_value`: whether the first operand is a truth value as a number.
    - `makers`: the operations that made the operands; None for those made outside the region.
    """

    op: HloOp
    args: Sequence[Any]
    known: Sequence[np.ndarray[Any, Any] | None]
    function: Callable[[HloRegion], Callable[..., list[Any]]]
    is_truth_value: bool
    makers: Sequence[HloOp | None]

    def made_by(self, i: int, *names: str) -> HloOp | None:
        """The operation that made operand `i`, if it is one of these."""
        found = self.makers[i]
        return found if found is not None and found.name.removeprefix("stablehlo.") in names else None

    def at(self, name: str, default: Any = None) -> Any:
        return self.op.at(name, default)

    @property
    def dtype(self) -> str:
        kind = self.op.types[0]
        assert kind is not None
        return kind.dtype

    @property
    def shape(self) -> Shape:
        """The declared shape of the first result."""
        kind = self.op.types[0]
        if kind is None or None in kind.shape:
            raise StableHloError(f"{self.op.name} of a result whose sizes are not known\n  accepted: known sizes")
        return kind.shape

    def sizes(self, i: int) -> Shape:
        """Operand `i` as sizes."""
        found = self.known[i]
        if found is None:
            raise StableHloError(f"{self.op.name} to sizes that depend on values\n  accepted: sizes of shapes")
        return tuple(found.reshape(-1))


def _unary(f: Callable[..., Any]) -> Callable[[Use], Any]:
    return lambda u: f(u.args[0])


def _binary(f: Callable[..., Any]) -> Callable[[Use], Any]:
    return lambda u: f(u.args[0], u.args[1])


_COMPARISONS: Mapping[str, Callable[..., Any]] = {
    "EQ": lax.eq, "NE": lax.ne, "LT": lax.lt, "LE": lax.le, "GT": lax.gt, "GE": lax.ge,
}  # fmt: skip
_MONOIDS: Mapping[str, Callable[..., Any]] = {
    f"stablehlo.{r.function.removeprefix('bitwise_')}": getattr(lax, FUNCTIONS[r.function].primitive)
    for r in REDUCTIONS.values()
}


def _text(value: Any) -> str:
    """The word in an attribute such as `#stablehlo<comparison_direction LT>`."""
    return str(value).rstrip(">").split(" ")[-1]


def _compare(u: Use) -> Any:
    return _COMPARISONS[_text(u.at("comparison_direction"))](u.args[0], u.args[1])


def _monoid(region: HloRegion) -> str | None:
    """The operation of a region that combines its two parameters; None for other regions."""
    first, *rest = region.ops
    if len(rest) == 1 and len(first.results) == 1 and rest[0].operands == first.results and first.name in _MONOIDS:
        return first.name if set(first.operands) == set(region.params) else None
    return None


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
        word = [_text(op.at("comparison_direction"))] if op.name == "stablehlo.compare" else []
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


def _reduce(u: Use) -> Any:
    count = len(u.args) // 2
    xs, starts, dims = u.args[:count], u.args[count:], tuple(int(d) for d in u.at("dimensions"))
    region = u.op.regions[0]
    monoid = _monoid(region)
    if monoid is not None:
        return lax.reduce(xs[0], starts[0], _MONOIDS[monoid], dims)
    found = _first_extreme(u, dims[0]) if count == 2 and len(dims) == 1 else None
    if found is not None:
        return found
    inner = u.function(region)
    return list(lax.reduce(tuple(xs), tuple(starts), lambda a, b: tuple(inner(*a, *b)), dims))


def _reduce_window(u: Use) -> Any:
    monoid = _monoid(u.op.regions[0])
    if monoid is None or len(u.args) != 2:
        raise StableHloError("stablehlo.reduce_window that combines by more than one operation\n  accepted: one")
    x, rank = u.args[0], len(u.args[0].shape)
    ones = (1,) * rank
    padding = [(int(row[0]), int(row[1])) for row in u.at("padding", np.zeros((rank, 2), int))]
    return lax.reduce_window(
        x, u.args[1], _MONOIDS[monoid], tuple(u.at("window_dimensions")), tuple(u.at("window_strides", ones)), padding,
        tuple(u.at("base_dilations", ones)), tuple(u.at("window_dilations", ones)),
    )  # fmt: skip


def _dot_general(u: Use) -> Any:
    d = u.at("dot_dimension_numbers")
    numbers = (
        (d["lhs_contracting_dimensions"], d["rhs_contracting_dimensions"]),
        (d["lhs_batching_dimensions"], d["rhs_batching_dimensions"]),
    )
    same = {x.dtype for x in u.args} == {jnp.dtype(u.dtype)}
    return lax.dot_general(u.args[0], u.args[1], numbers, preferred_element_type=None if same else jnp.dtype(u.dtype))


def _convolution(u: Use) -> Any:
    d = u.at("dimension_numbers")
    if any(u.at("window_reversal", ())):
        raise StableHloError("stablehlo.convolution with a reversed window\n  accepted: one without")
    spec = lax.ConvDimensionNumbers(
        (d["input_batch_dimension"], d["input_feature_dimension"], *d["input_spatial_dimensions"]),
        (d["kernel_output_feature_dimension"], d["kernel_input_feature_dimension"], *d["kernel_spatial_dimensions"]),
        (d["output_batch_dimension"], d["output_feature_dimension"], *d["output_spatial_dimensions"]),
    )
    space = len(d["input_spatial_dimensions"])
    flat = u.sizes(2) if len(u.args) > 2 else tuple(np.asarray(u.at("padding", np.zeros(2 * space, int))).reshape(-1))
    padding = [(_size(flat[2 * i]), _size(flat[2 * i + 1])) for i in range(space)]
    same = {x.dtype for x in u.args[:2]} == {jnp.dtype(u.dtype)}
    return lax.conv_general_dilated(
        u.args[0], u.args[1], tuple(u.at("window_strides", (1,) * space)), padding, u.at("lhs_dilation"),
        u.at("rhs_dilation"), spec, u.at("feature_group_count", 1), u.at("batch_group_count", 1),
        preferred_element_type=None if same else jnp.dtype(u.dtype),
    )  # fmt: skip


def _size(value: Any) -> Any:
    return int(value) if isinstance(value, np.integer) else value


def _indices_last(indices: Any, axis: int) -> Any:
    """Start indices with their vectors along the last axis, as JAX has them."""
    if axis == len(indices.shape):
        return lax.expand_dims(indices, [axis])
    return jnp.moveaxis(indices, axis, -1)


def _gather(u: Use) -> Any:
    d = u.at("dimension_numbers")
    numbers = lax.GatherDimensionNumbers(
        d["offset_dims"], d["collapsed_slice_dims"], d["start_index_map"], d["operand_batching_dims"],
        d["start_indices_batching_dims"],
    )  # fmt: skip
    sizes = u.sizes(2) if len(u.args) > 2 else tuple(u.at("slice_sizes"))
    indices = _indices_last(u.args[1], d["index_vector_dim"])
    return lax.gather(u.args[0], indices, numbers, tuple(map(_size, sizes)), mode="clip")


def _scatter(u: Use) -> Any:
    if len(u.args) != 3:
        raise StableHloError("stablehlo.scatter of several arrays\n  accepted: one array")
    d, region = u.at("scatter_dimension_numbers"), u.op.regions[0]
    numbers = lax.ScatterDimensionNumbers(
        d["update_window_dims"], d["inserted_window_dims"], d["scattered_dims_to_operand_dims"],
        d["input_batching_dims"], d["scatter_indices_batching_dims"],
    )  # fmt: skip
    (last,) = [op for op in region.ops if not op.results]
    kinds: dict[str | None, Callable[..., Any]] = {
        "stablehlo.add": lax.scatter_add, "stablehlo.multiply": lax.scatter_mul, "stablehlo.minimum": lax.scatter_min,
        "stablehlo.maximum": lax.scatter_max,
    }  # fmt: skip
    kind = lax.scatter if last.operands == region.params[1:] else kinds.get(_monoid(region))
    if kind is None:
        raise StableHloError("stablehlo.scatter with another combination\n  accepted: set, add, multiply, min, max")
    indices = _indices_last(u.args[1], d["index_vector_dim"])
    return kind(u.args[0], indices, u.args[2], numbers, mode="drop", unique_indices=bool(u.at("unique_indices", False)),
                indices_are_sorted=bool(u.at("indices_are_sorted", False)))  # fmt: skip


def _sort(u: Use) -> Any:
    """Sorts by the leading operands that the comparison reads."""
    region, axis = u.op.regions[0], int(u.at("dimension", -1)) % len(u.args[0].shape)
    origin = {p: {p} for p in region.params}  # the parameters that each value comes from
    read: set[int] = set()
    directions: set[str] = set()
    for op in region.ops:
        found = set().union(*(origin.get(x, set[int]()) for x in op.operands), set[int]())
        origin |= dict.fromkeys(op.results, found)
        word = _text(op.at("comparison_direction")) if op.name == "stablehlo.compare" else ""
        if word in ("LT", "GT", "LE", "GE"):
            first = origin.get(op.operands[0], set[int]())
            forward = all(region.params.index(p) % 2 == 0 for p in first)
            directions.add(word[0] if forward else {"L": "G", "G": "L"}[word[0]])
            read |= {region.params.index(p) // 2 for p in found}
    if len(directions) != 1 or read != set(range(len(read))):
        raise StableHloError("stablehlo.sort by another comparison\n  accepted: rising or falling, by leading operands")
    falling = directions == {"G"}
    xs = [lax.rev(x, (axis,)) for x in u.args] if falling else list(u.args)  # keeps the order of equal elements
    found = lax.sort(tuple(xs), dimension=axis, is_stable=True, num_keys=len(read))
    return [lax.rev(x, (axis,)) for x in found] if falling else list(found)


def _while(u: Use) -> Any:
    condition, body = map(u.function, u.op.regions)
    if (found := as_scan(condition, body, u.args, u.known)) is not None:
        return found
    return list(lax.while_loop(lambda c: condition(*c)[0], lambda c: tuple(body(*c)), tuple(u.args)))


def _case(u: Use) -> Any:
    branches = [u.function(r) for r in u.op.regions]
    index, count = u.args[0], len(branches)
    if not u.is_truth_value:  # an index out of range means the last branch
        index = jnp.where((index < 0) | (index >= count), np.int32(count - 1), index)
    return list(lax.switch(index, [lambda f=f: tuple(f()) for f in branches]))


def _if(u: Use) -> Any:
    yes, no = map(u.function, u.op.regions)
    return list(lax.cond(u.args[0], lambda: tuple(yes()), lambda: tuple(no())))


def _pad(u: Use) -> Any:
    if len(u.args) > 2:
        columns = [u.sizes(i) for i in (2, 3, 4)]
    else:
        columns = [u.at(name) for name in ("edge_padding_low", "edge_padding_high", "interior_padding")]
    return lax.pad(u.args[0], u.args[1], [tuple(map(_size, row)) for row in zip(*columns, strict=True)])


def _slice(u: Use) -> Any:
    columns = [u.sizes(i) for i in (1, 2, 3)] if len(u.args) > 1 else [
        u.at(name) for name in ("start_indices", "limit_indices", "strides")
    ]  # fmt: skip
    return lax.slice(u.args[0], *(tuple(map(_size, c)) for c in columns))


def _broadcast(u: Use) -> Any:
    shape = u.sizes(1) if len(u.args) > 1 else u.shape
    return lax.broadcast_in_dim(u.args[0], tuple(map(_size, shape)), tuple(u.at("broadcast_dimensions")))


def _triangular_solve(u: Use) -> Any:
    way = _text(u.at("transpose_a"))
    return lax.linalg.triangular_solve(
        u.args[0], u.args[1], left_side=u.at("left_side"), lower=u.at("lower"), unit_diagonal=u.at("unit_diagonal"),
        transpose_a=way != "NO_TRANSPOSE", conjugate_a=way == "ADJOINT",
    )  # fmt: skip


def _cholesky(u: Use) -> Any:
    x = u.args[0] if u.at("lower", False) else jnp.conj(jnp.swapaxes(u.args[0], -1, -2))
    found = lax.linalg.cholesky(x, symmetrize_input=False)
    return found if u.at("lower", False) else jnp.conj(jnp.swapaxes(found, -1, -2))


def _round_away(x: Any) -> Any:
    return lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO)


_CHLO: Mapping[str, Callable[..., Any]] = {
    "acos": lax.acos, "acosh": lax.acosh, "asin": lax.asin, "asinh": lax.asinh, "atan": lax.atan, "atanh": lax.atanh,
    "cosh": lax.cosh, "digamma": lax.digamma, "erf": lax.erf, "erfc": lax.erfc, "erf_inv": lax.erf_inv,
    "lgamma": lax.lgamma, "sinh": lax.sinh, "square": lax.square, "tan": lax.tan,
}  # fmt: skip


def _batch_norm(u: Use) -> Any:
    """A normalisation along all axes but the feature axis. Without given moments, it uses those of the operand and
    returns them, too."""
    x, scale, offset, *moments = u.args
    feature = int(u.at("feature_index"))
    axes = tuple(a for a in range(x.ndim) if a != feature)

    def spread(v: Any) -> Any:
        return lax.broadcast_in_dim(v, x.shape, (feature,))

    mean, variance = moments or (jnp.mean(x, axes), jnp.var(x, axes))
    y = (x - spread(mean)) * spread(lax.rsqrt(variance + u.at("epsilon")) * scale) + spread(offset)
    return y if moments else [y, mean, variance]


OPERATIONS: Mapping[str, Callable[[Use], Any]] = {
    **{f"stablehlo.{name}": _unary(f) for name, f in {
        "abs": lax.abs, "cbrt": lax.cbrt, "ceil": lax.ceil, "cosine": lax.cos, "count_leading_zeros": lax.clz,
        "exponential": lax.exp, "exponential_minus_one": lax.expm1, "floor": lax.floor, "imag": lax.imag,
        "is_finite": lax.is_finite, "log": lax.log, "log_plus_one": lax.log1p, "logistic": lax.logistic,
        "negate": lax.neg, "not": lax.bitwise_not, "popcnt": lax.population_count, "real": lax.real,
        "round_nearest_afz": _round_away, "rsqrt": lax.rsqrt, "sign": lax.sign,
        "round_nearest_even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
        "sine": lax.sin, "sqrt": lax.sqrt, "tan": lax.tan, "tanh": lax.tanh,
        "optimization_barrier": lambda x: x,
    }.items()},
    **{f"stablehlo.{name}": _binary(f) for name, f in {
        "add": lax.add, "and": lax.bitwise_and, "atan2": lax.atan2, "complex": lax.complex, "divide": lax.div,
        "maximum": lax.max, "minimum": lax.min, "multiply": lax.mul, "or": lax.bitwise_or, "power": lax.pow,
        "remainder": lax.rem, "shift_left": lax.shift_left, "shift_right_arithmetic": lax.shift_right_arithmetic,
        "shift_right_logical": lax.shift_right_logical, "subtract": lax.sub, "xor": lax.bitwise_xor,
    }.items()},
    **{f"chlo.{name}": _unary(f) for name, f in _CHLO.items()},
    "chlo.top_k": lambda u: list(lax.top_k(u.args[0], int(u.at("k")))),
    "stablehlo.batch_norm_inference": _batch_norm, "stablehlo.batch_norm_training": _batch_norm,
    "stablehlo.bitcast_convert": lambda u: lax.bitcast_convert_type(u.args[0], jnp.dtype(u.dtype)),
    "stablehlo.broadcast_in_dim": _broadcast, "stablehlo.case": _case, "stablehlo.cholesky": _cholesky,
    "stablehlo.clamp": lambda u: lax.clamp(*u.args), "stablehlo.compare": _compare,
    "stablehlo.concatenate": lambda u: lax.concatenate(u.args, int(u.at("dimension"))),
    "stablehlo.convert": lambda u: lax.convert_element_type(u.args[0], jnp.dtype(u.dtype)),
    "stablehlo.convolution": _convolution, "stablehlo.dot_general": _dot_general,
    "stablehlo.dynamic_broadcast_in_dim": _broadcast, "stablehlo.dynamic_conv": _convolution,
    "stablehlo.dynamic_gather": _gather,
    "stablehlo.dynamic_iota": lambda u: lax.broadcasted_iota(
        jnp.dtype(u.dtype), tuple(map(_size, u.sizes(0))), int(u.at("iota_dimension"))),
    "stablehlo.dynamic_pad": _pad,
    "stablehlo.dynamic_reshape": lambda u: lax.reshape(u.args[0], tuple(map(_size, u.sizes(1)))),
    "stablehlo.dynamic_slice": lambda u: lax.dynamic_slice(u.args[0], u.args[1:], tuple(u.at("slice_sizes"))),
    "stablehlo.dynamic_update_slice": lambda u: lax.dynamic_update_slice(u.args[0], u.args[1], u.args[2:]),
    "stablehlo.fft": lambda u: lax.fft(u.args[0], _text(u.at("fft_type")), tuple(map(int, u.at("fft_length")))),
    "stablehlo.gather": _gather, "stablehlo.if": _if,
    "stablehlo.iota": lambda u: lax.broadcasted_iota(jnp.dtype(u.dtype), u.shape, int(u.at("iota_dimension"))),
    "stablehlo.pad": _pad, "stablehlo.real_dynamic_slice": _slice, "stablehlo.reduce": _reduce,
    "stablehlo.reduce_precision": lambda u: lax.reduce_precision(
        u.args[0], int(u.at("exponent_bits")), int(u.at("mantissa_bits"))),
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.reshape": lambda u: lax.reshape(u.args[0], u.shape),
    "stablehlo.reverse": lambda u: lax.rev(u.args[0], tuple(u.at("dimensions"))), "stablehlo.scatter": _scatter,
    "stablehlo.select": lambda u: jax.lax.select_n(u.args[0], u.args[2], u.args[1]), "stablehlo.slice": _slice,
    "stablehlo.sort": _sort, "stablehlo.transpose": lambda u: lax.transpose(u.args[0], tuple(u.at("permutation"))),
    "stablehlo.triangular_solve": _triangular_solve, "stablehlo.while": _while,
}  # fmt: skip
