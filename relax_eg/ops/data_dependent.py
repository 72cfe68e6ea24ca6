"""Library routines whose result sizes depend on the values of their operands.

Such a size is unknown before the result is computed, so these are library calls annotated with rank and dtype only; a
`match_cast` after one names the sizes (Relax, 3.2). XLA cannot compile them into a program: they run between programs.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relax_eg.dtypes import KEY_DTYPE, is_complex, is_integer
from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import Annotation, Tensor, Tuple
from relax_eg.ir.expr import CALL_DPS_LIBRARY, Expr, call_dps_library
from relax_eg.ir.lattice import sizes_differ
from relax_eg.ops.attribute_values import DTYPES
from relax_eg.ops.record import Attribute, Site, attributes_of
from relax_eg.shapes import Dim

Array = np.ndarray[Any, Any]
PREFIX = "relax_eg."
Most = Sequence[Sequence[Dim | None]]  # for each result, the most elements that each axis may have


@dataclass(frozen=True)
class Routine:
    """A library routine whose result sizes depend on values.

    - `name`: the name in `rx.op`.
    - `parameters`: operand names.
    - `deduce`: returns the result's annotation from complete or partial annotations of the operands.
    - `most`: returns the same with the most elements that each axis may have, from complete annotations: an upper-bound
      shape function. None for a size that no operand bounds.
    - `compute`: called with numpy or jax.numpy, arrays of that kind, and the attributes as keywords.
    - `attributes`: its attributes, in order.
    - `doc`: what it returns, in one line.
    """

    name: str
    parameters: tuple[str, ...]
    deduce: Callable[[Site], Annotation]
    most: Callable[[Site], Most]
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


def _elements(shape: Sequence[Dim]) -> Dim:
    return functools.reduce(operator.mul, shape, Dim.of(1))


def _most_unique(site: Site) -> Most:
    shape = site.tensor(0).shape or ()
    every = _elements(shape)
    return [[every], *[shape] * site["return_inverse"], *[[every]] * site["return_counts"]]


def _most_places(before: bool, after: bool) -> Callable[[Site], Most]:
    """Of a matrix of positions with a row for each axis (`before`), or a column (`after`)."""

    def most(site: Site) -> Most:
        shape = site.tensor(0).shape or ()
        rank = Dim.of(len(shape))
        return [[*[rank] * before, _elements(shape), *[rank] * after]]

    return most


def _most_selected(site: Site) -> Most:
    x, mask = site.tensor(0).shape or (), site.tensor(1).shape or ()
    return [[_elements(mask), *x[len(mask) :]]]


def _most_largest(site: Site) -> Most:
    return [site.tensor(0).shape or ()] * 2


def _most_boxes(site: Site) -> Most:
    boxes = site.tensor(0).shape or (Dim.of(0),)
    return [[boxes[0] if site["most"] is None else Dim.of(site["most"])]]


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


def _count(site: Site) -> Annotation:
    n = site.tensor(0)
    if n.ndim not in (None, 0) or (n.dtype is not None and not is_integer(n.dtype)):
        raise site.error(f"operand 0, the number of elements, is {n}; an integer of rank 0 is needed")
    return Tensor(dtype=site["dtype"], ndim=1)


def _range_of(numpy: Any, n: Any, *, dtype: str) -> Any:
    return numpy.arange(int(n)).astype(dtype)


def _largest(site: Site) -> Annotation:
    x, k = site.tensor(0), site.tensor(1)
    if k.ndim not in (None, 0) or (k.dtype is not None and not is_integer(k.dtype)):
        raise site.error(f"operand 1, the number of elements, is {k}; an integer of rank 0 is needed")
    if x.ndim == 0 or (x.dtype is not None and is_complex(x.dtype)):
        raise site.error(f"operand 0 is {x}; a tensor with an axis and a dtype with an order is needed")
    return Tuple((Tensor(dtype=x.dtype, ndim=x.ndim), Tensor(dtype="int32", ndim=x.ndim)))


def _largest_of(numpy: Any, x: Any, k: Any) -> Any:
    if not 0 <= int(k) <= x.shape[-1]:
        raise OperatorError(
            f"top_k_of: the {int(k)} largest of {x.shape[-1]} elements; 0 to {x.shape[-1]} are accepted"
        )
    rising = numpy.argsort(numpy.flip(x, -1), axis=-1, stable=True)  # so that of equal elements the first stays first
    places = (x.shape[-1] - 1 - numpy.flip(rising, -1)[..., : int(k)]).astype("int32")
    return numpy.take_along_axis(x, places, axis=-1), places


def _kept_boxes(site: Site) -> Annotation:
    boxes, scores = site.tensor(0), site.tensor(1)
    if boxes.ndim not in (None, 2) or scores.ndim not in (None, 1):
        raise site.error(f"boxes are {boxes}, scores {scores}; n boxes of 4 numbers and n scores are needed")
    if boxes.shape is not None and sizes_differ(boxes.shape[1], Dim.of(4)):
        raise site.error(f"boxes are {boxes}; 4 numbers are needed for each: two corners")
    return Tensor(dtype="int32", ndim=1)


def _kept_boxes_of(
    numpy: Any, boxes: Any, scores: Any, *, iou_threshold: float, score_threshold: float, most: int | None
) -> Any:
    """Greedy: the box of the best score is kept, and those that overlap it by more than the threshold are not."""
    corners, points = np.asarray(boxes, np.float64), np.asarray(scores, np.float64)
    low, high = np.minimum(corners[:, :2], corners[:, 2:]), np.maximum(corners[:, :2], corners[:, 2:])
    areas = np.prod(high - low, axis=1)
    left = np.argsort(-points, kind="stable")
    left = left[points[left] > score_threshold]
    kept: list[int] = []
    while left.size and (most is None or len(kept) < most):
        best, left = left[0], left[1:]
        kept.append(int(best))
        sides = np.minimum(high[best], high[left]) - np.maximum(low[best], low[left])
        common = np.prod(np.maximum(sides, 0), axis=1)
        union = areas[best] + areas[left] - common
        left = left[common <= iou_threshold * union]
    return numpy.asarray(np.array(kept, np.int32))


_POSITIONS = (Attribute("dtype", default="int32", values=DTYPES),)


_X = ("x",)
_UNIQUE = (Attribute("return_inverse", default=False), Attribute("return_counts", default=False))

# given: thresholds of other libraries (TensorFlow): half of the area, and any score
_BOXES = (
    Attribute("iou_threshold", default=0.5),
    Attribute("score_threshold", default=float("-inf")),
    Attribute("most", default=None),
)

ROUTINES: Mapping[str, Routine] = {
    r.name: r
    for r in (
        Routine("unique", _X, _unique, _most_unique, _unique_of, _UNIQUE,
                "the distinct elements, ascending; with it, where each element is among them, and how often"),
        Routine("nonzero", _X, _places(2), _most_places(True, False), _nonzero_of, _POSITIONS,
                "the indices of the elements that are not zero, in order: a row for each axis"),
        Routine("argwhere", _X, _places(2), _most_places(False, True), _argwhere_of, _POSITIONS,
                "the indices of the elements that are not zero, in order: a column for each axis"),
        Routine("flatnonzero", _X, _places(1), _most_places(False, False), _flatnonzero_of, _POSITIONS,
                "the indices of the elements of the flattened operand that are not zero"),
        Routine("masked_select", ("x", "mask"), _masked_select, _most_selected, _masked_select_of, (),
                "x[mask]: the elements along the mask's axes, in order, at which it holds"),
        Routine("arange_of", ("n",), _count, lambda site: [[None]], _range_of, _POSITIONS,
                "the numbers 0, 1, ... below a number that is a value"),
        Routine("top_k_of", ("x", "k"), _largest, _most_largest, _largest_of, (),
                "the largest elements along the last axis and their places, as many as a value says"),
        Routine("non_max_suppression", ("boxes", "scores"), _kept_boxes, _most_boxes, _kept_boxes_of, _BOXES,
                "the places of the boxes (x1, y1, x2, y2) that no better one overlaps, the best one first"),
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


def most_of(e: Expr) -> Most | None:
    """Returns for each result of a call of a routine the most elements that each axis may have: what its upper-bound
    shape function says. None for another node, or where the sizes of the operands are not known."""
    routine = BY_LIBRARY.get(e.attr("name")) if e.op == CALL_DPS_LIBRARY else None
    if routine is None or any(not isinstance(a.annotation, Tensor) or a.tensor.shape is None for a in e.args):
        return None
    return routine.most(Site(routine.name, tuple(a.annotation for a in e.args), dict(e.attr("attrs"))))


def call_routine(name: str, args: tuple[Expr, ...], given: Mapping[str, Any]) -> Expr:
    """Returns the library call of routine `name`, which must be a step of its own outside dataflow blocks."""
    attrs, annotation = deduce_routine(name, tuple(a.annotation for a in args), given)
    return call_dps_library(ROUTINES[name].library_name, args, annotation, attrs.items())
