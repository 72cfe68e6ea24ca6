"""What the documents show runs, and their links lead somewhere."""

from __future__ import annotations

import re
from operator import attrgetter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPETS = [
    pytest.param(code, id=f"{path.name}-{n}")
    for path in DOCUMENTS
    for n, code in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("code", SNIPPETS)
def test_snippet_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # From a file: rules tell where they stand, and are read again for their verdicts.
    monkeypatch.syspath_prepend(str(ROOT))
    path = tmp_path / "snippet.py"
    path.write_text(code)
    exec(compile(code, str(path), "exec"), {"__name__": "snippet"})


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def names(document: Path) -> list[str]:
    """The names below `rx` that prose has, those that continue a list (`rx.rules.sums`, `.layout`) in full."""
    prose = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    found: list[str] = []
    for first, rest in re.findall(r"`rx((?:\.\w+)+)[^`]*`((?:,? (?:and )?\n?`\.\w+`|,\n`\.\w+`)*)", prose):
        parent = first.rpartition(".")[0]
        found += [first, *(parent + more for more in re.findall(r"`(\.\w+)`", rest))]
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_names_are_there(document: Path) -> None:
    import relax_eg as rx
    from relax_eg.dtypes import NUMBERS
    from relax_eg.tir import FUNCTIONS

    for name in names(document):
        if name[1:] not in {*FUNCTIONS, *NUMBERS}:  # words of tensor programs, which may have any prefix
            assert attrgetter(name[1:])(rx) is not None, f"{document.name} speaks of rx{name}"


def test_the_sets_of_rules_are_named() -> None:
    import relax_eg as rx
    from relax_eg.rules import book

    said = {name for document in DOCUMENTS for name in names(document)}
    assert {f".rules.{name}" for name in book.__all__} <= said
    assert all(isinstance(getattr(rx.rules, name), rx.RuleSet) for name in book.__all__)


def test_the_table_of_rules_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from docs.rules_table import DOCUMENT, table

    assert DOCUMENT.read_text() == table(), "python -m docs.rules_table writes it anew"


def test_the_refusal_in_the_readme_is_what_is_said(tmp_path: Path) -> None:
    import relax_eg as rx

    path = tmp_path / "rules.py"
    path.write_text(
        "import relax_eg as rx\n"
        'book = rx.RuleSet("mine")\n'
        '@book.rule(shapes="a: n n, b: n n")\n'
        "def trace_of_product(a, b):\n"
        "    return rx.op.trace(a @ b), rx.op.sum(a * b)\n"
    )
    shown = (ROOT / "README.md").read_text().split("RuleError: ")[1].split("```")[0]
    with pytest.raises(rx.errors.RuleError) as refusal:
        exec(compile(path.read_text(), str(path), "exec"), {"__name__": "rules"})
    assert str(refusal.value).strip() == shown.strip()
