"""Structures of arguments and results (pytrees of JAX) as plain data, of dicts, lists and tuples only."""

from __future__ import annotations

from typing import Any, cast

import jax

from relax_eg.errors import ArtifactError


def tree_as_data(tree: Any, what: str) -> Any:
    """A pytree structure as plain data. ArtifactError where it has nodes other than dicts, lists and tuples."""
    return _structure(jax.tree_util.tree_unflatten(tree, [0] * tree.num_leaves), what)


def _structure(value: Any, what: str) -> Any:
    if type(value) is int or value is None:
        return value
    if type(value) in (tuple, list):
        return [type(value).__name__, *[_structure(v, what) for v in value]]
    if type(value) is dict and all(type(k) in (str, int) for k in value):
        return ["dict", *[[k, _structure(v, what)] for k, v in value.items()]]
    raise ArtifactError(
        f"save: {what} hold a {type(value).__module__}.{type(value).__qualname__}, a structure of this process\n"
        "  accepted: arrays in dicts with text or whole numbers as keys, lists and tuples"
    )


def tree_of_data(data: Any) -> Any:
    """The pytree structure that `tree_as_data` wrote."""
    return jax.tree_util.tree_structure(_skeleton(data))


def _skeleton(data: Any) -> Any:
    if not isinstance(data, list):
        return data
    kind, *items = cast("list[Any]", data)
    if kind == "dict":
        return {k: _skeleton(v) for k, v in items}
    return {"tuple": tuple, "list": list}[kind](map(_skeleton, items))
