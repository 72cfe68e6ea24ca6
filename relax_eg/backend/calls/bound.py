"""The programs of a function whose weights are bound: what is prepared once, and what runs at each call.

The bound parameters are the weights. Where nothing is bound, a call gives all arguments, and the programs are whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax

from relax_eg.backend.calls.call_keys import SizeKey, size_key_function
from relax_eg.backend.calls.checks import bind_sizes
from relax_eg.backend.calls.program import Program
from relax_eg.backend.family import Family
from relax_eg.backend.lowering.lower import run_at
from relax_eg.backend.pallas.choice import Pallas, lowering_through
from relax_eg.errors import OtherProgramError
from relax_eg.ir.expr import CALL_TIR, Expr, tuple_
from relax_eg.ir.module import Module
from relax_eg.ir.partition import split


class BoundProgram:
    """A program whose parameters at `indices` are bound.

    It runs on the values that `prepare` computes from these, then the arrays of the other parameters.

    - `pallas`: chooses the tensor programs of calls that are lowered through Pallas; None: there are none.
    """

    def __init__(self, program: Program, indices: frozenset[int], pallas: Pallas | None = None) -> None:
        self.program, self.indices = program, indices
        self.pallas = pallas if pallas is not None and _has_programs(program.module) else None
        self._prepare: tuple[list[Expr], Any] | None = None  # the values that `prepare` computes, and their `jax.jit`

    @property
    def is_as_written(self) -> bool:
        """Whether the function runs as written. It then prepares nothing: its prepared values are the weights."""
        return self.program.is_as_written

    # These are cached properties, because a module kept as written is made on demand.

    @cached_property
    def _parts(self) -> Any:
        module = self.program.module
        assert module is not None
        return split(module.main, {str(self.program.params[i].attr("name")) for i in self.indices})

    @cached_property
    def module(self) -> Module:
        """The module that runs per call. Where the function runs as written, it takes all parameters."""
        whole = self.program.module or self.program.written()
        if not self.indices or self.is_as_written:
            return whole
        return Module((self._parts.main, *(f for f in whole if f.name != whole.main.name)))

    def prepare(self, weights: Sequence[Any], sizes: Mapping[str, Any], made: dict[Expr, Any]) -> tuple[Any, ...]:
        """The values prepared for the calls.

        - `weights`: the arrays of the parameters at `indices`, in order.
        - `sizes`: the sizes that they determine.
        - `made`: values of the weights that were already prepared for other programs; the new ones are added to it.
          For all weights of the same shapes, these are values of the same expressions.
        """
        if self.is_as_written or not self.indices:
            return tuple(weights)
        params, module, parts = self.program.params, self.module, self._parts
        by_name = {str(params[i].attr("name")): x for i, x in zip(sorted(self.indices), weights, strict=True)}
        cut = parts.prepare.result.args
        if self._prepare is None:
            left = [e for e in cut if e not in made]
            prepare = replace(parts.prepare, result=tuple_(left))
            self._prepare = left, jax.jit(lambda *xs: run_at(module, prepare, xs, sizes))
        new, run = self._prepare
        made.update(zip(new, run(*weights) if new else (), strict=True))
        return (*(made[e] for e in cut), *(by_name[n] for n in parts.kept))

    def ordered_operands(self, prepared: Sequence[Any], others: Sequence[Any]) -> list[Any]:
        """The operands of `module`, in the order of its parameters."""
        if not self.is_as_written or not self.indices:
            return [*prepared, *others]
        weights, rest = iter(prepared), iter(others)
        return [next(weights if i in self.indices else rest) for i in range(len(self.program.params))]

    def run_main(self, prepared: Sequence[Any], others: Sequence[Any], sizes: Mapping[str, Any]) -> Any:
        """The result of a call at these sizes, at which the function is this program.

        With nothing bound, its derivatives are those of the function as written.
        """
        with lowering_through(self.pallas):
            return self._run_main(prepared, others, sizes)

    def _run_main(self, prepared: Sequence[Any], others: Sequence[Any], sizes: Mapping[str, Any]) -> Any:
        p = self.program
        given = self.ordered_operands(prepared, others)
        if p.is_as_written:
            return p.run_as_written(given)
        if not self.indices:
            return p.differentiable(given)
        return p.result(run_at(self.module, self.module.main, given, sizes, p.scope))


class BoundFamily:
    """The variants of a function with the parameters of `shapes` bound to arrays of these shapes.

    - `indices`: places of the bound parameters.
    - `call_indices`: places of the parameters that each call gives.
    - `tree`: the structure of `(args, kwargs)` of a call.
    - `keywords`: the names in `kwargs`.
    - `fixed`: the sizes that the bound arrays determine.
    - `programs`: the different programs; variants that differ only in compiler options share one.
    - `program_indices`: for each variant the index of its program.
    """

    def __init__(self, family: Family, shapes: Mapping[int, tuple[int, ...]], pallas: Pallas | None = None) -> None:
        """`pallas`: chooses the tensor programs of calls that are lowered through Pallas; None: none."""
        program = family.programs[0]
        self.family, self.program, self.shapes = family, program, dict(shapes)
        self.indices = frozenset(shapes)
        self.call_indices = tuple(i for i in range(len(program.params)) if i not in shapes)
        held = sorted(shapes)
        params, given = [program.params[i] for i in held], [shapes[i] for i in held]
        self.fixed: dict[str, int] = bind_sizes("prepare", params, given) if held else {}
        distinct = list(dict.fromkeys(p.module for p in family.programs))
        self.programs = [BoundProgram(replace(program, module=m), self.indices, pallas) for m in distinct]
        self.program_indices = [distinct.index(p.module) for p in family.programs]
        # The number of each parameter, in the structure of a call with all arguments; and what of it calls give.
        args, kwargs = self._numbered = jax.tree_util.tree_unflatten(program.in_tree, range(len(program.params)))
        rest = tuple(a for a in args if not self._is_bound(a))
        named = {k: a for k, a in kwargs.items() if not self._is_bound(a)}
        self.tree, self.keywords = jax.tree_util.tree_structure((rest, named)), named.keys()
        # The usual structure of a call: all arguments are positional.
        self._rest_tree = None if kwargs else jax.tree_util.tree_structure(rest)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names, in order, of the arguments of a call; empty where some cannot be given by position and by name."""
        args, kwargs = self._numbered
        signature = self.program.signature
        parameters = [] if signature is None else list(signature.parameters.values())
        ordinary = all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
        if kwargs or not ordinary or len(parameters) < len(args):
            return ()
        return tuple(p.name for p, a in zip(parameters, args, strict=False) if not self._is_bound(a))

    def _is_bound(self, numbered: Any) -> bool:
        """Whether an argument, whose leaves are numbers of parameters, consists of bound parameters."""
        leaves = jax.tree_util.tree_leaves(numbered)
        return bool(leaves) and self.indices.issuperset(leaves)

    @cached_property
    def size_key(self) -> SizeKey:
        """The size key of a call (`call_keys`)."""
        return size_key_function([self.program.params[i] for i in self.call_indices], self.tree)

    def variant_program(self, variant: int) -> BoundProgram:
        return self.programs[self.program_indices[variant]]

    def call_arrays(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The arrays of a call, in parameter order. ShapeError where the structure is not that of the specs."""
        if not self.indices:
            return self.program.call_arrays(args, kwargs)
        if not kwargs:
            leaves, tree = jax.tree_util.tree_flatten(args)
            if tree == self._rest_tree:
                return leaves
        all_args, all_kwargs = self._numbered
        rest = iter(args)
        full: list[Any] = []  # with numbers in place of what is bound
        for numbered in all_args:
            if self._is_bound(numbered):
                full.append(numbered)
                continue
            try:
                full.append(next(rest))
            except StopIteration:
                break
        full += list(rest)
        weights_by_name = {k: x for k, x in all_kwargs.items() if self._is_bound(x)}
        leaves = self.program.call_arrays(tuple(full), {**weights_by_name, **kwargs})
        return [x for i, x in enumerate(leaves) if i not in self.indices]

    def donation(self, places: Sequence[int], first: int) -> dict[str, Any]:
        """The options of `jax.jit` by which a function may reuse arrays of a call.

        - `places`: places of these arrays in `call_indices`. JAX donates whole arguments, all of whose arrays must be
          among them.
        - `first`: how many arguments the function has before those of a call.
        """
        args, kwargs = jax.tree_util.tree_unflatten(self.tree, [i in places for i in range(len(self.call_indices))])

        def is_donated(x: Any) -> bool:
            return bool(leaves := jax.tree_util.tree_leaves(x)) and all(leaves)

        return {
            "donate_argnums": [i for i, x in enumerate(args, first) if is_donated(x)],
            "donate_argnames": [k for k, x in kwargs.items() if is_donated(x)],
        }

    def check(self, others: Sequence[Any]) -> list[Any]:
        """The arrays of a call as JAX values of the declared dtypes. ShapeError where an array has another dtype."""
        return self.program.check(others, self.call_indices)

    def sizes(self, shapes: Sequence[Any]) -> dict[str, Any]:
        """The size variables of a call whose arrays have these shapes. ShapeError or BoundsError."""
        whole = {**self.shapes, **dict(zip(self.call_indices, shapes, strict=True))}
        return self.program.sizes([whole[i] for i in range(len(self.program.params))])

    def run_main(
        self,
        prepared: tuple[Any, ...],
        others: Sequence[Any],
        program_index: int | None = None,
    ) -> Any:
        """The result of a call.

        - `program_index`: the index of the program that runs; None for the program that serves the sizes of the call.
        - `prepared`: the values prepared for it; without `program_index`, a tuple of those of each program.

        OtherProgramError at sizes where the function is another program than the one whose values were prepared; with
        nothing bound, it then runs as written.
        """
        checked = self.check(others)
        sizes = self.sizes([x.shape for x in checked])
        if program_index is None:
            program_index = self.program_indices[self.family.variant_at(sizes)]
            if self.indices and len(self.programs) > 1:
                prepared = prepared[program_index]
        bound = self.programs[program_index]
        if self.indices and not bound.is_as_written and (why := self.program.difference_at(sizes)) is not None:
            raise other_program(self.program.name, sizes, why)
        return bound.run_main(prepared, checked, sizes)


def _has_programs(module: Module | None) -> bool:
    """Whether a chosen module calls tensor programs. A function that runs as written calls none."""
    return module is not None and any(e.op == CALL_TIR for f in module for e in f.expressions())


def other_program(name: str, sizes: Mapping[str, int], why: str) -> OtherProgramError:
    at = ", ".join(f"{v} = {n}" for v, n in sizes.items())
    return OtherProgramError(
        f"{name}(): at {at} the function is another program than the one its weights were prepared for, {why}\n"
        "  accepted: weights that are still alive, from which it then runs as written; or a call of what optimize "
        "returned, with all its arguments"
    )
