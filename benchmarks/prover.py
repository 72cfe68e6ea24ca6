"""The prover: questions per second by path, its share of optimize time, and side by side with JAX and TVM; deduction.

    python -m benchmarks.prover [--queries 3000] [--layers 32] [--json out.json]

Each prover gets the statements of `tests/shapes/statements.py`; TVM where it is installed (`pip install
'relax-eg[tvm]'`). JAX gets the assumptions as constraints of a symbolic scope, where it has a spelling for them, and
TVM as constraints of its analyzer. JAX's `==` says False both for "different" and for "cannot tell", and its `!=` then
says True; TVM's analyzer says False for all that it cannot prove. Such an answer counts as right where the statement
fails for some size, and as not answered where it holds for all; such a True counts as not answered where the statement
fails.
"""

from __future__ import annotations

import ast
import json
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from jax import export
from rich.console import Console
from rich.table import Table

from benchmarks import Quick
from benchmarks.prover_programs import (
    CHAINS,
    deduction_of,
    memory_questions,
    programs,
    share_of_optimize,
    table_of_shares,
)
from relax_eg.errors import RelaxEgError
from relax_eg.shapes import Proved, ProverStatistics, Refuted, Scope, prove
from relax_eg.shapes.division import extreme_value
from relax_eg.shapes.expression import fold_expression
from relax_eg.shapes.relation import read_statement

_TESTS = Path(__file__).parent.parent / "tests" / "shapes"


@dataclass
class Score:
    """How one prover did on the list; `seconds` are for one pass over all statements."""

    right: int = 0
    wrong: int = 0
    not_answered: int = 0
    seconds: float = 0.0
    missed: list[str] = field(default_factory=list)


Answer = bool | None
Ask = Callable[[str, list[str]], Answer]


def ours(statement: str, assume: list[str]) -> Answer:
    verdict = prove(statement, bounds=assume)
    return True if isinstance(verdict, Proved) else False if isinstance(verdict, Refuted) else None


def jax(statement: str, assume: list[str]) -> Answer:
    """Returns JAX's answer; None if it is inconclusive or does not accept the assumptions."""
    names = sorted(name for name in set(compile(statement, "", "eval").co_names) if name not in _FUNCTIONS)
    try:
        constraints = Scope(assume=assume).to_constraints()
        scope = export.SymbolicScope(constraints)
        dims = export.symbolic_shape(", ".join(names), scope=scope) if names else ()
        return bool(eval(statement, dict(_FUNCTIONS), dict(zip(names, dims, strict=True))))
    except RelaxEgError:
        return None
    except Exception:  # "inconclusive", and constraints it does not take: the classes have moved between versions
        return None


_FUNCTIONS: dict[str, Any] = {
    "max": lambda a, b: extreme_value("max", a, b),
    "min": lambda a, b: extreme_value("min", a, b),
    "ceildiv": lambda a, b: -(-a // b),
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "select": lambda condition, a, b: a if condition else b,
}


def tvm(statement: str, assume: list[str]) -> Answer:
    """The answer of TVM's analyzer, by its strongest means."""
    from tvm import sym, tirx

    scope = Scope(assume=assume)
    relations = [*read_statement(statement), *(r for text in assume for r in read_statement(text))]
    variables = {name: tirx.Var(name, "int64") for r in relations for name in r.variables}
    analyzer = sym.Analyzer()
    for name, v in variables.items():
        low, high = scope.bounds(name)
        least = sym.ConstIntBound.NEG_INF if low is None else low
        analyzer.update(v, sym.ConstIntBound(least, sym.ConstIntBound.POS_INF if high is None else high))
    with ExitStack() as constraints:
        for text in assume:
            for expression in _of_tvm(text, variables, tirx):
                constraints.enter_context(analyzer.constraint_scope(expression))
        strength = sym.ProofStrength.SYMBOLIC_BOUND
        return all(analyzer.can_prove(e, strength) for e in _of_tvm(statement, variables, tirx))


def _of_tvm(statement: str, variables: dict[str, Any], tirx: ModuleType) -> Iterator[Any]:
    compare = {"==": tirx.EQ, "!=": tirx.NE, "<=": tirx.LE, "<": tirx.LT, ">=": tirx.GE, ">": tirx.GT}
    functions = {
        "max": lambda a, *others: tirx.max(a, functions["max"](*others)) if others else a,
        "min": lambda a, *others: tirx.min(a, functions["min"](*others)) if others else a,
        "ceildiv": lambda a, b: -(-a // b),
        "floordiv": lambda a, b: a // b,
        "mod": lambda a, b: a % b,
        "select": lambda op, left, right, a, b: tirx.Select(compare[op](left, right), a(), b()),
    }
    for relation in read_statement(statement):
        texts = (ast.unparse(_Powers().visit(ast.parse(side, mode="eval"))) for side in relation.sides or ())
        yield compare[relation.op](
            *(fold_expression(t, lambda n: tirx.IntImm("int64", n), variables.__getitem__, functions) for t in texts)
        )


class _Powers(ast.NodeTransformer):
    """`n**2` as `n*n`; TVM's power is one of floats."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Pow) or not isinstance(node.right, ast.Constant):
            return node
        product: ast.expr = ast.Constant(1)
        for _ in range(int(str(node.right.value))):
            product = ast.BinOp(product, ast.Mult(), node.left)
        return product


def score(ask: Ask, holds: list[tuple[str, list[str]]], fails: list[tuple[str, list[str]]]) -> Score:
    found = Score()
    for statements, truth in ((holds, True), (fails, False)):
        for statement, assume in statements:
            started = time.perf_counter()
            answer = ask(statement, assume)
            found.seconds += time.perf_counter() - started
            equality = "==" in statement or "!=" in statement
            unsure = answer is not truth and ((ask is jax and equality) or (ask is tvm and not answer))
            if answer is None or unsure:
                found.not_answered += 1
                found.missed.append(statement)
            elif answer is truth:
                found.right += 1
            else:
                found.wrong += 1
                found.missed.append(f"{statement} (wrong)")
    return found


def by_path(count: int) -> ProverStatistics:
    """Returns the prover's statistics on random questions, each asked twice, in bounded scopes and in unbounded
    ones."""
    statistics = ProverStatistics()
    for query in runpy.run_path(str(_TESTS / "random_queries.py"))["queries"](count, seed=7):
        for bounds in (query.bounds, {name: (low, None) for name, (low, _) in query.bounds.items()}):
            scope = Scope(bounds, statistics=statistics)
            try:
                scope.assume(*query.assume)
                for _ in range(2):
                    prove(query.statement, scope)
            except RelaxEgError:  # assumptions that contradict each other
                continue
    return statistics


def table_of_paths(statistics: ProverStatistics) -> Table:
    table = Table(title="Random questions, by the path that answered")
    for heading in ("path", "questions", "share", "questions/s"):
        table.add_column(heading, justify="left" if heading == "path" else "right")
    for path in sorted(statistics.queries, key=lambda path: -statistics.queries[path]):
        n, seconds = statistics.queries[path], statistics.seconds[path]
        table.add_row(path, str(n), f"{n / statistics.total:.1%}", f"{n / seconds:,.0f}" if seconds else "")
    total = sum(statistics.seconds.values())
    table.add_row("all", str(statistics.total), "", f"{statistics.total / total:,.0f}", style="bold")
    return table


def table_of_scores(scores: dict[str, Score], count: int) -> Table:
    table = Table(title=f"{count} statements")
    for heading in ("", "right", "wrong", "not answered", "ms a statement"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, found in scores.items():
        mean = f"{found.seconds / count * 1e3:.2f}"
        table.add_row(name, str(found.right), str(found.wrong), str(found.not_answered), mean)
    return table


QUICK_QUERIES, QUICK_PROGRAMS = 20, 1


def main(
    queries: Annotated[int, typer.Option(help="Random questions for the table of paths.")] = 3000,
    layers: Annotated[int, typer.Option(help="Layers of the decoder that is optimized.")] = 32,
    quick: Quick = False,
    json_to: Annotated[Path | None, typer.Option("--json", help="Write the figures here.")] = None,
) -> None:
    """Measure the prover."""
    out, lengths = Console(), CHAINS
    statements = runpy.run_path(str(_TESTS / "statements.py"))
    holds, fails = (statements["lines"](statements[name]) for name in ("HOLDS", "FAILS"))
    if quick:
        queries, layers, lengths = QUICK_QUERIES, 1, CHAINS[:1]
        holds, fails = holds[:QUICK_QUERIES], fails[:QUICK_QUERIES]
    ours("(n + m + 1)//(m + 1) == n//(m + 1) + 1", [])  # the first question imports z3
    others: dict[str, Ask] = {"jax": jax, **({"tvm": tvm} if find_spec("tvm") else {})}
    for ask in others.values():
        ask("n == n", [])  # the first question imports it
    scores = {name: score(ask, holds, fails) for name, ask in {"relax_eg": ours, **others}.items()}
    statistics = by_path(queries)
    shares = [
        share_of_optimize(name, program)
        for name, program in islice(programs(layers).items(), QUICK_PROGRAMS if quick else None)
    ]
    chains = [deduction_of(length) for length in lengths]
    memory = memory_questions(layers)
    out.print(table_of_scores(scores, len(holds) + len(fails)))
    out.print(table_of_paths(statistics))
    first = statistics.total - statistics.queries["memo"]
    reached = statistics.asked_z3 / first
    out.print(f"put to z3: {statistics.asked_z3} of {first} questions not asked before ({reached:.1%})")
    out.print(table_of_shares(shares))
    out.print(
        f"sizes of the decoder's values in bytes, pair by pair: {memory.total} questions, "
        f"{memory.asked_z3} put to z3 ({memory.asked_z3 / memory.total:.1%})"
    )
    for length, seconds in chains:
        out.print(f"deduction of a chain of {length} operators: {seconds:.2f} s")
    if json_to is not None:
        figures = {
            "scores": {name: asdict(found) for name, found in scores.items()},
            "paths": {p: {"questions": n, "seconds": statistics.seconds[p]} for p, n in statistics.queries.items()},
            "asked_z3": statistics.asked_z3,
            "optimize": [asdict(share) for share in shares],
            "memory": {"questions": memory.total, "asked_z3": memory.asked_z3},
            "deduction": dict(chains),
        }
        json_to.write_text(json.dumps(figures, indent=1))
    if scores["relax_eg"].wrong:
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
