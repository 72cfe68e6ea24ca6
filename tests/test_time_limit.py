"""`optimize(..., memory_limit="least within +10%")`: least memory within a predicted time."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import relax_eg as rx
from relax_eg.backend.footprint import whole_footprint
from relax_eg.cli import app
from relax_eg.driver.limit import TimeLimit, read_limit
from relax_eg.errors import ExtractionError, OptionError
from relax_eg.extract.devices import profile
from tests.test_pareto import AT, PROGRAM, SPECS, step

pytestmark = pytest.mark.xla_defaults


def test_more_time_needs_no_more_memory() -> None:
    found = [rx.optimize(step, *SPECS, at=AT, memory_limit=f"least within {t}") for t in ("+0%", "+900%")]
    tight, loose = (best.report.memory for best in found)
    assert tight.slower <= 1.0 + 1e-6 and loose.slower <= 10
    assert loose.bytes < 0.5 * tight.bytes and tight.limit is None and tight.time_limit == "+0%"
    assert "least in a time of +900%" in str(found[1].report)
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(0.3 * rng.standard_normal(s), jnp.float32) for s in ((AT["n"], 16), (16, 128)))
    for best in found:
        assert np.allclose(best(x, w), step(x, w), rtol=1e-4, atol=1e-4)
        needed = whole_footprint(best.module, set(), AT, best.compiler_options).bytes
        assert needed == best.report.memory.bytes
    again = type(found[1].report).from_json(found[1].report.to_json())
    assert again.memory == loose


@pytest.mark.parametrize(
    ("value", "share", "seconds"),
    [
        ("+10%", 1.1, None),
        (" + 2.5 %", 1.025, None),
        ("2e-03 s", None, 0.002),
        ("2 ms", None, 0.002),
        ("7us", None, 7e-6),
    ],
)
def test_time_limits_are_read(value: str, share: float | None, seconds: float | None) -> None:
    limit = read_limit(f"least within {value}")
    assert isinstance(limit, TimeLimit) and (limit.share, limit.seconds) == (
        pytest.approx(share),
        pytest.approx(seconds),
    )


@pytest.mark.parametrize("value", ["10%", "-10%", "+x%", "0 s", "0.002", "inf s", "2 min", ""])
def test_other_times_are_refused(value: str) -> None:
    says = r"memory_limit='least within .*': 'least within \+10%', or 'least within 2 ms', is accepted"
    with pytest.raises(OptionError, match=says):
        rx.optimize(step, *SPECS, at=AT, memory_limit=f"least within {value}")
    with pytest.raises(OptionError, match=says):
        rx.jit(step, memory_limit=f"least within {value}")


def test_options_that_do_not_go_with_it_are_refused() -> None:
    for more, text in [
        ({"measure": 2}, "memory_limit: what is timed is not looked at for its memory; leave measure or it out"),
        ({"execution": "auto"}, "execution='auto': with memory_limit, 'whole' or 'kernels' is accepted"),
        ({"at": None}, "memory_limit: sizes to keep it at are needed: at=\\{...\\} with n"),
    ]:
        with pytest.raises(OptionError, match=text):
            rx.optimize(step, *SPECS, **{"at": AT, "memory_limit": "least within +10%", **more})


def test_a_time_that_nothing_keeps_names_the_least() -> None:
    text = r"step\(\): memory_limit is 'least within 1e-09 s', and of \d+ programs? the fastest is predicted to take"
    with pytest.raises(ExtractionError, match=text) as e:
        rx.optimize(step, *SPECS, at=AT, memory_limit="least within 1e-09 s", target=profile("cpu"))
    least = str(e.value).split("accepted: memory_limit='")[1].split("'")[0]
    assert rx.optimize(step, *SPECS, at=AT, memory_limit=least, target=profile("cpu")).report.memory is not None


@pytest.mark.slow
def test_jit_keeps_limits_for_the_sizes_of_each_call() -> None:
    rng = np.random.default_rng(0)
    w = jnp.asarray(0.3 * rng.standard_normal((16, 128)), jnp.float32)
    fast = rx.jit(step, memory_limit="1 MiB")
    for n in (2048, 1024):
        x = jnp.asarray(0.3 * rng.standard_normal((n, 16)), jnp.float32)
        assert np.allclose(fast(x, w), step(x, w), rtol=1e-4, atol=1e-4)
    assert [best.report.memory.bytes <= 1 << 20 for best in fast.optimized] == [True, True]


def test_in_the_shell(tmp_path: Path) -> None:
    (tmp_path / "programs.py").write_text(PROGRAM)
    args = [f"{tmp_path / 'programs.py'}:step", *(x for s in SPECS for x in ("--spec", s)), "--at", "n=2048"]
    ran = CliRunner().invoke(app, ["optimize", *args, "--memory-limit", "least within +900%"])
    assert ran.exit_code == 0 and "least in a time of +900%" in " ".join(ran.output.split())
    ran = CliRunner().invoke(app, ["optimize", *args, "--memory-limit", "least within soon"])
    says = "--memory-limit='least within soon': 'least within +10%', or 'least within 2 ms', is accepted"
    assert ran.exit_code != 0 and says in " ".join(ran.output.split())
