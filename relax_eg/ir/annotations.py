"""Annotations: the facts about a value that are known at compile time (Relax, Table 1).

`Object` is any value. `Shape` is a first-class shape. `Tensor` is an array whose sizes may be symbolic, known in rank
only, or unknown. `Tuple` and `Callable` are built from other annotations; so are `Data`, a value of an algebraic data
type, and `Ref`, a mutable cell. `TypeVar` is a type parameter, and `Never` the annotation of no value. Annotations are
immutable, hashable and compared by value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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

_SHOWN = 20  # chosen: values of a list or tree that its text shows
UNKNOWN_RANK = -1  # given: Relax's spelling


class Annotation:
    """Base class of all annotations."""

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


@dataclass(frozen=True, slots=True, init=False)
class Tuple(Annotation):
    """A tuple. It takes the annotations of its values, one by one as in text, or as one tuple.

    - `fields`: the annotations of its values.
    - `extent`: the number of annotations inside, each occurrence counted, and the nesting depth.
    """

    fields: tuple[Annotation, ...]
    extent: tuple[int, int] = field(init=False, repr=False, compare=False)

    def __init__(self, *fields: Annotation | Sequence[Annotation]) -> None:
        one_by_one = len(fields) != 1 or isinstance(fields[0], Annotation)
        given = tuple(_sequence(fields if one_by_one else fields[0], "Tuple"))
        object.__setattr__(self, "fields", given)
        object.__setattr__(self, "extent", _extent(given))

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


@dataclass(frozen=True, slots=True)
class TypeVar(Annotation):
    """A type parameter of a function or of a data type. A call determines it from its arguments.

    - `name`: its name.
    """

    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():  # type: ignore[reportUnnecessaryIsInstance]
            raise SpecError(f"TypeVar({self.name!r}): a name is accepted, as of a variable")

    def __str__(self) -> str:
        return f'R.TypeVar("{self.name}")'


@dataclass(frozen=True, slots=True)
class Never(Annotation):
    """The annotation that no value has and every annotation covers: that of the elements of an empty list."""

    def __str__(self) -> str:
        return "R.Never"


@dataclass(frozen=True, slots=True)
class Ref(Annotation):
    """A mutable cell.

    - `content`: the annotation of the values in it.
    - `extent`: the number of annotations inside, each occurrence counted, and the nesting depth.
    """

    content: Annotation
    extent: tuple[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "extent", _extent((self.content,)))

    def __str__(self) -> str:
        return f"R.Ref({self.content})"


@dataclass(frozen=True, slots=True)
class Named(Annotation):
    """A use of a data type inside its own definition, by name.

    - `name`: the name of the data type.
    - `args`: the annotations of its type parameters.
    """

    name: str
    args: tuple[Annotation, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.args))})"


@dataclass(frozen=True, slots=True)
class Constructor:
    """A constructor of a data type.

    - `name`: its name, unique in its type.
    - `fields`: the annotations of its fields.
    """

    name: str
    fields: tuple[Annotation, ...]


@dataclass(frozen=True)
class DataType:
    """The definition of an algebraic data type. `List(R.Tensor(...))` is an annotation of its values, and
    `List.Cons(head, tail)` is a value of it.

    - `name`: its name.
    - `params`: the names of its type parameters.
    - `constructors`: its constructors, in order.
    """

    name: str
    params: tuple[str, ...]
    constructors: tuple[Constructor, ...]

    def __hash__(self) -> int:
        return hash((self.name, self.params, len(self.constructors)))  # annotations are hashed often

    def __call__(self, *args: Annotation) -> Data:
        return Data(self, tuple(args))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in [c.name for c in self.constructors]:
            names = ", ".join(c.name for c in self.constructors)
            raise AttributeError(f"`{self.name}` has no constructor `{name}`; it has: {names}")
        return DataBuilder(self, self.index(name))

    def __str__(self) -> str:
        return self.name

    def index(self, name: str) -> int:
        """Returns the place of the constructor `name`. KeyError if there is none."""
        for i, c in enumerate(self.constructors):
            if c.name == name:
                return i
        names = ", ".join(c.name for c in self.constructors)
        raise KeyError(f"`{self.name}` has no constructor `{name}`; it has: {names}")


class DataValue:
    """A value of a data type.

    - `definition`: the data type.
    - `index`: the place of its constructor.
    - `fields`: the values of the constructor's fields.
    """

    __slots__ = ("definition", "fields", "index")

    def __init__(self, definition: DataType, index: int, fields: tuple[Any, ...]) -> None:
        self.definition = definition
        self.index = index
        self.fields = fields

    @property
    def constructor(self) -> str:
        """The name of its constructor."""
        return self.definition.constructors[self.index].name

    def __repr__(self) -> str:
        parts: list[str] = []
        stack: list[Any] = [self]
        while stack and len(parts) < 2 * _SHOWN:
            value = stack.pop()
            if isinstance(value, DataValue) and value.fields:
                parts.append(f"{value.constructor}(")
                stack.append(")")
                for i, f in enumerate(reversed(value.fields)):
                    stack += [", ", f] if i else [f]
            else:
                parts.append(value.constructor if isinstance(value, DataValue) else str(value))
        return "".join(parts) + ("..." if stack else "")


@dataclass(frozen=True, slots=True)
class DataBuilder:
    """A constructor of a data type as a function of Python.

    - `definition`: the data type.
    - `index`: the place of the constructor.
    """

    definition: DataType
    index: int

    def __call__(self, *fields: Any) -> DataValue:
        c = self.definition.constructors[self.index]
        if len(fields) != len(c.fields):
            raise SpecError(f"{self.definition.name}.{c.name} takes {len(c.fields)} fields, got {len(fields)}")
        return DataValue(self.definition, self.index, fields)


@dataclass(frozen=True, slots=True)
class Data(Annotation):
    """A value of an algebraic data type.

    - `definition`: the data type.
    - `args`: the annotations of its type parameters.
    - `extent`: the number of annotations inside, each occurrence counted, and the nesting depth.
    """

    definition: DataType
    args: tuple[Annotation, ...]
    extent: tuple[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        wanted, given = len(self.definition.params), len(_sequence(self.args, self.definition.name))
        if wanted != given:
            name, names = self.definition.name, ", ".join(self.definition.params)
            raise SpecError(f"{name} takes {wanted} annotation{'s' * (wanted != 1)} ({names}), got {given}")
        object.__setattr__(self, "extent", _extent(self.args))

    def __str__(self) -> str:
        return f"{self.definition.name}({', '.join(map(str, self.args))})"

    def fields(self, index: int) -> tuple[Annotation, ...]:
        """Returns the annotations of the fields of constructor `index`."""
        types = dict(zip(self.definition.params, self.args, strict=True))
        return tuple(substitute_types(f, types, self.definition) for f in self.definition.constructors[index].fields)


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
    known = [a.extent if isinstance(a, (Tuple, Callable, Data, Ref)) else (1, 0) for a in inside]
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
    if isinstance(annotation, (Tuple, Data, Ref)):
        return any(map(may_be_wide, inside(annotation)))
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


def dims_in(value: Any) -> tuple[Dim, ...]:
    """Returns every size in an attribute's value: a size, those of an annotation (`dims_of`), or those in a tuple."""
    if isinstance(value, Dim):
        return (value,)
    if isinstance(value, Annotation):
        return dims_of(value)
    return tuple(d for v in value for d in dims_in(v)) if isinstance(value, tuple) else ()  # type: ignore[reportUnknownVariableType]


def is_first_order(annotation: Annotation) -> bool:
    """Whether values with this annotation consist of tensors and shapes, so that XLA programs can take and return
    them."""
    if isinstance(annotation, Tuple):
        return all(map(is_first_order, annotation.fields))
    return not isinstance(annotation, (Callable, Data, Ref, TypeVar, Never, Named))


def inside(annotation: Annotation) -> tuple[Annotation, ...]:
    """Returns the annotations of which `annotation` is built."""
    if isinstance(annotation, Tuple):
        return annotation.fields
    if isinstance(annotation, Callable):
        return (*annotation.params, annotation.result)
    if isinstance(annotation, (Data, Named)):
        return annotation.args
    return (annotation.content,) if isinstance(annotation, Ref) else ()


def with_inside(annotation: Annotation, parts: Sequence[Annotation]) -> Annotation:
    """Returns `annotation` with others in place of those of which it is built (`inside`)."""
    new = tuple(parts)
    if isinstance(annotation, Tuple):
        return Tuple(new)
    if isinstance(annotation, Callable):
        return Callable(new[:-1], new[-1])
    if isinstance(annotation, Data):
        return Data(annotation.definition, new)
    if isinstance(annotation, Named):
        return Named(annotation.name, new)
    return Ref(new[0]) if isinstance(annotation, Ref) else annotation


def substitute_types(
    annotation: Annotation, types: Mapping[str, Annotation], definition: DataType | None = None
) -> Annotation:
    """Returns `annotation` with type parameters replaced. `definition`: the data type that its own name stands for."""
    if isinstance(annotation, TypeVar):
        return types.get(annotation.name, annotation)
    parts = inside(annotation)
    if isinstance(annotation, Named) and definition is not None:
        return Data(definition, tuple(substitute_types(p, types, definition) for p in parts))
    if not parts:
        return annotation
    return with_inside(annotation, [substitute_types(p, types, definition) for p in parts])


def data_types_of(annotations: Iterable[Annotation]) -> tuple[DataType, ...]:
    """Returns the data types that annotations mention, each once, those that another's definition mentions before
    it."""
    found: dict[DataType, None] = {}
    entered: set[DataType] = set()
    stack: list[Annotation | DataType] = []
    stack.extend(reversed(list(annotations)))
    while stack:
        a = stack.pop()
        if isinstance(a, DataType):
            found.setdefault(a)
            continue
        if isinstance(a, Data) and a.definition not in entered:
            entered.add(a.definition)
            stack.append(a.definition)
            stack.extend(f for c in a.definition.constructors for f in c.fields)
        stack.extend(inside(a))
    return tuple(found)


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
    if isinstance(annotation, (Tuple, Data, Ref)):
        return with_inside(annotation, [with_sizes(f, env) for f in inside(annotation)])
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
    if isinstance(annotation, (Tuple, Data, Ref)):
        return with_inside(annotation, [substitute(f, env) for f in inside(annotation)])
    return annotation
