"""The rules that every module satisfies between stages, and their checker."""

from __future__ import annotations

import keyword
import unicodedata
from collections.abc import Collection, Hashable, Iterable
from functools import lru_cache
from typing import NoReturn

from relax_eg.argument_checks import did_you_mean
from relax_eg.errors import OperatorError, ShapeError, SpecError, WellFormedError
from relax_eg.ir import heads
from relax_eg.ir.annotations import (
    Annotation,
    Callable,
    Data,
    Object,
    Ref,
    Tuple,
    data_types_of,
    dims_in,
    dims_of,
    inside,
    named_sizes,
)
from relax_eg.ir.calls import NO_FUNCTIONS, constructed_annotation
from relax_eg.ir.control import deduce_control, functions_of, reference_annotation
from relax_eg.ir.data import all_sizes
from relax_eg.ir.expr import Expr, postorder
from relax_eg.ir.lattice import covers
from relax_eg.ir.memory import check_memory
from relax_eg.ir.module import Block, Function, Module
from relax_eg.ir.steps import effect_of, impure_functions
from relax_eg.limits import CALL_DEPTH, CALLS, KEPT
from relax_eg.logs import stage
from relax_eg.shapes import Binder
from relax_eg.shapes.relation import read_statement
from relax_eg.traversal import derived, operands_first, reached


@stage("check")
def check(module: Module) -> None:
    """Raises WellFormedError if `module` breaks a rule of the IR. Linear in the module's size.

    - Parameters are variables; no name is bound twice in a function; names are identifiers.
    - A variable is bound before it is used. Outputs of a dataflow block can be used after the block; inside it, their
      values are used instead.
    - Impure calls, `match_cast`s, library calls of unknown result sizes, and calls of functions that contain any of
      these are whole values of bindings outside dataflow blocks.
    - A parameter or a `match_cast` defines a size variable before it is used. The parameters' sizes determine all their
      variables.
    - Only the entry has assumptions, and only about its own sizes; those of other functions follow from their calls.
    - A tensor is allocated in a storage that is large enough, filled by a kernel whose outputs match it, and not used
      after its end (`memory`).
    - Calls name functions of the module and pass as many arguments as these take. A tuple has the field that is taken.
    - No function calls itself, or others that do, whatever its arguments are.
    - The entry takes and returns no function. Dataflow blocks make and read no closures, data or references.
    """
    _check_calls(module)
    impure = impure_functions(module)
    arity = {f.name: len(f.params) for f in module}
    for function in module:
        _FunctionCheck(function, arity, impure, function is module.main).run()
    _check_ends(module)


def _check_ends(module: Module) -> None:
    """Raises WellFormedError for a function no call of which ends: it needs calls that do, and one branch of each
    choice. Linear in the module's size."""
    needs = {
        f.name: [set(functions_of(e)) for e in f.expressions() if e.op in (heads.CALL, heads.COND, heads.MATCH)]
        for f in module
    }
    ways: list[tuple[Hashable, Collection[Hashable]]] = []
    for name, each in needs.items():
        ways.append((name, [(name, i) for i, choice in enumerate(each) if choice]))
        ways += [((name, i), (other,)) for i, choice in enumerate(each) for other in choice]
    ended = derived(ways)
    for name in sorted(set(needs) - ended.keys()):
        left = (choice for i, choice in enumerate(needs[name]) if (name, i) not in ended)
        again = ", ".join(f"{c}()" for c in sorted(set[str]().union(*left)))
        raise WellFormedError(
            f"function `{name}`: no call of it ends, because it calls {again}, whatever the arguments are\n"
            "  accepted: an `if` or a `match` with a branch that does not"
        )


def kept_inside(a: Annotation) -> str | None:
    """Returns what a value is or may contain that never leaves a module: "a function", "a mutable cell"; else None."""
    starts = [a, *(f for d in data_types_of([a]) for c in d.constructors for f in c.fields)]
    kept = [part for part in reached(starts, inside) if isinstance(part, (Callable, Ref))]
    return None if not kept else "a function" if isinstance(kept[0], Callable) else "a mutable cell"


def _check_calls(module: Module) -> None:
    """Raises WellFormedError if a function makes too many calls or its call chain is too long.

    Calls are counted through callees, because passes visit a function once per call.
    """
    sites: dict[str, list[str]] = {}
    for f in module:
        made = sites.setdefault(f.name, [])
        for e in f.expressions():
            made += functions_of(e)
    counts: dict[str, int] = {}
    depths: dict[str, int] = {}  # length of the longest call chain in functions, including the function itself
    for name in operands_first(sites, lambda name: sites.get(name, [])):
        called = sites.get(name, [])
        counts[name] = min(sum(1 + counts.get(c, 0) for c in called), CALLS + 1)
        depths[name] = 1 + max((depths.get(c, 0) for c in called), default=0)
    for name, count in counts.items():
        if count > CALLS:
            raise WellFormedError(
                f"function `{name}` makes more than {CALLS} calls, those of the functions that it calls counted\n"
                f"  accepted: modules of at most {CALLS} calls"
            )
        if depths[name] > CALL_DEPTH + 1:
            raise WellFormedError(
                f"function `{name}` calls functions that call others, {depths[name] - 1} in a row\n"
                f"  accepted: at most {CALL_DEPTH}"
            )


class _FunctionCheck:
    def __init__(self, function: Function, arity: dict[str, int], impure: frozenset[str], is_entry: bool) -> None:
        self.function = function
        self.is_entry = is_entry
        self.arity = arity
        self.impure = impure
        self.bound: dict[str, Expr] = {}
        self.sizes: set[str] = set()
        self.seen: set[Expr] = set()
        self.outputs: frozenset[Expr] = frozenset()  # outputs of the dataflow block being checked
        self.is_dataflow = False
        self.place = "the parameters"
        self.size_cache: dict[Annotation, frozenset[str]] = {}

    def run(self) -> None:
        f = self.function
        if not _is_name(f.name):
            self._fail(None, f"the function's name is not an identifier: {f.name!r}")
        for p in f.params:
            if p.op != heads.VAR:
                self._fail(p, "a parameter must be a variable")
            self._bind(p)
            self.sizes |= self._sizes_of(p.annotation)
        self._solvable()
        for block in f.blocks:
            self._block(block)
        self.place = "the result"
        self._value(f.result, whole=False)
        if self.is_entry and (kept := kept_inside(f.result.annotation)) is not None:
            self._fail(f.result, f"{kept} is returned by the entry of the module\n  accepted: {NO_FUNCTIONS}")
        self._assumed()
        check_memory(f)

    def _assumed(self) -> None:
        self.place = "what it assumes"
        for text in self.function.assume:
            try:
                names = frozenset[str]().union(*(relation.variables for relation in read_statement(text)))
            except SpecError as error:
                self._fail(None, str(error))
            if not self.is_entry:
                self._fail(None, f"`{text}`: only the entry of a module assumes; match_cast asserts inside")
            for name in sorted(names - self.sizes):
                self._fail(None, f"`{text}`: no size is named `{name}`{did_you_mean(name, self.sizes)}")

    def _solvable(self) -> None:
        named = [x for p in self.function.params for x in named_sizes(str(p.attr("name")), p.annotation)]
        try:
            Binder([sizes for _, sizes in named], [name for name, _ in named], self.function.name)
        except ShapeError as error:
            problem = str(error).partition(": ")[2]
            self._fail(None, f"{problem}; or add a parameter that is a shape of them, as s: R.Shape((...))")

    def _block(self, block: Block) -> None:
        self.outputs = frozenset(b.var for b in block.bindings) if block.dataflow else frozenset()
        self.is_dataflow = block.dataflow
        for b in block.bindings:
            if b.var.op != heads.VAR:
                self.place = "a binding"
                self._fail(b.var, "what is bound must be a variable")
            self.place = f"binding `{b.name}`"
            self._value(b.value, whole=not block.dataflow)
            if b.value.op == heads.MATCH_CAST:
                self.sizes |= all_sizes(b.value)
            self._known_sizes(b.value, self._sizes_of(b.var.annotation))
            if not block.dataflow:
                self._bind(b.var)
        for b in block.bindings if block.dataflow else ():
            self.place = f"binding `{b.name}`"
            self._bind(b.var)
        self.outputs, self.is_dataflow = frozenset(), False

    def _bind(self, v: Expr) -> None:
        name = v.attr("name")
        if not _is_name(name):
            self._fail(v, f"the variable's name is not an identifier: {name!r}")
        if name in self.bound:
            self._fail(None, f"`{name}` is bound twice")
        self.bound[name] = v

    def _value(self, root: Expr, whole: bool) -> None:
        """Checks the nodes under `root` that were not checked before. If `whole`, `root` itself may have an effect."""
        if not whole and (effect := effect_of(root, self.impure)):
            self._fail(root, f"{effect} must be the whole value of a binding outside dataflow blocks")
        for e in postorder([root], stop=self.seen.__contains__):
            if e in self.seen:
                continue
            self.seen.add(e)
            for a in e.args:
                filled = e is root and whole and e.op == heads.CALL_INTO and a is e.args[0]
                if not filled and (effect := effect_of(a, self.impure)):
                    self._fail(a, f"{effect} must be the whole value of a binding outside dataflow blocks")
            if self.is_dataflow and e.op in heads.BEYOND_TENSORS:
                self._fail(e, f"a dataflow block has a {e.op}\n  accepted: tensors there, other values outside of it")
            self._node(e)

    def _node(self, e: Expr) -> None:
        if e.op == heads.VAR:
            self._variable(e)
        elif e.op == heads.TUPLE_GET:
            self._field(e)
        elif e.op == heads.FUNCTION and e.attr("name") not in self.arity:
            name = e.attr("name")
            self._fail(e, f"the module has no function `{name}`{did_you_mean(name, self.arity)}")
        elif e.op == heads.CALL:
            self._call(e)
        elif e.op == heads.CONSTRUCT:
            self._constructed(e)
        elif e.op in heads.REFERENCES:
            self._reference(e)
        elif e.op in heads.CONTROL:
            self._control(e)
        if e.op != heads.MATCH_CAST:  # a match_cast may define sizes
            self._known_sizes(e, self._sizes_of(e.annotation))
        for _, value in e.attrs:
            self._known_sizes(e, {v for d in dims_in(value) for v in d.variables})

    def _variable(self, e: Expr) -> None:
        name = e.attr("name")
        bound = self.bound.get(name)
        if bound is e:
            return
        if e in self.outputs:
            self._fail(e, f"`{name}` is an output of this dataflow block; inside the block its value is to be used")
        if bound is None:
            self._fail(e, f"`{name}` is not defined before its use{did_you_mean(name, self.bound)}")
        self._fail(e, f"`{name}` is bound as {bound.annotation} and used as {e.annotation}")

    def _field(self, e: Expr) -> None:
        index, whole = e.attr("index"), e.args[0].annotation
        if isinstance(whole, Tuple):
            if type(index) is not int or not 0 <= index < len(whole.fields):
                self._fail(e, f"there is no field {index!r} in a tuple of {len(whole.fields)}")
        elif not isinstance(whole, Object):
            self._fail(e, f"a field is taken of {whole}, which is not a tuple")

    def _call(self, e: Expr) -> None:
        if not e.args:
            self._fail(e, "a call needs what is called as its first operand")
        callee, given = e.args[0], len(e.args) - 1
        name = callee.attr("name") if callee.op in (heads.FUNCTION, heads.VAR) else callee.op
        if callee.op == heads.FUNCTION:
            wanted = self.arity[name]  # the FUNCTION operand was checked before, so the function exists
        elif isinstance(callee.annotation, Callable):
            wanted = len(callee.annotation.params)
        elif isinstance(callee.annotation, Object):
            return
        else:
            self._fail(e, f"`{name}` is called and is {callee.annotation}, not a function")
        if given != wanted:
            self._fail(e, f"`{name}` takes {wanted} argument{'' if wanted == 1 else 's'}, given: {given}")

    def _constructed(self, e: Expr) -> None:
        a, name = e.annotation, e.attr("constructor")
        if not isinstance(a, Data) or name not in [c.name for c in a.definition.constructors]:
            self._fail(e, f"`{name}` constructs no {a}")
        try:
            found = constructed_annotation(a.definition, name, [x.annotation for x in e.args])
        except OperatorError as error:
            self._fail(e, str(error))
        if not covers(a, found):
            self._fail(e, f"it is annotated {a} and is {found}")

    def _reference(self, e: Expr) -> None:
        try:
            if len(e.args) != 1 + (e.op == heads.WRITE_REF):
                raise OperatorError(f"{e.op} of {len(e.args)} operands")
            found = reference_annotation(e.op, [a.annotation for a in e.args], e.annotation)
        except OperatorError as error:
            self._fail(e, str(error))
        if not covers(e.annotation, found):
            self._fail(e, f"it is annotated {e.annotation} and is {found}")

    def _control(self, e: Expr) -> None:
        try:
            found = deduce_control(e.op, [a.annotation for a in e.args], dict(e.attrs))
        except OperatorError as error:
            self._fail(e, str(error))
        if found != e.annotation:
            self._fail(e, f"its functions give {found}")

    def _sizes_of(self, annotation: Annotation) -> frozenset[str]:
        found = self.size_cache.get(annotation)
        if found is None:
            found = frozenset(v for d in dims_of(annotation) for v in d.variables)
            self.size_cache[annotation] = found
        return found

    def _known_sizes(self, e: Expr, names: Iterable[str]) -> None:
        for name in sorted(names):
            if name not in self.sizes:
                self._fail(
                    e,
                    f"the size `{name}` is not known here: no parameter and no earlier match_cast brings it in"
                    + did_you_mean(name, self.sizes),
                )

    def _fail(self, e: Expr | None, problem: str) -> NoReturn:
        origin = None if e is None else self.function.origins.get(e)
        where = f"function `{self.function.name}`, {self.place}" + (f" ({origin})" if origin else "")
        raise WellFormedError(
            f"{where}: {problem}" + ("" if e is None or e.op == heads.VAR else f"\n  in {_node_text(e)}")
        )


@lru_cache(KEPT)
def _is_name(name: str) -> bool:
    # Python normalizes identifiers to NFKC, so text with another form would not read back.
    return name.isidentifier() and not keyword.iskeyword(name) and unicodedata.normalize("NFKC", name) == name


def _node_text(e: Expr) -> str:
    names = [str(a.attr("name")) if a.op in (heads.VAR, heads.FUNCTION) else f"<{a.op}>" for a in e.args]
    label = str(e.attr("name")) if e.op in (heads.FUNCTION, heads.CALL_DPS_LIBRARY) else e.op
    return f"{label}({', '.join(names)}): {e.annotation}"
