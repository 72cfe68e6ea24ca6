"""A corpus program: a JAX function as people write it, the specs of its arguments, and the options it is optimized with.

    @program("n d", "d", facts={"w": "positive"})
    def weighted(x, w):
        \"\"\"One line that says what it is.\"\"\"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import relax_eg as rx

Function = Callable[..., Any]
_made: dict[str, Program] = {}


@dataclass(frozen=True)
class Program:
    """`fn`: the function, whose docstring is one line; `specs`, `keywords`: of its arguments; `options`: of `optimize`
    (`at`, `facts`, `weights`, `numerics`, `assume`)."""

    subject: str
    fn: Function
    specs: tuple[Any, ...]
    keywords: Mapping[str, Any]
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.fn.__name__

    @property
    def doc(self) -> str:
        return " ".join((self.fn.__doc__ or "").split())

    def optimized(self, **options: Any) -> Any:
        """What `rx.optimize` returns; `options` besides its own."""
        return rx.optimize(self.fn, *self.specs, cache=False, **{**self.options, **options}, **self.keywords)


def program(*specs: Any, args: Mapping[str, Any] | None = None, **options: Any) -> Callable[[Function], Function]:
    """Puts the decorated function into the corpus; `args`: specs of arguments by name. ValueError where a program of
    that name is there, or it has no docstring."""

    def add(fn: Function) -> Function:
        subject = fn.__module__.rpartition(".")[2]
        made = Program(subject, fn, specs, dict(args or {}), options)
        if made.name in _made:
            raise ValueError(f"{made.name} is in the corpus twice: {_made[made.name].subject} and {subject}")
        if not made.doc:
            raise ValueError(f"{made.name} has no docstring: one line that says what it is")
        _made[made.name] = made
        return fn

    return add


def programs() -> dict[str, Program]:
    """All that were added, in the order in which they were."""
    return dict(_made)
