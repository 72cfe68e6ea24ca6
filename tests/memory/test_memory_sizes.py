"""Which memory may be taken over, by the sizes: a table of pairs, with and without bounds."""

from __future__ import annotations

import random

import pytest
from memory_programs import memory_program, planned_in

from relax_eg.memory import PlanOptions, Reuse
from relax_eg.memory.arena import Tops
from relax_eg.memory.planner import make_plan
from relax_eg.memory.proofs import SizeProofs
from relax_eg.shapes import Dim, Proved, Refuted, Scope

# bytes of the one before, bytes of the one after, bounds, what else is known, what is proved: "==", "<=" (the one after
# fits), or "no" with a counterexample.
PAIRS = [
    ("4*n", "n*4", {}, (), "=="),
    ("b*n*m", "m*n*b", {}, (), "=="),
    ("(n + m)**2", "n**2 + 2*n*m + m**2", {}, (), "=="),
    ("n//2//3", "n//6", {}, (), "=="),
    ("max(n, m) + min(n, m)", "n + m", {}, (), "=="),
    ("4*(n + 1) - 4", "4*n", {}, (), "=="),
    ("(n - m)*(n + m) + m*m", "n*n", {}, (), "=="),
    ("8*(s//8)", "s", {}, ("s % 8 == 0",), "=="),
    ("n*m", "12*m", {"n": (12, 12)}, (), "=="),
    ("n", "m", {}, ("n == m",), "=="),
    ("2*n", "m", {}, ("m == 2*n",), "=="),
    ("n*m//m", "n", {}, (), "=="),
    ("2*n + 2", "2*n", {}, (), "<="),
    ("n*m", "n", {}, (), "<="),
    ("n*n", "n", {}, (), "<="),
    ("b*s", "s", {}, (), "<="),
    ("16*n", "12*n + 4", {}, (), "<="),
    ("4*n", "n + 3", {}, (), "<="),
    ("n + m", "max(n, m)", {}, (), "<="),
    ("max(n, m)", "min(n, m)", {}, (), "<="),
    ("4*((n + 3)//4)", "n", {}, (), "<="),
    ("n", "4*(n//4)", {}, (), "<="),
    ("28672*s", "513024", {"s": (18, None)}, (), "<="),
    ("1024", "n", {"n": (1, 1024)}, (), "<="),
    ("64*64", "b*s", {"b": (1, 64), "s": (1, 64)}, (), "<="),
    ("4096", "b*s", {}, ("b*s <= 4096",), "<="),
    ("n", "m", {}, ("m <= n",), "<="),
    ("n*k", "m*k", {}, ("m <= n",), "<="),
    ("n*n", "10*n", {"n": (10, None)}, (), "<="),
    ("n*n + 1", "2*n", {}, (), "<="),
    ("8192*s", "128*s", {}, (), "<="),
    ("s*(t + 8)", "s*t", {}, (), "<="),
    ("n", "n//2 + 1", {"n": (2, None)}, (), "<="),
    ("3*n", "n + 2*m", {}, ("m <= n",), "<="),
    ("n", "n + 1", {}, (), "no"),
    ("n", "m", {}, (), "no"),
    ("n*m", "n + m", {}, (), "no"),
    ("n", "2*(n//2 + 1)", {}, (), "no"),
    ("4*n", "n*n", {}, (), "no"),
    ("n*n", "10*n", {"n": (9, None)}, (), "no"),
    ("1024", "n", {"n": (1, 1025)}, (), "no"),
    ("4096", "b*s", {"b": (1, 64), "s": (1, 65)}, (), "no"),
    ("n*m//m", "n + 1", {}, (), "no"),
    ("28672*s", "513024", {"s": (17, None)}, (), "no"),
    ("min(n, m)", "n", {}, (), "no"),
    ("n//2", "n - n//2", {"n": (2, None)}, (), "no"),
]


@pytest.mark.parametrize(("before", "after", "bounds", "assume", "wanted"), PAIRS)
def test_memory_is_taken_over_where_that_is_proved(
    before: str, after: str, bounds: dict[str, tuple[int, int | None]], assume: tuple[str, ...], wanted: str
) -> None:
    program = memory_program(f"""
        a: {before} = k(x)
        b: 7777777 = k(a)
        c: {after} = k(b)
        d: 1 = k(c)
        return d
    """)
    scope = Scope(bounds, assume=assume)
    at = scope.example(program.variables, 32) if program.variables else {}
    for aliasing, taken in (("elements", wanted == "=="), ("fits", wanted != "no")):
        plan = make_plan(program, SizeProofs(scope, at), PlanOptions(aliasing=aliasing))  # type: ignore[arg-type]
        assert (plan.places[1] == plan.places[3]) == taken
        assert plan.check() == []
        (told,) = (r for r in plan.reuses if {r.value, r.before} == {1, 3})
        _holds(told, scope, taken, "==" if aliasing == "elements" else "<=")


def _holds(told: Reuse, scope: Scope, taken: bool, op: str) -> None:
    """The reason that is given is the prover's, and a counterexample is one."""
    assert told.granted == taken
    c = told.comparison
    assert c.op == op
    if taken:
        assert isinstance(c.verdict, Proved)
        return
    assert isinstance(c.verdict, Refuted)
    env = dict(c.verdict.counterexample)
    scope.check(env, "test")
    left, right = c.left.evaluate(env), c.right.evaluate(env)
    assert left != right if op == "==" else left > right


def test_what_is_not_decided_is_not_taken() -> None:
    # Fermat, for n = 3: true, and beyond the prover; unknown means no.
    program = memory_program("""
        a: a**3 + b**3 = k(x)
        p: 7777777 = k(a)
        c: c**3 = k(p)
        d: 1 = k(c)
        return d
    """)
    plan = planned_in(program, {"a": 5, "b": 6, "c": 7})
    assert len(plan.storages) == 3


def test_the_arena_makes_use_of_what_fits() -> None:
    # b lies above a; then c has the place of a, though it is smaller, because 2*n <= 2*n + 2 is proved.
    program = memory_program("""
        a: 2*n + 2 = k(x)
        b: 8*n = k(a)
        c: 2*n = k(b)
        d: 1 = k(c, b)
        e: 4 = k(d)
        return e
    """)
    plan = planned_in(program, {"n": 100}, layout="arena")
    assert plan.bytes == Dim.of("10*n + 2")
    assert plan.bound_at({"n": 100}) == plan.bytes_at({"n": 100}) == 1002
    assert any(r.granted and r.comparison.op == "<=" for r in plan.reuses)


def test_the_arena_is_sound_where_the_order_of_sizes_turns() -> None:
    program = memory_program("""
        a: n = k(x)
        b: m = k(a)
        c: n*2 = k(b)
        d: m*2 = k(c, b)
        e: 4 = k(d, c)
        return e
    """)
    plan = planned_in(program, {"n": 100, "m": 3}, layout="arena")
    sizes = [{"n": n, "m": m} for n in (1, 7, 100) for m in (1, 3, 400)]
    assert plan.check(sizes) == []


@pytest.mark.parametrize("layers", [40, 160])
def test_symbolic_offsets_ask_few_questions(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training step: what each layer makes (a product, a mask of bytes, rows) is needed when it is gone back over."""
    sizes = ("3072*b*s @ uint8", "b*s @ bool", "s @ float32")
    made = [f"v{i}_{k}: {size} = k(v{i - 1}_0)" for i in range(1, layers) for k, size in enumerate(sizes)]
    back = [f"g{i}: 3072*b*s = k(g{i + 1}, v{i}_0, v{i}_1, v{i}_2)" for i in reversed(range(1, layers))]
    lines = ["v0_0: 3072*b*s = k(x)", *made, f"g{layers}: 3072*b*s = k(v{layers - 1}_0)", *back, "return g1"]
    program = memory_program("\n".join(lines))
    asked = 0
    interval = Scope.interval

    def counted(self: Scope, d: Dim | int) -> object:
        nonlocal asked
        asked += 1
        return interval(self, d)

    monkeypatch.setattr(Scope, "interval", counted)
    plan = planned_in(program, {"b": 4, "s": 128}, layout="arena")
    assert len(plan.live.lifetimes) > 3 * layers and plan.gap < 0.01
    assert asked <= len(plan.live.lifetimes)
    assert plan.check([{"b": 1, "s": 1}, {"b": 3, "s": 7}, {"b": 64, "s": 2}]) == []


def test_what_is_on_top_is_found_as_by_looking_at_every_step() -> None:
    rng = random.Random(0)
    for _ in range(200):
        steps = rng.randint(1, 12)
        tops, each = Tops(steps), [-1] * steps
        for n in range(rng.randint(1, 20)):
            start = rng.randrange(steps)
            end = rng.randint(start + 1, steps)
            assert tops.put(n, start, end) == set(each[start:end]) - {-1}
            each[start:end] = [n] * (end - start)
            assert tops.all == set(each) - {-1}


def test_rounding_is_compared_without_rounding() -> None:
    scope = Scope({})
    sizes = SizeProofs(scope, {"n": 100, "m": 100})
    rounded = Dim.of("4*ceildiv(n*m, 4)")
    # At most n*m + 3, and at least n*m; n*m itself is at least 1.
    assert sizes.largest([rounded, Dim.of("n*m + 3")]) == [Dim.of("n*m + 3")]
    assert sizes.largest([Dim.of("n*m"), rounded]) == [rounded]
    assert sizes.largest([rounded, Dim.of("4*n*m")]) == [Dim.of("4*n*m")]
    assert len(sizes.largest([rounded, Dim.of("n*m + 2")])) == 2
    # Neither is at most the other, for all sizes, though one is at the sizes of interest.
    assert len(sizes.largest([Dim.of("n*m"), Dim.of("2*n")])) == 2
