"""Recursion over tensors that grow, at capacity: caches of keys and values, sentences that are written.

    def decode(cache: (s, 64), x):
        if done(x):
            return x
        cache = concat(cache, key(x))           s grows by 1
        return decode(cache, step(cache, x))

As many steps as fit a capacity are one loop of XLA's. What grows has one array, which is padded once and written in
place; `s` is a number that the loop carries. Where the capacity ends, the arrays get the next one. The function's own
instructions begin where the loop ends, so they return the result, or take the steps that no loop took.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from relax_eg.backend.calls.executables import Executable, Executables, compile_executable
from relax_eg.backend.calls.program import abstract_array
from relax_eg.dynamic.fitting import make_fit, shape_at
from relax_eg.dynamic.plan import CapacityPlan, checked_call, plan_most
from relax_eg.dynamic.policy import Policy, Powers
from relax_eg.errors import OptionError
from relax_eg.ir.annotations import Tensor, dims_of
from relax_eg.ir.expr import Expr, tuple_, var
from relax_eg.ir.module import Binding, Block, Function, Module
from relax_eg.ir.tail_calls import TailCall
from relax_eg.logs import fallback
from relax_eg.shapes import Dim

LEAST_CAPACITY = 32  # chosen: the least power of two, so that few loops are compiled for the first steps


def growth_of(f: Function, call: TailCall) -> Mapping[str, int]:
    """Returns by how much each size of `f` grows at a step. Empty where none does, where sizes change in another way,
    and where what is passed on is no tensor of known size."""
    found: dict[str, int] = {}
    if f.assume or f.cast_variables:
        return {}
    pairs = list(zip(f.params, call.arguments, strict=True))
    for p, e in pairs:
        a, b = p.annotation, e.annotation
        if not (isinstance(a, Tensor) and isinstance(b, Tensor)) or a.shape is None or b.shape is None:
            return {}
        if a.dtype is None or a.dtype != b.dtype or len(a.shape) != len(b.shape):
            return {}
        for d, after in zip(a.shape, b.shape, strict=True):
            grown = after - d
            if len(d.variables) > 0 and str(d) not in d.variables and grown != 0:
                return {}
            if str(d) in d.variables and (not grown.is_const or found.setdefault(str(d), grown.value) != grown.value):
                return {}
    if min(found.values(), default=0) < 0 or found.keys() != set(f.size_variables):
        return {}
    following = {v: Dim.var(v) + n for v, n in found.items()}
    if any(d.substitute(following) != n for p, e in pairs for d, n in zip(p.shape, dims_of(e.annotation), strict=True)):
        return {}
    return {v: n for v, n in found.items() if n}


class GrowingLoop:
    """The loop of a function that calls itself with tensors that grow.

    - `growth`: by how much each size that grows does so at a step.
    - `reasons`: why it does not run at capacity.
    """

    def __init__(
        self,
        module: Module,
        f: Function,
        call: TailCall,
        growth: Mapping[str, int],
        policy: Policy,
        executables: Executables,
    ) -> None:
        self.f, self.call, self.growth, self.policy, self.executables = f, call, growth, policy, executables
        self.reasons: Mapping[str, str] = {}
        self._carried = [i for i, p in enumerate(f.params) if call.arguments[i] is not p]
        others = tuple(g for g in module if g.name not in ("main", f.name))
        # What was padded with zeros and grows at its end still is: no step has to mask it.
        zeros: list[int] = [i for i in self._carried if dims_of(f.params[i].annotation)]
        while True:
            self._step = self._plan([call.arguments[i] for i in self._carried], others, zeros)
            lost = self._lost(zeros)
            if not lost:
                break
            zeros = [i for i in zeros if i not in lost]
        self._condition = self._plan([call.condition], others)

    def _lost(self, zeros: Sequence[int]) -> set[int]:
        """Those of the parameters `zeros` whose padding holds other values after a step."""
        kept = self._step.zeros if self._step is not None else ()
        return {i for i, is_zero in zip(self._carried, kept, strict=False) if i in zeros and not is_zero}

    def _plan(
        self, values: Sequence[Expr], others: Sequence[Function], zeros: Sequence[int] = ()
    ) -> CapacityPlan | None:
        made = tuple(Binding(var(f" value{i}", e.annotation), e) for i, e in enumerate(values))
        main = Function("main", self.f.params, (Block(made),), tuple_(b.var for b in made))
        module = Module((main, *others))
        if any(checked_call(e, module) for e in main.expressions()):
            return None
        try:
            found, reasons = plan_most(module, tuple(self.growth), zeros)
        except Exception as e:  # without a plan it runs step by step
            self.reasons = {self.f.name: fallback(f"{self.f.name}() runs step by step", e)}
            return None
        self.reasons = {**self.reasons, **reasons}
        return found if found is not None and set(found.dims) == set(self.growth) else None

    @property
    def is_planned(self) -> bool:
        return self._step is not None and self._condition is not None

    def __call__(self, values: list[Any], sizes: Mapping[str, int]) -> tuple[list[Any], Mapping[str, int]]:
        """The arguments of the function, and its sizes, after as many steps as there are capacities for."""
        default = jax.devices()[0]
        if jax.device_count() > 1 and any(isinstance(x, jax.Array) and x.devices() != {default} for x in values):
            return values, sizes
        jit = None if default.platform == "cpu" else self.executables.jit
        values, now = list(values), dict(sizes)
        carried, kept = self._carried, [i for i in range(len(values)) if i not in self._carried]
        shapes = [self.f.params[i].shape for i in carried]
        moving, have = [values[i] for i in carried], now
        others = [values[i] for i in kept]
        while (room := self._capacities(now)) is not None:
            try:
                compiled = functools.partial(self._compiled, room, now)
                loop = self.executables.get_or_compile((self, tuple(room.items())), compiled)
            except Exception as e:
                self.reasons = {**self.reasons, self.f.name: fallback(f"{self.f.name}() runs step by step", e)}
                self._step = None
                break
            fit = make_fit([(shape_at(s, have), shape_at(s, room)) for s in shapes], ())
            scalars = tuple(np.int32(now[v]) for v in self.growth)
            goes_on, after, moving = loop.jitted(fit.pad(list(moving), jit), scalars, others)
            have, now = room, {**now, **{v: int(n) for v, n in zip(self.growth, after, strict=True)}}
            if not goes_on:
                break
        fit = make_fit((), [(shape_at(s, now), shape_at(s, have)) for s in shapes])
        for i, x in zip(carried, fit.cut(moving, jit), strict=True):
            values[i] = x
        return values, now

    def _capacities(self, sizes: Mapping[str, int]) -> Mapping[str, int] | None:
        """The sizes to run at; None where no step fits, or the function does not run at capacity."""
        if not self.is_planned or min(sizes.values()) < 1:
            return None
        most = {v: self.policy.scope.bounds(v)[1] for v in self.growth}
        powers = {v: isinstance(ladder, Powers) for v, ladder in self.policy.ladders.items()}
        wanted = {v: max(sizes[v] + n, LEAST_CAPACITY if powers[v] else 1) for v, n in self.growth.items()}
        wanted = {v: n if (high := most[v]) is None else max(min(n, high), sizes[v]) for v, n in wanted.items()}
        found = self.policy.capacities({**sizes, **wanted}, tuple(self.growth))
        return found if found and all(found[v] >= sizes[v] + n for v, n in self.growth.items()) else None

    def _compiled(self, capacities: Mapping[str, int], sizes: Mapping[str, int]) -> Executable:
        assert self._step is not None and self._condition is not None
        growth, params = self.growth, self.f.params
        steps = min((capacities[v] - sizes[v]) // n for v, n in growth.items())
        at = ({**sizes, **{v: sizes[v] + k * n for v, n in growth.items()}} for k in range(steps + 1))
        if not all(self._step.applies(s) and self._condition.applies(s) for s in at):
            raise OptionError("not every operator applies at all of the sizes up to the capacity")
        most = {v: capacities[v] for v in growth}
        condition = self._condition.lower(most)
        step = self._step.lower({v: most[v] - n for v, n in growth.items()}, room=most)
        carried, kept = self._carried, [i for i in range(len(params)) if i not in self._carried]
        count = len(params)

        def run(first: Sequence[Any], scalars: tuple[Any, ...], others: Sequence[Any]) -> Any:
            def leaves(moving: Sequence[Any]) -> list[Any]:
                placed = dict(zip((*carried, *kept), (*moving, *others), strict=True))
                return [placed[i] for i in range(count)]

            def goes_on(state: Any) -> Any:
                (found,) = condition(leaves(state[1]), dict(zip(growth, state[0], strict=True)))
                return found if self.call.goes_on else jnp.logical_not(found)

            def fits(state: Any) -> Any:
                within = [t + n <= most[v] for t, (v, n) in zip(state[0], growth.items(), strict=True)]
                return functools.reduce(jnp.logical_and, within, goes_on(state))

            def following(state: Any) -> Any:
                made = step(leaves(state[1]), dict(zip(growth, state[0], strict=True)))
                # An operator may leave places that none of the sizes up to the capacity needs.
                cut = [
                    x if x.shape == y.shape else x[tuple(map(slice, y.shape))] for x, y in zip(made, first, strict=True)
                ]
                return tuple(t + n for t, n in zip(state[0], growth.values(), strict=True)), tuple(cut)

            last = lax.while_loop(fits, following, (scalars, tuple(first)))
            return goes_on(last), *last

        def abstract(i: int) -> Any:
            return abstract_array(params[i].tensor, shape_at(params[i].shape, capacities))

        scalars = tuple(jax.ShapeDtypeStruct((), np.int32) for _ in growth)
        given = [abstract(i) for i in carried], scalars, [abstract(i) for i in kept]
        return compile_executable(run, given, {}, capacities, False, "call", {})
