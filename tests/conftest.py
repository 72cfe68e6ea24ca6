"""Fixtures of all tests. Tests do not use the user's cache; tests of the cache turn it on in a folder of their own."""

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
