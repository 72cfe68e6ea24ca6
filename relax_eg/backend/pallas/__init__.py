"""Tensor programs through Pallas: whether one suits, how it is cut in blocks, the kernel."""
