"""Text of constants and attribute values, in both directions.

Text is exact: a constant is written as numbers only if reading them gives the same bits, and as packed bytes otherwise.
"""

from __future__ import annotations

import base64
import math
import zlib
from typing import Any, cast

import numpy as np

from relax_eg.dtypes import is_complex, is_float, is_integer, numpy_dtype
from relax_eg.errors import WellFormedError
from relax_eg.ir.annotations import Annotation
from relax_eg.ir.expr import ConstantData
from relax_eg.ir.foreign import Foreign
from relax_eg.shapes import Dim

Array = np.ndarray[Any, Any]

# limit: a constant with more elements is packed.
MAX_WRITTEN = 16


def quoted(text: str) -> str:
    """Returns `text` as a Python literal in double quotes, ASCII only."""
    return '"' + text.encode("unicode_escape").decode("ascii").replace('"', '\\"') + '"'


def number_text(value: bool | int | float | complex) -> str:
    """Returns a number as Python reads it. Infinities and NaN are `float("inf")` and `float("nan")`."""
    if isinstance(value, complex):
        return f"complex({number_text(value.real)}, {number_text(value.imag)})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value!r}")'
    return repr(value)


def constant_text(array: Array) -> str:
    """Returns `R.const(values, dtype)`, or `R.const_data(dtype, shape, packed)` if the values do not give the exact
    bits or are more than `MAX_SPELLED`."""
    values = _values_text(array)
    if values is None:
        return f'R.const_data("{array.dtype.name}", {tuple(map(int, array.shape))}, "{pack(array)}")'
    return f'R.const({values}, "{array.dtype.name}")'


def _values_text(array: Array) -> str | None:
    if array.size > MAX_WRITTEN:
        return None
    elements = [_element(x) for x in array.reshape(-1)]
    try:
        again = np.stack([array_of(e, array.dtype.name) for e in elements]).reshape(array.shape)
    except ValueError:  # no elements, or a non-numeric dtype
        return None
    if array.size == 0 or again.tobytes() != array.tobytes():
        return None
    texts = list(map(number_text, elements))
    for size in reversed(array.shape):
        texts = [f"[{', '.join(texts[i : i + size])}]" for i in range(0, len(texts), size)]
    return texts[0]


def _element(x: Any) -> bool | int | float | complex:
    """Returns a numpy scalar as a Python number. A float is the shortest one that reads back to the same bits."""
    name = x.dtype.name
    if name == "bool":
        return bool(x)
    if is_integer(name):
        return int(x)
    if is_complex(name):
        return complex(*(part if part == part else math.nan for part in (float(x.real), float(x.imag))))
    if x != x:
        return math.nan  # other NaN payloads cannot be spelled as a number
    short = float(str(x))
    return short if np.asarray(short, x.dtype).tobytes() == x.tobytes() else float(x)


def array_of(values: Any, dtype: str) -> Array:
    """Returns the array of a number, or of nested lists of numbers. ValueError if the dtype cannot hold them."""
    wide = np.asarray(values)
    if dtype == "uint64" and wide.dtype.kind == "f":
        # numpy converts a list with integers on both sides of 2**63 to float.
        whole = np.asarray(values, object)
        if all(type(x) is int and 0 <= x < 2**64 for x in whole.reshape(-1)):
            wide = whole.astype(np.uint64)
    kinds = "b" if dtype == "bool" else "iu" if is_integer(dtype) else "iuf" if is_float(dtype) else "iufc"
    if wide.size and wide.dtype.kind not in kinds:
        raise ValueError(f"{dtype} does not hold such values")
    with np.errstate(all="ignore"):
        narrow = np.asarray(wide, numpy_dtype(dtype))
    if is_integer(dtype) and [int(x) for x in narrow.reshape(-1)] != wide.reshape(-1).tolist():
        raise ValueError(f"{dtype} does not hold integers so large")
    if is_float(dtype) and bool(np.any(np.isfinite(wide) & ~np.isfinite(narrow.astype(np.float64)))):
        raise ValueError(f"{dtype} does not hold numbers so large")
    return narrow


def pack(array: Array) -> str:
    """Returns the bytes of an array, deflated, in base64."""
    return base64.b64encode(zlib.compress(array.tobytes(), 6)).decode("ascii")


def unpack(dtype: str, shape: tuple[int, ...], packed: str) -> Array:
    """Returns the array that `pack` packed. ValueError if the bytes are damaged or have the wrong length."""
    item = numpy_dtype(dtype)
    wanted = math.prod(shape) * item.itemsize
    try:
        inflate = zlib.decompressobj()
        data = inflate.decompress(base64.b64decode(packed, validate=True), wanted + 1)
    except (zlib.error, ValueError):
        raise ValueError("the packed bytes are damaged") from None
    if len(data) != wanted:
        raise ValueError(f"{wanted} bytes are needed for {shape} {dtype}, the packed ones are {_amount(data, wanted)}")
    return np.frombuffer(data, item).reshape(shape)


def _amount(data: bytes, wanted: int) -> str:
    return "more" if len(data) > wanted else str(len(data))


def attribute_text(value: Any) -> str:
    """Returns an attribute's value as text that also identifies its type. WellFormedError for a type without a text
    form."""
    kind = type(value)
    if value is None or kind in (bool, int, float):
        return repr(value) if value is None else number_text(value)
    if kind is str:
        return quoted(value)
    if kind is tuple:
        items = cast("tuple[Any, ...]", value)
        return f"({', '.join(map(attribute_text, items))}{',' if len(items) == 1 else ''})"
    if kind is Dim:
        return f"R.dim({dim_text(value)})"
    if isinstance(value, (Annotation, Foreign)):
        return str(value)
    if isinstance(value, ConstantData):
        return constant_text(value.array)
    if isinstance(value, np.generic):
        return f"R.scalar({constant_text(np.asarray(value))})"
    raise WellFormedError(
        f"an attribute of type {kind.__module__}.{kind.__qualname__} has no text: {value!r}\n"
        "  accepted: numbers, text, None, sizes, annotations, numpy scalars, tuples of these, Foreign(object)"
    )


def dim_text(dim: Dim) -> str:
    """Returns a size as it is written in a shape: `4` or `"2*n"`."""
    return str(dim.value) if dim.is_const else f'"{dim}"'


def sizes_text(dims: tuple[Dim, ...]) -> str:
    return f"({', '.join(map(dim_text, dims))}{',' if len(dims) == 1 else ''})"
