"""What no program of a search needs less than is true of every program that can be extracted, and is more than the
results where a program has an operator that nothing cuts."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from programs import programs

import relax_eg as rx
from relax_eg.backend.accounting import FRUGAL
from relax_eg.backend.footprint import whole_footprint
from relax_eg.driver.clock.measured import Search
from relax_eg.driver.limits.bounds import bound_of
from relax_eg.driver.limits.limited import front
from relax_eg.driver.options import read_options
from relax_eg.driver.program_ends import traced_program
from relax_eg.errors import ExtractionError, RelaxEgError
from relax_eg.extract.least_memory import NOTHING, RESULTS, LeastBytes, LeastMemory, most_of
from relax_eg.extract.selection.problem import tree_choice
from relax_eg.extract.selection.select import problem_of
from relax_eg.ir.module import Function, Module

pytestmark = pytest.mark.xla_defaults

LARGEST = 96
KIB = 1024  # bytes
DEFAULT = frozenset[str]()


def searched(program: Any, specs: tuple[Any, ...], sizes: dict[str, int], without: frozenset[str] = DEFAULT) -> Search:
    """A search under a limit that nothing keeps."""
    traced = traced_program(program, specs)
    rules = rx.rules.default
    for name in sorted(without):
        rules = rules - name
    budget = rx.Budget(extraction=20.0)
    return Search(traced, read_options(traced, at=sizes, memory_limit=1, execution="whole", rules=rules, budget=budget))


def least(fn: Callable[..., Any], *specs: str, at: dict[str, int]) -> LeastBytes:
    search = searched(fn, specs, at)
    tried = front(search, lambda programs: programs)
    found = bound_of(search, [t.footprint for t in tried])
    assert found.bytes <= min(t.footprint.bytes for t in tried)
    return found


def any_program(search: Search, rng: random.Random) -> Module | None:
    """A program from the e-graph of the search, whatever it costs; None for a program of several functions."""
    entry = search.entry()
    read = entry.units.graph_of(entry.module.main.name)
    if read is None:
        return None
    graph = read.graph
    costs = [[rng.random() ** 4 for _ in row] for row in graph.candidates]
    values = read.decode(tree_choice(problem_of(graph, costs)))
    main = search.traced.module.main
    if len(main.blocks) != 1:
        return None
    (block,) = entry.units.module.main.blocks
    bindings = tuple(replace(b, value=v) for b, v in zip(block.bindings, values, strict=True))
    made = Function(main.name, main.params, (replace(block, bindings=bindings),), entry.units.module.main.result)
    return Module((made, *(f for f in entry.units.functions.best.values() if f.name != main.name)))


def needs(module: Module, sizes: dict[str, int]) -> int:
    return min(whole_footprint(module, set(), sizes, options).bytes for options in ({}, FRUGAL))


@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(programs(), st.integers(0, 1000))
def test_no_program_is_below_the_bound(module: Module, seed: int) -> None:
    compare(module, (), seed)


def compare(program: Any, specs: tuple[Any, ...], seed: int, programs_each: int = 4) -> int:
    """The bytes of the bound, which no program that was tried, and none from the e-graph, is below."""
    rng = np.random.default_rng(seed)
    names = traced_program(program, specs).module.main.size_variables
    sizes = {v: int(rng.integers(8, LARGEST)) for v in names}
    search = searched(program, specs, sizes)
    tried = front(search, lambda programs: programs)
    bound = bound_of(search, [t.footprint for t in tried])
    assert bound.bytes <= min(t.footprint.bytes for t in tried), f"{bound}\n{search.traced.module}"
    for _ in range(programs_each):
        made = any_program(search, random.Random(int(rng.integers(1 << 30))))
        if made is not None:
            assert bound.bytes <= needs(made, sizes), f"{bound}\n{made}"
    return bound.bytes


@pytest.mark.slow
def test_no_program_of_many_is_below_the_bound() -> None:
    wrong: list[str] = []

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(programs(), st.integers(0, 1000))
    def each(module: Module, seed: int) -> None:
        try:
            compare(module, (), seed)
        except RelaxEgError as e:
            wrong.append(f"sizes {seed}: {type(e).__name__}: {e}\n{module}")

    each()
    assert not wrong, "\n\n".join(wrong)


def whole_matrix(a: Any) -> Any:
    return jnp.sum(jnp.log(jnp.diagonal(jnp.linalg.cholesky(a))))


def test_a_factorisation_needs_its_matrix() -> None:
    found = least(whole_matrix, "n n", at={"n": 256})
    assert found.bytes == 256 * 256 * 4
    with pytest.raises(ExtractionError, match=r"no program of this search needs less than .*: .* of cholesky"):
        rx.optimize(whole_matrix, "n n", at={"n": 256}, memory_limit="2 KiB", budget=rx.Budget(extraction=5.0))


def test_a_matrix_that_algebra_makes_needless_does_not_count() -> None:
    """The determinant of a product of triangles: what the rules leave out, no program needs."""

    def fn(x: Any) -> Any:
        return jnp.sum((x @ x.T) @ x)

    found = least(fn, "n 8", at={"n": 256})
    assert found.bytes < 256 * 256 * 4


def test_a_matmul_needs_one_piece() -> None:
    """A hidden layer exists in pieces, but a piece of it does."""

    def fn(x: Any, w: Any, v: Any) -> Any:
        return jnp.tanh(x @ w) @ v

    found = least(fn, "n 64", "64 512", "512 2", at={"n": 2048})
    hidden, results = 2048 * 512 * 4, 2048 * 2 * 4
    assert results <= found.bytes < hidden / 8


def test_sorts_transforms_and_loops_count_whole() -> None:
    assert least(lambda x: jnp.sum(jnp.sort(x * 2.0) * jnp.cos(x)), "n", at={"n": 4096}).bytes == 4096 * 4
    transform = least(lambda x: jnp.sum(jnp.abs(jnp.fft.fft(x, axis=-1)) ** 3), "4 n", at={"n": 4096})
    assert transform.bytes == 4096 * 8 and "a transform of fft" in transform.why

    def loop(x: Any, w: Any) -> Any:
        def step(h: Any, y: Any) -> tuple[Any, Any]:
            h = jnp.tanh(h @ w + y)
            return h, h

        states = jax.lax.scan(step, jnp.zeros(x.shape[1:]), x)[1]
        return jnp.sum(jnp.sin(states) * jnp.flip(states, axis=0))

    found = least(loop, "n 8 128", "128 128", at={"n": 64})
    assert found.bytes == 64 * 8 * 128 * 4 and "a loop's result" in found.why


def test_only_results_count_without_such_operators() -> None:
    found = least(lambda x: jnp.sum(jnp.exp(x) * jnp.exp(-jnp.flip(x)), axis=0), "n 64", at={"n": 512})
    assert found == LeastBytes(64 * 4, RESULTS)
    assert str(found) == "no program needs less than 256 B: its results exist at the end of a call"


def test_a_function_that_was_not_searched_counts_by_its_text() -> None:
    module = rx.trace(lambda x, w: jnp.sum(jnp.tanh(x @ w), axis=1), "n 64", "64 512")
    memory = LeastMemory({}, {f.name: f for f in module}, is_stored=True)
    found = most_of([memory.of_function(module.main.name, [NOTHING, NOTHING], {"n": 32})])
    assert found.bytes == 32 * 512 * 4 and found.why.startswith("matmul")


# Training steps and others: bytes that error messages name, and those of the smallest program of a front.
def perceptron(ws: Any, x: Any, y: Any) -> Any:
    for w in ws[:-1]:
        x = jnp.tanh(x @ w)
    return jnp.mean((x @ ws[-1] - y) ** 2)


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ k.T / 8) @ v


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a training step": (jax.value_and_grad(perceptron), (("64 64",) * 4, "n 64", "n 64")),
    "a hidden layer": (lambda x, w, v: jnp.tanh(x @ w) @ v, ("n 8", "8 64", "64 8")),
    "attention": (attention, ("n 64",) * 3),
    "gradients of an attention": (jax.grad(lambda *a: jnp.sum(attention(*a) ** 2), (0, 1, 2)), ("n 64",) * 3),
}


@pytest.mark.parametrize("name", CASES)
def test_the_least_that_is_named_is_near_the_finest_program(name: str) -> None:
    fn, specs = CASES[name]
    at = {"n": 1024}
    finest = rx.pareto(fn, *specs, at=at).points[-1].bytes
    with pytest.raises(ExtractionError, match="accepted: memory_limit=") as e:
        rx.optimize(fn, *specs, at=at, memory_limit=KIB)
    named = int(str(e.value).split("accepted: memory_limit=")[1].split()[0])
    assert named <= 1.1 * finest
