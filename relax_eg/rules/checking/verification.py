"""Verification of rules: in this process, or in worker processes with limits of time and memory.

The function of a rule, or its check, may run forever or allocate all memory. So `verify_in` checks every rule in a
process that can be stopped. Rules are not sent between processes: each worker loads the books, or the file, itself and
receives the numbers of rules.
"""

from __future__ import annotations

import math
import os
import runpy
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any, Literal

from relax_eg.argument_checks import Kind, accepts
from relax_eg.errors import RuleError
from relax_eg.rules.checking.check import proof_on, test_of, verdict_on, without_checks
from relax_eg.rules.checking.verdict import Report, Verdict
from relax_eg.rules.function_errors import load_error_message
from relax_eg.rules.rule import Rule
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schemas import Schema

SECONDS = 60.0  # limit: seconds of a processor for one rule; the slowest shipped rule takes about 5
_WAITING = 10  # limit: how many times these seconds a check may take by the clock
MEMORY = 4 << 30  # limit: bytes, in addition to those of the process after it has loaded the rules
_FIELDS = ("status", "samples", "seconds", "problem", "theory", "ranks", "untested", "every", "unproved")
_context = get_context("spawn")  # threads of JAX do not survive a fork
# Matrices are small here, and threads of several processes would spend more time waiting for each other than computing.
_ONE_THREAD: Mapping[str, str] = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1")


def verify_in(
    jobs: int,
    path: Path | None = None,
    seconds: float = SECONDS,
    memory: int = MEMORY,
    progress: Callable[[str, int, int], None] | None = None,
) -> Report:
    """Verifies the shipped books, or the file at `path`, in `jobs` processes, as `verify` does.

    A rule whose check takes more than `seconds` of a processor, or `memory` bytes, is refuted, because a rule that
    cannot be tested does not run. A verdict "refuted" has the counterexample as text only. `progress(rule, done, of)`
    is called before each rule. Raises RuleError if the file cannot be read.
    """
    with Verifiers(jobs, memory) as processes:
        return processes.verify(path, seconds, progress)


Way = Literal["verify", "prove", "test"]
# The ways to check a rule: test, then prove; prove, then test what is proved; test alone.
WAYS: Mapping[Way, Callable[[Any], Verdict]] = {"verify": verdict_on, "prove": proof_on, "test": test_of}


class Verifiers:
    """Processes that verify files of rules one after the other; a context, which ends them."""

    def __init__(self, jobs: int, memory: int = MEMORY) -> None:
        self._jobs, self._memory = jobs, memory
        self._workers: list[_Worker] = []

    def __enter__(self) -> Verifiers:
        return self

    def __exit__(self, *_: object) -> None:
        while self._workers:
            self._workers.pop().stop()

    def verify(
        self,
        path: Path | None = None,
        seconds: float = SECONDS,
        progress: Callable[[str, int, int], None] | None = None,
        way: Way = "verify",
    ) -> Report:
        """As `verify_in`, in one of the ways `WAYS`. A file of another content has another path."""
        rules, workers = _rules(path), self._workers
        waiting, found = deque(range(len(rules))), dict[int, dict[str, Any]]()
        while len(found) < len(rules):
            while waiting and len(workers) < min(self._jobs, len(rules)):
                workers.append(_Worker(self._memory))
            for w in [w for w in workers if w.number is None][: len(waiting)]:
                w.start(path, waiting.popleft(), seconds, way)
                if progress is not None:
                    progress(rules[w.number or 0].name, len(found), len(rules))
            busy = [w for w in workers if w.number is not None]
            left = min(w.deadline for w in busy) - time.monotonic()
            ready = connection.wait([w.pipe for w in busy], max(left, 0.0))
            for w in busy:
                number = w.number
                assert number is not None
                if w.pipe in ready:
                    answer = w.receive()
                    found[number] = answer or _stopped(w.exit_text(self._memory))
                elif w.is_out_of_time():
                    answer = None
                    found[number] = _stopped(f"its check was stopped after {seconds:g} s")
                else:
                    continue
                w.number = None
                if answer is None:
                    w.stop()
                    workers.remove(w)
        return Report(tuple(Verdict(rule, **found[i]) for i, rule in enumerate(rules)))


def _are_rules(x: Any) -> bool:
    if isinstance(x, (list, tuple)):
        return all(isinstance(r, (Rule, Schema)) for r in x)  # type: ignore[reportUnknownVariableType]
    return isinstance(x, (Rule, Schema, RuleSet, str, Path)) or (isinstance(x, Iterable) and iter(x) is x)  # type: ignore[reportUnknownArgumentType]


@accepts(rules=Kind(_are_rules, "a rule, a RuleSet, a list of rules, or the path of a Python file"))
def verify(rules: Rule | Schema | RuleSet | Iterable[Rule | Schema] | str | Path) -> Report:
    """Tests one rule, a set, or every `RuleSet` of a Python file from scratch, and tries to prove the rules that pass.
    It takes no verdict from memory, but keeps its verdicts there, so that reports name the rules that are proved."""
    if isinstance(rules, (str, Path)):
        chosen: Iterable[Rule | Schema] = rules_of(Path(rules))
    elif isinstance(rules, RuleSet):
        chosen = (*rules, *rules.schemas)
    else:
        chosen = (rules,) if isinstance(rules, (Rule, Schema)) else rules
    return Report(tuple(verdict_on(r) for r in chosen))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is invalid for a file
        return False


def rules_of(path: Path) -> list[Rule | Schema]:
    """The rules of all sets that a Python file makes, without testing them. Raises RuleError if the file cannot be
    loaded or makes no RuleSet."""
    if not _is_file(path):
        raise RuleError(f"no file of rules at {path}")
    try:
        with without_checks():
            names = runpy.run_path(str(path))
    except RuleError:
        raise
    except Exception as e:
        raise RuleError(load_error_message(path, e)) from e
    sets = [v for v in names.values() if isinstance(v, RuleSet)]
    if not sets:
        raise RuleError(f"{path}: the file makes no RuleSet")
    # A set may be the sum of others; each rule is listed once.
    return list({id(r): r for s in sets for r in (*s, *s.schemas)}.values())


@contextmanager
def _environment(more: Mapping[str, str]) -> Generator[None]:
    """Context in which `more` is in the environment of started processes. They inherit the environment of this process,
    so it is changed too, and restored afterwards; other variables are not touched."""
    before = {name: os.environ.get(name) for name in more}
    os.environ.update(more)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _stopped(why: str) -> dict[str, Any]:
    return {"status": "refuted", "samples": 0, "problem": f"  {why}; a rule runs only where it can be tested"}


class _Worker:
    """A process that checks one rule at a time.

    - `number`: number of the rule that it checks; None if it is idle.
    - `deadline`: time at which it may have had the seconds of its check, in monotonic seconds.
    - `pipe`: this process's end of the pipe to it.
    """

    def __init__(self, memory: int) -> None:
        self.number: int | None = None
        self.deadline = self._latest = self._enough = 0.0
        self.pipe, theirs = _context.Pipe()
        self._process = _context.Process(target=_work, args=(theirs, memory), daemon=True)
        with _environment(_ONE_THREAD):
            self._process.start()
        theirs.close()
        self._loaded: Path | bool | None = False  # the file that it has loaded; False for none

    def start(self, path: Path | None, number: int, seconds: float, way: Way) -> None:
        """Starts the check of a rule of a file, or of the books, with a limit of `seconds`."""
        with suppress(EOFError, OSError):
            if self._loaded != path:  # the time to load the rules does not count
                self.pipe.send(("load", path, ""))
                self.pipe.recv()
                self._loaded = path
            self.pipe.send(("check", number, way))
        now = time.monotonic()
        self.number, self.deadline, self._latest = number, now + seconds, now + _WAITING * seconds
        self._enough = self._processor_seconds() + seconds

    def is_out_of_time(self) -> bool:
        """Whether the check has had its seconds of a processor, for which a busy machine lets it wait."""
        now, left = time.monotonic(), self._enough - self._processor_seconds()
        if now < self.deadline or (left > 0.0 and now < self._latest):
            self.deadline = max(self.deadline, now + left)
            return False
        return True

    def _processor_seconds(self) -> float:
        """Seconds that the process has computed; infinite where the system does not tell."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # its utime and stime
        except (OSError, ValueError, IndexError):
            return math.inf

    def receive(self) -> dict[str, Any] | None:
        """The fields of the verdict; None if the process has ended."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            return None

    def exit_text(self, memory: int) -> str:
        """The text of a verdict on a rule whose check ended the process."""
        self._process.join(1.0)
        code = self._process.exitcode
        return f"its check ended the process (exit code {code}), at most {memory >> 20} MiB of memory being allowed"

    def stop(self) -> None:
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _rules(path: Path | None) -> list[Rule | Schema]:
    if path is not None:
        return rules_of(path)
    from relax_eg.rules.book import everything

    return [*everything]


def _work(pipe: Any, memory: int) -> None:
    """Loads each file that it gets, or the books for None, and answers each number of a rule of it, and the way to
    check it, with a verdict, until the pipe is closed."""
    rules: list[Rule | Schema] = []
    is_limited = False
    with suppress(EOFError, OSError):
        while True:
            what, value, way = pipe.recv()
            if what == "load":
                rules = _rules(value)
                if not is_limited:
                    _limit(memory)
                is_limited = True
                pipe.send("ready")
                continue
            try:
                verdict = WAYS[way](rules[value])
                pipe.send({f: getattr(verdict, f) for f in _FIELDS})
            except MemoryError:
                pipe.send(_stopped(f"its check asked for more than {memory >> 20} MiB of memory"))


def _limit(memory: int) -> None:
    """Limits this process to `memory` bytes more than it has now, if the system supports such limits."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory, resource.RLIM_INFINITY))
    except (ImportError, OSError, ValueError):
        return
