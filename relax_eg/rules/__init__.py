"""Rules: their definition, their checkers, and the shipped rule books."""

from relax_eg.rules.conditions import Claim, Guard, InOrder, OriginGuard, ValueTest
from relax_eg.rules.rule import PHASES, Instance, Rule
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schemas import Schema
from relax_eg.rules.signature import NUMERICS, Numerics

# isort: split
from relax_eg.rules import book
from relax_eg.rules.book import *  # noqa: F403

__all__ = [
    "NUMERICS",
    "PHASES",
    "Claim",
    "Guard",
    "InOrder",
    "Instance",
    "Numerics",
    "OriginGuard",
    "Rule",
    "RuleSet",
    "Schema",
    "ValueTest",
]
__all__ += book.__all__
