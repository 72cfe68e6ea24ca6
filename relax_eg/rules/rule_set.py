"""Sets of rules, and the registration of rules in them."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from relax_eg.argument_checks import (
    FLAG,
    STATEMENTS,
    TEXT,
    Kind,
    accepts,
    did_you_mean,
    one_of,
    sequence_of,
    short_repr,
)
from relax_eg.errors import OptionError, RuleError, SpecError, UnknownRuleError
from relax_eg.ir.origin import SourceLine
from relax_eg.ops.libraries import FirstRun
from relax_eg.rules.checking.check import require_tested
from relax_eg.rules.content import is_of_book
from relax_eg.rules.libraries import library_rule
from relax_eg.rules.rule import PHASES, Phase, Rule, RuleFunction, check_parameters
from relax_eg.rules.schemas import Schema
from relax_eg.rules.signature import NUMERICS, Numerics
from relax_eg.shapes import parse_signature

_RULES = Kind(lambda x: isinstance(x, RuleSet), "a RuleSet")
_RULES_OR_NAME = Kind(lambda x: isinstance(x, (RuleSet, str)), "a RuleSet, or the name of a rule, tag or class,")
_CLASSES = sequence_of(f"a list of {', '.join(map(repr, NUMERICS))}", one_of(*NUMERICS))
_ATTRIBUTES = Kind(
    lambda x: x is None or (isinstance(x, Mapping) and all(isinstance(t, str) for kv in x.items() for t in kv)),  # type: ignore[reportUnknownVariableType]
    "attribute variables with what they range over, such as {'p': 'permute_dims.axes'},",
)
_TAGS = Kind(
    lambda x: not isinstance(x, str) and isinstance(x, Iterable) and all(isinstance(t, str) for t in x),  # type: ignore[reportUnknownVariableType]
    "a tuple of texts, such as ('matmul',),",
)
_SHAPES = Kind(TEXT.fits, "the shapes of the variables, such as @book.rule(shapes='a: m k, b: k n'),")
_OPTIONS = {"shapes": _SHAPES, "attrs": _ATTRIBUTES, "sizes": TEXT, "when": STATEMENTS, "tags": _TAGS, "check": FLAG}


class RuleSet:
    """A named, ordered set of rules. `+` combines sets; `-` removes rules by name, tag, numerics class, or another set.
    `set["name"]` is one rule. Iteration yields the rules except the schemas.

    - `name`: the name of the set.
    - `schemas`: rules about whole nodes and the functions of the module.
    """

    def __init__(self, name: str, rules: Iterable[Rule] = (), schemas: Iterable[Schema] = ()) -> None:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionError(f"RuleSet({short_repr(name)}): a name is accepted")
        for what, given in (("rules", rules), ("schemas", schemas)):
            if not isinstance(given, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise OptionError(f"RuleSet({name!r}, {what}={short_repr(given)}): a list of {what} is accepted")
        self.name = name
        found = list(schemas)
        if no_schema := [s for s in found if not hasattr(s, "propose")]:
            raise OptionError(f"RuleSet({name!r}): {short_repr(no_schema[0])} is no schema")
        self.schemas = tuple(dict.fromkeys(found))
        self._rules: dict[str, Rule] = {}
        for r in rules:
            if not isinstance(r, Rule):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise OptionError(f"RuleSet({name!r}): {short_repr(r)} is no rule; `@book.rule(...)` makes one")
            known = self._rules.setdefault(r.name, r)
            if known is not r:
                raise r.error(f"another rule of this name, at {known.where}, is in the set `{name}` too")

    @accepts(RuleError, **_OPTIONS, both=FLAG)
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
        - `attrs`: attribute variables: for values of an attribute, `{"p": "permute_dims.axes"}`, or for operators,
          `{"f": "add | multiply"}`, `{"f": "unary"}` or `{"f": "binary"}` (`attribute_variables.read_source`).
        - `sizes`: further size variables, which attributes of the left side bind: `"begin end"`, or
          `"*begin:b *end:b"` for one per axis of block `*b`.
        - `when`: conditions, such as `"m < n"`.
        - `both`: also registers the other direction, as rule `<name>_reversed`.
        - `check`: False postpones the test to the first use, as for the rules that ship, whose verdicts are on file.
        """

        def register(function: RuleFunction) -> RuleFunction:
            where = SourceLine.of(function)
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
            self._add(made, check and not is_of_book(function))
            return function

        return register

    def _add(self, made: Sequence[Rule], check: bool) -> None:
        """Adds all of some rules, or none. RuleError for a name that is in the set, and, with `check`, for a rule that
        is refuted."""
        for r in made:
            if r.name in self._rules:
                raise r.error(f"a rule of this name is already in the set (at {self._rules[r.name].where})")
            if check:
                require_tested(r)
        self._rules.update({r.name: r for r in made})

    @accepts(RuleError, **_OPTIONS)
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

        def register(function: RuleFunction) -> RuleFunction:
            options = (shapes, target, requires, cost, attrs or {}, sizes, when, numerics, first_run, tags, doc)
            self._add([library_rule(name, function, *options)], check and not is_of_book(function))
            return function

        return register

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._rules.values())

    def __len__(self) -> int:
        return len(self._rules)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self._rules or any(s.name == name for s in self.schemas))

    def __getitem__(self, name: str) -> Rule:
        key = name if isinstance(name, str) else short_repr(name)  # type: ignore[reportUnnecessaryIsInstance]
        if key not in self._rules:
            raise self._unknown("rule", key, self._rules)
        return self._rules[key]

    def _unknown(self, kind: str, name: str, names: Iterable[str]) -> UnknownRuleError:
        return UnknownRuleError(f"no {kind} `{name}` in set `{self.name}`{did_you_mean(name, names)}")

    @accepts(RuleError, other=_RULES)
    def __add__(self, other: RuleSet) -> RuleSet:
        return RuleSet(f"{self.name} + {other.name}", itertools.chain(self, other), (*self.schemas, *other.schemas))

    @accepts(RuleError, other=_RULES_OR_NAME)
    def __sub__(self, other: RuleSet | str) -> RuleSet:
        """The set without the rules of `other`: a set, a rule's name, a tag or a numerics class. UnknownRuleError for a
        name that no rule of the set has."""
        if isinstance(other, RuleSet):
            return self._where(f"{self.name} - {other.name}", lambda r: r.name not in other)
        self._need_label(other)
        return self._where(f"{self.name} - {other}", lambda r: not _has_label(r, other))

    @accepts(RuleError, what=TEXT)
    def only(self, what: str) -> RuleSet:
        """The rules with this name, tag or numerics class. UnknownRuleError if there are none."""
        self._need_label(what)
        return self._where(what, lambda r: _has_label(r, what))

    def _need_label(self, what: str) -> None:
        every = (*self, *self.schemas)
        if not any(_has_label(r, what) for r in every) and what not in NUMERICS:
            raise self._unknown("rule, tag or numerics class", what, {x for r in every for x in (r.name, *r.tags)})

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


def _has_label(rule: Rule | Schema, what: str) -> bool:
    """Whether `what` is the rule's name, numerics class or one of its tags."""
    return what in (rule.name, rule.numerics) or what in rule.tags
