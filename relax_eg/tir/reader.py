"""Reads tensor programs from Python's syntax without running it: what people write, and what `printer` writes.

    def mm(X: rx.Buffer("n k"), W: rx.Buffer("k m"), Y: rx.Buffer("n m")):
        Y[i, j] = rx.sum(X[i, l] * W[l, j], over=(l, k))

Names of the language may be bare or follow any single prefix. Loops may be explicit (`for i, j in rx.grid(n, m):`). A
sum may be `Y[i, j] += ...` after a store that initializes Y. A named value (`word = ...`) may be used in later lines.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NoReturn

from relax_eg.dtypes import dtype_of
from relax_eg.errors import RelaxEgError
from relax_eg.shapes import Dim, parse_spec
from relax_eg.shapes.spec import parse_dtype
from relax_eg.tir.expr import Const, Read, Reduce, ReduceKind, Scalar, apply, loop, loop_names, loop_of, walk
from relax_eg.tir.program import Buffer, Stage, TensorProgram
from relax_eg.tir.ranges import out_of_range
from relax_eg.tir.source_text import SourceText
from relax_eg.tir.stores import ONCE, BufferStore, stage_of
from relax_eg.tir.substitute import substitute
from relax_eg.tir.text import index_text
from relax_eg.tir.values import BINARY, Value, ValueReader, last_name, loop_named

PARAMETER = (
    'a buffer `X: rx.Buffer("n 128", "float32")`, a workspace `P: rx.script.workspace("n 128")` or a size `n: int`'
)
STATEMENT = (
    'an equation `Y[i, j] = value`, a sum `Y[i, j] += value`, `T = rx.script.local("n 4")`, '
    '`P = rx.script.workspace("n 4")`, '
    "a named value `x = value`, or `for i, j in rx.grid(n, 4):`"
)
# given: the initial element of a fold
_FOLDS: dict[str, tuple[ReduceKind, float]] = {
    "add": ("sum", 0), "multiply": ("prod", 1), "maximum": ("max", float("-inf")), "minimum": ("min", float("inf")),
    "bitwise_or": ("any", 0), "bitwise_and": ("all", -1), "bitwise_xor": ("xor", 0),
}  # fmt: skip
_SPACES = ("local", "workspace")


def parse_program(text: str, *, ranges: bool = True) -> TensorProgram:
    """Returns the tensor program that `text` describes; the inverse of `str(program)`.

    TensorProgramError, with the line, if the text is wrong. `ranges`: check for reads out of range.
    """
    source = SourceText(text)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        at = ast.Constant(0, lineno=getattr(error, "lineno", 1) or 1, col_offset=0)
        raise source.error(at, f"this is not Python's syntax: {error}", "a function definition") from None
    found = [s for s in tree.body if isinstance(s, ast.FunctionDef)]
    if len(found) != 1:
        at = tree.body[0] if tree.body else ast.Constant(0, lineno=1, col_offset=0)
        raise source.error(at, f"{len(found)} functions", "one function definition: def name(X: rx.Buffer(...), ...):")
    source.name = found[0].name
    return read_program(source, found[0], ranges=ranges)


def read_program(source: SourceText, definition: ast.FunctionDef, *, ranges: bool = True) -> TensorProgram:
    """Returns the program of a function definition. Its decorator may give it another name."""
    try:
        return _ProgramReader(source, definition, ranges).read()
    except RecursionError:
        raise source.error(definition, "an expression is nested too deeply", "its parts as named values") from None


class _ProgramReader:
    """A reader of one function definition."""

    def __init__(self, source: SourceText, definition: ast.FunctionDef, ranges: bool) -> None:
        self.source = source
        self.ranges = ranges
        self.definition = definition
        self.parameters: dict[str, Buffer] = {}
        self.lifted: list[str] = []
        self.workspaces: list[str] = []
        self.locals: dict[str, ast.stmt] = {}
        self.passed: list[str] = []
        self.sizes: dict[str, Dim] = {}
        self.buffers: dict[str, Buffer] = {}
        self.named: dict[str, ast.expr] = {}
        self.stores: list[BufferStore] = []

    def read(self) -> TensorProgram:
        d = self.definition
        self._parameters(d.args)
        self._statements(d.body, {}, {}, False)
        written = {store.buffer.name for store in self.stores}
        outputs = [n for n in self.parameters if n in written and n not in self.lifted]
        inputs = [n for n in self.parameters if n not in outputs and n not in self.lifted]
        order = list(self.parameters)
        if not outputs:
            self.fail(d, f"`{d.name}` writes no parameter", f"outputs are the last parameters, and written. {ONCE}")
        if late := next((n for n in inputs if order.index(n) > order.index(outputs[0])), None):
            self.fail(
                next(a for a in d.args.args if a.arg == late),
                f"{late} stands after the output {outputs[0]} and is not written at all",
                f"outputs as the last parameters; {ONCE}",
            )
        for name in (*self.lifted, *self.locals):
            if name not in written:
                at = self.locals.get(name, d)
                self.fail(at, f"{self.buffers[name]} is not written at all", ONCE)
        last = {store.buffer.name: n for n, store in enumerate(self.stores)}
        stages = [self._stage(name) for name in sorted(last, key=last.__getitem__)]
        made = TensorProgram(
            self._name(), tuple(self.parameters[n] for n in inputs), tuple(stages), tuple(outputs),
            (*self.lifted, *self.workspaces), tuple(self.lifted), tuple(self.passed),
        )  # fmt: skip
        unused = [n for n in self.passed if n not in made.sizes]
        if unused:
            self.fail(d, f"the size `{unused[0]}` is passed and not used", "a size of a buffer, an extent or an index")
        try:
            return made.validate()
        except RelaxEgError as error:
            raise self.source.at_position(d, error, ONCE) from None

    def fail(self, at: ast.AST, problem: str, expected: str) -> NoReturn:
        raise self.source.error(at, problem, expected)

    def _name(self) -> str:
        for mark in self.definition.decorator_list:
            for k in mark.keywords if isinstance(mark, ast.Call) else []:
                if k.arg != "name" or not isinstance(k.value, ast.Constant) or not isinstance(k.value.value, str):
                    self.fail(k.value, f"tensor_program takes no `{ast.unparse(k)}`", 'name="text"')
                return k.value.value
        return self.definition.name

    # --- declarations ---

    def _parameters(self, args: ast.arguments) -> None:
        if args.posonlyargs or args.kwonlyargs or args.vararg or args.kwarg or args.defaults:
            self.fail(self.definition, f"`{self.definition.name}` has defaults, stars or slashes", PARAMETER)
        for arg in args.args:
            note = arg.annotation
            what = last_name(note.func) if isinstance(note, ast.Call) else last_name(note) if note else None
            if isinstance(note, ast.Call) and what in ("Buffer", "workspace"):
                self.parameters[arg.arg] = self._declared(note, arg.arg)
                if what == "workspace":
                    self.lifted.append(arg.arg)
            elif what in ("int", "int32", "int64"):
                self.passed.append(arg.arg)
                self.sizes[arg.arg] = Dim.var(arg.arg)
            else:
                text = ast.unparse(note) if note else "nothing"
                self.fail(arg, f"the parameter {arg.arg} is annotated {text}", PARAMETER)

    def _declared(self, call: ast.Call, name: str) -> Buffer:
        """Returns the buffer of `Buffer("n 128", "float32")`, `Buffer(("n", 128), "f32")` or `local("n 128")`."""
        given = dict(zip(("shape", "dtype"), call.args, strict=False)) | {str(k.arg): k.value for k in call.keywords}
        shape, dtype = given.get("shape"), given.get("dtype")
        wanted = 'a shape and a dtype: ("n 128", "float32")'
        if shape is None or len(call.args) > 2 or set(given) - {"shape", "dtype"}:
            self.fail(call, f"{name} is declared {ast.unparse(call)}", wanted)
        try:
            told = None
            if isinstance(shape, ast.Constant) and isinstance(shape.value, str):
                spec = parse_spec(shape.value)
                sizes, told = spec.dims, spec.dtype
            else:
                parts = shape.elts if isinstance(shape, (ast.Tuple, ast.List)) else [shape]
                sizes = tuple(Dim.of(p.value if isinstance(p, ast.Constant) else ast.unparse(p)) for p in parts)  # type: ignore[arg-type]
            if dtype is not None:
                told = parse_dtype(str(dtype.value) if isinstance(dtype, ast.Constant) else str(last_name(dtype)))
        except RelaxEgError as error:
            raise self.source.at_position(shape, error, wanted) from None
        known: list[Dim] = []
        for size in sizes:
            if not isinstance(size, Dim):
                self.fail(shape, f"the shape of {name} has the axis `{size or '_'}`", "sizes that are known or named")
            known.append(size)
        buffer = Buffer(name, tuple(known), told or "float32")
        if name in self.buffers or name in self.passed:
            self.fail(call, f"two things are named {name}", "a name of its own for each buffer and size")
        self.buffers[name] = buffer
        self.sizes |= {v: Dim.var(v) for size in known for v in size.variables}
        return buffer

    # --- statements ---

    def _statements(
        self, body: Iterable[ast.stmt], names: Mapping[str, Dim], extents: Mapping[str, Dim], init: bool
    ) -> None:
        """Reads statements inside loops.

        - `names`: index of each loop name.
        - `extents`: extent of each loop variable.
        """
        for s in body:
            match s:
                case ast.Pass() | ast.Expr(value=ast.Constant(value=str())):
                    pass
                case ast.For():
                    self._loop(s, names, extents)
                case ast.With(items=[ast.withitem(context_expr=ast.Call(func=func))]) if last_name(func) in (
                    "block", "init",
                ):  # fmt: skip
                    self._statements(s.body, names, extents, last_name(func) == "init")
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=func) as call) if (
                    last_name(func) in _SPACES
                ):
                    self._declared(call, name)
                    self.locals[name] = s
                    if last_name(func) == "workspace":
                        self.workspaces.append(name)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    if name in self.named or name in self.buffers or name in self.sizes or name in names:
                        self.fail(s, f"`{name}` is named twice", "a name of its own for each value")
                    self.named[name] = value
                case ast.Assign(targets=[ast.Subscript() as target], value=value):
                    self._assign(s, target, value, names, extents, init)
                case ast.AugAssign(target=ast.Subscript() as target, op=op, value=value):
                    self._store(s, target, value, names, extents, False, BINARY.get(type(op), "matmul"))
                case _:
                    text = ast.unparse(s).split("\n")[0]
                    self.fail(s, f"`{text}` is no line of a tensor program", STATEMENT)

    def _loop(self, s: ast.For, names: Mapping[str, Dim], extents: Mapping[str, Dim]) -> None:
        targets = s.target.elts if isinstance(s.target, (ast.Tuple, ast.List)) else [s.target]
        call = s.iter
        what = last_name(call.func) if isinstance(call, ast.Call) else None
        wanted = "`for i in range(n):`, `for i in range(1, n):` or `for i, j in rx.grid(n, m):`"
        if not isinstance(call, ast.Call) or what not in ("range", "grid", "serial") or s.orelse or call.keywords:
            self.fail(s, f"the loop over `{ast.unparse(s.iter)}` cannot be read", wanted)
        values = ValueReader(self.source, {**self.sizes, **names}, self.buffers)
        bounds = [values.dim(a, "the extent of a loop") for a in call.args]
        pairs = [(Dim.of(0), b) for b in bounds]
        if what != "grid" and len(bounds) == 2:
            pairs = [(bounds[0], bounds[1])]
        if len(pairs) != len(targets) or (what != "grid" and len(targets) > 1):
            self.fail(s, f"{len(targets)} loop variables and {len(pairs)} extents", wanted)
        inner, reach = dict(names), dict(extents)
        for target, (low, high) in zip(targets, pairs, strict=True):
            if not isinstance(target, ast.Name) or target.id in inner:
                self.fail(target, f"`{ast.unparse(target)}` is no new loop variable", wanted)
            variable = loop(target.id)
            inner[target.id] = variable + low
            reach[str(loop_of(variable))] = high - low
        self._statements(s.body, inner, reach, False)

    def _assign(
        self, s: ast.stmt, target: ast.Subscript, value: ast.expr, names: Mapping[str, Dim],
        extents: Mapping[str, Dim], init: bool,
    ) -> None:  # fmt: skip
        """Reads `Y[i] = value`, or `Y[i] = max(Y[i], value)`, which is a fold."""
        if isinstance(value, ast.Call) and not value.keywords and len(value.args) == 2:
            fold = {"maximum": "maximum", "max": "maximum", "minimum": "minimum", "min": "minimum"}.get(
                last_name(value.func) or ""
            )
            if fold and ast.unparse(value.args[0]) == ast.unparse(target):
                self._store(s, target, value.args[1], names, extents, init, fold)
                return
        self._store(s, target, value, names, extents, init, None)

    def _store(
        self, s: ast.stmt, target: ast.Subscript, value: ast.expr, names: Mapping[str, Dim],
        extents: Mapping[str, Dim], init: bool, fold: str | None,
    ) -> None:  # fmt: skip
        buffer = self._target(target)
        parts = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
        known: dict[str, Value] = {**self.sizes, **names}
        free = {n: loop_named(n) for p in parts for n in _names(p) if n not in known}
        reader = ValueReader(self.source, {**known, **free}, self.buffers, self.named)
        indices = tuple(reader.dim(p, "an index that is written") for p in parts)
        if len(indices) != buffer.rank:
            self.fail(target, f"{len(indices)} indices write {buffer}", f"{buffer.rank} indices, one for each axis")
        mine = frozenset[str]().union(*map(loop_names, indices))
        reach = {n: e for n, e in extents.items() if n in mine or not init}
        for index, size in zip(indices, buffer.shape, strict=True):
            for n in loop_names(index) - set(extents):
                reach[n] = size - index.substitute({n: 0}) if index != size - 1 - Dim.var(n) else size
        summed: dict[str, Dim] = {}
        if fold is not None:
            unknown = [n for n in self._unbound_names(value, reader) if n not in reader.names]
            summed = {n: loop(n) for n in unknown}
            reader.names.update(summed)
        found = reader.scalar(value, buffer.dtype)
        if found.dtype != buffer.dtype:
            self.fail(value, f"the value is {found.dtype}, {buffer.name} is {buffer.dtype}", f"{buffer.dtype}(value)")
        over = [(Dim.var(n), e) for n, e in reach.items() if n not in mine] if fold else []
        for n, variable in summed.items():
            over.append((variable, reader.extent(ast.copy_location(ast.Name(n), value), variable, found, None)))
        loops = {n: e for n, e in reach.items() if n in mine or fold is None}
        store = BufferStore(s, target, buffer, indices, loops, found)
        store.solve(self.source)  # first, because an invalid store is reported before the reads of its value
        self._in_range(found, {**loops, **{str(loop_of(v)): e for v, e in over}}, reader)
        if fold is not None:
            self._fold(store, fold, over)
            return
        self._append_store(store)

    def _target(self, target: ast.Subscript) -> Buffer:
        name = target.value.id if isinstance(target.value, ast.Name) else ""
        buffer = self.buffers.get(name)
        if buffer is None:
            wanted = f'a parameter, or `{name or "T"} = rx.script.local("n 4")` before'
            self.fail(target, f"`{ast.unparse(target.value)}` is no buffer that can be written", wanted)
        return buffer

    def _unbound_names(self, value: ast.expr, reader: ValueReader) -> list[str]:
        """Returns the names in `value` that nothing binds: loop variables to reduce over."""
        bound = set(reader.names) | set(self.buffers) | {"inf", "nan"}
        found: dict[str, None] = {}
        todo: list[ast.expr] = [value]
        while todo:
            names, binds = _names(todo[-1]), _bound(todo.pop())
            for n in names:
                if n in self.named and n not in bound:
                    todo.append(self.named[n])
                elif n not in bound | binds:
                    found[n] = None
                bound |= {n} & self.named.keys()
        return list(found)

    def _in_range(self, value: Scalar, loops: Mapping[str, Dim], reader: ValueReader) -> None:
        for finding in out_of_range(value, loops, self.buffers) if self.ranges else ():
            if finding.counterexample:
                size = self.buffers[finding.read.buffer].shape[finding.axis]
                at = ", ".join(f"{n} = {v}" for n, v in finding.counterexample.items())
                index = index_text(finding.read.indices[finding.axis])  # type: ignore[arg-type]
                self.fail(
                    reader.reads.get(finding.read, self.definition),
                    f"{finding.read} is out of range: axis {finding.axis} of {self.buffers[finding.read.buffer]} is "
                    f"read at {index}, which is not below {size} or is negative, at {at}",
                    f"0 <= {index} < {size} for all sizes, or select(condition, {finding.read}, other)",
                )

    def _append_store(self, store: BufferStore) -> None:
        name = store.buffer.name
        if reader := next((o.buffer.name for o in self.stores if o.buffer.name != name and _reads(o, name)), None):
            self.fail(
                store.target,
                f"a race: {name} is written here, after {reader} was computed from it",
                f"all stores into {name} before what reads it; {ONCE}",
            )
        self.stores.append(store)

    def _fold(self, store: BufferStore, fold: str, over: list[tuple[Dim, Dim]]) -> None:
        """Reads `Y[i] += value`: combines Y's earlier value with `value` over all loops that do not index Y."""
        name = store.buffer.name
        before = [s for s in self.stores if s.buffer.name == name]
        if not before:
            wanted = f"{ast.unparse(store.target)} = 0 before it, or {name}[...] = sum(value, over=(k, 128))"
            self.fail(store.target, f"{name} is added to and was never written", wanted)
        start = before[-1]
        plain = all(loop_of(i) for s in (start, store) for i in s.indices)
        if len(before) > 1 or not plain or (over and fold not in (*_FOLDS, "subtract")):
            self.fail(store.target, f"`{fold}` into a part of {name} that another line wrote", "+= on all of a buffer")
        env = {str(loop_of(a)): b for a, b in zip(start.indices, store.indices, strict=True)}
        kind, neutral = _FOLDS.get(fold, ("sum", None))
        try:
            first = substitute(start.value, {n: d for n, d in env.items() if d != Dim.var(n)})
            value = Reduce(kind, tuple(over), store.value) if over else store.value
            if not (over and isinstance(first, Const) and _is_neutral(first, kind, neutral)):
                value = apply(fold, first, value)
        except RelaxEgError as error:
            raise self.source.at_position(store.statement, error, STATEMENT) from None
        self.stores.remove(start)
        self._append_store(replace(store, value=value))

    def _stage(self, name: str) -> Stage:
        mine = [s for s in self.stores if s.buffer.name == name]
        try:
            return stage_of(self.source, mine)
        except RelaxEgError as error:
            raise self.source.at_position(mine[0].statement, error, ONCE) from None


def _names(at: ast.AST) -> list[str]:
    """Returns the names of values in `at` in order, without buffers and functions."""
    heads = {n.func for n in ast.walk(at) if isinstance(n, ast.Call)} | {
        n.value for n in ast.walk(at) if isinstance(n, (ast.Subscript, ast.Attribute))
    }
    return list(dict.fromkeys(n.id for n in ast.walk(at) if isinstance(n, ast.Name) and n not in heads))


def _bound(at: ast.AST) -> set[str]:
    """Returns the loop variables that reductions in `at` bind."""
    overs = [k.value for n in ast.walk(at) if isinstance(n, ast.Call) for k in n.keywords if k.arg == "over"]
    return {name for over in overs for name in _names(over)}


def _reads(store: BufferStore, name: str) -> bool:
    return any(isinstance(t, Read) and t.buffer == name for t in walk(store.value))


def _is_neutral(value: Const, kind: str, neutral: float | None) -> bool:
    if value.dtype == "bool":
        return value.value == (kind == "all")
    record = dtype_of(value.dtype)
    if kind == "all" and record.kind == "u":
        return value.value == record.greatest
    return value.value == neutral
