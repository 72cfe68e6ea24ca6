"""A module as what is optimized: as it is, its functions, calls and steps kept, not traced again."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import jax

from relax_eg.errors import SpecError
from relax_eg.frontends.specs import Arguments, OfArguments, need_sizes, read_arguments
from relax_eg.frontends.symbolic import Sizes
from relax_eg.ir.annotations import Annotation, Tensor, Tuple
from relax_eg.ir.annotations import Callable as Signature
from relax_eg.ir.calls import substituted
from relax_eg.ir.expr import (
    COND,
    CONSTANT,
    FUNCTION,
    SHAPE,
    TUPLE,
    VAR,
    ConstantData,
    Expr,
    node,
    postorder,
    tuple_,
    var,
)
from relax_eg.ir.foreign import Foreign
from relax_eg.ir.memory import first_explicit
from relax_eg.ir.module import Binding, Block, Function, Module
from relax_eg.ir.packed import pack
from relax_eg.ir.steps import effect_of, impure_functions, is_sized, stepped_functions
from relax_eg.ir.tokens import NoContentError
from relax_eg.ir.wellformed import check
from relax_eg.ops.deduction import deduced
from relax_eg.shapes import Scope


@dataclass(frozen=True)
class Written(OfArguments):
    """A module that was written, or traced before, in the place of a traced function (`jax.trace.Traced`).

    `fn` runs it as it is. `in_steps`: its entry is no function of arrays that XLA can take as one program; `wide`: it
    may hold 64-bit numbers, which it says whatever JAX has.
    """

    fn: Callable[..., Any]
    name: str
    arguments: Arguments
    sizes: Sizes
    module: Module
    out_tree: Any
    in_steps: bool
    wide: bool

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
        """What must hold of the sizes of the module's entry."""
        return self.module.main.assume

    @property
    def cast_variables(self) -> tuple[str, ...]:
        return self.module.main.cast_variables

    @cached_property
    def fingerprint(self) -> Fingerprint:
        return Fingerprint(self.module)

    @property
    def effectful(self) -> bool:
        return any(not block.dataflow for block in self.module.main.blocks)


class Fingerprint:
    """The exact content of a module. NoContentError where it holds objects of other libraries."""

    def __init__(self, module: Module) -> None:
        data, blob = pack(module, self)
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


def written(
    module: Module, run: Callable[[Module, Function, Sequence[Any]], Any], assume: Sequence[str] = ()
) -> Written:
    """`module` as what is optimized. `run` runs a function of a module on arrays; `assume`: what else holds of the
    sizes of its entry.

    Every annotation is deduced anew, and what is pure outside dataflow blocks is put into such. WellFormedError for a
    module that breaks a rule of the IR, or whose annotations do not follow.
    """
    check(module)
    if (name := first_explicit(module)) is not None:
        raise SpecError(
            f"{name}() allocates its memory itself, which XLA does on its own\n"
            "  accepted: the module that it was lowered from"
        )
    entry = module.main
    need_sizes(entry.name, assume, (*entry.size_variables, *entry.cast_variables))
    with_more = replace(entry, assume=(*entry.assume, *assume))
    module = Module(tuple(with_more if f is entry else f for f in module))
    formed = deduced(in_blocks(module))
    main = formed.main
    names = [str(p.attr("name")) for p in main.params]

    def fn(*args: Any) -> Any:
        return run(module, module.main, args)

    fn.__name__ = main.name
    parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
    fn.__signature__ = inspect.Signature(parameters)  # type: ignore[reportFunctionMemberAccess]
    sizes = Sizes()
    for p in main.params:
        if isinstance(p.annotation, Signature):
            raise SpecError(
                f"{main.name}(): `{p.attr('name')}` is a function of the module; only functions that other functions "
                "call take such\n  accepted: tensors, shapes and tuples of these as parameters of the entry"
            )
    plain = all(_is_exact(p.annotation) for p in main.params) and _are_arrays(main.annotation)
    in_steps = not plain or main.name in stepped_functions(formed)
    if in_steps:
        tree = jax.tree_util.tree_structure(((None,) * len(names), {}))
        arguments = Arguments(fn.__signature__, (), tree, Scope())  # type: ignore[reportFunctionMemberAccess]
    else:
        with nullcontext() if not formed.wide else jax.enable_x64(True):
            arguments = read_arguments(fn, main.name, tuple(p.annotation for p in main.params), {}, sizes)
    out_tree = jax.tree_util.tree_structure(_skeleton(main.annotation))
    return Written(fn, main.name, arguments, sizes, formed, out_tree, in_steps, formed.wide)


def _is_exact(a: Annotation) -> bool:
    return isinstance(a, Tensor) and a.shape is not None and a.dtype is not None


def _are_arrays(a: Annotation) -> bool:
    """Whether a result is an array, or a tuple of arrays."""
    return isinstance(a, Tensor) or (isinstance(a, Tuple) and all(isinstance(f, Tensor) for f in a.fields))


def _skeleton(a: Annotation) -> Any:
    return tuple(map(_skeleton, a.fields)) if isinstance(a, Tuple) else 0


# --- dataflow blocks ---


def in_blocks(module: Module) -> Module:
    """`module` with what is pure in dataflow blocks, those that follow each other as one. O(expressions)."""
    impure = impure_functions(module)
    return Module(tuple(_Former(f, impure).function() for f in module))


@dataclass
class _Group:
    """Bindings that stand together: all pure, or one step."""

    pure: bool
    bindings: tuple[Binding, ...]


class _Former:
    """Puts the pure lines of one function into dataflow blocks, between its steps."""

    def __init__(self, function: Function, impure: frozenset[str]) -> None:
        self.old = function
        self.impure = impure
        self.sources = dict(function.sources)
        self.taken = {str(p.attr("name")) for p in function.params}
        self.taken |= {b.name for block in function.blocks for b in block.bindings}
        self.named: dict[Expr, Expr] = {}  # what is computed inside a step or the result, by the variable it gets

    def function(self) -> Function:
        f = self.old
        groups = [group for block in f.blocks for group in self._groups(block)]
        result = self._result(groups)
        needed = _needed_after(groups, result)
        blocks: list[Block] = []
        env: dict[Expr, Expr] = {}  # the values of the dataflow block that is being made
        pure: list[Binding] = []
        for i, group in enumerate(groups):
            values = self._new([b.value for b in group.bindings], env)
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
        return replace(f, blocks=tuple(blocks), result=result, sources=MappingProxyType(self.sources))

    def _groups(self, block: Block) -> list[_Group]:
        if block.dataflow:
            return [_Group(True, block.bindings)] if block.bindings else []
        groups: list[_Group] = []
        for b in block.bindings:
            if not self._is_step(b.value):
                groups.append(_Group(True, (b,)))
                continue
            args = [self._name(groups, a, "operand") for a in b.value.args]
            value = b.value
            if args != list(value.args):
                value = node(value.op, args, value.attrs, value.annotation)
                if b.value in self.sources:
                    self.sources[value] = self.sources[b.value]
            groups.append(_Group(False, (Binding(b.var, value),)))
        return groups

    def _is_step(self, e: Expr) -> bool:
        # Of a `cond` whose branches may give other sizes, only one branch can run: outside XLA.
        return effect_of(e, self.impure) is not None or (e.op == COND and not is_sized(e.annotation))

    def _result(self, groups: list[_Group]) -> Expr:
        result = self.old.result
        if result.op == TUPLE:
            return tuple_(self._name(groups, e, "result") for e in result.args)
        return self._name(groups, result, "result")

    def _name(self, groups: list[_Group], e: Expr, stem: str) -> Expr:
        """`e`, or the variable it gets where it computes something."""
        if all(x.op in (VAR, SHAPE, TUPLE, FUNCTION, CONSTANT) for x in postorder([e])) and e.op != CONSTANT:
            return e
        if e not in self.named:
            name = next(n for n in (f"{stem}{i or ''}" for i in itertools.count()) if n not in self.taken)
            self.taken.add(name)
            self.named[e] = var(name, e.annotation)
            groups.append(_Group(True, (Binding(self.named[e], e),)))
        return self.named[e]

    def _new(self, roots: Sequence[Expr], env: Mapping[Expr, Expr]) -> list[Expr]:
        """`roots` with variables replaced by what `env` has for them; lines of the source go along."""
        new = substituted(roots, env)
        for old, e in zip(roots, new, strict=True):
            if old is not e and old in self.sources:
                self.sources.setdefault(e, self.sources[old])
        return new


def _needed_after(groups: Sequence[_Group], result: Expr) -> list[set[Expr]]:
    """For each group the variables that are read after the block it falls into."""
    after = {e for e in postorder([result]) if e.op == VAR}
    needed: list[set[Expr]] = []
    inside: set[Expr] = set()  # read by the groups behind that fall into the same block
    for i in reversed(range(len(groups))):
        if not groups[i].pure or i + 1 == len(groups) or not groups[i + 1].pure:
            after, inside = after | inside, set()
        needed.append(after)
        inside |= {e for e in postorder([b.value for b in groups[i].bindings]) if e.op == VAR}
    return needed[::-1]
