"""Statements of Python that the text reader takes apart before it reads them: `return` inside of branches, `match` with
nested patterns, `a, b = value`, `x += y`, and `a if condition else b`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from relax_eg.argument_checks import did_you_mean
from relax_eg.ir.annotations import DataType
from relax_eg.ir.expr import fresh_name
from relax_eg.ir.reader import Source

PATTERNS = "constructors such as List.Cons(head, tail), numbers, True, False, names, `_`, and `|` between such"
RESULT = "result"  # the name of what a function with several `return`s returns


def with_one_return(body: Sequence[ast.stmt], taken: set[str], source: Source) -> list[ast.stmt]:
    """Returns statements equal to `body` of which only the last is a `return`.

    Lines after an `if` or `match` of which a branch returns become part of the other branches.
    """
    if not any(_returns(s) for s in body if not isinstance(s, ast.Return)):
        return list(body)
    name = fresh_name(RESULT, taken)
    flat = _flattened(body, name, source)
    return [*flat[:-1], _at(ast.Return(ast.Name(name, ast.Load())), flat[-1])] if len(flat) > 1 else flat


class PlainLines(ast.NodeTransformer):
    """Replaces `a, b = value` by lines that bind the value, and then its fields, `x += y` by `x = x + y`, and
    `a if condition else b` by a name that an `if` before the line binds. Declarations of sizes stay.

    - `taken`: names that are used; those that are made are added.
    """

    def __init__(self, taken: set[str]) -> None:
        self.taken = taken

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return node  # a nested function is read by itself

    def visit(self, node: ast.AST) -> Any:
        part = "test" if isinstance(node, ast.If) else "value"
        if not isinstance(node, ast.stmt) or not isinstance(getattr(node, part, None), ast.expr):
            return super().visit(node)
        choices = _Choices(self, node)
        setattr(node, part, choices.visit(getattr(node, part)))
        made = super().visit(node)
        return [*choices.before, *(made if isinstance(made, list) else [made])] if choices.before else made

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        if not isinstance(node.target, ast.Name):
            return node
        value = ast.BinOp(ast.Name(node.target.id, ast.Load()), node.op, node.value)
        return _at(ast.Assign([node.target], value), node)

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | list[ast.stmt]:
        target = node.targets[0]
        names = target.elts if isinstance(target, (ast.Tuple, ast.List)) and len(node.targets) == 1 else []
        calls = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        sizes = all(
            isinstance(v, ast.Call) and isinstance(v.func, ast.Attribute) and ast.unparse(v.func.value) == "T"
            for v in calls
        )
        if not names or sizes or not all(isinstance(n, ast.Name) for n in names):
            return node
        whole = fresh_name("fields", self.taken)
        made: list[ast.stmt] = [_at(ast.Assign([ast.Name(whole, ast.Store())], node.value), node)]
        for i, name in enumerate(names):
            field = ast.Subscript(ast.Name(whole, ast.Load()), ast.Constant(i), ast.Load())
            made.append(_at(ast.Assign([name], field), node))
        return made


class _Choices(ast.NodeTransformer):
    """Replaces `a if condition else b` in an expression by a name, which the lines `before` it bind."""

    def __init__(self, lines: PlainLines, statement: ast.stmt) -> None:
        self.lines, self.statement, self.before = lines, statement, list[ast.stmt]()

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        return node  # what is in it is computed where it is called

    def visit_IfExp(self, node: ast.IfExp) -> ast.Name:
        name = fresh_name("chosen", self.lines.taken)
        sides = [_at(ast.Assign([ast.Name(name, ast.Store())], v), self.statement) for v in (node.body, node.orelse)]
        made = self.lines.visit(_at(ast.If(node.test, sides[:1], sides[1:]), self.statement))
        self.before += made if isinstance(made, list) else [made]
        return ast.copy_location(ast.Name(name, ast.Load()), node)


def _returns(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Return):
        return True
    return any(_returns(s) for branch in _branches(statement) for s in branch)


def _branches(statement: ast.stmt) -> list[list[ast.stmt]]:
    if isinstance(statement, ast.If):
        return [statement.body, statement.orelse]
    return [c.body for c in statement.cases] if isinstance(statement, ast.Match) else []


def _flattened(body: Sequence[ast.stmt], name: str, source: Source) -> list[ast.stmt]:
    """Statements of which the last binds `name` on every path, followed by a `return` of the same line."""
    for i, s in enumerate(body):
        if isinstance(s, ast.Return):
            if s.value is None:
                raise source.error(s, "this returns nothing", "`return expression`")
            return [*body[:i], _at(ast.Assign([ast.Name(name, ast.Store())], s.value), s), s]
        if not _returns(s):
            continue
        rest = body[i + 1 :]
        made = [_flattened([*branch, *rest], name, source)[:-1] for branch in _branches(s)]
        if not all(made):
            raise source.error(s, "one of its branches returns and another ends", "`return expression` in every branch")
        if isinstance(s, ast.If):
            new: ast.stmt = ast.If(s.test, made[0], made[1])
        else:
            assert isinstance(s, ast.Match)
            cases = [ast.match_case(c.pattern, c.guard, b) for c, b in zip(s.cases, made, strict=True)]
            new = ast.Match(s.subject, cases)
        return [*body[:i], ast.copy_location(new, s), s]
    return []


def _at(made: ast.stmt, where: ast.stmt) -> ast.stmt:
    return ast.fix_missing_locations(ast.copy_location(made, where))


@dataclass(frozen=True, slots=True)
class _Row:
    """A case that still may match.

    - `patterns`: what the values have to match, in order.
    - `names`: the names that it binds so far, with the name of the value.
    - `body`: its statements.
    - `guard`: its condition.
    - `tests`: the values that the case compares with numbers, each with its number.
    """

    patterns: tuple[ast.pattern, ...]
    names: tuple[tuple[str, str], ...]
    body: list[ast.stmt]
    guard: ast.expr | None = None
    tests: tuple[tuple[str, ast.expr], ...] = ()


def _number(p: ast.pattern) -> ast.expr | None:
    """The number or truth value that a pattern is."""
    if isinstance(p, ast.MatchSingleton) and p.value is not None:
        return ast.copy_location(ast.Constant(p.value), p)
    if not isinstance(p, ast.MatchValue):
        return None
    plain = p.value.operand if isinstance(p.value, ast.UnaryOp) else p.value
    return p.value if isinstance(plain, ast.Constant) and isinstance(plain.value, (int, float)) else None


class MatchReader:
    """Takes a `match` statement apart into such with one case for each constructor and names for its fields.

    - `types`: the data types by name.
    - `taken`: the names in use; fields that have none get others.
    """

    def __init__(self, source: Source, types: Mapping[str, DataType], taken: set[str]) -> None:
        self.source = source
        self.types = types
        self.taken = taken

    def simple(self, statement: ast.Match) -> list[ast.stmt]:
        """Returns statements equal to `statement`. An error names a case that is missing."""
        self.statement = statement
        first: list[ast.stmt] = []
        value = statement.subject
        parts = [p for case in statement.cases for p in ast.walk(case.pattern) if isinstance(p, ast.pattern)]
        # Where a case may fail after its names are bound, no value has the name of a pattern.
        self.may_fail = any(c.guard for c in statement.cases) or any(_number(p) is not None for p in parts)
        if not isinstance(value, ast.Name) or self.may_fail:
            name = fresh_name("value", self.taken)
            first.append(_at(ast.Assign([ast.Name(name, ast.Store())], value), statement))
        else:
            name = value.id
        rows: list[_Row] = []
        for case in statement.cases:
            rows += [_Row((p,), (), case.body, case.guard) for p in self._alternatives(case.pattern)]
        self.shown: dict[str, tuple[DataType, int, tuple[str, ...]]] = {}
        return [*first, *self._statements((name,), rows, name)]

    def _alternatives(self, pattern: ast.pattern) -> Iterator[ast.pattern]:
        if isinstance(pattern, ast.MatchOr):
            for p in pattern.patterns:
                yield from self._alternatives(p)
        else:
            yield pattern

    def _statements(self, values: tuple[str, ...], rows: list[_Row], root: str) -> list[ast.stmt]:
        if not rows:
            problem = f"no case of this `match` takes {self._witness(root)}"
            accepted = "a case for every constructor, or `case _:`, without a condition"
            raise self.source.error(self.statement, problem, accepted)
        rows = [self._with_names(values, r) for r in rows]
        column = next((i for i, p in enumerate(rows[0].patterns) if isinstance(p, ast.MatchClass)), None)
        if column is None:
            return self._conditional(values, rows, root)
        definition = self._constructor(rows[0].patterns[column])[0]
        cases: list[ast.match_case] = []
        for i, c in enumerate(definition.constructors):
            left = [x for r in rows for x in self._specialised(r, column, definition, i)]
            fields = self._field_names(left, column, len(c.fields), {*values, root})
            self.shown[values[column]] = (definition, i, fields)
            inner = (*values[:column], *fields, *values[column + 1 :])
            body = self._statements(inner, left, root)
            del self.shown[values[column]]
            cls = ast.Attribute(ast.Name(definition.name, ast.Load()), c.name, ast.Load())
            pattern = ast.MatchClass(cls, [ast.MatchAs(None, f) for f in fields], [], [])
            cases.append(ast.match_case(pattern, None, body))
        return [_at(ast.Match(ast.Name(values[column], ast.Load()), cases), self.statement)]

    def _conditional(self, values: tuple[str, ...], rows: list[_Row], root: str) -> list[ast.stmt]:
        """The statements where the first row matches if its numbers and condition do."""
        row = rows[0]
        made = self._assigned([(n, v) for n, v in row.names if n != v])
        conditions = [ast.Compare(ast.Name(v, ast.Load()), [ast.Eq()], [number]) for v, number in row.tests]
        conditions += [] if row.guard is None else [row.guard]
        if not conditions:
            return [*made, *row.body]
        # Each is computed only where those before it hold: a condition may call what does not end otherwise.
        test: ast.expr = conditions[0]
        for following in conditions[1:]:
            name = fresh_name("matches", self.taken)
            branches = [ast.Assign([ast.Name(name, ast.Store())], e) for e in (following, ast.Constant(False))]
            made.append(_at(ast.If(test, [branches[0]], [branches[1]]), self.statement))
            test = ast.Name(name, ast.Load())
        rest = self._statements(values, rows[1:], root)
        return [*made, _at(ast.If(test, row.body, rest), self.statement)]

    def _assigned(self, names: list[tuple[str, str]]) -> list[ast.stmt]:
        """The lines that bind each name to the value of another."""
        if {n for n, _ in names} & {v for _, v in names}:  # a name would be read after it is bound again
            between = [(fresh_name("field", self.taken), v) for _, v in names]
            names = [*between, *((n, b) for (n, _), (b, _) in zip(names, between, strict=True))]
        made = [ast.Assign([ast.Name(n, ast.Store())], ast.Name(v, ast.Load())) for n, v in names]
        return [_at(m, self.statement) for m in made]

    def _with_names(self, values: tuple[str, ...], row: _Row) -> _Row:
        """`row` without the names and numbers of its patterns."""
        names, tests = list(row.names), list(row.tests)
        patterns: list[ast.pattern] = []
        for value, p in zip(values, row.patterns, strict=True):
            while isinstance(p, ast.MatchAs) and (p.name is not None or p.pattern is not None):
                if p.name is not None:
                    names.append((p.name, value))
                p = p.pattern or ast.copy_location(ast.MatchAs(None, None), p)
            if (number := _number(p)) is not None:
                tests.append((value, number))
                p = ast.copy_location(ast.MatchAs(None, None), p)
            if not isinstance(p, (ast.MatchAs, ast.MatchClass, ast.MatchOr)):
                raise self.source.error(p, "this pattern has no meaning here", PATTERNS)  # type: ignore[arg-type]
            patterns.append(p)
        return replace(row, patterns=tuple(patterns), names=tuple(names), tests=tuple(tests))

    def _specialised(self, row: _Row, column: int, definition: DataType, index: int) -> list[_Row]:
        """The rows that remain of `row` where the value of `column` is of constructor `index`."""
        before, p, after = row.patterns[:column], row.patterns[column], row.patterns[column + 1 :]
        fields = definition.constructors[index].fields
        if isinstance(p, ast.MatchOr):
            rows = [replace(row, patterns=(*before, q, *after)) for q in self._alternatives(p)]
            return [x for r in rows for x in self._specialised(r, column, definition, index)]
        if not isinstance(p, ast.MatchClass):
            anything = [ast.copy_location(ast.MatchAs(None, None), p) for _ in fields]
            return [replace(row, patterns=(*before, *anything, *after))]
        own, place = self._constructor(p)
        if own != definition:
            problem = f"this case matches a {own.name}, an earlier one a {definition.name}"
            raise self.source.error(p, problem, "constructors of one type")  # type: ignore[arg-type]
        if len(p.patterns) != len(own.constructors[place].fields):
            name, wanted = own.constructors[place].name, len(own.constructors[place].fields)
            problem = f"{own.name}.{name} has {wanted} field{'s' * (wanted != 1)}, this pattern has {len(p.patterns)}"
            raise self.source.error(p, problem, PATTERNS)  # type: ignore[arg-type]
        return [replace(row, patterns=(*before, *p.patterns, *after))] if place == index else []

    def _constructor(self, pattern: ast.pattern) -> tuple[DataType, int]:
        assert isinstance(pattern, ast.MatchClass)
        cls = pattern.cls
        if pattern.kwd_attrs:
            raise self.source.error(cls, "fields are matched by position", PATTERNS)
        if isinstance(cls, ast.Attribute) and isinstance(cls.value, ast.Name) and cls.value.id in self.types:
            definition = self.types[cls.value.id]
            names = [c.name for c in definition.constructors]
            if cls.attr in names:
                return definition, names.index(cls.attr)
            problem = f"`{definition.name}` has no constructor `{cls.attr}`{did_you_mean(cls.attr, names)}"
            raise self.source.error(cls, problem, f"one of {', '.join(names)}")
        if isinstance(cls, ast.Name):
            found = [(t, i) for t in self.types.values() for i, c in enumerate(t.constructors) if c.name == cls.id]
            if len(found) == 1:
                return found[0]
        problem = f"`{ast.unparse(cls)}` is no constructor of a data type"
        raise self.source.error(cls, problem + did_you_mean(ast.unparse(cls), self.types), PATTERNS)

    def _field_names(self, rows: list[_Row], column: int, count: int, used: set[str]) -> tuple[str, ...]:
        """The names of the fields in columns from `column`: as a pattern names them, if no value has that name."""
        used |= {name for _, _, names in self.shown.values() for name in names}
        found: list[str] = []
        for k in range(column, column + count):
            named = (
                []
                if self.may_fail
                else [p.name for r in rows if isinstance(p := r.patterns[k], ast.MatchAs) and p.name is not None]
            )
            found.append(next((n for n in named if n not in used), None) or fresh_name("field", self.taken))
            used.add(found[-1])
        return tuple(found)

    def _witness(self, value: str) -> str:
        if value not in self.shown:
            return "_"
        definition, index, fields = self.shown[value]
        return f"{definition.name}.{definition.constructors[index].name}({', '.join(map(self._witness, fields))})"
