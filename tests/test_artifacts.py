"""Saved artifacts: what is loaded is what was saved, in another process too; what is no artifact is said to be none."""

from __future__ import annotations

import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import relax_eg as rx
from relax_eg.cli import app
from relax_eg.errors import ArtifactError, BoundsError, ExplanationError, OptionError, ShapeError, TraceError

W = np.arange(32, dtype=np.float32).reshape(4, 8) / 32
V = np.linspace(-1, 1, 8, dtype=np.float32)
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(6, 4)


def chain(params, x, scale=2.0):
    return {"y": (x @ params["w"]) @ (params["g"] * V) * scale, "n": jnp.sum(x)}


PARAMS = {"w": W, "g": V}
SPECS = {"w": "4 8", "g": "8"}


@pytest.fixture(scope="module")
def best() -> rx.types.Optimized:
    return rx.optimize(
        chain, SPECS, "n 4", weights=("params",), at={"n": 256}, bounds={"n": (1, 4096)},
        facts={"x": "finite"},
    )  # fmt: skip


def test_it_is_what_was_saved(best: rx.types.Optimized, tmp_path: Path) -> None:
    best.save(tmp_path / "m.rxe")
    again = rx.load(tmp_path / "m.rxe")
    assert not best.report.kept_as_written
    assert again.module == best.module and again.report == best.report
    assert [(v.guard, v.module) for v in again.variants] == [(v.guard, v.module) for v in best.variants]
    for name, wanted in best(PARAMS, X).items():
        np.testing.assert_array_equal(again(PARAMS, X)[name], wanted)
        np.testing.assert_array_equal(again.prepare(PARAMS)(X)[name], wanted)
        np.testing.assert_array_equal(jax.jit(again.to_jax())(PARAMS, X)[name], wanted)
    assert [a.shape for a in again.prepare(PARAMS).prepared] == [a.shape for a in best.prepare(PARAMS).prepared]
    assert again.check(PARAMS, X).passed
    broken = again.check(PARAMS, X * np.inf)
    assert not broken.passed and broken.violations
    for wrong in (best, again):
        with pytest.raises(BoundsError, match="4096"):
            wrong(PARAMS, np.zeros((5000, 4), np.float32))
        with pytest.raises(ShapeError, match="`params` should be a pytree"):
            wrong({"w": W}, X)
    with pytest.raises(ExplanationError, match="chain was loaded, and an artifact keeps no record of its search"):
        again.explain()


def test_a_second_copy_is_the_same_file(best: rx.types.Optimized, tmp_path: Path) -> None:
    best.save(tmp_path / "a.rxe")
    rx.load(tmp_path / "a.rxe").save(tmp_path / "b.rxe")
    assert (tmp_path / "a.rxe").read_bytes() == (tmp_path / "b.rxe").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.rxe", "b.rxe"]


def test_another_process_runs_it(best: rx.types.Optimized, tmp_path: Path) -> None:
    best.save(tmp_path / "m.rxe")
    np.save(tmp_path / "x.npy", X)
    script = (
        "import sys, numpy as np, relax_eg as rx\n"
        f"best = rx.load({str(tmp_path / 'm.rxe')!r})\n"
        f"V = np.linspace(-1, 1, 8, dtype=np.float32)\n"
        "params = {'w': np.arange(32, dtype=np.float32).reshape(4, 8) / 32, 'g': V}\n"
        f"np.save({str(tmp_path / 'y.npy')!r}, best(params, np.load({str(tmp_path / 'x.npy')!r}))['y'])\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parent.parent)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), best(PARAMS, X)["y"], rtol=1e-6)


LENGTHS = (5, 7, 8, 20, 6, 5)


def pooled(params, x):
    """Sums over a size, and keeps it; the weights' product is prepared."""
    return jnp.mean(jax.nn.softmax(x @ (params["w"] @ params["v"]), axis=0) * x[:, :1], axis=0), 2 * x


POOLED = {"w": "64 64", "v": "64 64"}


def pooled_arrays():
    random = np.random.default_rng(0)
    params = {k: random.standard_normal((64, 64)).astype(np.float32) / 8 for k in POOLED}
    return params, [random.standard_normal((n, 64)).astype(np.float32) for n in LENGTHS]


def runs(best: rx.types.Optimized) -> list[tuple[str, str, int, int]]:
    """Its executables: exact or not, what for, the size, calls."""
    return [(r.kind, r.why, r.at["n"], r.calls) for r in best.statistics().executables]


@pytest.fixture(scope="module")
def at_capacity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "m.rxe"
    rx.optimize(
        pooled,
        POOLED,
        "n 64",
        weights=("params",),
        at={"n": 5},
        bounds={"n": (1, 32)},
        dynamic=rx.Dynamic(capacities=8),
    ).save(path)
    return path


def test_what_was_loaded_runs_at_capacity(at_capacity: Path) -> None:
    again = rx.load(at_capacity)
    assert not again.report.kept_as_written
    params, arrays = pooled_arrays()
    ready = again.prepare(params)
    for x in arrays:
        for found, wanted in zip(ready(x), pooled(params, x), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert runs(again) == [("capacity", "call", 24, 1), ("capacity", "call", 8, 3), ("exact", "named", 5, 2)]
    assert "pooled   dynamic='auto', capacities n: multiples of 8" in str(again.statistics())
    again.compile_ahead()
    assert [r[2] for r in runs(again)[3:]] == [16, 32]
    with pytest.raises(BoundsError, match="n = 33 exceeds its bound 32"):
        ready(np.zeros((33, 64), np.float32))
    assert again.check(params, arrays[1]).passed


def test_how_it_runs_at_many_sizes_can_be_said_anew(at_capacity: Path, tmp_path: Path) -> None:
    again = rx.load(at_capacity, dynamic=rx.Dynamic(mode="capacity", capacities="bound", executables=1))
    params, arrays = pooled_arrays()
    for x in arrays:
        again(params, x)
    assert runs(again) == [("capacity", "call", 32, len(LENGTHS))]
    with pytest.raises(OptionError, match=r"compile_ahead\(\): pooled\(\) runs at its very sizes"):
        rx.load(at_capacity, dynamic="exact").compile_ahead()
    assert runs(rx.load(at_capacity, dynamic="exact")) == []
    again.save(tmp_path / "m.rxe")
    third = rx.load(tmp_path / "m.rxe")
    third(params, arrays[0])
    assert runs(third) == [("capacity", "call", 32, 1)] and third.statistics().dynamic == "capacity"
    # What was saved as every bit, or as compiled for each combination of sizes, can be loaded otherwise as well.
    exact = rx.optimize(lambda x: jnp.sum(x, 0), "n 4", numerics="exact")
    exact.save(tmp_path / "exact.rxe")
    with pytest.raises(OptionError, match="optimized with dynamic='auto' or 'capacity' to one XLA program"):
        rx.load(tmp_path / "exact.rxe").compile_ahead()
    loose = rx.load(tmp_path / "exact.rxe", dynamic="capacity")
    assert loose.check(X).passed and runs(loose) == [("capacity", "call", 8, 1)]
    loose.save(tmp_path / "loose.rxe")
    assert rx.load(tmp_path / "loose.rxe", dynamic="auto").check(X).tolerance == 0


def test_hot_sizes_are_told_as_where_it_was_saved(at_capacity: Path) -> None:
    """The share of the padding follows from the prices on the profile that is kept."""
    made = rx.optimize(pooled, POOLED, "n 64", weights=("params",), at={"n": 5}, bounds={"n": (1, 32)})
    again = rx.load(at_capacity)
    for n in (1, 9, 32):
        assert again.strategy._predict(0, {"n": n}) == made.strategy._predict(0, {"n": n}) > 0


def test_options_that_a_loaded_function_refuses(at_capacity: Path, tmp_path: Path) -> None:
    with pytest.raises(
        OptionError, match="dynamic='often': one of 'exact', 'capacity', 'auto', or a Dynamic is accepted"
    ):
        rx.load(at_capacity, dynamic="often")
    with pytest.raises(OptionError, match=r"executables=0\): how many to keep, a number >= 1, is accepted"):
        rx.load(at_capacity, dynamic=rx.Dynamic(executables=0))
    with pytest.raises(OptionError, match="capacities='twice' for n: 'powers of two', a number"):
        rx.load(at_capacity, dynamic=rx.Dynamic(capacities="twice"))
    with pytest.raises(
        BoundsError, match=r"pooled\(\): no size is named `m` \(capacities={'m': ...}\); its sizes are n"
    ):
        rx.load(at_capacity, dynamic=rx.Dynamic(capacities={"m": 8}))
    rx.optimize(lambda x: jax.nn.softmax(x @ x), "n n", execution="kernels").save(tmp_path / "k.rxe")
    with pytest.raises(OptionError, match=r"dynamic='capacity': .*\(\) runs kernel by kernel; 'auto' and 'exact'"):
        rx.load(tmp_path / "k.rxe", dynamic="capacity")


def test_another_process_runs_it_at_capacity(at_capacity: Path, tmp_path: Path) -> None:
    params, arrays = pooled_arrays()
    np.savez(tmp_path / "in.npz", *arrays, **params)
    script = f"""
import numpy as np, relax_eg as rx
given = np.load({str(tmp_path / "in.npz")!r})
best = rx.load({str(at_capacity)!r})
ready = best.prepare({{k: given[k] for k in ("w", "v")}})
out = [ready(given[f"arr_{{i}}"])[0] for i in range({len(arrays)})]
found = best.statistics()
assert (found.compilations, found.calls, found.waste > 0) == (3, len(out), True), found
np.save({str(tmp_path / "out.npy")!r}, np.stack(out))
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parent.parent)
    wanted = np.stack([pooled(params, x)[0] for x in arrays])
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), wanted, rtol=1e-4, atol=1e-5)


def test_kept_programs_and_modules_are_saved_too(tmp_path: Path) -> None:
    kept = rx.optimize(lambda x: jnp.tanh(jnp.exp(x)), "n")
    assert kept.report.kept_as_written
    kept.save(tmp_path / "kept.rxe")
    np.testing.assert_array_equal(rx.load(tmp_path / "kept.rxe")(V), kept(V))

    @rx.function
    def main(x: rx.Tensor("n 4")):
        return (x @ W) @ V

    made = rx.optimize(main, at={"n": 512})
    made.save(tmp_path / "made.rxe")
    again = rx.load(tmp_path / "made.rxe")
    found, wanted = (jax.grad(lambda x, f=f: jnp.sum(f.to_jax()(x)))(X) for f in (again, made))
    np.testing.assert_array_equal(found, wanted)


def test_what_runs_in_steps_is_saved(tmp_path: Path) -> None:
    @rx.function
    def main(x: rx.Tensor("n @ int32")):
        u = rx.op.unique(x)
        v = rx.match_cast(u, rx.Tensor(("m",), "int32"))
        return v * 2

    rx.optimize(main).save(tmp_path / "m.rxe")
    again = rx.load(tmp_path / "m.rxe")
    np.testing.assert_array_equal(again(np.array([3, 1, 3], np.int32)), [2, 6])


def test_what_runs_in_kernels_is_saved(tmp_path: Path) -> None:
    best = rx.optimize(lambda x: jax.nn.softmax(x @ x), "8 8", execution="kernels")
    best.save(tmp_path / "m.rxe")
    again = rx.load(tmp_path / "m.rxe")
    assert again.report == best.report and type(again) is type(best)
    np.testing.assert_array_equal(again(np.eye(8, dtype=np.float32)), best(np.eye(8, dtype=np.float32)))


def test_families_are_saved(tmp_path: Path) -> None:
    best = rx.optimize(lambda a, b, v: a @ b @ v, "n 4", "4 n", "n m", at=[{"n": 4, "m": 900}, {"n": 900, "m": 4}])
    best.save(tmp_path / "m.rxe")
    again = rx.load(tmp_path / "m.rxe")
    assert [(v.guard, v.at, v.module) for v in again.variants] == [(v.guard, v.at, v.module) for v in best.variants]


def test_objects_of_jax_come_back(tmp_path: Path) -> None:
    def f(x):
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2,), (1,), "SAME"), jax.lax.reduce_precision(x, 5, 10)

    best = rx.optimize(f, "n")
    best.save(tmp_path / "m.rxe")
    for found, wanted in zip(rx.load(tmp_path / "m.rxe")(V), best(V), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_derivatives_of_a_trace_are_refused(best: rx.types.Optimized, tmp_path: Path) -> None:
    best.save(tmp_path / "m.rxe")
    again = rx.load(tmp_path / "m.rxe")
    with pytest.raises(TraceError, match="chain was loaded from an artifact, which has no derivatives"):
        jax.grad(lambda x: jnp.sum(again.to_jax()(PARAMS, x)["y"]))(X)


def test_callbacks_cannot_be_saved(tmp_path: Path) -> None:
    def f(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x) + 1

    best = rx.optimize(f, "4")
    with pytest.raises(ArtifactError) as caught:
        best.save(tmp_path / "m.rxe")
    said = str(caught.value)
    assert said.startswith("save: `jax.pure_callback` in f (") or said.startswith("save: `jax.pure_callback` in f() (")
    assert "test_artifacts.py:" in said and "holds an object of this process" in said
    assert said.endswith("accepted: programs without callbacks and functions of Python inside")
    assert not list(tmp_path.iterdir())


def test_structures_of_other_classes_cannot_be_saved(tmp_path: Path) -> None:
    Pair = namedtuple("Pair", "a b")
    best = rx.optimize(lambda p: p.a + p.b, Pair("n", "n"))
    with pytest.raises(ArtifactError, match=r"the arguments of .*\(\) hold a .*Pair, a structure of this process"):
        best.save(tmp_path / "m.rxe")


def _whole(best: rx.types.Optimized, tmp_path: Path) -> tuple[Path, bytes]:
    path = tmp_path / "m.rxe"
    best.save(path)
    return path, path.read_bytes()


@pytest.mark.parametrize("keep", [0, 5, 19, 30, 500, -1])
def test_a_file_that_is_cut_off(best: rx.types.Optimized, tmp_path: Path, keep: int) -> None:
    path, data = _whole(best, tmp_path)
    path.write_bytes(data[:keep])
    with pytest.raises(ArtifactError, match=r"is cut off: \d+ of at least \d+ bytes|is no artifact of relax_eg"):
        rx.load(path)


def test_a_file_that_is_changed(best: rx.types.Optimized, tmp_path: Path) -> None:
    path, data = _whole(best, tmp_path)
    for at in range(44, len(data), len(data) // 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(ArtifactError, match="was changed after it was written: its checksum does not fit"):
            rx.load(path)
    path.write_bytes(data + b"x")
    with pytest.raises(ArtifactError, match="was changed"):
        rx.load(path)


def test_another_version(best: rx.types.Optimized, tmp_path: Path) -> None:
    path, data = _whole(best, tmp_path)
    path.write_bytes(data.replace(b"artifact 7\n", b"artifact 8\n", 1))
    with pytest.raises(ArtifactError, match="is an artifact of version 8; this relax_eg reads version 7"):
        rx.load(path)


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ArtifactError, match=r"is no artifact of relax_eg\n  accepted: a file that `best.save"):
        rx.load(tmp_path / "text")
    with pytest.raises(ArtifactError, match=r"cannot read .*: No such file"):
        rx.load(tmp_path / "none")


def test_the_command_line_saves_and_reports(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("def f(x, v):\n    return (x @ x) @ v\n")
    to = tmp_path / "m.rxe"
    given = ["optimize", f"{tmp_path / 'f.py'}:f", "--spec", "512 512", "--spec", "512", "--save", str(to)]
    first = CliRunner().invoke(app, given)
    assert first.exit_code == 0, first.output
    again = CliRunner().invoke(app, ["optimize", str(to), "--module"])
    assert again.exit_code == 0 and "R.matmul" in again.output
    wrong = CliRunner().invoke(app, ["optimize", str(to), "--at", "n=3"])
    assert wrong.exit_code == 1
    assert rx.load(to).report.name == "f"
    with pytest.raises(OptionError):
        rx.load(to).prepare(X)
