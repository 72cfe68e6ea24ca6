"""Random well-formed modules that use every feature of the text form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from relax_eg import ir
from relax_eg.dtypes import NUMBERS, dtype_of, is_complex, is_float, itemsize, numpy_dtype
from relax_eg.errors import OperatorError
from relax_eg.ir.origin import Origin, SourceLine
from relax_eg.ir.steps import is_sized
from relax_eg.ir.wellformed import kept_inside
from relax_eg.shapes import Dim

SIZES = ["n", "m", 0, 1, 4, "2*n", "n*m + 1", "n//2", "n%4", "max(n, m)", "-n + 3", "select(n <= m, n, 4)"]
SPECIAL = [0.0, -0.0, 1.0, -1.5, 0.1, 3.14159265358979, float("inf"), float("-inf"), float("nan")]


class Numbers(NamedTuple):
    start: tuple[int, ...]
    fill: float


def table(op: str, operands: Sequence[ir.Annotation], attrs: Mapping[str, Any]) -> tuple[Mapping[str, Any], ir.Never]:
    """A toy operator table: `sized` has sizes and an attribute that is None by default. All annotations follow."""
    if op != "sized":
        return attrs, ir.Never()
    shape, precision = tuple(map(Dim.of, attrs["shape"])), attrs.get("precision")
    return {"shape": shape, "precision": precision, "axis": attrs["axis"]}, ir.Never()


@lru_cache
def origins() -> st.SearchStrategy[Origin]:
    """Origins of every kind that has a text."""
    files = st.sampled_from(["model.py", "a b.py", "made by me.py", "one, two.py", "<stdin>", "x:y.py"])
    line = st.builds(SourceLine, files, st.integers(0, 10**6))
    lines = st.lists(line, max_size=3).map(tuple)
    rules = st.lists(st.sampled_from(["swap", "fuse_prologue", "by"]), min_size=1, max_size=2).map(tuple)
    book = st.builds(SourceLine, st.just("book.py"), st.integers(1, 999))
    return st.one_of(st.builds(Origin, lines.filter(bool)), st.builds(Origin, lines, rules, st.none() | book))


@lru_cache
def sizes(extra: tuple[str, ...] = ()) -> st.SearchStrategy[tuple[Dim, ...]]:
    return st.lists(st.sampled_from([*SIZES, *extra]).map(Dim.of), max_size=3).map(tuple)


@lru_cache
def tensors(extra: tuple[str, ...] = ()) -> st.SearchStrategy[ir.Annotation]:
    dtypes = st.sampled_from([None, *NUMBERS])
    return st.one_of(
        st.builds(ir.Tensor, sizes(extra), dtypes),
        st.builds(ir.Tensor, st.none(), dtypes, st.sampled_from([None, 0, 2])),
    )


@lru_cache
def annotations(extra: tuple[str, ...] = ()) -> st.SearchStrategy[ir.Annotation]:
    flat = st.one_of(
        tensors(extra),
        st.builds(ir.Object),
        st.builds(ir.Shape, sizes(extra)),
        st.builds(ir.Shape, st.none(), st.sampled_from([None, 2])),
    )
    return st.recursive(
        flat,
        lambda inner: st.one_of(
            st.builds(ir.Tuple, st.lists(inner, max_size=3).map(tuple)),
            st.builds(ir.Callable, st.lists(inner, max_size=2).map(tuple), inner),
        ),
        max_leaves=4,
    )


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Arrays of every dtype: friendly values, or any bits at all."""
    dtype = draw(st.sampled_from(list(NUMBERS)))
    shape = draw(st.sampled_from([(), (), (1,), (3,), (2, 2), (0, 3), (17,), (1, 1, 2)]))
    count = int(np.prod(shape))
    if is_float(dtype) or is_complex(dtype):
        if draw(st.booleans()):
            bits = draw(st.binary(min_size=count * itemsize(dtype), max_size=count * itemsize(dtype)))
            return np.frombuffer(bits, numpy_dtype(dtype)).reshape(shape)
        values = draw(st.lists(st.sampled_from(SPECIAL), min_size=count, max_size=count))
    elif dtype == "bool":
        values = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    else:
        bits = dtype_of(dtype).bits
        low, high = (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        values = draw(st.lists(st.integers(low, high), min_size=count, max_size=count))
        return np.array([np.array(v, numpy_dtype(dtype)) for v in values], numpy_dtype(dtype)).reshape(shape)
    with np.errstate(all="ignore"):
        return (
            np.asarray(values, np.complex128 if is_complex(dtype) else np.float64)
            .astype(numpy_dtype(dtype))
            .reshape(shape)
        )


FOREIGN = [len, (1, 2), (True, 2), Numbers((1,), 0.0), Numbers((1,), -0.0), {"a": [1]}, np.float32, object()]


@lru_cache
def attributes(extra: tuple[str, ...] = ()) -> st.SearchStrategy[Any]:
    """Values of attributes that tell their own type."""
    flat = st.one_of(
        st.integers(),
        st.booleans(),
        st.floats(),
        st.text(st.characters(exclude_categories=()), max_size=8),
        st.none(),
        st.sampled_from([*SIZES, *extra]).map(Dim.of),
        tensors(extra),
        st.sampled_from(FOREIGN).map(ir.Foreign),
        arrays().filter(lambda a: a.ndim == 0).map(lambda a: a[()]),
        arrays().map(ir.ConstantData),
    )
    return st.recursive(flat, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5)


@lru_cache
def self_told(extra: tuple[str, ...] = ()) -> st.SearchStrategy[Any]:
    """Attributes that read back where no table tells what are sizes, and what was None."""
    return attributes(extra).filter(
        lambda v: v is not None and not (type(v) is tuple and v and all(type(d) is Dim for d in v))
    )


class _Builder:
    """Builds one function from draws. `typed`: whether every annotation is that of its value."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any], earlier: list[ir.Function], typed: bool) -> None:
        self.draw, self.typed = draw, typed
        self.earlier = earlier
        self.extra: tuple[str, ...] = ()
        self.pool: list[ir.Expr] = []
        self.names = iter(
            [*"abcdefgh", "lv", "lv2", "gv", "R", "float", "call_dps_library", *(f"v{i}" for i in range(99))]
        )
        self.origins: dict[ir.Expr, Origin] = {}

    def some(self, low: int = 0, high: int = 3) -> list[ir.Expr]:
        return [self.draw(st.sampled_from(self.pool)) for _ in range(self.draw(st.integers(low, high)))]

    def annotation(self) -> ir.Annotation:
        return self.draw(annotations(self.extra))

    def value(self) -> ir.Expr:
        draw = self.draw
        kind = draw(
            st.sampled_from(["op", "op", "op", "sized", "const", "tuple", "get", "shape", "library", "call", "odd"])
        )
        if kind == "const":
            return ir.const(draw(arrays()))
        if kind == "tuple":
            return ir.tuple_(self.some())
        if kind == "get":
            fields = [e for e in self.pool if isinstance(e.annotation, ir.Tuple) and e.annotation.fields]
            if fields:
                whole = draw(st.sampled_from(fields))
                index = draw(st.integers(0, len(whole.annotation.fields) - 1))
                if self.typed:
                    return ir.tuple_get(whole, index)
                return ir.node(ir.TUPLE_GET, (whole,), (("index", index),), self.annotation())
        if kind == "shape":
            return ir.shape_value(draw(sizes(self.extra)))
        if kind == "odd" and not self.typed:  # heads whose annotation is not the usual one
            a = self.annotation()
            return draw(
                st.sampled_from([
                    ir.node(ir.TUPLE, self.some(), (), a),
                    ir.node(ir.SHAPE, (), (("dims", draw(sizes(self.extra))),), a),
                    ir.node(ir.CONSTANT, (), (("data", ir.ConstantData(draw(arrays()))),), a),
                ])
            )  # fmt: skip
        if kind == "library":
            return self.library(pure=True)
        impure = ir.impure_functions(ir.Module(tuple(self.earlier)))
        if kind == "call" and (pure := [f for f in self.earlier if f.name not in impure]):
            f = draw(st.sampled_from(pure))
            if draw(st.integers(0, 3)) == 0:
                return ir.function_ref(f)
            args = self.some(len(f.params), len(f.params)) if self.pool else []
            if self.typed:
                try:
                    return ir.call_function(ir.function_ref(f), args)
                except OperatorError:  # of other arguments than it takes
                    return ir.function_ref(f)
            return ir.node(ir.CALL, (ir.function_ref(f), *args), (), self.annotation())
        if kind == "sized":
            attrs: dict[str, Any] = {
                "shape": draw(sizes(self.extra)),
                "precision": draw(st.sampled_from([None, "high"])),
            }
            return ir.node("sized", self.some(), {**attrs, "axis": draw(st.integers(-1, 2))}.items(), self.annotation())
        names = draw(st.lists(st.sampled_from(["axis", "axes", "dtype", "epsilon"]), unique=True))
        attrs = [(n, draw(self_told(self.extra))) for n in names]
        return ir.node(draw(st.sampled_from(["exp", "add", "take"])), self.some(), attrs, self.annotation())

    def library(self, pure: bool) -> ir.Expr:
        name = self.draw(st.sampled_from(["jax.sort", "cublas.gemm", 'odd "name" \\ é']))
        keys = self.draw(st.lists(st.text(max_size=4), unique=True, max_size=2))
        attrs = [(k, self.draw(attributes(self.extra))) for k in keys]
        # A call whose result sizes are unknown is a step, as an impure call is.
        out = self.annotation() if not pure else self.draw(annotations(self.extra).filter(is_sized))
        is_pure = pure or (not is_sized(out) and self.draw(st.booleans()))
        return ir.call_dps_library(name, self.some(), out, attrs, is_pure)

    def grow(self) -> None:
        for _ in range(self.draw(st.integers(0, 5))):
            e = self.value()
            self.pool.append(e)
            if self.draw(st.booleans()):
                self.origins[e] = self.draw(origins())

    def blocks(self) -> list[ir.Block]:
        made: list[ir.Block] = []
        for _ in range(self.draw(st.integers(0, 3))):
            self.grow()
            if self.draw(st.booleans()):
                values = self.some()
                outputs = [ir.Binding(self.variable(v), v) for v in values]
                made.append(ir.Block(tuple(outputs)))
                self.pool += [b.var for b in outputs]
            else:
                made.append(ir.Block(tuple(self.step() for _ in range(self.draw(st.integers(0, 2)))), dataflow=False))
        return made

    def variable(self, value: ir.Expr) -> ir.Expr:
        kept = self.typed or self.draw(st.integers(0, 3))
        annotation = value.annotation if kept else self.annotation()
        return ir.var(next(self.names), annotation)

    def step(self) -> ir.Binding:
        kind = self.draw(st.sampled_from(["impure", "match_cast", "pure"]))
        if kind == "impure" or not self.pool:
            value = self.library(pure=False)
        elif kind == "match_cast":
            new = f"k{len(self.extra)}"
            value = ir.match_cast(self.some(1, 1)[0], self.draw(annotations((*self.extra, new))))
            if new in {v for d in ir.dims_of(value.annotation) for v in d.variables}:
                self.extra = (*self.extra, new)
        else:
            value = self.some(1, 1)[0]
        bound = self.variable(value)
        self.pool.append(bound)
        return ir.Binding(bound, value)


ASSUMED = ("n % 8 == 0", "n*m <= 4096", "select(n < 4, m, 1) >= 1", "ceildiv(m, 2) != n and m >= 2")


@st.composite
def modules(draw: st.DrawFn, typed: bool = False) -> ir.Module:
    """Modules of few functions. `typed`: whether every annotation is that of its value, as text has to say."""
    functions: list[ir.Function] = []
    for i in range(draw(st.integers(0, 3))):
        b = _Builder(draw, functions, typed)
        params = [
            ir.var("x", ir.Tensor("n m")),
            *(ir.var(f"p{j}", draw(annotations())) for j in range(draw(st.integers(0, 2)))),
        ]
        b.pool = list(params)
        blocks = b.blocks()
        b.grow()
        result = draw(st.sampled_from([e for e in b.pool if kept_inside(e.annotation) is None]))
        name = ["main", "Module", "f"][i]
        assume = draw(st.lists(st.sampled_from(ASSUMED), max_size=2)) if name == "main" else ()
        told = MappingProxyType(b.origins)
        functions.append(ir.Function(name, tuple(params), tuple(blocks), result, told, tuple(assume)))
    return ir.Module(tuple(functions))
