"""Images in pieces of rows: convolutions and poolings read a halo beside each piece."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.backend.accounting import FRUGAL
from relax_eg.backend.footprint import whole_footprint
from relax_eg.backend.lowering.lower import run_at
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.calls import substitute_exprs
from relax_eg.ir.expr import Expr, postorder, var
from relax_eg.ir.module import Binding, Module
from relax_eg.ops import api as op
from relax_eg.rules.book.pieces import pieces
from relax_eg.rules.checking.piece_trials import images, sums_of_images
from relax_eg.rules.checking.schema_trials import first_difference
from relax_eg.rules.pieces.halo import halo_of, halo_of_totals, totals_of, with_halo
from relax_eg.rules.schemas import ModuleAnswers

RULE = next(s for s in pieces.schemas if s.name == "computed_in_pieces")
TOTALS = next(s for s in pieces.schemas if s.name == "accumulated_over_pieces")
DRAWN = int(os.environ.get("RELAX_EG_PROGRAMS", "12"))


def convolved(x: Any, w: Any, stride: int = 1) -> Any:
    return jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME")


def features(x: Any, w1: Any, w2: Any, w3: Any) -> Any:
    h = jax.nn.relu(convolved(x, w1))
    h = jax.nn.relu(convolved(h, w2) + h)
    h = jax.lax.reduce_window(h, -jnp.inf, jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), "SAME")
    return convolved(h, w3, 2)


@pytest.mark.parametrize("space", [(96, 64), (101, 37), (37, 130)])
def test_images_need_a_share_of_the_memory(space: tuple[int, int]) -> None:
    """In one XLA program; rows that the pieces divide and that they do not, and columns where they are longer."""
    rng = np.random.default_rng(0)
    shapes = ((1, 3, *space), (16, 3, 3, 3), (16, 16, 3, 3), (8, 16, 3, 3))
    args = [jnp.asarray(0.3 * rng.standard_normal(s), jnp.float32) for s in shapes]
    free: Any = rx.optimize(features, *args, memory_limit="1 GiB")
    limit = free.report.memory.without * 2 // 5
    best: Any = rx.optimize(features, *args, memory_limit=limit)
    assert RULE.name in best.report.rules and best.report.memory.bytes <= limit
    assert "dynamic_slice" in str(best.module)
    np.testing.assert_allclose(best(*args), features(*args), rtol=1e-4, atol=1e-4)


def test_random_chains_are_the_same_number_by_number() -> None:
    programs, text = first_difference(replace(RULE, trials=(images,)), DRAWN)
    assert not text and programs >= 0.4 * DRAWN


def test_random_totals_are_the_same_number_by_number() -> None:
    programs, text = first_difference(replace(TOTALS, trials=(sums_of_images,)), DRAWN)
    assert not text and programs >= 0.4 * DRAWN


def test_a_sum_over_rows_needs_a_share_of_the_memory() -> None:
    """Whether or not the pieces divide the rows; the last piece adds nothing for rows that are not there."""

    def loss(x: Any, w1: Any, w2: Any) -> Any:
        h = jax.nn.relu(convolved(x, w1))
        return jnp.sum(jnp.tanh(convolved(h, w2)) ** 2, (2, 3))

    rng = np.random.default_rng(0)
    args = [
        jnp.asarray(0.3 * rng.standard_normal(s), jnp.float32) for s in ((1, 3, 101, 64), (16, 3, 3, 3), (8, 16, 3, 3))
    ]
    limit = whole_footprint(rx.trace(loss, *args), set(), {}, FRUGAL).bytes // 2
    best: Any = rx.optimize(loss, *args, memory_limit=limit)
    assert TOTALS.name in best.report.rules and best.report.memory.bytes <= limit
    assert "dynamic_slice" in str(best.module)
    np.testing.assert_allclose(best(*args), loss(*args), rtol=1e-4, atol=1e-3)


@dataclass
class Answers(ModuleAnswers):
    """Answers that are made once, as those of a search are."""

    made: dict[Any, Any] = field(default_factory=dict[Any, Any])

    def once(self, key: Any, make: Any) -> Any:
        if key not in self.made:
            self.made[key] = make(self)
        return self.made[key]


@pytest.mark.parametrize("rows", [60, 61])
def test_gradients_of_kernels_and_biases_share_a_loop(rows: int) -> None:
    """The loss and all gradients are accumulated over the same rows. Where no number of pieces divides these, the last
    piece adds nothing for rows that are not there."""

    def loss(ps: Any, x: Any) -> Any:
        for w, b in ps:
            x = jax.nn.relu(convolved(x, w) + b[:, None, None])
        return jnp.mean(x**2)

    rng = np.random.default_rng(0)
    shapes = ([((8, 3, 3, 3), (8,)), ((4, 8, 3, 3), (4,))], (1, 3, rows, 16))
    is_shape = lambda s: isinstance(s[0], int)  # noqa: E731
    args = jax.tree.map(lambda s: jnp.asarray(rng.standard_normal(s), jnp.float32), shapes, is_leaf=is_shape)
    module = rx.trace(jax.value_and_grad(loss), *args)
    main, (block,) = module.main, module.main.blocks
    values = [b.value for b in block.bindings]
    answers = Answers({}, (), postorder(values))
    ((start, total),) = [(x, t) for x in answers.nodes for t in totals_of(x) if x.op == "sum" and t.extent == rows][:1]
    found = halo_of_totals(start, total, 16, answers)
    assert (
        found is not None
        and (found.rows, found.count) == (4, -(-rows // 4))
        and sorted(x.op for x in found.totals) == ["conv", "conv", "sum", "sum", "sum"]
    )
    made = {x: y for x in found.totals if (y := with_halo(x, found, answers)) is not None}
    assert len(made) == 5 and len({x.args[0] for x in made.values()}) == 1
    cut = [Binding(b.var, v) for b, v in zip(block.bindings, substitute_exprs(values, made), strict=True)]
    cut_module = Module((replace(main, blocks=(replace(block, bindings=tuple(cut)),)), *answers.functions.values()))
    ours, theirs = (run_at(m, m.main, jax.tree.leaves(args), {}) for m in (cut_module, module))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * float(jnp.max(jnp.abs(b))))
    needed = [whole_footprint(m, set(), {}, FRUGAL).bytes for m in (cut_module, module)]
    assert needed[0] < 0.6 * needed[1]


X, W = var("x", Tensor((1, 2, 40, 5), "float32")), var("w", Tensor((2, 2, 3, 3), "float32"))


def halo(e: Expr) -> Any:
    return halo_of(e, 2, 8, ModuleAnswers({}, (), postorder((e,))))


def test_a_halo_grows_backwards_as_the_windows_say() -> None:
    # 38 rows of the convolution, 19 of the pooling: 7 pieces of 3 rows.
    e = op.conv(X, W, padding=[(1, 1), (1, 1)], dilation=(2, 1))
    pooled = op.reduce_window(e, "max", (1, 1, 2, 2), (1, 1, 2, 1))
    found = halo(pooled)
    assert (found.rows, found.count) == (3, 7)
    assert [(x.op, r.step, r.first, r.length) for x, r in found.nodes.items()] == [
        ("reduce_window", 1, 0, 3),
        ("conv", 2, 0, 6),
    ]
    (window, kernel) = found.reads[e]
    assert (window.step, window.first, window.span, window.beyond) == (1, -1, 5, 0.0) and kernel is None


@pytest.mark.parametrize(
    "e",
    [
        op.conv(X, W, padding=[(1, 1), (1, 1)], input_dilation=(2, 1)),  # a place reads others by its parity
        op.cumsum(op.conv(X, W), 2),
        op.flip(op.conv(X, W), 2),
        op.relu(X),  # has no windows
        op.add(X, X),
    ],
)
def test_other_reads_have_no_halo(e: Expr) -> None:
    assert halo(e) is None
