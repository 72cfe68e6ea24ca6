"""What kernels allocate for themselves: measured on their executables or estimated, and planned as workspaces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

import relax_eg as rx
from relax_eg import ir
from relax_eg.backend import accounting
from relax_eg.backend.kernels import InKernels, KernelRunner
from relax_eg.cli import app
from relax_eg.errors import MemoryPlanError, OptionError
from relax_eg.memory.files import load, save
from relax_eg.memory.temporaries import estimate_temporaries, measure_temporaries
from relax_eg.shapes import Dim
from relax_eg.tir import parse_program

pytestmark = pytest.mark.xla_defaults

AT = {"b": 1, "n": 64}
KERNEL = "fused_matmul_softmax_matmul"


def attention(q: Any, k: Any, v: Any, w: Any) -> Any:
    scores = jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", q, k))
    return jnp.einsum("bhqk,bhkd->bhqd", scores, v) @ w


@pytest.fixture(scope="module")
def best() -> InKernels:
    found = rx.optimize(attention, *["b 4 n 32"] * 3, "32 64", at=AT, execution="kernels")
    assert isinstance(found, InKernels)
    return found


def spaces(plan: rx.types.Plan) -> dict[str, int]:
    """Bytes of each kernel's own memory, by name, where that is any."""
    return {s.name: n for s, n in zip(plan.program.steps, plan.inside_at(plan.at), strict=True) if n}


def test_what_executables_allocate_is_part_of_the_plan(best: InKernels) -> None:
    plan = rx.plan_memory(best, at=AT, check=True)
    told = best.temporary_bytes(AT)
    assert (plan.temporaries.source, plan.temporaries.at) == ("measured", AT)
    assert spaces(plan) == {name: n for name, n in told.items() if n} and told[KERNEL] >= 4 * 4 * 64 * 64
    # Each is there in its step alone, and what is needed at once is what lives and what the kernel has for itself.
    own = [x for x in plan.live.lifetimes if x.role == "workspace"]
    assert [(x.start, x.end) for x in own] == [(s.number, s.number) for s in plan.program.steps if told[s.name]]
    none = rx.plan_memory(best, at=AT, temporary="none")
    steps = zip(none.live.at(AT), plan.live.at(AT), plan.inside_at(AT), strict=True)
    assert all(live + inside == needed for live, needed, inside in steps)
    # XLA has it, so it takes none of the storages.
    assert plan.storages == none.storages and spaces(none) == {}
    assert plan.peak_at(AT) == none.bytes_at(AT) + max(told.values())
    # An arena has room for it.
    packed = plan.laid_out("arena")
    assert packed.check([AT]) == [] and packed.peak_at(AT) == packed.bytes_at(AT) >= packed.bound_at(AT)
    assert spaces(packed) == spaces(plan) and all(x.values[0] in packed.places for x in own)
    assert f"inside {KERNEL} (measured at b = 1, n = 64)" in str(plan)
    assert "temporaries    none (only what the module states)" in str(none)


def test_a_call_tells_its_memory_as_it_runs(best: InKernels) -> None:
    plan, call = best.runner.measured_plan(AT), best.runner.call(AT)
    assert plan.order.steps == call.plan.order.steps and plan.placement == call.plan.placement
    assert spaces(plan) == {name: n for name, n in best.runner.temporary_bytes(AT).items() if n}
    assert plan.check([AT]) == [] and plan.bound_at(AT) > call.plan.bound_at(AT)


def test_what_was_measured_is_exact_there_and_in_proportion_elsewhere(best: InKernels) -> None:
    plan = rx.plan_memory(best, at=AT, check=True)
    space = next(x for x in plan.program.values if x.name == f"{KERNEL}.temporary")
    assert space.bytes is not None and space.bytes.evaluate(AT) == best.temporary_bytes(AT)[KERNEL]
    twice, both = (int(space.bytes.evaluate(s)) for s in ({"b": 2, "n": 64}, {"b": 2, "n": 128}))
    assert twice == pytest.approx(2 * best.temporary_bytes(AT)[KERNEL], abs=8)
    assert 1.0 <= both / best.temporary_bytes({"b": 2, "n": 128})[KERNEL] < 1.5  # XLA adds less than the scores grow


def test_with_bounds_it_is_measured_where_most_is_needed(best: InKernels) -> None:
    plan = rx.plan_memory(best, bounds={"b": (1, 2), "n": (1, 64)}, at=AT, layout="arena", check=True)
    assert plan.static and plan.temporaries.at == {"b": 2, "n": 64}
    assert int(plan.bytes) >= best.temporary_bytes({"b": 2, "n": 64})[KERNEL]


def test_an_estimate_is_near_what_is_measured(best: InKernels) -> None:
    plan = rx.plan_memory(best, at=AT, temporary="estimated", check=True)
    assert plan.temporaries.source == "estimated" and "(estimated from the equations)" in str(plan)
    # The scores, and one number of each row: the largest; their sum comes when that is gone.
    assert plan.temporaries.of_step[KERNEL] == Dim.of("16*b*n*n + 16*b*n")
    accounted = KernelRunner(best.module, accounting.FRUGAL)  # compiled so that XLA's account leaves nothing out
    assert spaces(plan)[KERNEL] == pytest.approx(accounted.temporary_bytes(AT)[KERNEL], rel=0.35)
    assert accounted.temporary_bytes(AT)[KERNEL] <= best.temporary_bytes(AT)[KERNEL]


def test_what_ends_where_the_result_is_counts_nothing() -> None:
    module = rx.trace(lambda x, w: jnp.tanh(x @ w) + 1.0, "n 8", "8 16")
    kernels = rx.optimize(module, at={"n": 8}, execution="kernels").module
    plan = rx.plan_memory(kernels, temporary="estimated", check=True)
    assert len(plan.program.steps) == 1 and spaces(plan) == {}


STATED = parse_program("""
def attention(Q: rx.Buffer("n 64"), K: rx.Buffer("n 64"), V: rx.Buffer("n 64"), Y: rx.Buffer("n 64")):
    S = rx.script.workspace("n n")
    S[i, j] = exp(sum(Q[i, k] * K[j, k], over=k) / 8.0)
    Y[i, c] = sum(S[i, j] * V[j, c], over=j) / sum(S[i, l], over=l)
""")


def test_a_workspace_that_the_module_states_is_counted_once() -> None:
    params = [ir.var(n, ir.Tensor("n 64")) for n in "qkv"]
    module = ir.Module((ir.pure_function("main", params, [ir.call_tir(STATED, params)]),))
    own = KernelRunner(module).temporary_bytes({"n": 128})
    stated = 4 * 128 * 128
    program = rx.memory.program_of(module)
    assert own["attention"] >= stated
    found = measure_temporaries(program, own, {"n": 128}, at_only=True)
    assert found.of_step.get("attention", Dim.of(0)) == own["attention"] - stated
    assert measure_temporaries(program, {"attention": 100}, {"n": 128}).of_step == {}
    assert estimate_temporaries(program, {"n": 128}).of_step["attention"] == 0  # beside what is stated


def test_what_a_loop_runs_is_counted_once() -> None:
    def run(x: Any) -> Any:
        return jax.lax.fori_loop(0, 5, lambda _, c: jnp.sin(c @ c), x)

    best = rx.optimize(run, "n n", at={"n": 32}, execution="kernels")
    assert isinstance(best, InKernels)
    plan = rx.plan_memory(best, at={"n": 32}, check=True)
    told, stated = best.temporary_bytes({"n": 32}), rx.plan_memory(best, at={"n": 32}, temporary="none")
    assert {name: max(n, spaces(stated).get(name, 0)) for name, n in told.items() if n} == spaces(plan)


def test_a_plan_file_holds_what_was_measured(best: InKernels, tmp_path: Path) -> None:
    plan, path = rx.plan_memory(best, at=AT), tmp_path / "plan.json"
    save(plan, path)
    assert load(path, best.module) == plan.placement
    data = json.loads(path.read_text())
    assert data["temporaries"]["source"] == "measured" and data["temporaries"]["at"] == AT
    for change, message in (
        (lambda d: d["bytes"].update({KERNEL: "4"}), "of other kernels"),
        (lambda d: d.update(at={"b": 9}), "changed after it was written"),
        (lambda d: d["bytes"].update({KERNEL: "n ++"}), "not a plan that can be followed"),
        (lambda d: d.update(bytes=3), "not a plan that can be followed"),
    ):
        changed = json.loads(path.read_text())
        change(changed["temporaries"])
        (tmp_path / "changed.json").write_text(json.dumps(changed))
        with pytest.raises(MemoryPlanError, match=message):
            load(tmp_path / "changed.json", best.module)


def test_what_cannot_be_measured_is_refused() -> None:
    module = rx.trace(lambda x: jnp.sin(x), "n")
    with pytest.raises(OptionError, match=r"there are no executables to look at; accepted: what optimize\(execution="):
        rx.plan_memory(module, temporary="measured")
    with pytest.raises(OptionError, match="temporary='all': 'measured', 'estimated', 'none' or a function of a step"):
        rx.plan_memory(module, temporary="all")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "how"),
    [
        ([], "(measured at n = 64)"),
        (["--temporary", "estimated"], "(estimated from the equations)"),
        (["--target", "a100"], "(estimated from the equations)"),
        (["--temporary", "none"], "none (only what the module states)"),
        (["--as-written"], "none (only what the module states)"),
    ],
)
def test_the_command_says_how_it_knows(options: list[str], how: str, tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text("import jax\n\ndef run(x, w):\n    return jax.nn.softmax(x @ w) @ w.T\n")
    words = ["plan", f"{model}:run", "--spec", "n 16", "--spec", "16 32", "--bounds", "n=:64", *options]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert how in result.output


def test_kernels_of_one_text_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    original = jax.stages.Lowered.compile
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda self, *how: compiled.append("") or original(self, *how))
    x = jax.ShapeDtypeStruct((64, 64), "float32")

    def bytes_of(scale: float, options: dict[str, str]) -> int:
        lowered = jax.jit(lambda x: jnp.sort(x @ x * scale), compiler_options=options).lower(x)
        return accounting.lowered_allocated_bytes(lowered, options)

    accounting._allocated_bytes.clear()  # pyright: ignore[reportPrivateUsage]
    first = bytes_of(2.0, {})
    assert first >= 64 * 64 * 4 and bytes_of(2.0, {}) == first and len(compiled) == 1
    for scale, options in ((3.0, {}), (2.0, accounting.FRUGAL), (2.0, accounting.FRUGAL)):
        bytes_of(scale, options)
    assert len(compiled) == 3
