"""Numbers the operators, sizes, annotations and leaves that the engine's symbols stand for.

Every combination of an operator, its static attributes and the number of its sizes is a constructor of its own (an
*opcode*), so that rules match on plain tables: `permute_dims` with axes (1, 0) is one symbol and with axes (0, 2, 1)
another. Sizes are arguments of sort `Dim`, so that rules can bind them. An operator without a record in the operator
table (a call of an unregistered routine, a call of a function) or with very many operands is an opcode too, with a
fixed annotation; the annotation of a call of a tensor program whose arguments tell all sizes follows from these. The
annotation of a field of a tuple follows from the annotation of the tuple.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from relax_eg.errors import OperatorError
from relax_eg.explain.record import build_node, has_deduced_annotation
from relax_eg.ir.annotations import Annotation, Tensor, Tuple
from relax_eg.ir.expr import CALL_DPS_LIBRARY, CALL_TIR, TUPLE_GET, Expr
from relax_eg.ir.tensor_calls import has_own_annotation, tir_annotation
from relax_eg.limits import MANY_KEPT
from relax_eg.ops import TABLE, deduce
from relax_eg.ops.libraries import LIBRARIES, library_of
from relax_eg.ops.partial_annotations import MAX_RANK
from relax_eg.shapes import Dim

PRELUDE = (
    "(sort T)",
    "(sort Dim)",
    "(sort Ann)",
    "(constructor D (i64) Dim)",
    "(constructor Leaf (i64) T)",
    "(constructor Other (i64) Ann)",
    *(f"(constructor Tensor{r}_ (String{' Dim' * r}) Ann)" for r in range(MAX_RANK + 1)),
    "(relation has_ann (T Ann))",
    "(relation doubled (T Ann))",  # annotations of values that have several annotations
    "(function node (i64) T :no-merge)",
    "(relation in_order (T T))",
    "(ruleset annotate)",
    "(ruleset asked)",
    "(ruleset facts)",
    "(rule ((has_ann x a) (has_ann x b) (!= a b)) ((doubled x a)) :ruleset annotate)",
    # Annotations and sibling pairs of the inserted nodes, as rows of numbers that are loaded in one go.
    "(ruleset load)",
    "(function annotation (i64) Ann :no-merge)",
    "(relation row_has_ann (i64 i64))",
    "(rule ((row_has_ann i k) (= x (node i)) (= a (annotation k))) ((has_ann x a)) :ruleset load)",
    "(relation row_in_order (i64 i64))",
    "(rule ((row_in_order i j) (= x (node i)) (= y (node j))) ((in_order x y)) :ruleset load)",
)


@dataclass(frozen=True, slots=True)
class Opcode:
    """An engine constructor.

    - `symbol`: its name in the engine.
    - `op`: the operator.
    - `static`: the attributes that are part of the constructor.
    - `sizes`: the `dims` attributes with the number of sizes of each; the sizes are arguments.
    - `arity`: number of operands.
    - `annotation`: the result's annotation if it is fixed, else None.
    """

    symbol: str
    op: str
    static: tuple[tuple[str, Any], ...]
    sizes: tuple[tuple[str, int], ...]
    arity: int
    annotation: Annotation | None

    @property
    def size_count(self) -> int:
        return sum(n for _, n in self.sizes)

    def build(self, args: tuple[Expr, ...], dims: tuple[Dim, ...]) -> Expr:
        """Builds the expression that this opcode stands for."""
        return build_node(self.op, args, self.attributes(dims), self.annotation)

    def deduce(self, operands: tuple[Annotation, ...], dims: tuple[Dim, ...]) -> Annotation:
        """Returns the annotation of a node whose operands have these annotations. Raises OperatorError."""
        if self.op == CALL_DPS_LIBRARY:
            attrs = self.attributes(dims)
            return LIBRARIES[attrs["name"]].annotation(operands, dict(attrs["attrs"]))
        if self.op == CALL_TIR:
            return tir_annotation(dict(self.static)["program"].value, operands, ())
        if self.op != TUPLE_GET:
            return deduce(self.op, operands, self.attributes(dims), strict=True)
        (fields,) = operands
        if not isinstance(fields, Tuple):
            raise OperatorError(f"field of {fields}, which is no tuple")
        return fields.fields[dict(self.static)["index"]]

    def attributes(self, dims: tuple[Dim, ...]) -> dict[str, Any]:
        """Returns all attributes by name, with sizes filled in."""
        attrs = dict(self.static)
        start = 0
        for name, n in self.sizes:
            attrs[name] = dims[start : start + n]
            start += n
        if self.op == CALL_DPS_LIBRARY and self.annotation is None:
            sized = tuple((name, attrs.pop(name)) for name, _ in self.sizes)
            attrs["attrs"] += sized
        return attrs


# The identity of an opcode, in any e-graph: operator, static attributes, their printed form (types count: an attribute
# 1 is not an attribute True), sizes, arity, and the annotation if it is fixed.
OpcodeKey = tuple[str, tuple[tuple[str, Any], ...], str, tuple[tuple[str, int], ...], int, Annotation | None]


def opcode_key(e: Expr) -> tuple[OpcodeKey, tuple[Dim, ...]]:
    """Returns the key of the opcode of a node that is not a leaf, and the node's sizes."""
    return _opcode_key(e, library_of(e) is not None)


@lru_cache(MANY_KEPT)
def _opcode_key(e: Expr, is_registered: bool) -> tuple[OpcodeKey, tuple[Dim, ...]]:
    """`is_registered`: whether the node calls a registered library routine."""
    record = TABLE.get(e.op)
    if is_registered:
        sized = tuple((k, v) for k, v in e.attr("attrs") if _is_sizes(v))
        plain = tuple((k, v) for k, v in e.attr("attrs") if not _is_sizes(v))
        static = (("name", e.attr("name")), ("attrs", plain), ("pure", e.attr("pure")))
        dims = tuple(d for _, v in sized for d in v)
        return (e.op, static, repr(static), tuple((k, len(v)) for k, v in sized), len(e.args), None), dims
    if e.op == TUPLE_GET and isinstance(e.args[0].annotation, Tuple):
        return (e.op, e.attrs, repr(e.attrs), (), 1, None), ()
    if e.op == CALL_TIR and not has_own_annotation(e):  # a rule about it holds at all sizes
        return (e.op, e.attrs, repr(e.attrs), (), len(e.args), None), ()
    if record is None:
        return (e.op, e.attrs, repr(e.attrs), (), len(e.args), e.annotation), ()
    kinds = {a.name: a.kind for a in record.attributes}
    static = tuple((k, v) for k, v in e.attrs if kinds[k] == "static")
    sized = tuple((k, v) for k, v in e.attrs if kinds[k] == "dims")
    dims = tuple(d for _, v in sized for d in v)
    fixed = None if has_deduced_annotation(e) else e.annotation
    return (e.op, static, repr(static), tuple((k, len(v)) for k, v in sized), len(e.args), fixed), dims


def _is_sizes(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(d, Dim) for d in value)  # type: ignore[reportUnknownVariableType]


class Vocabulary:
    """Numbers symbols on demand. Each e-graph has its own, so equal programs get equal numbers.

    - `leaf_list`: the leaves, by number.
    - `by_symbol`: the opcode of each symbol.
    - `keys`: the opcode key of each symbol.
    """

    def __init__(self) -> None:
        self._opcodes: dict[Any, Opcode] = {}
        self._dims: dict[Dim, int] = {}
        self._dim_list: list[Dim] = []
        self._leaves: dict[Expr, int] = {}
        self.leaf_list: list[Expr] = []
        self._others: dict[Annotation, int] = {}
        self._other_list: list[Annotation] = []
        self.by_symbol: dict[str, Opcode] = {}
        self.keys: dict[str, OpcodeKey] = {}

    def opcode(self, e: Expr) -> tuple[Opcode, tuple[Dim, ...]]:
        """Returns the opcode of a node that is not a leaf, and the node's sizes."""
        key, dims = opcode_key(e)
        found = self._opcodes.get(key)
        if found is None:
            op, static, _, sizes, arity, annotation = key
            found = Opcode(f"{op}_{len(self._opcodes)}_", op, static, sizes, arity, annotation)
            self._opcodes[key] = found
            self.by_symbol[found.symbol] = found
            self.keys[found.symbol] = key
        return found, dims

    def leaf(self, e: Expr) -> str:
        """Returns the term of a leaf. Leaves are numbered in order of first mention."""
        index = self._leaves.get(e)
        if index is None:
            index = self._leaves[e] = len(self.leaf_list)
            self.leaf_list.append(e)
        return f"(Leaf {index})"

    def dim(self, d: Dim) -> str:
        """Returns the term of a size."""
        index = self._dims.get(d)
        if index is None:
            index = self._dims[d] = len(self._dim_list)
            self._dim_list.append(d)
        return f"(D {index})"

    def dims_from(self, first: int) -> list[Dim]:
        """Returns the sizes numbered from `first` on."""
        return self._dim_list[first:]

    def dim_at(self, index: int) -> Dim:
        return self._dim_list[index]

    def annotation(self, a: Annotation) -> str:
        """Returns the term of an annotation."""
        if isinstance(a, Tensor) and a.shape is not None and a.dtype is not None and len(a.shape) <= MAX_RANK:
            return f'(Tensor{len(a.shape)}_ "{a.dtype}"{"".join(" " + self.dim(d) for d in a.shape)})'
        index = self._others.get(a)
        if index is None:
            index = self._others[a] = len(self._other_list)
            self._other_list.append(a)
        return f"(Other {index})"

    def other_at(self, index: int) -> Annotation:
        return self._other_list[index]

    def read_dim(self, term: Any) -> Dim:
        """Returns the size of a printed term `(D i)`."""
        return self._dim_list[int(term[1])]

    def read_annotation(self, term: Any) -> Annotation:
        """Returns the annotation of a printed term."""
        if term[0] == "Other":
            return self._other_list[int(term[1])]
        return Tensor(tuple(self.read_dim(t) for t in term[2:]), term[1].strip('"'))


def declarations(o: Opcode) -> list[str]:
    """Returns the engine's declarations of an opcode and of the table that records which rule made a node."""
    sorts = "T " * o.arity + "Dim " * o.size_count
    return [f"(constructor {o.symbol} ({sorts}) T)", f"(function made_{o.symbol} ({sorts}) String :merge old)"]
