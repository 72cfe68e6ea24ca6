"""Evaluates programs with functions as values and data as far as they are known when they are compiled.

The rules, each of which takes one unit of fuel:

    call of make_closure(f, (a,)) with b          becomes  f(a, b)
    match of Constructor(a, b)                    becomes  the case of that constructor
    if of a known condition                       becomes  the branch that runs
    f(a), where f does not recur, or what is      becomes  the body of f
    known of `a` decides which case of f runs
    f(g, a), where f recurs and g is a closure    becomes  a function of its own for g, with what g captured passed

Effects keep their order and number. A body in the place of a call has the sizes of its caller. What fuel does not
reach, and calls that check when they run whether their arguments fit, stay as they are. So lists of known structure are
unrolled, and higher-order functions of known functions are first-order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from relax_eg.dtypes import is_integer
from relax_eg.errors import RelaxEgError
from relax_eg.ir.annotations import Annotation, Callable, Data, Tensor, inside, substitute
from relax_eg.ir.annotations import TypeVar as TypeParameter
from relax_eg.ir.calls import call_annotation, call_sizes, reachable_functions, reaching_cycles, signature
from relax_eg.ir.control import functions_of, group_arguments
from relax_eg.ir.data import all_sizes
from relax_eg.ir.expr import (
    CALL,
    CLOSURE,
    COND,
    CONSTANT,
    CONSTRUCT,
    FUNCTION,
    MATCH,
    TUPLE,
    TUPLE_GET,
    VAR,
    Expr,
    const,
    constant_value,
    fresh_name,
    node,
    postorder,
    tuple_get,
    var,
)
from relax_eg.ir.lattice import covers
from relax_eg.ir.module import Binding, Block, Function, Module
from relax_eg.ir.origin import Origin
from relax_eg.ir.steps import VALUES, general_functions
from relax_eg.ir.wellformed import check
from relax_eg.logs import log_at
from relax_eg.ops.deduction import annotation_from
from relax_eg.ops.interpret import evaluate_expr
from relax_eg.ops.record import TABLE
from relax_eg.ops.resized import resized
from relax_eg.shapes import Dim

FUEL = 1000  # limit: bodies put in the place of calls, and functions made for closures, in one module
DEPTH = 48  # limit: bodies inside of one another; each takes a few frames of Python
CLOSURES = 16  # limit: nodes of a closure for which a function is made


def partially_evaluated(module: Module) -> tuple[Module, int]:
    """Returns `module` with its known parts evaluated, and the units of fuel that this took (0 if none is known).

    The pure bindings of `module` are in dataflow blocks; those of the result need not be.
    """
    general = general_functions(module) - {VALUES}
    if module.main.name not in general:
        return module, 0
    evaluator = _Evaluator(module, general)
    try:
        made = evaluator.module()
        check(made)
    except RelaxEgError as error:  # what became known contradicts a declaration that is more general
        log_at(1, f"{module.main.name}: it is not evaluated ahead: {str(error).splitlines()[0]}")
        return module, 0
    if not evaluator.spent:
        return module, 0
    log_at(1, f"{module.main.name}: {evaluator.spent} calls and choices are evaluated ahead")
    return made, evaluator.spent


@dataclass
class _Scope:
    """A function that is being made.

    - `taken`: the names in it.
    - `steps`: its bindings.
    """

    taken: set[str]
    steps: list[Binding] = field(default_factory=list[Binding])


class _Evaluator:
    def __init__(self, module: Module, general: frozenset[str]) -> None:
        self.old = {f.name: f for f in module}
        self.entry = module.main.name
        self.general = general
        self.recursive = _in_cycles(module)
        self.signatures = {f.name: signature(f) for f in module}
        self.taken = set(self.old)
        self.sizes = {v for f in module for v in (*f.size_variables, *f.cast_variables)}
        self.made: dict[str, Function] = {}
        self.names: dict[tuple[str, tuple[Expr, ...]], str] = {}
        self.spent = 0
        self.depth = 0  # the number of bodies around the one that is being read
        self.origins: dict[Expr, Origin] = {e: o for f in module for e, o in f.origins.items()}

    def module(self) -> Module:
        main = self.old[self.entry]
        self.names[self.entry, main.params] = self.entry
        self._define(main, self.entry, main.params, main.params)
        everything = {**self.old, **self.made}
        roots = [e for f in self.made.values() for e in f.expressions()]
        needed = {f.name for f in reachable_functions(roots, everything)} | set(self.made)
        order = [self.entry, *(n for n in everything if n in needed and n != self.entry)]
        return Module(tuple(everything[n] for n in order))

    def _define(self, f: Function, new: str, values: tuple[Expr, ...], params: tuple[Expr, ...]) -> None:
        """Makes the function `new` of `params`: the function `f` for these values of its parameters."""
        scope = _Scope({str(p.attr("name")) for p in params})
        self.depth += 1
        result = self._body(f, values, scope)
        self.depth -= 1
        self.made[new] = replace(
            f, name=new, params=params, blocks=(Block(tuple(scope.steps), dataflow=False),), result=result,
            origins=self.origins,
        )  # fmt: skip
        self.signatures[new] = signature(self.made[new])

    def _body(self, f: Function, values: Sequence[Expr], scope: _Scope) -> Expr:
        """Adds the steps of `f` for these values of its parameters, and returns its result."""
        env = dict(zip(f.params, values, strict=True))
        for block in f.blocks:
            for b in block.bindings:
                value = self._rebuilt(b.value, env)
                env[b.var] = self._pure(b, value, scope) if block.dataflow else self._step(b, value, scope)
        return self._rebuilt(f.result, env)

    def _pure(self, b: Binding, value: Expr, scope: _Scope) -> Expr:
        if value.op in (VAR, CONSTANT, FUNCTION, CLOSURE, CONSTRUCT) or all(
            e.op in (TUPLE, TUPLE_GET, VAR, CONSTANT) for e in postorder([value])
        ):
            return value
        return self._bind(b, value, scope)

    def _bind(self, b: Binding, value: Expr, scope: _Scope) -> Expr:
        bound = var(fresh_name(b.name, scope.taken), value.annotation)
        scope.steps.append(Binding(bound, value))
        if b.value in self.origins:
            self.origins.setdefault(value, self.origins[b.value])
        return bound

    def _rebuilt(self, root: Expr, env: dict[Expr, Expr]) -> Expr:
        done: dict[Expr, Expr] = {}
        for e in postorder([root], stop=env.__contains__):
            done[e] = env[e] if e in env else self._node(e, [done[a] for a in e.args])
        return done[root]

    def _node(self, e: Expr, args: list[Expr]) -> Expr:
        if all(a is b for a, b in zip(args, e.args, strict=True)) and e.op != CALL:
            return self._folded(e)
        if e.op == TUPLE_GET:
            return tuple_get(args[0], e.attr("index"))
        made = node(e.op, args, e.attrs, e.annotation)
        return made if e.op in (MATCH, COND) else self._folded(self._deduced(made))  # functions are not known yet

    def _deduced(self, e: Expr) -> Expr:
        """`e` with the annotation that follows from its operands."""
        found = annotation_from(e, [a.annotation for a in e.args], self.signatures)
        return e if found == e.annotation else node(e.op, e.args, e.attrs, found)

    def _folded(self, e: Expr) -> Expr:
        """A whole number or truth value that is known as a constant."""
        a = e.annotation
        is_small = isinstance(a, Tensor) and a.shape == () and (a.dtype == "bool" or is_integer(a.dtype or "float32"))
        if not is_small or e.op not in TABLE or any(x.op != CONSTANT for x in e.args):
            return e
        return const(evaluate_expr(e, {}, {}))

    # --- steps ---

    def _step(self, b: Binding, e: Expr, scope: _Scope) -> Expr:
        if e.op == CALL:
            return self._call(b, e, scope)
        if e.op in (COND, MATCH):
            return self._choice(b, e, scope)
        if e.op in (CLOSURE, CONSTRUCT, TUPLE, VAR, FUNCTION):
            return e
        return self._bind(b, e, scope)

    def _call(self, b: Binding, e: Expr, scope: _Scope) -> Expr:
        callee, args = e.args[0], list(e.args[1:])
        known = callee.op == CLOSURE
        while callee.op == CLOSURE:
            callee, args = callee.args[0], [*args, *callee.args[1:]]
        name = str(callee.attr("name")) if callee.op == FUNCTION else ""
        f = self.old.get(name)
        if f is None or len(args) != len(f.params):
            return self._bind(b, e, scope)
        own = self._at_sizes(f, args) if known or name in self.general else None
        if own is not None:
            if self._decides(own, args) and self._may_spend():
                return self._inlined(own, args, scope)
            if name in self.general and self.depth < DEPTH:
                new, given = self._specialised(own, args, ())
                return self._bind(b, self._called(new, given), scope)
        return self._bind(b, self._called(name, args), scope)

    def _called(self, name: str, args: Sequence[Expr]) -> Expr:
        callee = node(FUNCTION, (), (("name", name),), self.signatures[name])
        return node(CALL, (callee, *args), (), call_annotation(callee.annotation, [a.annotation for a in args], name))

    def _inlined(self, f: Function, args: Sequence[Expr], scope: _Scope) -> Expr:
        self.spent += 1
        self.depth += 1
        result = self._body(f, args, scope)
        self.depth -= 1
        return result

    def _may_spend(self) -> bool:
        return self.spent < FUEL and self.depth < DEPTH

    def _at_sizes(self, f: Function, args: Sequence[Expr]) -> Function | None:
        """`f` with the sizes of its caller, and with names of its own for those that its `match_cast`s define. None
        where a run tells whether the arguments fit."""
        given = [a.annotation for a in args]
        sizes = call_sizes([p.annotation for p in f.params], given)
        if not all(v in sizes for v in f.size_variables):
            return None
        sizes = {v: d for v, d in sizes.items() if d != Dim.var(v)}
        if not sizes and not f.cast_variables:
            return f
        sized = [(p.annotation, a) for p, a in zip(f.params, given, strict=True) if all_sizes(p)]
        if not all(covers(substitute(p, sizes), a) for p, a in sized):
            return None
        sizes |= {v: Dim.var(fresh_name(v, self.sizes)) for v in f.cast_variables}
        return resized(f, sizes, {})

    def _decides(self, f: Function, args: Sequence[Expr]) -> bool:
        """Whether the body of `f` may stand in the place of a call: `f` does not recur, or its case is known."""
        if f.name not in self.recursive:
            return True
        env = dict(zip(f.params, args, strict=True))
        for block in f.blocks:
            for b in block.bindings:
                if block.dataflow:
                    env[b.var] = self._rebuilt(b.value, env)
                elif b.value.op in (COND, MATCH):
                    index = self._rebuilt(b.value.args[0], env)
                    return index.op == (CONSTANT if b.value.op == COND else CONSTRUCT)
                elif b.value.op not in (CLOSURE, CONSTRUCT, TUPLE):
                    return False
                else:
                    env[b.var] = self._rebuilt(b.value, env)
        return False

    def _choice(self, b: Binding, e: Expr, scope: _Scope) -> Expr:
        parts = group_arguments(e.op, e.args, dict(e.attrs))
        index, functions = parts.index, [self.old[f.attr("name")] for f in parts.functions]
        taken: int | None = None
        if e.op == MATCH and index.op == CONSTRUCT:
            taken = index.annotation.definition.index(index.attr("constructor"))
        elif e.op == COND and index.op == CONSTANT:
            taken = min(max(int(constant_value(index)), 0), len(functions) - 1)
        if taken is not None:
            args = [*parts.constants, *(index.args if e.op == MATCH else ())]
            own = self._at_sizes(functions[taken], args)
            if own is not None and self._may_spend():
                return self._inlined(own, args, scope)
        if self.depth >= DEPTH:
            return self._bind(b, self._deduced(e), scope)
        refs: list[Expr] = []
        given: list[Expr] = list(parts.constants)
        for i, f in enumerate(functions):
            kinds: tuple[Annotation, ...] = ()
            if e.op == MATCH:
                assert isinstance(index.annotation, Data)
                kinds = index.annotation.fields(i)
            names = [str(p.attr("name")) for p in f.params[len(parts.constants) :]]
            fields = tuple(var(n, a) for n, a in zip(names, kinds, strict=True))
            own = self._at_sizes(f, [*parts.constants, *fields])
            if own is None:
                return self._bind(b, self._deduced(e), scope)
            new, given = self._specialised(own, list(parts.constants), fields)
            refs.append(node(FUNCTION, (), (("name", new),), self.signatures[new]))
        return self._bind(b, self._deduced(node(e.op, (index, *refs, *given), e.attrs, e.annotation)), scope)

    def _specialised(self, f: Function, args: Sequence[Expr], fields: tuple[Expr, ...]) -> tuple[str, list[Expr]]:
        """Returns the function for these arguments, in which closures are known, and what is passed to it. `fields`:
        further parameters, which a `match` passes."""
        leaves: dict[Expr, Expr] = {}
        taken = {str(p.attr("name")) for p in (*f.params, *fields)}
        values: list[Expr] = []
        params: list[Expr] = []
        given: list[Expr] = []
        is_new = False
        for p, a in zip(f.params, args, strict=False):
            if a.op in (CLOSURE, FUNCTION) and self.spent < FUEL and len(postorder([a])) <= CLOSURES:
                is_new = True
                for x in postorder([a]):
                    if x.op in (CLOSURE, FUNCTION) or x in leaves:
                        continue
                    if any(x in y.args and y.op == CLOSURE for y in postorder([a])):
                        leaves[x] = var(fresh_name("captured", taken), x.annotation)
                        params.append(leaves[x])
                        given.append(x)
                values.append(_with_leaves(a, leaves))
            else:
                own = p if not _is_generic(p.annotation) else var(str(p.attr("name")), a.annotation)
                values.append(own)
                params.append(own)
                given.append(a)
        values += fields
        params += fields
        key = f.name, tuple(values)
        name = self.names.get(key)
        if name is None:
            self.spent += is_new
            plain = not is_new and tuple(values) == self.old[f.name].params
            name = self.names[key] = f.name if plain else fresh_name(f.name, self.taken)
            if name != f.name:
                result = call_annotation(self.signatures[f.name], [v.annotation for v in values], f.name)
                self.signatures[name] = Callable(tuple(p.annotation for p in params), result)
            self._define(f, name, tuple(values), tuple(params))
        return name, given


def _with_leaves(a: Expr, leaves: dict[Expr, Expr]) -> Expr:
    """A closure with other values that it captured."""
    if a in leaves:
        return leaves[a]
    return node(a.op, [_with_leaves(x, leaves) for x in a.args], a.attrs, a.annotation)


def _is_generic(a: Annotation) -> bool:
    return isinstance(a, TypeParameter) or any(map(_is_generic, inside(a)))


def _in_cycles(module: Module) -> frozenset[str]:
    """The functions that recur."""
    runs: dict[str, set[str]] = {}
    for f in module:
        named = {e.attr("name") for e in f.expressions() if e.op == FUNCTION}
        runs[f.name] = named | {n for e in f.expressions() for n in functions_of(e)}
    callers: dict[str, set[str]] = {name: set() for name in runs}
    for name, callees in runs.items():
        for c in callees & callers.keys():
            callers[c].add(name)
    # What reaches a cycle, and is reached from one, is in one or between two.
    return frozenset(reaching_cycles(runs) & reaching_cycles(callers))
