"""Tables of terms of elements, one for the dtypes of leaves, kept from program to program.

Most of what programs compute is functions of elements, and the terms that may be cheaper are the same for all of them:
few operators on the leaves and on small numbers. So they are enumerated once. A fragment of elements is looked up by
its values where all leaves are vectors of one size, whatever shapes its leaves have in the program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from relax_eg.discovery.grammar import Grammar, filled
from relax_eg.discovery.table import KeptTerms, TermTable, Type
from relax_eg.discovery.terms import Term, size_of
from relax_eg.discovery.values import SamplePoints, in_float64
from relax_eg.driver.laws.fragments import Fragment
from relax_eg.driver.laws.split_terms import ValuesOfTerms, split
from relax_eg.dtypes import is_float
from relax_eg.errors import OperatorError, RelaxEgError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.calls import rebuilt
from relax_eg.ir.expr import CONSTANT, Expr, const, constant_value, postorder, rebuild, var
from relax_eg.ir.heads import with_operands
from relax_eg.ir.module import Function
from relax_eg.ops import api as op
from relax_eg.ops.interpret import evaluate_points
from relax_eg.ops.record import TABLE, call
from relax_eg.shapes import Dim
from relax_eg.traversal import grouped

ELEMENTS = 8  # chosen: elements of a leaf, with 16 draws enough that few terms agree by chance
_MOST_TERMS = 250_000  # limit: terms of one size; a table ends before more
_MOST_OTHERS = 3  # limit: further terms with the values of one, of at most one operator more
_FILLING = ("broadcast_to", "full")  # given: operators that give a number a shape
_NAMES, _OF_FUNCTION = "xyz", "f"  # given: names of the leaves, and of functions of the first one
MOST_LEAVES = len(_NAMES)  # limit: of a fragment; terms grow with a power of it


@dataclass(frozen=True)
class TableKind:
    """Terms of a table.

    - `operators`: their operators.
    - `size`: the most operators of a term.
    - `numbers`: that they have.
    - `functions`: of the first leaf, which are leaves besides, so that a term has them several times for no operator.
    - `leaves`: numbers of leaves of the fragments that are looked up.
    """

    operators: tuple[str, ...]
    size: int
    numbers: tuple[float, ...]
    functions: tuple[Callable[[Any], Any], ...]
    leaves: tuple[int, ...]


def _falling(x: Any) -> Any:
    return op.exp(-op.abs(x))


def _slope_of_sigmoid(x: Any) -> Any:
    """Which is accurate wherever it is: the product of a sigmoid and what is missing to 1 is not."""
    return _falling(x) / op.square(_falling(x) + 1.0)


def _slope_of_tanh(x: Any) -> Any:
    return (1.0 - op.tanh(x)) * (1.0 + op.tanh(x))


_CONSTANTS = (0.0, 1.0, 2.0, 0.5, -1.0)  # chosen: numbers that many functions have
_RATIONAL = ("add", "subtract", "multiply", "divide", "square", "negative")
_POLYNOMIAL = ("add", "subtract", "multiply", "square")
# chosen: many operators for terms of two, fewer for terms of three, and rational functions of a leaf and one of these
KINDS = (
    TableKind(
        ("negative", "abs", "sign", "exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "square", "reciprocal", "sigmoid",
         "tanh", "relu", "add", "subtract", "multiply", "divide", "maximum", "minimum", "less", "greater", "equal",
         "where", "logical_and", "logical_or", "logical_not"),
        2, _CONSTANTS, (), (1, 2, 3),
    ),
    TableKind(("add", "subtract", "multiply", "divide", "exp", "square", "sigmoid", "tanh"), 3, (1.0, 2.0), (), (1,)),
    *(TableKind(_RATIONAL, 3, (1.0, 2.0), (f,), (1,)) for f in (op.exp, _falling, op.tanh)),
    *(
        TableKind(_POLYNOMIAL, 3, (1.0,), f, (n,))
        for f in ((op.tanh, _slope_of_tanh), (op.sigmoid, _slope_of_sigmoid)) for n in (1, 2)
    ),
)  # fmt: skip

Array = np.ndarray[Any, Any]
Leaves = Sequence[Expr]
Terms = tuple[Term, ...]


class KeptTable(TermTable):
    """A table of a kind for leaves of some dtypes."""

    def __init__(self, kind: TableKind, dtypes: Sequence[str]) -> None:
        names = [*_NAMES[: len(dtypes)], *(f"{_OF_FUNCTION}{n}" for n in range(len(kind.functions)))]
        of = [*dtypes, *(dtypes[0] for _ in kind.functions)]
        variables = ", ".join(
            f"{n}: {ELEMENTS}" + ("" if d == "float32" else f" @ {d}") for n, d in zip(names, of, strict=True)
        )
        grammar = Grammar(kind.operators, variables, kind.numbers, ("float32",))
        points = SamplePoints(grammar, False, 0)
        self.functions, self.leaf_count = kind.functions, len(dtypes)
        x = var(_NAMES[0], Tensor((Dim.of(ELEMENTS),), "float64"))
        for values in points.values:
            for n, function in enumerate(kind.functions):
                made = evaluate_points((function(x),), {x: values[0]}, {}, len(values[0]))
                values[self.leaf_count + n] = np.asarray(made[0])
        super().__init__(grammar, points)
        self._others: dict[Term, list[Term]] = {}
        while self.size < kind.size and self.next_count() <= _MOST_TERMS:
            for pair in self.grow():
                others = self._others.setdefault(pair.right, [])
                larger = size_of(pair.left) > size_of(pair.right) + 1 or pair.right in pair.left
                if len(others) < _MOST_OTHERS and not larger:
                    others.append(pair.left)
        kept = grouped((t, own) for (t, _), own in sorted(self._kept.items(), key=lambda x: x[0][1]))
        self._values = {t: self._values_of_type(t, own) for t, own in kept.items()}
        self.forget()
        self._form_of = {f.op: n for n, f in enumerate(grammar.forms) if not f.attributes}

    def _values_of_type(self, t: Type, kept: Sequence[KeptTerms]) -> ValuesOfTerms:
        """The terms of a type with their values, the numbers of the table among them."""
        g, (points,) = self.grammar, self.points.values
        numbers = {i: c for i, (c, v) in g.filled.items() if (v.shape, v.dtype) == t}
        # A number is a leaf in the shape of a variable, and as an operand another one.
        scalars = {g.leaves[i]: i for i in g.operands if g.leaves[i].op == CONSTANT}
        terms = [*(scalars[c] for c in numbers.values()), *(x for own in kept for x in own.terms)]
        values = np.stack([*(points[i] for i in numbers), *(v[0] for own in kept for v in own.values)])
        values = values.reshape(len(terms), -1)
        return ValuesOfTerms(terms, values, partial(self._canonical, t[1]))

    def _canonical(self, dtype: str, values: Array) -> Array:
        rows = self.points.rows([values[:, None]], dtype)
        return rows.view(np.float64) if is_float(dtype) else rows

    def terms_with(self, root: Expr, most: int) -> list[Terms]:
        """Terms with the values of an expression as `values_of` takes it: those of the table, wherever the expression
        has a value, or else some of two parts with fewer than `most` operators. Those together that differ in terms
        with equal values."""
        (values,), t = self.values_of(root)
        row = self.points.rows([values[None]], root.dtype)[0]
        if not self.points.defined(row, t[1]):
            return []
        found = self.with_row(row, t)
        if found is not None or not is_float(t[1]) or t not in self._values:
            return [] if found is None else [(found, *self._others.get(found, ()))]
        f, own = values.reshape(-1), self._values[t]
        if (inside := own.where_defined(f)) is not None:
            return [(inside, *self._others.get(inside, ()))]
        parts = split(own, self._values.get((t[0], "bool")), f, self._form_of) if most else []
        return [(term, *self._with_other_parts(term)) for term in parts if size_of(term) < most]

    def _with_other_parts(self, term: Term) -> Iterator[Term]:
        """The same of two parts with another term of its values for one: it may be more accurate, or less work."""
        for i in range(1, len(term)):
            for other in self._others.get(term[i], ()):
                yield (*term[:i], other, *term[i + 1 :])

    def written(self, t: Term, leaves: Leaves, like: Expr) -> Expr:
        """A term on other leaves. `like`: of whose shape it is where it is a number. Raises OperatorError."""
        g = self.grammar
        if not isinstance(t, int):
            form = g.forms[t[0]]
            return call(form.op, tuple(self.written(a, leaves, like) for a in t[1:]), dict(form.attributes))
        if t in g.filled:
            return filled(g.filled[t][0], like)
        if t >= g.declared_count:
            return g.leaves[t]
        return leaves[t] if t < self.leaf_count else self.functions[t - self.leaf_count](leaves[0])


Hit = tuple[KeptTable, Terms]


class ElementTables:
    """The tables, of some kinds, made when fragments with leaves of their dtypes are looked up."""

    def __init__(self, kinds: Sequence[TableKind] = KINDS) -> None:
        self._kinds = kinds
        self._known: dict[tuple[str, ...], list[KeptTable]] = {}
        self._hits: dict[Expr, list[Hit]] = {}

    def hits(self, x: Fragment) -> list[tuple[KeptTable, Terms, Leaves]] | None:
        """The terms of tables that have the values of a fragment, those together that differ in parts of equal values,
        with what their variables stand for: its leaves, and its numbers that no table has, so that a law holds for all
        of these. None if an operator is none of elements."""
        found: list[tuple[KeptTable, Terms, Leaves]] = []
        for leaves in dict.fromkeys((x.leaves, (*x.leaves, *_other_numbers(x)))):
            leaves = tuple(sorted(leaves, key=lambda a: (not is_float(a.dtype), a.dtype)))
            if len(leaves) > MOST_LEAVES:
                continue
            made = _on_vectors(x.root, leaves)
            if made is None:
                return None
            if made not in self._hits:
                self._hits[made] = self._equal_to(made, tuple(a.dtype for a in leaves), len(x.inside))
            found += [(table, terms, leaves) for table, terms in self._hits[made]]
        return found

    def is_of_elements(self, x: Fragment) -> bool:
        """Whether a fragment is looked up."""
        return len(x.leaves) > MOST_LEAVES or _on_vectors(x.root, x.leaves) is not None

    def _equal_to(self, made: Expr, dtypes: tuple[str, ...], most: int) -> list[Hit]:
        if dtypes not in self._known and (len(set(dtypes)) > 2 or dtypes.count("bool") > 1):
            return []  # few fragments have such leaves, and each such table takes seconds
        if dtypes not in self._known:
            kinds = (k for k in self._kinds if len(dtypes) in k.leaves and (not k.functions or is_float(dtypes[0])))
            self._known[dtypes] = [KeptTable(k, dtypes) for k in kinds]
        try:
            tables = self._known[dtypes]
            found = [(table, terms) for table in tables for terms in table.terms_with(made, 0)]
            return found or [(table, terms) for table in tables for terms in table.terms_with(made, most)]
        except RelaxEgError:  # an operator that is not evaluated
            return []


def _other_numbers(x: Fragment) -> Leaves:
    inside = dict.fromkeys(a for e in postorder((x.root,), stop=frozenset(x.leaves).__contains__) for a in e.args)
    return tuple(a for a in inside if a.op == CONSTANT and not constant_value(a).ndim and _is_other(a))


def _is_other(number: Expr) -> bool:
    value = float(constant_value(number).item())
    return math.isfinite(value) and value not in _CONSTANTS


def _on_vectors(root: Expr, leaves: Leaves) -> Expr | None:
    """A fragment on leaves that are vectors of one size; None if an operator is none of elements."""
    try:
        scalars = _rebuilt(root, leaves, ())
        made = _rebuilt(root, leaves, (Dim.of(ELEMENTS),))
    except RelaxEgError:  # it has axes
        return None
    return made if all(e.op == CONSTANT or e.shape == () for e in postorder((scalars,))) else None


def _rebuilt(root: Expr, leaves: Leaves, shape: tuple[Dim, ...]) -> Expr:
    """A fragment on leaves of one shape, in float64. OperatorError for what is none of operators, or has axes."""

    def made(e: Expr, args: tuple[Expr, ...]) -> Expr:
        if e.op == CONSTANT:
            return const(np.asarray(constant_value(e), np.float64), "float64") if is_float(e.dtype) else e
        if e.op in _FILLING and args[0].op == CONSTANT and not args[0].ndim:
            return args[0]  # a number broadcasts
        if e.op not in TABLE:
            raise OperatorError(f"{e.op} is no operator")
        return call(e.op, args, dict(in_float64(e.attrs)))

    variables = {
        x: var(_NAMES[i], Tensor(shape, "float64" if is_float(x.dtype) else x.dtype)) for i, x in enumerate(leaves)
    }
    return rebuild([root], made, variables)[0]


def with_term(f: Function, root: Expr, made: Expr) -> Function | None:
    """A function with a term in place of a fragment's root; None where that has another type."""
    if made.annotation != root.annotation:
        return None
    return rebuilt(f, lambda e, args: made if e is root else with_operands(e, args))
