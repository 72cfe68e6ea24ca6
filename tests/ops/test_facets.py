"""Every operator of the table through every facet of its record, at random sizes and all dtypes it takes."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import ml_dtypes  # noqa: F401  (registers bfloat16 with numpy)
import numpy as np
import pytest
from ops_samples import USES, Use

from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import Annotation, Tensor, Tuple, substitute
from relax_eg.ops import TABLE, Operator, Site, counts, deduce, get, pattern_kind, program_of
from relax_eg.ops.record import attributes_of
from relax_eg.shapes import Dim
from relax_eg.tir import PatternKind, evaluate

DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "uint8", "bool")
TOLERANCE = {"float64": 1e-11, "float32": 2e-5, "float16": 1e-2, "bfloat16": 6e-2, "complex64": 2e-5}
# Operators made of + - * only, comparisons and moves: exact arithmetic on small integers is numpy's.
RING = frozenset(
    """negative abs sign square integer_pow add subtract multiply maximum minimum equal not_equal less less_equal
    greater greater_equal where clip matmul linear sum prod max min any all argmax argmin cumsum cumprod cummax cummin
    conv reduce_window dynamic_slice dynamic_update_slice gather permute_dims reshape expand_dims
    squeeze broadcast_to concat split strided_slice pad take flip triu tril full iota one_hot dim_value
    relu""".split()
)

NAMES = sorted(TABLE)


def x64(dtype: str) -> Any:
    return jax.enable_x64(True) if "64" in dtype else contextlib.nullcontext()


def sites(name: str) -> Iterator[tuple[Use, Site, Annotation]]:
    """The uses of operator `name`: the first at every dtype it takes, the others at the first such."""
    assert name in USES, f"tests/ops/ops_samples.py has no uses of operator `{name}`"
    operator = get(name)
    taken: list[str] = []
    for n, use in enumerate(USES[name]):
        for dtype in DTYPES if n == 0 else taken[:1]:
            operands = tuple(Tensor(s, None if "@" in s else dtype) for s in use.operands)
            attrs = attributes_of(operator, use.attrs)
            try:
                result = deduce(name, operands, attrs)
            except OperatorError as error:
                assert n == 0 and "is needed" in str(error), error
                continue
            taken.append(dtype)
            yield use, Site(name, operands, attrs), result
            if not any("@" not in s for s in use.operands):
                break  # the dtype does not vary
    assert taken, f"{name} takes no dtype"


def sizes_of(use: Use, rng: np.random.Generator) -> dict[str, int]:
    return {v: int(rng.integers(low, high + 1)) for v, (low, high) in use.sizes.items()}


def at(site: Site, sizes: Mapping[str, int]) -> Site:
    """The site at concrete sizes."""
    env = {v: Dim.of(n) for v, n in sizes.items()}
    attrs = {
        a.name: tuple(d.substitute(env) for d in site[a.name]) if a.kind == "dims" else site[a.name]
        for a in get(site.op).attributes
    }
    return Site(site.op, tuple(substitute(a, env) for a in site.operands), attrs)


def data(site: Site, use: Use, rng: np.random.Generator, integral: bool = False) -> list[np.ndarray]:
    """Random operands of a site at concrete sizes."""
    arrays: list[np.ndarray] = []
    for i in range(len(site.operands)):
        shape, dtype = tuple(int(d) for d in site.shape(i)), site.dtype(i)
        if dtype.startswith("complex"):
            parts = rng.uniform(use.low, use.high, (2, *shape))
            arrays.append(np.asarray(parts[0] + 1j * parts[1]).astype(dtype))
        elif dtype == "bool":
            arrays.append(rng.integers(0, 2, shape).astype(bool))
        elif integral or dtype.startswith(("int", "uint")):
            low = np.ceil(use.low) if dtype.startswith(("int", "float", "bfloat")) else max(0, np.ceil(use.low))
            arrays.append(
                np.asarray(rng.integers(int(low), int(max(low, np.floor(use.high))) + 1, shape)).astype(dtype)
            )
        else:
            arrays.append(np.asarray(rng.uniform(use.low, use.high, shape)).astype(dtype))
    return arrays if use.prepare is None else use.prepare(arrays)


def lowered(site: Site, arrays: list[np.ndarray]) -> list[Any]:
    operator = get(site.op)
    attrs = {
        a.name: tuple(int(d) for d in site[a.name]) if a.kind == "dims" else site[a.name] for a in operator.attributes
    }
    with x64(" ".join([*(a.dtype.name for a in arrays), *map(str, attrs.values())])):
        # Hundreds of tiny programs: compiling them well would take longer than anything else here.
        quickly = jax.jit(
            lambda *xs: operator.jax_function()(*xs, **attrs),
            compiler_options={"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True},
        )
        result = quickly(*map(jax.numpy.asarray, arrays))
    return list(result) if isinstance(result, tuple) else [result]


def referenced(site: Site, arrays: list[np.ndarray], sizes: Mapping[str, int], domain: Any = "numpy") -> list[Any]:
    program = program_of(site)
    if program is not None:
        return evaluate(program, arrays, sizes, domain=domain)
    reference = get(site.op).reference
    assert reference is not None
    dims = {a.name for a in get(site.op).attributes if a.kind == "dims"}
    attrs = {k: tuple(d.evaluate(sizes) for d in v) if k in dims else v for k, v in site.attrs.items()}
    result = reference(*arrays, **attrs)
    return list(result) if isinstance(result, tuple) else [result]


def fields(annotation: Annotation) -> list[Tensor]:
    parts = annotation.fields if isinstance(annotation, Tuple) else (annotation,)
    return [p for p in parts if isinstance(p, Tensor)]


def agree(got: Any, want: Any, annotation: Tensor, what: str) -> None:
    assert not getattr(got, "weak_type", False), f"{what}: the dtype is weak"
    assert got.dtype.name == annotation.dtype, f"{what}: {got.dtype} where {annotation.dtype} was deduced"
    assert got.shape == tuple(int(d) for d in annotation.shape or ()), f"{what}: {got.shape}, {annotation} was deduced"
    tolerance = TOLERANCE.get(str(annotation.dtype), 0)
    wide = "complex128" if got.dtype.kind == "c" else "float64" if tolerance else got.dtype
    np.testing.assert_allclose(
        np.asarray(got).astype(wide), np.asarray(want).astype(wide), rtol=tolerance, atol=tolerance, err_msg=what
    )


@pytest.mark.parametrize("name", NAMES)
def test_facets(name: str) -> None:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    tried: set[int] = set()
    for use, site, deduced in sites(name):
        facets(use, site, deduced, sizes_of(use, rng), rng)
        if id(use) not in tried:  # once at the least sizes too: 0 where there may be none
            tried.add(id(use))
            facets(use, site, deduced, {v: low for v, (low, _) in use.sizes.items()}, rng)
    assert get(name).doc


def facets(use: Use, site: Site, deduced: Annotation, sizes: Mapping[str, int], rng: np.random.Generator) -> None:
    """Every facet of one use at these sizes."""
    what = f"{site.op} of {[str(a) for a in site.operands]} {dict(site.attrs)} at {sizes}"
    concrete = at(site, sizes)
    annotation = substitute(deduced, {v: Dim.of(n) for v, n in sizes.items()})
    assert annotation == deduce(site.op, concrete.operands, concrete.attrs), what

    arrays = data(concrete, use, rng)
    expected = lowered(concrete, arrays)
    symbolic = referenced(site, arrays, sizes)
    assert len(expected) == len(symbolic) == len(fields(annotation)), what
    for got, want, part in zip(symbolic, expected, fields(annotation), strict=True):
        agree(want, want, part, f"the lowering of {what}")
        agree(got, want, part, what)
    for got, want in zip(referenced(concrete, arrays, {}), symbolic, strict=True):
        wide = "complex128" if want.dtype.kind == "c" else "float64"
        np.testing.assert_array_equal(np.asarray(got, wide), np.asarray(want, wide), err_msg=what)

    spent = counts(site)
    for label in ("flops", "bytes_read", "bytes_written"):
        amount = getattr(spent, label).evaluate(sizes)
        assert int(amount) == amount >= 0, f"{label} of {what}"
    assert isinstance(pattern_kind(site), PatternKind)


@pytest.mark.parametrize("name", sorted(RING & TABLE.keys()))
def test_exact_domain(name: str) -> None:
    """On small integers exact arithmetic gives what numpy gives."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    for use, site, _ in sites(name):
        sizes = sizes_of(use, rng)
        concrete = at(site, sizes)
        if name == "integer_pow" and site["y"] < 0:
            continue
        arrays = data(concrete, use, rng, integral=True)
        numeric = referenced(site, arrays, sizes)
        for got, want in zip(referenced(site, arrays, sizes, "exact"), numeric, strict=True):
            same = [g == w or (w != w) for g, w in zip(got.ravel().tolist(), want.ravel().tolist(), strict=True)]
            assert all(same), f"{name} {dict(site.attrs)} at {sizes}"


def test_every_family_is_registered() -> None:
    assert set(USES) == set(TABLE)


def test_operator_without_equations_needs_a_reference() -> None:
    with pytest.raises(OperatorError, match="give a numpy reference and a cost"):
        Operator("sort", ("x",), lambda site: site.tensor(0), "jax.lax.sort")
