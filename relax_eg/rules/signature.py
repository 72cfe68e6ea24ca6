"""The signature of a rule: the typed variables of its patterns, and its numerics class."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from relax_eg.ir.annotations import Tensor
from relax_eg.shapes import Dim, Spec, Star

Numerics = Literal["exact", "reassociate", "approximate", "quantised"]
NUMERICS: tuple[Numerics, ...] = ("exact", "reassociate", "approximate", "quantised")
_TWO_MATRICES = re.compile(r"(\w+)\(\((\w+), (\w+)\) \w+, \((\w+), (\w+)\) \w+")


def transpose_hint(problem: str) -> str:
    """A hint to append to an operator's error about two matrices that fit if one is transposed; otherwise empty."""
    found = _TWO_MATRICES.match(problem)
    if found is None:
        return ""
    op, *sizes = found.groups()
    m, k, p, q = sizes
    if op == "matmul":
        return f"\n  hint: the inner sizes {k} and {p} must agree; is a .T missing?" if k == q or m == p else ""
    return f"\n  hint: {op} needs equal shapes; is a .T missing?" if (m, k) == (q, p) else ""


def _block(name: str, rank: int) -> tuple[Dim, ...]:
    """The size variables of the block `*name`."""
    return tuple(Dim.var(f"{name}__{i}") for i in range(rank))


def plain_name(declared: str) -> str:
    """The name `i` in the declaration of a size variable: `i`, `*i` or `*i:b`."""
    return declared.lstrip("*").partition(":")[0]


def sizes_named(declared: str, ranks: Mapping[str, int]) -> Dim | tuple[Dim, ...]:
    """The value of a declared size variable: a `Dim` for `i`; a tuple for `*i`, which is a block of its own, and for
    `*i:b`, which has as many sizes as block `b` has axes."""
    if not declared.startswith("*"):
        return Dim.var(declared)
    name = plain_name(declared)
    return _block(name, ranks[declared.partition(":")[2] or name])


def pattern_of(name: str, spec: Spec, ranks: Mapping[str, int], dtype: str) -> Tensor:
    dims: list[Dim] = []
    for i, d in enumerate(spec.dims):
        if isinstance(d, Star):
            dims.extend(_block(d.name, ranks[d.name]))
        else:
            dims.append(Dim.var(f"{name}__{i}") if d is None else d)
    return Tensor(dims, spec.dtype or dtype)
