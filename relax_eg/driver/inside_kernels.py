"""The operators that XLA gets of a kernel that is an executable of its own.

A tensor program is lowered stage by stage, and many kernels of a search have a stage in common: what JAX makes of a
stage is traced once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from relax_eg.backend.lowering.lower import lowering_programs_by, run_function
from relax_eg.backend.lowering.tensor_programs import lower_program
from relax_eg.driver.fixed import at_sizes
from relax_eg.errors import RelaxEgError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.calls import inline_call
from relax_eg.ir.expr import CALL_DPS_LIBRARY, CALL_TIR, Expr
from relax_eg.ir.module import Function, Module, pure_function
from relax_eg.limits import KEPT, MANY_KEPT
from relax_eg.ops.record import ProgramUse, called_program
from relax_eg.tir import Buffer, Read, Stage, TensorProgram, walk
from relax_eg.tir.compose import substitute_variables

_untiled = partial(lower_program, tiled=False)


def operators_inside(e: Expr, sizes: Mapping[str, int]) -> Function | None:
    """A function of the operators that XLA gets of a kernel at these sizes: of the call of a tensor program or of a
    routine of XLA's those as which it is lowered, of any other operator itself. None where they are not known.

    - `e`: an expression whose operands are variables.
    """
    return operators_at(at_sizes(e, sizes))


@lru_cache(KEPT)
def operators_at(e: Expr) -> Function | None:
    """As `operators_inside`, of an expression whose sizes are numbers."""
    alone = pure_function("kernel", e.args, [e])
    try:
        if e.op == CALL_DPS_LIBRARY:
            module = Module((alone,))
            return traced_operators(lambda *xs: run_function(module, alone, xs), [p.annotation for p in e.args])
        if e.op != CALL_TIR:
            return alone
        placed = called_program([p.annotation for p in e.args], dict(e.attrs))
        return None if placed is None else pure_function("kernel", e.args, _values(placed, e.args))
    except (RelaxEgError, ValueError):
        return None  # a size that is not known


def _values(placed: ProgramUse, args: Sequence[Expr]) -> list[Expr]:
    """The outputs of a tensor program for `args`, as operators."""
    values = dict(zip((b.name for b in placed.program.parameters), args, strict=True))
    for stage in placed.program.stages:
        name = stage.output.name
        read = dict.fromkeys(t.buffer for t in walk(stage.value) if isinstance(t, Read) and t.buffer != name)
        (values[name],) = inline_call(of_stage(_alone(stage, list(read), placed)), [values[b] for b in read])
    return [values[name] for name in placed.program.outputs]


def _alone(stage: Stage, read: Sequence[str], placed: ProgramUse) -> TensorProgram:
    """A stage as a program of its own, with numbers for sizes. Its buffers are named by position, so that equal stages
    of different kernels are equal programs. `read`: the buffers that it reads."""
    buffers, sizes = placed.program.buffers, placed.sizes
    names = {**{b: f"p{i}" for i, b in enumerate(read)}, stage.output.name: "T"}

    def named(b: Buffer) -> Buffer:
        return Buffer(names[b.name], tuple(d.substitute(sizes) for d in b.shape), b.dtype)

    alone = Stage(named(stage.output), stage.indices, substitute_variables(stage.value, sizes, names))
    return TensorProgram("stage", tuple(named(buffers[b]) for b in read), (alone,), ("T",))


@lru_cache(MANY_KEPT)
def of_stage(program: TensorProgram) -> Function:
    """A function of the operators as which a program of one stage, with numbers for sizes, is lowered."""
    return traced_operators(
        lambda *xs: _untiled(program, {})(*xs)[0], [Tensor(b.shape, b.dtype) for b in program.inputs]
    )


def traced_operators(run: Callable[..., Any], operands: Sequence[Any]) -> Function:
    """A function of the operators that JAX gets of `run`."""
    from relax_eg.frontends.jax.trace import trace_function  # not part of what a saved program imports

    specs = tuple(f"{' '.join(str(d.evaluate({})) for d in a.shape)} @ {a.dtype}" for a in operands)
    with lowering_programs_by(_untiled):
        return trace_function(run, specs).module.main
