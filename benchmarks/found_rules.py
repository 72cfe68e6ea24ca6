"""Files of rules that a search for laws has written, as one set."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import typer

import relax_eg as rx
from relax_eg.discovery.laws import file_text, load
from relax_eg.rules import Rule, RuleSet


def rules_at(place: str) -> RuleSet:
    """Returns the rules of a file or folder, under names that tell the file."""
    if not place:
        return rx.discover("abs | multiply | maximum", "x: *b, y: *b", 2).rules
    path = Path(place)
    files = sorted(path.glob("*.py")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise typer.BadParameter(f"{place}: no file of rules is there")
    found: list[Any] = []
    for file in files:
        text = file.read_text()
        if file.suffix == ".json":  # as `python -m benchmarks.mined --mine` writes it
            text = file_text([law["source"] for law in json.loads(text)["laws"]], {}, "Mined laws.", "mined")
        for name in [line[4 : line.index("(")] for line in text.splitlines() if line.startswith("def ")]:
            text = text.replace(f"def {name}(", f"def {file.stem}__{name}(")
            text = text.replace(f'name="{name}_typed_', f'name="{file.stem}__{name}_typed_')
        found += load(text, file.stem)
    return RuleSet("found", found)


def canonical(rule: Rule) -> str:
    """The law with its variables named in the order in which they appear."""
    numbers: dict[str, int] = {}

    def number(m: re.Match[str]) -> str:
        return f"${numbers.setdefault(m[0], len(numbers))}" if m[0] in rule.signature else m[0]

    return re.sub(r"[^\W\d]\w*", number, rule.doc.splitlines()[0])
