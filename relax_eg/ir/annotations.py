"""Annotations: the facts about a value that are known at compile time (Relax, Table 1).

`Object` is any value. `Shape` is a first-class shape. `Tensor` is an array whose sizes may be symbolic, known in rank
only, or unknown. `Tuple` and `Callable` are built from other annotations. Annotations are immutable, hashable and
compared by value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

from relax_eg.argument_checks import short_repr
from relax_eg.dtypes import KEY_DTYPE, RECORDS, SHORT_NAMES, WIDE
from relax_eg.errors import SpecError
from relax_eg.limits import FIELDS, NESTED, RANK
from relax_eg.shapes import Dim, Star, parse_spec
from relax_eg.shapes.spec import ANY_KEY, accepted_dtypes

DimLike = int | str | Dim

UNKNOWN_RANK = -1  # given: Relax's spelling


class Annotation:
    """Base class of the five annotations."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Object(Annotation):
    """Any runtime value."""

    def __str__(self) -> str:
        return "R.Object"


@dataclass(frozen=True, slots=True, init=False)
class Shape(Annotation):
    """A shape value: `Shape("n m")`, `Shape((n, 4))`, or the rank alone: `Shape(ndim=2)`.

    - `dims`: the sizes; None if they are not known.
    - `ndim`: the rank; None if it is not known.
    """

    dims: tuple[Dim, ...] | None
    ndim: int | None

    def __init__(self, dims: str | Sequence[DimLike] | None = None, ndim: int | None = None) -> None:
        sizes, rank = _sizes(dims, ndim, "Shape")
        object.__setattr__(self, "dims", sizes)
        object.__setattr__(self, "ndim", rank)

    def __str__(self) -> str:
        return f"R.Shape({_sizes_text(self.dims, self.ndim)})"


@dataclass(frozen=True, slots=True, init=False)
class Tensor(Annotation):
    """A tensor: `Tensor("n 4", "float32")`, `Tensor((n, 4), "float32")`, `Tensor(ndim=2)`, `Tensor(dtype="int32")`.

    Sizes are `Dim`s, in elements. A spec string may end in `@dtype`; a spec string without a dtype means float32.
    Without a spec string, a missing dtype means unknown. Rank -1 also means unknown, as in Relax. Any other negative
    rank, or an unknown dtype name, raises SpecError.

    - `shape`: the sizes; None if they are not known.
    - `dtype`: the full name of the dtype; None if it is not known.
    - `ndim`: the rank; None if it is not known.
    """

    shape: tuple[Dim, ...] | None
    dtype: str | None
    ndim: int | None

    def __init__(
        self, shape: str | Sequence[DimLike] | None = None, dtype: str | None = None, ndim: int | None = None
    ) -> None:
        if dtype is not None and not isinstance(dtype, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SpecError(f"Tensor(..., dtype={short_repr(dtype)}): a dtype's name, such as 'float32', is accepted")
        if isinstance(shape, str):
            spec = parse_spec(shape)
            if dtype is not None and spec.dtype is not None and dtype != spec.dtype:
                raise SpecError(f"Tensor({shape!r}, {dtype!r}): the spec says {spec.dtype}, beside it stands {dtype}")
            dtype = dtype or spec.dtype or "float32"
        dtype = _dtype(dtype) if dtype is not None else None
        sizes, rank = _sizes(shape, ndim, "Tensor")
        object.__setattr__(self, "shape", sizes)
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "ndim", rank)

    def __str__(self) -> str:
        parts = [_sizes_text(self.shape, self.ndim)] if self.ndim is not None else []
        if self.dtype is not None:
            parts.append(f'dtype="{self.dtype}"')
        return f"R.Tensor({', '.join(parts)})"

    @property
    def short(self) -> str:
        """The spec spelling, for error messages: `(n, 4) float32`."""
        if self.shape is None:
            return f"rank {'?' if self.ndim is None else self.ndim} {self.dtype or '?'}"
        return f"({', '.join(map(str, self.shape))}{',' if len(self.shape) == 1 else ''}) {self.dtype or '?'}"


@lru_cache(1 << 7)  # about 30 dtype names exist
def _dtype(name: str) -> str:
    """Returns the full name of a dtype of this package or of JAX (for values that are only passed on). SpecError for
    any other name."""
    name = SHORT_NAMES.get(name, name)
    if name in RECORDS or name == ANY_KEY or KEY_DTYPE.fullmatch(name):
        return name
    raise SpecError(f"`{short_repr(name)[1:-1]}` is not a dtype\n  accepted: {accepted_dtypes(name)}")


@dataclass(frozen=True, slots=True)
class Tuple(Annotation):
    """A tuple.

    - `fields`: the annotations of its values.
    - `extent`: the number of annotations inside, each occurrence counted, and the nesting depth.
    """

    fields: tuple[Annotation, ...]
    extent: tuple[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "extent", _extent(tuple(_sequence(self.fields, "Tuple"))))

    def __str__(self) -> str:
        return f"R.Tuple({', '.join(map(str, self.fields))})"


@dataclass(frozen=True, slots=True)
class Callable(Annotation):
    """A function value, described by its signature.

    - `params`, `result`: the annotations of the parameters and of the result.
    - `extent`: the number of annotations inside, each occurrence counted, and the nesting depth.
    """

    params: tuple[Annotation, ...]
    result: Annotation
    extent: tuple[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "extent", _extent((*_sequence(self.params, "Callable"), self.result)))

    def __str__(self) -> str:
        params = ", ".join(map(str, self.params)) + ("," if len(self.params) == 1 else "")
        return f"R.Callable(({params}), {self.result})"


def _sequence(value: Any, what: str) -> Sequence[Annotation]:
    if not isinstance(value, (tuple, list)):
        raise SpecError(f"{what}({short_repr(value)}): a tuple of annotations is accepted")
    return cast("Sequence[Annotation]", value)


def _extent(inside: tuple[Annotation, ...]) -> tuple[int, int]:
    """Returns the number of annotations inside `inside`, counting each occurrence, and the nesting depth.

    SpecError if either exceeds its limit, because code that walks annotations visits each occurrence.
    """
    for a in inside:
        if not isinstance(a, Annotation):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SpecError(f"{short_repr(a)} is no annotation; accepted: Tensor, Shape, Tuple, Callable, Object")
    known = [a.extent if isinstance(a, (Tuple, Callable)) else (1, 0) for a in inside]
    fields, depth = sum(n for n, _ in known), 1 + max((d for _, d in known), default=0)
    if fields > FIELDS:
        raise SpecError(f"a tuple of {fields} values, those of tuples inside counted; at most {FIELDS} are accepted")
    if depth > NESTED:
        raise SpecError(f"tuples {depth} deep inside one another; at most {NESTED} are accepted")
    return fields, depth


def _sizes(
    dims: str | Sequence[DimLike] | None, ndim: int | None, what: str
) -> tuple[tuple[Dim, ...] | None, int | None]:
    if ndim is not None and not (type(ndim) is int and UNKNOWN_RANK <= ndim <= RANK):
        accepted = f"a rank is a whole number >= 0, or -1 where it is unknown; axes from 0 to {RANK} are accepted"
        raise SpecError(f"{what}(ndim={short_repr(ndim)}): {accepted}")
    ndim = None if ndim == UNKNOWN_RANK else ndim
    if dims is None:
        return None, ndim
    if not isinstance(dims, (str, Sequence)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SpecError(f"{what}({short_repr(dims)}): sizes such as 'n 4' or (\"n\", 4) are accepted")
    parts: Sequence[Dim | Star | None]
    parts = parse_spec(dims).dims if isinstance(dims, str) else [Dim.of(d) for d in dims]
    if len(parts) > RANK:
        raise SpecError(f"{what} of {len(parts)} axes; at most {RANK} are accepted")
    if any(isinstance(d, Star) for d in parts):
        raise SpecError(f"{what}({short_repr(dims)}): `*name` stands for any number of axes and is for rules only")
    if ndim is not None and ndim != len(parts):
        raise SpecError(
            f"{what}({short_repr(dims)}, ndim={short_repr(ndim)}): {len(parts)} sizes do not make rank {ndim}"
        )
    known = tuple(d for d in parts if isinstance(d, Dim))
    return (known if len(known) == len(parts) else None), len(parts)


def _sizes_text(dims: tuple[Dim, ...] | None, ndim: int | None) -> str:
    if dims is None:
        return "" if ndim is None else f"ndim={ndim}"
    items = ", ".join(str(d.value) if d.is_const else f'"{d}"' for d in dims)
    return f"({items}{',' if len(dims) == 1 else ''})"


def may_be_wide(annotation: Annotation) -> bool:
    """Whether a tensor described by `annotation` may hold 64-bit numbers. An unknown dtype counts as 64-bit."""
    if isinstance(annotation, Tuple):
        return any(map(may_be_wide, annotation.fields))
    return isinstance(annotation, Tensor) and (annotation.dtype is None or annotation.dtype in WIDE)


def dims_of(annotation: Annotation) -> tuple[Dim, ...]:
    """Returns every known size inside an annotation, tuples included, in order."""
    found: list[Dim] = []
    stack: list[Annotation] = [annotation]
    while stack:
        a = stack.pop()
        if isinstance(a, Tensor):
            found.extend(a.shape or ())
        elif isinstance(a, Shape):
            found.extend(a.dims or ())
        elif isinstance(a, Tuple):
            stack.extend(reversed(a.fields))
    return tuple(found)


def has_functions(annotation: Annotation) -> bool:
    """Whether a value with this annotation is a function or a tuple that contains one."""
    if isinstance(annotation, Tuple):
        return any(map(has_functions, annotation.fields))
    return isinstance(annotation, Callable)


def paired_dims(a: Annotation, b: Annotation) -> Iterator[tuple[Dim, Dim]]:
    """Yields pairs of sizes at the same position of two annotations, for example a parameter and its argument, or a
    value and its asserted annotation. Parts of different kinds yield nothing."""
    if isinstance(a, Tuple) and isinstance(b, Tuple):
        for x, y in zip(a.fields, b.fields, strict=False):
            yield from paired_dims(x, y)
    elif isinstance(a, (Tensor, Shape)) and type(b) is type(a):
        yield from zip(dims_of(a), dims_of(b), strict=False)


def with_sizes(annotation: Annotation, env: Mapping[Dim, Dim]) -> Annotation:
    """Returns `annotation` with every size that is a key of `env` replaced. A size is replaced only as a whole; other
    sizes stay."""
    if isinstance(annotation, Tensor) and annotation.shape is not None:
        return Tensor(tuple(env.get(d, d) for d in annotation.shape), annotation.dtype)
    if isinstance(annotation, Shape) and annotation.dims is not None:
        return Shape(tuple(env.get(d, d) for d in annotation.dims))
    if isinstance(annotation, Tuple):
        return Tuple(tuple(with_sizes(f, env) for f in annotation.fields))
    return annotation


def named_sizes(name: str, a: Annotation) -> Iterator[tuple[str, tuple[Dim | None, ...]]]:
    """Yields name and sizes of each tensor and shape of known rank inside a value called `name`. An unknown size is
    None."""
    if isinstance(a, Tuple):
        for i, field in enumerate(a.fields):
            yield from named_sizes(f"{name}[{i}]", field)
    elif isinstance(a, (Tensor, Shape)) and a.ndim is not None:
        dims = a.shape if isinstance(a, Tensor) else a.dims
        yield name, (None,) * a.ndim if dims is None else dims


def substitute(annotation: Annotation, env: dict[str, Dim]) -> Annotation:
    """Returns `annotation` with size variables replaced by sizes."""
    if isinstance(annotation, Tensor) and annotation.shape is not None:
        return Tensor(tuple(d.substitute(env) for d in annotation.shape), annotation.dtype)
    if isinstance(annotation, Shape) and annotation.dims is not None:
        return Shape(tuple(d.substitute(env) for d in annotation.dims))
    if isinstance(annotation, Tuple):
        return Tuple(tuple(substitute(f, env) for f in annotation.fields))
    return annotation
