"""Runs one function at many sizes: chooses the executable for each call, and calls it."""

from __future__ import annotations

import functools
import math
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from relax_eg.backend.calls.bound import BoundFamily
from relax_eg.backend.calls.call_keys import UnseenError, is_tracing
from relax_eg.backend.calls.checks import check_addressable
from relax_eg.backend.calls.executables import (
    CompileReason,
    Executable,
    Executables,
    compile_executable,
    executable_memory,
)
from relax_eg.backend.calls.known import KnownCall, KnownCalls
from relax_eg.backend.calls.padded import PaddedArray, is_key_array
from relax_eg.backend.calls.program import convert_argument
from relax_eg.backend.files.loaded import FromFile, LoadedProgram
from relax_eg.dynamic.bodies import Body, TracedFunction
from relax_eg.dynamic.calls import UNCHANGED, SizedCall
from relax_eg.dynamic.fitting import CapacityFit, Jit, PaddedRun, unpadded
from relax_eg.dynamic.policy import Policy, earns_exact
from relax_eg.errors import OptionError
from relax_eg.memo import Memo
from relax_eg.ops.keys import argument_dtype

Predict = Callable[[int, Mapping[str, int]], float]

TIMED = 3  # chosen: first calls of an executable that are timed
TIMED_EVERY = 16  # chosen: after these, one call in so many is timed
NO_FASTER = 0.98  # chosen: an exact executable is kept if it takes at most this share of a call at capacity
_MOST_CALLS = 4096  # limit: combinations of shapes whose sizes, fits and counts are remembered
_config: Any = jax.config


class ElsewhereError(Exception):
    """Raised for a call that these executables must not serve.

    Its arguments are traced or on another device, JAX looks for NaN or has other settings, or the function is another
    program at its sizes.
    """


class SizedProgram(NamedTuple):
    """A program that calls with certain sizes run.

    - `taking`: its function, with specs of its arguments.
    - `variant`: the index of the variant.
    - `capacities`: the sizes of its buffers; empty where it is exact.
    """

    taking: TracedFunction
    variant: int
    capacities: Mapping[str, int]


class Sized:
    """The executables of a function whose sizes vary, and the way of each call to one of them.

    - `bound`: the programs, with the parameters that are bound.
    - `predict`: predicted seconds of a call of a variant at given sizes.
    - `assumes_one_size`: whether the first call's sizes are assumed to be the only ones.
    - `named_sizes`: the sizes that run exactly because the user named them.
    - `donated`: indices into `call_indices` of the arguments whose arrays a call may reuse, besides those that
      `policy` says.
    """

    def __init__(
        self, bound: BoundFamily, policy: Policy, executables: Executables, predict: Predict, known: KnownCalls
    ) -> None:
        """`known`: the table of known calls, for calls that need not come here again."""
        program = bound.program
        self._bound, self._family, self._program = bound, bound.family, program
        self._known, self._tree, self._call_indices = known, bound.tree, bound.call_indices
        self._policy, self._executables, self._predict = policy, executables, predict
        self._fixed, self._which, self._takes_prepared = bound.fixed, bound.program_indices, bool(bound.indices)
        self._used_up = [k for k, i in enumerate(self._call_indices) if policy.is_donated(program.arguments[i])]
        donated = [self._call_indices[k] for k in self._used_up]
        self.bodies = [Body(p, frozenset(self._fixed), donated) for p in bound.programs]
        self._declared = [program.params[i].tensor for i in self._call_indices]
        self._dtypes = [None if t.dtype is None else argument_dtype(t.dtype) for t in self._declared]
        self._calls = Memo[tuple[Any, ...], SizedCall](_MOST_CALLS)  # by the shapes of all arrays
        self._lock = threading.RLock()
        self.named_sizes = policy.named_sizes(self._fixed)
        self.assumes_one_size = policy.mode == "auto" and not self.named_sizes
        self.donated: Sequence[int] = ()
        self.differing_sizes: dict[str, str] = {}  # sizes at which the function is another program, with the reason
        with jax.ensure_compile_time_eval():  # the first call may be within a trace
            self._array = type(jax.device_put(np.zeros(())))
        self._on_host, self._single = jax.default_backend() == "cpu", jax.device_count() == 1

    @property
    def _jit(self) -> Jit | None:
        """Compiles padding for the device of the arrays; None if that is the host."""
        return None if self._on_host else self._executables.jit

    def _remember(self, call: SizedCall, executable: Executable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Lets later calls like this one go straight to this executable."""
        if executable.timed < TIMED:
            return
        if call.mode == "trial":  # each call is timed
            self._known.forget(args, kwargs)
            return
        is_padded = not executable.exact and (call.fit != UNCHANGED or executable.buffer_sizes != call.sizes)
        if is_padded and not self._pads_unseen(call, executable):
            return
        tick = executable.tally.ticking(call.tally)
        scalars = {} if executable.exact else call.scalars
        which = self._which[call.variant] if self._takes_prepared or scalars else None
        known = KnownCall(executable.jitted, which, scalars, tick, executable, executable.options)
        if is_padded:
            trees = self._tree, self._program.out_tree
            run = PaddedRun(executable.jitted, call.fit, self._jit, trees, self._dtypes, tick, TIMED_EVERY)
            known = known._replace(run=run, tick=None, begins=False)
        self._known.put(args, kwargs, known, is_only=len(self._calls) == 1)

    def _pads_unseen(self, call: SizedCall, executable: Executable) -> bool:
        """Whether calls that are padded may go straight to this executable, but for one in `TIMED_EVERY`. An executable
        for their exact sizes is then compiled so many calls later, which is to take less than the compilation."""
        if executable.buffer_sizes != call.capacities or self._policy.padded or not self._single:
            return False
        if any(not isinstance(self._dtypes[i], np.dtype) for i, _, _ in call.fit.pads):
            return False
        is_decided = self._policy.mode != "auto" or call.mode == "settled"
        return is_decided or TIMED_EVERY * (executable.seconds or 0) <= self._executables.mean_compile_seconds

    def run(self, held: Sequence[tuple[Any, ...]], others: Sequence[Any]) -> Any:
        """The result of a call. `held`: the prepared values, for each of `bodies`; `others`: the other leaves.
        ElsewhereError; ShapeError, BoundsError if the arrays do not fit, before anything runs."""
        # While tracing, JAX traces constants too; when it looks for NaN, it would also look into the padding.
        if is_tracing() or _config.jax_debug_nans or _config.jax_debug_infs or not self._known.is_served():
            raise ElsewhereError
        others = self._check_arguments(others)
        key = tuple([x.shape for x in others])
        call = self._calls.get(key) or self._new_call(key)
        executable, fit = self._executable_for(call)
        mine = held[self._which[call.variant]]
        is_due = fit is not None and call.since > 1  # others like it went straight
        timed = is_due or executable.timed < TIMED or executable.counted_calls % TIMED_EVERY == 0
        started, inside = time.perf_counter() if timed else 0.0, 0.0
        jit = self._jit
        if fit is None:
            args, kwargs = jax.tree_util.tree_unflatten(self._tree, [unpadded(x, jit) for x in others])
            result = executable.jitted(*((mine,) if self._takes_prepared else ()), *args, **kwargs)
        else:
            args, kwargs = jax.tree_util.tree_unflatten(self._tree, fit.pad_all(others, jit))
            begun = time.perf_counter() if timed else 0.0
            result = executable.jitted((call.scalars, *mine), *args, **kwargs)
            if timed:
                jax.block_until_ready(result)
                inside = time.perf_counter() - begun
            if fit.cuts:
                kept = [i for i, _ in fit.cuts] if self._policy.padded else ()
                results = fit.cut(jax.tree_util.tree_leaves(result), jit, kept)
                result = jax.tree_util.tree_unflatten(self._program.out_tree, results)
            args, kwargs = jax.tree_util.tree_unflatten(self._tree, others)
        self._remember(call, executable, args, kwargs)
        if timed:
            jax.block_until_ready(result)
            seconds = time.perf_counter() - started
            executable.record_seconds(seconds, 0.0 if fit is None else seconds - inside)
        return result

    def executable_key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, bool, tuple[int, ...]]:
        """The variant of the executable that served the last call with arrays of these shapes, whether it is exact, and
        the sizes of its buffers. LookupError if there was none."""
        call = self._calls[tuple([x.shape for x in self._bound.call_arrays(args, kwargs)])]
        return call.variant, call.is_exact, tuple((call.sizes if call.is_exact else call.capacities).values())

    def compile_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: tuple[int, bool, Any]) -> None:
        """Compiles what calls with arrays of these shapes run, exact or at capacity as `key` says. OptionError where
        they cannot run so."""
        self.assumes_one_size = False
        shapes = tuple([x.shape for x in self._bound.call_arrays(args, kwargs)])
        bound = self._bound.sizes(shapes)
        sizes, exact = {v: bound[v] for v in self._policy.ladders}, key[1]
        call = self._exact_call(sizes) if exact else self.call_at(sizes)
        if (call.mode == "exact") != exact or tuple((call.sizes if exact else call.capacities).values()) != key[2]:
            raise OptionError(f"{self._program.name}() as written does not run at the capacities of the chosen program")
        with self._lock:
            self._calls[shapes] = call
        if exact:
            self._executables.ensure_compiled(self._exact_key(call), lambda: self._compile_exact(call, "ahead"))
        else:
            self._executables.ensure_compiled(self._capacity_key(call), lambda: self._compile_capacity(call, "ahead"))

    def _check_arguments(self, others: Sequence[Any]) -> list[Any]:
        """The arrays of a call, converted to the declared dtypes."""
        checked = list(others)
        for i, x in enumerate(checked):
            ours = type(x) is self._array and (self._single or not x.committed)
            weak = self._program.weak_in[self._call_indices[i]]
            if (ours or type(x) is np.ndarray) and x.dtype == self._dtypes[i]:
                if not weak and not (ours and getattr(x, "weak_type", False)):
                    continue
            elif isinstance(x, Tracer) or (isinstance(x, jax.Array) and not ours and not is_key_array(x)):
                raise ElsewhereError
            if isinstance(x, PaddedArray) and x.dtype == self._dtypes[i]:
                continue
            where = f"{self._program.name}(): argument `{self._program.names[self._call_indices[i]]}`"
            checked[i] = convert_argument(where, self._declared[i], x, weak)
        return checked

    def _new_call(self, shapes: tuple[Any, ...]) -> SizedCall:
        """The `SizedCall` for these shapes, made at their first call."""
        bound = self._bound.sizes(shapes)
        sizes = {v: bound[v] for v in self._policy.ladders}
        with self._lock:
            # Many functions are only ever called at one combination of sizes: nothing is padded before a second one
            # comes.
            call = self._exact_call(sizes) if self.assumes_one_size else self.call_at(sizes)
            self.assumes_one_size = False
        # A kept program at exact sizes is the function itself, so it needs no check.
        itself = call.mode == "exact" and self._family.programs[call.variant].is_as_written
        why = None if itself else self._program.difference_at(bound)
        if why is not None:
            if len(self.differing_sizes) < _MOST_CALLS:
                at = ", ".join(f"{v} = {n}" for v, n in sizes.items())
                self.differing_sizes[f"{self._program.name} at {at}"] = f"another program, {why}"
            raise ElsewhereError
        with self._lock:
            found = self._calls.get(shapes)
            if found is None:  # another thread may have been here
                found = call
                self._calls[shapes] = found
        return found

    def _exact_call(self, sizes: Mapping[str, int]) -> SizedCall:
        return SizedCall(dict(sizes), dict(sizes), "exact", self._family.variant_at(sizes))

    def call_at(self, sizes: Mapping[str, int]) -> SizedCall:
        """How calls with these sizes run: at capacity if that is possible and the user did not name the sizes."""
        if sizes in self.named_sizes:
            return self._exact_call(sizes)
        body = self.bodies[self._which[self._family.variant_at(sizes)]]
        capacities = self._policy.capacities(sizes, body.dims) if body.dims else None
        if capacities is None:
            return self._exact_call(sizes)
        variant = self._family.variant_at(capacities)
        body = self.bodies[self._which[variant]]
        if not body.dims:
            return self._exact_call(sizes)
        fit = body.fit(sizes, capacities) if all(v in body.dims for v in sizes if sizes[v] != capacities[v]) else None
        if fit is None:
            return self._exact_call(sizes)
        return SizedCall(dict(sizes), capacities, "capacity", variant, fit, body.scalars(sizes))

    def runs_at(self, sizes: Mapping[str, int]) -> SizedProgram:
        """What calls with these sizes run."""
        call = self.call_at({v: sizes[v] for v in self._policy.ladders})
        body = self.bodies[self._which[call.variant]]
        if call.mode == "exact":
            return SizedProgram(body.exact(call.sizes, self._tree), call.variant, {})
        return SizedProgram(body.at_capacity(call.capacities, self._tree), call.variant, call.capacities)

    def _executable_for(self, call: SizedCall) -> tuple[Executable, CapacityFit | None]:
        """The executable for a call, compiled if need be, and the fit of its arrays; None where it is exact."""
        with self._executables.lock:
            call.look()
        if call.mode == "exact":
            return self._executables.get_or_compile(
                self._exact_key(call), lambda: self._compile_exact(call, "call")
            ), None
        if call.mode in ("trial", "hot"):
            found = self._executables.get(self._exact_key(call))
            if found is not None:
                if call.mode == "trial" and found.timed >= TIMED:
                    self._judge_trial(call, found)
                return found, None
            if not self._executables.is_compiled_or_compiling(self._exact_key(call)):  # it was evicted
                call.mode, call.missed, call.since = "capacity", 0, 1
        with self._lock:
            call.missed += call.since
        try:
            found, fit = self._at_capacity(call)
        except Exception as e:
            # Compiling failed before anything ran: the program may still run at exact sizes.
            self.bodies[self._which[call.variant]].refuse(e)
            with self._lock:
                self._calls.clear()
                self._known.clear()
            call.mode = "exact"
            return self._executable_for(call)
        if self._policy.mode == "auto" and call.mode == "capacity" and self._earns_exact(call, found):
            call.mode = "trial"
            make = self._executables.compile_in_thread if self._policy.background else self._executables.ensure_compiled
            make(self._exact_key(call), lambda: self._compile_exact(call, "hot"))
        return found, fit

    def _at_capacity(self, call: SizedCall) -> tuple[Executable, CapacityFit]:
        key = self._capacity_key(call)
        if not self._policy.background:
            return self._executables.get_or_compile(key, lambda: self._compile_capacity(call, "call")), call.fit
        found = self._executables.get(key)
        if found is not None:
            return found, call.fit
        wider = self._wider(call)
        if wider is None:
            return self._executables.get_or_compile(key, lambda: self._compile_capacity(call, "call")), call.fit
        self._executables.compile_in_thread(key, lambda: self._compile_capacity(call, "call"))
        return wider

    def _wider(self, call: SizedCall) -> tuple[Executable, CapacityFit] | None:
        """The smallest existing executable into whose capacities a call fits."""
        body = self.bodies[self._which[call.variant]]
        found: list[tuple[int, Any, CapacityFit]] = []
        for key, executable in self._executables.items():
            at = executable.buffer_sizes
            if executable.exact or key[:3] != (self, "capacity", call.variant):
                continue
            if all(at[v] == n or (at[v] > n and v in body.dims) for v, n in call.sizes.items()):
                capacities = tuple(at.values())
                if capacities not in call.wider:
                    call.wider[capacities] = body.fit(call.sizes, at)
                fit = call.wider[capacities]
                found += [] if fit is None else [(math.prod(capacities), key, fit)]
        if not found:
            return None
        _, key, fit = min(found, key=lambda f: f[0])
        executable = self._executables.get(key)
        return None if executable is None else (executable, fit)

    def _exact_key(self, call: SizedCall) -> tuple[Any, ...]:
        return (self, "exact", call.variant, tuple(call.sizes.values()))

    def _capacity_key(self, call: SizedCall) -> tuple[Any, ...]:
        return (self, "capacity", call.variant, tuple(call.capacities.values()))

    def _compile_exact(self, call: SizedCall, why: CompileReason) -> Executable:
        why = "named" if why == "call" and call.sizes in self.named_sizes else why
        taking = self.bodies[self._which[call.variant]].exact(call.sizes, self._tree)
        return self._compile(call, taking, call.sizes, True, why, self.donated)

    def _compile_capacity(self, call: SizedCall, why: CompileReason) -> Executable:
        taking = self.bodies[self._which[call.variant]].at_capacity(call.capacities, self._tree)
        # Other arguments of `donated` are padded into arrays of our own, or copied.
        fixed = [i for i in self.donated if all(d.is_const for d in self._declared[i].shape or ())]
        return self._compile(call, taking, call.capacities, False, why, sorted({*fixed, *self._used_up}))

    def _compile(
        self,
        call: SizedCall,
        taking: TracedFunction,
        at: Mapping[str, int],
        exact: bool,
        why: CompileReason,
        donated: Sequence[int],
    ) -> Executable:
        donation = self._bound.donation(donated, int(self._takes_prepared or not exact)) if donated else {}
        options = self._family.variants[call.variant].compiler_options
        function, given, named = taking
        made: list[weakref.ref[Executable]] = []

        def is_served() -> bool:  # what was dropped is not to be compiled again by calls that know it
            return self._known.is_served() and not any((e := ref()) is not None and e.dropped for ref in made)

        function = _check_served(is_served, function)
        program = self._of_file(call.variant, at, exact)
        if program is None:
            found = compile_executable(function, given, named, at, exact, why, options, **donation)
        else:
            jitted = jax.jit(function, compiler_options=dict(options) or None, **donation)
            memory = executable_memory(program.compiled[0])
            found = Executable(FromFile([(program, 0)], jitted), dict(at), exact, "file", 0.0, memory, bool(options))
        made.append(weakref.ref(found))
        return found

    def _of_file(self, variant: int, at: Mapping[str, int], exact: bool) -> LoadedProgram | None:
        """What the file of the function has for buffers of these sizes."""
        loaded, indices = self._executables.loaded, self._bound.indices
        if loaded is None:
            return None
        if not exact:
            return loaded.at_capacity(indices, variant, at)
        found = loaded.at_exact_sizes(indices, (variant,))
        return next((p for p in found if all(p.stored.at.get(v) == n for v, n in at.items())), None)

    def _earns_exact(self, call: SizedCall, found: Executable) -> bool:
        """Whether these sizes should get an exact executable."""
        if found.seconds is None or found.timed < TIMED or call.sizes == call.capacities:
            return False
        compiling = self._executables.mean_compile_seconds
        if not earns_exact(call.missed, found.seconds, 1.0, compiling):
            return False  # a prediction takes longer than a call, so it is made only when it can matter
        if call.share is None:
            mine, whole = (self._predict(call.variant, at) for at in (call.sizes, call.capacities))
            call.share = max(0.0, 1 - mine / whole) if whole > 0 else 0.0
        handled = found.handled / found.seconds
        return earns_exact(call.missed, found.seconds, handled + (1 - handled) * call.share, compiling)

    def _judge_trial(self, call: SizedCall, own: Executable) -> None:
        """Decides, after a few calls of an exact executable, whether it is faster than the one at capacity."""
        at_capacity = dict(self._executables.items()).get(self._capacity_key(call))
        slow = at_capacity is not None and at_capacity.seconds is not None and own.seconds is not None
        slow = slow and own.seconds > NO_FASTER * at_capacity.seconds  # type: ignore[reportOptionalMemberAccess]
        call.mode = "settled" if slow else "hot"

    def compile_ahead(self, at: Sequence[Mapping[str, int]], background: bool) -> None:
        """Compiles what calls with these sizes will run; without sizes, every capacity and the named sizes.
        OptionError, BoundsError."""
        self.assumes_one_size = False
        for sizes in [self._complete_sizes(s) for s in at] or self._all_capacities():
            if at and self._program.difference_at({**self._fixed, **sizes}) is not None:
                continue  # runs as written; JAX compiles it at the first call
            call = self.call_at(sizes)
            own = call.mode == "exact"
            key = self._exact_key(call) if own else self._capacity_key(call)
            make = self._executables.compile_in_thread if background else self._executables.ensure_compiled
            compiling = self._compile_exact if own else self._compile_capacity
            make(key, lambda compiling=compiling, call=call: compiling(call, "ahead"))

    def _all_capacities(self) -> list[dict[str, int]]:
        """Sizes that reach every combination of capacities once, and the named sizes."""
        name, dims = self._program.name, self.bodies[0].dims
        left = [v for v in self._policy.ladders if v not in dims and v not in self._fixed]
        if left:
            raise OptionError(
                f"compile_ahead(): {name}() runs at the very sizes {', '.join(left)}; the sizes to compile for, "
                f"compile_ahead({{{left[0]!r}: 128, ...}}), are accepted"
            )
        return [*self.named_sizes, *self._policy.all_capacities(name, dims, self._fixed)]

    def _complete_sizes(self, given: Any) -> dict[str, int]:
        """The sizes given to `compile_ahead`, checked, with those that the weights determine."""
        name, wanted = self._program.name, [v for v in self._policy.ladders if v not in self._fixed]
        good = isinstance(given, Mapping) and set(given) == set(wanted)
        if not good or any(not isinstance(n, int) or isinstance(n, bool) for n in given.values()):
            example = ", ".join(f"{v!r}: 128" for v in wanted)
            raise OptionError(f"compile_ahead({given!r}): sizes of {name}(), {{{example}}}, are accepted")
        sizes = {v: given[v] if v in given else self._fixed[v] for v in self._policy.ladders}
        self._program.scope.check(sizes, name)
        check_addressable(f"compile_ahead(): {name}()", self._program.params, sizes)
        return sizes

    @property
    def calls(self) -> list[SizedCall]:
        """The calls by combination of sizes, in the order of first calls."""
        return list(self._calls.values())


def _check_served(served: Callable[[], bool], function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, raising UnseenError if JAX traces it where calls are not `served`: it is not compiled there."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not served():
            raise UnseenError
        return function(*args, **kwargs)

    return run
