"""What XLA's compiler for GPUs makes of a function: its kernels."""
