"""Compiled programs: made once each, however many threads ask at the same time, and no more kept than a limit."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

import jax

Why = Literal["call", "named", "ahead", "hot"]


@dataclass(eq=False)
class Executable:
    """A compiled program of the operands at the places `donated`, which a call uses up, the others, and scalars. `at`:
    the sizes its buffers have; `exact`: they are those of the calls it serves; `why` it was made; `memory`: bytes of
    arguments, outputs and temporaries, which XLA tells before it ever runs; `calls` so far, `timed` ones among them,
    and the `seconds` of the fastest of these (None before)."""

    jitted: Any
    donated: tuple[int, ...]
    at: Mapping[str, int]
    exact: bool
    why: Why
    compile_seconds: float
    memory: tuple[int, int, int] | None
    calls: int = 0
    seconds: float | None = None
    timed: int = 0

    def run(self, operands: list[Any], *scalars: Any) -> Any:
        return self.jitted(*_parts(operands, self.donated), *scalars)

    def took(self, seconds: float) -> None:
        self.timed += 1
        self.seconds = seconds if self.seconds is None else min(self.seconds, seconds)


def compiled(
    function: Callable[..., Any],
    operands: list[Any],
    scalars: tuple[Any, ...],
    at: Mapping[str, int],
    exact: bool,
    why: Why,
    options: Mapping[str, str],
    donated: Sequence[int] = (),
) -> Executable:
    """`function` compiled for arrays like `operands` (`jax.ShapeDtypeStruct`s), and `scalars`. Arrays at `donated` give
    their memory away at a call."""
    started = time.perf_counter()
    donated = tuple(donated)
    places = (*donated, *(i for i in range(len(operands)) if i not in donated))

    def parted(given: list[Any], others: list[Any], *scalars: Any) -> Any:
        by_place = dict(zip(places, (*given, *others), strict=True))
        return function([by_place[i] for i in range(len(by_place))], *scalars)

    parted.__name__ = function.__name__
    jitted = jax.jit(parted, donate_argnums=0, compiler_options=dict(options) or None)
    # A call of `jitted` finds what is compiled here, and knows of JAX's settings that matter to it, which what
    # `compile` returns does not.
    analysis = jitted.lower(*_parts(operands, donated), *scalars).compile().memory_analysis()
    seconds = time.perf_counter() - started
    memory = None
    if analysis is not None:  # a platform need not tell
        memory = analysis.argument_size_in_bytes, analysis.output_size_in_bytes, analysis.temp_size_in_bytes
    return Executable(jitted, donated, dict(at), exact, why, seconds, memory)


def _parts(operands: list[Any], donated: Sequence[int]) -> tuple[list[Any], list[Any]]:
    """The arrays that a call may use up, and the others."""
    if not donated:
        return [], operands
    return [operands[i] for i in donated], [x for i, x in enumerate(operands) if i not in donated]


class Executables:
    """Executables by key, at most `limit`: beyond that, the one that was not used for longest goes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.evicted = 0
        self.compilations = 0
        self.compile_seconds = 0.0
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, Executable] = OrderedDict()
        self._making: dict[Hashable, Future[Executable]] = {}

    def get(self, key: Hashable) -> Executable | None:
        """The executable, for a call, which is counted; None where it is not there (yet)."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                found.calls += 1
            return found

    def made(self, key: Hashable, make: Callable[[], Executable]) -> Executable:
        """The executable, for a call, made now where it is not there. Who asks for one in the making waits for it."""
        found = self.get(key)
        if found is None:
            found = self.make(key, make)
            with self._lock:
                found.calls += 1
        return found

    def make(self, key: Hashable, make: Callable[[], Executable]) -> Executable:
        """As `made`, ahead of calls."""
        with self._lock:
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
            with self._lock:
                del self._making[key]
            making.set_exception(e)
            raise
        with self._lock:
            del self._making[key]
            self._kept[key] = made
            self.compilations += 1
            self.compile_seconds += made.compile_seconds
            dropped = [self._kept.popitem(last=False)[1] for _ in range(len(self._kept) - self.limit)]
            self.evicted += len(dropped)
        making.set_result(made)
        for old in dropped:
            old.jitted.clear_cache()
        return made

    def make_beside(self, key: Hashable, make: Callable[[], Executable]) -> None:
        """Makes it in a thread of its own, unless it is there or in the making."""
        with self._lock:
            if key in self._kept or key in self._making:
                return

        def work() -> None:
            # Who needs it meets the same error in the call that waits for it.
            try:
                self.make(key, make)
            except Exception:
                return

        threading.Thread(target=work, name="relax_eg compile").start()

    def is_due(self, key: Hashable) -> bool:
        """Whether it is there or in the making."""
        with self._lock:
            return key in self._kept or key in self._making

    @property
    def mean_compile_seconds(self) -> float:
        return self.compile_seconds / self.compilations if self.compilations else 0.0

    def items(self) -> list[tuple[Any, Executable]]:
        """Keys and executables, the one used last at the end."""
        with self._lock:
            return list(self._kept.items())
