"""Guards: read, printed, tested at sizes, and proved to cover a scope."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from relax_eg.errors import SpecError
from relax_eg.shapes import Proved, Refuted, Scope
from relax_eg.shapes.dispatch import Dispatch
from relax_eg.shapes.guards import EVERYWHERE, Guard, prove_partition

TEXTS = [
    EVERYWHERE,
    "n <= 16",
    "n == 1",
    "17 <= n <= 128 or n >= 400",
    "n >= 3 and m*n <= 4096 or n <= 2",
    "n <= 16 and n%8 == 0",
    "3*m*n - 2*n >= -5",
    "ceildiv(m, 2) <= 4",
]


def inside(**bounds: tuple[int | None, int | None]) -> Scope:
    scope = Scope()
    for name, bound in bounds.items():
        scope.bound(name, bound)
    return scope


@pytest.mark.parametrize("text", TEXTS)
def test_a_guard_prints_as_it_reads(text: str) -> None:
    assert str(Guard.read(text)) == text
    assert Guard.read(str(Guard.read(text))) == Guard.read(text)


@pytest.mark.parametrize(
    ("text", "means"),
    [("n < 17", "n <= 16"), ("16 >= n", "n <= 16"), ("3 < n and n <= 9", "4 <= n <= 9"), ("n > 4", "n >= 5")],
)
def test_other_spellings(text: str, means: str) -> None:
    assert str(Guard.read(text)) == means


@pytest.mark.parametrize("text", TEXTS)
def test_dispatch_agrees_with_the_guard(text: str) -> None:
    guard = Guard.read(text)
    dispatch = Dispatch([guard], fallback=7)
    sizes = [{"n": n, "m": m} for n in (1, 2, 3, 8, 16, 17, 129, 400) for m in (1, 2, 7, 8, 1000)]
    assert [dispatch.index_of(s) for s in sizes] == [0 if guard.holds(s) else 7 for s in sizes]


@pytest.mark.parametrize("text", ["n", "n != 4", "n <= m", "3 <= 4", "n <= 4 or", "nothing at all"])
def test_what_is_no_guard(text: str) -> None:
    with pytest.raises(SpecError):
        Guard.read(text)
    with pytest.raises(SpecError, match="is no bound of a guard; accepted: 17 <= n <= 128"):
        Guard.read("n <= m")


@pytest.mark.parametrize(
    "texts",
    [
        ["n <= 16", "17 <= n <= 128", "n >= 129"],
        ["n <= 16 or n >= 300", "17 <= n <= 299"],
        ["n <= 16 and n%8 == 0", "n <= 16 and n%8 >= 1", "n >= 17"],
        ["m*n <= 64 and n <= 3", "m*n <= 64 and n >= 4", "m*n >= 65"],
        ["5*m*n - 41*m - 30*n >= 9 and m <= 40", "5*m*n - 41*m - 30*n <= 8 or m >= 41 and 5*m*n - 41*m - 30*n >= 9"],
    ],
)
def test_cover_is_proved(texts: list[str]) -> None:
    guards = [Guard.read(t) for t in texts]
    scope = inside(n=(1, 4096), m=(1, 4096))
    assert isinstance(prove_partition(guards, scope), Proved)
    # Without a box there is a hole, with one more some sizes are served twice.
    assert not isinstance(prove_partition(guards[1:], scope), Proved)
    assert not isinstance(prove_partition([*guards, Guard.read("n == 9")], scope), Proved)


def test_a_hole_is_shown() -> None:
    found = prove_partition([Guard.read("n <= 16"), Guard.read("n >= 18")], inside(n=(1, 4096)))
    assert isinstance(found, Refuted) and found.counterexample == {"n": 17}
    assert isinstance(prove_partition([Guard.read("n <= 16"), Guard.read("n >= 18")], inside(n=(1, 16))), Proved)


def test_sums_of_products_are_computed_as_they_are_written() -> None:
    rng = np.random.default_rng(3)
    names = ("a", "b", "c")
    for _ in range(20):
        products = ["*".join(rng.choice(names, int(rng.integers(1, 4)))) for _ in range(5)]
        terms = " + ".join(f"{int(rng.integers(1, 50))}*{p}" for p in products[1:])
        guard = Guard.read(f"{terms} - 17*{products[0]} <= {int(rng.integers(-1000, 1000))}")
        dispatch = Dispatch([guard], 1)
        for sizes in itertools.product((1, 3, 10), repeat=3):
            at = dict(zip(names, sizes, strict=True))
            assert (dispatch.index_of(at) == 0) == guard.holds(at)
