"""`@tensor_program`: tensor programs written as Python functions, which are read but never run."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any, overload

from relax_eg.errors import TensorProgramError
from relax_eg.tir.program import TensorProgram
from relax_eg.tir.reader import read_program
from relax_eg.tir.source_text import SourceText, text_of_function


@overload
def tensor_program(function: Callable[..., Any], /) -> TensorProgram: ...
@overload
def tensor_program(*, name: str) -> Callable[[Callable[..., Any]], TensorProgram]: ...
def tensor_program(
    function: Callable[..., Any] | None = None, /, *, name: str = ""
) -> TensorProgram | Callable[[Callable[..., Any]], TensorProgram]:
    """Returns the tensor program that a function's text describes.

    The function is not run, so its loop variables need not exist.

        @rx.tensor_program
        def mm(X: rx.Buffer("n k"), W: rx.Buffer("k m"), Y: rx.Buffer("n m")):
            Y[i, j] = rx.sum(X[i, l] * W[l, j], over=(l, k))

    Parameters are buffers, sizes (`n: int`) and, last, the outputs: buffers that are written. `rx.script.local(shape)`
    and `rx.script.workspace(shape)` declare temporaries, the latter in device memory. `name`: the program's name, by
    default the function's. TensorProgramError, with the line, for text that cannot be read, for reads out of range
    at some sizes, and for outputs not written exactly once.
    """
    del name  # read from the text
    if function is None:
        return _read
    if not inspect.isfunction(function):
        kind = type(function).__name__
        raise TensorProgramError(f"tensor_program: got a {kind}; accepted: a function, whose text is read")
    return _read(function)


def _read(function: Callable[..., Any]) -> TensorProgram:
    name = getattr(function, "__qualname__", str(function))
    try:
        text = text_of_function(function)
    except (OSError, TypeError):
        raise TensorProgramError(
            f"{name}: its text is not at hand; accepted: a function in a file (or `parse_program(text)`)"
        ) from None
    source = SourceText(*text)
    definition = ast.parse(text[0]).body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise TensorProgramError(f"{name}: a lambda; accepted: a function of its own, def name(...):")
    source.name = definition.name
    return read_program(source, definition)


def _declaration_function(what: str) -> Callable[..., Any]:
    def declared(shape: str | tuple[Any, ...], dtype: str = "float32") -> Any:
        return f"{what}({shape!r}, {dtype!r})"

    declared.__name__ = declared.__qualname__ = what
    return declared


# Annotations are evaluated when the function is defined, before its text is read; these functions serve that
# evaluation.
Buffer = _declaration_function("Buffer")
Buffer.__doc__ = 'A buffer parameter of a tensor program: `X: rx.Buffer("n 128", "float32")`.'
workspace = _declaration_function("workspace")
workspace.__doc__ = (
    'A temporary in device memory: `P = rx.script.workspace("8 n 4096")`; as a parameter, one that is passed.'
)
local = _declaration_function("local")
local.__doc__ = 'A temporary of a tensor program: `T = rx.script.local("n 128", "float32")`.'
