"""Steps: operations that execute in order between dataflow blocks, and the functions that contain any.

Steps are effectful calls, `match_cast`s, the memory operations (allocate, fill, kill), library calls whose result sizes
are unknown because they depend on values, references, and what a value's constructor decides. So are calls of *general*
functions: those that recur, or that have values beyond tensors. XLA cannot compile a general function, nor sizes that
depend on values; a function with such a step is run block by block.
"""

from __future__ import annotations

from collections.abc import Callable

from relax_eg.ir.annotations import Annotation, Shape, Tensor, Tuple, inside, is_first_order
from relax_eg.ir.annotations import Callable as Signature
from relax_eg.ir.calls import reaching_cycles
from relax_eg.ir.control import functions_of
from relax_eg.ir.expr import CALL, CALL_DPS_LIBRARY, CLOSURE, COND, FUNCTION, MATCH, MATCH_CAST, SCAN, WHILE, Expr
from relax_eg.ir.heads import BEYOND_TENSORS, MEMORY, REFERENCES
from relax_eg.ir.host_calls import is_host_call
from relax_eg.ir.module import Function, Module
from relax_eg.traversal import grouped, reached

VALUES = "function values"  # stands among the names of functions for those that are called as values


def is_sized(annotation: Annotation) -> bool:
    """Whether `annotation` gives the sizes of all tensors and shapes in it."""
    if isinstance(annotation, Tuple):
        return all(map(is_sized, annotation.fields))
    if isinstance(annotation, Tensor):
        return annotation.shape is not None
    return not isinstance(annotation, Shape) or annotation.dims is not None


def is_data_dependent(e: Expr) -> bool:
    """Whether `e` is a library call whose annotation does not give the sizes of its result."""
    return e.op == CALL_DPS_LIBRARY and not is_sized(e.annotation)


def effect_of(e: Expr, impure: frozenset[str]) -> str | None:
    """Returns what makes `e` a step, in words, or None if it is not one. `impure`: the functions that have steps."""
    if e.op in (MATCH_CAST, MATCH) or e.op in MEMORY or e.op in REFERENCES:
        return e.op
    if is_data_dependent(e):
        return f"`{e.attr('name')}`, the sizes of whose result depend on values,"
    if e.op == CALL_DPS_LIBRARY and not e.attr("pure"):
        return "an impure call"
    if is_host_call(e):
        return f"`{e.attr('name')}`, a function of the host,"
    if VALUES in impure and calls_value(e):
        return "a call of a function value"
    name = next((name for name in functions_of(e) if name in impure), None)
    return None if name is None else f"a {e.op} of `{name}`, which has effects,"


def calls_value(e: Expr) -> bool:
    """Whether `e` calls a function that is not named there."""
    return e.op == CALL and bool(e.args) and e.args[0].op != FUNCTION


def impure_functions(module: Module) -> frozenset[str]:
    """Returns the names of the functions that contain a step or name such a function; `VALUES` if function values may
    have any."""
    general = general_functions(module)
    found = with_callers(module, lambda f: any(effect_of(e, general) for e in f.expressions())) | general
    is_passed = VALUES not in found and not found.isdisjoint(passed_functions(module))
    return _with_callers_of_values(module, found) | {VALUES} if is_passed else found


def general_functions(module: Module) -> frozenset[str]:
    """Returns the names of the functions that recur, have values beyond tensors or are on a device, and of those that
    name one; `VALUES` if function values may be such. Linear in the module's size."""
    recursive = reaching_cycles({f.name: [e.attr("name") for e in f.expressions() if e.op == FUNCTION] for f in module})

    def is_general(f: Function) -> bool:
        ends = (*f.params, f.result)
        if (
            f.name in recursive
            or any(k == "vdevice" for k, _ in f.attributes)
            or not all(is_first_order(e.annotation) or _is_signature(e) for e in ends)
        ):
            return True
        return any(e.op in BEYOND_TENSORS for e in f.expressions())

    found = with_callers(module, is_general)
    closures = any(e.op == CLOSURE for f in module for e in f.expressions())
    if not found or not (closures or found & passed_functions(module)):
        return found
    return _with_callers_of_values(module, found) | {VALUES}


def _with_callers_of_values(module: Module, found: frozenset[str]) -> frozenset[str]:
    """The functions `found`, of which some are values, with all that call values, and their callers."""
    return with_callers(module, lambda f: f.name in found or any(map(calls_value, f.expressions())))


def _is_signature(e: Expr) -> bool:
    """Whether `e` is a function on tensors. XLA programs take such a parameter: it is known when they are compiled."""
    return isinstance(e.annotation, Signature) and all(map(is_first_order, inside(e.annotation)))


def passed_functions(module: Module) -> set[str]:
    """Returns the names of the functions that are values: operands that the node itself does not run, or results."""
    found: set[str] = set()
    for f in module:
        for e in f.expressions():
            runs = functions_of(e)
            found.update(a.attr("name") for a in e.args if a.op == FUNCTION and a.attr("name") not in runs)
        roots = [f.result, *f.values]
        found.update(e.attr("name") for e in roots if e.op == FUNCTION)
    return found


def stepped_functions(module: Module) -> frozenset[str]:
    """Returns the names of the functions that XLA cannot run as one program.

    Reasons: they are general; sizes inside depend on values, or on the branch that a `cond` outside dataflow blocks
    takes; or a branch or loop contains a `match_cast`. The check must run only when the branch is taken or the loop
    makes a step, but XLA's program contains it unconditionally.
    """
    general = general_functions(module)
    asserting = with_callers(module, lambda f: any(e.op == MATCH_CAST for e in f.expressions()))

    def is_stepped(function: Function) -> bool:
        if function.name in general:
            return True
        steps = [b.value for b in function.steps]
        if any(_decides(e, asserting) for e in steps):
            return True
        return any(is_data_dependent(e) or is_host_call(e) for e in function.expressions())

    found = with_callers(module, is_stepped)
    return found if found.isdisjoint(passed_functions(module)) else _with_callers_of_values(module, found)


def _decides(e: Expr, asserting: frozenset[str]) -> bool:
    """Whether a control node's choice of function determines sizes or which checks run."""
    if e.op == COND and not is_sized(e.annotation):
        return True
    return e.op in (COND, WHILE, SCAN) and not asserting.isdisjoint(functions_of(e))


def with_callers(module: Module, holds: Callable[[Function], bool]) -> frozenset[str]:
    """Returns the names of the functions for which `holds`, and of those that name one directly or indirectly."""
    callers = grouped((str(e.attr("name")), f.name) for f in module for e in f.expressions() if e.op == FUNCTION)
    return frozenset(reached((f.name for f in module if holds(f)), lambda name: callers.get(name, ())))
