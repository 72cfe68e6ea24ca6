"""What the documents show runs, and their links lead somewhere."""

from __future__ import annotations

import re
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
