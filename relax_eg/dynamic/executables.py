"""Compiled programs: made once each, however many threads ask at the same time, and no more kept than a limit."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal

import jax

from relax_eg.backend.width import has_x64

Why = Literal["call", "named", "ahead", "hot"]


class Tally:
    """Counts what threads do, without a lock where they do it: `tick()` is one step of C."""

    def __init__(self) -> None:
        self.tick = itertools.count().__next__
        self._reads, self._lock = 0, threading.Lock()

    @property
    def total(self) -> int:
        """Ticks so far."""
        with self._lock:  # reading is a tick, too
            self._reads += 1
            return self.tick() - self._reads + 1


@dataclass(eq=False)
class Executable:
    """A compiled program. `run`: `jax.jit`'s own function, which knows no other arguments. `at`: the sizes its buffers
    have; `exact`: they are those of the calls it serves; `why` it was made; `memory`: bytes of arguments, outputs and
    temporaries, which XLA tells before it ever runs; `options`: whether XLA was told any; `tally`: of calls that
    went to it straight (`Sized.straight`), `counted` all others; `timed` ones among these, and the `seconds` of the
    fastest (None before); `used`: tells which was used last, with as many straight calls
    as are `noted`; `dropped`: it had to go."""

    run: Any
    at: Mapping[str, int]
    exact: bool
    why: Why
    compile_seconds: float
    memory: tuple[int, int, int] | None
    options: bool = False
    tally: Tally = field(default_factory=Tally)
    counted: int = 0
    seconds: float | None = None
    timed: int = 0
    used: int = 0
    noted: int = 0
    dropped: bool = False

    @property
    def calls(self) -> int:
        """Calls so far."""
        return self.counted + self.tally.total

    def took(self, seconds: float) -> None:
        self.timed += 1
        self.seconds = seconds if self.seconds is None else min(self.seconds, seconds)


def compiled(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    named: Mapping[str, Any],
    at: Mapping[str, int],
    exact: bool,
    why: Why,
    options: Mapping[str, str],
    **donated: Any,
) -> Executable:
    """`function` compiled for `arguments` and `named` ones like these (`jax.ShapeDtypeStruct`s). `donated`: the options
    of `jax.jit` that say which of them give their memory away at a call."""
    started = time.perf_counter()
    jitted = jax.jit(function, compiler_options=dict(options) or None, **donated)
    # A call of `jitted` finds what is compiled here, and knows of JAX's settings that matter to it, which what
    # `compile` returns does not.
    analysis = jitted.lower(*arguments, **named).compile().memory_analysis()
    seconds = time.perf_counter() - started
    memory = None
    if analysis is not None:  # a platform need not tell
        memory = analysis.argument_size_in_bytes, analysis.output_size_in_bytes, analysis.temp_size_in_bytes
    return Executable(jitted, dict(at), exact, why, seconds, memory, bool(options))


class Executables:
    """Executables by key, at most `limit`: beyond that, the one that was not used for longest goes. `lock`: whoever
    counts has it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.evicted = 0
        self.compilations = 0
        self.compile_seconds = 0.0
        self.lock = threading.Lock()
        self._now = 0  # grows with each use
        self._kept: dict[Hashable, Executable] = {}
        self._making: dict[Hashable, Future[Executable]] = {}

    def get(self, key: Hashable) -> Executable | None:
        """The executable, for a call, which is counted; None where it is not there (yet)."""
        with self.lock:
            found = self._kept.get(key)
            if found is not None:
                self.count(found)
            return found

    def count(self, executable: Executable) -> None:
        """Counts a call, for who has the lock."""
        executable.counted += 1
        self._now += 1
        executable.used = self._now

    def _by_use(self) -> list[tuple[Any, Executable]]:
        """Keys and executables, the one used last at the end: of straight calls it is known whether there were any
        since this was asked before, not when."""
        found = sorted(self._kept.items(), key=lambda item: item[1].used)
        for _, executable in found:
            straight = executable.tally.total
            if straight != executable.noted:
                self._now += 1
                executable.used, executable.noted = self._now, straight
        return sorted(found, key=lambda item: item[1].used)

    def made(self, key: Hashable, make: Callable[[], Executable]) -> Executable:
        """The executable, for a call, made now where it is not there. Who asks for one in the making waits for it."""
        found = self.get(key)
        if found is None:
            found = self.make(key, make)
            with self.lock:
                self.count(found)
        return found

    def make(self, key: Hashable, make: Callable[[], Executable]) -> Executable:
        """As `made`, ahead of calls."""
        with self.lock:
            found, making = self._kept.get(key), self._making.get(key)
            if found is not None:
                return found
            mine = making is None
            if making is None:
                making = self._making[key] = Future()
        if not mine:
            return making.result()
        try:
            made = make()
        except BaseException as e:
            with self.lock:
                del self._making[key]
            making.set_exception(e)
            raise
        with self.lock:
            del self._making[key]
            dropped = [self._kept.pop(k) for k, _ in self._by_use()[: max(len(self._kept) + 1 - self.limit, 0)]]
            self._kept[key] = made
            self._now += 1
            made.used = self._now
            self.compilations += 1
            self.compile_seconds += made.compile_seconds
            self.evicted += len(dropped)
            for old in dropped:
                old.dropped = True
        making.set_result(made)
        for old in dropped:
            old.run.clear_cache()
        return made

    def make_beside(self, key: Hashable, make: Callable[[], Executable]) -> None:
        """Makes it in a thread of its own, unless it is there or in the making."""
        with self.lock:
            if key in self._kept or key in self._making:
                return

        wide = has_x64()  # of this thread; another begins with JAX's settings for all

        def work() -> None:
            # Who needs it meets the same error in the call that waits for it.
            try:
                with jax.enable_x64(wide):
                    self.make(key, make)
            except Exception:
                return

        threading.Thread(target=work, name="relax_eg compile").start()

    def is_due(self, key: Hashable) -> bool:
        """Whether it is there or in the making."""
        with self.lock:
            return key in self._kept or key in self._making

    @property
    def mean_compile_seconds(self) -> float:
        return self.compile_seconds / self.compilations if self.compilations else 0.0

    def items(self) -> list[tuple[Any, Executable]]:
        """Keys and executables, the one used last at the end."""
        with self.lock:
            return self._by_use()
