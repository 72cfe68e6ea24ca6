"""A JAX function becomes a module."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax

from relax_eg.debug import stage
from relax_eg.errors import RelaxEgError, TraceError
from relax_eg.frontends.blocks import make_function
from relax_eg.frontends.fingerprint import Fingerprint
from relax_eg.frontends.jax.control import Functions
from relax_eg.frontends.jax.walk import Walk, annotation_of, constant, in_form
from relax_eg.frontends.sources import is_raised_by_jax
from relax_eg.frontends.specs import Arguments, OfArguments, read_arguments
from relax_eg.frontends.symbolic import Sizes
from relax_eg.frontends.trace_errors import cause, checked_output, trace_error, undecided_by
from relax_eg.ir.annotations import Annotation, Tuple, dims_of
from relax_eg.ir.expr import Expr, var
from relax_eg.ir.module import Module
from relax_eg.shapes import Proved, Scope
from relax_eg.shapes.prover import TIMEOUT_MS
from relax_eg.shapes.relation import read_statement


@dataclass(frozen=True)
class Traced(OfArguments):
    """A traced function.

    `arguments`: the specs, flattened, and how to bind a call to them. `jaxpr`: what JAX traced for `sizes`, closed.
    `out_tree`: the structure of what `fn` returns. `assume`: what must hold of sizes beyond `arguments.scope`. `wide`:
    JAX had 64-bit numbers then.

    Sizes that `fn` compares by `==` differ in `jaxpr` wherever JAX does not know them to be equal, and so on: whether
    it is the program of `fn` at certain sizes is `frontends.own`'s to tell.
    """

    fn: Callable[..., Any]
    name: str
    arguments: Arguments
    sizes: Sizes
    jaxpr: Any
    out_tree: Any
    assume: tuple[str, ...] = ()
    wide: bool = False

    @cached_property
    def module(self) -> Module:
        """Its first function's parameters are `params`, its result the output's only leaf or a tuple of the leaves.
        Made when first asked for; TraceError where the jaxpr cannot be one."""
        return _module(self)

    @property
    def identifier(self) -> str:
        """The name of the module's first function; a lambda is `main`."""
        found = re.sub(r"\W+", "_", self.name.strip("<>"))
        return "main" if found == "lambda" or not found.isidentifier() else found

    @cached_property
    def params(self) -> tuple[Expr, ...]:
        """The parameters of the module's first function: the leaves of the arguments in order."""
        return tuple(var(leaf.name, leaf.annotation) for leaf in self.leaves)

    @property
    def result(self) -> Annotation:
        """What the module's first function returns."""
        found = tuple(map(annotation_of, self.out_avals))
        return found[0] if len(found) == 1 else Tuple(found)

    @property
    def out_avals(self) -> tuple[Any, ...]:
        """The leaves of what `fn` returns as JAX sees them, weak types included."""
        return tuple(self.jaxpr.out_avals)

    @property
    def size_variables(self) -> tuple[str, ...]:
        """Names of the size variables of the arguments, sorted."""
        return tuple(sorted({v for leaf in self.leaves for d in dims_of(leaf.annotation) for v in d.variables}))

    @property
    def cast_variables(self) -> tuple[str, ...]:
        """Names of the size variables that the module's entry brings in later: none, JAX knows all sizes."""
        return ()

    @property
    def in_steps(self) -> bool:
        """Whether XLA cannot take the program as one; JAX traces no such."""
        return False

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """The exact content of the jaxpr. NoContentError where there is something in it that does not show its own."""
        return Fingerprint(self.jaxpr)

    @property
    def effectful(self) -> bool:
        """Whether the function does anything besides computing its results."""
        return any(not block.dataflow for block in self.module.main.blocks)


@stage("trace")
def trace_function(
    fn: Callable[..., Any],
    specs: tuple[Any, ...] = (),
    kwspecs: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    bounds: Mapping[str, tuple[int, int]] | None = None,
    assume: Sequence[str] = (),
) -> Traced:
    """`fn` traced for arguments that fit `specs` and `kwspecs`, with what a caller needs to run it.

    `bounds` of sizes (inclusive), and statements about them, let the function compare sizes in Python where they
    decide. TraceError, with the
    user's line, where JAX cannot trace the function; SpecError for a spec that cannot be read.
    """
    if not callable(fn):
        raise TraceError(f"trace takes a function, got {type(fn).__name__}")
    label = name or _name_of(fn)
    proved: list[str] = []
    while True:
        sizes = Sizes(bounds)
        arguments = read_arguments(fn, label, specs, kwspecs or {}, sizes, (*assume, *proved))
        try:
            closed, out_tree = traced_at(fn, label, arguments, [leaf.aval.shape for leaf in arguments.leaves])
            wide = bool(jax.config.values["jax_enable_x64"])
            return Traced(fn, label, arguments, sizes, closed, out_tree, tuple(assume), wide)
        except OwnError as error:
            raise error.error from None
        except RelaxEgError:
            raise
        except Exception as error:
            undecided = undecided_by(error)
            more = None if undecided is None else _proved(undecided, arguments.scope, bounds or {}, assume)
            if more is None or more in proved:
                raise trace_error(fn, label, arguments.leaves, error, undecided) from cause(error)
            proved.append(more)  # JAX is told, and asked again


def traced_at(fn: Callable[..., Any], name: str, arguments: Arguments, shapes: Sequence[Any]) -> tuple[Any, Any]:
    """The closed jaxpr of `fn` for arguments with arrays of these shapes, and the structure of its result. What the
    function itself raises is in an `OwnError`."""
    out_tree: Any = None

    def flat(*leaves: Any) -> Any:
        nonlocal out_tree
        args, kwargs = jax.tree_util.tree_unflatten(arguments.tree, leaves)
        try:
            outputs, out_tree = jax.tree_util.tree_flatten_with_path(fn(*args, **kwargs))
        except Exception as error:
            if is_raised_by_jax(error):
                raise
            raise OwnError(error) from error
        return [checked_output(fn, name, path, value) for path, value in outputs]

    avals = [
        jax.ShapeDtypeStruct(shape, leaf.aval.dtype, weak_type=leaf.weak_type)
        for leaf, shape in zip(arguments.leaves, shapes, strict=True)
    ]
    return jax.make_jaxpr(flat)(*avals), out_tree


class OwnError(Exception):
    """What a function that is traced raised itself, not JAX: `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def _proved(
    undecided: tuple[str, str], scope: Scope, bounds: Mapping[str, tuple[int, int]], assume: Sequence[str]
) -> str | None:
    """The one of two statements that follows from what is known of sizes; None where neither does."""
    known = scope.child()
    for v, bound in bounds.items():
        known.bound(v, bound)
    known.assume(*assume)
    for statement in undecided:
        if all(isinstance(known.prover.prove(r, TIMEOUT_MS), Proved) for r in read_statement(statement)):
            return statement
    return None


@stage("trace")
def _module(traced: Traced) -> Module:
    identifier = traced.identifier
    walk = Walk(traced.sizes, {leaf.name for leaf in traced.leaves}, Functions({identifier}))
    closed, params = traced.jaxpr, list(traced.params)
    # JAX says sizes that are equal, as after n == 2*m, in one form; so parameters get that form before they are read.
    wanted = (walk.annotation_of(v.aval) for v in closed.jaxpr.invars)
    forms = [in_form(p, a, traced.sizes) for p, a in zip(params, wanted, strict=True)]
    given = [p if form is None else form for p, form in zip(params, forms, strict=True)]
    outputs = walk.run(closed.jaxpr, [constant(c) for c in closed.consts], given)
    function = make_function(identifier, params, walk, outputs)
    # What the function's own comparisons of sizes may have rested on.
    assume = (*Scope.from_constraints(traced.sizes.declared).statements, *traced.assume)
    return Module((replace(function, assume=assume), *walk.functions.made))


def _name_of(fn: Callable[..., Any]) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__name__", type(fn).__name__)
