"""The e-graph of a dataflow block: encode, saturate, read out. The only room that imports egglog."""

from relax_eg.egraph.dump import Dump, UnsoundRuleError, dump
from relax_eg.egraph.saturate import Budget, EGraph, Saturation, StopReason

__all__ = ["Budget", "Dump", "EGraph", "Saturation", "StopReason", "UnsoundRuleError", "dump"]
