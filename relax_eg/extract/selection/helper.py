"""A second process that improves choices while the first one computes bounds.

Both processes split the problem into the same parts, so a number identifies a part. They exchange lines of JSON: first
the problem, then `[part, choice]` whenever one process has a better choice than the other knows. The helper ends when
its input ends.

    python -m relax_eg.extract.selection.helper
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from queue import Empty, SimpleQueue
from typing import IO, Any

from relax_eg.extract.selection.problem import Problem
from relax_eg.extract.selection.solve import Partner, SolverEffort, improver_of, initial_choice, ordered_parts

_TURN = 10.0  # limit: seconds of one step, after which its result is sent
_SEEDS = 1000  # chosen: difference between the random seeds of the two processes
_IDLE = 0.05  # chosen: seconds that an idle helper waits before it looks for messages again


class Helper(Partner):
    """The first process's end of the connection to a helper."""

    def __init__(self, lines: IO[str], queue: SimpleQueue[tuple[int, list[int]]], task: Mapping[str, Any]) -> None:
        self._queue = queue
        self._received: dict[int, list[int]] = {}
        # The helper may read late, so a thread sends the messages without blocking the search.
        self._outbox: SimpleQueue[Any] = SimpleQueue()
        self._outbox.put(task)
        threading.Thread(target=self._send_all, args=(lines,), daemon=True).start()

    def _send_all(self, lines: IO[str]) -> None:
        with suppress(OSError, ValueError):  # the helper ended, which costs only time
            while (message := self._outbox.get()) is not None:
                _send(lines, message)
            lines.close()

    def received(self, part: int) -> list[int] | None:
        while True:
            try:
                number, choice = self._queue.get_nowait()
            except Empty:
                return self._received.get(part)
            self._received[number] = choice

    def send(self, part: int, choice: Sequence[int] | None) -> None:
        self._outbox.put([part, choice])

    def close(self) -> None:
        """Ends the messages to the helper."""
        self._outbox.put(None)


@contextmanager
def start_helper(problem: Problem, seed: Sequence[int], effort: SolverEffort) -> Generator[Partner | None]:
    """Starts a helper for `problem` with the choice `seed`; it ends with the block. None if no process can be
    started."""
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "relax_eg.extract.selection.helper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    except OSError:
        yield None
        return
    assert process.stdin is not None and process.stdout is not None
    queue: SimpleQueue[tuple[int, list[int]]] = SimpleQueue()
    _listen(process.stdout, lambda message: queue.put((message[0], message[1])), lambda: None)
    task = {"reads": problem.reads, "costs": problem.costs, "roots": problem.roots}
    helper = Helper(process.stdin, queue, {**task, "seed": seed, "effort": asdict(effort)})
    try:
        yield helper
    finally:
        helper.close()
        process.kill()
        process.wait()


def _send(lines: IO[str], message: Any) -> None:
    lines.write(json.dumps(message) + "\n")
    lines.flush()


def _listen(lines: IO[str], on_message: Callable[[Any], None], at_end: Callable[[], None]) -> None:
    """Starts a thread that passes each incoming message to `on_message`, and calls `at_end` after the last."""

    def run() -> None:
        try:
            for line in lines:
                on_message(json.loads(line))
        except ValueError:  # closed, or cut off in the middle of a line
            pass
        at_end()

    threading.Thread(target=run, daemon=True).start()


def main() -> None:
    """Improves every part in turn until the input ends."""
    # Output of libraries must not mix with the messages, so it goes to stderr.
    messages = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    first = sys.stdin.readline()
    if not first:
        return
    task = json.loads(first)
    queue: SimpleQueue[tuple[int, list[int] | None]] = SimpleQueue()
    _listen(sys.stdin, lambda message: queue.put((message[0], message[1])), lambda: os._exit(0))
    effort = SolverEffort(**task["effort"])
    effort = replace(effort, seed=effort.seed + _SEEDS)
    reads = [[tuple(r) for r in row] for row in task["reads"]]
    _, parts = ordered_parts(Problem(reads, task["costs"], tuple(task["roots"])))
    improvers = {
        i: improver_of(part.problem, initial_choice(part.problem, part.project(task["seed"]))[0], effort)
        for i, part in reversed(list(enumerate(parts)))
    }
    known = dict.fromkeys(improvers, float("inf"))
    while True:
        for i, improver in list(improvers.items()):
            while not queue.empty():
                number, choice = queue.get()
                if choice is None:
                    improvers.pop(number, None)
                elif number in improvers:
                    improvers[number].offer(choice)
                    known[number] = improvers[number].cost
            if i not in improvers:
                continue
            improver.step(time.monotonic() + _TURN)
            if improver.cost < known[i]:
                known[i] = improver.cost
                _send(messages, [i, improver.best])
        if not improvers:
            time.sleep(_IDLE)


if __name__ == "__main__":
    main()
