"""Shipped verdicts: a file beside the rule books that holds the verdict on each rule, keyed by the rule's content.

The key of a verdict is a hash of everything that it depends on: the rule, with the helpers it calls and the values it
closes over; the meaning of each operator in it; and the checkers (`content.CHECKER`). If any of them changes, the
shipped verdict is invalid, and the rule is tested at its first use. Computing a key evaluates nothing, so that start-up
stays instant.

`python -m relax_eg.rules` recomputes all verdicts and writes the file. Tests recompute them and compare.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, get_args

from relax_eg.errors import RuleError
from relax_eg.ir.expr import CONSTANT, VAR, postorder
from relax_eg.logs import log
from relax_eg.memo import Memo
from relax_eg.ops.libraries import inline_libraries
from relax_eg.ops.record import TABLE
from relax_eg.plain_data import read_json
from relax_eg.rules.checking.check import cached_verdict, tested_instances
from relax_eg.rules.checking.verdict import Status, Verdict
from relax_eg.rules.content import checker, content_hash, digest, is_of_book, meanings
from relax_eg.rules.rule import Rule
from relax_eg.rules.schemas import Schema

FORMAT_VERSION = 2  # given: version of the file; verdicts of any other version are ignored
BOOK_VERDICTS = Path(__file__).parent.parent / "book" / "verdicts.json"

_MOST_RULES = 1 << 12  # limit: rules whose verdicts are kept; some 650 ship
_found = Memo[Any, tuple[Any, "Verdict | None"]](_MOST_RULES)  # by rule, with the state for which it was computed


def verdict_key(rule: Rule | Schema, operators: Iterable[str]) -> str:
    """The key of the verdict on `rule`, in which `operators` occur. Equal keys imply equal verdicts."""
    return digest("\n".join((content_hash(rule), meanings(operators), checker())))


def operators_of(rule: Rule | Schema) -> frozenset[str]:
    """Names of the operators in the tested instances of `rule`, including those of library patterns. For a schema,
    which may propose any operator, all names."""
    if isinstance(rule, Schema):
        return frozenset(TABLE)
    chosen, others = tested_instances(rule)
    sides = ((*i.left, *i.right) for i in (*chosen, *chain.from_iterable(others.values())))
    return frozenset(e.op for roots in sides for e in postorder((*roots, *inline_libraries(roots)))) - {VAR, CONSTANT}


@lru_cache(1)
def _known() -> dict[str, dict[str, Any]]:
    """The shipped verdicts by the name of the rule, with all fields; empty if the file is missing or has another
    version."""
    found = read_verdicts(BOOK_VERDICTS) if BOOK_VERDICTS.is_file() else {}
    return {name: {**dict.fromkeys(_OPTIONAL, ""), **entry} for name, entry in found.items()}


def read_verdicts(path: Path) -> dict[str, dict[str, Any]]:
    """The verdicts in a file that `write_verdicts` wrote, by the name of the rule; empty if the file has another
    version. Raises RuleError if it is not a file of verdicts."""
    try:
        data = read_json(path.read_bytes())
    except (OSError, ValueError) as e:
        raise RuleError(f"{path} is no file of verdicts: {e}") from None
    if not isinstance(data, dict) or not isinstance(data.get("verdicts"), dict):
        raise RuleError(f'{path} is no file of verdicts: {{"version": {FORMAT_VERSION}, "verdicts": ...}} is accepted')
    if data.get("version") != FORMAT_VERSION:
        return {}
    for name, entry in data["verdicts"].items():
        if not isinstance(entry, dict) or not _is_verdict(entry):
            raise RuleError(
                f"{path}: the verdict on {name!r:.80} is {entry!r:.80}; its {', '.join(_REQUIRED)}, samples, and "
                f"perhaps {', '.join(_OPTIONAL)}, are accepted"
            )
    return data["verdicts"]


_REQUIRED = ("key", "status")  # required fields with texts; `samples` is required too and holds a number
_TEXT_FIELDS = ("problem", "theory", "ranks", "every")  # fields of a `Verdict`
_OPTIONAL = (*_TEXT_FIELDS, "left", "others")  # operators of the left side, and the other operators


def _is_verdict(entry: Mapping[str, Any]) -> bool:
    if not {*_REQUIRED, "samples"} <= set(entry) <= {*_REQUIRED, *_OPTIONAL, "samples"}:
        return False
    fits = all(isinstance(entry.get(k, ""), str) for k in (*_REQUIRED, *_OPTIONAL))
    return fits and entry["status"] in get_args(Status) and type(entry["samples"]) is int and entry["samples"] >= 0


def known_verdict(rule: Rule | Schema) -> Verdict | None:
    """The shipped verdict on the rule of this name if nothing on which it depends has changed; otherwise None.

    Globals that a user's function mentions may change at any time, so the key of a user's rule is computed at every
    use. The content of the shipped rules does not change within a process, so their keys are computed once, unless an
    operator changes.
    """
    entry = _known().get(rule.name)
    if entry is None:
        return None
    operators = TABLE if isinstance(rule, Schema) else _operators_in(entry["left"], entry["others"])
    state = entry, checker(), dict(TABLE) if operators is TABLE else [TABLE.get(o) for o in operators]
    found = _found.get(rule)
    if found is not None and found[0] == state:
        return found[1]
    verdict = None
    if entry["key"] == verdict_key(rule, operators):
        verdict = Verdict(rule, entry["status"], entry["samples"], **{k: entry[k] for k in _TEXT_FIELDS})
        if isinstance(rule, Rule):
            rule.set_left_operators(entry["left"].split())
    if is_shipped(rule):
        _found[rule] = state, verdict
    return verdict


def is_shipped(rule: Rule | Schema) -> bool:
    """Whether a book of this package has the rule."""
    return is_of_book(rule.function if isinstance(rule, Rule) else rule.propose)


@lru_cache(_MOST_RULES)
def _operators_in(left: str, others: str) -> tuple[str, ...]:
    return (*left.split(), *others.split())


def status(rule: Rule | Schema) -> Verdict:
    """The verdict on `rule`: shipped, from memory, or from a test that is run now."""
    known = known_verdict(rule)
    if known is None and is_shipped(rule) and rule.name in _known():
        _tell_stale()
    return known or cached_verdict(rule)


@lru_cache(1)  # once in a process
def _tell_stale() -> None:
    log.warning(
        "rules that ship are tested again, which takes a minute or more in each process: their sources, operators or "
        "checkers changed since %s was written\n  accepted: `python -m relax_eg.rules` writes it",
        BOOK_VERDICTS.name,
    )


def not_proved(rules: Iterable[Rule | Schema]) -> dict[str, str]:
    """The users' rules in `rules` that are neither proved nor axioms: by name, the place of the rule and the summary of
    its verdict."""
    found: dict[str, str] = {}
    for rule in rules:
        function = rule.function if isinstance(rule, Rule) else rule.propose
        module = getattr(function, "__module__", None) or ""
        if not module.startswith("relax_eg.") and not (verdict := status(rule)).holds_everywhere:
            found[rule.name] = f"{rule.where}, {verdict.summary}"
    return found


def entry_of(verdict: Verdict) -> dict[str, Any]:
    """The entry of the file for a verdict."""
    rule, operators = verdict.rule, operators_of(verdict.rule)
    entry: dict[str, Any] = {"key": verdict_key(rule, operators), "status": verdict.status, "samples": verdict.samples}
    entry |= {k: v for k in _TEXT_FIELDS if (v := getattr(verdict, k))}
    if isinstance(rule, Rule):  # a program without the operators of the left side can skip the rule
        named = {"left": rule.left_operators, "others": operators - rule.left_operators}
        entry |= {k: " ".join(sorted(names)) for k, names in named.items() if names}
    return entry


def write_verdicts(verdicts: Iterable[Verdict], path: Path = BOOK_VERDICTS) -> None:
    """Writes verdicts, in order. Verdicts "missing" are left out, because another machine may have the routine."""
    entries = {v.rule.name: entry_of(v) for v in verdicts if v.status != "missing"}
    data = {"version": FORMAT_VERSION, "verdicts": entries}
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    _known.cache_clear()
