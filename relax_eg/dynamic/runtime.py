"""Runs one function at many sizes: chooses the executable for each call, and calls it."""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import numpy as np
from jax.core import Tracer

from relax_eg.backend.bound import BoundFamily
from relax_eg.backend.call_keys import MOST_SHOWN, NOT_SHOWN, UnseenError, is_tracing
from relax_eg.backend.checks import check_addressable
from relax_eg.backend.executables import Executable, Executables, Tally, Why, compiled
from relax_eg.backend.program import convert_argument
from relax_eg.backend.runtime import UNSEEN
from relax_eg.dynamic.bodies import Body, Taking
from relax_eg.dynamic.fitting import CapacityFit, is_key_array
from relax_eg.dynamic.policy import Policy, earns_exact
from relax_eg.dynamic.statistics import SizeRow
from relax_eg.errors import OptionError
from relax_eg.memo import Memo
from relax_eg.ops.keys import argument_dtype

Predict = Callable[[int, Mapping[str, int]], float]

TIMED = 3  # chosen: first calls of an executable that are timed
_EVERY = 16  # chosen: after these, one call in so many is timed
NO_FASTER = 0.98  # chosen: an exact executable is kept if it takes at most this share of a call at capacity
MOST_REFUSED = 3  # limit: calls an executable may refuse on the straight path before that path is closed to such calls
_MOST_CALLS = 4096  # limit: combinations of shapes whose sizes, fits and counts are remembered
_AS_IT_IS = CapacityFit((), ())
_config: Any = jax.config


class ElsewhereError(Exception):
    """A call that these executables must not serve: its arguments are traced or on another device, JAX looks for NaN or
    has other settings, or the function is another program at its sizes."""


@dataclass(eq=False)
class _Call:
    """The calls with certain sizes.

    - `mode`: "exact" permanently; "capacity"; "trial", with an exact executable that has not yet shown to be faster;
      "hot", with one that is faster; "settled" at capacity, because the exact one was not faster.
    - `counted`: number of calls, without those on the straight path.
    - `tallies`: counters of the executables that calls went to on the straight path.
    - `missed`: calls at capacity since the last exact executable was given up.
    - `refused`: calls on the straight path that the executable could not take; that path is closed at `MOST_REFUSED`.
    - `share`: predicted share of padding in the time of a call.
    """

    sizes: dict[str, int]
    capacities: dict[str, int]
    mode: Literal["exact", "capacity", "trial", "hot", "settled"]
    variant: int
    fit: CapacityFit = _AS_IT_IS
    scalars: dict[str, Any] = field(default_factory=dict[str, Any])
    counted: int = 0
    tallies: list[Tally] = field(default_factory=list[Tally])
    missed: int = 0
    refused: int = 0
    share: float | None = None
    wider: dict[tuple[int, ...], CapacityFit | None] = field(default_factory=dict[tuple[int, ...], CapacityFit | None])

    @property
    def count(self) -> int:
        return self.counted + sum(t.total for t in self.tallies)


# Index of the body whose weights it takes, the true sizes if it takes them, the function to run, its call counter, the
# executable, and the calls it belongs to.
_Straight = tuple[int, dict[str, Any], Any, Callable[[], int], Executable, _Call]


class Sized:
    """The state of a function whose sizes vary, and the path of each of its calls.

    - `bound`: the programs, with the parameters that are bound.
    - `predict`: predicted seconds of a call of a variant at given sizes.
    - `alone`: whether the first call's sizes are assumed to be the only ones.
    - `named`: the sizes that run exactly because the user named them.
    - `donated`: indices into `others_at` of the arguments whose arrays a call may reuse.
    """

    def __init__(self, bound: BoundFamily, policy: Policy, executables: Executables, predict: Predict) -> None:
        program = bound.program
        self._bound, self._family, self._program = bound, bound.family, program
        self._straight = Memo[Any, _Straight](MOST_SHOWN)  # by the kinds of the arguments
        self._only: _Straight | None = None  # serves every call as long as all are alike
        self._mixed = False
        self._tree, self._shown, self._others_at = bound.tree, bound.shown, bound.others_at
        self._policy, self._executables, self._predict = policy, executables, predict
        self._fixed, self._which = bound.fixed, bound.which
        self.bodies = [Body(p, frozenset(self._fixed)) for p in bound.programs]
        self._declared = [program.params[i].tensor for i in self._others_at]
        self._dtypes = [None if t.dtype is None else argument_dtype(t.dtype) for t in self._declared]
        self._calls: dict[tuple[Any, ...], _Call] = {}
        self._lock = threading.RLock()
        self.named = policy.named(self._fixed)
        self.alone = policy.mode == "auto" and not self.named
        self.donated: Sequence[int] = ()
        self.served: Callable[[], bool] | None = None  # whether it serves calls under the present settings of JAX
        self.others: dict[str, str] = {}  # sizes at which the function is another program, with the reason
        with jax.ensure_compile_time_eval():  # the first call may be within a trace
            self._array = type(jax.device_put(np.zeros(())))
        self._on_host, self._single = jax.default_backend() == "cpu", jax.device_count() == 1

    def straight(self, held: Sequence[tuple[Any, ...]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call whose sizes an executable served before; UNSEEN for any other call. This is the whole
        work of such a call: what depends on shapes was checked when the executable was made, and JAX itself checks that
        the arguments have its shapes and dtypes."""
        found = self._only
        if found is None:
            try:
                found = self._straight.get(self._shown(args, kwargs))
            except NOT_SHOWN:
                return UNSEEN
            if found is None:
                return UNSEEN
        body, scalars, run, tick, executable, call = found
        if executable.dropped or call.refused >= MOST_REFUSED or (executable.options and is_tracing()):
            return UNSEEN
        try:
            result = run((scalars, *held[body]) if scalars else held[body], *args, **kwargs)
        except (UnseenError, TypeError):  # TypeError: an argument is no array
            if self._is_served:
                self._refused(call)
            return UNSEEN
        tick()
        return result

    @property
    def _is_served(self) -> bool:
        """Whether calls are served under JAX's current settings."""
        return self.served is None or self.served()

    def _refused(self, call: _Call) -> None:
        """Handles a call on the straight path whose sizes the executable does not serve."""
        with self._lock:
            if self._only is not None:
                self._only, self._mixed = None, True
                return
            call.refused += 1

    def _let_straight(self, call: _Call, executable: Executable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Open the straight path to this executable for calls like this one, if nothing is padded for them; for all
        calls, as long as they are all alike."""
        # True if nothing is padded and nothing is cut.
        own = executable.exact or (call.sizes == executable.at and call.fit == _AS_IT_IS)
        if not own or call.mode == "trial" or call.refused >= MOST_REFUSED or executable.timed < TIMED:
            return
        scalars = {} if executable.exact else call.scalars
        entry = self._which[call.variant], scalars, executable.run, executable.tally.tick, executable, call
        with self._lock:
            try:
                self._straight[self._shown(args, kwargs)] = entry
            except NOT_SHOWN:
                return
            if executable.tally not in call.tallies:
                call.tallies.append(executable.tally)
            if len(self._calls) == 1 and not self._mixed:
                self._only = entry

    def run(self, held: Sequence[tuple[Any, ...]], others: Sequence[Any]) -> Any:
        """The result of a call. `held`: the prepared values, for each of `bodies`; `others`: the other leaves.
        ElsewhereError; ShapeError, BoundsError if the arrays do not fit, before anything runs."""
        # While tracing, JAX traces constants too; when it looks for NaN, it would also look into the padding.
        if is_tracing() or _config.jax_debug_nans or _config.jax_debug_infs or not self._is_served:
            raise ElsewhereError
        others = self._checked(others)
        key = tuple([x.shape for x in others])
        call = self._calls.get(key) or self._first_of(key)
        executable, fit = self._chosen(call)
        mine = held[self._which[call.variant]]
        timed = executable.timed < TIMED or executable.counted % _EVERY == 0
        started = time.perf_counter() if timed else 0.0
        if fit is None:
            args, kwargs = jax.tree_util.tree_unflatten(self._tree, others)
            result = executable.run(mine, *args, **kwargs)
        else:
            jit = None if self._on_host else self._executables.jit
            grown = fit.padded([*mine, *others], jit)[len(mine) :]
            args, kwargs = jax.tree_util.tree_unflatten(self._tree, grown)
            result = executable.run((call.scalars, *mine), *args, **kwargs)
            if fit.cuts:
                results = fit.cut(jax.tree_util.tree_leaves(result), jit)
                result = jax.tree_util.tree_unflatten(self._program.out_tree, results)
        self._let_straight(call, executable, args, kwargs)
        if timed:
            jax.block_until_ready(result)
            executable.took(time.perf_counter() - started)
        return result

    def _checked(self, others: Sequence[Any]) -> list[Any]:
        """The arrays of a call, converted to the declared dtypes."""
        checked = list(others)
        for i, x in enumerate(checked):
            ours = type(x) is self._array and (self._single or not x.committed)
            weak = self._program.weak_in[self._others_at[i]]
            if (ours or type(x) is np.ndarray) and x.dtype == self._dtypes[i]:
                if not weak and not (ours and getattr(x, "weak_type", False)):
                    continue
            elif isinstance(x, Tracer) or (isinstance(x, jax.Array) and not ours and not is_key_array(x)):
                raise ElsewhereError
            where = f"{self._program.name}(): argument `{self._program.names[self._others_at[i]]}`"
            checked[i] = convert_argument(where, self._declared[i], x, weak)
        return checked

    def _first_of(self, shapes: tuple[Any, ...]) -> _Call:
        """The `_Call` for these shapes, made at their first call."""
        bound = self._bound.sizes(shapes)
        sizes = {v: bound[v] for v in self._policy.ladders}
        with self._lock:
            # Many functions are only ever called at one combination of sizes: nothing is padded before a second one
            # comes.
            call = self._exactly(sizes) if self.alone else self.call_at(sizes)
            self.alone = False
        # A kept program at exact sizes is the function itself, so it needs no check.
        itself = call.mode == "exact" and self._family.programs[call.variant].kept
        why = None if itself else self._program.other_at(bound)
        if why is not None:
            if len(self.others) < _MOST_CALLS:
                at = ", ".join(f"{v} = {n}" for v, n in sizes.items())
                self.others[f"{self._program.name} at {at}"] = f"another program, {why}"
            raise ElsewhereError
        with self._lock:
            found = self._calls.get(shapes)
            if found is None:  # another thread may have been here
                found = call
                if len(self._calls) >= _MOST_CALLS:
                    self._calls.pop(next(iter(self._calls))).refused = MOST_REFUSED
                self._calls[shapes] = found
        return found

    def _exactly(self, sizes: Mapping[str, int]) -> _Call:
        return _Call(dict(sizes), dict(sizes), "exact", self._family.at(sizes))

    def call_at(self, sizes: Mapping[str, int]) -> _Call:
        """How calls with these sizes run: at capacity if that is possible and the user did not name the sizes."""
        if sizes in self.named:
            return self._exactly(sizes)
        body = self.bodies[self._which[self._family.at(sizes)]]
        capacities = self._policy.capacities(sizes, body.dims) if body.dims else None
        if capacities is None:
            return self._exactly(sizes)
        variant = self._family.at(capacities)
        body = self.bodies[self._which[variant]]
        if not body.dims:
            return self._exactly(sizes)
        fit = body.fit(sizes, capacities) if all(v in body.dims for v in sizes if sizes[v] != capacities[v]) else None
        if fit is None:
            return self._exactly(sizes)
        return _Call(dict(sizes), capacities, "capacity", variant, fit, body.scalars(sizes))

    def _chosen(self, call: _Call) -> tuple[Executable, CapacityFit | None]:
        """The executable for a call, compiled if need be, and the fit that the arrays need (None: nothing, it is
        exact)."""
        with self._executables.lock:
            call.counted += 1
        if call.mode == "exact":
            return self._executables.made(self._own_key(call), lambda: self._exact(call, "call")), None
        if call.mode in ("trial", "hot"):
            found = self._executables.get(self._own_key(call))
            if found is not None:
                if call.mode == "trial" and found.timed >= TIMED:
                    self._judge(call, found)
                return found, None
            if not self._executables.is_due(self._own_key(call)):  # it was evicted
                call.mode, call.missed = "capacity", 0
        with self._lock:
            call.missed += 1
        try:
            found, fit = self._at_capacity(call)
        except Exception as e:
            # Compiling failed before anything ran: the program may still run at exact sizes.
            self.bodies[self._which[call.variant]].refuse(e)
            with self._lock:
                self._calls.clear()
                self._straight.clear()
                self._only = None
            call.mode = "exact"
            return self._chosen(call)
        if self._policy.mode == "auto" and call.mode == "capacity" and self._earns(call, found):
            call.mode = "trial"
            make = self._executables.make_beside if self._policy.background else self._executables.make
            make(self._own_key(call), lambda: self._exact(call, "hot"))
        return found, fit

    def _at_capacity(self, call: _Call) -> tuple[Executable, CapacityFit]:
        key = self._capacity_key(call)
        if not self._policy.background:
            return self._executables.made(key, lambda: self._capacity(call, "call")), call.fit
        found = self._executables.get(key)
        if found is not None:
            return found, call.fit
        wider = self._wider(call)
        if wider is None:
            return self._executables.made(key, lambda: self._capacity(call, "call")), call.fit
        self._executables.make_beside(key, lambda: self._capacity(call, "call"))
        return wider

    def _wider(self, call: _Call) -> tuple[Executable, CapacityFit] | None:
        """The smallest existing executable into whose capacities a call fits."""
        body = self.bodies[self._which[call.variant]]
        found: list[tuple[int, Any, CapacityFit]] = []
        for key, executable in self._executables.items():
            at = executable.at
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

    def _own_key(self, call: _Call) -> tuple[Any, ...]:
        return (self, "exact", call.variant, tuple(call.sizes.values()))

    def _capacity_key(self, call: _Call) -> tuple[Any, ...]:
        return (self, "capacity", call.variant, tuple(call.capacities.values()))

    def _exact(self, call: _Call, why: Why) -> Executable:
        why = "named" if why == "call" and call.sizes in self.named else why
        taking = self.bodies[self._which[call.variant]].exact(call.sizes, self._tree)
        return self._compiled(call, taking, call.sizes, True, why, self.donated)

    def _capacity(self, call: _Call, why: Why) -> Executable:
        taking = self.bodies[self._which[call.variant]].at_capacity(call.capacities, self._tree)
        # Only arguments of fixed shape are donated: others are padded into arrays of our own, or copied.
        fixed = [i for i in self.donated if all(d.is_const for d in self._declared[i].shape or ())]
        return self._compiled(call, taking, call.capacities, False, why, fixed)

    def _compiled(
        self, call: _Call, taking: Taking, at: Mapping[str, int], exact: bool, why: Why, donated: Sequence[int]
    ) -> Executable:
        told = self._bound.donation(donated) if donated else {}
        options = self._family.variants[call.variant].compiler_options
        function, given, named = taking
        if self.served is not None:
            function = _only_where(self.served, function)
        return compiled(function, given, named, at, exact, why, options, **told)

    def _earns(self, call: _Call, found: Executable) -> bool:
        """Whether these sizes should get an exact executable."""
        if found.seconds is None or found.timed < TIMED or call.sizes == call.capacities:
            return False
        compiling = self._executables.mean_compile_seconds
        if not earns_exact(call.missed, found.seconds, 1.0, compiling):
            return False  # a prediction takes longer than a call, so it is made only when it can matter
        if call.share is None:
            mine, whole = (self._predict(call.variant, at) for at in (call.sizes, call.capacities))
            call.share = max(0.0, 1 - mine / whole) if whole > 0 else 0.0
        return earns_exact(call.missed, found.seconds, call.share, compiling)

    def _judge(self, call: _Call, own: Executable) -> None:
        """After a few calls of an exact executable: decide whether it is faster."""
        at_capacity = dict(self._executables.items()).get(self._capacity_key(call))
        slow = at_capacity is not None and at_capacity.seconds is not None and own.seconds is not None
        slow = slow and own.seconds > NO_FASTER * at_capacity.seconds  # type: ignore[reportOptionalMemberAccess]
        call.mode = "settled" if slow else "hot"

    def compile_ahead(self, at: Sequence[Mapping[str, int]], background: bool) -> None:
        """Compiles what calls with these sizes will run; without sizes, every capacity and the named sizes.
        OptionError, BoundsError."""
        self.alone = False
        for sizes in [self._all_of(s) for s in at] or self._every():
            if at and self._program.other_at({**self._fixed, **sizes}) is not None:
                continue  # runs as written; JAX compiles it at the first call
            call = self.call_at(sizes)
            own = call.mode == "exact"
            key = self._own_key(call) if own else self._capacity_key(call)
            make = self._executables.make_beside if background else self._executables.make
            compiling = self._exact if own else self._capacity
            make(key, lambda compiling=compiling, call=call: compiling(call, "ahead"))

    def _every(self) -> list[dict[str, int]]:
        """Sizes that reach every combination of capacities once, and the named sizes."""
        name, dims = self._program.name, self.bodies[0].dims
        left = [v for v in self._policy.ladders if v not in dims and v not in self._fixed]
        if left:
            raise OptionError(
                f"compile_ahead(): {name}() runs at the very sizes {', '.join(left)}; the sizes to compile for, "
                f"compile_ahead({{{left[0]!r}: 128, ...}}), are accepted"
            )
        return [*self.named, *self._policy.every(name, dims, self._fixed)]

    def _all_of(self, given: Any) -> dict[str, int]:
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

    def rows(self) -> list[SizeRow]:
        """One row per combination of sizes that was called, in the order of first calls."""
        rows: list[SizeRow] = []
        for call in list(self._calls.values()):
            exact = call.mode in ("exact", "hot", "trial")
            used = math.prod(call.sizes.values()) / max(math.prod(call.capacities.values()), 1)
            rows.append(SizeRow(call.sizes, call.count, call.capacities, exact, 0.0 if exact else 1 - used))
        return rows


def _only_where(served: Callable[[], bool], function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, raising UnseenError if JAX traces it where calls are not `served`: it is not compiled there."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not served():
            raise UnseenError
        return function(*args, **kwargs)

    return run
