"""The arrays that an optimized model holds for its weights, and their place in a file.

The program in a file lists them with dtypes, shapes and checksums. Their bytes follow the executables, one array after
the other, so the file must hold as many bytes as it lists.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from relax_eg.backend.calls.program import Program
from relax_eg.dtypes import NUMBERS, numpy_dtype
from relax_eg.plain_data import read_record as checked
from relax_eg.shapes import Dim
from relax_eg.store import checksum

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class HeldArrays:
    """The arrays of a model's weights.

    - `arrays`: by name.
    - `inputs`: the number of the other arguments.
    - `outputs`: the names of the results.
    """

    arrays: Mapping[str, Array]
    inputs: int
    outputs: tuple[str, ...]

    @property
    def bytes(self) -> int:
        return sum(a.nbytes for a in self.arrays.values())


@dataclass(frozen=True, slots=True)
class _Listed:
    name: str
    dtype: str
    shape: tuple[int, ...]
    sum: str


def as_parts(held: HeldArrays) -> tuple[dict[str, Any], list[bytes]]:
    """What a file says of the arrays, as plain data, and their bytes."""
    arrays = {name: np.ascontiguousarray(a) for name, a in held.arrays.items()}
    parts = [a.tobytes() for a in arrays.values()]
    listed = [
        [name, a.dtype.name, list(np.shape(held.arrays[name])), checksum(part).hex()]
        for (name, a), part in zip(arrays.items(), parts, strict=True)
    ]
    return {"weights": listed, "outputs": list(held.outputs)}, parts


def read_held(data: Any, program: Program, part: Callable[[int, bytes], bytes]) -> HeldArrays | None:
    """The arrays that a file lists in `data`; None if it lists none.

    - `part`: takes bytes from the file by their length and checksum.

    ValueError unless each is one of the program's parameters, with its dtype and shape.
    """
    if data is None:
        return None
    rows = checked(tuple[tuple[str, str, tuple[int, ...], str], ...], data["weights"], "weights")
    outputs = checked(tuple[str, ...], data["outputs"], "outputs")
    namedtuple("Results", outputs)  # type: ignore[reportUntypedNamedTuple]  # ValueError for names that are no fields
    params = {str(p.attr("name")): p for p in program.params}
    arrays: dict[str, Array] = {}
    for row in (_Listed(*r) for r in rows):
        if row.name not in params or row.name in arrays or row.dtype not in NUMBERS:
            raise ValueError(f"it holds an array {row.name!r} of {row.dtype}, which is no parameter, or twice")
        wanted = params[row.name].tensor
        if wanted.dtype != row.dtype or wanted.shape != tuple(map(Dim.of, row.shape)):
            shape = ", ".join(map(str, row.shape))
            raise ValueError(
                f"its array {row.name!r} is {row.dtype} of shape ({shape}); the program takes {wanted.short}"
            )
        dtype = numpy_dtype(row.dtype)
        found = part(math.prod(row.shape) * dtype.itemsize, bytes.fromhex(row.sum))
        arrays[row.name] = np.frombuffer(found, dtype).reshape(row.shape)
    return HeldArrays(arrays, len(params) - len(arrays), outputs)
