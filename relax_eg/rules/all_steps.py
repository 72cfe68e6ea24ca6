"""Loops written without a loop, so that proofs can compare them with what has none.

A step that uses nothing of the step before computes its results from its slices alone: each operator of the body
becomes a tensor program with one more axis, the steps. A value to which each step adds such a result is the sum over
that axis; likewise products and extremes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from relax_eg.ir.calls import call_sizes, inline_call
from relax_eg.ir.control import arguments_of, group_arguments, runs_of, steps_of
from relax_eg.ir.expr import CALL_TIR, CONSTANT, SCAN, TUPLE, TUPLE_GET, Expr, postorder, tuple_
from relax_eg.ir.heads import CORE, with_operands
from relax_eg.ir.module import Function
from relax_eg.ir.tensor_calls import call_tir
from relax_eg.ops import api as op
from relax_eg.ops.record import definition_of, position_promises, preconditions, program_of, site_of
from relax_eg.shapes import Dim
from relax_eg.tir import Buffer, Scalar
from relax_eg.tir.expr import Read, Reduce, loop, walk
from relax_eg.tir.functions import identity
from relax_eg.tir.program import Stage, TensorProgram
from relax_eg.tir.substitute import rebuild, with_parts, with_sizes

# By the operator with which a step adds to a value: the reduction over all steps, and its kind.
_OVER_STEPS = {
    "add": (op.sum, "sum"),
    "multiply": (op.prod, "prod"),
    "maximum": (op.max, "max"),
    "minimum": (op.min, "min"),
}


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
    return _Rewriting(functions, precisions).of((e,), kept)[0]


@dataclass(frozen=True)
class _Rewriting:
    """Loops of a module's `functions` written without one. `precisions`: those that products in them may ask for."""

    functions: Mapping[str, Function]
    precisions: Collection[str]

    def of(self, roots: Sequence[Expr], kept: Collection[Expr] = ()) -> list[Expr]:
        done: dict[Expr, Expr] = {}
        for x in postorder(roots, stop=kept.__contains__):
            args = () if x in kept else tuple(done[a] for a in x.args)
            if x.op == TUPLE_GET and args and args[0].op == TUPLE:
                done[x] = args[0].args[x.attr("index")]
            elif x.op == SCAN and args:
                done[x] = tuple_(self._all_steps(x, args))
            else:
                done[x] = with_operands(x, args) if args else x
        return [done[x] for x in roots]

    def _all_steps(self, e: Expr, args: Sequence[Expr]) -> list[Expr]:
        """The results of a `scan` with these operands."""
        parts, attrs = group_arguments(SCAN, args, dict(e.attrs)), dict(e.attrs)
        body = self.functions.get(str(parts.functions[0].attr("name")))
        if body is None or len(body.blocks) != 1 or not body.blocks[0].dataflow or e.attr("reverse"):
            raise StepsDepend("the body of a loop is not known, or its steps run backwards")
        (run,) = runs_of(SCAN, [a.annotation for a in args], attrs)
        sizes = call_sizes([p.annotation for p in body.params], arguments_of(run))
        length = steps_of(SCAN, attrs)
        assert length is not None, "the number of steps of a scan is known"
        results = self.of(inline_call(body, body.params))
        fixed, carried = len(parts.constants), len(parts.carry)
        totals = body.params[fixed : fixed + carried]
        made = {p: _Value(a, False) for p, a in zip(body.params, parts.constants, strict=False)}
        made |= {p: _Value(a, True) for p, a in zip(body.params[fixed + carried :], parts.xs, strict=True)}
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
        placed = with_sizes(program, {v: sizes[v] for v in program.sizes})
        has_steps = any(a.has_steps for a in args)
        if has_steps:
            placed = _with_steps(placed, [a.has_steps for a in args], length)
        known = {str(d) for b in placed.inputs for d in b.shape}
        passed = tuple(sorted(placed.sizes - known))
        given = [a.whole for a in args] if placed.inputs else []
        return _Value(call_tir(replace(placed, passed=passed), given, None, {v: Dim.var(v) for v in passed}), has_steps)


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
