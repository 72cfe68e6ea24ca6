"""Tail recursion on tensors as loops: a function that ends in a call of itself, or in a value, by one condition.

    def f(x):                                   def f(x):
        if done(x):                                 x = while_loop(not done, step, x)
            return value(x)           becomes       return value(x)
        return f(step(x))

Such a function is an XLA program, and its callers may be. Everything else stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import Tensor, is_first_order
from relax_eg.ir.calls import function_ref, reachable_functions, substitute_exprs
from relax_eg.ir.control import group_arguments, while_loop
from relax_eg.ir.expr import CALL, COND, FUNCTION, VAR, Expr, fresh_name, postorder, tuple_, tuple_get
from relax_eg.ir.heads import BEYOND_TENSORS
from relax_eg.ir.module import Function, Module, pure_function
from relax_eg.ir.steps import effect_of, general_functions, is_sized
from relax_eg.logs import log_at
from relax_eg.ops import api as op


def with_loops(module: Module) -> tuple[Module, tuple[str, ...]]:
    """Returns `module` with tail recursion as loops, and the names of the functions in which it was. Its pure bindings
    are in dataflow blocks. Linear in the module's size."""
    general = general_functions(module)
    functions = {f.name: f for f in module}
    taken = set(functions)
    made: dict[str, tuple[Function, ...]] = {}
    for f in module:
        if f.name in general and (new := _looped(f, functions, general, taken)):
            made[f.name] = new
            log_at(1, f"{f.name}: its recursion is a loop")
    if not made:
        return module, ()
    parts = [g for f in module for g in made.get(f.name, (f,))]
    main = next(g for g in parts if g.name == module.main.name)
    needed = {g.name for g in reachable_functions(main.expressions(), {g.name: g for g in parts})} | {main.name}
    return Module(tuple(g for g in parts if g.name in needed)), tuple(made)


@dataclass(frozen=True)
class _Body:
    """The values of a function in terms of its parameters.

    - `values`: the values of its variables; those of its steps are variables.
    - `steps`: its steps, by their variables, on operands in terms of its parameters.
    - `result`: its result.
    """

    values: Mapping[Expr, Expr]
    steps: Mapping[Expr, Expr]
    result: Expr


def _body(f: Function, given: Mapping[Expr, Expr]) -> _Body:
    """The body of `f` for these values of its parameters."""
    env, steps = dict(given), dict[Expr, Expr]()
    for block in f.blocks:
        new = substitute_exprs([b.value for b in block.bindings], env) if block.dataflow else None
        for i, b in enumerate(block.bindings):
            value = new[i] if new is not None else substitute_exprs([b.value], env)[0]
            if block.dataflow or value.op == VAR:
                env[b.var] = value
            else:
                steps[b.var] = value
    return _Body(env, steps, substitute_exprs([f.result], env)[0])


def _looped(
    f: Function, functions: Mapping[str, Function], general: frozenset[str], taken: set[str]
) -> tuple[Function, ...]:
    """`f` as a loop, with the loop's functions; empty where it has another form."""
    if not all(isinstance(p.annotation, Tensor) and is_sized(p.annotation) and p.annotation.dtype for p in f.params):
        return ()  # what a loop carries has the same sizes at every step
    if not is_first_order(f.annotation):
        return ()
    whole = _body(f, {})
    chosen = list(whole.steps.items())
    if len(chosen) != 1 or chosen[0][1].op != COND:
        return ()
    (bound, choice), index = chosen[0], None
    result = whole.result
    for i in range(len(choice.annotation.fields)):  # type: ignore[union-attr]
        if result is tuple_get(bound, i):
            index = i
    parts = group_arguments(COND, choice.args, dict(choice.attrs))
    condition = parts.index
    if index is None or len(parts.functions) != 2 or condition.tensor.dtype != "bool":
        return ()
    ends: list[Expr] = []
    again: list[tuple[int, Sequence[Expr]]] = []
    for place, reference in enumerate(parts.functions):
        branch = functions[reference.attr("name")]
        operands = list(parts.constants)
        if [p.annotation for p in branch.params] != [e.annotation for e in operands]:
            return ()
        if not set(branch.size_variables) <= set(f.size_variables) or branch.cast_variables:
            return ()
        inner = _body(branch, dict(zip(branch.params, operands, strict=True)))
        value = tuple_get(inner.result, index)
        call = inner.steps.get(value)
        if not inner.steps:
            ends.append(value)
        elif len(inner.steps) == 1 and call is not None and _calls(call, f.name):
            again.append((place, call.args[1:]))
        else:
            return ()
    if len(ends) != 1 or len(again) != 1:
        return ()
    place, arguments = again[0]
    values = [condition, ends[0], *arguments]
    if not all(map(_is_pure, postorder(values))) or any(effect_of(e, general) for e in postorder(values)):
        return ()
    try:
        goes_on = condition if place == 1 else op.logical_not(condition)
        continues = pure_function(fresh_name(f"{f.name}_continues", taken), f.params, [goes_on])
        step = pure_function(fresh_name(f"{f.name}_step", taken), f.params, list(arguments), None)
        if len(arguments) == 1:  # a body returns a tuple, even of one value
            (only,) = step.blocks[0].bindings
            step = Function(step.name, step.params, step.blocks, tuple_([only.var]), step.origins)
        loop = while_loop(function_ref(continues), function_ref(step), [], [], list(f.params))
    except OperatorError:  # the sizes or dtypes of a step's arguments are not those of its parameters
        return ()
    last = {p: tuple_get(loop, i) for i, p in enumerate(f.params)}
    (end,) = substitute_exprs([ends[0]], last)
    made = pure_function(f.name, f.params, [end])
    return Function(made.name, made.params, made.blocks, made.result, assume=f.assume), continues, step


def _calls(e: Expr, name: str) -> bool:
    return e.op == CALL and e.args[0].op == FUNCTION and e.args[0].attr("name") == name


def _is_pure(e: Expr) -> bool:
    return e.op not in BEYOND_TENSORS
