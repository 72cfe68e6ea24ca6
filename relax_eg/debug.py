"""Looking inside: how much `optimize` tells of its work, and where it leaves its stages as text.

`RELAX_EG_DEBUG=1..4` logs to the logger `relax_eg`, and to stderr where the program has no logging of its own: 1
one line a program; 2 stages with milliseconds, phases of the search with nodes, rounds and milliseconds; 3 also the
rules that matched, and JAX's own errors as causes of ours; 4 also every round. `RELAX_EG_DUMP=folder` leaves the
stages of every program there. `debug` and `dump_to` do the same for a `with` block and win over the environment;
`clock` adds up the seconds of the stages.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import time
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

from relax_eg.errors import OptionError, RelaxEgError

log = logging.getLogger("relax_eg")
LEVELS = range(5)

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class _Clock:
    """Seconds by stage; `inside`: for each stage that runs now, what the stages it called took."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    inside: list[float] = field(default_factory=list[float])


_clock: ContextVar[_Clock | None] = ContextVar("relax_eg_clock", default=None)
_level: ContextVar[int | None] = ContextVar("relax_eg_debug", default=None)
_folder: ContextVar[Path | None] = ContextVar("relax_eg_dump", default=None)


def level() -> int:
    """The debug level in force, 0 to 4. OptionError where the environment's is no such number."""
    chosen = _level.get()
    if chosen is not None:
        return chosen
    text = os.environ.get("RELAX_EG_DEBUG", "") or "0"
    if text not in map(str, LEVELS):
        raise OptionError(f"RELAX_EG_DEBUG={text}: a number from 0 to {LEVELS[-1]} is accepted")
    return int(text)


@contextmanager
def debug(at: int) -> Generator[None]:
    """Debug level `at`, 0 to 4, inside the `with` block."""
    if at not in LEVELS:
        raise OptionError(f"debug({at!r}): a number from 0 to {LEVELS[-1]} is accepted")
    token = _level.set(at)
    try:
        yield
    finally:
        _level.reset(token)


@contextmanager
def dump_to(folder: str | Path) -> Generator[Path]:
    """Leave the stages of every program optimized inside the `with` block in `folder`."""
    path = Path(folder)
    token = _folder.set(path)
    try:
        yield path
    finally:
        _folder.reset(token)


@contextmanager
def clock() -> Generator[dict[str, float]]:
    """Seconds spent in each stage inside the `with` block; what a stage spends in another is the other's alone."""
    mine = _Clock()
    token = _clock.set(mine)
    try:
        yield mine.seconds
    finally:
        _clock.reset(token)


def stage(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a function whose calls are stage `name` of the work: told at level 2, added up by `clock`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            clocked = _clock.get()
            if clocked is None and level() < 2:
                return function(*args, **kwargs)
            clocked = clocked or _Clock()
            clocked.inside.append(0.0)
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                whole = time.perf_counter() - started
                own = whole - clocked.inside.pop()
                clocked.seconds[name] = clocked.seconds.get(name, 0.0) + own
                if clocked.inside:
                    clocked.inside[-1] += whole
                tell(2, f"{name}: {1000 * own:.1f} ms")

        return run

    return decorate


def tell(at: int, text: str) -> None:
    """Log `text` where the debug level is `at` or more."""
    if level() < at:
        return
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("relax_eg: %(message)s"))
        log.addHandler(handler)
    if not log.isEnabledFor(logging.INFO):
        log.setLevel(logging.INFO)
    log.info(text)


def fallback(instead: str, error: Exception) -> str:
    """Tells that something slower runs `instead`, and why: for an error of ours in the log, for any other as a warning,
    since nobody expected it. The reason as text. `error` itself is raised where memory ran out: what is slower does not
    need less."""
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        raise error
    if isinstance(error, RelaxEgError):
        tell(1, f"{instead}: {error}")
        return str(error)
    why = f"internal {type(error).__name__}: {error}"
    warnings.warn(f"{instead}: {why}", stacklevel=2)
    return why


def dump_folder() -> Path | None:
    """Where stages are to be left; None where nowhere."""
    return _folder.get() or (Path(os.environ["RELAX_EG_DUMP"]) if os.environ.get("RELAX_EG_DUMP") else None)


def dump(name: str, stages: Mapping[str, Callable[[], str]]) -> None:
    """Write each stage's text to `<folder>/<name>[_k]/<stage>`. Where no folder for dumps is set, none is made."""
    folder = dump_folder()
    if folder is None:
        return
    plain = re.sub(r"\W+", "_", name).strip("_") or "program"
    folder.mkdir(parents=True, exist_ok=True)
    place = _new_folder(folder, plain)
    for stage, text in stages.items():
        (place / stage).write_text(f"{text()}\n")
    tell(1, f"stages of {name} are in {place}")


def _new_folder(parent: Path, name: str) -> Path:
    """`parent/name`, or the first free `parent/name_k`, made now: others may be dumping the same program."""
    k = 0
    while True:
        place = parent / (f"{name}_{k}" if k else name)
        try:
            place.mkdir()
        except FileExistsError:
            k += 1
        else:
            return place
