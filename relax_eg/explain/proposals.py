"""Checks steps by rules about whole nodes (schemas): the step is proved, or the schema is asked again.

A step that is not proved passes only if the schema, asked about the left side with the same answers as before, proposes
the right side. A
form of a function among these answers counts only if the derivation shows that it equals the function. The derivation
shows this for the sizes at which the program runs the function. So such a step must start from a node of the program as
written, or from an expression that was proposed for one, and a function that runs itself has no other forms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from relax_eg.errors import ExplanationError
from relax_eg.explain.result import Derivation, DerivationPart
from relax_eg.explain.steps import Equation
from relax_eg.ir.calls import reachable_functions
from relax_eg.ir.expr import Expr, postorder
from relax_eg.ir.module import Function
from relax_eg.logs import options
from relax_eg.rules import Schema
from relax_eg.rules.checking.schema_answers import Batched, ReplayedAnswers, Values
from relax_eg.rules.schemas import FactsOf
from relax_eg.traversal import grouped

Fail = Callable[[Equation | None, str], ExplanationError]


@dataclass
class Proposals:
    """The steps by rules about whole nodes in a part of a derivation.

    - `derivation`, `part`: the derivation, and its part.
    - `batched`: applies a function to slices; None if nothing can.
    - `facts`: the facts of expressions.
    - `fail`: makes the error to be raised, from the use of a rule and a text.
    - `record_proof`: is told that a step is proved, and the facts of expressions that its proof was given.
    - `written`: functions as written, by name.
    """

    derivation: Derivation
    part: DerivationPart
    batched: Batched | None
    facts: FactsOf
    fail: Fail
    record_proof: Callable[[Equation, Mapping[Expr, frozenset[str]]], None]
    written: dict[str, Function] = field(init=False)
    _forms: dict[str, set[Values]] = field(init=False)
    _functions: dict[str, Function] = field(init=False)
    _readers: dict[Expr, list[Expr]] = field(init=False)

    def __post_init__(self) -> None:
        d = self.derivation
        self.written = {f.name: f for f in d.shared}
        self._functions = {**d.functions, **self.written}
        self._forms = {name: {f.values} for name, f in d.functions.items()}
        for p in d.parts:
            self._forms.setdefault(p.function, set()).update(tuple(g.end for g in form) for form in p.forms)
        self._readers = grouped((a, e) for e in self._nodes for a in e.args)

    @property
    def _nodes(self) -> list[Expr]:
        """The nodes of the block as written."""
        return postorder([g.start for g in self.part.results])

    def check(self) -> None:
        """Raises the error that `fail` makes for the first step that its rule does not propose."""
        starts = set(self._nodes)
        left = [e for e in self.part.equations if isinstance(e.rule, Schema)]
        while left:
            now = [e for e in left if not self._uses_forms(e) or e.pairs[0][0] in starts]
            if not now:
                raise self.fail(
                    left[0], "it starts from no node of the program as written, nor from what is made of one"
                )
            for e in now:
                with options(cache=False):  # what a search found is not asked
                    self._check_step(e)
                starts.add(e.pairs[0][1])
            left = [e for e in left if e not in now]

    def _uses_forms(self, e: Equation) -> bool:
        """Whether forms of functions are among the answers that the rule got."""
        return e.answers is not None and any(values is not None for values in e.answers.forms.values())

    def _check_step(self, e: Equation) -> None:
        schema, ((left, right),) = e.rule, e.pairs
        assert isinstance(schema, Schema)
        if schema.prove is not None:
            used: dict[Expr, frozenset[str]] = {}

            def facts(x: Expr) -> frozenset[str]:
                used[x] = self.facts(x) & schema.facts
                return used[x]

            why = schema.prove(left, right, facts, self._functions)
            if not why:
                self.record_proof(e, used)
                return
            if schema.must_prove or e.answers is None:
                raise self.fail(e, f"{left!r} is not shown to be equal to {right!r}: {why}")
        if e.answers is None:
            raise self.fail(e, "the derivation does not hold what the rule was told")
        if left.op not in schema.operators:
            raise self.fail(e, f"the rule says nothing of {left.op}")
        for _, name in e.answers.forms:
            function = self.written.get(name)
            run = [] if function is None else [function, *reachable_functions(function.expressions(), self._functions)]
            if any(f.name == self.part.function for f in run):
                raise self.fail(e, f"`{name}` runs itself, so a form of it is nothing to go by")
        d = self.derivation
        again = ReplayedAnswers(
            e.answers, d.functions, self.written, self._nodes, self._readers, self._is_form, self.facts, self.batched
        )
        try:
            proposed = schema.proposals(left, again)
        except ExplanationError as error:
            raise self.fail(e, str(error)) from None
        if right not in proposed:
            found = " or ".join(map(repr, proposed)) or "nothing"
            raise self.fail(e, f"asked again about {left!r}, the rule proposes {found}, not {right!r}")

    def _is_form(self, name: str, values: Values) -> bool:
        return values in self._forms.get(name, ())
