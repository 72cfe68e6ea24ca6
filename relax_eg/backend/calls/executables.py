"""Caches of compiled programs. Each program is compiled once, even if several threads ask for it at the same time.

All programs of one function count towards one limit: executables for certain sizes or capacities, which are kept by
key; executables that a `jax.jit` makes for the arguments of its calls; kernels. When the limit is reached, the least
recently used one is evicted. A `jax.jit` does not report its calls, so it counts as used when it was last traced.
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Callable, Generator, Hashable, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol
from weakref import WeakSet

import jax

from relax_eg.backend.calls.statistics import Tally
from relax_eg.backend.width import has_x64
from relax_eg.contexts import fewer_collections
from relax_eg.logs import fallback

if TYPE_CHECKING:
    from relax_eg.backend.files.loaded import LoadedPrograms

CompileReason = Literal["call", "named", "ahead", "hot", "file"]

# limit: executables kept per function by default: enough for all powers of two of two sizes up to 128.
EXECUTABLES = 64

# limit: the same for functions whose calls run many kernels or blocks: with 16 per call, 64 combinations of sizes.
PARTS = 1024


def executables(at_sizes: Mapping[str, Any], usual: int = EXECUTABLES) -> Executables:
    """An empty cache for a function. Its limit is `at_sizes["executables"]`, or `usual` where that is not set."""
    return Executables(at_sizes.get("executables") or usual)


tick = itertools.count(1).__next__  # a clock for "least recently used": it counts uses


class FullError(Exception):
    """Raised while JAX traces a program for which the cache has no room."""


class ClosedError(Exception):
    """Raised while JAX traces a closed `Jit`, which means for arguments of other kinds than those it was traced for."""


class Holder(Protocol):
    """An object that holds executables and can drop them one by one.

    - `executable_count`: number of executables it holds.
    - `oldest_use`: time (in ticks) of the last use of the one that it would drop next; None if it drops nothing.
    - `evict_oldest`: drops that one.
    """

    @property
    def executable_count(self) -> int: ...

    @property
    def oldest_use(self) -> int | None: ...

    def evict_oldest(self) -> None: ...


@dataclass(eq=False)
class Executable:
    """A compiled program, with its statistics.

    - `jitted`: the function that `jax.jit` returned; it is compiled for these arguments only.
    - `buffer_sizes`: the sizes of its buffers.
    - `exact`: whether these are the sizes of the calls that it serves.
    - `why`: why it was compiled; "file": it was not, but loaded from a file.
    - `compile_seconds`: wall time of tracing, lowering and compiling it.
    - `memory`: bytes of arguments, outputs and temporaries, as XLA reports them at compilation; None if it does not.
    - `options`: whether it was compiled with options of XLA's.
    - `tally`: counts the known calls that went to it (`known`).
    - `counted_calls`: number of all other calls.
    - `timed`: number of timed calls among these.
    - `seconds`: time of the fastest timed call; None before the first.
    - `handled`: the part of it outside the program: padding arguments and cutting results.
    - `used`: time (in ticks) of its last use.
    - `tally_seen`: number of direct calls that `used` takes into account.
    - `dropped`: whether it was evicted.
    """

    jitted: Any
    buffer_sizes: Mapping[str, int]
    exact: bool
    why: CompileReason
    compile_seconds: float
    memory: tuple[int, int, int] | None
    options: bool = False
    tally: Tally = field(default_factory=Tally)
    counted_calls: int = 0
    seconds: float | None = None
    handled: float = 0.0
    timed: int = 0
    used: int = 0
    tally_seen: int = 0
    dropped: bool = False

    @property
    def calls(self) -> int:
        """Number of calls so far."""
        return self.counted_calls + self.tally.total

    def record_seconds(self, seconds: float, handled: float = 0.0) -> None:
        self.timed += 1
        if self.seconds is None or seconds < self.seconds:
            self.seconds, self.handled = seconds, handled


@fewer_collections()
def compile_executable(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    named: Mapping[str, Any],
    at: Mapping[str, int],
    exact: bool,
    why: CompileReason,
    options: Mapping[str, str],
    **donated: Any,
) -> Executable:
    """Compiles `function` for the given specs and reports its memory.

    - `arguments`: specs of the positional arguments, as `jax.ShapeDtypeStruct`s.
    - `named`: specs of the keyword arguments.
    - `at`: the sizes of its buffers.
    - `donated`: the options of `jax.jit` that name the donated arguments.
    """
    started = time.perf_counter()
    jitted = jax.jit(function, compiler_options=dict(options) or None, **donated)
    # What `compile` returns is not kept: a call of `jitted` finds this executable, and it respects JAX's settings,
    # which the result of `compile` does not.
    compiled = jitted.lower(*arguments, **named).compile()
    seconds = time.perf_counter() - started
    return Executable(jitted, dict(at), exact, why, seconds, executable_memory(compiled), bool(options))


def executable_memory(compiled: Any) -> tuple[int, int, int] | None:
    """Bytes of arguments, outputs and temporaries of a `jax.stages.Compiled`; None where its platform reports none."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return None
    return analysis.argument_size_in_bytes, analysis.output_size_in_bytes, analysis.temp_size_in_bytes


class _Traced:
    """Statistics of a `jax.jit`: the number of programs that it was traced for, and the time of the last trace.

    - `is_closed`: whether it refuses to be traced.
    """

    __slots__ = ("count", "is_closed", "last")

    def __init__(self) -> None:
        self.count = self.last = 0
        self.is_closed = False


class Jit:
    """A `jax.jit(function, **options)`, called and lowered like it, whose executables count in `executables`.

    Where there is no room for another executable, the trace is aborted, one is evicted, and the trace is repeated.

    - `jitted`: the `jax.jit`, which raises FullError where there is no room, and ClosedError where it would be traced
      and is closed. Eviction replaces it.
    """

    __slots__ = ("__weakref__", "_executables", "_function", "_options", "_traced", "jitted")

    def __init__(self, executables: Executables, function: Callable[..., Any], options: Any) -> None:
        self._executables, self._function, self._options = executables, function, options
        self._renew()

    def evict_oldest(self) -> None:
        """Drops all its executables, by replacing the traced function, with which JAX keeps them. What still calls the
        old one is refused."""
        self.close()
        self.jitted.clear_cache()
        self._renew()

    def _renew(self) -> None:
        executables, function, traced = self._executables, self._function, _Traced()

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            executables.count_traced(traced)
            try:
                return function(*args, **kwargs)
            except BaseException:
                traced.count -= 1
                raise

        self._traced = traced
        self.jitted: Any = jax.jit(counted, **self._options)

    @property
    def executable_count(self) -> int:
        return self._traced.count

    @property
    def oldest_use(self) -> int | None:
        return self._traced.last if self._traced.count else None

    def close(self) -> None:
        """Lets `jitted` run only what it was traced for; calls of this object still trace it for others."""
        self._traced.is_closed = True

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.jitted(*args, **kwargs)
        except (FullError, ClosedError) as e:
            with self._admitting(e):
                return self(*args, **kwargs)

    def lower(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.trace(*args, **kwargs).lower()

    def trace(self, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.jitted.trace(*args, **kwargs)
        except (FullError, ClosedError) as e:
            with self._admitting(e):
                return self.trace(*args, **kwargs)

    @contextmanager
    def _admitting(self, refusal: FullError | ClosedError) -> Generator[None]:
        """Makes room for another program, or lets one be traced."""
        if isinstance(refusal, FullError):
            self._executables.make_room()
            yield
            return
        traced = self._traced
        was_closed, traced.is_closed = traced.is_closed, False
        try:
            yield
        finally:
            traced.is_closed = was_closed


class Executables:
    """A cache of the executables of a function, at most `limit`; beyond that, the least recently used is evicted.

    Whatever the limit is, it keeps one executable of each part of the function (`jit`), and those that a running call
    needs. `lock` must be held by the caller of `count`.

    - `loaded`: the executables of the file that the function was loaded from; None for none.
    """

    loaded: LoadedPrograms | None = None

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._holders: WeakSet[Holder] = WeakSet()
        self._parts: WeakSet[Jit] = WeakSet()
        self._outer: Executables | None = None
        self.evicted = 0
        self.compilations = 0
        self.compile_seconds = 0.0
        self.lock = threading.RLock()  # reentrant: dropped objects may be garbage-collected here while it is held
        self._by_key: dict[Hashable, Executable] = {}
        self._compiling: dict[Hashable, Future[Executable]] = {}

    def jit(self, function: Callable[..., Any], part: bool = False, **options: Any) -> Jit:
        """A `jax.jit(function, **options)` whose executables count here.

        `part`: whether it is one of several that a call runs.
        """
        made = Jit(self, function, options)
        self.register(made)
        if part:
            self._parts.add(made)
        return made

    def register(self, holder: Holder) -> None:
        """Counts the executables of `holder` here, as long as `holder` is referenced elsewhere.

        `holder` may be an `Executables` that has made none yet; its executables then respect both limits.
        """
        with self.lock:
            self._holders.add(holder)
        if isinstance(holder, Executables):
            holder._outer, holder.lock = self, self.lock

    @property
    def oldest_use(self) -> int | None:
        with self.lock:
            return None if (oldest := self._oldest()) is None else oldest[0]

    def evict_oldest(self) -> None:
        with self.lock:
            if (oldest := self._oldest()) is not None:
                oldest[1]()

    @property
    def executable_count(self) -> int:
        """Number of executables now, including those of holders."""
        with self.lock:
            return len(self._by_key) + sum(h.executable_count for h in self._holders)

    def count_traced(self, traced: _Traced) -> None:
        """Counts one more program, which JAX is tracing. FullError if there is no room for it; ClosedError."""
        if traced.is_closed:
            raise ClosedError
        with self.lock:
            if self._is_full:
                raise FullError
            traced.count += 1
            traced.last = tick()

    def make_room(self, more: int = 1) -> None:
        """Evicts the least recently used executables until there is room for `more` new ones."""
        with self.lock:
            before = self.executable_count
            while self.executable_count + more > self._most and (oldest := self._oldest()) is not None:
                oldest[1]()
            if self._outer is not None:
                self._outer.make_room(more)
            self.evicted += before - self.executable_count

    @property
    def _most(self) -> int:
        return max(self.limit, len(self._parts))

    @property
    def _is_full(self) -> bool:
        """Whether something must be evicted before another program is made."""
        full = self.executable_count >= self._most and self._oldest() is not None
        return full or (self._outer is not None and self._outer._is_full)

    def _oldest(self) -> tuple[int, Callable[[], None]] | None:
        """The least recently used entry: the time of its last use and a function that drops it; None if none may go."""
        found = [(used, h.evict_oldest) for h in self._holders if (used := h.oldest_use) is not None]
        found += [(e.used, functools.partial(self._drop, key)) for key, e in self._by_use()[:1]]
        return min(found, key=lambda x: x[0], default=None)

    def _drop(self, key: Hashable) -> None:
        old = self._by_key.pop(key)
        old.dropped = True
        old.jitted.clear_cache()

    def get(self, key: Hashable) -> Executable | None:
        """The executable of `key`, for a call, which is counted; None where there is none (yet)."""
        with self.lock:
            found = self._by_key.get(key)
            if found is not None:
                self.count(found)
            return found

    def count(self, executable: Executable) -> None:
        """Counts a call. The caller holds `lock`."""
        executable.counted_calls += 1
        executable.used = tick()

    def _by_use(self) -> list[tuple[Any, Executable]]:
        """Pairs of key and executable, by time of last use.

        Known calls have no time: an executable that had any since the last call of this method counts as used now.
        """
        found = sorted(self._by_key.items(), key=lambda item: item[1].used)
        for _, executable in found:
            straight = executable.tally.total
            if straight != executable.tally_seen:
                executable.used, executable.tally_seen = tick(), straight
        return sorted(found, key=lambda item: item[1].used)

    def get_or_compile(self, key: Hashable, make: Callable[[], Executable]) -> Executable:
        """The executable of `key`, for a call, which is counted; compiled now where there is none.

        If another thread is compiling it, this waits for that thread.
        """
        found = self.get(key)
        if found is None:
            found = self.ensure_compiled(key, make)
            with self.lock:
                self.count(found)
        return found

    def ensure_compiled(self, key: Hashable, make: Callable[[], Executable]) -> Executable:
        """As `get_or_compile`, without counting a call."""
        with self.lock:
            found, making = self._by_key.get(key), self._compiling.get(key)
            if found is not None:
                return found
            mine = making is None
            if making is None:
                making = self._compiling[key] = Future()
        if not mine:
            return making.result()
        try:
            self.make_room()
            made = make()
        except BaseException as e:
            with self.lock:
                del self._compiling[key]
            making.set_exception(e)
            raise
        with self.lock:
            del self._compiling[key]
            self.make_room()
            self._by_key[key] = made
            made.used = tick()
            self.compilations += made.why != "file"
            self.compile_seconds += made.compile_seconds
        making.set_result(made)
        return made

    def compile_in_thread(self, key: Hashable, make: Callable[[], Executable]) -> None:
        """Compiles the executable of `key` in a new thread, unless it exists or is being compiled."""
        with self.lock:
            if key in self._by_key or key in self._compiling:
                return

        wide = has_x64()  # the setting of this thread; a new one starts with JAX's global settings

        def work() -> None:
            # A call that waits for this executable gets the same error; for all others it is reported.
            try:
                with jax.enable_x64(wide):
                    self.ensure_compiled(key, make)
            except Exception as e:
                fallback("an executable was not compiled in the background", e)

        threading.Thread(target=work, name="relax_eg compile").start()

    def is_compiled_or_compiling(self, key: Hashable) -> bool:
        """Whether the executable of `key` exists or is being compiled."""
        with self.lock:
            return key in self._by_key or key in self._compiling

    @property
    def mean_compile_seconds(self) -> float:
        """Mean wall time of a compilation; before the first, of those of the file, where they were compiled."""
        if not self.compilations:
            return 0.0 if self.loaded is None else self.loaded.compile_seconds
        return self.compile_seconds / self.compilations

    def items(self) -> list[tuple[Any, Executable]]:
        """Pairs of key and executable, by time of last use."""
        with self.lock:
            return self._by_use()
