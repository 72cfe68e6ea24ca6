"""Kernels as candidates: the operators that a kernel may contain, its cost, and the joint selection of kernels and
algebra."""
