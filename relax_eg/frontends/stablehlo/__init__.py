"""Reads StableHLO: the text and bytes of modules, and what `jax.export` writes."""
