"""The view of a jaxpr equation that translation rules get, and the builders that they share.

The builders add no operator that does nothing: identity permutations, reshapes to the same sizes, empty lists of axes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relax_eg.frontends.symbolic import SymbolicSizes
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr
from relax_eg.ops.on_cpus import plain_jaxpr
from relax_eg.ops.record import call
from relax_eg.shapes import Dim

ONE = Dim.of(1)
ZERO = Dim.of(0)


@dataclass(frozen=True, slots=True)
class JaxprEquation:
    """The view of a jaxpr equation that translation rules get.

    - `args`: its operands.
    - `params`: its parameters by name.
    - `out`: the annotations of its outputs.
    - `sizes`: the symbolic sizes of the trace.
    - `inline(closed, args)`: returns the outputs of a nested jaxpr for these arguments.
    """

    args: tuple[Expr, ...]
    params: Mapping[str, Any]
    out: tuple[Tensor, ...]
    sizes: SymbolicSizes
    inline: Callable[[Any, Sequence[Expr]], list[Expr]]

    @property
    def x(self) -> Expr:
        return self.args[0]

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The sizes of the first output."""
        return self.out[0].shape or ()

    @property
    def dtype(self) -> str:
        return self.out[0].dtype or ""

    def __getitem__(self, name: str) -> Any:
        return self.params[name]


# Primitives that only call a function, and the parameter that holds it. Custom derivatives and batching, and
# rematerialisation, do not change what is computed.
_CALLS: Mapping[str, str] = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "remat2": "jaxpr",
    "remat": "jaxpr",
    "checkpoint": "jaxpr",
    "composite": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "call": "call_jaxpr",
    "core_closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
}

# Primitives whose result differs from call to call, though JAX records no effect.
STATEFUL = ("rng_uniform",)


def called_jaxpr(eqn: Any) -> Any:
    """The function, a jaxpr, that an equation only calls. None for other equations, and for a call that specifies the
    sharding of its operands or results, which must not be inlined. Of an operator that we lower otherwise on CPUs it is
    the function of JAX, from which the operator is read back."""
    if (plain := plain_jaxpr(eqn)) is not None:
        return plain
    params = eqn.params
    shardings = (*params.get("in_shardings", ()), *params.get("out_shardings", ()))
    if any(type(s).__name__ != "UnspecifiedValue" for s in shardings):
        return None
    return params.get(_CALLS.get(eqn.primitive.name))


Rule = Callable[[JaxprEquation], "Expr | Sequence[Expr] | None"]


def astype(x: Expr, dtype: str) -> Expr:
    return x if x.dtype == dtype else call("astype", (x,), {"dtype": dtype})


def permute(x: Expr, axes: Sequence[int]) -> Expr:
    """`x` with its axes in the given order."""
    order = tuple(axes)
    return x if order == tuple(range(x.ndim)) else call("permute_dims", (x,), {"axes": order})


def reshape(x: Expr, shape: Sequence[Dim]) -> Expr:
    sizes = tuple(shape)
    return x if sizes == x.shape else call("reshape", (x,), {"shape": sizes})


def insert_axes(x: Expr, axes: Sequence[int]) -> Expr:
    """`x` with new axes of size one at the given positions of the result."""
    return call("expand_dims", (x,), {"axes": tuple(axes)}) if axes else x


def squeeze(x: Expr, axes: Sequence[int]) -> Expr:
    return call("squeeze", (x,), {"axes": tuple(sorted(axes))}) if axes else x


def slice_array(x: Expr, begin: Sequence[Dim], end: Sequence[Dim], strides: Sequence[int]) -> Expr:
    if all(b == 0 for b in begin) and tuple(end) == x.shape and set(strides) <= {1}:
        return x
    return call("strided_slice", (x,), {"begin": tuple(begin), "end": tuple(end), "strides": tuple(strides)})


def broadcast(x: Expr, shape: tuple[Dim, ...], positions: Sequence[int]) -> Expr:
    """`x` with its axes at `positions` of a result of `shape`, repeated along the other axes.

    Inserts axes of size one where axes are missing after the first axis of `x`, and then, if needed, broadcasts. If all
    leading sizes are one, it inserts the leading axes too.
    """
    first = positions[0] if positions else len(shape)
    leading = range(first) if positions and all(d is ONE for d in shape[:first]) else range(first, first)
    missing = [*leading, *(i for i in range(first, len(shape)) if i not in positions)]
    start = 0 if leading else first
    x = insert_axes(x, [i - start for i in missing])
    return x if x.shape == shape else call("broadcast_to", (x,), {"shape": shape})


def combining_primitive(jaxpr: Any, i: int = 0) -> str | None:
    """The name of the single primitive by which a function that combines arrays, element by element, combines the
    `i`-th of them; "second" if it takes the second element; None for anything else, as where arrays meet."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    result = inner.outvars[i]
    operands = inner.invars[i :: len(inner.outvars)]
    if result is operands[1]:
        return "second"
    made = [eqn for eqn in inner.eqns if any(v is result for v in eqn.outvars)]
    if len(made) != 1 or list(map(id, made[0].invars)) != list(map(id, operands)):
        return None
    return made[0].primitive.name
