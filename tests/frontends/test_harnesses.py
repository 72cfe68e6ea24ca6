"""JAX's own harnesses of its primitives: `rx.jit` gives what `jax.jit` gives, and the benchmark sees where not."""

from __future__ import annotations

import importlib
import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from sampling import sampled

from relax_eg.dtypes import is_float

PARTS = 16  # chosen: of the harnesses, one of each primitive, so that a part is a program
# Primitives that stay JAX's in some harnesses; docs/coverage.md says why.
OPAQUE = {
    "cummax", "cummin", "device_put", "reduce", "reduce_max", "reduce_min", "reduce_window", "reduce_window_max",
    "reduce_window_min", "scatter-max", "scatter-min", "select_and_gather_add", "select_and_scatter_add",
    "triangular_solve",
}  # fmt: skip


@pytest.fixture(scope="module")
def harnesses() -> Any:
    """The benchmark, whose import takes as long as a test does."""
    return importlib.import_module("benchmarks.harnesses")


@pytest.mark.parametrize("part", sampled({f"part {i}": i for i in range(PARTS)}, 3))
def test_each_primitive_is_as_in_jax(harnesses: Any, part: int) -> None:
    chosen = harnesses.spread(harnesses.harnesses())[part::PARTS]
    found = harnesses.run(chosen)
    assert len(found) == len(chosen)
    assert [o for o in found if o.outcome in harnesses.FAILED] == []
    assert {n for o in found if o.outcome == "opaque" for n in o.text.split(", ")} <= OPAQUE


@pytest.mark.parametrize("form", ["searched", "gradient", "mapped"])
def test_other_forms(harnesses: Any, form: str) -> None:
    chosen = [h for h in harnesses.harnesses(["logistic", "cumprod", "sort"]) if h.dtype == np.float32][:3]
    found = harnesses.run(chosen, form)
    assert {o.outcome for o in found} <= {"equal", "close"} and len(found) == len(chosen)


def test_special_numbers_are_in_the_arguments(harnesses: Any) -> None:
    for h in harnesses.harnesses(["abs", "add", "convert_element_type"]):
        plain, odd = (harnesses.case_of(h).sets * 2)[:2]
        for x, y in zip(plain, odd, strict=True):
            x, y = np.asarray(x), np.asarray(y)
            assert (x.dtype, x.shape) == (y.dtype, y.shape)
            if is_float(y.dtype.name) and y.size > 300:
                assert np.isnan(y).any() and np.isposinf(y).any() and np.isneginf(y).any()
                assert (np.signbit(y) & (y == 0)).any() and (x == y).any()


def outcome_of(harnesses: Any, theirs: Any, ours: Any, any_order: bool = False) -> Any:
    return harnesses.compared(harnesses.Case("name", "primitive", None, (), any_order), ours, theirs)


@pytest.mark.parametrize(
    ("theirs", "ours", "outcome", "text"),
    [
        (jnp.float32([0, np.nan]), jnp.float32([0, np.nan]), "equal", ""),
        (jnp.float32([0.0]), jnp.float32([-0.0]), "close", ""),
        (jnp.float32([1, 2]), jnp.float32([1, 2.0000002]), "close", ""),
        (jnp.float32([1, 2]), jnp.float32([1, 2.1]), "unlike", r"output 0: \[2.1\] instead of \[2.\] \(1 of 2\)"),
        (jnp.float32([1, np.nan]), jnp.float32([1, 2]), "unlike", "instead of"),
        (jnp.int32([1, 2]), jnp.int32([1, 3]), "unlike", "instead of"),
        (jnp.int32(1), jnp.asarray(1), "unlike", r"int32\[\] weak instead of int32\[\]"),
        (jnp.float32(1), jnp.float16(1), "unlike", r"float16\[\] instead of float32\[\]"),
        ((jnp.int32(1),), [jnp.int32(1)], "unlike", "results PyTreeDef"),
    ],
)
def test_what_is_compared(harnesses: Any, theirs: Any, ours: Any, outcome: str, text: str) -> None:
    found = outcome_of(harnesses, theirs, ours)
    assert found.outcome == outcome
    assert re.search(text, found.text)


def test_rows_of_equal_keys_may_stand_in_any_order(harnesses: Any) -> None:
    keys, rows = jnp.int32([1, 1, 2]), jnp.float32([np.nan, -0.0, 3])
    other = keys, rows[jnp.array([1, 0, 2])]
    assert outcome_of(harnesses, (keys, rows), other, any_order=True).outcome == "equal"
    assert outcome_of(harnesses, (keys, rows), other).outcome == "unlike"
    assert outcome_of(harnesses, (keys, rows), (keys, rows[::-1]), any_order=True).outcome == "unlike"


def test_errors_and_programs_that_were_not_read_are_told_apart(harnesses: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(x: Any) -> Any:
        if len(calls) % 2:
            raise ValueError("no")
        calls.append(x)
        return x + 1

    calls: list[Any] = []
    case = harnesses.Case("name", "primitive", refusing, ([np.float32([1.0])],))
    (found,) = harnesses.judged([case])
    assert (found.outcome, found.text) == ("raised", "ValueError: no")

    def failing(*_: Any, **__: Any) -> Any:
        raise RuntimeError("inside")

    monkeypatch.setattr("relax_eg.driver.jitting.jitted.optimize", failing)
    (found,) = harnesses.judged([harnesses.Case("name", "primitive", jnp.sin, ([np.float32([1.0])],))])
    assert found.outcome == "unread" and "runs as written under jax.jit; it was not optimized" in found.text


def test_the_table_lists_what_is_left_to_jax(harnesses: Any) -> None:
    of = harnesses.Outcome
    found = [of("a", "exp", "equal"), of("b", "sort", "opaque", "sort, cond"), of("c", "log", "close")]
    lines = harnesses.table(found).splitlines()
    assert lines[2] == "| sort | 1 |  |  | 1 |  |  |  | `sort` 1, `cond` 1 |"
    assert lines[3] == "| 2 others | 2 | 1 | 1 |  |  |  |  |  |" and lines[4].startswith("| all | 3 | 1 | 1 | 1 |")
