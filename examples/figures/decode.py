"""A decoder of 4-bit weights without an operator of its own, found Injective and fused into the matmul that reads
it."""

# The loop variables of tensor programs need not exist: their text is read, and never run.
# ruff: noqa: F821

from __future__ import annotations

import relax_eg as rx
from relax_eg import ir
from relax_eg.tir import classify


@rx.tensor_program
def decode_q4(D: rx.Buffer("128 32", "uint32"), S: rx.Buffer("128 8"), W: rx.Buffer("128 256")):
    word = D[i, j // 8] >> rx.uint32(j % 8 * 4)
    W[i, j] = (rx.float32(word & 15) - 7) * S[i, j // 32]


@rx.tensor_program
def mm(X: rx.Buffer("n 128"), W: rx.Buffer("128 256"), Y: rx.Buffer("n 256")):
    Y[i, j] = rx.sum(X[i, k] * W[k, j], over=k)


def module() -> rx.types.Module:
    """Decode, then multiply."""
    x, data = ir.var("x", rx.Tensor("n 128")), ir.var("data", rx.Tensor("128 32 @ uint32"))
    scale = ir.var("scale", rx.Tensor("128 8"))
    weight = rx.call_tir(decode_q4, [data, scale])
    return rx.types.Module((ir.pure_function("main", [x, data, scale], [rx.call_tir(mm, [x, weight])]),))


def fused() -> rx.types.Module:
    """Returns the fused module: one tensor program, in which each word is decoded where it is multiplied."""
    return rx.optimize(module(), at={"n": 16}, rules=rx.rules.fusion, execution="kernels").module


def shown() -> str:
    kinds = "".join(f"{program.name}: {classify(program)}\n" for program in (decode_q4, mm))
    return f"{module()}\n{kinds}\n--- after fusion ---\n\n{fused()}"
