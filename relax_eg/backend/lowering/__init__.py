"""Lowering of operators and tensor programs to JAX."""
