"""A checker for choices made elsewhere. It uses only the JSON of the e-graph and of the choice, and shares no code with
extraction.

A choice is valid if each root has a node, each class of a chosen node's children has a node, no class depends on
itself, each node belongs to its class, and the costs of the nodes that the roots need add up to the claimed cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_EXACT = 1e-9  # chosen: share of the cost by which a claimed sum may be off


@dataclass(frozen=True, slots=True)
class CheckedChoice:
    """The result of checking a choice.

    - `faults`: a text for each fault; empty if the choice is valid.
    - `cost`: the sum of the costs of the nodes that were reached.
    - `classes`: number of the classes that were reached.
    """

    faults: tuple[str, ...]
    cost: float
    classes: int

    @property
    def ok(self) -> bool:
        return not self.faults


def check_choice(egraph: Mapping[str, Any], saved: Mapping[str, Any]) -> CheckedChoice:
    """Checks a saved choice. `egraph` and `saved` are the parsed JSON of an e-graph and of the output of `--save`."""
    nodes: dict[str, Any] = egraph["nodes"]
    choice = saved.get("choice")
    if not isinstance(choice, dict):
        return CheckedChoice(("there is no `choice`, an object of classes and their nodes",), math.nan, 0)
    faults: list[str] = []
    spent: list[float] = []
    # 1: the class's children are being visited; 2: done.
    state: dict[str, int] = {}
    agenda = [(str(r), False) for r in egraph["root_eclasses"]]
    while agenda:
        eclass, leaving = agenda.pop()
        if leaving:
            state[eclass] = 2
            continue
        if state.get(eclass) == 1:
            faults.append(f"class {eclass!r} depends on itself")
            continue
        if eclass in state:
            continue
        state[eclass] = 1
        agenda.append((eclass, True))
        name = choice.get(eclass)
        node = nodes.get(name) if isinstance(name, str) else None
        if node is None:
            fault = "has no node" if name is None else f"has {name!r}, which is no node"
            faults.append(f"class {eclass!r} is needed and {fault}")
            continue
        if str(node["eclass"]) != eclass:
            faults.append(f"class {eclass!r} has the node {name!r}, which belongs to class {str(node['eclass'])!r}")
            continue
        if node.get("subsumed"):
            faults.append(f"class {eclass!r} has the node {name!r}, which is subsumed")
        cost = node.get("cost", 1.0)
        spent.append(math.inf if cost is None else float(cost))
        if not spent[-1] < math.inf:
            faults.append(f"class {eclass!r} has the node {name!r}, which costs {spent[-1]}: it cannot be had")
        below = dict.fromkeys(str(nodes[str(child)]["eclass"]) for child in node.get("children", ()))
        agenda += [(x, False) for x in below]
    cost = math.fsum(spent)
    claimed = saved.get("cost")
    close = isinstance(claimed, int | float) and math.isclose(cost, claimed, rel_tol=_EXACT)
    if not close:
        faults.append(f"the choice costs {cost!r}, not {claimed!r} as it says")
    return CheckedChoice(tuple(faults), cost, len(spent))
