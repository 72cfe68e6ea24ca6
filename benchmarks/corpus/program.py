"""A corpus program: a JAX function as people write it, the specs of its arguments, and the options of `optimize`.

@program("n d", "d", facts={"w": "positive"})
def weighted(x, w):
    \"\"\"One line that says what it is.\"\"\"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from textwrap import dedent, indent
from typing import Any

import relax_eg as rx

Function = Callable[..., Any]
_made: dict[str, Program] = {}


@dataclass(frozen=True)
class Program:
    """A program of the corpus.

    - `name`, `subject`, `doc`: its name, its file, and one line that describes it.
    - `made_of`: a function or a module.
    - `specs`, `keywords`: the specs of a function's arguments.
    - `options`: options of `optimize` (`facts`, `weights`, `numerics`, `assume`).
    """

    name: str
    subject: str
    doc: str
    made_of: Function | rx.types.Module
    specs: tuple[Any, ...]
    keywords: Mapping[str, Any]
    options: Mapping[str, Any]

    def optimized(self, **options: Any) -> Any:
        """Returns the result of `rx.optimize` with the program's options and `options`."""
        with rx.debug.options(cache=False):
            return rx.optimize(self.made_of, *self.specs, **{**self.options, **options}, **self.keywords)


def program(*specs: Any, args: Mapping[str, Any] | None = None, **options: Any) -> Callable[[Function], Function]:
    """Returns a decorator that adds a function to the corpus; `args`: specs of arguments by name. ValueError if there
    is a program of that name, or if the function has no docstring."""

    def add(fn: Function) -> Function:
        subject, doc = fn.__module__.rpartition(".")[2], " ".join((fn.__doc__ or "").split()).removesuffix(".")
        _add(Program(fn.__name__, subject, doc, fn, specs, dict(args or {}), options))
        return fn

    return add


def module(name: str, doc: str, text: str, **options: Any) -> None:
    """Puts a Relax module, given as the text of its entry, into the corpus."""
    made = rx.parse(f"@I.ir_module\nclass Module:\n{indent(dedent(text), '    ')}")
    _add(Program(name, "exported", doc, made, (), {}, options))


def _add(made: Program) -> None:
    if made.name in _made:
        raise ValueError(f"{made.name} is in the corpus twice: {_made[made.name].subject} and {made.subject}")
    if not made.doc:
        raise ValueError(f"{made.name} has no docstring: one line that says what it is")
    _made[made.name] = made


def programs() -> dict[str, Program]:
    """Returns the programs in the order in which they were added."""
    return dict(_made)
