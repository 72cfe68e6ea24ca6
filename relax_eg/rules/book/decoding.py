"""A matmul with what its weight is decoded by: one tensor program that never has all of the decoded weight.

XLA's matmuls on CPUs take operands from memory, so a weight of four or eight bits is decoded to memory at every call,
several times the bytes it is kept in. A tensor program that decodes inside is lowered tile by tile (`backend.tiles`).
The rule is asked where memory for large values has a price (`Functions.large`): in one program of XLA's on a CPU, and
within a memory limit. In kernels such a product is put together by extraction.
"""

from __future__ import annotations

from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import CONSTANT, VAR, Expr
from relax_eg.ops import bytes_of
from relax_eg.ops.fused import fused_call, program_at
from relax_eg.rules.rule import RuleSet
from relax_eg.rules.schemas import MEMORY, Functions, Schema
from relax_eg.tir import PatternKind, classify
from relax_eg.tir.work import DECODED

_LARGE = 1 << 23  # bytes of a weight from which on no core's cache keeps it
_MOST = 48  # operators of a decoder


def _decoded_inside(e: Expr, known: Functions) -> Expr | None:
    weight = e.args[1]
    if not isinstance(weight.annotation, Tensor) or weight.annotation.shape is None:
        return None
    made = known.most(bytes_of(weight.annotation))
    if made < min(max(1.0, known.large), _LARGE):
        return None
    decoder = _decoder(e, weight, known)
    sources = {a for x in decoder for a in x.args if a not in decoder}
    if not decoder or e.args[0] in decoder or made < DECODED * sum(known.most(bytes_of(a.annotation)) for a in sources):
        return None
    try:
        return fused_call([*decoder, e], [e])
    except OperatorError:  # a precision, or types, that equations do not tell
        return None


def _decoder(e: Expr, weight: Expr, known: Functions) -> set[Expr]:
    """What computes `weight` element by element, and is read by nothing but that and `e`."""
    inside = {e}
    todo = [weight]
    while todo and len(inside) <= _MOST:
        x = todo.pop()
        if x not in inside and _is_pointwise(x) and inside.issuperset(known.readers(x)):
            inside.add(x)
            todo += x.args
    return inside - {e}


def _is_pointwise(x: Expr) -> bool:
    if x.op in (VAR, CONSTANT):
        return False
    placed = program_at(x.op, tuple(a.annotation for a in x.args), x.attrs, x.annotation)
    return placed is not None and classify(placed.program) <= PatternKind.INJECTIVE


decoding = RuleSet(
    "decoding",
    schemas=(
        Schema(
            "decoded_inside",
            "a product with a weight that is decoded from much less is one program with its decoder",
            "exact",
            frozenset(("decoding", MEMORY)),
            _decoded_inside,
            frozenset(("matmul", "linear")),
        ),
    ),
)
