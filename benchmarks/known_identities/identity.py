"""The record of an identity, and how the tables of this folder write it.

A row is `(name, specs, dearer side, cheaper side[, facts[, numerics]])`. Specs are separated by commas; size variables
have the sizes of `SIZES`, at which the work of a program outweighs the dispatch of its call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from relax_eg.rules import Numerics

SIZES = {"n": 512, "m": 256, "p": 1024, "k": 16, "b": 8, "l": 2**20}
SMALL_SIZES = {"n": 6, "m": 4, "p": 8, "k": 3, "b": 2, "l": 24}  # for numerical checks

Function = Callable[..., Any]


@dataclass(frozen=True)
class Identity:
    """Two programs that compute the same value.

    - `name`: unique among all identities.
    - `family`: the table that it is in.
    - `dearer`, `cheaper`: JAX functions of the same arguments; the first is expected to have the higher price.
    - `specs`: one spec per argument.
    - `facts`: facts about arguments under which the identity holds, by argument name.
    - `numerics`: the loosest class of rules with which the dearer side is optimized.
    """

    name: str
    family: str
    dearer: Function
    cheaper: Function
    specs: tuple[str, ...]
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    numerics: Numerics = "reassociate"

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the arguments, which the dearer side gives them."""
        return tuple(inspect.signature(self.dearer).parameters)

    @property
    def options(self) -> dict[str, Any]:
        """The options of `optimize` for its sides: the sizes that its specs name, its facts, and its numerics class."""
        words = {word for spec in self.specs for word in spec.split()}
        at = {size: value for size, value in SIZES.items() if size in words}
        facts = {self.arguments.index(name): text for name, text in self.facts.items()}
        return {"at": at, "facts": facts, "numerics": self.numerics}


def table(family: str, *rows: tuple[Any, ...], numerics: Numerics = "reassociate") -> tuple[Identity, ...]:
    """Returns the identities of a family. `numerics`: the class of rows that name none."""
    made: list[Identity] = []
    for name, specs, dearer, cheaper, *more in rows:
        facts: Mapping[str, str] = more[0] if more else {}
        arguments = tuple(s.strip() for s in specs.split(","))
        made.append(Identity(name, family, dearer, cheaper, arguments, facts, more[1] if len(more) > 1 else numerics))
    return tuple(made)
