"""`JitFace`: what a function under `jit` has beside its call, as what `jax.jit` returns has it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

from relax_eg.backend.calls.executables import Jit
from relax_eg.driver.jitting.thread_marks import marked


class JitFace:
    """A function under `jit` as code that was written for `jax.jit` sees it: `jax.stages.Wrapped`, a method of a class,
    an object that is copied with a model.

    - `_jitted`: the `jax.jit` of the optimized function, made where it is traced.
    - `_written`: the `jax.jit` of the function as written.
    """

    _jitted: Jit
    _written: Jit
    _local: Any
    __name__: str

    def __init__(self, fn: Callable[..., Any], *options: Any) -> None:
        self._fn = fn
        self._made_of = fn, *options
        self.__name__ = "function"
        functools.update_wrapper(self, fn, updated=())  # type: ignore[reportArgumentType]

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Binds the function as a method, as `jax.jit` does; `static_argnums=0` makes the instance static."""
        return self if instance is None else MethodType(self, instance)  # type: ignore[arg-type]

    def lower(self, /, *args: Any, **kwargs: Any) -> Any:
        """Like `jax.jit(fn).lower`, for the optimized function."""
        return self._as_shaped(self._jitted.lower, args, kwargs)

    def trace(self, /, *args: Any, **kwargs: Any) -> Any:
        """Like `jax.jit(fn).trace`, for the optimized function."""
        return self._as_shaped(self._jitted.trace, args, kwargs)

    def eval_shape(self, /, *args: Any, **kwargs: Any) -> Any:
        """Like `jax.jit(fn).eval_shape`. Nothing is searched for: programs that compute the same have the same
        shapes."""
        return self._written.jitted.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """Like `jax.jit(fn).clear_cache`: forgets what was found and compiled, as if there had been no call."""
        self.__init__(*self._made_of)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, or what is read from a pickle, has the same options and finds its own programs."""
        return type(self), self._made_of

    def __repr__(self) -> str:
        return f"<relax_eg.jit of {self.__name__}>"

    def _as_shaped(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs `call` for exactly the shapes of its arguments, whatever shapes were seen before."""
        with marked(self._local, "as_shaped"):
            return call(*args, **kwargs)
