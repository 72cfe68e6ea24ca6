"""The multiprocessors of the GPUs that are known by name: what a block of a kernel may take, and what it shares; what
kernels of the package's own take there."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Multiprocessors:
    """The multiprocessors of a GPU.

    - `count`: how many it has.
    - `threads`: most threads on one.
    - `registers`: registers of 32 bits of one.
    - `shared_bytes`: shared memory of one, bytes.
    - `block_shared_bytes`: the most of it that a block may have, bytes.
    - `products`: products of 16-bit floats, summed in float32, that the tensor cores of one compute in a clock; of
      float32 (as TF32) half as many.
    - `clock`: clocks in a second, boosted.
    """

    count: int
    threads: int
    registers: int
    shared_bytes: int
    block_shared_bytes: int
    products: int
    clock: float


@dataclass(frozen=True, slots=True)
class OwnKernels:
    """What a tensor program takes on a GPU as kernels of the package's own.

    - `seconds`: of all its kernels.
    - `launches`: of kernels.
    - `bytes`: that the kernels read and write.
    - `workspace`: bytes for the parts of sums, beside the program's own workspaces.
    """

    seconds: float
    launches: int
    bytes: int
    workspace: int


def _multiprocessors(count: int, threads: int, shared: int, products: int, megahertz: int) -> Multiprocessors:
    """`shared`: KiB of a multiprocessor, of which a block may have all but one."""
    return Multiprocessors(count, threads, 65536, shared << 10, (shared - 1) << 10, products, 1e6 * megahertz)


# given: CUDA's programming guide, table of technical specifications by compute capability (threads, registers, shared
# memory); the makers' data sheets (multiprocessors; dense rates of tensor cores over clock and multiprocessors; boost
# clock, megahertz)
MULTIPROCESSORS: dict[str, Multiprocessors] = {
    "a100": _multiprocessors(108, 2048, 164, 1024, 1410),
    "h100": _multiprocessors(132, 2048, 228, 2048, 1830),
    "h200": _multiprocessors(132, 2048, 228, 2048, 1830),
    "b200": _multiprocessors(148, 2048, 228, 4096, 1850),
    "rtx4090": _multiprocessors(128, 1536, 100, 256, 2520),
    "l4": _multiprocessors(58, 1536, 100, 512, 2040),
}
_LEAST = MULTIPROCESSORS["l4"]


def multiprocessors_of(name: str) -> Multiprocessors:
    """Those of the GPU whose name is a word of `name`, a driver's or a profile's; of any other GPU, the least."""
    words = {word.removeprefix("rtx") for word in re.findall(r"\w+", name.lower())}
    return next((found for n, found in MULTIPROCESSORS.items() if n.removeprefix("rtx") in words), _LEAST)
