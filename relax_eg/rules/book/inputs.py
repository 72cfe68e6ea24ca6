"""Values that depend on no input and on no size that varies: tables of sines, windows, kernels, random projections.

XLA folds operators of literals, but not those of `iota`, so it computes such a table at every call. A literal in its
place is read from memory. Extraction decides if that is faster; a comparison of two `iota` is not even proposed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from relax_eg.dtypes import itemsize, kind
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import CONSTANT, Expr, const, postorder, var
from relax_eg.ir.module import Function, Module
from relax_eg.ops import api as op
from relax_eg.ops.interpret import evaluate_within
from relax_eg.ops.record import TABLE, program_of, site_of
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schemas import FactsOf, ProgramQueries, Trial, main_of, schema, trial_of
from relax_eg.tir.analyze import stage_flops

_MOST_BYTES = 1 << 22  # limit: bytes of a literal, which programs, their files and the keys of the cache hold
_MOST_WORK = 1 << 28  # limit: flops and bytes of evaluating a value
_LEAST = 256  # chosen: elements of a value that is worth a literal
_FLOPS = 8  # chosen: flops of an element of a value that is worth a literal; a comparison of positions takes two
_FREE = "values without inputs"


def value_of_no_input(e: Expr, queries: ProgramQueries) -> Expr | None:
    """an expression of fixed sizes without inputs is its value"""
    if not _has_no_input(e, queries) or not isinstance(e.annotation, Tensor):
        return None
    readers = queries.readers(e)
    if readers and all(_has_no_input(r, queries) for r in readers):
        return None
    elements = math.prod(d.value for d in e.shape)
    if elements < _LEAST or elements * itemsize(e.dtype) > _MOST_BYTES or kind(e.dtype) not in "fiub":
        return None
    return None if _flops(e) < _FLOPS * elements or _is_folded(e) else _evaluated(e)


def _has_no_input(e: Expr, queries: ProgramQueries) -> bool:
    known = queries.once(_FREE, lambda _: dict[Expr, bool]())
    for x in postorder((e,), stop=known.__contains__):
        if x not in known:
            known[x] = x.op == CONSTANT or (_is_fixed(x) and all(known[a] for a in x.args))
    return known[e]


def _is_fixed(x: Expr) -> bool:
    return x.op in TABLE and isinstance(x.annotation, Tensor) and all(d.is_const for d in x.annotation.shape or ())


def _is_folded(e: Expr) -> bool:
    """Whether XLA folds the value: whether all its operators have equations and operands."""
    return all(x.op == CONSTANT or (x.args and program_of(site_of(x)) is not None) for x in postorder((e,)))


def _flops(e: Expr) -> float:
    """The flops of a value; infinite if an operator has no equations."""
    total = 0.0
    for x in postorder((e,)):
        made = program_of(site_of(x)) if x.op in TABLE else None
        if made is None and x.op != CONSTANT:
            return math.inf
        total += sum(stage_flops(s).value for s in made.stages) if made is not None else 0.0
    return total


def _evaluated(e: Expr) -> Expr | None:
    """The value as a view of a literal: an e-graph has no record of the rule that makes a leaf."""
    found = evaluate_within(Module((main_of((), e),)), (), _MOST_WORK)
    return None if found is None else op.squeeze(const(np.asarray(found)[None], e.dtype), 0)


def _why_not_the_value(e: Expr, proposed: Expr, facts: FactsOf, functions: Mapping[str, Function]) -> str:
    return "" if proposed is _evaluated(e) else "the literal is not what the expression evaluates to"


def _tables(rng: np.random.Generator) -> Trial:
    """A table of sines, times an input."""
    least = math.isqrt(_LEAST)
    rows, columns = int(rng.integers(least, least + 4)), int(rng.integers(least, least + 4))
    i = op.astype(op.iota((rows, columns), axis=0, dtype="int32"), "float32")
    j = op.astype(op.iota((rows, columns), axis=1, dtype="int32"), "float32")
    table = op.cos(op.sin(op.cos(i * j * float(rng.random()))))
    x = var("x", Tensor((rows, columns), "float32"))
    numbers = rng.standard_normal((rows, columns)).astype(np.float32)
    return trial_of((x,), table, (numbers,), "numpy", 1e-6, nodes=(*postorder((table * x,)),))


inputs = RuleSet(
    "inputs",
    schemas=(schema(value_of_no_input, "reassociate", ("inputs",), TABLE, (_tables,), prove=_why_not_the_value),),
)
