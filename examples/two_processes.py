"""Two processes train one model on a mesh of their devices, over loopback, and restore its state on another mesh.

    python -m examples.two_processes [--steps 5] [--kill] [--port 12355]

The command starts both. Each has four CPU devices, joins the other by `jax.distributed`, finds the same placements for
the same step, and runs it in JAX's SPMD. Process 0 saves the state with orbax; the command then restores it in one
process on a mesh of another shape. `--kill` ends process 1 after its second step: the command stops with an error that
says which process is gone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

PROCESSES, DEVICES = 2, 4
MESH, OTHER = "data=4, model=2", "data=2, model=4"
ROWS, INNER, OUTER = 64, 32, 128
_PATIENCE = 10  # seconds without a sign of life after which a process counts as gone
_LONGEST = 240  # seconds after which a process that does not end is stopped


def step(params: dict[str, Any], x: Any, y: Any) -> tuple[dict[str, Any], Any]:
    import jax
    import jax.numpy as jnp

    def loss(p: dict[str, Any]) -> Any:
        return jnp.mean((jax.nn.relu(x @ p["wi"]) @ p["wo"] - y) ** 2)

    value, gradient = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradient), value


def spread_step(mesh: str) -> Any:
    """The step on a mesh; both weights are split over its second axis."""
    import relax_eg as rx

    specs: Any = ({"wi": f"{INNER} {OUTER}", "wo": f"{OUTER} {INNER}"}, f"{ROWS} {INNER}", f"{ROWS} {INNER}")
    given = {"params['wi']": "R, S[1]", "params['wo']": "R, S[0]", "x": "S[0], R", "y": "S[0], R"}
    return rx.spread(step, *specs, mesh=mesh, target="cpu", inputs=given, state=("params",))


def arrays() -> tuple[dict[str, Any], Any, Any]:
    """The same arrays in every process."""
    import numpy as np

    rng = np.random.default_rng(0)
    wi, wo, x, y = (
        rng.normal(size=s).astype(np.float32) / 6
        for s in ((INNER, OUTER), (OUTER, INNER), (ROWS, INNER), (ROWS, INNER))
    )
    return {"wi": wi, "wo": wo}, x, y


def work(number: int, steps: int, port: int, folder: Path, kill: bool) -> None:
    """What one process does."""
    import jax

    jax.distributed.initialize(
        f"127.0.0.1:{port}", PROCESSES, number, heartbeat_timeout_seconds=_PATIENCE, initialization_timeout=60
    )
    best = spread_step(MESH)
    run = best.jit()
    params, x, y = best.place(*arrays())[0]
    for i in range(steps):
        if kill and number == 1 and i == 2:
            os._exit(9)  # as if the machine were gone
        params, loss = run(params, x, y)
        print(f"process {number}: step {i}, loss {float(loss):.6f}", flush=True)
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as saver:
        saver.save(folder / "state", params)
    print(f"process {number}: saved", flush=True)


def restore(folder: Path) -> None:
    """Restores the state in this process, on a mesh of another shape, and makes one more step."""
    import jax
    import orbax.checkpoint as ocp

    best = spread_step(OTHER)
    shardings = best.in_shardings[0]
    params, x, y = arrays()
    wanted = jax.tree.map(lambda w, s: jax.ShapeDtypeStruct(w.shape, w.dtype, sharding=s), params, shardings)
    with ocp.StandardCheckpointer() as saver:
        found = saver.restore(folder / "state", wanted)
    _, loss = best.jit()(found, x, y)
    print(f"restored on {OTHER}: loss {float(loss):.6f}")


def started(arguments: list[str], devices: int) -> subprocess.Popen[str]:
    flags = f"--xla_force_host_platform_device_count={devices}"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}
    command = [sys.executable, "-m", "examples.two_processes", *arguments]
    return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def main(
    steps: Annotated[int, typer.Option("--steps", help="Steps of training.")] = 5,
    kill: Annotated[bool, typer.Option("--kill", help="End process 1 after its second step.")] = False,
    port: Annotated[int, typer.Option("--port", help="The port on loopback.")] = 12355,
    number: Annotated[int, typer.Option("--process", hidden=True)] = -1,
    folder: Annotated[Path | None, typer.Option("--folder", hidden=True)] = None,
) -> None:
    """Train on a mesh of two processes, and restore the state on another mesh."""
    if folder is not None:
        work(number, steps, port, folder, kill) if number >= 0 else restore(folder)
        return
    with tempfile.TemporaryDirectory() as place:
        shared = ["--steps", str(steps), "--port", str(port), "--folder", place, *(["--kill"] if kill else [])]
        both = [started(["--process", str(i), *shared], DEVICES) for i in range(PROCESSES)]
        ends = _wait(both)
        for i, (code, out, err) in enumerate(ends):
            print(out, end="")
            if code and not (kill and i == 1):
                told = [x for x in err.splitlines() if "heartbeat" in x or "disconnect" in x or "Error" in x]
                print(f"process {i} stopped: {told[-1][:300] if told else err[-300:]}")
        gone = [i for i, (code, _, _) in enumerate(ends) if code]
        if gone:
            first = 1 if kill else gone[0]
            raise SystemExit(
                f"process {first} of {PROCESSES} is gone (exit code {ends[first][0]}), so the mesh {MESH} lacks its "
                f"{DEVICES} devices\n  accepted: start all processes again; the state of the last save is restored"
            )
        last = started(["--folder", place], PROCESSES * DEVICES)
        out, err = last.communicate(timeout=_LONGEST)
        print(out, end="")
        if last.returncode:
            raise SystemExit(err[-2000:])


def _wait(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Exit code and outputs of each process. Once one has failed, the others get some time to notice."""
    until = time.monotonic() + _LONGEST
    while any(p.poll() is None for p in processes) and time.monotonic() < until:
        if any(p.returncode for p in processes):
            until = min(until, time.monotonic() + 3 * _PATIENCE)
        time.sleep(0.2)
    for p in processes:
        if p.poll() is None:
            p.kill()
    return [(p.returncode or 0, *p.communicate()) for p in processes]


app = typer.Typer(add_completion=False)
app.command()(main)

if __name__ == "__main__":
    app()
