"""`execution="kernels"`: a module run kernel by kernel, each an executable of its own.

A kernel is a call of a tensor program, an operator that stands alone, a library call or a loop. What moves nothing (a
reshape) is no kernel: whoever reads it reads what it is a view of. A value is let go of after its last reader, and what
is shared by layers is compiled once, for equal kernels are one executable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from relax_eg.backend.checks import Fit, cast_fits, signature_fit
from relax_eg.backend.family import Variant
from relax_eg.backend.lower import new_sizes, run_block
from relax_eg.backend.optimized import Optimized
from relax_eg.backend.program import Program, without_notes
from relax_eg.errors import OptionError, RelaxEgError
from relax_eg.explain.text import Explanation
from relax_eg.ir.annotations import dims_of
from relax_eg.ir.expr import CALL, CONSTANT, FUNCTION, SHAPE, TUPLE, TUPLE_GET, VAR, Expr, constant_value, postorder
from relax_eg.ir.module import Binding, Block, Function, Module
from relax_eg.ops.fused import VIEWS
from relax_eg.shapes import Dim, Scope

_PLAIN = frozenset((CONSTANT, FUNCTION, SHAPE, TUPLE, TUPLE_GET, CALL))  # done here, between kernels


@dataclass(slots=True)
class _Executable:
    """A kernel compiled, for each combination of sizes that its text mentions. `run(arrays, sizes)` is what it does."""

    run: Callable[[Sequence[Any], Mapping[str, int]], Any]
    sizes: tuple[str, ...]
    compiled: dict[tuple[int, ...], Any] = field(default_factory=dict[tuple[int, ...], Any])

    def run_for(self, e: Expr, values: Sequence[Any], sizes: Mapping[str, int]) -> Any:
        """The value of `e`, which is one of those that it computes, from what it reads."""
        key = tuple(sizes[v] for v in self.sizes)
        found = self.compiled.get(key)
        if found is None:
            known = dict(zip(self.sizes, key, strict=True))
            found = self.compiled[key] = jax.jit(lambda *arrays: self.run(arrays, known))
        return found(*values)


@dataclass(frozen=True, slots=True)
class _Step:
    """One step of a function: what computes `value` from `reads`, and what nobody reads afterwards."""

    value: Expr
    reads: tuple[Expr, ...]
    kernel: _Executable | None
    dead: tuple[Expr, ...]
    cast: Fit | None = None  # what a match_cast asserts of what it reads, and is


class KernelRunner:
    """Runs the entry of a module on arrays, kernel by kernel. `scope`: what must hold of the sizes in the entry."""

    def __init__(self, module: Module, scope: Scope | None = None) -> None:
        self.module = module
        self.scope = scope
        self._functions = {f.name: f for f in module}
        self._executables: dict[Any, _Executable] = {}
        self._plans: dict[str, tuple[_Step, ...]] = {}
        self._constants: dict[Expr, Any] = {}

    def run(self, args: Sequence[Any], sizes: Mapping[str, int]) -> Any:
        """What the entry returns for these arrays: an array, or a tuple of them."""
        return self._function(self.module.main, args, sizes)

    def kernels(self, function: str | None = None) -> list[Expr]:
        """The kernels of a function (the entry) in the order in which they run, what it calls left out."""
        name = function or self.module.main.name
        return [step.value for step in self._plan(self._functions[name]) if step.kernel is not None]

    def _function(self, f: Function, args: Sequence[Any], sizes: Mapping[str, int]) -> Any:
        env: dict[Expr, Any] = dict(zip(f.params, args, strict=True))
        del args
        known = dict(sizes)
        for step in self._plan(f):
            values = [env[r] for r in step.reads]
            if step.cast is not None:
                new_sizes(step.cast, values[0], known, self.scope if f is self.module.main else None, f.name)
            run = self._plain if step.kernel is None else step.kernel.run_for
            env[step.value] = run(step.value, values, known)
            del values
            for e in step.dead:
                del env[e]
        return env[f.result]

    def _plain(self, e: Expr, values: list[Any], sizes: Mapping[str, int]) -> Any:
        if e.op == CONSTANT:
            if e not in self._constants:
                self._constants[e] = jnp.asarray(constant_value(e))
            return self._constants[e]
        if e.op == TUPLE:
            return tuple(values)
        if e.op == TUPLE_GET:
            return values[0][e.attr("index")]
        if e.op == FUNCTION:
            return e.attr("name")
        if e.op == SHAPE:
            return tuple(d.evaluate(sizes) for d in e.attr("dims"))
        if e.op == VAR:  # the result of an earlier block, or of a match_cast
            return values[0]
        callee, *args = values
        f = self._functions[callee]
        return self._function(f, args, signature_fit(f.name, f.params).bind(args))

    def _plan(self, f: Function) -> tuple[_Step, ...]:
        found = self._plans.get(f.name)
        if found is None:
            found = self._plans[f.name] = self._planned(f)
        return found

    def _planned(self, f: Function) -> tuple[_Step, ...]:
        """The steps of a function in order, each with what is dead after it."""
        done: set[Expr] = set(f.params)
        casts = cast_fits(f)
        steps: list[tuple[Expr, tuple[Expr, ...], _Executable | None]] = []

        def visit(root: Expr) -> None:
            # A view is only computed where it is a result: its readers read what is behind it.
            todo = [root]
            while todo:
                e = todo[-1]
                missing = [a for a in _read(e) if a not in done] if e not in done else []
                if missing:
                    todo += reversed(missing)
                    continue
                if e not in done:
                    done.add(e)
                    reads = _read(e)
                    steps.append((e, reads, None if e.op in _PLAIN else self._executable(e, reads)))
                todo.pop()

        for block in f.blocks:
            for b in block.bindings:
                if not block.dataflow and b.value.op != VAR:
                    done.discard(b.value)  # a step is run each time it is written
                value = b.value.args[0] if b.var in casts else b.value
                visit(value)
                steps.append((b.var, (value,), None))
                done.add(b.var)
        visit(f.result)
        last: dict[Expr, int] = {}
        for i, (_, reads, _) in enumerate(steps):
            last.update(dict.fromkeys(reads, i))
        dead: dict[int, list[Expr]] = {}
        for e, i in last.items():
            if e is not f.result:
                dead.setdefault(i, []).append(e)
        return tuple(_Step(e, r, k, tuple(dead.get(i, ())), casts.get(e)) for i, (e, r, k) in enumerate(steps))

    def _executable(self, e: Expr, reads: tuple[Expr, ...]) -> _Executable:
        """The kernel that computes `e` from `reads`; one for all that are alike."""
        place = {r: i for i, r in enumerate(reads)}
        key = _key(e, place)
        found = self._executables.get(key)
        if found is None:
            inside = [e, *postorder([e], stop=place.__contains__)]
            names = sorted({v for x in inside for v in _size_names(x)})

            def run(arrays: Sequence[Any], sizes: Mapping[str, int]) -> Any:
                env = dict(zip(reads, arrays, strict=True))
                return run_block(self.module, Block((Binding(e, e),)), env, sizes)[0]

            found = self._executables[key] = _Executable(run, tuple(names))
        return found


def _behind(e: Expr) -> Expr:
    """What `e` is a view of, or `e`."""
    while e.op in VIEWS:
        e = e.args[0]
    return e


def _read(e: Expr) -> tuple[Expr, ...]:
    """What a step reads: of a kernel's operands what is behind them, but no function or shape, which are no arrays."""
    if e.op in _PLAIN:
        return e.args
    return tuple(dict.fromkeys(b for b in map(_behind, e.args) if b.op not in (FUNCTION, SHAPE)))


def _key(e: Expr, place: Mapping[Expr, int]) -> Any:
    """What a kernel does, whatever it is applied to."""
    return e.op, e.attrs, e.annotation, tuple(_operand_key(a, place) for a in e.args)


def _operand_key(e: Expr, place: Mapping[Expr, int]) -> Any:
    chain: list[Any] = []
    while e not in place:
        if e.op not in VIEWS:
            return e.op, e.attrs  # a function or a shape
        chain.append((e.op, e.attrs, e.annotation))
        e = e.args[0]
    return tuple(chain), place[e], e.annotation


def _size_names(e: Expr) -> frozenset[str]:
    """The size variables that an expression mentions itself."""
    return frozenset[str]().union(*(d.variables for d in (*dims_of(e.annotation), *_dims_in(e.attrs))))


def _dims_in(value: Any) -> list[Dim]:
    if isinstance(value, Dim):
        return [value]
    return [d for v in value for d in _dims_in(v)] if isinstance(value, tuple) else []  # type: ignore[reportUnknownVariableType]


class InKernels(Optimized):
    """An optimized function whose kernels run one by one. Traced by JAX, it is one program like any other."""

    def __init__(
        self,
        program: Program,
        variants: tuple[Variant, ...],
        tolerance: float,
        explained: Callable[[], Explanation],
    ) -> None:
        super().__init__(program, variants, (), tolerance, explained)
        self.runners = [KernelRunner(v.module, program.scope) for v in variants]

    @property
    def runner(self) -> KernelRunner:
        """That of the first variant."""
        return self.runners[0]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on XLA, one kernel after the other. ShapeError or BoundsError for arguments that do not fit, before
        anything runs."""
        p = self._program
        leaves = p.leaves(args, kwargs)
        if any(isinstance(x, Tracer) for x in leaves):
            return self._run(args, kwargs)
        leaves = p.check(leaves)
        sizes = p.sizes([x.shape for x in leaves])
        try:
            return p.result(self.runners[self._family.at(sizes)].run(leaves, sizes))
        except RelaxEgError as e:
            raise without_notes(e) from None

    def prepare(self, *weights: Any, **named: Any) -> Any:
        raise OptionError("prepare(): what runs in kernels is not prepared; call it with all its arguments")
