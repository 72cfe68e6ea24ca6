"""What a rule says as a token: it follows the rule's function wherever its outcome can come from."""

from __future__ import annotations

import functools
import importlib
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relax_eg.ir.tokens import NoContentError
from relax_eg.ops import api as op
from relax_eg.rules import Rule, RuleSet
from relax_eg.rules.book import default
from relax_eg.rules.content import rule_token
from relax_eg.rules.schemas import Schema

FACTOR = 2.0


def one(function: Callable[..., Any], shapes: str = "x: n", name: str = "r", **options: Any) -> Rule:
    book = RuleSet("mine")
    book.rule(shapes, name=name, check=False, **options)(function)
    return book[name]


def text(function: Callable[..., Any], **options: Any) -> str:
    return repr(rule_token(one(function, **options)))


def test_the_shipped_rules_all_have_one_of_their_own() -> None:
    found = [repr(rule_token(r)) for r in (*default, *default.schemas)]
    assert len(set(found)) == len(found) > 100


def test_rules_that_say_different_things_differ() -> None:
    def doubled(x: Any) -> Any:
        return x + x, x * 2.0

    plain = text(doubled)
    assert text(doubled, doc="said otherwise", tags=("mine",)) == plain == text(lambda x: (x + x, x * 2.0))
    others = [
        text(lambda x: (x + x + x, x * 3.0)),
        text(lambda x: (x + x, x * 2)),
        text(lambda x: (x + x, x * -0.0)),
        text(lambda x: (x + x, x * 0.0)),
        text(doubled, name="another"),
        text(doubled, shapes="x: m"),
        text(doubled, shapes="x: n @ float16"),
        text(doubled, when="n >= 1"),
        text(doubled, numerics="exact"),
        text(doubled, phase="simplify"),
    ]
    assert len({plain, *others}) == 1 + len(others)
    book = RuleSet("both")
    book.rule("x: n", name="r", both=True, check=False)(doubled)
    assert len({repr(rule_token(r)) for r in book}) == 2


def test_what_a_function_closes_over_calls_and_has_as_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(value: Any) -> str:
        return text(lambda x: (x * value, x))

    def defaulted(value: Any) -> str:
        return text(lambda x, c=value: (x * c, x))

    def called(f: Callable[..., Any]) -> str:
        return text(lambda x: (f(x) * 1.0, f(x)))

    def helper(value: float) -> Callable[..., Any]:
        return lambda x: x * value

    def looped(x: Any, again: bool = False) -> Any:
        return (x, x) if again else looped(x, True)

    same = [closed(2.0), defaulted(2.0), called(op.exp), called(helper(0.5)), text(looped)]
    assert same == [closed(2.0), defaulted(2.0), called(op.exp), called(helper(0.5)), text(looped)]
    other = [closed(3.0), closed(2), closed(True), defaulted(3.0), called(op.log), called(helper(0.25)),
             called(functools.partial(op.sum, axis=0)), called(functools.partial(op.sum, axis=1)),
             called(np.exp), called(np.log), called(math.exp), closed(np.arange(3)), closed([1, [2]])]  # fmt: skip
    assert len({*same, *other}) == len(same) + len(other)
    before = text(lambda x: (x * FACTOR, x))
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3.0)
    assert text(lambda x: (x * FACTOR, x)) != before


def test_classes_and_modules_of_users_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = """
import helpers_of_a_test as helpers
from helpers_of_a_test import Helper
def through_module(x): return helpers.half(x), x
def through_class(x): return Helper.half(x), x
"""
    helper = "class Helper:\n    @staticmethod\n    def half(x): return x * {0}\n\ndef half(x): return x * {0}\n"
    found: set[str] = set()
    for factor in ("0.5", "0.25"):
        (tmp_path / "helpers_of_a_test.py").write_text(helper.format(factor))
        (tmp_path / "rules_of_a_test.py").write_text(module)
        for name in ("helpers_of_a_test", "rules_of_a_test"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        rules = importlib.import_module("rules_of_a_test")
        found |= {text(rules.through_module), text(rules.through_class)}
    assert len(found) == 4


def test_what_does_not_show_its_content_has_no_token() -> None:
    class Box:
        value = 2.0

    box = Box()
    for function in (lambda x: (x * box.value, x), functools.lru_cache(lambda x: (x * box.value, x))):
        with pytest.raises(NoContentError, match=r"the content of a .*Box does not show"):
            rule_token(one(function))


def test_schemas_too() -> None:
    def nothing(e: Any, known: Any) -> None:
        return None

    def another(e: Any, known: Any) -> Any:
        return e

    named = (("a", nothing), ("b", nothing), ("a", another))
    made = [Schema(n, "", "exact", frozenset(), f, frozenset()) for n, f in named]
    assert len({repr(rule_token(s)) for s in made}) == 3
