"""Rules: how they are written, checked, and the books of them that ship."""

from relax_eg.rules.conditions import Claim, Condition, Guard, InOrder, ValueTest, Word
from relax_eg.rules.rule import NUMERICS, PHASES, Instance, Numerics, Rule, RuleSet
from relax_eg.rules.schemas import Schema

# isort: split
from relax_eg.rules.book import (
    algebra,
    attention,
    blocks,
    contraction,
    convolution,
    default,
    elementwise,
    functions,
    fusion,
    layout,
    legalization,
    libraries,
    movement,
    reduction,
    sums,
    systems,
    values,
    workspace,
)

__all__ = [
    "NUMERICS",
    "PHASES",
    "Claim",
    "Condition",
    "Guard",
    "InOrder",
    "Instance",
    "Numerics",
    "Rule",
    "RuleSet",
    "Schema",
    "ValueTest",
    "Word",
    "algebra",
    "attention",
    "blocks",
    "contraction",
    "convolution",
    "default",
    "elementwise",
    "functions",
    "fusion",
    "layout",
    "legalization",
    "libraries",
    "movement",
    "reduction",
    "sums",
    "systems",
    "values",
    "workspace",
]
