"""Mechanical mutants of rules: one node of the right side is changed, as by a typing error."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from relax_eg.errors import RelaxEgError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import CONSTANT, TUPLE, TUPLE_GET, VAR, Expr, const, constant_value, postorder, rebuild, tuple_get
from relax_eg.ir.expr import tuple_ as make_tuple
from relax_eg.ops.record import call
from relax_eg.rules.rule import Rule, instances
from relax_eg.shapes import Dim

_OTHER = {
    "add": ("subtract", "multiply"), "subtract": ("add",), "multiply": ("add",), "divide": ("multiply",),
    "maximum": ("minimum", "add"), "minimum": ("maximum",), "sum": ("max", "mean"), "max": ("min", "sum"),
    "equal": ("less_equal", "not_equal", "less"),
}  # fmt: skip

Change = Callable[[Expr, tuple[Expr, ...], tuple[Expr, ...]], Expr]


def _called(e: Expr, args: tuple[Expr, ...], op: str = "", **attrs: Any) -> Expr:
    return call(op or e.op, args, dict(e.attrs) | attrs)


def _swap(i: int, j: int) -> Change:
    def change(e: Expr, args: tuple[Expr, ...], params: tuple[Expr, ...]) -> Expr:
        moved = list(args)
        moved[i], moved[j] = moved[j], moved[i]
        return _called(e, tuple(moved))

    return change


def _operand(i: int) -> Change:
    return lambda e, args, params: args[i]


def _negate(e: Expr, args: tuple[Expr, ...], params: tuple[Expr, ...]) -> Expr:
    return call("negative", (_called(e, args),), {})


def _transposed(i: int) -> Change:
    def change(e: Expr, args: tuple[Expr, ...], params: tuple[Expr, ...]) -> Expr:
        moved = list(args)
        moved[i] = moved[i].T
        return _called(e, tuple(moved))

    return change


def _renamed(op: str) -> Change:
    def change(e: Expr, args: tuple[Expr, ...], params: tuple[Expr, ...]) -> Expr:
        kept = dict(e.attrs)
        return call(op, args, kept)

    return change


def _attribute(name: str, value: Callable[[Any, Expr], Any]) -> Change:
    def change(e: Expr, args: tuple[Expr, ...], params: tuple[Expr, ...]) -> Expr:
        made = value(e.attr(name), e)
        if made == e.attr(name):
            raise IndexError
        return _called(e, args, **{name: made})

    return change


def _other_variable(i: int, n: int) -> Change:
    def change(e: Expr, args: tuple[Expr, ...], params: tuple[Expr, ...]) -> Expr:
        moved = list(args)
        if moved[i].op != VAR:
            raise IndexError
        others = [p for p in params if p is not moved[i] and p.annotation == moved[i].annotation]
        moved[i] = others[n]
        return _called(e, tuple(moved))

    return change


def _another_constant(step: float) -> Change:
    def change(e: Expr, args: tuple[Expr, ...], params: tuple[Expr, ...]) -> Expr:
        value = constant_value(e)
        return const(np.asarray(value + np.asarray(step).astype(value.dtype)).astype(value.dtype))

    return change


def _turned(value: Any, e: Expr) -> Any:
    return value[1:] + value[:1]


def _shifted(by: int) -> Callable[[Any, Expr], Any]:
    return lambda value, e: tuple(v + by if (isinstance(v, Dim) and not v.is_const) or v != 0 else v for v in value)


def _changes(e: Expr) -> Iterator[tuple[str, Change]]:
    if e.op == CONSTANT:
        yield "constant+1", _another_constant(1.0)
        yield "constant-2", _another_constant(-2.0)
        return
    if e.op in (VAR, TUPLE, TUPLE_GET):
        return
    for i in range(len(e.args)):
        for j in range(i + 1, len(e.args)):
            yield f"swap{i}{j}", _swap(i, j)
        yield f"only{i}", _operand(i)
        yield f"T{i}", _transposed(i)
        for n in range(2):
            yield f"variable{i}{n}", _other_variable(i, n)
    yield "negate", _negate
    for other in _OTHER.get(e.op, ()):
        yield other, _renamed(other)
    names = [n for n, _ in e.attrs]
    if "axes" in names:
        yield "turn", _attribute("axes", _turned)
        yield "axes0", _attribute("axes", lambda v, x: (0,))
        yield "axes1", _attribute("axes", lambda v, x: (1,))
    if "axis" in names:
        yield "axis0", _attribute("axis", lambda v, x: 0)
        yield "axis1", _attribute("axis", lambda v, x: 1)
    if "mode" in names:
        yield "clip", _attribute("mode", lambda v, x: "clip")
        yield "promise", _attribute("mode", lambda v, x: "promise")
    for name in ("begin", "end"):
        if name in names:
            yield f"{name}+1", _attribute(name, _shifted(1))
            yield f"{name}-1", _attribute(name, _shifted(-1))
            yield f"{name}-turned", _attribute(name, _turned)
    if "dim" in names:
        yield "dim+1", _attribute("dim", lambda v, x: (v[0] + 1,))


def _changed(results: tuple[Expr, ...], at: int, how: Change, params: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """`results` with the node number `at` of their walk changed."""
    target = list(postorder(results))[at]

    def replace(e: Expr, args: tuple[Expr, ...]) -> Expr:
        if e is target:
            return how(e, args, params)
        if e.op in (VAR, CONSTANT):
            return e
        if e.op == TUPLE:
            return make_tuple(args)
        if e.op == TUPLE_GET:
            return tuple_get(args[0], e.attr("index"))
        return _called(e, args)

    return tuple(rebuild(results, replace))


def mutant(rule: Rule, at: int, label: str) -> Rule:
    """`rule` with node `at` of every instance's right side changed as `label` says; no instance where it cannot."""

    def function(*params: Expr, **options: Any) -> Any:
        made = rule.function(*params, **options)
        if made is None:
            return None
        left, right = (s if isinstance(s, tuple) else (s,) for s in made)
        if rule.reverse:
            left, right = right, left
        target = list(postorder(right))[at]
        how = dict(_changes(target)).get(label)
        if how is None:  # of an instance for another operator
            return None
        try:
            changed = _changed(right, at, how, params)
        except (RelaxEgError, TypeError, KeyError, ValueError, IndexError):
            return None
        same = all(
            isinstance(b.annotation, Tensor) and a.shape == b.shape and a.dtype == b.dtype
            for a, b in zip(left, changed, strict=True)
        )
        return (left, changed) if same and changed != right and changed != left else None

    return dataclasses.replace(rule, name=f"{rule.name}/{at}/{label}", function=function, reverse=False, _instances={})


def turned(rule: Rule) -> Rule:
    """`rule` with its sides exchanged, so that mutants change the other one."""

    def function(*params: Expr, **options: Any) -> Any:
        made = rule.function(*params, **options)
        return made if made is None or rule.reverse else (made[1], made[0])

    return dataclasses.replace(rule, name=f"{rule.name}/turned", function=function, reverse=False, _instances={})


def mutants(rule: Rule) -> Iterator[Rule]:
    """Every mutant of `rule` that has an instance; none of a rule that has none, as a turned one may."""
    try:
        first = next(instances(rule, limit=1), None)
    except RelaxEgError:
        return
    if first is None:
        return
    for at, e in enumerate(postorder(first.right)):
        for label, _ in _changes(e):
            made = mutant(rule, at, label)
            try:
                if next(instances(made, limit=1), None) is not None:
                    yield made
            except (RelaxEgError, IndexError, KeyError):
                continue
