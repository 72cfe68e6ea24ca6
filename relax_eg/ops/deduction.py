"""Deduction over whole modules: forward, each expression once (Relax, 4.1).

An expression's annotation follows from its operands' annotations alone, a call's from the signature of its callee, a
foreign call's from the result that it declares, and a `match_cast`'s from what it asserts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from relax_eg.errors import OperatorError, RelaxEgError, WellFormedError
from relax_eg.ir import heads
from relax_eg.ir.annotations import Annotation, Data, Object, Shape, Tensor, Tuple
from relax_eg.ir.annotations import Callable as Signature
from relax_eg.ir.calls import (
    call_annotation,
    callees_first,
    closure_annotation,
    constructed_annotation,
    reaching_cycles,
    signature,
)
from relax_eg.ir.control import deduce_control, reference_annotation
from relax_eg.ir.expr import Expr, constant_value, node, postorder, var
from relax_eg.ir.lattice import annotation_clash, covers
from relax_eg.ir.module import Binding, Block, Function, Module
from relax_eg.ir.tensor_calls import tir_annotation
from relax_eg.ops.data_dependent import BY_LIBRARY, deduce_routine
from relax_eg.ops.keys import dtype_name
from relax_eg.ops.libraries import library_of
from relax_eg.ops.partial_annotations import is_partial
from relax_eg.ops.record import TABLE, deduce


def deduce_module(module: Module) -> Module:
    """Returns `module` with every annotation deduced from the parameters' annotations. O(expressions).

    WellFormedError where a stated annotation contradicts the deduced one or says more.
    """
    signatures = {f.name: signature(f) for f in module}
    recursive = reaching_cycles(
        {f.name: [e.attr("name") for e in f.expressions() if e.op == heads.FUNCTION] for f in module}
    )
    made: dict[str, Function] = {}
    for f in callees_first(module):
        made[f.name] = _Deduction(f, signatures).function()
        if f.name not in recursive:  # others may have been deduced from the signature that it declares
            signatures[f.name] = signature(made[f.name])
    return Module(tuple(made[f.name] for f in module))


class _Deduction:
    """The deduction of one function; `signatures` has those of the functions that it calls, by name."""

    def __init__(self, function: Function, signatures: dict[str, Signature]) -> None:
        self.old = function
        self.signatures = signatures
        self.new: dict[Expr, Expr] = {}
        self.place = "the result"

    def function(self) -> Function:
        f = self.old
        blocks: list[Block] = []
        for block in f.blocks:
            # In order: outside dataflow blocks, later bindings read the value of an earlier one by its variable.
            blocks.append(Block(tuple(map(self._binding, block.bindings)), block.dataflow))
        self.place = "the result"
        result = self._value(f.result)
        origins = {self.new.get(e, e): origin for e, origin in f.origins.items()}
        return replace(f, blocks=tuple(blocks), result=result, origins=MappingProxyType(origins))

    def _binding(self, b: Binding) -> Binding:
        self.place = f"binding `{b.name}`"
        value = self._value(b.value)
        self._check_annotation(b.var, value.annotation)
        bound = b.var if b.var.annotation == value.annotation else var(b.name, value.annotation)
        self.new[b.var] = bound
        return Binding(bound, value)

    def _value(self, root: Expr) -> Expr:
        for e in postorder((root,), stop=self.new.__contains__):
            if e not in self.new:
                self.new[e] = self._node(e, tuple(self.new[a] for a in e.args))
        return self.new[root]

    def _node(self, e: Expr, args: tuple[Expr, ...]) -> Expr:
        if e.op == heads.VAR:
            return e
        try:
            found = annotation_from(e, [a.annotation for a in args], self.signatures)
        except OperatorError as error:
            raise self._error(e, str(error)) from None
        self._check_annotation(e, found)
        if found == e.annotation and args == e.args:
            return e
        return node(e.op, args, e.attrs, found)

    def _check_annotation(self, e: Expr, found: Annotation) -> None:
        """Raises WellFormedError where the annotation of `e` does not follow from `found`, the deduced one."""
        if covers(e.annotation, found) or isinstance(e.annotation, Signature):
            return
        why = annotation_clash(e.annotation, found)
        text = f"it is annotated {e.annotation} and is {found}" + (f": {why}" if why else "; match_cast asserts more")
        raise self._error(e, text)

    def _error(self, e: Expr, text: str) -> RelaxEgError:
        origin = self.old.origins.get(e)
        where = f"function `{self.old.name}`, {self.place}" + (f" ({origin})" if origin else "")
        return WellFormedError(f"{where}: {text}")


def annotation_from(e: Expr, operands: Sequence[Annotation], signatures: Mapping[str, Signature]) -> Annotation:
    """Returns the annotation of a node other than a variable, from those of its operands. OperatorError if it does not
    take such operands.

    `signatures`: of the functions of the module, by name. One that is not there is taken as it is annotated.
    """
    if e.op in TABLE:
        return deduce(e.op, tuple(operands), dict(e.attrs))
    if e.op == heads.CONSTANT:
        array = constant_value(e)
        return Tensor(array.shape, dtype_name(array))
    if e.op == heads.TUPLE:
        return Tuple(tuple(operands))
    if e.op == heads.TUPLE_GET:
        whole, index = operands[0], e.attr("index")
        return whole.fields[index] if isinstance(whole, Tuple) and index < len(whole.fields) else Object()
    if e.op == heads.SHAPE:
        return Shape(e.attr("dims"))
    if e.op == heads.FUNCTION:
        return signatures.get(e.attr("name"), e.annotation)
    if e.op == heads.CALL:
        callee = e.args[0]
        name = str(callee.attr("name")) if callee.op in (heads.FUNCTION, heads.VAR) else "a function"
        return call_annotation(operands[0], operands[1:], name, callee.op != heads.FUNCTION)
    if e.op in heads.REFERENCES:
        return reference_annotation(e.op, operands, e.annotation)
    if e.op == heads.CLOSURE:
        return closure_annotation(operands[0], operands[1:])
    if e.op == heads.CONSTRUCT and isinstance(e.annotation, Data):
        return constructed_annotation(e.annotation.definition, e.attr("constructor"), operands)
    if e.op in heads.CONTROL:
        return deduce_control(e.op, operands, dict(e.attrs))
    return _foreign_annotation(e, operands)


def _foreign_annotation(e: Expr, operands: Sequence[Annotation]) -> Annotation:
    """Returns what a foreign call fills or a match_cast asserts. OperatorError where that is impossible."""
    if e.op == heads.CALL_TIR:
        found = tir_annotation(e.attr("program").value, operands, e.attr("sizes"))
        if why := annotation_clash(found, e.annotation):
            raise OperatorError(f"call_tir: {found} is filled, and annotated {e.annotation}: {why}")
        return e.annotation
    routine = BY_LIBRARY.get(e.attr("name")) if e.op == heads.CALL_DPS_LIBRARY else None
    if routine is not None:
        return deduce_routine(routine.name, tuple(operands), dict(e.attr("attrs")))[1]
    library = library_of(e)
    if library is not None and not any(map(is_partial, operands)):
        found = library.annotation(operands, dict(e.attr("attrs")))
        if why := annotation_clash(found, e.annotation):
            raise OperatorError(f"library `{library.name}` fills {found}, and is annotated {e.annotation}: {why}")
        if covers(e.annotation, found):
            return found
    if e.op == heads.MATCH_CAST and (why := annotation_clash(operands[0], e.annotation)):
        raise OperatorError(f"match_cast: a value annotated {operands[0]} is never {e.annotation}: {why}")
    return e.annotation
