"""Programs come in here: JAX functions become modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relax_eg.frontends.jax.trace import Traced, trace_function
from relax_eg.frontends.modules import Written, written
from relax_eg.ir.module import Module
from relax_eg.shapes.relation import as_statements

Source = Traced | Written  # what optimize works on

__all__ = ["Source", "Traced", "Written", "trace", "trace_function", "written"]


def trace(
    fn: Callable[..., Any], /, *specs: Any, name: str | None = None, assume: str | Sequence[str] = (), **kwspecs: Any
) -> Module:
    """The module of a JAX function, for arguments as the specs describe them: one spec per argument, keywords by name.

    A spec is a string ("b s 768", "b s @ int32"; float32 if it names no dtype), an array (its own shape and dtype), a
    `jax.ShapeDtypeStruct`, a number, None, or a pytree of these. Equal names are equal sizes.
    `assume`: statements such as "s % 8 == 0", on which comparisons of sizes in the function may rest; the module says
    them.

    Raises TraceError where JAX cannot trace the function, SpecError for a spec that cannot be read.
    """
    statements = as_statements(assume)
    return trace_function(fn, specs, kwspecs, name=name, assume=statements).module
