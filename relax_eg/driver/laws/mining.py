"""Laws that a program could use: its costliest fragments, cheaper terms with equal values, proofs for all sizes.

A fragment is an operator with some of what it reads, up to a few operators. Its leaves become variables and its sizes
size variables, so a law that is proved holds for other sizes too. Terms over the fragment's operators, and a few others
of their kind, are enumerated (`discovery.table`) until one has the fragment's values and a lower price. The pair is
proved with variables for constants where it holds for all numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from relax_eg.argument_checks import CALLABLE, accepts, one_of, within
from relax_eg.discovery.extremes import Extremes
from relax_eg.discovery.generalising import generalised, without_context
from relax_eg.discovery.grammar import Grammar, filled
from relax_eg.discovery.laws import Writer, doc_of, file_text, load
from relax_eg.discovery.proving import CLASSES, MOST_JOBS, LawProver, Progress
from relax_eg.discovery.search import LARGEST_SIZE
from relax_eg.discovery.table import EqualPair, TermTable, Type
from relax_eg.discovery.terms import Term
from relax_eg.discovery.values import SamplePoints
from relax_eg.driver.laws.fragments import Fragment, Leaves, apart, cuts_of, generalised_sizes
from relax_eg.driver.laws.grammars import grammar_of
from relax_eg.driver.laws.ranking import LEAST_SAVING
from relax_eg.driver.laws.tables import ElementTables, KeptTable, with_term
from relax_eg.driver.optimize import optimize
from relax_eg.dtypes import is_float, numpy_dtype
from relax_eg.errors import DiscoveryError, RelaxEgError
from relax_eg.extract.costs.cost import WholeCost
from relax_eg.extract.profiles.devices import profile
from relax_eg.extract.report import price_program
from relax_eg.figures import time
from relax_eg.frontends import trace
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import CONSTANT, VAR, Expr, const, var
from relax_eg.ir.module import Function, Module
from relax_eg.ops.record import call
from relax_eg.plain_data import write_file
from relax_eg.reports import CostReport
from relax_eg.rules.book import default
from relax_eg.rules.format import expression_text
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.signature import Numerics

_MOST_FRAGMENTS = 40  # limit: fragments that are looked at, the costliest first
_MOST_LOOKED_UP = 200  # limit: the same where tables are kept, in which a fragment is looked up in a moment
_MOST_TERMS = 20_000  # limit: terms of one size for a fragment
_MOST_EQUAL = 32  # limit: terms of one size that are equal to a fragment and are priced
_MOST_UNPROVED = 12  # limit: laws of kept tables of one program that are tried in vain
_MOST_REFUSED = 30  # limit: those of one program that differ at infinities
_MOST_TRIED = 2  # limit: terms of which it is tried to prove that one is equal to a fragment
_MOST_WORK = 1 << 20  # limit: flops of a fragment whose numbers of elements stay as written, at one sample point
CHEAPER = 0.95  # chosen: share of the fragment's price below which a term counts as cheaper


@dataclass(frozen=True)
class Offer:
    """A law that a program could use.

    - `text`: the law as a formula.
    - `source`: the function of its rule.
    - `numerics`: its class.
    - `theory`: of its proof, as of a verdict.
    - `where`: the source line of the fragment; empty if it is not known.
    - `before`, `after`: predicted seconds of the fragment as written, and of the cheaper term.
    - `known`: predicted seconds of what the rules that ship make of the fragment.
    - `known_by`: the names of the rules that ship by which they make it.
    - `share`: of the program's predicted time, what the term saves there; 0 where the program was not asked.
    """

    text: str
    source: str
    numerics: Numerics
    theory: str
    where: str
    before: float
    after: float
    known: float
    known_by: tuple[str, ...]
    share: float = 0.0

    @property
    def is_new(self) -> bool:
        """Whether the rules that ship make nothing of the fragment that is as fast, by itself or in the program: there
        it may be a part of a loop whose other parts are dear."""
        nothing_known = self.known > CHEAPER * self.before
        return self.after < CHEAPER * self.known or (self.share >= LEAST_SAVING and nothing_known)

    def __str__(self) -> str:
        told = f"{time(self.before)} -> {time(self.after)}, proved ({self.theory}), {self.numerics}"
        if not self.is_new:
            told += ", which the rules that ship reach too"
            told += f" by {', '.join(self.known_by)}" if self.known_by else ""
        return f"{self.text}      {told}" + (f"      {self.where}" if self.where else "")


@dataclass(frozen=True)
class Mined:
    """The laws that a program could use.

    - `offers`: those that are proved, the largest saving first.
    - `looked_at`: number of fragments, or of fillings of a sketch, that were looked at.
    - `unproved`: cheaper terms with equal values that were refuted or not proved, as formulas.
    - `stopped`: why the search ended early; empty if it did not.
    """

    offers: tuple[Offer, ...]
    looked_at: int
    unproved: tuple[str, ...] = ()
    stopped: str = ""
    of: Literal["fragments", "fillings"] = "fragments"

    @property
    def source(self) -> str:
        """The text of a file of rules."""
        return file_text([o.source for o in self.offers], {}, "Laws that fragments of a program could use.", "found")

    @property
    def rules(self) -> RuleSet:
        return load(self.source, "found")

    def save(self, path: Any) -> None:
        """Writes the file of rules. DiscoveryError if it cannot be written."""
        write_file(path, self.source, DiscoveryError, "the rules")

    def __str__(self) -> str:
        counts = f"{self.looked_at} {self.of}, {len(self.offers)} laws, {len(self.unproved)} not proved"
        return "\n".join([*map(str, self.offers), counts, *([f"stopped: {self.stopped}"] if self.stopped else [])])


# What the options of a search for cheaper terms may be.
OPTIONS = {
    "size": within("a number of operators", 1, LARGEST_SIZE),
    "numerics": one_of(*CLASSES),
    "jobs": within("a number of processes", 1, MOST_JOBS),
    "tell": CALLABLE,
}


def untold(text: str, done: int, of: int) -> None:
    """Tells nobody of the progress of a search."""


@accepts(DiscoveryError, **OPTIONS)
def mine(
    function: Callable[..., Any] | Module,
    *specs: Any,
    at: Mapping[str, int] | None = None,
    target: str = "cpu",
    size: int = 3,
    numerics: Numerics = "reassociate",
    jobs: int = 1,
    tell: Progress | None = None,
) -> Mined:
    """Returns the laws that the costliest fragments of a program could use: cheaper terms of at most `size` operators
    that are proved equal.

    - `function`, `specs`: a JAX function and the specs of its arguments, or a module.
    - `at`: the sizes for which fragments are priced.
    - `target`: the device profile by which fragments are priced.

    A search that is interrupted by Ctrl-C returns what it has proved. DiscoveryError if a size is missing in `at`.
    """
    module, sizes = program_at(function, specs, at)
    return Miner(target, size, numerics, jobs).mined(module, sizes, tell or untold)


def program_at(
    function: Callable[..., Any] | Module, specs: Sequence[Any], at: Mapping[str, int] | None
) -> tuple[Module, dict[str, int]]:
    """The program of a function, and its sizes. DiscoveryError if a size is missing."""
    module = function if isinstance(function, Module) else trace(function, *specs)
    sizes = dict(at or {})
    missing = [v for v in module.main.size_variables if v not in sizes]
    if missing:
        raise DiscoveryError(
            f"at={sizes}: no size `{missing[0]}`; fragments are priced at sizes: at={{'{missing[0]}': 64}}"
        )
    return module, sizes


@dataclass(frozen=True)
class _Posed:
    """A fragment, and by itself: its root, its variables, and the values of its sizes."""

    fragment: Fragment
    root: Expr
    params: Leaves
    at: dict[str, int]


class Miner:
    """Looks at fragments of programs, one program after another; a fragment of two programs is looked at once.

    - `target`, `size`, `numerics`, `jobs`: as in `mine`; with a size of 0 terms are those of kept tables.
    - `terms`: the most terms of one size for a fragment.
    - `known`: the rules that are known; laws of fragments of which they make the same are not new.
    - `names`: names of laws that are taken.
    - `kept`: tables in which fragments of elements are looked up first; a term is tried if the program is cheaper by
      `LEAST_SAVING` with it.
    - `least`: seconds that a fragment takes at least to be looked at; callers set it.
    - `counts`: how far fragments of elements came: how many there were, how many a table has terms for, and of terms
      that make a program cheaper how many there were, agree at infinities, are proved, or were stated before.
    """

    def __init__(
        self, target: str, size: int, numerics: Numerics, jobs: int, terms: int = _MOST_TERMS, known: RuleSet = default,
        names: Iterable[str] = (), kept: ElementTables | None = None,
    ) -> None:  # fmt: skip
        self._profile, self._target, self._at = profile(target), target, dict[str, int]()
        self._known_rules = known
        self.size, self._jobs, self.terms, self.least = size, jobs, terms, 0.0
        self._numerics: Numerics = numerics
        self._fragments: set[str] = set()
        self._seen: set[str] = set()
        self._proved: set[str] = set()
        self._stated: set[str] = set()
        self._solved: list[set[Expr]] = []
        self._names = set(names)
        self._kept = kept
        self.counts = Counter[str]()
        self._prices: dict[tuple[Expr, Leaves, tuple[tuple[str, int], ...]], float] = {}

    def mined(self, module: Module, at: Mapping[str, int], tell: Progress = lambda text, done, of: None) -> Mined:
        """The laws that a program could use at these sizes, without those that other programs gave before."""
        self._at = dict(at)
        fragments = self.hottest(module)
        offers: list[Offer] = []
        unproved: list[str] = []
        self._solved.clear()
        done, stopped = 0, ""
        try:
            of_elements = set[str]()
            if self._kept is not None:
                of_elements = self._look_up(self._kept, fragments, module, offers, unproved)
            for group in self._groups(fragments, of_elements) if self.size else ():
                tell(expression_text(group[0].root)[:60], done, len(fragments))
                self._look_at(group, module, offers, unproved)
                done += len(group)
            done = len(fragments)  # the others are of programs before, or of operators that no grammar has
        except KeyboardInterrupt:
            stopped = "interrupted"
        offers.sort(key=lambda o: o.after - o.before)
        return Mined(tuple(offers), done, tuple(unproved), stopped)

    def price(self, root: Expr, params: Sequence[Expr], at: Mapping[str, int]) -> float:
        """Predicted seconds of an expression by itself."""
        key = root, tuple(params), tuple(at.items())
        if key not in self._prices:
            self._prices[key] = self._price_of(Function("main", key[1], (), root), at)
        return self._prices[key]

    def _price_of(self, function: Function, at: Mapping[str, int]) -> float:
        return float(price_program(function, WholeCost(self._profile, at, {}, None)).seconds)

    def _look_up(
        self, kept: ElementTables, fragments: Mapping[str, Fragment], module: Module, offers: list[Offer],
        unproved: list[str],
    ) -> set[str]:  # fmt: skip
        """Adds the laws of fragments of elements for which the kept tables have terms, those first with which the
        program is cheapest. Returns the texts of the fragments of elements."""
        own = {f: self._price_of(f, self._at) for f in module}
        # Fragments without which a program takes nearly as long are not looked up.
        roots = {e for f in module for e in f.expressions() if self._saved(f, e, own[f]) >= LEAST_SAVING}
        found: dict[str, Sequence[tuple[KeptTable, Sequence[Term], Sequence[Expr]]]] = {}
        for text, x in fragments.items():
            hits = kept.hits(x) if x.root in roots else [] if kept.is_of_elements(x) else None
            if hits is not None:
                found[text] = hits
        looked_up = [hits for text, hits in found.items() if fragments[text].root in roots]
        self.counts.update(
            {"fragments": len(found), "looked up": len(looked_up), "with terms": sum(map(bool, looked_up))}
        )
        tried: list[tuple[float, str, KeptTable, Term, Sequence[Expr]]] = []
        for f in module:
            there = frozenset(f.expressions())
            for text, hits in found.items():
                x = fragments[text]
                for table, terms, leaves in hits if x.root in there else ():
                    for term in terms:
                        try:
                            made = table.written(term, leaves, x.root)
                            share = self._saved(f, x.root, own[f], made)
                        except RelaxEgError:
                            continue
                        if share >= LEAST_SAVING:
                            tried.append((share, text, table, term, leaves))
                        elif share < LEAST_SAVING / 2 and len({a.shape for a in leaves}) == 1:
                            break  # terms with its values are no cheaper by as much
        failed = refused = 0
        self.counts["cheaper"] += len(tried)
        # Of fragments with which nearly the same is saved the smallest is first: its law is the most general one.
        for share, text, table, term, leaves in sorted(
            tried, key=lambda x: (-round(x[0], 2), len(fragments[x[1]].inside), -x[0], x[1])
        ):
            x = fragments[text]
            if (
                failed < _MOST_UNPROVED
                and refused < _MOST_REFUSED
                and not any(x.inside & inside for inside in self._solved)
            ):
                before, had = len(unproved), len(offers)
                refused += not self._offer_hit(x, table, term, leaves, module, offers, unproved)
                offers[had:] = [replace(o, share=share) for o in offers[had:]]
                failed += len(unproved) - before
        return set(found)

    def _saved(self, f: Function, root: Expr, before: float, made: Expr | None = None) -> float:
        """The share of its time that a function saves with an expression in place of another one, or with a number."""
        if not isinstance(root.annotation, Tensor) or root.op in (CONSTANT, VAR):
            return 0.0
        if made is None:
            made = filled(const(np.zeros((), numpy_dtype(root.dtype)), root.dtype), root)
        cheaper = with_term(f, root, made)
        return 0.0 if cheaper is None else 1 - self._price_of(cheaper, self._at) / before

    def _offer_hit(
        self, x: Fragment, kept: KeptTable, term: Term, leaves: Sequence[Expr], module: Module, offers: list[Offer],
        unproved: list[str],
    ) -> bool:  # fmt: skip
        """Offers the law of a fragment and a term of a kept table. Returns whether they agree at infinities."""
        made = generalised_sizes(x)
        if made is None:
            return False
        root, params, sizes = made
        try:
            named = dict(zip(x.leaves, params, strict=True))
            right = kept.written(term, [named.get(a, a) for a in leaves], root)
            grammar, terms = grammar_of([root, right], params, (), "add")
            if grammar.work(terms[0]) > _MOST_WORK:
                return False
            table = TermTable(grammar, SamplePoints(grammar, False, 0))
            pair = EqualPair(terms[0], terms[1])
            if not table.agree(pair) or not Extremes(grammar, table.points).accept(pair):
                return False
            self.counts["agreeing"] += 1
            if self.offer(table, pair, {**self._at, **sizes}, _where(x, module), offers, unproved):
                self.counts["proved"] += 1
                self._solved.append(x.inside)
            return True
        except RelaxEgError:  # it does not exist at some sizes
            return False

    def hottest(self, module: Module) -> dict[str, Fragment]:
        """The costliest fragments of the program's functions, each kind once, by their texts."""
        found: dict[str, Fragment] = {}
        for f in module:
            for e, leaves in cuts_of(f):
                try:
                    root, params = apart(e, leaves)
                except RelaxEgError:  # an operator that does not exist for the names of other sizes
                    continue
                key = expression_text(root)
                if key not in found:
                    found[key] = Fragment(e, leaves, self.price(root, params, self._at) if self.size else 0.0)
        if not self.size:  # those of which the most is inside come last
            return dict(list(found.items())[: -_MOST_LOOKED_UP - 1 : -1])
        dear = [x for x in found.items() if x[1].seconds >= self.least]
        return dict(
            sorted(dear, key=lambda x: (-x[1].seconds, x[0]))[
                : _MOST_FRAGMENTS if self._kept is None else _MOST_LOOKED_UP
            ]
        )

    def _groups(self, fragments: Mapping[str, Fragment], of_elements: Collection[str]) -> list[list[_Posed]]:
        """The fragments that were not looked at before, those together whose leaves have the same types. `of_elements`:
        texts of fragments that were looked up in kept tables, which are left out."""
        found: dict[tuple[Any, ...], list[_Posed]] = {}
        for key, fragment in fragments.items():
            if key in of_elements:
                continue
            made = generalised_sizes(fragment)
            if made is None:
                continue
            root, params, sizes = made
            text = f"{expression_text(root)} of {', '.join(str(p.annotation) for p in params)}"
            if text in self._fragments:
                continue
            self._fragments.add(text)
            try:
                grammar, (left,) = grammar_of([root], params)
            except RelaxEgError:  # an operator that no grammar has
                continue
            if grammar.work(left) <= _MOST_WORK:
                at = {**self._at, **sizes}
                found.setdefault((params, tuple(at.items())), []).append(_Posed(fragment, root, params, at))
        return list(found.values())

    def _look_at(self, group: Sequence[_Posed], module: Module, offers: list[Offer], unproved: list[str]) -> None:
        """Adds the laws of cheaper terms for fragments of one grammar to `offers`, or to `unproved`. Fragments that
        have too many terms together are looked at in two halves."""
        params, at, most = group[0].params, group[0].at, max(x.fragment.seconds for x in group)
        try:
            grammar, terms = grammar_of([x.root for x in group], params)
            table = TermTable(grammar, SamplePoints(grammar, False, 0), self.affordable(grammar, most, at))
            extremes = Extremes(grammar, table.points)
            for n in range(self.size + 1):
                if n and table.next_count() > self.terms:
                    middle = (len(group) + 1) // 2
                    for half in (group[:middle], group[middle:]) if len(group) > 1 else ():
                        self._look_at(half, module, offers, unproved)
                    return
                made: dict[Term, list[Term]] = {}
                for pair in table.grow() if n else ():
                    made.setdefault(pair.right, []).append(pair.left)
                for x, left in zip(group, terms, strict=True):
                    # What is inside a fragment of which a cheaper form is known is not looked at.
                    if any(x.fragment.inside <= inside for inside in self._solved):
                        continue
                    cheaper = self._cheaper(table, made, extremes, left, x)
                    pairs = (EqualPair(left, right) for right in cheaper)
                    if any(self.offer(table, p, at, _where(x.fragment, module), offers, unproved) for p in pairs):
                        self._solved.append(x.fragment.inside)
        except RelaxEgError:  # it does not exist at some sizes
            return

    def affordable(
        self, grammar: Grammar, seconds: float, at: Mapping[str, int]
    ) -> Callable[[int, tuple[Type, ...]], bool]:
        """Whether an operator on operands of some types, alone or under a sum that it may be fused with, takes less
        time than a fragment: no term that contains it is cheaper otherwise."""
        known: dict[tuple[int, tuple[Type, ...]], bool] = {}

        def priced(number: int, types: tuple[Type, ...]) -> bool:
            operands = [var(f"x{i}", Tensor(*t)) for i, t in enumerate(types)]
            made = grammar.forms[number].on(operands)
            ways = [made, *([call("sum", (made,), {"axes": tuple(range(made.ndim))})] if is_float(made.dtype) else [])]
            return min(self.price(x, operands, at) for x in ways) < CHEAPER * seconds

        def allowed(number: int, types: tuple[Type, ...]) -> bool:
            if (number, types) not in known:
                known[number, types] = priced(number, types)
            return known[number, types]

        return allowed

    def offer(
        self, table: TermTable, candidate: EqualPair, at: Mapping[str, int], where: str, offers: list[Offer],
        unproved: list[str],
    ) -> bool:  # fmt: skip
        """Adds the law of two terms to `offers` if it is proved, and else to `unproved`. Returns whether it is."""
        grammar = table.grammar
        extremes = Extremes(grammar, table.points)
        inner = without_context(candidate, table)
        candidate = inner if extremes.accept(inner) else candidate
        writer = Writer(grammar, self._names)
        law = writer.text(candidate)
        key = _named_in_order(law, grammar)
        if key in self._seen:
            return key in self._proved
        self._seen.add(key)
        missing = extremes.agree(candidate, missing=True)
        general = generalised(candidate, table, lambda c: extremes.agree(c, missing))
        with LawProver(grammar, writer, self._numerics, self._jobs, None) as prover:
            for pair in dict.fromkeys((general, candidate)):
                (proof,) = prover.prove([(pair, writer.name(pair))], lambda *_: None)
                if proof.outcome == "proved":
                    break
            else:
                unproved.append(law)
                return False
        self._proved.add(key)
        if (text := doc_of(proof.source) or law) in self._stated:
            return True
        self._stated.add(text)
        left, right = (grammar.expression(t) for t in (candidate.left, candidate.right))
        before, after = (self.price(e, grammar.declared, at) for e in (left, right))
        known = self._known(left, grammar.declared, at)
        offers.append(
            Offer(text, proof.source, proof.numerics, proof.theory, where, before, after, known.after.seconds,
                  tuple(known.rules))
        )  # fmt: skip
        return True

    def _cheaper(
        self, table: TermTable, made: Mapping[Term, Sequence[Term]], extremes: Extremes, left: Term, x: _Posed
    ) -> list[Term]:
        """Terms with the values of `left` and lower prices, the cheapest first. `made`: the terms of the last size that
        have the values of a smaller one: the table keeps the smallest term of a class; a larger one may take less
        time."""
        least = table.equal_to(left)
        equal = [] if least is None else [least, *made.get(least, ())]
        prices = {
            t: 0.0 if isinstance(t, int) else self.price(table.grammar.expression(t), table.grammar.declared, x.at)
            for t in equal[:_MOST_EQUAL]
            if t != left and extremes.accept(EqualPair(left, t))
        }
        # Those that are the same at NaN, too, come first.
        agree = {t: extremes.agree(EqualPair(left, t), missing=True) for t in prices}
        cheaper = [t for t in prices if prices[t] < CHEAPER * x.fragment.seconds]
        return sorted(cheaper, key=lambda t: (not agree[t], prices[t]))[:_MOST_TRIED]

    def _known(self, root: Expr, params: Sequence[Expr], at: Mapping[str, int]) -> CostReport:
        """The report of what the rules that ship make of a fragment."""
        module = Module((Function("main", tuple(params), (), root),))
        binding = {v: at[v] for v in module.main.size_variables}
        return optimize(module, at=binding, target=self._target, rules=self._known_rules).report


def _named_in_order(law: str, grammar: Grammar) -> str:
    """A law with its variables named in the order in which they appear."""
    names: dict[str, str] = {}

    def name(m: re.Match[str]) -> str:
        return names.setdefault(m[0], f"${len(names)}") if m[0] in grammar.signature else m[0]

    return re.sub(r"[^\W\d]\w*", name, law)


def _where(x: Fragment, module: Module) -> str:
    """The source line of a fragment; empty if it is not known."""
    origin = next((f.origins[x.root] for f in module if x.root in f.origins), None)
    return str(origin.lines[0]) if origin is not None and origin.lines else ""
