"""Random well-typed programs of the language: closures, recursion with fuel, data and branches. The interpreter and the
machine agree on them, and their text reads back."""

from __future__ import annotations

import random

import jax
import numpy as np
import pytest

from relax_eg.ops.interpret import evaluate
from relax_eg.ops.text import parse
from tests.vm.language_programs import HEAD, scalars
from tests.vm.test_language import assert_alike, runner

NUMBER, LIST = 'R.Tensor((), "float32")', 'List(R.Tensor((), "float32"))'
FUNCTION = f"R.Callable(({NUMBER},), {NUMBER})"


class Program:
    """A generator of one program.

    - `functions`: the recursive functions so far, as (name, parameter annotations, result annotation).
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = 0
        self.functions: list[tuple[str, list[str], str]] = []

    def text(self) -> str:
        parts = [HEAD]
        for i in range(self.random.randint(1, 3)):
            parts.append(self.recursive(f"g{i}"))
        lines = self.lines({"x": NUMBER, "y": NUMBER, "xs": LIST}, 4)
        result = f"({self.value(NUMBER, lines[1], 2)}, {self.value(LIST, lines[1], 2)})"
        head = f"\n@R.function\ndef main(x: {NUMBER}, y: {NUMBER}, xs: {LIST}):\n"
        parts.append(head + "".join(f"    {line}\n" for line in [*lines[0], f"return {result}"]))
        return "".join(parts)

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def recursive(self, name: str) -> str:
        """A function that recurs over fuel or a list, and calls only functions that are there before it."""
        result = self.random.choice((NUMBER, LIST))
        by_list = self.random.random() < 0.5
        more = self.random.choice((NUMBER, FUNCTION))
        first = LIST if by_list else 'R.Tensor((), "int32")'
        known = {"a": more}
        base = self.value(result, known, 1)
        head = f"\n@R.function\ndef {name}(n: {first}, a: {more}) -> {result}:\n"
        if by_list:
            inner = {**known, "h": NUMBER, "t": LIST, "r": result}
            step = self.value(result, inner, 2)
            body = f"match n:\n        case List.Nil():\n            return {base}\n"
            if self.random.random() < 0.3:
                body += "        case List.Cons(0.9, List.Cons(h, _)):\n"
                body += f"            return {self.value(result, known, 1)}\n"
            if self.random.random() < 0.3:
                held = {**known, "h": NUMBER, "t": LIST}
                body += f"        case List.Cons(h, t) if {self.value(NUMBER, held, 1)} > 0.5:\n"
                body += f"            return {self.value(result, held, 1)}\n"
            body += f"        case List.Cons(h, t):\n            r = {name}(t, a)\n            return {step}\n"
        else:
            step = self.value(result, {**known, "r": result}, 2)
            body = f"if n <= 0:\n        return {base}\n    r = {name}(n - 1, a)\n    return {step}\n"
        self.functions.append((name, [first, more], result))
        return head + "    " + body

    def lines(self, known: dict[str, str], count: int) -> tuple[list[str], dict[str, str]]:
        made: list[str] = []
        for _ in range(count):
            name = self.name()
            kind = self.random.choice((NUMBER, LIST, FUNCTION, "if", "def"))
            if kind == "if":
                body = [self.value(NUMBER, known, 2) for _ in range(2)]
                made += [f"if {self.value(NUMBER, known, 1)} > 0.5:", f"    {name} = {body[0]}", "else:"]
                made += [f"    {name} = {body[1]}"]
                known = {**known, name: NUMBER}
            elif kind == "def":
                value = self.value(NUMBER, {**known, "p": NUMBER}, 2)
                made += [f"def {name}(p: {NUMBER}):", f"    return {value}"]
                known = {**known, name: FUNCTION}
            else:
                made.append(f"{name}: {kind} = {self.value(kind, known, 2)}")
                known = {**known, name: kind}
        return made, known

    def value(self, kind: str, known: dict[str, str], depth: int) -> str:
        names = [n for n, k in known.items() if k == kind]
        pick = self.random.random()
        if kind == FUNCTION:
            if names and (depth == 0 or pick < 0.5):
                return self.random.choice(names)
            return f"lambda q: {self.value(NUMBER, {**known, 'q': NUMBER}, max(depth - 1, 0))}"
        if depth == 0 or pick < 0.2:
            if names and self.random.random() < 0.8:
                return self.random.choice(names)
            return "List.Nil()" if kind == LIST else f"R.const({self.random.choice((0.25, 0.5, 1.0))})"
        called = [f for f in self.functions if f[2] == kind]
        if called and pick < 0.45:
            name, (first, more), _ = self.random.choice(called)
            argument = self.value(LIST, known, 0) if first == LIST else f"R.const({self.random.randint(0, 4)}, 'int32')"
            return f"{name}({argument}, {self.value(more, known, depth - 1)})"
        if kind == LIST:
            return f"List.Cons({self.value(NUMBER, known, depth - 1)}, {self.value(LIST, known, depth - 1)})"
        functions = [n for n, k in known.items() if k == FUNCTION]
        if functions and pick < 0.7:
            return f"{self.random.choice(functions)}({self.value(NUMBER, known, depth - 1)})"
        operator = self.random.choice(("+", "*", "-"))
        return f"R.op.tanh({self.value(NUMBER, known, depth - 1)} {operator} {self.value(NUMBER, known, depth - 1)})"


def check(seed: int) -> None:
    module = parse(Program(seed).text())
    assert parse(str(module)) == module
    args = [np.float32(0.3), np.float32(-0.7), scalars([0.1, 0.9, 0.4])]
    wanted = evaluate(module, args)
    arrays = [jax.numpy.asarray(a) if hasattr(a, "dtype") else a for a in args]
    assert_alike(runner(module).run(arrays), wanted)


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 400))
def test_more_random_programs(seed: int) -> None:
    check(seed)
