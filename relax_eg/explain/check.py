"""Replays a derivation: checks every rule, condition, shape and size in it again, and asks rules about whole nodes
again (`proposals`).

The reference interpreter also evaluates both sides of every use of a rule, the values of every part as written and as
chosen, and both end programs, at small sizes and at sizes next to numbers in the programs. The whole programs in
between (`programs`) are not evaluated one by one: each differs from the previous one by the sides of one use of a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relax_eg.errors import BoundsError, ExplanationError, OperatorError, ShapeError
from relax_eg.explain.closure import sizes_that_differ
from relax_eg.explain.programs import changes
from relax_eg.explain.proposals import Proposals
from relax_eg.explain.record import signature, with_canonical_sizes
from relax_eg.explain.result import Derivation, DerivationPart
from relax_eg.explain.steps import CongruenceStep, Equation, Goal, RuleStep, equation
from relax_eg.explain.values import (
    compare_values,
    deviation,
    deviation_text,
    draw,
    is_informative,
    numbers_in,
    stand_in_value,
)
from relax_eg.figures import binding_text
from relax_eg.ir.annotations import Annotation, Tensor, dims_of, with_sizes
from relax_eg.ir.calls import reachable_functions
from relax_eg.ir.calls import signature as function_annotation
from relax_eg.ir.expr import CALL_DPS_LIBRARY, FUNCTION, VAR, Expr, node, postorder, tuple_
from relax_eg.ir.module import Function, Module
from relax_eg.ir.scopes import scopes_of
from relax_eg.ir.wellformed import check as check_module
from relax_eg.ops.deduction import annotation_from
from relax_eg.ops.facts import FACTS, facts_of_dtype, impossible, with_implied
from relax_eg.ops.interpret import Libraries, SharedValues, evaluate, step_limit
from relax_eg.ops.libraries import library_of
from relax_eg.rules import NUMERICS, Claim, Rule, RuleSet, Schema, ValueTest
from relax_eg.rules.checking.certificates import status
from relax_eg.rules.checking.schema_answers import Batched
from relax_eg.rules.conditions import key_of
from relax_eg.rules.facts.fact_rules import NONEMPTY
from relax_eg.rules.facts.parameter_facts import Facts, facts_of_functions, known_facts
from relax_eg.shapes import Dim, Proved, Relation, Scope, prove

# Two expressions that the derivation claims to be equal, and the use of a rule by which they are; None for a goal.
Pair = tuple[Expr, Expr, Equation | None]
# Compares the values that are computed from arguments at sizes.
Compare = Callable[[list[Any], dict[str, int]], None]

# chosen: seeds of the drawn values; with the last, values are near numbers in the programs, and may not exist
_SEEDS, _SEEDS_NEAR_NUMBERS = (0, 1), (2,)
# How a fact of a value is known.
_DERIVED = "derived from what is declared and from the operators"
_PROVED = "the two sides are equal over the reals: proved for these shapes and for all values"
# limit: loop steps of one evaluation, about a second; derivations with more are checked, but not evaluated
_MOST_STEPS = 4_000


@dataclass
class Replay:
    """The outcome of replaying a derivation.

    - `equations`: number of uses of rules.
    - `conditions`: by use of a rule, its side conditions, each with its proof.
    - `equal_sizes`: equalities of sizes that are written differently, each with its proof.
    - `operators`: number of operators whose shapes were proved.
    - `compared`: number of pairs of expressions whose values were compared.
    - `deviations`: the difference of the two sides, by use of a rule and index of its pair, in units of the largest
      element.
    - `sizes`: the sizes at which the sides were evaluated.
    - `programs`: number of whole programs that the steps make.
    - `end_deviation`: the difference of the results of the chosen module and of the module as written, in units of the
      largest element; None if not evaluated.
    - `not_evaluated`: the expressions that were not evaluated, each with the reason, as text.
    - `numerics`: the classes of the steps, the loosest last. A step that uses a fact that holds over the reals only
      counts as class reassociate.
    """

    equations: int = 0
    conditions: dict[Equation, list[str]] = field(default_factory=dict[Equation, list[str]])
    equal_sizes: dict[str, None] = field(default_factory=dict[str, None])
    operators: int = 0
    compared: int = 0
    deviations: dict[tuple[Equation, int], float] = field(default_factory=dict[tuple[Equation, int], float])
    sizes: list[dict[str, int]] = field(default_factory=list[dict[str, int]])
    programs: int = 0
    end_deviation: float | None = None
    not_evaluated: list[str] = field(default_factory=list[str])
    numerics: tuple[str, ...] = NUMERICS[:1]

    def __str__(self) -> str:
        proved = sum(map(len, self.conditions.values())) + len(self.equal_sizes)
        largest = deviation_text(max(self.deviations.values(), default=0.0))
        uses = "use" if self.equations == 1 else "uses"
        parts = [
            f"{self.equations} {uses} of rules, {proved} side conditions proved, {self.compared} pairs evaluated, "
            f"{largest}, shapes of {self.operators} operators proved",
            f"{self.programs} whole programs",
        ]
        if self.end_deviation is not None:
            parts.append(f"the chosen program against the one as written: {deviation_text(self.end_deviation)}")
        return "; ".join([*parts, *(f"not evaluated: {why}" for why in self.not_evaluated)])

    def record_numerics(self, numerics: str) -> None:
        """Records that a step is of this numerics class."""
        self.numerics = NUMERICS[: max(len(self.numerics), 1 + NUMERICS.index(numerics))]  # type: ignore[arg-type]


def replay(derivation: Derivation, libraries: Libraries | None = None, batched: Batched | None = None) -> Replay:
    """Replays `derivation`. ExplanationError names the first step that does not hold, with the reason.

    - `libraries`: computes library calls; without it an arbitrary function of the operands stands for each call.
    - `batched`: applies a function to slices, which rules about loops require; without it their steps do not hold.
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
        Proposals(derivation, part, batched, check.facts_of, check.fail, check.record_proof).check()
        check.evaluate(libraries)
    if derivation.parts:
        _compare_ends(derivation, libraries, found)
    return found


def _compare_ends(d: Derivation, libraries: Libraries | None, found: Replay) -> None:
    """Evaluates the module as written and the chosen one on the same arguments."""
    deviations: list[float] = []

    def compare(given: list[Any], sizes: dict[str, int]) -> None:
        a, b = (evaluate(m, given, sizes=sizes, libraries=libraries or stand_in_value) for m in (d.written, d.chosen))
        if why := compare_values(a, b, d.numerics[-1]):
            at = binding_text(sizes) or "its sizes"
            raise ExplanationError(f"{d.name}: the chosen program and the one as written differ at {at}: {why}")
        if is_informative(a):
            deviations.append(deviation(a, b))

    if why := _evaluate_at_seeds(d.written.main, (*d.written, *d.chosen), d.scope, d.facts, compare):
        found.not_evaluated.append(f"the programs from end to end: {why}")
    elif deviations:
        found.end_deviation = max(deviations)
    else:
        found.not_evaluated.append("the programs from end to end have no finite values where they were tried")


def _evaluate_at_seeds(
    function: Function, functions: Iterable[Function], scope: Scope, facts: Facts, compare: Compare
) -> str:
    """Calls `compare` for each seed, with drawn arguments of `function` that have `facts`, and with their sizes. Some
    are near the numbers in `functions`. Returns why values cannot be drawn or computed; "" if they can."""
    around = numbers_in(e for f in functions for e in f.expressions())
    for seed in (*_SEEDS, *_SEEDS_NEAR_NUMBERS):
        try:
            given, sizes = draw(function, scope, facts, seed, around)
            with np.errstate(all="ignore"), step_limit(_MOST_STEPS):
                compare(given, sizes)
        except (OperatorError, ShapeError, BoundsError) as error:
            if seed not in _SEEDS_NEAR_NUMBERS:
                return str(error)
    return ""


def _check_facts(d: Derivation) -> None:
    """Raises ExplanationError unless every fact is declared of a parameter of the program as written, the parameter is
    an array that can have the fact, and arguments with all facts exist."""
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
    lacking: list[str] = []
    for seed in _SEEDS:
        try:
            draw(some, d.scope, d.facts, seed)
        except OperatorError as error:
            lacking.append(str(error))
    if len(lacking) == len(_SEEDS):
        raise ExplanationError(f"{d.name}: {lacking[0]}; a derivation from facts that nothing has says nothing")


class _Check:
    """The check of one part of a derivation. It records its results in `found`.

    - `facts`: facts of the part's parameters; unless `exact`, they may hold over the reals only.
    - `strict`: facts of the part's parameters that hold of values as computed.
    """

    def __init__(
        self,
        derivation: Derivation,
        part: DerivationPart,
        scope: Scope,
        facts: Facts,
        strict: Facts,
        exact: bool,
        found: Replay,
    ) -> None:
        self.derivation = derivation
        self.part = part
        self.scope = scope
        self.facts = facts
        self.found = found
        self.known = known_facts(facts, exact, scope)
        self.strict = known_facts(strict, True, scope)
        self.loosest = derivation.numerics[-1]
        self.origins = derivation.origins.get(part.function, {})
        self.equal: dict[tuple[Dim, Dim], None] = {}  # pairs of sizes proved equal
        self.canonical_sizes: dict[Dim, Dim] = {}  # for each such size, the size that stands for all its equals
        named = (*derivation.functions.values(), *derivation.shared)
        self.signatures = {f.name: function_annotation(f) for f in named}
        self._proved: set[object] = set()

    def facts_of(self, e: Expr) -> frozenset[str]:
        """The facts of `e`."""
        return self.known.among((*FACTS, NONEMPTY), e)

    def record_proof(self, e: Equation, used: Mapping[Expr, frozenset[str]]) -> None:
        """Adds the facts that the proof of a step was given to its conditions, without those that follow from others
        of the same expression or from its dtype; and that it is proved, if its rule does not tell."""
        if isinstance(e.rule, Schema) and not e.rule.must_prove:
            self.found.conditions[e].append(_PROVED)
        for x, facts in used.items():
            known = facts - facts_of_dtype(x.dtype)
            for fact in sorted(f for f in known if not any(f in with_implied((g,)) for g in known - {f})):
                if not self.strict.has(x, fact):
                    self.found.record_numerics("reassociate")
                claim = Claim(fact, str(x.attr("name")) if x.op == VAR else repr(x))
                self.found.conditions[e].append(f"{claim}: {_DERIVED}")

    def run(self) -> None:
        self.found.programs += sum(1 for _ in changes(self.part.results))
        for e in self.part.equations:
            self.found.conditions[e] = list(self._equation(e))
            self.found.equations += 1
        for goal in self.part.goals:
            self._goal(goal)
        self.canonical_sizes = _canonical_forms(list(self.equal))
        # Shapes are proved before anything is evaluated, because an expression of a wrong shape may have no value.
        sides = [x for e in self.part.equations for pair in e.pairs for x in pair]
        for e in postorder([*sides, *(x for g in self.part.goals for x in (g.start, *(to for _, to in g.steps)))]):
            self._deduced(e)
            self.found.operators += bool(e.args)

    def fail(self, e: Equation | None, text: str) -> ExplanationError:
        where = f"{self.derivation.name}: in `{self.part.function}`"
        if e is None:
            return ExplanationError(f"{where}: {text}")
        line = next((str(self.origins[x]) for pair in e.pairs for x in pair if x in self.origins), "")
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
        self.found.record_numerics(rule.numerics)
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
            if isinstance(g, Relation):
                proofs.append(self._proof(e, g.substitute(sizes)))
            elif isinstance(g, (Claim, ValueTest)):
                if not self.known.has(env[g.name], key_of(g)):
                    raise self.fail(e, f"its condition {g} is not known to hold")
                if not self.strict.has(env[g.name], key_of(g)):
                    self.found.record_numerics("reassociate")
                proofs.append(f"{g}: {_DERIVED}")
        return proofs

    def _same_annotation(self, e: Equation | None, a: Annotation, b: Annotation, what: str = "the result") -> list[str]:
        """Checks that shapes and dtypes agree, by proof where sizes are written differently. Returns the proofs."""
        if a == b:
            return []
        xs, ys = dims_of(a), dims_of(b)
        pairs = [(x, y) for x, y in dict.fromkeys(zip(xs, ys, strict=False)) if x != y]
        one = _canonical_forms(pairs)
        if len(xs) != len(ys) or with_sizes(a, one) != with_sizes(b, one):
            raise self.fail(e, f"{what} is {b} where {a} is wanted")
        proofs = [self._proof(e, Relation.of(x, "==", y), f"{what}: ") for x, y in pairs]
        self.equal.update(dict.fromkeys(pairs))
        return proofs

    def _proof(self, e: Equation | None, statement: Relation, what: str = "") -> str:
        """Returns the proof of a statement on sizes, as text."""
        answer = prove(statement, self.scope)
        if not isinstance(answer, Proved):
            raise self.fail(e, f"{what}not proved: {statement} ({answer})")
        return f"{statement}: proved ({answer.by})"

    # --- goals ---

    def _goal(self, goal: Goal) -> None:
        """Checks that the steps lead from start to end. The rules and the goals that they use are checked elsewhere."""
        at = goal.start
        for step, to in goal.steps:
            if isinstance(step, RuleStep):
                if step.sides != (at, to):
                    raise self.fail(step.equation, "it does not lead from the expression before it to the one after it")
            else:
                self._congruence(step, at, to)
            at = to
        if at is not goal.end:
            raise self.fail(None, "the steps do not lead to what they are said to lead to")

    def _congruence(self, step: CongruenceStep, at: Expr, to: Expr) -> None:
        names = [[k for k, _ in x.attrs] for x in (at, to)]
        if at.op != to.op or names[0] != names[1] or not len(at.args) == len(to.args) == len(step.operands):
            raise self.fail(None, f"a step inside operands turns {at.op} into {to.op}")
        for a, b, goal in zip(at.args, to.args, step.operands, strict=True):
            if (a is not b) if goal is None else (goal.start, goal.end) != (a, b):
                raise self.fail(None, f"an operand of {at.op} was changed, and no step says why")
        differing = sizes_that_differ(at, to)
        if list(step.sizes) != differing:
            raise self.fail(None, f"a step inside operands says of other sizes of {at.op} that they are equal")
        one = _canonical_forms(differing)
        if signature(at.op, dict(at.attrs), None, one) != signature(to.op, dict(to.attrs), None, one):
            raise self.fail(None, f"a step inside operands changes attributes of {at.op}")
        proofs = [self._proof(None, Relation.of(x, "==", y)) for x, y in differing]
        self.equal.update(dict.fromkeys(differing))
        proofs += self._same_annotation(None, at.annotation, to.annotation, f"the result of {at.op}")
        self.found.equal_sizes.update(dict.fromkeys(proofs))

    # --- values ---

    def evaluate(self, libraries: Libraries | None) -> None:
        """Evaluates the pairs of expressions that the derivation claims to be equal, and compares their values."""
        pairs = self._pairs(libraries is None)
        if not pairs:
            return
        terms = list(dict.fromkeys(x for a, b, e in pairs for x in (a, b, *(() if e is None else e.operands))))
        reads = [x for x in postorder(terms) if x.op == VAR]
        functions = reachable_functions(terms, self.derivation.functions)
        body = Function("terms", tuple(reads), (), tuple_(terms))
        module = Module((body, *functions))
        informative: set[int] = set()  # indices of pairs with informative values at some seed

        def compare(given: list[Any], sizes: dict[str, int]) -> None:
            values = SharedValues(module, dict(zip(reads, given, strict=True)), sizes, libraries or stand_in_value)
            informative.update(i for i, pair in enumerate(pairs) if self._compare(*pair, values, sizes))
            self.found.sizes.append(sizes)

        if why := _evaluate_at_seeds(body, module, self.scope, self.facts, compare):
            self.found.not_evaluated.append(f"`{self.part.function}`: {why}")
            return
        self.found.compared += len(informative)
        for i, (_, _, e) in enumerate(pairs):
            if i not in informative:
                what = "a result" if e is None else f"step by rule `{e.rule.name}`"
                why = "has no finite values where it was tried"
                self.found.not_evaluated.append(f"`{self.part.function}`: {what} {why}")

    def _compare(self, a: Expr, b: Expr, e: Equation | None, values: SharedValues, sizes: Mapping[str, int]) -> bool:
        """Compares the values of a pair. Returns whether the values are informative (`is_informative`)."""
        x, y = values.of(a), values.of(b)
        near = [values.of(v) for v in (() if e is None else e.operands)]
        if problem := compare_values(x, y, self.loosest if e is None else e.rule.numerics, near):
            raise self.fail(e, f"the values differ at {binding_text(sizes) or 'its sizes'}: {problem}")
        if e is not None and is_informative(x):
            key = e, e.pairs.index((a, b))
            self.found.deviations[key] = max(self.found.deviations.get(key, 0.0), deviation(x, y))
        return is_informative(x)

    def _deduced(self, e: Expr) -> None:
        """Proves the annotation of one operator from those of its operands."""
        key = (e.op, tuple(a.annotation for a in e.args), e.attrs, e.annotation)
        if key in self._proved:
            return
        self._proved.add(key)
        if e.op == VAR:
            return
        if e.op == FUNCTION and e.attr("name") not in self.signatures:
            raise self.fail(None, f"the derivation has no function `{e.attr('name')}`")
        attrs = {k: with_canonical_sizes(v, self.canonical_sizes) for k, v in e.attrs}
        shown = node(e.op, e.args, attrs.items(), with_sizes(e.annotation, self.canonical_sizes))
        try:
            found = annotation_from(shown, [with_sizes(a, self.canonical_sizes) for a in key[1]], self.signatures)
        except (OperatorError, IndexError) as error:
            raise self.fail(None, f"the derivation has {e.op} of what it does not take: {error}") from None
        self._same_annotation(None, found, shown.annotation, f"the shape of {e.op}")

    def _pairs(self, opaque: bool) -> list[Pair]:
        """Returns the pairs of expressions that the derivation claims to be equal. `opaque`: whether library calls
        cannot be computed."""
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
        inside = [x for f in reachable_functions(sides, self.derivation.functions) for x in f.expressions()]
        return any(x.op == CALL_DPS_LIBRARY and library_of(x) is None for x in (*postorder(sides), *inside))


def _canonical_forms(pairs: Sequence[tuple[Dim, Dim]]) -> dict[Dim, Dim]:
    """Returns, for each size of the equal `pairs`, the size that stands for all its equals: a constant if there is one,
    because an axis of size 1 broadcasts."""
    one: dict[Dim, Dim] = {}
    for x, y in pairs:
        kept, other = one.get(x, x), one.get(y, y)
        if other.is_const:
            kept, other = other, kept
        one.update({z: kept for z, k in one.items() if k == other} | {x: kept, y: kept, other: kept})
    return one
