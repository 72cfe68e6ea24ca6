"""Parser of Relax text: reads what `printer` writes and what people write.

The text is parsed with Python's own syntax. Beyond the printed form it accepts nested and infix operators, numbers as
operands, missing annotations, `if` and `else` (see `branches`), `n = T.int64()` lines, and functions without a class
around them.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

from relax_eg.errors import ModuleTextError, OperatorError, TraceError, WellFormedError, parts_of_error
from relax_eg.ir.annotations import Annotation, Tensor, dims_of, has_functions
from relax_eg.ir.annotations import Callable as Signature
from relax_eg.ir.branches import Branch, conditional, join_branches
from relax_eg.ir.calls import NO_FUNCTIONS, NO_RECURSION, call_cycle, recursion_message, signature
from relax_eg.ir.expr import VAR, Expr, postorder, var
from relax_eg.ir.heads import IN_PLACE
from relax_eg.ir.lattice import covers
from relax_eg.ir.module import Binding, Block, Function, Module
from relax_eg.ir.origin import Origin, SourceLine
from relax_eg.ir.printer import HEADER, VERSION
from relax_eg.ir.python_syntax import Functions
from relax_eg.ir.reader import Reader, Source, did_you_mean, unqualified_name
from relax_eg.ir.values import ExpressionReader
from relax_eg.plain_data import DAMAGED
from relax_eg.tir import TensorProgram, read_program
from relax_eg.tir.values import last_name

Deduce = Callable[[str, tuple[Annotation, ...], Mapping[str, Any]], tuple[Mapping[str, Any], Annotation]]
Complete = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]

FUNCTIONS = "@R.function functions and @R.tensor_program programs, alone or in a class under @I.ir_module"
STATEMENTS = "`name = expression`, `with R.dataflow():`, `if condition:`, or `return expression`"
OUTPUTS = "R.output(names) as the last line of the dataflow block"


def parse_module(
    text: str,
    deduce: Deduce | None = None,
    complete: Complete | None = None,
    routines: Mapping[str, str] = MappingProxyType({}),
    functions: Functions = MappingProxyType({}),
) -> Module:
    """Returns the module that `text` describes. Raises ModuleTextError with the line.

    Text leaves out attributes that are None, and does not distinguish sizes from integers; `deduce` or `complete`
    restores both.

    - `deduce(operator, operand annotations, attributes)`: returns all attributes and the result's annotation. Without
      it, a missing annotation is an error.
    - `complete(operator, attributes)`: used without `deduce`; returns all attributes of an annotated operator in order,
      sizes as `Dim`s. Without either, attributes are taken as written.
    - `routines`: library routine per operator name; `R.name(...)` of a name in it is a call of that routine.
    - `functions`: the operator functions, `R.op.name(...)`. With them, expressions may be written as in Python (see
      `python_syntax`).
    """
    source = Source(text)
    _check_version(source)
    scope = ModuleScope(Reader(source), deduce, complete, routines, functions)
    return _with_located_errors(scope, lambda: scope.module(source.tree()))


def parse_function(
    source: Source,
    definition: ast.FunctionDef,
    surroundings: Surroundings,
    deduce: Deduce,
    complete: Complete,
    routines: Mapping[str, str],
    functions: Functions,
) -> tuple[Function, ...]:
    """Returns the function for `definition`, then the functions made from its `if`s. Names may be bound again."""
    scope = ModuleScope(Reader(source), deduce, complete, routines, functions, surroundings)
    scope.names.add(definition.name)
    return _with_located_errors(scope, lambda: (scope.function(definition), *scope.branch_functions))


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
    - `line(statement)`: returns the user's source line of a statement.
    """

    signatures: Mapping[str, Signature]
    programs: Mapping[str, TensorProgram]
    values: Mapping[str, Expr]
    sizes: frozenset[str]
    line: Callable[[ast.stmt], SourceLine]


class ModuleScope:
    """The state that the readers of all functions of a text share: the callbacks and the signatures of the
    functions."""

    def __init__(
        self,
        reader: Reader,
        deduce: Deduce | None,
        complete: Complete | None,
        routines: Mapping[str, str],
        functions: Functions,
        surroundings: Surroundings | None = None,
    ) -> None:
        self.reader = reader
        self.deduce = deduce
        self.complete = complete
        self.routines = routines
        self.line = 1
        self.classes = {"Module", "cls"}
        self.names: set[str] = set()
        self.signatures: dict[str, Signature] = {}
        self.branch_functions: list[Function] = []
        self.programs: dict[str, TensorProgram] = {}
        self.functions = functions
        self.surroundings = surroundings
        self.constants: Mapping[str, Expr] = {}
        self.current = ""  # name of the definition being read
        self.references: dict[str, dict[str, ast.expr]] = {}  # per definition: functions it names, with first place
        if surroundings is not None:
            self.names.update(surroundings.signatures)
            self.signatures.update(surroundings.signatures)
            self.programs.update(surroundings.programs)
            self.constants = surroundings.values

    def module(self, tree: ast.Module) -> Module:
        definitions: list[ast.FunctionDef] = []
        for statement in tree.body:
            if isinstance(statement, ast.ClassDef):
                self.classes.add(statement.name)
                definitions += [d for s in statement.body if (d := self._definition(s))]
            elif not isinstance(statement, (ast.Import, ast.ImportFrom)) and (found := self._definition(statement)):
                definitions.append(found)
        source = self.reader.source
        for d in definitions:
            if d.name in self.names:
                raise source.error(d, f"two functions are named `{d.name}`", "a name of its own for each function")
            self.names.add(d.name)
        written = [d for d in definitions if _is_program(d)]
        definitions = [d for d in definitions if not _is_program(d)]
        for d in written:
            self.line = d.lineno
            self.programs[d.name] = read_program(source, d, ranges=False)
        for d in definitions:
            self._declare(d)
        if written and not definitions:
            problem = f"the text has no function that calls the tensor program `{written[0].name}`"
            wanted = "a function such as `def main(x: R.Tensor(...)):` that calls it by R.call_tir"
            raise source.error(written[0], problem, wanted)
        read = [self._read(d) for d in definitions]
        self._refuse_recursion()
        return Module((*read, *self.branch_functions))

    def function(self, definition: ast.FunctionDef) -> Function:
        """Reads one function on its own."""
        self._declare(definition)
        read = self._read(definition)
        self._refuse_recursion()
        return read

    def _read(self, definition: ast.FunctionDef) -> Function:
        self.current = definition.name
        return _FunctionReader(self, definition).read()

    def _refuse_recursion(self) -> None:
        found = call_cycle(self.references) if self.deduce is not None else []
        if found:
            raise self.reader.source.error(self.references[found[0]][found[1]], recursion_message(found), NO_RECURSION)

    def _declare(self, d: ast.FunctionDef) -> None:
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
        if isinstance(statement, ast.Pass) or _is_docstring(statement) or is_size_declaration(statement):
            return None
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


def _is_program(definition: ast.FunctionDef) -> bool:
    """Whether a definition is decorated with `@R.tensor_program`, or `@T.prim_func` as in Relax."""
    marks = [m.func if isinstance(m, ast.Call) else m for m in definition.decorator_list]
    return any(last_name(m) in ("tensor_program", "prim_func", "tensorir_function") for m in marks)


def _is_docstring(statement: ast.stmt) -> bool:
    """Whether a statement is a docstring."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def is_size_declaration(statement: ast.stmt) -> bool:
    """Whether a statement is `n = T.int64()`, or several of these at once. Sizes need no declaration here."""
    if not isinstance(statement, ast.Assign):
        return False
    value = statement.value
    made = value.elts if isinstance(value, ast.Tuple) else [value]
    return bool(made) and all(
        isinstance(v, ast.Call) and (unqualified_name(v.func, "T") is not None or unqualified_name(v.func) == "sym_var")
        for v in made
    )


def _function_attributes(statement: ast.stmt) -> ast.Call | None:
    """Returns the call of a line `R.func_attr(...)`, else None."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return call if isinstance(call, ast.Call) and unqualified_name(call.func) == "func_attr" else None


class _FunctionReader:
    """A reader of one function."""

    def __init__(self, scope: ModuleScope, definition: ast.FunctionDef) -> None:
        self.scope = scope
        self.definition = definition
        self.reader = scope.reader
        self.source = scope.reader.source
        self.origins: dict[Expr, Origin] = {}
        self.values = ExpressionReader(scope)
        self.values.sizes.update(scope.surroundings.sizes if scope.surroundings is not None else ())
        self.lines: dict[str, int] = {}  # line where each name is bound
        self.blocks: list[Block] = []
        self.assume: tuple[str, ...] = ()

    def read(self) -> Function:
        d = self.definition
        params = self.scope.params(d)
        for p, arg in zip(params, d.args.args, strict=True):
            self._name(arg.arg, arg)
            self.values.names[arg.arg] = p
            self.values.sizes.update(v for d in dims_of(p.annotation) for v in d.variables)
        lines = [s for s in d.body if _function_attributes(s) is None]
        attributes = [a for s in d.body if (a := _function_attributes(s)) is not None]
        self.assume = tuple(text for a in attributes for text in self.reader.assumptions(a))
        end = self._body(lines)
        if end is None:
            raise self.source.error(d, f"function `{d.name}` returns nothing", "`return expression` as its last line")
        return self._function(params, end)

    def _body(self, statements: list[ast.stmt]) -> ast.Return | None:
        """Reads statements up to a `return` and returns that statement."""
        steps: list[Binding] = []
        for statement in statements:
            self.scope.line = statement.lineno
            if isinstance(statement, ast.Return):
                self._end_steps(steps)
                return statement
            region = self._region(statement)
            if region == "dataflow":
                self._end_steps(steps)
                self._dataflow(statement)
            elif region == "bindings" and isinstance(statement, ast.With):
                self._end_steps(steps)
                for inner in statement.body:
                    self._step(inner, steps)
                self.blocks.append(Block(tuple(steps), dataflow=False))
                steps = []
            else:
                self._step(statement, steps)
        self._end_steps(steps)
        return None

    def _end_steps(self, steps: list[Binding]) -> None:
        if steps:
            self.blocks.append(Block(tuple(steps), dataflow=False))
            steps.clear()

    def _function(self, params: list[Expr], end: ast.Return) -> Function:
        d = self.definition
        if end is not next(s for s in reversed(d.body) if _function_attributes(s) is None):
            raise self.source.error(end, "lines follow this `return`", "`return` as the last line of the function")
        if end.value is None:
            raise self.source.error(end, f"function `{d.name}` returns nothing", "`return expression`")
        result = self.values.expression(end.value)
        self._keep_line(end, end.value, result)
        if has_functions(result.annotation) and self.scope.deduce is not None:
            raise self.source.error(end.value, f"function `{d.name}` returns a function", NO_FUNCTIONS)
        declared = self.scope.signatures.get(d.name)
        if declared is not None and not covers(declared.result, result.annotation):
            problem = f"function `{d.name}` returns {result.annotation} and is declared to return {declared.result}"
            raise self.source.error(end.value, problem, "the declaration to say what is returned")
        self.scope.signatures[d.name] = Signature(tuple(p.annotation for p in params), result.annotation)
        origins = MappingProxyType(self.origins)
        return Function(d.name, tuple(params), tuple(self.blocks), result, origins, self.assume)

    def _region(self, statement: ast.stmt) -> str | None:
        """Returns `dataflow`, `bindings` or `inline` if the statement is a `with` of one, else None."""
        if not isinstance(statement, ast.With):
            return None
        item = statement.items[0]
        call = item.context_expr
        kind = unqualified_name(call.func) if isinstance(call, ast.Call) and not call.args else None
        if kind not in ("dataflow", "bindings", "inline") or len(statement.items) > 1 or item.optional_vars:
            raise self.source.error(call, "this opens no region", "with R.dataflow(): (or R.bindings, R.inline)")
        return kind

    def _step(self, statement: ast.stmt, steps: list[Binding]) -> None:
        """Reads one statement of a binding block."""
        if isinstance(statement, ast.Pass) or _is_docstring(statement) or is_size_declaration(statement):
            return
        if isinstance(statement, ast.If):
            self._if(statement, steps)
            return
        if self._region(statement) == "inline":
            assert isinstance(statement, ast.With)
            for inner in statement.body:
                name, value, _ = self._assignment(inner)
                self.values.names[name] = value
            return
        name, value, bound = self._assignment(statement)
        self.values.names[name] = bound
        steps.append(Binding(bound, value))

    def _if(self, statement: ast.If, steps: list[Binding]) -> None:
        condition = self.values.expression(statement.test)
        self._keep_line(statement, statement.test, condition)
        a = condition.annotation
        if not isinstance(a, Tensor) or a.ndim not in (0, None) or a.dtype not in ("bool", None):
            raise self.source.error(statement.test, f"the condition is {a}", "a bool scalar")
        if not statement.orelse and self.scope.surroundings is None:
            raise self.source.error(statement, "this `if` has no `else`", "an `else` that binds the same names")
        then, other = self._with_earlier_values(self._branch(statement.body), self._branch(statement.orelse))
        names = self.scope.fresh(f"{self.definition.name}_then"), self.scope.fresh(f"{self.definition.name}_else")
        try:
            functions, value, results = conditional(condition, then, other, names)
        except OperatorError as error:
            raise self.source.at_position(statement, error, "branches that give values of the same kind") from None
        for f in functions:
            self.scope.add(f)
        for name in (then.names.keys() | other.names.keys()) - set(results):
            self.values.hidden[name] = ("bound in one branch only", f"a value for `{name}` in the other branch too")
        own = [self._name(name, statement) for name in results]
        whole = next(n for n in (f"cond{i or ''}" for i in itertools.count()) if n not in self.lines)
        self.lines[whole] = statement.lineno
        lines = join_branches(whole, value, own)
        if self.scope.surroundings is not None:
            self.origins[value] = Origin((self.scope.surroundings.line(statement),))
        self.values.names |= {name: b.var for name, b in zip(results, lines[1:], strict=True)}
        steps += lines

    def _with_earlier_values(self, then: Branch, other: Branch) -> tuple[Branch, Branch]:
        """Completes each branch with the earlier value of every name that only the other branch binds again."""
        before = self.values.names
        both = {n for n in then.names.keys() | other.names.keys() if n in before}
        then, other = (replace(b, names={**{n: before[n] for n in both}, **b.names}) for b in (then, other))
        return then, other

    def _branch(self, statements: list[ast.stmt]) -> Branch:
        inner = _FunctionReader(self.scope, self.definition)
        inner.values.names = dict(self.values.names)
        inner.values.hidden = dict(self.values.hidden)
        inner.values.sizes = set(self.values.sizes)
        inner.lines = dict(self.lines)
        end = inner._body(statements)
        if end is not None:
            raise self.source.error(end, "a branch returns", "`return` as the last line of the function")
        names = {n: e for n, e in inner.values.names.items() if self.values.names.get(n) is not e}
        self.lines.update(inner.lines if self.scope.surroundings is not None else {})
        return Branch(tuple(inner.blocks), names, MappingProxyType(inner.origins))

    def _dataflow(self, region: ast.stmt) -> None:
        assert isinstance(region, ast.With)
        bindings: dict[str, Binding] = {}
        outputs: list[str] | None = None
        for statement in region.body:
            self.scope.line = statement.lineno
            if outputs is not None:
                raise self.source.error(statement, "a line follows R.output", OUTPUTS)
            if _is_docstring(statement) or is_size_declaration(statement):
                continue
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                outputs = self._outputs(statement.value, bindings)
                continue
            name, value, bound = self._assignment(statement)
            self.values.names[name] = value
            bindings[name] = Binding(bound, value)
        if outputs is None:
            raise self.source.error(region, "this dataflow block has no outputs", OUTPUTS)
        for name, binding in bindings.items():
            if name in outputs:
                self.values.names[name] = binding.var
            else:
                del self.values.names[name]
                listed = f"`{name}` to be listed in the R.output of that block"
                self.values.hidden[name] = ("local to its dataflow block", listed)
        self.blocks.append(Block(tuple(bindings[name] for name in outputs)))

    def _outputs(self, call: ast.Call, bindings: Mapping[str, Binding]) -> list[str]:
        if unqualified_name(call.func) != "output" or call.keywords:
            raise self.source.error(call, "this line binds no name", f"{STATEMENTS}; {OUTPUTS}")
        names: list[str] = []
        for arg in call.args:
            if not isinstance(arg, ast.Name) or arg.id not in bindings:
                text = ast.unparse(arg)
                raise self.source.error(
                    arg, f"`{text}` is not bound in this block{did_you_mean(text, bindings)}", OUTPUTS
                )
            if arg.id in names:
                raise self.source.error(arg, f"`{arg.id}` is listed twice", OUTPUTS)
            names.append(arg.id)
        return names

    def _assignment(self, statement: ast.stmt) -> tuple[str, Expr, Expr]:
        """Returns name, value and variable of `name: annotation = value`."""
        self.scope.line = statement.lineno
        target: ast.expr | None = None
        if isinstance(statement, ast.AnnAssign):
            target = statement.target
        elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
        assert target is None or isinstance(statement, (ast.Assign, ast.AnnAssign))
        if target is None or not isinstance(target, ast.Name) or statement.value is None:  # type: ignore[union-attr]
            raise self.source.error(statement, "this line binds no name", STATEMENTS)
        written: ast.expr = statement.value  # type: ignore[union-attr]
        declared = self.reader.annotation(statement.annotation) if isinstance(statement, ast.AnnAssign) else None
        value = self.values.expression(written, None if isinstance(written, ast.Name) else declared)
        if value.annotation != declared:
            self.values.check_declared(written, value.annotation, declared)
        annotation = declared or value.annotation
        bound = var(self._name(target.id, target), annotation)
        self._keep_origin(statement, written, value)
        self.values.sizes.update(v for d in dims_of(annotation) for v in d.variables)
        return target.id, value, bound

    def _keep_origin(self, statement: ast.stmt, written: ast.expr, value: Expr) -> None:
        """Records the origin of a value. In module text the origin is in a comment; in a script it is the statement."""
        if self.scope.surroundings is not None:
            self._keep_line(statement, written, value)
        elif not isinstance(written, ast.Name) and (origin := self.source.origin(statement)) is not None:
            self.origins[value] = origin

    def _keep_line(self, statement: ast.stmt, written: ast.expr, value: Expr) -> None:
        """In a script, records the source line of every node that a statement computes."""
        if self.scope.surroundings is None or isinstance(written, ast.Name):
            return
        origin = Origin((self.scope.surroundings.line(statement),))
        for e in postorder([value], stop=lambda e: e.op == VAR or e in self.origins):
            if e.op not in IN_PLACE:
                self.origins.setdefault(e, origin)

    def _name(self, name: str, at: ast.expr | ast.arg | ast.stmt) -> str:
        """Returns the variable name for a value bound to `name`, unique because a script may bind a name again."""
        if name in self.lines and self.scope.surroundings is None:
            problem = f"`{name}` is bound twice, first in line {self.lines[name]}"
            raise self.source.error(at, problem, "a name of its own for each value")
        own = next(n for n in (f"{name}{i or ''}" for i in itertools.count()) if n not in self.lines)
        self.lines[own] = at.lineno
        return own
