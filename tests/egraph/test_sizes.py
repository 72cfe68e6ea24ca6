"""Sizes of different form that a scope makes equal are one size in the e-graph, there and nowhere else."""

from __future__ import annotations

import pytest

from relax_eg import op
from relax_eg.egraph import Budget, EGraph, UnsoundRuleError, dump
from relax_eg.egraph.sizes import EqualSizes
from relax_eg.ir import Tensor, Tuple, call_dps_library, node, tuple_get, var
from relax_eg.rules import RuleSet
from relax_eg.rules.book import default
from relax_eg.shapes import Dim, Scope


def scope(*assumptions: str, bounds: dict[str, tuple[int, int]] | None = None) -> Scope:
    made = Scope(bounds)
    if assumptions:
        made.assume(*assumptions)
    return made


def dims(*texts: str) -> list[Dim]:
    return [Dim.of(t) for t in texts]


@pytest.mark.parametrize(
    ("where", "texts", "equal"),
    [
        (scope("n % 8 == 0"), ("n", "8*(n//8)"), 1),
        (scope(), ("n", "8*(n//8)"), 0),
        (scope(bounds={"n": (1, 64)}), ("n", "min(n, 64)", "max(n, 1)"), 2),
        (scope(bounds={"n": (1, 65)}), ("n", "min(n, 64)"), 0),
        (scope("n == 2*m"), ("n", "2*m", "n + 1", "2*m + 1", "m"), 2),
        (scope("a == b", "b == c"), ("a", "c", "a*b", "c*c"), 2),
    ],
)
def test_what_is_equal(where: Scope, texts: tuple[str, ...], equal: int) -> None:
    found = EqualSizes(where)
    assert len([p for d in dims(*texts) for p in found.proved([d])]) == equal
    assert len(EqualSizes(where).proved(dims(*texts))) == equal


def test_few_questions_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that differ anywhere are told apart by the points."""
    where = scope("n % 8 == 0")
    asked: list[Dim] = []
    ask = where.equal
    monkeypatch.setattr(where, "equal", lambda a, b, deep=False: asked.append(b) or ask(a, b, deep=deep))
    EqualSizes(where).proved(dims(*(f"n + {i}" for i in range(300)), "8*(n//8)"))
    assert len(asked) == 1


def chosen(root, where: Scope) -> str:
    with EGraph([root], default, where) as egraph:
        egraph.saturate(Budget())
        read = dump(egraph)
    row = read.graph.candidates[read.graph.roots[0]]
    return "x" if any(c.op == "var" for c in row) else ", ".join(c.op for c in row)


def test_a_rule_fires_where_a_proof_makes_shapes_equal() -> None:
    x = var("x", Tensor("n"))
    rounded = Dim.of("8*(n//8)")
    same = node("reshape", (x,), (("shape", (rounded,)),), Tensor((rounded,), "float32"))
    assert chosen(same, scope("n % 8 == 0")) == "x"
    assert chosen(same, scope()) == "reshape"  # the assumption of another e-graph is none of this one's


def test_a_size_is_written_as_a_polynomial_where_it_can_be() -> None:
    """Operators compare sizes in canonical form: the elements of (h, 2) are 2*h, and not h + max(0, h - 1) + 1."""
    size = Dim.of("h + max(0, h - 1) + 1")
    y, x = var("y", Tensor((size,))), var("x", Tensor("h 2"))
    longer = node("reshape", (x,), (("shape", (size,)),), Tensor((size,), "float32"))
    for reshaped in (op.reshape(x, ("2*h",)), longer):
        with EGraph([op.exp(y), reshaped], default, Scope()) as egraph:
            egraph.saturate(Budget())
            read = dump(egraph)
        assert [e.op for e in read.decode(read.graph.as_written)] == ["exp", "reshape"]


def test_fixed_annotations_that_differ_in_form_only() -> None:
    """A library call's result says its sizes in its own way; that is no contradiction."""
    x = var("x", Tensor("n"))
    first = call_dps_library("f", [x], Tuple((Tensor("n"), Tensor("8*(n//8)"))))
    second = op.add(tuple_get(first, 0), x)
    with EGraph([second, tuple_get(first, 1)], default, scope("n % 8 == 0")) as egraph:
        egraph.saturate(Budget())
        assert [str(e.annotation) for e in dump(egraph).decode(dump(egraph).graph.as_written)]


def test_a_size_that_is_a_number_is_read_as_that_number() -> None:
    x, y = var("x", Tensor("n", "float32")), var("y", Tensor("(k//2 - k + ceildiv(k, 2) + 1)", "float32"))
    written = op.add(op.multiply(x, op.sum(y, 0)), op.expand_dims(op.sum(x, 0), 0))
    with EGraph((written,), default, Scope()) as egraph:
        egraph.saturate(Budget(nodes=2000))
        read = dump(egraph)
    sizes = {d for a in read.graph.annotations if isinstance(a, Tensor) for d in a.shape or ()}
    assert sizes == {Dim.of("n"), Dim.of(1)}


def test_a_rule_that_changes_a_shape_is_named() -> None:
    book = RuleSet("wrong")

    @book.rule(shapes="x: n", check=False)
    def twice_is_square(x):
        """x + x = x * x, by a rule whose right side is then given another shape"""
        return x + x, x * x

    x = var("x", Tensor("n"))
    good = op.add(x, x)
    with EGraph([good], book, scope()) as egraph:
        egraph.saturate(Budget())
        wrong = node("multiply", (x, x), (), Tensor("n+1"))
        place = len(egraph.number)
        egraph.engine.run([f"(has_ann (node {egraph.number[good]}) {egraph.words.annotation(wrong.annotation)})"])
        assert place
        egraph._tables = None
        with pytest.raises(UnsoundRuleError, match=r"one of these rules is unsound: twice_is_square"):
            dump(egraph)
