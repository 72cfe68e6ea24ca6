"""Reads what only Relax's own text spells: packed calls, prim values, calls in place, explicit memory, devices.

Each form becomes what this language has for it. A prim value that is a whole number is a shape of one size; a packed
function is a function of the host (`host_calls`), as a copy to a device is (`devices`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable as Function
from collections.abc import Sequence
from typing import Any

from relax_eg.dtypes import RECORDS
from relax_eg.errors import OperatorError, OptionError, SpecError
from relax_eg.ir.annotations import Annotation, Callable, Object, Shape, Tensor, Tuple
from relax_eg.ir.calls import call_annotation, call_sizes
from relax_eg.ir.devices import to_device, written_device
from relax_eg.ir.expr import ALLOC_STORAGE, CALL, FUNCTION, SHAPE, Expr, const, node, shape_value, tuple_
from relax_eg.ir.host_calls import OWN, PROGRAM, Convention, host_call
from relax_eg.ir.memory import alloc_storage, alloc_tensor, call_into, kill
from relax_eg.ir.placements import DeviceMesh
from relax_eg.ir.reader import dotted_name
from relax_eg.ir.reading import ReadingState
from relax_eg.ir.tensor_calls import call_tir
from relax_eg.ir.vm_builtins import VmBuiltins
from relax_eg.shapes import Dim
from relax_eg.tir import TensorProgram
from relax_eg.tir.prim_func import PrimFunc
from relax_eg.tir.values import last_name

PACKED = 'R.call_packed("name", arguments, sinfo_args=annotation)'
IN_PLACE = "R.call_tir_inplace(cls.program, (arguments,), inplace_indices=[0], out_sinfo=annotation)"
_OUT = ("out", "out_sinfo", "out_ty", "sinfo_args", "ty_args")  # the words of versions of Relax for the same thing


class UpstreamForms:
    """A reader of the forms of one function."""

    def __init__(self, values: ReadingState) -> None:
        self.values = values
        self.reader = values.reader
        self.source = values.source
        self.machine = VmBuiltins(values)
        self.forms: dict[str, Function[[ast.Call, Annotation | None], Expr]] = {
            "prim_value": self._prim_value,
            "print": self._print,
            "assert_op": self._assert,
            "shape_of": self._shape_of,
            "tensor_to_shape": self._tensor_to_shape,
            "shape_to_tensor": self._shape_to_tensor,
            "ExternFunc": self._extern,
            "str": self._text,
            "dtype": self._text,
            "StringImm": self._text,
            "call_packed": lambda at, a: self._packed(at, a, pure=False),
            "call_pure_packed": lambda at, a: self._packed(at, a, pure=True),
            "call_builtin_with_ctx": self._with_context,
            "call_inplace_packed": lambda at, a: self._packed(at, a, pure=True),
            "call_dps_packed": self._dps,
            "call_tir_inplace": self._tir_in_place,
            "invoke_closure": self._invoke,
            "invoke_pure_closure": self._invoke,
            "to_vdevice": self._to_device,
            "hint_on_device": self._to_device,
            "builtin.stop_lift_params": self._same,
            "wrap_param": self._same,
            "memory.alloc_storage": self._alloc_storage,
            "vm.alloc_storage": self._alloc_storage,
            "memory.alloc_tensor": self._alloc_tensor,
            "vm.alloc_tensor": self._alloc_tensor,
            "builtin.alloc_tensor": self._alloc_alone,
            "memory.kill_tensor": self._kill,
            "memory.kill_storage": self._kill,
            "vm.kill_object": self._kill,
            "vm.call_tir_dyn": self._tir_dyn,
        }

    def reads(self, at: ast.expr) -> Function[[ast.Call, Annotation | None], Expr] | None:
        """Returns the reader of a call, if it is one of the forms."""
        path = dotted_name(at.func) if isinstance(at, ast.Call) else None
        if path is not None and isinstance(at, ast.Call) and self._names_device(at):
            return self._on_device
        return None if path is None else self.forms.get(path.removeprefix("op."))

    def _names_device(self, at: ast.Call) -> bool:
        """Whether a call places a value on one device: its mesh has no axes."""
        given = [k.value for k in at.keywords if k.arg == "mesh"]
        if not given or not isinstance(given[0], ast.Constant) or not isinstance(given[0].value, str):
            return False
        try:
            return not DeviceMesh.of(given[0].value).axes
        except OptionError:  # said where the operator is read
            return False

    def _step(self, at: ast.Call, call: Expr, declared: Annotation | None) -> Expr:
        self.values.check_declared(at, call.annotation, declared)
        return self.values.step(at, call)

    def _arguments(self, at: ast.Call, given: Sequence[ast.expr]) -> tuple[list[Expr], list[tuple[int, Any]]]:
        """Returns the arguments that are values, and the others (text, dtypes, None) with their places."""
        values: list[Expr] = []
        literals: list[tuple[int, Any]] = []
        for i, arg in enumerate(given):
            call = dotted_name(arg.func) if isinstance(arg, ast.Call) else None
            if isinstance(arg, ast.Call) and call in ("str", "dtype", "StringImm") and len(arg.args) == 1:
                literals.append((i, self.reader.attribute(arg.args[0])))
            elif isinstance(arg, ast.Constant) and (arg.value is None or isinstance(arg.value, str)):
                literals.append((i, arg.value))
            elif isinstance(arg, ast.Call) and call in ("null_value", "null"):
                literals.append((i, None))
            else:
                values.append(self.values.expression(arg))
        return values, literals

    def _out(self, at: ast.Call, keywords: dict[str, ast.expr], declared: Annotation | None, wanted: str) -> Annotation:
        """Returns the annotation of a result, by whichever word it is said."""
        said = [keywords.pop(k) for k in _OUT if k in keywords]
        if not said:
            return Object() if declared is None else declared
        if len(said) > 1:
            raise self.source.error(at, "the result is annotated twice", wanted)
        return self.reader.result(said[0])

    def _name(self, at: ast.expr, wanted: str) -> str:
        if isinstance(at, ast.Call) and dotted_name(at.func) == "ExternFunc" and at.args:
            at = at.args[0]
        if not isinstance(at, ast.Constant) or not isinstance(at.value, str):
            raise self.source.error(at, "the function is named by text", wanted)
        return at.value

    def _text_keyword(self, keywords: dict[str, ast.expr]) -> str:
        found = keywords.get("format")
        value = None if found is None else self.reader.attribute(found)
        return value if isinstance(value, str) else ""

    # --- values of the host ---

    def _prim_value(self, at: ast.Call, declared: Annotation | None) -> Expr:
        (written,) = at.args
        number = self.reader.number(written)
        if isinstance(number, (bool, float)):
            return const(number)
        dims = (self.reader.size(written),)
        self.values.check_declared(at, Shape(dims), declared)
        return node(SHAPE, (), (("dims", dims),), declared or Shape(dims))

    def _print(self, at: ast.Call, declared: Annotation | None) -> Expr:
        values, literals = self._arguments(at, at.args)
        text = self._text_keyword(self.reader.keywords(at))
        call = host_call(OWN + "print", values, Tuple(()), pure=False, literals=[*literals, (len(at.args), text)])
        return self._step(at, call, declared)

    def _assert(self, at: ast.Call, declared: Annotation | None) -> Expr:
        parts = [x for a in at.args for x in (a.elts if isinstance(a, (ast.List, ast.Tuple)) else [a])]
        keywords = self.reader.keywords(at)
        values, literals = self._arguments(at, parts)
        literals.append((len(parts), self._text_keyword(keywords)))
        condition = values[0].annotation if values else Object()
        if not isinstance(condition, (Tensor, Object)) or (
            isinstance(condition, Tensor) and condition.dtype not in (None, "bool")
        ):
            raise self.source.error(at, f"the condition is {condition}", "a bool scalar")
        return self._step(at, host_call(OWN + "assert", values, Tuple(()), pure=False, literals=literals), declared)

    def _shape_of(self, at: ast.Call, declared: Annotation | None) -> Expr:
        (x,) = map(self.values.expression, at.args)
        a = x.annotation
        if isinstance(a, Tensor) and a.shape is not None:
            return node(SHAPE, (), (("dims", a.shape),), Shape(a.shape))
        rank = a.ndim if isinstance(a, Tensor) else None
        return self._step(at, host_call(OWN + "shape_of", [x], Shape(ndim=rank), pure=True), declared)

    def _tensor_to_shape(self, at: ast.Call, declared: Annotation | None) -> Expr:
        (x,) = map(self.values.expression, at.args)
        a = x.annotation
        if isinstance(a, Tensor) and a.ndim not in (None, 1):
            raise self.source.error(at, f"the sizes are {a}", "a tensor of rank 1 with an integer for each axis")
        rank = a.shape[0].value if isinstance(a, Tensor) and a.shape and a.shape[0].is_const else None
        return self._step(at, host_call(OWN + "tensor_to_shape", [x], Shape(ndim=rank), pure=True), declared)

    def _shape_to_tensor(self, at: ast.Call, declared: Annotation | None) -> Expr:
        (s,) = map(self.values.expression, at.args)
        rank = s.annotation.ndim if isinstance(s.annotation, Shape) else None
        out = Tensor((rank,), "int64") if rank is not None else Tensor(ndim=1, dtype="int64")
        return self._step(at, host_call(OWN + "shape_to_tensor", [s], out, pure=True), declared)

    def _extern(self, at: ast.Call, declared: Annotation | None) -> Expr:
        name = self._name(at.args[0], 'R.ExternFunc("name")')
        call = host_call(OWN + "function", [], Object(), pure=True, literals=[(0, name)])
        return self._step(at, call, declared)

    def _text(self, at: ast.Call, declared: Annotation | None) -> Expr:
        """Reads `R.str("text")` and `R.dtype("float32")`: text, which only functions of the host take."""
        name = dotted_name(at.func)
        value = self.reader.attribute(at.args[0]) if len(at.args) == 1 and not at.keywords else None
        if not isinstance(value, str) or (name == "dtype" and value not in RECORDS and value != "bool"):
            raise self.source.error(at, f"this is no {'dtype' if name == 'dtype' else 'text'}", f'R.{name}("float32")')
        return self._step(at, host_call(OWN + "text", [], Object(), pure=True, literals=[(0, value)]), declared)

    def _packed(self, at: ast.Call, declared: Annotation | None, pure: bool) -> Expr:
        if (found := self.machine.reads(at, declared)) is not None:
            return found
        keywords = self.reader.keywords(at)
        out = self._out(at, keywords, declared, PACKED)
        places = self.reader.attribute(keywords.pop("inplace_indices")) if "inplace_indices" in keywords else ()
        if not at.args:
            raise self.source.error(at, "nothing is called", PACKED)
        first, *given = at.args
        if isinstance(first, ast.Name):
            values, literals = self._arguments(at, at.args)
            return self._step(at, host_call(OWN + "apply", values, out, pure=pure, literals=literals), declared)
        values, literals = self._arguments(at, given)
        convention: Convention = "in_place" if places else "value"
        name = self._name(first, PACKED)
        call = host_call(name, values, out, pure=pure, literals=literals, convention=convention, in_place=places)
        return self._step(at, call, declared)

    def _with_context(self, at: ast.Call, declared: Annotation | None) -> Expr:
        """Reads `R.call_builtin_with_ctx("name", (arguments,))`: a packed call of a function of the virtual machine."""
        found = self.machine.reads(at, declared)
        if found is None:
            first, *given = at.args
            args = given[0].elts if given and isinstance(given[0], (ast.Tuple, ast.List)) else given
            return self._packed(ast.copy_location(ast.Call(at.func, [first, *args], at.keywords), at), declared, False)
        return found

    def _dps(self, at: ast.Call, declared: Annotation | None) -> Expr:
        keywords = self.reader.keywords(at)
        out = self._out(at, keywords, declared, PACKED)
        first, *given = at.args
        one = given[0].elts if len(given) == 1 and isinstance(given[0], (ast.Tuple, ast.List)) else given
        values, literals = self._arguments(at, one)
        call = host_call(self._name(first, PACKED), values, out, pure=True, literals=literals, convention="into")
        return self._step(at, call, declared)

    def _invoke(self, at: ast.Call, declared: Annotation | None) -> Expr:
        keywords = self.reader.keywords(at)
        out = self._out(at, keywords, None, "R.invoke_closure(closure, (arguments,), sinfo_args=annotation)")
        callee = self.values.expression(at.args[0])
        given = at.args[1].elts if len(at.args) > 1 and isinstance(at.args[1], (ast.Tuple, ast.List)) else []
        args = list(map(self.values.expression, given))
        found = out
        if isinstance(callee.annotation, Callable):
            try:
                found = call_annotation(
                    callee.annotation, [a.annotation for a in args], "the closure", callee.op != FUNCTION
                )
            except OperatorError as error:
                raise self.source.at_position(at, error, "what the closure takes") from None
        self.values.check_declared(at, found, declared)
        return self.values.step(at, node(CALL, (callee, *args), (), found))

    def _same(self, at: ast.Call, declared: Annotation | None) -> Expr:
        return self.values.expression(at.args[0], declared)

    def _on_device(self, at: ast.Call, declared: Annotation | None) -> Expr:
        """`R.annotate_sharding(x, mesh="cpu:1", placement="")`, which is `R.to_vdevice(x, "cpu:1")`."""
        wanted = 'R.annotate_sharding(x, mesh="cpu:1", placement="")'
        said = self.reader.keywords(at)
        mesh, rest = said["mesh"], [*at.args[1:], *(v for k, v in said.items() if k != "mesh")]
        if not at.args or any(not isinstance(p, ast.Constant) or p.value != "" for p in rest):
            raise self.source.error(at, "on one device a value is whole", wanted)
        return self._copied(at, mesh, declared, wanted)

    def _to_device(self, at: ast.Call, declared: Annotation | None) -> Expr:
        wanted = 'R.to_vdevice(x, "cpu:1")'
        said = [*at.args[1:], *self.reader.keywords(at).values()]
        if not at.args or len(said) != 1:
            raise self.source.error(at, "a value and a device are needed", wanted)
        return self._copied(at, said[0], declared, wanted)

    def _copied(self, at: ast.Call, device: ast.expr, declared: Annotation | None, wanted: str) -> Expr:
        x = self.values.expression(at.args[0], declared)
        try:
            made = to_device(x, written_device(device))
        except SpecError as error:
            raise self.source.at_position(at, error, wanted) from None
        return self._step(at, made, declared)

    # --- tensor programs ---

    def call_program(
        self,
        at: ast.Call,
        called: PrimFunc | TensorProgram,
        given: list[Expr],
        out: Annotation | None,
        sizes: dict[str, Dim],
    ) -> Expr:
        """Returns the call of a tensor program, or of a host function if the program has no equations."""
        program = called.program if isinstance(called, PrimFunc) else called
        if program is None:
            assert isinstance(called, PrimFunc)
            if out is None:
                raise self.source.error(at, f"`{called.name}` has no equations that tell its result", "out=annotation")
            return self._opaque(called, given, out, sizes)
        if out is not None:
            fields = list(out.fields) if isinstance(out, Tuple) else [out]
            buffers = [Tensor(program.buffers[o].shape, program.buffers[o].dtype) for o in program.outputs]
            told = call_sizes([*(Tensor(b.shape, b.dtype) for b in program.parameters)], [a.annotation for a in given])
            found = call_sizes(buffers, fields)
            sizes |= {
                v: d for v, d in found.items() if v in program.size_arguments and v not in told and v not in sizes
            }
        return call_tir(program, given, out, {v: d for v, d in sizes.items() if v in program.sizes})

    def _opaque(
        self, called: PrimFunc, given: list[Expr], out: Annotation, sizes: dict[str, Dim], places: Sequence[int] = ()
    ) -> Expr:
        passed = [sizes[p] for p in called.params if p in sizes]
        args = [*given, shape_value(passed)] if passed else given
        literals = [(0, called.text)]
        convention: Convention = "in_place" if places else "into"
        return host_call(PROGRAM, args, out, pure=True, convention=convention, in_place=places, literals=literals)

    def _tir_in_place(self, at: ast.Call, declared: Annotation | None) -> Expr:
        keywords = self.reader.keywords(at)
        out = self._out(at, keywords, declared, IN_PLACE)
        if len(at.args) < 2 or not isinstance(at.args[1], (ast.Tuple, ast.List)):
            raise self.source.error(at, "this call in place cannot be read", IN_PLACE)
        given = list(map(self.values.expression, at.args[1].elts))
        written = keywords.get("inplace_indices") or (at.args[2] if len(at.args) > 2 else None)
        places = self.reader.attribute(written) if written is not None else ()
        places = places if isinstance(places, tuple) else (places,)
        called = self.values.program(at.args[0])
        if not isinstance(called, PrimFunc) or not places:
            raise self.source.error(at, "this call in place cannot be read", IN_PLACE)
        out = out.fields[0] if isinstance(out, Tuple) and len(out.fields) == 1 else out
        return self._step(at, self._opaque(called, given, out, {}, places), declared)

    def fills(self, at: ast.Call) -> Expr | None:
        """Returns the step of `cls.program(x, y)`, which fills `y`; None if `at` calls no tensor program."""
        func = at.func
        if not isinstance(func, ast.Attribute) or not isinstance(func.value, ast.Name):
            return None
        if func.value.id not in self.values.scope.classes or func.attr not in self.values.scope.prim_funcs:
            return None
        if self.machine.computes_sizes(self.values.scope.prim_funcs[func.attr], at.args):
            return tuple_(())
        return self._filled(at, func, list(map(self.values.expression, at.args)))

    def _filled(self, at: ast.Call, program: ast.expr, args: list[Expr]) -> Expr:
        called = self.values.program(program)
        given = [a for a in args if not isinstance(a.annotation, Shape)]
        told = [d for a in args if isinstance(a.annotation, Shape) for d in a.annotation.dims or ()]
        names = called.size_parameters if isinstance(called, PrimFunc) else called.passed
        count = len(called.program.outputs) if isinstance(called, PrimFunc) and called.program else 1
        inputs, outputs = given[: len(given) - count], given[len(given) - count :]
        out = Tuple(tuple(o.annotation for o in outputs)) if count > 1 else outputs[0].annotation
        try:
            kernel = self.call_program(at, called, inputs, out, dict(zip(names, told, strict=False)))
        except OperatorError as error:
            raise self.source.at_position(at, error, f"what {called.name} takes and fills") from None
        return self.values.step(at, call_into(kernel, outputs))

    def _tir_dyn(self, at: ast.Call, declared: Annotation | None) -> Expr:
        given = at.args[1]
        args = list(map(self.values.expression, given.elts if isinstance(given, (ast.Tuple, ast.List)) else [given]))
        return self._filled(at, at.args[0], args)

    # --- memory ---

    def _sizes(self, at: ast.expr) -> tuple[Dim, ...]:
        found = self.values.expression(at)
        a = found.annotation
        if not isinstance(a, Shape) or a.dims is None:
            raise self.source.error(at, f"the sizes are {a}", "R.shape([n, 4])")
        return a.dims

    def _size(self, at: ast.expr) -> Dim:
        (size,) = self._sizes(at)
        return size

    def _dtype(self, at: ast.expr) -> str:
        (arg,) = at.args if isinstance(at, ast.Call) and dotted_name(at.func) == "dtype" else (at,)
        return str(self.reader.attribute(arg))

    def _alloc_storage(self, at: ast.Call, declared: Annotation | None) -> Expr:
        keywords = self.reader.keywords(at)
        names = ("size", "virtual_device_index", "storage_scope", "dtype")
        if dotted_name(at.func) == "vm.alloc_storage":
            names = ("size", "runtime_device_index", "dtype", "storage_scope")
        given = dict(zip(names, at.args, strict=False)) | keywords
        dtype = self._dtype(given["dtype"]) if "dtype" in given else "uint8"
        return self.values.step(at, alloc_storage(self._size(given["size"]), "cpu", dtype))

    def _alloc_tensor(self, at: ast.Call, declared: Annotation | None) -> Expr:
        given = dict(zip(("storage", "offset", "shape", "dtype"), at.args, strict=False)) | self.reader.keywords(at)
        storage, offset = self.values.expression(given["storage"]), self._size(given["offset"])
        made = alloc_tensor(storage, offset, self._sizes(given["shape"]), self._dtype(given["dtype"]))
        return self.values.step(at, made)

    def _alloc_alone(self, at: ast.Call, declared: Annotation | None) -> Expr:
        """Reads `R.builtin.alloc_tensor(shape, dtype, device)`: a tensor in a storage of its own."""
        from relax_eg.ir.memory import tensor_bytes

        given = dict(zip(("shape", "dtype"), at.args, strict=False)) | self.reader.keywords(at)
        shape, dtype = self._sizes(given["shape"]), self._dtype(given["dtype"])
        size = tensor_bytes(Tensor(shape, dtype))
        assert size is not None
        storage = self.values.step(at, alloc_storage(size, "cpu", "uint8"))
        return self.values.step(at, alloc_tensor(storage, 0, shape, dtype))

    def _kill(self, at: ast.Call, declared: Annotation | None) -> Expr:
        (x,) = map(self.values.expression, at.args)
        if x.op == ALLOC_STORAGE or not isinstance(x.annotation, Tensor):
            return tuple_(())  # a storage ends with its last tensor
        return self.values.step(at, kill(x))


def names_program(at: ast.expr, classes: set[str]) -> str | None:
    """Returns the name of `Module.name` or of a bare name."""
    of_module = isinstance(at, ast.Attribute) and isinstance(at.value, ast.Name) and at.value.id in classes
    return last_name(at) if of_module or isinstance(at, ast.Name) else None
