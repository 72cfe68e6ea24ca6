"""Reads `T.prim_func` definitions, as TVM writes tensor programs.

A definition whose statements are index equations becomes a `TensorProgram`: handles become buffers, axes of blocks the
expressions that they are bound to, and `Y[i] = Y[i] + x` after an initialization becomes a sum. Everything else keeps
its text and runs statement by statement (`tir.imperative`).
"""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass
from typing import Any

from relax_eg.errors import RelaxEgError
from relax_eg.tir.imperative import ALLOCATED, IGNORED, LOOPS, SIZES, PlainSizes, check_program, limit_of
from relax_eg.tir.program import TensorProgram
from relax_eg.tir.reader import read_program
from relax_eg.tir.source_text import SourceText
from relax_eg.tir.values import last_name


@dataclass(frozen=True, slots=True)
class PrimFunc:
    """A definition under `T.prim_func`.

    - `name`: its name.
    - `program`: its index equations, or None if it has none.
    - `text`: its text.
    - `params`: its parameters.
    - `size_parameters`: those that are sizes.
    """

    name: str
    program: TensorProgram | None
    text: str
    params: tuple[str, ...]
    size_parameters: tuple[str, ...]


def read_prim_func(source: SourceText, definition: ast.FunctionDef) -> PrimFunc:
    """Returns what a definition says. TensorProgramError, with the line, for statements that have no meaning here."""
    params = tuple(a.arg for a in definition.args.args)
    notes = [(a.arg, last_name(a.annotation)) for a in definition.args.args if a.annotation is not None]
    sizes = tuple(name for name, note in notes if note in ("int", *SIZES))
    plain = copy.deepcopy(definition)
    plain.decorator_list, plain.returns = [], None
    text = ast.unparse(plain)
    try:
        program = read_program(source, _Equations(plain).definition(), ranges=False)
    except (RelaxEgError, _NoEquationError):
        try:
            check_program(text)
        except RelaxEgError as error:
            problem, _, more = str(error).partition("\n")
            raise source.error(definition, f"`{definition.name}`: {problem.partition(': ')[2]}", more) from None
        return PrimFunc(definition.name, None, text, params, sizes)
    return PrimFunc(definition.name, program, text, params, sizes)


class _NoEquationError(Exception):
    """A statement that is no index equation."""


class _Equations:
    """Rewrites a definition as the reader of index equations takes it."""

    def __init__(self, definition: ast.FunctionDef) -> None:
        self.old = definition
        self.handles: dict[str, ast.arg] = {}

    def definition(self) -> ast.FunctionDef:
        d = self.old
        body = self._statements(d.body)
        args = [self.handles.get(a.arg, a) for a in d.args.args]
        for a in args:
            if last_name(a.annotation) == "handle" if a.annotation is not None else True:
                raise _NoEquationError
            if isinstance(a.annotation, ast.Call):
                a.annotation = PlainSizes().visit(a.annotation)
        new = ast.FunctionDef(d.name, ast.arguments([], args, None, [], [], None, []), body, [], None)
        return ast.fix_missing_locations(ast.copy_location(new, d))

    def _statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        axes: dict[str, ast.expr] = {}
        for s in body:
            s = _Replaced(axes).visit(s)
            call = s.value if isinstance(s, (ast.Expr, ast.Assign)) and isinstance(s.value, ast.Call) else None
            kind = last_name(call.func) if call is not None else None
            if isinstance(s, ast.Expr) and kind in IGNORED:
                continue
            if isinstance(s, ast.Assign) and call is not None:
                target = s.targets[0]
                if kind in SIZES and not call.args:
                    continue
                if kind == "match_buffer" and isinstance(target, ast.Name) and isinstance(call.args[0], ast.Name):
                    self.handles[call.args[0].id] = ast.copy_location(
                        ast.arg(target.id, _declaration("Buffer", call, call.args[1:])), s
                    )
                    continue
                if kind in ALLOCATED:
                    made.append(ast.copy_location(ast.Assign([target], _declaration("local", call, call.args)), s))
                    continue
                if isinstance(call.func, ast.Attribute) and last_name(call.func.value) == "axis":
                    axes |= _axes(target, call, str(kind))
                    continue
            made += self._statement(s)
        return made

    def _statement(self, s: ast.stmt) -> list[ast.stmt]:
        if isinstance(s, ast.With) and isinstance(s.items[0].context_expr, ast.Call):
            kind = last_name(s.items[0].context_expr.func)
            inner = self._statements(s.body)
            if kind in ("block", "sblock"):
                return inner
            return [ast.copy_location(ast.With(s.items, inner), s)]
        if isinstance(s, ast.For) and isinstance(s.iter, ast.Call):
            kind = last_name(s.iter.func)
            if kind not in LOOPS:
                raise _NoEquationError
            bounds = [PlainSizes().visit(a) for a in s.iter.args]
            call = ast.Call(ast.Name("grid" if kind == "grid" else "range", ast.Load()), bounds, [])
            return [ast.copy_location(ast.For(s.target, call, self._statements(s.body), []), s)]
        if isinstance(s, ast.If):
            return [_selected(s, self._statements(s.body), self._statements(s.orelse))]
        if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Subscript):
            return [_folded(ast.copy_location(ast.Assign(s.targets, s.value), s))]
        if isinstance(s, ast.While):
            raise _NoEquationError
        return [s]


class _Replaced(ast.NodeTransformer):
    """Replaces names of axes, and values that only TVM spells so."""

    def __init__(self, axes: dict[str, ast.expr]) -> None:
        self.axes = axes

    def visit_Name(self, node: ast.Name) -> Any:
        return copy.deepcopy(self.axes[node.id]) if node.id in self.axes else node

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        name, args = last_name(node.func), node.args
        if name in SIZES and len(args) == 1 and isinstance(args[0], ast.Constant):
            return args[0]
        if name in ("min_value", "max_value", "infinity") and len(args) == 1 and isinstance(args[0], ast.Constant):
            return ast.copy_location(_number(float(limit_of(str(name), str(args[0].value)))), node)
        if name in ("Cast", "cast") and len(args) == 2:
            first, second = args if isinstance(args[0], ast.Constant) and isinstance(args[0].value, str) else args[::-1]
            if isinstance(first, ast.Constant):
                return ast.copy_location(ast.Call(ast.Name(str(first.value), ast.Load()), [second], []), node)
        if name == "bool" and len(args) == 1:
            return args[0]
        return node


def _number(value: float) -> ast.expr:
    if value < 0:
        return ast.UnaryOp(ast.USub(), _number(-value))
    return ast.Name("inf", ast.Load()) if value == float("inf") else ast.Constant(value)


def _declaration(kind: str, call: ast.Call, args: list[ast.expr]) -> ast.Call:
    """Returns `Buffer(shape, dtype)` or `local(shape, dtype)` of a declaration that may say more."""
    given = dict(zip(("shape", "dtype"), args, strict=False)) | {str(k.arg): k.value for k in call.keywords}
    if "shape" not in given:
        raise _NoEquationError
    parts = [given["shape"], given.get("dtype", ast.Constant("float32"))]
    made = ast.Call(ast.Name(kind, ast.Load()), [PlainSizes().visit(p) for p in parts], [])
    return ast.fix_missing_locations(ast.copy_location(made, call))


def _axes(target: ast.expr, call: ast.Call, kind: str) -> dict[str, ast.expr]:
    names = [t.id for t in (target.elts if isinstance(target, ast.Tuple) else [target]) if isinstance(t, ast.Name)]
    written = call.args[-1:]
    if kind == "remap" and isinstance(call.args[1], (ast.List, ast.Tuple)):
        written = call.args[1].elts
    if len(names) != len(written):
        raise _NoEquationError
    return dict(zip(names, written, strict=True))


def _selected(s: ast.If, body: list[ast.stmt], orelse: list[ast.stmt]) -> ast.stmt:
    """Returns `Y[i] = a if condition else b` of an `if` whose branches write the same element."""
    if len(body) != 1 or len(orelse) != 1:
        raise _NoEquationError
    one, two = body[0], orelse[0]
    if not isinstance(one, ast.Assign) or not isinstance(two, ast.Assign):
        raise _NoEquationError
    if ast.unparse(one.targets[0]) != ast.unparse(two.targets[0]):
        raise _NoEquationError
    return ast.copy_location(ast.Assign(one.targets, ast.IfExp(s.test, one.value, two.value)), s)


def _folded(s: ast.Assign) -> ast.stmt:
    """Returns `Y[i] += x` of `Y[i] = Y[i] + x`, and the largest or smallest likewise with Y[i] first."""
    target, value = s.targets[0], s.value
    text = ast.unparse(target)
    if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Add, ast.Mult)):
        for own, other in ((value.left, value.right), (value.right, value.left)):
            if ast.unparse(own) == text:
                return ast.copy_location(ast.AugAssign(target, value.op, other), s)  # type: ignore[arg-type]
    if isinstance(value, ast.Call) and len(value.args) == 2 and ast.unparse(value.args[1]) == text:
        value.args.reverse()
    return s
