"""Compiles for GPUs, of which none need be present: devices by name, the plug-in of JAX, and what XLA made."""
