"""What holds inside a `with` block."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.contexts import _BETWEEN_PASSES, fewer_collections


@pytest.fixture(autouse=True)
def usual() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield (700, 10, 10)
    gc.set_threshold(*before)


def test_fewer_collections_hold_inside(usual: tuple[int, int, int]) -> None:
    with pytest.raises(KeyError), fewer_collections():
        with fewer_collections():
            assert gc.get_threshold() == (_BETWEEN_PASSES, 10, 10) and gc.isenabled()
        assert gc.get_threshold() == (_BETWEEN_PASSES, 10, 10)
        raise KeyError
    assert gc.get_threshold() == usual


def test_the_last_of_several_threads_restores_what_was(usual: tuple[int, int, int]) -> None:
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with fewer_collections():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=hold)
    with fewer_collections():
        thread.start()
        assert inside.wait(60)
    assert gc.get_threshold()[0] == _BETWEEN_PASSES
    leave.set()
    thread.join()
    assert gc.get_threshold() == usual


@pytest.mark.parametrize("chosen", [(0, 10, 10), (10 * _BETWEEN_PASSES, 5, 5)])
def test_what_the_process_chose_is_kept(chosen: tuple[int, int, int]) -> None:
    gc.set_threshold(*chosen)
    with fewer_collections():
        assert gc.get_threshold() == chosen
    assert gc.get_threshold() == chosen
    with fewer_collections():
        gc.set_threshold(900, 9, 9)  # by other code, meanwhile
    assert gc.get_threshold() == (900, 9, 9)


def test_searches_and_checks_of_traces_collect_less(usual: tuple[int, int, int]) -> None:
    seen: list[int] = []

    def program(x: Any) -> Any:
        seen.append(gc.get_threshold()[0])
        return jnp.cumsum(x) * 2

    best = rx.optimize(program, "n", bounds={"n": (1, 64)}, dynamic="capacity", rules=rx.RuleSet("none"))
    with rx.debug.options(cache=False, progress=lambda *_: seen.append(gc.get_threshold()[0])):
        rx.optimize(lambda a, b: jnp.trace(a @ b), "4 4", "4 4")
    assert _BETWEEN_PASSES in seen
    seen.clear()
    best(np.ones(5, np.float32))
    assert seen == [_BETWEEN_PASSES] and gc.get_threshold() == usual
