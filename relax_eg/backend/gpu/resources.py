"""What a kernel takes of a multiprocessor: registers and spills as ptxas tells, shared memory as XLA does."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# given: a thunk in XLA's dump, after the spaces by which it is inside others
_THUNK = re.compile(r"^( *)\d+: k(\w+)", re.MULTILINE)
# given: the lines in which XLA's dump lists launches, and those of `ptxas -v`
_LAUNCH = re.compile(
    r"kCustomKernel \[[^\]]*\] (\S+) grid: \[(\d+), (\d+), (\d+)\] threads: \[(\d+), (\d+), (\d+)\]\s+"
    r"shared_memory: (\d+) bytes"
)
_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_STATIC = re.compile(r"(\d+) bytes smem")
_TARGET = re.compile(r"^\.target (\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class KernelResources:
    """What a kernel takes.

    - `name`: its name in PTX.
    - `blocks`: the blocks of its grid.
    - `threads`: the threads of a block.
    - `shared_bytes`: bytes of shared memory of a block.
    - `registers`: registers of a thread; None where there is no ptxas.
    - `spilled_bytes`: bytes of a thread that ptxas stores to memory for want of registers, stores and loads; None too.
    """

    name: str
    blocks: int
    threads: int
    shared_bytes: int
    registers: int | None = None
    spilled_bytes: int | None = None


def graphs_of(thunks: str) -> tuple[int, ...]:
    """The kernels and copies in each CUDA graph (command buffer) of a program, from the text of its thunks."""
    found: list[int] = []
    depth = -1  # of the graph around
    for at in _THUNK.finditer(thunks):
        if depth >= 0 and len(at[1]) > depth:
            found[-1] += 1
            continue
        depth = -1
        if at[2] == "CommandBuffer":
            depth = len(at[1])
            found.append(0)
    return tuple(found)


def resources_of(launches: str, ptx: Sequence[str]) -> tuple[KernelResources, ...]:
    """The resources of the kernels that XLA lists in the text `launches` of its dump, from their texts in PTX."""
    told = dict(found for text in ptx for found in _told(text))
    kernels: dict[str, KernelResources] = {}
    for at in _LAUNCH.finditer(launches):
        blocks, threads = (int(at[n]) * int(at[n + 1]) * int(at[n + 2]) for n in (2, 5))
        registers, spilled, static = told.get(at[1], (None, None, 0))
        kernels[at[1]] = KernelResources(at[1], blocks, threads, int(at[8]) + static, registers, spilled)
    return tuple(kernels.values())


def _told(ptx: str) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Of each kernel in a text: its name; registers, spilled bytes and bytes of static shared memory, by ptxas."""
    target, command = _TARGET.search(ptx), _ptxas()
    if target is None or not command:
        return
    with tempfile.TemporaryDirectory(prefix="relax_eg") as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        out = str(Path(folder, "kernel.cubin"))
        ran = subprocess.run(
            [command, "-v", f"-arch={target[1]}", str(source), "-o", out], capture_output=True, text=True, check=False
        )
    for part in _entries(ran.stderr):
        name, spills, registers = _ENTRY.search(part), _SPILLS.search(part), _REGISTERS.search(part)
        if name is not None and spills is not None and registers is not None:
            static = _STATIC.search(part)
            yield name[1], (int(registers[1]), int(spills[2]) + int(spills[3]), int(static[1]) if static else 0)


def _entries(text: str) -> list[str]:
    """The parts of what ptxas told, one for each kernel."""
    starts = [m.start() for m in _ENTRY.finditer(text)]
    return [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=False)]


def _ptxas() -> str:
    """The path of ptxas: that of the package with which XLA compiles, or the one of the system; "" for none."""
    try:
        package = importlib.util.find_spec("nvidia.cuda_nvcc")
    except ModuleNotFoundError:
        package = None
    for folder in package.submodule_search_locations or () if package is not None else ():
        if (path := Path(folder, "bin", "ptxas")).is_file():
            return str(path)
    return shutil.which("ptxas") or ""
