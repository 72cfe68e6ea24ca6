"""`@function`: Relax programs written as Python functions, which are parsed and never run.

A script is module text with `rx.` for `R.`; the same reader reads both. This file adds the names from the surroundings
of a function (other functions, tensor programs, numbers and arrays), tuple and augmented assignments, and files and
lines in errors.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property, lru_cache
from types import FrameType
from typing import Any, NoReturn, overload

from relax_eg.argument_checks import STATEMENTS, short_repr
from relax_eg.errors import OptionError, ScriptError
from relax_eg.frontends.gathering import ScriptReferences
from relax_eg.frontends.surroundings import SurroundingNames, names_outside, size_names
from relax_eg.ir.calls import reachable_functions
from relax_eg.ir.expr import Expr, fresh_name, shape_value
from relax_eg.ir.module import Function, Module
from relax_eg.ir.origin import SourceLine
from relax_eg.ir.parser import Script
from relax_eg.ir.reader import Source, unqualified_name
from relax_eg.ir.wellformed import check
from relax_eg.memo import Memo
from relax_eg.ops.text import read_scripts
from relax_eg.shapes import Dim
from relax_eg.shapes.relation import as_statements
from relax_eg.tir.source_text import SourceText, text_of_function

# Finds the scripts that follow a script in its file, which Python has not run yet when that script is read.
#
# So two scripts may call one another.

FILES = 16  # limit: syntax trees of files that are kept


@lru_cache(FILES)
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


class LaterScripts:
    """The functions after `fn` in its file."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn

    @cached_property
    def _lines(self) -> tuple[list[str], int]:
        try:
            return inspect.findsource(self.fn)
        except (OSError, TypeError):
            return [], 0

    @cached_property
    def _names(self) -> frozenset[str]:
        """The names of all functions after `fn`, in any scope."""
        lines, at = self._lines
        return frozenset(m[1] for line in lines[at + 1 :] if (m := re.match(r"\s*def (\w+)", line)))

    def find(self, name: str, is_script: Callable[[ast.expr], bool]) -> tuple[str, str, int, int] | None:
        """Returns what `text_of_function` does of the script `name`; None if none follows `fn` in its scope or one
        around it, or if another function of that name stands before. `is_script(mark)`: whether a decorator makes a
        script."""
        if name not in self._names:
            return None
        lines, at = self._lines
        try:
            tree = _parsed("".join(lines))
        except SyntaxError:
            return None
        around = [s for s in ast.walk(tree) if isinstance(s, ast.FunctionDef) and _first(s) <= at < (s.end_lineno or 0)]
        for scope in (*sorted(around, key=_first, reverse=True), tree):
            d = next((d for d in _definitions(scope.body) if d.name == name), None)
            if d is None:
                continue
            if _first(d) <= at + 1 or not any(map(is_script, d.decorator_list)):
                return None
            text = "".join(lines[_first(d) - 1 : d.end_lineno])
            return textwrap.dedent(text), inspect.getsourcefile(self.fn) or "", _first(d), d.col_offset
        return None


def _first(d: ast.FunctionDef) -> int:
    """The first line of a definition, from 1, with its decorators."""
    return min(d.lineno, *(m.lineno for m in d.decorator_list)) if d.decorator_list else d.lineno


def _definitions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef]:
    """The functions of one scope, also those in its `if`s, `with`s and so on."""
    for s in body:
        if isinstance(s, ast.FunctionDef):
            yield s
        elif not isinstance(s, (ast.ClassDef, ast.AsyncFunctionDef)):
            for part in ("body", "orelse", "finalbody"):
                yield from _definitions(getattr(s, part, []))


_READ = "functions under @rx.function, which are read and not run"


@overload
def function(fn: Callable[..., Any], /) -> Module: ...
@overload
def function(*, assume: str | Sequence[str] = ()) -> Callable[[Callable[..., Any]], Module]: ...
def function(
    fn: Callable[..., Any] | None = None, /, *, assume: str | Sequence[str] = ()
) -> Module | Callable[[Callable[..., Any]], Module]:
    """The module of a scripted function and of everything that it calls. The function is parsed, not run.

        @rx.function
        def main(x: rx.Tensor("n 4"), w: rx.Tensor("4 8")):
            with rx.dataflow():
                h = rx.op.relu(x @ w)
                y = rx.call_tir(scale, (h,), rx.Tensor("n 8"))
            return y

    The entry of the module has the name of the function. The module includes the scripted functions that it calls, and
    the tensor programs that it calls by `rx.call_tir`. Numbers and arrays that are defined outside become constants.

    - `assume`: statements about sizes that hold at every call, such as "n % 8 == 0".

    ScriptError, with file and line, for text that cannot be read and for operands that an operator does not accept.
    WellFormedError for a module that breaks a rule of the IR.
    """
    if not STATEMENTS.fits(assume):
        raise OptionError(f"assume={short_repr(assume)}: {STATEMENTS.accepted} is accepted")
    statements = as_statements(assume)
    if fn is None:
        return lambda fn: _read(fn, statements)
    if not inspect.isfunction(fn):
        raise ScriptError(f"function: got a {type(fn).__name__}\n  accepted: a function, whose text is read")
    return _read(fn, statements)


class ScriptSource(Source):
    """The text of a function in a file."""

    kind = ScriptError
    error_at = SourceText.error_at

    def line(self, statement: ast.stmt) -> SourceLine:
        """The user's line of a statement."""
        return SourceLine(os.path.basename(self.file), self.first + statement.lineno - 1)


_MOST_AHEAD = 256  # limit: scripts that were read before they ran, and have not run yet
_ahead = Memo[tuple[str, int], tuple[str, Function, Module]](_MOST_AHEAD)  # by file and line


def _read(fn: Callable[..., Any], assume: tuple[str, ...]) -> Module:
    source = _source_of(fn)
    text, own, whole = _ahead.pop((source.file, source.first), ("", None, None))
    if own is not None and whole is not None and text == source.text:
        named = {f.name: f for f in whole}
        own = replace(own, assume=(*own.assume, *assume))
        module = Module((own, *(f for f in reachable_functions(own.expressions(), named) if f.name != own.name)))
        check(module)
        return module
    definition = _definition_in(source)
    return _Scripts(fn, definition.name, _caller()).read(source, definition, assume)


def _caller() -> FrameType | None:
    """The frame that calls `function`, or what that returns: it called `_read`, which calls this."""
    frame = inspect.currentframe()
    for _ in range(3):
        frame = None if frame is None else frame.f_back
    return frame


class _Scripts:
    """A script, and those that it calls and that follow in its file.

    - `fn`: the script.
    - `name`: its name.
    - `frame`: the frame in which it is defined.
    """

    def __init__(self, fn: Callable[..., Any], name: str, frame: FrameType | None) -> None:
        self.fn = fn
        self.outside = names_outside(fn)
        self.frame = frame
        self.later = LaterScripts(fn)
        self.gathered = ScriptReferences(name)
        self.own: dict[str, str] = {name: name}  # the names in the module
        self.waiting: list[tuple[ScriptSource, str]] = []

    def read(self, source: ScriptSource, definition: ast.FunctionDef, assume: tuple[str, ...]) -> Module:
        annotations: Mapping[str, Any] = getattr(self.fn, "__annotations__", {})
        found = [self._resolved(source, definition, self.outside, annotations)]
        while self.waiting:
            later, name = self.waiting.pop(0)
            following = _definition_in(later)
            following.name = name
            found.append(self._resolved(later, following, {**self.outside, **self._local_names()}, {}))
        scripts = [Script(s, d, self.gathered.surroundings(frozenset(sizes), s.line)) for s, d, sizes in found]
        entry, *others = read_scripts(scripts)
        entry = replace(entry, assume=(*entry.assume, *assume))
        module = Module((entry, *others, *self.gathered.functions.values()))
        check(module)
        for s, d, _ in found[1:]:
            if self.own.get(d.name) == d.name:
                _ahead[s.file, s.first] = s.text, module[d.name], module
        return module

    def _resolved(
        self,
        source: ScriptSource,
        definition: ast.FunctionDef,
        outside: Mapping[str, Any],
        annotations: Mapping[str, Any],
    ) -> tuple[ScriptSource, ast.FunctionDef, set[str]]:
        try:
            _Desugar(definition).visit(definition)
            sizes = size_names(definition)
            SurroundingNames(
                source, definition, self.gathered, sizes, outside, annotations, self._name_of_later
            ).resolve()
            _with_outputs(definition)
        except RecursionError:
            raise source.error(definition, "an expression is nested too deeply", "its parts bound to names") from None
        return source, definition, sizes

    def _name_of_later(self, name: str) -> str | None:
        """The name in the module of the script `name`; None unless it is this script or a later one of its file."""
        if name not in self.own and (found := self.later.find(name, self._makes_script)) is not None:
            self.own[name] = fresh_name(name, self.gathered.taken)
            source = ScriptSource(*found)
            source.name = name
            self.waiting.append((source, self.own[name]))
        return self.own.get(name)

    def _makes_script(self, mark: ast.expr) -> bool:
        names = {**self.outside, **self._local_names()}
        first, *rest = ast.unparse(mark.func if isinstance(mark, ast.Call) else mark).split(".")
        value = names.get(first)
        for name in rest:
            value = getattr(value, name, None)
        return value is function

    def _local_names(self) -> Mapping[str, Any]:
        """The names in the scope of the script that it does not read itself."""
        is_same = self.frame is not None and self.frame.f_code.co_filename == self.fn.__code__.co_filename
        return self.frame.f_locals if is_same and self.frame is not None else {}


def _source_of(fn: Callable[..., Any]) -> ScriptSource:
    name = getattr(fn, "__qualname__", str(fn))
    try:
        text = text_of_function(fn)
    except (OSError, TypeError):
        raise ScriptError(
            f"{name}: its text is not at hand\n  accepted: a function in a file (or `rx.parse(text)`)"
        ) from None
    source = ScriptSource(*text)
    source.name = name
    return source


def _definition_in(source: ScriptSource) -> ast.FunctionDef:
    definition = source.tree().body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise ScriptError(f"{source.name}: a lambda or a coroutine\n  accepted: a function of its own, def name(...):")
    definition.decorator_list = []
    return definition


class _Desugar(ast.NodeTransformer):
    """Expands the shorthand statements `a, b = pair` and `x += y`."""

    def __init__(self, definition: ast.FunctionDef) -> None:
        self.taken = {n.id for n in ast.walk(definition) if isinstance(n, ast.Name)}

    def visit_Assign(self, node: ast.Assign) -> Any:
        target = node.targets[0]
        declares = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        if (
            len(node.targets) > 1
            or not isinstance(target, (ast.Tuple, ast.List))
            or not all(isinstance(t, ast.Name) for t in target.elts)
            or all(isinstance(v, ast.Call) and ast.unparse(v.func).endswith("sym_var") for v in declares)
        ):
            return node
        whole = fresh_name("fields", self.taken)
        made: list[ast.stmt] = [ast.Assign([ast.Name(whole, ast.Store())], node.value)]
        for i, t in enumerate(target.elts):
            made.append(ast.Assign([t], ast.Subscript(ast.Name(whole, ast.Load()), ast.Constant(i), ast.Load())))
        return [_with_position(statement, node) for statement in made]

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        if not isinstance(node.target, ast.Name):
            return node
        read = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
        return _with_position(
            ast.Assign([node.target], ast.copy_location(ast.BinOp(read, node.op, node.value), node)), node
        )


def _with_position(made: ast.stmt, where: ast.stmt) -> ast.stmt:
    return ast.fix_missing_locations(ast.copy_location(made, where))


def _with_outputs(definition: ast.FunctionDef) -> None:
    """Adds `R.output(...)` to each dataflow block that lacks it. It lists the names that later lines use, or all names
    of the block if later lines use none."""
    loads = [n for n in ast.walk(definition) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    for block in [n for n in ast.walk(definition) if isinstance(n, ast.With)]:
        call = block.items[0].context_expr
        last = block.body[-1].value if isinstance(block.body[-1], ast.Expr) else None
        if not isinstance(call, ast.Call) or unqualified_name(call.func) != "dataflow":
            continue
        if isinstance(last, ast.Call) and unqualified_name(last.func) == "output":
            continue
        bound = list(dict.fromkeys(_bound_names(block.body)))
        end = block.end_lineno or block.lineno
        later = {n.id for n in loads if n.lineno > end}
        names = [ast.Name(name, ast.Load()) for name in bound if name in later or not later & set(bound)]
        output = ast.Attribute(ast.Name("R", ast.Load()), "output", ast.Load())
        block.body.append(_with_position(ast.Expr(ast.Call(output, names, [])), block.body[-1]))  # type: ignore[reportArgumentType]


def _bound_names(body: Iterable[ast.stmt]) -> list[str]:
    targets = [t for s in body if isinstance(s, ast.Assign) for t in s.targets]
    targets += [s.target for s in body if isinstance(s, ast.AnnAssign)]
    return [t.id for t in targets if isinstance(t, ast.Name)]


# --- functions that scripts mention and that are never run ---


def _raise_not_executable(name: str) -> NoReturn:
    raise ScriptError(f"`{name}` has a meaning only where it is read\n  accepted: {_READ}")


def dataflow() -> AbstractContextManager[None]:
    """`with rx.dataflow():` opens a region of a script without effects. Its outputs are the names that its last line,
    `rx.script.output(names)`, lists; without that line, the names that later lines use."""
    _raise_not_executable("dataflow")


def output(*values: Any) -> None:
    """The last line of a dataflow block; it lists the outputs of the block."""
    del values
    _raise_not_executable("output")


def sym_var() -> Any:
    """`n = rx.script.sym_var()` declares a size variable. The line is optional: it defines the name for editors."""
    _raise_not_executable("sym_var")


def new_ref(value: Any) -> Any:
    """`r = rx.script.new_ref(value)` makes a mutable cell in a script."""
    del value
    _raise_not_executable("new_ref")


def read_ref(ref: Any) -> Any:
    """`rx.script.read_ref(r)` is the value in a mutable cell, in a script."""
    del ref
    _raise_not_executable("read_ref")


def write_ref(ref: Any, value: Any) -> None:
    """`rx.script.write_ref(r, value)` puts another value into a mutable cell, in a script."""
    del ref, value
    _raise_not_executable("write_ref")


def shape(*sizes: int | str | Dim) -> Expr:
    """A shape as a value: `rx.script.shape("n", 4)`."""
    return shape_value(sizes)
