"""What settles, on the first calls of a function under `jit`, whether the optimized function is faster."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relax_eg.backend.calls.optimized import Optimized
from relax_eg.driver.clock.outcomes import Outcomes
from relax_eg.driver.clock.settling import Call, Key, Settle, Settling
from relax_eg.driver.jitting.background import Background
from relax_eg.driver.jitting.thread_marks import is_marked, marked
from relax_eg.driver.jitting.varying import OtherSizesError
from relax_eg.extract.report import AS_WRITTEN


@dataclass
class JitContestant:
    """A program that takes turns (`driver.clock.settling`).

    - `label`, `predicted`: its name, and its predicted seconds of a call.
    - `run`: runs calls of it; None: `jitted` does.
    - `jitted`: the `jax.jit` of the function as written; None for the optimized function.
    - `local`: where it is marked that the function as written may be traced.
    - `search`: makes what calls with such arguments, which have this key, need; for the optimized function.
    """

    label: str
    run: Call | None
    jitted: Any
    local: Any
    predicted: float = 0.0
    search: Callable[[tuple[Any, ...], dict[str, Any], Any], None] | None = None

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.run is not None:
            return self.run(args, kwargs)
        with marked(self.local, "as_written"):
            return self.jitted(*args, **kwargs)

    def compile(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any) -> None:
        if self.search is not None:
            self.search(args, kwargs, key)
            return
        with marked(self.local, "as_written"):
            self.jitted.lower(*args, **kwargs).compile()


def refusing(fn: Callable[..., Any], local: Any) -> Callable[..., Any]:
    """`fn` for `jax.jit`, which traces it where `local` has the mark "as_written", and else raises OtherSizesError: for
    other sizes than those of the marked calls, and under other settings of JAX."""

    @functools.wraps(fn)
    def as_written(*args: Any, **kwargs: Any) -> Any:
        if not is_marked(local, "as_written"):
            raise OtherSizesError
        return fn(*args, **kwargs)

    return as_written


def settling_of_jit(
    run: Call,
    written: Any,
    local: Any,
    settle: Settle,
    key: Key,
    latest: Callable[[], Optimized | None],
    settled: Callable[[Any], None],
    search: Callable[[tuple[Any, ...], dict[str, Any], Any], None],
    background: Background,
) -> Settling[JitContestant]:
    """What serves the calls of a function under `jit` until it is known which of the two programs is faster.

    - `run`: runs calls of the optimized function.
    - `written`: the `jax.jit` of the function as written, `refusing` other sizes.
    - `latest`: the function that was optimized last.
    - `settled`: told the `jax.jit` that runs later calls, `written`; None: the optimized function does.
    - `search`: makes what calls of the optimized function with such arguments, which have this key, need.
    - `background`: where it is searched for.
    """

    ours = JitContestant("by price", run, None, local, search=search)
    theirs = JitContestant(AS_WRITTEN, None, written, local)

    def doubts() -> bool:
        best = latest()
        if best is None or best.solution.program.effectful or best.variants[0].chosen is None:
            return False
        ours.predicted, theirs.predicted = best.report.after.seconds, best.report.before.seconds
        return settle.doubts([best.report])

    def known() -> Outcomes | None:
        best = latest()
        return None if best is None else Outcomes(best.solution)

    return Settling(
        ours, theirs, settle, key, lambda *_: {}, lambda winner: settled(winner.jitted), doubts=doubts, known=known,
        begins_as_written=background.is_on, start=background.start if background.is_on else None,
    )  # fmt: skip
