"""Checkpoints of loops: the gradient of a loop computes the steps of the loop again, one segment of them after the
other.

The gradient of a `scan` is a scan the other way round, which reads residuals that the first one stacks over all of its
steps. Here the first keeps what is carried at the start of each segment alone. The second goes over segments: it
computes the residuals of one again, and then the steps of the gradient that read them. Each step of the loop runs
twice, so all segments take equally long, and the sizes of segments that need least are offered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isqrt

from relax_eg.byte_units import format_bytes
from relax_eg.driver.limits.fissioned import AnswersAtSizes
from relax_eg.driver.options import Sizes
from relax_eg.figures import count_text
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ir.calls import callees_first, function_ref, reachable_functions, without_calls
from relax_eg.ir.control import Parts, group_arguments, scan
from relax_eg.ir.expr import SCAN, TUPLE, TUPLE_GET, VAR, Expr, postorder, tuple_, tuple_get, var
from relax_eg.ir.heads import with_operands
from relax_eg.ir.module import Function, Module, pure_function
from relax_eg.ir.origin import UNKNOWN
from relax_eg.ir.partition import missing_sizes
from relax_eg.ops import api as op
from relax_eg.ops import bytes_of
from relax_eg.rules.checking.schema_answers import with_values
from relax_eg.rules.pieces.fission import readers_of
from relax_eg.rules.pieces.regions import RESULT
from relax_eg.shapes import Dim

_SEGMENTS = 3  # limit: sizes of segments that are offered for each loop
_FEWEST = 2  # limit: steps of a loop that has segments
_PAIRS = 4  # limit: loops that are offered one after the other, before all of them

Given = Mapping[Expr, Expr]  # in the body of a loop, what stands for values from outside


@dataclass(frozen=True)
class CheckpointedLoop:
    """A loop and its gradient.

    - `function`: the name of the function that has both.
    - `forward`: the scan that stacks residuals; `backward`: the one that alone reads them, the other way round.
    - `residuals`: which results of `forward` they are.
    - `segments`: the numbers of steps of a segment that need few bytes, those that need most of them first, about.
    - `kept`: the bytes of the residuals of all steps.
    - `needed`: for each of `segments`, the bytes that take their place, about.
    """

    function: str
    forward: Expr
    backward: Expr
    residuals: frozenset[int]
    segments: tuple[int, ...]
    kept: int
    needed: tuple[int, ...]

    @property
    def saved(self) -> int:
        """The bytes that the last of `segments` saves, about."""
        return self.kept - self.needed[-1]


class Checkpoints:
    """The loops of a program that have gradients in it, also those in steps of other loops.

    - `module`: the program. Its calls are replaced by what they compute.
    - `sizes`: the sizes at which segments are to save memory.
    """

    def __init__(self, module: Module, sizes: Sizes) -> None:
        self.module = without_calls(module)
        self._sizes, self._at = sizes, AnswersAtSizes({f.name: f for f in self.module}, sizes=sizes)

    @cached_property
    def loops(self) -> Sequence[CheckpointedLoop]:
        """The loops that may be computed in segments, those that save most first."""
        found = [loop for f in self.module if f.is_one_block for loop in self._of_function(f)]
        taken, chosen = set[tuple[str, Expr]](), list[CheckpointedLoop]()
        for loop in sorted(found, key=lambda f: -f.saved):
            ends = {(loop.function, x) for x in (loop.forward, loop.backward)}
            if not ends & taken:
                taken |= ends
                chosen.append(loop)
        return chosen

    def _of_function(self, f: Function) -> list[CheckpointedLoop]:
        roots, found = f.values, list[CheckpointedLoop]()
        nodes = postorder(roots)
        readers = readers_of(nodes, roots)
        scans = [x for x in nodes if x.op == SCAN]
        for forward in filter(self._is_plain, scans):
            fields = [r for r in readers[forward] if r is not RESULT]
            if len(fields) < len(readers[forward]) or any(r.op != TUPLE_GET for r in fields):
                continue
            for backward in scans:
                if not _is_opposite(forward, backward) or not self._is_plain(backward):
                    continue
                only = {r for r in _parts(backward).xs if {*readers[r]} == {backward}}
                beside = {*_parts(backward).carry, *_parts(backward).constants}
                stacked = {r for r in fields if r.attr("index") >= forward.attr("carry")}
                residuals = frozenset(r.attr("index") for r in (only & stacked) - beside)
                loop = self._in_segments(f.name, forward, backward, residuals) if residuals else None
                if loop is not None:
                    found.append(loop)
        return found

    def ways(self) -> list[list[dict[CheckpointedLoop, int]]]:
        """The ways to compute loops in segments, as arguments of `cut`: of the loop that saves most, of the two that
        do, and so on, and of all; each with segments of some sizes."""
        all_loops = len(self.loops)
        counts = [n for n in range(1, all_loops + 1) if n <= _PAIRS or n == all_loops]
        return [
            [{x: x.segments[-i:][0] for x in first} for i in range(max(len(x.segments) for x in first), 0, -1)]
            for first in (self.loops[:n] for n in counts)
        ]

    def described(self, loop: CheckpointedLoop, steps: int) -> str:
        """A loop in segments of this number of steps, as text: where it is, how many segments, and what they save."""
        at = self.module[loop.function].origins.get(loop.forward, UNKNOWN)
        line = next((f" at {line}" for line in at.lines), "")
        length, needed = loop.forward.attr("length"), loop.needed[loop.segments.index(steps)]
        count, rest = divmod(self._at.extent(length), steps)
        segments = count_text(count, "segment")
        number = str(length) if length.is_const else f"{length}, here {self._at.extent(length)},"
        left = f" and {rest} left over" if rest else ""
        return (
            f"`scan`{line} in `{loop.function}`, {number} steps: {segments} of {steps} steps{left}; "
            f"about {format_bytes(needed)} in place of {format_bytes(loop.kept)} of what the steps keep"
        )

    def cut(self, segments: Mapping[CheckpointedLoop, int]) -> Module | None:
        """The program with loops in segments of these numbers of steps. None if that cannot be done."""
        at = AnswersAtSizes(dict(self._at.functions), sizes=self._sizes)  # the same names each time
        for f in callees_first(self.module):
            own = {x: n for x, n in segments.items() if x.function == f.name}
            made = self._cut(f, own, at) if own else f
            if made is None:
                return None
            at.functions[f.name] = made
        main = at.functions[self.module.main.name]
        needed = reachable_functions(main.expressions(), at.functions)
        return Module((main, *(f for f in needed if f.name != main.name)))

    def _cut(self, f: Function, segments: Mapping[CheckpointedLoop, int], at: AnswersAtSizes) -> Function | None:
        """A function with its loops in segments."""
        forward, backward = {x.forward: x for x in segments}, {x.backward: x for x in segments}
        made: dict[CheckpointedLoop, _Halves] = {}
        fields: dict[Expr, Sequence[Expr | None]] = {}
        done: dict[Expr, Expr] = {}
        for x in postorder(f.values):
            if x in forward:
                loop = forward[x]
                made[loop] = _Halves(at, loop, segments[loop], done)
                fields[x] = made[loop].first()
            elif x in backward:
                fields[x] = made[backward[x]].second(done)
            elif x.op == TUPLE_GET and x.args[0] in fields:
                value = fields[x.args[0]][x.attr("index")]
                if value is not None:  # a residual, which only the other loop reads
                    done[x] = value
            else:
                done[x] = with_operands(x, [done[a] for a in x.args])
        if not all(h.is_complete for h in made.values()):
            return None
        return with_values(f, tuple(done[r] for r in f.values))

    def _is_plain(self, x: Expr) -> bool:
        """Whether a scan is over tensors of known sizes, with a body of pure values, which may be computed again."""
        body, p = self._at.functions[_parts(x).functions[0].attr("name")], _parts(x)
        values = [a.annotation for a in (*p.constants, *p.carry, *p.xs)]
        is_known = all(isinstance(a, Tensor) and a.shape is not None for a in values)
        return is_known and body.is_one_block and _fields(body) is not None

    def _in_segments(
        self, function: str, forward: Expr, backward: Expr, residuals: frozenset[int]
    ) -> CheckpointedLoop | None:
        """A loop with the numbers of steps of its segments that need least; None if none saves memory."""
        length, first, second = self._at.extent(forward.attr("length")), _parts(forward), _parts(backward)
        if length < _FEWEST:
            return None

        def of(annotations: Sequence[Annotation]) -> int:
            return sum(self._at.extent(bytes_of(a)) for a in annotations)

        stacked = forward.annotation.fields  # type: ignore[attr-defined]
        kept = of([stacked[i] for i in sorted(residuals)])
        carried = of([c.annotation for c in first.carry])
        own = {tuple_get(forward, i) for i in residuals}
        others = of([x.annotation for x in {*first.xs, *second.xs} - own])
        results = of(backward.annotation.fields[len(second.carry) :])  # type: ignore[attr-defined]
        per_step = (kept + others + results) // length

        def needed(steps: int) -> int:
            padded = others + results if length % steps else 0  # copied, to take the rest away
            return length // steps * carried + steps * per_step + padded

        about = isqrt(max(length * carried // max(per_step, 1), 1))
        divisors = [n for n in range(1, isqrt(length) + 1) if length % n == 0]
        sizes = {about, isqrt(length), *divisors, *(length // n for n in divisors)}
        best = sorted((n for n in sizes if n <= length // 2), key=lambda n: (needed(n), n))[:_SEGMENTS]
        if not best or needed(best[0]) >= kept:
            return None
        best.reverse()
        return CheckpointedLoop(
            function, forward, backward, residuals, tuple(best), kept, tuple(needed(n) for n in best)
        )


class _Halves:
    """Both scans of a loop in segments. Unless `steps` divides the number of steps, the rest is no segment: of a number
    that is not known it has the steps that are left, which may be none or all.

    - `at`: what adds functions to the program.
    - `done`: the values of the operands of the scans.
    """

    def __init__(self, at: AnswersAtSizes, loop: CheckpointedLoop, steps: int, done: Mapping[Expr, Expr]) -> None:
        self._at, self._loop, self._steps = at, loop, steps
        length = loop.forward.attr("length")
        self._count = length // steps
        self._rest = length - self._count * steps
        self.is_complete = True
        self._residuals: dict[int, Expr] = {}  # of the rest
        self._starts: Sequence[Expr] = ()
        p = _parts(loop.forward)
        self._constants, self._carry, self._xs = ([done[a] for a in g] for g in (p.constants, p.carry, p.xs))

    def first(self) -> list[Expr | None]:
        """The results of the loop; None for residuals."""
        x, old = self._loop.forward, len(self._carry)
        count = len(x.annotation.fields)  # type: ignore[attr-defined]
        others = [i for i in range(count) if i not in self._loop.residuals]
        body = self._function_with(x, others)

        def values(whole: Given, pieces: Given, carry: Sequence[Expr]) -> list[Expr]:
            inner = self._again(x, body, [whole[c] for c in self._constants], carry, [pieces[a] for a in self._xs])
            now = [tuple_get(inner, i) for i in range(len(others))]
            return [*now[:old], *carry, *now[old:]]

        outer = self._over_segments(x, self._constants, self._carry, self._xs, [], values)
        carry = [tuple_get(outer, i) for i in range(old)]
        self._starts = [tuple_get(outer, i) for i in range(old, 2 * old)]
        stacked = [self._flat(tuple_get(outer, i)) for i in range(2 * old, old + len(others))]
        if self._rest != 0:
            last = self._over_rest(x, self._constants, carry, self._xs)
            carry = [tuple_get(last, i) for i in range(old)]
            self._residuals = {i: tuple_get(last, i) for i in self._loop.residuals}
            rest = [tuple_get(last, i) for i in others[old:]]
            stacked = [self._joined(a, b) for a, b in zip(stacked, rest, strict=True)]
        found = dict(zip(others, (*carry, *stacked), strict=True))
        return [found.get(i) for i in range(count)]

    def second(self, done: Mapping[Expr, Expr]) -> list[Expr]:
        """The results of the gradient."""
        x, y, old = self._loop.forward, self._loop.backward, len(self._carry)
        p, order = _parts(y), sorted(self._loop.residuals)
        own = {tuple_get(x, i): i for i in order}
        constants, carry = ([done[a] for a in g] for g in (p.constants, p.carry))
        others = {a: done[a] for a in p.xs if a not in own}
        body = self._function_with(x, [*range(old), *order])

        def values(whole: Given, pieces: Given, carried: Sequence[Expr]) -> list[Expr]:
            starts, xs = [pieces[s] for s in self._starts], [pieces[a] for a in self._xs]
            inner = self._again(x, body, [whole[c] for c in self._constants], starts, xs)
            again = {i: tuple_get(inner, old + n) for n, i in enumerate(order)}
            read = [again[own[a]] if a in own else pieces[others[a]] for a in p.xs]
            last = self._again(y, y.args[0], [whole[c] for c in constants], carried, read)
            return [tuple_get(last, i) for i in range(len(last.annotation.fields))]  # type: ignore[attr-defined]

        stacked: list[Expr] = []
        if self._rest != 0:
            read = [self._residuals[own[a]] if a in own else self._part(others[a], True) for a in p.xs]
            first = self._again(y, y.args[0], constants, carry, read, self._rest)
            fields = [tuple_get(first, i) for i in range(len(first.annotation.fields))]  # type: ignore[attr-defined]
            carry, stacked = fields[: len(carry)], fields[len(carry) :]
        shared, xs = [*self._constants, *constants], [*self._xs, *others.values()]
        outer = self._over_segments(y, shared, carry, xs, self._starts, values)
        count = len(outer.annotation.fields)  # type: ignore[attr-defined]
        results = [self._flat(tuple_get(outer, i)) for i in range(len(carry), count)]
        if self._rest != 0:
            results = [self._joined(a, b) for a, b in zip(results, stacked, strict=True)]
        return [*(tuple_get(outer, i) for i in range(len(carry))), *results]

    def _over_segments(
        self,
        x: Expr,
        constants: Sequence[Expr],
        carry: Sequence[Expr],
        xs: Sequence[Expr],
        starts: Sequence[Expr],
        values: Callable[[Given, Given, Sequence[Expr]], Sequence[Expr]],
    ) -> Expr:
        """The scan over segments that stands for the scan `x`. `values`: what a segment computes, given what stands for
        constants, for operands of which it reads its part (`xs`, and `starts`, one of these), and for what is carried.
        """
        whole = {c: var(f"c{i}", c.annotation) for i, c in enumerate(dict.fromkeys(constants))}
        carried = [var(f"s{i}", c.annotation) for i, c in enumerate(carry)]
        pieces = {a: self._segments(a) for a in dict.fromkeys(xs)} | {s: s for s in starts}
        given = {a: var(f"x{i}", Tensor(s.shape[1:], s.dtype)) for i, (a, s) in enumerate(pieces.items())}
        body = pure_function(x.op, (*whole.values(), *carried, *given.values()), values(whole, given, carried))
        body = replace(body, result=tuple_(b.var for b in body.blocks[0].bindings))
        self.is_complete = self.is_complete and not missing_sizes(body)
        ref, reverse = function_ref(self._at.add(body, "in_segments")), x.attr("reverse")
        return scan(ref, list(whole), carry, pieces.values(), length=self._count, reverse=reverse)

    def _over_rest(self, x: Expr, constants: Sequence[Expr], carry: Sequence[Expr], xs: Sequence[Expr]) -> Expr:
        return self._again(x, x.args[0], constants, carry, [self._part(a, True) for a in xs], self._rest)

    def _again(
        self,
        x: Expr,
        body: Expr,
        constants: Sequence[Expr],
        carry: Sequence[Expr],
        xs: Sequence[Expr],
        steps: Dim | None = None,
    ) -> Expr:
        """The steps of the scan `x` in one segment, or `steps` of them."""
        number = Dim.of(self._steps) if steps is None else steps
        unroll = min(x.attr("unroll"), number.value) if number.is_const else 1
        return scan(body, constants, carry, xs, length=number, reverse=x.attr("reverse"), unroll=unroll)

    def _function_with(self, x: Expr, fields: Sequence[int]) -> Expr:
        """The body of a scan with some of its results."""
        body = self._at.functions[_parts(x).functions[0].attr("name")]
        results = _fields(body)
        assert results is not None
        made = pure_function(body.name, body.params, [results[i] for i in fields])
        made = replace(body, blocks=made.blocks, result=tuple_(b.var for b in made.blocks[0].bindings))
        self.is_complete = self.is_complete and not missing_sizes(made)
        return function_ref(self._at.add(made, "of_segment"))

    def _part(self, a: Expr, is_rest: bool) -> Expr:
        """What the steps of all segments, or of the rest, read of an operand. The rest are the last steps."""
        if self._rest == 0:
            return a
        whole = self._count * self._steps
        at = self._rest if self._loop.forward.attr("reverse") else whole
        is_first = is_rest == self._loop.forward.attr("reverse")
        begin, end = (0, at) if is_first else (at, whole + self._rest)
        return op.strided_slice(a, [begin, *[0] * (a.ndim - 1)], [end, *a.shape[1:]])

    def _joined(self, segments: Expr, rest: Expr) -> Expr:
        return op.concat([rest, segments] if self._loop.forward.attr("reverse") else [segments, rest])

    def _segments(self, a: Expr) -> Expr:
        return op.reshape(self._part(a, False), (self._count, self._steps, *a.shape[1:]))

    def _flat(self, a: Expr) -> Expr:
        return op.reshape(a, (self._count * self._steps, *a.shape[2:]))


def _parts(x: Expr) -> Parts:
    return group_arguments(x.op, x.args, dict(x.attrs))


def _is_opposite(forward: Expr, backward: Expr) -> bool:
    is_opposite = forward.attr("reverse") != backward.attr("reverse")
    return is_opposite and forward.attr("length") == backward.attr("length")


def _fields(body: Function) -> tuple[Expr, ...] | None:
    """What a step computes from its parameters, one by one; None if these are not fields of a tuple."""
    known = {b.var: b.value for b in body.bindings}
    fields = tuple(known.get(x, x) for x in body.result.args) if body.result.op == TUPLE else ()
    is_plain = all(x in body.params for x in postorder(fields) if x.op == VAR)
    return fields if fields and is_plain else None
