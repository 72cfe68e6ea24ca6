"""The translation table from JAX primitives to operators.

A rule takes an equation and returns its result: one expression, or one for each output. It returns None if operators
cannot express this use of the primitive; the caller then keeps the primitive as a library call. Rules need not check
dtypes that the operators check themselves: an OperatorError means the same as None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from relax_eg.dtypes import is_complex, is_float, kind
from relax_eg.frontends.jax import gather, library, windows
from relax_eg.frontends.jax.contractions import dot_general, ragged_dot
from relax_eg.frontends.jax.equation import (
    ONE,
    ZERO,
    JaxprEquation,
    Rule,
    astype,
    broadcast,
    combining_primitive,
    insert_axes,
    permute,
    reshape,
    slice_array,
    squeeze,
)
from relax_eg.frontends.symbolic import to_dim
from relax_eg.ir.expr import CONSTANT, Expr, const, constant_value
from relax_eg.ops.placing import ANNOTATE_SHARDING, placement_of
from relax_eg.ops.record import TABLE, call
from relax_eg.ops.sizes import product
from relax_eg.shapes import Dim
from relax_eg.tir import FUNCTIONS

# From primitive to operator, with the same operands and no parameters. The record of a scalar function names its
# primitive.
_DIRECT: dict[str, str] = {f.primitive: f.name for f in FUNCTIONS.values() if f.name in TABLE} | {
    "is_finite": "isfinite",
    "add_any": "add",
    "shift_left": "left_shift",
    "clamp": "clip",
    "regularized_incomplete_beta": "betainc",
    "dynamic_update_slice": "dynamic_update_slice",
    # The operator sets the upper triangle to 0; for the primitive its content is undefined, so nothing reads it.
    "cholesky": "cholesky",
    "cholesky_update": "cholesky_update",
    "householder_product": "householder_product",
}

_REDUCTIONS: dict[str, str] = {
    "reduce_sum": "sum",
    "reduce_prod": "prod",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_xor": "reduce_xor",
}

# Bitwise reductions: the operators for bool and for integers.
_BIT_REDUCTIONS: dict[str, tuple[str, str]] = {"reduce_and": ("all", "reduce_and"), "reduce_or": ("any", "reduce_or")}

# By the primitive of a combining function of two scalars: the primitive that reduces, and the one that combines two.
_MONOIDS: dict[str, tuple[str, str]] = {
    "add": ("reduce_sum", "add"), "mul": ("reduce_prod", "mul"), "max": ("reduce_max", "max"),
    "min": ("reduce_min", "min"), "and": ("reduce_and", "and"), "or": ("reduce_or", "or"),
    "xor": ("reduce_xor", "xor"),
}  # fmt: skip

_COLLECTIVES: dict[str, str] = {"psum": "sum", "pmax": "max", "pmin": "min"}


def _direct(name: str) -> Rule:
    return lambda e: call(name, e.args)


def _reduction(name: str) -> Rule:
    def rule(e: JaxprEquation) -> Expr:
        axes = tuple(sorted(e["axes"]))
        return call(name, e.args, {"axes": axes}) if axes else e.x

    return rule


def _bit_reduction(boolean: str, integer: str) -> Rule:
    return lambda e: _reduction(boolean if e.dtype == "bool" else integer)(e)


def _reduce(e: JaxprEquation) -> Sequence[Expr] | None:
    """`reduce` of arrays that do not meet in the combining function, which has one primitive for each. The initial
    value is combined with the reduced value."""
    made: list[Expr] = []
    count = len(e.out)
    for i, out in enumerate(e.out):
        names = _MONOIDS.get(combining_primitive(e["jaxpr"], i) or "")
        if names is None:
            return None
        own = replace(e, out=(out,))
        reduced = RULES[names[0]](replace(own, args=e.args[i : i + 1], params={"axes": e["dimensions"]}))
        assert isinstance(reduced, Expr)
        combined = RULES[names[1]](replace(own, args=(e.args[count + i], reduced), params={}))
        assert isinstance(combined, Expr)
        made.append(combined)
    return made


def _collective(name: str) -> Rule:
    """The rule for a collective over axes of the operands themselves. `vmap` makes such a collective of one over the
    axis that it maps."""

    def rule(e: JaxprEquation) -> Sequence[Expr] | None:
        if e["axis_index_groups"] is not None or not all(isinstance(a, int) for a in e["axes"]):
            return None
        axes = tuple(sorted(e["axes"]))
        return [call(name, (x,), {"axes": axes}) if axes else x for x in e.args]

    return rule


def _bitwise(name: str) -> Rule:
    return lambda e: call(f"{'logical' if e.dtype == 'bool' else 'bitwise'}_{name}", e.args)


def _identity(e: JaxprEquation) -> Sequence[Expr]:
    return e.args


def _round(e: JaxprEquation) -> Expr:
    return call("round", e.args, {"method": "to_even" if int(e["rounding_method"]) == 1 else "away"})


def _one_minus_square(e: JaxprEquation) -> Expr:
    """`(1 + x) * (1 - x)`, as JAX lowers it: near 1 the product keeps digits that `1 - x*x` loses."""
    one = const(1, e.x.dtype)
    return call("multiply", (call("add", (one, e.x)), call("subtract", (one, e.x))))


def _power(e: JaxprEquation) -> Expr:
    """`power` with the exponent converted to the dtype of the result, as JAX lowers integer exponents."""
    return call("power", (e.x, astype(e.args[1], e.dtype)))


def _shift_right_logical(e: JaxprEquation) -> Expr:
    """A logical right shift. Signed integers need `right_shift_logical`, because `right_shift` keeps their sign."""
    return call("right_shift_logical" if kind(e.dtype) == "i" else "right_shift", e.args)


def _shift_right_arithmetic(e: JaxprEquation) -> Expr:
    """A right shift that keeps the sign. It shifts unsigned integers as signed ones, so that the top bit repeats."""
    signed = e.dtype.removeprefix("u")
    return astype(call("right_shift", [astype(x, signed) for x in e.args]), e.dtype)


def _total_order(name: str) -> Rule:
    """The rule for a comparison in which NaN is the greatest value and -0 is below 0. For dtypes other than floats it
    is the usual comparison."""
    return lambda e: call(f"{name}_total" if is_float(e.x.dtype) else name, e.args)


def _reduce_precision(e: JaxprEquation) -> Expr:
    return call("reduce_precision", e.args, {k: int(e[k]) for k in ("exponent_bits", "mantissa_bits")})


def _convert(e: JaxprEquation) -> Expr:
    if e.x.op == CONSTANT and e.x.ndim == 0 and is_float(e.dtype) and not is_complex(e.x.dtype):
        return const(constant_value(e.x), e.dtype)  # rounds to nearest even, as XLA does
    return astype(e.x, e.dtype)


def _conj(e: JaxprEquation) -> Expr:
    """The conjugate; of a real number, that number as a complex one."""
    return call("conj", e.args) if is_complex(e.x.dtype) else astype(e.x, e.dtype)


def _select_n(e: JaxprEquation) -> Expr:
    """The case that the first operand selects; among more than two cases, by binary search."""
    which, *cases = e.args
    if len(cases) == 1:
        return cases[0]
    if which.dtype == "bool":
        return call("where", (which, cases[1], cases[0]))

    def choose(low: int, high: int) -> Expr:
        if high - low == 1:
            return cases[low]
        middle = (low + high) // 2
        before = call("less", (which, const(middle, which.dtype)))
        return call("where", (before, choose(low, middle), choose(middle, high)))

    return choose(0, len(cases))


def _arg_reduction(name: str) -> Rule:
    def rule(e: JaxprEquation) -> Expr:
        (axis,) = e["axes"]
        return call(name, e.args, {"axis": axis, "dtype": e.dtype})

    return rule


def _scan(name: str) -> Rule:
    return lambda e: call(name, e.args, {"axis": e["axis"], "reverse": e["reverse"]})


# --- movement ---


def _reshape(e: JaxprEquation) -> Expr | None:
    if len(e.args) > 1:
        return None
    x = e.x if e["dimensions"] is None else permute(e.x, e["dimensions"])
    return reshape(x, e.shape)


def _transpose(e: JaxprEquation) -> Expr:
    return permute(e.x, e["permutation"])


def _squeeze(e: JaxprEquation) -> Expr:
    return squeeze(e.x, e["dimensions"])


def _stack(e: JaxprEquation) -> Expr:
    parts = [insert_axes(x, (e["axis"],)) for x in e.args]
    return parts[0] if len(parts) == 1 else call("concat", parts, {"axis": e["axis"]})


def _pieces(x: Expr, sizes: Sequence[Dim], axis: int) -> list[Expr]:
    found: list[Expr] = []
    start = ZERO
    for size in sizes:
        begin = [ZERO] * x.ndim
        end = list(x.shape)
        begin[axis], end[axis] = start, start + size
        found.append(slice_array(x, begin, end, (1,) * x.ndim))
        start = start + size
    return found


def _split(e: JaxprEquation) -> Sequence[Expr]:
    return _pieces(e.x, [to_dim(s) for s in e["sizes"]], e["axis"])


def _tile(e: JaxprEquation) -> Expr:
    """`tile`. To repeat an axis of size d r times, its shape goes (d) -> (1, d) -> (r, d) -> (r*d)."""
    repeats = [to_dim(r) for r in e["reps"]]
    wide: list[Dim] = []
    new: list[int] = []
    for repeat, size in zip(repeats, e.x.shape, strict=True):
        if repeat is not ONE:
            new.append(len(wide))
            wide.append(repeat)
        wide.append(size)
    x = insert_axes(e.x, new)
    x = x if x.shape == tuple(wide) else call("broadcast_to", (x,), {"shape": tuple(wide)})
    return reshape(x, e.shape)


def _slice(e: JaxprEquation) -> Expr:
    strides = e["strides"] or (1,) * e.x.ndim
    begin, end = (tuple(map(to_dim, e[k])) for k in ("start_indices", "limit_indices"))
    return slice_array(e.x, begin, end, strides)


def _pad(e: JaxprEquation) -> Expr:
    low, high, interior = zip(*e["padding_config"], strict=True) if e["padding_config"] else ((), (), ())
    low, high = tuple(map(to_dim, low)), tuple(map(to_dim, high))
    if all(d == 0 for d in (*low, *high, *interior)):
        return e.x
    return call("pad", e.args, {"low": low, "high": high, "interior": tuple(interior)})


def _rev(e: JaxprEquation) -> Expr:
    axes = tuple(sorted(e["dimensions"]))
    return call("flip", e.args, {"axes": axes}) if axes else e.x


# --- creation ---


def _iota(e: JaxprEquation) -> Expr:
    return call("iota", (), {"shape": e.shape, "axis": e["dimension"], "dtype": e.dtype})


def _places_as_words(e: JaxprEquation) -> Sequence[Expr] | None:
    """The place of each element as two words, of which the first is 0 in arrays that are not longer than a word
    counts. None for others."""
    count = product(e.shape)
    if not count.is_const or count.value > 1 << 32:
        return None
    low = reshape(call("iota", (), {"shape": (count,), "axis": 0, "dtype": e.dtype}), e.shape)
    return broadcast(const(0, e.dtype), e.shape, ()), low


def _empty(e: JaxprEquation) -> Expr:
    """Zeros, as JAX lowers it; the content is undefined."""
    return broadcast(const(0, e.dtype), e.shape, ())


def _dim_as_value(e: JaxprEquation) -> Expr:
    dim = to_dim(e["dim"])
    return const(dim.value, e.dtype) if dim.is_const else call("dim_value", (), {"dim": (dim,), "dtype": e.dtype})


_PLATFORMS = ("cpu", "gpu", "cuda", "rocm", "tpu")


def _platform_index(e: JaxprEquation) -> Expr | None:
    """The index of the default branch. None if another branch is for a platform on which our programs run, or if there
    is no default. (`jnp.diagonal` and others have a branch for Pallas.)"""
    platforms = e["platforms"]
    if None not in platforms or any(p in _PLATFORMS for names in platforms if names is not None for p in names):
        return None
    return const(platforms.index(None), e.dtype)


def _device_put(e: JaxprEquation) -> Sequence[Expr] | None:
    """The operands, annotated where they are put on a mesh: without a device, `device_put` changes nothing in a traced
    function. None if it names a device."""
    found = [_put(x, device) for x, device in zip(e.args, e["devices"], strict=True)]
    return None if None in found or any(s is not None for s in e["srcs"]) else [x for x in found if x is not None]


def _put(x: Expr, device: Any) -> Expr | None:
    if device is None:
        return x
    where = placement_of(device, x.ndim)
    return None if where is None else call(ANNOTATE_SHARDING, (x,), {"mesh": str(where[0]), "placement": str(where[1])})


RULES: dict[str, Rule] = {
    **{primitive: _direct(operator) for primitive, operator in _DIRECT.items()},
    **{primitive: _reduction(operator) for primitive, operator in _REDUCTIONS.items()},
    **{primitive: _bit_reduction(*operators) for primitive, operators in _BIT_REDUCTIONS.items()},
    "reduce": _reduce,
    **{primitive: _collective(operator) for primitive, operator in _COLLECTIVES.items()},
    **{primitive: _bitwise(primitive) for primitive in ("and", "or", "xor", "not")},
    **dict.fromkeys(("stop_gradient", "copy", "copy_p", "name"), _identity),
    "integer_pow": lambda e: call("integer_pow", e.args, {"y": e["y"]}),
    "one_minus_square": _one_minus_square,
    "pow": _power,
    "round": _round,
    "shift_right_arithmetic": _shift_right_arithmetic,
    "shift_right_logical": _shift_right_logical,
    "select_n": _select_n,
    "convert_element_type": _convert,
    "argmax": _arg_reduction("argmax"),
    "argmin": _arg_reduction("argmin"),
    **{name: _scan(name) for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")},
    "broadcast_in_dim": lambda e: broadcast(e.x, e.shape, e["broadcast_dimensions"]) if len(e.args) == 1 else None,
    "reshape": _reshape,
    "transpose": _transpose,
    "squeeze": _squeeze,
    "concatenate": lambda e: e.x if len(e.args) == 1 else call("concat", e.args, {"axis": e["dimension"]}),
    "stack": _stack,
    "split": _split,
    "unstack": lambda e: [squeeze(p, (e["axis"],)) for p in _pieces(e.x, [ONE] * len(e.out), e["axis"])],
    "tile": _tile,
    "slice": _slice,
    "pad": _pad,
    "rev": _rev,
    "iota": _iota,
    **dict.fromkeys(("empty", "empty2"), _empty),
    "dim_as_value": _dim_as_value,
    "platform_index": _platform_index,
    "device_put": _device_put,
    "dot_general": dot_general,
    "ragged_dot_general": ragged_dot,
    "eq_to": _total_order("equal"),
    "lt_to": _total_order("less"),
    "le_to": _total_order("less_equal"),
    "reduce_precision": _reduce_precision,
    "bitcast_convert_type": lambda e: e.x if e.x.dtype == e.dtype else call("bitcast", e.args, {"dtype": e.dtype}),
    "conj": _conj,
    "iota_2x32_shape": _places_as_words,
    **windows.RULES,
    **gather.RULES,
    **library.RULES,
}
