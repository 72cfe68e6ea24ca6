"""Fusion: the steps by which extraction builds kernels (`execution="kernels"`). They are no rules of the search.

A step is permitted by the pattern kinds of the operators, which follow from their index equations. It is justified by
composition, the substitution of one index equation into another, and composition is what is checked: each step is
applied to random programs, and the call of the composed program must have the values of the operators.
"""

from __future__ import annotations

from collections.abc import Callable

from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, node, tuple_get
from relax_eg.ops import api as op
from relax_eg.ops.fused import VIEWS, fused_call, kind_in_kernel
from relax_eg.ops.sizes import product
from relax_eg.rules.checking.schema_trials import kernels
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schemas import ExtractionStep, ProgramQueries
from relax_eg.tir import PatternKind

Kinds = Callable[[PatternKind, PatternKind], bool]  # whether a step applies to an operator and its operand


def _pointwise(kind: PatternKind) -> bool:
    return kind <= PatternKind.INJECTIVE


def _with_operand(kinds: Kinds) -> Callable[[Expr, ProgramQueries], Expr | None]:
    """Returns a step that takes an operand into the kernel of the operator that reads it."""

    def propose(e: Expr, queries: ProgramQueries) -> Expr | None:
        mine = kind_in_kernel(e)
        if mine is PatternKind.OPAQUE:
            return None
        for a in e.args:
            theirs = kind_in_kernel(a)
            if theirs is not PatternKind.OPAQUE and kinds(mine, theirs):
                return fused_call([a, e], [e])
        return None

    return propose


def _siblings(e: Expr, queries: ProgramQueries) -> Expr | None:
    """Returns `e` with its first two operands from one kernel, where they share an operand and have one annotation."""
    a, *rest = e.args or (None,)
    b = rest[0] if rest else None
    if a is None or b is None or a is b or a.annotation != b.annotation or a in b.args or b in a.args:
        return None
    if PatternKind.OPAQUE in (kind_in_kernel(a), kind_in_kernel(b)) or set(a.args).isdisjoint(b.args):
        return None
    both = fused_call([a, b], [a, b])
    return node(e.op, [tuple_get(both, 0), tuple_get(both, 1), *rest[1:]], e.attrs, e.annotation)


def _view(e: Expr, queries: ProgramQueries) -> Expr | None:
    """Returns a reshape as a reshape of the flattened operand, whose elements are in the order of memory."""
    if e.op not in VIEWS or not isinstance(e.annotation, Tensor):
        return None
    return op.reshape(op.reshape(e.args[0], (product(e.args[0].shape),)), e.shape)


def _step(name: str, doc: str, propose: Callable[[Expr, ProgramQueries], Expr | None]) -> ExtractionStep:
    return ExtractionStep(name, doc, "exact", frozenset(("fusion",)), propose, frozenset(), (kernels,))


fusion = RuleSet(
    "fusion",
    schemas=(
        _step(
            "inline_elementwise",
            "g(f(x)) in one kernel: a function of single elements is computed where another reads it",
            _with_operand(lambda mine, theirs: _pointwise(mine) and _pointwise(theirs)),
        ),
        _step(
            "inline_prologue",
            "sum over k of f(x)[i, k] ... in one kernel: an operand of a reduction or matmul is computed as it is read",
            _with_operand(lambda mine, theirs: not _pointwise(mine) and _pointwise(theirs)),
        ),
        _step(
            "inline_epilogue",
            "f(A B) in one kernel: a function of elements is applied to those of a matmul as they are computed",
            _with_operand(lambda mine, theirs: _pointwise(mine) and theirs is PatternKind.OUTPUT_EWISE_FUSIBLE),
        ),
        _step(
            "fuse_stages",
            "stages that follow a reduction stay in its kernel: softmax, norms, attention",
            _with_operand(
                lambda mine, theirs: (
                    theirs is PatternKind.REDUCTION
                    or (theirs is PatternKind.OUTPUT_EWISE_FUSIBLE and mine is PatternKind.REDUCTION)
                )
            ),
        ),
        _step("fuse_siblings", "f(x) and g(x) in one kernel with two results, which loads x once", _siblings),
        _step("view_of_reshape", "a reshape moves nothing: it is the same memory under another shape", _view),
    ),
)
