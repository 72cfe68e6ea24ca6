"""Optimized functions with their weights bound: values of the weights alone are computed once, the rest per call."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax

from relax_eg.backend.call_keys import MOST_SHOWN, NOT_SHOWN, is_tracing, shown
from relax_eg.backend.checks import bind_sizes
from relax_eg.backend.executables import Executables
from relax_eg.backend.family import Family
from relax_eg.backend.lower import run_at
from relax_eg.backend.program import Program, in_order, without_notes
from relax_eg.errors import OtherProgramError, RelaxEgError
from relax_eg.ir.expr import Expr, tuple_
from relax_eg.ir.module import Module
from relax_eg.ir.partition import split
from relax_eg.memo import Memo

WRITTEN = -1  # given: stands for the function as written, in place of the index of a variant


class _Bound:
    """A program with its weights bound: the values prepared from them, and the program that remains per call."""

    def __init__(
        self,
        program: Program,
        indices: frozenset[int],
        weights: Sequence[Any],
        sizes: Mapping[str, Any],
        made: dict[Expr, Any],
    ):
        """`made`: values of the weights that were already prepared for other programs; the new ones are added to it."""
        self.program = program
        params, module = program.params, program.module
        places = sorted(indices)
        names = {str(params[i].attr("name")) for i in places}
        self._indices = indices
        # A program that is kept as written runs as `fn` itself and prepares nothing.
        self._parts = None if module is None else (module, split(module.main, names))
        self.prepared: tuple[Any, ...] = tuple(weights)
        if self._parts is not None:
            module, parts = self._parts
            by_name = {str(params[i].attr("name")): x for i, x in zip(places, weights, strict=True)}
            cut = parts.prepare.result.args
            new = [e for e in cut if e not in made]
            prepare = replace(parts.prepare, result=tuple_(new))
            run = jax.jit(lambda *xs: run_at(module, prepare, xs, sizes))
            made.update(zip(new, run(*weights) if new else (), strict=True))
            self.prepared = (*(made[e] for e in cut), *(by_name[n] for n in parts.kept))

    @property
    def module(self) -> Module:
        """The module that runs per call, on the prepared values and the other parameters.

        It must not be read where the function runs as written (`kept`).
        """
        assert self._parts is not None
        module, parts = self._parts
        return Module((parts.main, *(f for f in module if f.name != module.main.name)))

    @property
    def kept(self) -> bool:
        """Whether the function runs as written."""
        return self._parts is None

    def main(self, prepared: Sequence[Any], others: Sequence[Any], sizes: Mapping[str, Any]) -> Any:
        p = self.program
        if not self.kept and (why := p.other_at(sizes)) is not None:
            raise OtherProgramError(_other(p.name, sizes, why))
        if self._parts is None:
            weights, rest = iter(prepared), iter(others)
            return p.original([next(weights if i in self._indices else rest) for i in range(len(p.names))])
        module, parts = self._parts
        return p.result(run_at(module, parts.main, [*prepared, *others], sizes, p.scope))


class Ready:
    """An optimized function with its weights bound: call it with the other arguments.

    - `indices`: places of the weights among the parameters.
    - `prepared`: a tuple of the arrays kept for the calls; a tuple of such tuples if several programs serve different
      sizes.
    - `compiler_options`: options of the variant for the first binding of `at`.
    """

    def __init__(self, family: Family, executables: Executables, indices: Sequence[int], weights: list[Any]) -> None:
        self._executables = executables
        program = family.programs[0]
        self._program, self._family, self._wide = program, family, program.wide
        self.indices = frozenset(indices)
        params = program.params
        checked = program.check(weights, indices)
        self._given = [_held(x) for x in weights]
        self._weight_shapes = {i: x.shape for i, x in zip(indices, checked, strict=True)}
        held = tuple(params[i] for i in indices)
        sizes = bind_sizes("prepare", held, list(self._weight_shapes.values()))
        # Variants that differ only in compiler options share all prepared values; others share those they have in
        # common.
        distinct = list(dict.fromkeys(p.module for p in family.programs))
        made: dict[Expr, Any] = {}
        bound = [_Bound(replace(program, module=m), self.indices, checked, sizes, made) for m in distinct]
        self._bound = bound
        self._which = [distinct.index(p.module) for p in family.programs]
        self.prepared: tuple[Any, ...] = bound[0].prepared if len(bound) == 1 else tuple(b.prepared for b in bound)
        self._others_at = tuple(i for i in range(len(params)) if i not in self.indices)
        # A program is passed only the arrays prepared for it: each array of a call costs time.
        self._whole = [executables.jit(self._of_bound(b)) for b in bound]
        self._compiled = family.compiled(executables, lambda i: self._of_bound(self._of_variant[i]))
        self._tree = program.tree_without(self.indices)
        self._shown = shown([params[i] for i in self._others_at], self._tree)
        self._by_shown = Memo[Any, int](MOST_SHOWN)  # by size key: the variant that served such calls, or `WRITTEN`
        self._names = program.names_without(self.indices)
        # The executable of all calls whose arguments are split as the specs were, if there is only one variant.
        self._keywords = jax.tree_util.tree_unflatten(self._tree, self._others_at)[1].keys()
        self._only = self._whole[0] if len(self._which) == 1 and self._compiled is None else None
        self._placeholder = jax.tree_util.tree_unflatten(program.in_tree, [_Slot(i) for i in range(len(params))])
        positional, by_name = self._placeholder
        rest = tuple(a for a in positional if not _all_in(a, self.indices))
        # The usual structure of the other arguments of a call: all positional.
        self._rest_tree = None if by_name else jax.tree_util.tree_structure(rest)

    @property
    def compiler_options(self) -> Mapping[str, str]:
        """The options found best: pass them as `jax.jit(ready.to_jax(), compiler_options=...)`."""
        return self._family.variants[0].compiler_options

    def _main(self, prepared: tuple[Any, ...], others: Sequence[Any]) -> Any:
        p = self._program
        checked = p.check(others, self._others_at)
        sizes = p.sizes(self._shapes(checked))
        which = self._which[self._family.at(sizes)]
        mine = prepared if len(self._bound) == 1 else prepared[which]
        return self._bound[which].main(mine, checked, sizes)

    def _of_bound(self, bound: _Bound) -> Callable[..., Any]:
        """A program as a function of its prepared values and the other arguments."""
        p = self._program

        def run(prepared: tuple[Any, ...], /, *args: Any, **kwargs: Any) -> Any:
            checked = p.check(self._others(args, kwargs), self._others_at)
            return bound.main(prepared, checked, p.sizes(self._shapes(checked)))

        run.__name__ = p.name
        return run

    @property
    def _of_variant(self) -> list[_Bound]:
        return [self._bound[i] for i in self._which]

    def _shapes(self, others: Sequence[Any]) -> list[Any]:
        given = {i: jax.numpy.shape(x) for i, x in zip(self._others_at, others, strict=True)}
        shapes = {**self._weight_shapes, **given}
        return [shapes[i] for i in range(len(self._program.names))]

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs on XLA, with the arguments that are not weights."""
        if self._wide and self._program.is_elsewhere:
            return self._from_elsewhere(args, kwargs)
        if kwargs:
            args, kwargs = in_order(self._names, args, kwargs)
        if kwargs.keys() != self._keywords:
            return self.run(self._others(args, kwargs))
        run, prepared = self._only, self._bound[0].prepared
        if run is None:
            try:
                found = self._by_shown.get(self._shown(args, kwargs))
            except NOT_SHOWN:
                found = None
            if found is None:
                return self.run(self._others(args, kwargs))
            if found == WRITTEN:
                return self._as_written(self._others(args, kwargs))
            run, prepared = self._of(found)
        return self._ran(run, prepared, args, kwargs)

    def _from_elsewhere(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a 64-bit program made outside JAX's x64 mode."""
        others = self._program.as_given(self._others(args, kwargs), self._others_at)
        with self._program.width():
            return self.run(others)

    def run(self, others: list[Any]) -> Any:
        """Runs on XLA, with a flat list of the arrays of the parameters that are not weights."""
        try:
            variant = self._variant(others)
        except RelaxEgError as e:
            raise without_notes(e) from None
        args, kwargs = jax.tree_util.tree_unflatten(self._tree, others)
        try:
            key = self._shown(args, kwargs)
        except NOT_SHOWN:  # tracers, among others
            pass
        else:
            self._by_shown[key] = variant
        if variant == WRITTEN:
            return self._as_written(others)
        return self._ran(*self._of(variant), args, kwargs)

    def _variant(self, others: list[Any]) -> int:
        """The index of the variant for these arrays; `WRITTEN` where the function is another program at their sizes."""
        shapes = self._shapes(others)
        variant = self._family.at_shapes(shapes)
        if self._program.own is None or self._bound[self._which[variant]].kept:
            return variant
        return variant if self._program.other_at(self._program.sizes(shapes)) is None else WRITTEN

    def _as_written(self, others: Sequence[Any]) -> Any:
        """Calls the function as written. OtherProgramError where its weights were garbage-collected."""
        weights = [x() for x in self._given]
        if any(x is None for x in weights):
            sizes = self._program.sizes(self._shapes(others))
            raise OtherProgramError(_other(self._program.name, sizes, self._program.other_at(sizes) or ""))
        given, rest = iter(weights), iter(others)
        whole = [next(given if i in self.indices else rest) for i in range(len(self._program.names))]
        return self._written(self._program.check(whole))

    @functools.cached_property
    def _written(self) -> Any:
        return self._executables.jit(self._program.original)

    def _of(self, variant: int) -> tuple[Any, tuple[Any, ...]]:
        """The function that runs a variant, and the values prepared for it."""
        which = self._which[variant]
        run = self._whole[which]
        if self._compiled is not None and not is_tracing():  # under a trace, the outer `jit` decides on the options
            run = self._compiled(variant)
        return run, self._bound[which].prepared

    def _ran(self, run: Any, prepared: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return run(prepared, *args, **kwargs)
        except OtherProgramError:
            self._only = None  # from now on each call has to choose
            return self.run(self._others(args, kwargs))
        except RelaxEgError as e:
            raise without_notes(e) from None
        except (TypeError, OverflowError):  # as in `Optimized`
            self._program.check(self._others(args, kwargs), self._others_at)
            raise

    def _others(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        if not kwargs:
            leaves, tree = jax.tree_util.tree_flatten(args)
            if tree == self._rest_tree:
                return leaves
        slots_args, slots_kwargs = self._placeholder
        rest = iter(args)
        full: list[Any] = []
        for slot in slots_args:
            held = jax.tree_util.tree_leaves(slot)
            if held and all(s.index in self.indices for s in held):
                full.append(slot)
                continue
            try:
                full.append(next(rest))
            except StopIteration:
                break
        full += list(rest)
        weights_by_name = {k: v for k, v in slots_kwargs.items() if _all_in(v, self.indices)}
        leaves = self._program.leaves(tuple(full), {**weights_by_name, **kwargs})
        return [x for i, x in enumerate(leaves) if i not in self.indices]

    def to_jax(self) -> Callable[..., Any]:
        """The program that runs per call, as a JAX function `(prepared, *others)`.

        The prepared values are an argument, so that they stay arguments under `jax.jit`.
        """

        def run(prepared: tuple[Any, ...], /, *args: Any, **kwargs: Any) -> Any:
            others = self._program.as_given(self._others(args, kwargs), self._others_at)
            with self._program.width():
                return self._main(prepared, others)

        run.__name__ = self._program.name
        return run


def _held(x: Any) -> Callable[[], Any]:
    """A function that returns `x`, or None once an array `x` is not referenced elsewhere.

    So weights are not held twice. A number, which has no weak references, is always returned.
    """
    try:
        return weakref.ref(x)
    except TypeError:
        return lambda: x


class _Slot:
    """A placeholder for a parameter in the tree of a call's arguments."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


def _all_in(tree: Any, indices: frozenset[int]) -> bool:
    leaves = jax.tree_util.tree_leaves(tree)
    return bool(leaves) and all(isinstance(s, _Slot) and s.index in indices for s in leaves)


def _other(name: str, sizes: Mapping[str, int], why: str) -> str:
    at = ", ".join(f"{v} = {n}" for v, n in sizes.items())
    return (
        f"{name}(): at {at} the function is another program than the one its weights were prepared for, {why}\n"
        "  accepted: weights that are still alive, from which it then runs as written; or a call of what optimize "
        "returned, with all its arguments"
    )
