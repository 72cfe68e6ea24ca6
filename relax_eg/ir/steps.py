"""Steps: operations that execute in order between dataflow blocks, and the functions that contain any.

Steps are effectful calls, `match_cast`s, the memory operations (allocate, fill, kill), and library calls whose result
sizes are unknown because they depend on values. XLA cannot compile that last kind; a function with such a step is run
block by block.
"""

from __future__ import annotations

from collections.abc import Callable

from relax_eg.ir.annotations import Annotation, Shape, Tensor, Tuple
from relax_eg.ir.control import functions_of
from relax_eg.ir.expr import CALL_DPS_LIBRARY, COND, FUNCTION, MATCH_CAST, SCAN, WHILE, Expr
from relax_eg.ir.heads import MEMORY
from relax_eg.ir.module import Function, Module


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
    if e.op == MATCH_CAST or e.op in MEMORY:
        return e.op
    if is_data_dependent(e):
        return f"`{e.attr('name')}`, the sizes of whose result depend on values,"
    if e.op == CALL_DPS_LIBRARY and not e.attr("pure"):
        return "an impure call"
    name = next((name for name in functions_of(e) if name in impure), None)
    return None if name is None else f"a {e.op} of `{name}`, which has effects,"


def impure_functions(module: Module) -> frozenset[str]:
    """Returns the names of the functions that contain a step or name such a function."""
    return _with_callers(module, lambda f: any(effect_of(e, frozenset()) for e in f.expressions()))


def stepped_functions(module: Module) -> frozenset[str]:
    """Returns the names of the functions that XLA cannot run as one program.

    Reasons: sizes inside depend on values, or on the branch that a `cond` outside dataflow blocks takes; or a branch or
    loop contains a `match_cast`. The check must run only when the branch is taken or the loop makes a step, but XLA's
    program contains it unconditionally.
    """
    asserting = _with_callers(module, lambda f: any(e.op == MATCH_CAST for e in f.expressions()))

    def is_stepped(function: Function) -> bool:
        steps = [b.value for block in function.blocks if not block.dataflow for b in block.bindings]
        return any(_decides(e, asserting) for e in steps) or any(map(is_data_dependent, function.expressions()))

    return _with_callers(module, is_stepped)


def _decides(e: Expr, asserting: frozenset[str]) -> bool:
    """Whether a control node's choice of function determines sizes or which checks run."""
    if e.op == COND and not is_sized(e.annotation):
        return True
    return e.op in (COND, WHILE, SCAN) and not asserting.isdisjoint(functions_of(e))


def _with_callers(module: Module, holds: Callable[[Function], bool]) -> frozenset[str]:
    """Returns the names of the functions for which `holds`, and of those that name one directly or indirectly."""
    callers: dict[str, list[str]] = {}
    found: dict[str, None] = {}
    for f in module:
        for e in f.expressions():
            if e.op == FUNCTION:
                callers.setdefault(e.attr("name"), []).append(f.name)
        if holds(f):
            found[f.name] = None
    reached = list(found)
    while reached:
        for caller in callers.get(reached.pop(), ()):
            if caller not in found:
                found[caller] = None
                reached.append(caller)
    return frozenset(found)
