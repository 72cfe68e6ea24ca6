"""Parser of Relax text: reads what `printer` writes and what people write.

The text is parsed with Python's own syntax. Beyond the printed form it accepts nested and infix operators, numbers as
operands, missing annotations, `if` and `else` (see `branches`), `n = T.int64()` lines, and functions without a class
around them.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from relax_eg.errors import ModuleTextError, TraceError, WellFormedError, parts_of_error
from relax_eg.ir.annotations import Annotation, DataType
from relax_eg.ir.annotations import Callable as Signature
from relax_eg.ir.calls import signature
from relax_eg.ir.expr import FUNCTION, Expr, var
from relax_eg.ir.function_reader import STATEMENTS, FunctionReader, is_docstring, is_size_declaration
from relax_eg.ir.module import Function, Module
from relax_eg.ir.origin import SourceLine
from relax_eg.ir.printer import HEADER, VERSION
from relax_eg.ir.python_syntax import Functions
from relax_eg.ir.reader import Reader, Source, unqualified_name
from relax_eg.ir.steps import calls_value, impure_functions
from relax_eg.plain_data import DAMAGED
from relax_eg.tir import TensorProgram, read_program
from relax_eg.tir.prim_func import PrimFunc, read_prim_func
from relax_eg.tir.values import last_name

Deduce = Callable[[str, tuple[Annotation, ...], Mapping[str, Any]], tuple[Mapping[str, Any], Annotation]]

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
    return _with_located_errors(scope, lambda: scope.module(source.tree()))


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
    return tuple(f for scope, d in pairs for f in _with_located_errors(scope, partial(scope.functions_of, d)))


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
class Surroundings:
    """The names from the context of a function that its text may use.

    - `signatures`: the signatures of other functions.
    - `programs`: the tensor programs.
    - `values`: the constants.
    - `sizes`: the names that are size variables.
    - `types`: the data types.
    - `line(statement)`: returns the user's source line of a statement.
    - `general`: the functions whose calls are steps.
    """

    signatures: Mapping[str, Signature]
    programs: Mapping[str, TensorProgram]
    values: Mapping[str, Expr]
    sizes: frozenset[str]
    line: Callable[[ast.stmt], SourceLine]
    types: Mapping[str, DataType] = field(default_factory=dict[str, DataType])
    general: frozenset[str] = frozenset()


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


class ModuleScope:
    """The state that the readers of all functions of a text share: the callbacks and the signatures of the
    functions."""

    def __init__(
        self,
        reader: Reader,
        deduce: Deduce,
        routines: Mapping[str, str],
        functions: Functions,
        surroundings: Surroundings | None = None,
    ) -> None:
        self.reader = reader
        self.deduce = deduce
        self.routines = routines
        self.line = 1
        self.classes = {"Module", "cls"}
        self.names: set[str] = set()
        self.signatures: dict[str, Signature] = {}
        self.branch_functions: list[Function] = []
        self.programs: dict[str, TensorProgram] = {}
        self.prim_funcs: dict[str, PrimFunc] = {}
        self.functions = functions
        self.surroundings = surroundings
        self.constants: Mapping[str, Expr] = {}
        self.general: set[str] = set()  # the functions that are read, or are being read, and may have steps
        if surroundings is not None:
            self.names.update(surroundings.signatures)
            self.signatures.update(surroundings.signatures)
            self.programs.update(surroundings.programs)
            self.general.update(surroundings.general)
            reader.types.update(surroundings.types)
            self.constants = surroundings.values

    def module(self, tree: ast.Module) -> Module:
        definitions: list[ast.FunctionDef] = []
        classes = [c for c in tree.body if isinstance(c, ast.ClassDef)]
        inside = [c for m in classes if not _is_data_type(m) for c in m.body if isinstance(c, ast.ClassDef)]
        self.reader.data_types([c for c in (*classes, *inside) if _is_data_type(c)])
        for statement in tree.body:
            if isinstance(statement, ast.ClassDef):
                if _is_data_type(statement):
                    continue
                self.classes.add(statement.name)
                definitions += [d for s in statement.body if (d := self._definition(s))]
            elif not isinstance(statement, (ast.Import, ast.ImportFrom)) and (found := self._definition(statement)):
                definitions.append(found)
        source = self.reader.source
        for d in definitions:
            if d.name in self.names:
                raise source.error(d, f"two functions are named `{d.name}`", "a name of its own for each function")
            self.names.add(d.name)
            self.general.add(d.name)
        written = [d for d in definitions if _is_program(d)]
        definitions = [d for d in definitions if not _is_program(d)]
        for d in written:
            self.line = d.lineno
            if any(last_name(_called(m)) == "prim_func" for m in d.decorator_list):
                self.prim_funcs[d.name] = read_prim_func(source, d)
            else:
                self.programs[d.name] = read_program(source, d, ranges=False)
        for d in definitions:
            self.declare(d)
        if written and not definitions:
            problem = f"the text has no function that calls the tensor program `{written[0].name}`"
            wanted = "a function such as `def main(x: R.Tensor(...)):` that calls it by R.call_tir"
            raise source.error(written[0], problem, wanted)
        read = [self._read(d) for d in definitions]
        return Module((*read, *self.branch_functions))

    def functions_of(self, definition: ast.FunctionDef) -> tuple[Function, ...]:
        """Reads one function, and returns those that are made from it, too."""
        return (self._read(definition), *self.branch_functions)

    def _read(self, definition: ast.FunctionDef) -> Function:
        before = len(self.branch_functions)
        read = FunctionReader(self, definition).read()
        made = [read, *self.branch_functions[before:]]
        # What has no steps, calls no function values and runs only such functions is pure; its calls are expressions.
        calls = any(calls_value(e) for f in made for e in f.expressions())
        if not calls and read.name not in impure_functions(Module(tuple(made))) and not self._runs_general(made):
            self.general.discard(read.name)
        return read

    def _runs_general(self, functions: Sequence[Function]) -> bool:
        own = {f.name for f in functions}
        named = {str(e.attr("name")) for f in functions for e in f.expressions() if e.op == FUNCTION}
        return not (named - own).isdisjoint(self.general)

    def declare(self, d: ast.FunctionDef) -> None:
        """Notes the signature of a function that is not read yet, if it says what it returns."""
        if d.returns is not None:
            params = tuple(p.annotation for p in self.params(d))
            self.signatures[d.name] = Signature(params, self.reader.annotation(d.returns))

    def fresh(self, stem: str) -> str:
        """Returns an unused function name and reserves it."""
        name = next(n for n in (f"{stem}{i or ''}" for i in itertools.count()) if n not in self.names)
        self.names.add(name)
        return name

    def add(self, function: Function) -> None:
        """Adds a function made from a statement (an `if`) of another function."""
        self.branch_functions.append(function)
        self.signatures[function.name] = signature(function)

    def _definition(self, statement: ast.stmt) -> ast.FunctionDef | None:
        source = self.reader.source
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

    def params(self, definition: ast.FunctionDef) -> list[Expr]:
        a, source = definition.args, self.reader.source
        wanted = "parameters such as `x: R.Tensor((4,))`"
        if a.posonlyargs or a.kwonlyargs or a.vararg or a.kwarg or a.defaults:
            raise source.error(definition, f"`{definition.name}` has defaults, stars or slashes", wanted)
        for p in a.args:
            if p.annotation is None:
                raise source.error(p, f"parameter `{p.arg}` has no annotation", wanted)
        return [var(p.arg, self.reader.annotation(p.annotation)) for p in a.args if p.annotation is not None]


def _called(mark: ast.expr) -> ast.expr:
    return mark.func if isinstance(mark, ast.Call) else mark


def _is_data_type(statement: ast.ClassDef) -> bool:
    return any(unqualified_name(m) == "data" for m in statement.decorator_list)


def _is_program(definition: ast.FunctionDef) -> bool:
    """Whether a definition is decorated with `@R.tensor_program`, or `@T.prim_func` as in Relax."""
    marks = map(_called, definition.decorator_list)
    return any(last_name(m) in ("tensor_program", "prim_func", "tensorir_function") for m in marks)
