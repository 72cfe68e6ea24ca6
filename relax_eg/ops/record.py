"""The operator record: everything the compiler knows of an operator, in one place.

The reference semantics (numpy and exact), the pattern kind (Relax, Algorithm 1), flops and bytes follow from a record's
*index equations*. A record without equations gives a numpy reference and a cost instead.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol

from relax_eg.argument_checks import did_you_mean
from relax_eg.contexts import holding
from relax_eg.dtypes import itemsize
from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import Annotation, Tensor, Tuple
from relax_eg.ir.calls import call_sizes
from relax_eg.ir.control import functions_of
from relax_eg.ir.expr import CALL_TIR, Expr, node, postorder
from relax_eg.limits import KEPT, MANY_KEPT
from relax_eg.ops.partial_annotations import deduce_from_partial, is_partial
from relax_eg.ops.site import Site
from relax_eg.shapes import Dim
from relax_eg.tir import Buffer, Counts, PatternKind, TensorProgram, classify, compute, count
from relax_eg.tir import program as tensor_program
from relax_eg.tir.substitute import with_sizes


class _Required:
    def __repr__(self) -> str:
        return "required"


REQUIRED = _Required()


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of an operator.

    - `kind`: "static" for plain hashable values (axes, permutations, dtypes), "dims" for a tuple of sizes, which may
      be symbolic and which rules may bind.
    - `default`: the value where none is given; `REQUIRED` where one must be.
    - `omitted`: what text and `rx.op` mean that leave it out: an axis, or a function of the operator's name and the
      annotations of the operands, which also stands for None; None where nothing is meant.
    - `values`: the values over which rules range, on operands of a rank; None where rules do not range over it.
    """

    name: str
    kind: Literal["static", "dims"] = "static"
    default: Any = REQUIRED
    omitted: int | Callable[[str, Sequence[Annotation]], Any] | None = None
    values: Callable[[int], list[Any]] | None = None


# How an operator places the elements of its operands where it computes nothing:
#   view       in the same order, under another shape
#   order      each once, in other places
#   part       some of them
#   repeat     all of them, in several places
#   select     those at computed positions
#   join       those of several operands, one after the other
#   convert    each in its place, in another dtype
#   make       none: the elements follow from the attributes
Moves = Literal["view", "order", "part", "repeat", "select", "join", "convert", "make"]
# The kernel as which XLA runs an operator, where prices tell it from a fused loop. A "transposed_matmul" reads a weight
# that is stored output axis first; a "transfer" copies to the memory of the host or back; a "guarded_solve" is both
# systems of a factor, or other ones where a number of the factor says so; a "hash" is arithmetic on the
# bits of each element, which no equations state.
Kernel = Literal[
    "copy", "transfer", "matmul", "transposed_matmul", "conv", "factorisation", "solve", "guarded_solve", "hash"
]
Deduce = Callable[[Site], Annotation]
Equations = Callable[[Site, tuple[Buffer, ...]], "TensorProgram | None"]  # None where this use has none
Lower = Callable[..., Any]  # (*arrays, **attrs), with sizes as ints -> array or tuple of arrays
Reference = Callable[..., Any]  # as Lower, on numpy arrays


@dataclass(frozen=True)
class Operator:
    """The record of an operator.

    - `name`: Relax's spelling where Relax has one.
    - `parameters`: operand names; a last one with `*` takes any number of operands.
    - `deduce`: returns the result's annotation from the operands', which are fully known tensors, and the attributes;
      raises OperatorError.
    - `equations`: returns index equations over buffers named after the operands.
    - `lower`: the JAX lowering, called with the arrays and with the attributes (sizes resolved) as keywords; or the
      dotted name of a JAX function that takes the arrays and then the attributes, by name if its parameters have these
      names, else by position.
    - `attributes`: its attributes, in order.
    - `reference`: the numpy reference, needed where there are no equations.
    - `cost`: flops and bytes of a use; needed where there are no equations, and for an operator that takes less work
      than its equations (a scan).
    - `doc`: what it returns, in one line.
    - `moves`: how it places elements; None for an operator that computes.
    - `kernel`: the kernel as which XLA runs it; None where its pattern kind tells.
    - `capacity`: how it is computed on arrays at capacity, a key of `dynamic.special.BEHAVIOURS`; empty where the
      equations tell.
    - `poles`: whether it has poles, near which the sign of a zero decides the result.
    - `below`: for an operator whose elements are positions along an axis: the size of that axis.
    - `promised`: the operand whose elements a use promises to be positions along an axis, and the size of that axis;
      None for a use that promises nothing.
    - `definition`: for an operator without `equations`: equations that state the result for proofs, and would compute
      it in much more work; None for a use that they do not cover.
    - `slower`: how many times as long as by `lower` a use takes on CPUs where JAX lowers it (`ops.on_cpus`), by a
      function that gives the number for a size; None: as long.
    """

    name: str
    parameters: tuple[str, ...]
    deduce: Deduce
    lower: Lower | str
    equations: Equations | None = None
    attributes: tuple[Attribute, ...] = ()
    reference: Reference | None = None
    cost: Callable[[Site], Counts] | None = None
    doc: str = ""
    moves: Moves | None = None
    kernel: Kernel | None = None
    capacity: str = ""
    poles: bool = False
    below: Callable[[Site], Dim] | None = None
    promised: Callable[[Site], tuple[int, Dim] | None] | None = None
    definition: Callable[[Site, tuple[Buffer, ...]], TensorProgram | None] | None = None
    slower: Callable[[Site, Callable[[Dim], float]], float] | None = None

    def __post_init__(self) -> None:
        if self.equations is None and (self.reference is None or self.cost is None):
            raise OperatorError(f"operator `{self.name}` has no index equations: give a numpy reference and a cost")

    @property
    def variadic(self) -> bool:
        return self.parameters[-1:] != () and self.parameters[-1].startswith("*")

    def jax_function(self) -> Lower:
        """The JAX lowering as a callable `(*arrays, **attrs)`."""
        if not isinstance(self.lower, str):
            return self.lower
        return _named_lowering(self.lower, tuple(a.name for a in self.attributes))

    def operand_names(self, n: int) -> tuple[str, ...]:
        if not self.variadic:
            return self.parameters
        fixed = self.parameters[:-1]
        return fixed + tuple(f"{self.parameters[-1][1:]}{i}" for i in range(n - len(fixed)))


@lru_cache(1 << 10)  # more than there are operators
def _named_lowering(dotted: str, attributes: tuple[str, ...]) -> Lower:
    """The JAX function of a dotted name, as one that takes these attributes as keywords and returns several results as
    a tuple."""
    module, _, name = dotted.rpartition(".")
    function = getattr(importlib.import_module(module), name)
    by_name = inspect.signature(function).parameters.keys() >= set(attributes)

    def lower(*xs: Any, **attrs: Any) -> Any:
        made = function(*xs, **attrs) if by_name else function(*xs, *(attrs[a] for a in attributes))
        return tuple(made) if isinstance(made, (tuple, list)) else made  # type: ignore[reportUnknownArgumentType]

    return lower


TABLE: dict[str, Operator] = {}


def register(operator: Operator) -> Operator:
    """Adds an operator to the table and returns it. OperatorError if its name is taken."""
    if operator.name in TABLE:
        raise OperatorError(f"operator `{operator.name}` is already in the table")
    TABLE[operator.name] = operator
    return operator


def get(name: str) -> Operator:
    """Returns the record of operator `name`. Raises OperatorError, with similar names, where there is none."""
    found = TABLE.get(name)
    if found is None:
        raise OperatorError(f"no operator `{name}`{did_you_mean(name, TABLE)}")
    return found


def operators_where(has: Callable[[Operator], bool]) -> frozenset[str]:
    """Returns the names of the operators of which `has` is true."""
    return frozenset(o.name for o in TABLE.values() if has(o))


def movement_operators(*how: Moves) -> frozenset[str]:
    """Returns the names of the operators that move elements in one of these ways."""
    return operators_where(lambda o: o.moves in how)


def operators_run_as(*kernels: Kernel) -> frozenset[str]:
    """Returns the names of the operators that XLA runs as one of these kernels."""
    return operators_where(lambda o: o.kernel in kernels)


class HasAttributes(Protocol):
    """An operator or a library routine: anything with a name and attributes."""

    @property
    def name(self) -> str: ...
    @property
    def attributes(self) -> tuple[Attribute, ...]: ...


def attributes_of(operator: HasAttributes, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `given` in the record's order, with defaults filled in, sizes as `Dim`s and lists as tuples.

    OperatorError for an unknown attribute, a missing one, or a size attribute that is no tuple of sizes.
    """
    known = {a.name for a in operator.attributes}
    for name in given:
        if name not in known:
            names = ", ".join(sorted(known)) or "none"
            raise OperatorError(f"{operator.name} has no attribute `{name}`; it has: {names}")
    filled: dict[str, Any] = {}
    for a in operator.attributes:
        value = given.get(a.name, a.default)
        if value is REQUIRED:
            raise OperatorError(f"{operator.name} needs attribute `{a.name}`")
        if a.kind == "dims":
            if not isinstance(value, (tuple, list)):
                raise OperatorError(f"{operator.name}: {a.name} is {value!r}; a tuple of sizes is needed")
            value = tuple(Dim.of(v) for v in value)  # type: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        filled[a.name] = tuple(value) if isinstance(value, list) else value
    return filled


def deduce(
    name: str, operands: tuple[Annotation, ...], attrs: Mapping[str, Any], *, strict: bool = False
) -> Annotation:
    """Returns the annotation of the result of operator `name` on operands with these annotations. Operands that are
    known in part give a result that is known in part.

    OperatorError where the operator rejects the operands; UndecidedError, a subclass, where the sizes decide. concat
    and a reshape to -1 answer even then (concat gives the rank, reshape the sizes asked for), and a run at sizes that
    do not fit is rejected. With `strict` they raise UndecidedError.
    """
    operator = get(name)
    fixed = len(operator.parameters) - operator.variadic
    if len(operands) < fixed or (len(operands) > fixed and not operator.variadic):
        wanted = f"at least {fixed}" if operator.variadic else str(fixed)
        raise OperatorError(f"{name} takes {wanted} operands ({', '.join(operator.parameters)}), got {len(operands)}")
    if any(map(is_partial, operands)):
        return _deduce_from_partial(name, operands, tuple(attrs.items()), strict)
    if _collected_preconditions.get() is not None:  # these are noted while it is deduced
        return operator.deduce(Site(name, operands, attrs, strict))
    # Python treats 1, True and 1.0 as equal; as attributes they are different.
    return _deduced(operator.deduce, name, operands, tuple(attrs.items()), tuple(map(type, attrs.values())), strict)


@lru_cache(MANY_KEPT)
def _deduced(
    by: Callable[[Site], Annotation], name: str, operands: tuple[Annotation, ...], attrs: tuple[tuple[str, Any], ...],
    types: tuple[type, ...], strict: bool,
) -> Annotation:  # fmt: skip
    """What `by` deduces; cached, as programs that differ in a node or two are rebuilt again and again."""
    return by(Site(name, operands, dict(attrs), strict))


@lru_cache(KEPT)
def _deduce_from_partial(
    name: str, operands: tuple[Annotation, ...], attrs: tuple[tuple[str, Any], ...], strict: bool
) -> Annotation:
    return deduce_from_partial(Site(name, operands, dict(attrs), strict), get(name).deduce)


def call(name: str, args: Iterable[Expr], attrs: Mapping[str, Any] | None = None) -> Expr:
    """Returns the expression `name(*args, **attrs)` with its annotation deduced. Raises OperatorError."""
    operands = tuple(args)
    filled = attributes_of(get(name), attrs or {})
    annotation = deduce(name, tuple(a.annotation for a in operands), filled, strict=_strict.get())
    return node(name, operands, filled.items(), annotation)


_strict: ContextVar[bool] = ContextVar("relax_eg_strict", default=False)


def strict_sizes() -> AbstractContextManager[None]:
    """Within this context, `call` raises UndecidedError where an operator needs sizes to be equal that are not provably
    equal."""
    return holding(_strict, True)


@lru_cache(MANY_KEPT)
def is_proved_applicable(op: str, operands: tuple[Annotation, ...], attrs: tuple[tuple[str, Any], ...]) -> bool:
    """Returns whether all operands are fully known and the operator provably applies to them at all sizes; else a run
    may be rejected."""
    if any(map(is_partial, operands)):
        return False
    try:
        deduce(op, operands, dict(attrs), strict=True)
    except OperatorError:
        return False
    return True


# A comparison of a size with 0, and a precondition on sizes: at least one of its comparisons holds.
Comparison = tuple[Literal[">=", "=="], Dim]
Precondition = tuple[Comparison, ...]

_collected_preconditions: ContextVar[dict[Precondition, None] | None] = ContextVar("relax_eg_conditions", default=None)


@lru_cache(MANY_KEPT)
def preconditions(
    op: str, operands: tuple[Annotation, ...], attrs: tuple[tuple[str, Any], ...]
) -> tuple[Precondition, ...]:
    """Returns the preconditions of an operator on fully known operands that the size variables decide, such as
    `0 <= begin <= end <= size` of a slice. The operator's deduction states them."""
    if any(map(is_partial, operands)):
        return ()
    found: dict[Precondition, None] = {}
    with holding(_collected_preconditions, found):
        try:
            deduce(op, operands, dict(attrs))
        except OperatorError:
            return ()  # a use that applies at no size is rejected where it is built or run
    return tuple(found)


def note_precondition(*comparisons: Comparison) -> None:
    """Adds a precondition to those that a running call of `preconditions` collects: one of `comparisons` holds."""
    found = _collected_preconditions.get()
    if found is None or any(_plainly_holds(*c) for c in comparisons):
        return
    open_ = tuple(c for c in comparisons if not c[1].is_const)
    if open_:
        found[open_] = None


def may_be_met(precondition: Precondition, sizes: Mapping[str, Any]) -> bool:
    """Returns whether sizes may meet a precondition. Symbolic ones, as while JAX exports, may."""
    for sign, size in precondition:
        value = size.evaluate(sizes)
        if not isinstance(value, int) or (value >= 0 if sign == ">=" else value == 0):
            return True
    return False


def _plainly_holds(sign: str, size: Dim) -> bool:
    """Whether a comparison plainly holds."""
    return _is_plainly_nonnegative(size) if sign == ">=" else size == 0


def _is_plainly_nonnegative(size: Dim) -> bool:
    return size.const >= 0 and all(c > 0 and all(a.op == "var" for a in atoms) for atoms, c in size.terms)


def site_of(e: Expr) -> Site:
    """Returns the site of expression `e` for its operator's record or, for a core node, for the cost model. Attribute
    `functions` names the functions of the module that a core node runs."""
    attrs = dict(e.attrs)
    functions = functions_of(e)
    if functions:
        attrs["functions"] = functions
    return Site(e.op, tuple(a.annotation for a in e.args), attrs)


def position_promises(results: Iterable[Expr]) -> list[tuple[Expr, Dim]]:
    """Returns the operands under `results` that are promised to hold positions along an axis, each with the size of
    that axis."""
    found: dict[tuple[Expr, Dim], None] = {}
    for e in postorder(results):
        operator = TABLE.get(e.op)
        promised = operator.promised(site_of(e)) if operator is not None and operator.promised is not None else None
        if promised is not None:
            found[e.args[promised[0]], promised[1]] = None
    return list(found)


@dataclass(frozen=True, slots=True)
class ProgramUse:
    """A tensor program at one use.

    - `program`: the tensor program.
    - `sizes`: values of the program's size variables, as expressions in the sizes at the use.
    """

    program: TensorProgram
    sizes: Mapping[str, Dim]


def called_program(operands: Sequence[Annotation], attrs: Mapping[str, Any]) -> ProgramUse | None:
    """Returns the program of a `call_tir` with the values of its sizes; None where the call does not bind them all."""
    program: TensorProgram = attrs["program"].value
    sizes = {**call_sizes([Tensor(b.shape, b.dtype) for b in program.parameters], operands), **dict(attrs["sizes"])}
    return ProgramUse(program, sizes) if program.sizes <= sizes.keys() else None


def program_of(site: Site) -> TensorProgram | None:
    """Returns the index equations of one use of an operator or of a `call_tir`, or None where it has none."""
    attrs = tuple(site.attrs.items())
    if site.op == CALL_TIR:
        placed = called_program(site.operands, site.attrs)
        return None if placed is None else with_sizes(placed.program, placed.sizes)
    return _program(site.op, site.operands, attrs, repr(attrs))


@lru_cache(MANY_KEPT)
def _program(
    op: str, operands: tuple[Annotation, ...], attrs: tuple[tuple[str, Any], ...], _text: str
) -> TensorProgram | None:
    """`_text` is the text of the attributes. It keeps 1 and True, and zeros of both signs, apart in the cache, as they
    compare equal."""
    equations, site = get(op).equations, Site(op, operands, dict(attrs))
    return None if equations is None else equations(site, _buffers(site))


def definition_of(site: Site) -> TensorProgram | None:
    """Returns the equations that state what one use of an operator without index equations is, if it has any."""
    definition = None if site.op == CALL_TIR else get(site.op).definition
    return None if definition is None else definition(site, _buffers(site))


def first_operand(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
    """The equations of an operator whose result is its first operand."""
    x = buffers[0]
    return tensor_program(site.op, buffers, compute("out", x.shape, lambda *i: x[i]))


def _buffers(site: Site) -> tuple[Buffer, ...]:
    names = get(site.op).operand_names(len(site.operands))
    return tuple(Buffer(n, site.shape(i), site.dtype(i)) for i, n in enumerate(names))


def pattern_kind(site: Site) -> PatternKind:
    """Returns the pattern kind, found from the equations (Relax, Algorithm 1); Opaque where there are none."""
    return _kind_and_counts(site.op, site.operands, tuple(site.attrs.items()))[0]


def counts(site: Site) -> Counts:
    """Returns flops and bytes moved of one use of an operator, as expressions in the sizes."""
    return _kind_and_counts(site.op, site.operands, tuple(site.attrs.items()))[1]


@lru_cache(MANY_KEPT)
def _kind_and_counts(
    op: str, operands: tuple[Annotation, ...], attrs: tuple[tuple[str, Any], ...]
) -> tuple[PatternKind, Counts]:
    """Returns pattern kind and counts; cached, as every cost model and every program with this use asks for them."""
    site = Site(op, operands, dict(attrs))
    program, cost = program_of(site), get(op).cost
    if program is None:
        assert cost is not None  # `Operator.__post_init__` requires it
        return PatternKind.OPAQUE, cost(site)
    return classify(program), count(program) if cost is None else cost(site)


def routine_cost(flops: Callable[[Site], Dim]) -> Callable[[Site], Counts]:
    """Returns the cost of a routine that does `flops(site)` and reads its operands and writes its results once."""

    def cost(site: Site) -> Counts:
        return Counts(flops(site), bytes_of(Tuple(site.operands)), bytes_of(deduce(site.op, site.operands, site.attrs)))

    return cost


def bytes_of(annotation: Annotation) -> Dim:
    """Returns the bytes of a value. A tensor of unknown shape counts 0; an unknown dtype counts as float32."""
    if isinstance(annotation, Tuple):
        return sum(map(bytes_of, annotation.fields), Dim.of(0))
    if not isinstance(annotation, Tensor) or annotation.shape is None:
        return Dim.of(0)
    return math.prod(annotation.shape, start=Dim.of(itemsize(annotation.dtype or "float32")))
