"""Nested functions and lambdas of module text.

Each becomes a module function whose last parameters are the values that it reads from outside. Its value is a closure
of that function over these.
"""

from __future__ import annotations

import ast
from collections import abc

from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import Annotation, Callable, Shape, dims_of, inside
from relax_eg.ir.calls import closure, function_ref
from relax_eg.ir.data import sizes_in_data
from relax_eg.ir.expr import CONSTANT, FUNCTION, Expr, node, shape_value, var
from relax_eg.ir.lambdas import Statements
from relax_eg.ir.module import Function
from relax_eg.ir.reading import ReadingState

LAMBDA = "def name(x: R.Tensor(...)): return ..., or a lambda where a function of known parameters is taken"
ReadFunction = abc.Callable[[ast.FunctionDef, abc.Mapping[str, Expr], list[Expr]], Function]


def words_of(*nodes: ast.AST) -> set[str]:
    """Returns the names in syntax, those in its strings included."""
    words = {n.id for at in nodes for n in ast.walk(at) if isinstance(n, ast.Name)}
    for n in (n for at in nodes for n in ast.walk(at)):
        if isinstance(n, ast.Constant) and isinstance(n.value, str):
            words.update("".join(c if c.isalnum() or c == "_" else " " for c in n.value).split())
    return words


class NestedFunctions:
    """A reader of the functions inside of the function `outer`.

    - `values`: what is read so far of the outer function.
    - `read(definition, names, parameters)`: reads a function; `names`: the values of names that it may use.
    """

    def __init__(self, outer: str, values: ReadingState, read: ReadFunction) -> None:
        self.outer, self.values, self.read = outer, values, read
        self.scope, self.source = values.scope, values.source

    def definition(self, d: ast.FunctionDef) -> Expr:
        """Returns the value of a nested `def`."""
        params = [(str(p.attr("name")), p.annotation) for p in self.scope.params(d)]
        result = None if d.returns is None else self.scope.reader.annotation(d.returns)
        return self._function(d, d.name, params, result)

    def anonymous(self, at: ast.Lambda, expected: Annotation | None) -> Expr:
        """Returns the value of a lambda. `expected`: what is known of it where it stands."""
        names = [a.arg for a in at.args.args]
        if not isinstance(expected, Callable) or len(expected.params) != len(names):
            known = "" if expected is None else f", where {expected} is expected"
            raise self.source.error(at, f"the parameters of this lambda have no annotations{known}", LAMBDA)
        own, body = "lambda", list[ast.stmt]([ast.copy_location(ast.Return(at.body), at.body)])
        if isinstance(at, Statements):
            own, body = at.name, at.statements
        made = ast.FunctionDef(own, at.args, body, [], None)
        ast.fix_missing_locations(ast.copy_location(made, at))
        return self._function(made, own, list(zip(names, expected.params, strict=True)), None)

    def _function(
        self, d: ast.FunctionDef, own: str, params: list[tuple[str, Annotation]], result: Annotation | None
    ) -> Expr:
        known = self.values.names
        taken = {name for name, _ in params} | {own}
        loads = [n.id for s in d.body for n in ast.walk(s) if isinstance(n, ast.Name)]
        read = [n for n in dict.fromkeys(loads) if n in known and n not in taken]
        leaves = {n: known[n] for n in read if known[n].op in (FUNCTION, CONSTANT)}
        captured = [(n, known[n]) for n in read if n not in leaves]
        outside = [var(n, e.annotation) for n, e in captured]
        values = [e for _, e in captured]
        sizes = self._sizes(d, [*(e.annotation for e in outside), *(a for _, a in params)])
        if sizes:
            name = next(n for n in ("sizes" + "_" * k for k in range(len(loads) + 2)) if n not in {*loads, *taken})
            outside.insert(0, var(name, Shape(sizes)))
            values.insert(0, shape_value(sizes))
        lifted = self.scope.fresh(f"{self.outer}_{own}")
        own_params = [*(var(n, a) for n, a in params), *outside]
        self.scope.general.add(lifted)
        definition = ast.FunctionDef(lifted, d.args, d.body, [], d.returns)
        names = dict(leaves)
        if result is not None and own != "lambda":
            signature = Callable(tuple(p.annotation for p in own_params), result)
            self.scope.signatures[lifted] = signature
            itself = node(FUNCTION, (), (("name", lifted),), signature)
            names[own] = closure(itself, outside) if outside else itself
        made = self.read(ast.copy_location(definition, d), names, own_params)
        self.scope.add(made)
        try:
            return closure(function_ref(made), values) if values else function_ref(made)
        except OperatorError as error:
            raise self.source.at_position(d, error, "values that the function takes") from None

    def _sizes(self, d: ast.FunctionDef, params: list[Annotation]) -> list[str]:
        """The sizes of the outer function that the inner one mentions and its parameters do not determine."""
        dims = [x for a in params for x in dims_of(a)]
        told = {v for a in params for v in sizes_in_data(a)}  # by the data itself, unless the body needs them
        words = words_of(*d.body).union(words_of(d.returns) - told if d.returns is not None else ())
        words.update(v for x in dims for v in x.variables)
        words.update(
            v for a in params for part in inside(a) for x in dims_of(part) for v in x.variables if v not in told
        )
        return sorted((words & self.values.sizes) - {str(x) for x in dims})
