"""E-graphs that are hard to extract from, made at any size, in the egraph-serialize format."""

from benchmarks.egraphs.kinds import KINDS, Kind
from benchmarks.egraphs.tensors import tensor_program

__all__ = ["KINDS", "Kind", "tensor_program"]
