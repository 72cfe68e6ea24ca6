"""Prints modules as Relax text, which `parser` reads back to an equal module.

Two forms are not in Relax. `with R.inline():` names expressions that later lines use in place, because outside dataflow
blocks every plain line is a binding. `with R.bindings():` separates a binding block from the one before it.
"""

from __future__ import annotations

import itertools
import keyword
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from relax_eg.errors import WellFormedError
from relax_eg.ir import heads
from relax_eg.ir.annotations import Annotation, Data, DataType, Shape, Tensor, Tuple
from relax_eg.ir.calls import signature
from relax_eg.ir.devices import copied_to
from relax_eg.ir.expr import Expr, constant_value, postorder
from relax_eg.ir.literals import attribute_text, constant_text, dim_text, quoted, sizes_text
from relax_eg.ir.module import Block, Function, Module
from relax_eg.shapes import Dim
from relax_eg.tir import TensorProgram
from relax_eg.tir.program import program_text

VERSION = 1  # given: version of the text, written in its first line
HEADER = "# relax_eg module text, version "

# Names with another meaning after `R.`; no operator may have one of them.
RESERVED = frozenset(
    "Callable Never Object Ref Shape Tensor Tuple TypeVar alloc_storage alloc_tensor bindings call_dps_library"
    " call_into call_tir const"
    " const_data data dataflow dim foreign func_attr function inline kill make_closure match_cast new_ref output"
    " read_ref scalar shape tuple write_ref".split()
)

INDENT = "    "
MAX_NESTING = 8  # limit: nesting depth of tuples written in place; deeper ones get lines of their own


def print_module(module: Module) -> str:
    """Returns the text of a module. Linear in the module's size."""
    lines = [f"{HEADER}{VERSION}", "@I.ir_module", "class Module:"]
    programs = program_names(module)
    parts = [_data_type_text(t) for t in module.data_types]
    parts += [program_text(program, "R", name).split("\n") for program, name in programs.items()]
    parts += [_FunctionText(function, module, programs).lines for function in module.functions]
    for i, part in enumerate(parts):
        lines += [""] * (i > 0)
        lines += [INDENT + line for line in part]
    return "\n".join([*lines, INDENT + "pass"] if not module.functions else lines) + "\n"


def program_names(module: Module) -> dict[TensorProgram, str]:
    """Returns the tensor programs that a module calls, each with a unique name in the module's text."""
    taken = {f.name for f in module}
    names: dict[TensorProgram, str] = {}
    for program in module.programs:
        stem = program.name if program.name.isidentifier() and not keyword.iskeyword(program.name) else "program"
        names[program] = next(n for i in itertools.count() if (n := f"{stem}{i or ''}") not in taken)
        taken.add(names[program])
    return names


def _data_type_text(definition: DataType) -> list[str]:
    params = f"({', '.join(definition.params)})" if definition.params else ""
    lines = ["@R.data", f"class {definition.name}{params}:"]
    for c in definition.constructors:
        fields = ", ".join(map(_field_text, c.fields)) + ("," if len(c.fields) == 1 else "")
        lines.append(f"{INDENT}{c.name} = ({fields})")
    return lines


def _field_text(a: Annotation) -> str:
    """The text of a field of a constructor, in which type parameters are names."""
    return re.sub(r'R\.TypeVar\("(\w+)"\)', r"\1", str(a))


def print_function(function: Function) -> str:
    """Returns the text of one function. Calls of other functions are written `Module.name(...)`."""
    return "\n".join(_FunctionText(function, None, {}).lines) + "\n"


Module.__str__ = lambda self: print_module(self)
Function.__str__ = lambda self: print_function(self)


class _FunctionText:
    """The text lines of one function."""

    def __init__(self, function: Function, module: Module | None, programs: Mapping[TensorProgram, str]) -> None:
        self.programs = programs
        self.origins = function.origins
        self.signatures = None if module is None else {f.name: signature(f) for f in module}
        self.annotations: dict[Annotation, str] = {}
        self.uses: Counter[Expr] = Counter()
        self.nesting: dict[Expr, int] = {}  # nesting depth of tuples written in place
        self.inline: dict[Expr, str] = {}  # names of expressions outside dataflow blocks
        self.lines: list[str] = []
        self._count(function)
        params = ", ".join(f"{p.attr('name')}: {self._annotation(p.annotation)}" for p in function.params)
        self.lines += ["@R.function", f"def {function.name}({params}) -> {self._annotation(function.annotation)}:"]
        if function.assume or function.attributes:
            assumed = [f'"assume": [{", ".join(map(quoted, function.assume))}]'] if function.assume else []
            others = [f"{quoted(k)}: {attribute_text(v)}" for k, v in function.attributes]
            self.lines.append(f"{INDENT}R.func_attr({{{', '.join([*assumed, *others])}}})")
        plain = False
        for block in function.blocks:
            if block.dataflow:
                self._dataflow(block)
            elif plain or not block.bindings:
                self.lines.append(INDENT + "with R.bindings():")
                self._steps(block, INDENT * 2)
            else:
                self._steps(block, INDENT)
            plain = not block.dataflow
        self._named_in_place(function.result, INDENT, itself=not self._stands_in_place(function.result))
        self.lines.append(f"{INDENT}return {self._operand(function.result, self.inline)}")

    def _count(self, function: Function) -> None:
        values = function.values
        order = postorder([*values, function.result])
        self.uses.update([*values, function.result])
        self.taken = {b.name for b in function.bindings}
        for e in order:
            self.uses.update(e.args)
            if e.op == heads.VAR:
                self.taken.add(e.attr("name"))
            if e.op == heads.TUPLE:
                self.nesting[e] = 1 + max((self.nesting.get(a, 0) for a in e.args), default=0)
        self.taken.update(p.attr("name") for p in function.params)
        self.fresh_count = 0

    def _fresh(self) -> str:
        while True:
            name = f"lv{self.fresh_count or ''}"
            self.fresh_count += 1
            if name not in self.taken:
                return name

    def _annotation(self, annotation: Annotation) -> str:
        text = self.annotations.get(annotation)
        if text is None:
            text = self.annotations[annotation] = str(annotation)
        return text

    def _stands_in_place(self, e: Expr) -> bool:
        """Whether `e` is written where it is used. Its text must be short and determine its annotation."""
        if e.op == heads.CONSTANT:
            array = constant_value(e)
            return array.ndim == 0 and e.annotation == Tensor((), array.dtype.name)
        if e.op == heads.SHAPE:
            return e.annotation == Shape(e.attr("dims"))
        if e.op == heads.FUNCTION:
            return self.signatures is None or self.signatures.get(e.attr("name")) in (None, e.annotation)
        if e.op == heads.TUPLE:
            return (
                self.uses[e] == 1
                and self.nesting[e] <= MAX_NESTING
                and e.annotation == Tuple(tuple(a.annotation for a in e.args))
            )
        return e.op == heads.VAR

    def _line(self, indent: str, name: str, annotation: Annotation, text: str, e: Expr | None = None) -> None:
        origin = None if e is None else self.origins.get(e)
        comment = f"  # {_one_line(str(origin))}" if origin else ""
        self.lines.append(f"{indent}{name}: {self._annotation(annotation)} = {text}{comment}")

    def _dataflow(self, block: Block) -> None:
        indent = INDENT * 2
        self.lines.append(INDENT + "with R.dataflow():")
        names: dict[Expr, str] = {}
        # If an output's variable has the same annotation as its value, the value's line binds the output's name. Other
        # outputs are lines `gv = lv`.
        own: dict[Expr, str] = {}
        for b in block.bindings:
            if b.value.op != heads.VAR and b.value.annotation == b.var.annotation:
                own.setdefault(b.value, b.name)
        values = block.values
        bound = set(values)
        for e in postorder(values):
            if e.op != heads.VAR and (e in bound or not self._stands_in_place(e)):
                name = own.get(e) or self._fresh()
                self._line(indent, name, e.annotation, self._text(e, names), e)
                names[e] = name
        for b in block.bindings:
            if own.get(b.value) != b.name:
                self._line(indent, b.name, b.var.annotation, self._operand(b.value, names))
        self.lines.append(f"{indent}R.output({', '.join(b.name for b in block.bindings)})")

    def _steps(self, block: Block, indent: str) -> None:
        for b in block.bindings:
            e = b.value
            alias = e.op == heads.VAR or e in self.inline or e.annotation != b.var.annotation
            self._named_in_place(e, indent, itself=alias)
            if alias:
                self._line(indent, b.name, b.var.annotation, self._operand(e, self.inline))
            else:
                self._line(indent, b.name, e.annotation, self._text(e, self.inline), e)
        if not block.bindings:
            self.lines.append(indent + "pass")

    def _named_in_place(self, root: Expr, indent: str, itself: bool) -> None:
        """Writes a `with R.inline():` block for the nodes below `root`, and for `root` if `itself`."""
        opened = False
        for e in postorder([root], stop=self.inline.__contains__):
            in_place = not itself if e is root else self._stands_in_place(e)
            in_place |= root.op == heads.CALL_INTO and e is root.args[0]
            if e.op == heads.VAR or e in self.inline or in_place:
                continue
            if not opened:
                self.lines.append(indent + "with R.inline():")
                opened = True
            name = self._fresh()
            self._line(indent + INDENT, name, e.annotation, self._text(e, self.inline), e)
            self.inline[e] = name

    def _operand(self, e: Expr, names: dict[Expr, str]) -> str:
        return names.get(e) or self._text(e, names)

    def _operands(self, args: Iterable[Expr], names: dict[Expr, str]) -> str:
        return ", ".join(self._operand(a, names) for a in args)

    def _tuple(self, args: Sequence[Expr], names: dict[Expr, str]) -> str:
        return f"({self._operands(args, names)}{',' if len(args) == 1 else ''})"

    def _text(self, e: Expr, names: dict[Expr, str]) -> str:
        """Returns the text of the expression with its operands by name."""
        if e.op == heads.VAR:
            return str(e.attr("name"))
        if e.op == heads.CONSTANT:
            return constant_text(constant_value(e))
        if e.op == heads.SHAPE:
            return f"R.shape({sizes_text(e.attr('dims'))})"
        if e.op == heads.FUNCTION:
            return f"Module.{e.attr('name')}"
        if e.op == heads.TUPLE:
            return self._tuple(e.args, names)
        if e.op == heads.TUPLE_GET:
            return f"{self._operand(e.args[0], names)}[{e.attr('index')}]"
        if e.op == heads.MATCH_CAST:
            return f"R.match_cast({self._operand(e.args[0], names)}, {self._annotation(e.annotation)})"
        if e.op == heads.CALL:
            return f"{self._operand(e.args[0], names)}({self._operands(e.args[1:], names)})"
        if e.op == heads.CONSTRUCT and isinstance(e.annotation, Data):
            name = f"{e.annotation.definition.name}.{e.attr('constructor')}"
            return f"{name}({self._operands(e.args, names)})"
        if e.op == heads.CLOSURE:
            return f"R.make_closure({self._operand(e.args[0], names)}, {self._tuple(e.args[1:], names)})"
        if e.op in heads.REFERENCES:
            return f"R.{e.op}({self._operands(e.args, names)})"
        if e.op == heads.CALL_DPS_LIBRARY:
            return self._library_text(e, names)
        if e.op == heads.CALL_TIR:
            return self._tir_text(e, names)
        if e.op in heads.MEMORY:
            return self._memory_text(e, names)
        if e.op in RESERVED or not e.op.isidentifier():
            raise WellFormedError(f"`{e.op}` cannot name an operator: R.{e.op} is not a name or means something else")
        attributes = map(_keyword, _printed_attributes(e))
        return f"R.{e.op}({', '.join([*(self._operand(a, names) for a in e.args), *attributes])})"

    def _library_text(self, e: Expr, names: dict[Expr, str]) -> str:
        if (device := copied_to(e)) is not None:
            return f"R.to_vdevice({self._operand(e.args[0], names)}, {quoted(device)})"
        pure = "" if e.attr("pure") else ", pure=False"
        return f"R.call_dps_library({quoted(e.attr('name'))}, {self._filled(e, names, 'attrs')}{pure})"

    def _memory_text(self, e: Expr, names: dict[Expr, str]) -> str:
        if e.op == heads.ALLOC_STORAGE:
            device, dtype = quoted(e.attr("device")), quoted(e.attr("dtype"))
            return f"R.alloc_storage({dim_text(e.attr('size'))}, {device}, {dtype})"
        if e.op == heads.ALLOC_TENSOR:
            a = e.tensor
            place = f"{self._operand(e.args[0], names)}, {dim_text(e.attr('offset'))}"
            return f"R.alloc_tensor({place}, {sizes_text(a.shape or ())}, {quoted(a.dtype or '')})"
        if e.op == heads.CALL_INTO:
            # The kernel is not a value of its own; it is written inside the call that runs it.
            parts = [self._text(e.args[0], names), *(self._operand(a, names) for a in e.args[1:])]
            return f"R.call_into({', '.join(parts)})"
        return f"R.kill({self._operands(e.args, names)})"

    def _tir_text(self, e: Expr, names: dict[Expr, str]) -> str:
        program = e.attr("program").value
        name = self.programs.get(program, program.name)
        return f"R.call_tir(Module.{name}, {self._filled(e, names, 'sizes')})"

    def _filled(self, e: Expr, names: dict[Expr, str], named: str) -> str:
        """Returns the arguments and the result of a call that fills tensors, and its attribute `named`, by name."""
        pairs = ", ".join(f"{quoted(k)}: {attribute_text(v)}" for k, v in e.attr(named))
        more = f", {named}={{{pairs}}}" if pairs else ""
        return f"{self._tuple(e.args, names)}, out={self._annotation(e.annotation)}{more}"


def _printed_attributes(e: Expr) -> list[tuple[str, object]]:
    """Returns the attributes to print. An absent attribute is None; the operator table restores it."""
    return [(k, v) for k, v in e.attrs if v is not None]


def _keyword(attribute: tuple[str, object]) -> str:
    name, value = attribute
    # The operator table knows which attributes are sizes, so the text does not mark them.
    if isinstance(value, tuple) and value and all(type(v) is Dim for v in value):
        return f"{name}={sizes_text(value)}"
    return f"{name}={attribute_text(value)}"


def _one_line(source: str) -> str:
    return re.sub(r"\s+", " ", source).encode("utf-8", "backslashreplace").decode("utf-8")
