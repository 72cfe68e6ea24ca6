"""The loop level: tensor programs as index equations, their pattern kinds, costs and reference semantics."""

from relax_eg.tir.analyze import Counts, PatternKind, classify, count, workspace_bytes
from relax_eg.tir.compose import InlinedProgram, compose
from relax_eg.tir.evaluate import evaluate
from relax_eg.tir.exact import UNDEFINED
from relax_eg.tir.expr import (
    Apply,
    Cast,
    Const,
    Index,
    Read,
    Reduce,
    Scalar,
    Select,
    apply,
    axes,
    cast,
    const,
    index,
    integer_pow,
    is_loop,
    loop,
    loop_names,
    loop_of,
    loops,
    select,
    walk,
)
from relax_eg.tir.functions import FUNCTIONS
from relax_eg.tir.notation import (
    any_,
    argmax,
    argmin,
    equal,
    exp,
    less,
    less_equal,
    log,
    max_,
    maximum,
    min_,
    minimum,
    not_equal,
    prod_,
    reduce,
    rsqrt,
    sigmoid,
    sqrt,
    sum_,
    tanh,
    within,
)
from relax_eg.tir.program import Buffer, Stage, TensorProgram, compute, program, stage
from relax_eg.tir.ranges import margins, obligations
from relax_eg.tir.reader import parse_program, read_program
from relax_eg.tir.substitute import rebuild, substitute, with_parts
from relax_eg.tir.work import Contraction, Work, work
