"""Functions whose entry takes or returns shapes and tuples: converts their calls to calls on arrays, and results back.

A shape is passed as an array of that shape with one more axis of size 0. So JAX treats it like any argument: it
determines sizes, selects executables, is padded to a capacity, and holds no bytes.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, TypeVar, cast

import jax
import numpy as np
from jax.core import Tracer

from relax_eg.backend.calls.optimized import Optimized
from relax_eg.backend.calls.program import Program
from relax_eg.backend.calls.ready import Ready
from relax_eg.backend.compare import Check
from relax_eg.errors import ShapeError
from relax_eg.ir.annotations import Annotation, Shape, Tuple
from relax_eg.ir.reader import Reader, Source
from relax_eg.ir.steps import is_sized
from relax_eg.limits import ELEMENTS, FEW_KEPT

_in_arrays: ContextVar[bool] = ContextVar("relax_eg_in_arrays", default=False)  # whether results stay arrays

Made = TypeVar("Made", Optimized, Ready)


def to_arrays(where: str, a: Annotation, value: Any) -> Any:
    """An argument with its shapes converted to arrays; a list is accepted as a tuple.

    ShapeError where it does not have the structure that `a` declares.
    """
    if isinstance(a, Tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(a.fields):  # type: ignore[reportUnknownArgumentType]
            got = (
                f"{type(value).__name__} of {len(value)}" if isinstance(value, (tuple, list)) else type(value).__name__
            )  # type: ignore[reportUnknownArgumentType]
            raise ShapeError(f"{where} should be a tuple of {len(a.fields)}, got {got}")
        fields = zip(a.fields, cast("Sequence[Any]", value), strict=True)
        return tuple(to_arrays(f"{where}[{i}]", f, x) for i, (f, x) in enumerate(fields))
    if not isinstance(a, Shape) or (hasattr(value, "dtype") and getattr(value, "ndim", 0) == (a.ndim or 0) + 1):
        return value
    sizes = list(cast("Sequence[Any]", value)) if isinstance(value, (tuple, list)) else None
    if sizes is not None and any(isinstance(n, Tracer) for n in sizes):
        raise ShapeError(f"{where} is a shape, whose sizes JAX traces here; name it in static_argnums of jax.jit")
    if sizes is None or not all(_is_size(n) for n in sizes):
        given = cast("Any", value)
        got = str(given.dtype) if hasattr(given, "dtype") else f"{type(given).__name__} {given!r}"
        raise ShapeError(f"{where} should be a shape (a tuple of integers), got {got}")
    if len(sizes) != a.ndim:
        axes = ", ".join("_" if a.dims is None else str(d) for d in a.dims or range(a.ndim or 0))
        raise ShapeError(f"{where} should have {a.ndim} axes ({axes}), got {len(sizes)}: {value}")
    sizes = [n if isinstance(n, int) else n.__index__() if isinstance(n, np.integer) else n for n in sizes]
    if all(isinstance(n, int) for n in sizes) and math.prod(n or 1 for n in sizes) >= ELEMENTS:
        raise ShapeError(f"{where} is {value!r}; shapes of fewer than 2**62 elements are accepted")
    return jax.device_put(np.zeros((*sizes, 0), bool))


def _is_size(n: Any) -> bool:
    if isinstance(n, (bool, np.bool_)):
        return False
    return int(n) >= 0 if isinstance(n, (int, np.integer)) else jax.export.is_symbolic_dim(n)


def from_arrays(a: Annotation, value: Any) -> Any:
    """A result with the arrays that stand for shapes converted to shapes."""
    if isinstance(a, Tuple) and isinstance(value, (tuple, list)):
        return tuple(from_arrays(f, x) for f, x in zip(a.fields, cast("Sequence[Any]", value), strict=True))
    return value.shape[:-1] if isinstance(a, Shape) and hasattr(value, "dtype") else value


def _is_empty(a: Annotation, value: Any) -> bool:
    """Whether an array or shape in `value` of which only the rank is declared has a size of 0."""
    if isinstance(a, Tuple):
        return any(map(_is_empty, a.fields, value))
    if is_sized(a):
        return False
    shape = getattr(value, "shape", ())
    return 0 in (shape[:-1] if isinstance(a, Shape) else shape)


class _Structured:
    """A mixin for an optimized function, or one with its weights bound, that converts arguments and results.

    - `_takes`: annotations of its arguments by name.
    - `_gives`: annotation of its result.
    """

    _takes: Mapping[str, Annotation]
    _gives: Annotation

    def _named(self) -> str:
        return self._program.name  # type: ignore[attr-defined]

    def _encoded(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        where = f"{self._named()}(): argument"
        placed = zip(self._takes.items(), args, strict=False)
        made = tuple(to_arrays(f"{where} `{name}`", a, x) for (name, a), x in placed)
        named = {
            k: to_arrays(f"{where} `{k}`", self._takes[k], x) if k in self._takes else x for k, x in kwargs.items()
        }
        return (*made, *args[len(made) :]), named

    def _decoded(self, value: Any) -> Any:
        return value if _in_arrays.get() else from_arrays(self._gives, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, named = self._encoded(args, kwargs)
        return self._decoded(super().__call__(*args, **named))  # type: ignore[misc]

    def to_jax(self) -> Callable[..., Any]:
        inner = super().to_jax()  # type: ignore[misc]

        def optimized(*args: Any, **kwargs: Any) -> Any:
            args, named = self._encoded(args, kwargs)
            return self._decoded(inner(*args, **named))

        optimized.__name__ = self._named()
        return optimized


class _StructuredOptimized(_Structured):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, named = self._encoded(args, kwargs)
        given = {**dict(zip(self._takes, args, strict=False)), **named}
        if any(_is_empty(a, given[name]) for name, a in self._takes.items() if name in given):
            # Named sizes are at least 1. Where only a rank is declared, sizes have no names and may be 0. The chosen
            # program was not made for these, so the function runs as written.
            program: Program = self._program  # type: ignore[attr-defined]
            return self._decoded(program.run_as_written(program.check(program.call_arrays(args, named))))
        return super().__call__(*args, **named)

    def check(self, *args: Any, **kwargs: Any) -> Check:
        args, named = self._encoded(args, kwargs)
        token = _in_arrays.set(True)
        try:
            return super().check(*args, **named)  # type: ignore[misc]
        finally:
            _in_arrays.reset(token)

    def prepare(self, *weights: Any, **named: Any) -> Ready:
        where = f"{self._named()}(): argument"
        names: tuple[str, ...] = self._weights  # type: ignore[attr-defined]
        given = [to_arrays(f"{where} `{n}`", self._takes[n], x) for n, x in zip(names, weights, strict=False)]
        rest = {k: to_arrays(f"{where} `{k}`", self._takes[k], x) if k in self._takes else x for k, x in named.items()}
        ready = super().prepare(*given, *weights[len(given) :], **rest)  # type: ignore[misc]
        takes = {n: a for n, a in self._takes.items() if n not in names}
        return _add_mixin(ready, _Structured, takes, self._gives)


@lru_cache(FEW_KEPT)
def mixin_class(kind: type[Any], added: type[Any]) -> type[Any]:
    return type(kind.__name__, (added, kind), {"__module__": kind.__module__})


def _add_mixin(made: Made, added: type[Any], takes: Mapping[str, Annotation], gives: Annotation) -> Made:
    made.__class__ = mixin_class(type(made), added)
    made._takes, made._gives = takes, gives  # type: ignore[attr-defined]
    return made


def structured(best: Optimized) -> Optimized:
    """`best` with calls and results as its program's entry declares; unchanged if the entry has arrays only."""
    entry = best._program.entry  # type: ignore[reportPrivateUsage]
    if not entry:
        return best
    *takes, (_, gives) = ((name, _annotation(text)) for name, text in entry)
    return _add_mixin(best, _StructuredOptimized, dict(takes), gives)


def _annotation(text: str) -> Annotation:
    (line,) = ast.parse(text).body
    assert isinstance(line, ast.Expr)
    return Reader(Source(text)).annotation(line.value)
