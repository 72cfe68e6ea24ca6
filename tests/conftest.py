"""Tests have no part in the user's cache; those of the cache itself turn it on, in a folder of their own."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

os.environ["RELAX_EG_CACHE"] = "0"

# In CI, examples are the same in every run, so that a red run is red again when repeated. Elsewhere each run draws its
# own, and a failure prints the line that repeats it. No profile has a deadline: a first call compiles.
settings.register_profile("varied", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci" if os.environ.get("CI") else "varied")


@pytest.fixture
def no_library_stays() -> Iterator[None]:
    """What a test registers is forgotten after it."""
    from relax_eg.ops.libraries import LIBRARIES

    known = dict(LIBRARIES)
    yield
    LIBRARIES.clear()
    LIBRARIES.update(known)


@pytest.fixture
def no_fallback() -> Iterator[None]:
    """A function that is not optimized warns; here that fails the test, unless it catches the warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*runs as written.*")
        yield
