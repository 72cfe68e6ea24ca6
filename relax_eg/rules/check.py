"""The probabilistic checker: a rule is tested at random sizes and values, exactly, or refuted by a counterexample.

What passes may be more: `proved`, by the formal checker (`verify_formal`), which this one only calls.

Which judges a rule meets follows from its numerics class (`judge.py`): equality over the reals always; the same bits
for `exact`; the accuracy law for `reassociate`. The same seed gives the same verdict.
"""

from __future__ import annotations

import runpy
import time
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from relax_eg.accepted import Kind, accepts
from relax_eg.errors import RuleError
from relax_eg.ir.annotations import is_float
from relax_eg.ir.expr import postorder
from relax_eg.ops.libraries import library_of
from relax_eg.rules import samples as draws
from relax_eg.rules.check_schemas import first_difference
from relax_eg.rules.domain import instances, need_instance
from relax_eg.rules.hypotheses import under_hypotheses
from relax_eg.rules.judge import Absent, Case, Judge, accurate, exactly, is_rational, over_the_reals, same_bits
from relax_eg.rules.raised import unloadable
from relax_eg.rules.rule import Instance, Rule, RuleSet
from relax_eg.rules.samples import Draw, Sizes, admits, draw_sizes
from relax_eg.rules.schemas import Schema
from relax_eg.rules.witness import Counterexample, witness

# Raise when a change makes the checker stricter: verdicts on disk and in memory are then given anew.
CHECKER_VERSION = 2
SAMPLES = 48
# About as many points are tried by each judge of what is not proved; 48 let a sign of zero pass once.
UNPROVED_SAMPLES = 400
_INSTANCES = 12
_OTHER_FLOATS = ("float16", "bfloat16", "float64")
# Exact arithmetic is slow: its samples hold no more elements than this where smaller sizes exist.
_EXACT_ELEMENTS = 150

# "missing": it lowers to a routine that is not there, so that nothing was tested, and nothing runs.
Status = Literal["proved", "tested", "refuted", "missing"]


@dataclass(frozen=True)
class Verdict:
    """What is known of a rule: `tested` at `samples` points, `proved` for all sizes besides, or `refuted` by a
    counterexample, of text `problem`.

    `seconds` is 0 for a verdict that was known already. Of what is proved, `theory` is "exact" (the same bits),
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

    def __str__(self) -> str:
        if self.status == "refuted":
            return f"{self.rule.where} rule `{self.rule.name}` is refuted\n{self.problem}"
        if self.status == "proved":
            ranks = f", block ranks {self.ranks}" if self.ranks else ""
            return f"{self.rule}      proved ({self.theory}{ranks}), {1000 * self.seconds:.0f} ms"
        if self.status == "missing":
            return f"{self.rule}      missing: {self.problem}"
        return f"{self.rule}      tested at {self.samples} points, {1000 * self.seconds:.0f} ms"


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
    tested = 0
    for n, plan in enumerate(_plans(rule, samples)):
        rng = np.random.default_rng((seed, n, zlib.crc32(rule.name.encode())))
        before = tested
        for index, case in enumerate(_cases(rule, plan, rng)):
            try:
                failure = plan.judge(case)
            except Absent:
                continue
            tested += 1
            if failure is not None:
                found = witness(case, failure, plan.judge, plan.draw, seed + index)
                return Verdict(rule, "refuted", tested, found, time.perf_counter() - started, str(found))
        if tested == before:
            raise rule.error("the left side exists at none of the sampled sizes and values: nothing can be tested")
    return Verdict(rule, "tested", tested, None, time.perf_counter() - started)


def _plans(rule: Rule, samples: int) -> Iterator[_Plan]:
    chosen = list(instances(rule, limit=_INSTANCES))
    if rule.has_open_dtype:
        # That the sides have one shape and dtype is seen when an instance is made: RuleError otherwise.
        others = {d: list(instances(rule, limit=2, dtypes=(d,))) for d in _OTHER_FLOATS}
    else:
        others: dict[str, list[Instance]] = {}
    moderate, mixed = under_hypotheses(draws.moderate, wide=True), under_hypotheses(draws.mixed)
    yield _Plan(over_the_reals, moderate, chosen, max(samples, 4 * len(chosen)))
    rational = [i for i in chosen if is_rational(i)]
    if rational:
        yield _Plan(exactly, under_hypotheses(draws.rationals), rational, samples // 3, elements=_EXACT_ELEMENTS)
    narrow = others.get("float16")
    if rule.numerics == "exact":
        special = under_hypotheses(draws.special)
        yield _Plan(same_bits, special, chosen, samples // 2)
        if narrow:
            yield _Plan(same_bits, special, narrow, samples // 8)
    if rule.numerics == "reassociate" and _has_floats(chosen):
        yield _Plan(accurate, mixed, chosen, samples // 2, least=1)
        if narrow:
            yield _Plan(accurate, mixed, narrow, samples // 8, least=1)


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


_verdicts: dict[str, Verdict] = {}
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
    """The verdict on `rule`, from memory where one of the same content was given."""
    from relax_eg.rules.certificates import content_hash

    key = content_hash(rule)
    found = _verdicts.get(key)
    if found is None:
        found = _verdicts[key] = _tested(rule)
        return found
    return Verdict(rule, found.status, found.samples, found.counterexample, 0.0, found.problem)


def _tested(rule: Rule | Schema) -> Verdict:
    if isinstance(rule, Rule) and rule.library is not None:
        from relax_eg.rules.check_libraries import check_library

        return check_library(rule, rule.library)
    if isinstance(rule, Rule):
        return check(rule)
    started = time.perf_counter()
    right, problem = first_difference(rule)
    if not right and not problem:
        problem = "  it proposes nothing for any of the loops and calls it is tested on"
    seconds = time.perf_counter() - started
    return Verdict(rule, "refuted" if problem else "tested", right, None, seconds, problem)


def raised(verdict: Verdict) -> Verdict:
    """`verdict`; where it is "tested", "proved" if the formal checker proves the rule, and else that of a test at
    about `UNPROVED_SAMPLES` points for each judge, unless a library's own code is its judge."""
    if verdict.status != "tested" or isinstance(verdict.rule, Schema) or _runs_library(verdict.rule):
        return verdict
    from relax_eg.rules.verify_formal import prove_rule  # it imports z3, which nothing else here needs

    proof = prove_rule(verdict.rule)
    seconds = verdict.seconds + proof.seconds
    if proof.status == "proved":
        return replace(verdict, status="proved", theory=proof.theory or "", ranks=proof.ranks, seconds=seconds)
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
    """Test one rule, a set, or every `RuleSet` of a Python file, from scratch, and try to prove what passes; no
    verdict is taken from memory."""
    if isinstance(rules, (str, Path)):
        chosen: Iterable[Rule | Schema] = rules_of(Path(rules))
    elif isinstance(rules, RuleSet):
        chosen = (*rules, *rules.schemas)
    else:
        chosen = (rules,) if isinstance(rules, (Rule, Schema)) else rules
    return Report(tuple(_verdict(r) for r in chosen))


def _verdict(rule: Rule | Schema) -> Verdict:
    started = time.perf_counter()
    try:
        return raised(_tested(rule))
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
