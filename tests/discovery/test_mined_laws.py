"""Laws that were found in programs which nobody wrote for them: they are proved, and each saves something."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from sampling import sampled

from benchmarks.corpus.fired import corpus_rules
from benchmarks.least_laws import law_of
from benchmarks.mined import BESIDE, LAWS, Found, MinedLaw, known_rules, lazily
from benchmarks.random_instances import differences
from relax_eg.driver.laws.mining import Mined, Miner, mine
from relax_eg.driver.laws.ranking import LEAST_SAVING
from relax_eg.driver.laws.tables import ElementTables, TableKind
from relax_eg.frontends import trace
from relax_eg.ops import api as op
from relax_eg.rules import Rule, RuleSet
from relax_eg.rules.verify_formal.prove import prove_rule

FOUND = Found.read(LAWS)
FOLLOW = {x.name for x in FOUND.laws if x.follows}
RULES = [r for r in FOUND.rules() if law_of(r.name) not in FOLLOW]
SAVING = {x.name: x for x in FOUND.laws if x.saves and not x.follows}

LATER = Found.read(BESIDE)
ALL_RULES = [*RULES, *LATER.rules()]
BESIDE_ALL_BOOKS = {x.name: x for x in LATER.laws if x.saves_whole}


def rules_of(law: MinedLaw) -> list[Rule]:
    return [r for r in ALL_RULES if law_of(r.name) == law.name]


def test_laws_that_a_search_found_save_on_programs_in_which_it_did_not_find_them() -> None:
    assert len({x.text for x in SAVING.values()}) == len(SAVING) >= 8
    assert any(x.saves.keys() - {x.program} for x in SAVING.values())


def test_laws_save_that_no_book_has() -> None:
    assert not any(x.again or x.follows for x in LATER.laws)
    assert len({x.text for x in LATER.laws} - {x.text for x in FOUND.laws}) == len(LATER.laws)
    assert len(BESIDE_ALL_BOOKS) + sum(bool(x.saves_whole) for x in FOUND.laws if not x.follows) >= 20


# All laws are tested before one of them is used, which takes longer than the searches.
beside_others = pytest.mark.parametrize("others", [False, pytest.param(True, marks=pytest.mark.slow)])


def assert_saves(program: str, share: float, known: RuleSet, law: MinedLaw, others: list[Rule]) -> None:
    """The law saves that share of the program's time beside `others`, or more where there are none."""
    optimize = lazily(program)
    without, with_it = (
        optimize(known + RuleSet("found", more)).report.after.seconds for more in (others, [*others, *rules_of(law)])
    )
    saved = 1 - with_it / without
    assert saved == pytest.approx(share, abs=0.02) or (not others and saved > share)


@beside_others
@pytest.mark.parametrize("law", sampled(BESIDE_ALL_BOOKS, 10))
def test_a_law_saves_beside_all_books(law: MinedLaw, others: bool) -> None:
    program, share = max(law.saves_whole.items(), key=lambda x: x[1])
    if "." in program:
        pytest.importorskip(program.partition(".")[0])
    assert_saves(program, share, corpus_rules(), law, [r for r in ALL_RULES if others and r not in rules_of(law)])


@pytest.mark.parametrize("law", sampled(SAVING | BESIDE_ALL_BOOKS, 10))
def test_a_mined_law_is_proved(law: MinedLaw) -> None:
    for rule in rules_of(law):
        found = prove_rule(rule)
        assert found.status == "proved", found.reason


@beside_others
@pytest.mark.parametrize("law", sampled(SAVING, 12))
def test_a_mined_law_saves(law: MinedLaw, others: bool) -> None:
    program, share = max(law.saves.items(), key=lambda x: (": " not in x[0], x[1]))
    if ": " in program:
        pytest.importorskip(program.partition(":")[0])
    assert share > LEAST_SAVING
    assert_saves(program, share, known_rules(), law, [r for r in RULES if others and r not in rules_of(law)])


def test_a_fragment_with_tests_for_infinity_gets_a_cheaper_term() -> None:
    """The slope of softplus is found with its tests for infinity; where these matter, nothing is left out."""
    found = mine(lambda x: jax.vmap(jax.grad(jax.nn.softplus))(x), "n", at={"n": 256}, size=1)
    (offer,) = [o for o in found.offers if o.text.endswith("= sigmoid(x)")]
    assert "== inf" in offer.text
    assert not differences(found.rules, 40)[1]
    kept = mine(lambda x: jnp.where(x == jnp.inf, 0.0, x) * 1.0, "n", at={"n": 256}, size=1)
    assert not any(o.text.endswith("= x") and "inf" in o.text for o in kept.offers)


FEW = TableKind(("add", "multiply", "exp", "sigmoid", "negative", "maximum"), 2, (1.0, -1.0), (), (1, 2))


def mined_with(kept: ElementTables, *functions):
    miner = Miner("cpu", 0, "reassociate", 1, kept=kept)
    return [miner.mined(trace(f, "n m", "n m"), {"n": 64, "m": 64}).offers for f in functions]


def test_functions_of_elements_are_looked_up_in_tables_that_programs_share() -> None:
    first, second, third = mined_with(
        ElementTables((FEW,)),
        lambda x, w: jnp.log(jnp.exp(x) * jnp.exp(w)),
        lambda x, w: jnp.sum(jnp.exp(x) * jnp.exp(w)),
        lambda x, w: jnp.sum(jnp.log(jnp.exp(x) * 7.5) * w),
    )
    (offer,) = first
    assert offer.text == "exp(a) * exp(b) = exp(a + b)"
    assert second == ()  # the same law, of other names
    assert not third  # no table has logarithms
    assert not differences(Mined(first, 1).rules, 40)[1]


def test_a_function_of_a_leaf_is_a_leaf_too() -> None:
    """So a term has it twice, and one operator more. What both sides have besides is left out."""
    kept = ElementTables((TableKind(("multiply",), 1, (), (op.exp,), (1,)),))
    (offers,) = mined_with(kept, lambda x, w: jnp.exp(x) * jnp.sin(jnp.exp(x) * jnp.sqrt(jnp.exp(2.0 * x))) + w)
    assert [o.text for o in offers] == ["sqrt(exp(2.0 * a)) = exp(a)"]
