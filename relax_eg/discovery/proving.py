"""Proofs of candidates, each as a rule, of the strongest numerics class and the most general typing first."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from relax_eg.discovery.conditions import Condition, condition_of
from relax_eg.discovery.extremes import tests_for_nan
from relax_eg.discovery.grammar import Grammar, Stated
from relax_eg.discovery.laws import Writer, is_reversible
from relax_eg.discovery.table import EqualPair
from relax_eg.discovery.terms import leaves_of, operators_of, size_of
from relax_eg.discovery.typings import OF_MATRICES, Signature
from relax_eg.discovery.values import SamplePoints
from relax_eg.dtypes import is_float, numpy_dtype
from relax_eg.errors import DiscoveryError, RelaxEgError
from relax_eg.ops.interpret import evaluate_points
from relax_eg.plain_data import read_json
from relax_eg.rules.checking.verdict import Verdict
from relax_eg.rules.checking.verification import WAYS, Verifiers, Way
from relax_eg.rules.content import checker, digest
from relax_eg.rules.signature import Numerics

Outcome = Literal["proved", "tested", "refuted", "unknown"]
Progress = Callable[[str, int, int], None]

# given: the classes of floats, the strongest first
CLASSES: tuple[Numerics, ...] = ("exact", "reassociate", "approximate")
WAYS_OF_LAWS: tuple[Way, ...] = ("prove", "test")  # given: with equations of all operators, and without
# given: the verdicts of each way with which a law holds
_HOLDS = {"prove": ("proved", "axiom"), "test": ("tested",)}
MOST_JOBS = 256  # limit: processes
_SECONDS = 30.0  # limit: seconds for the check and the proof of one rule in a process
_HOLES = 0.25  # chosen: share of the elements of a variable that are NaN, where laws are tried with it
_APART = 1e-2  # chosen: difference beyond rounding in float32, relative to the first side, or to 1
_FILE = "verdicts.jsonl"  # of a run's folder: a line for each rule that was tried


@dataclass(frozen=True)
class LawProof:
    """What became of a candidate.

    - `outcome`: "proved" for all sizes; "tested" if it has an operator without equations and is not proved by
      definitions; "refuted" by a counterexample; or "unknown".
    - `source`: the text of the function of the rule.
    - `numerics`: its class.
    - `theory`: of a proof, as of a verdict.
    - `problem`: the counterexample, or the reason why it is not proved.
    - `seconds`: time of its checks and proofs.
    - `candidate`: the candidate, with a condition on sizes if only that is proved; None for a candidate as it was.
    """

    outcome: Outcome
    source: str
    numerics: Numerics
    theory: str = ""
    problem: str = ""
    seconds: float = 0.0
    candidate: EqualPair | None = None

    @property
    def holds(self) -> bool:
        return self.outcome in ("proved", "tested")


@dataclass(frozen=True)
class _Attempt:
    """A text to try, with its class; `candidate` where it states less than the candidate."""

    text: str
    numerics: Numerics
    candidate: EqualPair | None


class LawProver:
    """Checks and proves candidates; a context, which ends the processes that it started.

    - `jobs`: processes; with 1 everything is proved in this one.
    - `folder`: where verdicts are kept, so that an interrupted run goes on; None for nowhere.
    """

    def __init__(self, grammar: Grammar, writer: Writer, numerics: Numerics, jobs: int, folder: Path | None) -> None:
        self._grammar, self._writer = grammar, writer
        self._allowed: tuple[Numerics, ...] = CLASSES[: CLASSES.index(numerics) + 1]
        self._bits, self._reals = (SamplePoints(grammar, bits, 0) for bits in (True, False))
        self._jobs, self._folder = jobs, folder
        self._known = _read(folder)
        self._stack = ExitStack()
        self._verifiers: Verifiers | None = None
        self._files = 0

    def __enter__(self) -> LawProver:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def prove(self, asked: Sequence[tuple[EqualPair, str]], progress: Progress) -> list[LawProof]:
        """What becomes of each candidate, which has a name. Candidates are tried together, attempt by attempt."""
        attempts = [self._attempts(c, name) for c, name in asked]
        last: list[LawProof | None] = [None] * len(asked)
        pairs = [c for c, _ in asked]
        self._try(list(range(len(asked))), [self._way(c) for c in pairs], attempts, last, progress)
        unknown = [i for i, p in enumerate(last) if p is not None and p.outcome == "unknown"]
        tests: list[Way] = ["test"] * len(asked)
        self._try([i for i in unknown if not self._have_all(pairs[i], "equations")], tests, attempts, last, progress)
        self._test([(i, p) for i in unknown if (p := last[i]) is not None and p.outcome == "unknown"], last, progress)
        return [p or LawProof("unknown", "", self._allowed[-1], problem="it is no rule") for p in last]

    def _try(
        self, of: Sequence[int], ways: Sequence[Way], attempts: Sequence[Sequence[_Attempt]],
        last: list[LawProof | None], progress: Progress,
    ) -> None:  # fmt: skip
        """Tries the attempts of candidates, given by number, one after another, until one of each holds."""
        open_ = [i for i in of if attempts[i]]
        turn = 0
        while open_:
            still: list[int] = []
            for way in WAYS_OF_LAWS:
                own = [i for i in open_ if ways[i] == way]
                verdicts = self._verdicts([attempts[i][turn].text for i in own], way, progress)
                for i, v in zip(own, verdicts, strict=True):
                    found = last[i] = _proof(v, attempts[i][turn], last[i], way)
                    if not found.holds and turn + 1 < len(attempts[i]):
                        still.append(i)
            open_, turn = still, turn + 1

    def _way(self, c: EqualPair) -> Way:
        """How a candidate is checked first: proofs need equations or definitions of all operators."""
        return "prove" if self._have_all(c, "definition") else "test"

    def _have_all(self, c: EqualPair, what: Stated) -> bool:
        return all(self._grammar.forms[n].has(what) for n in (*operators_of(c.left), *operators_of(c.right)))

    def widened(self, laws: Sequence[tuple[EqualPair, str, LawProof]], progress: Progress) -> list[LawProof]:
        """The proofs of laws, which have names, for all typings of the most general kind that is proved."""
        typed = [list(self._writer.typed(c, name, p.numerics, every=True)) for c, name, p in laws]
        found = [p for _, _, p in laws]
        open_ = set(range(len(laws)))
        for kind in sorted({s.generality for t in typed for s, _ in t}):
            asked = [(i, s, text) for i in sorted(open_) for s, text in typed[i] if s.generality == kind]
            proved: dict[int, list[Signature]] = {}
            for way in WAYS_OF_LAWS:
                own = [(i, s, text) for i, s, text in asked if (laws[i][2].outcome == "tested") == (way == "test")]
                for (i, s, _), v in zip(own, self._verdicts([text for *_, text in own], way, progress), strict=True):
                    if v["status"] in _HOLDS[way]:
                        proved.setdefault(i, []).append(s)
            for i, signatures in proved.items():
                c, name, p = laws[i]
                found[i] = replace(p, source=self._writer.source(c, name, signatures, p.numerics))
            open_ -= proved.keys()
        return found

    def _test(self, unknown: Sequence[tuple[int, LawProof]], last: list[LawProof | None], progress: Progress) -> None:
        """Tests what is not proved: it may be refuted."""
        verdicts = self._verdicts([p.source for _, p in unknown], "test", progress)
        for (i, p), v in zip(unknown, verdicts, strict=True):
            if v["status"] == "refuted":
                last[i] = _proof(v, _Attempt(p.source, p.numerics, None), p, "prove")

    def _attempts(self, c: EqualPair, name: str) -> list[_Attempt]:
        """The texts to try, with their classes. Where the bits differ at sample points the class is not exact, and
        variables are finite if the sides test for NaN and differ where it is. A law in both directions may be accurate
        in one alone. At the end, where no axis is empty: of an empty axis proofs of extremes say nothing."""
        has_same_bits, asked = self._has_same_bits(c), c
        if not has_same_bits and tests_for_nan(c, self._grammar) and (finite := self._numbers_needed(c)):
            before = c.condition or Condition(())
            made = condition_of(self._grammar, [*sorted(before.claims), *((v, "finite") for v in finite)])
            c = replace(
                c, condition=replace(made, when=(*before.when, *made.when[len(before.claims) :]), sizes=before.sizes)
            )
        weaker = None if c is asked else c
        classes: list[Numerics] = [n for n in self._allowed if n != "exact" or has_same_bits]
        tried: list[_Attempt] = []
        for n in classes:
            tried += [_Attempt(text, n, weaker) for text in self._writer.general(c, name, n)]
            if n == "reassociate" and self._goes_both_ways(c):
                for one in (c, replace(c, left=c.right, right=c.left)):
                    tried += [_Attempt(text, n, weaker) for text in islice(self._writer.general(one, name, n, None), 1)]
        sizes = self._sizes(c)
        if asked.condition is None and sizes and not self._is_pointwise(c):
            before = c.condition or Condition(())
            when = (*before.when, *(f"{n} >= 1" for n in sizes))
            inside = replace(c, condition=replace(before, when=when, sizes=frozenset(sizes)))
            tried += [_Attempt(text, classes[-1], inside) for text in self._writer.general(inside, name, classes[-1])]
        return tried

    def _goes_both_ways(self, c: EqualPair) -> bool:
        return size_of(c.left) == size_of(c.right) and is_reversible(c, self._grammar)

    def _numbers_needed(self, c: EqualPair) -> list[int]:
        """The variables for which NaN makes a difference: where elements of one are NaN, the side that is
        rewritten is a number and the other is none, or another one."""
        variables = self._grammar.variables
        used = {v for v in leaves_of(c.left) if v < len(variables) and is_float(variables[v].dtype)}
        return [v for v in sorted(used) if self._differs_at_nan(c, v)]

    def _differs_at_nan(self, c: EqualPair, variable: int) -> bool:
        variables = self._grammar.variables
        sides = tuple(self._grammar.expression(t) for t in (c.left, c.right))
        rng = np.random.default_rng(0)
        for at, values in zip(self._reals.sizes, self._reals.values, strict=True):
            drawn = list(values)
            holes = rng.random(values[variable].shape) < _HOLES
            drawn[variable] = np.where(holes, np.nan, values[variable])
            count = len(holes)
            held = np.ones(count, bool)
            if c.condition is not None:
                held = self._reals.columns_at(((), ""), c.condition, at, drawn)
            env = {v: x.astype(numpy_dtype(v.dtype)) for v, x in zip(variables, drawn, strict=False)}
            try:
                with np.errstate(all="ignore"):
                    a, b = (
                        np.asarray(x).reshape(count, -1) for x in evaluate_points(sides, env, at, count, ordered=True)
                    )
            except RelaxEgError:
                continue
            is_number = np.ones(a.shape, bool)
            if is_float(sides[0].dtype):
                a, b = a.astype(np.float64), b.astype(np.float64)
                is_number = np.isfinite(a) | (np.isfinite(b) & self._goes_both_ways(c))
            with np.errstate(invalid="ignore"):
                apart = (
                    ~((a == b) | (np.abs(a - b) <= _APART * np.maximum(np.abs(a), 1))) if a.dtype != bool else a != b
                )
            if np.any((apart & is_number)[held]):
                return True
        return False

    def _sizes(self, c: EqualPair) -> list[str]:
        """The named sizes of the variables of a candidate."""
        used = {v for v in leaves_of(c.left) if v < self._grammar.variable_count}
        named = {v for i in used for d in self._grammar.leaves[i].shape for v in d.variables}
        return sorted(v for v in named if "__" not in v)

    def _is_pointwise(self, c: EqualPair) -> bool:
        """Whether every operator keeps the shape of its operands."""
        forms = [self._grammar.forms[n] for n in (*operators_of(c.left), *operators_of(c.right))]
        return all(f.is_operator and not f.attributes and f.op not in OF_MATRICES for f in forms)

    def _has_same_bits(self, c: EqualPair) -> bool:
        params = self._grammar.variables
        left, right = (self._grammar.expression(t) for t in (c.left, c.right))
        try:
            for at, values in zip(self._bits.sizes, self._bits.values, strict=True):
                env = dict(zip(params, values, strict=False))
                with np.errstate(all="ignore"):
                    a, b = evaluate_points((left, right), env, at, len(values[0]), ordered=True)
                t = left.shape, left.dtype
                rows = [self._bits.rows([np.asarray(x)[None]], left.dtype) for x in (a, b)]
                held = np.ones(rows[0].shape, bool)
                if c.condition is not None:
                    held &= self._bits.columns_at(t, c.condition, at, values)
                if np.any((rows[0] != rows[1]) & held):
                    return False
        except RelaxEgError:
            return False
        return True

    # --- verdicts, kept ---

    def _verdicts(self, texts: Sequence[str], way: Way, progress: Progress) -> list[dict[str, Any]]:
        keys = [_key(f"{way}\n{self._writer.file([t])}") for t in texts]
        missing = [i for i, k in enumerate(keys) if k not in self._known]
        if self._jobs > 1 and len(missing) > 1:
            self._verify_apart([texts[i] for i in missing], [keys[i] for i in missing], way, progress)
        else:
            for n, i in enumerate(missing):
                progress("proving", n, len(missing))
                found = [WAYS[way](r) for r in self._writer.rule(texts[i])]
                self._keep(keys[i], _worst(found))
        return [self._known[k] for k in keys]

    def _verify_apart(self, texts: Sequence[str], keys: Sequence[str], way: Way, progress: Progress) -> None:
        if self._verifiers is None:
            self._verifiers = self._stack.enter_context(Verifiers(self._jobs))
        with tempfile.TemporaryDirectory(prefix="relax_eg_") as folder:
            self._files += 1
            path = Path(folder, f"candidates_{self._files}.py")
            # Names of functions may recur among the attempts of candidates; a rule's key is its number.
            marked = [_renamed(t, f"law_{n}") for n, t in enumerate(texts)]
            path.write_text(self._writer.file(marked), encoding="utf-8")
            told: Progress = lambda _, done, of: progress("proving", done, of)  # noqa: E731
            report = self._verifiers.verify(path, _SECONDS, told, way)
        by_rule: dict[str, list[Verdict]] = {}
        for v in report:
            by_rule.setdefault(v.rule.name.removesuffix("_reversed"), []).append(v)
        for n, key in enumerate(keys):
            self._keep(key, _worst(by_rule[f"law_{n}"]))

    def _keep(self, key: str, v: Verdict) -> None:
        kept = {"status": v.status, "theory": v.theory, "problem": v.problem or v.unproved, "seconds": v.seconds}
        self._known[key] = kept
        if self._folder is not None:
            with (self._folder / _FILE).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, **kept}) + "\n")


def _renamed(source: str, name: str) -> str:
    head, _, tail = source.partition("\ndef ")
    return f"{head}\ndef {name}{tail[tail.index('(') :]}"


def _worst(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on a law whose directions have these."""
    ranking = ("refuted", "missing", "tested", "axiom", "proved")
    return min(verdicts, key=lambda v: ranking.index(v.status))


def _proof(v: dict[str, Any], a: _Attempt, before: LawProof | None, way: Way) -> LawProof:
    source, numerics = a.text, a.numerics
    seconds = v["seconds"] + (before.seconds if before else 0.0)
    if v["status"] in _HOLDS[way]:
        theory = "axiom" if v["status"] == "axiom" else v["theory"]
        return LawProof("proved" if way == "prove" else "tested", source, numerics, theory, "", seconds, a.candidate)
    outcome: Outcome = "refuted" if v["status"] == "refuted" else "unknown"
    return LawProof(outcome, source, numerics, "", v["problem"].strip(), seconds)


def _key(text: str) -> str:
    return digest(f"{checker()}\n{text}")


def _read(folder: Path | None) -> dict[str, dict[str, Any]]:
    """The verdicts of a run's folder. A last line that was cut off is left out."""
    if folder is None or not (folder / _FILE).is_file():
        return {}
    found: dict[str, dict[str, Any]] = {}
    lines = (folder / _FILE).read_text(encoding="utf-8").splitlines()
    for n, line in enumerate(lines):
        try:
            entry = read_json(line)
            found[entry.pop("key")] = {k: entry[k] for k in ("status", "theory", "problem", "seconds")}
        except (ValueError, KeyError, AttributeError):
            if n + 1 < len(lines):
                raise DiscoveryError(
                    f"{folder / _FILE}, line {n + 1}: not a verdict; accepted: a folder of a run"
                ) from None
    return found
