"""Whole programs at capacity: right whatever the padding holds, with as many masks as are listed, each of them needed;
what cannot run at capacity is named."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sampling import sampled
from whole_programs import PROGRAMS, Program, is_right, planned

import relax_eg as rx
from relax_eg.dynamic import plan
from relax_eg.errors import BoundsError, OptionError, ShapeError

# Of the masks of these, some are not needed, for reasons that no content of a padding says: a triangle is zero above
# its diagonal, so its columns beyond n are zero in the rows that count; of a diagonal either end will do. A factor of a
# bordered matrix is bordered itself, what is solved from the top never meets what is below, and Q has zero rows.
NOT_SEEN = {"triangle": {0, 2, 3}, "systems": {2, 3, 4, 6, 7, 8, 9, 12}, "orthogonal": {1}}


@pytest.mark.parametrize("name", sampled(list(PROGRAMS), 4))
def test_a_program_at_capacity(name: str) -> None:
    program, module, p = planned(name)
    assert not p.exact, dict(p.exact)
    assert len(p.masks) == program.masks, str(p)
    assert is_right(program, module, p, np.random.default_rng(0)), f"{module}\n{p}"


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_mask_is_needed(name: str) -> None:
    program, module, p = planned(name)
    kept = [m.number for m in p.masks if is_right(program, module, p, np.random.default_rng(1), without=[m.number])]
    assert set(kept) == NOT_SEEN.get(name, set()), [str(p.masks[k]) for k in kept]


def test_rows_that_never_mix_need_no_mask() -> None:
    def mlp(x: Any, w: Any, v: Any) -> Any:
        h = jax.nn.gelu(x @ w)
        h = (h - h.mean(-1, keepdims=True)) * jax.lax.rsqrt(h.var(-1, keepdims=True) + 1e-5)
        return jax.nn.softmax(jnp.tanh(h) @ v, -1)

    p = plan(rx.trace(mlp, "b s 8", "8 16", "16 4"))
    assert p.masks == () and not p.exact


def test_a_merged_axis_stays_as_it_lies() -> None:
    """(b, s, d) to (b*s, d) and back moves nothing: no gather, no division."""

    def flat(x: Any, w: Any) -> Any:
        b, s, d = x.shape
        return jnp.tanh(x.reshape(b * s, d) @ w).reshape(b, s, 4)

    p = plan(rx.trace(flat, "b s 8", "8 4"))
    run = p.lower({"b": 4, "s": 16})
    text = str(jax.make_jaxpr(run)([jnp.zeros((4, 16, 8)), jnp.zeros((8, 4))], {"b": jnp.int32(1), "s": jnp.int32(1)}))
    assert p.masks == () and "gather" not in text and "div" not in text and "rem" not in text


def test_one_operand_of_an_integer_contraction_is_enough() -> None:
    p = plan(rx.trace(lambda a, b: a @ b, "m k @ int32", "k 3 @ int32"))
    (mask,) = p.masks
    assert str(mask).startswith("axis 0 of `b`, k: matmul, sum over k: one factor is zero, the others are finite (")


def test_a_spelled_softmax_needs_one_mask() -> None:
    def spelled(x: Any, v: Any) -> Any:
        e = jnp.exp(x - jnp.max(x, -1, keepdims=True))
        return (e / jnp.sum(e, -1, keepdims=True)) @ v

    p = plan(rx.trace(spelled, "m n", "n 4"))
    assert [m.value for m in p.masks] == ["`x`", "`v`"]
    program = Program(spelled, ("m n", "n 4"), 2, ({"m": 2, "n": 3}, {"m": 1, "n": 5}), {"m": 3, "n": 6})
    assert is_right(program, program.module(), p, np.random.default_rng(0))


def test_a_row_of_a_softmax_that_is_nan_stays_nan() -> None:
    module = rx.trace(lambda x, v: jax.nn.softmax(x, -1) @ v, "m n", "n 2")
    p = plan(module)
    x = np.array([[-np.inf, -np.inf], [np.inf, 0], [np.nan, 0], [1, -np.inf]], "float32")
    padded_x = np.full((4, 5), np.nan, "float32")
    padded_x[:, :2] = x
    v, padded_v = np.ones((2, 2), "float32"), np.full((5, 2), np.inf, "float32")
    padded_v[:2] = v
    got = p.lower({"m": 4, "n": 5})([padded_x, padded_v], {"m": 4, "n": 2})
    np.testing.assert_allclose(got, jax.nn.softmax(jnp.asarray(x), -1) @ v, equal_nan=True)


def test_what_a_select_takes_of_a_softmax_is_masked_again() -> None:
    """A row that is NaN may be replaced: then the NaN of its padding would show."""

    def replaced(x: Any, v: Any) -> Any:
        p = jax.nn.softmax(x, -1)
        return jnp.where(jnp.isnan(p), 0.0, p) @ v, jnp.where(jnp.isnan(x[:, :1]), 0.0, p) @ v

    p = plan(rx.trace(replaced, "m n", "n 2"))
    x = np.array([[-np.inf, -np.inf], [np.nan, 0], [1, 2]], "float32")
    full, v, full_v = np.full((3, 5), np.nan, "float32"), np.ones((2, 2), "float32"), np.zeros((5, 2), "float32")
    full[:, :2], full_v[:2] = x, v
    got = p.lower({"m": 3, "n": 5})([full, full_v], {"m": 3, "n": 2})
    for have, want in zip(got, replaced(jnp.asarray(x), v), strict=True):
        np.testing.assert_allclose(have, want, equal_nan=True)


def test_a_mask_is_none_for_what_ends_earlier() -> None:
    """After a slice to n - 1 elements the last true one is padding, which nothing has cleaned."""

    def shorter(x: Any) -> Any:
        y = jnp.where(jnp.arange(x.shape[0]) >= 0, x, 0.0)
        total = jnp.sum(y)
        return total, jnp.sum(jax.lax.pad(y, jnp.float32(0), [(0, -1, 0)])), jnp.sum(y[:-1])

    program = Program(shorter, ("n",), 3, ({"n": 5}, {"n": 2}, {"n": 8}), {"n": 8}, assume="n >= 2")
    module = program.module()
    p = plan(module)
    assert len(p.masks) == 3 and is_right(program, module, p, np.random.default_rng(0)), str(p)


def test_masks_say_where_they_come_from() -> None:
    p = plan(rx.trace(lambda x: jnp.sum(x * 2, 0), "n 3"))
    (mask,) = p.masks
    assert (mask.axis, mask.size, mask.fill) == (0, "n", 0) and mask.source.startswith("test_whole_programs.py:")
    assert str(p) == f"capacity of n: 1 masks\n  axis 0 of multiply (n, 3) float32, n: sum, sum over n ({mask.source})"


def test_what_cannot_run_at_capacity_is_named() -> None:
    def spectrum(x: Any) -> Any:
        return jnp.abs(jnp.fft.fft(x)).sum(0)

    p = plan(rx.trace(spectrum, "b n"))
    ((where, why),) = p.exact.items()
    assert (
        where.startswith("fft at test_whole_programs.py:")
        and why == "it looks at all of axis 1 of operand 0, whose size is n"
    )
    assert "n" in p.exact_dims and "cannot run at capacity" in str(p)
    with pytest.raises(
        OptionError, match=r"`spectrum` cannot run at capacity of b, n: fft at .*\n  accepted: exact sizes for b, n"
    ):
        p.lower({"b": 2, "n": 4})
    # The batch can, at an exact length.
    q = plan(p.module, dims=["b"])
    assert not q.exact and len(q.masks) == 1
    x = np.random.default_rng(0).normal(size=(2, 6)).astype("float32")
    full = np.full((4, 6), np.nan, "float32")
    full[:2] = x
    np.testing.assert_allclose(jax.jit(q.lower({"b": 4}))([full], {"b": 2}), spectrum(x), rtol=1e-5)


def test_what_looks_at_sizes_or_is_not_known_is_named() -> None:
    cast = rx.parse(
        """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 4), dtype="float32")) -> R.Tensor(("k", 4), dtype="float32"):
        y: R.Tensor(("k", 4), dtype="float32") = R.match_cast(x, R.Tensor(("k", 4), dtype="float32"))
        return y
"""
    )
    assert dict(plan(cast).exact) == {"match_cast": "it looks at the sizes of a value"}
    looped = jax.vmap(lambda r: jax.lax.while_loop(lambda x: jnp.sum(x) > 1, lambda x: x / 2, r))
    ((where, why),) = plan(rx.trace(looped, "n 3")).exact.items()
    assert where.startswith("`jax.while` at") and why == "what `jax.while` does with its operands is not known"


def test_bad_input() -> None:
    p = plan(rx.trace(lambda x: x + 1, "n 3"))
    with pytest.raises(OptionError, match=r"dims: `.*` has no size `s`; it has: n"):
        plan(p.module, dims=["s"])
    with pytest.raises(BoundsError, match="capacities: none is given for `n`; given: none"):
        p.lower({})
    with pytest.raises(BoundsError, match="capacities: that of `n` is 0; integers >= 1 are accepted"):
        p.lower({"n": 0})
    with pytest.raises(BoundsError, match="capacities: `m` is not planned for; planned: n"):
        p.lower({"n": 2, "m": 3})
    run = p.lower({"n": 4})
    with pytest.raises(ShapeError, match=r"argument `x` has shape \(3, 3\); at capacity n=4 it is \(4, 3\)"):
        run([np.zeros((3, 3), "float32")], {"n": 3})
    with pytest.raises(ShapeError, match="0 arrays; 1 are needed"):
        run([], {"n": 3})


def test_sizes_that_are_not_planned_for_are_read_off_the_arrays() -> None:
    p = plan(rx.trace(lambda x, y: (x @ y).sum(0), "n k", "k m"), dims=["n"])
    x, y = np.ones((3, 2), "float32"), np.ones((2, 5), "float32")
    full = np.full((4, 2), np.inf, "float32")
    full[:3] = x
    np.testing.assert_allclose(p.lower({"n": 4})([full, y], {"n": 3}), (x @ y).sum(0))
    assert p.input_shapes({"n": 4}, {"k": 2, "m": 5}) == [(4, 2), (2, 5)]
    assert p.shape_of(p.module.main.result.tensor, {"n": 4, "m": 5}) == (5,)


def test_capacities_of_expressions() -> None:
    p = plan(rx.trace(lambda x: jnp.concatenate([x, x, x[:1]])[1:], "n"))
    assert p.shape_of(p.module.main.result.tensor, {"n": 4}) == (8,)
