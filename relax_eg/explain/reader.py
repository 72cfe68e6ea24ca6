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
from relax_eg.rules import NUMERICS, Rule, RuleSet, Schema
from relax_eg.rules.content import lasting_hash
from relax_eg.rules.schema_answers import Answers, Form
from relax_eg.shapes import Dim, Scope

T = TypeVar("T")
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
        kind, number = _items(name, "an object of another library", 2)
        return Foreign(OpaqueObject(_text(kind, "its kind"), _whole(number, "its number")))

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
        self.rules = rules
        self.known: dict[str, Rule | Schema] = {r.name: r for r in (*rules, *rules.schemas)}
        constants = base64.b64decode(_text(data["constants"], "constants"), validate=True)
        self.kinds: dict[str, list[Function]] = {kind: [] for kind in KINDS}
        (programs,) = unpack(_table(data["programs"], "programs"), constants, NumberedObjects())
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
            if _without_kinds(program_text(module)) != _without_kinds(_text(data[kind], kind)):
                raise ExplanationError(f"the text of the program as {kind} is not that of the program in the data")
        assumed = tuple(_text(s, "an assumption") for s in _items(data["assumptions"], "assumptions"))
        if assumed != written.main.assume:
            raise ExplanationError(
                f"the certificate says that it assumes {', '.join(assumed) or 'nothing'} of sizes, and the program as "
                f"written {', '.join(written.main.assume) or 'nothing'}"
            )
        numerics = tuple(_items(data["numerics"], "numerics"))
        if not numerics or numerics != NUMERICS[: len(numerics)]:
            raise ExplanationError(f"numerics is {list(numerics)}: the first one or more of {', '.join(NUMERICS)}")
        facts = {
            name: frozenset(_text(f, "a fact") for f in _items(found, f"the facts of `{name}`"))
            for name, found in _table(data["facts"], "facts").items()
        }
        parts = tuple(self._part(_table(p, "a part")) for p in _items(data["parts"], "parts"))
        functions = {f.name: f for f in Module(tuple(self.kinds["functions"]))}
        return Derivation(
            _text(data["name"], "name"), written, shared, chosen, MappingProxyType(functions), parts, self.rules,
            numerics, Scope(assume=assumed), facts,
        )  # fmt: skip

    def _part(self, data: Mapping[str, Any]) -> DerivationPart:
        equations = [self._equation(_table(e, "a use of a rule")) for e in _items(data["rules"], "rules")]
        goals: list[Goal] = []
        for row in _items(data["goals"], "goals"):
            start, end, steps = _items(row, "a goal", 3)
            made = [self._step(_items(s, "a step"), equations, goals) for s in _items(steps, "steps")]
            goals.append(Goal(_at(self.terms, start, "terms"), _at(self.terms, end, "terms"), made))

        def chosen(places: Any) -> tuple[Goal, ...]:
            return tuple(_at(goals, i, "goals") for i in _items(places, "results"))

        name, block = _text(data["function"], "function"), _whole(data["block"], "block")
        return DerivationPart(name, block, chosen(data["results"]), tuple(map(chosen, _items(data["forms"], "forms"))))

    def _rule(self, data: Mapping[str, Any]) -> Rule | Schema:
        name = _text(data["rule"], "rule")
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
            pairs = [_items(pair, "a pair", 2) for pair in _items(data["pairs"], "pairs")]
            sides = tuple((_at(self.terms, a, "terms"), _at(self.terms, b, "terms")) for a, b in pairs)
            return Equation(rule, sides, answers=self._answers(_table(data["told"], "told")))
        attributes = {k: ast.literal_eval(_text(v, k)) for k, v in _table(data["attributes"], "attributes").items()}
        if attributes.keys() != rule.attributes.keys():
            raise ExplanationError(f"rule `{rule.name}` ({rule.where}) has other attributes than the certificate says")
        ranks = tuple(_whole(r, "a rank") for r in _items(data["ranks"], "ranks"))
        if len(ranks) != len(rule.block_names):
            raise ExplanationError(f"rule `{rule.name}` ({rule.where}) has {len(rule.block_names)} blocks, not {ranks}")
        instance = rule.usable_instance(ranks, _text(data["dtype"], "dtype"), attributes)
        if instance is None:
            raise ExplanationError(f"rule `{rule.name}` ({rule.where}) has no such instance as the certificate uses")
        sizes = {k: Dim.of(_text(v, k)) for k, v in _table(data["sizes"], "sizes").items()}
        operands = [_at(self.terms, i, "terms") for i in _items(data["operands"], "operands")]
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
        for row in _items(data["sizes"], "sizes"):
            question, size, answer = _items(row, "a size", 3)
            answers.sizes[_text(question, "a question"), _text(size, "a size")] = _whole(answer, "a size")
        for name, flags in _table(data["ahead"], "ahead").items():
            answers.ahead_params[name] = tuple(_flag(f, "ahead") for f in _items(flags, "ahead"))
        for row in _items(data["forms"], "forms"):
            form, name, values = _items(row, "a form", 3)
            if form not in get_args(Form):
                raise ExplanationError(f"a form of a function is {', '.join(get_args(Form))}, none is {form!r}")
            terms = None if values is None else tuple(_at(self.terms, i, "terms") for i in _items(values, "a form"))
            answers.forms[cast("Form", form), _text(name, "a form")] = terms
        return answers

    def _step(self, data: Sequence[Any], equations: Sequence[Equation], goals: Sequence[Goal]) -> tuple[Step, Any]:
        if data[:1] == ["rule"]:
            _, to, number, result, forward = _items(data, "a step", 5)
            found = _at(equations, number, "rules")
            _at(found.pairs, result, "sides of a rule")
            return RuleStep(found, result, _flag(forward, "forward")), _at(self.terms, to, "terms")
        if data[:1] != ["inside"]:
            raise ExplanationError(f"a step is by a rule or inside operands, none is {data[:1]}")
        _, to, operands, sizes = _items(data, "a step", 4)
        pairs = tuple((Dim.of(_text(x, "a size")), Dim.of(_text(y, "a size"))) for x, y in _items(sizes, "sizes"))
        inner = tuple(None if g is None else _at(goals, g, "goals") for g in _items(operands, "operands"))
        return CongruenceStep(inner, pairs), _at(self.terms, to, "terms")


def _without_kinds(text: str) -> str:
    return re.sub(r'R\.foreign\("\w+", _\)', "R.foreign", text)


def _wrong(value: Any, what: str, wanted: str) -> ExplanationError:
    shown = repr(value)
    return ExplanationError(f"{what}: {shown[:60]}{'...' * (len(shown) > 60)} where {wanted} should be")


def _table(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(value, what, "a table")
    return cast("dict[str, Any]", value)


def _items(value: Any, what: str, count: int | None = None) -> list[Any]:
    if not isinstance(value, list) or (count is not None and len(value) != count):  # type: ignore[reportUnknownArgumentType]
        raise _wrong(value, what, "a list" if count is None else f"a list of {count}")
    return cast("list[Any]", value)


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise _wrong(value, what, "text")
    return value


def _whole(value: Any, what: str) -> int:
    if type(value) is not int or value < 0:
        raise _wrong(value, what, "a number from 0 on")
    return value


def _flag(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(value, what, "true or false")
    return value


def _at(table: Sequence[T], place: Any, what: str) -> T:
    if type(place) is not int or not 0 <= place < len(table):
        raise _wrong(place, what, f"a place among {len(table)} {what}")
    return table[place]
