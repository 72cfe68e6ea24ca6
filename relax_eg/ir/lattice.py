"""The partial order of annotations: coverage, join, and conflicts between annotations.

`Object` is the least specific. A tensor annotation may leave out dtype, sizes and rank; a shape annotation its sizes
and rank. Sizes are compared by what can be proved when every size variable is >= 0, including those of a `match_cast`.
Thus `max(n, m) + min(n, m)` and `n + m` are the same size, `2*n` and `2*m + 1` never are, and `n` and `m` are
undecided.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from relax_eg.ir.annotations import (
    Annotation,
    Callable,
    Data,
    Named,
    Never,
    Object,
    Ref,
    Shape,
    Tensor,
    Tuple,
    TypeVar,
    inside,
    with_inside,
)
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
    if general == specific or isinstance(general, Object) or isinstance(specific, Never):
        return True
    if isinstance(general, Tensor) and isinstance(specific, Tensor):
        return general.dtype in (None, specific.dtype) and _covers_sizes(
            general.shape, general.ndim, specific.shape, specific.ndim
        )
    if isinstance(general, Shape) and isinstance(specific, Shape):
        return _covers_sizes(general.dims, general.ndim, specific.dims, specific.ndim)
    if isinstance(general, Tuple) and isinstance(specific, Tuple):
        return len(general.fields) == len(specific.fields) and all(map(covers, general.fields, specific.fields))
    if isinstance(general, Data) and isinstance(specific, Data):
        return general.definition == specific.definition and all(map(covers, general.args, specific.args))
    if isinstance(general, Ref) and isinstance(specific, Ref):  # it is read and written
        return covers(general.content, specific.content) and covers(specific.content, general.content)
    if isinstance(general, Callable) and isinstance(specific, Callable):
        same = len(general.params) == len(specific.params) and covers(general.result, specific.result)
        return same and all(map(covers, specific.params, general.params))
    return False


def _covers_sizes(
    general: Sequence[Dim] | None, general_rank: int | None, specific: Sequence[Dim] | None, specific_rank: int | None
) -> bool:
    return general_rank is None or (
        general_rank == specific_rank and (general is None or _same_sizes(general, specific))
    )


def join(a: Annotation, b: Annotation) -> Annotation:
    """Returns the most specific annotation that covers both. Where sizes are equal it uses the spelling of `a`."""
    if a == b or isinstance(b, Never):
        return a
    if isinstance(a, Never):
        return b
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        dtype = a.dtype if a.dtype == b.dtype else None
        if _same_sizes(a.shape, b.shape):
            return Tensor(a.shape, dtype)
        return Tensor(dtype=dtype, ndim=a.ndim if a.ndim == b.ndim else None)
    if isinstance(a, Shape) and isinstance(b, Shape):
        return a if _same_sizes(a.dims, b.dims) else Shape(ndim=a.ndim if a.ndim == b.ndim else None)
    if isinstance(a, Tuple) and isinstance(b, Tuple) and len(a.fields) == len(b.fields):
        return Tuple(tuple(map(join, a.fields, b.fields)))
    if isinstance(a, Data) and isinstance(b, Data) and a.definition == b.definition:
        return Data(a.definition, tuple(map(join, a.args, b.args)))
    if isinstance(a, Callable) and isinstance(b, Callable):
        return a if covers(a, b) else b if covers(b, a) else Object()
    return Object()


def _same_sizes(a: Sequence[Dim] | None, b: Sequence[Dim] | None) -> bool:
    return a is not None and b is not None and len(a) == len(b) and all(map(sizes_equal, a, b))


def annotation_clash(a: Annotation, b: Annotation) -> str | None:
    """Returns why no value can have both annotations, or None if one may."""
    if isinstance(a, (Object, Never)) or isinstance(b, (Object, Never)) or a == b:
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
        if len(a.params) != len(b.params):
            return f"functions of {len(a.params)} and {len(b.params)} parameters"
        # The size variables of a signature are local to it, so sizes of two signatures are not compared.
        found = [annotation_clash(*map(_without_sizes, pair)) for pair in zip(inside(a), inside(b), strict=True)]
        places = [*(f"parameter {i}" for i in range(len(a.params))), "the result"]
        return next((f"{place}: {why}" for place, why in zip(places, found, strict=True) if why is not None), None)
    if isinstance(a, Data) and isinstance(b, Data) and a.definition == b.definition:
        pairs = zip(a.definition.params, a.args, b.args, strict=True)
        return next((f"`{name}`: {why}" for name, x, y in pairs if (why := annotation_clash(x, y))), None)
    if isinstance(a, Ref) and isinstance(b, Ref):
        return annotation_clash(a.content, b.content)
    return f"{_kind(a)} and {_kind(b)}"


def _without_sizes(a: Annotation) -> Annotation:
    if isinstance(a, Tensor):
        return Tensor(dtype=a.dtype, ndim=a.ndim)
    if isinstance(a, Shape):
        return Shape(ndim=a.ndim)
    return with_inside(a, [_without_sizes(p) for p in inside(a)])


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
    if isinstance(a, (Data, Named)):
        return f"a {a.definition.name if isinstance(a, Data) else a.name}"
    if isinstance(a, TypeVar):
        return f"a value of any type `{a.name}`"
    words = {"Tensor": "a tensor", "Shape": "a shape", "Tuple": "a tuple", "Callable": "a function"}
    return words.get(type(a).__name__, "a reference")
