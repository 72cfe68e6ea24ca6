"""Verdicts known by content: the shipped file covers the books, and a changed rule is another rule."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from relax_eg.ops import api as op
from relax_eg.ops.record import TABLE, Attribute, Operator, Site
from relax_eg.rules import Rule, RuleSet, Schema, content
from relax_eg.rules.book import default, everything, functions
from relax_eg.rules.checking import certificates
from relax_eg.rules.checking.certificates import known_verdict, operators_of, status, write_verdicts
from relax_eg.rules.checking.verification import verify
from relax_eg.rules.content import content_hash
from relax_eg.tir import Buffer


def one(function: Callable[..., Any], shapes: str = "x: n", name: str = "r", **options: Any) -> Rule:
    book = RuleSet("mine")
    book.rule(shapes, name=name, check=False, **options)(function)
    return book[name]


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

    monkeypatch.setattr("relax_eg.rules.checking.certificates.cached_verdict", checked)
    for rule in (r for r in default if not r.name.startswith("cudnn_")):
        assert status(rule).status in ("proved", "axiom", "tested")


EQUATIONS, ADD = TABLE["subtract"].equations, TABLE["add"]


def _negated(site: Site, buffers: tuple[Buffer, ...]) -> Any:
    return EQUATIONS and EQUATIONS(site, buffers)


@pytest.mark.parametrize("changed", [
    dataclasses.replace(ADD, equations=_negated),
    dataclasses.replace(ADD, reference=lambda x, y: x - y),
    dataclasses.replace(ADD, deduce=TABLE["equal"].deduce),
    dataclasses.replace(ADD, attributes=(Attribute("alpha", default=2.0),)),
])  # fmt: skip
def test_a_verdict_is_not_known_where_an_operator_means_something_else(
    changed: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = [r for r in everything if not r.name.startswith("cudnn_")]
    assert [r.name for r in chosen if known_verdict(r) is None] == []
    adding = {r.name for r in chosen if isinstance(r, Schema) or "add" in operators_of(r)}
    monkeypatch.setitem(TABLE, "add", changed)
    stale = {r.name for r in chosen if known_verdict(r) is None}
    assert stale == adding and 50 < len(adding) < len(chosen) / 2
    assert {"add_commutes", "matmul_left_factor", "sums_in_order", "plus_negative"} <= adding
    # Nothing but what it means: how it is run and what it costs is judged elsewhere.
    monkeypatch.setitem(TABLE, "add", dataclasses.replace(ADD, lower="jax.lax.sub", doc="another"))
    assert [r.name for r in chosen if known_verdict(r) is None] == []


def test_rules_that_ship_say_once_that_they_are_tested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(certificates.log, "warning", lambda text, *args: told.append(text % args))
    monkeypatch.setitem(TABLE, "add", dataclasses.replace(ADD, reference=lambda x, y: x - y))
    monkeypatch.setattr(certificates, "cached_verdict", lambda rule: rule)
    certificates._tell_stale.cache_clear()  # pyright: ignore[reportPrivateUsage]
    mine = one(lambda x: (x + x, 2 * x), name="add_commutes")
    status(mine)
    assert told == []
    for name in ("matmul_left_factor", "add_commutes"):
        status(default[name])
    assert len(told) == 1 and told[0].endswith("accepted: `python -m relax_eg.rules` writes it")


def test_what_the_books_say_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    hashed = certificates.content_hash
    monkeypatch.setattr(certificates, "content_hash", lambda rule: read.append(rule.name) or hashed(rule))
    certificates._found.clear()  # pyright: ignore[reportPrivateUsage]
    mine = one(lambda x: (x + x, 2 * x), name="add_commutes")
    for _ in range(3):
        assert known_verdict(default["add_commutes"]) is not None
        assert known_verdict(mine) is None
    assert read == ["add_commutes"] * 4  # ours once, the user's each time


def test_no_verdict_is_known_of_another_checker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "relax_eg"
    shutil.copytree(content._PACKAGE, package, ignore=shutil.ignore_patterns("*.pyc"))  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(content, "_PACKAGE", package)
    for file in ("rules/checking/judge.py", "rules/verify_formal/folds.py", "tir/functions.py", "shapes/dim.py"):
        path = package / file
        before = path.read_text()
        for text, is_same in (("\n# A remark.\n\n", True), ("\nTOLERANCE = 1.0\n", False)):
            path.write_text(before + text)
            content.checker.cache_clear()
            known = [known_verdict(r) for r in (default["add_commutes"], functions.schemas[0])]
            assert [v is not None for v in known] == [is_same] * 2
        path.write_text(before)
    content.checker.cache_clear()


def test_the_key_follows_what_the_language_of_rules_means(monkeypatch: pytest.MonkeyPatch) -> None:
    mean = one(lambda x: (op.mean(x, 0), op.mean(x, (0,))))
    before = content_hash(mean)
    monkeypatch.setattr(op, "mean", op.sum)
    assert content_hash(mean) != before


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
    good, bad = one(lambda x: (x + x, x * 2.0)), one(lambda x: (x - x * 2.0, x), name="bad")
    monkeypatch.setattr(certificates, "BOOK_VERDICTS", path)
    write_verdicts(verify([good, bad]), path)
    known = [known_verdict(r) for r in (good, bad)]
    assert [v and v.status for v in known] == ["proved", "refuted"]
    assert known[0] is not None
    assert (known[0].theory, known[0].ranks) == ("real", "")
    assert known[1] is not None
    assert "hint: the sides differ in sign" in str(known[1])
    text = path.read_text()
    write_verdicts(verify([good, bad]), path)
    assert path.read_text() == text
    path.write_text(json.dumps({"version": 0, "verdicts": {}}))
    certificates._known.cache_clear()  # pyright: ignore[reportPrivateUsage]
    assert known_verdict(good) is None
    certificates._known.cache_clear()  # pyright: ignore[reportPrivateUsage]
