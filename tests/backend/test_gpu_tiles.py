"""Tiles of XLA's matmuls on GPUs that are not here, and what is compiled by source line."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

import relax_eg as rx
from relax_eg.backend.gpu import target as gpu_target
from relax_eg.backend.gpu.hlo import Launch, TritonMatmul, launches
from relax_eg.backend.gpu.target import OPTION, choices, target_for
from relax_eg.extract.profiles.devices import profile
from relax_eg.ops.multiprocessors import MULTIPROCESSORS
from tests.backend.test_gpu import with_plugin

pytestmark = pytest.mark.xla_defaults
# ruff: noqa: E501  (an instruction is a line)
TILED = """HloModule m

%inner (p: f32[3,8,64], q: bf16[3,64,100]) -> bf16[3,8,100] {
  %p = f32[3,8,64]{2,1,0} parameter(0)
  %q = bf16[3,64,100]{2,1,0} parameter(1)
  %n = bf16[3,8,64]{2,1,0} convert(%p)
  ROOT %dot = bf16[3,8,100]{2,1,0} dot(%n, %q), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}, backend_config={"sizes":["32"]}
}

ENTRY %main (p: f32[3,8,64], q: bf16[3,64,100]) -> bf16[3,8,100] {
  %p = f32[3,8,64]{2,1,0} parameter(0)
  %q = bf16[3,64,100]{2,1,0} parameter(1)
  ROOT %gemm = bf16[3,8,100]{2,1,0} fusion(%p, %q), kind=kCustom, calls=%inner, backend_config={"fusion_backend_config":{"kind":"__triton_nested_gemm_fusion","block_level_fusion_config":{"num_warps":"4","output_tiles":[{"sizes":["1","16","128"]}],"num_ctas":1,"num_stages":3}}}
}
"""


def test_a_matmul_and_its_tiles_are_read() -> None:
    (found,) = launches(TILED)
    assert found.matmul == TritonMatmul(3, 8, 100, 64, "bf16", "16x128x32, 4 warps, 3 stages")


@pytest.mark.parametrize("device", sorted(MULTIPROCESSORS))
def test_tiles_are_chosen_by_the_model_of_the_device(device: str) -> None:
    """Large ones where there are many, small ones for few rows; each choice takes less shared memory than the last."""

    def chosen(*sizes: int) -> list[list[int]]:
        found = [Launch("gemm", "Triton", 1, None, "", "", matmul=TritonMatmul(*sizes, "bf16", ""))]
        return [[int(n) for n in re.findall(r"\d+", t)] for t in choices(found, MULTIPROCESSORS[device])]

    large, few = chosen(1, 8192, 8192, 4096), chosen(1, 8, 4096, 4096)
    assert min(large[0][:2]) >= 128 and few[0][0] == 16 and few[0][1] <= 128
    bytes_of = [2 * stages * deep * (rows + columns) for rows, columns, deep, stages, _, _ in large]
    assert max(bytes_of) <= MULTIPROCESSORS[device].block_shared_bytes and bytes_of == sorted(bytes_of, reverse=True)
    assert list(choices([Launch("copy", "copy", 1, None, "", "")], MULTIPROCESSORS[device])) == []


@with_plugin
def test_the_tiles_of_xlas_matmuls_are_those_that_are_chosen() -> None:
    specs = "m 4096 @ bfloat16", "4096 4096 @ bfloat16"
    best = rx.optimize(lambda x, w: jax.nn.relu(x @ w), *specs, at={"m": 4096}, dynamic="exact", target="h100")
    made = best.compile("h100", at=[{"m": 4096}, {"m": 256}])
    seen: list[str] = []
    for program in made.programs:
        (executable,) = program.executables
        (found,) = (k.matmul for k in executable.launches if k.matmul is not None)
        option = executable.options[OPTION]
        rows, columns, deep, stages, warps, _ = re.findall(r"\d+", option)
        assert found.tiles == f"{rows}x{columns}x{deep}, {warps} warps, {stages} stages"
        is_told = f"Triton {found.tiles}" in str(made)
        assert is_told and option == next(choices(executable.launches, MULTIPROCESSORS["h100"]))
        seen.append(found.tiles)
    assert seen[0] != seen[1]


@with_plugin
def test_where_tiles_are_xlas_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU that is here XLA times its candidates. Tiles that XLA refuses are not taken, and the record says so."""
    best = rx.optimize(lambda x, w: x @ w, *("1000 1000",) * 2, rules=rx.RuleSet("none"), target="h100")
    monkeypatch.setattr(gpu_target, "choices", lambda *_: iter(["block_m: 256 block_n: 256 block_k: 128 num_stages: 4 "
                                                              "num_warps: 4 num_ctas: 1"]))  # fmt: skip
    (executable,) = best.compile("l4").programs[0].executables
    text = (
        r"its matmuls have XLA's default tiles; with block_m: 256 .*: XLA does not compile it for l4: .*Shared memory.*"
    )
    is_told = re.fullmatch(text, executable.left, re.DOTALL)
    assert is_told and OPTION not in executable.options, executable.left
    target = target_for("l4")
    specs = [target.place(jax.ShapeDtypeStruct((1000, 900), "float32"))] * 2
    lowered = target.lowered(lambda x, y: x @ y.T, specs)
    monkeypatch.setattr(target, "is_present", True)
    assert target.compile(lowered, {}).options == {}


@with_plugin
def test_a_target_that_chooses_no_tiles_has_the_same_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks that look at kernels and memory compile once."""
    target, compiled = target_for("a100"), []
    specs = [target.place(jax.ShapeDtypeStruct((700, 900), "float32"))] * 2
    lowered = target.lowered(lambda x, y: jax.nn.relu(x @ y.T), specs)
    for chooses in (True, False):
        monkeypatch.setattr(target, "chooses_tiles", chooses)
        compiled.append(target.compile(lowered, {}))
    assert [OPTION in x.options for x in compiled] == [True, False]
    kernels = [[replace(k, matmul=None) for k in launches(x.executable.as_text())] for x in compiled]
    stored = [x.executable.memory_analysis().temp_size_in_bytes for x in compiled]
    assert kernels[0] == kernels[1] and stored[0] == stored[1]


def by_lines(x: Any, w: Any, v: Any) -> Any:
    y = jax.nn.relu(x @ w)
    return jax.nn.softmax(y @ v)


@with_plugin
@pytest.mark.parametrize("way", ["as written", "whole", "kernels"])
def test_predicted_and_compiled_by_source_line(way: str, tmp_path: Path) -> None:
    specs = ("4096 4096", *("4096 4096",) * 2)
    if way == "as written":
        best = rx.optimize(by_lines, *specs, rules=rx.RuleSet("none"), target="h100")
    else:
        best = rx.optimize(by_lines, *specs, target=replace(profile("h100"), calibrated=True), execution=way, at={})
    module = str(best.module) if way != "as written" else ""
    made = best.compile("h100")
    (found,) = made.programs
    first = by_lines.__code__.co_firstlineno
    lines = {f"test_gpu_tiles.py:{first + 1}", f"test_gpu_tiles.py:{first + 2}"}
    assert set(found.lines) == lines, (found.lines, module)
    assert set(found.predicted.lines) == lines
    matmul = f"test_gpu_tiles.py:{first + 1}"
    assert way == "kernels" or found.lines[matmul] == found.predicted.lines[matmul]
    for line in lines:
        is_told = line in str(made) and line in made.to_html(tmp_path / "m.html")
        assert is_told
