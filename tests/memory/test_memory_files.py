"""Plan files, pictures, the report, the command, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner, Result

import relax_eg as rx
from relax_eg.cli import app
from relax_eg.errors import BoundsError, MemoryPlanError, OptionError
from relax_eg.ir.expr import ALLOC_STORAGE
from relax_eg.memory.files import load, save
from relax_eg.memory.picture import draw
from relax_eg.memory.placement import Layout
from relax_eg.memory.plan import LAYOUTS
from relax_eg.ops.interpret import evaluate


def run(x: Any) -> Any:
    return jnp.sum(jnp.transpose(jnp.sin(x) @ x) @ jnp.cos(x), axis=0)


@pytest.fixture
def module() -> rx.types.Module:
    return rx.trace(run, "n n")


@pytest.fixture
def written(module: rx.types.Module, tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    save(rx.plan_memory(module, bounds={"n": (1, 64)}, layout="arena"), path)
    return path


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_plan_file_is_read_back(layout: Layout, module: rx.types.Module, tmp_path: Path) -> None:
    plan, path = rx.plan_memory(module, bounds={"n": (1, 64)}, layout=layout), tmp_path / "plan.json"
    save(plan, path)
    assert load(path, module) == plan.placement
    data = json.loads(path.read_text())
    assert (data["version"], data["layout"], data["sizes"]) == (2, layout, ["n <= 64"])
    assert data["static"] == plan.static == (layout != "storages")
    assert all({"statement", "verdict", "granted"} <= row.keys() for row in data["proofs"])
    assert bool(data["proofs"]) == (layout != "greedy")


def edited(path: Path, change: Any) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def test_an_offset_changed_by_hand_is_refused(module: rx.types.Module, written: Path) -> None:
    def overlap(data: Any) -> None:
        for row in data["values"]:
            row["offset"] = "0"

    edited(written, overlap)
    with pytest.raises(MemoryPlanError, match=r"the plan does not hold: at n = 64, kernel \w+: .* is written over"):
        load(written, module)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["storages"][0].update(bytes="4096"), r"has bytes \d+ to \d+, storage 0 has 4096"),
        (lambda d: d["storages"][0].update(bytes=str(int(d["bytes"]) + 64)), "changed after it was written"),
        (lambda d: d.update(bytes="4096"), "changed after it was written"),
        (lambda d: d["order"].reverse(), "reads .* before it is written"),
        (lambda d: d["order"].pop(), "does not name each of the"),
        (lambda d: d["storages"].pop(), "there is no storage"),
        (lambda d: d["values"][0].update(storage=1), "there is no storage 1"),
        (lambda d: d["values"][0].update(storage=-1), "there is no storage -1"),
        (lambda d: d.update(version=1), "version 1; version 2 is accepted"),
        (lambda d: d.update(format="x"), 'a file with "format": "relax_eg memory plan" is accepted'),
        (lambda d: d.update(kernels="0"), r"the plan is of other kernels than those of run\(\)"),
        (lambda d: d.pop("values"), "not a plan that can be followed: KeyError"),
        (lambda d: d["values"][0].update(offset="n ++"), "not a plan that can be followed"),
        (lambda d: d["values"][0].update(offset="-4"), "has bytes -4 to"),
    ],
)
def test_what_else_is_changed_by_hand_is_refused(
    change: Any, message: str, module: rx.types.Module, written: Path
) -> None:
    edited(written, change)
    with pytest.raises(MemoryPlanError, match=message):
        load(written, module)


def test_a_plan_of_another_program_is_refused(written: Path) -> None:
    with pytest.raises(MemoryPlanError, match="other kernels"):
        load(written, rx.trace(lambda x: jnp.sin(jnp.cos(x)), "n n"))


def test_a_file_that_is_no_json_is_refused(module: rx.types.Module, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(MemoryPlanError, match="cannot be read as JSON"):
        load(tmp_path / "x.json", module)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bounds": {"n": (1, 4.5)}}, r"the bounds of `n` hold 4\.5, which is no integer; accepted: \(low, high\)"),
        ({"bounds": {"n": "4"}}, "the bounds of `n` hold '4', which is no integer"),
        ({"bounds": {"n": (9, 4)}}, r"the bounds of `n` are empty: \(9, 4\); accepted: \(low, high\)"),
        ({"bounds": {"nn": (1, 4)}}, r"run\(\): bounds name `nn`, which is no size; its sizes: n; did you mean `n`\?"),
        ({"bounds": {"n": (1, 4)}, "at": {"n": 5}}, r"n = 5 exceeds its bound 4"),
        ({"at": {"m": 5}}, "at names `m`, which is no size; the sizes: n"),
        ({"at": {"n": 5.0}}, "n = 5.0; an integer is accepted"),
        ({"bounds": ["n >= 10", {"n": (1, 4)}]}, "no size satisfies the bounds of `n`"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(options: Any, message: str, module: rx.types.Module) -> None:
    with pytest.raises(rx.errors.RelaxEgError, match=message):
        rx.plan_memory(module, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"results": "here"}, "results='here': 'apart' or 'planned' is accepted"),
        ({"aliasing": "all"}, "aliasing='all': one of elements, dtype, bytes, fits is accepted"),
        ({"layout": "here"}, "layout='here': one of storages, arena, greedy is accepted"),
        ({"align": 0}, "align=0: a number of bytes from 1 on is accepted"),
    ],
)
def test_options_that_do_not_exist_are_refused(options: Any, message: str, module: rx.types.Module) -> None:
    with pytest.raises(OptionError, match=message):
        rx.plan_memory(module, **options)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(OptionError, match=r"plan_memory\(\) takes a Module or what optimize\(\) returns, got int"):
        rx.plan_memory(3)


def test_a_call_beyond_a_bound_is_refused(module: rx.types.Module) -> None:
    for layout in LAYOUTS:
        plan = rx.plan_memory(module, bounds={"n": (1, 64)}, layout=layout)
        with pytest.raises(BoundsError, match=r"run\(\): n = 65 exceeds its bound 64"):
            plan.bytes_at({"n": 65})
        with pytest.raises(BoundsError, match=r"run\(\): no value for the size `n`"):
            plan.bytes_at({})


def test_the_report_tells_bytes_peak_and_proofs(module: rx.types.Module) -> None:
    for layout in ("storages", "arena"):
        text = str(rx.plan_memory(module, at={"n": 100}, layout=layout))
        assert "needed at once 117.2 KiB at n = 100: gap 0.00%" in text
        assert "at the peak (n = 100):" in text and "matmul" in text
        assert "proved (canonical)" in text and f"handed out     400 B beside the {layout}" in text
        assert f"  {layout}: memory taken over" in text and "greedy 117.2 KiB (gap 0.00%) at n = 100" in text
    text = str(rx.plan_memory(module, at={"n": 100}, layout="greedy"))
    assert "  greedy         117.2 KiB at n = 100 = 12*n**2 bytes" in text
    assert "  other layouts  storages 117.2 KiB (gap 0.00%), arena 117.2 KiB (gap 0.00%) at n = 100" in text
    text = str(
        rx.plan_memory(
            rx.trace(lambda x: jnp.log(jnp.pad(jnp.transpose(jnp.pad(jnp.exp(x), 1)), 1)), "n n"), aliasing="fits"
        )
    )
    assert "refuted at n = 256: 266256 <= 262144 is false" in text


def test_offsets_are_multiples_of_what_is_asked_for() -> None:
    module = rx.trace(lambda x: jnp.sum((jnp.sin(x) > 0) & (jnp.transpose(x) > 0.5), axis=0), "n n")
    for bounds in ({}, {"n": (1, 9)}):
        plan = rx.plan_memory(module, bounds=bounds, at={"n": 7}, layout="arena", align=64, check=True)
        assert all(int(p.offset.evaluate({"n": 7})) % 64 == 0 for p in plan.places.values())


def test_a_program_without_kernels() -> None:
    for layout in LAYOUTS:
        plan = rx.plan_memory(rx.trace(lambda x: x, "n"), layout=layout, check=True)
        assert plan.bytes == 0 and plan.peak == () and "0 kernels" in str(plan)


@pytest.mark.parametrize(
    ("suffix", "layout"), [("svg", "storages"), ("svg", "arena"), ("svg", "greedy"), ("png", "storages")]
)
def test_a_picture_names_the_peak_and_its_tensors(
    suffix: str, layout: Layout, module: rx.types.Module, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plan.{suffix}"
    plan = rx.plan_memory(module, at={"n": 100}, layout=layout)
    draw(plan, path)
    data = path.read_bytes()
    if suffix == "png":
        assert data.startswith(b"\x89PNG")
        return
    text = data.decode()
    for word in ("peak: 117.2 KiB in matmul.2", f"{layout}, 117.2 KiB", "memory of run() at n = 100", "cos"):
        assert word in text
    draw(plan, path)
    assert path.read_text() == text  # the same picture each time


def test_a_picture_of_an_unknown_kind_is_refused(module: rx.types.Module, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(MemoryPlanError, match="xyz"):
        draw(rx.plan_memory(module), tmp_path / "plan.xyz")


PROGRAM = """
import jax.numpy as jnp

def run(x):
    return jnp.sum(jnp.transpose(jnp.sin(x) @ x) @ jnp.cos(x), axis=0)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(PROGRAM)
    return tmp_path / "model.py"


def command(*args: str | Path) -> Result:
    return CliRunner().invoke(app, ["plan", *map(str, args)])


def test_the_command_plans_a_function(model: Path) -> None:
    plan = model.parent / "plan.json"
    picture = model.parent / "plan.svg"
    words = f"{model}:run", "--spec", "n n", "--bounds", "n=:64", "--as-written", "--layout", "arena"
    explicit = model.parent / "plan.relax"
    result = command(*words, "--json", plan, "--picture", picture, "--explicit", explicit)
    assert result.exit_code == 0, result.output
    steps = [b.value.op for b in rx.parse(explicit.read_text()).main.blocks[0].bindings]
    assert steps.count(ALLOC_STORAGE) == 2  # the arena, and the memory of the result
    x = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
    np.testing.assert_array_equal(evaluate(rx.parse(explicit.read_text()), [x]), evaluate(rx.trace(run, "n n"), [x]))
    assert "fixed for all sizes in bounds" in result.output and "at the peak (n = 64)" in result.output
    assert picture.read_text().startswith("<?xml")
    result = command(*words, "--check", plan)
    assert result.exit_code == 0 and "plan.json: holds" in result.output.replace("\n", "")
    edited(plan, lambda d: d.update(storages=[]))
    result = command(*words, "--check", plan)
    assert result.exit_code == 1 and "there is no storage 0" in " ".join(result.output.split())


def test_the_command_takes_a_bound_for_each_size(model: Path) -> None:
    (model.parent / "two.py").write_text("def run(x, w):\n    return ((x @ w) @ w).sum(1)\n")
    words = f"{model.parent / 'two.py'}:run", "--spec", "b s 4", "--spec", "4 4", "--as-written"
    words = *words, "--layout", "arena"
    result = command(*words, "--bounds", "s=:1024", "--bounds", "b=:64")
    said = " ".join(result.output.split())
    assert result.exit_code == 0, said
    assert "2 MiB, fixed for all sizes in bounds" in said and "at the peak (b = 64, s = 1024)" in said
    result = command(*words, "--bounds", "s=:1024")
    assert result.exit_code == 0 and "fixed for all sizes" not in result.output  # b may be anything


def test_the_command_plans_module_text(module: rx.types.Module, tmp_path: Path) -> None:
    (tmp_path / "m.txt").write_text(str(module))
    for layout, fixed in (("arena", True), ("storages", False)):
        result = command(tmp_path / "m.txt", "--bounds", "n=2:8", "--layout", layout)
        assert result.exit_code == 0 and ("fixed for all sizes in bounds" in result.output) == fixed


@pytest.mark.parametrize(("options", "kernels"), [(["--as-written"], "6 kernels"), ([], "fused_sum_sin_matmul")])
def test_the_command_plans_kernels_or_what_is_written(options: list[str], kernels: str, model: Path) -> None:
    result = command(f"{model}:run", "--spec", "n n", *options)
    assert result.exit_code == 0 and kernels in result.output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--bounds", "n"], "--bounds 'n': name=low:high is accepted, as in s=1:4096, or a statement"),
        (["--bounds", "n=x"], "--bounds 'n=x': name=low:high is accepted"),
        (["--bounds", "n=8:4"], "the bounds of `n` are empty: (8, 4)"),
        (["--results", "x"], "results='x'"),
        (["--layout", "x"], "layout='x': one of storages, arena, greedy is accepted"),
    ],
)
def test_the_command_refuses(args: list[str], message: str, model: Path) -> None:
    result = command(f"{model}:run", "--spec", "n n", "--as-written", *args)
    assert result.exit_code == 1
    assert message in " ".join(result.output.split())


def test_the_command_refuses_what_is_no_model(tmp_path: Path) -> None:
    result = command(tmp_path / "nothing")
    assert result.exit_code == 1 and "or a file of module text, or m.rxe" in " ".join(result.output.split())
