"""Programs on which `benchmarks.prover` measures the share of proofs in optimize time, and the time of deduction."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from rich.table import Table

import relax_eg as rx
from benchmarks.models import resnet, resnet_specs
from benchmarks.scale import Case, decoder, decoder_specs
from relax_eg import ir, op
from relax_eg.ops.deduction import deduce_module
from relax_eg.ops.record import bytes_of
from relax_eg.shapes import ProverStatistics, Scope, prove

CHAINS = (5_000, 10_000, 20_000)

guarded = rx.RuleSet("guarded")


@guarded.rule(shapes="x: *b n, w: n m, v: m p", when=("n % 8 == 0", "p <= 4096"))
def matmul_associates_where_it_fits(x: ir.Expr, w: ir.Expr, v: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """(x W) V = x (W V), asked for by sizes"""
    return (x @ w) @ v, x @ (w @ v)


@guarded.rule(shapes="x: *b n", when=("n >= 2", "n % 2 == 0"))
def negation_leaves_even_rows(x: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """-(-x) = x, asked for by sizes"""
    return op.negative(op.negative(x)), x


def programs(layers: int) -> dict[str, Case]:
    """Returns programs by name: decoders with symbolic batch and length, and programs that ask more questions."""
    model = (decoder_specs(layers), "b s @ int32")
    long = {"budget": rx.Budget(seconds=600)}
    known = {"bounds": [{"b": (1, 64)}, "s % 8 == 0", "b*s <= 65536"]}
    return {
        f"decoder of {layers} layers": Case(decoder, model, long),
        f"decoder of {layers} layers, 8 | s, b*s <= 65536": Case(decoder, model, {**long, **known}),
        f"decoder of {layers} layers, rules with guards": Case(
            decoder, model, {**long, **known, "rules": rx.rules.default + guarded}
        ),
        "ResNet-50, images of 32*h by 32*w": Case(resnet, (resnet_specs(), "n (32*h) (32*w) 3"), long),
        "sliding windows of windows": Case(windows, ("b (8*n + m)", "b n", "b m"), long),
    }


def windows(x: jax.Array, y: jax.Array, z: jax.Array) -> jax.Array:
    """Slices and paddings whose sizes are spelled in many ways that are equal."""
    n, m = y.shape[1], z.shape[1]
    total = jnp.zeros(x.shape[0])
    for k in range(1, 9):
        a = x[:, : k * n]
        b = jnp.concatenate([a, z], axis=1)
        for step in (2, 3, 4):
            half = b[:, ::step]
            total = total + jnp.tanh(half @ half.T).sum(0) + jnp.pad(half, ((0, 0), (0, m))).sum(1)
    return total


@dataclass(frozen=True)
class Share:
    """One call of `optimize`.

    - `name`: the program.
    - `seconds`, `proving`: seconds in all, and in the prover.
    - `questions`, `asked_z3`: the questions to the prover, and those that reached z3.
    """

    name: str
    seconds: float
    proving: float
    questions: int
    asked_z3: int


def share_of_optimize(name: str, program: Case) -> Share:
    """Returns the figures of a call of `optimize` in a process that has built the instances of the rules."""
    program.optimize()
    with _counted() as (statistics, spent):
        started = time.perf_counter()
        program.optimize()
        seconds = time.perf_counter() - started
    return Share(name, seconds, spent[0], statistics.total, statistics.asked_z3)


@contextmanager
def _counted() -> Iterator[tuple[ProverStatistics, list[float]]]:
    """The questions to all scopes made inside, and the seconds spent in `prove` and in methods of `Scope`, of which
    statistics do not count the making of scopes."""
    statistics, spent, depth = ProverStatistics(), [0.0], [0]

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            depth[0] += 1
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                depth[0] -= 1
                spent[0] += 0.0 if depth[0] else time.perf_counter() - started

        return run

    made = Scope.__init__

    def make(self: Scope, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **{"statistics": statistics, **kwargs})

    with ExitStack() as patches:
        for name in ("bound", "declare", "assume", "interval", "equal", "check", "example"):
            patches.enter_context(mock.patch.object(Scope, name, timed(getattr(Scope, name))))
        patches.enter_context(mock.patch.object(Scope, "__init__", timed(make)))
        for name, module in list(sys.modules.items()):
            if name.startswith("relax_eg") and getattr(module, "prove", None) is prove:
                patches.enter_context(mock.patch.object(module, "prove", timed(prove)))
        yield statistics, spent


def memory_questions(layers: int) -> ProverStatistics:
    """Returns the statistics of a memory plan's questions: for each pair of the decoder's values, whether one always
    fits into the storage of the other."""
    module = rx.trace(decoder, decoder_specs(layers), "b s @ int32")
    sizes = sorted({bytes_of(e.annotation) for f in module for e in f.expressions()}, key=str)
    scope = Scope({"b": (1, 64), "s": (1, 4096)}, assume=["s % 8 == 0"])
    for a, b in itertools.permutations(sizes, 2):
        for relation in ("==", "<="):
            prove(f"{a} {relation} {b}", scope)
    return scope.statistics


def deduction_of(length: int) -> tuple[int, float]:
    """Operators and seconds of the deduction of a chain of products, sums and reshapes."""
    x, w = ir.var("x", rx.Tensor("n 4")), ir.var("w", rx.Tensor("4 4"))
    e, made = x, 0
    while made < length:
        e = op.reshape(op.permute_dims(op.exp(op.add(op.matmul(e, w), x))), ("n", 4))
        made += 5
    module = ir.Module((ir.pure_function("main", (x, w), [e]),))
    started = time.perf_counter()
    assert deduce_module(module) == module
    return made, time.perf_counter() - started


def table_of_shares(shares: list[Share]) -> Table:
    table = Table(title="Proving, as part of optimize")
    for heading in ("program", "optimize s", "proving s", "share", "questions", "put to z3"):
        table.add_column(heading, justify="left" if heading == "program" else "right")
    for s in shares:
        reached = f"{s.asked_z3}" + (f" ({s.asked_z3 / s.questions:.1%})" if s.questions else "")
        row = (f"{s.seconds:.2f}", f"{s.proving:.3f}", f"{s.proving / s.seconds:.2%}", f"{s.questions}", reached)
        table.add_row(s.name, *row)
    return table
