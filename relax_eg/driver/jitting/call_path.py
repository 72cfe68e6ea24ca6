"""How a call of a function under `jit` is run."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relax_eg.backend.calls.optimized import Optimized


@dataclass(frozen=True)
class CallPath:
    """How a call is run.

    - `run`: the function that runs it.
    - `of_leaves`: whether `run` takes the flattened leaves, not the arguments themselves.
    - `is_reusable`: whether all later calls with arrays of these kinds may use it.
    """

    run: Callable[..., Any]
    of_leaves: bool = False
    is_reusable: bool = False

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]) -> Any:
        return self.run(*leaves) if self.of_leaves else self.run(*args, **kwargs)


def path_of(best: Optimized, given: tuple[Any, ...], named: dict[str, Any], args: Any, kwargs: Any) -> CallPath:
    """How to run a call with `args` and `kwargs` to a function whose arguments are then `given` and `named`."""
    if not kwargs and not named and len(args) == len(given) and all(map(operator.is_, args, given)):
        return CallPath(best, is_reusable=True)
    return CallPath(lambda *_, **__: best(*given, **named))
