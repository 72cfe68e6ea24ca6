"""`jit`: functions that are optimized when they are called, for the sizes that their calls have."""
