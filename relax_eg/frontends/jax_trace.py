"""A JAX function becomes a module."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from relax_eg.debug import stage
from relax_eg.errors import RelaxEgError, TraceError
from relax_eg.frontends.blocks import make_function
from relax_eg.frontends.jax_control import Functions
from relax_eg.frontends.jax_walk import Walk, constant
from relax_eg.frontends.sources import is_raised_by_jax
from relax_eg.frontends.specs import Arguments, Leaf, read_arguments
from relax_eg.frontends.symbolic import Sizes
from relax_eg.frontends.trace_errors import cause, checked_output, trace_error
from relax_eg.ir.expr import var
from relax_eg.ir.module import Module


@dataclass(frozen=True)
class Traced:
    """A traced function.

    `module`: its first function's parameters the leaves of the arguments in order, its result the output's only leaf or a
    tuple of the leaves. `arguments`: the specs, flattened, and how to bind a call to them. `out_tree`: the structure of
    what `fn` returns; `out_avals`: its leaves as JAX sees them, weak types included.
    """

    module: Module
    fn: Callable[..., Any]
    name: str
    arguments: Arguments
    out_tree: Any
    out_avals: tuple[Any, ...]

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        return self.arguments.leaves

    @property
    def in_tree(self) -> Any:
        """The structure of `(args, kwargs)`."""
        return self.arguments.tree

    @property
    def arg_names(self) -> tuple[str, ...]:
        """Names of the arguments of `fn` that have arrays in them."""
        return self.arguments.names

    @property
    def leaf_names(self) -> tuple[str, ...]:
        """The parameters' paths as the user would write them."""
        return tuple(leaf.path for leaf in self.leaves)

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
) -> Traced:
    """The module of `fn` for arguments that fit `specs` and `kwspecs`, with what a caller needs to run it.

    `bounds` of sizes (inclusive) let the function compare sizes in Python where they decide. TraceError, with the
    user's line, where JAX cannot trace the function; SpecError for a spec that cannot be read.
    """
    if not callable(fn):
        raise TraceError(f"trace takes a function, got {type(fn).__name__}")
    label = name or _name_of(fn)
    sizes = Sizes(bounds)
    arguments = read_arguments(fn, label, specs, kwspecs or {}, sizes)
    out_tree: Any = None
    own = False  # the function itself raised, not JAX

    def flat(*leaves: Any) -> Any:
        nonlocal out_tree, own
        args, kwargs = jax.tree_util.tree_unflatten(arguments.tree, leaves)
        try:
            outputs, out_tree = jax.tree_util.tree_flatten_with_path(fn(*args, **kwargs))
        except Exception as error:
            own = not is_raised_by_jax(error)
            raise
        return [checked_output(fn, label, path, value) for path, value in outputs]

    try:
        closed = jax.make_jaxpr(flat)(*(leaf.aval for leaf in arguments.leaves))
    except RelaxEgError:
        raise
    except Exception as error:
        if own:
            raise
        raise trace_error(fn, label, arguments.leaves, error) from cause(error)
    params = [var(leaf.name, leaf.annotation) for leaf in arguments.leaves]
    identifier = _identifier(label)
    walk = Walk(sizes, {leaf.name for leaf in arguments.leaves}, Functions({identifier}))
    outputs = walk.run(closed.jaxpr, [constant(c) for c in closed.consts], params)
    function = make_function(identifier, params, walk, outputs)
    return Traced(Module((function, *walk.functions.made)), fn, label, arguments, out_tree, tuple(closed.out_avals))


def _name_of(fn: Callable[..., Any]) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__name__", type(fn).__name__)


def _identifier(name: str) -> str:
    """The name of the module's function; a lambda is `main`."""
    found = re.sub(r"\W+", "_", name.strip("<>"))
    return "main" if found == "lambda" or not found.isidentifier() else found
