"""`jit`: a drop-in for `jax.jit` that optimizes."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.core import Tracer

from relax_eg.backend.optimized import Optimized
from relax_eg.driver import Sizes, optimize
from relax_eg.egraph import Budget
from relax_eg.errors import RelaxEgError
from relax_eg.extract.profile import Profile
from relax_eg.extract.report import CostReport
from relax_eg.rules import Numerics, RuleSet


class Jitted:
    """A function under `jit`: called like the function it came from.

    The first call for new shapes traces and optimizes; later calls are those of `jax.jit`. `optimized` lists what was
    optimized so far, the latest last; `report` is the latest one's report.
    """

    def __init__(
        self, fn: Callable[..., Any], dims: Sequence[Any] | None, options: dict[str, Any], jit: dict[str, Any]
    ) -> None:
        self._fn = fn
        self._dims = None if dims is None else tuple(dims)
        self._options = options
        self._warned = False
        self._symbolic: dict[Any, Optimized] = {}
        self.optimized: list[Optimized] = []
        self.__wrapped__ = fn
        self.__name__ = getattr(fn, "__name__", "function")
        self.__doc__ = getattr(fn, "__doc__", None)
        self._traced_once = _as_signature_of(fn, self._trace)
        self._jitted = jax.jit(self._traced_once, **jit)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._jitted(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """As `jax.jit(fn).lower`, of the optimized function."""
        return self._jitted.lower(*args, **kwargs)

    @property
    def report(self) -> CostReport | None:
        return self.optimized[-1].report if self.optimized else None

    def _trace(self, *args: Any, **kwargs: Any) -> Any:
        """Runs while `jax.jit` traces: static arguments are plain values here, the others tracers."""
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        dynamic = [i for i, x in enumerate(leaves) if isinstance(x, Tracer)]
        try:
            best = self._optimized_for(args, kwargs, leaves, tree, dynamic)
        except Exception as e:
            result = self._fn(*args, **kwargs)
            if not self._warned:
                self._warned = True
                text = (
                    f"{type(e).__name__}: {e}" if isinstance(e, RelaxEgError) else f"internal {type(e).__name__}: {e}"
                )
                warnings.warn(
                    f"{self.__name__} runs as written under jax.jit; it was not optimized: {text}", stacklevel=2
                )
            return result
        if self._dims is not None:
            return best.to_jax()(*args, **kwargs)
        return best.to_jax()(*(leaves[i] for i in dynamic))

    def _optimized_for(self, args: Any, kwargs: Any, leaves: list[Any], tree: Any, dynamic: list[int]) -> Optimized:
        if self._dims is not None:
            key = tree
            if key not in self._symbolic:
                self._symbolic[key] = optimize(self._fn, *self._dims, **self._options)
                self.optimized.append(self._symbolic[key])
            return self._symbolic[key]

        def flat(*xs: Any) -> Any:
            full = list(leaves)
            for i, x in zip(dynamic, xs, strict=True):
                full[i] = x
            a, k = jax.tree_util.tree_unflatten(tree, full)
            return self._fn(*a, **k)

        flat.__name__ = self.__name__
        avals = [jax.typeof(leaves[i]) for i in dynamic]
        specs = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=getattr(a, "weak_type", False)) for a in avals]
        best = optimize(flat, *specs, **self._options)
        self.optimized.append(best)
        return best

    def __repr__(self) -> str:
        return f"<relax_eg.jit of {self.__name__}>"


def _as_signature_of(fn: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` under the signature of `fn`, which `jax.jit` needs to resolve names of static and donated arguments."""

    @functools.wraps(fn)
    def traced(*args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    return traced


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    dims: Sequence[Any] | None = None,
    rules: RuleSet | None = None,
    target: str | Profile = "cpu",
    at: Sizes | Sequence[Sizes] | None = None,
    bounds: Mapping[str, tuple[int | None, int | None]] | None = None,
    numerics: Numerics = "reassociate",
    budget: Budget | None = None,
    **jit_options: Any,
) -> Any:
    """A drop-in for `jax.jit` that optimizes: `fast = rx.jit(fn)` or `@rx.jit(dims=["b s 768"])`.

    `jit_options` (`static_argnums`, `donate_argnames`, ...) are those of `jax.jit`. With `dims`, one spec per argument,
    the function is optimized once for symbolic sizes; without, once for each combination of shapes, as `jax.jit`
    compiles. It composes with jit, grad, vmap. Where the optimizer fails it warns once and runs `fn` as written.
    """
    if fn is None:
        return lambda f: jit(  # type: ignore[reportUnknownLambdaType]
            f,
            dims=dims,
            rules=rules,
            target=target,
            at=at,
            bounds=bounds,
            numerics=numerics,
            budget=budget,
            **jit_options,
        )
    options = {"rules": rules, "target": target, "at": at, "bounds": bounds, "numerics": numerics, "budget": budget}
    return Jitted(fn, dims, options, jit_options)
