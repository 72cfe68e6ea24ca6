"""Lambdas and nested functions without annotations.

    pair = lambda p, q: (p, q)
    pair(x, pair(n, x))

The name stands for the function: each use of it is a function of its own, whose parameters have the annotations that
are known there. So it may be used at several types.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from relax_eg.ir.reader import Source


class Statements(ast.Lambda):
    """A nested function `name` of several lines, where a lambda may stand: `statements` is its body, `body` is not
    read."""

    _fields = (*ast.Lambda._fields, "statements")
    name: str
    statements: list[ast.stmt]


MOST_COPIED = 20_000  # limit: nodes of Python's syntax in all uses; reading one takes about 10 us
_ANNOTATED = "def name(x: R.Tensor(...)): return ..., which is one function wherever it is used"


def with_lambdas_in_place(body: Sequence[ast.stmt], source: Source) -> list[ast.stmt]:
    """Returns the statements of a function, where lambdas stand in place of their names. ModuleTextError where a name
    that the lambda reads means something else at a use."""
    if not any(map(_named_lambda, body)):
        return [*body]
    stored = Counter(_bindings(n for s in body for n in ast.walk(s)))
    placed, made = _InPlace(source), list[ast.stmt]()
    for s in body:
        new = placed.visit(s)
        known = _named_lambda(new)
        if known is None or stored[known[0]] != 1:
            made.append(new)
            continue
        name, function = known
        placed.functions[name] = function
        placed.read[name] = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)} - _bound_in(function)
        placed.sizes[name] = sum(1 for _ in ast.walk(function))
    return made


def _named_lambda(s: ast.stmt) -> tuple[str, ast.Lambda] | None:
    """The name and function of a line that names a lambda, or of a nested `def` without annotations that is one."""
    if isinstance(s, ast.Assign) and len(s.targets) == 1 and isinstance(s.targets[0], ast.Name):
        return (s.targets[0].id, s.value) if isinstance(s.value, ast.Lambda) else None
    if not isinstance(s, ast.FunctionDef) or s.returns is not None or s.decorator_list or not s.args.args:
        return None
    if any(a.annotation is not None for a in s.args.args) or any(
        isinstance(n, ast.Name) and n.id == s.name for part in s.body for n in ast.walk(part)
    ):
        return None
    made = Statements(s.args, ast.Constant(None))
    made.name, made.statements = s.name, s.body
    return s.name, ast.fix_missing_locations(ast.copy_location(made, s))


def _bound_in(function: ast.Lambda | ast.FunctionDef) -> set[str]:
    """The names that a function binds: its parameters, and what its lines, patterns and functions name."""
    return {a.arg for a in function.args.args}.union(_bindings(n for n in ast.walk(function) if n is not function))


def _bindings(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names that parts of syntax bind, each as often as it is bound."""
    for n in nodes:
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
            yield n.id
        elif isinstance(n, (ast.MatchAs, ast.FunctionDef)) and n.name:
            yield n.name


class _InPlace(ast.NodeTransformer):
    def __init__(self, source: Source) -> None:
        self.source = source
        self.functions: dict[str, ast.Lambda] = {}
        self.read: dict[str, set[str]] = {}
        self.sizes: dict[str, int] = {}
        self.inner: list[set[str]] = []  # what functions around the present place bind
        self.copied = 0

    def _inside(self, node: ast.Lambda | ast.FunctionDef) -> ast.AST:
        self.inner.append(_bound_in(node))
        found = self.generic_visit(node)
        self.inner.pop()
        return found

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return self._inside(node)

    visit_Statements = visit_Lambda

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._inside(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in self.functions or isinstance(node.ctx, ast.Store):
            return node
        bound = set[str]().union(*self.inner)
        if node.id in bound:
            return node
        if clash := sorted(self.read[node.id] & bound):
            problem = f"`{node.id}` reads `{clash[0]}`, which is another value here"
            raise self.source.error(node, problem, f"another name for that value, or {_ANNOTATED}")
        self.copied += self.sizes[node.id]
        if self.copied > MOST_COPIED:
            problem = f"the uses of `{node.id}` and of other lambdas without annotations are too long together"
            raise self.source.error(node, problem, _ANNOTATED)
        return copy.deepcopy(self.functions[node.id])
