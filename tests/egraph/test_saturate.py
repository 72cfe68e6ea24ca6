"""The e-graph: what rules reach, budgets, determinism, and reading programs out."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

import relax_eg as rx
from relax_eg import op
from relax_eg.egraph import Budget, EGraph, StopReason, dump
from relax_eg.egraph.engine import Engine
from relax_eg.extract.costs.cost import WholeCost
from relax_eg.extract.profiles.devices import CPU
from relax_eg.extract.selection.select import select
from relax_eg.ir.expr import Expr, postorder, var
from relax_eg.rules.format import expression_text
from relax_eg.rules.schemas import ModuleAnswers
from relax_eg.shapes import Scope

SIZES = {"n": 1024, "m": 512, "k": 64, "b": 8, "s": 64, "r": 8, "v": 2048}


def tensors(spec: str) -> list[Expr]:
    """Variables from "A: n n, v: n"."""
    made: list[Expr] = []
    for part in spec.split(","):
        name, _, sizes = part.partition(":")
        made.append(var(name.strip(), rx.Tensor(sizes.strip())))
    return made


def best(*roots: Expr, rules: rx.RuleSet | None = None, budget: Budget | None = None) -> str:
    rules = rules if rules is not None else rx.rules.default - "library"
    written = postorder(roots)
    answers = ModuleAnswers({}, (), written)
    schemas = [s for s in rules.schemas if s.asks_again]  # those that ask for nothing but sizes and prices
    asked = [(s, e) for s in schemas for e in written if e.op in s.operators and budget is None]
    egraph = EGraph(roots, rules, Scope(), [(e, p, s.name) for s, e in asked for p in s.proposals(e, answers)])
    egraph.saturate(budget or Budget())
    read = dump(egraph)
    model = WholeCost(CPU, SIZES)
    costs = [
        [model.price(c.site, a).seconds for c in row]
        for row, a in zip(read.graph.candidates, read.graph.annotations, strict=True)
    ]
    return ", ".join(expression_text(e) for e in read.decode(select(read.graph, costs).choice))


CASES: list[tuple[str, Callable[..., Expr], str]] = [
    ("A: n n, B: n n, v: n", lambda A, B, v: (A @ B) @ v, "A @ (B @ v)"),
    ("v: n, A: n n, B: n n", lambda v, A, B: v @ (A @ B), "v @ A @ B"),
    ("A: n n, B: n n, C: n n, v: n", lambda A, B, C, v: ((A @ B) @ C) @ v, "A @ (B @ (C @ v))"),
    ("A: n n, B: n n, C: n n", lambda A, B, C: A @ B + A @ C, "A @ (B + C)"),
    ("A: n n, B: n n, C: n n", lambda A, B, C: A @ B - C @ B, "(A - C) @ B"),
    ("A: n n, B: n n", lambda A, B: (A.T @ B.T).T, "B @ A"),
    ("A: n n, B: n n", lambda A, B: op.trace(A @ B), "sum(A * B.T)"),
    ("A: n n, B: n n", lambda A, B: op.sum(A @ B, 1), "A @ sum(B, axes=(1,))"),
    ("d: n, A: n n", lambda d, A: op.diag(d) @ A, "expand_dims(d, axes=(1,)) * A"),
    ("A: n n, d: n", lambda A, d: A @ op.diag(d), "A * d"),
    ("U: n r, V: n r, x: n", lambda U, V, x: (op.eye(U.shape[0]) + U @ V.T) @ x, "U @ (x @ V) + x"),
    ("Q: n k, K: n k, V: n k", lambda Q, K, V: (Q @ K.T) @ V, "Q @ (K.T @ V)"),
    ("x: n, y: m, z: m", lambda x, y, z: (op.expand_dims(x, 1) * y) @ z, "x * (y @ z)"),
    ("x: m n, y: m n", lambda x, y: op.concat([x, y], 0)[: x.shape[0]], "x"),
    ("x: b s m, W: m v", lambda x, W: (x @ W)[:, -1], "squeeze(x[:, s - 1:, :], axes=(1,)) @ W"),
    ("x: n m", lambda x: op.negative(op.negative(x)), "x"),
    ("x: n m", lambda x: op.permute_dims(op.permute_dims(x, (1, 0)), (1, 0)), "x"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "program", "goal"), CASES, ids=[c[2] for c in CASES])
def test_best_form_is_found(spec: str, program: Callable[..., Expr], goal: str) -> None:
    assert best(program(*tensors(spec))) == goal


@pytest.mark.parametrize(
    ("spec", "program"),
    [
        ("A: n n, B: n n", lambda A, B: A @ B + B @ A),  # no common factor on one side
        ("x: n m, y: n m", lambda x, y: op.exp(x) + op.exp(y)),
        ("x: n m", lambda x: op.softmax(x)),
    ],
)
def test_what_must_stay(spec: str, program: Callable[..., Expr]) -> None:
    e = program(*tensors(spec))
    assert best(e) == expression_text(e)


def test_without_rules_the_program_is_unchanged() -> None:
    A, B, v = tensors("A: n n, B: n n, v: n")
    assert best((A @ B) @ v, rules=rx.RuleSet("none")) == "A @ B @ v"


def test_a_rule_can_be_left_out_by_name() -> None:
    (x,) = tensors("x: n")
    e = op.log(op.exp(x))
    assert best(e) == "x"
    assert best(e, rules=rx.rules.default - "log_of_exp") == "x"  # `shorter_term` finds it, too
    assert best(e, rules=rx.rules.default - "log_of_exp" - "shorter_term") == "log(exp(x))"


@pytest.mark.parametrize(
    ("budget", "stop"),
    [
        (Budget(nodes=0), StopReason.NODE_LIMIT),
        (Budget(seconds=0), StopReason.TIME_LIMIT),
        (Budget(nodes=10), StopReason.NODE_LIMIT),
        (Budget(rounds=1), StopReason.PHASES_DONE),
        (Budget(), StopReason.SATURATED),
    ],
)
def test_stop_reasons(budget: Budget, stop: StopReason) -> None:
    A, B, C, D, v = tensors("A: n n, B: n n, C: n n, D: n n, v: n")
    egraph = EGraph([(((A @ B) @ C) @ D) @ v], rx.rules.default, Scope())
    assert egraph.saturate(budget).stop is stop


def test_budget_zero_keeps_the_program() -> None:
    A, B, v = tensors("A: n n, B: n n, v: n")
    assert best((A @ B) @ v, budget=Budget(nodes=0)) == "A @ B @ v"


def test_repetition_is_identical() -> None:
    U, V, x = tensors("U: n r, V: n r, x: n")
    program = (op.eye(U.shape[0]) + U @ V.T) @ x
    first = EGraph([program], rx.rules.default, Scope())
    second = EGraph([program], rx.rules.default, Scope())
    assert first.saturate(Budget()).matches == second.saturate(Budget()).matches
    a, b = dump(first).graph, dump(second).graph
    assert a.candidates == b.candidates and a.roots == b.roots


def test_provenance_names_the_rule() -> None:
    A, B, v = tensors("A: n n, B: n n, v: n")
    egraph = EGraph([(A @ B) @ v], rx.rules.contraction, Scope())
    egraph.saturate(Budget())
    made = {c.made_by for row in dump(egraph).graph.candidates for c in row}
    assert made == {"", "matmul_vector_associates"}


def test_refused_candidates_take_their_readers_with_them() -> None:
    A, B, v = tensors("A: n n, B: n n, v: n")
    written = (A @ B) @ v
    egraph = EGraph([written], rx.rules.contraction, Scope())
    egraph.saturate(Budget())
    read = dump(egraph)
    rows, (root,) = read.graph.candidates, read.graph.roots
    inner = [(c, k) for c, row in enumerate(rows) for k, x in enumerate(row) if x.made_by and c != root]
    less = read.without(inner)
    assert inner and len(less.graph.candidates[root]) == 1 < len(rows[root])
    costs = [[1.0 for _ in row] for row in less.graph.candidates]
    assert less.decode(select(less.graph, costs).choice) == [written] == less.decode(less.graph.as_written)


def test_guard_on_sizes_decides() -> None:
    book = rx.RuleSet("guarded")

    @book.rule("x: n n", when="n <= 64", numerics="exact")
    def small_double_transpose(x: Expr) -> tuple[Expr, Expr]:
        """A'' = A, told only of small matrices"""
        return x.T.T, x

    (small,), (big,) = tensors("x: 64 64"), tensors("x: 65 65")
    assert best(small.T.T, rules=book) == "x"
    assert best(big.T.T, rules=book) == "x.T.T"
    (symbolic,) = tensors("x: n n")
    assert best(symbolic.T.T, rules=book) == "x.T.T"  # nothing is known of n
    capped = var("x", rx.Tensor("min(n,64) min(n,64)"))
    assert best(capped.T.T, rules=book) == "x"  # proved, whatever n is


def test_a_chain_of_thousands_goes_in_and_out() -> None:
    (x,) = tensors("x: n m")
    e = x
    for _ in range(2000):
        e = op.tanh(e)
    egraph = EGraph([e], rx.rules.default, Scope())
    egraph.saturate(Budget())
    read = dump(egraph)
    assert read.decode(read.graph.as_written) == [e]


def test_hundreds_of_joined_arrays_go_in_and_out() -> None:
    """The engine has no rule that reads the annotations of all, and no walk goes one level down for each."""
    joined = op.concat([var(f"x{i}", rx.Tensor("2 n")) for i in range(400)], 0)
    egraph = EGraph([joined + joined], rx.rules.default, Scope())
    egraph.saturate(Budget())
    read = dump(egraph)
    assert read.decode(read.graph.as_written) == [joined + joined]


def test_rules_are_compiled_for_the_ranks_and_dtypes_that_occur(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every instance that cannot match costs the engine time and memory for nothing."""
    sent: list[str] = []
    run = Engine.run

    def spy(self: Engine, commands: Iterable[str]) -> list[object]:
        batch = list(commands)
        sent.extend(batch)
        return run(self, batch)

    monkeypatch.setattr(Engine, "run", spy)
    x, w = var("x", rx.Tensor("b n k")), var("w", rx.Tensor("k m"))
    mask = op.reshape(var("m", rx.Tensor("n 7 1 2 3", "bool")), ("n", 7, 6))
    with EGraph([op.relu(x @ w), mask], rx.rules.default, Scope()) as egraph:
        egraph.saturate(Budget())
    rules = [c for c in sent if c.startswith("(rule") and "has_ann v_" in c and " demand" not in c]
    assert any('"float32"' in c and "matmul" in c for c in rules)
    left = [c.partition("))) (")[0] for c in rules]
    assert not any('Tensor5 "float32"' in c or 'Tensor4 "float32"' in c for c in left)
    assert not any('"bool"' in c and "matmul" in c for c in left)


def test_names_of_tables_leave_the_engine_its_own() -> None:
    """The engine numbers names of its own behind ours, and the 14th of `fact_1` would be the fourth of `fact_11`."""
    x = tensors("x: n m")[0]
    with EGraph([op.exp(x)], rx.rules.default, Scope()) as egraph:
        egraph.saturate(Budget(nodes=2000))
        tables = egraph.engine.sizes()
    assert len(tables) > 10 and [name for name in tables if name[-1].isdigit()] == []
