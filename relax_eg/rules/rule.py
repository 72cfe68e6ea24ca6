"""Rewrite rules as users write them: a typed function over pattern variables that returns the two sides.

    book = RuleSet("mine")

    @book.rule(shapes="a: m k, b: k n, v: n")
    def matmul_vector_associates(a, b, v):
        \"\"\"(A B) v = A (B v)\"\"\"
        return (a @ b) @ v, a @ (b @ v)

A rule stands for a family of *instances*: one for every rank of its `*b` blocks, every float type, and every value of
its attribute variables. An instance is two programs over the same typed variables. The e-graph and the checker see only
instances.

Instances are enumerated in a fixed order (`instances`). An attribute variable ranges over the values of an attribute
on operands of up to four axes, or over operators (`read_source`). There is no instance where the rule's
function returns None or its sides cannot be formed.
"""

from __future__ import annotations

import inspect
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np

from relax_eg.argument_checks import short_repr
from relax_eg.errors import OperatorError, RuleError
from relax_eg.ir.expr import CONSTANT, VAR, Expr, node, postorder, rebuild, var
from relax_eg.ir.origin import SourceLine
from relax_eg.limits import KEPT, RANK
from relax_eg.memo import Memo
from relax_eg.ops.facts import impossible
from relax_eg.ops.libraries import Library
from relax_eg.ops.record import strict_sizes
from relax_eg.rules.attribute_variables import Values, attribute_values, operator_function, read_source
from relax_eg.rules.conditions import Claim, Guard, names_of, parse_guards
from relax_eg.rules.format import expression_text
from relax_eg.rules.function_errors import raised_message
from relax_eg.rules.signature import Numerics, pattern_of, plain_name, sizes_named, transpose_hint
from relax_eg.shapes import Dim, Relation, Spec, Star

Phase = Literal["simplify", "algebra", "merge", "layout", "library"]
PHASES: tuple[Phase, ...] = ("simplify", "algebra", "merge", "layout", "library")
Sides = tuple[tuple[Expr, ...], tuple[Expr, ...]]
RuleFunction = Callable[..., Any]


@dataclass(frozen=True)
class Instance:
    """An instance of a rule: `left[i]` may be rewritten to `right[i]`, for all i together.

    - `rule`: the rule.
    - `params`: pattern variables, with tensor annotations whose sizes are variables too.
    - `left`, `right`: the results of the two sides.
    - `guards`: the conditions of the rule.
    - `ranks`, `dtype`, `attributes`: arguments of the `Rule.instance` call that made it.
    """

    rule: Rule
    params: tuple[Expr, ...]
    left: tuple[Expr, ...]
    right: tuple[Expr, ...]
    guards: tuple[Guard, ...] = ()
    ranks: tuple[int, ...] = field(default=(), compare=False)
    dtype: str = field(default="float32", compare=False)
    attributes: tuple[tuple[str, Any], ...] = field(default=(), compare=False)

    @cached_property
    def left_nodes(self) -> tuple[Expr, ...]:
        """The nodes of the left side except the pattern variables, operands first."""
        return tuple(e for e in postorder(self.left) if e.op != VAR)


@dataclass(frozen=True, eq=False)
class Rule:
    """A rewrite rule; `RuleSet.rule` makes one.

    - `name`: the name, unique within a set.
    - `function`: the function over the pattern variables that returns the two sides.
    - `signature`: pattern variables and their specs, in order.
    - `attributes`: attribute variables, each with what of the program it ranges over (`read_source`): values of an
      attribute, `"sum.axes"`, or operators, `"add | multiply"`.
    - `sizes`: size variables that attributes of the left side bind (slice bounds, for example); `*t` stands for any
      number of them, `*t:b` for as many as block `*b` has axes. The function receives each as a keyword argument, a
      `Dim` or a tuple of `Dim`s.
    - `numerics`: numerics class, see `docs/rules.md`.
    - `phase`: when the rule runs: "simplify" to a fixpoint, "algebra" and "library" for a few rounds, the others once.
    - `when`: the texts of the conditions.
    - `tags`: names by which sets select the rule.
    - `doc`: the law in one line.
    - `where`: the source line of the function.
    - `reverse`: whether the sides that the function returns are exchanged.
    - `library`: the routine that the rule lowers to; None if it lowers to none.
    """

    name: str
    function: RuleFunction
    signature: Mapping[str, Spec]
    attributes: Mapping[str, str]
    numerics: Numerics
    phase: Phase
    when: tuple[str, ...]
    tags: frozenset[str]
    doc: str
    where: SourceLine
    reverse: bool = False
    sizes: tuple[str, ...] = ()
    library: Library | None = None
    _instances: Memo[Any, Instance | None] = field(default_factory=lambda: Memo(1 << 12), repr=False)

    @cached_property
    def block_names(self) -> tuple[str, ...]:
        """Names of the `*b` blocks, in order of appearance."""
        names = [d.name for s in self.signature.values() for d in s.dims if isinstance(d, Star)]
        return tuple(dict.fromkeys(names + [s[1:] for s in self.sizes if s.startswith("*") and ":" not in s]))

    @cached_property
    def left_operators(self) -> frozenset[str]:
        """Names of the operators on the left side of the smallest instance. The rule cannot fire in a program that has
        none of them."""
        smallest = next(iter(instances(self, limit=1)), None)
        if smallest is None:
            return frozenset()
        varies = frozenset[str]().union(*(ops for ops in map(self.choices, self.attributes) if len(ops) > 1))
        return frozenset(e.op for e in smallest.left_nodes if e.op != CONSTANT) - varies

    def choices(self, variable: str) -> tuple[str, ...]:
        """The operators over which an attribute variable ranges, or whose attribute it is."""
        return read_source(self.attributes[variable])[0]

    @cached_property
    def operator_choices(self) -> tuple[Mapping[str, str], ...]:
        """The combinations of values of the variables for operators; one empty combination if there are none."""
        names = [n for n, s in self.attributes.items() if not read_source(s)[1]]
        return tuple(dict(zip(names, c, strict=True)) for c in itertools.product(*map(self.choices, names)))

    @property
    def ranges_over_attributes(self) -> bool:
        """Whether it has a variable for values of an attribute, which depend on the rank of operands."""
        return any(read_source(s)[1] for s in self.attributes.values())

    def set_left_operators(self, operators: Iterable[str]) -> None:
        """Sets `left_operators` from a file, so that no instance has to be formed to compute it."""
        self.__dict__.setdefault("left_operators", frozenset(operators))

    def operand_ranks(self, ranks: Sequence[int]) -> set[int]:
        """Ranks of the pattern variables when the blocks have these `ranks` (in the order of `block_names`)."""
        blocks = dict(zip(self.block_names, ranks, strict=True))
        return {sum(blocks[d.name] if isinstance(d, Star) else 1 for d in s.dims) for s in self.signature.values()}

    @cached_property
    def required_facts(self) -> frozenset[str]:
        """The facts that the rule's conditions require (keys of `ops.facts.FACTS`)."""
        guards = parse_guards(self.when, list(self.signature), self.error)
        return frozenset(g.fact for g in guards if isinstance(g, Claim))

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The float types at which an open dtype is tested, the most informative first."""
        return self.library.requires.dtypes or ("float32",) if self.library else ("float32",)

    @property
    def has_open_dtype(self) -> bool:
        return any(s.dtype is None for s in self.signature.values())

    def instance(
        self, ranks: Sequence[int] = (), dtype: str = "float32", attributes: Mapping[str, Any] | None = None
    ) -> Instance | None:
        """The instance with these block ranks (in the order of `block_names`), float type and attribute values, or None
        if the sides cannot be formed for them. Raises RuleError if the sides disagree in shape or dtype."""
        chosen = dict(attributes or {})
        many_ranks = isinstance(ranks, (tuple, list)) and len(ranks) == len(self.block_names)
        if not many_ranks or not all(type(r) is int and 0 <= r <= RANK for r in ranks):
            accepted = f"{len(self.block_names)} of 0 to {RANK} axes are accepted"
            raise self.error(f"the ranks of its blocks are {short_repr(ranks)}; {accepted}")
        key = (tuple(ranks), dtype, tuple(sorted((k, repr(v)) for k, v in chosen.items())))
        if key not in self._instances:
            self._instances[key] = self._build(dict(zip(self.block_names, ranks, strict=True)), dtype, chosen)
        return self._instances[key]

    def test_at_use(self, passes: Callable[[Instance], bool]) -> None:
        """Makes `usable_instance` return only instances that pass a test."""
        self.__dict__["_passes"] = passes

    def usable_instance(self, ranks: Sequence[int], dtype: str, attributes: Mapping[str, Any]) -> Instance | None:
        """The result of `instance`, for use in a search. After `test_at_use`, an instance of a rule without a library
        is tested first unless it was tested before. Returns None also if the instance cannot be tested. Raises
        RuleError if it is refuted."""
        found = self.instance(ranks, dtype, attributes)
        passes = self.__dict__.get("_passes")
        if found is None or self.library is not None or passes is None:
            return found
        return found if passes(found) else None

    def _build(self, ranks: Mapping[str, int], dtype: str, attributes: Mapping[str, Any]) -> Instance | None:
        params = self._params(ranks, dtype)
        try:
            made = self._call(params, ranks, attributes)
        except (OperatorError, IndexError) as e:
            if not ranks and not attributes and dtype == "float32":
                raise self.error(f"a side cannot be formed: {e}{transpose_hint(str(e))}") from None
            return None
        if made is None:
            return None
        left, right = self.sides(made)
        if attributes and any(a.op == VAR for a in left):
            return None  # the operator is the identity for these values: there is nothing to match
        guards = self._guards(params)
        if (ranks or attributes) and any(_impossible(g, params) for g in guards):
            return None
        asked = tuple(ranks.values()), dtype, tuple(attributes.items())
        instance = Instance(self, params, left, right, guards, *asked)
        self._check(instance, attributes)
        return instance

    def _guards(self, params: Iterable[Expr]) -> tuple[Guard, ...]:
        sizes = {v for p in params for d in p.shape for v in d.variables}.union(map(plain_name, self.sizes))
        return tuple(parse_guards(self.when, [n for n in self.signature if n not in sizes], self.error))

    def problem(self, ranks: Sequence[int], dtype: str, attributes: Mapping[str, Any]) -> str:
        """The reason why the sides cannot be formed at these ranks and attribute values; empty if they can, or if the
        function returns None."""
        blocks = dict(zip(self.block_names, ranks, strict=True))
        try:
            self._call(self._params(blocks, dtype), blocks, attributes)
        except (OperatorError, IndexError) as e:
            return str(e)
        return ""

    def _params(self, ranks: Mapping[str, int], dtype: str) -> tuple[Expr, ...]:
        blocks = tuple(ranks.items())
        return tuple(_pattern(n, s, blocks, dtype) for n, s in self.signature.items())

    def program(
        self, function: RuleFunction, ranks: Mapping[str, int], dtype: str, attributes: Mapping[str, Any]
    ) -> tuple[tuple[Expr, ...], Any]:
        """The pattern variables, and what `function` returns for them. Raises OperatorError or IndexError if `function`
        cannot form its result."""
        params = self._params(ranks, dtype)
        return params, self._call(params, ranks, attributes, function)

    def _call(
        self,
        params: Sequence[Expr],
        ranks: Mapping[str, int],
        attributes: Mapping[str, Any],
        function: RuleFunction | None = None,
    ) -> Any:
        """What the function returns. OperatorError and IndexError pass through: they mean that no such instance
        exists."""
        sizes = {plain_name(n): sizes_named(n, ranks) for n in self.sizes}
        try:
            with strict_sizes(), np.errstate(over="ignore"):  # a number beyond the float type's range becomes infinity
                values = {n: self._value(n, v) for n, v in attributes.items()}
                return (function or self.function)(*params, **sizes, **values)
        except (OperatorError, IndexError, RuleError):
            raise
        except Exception as e:
            raise self.error(raised_message(e, function or self.function)) from e

    def _value(self, variable: str, value: Any) -> Any:
        """What the function gets for a value of an attribute variable."""
        return value if read_source(self.attributes[variable])[1] else operator_function(value)

    def sides(self, made: Any) -> Sides:
        """The left and the right side from the function's return value `made`. Raises RuleError if `made` is not two
        sides."""
        if not isinstance(made, tuple) or len(made) != 2:  # type: ignore[reportUnknownArgumentType]
            raise self.error("a rule returns its two sides: `return left, right`")
        sides: list[tuple[Expr, ...]] = []
        for side in made:  # type: ignore[reportUnknownVariableType]
            values: tuple[Any, ...] = tuple(side) if isinstance(side, (tuple, list)) else (side,)  # type: ignore[reportUnknownArgumentType]
            for v in values:
                if not isinstance(v, Expr):
                    raise self.error(f"a side is {type(v).__name__}, not an expression over the pattern variables")
            sides.append(values)
        if len(sides[0]) != len(sides[1]):
            raise self.error(
                f"the sides differ in how many results they have: left {len(sides[0])}, right {len(sides[1])}"
            )
        left, right = reversed(sides) if self.reverse else sides
        return _as_traced(left), right

    def _check(self, instance: Instance, attributes: Mapping[str, Any]) -> None:
        left, right = postorder(instance.left), postorder(instance.right)
        bound = {e for e in left if e.op == VAR}
        for e in right:
            if e.op == VAR and e not in bound:
                raise self.error(f"variable `{e.attr('name')}` of the right side does not occur on the left")
        bare = [d for e in bound for d in e.shape] + [d for e in left for d in _attribute_sizes(e)]
        sizes = {v for d in bare for v in d.variables if d is Dim.var(v)}
        for p in instance.params:
            if p not in bound:
                raise self.error(f"variable `{p.attr('name')}` of the signature does not occur on the left")
            for d in p.shape:
                for v in sorted(d.variables - sizes):
                    raise self.error(
                        f"size `{v}` occurs only inside the expression {d}: no axis binds it\n"
                        "  accepted: a name for the whole axis, and what it has to be as a condition, such as "
                        'shapes="x: m", when="m % 2 == 0"'
                    )
        for e in right:
            for d in _attribute_sizes(e):
                for v in sorted(d.variables - sizes):
                    raise self.error(f"size `{v}` of the right side is bound by no axis or attribute of the left")
        names = {p.attr("name") for p in instance.params}
        for g in instance.guards:
            on_sizes = isinstance(g, Relation)
            for v in sorted(set(names_of(g)) - (sizes if on_sizes else names)):
                what = "no axis or attribute of the left side binds" if on_sizes else "the signature lacks"
                raise self.error(f"condition {g}: {what} `{v}`")
            if why := _impossible(g, instance.params):
                raise self.error(f"condition {g}: {why}")
        where = f" with {', '.join(f'{n}={v!r}' for n, v in attributes.items())}" if attributes else ""
        for a, b in zip(instance.left, instance.right, strict=True):
            if a.op == VAR:
                raise self.error("the left side is a bare variable: it would match everything")
            if a is b and not attributes and not any(self.block_names):
                raise self.error("both sides are the same expression")
            x, y = a.tensor, b.tensor
            if x.shape != y.shape:
                raise self.error(f"the sides differ in shape{where}: left {x.short}, right {y.short}")
            if x.dtype != y.dtype:
                raise self.error(f"the sides differ in dtype{where}: left {x.dtype}, right {y.dtype}")

    def error(self, text: str) -> RuleError:
        return RuleError(f"{self.where} rule `{self.name}`: {text}")

    def __str__(self) -> str:
        """`name: left  =>  right   when ...` for the first instance."""
        instance = next(iter(instances(self, limit=1)), None)
        if instance is None:
            return f"{self.name}: (no instance can be formed)"
        left, right = (", ".join(map(expression_text, side)) for side in (instance.left, instance.right))
        guard = f"   when {' and '.join(self.when)}" if self.when else ""
        return f"{self.name}: {left}  =>  {right}{guard}"

    def __repr__(self) -> str:
        return f"<rule {self.name}>"


@lru_cache(KEPT)
def _pattern(name: str, spec: Spec, blocks: tuple[tuple[str, int], ...], dtype: str) -> Expr:
    return var(name, pattern_of(name, spec, dict(blocks), dtype))


def _as_traced(left: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The left side with broadcast scalars in the place of `full`, except as a whole side. JAX traces no `full`, and
    `full_is_broadcast` of the default rules rewrites it, so a pattern with it would match nothing."""

    def replaced(e: Expr, args: tuple[Expr, ...]) -> Expr:
        if e.op == "full" and e not in left:
            return node("broadcast_to", args, e.attrs, e.annotation) if e.shape else args[0]
        return node(e.op, args, e.attrs, e.annotation)

    return tuple(rebuild(left, replaced))


def _impossible(g: Guard, params: Iterable[Expr]) -> str:
    """The reason why no value of the guarded pattern variable can have the required fact; empty if one may have it."""
    if not isinstance(g, Claim):
        return ""
    return next((impossible(g.fact, p.tensor) for p in params if p.attr("name") == g.name), "")


def _attribute_sizes(e: Expr) -> Iterator[Dim]:
    for _, value in e.attrs:
        if isinstance(value, tuple):
            yield from (d for d in value if isinstance(d, Dim))  # type: ignore[reportUnknownVariableType]


def check_parameters(rule: Rule) -> None:
    """Raises RuleError unless the function takes the pattern variables by position under their own names, and the size
    and attribute variables by name."""
    parameters = inspect.signature(rule.function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return
    blocks = set(rule.block_names)
    for n in rule.sizes:
        _, tied, block = n.partition(":")
        if tied and (not n.startswith("*") or block not in blocks):
            accepted = ", ".join(f"*{plain_name(n)}:{b}" for b in rule.block_names) or "no block is declared"
            raise rule.error(f"sizes: {n!r} names a block that the rule lacks; accepted: {accepted}")
    further = [*map(plain_name, rule.sizes), *rule.attributes]
    wanted = [*rule.signature, *further]
    named = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    taken = [n for n, p in zip(named, parameters, strict=False) if n in wanted or p.default is p.empty]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        taken += [n for n in further if n not in taken]
    if taken[: len(rule.signature)] != list(rule.signature) or sorted(taken) != sorted(wanted):
        raise rule.error(
            f"its function takes ({', '.join(named)}); shapes=, attrs= and sizes= declare ({', '.join(wanted)})"
        )


def equality_rule(numerics: Numerics) -> Rule:
    """The rule of which an equality of two expressions is an instance."""
    return Rule(
        "equality", lambda: None, {}, {}, numerics, "algebra", (), frozenset(), "", SourceLine.of(equality_rule)
    )


# --- the instances of a rule ---

_MOST_VALUES = 64  # limit: attribute values tried in one group
_MOST_FAILURES = 8  # limit: values without any instance after which a group ends
# given: the most informative ranks come first, because a rule is printed with the first, and a short test covers few.
_OPERAND_RANKS = (2, 1, 3, 0, 4)
_BLOCK_RANKS = (1, 0, 2, 3)  # given: the same order for the ranks of a block


@dataclass(slots=True)
class _Group:
    """The instances with one choice of block ranks, dtype and operand ranks.

    - `blocks`: the block ranks.
    - `dtype`: the float type.
    - `values`: the attribute values that were not tried yet.
    - `tries`: number of values that were tried.
    - `formed`: number of instances that were formed.
    """

    blocks: tuple[int, ...]
    dtype: str
    values: Iterator[dict[str, Any]]
    tries: int = 0
    formed: int = 0

    def next(self, rule: Rule, seen: set[int]) -> tuple[Instance | None, bool]:
        """The next new instance or None, and whether there may be further ones."""
        for attributes in self.values:
            self.tries += 1
            instance = rule.instance(self.blocks, self.dtype, attributes)
            # One value may belong to several operand ranks. An instance with equal sides is useless.
            if instance is not None and id(instance) not in seen and instance.left != instance.right:
                seen.add(id(instance))
                self.formed += 1
                return instance, True
            if not self.formed and self.tries >= _MOST_FAILURES:
                break
        return None, False


def _groups(rule: Rule, ranks: Iterable[int], dtypes: Sequence[str], operators: Mapping[str, str]) -> Iterator[_Group]:
    allowed = set(ranks)
    order = [r for r in _BLOCK_RANKS if r in allowed] + sorted(allowed.difference(_BLOCK_RANKS))
    blocks = sorted(itertools.product(order, repeat=len(rule.block_names)), key=lambda b: sum(map(order.index, b)))
    # Several attribute variables mostly belong to operands of equal rank, so these combinations come first.
    operands = sorted(
        itertools.product(_OPERAND_RANKS, repeat=len(rule.attributes) - len(operators)),
        key=lambda o: (max(o, default=0) - min(o, default=0), sum(map(_OPERAND_RANKS.index, o))),
    )
    sources = [s for n, s in rule.attributes.items() if n not in operators]
    domains = {o: [attribute_values(rule.error, s, r) for s, r in zip(sources, o, strict=True)] for o in operands}
    for o, dtype, b in itertools.product(operands, dtypes, blocks):
        yield _Group(b, dtype, _combinations(rule, domains[o], operators))


def _combinations(rule: Rule, domains: list[Values], operators: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Combinations of attribute values with these `operators`, the first values first; a fixed random sample if there
    are many."""
    size = math.prod(map(len, domains))
    if size <= _MOST_VALUES:
        chosen: Iterable[tuple[Any, ...]] = itertools.product(*domains)
    else:
        rng = random.Random(size)
        chosen = [tuple(d[0] for d in domains)] + [tuple(map(rng.choice, domains)) for _ in range(_MOST_VALUES)]
    for values in chosen:
        left = iter(values)
        yield {n: operators[n] if n in operators else next(left) for n in rule.attributes}


def instances(
    rule: Rule, limit: int | None = None, ranks: Iterable[int] = range(4), dtypes: Sequence[str] | None = None
) -> Iterator[Instance]:
    """Instances of `rule`, at most `limit` for each choice of its operators, the most informative first, in a fixed
    order.

    They are taken in turn from the combinations of block ranks (`ranks`), dtypes (by default `rule.dtypes`; without
    effect on a rule without open dtypes) and operand ranks, so that a few instances cover many kinds. Raises RuleError
    if the sides of an instance disagree in shape or dtype.
    """
    floats = tuple(dtypes or rule.dtypes) if rule.has_open_dtype else ("float32",)
    for source in rule.attributes.values():
        attribute_values(rule.error, source, 0)  # RuleError for a source that is none, before others are formed
    for operators in rule.operator_choices:
        yield from _in_turn(rule, list(_groups(rule, ranks, floats, operators)), limit)


def _in_turn(rule: Rule, live: list[_Group], limit: int | None) -> Iterator[Instance]:
    """At most `limit` instances, taken in turn from groups."""
    seen: set[int] = set()
    while live and (limit is None or len(seen) < limit):
        more: list[_Group] = []
        for group in live:
            instance, go_on = group.next(rule, seen)
            if instance is not None:
                yield instance
                if limit is not None and len(seen) >= limit:
                    return
            if go_on:
                more.append(group)
        live = more


def require_instance(rule: Rule) -> Instance:
    """The first instance. Raises RuleError if the rule has none."""
    found = next(instances(rule, limit=1), None)
    if found is None:
        raise RuleError(f"{rule.where} rule `{rule.name}`: no instance can be formed{_no_instance_reason(rule)}")
    return found


def _no_instance_reason(rule: Rule) -> str:
    """The reason why the first instance cannot be formed, as text."""
    blocks = tuple(1 for _ in rule.block_names)
    attributes = {n: next(iter(attribute_values(rule.error, s, 2)), None) for n, s in rule.attributes.items()}
    problem = rule.problem(blocks, rule.dtypes[0], attributes)
    if problem:
        return f": {problem}"
    if rule.instance(blocks, rule.dtypes[0], attributes) is not None:
        return ": both sides are the same expression"
    if not rule.attributes and not rule.sizes:
        return ": its function returned None; `return left, right` is accepted"
    return ": its function declines every value of its attribute variables"
