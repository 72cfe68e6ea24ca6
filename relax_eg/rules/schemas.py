"""Schemas: rules that a pattern over values cannot state, about functions of the module and terms of any length.

A schema inspects one node (a loop, a call, a sum) and proposes an equal expression, for which it may make new
functions. The proposal is added to the e-graph beside the node as written, and extraction chooses.
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


# Takes the place of an operator in `Schema.operators` of a step by which extraction fuses kernels. Its proposals for
# nodes are checked, but the e-graph never applies it, because kernels are not enumerated there.
KERNEL = "kernel"


class Functions(Protocol):
    """The questions about the program that a schema may ask. Its proposal is equal to the node for any answers about
    sizes, readers and so on; these answers only choose among equal expressions. The proposal is correct only if the
    forms of functions that it gets are correct."""

    def readers(self, e: Expr) -> Sequence[Expr]:
        """The nodes of the block as written that read `e`; a node occurs once per operand that is `e`."""
        ...

    def extent(self, size: Dim) -> int:
        """An approximate value of a size at the sizes for which the program is optimized."""
        ...

    def most(self, size: Dim) -> int:
        """An approximate value of a size at the largest sizes at which the program should be good."""
        ...

    @property
    def large(self) -> float:
        """Number of bytes from which an intermediate value is worth avoiding: 0 if a byte in memory has a price,
        infinity if no value is that large for the device."""
        ...

    def best(self, name: str, outside: bool = False) -> Function | None:
        """The function in its best form if it is one pure block, else None. With `outside`, the best form under the
        assumption that values are nearly free if they depend only on parameters that are the same at every step."""
        ...

    def as_written(self, name: str) -> Function | None:
        """The function as written if it is one pure block, else None; also None for a function that rules made."""
        ...

    def calls(self, name: str) -> int:
        """The number of calls of a function in the program as written."""
        ...

    def known_ahead(self, name: str) -> Sequence[bool]:
        """For each parameter of a called function, whether its operand is known ahead of the calls."""
        ...

    def add(self, function: Function, suffix: str) -> Function:
        """Adds `function` to the module under a new name, made from its name and `suffix`, and returns it."""
        ...

    def batched(self, function: Function, mapped: Sequence[bool], length: Dim) -> Function | None:
        """A function that applies `function` to each of `length` slices of its `mapped` parameters and stacks the
        results; None if that cannot be formed."""
        ...


# The tag of schemas that save memory. They are applied if a byte in memory has a price, or if memory for large values
# takes time.
MEMORY = "memory"


@dataclass(frozen=True)
class Schema:
    """A rule about whole nodes.

    - `propose`: returns an expression that is equal to a node, or None.
    - `operators`: operators of the nodes for which `propose` is called.
    """

    name: str
    doc: str
    numerics: Numerics
    tags: frozenset[str]
    propose: Callable[[Expr, Functions], Expr | None]
    operators: frozenset[str]

    @property
    def where(self) -> str:
        """File and line of `propose`."""
        code = getattr(self.propose, "__code__", None)
        return f"{code.co_filename.rsplit('/', 1)[-1]}:{code.co_firstlineno}" if code is not None else "<rule>"

    def error(self, text: str) -> RuleError:
        return RuleError(f"{self.where} rule `{self.name}`: {text}")

    def __str__(self) -> str:
        return f"{self.name}: {self.doc}"
