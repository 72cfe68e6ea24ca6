"""Tail recursion on tensors as loops: a function that ends in a call of itself, or in a value, by one condition.

    def f(x):                                   def f(x):
        if done(x):                                 x = while_loop(not done, step, x)
            return value(x)           becomes       return value(x)
        return f(step(x))

Such a function is an XLA program, and its callers may be. Everything else stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import Tensor, is_first_order
from relax_eg.ir.calls import function_ref, reachable_functions, substitute_exprs
from relax_eg.ir.control import while_loop
from relax_eg.ir.expr import fresh_name, tuple_, tuple_get
from relax_eg.ir.module import Function, Module, pure_function
from relax_eg.ir.steps import general_functions, is_sized
from relax_eg.ir.tail_calls import tail_call_of
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


def _looped(
    f: Function, functions: Mapping[str, Function], general: frozenset[str], taken: set[str]
) -> tuple[Function, ...]:
    """`f` as a loop, with the loop's functions; empty where it has another form."""
    if not all(isinstance(p.annotation, Tensor) and is_sized(p.annotation) and p.annotation.dtype for p in f.params):
        return ()  # what a loop carries has the same sizes at every step
    if not is_first_order(f.annotation):
        return ()
    found = tail_call_of(f, functions, general)
    if found is None or found.end is None:
        return ()
    condition, arguments = found.condition, found.arguments
    try:
        goes_on = condition if found.goes_on else op.logical_not(condition)
        continues = pure_function(fresh_name(f"{f.name}_continues", taken), f.params, [goes_on])
        step = pure_function(fresh_name(f"{f.name}_step", taken), f.params, list(arguments), None)
        if len(arguments) == 1:  # a body returns a tuple, even of one value
            (only,) = step.blocks[0].bindings
            step = Function(step.name, step.params, step.blocks, tuple_([only.var]), step.origins)
        loop = while_loop(function_ref(continues), function_ref(step), [], [], list(f.params))
    except OperatorError:  # the sizes or dtypes of a step's arguments are not those of its parameters
        return ()
    last = {p: tuple_get(loop, i) for i, p in enumerate(f.params)}
    (end,) = substitute_exprs([found.end], last)
    made = pure_function(f.name, f.params, [end])
    return Function(made.name, made.params, made.blocks, made.result, assume=f.assume), continues, step
