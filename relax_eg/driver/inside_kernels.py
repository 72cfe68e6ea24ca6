"""The operators that XLA gets of a kernel that is an executable of its own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial

from relax_eg.backend.lower import lowering_programs_by, run_function
from relax_eg.backend.tensor_programs import lower_program
from relax_eg.driver.fixed import at_sizes
from relax_eg.errors import RelaxEgError
from relax_eg.ir.expr import CALL_DPS_LIBRARY, CALL_TIR, Expr
from relax_eg.ir.module import Function, Module, pure_function
from relax_eg.limits import KEPT


def operators_inside(e: Expr, sizes: Mapping[str, int]) -> Function | None:
    """A function of the operators that XLA gets of a kernel at these sizes: of the call of a tensor program or of a
    routine of XLA's those as which it is lowered, of any other operator itself. None where they are not known.

    - `e`: an expression whose operands are variables.
    """
    return _operators_inside(at_sizes(e, sizes))


@lru_cache(KEPT)
def _operators_inside(e: Expr) -> Function | None:
    alone = pure_function("kernel", e.args, [e])
    if e.op not in (CALL_TIR, CALL_DPS_LIBRARY):
        return alone
    from relax_eg.frontends.jax.trace import trace_function  # not part of what a saved program imports

    module = Module((alone,))
    try:
        specs = [f"{' '.join(str(d.evaluate({})) for d in p.shape)} @ {p.dtype}" for p in e.args]
        with lowering_programs_by(partial(lower_program, tiled=False)):
            return trace_function(lambda *xs: run_function(module, alone, xs), tuple(specs)).module.main
    except (RelaxEgError, ValueError):
        return None  # a size that is not known
