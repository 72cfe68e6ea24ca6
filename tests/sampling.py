"""Which cases of a large sample of one property run in every run of the tests: `make test` has a share of them, and
`make slow` has all."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import pytest


def is_sampled(key: str, one_in: int) -> bool:
    """Whether a hash of the key chooses it: of many keys it chooses one in `one_in`, the same ones in every process."""
    return zlib.crc32(key.encode()) % one_in == 0


def sampled(
    cases: Mapping[str, Any] | Iterable[str],
    one_in: int,
    always: Collection[str] = (),
    key: Callable[[str], str] = str,
) -> list[Any]:
    """Parameters for `pytest.mark.parametrize`, with the names of the cases as ids.

    - `cases`: by name; or names alone, which are then the values.
    - `one_in`: of so many cases one runs in every run, chosen by a hash of its key. The others are marked slow.
    - `always`: names of cases that run in every run.
    - `key`: what is hashed of a name. It is the name itself, so a new case does not change which others run.
    """
    named = dict(cases) if isinstance(cases, Mapping) else {name: name for name in cases}
    assert set(always) <= named.keys(), set(always) - named.keys()
    chosen = {n for n in named if n in always or is_sampled(key(n), one_in)}
    return [pytest.param(v, id=n, marks=() if n in chosen else pytest.mark.slow) for n, v in named.items()]
