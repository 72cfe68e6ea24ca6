"""Rules: how they are written, checked, and the books of them that ship."""

from relax_eg.rules.rule import NUMERICS, PHASES, Condition, InOrder, Instance, Numerics, Rule, RuleSet
from relax_eg.rules.schemas import Schema

# isort: split
from relax_eg.rules.book import algebra, contraction, default, elementwise, functions, layout, movement, reduction

__all__ = [
    "NUMERICS",
    "PHASES",
    "Condition",
    "InOrder",
    "Instance",
    "Numerics",
    "Rule",
    "RuleSet",
    "Schema",
    "algebra",
    "contraction",
    "default",
    "elementwise",
    "functions",
    "layout",
    "movement",
    "reduction",
]
