"""Modules as plain data: tables for JSON, and the bytes of constants.

Packing is exact: unpacking gives modules of the same interned expressions. Text (`printer`, `parser`) is for people;
this format is for programs and is read many times faster. Objects of other libraries (`Foreign`) and constants stored
elsewhere are not in the data: `ExternalObjects` name them when packing and find them when unpacking.
"""

from __future__ import annotations

import copyreg
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, cast

import numpy as np

from relax_eg.dtypes import numpy_dtype
from relax_eg.errors import WellFormedError
from relax_eg.ir.annotations import (
    Annotation,
    Callable,
    Constructor,
    Data,
    DataType,
    Named,
    Never,
    Object,
    Ref,
    Shape,
    Tensor,
    Tuple,
    TypeVar,
)
from relax_eg.ir.data import GroupedType, grouped
from relax_eg.ir.expr import (
    CALL_DPS_LIBRARY,
    ConstantData,
    Expr,
    node,
    postorder,
    tuple_,
)
from relax_eg.ir.foreign import Foreign
from relax_eg.ir.heads import HEADS
from relax_eg.ir.module import Binding, Block, Function, Module
from relax_eg.ir.origin import Origin, SourceLine
from relax_eg.shapes import Dim
from relax_eg.tir import TensorProgram, parse_program

VERSION = 4  # given: version of the format; other versions are rejected


class ExternalObjects(Protocol):
    """The objects and constants that the packed data names and does not hold."""

    def name_of(self, foreign: Foreign) -> Any:
        """Returns plain data that `foreign_of` turns into an equal object. Raises if there is none."""
        ...

    def foreign_of(self, name: Any) -> Foreign: ...

    def array_name(self, data: ConstantData) -> str | None:
        """Returns the name of a stored constant with these bits, or None if the constant must be part of the data."""
        ...

    def array_of(self, name: str) -> np.ndarray[Any, Any]: ...


def pack(modules: Sequence[Module], outside: ExternalObjects) -> tuple[dict[str, Any], bytes]:
    """Returns the modules as data for JSON, and the bytes of their constants. What several of them hold is packed once.
    Linear in their size."""
    packer = _Packer(outside)
    data: dict[str, Any] = {"version": VERSION, "modules": [[packer.function(f) for f in m] for m in modules]}
    return data | {name: list(table.rows) for name, table in packer.tables.items()}, bytes(packer.blob)


def unpack(data: Mapping[str, Any], blob: bytes, outside: ExternalObjects) -> tuple[Module, ...]:
    """Returns the modules that `pack` packed. Malformed data raises KeyError, ValueError, TypeError or another
    exception."""
    if data["version"] != VERSION:
        raise ValueError(f"packed modules of version {data['version']}; this is version {VERSION}")
    unpacker = _Unpacker(data, blob, outside)
    return tuple(Module(tuple(map(unpacker.function, functions))) for functions in data["modules"])


# --- pickles ---


class _PickledObjects:
    """The `ExternalObjects` of a pickle: objects of other libraries are pickled beside the data."""

    def __init__(self, objects: list[Foreign]) -> None:
        self.objects = objects

    def name_of(self, foreign: Foreign) -> Any:
        self.objects.append(foreign)
        return len(self.objects) - 1

    def foreign_of(self, name: Any) -> Foreign:
        return self.objects[name]

    def array_name(self, data: ConstantData) -> str | None:
        return None

    def array_of(self, name: str) -> np.ndarray[Any, Any]:
        raise KeyError(name)


def _read(data: dict[str, Any], blob: bytes, objects: list[Foreign]) -> Module:
    (module,) = unpack(data, blob, _PickledObjects(objects))
    return module


def _read_function(*packed: Any) -> Function:
    return _read(*packed).functions[0]


def _read_block(*packed: Any) -> Block:
    return _read_function(*packed).blocks[0]


def read_expression(*packed: Any) -> Expr:
    """The expression of which `reduced_expression` packed the data, the bytes and the objects."""
    return _read_function(*packed).result


def reduced_module(module: Module) -> tuple[Any, ...]:
    """Returns what `pickle` stores for a module. Works for operator chains of any length."""
    objects: list[Foreign] = []
    return _read, (*pack((module,), _PickledObjects(objects)), objects)


def reduced_function(function: Function) -> tuple[Any, ...]:
    return _read_function, reduced_module(Module((function,)))[1]


def reduced_block(block: Block) -> tuple[Any, ...]:
    return _read_block, reduced_function(Function("block", (), (block,), tuple_(())))[1]


def reduced_expression(e: Expr) -> tuple[Any, ...]:
    return read_expression, reduced_function(Function("expression", (), (), e))[1]


copyreg.pickle(Module, reduced_module)
copyreg.pickle(Function, reduced_function)
copyreg.pickle(Block, reduced_block)
copyreg.pickle(Expr, reduced_expression)


@dataclass(slots=True)
class _Table:
    """The rows of a table, without duplicates.

    - `places`: the index of the row of each key.
    - `rows`: the rows in order.
    """

    places: dict[Any, int] = field(default_factory=dict[Any, int])
    rows: list[Any] = field(default_factory=list[Any])

    def add(self, key: Any, row: Any) -> int:
        self.places[key] = len(self.rows)
        self.rows.append(row)
        return len(self.rows) - 1


class _Packer:
    def __init__(self, outside: ExternalObjects) -> None:
        self.outside = outside
        self.blob = bytearray()
        names = ("sizes", "annotations", "foreign", "programs", "constants", "origins", "nodes")
        self.tables = {name: _Table() for name in names}

    def function(self, f: Function) -> Any:
        nodes = self.tables["nodes"]
        values = [x for b in f.bindings for x in (b.var, b.value)]
        for e in postorder([*f.params, *values, f.result], stop=nodes.places.__contains__):
            if e not in nodes.places:
                args = [nodes.places[a] for a in e.args]
                attrs = [x for k, v in e.attrs for x in (k, self._value(v))]
                nodes.add(e, [e.op, args, attrs, self._annotation(e.annotation)])
        place = nodes.places
        blocks = [[k.dataflow, [[place[b.var], place[b.value]] for b in k.bindings]] for k in f.blocks]
        origins = [[place[e], self._origin(origin)] for e, origin in f.origins.items() if e in place]
        return [f.name, [place[p] for p in f.params], blocks, place[f.result], origins, list(f.assume),
                *([[[k, self._value(v)] for k, v in f.attributes]] if f.attributes else [])]  # fmt: skip

    def _origin(self, origin: Origin) -> int:
        origins = self.tables["origins"]
        if origin in origins.places:
            return origins.places[origin]
        where = None if origin.where is None else list(origin.where)
        return origins.add(origin, [[list(line) for line in origin.lines], list(origin.rules), where])

    def _value(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else ["float", repr(value)]
        if kind is complex:
            return ["complex", self._value(value.real), self._value(value.imag)]
        if kind is tuple:
            return ["tuple", *map(self._value, cast("tuple[Any, ...]", value))]
        if kind is Dim:
            return ["size", self._size(value)]
        if isinstance(value, Annotation):
            return ["annotation", self._annotation(value)]
        if isinstance(value, ConstantData):
            return ["constant", self._constant(value)]
        if isinstance(value, Foreign) and isinstance(value.value, TensorProgram):
            return ["program", self._program(value)]
        if isinstance(value, Foreign):
            return ["foreign", self._foreign(value)]
        if isinstance(value, np.generic):
            return ["scalar", self._constant(ConstantData(np.asarray(value)))]
        raise WellFormedError(f"an attribute of type {kind.__module__}.{kind.__qualname__} cannot be packed: {value!r}")

    def _size(self, dim: Dim) -> int:
        sizes = self.tables["sizes"]
        return sizes.places[dim] if dim in sizes.places else sizes.add(dim, dim.value if dim.is_const else str(dim))

    def _sizes(self, dims: tuple[Dim, ...] | None) -> Any:
        return None if dims is None else [self._size(d) for d in dims]

    def _annotation(self, a: Annotation) -> int:
        annotations = self.tables["annotations"]
        if a in annotations.places:
            return annotations.places[a]
        if isinstance(a, Tensor):
            row = ["tensor", self._sizes(a.shape), a.dtype, a.ndim]
        elif isinstance(a, Shape):
            row = ["shape", self._sizes(a.dims), a.ndim]
        elif isinstance(a, Tuple):
            row = ["tuple", [self._annotation(f) for f in a.fields]]
        elif isinstance(a, Callable):
            row = ["callable", [self._annotation(p) for p in a.params], self._annotation(a.result)]
        elif isinstance(a, Data):
            d = a.definition
            grouped_with = d.group if isinstance(d, GroupedType) else ((d.name, d.params, d.constructors),)
            members = [
                [name, list(params), [[c.name, [self._annotation(f) for f in c.fields]] for c in constructors]]
                for name, params, constructors in grouped_with
            ]
            args = [self._annotation(x) for x in a.args]
            row = ["group", members, d.place, args] if isinstance(d, GroupedType) else ["data", *members[0], args]
        elif isinstance(a, Named):
            row = ["named", a.name, [self._annotation(x) for x in a.args]]
        elif isinstance(a, TypeVar):
            row = ["type", a.name]
        elif isinstance(a, Ref):
            row = ["reference", self._annotation(a.content)]
        else:
            row = ["never"] if isinstance(a, Never) else ["object"]
        return annotations.add(a, row)

    def _foreign(self, value: Foreign) -> int:
        foreign = self.tables["foreign"]
        if value in foreign.places:
            return foreign.places[value]
        return foreign.add(value, self.outside.name_of(value))

    def _program(self, value: Foreign) -> int:
        programs = self.tables["programs"]
        if value in programs.places:
            return programs.places[value]
        return programs.add(value, str(value.value))

    def _constant(self, data: ConstantData) -> int:
        constants = self.tables["constants"]
        if data in constants.places:
            return constants.places[data]
        name = self.outside.array_name(data)
        if name is not None:
            return constants.add(data, ["outside", name])
        row = ["here", data.array.dtype.name, list(data.array.shape), len(self.blob), data.array.nbytes]
        self.blob += data.array.tobytes()
        return constants.add(data, row)


def _check_core(op: Any, attrs: tuple[tuple[Any, Any], ...]) -> None:
    """Raises ValueError for a malformed core node, because later passes read its attributes by name."""
    if not isinstance(op, str) or not all(isinstance(k, str) for k, _ in attrs):
        raise ValueError(f"{op!r} is no node")
    wanted = HEADS[op].attributes if op in HEADS else None
    if wanted is not None and {k: type(v) for k, v in attrs} != wanted:
        raise ValueError(
            f"a {op} has the attributes {', '.join(wanted) or 'none'}; got {', '.join(k for k, _ in attrs)}"
        )
    inner = dict(attrs).get("attrs" if op == CALL_DPS_LIBRARY else "sizes", ()) if wanted is not None else ()
    if not all(isinstance(p, tuple) and len(p) == 2 and isinstance(p[0], str) for p in inner):  # type: ignore[reportUnknownArgumentType]
        raise ValueError(f"a {op} has attributes by name")


def _texts(values: Any, what: str) -> list[str]:
    found: list[Any] = list(values)
    if not all(isinstance(x, str) for x in found):
        raise ValueError(f"{what} are text")
    return found


def _origin(lines: Any, rules: Any, where: Any) -> Origin:
    return Origin(tuple(map(_line, lines)), tuple(_texts(rules, "rules")), None if where is None else _line(where))


def _line(row: Any) -> SourceLine:
    file, number = row
    if not isinstance(file, str) or not (number is None or type(number) is int):
        raise ValueError("a line of the source is a file and a number")
    return SourceLine(file, number)


class _Unpacker:
    def __init__(self, data: Mapping[str, Any], blob: bytes, outside: ExternalObjects) -> None:
        self.blob = blob
        self.sizes = [Dim.of(d) for d in data["sizes"]]
        self.annotations: list[Annotation] = []
        for row in data["annotations"]:
            self.annotations.append(self._annotation(row))
        self.foreign = [outside.foreign_of(name) for name in data["foreign"]]
        self.programs = [Foreign(parse_program(text, ranges=False)) for text in data["programs"]]
        self.constants = [ConstantData(self._array(row, outside)) for row in data["constants"]]
        self.origins = [_origin(*row) for row in data["origins"]]
        self.nodes: list[Expr] = []
        for op, args, attrs, annotation in data["nodes"]:
            pairs = tuple(zip(attrs[::2], map(self._value, attrs[1::2]), strict=True))
            _check_core(op, pairs)
            self.nodes.append(node(op, [self.nodes[a] for a in args], pairs, self.annotations[annotation]))

    def function(self, row: Any) -> Function:
        name, params, blocks, result, origins, assume, *more = row
        nodes = self.nodes
        made = [Block(tuple(Binding(nodes[v], nodes[x]) for v, x in pairs), dataflow) for dataflow, pairs in blocks]
        origins_of = {nodes[e]: self.origins[origin] for e, origin in origins}
        whole = tuple(nodes[p] for p in params), tuple(made), nodes[result], MappingProxyType(origins_of)
        (text,) = _texts([name], "names of functions")
        attributes = tuple(
            (_texts([k], "names of attributes")[0], self._value(v)) for k, v in (more[0] if more else ())
        )
        return Function(text, *whole, tuple(_texts(assume, "assumptions")), attributes)

    def _annotation(self, row: Any) -> Annotation:
        kind, *parts = row
        if kind == "tensor":
            dims, dtype, ndim = parts
            return Tensor(self._dims(dims), dtype, ndim)
        if kind == "shape":
            return Shape(self._dims(parts[0]), parts[1])
        if kind == "tuple":
            return Tuple(tuple(self.annotations[f] for f in parts[0]))
        if kind == "callable":
            return Callable(tuple(self.annotations[p] for p in parts[0]), self.annotations[parts[1]])
        if kind in ("data", "named", "type"):
            name, *rest = parts
            _texts([name], "names of types")
            if kind == "type":
                return TypeVar(name)
            if kind == "named":
                return Named(name, tuple(self.annotations[p] for p in rest[0]))
            return Data(DataType(*self._member(name, *rest[:2])), tuple(self.annotations[a] for a in rest[2]))
        if kind == "group":
            members, place, args = parts
            made = grouped(tuple(self._member(*m) for m in members))
            return Data(made[place], tuple(self.annotations[a] for a in args))
        if kind == "reference":
            return Ref(self.annotations[parts[0]])
        if kind == "never":
            return Never()
        if kind != "object":
            raise ValueError(f"no annotation is a {kind!r}")
        return Object()

    def _member(
        self, name: str, params: list[str], constructors: list[Any]
    ) -> tuple[str, tuple[str, ...], tuple[Constructor, ...]]:
        """The name, type parameters and constructors of a data type."""
        made = [Constructor(c, tuple(self.annotations[f] for f in fields)) for c, fields in constructors]
        _texts([name], "names of types")
        _texts([c.name for c in made], "constructors")
        return name, tuple(_texts(params, "type parameters")), tuple(made)

    def _dims(self, places: Any) -> tuple[Dim, ...] | None:
        return None if places is None else tuple(self.sizes[d] for d in places)

    def _array(self, row: Any, outside: ExternalObjects) -> np.ndarray[Any, Any]:
        if row[0] == "outside":
            return outside.array_of(row[1])
        _, dtype, shape, start, count = row
        return np.frombuffer(self.blob[start : start + count], numpy_dtype(dtype)).reshape(shape)

    def _value(self, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        kind, *items = cast("list[Any]", value)
        if kind == "tuple":
            return tuple(map(self._value, items))
        if kind == "size":
            return self.sizes[items[0]]
        if kind == "annotation":
            return self.annotations[items[0]]
        if kind == "constant":
            return self.constants[items[0]]
        if kind == "foreign":
            return self.foreign[items[0]]
        if kind == "program":
            return self.programs[items[0]]
        if kind == "scalar":
            return self.constants[items[0]].array[()]
        if kind == "float":
            return float(items[0])
        if kind == "complex":
            return complex(self._value(items[0]), self._value(items[1]))
        raise ValueError(f"no value is a {kind!r}")
