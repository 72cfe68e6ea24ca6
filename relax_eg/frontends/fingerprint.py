"""The digest of a jaxpr's exact content, which is the same in every process.

The digest covers everything that a walk over the jaxpr reads: equations with their parameters, abstract values, the
bits of constants and literals, nested jaxprs, and the user's line of each equation, since modules name these lines. It
leaves out derivatives that the user defines: a walk does not read them, and a program uses those of its own process.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import Any, cast

import jax
import numpy as np
from jax.core import ShapedArray, Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Primitive, primitives

from relax_eg.frontends.jax.sized import SizedParameter
from relax_eg.frontends.sources import is_jax_function, line_of
from relax_eg.frontends.symbolic import is_symbolic
from relax_eg.ir.expr import ConstantData
from relax_eg.ir.foreign import Foreign
from relax_eg.ir.tokens import NoContentError, array_token, class_name, is_library_class, raise_no_content, token
from relax_eg.limits import FEW_KEPT
from relax_eg.memo import Memo
from relax_eg.ops.keys import generator_of, is_key, jax_dtype, words_of_keys

# JAX settings that change what is traced, or how it runs, without appearing in the jaxpr.
_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_numpy_dtype_promotion",
    "jax_threefry_partitionable",
)

# Parameters that only derivatives and batching read.
_DERIVATIVES = {
    "custom_vmap_call": ("rule", "in_tree", "out_tree"),
    "custom_jvp_call": ("jvp_jaxpr_fun", "jvp_jaxpr_thunk"),
    "custom_vjp_call": ("fwd_jaxpr_thunk", "bwd", "out_trees"),
}

# By the identity of a primitive: the primitive, and whether it is JAX's own. JAX has a few hundred primitives.
_PRIMITIVES = Memo[int, tuple[Any, bool]](1 << 12)


def settings() -> tuple[tuple[str, str], ...]:
    """The JAX settings of this process on which the meaning of a program depends, as (name, value) pairs."""
    return tuple((name, repr(getattr(jax.config, name, None))) for name in _SETTINGS)


class Fingerprint:
    """The digest of a closed jaxpr, and an index of its parts by their content.

    One process can name a part that a module uses, and another process whose jaxpr has the same digest can find this
    part by the name (`ir.packed.ExternalObjects`).

    NoContentError if the content of a part of the jaxpr cannot be read: a callback, an object of another library.
    """

    def __init__(self, closed: Any) -> None:
        self._seen: dict[tuple[Any, int], tuple[Any, Any]] = {}
        self._things: dict[str, Any] = {}
        self._arrays: dict[str, Any] = {}
        self.digest: str = self._jaxpr(closed, True)
        self._seen.clear()  # its entries keep objects alive that are no longer needed

    # Parts by their content.

    def name_of(self, foreign: Foreign) -> Any:
        """Plain data from which `foreign_of` finds an equal object. NoContentError if the jaxpr has no such object."""
        value = foreign.value
        if isinstance(value, SizedParameter):
            return ["sized", self._name(value.value)]
        return ["plain", self._name(value)]

    def foreign_of(self, name: Any) -> Foreign:
        kind, inner = name
        value = self._named(inner)
        return Foreign(SizedParameter(value) if kind == "sized" else value)

    def array_name(self, data: ConstantData) -> str | None:
        """The name of the jaxpr's constant with the bits of `data`, or None if there is none."""
        found = repr(array_token(data.array))
        return found if found in self._arrays else None

    def array_of(self, name: str) -> np.ndarray[Any, Any]:
        return self._arrays[name]

    def _name(self, value: Any) -> Any:
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) in (tuple, frozenset):
            items = [self._name(v) for v in value]
            return [type(value).__name__, *(items if type(value) is tuple else sorted(items, key=repr))]
        found = repr(token(value, self._special))
        if found not in self._things:
            raise NoContentError(f"the {class_name(type(value))} of a library call is no parameter of the program")
        return ["thing", found]

    def _named(self, name: Any) -> Any:
        if not isinstance(name, list):
            return name
        kind, *items = cast("list[Any]", name)
        if kind == "thing":
            return self._things[items[0]]
        return {"tuple": tuple, "frozenset": frozenset}[kind](map(self._named, items))

    # Tokens.

    def _jaxpr(self, value: Any, lines: bool) -> str:
        """The digest of a jaxpr, closed or not. `lines`: whether the digest covers the user's lines."""
        return self._once(("jaxpr", lines), value, lambda value: self._jaxpr_digest(value, lines))

    def _once(self, role: Any, value: Any, make: Callable[[Any], Any]) -> Any:
        """`make(value)`, computed once for each `role` and `value`, because the jaxprs of layers share many objects."""
        known = self._seen.get((role, id(value)))
        if known is None:
            # The entry keeps `value` alive, so that no other object gets its id.
            known = self._seen[role, id(value)] = (value, make(value))
        return known[1]

    def _jaxpr_digest(self, value: Any, lines: bool) -> str:
        jaxpr = getattr(value, "jaxpr", value)
        number: dict[Any, int] = {}
        for v in (*jaxpr.constvars, *jaxpr.invars):
            number[v] = len(number)
        rows: list[Any] = [
            type(value).__name__,
            len(jaxpr.constvars),
            [self._aval(v.aval) for v in number],
            [self._constant(c) for c in getattr(value, "consts", ())],
        ]
        for eqn in jaxpr.eqns:
            line = line_of(eqn) if lines else None
            atoms = [self._literal(a) if isinstance(a, Literal) else number[a] for a in eqn.invars]
            unread = _DERIVATIVES.get(eqn.primitive.name, ())
            inner = lines and line is None
            params = [(k, self._param(v, lines, inner)) for k, v in sorted(eqn.params.items()) if k not in unread]
            outs = [self._aval(v.aval) for v in eqn.outvars]
            effects = sorted(type(e).__name__ for e in eqn.effects) if eqn.effects else None
            rows.append((self._primitive(eqn.primitive), atoms, params, outs, effects, line and tuple(line)))
            for v in eqn.outvars:
                number[v] = len(number)
        rows.append([self._literal(a) if isinstance(a, Literal) else number[a] for a in jaxpr.outvars])
        return blake2b(repr(rows).encode(), digest_size=32).hexdigest()

    def _param(self, value: Any, lines: bool, inner: bool) -> Any:
        """The token of an equation's parameter. `inner`: whether the digests of nested functions of JAX cover lines;
        they do if `lines` is set and the equation itself has no line."""
        kind = type(value)
        if value is None or kind is int or kind is str or kind is bool:
            return value
        if kind is tuple:
            return ("tuple", *[self._param(v, lines, inner) for v in value])
        if isinstance(value, (ClosedJaxpr, Jaxpr)):
            own = is_jax_function(getattr(value, "jaxpr", value))
            found = ("jaxpr", self._jaxpr(value, lines and (inner or not own)), own)
            self._things.setdefault(repr(self._special(value)), value)
            return found
        return self._once("thing", value, self._thing)

    def _thing(self, value: Any) -> Any:
        found = token(value, self._special)
        self._things.setdefault(repr(found), value)
        return found

    def _special(self, value: Any) -> Any:
        """The token of an object that JAX defines. Refuses objects whose content is unknown."""
        if is_symbolic(value):
            return ("size", str(value))
        if isinstance(value, (ClosedJaxpr, Jaxpr)):
            return ("jaxpr", self._jaxpr(value, False))
        if isinstance(value, (Tracer, jax.Array)):
            return self._constant(value)
        for kind, content in _CONTENT:
            if isinstance(value, kind):
                return (class_name(type(value)), *[token(v, self._special) for v in content(value)])
        if isinstance(value, Primitive):
            return self._primitive(value)
        if (
            getattr(value, "type", None) is jax.dtypes.prng_key
            and is_key(str(value))
            and value == jax_dtype(str(value))
        ):
            return ("key", generator_of(str(value)))
        if is_library_class(type(value)) and (slots := _slots(type(value))):
            return (class_name(type(value)), *[(s, token(getattr(value, s), self._special)) for s in slots])
        if _is_own_function(value):
            return ("function", value.__module__, value.__qualname__)
        if type(value).__name__ == "UnspecifiedValue":  # JAX's singleton for "not specified"
            return "UnspecifiedValue"
        return raise_no_content(value)

    def _primitive(self, primitive: Any) -> Any:
        known = _PRIMITIVES.get(id(primitive))
        if known is None:
            known = _PRIMITIVES[id(primitive)] = (primitive, _is_own_primitive(primitive))
        if not known[1]:
            raise NoContentError(f"what the primitive {primitive.name} does is not JAX's own")
        self._things.setdefault(repr(("primitive", primitive.name)), primitive)
        return ("primitive", primitive.name)

    def _aval(self, aval: Any) -> Any:
        return self._once("aval", aval, self._aval_digest)

    def _aval_digest(self, aval: Any) -> str:
        # A short digest, because every equation names several abstract values.
        return blake2b(repr(self._special(aval)).encode(), digest_size=16).hexdigest()

    def _constant(self, value: Any) -> Any:
        return self._once("constant", value, self._constant_token)

    def _constant_token(self, value: Any) -> Any:
        if isinstance(value, Tracer):
            raise NoContentError("a value of a surrounding transformation has no content yet")
        aval: Any = jax.typeof(value)
        if not isinstance(aval, ShapedArray):
            raise_no_content(value)
        key = jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key)
        array = words_of_keys(value) if key else np.asarray(value, aval.dtype)
        found = array_token(array)
        self._arrays.setdefault(repr(found), array)
        return ("constant", self._aval(aval), found)

    def _literal(self, literal: Any) -> Any:
        return self._once("literal", literal, self._literal_token)

    def _literal_token(self, literal: Any) -> Any:
        aval: Any = literal.aval
        return ("literal", self._aval(aval), array_token(np.asarray(literal.val, aval.dtype)))


def _tree(structure: Any) -> tuple[Any, ...]:
    found = structure.node_data()
    leaf = structure.num_leaves == 1 and structure.num_nodes == 1
    return (leaf, None if found is None else (class_name(found[0]), found[1]), structure.children())


def _mesh(mesh: Any) -> tuple[Any, ...]:
    devices = [] if mesh.empty else [(d.platform, d.id, d.process_index) for d in mesh.devices.flat]
    return (mesh.axis_names, tuple(mesh.shape.values()), mesh.axis_types, devices)


def _abstract_mesh(mesh: Any) -> tuple[Any, ...]:
    return (mesh.axis_names, mesh.axis_sizes, mesh.axis_types, repr(getattr(mesh, "abstract_device", None)))


def _partition(spec: Any) -> tuple[Any, ...]:
    return (tuple(spec), *(getattr(spec, k, None) for k in ("unreduced", "reduced")))


def _named_sharding(sharding: Any) -> tuple[Any, ...]:
    return (sharding.mesh, sharding.spec, sharding.memory_kind)


@lru_cache(FEW_KEPT)
def _slots(kind: type) -> tuple[str, ...]:
    """The attributes of a class whose instances have only `__slots__`; empty if the class does not guarantee that."""
    if any("__slots__" not in vars(k) for k in kind.__mro__[:-1]):
        return ()
    found = [s for k in kind.__mro__[:-1] for s in vars(k)["__slots__"]]
    return tuple(s for s in found if not (s.startswith("__") and s.endswith("__")))


_CONTENT: tuple[tuple[type, Callable[[Any], tuple[Any, ...]]], ...] = (
    (jax.tree_util.PyTreeDef, _tree),
    (jax.sharding.Mesh, _mesh),
    (jax.sharding.AbstractMesh, _abstract_mesh),
    (jax.sharding.PartitionSpec, _partition),
    (jax.sharding.NamedSharding, _named_sharding),
    (type(jax.sharding.PartitionSpec.UNCONSTRAINED), lambda _: ()),  # a singleton
)


def _is_own_function(value: Any) -> bool:
    """Whether `value` is the function that a JAX module holds under its qualified name."""
    if not inspect.isfunction(value) or not value.__module__.startswith("jax."):
        return False
    return getattr(sys.modules.get(value.__module__), value.__qualname__, None) is value


def _is_own_primitive(primitive: Any) -> bool:
    """Whether a primitive is JAX's own; within one version of JAX, the name of such a primitive identifies it."""
    if getattr(primitives, f"{primitive.name.replace('-', '_')}_p", None) is primitive:
        return True
    mine = [m for name, m in list(sys.modules.items()) if name.startswith("jax.")]
    return any(v is primitive for m in mine for v in list(getattr(m, "__dict__", {}).values()))
