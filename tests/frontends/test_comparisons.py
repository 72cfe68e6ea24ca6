"""Comparisons of symbolic sizes in a function that is traced: what is proved, what is kept, what JAX decides."""

from __future__ import annotations

import threading
from dataclasses import make_dataclass

import pytest
from jax import export

from relax_eg.frontends.comparisons import open_in_text, watched
from relax_eg.shapes import Scope


def test_what_is_known_is_asked_and_the_rest_is_kept() -> None:
    n, m = export.symbolic_shape("n, m")
    with watched(Scope({"n": (1, 8)}, assume=["m % 4 == 2"])) as watch:
        assert m % 4 == 2 and n != 9 and n != 0
        assert n * n <= 64 and n < 9
        assert (n, 4) != (m, 4) and n != 3
    assert [d.statement for d in watch.differing.values()] == ["n != m", "n != 3"]
    assert all(d.line.startswith("test_comparisons.py:") for d in watch.differing.values())


def test_what_nothing_decides_raises_as_before() -> None:
    (n,) = export.symbolic_shape("n")
    with watched(Scope()) as watch, pytest.raises(Exception, match="'n' > '6' is inconclusive"):
        bool(n > 6)
    assert watch.open == ("n > 6", "n <= 6")


def test_sizes_of_two_traces_are_never_equal() -> None:
    """A cache of JAX would take the one for the other."""
    (n,), (other,) = export.symbolic_shape("n"), export.symbolic_shape("n")
    with watched(Scope()) as watch:
        assert n != other and n == n
    assert not watch.differing


def test_keys_of_caches_are_no_matter_of_the_users() -> None:
    """Which of its keys a cache compares depends on their hashes."""
    (n,) = export.symbolic_shape("n")
    key = make_dataclass("Key", ["size"], frozen=True)
    with watched(Scope()) as watch:
        assert key(n) != key(3) and not watch.differing
        assert n != 3 and len(watch.differing) == 1


def test_only_what_this_thread_traces_is_watched() -> None:
    (n,) = export.symbolic_shape("n")
    seen: list[bool] = []
    original = type(n).__eq__
    with watched(Scope({"n": 3})) as watch:
        assert n == 3
        thread = threading.Thread(target=lambda: seen.append(n == 3))
        thread.start()
        thread.join()
    assert seen == [False] and not watch.differing
    assert type(n).__eq__ is original and n != 3


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("add got incompatible shapes: (4, min(128, n - 1)), (4, n - 1).", ("n - 1 <= 128", "n - 1 > 128")),
        ("(max(n, 2*m), 3) and (n, 3)", ("n <= 2*m", "n > 2*m")),
        ("(min(n, floordiv(m + 3, 4)),)", ("n <= ceildiv(m, 4)", "n > ceildiv(m, 4)")),
        ("(4, 5) and (5, 4)", None),
        ("minimum of (3", None),
        ("min(what, is this)", None),
    ],
)
def test_what_would_decide_shapes_that_do_not_fit(text: str, found: tuple[str, str] | None) -> None:
    assert open_in_text(text) == found
