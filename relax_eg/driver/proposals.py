"""What schemas (`rules.schemas`) propose for a block before its e-graph is made, and the answers that they get."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from relax_eg.backend.family import WHOLE
from relax_eg.driver.batching import batch_function
from relax_eg.driver.options import ASSUMED_SIZE, Options
from relax_eg.ir.control import functions_of
from relax_eg.ir.expr import CALL, CONSTANT, VAR, Expr, fresh_name
from relax_eg.ir.module import Function, Module
from relax_eg.rules.checking.schema_answers import Answers, RecordingAnswers
from relax_eg.rules.schemas import MEMORY, FactsOf, Made, ProgramQueries, Schema
from relax_eg.shapes import Dim
from relax_eg.traversal import grouped, made_from_below

Proposal = tuple[Expr, Expr, str]  # a node, an equal expression, the rule


@dataclass
class SearchedFunctions:
    """The functions of a module that is searched.

    - `module`: the module; with sharing, its repeated blocks are functions.
    - `ahead`: for each called function, whether each of its parameters is known ahead of the calls.
    - `best`: every function in its best form so far, including those that rules made.
    - `second`: the best forms if what follows from parameters that are the same at every step is nearly free.
    - `made`: the functions that rules made, by the beginnings of their names.
    """

    module: Module
    ahead: Mapping[str, tuple[bool, ...]]
    best: dict[str, Function] = field(default_factory=dict[str, Function])
    second: dict[str, Function] = field(default_factory=dict[str, Function])
    made: dict[str, list[Function]] = field(default_factory=dict[str, list[Function]])

    def __post_init__(self) -> None:
        self.best = self.best or {f.name: f for f in self.module}
        self._taken = {*self.best}  # names, also of functions that another search of these made

    def copied(self) -> SearchedFunctions:
        """The same functions, whose forms are chosen anew."""
        other = copy(self)
        other.best, other.second = dict(self.best), dict(self.second)
        return other

    @cached_property
    def calls(self) -> Counter[str]:
        """The number of calls of each function in the program as written."""
        return Counter(n for f in self.module for e in f.expressions() if e.op == CALL for n in functions_of(e))

    def add(self, function: Function, suffix: str) -> Function:
        """See `rules.schemas.ProgramQueries`. Equal functions are added once."""
        stem = f"{function.name}_{suffix}"
        for known in self.made.get(stem, ()):
            if replace(known, name=function.name) == function:
                return known
        made = replace(function, name=fresh_name(stem, self._taken))
        self.made.setdefault(stem, []).append(made)
        self.best[made.name] = made
        return made


@dataclass
class BlockQueries:
    """The answers to what schemas ask about a block (`rules.schemas.ProgramQueries`).

    - `options`: the options of the search.
    - `functions`: those of the module; `add` adds to them.
    - `nodes`: the nodes of the block, operands first.
    - `weights`: the names of the parameters that are known ahead of the calls.
    - `facts_of`: returns the facts of an expression.
    - `corner`: the corner of the sizes at which the program should be good to which `largest_value` refers; in the
      first one all sizes are largest.
    """

    options: Options
    functions: SearchedFunctions
    nodes: Sequence[Expr]
    weights: frozenset[str]
    facts_of: FactsOf
    corner: int = 0

    def __post_init__(self) -> None:
        self._once: dict[Hashable, Any] = {}
        self._known_ahead = {e: str(e.attr("name")) in self.weights for e in self.nodes if e.op == VAR}
        self._readers = grouped((a, e) for e in self.nodes for a in e.args)

    def readers(self, e: Expr) -> Sequence[Expr]:
        return self._readers.get(e, ())

    def is_known_ahead(self, e: Expr) -> bool:
        def known(x: Expr) -> bool:
            return x.op == CONSTANT or (bool(x.args) and all(self._known_ahead[a] for a in x.args))

        return made_from_below(e, lambda x: x.args, known, self._known_ahead)

    def facts(self, e: Expr) -> frozenset[str]:
        return self.facts_of(e)

    def extent(self, size: Dim) -> int:
        return extent_at(self.options, size)

    def largest_value(self, size: Dim) -> int:
        return self.options.largest_value(size, self.corner)

    def seconds(self, flops: float, moved: float, contracts: bool) -> float:
        """Flops, for custom cost models."""
        p = self.options.profile
        if self.options.cost is not None:
            return flops
        rate = p.matmul_rate.get("float32", p.vector_rate) if contracts else p.vector_rate
        launch = p.launch + p.library_launch if contracts else p.launch
        return flops / rate + moved / p.bandwidth + launch

    @property
    def large_bytes(self) -> float:
        return large_bytes(self.options)

    def best(self, name: str, outside: bool = False) -> Function | None:
        found = self.functions.second.get(name) if outside else None
        return _as_one_block(found or self.functions.best.get(name))

    def as_written(self, name: str) -> Function | None:
        return _as_one_block(next((f for f in self.functions.module if f.name == name), None))

    def calls(self, name: str) -> int:
        return self.functions.calls[name]

    def ahead_params(self, name: str) -> Sequence[bool]:
        return self.functions.ahead.get(name) or (False,) * len(self.functions.best[name].params)

    def once(self, key: Hashable, make: Callable[[ProgramQueries], Made]) -> Made:
        if (self.corner, key) not in self._once:
            self._once[self.corner, key] = make(self)
        return self._once[self.corner, key]

    def add(self, function: Function, suffix: str) -> Function:
        return self.functions.add(function, suffix)

    def batched(self, function: Function, mapped: Sequence[bool], length: Dim) -> Function | None:
        others = (f for f in self.functions.best.values() if f.name != function.name)
        return batch_function(Module((function, *others)), function, mapped, length)


def _as_one_block(f: Function | None) -> Function | None:
    return f if f is not None and f.is_one_block else None


def large_bytes(options: Options) -> float:
    """The bytes from which a value is worth avoiding: infinity in kernels, whose storages are kept, and for custom cost
    models."""
    if options.held:
        return 0.0
    return options.profile.fresh_bytes if options.execution == WHOLE and options.cost is None else math.inf


def extent_at(options: Options, size: Dim) -> int:
    """The value of a size at the first binding."""
    known = options.bindings[0]
    return int(size.evaluate({v: known.get(v, ASSUMED_SIZE) for v in size.variables}))


def proposals(
    written: Sequence[Expr], schemas: Sequence[Schema], queries: BlockQueries, deadline: float
) -> tuple[dict[Proposal, Answers], bool]:
    """The proposals of `schemas` for the nodes of a block as `written`, each with the answers that the schema was
    given, and whether all nodes were asked about. No further node is asked about once this thread has used `deadline`
    seconds of processor time.

    Each schema is asked about the previous one's proposal, else about the node as written. A schema that saves memory
    is asked about the node as written only, and others do not build on its proposal. It is asked at every corner,
    because the best form for one long sequence need not be the best for many short ones. One for every form is asked
    about the node as written and all proposals of those before it, and others do not build on its proposals.
    """
    found: dict[Proposal, Answers] = {}
    for e in written:
        if time.thread_time() >= deadline:
            return found, False
        latest, forms = e, [e]
        for schema in schemas:
            if MEMORY in schema.tags:
                for corner in range(queries.options.corners):
                    queries.corner = corner
                    proposed, answers = _proposed(schema, e, queries)
                    for p in proposed:
                        found.setdefault((e, p, schema.name), answers)
                queries.corner = 0
                continue
            if schema.for_every_form:
                for of in dict.fromkeys(forms):
                    proposed, answers = _proposed(schema, of, queries)
                    found.update(dict.fromkeys(((of, p, schema.name) for p in proposed), answers))
                continue
            of = latest
            proposed, answers = _proposed(schema, of, queries)
            if not proposed and latest is not e:
                of = e
                proposed, answers = _proposed(schema, of, queries)
            for p in proposed:
                latest = proposed[0]
                found.setdefault((of, p, schema.name), answers)
            forms += proposed
    return found, True


def _proposed(schema: Schema, e: Expr, queries: ProgramQueries) -> tuple[tuple[Expr, ...], Answers]:
    asking = RecordingAnswers(queries)
    return schema.proposals(e, asking) if e.op in schema.operators else (), asking.answers
