"""One executable for many sizes: programs at capacity, with masks where their index equations need them."""

from relax_eg.dynamic.analysis import Mask
from relax_eg.dynamic.plan import Plan, plan

__all__ = ["Mask", "Plan", "plan"]
