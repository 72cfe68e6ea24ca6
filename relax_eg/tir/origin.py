"""Where the text of a tensor program stands, for errors that show the line."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any

from relax_eg.errors import TensorProgramError


def text_of(function: Callable[..., Any]) -> tuple[str, str, int, int]:
    """A function's text with its decorators, the file and line where it begins, and how many columns were taken off its
    lines. OSError or TypeError where its text is not at hand."""
    lines, first = inspect.getsourcelines(function)
    text = "".join(lines)
    plain = textwrap.dedent(text)
    indent = len(text) - len(text.lstrip()) - (len(plain) - len(plain.lstrip()))
    return plain, inspect.getsourcefile(function) or "", max(first, 1), indent


class TextOrigin:
    """Text whose first line is line `first` of `file`; `indent` columns were taken off its lines."""

    def __init__(self, text: str, file: str = "", first: int = 1, indent: int = 0) -> None:
        self.lines = re.split(r"\r\n|\r|\n", text)
        self.file, self.first, self.indent = file, first, indent
        self.name = "the tensor program"

    def error(self, at: Any, problem: str, expected: str) -> TensorProgramError:
        """The error that the syntax node `at` is wrong: the program, file, line and column, the text, a caret."""
        number, column = int(at.lineno), int(at.col_offset)
        line = self.lines[number - 1] if 0 < number <= len(self.lines) else ""
        before = len(line.encode("utf-8", "surrogatepass")[:column].decode(errors="replace"))
        shown = line.rstrip()
        start = len(shown) - len(shown.lstrip())
        where = f"{self.file or 'line '}{':' if self.file else ''}{self.first + number - 1}:{before + self.indent + 1}"
        caret = " " * max(0, before - start)
        return TensorProgramError(
            f"{self.name} ({where}): {problem}\n  {shown[start:]}\n  {caret}^\n  accepted: {expected}"
        )

    def refused(self, at: Any, error: Exception, expected: str) -> TensorProgramError:
        """`error`, raised for what stands at `at`, with the place; itself where it tells one already."""
        if isinstance(error, TensorProgramError):
            return error
        first, *rest = str(error).split("\n")
        accepted = [line.strip()[len("accepted: ") :] for line in rest if line.strip().startswith("accepted: ")]
        return self.error(at, first, accepted[0] if accepted else expected)
