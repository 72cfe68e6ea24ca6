"""Rewrite rules as users write them: a typed function over pattern variables that returns the two sides.

    book = RuleSet("mine")

    @book.rule(shapes="a: m k, b: k n, v: n")
    def matmul_vector_associates(a, b, v):
        \"\"\"(A B) v = A (B v)\"\"\"
        return (a @ b) @ v, a @ (b @ v)

A rule stands for a family of *instances*: one for every rank of its `*b` blocks, every float type, and every value of
its attribute variables. An instance is two programs over the same typed variables. The e-graph and the checker see only
instances.
"""

from __future__ import annotations

import difflib
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from relax_eg.accepted import TEXT, Kind, accepts, many, one_of, shown
from relax_eg.errors import OperatorError, OptionError, RuleError, SpecError, UnknownRuleError
from relax_eg.ir.expr import CONSTANT, VAR, Expr, postorder, var
from relax_eg.limits import KEPT, RANK
from relax_eg.memo import Memo
from relax_eg.ops.facts import impossible
from relax_eg.ops.libraries import FirstRun, Library
from relax_eg.ops.record import strictly
from relax_eg.rules.conditions import Claim, Condition, Guard, names_of, parse_guards
from relax_eg.rules.function_errors import raised
from relax_eg.rules.signature import check_parameters, pattern_of, plain_name, sizes_named, transpose_hint
from relax_eg.shapes import Dim, Spec, Star, parse_signature

if TYPE_CHECKING:
    from relax_eg.rules.schemas import Schema

Numerics = Literal["exact", "reassociate", "approximate"]
NUMERICS: tuple[Numerics, ...] = ("exact", "reassociate", "approximate")
Phase = Literal["simplify", "algebra", "merge", "layout", "library"]
PHASES: tuple[Phase, ...] = ("simplify", "algebra", "merge", "layout", "library")
Sides = tuple[tuple[Expr, ...], tuple[Expr, ...]]
RuleFunction = Callable[..., Any]
_RULES = Kind(lambda x: isinstance(x, RuleSet), "a RuleSet")
_RULES_OR_NAME = Kind(lambda x: isinstance(x, (RuleSet, str)), "a RuleSet, or the name of a rule, tag or class,")
_CLASSES = many(f"a list of {', '.join(map(repr, NUMERICS))}", one_of(*NUMERICS))


@dataclass(frozen=True)
class Instance:
    """An instance of a rule: `left[i]` may be rewritten to `right[i]`, for all i together.

    - `params`: pattern variables, with tensor annotations whose sizes are variables too.
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

    - `signature`: pattern variables and their specs, in order.
    - `attributes`: attribute variables, each with the `operator.attribute` whose values in the program it ranges over.
    - `sizes`: size variables that attributes of the left side bind (slice bounds, for example); `*t` stands for any
      number of them, `*t:b` for as many as block `*b` has axes. The function receives each as a keyword argument, a
      `Dim` or a tuple of `Dim`s.
    - `numerics`: numerics class, see `docs/rules.md`.
    - `phase`: when the rule runs: "simplify" to a fixpoint, "algebra" and "library" for a few rounds, the others once.
    - `library`: the routine that the rule lowers to.
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
    where: str
    reverse: bool = False
    sizes: tuple[str, ...] = ()
    library: Library | None = None
    _instances: Memo[Any, Instance | None] = field(default_factory=lambda: Memo(1 << 12), repr=False)  # for a program

    @cached_property
    def stars(self) -> tuple[str, ...]:
        """Names of the `*b` blocks, in order of appearance."""
        names = [d.name for s in self.signature.values() for d in s.dims if isinstance(d, Star)]
        return tuple(dict.fromkeys(names + [s[1:] for s in self.sizes if s.startswith("*") and ":" not in s]))

    @cached_property
    def left_operators(self) -> frozenset[str]:
        """Names of the operators on the left side of the smallest instance. The rule cannot fire in a program that has
        none of them."""
        from relax_eg.rules.instances import instances

        smallest = next(iter(instances(self, limit=1)), None)
        return frozenset(e.op for e in smallest.left_nodes if e.op != CONSTANT) if smallest is not None else frozenset()

    def know_left_operators(self, operators: Iterable[str]) -> None:
        """Sets `left_operators` from a file, so that no instance has to be formed to compute it."""
        self.__dict__.setdefault("left_operators", frozenset(operators))

    def operand_ranks(self, ranks: Sequence[int]) -> set[int]:
        """Ranks of the pattern variables when the blocks have these `ranks` (in the order of `stars`)."""
        blocks = dict(zip(self.stars, ranks, strict=True))
        return {sum(blocks[d.name] if isinstance(d, Star) else 1 for d in s.dims) for s in self.signature.values()}

    @cached_property
    def facts_asked(self) -> frozenset[str]:
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
        """The instance with these block ranks (in the order of `stars`), float type and attribute values, or None if
        the sides cannot be formed for them. Raises RuleError if the sides disagree in shape or dtype."""
        chosen = dict(attributes or {})
        many_ranks = isinstance(ranks, (tuple, list)) and len(ranks) == len(self.stars)
        if not many_ranks or not all(type(r) is int and 0 <= r <= RANK for r in ranks):
            accepted = f"{len(self.stars)} of 0 to {RANK} axes are accepted"
            raise self.error(f"the ranks of its blocks are {shown(ranks)}; {accepted}")
        key = (tuple(ranks), dtype, tuple(sorted((k, repr(v)) for k, v in chosen.items())))
        if key not in self._instances:
            self._instances[key] = self._build(dict(zip(self.stars, ranks, strict=True)), dtype, chosen)
        return self._instances[key]

    def test_at_use(self) -> None:
        """Makes `usable` test every instance that was not tested before."""
        self.__dict__["_is_tested_at_use"] = True

    def usable(self, ranks: Sequence[int], dtype: str, attributes: Mapping[str, Any]) -> Instance | None:
        """The result of `instance`, for use in a search. After `test_at_use`, an instance of a rule without a library
        is tested first unless it was tested before. Returns None also if the instance cannot be tested. Raises
        RuleError if it is refuted."""
        found = self.instance(ranks, dtype, attributes)
        if found is None or self.library is not None or "_is_tested_at_use" not in self.__dict__:
            return found
        from relax_eg.rules.check import may_be_used

        return found if may_be_used(found) else None

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
        if self.reverse:
            left, right = right, left
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
        blocks = dict(zip(self.stars, ranks, strict=True))
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
            with strictly(), np.errstate(over="ignore"):  # a number beyond the float type's range becomes infinity
                return (function or self.function)(*params, **sizes, **attributes)
        except (OperatorError, IndexError, RuleError):
            raise
        except Exception as e:
            raise self.error(raised(e, function or self.function)) from e

    def sides(self, made: Any) -> Sides:
        """The two sides from the function's return value `made`, in the order returned. Raises RuleError if `made` is
        not two sides."""
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
        return sides[0], sides[1]

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
            on_sizes = isinstance(g, Condition)
            for v in sorted(set(names_of(g)) - (sizes if on_sizes else names)):
                what = "no axis or attribute of the left side binds" if on_sizes else "the signature lacks"
                raise self.error(f"condition {g}: {what} `{v}`")
            if why := _impossible(g, instance.params):
                raise self.error(f"condition {g}: {why}")
        for a, b in zip(instance.left, instance.right, strict=True):
            if a.op == VAR:
                raise self.error("the left side is a bare variable: it would match everything")
            if a is b and not attributes and not any(self.stars):
                raise self.error("both sides are the same expression")
            x, y = a.tensor, b.tensor
            if x.shape != y.shape:
                raise self.error(f"the sides differ in shape: left {x.short}, right {y.short}")
            if x.dtype != y.dtype:
                raise self.error(f"the sides differ in dtype: left {x.dtype}, right {y.dtype}")

    def error(self, text: str) -> RuleError:
        return RuleError(f"{self.where} rule `{self.name}`: {text}")

    def __str__(self) -> str:
        from relax_eg.rules.format import rule_text

        return rule_text(self)

    def __repr__(self) -> str:
        return f"<rule {self.name}>"


@lru_cache(KEPT)
def _pattern(name: str, spec: Spec, blocks: tuple[tuple[str, int], ...], dtype: str) -> Expr:
    return var(name, pattern_of(name, spec, dict(blocks), dtype))


def _impossible(g: Guard, params: Iterable[Expr]) -> str:
    """The reason why no value of the guarded pattern variable can have the required fact; empty if one may have it."""
    if not isinstance(g, Claim):
        return ""
    return next((impossible(g.fact, p.tensor) for p in params if p.attr("name") == g.name), "")


def _attribute_sizes(e: Expr) -> Iterator[Dim]:
    for _, value in e.attrs:
        if isinstance(value, tuple):
            yield from (d for d in value if isinstance(d, Dim))  # type: ignore[reportUnknownVariableType]


class RuleSet:
    """A named, ordered set of rules. `+` combines sets; `-` removes rules by name, tag, numerics class, or another set.
    `set["name"]` is one rule. Iteration gives the rules except the schemas.

    - `schemas`: rules that are about whole nodes and the functions of the module.
    """

    def __init__(self, name: str, rules: Iterable[Rule] = (), schemas: Iterable[Schema] = ()) -> None:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionError(f"RuleSet({shown(name)}): a name is accepted")
        for what, given in (("rules", rules), ("schemas", schemas)):
            if not isinstance(given, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise OptionError(f"RuleSet({name!r}, {what}={shown(given)}): a list of {what} is accepted")
        self.name = name
        found = list(schemas)
        if no_schema := [s for s in found if not hasattr(s, "propose")]:
            raise OptionError(f"RuleSet({name!r}): {shown(no_schema[0])} is no schema")
        self.schemas = tuple(dict.fromkeys(found))
        self._rules: dict[str, Rule] = {}
        for r in rules:
            if not isinstance(r, Rule):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise OptionError(f"RuleSet({name!r}): {shown(r)} is no rule; `@book.rule(...)` makes one")
            known = self._rules.setdefault(r.name, r)
            if known is not r:
                raise r.error(f"another rule of this name, at {known.where}, is in the set `{name}` too")

    def rule(
        self,
        shapes: str,
        *,
        name: str | None = None,
        attrs: Mapping[str, str] | None = None,
        sizes: str = "",
        when: str | Sequence[str] = (),
        numerics: Numerics = "reassociate",
        phase: Phase = "algebra",
        both: bool = False,
        tags: Iterable[str] = (),
        doc: str | None = None,
        check: bool = True,
    ) -> Callable[[RuleFunction], RuleFunction]:
        """Decorator that registers a rule. The rule is tested at once; RuleError names the problem, with file and line.

        - `shapes`: `"a: m k, b: k n, x: *b n"`; a missing dtype means any float type, the same one throughout.
        - `attrs`: attribute variables, `{"p": "permute_dims.axes"}`.
        - `sizes`: further size variables, which attributes of the left side bind: `"begin end"`, or
          `"*begin:b *end:b"` for one per axis of block `*b`.
        - `when`: conditions, such as `"m < n"`.
        - `both`: also registers the other direction, as rule `<name>_reversed`.
        - `check`: False postpones the test to the first use.
        """

        def register(function: RuleFunction) -> RuleFunction:
            code = getattr(function, "__code__", None)
            where = f"{code.co_filename.rsplit('/', 1)[-1]}:{code.co_firstlineno}" if code is not None else "<rule>"
            rule_name = name or function.__name__
            conditions = (when,) if isinstance(when, str) else tuple(when)
            try:
                signature = parse_signature(shapes)
            except SpecError as e:
                raise RuleError(f"{where} rule `{rule_name}`: {e}") from None
            text = doc or inspect.getdoc(function) or ""
            common = (function, signature, dict(attrs or {}), numerics, phase, conditions)
            more = tuple(sizes.split())
            made = [Rule(rule_name, *common, frozenset(tags), text, where, sizes=more)]
            for option, value, accepted in (("numerics", numerics, NUMERICS), ("phase", phase, PHASES)):
                if value not in accepted:
                    raise made[0].error(f"{option}={value!r}: one of {', '.join(accepted)} is accepted")
            check_parameters(made[0])
            if both:
                reversed_name = rule_name + "_reversed"
                made.append(Rule(reversed_name, *common, frozenset(tags), text, where, reverse=True, sizes=more))
            for r in made:
                if r.name in self._rules:
                    raise r.error(f"a rule of this name is already in the set (at {self._rules[r.name].where})")
                if check:
                    from relax_eg.rules.check import require_tested

                    require_tested(r)
            for r in made:
                self._rules[r.name] = r
            return function

        return register

    def library(
        self,
        name: str,
        *,
        shapes: str,
        target: RuleFunction | str,
        requires: str | Sequence[str] = (),
        cost: float | Callable[..., float] | None = None,
        attrs: Mapping[str, str] | None = None,
        sizes: str = "",
        when: str | Sequence[str] = (),
        numerics: Numerics = "reassociate",
        first_run: FirstRun = "check",
        tags: Iterable[str] = (),
        doc: str | None = None,
        check: bool = True,
    ) -> Callable[[RuleFunction], RuleFunction]:
        """Decorator that registers the lowering of a pattern program to a call of library routine `name` (Relax 4.6).
        The function returns the pattern program, or a tuple for several results. From then on the program is the
        meaning of the routine's calls.

        - `target`: a callable on JAX arrays, `"module:name"`, imported when it is first needed, or `"ffi:name"` of a
          `jax.ffi` target. It receives attributes and sizes as keyword arguments.
        - `requires`: `"scipy >= 1.10"`, `"platform: cpu gpu"`, `"device: H100"`, `"dtype: float16 bfloat16"`,
          `"execution: kernels"`. Where a requirement is not met the rule does not run, and the report says so.
        - `cost`: how many times faster the routine is than the predicted time of its pattern as one kernel (1 if None),
          or a function (flops, bytes, profile) to seconds.
        - `first_run`: what happens when the routine's results differ from its pattern's: "check" raises LibraryError,
          "fall back" warns and runs the pattern, "trust" does not compare.
        - Other options: as in `rule`.
        """
        from relax_eg.rules.libraries import library_rule

        def register(function: RuleFunction) -> RuleFunction:
            options = (shapes, target, requires, cost, attrs or {}, sizes, when, numerics, first_run, tags, doc)
            made = library_rule(name, function, *options)
            if made.name in self._rules:
                raise made.error(f"a rule of this name is already in the set (at {self._rules[made.name].where})")
            if check:
                from relax_eg.rules.check import require_tested

                require_tested(made)
            self._rules[made.name] = made
            return function

        return register

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._rules.values())

    def __len__(self) -> int:
        return len(self._rules)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self._rules or any(s.name == name for s in self.schemas))

    def __getitem__(self, name: str) -> Rule:
        said = name if isinstance(name, str) else shown(name)  # type: ignore[reportUnnecessaryIsInstance]
        if said not in self._rules:
            near = difflib.get_close_matches(said, self._rules, 3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise UnknownRuleError(f"no rule `{said}` in set `{self.name}`{hint}")
        return self._rules[said]

    @accepts(RuleError, other=_RULES)
    def __add__(self, other: RuleSet) -> RuleSet:
        return RuleSet(f"{self.name} + {other.name}", itertools.chain(self, other), (*self.schemas, *other.schemas))

    @accepts(RuleError, other=_RULES_OR_NAME)
    def __sub__(self, other: RuleSet | str) -> RuleSet:
        """The set without the rules of `other`: a set, a rule's name, a tag or a numerics class."""
        if isinstance(other, RuleSet):
            return self._where(f"{self.name} - {other.name}", lambda r: r.name not in other)
        return self._where(f"{self.name} - {other}", lambda r: not _is_called(r, other))

    @accepts(RuleError, what=TEXT)
    def only(self, what: str) -> RuleSet:
        """The rules with this name, tag or numerics class."""
        return self._where(what, lambda r: _is_called(r, what))

    @accepts(RuleError, numerics=_CLASSES)
    def allowed(self, numerics: Sequence[Numerics]) -> RuleSet:
        """The rules of these numerics classes."""
        return self._where(self.name, lambda r: r.numerics in numerics)

    def _where(self, name: str, keep: Callable[[Rule | Schema], bool]) -> RuleSet:
        return RuleSet(name, filter(keep, self), filter(keep, self.schemas))

    def __repr__(self) -> str:
        return f"<RuleSet {self.name}: {len(self)} rules>"

    def __str__(self) -> str:
        return "\n".join(map(str, (*self, *self.schemas)))


def _is_called(rule: Rule | Schema, what: str) -> bool:
    """Whether `what` is the rule's name, numerics class or one of its tags."""
    return what in (rule.name, rule.numerics) or what in rule.tags
