"""Executables that serve many sizes: programs run at capacity, with masks where their index equations need them."""

from relax_eg.dynamic.analysis import Mask
from relax_eg.dynamic.plan import CapacityPlan, plan

__all__ = ["CapacityPlan", "Mask", "plan"]
