"""What the readers of a module's text share: its functions and programs, and what is read so far of one function."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from relax_eg.ir.annotations import Annotation, DataType
from relax_eg.ir.annotations import Callable as Signature
from relax_eg.ir.calls import signature
from relax_eg.ir.expr import Expr, fresh_name, var
from relax_eg.ir.lattice import annotation_clash, covers
from relax_eg.ir.module import Function
from relax_eg.ir.origin import SourceLine
from relax_eg.ir.reader import Reader
from relax_eg.tir import TensorProgram
from relax_eg.tir.prim_func import PrimFunc

Deduce = Callable[[str, tuple[Annotation, ...], Mapping[str, Any]], tuple[Mapping[str, Any], Annotation]]
Functions = Mapping[str, Callable[..., Any]]


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

    def declare(self, d: ast.FunctionDef) -> None:
        """Notes the signature of a function that is not read yet, if it says what it returns."""
        if d.returns is not None:
            params = tuple(p.annotation for p in self.params(d))
            self.signatures[d.name] = Signature(params, self.reader.annotation(d.returns))

    def fresh(self, stem: str) -> str:
        """Returns an unused function name and reserves it."""
        return fresh_name(stem, self.names)

    def add(self, function: Function) -> None:
        """Adds a function made from a statement (an `if`) of another function."""
        self.branch_functions.append(function)
        self.signatures[function.name] = signature(function)

    def params(self, definition: ast.FunctionDef) -> list[Expr]:
        a, source = definition.args, self.reader.source
        wanted = "parameters such as `x: R.Tensor((4,))`"
        if a.posonlyargs or a.kwonlyargs or a.vararg or a.kwarg or a.defaults:
            raise source.error(definition, f"`{definition.name}` has defaults, stars or slashes", wanted)
        for p in a.args:
            if p.annotation is None:
                raise source.error(p, f"parameter `{p.arg}` has no annotation", wanted)
        return [var(p.arg, self.reader.annotation(p.annotation)) for p in a.args if p.annotation is not None]


class ReadingState:
    """What is read so far of one function, and what the readers of its forms ask of the reader of its expressions.

    - `names`: the values of the names bound so far.
    - `hidden`: names of ended blocks, with the reason why they are not visible and what would be accepted.
    - `sizes`: the size variables.
    - `words`: the names that the text of the function uses.
    - `emit`: binds a step; None in dataflow blocks.
    - `anonymous`: returns the value of a lambda of which is known what is given.
    """

    def __init__(self, scope: ModuleScope) -> None:
        self.scope = scope
        self.reader = scope.reader
        self.source = scope.reader.source
        self.names: dict[str, Expr] = dict(scope.constants)
        self.hidden: dict[str, tuple[str, str]] = {}
        self.sizes: set[str] = set()
        self.words: set[str] = set()
        self.emit: Callable[[ast.expr, Expr], Expr] | None = None
        self.anonymous: Callable[[ast.Lambda, Annotation | None], Expr]

    def expression(self, at: ast.expr, declared: Annotation | None = None) -> Expr:
        """Returns the value of an expression; an annotation declared in the text becomes its annotation."""
        raise NotImplementedError

    def program(self, at: ast.expr) -> TensorProgram | PrimFunc:
        """Returns the tensor program that `at` names, as `Module.name` or as a bare name."""
        raise NotImplementedError

    def step(self, at: ast.expr, value: Expr, is_step: bool = True) -> Expr:
        """Returns a value that may have effects: its variable, where it has to be bound."""
        return self.emit(at, value) if self.emit is not None and is_step else value

    def check_declared(self, at: ast.expr, found: Annotation, declared: Annotation | None) -> None:
        """Raises an error if a declared annotation does not cover the deduced one."""
        if declared is None or covers(declared, found):
            return
        why = annotation_clash(declared, found)
        if isinstance(declared, Signature) and why is None:
            return  # size variables of a signature are local to it
        problem = f"the name is declared {declared}, its value is {found}" + (f": {why}" if why else "")
        raise self.source.error(at, problem, "an annotation that follows, or R.match_cast(value, annotation)")
