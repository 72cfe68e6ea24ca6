"""Programs and values on which a rule about facts is tried: patterns made into expressions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from relax_eg.dtypes import numpy_dtype
from relax_eg.errors import RelaxEgError
from relax_eg.ir import Expr, Tensor, var
from relax_eg.ir.expr import TUPLE_GET, VAR, tuple_get
from relax_eg.ops.facts import FACTS, HELPERS, impossible, violation
from relax_eg.ops.interpret import evaluate_expr
from relax_eg.ops.record import Attribute, call, get
from relax_eg.rules.book.facts import swaps
from relax_eg.rules.checking.samples import adapt_values, integers
from relax_eg.rules.conditions import FactKey, ValueTest, key_of
from relax_eg.rules.facts.fact_rules import ANNOTATION_WORDS, FactRule, tests_of
from relax_eg.rules.facts.propagation import annotation_facts, meaning
from relax_eg.rules.matching import rank_needed, rest_of
from relax_eg.shapes import Dim

Random = np.random.Generator
Array = np.ndarray[Any, Any]

_SHAPES = ((3, 3), (2, 3), (3,), (), (2, 3, 3), (1, 3), (3, 1), (3, 2), (2, 2), (0, 3), (3, 0), (1, 1), (4,), (1,))
_MATRICES = ((3, 3), (2, 3, 3), (2, 2), (3, 3), (0, 0))


def _static(a: Attribute, rank: int, rng: Random) -> Any:
    """A value of an attribute, for an operand of `rank` axes."""
    name = a.name
    if name == "axes":
        return tuple(int(a) for a in rng.permutation(rank))
    choices: dict[str, tuple[Any, ...]] = {
        "axis": tuple(range(max(rank, 1))), "keepdims": (False, True), "reverse": (False, True),
        "y": (2, 3, 1, 0, -1, -2, 4), "k": (0, 1, -1), "mode": ("clip", "fill"), "method": ("to_even", "away"),
        "dtype": ("float32", "float64", "float16", "int32"), "num_keys": (1,), "stable": (True,), "index": (0, 1, 2),
        "full_matrices": (False, True), "groups": (1,),
    }  # fmt: skip
    return choices[name][int(rng.integers(len(choices[name])))] if name in choices else a.default


def _dims(op: str, name: str, operand: Expr | None, rng: Random) -> tuple[int, ...]:
    shape = tuple(d.value for d in operand.shape) if operand is not None else ()
    match op, name:
        case "broadcast_to", _:
            lead = tuple(int(n) for n in rng.integers(1, 3, int(rng.integers(0, 2))))
            return lead + tuple(3 if n == 1 and rng.random() < 0.5 else n for n in shape)
        case "reshape", _:
            return (int(np.prod(shape)),) if rng.random() < 0.5 else shape[::-1]
        case "strided_slice", "begin":
            return (0,) * len(shape)
        case "strided_slice", "end":
            return tuple(max(n - 1, 0) for n in shape)
        case "pad", _:
            return tuple(int(n) for n in rng.integers(0, 2, len(shape)))
        case "split", _:
            return (1, shape[0] - 1)
        case "dynamic_slice", _:
            return tuple(max(n - 1, 0) for n in shape)
        case "iota", _:
            return ((3, 3), (3, 3), (2, 3), (3,), (2, 2))[int(rng.integers(5))]
        case "conv", _:
            return (1,)
        case _:
            return (2,)


def _call(p: Expr, args: tuple[Expr, ...], rng: Random, dtype: str) -> Expr:
    if p.op == TUPLE_GET:
        index = int(rng.integers(3))
        found = tuple_get(args[0], index)
        if rank_needed(p, {"index": index}) is None:
            raise IndexError
        return found
    rank = args[0].ndim if args else 2
    attrs: dict[str, Any] = {}
    for a in get(p.op).attributes:
        if a.kind == "dims":
            attrs[a.name] = tuple(map(Dim.of, _dims(p.op, a.name, args[0] if args else None, rng)))
        elif a.name == "axes" and p.op in ("sum", "mean", "prod", "max", "min", "squeeze", "flip", "expand_dims"):
            attrs["axes"] = (int(rng.integers(max(rank + (p.op == "expand_dims"), 1))),)
        elif a.name in ("strides", "dilation", "input_dilation", "interior"):
            size = rank if p.op != "conv" else rank - 2
            attrs[a.name] = (0 if a.name == "interior" else 1,) * size
        elif a.name == "dtype" and p.op == "iota":
            attrs["dtype"] = "int32"
        elif a.name == "dtype" and dtype == "float64":
            attrs["dtype"] = "float64"
        else:
            attrs[a.name] = _static(a, rank, rng)
    if swaps in tests_of(p):
        attrs["axes"] = (*range(rank - 2), rank - 1, rank - 2)
    made = call(p.op, args, attrs)
    whole = {a.name: attrs[a.name] for a in get(p.op).attributes}
    made_rank = made.ndim if isinstance(made.annotation, Tensor) else 0
    if rank_needed(p, whole) not in (-1, made_rank):
        raise IndexError
    return made


def _built(p: Expr, env: Mapping[str, tuple[Expr, ...]], rng: Random, dtype: str) -> Expr:
    args: list[Expr] = []
    for a in p.args:
        args += env[str(a.attr("name"))] if a.op == VAR else [_built(a, env, rng, dtype)]
    return _call(p, tuple(args), rng, dtype)


@dataclass(frozen=True)
class Example:
    """An expression of a derivation's form, and its variables with the facts each must have."""

    result: Expr
    params: tuple[tuple[Expr, frozenset[FactKey]], ...]


def examples(d: FactRule, dtype: str, rng: Random, count: int) -> Iterator[Example]:
    """Up to `count` expressions to which `d` applies, floats of `dtype`."""
    premises: dict[str, frozenset[FactKey]] = {v: frozenset() for v in d.variables}
    for premise in d.premises:
        premises[premise.name] |= {key_of(premise)}
    extended = [str(x.attr("name")) for e in d.nodes if e.op == "expand_dims" for x in e.args if e is not d.pattern]
    made = 0
    for _ in range(60 * count):
        if made == count:
            return
        params: list[tuple[Expr, frozenset[FactKey]]] = []
        env: dict[str, tuple[Expr, ...]] = {}
        shape = _shape(premises.values(), rng)
        for v, facts in premises.items():
            several = 1 if v != rest_of(d.pattern) else _count(d.pattern, len(shape), rng)
            chosen: list[Expr] = []
            for n in range(several):
                its = () if v in ("z", "starts...") else shape if rng.random() < 0.7 else _shape([facts], rng)
                speaks_of_axes = any(f in FACTS and meaning(f).axes for f in facts)
                if not speaks_of_axes and rng.random() < (0.5 if d.pattern.op == "matmul" else 0.2):
                    its = its[::-1]
                if v in extended and rng.random() < 0.7:
                    its = shape[:-1]
                annotation = Tensor(its, _dtype(d, v, n, facts, dtype, rng))
                chosen.append(var(f"{v}{n}", annotation))
                params.append((chosen[-1], facts))
            env[v] = tuple(chosen)
        try:
            result = _built(d.pattern, env, rng, dtype)
        except (RelaxEgError, IndexError, TypeError, KeyError):
            continue
        if _applies(d, result, params):
            made += 1
            yield Example(result, tuple(params))


def _count(p: Expr, rank: int, rng: Random) -> int:
    """How many operands `rest` stands for."""
    if p.op == "dynamic_slice":
        return rank
    operator = get(p.op)
    return int(rng.integers(1, 3)) if operator.variadic else len(operator.parameters)


def _shape(facts: Any, rng: Random) -> tuple[int, ...]:
    named = [f for given in facts for f in given if f in FACTS or f in HELPERS]
    matrices = any(meaning(f).axes == 2 for f in named)
    choices = _MATRICES if matrices else _SHAPES
    return choices[int(rng.integers(len(choices)))]


def _dtype(d: FactRule, v: str, n: int, facts: frozenset[FactKey], dtype: str, rng: Random) -> str:
    condition = v == d.variables[0] and n == 0
    if "is_bool" in facts or facts & HELPERS.keys() or d.pattern.op.startswith("logical"):
        return "bool"
    if d.pattern.op == "where" and condition:
        return "bool"
    if "is_integer" in facts or v in ("i", "starts...", "z"):
        return "int32"
    return "int32" if not d.floats and rng.random() < 0.2 and dtype != "float64" else dtype


def _applies(d: FactRule, result: Expr, params: list[tuple[Expr, frozenset[FactKey]]]) -> bool:
    words = annotation_facts(result.annotation, lambda size: size.value >= 1)
    if not isinstance(result.annotation, Tensor) or not words & set(ANNOTATION_WORDS):
        return False
    if (d.floats and "is_float" not in words) or (meaning(d.fact).axes == 2 and "is_square" not in words):
        return False
    if d.fact in FACTS and impossible(d.fact, result.tensor):
        return False
    for p, facts in params:
        known = annotation_facts(p.annotation, lambda size: size.value >= 1)
        for f in facts:
            if f in ANNOTATION_WORDS and f not in known:
                return False
            if f in FACTS and impossible(f, p.tensor):
                return False
            if (f in FACTS or f in HELPERS) and meaning(f).axes == 2 and "is_square" not in known:
                return False
            if isinstance(f, ValueTest) and f.op == "==" and p.ndim > 0 and p.dtype == "bool":
                return False
    return True


_SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.1, 3.0, 1e-45, -1e-45, 1e-39, 3e38, -3e38, 1e30)
_NOT_FINITE = (np.nan, np.inf, -np.inf, 0.0)


def value(p: Expr, facts: frozenset[FactKey], special: tuple[float, ...], rng: Random) -> Array:
    """Values of a variable that has `facts`, some of them `special`."""
    shape = tuple(d.value for d in p.shape)
    if p.dtype == "bool":
        return adapt_values(rng.random(shape) < 0.5, facts, (), rng)
    if p.dtype == "int32":
        made = integers("int32", shape, rng, int(rng.integers(4)) if special else 0)
    else:
        with np.errstate(over="ignore"):
            made = rng.standard_normal(shape) * (1 if rng.random() < 0.5 else 3)
            if rng.random() < 0.3:
                made = np.rint(made)
            if special:
                made = np.where(rng.random(shape) < 0.4, rng.choice(special, shape), made)
            made = np.asarray(made).astype(numpy_dtype(p.dtype))
    claims = [f for f in facts if f in FACTS]
    tests = [f for f in facts if isinstance(f, ValueTest)]
    return adapt_values(np.asarray(made), claims, tests, rng)


def counterexample(d: FactRule, rng: Random, count: int = 6, tries: int = 4) -> str | None:
    """A program and values at which `d` is wrong, as text; None where none was found, which says nothing if the
    derivation applies to no program (`examples`)."""
    dtypes = ("float32", "float16") if d.exact else ("float64",)
    for dtype in dtypes:
        for e in examples(d, dtype, rng, count):
            for k in range(tries):
                special = _SPECIAL if d.exact and k > 0 else _NOT_FINITE if d.fact == "finite" and k > 0 else ()
                env = {p: value(p, facts, special, rng) for p, facts in e.params}
                if not _has(env, e):
                    continue
                with np.errstate(all="ignore"):
                    found = np.asarray(evaluate_expr(e.result, env, {}, ordered=d.exact))
                wrong = _violation(d.fact, found, d.exact)
                if wrong:
                    shown = ", ".join(f"{p.attr('name')}={v.tolist()}" for p, v in env.items())
                    return f"{d}: {wrong} at {shown}"
    return None


def _violation(fact: FactKey, found: Array, exact: bool = True) -> str:
    if not exact and found.size and isinstance(fact, str) and meaning(fact).axes == 2:
        # Over the reals: what rounding made of a symmetric matrix is one.
        turned = np.swapaxes(found, -1, -2)
        if np.isfinite(found).all() and np.abs(found - turned).max() <= 1e-11 * np.abs(found).max():
            found = (found + turned) / 2
    if fact in FACTS:
        return violation(fact, found, "it")
    if isinstance(fact, ValueTest):
        return "" if fact.holds(found) else f"not {fact}"
    return "" if meaning(fact).find_failure(found) is None else f"it is no {fact}"


def _has(env: Mapping[Expr, Array], e: Example) -> bool:
    return all(not _violation(f, env[p]) for p, facts in e.params for f in facts if f not in ANNOTATION_WORDS)
