"""Shows an explanation to people: like a proof on paper, with one line of mathematics for each step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from relax_eg.explain.certificate import UnaidedCertificate, certificate
from relax_eg.explain.check import Replay, replay
from relax_eg.explain.result import Derivation, DerivationPart, Libraries
from relax_eg.explain.steps import Equation, Goal, Inside, Rewritten, equations_of, goals_in_order
from relax_eg.explain.whole_programs import CheckedProgram
from relax_eg.ir.control import functions_of
from relax_eg.ir.expr import CONSTANT, FUNCTION, VAR, Expr, node, postorder, var
from relax_eg.ir.module import Function
from relax_eg.ops import TABLE
from relax_eg.ops.libraries import instantiated
from relax_eg.rules import Rule, Schema
from relax_eg.rules.certificates import status
from relax_eg.rules.format import expression_text
from relax_eg.rules.schema_answers import Batched

_LONGEST_PROGRAM = 14  # limit: lines of a program that is shown in full
_MOST_OPERANDS = 6  # limit: operands of a call that are shown
_SMALL = 40  # limit: characters of a value that is shown in place


@dataclass(frozen=True)
class Line:
    """One step, as shown: `before` became `after` by `rule`.

    - `source`: the line of the user's file.
    - `forward`: whether the rule was used from left to right.
    - `where`: what the names in the texts stand for.
    - `checked`: what was checked of the first whole program that the step makes.
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

    - `replayed`: the outcome of replaying the derivation; None if nothing was changed.
    - `kernels`: lines that say which of the chosen operators run in one kernel. A kernel's program is composed of their
      equations, so that takes no steps.
    - `kind`: the class of its certificate.
    - `steps`: the uses of rules, in order.
    """

    derivation: Derivation
    replayed: Replay | None
    kernels: tuple[str, ...] = ()
    kind: type[UnaidedCertificate] = UnaidedCertificate

    @staticmethod
    def of(derivation: Derivation, libraries: Libraries | None = None, batched: Batched | None = None) -> Explanation:
        """Returns the explanation of a derivation, after replaying it (`replay`). ExplanationError if it does not
        hold."""
        return Explanation(derivation, replay(derivation, libraries, batched))

    @cached_property
    def steps(self) -> tuple[Line, ...]:
        lines: list[Line] = []
        for n, part in enumerate(self.derivation.parts):
            programs = self.replayed.programs[n] if self.replayed is not None else []
            lines += _lines(part, self, len(lines), programs)
        return tuple(lines)

    def certificate(self) -> UnaidedCertificate:
        """Returns the derivation as plain data, which others can check without the search."""
        return self.kind(certificate(self.derivation, self.replayed))

    def __str__(self) -> str:
        return "\n".join(self._text())

    def _text(self) -> Iterator[str]:
        d = self.derivation
        if self.replayed is None:
            yield f"{d.name}: kept as written, so there is nothing to explain"
            return
        count = len(self.steps)
        yield f"{d.name}: {count} step{'' if count == 1 else 's'} from the program as written to the one chosen"
        yield f"replayed: {self.replayed}"
        if not count:
            yield "what is computed is what was written;"
            yield "the gain is in what runs once, ahead of the calls, on weights alone"
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
        parts: dict[str, list[Line]] = {}
        for line in self.steps:
            parts.setdefault(line.function, []).append(line)
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

    def _step(self, line: Line) -> Iterator[str]:
        rule = self._rules[line.rule]
        yield f"\n  {line.number}. {line.before}" + (f"      {line.source}" if line.source else "")
        yield f"     = {line.after}"
        way = "" if line.forward else ", right to left"
        yield f"     by {rule}      {rule.where}, {status(rule).told}{way}"
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
    """Short names for the values in rules' sides, given as the values are met."""

    chosen: dict[Expr, str] = field(default_factory=dict[Expr, str])
    new: list[str] = field(default_factory=list[str])

    def __call__(self, e: Expr) -> Expr:
        """Returns what stands for `e` where a step is shown."""
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
        whole = _text(e) if len(postorder((e,))) <= 8 else ""
        return whole if whole and len(whole) <= _SMALL else _text(node(e.op, args, e.attrs, e.annotation))


def _text(e: Expr) -> str:
    """Returns one expression over few others as text, with functions of the module by name."""
    if any(x.op == FUNCTION for x in e.args) or (e.op not in TABLE and e.args):
        args = [str(a.attr("name")) if a.op in (FUNCTION, VAR) else f"{a.op}(...)" for a in e.args]
        shown = args if len(args) <= _MOST_OPERANDS else [*args[:_MOST_OPERANDS], "..."]
        return f"{e.op}({', '.join(shown)})"
    return expression_text(e)


def _lines(
    part: DerivationPart, explanation: Explanation, before: int, programs: Sequence[CheckedProgram]
) -> list[Line]:
    d = explanation.derivation
    names, sources = _Names(), d.sources.get(part.function, {})
    replayed = explanation.replayed
    conditions = replayed.conditions if replayed is not None else {}
    checked: dict[tuple[Equation, int], str] = {}
    for c in programs:
        made = c.goal.steps[c.step][0] if c.how == "rule" else None
        if isinstance(made, Rewritten):
            checked.setdefault((made.equation, made.result), str(c))
    lines: list[Line] = []
    for step, source in _in_order(part, sources):
        e = step.equation
        left, right = _sides(e, step.result, names)
        texts = (left, right) if step.forward else (right, left)
        where, names.new = tuple(names.new), []
        number = before + len(lines) + 1
        proofs = tuple(dict.fromkeys(conditions.get(e, ())))
        done = checked.get((e, step.result), "")
        lines.append(Line(number, part.function, e.rule.name, *texts, source, step.forward, where, proofs, done))
    return lines


def _in_order(part: DerivationPart, sources: Mapping[Expr, str]) -> Iterator[tuple[Rewritten, str]]:
    """Yields the uses of rules once each, in the order a reader needs them: those of operands when they are reached."""
    met: set[Goal] = set()
    shown: set[tuple[Equation, int]] = set()
    for root in part.results:
        first: list[tuple[Rewritten | Inside, Expr, str]] = [(Inside((root,), ()), root.end, "")]
        stack: list[Iterator[tuple[Rewritten | Inside, Expr, str]]] = [iter(first)]
        while stack:
            found = next(stack[-1], None)
            if found is None:
                stack.pop()
                continue
            step, _, source = found
            if isinstance(step, Rewritten):
                key = step.equation, step.result
                if key not in shown:
                    shown.add(key)
                    yield step, source
                continue
            for goal in reversed(step.operands):
                if goal is not None and goal not in met:
                    met.add(goal)
                    stack.append(_walk(goal, sources, source))


def _walk(goal: Goal, sources: Mapping[Expr, str], outer: str) -> Iterator[tuple[Rewritten | Inside, Expr, str]]:
    """Yields the steps of a goal, each with the expression after it and the line of the user's file it is about."""
    at, line = goal.start, sources.get(goal.start, outer)
    for step, to in goal.steps:
        line = sources.get(at, line)
        yield step, to, line
        at = to


def _sides(e: Equation, result: int, names: _Names) -> tuple[str, str]:
    """Returns both sides of a use of a rule as text."""
    if e.instance is None:
        left, right = (_text(x) for x in e.pairs[result])
        return left, right
    env = {p: names(x) for p, x in zip(e.instance.params, e.operands, strict=True)}
    pair = e.instance.left[result], e.instance.right[result]
    left, right = map(expression_text, instantiated(pair, env, dict(e.sizes)))
    return left, right
