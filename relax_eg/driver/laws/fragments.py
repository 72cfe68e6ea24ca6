"""Fragments of programs: an operator with some of what it reads, over few leaves.

The leaves of a fragment are a cut: every way from the operator to an argument of the program meets one of them. Cuts
with few leaves are made bottom-up, as circuits are cut for tables of gates (k-feasible cuts, Cong and Ding, 1994): a
cut of an operator is one cut of each operand, put together. Of an operator only some are kept, the deep and the shallow
ones of each number of leaves, so that their number does not grow with the program.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from relax_eg.errors import RelaxEgError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import CALL_TIR, CONSTANT, Expr, postorder, rebuild, var
from relax_eg.ir.module import Function
from relax_eg.ops.record import TABLE, call
from relax_eg.shapes import Dim

_LARGEST = {1: 32, 2: 24, 3: 12, 4: 4}  # limit: operators of a fragment, by its number of leaves
_ARITHMETIC = ("add", "subtract", "multiply", "negative")  # given: operators of numbers that laws may be about
_KEPT = 5  # limit: shallow cuts, and deep ones, of an operator with each number of leaves

Leaves = tuple[Expr, ...]


@dataclass(frozen=True)
class Fragment:
    """Part of a program: its root, its leaves, and what it costs at the sizes asked for, in seconds."""

    root: Expr
    leaves: Leaves
    seconds: float

    @property
    def inside(self) -> set[Expr]:
        """What it computes, its root included."""
        leaves = frozenset(self.leaves)
        return {e for e in postorder((self.root,), stop=leaves.__contains__) if e not in leaves}


@dataclass(frozen=True)
class _Cut:
    """`leaves`, and the operators above them: the `inside`."""

    leaves: frozenset[Expr]
    inside: frozenset[Expr]


def cuts_of(function: Function) -> list[tuple[Expr, Leaves]]:
    """The roots and leaves of the fragments of a function, each of several operators, or of one on a constant."""
    known: dict[Expr, list[_Cut]] = {}
    numbers = set[Expr]()
    found: list[tuple[Expr, Leaves]] = []
    for e in function.expressions():
        if e.op == CONSTANT or (e.args and numbers.issuperset(e.args) and e.shape == ()):
            numbers.add(e)
        itself = _Cut(frozenset((e,)), frozenset())
        if e.op == CONSTANT:
            known[e] = [_Cut(frozenset(), frozenset())]
        elif _is_operator(e) and all(isinstance(a.annotation, Tensor) for a in e.args) and not _is_folded(e, numbers):
            made = _merged(e, [known[a] for a in e.args])
            known[e] = [itself, *made]
            has_constant = any(a.op == CONSTANT for a in e.args)
            for c in made:
                if c.leaves and (len(c.inside) > 1 or has_constant):
                    down_to_leaves = postorder((e,), stop=c.leaves.__contains__)  # not all of the program below
                    found.append((e, tuple(x for x in down_to_leaves if x in c.leaves)))
        else:
            known[e] = [itself]
    return found


def _is_folded(e: Expr, numbers: Collection[Expr]) -> bool:
    """Whether an operator has the same value in every call, and none that arithmetic tells: compilers compute it, so
    that a law about it saves nothing."""
    return e in numbers and e.op not in _ARITHMETIC


def _merged(e: Expr, of_operands: Sequence[Sequence[_Cut]]) -> list[_Cut]:
    """The cuts of an operator, from those of its operands, one operand after another: of many there soon is none."""
    made = {frozenset[Expr](): _Cut(frozenset(), frozenset((e,)))}
    for cuts in of_operands:
        together = (_Cut(a.leaves | b.leaves, a.inside | b.inside) for a in made.values() for b in cuts)
        small = [c for c in together if any(len(c.leaves) <= n and len(c.inside) <= m for n, m in _LARGEST.items())]
        made = {c.leaves: c for c in reversed(small)}
    made = {leaves: c for leaves, c in made.items() if not leaves & c.inside}
    kept: list[_Cut] = []
    for n in (0, *_LARGEST):
        own = sorted((c for c in made.values() if len(c.leaves) == n), key=lambda c: len(c.inside))
        kept += own if len(own) <= 2 * _KEPT else [*own[:_KEPT], *own[-_KEPT:]]
    return kept


def _is_operator(e: Expr) -> bool:
    if not isinstance(e.annotation, Tensor) or e.annotation.shape is None or not e.args:
        return False
    record = TABLE.get(e.op)
    return e.op == CALL_TIR or (record is not None and bool(record.equations or record.definition))


def apart(root: Expr, leaves: Leaves, sizes: Mapping[Dim, Dim] | None = None) -> tuple[Expr, Leaves]:
    """The fragment by itself: its root over variables, and these. `sizes`: what sizes are replaced by. Raises
    OperatorError if an operator does not exist at the sizes."""
    known = sizes or {}

    def size(d: Dim) -> Dim:
        return known.get(d, d)

    taken = {v for x in leaves for d in x.shape for v in size(d).variables}  # a rule has one meaning for a name
    names = [n for n in ("abcd" if any(len(x.shape) > 1 for x in leaves) else "xyzw") + "uvgh" if n not in taken]
    params = tuple(var(names[i], Tensor(tuple(map(size, x.shape)), x.dtype)) for i, x in enumerate(leaves))

    def at_sizes(e: Expr, args: tuple[Expr, ...]) -> Expr:
        if e.op == CONSTANT:
            return e
        attrs = {
            k: tuple(size(d) if isinstance(d, Dim) else d for d in v) if isinstance(v, tuple) else v  # type: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            for k, v in e.attrs
        }
        return call(e.op, args, attrs)

    return rebuild([root], at_sizes, dict(zip(leaves, params, strict=True)))[0], params


def generalised_sizes(f: Fragment) -> tuple[Expr, Leaves, dict[str, int]] | None:
    """The fragment by itself with a size variable for each number among its sizes, and their values; with its numbers
    where it does not exist otherwise. None if it cannot be formed."""
    numbers = dict.fromkeys(d for x in f.leaves for d in x.shape if d.is_const and d.value > 1)
    taken = {v for x in f.leaves for d in x.shape for v in d.variables}
    free = [n for n in "mnkpqrst" if n not in taken]
    names = dict(zip(numbers, free, strict=False))
    for sizes in ({d: Dim.var(n) for d, n in names.items()}, {}):
        try:
            root, params = apart(f.root, f.leaves, sizes)
            return root, params, {n: d.value for d, n in names.items()} if sizes else {}
        except RelaxEgError:
            continue
    return None
