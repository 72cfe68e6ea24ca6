"""Errors about arguments of the user's function that have the name of an option of this package's functions."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from relax_eg.errors import RelaxEgError

P = ParamSpec("P")
R = TypeVar("R")


def explain_clashes(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function with options. If an argument of the user's program has the name of an option, errors that
    mention this name also say how to pass the spec of the argument. If a keyword is neither an argument nor an option,
    the error names the option that is spelt alike."""
    own = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = {p.name for p in own if p.kind is p.KEYWORD_ONLY}
    at = next((i for i, p in enumerate(own) if p.name in ("program", "fn")), 0)

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except RelaxEgError as error:
            for name in _parameters(args[at]) if len(args) > at else ():
                if name in kwargs and name in options and re.search(rf"\b{name}\b", str(error)):
                    hint = f"`{name}` is an option of {function.__name__}(): an argument of that name has its spec"
                    error.args = (f"{error}\n  {hint} at its position, or another name: lambda x: f({name}=x)",)
            unknown = re.search(r"got an unexpected keyword argument '(\w+)'", str(error))
            if unknown is not None and (near := difflib.get_close_matches(unknown[1], options, 1)):
                error.args = (f"{error}; did you mean the option `{near[0]}=` of {function.__name__}()?",)
            raise

    return run


def _parameters(program: Any) -> list[str]:
    try:
        return list(inspect.signature(program).parameters)
    except (ValueError, TypeError):
        return []
