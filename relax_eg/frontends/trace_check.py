"""Checks whether a function's trace for symbolic sizes is correct at the sizes of a call.

JAX answers questions about symbolic sizes for all sizes at once, and silently gets some wrong: it finds no size in a
dictionary or set of numbers, and a size has no digits. So a program made from such a trace runs at certain sizes only
if the function, traced at exactly these sizes, gives the same program (`canonical`). The check traces once for each
combination of sizes, and compiles nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from relax_eg.contexts import fewer_collections
from relax_eg.frontends.canonical.aligned import is_same_aligned
from relax_eg.frontends.canonical.nodes import Difference, Nodes
from relax_eg.frontends.canonical.walk import canonical_form
from relax_eg.frontends.jax.trace import Traced, UserError, traced_at
from relax_eg.frontends.sources import line_of, text_of_line
from relax_eg.frontends.symbolic import to_dim
from relax_eg.logs import stage
from relax_eg.memo import Memo
from relax_eg.settings import settings_now
from relax_eg.shapes import Dim

_MOST_KNOWN = 4096  # limit: combinations of sizes whose answers are kept


class TraceCheck:
    """Compares a trace for symbolic sizes with the function's traces at the sizes of calls.

    - `exact`: whether numbers that the function computes from sizes must agree in every bit.
    """

    def __init__(self, traced: Traced, exact: bool) -> None:
        self._traced, self._exact = traced, exact
        self._made_at = settings_now()
        self._dims: dict[int, tuple[Any, Dim]] = {}  # the symbolic sizes of the trace and their `Dim`, by `id`
        self._known = Memo[Hashable, str | None](_MOST_KNOWN)
        self._lock = threading.Lock()

    def difference(self, sizes: Mapping[str, int]) -> str | None:
        """Returns None if the trace at these sizes is the same program; otherwise a text that says where the programs
        first differ. An exception that the function raises at these sizes is passed on."""
        settings = settings_now()
        key = (settings, tuple(sorted(sizes.items())))
        try:
            return self._known[key]
        except KeyError:
            pass
        found = self._compared(sizes, settings == self._made_at)
        with self._lock:
            self._known[key] = found
        return found

    @stage("check of traces")
    @fewer_collections()
    def _compared(self, sizes: Mapping[str, int], as_made: bool) -> str | None:
        """Compares the two traces. `as_made`: whether the JAX settings are those under which the symbolic trace was
        made; if not, the function is traced again for symbolic sizes."""
        traced = self._traced
        shapes = [tuple(d.evaluate(sizes) for d in leaf.annotation.shape or ()) for leaf in traced.leaves]
        closed, out_tree = self._trace(shapes)
        if as_made:
            general, general_tree = traced.jaxpr, traced.out_tree
        else:
            general, general_tree = self._trace([leaf.aval.shape for leaf in traced.leaves])
        if out_tree != general_tree:
            return f"its result is structured as {out_tree}, and for symbolic sizes as {general_tree}"
        dims = self._dims if as_made else {}

        def number(n: Any) -> int:
            found = dims.get(id(n))
            if found is None:
                found = dims[id(n)] = n, to_dim(n)
            return found[1].evaluate(sizes)

        if is_same_aligned(Nodes(self._exact), general, closed, number):
            return None
        nodes = Nodes(self._exact)
        found = nodes.difference(canonical_form(nodes, general, number), canonical_form(nodes, closed))
        return None if found is None else _where(found)

    def _trace(self, shapes: Sequence[Any]) -> tuple[Any, Any]:
        traced = self._traced
        try:
            return traced_at(traced.fn, traced.name, traced.arguments, shapes)
        except UserError as e:
            raise e.error from None


def _where(found: Difference) -> str:
    line = next((line for line in map(line_of, found.eqns) if line is not None), None)
    if line is None:
        return "what it returns is not the same"
    text = text_of_line(line)
    return f"first at {line}" + (f": {text}" if text else "")
