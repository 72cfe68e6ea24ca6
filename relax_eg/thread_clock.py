"""Processor time of a thread, cheap enough to be asked for at every step of a search or proof."""

from __future__ import annotations

import threading
import time

_RESOLUTION = 1e-3  # chosen: seconds for which a reading is good; the shortest limits here are a hundred times as long


class _Reading(threading.local):
    """The last reading in this thread: `at`, on the wall clock, and the `seconds` that were read."""

    at = -_RESOLUTION
    seconds = 0.0


_last = _Reading()


def thread_seconds() -> float:
    """The seconds of processor time that this thread has used, up to a millisecond fewer. The system is asked once a
    millisecond, because that takes ten times as long as to read the wall clock."""
    now = time.perf_counter()
    if now - _last.at > _RESOLUTION:
        _last.at, _last.seconds = now, time.thread_time()
    return _last.seconds
