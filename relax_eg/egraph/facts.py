"""Facts about values in the e-graph: relations over its classes.

When the left side of a rule with a fact guard matches, the rule asks about the class. Until then facts cost nothing.
Only what is made of constants or weights is never asked about: this is known at once of the whole program as written.
The fact is then derived for the program as written, operands first, with the facts from which it follows
(`rules.facts.propagation.KnownFacts`). If the class holds a value of that program, the answer is inserted into the
fact's relation. A fact of one node is a fact of its class, because equal values have equal facts.

If facts were declared, facts of nodes that rules make are derived too: all facts known of the program as written are
loaded, and the engine maintains them by the same derivations, compiled to engine rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import Any

from relax_eg.egraph.engine import Engine
from relax_eg.egraph.query import Query
from relax_eg.egraph.vocabulary import Opcode, Vocabulary
from relax_eg.ir.annotations import dims_of
from relax_eg.ir.expr import CONSTANT, VAR, Expr
from relax_eg.ir.heads import TUPLES
from relax_eg.ops import TABLE
from relax_eg.ops.facts import ALL_IMPLIED
from relax_eg.ops.partial_annotations import MAX_RANK
from relax_eg.rules import Claim, Instance
from relax_eg.rules.book.facts import derivations
from relax_eg.rules.conditions import FactKey, ValueGuard, ValueTest, key_of
from relax_eg.rules.facts.fact_rules import ANNOTATION_WORDS, FactRule
from relax_eg.rules.facts.parameter_facts import DeclaredFacts, is_positive_in
from relax_eg.rules.facts.propagation import (
    ANNOTATION_FACTS,
    MOVES,
    KnownFacts,
    Leaves,
    annotation_facts,
    meaning,
    required_facts,
)
from relax_eg.rules.matching import Expressions, rank_needed, rest_of
from relax_eg.shapes import Dim, Scope
from relax_eg.traversal import grouped

_EXPRESSIONS = Expressions()
_ORIGINS = ("is_constant", "is_weight")
_COMMON = frozenset((CONSTANT,)).union(
    "add subtract multiply divide matmul sum max min maximum minimum where less less_equal greater greater_equal equal "
    "not_equal permute_dims exp rsqrt".split()
)
_ANNOTATION_KEYS = (*ANNOTATION_WORDS, *ANNOTATION_FACTS, *(f"rank_{r}" for r in range(MAX_RANK + 1)))
_PRELUDE = (
    "(relation ask_ann (Ann))",
    "(rule ((has_ann e a)) ((ask_ann a)) :ruleset facts)",
    "(relation ask_leaf (i64))",
    "(rule ((= e (Leaf i))) ((ask_leaf i)) :ruleset facts)",
    "(relation ask_dim (i64))",
    "(rule ((= d (D i))) ((ask_dim i)) :ruleset facts)",
    *(f"(relation ann_{key} (Ann))" for key in _ANNOTATION_KEYS),
    *(f"(relation dim_{key} (Dim))" for key in _ORIGINS),
)


class FactBase:
    """The facts of one e-graph.

    - `declared`: what is known of the values of parameters.
    - `roots`: the results of the block.
    - `number`: the numbers of the inserted nodes, operands first.
    """

    def __init__(
        self,
        engine: Engine,
        words: Vocabulary,
        scope: Scope,
        declared: DeclaredFacts,
        roots: Sequence[Expr],
        number: Mapping[Expr, int],
    ) -> None:
        self._engine = engine
        self._words = words
        self._is_positive = is_positive_in(scope)
        self._declared = declared
        self._roots = frozenset(roots)
        self._number = number
        self._symbols: dict[FactKey, str] = {}  # fact, test or word on origin -> its relation
        self._asked: dict[FactKey, int] = {}  # fact -> number of classes asked about when it was last answered
        self._leaves = Leaves(declared.facts)
        self._known = KnownFacts(self._leaves.have_fact, declared.exact, self._is_positive)
        self._of_origin: dict[str, frozenset[Expr]] = {}
        self._maintained: frozenset[FactKey] = frozenset()  # facts that the engine maintains
        self._sent: set[str] = set()  # rules and answers that the engine has
        self._derivations: set[tuple[Any, ...]] = set()  # rules about facts, with the opcodes for which they were sent

    def lookup(self, guard: ValueGuard, x: str) -> tuple[str, str, list[str]]:
        """Returns the fact that a guard on the class `x` looks up, the action that asks for it ("" for none), and the
        commands that declare both."""
        key = key_of(guard)
        commands = self._declare(key)
        symbol = self._symbols[key]
        if key in _ORIGINS:
            return f"({symbol} {x})", "", commands
        if key not in self._asked:
            self._asked[key] = 0
            commands += [
                f"(relation want_{symbol} (T))",
                f"(relation asked_{symbol} (i64))",
                f"(rule ((want_{symbol} x) (= x (node i))) ((asked_{symbol} i)) :ruleset asked)",
            ]
        return f"({symbol} {x})", f"(want_{symbol} {x})", commands

    def answer_questions(self, sizes: Mapping[str, int]) -> None:
        """Answers the questions of rules for all nodes in the e-graph. `sizes`: rows of the engine's tables."""
        origins = frozenset(k for k in _ORIGINS if k in self._symbols and self._origins(k))
        if not self._maintained.issuperset(origins):
            self._load(self._maintained | origins)
        asked = {k: sizes.get(f"want_{self._symbols[k]}", 0) for k in self._asked}
        grown = [k for k, n in asked.items() if n > self._asked[k]]
        if grown:
            self._asked |= asked
            self._answer_for_written(grown)
        if self._maintained:
            self._derive_maintained([o for s, o in self._words.by_symbol.items() if sizes.get(s, 0)])

    def _declare(self, key: FactKey) -> list[str]:
        if key in self._symbols:
            return []
        self._symbols[key] = f"fact_{len(self._symbols)}_"
        return [f"(relation {self._symbols[key]} (T))"]

    def _is_new(self, entry: str) -> bool:
        """Whether a rule or answer was not sent before; it is then counted as sent."""
        if entry in self._sent:
            return False
        self._sent.add(entry)
        return True

    # --- the program as written ---

    def is_relevant(self, instance: Instance) -> bool:
        """Whether `instance` is worth compiling; compiling takes the engine as long as hundreds of matches.

        An instance is relevant if it asks for no facts, if facts were declared, or if its left side has an operator
        that is not common. Any other is relevant only if the program as written has its first left side and the facts
        hold there.
        """
        claims = [g for g in instance.guards if isinstance(g, Claim)]
        if not claims or self._declared.facts or any(e.op not in _COMMON for e in instance.left_nodes):
            return True
        for e in self._by_op.get(instance.left[0].op, ()):
            found = _EXPRESSIONS.match(instance.left[0], e)
            if not found.problems and all(self._known.has(found.variables[g.name], g.fact) for g in claims):
                return True
        return False

    def _answer_for_written(self, asked: Sequence[FactKey]) -> None:
        """Inserts the answers about the classes of the program as written."""
        self._engine.step("asked")
        answers: list[str] = []
        for key in asked:
            for _, i in self._engine.terms(f"asked_{self._symbols[key]}"):
                answer = f"({self._symbols[key]} (node {i}))"
                if f"answered {answer}" not in self._sent and self._holds(self._written[int(i)], key):
                    self._sent.add(f"answered {answer}")
                    answers.append(answer)
        self._engine.run(answers)
        # The engine maintains origins and tests once they hold somewhere, and facts if some were declared.
        maintained = [k for k in asked if isinstance(k, ValueTest)] if answers else []
        if self._declared.facts:
            maintained += [k for k in asked if k != "used_once"]
        if not self._maintained.issuperset(maintained):
            self._load(self._maintained | required_facts(frozenset(maintained)))

    def _holds(self, e: Expr, key: FactKey) -> bool:
        """Whether the fact, test or origin `key` holds of a value of the program as written."""
        if isinstance(key, str) and key in _ORIGINS:
            return e in self._origins(key)
        return e in self._read_once if key == "used_once" else self._known.has(e, key)

    def _origins(self, word: str) -> frozenset[Expr]:
        """Returns the values made of constants only, or of constants and weights. O(expressions), once."""
        if word not in self._of_origin:
            found: set[Expr] = set()
            for e in self._written:
                if e.args or e.op in TABLE:
                    own = _keeps_origin(e.op) and all(a in found for a in e.args) and self._has_sizes(e, word)
                else:
                    own = self._leaf_has(e, word)
                if own:
                    found.add(e)
            self._of_origin[word] = frozenset(found)
        return self._of_origin[word]

    @cached_property
    def _written(self) -> list[Expr]:
        return list(self._number)

    @cached_property
    def _by_op(self) -> dict[str, list[Expr]]:
        return grouped((e.op, e) for e in self._written)

    @cached_property
    def _read_once(self) -> frozenset[Expr]:
        reads = Counter(a for e in self._written for a in e.args)
        return frozenset(e for e, n in reads.items() if n == 1) - self._roots

    @cached_property
    def _sizes_of_weights(self) -> frozenset[str]:
        weights = [e for e in self._written if e.op == VAR and e.attr("name") in self._declared.weights]
        return frozenset(v for e in weights for d in dims_of(e.annotation) for v in d.variables)

    def _leaf_has(self, e: Expr, key: FactKey) -> bool:
        if key in _ORIGINS:
            return e.op == CONSTANT or (key == "is_weight" and e.op == VAR and e.attr("name") in self._declared.weights)
        return self._leaves.have_fact(e, key)

    def _has_sizes(self, e: Expr, word: str) -> bool:
        sizes = [d for _, v in e.attrs if isinstance(v, tuple) for d in v if isinstance(d, Dim)]
        return all(self._is_known_size(d, word) for d in sizes)

    def _is_known_size(self, d: Dim, word: str) -> bool:
        """Whether a size is a constant or, for the word `is_weight`, follows from the shapes of weights."""
        return d.is_const or (word == "is_weight" and d.variables <= self._sizes_of_weights)

    # --- what rules make ---

    def _load(self, maintained: frozenset[FactKey]) -> None:
        """Makes the engine maintain these facts, starting from those that hold in the program as written."""
        before, self._maintained = self._maintained, maintained
        new = sorted(maintained - before, key=_order)
        commands: list[str] = [] if before else list(_PRELUDE)
        for key in new:
            commands += self._declare(key)
            symbol = self._symbols[key]
            commands.append(f"(relation row_{symbol} (i64))")
            commands.append(f"(rule ((row_{symbol} i) (= x (node i))) (({symbol} x)) :ruleset load)")
            if key in ANNOTATION_FACTS:
                commands.append(f"(rule ((has_ann e a) (ann_{key} a)) (({symbol} e)) :ruleset facts)")
        for premises, conclusion in ALL_IMPLIED:
            if conclusion in maintained and not before.issuperset((*premises, conclusion)):
                facts = " ".join(f"({self._symbols[p]} x)" for p in premises)
                commands.append(f"(rule ({facts}) (({self._symbols[conclusion]} x)) :ruleset facts)")
        self._engine.run(commands)
        for key in new:
            numbers = [(i,) for e, i in self._number.items() if self._holds(e, key)]
            if numbers:
                self._engine.load(f"row_{self._symbols[key]}", numbers)
        self._engine.step("load")
        self._sent -= {s for s in self._sent if s.startswith("answered ")}  # these answers lack the new facts

    def _derive_maintained(self, present: Sequence[Opcode]) -> None:
        """Derives the maintained facts of all nodes. A derivation is compiled once each of its premises holds
        somewhere."""
        while True:
            rules = [r for r in dict.fromkeys(self._rules(present, self._engine.sizes())) if self._is_new(r)]
            self._engine.run(rules)
            self._engine.saturate("facts")
            if not self._answer_for_leaves() and not rules:
                return

    def _answer_for_leaves(self) -> bool:
        """Inserts the facts of new annotations, leaves and sizes. Returns whether there were any."""
        commands: list[str] = []
        for term in self._engine.terms("ask_ann"):
            a = self._words.read_annotation(term[1])
            text = self._words.annotation(a)
            if self._is_new(f"answered {text}"):
                found = annotation_facts(a, self._is_positive).intersection(_ANNOTATION_KEYS)
                commands += [f"(ann_{key} {text})" for key in sorted(found)]
        for _, i in self._engine.terms("ask_leaf"):
            if self._is_new(f"answered (Leaf {i})"):
                leaf = self._words.leaf_list[int(i)]
                facts = [key for key in sorted(self._maintained, key=_order) if self._leaf_has(leaf, key)]
                commands += [f"({self._symbols[key]} (Leaf {i}))" for key in facts]
        for _, i in self._engine.terms("ask_dim") if self._maintained.intersection(_ORIGINS) else ():
            if self._is_new(f"answered (D {i})"):
                d = self._words.dim_at(int(i))
                commands += [f"(dim_{w} (D {i}))" for w in _ORIGINS if self._is_known_size(d, w)]
        self._engine.run(commands)
        return bool(commands)

    def _rules(self, present: Sequence[Opcode], sizes: Mapping[str, int]) -> Iterator[str]:
        """Yields the derivations of maintained facts for the operators that are present, as engine rules."""
        by_op = grouped((o.op, o) for o in present)
        held = {key for key, symbol in self._symbols.items() if sizes.get(symbol, 0)}.union(ANNOTATION_WORDS)
        for n, d in enumerate(derivations()):
            usable = d.fact in self._maintained and (d.exact or not self._declared.exact)
            if usable and all(key_of(p) in held for p in d.premises):
                choices = [by_op.get(p.op, []) for p in d.nodes]
                for opcodes in product(*choices) if all(choices) else ():
                    key = n, *(o.symbol for o in opcodes)
                    if key not in self._derivations:
                        self._derivations.add(key)
                        yield from self._derivation(d, opcodes)
        for o in present:
            for key in sorted(self._maintained, key=_order):
                if (key in _ORIGINS and _keeps_origin(o.op)) or (isinstance(key, ValueTest) and o.op in MOVES):
                    yield self._transfer_rule(key, o)

    def _derivation(self, d: FactRule, opcodes: Sequence[Opcode]) -> Iterator[str]:
        query = _Query(self._symbols)
        if not all(query.match(p, o) for p, o in zip(d.nodes, opcodes, strict=True)):
            return
        for premise in d.premises:
            for x in query.values(premise.name):
                query.premise(key_of(premise), x)
        result = query.names[d.pattern]
        if d.floats:
            query.premise("is_float", result)
        if meaning(d.fact).axes == 2:
            query.premise("is_square", result)
        facts = [*(a.fact for a in query.atoms), *query.facts]
        yield f"(rule ({' '.join(facts)}) (({self._symbols[d.fact]} {result})) :ruleset facts)"

    def _transfer_rule(self, key: FactKey, o: Opcode) -> str:
        """Returns the engine rule by which a node of `o` gets `key` from its operands: an origin from all of them, a
        test of constants from the first."""
        xs, ds = [f"x{i}" for i in range(o.arity)], [f"d{i}" for i in range(o.size_count)]
        symbol = self._symbols[key]
        premises = [f"({symbol} {x})" for x in (xs[:1] if isinstance(key, ValueTest) else xs)]
        premises += [] if isinstance(key, ValueTest) else [f"(dim_{key} {d})" for d in ds]
        found = f"(= e ({o.symbol} {' '.join(xs + ds)}))"
        return f"(rule ({' '.join([found, *premises])}) (({symbol} e)) :ruleset facts)"


class _Query(Query):
    """The left side of an engine rule that derives a fact."""

    def __init__(self, symbols: Mapping[FactKey, str]) -> None:
        super().__init__()
        self._symbols = symbols
        self._variable_lists: dict[str, list[str]] = {}  # pattern variable of the rest operands -> engine variables
        self._annotated: set[str] = set()

    def match(self, p: Expr, o: Opcode) -> bool:
        """Adds a node of the pattern. Returns False if the opcode does not have the pattern's form."""
        rank = rank_needed(p, {**dict(o.static), **{name: (None,) * n for name, n in o.sizes}})
        rest = rest_of(p)
        args = p.args if rest is None else p.args[:-1]
        if rank is None or o.arity < len(args) or (o.arity > len(args) and rest is None):
            return False
        operands = [self.operand(a) for a in args]
        if rest is not None:
            self._variable_lists[rest] = [f"v_{rest.rstrip('.')}{i}" for i in range(o.arity - len(args))]
            operands += self._variable_lists[rest]
        first = sum(len(atom.sizes) for atom in self.atoms)
        self.row(p, o, operands, [f"d{first + i}" for i in range(o.size_count)])
        if rank >= 0:
            self.premise(f"rank_{rank}", self.names[p])
        return True

    def values(self, name: str) -> list[str]:
        """Returns the engine variables of a variable of the pattern; a rest variable has several."""
        return self._variable_lists.get(name, [f"v_{name}"])

    def premise(self, fact: FactKey, x: str) -> None:
        """Adds the condition that `fact` holds of the engine variable `x`."""
        if fact not in _ANNOTATION_KEYS or fact in ANNOTATION_FACTS:
            self.facts.append(f"({self._symbols[fact]} {x})")
            return
        if x not in self._annotated:
            self._annotated.add(x)
            self.facts.append(f"(has_ann {x} a_{x})")
        self.facts.append(f"(ann_{fact} a_{x})")


def _keeps_origin(op: str) -> bool:
    """Whether a value of this operator is made of its operands only; a library call may do anything."""
    return op in TABLE or op in TUPLES


def _order(key: FactKey) -> str:
    """Returns the text by which facts, tests and words are sorted."""
    return f"{key.op} {key.number!r}" if isinstance(key, ValueTest) else key
