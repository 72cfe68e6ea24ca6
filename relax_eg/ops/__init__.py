"""The operator table: one record per operator, from which every part of the compiler reads what it needs."""

# Each family puts its records into the table.
from relax_eg.ops import (
    contraction,
    creation,
    elementwise,
    factors,
    gathering,
    linalg,
    movement,
    nn,
    ordering,
    placing,
    pooling,
    random,
    reduction,
    sampling,
    scans,
    sorting,
    special,
    transfers,
    windows,
)
from relax_eg.ops.record import (
    TABLE,
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
