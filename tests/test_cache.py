"""The cache of earlier searches: a program is served from it in any process. `test_cache_keys`: never another one."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import relax_eg as rx
from relax_eg.cli import app
from relax_eg.ops.record import TABLE
from relax_eg.reports import CostReport
from relax_eg.rules import RuleSet
from relax_eg.rules.answer_cache import ANSWERS
from relax_eg.store import StoreWarning

SPECS = ("n n", "n n", "n")
AT = {"n": 512}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("RELAX_EG_CACHE", "1")
    monkeypatch.setenv("RELAX_EG_CACHE_DIR", str(tmp_path / "cache"))
    # The entries of programs alone are looked at here, those of answers in tests/test_answer_cache.py.
    monkeypatch.setattr("relax_eg.driver.clock.measured.write_answers", lambda: None)
    yield tmp_path / "cache"


def chain(a: Any, b: Any, v: Any) -> Any:
    return (a @ b) @ v


def arrays(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(s), jnp.float32) for s in shapes]


def twice(fn: Callable[..., Any], *specs: Any, **options: Any) -> tuple[rx.types.Optimized, rx.types.Optimized]:
    """Optimized by a search, and from the cache."""
    first, again = (rx.optimize(fn, *specs, **options) for _ in range(2))
    assert (first.report.cached, again.report.cached) == (False, True)
    return first, again


def entry(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_a_hit_is_what_the_search_found(folder: Path) -> None:
    first, again = twice(chain, *SPECS, at=AT)
    assert not first.report.kept_as_written
    assert str(again.module) == str(first.module) and again.module == first.module
    assert replace(again.report, cached=False, seconds=first.report.seconds) == first.report
    assert "served from the disk cache" in str(again.report) and "cache" not in str(first.report)
    info = rx.debug.cache.info()
    assert (info.folder, info.entries, info.bytes) == (folder, 1, entry(folder).stat().st_size)
    args = arrays((5, 5), (5, 5), (5,))
    np.testing.assert_array_equal(again(*args), first(*args))
    assert again.check(*args).passed
    assert rx.debug.cache.clear() == 1 and rx.debug.cache.info().entries == 0
    assert not rx.optimize(chain, *SPECS, at=AT).report.cached


def test_hits_and_misses_are_counted() -> None:
    before = rx.debug.cache.info()
    twice(chain, *SPECS, at=AT)
    after = rx.debug.cache.info()
    assert (after.hits - before.hits, after.misses - before.misses) == (1, 1)


@pytest.mark.parametrize("options", [{"at": AT}, {"at": AT, "rules": RuleSet("none")}])
def test_no_search_and_no_walk_is_made_on_a_hit(options: dict[str, Any]) -> None:
    rx.optimize(chain, *SPECS, **options)
    with (
        patch("relax_eg.driver.clock.measured.Units", side_effect=AssertionError("searched")),
        patch("relax_eg.frontends.jax.trace.Walk", side_effect=AssertionError("walked")),
    ):
        best = rx.optimize(chain, *SPECS, **options)
        assert best.report.cached
        best(*arrays((512, 512), (512, 512), (512,)))


def test_what_is_kept_as_written() -> None:
    first, again = twice(lambda x: jnp.exp(x) + 1, "n")
    assert again.report.kept_as_written and str(again.module) == str(first.module)
    np.testing.assert_array_equal(again(jnp.arange(3.0)), jnp.exp(jnp.arange(3.0)) + 1)


LARGE = np.random.default_rng(1).standard_normal((300, 300)).astype("float32")


def with_constants(a: Any, v: Any) -> Any:
    return (LARGE @ a) @ v + 0.5


def test_constants_and_weights() -> None:
    first, again = twice(with_constants, "300 300", "300", weights=("a",))
    assert str(again.module) == str(first.module)
    a, v = arrays((300, 300), (300,))
    np.testing.assert_array_equal(again.prepare(a)(v), first.prepare(a)(v))


def test_large_constants_are_not_in_the_entry(folder: Path) -> None:
    _, again = twice(lambda x, v: (LARGE @ x) @ v, "300 300", "300")
    assert not again.report.kept_as_written and "R.const_data" in str(again.module)
    assert entry(folder).stat().st_size < LARGE.nbytes / 4


def loop(x: Any, a: Any, b: Any, c: Any) -> Any:
    def step(carry: Any, y: Any) -> Any:
        return carry + (a @ b) @ c, jax.lax.cumlogsumexp(y)

    return jax.lax.scan(step, c, x)


def test_loops_and_calls_of_libraries() -> None:
    first, again = twice(loop, "6 m", "n n", "n n", "n", at=[{"n": 512, "m": 3}])
    assert not again.report.kept_as_written and len(again.module.functions) > 1
    assert str(again.module) == str(first.module)
    args = arrays((6, 3), (5, 5), (5, 5), (5,))
    for x, y in zip(again(*args), first(*args), strict=True):
        np.testing.assert_array_equal(x, y)


def test_effects_stay(capfd: pytest.CaptureFixture[str]) -> None:
    def told(a: Any, b: Any, v: Any) -> Any:
        jax.debug.print("the first is {}", v[0])
        return (a @ b) @ v

    _, again = twice(told, *SPECS, at=AT)
    again(*arrays((3, 3), (3, 3)), jnp.full(3, 7.0))
    jax.effects_barrier()
    assert capfd.readouterr().out.count("the first is 7.0") == 1


def test_derivatives_are_those_of_the_function_at_hand() -> None:
    def with_slope(slope: float) -> Callable[..., Any]:
        @jax.custom_jvp
        def scaled(a: Any, b: Any, v: Any) -> Any:
            return (a @ b) @ v

        scaled.defjvp(lambda p, t: (scaled(*p), slope * t[2]))
        return lambda a, b, v: scaled(a, b, v)

    args = arrays((3, 3), (3, 3), (3,))
    for cached, slope in ((False, 2.0), (True, 3.0)):
        best = rx.optimize(with_slope(slope), *SPECS, at=AT)
        assert best.report.cached == cached
        _, tangent = jax.jvp(partial(best.to_jax(), *args[:2]), (args[2],), (jnp.ones(3),))
        np.testing.assert_allclose(tangent, slope * np.ones(3))


def test_capacities_are_no_part_of_a_search() -> None:
    """What is served from the cache runs at capacity, and how is said anew without another search."""
    found: list[list[tuple[str, int]]] = []
    for i, how in enumerate(({}, {"dynamic": "capacity"}, {"dynamic": rx.Dynamic(mode="capacity", capacities=12)})):
        best = rx.optimize(chain, "64 64", "64 64", "64 n", at={"n": 2}, bounds={"n": (1, 32)}, **how)
        assert best.report.cached == (i > 0)
        for n in (9, 5, 12, 7):
            a, b, v = arrays((64, 64), (64, 64), (64, n))
            np.testing.assert_allclose(best(a, b, v), (a @ b) @ v, rtol=1e-3, atol=1e-2)
        found.append(sorted((r.kind, r.at["n"]) for r in best.statistics().executables))
    assert found[1:] == [[("capacity", 8), ("capacity", 16)], [("capacity", 12)]] and len(found[0]) >= 2


def test_jit_uses_it() -> None:
    for cached in (False, True):
        fast = rx.jit(chain)
        fast(*arrays((64, 64), (64, 64), (64,)))
        assert fast.report is not None and fast.report.cached == cached
    fresh = rx.jit(chain)
    with rx.debug.options(cache=False):
        fresh(*arrays((64, 64), (64, 64), (64,)))
    assert fresh.report is not None and not fresh.report.cached


@pytest.mark.parametrize(
    "kind", ["garbage", "cut", "flipped", "another program's", "of another key", "of another form"]
)
def test_a_damaged_entry_is_ignored_and_written_anew(kind: str, folder: Path) -> None:
    best = rx.optimize(chain, *SPECS, at=AT)
    path = entry(folder)
    whole = path.read_bytes()
    if kind == "another program's":
        rx.optimize(lambda a, b: a @ b, "n n", "n n")
        (other,) = (p for p in folder.iterdir() if p != path)
        damaged = other.read_bytes()
    elif kind == "of another key":
        damaged = framed(unframed(whole).replace(path.stem.encode(), b"0" * len(path.stem)))
    elif kind == "of another form":
        damaged = framed(unframed(whole).replace(b"relax_eg.report/1", b"relax_eg.report/0"))
    else:
        middle = len(whole) // 2
        damaged = {
            "garbage": b"garbage" * 100,
            "cut": whole[:middle],
            "flipped": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        }[kind]
    path.write_bytes(damaged)
    with pytest.warns(StoreWarning, match=f"cache entry {path} is ignored: "):
        again = rx.optimize(chain, *SPECS, at=AT)
    assert not again.report.cached and str(again.module) == str(best.module)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rx.optimize(chain, *SPECS, at=AT).report.cached


def unframed(data: bytes) -> bytes:
    return data[len(b"relax_eg entry 1\n") + 16 :]


def framed(payload: bytes) -> bytes:
    from relax_eg.store import _HEAD, checksum  # pyright: ignore[reportPrivateUsage]  # isort: skip

    return _HEAD + checksum(payload) + payload


def test_a_module_of_another_signature_is_not_used(folder: Path) -> None:
    best = rx.optimize(chain, *SPECS, at=AT)
    path = entry(folder)
    text = unframed(path.read_bytes())
    path.write_bytes(framed(text.replace(b'"name","v"', b'"name","w"')))
    with pytest.warns(StoreWarning, match="it has another signature"):
        assert str(rx.optimize(chain, *SPECS, at=AT).module) == str(best.module)
    # An operand that comes after its user.
    path.write_bytes(framed(text.replace(b'["matmul",[', b'["matmul",[9')))
    with pytest.warns(StoreWarning, match="is ignored"):
        assert str(rx.optimize(chain, *SPECS, at=AT).module) == str(best.module)


def test_it_can_be_turned_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        with rx.debug.options(cache=False):
            assert not rx.optimize(chain, *SPECS, at=AT).report.cached
    monkeypatch.setenv("RELAX_EG_CACHE", "0")
    for _ in range(2):
        assert not rx.optimize(chain, *SPECS, at=AT).report.cached
    assert not folder.exists()


def test_settings_that_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value, accepted in (
        (
            "RELAX_EG_CACHE",
            "maybe",
            r"RELAX_EG_CACHE=maybe: 0 \(off\), 1 \(on\) or machine \(the machine's profile only\) is accepted",
        ),
        ("RELAX_EG_CACHE_BYTES", "1 MB", "RELAX_EG_CACHE_BYTES=1 MB: a number of bytes is accepted"),
    ):
        monkeypatch.setenv(name, value)
        with pytest.raises(rx.errors.OptionError, match=accepted):
            rx.optimize(chain, *SPECS)
        monkeypatch.delenv(name)


def test_the_users_folder_for_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELAX_EG_CACHE_DIR")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for base, wanted in (
        (str(tmp_path), tmp_path),
        ("not/absolute", tmp_path / "home/.cache"),
        ("", tmp_path / "home/.cache"),
    ):
        monkeypatch.setenv("XDG_CACHE_HOME", base)
        assert rx.debug.cache.info().folder == wanted / "relax_eg"


def test_it_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rx.optimize(chain, *SPECS, at=AT)
    size = entry(folder).stat().st_size
    monkeypatch.setenv("RELAX_EG_CACHE_BYTES", str(int(2.5 * size)))
    for n in (400, 401, 402):
        rx.optimize(chain, *SPECS, at={"n": n})
        time.sleep(0.002)  # used one after the other, as far as the file system tells
    assert rx.debug.cache.info().entries == 2 and rx.debug.cache.info().bytes <= 2.5 * size
    assert rx.optimize(chain, *SPECS, at={"n": 402}).report.cached
    assert not rx.optimize(chain, *SPECS, at=AT).report.cached


def test_a_folder_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RELAX_EG_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(StoreWarning) as told:
        for _ in range(2):
            assert not rx.optimize(chain, *SPECS, at=AT).report.cached
    assert len(told) == 2  # one that it cannot be read, one that it cannot be written


@pytest.mark.parametrize(
    ("fn", "specs", "options", "why"),
    [
        (lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x), ("3",), {},
         "the content of a .* does not show"),
        (chain, SPECS, {"budget": rx.Budget(seconds=0)}, "the clock stopped the search"),
    ],
)  # fmt: skip
def test_what_is_not_cached_is_told(
    fn: Any, specs: Any, options: Any, why: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "relax_eg"), rx.debug.options(level=1):
        for _ in range(2):
            assert not rx.optimize(fn, *specs, **options).report.cached
    assert len([r for r in caplog.messages if "is not cached: " in r]) == 2
    assert any(re.search(f"is not cached: {why}", r) for r in caplog.messages)
    assert not folder.exists()


def test_operators_of_users_keep_it_away(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = replace(TABLE["exp"], name="my_exp")
    monkeypatch.setitem(TABLE, "my_exp", mine)
    with caplog.at_level(logging.INFO, "relax_eg"), rx.debug.options(level=1):
        assert not any(rx.optimize(chain, *SPECS).report.cached for _ in range(2))
    assert "chain is not cached: what the operators my_exp do is not this package's own" in caplog.messages


def test_a_hit_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "relax_eg"), rx.debug.options(level=1):
        twice(chain, *SPECS, at=AT)
    assert [", from the cache" in m for m in caplog.messages] == [False, True]


def test_who_wants_the_stages_gets_a_search(tmp_path: Path) -> None:
    rx.optimize(chain, *SPECS, at=AT)
    with rx.debug.options(dump=tmp_path / "out"):
        assert not rx.optimize(chain, *SPECS, at=AT).report.cached
    assert (tmp_path / "out" / "chain" / "2_candidate.txt").exists()


def test_reports_read_back() -> None:
    report = rx.optimize(chain, *SPECS, at=AT, weights=("a",)).report
    assert CostReport.from_json(report.to_json()) == report
    with pytest.raises(rx.errors.OptionError, match=r"a report of schema 'mine'; 'relax_eg.report/1' is accepted"):
        CostReport.from_json('{"schema": "mine"}')


def test_threads_share_it() -> None:
    with ThreadPoolExecutor(4) as pool, warnings.catch_warnings():
        warnings.simplefilter("error")
        found = list(pool.map(lambda n: rx.optimize(chain, *SPECS, at={"n": 400 + n % 3}), range(12)))
    for n, best in enumerate(found):
        assert best.report.at == {"n": 400 + n % 3}
        assert str(best.module) == str(found[n % 3].module)
    assert rx.debug.cache.info().entries == 3


PROGRAM = """
import sys
import jax.numpy as jnp
import numpy as np
import relax_eg as rx

TABLE = np.arange(90000, dtype="float32").reshape(300, 300)

def fn(params, v):
    return (TABLE @ params["w"]) @ v * scale + jnp.float32(0.25)

for scale in map(float, sys.argv[1:]):
    best = rx.optimize(fn, {"w": "300 300"}, "300", weights=("params",))
    print(best.report.cached)
    print(best.module, end="\f")
best({"w": TABLE}, TABLE[0])
assert "relax_eg.backend.gpu.target" not in sys.modules  # which is for programs for GPUs
"""


def test_another_process_is_served(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(seed: str, *scales: str) -> list[tuple[str, ...]]:
        env = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, tmp_path / "program.py", *scales]
        made = subprocess.run(command, env=env, capture_output=True, text=True)
        assert made.returncode == 0 and made.stderr == "", made.stderr
        return [text.partition("\n")[::2] for text in made.stdout.split("\f")[:-1]]

    (first,), (again, other) = run("1", "0.5"), run("2", "0.5", "-0.5")
    assert (first[0], again[0], other[0]) == ("False", "True", "False")
    assert first[1] == again[1] and "R.const_data" in first[1]
    programs = [p for p in folder.glob("*.entry") if not p.name.startswith(ANSWERS)]
    assert other[1] != first[1] and len(programs) == 2


def test_the_command_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def chain(a, b, v):\n    return (a @ b) @ v\n")
    command = ["optimize", f"{tmp_path}/model.py:chain", *(x for s in SPECS for x in ("--spec", s)), "--at", "n=512"]

    def run(*args: str) -> str:
        result = CliRunner().invoke(app, args)
        assert result.exit_code == 0, result.output
        return result.output

    assert "served from" not in run(*command, "--no-cache") and not folder.exists()
    assert "served from" not in run(*command)
    assert "served from the disk cache" in run(*command)
    assert run("cache", "info").startswith(f"{folder}: 1 entry, 0.0 MB of at most 268.4 MB")
    assert run("cache", "clear") == f"{folder}: 1 entry removed\n"
    assert run("cache", "clear") == f"{folder}: 0 entries removed\n"
