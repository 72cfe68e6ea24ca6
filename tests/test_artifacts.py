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
def best() -> rx.Optimized:
    return rx.optimize(
        chain, SPECS, "n 4", weights=("params",), at={"n": 256}, bounds={"n": (1, 4096)},
        facts={"x": "finite"}, cache=False,
    )  # fmt: skip


def test_it_is_what_was_saved(best: rx.Optimized, tmp_path: Path) -> None:
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


def test_a_second_copy_is_the_same_file(best: rx.Optimized, tmp_path: Path) -> None:
    best.save(tmp_path / "a.rxe")
    rx.load(tmp_path / "a.rxe").save(tmp_path / "b.rxe")
    assert (tmp_path / "a.rxe").read_bytes() == (tmp_path / "b.rxe").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.rxe", "b.rxe"]


def test_another_process_runs_it(best: rx.Optimized, tmp_path: Path) -> None:
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


def test_kept_programs_and_modules_are_saved_too(tmp_path: Path) -> None:
    kept = rx.optimize(lambda x: jnp.sort(jnp.exp(x)), "n", cache=False)
    assert kept.report.kept_as_written
    kept.save(tmp_path / "kept.rxe")
    np.testing.assert_array_equal(rx.load(tmp_path / "kept.rxe")(V), kept(V))

    @rx.function
    def main(x: rx.Tensor("n 4")):
        return (x @ W) @ V

    made = rx.optimize(main, cache=False, at={"n": 512})
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

    rx.optimize(main, cache=False).save(tmp_path / "m.rxe")
    again = rx.load(tmp_path / "m.rxe")
    np.testing.assert_array_equal(again(np.array([3, 1, 3], np.int32)), [2, 6])


def test_what_runs_in_kernels_is_saved(tmp_path: Path) -> None:
    best = rx.optimize(lambda x: jax.nn.softmax(x @ x), "8 8", execution="kernels", cache=False)
    best.save(tmp_path / "m.rxe")
    again = rx.load(tmp_path / "m.rxe")
    assert again.report == best.report and type(again) is type(best)
    np.testing.assert_array_equal(again(np.eye(8, dtype=np.float32)), best(np.eye(8, dtype=np.float32)))


def test_families_are_saved(tmp_path: Path) -> None:
    best = rx.optimize(
        lambda a, b, v: a @ b @ v, "n 4", "4 n", "n m", at=[{"n": 4, "m": 900}, {"n": 900, "m": 4}], cache=False
    )
    best.save(tmp_path / "m.rxe")
    again = rx.load(tmp_path / "m.rxe")
    assert [(v.guard, v.at, v.module) for v in again.variants] == [(v.guard, v.at, v.module) for v in best.variants]


def test_objects_of_jax_come_back(tmp_path: Path) -> None:
    def f(x):
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2,), (1,), "SAME"), jax.lax.reduce_precision(x, 5, 10)

    best = rx.optimize(f, "n", cache=False)
    best.save(tmp_path / "m.rxe")
    for found, wanted in zip(rx.load(tmp_path / "m.rxe")(V), best(V), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_derivatives_of_a_trace_are_refused(best: rx.Optimized, tmp_path: Path) -> None:
    best.save(tmp_path / "m.rxe")
    again = rx.load(tmp_path / "m.rxe")
    with pytest.raises(TraceError, match="chain was loaded from an artifact, which has no derivatives"):
        jax.grad(lambda x: jnp.sum(again.to_jax()(PARAMS, x)["y"]))(X)


def test_callbacks_cannot_be_saved(tmp_path: Path) -> None:
    def f(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x) + 1

    best = rx.optimize(f, "4", cache=False)
    with pytest.raises(ArtifactError) as caught:
        best.save(tmp_path / "m.rxe")
    said = str(caught.value)
    assert said.startswith("save: `jax.pure_callback` in f (") or said.startswith("save: `jax.pure_callback` in f() (")
    assert "test_artifacts.py:" in said and "holds an object of this process" in said
    assert said.endswith("accepted: programs without callbacks and functions of Python inside")
    assert not list(tmp_path.iterdir())


def test_structures_of_other_classes_cannot_be_saved(tmp_path: Path) -> None:
    Pair = namedtuple("Pair", "a b")
    best = rx.optimize(lambda p: p.a + p.b, Pair("n", "n"), cache=False)
    with pytest.raises(ArtifactError, match=r"the arguments of .*\(\) hold a .*Pair, a structure of this process"):
        best.save(tmp_path / "m.rxe")


def _whole(best: rx.Optimized, tmp_path: Path) -> tuple[Path, bytes]:
    path = tmp_path / "m.rxe"
    best.save(path)
    return path, path.read_bytes()


@pytest.mark.parametrize("keep", [0, 5, 19, 30, 500, -1])
def test_a_file_that_is_cut_off(best: rx.Optimized, tmp_path: Path, keep: int) -> None:
    path, data = _whole(best, tmp_path)
    path.write_bytes(data[:keep])
    with pytest.raises(ArtifactError, match=r"is cut off: \d+ of at least \d+ bytes|is no artifact of relax_eg"):
        rx.load(path)


def test_a_file_that_is_changed(best: rx.Optimized, tmp_path: Path) -> None:
    path, data = _whole(best, tmp_path)
    for at in range(44, len(data), len(data) // 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(ArtifactError, match="was changed after it was written: its checksum does not fit"):
            rx.load(path)
    path.write_bytes(data + b"x")
    with pytest.raises(ArtifactError, match="was changed"):
        rx.load(path)


def test_another_version(best: rx.Optimized, tmp_path: Path) -> None:
    path, data = _whole(best, tmp_path)
    path.write_bytes(data.replace(b"artifact 2\n", b"artifact 3\n", 1))
    with pytest.raises(ArtifactError, match="is an artifact of version 3; this relax_eg reads version 2"):
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
