"""The records of dtypes say what numpy, ml_dtypes and JAX do, and nothing else tells dtypes by their names."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.dtypes import DEFAULTS, FLOATS, HALF, NUMBERS, RECORDS, SHORT_NAMES, WIDE, dtype_of, numpy_dtype
from relax_eg.errors import ShapeError, SpecError
from relax_eg.ir.annotations import Tensor
from relax_eg.ops.interpret import evaluate
from tests.sources import nodes

OF_NUMBERS = [d for d in RECORDS.values() if d.kind in "iuf" and hasattr(jnp, d.name)]
SMALL = [d for d in OF_NUMBERS if d.bits <= 16]

# Words that tell a dtype by a part of its name.
_PARTS = {"float", "bfloat", "int", "uint", "complex", "key", "key<", "float8", "float4", "float6", "int4", "int2"}
_TESTS = {"startswith", "endswith", "removeprefix", "removesuffix", "lstrip", "rstrip"}
# Literals that name several dtypes and are no property of a dtype.
_OTHERS = {
    "dtypes.py": "the records",
    "extract/profiles/devices.py": "rates of devices",
    "measure/figures.py": "the dtypes that are timed",
    "measure/fits.py": "limits of rates that are fitted",
    "ops/codes.py": "schemes of quantization, which are named for dtypes",
    "ops/triton.py": "what Triton compiles",
    "ops/random.py": "the words that a generator of XLA takes as its key",
    "rules/book/elementwise.py": "the conversions of which a rule is stated",
    "rules/book/quantised.py": "the dtypes of codes and of their sums",
    "rules/checking/schema_trials.py": "programs that test schemas",
    "frontends/onnx/normalisation.py": "what ONNX accepts of an attribute",
    "frontends/onnx/folding.py": "the dtypes of ONNX's sizes",
    "ir/control.py": "the dtypes of an index that chooses a branch",
    "tir/reader.py": "annotations of parameters that are sizes",
}


def told_by_name(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Line and text of each expression that tells dtypes by the spelling of their names."""
    for n in nodes:
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in _TESTS:
            if any(isinstance(c, ast.Constant) and c.value in _PARTS for a in n.args for c in ast.walk(a)):
                yield n.lineno, ast.unparse(n)
        elif isinstance(n, ast.Compare) and isinstance(n.ops[0], (ast.In, ast.NotIn)):
            left = n.left
            if isinstance(left, ast.Constant) and left.value in _PARTS and not isinstance(n.comparators[0], ast.Tuple):
                yield n.lineno, ast.unparse(n)


def tables(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Line and text of each literal collection that names several dtypes."""
    for n in nodes:
        if isinstance(n, (ast.Tuple, ast.List, ast.Set, ast.Dict)):
            parts = [*n.keys, *n.values] if isinstance(n, ast.Dict) else n.elts
            named = {p.value for p in parts if isinstance(p, ast.Constant)} & set(RECORDS)
            if len(named) > 1:
                yield n.lineno, ast.unparse(n)


def test_only_the_records_tell_dtypes_by_their_names() -> None:
    for name, of_file in nodes().items():
        found = [*told_by_name(of_file), *(() if name in _OTHERS else tables(of_file))]
        assert not found, f"relax_eg/{name} tells dtypes by their names; `relax_eg.dtypes` has the records: {found}"


@pytest.mark.parametrize(
    "text",
    [
        'd.startswith("float")',
        'x.dtype.name.startswith(("int", "uint"))',
        'd.endswith("int4")',
        '"float8" in d',
        'd in ("int8", "uint8")',
        'X = {"float32": 1, "float64": 2}',
    ],
)
def test_spellings_are_found(text: str) -> None:
    of_text = list(ast.walk(ast.parse(text)))
    assert [*told_by_name(of_text), *tables(of_text)]


def test_every_dtype_of_jax_has_a_record() -> None:
    names = {n for n in dir(jnp) if isinstance(t := getattr(jnp, n), type(jnp.float32)) and hasattr(t, "dtype")}
    found = {np.dtype(getattr(jnp, n).dtype).name for n in names}
    assert len(found) > 25
    assert found <= set(RECORDS)


@pytest.mark.parametrize("d", OF_NUMBERS, ids=lambda d: d.name)
def test_limits(d) -> None:
    held = np.array([d.least, d.greatest], d.numpy)
    assert [type(d.least)(x) for x in held] == [d.least, d.greatest]
    assert d.itemsize == d.numpy.itemsize or d.bits < 8
    assert d.numpy == numpy_dtype(d.name)
    assert d.is_native == (np.result_type(held).type.__module__ == "numpy")
    if d.is_float:
        assert d.smallest == float(np.array(d.smallest).astype(d.numpy))
        assert not d.has_infinity or float(np.array([np.inf]).astype(d.numpy)[0]) == np.inf
        assert d.greatest / 2 < 2.0 ** (d.powers - 1) <= d.greatest


@pytest.mark.parametrize("d", SMALL, ids=lambda d: d.name)
def test_one_dtype_contains_another(d) -> None:
    """Tried at all values of the one, converted to the other."""
    bits = np.arange(2**d.bits, dtype=np.uint8 if d.bits <= 8 else np.uint16)
    values = bits.view(d.numpy) if d.bits >= 8 or d.is_float else np.arange(d.least, d.greatest + 1).astype(d.numpy)
    with np.errstate(all="ignore"):
        given = values.astype(np.float64)
    for other in (o for o in SMALL if o.contains(d)):
        with np.errstate(all="ignore"):
            kept = given.astype(other.numpy).astype(np.float64)
        np.testing.assert_array_equal(kept, given, err_msg=other.name)
        signs = np.signbit(kept) == np.signbit(given)
        assert signs[~np.isnan(given)].all(), other.name


def test_contains_long_dtypes() -> None:
    wider = [
        ("float32", "float64"),
        ("int32", "int64"),
        ("uint32", "int64"),
        ("bool", "float16"),
        ("bfloat16", "float32"),
    ]
    for narrow, wide in wider:
        assert dtype_of(wide).contains(dtype_of(narrow))
        assert not dtype_of(narrow).contains(dtype_of(wide))
    for a, b in itertools.permutations(("float16", "bfloat16", "int64", "uint64", "complex64"), 2):
        assert not dtype_of(a).contains(dtype_of(b))
    assert not dtype_of("int1").contains(dtype_of("bool"))


def test_names() -> None:
    assert set(SHORT_NAMES.values()) <= set(NUMBERS)
    assert HALF == ("float16", "bfloat16")
    assert FLOATS == ("float16", "bfloat16", "float32", "float64")
    assert WIDE == ("int64", "uint64", "float64", "complex128")
    assert {np.asarray(x).dtype.kind: np.dtype(jnp.asarray(x).dtype).name for x in (True, 1, 1.5, 1j)} == DEFAULTS
    assert dtype_of("complex128").part.name == "float64"
    assert dtype_of("float16").complex is None
    assert {dtype_of(d).wider.name for d in ("float8_e5m2", "float16", "bfloat16")} == {"float32"}
    assert (dtype_of("uint4").wider.name, dtype_of("int8").wider.name) == ("uint8", "int8")
    narrow = {"int2", "uint2", "int4", "uint4", "float4_e2m1fn", "float8_e8m0fnu"}
    narrow |= {"float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"}
    assert {d for d in NUMBERS if RECORDS[d].is_narrow} == narrow
    assert numpy_dtype("key<rbg>").itemsize == dtype_of("key<rbg>").itemsize == 16
    with pytest.raises(ShapeError, match="unknown dtype 'float33'; accepted: bool"):
        dtype_of("float33")
    with pytest.raises(SpecError, match="`finfo` is not a dtype"):
        Tensor("n", "finfo")


@pytest.mark.parametrize("dtype", [d for d in NUMBERS if RECORDS[d].is_narrow])
def test_programs_compute_with_every_narrow_dtype(dtype: str) -> None:
    """At all values: the text of a program reads back, the interpreter and XLA compute what JAX computes."""
    d = dtype_of(dtype)
    values = np.arange(256, dtype=np.uint8).view(d.numpy) if d.is_float else np.arange(d.least, d.greatest + 1)
    if dtype == "float8_e5m2fnuz":  # XLA without optimizations negates numbers wrongly that are subnormal in float16
        values = values[~(np.abs(values.astype(np.float32)) < np.finfo(np.float16).smallest_normal)]
    x = jnp.asarray(values.astype(d.numpy))

    def program(x, y):
        products = x.astype("float32") * 2 + y.astype("float32")
        return x + y, x * y, -x, jnp.maximum(x, y), x < y, products.astype(dtype), jnp.sum(products), x[::-1]

    module = rx.trace(program, f"n @ {dtype}", f"n @ {dtype}")
    assert str(rx.parse(str(module))) == str(module)
    assert all(e.op != "call_dps_library" for e in module.main.expressions())
    wanted = jax.jit(program)(x, x[::-1])
    for found in (rx.optimize(module)(x, x[::-1]), evaluate(module, [x, x[::-1]])):
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(*(np.asarray(v).astype(np.float64) for v in (a, b)))
