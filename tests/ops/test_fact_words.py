"""The words for values: what has a fact and what has not, told by an entry."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from relax_eg.errors import OptionError
from relax_eg.ir import Tensor
from relax_eg.ops.facts import (
    FACTS,
    IMPLIED,
    fact_named,
    facts_named,
    facts_of_dtype,
    has_fact,
    impossible,
    violation,
    with_implied,
)

NAN, INF = float("nan"), float("inf")
ROTATION = [[0.6, -0.8], [0.8, 0.6]]

HAVE: list[tuple[str, Any]] = [
    ("positive", [1.0, INF, NAN, 1e-45]),
    ("nonnegative", [0.0, -0.0, INF, NAN]),
    ("nonpositive", [0.0, -0.0, -INF, NAN]),
    ("nonzero", [-1.0, NAN, -INF]),
    ("finite", [0.0, -3e38]),
    ("integral", [1e30, -2.0, INF, NAN]),
    ("constant", [2.0, 2.0]),
    ("constant", [NAN, NAN]),
    ("sorted", [[-INF, 0.0, -0.0, 2.0, NAN, NAN], [1, 1, 1, 1, 1, 1]]),
    ("one-hot", [[0, 1, 0], [1, 0, 0]]),
    ("one-hot", [[False, True]]),
    ("symmetric", [[[1.0, NAN], [NAN, 2.0]]]),
    ("positive definite", [[2.0, 1.0], [1.0, 2.0]]),
    ("positive semidefinite", [[1.0, 1.0], [1.0, 1.0]]),
    ("lower triangular", [[1.0, 0.0], [NAN, 2.0]]),
    ("upper triangular", [[1.0, 5.0], [-0.0, 2.0]]),
    ("diagonal", [[0.0, 0.0], [0.0, 2.0]]),
    ("orthogonal", ROTATION),
    ("invertible", [[0.0, 1.0], [1.0, 0.0]]),
]
HAVE_NOT: list[tuple[str, Any, str]] = [
    ("positive", [1.0, 0.0], "x[1] = 0.0"),
    ("positive", -1.0, "x = -1.0"),
    ("nonnegative", [[0.0, -0.5]], "x[0, 1] = -0.5"),
    ("nonpositive", [[-1.0, 0.5]], "x[0, 1] = 0.5"),
    ("nonzero", [-0.0], "x[0] = -0.0"),
    ("finite", [0.0, NAN], "x[1] = nan"),
    ("integral", [1.0, 1.5], "x[1] = 1.5"),
    ("constant", [[1.0, 1.0], [1.0, 2.0]], "x[1, 1] = 2.0 and x[0, 0] = 1.0"),
    ("sorted", [1.0, 3.0, 2.0], "x[1] = 3.0 and x[2] = 2.0"),
    ("sorted", [NAN, 1.0], "x[0] = nan and x[1] = 1.0"),
    ("one-hot", [[1, 0], [1, 1]], "x[1] has 2 ones"),
    ("one-hot", [[0.0, 0.5]], "x[0, 1] = 0.5"),
    ("one-hot", [[0, 0]], "x[0] has 0 ones"),
    ("symmetric", [[1.0, 2.0], [3.0, 1.0]], "x[0, 1] = 2.0 and x[1, 0] = 3.0"),
    ("positive definite", [[1.0, 2.0], [2.0, 1.0]], "an eigenvalue of x is -1"),
    ("positive definite", [[1.0, 2.0], [1.0, 1.0]], "x[0, 1] = 2.0 and x[1, 0] = 1.0"),
    ("positive definite", [[1.0, INF], [INF, 1.0]], "x[0, 1] = inf"),
    ("positive semidefinite", [[[1.0]], [[-1.0]]], "an eigenvalue of x[1] is -1"),
    ("lower triangular", [[1.0, 2.0], [0.0, 1.0]], "x[0, 1] = 2.0"),
    ("upper triangular", [[1.0, 0.0], [NAN, 1.0]], "x[1, 0] = nan"),
    ("diagonal", [[1.0, 0.0], [2.0, 1.0]], "x[1, 0] = 2.0"),
    ("orthogonal", [[1.0, 1.0], [0.0, 1.0]], "the product of row 0 with itself of x is 2"),
    ("orthogonal", [[1.0, 0.0], [1.0, 0.0]], "the product of rows 0 and 1 of x is 1"),
    ("invertible", [[1.0, 2.0], [2.0, 4.0]], "the singular values of x reach down to "),
]


def array(values: Any) -> np.ndarray[Any, Any]:
    a = np.asarray(values)
    return a.astype(np.float32) if a.dtype == np.float64 else a


@pytest.mark.parametrize(("name", "values"), HAVE)
def test_what_has_a_fact(name: str, values: Any) -> None:
    assert violation(fact_named(name), array(values)) == ""


@pytest.mark.parametrize(("name", "values", "shown"), HAVE_NOT)
def test_what_has_not(name: str, values: Any, shown: str) -> None:
    found = violation(fact_named(name), array(values))
    assert found.startswith(shown) if shown.endswith(" ") else found == shown


def test_every_fact_is_tried() -> None:
    assert {fact_named(h[0]) for h in HAVE} == {fact_named(h[0]) for h in HAVE_NOT} == set(FACTS)


def test_other_numbers() -> None:
    assert violation("positive", np.array([1, -2], ml_dtypes.bfloat16), "w") == "w[1] = -2.0"
    assert violation("positive", np.array([3, 0], np.uint8)) == "x[1] = 0"
    halves = np.array([[Fraction(1, 2), 1], [1, 4]], dtype=object)
    assert [f for f in ("integral", "symmetric", "positive", "positive_definite") if has_fact(f, halves)] == [
        "symmetric", "positive", "positive_definite",
    ]  # fmt: skip


def test_without_elements_everything_holds_but_one_hot() -> None:
    assert [f for f in FACTS if not has_fact(f, np.zeros((0, 0), np.float32))] == []
    assert violation("one_hot", np.zeros((2, 0))) == "x[0] has 0 ones"


def test_what_is_implied_is_true() -> None:
    samples = [array(v) for _, v in HAVE] + [array(v) for _, v, _ in HAVE_NOT]
    for premises, conclusion in IMPLIED:
        facts = (*premises, conclusion)
        found = [a for a in samples if not any(impossible(f, Tensor(a.shape, a.dtype.name)) for f in facts)]
        found = [a for a in found if all(has_fact(p, a) for p in premises)]
        assert found
        for a in found:
            assert has_fact(conclusion, a), (premises, conclusion, a)
    assert with_implied({"positive"}) == {"positive", "nonnegative", "nonzero"}
    assert with_implied({"nonnegative", "nonzero"}) >= {"positive"}
    assert with_implied({"lower_triangular", "upper_triangular"}) >= {"diagonal", "symmetric"}


def test_words_are_read_as_people_write_them() -> None:
    for text in ("positive definite", "Positive-Definite", "positive_definite"):
        assert fact_named(text) == "positive_definite"
    assert facts_named("positive finite") == ["positive", "finite"]
    assert facts_named("Positive definite, one-hot sorted") == ["positive_definite", "one_hot", "sorted"]
    for text, told in (("positive finte", "'finte' is no fact; did you mean finite"), ("", "'' is no fact; accepted")):
        with pytest.raises(OptionError) as caught:
            facts_named(text)
        assert str(caught.value).startswith(told)
    for text, hint in (
        ("postive", "did you mean positive?"),
        ("triangular", "did you mean lower triangular or upper triangular?"),
        ("definite", "did you mean positive definite or positive semidefinite?"),
        ("green", "accepted: positive, nonnegative,"),
    ):
        with pytest.raises(OptionError) as caught:
            fact_named(text)
        assert str(caught.value).startswith(f"{text!r} is no fact; ")
        assert hint in str(caught.value)


def test_what_can_have_a_fact() -> None:
    assert impossible("positive", Tensor("n @ int32")) == ""
    assert impossible("positive", Tensor("n @ bool")) == "its dtype is bool; int, uint, float can be positive"
    assert impossible("finite", Tensor("n @ complex64")) == "its dtype is complex64; int, uint, float can be finite"
    assert impossible("sorted", Tensor("")) == "its rank is 0; an axis is needed to be sorted"
    assert impossible("symmetric", Tensor("n")) == (
        "its rank is 1; a matrix, or a batch of them, is needed to be symmetric"
    )
    assert impossible("symmetric", Tensor("m n")) == "its matrices are m by n; square ones can be symmetric"
    assert impossible("symmetric", Tensor("b n n")) == ""
    assert facts_of_dtype("uint8") == {"integral", "finite", "nonnegative"}
    assert facts_of_dtype("float32") == frozenset()
