"""The JAX functions to compile for the calls of a program, at exact sizes or at capacity."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax

from relax_eg.backend.calls.bound import BoundProgram
from relax_eg.backend.calls.call_keys import UnseenError, check_traced_arguments
from relax_eg.backend.calls.program import abstract_array
from relax_eg.dynamic.fitting import CapacityFit, shape_at
from relax_eg.dynamic.plan import CapacityPlan, plan_most
from relax_eg.ir.annotations import Annotation, Tensor, Tuple, dims_of
from relax_eg.logs import fallback
from relax_eg.shapes import Dim

# A function `(held, *args, **kwargs) -> result`, the specs of `held` (a tuple of the prepared values) and `args`, and
# those of `kwargs`. At exact sizes, where no parameters are bound, it does not take `held`.
TracedFunction = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class Body:
    """A program some of whose parameters are bound, which determine the sizes `fixed`; compiled for certain sizes.

    Its operands are the values prepared from the bound parameters, then the other leaves.

    - `donated`: the places of the parameters whose arrays calls at capacity use up.
    - `reasons`: what cannot run at capacity (an operator and its line, or the program), and why; filled once `dims` is
      known.
    """

    def __init__(self, bound: BoundProgram, fixed: frozenset[str], donated: Collection[int] = ()) -> None:
        self._bound, self._program, self._fixed, self._donated = bound, bound.program, fixed, donated
        self.reasons: dict[str, str] = {}

    # These are cached properties, because the module of a function kept as written is made on demand; the first call
    # may not need it.

    @cached_property
    def _operands(self) -> list[tuple[Annotation, bool]]:
        """The annotation of each operand, and whether it is weakly typed."""
        p, indices = self._program, self._bound.indices
        others = [i for i in range(len(p.params)) if i not in indices]
        if self._bound.is_as_written:  # the bound parameters themselves
            return [(p.params[i].annotation, p.weak_in[i]) for i in (*sorted(indices), *others)]
        params = self._bound.module.main.params
        weak = [*[False] * (len(params) - len(others)), *(p.weak_in[i] for i in others)]
        return [(q.annotation, w) for q, w in zip(params, weak, strict=True)]

    @cached_property
    def _results(self) -> Sequence[Annotation]:
        return _fields(self._bound.module.main.result.annotation)

    @cached_property
    def dims(self) -> tuple[str, ...]:
        """The size variables that may have a capacity."""
        return () if self._plan is None else self._plan.dims

    @cached_property
    def _plan(self) -> CapacityPlan | None:
        program = self._program
        annotations = (*(a for a, _ in self._operands), *self._results)
        unknown = [a for a in annotations if not isinstance(a, Tensor) or a.shape is None]
        if program.effectful or unknown:
            self.reasons[program.name] = (
                "it does more than compute" if program.effectful else f"{unknown[0]} is known in part only"
            )
            return None
        names = dict.fromkeys(v for p in program.params for d in p.tensor.shape or () for v in sorted(d.variables))
        # The chosen program has sizes that bounds fix as numbers.
        free = tuple(v for v in names if v not in self._fixed and v in self._bound.module.main.size_variables)
        try:
            found, reasons = plan_most(self._bound.module, free)
            self.reasons.update(reasons)
        except Exception as e:  # without a plan the program runs at exact sizes
            self.refuse(e)
            return None
        return found

    def refuse(self, e: Exception) -> None:
        """Makes the program run at exact sizes from now on, because it cannot be compiled for a capacity."""
        self.reasons[self._program.name] = fallback(f"{self._program.name} runs at its very sizes", e)
        self.dims = ()

    def fit(self, sizes: Mapping[str, int], capacities: Mapping[str, int]) -> CapacityFit | None:
        """The fit of the arrays of a call at these sizes; None if an operator does not apply at them, which running at
        exact sizes reports."""
        assert self._plan is not None
        if not self._plan.applies(sizes):
            return None
        params, held = self._program.params, self._bound.indices  # what is prepared from weights has fixed sizes
        given = (p.annotation for i, p in enumerate(params) if i not in held)
        return self._plan.fit(given, self._results, sizes, capacities, self._room(capacities))

    def _room(self, capacities: Mapping[str, int]) -> dict[str, int]:
        """Places of axes that are sizes by themselves, for donated arguments: as many as results have that are longer
        by a number of elements, so that these are written in their place."""
        params = self._program.params
        axes = {str(d) for i in self._donated for d in params[i].tensor.shape or ()}.intersection(self.dims)
        grown = ((v, d - Dim.var(v)) for a in self._results for d in dims_of(a) for v in d.variables & axes)
        found: dict[str, int] = {}
        for v, more in grown:
            if more.is_const and more.value > 0:
                found[v] = max(found.get(v, 0), capacities[v] + more.value)
        return found

    def at_capacity(self, capacities: Mapping[str, int], tree: Any) -> TracedFunction:
        """Like `exact`, for arrays at these capacities; the first item of `held` is the true sizes, as `scalars` gives
        them. It raises UnseenError where it is differentiated: derivatives are those of the function as written."""
        assert self._plan is not None
        plan, room = self._plan, self._room(capacities)
        run = jax.custom_jvp(plan.lower({v: capacities[v] for v in self.dims}, room=room))
        run.defjvp(_refuse_derivative)

        def padded(held: tuple[Any, ...], /, *args: Any, **kwargs: Any) -> Any:
            given = (held[1:], *args) if self._bound.indices else args
            leaves = check_traced_arguments(operands, structure, (given, kwargs))
            return self._program.result(run(self._bound.ordered_operands(*self._split_operands(leaves)), held[0]))

        padded.__name__ = f"{self._program.name}_at_capacity"
        operands, structure, given, kwargs = self._operand_structure(lambda a: plan.shape_of(a, capacities, room), tree)
        held, args = (given[0], given[1:]) if self._bound.indices else ((), given)
        return padded, ((self.scalars(capacities), *held), *args), kwargs

    def scalars(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """The true sizes in the form that `at_capacity` takes."""
        assert self._plan is not None
        return self._plan.scalars(sizes)

    def exact(self, sizes: Mapping[str, int], tree: Any) -> TracedFunction:
        """The function for arrays of exactly these sizes; it raises UnseenError for others."""

        def exact(*args: Any, **kwargs: Any) -> Any:
            leaves = check_traced_arguments(operands, structure, (args, kwargs))
            return self._bound.run_main(*self._split_operands(leaves), sizes)

        exact.__name__ = self._program.name
        operands, structure, args, kwargs = self._operand_structure(lambda a: shape_at(dims_of(a), sizes), tree)
        return exact, args, kwargs

    def _operand_structure(
        self, shape: Callable[[Annotation], tuple[int, ...]], tree: Any
    ) -> tuple[list[Any], Any, tuple[Any, ...], dict[str, Any]]:
        """The operands of a call: as a flat list, their tree structure, as arguments, as keywords."""
        operands = [abstract_array(a, shape(a), weak) for a, weak in self._operands if isinstance(a, Tensor)]
        split = len(operands) - tree.num_leaves
        args, kwargs = jax.tree_util.tree_unflatten(tree, operands[split:])
        given = (tuple(operands[:split]), *args) if self._bound.indices else tuple(args)
        return operands, jax.tree_util.tree_structure((given, kwargs)), given, kwargs

    def _split_operands(self, leaves: list[Any]) -> tuple[list[Any], list[Any]]:
        """The prepared values among the operands, and the others."""
        split = len(leaves) - (len(self._program.params) - len(self._bound.indices))
        return leaves[:split], leaves[split:]


def _refuse_derivative(primals: Any, tangents: Any) -> Any:
    raise UnseenError


def _fields(a: Annotation) -> list[Annotation]:
    return list(a.fields) if isinstance(a, Tuple) else [a]
