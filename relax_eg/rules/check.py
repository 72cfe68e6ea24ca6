"""The probabilistic checker: a rule is tested at random sizes and values, exactly, or refuted by a counterexample.

What passes may be more: `proved`, by the formal checker (`verify_formal`), which this one only calls.

Which judges a rule meets follows from its numerics class (`judge.py`): equality over the reals always; the same bits
for `exact`; the accuracy law for `reassociate`. The same seed gives the same verdict.

What no draw may be left to meet by luck is enumerated (`suspects.py`): special values and those that stand in the rule,
sizes around the numbers in it, and every float type that an open dtype stands for.
"""

from __future__ import annotations

import runpy
import time
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from relax_eg.accepted import Kind, accepts
from relax_eg.errors import RuleError
from relax_eg.ir.annotations import FLOATS, is_float
from relax_eg.ir.expr import postorder
from relax_eg.ops.libraries import library_of
from relax_eg.rules import samples as draws
from relax_eg.rules.check_schemas import first_difference
from relax_eg.rules.domain import instances, need_instance
from relax_eg.rules.hypotheses import under_hypotheses
from relax_eg.rules.judge import (
    Absent,
    Case,
    Judge,
    accurate,
    exactly,
    failing,
    is_rational,
    over_the_reals,
    same_bits,
    widened,
)
from relax_eg.rules.raised import require_same_sides, unloadable
from relax_eg.rules.rule import Instance, Rule, RuleSet
from relax_eg.rules.samples import Draw, Sizes, admits, draw_sizes
from relax_eg.rules.schemas import Schema
from relax_eg.rules.suspects import size_suspects, sizes_near, special_suspects
from relax_eg.rules.witness import Counterexample, witness

# Raise when a change makes the checker stricter: verdicts on disk and in memory are then given anew.
CHECKER_VERSION = 3
SAMPLES = 48
# About as many points are tried by each judge of what is not proved; 48 let a sign of zero pass once.
UNPROVED_SAMPLES = 400
_INSTANCES = 12
# Instances of each of the other float types that an open dtype stands for.
_INSTANCES_OF_OTHERS = 2
# Instances that are tried at sizes near the numbers in a rule.
_INSTANCES_AT_LARGE_SIZES = 3
# Exact arithmetic is slow: its samples hold no more elements than this where smaller sizes exist.
_EXACT_ELEMENTS = 150

# "missing": it lowers to a routine that is not there, so that nothing was tested, and nothing runs.
Status = Literal["proved", "tested", "refuted", "missing"]


@dataclass(frozen=True)
class Verdict:
    """What is known of a rule: `tested` at `samples` points, `proved` for all sizes besides, or `refuted` by a
    counterexample, of text `problem`.

    `seconds` is 0 for a verdict that was known already. `untested`: sizes that stand in the rule and are too large to
    be tried. Of what is proved, `theory` is "exact" (the same bits),
    "modular" (integers modulo 2^w) or "real", and `ranks` tells of which ranks of `*b` blocks ("all", "0 to 3", "").
    """

    rule: Rule | Schema
    status: Status
    samples: int
    counterexample: Counterexample | None = None
    seconds: float = 0.0
    problem: str = ""
    theory: str = ""
    ranks: str = ""
    untested: str = ""

    @property
    def told(self) -> str:
        """What is known, in a few words: "proved (real)", "tested, not proved"."""
        if self.status == "tested":
            less = f", not tested at {self.untested}" if self.untested else ""
            return f"tested, {self.theory or 'not proved'}{less}"
        return f"{self.status} ({self.theory})" if self.theory else self.status

    def __str__(self) -> str:
        if self.status == "refuted":
            return f"{self.rule.where} rule `{self.rule.name}` is refuted\n{self.problem}"
        if self.status == "proved":
            ranks = f", block ranks {self.ranks}" if self.ranks else ""
            return f"{self.rule}      proved ({self.theory}{ranks}), {1000 * self.seconds:.0f} ms"
        if self.status == "missing":
            return f"{self.rule}      missing: {self.problem}"
        less = f", not tested at {self.untested}" if self.untested else ""
        return f"{self.rule}      tested at {self.samples} points{less}, {1000 * self.seconds:.0f} ms"


@dataclass(frozen=True)
class _Plan:
    """One judge over the instances of a rule: how values are drawn, how many points, the least size of an axis."""

    judge: Judge
    draw: Draw
    instances: Sequence[Instance]
    count: int
    least: int = 0
    # Sizes are cut to at most this many elements, or left small and sometimes doubled.
    elements: int | None = None


def check(rule: Rule, samples: int = SAMPLES, seed: int = 0) -> Verdict:
    """Test `rule` at about `samples` points for each judge it meets. Raises RuleError where it cannot be formed."""
    started = time.perf_counter()
    need_instance(rule)
    chosen, others = tested_instances(rule)
    for instance in (*chosen, *chain.from_iterable(others.values())):
        require_same_sides(instance)
    tested, found = _compared(rule, chosen, others, samples, seed)
    seconds = time.perf_counter() - started
    if found is not None:
        return Verdict(rule, "refuted", tested, found, seconds, str(found))
    return Verdict(rule, "tested", tested, None, seconds, untested=_untested(rule))


def _compared(
    rule: Rule, chosen: Sequence[Instance], others: Mapping[str, Sequence[Instance]], samples: int, seed: int
) -> tuple[int, Counterexample | None]:
    """At how many drawn points the sides of instances were compared, and where they differ."""
    tested = 0
    for n, plan in enumerate(_plans(rule, chosen, others, samples)):
        rng = np.random.default_rng((seed, n, zlib.crc32(rule.name.encode())))
        before = tested
        for index, case in enumerate(_cases(rule, plan, rng)):
            try:
                failure = plan.judge(case)
            except Absent:
                continue
            tested += 1
            if failure is not None:
                return tested, witness(case, failure, plan.judge, plan.draw, seed + index)
        if tested == before:
            raise rule.error("the left side exists at none of the sampled sizes and values: nothing can be tested")
    return tested, _enumerated(rule, chosen, others, seed)


def tested_instances(rule: Rule) -> tuple[list[Instance], dict[str, list[Instance]]]:
    """The instances at which a rule is tested: those of its first float type, and of each other one."""
    chosen = list(instances(rule, limit=_INSTANCES))
    if not rule.has_open_dtype:
        return chosen, {}
    # That the sides have one shape and dtype is seen when an instance is made: RuleError otherwise.
    others = [d for d in FLOATS if d != rule.dtypes[0]]
    return chosen, {d: list(instances(rule, limit=_INSTANCES_OF_OTHERS, dtypes=(d,))) for d in others}


def _enumerated(
    rule: Rule, chosen: Sequence[Instance], others: Mapping[str, Sequence[Instance]], seed: int
) -> Counterexample | None:
    """A counterexample among what is enumerated, if there is one."""
    bits = rule.numerics == "exact"
    judge: Judge = same_bits if bits else over_the_reals
    draw = under_hypotheses(draws.special) if bits else under_hypotheses(draws.moderate, wide=True)
    every = [*chosen, *(i for found in others.values() for i in found if bits or not _is_known(i, chosen))]
    large = [*chosen[:_INSTANCES_AT_LARGE_SIZES], *(i for i in every if i not in chosen)]
    suspects = chain(
        *(special_suspects(i, bits) for i in every),
        *(size_suspects(i, bits, draw) for i in large),
    )  # fmt: skip
    for index, case in enumerate(suspects):
        failure = failing(judge, case)
        if failure is not None:
            return witness(case, failure, judge, draw, seed + index)
    return None


def _is_known(instance: Instance, chosen: Sequence[Instance]) -> bool:
    """Whether an instance of another float type says over the reals what one of `chosen` says."""
    wide = widened(instance)
    return any((w.left, w.right) == (wide.left, wide.right) for w in map(widened, chosen))


def _untested(rule: Rule) -> str:
    """At which sizes that stand in the rule it was not tested, since they are too large; empty where there is none."""
    found: dict[str, None] = {}
    for instance in instances(rule, limit=_INSTANCES_AT_LARGE_SIZES):
        found.update(dict.fromkeys(f"{name} = {number:,}" for name, number in sizes_near(instance)[1]))
    return ", ".join(found)


def _plans(
    rule: Rule, chosen: Sequence[Instance], others: Mapping[str, Sequence[Instance]], samples: int
) -> Iterator[_Plan]:
    moderate, mixed = under_hypotheses(draws.moderate, wide=True), under_hypotheses(draws.mixed)
    yield _Plan(over_the_reals, moderate, chosen, max(samples, 4 * len(chosen)))
    apart = [i for found in others.values() for i in found if not _is_known(i, chosen)]
    if apart:  # what is another function in another float type
        yield _Plan(over_the_reals, moderate, apart, max(samples // 4, 4 * len(apart)))
    rational = [i for i in chosen if is_rational(i)]
    if rational:
        yield _Plan(exactly, under_hypotheses(draws.rationals), rational, samples // 3, elements=_EXACT_ELEMENTS)
    if rule.numerics == "exact":
        special = under_hypotheses(draws.special)
        yield _Plan(same_bits, special, chosen, samples // 2)
        for found in filter(None, others.values()):
            yield _Plan(same_bits, special, found, samples // 8)
    if rule.numerics == "reassociate" and _has_floats(chosen):
        yield _Plan(accurate, mixed, chosen, samples // 2, least=1)
        for dtype, found in others.items():
            if found and dtype != "float64":  # it stands for exact
                yield _Plan(accurate, mixed, found, samples // 8, least=1)


def _has_floats(chosen: Sequence[Instance]) -> bool:
    return any(is_float(p.dtype) for i in chosen for p in i.params)


def _cases(rule: Rule, plan: _Plan, rng: np.random.Generator) -> Iterator[Case]:
    """Points of comparison: instances in turn, each meeting the planned sizes from another place on."""
    turns = -(-plan.count // len(plan.instances))
    sizes_of: list[list[dict[str, int]]] = []
    for instance in plan.instances:
        found = draw_sizes(instance, rng, max(turns, 24), plan.least)
        if not found:
            raise rule.error(f"no sizes up to {draws.LARGEST_SIZE} meet its conditions: {' and '.join(rule.when)}")
        sizes_of.append(found)
    for k in range(plan.count):
        which = k % len(plan.instances)
        instance, bindings = plan.instances[which], sizes_of[which]
        sizes = _fitted(instance, bindings[(k // len(plan.instances) + 5 * which) % len(bindings)], plan, k)
        yield Case(instance, sizes, plan.draw(instance, sizes, rng, k if which % 2 else int(rng.integers(60))))


def _fitted(instance: Instance, sizes: Sizes, plan: _Plan, k: int) -> Sizes:
    """`sizes`, made smaller for exact arithmetic, and sometimes larger for the accuracy law."""
    if plan.elements is not None:
        total = 1
        for v in sizes.values():
            total *= max(v, 1)
        smaller = {n: min(v, 2 + i % 2) for i, (n, v) in enumerate(sizes.items())}
        return smaller if total > plan.elements and admits(instance, smaller) else sizes
    if plan.judge is accurate and k % 3 == 2 and len(sizes) <= 3:
        larger = {n: 4 * v + 1 for n, v in sizes.items()}
        return larger if admits(instance, larger) else sizes
    return sizes


_Key = tuple[Any, ...]
# Verdicts by the content of a rule, each with the instances that it was reached on; and the instances that passed.
_verdicts: dict[str, tuple[Verdict, frozenset[_Key]]] = {}
_passed: set[_Key] = set()
_checking: ContextVar[bool] = ContextVar("checking", default=True)


@contextmanager
def unchecked() -> Generator[None]:
    """Registration inside tests nothing: for reading a file of rules in order to report on all of them."""
    token = _checking.set(False)
    try:
        yield
    finally:
        _checking.reset(token)


def require_tested(rule: Rule) -> None:
    """Raise RuleError unless `rule` passes the test. A rule of the same content is tested once."""
    if not _checking.get():
        return
    verdict = remembered(rule)
    if verdict.status == "refuted":
        raise RuleError(str(verdict))


def remembered(rule: Rule | Schema) -> Verdict:
    """The verdict on `rule`, from memory where one of the same content, with the same sides, was given. From then on an
    instance that a search makes of it is tested before it is used, unless it was."""
    from relax_eg.rules.certificates import content_hash

    key = content_hash(rule)
    known, there = _verdicts.get(key, (None, frozenset[_Key]()))
    # What a function returns may hang on more than its content tells.
    if known is not None and there == _keys(rule):
        verdict = replace(known, rule=rule, seconds=0.0)
    else:
        verdict = _tested(rule)
        _remember(key, verdict)
    if isinstance(rule, Rule):
        rule.test_at_use()
    return verdict


def _remember(key: str, verdict: Verdict) -> None:
    keys = _keys(verdict.rule)
    _verdicts[key] = verdict, keys
    if verdict.status in ("tested", "proved"):
        _passed.update(keys)


@lru_cache(1 << 10)
def _keys(rule: Rule | Schema) -> frozenset[_Key]:
    """What the instances that a rule is tested at say. A library rule's are run, whatever they say."""
    if not isinstance(rule, Rule) or rule.library is not None:
        return frozenset()
    chosen, others = tested_instances(rule)
    return frozenset(map(_key, (*chosen, *chain.from_iterable(others.values()))))


def _key(i: Instance) -> _Key:
    return i.rule.numerics, i.params, i.left, i.right, i.guards


def may_be_used(instance: Instance) -> bool:
    """Whether an instance was tested, or is now and passes. False where it cannot be tested; RuleError, with the
    counterexample, where it is refuted."""
    rule, key = instance.rule, _key(instance)
    if key in _passed:
        return True
    require_same_sides(instance)
    try:
        _, found = _compared(rule, [instance], {}, SAMPLES // 3, 0)
    except RuleError:  # no sizes or values to test it at
        return False
    if found is not None:
        raise RuleError(f"{rule.where} rule `{rule.name}` is refuted\n{found}")
    _passed.add(key)
    return True


def _tested(rule: Rule | Schema) -> Verdict:
    if isinstance(rule, Rule) and rule.library is not None:
        from relax_eg.rules.check_libraries import check_library

        return check_library(rule, rule.library)
    if isinstance(rule, Rule):
        return _or_proved(check(rule))
    started = time.perf_counter()
    right, problem = first_difference(rule)
    if not right and not problem:
        problem = "  it proposes nothing for any of the loops and calls it is tested on"
    seconds = time.perf_counter() - started
    return Verdict(rule, "refuted" if problem else "tested", right, None, seconds, problem)


def _or_proved(verdict: Verdict) -> Verdict:
    """`verdict`; of an exact rule that was not tested at all sizes that stand in it, that of a proof: what is not known
    to hold there does not run as exact."""
    rule = verdict.rule
    if not verdict.untested or rule.numerics != "exact" or not isinstance(rule, Rule):
        return verdict
    from relax_eg.rules.verify_formal import prove_rule  # it imports z3, which nothing else here needs

    proof = prove_rule(rule)
    seconds = verdict.seconds + proof.seconds
    if proof.status == "proved":
        theory, ranks = proof.theory or "", proof.ranks
        return replace(verdict, status="proved", theory=theory, ranks=ranks, untested="", seconds=seconds)
    problem = (
        f"  not tested at {verdict.untested}, a number that stands in it, which is too large to be tried, and not "
        f'proved ({proof.reason})\n  accepted: a smaller number, a condition such as when="n <= 1000" that keeps sizes '
        'below it, or numerics="reassociate"'
    )
    return replace(verdict, status="refuted", problem=problem, seconds=seconds)


def raised(verdict: Verdict) -> Verdict:
    """`verdict`; where it is "tested", "proved" if the formal checker proves the rule, and else that of a test at
    about `UNPROVED_SAMPLES` points for each judge, unless a library's own code is its judge."""
    if verdict.status != "tested" or isinstance(verdict.rule, Schema) or _runs_library(verdict.rule):
        return verdict
    from relax_eg.rules.verify_formal import prove_rule  # it imports z3, which nothing else here needs

    proof = prove_rule(verdict.rule)
    seconds = verdict.seconds + proof.seconds
    if proof.status == "proved":
        theory = proof.theory or ""
        return replace(verdict, status="proved", theory=theory, ranks=proof.ranks, untested="", seconds=seconds)
    if verdict.samples >= UNPROVED_SAMPLES:
        return replace(verdict, seconds=seconds)
    closer = check(verdict.rule, UNPROVED_SAMPLES)
    return replace(closer, seconds=seconds + closer.seconds)


def _runs_library(rule: Rule) -> bool:
    """Whether a rule goes by what a library routine is said to compute, which no proof vouches for."""
    if rule.library is not None:
        return True
    return any(library_of(e) for i in instances(rule, limit=1) for e in postorder((*i.left, *i.right)))


@dataclass(frozen=True)
class Report:
    """Verdicts, in the order of the rules; `str()` is the table."""

    verdicts: tuple[Verdict, ...] = field(default=())

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self.verdicts)

    def __len__(self) -> int:
        return len(self.verdicts)

    @property
    def refuted(self) -> tuple[Verdict, ...]:
        return tuple(v for v in self.verdicts if v.status == "refuted")

    def __str__(self) -> str:
        from rich.console import Console
        from rich.table import Table

        table = Table("rule", "status", "numerics", "samples", "ms", "theory", box=None, pad_edge=False)
        for v in self.verdicts:
            ms = f"{1000 * v.seconds:.0f}"
            table.add_row(v.rule.name, v.status, v.rule.numerics, str(v.samples), ms, v.theory)
        out = StringIO()
        width = 60 + max((len(v.rule.name) for v in self.verdicts), default=0)
        Console(file=out, width=width, color_system=None).print(table)
        lines = [line.rstrip() for line in out.getvalue().rstrip().split("\n")]
        total = sum(v.seconds for v in self.verdicts)
        proved = sum(v.status == "proved" for v in self.verdicts)
        lines.append(f"{len(self.verdicts)} rules, {proved} proved, {len(self.refuted)} refuted, {total:.1f} s")
        return "\n".join(chain(lines, (f"\n{v}" for v in self.refuted)))


def _are_rules(x: Any) -> bool:
    if isinstance(x, (list, tuple)):
        return all(isinstance(r, (Rule, Schema)) for r in x)  # type: ignore[reportUnknownVariableType]
    return isinstance(x, (Rule, Schema, RuleSet, str, Path)) or (isinstance(x, Iterable) and iter(x) is x)  # type: ignore[reportUnknownArgumentType]


@accepts(rules=Kind(_are_rules, "a rule, a RuleSet, a list of rules, or the path of a Python file"))
def verify(rules: Rule | Schema | RuleSet | Iterable[Rule | Schema] | str | Path) -> Report:
    """Test one rule, a set, or every `RuleSet` of a Python file, from scratch, and try to prove what passes. No
    verdict is taken from memory; those that are found go there, so that reports say what is proved."""
    if isinstance(rules, (str, Path)):
        chosen: Iterable[Rule | Schema] = rules_of(Path(rules))
    elif isinstance(rules, RuleSet):
        chosen = (*rules, *rules.schemas)
    else:
        chosen = (rules,) if isinstance(rules, (Rule, Schema)) else rules
    return Report(tuple(_verdict(r) for r in chosen))


def _verdict(rule: Rule | Schema) -> Verdict:
    from relax_eg.rules.certificates import content_hash

    started = time.perf_counter()
    try:
        verdict = raised(_tested(rule))
        _remember(content_hash(rule), verdict)
        return verdict
    except RuleError as e:
        return Verdict(rule, "refuted", 0, None, time.perf_counter() - started, f"  {e}")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


def rules_of(path: Path) -> list[Rule | Schema]:
    """Every rule of the sets that a Python file makes, none of them tested yet."""
    if not _is_file(path):
        raise RuleError(f"no file of rules at {path}")
    try:
        with unchecked():
            names = runpy.run_path(str(path))
    except RuleError:
        raise
    except Exception as e:
        raise RuleError(unloadable(path, e)) from e
    sets = [v for v in names.values() if isinstance(v, RuleSet)]
    if not sets:
        raise RuleError(f"{path}: the file makes no RuleSet")
    # One set may be the sum of others: each rule once.
    return list({id(r): r for s in sets for r in (*s, *s.schemas)}.values())
