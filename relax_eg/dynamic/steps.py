"""Runs the dataflow blocks and functions of a module that runs in steps at capacity.

What a step computes has its true size: routines whose result sizes depend on values run on the host. Each block between
the steps is padded to the capacities of its sizes, so it is not compiled for every size that occurs. A size that a
`match_cast` names has at most the capacity that the upper-bound shape function of the routine gives
(`ops.data_dependent`), at the capacities of the sizes that this depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax

from relax_eg.backend.calls.executables import Executable, Executables, compile_executable
from relax_eg.backend.calls.program import abstract_array
from relax_eg.backend.calls.statistics import Statistics
from relax_eg.backend.lowering.lower import device_named
from relax_eg.backend.steps import OnDevice, StepPrograms, without_aliases
from relax_eg.dynamic.at_capacity import REASSOCIATED
from relax_eg.dynamic.calls import SizedCall, statistics_of
from relax_eg.dynamic.fitting import Jit, unpadded
from relax_eg.dynamic.loops import GrowingLoop, growth_of
from relax_eg.dynamic.plan import CapacityPlan, checked_call, plan_most
from relax_eg.dynamic.policy import AtBound, Policy
from relax_eg.ir.annotations import Tensor, dims_of
from relax_eg.ir.calls import substitute_exprs, without_calls
from relax_eg.ir.expr import MATCH_CAST, TUPLE_GET, Expr, fresh_name, shape_value, tuple_, var
from relax_eg.ir.memory import outputs_of
from relax_eg.ir.module import Binding, Block, Function, Module, pure_function
from relax_eg.ir.partition import missing_sizes, replace_names
from relax_eg.ir.placements import DeviceMesh
from relax_eg.ir.steps import general_functions
from relax_eg.ir.tail_calls import tail_call_of
from relax_eg.logs import fallback
from relax_eg.memo import Memo
from relax_eg.ops.data_dependent import most_of
from relax_eg.ops.deduction import deduce_module
from relax_eg.ops.keys import dtype_name
from relax_eg.ops.partial_annotations import is_partial
from relax_eg.shapes import Dim, Scope
from relax_eg.vm.compile import Advances, RegionProgram

_MOST_CALLS = 4096  # limit: combinations of sizes of a part whose fits are remembered, as of a whole function
_Exact = Callable[[list[Any], Mapping[str, int]], Any]


@dataclass(eq=False)
class _PartCall(SizedCall):
    """The calls of a part at certain sizes. `executable`: that of their capacities; None where they run exactly."""

    executable: Executable | None = None


class CapacityPrograms(StepPrograms):
    """Makes programs that run at the capacities that `policy` says."""

    reorder_tolerance = REASSOCIATED

    def __init__(self, policy: Policy, module: Module, scope: Scope, executables: Executables) -> None:
        super().__init__(module, scope, executables)
        self.policy = policy
        self.parts: list[_Part] = []
        self.loops: list[GrowingLoop] = []
        self._general = general_functions(module)
        self._most = {f.name: most_of_casts(f) for f in module}

    def region(
        self, function: Function, block: Block, known: Sequence[str], device: str | None = None
    ) -> RegionProgram:
        if device and DeviceMesh.of(device).axes:  # at exact sizes
            return super().region(function, block, known, device)
        exact = super().region(function, block, known)
        made = _Part(self, function, exact.reads, block.values, exact.run, exact.sizes, device)
        if not made.is_sized:
            return exact if device is None else RegionProgram(OnDevice(exact.run, device), exact.reads, made.sizes)
        if device is not None:
            return RegionProgram(OnDevice(made, device), exact.reads, made.sizes)

        def planned(donated: tuple[int, ...], kept: tuple[int, ...]) -> _Part:
            assert exact.planned is not None
            made.plan_memory(exact.planned(donated, ()), donated, kept)
            return made

        return RegionProgram(made, exact.reads, made.sizes, planned)

    def whole(self, function: Function) -> _Exact:
        exact = super().whole(function)
        if isinstance(exact, OnDevice):  # on a mesh
            return exact
        made = _Part(self, function, function.params, None, exact, function.size_variables)
        return made if made.is_sized else exact

    def advance(self, function: Function) -> Advances | None:
        call = tail_call_of(function, {f.name: f for f in self.module}, self._general)
        growth = growth_of(function, call) if call is not None else {}
        if call is None or not growth:
            return None
        made = GrowingLoop(self.module, function, call, growth, self.policy_of(function, growth), self.executables)
        self.loops.append(made)
        return made if made.is_planned else None

    def policy_of(self, function: Function, sizes: Iterable[str]) -> Policy:
        """The policy for these sizes of a function. Those of functions that are called have no bounds of their own."""
        others = dict.fromkeys(sizes, self.policy.others)
        if function is self.module.main:
            return replace(self.policy, ladders={**others, **self.policy.ladders})
        return replace(self.policy, ladders=others, scope=Scope())

    def most(self, function: Function) -> Mapping[str, Dim]:
        """The most that the sizes may be that the `match_cast`s of a function name."""
        return self._most.get(function.name, {})

    def at_exact_sizes(self) -> Mapping[str, str]:
        return {k: v for part in (*self.parts, *self.loops) for k, v in part.reasons.items()}

    def statistics(self, name: str) -> Statistics:
        calls = (call for part in self.parts for call in part.calls())
        return statistics_of(name, self.policy, self.executables, calls, self.at_exact_sizes())


def most_of_casts(function: Function) -> Mapping[str, Dim]:
    """Returns the most that each size may be that a `match_cast` of a routine's result names."""
    values = {b.var: b.value for b in function.bindings}
    found: dict[str, Dim] = {}
    for b in function.steps:
        if b.value.op != MATCH_CAST or not isinstance(b.value.annotation, Tensor):
            continue
        (source,) = b.value.args
        source, index = values.get(source, source), 0
        if source.op == TUPLE_GET:
            index = source.attr("index")
            source = values.get(source.args[0], source.args[0])
        most = most_of(source)
        for d, limit in zip(b.value.annotation.shape or (), most[index] if most else (), strict=False):
            if limit is not None and str(d) in d.variables:
                found.setdefault(str(d), limit)
    return found


class _Part:
    """A block or function, called with the values that it reads and its sizes.

    - `reads`: the variables that it reads.
    - `outputs`: what it computes; None for a whole function.
    - `exact`: runs it at exact sizes.
    - `needs`: the sizes that `exact` takes.
    - `device`: the name of the device on which it runs; None: the default one.
    """

    def __init__(
        self,
        programs: CapacityPrograms,
        function: Function,
        reads: Sequence[Expr],
        outputs: Sequence[Expr] | None,
        exact: _Exact,
        needs: Sequence[str],
        device: str | None = None,
    ) -> None:
        self.device = device
        self.programs, self.function, self.reads, self.outputs = programs, function, reads, outputs
        self.exact, self.needs = exact, tuple(needs)
        self.donated: tuple[int, ...] = ()
        self.kept: tuple[int, ...] = ()
        self.reasons: Mapping[str, str] = {}
        self._calls = Memo[tuple[int, ...], _PartCall](_MOST_CALLS)
        self._first: tuple[int, ...] | None = None
        most = programs.most(function)
        used = {v for e in reads for d in dims_of(e.annotation) for v in d.variables} | {*needs}
        self._limits = {v: most[v] for v in sorted(used) if v in most}
        self._used = tuple(sorted(used))
        self.sizes = tuple(sorted(used.union(*(d.variables for d in self._limits.values()))))
        self._unnamed = [i for i, e in enumerate(reads) if is_partial(e.annotation)]
        self._named = Memo[Any, _Part](_MOST_CALLS)
        programs.parts += [self] * self.is_sized

    @property
    def is_sized(self) -> bool:
        """Whether what it reads has sizes that may vary."""
        return bool(self.sizes or self._unnamed)

    def plan_memory(self, exact: _Exact, donated: tuple[int, ...], kept: tuple[int, ...]) -> None:
        """Makes a block give the operands `donated` away, and leave the results `kept` at capacity.

        - `exact`: gives them away at exact sizes.
        """
        self.exact, self.donated, self.kept = exact, donated, kept

    def calls(self) -> Sequence[_PartCall]:
        return list(self._calls.values())

    def __call__(self, values: list[Any], sizes: Mapping[str, int]) -> Any:
        if self._unnamed:
            named, more = self._with_names(values, sizes)
            return named(values, {**sizes, **more})
        device = device_named(self.device) if self.device else jax.devices()[0]
        jit = None if device.platform == "cpu" else self.programs.executables.jit
        if jax.device_count() > 1 and any(isinstance(x, jax.Array) and x.devices() != {device} for x in values):
            return self._exactly(values, sizes, jit)
        key = tuple([sizes.get(v, -1) for v in self.sizes])
        call = self._calls.get(key)
        if call is None:
            call = self._calls.get_or_make(key, lambda: self._made(key, sizes))
        call.counted += 1
        if call.executable is None or call.executable.dropped:
            if call.executable is not None and call.executable.dropped:
                self._calls = Memo(_MOST_CALLS)
            return self._exactly(values, sizes, jit)
        with self.programs.executables.lock:
            self.programs.executables.count(call.executable)
        given = call.fit.pad_all(values, jit)
        taken = [given[i] for i in self.donated]
        result = call.executable.jitted(taken, [x for i, x in enumerate(given) if i not in self.donated], call.scalars)
        if not call.fit.cuts:
            return result
        leaves, tree = jax.tree_util.tree_flatten(result)
        return jax.tree_util.tree_unflatten(tree, call.fit.cut(leaves, jit, self._kept_leaves))

    def _exactly(self, values: list[Any], sizes: Mapping[str, int], jit: Jit | None) -> Any:
        return self.exact([unpadded(x, jit) for x in values], {v: sizes[v] for v in self.needs if v in sizes})

    @cached_property
    def _kept_leaves(self) -> frozenset[int]:
        counts = [len(outputs_of(e.annotation)) for e in self.outputs or ()]
        return frozenset(sum(counts[:i]) for i in self.kept)

    # --- sizes without names ---

    def _with_names(self, values: list[Any], sizes: Mapping[str, int]) -> tuple[_Part, Mapping[str, int]]:
        """The part with a name for each unnamed size of its inputs, and the values of these names. Equal sizes share a
        name, also with a known size, so there is a part for each pattern of equal sizes."""
        constants = {d.value for e in self.reads for d in dims_of(e.annotation) if d.is_const} | {0, 1}
        dims = {sizes[v]: Dim.var(v) for v in self.sizes if v in sizes} | {n: Dim.of(n) for n in constants}
        more: dict[str, int] = {}
        kinds: list[Tensor] = []
        for i in self._unnamed:
            for n in values[i].shape:
                if n not in dims:
                    name = fresh_name(f"size{len(more) + 1}", {*sizes})
                    more[name], dims[n] = n, Dim.var(name)
            kinds.append(Tensor(tuple(dims[n] for n in values[i].shape), dtype_name(values[i])))
        return self._named.get_or_make(tuple(kinds), lambda: self._made_for(kinds)), more

    def _made_for(self, kinds: Sequence[Tensor]) -> _Part:
        named = {
            self.reads[i]: var(str(self.reads[i].attr("name")), a) for i, a in zip(self._unnamed, kinds, strict=True)
        }
        reads, f = [named.get(e, e) for e in self.reads], self.function
        try:
            if self.outputs is None:
                blocks, result = replace_names(f, named)
                f = self._deduced(Function(f.name, tuple(reads), blocks, result))
                return _Part(self.programs, f, f.params, None, self.exact, self.needs, self.device)
            main = pure_function("main", reads, substitute_exprs(self.outputs, named))
            outputs = [b.value for block in self._deduced(main).blocks for b in block.bindings]
            found = _Part(self.programs, f, reads, outputs, self.exact, self.needs, self.device)
            found.plan_memory(self.exact, self.donated, self.kept)
            return found
        except Exception as e:  # what the sizes of this call have in common is not enough
            self.reasons = {**self.reasons, f.name: fallback(f"a block of {f.name}() runs at its very sizes", e)}
            return _Part(self.programs, f, [], [], self.exact, self.needs, self.device)

    def _deduced(self, main: Function) -> Function:
        """A function whose parameters have named sizes, deduced anew."""
        others = (g for g in self.programs.module if g.name not in ("main", main.name))
        return deduce_module(without_calls(Module((main, *others)))).main  # functions, too, may name no sizes

    # --- how a part runs at capacity ---

    @cached_property
    def _module(self) -> Module | None:
        """The part as the entry of a module; None if an input or result has no capacity."""
        results = self.outputs or [self.function.result]
        kinds = [*(e.annotation for e in self.reads), *(a for e in results for a in outputs_of(e.annotation))]
        if not all(isinstance(a, Tensor) and not is_partial(a) for a in kinds):
            return None
        if self.outputs is None:
            main = self.function
        else:
            shown = {str(d) for e in self.reads for d in dims_of(e.annotation)}
            more = sorted(missing_sizes(Function("main", tuple(self.reads), (), tuple_(self.outputs))) - shown)
            named = [var(" sizes", shape_value(more).annotation)] if more else []
            taken = {str(e.attr("name")) for e in self.reads}
            made = [Binding(var(fresh_name("gv", taken), e.annotation), e) for e in self.outputs]
            main = Function("main", (*self.reads, *named), (Block(tuple(made)),), tuple_(b.var for b in made))
        others = (f for f in self.programs.module if f.name not in ("main", main.name))
        made = Module((main, *others))
        checked = next((name for e in main.expressions() if (name := checked_call(e, made)) is not None), None)
        if checked is not None:
            self.reasons = {self.function.name: f"what {checked}() gets is checked when it is called"}
        return made if checked is None else None

    @cached_property
    def _plan(self) -> CapacityPlan | None:
        if self._module is None:
            return None
        try:
            found, self.reasons = plan_most(self._module, self._module.main.size_variables)
        except Exception as e:  # without a plan it runs at exact sizes
            where = f"a block of {self.function.name}()" if self.outputs is not None else f"{self.function.name}()"
            self.reasons = {where: fallback(f"{where} runs at its very sizes", e)}
            return None
        return found

    def _made(self, key: tuple[int, ...], sizes: Mapping[str, int]) -> _PartCall:
        own = {v: sizes[v] for v in self._used if v in sizes}
        exactly = _PartCall(own, own, "exact", 0)
        policy = self.programs.policy
        named = any(all(b.get(v) == n for v, n in own.items()) for b in policy.at)
        if self._first is None:
            self._first = key
        if not own or min(own.values()) < 1 or (policy.mode == "auto" and (named or key == self._first)):
            return exactly
        plan = self._plan
        if plan is None or not set(plan.dims) <= own.keys() or not plan.applies(own):
            return exactly
        capacities = self._capacities(own, sizes, plan.dims)
        if capacities is None:
            return exactly
        try:
            executable = self.programs.executables.get_or_compile(
                (self, tuple(capacities.values())), lambda: self._compiled(plan, capacities)
            )
        except Exception as e:
            where = f"{self.function.name}() at capacity {capacities}"
            self.reasons = {**self.reasons, where: fallback(f"{where} runs at its very sizes", e)}
            return exactly
        results = outputs_of(plan.module.main.result.annotation)
        fit = plan.fit((e.annotation for e in self.reads), results, own, capacities)
        return _PartCall(own, dict(capacities), "capacity", 0, fit, plan.scalars(own), executable=executable)

    def _capacities(
        self, own: Mapping[str, int], sizes: Mapping[str, int], dims: Sequence[str]
    ) -> Mapping[str, int] | None:
        """The sizes to run at; None if no capacity satisfies the assumptions about sizes. A size with an upper bound by
        values has at most that bound at the capacities of the sizes on which it depends."""
        policy = self.programs.policy_of(self.function, sizes)
        found = policy.capacities(own, dims)
        if found is None:
            return None
        for v, limit in self._limits.items():
            if v not in dims or not limit.variables <= sizes.keys():
                continue
            more = {w: sizes[w] for w in limit.variables if w not in found}
            at = {**found, **(policy.capacities(more, tuple(more)) or more)}
            most = max(int(limit.evaluate(at)), own[v])
            found[v] = most if isinstance(policy.ladders[v], AtBound) else min(found[v], most)
        return found

    def _compiled(self, plan: CapacityPlan, capacities: Mapping[str, int]) -> Executable:
        moving = {v: capacities[v] for v in plan.dims}
        run = plan.lower(moving, fixed={v: n for v, n in capacities.items() if v not in moving})
        given = [abstract_array(e.tensor, plan.shape_of(e.annotation, capacities)) for e in self.reads]
        donated, others = self.donated, [i for i in range(len(given)) if i not in self.donated]

        def ordered(taken: Sequence[Any], rest: Sequence[Any], true: Mapping[str, Any]) -> Any:
            leaves: list[Any] = [None] * len(given)
            for i, x in zip((*donated, *others), (*taken, *rest), strict=True):
                leaves[i] = x
            made = run(leaves, true)
            return made if self.outputs is None else without_aliases(made, leaves)

        arguments = [given[i] for i in donated], [given[i] for i in others], plan.scalars(capacities)
        more = {"donate_argnums": (0,)} if donated else {}
        return compile_executable(ordered, arguments, {}, capacities, False, "call", {}, **more)
