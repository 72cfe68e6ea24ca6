"""Writes docs/corpus.md, which rule fires on which program, from what the last run over the corpus left on file.

python -m docs.corpus
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.corpus import CORPUS, SUBJECTS
from benchmarks.corpus.fired import shipped, witnesses

DOCUMENT = Path(__file__).parent / "corpus.md"


def page() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    found = witnesses()
    chosen = {w.program for w in found.values()}
    yield "# Programs that rules fire on"
    yield ""
    yield "Written by `python -m benchmarks.corpus.fired`, which optimizes every program of `benchmarks/corpus`:"
    yield "functions as people write them in JAX, and modules as exporters leave them. `tests/rules/test_corpus.py`"
    yield f"optimizes the {len(chosen)} programs of this table and asks that each law fires on its own; what is"
    yield "chosen is evaluated by the reference interpreter and by XLA, and compared with the program as written."
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
    for law in shipped():
        if law in found:
            w = found[law]
            p = CORPUS[w.program]
            yield f"| `{law}` | `{p.subject}.{p.name}` | {p.doc.replace('|', chr(92) + '|')} | {w.programs} |"


if __name__ == "__main__":
    DOCUMENT.write_text(page(), encoding="utf-8")
