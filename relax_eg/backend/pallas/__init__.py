"""Lowering of tensor programs through Pallas: which ones, in which blocks, and the kernels."""
