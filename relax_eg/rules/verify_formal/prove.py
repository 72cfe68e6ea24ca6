"""Proofs of rules, for all sizes: `prove_rule`.

A rule is proved when every instance is: at block ranks 0 to `LARGEST_RANK`, at every value of its attribute variables
(ranks 0 to 3 then, and operands of up to `_LARGEST_OPERAND` axes), and in the other float types for a few instances of
each. An instance is proved when

- the right side exists wherever the left does: sizes of axes, slice bounds, divisors, what `take` needs;
- each result is the same at every index, by `folds` (bit for bit) or, where the rule does not claim bits, by `values`
  (over the reals, or modulo 2^w), equally defined, and the right side adds up no larger summands than the left.

Anything else, running out of time included, is "unknown": the prover never refutes. Assumed: sizes and positions fit
int32 and int64, and the arithmetic of positions does not wrap.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from relax_eg.errors import RelaxEgError
from relax_eg.ir.annotations import FLOATS, Tensor, is_float
from relax_eg.ir.expr import CONSTANT, CORE, VAR, Expr, postorder
from relax_eg.ops.facts import with_implied
from relax_eg.ops.windows import AnyStep, Compared, is_any_step
from relax_eg.rules.conditions import Condition, claims_of
from relax_eg.rules.domain import attribute_values, instances
from relax_eg.rules.rule import Instance, Rule
from relax_eg.rules.verify_formal.accuracy import is_tame, keeps_precision
from relax_eg.rules.verify_formal.blocks import any_rank
from relax_eg.rules.verify_formal.compare import same_sums
from relax_eg.rules.verify_formal.compose import (
    POSITION,
    STATED,
    Composer,
    Unsupported,
    promises,
    size_conditions,
)
from relax_eg.rules.verify_formal.folds import Folds
from relax_eg.rules.verify_formal.guards import (
    Deadline,
    Facts,
    Guard,
    OutOfTime,
    at_least,
    in_range,
    is_plain,
    zero,
)
from relax_eg.rules.verify_formal.matrices import OPERATORS as LINEAR_ALGEBRA
from relax_eg.rules.verify_formal.matrices import same as same_matrices
from relax_eg.rules.verify_formal.nothing import cases
from relax_eg.rules.verify_formal.pointwise import same_elements
from relax_eg.rules.verify_formal.terms import Normalizer
from relax_eg.rules.verify_formal.values import Values, modulus_of
from relax_eg.shapes import Dim, Star
from relax_eg.tir.expr import Apply, Read, Scalar, loop, walk
from relax_eg.tir.functions import kind

LARGEST_RANK = 2
SECONDS = 10.0
# Instances in each of the other float types, which differ from float32's in accumulators and casts only.
_OTHER_FLOATS = 6
_MOST_INSTANCES = 400
_LARGEST_OPERAND = 4
# Attributes whose values on operands of a given rank are finitely many, all of which are tried.
_CLOSED = frozenset({"axes", "axis", "keepdims", "reverse", "mode", "method", "precision"})
# Attributes for whose values variables stand, one for each axis.
_OF_STEPS = frozenset({"conv.strides", "conv.dilation", "reduce_window.strides", "reduce_window.dilation"})

Theory = Literal["exact", "modular", "real"]
_STRENGTH: tuple[Theory, ...] = ("exact", "modular", "real")


@dataclass(frozen=True)
class Proof:
    """What the prover says of a rule.

    `theory`: "exact" (the same bits), "modular" (integers modulo 2^w), "real" (over the reals, no cancellation added),
    the weakest that an instance needed; None where unknown. `ranks`: block ranks proved, or "all" where every
    operator was seen to pass the blocks through in order. `reason`: why it is unknown.
    """

    rule: Rule
    status: Literal["proved", "unknown"]
    theory: Theory | None
    instances: int
    ranks: str
    seconds: float
    reason: str = ""

    def __str__(self) -> str:
        if self.status == "unknown":
            return f"{self.rule.name}: unknown ({self.reason})"
        ranks = f", block ranks {self.ranks}" if self.ranks else ""
        return f"{self.rule.name}: proved ({self.theory}, {self.instances} instances{ranks})"


def prove_rule(rule: Rule, seconds: float = SECONDS) -> Proof:
    """Try to prove `rule` for all sizes, within about `seconds` of processor time."""
    started = time.perf_counter()
    deadline = Deadline(time.process_time() + seconds)
    count = 0
    theories: set[Theory] = set()
    reason = ""
    try:
        for instance in _instances(rule):
            deadline.check()
            count += 1
            if count > _MOST_INSTANCES:
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
    return Proof(rule, "proved", max(theories, key=_STRENGTH.index), count, _ranks(rule), spent)


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
    """The instances of a rule with attribute variables: every value on operands of up to as many axes as it has."""
    for source in rule.attributes.values():
        if source.rpartition(".")[2] not in _CLOSED and source not in _OF_STEPS:
            raise Unsupported(f"{source} has more values than can be tried")
    seen: set[int] = set()
    for blocks in itertools.product(range(_largest_rank(rule) + 1), repeat=len(rule.stars)):
        fixed = max((sum(not isinstance(d, Star) for d in s.dims) for s in rule.signature.values()), default=0)
        rank = min(_LARGEST_OPERAND, fixed + sum(blocks) + 1)
        values = [_attribute_values(rule, source, rank) for source in rule.attributes.values()]
        for instance in _formed(rule, blocks, itertools.product(*values)):
            if instance is not None and id(instance) not in seen and instance.left != instance.right:
                seen.add(id(instance))
                yield instance


def _formed(rule: Rule, blocks: tuple[int, ...], choices: Iterable[tuple[Any, ...]]) -> Iterator[Instance | None]:
    """The instances at these attribute values. Where the rule's function asks whether a step is a number, the case in
    which it is and the case in which it is not."""
    for chosen in choices:
        cases = [chosen]
        while cases:
            values = cases.pop()
            try:
                yield rule.instance(blocks, "float32", dict(zip(rule.attributes, values, strict=True)))
            except Compared as asked:
                cases += [_decided(values, asked, holds) for holds in (True, False)]


def _decided(values: tuple[Any, ...], asked: Compared, holds: bool) -> tuple[Any, ...]:
    def step(s: Any) -> Any:
        if s is not asked.step:
            return s
        return asked.value if holds else s.but(asked.value)

    return tuple(tuple(map(step, v)) if isinstance(v, tuple) else v for v in values)  # type: ignore[reportUnknownArgumentType]


def _attribute_values(rule: Rule, source: str, rank: int) -> list[Any]:
    """The values of an attribute on operands of up to `rank` axes, or what stands for them."""
    if source in _OF_STEPS:
        name = source.rpartition(".")[2]
        return [tuple(AnyStep(name, i) for i in range(r)) for r in range(rank + 1)]
    return list({repr(v): v for r in range(rank + 1) for v in attribute_values(rule, source, r)}.values())


def _ranks(rule: Rule) -> str:
    if not rule.stars:
        return ""
    return "all" if any_rank(rule) else f"0 to {_largest_rank(rule)}"


def _largest_rank(rule: Rule) -> int:
    # With attribute variables ranks differ in more than a block's length.
    return LARGEST_RANK + bool(rule.attributes)


def prove_instance(instance: Instance, deadline: Deadline) -> Theory:
    """The theory in which the instance is proved; raises Unsupported where it is not."""
    base = _facts(instance, deadline)
    _need_sizes(instance, base)
    if instance.rule.numerics == "approximate" and _is_linear_algebra(instance) and _same_matrices(instance, deadline):
        return "real"
    _need_operators(instance, base)
    theories: set[Theory] = set()
    for left, right in zip(instance.left, instance.right, strict=True):
        theories.add(_prove_result(instance, left, right, base))
    return max(theories, key=_STRENGTH.index)


def _facts(instance: Instance, deadline: Deadline) -> Facts:
    """What holds wherever the rule applies and its left side exists."""
    names: dict[str, None] = {}
    for e in postorder((*instance.left, *instance.right)):
        for d in _dims(e):
            names.update(dict.fromkeys(sorted(d.variables)))
    known = [at_least(Dim.var(n) - 1 if is_any_step(Dim.var(n)) else Dim.var(n)) for n in names]
    for c in size_conditions(instance.left):
        if len(c) == 1 and not _is_any_division(c[0].dim):
            known.append(c[0])
    for g in instance.guards:
        if isinstance(g, Condition):
            known.append(_condition(g))
    return Facts(list(dict.fromkeys(known)), deadline)


def _condition(c: Condition) -> Guard:
    match c.op:
        case "==":
            return zero(c.left - c.right)
        case "!=":
            return zero(c.left - c.right).negated()
        case "<=":
            return at_least(c.right - c.left)
        case "<":
            return at_least(c.right - c.left - 1)


def _dims(e: Expr) -> Iterator[Dim]:
    if isinstance(e.annotation, Tensor):
        yield from e.shape
    for _, value in e.attrs:
        yield from (v for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, Dim))


def _is_linear_algebra(instance: Instance) -> bool:
    used = {e.op for e in postorder((*instance.left, *instance.right))}
    return bool(used & LINEAR_ALGEBRA) or any("orthogonal" in f for f in claims_of(instance.guards).values())


def _same_matrices(instance: Instance, deadline: Deadline) -> bool:
    try:
        return same_matrices(instance, deadline)
    except Unsupported:  # there is more in it than matrices
        return False


def _need_sizes(instance: Instance, facts: Facts) -> None:
    """The right side's sizes are possible wherever the left's are."""
    given = set(size_conditions(instance.left))
    for needed in size_conditions(instance.right):
        if needed in given or any(facts.entails(g) for g in needed):
            continue
        if not facts.impossible([g.negated() for g in needed]):
            raise Unsupported(f"the right side may not exist: {' or '.join(g.key for g in needed)}")
    asked = _precisions(instance.left) or {"None"}
    if _precisions(instance.right) not in (set(), asked):
        raise Unsupported("the matmuls of the sides ask for other precisions")


def _need_operators(instance: Instance, facts: Facts) -> None:
    """The right side's operators exist on all values on which the left's do."""
    if not _unlisted(instance.right) <= _unlisted(instance.left):
        raise Unsupported("the right side uses an operator, the left does not, whose preconditions are not known here")
    if not promises(instance.right, facts.entails) <= promises(instance.left, facts.entails):
        raise Unsupported("the right side promises more of indices than the left")


def _precisions(results: tuple[Expr, ...]) -> set[str]:
    """What contractions ask for, of which index equations say nothing."""
    attributes = [(e.op, dict(e.attrs)) for e in postorder(results)]
    return {str(a.get("precision")) for op, a in attributes if op == "linear" or "precision" in a}


def _unlisted(results: tuple[Expr, ...]) -> set[tuple[object, ...]]:
    """Uses of operators whose preconditions are not stated here: by operator, attributes and operand annotations, on
    which alone they depend."""
    return {
        (e.op, e.attrs, tuple(str(a.annotation) for a in e.args))
        for e in postorder(results)
        if e.op not in CORE and e.op not in STATED
    }


def _prove_result(instance: Instance, left: Expr, right: Expr, base: Facts) -> Theory:
    at = tuple(Dim.of(0) if n == 1 else loop(f"i{axis}") for axis, n in enumerate(left.shape))
    facts = base.with_(_ranges(at, left.shape))
    claims = {n: with_implied(f) for n, f in claims_of(instance.guards).items()}
    composer = Composer(claims={n: f & _OF_BITS for n, f in claims.items()})
    a, b = composer.element(left, at), composer.element(right, at)
    # Windows have a condition for each end of each axis, and as many cases: bits are compared where they are claimed.
    compared = instance.rule.numerics == "exact" or not _has_windows(instance)
    if compared and Folds(composer, facts, claims).same(a, b):
        return "exact"
    floats = _has_floats((*instance.left, *instance.right))
    as_sets = compared and instance.rule.numerics != "exact" and _has_extremes(instance)
    if as_sets and Folds(composer, facts, claims, unordered=True).same(a, b):
        return "real"
    if instance.rule.numerics == "exact" and floats:
        raise Unsupported("not shown to have the same bits")
    accurately = instance.rule.numerics != "approximate"
    reasons: list[str] = []
    for composer in (Composer(_shared(left, right, facts), claims), Composer(claims=claims)):
        a, b = composer.element(left, at), composer.element(right, at)
        try:
            why = _equal_in_all_cases(a, b, composer, facts, instance)
        except Unsupported as e:
            why = str(e)
        if not why:
            return "real" if floats else "modular"
        reasons.append(why)
    if floats and not _equal_elements(a, b, claims, facts.deadline, accurately):
        return "real"
    raise Unsupported(reasons[-1])


def _has_windows(instance: Instance) -> bool:
    return any(e.op in ("conv", "reduce_window") for e in instance.left_nodes)


def _has_extremes(instance: Instance) -> bool:
    return any(e.op in ("max", "min") for e in instance.left_nodes)


def _ranges(at: Iterable[Dim], shape: Iterable[Dim]) -> list[Guard]:
    """That indices lie in a shape, as far as that is worth knowing."""
    pairs = [(v, n) for v, n in zip(at, shape, strict=True) if not v.is_const]
    return [g for v, n in pairs for g in ((at_least(v),) if _is_any_division(n) else in_range(v, n))]


def _is_any_division(d: Dim) -> bool:
    """Whether a step that may be any divides in `d`: z3 gets lost in such facts, and proofs do without them."""
    return not is_plain(d) and any(is_any_step(Dim.var(v)) for v in d.variables)


# Facts that say that elements are the same bits; off its diagonal a diagonal matrix may have zeros of either sign.
_OF_BITS = frozenset({"symmetric"})


# What may cancel, and what grows beyond every float.
_DOUBTFUL = frozenset({"add", "subtract", "exp", "power"})


def _with_positions(facts: Facts, composer: Composer, instance: Instance) -> Facts:
    """`facts`, and that the one of a one-hot row is in it."""
    rows = {str(p.attr("name")): p.shape[-1] for p in instance.params if p.ndim}
    more: list[Guard] = []
    for name, s in composer.opaque.items():
        if isinstance(s, Read) and s.buffer.startswith(POSITION):
            more += in_range(Dim.var(name), rows[s.buffer.removeprefix(POSITION)])
    return facts.with_(more) if more else facts


def _equal_elements(
    a: Scalar, b: Scalar, claims: Mapping[str, frozenset[str]], deadline: Deadline, accurately: bool
) -> str:
    """Why terms without reductions are not shown equal; empty where they are."""
    try:
        why = same_elements(a, b, claims, deadline)
    except Unsupported as e:
        return str(e)
    if why or not accurately:
        return why
    doubtful = {t for t in walk(b) if isinstance(t, Apply) and t.fn in _DOUBTFUL} - _same_exponents(a, b)
    if not doubtful <= set(walk(a)):
        return "equal over the reals; the right side may cancel or overflow where the left does not"
    return "" if keeps_precision(a, b) else "the right side computes in a coarser float"


def _same_exponents(a: Scalar, b: Scalar) -> set[Scalar]:
    """Exponentials of `b` whose exponent is a sum or difference of exponents in `a`, and that exponent: it is as large
    as theirs, and off by no more than what half an ulp of them does; the exponential is the product that `a` computes.
    """
    exponents = {t.args[0] for t in walk(a) if isinstance(t, Apply) and t.fn == "exp"}
    found: set[Scalar] = set()
    for t in walk(b):
        if isinstance(t, Apply) and t.fn == "exp":
            (of,) = t.args
            inside = of.args if isinstance(of, Apply) and of.fn in ("add", "subtract", "negative") else ()
            if inside and all(x in exponents for x in inside):
                found |= {t, of}
    return found


def _shared(left: Expr, right: Expr, facts: Facts) -> dict[Expr, str]:
    """The largest expressions that both sides compute, with names to stand for them: what holds whatever their values
    holds of theirs, if they have values everywhere."""
    both = set(postorder((left,))) & set(postorder((right,)))
    users = [e for e in postorder((left, right)) if e not in both]
    inner = [e for e in dict.fromkeys(a for e in users for a in e.args) if e in both]
    return {e: f"shared {n}" for n, e in enumerate(inner) if e.op not in (VAR, CONSTANT) and _is_total(e, facts)}


def _is_total(e: Expr, facts: Facts) -> bool:
    """Whether each element of `e` is a real number at all sizes and values that the facts allow."""
    if not isinstance(e.annotation, Tensor) or not is_float(e.dtype):
        return False
    at = tuple(Dim.of(0) if n == 1 else loop(f"s{axis}") for axis, n in enumerate(e.shape))
    inside = facts.with_(_ranges(at, e.shape))
    composer = Composer()
    values = Values(composer, inside, Normalizer(composer, inside))
    try:
        values.sum_of(composer.element(e, at))
    except Unsupported:
        return False
    return not values.hazards


def _equal_in_all_cases(a: Scalar, b: Scalar, composer: Composer, facts: Facts, instance: Instance) -> str:
    """Why the terms are not shown equal, whether or not axes of extremes are empty; empty where they are."""
    accurately = instance.rule.numerics != "approximate"
    for x, y, inside in cases(a, b, composer, facts):
        why = _equal_values(x, y, composer, _with_positions(inside, composer, instance), accurately)
        if why:
            return why
    return ""


def _equal_values(a: Scalar, b: Scalar, composer: Composer, facts: Facts, accurately: bool) -> str:
    """Why the terms are not shown equal and equally defined, and the right one as accurate; empty where they are."""
    normal = Normalizer(composer, facts)
    left, right = Values(composer, facts, normal), Values(composer, facts, normal)
    x, y = left.sum_of(a), right.sum_of(b)
    if left.hazards != right.hazards:
        return "not shown equally defined"
    floats = is_float(a.dtype)
    why = same_sums(x, y, facts, normal, modulus_of(a.dtype), floats and accurately)
    if why or not accurately:
        return why
    if not keeps_precision(a, b):
        return "the right side computes in a coarser float"
    if right.fragile or (floats and not is_tame(normal.merged(y)) and a != b):
        return "equal over the reals; nothing is known of the right side's accuracy"
    return ""


def _has_floats(results: Iterable[Expr]) -> bool:
    return any(kind(e.dtype) not in "biu" for e in _tensors(results))


def _tensors(results: Iterable[Expr]) -> Iterator[Expr]:
    return (e for e in postorder(tuple(results)) if isinstance(e.annotation, Tensor))
