"""Running on XLA: operators and tensor programs lowered to JAX, what `optimize` returns, saved artifacts."""
