"""Library records: routines of other libraries, each with the program that it computes.

`call_dps_library(name, ...)` of a registered name means the routine's *definition*: the pattern program of the rule
that the record comes from (`RuleSet.library`). The interpreter evaluates the definition, annotations follow from it,
and it runs in place of a routine that is missing.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from relax_eg.argument_checks import did_you_mean
from relax_eg.errors import LibraryError, OperatorError
from relax_eg.ir.annotations import Annotation, Tensor, Tuple, substitute
from relax_eg.ir.expr import (
    CALL_DPS_LIBRARY,
    SHAPE,
    Expr,
    call_dps_library,
    constant_value,
    node,
    postorder,
    rebuild,
    tuple_,
)
from relax_eg.ir.heads import TUPLES, Evaluator, with_operands
from relax_eg.ir.origin import SourceLine
from relax_eg.memo import Memo
from relax_eg.ops.difference import largest_difference, largest_magnitude
from relax_eg.ops.lazy_jax import jax, jnp
from relax_eg.ops.record import TABLE, Site, call, get
from relax_eg.shapes import Dim

Array = np.ndarray[Any, Any]
FirstRun = Literal["check", "fall back", "trust"]
FIRST_RUN: tuple[FirstRun, ...] = ("check", "fall back", "trust")
FFI = "ffi:"
PLATFORMS = ("cpu", "gpu", "tpu")
EXECUTIONS = ("whole", "kernels")


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a routine needs.

    - `packages`: all of these, each as `name` or `name >= version`.
    - `platforms`, `devices`, `dtypes`, `executions`: one of these, or anything where the tuple is empty.
    """

    packages: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    executions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Definition:
    """The program that a routine computes on operands of certain ranks and dtypes.

    - `params`: the variables for the operands; their sizes are size variables.
    - `results`: expressions over `params`.
    - `is_tuple`: whether the routine returns a tuple.
    - `instance`: a function that returns the rule's instance, which samples are drawn for.
    """

    params: tuple[Expr, ...]
    results: tuple[Expr, ...]
    is_tuple: bool
    instance: Any = field(default=None, compare=False)


Form = Callable[[tuple[Annotation, ...], Mapping[str, Any]], Definition]
# Returns sizes near the given ones, small enough for a trial, and random operands of these sizes; None without any.
Sample = Callable[[Definition, Mapping[str, int]], "tuple[dict[str, int], dict[str, Array]] | None"]


class Library:
    """The record of one routine, built by `RuleSet.library`.

    - `name`: the name in `call_dps_library`.
    - `target`: a callable on JAX arrays, `"module:name"`, or `"ffi:name"` of a registered `jax.ffi` target; it gets the
      call's attributes and sizes as keywords.
    - `requires`: what the routine needs.
    - `cost`: the speedup over the predicted time of the pattern as one kernel, a function of flops, bytes and profile
      that returns seconds, or None.
    - `first_run`: whether the first run is compared with the definition, and what a difference causes.
    - `attributes`: names of the attributes that are not sizes.
    - `sizes`: names of the size attributes, each with whether it is a single size.
    - `pattern`: the function whose program the routine computes.
    - `where`: file and line of the registration.
    - `form`: returns the definition for operands with given annotations.
    - `sample`: returns random operands for a trial.
    - `operators`: returns the names of the pattern's operators.
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
        where: SourceLine,
        form: Form,
        sample: Sample,
        operators: Callable[[], frozenset[str]],
    ) -> None:
        self.name, self.target, self.requires, self.cost = name, target, requires, cost
        self.first_run, self.attributes, self.sizes, self.where = first_run, attributes, sizes, where
        self.pattern, self.form, self.sample, self.operators = pattern, form, sample, operators
        self._definitions = Memo[Any, Definition](_MOST_DEFINITIONS)

    def __repr__(self) -> str:
        return f"<library {self.name}>"

    @property
    def size_names(self) -> frozenset[str]:
        """Names of the attributes that are sizes."""
        return frozenset(n for n, _ in self.sizes)

    @property
    def content(self) -> tuple[Any, ...]:
        """The part of this record, other than its pattern program, that the keys of cached searches contain."""
        return self.name, self.target, self.requires, self.cost, self.first_run

    def definition(self, operands: Sequence[Annotation], attrs: Mapping[str, Any]) -> Definition:
        """Returns the definition for the ranks and dtypes of `operands` and for `attrs`. Raises OperatorError."""
        static = {k: attrs[k] for k in self.attributes}
        counts = tuple(len(attrs[n]) for n, _ in self.sizes)
        key = (tuple((a.ndim, a.dtype) if isinstance(a, Tensor) else None for a in operands), repr(static), counts)
        found = self._definitions.get(key)
        if found is None:
            found = self._definitions[key] = self.form(tuple(operands), attrs)
        return found

    def sizes_at(self, operands: Sequence[Annotation], attrs: Mapping[str, Any]) -> tuple[Definition, dict[str, Dim]]:
        """Returns the definition and the values of its size variables for these operands. Raises OperatorError."""
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
        """Returns the annotation of a call's result. OperatorError where the routine does not take such operands."""
        definition, sizes = self.sizes_at(operands, attrs)
        made = tuple(substitute(r.annotation, sizes) for r in definition.results)
        return Tuple(made) if definition.is_tuple else made[0]

    def keywords(self, attrs: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the attributes of a call as the target gets them; `sizes` binds the size variables in them."""
        found = {k: attrs[k] for k in self.attributes}
        for name, single in self.sizes:
            values = tuple(d.evaluate(sizes) for d in attrs[name])
            found[name] = values[0] if single else values
        return found

    def function(self, results: Annotation, sizes: Mapping[str, Any]) -> Callable[..., Any]:
        """Returns the target as a callable, imported where it is named; `results` annotates the results. LibraryError
        where the target is missing."""
        if callable(self.target):
            return self.target
        if self.target.startswith(FFI):
            fields = results.fields if isinstance(results, Tuple) else (results,)
            made = [jax.ShapeDtypeStruct([d.evaluate(sizes) for d in a.shape], a.dtype) for a in fields]  # type: ignore[union-attr]
            return jax.ffi.ffi_call(self.target.removeprefix(FFI), made if isinstance(results, Tuple) else made[0])
        return _import_target(self)

    def run(self, call: Expr, arrays: Sequence[Any], sizes: Mapping[str, Any]) -> Any:
        """Runs the target for a call on JAX arrays; `sizes` binds the size variables of its attributes."""
        told = dict(sizes)
        for e, a in zip(call.args, arrays, strict=True):
            shape = (e.annotation.shape or ()) if isinstance(e.annotation, Tensor) else ()
            told.update({str(d): n for d, n in zip(shape, a.shape, strict=False) if str(d) in d.variables})
        target = self.function(call.annotation, told)
        return target(*map(jnp.asarray, arrays), **self.keywords(dict(call.attr("attrs")), told))

    def run_definition(self, call: Expr, arrays: Sequence[Any], sizes: Mapping[str, Any]) -> Any:
        """Runs the definition for a call on JAX arrays; `sizes` binds the size variables of its attributes."""
        attrs = dict(call.attr("attrs"))
        definition = self.definition([Tensor(ndim=a.ndim, dtype=str(a.dtype)) for a in arrays], attrs)
        told: dict[str, Any] = {}
        for p, a in zip(definition.params, arrays, strict=True):
            told.update({str(d): n for d, n in zip(p.shape, a.shape, strict=True) if str(d) in d.variables})
        for name, single in self.sizes:
            values = [d.evaluate(sizes) for d in attrs[name]]
            told |= {name: values[0]} if single else {f"{name}__{i}": n for i, n in enumerate(values)}
        made = evaluate_in_jax(definition.results, dict(zip(definition.params, arrays, strict=True)), told)
        return tuple(made) if definition.is_tuple else made[0]


def evaluate_in_jax(roots: Sequence[Expr], env: Mapping[Expr, Any], sizes: Mapping[str, Any]) -> list[Any]:
    """Returns the values of `roots` on JAX arrays; each operator runs by its lowering."""
    run, done = _JaxEvaluator(), {e: jnp.asarray(x) for e, x in env.items()}
    return [run.value(r, done, sizes) for r in roots]


class _JaxEvaluator(Evaluator):
    def constant(self, e: Expr, args: list[Any], sizes: Mapping[str, Any]) -> Any:
        return jnp.asarray(constant_value(e))

    def operator(self, e: Expr, args: list[Any], sizes: Mapping[str, Any]) -> Any:
        return get(e.op).jax_function()(*args, **{k: _attribute_at(v, sizes) for k, v in e.attrs})


def _attribute_at(value: Any, sizes: Mapping[str, Any]) -> Any:
    if isinstance(value, Dim):
        return value.value if value.is_const else value.evaluate(sizes)
    return tuple(_attribute_at(v, sizes) for v in value) if isinstance(value, tuple) else value  # type: ignore[reportUnknownVariableType]


_MOST_DEFINITIONS = 1 << 10  # limit: definitions kept per routine; an evicted one is built again

LIBRARIES: dict[str, Library] = {}


def register_library(library: Library) -> None:
    """Registers a routine under its name. A routine of that name from the same file is replaced, as a notebook's cell
    may run again; one from another file raises LibraryError."""
    known = LIBRARIES.get(library.name)
    if known is not None and known.where.file != library.where.file:
        raise LibraryError(f"{library.where}: a library `{library.name}` is already registered, at {known.where}")
    LIBRARIES[library.name] = library


def library_of(e: Expr | Site) -> Library | None:
    """Returns the record of the routine that a node calls; None where it calls none or one that is not registered."""
    if e.op != CALL_DPS_LIBRARY:
        return None
    return LIBRARIES.get(e["name"] if isinstance(e, Site) else e.attr("name"))


def library_call(library: Library, operands: Sequence[Expr], attrs: Mapping[str, Any] | None = None) -> Expr:
    """Returns the call of a registered routine with its annotation deduced. Raises OperatorError."""
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


def call_library(name: str, *operands: Expr, **attrs: Any) -> Expr:
    """Returns the call of routine `name`, for right sides of rules. OperatorError if it is not registered."""
    library = LIBRARIES.get(name)
    if library is None:
        raise OperatorError(f"no library `{name}` is registered; registered are {', '.join(LIBRARIES) or 'none'}")
    return library_call(library, operands, attrs)


def inline_libraries(roots: Sequence[Expr]) -> list[Expr]:
    """Returns `roots` with each call of a registered routine replaced by its definition."""
    if not any(library_of(e) for e in postorder(roots)):
        return list(roots)

    def replace(e: Expr, args: tuple[Expr, ...]) -> Expr:
        library = library_of(e)
        if library is not None:
            definition, sizes = library.sizes_at([a.annotation for a in args], dict(e.attr("attrs")))
            made = instantiate(definition.results, dict(zip(definition.params, args, strict=True)), sizes)
            return tuple_(made) if definition.is_tuple else made[0]
        if e.op in TABLE:
            return call(e.op, args, dict(e.attrs))
        return with_operands(e, args)

    return rebuild(roots, replace)


def instantiate(roots: Sequence[Expr], env: Mapping[Expr, Expr], sizes: Mapping[str, Dim]) -> list[Expr]:
    """Returns patterns with variables replaced by `env` and size variables by `sizes`. Raises OperatorError."""
    # Mostly a size stays what it is, and annotations of tuples are long.
    sizes = {v: d for v, d in sizes.items() if d != Dim.var(v)}

    def replace(e: Expr, args: tuple[Expr, ...]) -> Expr:
        library = library_of(e)
        if e.op in TUPLES:
            return with_operands(e, args)
        if library is not None:
            return library_call(library, args, _with_sizes(e.attr("attrs"), sizes))
        if e.op in TABLE:
            return call(e.op, args, _with_sizes(e.attrs, sizes))
        if not e.args and e.op != SHAPE:
            return e
        annotation = substitute(e.annotation, sizes) if sizes else e.annotation
        return node(e.op, args, _with_sizes(e.attrs, sizes).items(), annotation)

    return rebuild(roots, replace, env)


def _with_sizes(attrs: Sequence[tuple[str, Any]], sizes: Mapping[str, Dim]) -> dict[str, Any]:
    return {k: with_sizes_of(v, sizes) for k, v in attrs}


def with_sizes_of(value: Any, sizes: Mapping[str, Dim]) -> Any:
    """Returns an attribute's value with its size variables replaced by `sizes`."""
    if isinstance(value, Dim):
        return value.substitute(sizes)
    if isinstance(value, tuple):
        return tuple(with_sizes_of(v, sizes) for v in value)  # type: ignore[reportUnknownVariableType]
    return value


def relative_difference(a: Array, b: Array) -> float:
    """The largest difference of two arrays (`largest_difference`), relative to the largest element of `b`."""
    return largest_difference(a, b, max(largest_magnitude(b), 1e-30))


def checked_cost(library: Library, seconds: Any, what: str) -> float:
    """Returns the result of a user's cost function as a float. LibraryError unless it is a finite number >= 0."""
    try:
        found = float(seconds)
    except (TypeError, ValueError):
        found = math.nan
    if not (math.isfinite(found) and found >= 0):
        raise LibraryError(f"library `{library.name}` ({library.where}): its cost {what} is {seconds!r}; "
                           "a finite number of seconds >= 0 is accepted")  # fmt: skip
    return found


def _import_target(library: Library) -> Callable[..., Any]:
    assert isinstance(library.target, str)
    module, _, path = library.target.partition(":")
    where = f"library `{library.name}` ({library.where}): target {library.target!r}"
    try:
        found: Any = importlib.import_module(module)
    except Exception as e:
        raise LibraryError(f"{where}: importing {module} failed: {type(e).__name__}: {e}") from None
    for part in path.split("."):
        if not hasattr(found, part):
            raise LibraryError(f"{where}: {module} has no `{path}`{did_you_mean(part, dir(found))}")
        found = getattr(found, part)
    if not callable(found):
        raise LibraryError(f"{where} is {found!r}; something callable on JAX arrays is accepted")
    return found
