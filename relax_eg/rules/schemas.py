"""Rules that no pattern over values can state: about functions of the module, and about terms of any length.

A schema looks at one node (a loop, a call, a sum) and proposes an equal expression, for which it may make new
functions. What it proposes stands in the e-graph beside the node as written, and extraction decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from relax_eg.errors import RuleError
from relax_eg.ir.expr import Expr
from relax_eg.ir.module import Function
from relax_eg.shapes import Dim

if TYPE_CHECKING:
    from relax_eg.rules.rule import Numerics


# In place of an operator: a step by which extraction puts kernels together. What it proposes for a node is what is
# checked; the e-graph is never asked, for kernels are not enumerated there.
KERNEL = "kernel"


class Functions(Protocol):
    """What a schema knows of the program. What it proposes is equal to the node whatever sizes, readers and so on it is
    told: these only choose. The forms of functions are as the program has them, and it is right where they are."""

    def readers(self, e: Expr) -> Sequence[Expr]:
        """The nodes of the block as written that read `e`, once for each operand that is `e`."""
        ...

    def extent(self, size: Dim) -> int:
        """About how much a size is, at the sizes that the program is to be best at."""
        ...

    def most(self, size: Dim) -> int:
        """About how much a size is at the largest sizes that the program is to be good at."""
        ...

    @property
    def large(self) -> float:
        """From how many bytes on a value in between is worth avoiding: 0 where a byte in memory has a price, infinity
        where none is that large for the device."""
        ...

    def best(self, name: str, outside: bool = False) -> Function | None:
        """The function in its best form if it is one pure block, else None. With `outside`: best when what follows from
        the parameters that are the same at every step is nearly free."""
        ...

    def as_written(self, name: str) -> Function | None:
        """The function as written if it is one pure block, else None; none that rules made."""
        ...

    def calls(self, name: str) -> int:
        """How many calls of a function the program as written has."""
        ...

    def known_ahead(self, name: str) -> Sequence[bool]:
        """For each parameter of a function that is called, whether what it gets is known ahead of the calls."""
        ...

    def add(self, function: Function, suffix: str) -> Function:
        """A new function of the module, named after `function` and what was done to it."""
        ...

    def batched(self, function: Function, mapped: Sequence[bool], length: Dim) -> Function | None:
        """`function` applied to each of `length` slices of its `mapped` parameters, the results stacked; None where
        that cannot be formed."""
        ...


# The tag of what saves memory: asked where a byte in memory has a price, or memory for large values takes time.
MEMORY = "memory"


@dataclass(frozen=True)
class Schema:
    """A rule about whole nodes. `propose` is asked about nodes of these `operators`; it gives an expression equal to a
    node, or None where it has nothing to say."""

    name: str
    doc: str
    numerics: Numerics
    tags: frozenset[str]
    propose: Callable[[Expr, Functions], Expr | None]
    operators: frozenset[str]

    @property
    def where(self) -> str:
        """File and line of the function that proposes."""
        code = getattr(self.propose, "__code__", None)
        return f"{code.co_filename.rsplit('/', 1)[-1]}:{code.co_firstlineno}" if code is not None else "<rule>"

    def error(self, text: str) -> RuleError:
        return RuleError(f"{self.where} rule `{self.name}`: {text}")

    def __str__(self) -> str:
        return f"{self.name}: {self.doc}"
