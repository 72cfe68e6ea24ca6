"""Modules of models: files that hold weights beside a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from relax_eg.ir.module import Module


@dataclass(frozen=True)
class ModelModule(Module):
    """A module that was read from a model.

    - `weights`: the arrays of the model, by the names of the parameters that take them. What `rx.optimize(module)`
      returns holds them, so it is called with the other arguments.
    - `outputs`: the names of the results.
    """

    weights: Mapping[str, np.ndarray[Any, Any]] = field(
        default_factory=lambda: MappingProxyType({}), compare=False, repr=False
    )
    outputs: tuple[str, ...] = field(default=(), compare=False, repr=False)
