"""`optimize(..., memory_limit=...)`: what is chosen keeps it as measured, or the least that can be reached is named."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gradients import IMAGES, normalised

import relax_eg as rx
from relax_eg.backend import accounting
from relax_eg.backend.accounting import FRUGAL, allocated_bytes, compiled_for_account, library_fusion_bytes
from relax_eg.backend.footprint import kernel_footprint, whole_footprint
from relax_eg.byte_units import format_bytes, parse_bytes
from relax_eg.driver.limits import limited as limited_module
from relax_eg.errors import ExtractionError, OptionError

pytestmark = pytest.mark.xla_defaults

AT = {"n": 256}


def features(x: Any) -> Any:
    """Values that are needed again when the sum over all is known."""
    hs = [jnp.exp(jnp.sin(x * float(i + 1))) for i in range(3)]
    total = sum(jnp.sum(h) for h in hs)
    return sum(jnp.sum(h * h / total, axis=1) for h in hs)


def limited(limit: Any, execution: Any = "kernels", fn: Any = features, specs: Any = ("n 512",), **more: Any) -> Any:
    return rx.optimize(fn, *specs, at=AT, execution=execution, memory_limit=limit, **more)


def needed(best: Any) -> int:
    """Bytes of what was chosen, compiled in the way that needs least."""
    if best.report.execution == "whole":
        return whole_footprint(best.module, set(), AT, FRUGAL).bytes
    return kernel_footprint(best.module, set(), AT, FRUGAL).footprint.bytes


def test_a_limit_that_holds_anyway_changes_nothing() -> None:
    best = limited("1 GiB")
    usual = rx.optimize(features, "n 512", at=AT, execution="kernels")
    assert best.module == usual.module
    row = best.report.memory
    assert (row.limit, row.slower, row.tried) == (1 << 30, 1.0, 1) and row.bytes == row.without
    assert "1 GiB allowed" in str(best.report)


def test_values_are_computed_again_to_keep_a_limit() -> None:
    without = needed(limited("1 GiB"))
    best = limited(int(0.7 * without))
    row = best.report.memory
    assert row.bytes <= row.limit < row.without == without
    assert row.slower > 1.0 and row.tried > 1
    accounting._allocated_bytes.clear()  # pyright: ignore[reportPrivateUsage]  # XLA is asked anew
    measured = kernel_footprint(best.module, set(), AT, best.compiler_options).footprint
    assert (measured.planned, measured.temporary, measured.results) == (row.planned, row.temporary, row.results)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((256, 512)), jnp.float32)
    assert best.check(x).passed
    # What the arrays of the process take is what was planned.
    assert best.runner.call(AT).held_bytes == row.planned
    again = type(best.report).from_json(best.report.to_json())
    assert again.memory == row


@pytest.mark.slow
def test_a_limit_that_nothing_keeps_names_the_peak_and_the_least() -> None:
    budget = rx.Budget(extraction=3.0)
    with pytest.raises(ExtractionError) as e:
        limited("3 KiB", budget=budget)
    text = str(e.value)
    assert text.startswith("features(): memory_limit is 3 KiB, and of ")
    assert "programs the least that a call needs beside its arguments is" in text and "at n=256" in text
    assert "no program needs less than 1 KiB: its results exist at the end of a call" in text
    assert "at its peak: " in text and "accepted: memory_limit=" in text
    least = int(text.split("accepted: memory_limit=")[1].split()[0])
    assert limited(least, budget=budget).report.memory.bytes <= least


def test_a_limit_below_a_program_that_nothing_replaces() -> None:
    """Whatever a byte costs, the cheapest program is the one as written."""
    with pytest.raises(
        ExtractionError, match=r"memory_limit is 100 B, and of \d+ programs? the least that a call needs"
    ):
        rx.optimize(jnp.exp, "n 64", at={"n": 1024}, memory_limit="100 B")


def test_one_program_is_checked_by_what_xla_assigns() -> None:
    def fn(x: Any, w: Any, v: Any) -> Any:
        return (x @ w) @ v

    specs = ("n 1024", "1024 1024", "1024")
    best = limited("1 MiB", "whole", fn, specs)
    found = whole_footprint(best.module, set(), AT, best.compiler_options)
    row = best.report.memory
    assert (found.results, found.temporary, found.planned) == (row.results, row.temporary, 0)
    assert row.bytes <= row.limit
    with pytest.raises(ExtractionError, match=r"XLA's temporary buffers|results"):
        limited(100, "whole", fn, specs)


def attention(x: Any, wq: Any, wk: Any, wv: Any) -> Any:
    """Eight heads of width 8, whose scores are eight times as large as all else."""
    q, k, v = (jnp.swapaxes((x @ w).reshape(x.shape[0], 8, 8), 0, 1) for w in (wq, wk, wv))
    scores = jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, k) / 3.0)
    return jnp.einsum("hqk,hkd->hqd", scores, v)


@pytest.mark.parametrize("execution", ["whole", pytest.param("kernels", marks=pytest.mark.slow)])
def test_scores_are_there_a_piece_at_a_time(execution: str) -> None:
    specs = ("n 64", *["64 64"] * 3)
    usual = limited("1 GiB", execution, attention, specs)
    assert "computed_in_pieces" not in usual.report.rules  # nobody asks for it
    without = needed(usual)
    best = limited(int(0.4 * without), execution, attention, specs)
    row = best.report.memory
    assert row.bytes <= row.limit < row.without == without
    if execution == "whole":  # in kernels one kernel of attention, run in an order that needs little, may do
        assert "computed_in_pieces" in best.report.rules and "R.scan" in str(best.module)
    assert needed(best) == row.bytes and best.compiler_options == FRUGAL
    for n in (256, 100, 3):  # with as many rows in each piece, with fewer in the last, and with none in some
        xs = [jnp.asarray(0.3 * np.random.default_rng(i).standard_normal(s), jnp.float32)
              for i, s in enumerate([(n, 64), *[(64, 64)] * 3])]  # fmt: skip
        assert np.allclose(best(*xs), attention(*xs), atol=1e-5)
    with pytest.raises(ExtractionError, match="the least that a call needs"):
        fewer = rx.rules.default - "computed_in_pieces" - "computed_again"
        limited(int(0.4 * without), execution, attention, specs, rules=fewer)


@pytest.mark.parametrize("share", [4.0, 0.9, 0.4])
def test_the_executable_that_is_called_keeps_the_limit(share: float) -> None:
    """By XLA's own analysis of what the returned object calls; in the way it is compiled as usual, XLA's library hides
    what it allocates, so a limit that only holds by that is not taken for kept."""
    specs = ("n 64", *["64 64"] * 3)
    limit = int(share * needed(limited("1 GiB", "whole", attention, specs)))
    best = limited(limit, "whole", attention, specs)
    xs = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((256, 64), *[(64, 64)] * 3)]
    known = best.strategy.executable(0)
    compiled = known.run.lower(*known.leading(best.strategy.prepared_values), *xs).compile()
    analysis = compiled.memory_analysis()
    assert analysis.temp_size_in_bytes + analysis.output_size_in_bytes <= limit
    assert allocated_bytes(compiled) + analysis.output_size_in_bytes == best.report.memory.bytes <= limit


_OPTIMIZED_HLO = """
%fused (p0: f32[8,4], p1: bf16[4]) -> f32[8,4] {
  %p0 = f32[8,4]{1,0} parameter(0)
  %p1 = bf16[4]{0} parameter(1)
  %dot.1 = f32[8,8]{1,0} dot(%p0, %p0), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  ROOT %dot.2 = f32[8,4]{1,0} dot(%dot.1, %p0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (x: f32[8,4], y: bf16[4]) -> f32[8,4] {
  %x = f32[8,4]{1,0} parameter(0)
  %y = bf16[4]{0} parameter(1)
  ROOT %f = f32[8,4] fusion(%x, %y), kind=kCustom, calls=%fused, backend_config={"kind":"__ynn_fusion"}
}
"""


def test_what_a_library_fusion_holds_counts() -> None:
    """Two matmuls in one fusion: what lies between them, and operands that the library may put in another order."""
    assert library_fusion_bytes(_OPTIMIZED_HLO) == 8 * 4 * 4 + 4 * 2 + 8 * 8 * 4
    assert library_fusion_bytes(_OPTIMIZED_HLO.replace("__ynn_fusion", "kLoop")) == 0


def test_fusions_are_found_in_what_xla_compiles() -> None:
    specs = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((256, 512), (512, 512), (512, 256))]

    def fn(x: Any, w: Any, v: Any) -> Any:
        return jax.nn.softmax(jnp.tanh(x @ w) @ v)

    lowered = [jax.jit(fn, compiler_options=o).lower(*specs) for o in ({}, FRUGAL)]
    usual, frugal = (x.compile() for x in lowered)
    assert [allocated_bytes(compiled_for_account(x)) for x in lowered] == [*map(allocated_bytes, (usual, frugal))]
    assert "__ynn_fusion" not in frugal.as_text()
    assert allocated_bytes(frugal) == frugal.memory_analysis().temp_size_in_bytes >= 256 * 512 * 4
    assert allocated_bytes(usual) >= 256 * 512 * 4  # what is between the matmuls, in whichever account it is


def test_kernels_may_compute_a_value_in_several_ways() -> None:
    """Where kernels overlap, what is chosen is compared with the program as written all the same."""

    def loss(g: Any, x: Any) -> Any:
        return jnp.mean(normalised(x, g[:, None, None], IMAGES) ** 2)

    step, budget = jax.value_and_grad(loss, (0, 1)), rx.Budget(nodes=2000, extraction=1.0)
    with pytest.raises(ExtractionError, match="the least that a call needs"):
        rx.optimize(step, "2", "2 2 6 6", execution="kernels", memory_limit=600, budget=budget)


def test_prepared_weights_are_no_part_of_a_call() -> None:
    def fn(w: Any, x: Any) -> Any:
        return jnp.tanh(x @ (w @ w.T))

    best = limited("1 MiB", "kernels", fn, ("128 128", "n 128"), weights=("w",))
    assert best.report.memory.bytes <= 1 << 20
    w, x = (jnp.asarray(0.1 * np.random.default_rng(i).standard_normal(s), jnp.float32)
            for i, s in enumerate(((128, 128), (256, 128))))  # fmt: skip
    assert np.allclose(best.prepare(w)(x), fn(w, x), atol=1e-4)


def test_a_limit_holds_at_the_largest_sizes_in_bounds() -> None:
    bounds = {"n": (1, 512)}
    best = limited("1 GiB", "whole", bounds=bounds)
    row = best.report.memory
    assert row.largest == {"n": 512} and row.not_shown == ""
    assert row.bytes == whole_footprint(best.module, set(), {"n": 512}, best.compiler_options).bytes
    assert "at n=512 as well (no size in bounds has larger values: proved)" in str(row)
    assert limited("1 GiB", "whole", bounds={"n": (1, None)}).report.memory.largest is None
    text = "memory_limit is 3 KiB, and of [0-9]+ programs the least that .* at n=512"
    with pytest.raises(ExtractionError, match=text):
        limited("3 KiB", "whole", lambda x: jnp.sum(x @ x.T, axis=1), ("n 64",), bounds=bounds)


def test_values_that_may_be_larger_at_other_sizes_are_named() -> None:
    def fn(x: Any) -> Any:
        rest = 600 - x.shape[0]
        return jnp.sum(jnp.exp(x)) * jnp.exp(jnp.ones((rest, 8)) * x[0, :8])

    row = limited("1 GiB", "whole", fn, bounds={"n": (1, 512)}).report.memory
    assert row.not_shown and f"`{row.not_shown}` may be larger elsewhere" in str(row)


def _interrupt(monkeypatch: pytest.MonkeyPatch, after: int) -> list[str]:
    """Interrupts the search when so many programs have been compiled; returns what it was told of its progress."""
    told: list[str] = []

    def progress(phase: str, done: int, of: int) -> None:
        if phase.startswith("memory: "):
            told.append(phase)
            if len(told) == after:
                raise KeyboardInterrupt

    monkeypatch.setattr(limited_module, "report_progress", progress)
    return told


def test_an_interrupted_search_returns_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program of the highest price is tried soon; before anything fits, the interruption is the caller's."""
    specs = ("n 64", *["64 64"] * 3)
    limit = int(0.4 * needed(limited("1 GiB", "whole", attention, specs)))
    told = _interrupt(monkeypatch, 8)
    best = limited(limit, "whole", attention, specs)
    assert best.report.memory.bytes <= limit and len(told) == 8 and "least so far" in told[-1]
    xs = [jnp.asarray(0.3 * np.random.default_rng(i).standard_normal(s), jnp.float32)
          for i, s in enumerate([(256, 64), *[(64, 64)] * 3])]  # fmt: skip
    assert np.allclose(best(*xs), attention(*xs), atol=1e-5)
    _interrupt(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        limited(limit, "whole", attention, specs)


@pytest.mark.parametrize(
    ("text", "count"), [("512 MiB", 512 << 20), ("2GB", 2 * 10**9), ("1.5 kib", 1536), ("100", 100), (7, 7)]
)
def test_bytes_as_text(text: Any, count: int) -> None:
    assert parse_bytes(text, "memory_limit") == count


def test_an_unknown_unit_is_named() -> None:
    with pytest.raises(OptionError, match="'XB' is no unit: B, KB, MB, GB, KiB, MiB and GiB are"):
        limited("1 XB")


@pytest.mark.parametrize("value", ["512 MB/s", "-1", 0, -5, 1.5, True, "many", "1 XB"])
def test_what_is_no_number_of_bytes(value: Any) -> None:
    with pytest.raises(OptionError, match="'512 MiB' or '2 GB', is accepted"):
        limited(value)


def test_what_it_needs() -> None:
    with pytest.raises(OptionError, match="memory_limit: sizes to keep it at are needed"):
        rx.optimize(features, "n 512", memory_limit=10**9)
    with pytest.raises(OptionError, match="leave measure or it out"):
        limited("1 GiB", measure=1)
    assert format_bytes(1536) == "1.5 KiB" and format_bytes(17) == "17 B"
    assert jax.default_backend() != "cpu" or whole_footprint(rx.trace(features, "n 512"), set(), AT, {}).bytes > 0
