"""Products with inverses as solutions of systems, in the way that is cheapest for what is known of the matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from relax_eg.ir.expr import Expr, postorder
from relax_eg.ir.heads import with_operands
from relax_eg.ops import api as op
from relax_eg.ops.record import TABLE, call
from relax_eg.rules.matrices.lifting import Lift, swapped
from relax_eg.rules.matrices.relations import InverseOf
from relax_eg.shapes import Dim


@dataclass
class SolutionWriter:
    """Writes expressions over inverses as programs.

    - `lift`: what the inverses stand for.
    """

    lift: Lift
    _made: dict[Expr, Expr] = field(default_factory=dict[Expr, Expr])

    def program(self, root: Expr) -> Expr:
        """`root` with solutions in place of products with inverses."""
        for e in postorder((root,), stop=self._made.__contains__):
            if e not in self._made:
                self._made[e] = self._of(e)
        return self._made[root]

    def _of(self, e: Expr) -> Expr:
        found = self.lift.solved.get(e)
        if found is not None:
            return self._solution(found, op.eye(e.shape[-1], dtype=e.dtype), False)
        if e.op in TABLE and TABLE[e.op].kernel == "matmul" and len(e.args) == 2:
            made = self._product(*e.args)
            if made is not None:
                return made
        return with_operands(e, tuple(self._made[a] for a in e.args))

    def _product(self, a: Expr, b: Expr) -> Expr | None:
        """The product of `a` and `b` if one of them is an inverse, or the transpose of one."""
        left, right = self._inverse(a), self._inverse(b)
        if left is not None and right is not None and a.shape == b.shape:
            merged = self._of_both(left, right)
            if merged is not None:
                return merged
        if left is not None:
            return self._applied(*left, self._made[b])
        if right is not None:
            what, turned = right
            x = self._made[a]
            if x.ndim == 1:
                return self._applied(what, not turned, x)
            return swapped(self._applied(what, not turned, swapped(x)))
        return None

    def _inverse(self, e: Expr) -> tuple[InverseOf, bool] | None:
        """What `e` is the inverse of, and whether it is transposed; None if it is no inverse."""
        if e in self.lift.solved:
            return self.lift.solved[e], False
        if len(e.args) == 1 and e.args[0] in self.lift.solved and e is swapped(e.args[0]):
            what = self.lift.solved[e.args[0]]
            return what, not self.lift.relations.is_symmetric(e.args[0])
        return None

    def _of_both(self, left: tuple[InverseOf, bool], right: tuple[InverseOf, bool]) -> Expr | None:
        """inv(A) inv(B) as inv(B A), which is one system in place of two; None if one is solved without factors."""
        (a, a_turned), (b, b_turned) = left, right
        if any(x.triangle or self._triangle(x) for x in (a, b)):
            return None
        x, y = (swapped(self.program(s.of)) if t else self.program(s.of) for s, t in ((a, a_turned), (b, b_turned)))
        product = InverseOf(op.matmul(y, x))
        return self._solution(product, op.eye(x.shape[-1], dtype=x.dtype), False)

    def _triangle(self, what: InverseOf) -> str:
        """The triangle of a matrix that has all that is not zero; empty if there is none."""
        if what.triangle:
            return what.triangle
        known = self.lift.facts(what.of)
        if "upper_triangular" in known:
            return "upper"
        return "lower" if {"lower_triangular", "invertible"} <= known else ""

    def _applied(self, what: InverseOf, turned: bool, x: Expr) -> Expr:
        if x.ndim == 1:
            shape = what.of.shape
            column = op.expand_dims(x, 1)
            if len(shape) == 2:
                return op.squeeze(self._solution(what, column, turned), 1)
            return op.squeeze(
                self._solution(what, op.broadcast_to(column, (*shape[:-1], Dim.of(1))), turned), len(shape) - 1
            )
        return self._solution(what, x, turned)

    def _solution(self, what: InverseOf, x: Expr, turned: bool) -> Expr:
        """The solution of the system of `what`, or of its transpose, for the columns of `x`."""
        matrix = self.program(what.of)
        batch, own = matrix.shape[:-2], x.shape[:-2]
        if not batch and own:
            # The columns of all matrices of a batch are those of one.
            rest = [i for i in range(x.ndim) if i != x.ndim - 2]
            flat = op.permute_dims(x, [x.ndim - 2, *rest])
            columns = math.prod((x.shape[i] for i in rest), start=Dim.of(1))
            found = op.reshape(self._solved(what, matrix, op.reshape(flat, (x.shape[-2], columns)), turned), flat.shape)
            back = [*range(1, x.ndim - 1), 0, x.ndim - 1]
            return op.permute_dims(found, back)
        if batch != own:
            shape = batch if len(batch) >= len(own) else own
            matrix, x = (
                op.broadcast_to(y, (*shape, *y.shape[-2:])) if y.shape[:-2] != shape else y for y in (matrix, x)
            )
        return self._solved(what, matrix, x, turned)

    def _solved(self, what: InverseOf, matrix: Expr, x: Expr, turned: bool) -> Expr:
        triangle = self._triangle(what)
        if triangle:
            return op.triangular_solve(
                matrix, x, lower=triangle == "lower", transpose_a=turned, unit_diagonal=what.has_unit_diagonal
            )
        if "positive_definite" in self.lift.facts(what.of):
            factor = op.cholesky(matrix)
            half = op.triangular_solve(factor, x, lower=True)
            return op.triangular_solve(factor, half, lower=True, transpose_a=True)
        factors, _, order = op.lu(swapped(matrix) if turned else matrix)
        half = op.triangular_solve(factors, rows_in_order(x, order), lower=True, unit_diagonal=True)
        return op.triangular_solve(factors, half)


def rows_in_order(x: Expr, order: Expr) -> Expr:
    """The rows of matrices in an order, one for each matrix of a batch."""
    batch = x.ndim - 2
    if not batch:
        return op.take(x, order, 0, mode="clip")
    axes = tuple(range(batch))
    return call(
        "gather",
        (x, op.expand_dims(order, order.ndim)),
        {
            "slice_sizes": (*(1 for _ in axes), 1, x.shape[-1]),
            "mode": "clip",
            "offset_dims": (batch + 1,),
            "collapsed_slice_dims": (batch,),
            "start_index_map": (batch,),
            "operand_batching_dims": axes,
            "start_indices_batching_dims": axes,
        },
    )
