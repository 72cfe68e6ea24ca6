"""Verdicts that are known before anything runs: by the content of a rule, in a file beside the rule books.

The key of a rule is a hash of what a verdict depends on: the source text of its function and of the helpers it calls,
the values it closes over, the rule's declaration, and the checker's version. The operators themselves are not part of
it: who changes what one means raises `CHECKER_VERSION`. Nothing is evaluated to compute a key, so that start-up stays
instant.

`python -m relax_eg.rules` writes the file anew.
"""

from __future__ import annotations

import inspect
import json
import linecache
import types
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, get_args

from relax_eg.errors import RuleError
from relax_eg.ir.tokens import NoContentError
from relax_eg.plain_data import read_json
from relax_eg.rules.check import CHECKER_VERSION, Status, Verdict, raised, remembered
from relax_eg.rules.content import value_token
from relax_eg.rules.domain import instances
from relax_eg.rules.format import expression_text
from relax_eg.rules.rule import Rule
from relax_eg.rules.schemas import Schema

FORMAT_VERSION = 1
# Raise when the formal checker changes what it accepts: proofs on file are then taken for tests.
PROVER_VERSION = 5
BOOK_VERDICTS = Path(__file__).parent / "book" / "verdicts.json"

_BOOKS = "relax_eg.rules.book."
_INLINE = (int, float, complex, str, bytes, bool, type(None), tuple, frozenset, list, dict)


def content_hash(rule: Rule | Schema) -> str:
    """The key of `rule`: equal keys have equal verdicts."""
    if isinstance(rule, Schema):
        return blake2b(_schema_text(rule).encode(), digest_size=16).hexdigest()
    signature = [(n, tuple(map(str, s.dims)), s.dtype) for n, s in rule.signature.items()]
    declared = (
        rule.name, signature,
        list(rule.attributes.items()), rule.sizes, rule.when, rule.numerics, rule.reverse, CHECKER_VERSION,
    )  # fmt: skip
    text = "\n".join([repr(declared), *_function_text(rule), *_library_text(rule)])
    return blake2b(text.encode(), digest_size=16).hexdigest()


def lasting_hash(rule: Rule | Schema) -> str:
    """The key of `rule` in every process; empty where what it is made of shows in this one only. Then nothing but the
    rule itself tells what it says."""
    if isinstance(rule, Schema):
        return content_hash(rule) if rule.propose.__module__.startswith(_BOOKS) else ""
    try:
        if rule.library is not None:
            value_token(rule.library.content[1])
    except NoContentError:
        return ""
    return content_hash(rule)


def _schema_text(schema: Schema) -> str:
    """The file that a schema is written in, for one that ships. Any other is tested once in a process: what its
    function uses may be anything."""
    text = repr((schema.name, CHECKER_VERSION))
    module = schema.propose.__module__
    if not module.startswith(_BOOKS):
        return f"{text} {id(schema.propose)}"
    return text + Path(BOOK_VERDICTS.parent / f"{module.rpartition('.')[2]}.py").read_text(encoding="utf-8")


def _library_text(rule: Rule) -> Iterator[str]:
    """What is called, where the rule lowers to a library call."""
    if rule.library is not None:
        name, target, requires, *_ = rule.library.content
        yield repr((name, requires))
        try:
            yield repr(value_token(target))
        except NoContentError:  # known in this process only
            yield f"{type(target).__name__} {id(target)}"


def _function_text(rule: Rule) -> Iterator[str]:
    seen: set[int] = set()
    found = list(_content(rule.library.pattern if rule.library else rule.function, seen))
    if None not in found:
        yield from (t for t in found if t is not None)
        return
    # No source to be had, or values whose content does not show: what the function makes stands for it.
    for instance in instances(rule, limit=32):
        typed = ", ".join(map(repr, instance.params))
        left, right = (" ; ".join(map(expression_text, side)) for side in (instance.left, instance.right))
        yield f"{typed}: {left} => {right}"


def _content(function: Any, seen: set[int]) -> Iterator[str | None]:
    """Source text of a function, the values it closes over, and the helpers and constants it mentions, operators by
    name; None where there is no source, or where a value's content does not show."""
    if id(function) in seen:
        return
    seen.add(id(function))
    code = getattr(function, "__code__", None)
    if code is None:
        yield None
        return
    # Lambdas may share a line; only their code tells them apart.
    yield _code_text(code) if function.__name__ == "<lambda>" else source_of(code)
    closure = zip(code.co_freevars, function.__closure__ or (), strict=True)
    values: list[tuple[str, Any]] = [(n, c.cell_contents) for n, c in closure]
    parameters = inspect.signature(function).parameters.values()
    values += [(p.name, p.default) for p in parameters if p.default is not p.empty]
    scope: dict[str, Any] = function.__globals__
    values += [(n, scope[n]) for n in _names(code) if n in scope]
    for name, value in values:
        if isinstance(value, types.FunctionType) and not value.__module__.startswith("relax_eg.ops"):
            yield from _content(value, seen)
        elif isinstance(value, _INLINE):
            yield f"{name}={value!r}"
        elif isinstance(value, types.ModuleType):
            yield f"{name}={value.__name__}"
        elif isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)):
            yield f"{name}={value.__module__}.{value.__qualname__}"
        else:
            yield None


@lru_cache(1 << 12)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """Global names a function mentions, inner functions included."""
    inner = [n for c in code.co_consts if isinstance(c, types.CodeType) for n in _names(c)]
    return tuple(dict.fromkeys((*code.co_names, *inner)))


def _code_text(code: types.CodeType) -> str:
    constants = [_code_text(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"


@lru_cache(1 << 12)
def source_of(code: types.CodeType) -> str | None:
    """The lines of a function, from its first decorator; None where the file is not at hand."""
    linecache.checkcache(code.co_filename)  # a file may have changed and been read again
    lines = linecache.getlines(code.co_filename)
    first = code.co_firstlineno - 1
    if not 0 <= first < len(lines):
        return None
    # A fraction of the cost of inspect.getsource, which reads the text again token by token.
    indent = len(lines[first]) - len(lines[first].lstrip())
    taken: list[str] = []
    in_body = False
    for line in lines[first:]:
        text = line.strip()
        deeper = not text or len(line) - len(line.lstrip()) > indent
        if in_body and not deeper:
            break
        taken.append(line.rstrip())
        head = not deeper and text.startswith("def ") and text.partition("#")[0].rstrip().endswith(":")
        in_body = in_body or head or text.startswith(") ->")
    if not in_body:  # a lambda, or a layout that the above does not read
        try:
            return inspect.getsource(code)
        except (OSError, TypeError, IndentationError):
            return None
    return "\n".join(t for t in taken if t)


@lru_cache(None)
def _known() -> dict[str, dict[str, Any]]:
    """The shipped verdicts by key; none where the file is missing or of another version. What another version of the
    prover proved is tested."""
    return read_verdicts(BOOK_VERDICTS) if BOOK_VERDICTS.is_file() else {}


def read_verdicts(path: Path) -> dict[str, dict[str, Any]]:
    """The verdicts in a file that `write_verdicts` wrote, by key; none of another version. RuleError for a file that is
    none."""
    try:
        data = read_json(path.read_bytes())
    except (OSError, ValueError) as e:
        raise RuleError(f"{path} is no file of verdicts: {e}") from None
    if not isinstance(data, dict) or not isinstance(data.get("verdicts"), dict):
        raise RuleError(f'{path} is no file of verdicts: {{"version": {FORMAT_VERSION}, "verdicts": ...}} is accepted')
    if data.get("version") != FORMAT_VERSION:
        return {}
    verdicts: dict[str, dict[str, Any]] = {}
    for key, entry in data["verdicts"].items():
        if not isinstance(entry, dict) or not _is_verdict(entry):
            accepted = "its rule, status, samples, and perhaps operators, problem, theory, ranks"
            raise RuleError(f"{path}: the verdict {key!r:.80} is {entry!r:.80}; {accepted}, are accepted")
        if data.get("prover") != PROVER_VERSION and entry["status"] == "proved":
            entry.update(status="tested", theory="", ranks="")
        verdicts[key] = entry
    return verdicts


def _is_verdict(entry: Mapping[str, Any]) -> bool:
    texts = ("rule", "status", "operators", "problem", "theory", "ranks")
    if not {"rule", "status", "samples"} <= set(entry) <= {*texts, "samples"}:
        return False
    fits = all(isinstance(entry.get(k, ""), str) for k in texts) and entry["status"] in get_args(Status)
    return fits and type(entry["samples"]) is int and entry["samples"] >= 0


def known_verdict(rule: Rule | Schema) -> Verdict | None:
    """The shipped verdict on a rule of this content, if there is one."""
    entry = _known().get(content_hash(rule))
    if entry is None:
        return None
    if isinstance(rule, Rule) and "operators" in entry:
        rule.know_left_operators(entry["operators"].split())
    more = {k: entry.get(k, "") for k in ("problem", "theory", "ranks")}
    return Verdict(rule, entry["status"], entry["samples"], **more)


def status(rule: Rule | Schema) -> Verdict:
    """The verdict on `rule`: shipped, given earlier, or given now."""
    return known_verdict(rule) or remembered(rule)


def not_proved(rules: Iterable[Rule | Schema]) -> dict[str, str]:
    """Of rules that users wrote: those that no proof covers, with where they stand and what is known of them."""
    found: dict[str, str] = {}
    for rule in rules:
        function = rule.function if isinstance(rule, Rule) else rule.propose
        module = getattr(function, "__module__", None) or ""
        if not module.startswith("relax_eg.") and (verdict := status(rule)).status != "proved":
            found[rule.name] = f"{rule.where}, {verdict.told}"
    return found


def write_verdicts(rules: Iterable[Rule | Schema], path: Path = BOOK_VERDICTS) -> None:
    """Test `rules` as far as that is not known, try to prove what is tested, and write their verdicts, in a fixed
    order. What another machine may have and this one lacks is left out."""
    entries: dict[str, dict[str, Any]] = {}
    for rule in rules:
        verdict = raised(status(rule))
        if verdict.status == "missing":
            continue
        entry: dict[str, Any] = {"rule": rule.name, "status": verdict.status, "samples": verdict.samples}
        entry |= {k: v for k in ("problem", "theory", "ranks") if (v := getattr(verdict, k))}
        if isinstance(rule, Rule):  # so that the rule is left alone in a program that has none of them
            entry["operators"] = " ".join(sorted(rule.left_operators))
        entries[content_hash(rule)] = entry
    data = {"version": FORMAT_VERSION, "checker": CHECKER_VERSION, "prover": PROVER_VERSION, "verdicts": entries}
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    _known.cache_clear()


def main() -> None:
    """Write the verdicts on the shipped books; a refuted rule is an error."""
    from relax_eg.rules.book import default, legalization, workspace

    everything = (*default, *default.schemas, *legalization.schemas, *workspace.schemas)
    write_verdicts(everything)
    refuted = [str(v) for v in map(status, everything) if v.status == "refuted"]
    if refuted:
        raise SystemExit("\n".join(refuted))
