"""What Triton compiles of tensor programs, as JAX's Pallas lowers them.

`python -m benchmarks.triton` compiles every function, cast and reduction at every dtype, and attention, for a described
H100, and reports where these lists are wrong. XLA compiles what they leave out, and it is priced as XLA's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from relax_eg.dtypes import FLOATS, HALF, is_integer
from relax_eg.tir.expr import Apply, Reduce, walk
from relax_eg.tir.program import TensorProgram

DTYPES = frozenset("bool int8 int16 int32 int64 uint8 uint16 uint32 bfloat16 float16 float32 float64".split())
REDUCTIONS = frozenset(("sum", "max", "min"))
_NUMBERS = DTYPES - {"bool"}
_SUPPORTED_DTYPES: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(
        """round round_away erf erfc lgamma digamma bessel_i0e bessel_i1e igamma igammac igamma_grad_a betainc polygamma
        zeta less_total less_equal_total equal_total reduce_precision multiply_high""".split(),
        frozenset(),
    ),
    **dict.fromkeys(("maximum", "minimum", "clamp"), _NUMBERS),
    **dict.fromkeys(("population_count", "count_leading_zeros"), frozenset(("int32", "int64"))),
    "floor_divide": frozenset(filter(is_integer, DTYPES)),
    "nextafter": frozenset(FLOATS) - frozenset(HALF),
}
"""The dtypes at which Triton compiles a function, for functions that it does not compile at every dtype."""


@lru_cache(1 << 12)
def unsupported_reason(program: TensorProgram) -> str:
    """Returns why Triton does not compile `program` at any sizes; "" where it does."""
    if len(program.outputs) != 1:
        return f"{len(program.outputs)} outputs; one is lowered through Pallas"
    for b in program.buffers.values():
        if b.dtype not in DTYPES:
            return f"{b.name} is of dtype {b.dtype}, which Triton does not load"
    for made in program.stages:
        for term in walk(made.value):
            if term.dtype not in DTYPES:
                return f"{term} is of dtype {term.dtype}, which Triton does not compute"
            if isinstance(term, Reduce) and term.kind not in REDUCTIONS:
                return f"there is a reduction of kind {term.kind}"
            if isinstance(term, Apply) and term.args[0].dtype not in _SUPPORTED_DTYPES.get(term.fn, DTYPES):
                return f"{term.fn} of {term.args[0].dtype} is not compiled by Triton"
    return ""
