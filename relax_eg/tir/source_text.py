"""The text of a program, for errors that show the position."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any, ClassVar

from relax_eg.errors import RelaxEgError, TensorProgramError, parts_of_error

WINDOW = 110  # limit: characters of a long line shown in an error


def text_of_function(function: Callable[..., Any]) -> tuple[str, str, int, int]:
    """Returns a function's text with its decorators, its file and first line, and the number of columns removed from
    its lines.

    OSError or TypeError if the text is not available.
    """
    lines, first = inspect.getsourcelines(function)
    text = "".join(lines)
    plain = textwrap.dedent(text)
    indent = len(text) - len(text.lstrip()) - (len(plain) - len(plain.lstrip()))
    return plain, inspect.getsourcefile(function) or "", max(first, 1), indent


class SourceText:
    """The text of a program, with its place in a file.

    - `kind`: the class of the errors that `error` returns.
    - `positioned`: the class of errors that already name a position.
    - `file`, `first`: the file, and the number of the text's first line in it.
    - `indent`: number of columns removed from the lines.
    - `name`: what the text holds, for the errors.
    """

    kind: ClassVar[type[RelaxEgError]] = TensorProgramError
    positioned: ClassVar[type[RelaxEgError]] = TensorProgramError

    def __init__(self, text: str, file: str = "", first: int = 1, indent: int = 0) -> None:
        self.text = text
        self.lines = re.split(r"\r\n|\r|\n", text)
        self.file, self.first, self.indent = file, first, indent
        self.name = "the tensor program"

    def error(self, at: Any, problem: str, expected: str) -> RelaxEgError:
        """Returns an error at the syntax node `at`: the line and column, the text, a caret, and what is accepted."""
        before = self.line_at(at.lineno).encode("utf-8", "surrogatepass")[: at.col_offset]
        return self.error_at(at.lineno, len(before.decode("utf-8", "replace")), problem, expected)

    def error_at(self, line: int, column: int, problem: str, expected: str) -> RelaxEgError:
        """Returns an error at a line of the text, from 1, and a column, from 0."""
        where = f"{self.file}:" if self.file else "line "
        place = f"{where}{self.first + line - 1}:{column + self.indent + 1}"
        return self.kind(f"{self.name} ({place}): {problem}\n{self.pointed_at(line, column)}\n  accepted: {expected}")

    def at_position(self, at: Any, error: Exception, expected: str) -> RelaxEgError:
        """Returns `error` with the position of `at`. An error that has a position is returned unchanged."""
        if isinstance(error, self.positioned):
            return error
        problem, accepted = parts_of_error(error)
        return self.error(at, problem, accepted or expected)

    def line_at(self, number: int) -> str:
        """Returns a line of the text, from 1; empty if there is none."""
        return self.lines[number - 1] if 0 < number <= len(self.lines) else ""

    def pointed_at(self, line: int, column: int) -> str:
        """Returns the text of a line, and below it a caret at the column."""
        text = self.line_at(line).replace("\t", " ").rstrip()
        start = len(text) - len(text.lstrip())
        if len(text) - start > WINDOW:
            start = max(start, min(column - WINDOW // 2, len(text) - WINDOW))
        return f"  {text[start : start + WINDOW]}\n  {' ' * max(0, column - start)}^"
