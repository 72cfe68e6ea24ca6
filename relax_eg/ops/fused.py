"""Kernels as expressions: several operators as one call of the tensor program that they compose to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ir.calls import call_sizes
from relax_eg.ir.expr import CALL_TIR, CORE, Attrs, Expr, postorder
from relax_eg.ir.tensor_calls import call_tir
from relax_eg.ops.record import Site, get, is_shown, program_of
from relax_eg.shapes import Dim
from relax_eg.tir import Buffer, TensorProgram, Use, compose

# Heads that move nothing: their value is the operand's memory under another shape.
VIEWS = frozenset(("reshape", "expand_dims", "squeeze", "flatten"))
_MOST_NAMED = 5  # operators in a kernel's name
# Left out of it where there are others: they compute nothing.
_MOVEMENTS = VIEWS | {"permute_dims", "broadcast_to", "strided_slice", "astype", "full", "dim_value", "concat", "take"}


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor program where it is used: its size variables have the values `sizes`, in the user's sizes."""

    program: TensorProgram
    sizes: Mapping[str, Dim]


def program_at(op: str, operands: tuple[Annotation, ...], attrs: Attrs, result: Annotation) -> Placed | None:
    """The tensor program of one use of an operator or of a `call_tir`, if it may be part of a kernel: fully known, one
    output, computed as its equations say. None where that is not so."""
    return _program_at(op, operands, attrs, result)


@lru_cache(1 << 14)
def _program_at(op: str, operands: tuple[Annotation, ...], attrs: Attrs, result: Annotation) -> Placed | None:
    known = all(isinstance(a, Tensor) and a.shape is not None and a.dtype is not None for a in (*operands, result))
    if not known:
        return None
    if op == CALL_TIR:
        placed = called_program(operands, dict(attrs))
        single = placed is not None and len(placed.program.outputs) == 1 and not placed.program.lifted
        return placed if single else None
    asked = dict(attrs)
    # Equations hold no precision, and apply to whatever the operands turn out to be.
    if op in CORE or get(op).cost is not None or asked.get("precision") not in (None, "default"):
        return None
    if not is_shown(op, operands, attrs):
        return None
    program = program_of(Site(op, operands, asked))
    if program is None or len(program.outputs) != 1:
        return None
    made = program.buffers[program.outputs[0]]
    return Placed(program, {}) if result == Tensor(made.shape, made.dtype) else None


def called_program(operands: Sequence[Annotation], attrs: Mapping[str, Any]) -> Placed | None:
    """The program of a `call_tir`, with the values of its sizes; None where the operands do not tell all of them."""
    program: TensorProgram = attrs["program"].value
    sizes = {**call_sizes([Tensor(b.shape, b.dtype) for b in program.parameters], operands), **dict(attrs["sizes"])}
    return Placed(program, sizes) if program.sizes <= sizes.keys() else None


def fused_call(
    members: Collection[Expr], outputs: Sequence[Expr], instead: Mapping[Expr, Expr] | None = None, name: str = ""
) -> Expr:
    """One call of the composition of `members`, which gives `outputs` (a tuple where they are several). What members
    read and is none is an argument; `instead` says what is passed for it. OperatorError: a member has no equations."""
    inside = set(members)
    order = [e for e in postorder(outputs, stop=lambda e: e not in inside) if e in inside]
    loads = list(dict.fromkeys(a for e in order for a in e.args if a not in inside))
    # Names of places, not of what is passed: kernels that do the same are the same.
    names = {e: f"p{i}" for i, e in enumerate(loads)}
    taken: set[str] = set()
    uses: list[Use] = []
    for e in order:
        placed = program_at(e.op, tuple(a.annotation for a in e.args), e.attrs, e.annotation)
        if placed is None:
            raise OperatorError(f"{e.op} has no index equations that a kernel could take in: {e!r}")
        stem = e.attr("program").value.name if e.op == CALL_TIR else e.op
        names[e] = _unique(f"T_{stem}", taken)
        uses.append(Use(placed.program, tuple(names[a] for a in e.args), (names[e],), placed.sizes))
    buffers = [Buffer(names[e], e.shape, e.dtype) for e in loads]
    program = compose(name or kernel_name(order), buffers, uses, [names[o] for o in outputs])
    passed = {b.name for b in program.inputs}
    args = [(instead or {}).get(e, e) for e in loads if names[e] in passed]
    return call_tir(program, args, sizes={v: Dim.var(v) for v in program.told})


def operator_name(e: Expr) -> str:
    """What a kernel calls an operator inside it: a tensor program by its name."""
    return e.attr("program").value.name if e.op == CALL_TIR else e.op


def kernel_name(members: Iterable[Expr]) -> str:
    """A name that says what is inside: `fused_matmul_add_relu`."""
    named = [(e, operator_name(e)) for e in members]
    telling = [word.removeprefix("fused_") for e, word in named if e.op not in _MOVEMENTS]
    words = telling or [word for e, word in named if e.op not in VIEWS] or ["view"]
    more = [] if len(words) <= _MOST_NAMED else ["and", str(len(words) - _MOST_NAMED), "more"]
    return "_".join(["fused", *words[:_MOST_NAMED], *more])


def _unique(stem: str, taken: set[str]) -> str:
    name, n = stem, 0
    while name in taken:
        n += 1
        name = f"{stem}_{n}"
    taken.add(name)
    return name
