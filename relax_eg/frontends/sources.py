"""Where an equation of a jaxpr comes from in the user's files. The only place that reads JAX's source information."""

from __future__ import annotations

import linecache
import os
import re
from types import TracebackType
from typing import Any

import jax

_JAX = os.path.dirname(jax.__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep


# The lines of tracebacks, of which equal layers have equal ones; and the files that the lines are in.
_lines: dict[Any, str | None] = {}
_files: dict[str, str] = {}
_MOST_LINES = 1 << 14


def line_of(eqn: Any) -> str | None:
    """The user's line of an equation, such as "model.py:31", or None where JAX does not know."""
    try:
        traceback = eqn.source_info.traceback
        if traceback not in _lines:
            if len(_lines) >= _MOST_LINES:
                _lines.clear()
                _files.clear()
            _lines[traceback] = _line(eqn.source_info)
        return _lines[traceback]
    except Exception:  # sources are a service to the reader, never a reason to fail
        return None


def _line(source_info: Any) -> str | None:
    from jax._src import source_info_util

    # The frame accessors have changed their arguments between versions; the summary's text has not.
    found = re.match(r"(.+?):(\d+)(?::\d+)? \(", source_info_util.summarize(source_info))
    if found is None or found[1].startswith(_OURS):  # the function itself is one of JAX's
        return None
    line = f"{os.path.basename(found[1])}:{found[2]}"
    # Of two files of one name it cannot be told which is meant.
    _files[line] = found[1] if _files.get(line, found[1]) == found[1] else ""
    return line


def text_of(line: str) -> str:
    """What stands at a line that `line_of` gave in this process; "" where that cannot be told."""
    path = _files.get(line, "")
    return linecache.getline(path, int(line.rpartition(":")[2])).strip() if path else ""


def is_users(path: str) -> bool:
    """Whether a file is neither JAX's nor ours, nor Python's own machinery."""
    return not path.startswith((_JAX, _OURS, "<frozen"))


def is_jax_function(jaxpr: Any) -> bool:
    """Whether a nested jaxpr is a function of JAX's own, such as `jnp.where`. Those are traced once and cached, so the
    lines inside are those of whoever called first."""
    text = str(getattr(getattr(jaxpr, "debug_info", None), "func_src_info", "") or "")
    return f" at {_JAX}" in text


def is_raised_by_jax(error: BaseException) -> bool:
    """Whether an exception that leaves the user's function comes out of JAX rather than out of the user's own code."""
    if type(error).__module__.partition(".")[0] in ("jax", "jaxlib"):
        return True
    # A function of Python or numpy that was given a symbolic size: only JAX's traces have those.
    if isinstance(error, TypeError) and "_DimExpr" in str(error):
        return True
    # JAX takes its own frames out of tracebacks and leaves a note that it did.
    if any("JAX has removed its internal frames" in note for note in getattr(error, "__notes__", ())):
        return True
    frames = _frames(error.__traceback__)
    return type(error.__cause__).__name__ == "UnfilteredStackTrace" or (bool(frames) and frames[-1][0].startswith(_JAX))


def user_line(error: BaseException) -> tuple[str, int] | None:
    """File and line of the innermost frame of the user's code in the traceback of `error`."""
    frames = [f for f in _frames(error.__traceback__) if is_users(f[0]) and not f[0].startswith("<")]
    return frames[-1] if frames else None


def _frames(traceback: TracebackType | None) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    while traceback is not None:
        found.append((traceback.tb_frame.f_code.co_filename, traceback.tb_lineno))
        traceback = traceback.tb_next
    return found
