"""Specs by name, for arguments of the user's function that have the name of an option of this package's functions."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from relax_eg.argument_checks import short_repr
from relax_eg.errors import RelaxEgError, SpecError

P = ParamSpec("P")
R = TypeVar("R")


def specs_by_name(specs: Any, kwspecs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the specs in the mapping `specs` and in the keywords `kwspecs`, by name. SpecError for a name in both,
    and if `specs` is not a mapping with string keys."""
    if specs is None:
        return dict(kwspecs)
    if not isinstance(specs, Mapping) or not all(isinstance(k, str) for k in specs):  # type: ignore[reportUnknownVariableType]
        raise SpecError(f"specs={short_repr(specs)}: specs by the names of arguments, {{'cost': 'n 4'}}, are accepted")
    named: dict[str, Any] = dict(specs)  # type: ignore[reportUnknownArgumentType]
    for name in named.keys() & kwspecs.keys():
        raise SpecError(f"argument `{name}` has a spec in specs={{...}} and as a keyword\n  accepted: one of them")
    return named | dict(kwspecs)


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
                if name in kwargs and name in options and name not in (kwargs.get("specs") or ()):  # type: ignore[operator]
                    hint = f"`{name}` is an option of {function.__name__}(): specs={{{name!r}: ...}} gives the spec of "
                    if re.search(rf"\b{name}\b", str(error)):
                        error.args = (f"{error}\n  {hint}the argument of that name",)
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
