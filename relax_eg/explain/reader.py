"""Reads the data of a certificate. The data is not trusted: any deviation from the form that is written raises an
error."""

from __future__ import annotations

import ast
import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar, cast, get_args

import numpy as np

from relax_eg.errors import ExplanationError, OperatorError
from relax_eg.explain.result import Derivation, DerivationPart
from relax_eg.explain.steps import CongruenceStep, Equation, Goal, RuleStep, Step, equation
from relax_eg.ir.expr import ConstantData
from relax_eg.ir.foreign import Foreign
from relax_eg.ir.module import Function, Module
from relax_eg.ir.packed import unpack
from relax_eg.plain_data import read_record
from relax_eg.rules import NUMERICS, Rule, RuleSet, Schema
from relax_eg.rules.book.recognised import with_recognitions
from relax_eg.rules.checking.schema_answers import Answers, Form
from relax_eg.rules.content import lasting_hash
from relax_eg.shapes import Dim, Scope

T = TypeVar("T")
_TABLE = Mapping[str, Any]
_TEXTS = Mapping[str, str]
_ROW = tuple[Any, ...]
KINDS = ("written", "shared", "chosen", "functions", "terms")
_PLACE = re.compile(r'(R\.foreign\("\w+", )\d+\)')


@dataclass(frozen=True)
class OpaqueObject:
    """Represents an object of another library, which a certificate does not hold.

    - `kind`: the name of its type.
    - `number`: its number in the certificate; equal objects have equal numbers.
    """

    kind: str
    number: int


class NumberedObjects:
    """Names objects of other libraries by number. Every constant is part of the data."""

    def __init__(self) -> None:
        self._numbers: dict[Foreign, int] = {}

    def name_of(self, foreign: Foreign) -> Any:
        return [foreign.type_name, self._numbers.setdefault(foreign, len(self._numbers))]

    def foreign_of(self, name: Any) -> Foreign:
        kind, number = read_record(tuple[str, Any], name, "an object of another library")
        return Foreign(OpaqueObject(kind, _whole(number, "its number")))

    def array_name(self, data: ConstantData) -> str | None:
        return None

    def array_of(self, name: str) -> np.ndarray[Any, Any]:
        raise ExplanationError("every constant is part of a certificate, and here is one that is not")


def program_text(module: Module) -> str:
    """Returns the text of a module, with objects of other libraries by kind, because their addresses differ between
    processes."""
    return _PLACE.sub(r"\1_)", str(module))


class CertificateReader:
    """Reads the `data` of a certificate whose steps use rules of `rules`.

    - `known`: these rules, by name.
    - `kinds`: the functions of the data, by the program that they belong to.
    - `terms`: the expressions of the table of terms, by number.
    """

    def __init__(self, data: Mapping[str, Any], rules: RuleSet) -> None:
        self.data = data
        self.rules = rules = with_recognitions(rules)
        self.known: dict[str, Rule | Schema] = {r.name: r for r in (*rules, *rules.schemas)}
        constants = base64.b64decode(read_record(str, data["constants"], "constants"), validate=True)
        self.kinds: dict[str, list[Function]] = {kind: [] for kind in KINDS}
        (programs,) = unpack(read_record(_TABLE, data["programs"], "programs"), constants, NumberedObjects())
        for f in programs:
            kind, _, name = f.name.partition(":")
            if kind not in self.kinds:
                raise ExplanationError(f"a function of a certificate is {', '.join(KINDS)}, none is {kind!r}")
            self.kinds[kind].append(replace(f, name=name))
        if len(self.kinds["terms"]) != 1:
            raise ExplanationError("a certificate has one table of terms")
        self.terms = [b.value for block in self.kinds["terms"][0].blocks for b in block.bindings]

    def derivation(self) -> Derivation:
        """Returns the derivation of the certificate. Raises ExplanationError, or any other error that malformed data
        causes."""
        data = self.data
        for kind in ("written", "shared", "chosen"):
            if not self.kinds[kind]:
                raise ExplanationError(f"the certificate has no program as {kind}")
        written, shared, chosen = (Module(tuple(self.kinds[k])) for k in ("written", "shared", "chosen"))
        for kind, module in (("written", written), ("chosen", chosen)):
            if _without_kinds(program_text(module)) != _without_kinds(read_record(str, data[kind], kind)):
                raise ExplanationError(f"the text of the program as {kind} is not that of the program in the data")
        assumed = read_record(tuple[str, ...], data["assumptions"], "assumptions")
        if assumed != written.main.assume:
            raise ExplanationError(
                f"the certificate says that it assumes {', '.join(assumed) or 'nothing'} of sizes, and the program as "
                f"written {', '.join(written.main.assume) or 'nothing'}"
            )
        numerics = read_record(tuple[str, ...], data["numerics"], "numerics")
        if not numerics or numerics != NUMERICS[: len(numerics)]:
            raise ExplanationError(f"numerics is {list(numerics)}: the first one or more of {', '.join(NUMERICS)}")
        facts = read_record(Mapping[str, tuple[str, ...]], data["facts"], "facts")
        parts = tuple(map(self._part, read_record(tuple[_TABLE, ...], data["parts"], "parts")))
        functions = {f.name: f for f in Module(tuple(self.kinds["functions"]))}
        name, known = read_record(str, data["name"], "name"), {p: frozenset(found) for p, found in facts.items()}
        return Derivation(
            name, written, shared, chosen, MappingProxyType(functions), parts, self.rules, numerics,
            Scope(assume=assumed), known,
        )  # fmt: skip

    def _part(self, data: Mapping[str, Any]) -> DerivationPart:
        equations = list(map(self._equation, read_record(tuple[_TABLE, ...], data["rules"], "rules")))
        goals: list[Goal] = []
        for start, end, steps in read_record(tuple[tuple[Any, Any, tuple[_ROW, ...]], ...], data["goals"], "goals"):
            made = [self._step(s, equations, goals) for s in steps]
            goals.append(Goal(_at(self.terms, start, "terms"), _at(self.terms, end, "terms"), made))

        def chosen(places: _ROW) -> tuple[Goal, ...]:
            return tuple(_at(goals, i, "goals") for i in places)

        name, block = read_record(str, data["function"], "function"), _whole(data["block"], "block")
        forms = read_record(tuple[_ROW, ...], data["forms"], "forms")
        return DerivationPart(
            name, block, chosen(read_record(_ROW, data["results"], "results")), tuple(map(chosen, forms))
        )

    def _rule(self, data: Mapping[str, Any]) -> Rule | Schema:
        name = read_record(str, data["rule"], "rule")
        found = self.known.get(name)
        if found is None:
            raise ExplanationError(f"the certificate uses rule `{name}`, which no rule file that was given has")
        if lasting_hash(found) != data["content"]:
            raise ExplanationError(
                f"rule `{name}` ({found.where}) does not say what the rule of this name said that the certificate uses"
            )
        return found

    def _equation(self, data: Mapping[str, Any]) -> Equation:
        rule = self._rule(data)
        if isinstance(rule, Schema):
            pairs = read_record(tuple[tuple[Any, Any], ...], data["pairs"], "pairs")
            sides = tuple((_at(self.terms, a, "terms"), _at(self.terms, b, "terms")) for a, b in pairs)
            return Equation(rule, sides, answers=self._answers(read_record(_TABLE, data["told"], "told")))
        texts = read_record(_TEXTS, data["attributes"], "attributes")
        attributes = {k: ast.literal_eval(v) for k, v in texts.items()}
        if attributes.keys() != rule.attributes.keys():
            raise ExplanationError(f"rule `{rule.name}` ({rule.where}) has other attributes than the certificate says")
        ranks = read_record(tuple[int, ...], data["ranks"], "ranks")
        if len(ranks) != len(rule.block_names):
            raise ExplanationError(f"rule `{rule.name}` ({rule.where}) has {len(rule.block_names)} blocks, not {ranks}")
        instance = rule.usable_instance(ranks, read_record(str, data["dtype"], "dtype"), attributes)
        if instance is None:
            raise ExplanationError(f"rule `{rule.name}` ({rule.where}) has no such instance as the certificate uses")
        sizes = {k: Dim.of(v) for k, v in read_record(_TEXTS, data["sizes"], "sizes").items()}
        operands = [_at(self.terms, i, "terms") for i in read_record(_ROW, data["operands"], "operands")]
        if len(operands) != len(instance.params):
            raise ExplanationError(
                f"rule `{rule.name}` ({rule.where}) takes {len(instance.params)} operands, the certificate has "
                f"{len(operands)}"
            )
        try:
            return equation(instance, operands, sizes)
        except OperatorError as e:
            raise ExplanationError(f"rule `{rule.name}` ({rule.where}) says nothing of these operands: {e}") from None

    def _answers(self, data: Mapping[str, Any]) -> Answers:
        answers = Answers(large_bytes=data["large"])
        large = answers.large_bytes
        if large is not None and (type(large) not in (int, float) or not large >= 0):
            raise ExplanationError(f"large: {large!r} where a number of bytes from 0 on should be")
        for question, size, answer in read_record(tuple[tuple[str, str, Any], ...], data["sizes"], "sizes"):
            answers.sizes[question, size] = _whole(answer, "a size")
        answers.ahead_params.update(read_record(Mapping[str, tuple[bool, ...]], data["ahead"], "ahead"))
        for form, name, values in read_record(tuple[tuple[str, str, _ROW | None], ...], data["forms"], "forms"):
            if form not in get_args(Form):
                raise ExplanationError(f"a form of a function is {', '.join(get_args(Form))}, none is {form!r}")
            terms = None if values is None else tuple(_at(self.terms, i, "terms") for i in values)
            answers.forms[cast("Form", form), name] = terms
        return answers

    def _step(self, data: _ROW, equations: Sequence[Equation], goals: Sequence[Goal]) -> tuple[Step, Any]:
        if data[:1] == ("rule",):
            _, to, number, result, forward = read_record(tuple[str, Any, Any, Any, bool], data, "a step")
            found = _at(equations, number, "rules")
            _at(found.pairs, result, "sides of a rule")
            return RuleStep(found, result, forward), _at(self.terms, to, "terms")
        if data[:1] != ("inside",):
            raise ExplanationError(f"a step is by a rule or inside operands, none is {list(data[:1])}")
        _, to, operands, sizes = read_record(tuple[str, Any, _ROW, tuple[tuple[str, str], ...]], data, "a step")
        pairs = tuple((Dim.of(x), Dim.of(y)) for x, y in sizes)
        inner = tuple(None if g is None else _at(goals, g, "goals") for g in operands)
        return CongruenceStep(inner, pairs), _at(self.terms, to, "terms")


def _without_kinds(text: str) -> str:
    return re.sub(r'R\.foreign\("\w+", _\)', "R.foreign", text)


def _wrong(value: Any, what: str, wanted: str) -> ExplanationError:
    shown = repr(value)
    return ExplanationError(f"{what}: {shown[:60]}{'...' * (len(shown) > 60)} where {wanted} should be")


def _whole(value: Any, what: str) -> int:
    if type(value) is not int or value < 0:
        raise _wrong(value, what, "a number from 0 on")
    return value


def _at(table: Sequence[T], place: Any, what: str) -> T:
    if type(place) is not int or not 0 <= place < len(table):
        raise _wrong(place, what, f"a place among {len(table)} {what}")
    return table[place]
