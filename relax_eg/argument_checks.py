"""Argument checks of public functions, for callers without a type checker.

The kind of each argument is checked before the function does anything. The content of an argument is checked by the
code that uses it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from relax_eg.errors import BoundsError, OptionError, RelaxEgError

P = ParamSpec("P")
R = TypeVar("R")

# Options of earlier releases, and what says the same now.
REPLACED = {
    **{name: f"dynamic=rx.Dynamic({name}=...)" for name in ("background", "capacities", "executables", "trust")},
    "assume": "bounds=",
    "cost": "target=",
    "settle": "measure=",
}
_REPR_CHARACTERS = 200  # limit: characters of a value in an error message


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of argument.

    - `fits(value)`: whether a value is of this kind.
    - `accepted`: the description of the kind in errors.
    """

    fits: Callable[[Any], bool]
    accepted: str

    def __or__(self, other: Kind) -> Kind:
        return Kind(lambda x: self.fits(x) or other.fits(x), self.accepted)


def of_types(accepted: str, *types: type) -> Kind:
    """Returns the kind of the values of some types. A `bool` is no `int` here: `types` must contain `bool` itself."""
    return Kind(lambda x: isinstance(x, types) and (type(x) is not bool or bool in types), accepted)


def one_of(*words: str) -> Kind:
    """Returns the kind of the texts `words`."""
    accepted = " or ".join(map(repr, words)) if len(words) == 2 else f"one of {', '.join(words)}"
    return Kind(lambda x: isinstance(x, str) and x in words, accepted)


def sequence_of(accepted: str, each: Kind) -> Kind:
    """Returns the kind of the lists and tuples of values of a kind."""
    return Kind(lambda x: isinstance(x, (list, tuple)) and all(map(each.fits, x)), accepted)  # type: ignore[reportUnknownArgumentType]


NONE = Kind(lambda x: x is None, "None")
TEXT = of_types("text", str)
FLAG = of_types("True or False", bool)
CALLABLE = Kind(lambda x: x is None or callable(x), "a function, or None")
PATH = of_types("a path", str, Path)
BOUNDS = Kind(
    lambda x: x is None or all(map(_is_bound, (x,) if isinstance(x, Mapping) or not _is_plain(x) else x)),
    "{'n': (1, 4096)}, a statement such as 'n % 8 == 0', or a list of these,",
)
STATEMENTS = Kind(
    lambda x: isinstance(x, str) or (_is_plain(x) and all(isinstance(s, str) for s in x)),
    "a statement, 's % 8 == 0', or a list of such,",
)


def _is_plain(x: Any) -> bool:
    """Whether `x` is an iterable other than bytes, mappings and classes, and can be iterated more than once."""
    return isinstance(x, Iterable) and not isinstance(x, (bytes, Mapping, type)) and not hasattr(x, "__next__")


def _is_bound(x: Any) -> bool:
    return isinstance(x, str) or (isinstance(x, Mapping) and all(isinstance(k, str) for k in x))  # type: ignore[reportUnknownVariableType]


def integer(accepted: str, least: int = 1) -> Kind:
    """Returns the kind of the integers from `least` on."""
    return Kind(lambda x: isinstance(x, int) and not isinstance(x, bool) and x >= least, accepted)


def within(what: str, least: int, most: int) -> Kind:
    """Returns the kind of the integers from `least` to `most`. `what` they are."""
    accepted = f"{what}, {least} to {most},"
    return Kind(lambda x: isinstance(x, int) and not isinstance(x, bool) and least <= x <= most, accepted)


def accepts(error: type[Exception] = OptionError, /, **kinds: Kind) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Returns a decorator whose functions raise `error` if an argument of a call is not of its kind. Defaults are not
    checked. An error about a keyword that was an option in an earlier release also says what replaces it."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = list(inspect.signature(function).parameters.values())
        names = {p.name for p in parameters}
        old = {name for name, now in REPLACED.items() if now.partition("=")[0] in names and name not in names}
        positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name, value in (*zip(positional, args, strict=False), *kwargs.items()):
                kind = kinds.get(name)
                if kind is not None and not kind.fits(value):
                    raise error(f"{name}={short_repr(value)}: {kind.accepted} is accepted")
            try:
                return function(*args, **kwargs)
            except (RelaxEgError, TypeError) as e:
                for name in kwargs.keys() & old:
                    if f"keyword argument '{name}'" in str(e):
                        e.args = (f"{e}\n  `{name}=` is `{REPLACED[name]}` now",)
                raise

        return checked

    return decorate


def need_sizes(function: str, option: str, given: Iterable[Any], known: Sequence[str]) -> None:
    """BoundsError if one of the names `given` by an option is not among the sizes `known` of a function. `option`: its
    name if it is a mapping, else its text, `bounds='s < 9'`."""
    for v in given:
        if v not in known:
            has = f"its sizes are {', '.join(known)}" if known else "it has no symbolic sizes"
            text = option if "=" in option else f"{option}={{{short_repr(v)}: ...}}"
            raise BoundsError(f"{function}(): no size is named `{v}` ({text}); {has}")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Returns `; did you mean ...?` with up to three names that are similar to `name`; empty if there are none."""
    import difflib

    found = difflib.get_close_matches(name, sorted(set(names)))
    return f"; did you mean {' or '.join(f'`{n}`' for n in found)}?" if found else ""


def short_repr(value: Any) -> str:
    """Returns the text of any value for an error message, at most `_SHOWN` characters."""
    try:
        text = repr(value)
    except Exception:  # `repr` fails for integers of 5,000 digits, and may fail for a user's class
        return f"<{type(value).__name__}>"
    return text if len(text) <= _REPR_CHARACTERS else f"{text[: _REPR_CHARACTERS - 3]}..."
