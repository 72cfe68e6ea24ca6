"""Collects the functions, tensor programs and constants that a script uses, under names that do not clash."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace

from relax_eg.errors import SpecError
from relax_eg.ir.annotations import Callable as Signature
from relax_eg.ir.annotations import DataType, TypeVar, data_types_of
from relax_eg.ir.calls import signature
from relax_eg.ir.expr import FUNCTION, Expr, fresh_name, node
from relax_eg.ir.module import Function, Module
from relax_eg.ir.origin import SourceLine
from relax_eg.ir.partition import remaining_origins, replace_names
from relax_eg.ir.reading import Surroundings
from relax_eg.ir.steps import calls_value, impure_functions, with_callers
from relax_eg.tir import TensorProgram


class ScriptReferences:
    """The functions, tensor programs and constants that the function `entry` uses.

    - `taken`: the names in use.
    - `functions`, `programs`, `values`, `types`: the functions, tensor programs, constants and data types by name.
    - `entries`: for each collected module, by `id`: the module, and the name that its entry has here.
    """

    def __init__(self, entry: str) -> None:
        # The entry of a module is `main`, so no other function may have that name.
        self.taken = {entry, "main"}
        self.functions: dict[str, Function] = {}
        self.entries: dict[int, tuple[Module, str]] = {}
        self.programs: dict[str, TensorProgram] = {}
        self.values: dict[str, Expr] = {}
        self.types: dict[str, DataType] = {}

    def surroundings(self, sizes: frozenset[str], line: Callable[[ast.stmt], SourceLine]) -> Surroundings:
        signatures: dict[str, Signature] = {name: signature(f) for name, f in self.functions.items()}
        module = Module(tuple(self.functions.values()))
        general = impure_functions(module) | with_callers(module, lambda f: any(map(calls_value, f.expressions())))
        return Surroundings(signatures, self.programs, self.values, sizes, line, self.types, general)

    def module(self, module: Module) -> str:
        """Adds the functions of a module, and returns the name that its entry has here."""
        if id(module) in self.entries:
            return self.entries[id(module)][1]
        names: dict[str, str] = {}
        for f in module:
            known = self.functions.get(f.name)
            names[f.name] = f.name if known == f or f.name not in self.taken else fresh_name(f.name, self.taken)
        # A function that calls a renamed function is itself a different function, and so needs a new name.
        while changed := [
            f.name
            for f in module
            if names[f.name] == f.name
            and f.name in self.functions
            and any(names.get(c, c) != c for c in _referenced_functions(f))
        ]:
            names |= {name: fresh_name(name, self.taken) for name in changed}
        for f in module:
            self.taken.add(names[f.name])
            self.functions.setdefault(names[f.name], _rename_functions(f, names))
        self.entries[id(module)] = (module, names[module.main.name])
        return names[module.main.name]

    def data_type(self, definition: DataType) -> str:
        """The name of a data type; adds it, and those in its definition, if it is new. SpecError where another type has
        its name."""
        for found in data_types_of([definition(*map(TypeVar, definition.params))]):
            if self.types.setdefault(found.name, found) != found:
                raise SpecError(f"two data types are named `{found.name}`\n  accepted: a name of its own for each")
        return definition.name

    def program(self, program: TensorProgram) -> str:
        """The name that calls of `program` use; adds the program if it is new."""
        for name, known in self.programs.items():
            if known is program:
                return name
        name = fresh_name(program.name if program.name.isidentifier() else "program", self.taken)
        self.programs[name] = program
        return name

    def value(self, name: str, value: Expr) -> str:
        """The name of a constant, `name` if it is free; adds the constant if it is new."""
        if self.values.get(name, value) is value and name not in self.taken:
            own = name
        else:
            own = next((n for n, v in self.values.items() if v is value), None) or fresh_name(name, self.taken)
        self.values[own] = value
        return own


def _referenced_functions(f: Function) -> list[str]:
    return [str(e.attr("name")) for e in f.expressions() if e.op == FUNCTION]


def _rename_functions(f: Function, names: dict[str, str]) -> Function:
    """`f` with itself and the functions that it mentions renamed by `names`."""
    if all(names.get(n, n) == n for n in (f.name, *_referenced_functions(f))):
        return f
    other = {
        e: node(FUNCTION, (), (("name", names.get(e.attr("name"), e.attr("name"))),), e.annotation)
        for e in f.expressions()
        if e.op == FUNCTION
    }
    blocks, result = replace_names(f, other)
    return replace(f, name=names.get(f.name, f.name), blocks=blocks, result=result, origins=remaining_origins(f, other))
