"""Kernels with several outputs, made by merging kernels with one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from relax_eg.extract.graph import ExtractionGraph
from relax_eg.extract.kernels.anchors import merge_anchors
from relax_eg.extract.kernels.operations import Operation
from relax_eg.extract.kernels.states import Kernel, Stage, State, StateTable

_OUTPUTS = 4  # limit: outputs of one kernel


def sibling_kernels(
    graph: ExtractionGraph,
    table: StateTable,
    operations: Mapping[tuple[int, int], Operation],
    states: Mapping[int, State],
) -> Iterator[Kernel]:
    """The kernels with several outputs into which kernels of a program can be merged.

    Either a kernel reads another kernel's result of the same shape: the merged kernel computes and stores both. Or
    several kernels read the same class and have results of one shape.

    - `states`: the kernels of the program, by the class that each stores.
    """
    annotations = graph.annotations
    for c, s in states.items():
        for x in s.loads:
            if x in states and annotations[x] == annotations[c] and s.local.phase <= 1:
                inner = table.with_inlined_loads(c, s, {x: states[x]})
                made = _merge_states(operations, (x, c), [inner]) if inner is not None else None
                if made is not None:
                    yield made
    groups: dict[tuple[int, object], list[int]] = {}
    for c, s in states.items():
        for x in s.loads:
            if annotations[x] == annotations[c] or s.loads[x] >= table.bytes[c]:
                groups.setdefault((x, annotations[c]), []).append(c)
    for group in groups.values():
        apart = [c for c in group[:_OUTPUTS] if not any(o in states[c].loads for o in group)]
        made = _merge_states(operations, tuple(apart), [states[c] for c in apart]) if len(apart) > 1 else None
        if made is not None:
            yield made


def _merge_states(
    operations: Mapping[tuple[int, int], Operation], outputs: tuple[int, ...], states: Sequence[State]
) -> Kernel | None:
    """The kernel of all `states` that stores `outputs`; None if the states cannot be combined."""
    loads: dict[int, int] = {}
    members: dict[int, int] = {}
    anchors = frozenset[Stage]().union(*(s.local.anchors for s in states))
    for s in states:
        for x, n in s.loads.items():
            loads[x] = max(loads.get(x, 0), n)
        for x, k in s.members.items():
            if members.setdefault(x, k) != k:
                return None
    if len(anchors) > max(len(s.local.anchors) for s in states) or not members.keys().isdisjoint(loads):
        return None
    efforts = [operations[x, k].effort for x, k in members.items()]
    other = sum(e.other for e in efforts) + sum(s.repeated for s in states)
    return Kernel(outputs, loads, members, merge_anchors(s.anchors for s in states), other)
