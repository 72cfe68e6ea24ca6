"""Kernels as candidates: what a kernel may hold, what it costs, and selection over kernels together with the
algebra."""
