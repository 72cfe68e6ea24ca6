"""Verdicts known by content: the shipped file covers the books, and a changed rule is another rule."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from relax_eg.ops import api as op
from relax_eg.rules import Rule, RuleSet, certificates
from relax_eg.rules.book import default
from relax_eg.rules.certificates import content_hash, known_verdict, status, write_verdicts


def one(function: Callable[..., Any], shapes: str = "x: n", **options: Any) -> Rule:
    book = RuleSet("mine")
    book.rule(shapes, name="r", check=False, **options)(function)
    return book["r"]


def test_every_rule_of_the_books_has_a_verdict_on_file() -> None:
    # After a change of a rule: python -m relax_eg.rules
    missing = [r.name for r in default if known_verdict(r) is None]
    assert all(name.startswith("cudnn_") for name in missing)  # a routine is tested where it is
    verdicts = [status(r) for r in default - "library"]
    assert {v.status for v in verdicts} <= {"proved", "tested"}
    assert sum(v.status == "proved" and v.theory != "" for v in verdicts) >= 0.9 * len(verdicts)


def test_operators_on_file_are_those_of_the_rules() -> None:
    def fresh(rule: Rule) -> Rule:
        return dataclasses.replace(rule, _instances={})

    on_file = {r.name: fresh(r) for r in default - "library"}
    assert all(known_verdict(r) for r in on_file.values())
    assert [n for n, r in on_file.items() if "left_operators" not in vars(r)] == []
    assert [n for n, r in on_file.items() if r.left_operators != fresh(r).left_operators] == []


def test_verdicts_on_file_are_not_reached_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def checked(rule: Any) -> Any:
        raise AssertionError(f"{rule.name} was checked, though its verdict is on file")

    monkeypatch.setattr("relax_eg.rules.certificates.remembered", checked)
    for rule in (r for r in default if not r.name.startswith("cudnn_")):
        assert status(rule).status in ("proved", "tested")


def test_the_key_follows_the_content() -> None:
    def doubled(x: Any) -> Any:
        return x + x, x * 2.0

    def tripled(x: Any) -> Any:
        return x + x + x, x * 3.0

    keys = [
        content_hash(one(doubled)),
        content_hash(one(tripled)),
        content_hash(one(doubled, "x: m")),
        content_hash(one(doubled, "x: n @ float16")),
        content_hash(one(doubled, when="n >= 1")),
        content_hash(one(doubled, numerics="exact")),
    ]
    assert len(set(keys)) == len(keys)
    assert content_hash(one(doubled)) == keys[0]


def test_the_key_follows_what_a_function_closes_over_and_calls() -> None:
    def scaled(factor: float) -> Rule:
        return one(lambda x: (x * factor, x * factor))

    def through(f: Callable[..., Any]) -> Rule:
        return one(lambda x: (f(x) * 1.0, f(x)))

    assert content_hash(scaled(2.0)) != content_hash(scaled(3.0))
    assert content_hash(scaled(2.0)) == content_hash(scaled(2.0))
    assert content_hash(through(op.exp)) != content_hash(through(op.log))

    def half(x: Any) -> Any:
        return x * 0.5

    def quarter(x: Any) -> Any:
        return x * 0.25

    assert content_hash(through(half)) != content_hash(through(quarter))
    assert content_hash(through(partial(op.sum, axis=0))) != content_hash(through(partial(op.max, axis=0)))


def test_two_rules_on_one_line_are_two() -> None:
    good, bad = one(lambda x: (x + x, x * 2.0)), one(lambda x: (x + x, x * 3.0))
    assert content_hash(good) != content_hash(bad)
    assert [status(r).status for r in (good, bad)] == ["tested", "refuted"]


def test_a_function_without_source_is_known_by_its_instances() -> None:
    scope: dict[str, Any] = {}
    exec("def f(x):\n    return x + x, x * 2.0\ndef g(x):\n    return x + x, x * 3.0", scope)
    assert content_hash(one(scope["f"])) != content_hash(one(scope["g"]))


def test_verdicts_are_written_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "verdicts.json"
    good, bad = one(lambda x: (x + x, x * 2.0)), one(lambda x: (x - x * 2.0, x))
    monkeypatch.setattr(certificates, "BOOK_VERDICTS", path)
    write_verdicts([good, bad], path)
    known = [known_verdict(r) for r in (good, bad)]
    assert [v and v.status for v in known] == ["proved", "refuted"]
    assert known[0] is not None
    assert (known[0].theory, known[0].ranks) == ("real", "")
    assert known[1] is not None
    assert "hint: the sides differ in sign" in str(known[1])
    text = path.read_text()
    write_verdicts([good, bad], path)
    assert path.read_text() == text
    # What another prover proved counts as tested.
    path.write_text(json.dumps(json.loads(text) | {"prover": 0}))
    certificates._known.cache_clear()  # pyright: ignore[reportPrivateUsage]
    assert (found := known_verdict(good)) is not None
    assert (found.status, found.theory) == ("tested", "")
    path.write_text(json.dumps({"version": 0, "verdicts": {}}))
    certificates._known.cache_clear()  # pyright: ignore[reportPrivateUsage]
    assert known_verdict(good) is None
    certificates._known.cache_clear()  # pyright: ignore[reportPrivateUsage]
