"""Module functions as values, and calls of them."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import (
    Annotation,
    Callable,
    Data,
    DataType,
    Never,
    Object,
    Ref,
    Shape,
    Tensor,
    Tuple,
    TypeVar,
    dims_of,
    inside,
    paired_dims,
    substitute,
    substitute_types,
    with_inside,
)
from relax_eg.ir.expr import (
    CALL,
    CLOSURE,
    FUNCTION,
    TUPLE,
    TUPLE_GET,
    VAR,
    Expr,
    node,
    postorder,
    rebuild,
)
from relax_eg.ir.heads import with_operands
from relax_eg.ir.lattice import annotation_clash, join
from relax_eg.ir.module import Function, Module
from relax_eg.ir.origin import Origin
from relax_eg.limits import KEPT
from relax_eg.shapes import Dim
from relax_eg.traversal import derived, leaves, operands_first, reached

# Suffix of a callee's size variables when they appear beside the caller's. No variable name ends in this letter.
_CALLEE = "\u02c1"

NO_FUNCTIONS = "tensors, shapes, data and tuples of these; a function of the module that another calls may return one"


def signature(function: Function) -> Callable:
    """Returns the annotation of a function as a value."""
    return Callable(tuple(p.annotation for p in function.params), function.annotation)


def function_ref(function: Function) -> Expr:
    """Returns a reference to a module function: its name with its signature."""
    return node(FUNCTION, (), (("name", function.name),), signature(function))


def call_function(callee: Expr, args: Iterable[Expr]) -> Expr:
    """Returns the call of a function value: of `function_ref(f)`, or of a callable variable."""
    operands = tuple(args)
    name = str(callee.attr("name")) if callee.op in (FUNCTION, VAR) else "a function"
    is_value = callee.op != FUNCTION
    annotation = call_annotation(callee.annotation, [a.annotation for a in operands], name, is_value)
    return node(CALL, (callee, *operands), (), annotation)


def call_annotation(
    callee: Annotation, args: Sequence[Annotation], name: str = "a function", is_value: bool = False
) -> Annotation:
    """Returns the annotation of a call: that of the signature's result at the sizes of the arguments.

    Sizes that the arguments do not determine are local to the callee; an annotation that contains one keeps only its
    rank (and dtype). An argument that may or may not fit its parameter is checked at run time; OperatorError for one
    that never fits.

    `is_value`: whether the function is a value. Its type parameters are those of the function that has the value, so
    the call does not determine them.
    """
    return _call_annotation(callee, tuple(args), name, is_value)


def closure(function: Expr, captured: Iterable[Expr]) -> Expr:
    """Returns the value of `function` with its last arguments `captured`, as in Relax. OperatorError where they do not
    fit."""
    values = tuple(captured)
    name = str(function.attr("name")) if function.op in (FUNCTION, VAR) else "a function"
    annotation = closure_annotation(function.annotation, [v.annotation for v in values], name)
    return node(CLOSURE, (function, *values), (), annotation)


def closure_annotation(function: Annotation, captured: Sequence[Annotation], name: str = "a function") -> Annotation:
    """Returns the annotation of a function with its last arguments `captured`."""
    if not isinstance(function, Callable):
        raise OperatorError(f"make_closure: {name} is {function}; a function is accepted")
    n = len(function.params) - len(captured)
    if n < 0:
        raise OperatorError(
            f"make_closure: {name} takes {len(function.params)} arguments, {len(captured)} are captured"
        )
    left, last = function.params[:n], function.params[n:]
    _call_annotation(Callable(last, Tuple(())), tuple(captured), name, False)
    sizes, types = call_sizes(last, captured), call_types(last, captured, name)
    *params, result = (substitute_types(substitute(a, sizes), types) for a in (*left, function.result))
    return Callable(tuple(params), result)


def constructed_annotation(definition: DataType, name: str, fields: Sequence[Annotation]) -> Annotation:
    """Returns the annotation of a value of constructor `name`. OperatorError where the fields do not fit."""
    generic = Data(definition, tuple(map(TypeVar, definition.params)))
    params = generic.fields(definition.index(name))
    if len(fields) != len(params):
        raise OperatorError(f"{definition.name}.{name} has {len(params)} fields, given: {len(fields)}")
    return call_annotation(Callable(params, generic), fields, f"{definition.name}.{name}")


@lru_cache(KEPT)  # repeated blocks are called hundreds of times with the same annotations
def _call_annotation(callee: Annotation, args: tuple[Annotation, ...], name: str, is_value: bool) -> Annotation:
    if not isinstance(callee, Callable):
        return Object()
    sizes = call_sizes(callee.params, args)
    types = {} if is_value else call_types(callee.params, args, name)
    for i, (param, arg) in enumerate(zip(callee.params, args, strict=False)):
        wanted = substitute_types(substitute(param, {**_callee_variables(param), **sizes}), types)
        if why := annotation_clash(wanted, arg):
            raise OperatorError(f"{name}: argument {i} should be {param}, got {arg}: {why}")
    unknown = {} if is_value else {t: Never() for t in _type_variables(callee.result) - types.keys()}
    return substitute_types(substitute(_without_local_sizes(callee.result, sizes), sizes), {**unknown, **types})


def call_types(params: Iterable[Annotation], args: Iterable[Annotation], name: str) -> dict[str, Annotation]:
    """Returns the annotations that the arguments of a call determine for the type parameters of its signature.
    OperatorError where two arguments determine annotations that no value has both of."""
    types: dict[str, Annotation] = {}
    for wanted, given in (pair for both in zip(params, args, strict=False) for pair in leaves(both, _pairs_inside)):
        if isinstance(wanted, TypeVar):
            known = types.get(wanted.name, Never())
            if why := annotation_clash(known, given):
                raise OperatorError(f"{name}: the type `{wanted.name}` is {known} and also {given}: {why}")
            types[wanted.name] = join(known, given)
    return types


def _pairs_inside(both: tuple[Annotation, Annotation]) -> list[tuple[Annotation, Annotation]] | None:
    a, b = both
    if type(a) is not type(b) or not isinstance(a, (Tuple, Data, Ref, Callable)):
        return None
    if isinstance(a, Data) and isinstance(b, Data) and a.definition != b.definition:
        return None
    return list(zip(inside(a), inside(b), strict=False))


def _type_variables(annotation: Annotation) -> set[str]:
    if isinstance(annotation, TypeVar):
        return {annotation.name}
    return {name for part in inside(annotation) for name in _type_variables(part)}


def call_sizes(params: Iterable[Annotation], args: Iterable[Annotation]) -> dict[str, Dim]:
    """Returns the size variables of a signature as the caller's sizes, as far as the arguments determine them.

    A variable is determined by an axis that is the variable, or by an axis that is linear in it.
    """
    sizes: dict[str, Dim] = {}
    pairs = list(zip(params, args, strict=False))
    axes = [axis for p, a in pairs for axis in paired_dims(p, a)]
    axes += [axis for p, a in pairs for axis in _dims_in_data(p, a)]
    for wanted, given in axes:
        if str(wanted) in wanted.variables:
            sizes.setdefault(str(wanted), given)
    found = True
    while found:
        found = False
        for wanted, given in axes:
            if len(wanted.variables - sizes.keys()) == 1:
                (v,) = wanted.variables - sizes.keys()
                value = _solve_axis(wanted, v, given, sizes)
                if value is not None:
                    sizes[v], found = value, True
    return sizes


def _dims_in_data(wanted: Annotation, given: Annotation) -> Iterator[tuple[Dim, Dim]]:
    """Yields the pairs of sizes of tensors inside of data in two annotations."""
    if isinstance(wanted, Tuple) and isinstance(given, Tuple):
        for a, b in zip(wanted.fields, given.fields, strict=False):
            yield from _dims_in_data(a, b)
    elif isinstance(wanted, Data) and isinstance(given, Data) and wanted.definition == given.definition:
        for a, b in zip(wanted.args, given.args, strict=False):
            yield from paired_dims(a, b)
            yield from _dims_in_data(a, b)


def _solve_axis(wanted: Dim, v: str, given: Dim, sizes: dict[str, Dim]) -> Dim | None:
    """Returns the value of `v` for which `wanted` equals `given`, or None unless `wanted` is linear in `v` and the
    division is exact in canonical form."""
    # Rename `v`, because the caller may have a variable of the same name.
    own = Dim.var(v + _CALLEE)
    wanted = wanted.substitute({**sizes, v: own})
    rest = wanted.substitute({str(own): Dim.of(0)})
    scale = wanted.substitute({str(own): Dim.of(1)}) - rest
    if not scale.is_const or scale.value == 0 or wanted != rest + own * scale:
        return None
    value = (given - rest) // scale.value
    return value if value * scale.value == given - rest else None


def _callee_variables(param: Annotation) -> dict[str, Dim]:
    return {v: Dim.var(v + _CALLEE) for d in dims_of(param) for v in d.variables}


def _without_local_sizes(annotation: Annotation, sizes: dict[str, Dim]) -> Annotation:
    if isinstance(annotation, (Tuple, Data, Ref)):
        return with_inside(annotation, [_without_local_sizes(f, sizes) for f in inside(annotation)])
    if all(v in sizes for d in dims_of(annotation) for v in d.variables):
        return annotation
    if isinstance(annotation, Tensor):
        return Tensor(dtype=annotation.dtype, ndim=annotation.ndim)
    return Shape(ndim=annotation.ndim) if isinstance(annotation, Shape) else annotation


def reaching_cycles(runs: Mapping[str, Iterable[str]]) -> set[str]:
    """Returns the functions that run themselves, or others that do. Linear in the number of calls.

    `runs`: for each function, the functions that it runs.
    """
    return set(runs) - derived((name, {c for c in callees if c in runs}) for name, callees in runs.items()).keys()


def callees_first(module: Module) -> list[Function]:
    """Returns the functions of `module`, callees before callers. Mutually recursive functions keep the order of the
    module."""
    runs = {f.name: [str(e.attr("name")) for e in f.expressions() if e.op == FUNCTION] for f in module}
    order = operands_first(runs, lambda name: [c for c in runs[name] if c in runs])
    return [module[name] for name in order]


def reachable_functions(roots: Sequence[Expr], functions: Mapping[str, Function]) -> list[Function]:
    """Returns the `functions` that `roots` name directly or indirectly, in the order of `functions`."""

    def named(among: Iterable[Expr]) -> list[str]:
        names = (str(e.attr("name")) for e in among if e.op == FUNCTION)
        return [name for name in names if name in functions]

    needed = reached(named(postorder(roots)), lambda name: named(functions[name].expressions()))
    return [f for name, f in functions.items() if name in needed]


def inline_call(function: Function, args: Sequence[Expr]) -> list[Expr]:
    """Returns the values that a pure `function` returns for `args`, as expressions of the caller. A tuple gives one
    value per field.

    The size variables of the function must be those of the caller.
    """
    env = dict(zip(function.params, args, strict=True))
    for block in function.blocks:
        for b, value in zip(block.bindings, substitute_exprs(block.values, env), strict=True):
            env[b.var] = value
    (result,) = substitute_exprs([function.result], env)
    return list(result.args) if result.op == TUPLE else [result]


def substitute_exprs(
    roots: Sequence[Expr], env: Mapping[Expr, Expr], origins: dict[Expr, Origin] | None = None
) -> list[Expr]:
    """Returns `roots` with the expressions in `env` replaced. Operands of replaced expressions are not visited.

    `origins`: a rebuilt expression gets the origin of the old one in this table.
    """
    done: dict[Expr, Expr] = {}
    for e in postorder(roots, stop=env.__contains__):
        done[e] = env[e] if e in env else with_operands(e, [done[a] for a in e.args])
        if origins is not None and e in origins and e not in env:
            origins.setdefault(done[e], origins[e])
    return [done[r] for r in roots]


def rebuilt(function: Function, change: abc.Callable[[Expr, tuple[Expr, ...]], Expr]) -> Function:
    """`function` with its expressions rebuilt bottom-up; `change(old, new_args)` returns what replaces a node."""
    blocks = tuple(block.with_values(rebuild(block.values, change)) for block in function.blocks)
    return replace(function, blocks=blocks, result=rebuild([function.result], change)[0])


def without_calls(module: Module) -> Module:
    """`module` with the bodies of functions in the place of their calls, as far as the functions are pure, have one
    block, and name sizes as their callers do."""
    done: dict[str, Function] = {}
    origins: dict[Expr, Origin] = {}

    def change(e: Expr, args: tuple[Expr, ...]) -> Expr:
        if e.op == TUPLE_GET and args[0].op == TUPLE:
            return args[0].args[e.attr("index")]
        callee = done.get(str(args[0].attr("name"))) if e.op == CALL and args[0].op == FUNCTION else None
        if callee is None or not callee.is_one_block:
            return with_operands(e, args)
        sizes = call_sizes([p.annotation for p in callee.params], [a.annotation for a in args[1:]])
        if any(d != Dim.var(v) for v, d in sizes.items()):
            return with_operands(e, args)
        env, bindings = dict(zip(callee.params, args[1:], strict=True)), callee.blocks[0].bindings
        known = dict(callee.origins)
        values = substitute_exprs([b.value for b in bindings], env, known)
        origins.update((x, o) for x, o in known.items() if x not in callee.origins)
        (result,) = substitute_exprs(
            [callee.result], {**env, **{b.var: v for b, v in zip(bindings, values, strict=True)}}
        )
        return result

    for f in callees_first(module):
        made = rebuilt(f, change)
        done[f.name] = replace(made, origins={**origins, **made.origins})
    needed = {f.name for f in reachable_functions(done[module.main.name].expressions(), done)} | {module.main.name}
    return Module(tuple(done[f.name] for f in module if f.name in needed))
