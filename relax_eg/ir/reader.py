"""Reads the parts of module text that are not expressions: positions, annotations, attribute values, constants."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from relax_eg.dtypes import DEFAULTS, RECORDS, names_where
from relax_eg.errors import ModuleTextError, RelaxEgError, SpecError
from relax_eg.ir.annotations import (
    Annotation,
    Callable,
    Constructor,
    DataType,
    Named,
    Never,
    Object,
    Ref,
    Shape,
    Tensor,
    Tuple,
    TypeVar,
    dims_of,
)
from relax_eg.ir.data import grouped
from relax_eg.ir.expr import ConstantData
from relax_eg.ir.foreign import foreign_at
from relax_eg.ir.literals import Array, array_of, unpack
from relax_eg.ir.origin import Origin, read_origin
from relax_eg.shapes import Dim
from relax_eg.tir.imperative import size_of
from relax_eg.tir.source_text import SourceText
from relax_eg.traversal import reached

Node: TypeAlias = "ast.expr | ast.stmt | ast.arg | ast.keyword"

ANNOTATIONS = (
    "R.Tensor(shape, dtype=...), R.Shape(sizes), R.Tuple(...), R.Callable((params,), result), R.Object, "
    'a data type such as List(R.Object), R.Ref(annotation) or R.TypeVar("a")'
)
_PLACES = ("vdevice", "purity")  # said of annotations, and not kept
INTEGERS = frozenset(names_where(lambda d: d.kind in "iu"))
DATA_TYPE = """a data type, as
    @R.data
    class List(a):
        Nil = ()
        Cons = (a, List(a))"""
ATTRIBUTES = "a number, text, None, a tuple, a size, an annotation, R.scalar(...) or R.foreign(...)"
FUNCTION_ATTRIBUTES = (
    'R.func_attr({"assume": ["n % 8 == 0", ...]}), or bounds of sizes as {"tir_var_upper_bound": {"n": 4096}}, '
    "tir_var_lower_bound likewise"
)


class Source(SourceText):
    """The module text being read."""

    kind = positioned = ModuleTextError

    def tree(self) -> ast.Module:
        """Returns the syntax tree. Raises ModuleTextError."""
        python = "Relax text, which is Python's syntax"
        try:
            return ast.parse(self.text)
        except SyntaxError as error:
            long = "Exceeds the limit" in error.msg  # Python's own message is meant for programmers
            problem = "an integer with more than 4300 digits" if long else error.msg
            raise self.error_at(error.lineno or 1, max(0, (error.offset or 1) - 1), problem, python) from None
        except (RecursionError, MemoryError):
            raise self.error_at(1, 0, "the text is nested too deeply", "its parts bound to names") from None
        except ValueError as error:  # null characters, or text that is not Unicode
            raise self.error_at(1, 0, str(error), python) from None

    def error_at(self, line: int, column: int, problem: str, expected: str) -> RelaxEgError:
        """Returns an error at a line of the text, from 1, and a column, from 0."""
        return self.kind(f"line {line}: {problem}\n{self.pointed_at(line, column)}\n  expected: {expected}")

    def origin(self, statement: ast.stmt) -> Origin | None:
        """Returns the origin in the comment that ends a statement, else None."""
        line = self.line_at(statement.end_lineno or statement.lineno)
        after = line.encode("utf-8", "surrogatepass")[statement.end_col_offset or 0 :].decode("utf-8", "replace")
        mark, _, comment = after.partition("#")
        return None if mark.strip() else read_origin(comment.strip())


def unqualified_name(node: ast.expr, prefix: str = "R") -> str | None:
    """Returns `name` if `node` is `prefix.name`, else None."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == prefix:
        return node.attr
    return None


def dotted_name(node: ast.expr) -> str | None:
    """Returns `name` or `part.name` if `node` is `R.name` or `R.part.name`, else None."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed(parts)) if parts and isinstance(node, ast.Name) and node.id in ("R", "relax") else None


def parsed_at(text: str, at: ast.expr) -> ast.expr:
    """Returns the syntax tree of `text`, with the source position of `at` in every node."""
    made = ast.parse(text, mode="eval").body
    for n in ast.walk(made):
        ast.copy_location(n, at)
    return made


class Reader:
    """A reader of annotations, sizes, attribute values and constants.

    - `types`: the data types by name.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.types: dict[str, DataType] = {}
        # The data types that are being read, with the numbers of their parameters, and the parameters of one of them.
        self._defined: tuple[Mapping[str, int], frozenset[str]] = {}, frozenset()

    def annotation(self, node: ast.expr) -> Annotation:
        call = node if isinstance(node, ast.Call) else None
        kind = unqualified_name(call.func if call else node)
        args, keywords = (call.args, self.keywords(call)) if call else ([], {})
        try:
            if (kind in ("Object", "Any") and not args and not keywords) or (kind == "Callable" and not call):
                return Object()
            if kind == "Prim":
                return self._prim(args, keywords)
            keywords = {k: v for k, v in keywords.items() if k not in _PLACES}
            if kind == "Tuple" and not keywords:
                only = args[0] if len(args) == 1 else None
                fields = only.elts if isinstance(only, (ast.Tuple, ast.List)) else args
                return Tuple(tuple(map(self.annotation, fields)))
            if kind == "Callable" and call and len(args) in (2, 3) and isinstance(args[0], (ast.Tuple, ast.List)):
                return Callable(tuple(map(self.annotation, args[0].elts)), self.annotation(args[1]))
            if kind == "Never" and not args and not keywords:
                return Never()
            if kind == "Ref" and len(args) == 1 and not keywords:
                return Ref(self.annotation(args[0]))
            if kind == "TypeVar" and len(args) == 1 and isinstance(args[0], ast.Constant) and not keywords:
                return TypeVar(str(args[0].value))
            if (named := self._named(node)) is not None:
                return named
            if kind in ("Tensor", "Shape"):
                return self._sized(kind, args, keywords)
        except (RelaxEgError, TypeError) as error:
            raise self.source.at_position(node, error, ANNOTATIONS) from None
        raise self.source.error(node, "this is not an annotation", ANNOTATIONS)

    def result(self, node: ast.expr) -> Annotation:
        """Returns the annotation of a call's result. Several stand in a list; a tuple of one is that one."""
        if isinstance(node, (ast.Tuple, ast.List)):
            fields = tuple(map(self.annotation, node.elts))
            return fields[0] if len(fields) == 1 else Tuple(fields)
        return self.annotation(node)

    def _prim(self, args: list[ast.expr], keywords: dict[str, ast.expr]) -> Annotation:
        """Returns the annotation of a prim value: a shape of one size for a whole number, else a scalar."""
        if "value" in keywords and not args:
            return Shape((self.size(keywords["value"]),))
        dtype = self.attribute(args[0]) if len(args) == 1 else None
        if not isinstance(dtype, str):
            raise TypeError('R.Prim takes a dtype, or value="n"')
        return Shape(ndim=1) if Tensor((), dtype).dtype in INTEGERS else Tensor((), dtype)

    def _named(self, node: ast.expr) -> Annotation | None:
        """Returns the data type at `node`, with its type parameters, or a type parameter; None if it is neither."""
        call = node if isinstance(node, ast.Call) else None
        at = call.func if call else node
        if not isinstance(at, ast.Name) or (call is not None and call.keywords):
            return None
        defined, params = self._defined
        args = tuple(map(self.annotation, call.args)) if call and at.id in (*defined, *self.types) else ()
        if at.id in defined:
            if len(args) != defined[at.id]:
                raise SpecError(f"{at.id} takes {defined[at.id]} annotations, got {len(args)}")
            return Named(at.id, args)
        if at.id in self.types:
            return self.types[at.id](*args)
        return TypeVar(at.id) if at.id in params and call is None else None

    def data_types(self, definitions: Sequence[ast.ClassDef]) -> None:
        """Reads definitions of data types and adds them to `types`, those that others mention before these. Types that
        mention each other are read together."""
        named = {d.name: d for d in definitions}
        mentions = {
            d.name: {n.id for n in ast.walk(d) if isinstance(n, ast.Name) and n.id in named} for d in definitions
        }
        mentioned = {name: set(reached(mentions[name], mentions.__getitem__)) for name in named}  # also by others
        done: set[str] = set()
        waiting = list(reversed(definitions))
        while waiting:
            d = waiting[-1]
            if named[d.name] is not d:
                raise self.source.error(d, f"two data types are named `{d.name}`", "a name of its own for each")
            group = [m for m in definitions if m is d or (m.name in mentioned[d.name] and d.name in mentioned[m.name])]
            own = {m.name for m in group}
            before = [named[n] for n in sorted(set[str]().union(*(mentions[n] for n in own)) - own - done)]
            if d.name not in done and before:
                waiting += before
                continue
            waiting.pop()
            if d.name not in done:
                self._read_types(group)
                done |= own

    def _read_types(self, group: Sequence[ast.ClassDef]) -> None:
        params = [self._parameters(d) for d in group]
        counts = {d.name: len(p) for d, p in zip(group, params, strict=True)}
        rows: list[tuple[str, tuple[str, ...], tuple[Constructor, ...]]] = []
        for d, own in zip(group, params, strict=True):
            self._defined = counts, frozenset(own)
            rows.append((d.name, own, self._constructors(d)))
        self._defined = {}, frozenset()
        made = grouped(tuple(rows)) if len(rows) > 1 else (DataType(*rows[0]),)
        self.types.update((t.name, t) for t in made)

    def _parameters(self, definition: ast.ClassDef) -> tuple[str, ...]:
        params = [b.id for b in definition.bases if isinstance(b, ast.Name)]
        if len(params) != len(definition.bases) or definition.keywords or len(set(params)) < len(params):
            raise self.source.error(definition, "its type parameters are no names", DATA_TYPE)
        return tuple(params)

    def _constructors(self, definition: ast.ClassDef) -> tuple[Constructor, ...]:
        made: dict[str, Constructor] = {}
        for s in definition.body:
            target = s.targets[0] if isinstance(s, ast.Assign) and len(s.targets) == 1 else None
            if isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant):
                continue
            if not isinstance(s, ast.Assign) or not isinstance(target, ast.Name):
                raise self.source.error(s, "this is no constructor", DATA_TYPE)
            if target.id in made:
                raise self.source.error(s, f"two constructors are named `{target.id}`", DATA_TYPE)
            fields = s.value.elts if isinstance(s.value, ast.Tuple) else [s.value]
            made[target.id] = Constructor(target.id, tuple(map(self.annotation, fields)))
        if not made:
            raise self.source.error(definition, f"`{definition.name}` has no constructor", DATA_TYPE)
        return tuple(made.values())

    def _sized(self, kind: str, args: list[ast.expr], keywords: dict[str, ast.expr]) -> Annotation:
        names = ("shape", "dtype") if kind == "Tensor" else ("dims",)
        if kind == "Tensor" and len(args) == 3:  # the third one is a device
            args = args[:2]
        first = args[0].value if args and isinstance(args[0], ast.Constant) else None
        if kind == "Tensor" and isinstance(first, str) and (first in RECORDS or first == "bool") and len(args) == 1:
            args, keywords = [], {"dtype": args[0], **keywords}
        given = dict(zip(names, args, strict=False)) | keywords
        values: dict[str, Any] = {}
        for name, value in given.items():
            if name == names[0]:
                is_spec = isinstance(value, ast.Constant) and isinstance(value.value, str)
                values[name] = ast.literal_eval(value) if is_spec else self.sizes(value)
            else:
                values[name] = self.attribute(value)
        if len(args) > len(names):
            raise TypeError(f"R.{kind} takes {' and '.join(names)}, and ndim by keyword")
        if not isinstance(values.get("dtype", ""), str) or type(values.get("ndim", 0)) is not int:
            raise TypeError("the dtype is text and the rank a whole number")
        made = Tensor(**values) if kind == "Tensor" else Shape(**values)
        for d in dims_of(made):
            if d.is_const and d.value < 0:
                raise SpecError(f"the size {d} is negative; sizes are at least 0")
        return made

    def sizes(self, node: ast.expr) -> tuple[Dim, ...]:
        """Returns a tuple of sizes, written as numbers, as text such as "2*n", or as names and arithmetic."""
        if not isinstance(node, (ast.Tuple, ast.List)):
            raise self.source.error(node, "these are not sizes", 'a tuple of sizes, such as ("n", 4)')
        return tuple(map(self.size, node.elts))

    def size(self, node: ast.expr) -> Dim:
        try:
            return size_of(node)
        except RelaxEgError as error:
            raise self.source.at_position(node, error, 'a size, such as 4, "n" or "2*n + 1"') from None

    def function_attributes(self, call: ast.Call) -> tuple[list[str], dict[str, Any]]:
        """Returns what `R.func_attr({...})` says: assumptions about sizes as statements (`assume`, and Relax's bounds),
        and all other attributes."""
        try:
            plain = _PlainAttributes().visit(call)
            attributes = ast.literal_eval(plain.args[0]) if len(call.args) == 1 and not call.keywords else None
        except ValueError:
            attributes = None
        if not isinstance(attributes, dict):
            raise self.source.error(call, "these are no attributes of a function", FUNCTION_ATTRIBUTES)
        found: list[str] = []
        others: dict[str, Any] = {}
        for key, value in attributes.items():
            sign = {"tir_var_upper_bound": "<=", "tir_var_lower_bound": ">="}.get(key)
            if sign and isinstance(value, dict) and all(type(n) is int for n in value.values()):
                found += [f"{name} {sign} {n}" for name, n in value.items()]
            elif key == "assume" and isinstance(value, (list, tuple)) and all(isinstance(s, str) for s in value):
                found += value
            elif key in ("assume", "tir_var_upper_bound", "tir_var_lower_bound") or not isinstance(key, str):
                raise self.source.error(call, f"`{key}`: {value!r} is no attribute of a function", FUNCTION_ATTRIBUTES)
            else:
                others[key] = _plain_attribute(value)
        return found, others

    def keywords(self, call: ast.Call) -> dict[str, ast.expr]:
        found: dict[str, ast.expr] = {}
        for k in call.keywords:
            if k.arg is None:
                raise self.source.error(k, "`**` has no meaning here", "keyword arguments written out")
            found[k.arg] = k.value
        return found

    def number(self, node: ast.expr) -> bool | int | float | complex | None:
        """Returns the number written at `node`, or None if `node` is not a number."""
        sign = 1
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            sign, node = -1, node.operand
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):  # bool is a subclass of int
            return node.value if sign == 1 else -node.value
        if isinstance(node, ast.Name) and node.id in ("inf", "nan"):
            return sign * float(node.id)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            if node.func.id == "float" and len(node.args) == 1 and isinstance(node.args[0], ast.Constant):
                if node.args[0].value in ("inf", "-inf", "nan"):
                    return sign * float(node.args[0].value)
            elif node.func.id == "complex" and len(node.args) == 2 and sign == 1:
                real, imaginary = map(self.number, node.args)
                if isinstance(real, (int, float)) and isinstance(imaginary, (int, float)):
                    return complex(real, imaginary)
        return None

    def attribute(self, node: ast.expr) -> Any:
        """Returns an attribute's value."""
        number = self.number(node)
        if number is not None:
            return number
        if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, str)):
            return node.value
        if isinstance(node, (ast.Tuple, ast.List)):
            return tuple(map(self.attribute, node.elts))
        kind = unqualified_name(node.func if isinstance(node, ast.Call) else node)
        if kind is not None:
            return self._marked(node, kind)
        if isinstance(node, (ast.Name, ast.BinOp, ast.UnaryOp)) or (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        ):
            return self.size(node)
        raise self.source.error(node, "this is not an attribute's value", ATTRIBUTES)

    def _marked(self, node: ast.expr, kind: str) -> Any:
        args = node.args if isinstance(node, ast.Call) else []
        if kind == "dim" and len(args) == 1:
            return self.size(args[0])
        if kind in ("const", "const_data") and isinstance(node, ast.Call):
            return ConstantData(self.constant(node, kind))
        if kind == "scalar" and len(args) == 1:
            inner = args[0]
            if isinstance(inner, ast.Call) and (form := unqualified_name(inner.func)) in ("const", "const_data"):
                return self.constant(inner, form)[()]
            raise self.source.error(inner, "this is not a constant", 'R.const(1.5, "float32")')
        if kind == "foreign":
            return self._foreign(node, args)
        if kind in ("Tensor", "Shape", "Tuple", "Callable", "Object", "Never", "Ref", "TypeVar"):
            return self.annotation(node)
        raise self.source.error(node, f"R.{kind} is not an attribute's value", ATTRIBUTES)

    def _foreign(self, node: ast.expr, args: list[ast.expr]) -> Any:
        match args:
            case [ast.Constant(value=str(name)), ast.Constant(value=int(place))]:
                found = foreign_at(name, place)
            case _:
                raise self.source.error(node, "this names no object", 'R.foreign("type name", number)')
        if found is None:
            raise self.source.error(
                node,
                f"this process holds no {name} number {place}: a module with foreign objects cannot be read in another "
                "process than the one that printed it",
                "text printed in this process, or a module without foreign objects",
            )
        return found

    def constant(self, call: ast.Call, kind: str) -> Array:
        """Returns the array of `R.const(values, dtype)` or `R.const_data(dtype, shape, packed)`."""
        expected = 'R.const(values, "dtype")' if kind == "const" else 'R.const_data("dtype", shape, "packed bytes")'
        args = call.args + list(self.keywords(call).values())
        try:
            if kind == "const" and len(args) in (1, 2):
                values = self._values(args[0])
                dtype = self.attribute(args[1]) if len(args) == 2 else _default_dtype(values)
                return array_of(values, dtype)
            if kind == "const_data" and len(args) == 3:
                dtype, shape, packed = map(self.attribute, args)
                return unpack(dtype, shape, packed)
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise self.source.at_position(call, error, expected) from None
        raise self.source.error(call, "this is not a constant", expected)

    def _values(self, node: ast.expr) -> Any:
        if isinstance(node, (ast.Tuple, ast.List)):
            return [self._values(e) for e in node.elts]
        number = self.number(node)
        if number is None:
            raise self.source.error(node, "this is not a number", "numbers, or lists of them of equal lengths")
        return number


def is_docstring(statement: ast.stmt) -> bool:
    """Whether a statement is a docstring."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def is_size_declaration(statement: ast.stmt) -> bool:
    """Whether a statement is `n = T.int64()`, or several of these at once. Sizes need no declaration here."""
    if not isinstance(statement, ast.Assign):
        return False
    value = statement.value
    made = value.elts if isinstance(value, ast.Tuple) else [value]
    return bool(made) and all(
        isinstance(v, ast.Call) and (unqualified_name(v.func, "T") is not None or unqualified_name(v.func) == "sym_var")
        for v in made
    )


class _PlainAttributes(ast.NodeTransformer):
    """Writes `T.bool(True)`, `R.prim_value(1)` and the like as what is in them."""

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        is_wrapped = isinstance(node.func, ast.Attribute) and node.func.attr != "func_attr" and len(node.args) == 1
        return node.args[0] if is_wrapped else node


def _plain_attribute(value: Any) -> Any:
    """Returns an attribute's value of tuples, text, numbers and None."""
    if isinstance(value, dict):
        return tuple((str(k), _plain_attribute(v)) for k, v in value.items())  # type: ignore[reportUnknownVariableType]
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain_attribute, value))  # type: ignore[reportUnknownArgumentType]
    return value if isinstance(value, (str, int, float)) or value is None else str(value)


def _default_dtype(values: Any) -> str:
    while isinstance(values, list) and values:
        values = values[0]  # type: ignore[reportUnknownVariableType]
    kinds = {bool: "b", int: "i", complex: "c"}
    return DEFAULTS[kinds.get(type(values), "f")]  # type: ignore[reportUnknownArgumentType]
