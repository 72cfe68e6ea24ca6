"""Terms of two parts: what is missing to a fragment where one part is known is looked up among the others."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.random_instances import differences
from relax_eg.discovery.extremes import Extremes
from relax_eg.discovery.generalising import generalised
from relax_eg.discovery.grammar import Grammar
from relax_eg.discovery.laws import Writer
from relax_eg.discovery.table import EqualPair, TermTable
from relax_eg.discovery.values import SamplePoints
from relax_eg.driver.laws.mining import Mined, Miner
from relax_eg.driver.laws.split_terms import ValuesOfTerms, split
from relax_eg.driver.laws.tables import ElementTables, TableKind
from relax_eg.frontends import trace

DRAWS = np.random.default_rng(0).integers(-12, 13, 100) / 4
X, Y = DRAWS, DRAWS[::-1].copy()
FORMS = {o: n for n, o in enumerate(("add", "subtract", "multiply", "divide", "maximum", "minimum", "where"))}
TERMS = {0: X, 1: Y, 2: np.exp(X), 3: np.abs(Y)}
VALUES = ValuesOfTerms(tuple(TERMS), np.stack([*TERMS.values()]), lambda x: x.round(9) + 0.0)
IS_LOW = ValuesOfTerms((7,), np.stack([X < 0.5]), lambda x: x)


def of(op: str, *terms: int) -> tuple[int, ...]:
    return (FORMS[op], *terms)


@pytest.mark.parametrize(
    ("values", "term"),
    [
        (X * np.abs(Y), of("multiply", 0, 3)),
        (np.abs(Y) - X, of("subtract", 3, 0)),
        (np.abs(Y) / np.exp(X), of("divide", 3, 2)),
        (np.maximum(X, Y), of("maximum", 0, 1)),
        (np.where(X < 0.5, np.exp(X), Y), of("where", 7, 2, 1)),
    ],
)
def test_a_value_of_two_parts_is_split(values: np.ndarray, term: tuple[int, ...]) -> None:
    assert term in split(VALUES, IS_LOW, values, FORMS)


def test_what_has_no_such_parts_is_not_split() -> None:
    assert not split(VALUES, IS_LOW, np.sin(X) * Y, FORMS)
    assert not split(VALUES, IS_LOW, np.full(100, np.nan), FORMS)


def test_where_a_fragment_has_no_value_any_term_will_do() -> None:
    with np.errstate(all="ignore"):
        assert VALUES.where_defined(np.sqrt(X) * np.sqrt(X)) == 0
    assert VALUES.where_defined(X) is None  # a table is asked for values without gaps by these
    assert VALUES.where_defined(np.where(np.arange(100) < 3, X, np.nan)) is None


def test_a_fragment_gets_a_term_that_no_table_has() -> None:
    """Tables have terms of two operators here; the term of two parts has four."""
    kept = ElementTables((TableKind(("exp", "add", "where", "less"), 2, (0.0, 1.0), (), (2,)),))
    miner = Miner("cpu", 0, "reassociate", 1, kept=kept)
    module = trace(lambda x, w: jnp.where(x < 0, jnp.exp(x), 0.0) * jnp.where(x < 0, jnp.exp(w), 1.0), "n", "n")
    (offer, *more) = miner.mined(module, {"n": 1 << 16}).offers
    assert not more
    assert offer.text.endswith("= where(x < w, exp(u + y), p)")
    assert offer.share > 0
    assert not differences(Mined((offer,), 1).rules, 40)[1]
    assert miner.counts["proved"] == 1 <= miner.counts["agreeing"] <= miner.counts["cheaper"]


def test_a_number_becomes_a_variable_that_is_finite_where_an_infinity_would_matter() -> None:
    """`where(b, 0, x * c)` is 0 for an infinite `c`, and `where(b, 0, x) * c` is none."""
    grammar = Grammar("where | multiply", "b: *s @ bool, x: *s", (0.0, 7.0))
    table, writer = TermTable(grammar, SamplePoints(grammar, False, 0)), Writer(grammar)
    extremes = Extremes(grammar, table.points)
    zero, seven = grammar.operands[-2:]
    outside, inside = (1, (0, 0, zero, 1), seven), (0, 0, zero, (1, 1, seven))
    texts = {
        writer.text(generalised(pair, table, extremes.agree))
        for pair in (EqualPair(inside, outside), EqualPair(outside, inside))
    }
    assert texts == {
        "where(b, 0.0, x * q) = where(b, 0.0, x) * q for q finite",
        "where(b, 0.0, x) * q = where(b, 0.0, x * q)",
    }
