"""Library routines whose result sizes depend on the values of their operands.

Such a size is unknown before the result is computed, so these are library calls annotated with rank and dtype only; a
`match_cast` after one names the sizes (Relax, 3.2). XLA cannot compile them into a program: they run between programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from relax_eg.dtypes import KEY_DTYPE, is_complex, is_integer
from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import Annotation, Tensor, Tuple
from relax_eg.ir.expr import Expr, call_dps_library
from relax_eg.ir.lattice import sizes_differ
from relax_eg.ops.record import Attribute, Site, attributes_of

Array = np.ndarray[Any, Any]
PREFIX = "relax_eg."


@dataclass(frozen=True)
class Routine:
    """A library routine whose result sizes depend on values.

    - `name`: the name in `rx.op`.
    - `parameters`: operand names.
    - `deduce`: returns the result's annotation from complete or partial annotations of the operands.
    - `compute`: called with numpy or jax.numpy, arrays of that kind, and the attributes as keywords.
    - `attributes`: its attributes, in order.
    - `doc`: what it returns, in one line.
    """

    name: str
    parameters: tuple[str, ...]
    deduce: Callable[[Site], Annotation]
    compute: Callable[..., Any]
    attributes: tuple[Attribute, ...]
    doc: str

    @property
    def library_name(self) -> str:
        """The routine's name in `call_dps_library`."""
        return PREFIX + self.name


def _unique(site: Site) -> Annotation:
    x = site.tensor(0)
    if x.dtype is not None and (is_complex(x.dtype) or KEY_DTYPE.fullmatch(x.dtype)):
        raise site.error(f"operand 0 is {x.dtype}; a dtype with an order is needed")
    values = Tensor(dtype=x.dtype, ndim=1)
    places = Tensor(x.shape, "int32", x.ndim)
    counts = Tensor(dtype="int32", ndim=1)
    fields = (values, *[places] * site["return_inverse"], *[counts] * site["return_counts"])
    return values if len(fields) == 1 else Tuple(fields)


def _unique_of(numpy: Any, x: Any, *, return_inverse: bool, return_counts: bool) -> Any:
    found = numpy.unique(x, return_inverse=return_inverse, return_counts=return_counts)
    if not return_inverse and not return_counts:
        return found
    values, *places = found
    shapes = [x.shape] * return_inverse + [(-1,)] * return_counts
    return (values, *(p.reshape(s).astype("int32") for p, s in zip(places, shapes, strict=True)))


def _places(rank: int) -> Callable[[Site], Annotation]:
    def deduce(site: Site) -> Annotation:
        if not is_integer(site["dtype"]):
            raise site.error(f"positions of dtype {site['dtype']!r}; an integer dtype is needed")
        site.tensor(0)
        return Tensor(dtype=site["dtype"], ndim=rank)

    return deduce


def _nonzero_of(numpy: Any, x: Any, *, dtype: str) -> Any:
    return numpy.argwhere(x).T.astype(dtype)


def _argwhere_of(numpy: Any, x: Any, *, dtype: str) -> Any:
    return numpy.argwhere(x).astype(dtype)


def _flatnonzero_of(numpy: Any, x: Any, *, dtype: str) -> Any:
    return numpy.flatnonzero(x).astype(dtype)


def _masked_select(site: Site) -> Annotation:
    x, mask = site.tensor(0), site.tensor(1)
    if mask.dtype not in (None, "bool"):
        raise site.error(f"operand 1, the mask, is {mask.dtype}; bool is needed")
    if mask.ndim == 0 or (x.ndim is not None and mask.ndim is not None and mask.ndim > x.ndim):
        raise site.error(f"the mask has rank {mask.ndim}; 1 to the rank of operand 0 is needed")
    for axis, (p, q) in enumerate(zip(x.shape or (), mask.shape or (), strict=False)):
        if sizes_differ(p, q):
            raise site.error(f"axis {axis} of operand and mask: sizes {p} and {q} differ")
    return Tensor(dtype=x.dtype, ndim=None if x.ndim is None or mask.ndim is None else x.ndim - mask.ndim + 1)


def _masked_select_of(numpy: Any, x: Any, mask: Any) -> Any:
    if x.shape[: mask.ndim] != mask.shape:
        raise OperatorError(f"masked_select: a mask of shape {mask.shape} does not fit an operand of shape {x.shape}")
    return x[mask]


_POSITIONS = (Attribute("dtype", default="int32"),)


_X = ("x",)
_UNIQUE = (Attribute("return_inverse", default=False), Attribute("return_counts", default=False))

ROUTINES: Mapping[str, Routine] = {
    r.name: r
    for r in (
        Routine("unique", _X, _unique, _unique_of, _UNIQUE,
                "the distinct elements, ascending; with it, where each element is among them, and how often"),
        Routine("nonzero", _X, _places(2), _nonzero_of, _POSITIONS,
                "the indices of the elements that are not zero, in order: a row for each axis"),
        Routine("argwhere", _X, _places(2), _argwhere_of, _POSITIONS,
                "the indices of the elements that are not zero, in order: a column for each axis"),
        Routine("flatnonzero", _X, _places(1), _flatnonzero_of, _POSITIONS,
                "the indices of the elements of the flattened operand that are not zero"),
        Routine("masked_select", ("x", "mask"), _masked_select, _masked_select_of, (),
                "x[mask]: the elements along the mask's axes, in order, at which it holds"),
    )
}  # fmt: skip
BY_LIBRARY: Mapping[str, Routine] = {r.library_name: r for r in ROUTINES.values()}


def deduce_routine(
    name: str, operands: tuple[Annotation, ...], given: Mapping[str, Any]
) -> tuple[dict[str, Any], Annotation]:
    """Returns all attributes of routine `name` and its result's annotation. Raises OperatorError."""
    routine = ROUTINES[name]
    attrs = attributes_of(routine, given)
    if len(operands) != len(routine.parameters):
        wanted = f"{len(routine.parameters)} operands ({', '.join(routine.parameters)})"
        raise OperatorError(f"{name} takes {wanted}, got {len(operands)}")
    return attrs, routine.deduce(Site(name, operands, attrs))


def call_routine(name: str, args: tuple[Expr, ...], given: Mapping[str, Any]) -> Expr:
    """Returns the library call of routine `name`, which must be a step of its own outside dataflow blocks."""
    attrs, annotation = deduce_routine(name, tuple(a.annotation for a in args), given)
    return call_dps_library(ROUTINES[name].library_name, args, annotation, attrs.items())
