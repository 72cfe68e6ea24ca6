"""Prepares a module for `optimize`. The module is not traced again: its functions, calls and steps are kept.

The entry may take tuples, shapes, and tensors of which only the rank is declared. The prepared entry takes the arrays
in them one by one; a tensor of which only the rank is declared gets size variables of its own. It runs in steps if
something depends on such sizes alone (whether two of them broadcast), or if a dtype or a rank is not declared.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from relax_eg.errors import OperatorError, SpecError, WellFormedError
from relax_eg.frontends.partial_evaluation import partially_evaluated
from relax_eg.frontends.placing import with_copies
from relax_eg.frontends.specs import Arguments, HasArguments, need_stated_sizes, read_arguments
from relax_eg.frontends.symbolic import SymbolicSizes
from relax_eg.frontends.tail_recursion import with_loops
from relax_eg.ir.annotations import Annotation, Shape, Tensor, Tuple, is_first_order
from relax_eg.ir.calls import reachable_functions, substitute_exprs
from relax_eg.ir.expr import (
    COND,
    CONSTANT,
    FUNCTION,
    TUPLE,
    VAR,
    ConstantData,
    Expr,
    fresh_name,
    node,
    postorder,
    shape_value,
    tuple_,
    tuple_get,
    var,
)
from relax_eg.ir.foreign import Foreign
from relax_eg.ir.heads import BEYOND_TENSORS, IN_PLACE
from relax_eg.ir.memory import first_explicit, without_memory
from relax_eg.ir.module import Binding, Block, Function, Module
from relax_eg.ir.packed import pack
from relax_eg.ir.partition import remaining_origins, replace_names
from relax_eg.ir.steps import effect_of, general_functions, impure_functions, is_sized, stepped_functions
from relax_eg.ir.tokens import NoContentError
from relax_eg.ir.wellformed import check, kept_inside
from relax_eg.ops import api as op
from relax_eg.ops.deduction import deduce_module
from relax_eg.shapes import Scope


@dataclass(frozen=True)
class PreparedModule(HasArguments):
    """A module, written by hand or traced before, with the interface of a traced function (`jax.trace.Traced`).

    - `fn`: the function that runs the original module.
    - `name`: the name of the entry.
    - `arguments`: the arguments of `fn`, flattened.
    - `sizes`: the symbolic sizes of the arguments.
    - `module`: the prepared module.
    - `out_tree`: the structure of the result of `fn`.
    - `in_steps`: whether XLA cannot compile the entry as one program of arrays.
    - `wide`: whether the module may hold 64-bit numbers, whatever the setting of JAX is.
    - `entry`: the names and annotations, as text, of the original entry's parameters, and last those of its result
      ("return"). Empty if the entry takes and returns only arrays of known sizes and dtypes. Otherwise (tuples, shapes,
      tensors of known rank) `module` takes and returns the arrays one by one.
    - `looped`: the functions whose recursion became a loop.
    - `evaluated`: the calls and choices that were evaluated ahead.
    """

    fn: Callable[..., Any]
    name: str
    arguments: Arguments
    sizes: SymbolicSizes
    module: Module
    out_tree: Any
    in_steps: bool
    wide: bool
    entry: tuple[tuple[str, str], ...] = ()
    looped: tuple[str, ...] = ()
    evaluated: int = 0

    @property
    def why_in_steps(self) -> str:
        main = self.module.main
        for p in main.params:
            if not _is_known(_with_fresh_sizes(p.annotation, "", set())):
                said = f"of `{p.attr('name')}` not all is said: {p.annotation}"
                return f"{said}\n  accepted: its dtype, and its rank at least"
        return (
            "what it computes with depends on values, on which branch runs, or on sizes of which only the rank is said"
        )

    @property
    def identifier(self) -> str:
        return self.name

    @property
    def params(self) -> tuple[Expr, ...]:
        return self.module.main.params

    @property
    def result(self) -> Annotation:
        return self.module.main.annotation

    @property
    def out_avals(self) -> tuple[Any, ...]:
        return (None,) * self.out_tree.num_leaves

    @property
    def size_variables(self) -> tuple[str, ...]:
        return self.module.main.size_variables

    @property
    def assume(self) -> tuple[str, ...]:
        """The statements that must hold for the sizes of the module's entry."""
        return self.module.main.assume

    @property
    def cast_variables(self) -> tuple[str, ...]:
        return self.module.main.cast_variables

    @cached_property
    def fingerprint(self) -> ModuleFingerprint:
        return ModuleFingerprint(self.module)

    @property
    def effectful(self) -> bool:
        return bool(self.module.main.steps)


class ModuleFingerprint:
    """The digest of a module's exact content. NoContentError if the module holds objects of other libraries."""

    def __init__(self, module: Module) -> None:
        data, blob = pack((module,), self)
        text = json.dumps(data, separators=(",", ":")).encode()
        self.digest: str = hashlib.blake2b(text + blob, digest_size=32).hexdigest()

    def name_of(self, foreign: Foreign) -> Any:
        raise NoContentError(f"{foreign!r} is part of the module")

    def foreign_of(self, name: Any) -> Foreign:
        raise NoContentError(f"no object is named {name!r}")

    def array_name(self, data: ConstantData) -> str | None:
        return None

    def array_of(self, name: str) -> Any:
        raise NoContentError(f"no constant is named {name!r}")


def prepare_module(
    module: Module, run: Callable[[Module, Function, Sequence[Any]], Any], assume: Sequence[str] = ()
) -> PreparedModule:
    """Prepares `module` for `optimize`.

    Deduces every annotation anew, and moves pure bindings that are outside dataflow blocks into dataflow blocks.

    - `run`: runs a function of a module on arrays.
    - `assume`: further statements that hold for the sizes of the entry.

    Kernels that fill explicit memory become values. WellFormedError for a module that breaks a rule of the IR, or whose
    annotations do not follow. SpecError if a tensor in explicit memory may be overwritten before it is read, or if its
    entry takes a function. BoundsError for unknown sizes in `assume`.
    """
    check(module)
    if (name := first_explicit(module)) is not None:
        plain = [without_memory(f) for f in module]
        kept = [f for f in plain if f is not None]
        if len(kept) == len(plain):
            return prepare_module(Module(tuple(kept)), run, assume)
        raise SpecError(
            f"{name}() allocates its memory itself, and reads a tensor that another one of its storage may overwrite\n"
            "  accepted: the module that it was lowered from"
        )
    entry = module.main
    need_stated_sizes(entry.name, assume, (*entry.size_variables, *entry.cast_variables))
    with_more = replace(entry, assume=(*entry.assume, *assume))
    module = Module(tuple(with_more if f is entry else f for f in module))
    placed = with_copies(with_dataflow_blocks(deduce_module(module)))
    formed, evaluated = partially_evaluated(placed)
    if evaluated:
        module = formed = with_dataflow_blocks(deduce_module(formed))
    formed, looped = with_loops(formed)
    if looped:
        module = formed = with_dataflow_blocks(formed)
    check(formed)  # again: the first check accepts errors that coarse annotations hide
    main = formed.main
    names = [str(p.attr("name")) for p in main.params]

    def fn(*args: Any) -> Any:
        return run(module, module.main, args)

    fn.__name__ = main.name
    parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
    fn.__signature__ = inspect.Signature(parameters)  # type: ignore[reportFunctionMemberAccess]
    sizes = SymbolicSizes()
    for p in main.params:
        if (kept := kept_inside(p.annotation)) is not None:
            raise SpecError(
                f"{main.name}(): `{p.attr('name')}` is {kept} of the module, or may contain one; only functions that "
                "other functions call take such\n"
                "  accepted: tensors, shapes, data and tuples of these as parameters of the entry"
            )
    flat = None if main.name in stepped_functions(formed) else _array_entry(formed, fn, sizes)
    if flat is not None:
        return replace(flat, looped=looped, evaluated=evaluated)
    tree = jax.tree_util.tree_structure(((None,) * len(names), {}))
    arguments = Arguments(fn.__signature__, (), tree, Scope())  # type: ignore[reportFunctionMemberAccess]
    out_tree = jax.tree_util.tree_structure(_skeleton(main.annotation))
    return PreparedModule(fn, main.name, arguments, sizes, formed, out_tree, True, formed.wide, (), looped, evaluated)


def _array_entry(module: Module, fn: Callable[..., Any], sizes: SymbolicSizes) -> PreparedModule | None:
    """`module` with an entry that takes and returns arrays only.

    The arrays of a tuple are passed one by one. A shape is passed as an array of that shape with one more axis of size
    0, so that it has no elements. None if the parameters or the result are not fully known, or if the operators do not
    accept the sizes that stand for a declared rank.
    """
    main = module.main
    declared = [p.annotation for p in main.params]
    named = {v for v in (*main.size_variables, *main.cast_variables)}
    takes = [_with_fresh_sizes(a, str(p.attr("name")), named) for p, a in zip(main.params, declared, strict=True)]
    if not all(map(_is_known, takes)):
        return None
    specs = tuple(_leaves_of(a) for a in takes)
    with nullcontext() if not module.wide else jax.enable_x64(True):
        arguments = read_arguments(fn, main.name, specs, {}, sizes)
    out_tree = jax.tree_util.tree_structure(_skeleton(main.annotation))
    if takes == declared and all(map(_is_exact, declared)) and _are_arrays(main.annotation):
        return PreparedModule(fn, main.name, arguments, sizes, module, out_tree, False, module.wide)
    leaves = iter(var(leaf.name, leaf.annotation) for leaf in arguments.leaves)
    params: list[Expr] = []
    env = {p: _value_of(a, leaves, params) for p, a in zip(main.params, takes, strict=True)}
    bound = list(main.bindings)
    if {str(p.attr("name")) for p in params} & {b.name for b in bound}:
        return None
    try:
        formed = with_dataflow_blocks(
            deduce_module(with_dataflow_blocks(_with_entry_params(module, main, env, params)))
        )
        result = formed.main.result
        if not _is_known(result.annotation):
            return None
        fields = _fields_of(result)
        whole = fields[0] if isinstance(result.annotation, Tensor) else tuple_(fields)
        flat = replace(formed.main, result=whole)
        formed = with_dataflow_blocks(Module(tuple(flat if f is formed.main else f for f in formed)))
        check(formed)
    except (OperatorError, WellFormedError):  # only the actual sizes decide whether it is valid, so it runs in steps
        if takes == declared:
            raise
        return None

    def of_arrays(*args: Any) -> Any:
        values = [_original_argument(a, x) for a, x in zip(declared, args, strict=True)]
        return _array_result(main.annotation, fn(*values))

    of_arrays.__name__ = main.name
    of_arrays.__signature__ = fn.__signature__  # type: ignore[reportFunctionMemberAccess]
    names = [(str(p.attr("name")), str(a)) for p, a in zip(main.params, declared, strict=True)]
    entry = (*names, ("return", str(main.annotation)))
    is_plain = all(map(_is_exact, declared)) and _are_arrays(main.annotation)
    entry = () if is_plain else entry
    return PreparedModule(of_arrays, main.name, arguments, sizes, formed, out_tree, False, formed.wide, entry)


def _with_fresh_sizes(a: Annotation, name: str, taken: set[str]) -> Annotation:
    """`a` with fresh size variables in tensors and shapes of which only the rank is known."""
    if isinstance(a, Tuple):
        return Tuple(tuple(_with_fresh_sizes(f, f"{name}_{i}", taken) for i, f in enumerate(a.fields)))
    if not isinstance(a, (Tensor, Shape)) or a.ndim is None or is_sized(a):
        return a
    sizes: list[str] = []
    for axis in range(a.ndim):
        sizes.append(next(n for n in (f"{name}_{axis}" + "_" * k for k in itertools.count()) if n not in taken))
        taken.add(sizes[-1])
    return Tensor(sizes, a.dtype) if isinstance(a, Tensor) else Shape(sizes)


def _is_known(a: Annotation) -> bool:
    """Whether `a` gives the sizes and dtype of every array in a value, and the sizes of every shape."""
    if isinstance(a, Tuple):
        return all(map(_is_known, a.fields))
    return _is_exact(a) or (isinstance(a, Shape) and a.dims is not None)


def _leaves_of(a: Annotation) -> Any:
    """A pytree of the annotations of the arrays that stand for a value."""
    if isinstance(a, Tuple):
        return tuple(map(_leaves_of, a.fields))
    return Tensor((*a.dims, 0), "bool") if isinstance(a, Shape) and a.dims is not None else a


def _value_of(a: Annotation, leaves: Iterator[Expr], params: list[Expr]) -> Expr:
    """Builds the value of a parameter from the arrays in `leaves`, and appends these arrays to `params`."""
    if isinstance(a, Tuple):
        return tuple_([_value_of(f, leaves, params) for f in a.fields])
    params.append(next(leaves))
    return shape_value(a.dims) if isinstance(a, Shape) and a.dims is not None else params[-1]


def _fields_of(e: Expr) -> list[Expr]:
    """The arrays that stand for a result."""
    if isinstance(e.annotation, Tuple):
        return [x for i in range(len(e.annotation.fields)) for x in _fields_of(tuple_get(e, i))]
    if isinstance(e.annotation, Shape) and e.annotation.dims is not None:
        return [op.zeros((*e.annotation.dims, 0), "bool")]
    return [e]


def _with_entry_params(module: Module, main: Function, env: Mapping[Expr, Expr], params: Sequence[Expr]) -> Module:
    """`module` with `params` as parameters of its entry, and without the functions that the entry does not need.

    `env` gives the value that replaces each old parameter."""
    blocks, result = replace_names(main, env)
    entry = replace(main, params=tuple(params), blocks=blocks, result=result, origins=remaining_origins(main, env))
    needed = reachable_functions(entry.expressions(), {f.name: f for f in module})
    return Module(tuple(entry if f is main else f for f in module if f is main or f in needed))


def _original_argument(a: Annotation, value: Any) -> Any:
    """Returns the argument that the original module takes, from the arrays that stand for it."""
    if isinstance(a, Tuple):
        return tuple(_original_argument(f, x) for f, x in zip(a.fields, value, strict=True))
    return tuple(value.shape[:-1]) if isinstance(a, Shape) else value


def _array_result(a: Annotation, value: Any) -> Any:
    """Returns a result of the original module with arrays in place of its shapes."""
    if isinstance(a, Tuple):
        return tuple(_array_result(f, x) for f, x in zip(a.fields, value, strict=True))
    return jnp.zeros((*value, 0), bool) if isinstance(a, Shape) else value


def _is_exact(a: Annotation) -> bool:
    return isinstance(a, Tensor) and a.shape is not None and a.dtype is not None


def _are_arrays(a: Annotation) -> bool:
    """Whether a result is an array, or a tuple of arrays."""
    return isinstance(a, Tensor) or (isinstance(a, Tuple) and all(isinstance(f, Tensor) for f in a.fields))


def _skeleton(a: Annotation) -> Any:
    return tuple(map(_skeleton, a.fields)) if isinstance(a, Tuple) else 0


# --- dataflow blocks ---


def with_dataflow_blocks(module: Module) -> Module:
    """`module` with its pure bindings in dataflow blocks; consecutive dataflow blocks are merged. O(expressions)."""
    impure, general = impure_functions(module), general_functions(module)
    return Module(tuple(_BlockBuilder(f, impure, f.name in general).function() for f in module))


@dataclass
class _Group:
    """Consecutive bindings.

    - `pure`: whether all bindings are pure; otherwise there is one, a step.
    """

    pure: bool
    bindings: tuple[Binding, ...]


class _BlockBuilder:
    """Puts the pure bindings of one function into dataflow blocks between its steps."""

    def __init__(self, function: Function, impure: frozenset[str], is_general: bool) -> None:
        self.old = function
        self.is_general = is_general
        self.impure = impure
        self.origins = dict(function.origins)
        self.taken = {str(p.attr("name")) for p in function.params}
        self.taken |= {b.name for b in function.bindings}
        # From an expression that a step or the result computes inline to the variable that it is bound to.
        self.named: dict[Expr, Expr] = {}

    def function(self) -> Function:
        f = self.old
        groups = [group for block in f.blocks for group in self._groups(block)]
        result = self._result(groups)
        needed = _needed_after(groups, result)
        blocks: list[Block] = []
        env: dict[Expr, Expr] = {}  # from variable to value, for the dataflow block under construction
        pure: list[Binding] = []
        for i, group in enumerate(groups):
            values = substitute_exprs([b.value for b in group.bindings], env, self.origins)
            new = [Binding(b.var, value) for b, value in zip(group.bindings, values, strict=True)]
            if not group.pure:
                before = blocks.pop().bindings if blocks and not blocks[-1].dataflow else ()
                blocks.append(Block((*before, *new), dataflow=False))
                continue
            pure += new
            env |= {b.var: b.value for b in new}
            if i + 1 == len(groups) or not groups[i + 1].pure:
                outputs = tuple(b for b in pure if b.var in needed[i])
                blocks += [Block(outputs)] if outputs else []
                pure, env = [], {}
        return replace(f, blocks=tuple(blocks), result=result, origins=MappingProxyType(self.origins))

    def _groups(self, block: Block) -> list[_Group]:
        if block.dataflow:
            return [_Group(True, block.bindings)] if block.bindings else []
        groups: list[_Group] = []
        for b in block.bindings:
            if not self._is_step(b.value):
                groups.append(_Group(True, (b,)))
                continue
            self._add_step(groups, b)
        return groups

    def _add_step(self, groups: list[_Group], b: Binding) -> None:
        value = b.value
        args = [self._name(groups, a, "operand") for a in value.args]
        if args != list(value.args):
            value = node(value.op, args, value.attrs, value.annotation)
            if b.value in self.origins:
                self.origins[value] = self.origins[b.value]
        groups.append(_Group(False, (Binding(b.var, value),)))

    def _is_step(self, e: Expr) -> bool:
        # The branches of such a `cond` may return different sizes. XLA cannot compile it, so it runs as a step.
        if effect_of(e, self.impure) is not None or (e.op == COND and not is_sized(e.annotation)):
            return True
        if not self.is_general:
            return False
        values = [a for a in e.args if a.op != FUNCTION]
        return e.op in BEYOND_TENSORS or not all(is_first_order(v.annotation) for v in (e, *values))

    def _result(self, groups: list[_Group]) -> Expr:
        result = self.old.result
        if result.op == TUPLE:
            return tuple_(self._name(groups, e, "result") for e in result.args)
        return self._name(groups, result, "result")

    def _name(self, groups: list[_Group], e: Expr, stem: str) -> Expr:
        """`e` if it computes nothing; otherwise a variable bound to it, in a new group."""
        if all(x.op in IN_PLACE for x in postorder([e])) and e.op != CONSTANT:
            return e
        if e.op == TUPLE and self._is_step(e):
            return tuple_(self._name(groups, a, stem) for a in e.args)
        if e not in self.named:
            self.named[e] = var(fresh_name(stem, self.taken), e.annotation)
            if self._is_step(e):
                self._add_step(groups, Binding(self.named[e], e))
            else:
                groups.append(_Group(True, (Binding(self.named[e], e),)))
        return self.named[e]


def _needed_after(groups: Sequence[_Group], result: Expr) -> list[set[Expr]]:
    """Returns, for each group, the variables that are read after the dataflow block that contains the group."""
    after = {e for e in postorder([result]) if e.op == VAR}
    needed: list[set[Expr]] = []
    inside: set[Expr] = set()  # variables that later groups of the same block read
    for i in reversed(range(len(groups))):
        if not groups[i].pure or i + 1 == len(groups) or not groups[i + 1].pure:
            after, inside = after | inside, set()
        needed.append(after)
        inside |= {e for e in postorder([b.value for b in groups[i].bindings]) if e.op == VAR}
    return needed[::-1]
