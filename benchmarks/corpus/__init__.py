"""Programs as people write them, by subject: what rules are for, and what they are tried on.

`CORPUS` has them all by name. None is the left side of a rule in disguise: they are formulas as papers, libraries and
notebooks have them, clumsy spellings included.
"""

from benchmarks.corpus import (
    algebra,
    attention,
    control,
    convolutions,
    exported,
    formulas,
    graphs,
    images,
    integers,
    kernels,
    losses,
    masks,
    norms,
    optimisers,
    probabilistic,
    ranking,
    recommenders,
    signals,
    statistics,
)
from benchmarks.corpus.program import Program, programs

SUBJECTS = (
    attention, norms, losses, convolutions, statistics, kernels, graphs, signals, control, algebra, recommenders,
    probabilistic, optimisers, integers, images, masks, ranking,
    formulas, exported,
)  # fmt: skip
CORPUS: dict[str, Program] = programs()

__all__ = ["CORPUS", "SUBJECTS", "Program"]
