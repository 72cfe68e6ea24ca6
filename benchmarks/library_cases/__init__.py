"""Functions of JAX libraries, as people write them, for `benchmarks.libraries` and `tests.test_libraries`. They need
the packages of the extra `libraries`."""

from benchmarks.library_cases.case import REAL, SMALL, Case, Use
from benchmarks.library_cases.densities import DENSITIES
from benchmarks.library_cases.layers import LAYERS
from benchmarks.library_cases.recurrent import RECURRENT
from benchmarks.library_cases.solvers import SOLVERS
from benchmarks.library_cases.training import TRAINING

CASES: tuple[Case, ...] = (*LAYERS, *RECURRENT, *TRAINING, *SOLVERS, *DENSITIES)

__all__ = ["CASES", "REAL", "SMALL", "Case", "Use"]
