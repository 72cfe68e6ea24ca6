"""Rules: how they are written, checked, and the books of them that ship."""

from relax_eg.rules.rule import NUMERICS, PHASES, Condition, InOrder, Instance, Numerics, Rule, RuleSet

# isort: split
from relax_eg.rules.book import algebra, contraction, default, elementwise, layout, movement, reduction

__all__ = [
    "NUMERICS",
    "PHASES",
    "Condition",
    "InOrder",
    "Instance",
    "Numerics",
    "Rule",
    "RuleSet",
    "algebra",
    "contraction",
    "default",
    "elementwise",
    "layout",
    "movement",
    "reduction",
]
