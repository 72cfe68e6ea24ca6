"""A function in which an order of its steps, some of which run several times, is stated.

XLA chooses the order of a program itself, and merges equal computations. Where the operator `after` makes a step read
one of its operands only after the step before it in the order, XLA can do neither. Where the operand is read by a loop
over elements, `after` costs nothing; where a matmul reads it, it is copied, so the smallest operand is taken.

A value that is kept on the host is copied there at once. The next step after the end of that copy waits for it, so that
XLA frees the value's memory by then, and the copy back waits for the step before it.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from relax_eg.ir.annotations import Tensor
from relax_eg.ir.calls import rebuilt, substitute_exprs
from relax_eg.ir.expr import CONSTANT, VAR, Expr, tuple_get
from relax_eg.ir.heads import CONTROL, CORE, STATIC, with_operands
from relax_eg.ir.module import Function, Module
from relax_eg.memory.program import StoredValues
from relax_eg.memory.rematerialization import ArrangementProblem
from relax_eg.ops import api as op
from relax_eg.ops import bytes_of, get, pattern_kind, site_of
from relax_eg.ops.ordering import AFTER
from relax_eg.ops.record import movement_operators, operators_run_as
from relax_eg.ops.transfers import TRANSFERS
from relax_eg.tir import PatternKind

_READ_WHOLE = operators_run_as("matmul", "transposed_matmul", "conv", "factorisation", "solve", "guarded_solve")
_MOVED = movement_operators("view", "order")
_SHARE = 1024  # chosen: steps that neither take nor free that part of the peak are not held in order
_COPIED = 64  # chosen: an operand that is copied to hold a step has at most that part of the peak
_MOST_PINS = 2  # chosen: other steps after which one step is held


def read_whole(f: Function, stored: StoredValues) -> set[Expr]:
    """The values of a function that matmuls, convolutions and loops read, and do not compute again. So they are
    stored."""
    found: set[Expr] = set()
    for e in f.expressions():
        for a in e.args if e.op in _READ_WHOLE or e.op in CONTROL else ():
            while a.op in _MOVED:
                a = a.args[0]
            if a.args and a not in stored.anew.get((f.name, e), ()):
                found.add(a)
    return found


def without_order(module: Module) -> Module:
    """`module` without the operators that state an order or keep values on the host. Runs of the same step then are one
    expression."""
    return Module(tuple(rebuilt(f, _plain) for f in module))


def _plain(e: Expr, args: tuple[Expr, ...]) -> Expr:
    return args[0] if e.op == AFTER or e.op in TRANSFERS else with_operands(e, args)


def with_order(
    f: Function, problem: ArrangementProblem, runs: Sequence[int], peak: int, at: Mapping[str, int]
) -> Function | None:
    """The function, of one block, whose steps run in this order. None if the order does not hold."""
    made = _Pinned(f, problem, peak, at)
    for place, step in enumerate(runs):
        if not made.add(place, step):
            return None
    block = f.blocks[0]
    values = substitute_exprs(block.values, made.current)
    origins = dict(f.origins)
    for old, new in made.origins:
        if old in f.origins:
            origins.setdefault(new, f.origins[old])
    return replace(f, blocks=(block.with_values(values),), origins=origins)


class _Pinned:
    """The runs added so far.

    - `current`: for each step's expression, that of its latest run.
    - `fresh`: those of them that were computed from the latest runs of others.
    - `read_by`: for an expression, those whose latest runs read its latest run.
    """

    def __init__(self, f: Function, problem: ArrangementProblem, peak: int, at: Mapping[str, int]) -> None:
        self.problem, self.at = problem, at
        self.big, self.copied = max(1, peak // _SHARE), max(1, peak // _COPIED)
        self.current: dict[Expr, Expr] = {}
        self.fresh: dict[Expr, Expr] = {}
        self.read_by: dict[Expr, set[Expr]] = {}
        self.origins: list[tuple[Expr, Expr]] = []
        self.latest: dict[int, int] = {}  # by step, the place of its latest run
        self.exprs: list[Expr] = []  # by place
        self.before: list[int] = []  # by place, the places that certainly run before it, as bits
        self.matter: list[int] = []  # places that take or free much
        self.copies: dict[int, Expr] = {}  # by value, its copy on the host
        self.ended: list[int] = []  # values whose copies are complete before the next step

    def add(self, place: int, step: int) -> bool:
        """Adds a run; whether the order can be stated."""
        if not self.problem.is_own(step):
            return self._add_copy(place, step)
        problem, steps = self.problem, self.problem.program.steps
        e, writers = steps[step].kernel, [problem.writer[v] for v in steps[step].reads if v in problem.writer]
        before = 0
        for r in (self.latest[w] for w in writers):
            before |= self.before[r] | 1 << r
        again = step in self.latest
        takes = sum(problem.sizes[v] for v in steps[step].writes) + problem.inside[step]
        frees = max((problem.sizes[v] for v in problem.reads[step]), default=0)
        moves = e.op not in CORE and get(e.op).moves is not None
        matters = max(takes, frees) >= self.big and not moves
        # What it computes again instead of reading it may be as in a run before, unless it would keep stale values.
        read = {steps[w].kernel: self.current[steps[w].kernel] for w in writers}
        env = ChainMap(read, self.fresh)
        operand, is_free = self._operand(e, env)
        new = _with(e, env)
        is_same = again and new is self.exprs[self.latest[step]]
        pins: list[int] = []
        if operand is not None and (matters or is_same):
            cheap = is_free or self._bytes(operand) <= self.copied
            for q in reversed(self.matter if matters and cheap else []):
                if len(pins) == _MOST_PINS:
                    break
                if not before >> q & 1:
                    pins.append(q)
                    before |= self.before[q] | 1 << q
            if is_same and not pins:
                q = self.matter[-1] if self.matter else place - 1
                pins.append(q)
                before |= self.before[q] | 1 << q
        ended, self.ended = (self.ended, []) if operand is not None and not moves else ([], self.ended)
        if (pins or ended) and operand is not None:
            held = substitute_exprs([operand], env)[0]
            tokens = [t for q in pins if (t := _token(self.exprs[q])) is not None] + [self.copies[v] for v in ended]
            for t in tokens:
                held = op.after(held, t)
            new = _with(e, env.new_child({operand: held}))
        if again and new is self.exprs[self.latest[step]]:
            return False
        self.exprs.append(new)
        self.before.append(before)
        self._set_current(e, new, read)
        self.latest[step] = place
        self.origins.append((e, new))
        # XLA may compute one element of what a loop over elements makes without the rest.
        if matters and _is_computed_whole(e):
            self.matter.append(place)
        return True

    def _add_copy(self, place: int, step: int) -> bool:
        problem = self.problem
        is_back = step not in problem.kept
        v = problem.kept[step - is_back]
        e = problem.program.steps[problem.writer[v]].kernel
        if is_back:
            q = self.matter[-1] if self.matter else place - 1
            token = _token(self.exprs[q])
            if token is None:
                return False
            new, before = op.from_host(op.after(self.copies[v], token)), self.before[q] | 1 << q
            self._set_current(e, new, ())
            self.latest[problem.writer[v]] = place
            self.origins.append((e, new))
        else:
            new, before = op.on_host(self.current[e]), self.before[self.latest[problem.writer[v]]]
            self.copies[v] = new
            self.ended.append(v)
        self.exprs.append(new)
        self.before.append(before)
        return True

    def _set_current(self, e: Expr, new: Expr, read: Iterable[Expr]) -> None:
        """Makes `new` the latest run of an expression, which reads others. What was computed from its run before is
        stale: it would keep that one's result alive."""
        if e in self.current:
            for r in self.read_by.pop(e, ()):
                self.fresh.pop(r, None)
        self.current[e] = self.fresh[e] = new
        for k in read:
            self.read_by.setdefault(k, set()).add(e)

    def _bytes(self, e: Expr) -> int:
        return int(bytes_of(e.annotation).evaluate(self.at))

    def _operand(self, e: Expr, read: Mapping[Expr, Expr]) -> tuple[Expr | None, bool]:
        """The stored value, read by a step, that can be held back most cheaply, and whether that costs nothing."""
        found: dict[Expr, bool] = {}
        todo, seen, is_free = [e], {e}, True
        while todo:
            x = todo.pop()
            is_free = is_free and x.op not in CORE and x.op not in _READ_WHOLE and get(x.op).equations is not None
            for a in x.args:
                if a.op in STATIC or a.op == CONSTANT or not isinstance(a.annotation, Tensor):
                    if a.op not in STATIC and a.op != CONSTANT and a not in read and a not in seen:
                        seen.add(a)
                        todo.append(a)
                    continue
                if a.op == VAR or a in read or (a.op in CORE and a.args and a.args[0] in read):
                    found[a] = is_free
                elif a not in seen:
                    seen.add(a)
                    todo.append(a)
        arrays = [a for a in found if isinstance(a.annotation, Tensor) and a.annotation.shape is not None]
        if not arrays:
            return None, False
        best = min(arrays, key=lambda a: (not found[a], self._bytes(a)))
        return best, found[best]


def _with(e: Expr, env: Mapping[Expr, Expr]) -> Expr:
    """A step's expression with others in the place of what it reads."""
    return with_operands(e, substitute_exprs(e.args, env))


def _is_computed_whole(e: Expr) -> bool:
    """Whether an element of a step's results exists only when all of them do."""
    if e.op in _READ_WHOLE or e.op in CONTROL:
        return True
    return e.op not in CORE and pattern_kind(site_of(e)) is PatternKind.REDUCTION


def _token(e: Expr) -> Expr | None:
    """An array of a step's results."""
    if isinstance(e.annotation, Tensor):
        return e
    fields = getattr(e.annotation, "fields", ())
    return next((tuple_get(e, i) for i, a in enumerate(fields) if isinstance(a, Tensor)), None)
