"""Run-time checks: whether values fit a signature or a `match_cast`, and the size variables that they bind.

Which axis binds which size variable, and which axes must agree, is determined once (`shapes.Binder`); a check then
costs a few comparisons. While JAX traces for symbolic sizes, a size may be symbolic itself; then size variables are
read off axes and nothing is compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from relax_eg.errors import BoundsError, ShapeError
from relax_eg.ir.annotations import Annotation, Callable, Data, Shape, Tensor, Tuple, dims_of, named_sizes
from relax_eg.ir.data import FunctionValue, all_sizes, map_annotated, sizes_in_data, unknown_size_error
from relax_eg.ir.expr import MATCH_CAST, Expr
from relax_eg.ir.module import Function
from relax_eg.limits import ELEMENTS, KEPT
from relax_eg.shapes import Binder, Dim
from relax_eg.shapes.binder import call_name

Pattern = Sequence[Dim | None]


class Fit:
    """A check of values against annotations, which also binds size variables.

    - `where`: what errors call the function.
    - `named`: name and annotation of each value.
    - `known`: size variables that are bound before, each with the name of what bound it.
    """

    def __init__(
        self, where: str, named: Sequence[tuple[str, Annotation]], known: Mapping[str, str] | None = None
    ) -> None:
        self._where, self._function = call_name(where), where
        self._named = tuple(named)
        found = [p for name, a in named for p in named_sizes(name, a)]
        used = {v for _, dims in found for d in dims if d is not None for v in d.variables}
        used.update(*(sizes_in_data(a) for _, a in named))
        self._known = tuple(v for v in known or {} if v in used)
        self._names = names = [(known or {})[v] for v in self._known] + [name for name, _ in found]
        self._patterns: list[Pattern] = [*((Dim.var(v),) for v in self._known), *(dims for _, dims in found)]
        self._binder = Binder(self._patterns, names, where)
        self._data = [(i, a) for i, (_, a) in enumerate(named) if sizes_in_data(a)]

    def bind(self, values: Sequence[Any], sizes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The size variables that `values` bind, and those that are known before, from `sizes`.

        ShapeError that names the first value that does not fit. Tensors inside of data are not looked at.
        """
        shapes: list[Sequence[Any]] = [((sizes or {})[v],) for v in self._known]
        for (name, annotation), value in zip(self._named, values, strict=True):
            self._collect(name, annotation, value, shapes)
        return self._binder.bind(shapes) if _are_numbers(shapes) else _symbolic(self._patterns, shapes)

    def bind_inside(self, values: Sequence[Any], sizes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What `bind` returns, and the size variables that tensors inside of data bind. These tensors have to have the
        sizes that their annotations name, too. It takes time linear in the data."""
        bound = self.bind(values, sizes)
        found: dict[tuple[Pattern, tuple[int, ...]], str] = {}

        def keep(place: str, a: Tensor, x: Any) -> Any:
            if a.shape is not None:
                found.setdefault((a.shape, tuple(x.shape)), place)
            return x

        for i, a in self._data:
            map_annotated(f"`{self._named[i][0]}`", a, values[i], keep)
        if found:
            patterns = [*((Dim.var(v),) for v in bound), *(dims for dims, _ in found)]
            origins = {v: name for p, name in zip(self._patterns, self._names, strict=True) for d in p if d is not None
                       for v in d.variables}  # fmt: skip
            names = [*(origins.get(v, v) for v in bound), *found.values()]
            shapes = [*((n,) for n in bound.values()), *(s for _, s in found)]
            return Binder(patterns, names, self._function).bind(shapes)
        return bound

    def need_inside(self, sizes: Mapping[str, Any], where: str) -> None:
        """ShapeError where a size inside of data is not among `sizes`, because no tensor tells it."""
        for i, a in self._data:
            if missing := sorted(sizes_in_data(a) - sizes.keys()):
                raise unknown_size_error(where, self._named[i][0], missing[0])

    def _collect(self, name: str, a: Annotation, value: Any, shapes: list[Sequence[Any]]) -> None:
        """Appends the shapes in `value` to `shapes`, in the order of the patterns. ShapeError where `value` has another
        kind or dtype than `a`."""
        if isinstance(a, Tuple):
            if not isinstance(value, tuple) or len(value) != len(a.fields):  # type: ignore[reportUnknownArgumentType]
                raise self._mismatch(name, f"a tuple of {len(a.fields)}", value)
            for i, (field, inner) in enumerate(zip(a.fields, value, strict=True)):  # type: ignore[reportUnknownArgumentType]
                self._collect(f"{name}[{i}]", field, inner, shapes)
        elif isinstance(a, Tensor):
            if not hasattr(value, "shape") or not hasattr(value, "dtype"):
                raise self._mismatch(name, "an array", value)
            if a.dtype is not None and a.dtype != str(value.dtype):
                raise self._mismatch(name, a.dtype, value)
            if a.ndim is not None:
                shapes.append(value.shape)
        elif isinstance(a, Shape):
            if not isinstance(value, tuple) or any(hasattr(n, "dtype") for n in value):  # type: ignore[reportUnknownArgumentType]
                raise self._mismatch(name, "a shape (a tuple of integers)", value)
            if a.ndim is not None:
                shapes.append(value)  # type: ignore[reportUnknownArgumentType]
        elif isinstance(a, Callable) and not isinstance(value, (str, FunctionValue)):
            raise self._mismatch(name, "a function of the module", value)
        elif isinstance(a, Data) and getattr(value, "definition", None) != a.definition:
            raise self._mismatch(name, f"a {a.definition}", value)

    def _mismatch(self, name: str, wanted: str, value: Any) -> ShapeError:
        got = str(value.dtype) if hasattr(value, "dtype") else f"{type(value).__name__} {value!r}"
        called = name if "`" in name else f"argument `{name}`"
        return ShapeError(f"{self._where}: {called} should be {wanted}, got {got}")


def bind_sizes(where: str, params: Sequence[Expr], shapes: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """The size variables of a call of function `where` whose arguments have these shapes.

    The parameters are tensors with declared shapes. ShapeError where the shapes contradict the signature.
    """
    patterns = [p.shape for p in params]
    if not _are_numbers(shapes):
        return _symbolic(patterns, shapes)
    return Binder(patterns, [str(p.attr("name")) for p in params], where).bind(shapes)


def check_addressable(where: str, params: Sequence[Expr], sizes: Mapping[str, int]) -> None:
    """BoundsError where an argument has more elements at these sizes than an array may have."""
    for p in params:
        elements = math.prod(n for d in p.tensor.shape or () if (n := d.evaluate(sizes)) > 0)
        if elements >= ELEMENTS:
            at = ", ".join(f"{v} = {n}" for v, n in sizes.items())
            raise BoundsError(
                f"{where}: at {at} argument `{p.attr('name')}` has {elements:.3g} elements\n"
                "  accepted: sizes at which arrays have fewer than 2**62 elements"
            )


def _are_numbers(shapes: Sequence[Sequence[Any]]) -> bool:
    return all(isinstance(n, int) for shape in shapes for n in shape)


def _symbolic(patterns: Sequence[Pattern], shapes: Sequence[Sequence[Any]]) -> dict[str, Any]:
    sizes: dict[str, Any] = {}
    pairs = [pair for dims, shape in zip(patterns, shapes, strict=True) for pair in zip(dims, shape, strict=True)]
    axes = [(d, n) for d, n in pairs if d is not None]
    # Axes of one variable first: the others may mention several, of which all but one must be known.
    for d, n in sorted(axes, key=lambda axis: (len(axis[0].variables), len(str(axis[0])))):
        unknown = [v for v in d.variables if v not in sizes]
        if len(unknown) == 1:
            (v,) = unknown
            rest, scale = (d.evaluate({**sizes, v: 0}), d.evaluate({**sizes, v: 1}) - d.evaluate({**sizes, v: 0}))
            sizes[v] = (n - rest) // scale
    return sizes


@lru_cache(KEPT)
def signature_fit(where: str, params: tuple[Expr, ...]) -> Fit:
    """The check of the arguments of function `where`, made once per signature."""
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
            for v in all_sizes(b.value):
                origins.setdefault(v, name)
    return fits
