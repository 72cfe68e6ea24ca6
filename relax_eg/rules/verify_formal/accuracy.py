"""Tests that exclude sums that are equal over the reals but far less accurate in floats.

They are no proof of the accuracy law, which the probabilistic checker tests. A rule whose right side expands a product
or cancels does not get the status proved.
"""

from __future__ import annotations

from collections import Counter

from relax_eg.dtypes import dtype_of, is_float
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import VAR, Expr, postorder
from relax_eg.ops.record import movement_operators, operators_run_as
from relax_eg.rules.checking.samples import mask_values
from relax_eg.rules.rule import Instance
from relax_eg.rules.verify_formal.sums import Factor, Sum, Term
from relax_eg.tir.expr import Apply, Const, Index, Read, Reduce, Scalar, walk

_SUMS = frozenset(("add", "subtract"))
_PRODUCTS = frozenset(("multiply", "divide")) | operators_run_as("matmul", "transposed_matmul")
_MOVEMENTS = movement_operators("view", "repeat", "order", "part", "select", "join")


def is_tame(s: Sum) -> bool:
    """Whether the sum is about as accurate in one order of evaluation as in any other.

    Nothing may cancel. A sum of one term then qualifies. In a sum of more terms no tensor may occur twice in a product,
    and either each product has a factor of a tensor that occurs in no other product, or no product has more than one
    factor. Such a product is as large as the change of the sum when that factor changes. Another element of a tensor
    that occurs elsewhere qualifies only if all products are of the same tensors and have one sign, since indices may
    coincide: w[i,k] * x[k] - w[i,k] * x[i] is zero at k = i however large w is. One product without summation may have
    no such factor: it is at most as large as the sum and the other products together.
    """
    if any(abs(c) != m for _, c, m in s.items()):
        return False
    if len(s.terms) <= 1:
        return True
    heads = [{_head(f): f.key for f in t.factors if f.kind != "dim"} for t in s.terms]
    alike = all(h.keys() == heads[0].keys() for h in heads) and len({c > 0 for _, c, _ in s.items()}) == 1
    names = [set(h.values()) if alike else set(h) for h in heads]
    often = Counter(n for ns in names for n in ns)
    shared = [t for t, ns in zip(s.terms, names, strict=True) if ns and all(often[n] > 1 for n in ns)]
    private = not shared or (len(shared) == 1 and not shared[0].bound) or all(len(ns) <= 1 for ns in names)
    return private and all(_is_multilinear(t) for t in s.terms)


def _head(f: Factor) -> tuple[str, ...]:
    """What a factor is without its indices."""
    return f.kind, f.name, *sorted(n for a in f.args for t, _ in a.terms for n in _tensors(t))


def _is_multilinear(t: Term) -> bool:
    names = [f.name if f.kind == "read" else f.key for f in t.factors if f.kind != "dim"]
    inner = [n for f in t.factors for a in f.args for u, _ in a.terms for n in _tensors(u)]
    return len(set(names)) == len(names) and not set(inner) & set(names)


def _tensors(t: Term) -> list[str]:
    return [f.name for f in t.factors if f.kind == "read"] + [
        n for f in t.factors for a in f.args for u, _ in a.terms for n in _tensors(u)
    ]


def has_no_rounding(s: Scalar) -> bool:
    """Whether `s` is a read, a constant or an index: it is not computed, so it has no rounding error."""
    return isinstance(s, (Read, Const, Index))


def keeps_precision(left: Scalar, right: Scalar) -> bool:
    """Whether the right term computes and sums in no coarser float than the coarsest one of the left term."""
    computed, summed = _coarsest(left)
    other_computed, other_summed = _coarsest(right)
    return other_computed >= computed and other_summed >= (computed if summed == float("inf") else summed)


def _coarsest(s: Scalar) -> tuple[float, float]:
    """Returns the fewest bits in which anything is computed, and in which anything is summed; infinite if nothing
    is."""
    computed, summed = float("inf"), float("inf")
    for t in walk(s):
        if has_no_rounding(t) or not is_float(t.dtype):
            continue
        bits = dtype_of(t.dtype).digits
        computed = min(computed, bits)
        if isinstance(t, Reduce):
            summed = min(summed, bits)
    return computed, summed


# Functions that may cancel or grow beyond every float.
_DOUBTFUL = frozenset({"add", "subtract", "exp", "power"})


def doubtful_terms(left: Scalar, right: Scalar) -> set[Apply]:
    """The terms of the right side that the left one does not have and that may cancel or overflow."""
    return {t for t in walk(right) if isinstance(t, Apply) and t.fn in _DOUBTFUL} - {
        *_same_exponents(left, right), *walk(left),
    }  # fmt: skip


def _same_exponents(a: Scalar, b: Scalar) -> set[Scalar]:
    """Returns the exponentials of `b` whose exponent is a sum, difference or negative of exponents in `a`, and these
    exponents.

    Such an exponent is as large as those in `a`, and its error has no larger effect than a change of these by half an
    ulp. The exponential is the product that `a` computes.
    """
    exponents = {t.args[0] for t in walk(a) if isinstance(t, Apply) and t.fn == "exp"}
    found: set[Scalar] = set()
    for t in walk(b):
        if isinstance(t, Apply) and t.fn == "exp":
            (of,) = t.args
            inside = of.args if isinstance(of, Apply) and of.fn in ("add", "subtract", "negative") else ()
            if inside and all(x in exponents for x in inside):
                found |= {t, of}
    return found


def may_have_masks(instance: Instance) -> bool:
    """Whether the left side may have masks, by which factors or sums are exactly zero: what is made of truth values or
    integers, products with a sum that has a number, such as (1 - mask), and sums with a large number."""
    if len(mask_values(instance)) > 1:
        return True
    numbers: set[Expr] = set()
    exact = {p for p in instance.params if isinstance(p.annotation, Tensor) and not is_float(p.dtype)}
    sums: set[Expr] = set()
    for e in postorder(instance.left):
        if e.op == VAR or not isinstance(e.annotation, Tensor):
            continue
        if not e.args or numbers.issuperset(e.args):
            numbers.add(e)
        elif e.op == "where" or (is_float(e.dtype) and numbers.union(exact).issuperset(e.args)):
            return True
        elif not is_float(e.dtype):
            exact.add(e)
        if e.op in _PRODUCTS and not sums.isdisjoint(e.args):
            return True
        if (e.op in _SUMS and not numbers.isdisjoint(e.args)) or (e.op in _MOVEMENTS and not sums.isdisjoint(e.args)):
            sums.add(e)
    return False
