"""Values of algebraic data types, closures and references, as programs compute them, and definitions of data types.

List = data_type("List(a)", Nil=(), Cons=("a", "List(a)"))
List(Tensor("n"))                                           an annotation
List.Cons(x, List.Nil())                                    a value
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

from relax_eg.argument_checks import short_repr
from relax_eg.errors import OptionError, ShapeError, SpecError
from relax_eg.ir.annotations import (
    Annotation,
    Constructor,
    Data,
    DataType,
    DataValue,
    Named,
    Tensor,
    Tuple,
    TypeVar,
    dims_of,
    inside,
    with_inside,
)
from relax_eg.traversal import made_from_below, reached

_WANTED = 'a constructor and the annotations of its fields, as Cons=("a", "List(a)") of data_type("List(a)", ...)'
SHOWN_PLACE = 120  # chosen: characters of the place of a value that an error names


class FunctionValue:
    """A function as a value.

    - `name`: the function of the module.
    - `captured`: its last arguments.
    """

    __slots__ = ("captured", "name")

    def __init__(self, name: str, captured: tuple[Any, ...]) -> None:
        self.name = name
        self.captured = captured

    def __repr__(self) -> str:
        return f"<function {self.name}>"


class Cell:
    """A mutable cell.

    - `content`: the value in it.
    """

    __slots__ = ("content",)

    def __init__(self, content: Any) -> None:
        self.content = content


def data_type(name: str, /, **constructors: Sequence[Annotation | str] | Annotation | str) -> DataType:
    """Returns a new algebraic data type.

    - `name`: its name, with its type parameters: "List(a)".
    - `constructors`: for each constructor the annotations of its fields: annotations, type parameters by name, or the
      type itself, as "List(a)".

    SpecError for names that are no identifiers, and for fields that are no annotations.
    """
    own, params = _head(name)
    return DataType(own, params, _constructors(own, params, constructors, {own: params}))


class GroupedType(DataType):
    """A data type of a group whose members mention each other. The members of equal groups are the same objects.

    - `group`: the members' names, type parameters and constructors. Members are mentioned by name there.
    - `place`: which of them it is.
    """

    group: Group
    place: int

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, GroupedType) and self.place == other.place and self.group == other.group
        )

    __hash__ = DataType.__hash__

    def __repr__(self) -> str:
        return f"<data type {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _member, (self.group, self.place)


Group = tuple[tuple[str, tuple[str, ...], tuple[Constructor, ...]], ...]
_GROUPS: WeakValueDictionary[tuple[Group, int], GroupedType] = WeakValueDictionary()


def grouped(group: Group) -> tuple[DataType, ...]:
    """Returns the data types of a group. Linear in its size."""
    found = [_GROUPS.get((group, i)) for i in range(len(group))]
    members = [m for m in found if m is not None]
    if len(members) == len(group):
        return tuple(members)
    made = {name: object.__new__(GroupedType) for name, _, _ in group}
    if len(made) < len(group):
        raise SpecError("two data types of a group have one name\n  accepted: a name of its own for each")
    for i, (name, params, _) in enumerate(group):
        for key, value in (("name", name), ("params", params), ("group", group), ("place", i)):
            object.__setattr__(made[name], key, value)
    for name, _, constructors in group:
        others = {n: m for n, m in made.items() if n != name}
        own = tuple(Constructor(c.name, tuple(_with_members(f, others) for f in c.fields)) for c in constructors)
        object.__setattr__(made[name], "constructors", own)
    for i, m in enumerate(made.values()):
        _GROUPS[group, i] = m
    return tuple(made.values())


def _member(group: Group, place: int) -> DataType:
    return grouped(group)[place]


def _with_members(a: Annotation, others: Mapping[str, DataType]) -> Annotation:
    """An annotation with the data types themselves in place of their names."""
    parts = [_with_members(p, others) for p in inside(a)]
    if isinstance(a, Named) and a.name in others:
        return others[a.name](*parts)
    return with_inside(a, parts) if parts else a


def data_types(definitions: Mapping[str, Mapping[str, Sequence[Annotation | str]]], /) -> tuple[DataType, ...]:
    """Returns new algebraic data types that may mention each other.

    - `definitions`: for each type its name, with its type parameters, and its constructors, as `data_type` takes them:
      `{"Rose(a)": {"Node": ("a", "Forest(a)")}, "Forest(a)": {"End": (), "More": ("Rose(a)", "Forest(a)")}}`.

    SpecError as `data_type`, and for two types of one name.
    """
    if not isinstance(definitions, Mapping) or not definitions:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SpecError(f"data_types({short_repr(definitions)}): a dict from names to constructors is accepted")
    heads = list(map(_head, definitions))
    rows = zip(heads, definitions.values(), strict=True)
    return grouped(tuple((own, params, _constructors(own, params, cs, dict(heads))) for (own, params), cs in rows))


def _constructors(
    own: str, params: tuple[str, ...], given: Mapping[str, Any], heads: Mapping[str, tuple[str, ...]]
) -> tuple[Constructor, ...]:
    if not isinstance(given, Mapping) or not given:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SpecError(f"{own}: it has no constructor\n  accepted: {_WANTED}")
    made: list[Constructor] = []
    for constructor, fields in given.items():
        if not isinstance(constructor, str) or not constructor.isidentifier():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SpecError(f"{own}: {short_repr(constructor)} is no name of a constructor\n  accepted: {_WANTED}")
        listed = fields if isinstance(fields, (tuple, list)) else (fields,)
        made.append(Constructor(constructor, tuple(_field(f, own, params, heads) for f in listed)))
    return tuple(made)


def _head(text: Any) -> tuple[str, tuple[str, ...]]:
    whole = text if isinstance(text, str) else ""
    own, _, rest = whole.partition("(")
    params = [p.strip() for p in rest.removesuffix(")").split(",")] if rest.strip(") ") else []
    names = [own.strip(), *params]
    if not all(n.isidentifier() for n in names) or bool(rest) != whole.endswith(")") or len(set(names)) < len(names):
        raise SpecError(f'{short_repr(text)} is no name of a data type\n  accepted: "Tree", "List(a)", "Pair(a, b)"')
    return names[0], tuple(params)


def _field(field: Any, own: str, params: tuple[str, ...], heads: Mapping[str, tuple[str, ...]]) -> Annotation:
    if isinstance(field, Annotation):
        return field
    if isinstance(field, str):
        if field in params:
            return TypeVar(field)
        name, args = _head(field)
        if len(args) == len(heads.get(name, ())) and name in heads and set(args) <= set(params):
            return Named(name, tuple(map(TypeVar, args)))
    if isinstance(field, DataType) and not field.params:
        return field()
    raise SpecError(
        f"{own}: the field {short_repr(field)} is no annotation\n"
        f"  accepted: annotations, {', '.join((*params, *(f'{n}({chr(44).join(p)})' for n, p in heads.items())))}"
    )


def list_of(definition: DataType, items: Iterable[Any]) -> DataValue:
    """Returns the value of a type with an empty and a prepending constructor, such as List, that holds `items`.
    OptionError for another type, or for `items` that are no values in order."""
    counts = [len(c.fields) for c in definition.constructors] if isinstance(definition, DataType) else []  # pyright: ignore[reportUnnecessaryIsInstance]
    if sorted(counts) != [0, 2]:
        raise OptionError(f"list_of({short_repr(definition)}): a data type such as rx.script.List is accepted")
    if not isinstance(items, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionError(f"list_of(..., {short_repr(items)}): values in order are accepted")
    empty = counts.index(0)
    found = DataValue(definition, empty, ())
    for item in reversed(list(items)):
        found = DataValue(definition, 1 - empty, (item, found))
    return found


def items_of(value: DataValue) -> list[Any]:
    """Returns the elements of a list: the first field of each cell, along the last one. OptionError for another
    value."""
    if not isinstance(value, DataValue) or len(value.fields) not in (0, 2):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionError(f"items_of({short_repr(value)}): a list, such as rx.script.list_of makes, is accepted")
    found: list[Any] = []
    while value.fields:
        found.append(value.fields[0])
        value = value.fields[-1]
    return found


def map_data(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """Returns `value` with `leaf(x)` for every value `x` in its data and tuples. It may be nested as deeply as memory
    allows; what is shared in it stays shared."""
    held: dict[int, Any] = {id(value): value}

    def parts(i: int) -> list[int]:
        v = held[i]
        inside: tuple[Any, ...] = v.fields if isinstance(v, DataValue) else v if isinstance(v, tuple) else ()  # type: ignore[reportUnknownVariableType]
        held.update((id(p), p) for p in inside)
        return [id(p) for p in inside]

    def made(i: int) -> Any:
        v = held[i]
        if not isinstance(v, (DataValue, tuple)):
            return leaf(v)
        new = tuple([done[p] for p in parts(i)])
        return DataValue(v.definition, v.index, new) if isinstance(v, DataValue) else new

    done: dict[int, Any] = {}
    return made_from_below(id(value), parts, made, done)


def sizes_in_data(annotation: Annotation) -> set[str]:
    """Returns the size variables inside of data types."""
    data = (a for a in reached([annotation], inside) if isinstance(a, Data))
    return {v for a in data for x in a.args for d in dims_of(x) for v in d.variables}


def all_sizes(value: Any) -> set[str]:
    """Returns the size variables of the annotation of an expression, those inside of data types included."""
    return {v for d in dims_of(value.annotation) for v in d.variables} | sizes_in_data(value.annotation)


def unknown_size_error(where: str, name: str, size: str) -> ShapeError:
    """Returns the error for data in which no tensor tells a size that is needed."""
    problem = f"{where}: no tensor in {name} tells the size `{size}`, which is needed"
    return ShapeError(f"{problem}\n  accepted: data with such a tensor, or another parameter that has the size")


def map_annotated(where: str, a: Annotation, value: Any, convert: Callable[[str, Tensor, Any], Any]) -> Any:
    """Returns a value of data types and tuples with `convert(where, annotation, x)` for every tensor in it. It may be
    nested as deeply as memory allows. ShapeError where it has another type than its annotation says."""
    # Equal annotations are one object here, so that looking one up takes no longer for a nested one.
    kinds: dict[Annotation, Annotation] = {a: a}
    fields: dict[tuple[int, int], tuple[Annotation, ...]] = {}

    def fields_of(d: Data, index: int) -> tuple[Annotation, ...]:
        found = fields.get((id(d), index))
        if found is None:
            found = fields[id(d), index] = tuple(kinds.setdefault(f, f) for f in d.fields(index))
        return found

    held: dict[tuple[int, int], tuple[str, Annotation, Any]] = {(id(value), id(a)): (where, a, value)}

    def parts(key: tuple[int, int]) -> list[tuple[int, int]]:
        inside = {(id(x), id(b)): (name, b, x) for name, b, x in _parts(*held[key], fields_of) or ()}
        held.update(inside)
        return list(inside)[::-1]

    def made(key: tuple[int, int]) -> Any:
        place, wanted, v = held[key]
        inside = _parts(place, wanted, v, fields_of)
        if inside is None:
            return convert(place, wanted, v) if isinstance(wanted, Tensor) else v
        new = tuple([done[id(x), id(b)] for _, b, x in inside])
        return DataValue(v.definition, v.index, new) if isinstance(v, DataValue) else new

    done: dict[tuple[int, int], Any] = {}
    return made_from_below((id(value), id(a)), parts, made, done)


def _parts(
    where: str, a: Annotation, value: Any, fields_of: Callable[[Data, int], tuple[Annotation, ...]]
) -> list[tuple[str, Annotation, Any]] | None:
    if isinstance(a, Data):
        if not isinstance(value, DataValue) or (
            value.definition is not a.definition and value.definition != a.definition
        ):
            what = value.definition if isinstance(value, DataValue) else f"{type(value).__name__} {short_repr(value)}"
            raise ShapeError(f"{where} should be a {a.definition}, got {what}")
        name = f"{where}.{value.constructor}" if len(where) < SHOWN_PLACE else where
        annotations = fields_of(a, value.index)
        return [(f"{name}[{i}]", b, x) for i, (b, x) in enumerate(zip(annotations, value.fields, strict=True))]
    if isinstance(a, Tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(a.fields):  # type: ignore[reportUnknownArgumentType]
            raise ShapeError(f"{where} should be a tuple of {len(a.fields)}, got {short_repr(value)}")
        return [(f"{where}[{i}]", b, x) for i, (b, x) in enumerate(zip(a.fields, value, strict=True))]  # type: ignore[reportUnknownArgumentType]
    return None


List = data_type("List(a)", Nil=(), Cons=("a", "List(a)"))
Option = data_type("Option(a)", Nothing=(), Some=("a",))
Tree = data_type("Tree(a)", Leaf=("a",), Node=("Tree(a)", "Tree(a)"))
