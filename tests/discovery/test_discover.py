"""Laws that `rx.discover` finds: what they say, that they hold, that they are few, and how a search ends."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from programs_with_laws import gated, shortest
from typer.testing import CliRunner

import relax_eg as rx
from benchmarks.random_instances import differences
from relax_eg.cli import app
from relax_eg.discovery.conditions import Condition, contradiction
from relax_eg.discovery.generalising import generalised
from relax_eg.discovery.grammar import Grammar
from relax_eg.discovery.laws import Writer
from relax_eg.discovery.proving import LawProver
from relax_eg.discovery.table import EqualPair, TermTable
from relax_eg.discovery.terms import Rewriting, order
from relax_eg.discovery.typings import signatures
from relax_eg.discovery.values import SamplePoints
from relax_eg.errors import DiscoveryError
from relax_eg.ops.facts import FACTS
from relax_eg.rules.verify_formal.prove import prove_rule


def texts(found: rx.types.Discovery) -> set[str]:
    return {x.text for x in found.laws}


@pytest.fixture(scope="module")
def lattice() -> rx.types.Discovery:
    return rx.discover("maximum | minimum", "x: *b, y: *b", 2)


def test_a_lattice_is_found_from_nothing() -> None:
    lattice = rx.discover("maximum | minimum", "x: *b, y: *b, z: *b", 2)
    assert {"maximum(x, x) = x", "maximum(x, minimum(x, y)) = x", "minimum(x, maximum(x, y)) = x"} <= texts(lattice)
    assert {x.outcome for x in lattice.laws} == {"proved"}
    assert not lattice.failed
    assert len(lattice.laws) == 8
    assert lattice.followed > 5 * len(lattice.laws)


def test_bits_decide_the_class(lattice: rx.types.Discovery) -> None:
    classes = {x.text: x.numerics for x in lattice.laws}
    assert classes["maximum(x, x) = x"] == "exact"
    assert classes["maximum(y, x) = maximum(x, y)"] == "reassociate"  # zeros of different signs


def test_the_file_of_rules_is_one_that_a_person_could_have_written(lattice: rx.types.Discovery, tmp_path: Path) -> None:
    file = tmp_path / "laws.py"
    lattice.save(file)
    report = rx.verify(file)
    assert len(report) >= len(lattice.laws)
    assert all(v.holds_everywhere for v in report)
    assert 'def maximum_of_itself(x: Any) -> Any:\n    """maximum(x, x) = x"""\n' in file.read_text()


def test_laws_hold_at_random_instances(lattice: rx.types.Discovery) -> None:
    tried, wrong = differences(lattice.rules, 40)
    assert tried > 100
    assert not wrong


def test_the_same_seed_gives_the_same_laws() -> None:
    first, second = (rx.discover("maximum | negative", "x: *b, y: *b", 1) for _ in range(2))
    assert first.source == second.source


def test_what_is_known_is_left_out(lattice: rx.types.Discovery) -> None:
    assert not rx.discover("maximum | minimum", "x: *b, y: *b", 2, lattice.equations).laws


def test_constants_and_broadcasting() -> None:
    found = rx.discover("add", "x: *b, y: *b", 1, constants=(0,))
    assert "x + 0.0 = x" in texts(found)
    # That a sum commutes says so of a scalar and a tensor too.
    assert "0.0 + x = x" not in texts(found)
    assert found.rules["add_commutes_2"].signature["y"].text == "*c"
    assert "add_commutes_2" in rx.rules.default + found.rules  # the name of a shipped rule is not taken


def test_a_result_may_be_a_constant() -> None:
    found = rx.discover("subtract", "x: *b", 1, constants=(0,))
    (law,) = [x for x in found.laws if x.text.startswith("x - x")]
    assert "return x - x, op.zeros_like(x)" in law.source


def test_axes_become_variables_and_empty_axes_conditions() -> None:
    found = rx.discover("max(axes=(1,)) | exp | negative | sum(axes=(1,))", "x: m n", 2)
    assert any('attrs={"axes": "sum.axes"}' in x.source for x in found.laws)
    (law,) = [x for x in found.laws if "exp" in x.text]
    assert law.when == ("n >= 1",)
    assert law.text == "max(exp(x), -1) = exp(max(x, -1)) for n >= 1"
    assert {len(found.rules[law.name].operand_ranks((r,))) for r in (0, 2)} == {1}


def test_facts_are_tried_as_conditions() -> None:
    assert texts(rx.discover("abs", "x: *b", 1, facts="nonnegative")) == {"abs(x) = x for x >= 0"}
    assert "sqrt(x * x) = x for x >= 0" in texts(rx.discover("sqrt | multiply", "x: *b", 2, facts="nonnegative"))


def test_laws_of_a_tensor_program() -> None:
    found = rx.discover([gated, "multiply", "negative"], "x: n, y: n, z: n", 2)
    assert "x * gated(y, z) = gated(x * y, z)" in texts(found)
    assert "gated = parse_program(" in found.source
    assert not differences(found.rules, 40)[1]


def test_a_law_of_a_tensor_program_applies_at_other_sizes() -> None:
    found = rx.discover([gated, "multiply"], "x: n, y: n, z: n", 2)

    @rx.function
    def main(a: rx.Tensor("64"), b: rx.Tensor("64"), c: rx.Tensor("64")):
        with rx.dataflow():
            y = a * rx.call_tir(gated, (b, c))
            rx.script.output(y)
        return y

    with rx.debug.options(least_gain=1):
        best = rx.optimize(main, rules=found.rules)
    assert best.report.matches["multiply_of_gated"]


def test_sizes_that_are_not_there_for_all_numbers() -> None:
    found = rx.discover("maximum", "x: n-3, y: n-3", 1)
    assert texts(found) == {"maximum(x, x) = x", "maximum(y, x) = maximum(x, y)"}
    with pytest.raises(DiscoveryError, match="no array has these sizes where axes have 2 to 64 elements"):
        rx.discover("maximum", "x: n-99", 1)


def test_the_semiring_of_shortest_paths() -> None:
    found = rx.discover([shortest, "minimum"], "a: m k, b: k n, c: k n, d: n p", 2)
    (law,) = [x for x in found.laws if x.text.startswith("shortest(shortest(a, b), d) = shortest(a, shortest(b, d))")]
    assert set(law.when) == {"k >= 1", "m >= 1", "n >= 1", "p >= 1"}


@pytest.mark.parametrize("holds", [True, False])
def test_what_is_added_to_an_extreme(holds: bool) -> None:
    book = rx.RuleSet("extremes")

    @book.rule("a: m k, b: k n, c: n p", when=("k >= 1", "n >= 1"), check=False)
    def rule(a: Any, b: Any, c: Any) -> Any:
        def least(x: Any, y: Any) -> Any:
            return rx.op.min(rx.op.expand_dims(x, 2) + rx.op.expand_dims(y, 0), 1)

        return least(least(a, b), c), least(a, least(b, c)) if holds else least(a, least(b, c + c))

    assert (prove_rule(book["rule"]).status == "proved") is holds


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    asked = ("maximum | negative", "x: *b, y: *b", 2)
    calls = 0

    def stop(text: str, done: int, of: int) -> None:
        nonlocal calls
        calls += "proving" in text
        if calls > 3:
            raise KeyboardInterrupt

    first = rx.discover(*asked, folder=tmp_path, tell=stop)
    assert first.stopped == "interrupted"
    verdicts = (tmp_path / "verdicts.jsonl").read_text()
    assert verdicts
    (tmp_path / "verdicts.jsonl").write_text(verdicts + '{"key": "cut')
    whole = rx.discover(*asked, folder=tmp_path)
    assert whole.source == rx.discover(*asked).source
    assert (tmp_path / "verdicts.jsonl").read_text().startswith(verdicts)
    with pytest.raises(DiscoveryError, match="it is of a search with other grammar; accepted: an empty folder"):
        rx.discover("maximum", "x: *b, y: *b", folder=tmp_path)


def test_too_many_terms_end_the_search() -> None:
    found = rx.discover("add | multiply", "x: *b, y: *b", 4, terms=30)
    assert found.stopped.startswith("there would be ")
    assert found.stopped.endswith("terms of 2 operators; terms=30 are accepted")
    assert found.sizes[-1].operators == 1
    with pytest.raises(DiscoveryError, match="there would be 8 terms of 1 operators; terms=3 are accepted"):
        rx.discover("add | multiply", "x: *b, y: *b", terms=3)


def test_time_ends_the_search() -> None:
    assert rx.discover("add", "x: *b", seconds=0).stopped == "out of time"


@pytest.mark.parametrize(
    ("operators", "variables", "message"),
    [
        ("random_split", "x: n", "operator `random_split` draws from random keys, of which no law is known"),
        ("ad", "x: n", "no operator `ad`; did you mean"),
        ("sum(axis=(0,))", "x: n", "operator `sum` has no attribute `axis`; accepted: axes, keepdims"),
        ("pad", "x: n", "operator `pad` needs attribute `low`; accepted: a value for it"),
        ("sum", "x: *b n", "has a block, and `sum` has axes; accepted: a name for each axis"),
        ("matmul", "x:", "no operator applies to the variables"),
        ("after", "x: n", "operator `after` fixes the order of steps"),
        ("add", "x: n @ key<fry>", "holds random keys"),
        ("add", "", "variables: none are given"),
        ("add(", "x: n", "a name is accepted, or a name with attributes"),
        ("", "x: n", "a name is accepted"),
    ],
)
def test_what_is_not_accepted(operators: str, variables: str, message: str) -> None:
    with pytest.raises(DiscoveryError, match=message.replace("(", r"\(").replace("*", r"\*")):
        rx.discover(operators, variables)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ("sortd", "facts: 'sortd' is no fact; did you mean sorted"),
        (
            "symmetric",
            "facts: no variable can be symmetric; `x`: its rank is 1; a matrix, or a batch of them, is needed",
        ),
        ({"y": "positive"}, "facts: no variable `y`; accepted: x"),
        ({"x": "diagonal"}, "facts: `x` cannot be diagonal: its rank is 1"),
        ("x: positve", "facts: 'positve' is no fact; did you mean positive"),
        (": positive", "facts: ': positive'; accepted: facts after each variable, as in 'd: diagonal positive'"),
        ({"x": 3}, "facts=.*: words such as 'nonnegative', or .'x': 'nonnegative'., is accepted"),
    ],
)
def test_facts_that_no_variable_can_have(facts: Any, message: str) -> None:
    with pytest.raises(DiscoveryError, match=message):
        rx.discover("add", "x: n", facts=facts)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ("positive, nonpositive, integral", "positive and nonpositive"),
        ("finite diagonal positive", "diagonal and positive"),
        ("one-hot, nonpositive", "one-hot and nonpositive"),
        ("constant, orthogonal", "constant and orthogonal"),
        ("nonnegative, nonpositive, nonzero", "nonnegative and nonpositive and nonzero"),
    ],
)
def test_facts_that_contradict_each_other(facts: str, words: str) -> None:
    with pytest.raises(DiscoveryError) as e:
        rx.discover("add", "x: n n, y: n n", facts={"x": facts, "y": "positive"})
    assert str(e.value) == (
        f"facts: they contradict each other: `x` cannot be {words} at once; none of 96 arrays drawn for it, with axes "
        "of 2 elements, is; accepted: facts that an array has together"
    )


def test_any_two_facts_that_an_array_can_have_are_no_contradiction() -> None:
    matrix = Grammar("add", "x: n n").declared[0]
    apart = {frozenset(p) for p in itertools.combinations(FACTS, 2) if contradiction(p, matrix)}
    with_zeros = {"one_hot", "lower_triangular", "upper_triangular", "diagonal"}
    # A product of positive rows is no zero, and a constant matrix has rank 1 at most.
    known = {frozenset(p) for p in itertools.product(with_zeros, ("positive", "nonzero"))}
    known |= {frozenset(("nonpositive", f)) for f in ("positive", "one_hot", "positive_definite")}
    known |= {frozenset(("constant", f)) for f in ("one_hot", "positive_definite", "orthogonal", "invertible")}
    assert apart == known


def test_what_differs_at_nan_holds_for_numbers() -> None:
    found = rx.discover("where | not_equal", "x: *b, y: *b", 2)
    conditions = {x.text: x.when for x in found.laws}
    # Over the reals no number differs from itself; the side that stays would be NaN, or other than it was.
    assert conditions["where(not_equal(x, x), y, u) = u for x finite"] == ("finite(x)",)
    assert conditions["where(not_equal(x, y), x, y) = x"] == ()  # both are NaN
    assert not differences(found.rules, 20)[1]


def test_facts_that_hold_together_are_a_condition() -> None:
    found = rx.discover("maximum", "x: *b", 1, facts="x: integral positive", constants=(1,))
    conditions = {x.text: x.when for x in (*found.laws, *found.failed) if x.when}
    # Whole numbers may be 0, and positive ones less than 1.
    assert conditions == {"maximum(x, 1.0) = x for x integral and x > 0": ("integral(x)", "positive(x)")}
    assert not found.refuted


def test_known_rules_that_contradict_what_operators_compute() -> None:
    wrong = rx.RuleSet("wrong")

    @wrong.rule("x: *b, y: *b", check=False)
    def sum_is_first(x: Any, y: Any) -> Any:
        return x + y, x

    with pytest.raises(DiscoveryError, match=r"what operators compute: x = x \+ x follows from them, and for x = "):
        rx.discover("add", "x: *b, y: *b", 1, wrong)


def test_any_fact_is_tried() -> None:
    found = rx.discover("permute_dims(axes=(1,0))", "x: n n", 1, facts="symmetric")
    assert texts(found) == {"x.T = x for x symmetric"}
    assert 'when="symmetric(x)"' in found.source


@pytest.mark.slow
def test_of_operators_without_equations_laws_are_tested_only() -> None:
    found = rx.discover("sort(axis=1) | max(axes=(1,))", "x: m n", 2)
    assert {x.outcome for x in found.laws} == {"tested"}
    assert str(found.laws[-1]).endswith("      tested, not proved, exact")
    assert "max_of_sort" in {x.name for x in found.tested}
    assert "Tested only, because an operator has no equations: " in found.source.replace("\n", " ")
    assert "0 laws proved, 2 tested only" in str(found)


def test_variables_are_told_apart() -> None:
    grammar = Grammar("where | add", "c: *b @ bool, x: *b, y: *b")
    c, x, y, *_ = range(grammar.declared_count)
    table = TermTable(grammar, SamplePoints(grammar, False, 0))
    where, add = 0, 1
    found = EqualPair((where, c, (add, x, x), (add, x, y)), (add, x, (where, c, x, y)))
    general = generalised(found, table)
    assert Writer(grammar).text(general) == "where(c, x + w, x + y) = x + where(c, w, y)"
    assert grammar.declared_count == 3
    assert generalised(general, table) == general


def typings(operators: str, variables: str, left: Any, right: Any) -> list[str]:
    return [s.shapes for s in signatures(EqualPair(left, right), Grammar(operators, variables), every=True)]


def test_operands_broadcast_and_matrices_have_batches() -> None:
    assert typings("add", "x: *b, y: *b", (0, 1, 0), (0, 0, 1))[0] == "x: *a *c, y: *c"
    three = typings("add", "x: *b, y: *b, z: *b", (0, 0, (0, 1, 2)), (0, (0, 0, 1), 2))
    assert three[:2] == ["x: *c, y: *a *c, z: *a *c", "x: *a *c, y: *c, z: *a *c"]
    assert three[6:] == [
        "x: *b, y: *b, z: *b",
        "x: *b, y: *b, z: *b",
        "x: *b @ float32, y: *b @ float32, z: *b @ float32",
    ]
    assert "a: *b m k, b: k n" in typings("matmul | negative", "a: m k, b: k n", (0, (1, 0), 1), (1, (0, 0, 1)))


def test_matrices_with_batches_are_transposed_from_behind() -> None:
    (law,) = rx.discover("permute_dims(axes=(1,0))", "a: m k", 2).laws
    assert '@_rule("a: *b m k"' in law.source or '"axes": "permute_dims.axes"' in law.source


def test_a_false_candidate_is_refuted_with_a_counterexample() -> None:
    grammar = Grammar("subtract", "x: *b, y: *b")
    with LawProver(grammar, Writer(grammar), "approximate", 1, None) as prover:
        (proof,) = prover.prove([(EqualPair((0, 0, 1), (0, 1, 0)), "wrong")], lambda *_: None)
    assert proof.outcome == "refuted"
    assert "left = " in proof.problem


def test_a_law_may_be_accurate_in_one_direction() -> None:
    grammar = Grammar("power | log | multiply", "x: *b, y: *b")
    power, log, multiply = range(3)
    candidate = EqualPair(
        (log, (power, 0, 1)), (multiply, 1, (log, 0)), Condition(("positive(x)",), frozenset(((0, "positive"),)))
    )
    with LawProver(grammar, Writer(grammar), "reassociate", 1, None) as prover:
        (proof,) = prover.prove([(candidate, "law")], lambda *_: None)
    assert proof.outcome == "proved"
    assert "both=True" not in proof.source


def test_a_table_keeps_one_term_of_a_class() -> None:
    grammar = Grammar("add", "x: *b, y: *b")
    table = TermTable(grammar, SamplePoints(grammar, False, 0))
    assert table.next_count() == 4
    (candidate,) = table.grow()
    assert (candidate.left, candidate.right) == ((0, 1, 0), (0, 0, 1))
    assert table.classes == 5
    assert table.next_count() == 2 * 2 * 3


def test_rewriting_ends() -> None:
    grammar = Grammar("add", "x: *b, y: *b, z: *b")
    rewriting = Rewriting(grammar)
    rewriting.add((0, 1, 0), (0, 0, 1), 7)
    assert rewriting.reducer((0, 2, 1)) == 7
    assert rewriting.reducer((0, 1, 2)) is None
    assert order((0, 1, 2), grammar) < order((0, 2, 1), grammar)


def test_values_are_those_of_the_interpreter() -> None:
    grammar = Grammar("subtract | exp", "x: *b, y: *b")
    points = SamplePoints(grammar, False, 0)
    table = TermTable(grammar, points)
    table.grow()
    x, y, *_ = points.values[0]
    (made,) = [k for k in table._kept.values() if (0, 0, 1) in k.terms]
    assert np.array_equal(made.stacked(0)[made.terms.index((0, 0, 1))], x - y)


def test_the_report(lattice: rx.types.Discovery, tmp_path: Path) -> None:
    page = lattice.to_html(tmp_path / "laws.html")
    assert "maximum(x, minimum(x, y)) = x" in page
    assert (tmp_path / "laws.html").read_text() == page
    assert '"outcome": "proved"' in lattice.to_json()
    assert "8 laws proved, from which" in str(lattice)


def test_the_command(tmp_path: Path) -> None:
    program = Path(__file__).with_name("programs_with_laws.py")
    save = tmp_path / "laws.py"
    arguments = [f"{program}:gated", "multiply", "--variables", "x: n, y: n", "--size", "1", "--known", "none"]
    ran = CliRunner().invoke(app, ["discover", *arguments, "--jobs", "1", "--save", str(save)])
    assert ran.exit_code == 0, ran.output
    assert "y * x = x * y" in " ".join(ran.output.split())
    assert "multiply_commutes_2" in save.read_text()


def of_square(x):
    return jnp.abs(x * x)


def test_the_command_says_what_laws_save_on_a_function() -> None:
    grammar = ["abs", "multiply", "--variables", "x: *b", "--size", "2", "--jobs", "1", "--known"]
    on = ["--on", f"{__file__}:of_square", "--spec", "n 512", "--at", "n=256"]
    ran = CliRunner().invoke(app, ["discover", *grammar, "none", *on])
    assert ran.exit_code == 0, ran.output
    assert re.search(r"of_square: .* us -> .* us \(\d+% less\) by abs_of_multiply", " ".join(ran.output.split()))
    ran = CliRunner().invoke(app, ["discover", *grammar, "default", *on])
    assert "of_square: the found laws save nothing besides those that are known" in " ".join(ran.output.split())
    ran = CliRunner().invoke(app, ["discover", *grammar, "none", "--on", f"{__file__}:NUMBER"])
    assert ran.exit_code == 1
    assert "is int; a tensor program is accepted, a function" in " ".join(ran.output.split())


def test_the_command_refuses_what_is_no_operator() -> None:
    asked = ["discover", f"{__file__}:NUMBER", "--variables", "x: n", "--known", "none"]
    ran = CliRunner().invoke(app, asked)
    assert ran.exit_code == 1
    assert "is int; a tensor program is accepted" in " ".join(ran.output.split())


NUMBER = 3


routines = rx.RuleSet("routines")


@routines.library("laws.gram", shapes="a: m k", target=lambda a: a @ a.T)
def gram(a):
    """A A'"""
    return a @ a.T


@routines.library("laws.scaled", shapes="a: m k", attrs={"y": "integer_pow.y"}, target=lambda a, y: a**y)
def scaled(a, y):
    """a ** y"""
    return rx.op.integer_pow(a, y)


def test_laws_of_library_routines() -> None:
    found = rx.discover("laws.gram | permute_dims(axes=(1,0)) | negative | matmul", "a: m k", 2)
    said = {law.text.partition(" for ")[0] for law in found.tested}
    assert {"laws.gram(a).T = laws.gram(a)", "laws.gram(-a) = laws.gram(a)"} <= said
    assert any("a @ a.T" in text for text in said)
    assert 'op.library("laws.gram", ' in found.source
    assert not [v for v in rx.verify(found.rules) if v.status == "refuted"]


def test_attributes_of_library_routines() -> None:
    found = rx.discover("laws.scaled(y=2) | negative", "a: m k", 2)
    assert "laws.scaled(-a, y=2) = laws.scaled(a, y=2)" in [law.text for law in found.tested]
    with pytest.raises(DiscoveryError, match=r"library `laws\.scaled` takes attributes y, and none are given"):
        rx.discover("laws.scaled", "a: m k", 2)
