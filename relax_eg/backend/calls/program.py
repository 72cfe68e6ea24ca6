"""The record of a function that all runtimes share: its calling convention, checks of arguments, and chosen program."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.custom_derivatives import SymbolicZero

from relax_eg.backend.calls.checks import bind_sizes
from relax_eg.backend.calls.padded import PaddedArray
from relax_eg.backend.lowering.lower import run_at
from relax_eg.backend.width import convert_for_x64, has_x64, width_context
from relax_eg.dtypes import WIDE, dtype_of, is_integer, numpy_dtype
from relax_eg.errors import BoundsError, RelaxEgError, ShapeError, TraceError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr
from relax_eg.ir.module import Module
from relax_eg.memo import Memo
from relax_eg.ops.facts import FACTS, violation
from relax_eg.ops.keys import argument_dtype
from relax_eg.shapes import Scope
from relax_eg.shapes.constraints import constraints_of_jax, dim_of_jax

_MOST_TAKEN = 4096  # limit: accepted combinations of sizes that are remembered


@dataclass(frozen=True, slots=True)
class Program:
    """A function as the runtimes need it: as written, its calling convention, and the program chosen for it.

    - `fn`: the function as written.
    - `name`: its name in errors and logs.
    - `params`: its parameters, one per array.
    - `module`: the chosen program; None where nothing was gained and `fn` itself runs.
    - `names`: how the user writes each parameter.
    - `arguments`: the argument of `fn` that each parameter belongs to.
    - `in_tree`: pytree structure of `(args, kwargs)`.
    - `out_tree`: pytree structure of the result.
    - `signature`: the signature of `fn`, by which a call's arguments are split as the specs were.
    - `weak_in`: for each parameter, whether it is weakly typed in JAX.
    - `weak_out`: for each result, whether it is weakly typed in JAX.
    - `scope`: bounds and assumptions of the size variables.
    - `effectful`: whether it has effects.
    - `facts`: the facts declared of each parameter's values.
    - `written`: returns the module of `fn`.
    - `from_function`: whether that module is the trace of a Python function, not a module that a user wrote.
    - `wide`: whether it has 64-bit numbers, or was traced in JAX's x64 mode.
    - `at_sizes`: options for running at many sizes, and the cost of calls, as plain data that artifacts keep
      (`loading`).
    - `entry`: if it takes or returns tuples or shapes, names and annotations (as text) of its arguments, and last of
      its result; otherwise empty.
    - `find_difference`: returns why the program differs from `fn` at given sizes, or None where it does not. If the
      field is None, this is not checked (`frontends.trace_check`, `module_check`).
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
    wide: bool
    at_sizes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    entry: tuple[tuple[str, str], ...] = ()
    find_difference: Callable[[Mapping[str, int]], str | None] | None = None

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Splits a call's arguments into positional and keyword ones as the specs were. TypeError as in Python."""
        if self.signature is None:
            return args, dict(kwargs)
        bound = self.signature.bind(*args, **kwargs)
        return bound.args, bound.kwargs

    @property
    def is_as_written(self) -> bool:
        """Whether the function runs as written."""
        return self.module is None

    def width_context(self) -> AbstractContextManager[Any]:
        """A context in JAX's x64 mode if the program is `wide`."""
        return width_context(self.wide)

    @property
    def needs_x64_mode(self) -> bool:
        """Whether the program is `wide` and JAX is not in its x64 mode here."""
        return self.wide and not has_x64()

    def convert_arguments(self, leaves: Sequence[Any], only: Sequence[int] | None = None) -> list[Any]:
        """The arrays of a call, converted for a call made in the caller's x64 mode.

        - `leaves`: the arrays of all parameters, or of those at `only`.

        ShapeError for a Python integer that its parameter's dtype does not hold; TraceError for tracers if JAX cannot
        lower the program outside its x64 mode.
        """
        if not self.needs_x64_mode:
            return list(leaves)
        places = range(len(self.params)) if only is None else only
        if any(isinstance(x, Tracer) for x in leaves):
            self._check_lowers_without_x64()
        given: list[Any] = []
        for i, x in zip(places, leaves, strict=True):
            dtype = self.params[i].tensor.dtype
            if isinstance(x, int) and dtype is not None and not _holds(dtype, x):
                raise _too_large(f"{self.name}(): argument `{self.names[i]}`", dtype, x)
            given.append(convert_for_x64(x, dtype))
        return given

    def _check_lowers_without_x64(self) -> None:
        """TraceError where JAX cannot lower the program outside its x64 mode, as it draws 64 random bits at once."""
        module = self.module or self.written()
        for f in module:
            for e in f.expressions():
                if e.op == "random_bits" and e.attr("bit_width") == 64:
                    line = f" ({f.origins[e]})" if e in f.origins else ""
                    raise TraceError(
                        f"{self.name}() draws 64 random bits at once{line}, which JAX lowers only where it has 64-bit "
                        "numbers\n  accepted: jax.enable_x64(True) around the outermost jit, grad or vmap"
                    )

    def call_arrays(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The arrays of a call, in parameter order. ShapeError where the structure is not that of the specs."""
        if not kwargs:  # the usual case: the specs were split in the same way
            leaves, tree = jax.tree_util.tree_flatten((args, {}))
            if tree == self.in_tree:
                return leaves
        try:
            bound = self.bind(args, kwargs)
        except TypeError as e:
            raise ShapeError(f"{self.name}(): {e}") from None
        leaves, tree = jax.tree_util.tree_flatten(bound)
        if tree != self.in_tree:
            raise self._wrong_structure(bound)
        return leaves

    def _wrong_structure(self, bound: tuple[tuple[Any, ...], dict[str, Any]]) -> ShapeError:
        """The error for the first argument of a call that is not the pytree that the function was optimized for."""
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
        """The arrays of all parameters, or those at `only`, as JAX values of the declared dtypes.

        ShapeError where an array has another dtype.
        """
        places = range(len(self.names)) if only is None else only
        where = f"{self.name}(): argument"
        return [
            convert_argument(f"{where} `{self.names[i]}`", self.params[i].tensor, x, self.weak_in[i])
            for i, x in zip(places, leaves, strict=True)
        ]

    def violations(self, leaves: Sequence[Any]) -> Iterator[str]:
        """Messages for the declared facts that these arrays do not have, each with an entry that shows it.

        `leaves`: one array per parameter.
        """
        for name, facts, leaf in zip(self.names, self.facts, leaves, strict=False):
            for fact in facts:
                found = violation(fact, np.asarray(leaf), name)
                if found:
                    yield f"`{name}` is declared {FACTS[fact].name}, but {found}"

    def sizes(self, shapes: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """The values of the size variables, checked against signature, bounds and assumptions.

        Where JAX traces for symbolic sizes, bounds and assumptions must be proved of these. ShapeError or BoundsError.
        """
        sizes = bind_sizes(self.name, self.params, shapes)
        if all(isinstance(n, int) for n in sizes.values()):
            self.scope.check(sizes, self.name)
        else:
            self._check_symbolic(sizes)
        return sizes

    def _check_symbolic(self, sizes: Mapping[str, Any]) -> None:
        scopes = {id(n.scope): str(n.scope) for n in sizes.values() if not isinstance(n, int)}
        known = Scope.from_constraints(text for scope in scopes.values() for text in constraints_of_jax(scope))
        broken = self.scope.unproved_statement({v: dim_of_jax(str(n)) for v, n in sizes.items()}, known)
        if broken is not None:
            at = ", ".join(f"{v} = {n}" for v, n in sizes.items())
            raise BoundsError(
                f"{self.name}(): `{broken}`, on which it was optimized, is not known of the symbolic sizes {at}\n"
                "  accepted: jax.export.symbolic_shape(..., constraints=[...]) that say it"
            )

    def allows(self, sizes: Mapping[str, int]) -> bool:
        """Whether the bounds and assumptions of the program hold at these sizes."""
        try:
            self.scope.check(sizes, self.name)
        except BoundsError:
            return False
        return True

    def difference_at(self, sizes: Mapping[str, Any]) -> str | None:
        """The reason why the function's program at these sizes differs from the optimized one, so that it runs as
        written; None for the same program and for symbolic sizes. Raises what the function raises at these sizes."""
        if self.find_difference is None or not all(isinstance(n, int) for n in sizes.values()):
            return None
        return self.find_difference(sizes)

    def result(self, value: Any) -> Any:
        """The function's result in the pytree structure and with the weak types that `fn` gives it."""
        outputs = value if isinstance(value, tuple) else (value,)
        made = [_weak(x) if weak else x for x, weak in zip(outputs, self.weak_out, strict=True)]  # type: ignore[reportUnknownArgumentType]
        return jax.tree_util.tree_unflatten(self.out_tree, made)

    def run_as_written(self, leaves: list[Any]) -> Any:
        """The function as written, on flat arrays."""
        args, kwargs = jax.tree_util.tree_unflatten(self.in_tree, leaves)
        return self.fn(*args, **kwargs)

    def run_chosen(self, leaves: list[Any]) -> Any:
        """The chosen program on flat arrays, or the function as written at sizes where it is another program."""
        sizes = self.sizes([x.shape for x in leaves])
        if self.module is None or self.difference_at(sizes) is not None:
            return self.run_as_written(leaves)
        return self.result(run_at(self.module, self.module.main, leaves, sizes, self.scope))

    def differentiable(self, leaves: list[Any]) -> Any:
        """The chosen program, its derivatives those of the function as written.

        A primal trace has lost `custom_vjp` and `stop_gradient`, so differentiating the chosen program itself could
        give other derivatives than the user defined.
        """
        if self.is_as_written or self.effectful:
            return self.run_chosen(leaves)

        @jax.custom_jvp
        def primal(*xs: Any) -> Any:
            return self.run_chosen(list(xs))

        def derivative(primals: Any, tangents: Any) -> Any:
            with self.width_context():  # JAX may call this after the call of the program has returned
                return pushed(primals, tangents)

        def pushed(primals: Any, tangents: Any) -> Any:
            # Zero tangents are left out: as arrays they would be pushed forward through a custom_vjp, which has no
            # forward rule.
            moving = [i for i, t in enumerate(tangents) if not isinstance(t, SymbolicZero)]

            def written(*xs: Any) -> Any:
                given = dict(zip(moving, xs, strict=True))
                return self.run_as_written([given.get(i, x) for i, x in enumerate(primals)])

            return jax.jvp(written, [primals[i] for i in moving], [tangents[i] for i in moving])

        primal.defjvp(derivative, symbolic_zeros=True)
        return primal(*leaves)


def positional_arguments(names: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments of a call, all positional, if exactly `names` are given; otherwise `(args, kwargs)` unchanged."""
    rest = names[len(args) :]
    if len(rest) != len(kwargs) or not all(map(kwargs.__contains__, rest)):
        return args, kwargs
    return (*args, *map(kwargs.__getitem__, rest)), {}


def module_check(program: Program) -> Callable[[Mapping[str, int]], None]:
    """A function of sizes that raises what the module of `program`, as written, raises at these sizes.

    A module raises where the shapes of a call contradict the signature of a function, or an operator does not accept
    its operands. The chosen program may have dropped such a place. So the module as written is traced, once per
    combination of sizes; nothing is compiled.
    """
    taken = Memo[tuple[tuple[str, int], ...], None](_MOST_TAKEN)

    def look(sizes: Mapping[str, int]) -> None:
        key = tuple(sorted(sizes.items()))
        if key in taken:
            return
        avals = [
            abstract_array(p.tensor, [d.evaluate(sizes) for d in p.tensor.shape or ()], weak)
            for p, weak in zip(program.params, program.weak_in, strict=True)
        ]
        jax.eval_shape(lambda *xs: program.run_as_written(list(xs)), *avals)
        taken[key] = None

    return look


def abstract_array(declared: Tensor, shape: Sequence[int], weak: bool = False) -> jax.ShapeDtypeStruct:
    """An array of the declared dtype and of this shape, weakly typed if `weak`, without values."""
    return jax.ShapeDtypeStruct(shape, argument_dtype(str(declared.dtype)), weak_type=weak)


def convert_argument(where: str, declared: Tensor, leaf: Any, weak: bool = False) -> Any:
    """An argument as a JAX value of the declared dtype, weakly typed if `weak`. ShapeError where it cannot be."""
    leaf = leaf.cut() if isinstance(leaf, PaddedArray) else leaf
    try:
        aval: Any = jax.typeof(leaf)
    except TypeError:
        raise ShapeError(f"{where} is of type {type(leaf).__name__}; an array or number is accepted") from None
    except OverflowError:
        raise _too_large(where, declared.dtype or "int32", leaf) from None
    dtype = str(aval.dtype) if declared.dtype is None else declared.dtype
    if str(aval.dtype) != dtype:
        # As in JAX, a Python number takes the parameter's dtype, unless that is of a lower kind: 2.5 is no integer.
        is_number = getattr(aval, "weak_type", False) and declared.ndim in (0, None) and not aval.shape
        if not is_number or _kind(aval.dtype) > _kind(numpy_dtype(dtype)):
            hint = "convert it, or optimize for that dtype"
            if dtype in WIDE and isinstance(leaf, Tracer):
                hint = (
                    "what JAX traces has 64 bits where jax.enable_x64(True) is around the outermost jit, grad or vmap"
                )
            raise ShapeError(f"{where} should be {dtype}, got {aval.dtype}; {hint}")
        if isinstance(leaf, int) and not _holds(dtype, leaf):
            raise _too_large(where, dtype, leaf)
    elif isinstance(leaf, jax.Array) and getattr(aval, "weak_type", False) == weak:
        return leaf
    elif isinstance(leaf, (np.ndarray, np.generic)) and not weak:
        return jax.device_put(np.array(leaf))  # compiles nothing
    array = jax.lax.convert_element_type(cast("Any", leaf), numpy_dtype(dtype))
    return _weak(array) if weak else array


def without_notes(e: RelaxEgError) -> RelaxEgError:
    """`e` without the notes on tracebacks that JAX adds to errors raised while it traces."""
    return type(e)(*e.args)


def _pytree(structure: Any) -> str:
    """A pytree's structure as errors show it; `*` is an array."""
    text = str(structure).removeprefix("PyTreeDef(").removesuffix(")")
    return "an array" if text == "*" else f"a pytree {text}"


def _kind(dtype: Any) -> int:
    """The kind of a dtype as a number: bools, integers, floats, complex numbers; each includes those before it."""
    kinds = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    return next((i for i, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind)), len(kinds))


def _too_large(where: str, dtype: str, number: int) -> ShapeError:
    return ShapeError(f"{where} should be {dtype}, which does not hold {number}")


def _holds(dtype: str, number: int) -> bool:
    """Whether `number` is in the range of `dtype`; always for dtypes that are not integers."""
    return not is_integer(dtype) or dtype_of(dtype).least <= number <= dtype_of(dtype).greatest


def _weak(x: Any) -> Any:
    # JAX has no public way to make an array weakly typed: arithmetic with a Python number only keeps a weak type.
    from jax._src.lax.lax import _convert_element_type  # type: ignore[reportPrivateUsage]

    return _convert_element_type(x, weak_type=True)
