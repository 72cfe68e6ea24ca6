"""The probabilistic checker: tests a rule at random sizes and values, or refutes it with a counterexample.

A rule that passes is `tested`. The formal checker (`verify_formal`), which this file calls, may raise that to `proved`,
or to `axiom` if the rule restates something that the formal checker assumes.

The numerics class of a rule determines its judges (`judge.py`): equality over the reals always; equality of bits for
`exact`; the accuracy law for `reassociate`. The same seed gives the same verdict.

Random draws miss some points, so these are enumerated (`suspects.py`): special values, numbers that occur in the rule,
sizes around those numbers, and every float type that an open dtype stands for.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from itertools import chain

import numpy as np

from relax_eg.contexts import holding
from relax_eg.dtypes import FLOATS, is_float, names_where
from relax_eg.errors import RuleError
from relax_eg.ir.expr import Expr, postorder
from relax_eg.memo import Memo
from relax_eg.ops.libraries import library_of
from relax_eg.rules.checking import samples as draws
from relax_eg.rules.checking.check_libraries import check_library
from relax_eg.rules.checking.judge import (
    Absent,
    Judge,
    find_failure,
    is_rational,
    judge_accuracy,
    judge_bits,
    judge_exactly,
    judge_over_reals,
    widen_sides,
)
from relax_eg.rules.checking.points import InstanceKey, PointPlan, cases_of, instance_key
from relax_eg.rules.checking.samples import draw_under_guards
from relax_eg.rules.checking.schema_trials import first_difference, proved_proposals
from relax_eg.rules.checking.suspects import size_suspects, sizes_near, special_suspects, suspects_among_all
from relax_eg.rules.checking.verdict import Verdict
from relax_eg.rules.checking.witness import Counterexample, witness
from relax_eg.rules.content import content_hash
from relax_eg.rules.format import expression_text
from relax_eg.rules.rule import Instance, Rule, instances, require_instance
from relax_eg.rules.schemas import Schema

SAMPLES = 48  # limit: points at which a rule is tested
UNPROVED_SAMPLES = 400  # limit: points at which each judge tests a rule without a proof; 48 missed a wrong sign of zero
_INSTANCES = 12  # limit: instances of a rule that are tested
# limit: instances tested for each further float type that an open dtype stands for.
_INSTANCES_OF_OTHERS = 2
# limit: instances that are tested at sizes near the numbers in a rule.
_INSTANCES_AT_LARGE_SIZES = 3
# limit: elements of a sample in exact arithmetic, which is slow, if the rule admits smaller sizes.
_EXACT_ELEMENTS = 150


def check(rule: Rule, samples: int = SAMPLES, seed: int = 0) -> Verdict:
    """Tests `rule` at about `samples` points for each of its judges. Raises RuleError if the rule has no instance."""
    started = time.perf_counter()
    require_instance(rule)
    chosen, others = tested_instances(rule)
    for instance in (*chosen, *chain.from_iterable(others.values())):
        require_same_sides(instance)
    tested, found = _compare_sides(rule, chosen, others, samples, seed)
    seconds = time.perf_counter() - started
    if found is not None:
        return Verdict(rule, "refuted", tested, found, seconds, str(found))
    return Verdict(rule, "tested", tested, None, seconds, untested=_untested(rule))


def _compare_sides(
    rule: Rule, chosen: Sequence[Instance], others: Mapping[str, Sequence[Instance]], samples: int, seed: int
) -> tuple[int, Counterexample | None]:
    """The number of drawn points at which the sides of instances were compared, and a counterexample if they differ."""
    tested = 0
    for n, plan in enumerate(_plans(rule, chosen, others, samples)):
        rng = np.random.default_rng((seed, n, zlib.crc32(rule.name.encode())))
        before = tested
        for index, case in enumerate(cases_of(plan, rng)):
            try:
                failure = plan.judge(case)
            except Absent:
                continue
            tested += 1
            if failure is not None:
                return tested, witness(case, failure, plan.judge, plan.draw, seed + index)
        if tested == before:
            raise rule.error("the left side exists at none of the sampled sizes and values: nothing can be tested")
    return tested, _enumerated_counterexample(rule, chosen, others, seed)


def tested_instances(rule: Rule) -> tuple[list[Instance], dict[str, list[Instance]]]:
    """The instances at which a rule is tested: those of its first float type, and a dict of those of the others."""
    chosen = list(instances(rule, limit=_INSTANCES))
    if not rule.has_open_dtype:
        return chosen, {}
    # Making an instance raises RuleError if its sides differ in shape or dtype.
    others = [d for d in FLOATS if d != rule.dtypes[0]]
    return chosen, {d: list(instances(rule, limit=_INSTANCES_OF_OTHERS, dtypes=(d,))) for d in others}


def _enumerated_counterexample(
    rule: Rule, chosen: Sequence[Instance], others: Mapping[str, Sequence[Instance]], seed: int
) -> Counterexample | None:
    """A counterexample among the enumerated points, or None."""
    bits = rule.numerics == "exact"
    judge: Judge = judge_bits if bits else judge_over_reals
    draw = draw_under_guards(draws.special) if bits else draw_under_guards(draws.moderate, wide=True)
    every = [*chosen, *(i for found in others.values() for i in found if bits or not _restates(i, chosen))]
    large = [*chosen[:_INSTANCES_AT_LARGE_SIZES], *(i for i in every if i not in chosen)]
    suspects = chain(
        *(special_suspects(i, bits) for i in every),
        *(size_suspects(i, bits, draw) for i in large),
    )  # fmt: skip
    for index, case in enumerate(suspects):
        failure = find_failure(judge, case)
        if failure is not None:
            return witness(case, failure, judge, draw, seed + index)
    return None


def _restates(instance: Instance, chosen: Sequence[Instance]) -> bool:
    """Whether an instance of another float type states, over the reals, the same equation as one of `chosen`."""
    wide = widen_sides(instance)
    return any((w.left, w.right) == (wide.left, wide.right) for w in map(widen_sides, chosen))


def _untested(rule: Rule) -> str:
    """The sizes that occur in the rule and are too large to test, as text; empty if there are none."""
    found: dict[str, None] = {}
    for instance in instances(rule, limit=_INSTANCES_AT_LARGE_SIZES):
        found.update(dict.fromkeys(f"{name} = {number:,}" for name, number in sizes_near(instance)[1]))
    return ", ".join(found)


def _plans(
    rule: Rule, chosen: Sequence[Instance], others: Mapping[str, Sequence[Instance]], samples: int
) -> Iterator[PointPlan]:
    moderate, mixed = draw_under_guards(draws.moderate, wide=True), draw_under_guards(draws.draw_cancelling_floats)
    yield PointPlan(judge_over_reals, moderate, chosen, max(samples, 4 * len(chosen)))
    apart = [i for found in others.values() for i in found if not _restates(i, chosen)]
    if apart:  # instances that are different functions over the reals in different float types
        yield PointPlan(judge_over_reals, moderate, apart, max(samples // 4, 4 * len(apart)))
    rational = [i for i in chosen if is_rational(i)]
    if rational:
        yield PointPlan(
            judge_exactly, draw_under_guards(draws.rationals), rational, samples // 3, elements=_EXACT_ELEMENTS
        )
    if rule.numerics == "exact":
        special = draw_under_guards(draws.special)
        yield PointPlan(judge_bits, special, chosen, samples // 2)
        for found in filter(None, others.values()):
            yield PointPlan(judge_bits, special, found, samples // 8)
    if rule.numerics == "reassociate" and _has_floats(chosen):
        yield PointPlan(judge_accuracy, mixed, chosen, samples // 2, least=1)
        for dtype, found in others.items():
            if found and dtype != "float64":  # the accuracy law takes float64 as exact
                yield PointPlan(judge_accuracy, mixed, found, samples // 8, least=1)


def _has_floats(chosen: Sequence[Instance]) -> bool:
    return any(is_float(p.dtype) for i in chosen for p in i.params)


# `_verdicts`: verdicts by the content hash of a rule, each with the keys of its tested instances. `_passed`: keys of
# the instances that passed.
_MOST_VERDICTS = 1 << 12  # limit: verdicts kept: ten times the shipped rules; a rule that is evicted is tested again
_MOST_PASSED = 1 << 15  # limit: keys of instances kept; an instance that is evicted is tested again
_verdicts = Memo[str, tuple[Verdict, frozenset[InstanceKey]]](_MOST_VERDICTS)
_passed = Memo[InstanceKey, None](_MOST_PASSED)
_checking: ContextVar[bool] = ContextVar("checking", default=True)


def without_checks() -> AbstractContextManager[None]:
    """Context in which registration tests no rule, so that a file of rules is read to the end and all are reported."""
    return holding(_checking, False)


def require_tested(rule: Rule) -> None:
    """Raises RuleError if `rule` is refuted. Rules of the same content are tested once."""
    if not _checking.get():
        return
    verdict = cached_verdict(rule)
    if verdict.status == "refuted":
        raise RuleError(str(verdict))


def cached_verdict(rule: Rule | Schema) -> Verdict:
    """The verdict on `rule`, from memory if a rule of the same content and the same sides has one. Afterwards, an
    instance that a search makes of the rule and that was not tested is tested before use."""
    key = content_hash(rule)
    known, there = _verdicts.get(key, (None, frozenset[InstanceKey]()))
    # A function's result may depend on more than the content hash covers, so the instances are compared too.
    if known is not None and there == _keys(rule):
        verdict = replace(known, rule=rule, seconds=0.0)
    else:
        verdict = _tested(rule)
        _remember(key, verdict)
    if isinstance(rule, Rule):
        rule.test_at_use(passes_test)
    return verdict


def _remember(key: str, verdict: Verdict) -> None:
    keys = _keys(verdict.rule)
    _verdicts[key] = verdict, keys
    if verdict.status == "tested" or verdict.holds_everywhere:
        for k in keys:
            _passed[k] = None


@lru_cache(1 << 10)
def _keys(rule: Rule | Schema) -> frozenset[InstanceKey]:
    """Keys of the instances at which a rule is tested; empty for schemas and library rules."""
    if not isinstance(rule, Rule) or rule.library is not None:
        return frozenset()
    chosen, others = tested_instances(rule)
    return frozenset(map(instance_key, (*chosen, *chain.from_iterable(others.values()))))


def passes_test(instance: Instance) -> bool:
    """Whether an instance passes a test, which is run unless it was run before. False if the instance cannot be tested.
    Raises RuleError, with the counterexample, if it is refuted."""
    if instance_key(instance) not in _passed:
        require_same_sides(instance)
    return have_same_values(instance)


def have_same_values(instance: Instance) -> bool:
    """`passes_test` for an instance that no function makes: of an equality of expressions."""
    rule, key = instance.rule, instance_key(instance)
    if key in _passed:
        return True
    try:
        _, found = _compare_sides(rule, [instance], {}, SAMPLES // 3, 0)
    except RuleError:  # no sizes or values at which to test the instance
        return False
    if found is not None:
        raise RuleError(f"{rule.where} rule `{rule.name}` is refuted\n{found}")
    _passed[key] = None
    return True


def _tested(rule: Rule | Schema) -> Verdict:
    if isinstance(rule, Rule) and rule.library is not None:
        return check_library(rule, rule.library)
    if isinstance(rule, Rule):
        return _require_proof(check(rule))
    started = time.perf_counter()
    right, problem = first_difference(rule)
    if not right and not problem:
        problem = "  it proposes nothing for any of the loops and calls it is tested on"
    seconds = time.perf_counter() - started
    return Verdict(rule, "refuted" if problem else "tested", right, None, seconds, problem)


def _require_proof(verdict: Verdict) -> Verdict:
    """`verdict`, except for an exact rule that was not tested at every size that occurs in it. Such a rule is refuted
    unless it is proved or an axiom, because it is not known to hold at those sizes."""
    rule = verdict.rule
    if not verdict.untested or rule.numerics != "exact" or not isinstance(rule, Rule):
        return verdict
    proved, reason = prove_formally(verdict, rule)
    if proved is not None:
        return proved
    problem = (
        f"  not tested at {verdict.untested}, a number that stands in it, which is too large to be tried, and not "
        f'proved ({reason})\n  accepted: a smaller number, a condition such as when="n <= 1000" that keeps sizes '
        'below it, or numerics="reassociate"'
    )
    return replace(verdict, status="refuted", problem=problem)


def strengthen(verdict: Verdict) -> Verdict:
    """The verdict of a stronger check if `verdict` is "tested"; otherwise `verdict`.

    The status becomes "proved" or "axiom" if the formal checker proves or assumes the rule. Otherwise the rule is
    tested at about `UNPROVED_SAMPLES` points per judge, unless it was. The verdict on a schema stays "tested"; it says
    whether proposals are proved if the schema can prove them. Rules that use library routines keep their verdict.
    """
    started = time.perf_counter()
    if isinstance(verdict.rule, Schema):
        if verdict.status != "tested" or verdict.rule.prove is None or verdict.rule.must_prove:
            return verdict
        shown, why = proved_proposals(verdict.rule)
        return replace(verdict, theory=shown, seconds=verdict.seconds + time.perf_counter() - started, unproved=why)
    if verdict.status != "tested" or _runs_library(verdict.rule):
        return verdict
    found, why = prove_formally(verdict, verdict.rule)
    if found is None and verdict.samples < UNPROVED_SAMPLES:
        found = check(verdict.rule, UNPROVED_SAMPLES)
    return replace(found or verdict, seconds=verdict.seconds + time.perf_counter() - started, unproved=why)


def _runs_library(rule: Rule) -> bool:
    """Whether a rule depends on what a library routine computes, which no proof covers."""
    if rule.library is not None:
        return True
    return any(library_of(e) for i in instances(rule, limit=1) for e in postorder((*i.left, *i.right)))


def verdict_on(rule: Rule | Schema) -> Verdict:
    """The verdict of a test from scratch and, if the rule passes it, of an attempt to prove the rule. The verdict is
    kept in memory."""
    started = time.perf_counter()
    try:
        verdict = strengthen(_tested(rule))
        _remember(content_hash(rule), verdict)
        return verdict
    except RuleError as e:
        return Verdict(rule, "refuted", 0, None, time.perf_counter() - started, f"  {e}")


_QUICK_PROOF = 3.0  # limit: seconds of processor time of a proof that many others wait for; most take a tenth of it


def proof_on(rule: Rule) -> Verdict:
    """The verdict of a quick proof, and, for a rule that is proved or an axiom, of a test from scratch. A rule that is
    neither has the status "tested" at 0 points."""
    started = time.perf_counter()
    try:
        verdict, why = prove_formally(Verdict(rule, "tested", 0), rule, _QUICK_PROOF)
        if verdict is None:
            return Verdict(rule, "tested", 0, None, time.perf_counter() - started, unproved=why)
        tested = _tested(rule)
        if tested.status == "refuted":
            return tested
        verdict = replace(verdict, samples=verdict.samples + tested.samples, seconds=time.perf_counter() - started)
        _remember(content_hash(rule), verdict)
        return verdict
    except RuleError as e:
        return Verdict(rule, "refuted", 0, None, time.perf_counter() - started, f"  {e}")


def test_of(rule: Rule) -> Verdict:
    """The verdict of a test from scratch, without a proof."""
    started = time.perf_counter()
    try:
        return _tested(rule)
    except RuleError as e:
        return Verdict(rule, "refuted", 0, None, time.perf_counter() - started, f"  {e}")


# --- proofs and axioms ---

# Float types that are small enough for a test of all values of one variable; of the first, of two variables.
_SMALL_FLOATS = names_where(lambda d: d.has_infinity and d.bits <= 16)
_AXIOM_INSTANCES = 3  # limit: instances per dtype, which differ in rank or attributes


def prove_formally(verdict: Verdict, rule: Rule, within: float | None = None) -> tuple[Verdict | None, str]:
    """The "tested" `verdict` raised to "proved" or "axiom", with an empty text; None, with the reason, if the formal
    checker shows neither. An axiom may turn out refuted. `within`: seconds of processor time; None for the usual."""
    from relax_eg.rules.verify_formal.prove import prove_rule  # imports z3, which nothing else here needs

    proof = prove_rule(rule) if within is None else prove_rule(rule, within)
    if proof.status == "unknown":
        return None, proof.reason
    seconds = verdict.seconds + proof.seconds
    raised = replace(verdict, theory=proof.theory or "", ranks=proof.ranks, untested="", seconds=seconds)
    return (check_all_values(raised, rule) if proof.status == "axiom" else replace(raised, status="proved")), ""


def check_all_values(verdict: Verdict, rule: Rule) -> Verdict:
    """`verdict` with status "axiom" and the dtypes of which every value was tested; a verdict "refuted" if one of these
    values is a counterexample."""
    tried: dict[str, None] = {}
    samples = verdict.samples
    for dtype in _SMALL_FLOATS if rule.has_open_dtype else (None,):
        for instance in instances(rule, _AXIOM_INSTANCES, dtypes=dtype and (dtype,)):
            count, suspects = suspects_among_all(instance)
            samples += count
            if count:
                tried.update(dict.fromkeys(p.dtype for p in instance.params))
            for index, case in enumerate(suspects):
                failure = find_failure(judge_bits, case)
                if failure is not None:
                    found = witness(case, failure, judge_bits, draw_under_guards(draws.special), index)
                    return Verdict(rule, "refuted", samples, found, verdict.seconds, str(found))
    return replace(verdict, status="axiom", samples=samples, every=", ".join(tried))


def require_same_sides(instance: Instance) -> None:
    """Raises RuleError if the rule's function, called again with the arguments of `instance`, returns other sides."""
    rule = instance.rule
    ranks = dict(zip(rule.block_names, instance.ranks, strict=True))
    _, again = rule.program(rule.function, ranks, instance.dtype, dict(instance.attributes))
    left, right = rule.sides(again) if again is not None else ((), ())
    if (left, right) == (instance.left, instance.right):
        return

    def shown(*sides: Sequence[Expr]) -> str:
        return "  =>  ".join(", ".join(map(expression_text, side)) for side in sides)

    raise rule.error(
        "its function returns other sides when it is called again for the same arguments:\n"
        f"  first  {shown(instance.left, instance.right)}\n  then   {shown(left, right) if left else None}\n"
        "  accepted: a function whose sides depend on nothing but its arguments"
    )
