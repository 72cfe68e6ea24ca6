"""Traces a JAX function, and turns the trace into a module."""

from __future__ import annotations

import functools
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax

from relax_eg.errors import RelaxEgError, TraceError
from relax_eg.frontends.blocks import make_function
from relax_eg.frontends.fingerprint import Fingerprint
from relax_eg.frontends.jax.control import TracedFunctions
from relax_eg.frontends.jax.walk import Walk, annotation_of, constant, with_jax_annotation
from relax_eg.frontends.sources import is_raised_by_jax
from relax_eg.frontends.specs import Arguments, HasArguments, read_arguments
from relax_eg.frontends.symbolic import SymbolicSizes
from relax_eg.frontends.trace_errors import cause, check_output, trace_error, undecided_comparison
from relax_eg.ir.annotations import Annotation, Tuple, dims_of
from relax_eg.ir.expr import Expr, var
from relax_eg.ir.module import Module
from relax_eg.logs import stage
from relax_eg.shapes import Proved, Scope
from relax_eg.shapes.constraints import jax_constraint
from relax_eg.shapes.prover import TIMEOUT_MS
from relax_eg.shapes.relation import read_statement


@dataclass(frozen=True)
class Traced(HasArguments):
    """A traced function.

    - `arguments`: the specs, flattened, and how to bind a call to them.
    - `jaxpr`: the closed jaxpr that JAX traced for `sizes`.
    - `out_tree`: the structure of the result of `fn`.
    - `assume`: statements that must hold for sizes beyond `arguments.scope`.
    - `wide`: whether JAX had 64-bit types enabled during the trace.

    The jaxpr may be wrong at some sizes: for example, `==` of sizes is False unless JAX knows that they are equal.
    `frontends.trace_check` tells whether the jaxpr is the program of `fn` at certain sizes.
    """

    fn: Callable[..., Any]
    name: str
    arguments: Arguments
    sizes: SymbolicSizes
    jaxpr: Any
    out_tree: Any
    assume: tuple[str, ...] = ()
    wide: bool = False

    @cached_property
    def module(self) -> Module:
        """The module, made at the first access. The parameters of its first function are `params`; the result is the
        only leaf of the output or a tuple of the leaves. TraceError if the jaxpr cannot be turned into a module."""
        return _module(self)

    @property
    def identifier(self) -> str:
        """The name of the module's first function: `main` for a lambda and for a name that is no identifier."""
        found = re.sub(r"\W+", "_", self.name.strip("<>"))
        return "main" if keyword.iskeyword(found) or not found.isidentifier() else found

    @cached_property
    def params(self) -> tuple[Expr, ...]:
        """The parameters of the module's first function: the leaves of the arguments in order."""
        return tuple(var(leaf.name, leaf.annotation) for leaf in self.leaves)

    @property
    def result(self) -> Annotation:
        """The annotation of the result of the module's first function."""
        found = tuple(map(annotation_of, self.out_avals))
        return found[0] if len(found) == 1 else Tuple(found)

    @property
    def out_avals(self) -> tuple[Any, ...]:
        """JAX's abstract values of the leaves of the result of `fn`, with weak types."""
        return tuple(self.jaxpr.out_avals)

    @property
    def size_variables(self) -> tuple[str, ...]:
        """Names of the size variables of the arguments, sorted."""
        return tuple(sorted({v for leaf in self.leaves for d in dims_of(leaf.annotation) for v in d.variables}))

    @property
    def cast_variables(self) -> tuple[str, ...]:
        """Names of the size variables that the module's entry binds inside: none, because JAX knows all sizes."""
        return ()

    @property
    def in_steps(self) -> bool:
        """Whether XLA cannot compile the program as a whole: never, because JAX traces no such program."""
        return False

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """The digest of the jaxpr's exact content. NoContentError if the content of a part cannot be read."""
        return Fingerprint(self.jaxpr)

    @property
    def effectful(self) -> bool:
        """Whether the function has effects besides its results."""
        return bool(self.module.main.steps)


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
    """Traces `fn` for arguments that fit `specs` and `kwspecs`.

    The inclusive `bounds` of sizes and the statements in `assume` decide comparisons of sizes in the Python code of
    `fn`. TraceError, with the user's line, if JAX cannot trace the function. SpecError for a spec that cannot be read.
    """
    if not callable(fn):
        raise TraceError(f"trace takes a function, got {type(fn).__name__}")
    label = name or _name_of(fn)
    proved: list[str] = []
    while True:
        sizes = SymbolicSizes(bounds)
        arguments = read_arguments(fn, label, specs, kwspecs or {}, sizes, assume, proved)
        try:
            closed, out_tree = traced_at(fn, label, arguments, [leaf.aval.shape for leaf in arguments.leaves])
            wide = bool(jax.config.values["jax_enable_x64"])
            return Traced(fn, label, arguments, sizes, closed, out_tree, tuple(assume), wide)
        except UserError as error:
            raise error.error from None
        except RelaxEgError:
            raise
        except Exception as error:
            undecided = undecided_comparison(error)
            more = None if undecided is None else _proved_statement(undecided, arguments.scope, bounds or {}, assume)
            if more is None or more in proved:
                raise trace_error(fn, label, arguments.leaves, error, undecided) from cause(error)
            proved.append(more)  # trace again, with the proved statement as a hint


def traced_at(fn: Callable[..., Any], name: str, arguments: Arguments, shapes: Sequence[Any]) -> tuple[Any, Any]:
    """The closed jaxpr of `fn` for arguments with arrays of these shapes, and the structure of its result. OwnError if
    the function itself raises."""
    out_tree: Any = None

    def flat(*leaves: Any) -> Any:
        nonlocal out_tree
        args, kwargs = jax.tree_util.tree_unflatten(arguments.tree, leaves)
        try:
            outputs, out_tree = jax.tree_util.tree_flatten_with_path(fn(*args, **kwargs))
        except Exception as error:
            if is_raised_by_jax(error):
                raise
            raise UserError(error) from error
        return [check_output(fn, name, path, value) for path, value in outputs]

    avals = [
        jax.ShapeDtypeStruct(shape, leaf.aval.dtype, weak_type=leaf.weak_type)
        for leaf, shape in zip(arguments.leaves, shapes, strict=True)
    ]
    return jax.make_jaxpr(flat)(*avals), out_tree


class UserError(Exception):
    """A wrapper of `error`, an exception that the traced function itself raised, and not JAX."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def _proved_statement(
    undecided: tuple[str, str], scope: Scope, bounds: Mapping[str, tuple[int, int]], assume: Sequence[str]
) -> str | None:
    """The one of the two statements that follows from the known facts about sizes, in JAX's spelling; None if neither
    does."""
    known = scope.child()
    for v, bound in bounds.items():
        known.bound(v, bound)
    known.assume(*assume)
    for statement in undecided:
        (relation,) = read_statement(statement)
        if isinstance(known.prover.prove(relation, TIMEOUT_MS), Proved):
            # The text of an equality is JAX's own, and JAX divides by a constant in more forms than one.
            return statement if relation.op == "==" else jax_constraint(relation)
    return None


@stage("trace")
def _module(traced: Traced) -> Module:
    identifier = traced.identifier
    walk = Walk(traced.sizes, {leaf.name for leaf in traced.leaves}, TracedFunctions({identifier}))
    closed, params = traced.jaxpr, list(traced.params)
    # JAX writes equal sizes, as after `n == 2*m`, in one form, so the parameters are brought to that form before use.
    wanted = (walk.annotation_of(v.aval) for v in closed.jaxpr.invars)
    forms = [with_jax_annotation(p, a, traced.sizes) for p, a in zip(params, wanted, strict=True)]
    given = [p if form is None else form for p, form in zip(params, forms, strict=True)]
    outputs = walk.run(closed.jaxpr, [constant(c) for c in closed.consts], given)
    function = make_function(identifier, params, walk.steps, outputs, walk.origins, walk.taken)
    # The statements that may have decided comparisons of sizes in the function.
    assume = (*Scope.from_constraints(traced.sizes.declared_constraints).statements, *traced.assume)
    return Module((replace(function, assume=assume), *walk.functions.added))


def _name_of(fn: Callable[..., Any]) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__name__", type(fn).__name__)
