"""Evaluates a planned module on JAX arrays at capacity."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from relax_eg.backend.lowering.lower import library_call, run_control, scan_step, tensor_program_call
from relax_eg.backend.lowering.transposed_products import held_apart
from relax_eg.dynamic.analysis import Analysis, FunctionPlan
from relax_eg.dynamic.layout import Layouts, TensorLayout, axis_size, unmerge_layout
from relax_eg.dynamic.moving import fit_axis
from relax_eg.dynamic.native import resolve_sizes
from relax_eg.dynamic.step import CapacityStep, OperandMask
from relax_eg.errors import BoundsError
from relax_eg.ir.control import group_arguments
from relax_eg.ir.expr import (
    CALL,
    SCAN,
    VAR,
    Expr,
    constant_value,
)
from relax_eg.ir.heads import Evaluator
from relax_eg.ops import get
from relax_eg.ops.libraries import with_sizes_of
from relax_eg.shapes import Dim
from relax_eg.shapes.interval import interval_of


def capacity_of(dim: Dim, capacities: Mapping[str, int]) -> int:
    """The largest value of `dim` if each size is between 1 and its capacity. BoundsError if it is unbounded."""
    if dim.is_const:
        return dim.value
    _, high = interval_of(dim, lambda v: (min(1, capacities[v]), capacities[v]) if v in capacities else (None, None))
    if high is None:
        raise BoundsError(f"capacities: nothing bounds the size {dim}")
    return max(high, 0)


class CapacitySizes:
    """The true sizes and capacities of one run.

    - `fixed`: known sizes that have no capacity.
    - `without`: numbers of the masks that are left out.
    - `room`: capacities of sizes by themselves, where they are larger than `capacities`.
    """

    def __init__(
        self,
        capacities: Mapping[str, int],
        fixed: Mapping[str, int],
        true: Mapping[str, Any],
        without: frozenset[int],
        room: Mapping[str, int] | None = None,
    ) -> None:
        self._capacities = capacities
        self._fixed = fixed
        self.without = without
        self.sizes: Mapping[str, Any] = {**fixed, **{v: jnp.asarray(n, "int32") for v, n in true.items()}}
        self._valid: dict[tuple[Dim, int], Any] = {}
        self._at: dict[Dim, int] = {Dim.var(v): n for v, n in (room or {}).items()}
        self._inner: Sequence[int] = ()

    def capacity(self, dim: Dim) -> int:
        if dim not in self._at:
            known = dim.substitute({v: n for v, n in self._fixed.items() if v in dim.variables})
            self._at[dim] = capacity_of(known, self._capacities)
        return self._at[dim]

    def true_size(self, dim: Dim) -> Any:
        return dim.value if dim.is_const else dim.evaluate(self.sizes)

    def valid_mask(self, dim: Dim, places: int) -> Any:
        """Which of the first `places` positions are below the true size."""
        if (dim, places) not in self._valid:
            self._valid[dim, places] = lax.iota("int32", places) < self.true_size(dim)
        return self._valid[dim, places]

    def with_inner_masks(self, inner: Sequence[int]) -> CapacitySizes:
        """The same sizes for a step whose inner masks have these numbers."""
        other = object.__new__(CapacitySizes)
        other.__dict__ = {**self.__dict__, "_inner": inner}
        return other

    def for_new_trace(self) -> CapacitySizes:
        """The same sizes for a function that JAX traces on its own, which must not share traced values with its
        surroundings.
        """
        other = object.__new__(CapacitySizes)
        other.__dict__ = {**self.__dict__, "_valid": {}}
        return other

    def applies_inner_mask(self, inner: int) -> bool:
        return self._inner[inner] not in self.without


class CapacityRun:
    """One evaluation of a planned module at capacity."""

    def __init__(self, analysis: Analysis, sizes: CapacitySizes) -> None:
        self.analysis = analysis
        self.moves = analysis.moves
        self.at = sizes

    def function(self, plan: FunctionPlan, args: Sequence[Any]) -> Any:
        """The result, in boxes."""
        call = _Call(self, plan, args)
        return call.unmerged(call.result(), plan.result)


class _Call(Evaluator):
    def __init__(self, run: CapacityRun, plan: FunctionPlan, args: Sequence[Any]) -> None:
        self.run = run
        self.plan = plan
        self.at = run.at
        self.env: dict[Expr, Any] = dict(zip(plan.function.params, args, strict=True))
        self._masked: dict[tuple[Any, ...], Any] = {}

    def result(self) -> Any:
        for block in self.plan.function.blocks:
            for b in block.bindings:
                value = self.plan.values[b.var]
                if not block.dataflow and value.op != VAR:
                    # Outside dataflow blocks each step runs as often as it is written, even if an equal one ran before.
                    self.env.pop(value, None)
                self.env[b.var] = self.value(value, self.env, None)
        return self.value(self.plan.function.result, self.env, None)

    @cached_property
    def _sizes(self) -> Mapping[str, Any]:
        """The sizes of what depends on no moving size."""
        return {v: self.at.true_size(d) for v, d in self.plan.sizes.items()} if self.plan.sizes else self.at.sizes

    def node(self, e: Expr, args: list[Any], sizes: None) -> Any:
        step, args = self.plan.steps.get(e), held_apart(e, args)
        if step is not None:
            return step.compute(self.at.with_inner_masks(self.plan.inner[e]), self.operands(e, step, args))
        if e in self.plan.runs:
            given = [self.unmerged(x, self.plan.layouts[a]) for x, a in zip(args, e.args, strict=True)]
            return self.run_functions(e, given)
        return super().node(e, args, sizes)

    def constant(self, e: Expr, args: list[Any], sizes: None) -> Any:
        return jnp.asarray(constant_value(e))

    def size(self, d: Dim, sizes: None) -> Any:
        return self.at.true_size(d.substitute(self.plan.sizes))

    def library(self, e: Expr, args: list[Any], sizes: None) -> Any:
        return library_call(e, args, self._sizes)

    def tensor_program(self, e: Expr, args: list[Any], sizes: None) -> Any:
        return tensor_program_call(e, args, self._sizes)

    def operator(self, e: Expr, args: list[Any], sizes: None) -> Any:
        attrs = {k: resolve_sizes(with_sizes_of(v, self.plan.sizes), self.at.true_size) for k, v in e.attrs}
        return get(e.op).jax_function()(*args, **attrs)

    # --- operands ---

    def operands(self, e: Expr, step: CapacityStep, args: Sequence[Any]) -> list[Any]:
        """The operands of a step, brought into boxes if it needs that, then masked."""
        out = list(args)
        path: dict[int, tuple[Any, ...]] = {}
        for i in step.boxed_operands:
            out[i] = self._once((e.args[i], "box"), lambda i=i: self.unmerged(args[i], self.plan.layouts[e.args[i]]))
        for m, number in zip(step.masks, self.plan.numbers[e], strict=True):
            if number in self.at.without:
                continue
            path[m.operand] = (*path.get(m.operand, ()), number)
            key = (e.args[m.operand], m.operand in step.boxed_operands, path[m.operand])
            out[m.operand] = self._once(key, lambda m=m: self.masked(out[m.operand], e, step, m))
        return out

    def _once(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        if key not in self._masked:
            self._masked[key] = make()
        return self._masked[key]

    def masked(self, x: Any, e: Expr, step: CapacityStep, m: OperandMask) -> Any:
        layout = self.plan.layouts[e.args[m.operand]]
        assert isinstance(layout, TensorLayout)
        digits = (unmerge_layout(layout) if m.operand in step.boxed_operands else layout).axes[m.axis]
        places = [self.at.capacity(d.size) for d in digits]
        counts = self.at.valid_mask(digits[m.digit].size, places[m.digit])
        if len(digits) > 1:
            counts = lax.reshape(lax.broadcast_in_dim(counts, tuple(places), (m.digit,)), (math.prod(places),))
        shape = [1] * x.ndim
        shape[m.axis] = -1
        return jnp.where(counts.reshape(shape), x, jnp.asarray(m.fill, x.dtype))

    def unmerged(self, x: Any, layout: Layouts) -> Any:
        """A value with every axis in a box: its valid elements in order, without gaps."""
        if isinstance(layout, tuple):
            return tuple(self.unmerged(field, s) for field, s in zip(x, layout, strict=True))
        if layout is None or layout.is_box:
            return x
        for axis, digits in enumerate(layout.axes):
            if len(digits) > 1 and not x.shape[axis]:
                x = fit_axis(x, axis, self.at.capacity(axis_size(digits)))
            elif len(digits) > 1:
                rest = lax.iota("int32", self.at.capacity(axis_size(digits)))
                place: Any = 0
                stride = 1
                for digit in reversed(digits[1:]):
                    size = jnp.maximum(self.at.true_size(digit.size), 1)
                    place = place + rest % size * stride
                    rest = rest // size
                    stride *= self.at.capacity(digit.size)
                x = jnp.take(x, place + rest * stride, axis=axis, mode="clip")
        return x

    # --- functions ---

    def run_functions(self, e: Expr, args: list[Any]) -> Any:
        plans = self.plan.runs[e]
        if e.op == CALL:
            return self.run_function(plans[0], args[1:], self.at)
        p = group_arguments(e.op, args, dict(e.attrs))
        at = self.at.for_new_trace

        def run(i: int, *given: Any) -> Any:
            return self.run_function(plans[i], given, at())

        if e.op == SCAN:
            length: Dim = e.attr("length").substitute(self.plan.sizes)
            if self.run.moves(length):
                return self.run_scan(scan_step(p, run), p.carry, p.xs, length, e.attr("reverse"))
        return run_control(e, p, run, lambda d: self.at.true_size(d.substitute(self.plan.sizes)))

    def run_scan(
        self, step: Callable[..., Any], carry: tuple[Any, ...], xs: tuple[Any, ...], length: Dim, reverse: bool
    ) -> Any:
        """A scan over the true number of steps."""
        places, count = self.at.capacity(length), self.at.true_size(length)

        def slices(n: Any) -> tuple[Any, ...]:
            return tuple(lax.dynamic_index_in_dim(x, n, keepdims=False) for x in xs)

        _, ys = jax.eval_shape(step, carry, tuple(jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in xs))
        made = tuple(jnp.zeros((places, *y.shape), y.dtype) for y in ys)
        if not places:  # no element that a step could read
            return (*carry, *made)

        def one(t: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
            n = count - 1 - t if reverse else t
            after, new = step(state[0], slices(n))
            return after, tuple(lax.dynamic_update_index_in_dim(m, y, n, 0) for m, y in zip(state[1], new, strict=True))

        last, made = lax.fori_loop(jnp.int32(0), count, one, (carry, made))
        return (*last, *made)

    def run_function(self, plan: FunctionPlan, args: Sequence[Any], at: CapacitySizes) -> Any:
        """The result of a function, in boxes."""
        return CapacityRun(self.run.analysis, at).function(plan, args)
