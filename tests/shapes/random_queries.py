"""Random statements about sizes with random scopes, and their truth by enumeration of all points."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

NAMES = ("n", "m", "k")
OPERATORS = ("==", "!=", "<=", "<", ">=", ">")


@dataclass(frozen=True)
class Query:
    statement: str
    bounds: dict[str, tuple[int, int]]
    assume: tuple[str, ...]
    linear: bool

    def points(self) -> Iterator[dict[str, int]]:
        """All points within the bounds at which the assumptions hold and have values."""
        assumed = [compiled(text) for text in self.assume]
        names = list(self.bounds)
        for values in product(*(range(low, high + 1) for low, high in self.bounds.values())):
            env = dict(zip(names, values, strict=True))
            if all(value(code, env) for code in assumed):
                yield env

    def truth(self) -> tuple[bool, bool, int]:
        """Whether it holds wherever it has a value, whether it has one everywhere, and the number of points."""
        code = compiled(self.statement)
        values = [value(code, env) for env in self.points()]
        return False not in values, None not in values, len(values)


_GLOBALS = {"__builtins__": {}, "max": max, "min": min, "ceildiv": lambda a, b: -(-a // b)}


class _Lazy(ast.NodeTransformer):
    """`select(c, a, b)` as Python's `a if c else b`, which looks at one of the two only."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "select":
            test, then, otherwise = node.args
            return ast.IfExp(test, then, otherwise)
        return node


def compiled(text: str):
    """`text` as Python code."""
    return compile(ast.fix_missing_locations(_Lazy().visit(ast.parse(text, mode="eval"))), "<statement>", "eval")


def value(code, env) -> bool | None:
    """Python's own answer; None where it divides by zero."""
    try:
        return eval(code, _GLOBALS, env)
    except ZeroDivisionError:
        return None


def queries(count: int, seed: int) -> Iterator[Query]:
    """`count` random queries, the same for the same seed."""
    chance = random.Random(seed)
    for _ in range(count):
        yield _query(chance)


def _query(chance: random.Random) -> Query:
    linear = chance.random() < 0.5
    names = NAMES[: chance.choice((1, 2, 2, 3))]
    bounds: dict[str, tuple[int, int]] = {}
    for name in names:
        low = chance.choice((1, 1, 1, 1, 0, 0, 2, 3, -2))
        bounds[name] = (low, low + chance.choice((1, 3, 5, 7, 8)))
    a = _expression(chance, names, linear, chance.choice((1, 2, 2, 3)))
    kind = chance.random()
    if kind < 0.45:  # a variant of the same value, now and then a little off
        b = _variant(chance, a, names)
        if chance.random() < 0.2:
            b = f"{b} + {chance.choice((1, -1, 2))}"
        op = chance.choice(("==", "==", "==", "<=", ">=", "!="))
    elif kind < 0.6:
        b = f"{_variant(chance, a, names)} + {_expression(chance, names, linear, 1)}"
        op = chance.choice(("<=", "<", "!="))
    elif kind < 0.7:
        modulus = chance.choice((2, 3, 4, 6, 8))
        a, b, op = f"({a})*{chance.choice((1, 2, modulus, 12))} % {modulus}", str(chance.choice((0, 0, 0, 1))), "=="
    else:
        b = _expression(chance, names, linear, chance.choice((0, 1, 2)))
        op = chance.choice(OPERATORS)
    assume = tuple(_assumption(chance, names, linear) for _ in range(chance.choice((0, 0, 0, 1, 1, 2))))
    return Query(f"{a} {op} {b}", bounds, assume, linear)


def _expression(chance: random.Random, names: tuple[str, ...], linear: bool, depth: int) -> str:
    if depth == 0 or chance.random() < 0.1:
        return chance.choice(names) if chance.random() < 0.75 else str(chance.randint(0, 6))
    a, b = (_expression(chance, names, linear, depth - 1) for _ in range(2))
    constant = chance.choice((2, 3, 4, 5, 6, 8))
    roll = chance.random()
    if roll < 0.1:
        compared = f"{chance.choice(names)} {chance.choice(OPERATORS)} {chance.choice((*names, str(constant)))}"
        if chance.random() < 0.3:
            compared = f"{_expression(chance, names, linear, 1)} {chance.choice(OPERATORS)} {b}"
        return f"select({compared}, {a}, {b})" if chance.random() < 0.5 else f"({a} if {compared} else {b})"
    if roll < 0.3:
        return f"({a} {chance.choice('+-')} {b})"
    if roll < 0.5:
        return f"({a})*{constant}" if linear else f"({a})*({b})"
    if roll < 0.62:
        return f"{chance.choice(('max', 'min'))}({a}, {b})"
    by = str(constant) if linear or chance.random() < 0.5 else _divisor(chance, names, b)
    if roll < 0.82:
        return f"(({a})//({by}))"
    if roll < 0.92:
        return f"(({a})%({by}))"
    return f"ceildiv({a}, {by})"


def _divisor(chance: random.Random, names: tuple[str, ...], other: str) -> str:
    return other if chance.random() < 0.2 else chance.choice(names)


def _variant(chance: random.Random, text: str, names: tuple[str, ...]) -> str:
    """Returns an expression of the same value in another form."""
    name, c = chance.choice(names), chance.choice((2, 3, 4))
    forms = (
        f"({text})",
        f"({text} + {name}) - {name}",
        f"(({text})*{c})//{c}",
        f"(({text})*{c} + {c - 1})//{c}",
        f"(({text})//{c})*{c} + ({text})%{c}",
        f"max({text}, {text} - {c})",
        f"min({text}, {name}) + max({text}, {name}) - {name}",
        f"ceildiv(({text})*{c} - {c - 1}, {c})",
        f"({text} + {name}*{c})//1 - {name}*{c}",
        f"select({name} > {c}, {text}, ({text})*1)",
        f"select({name} >= {c}, {text} + {name}, {text} + {c}) - max({name}, {c})",
        f"select(({text}) % {c} == 0, ({text})//{c}*{c}, {text})",
        f"(({text})*{name})//{name}",
        f"(({text})*({name} + 1))//({name} + 1)",
    )
    linear = not re.search(r"\)\*\(|[nmk]\)*(//|%)\([^\d]", text)
    return chance.choice(forms[:-2] if linear else forms)


def _assumption(chance: random.Random, names: tuple[str, ...], linear: bool) -> str:
    a, b = chance.choice(names), chance.choice(names)
    c, d = chance.choice((2, 3, 4)), chance.choice((0, 0, 1))
    forms = (
        f"{a} % {c} == {d}",
        f"{a} <= {b}",
        f"{a} == {c}*{b} + {d}",
        f"({a} + {b}) % {c} == {d}",
        f"{a} != {c}",
        f"{c}*{a} == {b} + {d}",
        f"{c}*{a} >= 3*{b} - {d}",
        f"max({a}, {b}) <= {c + 3}",
        f"{a}//{c} == {b}//3",
        f"select({a} < {c}, {b}, {a}) >= {c}",
        f"{a} % {b} == 0",
        f"{a}*{b} <= {3 * c}",
        f"{a}*{b} == {3 * c}",
    )
    return chance.choice(forms[:-3] if linear else forms)
