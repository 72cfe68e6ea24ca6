"""`jit`: a drop-in replacement for `jax.jit` that optimizes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from relax_eg.argument_checks import NONE, Kind, accepts, of_types, short_repr
from relax_eg.driver.background import Search, read_search
from relax_eg.driver.jit_weights import JittedWithWeights
from relax_eg.driver.jitted import Jitted
from relax_eg.driver.limit import read_limit
from relax_eg.driver.options import KINDS, Facts, Sizes, Target
from relax_eg.driver.settling import FIRST_CALLS, Settle, SettleMode
from relax_eg.dynamic.policy import Dynamic, Mode, read_policy
from relax_eg.egraph import Budget
from relax_eg.errors import OptionError
from relax_eg.ir.module import Module
from relax_eg.rules import Numerics, RuleSet
from relax_eg.shapes import Scope
from relax_eg.shapes.relation import Bounds


@accepts(
    **{k: v for k, v in KINDS.items() if k not in ("numerics", "measure")},  # a search that fails warns, and `fn` runs
    measure=FIRST_CALLS,
    fn=Kind(lambda x: x is None or callable(x) or isinstance(x, Module), "a function"),
    dims=of_types("a list of specs, one for each argument,", list, tuple) | NONE,
)
def jit(
    fn: Callable[..., Any] | None = None,
    *,
    dims: Sequence[Any] | None = None,
    rules: RuleSet | None = None,
    target: Target | None = None,
    at: Sizes | Sequence[Sizes] | None = None,
    bounds: Bounds | None = None,
    weights: Sequence[str | int] = (),
    numerics: Numerics = "reassociate",
    facts: Facts | None = None,
    dynamic: Mode | Dynamic = "auto",
    measure: SettleMode | Settle | None = None,
    search: Search = "first call",
    memory_limit: int | str | None = None,
    budget: Budget | None = None,
    **jit_options: Any,
) -> Any:
    """A drop-in for `jax.jit` that optimizes: `fast = rx.jit(fn)` or `@rx.jit(dims=["b s 768"])`.

    - `jit_options`: `static_argnums`, `donate_argnames` and the other options of `jax.jit`.
    - `dims`: one spec per argument (anything for a static one); the function is then optimized once for symbolic sizes.
      Without `dims` it is optimized for the shapes of the first call, and once more when others come: the sizes that
      changed are then symbolic (`docs/dynamic.md`).
    - `dynamic`: "exact" optimizes and compiles each combination of shapes, as `jax.jit` compiles. The same happens to
      calls that are traced, and with `jit_options` other than static and donated arguments. Otherwise a combination of
      sizes runs the program for all sizes only after the function, traced for it, was found to be that program; other
      combinations have executables of their own. `Dynamic(trust=True)` skips this check: the caller promises that it
      would succeed.
    - `weights`: arguments known ahead of the calls, by name or by position as in `static_argnums`. What depends on them
      alone is computed at the first call with these very arrays of JAX and kept as long as the arrays are. It is not
      kept for numpy arrays, which may change, nor where JAX traces the call.
    - `facts`: what is known of the values of arguments, as `optimize` takes it; positions count as in `static_argnums`.
    - `measure`: that of `optimize`, which alone times programs ahead of the calls.
    - `search`: "first call" searches when a call needs a program. "background" runs such calls as written, under
      `jax.jit`, until a thread has found and compiled it; `fast.wait()` waits for that. Calls that JAX traces search
      themselves.

    The other options are those of `optimize`. With `memory_limit` and without `at`, each combination of sizes is
    optimized for itself, as with `dynamic="exact"`. It composes with jit, grad and vmap. If the optimizer fails, it
    warns once and runs `fn` as written.
    """
    options: dict[str, Any] = {
        "rules": rules, "target": target, "at": at, "bounds": bounds, "weights": weights, "numerics": numerics,
        "facts": facts, "dynamic": (policy := Dynamic.of(dynamic)), "measure": measure, "search": search,
        "memory_limit": memory_limit, "budget": budget,
    }  # fmt: skip
    if isinstance(fn, Module) and not callable(fn):
        raise OptionError(
            "jit: a module is no function; accepted: rx.optimize(module, at=...), which returns one for all its sizes, "
            "or rx.jit of a function that calls what rx.optimize returned"
        )
    if fn is None:
        return functools.partial(jit, dims=dims, **options, **jit_options)
    if memory_limit is not None:
        read_limit(memory_limit)
    # Wrong values are reported here, at the decoration; what depends on the names of sizes, at the first call.
    read_search(search)
    if policy.padded or policy.donated:
        raise OptionError("jit: Dynamic(padded=, donated=): rx.optimize takes them, and rx.jit takes donate_argnames")
    capacities = policy.capacities
    read_policy("jit", list(capacities) if isinstance(capacities, Mapping) else ["n"], Scope({"n": (1, 1)}), policy)
    if dims is None and isinstance(capacities, Mapping):
        raise OptionError(
            f"jit: capacities={short_repr(capacities)} names sizes, and without dims there are no names; pass dims"
        )
    if at is None and memory_limit is not None:  # limits are kept at known sizes
        options["dynamic"] = replace(policy, mode="exact")
    return (JittedWithWeights if len(weights) else Jitted)(fn, dims, options, jit_options)
