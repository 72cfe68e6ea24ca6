"""Traces JAX functions to modules. Each equation of the jaxpr becomes operators or an opaque call."""
