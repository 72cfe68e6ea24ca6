"""E-graphs that are hard to extract from, made at any size, in the egraph-serialize format."""

from benchmarks.egraphs.kinds import KINDS as _KINDS
from benchmarks.egraphs.kinds import Kind
from benchmarks.egraphs.models import MODELS
from benchmarks.egraphs.tensors import tensor_program

KINDS: dict[str, Kind] = {**_KINDS, **MODELS}

__all__ = ["KINDS", "MODELS", "Kind", "tensor_program"]
