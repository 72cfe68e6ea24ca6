"""Reads the record of an e-graph made with `record=True` as plain data (`explain.record`)."""

from __future__ import annotations

from relax_eg.egraph.engine import Value
from relax_eg.egraph.saturate import EGraph
from relax_eg.explain.record import Firing, Recording, leaf_signature, signature
from relax_eg.logs import stage


@stage("record")
def recording(egraph: EGraph) -> Recording:
    """Returns every node of the e-graph with its class, and every match of a rule. O(nodes + matches)."""
    tables, engine, words = egraph.tables(), egraph.engine, egraph.words
    dims = {r.output: words.dim_at(engine.integer(r.inputs[0])) for r in reversed(tables["D"])}
    found = Recording(canonical_sizes={words.dim_at(engine.integer(r.inputs[0])): dims[r.output] for r in tables["D"]})
    classes: dict[Value, int] = {}

    def number(value: Value) -> int:
        return classes.setdefault(value, len(classes))

    for r in tables["Leaf"]:
        leaf = words.leaf_list[engine.integer(r.inputs[0])]
        found.classes[leaf_signature(leaf), ()] = number(r.output)
    for symbol, o in words.by_symbol.items():
        for r in tables.get(symbol, ()):
            sizes = tuple(dims[v] for v in r.inputs[o.arity :])
            key = signature(o.op, o.attributes(sizes), o.annotation, found.canonical_sizes)
            found.classes[key, tuple(map(number, r.inputs[: o.arity]))] = number(r.output)
    for symbol, (instance, names) in egraph.fired.items():
        count = len(instance.params)
        for r in tables.get(symbol, ()):
            sizes = tuple((n, dims[v]) for n, v in zip(names, r.inputs[count:], strict=True))
            found.firings.append(Firing(instance, tuple(map(number, r.inputs[:count])), sizes))
    return found
