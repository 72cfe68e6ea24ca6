"""Parser of Relax text: reads what `printer` writes and what people write.

The text is parsed with Python's own syntax. Beyond the printed form it accepts nested and infix operators, numbers as
operands, missing annotations, `if` and `else` (see `branches`), `n = T.int64()` lines, and functions without a class
around them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from relax_eg.errors import ModuleTextError, TraceError, WellFormedError, parts_of_error
from relax_eg.ir.expr import FUNCTION
from relax_eg.ir.function_reader import STATEMENTS, FunctionReader
from relax_eg.ir.module import Function, Module
from relax_eg.ir.printer import HEADER, VERSION
from relax_eg.ir.reader import Reader, Source, is_docstring, is_size_declaration, unqualified_name
from relax_eg.ir.reading import Deduce, Functions, ModuleScope, Surroundings
from relax_eg.ir.steps import calls_value, impure_functions
from relax_eg.plain_data import DAMAGED
from relax_eg.tir import read_program
from relax_eg.tir.prim_func import read_prim_func
from relax_eg.tir.values import last_name

FUNCTIONS = "@R.function functions and @R.tensor_program programs, alone or in a class under @I.ir_module"


def parse_module(
    text: str,
    deduce: Deduce,
    routines: Mapping[str, str] = MappingProxyType({}),
    functions: Functions = MappingProxyType({}),
) -> Module:
    """Returns the module that `text` describes. Raises ModuleTextError with the line.

    - `deduce(operator, operand annotations, attributes)`: returns all attributes and the result's annotation. Text
      leaves out attributes that are None, and does not distinguish sizes from integers.
    - `routines`: library routine per operator name; `R.name(...)` of a name in it is a call of that routine.
    - `functions`: the operator functions, `R.op.name(...)`, by which expressions are written as in Python (see
      `python_syntax`).
    """
    source = Source(text)
    _check_version(source)
    scope = ModuleScope(Reader(source), deduce, routines, functions)
    return _with_located_errors(scope, lambda: _module(scope, source.tree()))


def parse_scripts(
    scripts: Sequence[Script],
    deduce: Deduce,
    routines: Mapping[str, str],
    functions: Functions,
) -> tuple[Function, ...]:
    """Returns the functions for `scripts`, each followed by those made from its `if`s. Names may be bound again."""
    scopes = [ModuleScope(Reader(s.source), deduce, routines, functions, s.surroundings) for s in scripts]
    pairs = list(zip(scopes, (s.definition for s in scripts), strict=True))
    for scope, d in pairs:
        scope.names, scope.signatures, scope.general = scopes[0].names, scopes[0].signatures, scopes[0].general
        scope.names.add(d.name)
        scope.general.add(d.name)
    for scope, d in pairs:
        _with_located_errors(scope, partial(scope.declare, d))
    return tuple(f for scope, d in pairs for f in _with_located_errors(scope, partial(_functions_of, scope, d)))


Read = TypeVar("Read")


def _with_located_errors(scope: ModuleScope, read: Callable[[], Read]) -> Read:
    try:
        return read()
    except RecursionError:
        problem = "an expression is nested too deeply"
        raise scope.reader.source.error_at(scope.line, 0, problem, "its parts bound to names") from None
    except (ModuleTextError, TraceError, WellFormedError):
        raise
    except DAMAGED as error:
        problem, accepted = parts_of_error(error)
        source = scope.reader.source
        raise source.error_at(scope.line, 0, problem or type(error).__name__, accepted or STATEMENTS) from error


def _check_version(source: Source) -> None:
    found = re.match(rf"\s*{re.escape(HEADER)}(\S+)", source.text)
    if found and found[1] != str(VERSION):
        raise source.error_at(1, len(HEADER), f"this text is version {found[1]}", f"version {VERSION}")


@dataclass(frozen=True)
class Script:
    """A function that is read among its surroundings.

    - `source`: its text.
    - `definition`: its syntax tree.
    - `surroundings`: the names that it may use.
    """

    source: Source
    definition: ast.FunctionDef
    surroundings: Surroundings


def _module(scope: ModuleScope, tree: ast.Module) -> Module:
    definitions: list[ast.FunctionDef] = []
    classes = [c for c in tree.body if isinstance(c, ast.ClassDef)]
    inside = [c for m in classes if not _is_data_type(m) for c in m.body if isinstance(c, ast.ClassDef)]
    scope.reader.data_types([c for c in (*classes, *inside) if _is_data_type(c)])
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef):
            if _is_data_type(statement):
                continue
            scope.classes.add(statement.name)
            definitions += [d for s in statement.body if (d := _definition(scope, s))]
        elif not isinstance(statement, (ast.Import, ast.ImportFrom)) and (found := _definition(scope, statement)):
            definitions.append(found)
    source = scope.reader.source
    for d in definitions:
        if d.name in scope.names:
            raise source.error(d, f"two functions are named `{d.name}`", "a name of its own for each function")
        scope.names.add(d.name)
        scope.general.add(d.name)
    written = [d for d in definitions if _is_program(d)]
    definitions = [d for d in definitions if not _is_program(d)]
    for d in written:
        scope.line = d.lineno
        if any(last_name(_called(m)) == "prim_func" for m in d.decorator_list):
            scope.prim_funcs[d.name] = read_prim_func(source, d)
        else:
            scope.programs[d.name] = read_program(source, d, ranges=False)
    for d in definitions:
        scope.declare(d)
    if written and not definitions:
        problem = f"the text has no function that calls the tensor program `{written[0].name}`"
        wanted = "a function such as `def main(x: R.Tensor(...)):` that calls it by R.call_tir"
        raise source.error(written[0], problem, wanted)
    read = [_read(scope, d) for d in definitions]
    return Module((*read, *scope.branch_functions))


def _functions_of(scope: ModuleScope, definition: ast.FunctionDef) -> tuple[Function, ...]:
    """Reads one function, and returns those that are made from it, too."""
    return (_read(scope, definition), *scope.branch_functions)


def _read(scope: ModuleScope, definition: ast.FunctionDef) -> Function:
    before = len(scope.branch_functions)
    read = FunctionReader(scope, definition).read()
    made = [read, *scope.branch_functions[before:]]
    # What has no steps, calls no function values and runs only such functions is pure; its calls are expressions.
    calls = any(calls_value(e) for f in made for e in f.expressions())
    if not calls and read.name not in impure_functions(Module(tuple(made))) and not _runs_general(scope, made):
        scope.general.discard(read.name)
    return read


def _runs_general(scope: ModuleScope, functions: Sequence[Function]) -> bool:
    own = {f.name for f in functions}
    named = {str(e.attr("name")) for f in functions for e in f.expressions() if e.op == FUNCTION}
    return not (named - own).isdisjoint(scope.general)


def _definition(scope: ModuleScope, statement: ast.stmt) -> ast.FunctionDef | None:
    source = scope.reader.source
    if isinstance(statement, ast.ClassDef) and _is_data_type(statement):
        return None
    if isinstance(statement, ast.Pass) or is_docstring(statement) or is_size_declaration(statement):
        return None
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and unqualified_name(call.func, "I") in ("module_attrs", "module_global_infos"):
        return None  # of devices and of passes; it changes no meaning
    if not isinstance(statement, ast.FunctionDef):
        raise source.error(statement, "this is not a function", FUNCTIONS)
    if _is_program(statement):
        return statement
    for mark in statement.decorator_list:
        if unqualified_name(mark.func if isinstance(mark, ast.Call) else mark) != "function":
            raise source.error(mark, "only functions of the graph level can be read", FUNCTIONS)
    return statement


def _called(mark: ast.expr) -> ast.expr:
    return mark.func if isinstance(mark, ast.Call) else mark


def _is_data_type(statement: ast.ClassDef) -> bool:
    return any(unqualified_name(m) == "data" for m in statement.decorator_list)


def _is_program(definition: ast.FunctionDef) -> bool:
    """Whether a definition is decorated with `@R.tensor_program`, or `@T.prim_func` as in Relax."""
    marks = map(_called, definition.decorator_list)
    return any(last_name(m) in ("tensor_program", "prim_func", "tensorir_function") for m in marks)
