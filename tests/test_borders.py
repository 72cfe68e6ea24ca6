"""The borders between the rooms of the package, read off its import statements.

The table says which rooms a room may import, and `OUTSIDE` where the heavy dependencies may appear. A new room needs a
line in the table, in the same commit.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from tests.sources import trees

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "relax_eg"
NAME = PACKAGE.name

# What all rooms may import.
EVERYWHERE = {
    "errors", "dtypes", "logs", "byte_units", "figures", "limits", "plain_data", "argument_checks", "memo", "traversal",
    "contexts", "integer_program",
}  # fmt: skip

# A room, and the rooms of ours it may import; "extract.graph" is that one module.
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "dtypes": {"errors"},
    "logs": {"errors", "argument_checks", "contexts"},
    "byte_units": {"errors"},
    "integer_program": {"errors"},
    "figures": set(),
    "limits": set(),
    "memo": set(),
    "traversal": set(),
    "contexts": set(),
    "argument_checks": {"errors"},
    "plain_data": {"errors"},
    "settings": set(),
    "processor": set(),
    "store": {"errors"},
    "cache_folder": {"store", "errors"},
    "shapes": set(),
    "tir": {"shapes"},
    "ir": {"shapes", "tir"},
    "ops": {"ir", "tir", "shapes"},
    "rules": {"ops", "ir", "tir", "shapes", "store", "cache_folder"},
    "explain": {"rules", "ops", "ir", "tir", "shapes"},
    "egraph": {"rules", "ops", "ir", "tir", "shapes", "explain.record", "extract.graph"},
    "extract": {"ir", "ops", "tir", "shapes"},
    "meshes": {"extract", "rules", "ops", "ir", "tir", "shapes"},
    "memory": {"ir", "ops", "tir", "shapes"},
    "vm": {"ir", "shapes"},
    "backend": {
        "vm",
        "ir",
        "ops",
        "tir",
        "shapes",
        "explain",
        "extract.footprint",
        "reports",
        "memory",
        "store",
        "cache_folder",
        "settings",
        "processor",
    },
    "reports": {"extract", "ir", "ops", "tir", "shapes"},
    "discovery": {"egraph", "rules", "reports", "extract", "ir", "ops", "tir", "shapes"},
    "frontends": {"ir", "ops", "tir", "shapes", "settings"},
    "dynamic": {
        "backend",
        "vm",
        "explain.text",
        "reports.report",
        "reports.spread",
        "ir",
        "ops",
        "tir",
        "shapes",
        "settings",
    },
    "measure": {"extract", "ops", "ir", "tir", "shapes", "processor"},
}
# May import everything.
CONDUCTORS = {"driver", "cli", "__init__", "__main__", "debug", "run", "script", "types"}

# A dependency, and the modules that may import it (a room, a module, or a module's name up to "*").
OUTSIDE: dict[str, set[str]] = {
    "egglog": {"egraph"},
    "z3": {"shapes", "rules.checking.verif*", "rules.verify*"},
    "jax": {
        "backend",
        "frontends",
        "dynamic",
        "measure",
        "settings",
        "driver.clock.measured",
        "driver.clock.settling",
        "driver.clock.turns",
        "driver.spreads.pipelining",
        "driver.spreads.given_placements",
        "driver.optimize",
        "driver.jitting.background",
        "driver.jitting.arguments",
        "driver.jitting.jit",
        "driver.jitting.jitted",
        "driver.jitting.varying",
    },
    "jaxlib": {"backend", "frontends", "driver.optimize", "driver.jitting.jitted"},
}
# The same, inside functions only: the operators' lowerings need jax, but reading the operator table must not.
LAZILY: dict[str, set[str]] = {
    "jax": {"ops.lazy_jax", "ops.placing", "ops.transfers", "rules.checking.check_libraries"}
}

LONGEST_FILE = 550  # lines, docstrings included
HOLDING = (ast.stmt, ast.excepthandler, ast.match_case)  # nodes that may hold statements

# Files that import each other, in functions and for types too; each circle by its first file and the number of files.
# Their classes have methods (`__str__`, `to_html`, `__floordiv__`) that functions of other files compute, or read parts
# of one text.
CIRCLES = {
    "shapes.dim": 4,
    "tir.expr": 2,
}


@dataclass(frozen=True)
class Import:
    """`from target import name` (no name: `import target`) at a line; `lazy` if importing the file does not run it."""

    target: str
    name: str
    line: int
    lazy: bool


def imports(tree: ast.Module, module: str, is_package: bool) -> Iterator[Import]:
    """Every import statement of a module, relative ones resolved."""
    pending: list[tuple[ast.AST, bool]] = [(tree, False)]
    while pending:
        node, lazy = pending.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, "", node.lineno, lazy)
        elif isinstance(node, ast.ImportFrom):
            target = node.module or ""
            if node.level:
                parts = module.split(".")
                base = parts[: len(parts) - node.level + is_package]
                target = ".".join([*base, *([target] if target else [])])
            for alias in node.names:
                yield Import(target, alias.name, node.lineno, lazy)
        inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        types_only = node.body if _checks_types_only(node) else []
        parts = (child for child in ast.iter_child_nodes(node) if isinstance(child, HOLDING))
        pending.extend((child, inside or child in types_only) for child in parts)


def complaints(module: str, found: list[Import]) -> list[str]:
    """What in the imports of `module` (a dotted name, package first) crosses a border."""
    here = module.removeprefix(NAME).removeprefix(".") or "__init__"
    room = here.split(".")[0]
    out: list[str] = []
    if room not in ROOMS and room not in CONDUCTORS:
        out.append(f"{module}: `{room}` is no room of the table")
    for imp in found:
        top = imp.target.split(".")[0]
        where = f"{module}:{imp.line} imports {imp.target}{'.' if imp.name else ''}{imp.name}"
        if top == NAME and room in ROOMS and not _own_allowed(room, imp):
            out.append(f"{where}; `{room}` may import {', '.join(sorted(ROOMS[room])) or 'no other room'}")
        if top in OUTSIDE and not _outside_allowed(top, here, imp.lazy):
            out.append(f"{where}; only {', '.join(sorted(OUTSIDE[top]))} may")
    return out


def _checks_types_only(node: ast.AST) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and ast.unparse(node.test).split(".")[-1] == "TYPE_CHECKING"


def _own_allowed(room: str, imp: Import) -> bool:
    # `from relax_eg.extract import graph` and `from relax_eg.extract.graph import X` both reach extract.graph.
    reached = f"{imp.target}.{imp.name}".removeprefix(NAME).strip(".")
    return any(_is_or_is_in(reached, allowed) for allowed in {room, *EVERYWHERE, *ROOMS[room]})


def _outside_allowed(dependency: str, here: str, lazy: bool) -> bool:
    allowed = OUTSIDE[dependency] | (LAZILY.get(dependency, set()) if lazy else set())
    return any(here.startswith(a[:-1]) if a.endswith("*") else _is_or_is_in(here, a) for a in allowed)


def _is_or_is_in(name: str, where: str) -> bool:
    return name == where or name.startswith(f"{where}.")


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _check(module: str, tree: ast.Module, is_package: bool = False) -> list[str]:
    return complaints(module, list(imports(tree, module, is_package)))


def test_imports_stay_within_the_borders() -> None:
    found = (_check(_module_name(PACKAGE / file), tree, file.endswith("__init__.py")) for file, tree in trees().items())
    assert [complaint for of_file in found for complaint in of_file] == []


def circles(sources: Mapping[str, ast.Module]) -> dict[str, int]:
    """The circles of imports among modules with these trees: by its first module, the number of its modules."""
    number = {name: i for i, name in enumerate(sorted(sources))}
    edges: set[tuple[int, int]] = set()
    for name, tree in sources.items():
        for x in imports(tree, name, is_package=False):
            edges |= {
                (number[name], number[y]) for y in (x.target, f"{x.target}.{x.name}") if y in number and y != name
            }
    places = [a for a, _ in edges], [b for _, b in edges]
    graph = coo_array(([True] * len(edges), places), (len(number), len(number)))
    _, labels = connected_components(graph, connection="strong")
    members: dict[int, list[str]] = {}
    for name, i in number.items():
        members.setdefault(int(labels[i]), []).append(name)
    return {found[0]: len(found) for found in members.values() if len(found) > 1}


def test_files_form_no_new_circle() -> None:
    modules = {_module_name(PACKAGE / f): tree for f, tree in trees().items() if not f.endswith("__init__.py")}
    assert circles(modules) == {f"{NAME}.{first}": n for first, n in CIRCLES.items()}


def test_circles_are_found() -> None:
    types = ast.parse("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p import a")
    early, late = ast.parse("from p.b import x"), ast.parse("def f():\n    from p.c import g")
    assert circles({"p.a": early, "p.b": late, "p.c": types, "p.d": ast.parse("from p import a")}) == {"p.a": 3}
    assert circles({"p.a": early, "p.b": ast.parse("import math")}) == {}


def test_files_are_short_enough_to_read() -> None:
    files = [p for folder in (NAME, "tests", "examples", "benchmarks") for p in sorted((ROOT / folder).rglob("*.py"))]
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in files}
    assert {name: n for name, n in lengths.items() if n >= LONGEST_FILE} == {}


def test_a_public_class_has_a_name_of_its_own() -> None:
    files: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for name in re.findall(r"^class ([A-Za-z]\w*)", path.read_text(encoding="utf-8"), re.MULTILINE):
            files.setdefault(name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: found for name, found in files.items() if len(found) > 1} == {}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("relax_eg.ir.printer", "from relax_eg.shapes import Dim\nfrom .module import Module\nfrom .. import errors"),
        ("relax_eg.tir.compose", "from relax_eg.shapes.dim import Dim\nimport numpy as np"),
        ("relax_eg.egraph.encode", "import egglog\nfrom relax_eg.extract.graph import Graph"),
        ("relax_eg.egraph.encode", "from relax_eg.extract import graph"),
        ("relax_eg.ops.lazy_jax", "def lower(x):\n    import jax.numpy as jnp\n    return jnp.exp(x)"),
        ("relax_eg.ops.lazy_jax", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import jax"),
        ("relax_eg.rules.verify_ring", "import z3"),
        ("relax_eg.driver.optimize", "import jax\nfrom relax_eg import egraph, frontends"),
        ("relax_eg", "from .driver import optimize"),
    ],
)
def test_allowed(module: str, source: str) -> None:
    assert _check(module, ast.parse(source), is_package=module == NAME) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("relax_eg.shapes.dim", "from relax_eg.ir import Module"),
        ("relax_eg.ir.printer", "from ..ops import OPS"),
        ("relax_eg.ir.printer", "from relax_eg import trace"),
        ("relax_eg.ir.printer", "def late():\n    from relax_eg.egraph import encode"),
        ("relax_eg.egraph.encode", "from relax_eg.extract.selection.select import greedy"),
        ("relax_eg.egraph.encode", "from relax_eg.extract import graphs"),
        ("relax_eg.ops.math", "import jax.numpy as jnp"),
        ("relax_eg.ops.math", "def lower(x):\n    import jax.numpy as jnp\n    return jnp.exp(x)"),
        ("relax_eg.ops.math", "import egglog"),
        ("relax_eg.tir.evaluate", "def late():\n    import jax"),
        ("relax_eg.rules.rule", "from z3 import Solver"),
        ("relax_eg.driver.optimize", "from egglog.bindings import EGraph"),
        ("relax_eg.attic.stuff", ""),
    ],
)
def test_refused(module: str, source: str) -> None:
    assert len(_check(module, ast.parse(source))) == 1
