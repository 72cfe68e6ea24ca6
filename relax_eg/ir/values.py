"""Reads the expressions of module text."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from relax_eg.argument_checks import did_you_mean
from relax_eg.errors import ModuleTextError, OperatorError, RelaxEgError, UndecidedError
from relax_eg.ir import heads
from relax_eg.ir.annotations import (
    Annotation,
    Data,
    DataType,
    Object,
    Shape,
    Tensor,
    Tuple,
    TypeVar,
    dims_of,
    substitute,
    substitute_types,
)
from relax_eg.ir.annotations import Callable as Signature
from relax_eg.ir.calls import call_annotation, call_sizes, call_types, closure, constructed_annotation
from relax_eg.ir.control import reference_annotation
from relax_eg.ir.expr import ConstantData, Expr, call_dps_library, const, match_cast, node, tuple_
from relax_eg.ir.lattice import covers
from relax_eg.ir.literals import array_of
from relax_eg.ir.memory import alloc_storage, alloc_tensor, call_into, kill
from relax_eg.ir.printer import RESERVED
from relax_eg.ir.python_syntax import METHODS, PROPERTIES, PythonExpressionReader
from relax_eg.ir.reader import unqualified_name
from relax_eg.ir.reading import ModuleScope, ReadingState
from relax_eg.ir.upstream import UpstreamForms, names_program
from relax_eg.shapes import Dim
from relax_eg.tir import TensorProgram
from relax_eg.tir.prim_func import PrimFunc

VALUES = "a variable, an operator R.name(...), + - * / @ **, a number, a tuple, or a call of a function"
TENSOR_PROGRAM = "R.call_tir(Module.program, (arguments,), out=annotation, sizes={...})"
MEMORY_FORMS = {
    heads.ALLOC_STORAGE: (("size", "device", "dtype"), 'R.alloc_storage("4*n", "cpu", "uint8"), the size in bytes'),
    heads.ALLOC_TENSOR: (("storage", "offset", "shape", "dtype"), 'R.alloc_tensor(storage, 0, ("n",), "float32")'),
    heads.CALL_INTO: (("kernel", "into"), "R.call_into(kernel, tensor, ...), tensors that are allocated"),
    heads.KILL: (("tensor",), "R.kill(tensor)"),
}
LIBRARY = 'R.call_dps_library("name", (arguments,), out=annotation, attrs={...}, pure=True)'


def _dtype(annotation: Annotation) -> str | None:
    return annotation.dtype if isinstance(annotation, Tensor) else None


def _why_no_value(at: ast.expr) -> tuple[str, str]:
    """What is wrong with an expression that is no value, and what would be accepted."""
    if isinstance(at, ast.BoolOp):
        return "`and` and `or` take truth values of Python", "a & b, a | b of bool tensors"
    member, known, kind = at, PROPERTIES, "attribute"
    if isinstance(at, ast.Call):
        member, known, kind = at.func, METHODS, "method"
    if isinstance(member, ast.Attribute):
        problem = f"a value has no {kind} `{member.attr}`{did_you_mean(member.attr, known)}"
        return problem, f"{', '.join(sorted(known))}; an operator R.name(...)"
    return "this is not a value", VALUES


class ExpressionReader(ReadingState):
    """A reader of the expressions of one function.

    An annotation declared in the text becomes the expression's annotation.
    """

    def __init__(self, scope: ModuleScope) -> None:
        super().__init__(scope)
        self.python_reader = PythonExpressionReader(self, scope.functions)
        self.upstream = UpstreamForms(self)

    def expression(self, at: ast.expr, declared: Annotation | None = None) -> Expr:
        if isinstance(at, ast.Name):
            return self._name_value(at)
        if isinstance(at, ast.Lambda):
            return self.anonymous(at, declared)
        if isinstance(at, ast.Call) and (form := self.upstream.reads(at)) is not None:
            try:
                return form(at, declared)
            except (KeyError, TypeError, ValueError, IndexError) as error:
                if isinstance(error, RelaxEgError):
                    raise
                raise self.source.error(at, "this call has other arguments than it takes", VALUES) from None
        if isinstance(at, ast.Call) and (filled := self.upstream.fills(at)) is not None:
            return filled
        if isinstance(at, ast.Call) and (constructor := self._constructor(at.func)) is not None:
            return self._constructed(at, *constructor, declared)
        if self.reader.number(at) is None and self.python_reader.reads(at):
            return self.python_reader.value(at, declared)
        if isinstance(at, ast.Call) and (called := self._call_value(at, declared)) is not None:
            return called
        number = self.reader.number(at)
        if number is not None:
            dtype = None if declared is None else _dtype(declared)
            return self._number(at, number, [] if dtype is None else [dtype])
        if isinstance(at, ast.Tuple):
            return self._tuple(at, at.elts, declared)
        if isinstance(at, ast.Attribute) and isinstance(at.value, ast.Name) and at.value.id in self.scope.classes:
            return self._function(at, at.attr, declared)
        raise self.source.error(at, *_why_no_value(at))

    def _name_value(self, at: ast.Name) -> Expr:
        found = self.names.get(at.id)
        if found is not None:
            return found
        if at.id in self.scope.names:
            return self._function(at, at.id, None)
        if at.id in self.hidden:
            why, wanted = self.hidden[at.id]
            raise self.source.error(at, f"`{at.id}` is {why}", wanted)
        problem = f"`{at.id}` is not defined{did_you_mean(at.id, [*self.names, *self.scope.names])}"
        raise self.source.error(at, problem, "a parameter, an earlier binding or a function of the module")

    def _function(self, at: ast.expr, name: str, declared: Annotation | None) -> Expr:
        if name not in self.scope.names:
            problem = f"no function `{name}` in the module{did_you_mean(name, self.scope.names)}"
            raise self.source.error(at, problem, "a function of the module")
        annotation = declared or self.scope.signatures.get(name)
        if annotation is None:
            problem = f"what `{name}` returns is not known yet"
            raise self.source.error(at, problem, f"`def {name}(...) -> annotation:`, or {name} defined before its use")
        return node(heads.FUNCTION, (), (("name", name),), annotation)

    def _number(self, at: ast.expr, number: Any, dtypes: Sequence[str]) -> Expr:
        """Returns a number as a constant of the first of `dtypes` that can hold it."""
        problem: Exception | None = None
        for dtype in dtypes:
            try:
                return const(array_of(number, dtype))
            except (ValueError, TypeError, AttributeError, OverflowError) as error:
                problem = problem or error
        if problem is not None:
            wanted = f'a number that {dtypes[0]} holds, or R.const(number, "dtype")'
            raise self.source.at_position(at, problem, wanted) from None
        return const(number)

    def _tuple(self, at: ast.expr, written: Sequence[ast.expr], declared: Annotation | None) -> Expr:
        fields = list(map(self.expression, written))
        found = Tuple(tuple(f.annotation for f in fields))
        self.check_declared(at, found, declared)
        return node(heads.TUPLE, fields, (), declared or found)

    def _operands(self, nodes: list[ast.expr]) -> list[Expr]:
        """Returns the operands of an operator. A bare number takes the dtype of another operand."""
        numbers = [self._bare_number(at) for at in nodes]
        found = [self.expression(at) if n is None else None for at, n in zip(nodes, numbers, strict=True)]
        dtypes = [d for e in found if e is not None and (d := _dtype(e.annotation)) is not None]
        return [self._number(at, n, dtypes) if e is None else e for e, at, n in zip(found, nodes, numbers, strict=True)]

    def _bare_number(self, at: ast.expr) -> bool | int | float | complex | None:
        return None if isinstance(at, (ast.Name, ast.Call)) else self.reader.number(at)

    def _call_value(self, at: ast.Call, declared: Annotation | None) -> Expr | None:
        """Returns the value of a call, or None if the call is a number such as `float("inf")`."""
        name = unqualified_name(at.func)
        plain = at.func.id if isinstance(at.func, ast.Name) else None
        if plain is not None and plain not in self.names and plain not in self.scope.names:
            if plain in ("call_dps_library", "match_cast"):
                name = plain
            elif self.reader.number(at) is not None:
                return None
        if name is None:
            if at.keywords:
                raise self.source.error(at.keywords[0], "functions take no keywords", "arguments by position")
            if isinstance(at.func, ast.Lambda):
                args = list(map(self.expression, at.args))
                callee = self.anonymous(at.func, Signature(tuple(a.annotation for a in args), Object()))
            else:
                of = at.func.value if isinstance(at.func, ast.Attribute) else None
                if isinstance(of, ast.Name) and of.id in self.names:
                    raise self.source.error(at, *_why_no_value(at))
                callee = self.expression(at.func)
                params = callee.annotation.params if isinstance(callee.annotation, Signature) else ()
                args = self._arguments(at.args, params, ast.unparse(at.func))
            known = self._read_sizes(callee)
            told = None if declared == known else declared
            called = node(heads.CALL, (callee, *args), (), self._result(at, callee, args, told))
            made = self.step(at, called, callee.op != heads.FUNCTION or callee.attr("name") in self.scope.general)
            if told is not None or known is None or covers(known, called.annotation):
                return made
            return self.step(at, match_cast(made, known))
        if name in RESERVED:
            return self._core(at, name, declared)
        try:
            return self._own_operator(at, name, declared)
        except ModuleTextError as error:
            if f"R.{name}" not in self.scope.functions:
                raise
            try:
                found = self.python_reader.called_as_upstream(at, name)
            except ModuleTextError as other:
                hidden = any(isinstance(n, ast.Name) and n.id in self.hidden for n in ast.walk(at))
                text = any(isinstance(n, ast.Constant) and isinstance(n.value, str) for n in at.args)
                raise (other if hidden or text else error) from None
            if isinstance(found, tuple):
                found = tuple_(found)
            self.check_declared(at, found.annotation, declared)
            return found

    def _own_operator(self, at: ast.Call, name: str, declared: Annotation | None) -> Expr:
        """Reads an operator as it is printed: operands, then attributes by name."""
        for arg in at.args:
            if isinstance(arg, ast.Constant) and isinstance(arg.value, str):
                raise self.source.error(arg, f"operands of R.{name} are values", "attributes by keyword: name=value")
        attrs = {k: self.reader.attribute(v) for k, v in self.reader.keywords(at).items()}
        return self._operator(at, name, self._operands(at.args), attrs, declared)

    def _read_sizes(self, callee: Expr) -> Annotation | None:
        """What a closure returns, if that has sizes that it read where it was made; None otherwise."""
        a = callee.annotation
        if self.emit is None or callee.op == heads.FUNCTION or not isinstance(a, Signature):
            return None
        read = {v for d in dims_of(a.result) for v in d.variables}
        own = {v for p in a.params for d in dims_of(p) for v in d.variables}
        return a.result if read and not read & own and read <= self.sizes else None

    def _arguments(self, given: list[ast.expr], params: Sequence[Annotation], name: str) -> list[Expr]:
        """Returns the arguments of a call. A number takes the dtype of its parameter, and a lambda the annotations of
        its parameters from what the other arguments determine."""
        wanted: list[Annotation | None] = [*params, *([None] * len(given))]
        found: list[Expr | None] = []
        for at, param in zip(given, wanted, strict=False):
            takes = param if self._bare_number(at) is not None and _dtype(param or Object()) is not None else None
            found.append(None if isinstance(at, ast.Lambda) else self.expression(at, takes))
        for i, at in enumerate(given):
            if isinstance(at, ast.Lambda):
                known = [(p, e.annotation) for p, e in zip(params, found, strict=False) if e is not None]
                try:
                    types = call_types([p for p, _ in known], [a for _, a in known], name)
                except OperatorError as error:
                    raise self.source.at_position(at, error, f"what {name} takes") from None
                param = None if wanted[i] is None else substitute_types(wanted[i] or Object(), types)
                if isinstance(param, Signature):  # the callee calls it, at the sizes of these arguments
                    sizes = call_sizes([p for p, _ in known], [a for _, a in known])
                    param = Signature(tuple(substitute(p, sizes) for p in param.params), param.result)
                found[i] = self.expression(at, param)
        return [e for e in found if e is not None]

    def _constructor(self, at: ast.expr) -> tuple[DataType, str] | None:
        """Returns the data type and the name of the constructor that `at` names, as `List.Cons`; None if it names
        none."""
        if not isinstance(at, ast.Attribute) or not isinstance(at.value, ast.Name):
            return None
        definition = self.reader.types.get(at.value.id) if at.value.id not in self.names else None
        if definition is None:
            return None
        names = [c.name for c in definition.constructors]
        if at.attr not in names:
            problem = f"`{definition.name}` has no constructor `{at.attr}`{did_you_mean(at.attr, names)}"
            raise self.source.error(at, problem, f"one of {', '.join(names)}")
        return definition, at.attr

    def _constructed(self, at: ast.Call, definition: DataType, name: str, declared: Annotation | None) -> Expr:
        params = Data(definition, tuple(map(TypeVar, definition.params))).fields(definition.index(name))
        called = f"{definition.name}.{name}"
        if len(at.args) != len(params) or at.keywords:
            problem = f"{called} has {len(params)} field{'s' * (len(params) != 1)}, given: {len(at.args)}"
            raise self.source.error(at, problem, "a value for each field, by position")
        args = self._arguments(at.args, params, called)
        try:
            found = constructed_annotation(definition, name, [a.annotation for a in args])
        except OperatorError as error:
            raise self.source.at_position(at, error, f"what {called} holds") from None
        self.check_declared(at, found, declared)
        return node(heads.CONSTRUCT, args, (("constructor", name),), declared if isinstance(declared, Data) else found)

    def _operator(
        self, at: ast.expr, name: str, operands: list[Expr], attrs: Mapping[str, Any], declared: Annotation | None
    ) -> Expr:
        try:
            attrs, annotation = self.scope.deduce(name, tuple(o.annotation for o in operands), attrs)
            self.check_declared(at, annotation, declared)
        except UndecidedError as error:
            wanted = "R.match_cast(value, annotation) before, which checks the sizes when it runs"
            raise self.source.at_position(at, error, wanted) from None
        except RelaxEgError as error:
            raise self.source.at_position(at, error, "operands and attributes that the operator takes") from None
        if name in self.scope.routines:
            return call_dps_library(self.scope.routines[name], operands, declared or annotation, attrs.items())
        return node(name, operands, attrs.items(), declared or annotation)

    def _core(self, at: ast.Call, name: str, declared: Annotation | None) -> Expr:
        args, keywords = at.args, self.reader.keywords(at)
        if name in ("const", "const_data"):
            data = ConstantData(self.reader.constant(at, name))
            found = Tensor(data.array.shape, data.array.dtype.name)
            self.check_declared(at, found, declared)
            return node(heads.CONSTANT, (), (("data", data),), declared or found)
        if name == "shape" and not keywords:
            written = len(args) == 1 and isinstance(args[0], (ast.Tuple, ast.List))
            dims = self.reader.sizes(args[0]) if written else tuple(map(self.reader.size, args))
            self.check_declared(at, Shape(dims), declared)
            return node(heads.SHAPE, (), (("dims", dims),), declared or Shape(dims))
        if name == "tuple" and not keywords:
            return self._tuple(at, args, declared)
        if name == "match_cast" and len(args) == 2 and not keywords:
            asserted = self.reader.annotation(args[1])
            self._check_same(args[1], asserted, declared)
            return self.step(at, node(heads.MATCH_CAST, (self.expression(args[0]),), (), asserted))
        if name == "call_dps_library":
            return self._library(at, args, keywords, declared)
        if name == "call_tir":
            return self._tensor_program(at, args, keywords, declared)
        if name == heads.CLOSURE and len(args) == 2 and isinstance(args[1], (ast.Tuple, ast.List)) and not keywords:
            try:
                made = closure(self.expression(args[0]), list(map(self.expression, args[1].elts)))
            except OperatorError as error:
                raise self.source.at_position(at, error, "a function, and its first arguments") from None
            self.check_declared(at, made.annotation, declared)
            return node(made.op, made.args, (), declared or made.annotation)
        if name in heads.REFERENCES and len(args) == 1 + (name == heads.WRITE_REF) and not keywords:
            return self._reference(at, name, list(map(self.expression, args)), declared)
        if name in heads.MEMORY:
            return self._memory(at, name, args, keywords)
        raise self.source.error(at, f"R.{name} is not a value with these arguments", VALUES)

    def _reference(self, at: ast.Call, name: str, args: list[Expr], declared: Annotation | None) -> Expr:
        try:
            found = reference_annotation(name, [a.annotation for a in args], declared)
        except OperatorError as error:
            raise self.source.at_position(at, error, "R.new_ref(value), R.read_ref(r), R.write_ref(r, value)") from None
        self.check_declared(at, found, declared)
        return self.step(at, node(name, args, (), declared or found))

    def _memory(self, at: ast.Call, name: str, args: list[ast.expr], keywords: dict[str, ast.expr]) -> Expr:
        parameters, wanted = MEMORY_FORMS[name]
        given = dict(zip(parameters, args, strict=False)) | keywords
        many = name == heads.CALL_INTO
        if set(given) != set(parameters) or (len(args) + len(keywords) != len(given) and not many):
            raise self.source.error(at, f"this {name} cannot be read", wanted)
        if name == heads.CALL_INTO:
            return call_into(self.expression(args[0]), map(self.expression, args[1:]))
        if name == heads.KILL:
            return kill(self.expression(given["tensor"]))
        dtype = self.reader.attribute(given["dtype"])
        device = self.reader.attribute(given["device"]) if "device" in given else ""
        if not isinstance(dtype, str) or not isinstance(device, str):
            raise self.source.error(at, "dtype and device are text", wanted)
        if name == heads.ALLOC_STORAGE:
            return alloc_storage(self.reader.size(given["size"]), device, dtype)
        offset, shape = self.reader.size(given["offset"]), self.reader.sizes(given["shape"])
        return alloc_tensor(self.expression(given["storage"]), offset, shape, dtype)

    def _library(
        self, at: ast.Call, args: list[ast.expr], keywords: dict[str, ast.expr], declared: Annotation | None
    ) -> Expr:
        given = dict(zip(("name", "args", "out", "attrs", "pure"), args, strict=False)) | keywords
        name = given.pop("name", None)
        operands = given.pop("args", None)
        out, attrs, pure = given.pop("out", None), given.pop("attrs", None), given.pop("pure", None)
        if given or not isinstance(name, ast.Constant) or not isinstance(name.value, str):
            raise self.source.error(at, "this library call cannot be read", LIBRARY)
        if not isinstance(operands, (ast.Tuple, ast.List)):
            raise self.source.error(operands or at, "the arguments of a library call are a tuple", LIBRARY)
        annotation = declared if out is None else self.reader.annotation(out)
        if annotation is None:
            raise self.source.error(at, f'"{name.value}" does not say what it fills', LIBRARY)
        if out is not None:
            self._check_same(out, annotation, declared)
        is_pure = True if pure is None else self.reader.attribute(pure)
        if not isinstance(is_pure, bool):
            raise self.source.error(pure or at, "`pure` is True or False", LIBRARY)
        pairs = self._library_attrs(attrs)
        values = (("name", name.value), ("attrs", pairs), ("pure", is_pure))
        return node(heads.CALL_DPS_LIBRARY, map(self.expression, operands.elts), values, annotation)

    def _tensor_program(
        self, at: ast.Call, args: list[ast.expr], keywords: dict[str, ast.expr], declared: Annotation | None
    ) -> Expr:
        given = dict(zip(("program", "args", "out", "sizes"), args, strict=False)) | keywords
        program, operands = given.pop("program", None), given.pop("args", None)
        outs = [given.pop(k) for k in ("out", "out_sinfo", "out_ty") if k in given]
        out = outs[0] if outs else None
        sizes, passed = given.pop("sizes", None), given.pop("tir_vars", None)
        if given or program is None or operands is None or len(outs) > 1:
            raise self.source.error(at, "this call of a tensor program cannot be read", TENSOR_PROGRAM)
        called = self.program(program)
        size_values = {name: Dim.of(size) for name, size in self._library_attrs(sizes)}
        if passed is not None:
            told = self.expression(passed).annotation
            names = called.size_parameters if isinstance(called, PrimFunc) else called.passed
            size_values |= dict(zip(names, (told.dims if isinstance(told, Shape) else None) or (), strict=False))
        annotation = declared if out is None else self.reader.result(out)
        if out is not None and annotation is not None:
            self._check_same(out, annotation, declared)
        written = operands.elts if isinstance(operands, (ast.Tuple, ast.List)) else [operands]
        values = list(map(self.expression, written))
        try:
            return self.upstream.call_program(at, called, values, annotation, size_values)
        except OperatorError as error:
            raise self.source.at_position(at, error, f"what {called.name} takes and fills") from None

    def program(self, at: ast.expr) -> TensorProgram | PrimFunc:
        """Returns the tensor program that `at` names, as `Module.name` or as a bare name."""
        name = names_program(at, self.scope.classes)
        if name in self.scope.prim_funcs:
            return self.scope.prim_funcs[name]
        if name not in self.scope.programs:
            problem = (
                f"no tensor program `{ast.unparse(at)}` in the module{did_you_mean(str(name), self.scope.programs)}"
            )
            raise self.source.error(at, problem, "a function under @R.tensor_program in the same text")
        return self.scope.programs[name]

    def _library_attrs(self, at: ast.expr | None) -> tuple[tuple[str, Any], ...]:
        if at is None:
            return ()
        if not isinstance(at, ast.Dict):
            raise self.source.error(at, "the attributes of a library call are a dict", 'attrs={"name": value}')
        pairs: list[tuple[str, Any]] = []
        for key, value in zip(at.keys, at.values, strict=True):
            if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                raise self.source.error(key or value, "attributes are named by text", 'attrs={"name": value}')
            pairs.append((key.value, self.reader.attribute(value)))
        return tuple(pairs)

    def _result(self, at: ast.Call, callee: Expr, args: list[Expr], declared: Annotation | None) -> Annotation:
        """Returns the annotation of a call, deduced from the callee's signature."""
        called = ast.unparse(at.func)
        try:
            found = call_annotation(
                callee.annotation, [a.annotation for a in args], called, callee.op != heads.FUNCTION
            )
        except OperatorError as error:
            raise self.source.at_position(at, error, f"what {called} takes") from None
        self.check_declared(at, found, declared)
        return declared or found

    def _check_same(self, at: ast.expr, annotation: Annotation, declared: Annotation | None) -> None:
        if declared is not None and declared != annotation:
            problem = f"the name is declared {declared}, its value says {annotation}"
            raise self.source.error(at, problem, "the same annotation, or `name: annotation = value` on its own line")
