"""Finds the user's source line of a jaxpr equation. No other file reads JAX's source information."""

from __future__ import annotations

import itertools
import linecache
import os
import re
from types import TracebackType
from typing import Any

import jax

from relax_eg.ir.origin import SourceLine
from relax_eg.memo import Memo

_JAX = os.path.dirname(jax.__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_PYTHON = os.path.dirname(os.__file__) + os.sep


# `_lines`: the line of each traceback; equal layers have equal tracebacks. `_files`: the file of each line.
_MOST_LINES = 1 << 14  # limit: lines kept; enough for a program of that many equations, each on its own line
_lines = Memo[Any, SourceLine | None](_MOST_LINES)
_files = Memo[SourceLine, str](_MOST_LINES)


def line_of(eqn: Any) -> SourceLine | None:
    """The user's line of an equation, or None if JAX does not know it."""
    try:
        traceback = eqn.source_info.traceback
        if traceback not in _lines:
            _lines[traceback] = _line(eqn.source_info)
        return _lines.get(traceback)
    except Exception:  # source lines only inform the reader; a missing one must not fail the trace
        return None


def _line(source_info: Any) -> SourceLine | None:
    from jax._src import source_info_util

    # The frame accessors have changed their arguments between versions; the summary's text has not.
    found = re.match(r"(.+?):(\d+)(?::\d+)? \(", source_info_util.summarize(source_info))
    if found is None or found[1].startswith(_OURS):  # there is no user frame: the traced function itself is JAX's
        return None
    line = SourceLine(os.path.basename(found[1]), int(found[2]))
    # A line does not tell which of two files with the same name it means, so it then has no file.
    _files[line] = found[1] if _files.get(line, found[1]) == found[1] else ""
    return line


def text_of_line(line: SourceLine) -> str:
    """The source text of a line that `line_of` returned in this process; "" if it is not available."""
    path = _files.get(line, "")
    return linecache.getline(path, line.number).strip() if path and line.number is not None else ""


def is_users(path: str) -> bool:
    """Whether a file belongs neither to JAX nor to this package, nor to Python itself, in whose `contextlib` decorated
    functions of JAX run."""
    own = path.startswith(_PYTHON) and not path.startswith(os.path.join(_PYTHON, "site-packages"))
    return not (own or path.startswith((_JAX, _OURS, "<frozen")))


def is_jax_function(jaxpr: Any) -> bool:
    """Whether a nested jaxpr is one of JAX's own functions, such as `jnp.where`. JAX traces these once and caches them,
    so the lines inside are those of the first caller."""
    text = str(getattr(getattr(jaxpr, "debug_info", None), "func_src_info", "") or "")
    return f" at {_JAX}" in text


def is_raised_by_jax(error: BaseException) -> bool:
    """Whether JAX, and not the user's own code, raised an exception that leaves the user's function."""
    if type(error).__module__.partition(".")[0] in ("jax", "jaxlib"):
        return True
    # Python or numpy was given a symbolic size. Only traces of JAX have symbolic sizes.
    if is_about_a_symbolic_size(error):
        return True
    # The user's code names an attribute that a module or an array does not have; JAX's `__getattr__` says so.
    if isinstance(error, AttributeError):
        return False
    # JAX removes its own frames from tracebacks and adds a note about that.
    if any("JAX has removed its internal frames" in note for note in getattr(error, "__notes__", ())):
        return True
    frames = _frames(error.__traceback__)
    return type(error.__cause__).__name__ == "UnfilteredStackTrace" or (bool(frames) and frames[-1][0].startswith(_JAX))


def is_about_a_symbolic_size(error: BaseException) -> bool:
    """Whether Python, numpy or JAX needed a number where it was given a symbolic size."""
    return isinstance(error, (TypeError, AttributeError, NotImplementedError, ValueError)) and (
        re.search(r"_DimExpr|non-integer powers|expected a sequence of integers or a single integer", str(error))
        is not None
    )


def is_users_own(error: BaseException) -> bool:
    """Whether code that is neither JAX's nor this package's raised an exception."""
    frames = _frames(error.__traceback__)
    return bool(frames) and is_users(frames[-1][0])


def user_line(error: BaseException) -> tuple[str, int] | None:
    """File and line of the innermost user frame in the traceback of `error`, or None if there is none."""
    frames = [f for f in _frames(error.__traceback__) if is_users(f[0]) and not f[0].startswith("<")]
    return frames[-1][:2] if frames else None


def called_function(error: BaseException) -> str | None:
    """The name of the function of JAX that the innermost user frame in the traceback of `error` called. None if the
    error was raised elsewhere, or by an operator."""
    inner = list(itertools.takewhile(lambda f: not is_users(f[0]), reversed(_frames(error.__traceback__))))
    names = [name for file, _, name in reversed(inner) if file.startswith(_JAX)]
    return names[0] if names and not names[0].startswith("__") else None


def _frames(traceback: TracebackType | None) -> list[tuple[str, int, str]]:
    """File, line and function of each frame, the innermost last."""
    found: list[tuple[str, int, str]] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        found.append((code.co_filename, traceback.tb_lineno, code.co_name))
        traceback = traceback.tb_next
    return found
