"""Tokens: values in a form that can be a key outside this process.

A token is made of nested tuples, text, numbers and None. Its `repr` identifies the value: equal tokens mean the same
type and the same bits. 1, True and 1.0 differ, and so do 0.0 and -0.0. Making a token evaluates nothing. A value whose
content is not accessible has no token.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, NoReturn

import numpy as np

from relax_eg.dtypes import RECORDS, Dtype
from relax_eg.ir.annotations import Annotation
from relax_eg.shapes import Dim
from relax_eg.tir.functions import FUNCTIONS, ScalarFunction

# Packages whose classes are identified by name. Whatever a token keys must include their versions.
LIBRARY_PACKAGES = frozenset(("builtins", "jax", "jaxlib", "ml_dtypes", "numpy", "relax_eg"))

# Tables of this package that are identified by name, and so are their records. Most operators mention one.
_TABLES: dict[type, Mapping[str, Any]] = {Dtype: RECORDS, ScalarFunction: FUNCTIONS}


class NoContentError(Exception):
    """A value's content cannot be determined, so it cannot be a key."""


def raise_no_content(value: Any) -> NoReturn:
    raise NoContentError(f"the content of a {type(value).__module__}.{type(value).__qualname__} does not show")


def is_library_class(kind: type) -> bool:
    """Whether `kind` is a class of one of `LIBRARY_PACKAGES`."""
    return kind.__module__.partition(".")[0] in LIBRARY_PACKAGES


def class_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def token(value: Any, other: Callable[[Any], Any] = raise_no_content) -> Any:
    """Returns the token of `value`. `other` is called for values that are not plain data; by default it raises
    NoContentError."""
    kind = type(value)
    if value is None or kind is int or kind is str or kind is bool:
        return value
    if kind is tuple:
        return ("tuple", *[token(v, other) for v in value])
    if kind is list:
        return ("list", *[token(v, other) for v in value])
    if kind is float:
        return ("float", value.hex() if value == value else struct.pack(">d", value).hex())
    if kind is complex:
        return ("complex", token(value.real), token(value.imag))
    if kind is bytes:
        return ("bytes", value.hex())
    if kind is Dim:
        return ("dim", str(value))
    if kind is frozenset or kind is set:
        return (kind.__name__, *sorted([token(v, other) for v in value], key=repr))
    if isinstance(value, np.dtype):
        return _dtype(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return array_token(value)
    if isinstance(value, Mapping):
        for record, table in _TABLES.items():
            if value is table:
                return ("table", class_name(record))
        return ("map", class_name(kind), *[(token(k, other), token(v, other)) for k, v in value.items()])
    if not is_library_class(kind):
        return other(value)
    if isinstance(value, Annotation):
        return ("annotation", str(value))
    if isinstance(value, enum.Enum):
        return ("enum", class_name(kind), value.name)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return ("named", class_name(kind), *[token(v, other) for v in value])
    if isinstance(value, (Dtype, ScalarFunction)) and _TABLES[kind].get(value.name) is value:
        return ("record", class_name(kind), value.name)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [(f.name, token(getattr(value, f.name), other)) for f in dataclasses.fields(value)]
        return ("data", class_name(kind), *fields)
    return other(value)


def array_token(value: Any) -> Any:
    """Returns the token of a numpy array or scalar: dtype, shape, and its bytes, hashed if there are more than 32."""
    array = np.asarray(value)
    dtype = _dtype(array.dtype)
    data = np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(-1).view(np.uint8)
    text = bytes(data).hex() if data.size <= 32 else blake2b(data.data, digest_size=32).hexdigest()
    return ("scalar" if isinstance(value, np.generic) else "array", dtype, array.shape, text)


def _dtype(dtype: np.dtype[Any]) -> Any:
    if dtype.kind not in "biufc" and dtype.type.__module__ != "ml_dtypes":
        raise_no_content(dtype)
    return ("dtype", dtype.name)
