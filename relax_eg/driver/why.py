"""`why_not`: why a rule did not fire in a program, or, if it fired, why its result was not chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relax_eg.argument_checks import accepts, did_you_mean, of_types
from relax_eg.driver.options import KINDS, Facts, Options, Sizes, Target, read_options, weight_names
from relax_eg.driver.prices import call_seconds, is_worthwhile, least_gain, prices
from relax_eg.driver.program_ends import traced_program
from relax_eg.driver.units import RecordedBlock, Units
from relax_eg.egraph import Budget
from relax_eg.errors import OperatorError, OptionError
from relax_eg.explain.infix import short_infix_text
from relax_eg.explain.nearest import Attempt, Graph, Nearest
from relax_eg.explain.record import Firing, signature_of
from relax_eg.explain.steps import equation
from relax_eg.extract.costs.cost import WholeCost
from relax_eg.figures import binding_text, time
from relax_eg.frontends import Source
from relax_eg.frontends.clashes import explain_clashes, specs_by_name
from relax_eg.ir.expr import Expr, postorder
from relax_eg.ir.module import Module
from relax_eg.ir.origin import Origins
from relax_eg.logs import options as debug_options
from relax_eg.ops import site_of
from relax_eg.rules import NUMERICS, Numerics, Rule, RuleSet, Schema
from relax_eg.rules.book import default as default_rules
from relax_eg.rules.book.recognised import with_recognitions
from relax_eg.rules.checking.certificates import status
from relax_eg.rules.facts.parameter_facts import known_facts
from relax_eg.rules.schemas import ExtractionStep
from relax_eg.shapes.relation import Bounds

_MOST_PLACES = 4  # limit: further source lines that a reason names
_MOST_NAMED = 6  # limit: operators that a reason names


@dataclass(frozen=True)
class WhyNot:
    """What happened to a rule in a program.

    - `rule`: the rule.
    - `outcome`: "fired" (and is in the chosen program), "not chosen", "no match" or "not allowed".
    - `source`: the user's line.
    - `match`: where the rule fired, or else the nearest match.
    - `reasons`: why it was not chosen or did not match.
    """

    rule: Rule | Schema
    outcome: str
    source: str
    match: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.rule}      {self.rule.where}"]
        head = {"no match": "nearest match:", "fired": "it fired:", "not chosen": "it fired, and was not chosen:"}
        place = "  ".join(x for x in (self.source, self.match) if x)
        if place:
            lines.append(f"{head.get(self.outcome, '')} {place}".strip())
        return "\n".join([*lines, *(f"  {r}" for r in self.reasons)])

    __repr__ = __str__


@explain_clashes
@accepts(**KINDS, rule=of_types("a rule, or the name of one in `rules`,", str, Rule, Schema))
def why_not(
    rule: Rule | Schema | str,
    program: Callable[..., Any] | Module,
    /,
    *args: Any,
    specs: Mapping[str, Any] | None = None,
    rules: RuleSet | None = None,
    target: Target | None = None,
    at: Sizes | None = None,
    bounds: Bounds | None = None,
    weights: Sequence[str | int] = (),
    numerics: Numerics = "reassociate",
    facts: Facts | None = None,
    budget: Budget | None = None,
    **kwspecs: Any,
) -> WhyNot:
    """Why `rule` (a rule, or the name of one in `rules`) did not fire in a program, given as to `optimize`.

    The program is searched with the rule added to `rules`. If the rule matches nowhere, the answer is its nearest
    match, in the program as written or in what other rules made of it, and what failed there. The result prints as a
    few lines. Raises OptionError for an unknown name, and what `optimize` raises.
    """
    given = rules if rules is not None else default_rules
    found = _rule(rule, given)
    traced = traced_program(program, args, specs_by_name(specs, kwspecs), bounds)
    verdict = status(found)
    if verdict.status == "refuted":
        return WhyNot(found, "not allowed", "", "", (f"it is refuted and does not run: {verdict.problem.strip()}",))
    named = found.name in given
    asked = RuleSet("asked", [found]) if isinstance(found, Rule) else RuleSet("asked", schemas=[found])
    extended = given if named else given + asked
    with debug_options(sharing=False):
        options = read_options(
            traced, rules=extended, target=target, at=at, bounds=bounds, weights=weights, facts=facts,
            numerics=numerics, budget=budget,
        )  # fmt: skip
    if found.numerics not in options.numerics:
        allowed = NUMERICS[NUMERICS.index(found.numerics)]
        why = f"its class is {found.numerics}; numerics={numerics!r} allows {', '.join(options.numerics)}"
        return WhyNot(found, "not allowed", "", "", (f"{why}. numerics={allowed!r} allows it",))
    return RecordedSearch(traced, options).why(found, named)


def _rule(rule: Rule | Schema | str, rules: RuleSet) -> Rule | Schema:
    if not isinstance(rule, str):
        return rule
    searched = with_recognitions(rules)
    known = {r.name: r for r in (*searched, *searched.schemas)}
    if rule not in known:
        raise OptionError(f"why_not: no rule `{rule}` in set `{rules.name}`{did_you_mean(rule, known)}")
    return known[rule]


class RecordedSearch:
    """A search for a program with every match recorded. It answers for any number of rules.

    - `options`: the options of the search.
    - `units`: its e-graphs.
    - `found`: the optimized module, and the recorded e-graph of each block.
    - `gained`: whether the optimized module is predicted to be faster than the module as written.
    - `graphs`: the e-classes of each recorded e-graph.
    """

    def __init__(self, traced: Source, options: Options) -> None:
        held = weight_names(traced, options)
        self.options = options
        self.units = Units(traced.module, options, held, record=True)
        self.found = self.units.run()
        found_at = [prices(traced.module, self.found.module, held, b, options) for b in options.bindings]
        self.gained = is_worthwhile(
            [(call_seconds(before, options), call_seconds(after, options)) for before, after in found_at],
            least_gain(options),
        )
        self.graphs = [Graph(s.recording, s.written) for s in self.found.recorded]

    def why(self, rule: Rule | Schema, named: bool = True) -> WhyNot:
        """What happened to a rule in the program. `named`: whether it is one of the rules asked about."""
        return _Answer(self, rule, named).answer()


class _Answer:
    def __init__(self, search: RecordedSearch, rule: Rule | Schema, named: bool) -> None:
        self.search, self.rule, self.named = search, rule, named
        self.options, self.found = search.options, search.found

    def answer(self) -> WhyNot:
        if any(self.rule.name in o.nodes_by_rule for o in self.found.outcomes):
            return self._fired()
        matches = sum(o.saturation.matches.get(self.rule.name, 0) for o in self.found.outcomes)
        if matches:
            return self._not_chosen()
        if isinstance(self.rule, Schema):
            if isinstance(self.rule, ExtractionStep):
                return WhyNot(self.rule, "no match", "", "", ("extraction built no kernel by it",))
            there = self._operators()
            names = sorted(self.rule.operators & there) or sorted(self.rule.operators)
            more = [f"{len(names) - _MOST_NAMED} other operators"] if len(names) > _MOST_NAMED else []
            operators = " or ".join([*(f"`{op}`" for op in names[:_MOST_NAMED]), *more])
            is_there = not there.isdisjoint(names)
            why = f"it proposes nothing for any {operators} there" if is_there else f"the program has no {operators}"
            return WhyNot(self.rule, "no match", "", "", (why,))
        left_out = [x for o in self.found.outcomes for x in o.saturation.left_out if x.rule == self.rule.name]
        if left_out:
            return WhyNot(self.rule, "no match", "", "", (str(left_out[0]),))
        return self._nearest(self.rule)

    def _operators(self) -> set[str]:
        """The operators of the program as written."""
        return {e.op for s in self.found.recorded for e in postorder(s.written)}

    def _fired(self) -> WhyNot:
        places = [p for p in self._places() if p[0]]
        lines = dict.fromkeys(source for source, _, _ in places)
        source, match = (places[0][0], places[0][1]) if places else ("", "")
        rest = [x for x in lines if x != source]
        more = ", ..." if len(rest) > _MOST_PLACES else ""
        reasons = [f"also at {', '.join(rest[:_MOST_PLACES])}{more}"] if rest else []
        if not self.search.gained:
            reasons.append("but the program it is part of is not predicted to gain 5%, so what was written runs")
        elif not self.named:
            reasons.append("it is not in the rules asked about; with it added it is used")
        else:
            reasons.append("what it made is in the chosen program")
        return WhyNot(self.rule, "fired" if self.search.gained else "not chosen", source, match, tuple(reasons))

    def _not_chosen(self) -> WhyNot:
        places = self._places()
        if not places:
            return WhyNot(self.rule, "not chosen", "", "", ("in the e-graph, but other choices were cheaper",))
        source, match, (before, after) = min(places, key=lambda p: p[2][1] - p[2][0])
        at = binding_text(self.options.bindings[0])
        against = f"{time(after)} against {time(before)}{f', at {at}' if at else ''}"
        if time(after) == time(before):
            why = f"in the e-graph, but nothing is gained: {against}"
        elif after > before:
            why = f"in the e-graph, but priced dearer: {against}"
        else:
            why = (
                f"in the e-graph, and priced cheaper: {against}; but another rule makes it as well, or another "
                "choice for what is around it gains more"
            )
        return WhyNot(self.rule, "not chosen", source, match, (why,))

    def _places(self) -> list[tuple[str, str, tuple[float, float]]]:
        """Where the rule fired: the user's line, the left side there, and the prices of both sides."""
        found: list[tuple[str, str, tuple[float, float]]] = []
        for s, graph in zip(self.found.recorded, self.search.graphs, strict=True):
            for old, new, name in s.alternatives if isinstance(self.rule, Schema) else ():
                if name == self.rule.name:
                    found.append((self._around(s, old), short_infix_text(old, 3), self._prices([(old, new)])))
            firings = [f for f in s.recording.firings if f.instance.rule is self.rule]
            for f in firings:
                if not all(c in graph.expressions for c in f.operands):
                    continue
                try:
                    made = equation(f.instance, [graph.expressions[c] for c in f.operands], dict(f.sizes))
                except OperatorError:
                    continue
                root = _root(f, graph)
                left = made.pairs[0][0]
                source = self._source(s, graph, root) or self._around(s, left)
                found.append((source, short_infix_text(left, 3), self._prices(made.pairs, made.operands)))
        return sorted(found, key=lambda p: not p[0])

    def _prices(self, pairs: Sequence[tuple[Expr, Expr]], operands: Sequence[Expr] = ()) -> tuple[float, float]:
        """Seconds of the left and of the right sides of a rule application, without its operands and what both sides
        have in common, at the first sizes asked for."""
        model = WholeCost(self.options.profile, self.options.bindings[0], self.found.functions, self.options.cost)
        given = set(operands)
        sides = [postorder([pair[k] for pair in pairs], stop=given.__contains__) for k in (0, 1)]
        both = given.union(set(sides[0]).intersection(sides[1]))
        before, after = (
            sum(model.price(site_of(x), x.annotation).seconds for x in side if x.args and x not in both)
            for side in sides
        )
        return before, after

    # --- no match ---

    def _nearest(self, rule: Rule) -> WhyNot:
        best: tuple[Attempt, Nearest, RecordedBlock] | None = None
        for s, graph in zip(self.found.recorded, self.search.graphs, strict=True):
            known = known_facts(s.declared_facts.facts, s.declared_facts.exact, s.scope)
            nearest = Nearest(graph, rule, s.scope, known)
            found = nearest.find()
            if found is not None and (best is None or found.rank > best[0].rank):
                best = found, nearest, s
        if best is None:
            wanted = sorted(rule.left_operators)
            there = self._operators()
            missing = ", ".join(f"`{op}`" for op in wanted if op not in there)
            why = f"the program has no {missing}, which its left side needs"
            formed = "its left side cannot be formed at the ranks, dtypes and attributes of the program"
            return WhyNot(rule, "no match", "", "", (why if missing else formed,))
        found, nearest, s = best
        reasons = found.problems or [self._unexplained()]
        shown = nearest.graph.expressions[found.root]
        source = self._source(s, nearest.graph, found.root) or self._around(s, shown)
        if found.root not in nearest.graph.written:
            reasons = [*reasons, "(what stands here was made by other rules)"]
        return WhyNot(rule, "no match", source, short_infix_text(shown, 3), tuple(reasons))

    def _unexplained(self) -> str:
        stops = ", ".join(dict.fromkeys(o.saturation.stop.value for o in self.found.outcomes))
        return f"everything it asks for is there, yet it had not fired when the search ended ({stops})"

    def _source(self, s: RecordedBlock, graph: Graph, c: int) -> str:
        """The user's line of an e-class; empty if it has none."""
        origins = self._origins(s)
        return next((str(origins[e]) for e, k in graph.class_of.items() if k == c and e in origins), "")

    def _around(self, s: RecordedBlock, e: Expr) -> str:
        """The user's line of the nearest operand of an expression that a rule made."""
        origins = self._origins(s)
        return next((str(origins[x]) for x in reversed(postorder((e,))) if x in origins), "")

    def _origins(self, s: RecordedBlock) -> Origins:
        return self.search.units.module[s.function].origins


def _root(f: Firing, graph: Graph) -> int:
    """The e-class of a match's first left side, -1 if it is not found."""
    classes = dict(zip(f.instance.params, f.operands, strict=True))
    for e in f.instance.left_nodes:
        sign = signature_of(e, graph.recording.canonical_sizes, dict(f.sizes))
        found = graph.recording.classes.get((sign, tuple(classes[a] for a in e.args if a in classes)))
        if found is None:
            return -1
        classes[e] = found
    return classes[f.instance.left[0]]
