"""The options of `optimize`, checked against the traced program."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from relax_eg.argument_checks import BOUNDS, NONE, Kind, need_sizes, of_types, one_of, short_repr
from relax_eg.backend.family import KERNELS, WHOLE, SearchSpec
from relax_eg.backend.lowering.libraries import unavailable_reason
from relax_eg.byte_units import parse_bytes
from relax_eg.driver.clock.at_hand import profile_at_hand
from relax_eg.driver.clock.learning import on_this_machine
from relax_eg.driver.clock.settling import MEASURE
from relax_eg.driver.limits.time_limit import TimeLimit
from relax_eg.dynamic.policy import DYNAMIC_KIND
from relax_eg.egraph import Budget
from relax_eg.errors import BoundsError, OptionError
from relax_eg.extract.costs.cost_model import CostModel, NodeCost
from relax_eg.extract.costs.priced import PricedModules
from relax_eg.extract.costs.sized_device import ASSUMED_SIZE
from relax_eg.extract.profiles.devices import PROFILES, profile
from relax_eg.extract.profiles.profile import AS_USUAL, Mode, Profile
from relax_eg.extract.selection.weights import APPROXIMATE, PREPARABLE, Preparable
from relax_eg.frontends import Source
from relax_eg.frontends.specs import Leaf
from relax_eg.ir.annotations import Annotation
from relax_eg.limits import LARGEST_INT64
from relax_eg.logs import least_gain, sharing_is_on
from relax_eg.ops import Site
from relax_eg.ops.facts import FACTS, facts_named, impossible
from relax_eg.ops.libraries import EXECUTIONS
from relax_eg.ops.library_needs import RoutinePlace, version
from relax_eg.rules import NUMERICS, Numerics, Rule, RuleSet
from relax_eg.rules.book import default as default_rules
from relax_eg.rules.book.recognised import with_recognitions
from relax_eg.rules.checking.certificates import is_shipped, status
from relax_eg.rules.libraries import libraries_of
from relax_eg.rules.schemas import ExtractionStep
from relax_eg.shapes import Dim, Scope
from relax_eg.shapes.relation import Bound, Bounds, split_bounds

Sizes = Mapping[str, int]
Target = str | Path | Profile | CostModel
Facts = Mapping[str | int, str | Sequence[str]]
Execution = Literal["whole", "kernels", "auto"]
AUTO = "auto"

_FAR = 4096  # limit: largest size considered for a variable without an upper bound
_TIMES_LEAST = 64  # limit: the same, as a multiple of the least size
_CORNERED = 3  # limit: varying sizes of a family that get a corner in which they alone are large
_MOST_NAMED = 12  # limit: arguments that an error lists


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `optimize`, checked.

    - `rules`: the rules that may be used and whose routines are available.
    - `profile`: the profile of the device.
    - `bindings`: the sizes to be best at, each with a value for every size variable.
    - `assumed`: whether some of these sizes were assumed.
    - `scope`: bounds and assumptions of the sizes.
    - `weights`: the arguments that are known ahead of the calls.
    - `facts`: facts about parameters, by their names in the module.
    - `numerics`: the classes of rules allowed.
    - `budget`: limits of the search.
    - `sharing`: whether repeated blocks become functions.
    - `measure`: how many programs are timed ahead of the calls.
    - `cost`: the user's cost model; None: the profile prices.
    - `execution`: how the program is executed; "auto": extraction chooses.
    - `family`: whether several programs may be found, each for some of the sizes.
    - `memory_limit`: the bytes that a call may need beside its arguments; None: no limit.
    - `time_limit`: the time that a call may take, for which least memory is looked for; None: no limit.
    - `held`: what a byte costs that a call has in memory: seconds, or shares of the program as written.
    - `libraries`: routines of the given rules: name, version, and why it is not used.
    - `missing`: the rules of those that are not used.
    - `least_gain`: the predicted speedup needed to replace the program as written, where one was set.
    - `own_kernels`: whether one XLA program may contain kernels through Pallas.
    - `as_written`: whether these contain the operators of the program as written only.
    - `priced`: the modules priced last; options made from these share it.
    """

    rules: RuleSet
    profile: Profile
    bindings: tuple[dict[str, int], ...]
    assumed: bool
    scope: Scope
    weights: tuple[str, ...]
    facts: tuple[tuple[str, frozenset[str]], ...]
    numerics: tuple[Numerics, ...]
    budget: Budget
    sharing: bool
    measure: int = 0
    cost: CostModel | None = None
    execution: str = WHOLE
    family: bool = False
    memory_limit: int | None = None
    time_limit: TimeLimit | None = None
    held: float = 0.0
    libraries: tuple[tuple[str, str, str], ...] = ()
    missing: RuleSet = field(default_factory=lambda: RuleSet("missing"))
    least_gain: float | None = None
    own_kernels: bool = False
    as_written: bool = False
    priced: PricedModules = field(default_factory=PricedModules, compare=False, repr=False)

    @property
    def steps(self) -> frozenset[str]:
        """The fusion steps that the rules allow."""
        return frozenset(s.name for s in self.rules.schemas if isinstance(s, ExtractionStep))

    @property
    def corners(self) -> int:
        """The number of corners: one with all sizes of a family at their largest, and one for each of the first few
        alone."""
        return 1 + len(self._varying) if self.family and len(self._varying) > 1 else 1

    def largest_value(self, size: Dim, corner: int = 0) -> int:
        """The value of a size expression at the largest sizes that a program is to be good at. For a family, in corner
        `i` > 0 the `i`-th varying size is at its largest and the others at their least."""
        if not self.family:
            return max(int(size.evaluate({v: b.get(v, ASSUMED_SIZE) for v in size.variables})) for b in self.bindings)
        asked = {v: [b[v] for b in self.bindings if v in b] or [ASSUMED_SIZE] for v in size.variables}
        small = [v for i, v in enumerate(self._varying, 1) if i != corner] if corner else []
        return int(size.evaluate({v: family_range(self.scope, v, sizes)[v not in small] for v, sizes in asked.items()}))

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """The least and the largest value of each size that a family is to be good at."""
        return {v: family_range(self.scope, v, [b[v] for b in self.bindings]) for v in self.bindings[0]}

    @property
    def _varying(self) -> list[str]:
        return [v for v, (low, high) in self.ranges.items() if low < high][:_CORNERED]

    @property
    def preparable(self) -> Preparable:
        """How much may be prepared from weights."""
        return APPROXIMATE if "approximate" in self.numerics else PREPARABLE

    @property
    def bounds_errors(self) -> bool:
        """Whether the chosen program is about as accurate as the one as written, though not the same to the bit."""
        return self.numerics[-1] == "reassociate"

    @property
    def is_exact(self) -> bool:
        """Whether only bit-exact rules are allowed."""
        return self.numerics == ("exact",)

    @property
    def executions(self) -> tuple[str, ...]:
        """The executions among which extraction chooses; the program as written is executed in the first."""
        return EXECUTIONS if self.execution == AUTO else (self.execution,)

    @property
    def has_kernels(self) -> bool:
        """Whether extraction chooses kernels."""
        return self.execution == KERNELS or self.own_kernels

    @property
    def unusable(self) -> frozenset[str]:
        """The routines of the rules that need another execution. With "auto" the rules are those of all executions."""
        needs = {x.name: x.requires.executions or EXECUTIONS for r in self.rules for x in libraries_of(r)}
        return frozenset(name for name, executions in needs.items() if not {*self.executions} & {*executions})

    def searched(self, spec: SearchSpec) -> Options:
        """These options, as a search takes them. Kernels inside one XLA program are proposed for the largest sizes, as
        each binding takes as long again; the program is priced at all."""
        bindings = (max(self.bindings, key=lambda b: math.prod(b.values())),) if spec.own_kernels else self.bindings
        rules = self.rules - spec.without if spec.without else self.rules
        held = self.held if spec.held is None else spec.held
        return replace(
            self,
            rules=rules,
            held=held,
            profile=self.profile.in_mode(self.mode(spec.mode)),
            execution=spec.execution,
            own_kernels=spec.own_kernels,
            as_written=spec.as_written,
            bindings=bindings,
        )

    def mode(self, name: str) -> Mode:
        """The compilation mode of the profile with this name; as usual for any other name."""
        return next((m for m in self.profile.modes if m.name == name), AS_USUAL)


def weight_names(traced: Source, options: Options) -> set[str]:
    """The names of the parameters that are weights."""
    return {leaf.name for leaf in traced.leaves if leaf.argument in options.weights}


_MANY = (list, tuple)

# The kinds of the options that `optimize` shares with `jit`, `why_not`, `view` and others.
KINDS: Mapping[str, Kind] = {
    "rules": of_types("a RuleSet", RuleSet) | NONE,
    "target": Kind(
        lambda x: x is None or isinstance(x, (str, Path, Profile)) or callable(getattr(x, "price", None)),
        f"one of {', '.join(sorted(PROFILES))}, the path of a .json profile, a Profile, or a cost model (an object "
        "with price(site, result, sizes))",
    ),
    "at": Kind(
        lambda x: x is None or all(isinstance(b, Mapping) for b in (x if isinstance(x, _MANY) else [x])),  # type: ignore[reportUnknownVariableType]
        "{'n': 128}, or a list of such,",
    ),
    "bounds": BOUNDS,
    "weights": of_types("a list of argument names or positions", str, *_MANY),
    "numerics": one_of(*NUMERICS),
    "facts": of_types("{'x': 'positive'}", Mapping) | NONE,
    "budget": of_types("a Budget", Budget) | NONE,
    "execution": one_of(*EXECUTIONS, AUTO),
    "measure": MEASURE,
    "dynamic": DYNAMIC_KIND,
}  # fmt: skip


def read_options(
    traced: Source,
    *,
    rules: RuleSet | None = None,
    target: Target | None = None,
    at: Sizes | Sequence[Sizes] | None = None,
    bounds: Bounds | None = None,
    weights: Sequence[str | int] = (),
    facts: Facts | None = None,
    numerics: str = "reassociate",
    budget: Budget | None = None,
    measure: int = 0,
    execution: Any = WHOLE,
    memory_limit: Any = None,
    time_limit: Any = None,
) -> Options:
    """The checked options of `optimize` for a program, which has the statements of `bounds` already. OptionError,
    BoundsError, RuleError."""
    ranges, _ = split_bounds(bounds)
    name, known = traced.name, (*traced.size_variables, *traced.cast_variables)
    if numerics not in NUMERICS:
        raise OptionError(f"numerics={numerics!r}: one of {', '.join(NUMERICS)} is accepted")
    if memory_limit is not None and time_limit is not None:
        raise OptionError("time_limit and memory_limit: one of them is accepted; rx.pareto finds what lies between")
    _check_execution(
        traced,
        execution,
        "memory_limit" if memory_limit is not None else "time_limit" if time_limit is not None else "",
    )
    if execution == AUTO and traced.in_steps:
        execution = WHOLE
    need_sizes(name, "bounds", ranges, known)
    scope = traced.arguments.scope.child()
    for v, bound in ranges.items():
        if any(isinstance(n, int) and n > LARGEST_INT64 for n in (bound if isinstance(bound, _MANY) else [bound])):
            raise BoundsError(f"{name}(): bounds of {v} = {short_repr(bound)}; sizes up to 2**63 - 1 are accepted")
        scope.bound(v, bound)
    for v in traced.cast_variables:  # sizes bound by casts depend on values and may be 0
        scope.declare(v, 0, source="match_cast")
    scope.assume(*traced.assume)
    for v in traced.size_variables:
        low, _ = scope.bounds(v)
        if low is not None and low < 1:
            raise BoundsError(f"{name}(): the lower bound of {v} is {low}; a traced program takes sizes >= 1")
    given: list[Sizes] = [] if at is None else [at] if isinstance(at, Mapping) else list(at)
    assumed = False
    bindings: list[dict[str, int]] = []
    for binding in given or [{}]:
        need_sizes(name, "at", binding, known)
        for v, size in binding.items():
            if not isinstance(size, int) or isinstance(size, bool):
                raise BoundsError(f"{name}(): at {v} = {short_repr(size)}; an integer is accepted")
            if size > LARGEST_INT64:
                raise BoundsError(f"{name}(): at {v} = {short_repr(size)}; sizes up to 2**63 - 1 are accepted")
        scope.check(binding, name)
        left = [v for v in known if v not in binding]
        assumed = assumed or bool(left)
        full = {**binding, **scope.example(left, ASSUMED_SIZE, binding)}
        bindings.append({v: full[v] for v in known})
    if memory_limit is not None or time_limit is not None:
        option = "memory_limit" if memory_limit is not None else "time_limit"
        _check_limit(traced, option, measure, assumed and bool(known))
    device, cost = device_and_cost(target)
    chosen, missing, libraries = _available(
        rules if rules is not None else default_rules,
        RoutinePlace(device.platform, device.name, "" if execution == AUTO else execution),
    )
    allowed = NUMERICS[: NUMERICS.index(numerics) + 1]  # type: ignore[arg-type]
    return Options(
        _trusted(with_recognitions(chosen.allowed(allowed)).allowed(allowed)),
        device,
        tuple(bindings),
        assumed,
        scope,
        _weights(traced, weights),
        _facts(traced, facts or {}),
        allowed,
        budget or Budget(),
        sharing_is_on(),
        measure,
        cost,
        execution,
        memory_limit is None and time_limit is None and _is_family(traced, scope, ranges, len(given), measure),
        None if memory_limit is None else parse_bytes(memory_limit, "memory_limit"),
        None if time_limit is None else TimeLimit.of(time_limit),
        libraries=libraries,
        missing=missing,
        least_gain=least_gain(),
    )


def _is_family(traced: Source, scope: Scope, ranges: Mapping[str, Bound], bindings: int, measure: int) -> bool:
    """Whether several programs may be found: bounds leave a choice of sizes, and no single binding says which to be
    best at. `measure` has variants of its own: those that were the fastest at the bindings that were timed."""
    between = [scope.bounds(v) for v in ranges]
    return any(low != high for low, high in between) and bindings != 1 and not traced.in_steps and not measure


def device_and_cost(target: Target | None) -> tuple[Profile, CostModel | None]:
    """The profile of a target, by default that of the machine at hand; and its cost model, if it is one. A cost model
    may have an attribute `profile`: the profile of its device, or its name."""
    if target is None or isinstance(target, (str, Path, Profile)):
        return profile_at_hand() if target is None else on_this_machine(profile(target)), None
    named: str | Path | Profile | None = getattr(target, "profile", None)
    return profile_at_hand() if named is None else on_this_machine(profile(named)), target


@dataclass(frozen=True)
class _ModelWithoutModes:
    """A cost model for a device without its compilation modes.

    - `model`: the cost model.
    - `profile`: the profile of the device, without modes.
    """

    model: CostModel
    profile: Profile

    def price(self, site: Site, result: Annotation, sizes: Sizes) -> NodeCost:
        return self.model.price(site, result, sizes)


def without_modes(target: Target | None) -> Target:
    """A target for programs whose caller decides how XLA compiles them."""
    device, cost = device_and_cost(target)
    device = replace(device, modes=())
    return device if cost is None else _ModelWithoutModes(cost, device)


def _available(rules: RuleSet, place: RoutinePlace) -> tuple[RuleSet, RuleSet, tuple[tuple[str, str, str], ...]]:
    """`rules` without those for routines that are missing at `place`; the rules of these routines; and for each routine
    its version and why it is missing."""
    known = {x.name: x for r in rules for x in libraries_of(r)}
    why = {name: unavailable_reason(x, place) for name, x in known.items()}
    found = tuple((name, version(x), why[name]) for name, x in known.items())
    if not any(why.values()):
        return rules, RuleSet("missing"), found
    there = [r for r in rules if not any(why[x.name] for x in libraries_of(r))]
    if not any(libraries_of(r) for r in there):  # then the rules that prepare programs for libraries have no use
        there = [r for r in there if r.phase != "library"]
    missing = [
        r
        for r in rules
        # A routine for the other kind of execution is not reported as missing.
        if r.library is not None
        and why[r.library.name]
        and (not place.execution or place.execution in (r.library.requires.executions or EXECUTIONS))
    ]
    return RuleSet(rules.name, there, rules.schemas), RuleSet("missing", missing), found


def _check_execution(traced: Source, execution: Any, limit: str) -> None:
    if execution not in (*EXECUTIONS, AUTO):
        raise OptionError(f"execution={execution!r}: 'whole', 'kernels' or 'auto' is accepted")
    if execution == AUTO and limit:
        raise OptionError(f"execution='auto': with {limit}, 'whole' or 'kernels' is accepted")
    if execution == KERNELS and traced.in_steps:
        raise OptionError(
            f"execution='kernels': {traced.name}() runs in steps; leave execution out: {traced.why_in_steps}"
        )


def _check_limit(traced: Source, option: str, measure: int, assumed: bool) -> None:
    if traced.in_steps:
        raise OptionError(
            f"{option}: {traced.name}() runs in steps, whose memory is not known ahead; leave it out: "
            f"{traced.why_in_steps}"
        )
    if measure:
        raise OptionError(f"{option}: what is timed is not looked at for its memory; leave measure or it out")
    if assumed:
        sizes = ", ".join((*traced.size_variables, *traced.cast_variables))
        raise OptionError(f"{option}: sizes to keep it at are needed: at={{...}} with {sizes}")


def _trusted(rules: RuleSet) -> RuleSet:
    """`rules`, with each rule's verdict read from file or reached now. RuleError for a refuted rule; but a shipped rule
    that lowers to a library is left out with a warning, because its verdict depends on this machine's library."""
    for r in (*rules, *rules.schemas):
        verdict = status(r)
        if verdict.status != "refuted":
            continue
        why = f"is refuted and does not run: {verdict.counterexample or verdict.problem}"
        if not (isinstance(r, Rule) and r.library is not None and is_shipped(r)):
            raise r.error(why)
        warnings.warn(f"{r.where} rule `{r.name}`: {why}", stacklevel=2)
        rules -= r.name
    return rules


def _weights(traced: Source, weights: Sequence[str | int]) -> tuple[str, ...]:
    names = traced.arguments.names
    if weights and traced.in_steps:
        raise OptionError(
            f"weights: {traced.name}() runs in steps, and nothing is prepared for it; leave them out: "
            f"{traced.why_in_steps}"
        )
    found: list[str] = []
    for w in (weights,) if isinstance(weights, str) else weights:
        named = traced.arguments.named(w)
        if not named:
            raise no_weight(traced.name, w, names)
        found += named
    return tuple(n for n in names if n in found)


def no_weight(name: str, given: Any, arguments: Sequence[str]) -> OptionError:
    has = ", ".join(arguments) or "none"
    return OptionError(f"weights: {name} has no argument {short_repr(given)}; its arguments are {has}")


def _facts(traced: Source, declared: Facts) -> tuple[tuple[str, frozenset[str]], ...]:
    """Facts by parameter. A fact declared of an argument holds for every array in it; it may also be declared of one
    array."""
    found: dict[str, frozenset[str]] = {}
    for key, facts in read_facts(declared).items():
        for leaf in _leaves_named(traced, key):
            for fact in facts:
                why = impossible(fact, leaf.annotation)
                if why:
                    raise OptionError(f"facts: {traced.name}: `{leaf.path}` cannot be {FACTS[fact].name}: {why}")
            found[leaf.name] = found.get(leaf.name, frozenset()).union(facts)
    return tuple(sorted(found.items()))


def read_facts(declared: Facts) -> dict[str | int, list[str]]:
    """The keys in `FACTS` of what is declared of each argument. OptionError for a word that is no fact."""
    found: dict[str | int, list[str]] = {}
    for key, facts in declared.items():
        words = (facts,) if isinstance(facts, str) else facts
        if not isinstance(words, Sequence):
            raise OptionError(
                f"facts[{short_repr(key)}] = {short_repr(facts)}: "
                "a fact such as 'positive', or a list of such, is accepted"
            )
        found[key] = [k for w in words for k in facts_named(w)]
    return found


def _leaves_named(traced: Source, key: Any) -> list[Leaf]:
    named = traced.arguments.named(key)
    found = [leaf for leaf in traced.leaves if leaf.argument in named or key in (leaf.path, leaf.name)]
    if not found:
        paths = list(dict.fromkeys([*traced.arg_names, *(leaf.path for leaf in traced.leaves)]))
        raise no_argument(traced.name, key, paths)
    return found


def no_argument(name: str, given: Any, paths: Sequence[str]) -> OptionError:
    has = ", ".join(paths[:_MOST_NAMED]) + (", ..." if len(paths) > _MOST_NAMED else "")
    return OptionError(f"facts: {name} has no argument {short_repr(given)}; it has: {has or 'none'}")


def family_range(scope: Scope, v: str, asked: Sequence[int]) -> tuple[int, int]:
    """The least and the largest size of a variable that a family is to be good at; `asked`: sizes that the user
    named."""
    low, high = scope.bounds(v)
    low = 1 if low is None else low
    return (low, max(_FAR, _TIMES_LEAST * low, *asked)) if high is None else (low, high)


def scope_allows(scope: Scope, point: Sizes) -> bool:
    """Whether sizes satisfy the scope."""
    try:
        scope.check(point, "")
    except BoundsError:
        return False
    return True
