"""Fixtures of all tests. Tests do not use the user's cache; tests of the cache turn it on in a folder of their own."""

from __future__ import annotations

import gc
import os
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from compiling import QUICKLY
from hypothesis import HealthCheck, is_hypothesis_test, settings
from jax._src import compiler
from jax._src.interpreters import mlir
from jax._src.lib.mlir import ir
from lanes import EXAMPLES_OF, ONE_OF, SLOW

os.environ["RELAX_EG_CACHE"] = "0"
# Tests look at the chosen program; those of `settle` ask for it.
os.environ["RELAX_EG_MEASURE"] = "off"
# Prices of tests are those of the profile that ships; tests of calibration ask for it.
os.environ["RELAX_EG_CALIBRATE"] = "off"
# With the extra `cuda` and without cuDNN, JAX prints a traceback at its first look for devices unless it is told this.
os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
# Compiled modules are kept, also where the environment says otherwise: tests start many processes, and without them
# each would take more than a second longer.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A full collection takes a second in a process that has loaded thousands of tests, and would run every few of them.
# Nothing is collected before they are loaded.
gc.set_threshold(20_000, 50, 100)
gc.disable()

# XLA takes a ninth of the time for a program with these options. Tests marked `xla_defaults`, which look at what XLA
# makes of a program, get XLA's own; where RELAX_EG_XLA is "default", all tests do. JAX has no public setting for this.
_compile_options = compiler.get_compile_options
_quickly = False


def _options_of_tests(*args: Any, env_options_overrides: dict[str, Any] | None = None, **more: Any) -> Any:
    given = env_options_overrides or {}
    return _compile_options(*args, env_options_overrides={**QUICKLY, **given} if _quickly else given, **more)


compiler.get_compile_options = _options_of_tests


# JAX makes a context of MLIR's, with all dialects, for each program that it lowers: 6 ms, more than the lowering of a
# small one. A context keeps the constants of its programs, so each serves a few.
_LOWERED = 64
_new_context = mlir.make_ir_context
_contexts: list[Any] = []


def _context_of_tests() -> Any:
    if ir.Context.current is not None:  # what is lowered while another program is must not be put into that one
        return _new_context()
    if not _contexts:  # threads may both find it empty, and then both make some
        _contexts.extend([_new_context()] * _LOWERED)
    return _contexts.pop()


mlir.make_ir_context = _context_of_tests


def pytest_runtest_setup(item: pytest.Item) -> None:
    global _quickly
    _quickly = os.environ.get("RELAX_EG_XLA") != "default" and item.get_closest_marker("xla_defaults") is None


# In CI, examples are the same in every run, so that a red run is red again when repeated. Elsewhere each run draws its
# own, and a failure prints the line that repeats it. No profile has a deadline: a first call compiles.
settings.register_profile("varied", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci" if os.environ.get("CI") else "varied")


@pytest.fixture
def no_library_stays() -> Iterator[None]:
    """Removes the registrations of a test after it."""
    from relax_eg.ops.libraries import LIBRARIES

    known = dict(LIBRARIES)
    yield
    LIBRARIES.clear()
    LIBRARIES.update(known)


@pytest.fixture
def no_fallback() -> Iterator[None]:
    """Makes the warning for a function that is not optimized an error, which fails a test that does not expect it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*runs as written.*")
        yield


@pytest.fixture(scope="module")
def shared_searches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A disk cache for the tests of one file, so that what several of them optimize is searched for once: for tests of
    what runs, not of what is found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELAX_EG_CACHE", "1")
        patch.setenv("RELAX_EG_CACHE_DIR", str(tmp_path_factory.mktemp("searches")))
        yield


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.enable()
    gc.collect()
    gc.freeze()  # what was loaded stays, so that no collection has to look at it
    gc.callbacks.append(_count_full_collections)


# Whether there was a full collection since the last `gc.freeze`.
_collected = False


def _count_full_collections(phase: str, info: dict[str, int]) -> None:
    global _collected
    _collected |= phase == "stop" and info["generation"] == 2


def pytest_runtest_logfinish() -> None:
    """After a full collection, the next one need not look at what survived it."""
    global _collected
    if _collected:
        gc.freeze()
        _collected = False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seen = Counter[str]()
    drawn = set[Any]()
    for item in items:
        function = item.nodeid.partition("[")[0]
        slow = item.nodeid.startswith(SLOW) or seen[function] % ONE_OF.get(function, 1) != 0
        seen[function] += 1
        if slow:
            item.add_marker(pytest.mark.slow)
        test = getattr(item, "obj", None)
        if is_hypothesis_test(test) and config.option.markexpr == "not slow":
            drawn.add(getattr(test, "__func__", test))
    for test in drawn:  # hypothesis has no public way to change the number of examples of a test that states it
        stated: settings = test._hypothesis_internal_use_settings
        fewer = -(-stated.max_examples // EXAMPLES_OF)
        test._hypothesis_internal_use_settings = settings(stated, max_examples=fewer)
