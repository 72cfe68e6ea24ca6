"""`optimize(..., time_limit=...)`: least memory within a predicted time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import relax_eg as rx
from relax_eg.backend.footprint import whole_footprint
from relax_eg.cli import app
from relax_eg.driver.limits.time_limit import TimeLimit
from relax_eg.errors import ExtractionError, OptionError
from relax_eg.extract.profiles.devices import profile
from tests.test_pareto import AT, PROGRAM, SPECS, step

pytestmark = pytest.mark.xla_defaults


def test_more_time_needs_no_more_memory() -> None:
    found = [rx.optimize(step, *SPECS, at=AT, time_limit=limit) for limit in ("+0%", "+900%")]
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
    [("+10%", 1.1, None), (" + 2.5 %", 1.025, None), (0.002, None, 0.002), ("2 ms", None, 0.002), ("7us", None, 7e-6)],
)
def test_time_limits_are_read(value: Any, share: float | None, seconds: float | None) -> None:
    limit = TimeLimit.of(value)
    assert (limit.share, limit.seconds) == (pytest.approx(share), pytest.approx(seconds))


@pytest.mark.parametrize("value", ["10%", "-10%", "+x%", -1, 0, float("nan"), float("inf"), True, "2 min", "", [1]])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(OptionError, match=r"a share such as '\+10%', seconds such as 0.002, or a text such as '2 ms'"):
        rx.optimize(step, *SPECS, at=AT, time_limit=value)
    with pytest.raises(OptionError, match="time_limit="):
        rx.jit(step, time_limit=value)


def test_options_that_do_not_go_with_it_are_refused() -> None:
    for more, text in [
        ({"memory_limit": "1 MiB"}, "time_limit and memory_limit: one of them is accepted; rx.pareto finds"),
        ({"measure": 2}, "time_limit: what is timed is not looked at for its memory; leave measure or it out"),
        ({"execution": "auto"}, "execution='auto': with time_limit, 'whole' or 'kernels' is accepted"),
        ({"at": None}, "time_limit: sizes to keep it at are needed: at=\\{...\\} with n"),
    ]:
        with pytest.raises(OptionError, match=text):
            rx.optimize(step, *SPECS, **{"at": AT, "time_limit": "+10%", **more})


def test_a_time_that_nothing_keeps_names_the_least() -> None:
    text = r"step\(\): time_limit is 1e-09 s, and of \d+ programs? the fastest is predicted to take"
    with pytest.raises(ExtractionError, match=text) as e:
        rx.optimize(step, *SPECS, at=AT, time_limit=1e-9, target=profile("cpu"))
    least = float(str(e.value).split("accepted: time_limit=")[1].split()[0])
    assert rx.optimize(step, *SPECS, at=AT, time_limit=least, target=profile("cpu")).report.memory is not None


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
    ran = CliRunner().invoke(app, ["optimize", *args, "--time-limit", "+900%"])
    assert ran.exit_code == 0 and "least in a time of +900%" in " ".join(ran.output.split())
    ran = CliRunner().invoke(app, ["optimize", *args, "--time-limit", "soon"])
    assert ran.exit_code != 0 and "time_limit='soon': a share such as '+10%'" in " ".join(ran.output.split())
