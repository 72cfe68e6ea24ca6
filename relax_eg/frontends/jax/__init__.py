"""JAX functions traced to modules: equation by equation, each primitive to operators or to an opaque call."""
