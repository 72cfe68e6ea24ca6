"""The constants of the package by the kinds that their comments name, and imports of the package with some scaled.

A constant is an assignment of a module to names in capitals whose value has numbers in it. The comment behind it, or
above it, begins with its class:

    limit     an amount of work, storage, output or input: more takes longer, less may end in an error or a worse result
    chosen    nothing depends on it within a factor of 2, which `test_constants.py` tries
    measured  by the command that the comment names
    given     by a format, a standard, a publication, arithmetic, or what users are promised
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from typing import Any

from tests.sources import PACKAGE, trees

KINDS = ("limit", "chosen", "measured", "given")
_TOOLS = re.compile(r"#\s*(fmt|type|noqa|pyright)\b")


@dataclass(frozen=True)
class Constant:
    """A constant of the package.

    - `module`: its module.
    - `names`: the names that one assignment binds.
    - `line`: the line of the assignment.
    - `kind`: the first word of its comment; "" if there is no kind.
    - `comment`: the comment.
    """

    module: str
    names: tuple[str, ...]
    line: int
    kind: str
    comment: str

    @property
    def label(self) -> str:
        return f"{self.module}.{'+'.join(self.names)}"


def constants() -> Iterator[Constant]:
    """Returns the constants of all modules of the package."""
    for file, tree in trees().items():
        module = f"relax_eg.{file.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__")
        yield from constants_of((PACKAGE / file).read_text(encoding="utf-8"), module, tree)


def constants_of(text: str, module: str, tree: ast.Module | None = None) -> Iterator[Constant]:
    """Returns the constants of one module; `tree`: its syntax tree, if there is one."""
    lines = text.splitlines()
    for node in (tree or ast.parse(text)).body:
        names = _names(node)
        if not names or not any(True for _ in _numbers(node.value)):  # type: ignore[reportAttributeAccessIssue]
            continue
        first = node.lineno
        while first > 1 and lines[first - 2].startswith("#"):
            first -= 1
        behind = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode().strip()  # type: ignore[reportOptionalOperand]
        is_said = behind.startswith("#") and not _TOOLS.match(behind)
        comment = behind if is_said else " ".join(lines[first - 1 : node.lineno - 1])
        said = re.match(rf"# ({'|'.join(KINDS)}): \S", comment)
        yield Constant(module, names, node.lineno, said[1] if said else "", comment)


def _names(node: ast.stmt) -> tuple[str, ...]:
    if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
        return ()
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    each = target.elts if isinstance(target, ast.Tuple) else [target]
    names = tuple(x.id for x in each if isinstance(x, ast.Name))
    return names if len(names) == len(each) and all(n.isupper() for n in names) else ()


def _numbers(value: ast.expr) -> Iterator[ast.expr]:
    """The numbers in a value: itself, or those of a tuple, a list, the values of a table, keywords of a call."""
    if isinstance(value, (ast.Tuple, ast.List)):
        for x in value.elts:
            yield from _numbers(x)
    elif isinstance(value, ast.Dict):
        for x in value.values:
            yield from _numbers(x)
    elif isinstance(value, ast.Call):
        for k in value.keywords:
            yield from _numbers(k.value)
    elif isinstance(value, (ast.Constant, ast.UnaryOp, ast.BinOp)) and any(map(_is_number, ast.walk(value))):
        yield value


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def scaled(x: float, factor: float) -> float:
    """A count of at least 1 stays one. A share or a ratio near 1 is told by how far it is from 1."""
    if isinstance(x, int):
        return max(1, round(x * factor)) if x > 0 else x
    return 1 + (x - 1) * factor if 0.5 < x < 2 else x * factor


class _Scale(ast.NodeTransformer):
    def __init__(self, factors: Mapping[str, float]) -> None:
        self.factors = factors

    def visit_Module(self, node: ast.Module) -> ast.Module:
        for statement in node.body:
            factor = self.factors.get((_names(statement) or ("",))[0])
            if factor is not None:
                for number in _numbers(statement.value):  # type: ignore[reportAttributeAccessIssue]
                    self._scale(number, factor)
        return node

    def _scale(self, number: ast.expr, factor: float) -> None:
        """Turns an expression of numbers into the number, in place; one with names in it stays."""
        try:
            value = eval(compile(ast.Expression(number), "", "eval"), {"__builtins__": {}})
        except NameError:
            return
        node: Any = number
        node.__class__, node._fields = ast.Constant, ast.Constant._fields
        node.value, node.kind = scaled(value, factor), None


class Scaled(MetaPathFinder):
    """Imports the package with constants times a factor, by module and first name. To be put into `sys.meta_path`
    before the package is imported: what copies, defaults and tables are made of is scaled, too."""

    def __init__(self, factors: Mapping[tuple[str, str], float]) -> None:
        self.factors: dict[str, dict[str, float]] = {}
        for (module, name), factor in factors.items():
            self.factors.setdefault(module, {})[name] = factor

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname not in self.factors:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec is not None and spec.origin is not None
        spec.loader = _Loader(fullname, spec.origin, self.factors[fullname])
        return spec

    def install(self) -> None:
        assert not any(name.partition(".")[0] == PACKAGE.name for name in sys.modules)
        sys.meta_path.insert(0, self)


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, factors: Mapping[str, float]) -> None:
        super().__init__(name, path)
        self.factors = factors

    def get_code(self, fullname: str) -> Any:  # never what was compiled before
        tree = ast.parse(self.get_data(self.path))
        return compile(ast.fix_missing_locations(_Scale(self.factors).visit(tree)), self.path, "exec")
