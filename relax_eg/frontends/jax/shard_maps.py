"""A user's `shard_map` on the global view: every array is cut into the parts that its specs name, and the body runs on
all parts at once, batched over the mesh. So its collectives become sums, transposes and slices, which are spread like
any other code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import jax
from jax.extend.core import Literal

from relax_eg.contexts import holding
from relax_eg.frontends.jax.equation import called_jaxpr

_VARYING = frozenset(("pvary", "pcast"))  # they change no value
_PLACED = frozenset(("sharding", "out_sharding"))  # parameters that name the mesh of a part
_freed: ContextVar[bool] = ContextVar("relax_eg_freed_shard_maps", default=False)


def on_global_view(on: bool) -> AbstractContextManager[None]:
    """A context in which traces read `shard_map` on the global view."""
    return holding(_freed, on)


def freed_jaxpr(eqn: Any) -> Any:
    """The closed jaxpr of a `shard_map` equation on the global view; None outside of `on_global_view`."""
    if eqn.primitive.name != "shard_map" or not _freed.get():
        return None
    return jax.make_jaxpr(_global_view(eqn.params))(
        *(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars)
    )


def _global_view(params: Mapping[str, Any]) -> Callable[..., list[Any]]:
    sizes = {str(name): int(n) for name, n in params["mesh"].shape.items()}
    manual = [name for name in sizes if name in params["newly_manual_axes"]]

    def run(*xs: Any) -> list[Any]:
        def body(*parts: Any) -> Any:
            return _evaluated(params["jaxpr"], (), parts)

        for name in reversed(manual):  # the first axis is the outermost
            over = tuple(0 if name in _axes(spec) else None for spec in params["in_specs"])
            body = jax.vmap(body, over, 0, axis_name=name, axis_size=sizes[name])
        results = body(*(_cut(x, spec, sizes, manual) for x, spec in zip(xs, params["in_specs"], strict=True)))
        return [_joined(y, spec, manual) for y, spec in zip(results, params["out_specs"], strict=True)]

    return run


def _evaluated(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """The results of a jaxpr, without what tells JAX along which axes of the mesh values vary."""
    env: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    for eqn in jaxpr.eqns:
        xs = [v.val if isinstance(v, Literal) else env[v] for v in eqn.invars]
        env.update(zip(eqn.outvars, _results(eqn, xs), strict=True))
    return [v.val if isinstance(v, Literal) else env[v] for v in jaxpr.outvars]


def _function(closed: Any) -> Callable[..., list[Any]]:
    jaxpr, consts = getattr(closed, "jaxpr", closed), getattr(closed, "consts", ())
    return lambda *args: _evaluated(jaxpr, consts, args)


def _results(eqn: Any, xs: list[Any]) -> Sequence[Any]:
    name, params = eqn.primitive.name, eqn.params
    called = called_jaxpr(eqn)
    if name in _VARYING:
        return xs
    if name == "psum_invariant":
        return [jax.lax.psum(x, params["axes"]) for x in xs]
    if called is not None:
        return _function(called)(*xs)
    if name == "cond":
        return jax.lax.switch(xs[0], [_function(b) for b in params["branches"]], *xs[1:])
    if name == "while":
        n, m = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        condition, body = _function(params["cond_jaxpr"]), _function(params["body_jaxpr"])
        return jax.lax.while_loop(lambda c: condition(*xs[:n], *c)[0], lambda c: body(*xs[n:m], *c), xs[m:])
    if name == "scan":
        n, m = params["num_consts"], params["num_consts"] + params["num_carry"]
        body = _function(params["jaxpr"])

        def step(carry: list[Any], slices: list[Any]) -> tuple[list[Any], list[Any]]:
            found = body(*xs[:n], *carry, *slices)
            return found[: m - n], found[m - n :]

        last, ys = jax.lax.scan(step, xs[n:m], xs[m:], params["length"], params["reverse"], params["unroll"])
        return [*last, *ys]
    found = eqn.primitive.bind(*xs, **{k: None if k in _PLACED else v for k, v in params.items()})
    return found if eqn.primitive.multiple_results else [found]


def _names(spec: Any, d: int) -> tuple[str, ...]:
    """The axes of the mesh over which a spec splits dimension `d`, the slowest first."""
    entry = spec[d] if d < len(spec) else None
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def _axes(spec: Any) -> list[str]:
    return [name for d in range(len(spec)) for name in _names(spec, d)]


def _front(spec: Any, rank: int, manual: Sequence[str]) -> list[int]:
    """The order of the axes of a cut array in which those of the mesh come first, in the order of `manual`."""
    place: dict[str, int] = {}
    own: list[int] = []
    n = 0
    for d in range(rank):
        for name in _names(spec, d):
            place[name] = n
            n += 1
        own.append(n)
        n += 1
    return [*(place[name] for name in manual if name in place), *own]


def _cut(x: Any, spec: Any, sizes: Mapping[str, int], manual: Sequence[str]) -> Any:
    """`x` with an axis in front for each axis of the mesh over which it is split."""
    shape: list[Any] = []
    for d, size in enumerate(x.shape):
        ahead = [sizes[name] for name in _names(spec, d)]
        shape += [*ahead, size // math.prod(ahead)]
    return x.reshape(shape).transpose(_front(spec, x.ndim, manual))


def _joined(y: Any, spec: Any, manual: Sequence[str]) -> Any:
    """The result of which `y` has the parts: an axis in front for each axis of the mesh."""
    used = _axes(spec)
    y = y[tuple(slice(None) if name in used else 0 for name in manual)]  # parts that are equal: the first
    order = _front(spec, y.ndim - len(used), manual)
    y = y.transpose([order.index(i) for i in range(y.ndim)])
    shape: list[Any] = []
    at = 0
    for d in range(y.ndim - len(used)):
        n = len(_names(spec, d)) + 1
        shape.append(math.prod(y.shape[at : at + n]))
        at += n
    return y.reshape(shape)
