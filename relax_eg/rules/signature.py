"""The signature of a rule: the typed variables of its patterns, and the parameters of its function."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from relax_eg.ir.annotations import Tensor
from relax_eg.shapes import Dim, Spec, Star

if TYPE_CHECKING:
    from relax_eg.rules.rule import Rule

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


def check_parameters(rule: Rule) -> None:
    """Raises RuleError unless the function takes the pattern variables by position under their own names, and the size
    and attribute variables by name."""
    parameters = inspect.signature(rule.function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return
    blocks = set(rule.stars)
    for n in rule.sizes:
        _, tied, block = n.partition(":")
        if tied and (not n.startswith("*") or block not in blocks):
            accepted = ", ".join(f"*{plain_name(n)}:{b}" for b in rule.stars) or "no block is declared"
            raise rule.error(f"sizes: {n!r} names a block that the rule lacks; accepted: {accepted}")
    further = [*map(plain_name, rule.sizes), *rule.attributes]
    wanted = [*rule.signature, *further]
    named = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    given = [n for n, p in zip(named, parameters, strict=False) if n in wanted or p.default is p.empty]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        given += [n for n in further if n not in given]
    if given[: len(rule.signature)] != list(rule.signature) or sorted(given) != sorted(wanted):
        raise rule.error(
            f"its function takes ({', '.join(named)}); shapes=, attrs= and sizes= declare ({', '.join(wanted)})"
        )
