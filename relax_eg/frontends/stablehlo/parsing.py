"""StableHLO modules as plain data, read with the MLIR bindings of jaxlib. No other file uses these bindings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import ml_dtypes
import numpy as np
from jaxlib.mlir import ir  # type: ignore[reportMissingTypeStubs]
from jaxlib.mlir._mlir_libs import _jax_mlir_ext  # type: ignore[reportMissingTypeStubs, reportPrivateUsage]
from jaxlib.mlir.dialects import chlo, sdy, stablehlo  # type: ignore[reportMissingTypeStubs]

from relax_eg.dtypes import NUMBERS, Dtype, dtype_of
from relax_eg.errors import StableHloError


def _mlir_name(d: Dtype) -> str:
    """MLIR's name of a dtype: i1, ui8, bf16, f8E4M3FN, complex<f32>."""
    if d.kind == "c":
        return f"complex<{_mlir_name(d.part)}>"
    if not d.is_float:
        return {"b": "i1", "i": f"i{d.bits}", "u": f"ui{d.bits}"}[d.kind]
    width, _, form = d.name.replace("float", "f").partition("_")
    return width + form.upper()


_ELEMENTS = {_mlir_name(dtype_of(name)): name for name in NUMBERS}
_GIVEN_BY_LISTS = {
    "DotDimensionNumbers": (
        "lhs_batching_dimensions", "rhs_batching_dimensions",
        "lhs_contracting_dimensions", "rhs_contracting_dimensions",
    ),
    "ConvDimensionNumbers": (
        "input_batch_dimension", "input_feature_dimension", "input_spatial_dimensions",
        "kernel_input_feature_dimension", "kernel_output_feature_dimension", "kernel_spatial_dimensions",
        "output_batch_dimension", "output_feature_dimension", "output_spatial_dimensions",
    ),
    "GatherDimensionNumbers": (
        "offset_dims", "collapsed_slice_dims", "operand_batching_dims", "start_indices_batching_dims",
        "start_index_map", "index_vector_dim",
    ),
    "ScatterDimensionNumbers": (
        "update_window_dims", "inserted_window_dims", "input_batching_dims", "scatter_indices_batching_dims",
        "scattered_dims_to_operand_dims", "index_vector_dim",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class HloType:
    """The type of a tensor. `shape`: its sizes; None for one that is not known."""

    shape: tuple[int | None, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class HloOp:
    """An operation.

    - `name`: its name with its dialect, such as "stablehlo.add".
    - `operands`, `results`: numbers of values.
    - `types`: the types of the results; None for what is no tensor.
    - `attributes`: numbers, texts, numpy arrays, and mappings of these.
    """

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    types: tuple[HloType | None, ...]
    attributes: Mapping[str, Any]
    regions: tuple[HloRegion, ...]

    def at(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)


@dataclass(frozen=True, eq=False)
class HloRegion:
    """A block of operations: a function, or a region of an operation. The last operation returns its results."""

    params: tuple[int, ...]
    types: tuple[HloType | None, ...]
    ops: tuple[HloOp, ...]

    def walk(self) -> Iterator[HloOp]:
        """Every operation, those inside others too."""
        for op in self.ops:
            yield op
            for region in op.regions:
                yield from region.walk()


@dataclass(frozen=True, eq=False)
class HloModule:
    """A module.

    - `functions`: its functions by name.
    - `main`: the function that it is read for: `main`, or its only public function.
    """

    functions: Mapping[str, HloRegion]
    main: HloRegion

    @cached_property
    def dtypes(self) -> frozenset[str]:
        """The dtypes of all values."""
        regions = self.functions.values()
        types = [t for f in regions for t in (*f.types, *(t for op in f.walk() for t in op.types))]
        return frozenset(t.dtype for t in types if t is not None)


def parse_module(source: str | bytes) -> HloModule:
    """The module of a text or of bytes. StableHloError for anything else."""
    context = ir.Context()
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    with context:
        stablehlo.register_dialect(context)
        chlo.register_dialect(context)
        sdy.register_dialect(context)  # JAX says in it how custom calls may be sharded
        try:
            if isinstance(source, bytes):  # a portable artifact, or operations as they are, which this leaves
                module: Any = stablehlo.deserialize_portable_artifact(context, source)
            else:
                module = ir.Module.parse(source)
        except Exception as error:  # the bindings raise errors of several classes
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            first = next((line for line in lines if "error:" in line), lines[0] if lines else type(error).__name__)
            if (quantized := re.search(r'!"quant"<"(.*?)">', first)) is not None:  # a dialect that jaxlib does not have
                raise _no_element(f"!quant.{quantized[1]}") from None
            raise StableHloError(f"no StableHLO ({first})\n  accepted: the text or bytes of a module") from None
        reader = _Reader()
        functions: dict[str, HloRegion] = {}
        public: list[str] = []
        for op in module.body.operations:
            if op.operation.name == "func.func":
                name = str(op.attributes["sym_name"].value)
                functions[name] = reader.region(op.regions[0])
                if "sym_visibility" not in op.attributes or op.attributes["sym_visibility"].value == "public":
                    public.append(name)
    if "main" not in functions and len(public) != 1:
        named = f": {', '.join(public)}" if public else ""
        text = f"a module without a function `main`, of {len(public)} public functions{named}"
        raise StableHloError(f"{text}\n  accepted: a module with `main`, or with one public function")
    return HloModule(functions, functions["main" if "main" in functions else public[0]])


class _Reader:
    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def region(self, region: Any) -> HloRegion:
        if len(region.blocks) != 1:
            raise StableHloError(f"a region of {len(region.blocks)} blocks\n  accepted: one block")
        (block,) = region.blocks
        params = tuple(self.number(a) for a in block.arguments)
        return HloRegion(params, tuple(_type(a.type) for a in block.arguments), tuple(map(self.op, block.operations)))

    def op(self, view: Any) -> HloOp:
        op = view.operation
        attributes: dict[str, Any] = {}
        for name in op.attributes:
            try:
                attributes[name] = _plain(op.attributes[name])
            except TypeError as error:  # the bindings have no class for it
                attributes[name] = _constant(op) if op.name == "stablehlo.constant" else Unreadable(str(error))
        return HloOp(
            op.name,
            tuple(self.number(v) for v in op.operands),
            tuple(self.number(v) for v in op.results),
            tuple(_type(v.type) for v in op.results),
            attributes,
            tuple(self.region(r) for r in op.regions if len(r.blocks)),
        )


@dataclass(frozen=True)
class Unreadable:
    """An attribute that the bindings do not read."""

    why: str


def _type(kind: Any) -> HloType | None:
    if not isinstance(kind, ir.RankedTensorType):
        return None
    tensor: Any = kind
    shape = tuple(None if tensor.is_dynamic_dim(i) else int(tensor.shape[i]) for i in range(tensor.rank))
    return HloType(shape, _element(tensor.element_type))


def _element(kind: Any) -> str:
    found = _ELEMENTS.get(str(kind))
    if found is None:
        raise _no_element(str(kind))
    return found


def _no_element(kind: str) -> StableHloError:
    return StableHloError(f"elements of type {kind}\n  accepted: {', '.join(_ELEMENTS)}")


def _plain(a: Any) -> Any:
    """An attribute as plain data; texts for what is not known."""
    for name, fields in _GIVEN_BY_LISTS.items():
        kind: Any = getattr(stablehlo, name)
        if kind.isinstance(a):
            found = kind(a)
            return {f: v if isinstance(v := getattr(found, f), int) else tuple(v) for f in fields}
    if isinstance(a, ir.DenseElementsAttr):
        return _array(a)
    if isinstance(a, ir.ArrayAttr):
        return [_plain(x) for x in a]
    if isinstance(a, ir.DictAttr):
        return {x.name: _plain(x.attr) for x in cast("Any", a)}
    if isinstance(a, ir.DenseI64ArrayAttr | ir.DenseBoolArrayAttr):
        return tuple(cast("Any", a))
    if isinstance(a, ir.TypeAttr):
        return str(a.value)
    if isinstance(a, ir.StringAttr):  # the options of some custom calls are bytes that are no text
        return cast("Any", a).value_bytes.decode(errors="backslashreplace")
    return getattr(a, "value", str(a))


def _array(a: Any) -> np.ndarray[Any, Any]:
    kind: Any = ir.RankedTensorType(a.type)
    shape = tuple(kind.shape)
    if str(kind.element_type) == "index":  # layouts, which PyTorch's exporter writes
        return _array_of_text(str(a), np.dtype(np.int64), shape)
    dtype = np.dtype(_element(kind.element_type))
    if a.is_splat and dtype.kind != "c":
        return np.full(shape, a.get_splat_value().value, dtype)
    if dtype.kind in "biuf" and dtype.type.__module__ != ml_dtypes.__name__:
        return np.array(a).astype(dtype).reshape(shape)
    return _array_of_text(str(a), dtype, shape)


def _constant(op: Any) -> np.ndarray[Any, Any]:
    """The value of a constant from its text: the bindings read no arrays of complex numbers."""
    kind = _type(op.results[0].type)
    assert kind is not None
    shape = tuple(d for d in kind.shape if d is not None)
    return _array_of_text(re.sub(r"^.*?(?=dense<)", "", op.get_asm(), count=1, flags=re.S), np.dtype(kind.dtype), shape)


def _array_of_text(text: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The array in the text of an attribute, `dense<[1.5, 0x7F80]> : tensor<2xbf16>`, for dtypes of which the bindings
    read no arrays. A hexadecimal number holds the bits of a float, and a complex number is two of them; a long array is
    one text of its bytes."""
    body = text[text.index("<") + 1 : text.rindex("> :")]
    if body.startswith('"0x'):
        return np.frombuffer(bytes.fromhex(body[3:-1]), dtype).reshape(shape)
    found = re.findall(r"0x[0-9A-Fa-f]+|-?[0-9][0-9.eE+-]*", body)
    part = np.dtype(dtype_of(dtype.name).part.name) if dtype.kind == "c" else dtype
    bits = np.dtype(f"uint{8 * part.itemsize}")
    made = [np.array(int(x, 16), bits).view(part) if x.startswith("0x") else np.array(float(x), part) for x in found]
    array = np.array(made, part).view(dtype)
    return np.full(shape, array[0], dtype) if array.size == 1 else array.reshape(shape)
