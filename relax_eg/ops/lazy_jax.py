"""JAX for the operators' lowerings, imported when one of them first runs: the operator table is read without it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["jax", "jnp", "lax", "primitives"]


class _Lazy:
    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._module), name)


if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.extend.core import primitives
else:
    jax, jnp, lax = _Lazy("jax"), _Lazy("jax.numpy"), _Lazy("jax.lax")
    primitives = _Lazy("jax.extend.core.primitives")
