"""What is said of text that cannot be read. The texts are interface."""

from __future__ import annotations

from textwrap import dedent

import pytest

from relax_eg.errors import ModuleTextError
from relax_eg.ops.text import parse

HEAD = 'def main(x: R.Tensor(("n", 4)), y: R.Tensor(("n", 4), "int32")):\n'
VALUES = "a variable, an operator R.name(...), + - * / @ **, a number, a tuple, or a call of a function"
STATEMENTS = "`name = expression`, `with R.dataflow():`, `if condition:`, `match value:`, or `return expression`"
LOOPS = "a function that calls itself, R.scan(Module.step, ...) or R.while_loop(Module.condition, Module.step, ...)"

CASES = [
    (
        HEAD + "    gvv = (x, y)\n    return gv\n",
        """\
        line 3: `gv` is not defined; did you mean `gvv`?
          return gv
                 ^
          expected: a parameter, an earlier binding or a function of the module""",
    ),
    (
        HEAD + "    return x +\n",
        """\
        line 2: invalid syntax
          return x +
                    ^
          expected: Relax text, which is Python's syntax""",
    ),
    (
        HEAD + '    é: R.Tensor(("n +",)) = (x, y)\n    return x\n',
        """\
        line 2: cannot read the dimension expression `n +`
          é: R.Tensor(("n +",)) = (x, y)
                       ^
          expected: integers, names, + - * // % **, parentheses, max(a, b), min(a, b), ceildiv(a, b), select(n <= m, a, b)""",  # noqa: E501
    ),
    (
        HEAD + "    a: R.Tensr((4,)) = x\n    return x\n",
        """\
        line 2: this is not an annotation
          a: R.Tensr((4,)) = x
             ^
          expected: R.Tensor(shape, dtype=...), R.Shape(sizes), R.Tuple(...), R.Callable((params,), result), R.Object, a data type such as List(R.Object), R.Ref(annotation) or R.TypeVar("a")""",  # noqa: E501
    ),
    (
        HEAD + "    with R.dataflow():\n        a = (x, y)\n        b = a\n        R.output(b)\n    return a\n",
        """\
        line 6: `a` is local to its dataflow block
          return a
                 ^
          expected: `a` to be listed in the R.output of that block""",
    ),
    (
        HEAD + "    with R.dataflow():\n        a = (x, y)\n    return a\n",
        """\
        line 2: this dataflow block has no outputs
          with R.dataflow():
          ^
          expected: R.output(names) as the last line of the dataflow block""",
    ),
    (
        HEAD + "    while x:\n        pass\n    return x\n",
        f"""\
        line 2: loops are not read as Python has them
          while x:
          ^
          expected: {LOOPS}""",
    ),
    (
        HEAD + "    x[0] = y\n    return x\n",
        f"""\
        line 2: this line binds no name
          x[0] = y
          ^
          expected: {STATEMENTS}""",
    ),
    (
        HEAD + "    if x:\n        pass\n    return x\n",
        """\
        line 2: the condition is R.Tensor(("n", 4))
          if x:
             ^
          expected: a bool scalar""",
    ),
    (
        HEAD + "    if R.const(True):\n        a = (x, x)\n    return x\n",
        """\
        line 2: this `if` has no `else`
          if R.const(True):
          ^
          expected: an `else` that binds the same names""",
    ),
    (
        HEAD + "    if R.const(True):\n        return x\n    else:\n        a = (x, x)\n",
        """\
        line 2: one of its branches returns and another ends
          if R.const(True):
          ^
          expected: `return expression` in every branch""",
    ),
    (
        HEAD + "    if R.const(True):\n        a = (x, x)\n    else:\n        b = (x, x)\n    return b\n",
        """\
        line 6: `b` is bound in one branch only
          return b
                 ^
          expected: a value for `b` in the other branch too""",
    ),
    (
        HEAD + "    if R.const(True):\n        a = (x, x)\n    else:\n        a = (x, x, x)\n    return a\n",
        """\
        line 6: `a` is R.Tuple(R.Tensor(("n", 4)), R.Tensor(("n", 4))) in one branch and R.Tuple(R.Tensor(("n", 4)), R.Tensor(("n", 4)), R.Tensor(("n", 4))) in the other: tuples of 2 and 3
          return a
                 ^
          expected: branches that give values of the same kind""",  # noqa: E501
    ),
    (
        HEAD + "    if R.const(True):\n        a = R.iota(shape=('2*n',), axis=0, dtype='int32')\n    else:\n"
        "        a = R.iota(shape=('2*n*n + 1',), axis=0, dtype='int32')\n    return a\n",
        """\
        line 6: `a` is R.Tensor(("2*n",), dtype="int32") in one branch and R.Tensor(("2*n**2 + 1",), dtype="int32") in the other: axis 0: sizes 2*n and 2*n**2 + 1 differ
          return a
                 ^
          expected: branches that give values of the same kind""",  # noqa: E501
    ),
    (
        HEAD + "    a = x\n",
        """\
        line 1: function `main` returns nothing
          def main(x: R.Tensor(("n", 4)), y: R.Tensor(("n", 4), "int32")):
          ^
          expected: `return expression` as its last line""",
    ),
    (
        HEAD + "    a = R.foo(x, 'int32')\n    return a\n",
        """\
        line 2: operands of R.foo are values
          a = R.foo(x, 'int32')
                       ^
          expected: attributes by keyword: name=value""",
    ),
    (
        HEAD + "    a = R.add(y, 1.5)\n    return a\n",
        """\
        line 2: int32 does not hold such values
          a = R.add(y, 1.5)
                       ^
          expected: a number that int32 holds, or R.const(number, "dtype")""",
    ),
    (
        HEAD + '    a = R.const_data("float32", (100,), "eJxjYKA9AAABkAAA")\n    return a\n',
        """\
        line 2: the packed bytes are damaged
          a = R.const_data("float32", (100,), "eJxjYKA9AAABkAAA")
              ^
          expected: R.const_data("dtype", shape, "packed bytes")""",
    ),
    (
        HEAD + '    a = R.const([1, 300], "int8")\n    return a\n',
        """\
        line 2: int8 does not hold integers so large
          a = R.const([1, 300], "int8")
              ^
          expected: R.const(values, "dtype")""",
    ),
    (
        HEAD + '    a: R.Object = R.f(k=R.foreign("Jaxpr", 123456))\n    return a\n',
        """\
        line 2: this process holds no Jaxpr number 123456: a module with foreign objects cannot be read in \
another process than the one that printed it
          a: R.Object = R.f(k=R.foreign("Jaxpr", 123456))
                              ^
          expected: text printed in this process, or a module without foreign objects""",
    ),
    (
        HEAD + "    return mian(x)\n",
        """\
        line 2: `mian` is not defined; did you mean `main`?
          return mian(x)
                 ^
          expected: a parameter, an earlier binding or a function of the module""",
    ),
    (
        HEAD + "    return Module.mian(x)\n",
        """\
        line 2: no function `mian` in the module; did you mean `main`?
          return Module.mian(x)
                 ^
          expected: a function of the module""",
    ),
    (
        HEAD + "    return y + 1.5\n",
        """\
        line 2: add: 1.5 is not of dtype int32, which the other operand has; astype converts
          return y + 1.5
                 ^
          expected: what R.op.add takes: (x, y)""",
    ),
    (
        HEAD + "    return (x, y)[2]\n",
        """\
        line 2: the tuple has no field 2
          return (x, y)[2]
                 ^
          expected: an index from 0 to 1""",
    ),
    (
        HEAD + "    return x is y\n",
        """\
        line 2: this comparison has no operator
          return x is y
                 ^
          expected: one of < <= > >= == != of two values""",
    ),
    (
        HEAD + "    return [z for z in x]\n",
        f"""\
        line 2: this is not a value
          return [z for z in x]
                 ^
          expected: {VALUES}""",
    ),
    (
        "def main(x):\n    return x\n",
        """\
        line 1: parameter `x` has no annotation
          def main(x):
                   ^
          expected: parameters such as `x: R.Tensor((4,))`""",
    ),
    (
        "@R.tensor_program\ndef f():\n    pass\n",
        """\
        line 2: `f` writes no parameter
          def f():
          ^
          expected: outputs are the last parameters, and written. every element of a buffer is written exactly once""",
    ),
    (
        "def f(x: R.Object) -> R.Shape():\n    return x\n",
        """\
        line 2: function `f` returns R.Object and is declared to return R.Shape()
          return x
                 ^
          expected: the declaration to say what is returned""",
    ),
    (
        "# relax_eg module text, version 2\n",
        """\
        line 1: this text is version 2
          # relax_eg module text, version 2
                                          ^
          expected: version 1""",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), CASES, ids=range(len(CASES)))
def test_errors(text: str, said: str) -> None:
    with pytest.raises(ModuleTextError) as caught:
        parse(text)
    assert str(caught.value) == dedent(said)


def test_refusals_of_the_operator_table_get_a_place() -> None:
    with pytest.raises(ModuleTextError) as caught:
        parse(HEAD + "    return R.expp(x)\n")
    assert str(caught.value).split("\n")[:3] == [
        "line 2: no operator `expp`; did you mean `exp` or `exp2` or `expm1`?", "  return R.expp(x)", "         ^",
    ]  # fmt: skip


def test_long_lines_are_shown_around_the_caret() -> None:
    with pytest.raises(ModuleTextError) as caught:
        parse(HEAD + f"    return ({'x, ' * 500}z, {'x, ' * 500})\n")
    _, shown, caret, _ = str(caught.value).split("\n")
    assert len(shown) < 120 and shown[caret.index("^")] == "z"


@pytest.mark.parametrize(
    "text",
    ["\0", "\ud800", "(" * 500, HEAD + f"    return {'x + ' * 5000}x\n", HEAD + f"    return {'-' * 3000}x\n", "x = 1"],
)
def test_no_text_gives_a_traceback(text: str) -> None:
    with pytest.raises(ModuleTextError, match=r"(?s)^line \d+: .*\n.*\^\n  expected: "):
        parse(text)
