"""Tokens: equal for equal content, and for nothing else."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
import pytest

from relax_eg import ir
from relax_eg.extract.profiles.devices import CPU
from relax_eg.ir.tokens import NoContentError, token
from relax_eg.shapes import Dim


def nan(bits: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    return np.array([bits], "uint32").view(dtype)


DIFFERENT: list[Any] = [
    None, False, True, 0, 1, -1, 2**70, 0.0, -0.0, 1.0, 0.1, 5e-324, float("inf"), float("nan"),
    struct.unpack(">d", bytes.fromhex("7ff8000000000001"))[0], 0j, 1 + 0j, complex(0.0, -0.0), complex(-0.0, 0.0),
    "", "0", "None", "True", b"", b"0", "('tuple',)", (), [], {}, set[int](), frozenset[int](), (0,), ((0,),), (1,),
    (True,), (1.0,), [0], (0, 1), (1, 0), ("0",), ("tuple",), (None,), {0: 1}, {1: 0}, {"a": 1, "b": 2},
    {"b": 2, "a": 1}, {0}, frozenset((0,)), MappingProxyType({0: 1}),
    np.float32(0), np.float32(-0.0), np.float64(0), np.float16(0), np.int32(0), np.int64(0), np.bool_(False),
    np.zeros((), "float32"), np.zeros(1, "float32"), np.zeros((1, 1), "float32"), np.zeros(0, "float32"),
    np.zeros((0, 2), "float32"), np.zeros((2, 0), "float32"), np.zeros(1, "int32"), np.array([-0.0], "float32"),
    np.zeros(1, ml_dtypes.bfloat16), np.zeros(1, "float16"), np.zeros(1, ml_dtypes.float8_e4m3fn), np.zeros(4, "uint8"),
    nan(0x7FC00000), nan(0x7FC00001), nan(0xFFC00000), nan(0x7F800001), np.arange(100), np.arange(100) + 1,
    np.arange(100).reshape(10, 10), np.dtype("float32"), np.dtype("float64"), np.dtype(ml_dtypes.bfloat16), "float32",
    Dim.of("n"), Dim.of("m"), Dim.of(1), Dim.of("2*n"), Dim.of("n + n//2"), "n",
    ir.Tensor("n"), ir.Tensor("n", "float64"), ir.Tensor(ndim=1), ir.Shape("n"), ir.Tuple((ir.Tensor("n"),)),
    ir.Object(), jax.lax.Precision.HIGH, jax.lax.Precision.HIGHEST, jax.lax.GatherScatterMode.CLIP,
    jax.lax.GatherDimensionNumbers((0,), (1,), (0,)), jax.lax.GatherDimensionNumbers((0,), (0,), (1,)), CPU,
]  # fmt: skip


def test_what_differs_in_anything_has_another_token() -> None:
    found: dict[str, Any] = {}
    for value in DIFFERENT:
        text = repr(token(value))
        assert text not in found, f"{value!r} and {found.get(text)!r}"
        found[text] = value


@pytest.mark.parametrize(
    "make",
    [
        lambda: 0.1,
        lambda: (1, "x", (2.5, None)),
        lambda: {"a": [1, 2]},
        lambda: frozenset(("b", "a", "c")),
        lambda: np.arange(1000.0),
        lambda: Dim.of("2*n + 1"),
        lambda: ir.Tensor("n 4"),
        lambda: jax.lax.GatherDimensionNumbers((0,), (1,), (0,)),
    ],
)
def test_equal_content_has_an_equal_token(make: Callable[[], Any]) -> None:
    assert repr(token(make())) == repr(token(make()))


def test_where_bytes_lie_is_no_content() -> None:
    wide = np.arange(12, dtype="float32").reshape(3, 4)
    assert token(wide.T) == token(wide.T.copy()) != token(wide)
    assert token(wide.astype(">f4")) == token(wide)


class Pair(NamedTuple):
    a: int


@dataclass
class Mutable:
    a: int


class Int(int):
    pass


@pytest.mark.parametrize(
    "value",
    [object(), lambda: 0, Pair(1), Mutable(1), Int(1), (1, object()), {"a": object()}, np.array([object()]),
     np.array("x"), iter(())],
)  # fmt: skip
def test_what_does_not_show_its_content_has_none(value: Any) -> None:
    with pytest.raises(NoContentError, match=r"the content of a .* does not show"):
        token(value)
