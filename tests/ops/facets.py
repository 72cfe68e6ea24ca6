"""One use of an operator taken through every facet of its record: the machinery of `test_facets.py`.

A *case* is a use at one dtype and one choice of sizes, with random operands. Its facets: the deduced annotation, the
lowering as `jax.eval_shape` and as a run see it, the equations or the numpy reference, the reference interpreter, the
pattern kind, the counts, the text. All cases of an operator are lowered in one XLA program, so that hundreds of cases
cost a few compilations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import ml_dtypes
import numpy as np
from compiling import CLAMPING, QUICKLY
from ops_use import Use

from relax_eg.backend.lowering.lower import run_at
from relax_eg.backend.lowering.tensor_programs import lower_program
from relax_eg.dtypes import KEY_WORDS, NUMBERS, dtype_of, is_float, is_key, numpy_dtype
from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import Annotation, Shape, Tensor, Tuple, substitute
from relax_eg.ir.expr import var
from relax_eg.ir.module import Module, pure_function
from relax_eg.ops import Site, bytes_of, call, counts, deduce, get, pattern_kind, program_of
from relax_eg.ops.interpret import evaluate as interpret
from relax_eg.ops.keys import dtype_name, from_jax, generator_of, keys_from_words, to_jax
from relax_eg.ops.record import attributes_of
from relax_eg.ops.text import parse
from relax_eg.shapes import Dim
from relax_eg.tir import PatternKind, evaluate

DTYPES = (*dict.fromkeys(("float32", *NUMBERS)), "key<fry>")
TOLERANCE = {
    "float64": 1e-11, "float32": 2e-5, "float16": 1e-2, "bfloat16": 6e-2, "complex64": 2e-5, "complex128": 1e-11,
    **{d: 2.4 * dtype_of(d).half_ulp for d in NUMBERS if is_float(d) and dtype_of(d).is_narrow},
}  # fmt: skip
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.0, float("inf"), -float("inf"), float("nan"))


@dataclass(frozen=True)
class Case:
    """A use at one dtype and one choice of sizes.

    - `use`: the use.
    - `site`, `concrete`: the site with symbolic sizes, and at the sizes.
    - `deduced`: the annotation of the result at symbolic sizes.
    - `sizes`: the sizes by name.
    - `arrays`: the operands.
    - `rest`: the sizes that no operand determines, as one shape that the module also takes; empty if there are none.
    - `module`: one function, which calls the operator on its parameters.
    - `x64`: whether JAX runs in x64 mode.
    """

    use: Use
    site: Site
    concrete: Site
    deduced: Annotation
    sizes: Mapping[str, int]
    arrays: tuple[Any, ...]
    rest: tuple[tuple[int, ...], ...]
    module: Module
    x64: bool

    def __str__(self) -> str:
        attrs = {k: str(v) for k, v in self.site.attrs.items()}
        operands = [str(a) for a in self.site.operands]
        return f"{self.site.op} of {operands} {attrs} at {dict(self.sizes)}, x64 {'on' if self.x64 else 'off'}"

    @property
    def fields(self) -> list[Tensor]:
        """The annotations of the results at the sizes."""
        return _fields(substitute(self.deduced, {v: Dim.of(n) for v, n in self.sizes.items()}))


def _fields(annotation: Annotation) -> list[Tensor]:
    parts = annotation.fields if isinstance(annotation, Tuple) else (annotation,)
    return [p for p in parts if isinstance(p, Tensor)]


def operands_at(use: Use, dtype: str) -> tuple[Tensor, ...]:
    """The operands' annotations where those whose dtype varies have `dtype`."""
    return tuple(Tensor(s, None if "@" in s else dtype) for s in use.operands)


def varies(use: Use) -> bool:
    """Whether the dtype of some operand is not fixed."""
    return any("@" not in s for s in use.operands)


def sizes_of(use: Use, rng: np.random.Generator) -> dict[str, int]:
    return {v: int(rng.integers(low, high + 1)) for v, (low, high) in use.sizes.items()}


def make(
    name: str, use: Use, dtype: str, sizes: Mapping[str, int], rng: np.random.Generator, x64: bool | None = None
) -> Case:
    """The case of `use` at `dtype` and `sizes`. Raises OperatorError where the operator refuses the dtype. Without
    `x64` it is on where a 64-bit dtype occurs, else as it falls."""
    operator = get(name)
    attrs = attributes_of(operator, use.attrs)
    operands = operands_at(use, dtype)
    site = Site(name, operands, attrs)
    deduced = deduce(name, operands, attrs)
    env = {v: Dim.of(n) for v, n in sizes.items()}
    at = {
        a.name: tuple(d.substitute(env) for d in attrs[a.name]) if a.kind == "dims" else attrs[a.name]
        for a in operator.attributes
    }
    concrete = Site(name, tuple(substitute(a, env) for a in operands), at)
    params = [var(f"x{i}", a) for i, a in enumerate(operands)]
    told = {str(d) for a in operands for d in a.shape or ()}
    others = tuple(Dim.var(v) for v in sorted(sizes) if v not in told)  # sizes that no operand's axis is
    given = [*params, *([var("sizes", Shape(others))] if others else [])]
    module = Module((pure_function("main", given, [call(name, params, attrs)]),))
    wide = needs_x64(site, deduced)
    on = wide or (bool(rng.integers(2)) if x64 is None else x64)
    arrays = tuple(random_operands(concrete, use, rng))
    rest = tuple(d.evaluate(sizes) for d in others)
    return Case(use, site, concrete, deduced, sizes, arrays, (rest,) if others else (), module, on)


def needs_x64(site: Site, deduced: Annotation) -> bool:
    """Whether a 64-bit dtype occurs: without x64 JAX has none."""
    dtypes = [str(t.dtype) for a in (*site.operands, deduced) for t in _fields(a)]
    return any(
        (d.endswith("64") and d != "complex64") or d == "complex128" for d in [*dtypes, *map(str, site.attrs.values())]
    )


# --- operands ---


def random_operands(site: Site, use: Use, rng: np.random.Generator, integral: bool = False) -> list[Any]:
    """Random operands of a site at concrete sizes."""
    arrays = [
        random_array(tuple(int(d) for d in site.shape(i)), site.dtype(i), use, rng, integral)
        for i in range(len(site.operands))
    ]
    return arrays if use.prepare is None else use.prepare(arrays)


def random_array(shape: tuple[int, ...], dtype: str, use: Use, rng: np.random.Generator, integral: bool) -> Any:
    low, high = use.low, use.high
    if is_key(dtype):
        return keys_from_words(rng.integers(0, 2**32, (*shape, KEY_WORDS[dtype[4:-1]]), np.uint32), dtype)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.startswith("complex"):
        parts = rng.uniform(low, high, (2, *shape))
        return np.asarray(parts[0] + 1j * parts[1]).astype(dtype)
    if dtype.startswith(("int", "uint")):
        limits = ml_dtypes.iinfo(numpy_dtype(dtype))
        least, most = int(limits.min), int(limits.max)
        if use.special and not integral:
            bounds = [least, most, 0, 1, *([-1] if least else [])]
            return np.asarray(rng.choice(np.array(bounds, object), shape)).astype(dtype)
        first, last = max(int(np.ceil(low)), least), min(int(np.floor(high)), most)
        return np.asarray(rng.integers(min(first, last), last + 1, shape)).astype(numpy_dtype(dtype))
    if use.special and not integral:
        return np.asarray(rng.choice(np.array(SPECIAL), shape)).astype(numpy_dtype(dtype))
    drawn = rng.integers(int(low), int(high) + 1, shape) if integral else rng.uniform(low, high, shape)
    return np.asarray(drawn).astype(numpy_dtype(dtype))


# --- facets ---


def attributes_at(case: Case) -> dict[str, Any]:
    """The attributes as a lowering or a reference gets them: sizes as integers."""
    dims = {a.name for a in get(case.site.op).attributes if a.kind == "dims"}
    return {k: tuple(int(d) for d in v) if k in dims else v for k, v in case.concrete.attrs.items()}


def lowered(cases: Sequence[Case]) -> list[list[Any]]:
    """Returns the results of the lowerings, computed in one XLA program, after a check of their shapes by
    `jax.eval_shape`."""
    return _lowered(cases, lambda c, xs: run_at(c.module, c.module.main, (*xs, *c.rest), c.sizes))


def lowered_equations(cases: Sequence[Case]) -> list[list[Any] | None]:
    """Returns the result of the index equations as a tensor program lowered to XLA; None if there are no equations."""
    programs = {id(c): program_of(c.site) for c in cases}
    found = [c for c in cases if programs[id(c)] is not None]

    def run(case: Case, operands: Sequence[Any]) -> Any:
        program = programs[id(case)]
        assert program is not None
        return lower_program(program, case.sizes)(*operands)

    results = dict(zip(map(id, found), _lowered(found, run), strict=True))
    return [results.get(id(c)) for c in cases]


def _lowered(cases: Sequence[Case], run: Callable[[Case, Sequence[Any]], Any]) -> list[list[Any]]:
    if not cases:
        return []

    def every(*operands: Any) -> list[Any]:
        return [run(c, xs) for c, xs in zip(cases, operands, strict=True)]

    (x64,) = {c.x64 for c in cases}
    with jax.enable_x64(x64):
        clamps = any(c.site.op == "clip" for c in cases)
        together = jax.jit(every, compiler_options=CLAMPING if clamps else QUICKLY)
        given = [[to_jax(a) if a.dtype.names else a for a in c.arrays] for c in cases]
        shapes = together.eval_shape(*given)
        for case, found in zip(cases, shapes, strict=True):
            for got, part in zip(_listed(found), case.fields, strict=True):
                same_type(got, part, f"jax.eval_shape of the lowering of {case}")
        return [_listed(r) for r in together(*given)]


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def same_type(got: Any, annotation: Tensor, what: str) -> None:
    shape = tuple(int(d) for d in annotation.shape or ())
    assert not getattr(got, "weak_type", False), f"{what}: the dtype is weak"
    assert dtype_name(got) == annotation.dtype, f"{what}: {got.dtype} where {annotation.dtype} was deduced"
    assert got.shape == shape, f"{what}: {got.shape} where {shape} was deduced"


def same_value(got: Any, want: Any, dtype: str, what: str, looser: float = 1) -> None:
    if is_key(dtype):
        assert bitwise(got, from_jax(want)), what
        return
    tolerance = TOLERANCE.get(dtype, 0) * looser
    wide = "complex128" if dtype.startswith("complex") else "float64" if tolerance else numpy_dtype(dtype)
    np.testing.assert_allclose(
        np.asarray(got).astype(wide), np.asarray(want).astype(wide), rtol=tolerance, atol=tolerance, err_msg=what
    )


def looser_of(case: Case, part: Tensor) -> float:
    """How much looser than an element's rounding a result's tolerance is. A sum in a narrow float dtype rounds after
    each summand, in whatever order."""
    if part.dtype not in TOLERANCE or not dtype_of(str(part.dtype)).is_narrow:
        return case.use.looser
    elements = math.prod(int(d.evaluate(case.sizes)) for d in part.shape or ())
    return case.use.looser * max(1.0, sum(np.size(a) for a in case.arrays) / max(elements, 1))


def bitwise(a: Any, b: Any) -> bool:
    """Whether two arrays are the same, NaNs by place."""
    x, y = (from_jax(v) if is_key(str(v.dtype)) else np.asarray(v) for v in (a, b))
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    if x.dtype.kind in "biu" or x.dtype.names:
        return bool((x == y).all())
    wide = np.complex128 if x.dtype.kind == "c" else np.float64
    return bool(np.array_equal(x.astype(wide), y.astype(wide), equal_nan=True))


def by_equations(site: Site, arrays: Sequence[Any], sizes: Mapping[str, int], domain: Any = "numpy") -> list[Any]:
    """Returns the result of the index equations, or of the numpy reference if there are none."""
    program = program_of(site)
    if program is not None:
        return evaluate(program, arrays, sizes, arithmetic=domain)
    reference = get(site.op).reference
    assert reference is not None, f"{site.op} has neither equations nor a reference"
    dims = {a.name for a in get(site.op).attributes if a.kind == "dims"}
    attrs = {k: tuple(int(d.evaluate(sizes)) for d in v) if k in dims else v for k, v in site.attrs.items()}
    return _listed(reference(*arrays, **attrs))


def check(case: Case, run: Sequence[Any], program: Sequence[Any] | None) -> None:
    """Every facet of a case; `run`: what its lowering gave, `program`: what that of its equations gave."""
    what = str(case)
    fields = case.fields
    env = {v: Dim.of(n) for v, n in case.sizes.items()}
    again = deduce(case.site.op, case.concrete.operands, case.concrete.attrs)
    assert substitute(case.deduced, env) == again, f"deduction at known sizes of {what}: {again}"
    stated = by_equations(case.site, case.arrays, case.sizes)
    assert len(run) == len(stated) == len(fields), what
    for got, want, part in zip(stated, run, fields, strict=True):
        same_type(want, part, f"the lowering of {what}")
        same_type(got, part, f"the equations of {what}")
    settle = case.use.settle or list
    for got, want, part in zip(settle(stated), settle(list(run)), fields, strict=True):
        same_value(got, want, str(part.dtype), what, looser_of(case, part))
    for got, want, part in zip(program or (), stated, fields, strict=program is not None):
        same_type(got, part, f"the lowered equations of {what}")
        same_value(want, got, str(part.dtype), f"the lowered equations of {what}", looser_of(case, part))
    for got, want in zip(by_equations(case.concrete, case.arrays, {}), stated, strict=True):
        assert bitwise(got, want), f"known sizes give another result than symbolic ones: {what}"
    interpreted = _listed(interpret(case.module, (*case.arrays, *case.rest), sizes=case.sizes))
    for got, want in zip(interpreted, stated, strict=True):
        assert bitwise(got, want), f"the interpreter gives another result: {what}"
    _check_analysis(case, what)
    assert parse(str(case.module)) == case.module, f"the text does not read back: {what}\n{case.module}"


def _check_analysis(case: Case, what: str) -> None:
    spent = counts(case.site)
    for label in ("flops", "bytes_read", "bytes_written"):
        amount = getattr(spent, label).evaluate(case.sizes)
        assert int(amount) == amount >= 0, f"{label} of {what} is {amount}"
    stored = sum(int(bytes_of(part)) for part in case.fields)
    assert spent.bytes_written.evaluate(case.sizes) >= stored, f"{what} writes fewer bytes than it has"
    found, limit = pattern_kind(case.site), weakest_kind(case.site)
    assert isinstance(found, PatternKind) and found <= limit, f"the pattern kind of {what} is {found}"
    assert program_of(case.site) is not None or found is PatternKind.OPAQUE, what


# Of several stages over several domains, which Algorithm 1 calls Opaque.
_SEVERAL = ("split", "ragged_dot", "ragged_outer")
# What the operators of a family fuse as, at most; the others may be anything.
_WEAKEST = {
    "elementwise": PatternKind.INJECTIVE, "special": PatternKind.INJECTIVE, "movement": PatternKind.INJECTIVE,
    "creation": PatternKind.INJECTIVE, "reduction": PatternKind.REDUCTION,
    "contraction": PatternKind.OUTPUT_EWISE_FUSIBLE,
}  # fmt: skip


def weakest_kind(site: Site) -> PatternKind:
    if site.op in _SEVERAL or program_of(site) is None:
        return PatternKind.OPAQUE
    return _WEAKEST.get(get(site.op).deduce.__module__.rpartition(".")[2], PatternKind.OPAQUE)


def accepted(name: str, use: Use) -> tuple[list[str], dict[str, str]]:
    """The dtypes that the operator takes in `use`, and for each other one how it is refused."""
    if not varies(use):
        return ["float32"], {}
    attrs = attributes_of(get(name), use.attrs)
    taken: list[str] = []
    refused: dict[str, str] = {}
    for dtype in DTYPES:
        try:
            deduce(name, operands_at(use, dtype), attrs)
        except OperatorError as error:
            refused[dtype] = str(error)
        else:
            taken.append(dtype)
    return taken, refused


def jax_takes(name: str, use: Use, dtype: str, rng: np.random.Generator) -> bool:
    """Whether the lowering itself would take a dtype that the operator refuses."""
    attrs = attributes_of(get(name), use.attrs)
    sizes = sizes_of(use, rng)
    dims = {a.name for a in get(name).attributes if a.kind == "dims"}
    given = {k: tuple(int(d.evaluate(sizes)) for d in v) if k in dims else v for k, v in attrs.items()}
    operands = [substitute(a, {v: Dim.of(n) for v, n in sizes.items()}) for a in operands_at(use, dtype)]
    with jax.enable_x64(True):
        structs = [jax.ShapeDtypeStruct(tuple(map(int, t.shape or ())), jax_dtype(str(t.dtype))) for t in operands]
        try:
            jax.eval_shape(lambda *xs: get(name).jax_function()(*xs, **given), *structs)
        except (TypeError, ValueError, NotImplementedError, AssertionError):
            return False
        return True


def jax_dtype(name: str) -> Any:
    return jax.random.key(0, impl=generator_of(name)).dtype if is_key(name) else numpy_dtype(name)


def with_special(use: Use) -> Use:
    return replace(use, special=True)


def by_mode(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """The cases without x64, and those with it."""
    for x64 in (False, True):
        yield [c for c in cases if c.x64 is x64]
