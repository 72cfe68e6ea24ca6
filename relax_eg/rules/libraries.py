"""Rules that lower a program to a library call, and the registration of their routines (`ops.libraries`)."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from relax_eg.dtypes import FLOATS
from relax_eg.errors import LibraryError, OperatorError, RuleError, SpecError
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ir.expr import VAR, Expr, postorder, tuple_get
from relax_eg.ir.origin import SourceLine
from relax_eg.ops.libraries import (
    EXECUTIONS,
    FFI,
    FIRST_RUN,
    LIBRARIES,
    PLATFORMS,
    Definition,
    FirstRun,
    Library,
    Requirements,
    library_call,
    register_library,
)
from relax_eg.rules.checking.samples import admits_limited, draw_under_guards, moderate
from relax_eg.rules.rule import Rule, RuleFunction, check_parameters
from relax_eg.rules.signature import NUMERICS, Numerics, plain_name
from relax_eg.shapes import Star, parse_signature

_MOST_ELEMENTS = 1 << 18  # limit: elements of an operand in the sample that checks a routine at its first run
_ACCEPTED = (
    '"name" or "name >= version" of a package, "platform: cpu gpu", "device: H100", "dtype: float16 bfloat16", '
    '"execution: kernels"'
)


def library_rule(
    name: str,
    function: RuleFunction,
    shapes: str,
    target: Callable[..., Any] | str,
    requires: str | Sequence[str],
    cost: float | Callable[..., float] | None,
    attrs: Mapping[str, str],
    sizes: str,
    when: str | Sequence[str],
    numerics: Numerics,
    first_run: FirstRun,
    tags: Iterable[str],
    doc: str | None,
) -> Rule:
    """Registers routine `name`, and returns the rule that lowers the program of `function` to its calls. Raises
    RuleError if an argument is not accepted."""
    where = SourceLine.of(function)

    def wrong(text: str) -> RuleError:
        return RuleError(f"{where} library `{name}`: {text}")

    if not name or any(c.isspace() or c in "\"'\\" for c in name) or name.startswith("jax."):
        raise wrong("its name cannot be that of a library; text without spaces or quotes is accepted, `jax.` is taken")
    for option, value, accepted in (("numerics", numerics, NUMERICS), ("first_run", first_run, FIRST_RUN)):
        if value not in accepted:
            raise wrong(f"{option}={value!r}: one of {', '.join(accepted)} is accepted")
    _check_target(target, wrong)
    _check_cost(cost, wrong)
    try:
        signature = parse_signature(shapes)
    except SpecError as e:
        raise wrong(str(e)) from None
    texts = (requires,) if isinstance(requires, str) else tuple(requires)
    declared = tuple(sizes.split())
    form = _PatternDefinition(function)
    library = Library(
        name, target, requirements(texts, wrong), cost, first_run, tuple(attrs),
        tuple((plain_name(n), not n.startswith("*")) for n in declared), function, where,
        form, form.sample, form.operators,
    )  # fmt: skip
    conditions = (when,) if isinstance(when, str) else tuple(when)
    sides = _rewrite(function, library, [s.dtype is None for s in signature.values()])
    rule = Rule(
        function.__name__, sides, signature, dict(attrs), numerics, "library", conditions,
        frozenset((*tags, "library")), doc or inspect.getdoc(function) or "", where, sizes=declared, library=library,
    )  # fmt: skip
    form.rule = rule
    check_parameters(rule)
    try:
        register_library(library)
    except LibraryError as e:
        raise RuleError(str(e)) from None
    return rule


def _rewrite(function: RuleFunction, library: Library, is_open: Sequence[bool]) -> RuleFunction:
    """The rule function that returns both sides: the result of the pattern function, and the call. `is_open`: for each
    variable, whether its dtype is any float type."""

    @functools.wraps(function)
    def sides(*params: Expr, **given: Any) -> Any:
        accepted = library.requires.dtypes
        if accepted and any(o and p.dtype not in accepted for o, p in zip(is_open, params, strict=True)):
            return None
        made = function(*params, **given)
        if made is None:
            return None
        _require_all_bound(made, params, library)
        call = library_call(library, params, given)
        if not isinstance(made, (tuple, list)):
            return made, call
        return tuple(made), tuple(tuple_get(call, i) for i in range(len(made)))  # type: ignore[reportUnknownArgumentType]

    return sides


def _require_all_bound(made: Any, params: Sequence[Expr], library: Library) -> None:
    results: list[Any] = list(made) if isinstance(made, (tuple, list)) else [made]
    for r in results:
        if not isinstance(r, Expr):
            raise RuleError(
                f"{library.where} library `{library.name}`: its pattern returned {r!r}; the program that the routine "
                "computes, of the operators of rx.op, is accepted"
            )
    bound = {e for e in postorder(results) if e.op == VAR}
    for p in params:
        if p not in bound:
            raise RuleError(
                f"{library.where} library `{library.name}`: variable `{p.attr('name')}` does not occur in its pattern, "
                "so that no program says what it is; leave it out of shapes=, or use it"
            )


class _PatternDefinition:
    """Makes the definition of a routine for annotated operands from its pattern function.

    - `function`: the pattern function.
    - `rule`: the rule that lowers the pattern to the routine's calls; set when it is made.
    """

    def __init__(self, function: RuleFunction) -> None:
        self.function = function
        self.rule: Rule | None = None

    def __call__(self, operands: tuple[Annotation, ...], attrs: Mapping[str, Any]) -> Definition:
        rule = self.rule
        assert rule is not None and rule.library is not None
        who = f"library `{rule.library.name}`"
        if len(operands) != len(rule.signature):
            raise OperatorError(f"{who} takes {len(rule.signature)} operands ({', '.join(rule.signature)}), "
                                f"got {len(operands)}")  # fmt: skip
        ranks, dtype = self._ranks(operands, attrs), "float32"
        for (name, spec), a in zip(rule.signature.items(), operands, strict=True):
            if not isinstance(a, Tensor) or a.dtype is None or a.ndim is None:
                raise OperatorError(f"{who}: operand `{name}` is {a}; a tensor of known rank and dtype is needed")
            if spec.dtype is None:
                dtype = a.dtype
                break
        if dtype in FLOATS and rule.library.requires.dtypes and dtype not in rule.library.requires.dtypes:
            raise OperatorError(f"{who} takes {', '.join(rule.library.requires.dtypes)}, got {dtype}")
        static = {k: attrs[k] for k in rule.attributes if k in attrs}
        params, made = rule.program(self.function, ranks, dtype, static)
        for p, a in zip(params, operands, strict=True):
            if isinstance(a, Tensor) and (a.ndim, a.dtype) != (p.ndim, p.dtype):
                raise OperatorError(f"{who}: operand `{p.attr('name')}` should be {p.tensor.short}, got {a.short}")
        many = isinstance(made, (tuple, list))
        results: tuple[Expr, ...] = tuple(made) if many else (made,)
        asked = (tuple(ranks.values()), dtype, static)
        return Definition(params, results, many, functools.partial(rule.instance, *asked))

    def operators(self) -> frozenset[str]:
        """The names of the operators in the pattern."""
        return self.rule.left_operators if self.rule is not None else frozenset()

    def _ranks(self, operands: Sequence[Annotation], attrs: Mapping[str, Any]) -> dict[str, int]:
        """The number of axes of each block, from the ranks of the operands and the attributes."""
        rule = self.rule
        assert rule is not None
        declared_ranks = {plain_name(n): len(attrs[plain_name(n)]) for n in rule.sizes if n.startswith("*")}
        fixed: list[tuple[list[str], int]] = []
        for spec, a in zip(rule.signature.values(), operands, strict=True):
            stars = [d.name for d in spec.dims if isinstance(d, Star)]
            ndim = a.ndim if isinstance(a, Tensor) else None
            fixed.append((stars, (ndim if ndim is not None else 0) - len(spec.dims) + len(stars)))
        most = max([n for _, n in fixed if n >= 0] + list(declared_ranks.values()), default=0)
        for ranks in itertools.product(range(most + 1), repeat=len(rule.block_names)):
            found = dict(zip(rule.block_names, ranks, strict=True))
            if all(sum(found[s] for s in stars) == n for stars, n in fixed) and all(
                found.get(k, v) == v for k, v in declared_ranks.items()
            ):
                return found
        shown = ", ".join(map(str, operands))
        raise OperatorError(f"library `{rule.library.name if rule.library else rule.name}` takes no operands {shown}")

    def sample(
        self, definition: Definition, sizes: Mapping[str, int]
    ) -> tuple[dict[str, int], dict[str, np.ndarray[Any, Any]]] | None:
        instance = definition.instance()
        if instance is None:
            return None
        for most in (None, 256, 64, 16, 8, 4, 2, 1):
            # The sizes are powers of two, because conditions mostly require multiples of a smaller power of two.
            tried = {v: n if most is None else min(n, most) for v, n in sizes.items()}
            if admits_limited(instance, tried, _MOST_ELEMENTS):
                return tried, draw_under_guards(moderate)(instance, tried, np.random.default_rng(0), 1)
        return None


def requirements(texts: Sequence[str], wrong: Callable[[str], RuleError]) -> Requirements:
    """The requirements in the texts of `requires=`. Raises RuleError, made by `wrong`, for a text that cannot be
    parsed."""
    from packaging.requirements import InvalidRequirement, Requirement

    found: dict[str, tuple[str, ...]] = {}
    packages: list[str] = []
    known = {
        "platform": ("platforms", PLATFORMS),
        "device": ("devices", ()),
        "dtype": ("dtypes", FLOATS),
        "execution": ("executions", EXECUTIONS),
    }
    for text in texts:
        word, colon, rest = text.partition(":")
        if not colon:
            try:
                Requirement(text)
            except InvalidRequirement:
                raise wrong(f"requires {text!r} cannot be read; accepted: {_ACCEPTED}") from None
            packages.append(text)
            continue
        if word.strip() not in known or not rest.split():
            raise wrong(f"requires {text!r} cannot be read; accepted: {_ACCEPTED}")
        kind, accepted = known[word.strip()]
        for value in rest.split():
            if accepted and value not in accepted:
                raise wrong(f"requires {text!r}: {value!r} is none of {', '.join(accepted)}")
        found[kind] = found.get(kind, ()) + tuple(rest.split())
    return Requirements(tuple(packages), **found)


def _check_target(target: Any, wrong: Callable[[str], RuleError]) -> None:
    accepted = 'a callable on JAX arrays, "module:name", or "ffi:name" of a jax.ffi target is accepted'
    if isinstance(target, str):
        module, colon, path = target.partition(":")
        names = [] if target.startswith(FFI) else [*module.split("."), *path.split(".")]
        if not colon or not path or not all(n.isidentifier() for n in names):
            raise wrong(f"target={target!r}: {accepted}")
    elif not callable(target):
        raise wrong(f"target={target!r}: {accepted}")


def _check_cost(cost: Any, wrong: Callable[[str], RuleError]) -> None:
    if cost is None or callable(cost):
        return
    if isinstance(cost, bool) or not isinstance(cost, (int, float)) or not (cost > 0 and math.isfinite(cost)):
        raise wrong(
            f"cost={cost!r}: how many times faster it is than its pattern as one kernel, a finite number above 0, or a "
            "function (flops, bytes, profile) to seconds is accepted"
        )


def libraries_of(rule: Rule) -> tuple[Library, ...]:
    """The routines that a rule uses: the one it lowers to, or, in phase "library", those that its tags name."""
    if rule.library is not None:
        return (rule.library,)
    return tuple(LIBRARIES[t] for t in sorted(rule.tags) if t in LIBRARIES) if rule.phase == "library" else ()
