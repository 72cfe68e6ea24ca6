"""Library records: routines of other libraries, each with the program that says what it computes.

`call_dps_library(name, ...)` of a registered name means its *definition*: the pattern program of the rule that the
record was made by (`RuleSet.library`). The interpreter evaluates it, annotations follow from it, and it runs in the
routine's place where that is missing.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from relax_eg.errors import LibraryError, OperatorError
from relax_eg.ir.annotations import Annotation, Tensor, Tuple, substitute
from relax_eg.ir.expr import (
    CALL_DPS_LIBRARY,
    CONSTANT,
    SHAPE,
    TUPLE_GET,
    Expr,
    call_dps_library,
    constant_value,
    node,
    postorder,
    rebuild,
    tuple_,
    tuple_get,
)
from relax_eg.ops.record import TABLE, call, get
from relax_eg.shapes import Dim

Array = np.ndarray[Any, Any]
FirstRun = Literal["check", "fall back", "trust"]
FIRST_RUN: tuple[FirstRun, ...] = ("check", "fall back", "trust")
FFI = "ffi:"
PLATFORMS = ("cpu", "gpu", "tpu")
EXECUTIONS = ("whole", "kernels")


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a routine needs: packages, as `name` or `name >= version`; of the others one of those named, if any is."""

    packages: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    executions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Definition:
    """What a routine computes on operands of certain ranks and dtypes: `results` over the variables `params`, whose
    sizes are variables too. `many`: the routine gives a tuple. `instance`: gives the rule's instance, for samples."""

    params: tuple[Expr, ...]
    results: tuple[Expr, ...]
    many: bool
    instance: Any = field(default=None, compare=False)


Form = Callable[[tuple[Annotation, ...], Mapping[str, Any]], Definition]
# Sizes near those given, small enough to be tried, and random operands of these sizes; None where there are none.
Sample = Callable[[Definition, Mapping[str, int]], "tuple[dict[str, int], dict[str, Array]] | None"]


class Library:
    """One routine; `RuleSet.library` makes them.

    `target`: a callable on JAX arrays, `"module:name"`, or `"ffi:name"` of a registered `jax.ffi` target; it gets the
    call's attributes and sizes as keywords. `cost`: how many times faster it is than its pattern as one kernel is
    predicted to be, or a function of flops, bytes and profile to seconds, or None. `sizes`: names of size attributes,
    with whether each is one number; `pattern`: the function whose program it computes; `form` gives the definition for
    operands annotated so; `sample` gives random operands to try it on, `operators` the names of its
    pattern's operators.
    """

    def __init__(
        self,
        name: str,
        target: Callable[..., Any] | str,
        requires: Requirements,
        cost: float | Callable[..., float] | None,
        first_run: FirstRun,
        attributes: tuple[str, ...],
        sizes: tuple[tuple[str, bool], ...],
        pattern: Callable[..., Any],
        where: str,
        form: Form,
        sample: Sample,
        operators: Callable[[], frozenset[str]],
    ) -> None:
        self.name, self.target, self.requires, self.cost = name, target, requires, cost
        self.first_run, self.attributes, self.sizes, self.where = first_run, attributes, sizes, where
        self.pattern, self.form, self.sample, self.operators = pattern, form, sample, operators
        self._definitions: dict[Any, Definition] = {}

    def __repr__(self) -> str:
        return f"<library {self.name}>"

    @property
    def size_names(self) -> frozenset[str]:
        """The attributes that are sizes."""
        return frozenset(n for n, _ in self.sizes)

    @property
    def content(self) -> tuple[Any, ...]:
        """What tells this record from others, the pattern program apart: what is cached of a search goes by it."""
        return self.name, self.target, self.requires, self.cost, self.first_run

    def definition(self, operands: Sequence[Annotation], attrs: Mapping[str, Any]) -> Definition:
        """The definition for operands of these ranks and dtypes, and these attributes. OperatorError."""
        static = {k: attrs[k] for k in self.attributes}
        counts = tuple(len(attrs[n]) for n, _ in self.sizes)
        key = (tuple((a.ndim, a.dtype) if isinstance(a, Tensor) else None for a in operands), repr(static), counts)
        found = self._definitions.get(key)
        if found is None:
            found = self._definitions[key] = self.form(tuple(operands), attrs)
        return found

    def sizes_at(self, operands: Sequence[Annotation], attrs: Mapping[str, Any]) -> tuple[Definition, dict[str, Dim]]:
        """The definition, and what its size variables are for these operands. OperatorError."""
        definition = self.definition(operands, attrs)
        found: dict[str, Dim] = {}
        for p, a in zip(definition.params, operands, strict=True):
            if not isinstance(a, Tensor) or a.shape is None:
                raise OperatorError(f"library `{self.name}`: operand `{p.attr('name')}` is {a}; its shape is needed")
            for wanted, given in zip(p.shape, a.shape, strict=True):
                if str(wanted) in wanted.variables:
                    found.setdefault(str(wanted), given)
        for name, single in self.sizes:
            values = attrs[name]
            found.update({name: values[0]} if single else {f"{name}__{i}": d for i, d in enumerate(values)})
        return definition, found

    def annotation(self, operands: Sequence[Annotation], attrs: Mapping[str, Any]) -> Annotation:
        """The annotation of what a call fills. OperatorError where the routine does not take such operands."""
        definition, sizes = self.sizes_at(operands, attrs)
        made = tuple(substitute(r.annotation, sizes) for r in definition.results)
        return Tuple(made) if definition.many else made[0]

    def keywords(self, attrs: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes of a call as the target gets them; `sizes` gives the size variables that they mention."""
        found = {k: attrs[k] for k in self.attributes}
        for name, single in self.sizes:
            values = tuple(d.evaluate(sizes) for d in attrs[name])
            found[name] = values[0] if single else values
        return found

    def function(self, results: Annotation, sizes: Mapping[str, Any]) -> Callable[..., Any]:
        """The target as a callable, imported. LibraryError where it is not there. `results` annotates what it fills."""
        if callable(self.target):
            return self.target
        if self.target.startswith(FFI):
            import jax

            fields = results.fields if isinstance(results, Tuple) else (results,)
            made = [jax.ShapeDtypeStruct([d.evaluate(sizes) for d in a.shape], a.dtype) for a in fields]  # type: ignore[union-attr]
            return jax.ffi.ffi_call(self.target.removeprefix(FFI), made if isinstance(results, Tuple) else made[0])
        return _imported(self)

    def run(self, call: Expr, arrays: Sequence[Any], sizes: Mapping[str, Any]) -> Any:
        """What the target gives for a call on JAX arrays; `sizes` gives the size variables of its attributes."""
        import jax.numpy as jnp

        told = dict(sizes)
        for e, a in zip(call.args, arrays, strict=True):
            shape = (e.annotation.shape or ()) if isinstance(e.annotation, Tensor) else ()
            told.update({str(d): n for d, n in zip(shape, a.shape, strict=False) if str(d) in d.variables})
        target = self.function(call.annotation, told)
        return target(*map(jnp.asarray, arrays), **self.keywords(dict(call.attr("attrs")), told))

    def run_definition(self, call: Expr, arrays: Sequence[Any], sizes: Mapping[str, Any]) -> Any:
        """What the definition gives for a call on JAX arrays."""
        attrs = dict(call.attr("attrs"))
        definition = self.definition([Tensor(ndim=a.ndim, dtype=str(a.dtype)) for a in arrays], attrs)
        told: dict[str, Any] = {}
        for p, a in zip(definition.params, arrays, strict=True):
            told.update({str(d): n for d, n in zip(p.shape, a.shape, strict=True) if str(d) in d.variables})
        for name, single in self.sizes:
            values = [d.evaluate(sizes) for d in attrs[name]]
            told |= {name: values[0]} if single else {f"{name}__{i}": n for i, n in enumerate(values)}
        made = on_jax(definition.results, dict(zip(definition.params, arrays, strict=True)), told)
        return tuple(made) if definition.many else made[0]


def on_jax(roots: Sequence[Expr], env: Mapping[Expr, Any], sizes: Mapping[str, Any]) -> list[Any]:
    """Expressions of operators on JAX arrays, each operator by its lowering."""
    import jax.numpy as jnp

    done: dict[Expr, Any] = {e: jnp.asarray(x) for e, x in env.items()}
    for e in postorder(roots, stop=done.__contains__):
        if e in done:
            continue
        args = [done[a] for a in e.args]
        if e.op == CONSTANT:
            done[e] = jnp.asarray(constant_value(e))
        elif e.op == TUPLE_GET:
            done[e] = args[0][e.attr("index")]
        else:
            done[e] = get(e.op).jax_function()(*args, **{k: _at(v, sizes) for k, v in e.attrs})
    return [done[r] for r in roots]


def _at(value: Any, sizes: Mapping[str, Any]) -> Any:
    if isinstance(value, Dim):
        return value.value if value.is_const else value.evaluate(sizes)
    return tuple(_at(v, sizes) for v in value) if isinstance(value, tuple) else value  # type: ignore[reportUnknownVariableType]


LIBRARIES: dict[str, Library] = {}


def register_library(library: Library) -> None:
    """Make a routine known by its name. One of the same file is replaced, as where a notebook's cell runs again;
    LibraryError for another of the same name."""
    known = LIBRARIES.get(library.name)
    if known is not None and known.where.partition(":")[0] != library.where.partition(":")[0]:
        raise LibraryError(f"{library.where}: a library `{library.name}` is already registered, at {known.where}")
    LIBRARIES[library.name] = library


def library_of(e: Expr) -> Library | None:
    """The record of the routine that a node calls; None where it calls none, or one that nobody registered."""
    return LIBRARIES.get(e.attr("name")) if e.op == CALL_DPS_LIBRARY else None


def library_call(library: Library, operands: Sequence[Expr], attrs: Mapping[str, Any] | None = None) -> Expr:
    """The call of a registered routine, its annotation deduced. OperatorError."""
    given = attrs or {}
    wanted = [*library.attributes, *(n for n, _ in library.sizes)]
    if sorted(given) != sorted(wanted):
        raise OperatorError(
            f"library `{library.name}` takes attributes {', '.join(wanted) or 'none'}; got {', '.join(given) or 'none'}"
        )
    ordered = {k: given[k] for k in library.attributes}
    for name, _ in library.sizes:
        value = given[name]
        ordered[name] = tuple(map(Dim.of, value)) if isinstance(value, (tuple, list)) else (Dim.of(value),)  # type: ignore[reportUnknownArgumentType]
    annotation = library.annotation([a.annotation for a in operands], ordered)
    return call_dps_library(library.name, operands, annotation, ordered.items())


def called(name: str, *operands: Expr, **attrs: Any) -> Expr:
    """The call of the routine registered as `name`, for the right sides of rules: further programs that it computes."""
    library = LIBRARIES.get(name)
    if library is None:
        raise OperatorError(f"no library `{name}` is registered; registered are {', '.join(LIBRARIES) or 'none'}")
    return library_call(library, operands, attrs)


def inlined(roots: Sequence[Expr]) -> list[Expr]:
    """Expressions with the definitions of registered routines in the place of their calls."""
    if not any(library_of(e) for e in postorder(roots)):
        return list(roots)

    def replace(e: Expr, args: tuple[Expr, ...]) -> Expr:
        library = library_of(e)
        if library is not None:
            definition, sizes = library.sizes_at([a.annotation for a in args], dict(e.attr("attrs")))
            made = instantiated(definition.results, dict(zip(definition.params, args, strict=True)), sizes)
            return tuple_(made) if definition.many else made[0]
        if e.op == TUPLE_GET:
            return tuple_get(args[0], e.attr("index"))
        if e.op in TABLE:
            return call(e.op, args, dict(e.attrs))
        return node(e.op, args, e.attrs, e.annotation) if args else e

    return rebuild(roots, replace)


def instantiated(roots: Sequence[Expr], env: Mapping[Expr, Expr], sizes: Mapping[str, Dim]) -> list[Expr]:
    """Patterns with expressions for their variables and sizes for their size variables. OperatorError."""
    done: dict[Expr, Expr] = dict(env)
    for e in postorder(roots, stop=done.__contains__):
        if e in done:
            continue
        args = tuple(done[a] for a in e.args)
        library = library_of(e)
        if e.op == TUPLE_GET:
            done[e] = tuple_get(args[0], e.attr("index"))
        elif library is not None:
            done[e] = library_call(library, args, _with_sizes(e.attr("attrs"), sizes))
        elif e.op in TABLE:
            done[e] = call(e.op, args, _with_sizes(e.attrs, sizes))
        elif not e.args and e.op != SHAPE:
            done[e] = e
        else:
            done[e] = node(e.op, args, _with_sizes(e.attrs, sizes).items(), substitute(e.annotation, dict(sizes)))
    return [done[r] for r in roots]


def _with_sizes(attrs: Sequence[tuple[str, Any]], sizes: Mapping[str, Dim]) -> dict[str, Any]:
    return {k: with_sizes_of(v, sizes) for k, v in attrs}


def with_sizes_of(value: Any, sizes: Mapping[str, Dim]) -> Any:
    """An attribute's value with sizes for its size variables."""
    if isinstance(value, Dim):
        return value.substitute(sizes)
    if isinstance(value, tuple):
        return tuple(with_sizes_of(v, sizes) for v in value)  # type: ignore[reportUnknownVariableType]
    return value


def checked_cost(library: Library, seconds: Any, what: str) -> float:
    """A cost as it comes from a user's function. LibraryError unless it is a finite number >= 0."""
    try:
        found = float(seconds)
    except (TypeError, ValueError):
        found = math.nan
    if not (math.isfinite(found) and found >= 0):
        raise LibraryError(f"library `{library.name}` ({library.where}): its cost {what} is {seconds!r}; "
                           "a finite number of seconds >= 0 is accepted")  # fmt: skip
    return found


def _imported(library: Library) -> Callable[..., Any]:
    assert isinstance(library.target, str)
    module, _, path = library.target.partition(":")
    where = f"library `{library.name}` ({library.where}): target {library.target!r}"
    try:
        found: Any = importlib.import_module(module)
    except Exception as e:
        raise LibraryError(f"{where}: importing {module} failed: {type(e).__name__}: {e}") from None
    for part in path.split("."):
        if not hasattr(found, part):
            import difflib

            near = difflib.get_close_matches(part, dir(found), 3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise LibraryError(f"{where}: {module} has no `{path}`{hint}")
        found = getattr(found, part)
    if not callable(found):
        raise LibraryError(f"{where} is {found!r}; something callable on JAX arrays is accepted")
    return found
