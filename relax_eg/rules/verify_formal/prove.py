"""Proves rules for all sizes: `prove_rule`.

A rule is proved if every instance is. The instances have block ranks 0 to `LARGEST_RANK`. A rule with attribute
variables has one for every value of these, at block ranks 0 to 3 and for operands of up to `_LARGEST_OPERAND` axes. In
each of the other float types a few instances are proved. An instance is proved if

- the right side exists wherever the left side does: sizes of axes, slice bounds, divisors, preconditions of `take`;
- each result is the same at every index, by `folds` (bit for bit) or, if the rule does not claim bits, by `values`
  (over the reals, or modulo 2^w), equally defined, and the right side adds up no larger summands than the left side.

If an instance is shown only by an identity that `folds` assumes, the rule restates the identity: it is an "axiom". Any
other outcome, including running out of time, is "unknown": the prover never refutes. It assumes that sizes,
positions and numbers of true values fit int32 and int64, and that the arithmetic of positions does not wrap.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from relax_eg.dtypes import FLOATS, is_float, kind
from relax_eg.errors import RelaxEgError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.calls import substitute_exprs
from relax_eg.ir.expr import CONSTANT, VAR, Expr, own_dims, postorder, var
from relax_eg.ops.facts import FACTS, with_implied
from relax_eg.ops.record import operators_run_as
from relax_eg.ops.windows import AnyStep, StepComparison, is_any_step
from relax_eg.rules.attribute_variables import attribute_values, read_source
from relax_eg.rules.checking.points import keeps_accuracy, related
from relax_eg.rules.conditions import Claim, FactKey, claims_of
from relax_eg.rules.facts.fact_rules import NONEMPTY
from relax_eg.rules.facts.propagation import KnownFacts, Leaves, is_positive_number
from relax_eg.rules.matrices.equality import are_same
from relax_eg.rules.matrices.lifting import Lift
from relax_eg.rules.rule import Instance, Rule, equality_rule, instances
from relax_eg.rules.signature import Numerics
from relax_eg.rules.verify_formal.accuracy import keeps_precision, may_have_masks
from relax_eg.rules.verify_formal.blocks import any_rank
from relax_eg.rules.verify_formal.compare import Sides, equal_by_choices
from relax_eg.rules.verify_formal.compose import POSITION, Composer, Unsupported, indices_of, size_conditions
from relax_eg.rules.verify_formal.empty_axes import cases
from relax_eg.rules.verify_formal.existence import require_operators, require_sizes
from relax_eg.rules.verify_formal.folds import Folds
from relax_eg.rules.verify_formal.guards import (
    Deadline,
    GuardLiteral,
    KnownGuards,
    OutOfTime,
    at_least,
    guard,
    in_range,
)
from relax_eg.rules.verify_formal.places import Written, remainder_cases
from relax_eg.rules.verify_formal.pointwise import same_elements
from relax_eg.rules.verify_formal.terms import Normalizer
from relax_eg.rules.verify_formal.values import TermValues
from relax_eg.rules.verify_formal.words import same_words
from relax_eg.shapes import Dim, Relation, Star
from relax_eg.shapes.dim import is_plain
from relax_eg.shapes.piecewise import normal_comparison
from relax_eg.shapes.solver import Z3_LOCK
from relax_eg.tir.expr import Read, Scalar, loop

LARGEST_RANK = 2  # limit: axes of a block
SECONDS = 10.0  # limit: processor time for one rule
# limit: instances in each of the other float types, which differ from float32's in accumulators and casts only.
_OTHER_FLOATS = 6
# limit: instances of a rule for each choice of operators; a rule with more is not proved, only tested
_MOST_INSTANCES = 400
_LARGEST_OPERAND = 4  # limit: axes of an operand
# Attributes that have finitely many values on operands of a given rank; all of them are tried.
_CLOSED = frozenset({"axes", "axis", "keepdims", "reverse", "mode", "method", "precision"})
# Attributes whose values are represented by variables, one for each axis.
_OF_STEPS = frozenset({"conv.strides", "conv.dilation", "reduce_window.strides", "reduce_window.dilation"})

# Operators that solve and factor: they have no index equations, but laws.
_LINEAR_ALGEBRA = operators_run_as("factorisation", "solve")

Theory = Literal["exact", "modular", "real"]
# The result for an instance; "axiom": the same bits, by an assumed identity.
_Outcome = Literal[Theory, "axiom"]
_STRENGTH: tuple[_Outcome, ...] = ("axiom", "exact", "modular", "real")


@dataclass(frozen=True)
class Proof:
    """The result of the prover for a rule.

    - `rule`: the rule.
    - `status`: "axiom" if the rule is an identity that the prover assumes.
    - `theory`: the weakest theory that an instance needed: "exact" (the same bits), "modular" (integers modulo 2^w) or
      "real" (over the reals, no cancellation added); None if unknown.
    - `instances`: number of instances.
    - `ranks`: block ranks proved, or "all" if every operator passes the blocks through in order.
    - `seconds`: time spent.
    - `reason`: why it is unknown.
    """

    rule: Rule
    status: Literal["proved", "axiom", "unknown"]
    theory: Theory | None
    instances: int
    ranks: str
    seconds: float
    reason: str = ""

    def __str__(self) -> str:
        if self.status == "unknown":
            return f"{self.rule.name}: unknown ({self.reason})"
        ranks = f", block ranks {self.ranks}" if self.ranks else ""
        return f"{self.rule.name}: {self.status} ({self.theory}, {self.instances} instances{ranks})"


def prove_rule(rule: Rule, seconds: float = SECONDS) -> Proof:
    """Tries to prove `rule` for all sizes, within about `seconds` of processor time."""
    started = time.perf_counter()
    deadline = Deadline(time.thread_time() + seconds)
    count = 0
    theories: set[_Outcome] = set()
    reason = ""
    try:
        for instance in _instances(rule):
            deadline.check()
            count += 1
            if count > _MOST_INSTANCES * len(rule.operator_choices):
                raise Unsupported("too many instances")
            theories.add(prove_instance(instance, deadline))
    except OutOfTime:
        reason = f"out of time after {count} instances"
    except (Unsupported, RelaxEgError) as e:
        reason = f"{e} (instance {count})"
    except RecursionError:
        reason = "terms too deep"
    if not count and not reason:
        reason = "no instance can be formed"
    spent = time.perf_counter() - started
    if reason:
        return Proof(rule, "unknown", None, count, "", spent, reason)
    weakest = max(theories, key=_STRENGTH.index)
    status = "axiom" if "axiom" in theories else "proved"
    return Proof(rule, status, "exact" if weakest == "axiom" else weakest, count, _ranks(rule), spent)


def _instances(rule: Rule) -> Iterator[Instance]:
    if rule.attributes:
        chosen = list(_every_instance(rule))
    else:
        chosen = list(instances(rule, ranks=range(LARGEST_RANK + 1)))
    yield from chosen
    if rule.has_open_dtype:
        for dtype in FLOATS:
            if dtype == "float32":
                continue
            limit = 1 if _OF_STEPS.intersection(rule.attributes.values()) else _OTHER_FLOATS
            yield from instances(rule, limit=limit, ranks=range(LARGEST_RANK + 1), dtypes=(dtype,))


def _every_instance(rule: Rule) -> Iterator[Instance]:
    """Yields the instances of a rule with attribute variables, at every attribute value for operands of up to
    `_LARGEST_OPERAND` axes."""
    for source in rule.attributes.values():
        _, attribute = read_source(source)
        if attribute and attribute not in _CLOSED and source not in _OF_STEPS:
            raise Unsupported(f"{source} has more values than can be tried")
    seen: set[int] = set()
    for blocks in itertools.product(range(_largest_rank(rule) + 1), repeat=len(rule.block_names)):
        fixed = max((sum(not isinstance(d, Star) for d in s.dims) for s in rule.signature.values()), default=0)
        rank = min(_LARGEST_OPERAND, fixed + sum(blocks) + 1)
        values = [_attribute_values(rule, source, rank) for source in rule.attributes.values()]
        for instance in _formed(rule, blocks, itertools.product(*values)):
            if instance is not None and id(instance) not in seen and instance.left != instance.right:
                seen.add(id(instance))
                yield instance


def _formed(rule: Rule, blocks: tuple[int, ...], choices: Iterable[tuple[Any, ...]]) -> Iterator[Instance | None]:
    """Yields the instances at these attribute values. If the rule's function asks whether a step equals a number, there
    is one for the case in which it does and one for the case in which it does not."""
    for chosen in choices:
        cases = [chosen]
        while cases:
            values = cases.pop()
            try:
                yield rule.instance(blocks, "float32", dict(zip(rule.attributes, values, strict=True)))
            except StepComparison as asked:
                cases += [_decided(values, asked, holds) for holds in (True, False)]


def _decided(values: tuple[Any, ...], asked: StepComparison, holds: bool) -> tuple[Any, ...]:
    def step(s: Any) -> Any:
        if s is not asked.step:
            return s
        return asked.value if holds else s.differing_from(asked.value)

    return tuple(tuple(map(step, v)) if isinstance(v, tuple) else v for v in values)  # type: ignore[reportUnknownArgumentType]


def _attribute_values(rule: Rule, source: str, rank: int) -> list[Any]:
    """Returns the values of an attribute on operands of up to `rank` axes, or variables that stand for them."""
    if source in _OF_STEPS:
        name = source.rpartition(".")[2]
        return [tuple(AnyStep(name, i) for i in range(r)) for r in range(rank + 1)]
    return list({repr(v): v for r in range(rank + 1) for v in attribute_values(rule.error, source, r)}.values())


def _ranks(rule: Rule) -> str:
    if not rule.block_names:
        return ""
    return "all" if any_rank(rule) else f"0 to {_largest_rank(rule)}"


def _largest_rank(rule: Rule) -> int:
    # With attribute variables, ranks differ in more than the length of a block.
    return LARGEST_RANK + rule.ranges_over_attributes


def prove_instance(instance: Instance, deadline: Deadline) -> _Outcome:
    """Returns the theory in which the instance is proved, or "axiom". Raises Unsupported if it is neither."""
    with Z3_LOCK:  # z3's terms live in one context for all threads
        return _prove_instance(instance, deadline)


def _prove_instance(instance: Instance, deadline: Deadline) -> _Outcome:
    base = _facts(instance, deadline)
    require_sizes(instance, base)
    if instance.rule.numerics == "approximate" and _is_linear_algebra(instance) and _same_matrices(instance):
        return "real"
    require_operators(instance, base)
    theories: set[_Outcome] = set()
    for left, right in zip(instance.left, instance.right, strict=True):
        theories.add(_prove_result(instance, left, right, base))
    return "axiom" if "axiom" in theories else max(theories, key=_STRENGTH.index)


# How the reasons begin for which sides that are equal over the reals are not shown to be equally accurate.
_OF_ACCURACY = ("the right side ", "equal over the reals")


def why_not_equal(
    left: Expr,
    right: Expr,
    leaves: Sequence[Expr],
    seconds: float,
    numerics: Numerics = "reassociate",
    facts: Mapping[Expr, Collection[str]] | None = None,
) -> str:
    """Returns why `left` is not shown to be equal to `right` for all sizes and all values of the expressions `leaves`;
    empty if it is shown. `facts`: those of leaves, and of any expressions that they are not empty. Unless `numerics`
    is "approximate", there is no loss of accuracy beyond rounding in another order; where the proof says nothing of
    it, the accuracy law is tested. `seconds`: of processor time of the proof."""
    params = {x: x if x.op == VAR else var(f"leaf {i}", x.annotation) for i, x in enumerate(leaves)}
    sides = substitute_exprs((left, right), params)
    known = facts or {}
    guards: list[Claim | Relation] = []
    for x, found in known.items():
        if NONEMPTY in found:
            guards += [Relation.of(d, ">=", 1) for d in x.shape if not d.is_const]
        if x in params:
            guards += [Claim(f, str(params[x].attr("name"))) for f in sorted(found) if f != NONEMPTY]
    instance = Instance(equality_rule(numerics), tuple(params.values()), (sides[0],), (sides[1],), tuple(guards))
    deadline = Deadline(time.thread_time() + seconds)
    why = why_not_proved(instance, deadline)
    if numerics != "reassociate":
        return why
    tested = _with_relations(instance, params)
    if why:
        over_reals = replace(instance, rule=equality_rule("approximate"))
        if not why.startswith(_OF_ACCURACY) or why_not_proved(over_reals, deadline) or not keeps_accuracy(tested):
            return why
    return "" if not may_have_masks(instance) or keeps_accuracy(tested, masks=True) else _MULTIPLIED_OUT


def _with_relations(instance: Instance, params: Mapping[Expr, Expr]) -> Instance:
    """Returns an instance in which parameters that stand for values computed from others, or from sizes, are these. A
    proof holds for any number in place of n, but only n itself makes x - sum(x) / n small."""
    values = {params[x]: value for x, value in related(params, params).items() if value is not params[x]}
    left, right = (substitute_exprs(side, values) for side in (instance.left, instance.right))
    others = tuple(p for p in instance.params if p not in values)
    return replace(instance, params=others, left=tuple(left), right=tuple(right)) if values else instance


# A proof counts both summands of a factor (1 - mask) on the left side, also where the factor is zero.
_MULTIPLIED_OUT = "equal over the reals; the right side may cancel where a factor of the left side is zero"


def why_not_proved(instance: Instance, deadline: Deadline) -> str:
    """Returns why an instance is not proved; empty if it is."""
    try:
        prove_instance(instance, deadline)
    except OutOfTime:
        return "out of time"
    except (Unsupported, RelaxEgError) as e:
        return str(e)
    return ""


def _facts(instance: Instance, deadline: Deadline) -> KnownGuards:
    """Returns the guards that hold wherever the rule applies and its left side exists."""
    names: dict[str, None] = {}
    for e in postorder((*instance.left, *instance.right)):
        for d in own_dims(e):
            names.update(dict.fromkeys(sorted(d.variables)))
    known = [at_least(Dim.var(n) - 1 if is_any_step(Dim.var(n)) else Dim.var(n)) for n in names]
    for c in size_conditions(instance.left):
        if len(c) == 1 and not _is_any_division(c[0].dim):
            known.append(c[0])
    for g in instance.guards:
        if isinstance(g, Relation):
            known.append(guard(*normal_comparison(g.op, g.left - g.right)))
    return KnownGuards(list(dict.fromkeys(known)), deadline)


def _is_linear_algebra(instance: Instance) -> bool:
    used = {e.op for e in postorder((*instance.left, *instance.right))}
    return bool(used & _LINEAR_ALGEBRA) or any("orthogonal" in f for f in claims_of(instance.guards).values())


def _same_matrices(instance: Instance) -> bool:
    claims = {n: frozenset[FactKey](f) for n, f in claims_of(instance.guards).items()}
    known = KnownFacts(Leaves(claims).have_fact, False, is_positive_number)
    lift = Lift(partial(known.among, FACTS), lambda _: False, lambda _: 2, lambda flops, _, __: flops)
    try:
        return all(are_same(lift, *sides) for sides in zip(instance.left, instance.right, strict=True))
    except (Unsupported, RelaxEgError):  # it contains more than matrices
        return False


def _prove_result(instance: Instance, left: Expr, right: Expr, base: KnownGuards) -> _Outcome:
    try:
        return _prove_elements(instance, left, right, base)
    except Unsupported:
        if _has_floats((left, right)) or _differ_as_words(left, right, base.deadline):
            raise
        return "modular"


def _prove_elements(instance: Instance, left: Expr, right: Expr, base: KnownGuards) -> _Outcome:
    at = indices_of(left)
    facts = base.with_(_ranges(at, left.shape))
    claims = {n: with_implied(f) for n, f in claims_of(instance.guards).items()}
    composer = Composer(claims={n: f & _OF_BITS for n, f in claims.items()})
    a, b = composer.element(left, at), composer.element(right, at)
    # Windows have a condition for each end of each axis, and that many cases, so bits are compared only if claimed.
    compared = instance.rule.numerics == "exact" or not _has_windows(instance)
    is_axiom = False
    if compared and (folds := Folds(composer, facts, claims)).same_terms(a, b):
        if not folds.uses_identities or Folds(composer, facts, claims, identities=False).same_terms(a, b):
            return "exact"
        is_axiom = True
    floats = _has_floats((*instance.left, *instance.right))
    as_sets = (
        compared and instance.rule.numerics != "exact" and any(e.op in ("max", "min") for e in instance.left_nodes)
    )
    if as_sets and Folds(composer, facts, claims, unordered=True).same_terms(a, b):
        return "real"
    if instance.rule.numerics == "exact" and floats:
        if is_axiom:
            return "axiom"
        if not _differ_as_words(left, right, facts.deadline):
            return "exact"
        raise Unsupported("not shown to have the same bits")
    accurately = instance.rule.numerics != "approximate"
    reasons: list[str] = []
    if any(f - _OF_BITS for f in claims.values()):
        composer = Composer(claims=claims)
    for equal in _ways(instance, left, right, at, base, composer):
        try:
            why = equal()
        except Unsupported as e:
            why = str(e)
        if not why:
            return "real" if floats else "modular"
        reasons.append(why)
    a, b = composer.element(left, at), composer.element(right, at)
    if floats and not _equal_elements(a, b, claims, facts.deadline, accurately):
        return "real"
    if is_axiom:
        return "axiom"
    raise Unsupported(reasons[-1])


def _ways(
    instance: Instance,
    left: Expr,
    right: Expr,
    at: tuple[Dim, ...],
    base: KnownGuards,
    whole: Composer,
) -> Iterator[Callable[[], str]]:
    """The ways in which elements `at` are compared over the reals, each a function that returns why they are not shown
    equal. The places of windows are compared one by one, first those alone that decide something. `whole`: makes the
    terms of whole expressions, under all claims."""
    claims = whole.claims
    facts = base.with_(_ranges(at, left.shape))
    shared = _shared(left, right, facts)
    is_by_places = _has_windows(instance)
    if is_by_places:
        yield partial(_equal_place_by_place, left, right, at, base, Composer(claims=claims), instance, "deciding")
    for composer in ([Composer(shared, claims)] if shared else []) + [whole]:
        yield partial(_equal_as_whole, left, right, at, facts, composer, instance)
    if is_by_places:
        yield partial(_equal_place_by_place, left, right, at, base, Composer(claims=claims), instance, "every")


def _equal_as_whole(
    left: Expr, right: Expr, at: tuple[Dim, ...], facts: KnownGuards, composer: Composer, instance: Instance
) -> str:
    a, b = composer.element(left, at), composer.element(right, at)
    return _equal_in_all_cases(a, b, Sides.of(composer, facts), instance)


def _has_windows(instance: Instance) -> bool:
    return any({"low", "dilation"} <= dict(e.attrs).keys() for e in instance.left_nodes)


def _ranges(at: Iterable[Dim], shape: Iterable[Dim]) -> list[GuardLiteral]:
    """Returns the guards that indices lie in a shape, except upper bounds that proofs do without
    (`_is_any_division`)."""
    pairs = [(v, n) for v, n in zip(at, shape, strict=True) if not v.is_const]
    return [g for v, n in pairs for g in ((at_least(v),) if _is_any_division(n) else in_range(v, n))]


def _is_any_division(d: Dim) -> bool:
    """Whether `d` divides and has a step of any value. z3 does not decide such facts, and proofs do not need them."""
    return not is_plain(d) and any(is_any_step(Dim.var(v)) for v in d.variables)


# Facts by which elements have the same bits. "diagonal" is none: zeros off the diagonal may have either sign.
_OF_BITS = frozenset({"symmetric"})


def _with_positions(facts: KnownGuards, composer: Composer, instance: Instance) -> KnownGuards:
    """Returns `facts` with the guards that the position of the one in a one-hot row is in the row."""
    rows = {str(p.attr("name")): p.shape[-1] for p in instance.params if p.ndim}
    more: list[GuardLiteral] = []
    for name, s in composer.opaque.items():
        if isinstance(s, Read) and s.buffer.startswith(POSITION):
            more += in_range(Dim.var(name), rows[s.buffer.removeprefix(POSITION)])
    return facts.with_(more) if more else facts


def _equal_elements(
    a: Scalar, b: Scalar, claims: Mapping[str, frozenset[str]], deadline: Deadline, accurately: bool
) -> str:
    """Returns why terms without reductions are not shown equal; empty if they are."""
    try:
        why = same_elements(a, b, claims, deadline, accurately)
    except Unsupported as e:
        return str(e)
    if why or not accurately:
        return why
    return "" if keeps_precision(a, b) else "the right side computes in a coarser float"


def _differ_as_words(left: Expr, right: Expr, deadline: Deadline) -> str:
    """Returns why elements, computed without reductions, are not shown to have the same bits; empty if they are."""
    at, composer = indices_of(left), Composer()
    try:
        return same_words(composer.element(left, at), composer.element(right, at), deadline)
    except Unsupported as e:
        return str(e)


def _shared(left: Expr, right: Expr, facts: KnownGuards) -> dict[Expr, str]:
    """Returns the largest expressions that both sides compute and that have values everywhere, with names that stand
    for them. A proof for arbitrary values of these names holds for the expressions."""
    both = set(postorder((left,))) & set(postorder((right,)))
    users = [e for e in postorder((left, right)) if e not in both]
    inner = [e for e in dict.fromkeys(a for e in users for a in e.args) if e in both]
    return {e: f"shared {n}" for n, e in enumerate(inner) if e.op not in (VAR, CONSTANT) and _is_total(e, facts)}


def _is_total(e: Expr, facts: KnownGuards) -> bool:
    """Whether each element of `e` is a real number for all sizes and values that the facts allow."""
    if not isinstance(e.annotation, Tensor) or not is_float(e.dtype):
        return False
    at = tuple(Dim.of(0) if n == 1 else loop(f"s{axis}") for axis, n in enumerate(e.shape))
    inside = facts.with_(_ranges(at, e.shape))
    composer = Composer()
    values = TermValues(composer, inside, Normalizer(composer, inside))
    try:
        values.sum_of(composer.element(e, at))
    except Unsupported:
        return False
    return not values.hazards


def _equal_place_by_place(
    left: Expr,
    right: Expr,
    at: tuple[Dim, ...],
    base: KnownGuards,
    composer: Composer,
    instance: Instance,
    written: Written,
) -> str:
    """Returns why elements `at` are not shown equal in some case of remainders of the indices, with sums over few
    places written out; "" if they are in all cases."""
    inside = base.with_(_ranges(at, left.shape))
    whole = [composer.element(e, at) for e in (left, right)]
    found = remainder_cases(whole, at, left.shape, inside, written)
    sides = Sides.of(composer, base.with_(found.guards), written)
    for places, guards in found.cases:
        a, b = (composer.element(e, places) for e in (left, right))
        why = _equal_in_all_cases(a, b, sides, instance, guards)
        if why:
            return why
        if len(found.cases) > 1 and sides.left.hazards:  # they are noted in the first case that has them alone
            return "an element of several cases may have no value"
    return ""


def _equal_in_all_cases(
    a: Scalar, b: Scalar, sides: Sides, instance: Instance, more: Sequence[GuardLiteral] = ()
) -> str:
    """Returns why the terms are not shown equal in some case of empty axes of extremes, where `more` holds besides the
    facts of `sides`; "" if they are in all cases."""
    accurately, of = instance.rule.numerics != "approximate", sides.left
    for x, y, inside in cases(a, b, of.composer, of.facts):
        facts = _with_positions(inside, of.composer, instance)
        own = sides if facts is of.facts else Sides.of(of.composer, facts, of.normal.written)
        why = equal_by_choices(x, y, own, facts.with_(more) if more else facts, accurately)
        if why:
            return why
    return ""


def _has_floats(results: Iterable[Expr]) -> bool:
    return any(isinstance(e.annotation, Tensor) and kind(e.dtype) not in "biu" for e in postorder(tuple(results)))
