"""Verification of the rules that ship, or of a file of rules, by several processes.

Rules are functions and do not travel: each process reads the books, or the file, again, and takes its share by number.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from relax_eg.rules.check import Report, Verdict, rules_of, verify
from relax_eg.rules.rule import Rule
from relax_eg.rules.schemas import Schema

_Plain = tuple[int, dict[str, Any]]


def verify_in(jobs: int, path: Path | None = None) -> Report:
    """As `verify` of the books that ship, or of the file at `path`, in `jobs` processes. A refuted rule's verdict has
    the counterexample as text only. RuleError where the file cannot be read."""
    rules = _rules(path)
    jobs = min(jobs, len(rules))
    if jobs <= 1:
        return verify(rules)
    context = get_context("spawn")  # threads of JAX do not survive a fork
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        shares = [pool.submit(_share, path, start, jobs) for start in range(jobs)]
        found = dict(item for share in shares for item in share.result())
    return Report(tuple(Verdict(rule, **found[i]) for i, rule in enumerate(rules)))


def _rules(path: Path | None) -> list[Rule | Schema]:
    if path is not None:
        return rules_of(path)
    from relax_eg.rules.book import default

    return [*default, *default.schemas]


def _share(path: Path | None, start: int, step: int) -> list[_Plain]:
    """The verdicts on every `step`-th rule from number `start` on."""
    rules = _rules(path)
    verdicts = verify(rules[start::step])
    fields = ("status", "samples", "seconds", "problem", "theory", "ranks")
    return [(start + n * step, {f: getattr(v, f) for f in fields}) for n, v in enumerate(verdicts)]
