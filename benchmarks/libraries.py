"""Traces of functions of JAX libraries: operators used and primitives left opaque, by library.

    python -m benchmarks.libraries [--write] [--each] [--json FILE]

Needs the packages of the extra `libraries`. Each function counts twice, as it is and as its gradient. `--write` puts
the tables into `docs/coverage.md`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import Quick, write_between
from benchmarks.coverage import COLUMNS, Found, Result, cover, rows, save, show
from benchmarks.library_cases import CASES

DOCUMENT = Path(__file__).parent.parent / "docs" / "coverage.md"
QUICK_CASES = 1
BEGIN, END = "<!-- python -m benchmarks.libraries --write: from here -->", "<!-- to here -->"
PACKAGES = {"haiku": "dm-haiku"}  # libraries whose package has another name


def results(quick: bool = False) -> dict[str, list[Result]]:
    """Returns, by library, the traces of each function and of its gradient."""
    found: dict[str, list[Result]] = {}
    for case in islice(CASES, QUICK_CASES if quick else None):
        use = case.build()
        mine = found.setdefault(case.library, [])
        mine.append(cover(f"{case.library}: {case.name}", use.fn, use.specs))
        mine.append(cover(f"{case.library}: {case.name}, gradient", use.gradient, use.specs))
    return found


def tables(found: Found) -> str:
    """The tables as Markdown: one line for each library, then one for each operator."""
    named = {name: f"{name} {version(PACKAGES.get(name, name))}" for name in found}
    used = {name: sum((r.operators for r in rs), Counter[str]()) for name, rs in found.items()}
    total = sum(used.values(), Counter[str]())
    by_library = ((named[name], *rest) for name, *rest in rows(found))
    by_operator = (
        (f"`{op}`", *(str(used[name][op] or "") for name in found), str(n))
        for op, n in sorted(total.items(), key=lambda item: (-item[1], item[0]))
    )
    return (
        f"{_markdown(('library', *COLUMNS[1:]), by_library)}\n\n"
        f"Uses of the {len(total)} operators, by library:\n\n"
        f"{_markdown(('operator', *found, 'all'), by_operator)}\n"
    )


def _markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the columns after the first are to the right where all of their cells are numbers."""
    lines = list(lines)
    numeric = [all(line[i].isdigit() or not line[i] for line in lines) for i in range(len(header))]
    rule = ["--:" if right else "---" for right in numeric]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *lines))


def write(found: Found) -> None:
    """Put the tables between the marks in `DOCUMENT`."""
    write_between(DOCUMENT, BEGIN, END, tables(found))


def main(
    write_document: Annotated[bool, typer.Option("--write", help="put the tables into docs/coverage.md")] = False,
    each: Annotated[bool, typer.Option("--each", help="list the functions that have opaque calls")] = False,
    quick: Quick = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="also write the results here")] = None,
) -> None:
    """What functions of real JAX libraries become: uses of operators, primitives left opaque."""
    found = results(quick)
    show(found, each)
    if json_out:
        save(found, json_out)
    if write_document and not quick:
        write(found)


if __name__ == "__main__":
    typer.run(main)
