"""The one place that talks to egglog, on its raw-text interface, for versions 13.2 to 14.

Text is fed in small chunks: egglog's parser is quadratic in the length of one text. A panic of the engine (a
BaseException) leaves here as a RelaxEgError; its words never reach a user.

Names of tables and functions do not end with a digit. The engine makes names of its own by a number behind them, for
each name from one on, so that the 14th of `fact_1` would be the fourth of `fact_11`.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import ExtensionFileLoader, PathFinder
from importlib.util import LazyLoader, find_spec, module_from_spec
from pathlib import Path
from typing import Any

from relax_eg.errors import ForkedError, RelaxEgError

_CHUNK = 24

Value = Any  # an engine value: hashable, equal within one e-graph
SExpr = Any  # an atom (str) or a list of SExpr

_LOADING = threading.Lock()
os.register_at_fork(before=_LOADING.acquire, after_in_parent=_LOADING.release, after_in_child=_LOADING.release)
_TOKEN = re.compile(r'\(|\)|"[^"]*"|[^\s()]+')


class EngineError(RelaxEgError, RuntimeError):
    """The e-graph engine refused what it was given: a bug of ours, reported without the engine's own words."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table: argument values, and the value they map to."""

    inputs: tuple[Value, ...]
    output: Value


def _bindings() -> Any:
    """egglog's compiled module, loaded when first asked for: what re-checks a certificate does without.

    The Python layer around it, which we do not use, takes longer to import than a small program takes to optimize. It
    is left to be imported when somebody asks anything of `egglog`.
    """
    with _LOADING:
        package = None if "egglog" in sys.modules else find_spec("egglog")
        if package is not None and package.loader is not None:
            inner = PathFinder.find_spec("egglog.bindings", package.submodule_search_locations)
            if inner is not None and isinstance(inner.loader, ExtensionFileLoader):
                loaded = sys.modules["egglog.bindings"] = module_from_spec(inner)
                inner.loader.exec_module(loaded)
                package.loader = LazyLoader(package.loader)
                outer = sys.modules["egglog"] = module_from_spec(package)
                package.loader.exec_module(outer)
                object.__getattribute__(outer, "__dict__")["bindings"] = loaded
        return sys.modules.get("egglog.bindings") or import_module("egglog.bindings")


_used_by: list[int] = []  # the process in which the engine's threads were started


def _refuse_forked() -> None:
    """ForkedError where the engine's threads are those of another process: they are not here, and would be waited for
    forever."""
    if not _used_by:
        _used_by.append(os.getpid())
    elif _used_by[0] != os.getpid():
        raise ForkedError(
            "this process was forked from one in which relax_eg had searched, and the threads of its e-graph engine "
            "are not here\n  accepted: processes that are started by themselves, as "
            "multiprocessing.get_context('spawn') starts them; or a fork before the first search"
        )


class Engine:
    """An e-graph. Bound to the thread that made it."""

    def __init__(self) -> None:
        _refuse_forked()
        self._graph: Any = _bindings().EGraph()
        self._unions: dict[tuple[str, ...], str] = {}  # rulesets -> the ruleset of all their rules
        self._seconds = 0.0  # spent in the engine

    def close(self) -> None:
        """Free the e-graph. The engine insists that this happens on the thread that made it."""
        self._graph = None

    def run(self, commands: Iterable[str]) -> list[Any]:
        """Run commands, each the text of one; returns what the engine answers."""
        answers: list[Any] = []
        batch: list[str] = []
        for c in commands:
            batch.append(c)
            if len(batch) == _CHUNK:
                answers += self._run_text("\n".join(batch))
                batch = []
        if batch:
            answers += self._run_text("\n".join(batch))
        return answers

    def _run_text(self, text: str) -> list[Any]:
        started = time.perf_counter()
        try:
            return self._graph.run_program(*self._graph.parse_program(text))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as e:  # PanicException derives from BaseException
            if type(e).__name__ not in ("PanicException", "EggSmolError"):
                raise
            raise EngineError(f"the e-graph engine stopped at: {text[:160]!r}") from e
        finally:
            self._seconds += time.perf_counter() - started

    def load(self, relation: str, rows: Iterable[tuple[int, ...]]) -> None:
        """Add rows to a relation of integers: by a file, which costs the engine a fiftieth of what commands do."""
        with tempfile.TemporaryDirectory(prefix="relax_eg_") as folder:
            path = Path(folder, "rows")
            path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
            self.run([f'(input {relation} "{path.as_posix()}")'])

    def step(self, *rulesets: str) -> dict[str, int]:
        """Run these rulesets once, all on the graph as it is now; the number of matches of each rule, by engine rule
        name. A rule matches what is new since it last ran, alone or with others."""
        if not rulesets:
            return {}
        name = rulesets[0]
        if len(rulesets) > 1:
            name = self._unions.get(rulesets, "")
            if not name:
                name = self._unions[rulesets] = f"union_{len(self._unions)}"
                self.run([f"(unstable-combined-ruleset {name} {' '.join(rulesets)})"])
        (answer,) = self.run([f"(run {name} 1)"])
        return dict(answer.report.num_matches_per_rule)

    def milliseconds(self) -> dict[str, float]:
        """Time spent in each rule so far, by engine rule name, as far as the engine tells: to about one millisecond."""
        (answer,) = self.run(["(print-stats)"])
        spent = {k: v.total_seconds() for k, v in answer.report.search_and_apply_time_per_rule.items()}
        # egglog 13.2 reports a thousandth of the time.
        scale = 1e6 if 1000 * sum(spent.values()) <= self._seconds else 1e3
        return {name: scale * s for name, s in spent.items() if s}

    def saturate(self, ruleset: str) -> None:
        """Run `ruleset` to a fixpoint inside the engine; only for rulesets that cannot grow without end."""
        self.run([f"(run-schedule (saturate {ruleset}))"])

    def sizes(self) -> dict[str, int]:
        """Rows of every table."""
        (answer,) = self.run(["(print-size)"])
        return dict(answer.sizes)

    def terms(self, table: str) -> list[SExpr]:
        """Rows of a relation without e-class arguments, as terms."""
        (answer,) = self.run([f"(print-function {table} 1000000)"])
        rows: list[SExpr] = []
        for line in str(answer).splitlines():
            if line.strip().startswith(f"({table} ") or line.strip() == f"({table})":
                rows.append(_parse(line))
        return rows

    def tables(self, names: Iterable[str] | None = None) -> dict[str, list[Row]]:
        """Every table, or those of these names that there are, with all rows. One deep copy of the e-graph."""
        frozen = self._graph.freeze().functions
        wanted = frozen if names is None else [name for name in names if name in frozen]
        return {name: [Row(tuple(r.inputs), r.output) for r in frozen[name].rows if not r.subsumed] for name in wanted}

    def integer(self, value: Value) -> int:
        return int(self._graph.value_to_i64(value))

    def text(self, value: Value) -> str:
        return str(self._graph.value_to_string(value))


def _parse(line: str) -> SExpr:
    """The first parenthesised term of `line`."""
    stack: list[list[SExpr]] = [[]]
    for token in _TOKEN.findall(line):
        if token == "(":
            stack.append([])
        elif token == ")":
            done = stack.pop()
            if len(stack) == 1:
                return done
            stack[-1].append(done)
        else:
            stack[-1].append(token)
    raise EngineError(f"unbalanced term: {line[:80]!r}")
