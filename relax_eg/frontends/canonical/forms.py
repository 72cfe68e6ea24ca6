"""Canonical forms of single equations. `Forms` removes data movement that moves nothing, drops axes of size 1 from
products, and turns gathers of contiguous or evenly spaced elements into slices."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from relax_eg.errors import RelaxEgError, TraceError
from relax_eg.frontends.canonical.nodes import CanonicalNode, Nodes, count, is_small
from relax_eg.frontends.jax.equation import JaxprEquation
from relax_eg.frontends.jax.indexing import affine_array
from relax_eg.frontends.jax.primitives import RULES
from relax_eg.frontends.symbolic import SymbolicSizes
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, const
from relax_eg.ir.module import Module
from relax_eg.ops.interpret import SharedValues


class Forms:
    """Builds canonical nodes of equations.

    - `size(n)`: returns the number of a symbolic size.
    - `token(value)`: returns a hashable value for a parameter.
    """

    def __init__(self, nodes: Nodes, size: Callable[[Any], Any], token: Callable[[Any], Hashable]) -> None:
        self.nodes, self.size, self.token = nodes, size, token

    def type_of(self, aval: Any) -> tuple[tuple[Any, ...], Any]:
        """Shape and dtype of a value."""
        shape = getattr(aval, "shape", ())
        return tuple(map(self.size, shape)), getattr(aval, "dtype", type(aval).__name__)

    def at(self, value: Any) -> Any:
        """A parameter, possibly a nested tuple, with its sizes as numbers. JAX leaves numpy integers in some."""
        if type(value) is tuple:
            return tuple(map(self.at, value))
        return int(value) if isinstance(value, np.integer) else self.size(value)

    def of(self, eqn: Any, args: list[int], shape: tuple[Any, ...], dtype: Any) -> int | None:
        """The number of the canonical node of an equation with one result; None if the equation is its own form."""
        name, params, nodes = eqn.primitive.name, eqn.params, self.nodes
        operands = [nodes.all[i] for i in args]
        if isinstance(dtype, np.dtype) and all(o.value is not None for o in operands) and is_small(shape, dtype):
            value = _folded(eqn, [o.value for o in operands], {k: self.at(v) for k, v in params.items()}, shape)
            if value is not None:
                return nodes.small_array(value, eqn)
        if not args:
            return None
        if count(shape) == 0 and isinstance(dtype, np.dtype):  # all empty arrays of one shape and dtype are equal
            return nodes.small_array(np.zeros(shape, dtype), eqn)
        x = operands[0]
        match name:
            case "squeeze" | "expand_dims":
                return self._reshaped(args[0], shape, dtype, eqn)
            case "reshape" if params.get("dimensions") is None:
                return self._reshaped(args[0], shape, dtype, eqn)
            case "broadcast_in_dim" if len(args) == 1:
                kept = tuple(d for d, n in zip(params["broadcast_dimensions"], x.shape, strict=True) if n != 1)
                if count(shape) == count(x.shape) and list(kept) == sorted(kept):
                    return self._reshaped(args[0], shape, dtype, eqn)
                return nodes.add((name, shape, kept), [self._squeezed(args[0], eqn)], shape, dtype, eqn)
            case "transpose":
                moved = [d for d in params["permutation"] if x.shape[d] != 1]
                if moved == sorted(moved):
                    return self._reshaped(args[0], shape, dtype, eqn)
                order, without = tuple(map(sorted(moved).index, moved)), tuple(n for n in shape if n != 1)
                found = nodes.add((name, order), [self._squeezed(args[0], eqn)], without, dtype, eqn)
                return self._reshaped(found, shape, dtype, eqn)
            case "dot_general":
                return self._contracted(eqn, args, shape, dtype)
            case "convert_element_type" if x.dtype == dtype:
                return args[0]
            case "copy" | "copy_p":
                return args[0]
            case "dynamic_slice":
                if any(o.value is None for o in operands[1:]):
                    return nodes.add((name, shape), args, shape, dtype, eqn)
                starts = [int(o.value) for o in operands[1:]]
                starts = [min(max(s, 0), n - m) for s, n, m in zip(starts, x.shape, shape, strict=True)]
                return self._sliced(eqn, args[0], tuple(starts), (1,) * len(shape))
            case "slice":
                starts = tuple(map(self.size, params["start_indices"]))
                steps = tuple(map(self.size, params["strides"] or (1,) * len(shape)))
                return self._sliced(eqn, args[0], starts, steps)
            case "gather":
                return self._gathered(eqn, args)
            case "scatter-add":
                return self._scattered(eqn, args)
            case "concatenate":
                d = params["dimension"]
                left = [i for i, o in zip(args, operands, strict=True) if o.shape[d] != 0] or args[:1]
                return left[0] if len(left) == 1 else nodes.add((name, d), left, shape, dtype, eqn)
            case "pad":
                config = self.at(params["padding_config"])
                config = tuple((a, b, c if n > 1 else 0) for (a, b, c), n in zip(config, x.shape, strict=True))
                return nodes.add((name, config), args, shape, dtype, eqn) if any(map(any, config)) else args[0]
            case "dynamic_update_slice":
                return nodes.add((name, ()), args, shape, dtype, eqn)
            case "select_n" if x.value is not None and x.shape == ():
                return args[1 + int(x.value)]
            case "rev":
                turned = tuple(d for d in sorted(params["dimensions"]) if shape[d] > 1)
                return nodes.add((name, turned), args, shape, dtype, eqn) if turned else args[0]
            case "reduce_sum" | "reduce_max" | "reduce_min" | "reduce_prod" | "reduce_and" | "reduce_or":
                at = _without_ones(x.shape)
                axes = tuple(at[d] for d in params["axes"] if d in at)
                found = self._squeezed(args[0], eqn)
                if axes:
                    found = nodes.add((name, axes), [found], tuple(n for n in shape if n != 1), dtype, eqn)
                return self._reshaped(found, shape, dtype, eqn)
            case _:
                return None

    def _reshaped(self, arg: int, shape: tuple[Any, ...], dtype: Any, eqn: Any) -> int:
        node = self.nodes.all[arg]
        if _has_name(node, "reshape"):
            (arg,) = node.args
            node = self.nodes.all[arg]
        if node.value is not None:
            return self.nodes.small_array(node.value.reshape(shape), eqn)
        return arg if node.shape == shape else self.nodes.add(("reshape", shape), [arg], shape, dtype, eqn)

    def _squeezed(self, arg: int, eqn: Any) -> int:
        """An operand without its axes of size 1."""
        node = self.nodes.all[arg]
        return self._reshaped(arg, tuple(n for n in node.shape if n != 1), node.dtype, eqn)

    def _contracted(self, eqn: Any, args: list[int], shape: tuple[Any, ...], dtype: Any) -> int:
        """A product of matrices without axes of size 1, because `jnp.matmul` drops these axes in some cases."""
        numbers = eqn.params["dimension_numbers"]
        left, right = (_without_ones(self.nodes.all[i].shape) for i in args)
        (a, b), (c, d) = (
            [tuple(at[i] for i in axes if i in at) for at, axes in zip((left, right), pair, strict=True)]
            for pair in numbers
        )
        rest = {k: v for k, v in eqn.params.items() if k != "dimension_numbers"}
        key = ("dot_general", ((a, b), (c, d)), self.token(tuple(sorted(rest.items()))))
        found = self.nodes.add(
            key, [self._squeezed(i, eqn) for i in args], tuple(n for n in shape if n != 1), dtype, eqn
        )
        return self._reshaped(found, shape, dtype, eqn)

    def _gathered(self, eqn: Any, args: list[int]) -> int | None:
        """A gather of a box, as the slice that JAX makes if it knows the sizes; None for other gathers."""
        numbers, shape = eqn.params["dimension_numbers"], self.type_of(eqn.outvars[0].aval)[0]
        if numbers.operand_batching_dims:
            return None
        x, sizes = self.nodes.all[args[0]], list(map(self.size, eqn.params["slice_sizes"]))
        if eqn.params["mode"] == jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS:
            starts = self._starts(args[1], numbers.start_index_map, len(sizes), eqn)
            if starts is not None:  # XLA moves the slice inside the array, as it does for a gather in this mode
                found = self.nodes.add(("dynamic_slice", tuple(sizes)), [args[0], *starts], sizes, x.dtype, eqn)
                return self._reshaped(found, shape, x.dtype, eqn)
        own = [d for d in range(len(shape)) if d not in numbers.offset_dims]
        moves = eqn.params["mode"] != jax.lax.GatherScatterMode.FILL_OR_DROP
        places, gone = self.nodes.all[args[1]].value, numbers.collapsed_slice_dims
        box = _box(places, x.shape, sizes, gone, numbers.start_index_map, own, moves)
        if box is None:
            return None
        starts, sizes, steps = box
        found = self._cut(args[0], starts, sizes, steps, x.dtype, eqn)
        return self._reshaped(found, shape, x.dtype, eqn)

    def _scattered(self, eqn: Any, args: list[int]) -> int | None:
        """A scatter that adds a box to zeros (the derivative of a gather), as the pad or `dynamic_update_slice` that is
        the derivative of a slice; None for other scatters."""
        nodes, numbers = self.nodes, eqn.params["dimension_numbers"]
        x, places, updates = (nodes.all[i] for i in args)
        zeros = nodes.all[x.args[0]].value if _has_name(x, "broadcast_in_dim") else x.value
        if nodes.exact or zeros is None or np.any(zeros) or numbers.operand_batching_dims:
            return None  # with `exact`: a scatter turns -0.0 into 0.0 by adding it to 0.0, a pad keeps it
        windows = iter(updates.shape[d] for d in numbers.update_window_dims)
        sizes = [1 if d in numbers.inserted_window_dims else next(windows) for d in range(len(x.shape))]
        gone, mapped = numbers.inserted_window_dims, numbers.scatter_dims_to_operand_dims
        starts = self._starts(args[1], mapped, len(sizes), eqn)
        if starts is not None:
            given = self._reshaped(args[2], tuple(sizes), x.dtype, eqn)
            return nodes.add(("dynamic_update_slice", ()), [args[0], given, *starts], x.shape, x.dtype, eqn)
        own = [d for d in range(len(updates.shape)) if d not in numbers.update_window_dims]
        box = _box(places.value, x.shape, sizes, gone, mapped, own, False)
        if box is None:
            return None
        given = self._reshaped(args[2], box[1], x.dtype, eqn)
        rows = zip(x.shape, *box, strict=True)
        config = tuple((a, m - (a + (n - 1) * s + 1), s - 1 if n > 1 else 0) for m, a, n, s in rows)
        zero = nodes.small_array(np.zeros((), x.dtype))
        return nodes.add(("pad", config), [given, zero], x.shape, x.dtype, eqn) if any(map(any, config)) else given

    def _starts(self, places: int, mapped: Sequence[int], rank: int, eqn: Any) -> list[int] | None:
        """The node numbers of the start of a single box on each axis, if the start is computed at run time. None if the
        start is known or there are several boxes."""
        nodes = self.nodes
        where = nodes.all[places]
        if len(where.shape) != 1 or where.value is not None:
            return None
        # A vector of places is either one element or a concatenation of single places.
        single = [places] if where.shape == (1,) else where.args if where.key == ("concatenate", 0) else ()
        if len(single) != where.shape[0]:
            return None
        starts = [nodes.small_array(np.zeros((), where.dtype))] * rank
        for d, i in zip(mapped, single, strict=True):
            starts[d] = self._reshaped(i, (), where.dtype, eqn)
        return starts

    def _sliced(self, eqn: Any, arg: int, starts: tuple[int, ...], steps: tuple[int, ...]) -> int:
        return self._cut(arg, starts, self.type_of(eqn.outvars[0].aval)[0], steps, self.nodes.all[arg].dtype, eqn)

    def _cut(
        self, arg: int, starts: tuple[int, ...], shape: tuple[int, ...], steps: tuple[int, ...], dtype: Any, eqn: Any
    ) -> int:
        if shape == self.nodes.all[arg].shape:
            return arg
        steps = tuple(1 if n <= 1 else s for n, s in zip(shape, steps, strict=True))
        if (array := self.nodes.host_arrays.get(arg)) is not None:
            ranges = [slice(a, a + n * s, s) for a, n, s in zip(starts, shape, steps, strict=True)]
            return self.nodes.constant(array[tuple(ranges)])
        return self.nodes.add(("slice", starts, shape, steps), [arg], shape, dtype, eqn)


def _without_ones(shape: Sequence[Any]) -> dict[int, int]:
    """From each axis of size other than 1 to its position after the axes of size 1 are removed."""
    return {d: i for i, d in enumerate(d for d, n in enumerate(shape) if n != 1)}


def _has_name(node: CanonicalNode, name: str) -> bool:
    return isinstance(node.key, tuple) and node.key[0] == name


def _folded(eqn: Any, values: Sequence[Any], params: Mapping[str, Any], shape: Sequence[int]) -> Any:
    """The result of an equation for known operands: that of its operators, by the reference interpreter. None if it has
    no operators, or if they do not accept the numbers."""
    rule, aval = RULES.get(eqn.primitive.name), eqn.outvars[0].aval
    if rule is None:
        return None
    out = Tensor(tuple(shape), aval.dtype.name)
    try:
        made = rule(JaxprEquation(tuple(map(const, values)), params, (out,), _NO_SIZES, _refuse))
        if made is None:
            return None
        with np.errstate(all="ignore"):
            return np.asarray(SharedValues(Module(()), {}, {}).of(made if isinstance(made, Expr) else made[0]))
    except RelaxEgError:
        return None


_NO_SIZES = SymbolicSizes()


def _refuse(closed: Any, args: Sequence[Expr]) -> list[Expr]:
    raise TraceError("nothing is folded that applies a function\n  accepted: operators of known numbers")


def _box(
    places: Any,
    of: Sequence[int],
    sizes: Sequence[int],
    gone: Sequence[int],
    mapped: Sequence[int],
    own: Sequence[int],
    moves: bool,
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """The box that a gather reads, or a scatter writes, at known places in an array of shape `of`: along axis d,
    `sizes[d]` elements from `starts[d]` on, `steps[d]` apart, as (starts, sizes, steps). None for other places.

    - `places`: one row for each window; its columns belong to the axes `mapped` of the array.
    - `sizes`, `gone`: the sizes of a window, and the axes of the array that it lacks.
    - `own`: the axes of the gather's result, or of the scatter's updates, along which the windows lie.
    - `moves`: whether XLA moves a window that lies outside to the inside.
    """
    if places is None or not places.size:
        return None
    starts, found, steps = [0] * len(of), list(sizes), [1] * len(of)
    rows = places.reshape(-1, len(mapped))
    moving: list[int] = []
    for d, column in zip(mapped, rows.T, strict=True):
        line = affine_array(column)
        if line is None:
            return None
        starts[d] = line.const.value
        if (by := line.steps[0].value) != 0:
            moving.append(d)
            steps[d], found[d] = by, len(rows)
    if any(steps[d] < 0 or d not in gone for d in moving) or len(moving) > 1:
        return None
    if moves and not moving:
        starts = [min(max(a, 0), m - n) for a, n, m in zip(starts, found, of, strict=True)]
    if not all(a >= 0 and a + (n - 1) * s < m for a, n, s, m in zip(starts, found, steps, of, strict=True) if n):
        return None
    if len(rows) > 1:
        # The windows lie side by side along an axis of their own, which must be at the position it has in the box.
        left = [d for d in range(len(of)) if d not in gone or d in moving]
        if not moving or places.ndim != 2 or own != [left.index(moving[0])]:
            return None
    return tuple(starts), tuple(found), tuple(steps)
