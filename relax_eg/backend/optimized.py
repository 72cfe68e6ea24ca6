"""What `optimize` returns: an optimized function that runs on XLA, with its module and report."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.custom_derivatives import SymbolicZero

from relax_eg.backend.checks import bind_sizes
from relax_eg.backend.compare import Check, compared
from relax_eg.backend.lower import run_at
from relax_eg.errors import BoundsError, OptionError, RelaxEgError, ShapeError
from relax_eg.explain.certificate import Certificate
from relax_eg.explain.text import Explanation
from relax_eg.extract.report import CostReport
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, np_dtype
from relax_eg.ir.module import Module
from relax_eg.ir.partition import Split, split
from relax_eg.ops.facts import FACTS, violation
from relax_eg.shapes import Scope
from relax_eg.shapes.constraints import constraints_of_jax, dim_of_jax


@dataclass(frozen=True, slots=True)
class Program:
    """A function as the runtimes need it: how it was written, how it is called, and what was chosen for it.

    `fn`: the function as written; `name`: its name; `params`: its parameters; `module`: the chosen program, None where
    nothing was gained and `fn` itself runs; `names`: how the user writes each parameter; `arguments`: each parameter's
    argument of `fn`; `in_tree`, `out_tree`: pytree structures of `(args, kwargs)` and of the result; `signature`: that
    of `fn`, by which a call's arguments are split as the specs were; `weak_out`: which results JAX holds weakly typed;
    `effectful`: it does more than compute; `facts`: what was declared of each parameter's values; `written`: gives the
    module of `fn`; `from_function`: that is the trace of a function, not what somebody wrote.
    """

    fn: Callable[..., Any]
    name: str
    params: tuple[Expr, ...]
    module: Module | None
    names: tuple[str, ...]
    arguments: tuple[str, ...]
    in_tree: Any
    out_tree: Any
    signature: inspect.Signature | None
    weak_in: tuple[bool, ...]
    weak_out: tuple[bool, ...]
    scope: Scope
    effectful: bool
    facts: tuple[tuple[str, ...], ...]
    written: Callable[[], Module]
    from_function: bool

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A call's arguments split into positional and keyword ones the way the specs were. TypeError as Python's."""
        if self.signature is None:
            return args, dict(kwargs)
        bound = self.signature.bind(*args, **kwargs)
        return bound.args, bound.kwargs

    @property
    def kept(self) -> bool:
        """Whether the function runs as it was written."""
        return self.module is None

    def leaves(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The arrays of a call, in parameter order. ShapeError where the structure is not that of the specs."""
        try:
            bound = self.bind(args, kwargs)
        except TypeError as e:
            raise ShapeError(f"{self.name}(): {e}") from None
        leaves, tree = jax.tree_util.tree_flatten(bound)
        if tree != self.in_tree:
            raise self._wrong_structure(bound)
        return leaves

    def _wrong_structure(self, bound: tuple[tuple[Any, ...], dict[str, Any]]) -> ShapeError:
        """The error for the first argument of a call that is not the pytree it was optimized for."""
        args, kwargs = jax.tree_util.tree_unflatten(self.in_tree, [object()] * self.in_tree.num_leaves)
        names = list(inspect.signature(self.fn).parameters)
        given = {**dict(zip(names, bound[0], strict=False)), **bound[1]}
        wanted = {**dict(zip(names, args, strict=False)), **kwargs}
        where = f"{self.name}():"
        for name in {**given, **wanted}:
            if name not in wanted:
                return ShapeError(f"{where} argument `{name}` was left out when the function was optimized")
            if name not in given:
                return ShapeError(f"{where} argument `{name}` is missing; the function was optimized with it")
            got, expected = (jax.tree_util.tree_structure(x[name]) for x in (given, wanted))
            if got != expected:
                return ShapeError(f"{where} argument `{name}` should be {_pytree(expected)}, got {_pytree(got)}")
        return ShapeError(f"{where} the arguments are structured as {_pytree(bound)}; optimized for {self.in_tree}")

    def check(self, leaves: Sequence[Any], only: Sequence[int] | None = None) -> list[Any]:
        """The arrays, of all parameters or of those at `only`, as JAX values of the declared dtypes. ShapeError where a
        dtype is another."""
        places = range(len(self.names)) if only is None else only
        where = f"{self.name}(): argument"
        return [
            as_declared(f"{where} `{self.names[i]}`", self.params[i].tensor, x, self.weak_in[i])
            for i, x in zip(places, leaves, strict=True)
        ]

    def violations(self, leaves: Sequence[Any]) -> Iterator[str]:
        """The declared facts that arrays of all parameters do not have, with what shows it."""
        for name, facts, leaf in zip(self.names, self.facts, leaves, strict=False):
            for fact in facts:
                found = violation(fact, np.asarray(leaf), name)
                if found:
                    yield f"`{name}` is declared {FACTS[fact].name}, but {found}"

    def sizes(self, shapes: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """The size variables' values, checked against signature, bounds and assumptions; where JAX traces for symbolic
        sizes, these must be proved of them. BoundsError."""
        sizes = bind_sizes(self.name, self.params, shapes)
        if all(isinstance(n, int) for n in sizes.values()):
            self.scope.check(sizes, self.name)
        else:
            self._check_symbolic(sizes)
        return sizes

    def _check_symbolic(self, sizes: Mapping[str, Any]) -> None:
        scopes = {id(n.scope): str(n.scope) for n in sizes.values() if not isinstance(n, int)}
        known = Scope.from_constraints(text for scope in scopes.values() for text in constraints_of_jax(scope))
        broken = self.scope.unproved({v: dim_of_jax(str(n)) for v, n in sizes.items()}, known)
        if broken is not None:
            at = ", ".join(f"{v} = {n}" for v, n in sizes.items())
            raise BoundsError(
                f"{self.name}(): `{broken}`, on which it was optimized, is not known of the symbolic sizes {at}\n"
                "  accepted: jax.export.symbolic_shape(..., constraints=[...]) that say it"
            )

    def result(self, value: Any) -> Any:
        """The function's result in the structure `fn` gives it."""
        outputs = value if isinstance(value, tuple) else (value,)
        made = [_weak(x) if weak else x for x, weak in zip(outputs, self.weak_out, strict=True)]  # type: ignore[reportUnknownArgumentType]
        return jax.tree_util.tree_unflatten(self.out_tree, made)

    def original(self, leaves: list[Any]) -> Any:
        """The function as written, on flat arrays."""
        args, kwargs = jax.tree_util.tree_unflatten(self.in_tree, leaves)
        return self.fn(*args, **kwargs)

    def chosen(self, leaves: list[Any]) -> Any:
        """The chosen program on flat arrays."""
        sizes = self.sizes([x.shape for x in leaves])
        if self.module is None:
            return self.original(leaves)
        return self.result(run_at(self.module, self.module.main, leaves, sizes, self.scope))

    def differentiable(self, leaves: list[Any]) -> Any:
        """The chosen program, its derivatives those of the function as written.

        A primal trace has lost `custom_vjp` and `stop_gradient`, so differentiating the chosen program itself could
        give other derivatives than the user defined.
        """
        if self.kept or self.effectful:
            return self.chosen(leaves)

        @jax.custom_jvp
        def primal(*xs: Any) -> Any:
            return self.chosen(list(xs))

        def derivative(primals: Any, tangents: Any) -> Any:
            # Zero tangents stay out: made into arrays, they would be pushed forward through a custom_vjp, which has no
            # forward rule.
            moving = [i for i, t in enumerate(tangents) if not isinstance(t, SymbolicZero)]

            def written(*xs: Any) -> Any:
                given = dict(zip(moving, xs, strict=True))
                return self.original([given.get(i, x) for i, x in enumerate(primals)])

            return jax.jvp(written, [primals[i] for i in moving], [tangents[i] for i in moving])

        primal.defjvp(derivative, symbolic_zeros=True)
        return primal(*leaves)


def as_declared(where: str, declared: Tensor, leaf: Any, weak: bool = False) -> Any:
    """An argument as a JAX value of the declared dtype, weakly typed or not. ShapeError where it cannot be."""
    try:
        aval: Any = jax.typeof(leaf)
    except TypeError:
        raise ShapeError(f"{where} is of type {type(leaf).__name__}; an array or number is accepted") from None
    dtype = str(aval.dtype) if declared.dtype is None else declared.dtype
    if str(aval.dtype) != dtype:
        # As in JAX a Python number becomes what it meets, unless that is of a narrower kind: 2.5 is no integer.
        is_number = getattr(aval, "weak_type", False) and declared.ndim in (0, None) and not aval.shape
        if not is_number or _kind(aval.dtype) > _kind(np_dtype(dtype)):
            raise ShapeError(f"{where} should be {dtype}, got {aval.dtype}; convert it, or optimize for that dtype")
    elif isinstance(leaf, jax.Array) and getattr(aval, "weak_type", False) == weak:
        return leaf
    array = jax.lax.convert_element_type(leaf, np_dtype(dtype))
    return _weak(array) if weak else array


def without_notes(e: RelaxEgError) -> RelaxEgError:
    """`e` without the remarks on tracebacks that JAX adds to what is raised while it traces."""
    return type(e)(*e.args)


def _pytree(structure: Any) -> str:
    """A pytree's structure as errors show it; `*` is an array."""
    text = str(structure).removeprefix("PyTreeDef(").removesuffix(")")
    return "an array" if text == "*" else f"a pytree {text}"


def _kind(dtype: Any) -> int:
    """Bools, integers, floats and complex numbers in order: each holds those before it."""
    kinds = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    return next((i for i, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind)), len(kinds))


def _weak(x: Any) -> Any:
    # JAX has no public way to make an array weakly typed; arithmetic with a Python number keeps a weak type, so only
    # this spelling remains.
    from jax._src.lax.lax import _convert_element_type  # type: ignore[reportPrivateUsage]

    return _convert_element_type(x, weak_type=True)


@dataclass(frozen=True)
class Variant:
    """One program of the family: the sizes it serves, its module and its report. `made`: gives the module."""

    guard: str
    made: Callable[[], Module] = field(repr=False)
    report: CostReport

    @property
    def module(self) -> Module:
        return self.made()


class Optimized:
    """An optimized function: call it like the function it came from.

    `module`: the chosen program; `report`: what it costs and why; `variants`: every program of the family.
    """

    def __init__(
        self,
        program: Program,
        variants: tuple[Variant, ...],
        weights: tuple[str, ...],
        tolerance: float,
        explained: Callable[[], Explanation],
    ) -> None:
        self._explained = explained
        self._explanation: Explanation | None = None
        self._program = program
        self.variants = variants
        self._weights = weights
        self._tolerance = tolerance
        self._whole = jax.jit(self.to_jax())
        self._ready: Ready | None = None
        self._ready_for: tuple[Any, ...] = ()

    @property
    def module(self) -> Module:
        return self.variants[0].module

    @property
    def report(self) -> CostReport:
        return self.variants[0].report

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on XLA. ShapeError or BoundsError for arguments that do not fit, before anything runs.

        With `weights`, what depends on them alone is computed at the first call with these very arrays and kept.
        """
        if not self._weights or self._program.kept:
            return self._run(args, kwargs)
        p = self._program
        leaves = p.leaves(args, kwargs)
        held = [leaves[i] for i in self._weight_indices]
        # Identity is a safe key for immutable arrays only; numpy's can change under us, tracers die.
        if any(not isinstance(x, jax.Array) or isinstance(x, Tracer) for x in held):
            return self._run(args, kwargs)
        ready = self._ready
        if (
            ready is None
            or len(self._ready_for) != len(held)
            or any(r() is not x for r, x in zip(self._ready_for, held, strict=True))
        ):
            ready = Ready(p, self._weight_indices, held)
            self._ready, self._ready_for = ready, tuple(map(weakref.ref, held))
        return ready.run([x for i, x in enumerate(leaves) if i not in ready.indices])

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return self._whole(*args, **kwargs)
        except RelaxEgError as e:
            raise without_notes(e) from None
        except TypeError:
            # `jax.jit` refuses what is no array before we see it; ours says which argument.
            self._program.check(self._program.leaves(args, kwargs))
            raise

    @property
    def _weight_indices(self) -> tuple[int, ...]:
        return tuple(i for i, a in enumerate(self._program.arguments) if a in self._weights)

    def to_jax(self) -> Callable[..., Any]:
        """The chosen program as a JAX function of the same arguments: it composes with jit, grad, vmap and sharding.
        Its derivatives are those of the function as written."""
        program = self._program

        def optimized(*args: Any, **kwargs: Any) -> Any:
            return program.differentiable(program.check(program.leaves(args, kwargs)))

        optimized.__name__ = program.name
        return optimized

    def prepare(self, *weights: Any, **named: Any) -> Ready:
        """Compute once what depends on the weights alone. Takes the arguments declared as `weights`, in their order or
        by name; the result takes the others."""
        if not self._weights:
            raise OptionError("prepare(): no weights were declared; pass weights=(...) to optimize")
        given = dict(zip(self._weights, weights, strict=False))
        twice = set(given) & set(named)
        given |= named
        if twice or len(weights) > len(self._weights) or set(given) != set(self._weights):
            raise OptionError(
                f"prepare() takes the weights {', '.join(self._weights)}; got {', '.join([*given, *twice]) or 'none'}"
            )
        p = self._program
        leaves: list[Any] = []
        for w in self._weights:
            found = jax.tree_util.tree_leaves(given[w])
            expected = [i for i, a in enumerate(p.arguments) if a == w]
            if len(found) != len(expected):
                raise ShapeError(f"prepare(): `{w}` has {len(found)} arrays, optimized for {len(expected)}")
            leaves += list(zip(expected, found, strict=True))
        leaves.sort(key=lambda pair: pair[0])
        return Ready(p, self._weight_indices, [x for _, x in leaves])

    def check(self, *args: Any, **kwargs: Any) -> Check:
        """Whether these arguments have the facts that were declared, and how far the results are from those of the
        function as written."""
        p = self._program
        leaves = p.check(p.leaves(args, kwargs))
        broken = tuple(p.violations(leaves))
        theirs = jax.jit(lambda *xs: p.original(list(xs)))(*leaves)
        found = compared(self(*args, **kwargs), theirs, self._tolerance)
        return replace(found, passed=found.passed and not broken, violations=broken)

    def explain(self) -> Explanation:
        """How the chosen program follows from the one as written, step by step; printed, it reads like a proof.

        The search is done over with every match on record, and the derivation is replayed: conditions are proved again,
        and every expression is evaluated by the reference interpreter. ExplanationError where a step does not hold, or
        where none is found.
        """
        if self._explanation is None:
            self._explanation = self._explained()
        return self._explanation

    def certificate(self) -> Certificate:
        """The derivation as plain data: `.save(path)` writes it, `relax-eg verify --certificate` checks it without the
        search. Raises what `explain` raises."""
        return self.explain().certificate()

    def save(self, path: str | Path) -> None:
        """Write it to a file, which `rx.load` reads in any process: it runs there without a search. ArtifactError where
        the program holds what only this process has, such as a callback, or where the file cannot be written."""
        from relax_eg.backend.artifact import save

        save(self, self._program, self._weights, self._tolerance, path)

    def __repr__(self) -> str:
        r = self.report
        return f"<optimized {r.name}: {r.predicted_gain:.2f}x predicted on {r.target}>"


class Ready:
    """An optimized function with its weights bound: call it with the other arguments.

    `prepared`: the arrays kept for the calls, a tuple.
    """

    def __init__(self, program: Program, indices: tuple[int, ...], weights: list[Any]) -> None:
        self._program = program
        self.indices = frozenset(indices)
        params, module = program.params, program.module
        names = {str(params[i].attr("name")) for i in indices}
        # What was kept as written runs as `fn` itself, with nothing to prepare.
        self._parts: tuple[Module, Split] | None = None if module is None else (module, split(module.main, names))
        checked = program.check(weights, indices)
        self._weight_shapes = {i: x.shape for i, x in zip(indices, checked, strict=True)}
        held = tuple(params[i] for i in indices)
        self._weight_sizes = bind_sizes("prepare", held, list(self._weight_shapes.values()))
        by_name = {str(params[i].attr("name")): x for i, x in zip(indices, checked, strict=True)}
        self.prepared: tuple[Any, ...] = tuple(checked)
        if self._parts is not None:
            module, parts = self._parts
            run = jax.jit(lambda *xs: run_at(module, parts.prepare, xs, self._weight_sizes))
            self.prepared = (*run(*checked), *(by_name[n] for n in parts.kept))
        self._others_at = tuple(i for i in range(len(params)) if i not in self.indices)
        self._flat = jax.jit(self._main)
        self._placeholder = jax.tree_util.tree_unflatten(program.in_tree, [_Slot(i) for i in range(len(params))])

    def _main(self, prepared: tuple[Any, ...], others: list[Any]) -> Any:
        p = self._program
        checked = p.check(others, self._others_at)
        shapes = {**self._weight_shapes, **{i: x.shape for i, x in zip(self._others_at, checked, strict=True)}}
        sizes = p.sizes([shapes[i] for i in range(len(p.names))])
        if self._parts is None:
            weights, rest = iter(prepared), iter(checked)
            return p.original([next(weights if i in self.indices else rest) for i in range(len(p.names))])
        module, parts = self._parts
        return p.result(run_at(module, parts.main, [*prepared, *checked], sizes, p.scope))

    def run(self, others: list[Any]) -> Any:
        """Call with the other parameters' arrays, flat."""
        try:
            return self._flat(self.prepared, others)
        except RelaxEgError as e:
            raise without_notes(e) from None

    def _others(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on XLA with the arguments that are not weights."""
        return self.run(self._others(args, kwargs))

    def to_jax(self) -> Callable[..., Any]:
        """The program per call as a JAX function `(prepared, *others)`: weights stay arguments under `jax.jit`."""

        def run(prepared: tuple[Any, ...], *args: Any, **kwargs: Any) -> Any:
            return self._main(prepared, self._others(args, kwargs))

        run.__name__ = self._program.name
        return run


class _Slot:
    """Stands for a weight where a call's arguments are put together."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


def _all_in(tree: Any, indices: frozenset[int]) -> bool:
    leaves = jax.tree_util.tree_leaves(tree)
    return bool(leaves) and all(isinstance(s, _Slot) and s.index in indices for s in leaves)
