"""Replays a derivation: checks every rule, condition, shape and size in it again, and asks rules about whole nodes
again (`proposed`).

Both sides of every use of a rule, and every whole program that the steps lead through (`whole_programs`), are also
evaluated by the reference interpreter, at small sizes and at sizes next to numbers in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from relax_eg.errors import BoundsError, ExplanationError, OperatorError, ShapeError
from relax_eg.explain.closure import sizes_that_differ
from relax_eg.explain.programs import Change
from relax_eg.explain.proposed import Proposals
from relax_eg.explain.record import signature, with_one
from relax_eg.explain.result import Derivation, DerivationPart, Libraries, mentioned
from relax_eg.explain.steps import Equation, Goal, Inside, Rewritten, equation
from relax_eg.explain.values import compared, deviation, draw, near, stand_in, tells
from relax_eg.explain.whole_programs import CheckedProgram, WholePrograms, off
from relax_eg.ir.annotations import Annotation, Tensor, Tuple, dims_of, with_sizes
from relax_eg.ir.calls import call_annotation
from relax_eg.ir.calls import signature as function_annotation
from relax_eg.ir.control import deduce_control
from relax_eg.ir.expr import (
    CALL,
    CALL_DPS_LIBRARY,
    CALL_TIR,
    CONSTANT,
    CONTROL,
    FUNCTION,
    TUPLE,
    TUPLE_GET,
    VAR,
    Expr,
    constant_value,
    np_dtype,
    postorder,
    tuple_,
)
from relax_eg.ir.lattice import clash
from relax_eg.ir.module import Function, Module
from relax_eg.ir.scopes import scopes_of
from relax_eg.ir.tensor_calls import tir_annotation
from relax_eg.ir.wellformed import check as check_module
from relax_eg.ops import TABLE
from relax_eg.ops.facts import FACTS, impossible
from relax_eg.ops.interpret import SharedValues, at_most, evaluate
from relax_eg.ops.libraries import library_of
from relax_eg.ops.record import deduce
from relax_eg.rules import NUMERICS, Claim, Condition, Rule, RuleSet, ValueTest
from relax_eg.rules.certificates import status
from relax_eg.rules.conditions import key_of
from relax_eg.rules.parameter_facts import Leaves, PositiveSizes, facts_of_functions
from relax_eg.rules.propagation import KnownFacts
from relax_eg.rules.schema_answers import Batched
from relax_eg.shapes import Dim, Proved, Scope, prove

# Two expressions that are said to be equal, with the use of a rule that says so; None for a whole goal.
Pair = tuple[Expr, Expr, Equation | None]

# chosen: seeds of the drawn values. At the first two everything is evaluated. At the further one, whose values are near
# numbers in the programs, only uses of rules, goals of whole values, and both end programs are.
_SEEDS, _FURTHER = (0, 1), (2,)
# limit: loop steps of one evaluation, about a second; derivations with more are checked, but not evaluated
_MOST_STEPS = 4_000


@dataclass
class Replay:
    """The outcome of replaying a derivation.

    - `equations`: number of uses of rules.
    - `conditions`: by use of a rule, its side conditions, each with its proof.
    - `equal_sizes`: equalities of sizes that are written differently, each with its proof.
    - `compared`: number of pairs of expressions whose values were compared.
    - `sizes`: the sizes at which they were evaluated.
    - `programs`: for each part of the derivation, the whole programs that its steps lead through.
    - `ends`: how far the results of the chosen module are from those of the module as written; None if not evaluated.
    - `not_evaluated`: why some expressions were not evaluated.
    - `numerics`: the classes of the steps, the loosest last. A step that uses a fact that holds over the reals only
      counts as class reassociate.
    """

    equations: int = 0
    conditions: dict[Equation, list[str]] = field(default_factory=dict[Equation, list[str]])
    equal_sizes: dict[str, None] = field(default_factory=dict[str, None])
    compared: int = 0
    sizes: list[dict[str, int]] = field(default_factory=list[dict[str, int]])
    programs: list[list[CheckedProgram]] = field(default_factory=list[list[CheckedProgram]])
    ends: float | None = None
    not_evaluated: list[str] = field(default_factory=list[str])
    numerics: tuple[str, ...] = NUMERICS[:1]

    def __str__(self) -> str:
        proved = sum(map(len, self.conditions.values())) + len(self.equal_sizes)
        parts = [
            f"{self.equations} uses of rules, {proved} side conditions proved, {self.compared} pairs evaluated",
            self._whole(),
        ]
        if self.ends is not None:
            parts.append(f"the chosen program against the one as written: {off(self.ends)}")
        return "; ".join([*parts, *(f"not evaluated: {why}" for why in self.not_evaluated)])

    def uses(self, numerics: str) -> None:
        """Records that a step is of this class."""
        self.numerics = NUMERICS[: max(len(self.numerics), 1 + NUMERICS.index(numerics))]  # type: ignore[arg-type]

    def _whole(self) -> str:
        every = [c for programs in self.programs for c in programs]
        whole = [c.deviation for c in every if c.deviation is not None]
        part = "" if len(whole) == len(every) else f"{len(whole)} of "
        operators = sum(c.operators for c in every)
        return (
            f"{part}{len(every)} whole programs evaluated, {off(max(whole, default=0.0))}, "
            f"shapes of {operators} operators in them proved"
        )


def replay(derivation: Derivation, libraries: Libraries | None = None, batched: Batched | None = None) -> Replay:
    """Replays `derivation`. ExplanationError names the first step that does not hold, and why.

    - `libraries`: computes library calls; without it each call stands for some function of its operands.
    - `batched`: applies a function to slices, as rules about loops ask for it; without it their steps do not hold.
    """
    entry = derivation.chosen.main.name
    for module in (derivation.written, derivation.shared, derivation.chosen):
        check_module(module)
    derivation.check_structure()
    functions = sorted(derivation.functions.values(), key=lambda f: f.name != entry)
    check_module(Module(tuple(functions)))
    _check_facts(derivation)
    scopes = scopes_of(derivation.shared, derivation.scope)
    used = {e.rule.name: e.rule for p in derivation.parts for e in p.equations if isinstance(e.rule, Rule)}
    asked = RuleSet("used", used.values())
    # Facts that hold of values as computed and, where that is allowed, facts that hold over the reals.
    strict = facts_of_functions(derivation.shared, derivation.facts, asked, True)
    exact = derivation.numerics == ("exact",)
    facts = strict if exact else facts_of_functions(derivation.shared, derivation.facts, asked, False)
    found = Replay()
    for part in derivation.parts:
        scope, name = scopes[part.function][part.block], part.function
        check = _Check(derivation, part, scope, facts.get(name, {}), strict.get(name, {}), exact, found)
        check.run()
        Proposals(derivation, part, batched, check.fail).check()
        check.evaluate(libraries)
    if derivation.parts:
        _compare_ends(derivation, libraries, found)
    return found


def _compare_ends(d: Derivation, libraries: Libraries | None, found: Replay) -> None:
    """Evaluates the module as written and the chosen one on the same arguments."""
    apart: list[float] = []
    around = near(e for m in (d.written, d.chosen) for f in m for e in f.expressions())
    for seed in (*_SEEDS, *_FURTHER):
        try:
            given, sizes = draw(d.written.main, d.scope, d.facts, seed, around)
            with np.errstate(all="ignore"), at_most(_MOST_STEPS):
                a, b = (evaluate(m, given, sizes=sizes, libraries=libraries or stand_in) for m in (d.written, d.chosen))
        except (OperatorError, ShapeError, BoundsError) as error:
            if seed in _FURTHER:  # no values exist at this seed
                continue
            found.not_evaluated.append(f"the programs from end to end: {error}")
            return
        if why := compared(a, b, d.numerics[-1]):
            raise ExplanationError(f"{d.name}: the chosen program and the one as written differ at {_at(sizes)}: {why}")
        if tells(a):
            apart.append(deviation(a, b))
    if apart:
        found.ends = max(apart)
    else:
        found.not_evaluated.append("the programs from end to end have no finite values where they were tried")


def _check_facts(d: Derivation) -> None:
    """Raises ExplanationError unless every fact is declared of an array parameter of the program as written that can
    have it, and arguments with all facts exist."""
    params = {str(p.attr("name")): p.annotation for p in d.written.main.params}
    for name, facts in d.facts.items():
        a = params.get(name)
        if not isinstance(a, Tensor):
            raise ExplanationError(f"{d.name}: facts are declared of `{name}`, which is no array that it takes")
        for fact in sorted(facts):
            if fact not in FACTS:
                raise ExplanationError(f"{d.name}: `{name}` is declared {fact!r}, which is no fact")
            if why := impossible(fact, a):
                raise ExplanationError(f"{d.name}: `{name}` cannot be {FACTS[fact].name}: {why}")
    if not d.facts:
        return
    drawn = [p for p in d.written.main.params if p.attr("name") in d.facts and p.tensor.shape is not None]
    some = Function("facts", tuple(drawn), (), tuple_(()))
    why = [_no_values(some, d.scope, d.facts, seed) for seed in _SEEDS]
    if all(why):
        raise ExplanationError(f"{d.name}: {why[0]}; a derivation from facts that nothing has says nothing")


def _no_values(function: Function, scope: Scope, facts: Mapping[str, frozenset[str]], seed: int) -> str:
    """Returns why there are no arguments of `function` with these facts; empty if there are."""
    try:
        draw(function, scope, facts, seed)
    except OperatorError as error:
        return str(error)
    return ""


def _at(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{k}={v}" for k, v in sizes.items()) or "its sizes"


class _Check:
    def __init__(
        self,
        derivation: Derivation,
        part: DerivationPart,
        scope: Scope,
        facts: Mapping[str, frozenset[str]],
        strict: Mapping[str, frozenset[str]],
        exact: bool,
        found: Replay,
    ) -> None:
        self.derivation = derivation
        self.part = part
        self.scope = scope
        self.facts = facts
        self.found = found
        self.known = KnownFacts(Leaves(facts).have, exact, PositiveSizes(scope).are_positive)
        self.strict = KnownFacts(Leaves(strict).have, True, PositiveSizes(scope).are_positive)
        self.loosest = derivation.numerics[-1]
        self.sources = derivation.sources.get(part.function, {})
        self.equal: dict[tuple[Dim, Dim], None] = {}  # pairs of sizes proved equal
        self.one: dict[Dim, Dim] = {}  # for each such size, the one that stands for all its equals
        self._proved: set[object] = set()

    def run(self) -> None:
        self.found.programs.append([])
        for e in self.part.equations:
            self.found.conditions[e] = list(self._equation(e))
            self.found.equations += 1
        for goal in self.part.goals:
            self._goal(goal)
        self.one = _one_of(list(self.equal))
        # Shapes are proved before anything is evaluated, because an expression of a wrong shape may have no value.
        sides = [x for e in self.part.equations for pair in e.pairs for x in pair]
        for e in postorder([*sides, *(x for g in self.part.goals for x in (g.start, *(to for _, to in g.steps)))]):
            self._deduced(e)

    def fail(self, e: Equation | None, text: str) -> ExplanationError:
        where = f"{self.derivation.name}: in `{self.part.function}`"
        if e is None:
            return ExplanationError(f"{where}: {text}")
        line = next((self.sources[x] for pair in e.pairs for x in pair if x in self.sources), "")
        at = f" at {line}" if line else ""
        return ExplanationError(f"{where}, step by rule `{e.rule.name}` ({e.rule.where}){at}: {text}")

    # --- rules ---

    def _equation(self, e: Equation) -> list[str]:
        """Checks one use of a rule. Returns the side conditions, each with its proof."""
        rule = e.rule
        verdict = status(rule)
        if verdict.status == "refuted":
            raise self.fail(e, "the rule is refuted")
        if rule.numerics not in self.derivation.numerics:
            allowed = ", ".join(self.derivation.numerics)
            raise self.fail(e, f"the rule is of class {rule.numerics}; allowed were {allowed}")
        self.found.uses(rule.numerics)
        proofs: list[str] = []
        if isinstance(rule, Rule):
            proofs = self._instance(e)
        elif e.instance is not None or len(e.pairs) != 1:
            raise self.fail(e, "a rule about whole nodes rewrites one value")
        for left, right in e.pairs:
            proofs += self._same_annotation(e, left.annotation, right.annotation)
        return proofs

    def _instance(self, e: Equation) -> list[str]:
        instance, sizes = e.instance, dict(e.sizes)
        if instance is None or instance.rule is not e.rule or len(e.operands) != len(instance.params):
            raise self.fail(e, "it is no instance of the rule")
        proofs: list[str] = []
        for p, operand in zip(instance.params, e.operands, strict=True):
            wanted = Tensor(tuple(d.substitute(sizes) for d in p.shape), p.dtype)
            proofs += self._same_annotation(e, wanted, operand.annotation, f"`{p.attr('name')}`")
        try:
            made = equation(instance, e.operands, sizes)
        except OperatorError as error:
            raise self.fail(e, f"a side cannot be formed: {error}") from None
        if made.pairs != e.pairs:
            raise self.fail(e, "its sides are not what the rule says of these operands")
        env = {str(p.attr("name")): x for p, x in zip(instance.params, e.operands, strict=True)}
        for g in instance.guards:
            if isinstance(g, Condition):
                text = f"{g.left.substitute(sizes)} {g.op} {g.right.substitute(sizes)}"
                proofs.append(f"{text}: {self._proof(e, text)}")
            elif isinstance(g, (Claim, ValueTest)):
                if not self.known.has(env[g.name], key_of(g)):
                    raise self.fail(e, f"its condition {g} is not known to hold")
                if not self.strict.has(env[g.name], key_of(g)):
                    self.found.uses("reassociate")
                proofs.append(f"{g}: derived from what is declared and from the operators")
        return proofs

    def _same_annotation(self, e: Equation | None, a: Annotation, b: Annotation, what: str = "the result") -> list[str]:
        """Checks that shapes and dtypes agree, by proof where sizes are written differently. Returns the proofs."""
        if a == b:
            return []
        xs, ys = dims_of(a), dims_of(b)
        pairs = [(x, y) for x, y in dict.fromkeys(zip(xs, ys, strict=False)) if x != y]
        one = _one_of(pairs)
        if len(xs) != len(ys) or with_sizes(a, one) != with_sizes(b, one):
            raise self.fail(e, f"{what} is {b} where {a} is wanted")
        proofs = [f"{x} == {y}: {self._proof(e, f'{x} == {y}', f'{what}: ')}" for x, y in pairs]
        self.equal.update(dict.fromkeys(pairs))
        return proofs

    def _proof(self, e: Equation | None, statement: str, what: str = "") -> str:
        answer = prove(statement, self.scope)
        if not isinstance(answer, Proved):
            raise self.fail(e, f"{what}not proved: {statement} ({answer})")
        return f"proved ({answer.by})"

    # --- goals ---

    def _goal(self, goal: Goal) -> None:
        """Checks that the steps lead from start to end, each by a rule or goals that are checked on their own."""
        at = goal.start
        for step, to in goal.steps:
            if isinstance(step, Rewritten):
                if step.sides != (at, to):
                    raise self.fail(step.equation, "it does not lead from the expression before it to the one after it")
            else:
                self._inside(step, at, to)
            at = to
        if at is not goal.end:
            raise self.fail(None, "the steps do not lead to what they are said to lead to")

    def _inside(self, step: Inside, at: Expr, to: Expr) -> None:
        names = [[k for k, _ in x.attrs] for x in (at, to)]
        if at.op != to.op or names[0] != names[1] or not len(at.args) == len(to.args) == len(step.operands):
            raise self.fail(None, f"a step inside operands turns {at.op} into {to.op}")
        for a, b, goal in zip(at.args, to.args, step.operands, strict=True):
            if (a is not b) if goal is None else (goal.start, goal.end) != (a, b):
                raise self.fail(None, f"an operand of {at.op} was changed, and no step says why")
        differing = sizes_that_differ(at, to)
        one = _one_of(differing)
        if signature(at.op, dict(at.attrs), None, one) != signature(to.op, dict(to.attrs), None, one):
            raise self.fail(None, f"a step inside operands changes attributes of {at.op}")
        proofs = [f"{x} == {y}: {self._proof(None, f'{x} == {y}')}" for x, y in differing]
        self.equal.update(dict.fromkeys(differing))
        proofs += self._same_annotation(None, at.annotation, to.annotation, f"the result of {at.op}")
        self.found.equal_sizes.update(dict.fromkeys(proofs))

    # --- values ---

    def evaluate(self, libraries: Libraries | None) -> None:
        """Evaluates every expression of the goals, and compares those that are said to be equal."""
        pairs = self._pairs(libraries is None)
        if not pairs:
            return
        terms = list(dict.fromkeys(x for a, b, e in pairs for x in (a, b, *(() if e is None else e.operands))))
        reads = [x for x in postorder(terms) if x.op == VAR]
        functions = mentioned(terms, self.derivation.functions)
        body = Function("terms", tuple(reads), (), tuple_(terms))
        module = Module((body, *functions.values()))
        told: set[int] = set()
        worlds: list[SharedValues] = []
        around = near(x for f in module for x in f.expressions())
        for seed in (*_SEEDS, *_FURTHER):
            try:
                given, sizes = draw(body, self.scope, self.facts, seed, around)
                world = SharedValues(module, dict(zip(reads, given, strict=True)), sizes, libraries or stand_in)
                with np.errstate(all="ignore"), at_most(_MOST_STEPS):
                    told |= self._compare(pairs, world, sizes)
            except (OperatorError, ShapeError, BoundsError) as error:
                if seed in _FURTHER:  # no values exist at this seed
                    continue
                self.found.not_evaluated.append(f"`{self.part.function}`: {error}")
                return
            if seed in _SEEDS:
                worlds.append(world)
                self.found.sizes.append(sizes)
        self.found.compared += len(told)
        for i in range(len(pairs)):
            if i not in told:
                rule = pairs[i][2]
                what = f"step by rule `{rule.rule.name}`" if rule is not None else "a result"
                why = "has no finite values where it was tried"
                self.found.not_evaluated.append(f"`{self.part.function}`: {what} {why}")
        self._whole_programs(worlds)

    def _compare(self, pairs: Sequence[Pair], values: SharedValues, sizes: Mapping[str, int]) -> set[int]:
        """Compares pairs. Returns the indices of those whose values are not all NaN or infinite (`tells`)."""
        told: set[int] = set()
        for i, (a, b, e) in enumerate(pairs):
            x, y = values.of(a), values.of(b)
            if tells(x):
                told.add(i)
            near = [values.of(v) for v in (() if e is None else e.operands)]
            problem = compared(x, y, self.loosest if e is None else e.rule.numerics, near)
            if problem:
                raise self.fail(e, f"the values differ at {_at(sizes)}: {problem}")
        return told

    def _whole_programs(self, worlds: Sequence[SharedValues]) -> None:
        sizes = self.found.sizes[-len(worlds) :]

        def fail(change: Change, number: int, world: int, why: str) -> ExplanationError:
            step = change.rewritten
            by = "" if step is None else f", which the step by rule `{step.equation.rule.name}` makes,"
            text = f"the results of whole program {number}{by} differ from those of the program as written"
            return self.fail(None, f"{text} at {_at(sizes[world])}: {why}")

        programs = WholePrograms(self.part.results, worlds, self.loosest, self._deduced, fail)
        with np.errstate(all="ignore"):
            self.found.programs[-1] = programs.run()

    def _deduced(self, e: Expr) -> None:
        """Proves the annotation of one operator from those of its operands."""
        key = (e.op, tuple(a.annotation for a in e.args), e.attrs, e.annotation)
        if key in self._proved:
            return
        self._proved.add(key)
        operands = [with_sizes(a, self.one) for a in key[1]]
        try:
            if e.op in TABLE:
                attrs = {k: with_one(v, self.one) for k, v in e.attrs}
                found = deduce(e.op, tuple(operands), attrs)
            elif e.op == CALL:
                found = call_annotation(operands[0], operands[1:])
            elif e.op in CONTROL:
                found = deduce_control(e.op, operands, dict(e.attrs))
            elif e.op == TUPLE:
                found = Tuple(tuple(operands))
            elif e.op == TUPLE_GET and isinstance(operands[0], Tuple):
                found = operands[0].fields[e.attr("index")]
            elif e.op == CALL_TIR:
                found = tir_annotation(e.attr("program").value, operands, e.attr("sizes"))
                if why := clash(e.annotation, found):
                    raise self.fail(None, f"a kernel fills {found}, to be filled is {e.annotation}: {why}")
                return
            elif e.op == CONSTANT:
                data = constant_value(e)
                found = Tensor(data.shape, e.dtype if data.dtype == np_dtype(e.dtype) else data.dtype.name)
            elif e.op == FUNCTION:
                found = self._signature(str(e.attr("name")))
            else:
                return
        except (OperatorError, IndexError) as error:
            raise self.fail(None, f"a whole program has {e.op} of what it does not take: {error}") from None
        self._same_annotation(
            None, found, with_sizes(e.annotation, self.one), f"the shape of {e.op} in a whole program"
        )

    def _signature(self, name: str) -> Annotation:
        d = self.derivation
        known = next((f for f in d.shared if f.name == name), None) or d.functions.get(name)
        if known is None:
            raise self.fail(None, f"the derivation has no function `{name}`")
        return function_annotation(known)

    def _pairs(self, opaque: bool) -> list[Pair]:
        """Returns the pairs of expressions that are said to be equal (see `Pair`). `opaque`: library calls cannot be
        computed."""
        found: list[Pair] = []
        for e in self.part.equations:
            if opaque and not isinstance(e.rule, Rule) and self._runs_opaque(e):
                self.found.not_evaluated.append(f"`{e.rule.name}` moves library calls that are not at hand")
                continue
            found += [(a, b, e) for a, b in e.pairs]
        ends = [g for goals in (self.part.results, *self.part.forms) for g in goals]
        return found + [(g.start, g.end, None) for g in ends if g.start is not g.end]

    def _runs_opaque(self, e: Equation) -> bool:
        sides = [x for pair in e.pairs for x in pair]
        functions = mentioned(sides, self.derivation.functions).values()
        inside = [x for f in functions for x in f.expressions()]
        return any(x.op == CALL_DPS_LIBRARY and library_of(x) is None for x in (*postorder(sides), *inside))


def _one_of(pairs: Sequence[tuple[Dim, Dim]]) -> dict[Dim, Dim]:
    """Maps each size of the equal `pairs` to one size that stands for all its equals: a constant if one is equal,
    because an axis of size 1 broadcasts."""
    one: dict[Dim, Dim] = {}
    for x, y in pairs:
        kept, other = one.get(x, x), one.get(y, y)
        if other.is_const:
            kept, other = other, kept
        one.update({z: kept for z, k in one.items() if k == other} | {x: kept, y: kept, other: kept})
    return one
