"""A split-K matmul allocates its workspace itself; a rule lifts the allocation into its caller."""

# The loop variables of tensor programs need not exist: their text is read, and never run.
# ruff: noqa: F821

from __future__ import annotations

import relax_eg as rx
from relax_eg import ir
from relax_eg.rules.schemas import ModuleAnswers


@rx.tensor_program
def mm_split_k(X: rx.Buffer("n 2048"), W: rx.Buffer("2048 4096"), Y: rx.Buffer("n 4096")):
    P = rx.script.workspace("8 n 4096")
    P[s, i, j] = rx.sum(X[i, s * 256 + k] * W[s * 256 + k, j], over=(k, 256))
    Y[i, j] = rx.sum(P[s, i, j], over=(s, 8))


def before() -> rx.types.Module:
    """The call as written."""
    x, w = ir.var("x", rx.Tensor("n 2048")), ir.var("w", rx.Tensor("2048 4096"))
    return rx.types.Module((ir.pure_function("main", [x, w], [rx.call_tir(mm_split_k, [x, w])]),))


def after() -> rx.types.Module:
    """Returns the call that the rule proposes instead."""
    main = before().main
    (call,) = (b.value for block in main.blocks for b in block.bindings)
    lifted = rx.rules.workspace.schemas[0].propose(call, ModuleAnswers({}))
    assert lifted is not None
    return rx.types.Module((ir.pure_function("main", main.params, [lifted]),))


def shown() -> str:
    return f"{before()}\n--- after workspace lifting ---\n\n{after()}"
