"""The dtypes: one record each, in `RECORDS`. No other code of the package recognises a dtype by the spelling of its
name.

A program names its dtypes by text, such as "float32". `dtype_of` returns the record of a name, and the short functions
below it answer the most frequent questions. A record asks numpy and ml_dtypes for what they know of a dtype: its range,
its precision, whether it has infinities. A new dtype of a kind that exists is one line in `_DTYPES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from relax_eg.errors import ShapeError
from relax_eg.limits import FEW_KEPT

KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex", "k": "PRNG key"}
"""The letters of the kinds of dtypes that programs compute with, and their words in error texts."""

_UNKNOWN_BITS = 64  # chosen: bits of an element of a dtype that has no record


@dataclass(frozen=True)
class Dtype:
    """A dtype of tensors.

    - `name`: its name in programs, in JAX and in numpy or ml_dtypes.
    - `kind`: a letter of `KINDS`; v for a dtype without values.
    - `bits`: bits of one element as it is counted in memory.
    - `short`: its short name in specs; "" if it has none.
    - `only_moved`: whether programs only pass it between library calls; no operator takes it.
    - `tolerance`: accepted error of a result in whose definition it occurs, relative to the largest magnitude of the
      result; 0 for dtypes without rounding, and where float32 is computed beside it.
    """

    name: str
    kind: str
    bits: int
    short: str = ""
    only_moved: bool = False
    tolerance: float = 0.0

    @property
    def is_float(self) -> bool:
        """Whether it is a real floating-point dtype."""
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        """Whether it is a signed or unsigned integer dtype; bool is not."""
        return self.kind in "iu"

    @property
    def is_narrow(self) -> bool:
        """Whether it is a 4-bit integer or an 8-bit float: XLA supports few operations on these, and not the same on
        every device."""
        return self.bits < 8 or (self.is_float and self.bits == 8)

    @property
    def is_half(self) -> bool:
        """Whether it is a 16-bit float."""
        return self.is_float and self.bits == 16

    @property
    def is_wide(self) -> bool:
        """Whether its numbers, or their parts, have 64 bits, which JAX has in its x64 mode only."""
        return self.kind in "iufc" and self.part.bits == 64

    @property
    def itemsize(self) -> int:
        """Bytes of an element in memory. An element of less than a byte takes one."""
        return max(1, self.bits // 8)

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype. A PRNG key is a record of its words."""
        if self.kind == "k":
            generator = generator_of_key(self.name)
            return np.dtype([(generator, np.uint32, (KEY_WORDS[generator],))])
        return np.dtype([(self.name, np.void, 0)] if self.kind == "v" else self.name)

    @cached_property
    def is_native(self) -> bool:
        """Whether numpy itself computes in it."""
        return self.numpy.type.__module__ == np.__name__

    @cached_property
    def part(self) -> Dtype:
        """The real dtype of the parts of a complex number; for other dtypes the dtype itself."""
        if self.kind != "c":
            return self
        return next(d for d in RECORDS.values() if d.is_float and d.bits == self.bits // 2)

    @cached_property
    def complex(self) -> Dtype | None:
        """The complex dtype of which it is the part; None where there is none."""
        return next((d for d in RECORDS.values() if d.kind == "c" and d.part is self), None)

    @cached_property
    def wider(self) -> Dtype:
        """The dtype in which sums of it are computed: float32 for shorter floats, bytes for shorter integers."""
        if self.is_float and self.bits < 32:
            return RECORDS["float32"]
        if self.is_integer and self.bits < 8:
            return next(d for d in RECORDS.values() if d.kind == self.kind and d.bits == 8)
        return self

    @property
    def is_contracted(self) -> bool:
        """Whether XLA fuses a conversion of it into a contraction; for others it refuses to compile (jax 0.10.2)."""
        return self.bits >= 8 or (self.bits == 4 and not self.is_float)

    @cached_property
    def info(self) -> Any:
        """The `iinfo` of an integer dtype, or the `finfo` of a float dtype, from ml_dtypes."""
        return (ml_dtypes.finfo if self.is_float else ml_dtypes.iinfo)(self.numpy)

    @cached_property
    def least(self) -> Any:
        """The least finite number of an integer or float dtype, as a Python number."""
        return float(self.info.min) if self.is_float else int(self.info.min)

    @cached_property
    def greatest(self) -> Any:
        """The greatest finite number of an integer or float dtype, as a Python number."""
        return float(self.info.max) if self.is_float else int(self.info.max)

    @cached_property
    def powers(self) -> int:
        """The least power of 2, as an exponent, above all finite numbers of a float dtype: 128 for float32 and
        bfloat16."""
        return int(self.info.maxexp)

    @cached_property
    def has_short_range(self) -> bool:
        """Whether it is a float dtype whose numbers end before those of float32. What is summed in it is scaled so that
        the sum stays in range."""
        return self.is_float and self.powers < RECORDS["float32"].powers

    @cached_property
    def digits(self) -> int:
        """Significant bits of a number of a float dtype, the leading one counted."""
        return int(self.info.nmant) + 1

    @cached_property
    def half_ulp(self) -> float:
        """The largest relative error of rounding to a normal number of a float dtype."""
        return 2.0**-self.digits

    @cached_property
    def smallest(self) -> float:
        """The smallest positive number of a float dtype."""
        return float(self.info.smallest_subnormal)

    @cached_property
    def has_infinity(self) -> bool:
        """Whether it is a float dtype with infinities. Where there are none, a number beyond the range becomes NaN, or
        the greatest number."""
        return self.is_float and bool(np.isinf(self._converted(np.inf).astype(np.float64)))

    @cached_property
    def has_nan(self) -> bool:
        """Whether it is a float dtype with NaN."""
        return self.is_float and bool(np.isnan(self._converted(np.nan).astype(np.float64)))

    @cached_property
    def has_negative_zero(self) -> bool:
        """Whether it is a float dtype in which 0 has a sign."""
        return self.is_float and bool(np.signbit(self._converted(-0.0).astype(np.float64)))

    def extreme(self, greatest: bool) -> Any:
        """Returns the greatest or the least value: an infinity if there is one."""
        if self.kind == "b":
            return greatest
        if self.has_infinity:
            return float("inf" if greatest else "-inf")
        return self.greatest if greatest else self.least

    def contains(self, other: Dtype) -> bool:
        """Whether every value of `other` is also a value of this dtype, among bool, integers and floats."""
        if self is other or self.kind not in "iuf":
            return self is other
        if other.kind == "b":
            return self.least <= 0 and self.greatest >= 1
        if self.is_integer and other.is_integer:
            return self.least <= other.least and other.greatest <= self.greatest
        if not (self.is_float and other.is_float) or self.digits < other.digits or self.smallest > other.smallest:
            return False
        special = ((d.has_infinity, d.has_nan, d.has_negative_zero) for d in (self, other))
        return self.greatest >= other.greatest and all(mine >= theirs for mine, theirs in zip(*special, strict=True))

    def _converted(self, x: float) -> np.ndarray[Any, Any]:
        with np.errstate(all="ignore"):
            return np.asarray(x).astype(self.numpy)


# given: 32-bit words in one PRNG key of each of JAX's generators; the dtype is `key<fry>` and so on.
KEY_WORDS = {"fry": 2, "rbg": 4, "urbg": 4}
KEY_DTYPE = re.compile(r"key<\w+>")
_KEY = re.compile(r"key<(\w+)>")

# chosen: the errors that are accepted of results; the rest is as JAX and numpy define it
_DTYPES = (
    Dtype("bool", "b", 8),
    Dtype("int4", "i", 4, "i4"),
    Dtype("int8", "i", 8, "i8"),
    Dtype("int16", "i", 16, "i16"),
    Dtype("int32", "i", 32, "i32"),
    Dtype("int64", "i", 64, "i64"),
    Dtype("uint4", "u", 4, "u4"),
    Dtype("uint8", "u", 8, "u8"),
    Dtype("uint16", "u", 16, "u16"),
    Dtype("uint32", "u", 32, "u32"),
    Dtype("uint64", "u", 64, "u64"),
    Dtype("float8_e4m3fn", "f", 8),
    Dtype("float8_e4m3fnuz", "f", 8),
    Dtype("float8_e5m2", "f", 8),
    Dtype("float16", "f", 16, "f16", tolerance=2e-2),
    Dtype("bfloat16", "f", 16, "bf16", tolerance=5e-2),
    Dtype("float32", "f", 32, "f32", tolerance=1e-3),
    Dtype("float64", "f", 64, "f64", tolerance=1e-6),
    Dtype("complex64", "c", 64, "c64", tolerance=1e-3),
    Dtype("complex128", "c", 128, "c128"),
    *(Dtype(f"key<{generator}>", "k", 32 * words) for generator, words in KEY_WORDS.items()),
    Dtype("int1", "i", 1, only_moved=True),
    Dtype("int2", "i", 2),
    Dtype("uint1", "u", 1, only_moved=True),
    Dtype("uint2", "u", 2),
    Dtype("float4_e2m1fn", "f", 4),
    Dtype("float6_e2m3fn", "f", 6, only_moved=True),
    Dtype("float6_e3m2fn", "f", 6, only_moved=True),
    Dtype("float8_e3m4", "f", 8, only_moved=True),
    Dtype("float8_e4m3", "f", 8, only_moved=True),
    Dtype("float8_e4m3b11fnuz", "f", 8, only_moved=True),
    Dtype("float8_e5m2fnuz", "f", 8),
    Dtype("float8_e8m0fnu", "f", 8),
    Dtype("float0", "v", 0, only_moved=True),
)

RECORDS: dict[str, Dtype] = {d.name: d for d in _DTYPES}
"""The record of each dtype by its name."""


def names_where(holds: Callable[[Dtype], bool]) -> tuple[str, ...]:
    """Returns the names of the dtypes of numbers and truth values that programs compute with, and for which `holds`."""
    return tuple(d.name for d in _DTYPES if d.kind != "k" and not d.only_moved and holds(d))


NUMBERS = names_where(lambda d: True)
"""Names of the dtypes that programs compute with."""

SHORT_NAMES: dict[str, str] = {d.short: d.name for d in _DTYPES if d.short}

HALF = names_where(lambda d: d.is_half)
"""Names of the 16-bit floats."""

WIDE = names_where(lambda d: d.is_wide)
"""Names of the dtypes of 64-bit numbers."""

PARTS = names_where(lambda d: d.complex is not None)
"""Names of the dtypes of which complex numbers are made."""

FLOATS = names_where(lambda d: d.is_float and not d.is_narrow)
"""Names of the floats of 16 bits and more."""

DEFAULTS: dict[str, str] = {"b": "bool", "i": "int32", "f": "float32", "c": "complex64"}
"""The dtype of a Python number where no other operand determines one, by the letter of its kind."""


def dtype_of(name: str) -> Dtype:
    """Returns the record of a dtype. ShapeError if there is none."""
    found = RECORDS.get(name)
    if found is None:
        accepted = "bool, int*, uint*, float*, bfloat16, complex*, key<*>"
        raise ShapeError(f"unknown dtype {name!r}; accepted: {accepted}")
    return found


@lru_cache(FEW_KEPT)
def record_of(dtype: np.dtype[Any]) -> Dtype:
    """Returns the record of a numpy dtype, whose name takes numpy longer than a small array's sum. ShapeError if there
    is none."""
    return dtype_of(dtype.name)


def kind(name: str) -> str:
    """Returns the letter of a dtype's kind: b, i, u, f or c; k for a PRNG key, which can only be moved. ShapeError for
    an unknown dtype."""
    return dtype_of(name).kind


def has_short_range(name: str) -> bool:
    """Whether a dtype is a float whose numbers end before those of float32."""
    return name in RECORDS and RECORDS[name].has_short_range


def is_float(name: str) -> bool:
    """Whether a dtype is a real floating-point dtype, fp8 included."""
    return name in RECORDS and RECORDS[name].kind == "f"


def is_complex(name: str) -> bool:
    return name in RECORDS and RECORDS[name].kind == "c"


def is_integer(name: str) -> bool:
    """Whether a dtype is a signed or unsigned integer dtype; bool is not."""
    return name in RECORDS and RECORDS[name].kind in "iu"


def is_key(name: str | None) -> bool:
    """Whether a dtype is that of the PRNG keys of a generator in `KEY_WORDS`."""
    return name in RECORDS and RECORDS[name].kind == "k"


def generator_of_key(name: str) -> str:
    """Returns the generator in the name of a dtype of PRNG keys, such as "fry" of "key<fry>"."""
    found = _KEY.fullmatch(name)
    assert found is not None, name
    return found[1]


def itemsize(name: str) -> int:
    """Returns the bytes of an element. A sub-byte dtype counts one byte, a dtype without a record eight."""
    return RECORDS[name].itemsize if name in RECORDS else _UNKNOWN_BITS // 8


@lru_cache(FEW_KEPT)
def numpy_dtype(name: str) -> np.dtype[Any]:
    """Returns the numpy dtype of a dtype name, including those of ml_dtypes. A PRNG key is a record of its words."""
    return RECORDS[name].numpy if name in RECORDS else np.dtype(name)
