"""Calls of optimized functions: their arguments, sizes, executables and weights."""
