"""The traits of scalar functions hold of their implementations, and no other file lists functions by a trait."""

from __future__ import annotations

import ast
import itertools
from typing import get_args

import numpy as np
import pytest
from jax import lax

from relax_eg.ops.scalar_lowerings import NOT_IN_LAX
from relax_eg.tir.functions import FUNCTIONS, Trait, functions_with_trait
from tests.sources import nodes

TRAITS = get_args(Trait)
SYMBOLS = {f.name: f.symbol for f in FUNCTIONS.values() if f.symbol}
REALS = np.array([-1e30, -100.5, -2.5, -1.0, -0.5, -0.0, 0.0, 0.25, 0.5, 1.0, 1.5, 2.5, 7.0, 100.5, 1e30])
SPECIAL = np.array([np.nan, np.inf, -np.inf])

# Collections of names of functions that state no trait: operators, spellings, and what one algorithm treats by itself.
_OTHERS = {
    "extract/profiles/devices.py", "extract/fusions/cpu.py",
    "tir/functions.py", "tir/__init__.py", "tir/values.py", "tir/reader.py", "tir/exact.py", "ops/api.py",
    "ops/api_library.py", "ops/elementwise.py", "ops/triton.py", "ir/python_syntax.py",
    "ops/expansions.py", "ops/scalar_lowerings.py", "driver/laws/grammars.py", "driver/laws/tables.py",
    "frontends/jax/primitives.py", "frontends/onnx/folding.py",
    "frontends/stablehlo/sizes.py", "frontends/stablehlo/operations.py",
    "rules/book/movement.py", "rules/format.py", "rules/checking/judge.py", "rules/verify_formal/compose.py",
    "rules/verify_formal/pointwise.py", "rules/verify_formal/words.py",
}  # fmt: skip
_MOST_FILES = 4


@pytest.fixture(scope="module")
def words() -> dict[str, frozenset[str]]:
    """The words in the strings of each file."""
    found: dict[str, frozenset[str]] = {}
    for name, of_file in nodes().items():
        strings = (n.value for n in of_file if isinstance(n, ast.Constant) and isinstance(n.value, str))
        found[name] = frozenset(word for s in strings for word in s.split())
    return found


def test_no_other_file_lists_functions() -> None:
    functions = frozenset(FUNCTIONS)
    for name, of_file in nodes().items():
        for n in of_file if name not in _OTHERS else ():
            if isinstance(n, (ast.Tuple, ast.List, ast.Set, ast.Dict)):
                parts = n.keys if isinstance(n, ast.Dict) else n.elts
                found = {p.value for p in parts if isinstance(p, ast.Constant)} & functions
                assert len(found) < 5, f"relax_eg/{name}:{n.lineno} lists {found}; a trait of the functions says so"


@pytest.mark.parametrize("name", ["lgamma", "zeta", "igamma", "betainc", "bessel_i0e", "multiply_high", "nextafter"])
def test_a_function_is_named_in_few_files(name: str, words: dict[str, frozenset[str]]) -> None:
    """A function that no rule rewrites needs its record, its operator, the operator's builder, and nothing else. What
    ONNX, StableHLO and Triton have is said where those are read and made."""
    outside = ("frontends/onnx", "frontends/stablehlo", "ops/triton")
    files = [f for f, named in words.items() if name in named and not f.startswith(outside)]
    assert len(files) <= _MOST_FILES, f"`{name}` is named in {files}"


def test_words() -> None:
    assert {t for f in FUNCTIONS.values() for t in f.traits.split()} == set(TRAITS)
    assert functions_with_trait("increasing") | functions_with_trait("decreasing") <= functions_with_trait("total")
    assert functions_with_trait("rounds") <= functions_with_trait("jumps")


def arguments(name: str, values: np.ndarray) -> list[np.ndarray]:
    """All choices of arguments among `values`, in a kind that the function takes."""
    f = FUNCTIONS[name]
    letter = next(k for k in "fciub" if k in f.accepts)
    dtype = {"f": "float64", "c": "complex128", "i": "int64", "u": "uint32", "b": "bool"}[letter]
    if letter in "iu":
        values = np.unique(np.clip(values[np.isfinite(values)], -100 if letter == "i" else 0, 100).astype(dtype))
    return [np.array(x, dtype) for x in zip(*itertools.product(values, repeat=f.arity), strict=True)]


def value(name: str, args: list[np.ndarray]) -> np.ndarray:
    return FUNCTIONS[name](args, FUNCTIONS[name].dtype([a.dtype.name for a in args]))


@pytest.mark.parametrize("name", sorted(functions_with_trait("commutes")))
def test_commutes(name: str) -> None:
    x, y = arguments(name, np.concatenate([REALS, SPECIAL]))
    np.testing.assert_array_equal(value(name, [x, y]), value(name, [y, x]))


@pytest.mark.parametrize("name", sorted(functions_with_trait("idempotent")))
def test_idempotent(name: str) -> None:
    x = arguments(name, np.concatenate([REALS, SPECIAL]))[0]
    np.testing.assert_array_equal(value(name, [x, x]), x)


@pytest.mark.parametrize("name", sorted(functions_with_trait("total") - {"clamp"}))
def test_total(name: str) -> None:
    found = value(name, arguments(name, REALS))
    assert found.dtype.kind not in "fc" or not np.isnan(found).any()


@pytest.mark.parametrize(
    ("name", "up", "domain"),
    [
        (name, up, domain)
        for trait, up, domain in (
            ("increasing", True, REALS), ("decreasing", False, REALS), ("rises", True, REALS[REALS >= 0]),
            ("falls", False, REALS[REALS > 0]),
        )
        for name in sorted(functions_with_trait(trait))
    ],
)  # fmt: skip
def test_monotone(name: str, up: bool, domain: np.ndarray) -> None:
    found = value(name, [domain if up else domain[::-1]])
    assert np.all(found[1:] >= found[:-1])


@pytest.mark.parametrize("name", sorted(functions_with_trait("rounds")))
def test_rounds(name: str) -> None:
    found = value(name, [REALS])
    assert np.array_equal(found, np.trunc(found)) and np.all(np.abs(found - REALS) < 1)
    np.testing.assert_array_equal(value(name, [found]), found)


@pytest.mark.parametrize("name", sorted(functions_with_trait("jumps")))
def test_jumps(name: str) -> None:
    args = [np.concatenate([REALS, np.nextafter(REALS, np.inf), np.nextafter(REALS, -np.inf)])]
    args += [np.full_like(args[0], 0.5)] * (FUNCTIONS[name].arity - 1)
    near = value(name, args).reshape(3, -1)
    assert np.any(np.abs(near[1:] - near[0]) > 0.1)


@pytest.mark.parametrize("name", sorted(functions_with_trait("nan")))
def test_nan_stays(name: str) -> None:
    assert FUNCTIONS[name].arity == 1
    assert np.isnan(value(name, arguments(name, SPECIAL[:1]))).all()


@pytest.mark.parametrize("name", sorted(functions_with_trait("infinite")))
def test_infinities_make_no_number(name: str) -> None:
    count = FUNCTIONS[name].arity
    for at in range(1 if name == "divide" else count):
        for special in SPECIAL:
            args = [np.full_like(REALS, special) if i == at else REALS for i in range(count)]
            assert not np.isfinite(value(name, args)).any()


@pytest.mark.parametrize("name", sorted(functions_with_trait("bounded")))
def test_bounded(name: str) -> None:
    assert np.isfinite(value(name, arguments(name, REALS))).all()


@pytest.mark.parametrize("name", sorted(functions_with_trait("sign")))
def test_sign(name: str) -> None:
    found = value(name, [REALS])
    is_number = ~np.isnan(found)
    assert np.all(is_number[REALS >= 0])
    assert np.array_equal(np.sign(found[is_number]), np.sign(REALS[is_number]))


@pytest.mark.parametrize("name", sorted(functions_with_trait("underflows")))
def test_underflows(name: str) -> None:
    found = value(name, [REALS])
    assert np.all(found >= 0) and np.any(found == 0) and np.all(found[np.abs(REALS) < 10] > 0)


@pytest.mark.parametrize("name", sorted(SYMBOLS))
def test_symbols(name: str) -> None:
    letters = FUNCTIONS[name].accepts
    x, y = (7, 2) if "f" not in letters else (7.5, 2.0)
    dtype = "float64" if "f" in letters else "int64"
    found = value(name, [np.array([x], dtype), np.array([y], dtype)])[0]
    assert found == eval(f"{x} {SYMBOLS[name]} {y}")


def test_primitives_are_there() -> None:
    for f in FUNCTIONS.values():
        known = f.name in NOT_IN_LAX or f.name.startswith("bits_as_")
        assert known or hasattr(lax, f.primitive), f.name
        assert f.lax != f.name
