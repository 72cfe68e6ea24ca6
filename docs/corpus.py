"""Writes docs/corpus.md, which rule fires on which program, from what the last run over the corpus left on file.

python -m docs.corpus [another.md]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.corpus import CORPUS, SUBJECTS
from benchmarks.corpus.fired import shipped, witnesses

DOCUMENT = Path(__file__).parent / "corpus.md"


def page() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    found, every = witnesses(), shipped()
    chosen = {w.program for w in found.values()}
    once = sum(w.programs == 1 for w in found.values())
    nowhere = [law for law in every if law not in found]
    yield "# Programs that rules fire on"
    yield ""
    yield "Written by `python -m benchmarks.corpus.fired`, which optimizes every program of `benchmarks/corpus`:"
    yield "functions written in JAX after formulas of papers, libraries and notebooks, clumsy spellings included, and"
    yield "modules as exporters leave them. They were chosen with the rules in view, and do not tell how often a rule"
    yield "fires in programs of others. A program that is nothing but the left side of a rule (matched from its results"
    yield "on, with no operator besides: `benchmarks/corpus/disguise.py`) is not among them."
    yield ""
    somewhere = f"{len(every) - len(nowhere)} fire on one of the {len(CORPUS)} programs"
    yield f"Of {len(every)} laws, {somewhere}; {once} of them on one program only, and {len(nowhere)} on none."
    yield "`tests/rules/test_corpus.py` asks that each of the latter fires on its own left side, which is no evidence"
    yield "that it is of use, and that each of the others fires on its program:"
    yield f"{len(chosen)} programs show them all. What is chosen of any program is evaluated by the reference"
    yield "interpreter and by XLA, and compared with the program as written."
    yield ""
    yield "## The programs"
    yield ""
    yield "| subject | programs |"
    yield "|---|---|"
    for module in SUBJECTS:
        subject = module.__name__.rpartition(".")[2]
        title = (module.__doc__ or "").strip().removesuffix(".")
        yield f"| {title} | {sum(p.subject == subject for p in CORPUS.values())} |"
    yield f"| all | {len(CORPUS)} |"
    yield ""
    yield "## The laws"
    yield ""
    yield "| law | fires on | which is | programs in all |"
    yield "|---|---|---|---|"
    for law in every:
        if law in found:
            w = found[law]
            p = CORPUS[w.program]
            yield f"| `{law}` | `{p.subject}.{p.name}` | {p.doc.replace('|', chr(92) + '|')} | {w.programs} |"
    yield ""
    yield "## Laws that fire on none of them"
    yield ""
    yield ", ".join(f"`{law}`" for law in nowhere) or "There are none."


if __name__ == "__main__":
    Path(*sys.argv[1:2] or [DOCUMENT]).write_text(page(), encoding="utf-8")
