"""Optimized functions with their weights bound: values of the weights alone are computed once, the rest per call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relax_eg.backend.calls.runtime import Runtime, Strategy
from relax_eg.backend.calls.whole import Whole
from relax_eg.ir.module import Module


class Ready(Runtime):
    """An optimized function with its weights bound: call it with the other arguments.

    - `indices`: places of the weights among the parameters.
    - `prepared`: a tuple of the arrays kept for the calls; a tuple of such tuples if several programs serve different
      sizes.
    - `compiler_options`: options of the variant for the first binding of `at`.
    """

    def __init__(self, strategy: Strategy, indices: Sequence[int], compiler_options: Mapping[str, str]) -> None:
        super().__init__(strategy)
        self.indices = frozenset(indices)
        self.prepared = strategy.prepared
        self._compiler_options = compiler_options

    @property
    def compiler_options(self) -> Mapping[str, str]:
        """The options found best: pass them as `jax.jit(ready.to_jax(), compiler_options=...)`."""
        return self._compiler_options

    @property
    def module(self) -> Module:
        """The program that runs per call, of the variant for the first binding of `at`. Its parameters are the prepared
        values, then the other arguments; all of them where the function runs as written."""
        assert isinstance(self.strategy, Whole)  # weights of a function in steps cannot be bound
        return self.strategy.bound_family.variant_program(0).module

    def to_jax(self) -> Callable[..., Any]:
        """The program that runs per call, as a JAX function `(prepared, *others)`.

        The prepared values are an argument, so that they stay arguments under `jax.jit`.
        """
        return self.strategy.to_jax()

    def compile_ahead(self, *at: Mapping[str, int], background: bool = False) -> None:
        """Like `Optimized.compile_ahead`, for these weights and all others of the same shapes."""
        self._compile_ahead(at, background)
