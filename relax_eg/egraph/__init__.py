"""The e-graph of a dataflow block: encoding, saturation, reading out. The only package that imports egglog."""

from relax_eg.egraph.budget import Budget, RuleFigures, Saturation, StopReason
from relax_eg.egraph.dump import Dump, UnsoundRuleError, dump
from relax_eg.egraph.recording import recording
from relax_eg.egraph.saturate import EGraph
