"""What terms are made of: typed variables, constants, and uses of operators with given attributes."""

from __future__ import annotations

import ast
import inspect
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from relax_eg.argument_checks import short_repr
from relax_eg.discovery.terms import Term
from relax_eg.dtypes import is_complex, is_float, is_integer, is_key
from relax_eg.errors import DiscoveryError, OperatorError, RelaxEgError, SpecError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, const, constant_value, postorder, var
from relax_eg.ir.tensor_calls import call_tir
from relax_eg.ops import api
from relax_eg.ops.fused import equations_at
from relax_eg.ops.libraries import LIBRARIES, Library, call_library, inline_libraries
from relax_eg.ops.record import REQUIRED, Operator, call, get, strict_sizes
from relax_eg.rules.signature import pattern_of
from relax_eg.shapes import Dim, Spec, Star, parse_signature
from relax_eg.tir import TensorProgram, count

_BLOCK_RANK = 1  # limit: axes of a block `*b` while terms are enumerated; laws are proved for every rank
_MOST_ARITY = 3  # limit: operands of an operator; terms grow with the power of it
_MOST_AXES = 3  # limit: axes of a value; without a limit outer products never end
_FRESH = 2  # limit: fresh variables of a type, by which a law is generalised
_WORK_SIZE = 8  # chosen: size of every axis at which the work of terms is compared
_NAME = re.compile(r"\s*([^\W\d][\w.]*)\s*(?:\((.*)\))?\s*", re.DOTALL)

Attributes = tuple[tuple[str, Any], ...]
Stated = Literal["equations", "definition"]  # what says what an operator computes


@dataclass(frozen=True)
class OperatorForm:
    """An operator with its attributes, a tensor program, or a library routine with its attributes.

    - `op`: name of the operator, of the tensor program, or of the routine.
    - `arity`: number of operands.
    - `attributes`: the attributes that are given; sizes as a tuple of `Dim`.
    - `program`: the tensor program; None for an operator.
    - `is_library`: whether it is a routine, which means its definition (`RuleSet.library`).
    """

    op: str
    arity: int
    attributes: Attributes = ()
    program: TensorProgram | None = None
    is_library: bool = False

    @property
    def is_operator(self) -> bool:
        return self.program is None and not self.is_library

    def has(self, what: Stated) -> bool:
        """Whether it has equations, or at least a definition, so that its laws may be proved. Of the code of a library
        routine nothing is proved."""
        if not self.is_operator:
            return self.program is not None
        record = get(self.op)
        return record.equations is not None or (what == "definition" and record.definition is not None)

    def on(self, operands: Sequence[Expr]) -> Expr:
        """The use on these operands. Raises OperatorError if it does not exist."""
        if self.program is not None:
            return call_tir(self.program, operands)
        if self.is_library:
            made = call_library(self.op, *operands, **dict(self.attributes))
            inline_libraries([made])  # whether its definition takes operands of these sizes
            return made
        return call(self.op, operands, dict(self.attributes))

    def __str__(self) -> str:
        inside = ", ".join(f"{k}={_plain(v)}" for k, v in self.attributes)
        return f"{self.op}({inside})" if inside else self.op


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_plain, value))}{',' if len(value) == 1 else ''})"  # type: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return str(value) if isinstance(value, Dim) else repr(value)


class Grammar:
    """The terms over variables, constants and operators.

    - `signature`: the variables and their specs, in the grammar of rules: those that are declared, then fresh ones of
      the same types, which only generalised laws have.
    - `forms`: the operators, by number.
    - `leaves`: the expressions of the variables, of the constants, and of the constants in the shapes of variables,
      by number. The latter are results only: as operands, scalars broadcast.
    - `declared_count`, `variable_count`: the number of declared variables, and of all.
    - `operands`: the leaves of which terms are made.
    - `declared_text`: the variables as text.
    - `dtypes`, an argument: dtypes of constants besides those of variables.
    - `filled`: of each constant in the shape of a variable, the constant and the variable.

    Raises DiscoveryError for an operator or a variable that is not accepted.
    """

    def __init__(
        self,
        operators: str | Sequence[str | TensorProgram | OperatorForm],
        variables: str,
        constants: Sequence[float] = (),
        dtypes: Sequence[str] = (),
    ) -> None:
        self.signature = _signature(variables)
        self.declared_count = len(self.signature)
        self.declared_text = ", ".join(f"{n}: {s.text}" for n, s in self.signature.items())
        self.signature.update(_fresh(self.signature, with_scalars=len(constants) > 0))
        ranks = {d.name: _BLOCK_RANK for s in self.signature.values() for d in s.dims if isinstance(d, Star)}
        annotations = {n: pattern_of(n, s, ranks, "float32") for n, s in self.signature.items()}
        for n, a in annotations.items():
            if is_key(a.dtype or ""):
                raise DiscoveryError(f"variables: `{n}` holds random keys; what is drawn from them has no equations")
            if is_complex(a.dtype or ""):
                raise DiscoveryError(f"variables: `{n}` is {a.dtype}; floats, integers and bool are accepted")
        self.variables = tuple(var(n, a) for n, a in annotations.items())
        self.variable_count = len(self.variables)
        numbers = dict.fromkeys([*(v.dtype for v in self.variables), *dtypes])
        floats = [d for d in numbers if d != "bool"]
        own = ((c, d) for d in floats for c in constants if is_float(d) or float(c).is_integer())
        made = [const(np.asarray(c).astype(d), d) for c, d in own]
        first_filled = self.variable_count + len(made)
        self.operands = (*range(self.declared_count), *range(self.variable_count, first_filled))
        shapes = {(v.shape, v.dtype): v for v in reversed(self.declared) if v.shape}
        full = [(c, v) for c in made for v in shapes.values() if v.dtype == c.dtype]
        self.filled = {first_filled + i: (c, v) for i, (c, v) in enumerate(full)}
        self.leaves: tuple[Expr, ...] = (*self.variables, *made, *(filled(c, v) for c, v in full))
        asked = operators.split("|") if isinstance(operators, str) else list(operators)
        self.programs = {p.name: p for o in asked if (p := _program_in(o)) is not None}
        self.forms = tuple(dict.fromkeys(f for o in asked for f in self._forms_of(o)))
        blocks = [n for n, s in self.signature.items() if any(isinstance(d, Star) for d in s.dims)]
        on_axes = [f.op for f in self.forms if any(k in ("axes", "axis") for k, _ in f.attributes)]
        if blocks and on_axes:
            raise DiscoveryError(
                f"variables: `{blocks[0]}: {self.signature[blocks[0]].text}` has a block, and `{on_axes[0]}` has axes; "
                "accepted: a name for each axis, as in 'x: m n'; laws are proved for more axes where they hold"
            )
        if not self.forms:
            raise DiscoveryError("operators: none are given; names such as 'add | multiply | sum' are accepted")
        self._types: dict[Term, tuple[Any, ...]] = {}
        self._uses: dict[tuple[int, tuple[Any, ...]], tuple[Any, ...] | None] = {}
        self._works: dict[tuple[int, tuple[Any, ...]], int] = {}
        self._work_of: dict[Term, int] = {}
        self._exprs: dict[Term, Expr] = {}

    @property
    def declared(self) -> tuple[Expr, ...]:
        return self.variables[: self.declared_count]

    # --- operators ---

    def _forms_of(self, given: str | TensorProgram | OperatorForm) -> list[OperatorForm]:
        if isinstance(given, OperatorForm):
            return [given]
        if isinstance(given, TensorProgram):
            if len(given.outputs) != 1:
                raise DiscoveryError(
                    f"tensor program `{given.name}` writes {len(given.outputs)} buffers; one output is accepted"
                )
            if len(given.parameters) > _MOST_ARITY or not given.parameters:
                raise DiscoveryError(
                    f"tensor program `{given.name}` has {len(given.parameters)} parameters; "
                    f"1 to {_MOST_ARITY} are accepted"
                )
            return [OperatorForm(given.name, len(given.parameters), program=given)]
        name, attributes = _read_operator(given)
        if name in LIBRARIES:
            return [_routine(LIBRARIES[name], attributes)]
        record = _record(name)
        arity = (2 if record.moves == "join" else 1) if record.variadic else len(record.parameters)
        if not 1 <= arity <= _MOST_ARITY:
            raise DiscoveryError(f"operator `{name}` takes {arity} operands; 1 to {_MOST_ARITY} are accepted")
        return [OperatorForm(name, arity, tuple(a.items())) for a in self._attributes(record, attributes)]

    def _attributes(self, record: Operator, given: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The combinations of attributes: those that are given, defaults, and all values of axes."""
        known = {a.name for a in record.attributes}
        for name in given:
            if name not in known:
                accepted = ", ".join(sorted(known)) or "none"
                raise DiscoveryError(f"operator `{record.name}` has no attribute `{name}`; accepted: {accepted}")
        choices: list[list[tuple[str, Any]]] = []
        for a in record.attributes:
            if a.name in given:
                choices.append([(a.name, given[a.name])])
            elif a.name in ("shape", "begin", "end") or (record.name, a.name) == ("strided_slice", "strides"):
                continue  # chosen together, below
            elif a.default is REQUIRED:
                if a.values is None:
                    raise DiscoveryError(
                        f"operator `{record.name}` needs attribute `{a.name}`; "
                        f"accepted: a value for it, as in '{record.name}({a.name}=...)'"
                    )
                ranks = range(_MOST_AXES + 1)
                values = {repr(v): v for r in ranks for v in a.values(r)}
                choices.append([(a.name, v) for v in values.values()])
        combined = [dict(c) for c in itertools.product(*choices)]
        if "shape" in known and "shape" not in given:
            return [{**c, "shape": s} for c in combined for s in self._shapes()]
        if record.name == "strided_slice" and "begin" not in given:
            return [{**c, **s} for c in combined for s in self._slices()]
        return combined

    def _shapes(self) -> list[tuple[Dim, ...]]:
        """The shapes of the variables, and these with two neighbouring axes merged."""
        found: dict[tuple[Dim, ...], None] = {}
        for v in self.declared:
            found[v.shape] = None
        for s in list(found):
            for i in range(len(s) - 1):
                found[(*s[:i], s[i] * s[i + 1], *s[i + 2 :])] = None
        return [s for s in found if s]

    def _slices(self) -> list[dict[str, Any]]:
        """The slices of everything, and those that cut a joint of two variables into its parts, along each axis."""
        shapes = dict.fromkeys(v.shape for v in self.declared if v.shape)
        whole = [{"begin": (Dim.of(0),) * len(s), "end": s, "strides": (1,) * len(s)} for s in shapes]
        found: list[dict[str, Any]] = [*whole]
        for a, b in itertools.permutations(self.declared, 2):
            for axis in range(a.ndim) if a.ndim == b.ndim else ():
                rest = [d for i, d in enumerate(a.shape) if i != axis], [d for i, d in enumerate(b.shape) if i != axis]
                if rest[0] == rest[1] and a.shape[axis] is not b.shape[axis]:
                    m, total = a.shape[axis], a.shape[axis] + b.shape[axis]
                    for low, high in ((Dim.of(0), m), (m, total)):
                        begin = tuple(low if i == axis else Dim.of(0) for i in range(a.ndim))
                        end = tuple(high if i == axis else d for i, d in enumerate(a.shape))
                        found.append({"begin": begin, "end": end, "strides": (1,) * a.ndim})
        return found

    # --- types, work and expressions of terms ---

    def use(self, form: int, operands: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The type, (shape, dtype), of an operator's result on operands of these types; None if it does not apply."""
        key = form, operands
        if key not in self._uses:
            self._uses[key] = self._use_anew(form, operands)
        return self._uses[key]

    def _use_anew(self, form: int, operands: tuple[Any, ...]) -> tuple[Any, ...] | None:
        try:
            with strict_sizes():
                made = self.forms[form].on([var(f"x{i}", Tensor(*t)) for i, t in enumerate(operands)])
        except RelaxEgError:
            return None
        a = made.annotation
        if (
            not isinstance(a, Tensor)
            or a.shape is None
            or len(a.shape) > max(_MOST_AXES, *(len(v.shape) for v in self.variables))
        ):
            return None
        if not (is_float(made.dtype) or is_integer(made.dtype) or made.dtype == "bool"):
            return None
        at = {v: _WORK_SIZE for d in (*a.shape, *(d for t in operands for d in t[0])) for v in d.variables}
        inside = postorder(inline_libraries([made]))
        try:
            work = sum(_flops(x, at) for x in inside if x.args and isinstance(x.annotation, Tensor))
        except IndexError:  # dimension numbers of a lookup in operands of other ranks
            return None
        self._works[form, operands] = work
        return a.shape, a.dtype

    def work(self, t: Term) -> int:
        """The flops of a term where every axis has 8 elements; each operator has at least one."""
        if isinstance(t, int):
            return 0
        if t not in self._work_of:
            types = tuple(self.type_of(a) for a in t[1:])
            self.use(t[0], types)
            self._work_of[t] = self._works.get((t[0], types), 0) + sum(map(self.work, t[1:]))
        return self._work_of[t]

    def type_of(self, t: Term) -> tuple[Any, ...]:
        """The type of a term, (shape, dtype)."""
        if isinstance(t, int):
            return self.leaves[t].shape, self.leaves[t].dtype
        if t not in self._types:
            found = self.use(t[0], tuple(map(self.type_of, t[1:])))
            if found is None:
                raise OperatorError(f"{self.forms[t[0]]} does not apply to these operands")
            self._types[t] = found
        return self._types[t]

    def expression(self, t: Term) -> Expr:
        if isinstance(t, int):
            return self.leaves[t]
        if t not in self._exprs:
            self._exprs[t] = self.forms[t[0]].on([self.expression(a) for a in t[1:]])
        return self._exprs[t]

    def forget(self) -> None:
        """Drops what is kept of terms, whose number is bounded by the terms of one size only."""
        self._types.clear()
        self._work_of.clear()
        self._exprs.clear()

    @cached_property
    def size_variables(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(v for x in self.variables for d in x.shape for v in sorted(d.variables)))

    def __str__(self) -> str:
        return f"{' | '.join(map(str, self.forms))} over {self.declared_text}"


def _flops(e: Expr, at: Mapping[str, int]) -> int:
    """The flops of one use of an operator at these sizes. A choice or a copy of an element is an instruction as well as
    a sum."""
    placed = equations_at(e.op, tuple(x.annotation for x in e.args), e.attrs, e.annotation)
    elements = math.prod(int(d.evaluate(at)) for d in e.shape)
    if placed is None:
        return elements
    sizes = {**at, **{v: int(d.evaluate(at)) for v, d in placed.sizes.items()}}
    return max(int(count(placed.program).flops.evaluate(sizes)), elements)


def _routine(library: Library, attributes: Mapping[str, Any]) -> OperatorForm:
    """A routine as terms have it. Raises DiscoveryError."""
    arity = len(inspect.signature(library.pattern).parameters) - len(library.attributes) - len(library.sizes)
    if library.sizes or set(attributes) != set(library.attributes):
        wanted = ", ".join((*library.attributes, *library.size_names)) or "none"
        given = ", ".join(attributes) or "none"
        raise DiscoveryError(
            f"library `{library.name}` takes attributes {wanted}, and {given} are given; "
            "accepted: a value for each, and no sizes"
        )
    if not 1 <= arity <= _MOST_ARITY:
        raise DiscoveryError(f"library `{library.name}` takes {arity} operands; 1 to {_MOST_ARITY} are accepted")
    return OperatorForm(library.name, arity, tuple(attributes.items()), is_library=True)


def _program_in(given: str | TensorProgram | OperatorForm) -> TensorProgram | None:
    return given if isinstance(given, TensorProgram) else given.program if isinstance(given, OperatorForm) else None


def _signature(variables: str) -> dict[str, Spec]:
    if not isinstance(variables, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DiscoveryError(f"variables={short_repr(variables)}: a signature such as 'x: n, y: n' is accepted")
    try:
        found = parse_signature(variables)
    except SpecError as e:
        raise DiscoveryError(f"variables: {e}") from None
    if not found:
        raise DiscoveryError("variables: none are given; a signature such as 'x: n, y: n' is accepted")
    return found


def _fresh(signature: Mapping[str, Spec], with_scalars: bool) -> dict[str, Spec]:
    """Variables with the specs of others, and scalars for constants, under names that no variable and no size has."""
    specs = {(s.dims, s.dtype): s for s in reversed([*signature.values()]) if None not in s.dims}
    if with_scalars:
        dtypes = [s.dtype for s in signature.values() if s.dtype != "bool"]
        specs = {((), d): Spec((), d, f"@ {d}" if d else "") for d in dtypes} | specs
    taken = {*signature, *re.findall(r"[^\W\d]\w*", " ".join(s.text for s in signature.values()))}
    names = (n for n in itertools.chain("uvwpqrtghef", (f"x{i}" for i in itertools.count())) if n not in taken)
    return {next(names): s for s in reversed(specs.values()) for _ in range(_FRESH)}


def _record(name: str) -> Operator:
    """The record of an operator that terms may contain. Raises DiscoveryError."""
    try:
        record = get(name)
    except OperatorError as e:
        raise DiscoveryError(f"operators: {e}") from None
    if _KEYS in record.parameters:
        raise DiscoveryError(
            f"operator `{name}` draws from random keys, of which no law is known; "
            "accepted: operators whose values follow from numbers"
        )
    if name in _EFFECTS:
        raise DiscoveryError(f"operator `{name}` fixes the order of steps; accepted: operators that compute values")
    return record


_KEYS = "keys"  # given: the name of operands that are random keys
_EFFECTS = frozenset(("after",))  # given: what is there for its effect, not for its value


def _read_operator(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the attributes in a text such as `sum(axes=(0,))`."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DiscoveryError(f"operators: {short_repr(text)} is no operator; a name or a tensor program is accepted")
    found = _NAME.fullmatch(text)
    if found is None:
        raise DiscoveryError(
            f"operators: {text.strip()!r}; a name is accepted, or a name with attributes: 'sum(axes=(0,))'"
        )
    name, inside = found.groups()
    attributes: dict[str, Any] = {}
    if inside:
        try:
            call_ = ast.parse(f"f({inside})", mode="eval").body
            assert isinstance(call_, ast.Call) and not call_.args
            for k in call_.keywords:
                assert k.arg is not None
                attributes[k.arg] = _attribute(k.value)
        except (SyntaxError, ValueError, AssertionError):
            raise DiscoveryError(
                f"operators: {text.strip()!r}; accepted: attributes by name, as in 'sum(axes=(0,))'"
            ) from None
    return name, attributes


def _attribute(value: ast.expr) -> Any:
    """A literal, or a tuple of sizes such as (n, 2*m)."""
    try:
        return ast.literal_eval(value)
    except ValueError:
        if isinstance(value, ast.Tuple):
            return tuple(Dim.of(ast.unparse(x)) for x in value.elts)
        raise


def filled(c: Expr, v: Expr) -> Expr:
    """A constant in the shape of a variable, as rules write it."""
    value = constant_value(c).item()
    return api.zeros_like(v) if value == 0 else api.ones_like(v) if value == 1 else api.full(v.shape, value, v.dtype)
