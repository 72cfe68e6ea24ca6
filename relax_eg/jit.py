"""`jit`: a drop-in for `jax.jit` that optimizes."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.core import Tracer

from relax_eg.backend.optimized import Optimized
from relax_eg.driver import optimize
from relax_eg.egraph import Budget
from relax_eg.errors import OptionError, RelaxEgError
from relax_eg.extract.devices import profile
from relax_eg.extract.profile import Profile
from relax_eg.measure.device import here
from relax_eg.options import Bounds, Sizes
from relax_eg.reports import CostReport
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
        # Who calls `jax.jit` decides how it compiles: another way to compile is not ours to choose.
        self._target = options.pop("target")
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
            if self._dims is None:
                best, operands = self._of_shapes(leaves, tree, dynamic), [leaves[i] for i in dynamic]
            else:
                best, operands = self._of_dims(self._dims, args, kwargs)
        except Exception as e:
            result = self._fn(*args, **kwargs)
            if not self._warned:
                self._warned = True
                text = f"{'' if isinstance(e, RelaxEgError) else 'internal '}{type(e).__name__}: {e}"
                warnings.warn(
                    f"{self.__name__} runs as written under jax.jit; it was not optimized: {text}", stacklevel=2
                )
            return result
        return best.to_jax()(*operands)

    def _device(self) -> Profile:
        return replace(here() if self._target is None else profile(self._target), modes=())

    def _of_shapes(self, leaves: list[Any], tree: Any, dynamic: list[int]) -> Optimized:
        """The function of the arrays among `leaves`, the others as they are, optimized for these very shapes."""

        @functools.wraps(self._fn)
        def flat(*xs: Any) -> Any:
            full = list(leaves)
            for i, x in zip(dynamic, xs, strict=True):
                full[i] = x
            args, kwargs = jax.tree_util.tree_unflatten(tree, full)
            return self._fn(*args, **kwargs)

        flat.__name__ = self.__name__
        flat.__signature__ = inspect.Signature([inspect.Parameter("x", inspect.Parameter.VAR_POSITIONAL)])  # type: ignore[reportAttributeAccessIssue]
        avals = [jax.typeof(leaves[i]) for i in dynamic]
        specs = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=getattr(a, "weak_type", False)) for a in avals]
        self.optimized.append(optimize(flat, *specs, target=self._device(), **self._options))
        return self.optimized[-1]

    def _of_dims(self, dims: tuple[Any, ...], args: Any, kwargs: Any) -> tuple[Optimized, list[Any]]:
        """The function of the arguments that have arrays in them, the others (static ones, None) as they are, optimized
        for the sizes `dims` tells; and those arguments."""
        signature = inspect.signature(self._fn)
        call = signature.bind(*args, **kwargs).arguments
        specs = signature.bind_partial(*dims).arguments
        fixed = {n: x for n, x in call.items() if not any(isinstance(v, Tracer) for v in jax.tree_util.tree_leaves(x))}
        taken = {n: x for n, x in call.items() if n not in fixed}
        held, structure = jax.tree_util.tree_flatten(fixed)
        # 1, True and 1.0 are equal in Python.
        key = (structure, tuple((type(x), x) for x in held), jax.tree_util.tree_structure(taken))
        if key not in self._symbolic:
            missing = [n for n in taken if n not in specs]
            if missing:
                raise OptionError(f"dims has no spec for argument `{missing[0]}`; one for each argument is accepted")

            @functools.wraps(self._fn)
            def of_arrays(*xs: Any) -> Any:
                bound = inspect.BoundArguments(signature, OrderedDict({**fixed, **dict(zip(taken, xs, strict=True))}))
                return self._fn(*bound.args, **bound.kwargs)

            of_arrays.__name__ = self.__name__
            named = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in taken]
            of_arrays.__signature__ = inspect.Signature(named)  # type: ignore[reportAttributeAccessIssue]
            self._symbolic[key] = optimize(
                of_arrays, *(specs[n] for n in taken), target=self._device(), **self._options
            )
            self.optimized.append(self._symbolic[key])
        return self._symbolic[key], list(taken.values())

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
    target: str | Profile | None = None,
    at: Sizes | Sequence[Sizes] | None = None,
    bounds: Bounds | None = None,
    assume: str | Sequence[str] = (),
    numerics: Numerics = "reassociate",
    budget: Budget | None = None,
    cache: bool = True,
    **jit_options: Any,
) -> Any:
    """A drop-in for `jax.jit` that optimizes: `fast = rx.jit(fn)` or `@rx.jit(dims=["b s 768"])`.

    `jit_options` (`static_argnums`, `donate_argnames`, ...) are those of `jax.jit`. With `dims`, one spec per argument
    (anything for a static one), the function is optimized once for symbolic sizes; without, once for each combination
    of shapes, as `jax.jit` compiles. It composes with jit, grad, vmap. Where the optimizer fails it warns once and runs
    `fn` as written. The other options are those of `optimize`.
    """
    if fn is None:
        return lambda f: jit(  # type: ignore[reportUnknownLambdaType]
            f,
            dims=dims,
            rules=rules,
            target=target,
            at=at,
            bounds=bounds,
            assume=assume,
            numerics=numerics,
            budget=budget,
            cache=cache,
            **jit_options,
        )
    options = {"rules": rules, "target": target, "at": at, "bounds": bounds, "assume": assume, "numerics": numerics}
    return Jitted(fn, dims, {**options, "budget": budget, "cache": cache}, jit_options)
