"""The package's source as syntax trees, parsed once for all tests that read it."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "relax_eg"


@cache
def trees() -> dict[str, ast.Module]:
    """The syntax trees of the package by file, relative to it and with "/". The collector does not look at them, nor
    while they are made, which would take twice as long as the parser."""
    paths = sorted(PACKAGE.rglob("*.py"))
    gc.disable()
    try:
        found = {p.relative_to(PACKAGE).as_posix(): ast.parse(p.read_text(encoding="utf-8")) for p in paths}
    finally:
        gc.enable()
    gc.freeze()
    return found


@cache
def nodes() -> dict[str, list[ast.AST]]:
    """All nodes of these trees, by file."""
    return {file: list(ast.walk(tree)) for file, tree in trees().items()}
