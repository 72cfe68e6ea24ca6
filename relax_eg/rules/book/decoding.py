"""A matmul and the decoder of its weight as one tensor program that never holds the whole decoded weight.

XLA's matmuls on CPUs read operands from memory, so a weight of four or eight bits is decoded to memory at every call,
to several times its stored bytes. A tensor program that decodes inside is lowered tile by tile
(`backend.lowering.tiles`). The rule runs where memory for large values has a price (`ProgramQueries.large_bytes`): for
a single XLA program on a CPU, and within a memory limit. With `execution="kernels"`, extraction builds such products.
"""

from __future__ import annotations

from relax_eg.errors import OperatorError
from relax_eg.ir.expr import Expr
from relax_eg.ops import bytes_of
from relax_eg.ops.fused import fused_call, kind_in_kernel
from relax_eg.ops.partial_annotations import is_known_tensor
from relax_eg.rules.checking.schema_trials import decoders
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schemas import MEMORY, ProgramQueries, schema
from relax_eg.tir import PatternKind
from relax_eg.tir.work import DECODED

_LARGE = 1 << 23  # chosen: least bytes of a weight that no core's cache holds
_MOST = 48  # limit: operators of a decoder


def decoded_inside(e: Expr, queries: ProgramQueries) -> Expr | None:
    """a product with a weight that is decoded from fewer bytes is one tensor program with the decoder"""
    weight = e.args[1]
    if not is_known_tensor(weight):
        return None
    made = queries.largest_value(bytes_of(weight.annotation))
    if made < min(max(1.0, queries.large_bytes), _LARGE):
        return None
    decoder = _decoder(e, weight, queries)
    sources = {a for x in decoder for a in x.args if a not in decoder}
    stored = sum(queries.largest_value(bytes_of(a.annotation)) for a in sources)
    if not decoder or e.args[0] in decoder or made < DECODED * stored:
        return None
    try:
        return fused_call([*decoder, e], [e])
    except OperatorError:  # a precision or dtypes that equations do not express
        return None


def _decoder(e: Expr, weight: Expr, queries: ProgramQueries) -> set[Expr]:
    """Returns the nodes that compute `weight` element by element and that only they themselves and `e` read."""
    inside = {e}
    todo = [weight]
    while todo and len(inside) <= _MOST:
        x = todo.pop()
        if x not in inside and kind_in_kernel(x) <= PatternKind.INJECTIVE and inside.issuperset(queries.readers(x)):
            inside.add(x)
            todo += x.args
    return inside - {e}


decoding = RuleSet(
    "decoding",
    schemas=(schema(decoded_inside, "exact", ("decoding", MEMORY), ("matmul", "linear"), (decoders,)),),
)
