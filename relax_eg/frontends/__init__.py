"""Converts programs to modules; `trace` does so for JAX functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from relax_eg.argument_checks import BOUNDS, NONE, TEXT, accepts
from relax_eg.frontends.clashes import explain_clashes, specs_by_name
from relax_eg.frontends.jax.trace import Traced, trace_function
from relax_eg.frontends.modules import PreparedModule, prepare_module
from relax_eg.ir.module import Module
from relax_eg.shapes.relation import Bounds
from relax_eg.shapes.scope import bounds_as_statements

Source = Traced | PreparedModule  # the programs that `optimize` takes

__all__ = ["PreparedModule", "Source", "Traced", "prepare_module", "trace", "trace_function"]


@explain_clashes
@accepts(name=TEXT | NONE, bounds=BOUNDS)
def trace(
    fn: Callable[..., Any],
    /,
    *args: Any,
    specs: Mapping[str, Any] | None = None,
    name: str | None = None,
    bounds: Bounds | None = None,
    **kwspecs: Any,
) -> Module:
    """The module of a JAX function for the arguments that the specs describe: one spec per argument, keywords by name.

    A spec is a string ("b s 768", "b s @ int32"; float32 if it names no dtype), an array (its own shape and dtype), a
    `jax.ShapeDtypeStruct`, a number, None, or a pytree of these. Equal names are equal sizes.

    - `specs`: specs by name, for arguments that are called `name`, `bounds` or `specs`: `specs={"name": "n 4"}`.
    - `name`: the name of the module's first function (default: the name of `fn`).
    - `bounds`: the range of a size, `{"s": (1, 4096)}`; a statement such as "s % 8 == 0"; or a list of both. JAX uses
      them to decide comparisons of sizes in the function; the module records them.

    TraceError if JAX cannot trace the function. SpecError for a spec that cannot be read.
    """
    statements = bounds_as_statements(bounds)
    return trace_function(fn, args, specs_by_name(specs, kwspecs), name=name, assume=statements).module
