"""Known identities: both sides of each compute the same, and are counted as `benchmarks.identities` says."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from benchmarks.identities import Prices, prices
from benchmarks.known_identities import FAMILIES, IDENTITIES, SMALL_SIZES, Identity
from relax_eg.ops.facts import facts_named, with_facts
from relax_eg.shapes import Dim

LARGEST = 9  # of random integers: indices are out of range on both sides


def shapes(identity: Identity) -> list[tuple[tuple[int, ...], str]]:
    """The shape and the dtype of each argument at small sizes."""
    found: list[tuple[tuple[int, ...], str]] = []
    for spec in identity.specs:
        dims, _, dtype = spec.partition("@")
        found.append((tuple(Dim.of(d).evaluate(SMALL_SIZES) for d in dims.split()), dtype.strip() or "float32"))
    return found


def values(identity: Identity, rng: np.random.Generator) -> list[Any]:
    """Random arguments that have the facts of an identity; floats are float64."""
    made: list[Any] = []
    for name, (shape, dtype) in zip(identity.arguments, shapes(identity), strict=True):
        if dtype == "bool":
            a = rng.random(shape) < 0.5
        elif dtype.startswith("float"):
            a = rng.standard_normal(shape)
        else:
            a = rng.integers(0 if dtype.startswith("u") else -LARGEST, LARGEST, shape).astype(dtype)
        facts = facts_named(identity.facts[name]) if name in identity.facts else []
        made.append(with_facts(np.asarray(a), facts, rng))
    return made


def test_names_are_unique_and_rows_are_complete() -> None:
    assert len(IDENTITIES) >= 250
    assert len({i.name for i in IDENTITIES}) == len(IDENTITIES)
    for i in IDENTITIES:
        assert len(i.arguments) == len(i.specs), i.name
        assert set(i.facts) <= set(i.arguments), i.name


@pytest.mark.parametrize("family", FAMILIES)
def test_both_sides_are_equal(family: str) -> None:
    """All programs of a family in one XLA program, on the same random arguments, in double precision."""
    rng = np.random.default_rng(0)
    rows = [i for i in IDENTITIES if i.family == family]
    with jax.enable_x64(True):
        given = [values(i, rng) for i in rows]
        sides = jax.jit(lambda args: [(i.dearer(*a), i.cheaper(*a)) for i, a in zip(rows, args, strict=True)])(given)
    for i, args, (dearer, cheaper) in zip(rows, given, sides, strict=True):
        scale = max((float(np.max(np.abs(a))) for a in args if a.dtype.kind == "f" and a.size), default=0.0)
        np.testing.assert_allclose(dearer, cheaper, rtol=1e-7, atol=1e-9 * (1.0 + scale), err_msg=i.name)


@pytest.mark.parametrize("family", FAMILIES)
def test_both_sides_have_one_type(family: str) -> None:
    for i in (i for i in IDENTITIES if i.family == family):
        given = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes(i)]
        dearer, cheaper = (jax.eval_shape(side, *given) for side in (i.dearer, i.cheaper))
        assert (dearer.shape, dearer.dtype) == (cheaper.shape, cheaper.dtype), i.name


def counted(*seconds: float) -> tuple[bool, bool, bool]:
    found = Prices("name", "family", *seconds)
    return found.gains, found.reached, found.slower


def test_what_is_counted() -> None:
    assert counted(2.0, 1.0, 1.0, 1.0) == (True, True, False)
    assert counted(2.0, 1.0, 1.5, 1.0) == (True, False, False)
    assert counted(1.0, 0.97, 1.0, 0.97) == (False, False, False)
    assert counted(9e-6, 5.5e-6, 5e-6, 5e-6) == (True, True, False)
    assert counted(1e-7, 0.0, 1e-7, 0.0) == (False, False, False)
    assert counted(2.0, 1.0, 1.0, 1.1) == (True, True, True)


def test_an_identity_is_priced() -> None:
    found = prices(next(i for i in IDENTITIES if i.name == "product_times_vector"))
    assert found.reached and not found.slower
