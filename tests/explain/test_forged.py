"""Certificates that say what is not so do not verify, whoever made them; those of `best.certificate()` do."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import relax_eg as rx
from benchmarks import certificates, scale
from benchmarks.corpus import CORPUS

Data = dict[str, Any]
# In turn as written, with two bounds, an assumption, a lower bound, and in kernels (`certificates.variants`).
SOME = ("trace_of_a_product", "conv_batch_norm_channels_last", "elman_network", "dora", "gp_weights")


def trace_of_product(a, b):
    return jnp.trace(a @ b)


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ({}, ""),
        ({"bounds": {"n": (1, 64)}, "at": {"n": 48, "k": 64}}, "; given n <= 64"),
        ({"bounds": {"n": (2, None)}, "at": {"n": 48, "k": 64}}, "; given n >= 2"),
        ({"bounds": {"n": 64}, "at": {"k": 64}}, ""),
        ({"bounds": {"n": (1, 2048), "k": (4, 2048)}}, "; given n <= 2048, k >= 4, k <= 2048"),
        ({"bounds": "n % 8 == 0"}, "; given n % 8 == 0"),
        ({"bounds": ("n <= k", "k >= 4"), "facts": {"a": "finite"}}, "; given k >= 4, n <= k, a is finite"),
        ({"bounds": [{"n": 64}, "n <= k"]}, "; given 64 <= k"),
        ({"execution": "kernels", "bounds": {"k": (8, 64)}, "at": {"n": 32, "k": 32}}, "; given k >= 8, k <= 64"),
    ],
    ids=str,
)
def test_what_was_assumed_is_part_of_what_is_certified(options: dict[str, Any], given: str) -> None:
    best = rx.optimize(trace_of_product, "n k", "k n", rules=rx.rules.default - "sum_products", **options)
    made = best.certificate()
    assert isinstance(made, rx.types.Certificate)
    found = rx.types.Certificate(certificates.plain(made))
    assert "3 uses of rules" in str(found.verify(rx.rules.default))
    assert found.premises == f"rules of class exact, reassociate{given}"
    assert all(f'"{said}"' in found.data["written"] for said in found.data["assumptions"])


def test_assumptions_of_modules_are_certified() -> None:
    module = rx.trace(trace_of_product, "n k", "k n", bounds="n % 8 == 0")
    best = rx.optimize(module, bounds=[{"k": (2, 512)}, "n <= 4096"], at={"n": 64, "k": 64})
    found = rx.types.Certificate(certificates.plain(best.certificate()))
    found.verify(rx.rules.default)
    assert set(found.data["assumptions"]) == {"k >= 2", "k <= 512", "n <= 4096", "n % 8 == 0"}


@pytest.mark.xfail(reason="this decoder is kept as written since sums of products are planned; it needs a gain")
def test_a_form_of_a_function_is_shown_to_be_one() -> None:
    """What a rule made of a function in the form that is best where something is known ahead is no longer that of the
    function as chosen: why it equals the function is part of the certificate."""

    specs = scale.decoder_specs(4), "b s @ int32"
    best = rx.optimize(
        scale.decoder, *specs, weights=("params",), at={"b": 8, "s": 64}, rules=rx.rules.default - "sum_products"
    )
    told = "in a form that was not chosen for it" in str(best.explain())
    assert told  # a name: pytest would compare the texts, which takes two minutes
    data = certificates.plain(best.certificate())
    uses = [e for p in data["parts"] for e in p["rules"] if e["rule"] == "calls_ahead"]
    assert uses and any(p["forms"] for p in data["parts"])
    certificates.verified(data)
    for seed in range(2):
        other = copy.deepcopy(data)
        assert certificates.FORGERIES["told_otherwise"](other, Random(seed))
        with pytest.raises(rx.errors.ExplanationError, match="is not shown to be equal to"):
            certificates.verified(other)
    for p in data["parts"]:
        p["forms"] = []
    with pytest.raises(rx.errors.ExplanationError, match=r"the form of `\w+` from which it is made is not shown to be"):
        certificates.verified(data)


def test_nothing_forged_is_accepted() -> None:
    found = certificates.run({name: CORPUS[name] for name in SOME}, len(SOME), 6 * len(SOME))
    assert not found.accepted and not found.failed, str(found)
    # A program that is kept as written has no certificate.
    assert len(found.genuine) >= len(SOME) - 1 and len(found.refused) > 20
    assert sum(found.refused.values()) > 100
    by_schema = {k: n for k, n in found.refused.items() if k.startswith("any pair")}
    assert len(by_schema) == len(certificates.BOOKS.schemas) and set(by_schema.values()) == {5}


def test_steps_without_premises_are_refused_for_them() -> None:
    rule = rx.rules.default["exp_of_log"]
    (data,) = certificates.without_premises(rule)
    with pytest.raises(rx.errors.ExplanationError, match=r"its condition positive\(x\) is not known to hold"):
        certificates.verified(data)
    data["facts"] = {"x": ["positive"]}
    certificates.verified(data)  # so nothing else is wrong with it


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"y": ["positive"]}, "facts are declared of `y`, which is no array that it takes"),
        ({"x": ["large"]}, "`x` is declared 'large', which is no fact"),
        ({"x": ["symmetric"]}, "`x` cannot be symmetric"),
        ({"x": "positive"}, "facts.x is 'positive'; a list is accepted"),
    ],
    ids=str,
)
def test_facts_are_of_parameters(facts: Any, said: str) -> None:
    (data,) = certificates.without_premises(rx.rules.default["exp_of_log"])
    with pytest.raises(rx.errors.ExplanationError, match=said):
        certificates.verified(data | {"facts": facts})


def test_facts_that_nothing_has_certify_nothing() -> None:
    """What is positive definite and one-hot in every row is a matrix that no two sizes have alike."""
    best = rx.optimize(lambda x: jnp.exp(jnp.log(x)), "n n", facts={"x": "positive"})
    data = certificates.plain(best.certificate())
    certificates.verified(data)
    data["facts"] = {"x": ["positive", "one_hot"]}
    with pytest.raises(rx.errors.ExplanationError, match="a derivation from facts that nothing has says nothing"):
        certificates.verified(data)


def test_a_rule_of_ones_own_is_asked_again() -> None:
    """A rule about whole nodes that does not ship shows its content in one process only; it is the one given that is
    asked."""

    def propose(e: Any, known: Any) -> Any:
        return rx.op.subtract(e.args[0], rx.op.negative(e.args[1])) if e.op == "add" else None

    own = rx.rules.Schema("own", "x + y = x - (-y)", "exact", frozenset(), propose, frozenset(("add",)))
    x = certificates.var("x", rx.Tensor("n"))
    data = certificates.schema_certificate(own, (rx.op.add(x, x), rx.op.subtract(x, rx.op.negative(x))))
    rules = rx.rules.default + rx.RuleSet("mine", schemas=(own,))
    rx.types.Certificate(data).verify(rules)
    wrong = certificates.schema_certificate(own, (rx.op.add(x, x), rx.op.subtract(x, x)))
    with pytest.raises(rx.errors.ExplanationError, match=r"step by rule `own` .*: asked again about .*, not "):
        rx.types.Certificate(wrong).verify(rules)


@pytest.mark.slow
def test_forged_of_the_corpus() -> None:
    found = certificates.run(CORPUS, 100, 200)
    assert not found.accepted and not found.failed, str(found)
    assert len(found.genuine) >= 100


def test_loops_without_an_end_do_not_hold_up_the_checker() -> None:
    def search(x, n):
        return jnp.trace(x @ x) + jax.lax.while_loop(lambda i: 2 * i != 2 * n + 1, lambda i: i + 1, n)

    best = rx.optimize(search, "k k", "@ int32", at={"k": 64})
    data = certificates.plain(best.certificate())
    assert "loops and calls make more steps than are evaluated" in certificates.verified(data)


# --- data of any form ---

REMARKS = {"status", "place", "proofs"}
ODD = (None, True, -1, 10**30, 1.5, float("nan"), "", "x", "n - 5", [], {}, [[]], [None])


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places in data of which something is read."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for k, v in inside:
        if k not in REMARKS:
            yield (*path, k)
            yield from places(v, (*path, k))


def test_data_of_any_form_is_read_or_refused() -> None:
    def program(x, y, b):
        h = jax.lax.fori_loop(0, 3, lambda i, h: jnp.tanh(h @ (y @ y) + x), x)
        return jnp.exp(jnp.log(b)) + jnp.sum(h)

    best = rx.optimize(program, "n 8", "8 8", "n", facts={"b": "positive"}, bounds={"n": (2, 64)}, target="h100")
    data = certificates.plain(best.certificate())
    certificates.verified(data)
    rng = Random(0)
    found = list(places(data))
    chosen = [p for p in found if len(p) < 3] + rng.sample(found, 150)
    refused = 0
    for path in chosen:
        changed = copy.deepcopy(data)
        at = changed
        for k in path[:-1]:
            at = at[k]
        at[path[-1]] = rng.choice(ODD)
        try:
            certificates.verified(changed)
        except rx.errors.ExplanationError as e:
            refused += 1
            assert str(e)
    assert refused > 0.9 * len(chosen)
