"""Every law fires on a program as people write it, and what is chosen of every program of the corpus equals what was
written, as the reference interpreter and as XLA runs it; the slow part takes other arguments and sizes.

    python -m pytest -m slow tests/rules/test_corpus.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import relax_eg as rx
from benchmarks.corpus import CORPUS, Program
from benchmarks.corpus.fired import fired, is_stopped, shipped, variants, witnesses
from relax_eg.explain.values import compared, draw, stand_in
from relax_eg.ops.interpret import evaluate

WITNESSES = witnesses()
LAW_OF = variants()


def assert_equal(program: Program, best: Any, seed: int) -> None:
    """The chosen module as the reference interpreter and as XLA runs it, against the program as written, within what
    the numerics class allows."""
    numerics = program.options.get("numerics", "reassociate")
    made = best._program
    specs = program.specs
    written = program.made_of if isinstance(program.made_of, rx.Module) else rx.trace(program.made_of, *specs)
    names = [str(p.attr("name")) for p in written.main.params]
    facts = {n: frozenset(f) for n, f in zip(names, made.facts, strict=True)}
    args, sizes = draw(written.main, made.scope, facts, seed)
    expected = evaluate(written, args, sizes=sizes, libraries=stand_in)
    assert not compared(expected, evaluate(best.module, args, sizes=sizes, libraries=stand_in), numerics)
    if made.kept:
        return
    arrays = [jax.numpy.asarray(a) for a in args]
    run, original = (tuple(map(np.asarray, jax.tree.leaves(f(arrays)))) for f in (made.chosen, made.original))
    assert not compared(original, run, numerics)


def assert_no_worse(report: Any) -> None:
    assert is_stopped(report), f"{report.stop}, {report.peak} nodes"
    assert report.after.seconds <= report.before.seconds


@pytest.mark.parametrize("name", CORPUS)
def test_laws_fire_and_what_is_chosen_equals_the_program_as_written(name: str) -> None:
    best = CORPUS[name].optimized()
    found = {LAW_OF[r] for r in fired(best.report) if r in LAW_OF}
    assert [law for law, w in WITNESSES.items() if w.program == name and law not in found] == []
    assert_no_worse(best.report)
    assert_equal(CORPUS[name], best, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", CORPUS)
def test_what_is_chosen_equals_the_program_as_written_at_other_sizes(name: str) -> None:
    best = CORPUS[name].optimized()
    for seed in (1, 2, 3):
        assert_equal(CORPUS[name], best, seed)


def test_a_residual_stream_is_not_multiplied_out() -> None:
    """Each block's products through all blocks before it would be 106,000 nodes."""
    assert CORPUS["six_blocks_without_norms"].optimized().report.peak <= 8_000


def test_every_law_has_a_program() -> None:
    assert [law for law in shipped() if law not in WITNESSES] == []


def test_the_corpus_is_large_and_says_what_it_is() -> None:
    assert len(CORPUS) >= 120
    assert all(p.doc and "\n" not in p.doc for p in CORPUS.values())


def test_the_page_about_the_corpus_is_current() -> None:
    from docs.corpus import DOCUMENT, page

    assert Path(DOCUMENT).read_text(encoding="utf-8") == page(), "python -m docs.corpus writes it anew"
