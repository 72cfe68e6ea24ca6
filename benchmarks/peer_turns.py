"""Workers that take turns, each in a process of its own, for `benchmarks.peers`.

A worker reads requests from its standard input and answers on its standard output, a line of JSON each. The one whose
turn it is runs; the others are stopped, so that no thread of theirs spins meanwhile. This file imports nothing of this
project, because the environment of another library need not have JAX.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

LONGEST_TURN = 0.1  # chosen: seconds of a turn, of which the first call is not timed
SETTLING_SECONDS, SETTLING_CALLS = 2.0, 200  # limit: what runs before anything warm is timed

Call = Callable[[], Any]  # runs a program, waits for its results and returns them
Make = Callable[[str], Call]


def serve(make: Make, arrays: Callable[[Any], list[np.ndarray]], package: str) -> None:
    """Answers requests until the input ends. `make(name)` builds the program `name`; `arrays` reads its results;
    `package`: whose version is told."""
    out, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    call: Call | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "make" in request:
                started = time.perf_counter()
                call = make(request["make"])
                result = call()
                answer: dict[str, Any] = {"seconds": time.perf_counter() - started}
                np.savez(request["to"], *arrays(result))
                _settle(call)
            elif "turn" in request:
                assert call is not None
                answer = {"seconds": _turn(call)}
            else:
                peak = peak_memory()
                answer = {"peak": peak, "version": version(package)}
        except Exception as e:
            lines = str(e).strip().splitlines() or [""]
            answer = {"error": f"{type(e).__name__}: {lines[0][:200]}"}
        print(json.dumps(answer), file=out, flush=True)


def peak_memory() -> float:
    """MiB that this process had at most. Linux counts in `ru_maxrss` what the process had that started this one."""
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _settle(call: Call) -> None:
    end = time.perf_counter() + SETTLING_SECONDS
    for _ in range(SETTLING_CALLS):
        call()
        if time.perf_counter() > end:
            break


def _turn(call: Call) -> float:
    """The median seconds of the calls of a turn."""
    call()
    found: list[float] = []
    end = time.perf_counter() + LONGEST_TURN
    while not found or time.perf_counter() < end:
        started = time.perf_counter()
        call()
        found.append(time.perf_counter() - started)
    return float(np.median(found))


class Worker:
    """A process that serves, stopped while it is not asked.

    - `command`: its command line.
    - `log`: the file of what it prints.
    """

    def __init__(self, command: Sequence[str], log: Path, seconds: float) -> None:
        self._log, self._seconds, self._late = log, seconds, ""
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.open("w"), text=True,
            start_new_session=True,
        )  # fmt: skip

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer to a request; one with `error` if the process ended, or took too long."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        if process.poll() is not None:
            return {"error": self._late or self._last_words()}
        self._signal(signal.SIGCONT)
        watch = Watch(self._seconds, self.end)
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if watch.stop():
            self._late = f"no result in {self._seconds:g} s"
            return {"error": self._late}
        if not line:
            process.wait()
            return {"error": self._last_words()}
        self._signal(signal.SIGSTOP)
        return json.loads(line)

    def end(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError):  # it ended meanwhile
                os.killpg(self._process.pid, number)

    def _last_words(self) -> str:
        lines = [line for line in self._log.read_text().splitlines() if line.strip()]
        return lines[-1][:200] if lines else f"ended with {self._process.returncode}"


class Watch:
    """Calls `act` after `seconds` unless it is stopped before."""

    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self._fired = False

        def fire() -> None:
            self._fired = True
            act()

        self._timer = threading.Timer(seconds, fire)
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> bool:
        """Whether it had acted."""
        self._timer.cancel()
        return self._fired
