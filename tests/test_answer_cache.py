"""Answers of schemas that are kept in the disk cache: other programs find them, and nothing else changes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import pytest

import relax_eg as rx
from relax_eg.cache_folder import store
from relax_eg.ir.expr import const, var
from relax_eg.ops import api as op
from relax_eg.ops.record import TABLE
from relax_eg.rules import answer_cache, shared_parts
from relax_eg.rules.answer_cache import AnswerCache, data_as_expressions, expressions_as_data, write_answers
from relax_eg.rules.verify_formal import prove
from relax_eg.store import StoreWarning

SPECS = ("n 64", "64 64", "64 64")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("RELAX_EG_CACHE", "1")
    monkeypatch.setenv("RELAX_EG_CACHE_DIR", str(tmp_path))
    another_process()
    yield tmp_path
    another_process()


def another_process() -> None:
    """Forgets what this process knows."""
    for name in ("pointwise", "sum_products"):
        sys.modules[f"relax_eg.rules.book.{name}"]._known.forget()
    shared_parts._known.forget()
    answer_cache._entries.__init__()


def entry(folder: Path) -> Path:
    (found,) = folder.glob("answers-*.entry")
    return found


def program(x: Any, w: Any, v: Any) -> Any:
    return jnp.exp(jnp.log(jax.nn.sigmoid(x @ w + x @ v))) * 2.0 / 2.0


def edited(x: Any, w: Any, v: Any) -> Any:
    """Another program with the same parts."""
    return jnp.tanh(program(x, w, v))


def optimized(fn: Any) -> tuple[str, int]:
    """The program that is chosen, and how many questions were asked anew."""
    asked = 0
    with pytest.MonkeyPatch.context() as patched:
        for name in ("pointwise", "sum_products"):
            book = sys.modules[f"relax_eg.rules.book.{name}"]
            anew = book._forms_anew

            def counted(*args: Any, anew: Any = anew) -> Any:
                nonlocal asked
                asked += 1
                return anew(*args)

            patched.setattr(book, "_forms_anew", counted)
        return str(rx.optimize(fn, *SPECS, at={"n": 8}).module), asked


def test_another_process_asks_only_about_what_is_new() -> None:
    with rx.debug.options(cache=False):
        wanted, all_asked = optimized(edited)
    another_process()
    _, first = optimized(program)
    another_process()
    found, asked = optimized(edited)
    assert found == wanted
    assert 0 < asked < all_asked - first / 2


def test_without_the_cache_nothing_is_written(folder: Path) -> None:
    with rx.debug.options(cache=False):
        optimized(program)
    assert list(folder.iterdir()) == []


def test_what_checks_a_search_finds_its_own_answers(folder: Path) -> None:
    x, kept = var("x", rx.Tensor("n")), answers("a")
    assert kept.answer([x], (), 1.0, lambda: "by a search") == "by a search"
    with rx.debug.options(cache=False):
        assert kept.answer([x], (), 1.0, lambda: "by a check") == "by a check"
    assert kept.answer([x], (), 1.0, lambda: "anew") == "by a search"


def test_proofs_of_a_search_are_made_again_where_it_is_explained(folder: Path) -> None:
    best = rx.optimize(lambda x: jnp.max(jnp.exp(x) * 2.0), "n 64", at={"n": 256}, rules=rx.rules.reductions)
    assert best.report.rules
    asked: list[Any] = []
    anew = prove.why_not_equal
    with patch.object(prove, "why_not_equal", lambda *args: asked.append(args) or anew(*args)):
        best.explain()
    assert asked


def test_many_entries_become_one(folder: Path) -> None:
    count = answer_cache._MOST_ENTRIES + 1
    for i in range(count):
        answers("a").answer([var("x", rx.Tensor("n"))], i, 1.0, lambda i=i: str(i))
        write_answers()
    assert len(list(folder.glob("answers-*"))) == count
    answer_cache._entries.__init__()
    assert answers("a").answer([var("x", rx.Tensor("n"))], 3, 1.0, lambda: "anew") == "3"
    assert len(json.loads(store().read(entry(folder).stem) or b"")) == count


def test_processes_add_to_one_table(folder: Path) -> None:
    for name in "ab":
        answers(name).answer([var("x", rx.Tensor("n"))], name, 1.0, lambda: "found")
        write_answers()
        answer_cache._entries.__init__()
    assert len(answer_cache._entries.read()) == 2
    assert answers("b").answer([var("x", rx.Tensor("n"))], "b", 1.0, lambda: "anew") == "found"


def test_questions_differ_in_all_that_answers_follow_from() -> None:
    x, y = var("x", rx.Tensor("n")), var("x", rx.Tensor("n", "float64"))
    questions = [
        ([x], 1),
        ([y], 1),
        ([x], 2),
        ([op.add(x, x)], 1),
        ([op.add(x, const(1.0))], 1),
        ([op.add(x, const(2.0))], 1),
    ]
    for i, (asked, about) in enumerate(questions):
        assert answers("a").answer(asked, about, 1.0, lambda i=i: str(i)) == str(i)
    assert answers("b").answer([x], 1, 1.0, lambda: "another kind") == "another kind"


def test_what_a_clock_may_have_cut_short_is_not_kept(folder: Path) -> None:
    answers("a").answer([var("x", rx.Tensor("n"))], (), 0.0, lambda: "found")
    write_answers()
    assert list(folder.iterdir()) == []


def test_what_operators_of_users_mean_is_not_kept(folder: Path) -> None:
    with patch.dict(TABLE, {"another": TABLE["add"]}):
        answers("a").answer([var("x", rx.Tensor("n"))], (), 1.0, lambda: "found")
    write_answers()
    assert list(folder.iterdir()) == []


def test_a_damaged_entry_is_told_and_answers_are_found_again(folder: Path) -> None:
    optimized(program)
    store().write(entry(folder).stem, b"[]")
    another_process()
    with pytest.warns(StoreWarning, match="is ignored: it is no table of answers"):
        _, asked = optimized(edited)
    assert asked


def test_an_answer_that_cannot_be_read_is_found_again(folder: Path) -> None:
    with rx.debug.options(cache=False):
        wanted, _ = optimized(edited)
    another_process()
    optimized(program)
    known = json.loads(store().read(entry(folder).stem) or b"")
    assert known
    store().write(entry(folder).stem, json.dumps(dict.fromkeys(known, '["not", "an answer"]')).encode())
    another_process()
    assert optimized(edited)[0] == wanted


def test_expressions_are_the_same_after_reading() -> None:
    x = var("x0", rx.Tensor(""))
    values = (op.exp(x), None, op.add(x, const(0.1)), op.where(op.greater(x, const(0.0)), x, const(float("nan"))))
    found = data_as_expressions(json.loads(json.dumps(expressions_as_data(values))))
    assert all(a is b for a, b in zip(found, values, strict=True))


def answers(kind: str) -> AnswerCache[str]:
    return AnswerCache(kind, 8, str, str)
