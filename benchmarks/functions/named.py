"""How functions are listed: by name, with the specs of their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Functions = dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]


def named(module: Any, names: str, *specs: Any) -> Functions:
    """Functions of a module by name; those that this version of JAX does not have are left out."""
    return {name: (getattr(module, name), specs) for name in names.split() if hasattr(module, name)}
