"""The prover: questions per second by path, and side by side with JAX's symbolic dimensions.

    python -m benchmarks.prover [--queries 3000] [--json out.json]

Both are asked the statements of `tests/shapes/statements.py`. JAX gets the assumptions as constraints of a symbolic
scope, where it has a spelling for them. Its `==` says False both for "different" and for "cannot tell", and its `!=`
then says True: such a False counts as right where the statement fails for some size, and as not answered where it holds
for all, and such a True as not answered where the statement fails.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from jax import export
from rich.console import Console
from rich.table import Table

from relax_eg.errors import RelaxEgError
from relax_eg.shapes import Proved, Refuted, Scope, Statistics, prove
from relax_eg.shapes.division import extreme_value

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
    verdict = prove(statement, assume=assume)
    return True if isinstance(verdict, Proved) else False if isinstance(verdict, Refuted) else None


def jax(statement: str, assume: list[str]) -> Answer:
    """JAX's answer; None where it cannot tell or cannot be told the assumptions."""
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
}


def score(ask: Ask, holds: list[tuple[str, list[str]]], fails: list[tuple[str, list[str]]]) -> Score:
    found = Score()
    for statements, truth in ((holds, True), (fails, False)):
        for statement, assume in statements:
            started = time.perf_counter()
            answer = ask(statement, assume)
            found.seconds += time.perf_counter() - started
            unsure = ask is jax and answer is not truth and ("==" in statement or "!=" in statement)
            if answer is None or unsure:
                found.not_answered += 1
                found.missed.append(statement)
            elif answer is truth:
                found.right += 1
            else:
                found.wrong += 1
                found.missed.append(f"{statement} (wrong)")
    return found


def by_path(count: int) -> Statistics:
    """The prover's count of its work on random questions, each asked twice: in bounded scopes and in open ones."""
    statistics = Statistics()
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


def table_of_paths(statistics: Statistics) -> Table:
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


def main(
    queries: Annotated[int, typer.Option(help="Random questions for the table of paths.")] = 3000,
    json_to: Annotated[Path | None, typer.Option("--json", help="Write the figures here.")] = None,
) -> None:
    """Measure the prover."""
    out = Console()
    statements = runpy.run_path(str(_TESTS / "statements.py"))
    holds, fails = (statements["lines"](statements[name]) for name in ("HOLDS", "FAILS"))
    ours("(n + m)//m == n//m + 1", [])  # the first question imports z3
    scores = {"relax_eg": score(ours, holds, fails), "jax": score(jax, holds, fails)}
    statistics = by_path(queries)
    out.print(table_of_scores(scores, len(holds) + len(fails)))
    out.print(table_of_paths(statistics))
    reached = statistics.asked_z3 / statistics.total
    out.print(f"put to z3: {statistics.asked_z3} of {statistics.total} ({reached:.1%})")
    if json_to is not None:
        figures = {
            "scores": {name: asdict(found) for name, found in scores.items()},
            "paths": {p: {"questions": n, "seconds": statistics.seconds[p]} for p, n in statistics.queries.items()},
            "asked_z3": statistics.asked_z3,
        }
        json_to.write_text(json.dumps(figures, indent=1))
    if scores["relax_eg"].wrong:
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
