"""Every law fires on a program of the corpus or, where there is none, on its own left side, and what is chosen of every
program equals what was written, as the reference interpreter and as XLA runs it; the slow part takes other arguments
and sizes.

    python -m pytest -m slow tests/rules/test_corpus.py
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from sampling import sampled

import relax_eg as rx
from benchmarks.corpus import CORPUS, Program
from benchmarks.corpus.disguise import disguised
from benchmarks.corpus.fired import corpus_rules, fired, is_stopped, shipped, variants, witnesses
from benchmarks.minimality import reached
from relax_eg.explain.values import compare_values, draw, stand_in_value
from relax_eg.ops.interpret import evaluate
from relax_eg.rules.checking.schema_trials import first_difference
from relax_eg.rules.rule import instances

WITNESSES = witnesses()
LAW_OF = variants()
INSTANCES = 4  # of a rule, of which one has to fire


def assert_equal(program: Program, best: Any, seed: int) -> None:
    """The chosen module as the reference interpreter and as XLA runs it, against the program as written, within what
    the numerics class allows."""
    numerics = program.options.get("numerics", "reassociate")
    made = best._program
    specs = program.specs
    written = program.made_of if isinstance(program.made_of, rx.types.Module) else rx.trace(program.made_of, *specs)
    names = [str(p.attr("name")) for p in written.main.params]
    facts = {n: frozenset(f) for n, f in zip(names, made.facts, strict=True)}
    args, sizes = draw(written.main, made.scope, facts, seed)
    expected = evaluate(written, args, sizes=sizes, libraries=stand_in_value)
    assert not compare_values(expected, evaluate(best.module, args, sizes=sizes, libraries=stand_in_value), numerics)
    if made.is_as_written:
        return
    arrays = [jax.numpy.asarray(a) for a in args]
    run, original = (tuple(map(np.asarray, jax.tree.leaves(f(arrays)))) for f in (made.run_chosen, made.run_as_written))
    assert not compare_values(original, run, numerics)


def assert_no_worse(report: Any) -> None:
    assert is_stopped(report), f"{report.stop}, {report.peak} nodes"
    assert report.after.seconds <= report.before.seconds


@pytest.mark.parametrize("name", sampled(list(CORPUS), 8))
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


BY_NAME = {r.name: r for r in corpus_rules()}


@pytest.mark.parametrize("law", [law for law in shipped() if law not in WITNESSES])
def test_a_law_without_a_program_fires_on_its_left_side(law: str) -> None:
    if law not in BY_NAME:
        (schema,) = [s for s in corpus_rules().schemas if s.name == law]
        right, problem = first_difference(schema, 20)  # on its own programs
        assert right and not problem
        return
    rule = BY_NAME[law]
    assert any(reached(i, rx.RuleSet("alone", [rule])) for i in islice(instances(rule), INSTANCES))


@pytest.mark.parametrize("name", sampled(list(CORPUS), 8))
def test_no_program_is_a_left_side(name: str) -> None:
    assert disguised(CORPUS[name], corpus_rules()) is None


def test_a_left_side_in_disguise_is_found() -> None:
    def adapted(w: Any, a: Any, b: Any, x: Any) -> Any:
        return x @ (w + a @ b)

    def scaled(w: Any, a: Any, b: Any, x: Any) -> Any:
        return 2.0 * adapted(w, a, b, x)

    def judged(fn: Any, *specs: str) -> str | None:
        rule = disguised(Program(fn.__name__, "", "", fn, specs, {}, {}), corpus_rules())
        return None if rule is None else rule.name

    specs = ("n m", "n 4", "4 m", "b n")
    assert judged(adapted, *specs) == "adapter_applies"
    assert judged(scaled, *specs) is None  # something is around it
    assert judged(lambda a: jax.numpy.exp(jax.numpy.tanh(a)), "n m") is None


def test_the_corpus_is_large_and_says_what_it_is() -> None:
    assert len(CORPUS) >= 120
    assert all(p.doc and "\n" not in p.doc for p in CORPUS.values())


def test_the_page_about_the_corpus_is_current() -> None:
    from docs.corpus import DOCUMENT, page

    assert Path(DOCUMENT).read_text(encoding="utf-8") == page(), "python -m docs.corpus writes it anew"
