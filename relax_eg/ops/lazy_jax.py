"""JAX for the operators' lowerings, imported when one of them first runs: the operator table is read without it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["core", "generators", "jax", "jnp", "lax", "primitives", "xla_metadata"]


class _Lazy:
    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._module), name)


if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.experimental import xla_metadata
    from jax.extend import core
    from jax.extend import random as generators
    from jax.extend.core import primitives
else:
    jax, jnp, lax = _Lazy("jax"), _Lazy("jax.numpy"), _Lazy("jax.lax")
    core, primitives = _Lazy("jax.extend.core"), _Lazy("jax.extend.core.primitives")
    generators, xla_metadata = _Lazy("jax.extend.random"), _Lazy("jax.experimental.xla_metadata")
