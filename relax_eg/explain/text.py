"""Explanations as text: one line of mathematics for each step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from relax_eg.explain.certificate import UnaidedCertificate, certificate
from relax_eg.explain.check import Replay
from relax_eg.explain.infix import infix_text
from relax_eg.explain.programs import Change, changes
from relax_eg.explain.result import Derivation, DerivationPart
from relax_eg.explain.steps import Equation, equations_of, goals_in_order
from relax_eg.explain.values import deviation_text
from relax_eg.ir.control import functions_of
from relax_eg.ir.expr import CONSTANT, FUNCTION, VAR, Expr, node, postorder, var
from relax_eg.ir.module import Function
from relax_eg.ir.origin import Origins
from relax_eg.ops.libraries import instantiate
from relax_eg.rules import Rule, Schema
from relax_eg.rules.checking.certificates import status
from relax_eg.rules.format import expression_text
from relax_eg.traversal import grouped

_LONGEST_PROGRAM = 14  # limit: lines of a program that is shown in full
_SHORT_TEXT = 40  # limit: characters of a value that is shown in full
_FEW_NODES = 8  # limit: nodes of a value that is shown in full


@dataclass(frozen=True)
class Line:
    """One step as text.

    - `number`: number of the step, from 1.
    - `function`: name of the function in which it is made.
    - `rule`: name of the rule that is used.
    - `before`, `after`: the expression before and after the step.
    - `source`: the line of the user's file; "" if none is known.
    - `forward`: whether the rule was used from left to right.
    - `where`: the definitions of the names in `before` and `after`.
    - `conditions`: the side conditions of the rule, each with its proof.
    - `checked`: the number of the first whole program that the step makes, and the deviation of its two sides.
    """

    number: int
    function: str
    rule: str
    before: str
    after: str
    source: str
    forward: bool
    where: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    checked: str = ""


@dataclass(frozen=True, eq=False)
class Explanation:
    """How the chosen program follows from the program as written. Printing it shows the derivation.

    - `derivation`: the derivation.
    - `replayed`: the outcome of replaying the derivation; None if nothing was changed.
    - `kernels`: lines that say which of the chosen operators run in one kernel. A kernel's program is composed of their
      equations, so that takes no steps.
    - `kind`: the class of its certificate.
    - `remark`: what sets the program that runs apart from the one that is derived; "" for nothing.
    - `steps`: the uses of rules, in order.
    """

    derivation: Derivation
    replayed: Replay | None
    kernels: tuple[str, ...] = ()
    kind: type[UnaidedCertificate] = UnaidedCertificate
    remark: str = ""

    @cached_property
    def steps(self) -> tuple[Line, ...]:
        lines: list[Line] = []
        for part in self.derivation.parts:
            lines += _lines(part, self, len(lines))
        return tuple(lines)

    def certificate(self) -> UnaidedCertificate:
        """Returns the derivation as plain data, which can be checked without the search."""
        return self.kind(certificate(self.derivation, self.replayed))

    def __str__(self) -> str:
        return "\n".join(self._text())

    def _text(self) -> Iterator[str]:
        d = self.derivation
        if self.replayed is None:
            yield f"{d.name}: kept as written" + (self.remark or ", so there is nothing to explain")
            return
        count = len(self.steps)
        yield f"{d.name}: {count} step{'' if count == 1 else 's'} from the program as written to the one chosen"
        yield f"replayed: {self.replayed}"
        if not count:
            yield "what is computed is what was written;"
            yield "the gain is in what runs once, ahead of the calls, on weights alone, or in how loops are lowered"
        names = {f.name for f in d.written}
        for f in d.shared:
            if f.name not in names:
                calls = sum(f.name in functions_of(e) for g in d.shared for e in g.expressions())
                yield (
                    f"\na block that is repeated becomes function `{f.name}`, called {calls} times; "
                    "with the calls inlined it is the program as written"
                )
        for part in d.parts:
            if part.forms:
                more = len(equations_of(goals_in_order(g for form in part.forms for g in form)))
                yield (
                    f"\na rule made something of `{part.function}` in a form that was not chosen for it; that this is "
                    f"the function as written takes {more} step{'' if more == 1 else 's'}, replayed like those below"
                )
        parts = grouped((line.function, line) for line in self.steps)
        for name in parts:
            yield f"\n{name}, as written"
            yield from _program(d.shared[name])
            for line in parts[name]:
                yield from self._step(line)
            yield f"\n{name}, as chosen"
            yield from _program(d.functions[name])
        if self.kernels:
            yield "\nin kernels, each composed of the equations of its operators"
        yield from self.kernels
        if self.remark:
            yield self.remark

    def _step(self, line: Line) -> Iterator[str]:
        rule = self._rules[line.rule]
        yield f"\n  {line.number}. {line.before}" + (f"      {line.source}" if line.source else "")
        yield f"     = {line.after}"
        way = "" if line.forward else ", right to left"
        yield f"     by {rule}      {rule.where}, {status(rule).summary}{way}"
        if line.where:
            yield f"     where {'; '.join(line.where)}"
        for c in line.conditions:
            yield f"     as {c}"
        if line.checked:
            yield f"     {line.checked}"

    @cached_property
    def _rules(self) -> dict[str, Rule | Schema]:
        return {e.rule.name: e.rule for p in self.derivation.parts for e in p.equations}


def _program(function: Function) -> Iterator[str]:
    lines = str(function).splitlines()
    if len(lines) <= _LONGEST_PROGRAM:
        yield from (f"    {x}" for x in lines)
    else:
        yield f"    a function of {len(lines)} lines"


@dataclass
class _Names:
    """Short names for the values in the sides of rules, numbered in the order in which the values are met.

    - `chosen`: the name of each value.
    - `new`: the definitions of the names since the last step.
    """

    chosen: dict[Expr, str] = field(default_factory=dict[Expr, str])
    new: list[str] = field(default_factory=list[str])

    def __call__(self, e: Expr) -> Expr:
        """Returns the variable that stands for `e` in the text of a step; `e` if it is a variable or a constant."""
        if e.op in (VAR, CONSTANT) or e in self.chosen:
            return var(self.chosen[e], e.annotation) if e in self.chosen else e
        text = self._small(e)
        name = self.chosen[e] = f"t{len(self.chosen) + 1}"
        self.new.append(f"{name} = {text}")
        return var(name, e.annotation)

    def _small(self, e: Expr) -> str:
        """Returns `e` over operands by name; those without a name are shown as `...`, unless all of `e` is short."""
        plain = (VAR, CONSTANT, FUNCTION)
        args = [a if a.op in plain else var(self.chosen.get(a, "..."), a.annotation) for a in e.args]
        whole = infix_text(e, _FEW_NODES) if len(postorder((e,))) <= _FEW_NODES else ""
        return whole if whole and len(whole) <= _SHORT_TEXT else infix_text(node(e.op, args, e.attrs, e.annotation))


def _lines(part: DerivationPart, explanation: Explanation, before: int) -> list[Line]:
    """Returns a line for each use of a rule, at the first whole program that it makes. `before`: number of lines of
    earlier parts."""
    names, origins = _Names(), explanation.derivation.origins.get(part.function, {})
    replayed = explanation.replayed or Replay()
    lines: dict[tuple[Equation, int], Line] = {}
    for number, change in enumerate(changes(part.results), 1):
        step = change.rule_step
        if step is None or (step.equation, step.result) in lines:
            continue
        e, key = step.equation, (step.equation, step.result)
        left, right = _sides(e, step.result, names)
        texts = (left, right) if step.forward else (right, left)
        where, names.new = tuple(names.new), []
        proofs = tuple(dict.fromkeys(replayed.conditions.get(e, ())))
        found = replayed.deviations.get(key)
        checked = "not evaluated" if found is None else f"both sides evaluated, {deviation_text(found)}"
        lines[key] = Line(
            before + len(lines) + 1, part.function, e.rule.name, *texts, _source(change, origins), step.forward, where,
            proofs, f"program {number}: {checked}",
        )  # fmt: skip
    return list(lines.values())


def _source(change: Change, origins: Origins) -> str:
    """Returns the line of the user's file that a change is about, as text: that of the expression at its place or, if
    that has none, of an expression from which it was made, or of one around it. "" if none of them has a line."""
    walked = [(place.goal, place.done) for place in change.places] + [(change.goal, change.step)]
    passed = [e for goal, done in walked for e in (goal.start, *(to for _, to in goal.steps[:done]))]
    return next((str(origins[e]) for e in reversed(passed) if e in origins), "")


def _sides(e: Equation, result: int, names: _Names) -> tuple[str, str]:
    """Returns both sides of a use of a rule as text."""
    if e.instance is None:
        left, right = map(infix_text, e.pairs[result])
        return left, right
    env = {p: names(x) for p, x in zip(e.instance.params, e.operands, strict=True)}
    pair = e.instance.left[result], e.instance.right[result]
    left, right = map(expression_text, instantiate(pair, env, dict(e.sizes)))
    return left, right
