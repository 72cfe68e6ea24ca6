"""Resolves the names that a scripted function uses from its surroundings: globals, closure and evaluated annotations.

Each such name is replaced in the syntax tree by the text or literal of its value."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from relax_eg.errors import SpecError
from relax_eg.frontends.gathering import ScriptReferences
from relax_eg.ir import expr, tensor_calls
from relax_eg.ir.annotations import (
    Annotation,
    DataType,
    Never,
    Object,
    Ref,
    Shape,
    Tensor,
    Tuple,
    TypeVar,
    data_types_of,
)
from relax_eg.ir.annotations import Callable as Signature
from relax_eg.ir.module import Module
from relax_eg.ir.reader import Source, parsed_at
from relax_eg.ops import api
from relax_eg.ops.text import FUNCTIONS
from relax_eg.shapes import Dim
from relax_eg.tir import TensorProgram
from relax_eg.tir.values import last_name

_WORDS: dict[Any, str] = {
    TypeVar: "R.TypeVar", Ref: "R.Ref", Never: "R.Never",
    Tensor: "R.Tensor", Shape: "R.Shape", Tuple: "R.Tuple", Signature: "R.Callable", Object: "R.Object",
    expr.call_dps_library: "R.call_dps_library", expr.match_cast: "R.match_cast", tensor_calls.call_tir: "R.call_tir",
    api: "R.op", **{f: f"R.op.{name}" for name, f in FUNCTIONS.items()},
}  # fmt: skip
# Functions of `script`. They are listed by name because `script` imports this file.
_LOCAL_WORDS = ("dataflow", "new_ref", "output", "read_ref", "shape", "sym_var", "write_ref")

ACCEPTED = (
    "functions under @rx.function, tensor programs, `rx` and its operators, numbers, text, arrays, dtypes and tuples"
)


def size_names(definition: ast.AST) -> set[str]:
    """The size variables that a function names in the texts of its annotations or declares by `sym_var()`."""
    found: set[str] = set()
    for at in ast.walk(definition):
        if isinstance(at, ast.Call) and last_name(at.func) in ("Tensor", "Shape"):
            shapes = at.args[:1] + [k.value for k in at.keywords if k.arg in ("shape", "dims")]
            texts = [t.value for s in shapes for t in ast.walk(s) if isinstance(t, ast.Constant)]
            found.update(w for t in texts if isinstance(t, str) for w in re.findall(r"[^\W\d]\w*", t.partition("@")[0]))
        if isinstance(at, ast.Assign) and "sym_var" in ast.unparse(at.value):
            found.update(n.id for t in at.targets for n in ast.walk(t) if isinstance(n, ast.Name))
    return found


def names_outside(fn: Callable[..., Any]) -> dict[str, Any]:
    """The values of the names that a function reads from outside."""
    closure = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False)
    return {**fn.__globals__, **{name: cell.cell_contents for name, cell in closure if _is_filled(cell)}}


class SurroundingNames(ast.NodeTransformer):
    """Replaces names from outside a function by the text or literal of their values.

    - `outside`: the values of names.
    - `annotations`: the annotations that Python has evaluated, by parameter.
    - `later(name)`: the name in the module of a script that follows; None if no such follows.
    """

    def __init__(
        self,
        source: Source,
        definition: ast.FunctionDef,
        gathered: ScriptReferences,
        sizes: set[str],
        outside: Mapping[str, Any],
        annotations: Mapping[str, Any],
        later: Callable[[str], str | None],
    ) -> None:
        self.source = source
        self.definition = definition
        self.gathered = gathered
        self.sizes = sizes
        stored = {n.id for n in ast.walk(definition) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        inside = list(ast.walk(definition))
        stored |= {n.name for n in inside if isinstance(n, (ast.MatchAs, ast.FunctionDef)) and n.name is not None}
        self.local = stored | {n.arg for n in inside if isinstance(n, ast.arg)}
        self.outside = outside
        self.annotations = annotations
        self.later = later

    def resolve(self) -> None:
        """Resolves the names in the body and in the signature, whose annotations Python has already evaluated."""
        d = self.definition
        for arg in d.args.args:
            if arg.annotation is not None:
                arg.annotation = self._annotation(arg.annotation, self.annotations.get(arg.arg))
        if d.returns is not None:
            d.returns = self._annotation(d.returns, self.annotations.get("return"))
        for a in (*d.args.args, d):
            note = a.annotation if isinstance(a, ast.arg) else a.returns
            self.sizes.update(size_names(ast.Expression(note)) if note is not None else ())
        self.outside = {name: value for name, value in self.outside.items() if name not in self.local | self.sizes}
        d.body = [self.visit(s) for s in d.body]

    def _annotation(self, at: ast.expr, found: Any) -> ast.expr:
        if isinstance(found, type) and issubclass(found, Object):
            found = Object()
        if isinstance(found, DataType):
            found = found()
        if isinstance(found, Annotation):
            self._gather_types(found, at)
            return parsed_at(str(found), at)
        if isinstance(found, str) or isinstance(at, ast.Constant):  # from __future__ import annotations
            at = at if not isinstance(at, ast.Constant) else parsed_at(str(at.value), at)
        return self.visit(at)

    def _gather_types(self, found: Annotation, at: ast.expr) -> None:
        try:
            for definition in data_types_of([found]):
                self.gathered.data_type(definition)
        except SpecError as error:
            raise self.source.at_position(at, error, "data types of different names") from None

    def visit_Name(self, node: ast.Name) -> Any:
        if isinstance(node.ctx, ast.Store) or node.id in self.local | self.sizes:
            return node
        if (own := self.later(node.id)) is not None:
            return parsed_at(own, node)
        if node.id not in self.outside:
            return node
        return self._meant(node, self.outside[node.id], node.id)

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        names: list[str] = []
        at: ast.expr = node
        while isinstance(at, ast.Attribute):
            names.append(at.attr)
            at = at.value
        if not isinstance(at, ast.Name) or at.id not in self.outside:
            return self.generic_visit(node)
        value = self.outside[at.id]
        is_ours = inspect.ismodule(value) and value.__name__ == __name__.partition(".")[0]
        if is_ours and names[-1] not in ("script", *vars(value)["MOVED"]):
            at.id = "R"
            return node
        if value is api:
            return ast.copy_location(ast.parse(".".join(["R.op", *reversed(names)]), mode="eval").body, node)
        for i, name in enumerate(reversed(names)):
            if isinstance(value, DataType):  # List.Cons is a constructor
                return _attribute_chain(self._meant(at, value, at.id), names[: len(names) - i], node)
            if isinstance(value, np.ndarray) or _is_array(value):  # W.T is the transpose of a constant
                return _attribute_chain(self._meant(at, value, at.id), names[: len(names) - i], node)
            try:
                value = getattr(value, name)
            except AttributeError as error:
                raise self.source.error(node, f"`{ast.unparse(node)}` is not there: {error}", ACCEPTED) from None
        return self._meant(node, value, names[0])

    def _meant(self, at: ast.expr, value: Any, name: str) -> ast.expr:
        text = self._text(value, name)
        if text is None:
            made = _literal(value)
            if made is None:
                kind = "a function of Python, which is not run" if callable(value) else f"a {type(value).__name__}"
                raise self.source.error(at, f"`{ast.unparse(at)}` is {kind}", ACCEPTED)
            return ast.fix_missing_locations(ast.copy_location(made, at))
        return parsed_at(text, at)

    def _text(self, value: Any, name: str) -> str | None:
        """The text that replaces a value; None if a literal replaces it."""
        if isinstance(value, Module):
            return self.gathered.module(value)
        if isinstance(value, TensorProgram):
            return self.gathered.program(value)
        if isinstance(value, expr.Expr):
            return self.gathered.value(name, value) if value.op == expr.CONSTANT else None
        if isinstance(value, DataType):
            return self.gathered.data_type(value)
        if isinstance(value, Annotation):
            for definition in data_types_of([value]):
                self.gathered.data_type(definition)
        if isinstance(value, (Annotation, Dim)):
            return str(value)
        if _is_array(value):
            return self.gathered.value(name, expr.const(np.asarray(value)))
        if inspect.isfunction(value) and value.__name__ in _LOCAL_WORDS and value.__module__.startswith("relax_eg."):
            return f"R.{value.__name__}"
        try:
            return _WORDS.get(value)
        except TypeError:  # not hashable
            return None


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:  # bound after the function is defined
        return False
    return True


def _is_array(value: Any) -> bool:
    return (
        hasattr(value, "dtype")
        and hasattr(value, "shape")
        and hasattr(value, "__array__")
        and not isinstance(value, (np.generic, type))
    )


def _literal(value: Any) -> ast.expr | None:
    """The literal of a number, text, None, a dtype, or a tuple or list of these; None for any other value."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return ast.Constant(value)
    if isinstance(value, complex):
        return ast.Call(ast.Name("complex", ast.Load()), [ast.Constant(value.real), ast.Constant(value.imag)], [])
    if isinstance(value, (tuple, list)):
        fields = [_literal(v) for v in value]  # type: ignore[reportUnknownVariableType]
        known = [f for f in fields if f is not None]
        return ast.Tuple(known, ast.Load()) if len(known) == len(fields) else None
    if isinstance(value, np.dtype):
        return ast.Constant(value.name)
    if isinstance(value, type) and issubclass(value, np.generic):
        return ast.Constant(np.dtype(value).name)
    dtype = getattr(value, "dtype", None)  # jnp.float32
    return ast.Constant(dtype.name) if callable(value) and isinstance(dtype, np.dtype) else None


def _attribute_chain(value: ast.expr, reversed_names: list[str], at: ast.expr) -> ast.expr:
    for name in reversed(reversed_names):
        value = ast.copy_location(ast.Attribute(value, name, ast.Load()), at)
    return value
