"""A derivation as plain data, which is checked without the search that found it and without the e-graph engine.

The data holds both programs (as text for people, and exactly), and of each step what is needed to make it again: the
rule by name and content, what its variables stood for, and between which expressions it leads. Expressions are nodes
of one table, so a certificate is about as long as the programs and the steps together.
"""

from __future__ import annotations

import ast
import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from relax_eg.accepted import PATH, accepts
from relax_eg.errors import ExplanationError
from relax_eg.explain.check import Replay, replay
from relax_eg.explain.result import Derivation, Part
from relax_eg.explain.steps import Equation, Goal, Inside, Rewritten, Step, equation
from relax_eg.explain.whole import Checked
from relax_eg.ir.expr import ConstantData, Expr, tuple_, var
from relax_eg.ir.foreign import Foreign
from relax_eg.ir.module import Binding, Block, Function, Module
from relax_eg.ir.packed import pack, unpack
from relax_eg.plain_data import DAMAGED, read_json, write_file
from relax_eg.rules import Rule, RuleSet, Schema
from relax_eg.rules.certificates import content_hash, status
from relax_eg.shapes import Dim, Scope

VERSION = 2
_PLACE = re.compile(r'(R\.foreign\("\w+", )\d+\)')


@dataclass(frozen=True)
class Opaque:
    """Stands for an object of another library that a certificate does not hold: equal objects have equal numbers."""

    kind: str
    number: int


class _Outside:
    """Opaque objects by number; every constant is part of the data."""

    def __init__(self) -> None:
        self._numbers: dict[Foreign, int] = {}

    def name_of(self, foreign: Foreign) -> Any:
        return [foreign.type_name, self._numbers.setdefault(foreign, len(self._numbers))]

    def foreign_of(self, name: Any) -> Foreign:
        kind, number = name
        return Foreign(Opaque(str(kind), int(number)))

    def array_name(self, data: ConstantData) -> str | None:
        return None

    def array_of(self, name: str) -> np.ndarray[Any, Any]:
        raise KeyError(name)


@dataclass(frozen=True)
class Certificate:
    """A derivation as plain data, `data`, for `json`. `verify` does all of it over."""

    data: Mapping[str, Any]

    @accepts(path=PATH)
    def save(self, path: str | Path) -> None:
        """Write it as JSON."""
        text = json.dumps(self.data, separators=(",", ":"), ensure_ascii=False)
        write_file(path, text, ExplanationError, "the certificate")

    @staticmethod
    @accepts(path=PATH)
    def load(path: str | Path) -> Certificate:
        """Read what `save` wrote. ExplanationError where the file is no certificate."""
        try:
            data = read_json(Path(path).read_bytes())
        except (OSError, ValueError) as e:
            raise ExplanationError(f"{path} is no certificate: {e}") from None
        if not isinstance(data, dict) or data.get("format") != "relax-eg certificate":
            accepted = "a file that `best.certificate().save(path)` wrote is accepted"
            raise ExplanationError(f"{path} is no certificate: {accepted}")
        return Certificate(data)

    def verify(self, rules: RuleSet) -> Replay:
        """Do every step over, by rules of `rules`. ExplanationError names what does not hold, or cannot be checked."""
        if self.data.get("version") != VERSION:
            raise ExplanationError(f"certificate of version {self.data.get('version')}; this is version {VERSION}")
        try:
            derivation = _Reader(self.data, rules).derivation()
        except ExplanationError:
            raise
        except DAMAGED as e:
            raise ExplanationError(f"the certificate cannot be read: {type(e).__name__}: {e}") from None
        found = replay(derivation)
        for part, data, programs in zip(derivation.parts, self.data["parts"], found.programs, strict=True):
            _same_programs(part, data["programs"], programs)
        if found.unchecked:
            why = "; ".join(found.not_evaluated)
            raise ExplanationError(f"a step by rule `{found.unchecked[0]}` cannot be checked: {why}")
        return found

    @property
    def premises(self) -> str:
        """What the derivation takes for granted: the numerics classes, and what was declared of sizes and values.
        ExplanationError where the data does not say it."""
        try:
            return self._premises()
        except DAMAGED as e:
            raise ExplanationError(f"the certificate cannot be read: {type(e).__name__}: {e}") from None

    def _premises(self) -> str:
        sizes = [
            f"{name} >= {low}" + (f", {name} <= {high}" if high is not None else "")
            for name, (low, high) in self.data["sizes"].items()
            if low is not None
        ]
        facts = [f"{name} is {fact.replace('_', ' ')}" for name, facts in self.data["facts"].items() for fact in facts]
        given = [*sizes, *self.data["assumptions"], *facts]
        return f"rules of class {', '.join(self.data['numerics'])}" + (f"; given {', '.join(given)}" if given else "")


def certificate(derivation: Derivation, replayed: Replay | None) -> Certificate:
    """`derivation` as plain data. ExplanationError where something in it cannot be."""
    return Certificate(_Writer(derivation, replayed).data())


def _program_text(module: Module) -> str:
    """The text of a module; objects of other libraries by kind, since their places differ from process to process."""
    return _PLACE.sub(r"\1_)", str(module))


def _told(part: Part, programs: Sequence[Checked]) -> list[dict[str, Any]]:
    """The whole programs of a part, in order: what made each, and what was found when it was checked."""
    numbers = {g: i for i, g in enumerate(part.goals)}
    told: list[dict[str, Any]] = []
    for c in programs:
        step = c.goal.steps[c.step][0] if c.how == "rule" else None
        by = step.equation.rule.name if isinstance(step, Rewritten) else c.how
        made = {"by": by, "goal": numbers[c.goal], "step": c.step}
        told.append({**made, "apart": c.deviation, "operators": c.operators})
    return told


def _same_programs(part: Part, said: Sequence[Mapping[str, Any]], programs: Sequence[Checked]) -> None:
    """Raise ExplanationError unless the whole programs are those that the certificate says."""
    found = _told(part, programs)
    for number, (a, b) in enumerate(zip_longest(said, found), 1):
        x, y = (None if p is None else (p.get("by"), p.get("goal"), p.get("step")) for p in (a, b))
        if x != y:
            words = ["nothing" if p is None else f"`{p[0]}`, step {p[2]} of goal {p[1]}" for p in (x, y)]
            raise ExplanationError(
                f"whole program {number} of `{part.function}` is said to be made by {words[0]}, and the steps make it "
                f"by {words[1]}"
            )


class _Writer:
    def __init__(self, derivation: Derivation, replayed: Replay | None) -> None:
        self.derivation = derivation
        self.replayed = replayed
        self.terms: dict[Expr, int] = {}

    def data(self) -> dict[str, Any]:
        d = self.derivation
        programs = [[] for _ in d.parts] if self.replayed is None else self.replayed.programs
        parts = [self._part(p, found) for p, found in zip(d.parts, programs, strict=True)]
        kinds = {"written": d.written, "shared": d.shared, "chosen": d.chosen, "functions": d.functions.values()}
        functions = [_renamed(f, f"{kind}:{f.name}") for kind, module in kinds.items() for f in module]
        bindings = tuple(Binding(var(f"t{i}", e.annotation), e) for e, i in self.terms.items())
        functions.append(Function("terms", (), (Block(bindings),), tuple_(())))
        programs, blob = pack(Module(tuple(functions)), _Outside())
        scope = d.scope
        return {
            "format": "relax-eg certificate",
            "version": VERSION,
            "name": d.name,
            "written": _program_text(d.written),
            "chosen": _program_text(d.chosen),
            "numerics": list(d.numerics),
            "sizes": {name: list(scope.bounds(name)) for name in sorted(scope.names)},
            "assumptions": list(scope.assumptions),
            "facts": {name: sorted(facts) for name, facts in d.facts.items()},
            "parts": parts,
            "programs": programs,
            "constants": base64.b64encode(blob).decode(),
        }

    def _term(self, e: Expr) -> int:
        return self.terms.setdefault(e, len(self.terms))

    def _part(self, part: Part, programs: Sequence[Checked]) -> dict[str, Any]:
        equations = {e: i for i, e in enumerate(part.equations)}
        goals = {g: i for i, g in enumerate(part.goals)}
        sources = self.derivation.sources.get(part.function, {})
        return {
            "function": part.function,
            "block": part.block,
            "rules": [self._equation(e, sources) for e in equations],
            "goals": [
                [self._term(g.start), self._term(g.end), [self._step(s, to, equations, goals) for s, to in g.steps]]
                for g in goals
            ],
            "results": [goals[g] for g in part.results],
            "programs": _told(part, programs),
        }

    def _equation(self, e: Equation, sources: Mapping[Expr, str]) -> dict[str, Any]:
        verdict = status(e.rule)
        place = next((sources[x] for pair in e.pairs for x in pair if x in sources), "")
        said = {"rule": e.rule.name, "content": content_hash(e.rule), "status": verdict.status, "place": place}
        proofs = self.replayed.conditions.get(e, []) if self.replayed is not None else []
        if e.instance is None:
            return {**said, "pairs": [[self._term(a), self._term(b)] for a, b in e.pairs], "proofs": proofs}
        return {
            **said,
            "ranks": list(e.instance.ranks),
            "dtype": e.instance.dtype,
            "attributes": {k: _plain(v) for k, v in e.instance.attributes},
            "operands": [self._term(x) for x in e.operands],
            "sizes": {k: str(v) for k, v in e.sizes},
            "proofs": proofs,
        }

    def _step(self, step: Step, to: Expr, equations: Mapping[Equation, int], goals: Mapping[Goal, int]) -> list[Any]:
        if isinstance(step, Rewritten):
            return ["rule", self._term(to), equations[step.equation], step.result, step.forward]
        operands = [None if g is None else goals[g] for g in step.operands]
        return ["inside", self._term(to), operands, [[str(x), str(y)] for x, y in step.sizes]]


def _plain(value: Any) -> str:
    text = repr(value)
    try:
        same = ast.literal_eval(text) == value
    except (ValueError, SyntaxError):
        same = False
    if not same:
        raise ExplanationError(f"an attribute variable is {text}, which a certificate cannot hold")
    return text


def _renamed(function: Function, name: str) -> Function:
    return Function(name, function.params, function.blocks, function.result, function.sources)


class _Reader:
    def __init__(self, data: Mapping[str, Any], rules: RuleSet) -> None:
        self.data = data
        self.rules = rules
        self.known: dict[str, Rule | Schema] = {r.name: r for r in (*rules, *rules.schemas)}
        module = unpack(data["programs"], base64.b64decode(data["constants"]), _Outside())
        self.kinds: dict[str, list[Function]] = {}
        for f in module:
            kind, _, name = f.name.partition(":")
            self.kinds.setdefault(kind, []).append(_renamed(f, name))
        (terms,) = self.kinds["terms"]
        self.terms = [b.value for b in terms.blocks[0].bindings]

    def derivation(self) -> Derivation:
        data = self.data
        written, shared, chosen = (Module(tuple(self.kinds[k])) for k in ("written", "shared", "chosen"))
        for kind, module in (("written", written), ("chosen", chosen)):
            if _without_kinds(_program_text(module)) != _without_kinds(data[kind]):
                raise ExplanationError(f"the text of the program as {kind} is not that of the program in the data")
        scope = Scope({name: (low, high) for name, (low, high) in data["sizes"].items()}, assume=data["assumptions"])
        facts = {name: frozenset(map(str, found)) for name, found in data["facts"].items()}
        parts = tuple(self._part(p) for p in data["parts"])
        functions = {f.name: f for f in self.kinds["functions"]}
        return Derivation(
            data["name"], written, shared, chosen, MappingProxyType(functions), parts, self.rules,
            tuple(data["numerics"]), scope, facts,
        )  # fmt: skip

    def _part(self, data: Mapping[str, Any]) -> Part:
        equations = [self._equation(e) for e in data["rules"]]
        goals: list[Goal] = []
        for start, end, steps in data["goals"]:
            made = [self._step(s, equations, goals) for s in steps]
            goals.append(Goal(self.terms[start], self.terms[end], made))
        return Part(data["function"], data["block"], tuple(goals[i] for i in data["results"]))

    def _rule(self, data: Mapping[str, Any]) -> Rule | Schema:
        name = data["rule"]
        found = self.known.get(name)
        if found is None:
            raise ExplanationError(f"the certificate uses rule `{name}`, which no rule file that was given has")
        if content_hash(found) != data["content"]:
            raise ExplanationError(
                f"rule `{name}` ({found.where}) does not say what the rule of this name said that the certificate uses"
            )
        return found

    def _equation(self, data: Mapping[str, Any]) -> Equation:
        rule = self._rule(data)
        if isinstance(rule, Schema):
            return Equation(rule, tuple((self.terms[a], self.terms[b]) for a, b in data["pairs"]))
        attributes = {k: ast.literal_eval(v) for k, v in data["attributes"].items()}
        instance = rule.instance(tuple(data["ranks"]), data["dtype"], attributes)
        if instance is None:
            raise ExplanationError(f"rule `{rule.name}` ({rule.where}) has no such instance as the certificate uses")
        sizes = {k: Dim.of(v) for k, v in data["sizes"].items()}
        return equation(instance, [self.terms[i] for i in data["operands"]], sizes)

    def _step(self, data: Sequence[Any], equations: Sequence[Equation], goals: Sequence[Goal]) -> tuple[Step, Expr]:
        if data[0] == "rule":
            _, to, number, result, forward = data
            return Rewritten(equations[number], result, bool(forward)), self.terms[to]
        _, to, operands, sizes = data
        pairs = tuple((Dim.of(x), Dim.of(y)) for x, y in sizes)
        return Inside(tuple(None if g is None else goals[g] for g in operands), pairs), self.terms[to]


def _without_kinds(text: str) -> str:
    return re.sub(r'R\.foreign\("\w+", _\)', "R.foreign", text)
