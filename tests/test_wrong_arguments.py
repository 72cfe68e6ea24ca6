"""Wrong arguments where they are rarely wrong: errors are ours, and say what would be accepted."""

from __future__ import annotations

import re
from typing import Any

import jax.numpy as jnp
import pytest

import relax_eg as rx
from relax_eg.errors import BoundsError, RuleError


def scores(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w)


def test_sizes_that_no_array_has() -> None:
    kernels = rx.optimize(scores, "n 4", "4 4", execution="kernels", dynamic=rx.Dynamic(trust=True))
    text = (
        r"scores\(\): at n = 10{30} argument `x` has 4e\+30 elements\n  accepted: sizes at which arrays have fewer than"
    )
    with pytest.raises(BoundsError, match=text):
        rx.plan_memory(kernels, at={"n": 10**30})
    best = rx.optimize(scores, "n 4", "4 4", dynamic=rx.Dynamic(trust=True))
    with pytest.raises(BoundsError, match=rf"compile_ahead\(\): {text}"):
        best.compile_ahead({"n": 10**30})


@pytest.mark.parametrize("wrong", [None, 0, [], {}, object()])
def test_sets_of_rules_say_what_they_take(wrong: Any) -> None:
    rules = rx.rules.default
    assert wrong not in rules
    with pytest.raises(RuleError, match=re.escape("no rule `")):
        rules[wrong]
    with pytest.raises(RuleError, match=r"other=.*: a RuleSet is accepted"):
        rules + wrong
    with pytest.raises(RuleError, match=r"other=.*: a RuleSet, or the name of a rule, tag or class, is accepted"):
        rules - wrong
    with pytest.raises(RuleError, match=r"what=.*: text is accepted"):
        rules.only(wrong)
    if wrong != []:
        with pytest.raises(
            RuleError, match=r"numerics=.*: a list of 'exact', 'reassociate', 'approximate', 'quantised' is accepted"
        ):
            rules.allowed(wrong)


def test_a_name_of_no_rule() -> None:
    with pytest.raises(KeyError) as told:
        rx.rules.default["nope"]
    assert isinstance(told.value, RuleError) and str(told.value).startswith("no rule `nope` in set `default`")
