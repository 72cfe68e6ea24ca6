"""Loops are priced as XLA runs them: what it takes out of them is paid once."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import relax_eg as rx

pytestmark = pytest.mark.xla_defaults

NONE = rx.RuleSet("none")
N = 48


def over(step: Callable[..., Any], length: int = 20) -> Callable[..., Any]:
    """A scan of `step(carry, *constants)`."""
    return lambda h, *same: lax.scan(lambda c, _: (step(c, *same), None), h, None, length=length)[0]


def twice(inner: Callable[..., Any]) -> Callable[..., Any]:
    """A loop of `inner(carry of the outer loop, carry, *constants)` in a loop."""

    def run(h: Any, *same: Any) -> Any:
        def outer(_: Any, c: Any) -> Any:
            return lax.fori_loop(0, 5, lambda _, d: inner(c, d, *same), c)

        return lax.fori_loop(0, 6, outer, h)

    return run


def nested_by_hand(h: Any, a: Any) -> Any:
    def outer(_: Any, c: Any) -> Any:
        t = jnp.tanh(c @ a)
        return lax.fori_loop(0, 5, lambda _, d: d * 0.5 + t, c)

    return lax.fori_loop(0, 6, outer, h)


def counting(h: Any, step: Callable[[Any], Any], unfinished: Callable[[], Any] = lambda: True) -> Any:
    return lax.while_loop(lambda s: (s[0] < 16) & unfinished(), lambda s: (s[0] + 1, step(s[1])), (0, h))[1]


# As written, and with what is the same at every step computed before the loop, by hand.
SAME: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "product": (
        over(lambda c, a, b: jnp.tanh(c + a @ b)), lambda h, a, b: over(lambda c, m: jnp.tanh(c + m))(h, a @ b),
    ),
    "elementwise": (over(lambda c, a, b: c * jnp.exp(a)), lambda h, a, b: over(lambda c, m: c * m)(h, jnp.exp(a))),
    "of a transpose": (
        over(lambda c, a, b: c * jnp.exp(a.T)), lambda h, a, b: over(lambda c, m: c * m)(h, jnp.exp(a.T)),
    ),
    "softmax": (
        over(lambda c, a, b: c @ jax.nn.softmax(a)), lambda h, a, b: over(lambda c, m: c @ m)(h, jax.nn.softmax(a)),
    ),
    "grows": (
        over(lambda c, a, b: c * jnp.exp(a[0][:, None] * a[1])),
        lambda h, a, b: over(lambda c, m: c * m)(h, jnp.exp(a[0][:, None] * a[1])),
    ),
    "called": (
        over(lambda c, a, b: c + jax.jit(lambda x: jnp.tanh(x) @ x)(a)),
        lambda h, a, b: over(lambda c, m: c + m)(h, jnp.tanh(a) @ a),
    ),
    "both loops": (
        twice(lambda c, d, a, b: jnp.tanh(d + a @ b)),
        lambda h, a, b: twice(lambda c, d, m: jnp.tanh(d + m))(h, a @ b),
    ),
    "inner loop": (twice(lambda c, d, a, b: d * 0.5 + jnp.tanh(c @ a)), lambda h, a, b: nested_by_hand(h, a)),
    "loop in a loop": (
        over(lambda c, a, b: c + lax.fori_loop(0, 4, lambda _, d: jnp.tanh(d @ b), a)),
        lambda h, a, b: over(lambda c, m: c + m)(h, lax.fori_loop(0, 4, lambda _, d: jnp.tanh(d @ b), a)),
    ),
    "while": (
        lambda h, a, b: counting(h, lambda x: jnp.tanh(x + a @ b)),
        lambda h, a, b: (lambda m: counting(h, lambda x: jnp.tanh(x + m)))(a @ b),
    ),
}  # fmt: skip


def recurrent(h: Any, a: Any, b: Any) -> Any:
    return lax.scan(lambda c, x: (jnp.tanh(x @ b + c), None), h[0], a)[0]


# Here what is computed by hand before the loop stays inside as XLA runs it.
OTHER: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "of a slice": (
        recurrent, lambda h, a, b: lax.scan(lambda c, x: (jnp.tanh(x + c), None), h[0], a @ b)[0],
    ),
    "condition": (
        lambda h, a, b: counting(h, jnp.sin, lambda: jnp.exp(a).sum() > 0),
        lambda h, a, b: (lambda s: counting(h, jnp.sin, lambda: s))(jnp.exp(a).sum() > 0),
    ),
    "branch": (
        over(lambda c, a, b: lax.cond(c[0, 0] > 0, lambda: c + a @ b, lambda: c)),
        lambda h, a, b: over(lambda c, m: lax.cond(c[0, 0] > 0, lambda: c + m, lambda: c))(h, a @ b),
    ),
}  # fmt: skip


def report_of(fn: Callable[..., Any], target: str = "cpu", **options: Any) -> rx.types.CostReport:
    return rx.optimize(fn, *[f"{N} {N}"] * 3, rules=NONE, target=target, **options).report


def inside_loops(fn: Callable[..., Any]) -> list[str]:
    """The operations that cost something in the loops of the program that XLA makes of a function."""
    text = jax.jit(fn).lower(*[jax.ShapeDtypeStruct((N, N), jnp.float32)] * 3).compile().as_text() or ""
    computations = {c.split(" ", 1)[0].lstrip("%"): c for c in re.split(r"\n\n", text)}
    found: list[str] = []
    todo, seen = re.findall(r"(?:condition|body)=%?([\w.\-]+)", text), set[str]()
    while todo:
        name = todo.pop()
        if name in seen or name not in computations:
            continue
        seen.add(name)
        todo += re.findall(r"(?:calls|to_apply|body|condition|_computation)=%?([\w.\-]+)", computations[name])
        todo += re.findall(r"%([\w.\-]+)", " ".join(re.findall(r"branch_computations=\{[^}]*\}", computations[name])))
        found += re.findall(r" (dot|exponential|tanh|sine)\(", computations[name])
    return sorted(found)


@pytest.mark.parametrize("name", SAME)
def test_what_xla_takes_out_of_a_loop_is_paid_once(name: str) -> None:
    written, by_hand = SAME[name]
    assert inside_loops(written) == inside_loops(by_hand)  # what XLA does
    found, least = report_of(written).before, report_of(by_hand).before
    assert found.seconds == pytest.approx(least.seconds, rel=0.1)  # a launch before a loop takes longer
    assert found.flops == least.flops
    in_kernels = report_of(written, execution="kernels").before
    assert in_kernels.seconds < 1.5 * report_of(by_hand, execution="kernels").before.seconds


@pytest.mark.parametrize("name", OTHER)
def test_what_stays_in_a_loop_is_paid_at_every_step(name: str) -> None:
    written, by_hand = OTHER[name]
    assert inside_loops(written) != inside_loops(by_hand)
    assert report_of(written).before.seconds > 1.1 * report_of(by_hand).before.seconds


@pytest.mark.parametrize("name", (*SAME, *OTHER))
def test_totals_of_loops_add_up(name: str) -> None:
    written, _ = (SAME | OTHER)[name]
    report = report_of(written)
    cost, forms = report.before, report.expressions["before"]
    for what in ("flops", "bytes", "launches"):
        assert sum(getattr(p, what) for p in cost.parts) == getattr(cost, what) == int(forms[what])
    assert sum(p.seconds for p in cost.parts) == pytest.approx(cost.seconds, rel=1e-9)


def test_a_gpu_is_not_known_to_do_so() -> None:
    written, by_hand = SAME["product"]
    specs = ["1024 1024"] * 3  # so large that launches are no matter
    before, after = (rx.optimize(f, *specs, rules=NONE, target="h100").report.before for f in (written, by_hand))
    assert before.seconds > 1.1 * after.seconds
    best = rx.optimize(written, *specs, target="h100")
    assert best.report.rules["loop_invariants"]


def test_closed_forms_tell_which_steps_count() -> None:
    def fn(h: Any, a: Any, b: Any) -> Any:
        return lax.scan(lambda c, x: (jnp.tanh(c + x + a @ b), None), h[0], h)[0]

    report = rx.optimize(fn, "t n n", "n n", "n n", at={"t": 30, "n": 16}, rules=NONE).report
    assert report.expressions["before"]["flops"] == "2*n**3 + 12*n**2*t"
    assert report.before.flops == 2 * 16**3 + 12 * 16**2 * 30


def test_bodies_are_chosen_for_what_is_paid_once() -> None:
    """A product of constants is worth its while where steps are many, though no rule about loops moves it."""
    rules = rx.rules.default - "loops"

    def fn(a: Any, b: Any, x: Any) -> Any:
        return lax.fori_loop(0, 200, lambda _, y: jnp.tanh(a @ (b @ y)), x)

    best = rx.optimize(fn, "64 64", "64 64", "64", rules=rules)
    body = next(f for f in best.module if f.name != best.module.main.name)
    assert not best.report.kept_as_written
    assert [e for e in body.expressions() if e.op == "matmul" and e.args[0].op == "matmul"]
