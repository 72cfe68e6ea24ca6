"""Solutions of systems as products with inverses, which are variables.

`triangular_solve(U, triangular_solve(L, rows of b in the order of lu(A)))` is `matmul(inverse of A, b)`. The inverse of
a product, a transpose, a multiple, a Kronecker product or a diagonal matrix is written with inverses of its factors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from relax_eg.dtypes import is_float
from relax_eg.errors import RelaxEgError
from relax_eg.ir.expr import TUPLE_GET, VAR, Expr, postorder, var
from relax_eg.ir.heads import with_operands
from relax_eg.ops import api as op
from relax_eg.ops.record import TABLE
from relax_eg.rules.matrices.relations import InverseOf, Relations, part_of, triangle, with_diagonals
from relax_eg.rules.sums_of_products.accesses import Access, Letter, ProductTerm
from relax_eg.rules.sums_of_products.emit import Emitter
from relax_eg.rules.sums_of_products.letters import SumOfProducts, sums_of_products
from relax_eg.rules.sums_of_products.plan import Planner
from relax_eg.rules.sums_of_products.region import Region, is_view, region_of, terms_of
from relax_eg.rules.verify_formal.compose import Composer, Unsupported, indices_of
from relax_eg.rules.verify_formal.guards import Deadline, OutOfTime
from relax_eg.shapes import Dim, dim_max, dim_min
from relax_eg.tir.expr import Apply, Cast, Const, Index, Read, Scalar, Select

_READING = 1.0  # limit: seconds of processor time of reading a region
_MOST_VIEWS = 16  # limit: operators between two steps of a solution

Extent = Callable[[Dim], int]
Price = Callable[[float, float, bool], float]


@dataclass
class Lift:
    """Writes programs over inverses.

    - `facts_of`: the facts of a value of the program.
    - `is_cut`: whether a value is a leaf although its operator could be read.
    - `extent`, `price`: the number for a size, and the price of a step, by which products are ordered.
    - `solved`: by variable, the inverse that it stands for.
    - `inverted`: the inverses that were needed so far.
    - `laws`: number of laws applied so far.
    - `gathers`: whether rows of matrices are gathered, so that they have some.
    """

    facts_of: Callable[[Expr], frozenset[str]]
    is_cut: Callable[[Expr], bool]
    extent: Extent
    price: Price
    solved: dict[Expr, InverseOf] = field(default_factory=dict[Expr, InverseOf])
    inverted: set[InverseOf] = field(default_factory=set[InverseOf])
    laws: int = 0
    gathers: bool = False
    _made: dict[Expr, Expr] = field(default_factory=dict[Expr, Expr])
    _variables: dict[InverseOf, Expr] = field(default_factory=dict[InverseOf, Expr])
    _inverses: dict[Expr, Expr] = field(default_factory=dict[Expr, Expr])
    _originals: dict[Expr, Expr] = field(default_factory=dict[Expr, Expr])

    @property
    def relations(self) -> Relations:
        return Relations(self.facts, self.solved, self.inverse, self.terms)

    def facts(self, e: Expr) -> frozenset[str]:
        """The facts of a value, or of what was written for it."""
        return self.facts_of(self._originals.get(e, e))

    # --- programs over inverses ---

    def lifted(self, root: Expr) -> Expr:
        """`root` over inverses."""
        if root in self._made:
            return self._made[root]
        for e in postorder((root,), stop=lambda x: x in self._made or (x is not root and self._is_leaf(x))):
            if e not in self._made:
                self._made[e] = e if e is not root and self._is_leaf(e) else self._lifted(e)
                self._originals.setdefault(self._made[e], e)
        return self._made[root]

    def _is_leaf(self, e: Expr) -> bool:
        return self.is_cut(e) or not (is_read(e) or e.op == TUPLE_GET)

    def _lifted(self, e: Expr) -> Expr:
        if is_factorisation(e):
            made = self._of_factors(e)
            self.laws += made is not None and made is not e
            return e if made is None else made
        if e.op == TUPLE_GET:
            made = self._of_factors(e.args[0])
            self.laws += made is not None and made is not e.args[0]
            return e if made is None else with_operands(e, (made,))
        operands = tuple(self.lifted(a) for a in e.args)
        if _is_square(e):
            return op.multiply(operands[0], operands[0])
        return with_operands(e, operands)

    def _of_factors(self, e: Expr) -> Expr | None:
        """A system's solution as a product; any other library routine with its operand in the shortest form; None for
        what is none."""
        if not is_factorisation(e) or not all(is_float(a.dtype) for a in e.args):
            return None
        if len(e.args) == 2:
            return self._solution(e)
        (a,) = e.args
        short = self.shortest(a)
        if e.op == "cholesky" and (root := self._root_of_diagonal(a)) is not None:
            return root
        return e if short is a else with_operands(e, (short,))

    def shortest(self, e: Expr) -> Expr:
        """`e` with factors that cancel left out; `e` itself if none do."""
        lifted = self.lifted(e)
        s, count = self._reduced(lifted)
        if not count or any(x in self.solved for x in postorder((self.emitted(s),))):
            return e
        made = self.emitted(s)
        self._originals.setdefault(made, e)
        return made

    def _solution(self, e: Expr) -> Expr | None:
        a, b = e.args
        lower, unit = bool(e.attr("lower")), bool(e.attr("unit_diagonal"))
        on_left, turned = bool(e.attr("left_side")), bool(e.attr("transpose_a"))
        whole = self._whole_system(e) if on_left and not turned and not lower and not unit else None
        if whole is not None:
            matrix, right = whole
            return op.matmul(self.inverse(matrix), self.lifted(right))
        if (made := part_of(a)) is not None and made[:2] == ("lu", 0):
            return None  # half of a system
        while True:
            if a.op == "permute_dims" and _swaps(a):
                (a,), lower, turned = a.args, not lower, not turned
            elif (inner := self._without_mask(a, lower)) is not None:
                a = inner
            else:
                break
        inverse = self._variable(InverseOf(a, "lower" if lower else "upper", unit))
        inverse = swapped(inverse) if turned else inverse
        right = self.lifted(b)
        return op.matmul(inverse, right) if on_left else op.matmul(right, inverse)

    def _without_mask(self, a: Expr, lower: bool) -> Expr | None:
        """The matrix of which `a` is the triangle that a solution reads; None if it is all of one."""
        if len(a.args) != 3 or terms_of(a) is None:
            return None
        mask, x, _ = a.args
        s = self.terms(a)
        if x.shape != a.shape or len(s.terms) != 1 or any(len(g) != 1 for g in s.result):
            return None
        (term,), letters = s.terms, tuple(g[0] for g in s.result)
        inside = [f for f in term.factors if f.value.dtype != "bool"]
        masks = [f for f in term.factors if f.value.dtype == "bool"]
        if len(inside) != 1 or len(masks) != 1 or mask.dtype != "bool" or inside[0] != Access(x, letters):
            return None
        i, j = letters[-2:]
        kept = triangle(i, j, s.extents, "lower" if lower else "upper")
        return x if set(masks[0].letters) == {i, j} and masks[0].value is kept else None

    def _whole_system(self, e: Expr) -> tuple[Expr, Expr] | None:
        """The matrix and the right side of a system that is solved by its LU factors; `e`: the second half."""
        factors = part_of(e.args[0])
        if factors is None or factors[:2] != ("lu", 0):
            return None
        node = factors[2]
        first = e.args[1]
        for _ in range(_MOST_VIEWS):
            if not is_view(first):
                break
            (first,) = first.args
        if first.op != e.op or first.args[0] is not e.args[0] or not _is_same_element(e.args[1], first):
            return None
        wanted = {"left_side": True, "lower": True, "transpose_a": False, "unit_diagonal": True}
        if any(first.attr(k) is not v for k, v in wanted.items()):
            return None
        right = _in_own_order(first.args[1], node)
        self.gathers = self.gathers or right is not None
        return None if right is None else (node.args[0], right)

    # --- inverses ---

    def inverse(self, matrix: Expr) -> Expr:
        """The expression for the inverse of a matrix, or of a batch of them."""
        if matrix not in self._inverses:
            self._inverses[matrix] = self._inverse(matrix)
        return self._inverses[matrix]

    def _inverse(self, matrix: Expr) -> Expr:
        if matrix in self.solved and not self.solved[matrix].triangle:
            return self.solved[matrix].of
        if "orthogonal" in self.facts(matrix):
            return swapped(self.lifted(matrix))
        lifted = self.lifted(matrix)
        s, count = self._reduced(lifted)
        inverted = self.inverted_product(self.with_diagonals(s)) if len(s.terms) == 1 else None
        if inverted is not None:
            return self.emitted(inverted)
        of = self.emitted(s) if count else lifted
        if any(x in self.solved for x in postorder((of,))):
            of = matrix
        self._originals.setdefault(of, matrix)
        return self._variable(InverseOf(of))

    def _variable(self, what: InverseOf) -> Expr:
        if f"{what.triangle}_triangular" in self.facts(what.of) and not what.has_unit_diagonal:
            what = InverseOf(what.of)  # the triangle is all of it
        if what not in self._variables:
            made = var(f"inverse {len(self._variables)}", what.of.annotation)
            self._variables[what], self.solved[made] = made, what
        self.inverted.add(what)
        return self._variables[what]

    def inverted_product(self, s: SumOfProducts) -> SumOfProducts | None:
        """The inverse of a product of square matrices, diagonal matrices and numbers; None if `s` is none."""
        (term,) = s.terms
        if len(s.result) < 2 or len(s.result[-1]) != len(s.result[-2]) or term.coefficient == 0:
            return None
        batch = {x for g in s.result[:-2] for x in g}
        edges: dict[Letter, list[Access]] = {}
        factors: list[Access] = []
        for f in term.factors:
            own = [x for x in f.letters if x not in batch]
            if len(own) > 2 or (len(own) == 2 and (f.divides or tuple(own) != f.letters[-2:])):
                return None
            if len(own) < 2:
                factors.append(replace(f, divides=not f.divides))
                if not own and f.value.dtype == "bool":
                    return None
                continue
            for x in own:
                edges.setdefault(x, []).append(f)
        # Each row letter leads to its column letter by matrices, whose inverses lead back.
        done: list[Access] = []
        for first, last in zip(s.result[-2], s.result[-1], strict=True):
            at = first
            while at != last:
                step = [f for f in edges.get(at, ()) if f not in done]
                if len(step) != 1 or any(s.extents[x] != s.extents[first] for x in step[0].letters[-2:]):
                    return None
                (f,) = step
                done.append(f)
                x, y = f.letters[-2:]
                at = y if at == x else x
        if any(f not in done for fs in edges.values() for f in fs) or self._is_no_product(term, done, s.result[-2]):
            return None
        for f in done:
            if f.value.dtype == "bool" or "orthogonal" in self.facts(f.value):
                factors.append(f)
            else:
                inner = self.inverse(f.value) if f.value in self.solved else self._variable(InverseOf(f.value))
                factors.append(Access(inner, (*f.letters[:-2], f.letters[-1], f.letters[-2])))
        result = (*s.result[:-2], s.result[-1], s.result[-2])
        made = ProductTerm(1 / term.coefficient, term.divisors, term.sizes, tuple(factors))
        return replace(s, terms=(made,), result=result)

    def _is_no_product(self, t: ProductTerm, done: Sequence[Access], rows: tuple[Letter, ...]) -> bool:
        """Whether a term is a single matrix that is neither known to be orthogonal nor an inverse."""
        if len(t.factors) != 1 or len(done) != 1 or t.coefficient != 1 or t.sizes or t.divisors:
            return False
        (f,) = done
        is_plain = f.value.dtype != "bool" and f.value not in self.solved and "orthogonal" not in self.facts(f.value)
        return is_plain and rows == f.letters[-2:-1]

    def _root_of_diagonal(self, a: Expr) -> Expr | None:
        """The square root of a positive definite diagonal matrix; None for any other matrix."""
        if not {"diagonal", "positive_definite"} <= self.facts_of(a):
            return None
        s, _ = self._reduced(self.lifted(a))
        if len(s.terms) != 1 or any(len(g) != 1 for g in s.result):
            return None
        (term,) = s.terms
        masks = [f for f in term.factors if f.value.dtype == "bool"]
        rest = tuple(f for f in term.factors if f.value.dtype != "bool")
        rows = [x for g in s.result[:-1] for x in g]
        if len(masks) != 1 or any(x not in rows for f in rest for x in f.letters):
            return None
        n = a.shape[-1]
        values = replace(s, terms=(replace(term, factors=rest),), result=s.result[:-1], shape=a.shape[:-1])
        mask = op.equal(op.iota((n, n), 0), op.iota((n, n), 1))
        spread = op.expand_dims(op.sqrt(self.emitted(values)), a.ndim - 1)
        return op.where(mask, op.broadcast_to(spread, a.shape), op.zeros(a.shape, a.dtype))

    # --- sums of products ---

    def terms(self, e: Expr) -> SumOfProducts:
        """The terms of an expression over inverses, before factors cancel."""
        region = region_of(e, lambda x: False)
        return _plain(e) if region is None else _terms_of_region(region)

    def _reduced(self, e: Expr) -> tuple[SumOfProducts, int]:
        s, count = self.relations.reduced(self.terms(e))
        self.laws += count
        return s, count

    def reduced(self, e: Expr) -> SumOfProducts:
        """The terms of a program over inverses, without the factors that cancel."""
        return self._reduced(self.lifted(e))[0]

    def with_diagonals(self, s: SumOfProducts) -> SumOfProducts:
        """`s` with diagonals in place of matrices times the identity. An axis that may be empty has no position to
        gather from."""
        free = frozenset(x for g in s.result for x in g)
        return replace(s, terms=tuple(with_diagonals(t, free) for t in s.terms)) if self.gathers else s

    def emitted(self, s: SumOfProducts) -> Expr:
        """An expression for `s`, in the cheapest order of its products."""
        s = self.with_diagonals(s)
        extents = dict(s.extents)
        planner = Planner(extents, self.extent, self.price, s.dtype, lambda x: False)
        plan = planner.best(s) if s.terms else None
        return Emitter(s, extents, self.extent).expression(plan)

    def start_again(self) -> None:
        """Forgets which inverses were needed so far."""
        self.inverted, self._made, self._inverses = set(), {}, {}


def is_read(e: Expr) -> bool:
    """Whether the operator of `e` adds and multiplies, factors a matrix or solves a system."""
    return is_factorisation(e) or _is_square(e) or terms_of(e) is not None


def _is_square(e: Expr) -> bool:
    return e.op == "integer_pow" and e.attr("y") == 2


def is_factorisation(e: Expr) -> bool:
    """Whether the operator of `e` factors a matrix or solves a system."""
    return e.op in TABLE and TABLE[e.op].kernel in ("factorisation", "solve")


def swapped(e: Expr) -> Expr:
    """The matrices of `e`, transposed."""
    return op.swapaxes(e, e.ndim - 2, e.ndim - 1)


def _swaps(e: Expr) -> bool:
    axes, n = tuple(e.attr("axes")), e.ndim
    return n > 1 and axes == (*range(n - 2), n - 1, n - 2)


def _plain(e: Expr) -> SumOfProducts:
    """An expression as the only factor of its only term."""
    extents = {i: n for i, n in enumerate(e.shape)}
    term = ProductTerm(Fraction(1), (), (), (Access(e, tuple(extents)),))
    return SumOfProducts((term,), tuple((i,) for i in extents), extents, e.shape, e.dtype)


def _terms_of_region(region: Region) -> SumOfProducts:
    try:
        read, *_ = sums_of_products(region, Deadline(time.thread_time() + _READING))
    except (Unsupported, OutOfTime, RelaxEgError):
        return _plain(region.root)
    return read if isinstance(read, SumOfProducts) else _plain(region.root)


# --- reading elements ---


def _is_same_element(e: Expr, x: Expr) -> bool:
    """Whether `e` is `x`, moved there and back."""
    if e.shape != x.shape:
        return False
    at = indices_of(e)
    return Composer({x: "x"}).element(e, at) == Read("x", at, x.dtype)  # x is no variable


def _in_own_order(rows: Expr, lu: Expr) -> Expr | None:
    """The matrix whose rows, in the order that `lu` gives, are `rows`; None if they are in another order."""
    path = [rows]
    for _ in range(_MOST_VIEWS):
        e = path[-1]
        if len(e.args) == 2 and e.args[0].shape == e.shape and _order_below(e.args[1], lu) is not None:
            break
        if not is_view(e):
            return None
        path.append(e.args[0])
    taken = path[-1]
    order = _order_below(taken.args[1], lu) if len(taken.args) == 2 else None
    if order is None:
        return None
    made = taken.args[0]
    name = str(made.attr("name")) if made.op == VAR else "x"
    inner = {order: "order", made: name}
    for e in reversed(path[:-1]):
        made = with_operands(e, (made,))
    composer, at = Composer(inner), indices_of(rows)
    there, own = composer.element(rows, at), Composer(inner).element(made, at)
    if not isinstance(there, Read) or not isinstance(own, Read) or not there.buffer == own.buffer == name:
        return None
    row, n = at[-2], rows.shape[-2]
    for i, k in zip(there.indices, own.indices, strict=True):
        if i == k and isinstance(i, Dim) and row not in (i,):
            continue
        names = [v for v in i.variables if v in composer.opaque] if isinstance(i, Dim) else []
        if k != row or len(names) != 1 or _place(composer.opaque[names[0]], n) != Read("order", at[:-1], "int32"):
            return None
        position = Dim.var(names[0])
        if i not in (position, dim_min(n - 1, dim_max(0, position))):
            return None
    return made


def _order_below(e: Expr, lu: Expr) -> Expr | None:
    """The order of rows that `lu` gives, if `e` is computed from it."""
    for x in postorder((e,)):
        if x.op == TUPLE_GET and x.args[0] is lu and x.attr("index") == 2:
            return x
    return None


def _place(s: Scalar, n: Dim) -> Scalar:
    """A position that is at least 0 and less than `n`, without what would correct others."""
    while True:
        match s:
            case Cast():
                s = s.arg
            case Apply("maximum", (inner, Const(0))) | Apply("minimum", (inner, _)) if s.fn == "maximum" or _is_last(
                s.args[1], n
            ):
                s = inner
            case Select(Apply("less", (x, Const(0))), _, y) if x == y:
                s = y
            case _:
                return s


def _is_last(s: Scalar, n: Dim) -> bool:
    if isinstance(s, Index):
        return s.dim == n - 1
    return isinstance(s, Const) and n.is_const and s.value == n.value - 1
