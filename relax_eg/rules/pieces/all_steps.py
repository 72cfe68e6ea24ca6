"""Loops written without a loop, so that proofs can compare them with what has none.

A step that uses nothing of the step before computes its results from its slices alone: each operator of the body
becomes a tensor program with one more axis, the steps. A value to which each step adds such a result is the sum over
that axis; likewise products and extremes.

Proofs go operator by operator. If an operator, applied to the pieces of some values, is shown to give the pieces of
what it gives of the whole values, then these pieces stand for its result in what follows. So a proof is as long as its
longest step. Of the padding of the last pieces nothing is known: a value of its own stands for the results there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from relax_eg.ir.annotations import Tensor
from relax_eg.ir.calls import call_sizes, inline_call
from relax_eg.ir.control import arguments_of, group_arguments, runs_of, steps_of
from relax_eg.ir.expr import CALL_TIR, CONSTANT, SCAN, TUPLE, TUPLE_GET, Expr, postorder, tuple_, var
from relax_eg.ir.expr import rebuild as rebuild_exprs
from relax_eg.ir.heads import CORE, with_operands
from relax_eg.ir.module import Function
from relax_eg.ir.tensor_calls import call_with_sizes
from relax_eg.ops import api as op
from relax_eg.ops.record import definition_of, position_promises, preconditions, program_of, site_of
from relax_eg.rules.pieces.slicing import joined, pieces_of
from relax_eg.rules.pieces.slicing import with_sizes as with_lengths
from relax_eg.rules.shared_parts import why_not_equal_over_shared
from relax_eg.shapes import Dim
from relax_eg.tir import Buffer, Scalar
from relax_eg.tir.expr import Read, Reduce, loop, walk
from relax_eg.tir.functions import identity
from relax_eg.tir.program import Stage, TensorProgram
from relax_eg.tir.substitute import rebuild, with_parts, with_sizes
from relax_eg.traversal import grouped

# By the operator with which a step adds to a value: the reduction over all steps, and its kind.
_OVER_STEPS = {
    "add": (op.sum, "sum"),
    "multiply": (op.prod, "prod"),
    "maximum": (op.max, "max"),
    "minimum": (op.min, "min"),
}


_PROVING = 3.0  # limit: seconds of processor time of the proof of one operator


class StepsDepend(Exception):
    """Raised if a loop cannot be written without one; the text says why."""


@dataclass(frozen=True)
class _Value:
    """A value of a body, in all steps: `whole` has them along its first axis if `has_steps`, else it is the same in
    each."""

    whole: Expr
    has_steps: bool


def without_loops(e: Expr, functions: Mapping[str, Function], kept: Collection[Expr] = ()) -> Expr:
    """Returns `e` with its loops written without one, but for those among `kept`, the other side of a proof.
    StepsDepend if that cannot be done."""
    precisions = {p for x in kept for p in _precisions(x)}
    by_operator = grouped((x.op, x) for x in kept)
    return _Rewriting(functions, precisions, by_operator).of((e,), kept)[0]


@dataclass(frozen=True)
class _Rewriting:
    """Loops written without one.

    - `functions`: those of the module.
    - `precisions`: those that products in loops may ask for.
    - `known`: the values of the other side, by operator.
    - `wholes`: by value in all steps, the value of the other side of which it is the pieces.
    """

    functions: Mapping[str, Function]
    precisions: Collection[str]
    known: Mapping[str, Sequence[Expr]]
    wholes: dict[Expr, Expr] = field(default_factory=dict[Expr, Expr])

    def of(self, roots: Sequence[Expr], kept: Collection[Expr] = ()) -> list[Expr]:
        def in_all_steps(x: Expr, args: tuple[Expr, ...]) -> Expr:
            if x.op == TUPLE_GET and args[0].op == TUPLE:
                return args[0].args[x.attr("index")]
            return tuple_(self._all_steps(x, args)) if x.op == SCAN else with_operands(x, args)

        return rebuild_exprs(roots, in_all_steps, {x: x for x in kept})

    def _all_steps(self, e: Expr, args: Sequence[Expr]) -> list[Expr]:
        """The results of a `scan` with these operands."""
        parts, attrs = group_arguments(SCAN, args, dict(e.attrs)), dict(e.attrs)
        body = self.functions.get(str(parts.functions[0].attr("name")))
        if body is None or not body.is_one_block or e.attr("reverse"):
            raise StepsDepend("the body of a loop is not known, or its steps run backwards")
        (run,) = runs_of(SCAN, [a.annotation for a in args], attrs)
        sizes = call_sizes([p.annotation for p in body.params], arguments_of(run))
        length = steps_of(SCAN, attrs)
        assert length is not None, "the number of steps of a scan is known"
        results = self.of(inline_call(body, body.params))
        fixed, carried = len(parts.constants), len(parts.carry)
        totals = body.params[fixed : fixed + carried]
        made = {p: _Value(a, False) for p, a in zip(body.params, parts.constants, strict=False)}
        for p, a in zip(body.params[fixed + carried :], parts.xs, strict=True):
            made[p] = _Value(a, True)
            self._note_pieces(a, length)
        pieces = list(map(_added, results[:carried], totals, parts.carry))
        for x in postorder((*pieces, *results[carried:])):
            if x in totals:
                raise StepsDepend("a step uses what the step before hands on")
            if x not in made:
                made[x] = self._in_all_steps(x, [made[a] for a in x.args], sizes, length)
        found = [made[x] for x in (*pieces, *results[carried:])]
        if not all(v.has_steps for v in found):
            raise StepsDepend("a result of a step is the same in each")
        reductions = [_OVER_STEPS[x.op][0] for x in results[:carried]]
        return [
            *(over(v.whole, 0) for over, v in zip(reductions, found, strict=False)),
            *(v.whole for v in found[carried:]),
        ]

    def _in_all_steps(self, x: Expr, args: Sequence[_Value], sizes: Mapping[str, Dim], length: Dim) -> _Value:
        """A node of a body in all steps. `sizes`: what those of the body stand for."""
        if x.op == CONSTANT:
            return _Value(x, False)
        site = site_of(x)
        program = None if x.op in CORE and x.op != CALL_TIR else program_of(site) or definition_of(site)
        if program is None or len(program.outputs) != 1:
            raise StepsDepend(f"{x.op} has no index equations")
        if any(promised in x.args for promised, _ in position_promises((x,))):
            raise StepsDepend(f"{x.op} promises positions")
        if x.op != CALL_TIR and preconditions(x.op, site.operands, x.attrs):
            raise StepsDepend(f"{x.op} does not exist at all sizes")
        if any(p not in self.precisions for p in _precisions(x)):
            raise StepsDepend(f"{x.op} asks for another precision")
        if not program.sizes <= sizes.keys():
            raise StepsDepend("a step has sizes that its operands do not determine")
        has_steps = any(a.has_steps for a in args)
        if not has_steps and args and all(sizes[v] == Dim.var(v) for v in program.sizes):
            made = with_operands(x, tuple(a.whole for a in args))
        else:
            placed = with_sizes(program, {v: sizes[v] for v in program.sizes})
            placed = _with_steps(placed, [a.has_steps for a in args], length) if has_steps else placed
            made = call_with_sizes(placed, [a.whole for a in args] if placed.inputs else [])
        in_steps = made if has_steps else op.broadcast_to(made, (length, *made.shape))
        pieces = self._as_pieces(x, args, in_steps, length)
        return _Value(made, has_steps) if pieces is None else _Value(pieces, True)

    def _note_pieces(self, a: Expr, length: Dim) -> None:
        """Notes that a loop's operand is a value of the other side, cut in pieces."""
        for x in postorder((a,), stop=self.is_known):
            if self.is_known(x):
                for axis in _axes_of_pieces(x, a, length):
                    if a == pieces_of(x, axis, a.shape[1 + axis], length):
                        self.wholes[a] = x

    def is_known(self, x: Expr) -> bool:
        return x in self.known.get(x.op, ())

    def _as_pieces(self, x: Expr, args: Sequence[_Value], made: Expr, length: Dim) -> Expr | None:
        """The result `made` of an operator in all steps, as the pieces of what it gives of whole values; None if this
        is not shown."""
        given = [self.wholes.get(v.whole) if v.has_steps else v.whole for v in args]
        for whole in self.known.get(x.op, ()):
            if list(whole.args) != given or whole.dtype != x.dtype:
                continue
            for axis in _axes_of_pieces(whole, made, length):
                rows = made.shape[1 + axis]
                more = rows * length - whole.shape[axis]
                if why_not_equal_over_shared(whole, joined(whole, axis, made, rows, length, more), _PROVING, "exact"):
                    continue
                padded = whole
                if more != 0:
                    padding = Tensor(with_lengths(whole.shape, {axis: more}), whole.dtype)
                    padded = op.concat([whole, var(f"padding {len(self.wholes)}", padding)], axis)
                pieces = pieces_of(padded, axis, rows, length)
                self.wholes[pieces] = whole
                return pieces
        return None


def _axes_of_pieces(whole: Expr, pieces: Expr, length: Dim) -> list[int]:
    """The axes along which a value may be cut in `length` pieces of these shapes."""
    if pieces.ndim != whole.ndim + 1 or pieces.shape[0] != length:
        return []
    differing = [i for i, d in enumerate(whole.shape) if pieces.shape[1 + i] != d]
    return differing if len(differing) == 1 else []


def _precisions(x: Expr) -> list[str]:
    return [str(value) for name, value in x.attrs if name == "precision"]


def _added(result: Expr, total: Expr, first: Expr) -> Expr:
    """What a step adds to a total, which is the identity at first."""
    known = _OVER_STEPS.get(result.op)
    if known is None or result.args[0] is not total:
        raise StepsDepend("what a step hands on is more than a total")
    if first != op.full(first.shape, identity(known[1], first.dtype), first.dtype):
        raise StepsDepend("a total does not begin with the identity")
    return result.args[1]


def _with_steps(program: TensorProgram, has_steps: Sequence[bool], length: Dim) -> TensorProgram:
    """A program for all of `length` steps, of which the inputs for which `has_steps` holds, and all results, have the
    steps along their first axis."""
    bound = {v for made in program.stages for d in made.indices for v in d.variables}
    bound |= {v for made in program.stages for t in walk(made.value) if isinstance(t, Reduce) for v in t.bound}
    step = next(v for i in count() if not (v := loop(f"step{i}")).variables & bound)
    of_steps = {b.name for b, known in zip(program.inputs, has_steps, strict=True) if known}
    of_steps |= {made.output.name for made in program.stages}

    def longer(b: Buffer) -> Buffer:
        return Buffer(b.name, (length, *b.shape), b.dtype) if b.name in of_steps else b

    def in_step(at: Scalar, done: Mapping[Scalar, Scalar]) -> Scalar:
        made = with_parts(at, done)
        if not isinstance(made, Read) or made.buffer not in of_steps:
            return made
        return Read(made.buffer, (step, *made.indices), made.dtype)

    stages = [Stage(longer(s.output), (step, *s.indices), rebuild(s.value, in_step)) for s in program.stages]
    return replace(program, inputs=tuple(map(longer, program.inputs)), stages=tuple(stages), passed=()).validate()
