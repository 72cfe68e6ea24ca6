"""Reads jaxprs as nodes (`canonical.nodes`), equation by equation, including nested functions."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray, Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from relax_eg.frontends.canonical.forms import Forms
from relax_eg.frontends.canonical.nodes import Form, Nodes
from relax_eg.frontends.jax.equation import STATEFUL, called_jaxpr
from relax_eg.frontends.symbolic import is_symbolic

# Parameters that do not change what is computed.
WITHOUT_MEANING = frozenset(("name", "weak_type", "linear", "unroll", "_split_transpose"))


def canonical_form(nodes: Nodes, closed: Any, sizes: Callable[[Any], Any] | None = None) -> Form:
    """Returns the canonical form of a closed jaxpr. `sizes(n)` returns the number of a symbolic size."""
    walk = CanonicalWalk(nodes, sizes)
    results = walk.applied(closed, walk.inputs(closed))
    return Form(tuple(results), tuple(walk.effects), walk.types(closed))


class CanonicalWalk:
    """A walk over a jaxpr and its nested jaxprs.

    - `effects`: the node numbers of the effects so far, in order.
    """

    def __init__(self, nodes: Nodes, sizes: Callable[[Any], Any] | None) -> None:
        self._nodes, self._sizes = nodes, sizes
        self.effects: list[int] = []
        self._depth = 0
        self._reading: list[int] = []
        self.forms = Forms(nodes, self.size, self.token)

    def inputs(self, closed: Any) -> list[int]:
        """The node numbers of the parameters of the closed jaxpr that is read."""
        invars = enumerate(closed.jaxpr.invars)
        return [self._nodes.add(("input", i), (), *self.forms.type_of(v.aval)) for i, v in invars]

    def types(self, closed: Any) -> tuple[Hashable, ...]:
        """The types of its results."""
        return tuple((*self.forms.type_of(a), bool(getattr(a, "weak_type", False))) for a in closed.out_avals)

    def environment(self, function: Any, args: Sequence[Any]) -> tuple[Any, dict[Any, Any]]:
        """A jaxpr, closed or not, without its constants, and what its variables are for these operands."""
        if not isinstance(function, ClosedJaxpr):
            return function, dict(zip([*function.constvars, *function.invars], args, strict=True))
        jaxpr: Any = function.jaxpr
        values = [*map(self._nodes.constant, function.consts), *args]
        return jaxpr, dict(zip([*jaxpr.constvars, *jaxpr.invars], values, strict=True))

    def applied(self, function: Any, args: Sequence[int]) -> list[int]:
        """The results of a jaxpr, closed or not, for these operands."""
        jaxpr, env = self.environment(function, args)
        read = functools.partial(self._read, env)
        for eqn in jaxpr.eqns:
            env.update(zip(eqn.outvars, self.equation(eqn, [read(a) for a in eqn.invars]), strict=True))
        return [read(a) for a in jaxpr.outvars]

    def _read(self, env: Mapping[Any, int], atom: Any) -> int:
        return self.literal(atom) if isinstance(atom, Literal) else env[atom]

    def literal(self, atom: Any) -> int:
        """The node number of a number, or of an array that an equation holds."""
        if isinstance(atom.val, (jax.Array, Tracer)):
            return self._nodes.constant(atom.val)
        return self._nodes.small_array(np.asarray(atom.val, atom.aval.dtype))

    def size(self, n: Any) -> Any:
        return self._sizes(n) if self._sizes is not None and type(n) is not int and is_symbolic(n) else n

    # --- equations ---

    def equation(self, eqn: Any, args: list[int]) -> list[int]:
        name, params = eqn.primitive.name, eqn.params
        if name == "dim_as_value" and isinstance(n := self.size(params["dim"]), int):
            return [self._nodes.small_array(np.asarray(n, eqn.outvars[0].aval.dtype), eqn)]
        if (function := called_jaxpr(eqn)) is not None:
            return self.applied(function, args)
        if (loop := _CONTROL.get(name)) is not None:
            return loop(self, eqn, args)
        if eqn.effects or name in STATEFUL:
            return self._effect(eqn, (name, self._params(params)), args)
        if len(eqn.outvars) == 1:
            shape, dtype = self.forms.type_of(eqn.outvars[0].aval)
            found = self.forms.of(eqn, args, shape, dtype)
            if found is not None:
                return [found]
        return self._node(eqn, (name, self._params(params)), args)

    def _node(self, eqn: Any, key: Hashable, args: Sequence[int]) -> list[int]:
        kinds = [self.forms.type_of(v.aval) for v in eqn.outvars]
        if len(kinds) == 1:
            return [self._nodes.add(key, args, *kinds[0], eqn)]
        whole = self._nodes.add(key, args, (), None, eqn)
        return [self._nodes.add(("item", i), [whole], *kind, eqn) for i, kind in enumerate(kinds)]

    def _effect(self, eqn: Any, key: Hashable, args: Sequence[int]) -> list[int]:
        """Adds a node with an effect. Equal equations get different nodes, because each runs, in order."""
        key = ("effect", len(self.effects), self._depth, key)
        self.effects.append(self._nodes.add(key, args, (), None, eqn))
        kinds = [self.forms.type_of(v.aval) for v in eqn.outvars]
        return [self._nodes.add(("item", i), [self.effects[-1]], *k, eqn) for i, k in enumerate(kinds)]

    # --- nested functions ---

    def _inside(self, function: Any, before: Sequence[int], kinds: Sequence[tuple[Any, Any]]) -> _NestedFunction:
        """A nested function. `before`: loop-invariant operands; `kinds`: the types of its other parameters."""
        params = [self._nodes.add(("parameter", self._depth, i, *k), (), *k) for i, k in enumerate(kinds)]
        outer, self.effects = self.effects, []
        self._depth += 1
        try:
            results = self.applied(function, [*before, *params])
            return _NestedFunction(params, results, self.effects)
        finally:
            self._depth -= 1
            self.effects = outer

    def _loop(self, eqn: Any, key: Hashable, args: Sequence[int], inside: Sequence[_NestedFunction]) -> list[int]:
        """The node of an equation that runs functions; the results of these functions are among its operands."""
        counts = tuple((len(f.results), len(f.effects)) for f in inside)
        all_args = [*args, *(i for f in inside for i in (*f.results, *f.effects))]
        make = self._effect if eqn.effects else self._node
        return make(eqn, (key, len(args), counts), all_args)

    def _scan(self, eqn: Any, args: list[int]) -> list[int]:
        p = eqn.params
        consts, carried = p["num_consts"], p["num_carry"]
        length = self.size(p["length"])
        kinds = [self.forms.type_of(v.aval) for v in p["jaxpr"].jaxpr.invars[consts:]]
        body = self._inside(p["jaxpr"], args[:consts], kinds)
        key = ("scan", carried, length, bool(p["reverse"]))
        return self._loop(eqn, key, args[consts:], [body])

    def _while(self, eqn: Any, args: list[int]) -> list[int]:
        p = eqn.params
        tested, run = p["cond_nconsts"], p["body_nconsts"]
        carry = args[tested + run :]
        kinds = [self.forms.type_of(v.aval) for v in eqn.outvars]
        body = self._inside(p["body_jaxpr"], args[tested : tested + run], kinds)
        # A carried value that a step does not change, such as the end of a `fori_loop`, is loop-invariant.
        kept = [r == q for r, q in zip(body.results, body.params, strict=True)]
        if not any(kept) or eqn.effects:
            cond = self._inside(p["cond_jaxpr"], args[:tested], kinds)
            return self._loop(eqn, "while", carry, [cond, body])
        moving = [i for i, k in enumerate(kept) if not k]
        params = [
            self._nodes.add(("parameter", self._depth, i, *kinds[j]), (), *kinds[j]) for i, j in enumerate(moving)
        ]
        given = list(carry)
        for i, q in zip(moving, params, strict=True):
            given[i] = q
        self._depth += 1
        results = self.applied(p["body_jaxpr"], [*args[tested : tested + run], *given])
        (test,) = self.applied(p["cond_jaxpr"], [*args[:tested], *given])
        self._depth -= 1
        left = [results[i] for i in moving]
        start = [carry[i] for i in moving]
        steps = self._steps(test, params, left, start)
        if steps is None:
            key, inside = "while", [_NestedFunction(params, [test], []), _NestedFunction(params, left, [])]
        else:  # JAX traces the loop as a `scan` if it knows the number of steps
            key, inside = ("scan", len(moving), steps, False), [_NestedFunction(params, left, [])]
        counts = tuple((len(f.results), 0) for f in inside)
        all_args = [*start, *(r for f in inside for r in f.results)]
        whole = self._nodes.add((key, len(start), counts), all_args, (), None, eqn)
        found = list(carry)
        for i, j in enumerate(moving):
            found[j] = self._nodes.add(("item", i), [whole], *kinds[j], eqn)
        if len(moving) == 1:
            found[moving[0]] = self._nodes.add((key, 1, counts), all_args, *kinds[moving[0]], eqn)
        return found

    def _steps(self, test: int, params: list[int], results: list[int], start: list[int]) -> int | None:
        """The number of steps of a loop that counts up by 1 from a known to a known number; None for other loops."""
        node = self._nodes.all[test]
        if not (isinstance(node.key, tuple) and node.key[0] == "lt" and node.args[0] in params):
            return None
        i, end = params.index(node.args[0]), self._nodes.all[node.args[1]].value
        step, begin = self._nodes.all[results[i]], self._nodes.all[start[i]].value
        counts = isinstance(step.key, tuple) and step.key[0] == "add" and step.args[0] == params[i]
        by = self._nodes.all[step.args[1]].value if counts else None
        if end is None or begin is None or by is None or end.shape or int(by) != 1:
            return None
        return max(int(end) - int(begin), 0)

    def _cond(self, eqn: Any, args: list[int]) -> list[int]:
        branches = eqn.params["branches"]
        which = self._nodes.all[args[0]].value
        if which is not None:
            return self.applied(branches[min(max(int(which), 0), len(branches) - 1)], args[1:])
        return self._loop(eqn, "cond", args[:1], [self._inside(b, args[1:], ()) for b in branches])

    # --- parameters ---

    def _params(self, params: Mapping[str, Any]) -> Hashable:
        return tuple((k, self.token(v)) for k, v in sorted(params.items()) if k not in WITHOUT_MEANING)

    def token(self, value: Any) -> Hashable:
        """A hashable value that is equal for parameters with the same meaning."""
        kind = type(value)
        if value is None or kind in (int, str):
            return value
        if isinstance(value, np.integer):
            return int(value)
        if kind in (bool, float, complex):  # these may equal integers in Python, so the token has the type
            return kind.__name__, repr(value)
        if is_symbolic(value):
            return self.size(value)
        if isinstance(value, (tuple, list)):
            return kind.__name__, tuple(map(self.token, value))  # type: ignore[reportUnknownArgumentType]
        if kind is dict:
            return "dict", tuple((self.token(k), self.token(v)) for k, v in value.items())
        if isinstance(value, (ClosedJaxpr, Jaxpr)):
            jaxpr: Any = getattr(value, "jaxpr", value)
            held = [] if isinstance(value, ClosedJaxpr) else jaxpr.constvars
            inside = self._inside(value, (), [self.forms.type_of(v.aval) for v in (*held, *jaxpr.invars)])
            return "function", tuple(inside.results), tuple(inside.effects), len(inside.params)
        if isinstance(value, (np.ndarray, np.generic, jax.Array)):
            return "array", self._nodes.constant(value)
        if isinstance(value, (ShapedArray, jax.ShapeDtypeStruct)):
            return kind.__name__, self.forms.type_of(value)
        return self._object(value)

    def _object(self, value: Any) -> Hashable:
        """The token of an object: a Python function by its code and the values it holds, a dataclass by its fields, any
        other object by its own `==`, or by `id` if it is not hashable."""
        if id(value) in self._reading:
            return "inside", self._reading.index(id(value))
        parts: Any = None
        if isinstance(value, types.FunctionType):
            cells = [_content(c) for c in value.__closure__ or ()]
            parts = value.__code__, [*cells, value.__defaults__, value.__kwdefaults__]
        elif isinstance(value, types.MethodType):
            parts = "method", [value.__func__, value.__self__]
        elif isinstance(value, functools.partial):
            parts = "partial", [value.func, value.args, value.keywords]
        elif is_dataclass(value) and not isinstance(value, type):
            parts = type(value), [getattr(value, f.name) for f in fields(value) if f.compare]
        if parts is not None:
            self._reading.append(id(value))
            try:
                return parts[0], tuple(map(self.token, parts[1]))
            finally:
                self._reading.pop()
        try:
            hash(value)
        except TypeError:
            self._nodes.kept_objects.append(value)
            return "object", id(value)
        return type(value), value


@dataclass(frozen=True, slots=True)
class _NestedFunction:
    """The node numbers of the parameters, results and effects of a nested function."""

    params: list[int]
    results: list[int]
    effects: list[int]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the cell is still empty
        return None


_CONTROL: Mapping[str, Callable[[CanonicalWalk, Any, list[int]], list[int]]] = {
    "scan": CanonicalWalk._scan,  # pyright: ignore[reportPrivateUsage]
    "while": CanonicalWalk._while,  # pyright: ignore[reportPrivateUsage]
    "cond": CanonicalWalk._cond,  # pyright: ignore[reportPrivateUsage]
}
