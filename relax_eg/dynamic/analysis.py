"""The validity analysis: how each value of a function is computed at capacity, and what its padding holds."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax import lax

from relax_eg.dtypes import is_key
from relax_eg.dynamic.content import ZERO, known_content
from relax_eg.dynamic.equations import derive_step
from relax_eg.dynamic.layout import Digit, Layouts, TensorLayout, boxed_layout, join_layouts, unmerge_layout
from relax_eg.dynamic.native import native_lowering
from relax_eg.dynamic.softmax import IDIOMS
from relax_eg.dynamic.special import BEHAVIOURS
from relax_eg.dynamic.step import CapacityStep, NotPredicated, OperatorUse
from relax_eg.errors import RelaxEgError
from relax_eg.ir.annotations import Annotation, Tensor, Tuple, dims_in, dims_of, substitute
from relax_eg.ir.calls import call_sizes
from relax_eg.ir.control import Run, arguments_of, runs_of, steps_of
from relax_eg.ir.expr import (
    BARRIER,
    CALL,
    CALL_DPS_LIBRARY,
    CALL_TIR,
    CONSTANT,
    FUNCTION,
    MATCH_CAST,
    SHARD_MAP,
    TUPLE,
    TUPLE_GET,
    VAR,
    Expr,
    constant_value,
    postorder,
)
from relax_eg.ir.heads import LOOPS, RUNNING, STATIC
from relax_eg.ir.module import Function, Module
from relax_eg.ops import Site, get, program_of
from relax_eg.ops.libraries import inline_libraries, with_sizes_of
from relax_eg.ops.record import Precondition, is_proved_applicable, preconditions
from relax_eg.shapes import Dim
from relax_eg.tir import TensorProgram, margins
from relax_eg.tir.substitute import with_sizes


@dataclass(frozen=True)
class Mask:
    """A mask: beyond the true size `size`, along `axis` of `value`, the padding must hold `fill`.

    - `number`: its place among the masks of the analysis.
    - `value`: the value, as users read it.
    - `axis`: None for a mask inside an operator's own computation.
    - `size`: the true size, as text.
    - `fill`: the number in the padding; None inside an operator's own computation.
    - `reason`: the operator that needs it, and what for.
    - `source`: the user's line.
    """

    number: int
    value: str
    axis: int | None
    size: str
    fill: Any
    reason: str
    source: str

    def __str__(self) -> str:
        where = f"axis {self.axis} of {self.value}" if self.axis is not None else f"inside {self.value}"
        at = f" ({self.source})" if self.source else ""
        return f"{where}, {self.size}: {self.reason}{at}"


@dataclass
class FunctionPlan:
    """How one function runs at capacity.

    - `function`: the function.
    - `params`: the layouts of its parameters.
    - `sizes`: its size variables in terms of the entry's sizes.
    - `values`: values of bindings, with routines written out.
    - `steps`: the step of each operator that has one.
    - `numbers`: numbers of the masks of each step's operands.
    - `inner`: numbers of the masks inside each step.
    - `runs`: plans of the functions that a call, loop or branch runs.
    - `layouts`: the layout of each value.
    - `result`: the layout of the result.
    """

    function: Function
    params: tuple[Layouts, ...]
    sizes: Mapping[str, Dim]
    values: dict[Expr, Expr] = field(default_factory=dict[Expr, Expr])
    steps: dict[Expr, CapacityStep] = field(default_factory=dict[Expr, CapacityStep])
    numbers: dict[Expr, tuple[int, ...]] = field(default_factory=dict[Expr, "tuple[int, ...]"])
    inner: dict[Expr, tuple[int, ...]] = field(default_factory=dict[Expr, "tuple[int, ...]"])
    runs: dict[Expr, tuple[FunctionPlan, ...]] = field(default_factory=dict[Expr, "tuple[FunctionPlan, ...]"])
    layouts: dict[Expr, Layouts] = field(default_factory=dict[Expr, Layouts])
    result: Layouts = None


class Analysis:
    """One analysis of a module for the size variables `dims`. `zeros`: the places of the entry's parameters that are
    tensors with zeros in their padding."""

    def __init__(self, module: Module, dims: frozenset[str], zeros: Collection[int] = ()) -> None:
        self.module = module
        self.dims = dims
        self.masks: list[Mask] = []
        self.exact: dict[str, str] = {}
        self.exact_dims: set[str] = set()
        self.conditions: set[Precondition] = set()
        self._known: dict[tuple[Any, ...], FunctionPlan] = {}
        main = module.main
        given = [_input_layouts(p.annotation) for p in main.params]
        for i in zeros:
            given[i] = boxed_layout(main.params[i].tensor, ZERO)
        self.main = self.function(main, tuple(given), {})

    def moves(self, dim: Dim) -> bool:
        return not dim.is_const and bool(dim.variables & self.dims)

    def function(self, f: Function, params: tuple[Layouts, ...], sizes: Mapping[str, Dim]) -> FunctionPlan:
        """The plan of `f` for parameters of these layouts.

        `sizes`: the size variables of `f` in terms of the entry's sizes.
        """
        key = (f.name, params, tuple(sorted(sizes.items(), key=lambda kv: kv[0])))
        if key not in self._known:
            self._known[key] = _FunctionAnalysis(self, f, params, sizes).plan
        return self._known[key]

    def snapshot(self) -> tuple[Any, ...]:
        return len(self.masks), dict(self.exact), set(self.exact_dims), dict(self._known)

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        """Discards everything found since the snapshot."""
        count, self.exact, self.exact_dims, self._known = snapshot
        del self.masks[count:]

    def add_mask(self, value: str, axis: int | None, size: Dim, fill: Any, reason: str, source: str) -> int:
        """Adds a mask and returns its number."""
        self.masks.append(Mask(len(self.masks), value, axis, str(size), fill, reason, source))
        return self.masks[-1].number


class _FunctionAnalysis:
    def __init__(self, whole: Analysis, f: Function, params: tuple[Layouts, ...], sizes: Mapping[str, Dim]) -> None:
        self.whole = whole
        self.f = f
        self.sizes = {v: d for v, d in sizes.items() if d != Dim.var(v)}
        self.plan = FunctionPlan(f, params, sizes)
        self.layouts = self.plan.layouts
        self.layouts.update(zip(f.params, params, strict=True))
        self._masked: dict[tuple[Any, ...], int] = {}
        for block in f.blocks:
            for b in block.bindings:
                (value,) = inline_libraries([b.value])
                self.plan.values[b.var] = value
                self.layouts[b.var] = self.value(value)
        self.plan.result = self.value(f.result)

    def value(self, root: Expr) -> Layouts:
        for e in postorder((root,), stop=self.layouts.__contains__):
            if e not in self.layouts:
                self.layouts[e] = self.node(e)
        return self.layouts[root]

    def annotation(self, e: Expr) -> Annotation:
        return substitute(e.annotation, self.sizes) if self.sizes else e.annotation

    def node(self, e: Expr) -> Layouts:
        if e.op == TUPLE:
            return tuple(self.layouts[a] for a in e.args)
        if e.op == TUPLE_GET:
            whole = self.layouts[e.args[0]]
            return whole[e.attr("index")] if isinstance(whole, tuple) else None
        if e.op in STATIC:
            return None
        if e.op == VAR:
            raise RelaxEgError(f"variable `{e.attr('name')}` is used before it is defined")
        if e.op == CONSTANT:
            return _input_layouts(e.annotation)
        if self._is_fixed(e):
            return _input_layouts(self.annotation(e))
        try:
            if e.op in RUNNING:
                return self.function_run(e)
            step = self.step(e)
        except NotPredicated as error:
            self.record_exact(e, str(error))
            return _input_layouts(self.annotation(e))
        self.plan.steps[e] = step
        self.plan.numbers[e] = tuple(self._mask_numbers(e, step))
        self.plan.inner[e] = tuple(
            self.whole.add_mask(
                _value_label(e), None, i.size, None, f"{_operator_label(e)}, {i.reason}", self._source(e)
            )
            for i in step.inner
        )
        return step.result_layouts

    def _is_fixed(self, e: Expr) -> bool:
        """Whether no size in `e` moves, so that it runs unchanged."""
        if e.op == MATCH_CAST or e.op in RUNNING:
            return False
        annotations = [self.annotation(x) for x in (e, *e.args)]
        dims = [d for a in annotations for d in dims_of(a)] + [d for _, v in e.attrs for d in dims_in(v)]
        return not any(self.whole.moves(d.substitute(self.sizes)) for d in dims) and all(map(_is_known, annotations))

    def record_exact(self, e: Expr, reason: str) -> None:
        """Records that `e` cannot run at capacity, and the sizes that it depends on."""
        source = self._source(e)
        self.whole.exact.setdefault(f"{_operator_label(e)} at {source}" if source else _operator_label(e), reason)
        for d in (d for x in (e, *e.args) for d in dims_of(self.annotation(x))):
            self.whole.exact_dims |= d.variables & self.whole.dims

    def _source(self, e: Expr) -> str:
        return str(self.f.origins.get(e, ""))

    # --- operators ---

    def step(self, e: Expr) -> CapacityStep:
        if e.op == MATCH_CAST:
            raise NotPredicated("it looks at the sizes of a value")
        if e.op == CALL_DPS_LIBRARY and e.attr("name") == BARRIER:
            # Its results are its operands, in any layout.
            layouts = tuple(self.layouts[a] for a in e.args)
            return CapacityStep(lambda _, arrays: lax.optimization_barrier(tuple(arrays)), layouts)
        if e.op == CALL_DPS_LIBRARY:
            raise NotPredicated(f"what `{e.attr('name')}` does with its operands is not known")
        if not all(_is_known(self.annotation(x)) for x in (e, *e.args)):
            raise NotPredicated("its shape is known in part only")
        operands = tuple(self.annotation(a) for a in e.args)
        layouts = tuple(s for a in e.args if isinstance(s := self.layouts[a], TensorLayout))
        if len(layouts) < len(e.args):
            raise NotPredicated("an operand is no tensor")
        if e.op == CALL_TIR:
            called = self._program(e)
            self.whole.conditions |= {((">=", d),) for d in margins(called)}
            return derive_step(called, layouts, self.whole.moves, None)
        attrs = {k: with_sizes_of(v, self.sizes) for k, v in e.attrs}
        if not is_proved_applicable(e.op, operands, tuple(attrs.items())):
            raise NotPredicated("whether it applies depends on the sizes")
        self.whole.conditions |= set(preconditions(e.op, operands, tuple(attrs.items())))
        constants = {i: constant_value(a).item() for i, a in enumerate(e.args) if a.op == CONSTANT and not a.shape}
        use = OperatorUse(Site(e.op, operands, attrs), layouts, self.whole.moves, constants)
        operator = get(e.op)
        special = BEHAVIOURS[operator.capacity] if operator.capacity else None
        found = special(use) if special is not None else None
        if found is None and special is not None and operator.moves == "view" and use.merged_operands:
            found = special(OperatorUse(use.site, tuple(map(unmerge_layout, layouts)), use.moves))
            if found is not None:
                return CapacityStep(found.compute, found.result_layouts, boxed_operands=use.merged_operands)
        if found is not None:
            return found
        program = program_of(use.site)
        if program is None:
            raise NotPredicated("no index equations say what it does")
        plain = derive_step(program, layouts, self.whole.moves, native_lowering(use))
        for idiom in IDIOMS:
            found = idiom(e, use, plain)
            if found is not None:
                return found
        return plain

    def _program(self, e: Expr) -> TensorProgram:
        """The tensor program of a call, with the caller's sizes in place of its size variables."""
        program: TensorProgram = e.attr("program").value
        attribute_sizes = {v: d.substitute(self.sizes) for v, d in e.attr("sizes")}
        shapes = [Tensor(b.shape, b.dtype) for b in program.parameters]
        sizes = {**call_sizes(shapes, [self.annotation(a) for a in e.args]), **attribute_sizes}
        missing = sorted(program.sizes - sizes.keys())
        if missing:
            raise NotPredicated(f"its size {missing[0]} is determined by no axis")
        return with_sizes(program, sizes)

    def _mask_numbers(self, e: Expr, step: CapacityStep) -> list[int]:
        """A number for each mask of a step; masks of one value that are alike share a number."""
        out: list[int] = []
        before: dict[int, tuple[Any, ...]] = {}
        for m in step.masks:
            value = e.args[m.operand]
            layout = self.layouts[value]
            assert isinstance(layout, TensorLayout)
            axes = unmerge_layout(layout).axes if m.operand in step.boxed_operands else layout.axes
            path = (*before.get(m.operand, ()), (m.axis, m.digit, repr(m.fill)))
            key = (value, m.operand in step.boxed_operands, path)
            if key not in self._masked:
                size = axes[m.axis][m.digit].size
                self._masked[key] = self.whole.add_mask(
                    _value_label(value), m.axis, size, m.fill, f"{_operator_label(e)}, {m.reason}", self._source(e)
                )
            before[m.operand] = path
            out.append(self._masked[key])
        return out

    # --- functions ---

    def function_run(self, e: Expr) -> Layouts:
        args = [self.annotation(a) for a in e.args]
        given = [_unmerge_layouts(self.layouts[a]) for a in e.args]
        if e.op == SHARD_MAP:
            raise NotPredicated("it runs on parts of arrays on several devices")
        if e.op == CALL and e.args[0].op != FUNCTION:
            raise NotPredicated("which function it calls is not known")
        attrs = dict(e.attrs)
        annotated, laid_out = runs_of(e.op, args, attrs), runs_of(e.op, given, attrs)
        functions = [r.function for r in runs_of(e.op, e.args, attrs)]
        if e.op in LOOPS:
            steps = steps_of(e.op, attrs)
            length = None if steps is None else steps.substitute(self.sizes)
            return self._loop(e, functions, annotated, laid_out, length)
        plans = [
            self._function(f, p.constants, q.constants) for f, p, q in zip(functions, annotated, laid_out, strict=True)
        ]
        self.plan.runs[e] = tuple(plans)
        return functools.reduce(join_layouts, (_unmerge_layouts(x.result) for x in plans))

    def _loop(
        self, e: Expr, functions: Sequence[Expr], annotated: Sequence[Run], laid_out: Sequence[Run], length: Dim | None
    ) -> Layouts:
        """A loop whose carry has a layout and padding that hold after any number of steps, found by fixed-point
        iteration.

        - `annotated`: its runs, of annotations.
        - `laid_out`: the same, of layouts.
        """
        q = laid_out[-1]
        xs = tuple(TensorLayout(s.axes[1:], s.dtype) for s in q.slices)
        carry: tuple[Layouts, ...] = q.carry
        count = len(carry)
        while True:
            before = self.whole.snapshot()
            body = self._function(functions[-1], arguments_of(annotated[-1]), (*q.constants, *carry, *xs))
            fields = _unmerge_layouts(body.result)
            assert isinstance(fields, tuple)
            after = tuple(join_layouts(a, b) for a, b in zip(carry, fields, strict=False))
            if after == carry:
                break
            self.whole.restore(before)  # only the findings of the last round count
            carry = after
        conditions_ = zip(functions[:-1], annotated[:-1], laid_out[:-1], strict=True)
        plans = [self._function(f, arguments_of(p), (*c.constants, *carry)) for f, p, c in conditions_]
        self.plan.runs[e] = (*plans, body)
        if length is None:
            return carry
        annotation = self.annotation(e)
        assert isinstance(annotation, Tuple)
        stacked: list[TensorLayout] = []
        for s in fields[count:]:
            assert isinstance(s, TensorLayout)
            after = TensorLayout(((Digit(length, known_content(0)),), *s.axes), s.dtype)
            if self.whole.moves(length):
                if is_key(s.dtype):
                    raise NotPredicated("random keys that steps give are stacked, as many as there are steps")
                after = after.with_mask(0, 0, known_content(0))  # places that no step wrote are zero
            stacked.append(after)
        return (*carry, *stacked)

    def _function(self, callee: Expr, args: Sequence[Annotation], layouts: Sequence[Layouts]) -> FunctionPlan:
        f = self.whole.module[str(callee.attr("name"))]
        sizes = call_sizes([x.annotation for x in f.params], args)
        wanted = {v for x in f.expressions() for d in dims_of(x.annotation) for v in d.variables}
        missing = sorted(wanted - sizes.keys())
        if missing:
            raise NotPredicated(f"the size {missing[0]} of `{f.name}` is determined by no argument")
        return self.whole.function(f, tuple(layouts), sizes)


def _input_layouts(annotation: Annotation) -> Layouts:
    if isinstance(annotation, Tuple):
        return tuple(map(_input_layouts, annotation.fields))
    return boxed_layout(annotation) if isinstance(annotation, Tensor) and annotation.shape is not None else None


def _unmerge_layouts(layouts: Layouts) -> Layouts:
    if isinstance(layouts, tuple):
        return tuple(map(_unmerge_layouts, layouts))
    return unmerge_layout(layouts) if layouts is not None else None


def _is_known(annotation: Annotation) -> bool:
    """Whether every shape in an annotation is known."""
    if isinstance(annotation, Tuple):
        return all(map(_is_known, annotation.fields))
    return not isinstance(annotation, Tensor) or annotation.shape is not None


def _operator_label(e: Expr) -> str:
    if e.op == CALL_TIR:
        return f"call_tir of `{e.attr('program').value.name}`"
    return f"`{e.attr('name')}`" if e.op == CALL_DPS_LIBRARY else e.op


def _value_label(e: Expr) -> str:
    if e.op == VAR:
        return f"`{e.attr('name')}`"
    return f"{_operator_label(e)} {e.annotation.short}" if isinstance(e.annotation, Tensor) else _operator_label(e)
