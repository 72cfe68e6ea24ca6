"""What comes out of reductions, and what must not: empty axes, infinities, unknown signs, integers that wrap."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from relax_eg.dtypes import is_float
from relax_eg.ir.annotations import Callable as Signature
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import CALL, Expr, node, postorder, var
from relax_eg.ops import api as op
from relax_eg.ops.facts import FACTS
from relax_eg.rules.book import orders, reductions
from relax_eg.rules.checking import value_trials
from relax_eg.rules.checking.check import check
from relax_eg.rules.checking.schema_trials import first_difference
from relax_eg.rules.facts.fact_rules import NONEMPTY
from relax_eg.rules.reductions.proofs import Lemma, why_not
from relax_eg.rules.reductions.reading import FormReader, may_cancel
from relax_eg.rules.schemas import ModuleAnswers
from relax_eg.shapes import Dim
from relax_eg.tir.functions import FUNCTIONS, functions_with_trait

N, P = Dim.var("n"), Dim.var("p")
X, Y = var("x", Tensor("n p")), var("y", Tensor("n p"))
D, S = var("d", Tensor("n 1")), var("s", Tensor(""))
C = var("c", Tensor("n p", "bool"))
I = var("i", Tensor("n p", "int32"))  # noqa: E741
COUNT = op.astype(op.dim_value(P), "float32")


class Known(ModuleAnswers):
    """Answers to queries where every size is at least 1, or may be 0."""

    def __init__(self, facts: Mapping[Expr, str], may_be_empty: bool) -> None:
        super().__init__({}, known={e: frozenset(text.split()) for e, text in facts.items()})
        self.more = frozenset[str]() if may_be_empty else frozenset((NONEMPTY,))

    def facts(self, e: Expr) -> frozenset[str]:
        return super().facts(e) | self.more


def proposed(
    e: Expr, facts: Mapping[Expr, str] | None = None, may_be_empty: bool = False, numerics: str = "reassociate"
) -> Expr | None:
    queries = Known(facts or {}, may_be_empty)
    found = (s.proposals(e, queries) for s in reductions.schemas if e.op in s.operators and s.numerics == numerics)
    return next((p[0] for p in found if p), None)


def centred(x: Expr) -> Expr:
    return x - op.sum(x, 1, keepdims=True) / COUNT


@pytest.mark.parametrize(
    ("written", "form", "facts"),
    [
        (op.sum(X / S, 0), op.sum(X, 0) / S, {}),
        (op.max(op.tanh(X), 1), op.tanh(op.max(X, 1)), {}),
        (op.min(op.erfc(X), 0), op.erfc(op.max(X, 0)), {}),
        (op.max(op.sqrt(X), (0, 1)), op.sqrt(op.max(X, (0, 1))), {X: "nonnegative"}),
        (op.min(1.0 / X, 1), 1.0 / op.max(X, 1), {X: "positive"}),
        (op.max(op.flip(X, 1), 1), op.max(X, 1), {}),
        (op.any(op.logical_not(C), 1), op.logical_not(op.all(C, 1)), {}),
        (op.max(op.max(X, 1), 0), op.max(X, (0, 1)), {}),
        (op.sum(op.pad(X, [(1, 2), (0, 3)], 0.0)), op.sum(X), {}),
        (op.max(op.concat([X, Y], 0)), op.maximum(op.max(X), op.max(Y)), {}),
        (centred(X + S), centred(X), {S: "finite"}),
        (op.sum(op.permute_dims(X, (1, 0)), 0), op.sum(X, 1), {}),
        (op.sum(op.sum(I, 1), 0), op.sum(I, (0, 1)), {}),
    ],
)
def test_comes_out(written: Expr, form: Expr, facts: Mapping[Expr, str]) -> None:
    assert proposed(written, facts) is form


@pytest.mark.parametrize(
    ("written", "facts"),
    [
        (op.max(op.sqrt(X), 1), {}),  # of negative numbers it is NaN
        (op.min(1.0 / X, 1), {X: "nonzero"}),  # of numbers of both signs
        (op.max(X * S, 1), {}),  # of unknown sign
        (op.max(op.square(X), 1), {}),
        (op.max(op.sin(X), 1), {}),
        (op.max(op.negative(I), 1), {}),  # the least integer is its own negative
        (op.max(I + 1, 1), {}),
        (op.square(X + S) - op.square(S), {}),
        (centred(X + S), {}),  # inf - inf is NaN
        (op.sum(op.tanh(X), 1), {}),
        (op.prod(X * S, 1), {}),
    ],
)
def test_stays(written: Expr, facts: Mapping[Expr, str]) -> None:
    assert proposed(written, facts) is None


def test_scale_of_known_sign() -> None:
    assert proposed(op.max(X * S, 1), {S: "nonnegative finite"}) is op.multiply(S, op.max(X, 1))
    assert proposed(op.max(X * -2.0, 1)) is op.multiply(-2.0, op.min(X, 1))


@pytest.mark.parametrize("written", [op.max(op.tanh(X), 1), op.max(X + S, 1), op.max(op.broadcast_to(D, (N, P)), 1)])
def test_extreme_of_nothing_stays(written: Expr) -> None:
    """tanh(-inf) is -1, and a maximum of nothing is -inf."""
    found = proposed(written, may_be_empty=True)
    assert found is None or found is op.max(X, 1) + S  # -inf + s is -inf
    assert proposed(written) is not None


def test_copies_are_counted_or_not() -> None:
    copies = op.broadcast_to(D, (N, P))
    total, most = proposed(op.sum(copies, 1)), proposed(op.max(copies, 1))
    assert total is not None and most is op.squeeze(D, 1)
    assert not any(e.op == "sum" for e in postorder((total,)))


def test_slices_in_another_order() -> None:
    k = Dim.of(2)
    halves = [op.strided_slice(X, (0, k), (N, P)), op.strided_slice(X, (0, 0), (N, k))]
    assert proposed(op.sum(op.concat(halves, 1), 1)) is op.sum(X, 1)
    twice = [op.strided_slice(X, (0, k), (N, P)), op.strided_slice(X, (0, k), (N, P))]
    found = proposed(op.max(op.concat(twice, 1), 1))
    assert found is None or found is not op.max(X, 1)


def test_scales_meet_in_a_quotient() -> None:
    def normal(x: Expr) -> Expr:
        c = centred(x)
        return c / op.sqrt(op.sum(op.square(c), 1, keepdims=True) / COUNT)

    assert proposed(normal(4.0 * X), numerics="approximate") is normal(X)
    assert proposed(normal(S * X), numerics="approximate") is None  # s may be 0


def test_position_of_increasing() -> None:
    assert proposed(op.argmax(2.0 * op.exp(X) + 1.0, 1), numerics="approximate") is op.argmax(X, 1)
    assert proposed(op.argmax(op.negative(X), 1), numerics="approximate") is op.argmin(X, 1)
    assert proposed(op.argmax(op.floor(X), 1), numerics="approximate") is None  # it has ties of its own
    assert proposed(op.argmax(X * S, 1), {S: "nonnegative"}, numerics="approximate") is None  # s may be 0


def test_a_wrong_lemma_is_not_shown() -> None:
    wrong = Lemma(op.max(X * S, 1), op.max(X, 1) * S, (X, S))
    assert why_not((wrong,), lambda e: frozenset(), "reassociate")


def test_a_call_is_not_written_out_in_a_lemma() -> None:
    """A function among the leaves of a proof has no shape: checkpointed blocks were not optimized."""
    signature = Signature((X.annotation,), X.annotation)
    called = node(CALL, (var("f", signature), X), (), X.annotation)
    wrong = Lemma(op.sum(X + Y, 1), op.sum(X, 1) - op.sum(Y, 1), (called, X, Y))
    assert why_not((wrong,), lambda e: frozenset(), "reassociate")


@pytest.mark.parametrize("schema", reductions.schemas, ids=lambda s: s.name)
def test_proposals_have_the_same_values(schema: object) -> None:
    right, wrong = first_difference(schema, 80)  # type: ignore[arg-type]
    assert not wrong and right > 10


@pytest.mark.parametrize("rule", list(orders), ids=lambda r: r.name)
def test_stated_laws(rule: object) -> None:
    assert check(rule).status in ("tested", "proved")  # type: ignore[arg-type]


POINTS = np.array([0.0, 1e-30, 0.25, 0.5, 1.0, 1.5, 2.5, 7.0, 100.5, 1e30])


@pytest.mark.parametrize(("trait", "is_up"), [("rises", True), ("falls", False)])
def test_traits_on_positive_arguments(trait: str, is_up: bool) -> None:
    compare: Callable[..., np.ndarray] = np.greater_equal if is_up else np.less_equal
    for name in functions_with_trait(trait):  # type: ignore[arg-type]
        values = FUNCTIONS[name]([POINTS if is_up else POINTS[1:]], "float64")
        assert compare(values[1:], values[:-1]).all(), name


def test_what_cannot_cancel_is_not_read() -> None:
    """Differences and quotients that gain have something in common below."""
    rng, gained = np.random.default_rng(3), 0
    for _ in range(300):
        for e in postorder([value_trials.reductions(rng).node]):
            if e.op in ("subtract", "divide") and is_float(e.dtype):
                reader = FormReader(lambda _: frozenset(FACTS), lambda *_: None)
                if reader.read(e).gains:
                    gained += 1
                    assert may_cancel(e), e
    assert gained > 20
    assert not may_cancel(op.tanh(X) - Y) and may_cancel(op.tanh(X) - X)


def test_shared_values_are_read_once() -> None:
    """Runge and Kutta's steps: paths to the first value are as many as the eighth power of 4."""
    y = X
    for _ in range(8):
        slopes = [op.tanh(y)]
        for _ in range(3):
            slopes.append(op.tanh(y + 0.5 * slopes[-1]))
        y = y + slopes[0] + slopes[1] * 2.0 + slopes[2] * 2.0 + slopes[3]
    lemmas = FormReader(lambda _: frozenset(), lambda *_: None).read(y).lemmas
    assert 5 < len(lemmas) == len(set(lemmas)) < 80


def test_masks_keep_the_digits_of_scores() -> None:
    """(1 - mask) * -1e9 is 0 where the mask is 1; scores + 1e9 * mask would lose the scores."""
    mask = op.broadcast_to(op.astype(var("m", Tensor("1 p", "bool")), "float32"), X.shape)
    for bias in ((1.0 - mask) * -1e9, mask * 1e9 - 1e9):
        scores = X + bias
        assert proposed(scores - op.max(scores, 1, keepdims=True)) is None
