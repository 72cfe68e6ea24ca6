"""Walks over graphs: orders, what follows from what, and the parts of trees."""

from __future__ import annotations

from typing import Any

from relax_eg.traversal import connected, derived, grouped, leaves, made_from_below, operands_first

GRAPH = {"a": ["b", "c"], "b": ["d", "d"], "c": ["d"], "d": [], "x": ["y"], "y": ["x", "d"]}


def test_operands_come_first_and_circles_are_cut() -> None:
    assert operands_first(["a"], GRAPH.__getitem__) == ["d", "b", "c", "a"]
    assert operands_first(["x", "a"], GRAPH.__getitem__) == ["d", "y", "x", "b", "c", "a"]
    asked: list[str] = []
    operands_first(["a", "b"], lambda x: asked.append(x) or GRAPH[x])
    assert sorted(asked) == ["a", "b", "c", "d"]  # each once


def test_connected_parts_are_in_the_order_of_their_nodes() -> None:
    edges = [("d", "b"), ("f", "c"), ("b", "f"), ("e", "e")]
    assert connected("abcdef", edges) == [["a"], ["b", "c", "d", "f"], ["e"]]


def test_what_is_derived_needs_one_way_all_of_whose_nodes_are() -> None:
    ways = [("a", {"b"}), ("b", {"a"}), ("c", {"a", "d"}), ("c", {"d"}), ("d", set[str]()), ("e", {"c", "d"})]
    found = list(derived(ways))
    assert set(found) == {"c", "d", "e"} and found[0] == "d" and found.index("c") < found.index("e")


def test_leaves_are_in_order_and_from_a_number_on_no_part_is_taken_apart() -> None:
    tree: Any = ((1, 2), (3, (4, 5)), 6)
    assert leaves(tree, lambda x: x if isinstance(x, tuple) else None) == [1, 2, 3, 4, 5, 6]
    assert leaves(tree, lambda x: x if isinstance(x, tuple) else None, 4) == [1, 2, (3, (4, 5)), 6]


def test_what_is_made_is_made_once_after_what_is_below_it() -> None:
    made, order = {"d": 1}, list[str]()

    def make(x: str) -> int:
        order.append(x)
        return 1 + sum(made[y] for y in GRAPH[x])

    assert made_from_below("a", GRAPH.__getitem__, make, made) == 6
    assert order == ["b", "c", "a"] and made == {"a": 6, "b": 3, "c": 2, "d": 1}
    deep = {n: [n + 1] for n in range(10_000)} | {10_000: []}
    assert made_from_below(0, deep.__getitem__, lambda n: n, {}) == 0  # without recursion


def test_edges_are_grouped_by_where_they_begin() -> None:
    assert grouped((y, x) for x, inside in GRAPH.items() for y in inside) == {
        "b": ["a"], "c": ["a"], "d": ["b", "b", "c", "y"], "y": ["x"], "x": ["y"],
    }  # fmt: skip
