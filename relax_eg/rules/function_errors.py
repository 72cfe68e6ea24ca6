"""Error messages about exceptions that the function of a rule, or a file of rules, raised, with hints."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from relax_eg.ir.expr import Expr
from relax_eg.ops import api

_ARITHMETIC = "variables take + - * / @ ** < <= > >="
_EQUALITY = "== and != tell whether two values are the same one; rx.op.equal and rx.op.not_equal compare elements"


def raised_message(error: Exception, function: Callable[..., Any]) -> str:
    """The message `its function raised ...`, with the line of `function` that raised and a hint about accepted code."""
    if isinstance(error, AttributeError) and error.obj is api and error.name:
        text, hint = f"rx.op has no `{error.name}`", _near(error.name)
    else:
        first = (str(error).splitlines() or [""])[0]
        text, hint = f"its function raised {type(error).__name__}: {first}", _accepted(error)
    return "\n  ".join(x for x in (text + _place(error, function), hint) if x)


def load_error_message(path: Path, error: Exception) -> str:
    """The message about an error that a Python file raised while it was loaded, with the last line that was reached."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).name == path.name]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{path} cannot be loaded: {f'line {line}: ' if line else ''}{type(error).__name__}: {text}"


def _place(error: Exception, function: Callable[..., Any]) -> str:
    """The last line reached in the file of `function`, as text; empty if it cannot be read."""
    code = getattr(function, "__code__", None)
    own = [f for f in traceback.extract_tb(error.__traceback__) if code is not None and f.filename == code.co_filename]
    return f", at line {own[-1].lineno}: {own[-1].line}" if own and own[-1].line else ""


def _near(name: str) -> str:
    known = [n for n in dir(api) if not n.startswith("_")]
    near = [f"rx.op.{n}" for n in get_close_matches(name, known, 3) or [n for n in known if n in name.split("_")]]
    written = "what jax.numpy composes of others (var, logsumexp, ...) is written out"
    return f"hint: did you mean {' or '.join(near)}? {written}" if near else f"hint: {written}"


def _accepted(error: Exception) -> str:
    if isinstance(error, AttributeError) and isinstance(error.obj, Expr):
        return f"hint: {_ARITHMETIC}, .T, .sum(), .reshape(), .astype(), subscripts; all else is in rx.op"
    if isinstance(error, AttributeError) and isinstance(error.obj, bool):
        return f"hint: {_EQUALITY}"
    if isinstance(error, TypeError) and "is not known while the program is being built" in str(error):
        return "hint: a choice between values is rx.op.where; what has to hold for the rule is said by when="
    if isinstance(error, TypeError) and "Expr" in str(error):
        return f"hint: {_ARITHMETIC}; functions of them are those of rx.op, not of jax.numpy, numpy or math"
    return ""
