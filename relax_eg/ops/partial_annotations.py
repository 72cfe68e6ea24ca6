"""Deduction from partial annotations: tensors whose dtype, rank or sizes are unknown (Relax, 4.1: coarse-grained
annotations).

An operator's deduction takes complete annotations. For partial ones it runs on each combination of complete
annotations that they may stand for: an unknown size is a variable of its own, which may equal any size; an unknown
dtype or rank takes every value in turn. The result's annotation is the join of all answers. Combinations that the
operator rejects are skipped; where it rejects all of them, it rejects the use.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from relax_eg.dtypes import RECORDS
from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import Annotation, Tensor, Tuple
from relax_eg.ir.expr import Expr
from relax_eg.ir.lattice import join
from relax_eg.ops.site import Site
from relax_eg.shapes import Dim

_MARK = "\u0294"  # ends the variable of an unknown size: a letter like a question mark that no user's name has
_COMBINATIONS = 1000  # chosen: largest number of combinations of dtypes and ranks that are all tried
MAX_RANK = 12  # limit: greatest rank that is tried here and that annotations in the e-graph have
_DTYPES = tuple(d.name for d in RECORDS.values() if not d.only_moved)

Deduction = Callable[[Site], Annotation]


def is_unknown(size: Dim) -> bool:
    """Returns whether `size` contains an unknown size."""
    return any(name.endswith(_MARK) for name in size.variables)


def is_partial(a: Annotation) -> bool:
    """Returns whether `a` is a tensor's annotation without dtype, sizes or rank."""
    return isinstance(a, Tensor) and (a.shape is None or a.dtype is None)


def is_known_tensor(e: Expr) -> bool:
    """Returns whether `e` is a tensor of known dtype and sizes."""
    return isinstance(e.annotation, Tensor) and not is_partial(e.annotation)


def deduce_from_partial(site: Site, deduce: Deduction) -> Annotation:
    """Returns the join of the answers of `deduce` for all possible operands. OperatorError where it rejects all."""
    ranks = range(_greatest_rank(site) + 1)
    dtypes = [_DTYPES if isinstance(a, Tensor) and a.dtype is None else (None,) for a in site.operands]
    shapes = [tuple(ranks) if isinstance(a, Tensor) and a.ndim is None else (None,) for a in site.operands]
    asked = replace(site, operands_in_errors=site.operands)
    if math.prod(map(len, dtypes)) * math.prod(map(len, shapes)) <= _COMBINATIONS:
        return _join_all(_answers(asked, deduce, itertools.product(*dtypes), list(itertools.product(*shapes))))
    return _dtype_and_shape_apart(asked, deduce, dtypes, shapes)


def _dtype_and_shape_apart(
    site: Site, deduce: Deduction, dtypes: Sequence[Sequence[str | None]], shapes: Sequence[Sequence[int | None]]
) -> Annotation:
    """As `deduce_from_partial`, for more than `_COMBINATIONS`: deduces the result's dtype from operands of one rank,
    and its shape from operands of one dtype. This assumes that neither depends on the other."""
    for dtype, rank in itertools.product(_DTYPES, range(MAX_RANK + 1)):
        d = tuple(dtype if len(choice) > 1 else None for choice in dtypes)
        r = tuple(rank if len(choice) > 1 else None for choice in shapes)
        try:
            some = _join_all(_answers(site, deduce, [d], [r]))
        except OperatorError:
            continue
        by_dtype = by_shape = _without_shape_and_dtype(some)
        if math.prod(map(len, dtypes)) <= _COMBINATIONS:
            by_dtype = _join_all(_answers(site, deduce, itertools.product(*dtypes), [r]))
        if math.prod(map(len, shapes)) <= _COMBINATIONS:
            by_shape = _join_all(_answers(site, deduce, [d], list(itertools.product(*shapes))))
        return _combine(by_shape, by_dtype)
    return Tensor()


def _answers(
    site: Site,
    deduce: Deduction,
    dtypes: Iterable[tuple[str | None, ...]],
    ranks: Sequence[tuple[int | None, ...]],
) -> Iterator[Annotation]:
    """Yields the answers of `deduce` for operands with these dtypes and ranks; None keeps the operand's own. Raises the
    most frequent error where all combinations are rejected."""
    refused: dict[str, OperatorError] = {}
    times: Counter[str] = Counter()
    answered = False
    for ds, rs in itertools.product(dtypes, ranks):
        parts = enumerate(zip(site.operands, ds, rs, strict=True))
        operands = tuple(_fill_in(i, a, d, r) for i, (a, d, r) in parts)
        try:
            found = deduce(replace(site, operands=operands))
        except OperatorError as error:
            refused.setdefault(str(error), error)
            times[str(error)] += 1
        else:
            answered = True
            yield _without_unknown_sizes(found)
    if not answered:
        raise refused[times.most_common(1)[0][0]]


def _fill_in(i: int, a: Annotation, dtype: str | None, rank: int | None) -> Annotation:
    """Returns operand `i` with this dtype and rank where it has none, and a variable for each unknown size."""
    if not isinstance(a, Tensor):
        return a
    shape = a.shape
    if shape is None:
        shape = tuple(Dim.var(f"x{i}_{axis}{_MARK}") for axis in range(a.ndim if a.ndim is not None else rank or 0))
    return Tensor(shape, a.dtype or dtype)


def _without_unknown_sizes(a: Annotation) -> Annotation:
    if isinstance(a, Tuple):
        return Tuple(tuple(map(_without_unknown_sizes, a.fields)))
    if isinstance(a, Tensor) and any(map(is_unknown, a.shape or ())):
        return Tensor(dtype=a.dtype, ndim=a.ndim)
    return a


def _join_all(answers: Iterable[Annotation]) -> Annotation:
    found = iter(answers)
    result = next(found)
    for a in found:
        result = join(result, a)
    return result


def _combine(shapes: Annotation, dtypes: Annotation) -> Annotation:
    """Returns the sizes of `shapes` with the dtypes of `dtypes`."""
    if isinstance(shapes, Tuple) and isinstance(dtypes, Tuple):
        return Tuple(tuple(map(_combine, shapes.fields, dtypes.fields)))
    if isinstance(shapes, Tensor) and isinstance(dtypes, Tensor):
        return Tensor(shapes.shape, dtypes.dtype, shapes.ndim)
    return shapes


def _without_shape_and_dtype(a: Annotation) -> Annotation:
    return Tuple(tuple(map(_without_shape_and_dtype, a.fields))) if isinstance(a, Tuple) else Tensor()


def _greatest_rank(site: Site) -> int:
    """Returns the greatest rank to try: beyond what attributes and other operands mention, all ranks are alike."""
    spoken = [a.ndim or 0 for a in site.operands if isinstance(a, Tensor)]
    for value in site.attrs.values():
        items: tuple[object, ...] = value if isinstance(value, tuple) else (value,)
        spoken += [len(items), *(v for v in items if isinstance(v, int))]
    return min(MAX_RANK, max(spoken, default=0) + 4)
