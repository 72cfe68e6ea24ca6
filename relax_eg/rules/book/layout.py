"""The layout of weights in memory: the axis that a matmul reads along is a choice, priced by the profile."""

from __future__ import annotations

from typing import Any

from relax_eg.ops import api as op
from relax_eg.rules.rule_set import RuleSet

layout = RuleSet("layout")
_rule = layout.rule


@_rule("x: *b k, w: n k", phase="layout", numerics="exact", tags=("layout",))
def transposed_weight_as_stored(x: Any, w: Any) -> Any:
    """x W' = linear(x, W): a weight whose output axis is first is read without a transpose"""
    return x @ w.T, op.linear(x, w)


@_rule("x: *b k, w: k n", phase="layout", numerics="exact", tags=("layout",))
def weight_stored_transposed(x: Any, w: Any) -> Any:
    """x W = linear(x, W'): the weight is stored transposed"""
    return x @ w, op.linear(x, w.T)
