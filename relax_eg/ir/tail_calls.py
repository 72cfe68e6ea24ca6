"""Functions that end in one call of themselves, or in a value, by one condition.

def f(x):
    if done(x):
        return value(x)
    return f(step(x))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relax_eg.ir.calls import substitute_exprs
from relax_eg.ir.control import group_arguments
from relax_eg.ir.expr import CALL, COND, FUNCTION, VAR, Expr, postorder, tuple_get
from relax_eg.ir.heads import BEYOND_TENSORS
from relax_eg.ir.module import Function
from relax_eg.ir.steps import effect_of


@dataclass(frozen=True)
class TailCall:
    """The parts of such a function, in terms of its parameters.

    - `condition`: a bool.
    - `goes_on`: whether it calls itself where `condition` is true; otherwise where it is false.
    - `arguments`: the arguments of that call.
    - `end`: its result if it does not call itself; None where that takes steps.
    """

    condition: Expr
    goes_on: bool
    arguments: Sequence[Expr]
    end: Expr | None


@dataclass(frozen=True)
class _Body:
    """The values of a function in terms of its parameters.

    - `steps`: its steps, by their variables, on operands in terms of its parameters.
    - `result`: its result.
    """

    steps: Mapping[Expr, Expr]
    result: Expr


def _body(f: Function, given: Mapping[Expr, Expr]) -> _Body:
    """The body of `f` for these values of its parameters."""
    env, steps = dict(given), dict[Expr, Expr]()
    for block in f.blocks:
        new = substitute_exprs(block.values, env) if block.dataflow else None
        for i, b in enumerate(block.bindings):
            value = new[i] if new is not None else substitute_exprs([b.value], env)[0]
            if block.dataflow or value.op == VAR:
                env[b.var] = value
            else:
                steps[b.var] = value
    return _Body(steps, substitute_exprs([f.result], env)[0])


def tail_call_of(f: Function, functions: Mapping[str, Function], general: frozenset[str]) -> TailCall | None:
    """Returns the parts of `f`, or None where it has another form. What decides and what is passed on is pure.

    `general`: the functions that recur or have values beyond tensors.
    """

    def is_pure(roots: Sequence[Expr]) -> bool:
        return not any(e.op in BEYOND_TENSORS or effect_of(e, general) for e in postorder(roots))

    whole = _body(f, {})
    chosen = list(whole.steps.items())
    if len(chosen) != 1 or chosen[0][1].op != COND:
        return None
    (bound, choice), index = chosen[0], None
    for i in range(len(choice.annotation.fields)):  # type: ignore[union-attr]
        if whole.result is tuple_get(bound, i):
            index = i
    parts = group_arguments(COND, choice.args, dict(choice.attrs))
    if index is None or len(parts.functions) != 2 or parts.index.tensor.dtype != "bool":
        return None
    ends: list[Expr | None] = []
    again: list[tuple[int, Sequence[Expr]]] = []
    for place, reference in enumerate(parts.functions):
        branch, operands = functions[reference.attr("name")], list(parts.constants)
        if [p.annotation for p in branch.params] != [e.annotation for e in operands]:
            return None
        if not set(branch.size_variables) <= set(f.size_variables):
            return None
        inner = _body(branch, dict(zip(branch.params, operands, strict=True)))
        value = tuple_get(inner.result, index)
        call = inner.steps.get(value)
        if len(inner.steps) == 1 and call is not None and _calls(call, f.name):
            again.append((place, call.args[1:]))
        else:
            is_plain = not inner.steps and not branch.cast_variables and is_pure([value])
            ends.append(value if is_plain else None)
    if len(ends) != 1 or len(again) != 1:
        return None
    place, arguments = again[0]
    return TailCall(parts.index, place == 1, arguments, ends[0]) if is_pure([parts.index, *arguments]) else None


def _calls(e: Expr, name: str) -> bool:
    return e.op == CALL and e.args[0].op == FUNCTION and e.args[0].attr("name") == name
