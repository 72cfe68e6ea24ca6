"""Rules are checked in processes with limits: one that runs forever, or asks for all memory, stops nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from relax_eg.errors import RuleError
from relax_eg.rules.checking.verification import verify_in

FILE = '''
import os
from relax_eg import RuleSet, op

book = RuleSet("mixed")
calls = []

@book.rule("x: n", check=False)
def first(x):
    """x + x = 2 x"""
    return x + x, x * 2.0

@book.rule("x: n", check=False)
def endless(x):
    while True:
        pass

@book.rule("x: n", check=False)
def greedy(x):
    held = bytearray(64 << 30)
    return x + x, x * 2.0

@book.rule("x: n", check=False)
def leaves(x):
    os._exit(3)

@book.rule("x: n", check=False)
def wrong(x):
    return x + x, x

@book.rule("x: n", check=False)
def last(x):
    return op.negative(op.negative(x)), x
'''


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rules") / "mixed.py"
    path.write_text(FILE)
    return path


def test_limits(book: Path) -> None:
    told: list[tuple[str, int, int]] = []
    report = verify_in(2, book, seconds=3.0, memory=1 << 30, progress=lambda *step: told.append(step))
    status = {v.rule.name: v.status for v in report}
    assert status == {
        "first": "proved", "endless": "refuted", "greedy": "refuted", "leaves": "refuted", "wrong": "refuted",
        "last": "proved",
    }  # fmt: skip
    problems = {v.rule.name: v.problem for v in report.refuted}
    assert problems["endless"] == "  its check was stopped after 3 s; a rule runs only where it can be tested"
    assert "MemoryError" in problems["greedy"] or "asked for more than 1024 MiB of memory" in problems["greedy"]
    assert "its check ended the process (exit code 3)" in problems["leaves"]
    assert "left = " in problems["wrong"]
    assert sorted(name for name, _, _ in told) == sorted(status) and {of for _, _, of in told} == {6}


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="no file of rules at"):
        verify_in(1, tmp_path / "nowhere.py")
