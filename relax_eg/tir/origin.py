"""Source position of a tensor program's text, for errors that show the line."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any

from relax_eg.errors import TensorProgramError


def text_of(function: Callable[..., Any]) -> tuple[str, str, int, int]:
    """Returns a function's text with its decorators, its file and first line, and the number of columns removed from
    its lines.

    OSError or TypeError if the text is not available.
    """
    lines, first = inspect.getsourcelines(function)
    text = "".join(lines)
    plain = textwrap.dedent(text)
    indent = len(text) - len(text.lstrip()) - (len(plain) - len(plain.lstrip()))
    return plain, inspect.getsourcefile(function) or "", max(first, 1), indent


class TextOrigin:
    """A text whose first line is line `first` of `file`. `indent`: columns removed from its lines."""

    def __init__(self, text: str, file: str = "", first: int = 1, indent: int = 0) -> None:
        self.lines = re.split(r"\r\n|\r|\n", text)
        self.file, self.first, self.indent = file, first, indent
        self.name = "the tensor program"

    def error(self, at: Any, problem: str, expected: str) -> TensorProgramError:
        """Returns an error at the syntax node `at`: the program, file, line and column, the text, a caret."""
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
        """Returns `error` with the position of `at`. An error that has a position is returned unchanged."""
        if isinstance(error, TensorProgramError):
            return error
        first, *rest = str(error).split("\n")
        accepted = [line.strip()[len("accepted: ") :] for line in rest if line.strip().startswith("accepted: ")]
        return self.error(at, first, accepted[0] if accepted else expected)
