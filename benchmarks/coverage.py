"""The share of JAX that becomes operators: functions traced, operators found, primitives left opaque.

    python -m benchmarks.coverage [--json FILE] [--each]

Each function is traced on small shapes, with symbolic sizes where JAX can. An opaque primitive is a library call of the
JAX primitive: it runs, and nothing is optimized inside it. `--each` lists the functions that have such calls.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.console import Console
from rich.table import Column, Table

from benchmarks import Quick
from benchmarks.functions import GROUPS
from relax_eg.frontends import trace
from relax_eg.ir.expr import CALL_DPS_LIBRARY
from relax_eg.ir.heads import CORE


@dataclass
class Result:
    """The trace of one function.

    - `name`: the function.
    - `operators`: uses of each operator.
    - `opaque`: uses of each opaque primitive.
    - `error`: the reason why it could not be traced, or "".
    """

    name: str
    operators: Counter[str] = field(default_factory=Counter[str])
    opaque: Counter[str] = field(default_factory=Counter[str])
    error: str = ""


def cover(name: str, fn: Callable[..., Any], specs: tuple[Any, ...]) -> Result:
    """Returns the operators and opaque primitives in the trace of `fn`."""
    result = Result(name)
    try:
        module = trace(fn, *specs)
    except Exception as error:
        result.error = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        return result
    for function in module.functions:
        for e in function.expressions():
            if e.op == CALL_DPS_LIBRARY:
                result.opaque[str(e.attr("name"))] += 1
            elif e.op not in CORE:
                result.operators[e.op] += 1
    return result


COLUMNS = ("group", "functions", "all operators", "operators", "opaque", "left opaque, and how often")
Found = Mapping[str, Sequence[Result]]


def rows(found: Found) -> list[tuple[str, ...]]:
    """One row for each group, its cells as `COLUMNS` names them: functions traced, those without opaque calls, uses of
    operators and of opaque primitives, the opaque primitives."""
    made: list[tuple[str, ...]] = []
    for group, results in found.items():
        traced = [r for r in results if not r.error]
        opaque = sum((r.opaque for r in traced), Counter[str]())
        left = ", ".join(f"{n.removeprefix('jax.')} {c}" for n, c in opaque.most_common())
        counts = (len(traced), sum(not r.opaque for r in traced), sum(r.operators.total() for r in traced))
        made.append((group, *map(str, (*counts, opaque.total())), left or "-"))
    return made


def show(found: Found, each: bool) -> None:
    """Print the table, and the functions that could not be traced; with `each`, also the functions that have opaque
    calls."""
    console = Console(width=None if sys.stdout.isatty() else 150)
    first, *counts, last = COLUMNS
    table = Table(first, *(Column(c, justify="right") for c in counts), Column(last, overflow="fold"))
    for row in rows(found):
        table.add_row(*row)
    console.print(table)
    for r in (r for results in found.values() for r in results):
        if each and r.opaque:
            console.print(f"{r.name}: {', '.join(sorted(r.opaque))}", highlight=False)
        if r.error:
            console.print(f"not traced: {r.name}: {r.error}", highlight=False, markup=False)


def save(found: Found, path: Path) -> None:
    """Write the results as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    groups = {group: [asdict(r) for r in results] for group, results in found.items()}
    path.write_text(json.dumps({"version": 1, "jax": jax.__version__, "groups": groups}, indent=1))


def main(
    each: Annotated[bool, typer.Option("--each", help="list the functions that have opaque calls")] = False,
    quick: Quick = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="also write the results here")] = None,
) -> None:
    """How much of JAX becomes operators: functions traced, uses of operators, primitives left opaque."""
    found = {
        group: [cover(n, f, s) for n, (f, s) in islice(functions.items(), 1 if quick else None)]
        for group, functions in GROUPS.items()
    }
    show(found, each)
    if json_out:
        save(found, json_out)


if __name__ == "__main__":
    typer.run(main)
