"""Prints tensor programs as written under `@rx.tensor_program`; `reader` reads back an equal program."""

from __future__ import annotations

import itertools
import keyword
from collections.abc import Iterator

from relax_eg.errors import ShapeError
from relax_eg.shapes import Dim
from relax_eg.tir.expr import Const, Reduce, walk
from relax_eg.tir.program import Buffer, Stage, TensorProgram
from relax_eg.tir.text import constant_text, index_text, named_text, scalar_text

INDENT = "    "


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
