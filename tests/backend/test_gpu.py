"""Compiling for GPUs that are not here: devices, the text of XLA's programs, records, errors."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import relax_eg as rx
from relax_eg.backend.gpu import target as gpu_target
from relax_eg.backend.gpu.devices import GPUS, find_gpu
from relax_eg.backend.gpu.hlo import CustomCall, custom_calls, launches, unknown_loops
from relax_eg.backend.gpu.resources import graphs_of
from relax_eg.backend.gpu.target import target_for
from relax_eg.backend.lowering import libraries
from relax_eg.backend.pallas.choice import Pallas
from relax_eg.cli import app
from relax_eg.errors import BoundsError, OptionError
from relax_eg.extract.profiles.devices import profile

pytestmark = pytest.mark.xla_defaults

HAS_PLUGIN = importlib.util.find_spec("jax_plugins") is not None and any(
    importlib.util.find_spec(f"jax_plugins.{name}") is not None for name in ("xla_cuda12", "xla_cuda13")
)
with_plugin = pytest.mark.skipif(not HAS_PLUGIN, reason="relax-eg[cuda] is not installed")


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) * 0.125) @ v


def mlp(p: Any, x: Any) -> Any:
    return jax.nn.silu(x @ p["up"]) @ p["down"]


MLP = {"up": "64 128", "down": "128 64"}


# --- the text of XLA's programs ---

# ruff: noqa: E501  (an instruction is a line)
PROGRAM = """HloModule jit_f, is_scheduled=true

%product (p0: bf16[8,8]) -> bf16[8,8] {
  %p0 = bf16[8,8]{1,0} parameter(0)
  ROOT %dot.1 = bf16[8,8]{1,0} dot(%p0, %p0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%softmax (p0: f32[8]) -> f32[8] {
  %p0 = f32[8]{0} parameter(0)
  ROOT %e = f32[8]{0} exponential(%p0)
}

%body (t: (s32[], f32[8])) -> (s32[], f32[8]) {
  %t = (s32[], f32[8]{0}) parameter(0)
  %soft = f32[8]{0} fusion(%t), kind=kCustom, calls=%softmax, metadata={op_name="jit(f)/exp"}, backend_config={"fusion_backend_config":{"kind":"__triton"},"reification_cost":[{"exec_time_us":9,"name":""},{"exec_time_us":2.5,"name":"indexing-cost-model"}]}
  ROOT %out = (s32[], f32[8]{0}) tuple(%t, %soft)
}

%condition (t: (s32[], f32[8])) -> pred[] {
  ROOT %t = pred[] parameter(0)
}

%left (x: f32[8]) -> f32[8] {
  ROOT %copy.1 = f32[8]{0} copy(%x)
}

%right (x: f32[8]) -> f32[8] {
  %fused = f32[8]{0} fusion(%x), kind=kLoop, calls=%softmax, backend_config={"reification_cost":[{"exec_time_us":4,"name":""}]}
  ROOT %again = f32[8]{0} fusion(%fused), kind=kLoop, calls=%softmax
}

ENTRY %main (x: bf16[8,8]) -> f32[8] {
  %x = bf16[8,8]{1,0} parameter(0)
  %gemm = bf16[8,8]{1,0} fusion(%x), kind=kCustom, calls=%product, backend_config={"fusion_backend_config":{"kind":"__triton_nested_gemm_fusion"},"reification_cost":[{"exec_time_us":100,"name":""},{"exec_time_us":7,"name":"sol"}]}
  %lt = (bf16[8,8]{1,0}, s8[64]{0}) custom-call(%gemm, %x), custom_call_target="__cublas$lt$matmul", backend_config={"reification_cost":[{"exec_time_us":3,"name":"sol"}]}
  %conv = (bf16[8]{0}, u8[0]{0}) custom-call(%x), custom_call_target="__cudnn$convForward", backend_config={"reification_cost":[]}
  %own = f32[8]{0} custom-call(%x), custom_call_target="__gpu$xla.gpu.triton"
  %factor = f32[8]{0} custom-call(%x), custom_call_target="cusolver_potrf_ffi"
  %fft = c64[8]{0} fft(%x), fft_type=FFT, fft_length={8}
  %view = bf16[64]{0} bitcast(%x)
  %loop = (s32[], f32[8]{0}) while(%own), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"10"}}
  %open = (s32[], f32[8]{0}) while(%own), condition=%condition, body=%body
  %choice = f32[8]{0} conditional(%x, %own, %own), branch_computations={%left, %right}
  ROOT %two = f32[8]{0} conditional(%x, %own, %own), true_computation=%left, false_computation=%left
}
"""


def test_kernels_are_read_from_the_text_of_a_program() -> None:
    found = [
        (k.name, k.kind, k.times, None if k.seconds is None else round(1e6 * k.seconds, 6)) for k in launches(PROGRAM)
    ]
    assert found == [
        ("gemm", "Triton", 1, 7.0),
        ("lt", "cuBLAS", 1, 3.0),
        ("conv", "cuDNN", 1, None),
        ("own", "Pallas", 1, None),
        ("factor", "library", 1, None),
        ("fft", "library", 1, None),
        ("soft", "Triton", 10, 2.5),
        ("soft", "Triton", 1, 2.5),
        ("fused", "fusion", 1, 4.0),
        ("again", "fusion", 1, None),
        ("copy.1", "copy", 1, None),
    ]
    assert [k.model for k in launches(PROGRAM)][:3] == ["sol", "sol", ""]
    assert unknown_loops(PROGRAM) == 1
    assert launches("no program") == []


# --- devices ---


def test_devices_are_described_by_their_figures() -> None:
    assert sorted(GPUS) == ["a100", "b200", "h100", "h200", "l4", "rtx4090"]
    h100 = find_gpu("H100")
    assert (h100.kind, h100.memory_bytes) == ("NVIDIA H100 80GB HBM3", 84942979072)
    for part in ("core_count: 132", "shared_memory_per_block_optin: 232448", "memory_bandwidth: 3352320000000"):
        is_told = part in h100.config
        assert is_told, part


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("h10", "device='h10': one of a100, h100, h200, b200, rtx4090, l4, or the path of a file with a "
                "GpuTargetConfigProto of XLA's as text is accepted; the nearest: h100, h200"),
        ("tpu", "device='tpu': one of a100, h100, h200, b200, rtx4090, l4, or the path of a file with a "
                "GpuTargetConfigProto of XLA's as text is accepted"),
        ("gone.txtpb", "device file gone.txtpb cannot be read: [Errno 2] No such file or directory: 'gone.txtpb'"),
    ],
)  # fmt: skip
def test_unknown_devices(given: str, text: str) -> None:
    with pytest.raises(OptionError) as e:
        find_gpu(given)
    assert str(e.value) == text


def test_files_that_describe_no_device(tmp_path: Path) -> None:
    other, binary, large = (tmp_path / n for n in ("a.txt", "b.txt", "c.txt"))
    other.write_text("gpu_device_info { core_count: 132 }")
    binary.write_bytes(b"\xff\xfe\x00")
    large.write_bytes(b"x" * ((1 << 20) + 1))
    for path, text in (
        (other, f"device file {other}: it lacks platform_name, device_description_str; a GpuTargetConfigProto"),
        (binary, f"device file {binary} cannot be read"),
        (large, f"device file {large}: it has over 1 MiB and is no target config"),
    ):
        with pytest.raises(OptionError) as e:
            find_gpu(path)
        is_told = str(e.value).startswith(text)
        assert is_told, str(e.value)


def test_without_the_packages_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_target, "_PLUGINS", ("xla_nothing",))
    gpu_target._described.cache_clear()
    gpu_target._topology.cache_clear()
    with pytest.raises(OptionError) as e:
        target_for("h100")
    assert str(e.value) == (
        "the packages with which XLA compiles for GPUs are not installed; accepted: pip install 'relax-eg[cuda]'"
    )


def test_without_a_gpu_a_name_is_asked_for() -> None:
    if jax.default_backend() == "gpu":
        pytest.skip("there is a GPU")
    with pytest.raises(OptionError) as e:
        target_for(None)
    assert str(e.value) == "compile(): JAX runs on cpu here; the name of a GPU, device='h100', is accepted"


@with_plugin
def test_a_plugin_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    known = gpu_target.version
    monkeypatch.setattr(gpu_target, "version", lambda p: known(p) if p == "jaxlib" else "0.1")
    gpu_target._described.cache_clear()
    gpu_target._topology.cache_clear()
    with pytest.raises(OptionError) as e:
        target_for("h100")
    start = f"-plugin is of version 0.1 and jaxlib of {known('jaxlib')}; accepted: pip install jax-cuda"
    assert start in str(e.value)


@with_plugin
def test_a_file_that_xla_does_not_read(tmp_path: Path) -> None:
    path = tmp_path / "odd.txtpb"
    path.write_text('gpu_device_info { what: 1 } platform_name: "CUDA" device_description_str: "odd"')
    with pytest.raises(OptionError) as e:
        target_for(path)
    assert str(e.value).startswith("device=odd: XLA reads no device from its description: ")


# --- compiled programs ---


@with_plugin
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_attention_in_kernels_is_one_kernel_without_its_scores(dtype: str) -> None:
    spec = f"1 16 2048 64 @ {dtype}"
    best = rx.optimize(attention, spec, spec, spec, execution="kernels", target="h100")
    (found,) = best.compile("h100").programs
    assert (found.kinds, found.temporary_bytes, dict(found.left)) == ({"Pallas": 1}, 0, {})
    assert found.launches == found.predicted.launches
    assert found.executables[0].pallas == "a softmax between contractions"


def block(p: Any, x: Any) -> Any:
    """Attention with its four products."""
    q, k, v = ((x @ p[n]).reshape(-1, 16, 64).transpose(1, 0, 2) for n in "qkv")
    scores = jnp.matmul(q, k.transpose(0, 2, 1), preferred_element_type=jnp.float32) * 0.125
    mixed = jax.nn.softmax(scores).astype(x.dtype) @ v
    return mixed.transpose(1, 0, 2).reshape(x.shape) @ p["o"]


BLOCK = {n: "1024 1024 @ bfloat16" for n in "qkvo"}, "s 1024 @ bfloat16"
OWN = "by price with kernels through Pallas"


@with_plugin
def test_one_program_contains_a_kernel_of_ours_and_xlas(tmp_path: Path) -> None:
    options: Any = {"at": {"s": 2048}, "target": "h100", "weights": ("p",), "measure": "off"}
    best = rx.optimize(block, *BLOCK, **options)
    assert (best.report.execution, best.report.searched_for) == ("whole", OWN)
    operators = [e.op for e in best.module.main.expressions()]
    assert operators.count("call_tir") == 1 and "matmul" in operators  # of other kernels operators are left
    (found,) = best.compile("h100").programs
    assert (found.execution, len(found.executables), found.kinds["Pallas"]) == ("whole", 1, 1)
    assert found.temporary_bytes < 16 * 2048 * 2048 * 4 // 10  # no scores
    best.save(tmp_path / "m.rxe")
    (again,) = rx.load(tmp_path / "m.rxe").compile("h100").programs
    assert again.kinds == found.kinds
    best.explain()  # raises where a step does not hold
    exact = rx.optimize(block, *BLOCK, numerics="exact", **options)
    assert "call_tir" not in [e.op for e in exact.module.main.expressions()]


@with_plugin
def test_a_kernel_inside_a_program_that_does_not_compile_is_left_to_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    from relax_eg.backend.pallas import programs

    best = rx.optimize(block, *BLOCK, at={"s": 2048}, target="h100", measure="off")
    monkeypatch.setattr(programs.triton, "CompilerParams", lambda **_: 1 / 0)
    (found,) = best.compile("h100").programs
    assert best.report.searched_for.endswith("with kernels through Pallas") and "Pallas" not in found.kinds


def test_where_kernels_of_ours_are_lowered_in_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """In calls, and in programs around them; their derivatives are XLA's."""
    made: list[Pallas] = []

    def interpreting(cls: type[Pallas], wanted: bool) -> Pallas | None:
        made.append(Pallas(interpret=True, compiles=lambda lowered: None))
        return made[-1] if wanted else None

    monkeypatch.setattr(Pallas, "for_default_device", classmethod(interpreting))
    specs: Any = dict.fromkeys("qkvo", "1024 1024"), "s 1024"
    options: Any = {"at": {"s": 2048}, "target": "h100", "measure": "off", "dynamic": "exact"}
    best = rx.optimize(block, *specs, weights=("p",), **options)
    assert best.report.searched_for == OWN
    p = {n: 0.03 * jax.random.normal(jax.random.key(i), (1024, 1024)) for i, n in enumerate("qkvo")}
    x = jax.random.normal(jax.random.key(9), (48, 1024))
    want, ready = block(p, x), best.prepare(p)
    for _ in range(2):
        np.testing.assert_allclose(ready(x), want, rtol=1e-3, atol=1e-5)
    assert len([name for pallas in made for name in pallas.taken]) == 1
    slope = jax.grad(lambda x: ready(x).sum())(x)
    np.testing.assert_allclose(slope, jax.grad(lambda x: block(p, x).sum())(x), rtol=1e-2, atol=1e-4)
    np.testing.assert_allclose(jax.vmap(ready)(x[None])[0], want, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(jax.jit(lambda x: 2 * ready(x))(x), 2 * want, rtol=1e-3, atol=2e-5)
    made_of = str(jax.make_jaxpr(ready)(x))
    assert "pallas_call" in made_of and "exp" in made_of


@with_plugin
def test_a_whole_program_and_what_is_told_of_it(tmp_path: Path) -> None:
    target = replace(profile("h100"), pallas=False)
    best = rx.optimize(attention, *("b 4 s 64 @ bfloat16",) * 3, at={"b": 1, "s": 256}, target=target)
    made = best.compile("h100", ptx=True)
    (found,) = made.programs
    (executable,) = found.executables
    assert found.at == {"b": 1, "s": 256} and found.execution == "whole"
    assert set(found.kinds) <= {"fusion", "Triton"} and found.seconds > 0 and found.unpriced == 0
    assert executable.argument_bytes == 3 * 4 * 256 * 64 * 2 and executable.result_bytes == 4 * 256 * 64 * 2
    assert executable.code_bytes > 0 and executable.compile_seconds > 0
    has_kernels = ".entry" in made.ptx
    assert has_kernels and jax.default_backend() == "cpu"
    data = json.loads(made.to_json(tmp_path / "made.json"))
    assert data["programs"][0]["executables"][0]["launches"][0]["kind"] in ("fusion", "Triton")
    text = str(made)
    for part in ("attention   for h100 (NVIDIA H100 80GB HBM3", "XLA estimates", "predicted for h100"):
        is_told = part in text
        assert is_told, text


@with_plugin
def test_sizes_weights_and_capacities() -> None:
    best = rx.optimize(mlp, MLP, "n 64", weights=("p",), at={"n": 100}, target="h100")
    first, second = best.compile("h100", at=[{"n": 100}, {"n": 77}]).programs
    assert (first.at, dict(first.capacities)) == ({"n": 100}, {})
    assert (second.at, dict(second.capacities)) == ({"n": 77}, {"n": 128})
    assert first.predicted is not None and second.predicted is None  # prices are those of exact sizes


@pytest.mark.slow
@with_plugin
def test_saved_files_families_and_one_capacity(tmp_path: Path) -> None:
    best = rx.optimize(mlp, MLP, "n 64", weights=("p",), at={"n": 100}, target="h100")
    (first,) = best.compile("h100", at={"n": 100}).programs
    padded = rx.optimize(mlp, MLP, "n 64", at={"n": 128}, bounds={"n": (1, 128)}, dynamic="capacity", target="h100")
    (third,) = padded.compile("h100").programs
    assert dict(third.capacities) == {"n": 128} and third.predicted is None
    best.save(tmp_path / "mlp.rxe")
    (loaded,) = rx.load(tmp_path / "mlp.rxe").compile("h100").programs
    assert loaded.kinds == first.kinds and loaded.at == first.at
    family = rx.optimize(mlp, MLP, "n 64", at=[{"n": 1}, {"n": 512}], bounds={"n": (1, 512)}, target="h100")
    assert [p.at for p in family.compile("h100").programs] == [{"n": 1}, {"n": 512}]


@with_plugin
def test_a_device_for_which_xla_has_no_table_has_no_estimates() -> None:
    best = rx.optimize(mlp, MLP, "8 64", target="a100")
    made = best.compile("a100")
    assert made.no_estimates == "XLA has no table of matmuls for a100"
    assert made.programs[0].launches and made.programs[0].unpriced == made.programs[0].launches


@with_plugin
def test_a_kernel_that_does_not_compile_is_left_to_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    from relax_eg.backend.pallas import programs

    def broken(*args: Any) -> Any:
        raise ValueError("no such instruction")

    monkeypatch.setattr(programs, "_call_kernel", broken)
    best = rx.optimize(attention, *("1 4 256 64",) * 3, execution="kernels", target="h100")
    (found,) = best.compile("h100").programs
    assert list(found.left.values()) == ["Pallas failed: ValueError: no such instruction"]
    assert "Pallas" not in found.kinds and found.launches > 1


@pytest.mark.slow
@with_plugin
def test_cudnn_without_its_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    given = (jax.nn.dot_product_attention, *("1 2048 8 64 @ bfloat16",) * 3)
    monkeypatch.setattr(libraries, "_has_cudnn", lambda: True)
    chosen = rx.optimize(*given, target="h100")
    assert [r.name for r in chosen.report.libraries] == ["cudnn.attention"]
    monkeypatch.setattr(libraries, "_has_cudnn", lambda: False)
    (found,) = chosen.compile("h100").programs  # was chosen where the package is
    assert dict(found.missing) == {
        "cudnn.attention": "library `cudnn.attention` is missing: XLA compiles it with nvidia-cudnn-cu12, which is not "
        "installed, and no GPU is here; its pattern is compiled instead"
    }
    best = rx.optimize(*given, target="h100")
    (found,) = best.compile("h100").programs
    assert not found.missing and found.predicted is not None
    assert (found.launches, found.temporary_bytes) == (found.predicted.launches, found.predicted.temporary_bytes)


@with_plugin
def test_sizes_that_are_missing_or_too_large() -> None:
    best = rx.optimize(mlp, MLP, "n 64", bounds={"n": (1, 1 << 40)}, rules=rx.RuleSet("none"))
    for at, text in (
        (None, "compile(): mlp() has the sizes n, and at=None; at={'n': 128} is accepted"),
        ({"m": 3}, "compile(): mlp() has the sizes n, and at={'m': 3}; at={'n': 128} is accepted"),
        ({"n": 1 << 30}, "compile(): mlp() at n=1073741824 needs 512 GiB (256 GiB for arguments, 256 GiB for results); "
                         "h100 has 79.11 GiB\n  accepted: sizes at which it fits"),
    ):  # fmt: skip
        with pytest.raises(OptionError) as e:
            best.compile("h100", at=at)
        assert str(e.value).replace("256.0", "256") == text
    with pytest.raises(BoundsError):
        best.compile("h100", at={"n": 0})
    kernels = rx.optimize(lambda x: jax.nn.relu(x @ x.T) @ x, "n 64", at={"n": 128}, execution="kernels", target="a100")
    with pytest.raises(OptionError) as e:
        kernels.compile("h100", at={"n": 1 << 19})
    is_told = "for what lies between its kernels, as planned); h100 has 79.11 GiB" in str(e.value)
    assert is_told, str(e.value)


UNIQUE = """
def main(x: R.Tensor(("n",), "float32")):
    y = R.unique(x)
    return y
"""


@with_plugin
def test_a_function_in_steps_is_refused() -> None:
    with pytest.raises(OptionError) as e:
        rx.optimize(rx.parse(UNIQUE)).compile("h100", at={"n": 8})
    assert str(e.value) == (
        "compile(): main() runs in steps, of which each depends on values of the one before; a function that is one "
        "XLA program or a list of kernels is accepted"
    )


@with_plugin
@with_plugin
def test_compiling_leaves_the_process_as_it_was() -> None:
    code = (
        "import os, relax_eg as rx; from relax_eg.backend.gpu.target import target_for; target_for('h100'); "
        "import jax; assert jax.default_backend() == 'cpu'; "
        "assert 'JAX_SKIP_CUDA_CONSTRAINTS_CHECK' not in os.environ and 'XLA_FLAGS' not in os.environ; "
        "rx.optimize(lambda x: x @ x, '64 64').compile('h100')"
    )
    env = {k: v for k, v in os.environ.items() if k not in ("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "XLA_FLAGS")}
    ran = subprocess.run([sys.executable, "-c", code], check=True, env=env, capture_output=True, text=True)
    assert ran.stderr == ""


def test_the_command_names_the_nearest_device() -> None:
    result = CliRunner().invoke(app, ["compile", "file.py:f", "--device", "h10"])
    is_told = "nearest: h100" in " ".join(result.output.split())
    assert is_told and result.exit_code == 1, result.output


# --- CUDA graphs, bytes, calls of routines ---

THUNKS = """000: kCommandBuffer [source | next=003 (1)]
    001: kCustomKernel [source | next=002 (1)] first grid: [1, 1, 1] threads: [32, 1, 1]  shared_memory: 0 bytes
    002: kCopy [prev=001 (1) | sink] kCopy
003: kWhile [prev=000 (1) | sink]
    004: kCustomKernel [source | sink] second grid: [1, 1, 1] threads: [32, 1, 1]  shared_memory: 0 bytes
    000: kCommandBuffer [prev=004 (1) | sink]
        005: kCustomKernel [source | sink] third grid: [1, 1, 1] threads: [32, 1, 1]  shared_memory: 0 bytes
"""


def test_graphs_are_read_from_thunks() -> None:
    assert graphs_of(THUNKS) == (2, 1)
    assert graphs_of("") == ()


def chained(x: Any, w: Any) -> Any:
    for _ in range(3):
        x = jax.nn.softmax(x @ w)
    return x


@with_plugin
def test_cuda_graphs_are_told_and_an_option_turns_them_off() -> None:
    best = rx.optimize(chained, "512 512", "512 512", rules=rx.RuleSet("none"), target="h100")
    made = best.compile("h100")
    (found,) = made.programs
    assert found.graphs == (found.launches,)
    is_told = f"CUDA graphs   1, of {found.launches} kernels" in str(made)
    assert is_told, str(made)
    off = next(m for m in rx.types.PROFILES["h100"].modes if m.name == "graphs off")
    target = target_for("h100")
    specs = [target.place(jax.ShapeDtypeStruct((512, 512), "float32"))] * 2
    with target.lowering():
        lowered = jax.jit(chained).lower(*specs)
    assert target.compile(lowered, {}).graphs == (found.launches,)
    assert target.compile(lowered, off.options).graphs == ()


@with_plugin
@pytest.mark.parametrize("launch", [1e-9, 1.0])
def test_the_mode_that_is_chosen_is_what_is_compiled(launch: float) -> None:
    """The price of a launch without graphs decides, for a profile that was measured."""
    usual = rx.types.PROFILES["h100"]
    off = next(m for m in usual.modes if m.name == "graphs off")
    off = dataclasses.replace(off, changes={**off.changes, "launch": launch})
    target = dataclasses.replace(usual, calibrated=True, modes=(off,), name="measured h100")
    specs = "512 512", "512 512", "512 512"

    def summed(x: Any, w: Any, v: Any) -> Any:
        return chained(x @ w + x @ v, w)

    best = rx.optimize(summed, *specs, target=target, measure="off")
    (made,), is_off = best.compile("h100").programs, launch < 1
    assert best.report.compiler_options == (off.options if is_off else {})
    assert dict(made.executables[0].options).items() >= best.report.compiler_options.items()
    assert ("xla_gpu_enable_command_buffer" in made.executables[0].options) == is_off
    assert made.graphs == (() if is_off else (made.launches,))


CALL = """HloModule m

ENTRY %main (q: bf16[2,64], k: bf16[2,64]) -> bf16[2,64] {
  %q = bf16[2,64]{1,0} parameter(0)
  %k = bf16[2,64]{1,0} parameter(1)
  ROOT %a = (bf16[2,64]{1,0}, u8[32]{0}) custom-call(%q, %k), custom_call_target="__cudnn$fmhaSoftmax", backend_config={"cudnn_fmha_backend_config":{"mask_type": "CAUSAL"}}
}
"""


def test_bytes_of_a_routine_are_without_its_workspace_and_its_call_is_read() -> None:
    (found,) = launches(CALL)
    assert (found.kind, found.bytes) == ("cuDNN", 3 * 2 * 64 * 2)
    assert custom_calls(CALL) == [CustomCall("__cudnn$fmhaSoftmax", ("bf16[2,64]", "bf16[2,64]"), "CAUSAL")]


SLICED = """HloModule m

%inside (p: f32[1024,8], i: s32[]) -> f32[1,8] {
  %p = f32[1024,8]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %part = f32[1,8]{1,0} dynamic-slice(%p, %i, %zero), dynamic_slice_sizes={1,8}
}

ENTRY %main (x: f32[1024,8], at: s32[]) -> f32[1,8] {
  %x = f32[1024,8]{1,0} parameter(0)
  %at = s32[] parameter(1)
  ROOT %slice_fusion = f32[1,8]{1,0} fusion(%x, %at), kind=kLoop, calls=%inside
}
"""


def test_a_slice_reads_what_it_takes() -> None:
    (found,) = launches(SLICED)
    assert found.bytes == 32 + 32 + 4


@with_plugin
def test_rules_of_cudnn_are_judged_by_what_is_compiled() -> None:
    ran = CliRunner().invoke(app, ["verify", "--device", "h100"])
    assert ran.exit_code == 0, ran.output
    lines = [line for line in ran.output.splitlines() if line.startswith("cudnn_attention")]
    names = [line.partition(":")[0] for line in lines]
    assert names == ["cudnn_attention", "cudnn_attention_mask", "cudnn_attention_bias", "cudnn_attention_causal"]
    has_cudnn = importlib.util.find_spec("nvidia.cudnn") is not None
    told = "for h100 to __cudnn$fmha" if has_cudnn else "missing: XLA compiles it with nvidia-cudnn-cu12, which is not"
    are_told = [told in " ".join(ran.output.split())]
    assert all(are_told), ran.output


def test_verify_for_an_unknown_device() -> None:
    ran = CliRunner().invoke(app, ["verify", "--device", "h10"])
    is_told = "device='h10': one of a100, h100" in " ".join(ran.output.split())
    assert ran.exit_code != 0 and is_told, ran.output
