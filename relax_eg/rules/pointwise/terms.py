"""Terms of an expression: parts of it that compute each element from one element of each of a few leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from relax_eg.dtypes import is_float, names_where, numpy_dtype
from relax_eg.errors import RelaxEgError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import CONSTANT, VAR, Expr, const, constant_value, postorder, rebuild, var
from relax_eg.limits import MANY_KEPT
from relax_eg.ops.api import broadcast_to
from relax_eg.ops.record import TABLE, call, movement_operators, program_of, site_of
from relax_eg.shapes import Dim
from relax_eg.tir.analyze import stage_flops
from relax_eg.tir.expr import Apply, Cast, Const, Read, Scalar, Select, walk
from relax_eg.tir.functions import FUNCTIONS, functions_with_trait

Array = np.ndarray[Any, Any]
Cost = tuple[int, int]  # flops of an element, and number of operators

MOST_LEAVES = 3  # limit: leaves of a term; the tables of short terms grow with their third power
_DEEPEST = 6  # limit: operators on a path from the root of a term to a leaf
_MOST_NODES = 12  # limit: operators of a term
_PLAIN = names_where(lambda d: d.kind in "biuf" and not d.is_narrow)
_UNROUNDED = functions_with_trait("unrounded")
_COPIES = movement_operators("view", "repeat")


@dataclass(frozen=True, slots=True)
class PointwiseTerm:
    """A part of an expression that computes each element from one element of each leaf.

    - `root`: the expression.
    - `leaves`: the expressions from which it is computed, by dtype; constants are none.
    - `scalar`: the same expression over scalar variables in place of the leaves.
    """

    root: Expr
    leaves: tuple[Expr, ...]
    scalar: Expr

    @property
    def variables(self) -> tuple[Expr, ...]:
        return tuple(variable(i, x.dtype) for i, x in enumerate(self.leaves))

    def of_tensors(self, scalar: Expr) -> Expr:
        """`scalar`, over the same variables, of the leaves, in the shape of the root. Raises RelaxEgError if that does
        not exist."""
        made = over(scalar, dict(zip(self.variables, self.leaves, strict=True)))
        return made if made.shape == self.root.shape else broadcast_to(made, self.root.shape)


@lru_cache(MANY_KEPT)
def variable(i: int, dtype: str) -> Expr:
    """The scalar variable for leaf number `i`."""
    return var(f"x{i}", Tensor((), dtype))


def over(e: Expr, leaves: Mapping[Expr, Expr]) -> Expr:
    """`e` with some expressions in it replaced. Raises RelaxEgError if operators do not apply to these."""
    return rebuild([e], lambda x, args: call(x.op, args, dict(x.attrs)) if args else x, leaves)[0]


_LENGTH = Dim.var("n")
_MOST_KNOWN = 1 << 14  # limit: uses of operators of which it is known whether they are pointwise


@lru_cache(_MOST_KNOWN)
def equation_of(op: str, dtypes: tuple[str, ...], attrs: tuple[tuple[str, Any], ...] = ()) -> Scalar | None:
    """What an operator computes of one element of each operand, which it reads from buffers named as in its record;
    None if it does not exist for these dtypes, is not pointwise, or reads the bits of floats, which samples in float64
    do not have."""
    record = TABLE.get(op)
    if record is None or record.equations is None or record.moves not in (None, "convert") or not dtypes:
        return None
    try:
        made = program_of(site_of(call(op, tuple(variable(i, d) for i, d in enumerate(dtypes)), dict(attrs))))
        # What applies to scalars alone, such as to put nothing around one, is no function of elements.
        vectors = call(op, tuple(var(f"x{i}", Tensor((_LENGTH,), d)) for i, d in enumerate(dtypes)), dict(attrs))
    except RelaxEgError:
        return None
    if vectors.shape != (_LENGTH,):
        return None
    if made is None or len(made.stages) != 1 or made.stages[0].output.shape:
        return None
    (stage,) = made.stages
    return stage.value if all(map(_is_of_numbers, walk(stage.value))) else None


def _is_of_numbers(s: Scalar) -> bool:
    """Whether a part of an equation is a function of numbers, whatever the bits of floats are."""
    if isinstance(s, Apply) and not FUNCTIONS[s.fn].widens:
        return not any(is_float(x.dtype) for x in (s, *s.children))
    return isinstance(s, (Apply, Cast, Const, Read, Select))


def _is_plain(e: Expr) -> bool:
    return isinstance(e.annotation, Tensor) and e.annotation.dtype in _PLAIN


def _rounds_to_fewer_bits(e: Expr) -> bool:
    """Whether `e` makes floats that cannot hold its operand: who writes that wants the rounding, which real numbers do
    not show."""
    is_cast = TABLE[e.op].moves == "convert" and is_float(e.dtype)
    return is_cast and not np.can_cast(numpy_dtype(e.args[0].dtype), numpy_dtype(e.dtype))


def is_pointwise(e: Expr) -> bool:
    """Whether each element of `e` follows from one element of each operand."""
    if not e.args or e.op not in TABLE or not all(_is_plain(x) for x in (e, *e.args)) or _rounds_to_fewer_bits(e):
        return False
    return equation_of(e.op, tuple(a.dtype for a in e.args), e.attrs) is not None


def terms_of(e: Expr, is_shared: Callable[[Expr], bool]) -> Iterator[PointwiseTerm]:
    """The terms with root `e`, of every depth: those whose leaves are shared values where possible first."""
    if not is_pointwise(e):
        return
    found: set[tuple[Expr, ...]] = set()
    for is_leaf in (is_shared, _never):
        for depth in range(1, _DEEPEST + 1):
            inside, found_leaves, is_whole = _part(e, depth, is_leaf)
            if len(inside) > _MOST_NODES:
                break
            # Terms over leaves of the same dtypes share a table.
            leaves = tuple(sorted(found_leaves, key=lambda x: x.dtype))
            if 0 < len(leaves) <= MOST_LEAVES and leaves not in found:
                found.add(leaves)
                scalar = _scalar(e, inside, leaves)
                if scalar is not None:
                    yield PointwiseTerm(e, leaves, scalar)
            if is_whole:
                break


def _never(e: Expr) -> bool:
    return False


def _part(e: Expr, depth: int, is_leaf: Callable[[Expr], bool]) -> tuple[dict[Expr, None], tuple[Expr, ...], bool]:
    """The pointwise nodes at most `depth` below `e`, without what is below leaves; the leaves; and whether there are no
    deeper nodes."""
    inside: dict[Expr, None] = {e: None}
    level, is_whole = [e], True
    for _ in range(depth - 1):
        level = [a for x in level for a in x.args if a not in inside and not is_leaf(a) and is_pointwise(a)]
        inside.update(dict.fromkeys(level))
    leaves: dict[Expr, None] = {}
    for x in postorder((e,), stop=lambda x: x not in inside):
        if x not in inside and constant_in(x) is None:
            leaves[x] = None
            is_whole = is_whole and (is_leaf(x) or not is_pointwise(x))
    return inside, tuple(leaves), is_whole


def constant_in(e: Expr) -> Expr | None:
    """The scalar constant of which `e` consists; None if there is none."""
    while e.op in _COPIES and len(e.args) == 1:
        (e,) = e.args
    return e if e.op == CONSTANT and isinstance(e.annotation, Tensor) and not e.shape else None


def _scalar(e: Expr, inside: Mapping[Expr, None], leaves: Sequence[Expr]) -> Expr | None:
    made = {x: variable(i, x.dtype) for i, x in enumerate(leaves)}
    around = postorder((e,), stop=lambda x: x not in inside)
    made |= {x: c for x in around if x not in inside and x not in made and (c := constant_in(x)) is not None}
    try:
        return over(e, made)
    except RelaxEgError:
        return None


def cost_of(scalar: Expr) -> Cost:
    """The flops of an element of a scalar expression, and its number of operators."""
    nodes = [x for x in postorder((scalar,)) if x.args]
    return sum(flops_of(x) for x in nodes), len(nodes)


def flops_of(e: Expr) -> int:
    """The flops of an expression's operator on scalars. A choice or a conversion is an instruction as well as a sum."""
    return flops_of_operator(e.op, tuple(a.dtype for a in e.args), e.attrs)


@lru_cache(_MOST_KNOWN)
def flops_of_operator(op: str, dtypes: tuple[str, ...], attrs: tuple[tuple[str, Any], ...] = ()) -> int:
    """The flops of one use of an operator on scalars of these dtypes."""
    made = program_of(site_of(call(op, tuple(variable(i, d) for i, d in enumerate(dtypes)), dict(attrs))))
    return max(int(stage_flops(made.stages[0]).value), 1) if made is not None else 1


def value_of(scalar: Expr, variables: Mapping[Expr, Array]) -> Array:
    """The values of a scalar expression at sample points, floats as float64."""
    found = dict(variables)
    with np.errstate(all="ignore"):
        for x in postorder((scalar,), stop=found.__contains__):
            if x.op == CONSTANT:
                found[x] = sample_array(constant_value(x), x.dtype)
            elif x not in found:
                equation = equation_of(x.op, tuple(a.dtype for a in x.args), x.attrs)
                assert equation is not None
                found[x] = applied(x.op, equation, [found[a] for a in x.args])
    return found[scalar]


def applied(op: str, equation: Scalar, operands: Sequence[Array]) -> Array:
    """The values of an operator on arrays of elements, which broadcast. `equation`: what `equation_of` returns for
    it."""
    return _evaluate(equation, dict(zip(TABLE[op].operand_names(len(operands)), operands, strict=True)))


def sample_array(values: Any, dtype: str) -> Array:
    """An array in the dtype in which samples of `dtype` are computed."""
    return np.asarray(values).astype(np.float64 if is_float(dtype) else numpy_dtype(dtype), copy=False)


def _evaluate(s: Scalar, buffers: Mapping[str, Array]) -> Array:
    if isinstance(s, Read):
        return buffers[s.buffer]
    if isinstance(s, Const):
        return sample_array(s.value, s.dtype)
    args = [_evaluate(c, buffers) for c in s.children]
    if isinstance(s, Select):
        return np.where(*args)
    if isinstance(s, Cast):
        return args[0] != 0 if s.dtype == "bool" else sample_array(args[0], s.dtype)
    assert isinstance(s, Apply)
    return sample_array(FUNCTIONS[s.fn].compute(*args), s.dtype)


def number(value: Any, dtype: str) -> Expr:
    with np.errstate(over="ignore"):
        return const(numpy_dtype(dtype).type(value), dtype)


def is_unrounded(scalar: Expr) -> bool:
    """Whether no operator of a term rounds: it computes with integers, booleans, and what floats are among others."""
    return all(_is_unrounded(x) for x in postorder((scalar,)) if x.args)


def _is_unrounded(e: Expr) -> bool:
    equation = equation_of(e.op, tuple(a.dtype for a in e.args), e.attrs)
    for s in () if equation is None else walk(equation):
        if isinstance(s, Cast):
            (value,) = s.children
            has_floats = is_float(value.dtype) or is_float(s.dtype)
            if has_floats and not np.can_cast(numpy_dtype(value.dtype), numpy_dtype(s.dtype)):
                return False
        elif isinstance(s, Apply) and is_float(s.dtype) and s.fn not in _UNROUNDED:
            return False
    return equation is not None


def leaves_in(scalar: Expr) -> set[Expr]:
    return {x for x in postorder((scalar,)) if x.op == VAR}
