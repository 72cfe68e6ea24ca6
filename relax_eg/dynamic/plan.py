"""The plan of one program for all sizes up to a capacity: the masks it needs, and the program itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from relax_eg.dynamic.analysis import Analysis, Mask
from relax_eg.dynamic.fitting import CapacityFit, make_fit, shape_at
from relax_eg.dynamic.layout import TensorLayout
from relax_eg.dynamic.lowering import CapacityRun, CapacitySizes, capacity_of
from relax_eg.errors import BoundsError, OptionError, ShapeError
from relax_eg.ir.annotations import Annotation, Shape, Tensor, dims_of, substitute
from relax_eg.ir.calls import call_sizes
from relax_eg.ir.expr import CALL, FUNCTION, Expr
from relax_eg.ir.lattice import covers
from relax_eg.ir.module import Module
from relax_eg.ops.record import may_be_met
from relax_eg.shapes import Dim


def plan(module: Module, dims: Iterable[str] | None = None, zeros: Collection[int] = ()) -> CapacityPlan:
    """How `module` runs on arrays padded to capacities of the size variables `dims` (None: all of its entry's).

    `zeros`: the places of parameters that have zeros in their padding.

    OptionError for a name that the entry's parameters do not introduce.
    """
    known = module.main.size_variables
    wanted = tuple(known if dims is None else dict.fromkeys(dims))
    for name in wanted:
        if name not in known:
            raise OptionError(f"dims: `{module.main.name}` has no size `{name}`; it has: {', '.join(known) or 'none'}")
    return CapacityPlan(module, wanted, zeros)


def plan_most(
    module: Module, dims: Sequence[str], zeros: Collection[int] = ()
) -> tuple[CapacityPlan | None, Mapping[str, str]]:
    """The plan for the largest part of `dims` that has one (None if there is none), and what cannot run at capacity,
    with the reasons. `zeros`: as in `plan`."""
    reasons: dict[str, str] = {}
    found = plan(module, dims, zeros)
    while found.exact and dims:  # the other sizes may be possible without these
        reasons.update(found.exact)
        dims = tuple(v for v in dims if v not in found.exact_dims) if found.exact_dims else ()
        found = plan(module, dims, zeros)
    return None if found.exact or not dims else found, reasons


def checked_call(e: Expr, module: Module) -> str | None:
    """Returns the name of the function that `e` calls, if only a run tells whether its arguments fit; a run at
    capacity does not check them."""
    if e.op != CALL or e.args[0].op != FUNCTION:
        return None
    f, given = module[e.args[0].attr("name")], [a.annotation for a in e.args[1:]]
    kinds = [p.annotation for p in f.params]
    told = call_sizes(kinds, given)
    return None if all(covers(substitute(k, told), g) for k, g in zip(kinds, given, strict=True)) else f.name


class CapacityPlan:
    """The analysis of a module for some of its sizes.

    - `masks`: what paddings must hold, each with its reason; other padding may hold anything.
    - `exact`: operators that cannot run at capacity, by name and source line, with the reason.
    - `exact_dims`: the sizes they depend on. While `exact` is not empty, `lower` raises; the other sizes may be planned
      without these.
    """

    def __init__(self, module: Module, dims: Sequence[str], zeros: Collection[int] = ()) -> None:
        self.module = module
        self.dims = tuple(dims)
        self._analysis = Analysis(module, frozenset(dims), zeros)

    @property
    def zeros(self) -> tuple[bool, ...]:
        """For each result of an entry that returns a tuple whether its padding holds zeros."""
        made = self._analysis.main.result
        fields = made if isinstance(made, tuple) else (made,)
        moves = self._analysis.moves
        return tuple(
            isinstance(x, TensorLayout) and all(d.content.equals(0) for a in x.axes for d in a if moves(d.size))
            for x in fields
        )

    @property
    def masks(self) -> tuple[Mask, ...]:
        return tuple(self._analysis.masks)

    @property
    def exact(self) -> Mapping[str, str]:
        return self._analysis.exact

    def applies(self, sizes: Mapping[str, int]) -> bool:
        """Whether every operator applies at these sizes, for example whether all slices are in range. The program at
        capacity would not detect a violation; run at exact sizes, it is refused."""
        return all(may_be_met(c, sizes) for c in self._analysis.conditions)

    @property
    def exact_dims(self) -> frozenset[str]:
        return frozenset(self._analysis.exact_dims)

    def lower(
        self,
        capacities: Mapping[str, int],
        *,
        fixed: Mapping[str, int] | None = None,
        without: Iterable[int] = (),
        room: Mapping[str, int] | None = None,
    ) -> Callable[..., Any]:
        """The program at capacity: `run(leaves, sizes)`, which JAX can trace.

        - `leaves`: the arrays for the entry's tensor parameters in order, each axis at the capacity of its size
          (`input_shapes`). Elements beyond the true sizes do not matter.
        - `sizes`: the true size for each of `dims`, an int32 scalar between 1 and its capacity, which is not checked.
        - `fixed`: sizes of the entry that are not in `dims` and no axis of an array.
        - `without`: numbers of masks to leave out, for tests that check whether each is needed.
        - `room`: the elements of axes that are sizes by themselves, where these are more than `capacities`. So a result
          of size `s + 1` may have as many as an argument of size `s`, and be written in its place.

        The result has the structure of the entry's, each array at capacity and correct within the true sizes.
        """
        if self.exact:
            first, reason = next(iter(self.exact.items()))
            raise OptionError(
                f"`{self.module.main.name}` cannot run at capacity of {', '.join(self.dims)}: {first}: {reason}\n"
                f"  accepted: exact sizes for {', '.join(sorted(self.exact_dims)) or 'all'}"
            )
        self._check(capacities)
        dropped = frozenset(without)
        given = {v: int(capacities[v]) for v in self.dims}

        def run(leaves: Sequence[Any], sizes: Mapping[str, Any]) -> Any:
            rest = {**self._fixed(leaves, given, room or {}), **(fixed or {})}
            at = CapacitySizes(given, rest, {v: sizes[v] for v in self.dims}, dropped, room)
            return CapacityRun(self._analysis, at).function(self._analysis.main, self._arguments(leaves, at))

        return run

    def input_shapes(self, capacities: Mapping[str, int], fixed: Mapping[str, int] | None = None) -> list[Any]:
        """The shape of each leaf at capacity. `fixed`: sizes of the entry that are not in `dims`."""
        annotations = [p.annotation for p in self.module.main.params]
        return [self.shape_of(a, {**(fixed or {}), **capacities}) for a in annotations if isinstance(a, Tensor)]

    def shape_of(
        self, a: Annotation, sizes: Mapping[str, int], room: Mapping[str, int] | None = None
    ) -> tuple[int, ...]:
        """The shape of an array at capacity. An axis gets as many places as it can ever need (`capacity_of`): for
        n*m - n that may be more than its value with n and m at capacity.

        - `sizes`: the capacities of `dims`, and the other sizes.
        - `room`: as in `lower`.
        """
        own, fixed = room or {}, {v: n for v, n in sizes.items() if v not in self.dims}
        moving = {v: sizes[v] for v in self.dims}
        return tuple(own.get(str(d)) or capacity_of(d.substitute(fixed), moving) for d in dims_of(a))

    def fit(
        self,
        operands: Iterable[Annotation],
        results: Iterable[Annotation],
        sizes: Mapping[str, int],
        capacities: Mapping[str, int],
        room: Mapping[str, int] | None = None,
    ) -> CapacityFit:
        """What a call at these true sizes needs, all of whose operands and results are arrays. `capacities`, `room`: as
        `sizes` and `room` in `shape_of`."""

        def shapes(a: Annotation) -> tuple[tuple[int, ...], tuple[int, ...]]:
            return shape_at(dims_of(a), sizes), self.shape_of(a, capacities, room)

        return make_fit(list(map(shapes, operands)), list(map(shapes, results)))

    def scalars(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """The true sizes in the form that the program at capacity takes."""
        with jax.ensure_compile_time_eval():  # the first call may be within a trace
            return {v: jax.device_put(np.int32(sizes[v])) for v in self.dims}

    def _check(self, capacities: Mapping[str, int]) -> None:
        for name in self.dims:
            if name not in capacities:
                raise BoundsError(f"capacities: none is given for `{name}`; given: {', '.join(capacities) or 'none'}")
            if capacities[name] < 1:
                raise BoundsError(f"capacities: that of `{name}` is {capacities[name]}; integers >= 1 are accepted")
        for name in capacities:
            if name not in self.dims:
                raise BoundsError(f"capacities: `{name}` is not planned for; planned: {', '.join(self.dims) or 'none'}")

    def _fixed(self, leaves: Sequence[Any], capacities: Mapping[str, int], room: Mapping[str, int]) -> dict[str, int]:
        """The sizes without a capacity, read from the arrays; ShapeError if a leaf does not have its shape at
        capacity."""
        tensors = [p for p in self.module.main.params if isinstance(p.annotation, Tensor)]
        if len(leaves) != len(tensors):
            raise ShapeError(
                f"{self.module.main.name}: {len(leaves)} arrays; {len(tensors)} are needed, one a parameter"
            )
        fixed: dict[str, int] = {}
        for p, x in zip(tensors, leaves, strict=True):
            for d, n in zip(p.shape, x.shape, strict=True):
                if len(d.variables) == 1 and d == Dim.var(*d.variables) and str(d) not in self.dims:
                    fixed.setdefault(str(d), int(n))
        for p, x in zip(tensors, leaves, strict=True):
            wanted = self.shape_of(p.annotation, {**fixed, **capacities}, room)
            if tuple(x.shape) != wanted:
                raise ShapeError(
                    f"{self.module.main.name}: argument `{p.attr('name')}` has shape {tuple(x.shape)}; at capacity "
                    f"{', '.join(f'{v}={n}' for v, n in capacities.items())} it is {wanted}"
                )
        return fixed

    def _arguments(self, leaves: Sequence[Any], at: CapacitySizes) -> list[Any]:
        arrays = iter(leaves)
        return [self._argument(p, arrays, at) for p in self.module.main.params]

    def _argument(self, p: Expr, arrays: Any, at: CapacitySizes) -> Any:
        if isinstance(p.annotation, Shape):
            return tuple(at.true_size(d) for d in p.annotation.dims or ())
        return next(arrays)

    def __str__(self) -> str:
        lines = [f"capacity of {', '.join(self.dims) or 'nothing'}: {len(self.masks)} masks"]
        lines += [f"  {m}" for m in self.masks]
        if self.exact:
            lines.append("cannot run at capacity:")
            lines += [f"  {name}: {reason}" for name, reason in self.exact.items()]
        return "\n".join(lines)
