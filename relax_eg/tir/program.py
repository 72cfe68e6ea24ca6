"""Tensor programs: buffers, and stages that define every element of a buffer by one index equation. A matmul:

    A, B = Buffer("A", (m, k), "float32"), Buffer("B", (k, n), "float32")
    i, j, r = loops("i j r")
    Y = stage(Buffer("Y", (m, n), "float32"), (i, j), sum_(A[i, r] * B[r, j], over=(r, k)))
    matmul = program("matmul", (A, B), Y)

`compute` names the loop variables itself and suits operators of any rank.
"""

from __future__ import annotations

import inspect
import itertools
import keyword
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from relax_eg.dtypes import kind
from relax_eg.errors import ShapeError
from relax_eg.shapes import Dim
from relax_eg.tir.expr import (
    Const,
    Index,
    IndexValue,
    Read,
    Reduce,
    Scalar,
    ScalarLike,
    axes,
    is_loop,
    loop,
    loop_names,
    loop_of,
    scalar,
    walk,
)
from relax_eg.tir.scans import Scan, scans_of
from relax_eg.tir.text import constant_text, index_text, named_text, scalar_text
from relax_eg.traversal import reached

INDENT = "    "


@dataclass(frozen=True)
class Buffer:
    """A named array. `buffer[i, j]` reads it; indices are Dims, ints, or Scalars of integer dtype."""

    name: str
    shape: tuple[Dim, ...]
    dtype: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(map(Dim.of, self.shape)))

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __getitem__(self, indices: IndexValue | int | tuple[IndexValue | int, ...]) -> Read:
        at = indices if isinstance(indices, tuple) else (indices,)
        if len(at) != self.rank:
            raise ShapeError(f"{self} is read with {len(at)} indices; {self.rank} are needed")
        return Read(self.name, tuple(i if isinstance(i, Scalar) else Dim.of(i) for i in at), self.dtype)

    def __str__(self) -> str:
        return f"{self.name}: ({', '.join(map(str, self.shape))}) {self.dtype}"


@dataclass(frozen=True)
class Stage:
    """One index equation: `output[indices] = value` for all values of the loop variables `indices`.

    The domain is the output's shape, so every element is written exactly once.
    """

    output: Buffer
    indices: tuple[Dim, ...]
    value: Scalar

    @cached_property
    def scans(self) -> tuple[Scan, ...]:
        """The axes along which the stage reads its own output, outermost first; () if it does not."""
        return scans_of(self.output.name, self.indices, self.value)

    @property
    def loops(self) -> dict[str, Dim]:
        """The extents of the loops over the output, by the names of their variables."""
        return {str(loop_of(i)): size for i, size in zip(self.indices, self.output.shape, strict=True)}

    def __getitem__(self, indices: IndexValue | int | tuple[IndexValue | int, ...]) -> Read:
        """Returns a read of the stage's output, for a later stage."""
        return self.output[indices]

    def __str__(self) -> str:
        return stage_text(self)


@dataclass(frozen=True)
class TensorProgram:
    """Stages in order, from `inputs` to the buffers named in `outputs`. Other stages write locals.

    - `workspaces`: locals in device memory, which a kernel allocates for itself; kept in the order of the stages.
    - `lifted`: workspaces that the caller allocates and passes after the inputs; their initial contents do not matter.
    - `passed`: size variables passed at each call (Relax's symbolic arguments) although axes of the parameters mention
      them. Sizes that no axis mentions are passed in any case (`size_arguments`).
    """

    name: str
    inputs: tuple[Buffer, ...]
    stages: tuple[Stage, ...]
    outputs: tuple[str, ...]
    workspaces: tuple[str, ...] = ()
    lifted: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.workspaces) > 1:
            order = {made.output.name: n for n, made in enumerate(self.stages)}
            ordered = sorted(self.workspaces, key=lambda name: order.get(name, len(order)))
            object.__setattr__(self, "workspaces", tuple(ordered))
        if self.passed:
            mentioned = self._mentioned()
            object.__setattr__(self, "passed", tuple(name for name in self.passed if name in mentioned))

    def _mentioned(self) -> frozenset[str]:
        """Returns the size variables in the axes of the arrays that a call passes."""
        lifted = (made.output for made in self.stages if made.output.name in self.lifted)
        return frozenset(v for buffer in (*self.inputs, *lifted) for size in buffer.shape for v in size.variables)

    @cached_property
    def size_arguments(self) -> tuple[str, ...]:
        """The size variables passed at each call: `passed`, then those that no axis of a parameter mentions."""
        return (*self.passed, *sorted(self.sizes - self._mentioned() - set(self.passed)))

    @cached_property
    def parameters(self) -> tuple[Buffer, ...]:
        """The arrays that a call passes: inputs, then lifted workspaces."""
        return (*self.inputs, *(self.buffers[name] for name in self.lifted))

    @cached_property
    def buffers(self) -> dict[str, Buffer]:
        """All buffers by name: inputs, then outputs of stages."""
        return {buffer.name: buffer for buffer in (*self.inputs, *(stage.output for stage in self.stages))}

    @cached_property
    def sizes(self) -> frozenset[str]:
        """The size variables that the program mentions."""
        names: set[str] = set(self.passed)
        for buffer in self.buffers.values():
            names.update(*(size.variables for size in buffer.shape))
        for made in self.stages:
            for term in walk(made.value):
                names.update(*(dim.variables for dim in dims_of(term)))
        return frozenset(name for name in names if not is_loop(name))

    def validate(self) -> TensorProgram:
        """Returns the program itself if it is well-formed. ShapeError otherwise."""
        written: dict[str, Buffer] = {}
        later = {made.output.name for made in self.stages}
        for buffer in self.inputs:
            self._declare(buffer, written)
        for made in self.stages:
            _check_stage(self.name, made, written, later)
            self._declare(made.output, written)
        for name in self.outputs:
            if name not in later:
                raise ShapeError(f"{self.name}: the output {name} is written by no stage")
        if not self.outputs or len(set(self.outputs)) < len(self.outputs):
            outputs = ", ".join(self.outputs)
            raise ShapeError(f"{self.name}: outputs are ({outputs}); distinct ones, at least one, are needed")
        self._check_workspaces(later)
        return self

    def _check_workspaces(self, later: set[str]) -> None:
        for name in self.workspaces:
            if name not in later or name in self.outputs:
                what = "an output" if name in self.outputs else "written by no stage"
                raise ShapeError(f"{self.name}: the workspace {name} is {what}; accepted: a local that a stage writes")
        for name in self.lifted:
            if name not in self.workspaces:
                known = ", ".join(self.workspaces) or "none"
                raise ShapeError(f"{self.name}: {name} is lifted and no workspace; workspaces: {known}")
        for group, what in ((self.workspaces, "workspaces"), (self.lifted, "lifted"), (self.passed, "passed sizes")):
            if len(set(group)) < len(group):
                raise ShapeError(f"{self.name}: {what} are ({', '.join(group)}); distinct ones are needed")

    def _declare(self, buffer: Buffer, written: dict[str, Buffer]) -> None:
        if buffer.name in written:
            raise ShapeError(f"{self.name}: two buffers are named {buffer.name}")
        for size in buffer.shape:
            if loop_names(size):
                raise ShapeError(f"{self.name}: the shape of {buffer} depends on a loop variable")
        kind(buffer.dtype)  # raises ShapeError for an unknown dtype
        written[buffer.name] = buffer

    def __str__(self) -> str:
        """Returns text that `parse_program` reads back to an equal program, as written under the decorator."""
        return program_text(self)


def stage(output: Buffer, indices: Sequence[Dim] | Dim, value: ScalarLike) -> Stage:
    """Returns the equation `output[indices] = value`. A number takes the output's dtype."""
    at = (indices,) if isinstance(indices, Dim) else tuple(indices)
    return Stage(output, at, scalar(value, output.dtype))


def compute(name: str, shape: Iterable[Dim | int], value: Callable[..., ScalarLike], dtype: str | None = None) -> Stage:
    """Returns the stage that writes `name[i, j, ...] = value(i, j, ...)`.

    The loop variables have the names of the parameters of `value`, or `i0`, `i1`, ... if it takes `*i`. The dtype is
    that of the value; a number or a Dim needs `dtype`.
    """
    sizes = tuple(map(Dim.of, shape))
    parameters = inspect.signature(value).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        indices = axes(len(sizes), next(p.name for p in parameters))
    else:
        indices = tuple(loop(p.name) for p in parameters if p.default is p.empty)
    result = value(*indices)
    if not isinstance(result, Scalar) and dtype is None:
        raise ShapeError(f"{name}: the value is the number {result}; give its dtype")
    term = scalar(result, dtype or "")
    return Stage(Buffer(name, sizes, dtype or term.dtype), indices, term)


def program(
    name: str,
    inputs: Iterable[Buffer],
    *stages: Stage,
    outputs: Sequence[str] | None = None,
    workspaces: Sequence[str] = (),
    passed: Sequence[str] = (),
) -> TensorProgram:
    """Returns the validated program. By default, `outputs` are the buffers that stages write and no other stage
    reads."""
    if outputs is None:
        terms = ((made, term) for made in stages for term in walk(made.value) if isinstance(term, Read))
        read = {term.buffer for made, term in terms if term.buffer != made.output.name}
        outputs = [made.output.name for made in stages if made.output.name not in read]
    made = TensorProgram(name, tuple(inputs), stages, tuple(outputs), tuple(workspaces), passed=tuple(passed))
    return made.validate()


def dims_of(term: Scalar) -> tuple[Dim, ...]:
    """Returns the Dims in `term` itself: indices of a read, extents of a reduction, the value of an `Index`."""
    if isinstance(term, Index):
        return (term.dim,)
    if isinstance(term, Read):
        return tuple(index for index in term.indices if isinstance(index, Dim))
    return tuple(extent for _, extent in term.over) if isinstance(term, Reduce) else ()


def _check_stage(program: str, made: Stage, written: dict[str, Buffer], later: set[str]) -> None:
    """Raises ShapeError unless the equation is well-formed over the buffers `written` so far."""
    where = f"{program}: {made.output.name}"
    names = [loop_of(index) for index in made.indices]
    if len(names) != made.output.rank:
        raise ShapeError(f"{where}: {len(names)} indices write {made.output}; {made.output.rank} are needed")
    if None in names or len(set(names)) < len(names):
        raise ShapeError(f"{where}: the indices written must be distinct loop variables")
    if made.value.dtype != made.output.dtype:
        raise ShapeError(f"{where}: the value is {made.value.dtype}, the buffer {made.output.dtype}; cast it")
    itself = {**written, made.output.name: made.output} if made.output.name not in written else written
    _check_terms(where, made.value, frozenset(filter(None, names)), itself, later)
    _ = made.scans  # raises ShapeError for a read of an element not yet written


def _check_terms(where: str, value: Scalar, outer: frozenset[str], written: dict[str, Buffer], later: set[str]) -> None:
    """Checks every term of `value` with the loop variables `outer` bound."""

    def inside(at: tuple[Scalar, frozenset[str]]) -> list[tuple[Scalar, frozenset[str]]]:
        term, bound = at
        return [(c, bound | term.bound if isinstance(term, Reduce) else bound) for c in reversed(term.children)]

    for term, bound in reached([(value, outer)], inside):
        if isinstance(term, Reduce):
            for var, extent in term.over:
                name = index_text(var)
                if loop_of(var) in bound:
                    raise ShapeError(f"{where}: {term.kind} binds {name}, which is bound already; take another name")
                if loop_names(extent):
                    raise ShapeError(f"{where}: the extent {index_text(extent)} of {name} depends on a loop variable")
            bound = bound | term.bound
        for dim in dims_of(term):
            for name in loop_names(dim) - bound:
                raise ShapeError(f"{where}: the loop variable {index_text(Dim.var(name))} is not bound")
        if isinstance(term, Read):
            _check_read(where, term, written, later)


def _check_read(where: str, read: Read, written: dict[str, Buffer], later: set[str]) -> None:
    """Checks the buffer, the number of indices and the dtype of a read."""
    buffer = written.get(read.buffer)
    if buffer is None:
        known = ", ".join(written) or "none"
        why = "is written later" if read.buffer in later else "is unknown"
        raise ShapeError(f"{where}: the buffer {read.buffer} {why}; known here: {known}")
    if len(read.indices) != buffer.rank:
        raise ShapeError(f"{where}: {len(read.indices)} indices read {buffer}; {buffer.rank} are needed")
    if read.dtype != buffer.dtype:
        raise ShapeError(f"{where}: {read} is read as {read.dtype}; {buffer.name} is {buffer.dtype}")


# --- text, as written under `@rx.tensor_program`; `reader` reads back an equal program ---


def program_text(program: TensorProgram, prefix: str = "rx", called: str | None = None) -> str:
    """Returns the text of `program`.

    - `prefix`: written before names of the language: `prefix.name`; before those in `relax_eg.script`, where the prefix
      is that of the package: `rx.script.name`.
    - `called`: name of the function; by default the program's name, or `program` if that is no identifier.
    """
    if called is None:
        called = program.name if _is_name(program.name) else "program"
    mark = f"@{prefix}.tensor_program" + ("" if called == program.name else f"(name={program.name!r})")
    arrays = [*program.inputs, *(program.buffers[name] for name in program.outputs)]
    parameters = [f"{_name(b.name, program)}: {_declaration(prefix, 'Buffer', b)}" for b in arrays]
    lifted = [
        f"{_name(name, program)}: {_declaration(prefix, 'workspace', program.buffers[name])}" for name in program.lifted
    ]
    first = len(program.inputs)
    parameters[first:first] = lifted
    parameters += [f"{name}: int" for name in program.size_arguments]
    lines = [mark, f"def {_name(called, program)}({', '.join(parameters)}):"]
    written = {*program.outputs, *program.lifted}
    names = _fresh_names(program)
    for made in program.stages:
        name = made.output.name
        if name not in written:
            where = "workspace" if name in program.workspaces else "local"
            lines.append(f"{INDENT}{_name(name, program)} = {_declaration(prefix, where, made.output)}")
        named, value = ([], constant_text(made.value)) if isinstance(made.value, Const) else (
            named_text(made.value, program.sizes, names)
        )  # fmt: skip
        lines += [INDENT + line for line in named]
        lines.append(f"{INDENT}{_target(made, program.sizes)} = {value}")
    return "\n".join(lines)


def stage_text(made: Stage) -> str:
    """Returns the equation of `made`. A constant alone takes the dtype of the buffer."""
    value = constant_text(made.value) if isinstance(made.value, Const) else scalar_text(made.value)
    return f"{_target(made, frozenset())} = {value}"


def _target(made: Stage, sizes: frozenset[str]) -> str:
    at = ", ".join(index_text(index, sizes) for index in made.indices)
    return f"{made.output.name}[{at or '()'}]"


def _fresh_names(program: TensorProgram) -> Iterator[str]:
    """Yields names that are not used in the program."""
    loops = {str(v) for made in program.stages for v in made.indices}
    for made in program.stages:
        loops |= {v for term in walk(made.value) if isinstance(term, Reduce) for v in term.bound}
    taken = {*program.buffers, *program.sizes, *loops, *(name[:-1] for name in loops)}
    return (name for n in itertools.count() if (name := f"t{n}") not in taken)


def _declaration(prefix: str, what: str, buffer: Buffer) -> str:
    dims = " ".join(_word(size) for size in buffer.shape)
    dtype = "" if buffer.dtype == "float32" else f', "{buffer.dtype}"'
    room = ".script" if prefix == "rx" and what != "Buffer" else ""
    return f'{prefix}{room}.{what}("{dims}"{dtype})'


def _word(size: Dim) -> str:
    text = str(size)
    return f"({text})" if " " in text or text.startswith("-") else text


def _name(name: str, program: TensorProgram) -> str:
    if not _is_name(name):
        raise ShapeError(f"{program.name}: `{name}` cannot stand in text; accepted: an identifier")
    return name


def _is_name(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)
