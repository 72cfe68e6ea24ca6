"""What XLA's compilers make of a function: its kernels."""
