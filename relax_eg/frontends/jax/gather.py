"""Translates reads and writes at computed positions: dynamic slices, general gathers, scatters."""

from __future__ import annotations

from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from relax_eg.dtypes import is_float, numpy_dtype
from relax_eg.frontends.jax.equation import ONE, JaxprEquation, Rule, combining_primitive
from relax_eg.frontends.jax.indexing import GATHER_MODES, are_in_bounds, known_gather, known_slice
from relax_eg.frontends.symbolic import to_dim
from relax_eg.ir.expr import Expr
from relax_eg.ops.record import call
from relax_eg.shapes import Dim

# XLA drops updates that are out of range, even if they were promised to be inside.
_SCATTER_MODES = {"PROMISE_IN_BOUNDS": "fill", "CLIP": "clip", "FILL_OR_DROP": "fill"}
_GATHER = ("offset_dims", "collapsed_slice_dims", "start_index_map", "operand_batching_dims",
           "start_indices_batching_dims")  # fmt: skip
_SCATTER = ("update_window_dims", "inserted_window_dims", "scatter_dims_to_operand_dims", "operand_batching_dims",
            "scatter_indices_batching_dims")  # fmt: skip


def _numbers(e: JaxprEquation, names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(map(int, getattr(e["dimension_numbers"], name))) for name in names}


def _dynamic_slice(e: JaxprEquation) -> Expr:
    found = known_slice(e)
    if found is not None:
        return found
    return call("dynamic_slice", e.args, {"sizes": tuple(map(to_dim, e["slice_sizes"]))})


def _gather(e: JaxprEquation) -> Expr | None:
    found = known_gather(e)
    mode = GATHER_MODES.get(e["mode"].name)
    if found is not None or mode is None:
        return found
    sizes = tuple(map(to_dim, e["slice_sizes"]))
    fill = e["fill_value"] if mode == "fill" else None
    if fill is not None and type(fill) not in (bool, int, float):
        fill = getattr(fill, "item", lambda: fill)()
    if isinstance(fill, float) and fill != fill:
        fill = None if is_float(e.x.dtype) else fill  # for floats, None means NaN
    return call("gather", e.args, {"slice_sizes": sizes, "mode": mode, "fill_value": fill, **_numbers(e, _GATHER)})


def _windows(e: JaxprEquation) -> tuple[Dim, ...]:
    """The size of a scatter's window along each axis of its operand."""
    x, _, updates = e.args
    numbers = _numbers(e, _SCATTER)
    left_out = {*numbers["inserted_window_dims"], *numbers["operand_batching_dims"]}
    places = iter(numbers["update_window_dims"])
    return tuple(ONE if a in left_out else updates.shape[next(places)] for a in range(x.ndim))


def _apply(e: JaxprEquation) -> Expr | None:
    """`at[].apply` for windows that do not overlap: gathers the windows, applies the function, and scatters the result.
    None if windows may overlap: the function would apply once for each of them, which no operator can express."""
    if not e["unique_indices"] or len(e.params["update_consts"]):
        return None
    x, indices, updates = e.args
    numbers, mode = _numbers(e, _SCATTER), _SCATTER_MODES[e["mode"].name]
    sizes = _windows(e)
    renamed = dict(zip(_GATHER, (numbers[name] for name in _SCATTER), strict=True))
    read = call("gather", (x, indices), {"slice_sizes": sizes, "mode": mode, "fill_value": None, **renamed})

    function: Any = jaxpr_as_fun(ClosedJaxpr(e["update_jaxpr"], ()))
    for _ in range(read.ndim):
        function = jax.vmap(function)
    shape = tuple(map(e.sizes.to_jax, read.shape))
    given = [jax.ShapeDtypeStruct(shape, numpy_dtype(a.dtype)) for a in (read, updates)]
    (made,) = e.inline(jax.make_jaxpr(function)(*given), (read, updates))
    attrs = {"kind": "set", "mode": mode, "sorted": bool(e["indices_are_sorted"]), "unique": True}
    return call("scatter", (x, indices, made), {**attrs, **numbers})


def _scatter(kind: str, primitive: str) -> Rule:
    """The rule for a scatter whose combining function is `primitive`. A "set" scatter with another function is
    `at[].apply`."""

    def rule(e: JaxprEquation) -> Expr | None:
        mode = _SCATTER_MODES.get(e["mode"].name)
        combine: Any = e.params.get("update_jaxpr")
        if mode is None:
            return None
        if combine is not None and combining_primitive(combine) != primitive:
            return _apply(e) if kind == "set" else None
        x, indices, updates = e.args
        targets = _numbers(e, _SCATTER)["scatter_dims_to_operand_dims"]
        windows = _windows(e)
        if are_in_bounds(indices, [windows[a] for a in targets], [x.shape[a] for a in targets], e.sizes):
            mode = "promise"
        if kind == "subtract":
            updates = call("negative", (updates,))
        attrs = {
            "kind": "add" if kind == "subtract" else kind, "mode": mode,
            "sorted": bool(e["indices_are_sorted"]), "unique": bool(e["unique_indices"]),
        }  # fmt: skip
        return call("scatter", (x, indices, updates), {**attrs, **_numbers(e, _SCATTER)})

    return rule


RULES: dict[str, Rule] = {
    "dynamic_slice": _dynamic_slice,
    "gather": _gather,
    "scatter": _scatter("set", "second"),
    "scatter-add": _scatter("add", "add"),
    "scatter-sub": _scatter("subtract", "sub"),
    "scatter-mul": _scatter("multiply", "mul"),
    "scatter-min": _scatter("min", "min"),
    "scatter-max": _scatter("max", "max"),
}
