"""In which operands together an operator is linear, from its index equations: sums that stay partial pass it.

If an operator is linear in some operands and the others are the same on all devices, then what it makes of the partial
sums on each device is a partial sum of its result, up to rounding. So products with what is whole, sums of partial
sums, and whatever moves elements keep a sum partial, and it is sent where that is cheapest.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import combinations

from relax_eg.dtypes import dtype_of
from relax_eg.limits import MANY_KEPT
from relax_eg.tir.expr import Apply, Cast, Const, Read, Reduce, Scalar, Select, walk
from relax_eg.tir.program import TensorProgram
from relax_eg.traversal import made_from_below

_MOST_COMBINED = 4  # limit: operands of which all combinations are looked at; of more, each alone and all together

# The degree of a term in the partial operands: zero for all their values, the same for all, a linear function of them,
# or any other function.
_ZERO, _SAME, _LINEAR, _OTHER = range(4)


@lru_cache(MANY_KEPT)
def linear_operands(program: TensorProgram) -> tuple[tuple[int, ...], ...]:
    """The sets of operands, by position, in which together a program with one output is linear."""
    n = len(program.inputs)
    sizes = range(1, n + 1) if n <= _MOST_COMBINED else (1, n)
    return tuple(c for k in sizes for c in combinations(range(n), k) if is_linear(program, c))


def is_linear(program: TensorProgram, operands: Collection[int], narrows: bool = False) -> bool:
    """Whether the output of a program is linear in these operands together, up to rounding to its dtype.

    `narrows`: whether that dtype may lack values of the operands' dtypes, so that more than sums is rounded.
    """
    made = dtype_of(program.buffers[program.outputs[0]].dtype)
    if not narrows and not all(made.contains(dtype_of(program.inputs[i].dtype)) for i in operands):
        return False
    degrees = {b.name: _LINEAR if i in operands else _SAME for i, b in enumerate(program.inputs)}
    for stage in program.stages:
        if stage.scans:
            degrees[stage.output.name] = _SAME
            reads = (t for t in walk(stage.value) if isinstance(t, Read))
            degrees[stage.output.name] = _SAME if all(degrees[r.buffer] <= _SAME for r in reads) else _OTHER
        else:
            degrees[stage.output.name] = _degree(stage.value, degrees)
    return degrees[program.outputs[0]] == _LINEAR


def _degree(value: Scalar, buffers: dict[str, int]) -> int:
    """The degree of a term; `buffers` has those of what it reads. Children come first, without recursion."""
    known: dict[Scalar, int] = {}

    def degree(term: Scalar) -> int:
        return _of_children(term, [known[c] for c in term.children], buffers)

    return made_from_below(value, lambda term: term.children, degree, known)


def _of_children(term: Scalar, given: Sequence[int], buffers: dict[str, int]) -> int:
    """The degree of a term whose children have the degrees `given`."""
    if isinstance(term, Const):
        return _ZERO if term.value == 0 else _SAME
    if isinstance(term, Read):
        return buffers[term.buffer] if max(given, default=_ZERO) <= _SAME else _OTHER
    if isinstance(term, Select):
        return _added(given[1:]) if given[0] <= _SAME else _OTHER
    if isinstance(term, Apply):
        if term.fn in ("add", "subtract", "negative"):
            return _added(given)
        if term.fn == "multiply" and _ZERO in given:
            return _ZERO
        quotient = term.fn == "divide" and given[1] <= _SAME and dtype_of(term.dtype).kind in "fc"
        if (term.fn == "multiply" or quotient) and sorted(given) == [_SAME, _LINEAR]:
            return _LINEAR
    keeps = isinstance(term, Reduce) and term.kind == "sum"
    between_floats = isinstance(term, Cast) and dtype_of(term.arg.dtype).is_float and dtype_of(term.dtype).is_float
    if keeps or between_floats:
        return given[0]
    return _SAME if max(given, default=_SAME) <= _SAME else _OTHER


def _added(given: Sequence[int]) -> int:
    """The degree of a sum, and of one of several values: what is not zero has to be of one degree."""
    degrees = set(given) - {_ZERO}
    return _ZERO if not degrees else degrees.pop() if len(degrees) == 1 else _OTHER
