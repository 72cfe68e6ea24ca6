"""The partial order of annotations: coverage, join, and conflicts between annotations.

`Object` is the least specific. A tensor annotation may leave out dtype, sizes and rank; a shape annotation its sizes
and rank. Sizes are compared by what can be proved when every size variable is >= 0, including those of a `match_cast`.
Thus `max(n, m) + min(n, m)` and `n + m` are the same size, `2*n` and `2*m + 1` never are, and `n` and `m` are
undecided.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from relax_eg.ir.annotations import Annotation, Callable, Object, Shape, Tensor, Tuple
from relax_eg.limits import KEPT
from relax_eg.shapes import Dim, Scope


def sizes_equal(a: Dim, b: Dim) -> bool | None:
    """Returns True if the sizes are equal for all values of the size variables, False if they always differ, else None.

    No search runs, so the answer does not depend on a time limit.
    """
    if a is b:
        return True
    difference = a - b
    return difference.value == 0 if difference.is_const else _proved(a, b)


@lru_cache(KEPT)
def _proved(a: Dim, b: Dim) -> bool | None:
    return Scope({v: (0, None) for v in a.variables | b.variables}).equal(a, b)


def sizes_differ(a: Dim, b: Dim) -> bool:
    """Whether two sizes differ for all values of the size variables."""
    return sizes_equal(a, b) is False


def covers(general: Annotation, specific: Annotation) -> bool:
    """Whether every value annotated `specific` may also be annotated `general`. An annotation covers itself."""
    if general == specific or isinstance(general, Object):
        return True
    if isinstance(general, Tensor) and isinstance(specific, Tensor):
        return general.dtype in (None, specific.dtype) and _covers_sizes(
            general.shape, general.ndim, specific.shape, specific.ndim
        )
    if isinstance(general, Shape) and isinstance(specific, Shape):
        return _covers_sizes(general.dims, general.ndim, specific.dims, specific.ndim)
    if isinstance(general, Tuple) and isinstance(specific, Tuple):
        return len(general.fields) == len(specific.fields) and all(map(covers, general.fields, specific.fields))
    return False


def _covers_sizes(
    general: Sequence[Dim] | None, general_rank: int | None, specific: Sequence[Dim] | None, specific_rank: int | None
) -> bool:
    return general_rank is None or (
        general_rank == specific_rank and (general is None or _same_sizes(general, specific))
    )


def join(a: Annotation, b: Annotation) -> Annotation:
    """Returns the most specific annotation that covers both. Where sizes are equal it uses the spelling of `a`."""
    if a == b:
        return a
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        dtype = a.dtype if a.dtype == b.dtype else None
        if _same_sizes(a.shape, b.shape):
            return Tensor(a.shape, dtype)
        return Tensor(dtype=dtype, ndim=a.ndim if a.ndim == b.ndim else None)
    if isinstance(a, Shape) and isinstance(b, Shape):
        return a if _same_sizes(a.dims, b.dims) else Shape(ndim=a.ndim if a.ndim == b.ndim else None)
    if isinstance(a, Tuple) and isinstance(b, Tuple) and len(a.fields) == len(b.fields):
        return Tuple(tuple(map(join, a.fields, b.fields)))
    return Object()


def _same_sizes(a: Sequence[Dim] | None, b: Sequence[Dim] | None) -> bool:
    return a is not None and b is not None and len(a) == len(b) and all(map(sizes_equal, a, b))


def annotation_clash(a: Annotation, b: Annotation) -> str | None:
    """Returns why no value can have both annotations, or None if one may."""
    if isinstance(a, Object) or isinstance(b, Object):
        return None
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.dtype is not None and b.dtype is not None and a.dtype != b.dtype:
            return f"dtypes {a.dtype} and {b.dtype} differ"
        return _clash_of_sizes(a.shape, a.ndim, b.shape, b.ndim)
    if isinstance(a, Shape) and isinstance(b, Shape):
        return _clash_of_sizes(a.dims, a.ndim, b.dims, b.ndim)
    if isinstance(a, Tuple) and isinstance(b, Tuple):
        if len(a.fields) != len(b.fields):
            return f"tuples of {len(a.fields)} and {len(b.fields)}"
        found = ((i, annotation_clash(x, y)) for i, (x, y) in enumerate(zip(a.fields, b.fields, strict=True)))
        return next((f"field {i}: {why}" for i, why in found if why is not None), None)
    if isinstance(a, Callable) and isinstance(b, Callable):
        # The size variables of a signature are local to it, so sizes of two signatures are not compared.
        same = len(a.params) == len(b.params)
        return None if same else f"functions of {len(a.params)} and {len(b.params)} parameters"
    return f"{_kind(a)} and {_kind(b)}"


def _clash_of_sizes(
    a: Sequence[Dim] | None, a_rank: int | None, b: Sequence[Dim] | None, b_rank: int | None
) -> str | None:
    if a_rank is not None and b_rank is not None and a_rank != b_rank:
        return f"ranks {a_rank} and {b_rank} differ"
    for axis, (p, q) in enumerate(zip(a or (), b or (), strict=False)):
        if sizes_differ(p, q):
            return f"axis {axis}: sizes {p} and {q} differ"
    return None


def _kind(a: Annotation) -> str:
    words = {"Tensor": "a tensor", "Shape": "a shape", "Tuple": "a tuple", "Callable": "a function"}
    return words[type(a).__name__]
