"""The only interface to egglog. It uses egglog's raw-text interface, versions 13.2 to 14.

Text is passed in small chunks, because egglog's parser is quadratic in the length of one text. A panic of the engine (a
BaseException) is raised here as a RelaxEgError; the engine's own message never reaches a user.

Names of tables and functions must not end with a digit. The engine derives names by appending a number to them, counted
from 1 for each name, so the 14th name derived from `fact_1` would equal the fourth derived from `fact_11`.
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
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from relax_eg.errors import ForkedError, RelaxEgError

_CHUNK = 24  # chosen: commands that the engine reads as one text

Value = Any  # an engine value: hashable, equal within one e-graph
SExpr = Any  # an atom (str) or a list of SExpr

_MODULE_NAME = "relax_eg.egraph.bindings"  # must end with `bindings`, because the extension's entry point does
_loaded: list[Any] = []
_LOADING = threading.Lock()
os.register_at_fork(before=_LOADING.acquire, after_in_parent=_LOADING.release, after_in_child=_LOADING.release)
_TOKEN = re.compile(r'\(|\)|"[^"]*"|[^\s()]+')


class EngineError(RelaxEgError, RuntimeError):
    """The e-graph engine rejected its input. That is a bug of relax_eg; the engine's own message is not shown."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a table: argument values, and the value they map to."""

    inputs: tuple[Value, ...]
    output: Value


def _bindings() -> Any:
    """Returns egglog's compiled module, loaded on the first call, because checking a certificate does not need it.

    It is loaded under a name of its own, in 10 ms. `import egglog.bindings` would take 200 ms of a processor for
    egglog's Python layer, which is not used here. Nothing of `egglog` is changed: code that imports it gets all of it,
    with the same classes.
    """
    with _LOADING:
        loaded = sys.modules.get("egglog.bindings")
        if loaded is not None or _loaded:
            return loaded or _loaded[0]
        package = find_spec("egglog")
        places = None if package is None else package.submodule_search_locations
        found = None if places is None else PathFinder.find_spec("egglog.bindings", places)
        if found is None or found.origin is None or not isinstance(found.loader, ExtensionFileLoader):
            return import_module("egglog.bindings")
        spec = spec_from_file_location(_MODULE_NAME, found.origin)
        assert spec is not None and spec.loader is not None  # an extension module has a loader
        loaded = module_from_spec(spec)
        spec.loader.exec_module(loaded)
        _loaded.append(loaded)
        return loaded


_engine_process: list[int] = []  # id of the process in which the engine's threads were started; empty before that


def _refuse_forked() -> None:
    """Raises ForkedError if the engine's threads were started in another process: they do not exist in this one, and
    the engine would wait for them forever."""
    if not _engine_process:
        _engine_process.append(os.getpid())
    elif _engine_process[0] != os.getpid():
        raise ForkedError(
            "this process was forked from one in which relax_eg had searched, and the threads of its e-graph engine "
            "are not here\n  accepted: processes that are started by themselves, as "
            "multiprocessing.get_context('spawn') starts them; or a fork before the first search"
        )


class Engine:
    """An e-graph. It is bound to the thread that made it."""

    def __init__(self) -> None:
        _refuse_forked()
        self._graph: Any = _bindings().EGraph()
        self._unions: dict[tuple[str, ...], str] = {}  # rulesets -> the ruleset that combines them
        self._seconds = 0.0  # time spent in the engine

    def close(self) -> None:
        """Frees the e-graph. The engine requires that this happens on the thread that made it."""
        self._graph = None

    def run(self, commands: Iterable[str]) -> list[Any]:
        """Runs `commands`, each a text, and returns the engine's answers."""
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
        """Adds rows to a relation of integers. They are passed in a file, which costs the engine a fiftieth of what
        commands cost. No file is written for no rows, which most programs have of some relation."""
        lines = ["\t".join(map(str, row)) + "\n" for row in rows]
        if not lines:
            return
        with tempfile.TemporaryDirectory(prefix="relax_eg_") as folder:
            path = Path(folder, "rows")
            path.write_text("".join(lines))
            self.run([f'(input {relation} "{path.as_posix()}")'])

    def step(self, *rulesets: str) -> dict[str, int]:
        """Runs these rulesets once, all on the present graph, and returns the number of matches of each rule, by engine
        rule name. A rule matches only rows that are new since it last ran, alone or combined with other rulesets."""
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
        """Returns the time spent in each rule so far, by engine rule name, to about one millisecond (the engine's
        precision)."""
        (answer,) = self.run(["(print-stats)"])
        spent = {k: v.total_seconds() for k, v in answer.report.search_and_apply_time_per_rule.items()}
        # egglog 13.2 reports a thousandth of the time.
        scale = 1e6 if 1000 * sum(spent.values()) <= self._seconds else 1e3
        return {name: scale * s for name, s in spent.items() if s}

    def saturate(self, ruleset: str) -> None:
        """Runs `ruleset` to a fixpoint inside the engine. Its growth must be finite."""
        self.run([f"(run-schedule (saturate {ruleset}))"])

    def sizes(self) -> dict[str, int]:
        """Returns the number of rows of every table."""
        (answer,) = self.run(["(print-size)"])
        return dict(answer.sizes)

    def terms(self, table: str) -> list[SExpr]:
        """Returns the rows of a relation without e-class arguments, as terms."""
        (answer,) = self.run([f"(print-function {table} 1000000)"])
        rows: list[SExpr] = []
        for line in str(answer).splitlines():
            if line.strip().startswith(f"({table} ") or line.strip() == f"({table})":
                rows.append(_parse(line))
        return rows

    def tables(self, names: Iterable[str] | None = None) -> dict[str, list[TableRow]]:
        """Returns the rows of every table, or of the existing ones among `names`. Copies the e-graph once."""
        frozen = self._graph.freeze().functions
        wanted = frozen if names is None else [name for name in names if name in frozen]
        return {
            name: [TableRow(tuple(r.inputs), r.output) for r in frozen[name].rows if not r.subsumed] for name in wanted
        }

    def integer(self, value: Value) -> int:
        return int(self._graph.value_to_i64(value))

    def text(self, value: Value) -> str:
        return str(self._graph.value_to_string(value))


def _parse(line: str) -> SExpr:
    """Returns the first parenthesised term of `line`."""
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
