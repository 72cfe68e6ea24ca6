"""Large values in pieces without a memory limit: proposed where memory for them takes time, right at every size."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.driver.prices import price_at
from relax_eg.driver.program_ends import traced_program
from relax_eg.extract.costs.priced import PricedModules
from relax_eg.extract.profiles.devices import CPU, PROFILES
from relax_eg.extract.profiles.profile import Profile
from relax_eg.ops.interpret import evaluate

# A device whose memory comes page by page from 64 KiB on, so that small programs show what large ones do.
SMALL = replace(CPU, name="small", fresh_bytes=65536.0, fresh_rate=1e7, dispatch=1e-7, launch=1e-8, step=1e-8, fork=0.0)
HEADS = "4 n 8"
IN_PIECES, ONE_BY_ONE = RULES = ("computed_in_pieces", "computed_one_by_one")
WITHOUT = rx.rules.default - IN_PIECES - ONE_BY_ONE


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("hqd,hkd->hqk", q, k) / 3.0
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores), v)


def causal(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("hqd,hkd->hqk", q, k) / 3.0
    seen = jnp.tril(jnp.ones(scores.shape[1:], bool))
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(jnp.where(seen, scores, -1e9)), v)


def grouped(q: Any, k: Any, v: Any) -> Any:
    """Two heads read one key: rows and heads are one axis of the products."""
    q = q.reshape(2, 2, *q.shape[1:])
    scores = jnp.einsum("ghqd,gkd->ghqk", q, k[:2]) / 3.0
    return jnp.einsum("ghqk,gkd->ghqd", jax.nn.softmax(scores), v[:2])


def perceptron(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.relu(q[0] @ k[0].T) @ v[0]


def arrays(n: int) -> list[Any]:
    rng = np.random.default_rng(n)
    return [jnp.asarray(rng.standard_normal((4, n, 8)), jnp.float32) for _ in range(3)]


def whole_numbers(n: int) -> list[Any]:
    """Arguments for which float32 holds every partial sum in `perceptron`: at most n * 4 * (8 * 4 * 4) < 2**24."""
    rng = np.random.default_rng(n)
    return [jnp.asarray(rng.integers(-4, 5, (4, n, 8)), jnp.float32) for _ in range(3)]


def optimized(fn: Any, target: Profile | str = SMALL, **more: Any) -> Any:
    return rx.optimize(fn, *[HEADS] * 3, target=target, **({"at": {"n": 96}} | more))


@pytest.mark.parametrize(
    ("fn", "fresh_bytes", "rule"),
    [
        (attention, 65536, IN_PIECES),
        (attention, 65536, ONE_BY_ONE),
        (attention, 100_000, IN_PIECES),
        (causal, 65536, IN_PIECES),
        (causal, 65536, ONE_BY_ONE),
        (causal, 100_000, IN_PIECES),
        (grouped, 147_456, IN_PIECES),
        (perceptron, 32768, IN_PIECES),
    ],
    ids=["rows", "one head", "heads", "causal rows", "one causal head", "causal heads", "groups", "perceptron"],
)
def test_what_is_in_pieces_is_right_at_every_size(fn: Any, fresh_bytes: float, rule: str) -> None:
    """Lengths below, at and beside the rows of a piece; the reference is the interpreter on the program as written."""
    (other,) = {*RULES} - {rule}
    best = optimized(fn, replace(SMALL, fresh_bytes=fresh_bytes), rules=rx.rules.default - other)
    assert rule in best.report.rules and "R.scan" in str(best.module)
    written = traced_program(fn, (HEADS,) * 3).module
    for n in (1, 2, 3, 7, 11, 12, 13, 24, 25, 47, 48, 49, 95, 96, 97, 100, 131):
        args = whole_numbers(n) if fn is perceptron else arrays(n)
        want = evaluate(written, [np.asarray(a) for a in args])
        found = evaluate(best.module, [np.asarray(a) for a in args])
        # The rule is `exact`: it leaves the terms of every sum as they are. numpy's and XLA's matmuls add them up in an
        # order that depends on the number of rows and on the processor, so results are compared at the size of what is
        # summed, except where every order gives the same bits.
        tolerance = 0.0 if fn is perceptron else 1e-5 * np.abs(np.asarray(args[2])).max()
        np.testing.assert_allclose(found, want, rtol=0, atol=tolerance)
        np.testing.assert_allclose(best(*args), want, rtol=0, atol=10 * tolerance)


CONVOLVED = ("n 2 h w", "6 2 3 3")


def convolved(x: Any, kernel: Any) -> Any:
    """Padding of "SAME" with strides is computed of h and w."""
    y = jax.lax.conv_general_dilated(x, kernel, (2, 1), "SAME")
    return jax.nn.relu(y).mean((2, 3))


def shifted(x: Any, kernel: Any) -> Any:
    """What is cut off and put before is told by sizes of other axes than that of the pieces."""
    y = jnp.einsum("nchw,nckw->nchk", x, x * kernel[0, 0, 0, 0])
    return jnp.abs(jnp.pad(y[:, :, 1:], ((0, 0), (0, 0), (1, 0), (0, 0)))).max((2, 3))


@pytest.mark.parametrize(("fn", "execution"), [(convolved, "kernels"), (shifted, "whole")])
def test_attributes_of_other_axes_do_not_matter(fn: Any, execution: Any) -> None:
    """Rows of a batch one after the other, though the operator has sizes among its attributes."""
    at = {"n": 48, "h": 64, "w": 16}
    options: dict[str, Any] = {"at": at, "execution": execution}
    usual = rx.optimize(fn, *CONVOLVED, memory_limit="1 GiB", rules=rx.rules.default - IN_PIECES, **options)
    limit = usual.report.memory.bytes // 3
    best = rx.optimize(fn, *CONVOLVED, memory_limit=limit, **options)
    assert {IN_PIECES, "accumulated_over_pieces"} & set(best.report.rules) and best.report.memory.bytes <= limit
    written = traced_program(fn, CONVOLVED).module
    for n, h, w in ((1, 3, 4), (7, 5, 6), (8, 9, 3), (17, 4, 4), (48, 7, 8)):
        rng = np.random.default_rng(n)
        args = [rng.standard_normal(s).astype(np.float32) for s in ((n, 2, h, w), (6, 2, 3, 3))]
        want = evaluate(written, args)
        np.testing.assert_allclose(evaluate(best.module, args), want, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(best(*args), want, rtol=1e-4, atol=1e-4)


def test_a_mask_of_places_is_made_in_the_loop() -> None:
    """What compares places of a row with those of a column is no array that the loop goes over."""
    module = str(optimized(causal, rules=rx.rules.default - ONE_BY_ONE).module)
    body = module[module.index("_in_pieces(") :]
    assert "R.iota" in body
    outside = module[: module.index("R.scan")]
    assert 'R.iota(shape=("n", "n")' not in outside


@pytest.mark.parametrize(
    ("target", "more"),
    [
        (CPU, {}),  # values are too small
        (replace(SMALL, fresh_bytes=math.inf), {}),
        (PROFILES["h100"], {"at": {"n": 4096}}),  # memory is the program's own
        (SMALL, {"execution": "kernels"}),  # calls keep their storages
    ],
)
def test_where_memory_takes_no_time_nothing_is_proposed(target: Profile, more: Any) -> None:
    found, without = (optimized(attention, target, rules=rules, **more) for rules in (rx.rules.default, WITHOUT))
    assert found.module == without.module
    assert [r.candidates for r in found.report.selected] == [r.candidates for r in without.report.selected]


def test_one_proposal_for_a_large_value() -> None:
    """What follows from the result is not proposed again, whatever it is."""

    def more(q: Any, k: Any, v: Any) -> Any:
        x = attention(q, k, v)
        for _ in range(6):
            x = jnp.tanh(x @ jnp.ones((8, 8)) + x)
        return x

    candidates = []
    for fn in (attention, more):
        found, without = (
            sum(r.candidates for r in optimized(fn, rules=rules).report.selected)
            for rules in (rx.rules.default, WITHOUT)
        )
        candidates.append(found - without)
    assert 0 < candidates[1] <= candidates[0] + 8


def test_a_family_is_in_pieces_above() -> None:
    best = optimized(attention, at=None, bounds={"n": (1, 256)})
    by_rule = {not v.report.rules.keys().isdisjoint(RULES): v.guard for v in best.variants}
    assert by_rule.keys() == {True, False} and by_rule[True].startswith("n >= ")
    least = int(by_rule[True].split()[-1])
    assert 4 * least * least * 4 >= SMALL.fresh_bytes > 4 * 4 * 4
    for n in (1, least - 1, least, least + 1, 200, 256):
        np.testing.assert_allclose(best(*arrays(n)), attention(*arrays(n)), rtol=1e-4, atol=1e-5)
    assert any(c.crossovers for c in best.report.curves)


def seconds(fn: Any, target: Profile, *specs: str, execution: str = "whole") -> float:
    module = traced_program(fn, specs).module
    return price_at(module, Device(target, execution), {}).seconds


@dataclass(frozen=True)
class Device:
    """What prices depend on."""

    profile: Profile
    execution: Any
    cost: Any = None
    priced: PricedModules = field(default_factory=PricedModules)


def test_fresh_memory_is_priced_where_an_array_is_made() -> None:
    """By the kernel that stores it, not at each step of a loop, and not where calls keep storages."""
    kept = replace(SMALL, fresh_bytes=math.inf)

    def more(fn: Any, *specs: str, execution: str = "whole") -> float:
        return seconds(fn, SMALL, *specs, execution=execution) - seconds(fn, kept, *specs, execution=execution)

    assert more(lambda x: x @ x, "128 128") == pytest.approx(128 * 128 * 4 / SMALL.fresh_rate)
    assert more(lambda x: jnp.tanh(x @ x) + 1, "128 128") == pytest.approx(2 * 128 * 128 * 4 / SMALL.fresh_rate)
    assert more(lambda x: x @ x, "16 16") == 0
    assert more(lambda x: jnp.sum(jnp.exp(x)), "128 128") == 0
    once = 128 * 128 * 4 / SMALL.fresh_rate  # of the sum: the differences stay in its kernel
    assert more(lambda x: jnp.sum(x[:, :, None] - x[:, None], 2), "128 128") == pytest.approx(once)
    assert more(lambda x: x @ x, "128 128", execution="kernels") == 0
    assert more(lambda x: jax.lax.fori_loop(0, 9, lambda i, y: y @ x, x), "128 128") == 0
