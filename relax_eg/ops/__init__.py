"""The operator table: one record per operator, from which every part of the compiler reads what it needs."""

from relax_eg.ops import (
    contraction,
    creation,
    elementwise,
    gathering,
    linalg,
    movement,
    nn,
    reduction,
    scans,
    sorting,
    special,
    windows,
)
from relax_eg.ops.record import (
    TABLE,
    Attribute,
    Operator,
    Site,
    bytes_of,
    call,
    counts,
    deduce,
    get,
    pattern_kind,
    program_of,
    site_of,
)

FAMILIES = (
    elementwise,
    special,
    contraction,
    reduction,
    scans,
    windows,
    movement,
    gathering,
    sorting,
    creation,
    nn,
    linalg,
)

__all__ = [
    "FAMILIES",
    "TABLE",
    "Attribute",
    "Operator",
    "Site",
    "bytes_of",
    "call",
    "counts",
    "deduce",
    "get",
    "pattern_kind",
    "program_of",
    "site_of",
]
