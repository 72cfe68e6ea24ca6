"""Kernels as expressions: a call of the tensor program that several operators compose to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ir.expr import CALL_TIR, Attrs, Expr, fresh_name, postorder
from relax_eg.ir.heads import CORE
from relax_eg.ir.tensor_calls import call_tir
from relax_eg.limits import MANY_KEPT
from relax_eg.ops.record import (
    ProgramUse,
    Site,
    called_program,
    get,
    is_proved_applicable,
    movement_operators,
    operators_where,
    program_of,
)
from relax_eg.shapes import Dim
from relax_eg.tir import Buffer, InlinedProgram, PatternKind, classify, compose

# Operators that move nothing: their value is the operand's memory under another shape.
VIEWS = movement_operators("view")
_MOST_NAMED = 5  # limit: operators listed in a kernel's name
# Operators left out of a kernel's name where it has others: they compute nothing.
_MOVEMENTS = operators_where(lambda o: o.moves is not None)


def viewed_value(e: Expr) -> Expr:
    """The array that `e` is a view of; `e` itself if it is no view."""
    while e.op in VIEWS:
        e = e.args[0]
    return e


def program_at(op: str, operands: tuple[Annotation, ...], attrs: Attrs, result: Annotation) -> ProgramUse | None:
    """Returns the tensor program of one use of an operator or of a `call_tir`, or None where it cannot be in a kernel.
    It can where all annotations are fully known, it has one output, and it is computed as its equations say."""
    return _program_at(op, operands, attrs, result)


@lru_cache(MANY_KEPT)
def _program_at(op: str, operands: tuple[Annotation, ...], attrs: Attrs, result: Annotation) -> ProgramUse | None:
    known = all(isinstance(a, Tensor) and a.shape is not None and a.dtype is not None for a in (*operands, result))
    if not known:
        return None
    if op == CALL_TIR:
        placed = called_program(operands, dict(attrs))
        single = placed is not None and len(placed.program.outputs) == 1 and not placed.program.lifted
        return placed if single else None
    asked = dict(attrs)
    # Equations express no precision, and they would also apply to operands that the operator rejects.
    if op in CORE or get(op).cost is not None or asked.get("precision") not in (None, "default"):
        return None
    if not is_proved_applicable(op, operands, attrs):
        return None
    program = program_of(Site(op, operands, asked))
    if program is None or len(program.outputs) != 1:
        return None
    made = program.buffers[program.outputs[0]]
    return ProgramUse(program, {}) if result == Tensor(made.shape, made.dtype) else None


def program_in_kernel(e: Expr) -> ProgramUse | None:
    """Returns the tensor program of a node over its operands; None where no kernel may contain it."""
    return program_at(e.op, tuple(a.annotation for a in e.args), e.attrs, e.annotation)


def kind_in_kernel(e: Expr) -> PatternKind:
    """Returns the pattern kind of an operator; OPAQUE where no kernel may contain it."""
    placed = program_in_kernel(e)
    return PatternKind.OPAQUE if placed is None else classify(placed.program)


def equations_at(op: str, operands: tuple[Annotation, ...], attrs: Attrs, result: Annotation) -> ProgramUse | None:
    """Returns the tensor program of one use of an operator, or the one that a `call_tir` calls, with any number of
    outputs; None for all else, and where sizes are unknown."""
    return called_program(operands, dict(attrs)) if op == CALL_TIR else program_at(op, operands, attrs, result)


def fused_call(members: Collection[Expr], outputs: Sequence[Expr], name: str = "") -> Expr:
    """Returns one call of the composition of `members` that computes `outputs`, as a tuple where they are several.

    Operands of members that are no members become arguments. OperatorError where a member has no equations that a
    kernel could hold.
    """
    inside = set(members)
    order = [e for e in postorder(outputs, stop=lambda e: e not in inside) if e in inside]
    loads = list(dict.fromkeys(a for e in order for a in e.args if a not in inside))
    # Parameters are named by position, so that kernels that compute the same are equal.
    names = {e: f"p{i}" for i, e in enumerate(loads)}
    taken: set[str] = set()
    uses: list[InlinedProgram] = []
    for e in order:
        placed = program_in_kernel(e)
        if placed is None:
            raise OperatorError(f"{e.op} has no index equations that a kernel could take in: {e!r}")
        names[e] = fresh_name(f"T_{operator_name(e)}", taken, "_")
        uses.append(InlinedProgram(placed.program, tuple(names[a] for a in e.args), (names[e],), placed.sizes))
    buffers = [Buffer(names[e], e.shape, e.dtype) for e in loads]
    program = compose(name or kernel_name(order), buffers, uses, [names[o] for o in outputs])
    passed = {b.name for b in program.inputs}
    args = [e for e in loads if names[e] in passed]
    return call_tir(program, args, sizes={v: Dim.var(v) for v in program.size_arguments})


def operator_name(e: Expr) -> str:
    """Returns the name of an operator inside a kernel; for a `call_tir` that of its tensor program."""
    return e.attr("program").value.name if e.op == CALL_TIR else e.op


def kernel_name(members: Iterable[Expr]) -> str:
    """Returns a name that lists the operators inside: `fused_matmul_add_relu`."""
    named = [(e, operator_name(e)) for e in members]
    telling = [word.removeprefix("fused_") for e, word in named if e.op not in _MOVEMENTS]
    words = telling or [word for e, word in named if e.op not in VIEWS] or ["view"]
    more = [] if len(words) <= _MOST_NAMED else ["and", str(len(words) - _MOST_NAMED), "more"]
    return "_".join(["fused", *words[:_MOST_NAMED], *more])
