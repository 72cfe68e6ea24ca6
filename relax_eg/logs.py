"""Reports of the package's work: logging, progress, the stages as files, their seconds; and the debug options.

`RELAX_EG_DEBUG=1..4` logs to the logger `relax_eg`, and to stderr if the program has no logging of its own:

- 1: one line for each program;
- 2: stages with milliseconds, and phases of the search with nodes, matches and milliseconds;
- 3: also the rules that matched, JAX's own errors as causes of ours, and the tracebacks of plug-ins that do not start;
- 4: also every round.

`RELAX_EG_DUMP=folder` writes the stages of every program to the folder. `options` sets both, and the other debug
options, for a `with` block, and takes precedence over the environment. `clock` sums up the seconds of the stages.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ParamSpec, TypeVar

from relax_eg.argument_checks import FLAG, NONE, PATH, Kind, accepts
from relax_eg.contexts import holding
from relax_eg.errors import OptionError, RelaxEgError

log = logging.getLogger("relax_eg")
_SHARED = "Shared memory size limit exceeded"  # given: XLA's error for a kernel that takes more than there is
LEVELS = range(5)
_LONG = 5.0  # chosen: seconds of silent work after which a line says what is waited for

Progress = Callable[[str, int, int], None]  # phase, e-graph nodes, rule matches so far

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class _Clock:
    """The seconds of each stage.

    - `seconds`: the seconds of each stage that ended, without those of nested stages.
    - `inside`: for each stage that is running, the seconds of the stages that it called.
    """

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    inside: list[float] = field(default_factory=list[float])


_clock: ContextVar[_Clock | None] = ContextVar("relax_eg_clock", default=None)


@dataclass(frozen=True, slots=True)
class DebugOptions:
    """The debug options in force. An option that is None follows the environment, or else its default.

    The fields are the arguments of `options`.
    """

    level: int | None = None
    dump: Path | None = None
    cache: bool | None = None
    sharing: bool | None = None
    progress: Progress | None = None
    least_gain: float | None = None


_DEFAULTS = DebugOptions()
_options: ContextVar[DebugOptions] = ContextVar("relax_eg_options", default=_DEFAULTS)


@accepts(
    level=Kind(lambda x: x is None or (type(x) is int and x in LEVELS), f"a number from 0 to {LEVELS[-1]}"),
    dump=PATH | NONE,
    cache=FLAG | NONE,
    sharing=FLAG | NONE,
    progress=Kind(lambda x: x is None or callable(x), "a function (phase, nodes, matches)"),
    least_gain=Kind(lambda x: type(x) in (int, float) and 1 <= x < math.inf, "a number from 1 on") | NONE,
)
@contextmanager
def options(
    *,
    level: int | None = None,
    dump: str | Path | None = None,
    cache: bool | None = None,
    sharing: bool | None = None,
    progress: Progress | None = None,
    least_gain: float | None = None,
) -> Generator[DebugOptions]:
    """Sets debug options inside the `with` block; those left out stay as they are. OptionError for wrong values.

    - `level`: what is logged, 0 (nothing) to 4, in place of `RELAX_EG_DEBUG`.
    - `dump`: the stages of every program that is optimized are written to this folder, in place of `RELAX_EG_DUMP`.
    - `cache`: False: nothing is read from the disk cache or written to it; True: it is on, whatever `RELAX_EG_CACHE`
      says.
    - `sharing`: False: repeated blocks of a large program (the layers of a transformer) are optimized one by one.
    - `progress`: called with (phase, e-graph nodes, rule matches) during a search, and with ("measure at ...", index of
      the sizes, least number of sizes) while programs are timed.
    - `least_gain`: the predicted speedup of a call above which the chosen program replaces the one as written, in place
      of 1.05; 1: whatever the rules find is kept.
    """
    folder = None if dump is None else Path(dump)
    chosen = {"level": level, "dump": folder, "cache": cache, "sharing": sharing, "progress": progress,
              "least_gain": least_gain}  # fmt: skip
    made = replace(_options.get(), **{k: v for k, v in chosen.items() if v is not None})
    with holding(_options, made):
        yield made


def cache_is_on() -> bool:
    """Whether searches and what the first calls found are kept in the disk cache. OptionError for another value of
    `RELAX_EG_CACHE` than 0, 1 and machine."""
    return _cached() == "1"


def machine_is_kept() -> bool:
    """Whether what was measured of the machine is kept in the disk cache; OptionError as above."""
    return _cached() != "0"


def _cached() -> str:
    chosen = _options.get().cache
    if chosen is not None:
        return "1" if chosen else "0"
    text = os.environ.get("RELAX_EG_CACHE", "") or "1"
    if text not in ("0", "1", "machine"):
        raise OptionError(f"RELAX_EG_CACHE={text}: 0 (off), 1 (on) or machine (the machine's profile only) is accepted")
    return text


def sharing_is_on() -> bool:
    """Whether repeated blocks of a program are optimized once."""
    return _options.get().sharing is not False


def least_gain() -> float | None:
    """The predicted speedup above which a program replaces the one as written, where one was set."""
    return _options.get().least_gain


def report_progress(phase: str, nodes: int, matches: int) -> None:
    """Calls the `progress` function, if there is one."""
    progress = _options.get().progress
    if progress is not None:
        progress(phase, nodes, matches)


def level() -> int:
    """The debug level in force, 0 to 4. OptionError if `RELAX_EG_DEBUG` is not a number from 0 to 4."""
    chosen = _options.get().level
    if chosen is not None:
        return chosen
    text = os.environ.get("RELAX_EG_DEBUG", "") or "0"
    if text not in map(str, LEVELS):
        raise OptionError(f"RELAX_EG_DEBUG={text}: a number from 0 to {LEVELS[-1]} is accepted")
    return int(text)


@contextmanager
def clock() -> Generator[dict[str, float]]:
    """Yields the seconds spent in each stage inside the `with` block. Time in a nested stage counts for that stage
    alone."""
    mine = _Clock()
    with holding(_clock, mine):
        yield mine.seconds


def stage(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Returns a decorator of functions whose calls are the stage `name`, which is logged at level 2 and summed up by
    `clock`."""

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
                log_at(2, f"{name}: {1000 * own:.1f} ms")

        return run

    return decorate


def log_at(at: int, text: str) -> None:
    """Logs `text` if the debug level is `at` or higher."""
    if level() < at:
        return
    if not log.isEnabledFor(logging.INFO):
        log.setLevel(logging.INFO)
    _log_to_someone(logging.INFO, text)


def _log_to_someone(severity: int, text: str) -> None:
    """Logs `text`, to stderr where the program has no logging of its own."""
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("relax_eg: %(message)s"))
        log.addHandler(handler)
    log.log(severity, text)


@contextmanager
def notice_if_long(text: str) -> Generator[None]:
    """Logs `text` as a warning, unless the block ends within `_LONG` seconds, its progress is reported or work is
    logged: whoever waits knows for what."""
    if _options.get().progress is not None or level() > 0:
        yield
        return
    timer = threading.Timer(_LONG, _log_to_someone, (logging.WARNING, text))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # no thread is left behind


def shorten_plugin_errors() -> None:
    """Has JAX report in one line that a plug-in of it does not start. The traceback is shown from level 3 on."""
    logging.getLogger("jax._src.xla_bridge").addFilter(_without_traceback)


def _without_traceback(record: logging.LogRecord) -> bool:
    if record.exc_info and level() < 3:
        error = record.exc_info[1]
        record.msg = (
            f"{record.getMessage()}: {type(error).__name__}: {error} (JAX_PLATFORMS=cpu leaves plug-ins out, and "
            "RELAX_EG_DEBUG=3 shows the traceback)"
        )
        record.args = record.exc_info = None
    return True


def raise_if_exhausted(error: Exception) -> None:
    """Raises `error` if it reports that memory ran out, because no alternative needs less memory.

    The shared memory of a GPU's multiprocessor is no such memory, because another kernel takes less of it.
    """
    text = str(error)
    if isinstance(error, MemoryError) or ("RESOURCE_EXHAUSTED" in text and _SHARED not in text):
        raise error


def fallback(instead: str, error: Exception, warned: bool = False) -> str:
    """Reports that a slower alternative runs, and returns the reason as text.

    `instead` says what runs. An error of this package is logged at level 1, or becomes a warning if `warned`; any
    other error is unexpected, and becomes a warning. Raises `error` itself if it reports that memory ran out, because
    the alternative needs as much.
    """
    raise_if_exhausted(error)
    ours, why = isinstance(error, RelaxEgError), f"{type(error).__name__}: {error}"
    if ours and not warned:
        log_at(1, f"{instead}: {error}")
        return str(error)
    why = why if ours else f"internal {why}"
    warnings.warn(f"{instead}: {why}", stacklevel=2)
    return why


def dump_folder() -> Path | None:
    """The folder to which stages are written, or None if they are not written."""
    return _options.get().dump or (Path(os.environ["RELAX_EG_DUMP"]) if os.environ.get("RELAX_EG_DUMP") else None)


def dump(name: str, stages: Mapping[str, Callable[[], str]]) -> None:
    """Writes the text of each stage to `<folder>/<name>[_k]/<stage>`. Computes no text if no dump folder is set."""
    folder = dump_folder()
    if folder is None:
        return
    plain = re.sub(r"\W+", "_", name).strip("_") or "program"
    folder.mkdir(parents=True, exist_ok=True)
    place = _new_folder(folder, plain)
    for stage, text in stages.items():
        (place / stage).write_text(f"{text()}\n")
    log_at(1, f"stages of {name} are in {place}")


def _new_folder(parent: Path, name: str) -> Path:
    """Creates `parent/name`, or the first free `parent/name_k`; another process may dump the same program."""
    k = 0
    while True:
        place = parent / (f"{name}_{k}" if k else name)
        try:
            place.mkdir()
        except FileExistsError:
            k += 1
        else:
            return place
