"""Rules: how they are written, checked, and the books of them that ship."""

from relax_eg.rules.rule import NUMERICS, Condition, InOrder, Instance, Numerics, Rule, RuleSet

__all__ = ["NUMERICS", "Condition", "InOrder", "Instance", "Numerics", "Rule", "RuleSet"]
