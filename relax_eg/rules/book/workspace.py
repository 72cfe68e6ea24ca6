"""Workspace lifting (Relax, 4.4 and Figure 11): a kernel's caller may allocate the kernel's workspaces.

A call of a kernel with workspaces equals a call that passes the workspaces to the kernel, because the initial contents
of a workspace do not matter. The allocation is then a value of the caller, of a size that the caller knows, and part of
its memory plan.
"""

from __future__ import annotations

from dataclasses import replace

from relax_eg.ir.annotations import Tensor, Tuple
from relax_eg.ir.expr import CALL_TIR, Expr
from relax_eg.ir.tensor_calls import call_tir, tir_annotation
from relax_eg.ops import api as op
from relax_eg.rules.checking.schema_trials import workspaces
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schemas import ProgramQueries, schema
from relax_eg.tir import TensorProgram


def workspace_lifting(e: Expr, queries: ProgramQueries) -> Expr | None:
    """the workspaces of a kernel are allocated by its caller"""
    kernel: TensorProgram = e.attr("program").value
    own = [name for name in kernel.workspaces if name not in kernel.lifted]
    if not own:
        return None
    found = tir_annotation(kernel, [a.annotation for a in e.args], e.attr("sizes"), own)
    spaces = found.fields if isinstance(found, Tuple) else (found,)
    made: list[Expr] = []
    for space in spaces:
        if not isinstance(space, Tensor) or space.shape is None or space.dtype is None:
            return None  # the caller does not know its size
        # The contents do not matter: nothing reads these zeros.
        made.append(op.zeros(space.shape, space.dtype))
    lifted = replace(kernel, lifted=(*kernel.lifted, *own)).validate()
    return call_tir(lifted, (*e.args, *made), e.annotation, dict(e.attr("sizes")))


workspace = RuleSet(
    "workspace",
    schemas=(schema(workspace_lifting, "exact", ("workspace",), (CALL_TIR,), (workspaces,)),),
)
