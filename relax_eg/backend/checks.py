"""Checks at run time: whether values fit what a signature or a `match_cast` says, and the sizes they tell.

Which axis gives which size variable and which axes must agree is settled once (`shapes.Binder`); a check then costs a
few comparisons. While JAX traces for symbolic sizes a size may itself be symbolic; then variables are read off axes
and nothing is compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from relax_eg.errors import ShapeError
from relax_eg.ir.annotations import Annotation, Callable, Shape, Tensor, Tuple, dims_of, named_sizes
from relax_eg.ir.expr import MATCH_CAST, Expr
from relax_eg.ir.module import Function
from relax_eg.shapes import Binder, Dim
from relax_eg.shapes.binder import said

Pattern = Sequence[Dim | None]


class Fit:
    """Checks values against annotations and reads size variables off them.

    `named`: name and annotation of each value; `known`: the size variables that are known before, and what told them.
    Errors call the function `where`.
    """

    def __init__(
        self, where: str, named: Sequence[tuple[str, Annotation]], known: Mapping[str, str] | None = None
    ) -> None:
        self._where = said(where)
        self._named = tuple(named)
        found = [p for name, a in named for p in named_sizes(name, a)]
        used = {v for _, dims in found for d in dims if d is not None for v in d.variables}
        self._known = tuple(v for v in known or {} if v in used)
        names = [(known or {})[v] for v in self._known] + [name for name, _ in found]
        self._patterns: list[Pattern] = [*((Dim.var(v),) for v in self._known), *(dims for _, dims in found)]
        self._binder = Binder(self._patterns, names, where)

    def bind(self, values: Sequence[Any], sizes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The size variables that `values` tell, with those known before from `sizes`. ShapeError naming the first
        value that does not fit."""
        shapes: list[Sequence[Any]] = [((sizes or {})[v],) for v in self._known]
        for (name, annotation), value in zip(self._named, values, strict=True):
            self._collect(name, annotation, value, shapes)
        return self._binder.bind(shapes) if _are_numbers(shapes) else _symbolic(self._patterns, shapes)

    def _collect(self, name: str, a: Annotation, value: Any, shapes: list[Sequence[Any]]) -> None:
        """The shapes in `value`, in the order of the patterns; ShapeError where it is of another kind or dtype."""
        if isinstance(a, Tuple):
            if not isinstance(value, tuple) or len(value) != len(a.fields):  # type: ignore[reportUnknownArgumentType]
                raise self._wrong(name, f"a tuple of {len(a.fields)}", value)
            for i, (field, inner) in enumerate(zip(a.fields, value, strict=True)):  # type: ignore[reportUnknownArgumentType]
                self._collect(f"{name}[{i}]", field, inner, shapes)
        elif isinstance(a, Tensor):
            if not hasattr(value, "shape") or not hasattr(value, "dtype"):
                raise self._wrong(name, "an array", value)
            if a.dtype is not None and a.dtype != str(value.dtype):
                raise self._wrong(name, a.dtype, value)
            if a.ndim is not None:
                shapes.append(value.shape)
        elif isinstance(a, Shape):
            if not isinstance(value, tuple) or any(hasattr(n, "dtype") for n in value):  # type: ignore[reportUnknownArgumentType]
                raise self._wrong(name, "a shape (a tuple of integers)", value)
            if a.ndim is not None:
                shapes.append(value)  # type: ignore[reportUnknownArgumentType]
        elif isinstance(a, Callable) and not isinstance(value, str):
            raise self._wrong(name, "a function of the module", value)

    def _wrong(self, name: str, wanted: str, value: Any) -> ShapeError:
        got = str(value.dtype) if hasattr(value, "dtype") else f"{type(value).__name__} {value!r}"
        called = name if "`" in name else f"argument `{name}`"
        return ShapeError(f"{self._where}: {called} should be {wanted}, got {got}")


def bind_sizes(where: str, params: Sequence[Expr], shapes: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Values of the size variables when the parameters of function `where`, tensors whose sizes are known, have these
    shapes. ShapeError where they contradict the signature."""
    patterns = [p.shape for p in params]
    if not _are_numbers(shapes):
        return _symbolic(patterns, shapes)
    return Binder(patterns, [str(p.attr("name")) for p in params], where).bind(shapes)


def _are_numbers(shapes: Sequence[Sequence[Any]]) -> bool:
    return all(isinstance(n, int) for shape in shapes for n in shape)


def _symbolic(patterns: Sequence[Pattern], shapes: Sequence[Sequence[Any]]) -> dict[str, Any]:
    sizes: dict[str, Any] = {}
    pairs = [pair for dims, shape in zip(patterns, shapes, strict=True) for pair in zip(dims, shape, strict=True)]
    axes = [(d, n) for d, n in pairs if d is not None]
    # Axes of one variable first, as the rest may mention further ones.
    for d, n in sorted(axes, key=lambda axis: (len(axis[0].variables), len(str(axis[0])))):
        unknown = [v for v in d.variables if v not in sizes]
        if len(unknown) == 1:
            (v,) = unknown
            rest, scale = (d.evaluate({**sizes, v: 0}), d.evaluate({**sizes, v: 1}) - d.evaluate({**sizes, v: 0}))
            sizes[v] = (n - rest) // scale
    return sizes


@lru_cache(1 << 12)
def signature_fit(where: str, params: tuple[Expr, ...]) -> Fit:
    """The check of a function's arguments."""
    return Fit(where, [(str(p.attr("name")), p.annotation) for p in params])


def cast_fits(function: Function) -> dict[Expr, Fit]:
    """The check of each `match_cast` of a function, by the variable it binds."""
    origins: dict[str, str] = {}
    for p in function.params:
        for d in dims_of(p.annotation):
            for v in d.variables:
                origins.setdefault(v, str(p.attr("name")))
    fits: dict[Expr, Fit] = {}
    for block in function.blocks if any(not b.dataflow for b in function.blocks) else ():
        for b in block.bindings if not block.dataflow else ():
            if b.value.op != MATCH_CAST:
                continue
            name, asserted = f"`{b.name}`", b.value.annotation
            fits[b.var] = Fit(f"{function.name}(), match_cast", [(name, asserted)], origins)
            for d in dims_of(asserted):
                for v in d.variables:
                    origins.setdefault(v, name)
    return fits
