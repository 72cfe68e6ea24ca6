"""Parameters of JAX primitives that contain symbolic dimensions, and their form at known sizes.

A nested custom derivative is kept if no size inside is symbolic. Otherwise the nested function is replaced by its
primal, whose derivatives are used: JAX made the custom derivatives for symbolic sizes only.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from relax_eg.frontends.symbolic import is_symbolic, to_dim
from relax_eg.limits import FEW_KEPT, KEPT

Sizes = tuple[tuple[str, Any], ...]

_CUSTOM = ("custom_jvp_call", "custom_vjp_call")


class SizedParameter:
    """A parameter that contains symbolic dimensions: a jaxpr, an abstract value, or a structure that holds these."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def at_sizes(self, sizes: Mapping[str, Any]) -> Any:
        """The parameter with these values of the size variables."""
        return _substitute_sizes(self.value, tuple(sorted(sizes.items(), key=lambda item: item[0])))

    def __repr__(self) -> str:
        return f"<{type(self.value).__name__} of symbolic sizes>"


def has_sizes(value: Any) -> bool:
    """Whether `value` contains a symbolic dimension."""
    if is_symbolic(value):
        return True
    if isinstance(value, ClosedJaxpr):
        return _is_symbolic_inside(value.jaxpr)
    if isinstance(value, Jaxpr):
        return _is_symbolic_inside(value)
    if isinstance(value, (ShapedArray, jax.ShapeDtypeStruct)):
        return any(map(is_symbolic, value.shape))
    if isinstance(value, (tuple, list)):
        return any(map(has_sizes, value))
    if type(value) is dict:
        return any(map(has_sizes, value.values()))
    inner = getattr(value, "inner_aval", None)  # a reference
    return inner is not None and has_sizes(inner)


@lru_cache(KEPT)
def _is_symbolic_inside(jaxpr: Any) -> bool:
    variables = [*jaxpr.constvars, *jaxpr.invars, *jaxpr.outvars, *(v for eqn in jaxpr.eqns for v in eqn.outvars)]
    return any(has_sizes(v.aval) for v in variables) or any(
        has_sizes(p) for eqn in jaxpr.eqns for p in eqn.params.values()
    )


def _substitute_sizes(value: Any, sizes: Sizes) -> Any:
    """A parameter value with its symbolic dimensions replaced; the same object if it has none."""
    if is_symbolic(value):
        return to_dim(value).evaluate(dict(sizes))
    if isinstance(value, (ClosedJaxpr, Jaxpr)):  # one class from jax 0.11 on
        closed = isinstance(value, ClosedJaxpr)
        inner = value.jaxpr if closed else value
        if not _is_symbolic_inside(inner):
            return value
        # Sizes that are themselves symbolic (during export) cannot be compared across scopes, so they cannot be cache
        # keys.
        known = all(isinstance(s, int) for _, s in sizes)
        found = _specialised(inner, sizes) if known else _copy(inner, sizes)
        return ClosedJaxpr(found, value.consts) if closed else found
    if isinstance(value, (ShapedArray, jax.ShapeDtypeStruct)):
        if not any(map(is_symbolic, value.shape)):
            return value
        return value.update(shape=_substitute_sizes(tuple(value.shape), sizes))
    if isinstance(value, tuple):
        items = [_substitute_sizes(v, sizes) for v in value]
        if all(a is b for a, b in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if type(value) is list:
        return [_substitute_sizes(v, sizes) for v in value]
    if type(value) is dict:
        return {k: _substitute_sizes(v, sizes) for k, v in value.items()}
    inner_aval = getattr(value, "inner_aval", None)  # a reference
    if inner_aval is not None and hasattr(value, "update"):
        found = _substitute_sizes(inner_aval, sizes)
        return value if found is inner_aval else value.update(inner_aval=found)
    return value


@lru_cache(FEW_KEPT)
def _specialised(jaxpr: Any, sizes: Sizes) -> Any:
    return _copy(jaxpr, sizes)


def _copy(jaxpr: Any, sizes: Sizes) -> Any:
    """`jaxpr` at these sizes: the same equations over variables with known shapes."""
    equations: list[Any] = []
    env: dict[Any, Any] = {v: _variable(v, sizes) for v in (*jaxpr.constvars, *jaxpr.invars)}
    outputs = _copy_equations(jaxpr, env, equations, sizes)
    return jaxpr.replace(
        constvars=[env[v] for v in jaxpr.constvars],
        invars=[env[v] for v in jaxpr.invars],
        outvars=outputs,
        eqns=equations,
    )


def _copy_equations(jaxpr: Any, env: dict[Any, Any], equations: list[Any], sizes: Sizes) -> list[Any]:
    """Appends the equations of `jaxpr` at these sizes; returns its outputs. `env` maps its variables to new ones."""

    def read(atom: Any) -> Any:
        return atom if isinstance(atom, Literal) else env[atom]

    for eqn in jaxpr.eqns:
        operands = [read(a) for a in eqn.invars]
        if eqn.primitive.name == "dim_as_value":
            (result,) = eqn.outvars
            size = _substitute_sizes(eqn.params["dim"], sizes)
            if isinstance(size, int):  # `dim_as_value` accepts symbolic sizes only
                env[result] = Literal(np.asarray(size, result.aval.dtype), result.aval)
                continue
        nested = eqn.params.get("call_jaxpr") if eqn.primitive.name in _CUSTOM else None
        if nested is not None and not nested.consts and _is_symbolic_inside(nested.jaxpr):
            inner = dict(zip(nested.jaxpr.invars, operands, strict=True))
            env.update(zip(eqn.outvars, _copy_equations(nested.jaxpr, inner, equations, sizes), strict=True))
            continue
        results = [_variable(v, sizes) for v in eqn.outvars]
        env.update(zip(eqn.outvars, results, strict=True))
        params = {k: _substitute_sizes(p, sizes) for k, p in eqn.params.items()}
        equations.append(eqn.replace(invars=operands, outvars=results, params=params))
    return [read(a) for a in jaxpr.outvars]


def _variable(v: Any, sizes: Sizes) -> Any:
    """A new variable for `v` with a known shape."""
    return type(v)(_substitute_sizes(v.aval, sizes))
