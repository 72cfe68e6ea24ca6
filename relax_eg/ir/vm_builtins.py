"""Reads the functions of Relax's virtual machine, which its text has after shapes and calls were lowered.

A heap of sizes is no value here: its slots are sizes. What `match_shape` stores is the size that the value's annotation
has there, or a new one that a `match_cast` names. So lowered text is checked and optimized as what it was made from.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Sequence

from relax_eg.dtypes import RECORDS
from relax_eg.errors import RelaxEgError
from relax_eg.ir.annotations import Annotation, Object, Shape, Tensor, Tuple
from relax_eg.ir.annotations import Callable as Signature
from relax_eg.ir.expr import Expr, match_cast, shape_value, tuple_
from relax_eg.ir.lattice import covers
from relax_eg.ir.reader import dotted_name, parsed_at
from relax_eg.ir.reading import ReadingState
from relax_eg.shapes import Dim
from relax_eg.tir.imperative import size_of
from relax_eg.tir.prim_func import PrimFunc
from relax_eg.tir.values import last_name

BUILTIN = "vm.builtin."
ALLOCATES = ("alloc_shape_heap", "null_value")
EXACT = ("make_shape", "make_prim_value", "alloc_storage", "alloc_tensor", "make_closure")
# The codes of `match_shape` and `make_shape`, by Relax's names for them.
EQUALS_NUMBER, STORES, IGNORES, EQUALS_SLOT = range(4)
NUMBER, SLOT = range(2)
CODES = {
    "ASSERT_EQUAL_TO_IMM": EQUALS_NUMBER, "STORE_TO_HEAP": STORES, "NO_OP": IGNORES,
    "ASSERT_EQUAL_TO_LOAD": EQUALS_SLOT, "USE_IMM": NUMBER, "LOAD_SHAPE": SLOT,
}  # fmt: skip
CODE = "R.prim_value(number), or MatchShapeCode.STORE_TO_HEAP and so on"
HEAP = 'heap = R.call_builtin_with_ctx("vm.builtin.alloc_shape_heap", (R.prim_value(2),))'
HEAP_READERS = "vm.builtin.match_shape, vm.builtin.make_shape, and tensor programs that compute sizes"
PROGRAM = "lines such as `H[2] = H[0] * H[1]`"


def called_builtin(at: ast.expr | None) -> tuple[str, list[ast.expr]] | None:
    """Returns the name and the arguments of a call of a `vm.builtin` function, by any of Relax's forms of calls."""
    if not isinstance(at, ast.Call):
        return None
    form = dotted_name(at.func)
    if form == "null_value" and not at.args:
        return form, []
    first, *args = at.args or [None]
    if isinstance(first, ast.Call) and dotted_name(first.func) == "ExternFunc" and first.args:
        first = first.args[0]
    if not isinstance(first, ast.Constant) or not str(first.value).startswith(BUILTIN):
        return None
    if form == "call_builtin_with_ctx":
        args = args[0].elts if args and isinstance(args[0], (ast.Tuple, ast.List)) else args
    elif form not in ("call_packed", "call_pure_packed"):
        return None
    return str(first.value).removeprefix(BUILTIN), [a for a in args if a is not None]


class VmBuiltins:
    """A reader of these functions in one function.

    - `heaps`: the heaps, each with its slots that have sizes.
    """

    def __init__(self, values: ReadingState) -> None:
        self.values = values
        self.source = values.source
        self.heaps: dict[str, dict[int, Dim]] = {}
        self.forms: dict[str, Callable[[ast.Call, list[ast.expr]], Expr]] = {
            "match_shape": lambda at, a: self._match(at, a[0], a[1], self._pairs(at, a[2], a[3:])),
            "match_prim_value": lambda at, a: self._match(at, a[0], a[1], [(self._number(a[2]), self._number(a[3]))]),
            "make_shape": lambda at, a: self._make(a[0], self._pairs(at, a[1], a[2:])),
            "make_prim_value": lambda at, a: self._make(a[0], [(self._number(a[1]), self._number(a[2]))]),
            "check_tensor_info": self._check_tensor,
            "check_shape_info": lambda at, a: self._check(at, a[0], Shape(ndim=self._rank(a[1]))),
            "check_tuple_info": lambda at, a: self._check(at, a[0], Tuple((Object(),) * self._number(a[1]))),
            "check_func_info": self._check_function,
            "check_prim_value_info": lambda at, a: self._nothing(),
        }
        # Those that other forms say, too.
        self.rewritten: dict[str, Callable[[list[ast.expr]], str]] = {
            "make_closure": lambda a: f"R.make_closure({_text(a[0])}, {_tuple(a[1:])})",
            "alloc_storage": lambda a: f"R.vm.alloc_storage({_list(a)})",
            "alloc_tensor": lambda a: f"R.vm.alloc_tensor({_list(a)})",
            "call_tir_dyn": lambda a: f"R.vm.call_tir_dyn({_text(a[0])}, {_tuple(a[1:])})",
            "shape_of": lambda a: f"R.shape_of({_list(a)})",
            "tensor_to_shape": lambda a: f"R.tensor_to_shape({_list(a)})",
            "reshape": lambda a: f"R.reshape({_list(a)})",
            "make_tuple": lambda a: _tuple(a),
            "copy": lambda a: _text(a[0]),
        }

    def declares_heap(self, statement: ast.stmt) -> bool:
        """Whether a statement makes a heap, which it notes."""
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        called = called_builtin(getattr(statement, "value", None))
        if called is None or called[0] not in ALLOCATES or not isinstance(target, ast.Name):
            return False
        self.heaps[target.id] = {}
        self.values.hidden[target.id] = ("a heap of sizes, which is no value", HEAP_READERS)
        return True

    def knows_more(self, at: ast.expr) -> bool:
        """Whether more is known of the result of a call than lowered text declares."""
        called = called_builtin(at)
        return called is not None and called[0] in EXACT

    def reads(self, at: ast.Call, declared: Annotation | None) -> Expr | None:
        """Returns the expression that a call means; None if it calls no builtin, or one that the host runs."""
        called = called_builtin(at)
        if called is None:
            return None
        name, args = called
        if name in self.forms:
            return self.forms[name](at, args)
        if name == "invoke_closure":
            told = "".join(f", {k.arg}={_text(k.value)}" for k in at.keywords)
            return self._read(at, f"R.invoke_closure({_text(args[0])}, {_tuple(args[1:])}{told})", declared)
        if name == "tuple_getitem" and isinstance(self.values.expression(args[0]).annotation, Tuple):
            return self._read(at, f"{_text(args[0])}[{self._number(args[1])}]", declared)
        return self._read(at, self.rewritten[name](args), declared) if name in self.rewritten else None

    def computes_sizes(self, called: PrimFunc, args: Sequence[ast.expr]) -> bool:
        """Whether a call of a tensor program computes slots of a heap, which it then has."""
        slots = self._slots(args[0]) if len(args) == 1 and self._is_heap(args[0]) else None
        if slots is None:
            return False
        (program,) = ast.parse(called.text).body
        assert isinstance(program, ast.FunctionDef)
        for s in program.body:
            if isinstance(s, ast.Expr):  # a docstring, or T.func_attr
                continue
            target = s.targets[0] if isinstance(s, ast.Assign) else None
            if not isinstance(target, ast.Subscript) or not isinstance(s, ast.Assign):
                problem = f"`{called.name}` computes sizes in another way: {ast.unparse(s).splitlines()[0]}"
                raise self.source.error(args[0], problem, PROGRAM)
            value = _Loaded(called.params[0], lambda i: self._slot(args[0], i)).visit(s.value)
            try:
                slots[_index(target)] = size_of(ast.fix_missing_locations(value))
            except RelaxEgError as error:
                raise self.source.at_position(args[0], error, PROGRAM) from None
        return True

    # --- the forms ---

    def _match(self, at: ast.Call, given: ast.expr, heap: ast.expr, pairs: list[tuple[int, int]]) -> Expr:
        x = self.values.expression(given)
        a = x.annotation
        own = (a.shape if isinstance(a, Tensor) else a.dims if isinstance(a, Shape) else None) or [None] * len(pairs)
        if len(own) != len(pairs) or not isinstance(a, (Tensor, Shape)):
            problem = f"`{ast.unparse(given)}` is {a}, and {len(pairs)} sizes are matched"
            raise self.source.error(at, problem, "a tensor or a shape with as many sizes")
        dims: list[Dim] = []
        for known, (code, told) in zip(own, pairs, strict=True):
            if code == EQUALS_NUMBER:
                dims.append(Dim.of(told))
            elif code == EQUALS_SLOT:
                dims.append(self._slot(heap, told))
            else:
                dims.append(known if known is not None else self._new_size())
            if code == STORES:
                self._slots(heap)[told] = dims[-1]
        return self._check(at, given, Tensor(tuple(dims), a.dtype) if isinstance(a, Tensor) else Shape(tuple(dims)))

    def _make(self, heap: ast.expr, pairs: list[tuple[int, int]]) -> Expr:
        return shape_value([self._slot(heap, told) if code == SLOT else Dim.of(told) for code, told in pairs])

    def _check_tensor(self, at: ast.Call, args: list[ast.expr]) -> Expr:
        ranks = [a for a in args[1:] if self.values.reader.number(_unwrapped(a)) is not None]
        dtypes = [str(a.args[0].value) for a in args[1:] if isinstance(a, ast.Call) and dotted_name(a.func) == "dtype"
                  and isinstance(a.args[0], ast.Constant)]  # fmt: skip
        wanted = Tensor(ndim=self._rank(ranks[0]) if ranks else None, dtype=(dtypes or [""])[0] or None)
        a = self.values.expression(args[0]).annotation
        if isinstance(a, Tensor) and wanted.ndim in (None, a.ndim):
            wanted = Tensor(a.shape, wanted.dtype or a.dtype) if a.shape is not None else wanted
        return self._check(at, args[0], wanted)

    def _check_function(self, at: ast.Call, args: list[ast.expr]) -> Expr:
        a = self.values.expression(args[0]).annotation
        if not isinstance(a, Signature):
            raise self.source.error(at, f"`{ast.unparse(args[0])}` is {a}", "a parameter annotated R.Callable(...)")
        return self._nothing()

    def _check(self, at: ast.Call, given: ast.expr, wanted: Annotation) -> Expr:
        """A check at run time, after which the value is known to be what was checked; nothing where that is known."""
        x = self.values.expression(given)
        if covers(wanted, x.annotation):
            return self._nothing()
        found = self.values.step(at, match_cast(x, wanted))
        if isinstance(given, ast.Name):
            self.values.names[given.id] = found
        return self._nothing() if self.values.emit is not None else found

    def _nothing(self) -> Expr:
        return tuple_(())

    def _read(self, at: ast.Call, text: str, declared: Annotation | None) -> Expr:
        return self.values.expression(parsed_at(text, at), declared)

    # --- the parts ---

    def _is_heap(self, at: ast.expr) -> bool:
        return isinstance(at, ast.Name) and at.id in self.heaps

    def _slots(self, at: ast.expr) -> dict[int, Dim]:
        if not isinstance(at, ast.Name) or at.id not in self.heaps:
            raise self.source.error(at, f"`{ast.unparse(at)}` is no heap of sizes", HEAP)
        return self.heaps[at.id]

    def _slot(self, heap: ast.expr, i: int) -> Dim:
        slots = self._slots(heap)
        if i not in slots:
            stored = f"{sorted(slots)} have" if slots else "none has"
            raise self.source.error(heap, f"slot {i} of `{ast.unparse(heap)}` has no size yet ({stored})", HEAP_READERS)
        return slots[i]

    def _new_size(self) -> Dim:
        taken = self.values.sizes | self.values.words
        name = next(n for i in itertools.count() if (n := f"size{i}") not in taken)
        self.values.sizes.add(name)
        return Dim.var(name)

    def _pairs(self, at: ast.Call, count: ast.expr, given: list[ast.expr]) -> list[tuple[int, int]]:
        n = 2 * self._number(count)
        if len(given) < n:
            raise self.source.error(at, f"{n // 2} sizes need {n} numbers, given: {len(given)}", CODE)
        numbers = list(map(self._number, given[:n]))
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    def _number(self, at: ast.expr) -> int:
        found = CODES.get(last_name(at) or "") if isinstance(at, (ast.Attribute, ast.Name)) else None
        found = self.values.reader.number(_unwrapped(at)) if found is None else found
        if type(found) is not int:
            raise self.source.error(at, f"`{ast.unparse(at)}` is no number", CODE)
        return found

    def _rank(self, at: ast.expr) -> int | None:
        return None if (n := self._number(at)) < 0 else n


class _Loaded(ast.NodeTransformer):
    """Replaces reads of a heap by the sizes in its slots."""

    def __init__(self, heap: str, slot: Callable[[int], Dim]) -> None:
        self.heap, self.slot = heap, slot

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        return ast.parse(str(self.slot(_index(node))), mode="eval").body


def _index(at: ast.Subscript) -> int:
    found = _unwrapped(at.slice)
    assert isinstance(found, ast.Constant)
    return int(found.value)  # type: ignore[arg-type]


def _unwrapped(at: ast.expr) -> ast.expr:
    """The number in `R.prim_value(2)` or `T.int64(2)`."""
    if not isinstance(at, ast.Call) or not at.args:
        return at
    name = last_name(at.func)
    return at.args[0] if name == "prim_value" or (name in RECORDS and RECORDS[name].is_integer) else at


def _text(at: ast.expr) -> str:
    return ast.unparse(at)


def _list(given: Sequence[ast.expr]) -> str:
    return ", ".join(map(_text, given))


def _tuple(given: Sequence[ast.expr]) -> str:
    return f"({_list(given)}{',' if given else ''})"
