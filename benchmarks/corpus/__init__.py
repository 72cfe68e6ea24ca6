"""The corpus: programs by subject, written after formulas of papers, libraries and notebooks, to try rules on.

`CORPUS` has them all by name. They were chosen with the rules in view, clumsy spellings included, and are no sample of
what people write. None is the left side of a rule under another name (`benchmarks.corpus.disguise`).
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
    library,
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
    library, formulas, exported,
)  # fmt: skip
CORPUS: dict[str, Program] = programs()

__all__ = ["CORPUS", "SUBJECTS", "Program"]
