"""Walks a jaxpr, and turns its equations into expressions.

Nested functions are inlined. Equations that operators can express become operators (`primitives.RULES`). Control flow
runs functions of the module (`jax.control`). Every other equation becomes `call_dps_library("jax.<primitive>", ...)`
with its parameters as attributes. Effectful equations are kept in order as steps of the function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Literal, primitives
from jax.sharding import AxisType

from relax_eg.dtypes import is_key
from relax_eg.errors import OperatorError, RelaxEgError, TraceError
from relax_eg.frontends.blocks import make_function
from relax_eg.frontends.jax.control import Bodies, TracedFunctions, control
from relax_eg.frontends.jax.equation import STATEFUL, JaxprEquation, called_jaxpr
from relax_eg.frontends.jax.primitives import RULES
from relax_eg.frontends.jax.shard_maps import freed_jaxpr
from relax_eg.frontends.jax.sized import SizedParameter, has_sizes
from relax_eg.frontends.sources import is_jax_function, line_of
from relax_eg.frontends.symbolic import SymbolicSizes, is_symbolic, to_dim
from relax_eg.ir.annotations import Annotation, Object, Tensor, Tuple
from relax_eg.ir.expr import (
    BARRIER,
    CONSTANT,
    VAR,
    Expr,
    call_dps_library,
    const,
    constant_value,
    fresh_name,
    tuple_get,
    var,
)
from relax_eg.ir.foreign import Foreign
from relax_eg.ir.module import Function
from relax_eg.ir.origin import Origin, SourceLine
from relax_eg.ops.keys import generator_of, words_of_keys
from relax_eg.ops.record import call
from relax_eg.shapes import Scope

# Parameters that no operator expresses; an equation may become operators only if they are None (or an empty mesh).
_GUARDS = ("accuracy", "out_dtype", "sharding", "out_sharding")

# Parameters whose dtype is stored as text; `backend.lowering.jax_library` reads them back.
DTYPE_PARAMETERS = ("dtype", "new_dtype", "index_dtype", "preferred_element_type")


def annotation_of(aval: Any) -> Annotation:
    """The annotation of a JAX abstract value; an Object for tokens and references."""
    if not isinstance(aval, ShapedArray):
        return Object()
    return Tensor(tuple(map(to_dim, aval.shape)), str(aval.dtype))


def constant(value: Any) -> Expr:
    """A constant of a jaxpr. A PRNG key becomes a call that wraps its data, because the IR has no constant keys.
    TraceError for a constant that is not an array."""
    aval = jax.typeof(value)
    if not isinstance(aval, ShapedArray):
        raise TraceError(
            f"the function closes over a {aval}\n  accepted: arrays, numbers and functions in closures; "
            "pass references as arguments or make them inside"
        )
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        data = const(words_of_keys(value))
        if is_key(str(aval.dtype)):
            return call("random_wrap", (data,), {"impl": generator_of(str(aval.dtype))})
        attrs = (("impl", _plain(jax.random.key_impl(value))),)
        return call_dps_library("jax.random.wrap_key_data", (data,), annotation_of(aval), attrs)
    return const(np.asarray(value, aval.dtype))


Line: TypeAlias = "SourceLine | None"  # None where JAX does not know the line


@dataclass
class Walk:
    """One walk over a jaxpr and everything nested in it.

    - `sizes`: the symbolic sizes of the trace.
    - `taken`: the names of variables in use.
    - `functions`: the functions that the trace adds to the module.
    - `steps`: the effectful calls in program order, each as a pair of the variable of its result and the call.
    - `origins`: the user's line of each expression.
    """

    sizes: SymbolicSizes
    taken: set[str]
    functions: TracedFunctions
    steps: list[tuple[Expr, Expr]] = field(default_factory=list[tuple[Expr, Expr]])
    origins: dict[Expr, Origin] = field(default_factory=dict[Expr, Origin])

    def run(self, jaxpr: Any, consts: Sequence[Expr], args: Sequence[Expr], caller: Line = None) -> list[Expr]:
        """The outputs of `jaxpr` for `args`. `caller`: inside JAX's own functions, the line of the user's call, which
        is recorded for all equations."""
        env: dict[Any, Expr] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
        literals: dict[int, Expr] = {}

        def read(atom: Any) -> Expr:
            if not isinstance(atom, Literal):
                return env[atom]
            if id(atom) not in literals:
                aval: Any = atom.aval
                literals[id(atom)] = const(np.asarray(atom.val, aval.dtype))
            return literals[id(atom)]

        for eqn in jaxpr.eqns:
            operands = [read(a) for a in eqn.invars]
            line = caller or line_of(eqn)
            results = self._inlined(eqn, operands, caller, line)
            if results is None:
                results = self._operators(eqn, operands)
                if results is None:
                    results = self._control(eqn, operands, caller, line)
                if results is None:
                    results = self._opaque(eqn, operands, line)
                if line is not None:
                    self._note(results, operands, line)
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(a) for a in jaxpr.outvars]

    def _inlined(self, eqn: Any, operands: list[Expr], caller: Line, line: Line) -> list[Expr] | None:
        if eqn.primitive.name == "custom_linear_solve":
            return self._solved(eqn, operands, line if caller is None else caller)
        if eqn.primitive.name == "cond" and operands[0].op == CONSTANT:
            return self._chosen(eqn, operands, line if caller is None else caller)
        if eqn.primitive.name == "call_exported":
            return self._exported(eqn, operands, line if caller is None else caller)
        inner = called_jaxpr(eqn) or freed_jaxpr(eqn)
        if inner is None:
            return None
        consts: Sequence[Any] = getattr(inner, "consts", ())
        jaxpr = getattr(inner, "jaxpr", inner)
        if eqn.params.get("differentiated") and eqn.params.get("prevent_cse"):
            operands = self._behind_barrier(operands)
        if caller is None and is_jax_function(jaxpr):
            caller = line
        return self.run(jaxpr, [constant(c) for c in consts], operands, caller)

    def _exported(self, eqn: Any, operands: list[Expr], caller: Line) -> list[Expr] | None:
        """The results of a function that `jax.export` wrote; None if it cannot be read, or computes with 64-bit numbers
        in a trace without them."""
        from relax_eg.frontends.stablehlo.evaluate import exported_function  # which most programs do not need

        try:
            function, wide = exported_function(eqn.params["exported"])
        except RelaxEgError:
            return None
        if wide and not jax.config.values["jax_enable_x64"]:
            return None
        given = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
        closed = jax.make_jaxpr(lambda *xs: function(*xs))(*given)
        return self.run(closed.jaxpr, [constant(c) for c in closed.consts], operands, caller)

    def _behind_barrier(self, operands: list[Expr]) -> list[Expr]:
        """The operands behind an optimization barrier. JAX itself uses one where a derivative recomputes values to save
        memory, so that the recomputation is not merged with the first computation."""
        annotations = Tuple(tuple(o.annotation for o in operands))
        value = call_dps_library(BARRIER, operands, annotations)
        return [tuple_get(value, i) for i in range(len(operands))]

    def _solved(self, eqn: Any, operands: list[Expr], caller: Line) -> list[Expr]:
        """The results of the `solve` function of a custom linear solve. The operands are the constants of four
        functions, of which `solve` is the third, and the right-hand sides."""
        lengths: Any = eqn.params["const_lengths"]
        solve: Any = eqn.params["jaxprs"].solve
        start, total = lengths.matvec + lengths.vecmat, sum(lengths)
        given = [*operands[start : start + lengths.solve], *operands[total:]]
        return self.run(solve.jaxpr, [constant(c) for c in solve.consts], given, caller)

    def _chosen(self, eqn: Any, operands: list[Expr], caller: Line) -> list[Expr]:
        """The results of the branch that a `cond` with a known index takes; an index out of range is clamped, as in
        `jax.lax`."""
        branches: Any = eqn.params["branches"]
        which = min(max(int(constant_value(operands[0])), 0), len(branches) - 1)
        branch = branches[which]
        return self.run(branch.jaxpr, [constant(c) for c in branch.consts], operands[1:], caller)

    def _operators(self, eqn: Any, operands: list[Expr]) -> list[Expr] | None:
        """The equation as operators, or None if operators cannot express it."""
        rule = RULES.get(eqn.primitive.name)
        if rule is None or _has_effects(eqn) or any(_has_sharding(eqn.params.get(g)) for g in _GUARDS):
            return None
        out = [self.annotation_of(v.aval) for v in eqn.outvars]
        if not all(isinstance(a, Tensor) for a in (*out, *(o.annotation for o in operands))):
            return None
        try:
            tensors = tuple(a for a in out if isinstance(a, Tensor))
            params = {key: _without_numpy(value) for key, value in eqn.params.items()}
            found = rule(JaxprEquation(tuple(operands), params, tensors, self.sizes, self._applied))
            if found is None:
                return None
            results = [found] if isinstance(found, Expr) else list(found)
            fitted = [with_jax_annotation(r, a, self.sizes) for r, a in zip(results, out, strict=True)]
        except RelaxEgError:  # the operator does not accept a dtype or a size
            return None
        return None if None in fitted else [f for f in fitted if f is not None]

    def _applied(self, closed: Any, args: Sequence[Expr]) -> list[Expr]:
        """The outputs of a closed jaxpr."""
        return self.run(closed.jaxpr, [constant(c) for c in closed.consts], args)

    def _control(self, eqn: Any, operands: list[Expr], caller: Line, line: Line) -> list[Expr] | None:
        """The equation as a node that runs functions of the module, or None if `control` has no node for it."""
        at = line if caller is None else caller
        out = Tuple(tuple(self.annotation_of(v.aval) for v in eqn.outvars))
        made = Bodies(self.functions, self.sizes, lambda closed, single: self._function(closed, at, single))
        value = control(eqn, operands, out, made)
        if value is None:
            return None
        if _has_effects(eqn):
            value = self._step(value, line)
        return [tuple_get(value, i) for i in range(len(eqn.outvars))]

    def _step(self, value: Expr, line: Line) -> Expr:
        """Adds the effectful `value` as the next step, and returns the variable of its result."""
        self.steps.append((var(fresh_name("ev", self.taken), value.annotation), value))
        if line is not None:
            self.origins.setdefault(value, Origin((line,)))
        return self.steps[-1][0]

    def _function(self, closed: Any, line: Line, single: bool) -> Function:
        """A jaxpr, closed or not, as a function that returns a tuple; with `single`, it returns an only result
        itself."""
        jaxpr, consts = getattr(closed, "jaxpr", closed), getattr(closed, "consts", ())
        names = {"sizes", *(f"x{i}" for i in range(len(jaxpr.invars)))}
        inner = Walk(self.sizes, names, self.functions)
        params = [var(f"x{i}", inner.annotation_of(v.aval)) for i, v in enumerate(jaxpr.invars)]
        outputs = inner.run(jaxpr, [constant(c) for c in consts], params, line)
        return make_function("body", params, inner.steps, outputs, inner.origins, inner.taken, single)

    def annotation_of(self, aval: Any) -> Annotation:
        """Like the function `annotation_of`, with a cache by shape and dtype, because it parses the text of symbolic
        sizes."""
        key = (aval.shape, aval.dtype) if isinstance(aval, ShapedArray) else None
        if key is None:
            return Object()
        found = self.sizes.annotations.get(key)
        if found is None:
            found = self.sizes.annotations[key] = annotation_of(aval)
        return found

    def _opaque(self, eqn: Any, operands: list[Expr], line: Line) -> list[Expr]:
        primitive = eqn.primitive
        out = [self.annotation_of(v.aval) for v in eqn.outvars]
        annotation = Tuple(tuple(out)) if primitive.multiple_results else out[0]
        attrs = [(key, _attribute(key, eqn.params[key])) for key in sorted(eqn.params)]
        if getattr(primitives, f"{primitive.name.replace('-', '_')}_p", None) is not primitive:
            attrs.append(("primitive", Foreign(primitive)))  # not one of JAX's own, so its name does not identify it
        pure = not _has_effects(eqn) and primitive.name not in STATEFUL
        value = call_dps_library(f"jax.{primitive.name}", operands, annotation, attrs, pure)
        if not pure:
            value = self._step(value, line)
        return [tuple_get(value, i) for i in range(len(out))] if primitive.multiple_results else [value]

    def _note(self, results: list[Expr], operands: list[Expr], line: SourceLine) -> None:
        """Records `line` as the origin of the expressions built for an equation. The first equation that builds a node
        keeps it."""
        origin = Origin((line,))
        known = set(operands)
        work = list(results)
        while work:
            e = work.pop()
            if e not in known and e not in self.origins and e.op not in (VAR, CONSTANT):
                self.origins[e] = origin
                work += e.args


def _has_effects(eqn: Any) -> bool:
    """Whether an equation has effects; the use of a mesh axis by name does not count."""
    return any(type(e).__name__ != "NamedAxisEffect" for e in eqn.effects)


def with_jax_annotation(result: Expr, wanted: Annotation, sizes: SymbolicSizes) -> Expr | None:
    """`result` with the annotation that JAX gives it; None if it does not fit.

    Sizes that differ in form but are equal at all tested points are rewritten by a reshape that moves nothing. If the
    numbers of elements differ in form too, a slice that leaves nothing out is used instead.
    """
    found = result.annotation
    if found == wanted:
        return result
    if not (isinstance(found, Tensor) and isinstance(wanted, Tensor)) or found.dtype != wanted.dtype:
        return None
    if found.shape is None or wanted.shape is None or found.ndim != wanted.ndim:
        return None
    names = sorted({v for d in (*found.shape, *wanted.shape) for v in d.variables})
    for at in _points(names, sizes):
        if [d.evaluate(at) for d in found.shape] != [d.evaluate(at) for d in wanted.shape]:
            return None
    try:
        return call("reshape", (result,), {"shape": wanted.shape})
    except OperatorError:
        zeros, ones = (0,) * len(wanted.shape), (1,) * len(wanted.shape)
        return call("strided_slice", (result,), {"begin": zeros, "end": wanted.shape, "strides": ones})


def _points(names: Sequence[str], sizes: SymbolicSizes) -> list[dict[str, int]]:
    """Some values of the size variables that satisfy the declared constraints."""
    declared = sizes.constraints
    if declared:
        return Scope.from_constraints(declared).points(names, 5)
    return [{name: base + 3 * i for i, name in enumerate(names)} for base in (1, 2, 5, 24, 97)]


def _without_numpy(value: Any) -> Any:
    """A parameter with Python integers in place of numpy integers, which JAX leaves in some parameters."""
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, tuple) and value:
        items = list(map(_without_numpy, value))  # type: ignore[reportUnknownArgumentType]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)  # type: ignore[reportUnknownVariableType]
    return value  # type: ignore[reportUnknownVariableType]


def _has_sharding(value: Any) -> bool:
    """Whether a guarded parameter has an effect. Transposed conversions carry the sharding of the operand; over a mesh
    without axes it has none. One that splits nothing has none over axes that XLA's partitioner is free to use."""
    mesh = getattr(value, "mesh", None)
    if value is None or mesh is None or mesh.empty:
        return value is not None and mesh is None
    explicit = any(t == AxisType.Explicit for t in mesh.axis_types)
    return explicit or any(names is not None for names in value.spec)


def _attribute(key: str, value: Any) -> Any:
    """A parameter as an attribute: plain values and tuples of them as they are, sizes as `Dim`, others as `Foreign`."""
    if isinstance(value, np.dtype) and key in DTYPE_PARAMETERS:
        return value.name
    return _plain(value)


def _plain(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.integer):
        return int(value)
    if is_symbolic(value):
        return to_dim(value)
    if type(value) is tuple:
        return tuple(map(_plain, value))
    return Foreign(SizedParameter(value) if has_sizes(value) else value)
