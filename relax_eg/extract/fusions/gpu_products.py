"""How XLA's compiler for GPUs runs a matmul, by its sizes: as a sum of products, in parts of its depth, or joined."""

from __future__ import annotations

import math
from dataclasses import dataclass

# given: products up to which XLA computes a matrix times a vector as a sum of products (dot strength reduction)
_FEW_PRODUCTS = 10_000_000
# given: bytes of operands and result up to which XLA joins matmuls of one operand (xla_gpu_dot_merger_threshold_mb)
SMALL = 64 << 20
_TILE = 128  # given: sides of the tiles by which XLA's choice of parts counts
_MOST_PARTS = 11  # given: it tries powers of 2 up to this one
# given: weights of XLA's choice of parts (SplitkRewriter): of a product, of a byte of the matmul, of a byte of the sum
# of its parts, and of the launch of that sum, by the GPU's generation
_WEIGHTS = {
    "ampere": (100.0, 0.0666955, 467.815, 5.65307e7),
    "hopper": (100.0, 0.194136, 193.1384, 4.36e7),
    "blackwell": (100.0, 0.0848863, 189.711, 1.21563e8),
}
_GENERATIONS = {"h100": "hopper", "h200": "hopper", "b200": "blackwell"}
# given: clocks/s of GPUs by the data sheets; of others those of an A100
_CLOCKS = {"h100": 1.98e9, "h200": 1.98e9, "a100": 1.41e9, "b200": 1.97e9, "rtx4090": 2.52e9, "l4": 2.04e9}
_READ = 32  # given: bytes that a block reads in a clock, in XLA's model of fusions


@dataclass(frozen=True, slots=True)
class Product:
    """A batch of matmuls.

    - `batch`, `rows`, `columns`, `depth`: their number and sizes.
    - `itemsize`: bytes of an element of the operands.
    - `written`: bytes of an element of the result.
    """

    batch: float
    rows: float
    columns: float
    depth: float
    itemsize: int
    written: int

    @property
    def elements(self) -> float:
        """Elements of the result."""
        return self.batch * self.rows * self.columns

    @property
    def is_sum(self) -> bool:
        """Whether XLA computes it as a sum of products, fused like any reduction."""
        if self.rows > 1 and self.columns > 1:
            return False
        return self.batch > 1 or (self.rows <= 1 and self.columns <= 1) or self.elements * self.depth < _FEW_PRODUCTS

    @property
    def bytes(self) -> float:
        """Bytes of operands and result."""
        sides = self.batch * self.depth * (self.rows + self.columns)
        return sides * self.itemsize + self.elements * self.written


def generation_of(name: str) -> str:
    """The generation of the GPU whose profile has this name, as XLA weighs parts by it."""
    return next((g for n, g in _GENERATIONS.items() if n in name), "ampere")


def block_bandwidth(name: str) -> float:
    """Bytes/s that a block reads at most, on the GPU whose profile has this name."""
    return _READ * next((clock for n, clock in _CLOCKS.items() if n in name), _CLOCKS["a100"])


def parts_of_depth(m: Product, name: str, cores: float) -> int:
    """Into how many parts XLA cuts the depth of a matmul (split-K), whose results another kernel adds up.

    - `name`: the name of the GPU's profile.
    - `cores`: its multiprocessors.
    """
    weights = _WEIGHTS[generation_of(name)]
    return min((2**i for i in range(_MOST_PARTS + 1)), key=lambda parts: _cost(m, parts, cores, weights))


def _cost(m: Product, parts: int, cores: float, weights: tuple[float, float, float, float]) -> float:
    computing, moving, adding, launching = weights
    depth = math.ceil(m.depth / parts)
    rows, columns = min(m.rows, _TILE), min(m.columns, _TILE)
    tiles = m.batch * parts * math.ceil(m.rows / _TILE) * math.ceil(m.columns / _TILE)
    waves = max(1.0, tiles / (cores * _TILE * _TILE / (rows * columns)))
    computed = 2 * rows * columns * depth * waves * computing
    partial = 4 if parts > 1 else m.written  # given: bytes of a float32, in which parts are added
    read = m.batch * m.depth * (m.rows + m.columns) * m.itemsize
    found = max(computed, (read + m.elements * parts * partial) * moving)
    if parts == 1:
        return found
    return found + launching + (m.elements * parts * 4 + m.elements * m.written) * adding
