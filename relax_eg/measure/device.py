"""The device that JAX runs on, and its default profile."""

from __future__ import annotations

from typing import Any

import jax

from relax_eg.extract.devices import nearest_profile
from relax_eg.extract.profile import Profile


def device() -> Any:
    """JAX's default device."""
    chosen: Any = jax.config.jax_default_device  # type: ignore[reportAttributeAccessIssue]
    if chosen is None:
        return jax.devices()[0]
    return jax.devices(chosen)[0] if isinstance(chosen, str) else chosen


def default_profile() -> Profile:
    """The profile of JAX's default device: the hand-measured profile for a CPU, or else the nearest data sheet."""
    found = device()
    return nearest_profile(found.platform, found.device_kind)
