"""Module functions as values, and calls of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from relax_eg.ir.annotations import Annotation, Callable, Object, Shape, Tensor, Tuple, dims_of, substitute
from relax_eg.ir.expr import CALL, CALL_DPS_LIBRARY, FUNCTION, TUPLE, TUPLE_GET, Expr, node, postorder, tuple_get
from relax_eg.ir.module import Function, Module
from relax_eg.shapes import Dim


def signature(function: Function) -> Callable:
    """The annotation of a function as a value."""
    return Callable(tuple(p.annotation for p in function.params), function.annotation)


def function_ref(function: Function) -> Expr:
    """A function of the module as a value: its name with its signature."""
    return node(FUNCTION, (), (("name", function.name),), signature(function))


def call_function(callee: Expr, args: Iterable[Expr]) -> Expr:
    """The call of a function value: of `function_ref(f)`, or of a variable that is callable."""
    operands = tuple(args)
    return node(CALL, (callee, *operands), (), call_annotation(callee.annotation, [a.annotation for a in operands]))


def call_annotation(callee: Annotation, args: Iterable[Annotation]) -> Annotation:
    """What a call gives: the signature's result at the sizes of the arguments.

    Sizes that the arguments do not determine belong to the callee; what has them is known by its rank only.
    """
    if not isinstance(callee, Callable):
        return Object()
    sizes: dict[str, Dim] = {}
    for param, arg in zip(callee.params, args, strict=False):
        _match(param, arg, sizes)
    return substitute(_coarse(callee.result, sizes), sizes)


def _match(param: Annotation, arg: Annotation, sizes: dict[str, Dim]) -> None:
    if isinstance(param, Tuple) and isinstance(arg, Tuple):
        for p, a in zip(param.fields, arg.fields, strict=False):
            _match(p, a, sizes)
    elif isinstance(param, (Tensor, Shape)) and type(arg) is type(param):
        for wanted, given in zip(dims_of(param), dims_of(arg), strict=False):
            if str(wanted) in wanted.variables:
                sizes.setdefault(str(wanted), given)


def _coarse(annotation: Annotation, sizes: dict[str, Dim]) -> Annotation:
    if isinstance(annotation, Tuple):
        return Tuple(tuple(_coarse(f, sizes) for f in annotation.fields))
    if all(v in sizes for d in dims_of(annotation) for v in d.variables):
        return annotation
    if isinstance(annotation, Tensor):
        return Tensor(dtype=annotation.dtype, ndim=annotation.ndim)
    return Shape(ndim=annotation.ndim) if isinstance(annotation, Shape) else annotation


def callees_first(module: Module) -> list[Function]:
    """The functions of `module`, each after those it runs; functions that run each other in order of the module."""
    runs = {f.name: [str(e.attr("name")) for e in f.expressions() if e.op == FUNCTION] for f in module}
    order: dict[str, None] = {}
    for start in runs:
        stack = [(start, 0)]
        open_calls = {start}
        while stack:
            name, i = stack.pop()
            if name in order:
                continue
            callees = runs[name]
            while i < len(callees) and (callees[i] in order or callees[i] in open_calls or callees[i] not in runs):
                i += 1
            if i < len(callees):
                stack += [(name, i + 1), (callees[i], 0)]
                open_calls.add(callees[i])
            else:
                order[name] = None
    return [module[name] for name in order]


def inlined(function: Function, args: Sequence[Expr]) -> list[Expr]:
    """The values that a pure `function` returns for `args`, a tuple's fields one by one, as expressions of its caller.
    The function's size variables must be the caller's."""
    env = dict(zip(function.params, args, strict=True))
    for block in function.blocks:
        for b, value in zip(block.bindings, substituted([b.value for b in block.bindings], env), strict=True):
            env[b.var] = value
    (result,) = substituted([function.result], env)
    return list(result.args) if result.op == TUPLE else [result]


def substituted(roots: Sequence[Expr], env: Mapping[Expr, Expr]) -> list[Expr]:
    """`roots` with the expressions in `env` replaced; what stands below them is not visited."""
    done: dict[Expr, Expr] = {}
    for e in postorder(roots, stop=env.__contains__):
        if e in env:
            done[e] = env[e]
        elif all(done[a] is a for a in e.args):
            done[e] = e
        elif e.op == TUPLE_GET:
            done[e] = tuple_get(done[e.args[0]], e.attr("index"))
        else:
            done[e] = node(e.op, tuple(done[a] for a in e.args), e.attrs, e.annotation)
    return [done[r] for r in roots]


def impure_functions(module: Module) -> frozenset[str]:
    """Names of the functions that have effects: an impure library call inside, or a call of such a function."""
    callers: dict[str, list[str]] = {}
    impure: set[str] = set()
    for f in module:
        for e in postorder([b.value for block in f.blocks for b in block.bindings] + [f.result]):
            if e.op == FUNCTION:
                callers.setdefault(e.attr("name"), []).append(f.name)
            elif e.op == CALL_DPS_LIBRARY and not e.attr("pure"):
                impure.add(f.name)
    reached = list(impure)
    while reached:
        for caller in callers.get(reached.pop(), ()):
            if caller not in impure:
                impure.add(caller)
                reached.append(caller)
    return frozenset(impure)
