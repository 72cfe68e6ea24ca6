"""Whether the trace of a function for symbolic sizes is the function's own at the sizes of a call.

JAX answers questions about symbolic sizes for all sizes at once, some of them wrongly and without a word: a size is no
key of a dictionary of numbers, no member of a set of them, and has no digits. So a program that was made of such a
trace runs at certain sizes only where the function, traced for these very sizes, is that program (`canonical`).
That takes a trace for each combination of sizes, and compiles nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from relax_eg.debug import stage
from relax_eg.frontends.canonical.nodes import Difference, Nodes
from relax_eg.frontends.canonical.walk import form
from relax_eg.frontends.jax.trace import OwnError, Traced, traced_at
from relax_eg.frontends.sources import line_of, text_of
from relax_eg.frontends.symbolic import to_dim
from relax_eg.settings import settings_now
from relax_eg.shapes import Dim

_MOST_KNOWN = 4096  # combinations of sizes of which the answer is kept


class Own:
    """A trace for symbolic sizes beside those of the function for the sizes of calls. `exact`: whether every bit of a
    number that the function computes from sizes counts."""

    def __init__(self, traced: Traced, exact: bool) -> None:
        self._traced, self._exact = traced, exact
        self._made_at = settings_now()
        self._dims: dict[int, tuple[Any, Dim]] = {}  # the sizes in the trace, by identity
        self._known: dict[Hashable, str | None] = {}
        self._lock = threading.Lock()

    def difference(self, sizes: Mapping[str, int]) -> str | None:
        """None where the trace is the function's own at these sizes; else where it first is not, as text. What the
        function raises at these sizes is raised."""
        settings = settings_now()
        key = (settings, tuple(sorted(sizes.items())))
        try:
            return self._known[key]
        except KeyError:
            pass
        found = self._compared(sizes, settings == self._made_at)
        with self._lock:
            if len(self._known) >= _MOST_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[key] = found
        return found

    @stage("check of traces")
    def _compared(self, sizes: Mapping[str, int], as_made: bool) -> str | None:
        """`as_made`: whether the settings of JAX are those of the trace; under others it is made again."""
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

        nodes = Nodes(self._exact)
        found = nodes.difference(form(nodes, general, number), form(nodes, closed))
        return None if found is None else _where(found)

    def _trace(self, shapes: Sequence[Any]) -> tuple[Any, Any]:
        traced = self._traced
        try:
            return traced_at(traced.fn, traced.name, traced.arguments, shapes)
        except OwnError as e:
            raise e.error from None


def _where(found: Difference) -> str:
    line = next((line for line in map(line_of, found.eqns) if line is not None), None)
    if line is None:
        return "what it returns is not the same"
    text = text_of(line)
    return f"first at {line}" + (f": {text}" if text else "")
