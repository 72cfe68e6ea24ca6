"""Execution on XLA: lowers operators and tensor programs to JAX, runs optimized functions, and saves artifacts."""
