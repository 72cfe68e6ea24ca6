"""Saved files with executables: which there are, who may run them, what they run as, and what is refused."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import relax_eg as rx
from benchmarks.mutated_formats import artifact_file, artifact_parts, with_codes
from relax_eg.backend.files.artifact import read
from relax_eg.backend.files.stored import default_device_key
from relax_eg.backend.gpu.devices import find_gpu
from relax_eg.cli import app
from relax_eg.cli.common import out
from relax_eg.errors import ArtifactError, BoundsError, OptionError, ShapeError

ROOT = Path(__file__).parent.parent.parent
HAS_PLUGIN = importlib.util.find_spec("jax_plugins") is not None and any(
    importlib.util.find_spec(f"jax_plugins.{name}") is not None for name in ("xla_cuda12", "xla_cuda13")
)
with_plugin = pytest.mark.skipif(not HAS_PLUGIN, reason="relax-eg[cuda] is not installed")

RANDOM = np.random.default_rng(0)
W = {k: RANDOM.standard_normal(s).astype(np.float32) / 8 for k, s in (("up", (64, 128)), ("down", (128, 64)))}
MLP = {"up": "64 128", "down": "128 64"}
LARGE = {"n": 100}


def mlp(p: Any, x: Any) -> Any:
    return {"y": jax.nn.silu(x @ p["up"]) @ p["down"], "n": jnp.sum(x)}


def folded(p: Any, x: Any) -> Any:
    """What depends on `p` alone is prepared."""
    return {"y": x @ (p["up"] @ p["down"]) + x, "n": jnp.sum(x)}


def chain(a: Any, b: Any, v: Any) -> Any:
    return (a @ b) @ v


def chained(n: int) -> list[Any]:
    a, b, v = (RANDOM.standard_normal(s).astype(np.float32) for s in ((n, n), (n, n), (n,)))
    return [jnp.asarray(x / 8) for x in (a, b, v)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chain of products, with executables for the CPU at two sizes."""
    path = tmp_path_factory.mktemp("stored") / "chain.rxe"
    best = rx.optimize(chain, "n n", "n n", "n", at={"n": 64}, dynamic="exact", target="cpu")
    assert not best.report.kept_as_written
    best.save(path, devices=["cpu"], at=[{"n": 64}, {"n": 32}])
    return path


def calls(best: rx.types.Optimized) -> list[tuple[dict[str, int], int, str]]:
    """Of the executables of the file: sizes, calls, and why there are none."""
    return [(dict(r.at), r.calls, r.why_not) for r in best.statistics().stored]


# --- what runs ---

FRESH = """
import sys, jax, numpy as np, relax_eg as rx
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: compiled.append(event) if event.endswith("backend_compile_duration") else None
)
given = np.load("in.npz")
p = {"up": given["up"], "down": given["down"]}
found = {}
for name in ("whole", "capacity", "kernels", "family", "bound"):
    best = rx.load(f"{name}.rxe", executables=sys.argv[1])
    call = best.prepare(p) if name == "bound" else lambda x, best=best: best(p, x)
    compiled.clear()
    for n in (100, 60):
        for _ in range(3):  # kernels reuse the arrays of the call before
            y = call(given[f"x{n}"])
        found[f"{name}{n}"] = y["y"]
        assert not y["y"].committed, name
    print(name, len(compiled), sum(r.calls for r in best.statistics().stored))
np.savez("out.npz", **found)
"""


def test_a_fresh_process_runs_them_and_compiles_nothing(tmp_path: Path) -> None:
    both: Any = [LARGE, {"n": 60}]
    options: dict[str, dict[str, Any]] = {
        "whole": {"at": LARGE, "dynamic": "exact"},
        "capacity": {"at": LARGE},
        "kernels": {"at": LARGE, "execution": "kernels"},
        "family": {"at": both},
        "bound": {"at": LARGE, "weights": ("p",)},
    }
    for name, more in options.items():
        best = rx.optimize(folded if name == "bound" else mlp, MLP, "n 64", target="cpu", **more)
        best.save(tmp_path / f"{name}.rxe", devices=["cpu"], at=both)
    x = {f"x{n}": RANDOM.standard_normal((n, 64)).astype(np.float32) for n in (100, 60)}
    np.savez(tmp_path / "in.npz", **W, **x)
    (tmp_path / "run.py").write_text(FRESH)
    found: dict[str, dict[str, list[int]]] = {}
    for word in ("trust", "compile"):
        command = [sys.executable, "run.py", word]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=env)
        assert ran.returncode == 0, ran.stderr
        rows = (line.split() for line in ran.stdout.splitlines())
        found[word] = {name: [int(n) for n in numbers] for name, *numbers in rows}
        results = np.load(tmp_path / "out.npz")
        for key in results.files:
            wanted = (folded if key.startswith("bound") else mlp)(W, x[f"x{key.lstrip('abcdefghijklmnopqrstuvwxyz')}"])[
                "y"
            ]
            np.testing.assert_allclose(results[key], wanted, rtol=1e-4, atol=1e-5, err_msg=key)
    assert found["trust"] == {name: [0, 6] for name in options}
    assert all(compiled >= 2 and calls == 0 for compiled, calls in found["compile"].values()), found


def test_calls_that_they_do_not_serve_are_compiled(saved: Path) -> None:
    best = rx.load(saved, executables="trust")
    given = chained(64)
    wanted = chain(*given)
    np.testing.assert_allclose(best(*given), wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(best(*map(np.asarray, given)), wanted, rtol=1e-4, atol=1e-4)
    assert calls(best) == [({"n": 64}, 2, ""), ({"n": 32}, 0, "")]
    np.testing.assert_allclose(jax.jit(best)(*given), wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(jax.vmap(best)(*[x[None] for x in given])[0], wanted, rtol=1e-4, atol=1e-4)
    with jax.default_matmul_precision("highest"):
        best(*given)
    other = chained(16)
    np.testing.assert_allclose(best(*other), chain(*other), rtol=1e-4, atol=1e-4)
    assert calls(best) == [({"n": 64}, 2, ""), ({"n": 32}, 0, "")]
    best(*chained(32))
    assert calls(best)[1] == ({"n": 32}, 1, "")
    with pytest.raises(ShapeError, match="should be float32"):
        best(given[0].astype(jnp.int32), *given[1:])
    text = str(best.statistics())
    assert "1 executable of the file for cpu at n=64: 2 calls" in text
    assert "JAX compiles it for each other combination of sizes that is called" in text


def test_without_the_word_nothing_is_given_to_xla(saved: Path) -> None:
    best = rx.load(saved)
    given = chained(64)
    np.testing.assert_allclose(best(*given), chain(*given), rtol=1e-4, atol=1e-4)
    why = "only executables='trust' runs it"
    assert calls(best) == [({"n": 64}, 0, why), ({"n": 32}, 0, why)]
    assert f"for cpu at n=64: not used: {why}" in str(best.statistics())


def test_a_loaded_function_saves_its_program_alone(saved: Path, tmp_path: Path) -> None:
    rx.load(saved, executables="trust").save(tmp_path / "again.rxe")
    assert read(tmp_path / "again.rxe").stored.programs == ()
    assert rx.load(tmp_path / "again.rxe", executables="trust").statistics().stored == ()


def test_other_capacities_leave_them_unused(tmp_path: Path) -> None:
    path = tmp_path / "m.rxe"
    rx.optimize(mlp, MLP, "n 64", at=LARGE, target="cpu").save(path, devices=["cpu"], at={"n": 77})
    with pytest.warns(UserWarning, match="runs here .for cpu: calls at its sizes run at other capacities"):
        best = rx.load(path, executables="trust", dynamic=rx.Dynamic(capacities=40))
    assert best(W, np.ones((77, 64), np.float32))["y"].shape == (77, 64)


def test_kernels_that_take_no_array(tmp_path: Path) -> None:
    def drawn(x: Any) -> Any:
        return jnp.sort(jax.random.normal(jax.random.key(0), (64,))) + x

    path = tmp_path / "m.rxe"
    best = rx.optimize(drawn, "64", execution="kernels", target="cpu")
    best.save(path, devices=["cpu"])
    (program,) = read(path).stored.programs
    alone = [e.name for e in program.executables if [str(a) for a in e.arguments] == ["bool[]"]]
    assert alone
    again, x = rx.load(path, executables="trust"), jnp.ones(64)
    for _ in range(3):
        np.testing.assert_array_equal(again(x), best(x))
    assert calls(again) == [({}, 3, "")]
    assert again.temporary_bytes({}).keys() == best.temporary_bytes({}).keys()


def test_keys_wide_numbers_and_weak_results(tmp_path: Path) -> None:
    def keyed(key: Any, x: Any) -> Any:
        return jax.random.split(key, 2), jax.random.normal(key, (4,)) * x, 2.0

    path = tmp_path / "m.rxe"
    best = rx.optimize(keyed, jax.random.key(0), "4", target="cpu")
    best.save(path, devices=["cpu"])
    again = rx.load(path, executables="trust")
    key, x = jax.random.key(3), jnp.ones(4)
    for found, wanted in zip(again(key, x), best(key, x), strict=True):
        assert found.dtype == wanted.dtype and getattr(found, "weak_type", 0) == getattr(wanted, "weak_type", 0)
        same = jax.random.key_data if jnp.issubdtype(found.dtype, jax.dtypes.prng_key) else jnp.asarray
        np.testing.assert_array_equal(same(found), same(wanted))
    assert calls(again) == [({}, 1, "")]
    with jax.enable_x64(True):
        wide = rx.optimize(lambda x: (x @ x) @ x, "8 8 @ float64", target="cpu")
    wide.save(path, devices=["cpu"])
    again, x64 = rx.load(path, executables="trust"), np.eye(8)
    np.testing.assert_array_equal(again(x64), wide(x64))
    assert again(x64).dtype == np.float64 and calls(again) == [({}, 2, "")]


# --- what is there ---


@with_plugin
def test_executables_for_two_gpus_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "_width", 200)  # what the environment says is read once, when a command is first run
    path = tmp_path / "m.rxe"
    best = rx.optimize(folded, MLP, "n 64", weights=("p",), at=LARGE, target="h100")
    best.save(path, devices=["h100", "A100"], at=[LARGE, {"n": 77}])
    stored = read(path).stored
    made = [(p.key.device, p.key.platform, p.key.capability, p.at, p.capacities) for p in stored.programs]
    assert made == [
        (device, "gpu", capability, {"n": n}, capacities)
        for device, capability in (("h100", "9.0"), ("a100", "8.0"))
        for n, capacities in ((100, {}), (77, {"n": 128}))
    ]
    assert all(p.launches > 0 and p.weights == (0, 1) and stored.code_bytes(p) > 1000 for p in stored.programs)
    told = CliRunner().invoke(app, ["info", str(path)])
    assert told.exit_code == 0, told.output
    lines = told.output.splitlines()
    assert lines[1:3] == ["folded(p, x)", ""] and lines[3].startswith("program for any device: ")
    rows = [line.split("  ") for line in lines if line.startswith(("h100", "a100"))]
    shown = [[cell.strip() for cell in row if cell][:4] for row in rows]
    assert shown == [
        [device, kind, platform, at]
        for device, kind, platform in (
            ("h100", "NVIDIA H100 80GB HBM3", "gpu 9.0"),
            ("a100", "NVIDIA A100-SXM4-80GB", "gpu 8.0"),
        )
        for at in ("n=100", "n=77, padded to n=128")
    ]
    assert f"made by jax {jax.__version__}, jaxlib" in lines[-1] and "-pjrt " in lines[-1]
    if jax.default_backend() == "cpu":
        with pytest.warns(
            UserWarning, match="folded is compiled: DeviceError: no executable of .*m.rxe runs here .for h100: "
        ):
            again = rx.load(path, executables="trust")
        assert again(W, np.ones((3, 64), np.float32))["y"].shape == (3, 64)
        assert {r.calls for r in again.statistics().stored} == {0}


@with_plugin
def test_a_gpu_of_a_file(tmp_path: Path) -> None:
    described, path = tmp_path / "own.txtpb", tmp_path / "m.rxe"
    described.write_text(find_gpu("l4").config)
    best = rx.optimize(chain, "64 64", "64 64", "64", target="cpu")
    best.save(path, devices=[described, "l4", str(described)])
    keys = [p.key for p in read(path).stored.programs]
    assert [(k.device, k.kind, k.capability) for k in keys][:2] == [
        ("own", "NVIDIA L4", "8.9"),
        ("l4", "NVIDIA L4", "8.9"),
    ]


@with_plugin
def test_kernels_for_a_gpu(tmp_path: Path) -> None:
    specs = ["256 64 @ bfloat16"] * 3
    best = rx.optimize(lambda q, k, v: jax.nn.softmax(q @ k.T) @ v, *specs, execution="kernels", target="h100")
    best.save(tmp_path / "m.rxe", devices=["h100", "cpu"])
    gpu, cpu = read(tmp_path / "m.rxe").stored.programs
    assert len(gpu.executables) == len(cpu.executables) and gpu.execution == "kernels"
    assert sum(p.launches for p in (gpu,)) == sum(sum(e.launches.values()) for e in gpu.executables) > 0
    again = rx.load(tmp_path / "m.rxe", executables="trust")
    args = [jnp.asarray(RANDOM.standard_normal((256, 64)), jnp.bfloat16) for _ in specs]
    np.testing.assert_array_equal(again(*args), best(*args))
    assert [r.calls for r in again.statistics().stored] == [0, 1]


def test_a_file_without_executables_is_listed(saved: Path, tmp_path: Path) -> None:
    rx.load(saved).save(tmp_path / "m.rxe")
    told = CliRunner().invoke(app, ["info", str(tmp_path / "m.rxe")])
    assert told.exit_code == 0 and "no executables: it is compiled where it is called" in told.output
    told = CliRunner().invoke(app, ["info", str(saved)], env={"COLUMNS": "200"})
    assert told.output.count("n=64") == 1 and "instruction" not in told.output
    told = CliRunner().invoke(app, ["info", str(tmp_path / "none.rxe")])
    assert told.exit_code == 1 and "cannot read" in told.output


def test_the_command_line_keeps_executables(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("def f(x, v):\n    return (x @ x) @ v\n")
    path = str(tmp_path / "m.rxe")
    given = ["optimize", f"{tmp_path / 'f.py'}:f", "--spec", "n n", "--spec", "n", "--at", "n=32"]
    told = CliRunner().invoke(app, [*given, "--save", path, "--device", "cpu"])
    assert told.exit_code == 0, told.output
    assert [p.at for p in read(path).stored.programs] == [{"n": 32}]
    told = CliRunner().invoke(app, [*given, "--device", "cpu"])
    assert told.exit_code == 1 and "--device cpu: --save, whose file keeps" in " ".join(told.output.split())
    told = CliRunner().invoke(app, [*given, "--save", path, "--device", "h10"])
    assert told.exit_code == 1 and "nearest: h100" in " ".join(told.output.split())


def test_what_an_executable_asks_of_a_machine() -> None:
    here = default_device_key()
    assert here.why_not(here) == "" and replace(here, kind="another model").why_not(here) == ""
    other = replace(here, capability="more")
    assert other.why_not(here) == f"it is for {here.kind}; here is {here.kind}, of other instruction sets"
    gpu = replace(here, platform="gpu", kind="NVIDIA L4", capability="8.9")
    assert gpu.why_not(here) == f"it is for NVIDIA L4; here is {here.kind}"
    assert gpu.why_not(replace(gpu, capability="9.0", kind="NVIDIA H100")) == (
        "it is for NVIDIA L4; here is NVIDIA H100, of other compute capability"
    )
    older = replace(here, versions={**here.versions, "jaxlib": "0.1"})
    assert older.why_not(here) == f"it was made by jaxlib 0.1; here is {here.versions['jaxlib']}"


# --- what is refused ---


def forged(saved: Path, path: Path, change: Callable[[dict[str, Any], list[bytes]], Any]) -> Path:
    """The file with another table or machine code, all checksums redone."""
    payload, table, codes = artifact_parts(saved.read_bytes())
    data = json.loads(table)
    change(data, codes)
    path.write_bytes(artifact_file(payload, with_codes(json.dumps(data).encode(), codes), codes))
    return path


@pytest.mark.parametrize("word", ["compile", "trust"])
def test_changed_and_truncated_parts(saved: Path, tmp_path: Path, word: Any) -> None:
    data, path = saved.read_bytes(), tmp_path / "m.rxe"
    payload, table, codes = artifact_parts(data)
    assert artifact_file(payload, table, codes) == data
    start = len(data) - len(codes[1])
    for at in (start - 5, start + 5, len(data) - 1, len(data) - len(codes[1]) - len(codes[0]) - 5):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(ArtifactError, match="was changed after it was written: its checksum does not fit"):
            rx.load(path, executables=word)
    path.write_bytes(data + b"x")
    with pytest.raises(ArtifactError, match="was changed"):
        rx.load(path, executables=word)
    program = data.index(payload) + len(payload)
    for end in (program, program + 7, program + 30, start, len(data) - 1):
        path.write_bytes(data[:end])
        with pytest.raises(ArtifactError, match=rf"is cut off: {end} of at least \d+ bytes are there"):
            rx.load(path, executables=word)


def test_machine_code_that_is_none(saved: Path, tmp_path: Path) -> None:
    def garbage(data: dict[str, Any], codes: list[bytes]) -> None:
        codes[:] = [b"no machine code" for _ in codes]

    path = forged(saved, tmp_path / "m.rxe", garbage)
    given = chained(64)
    np.testing.assert_allclose(rx.load(path)(*given), chain(*given), rtol=1e-4, atol=1e-4)
    with pytest.warns(UserWarning, match="for cpu: XLA does not load `chain`: "):
        best = rx.load(path, executables="trust")
    np.testing.assert_allclose(best(*given), chain(*given), rtol=1e-4, atol=1e-4)


def test_executables_of_another_program(saved: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.rxe"
    rx.optimize(lambda x: x @ x, "n n", dynamic="exact", target="cpu").save(other, devices=["cpu"], at={"n": 64})
    payload = artifact_parts(saved.read_bytes())[0]
    _, table, codes = artifact_parts(other.read_bytes())
    path = tmp_path / "m.rxe"
    path.write_bytes(artifact_file(payload, table, codes))
    given = chained(64)
    np.testing.assert_allclose(rx.load(path)(*given), chain(*given), rtol=1e-4, atol=1e-4)
    with pytest.raises(ArtifactError) as e:
        rx.load(path, executables="trust")
    assert str(e.value) == (
        f"load: {path} has executables for cpu at n=64; `main` takes float32[64,64], and the program gives it "
        "float32[64,64], float32[64,64], float32[64]\n  accepted: executables that were made of the program beside "
        "them; with executables='compile' they are left unused"
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda p: p.update(execution="kernels"),
            r"executables for cpu at n=64 of variant 0 \(kernels\), and variant 0",
        ),
        (lambda p: p.update(at={"n": 8}), r"takes float32\[64,64\], .* gives it float32\[8,8\]"),
        (lambda p: p.update(at={"m": 64}), "does not describe a program"),
        (lambda p: p["executables"][0]["arguments"][0].update(dtype="float16"), r"takes float16\[64,64\]"),
        (lambda p: p["executables"][0].update(code=7), "`chain` has machine code 7; it holds 2"),
        (lambda p: p["executables"][0].update(code=-1), "`chain` has machine code -1; it holds 2"),
        (lambda p: p["executables"][0].update(in_tree=["set", 0]), "KeyError"),
        (
            lambda p: p["executables"][0].update(out_tree=["tuple", 0, 0]),
            "has 1 arrays in a structure of another number",
        ),
        (lambda p: p["executables"].clear(), "a call runs 0 executables"),
        (lambda p: p.update(variant=3), "executables are of variant 3; it has 1"),
        (lambda p: p.update(execution="steps"), "executables are run as 'steps'; accepted: whole, kernels"),
        (lambda p: p["key"].update(versions=[]), "an object is accepted"),
        (lambda p: p.pop("settings"), "lacks `settings`"),
    ],
)
def test_what_is_said_of_executables_is_looked_at(saved: Path, tmp_path: Path, change: Any, why: str) -> None:
    path = forged(saved, tmp_path / "m.rxe", lambda data, _: change(data["programs"][0]))
    with pytest.raises(ArtifactError, match=why):
        rx.load(path, executables="trust")


def test_of_several_that_of_the_very_model_runs(saved: Path, tmp_path: Path) -> None:
    def doubled(data: dict[str, Any], _: Any) -> None:
        other = json.loads(json.dumps(data["programs"][0]))
        other["key"] |= {"device": "relative", "kind": "another model"}
        data["programs"].insert(0, other)

    best = rx.load(forged(saved, tmp_path / "m.rxe", doubled), executables="trust")
    best(*chained(64))
    rows = [(r.device, r.calls, r.why_not) for r in best.statistics().stored]
    assert rows == [("relative", 0, "the one for cpu serves its calls"), ("cpu", 1, ""), ("cpu", 0, "")]


def test_other_versions_and_settings_are_compiled(saved: Path, tmp_path: Path) -> None:
    def older(data: dict[str, Any], _: Any) -> None:
        data["programs"][0]["key"]["versions"]["jaxlib"] = "0.1"

    best = rx.load(forged(saved, tmp_path / "m.rxe", older), executables="trust")
    best(*chained(64))
    assert [row[1:] for row in calls(best)] == [
        (0, f"it was made by jaxlib 0.1; here is {default_device_key().versions['jaxlib']}"), (0, ""),
    ]  # fmt: skip
    with (
        jax.default_matmul_precision("highest"),
        pytest.warns(UserWarning, match="chain is compiled: .*for cpu: it was made under other settings of JAX"),
    ):
        rx.load(saved, executables="trust")


UNIQUE = """
def main(x: R.Tensor(("n",), "float32")):
    y = R.unique(x)
    return y
"""


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    path = tmp_path / "m.rxe"
    best = rx.optimize(mlp, MLP, "n 64", bounds={"n": (1, 4096)}, target="cpu")
    tried: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"devices": ["h10"], "at": LARGE}, OptionError,
         "device='h10': one of a100, h100, h200, b200, rtx4090, l4, cpu, or the path of a file with a "
         "GpuTargetConfigProto of XLA's as text is accepted; the nearest: h100, h200"),
        ({"devices": ["gone.txtpb"], "at": LARGE}, OptionError, "device file gone.txtpb cannot be read"),
        ({"devices": "cpu"}, OptionError, "devices='cpu': a list of devices, such as ['h100', 'cpu'], is accepted"),
        ({"devices": [None]}, OptionError, "devices=[None]: a list of devices"),
        ({"devices": ["cpu"], "at": {"m": 3}}, OptionError,
         "save(): mlp() has the sizes n, and at={'m': 3}; at={'n': 128} is accepted"),
        ({"devices": ["cpu"]}, OptionError, "save(): mlp() has the sizes n, and at=None; at={'n': 128} is accepted"),
        ({"devices": ["cpu"], "at": {"n": 5000}}, BoundsError, "mlp(): n = 5000 exceeds its bound 4096"),
        ({"at": {"n": 8}}, OptionError, "save(): at={'n': 8} without devices; executables are what sizes are for"),
    ]  # fmt: skip
    for given, error, text in tried:
        with pytest.raises(error) as e:
            best.save(path, **given)
        assert str(e.value).startswith(text), str(e.value)
    with pytest.raises(OptionError) as e:
        rx.optimize(rx.parse(UNIQUE)).save(path, devices=["cpu"], at={"n": 8})
    assert str(e.value) == (
        "save(): main() runs in steps, of which each depends on values of the one before; a function that is one XLA "
        "program or a list of kernels is accepted"
    )
    assert not path.exists()
    with pytest.raises(OptionError, match="executables='yes': 'compile' or 'trust' is accepted"):
        rx.load(path, executables="yes")  # type: ignore[arg-type]
