"""Core heads: the heads that are not in the operator table, one record each, and the evaluator that reads the
records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from relax_eg.errors import OperatorError, WellFormedError
from relax_eg.ir.annotations import Data, DataValue
from relax_eg.ir.data import Cell, FunctionValue
from relax_eg.ir.expr import (
    ALLOC_STORAGE,
    ALLOC_TENSOR,
    CALL,
    CALL_DPS_LIBRARY,
    CALL_INTO,
    CALL_TIR,
    CLOSURE,
    COND,
    CONSTANT,
    CONSTRUCT,
    FUNCTION,
    KILL,
    MATCH,
    MATCH_CAST,
    NEW_REF,
    READ_REF,
    SCAN,
    SHAPE,
    SHARD_MAP,
    TUPLE,
    TUPLE_GET,
    VAR,
    WHILE,
    WRITE_REF,
    ConstantData,
    Expr,
    node,
    postorder,
    tuple_,
    tuple_get,
)
from relax_eg.ir.foreign import Foreign
from relax_eg.shapes import Dim


class Evaluator:
    """Computes values of expressions in one kind of numbers. A subclass computes the nodes of the heads that
    compute."""

    def value(self, root: Expr, env: dict[Expr, Any], sizes: Any) -> Any:
        """Returns the value of `root`. `env`: the known values; those of all operands are added."""
        for e in postorder((root,), stop=env.__contains__):
            if e not in env:
                env[e] = self.node(e, [env[a] for a in e.args], sizes)
        return env[root]

    def node(self, e: Expr, args: list[Any], sizes: Any) -> Any:
        """Returns the value of `e` for the values of its operands. `sizes`: as the subclass has them."""
        head = HEADS.get(e.op)
        return self.operator(e, args, sizes) if head is None else head.value(self, e, args, sizes)

    def size(self, d: Dim, sizes: Any) -> Any:
        return d.evaluate(sizes)

    def not_evaluated(self, e: Expr, args: list[Any], sizes: Any) -> Any:
        raise OperatorError(f"{e.op} is not evaluated here")

    operator = constant = call = control = match_cast = tensor_program = library = memory = not_evaluated


def _unbound(run: Evaluator, e: Expr, args: list[Any], sizes: Any) -> Any:
    raise WellFormedError(f"variable `{e.attr('name')}` is used before it is defined")


def _name(e: Expr) -> str:
    return str(e.attr("name"))


@dataclass(frozen=True, slots=True)
class Head:
    """A core head.

    - `name`: the head of its nodes.
    - `value`: the value of a node, from (evaluator, node, values of the operands, sizes).
    - `attributes`: the attributes that a node must have, with their types; None where `ir.control` or `ir.memory`
      knows.
    - `label`: the name of a node in plans and reports.
    - `computes`: whether anything runs for a node.
    - `foreign`: whether a node runs a kernel, like an operator, that the operator table does not know.
    - `runs`: how a node runs functions: "" not at all, by a "call", a "choice", a "loop", or on "parts" of arrays.
    - `memory`: whether a node is explicit memory.
    - `beyond_tensors`: whether a node makes or reads a value that consists of more than tensors and shapes: a closure,
      data or a reference.
    """

    name: str
    value: Callable[[Evaluator, Expr, list[Any], Any], Any]
    attributes: Mapping[str, type] | None = None
    label: Callable[[Expr], str] = lambda e: e.op
    computes: bool = True
    foreign: bool = False
    runs: Literal["", "call", "choice", "loop", "parts"] = ""
    memory: bool = False
    beyond_tensors: bool = False


def _control(run: Evaluator, e: Expr, args: list[Any], sizes: Any) -> Any:
    return run.control(e, args, sizes)


def _memory(run: Evaluator, e: Expr, args: list[Any], sizes: Any) -> Any:
    return run.memory(e, args, sizes)


def _constructed(run: Evaluator, e: Expr, args: list[Any], sizes: Any) -> Any:
    assert isinstance(e.annotation, Data)
    return DataValue(e.annotation.definition, e.annotation.definition.index(e.attr("constructor")), tuple(args))


def _closure(run: Any, e: Expr, args: list[Any], sizes: Any) -> FunctionValue:
    first, *captured = args
    if isinstance(first, FunctionValue):
        return FunctionValue(first.name, (*captured, *first.captured))
    return FunctionValue(first, tuple(captured))


def _written(run: Evaluator, e: Expr, args: list[Any], sizes: Any) -> Any:
    args[0].content = args[1]
    return ()


_HEADS = (
    Head(VAR, _unbound, {"name": str}, computes=False),
    Head(CONSTANT, lambda run, e, a, n: run.constant(e, a, n), {"data": ConstantData}, computes=False),
    Head(SHAPE, lambda run, e, a, n: tuple(run.size(d, n) for d in e.attr("dims")), {"dims": tuple}, computes=False),
    Head(FUNCTION, lambda run, e, a, n: _name(e), {"name": str}, _name, computes=False),
    Head(TUPLE, lambda run, e, a, n: tuple(a), {}, computes=False),
    Head(TUPLE_GET, lambda run, e, a, n: a[0][e.attr("index")], {"index": int}, computes=False),
    Head(MATCH_CAST, lambda run, e, a, n: run.match_cast(e, a, n), {}),
    Head(CALL, lambda run, e, a, n: run.call(e, a, n), {}, runs="call"),
    Head(COND, _control, runs="choice"),
    Head(WHILE, _control, runs="loop"),
    Head(SCAN, _control, runs="loop"),
    Head(SHARD_MAP, _control, runs="parts"),
    Head(MATCH, _control, runs="choice", beyond_tensors=True),
    Head(CLOSURE, _closure, {}, beyond_tensors=True),
    Head(CONSTRUCT, _constructed, {"constructor": str}, beyond_tensors=True),
    Head(NEW_REF, lambda run, e, a, n: Cell(a[0]), {}, beyond_tensors=True),
    Head(READ_REF, lambda run, e, a, n: a[0].content, {}, beyond_tensors=True),
    Head(WRITE_REF, _written, {}, beyond_tensors=True),
    Head(
        CALL_TIR,
        lambda run, e, a, n: run.tensor_program(e, a, n),
        {"program": Foreign, "sizes": tuple},
        lambda e: str(e.attr("program").value.name),
        foreign=True,
    ),
    Head(
        CALL_DPS_LIBRARY,
        lambda run, e, a, n: run.library(e, a, n),
        {"name": str, "attrs": tuple, "pure": bool},
        _name,
        foreign=True,
    ),
    *(Head(name, _memory, memory=True) for name in (ALLOC_STORAGE, ALLOC_TENSOR, CALL_INTO, KILL)),
)

HEADS: Mapping[str, Head] = {h.name: h for h in _HEADS}
"""The record of each core head by its name."""


def heads_where(holds: Callable[[Head], bool]) -> frozenset[str]:
    """Returns the core heads for which `holds`."""
    return frozenset(h.name for h in _HEADS if holds(h))


CORE = frozenset(HEADS)
STATIC = frozenset((SHAPE, FUNCTION))
"""Heads of leaves that hold no data; their values are known when a program is compiled."""

PASSIVE = heads_where(lambda h: not h.computes)
"""Heads for whose nodes nothing runs: leaves and tuples."""

TUPLES = frozenset((TUPLE, TUPLE_GET))
"""Heads that build tuples and take fields out of them."""

LEAVES = PASSIVE - TUPLES
IN_PLACE = LEAVES | {TUPLE}
"""Heads of nodes whose text is written at each use."""

FOREIGN = heads_where(lambda h: h.foreign)
"""Heads of kernels that the operator table does not know."""

WITHOUT_KERNEL = CORE - FOREIGN
"""Heads whose nodes are no kernels. The kernels of a function that a node runs count for the function."""

MEMORY = heads_where(lambda h: h.memory)
RUNNING = heads_where(lambda h: h.runs != "")
"""Heads whose nodes run functions."""

CONTROL = RUNNING - {CALL}
REFERENCES = frozenset((NEW_REF, READ_REF, WRITE_REF))
BEYOND_TENSORS = heads_where(lambda h: h.beyond_tensors)
"""Heads whose nodes no dataflow block contains."""

LOOPS = heads_where(lambda h: h.runs == "loop")


def label_of(e: Expr) -> str:
    """Returns the name of a kernel in plans and reports."""
    return HEADS[e.op].label(e) if e.op in HEADS else e.op


def with_operands(e: Expr, args: Sequence[Expr]) -> Expr:
    """Returns the node `e` on operands `args`, with the annotation of `e`. A tuple, or a field of one, gets the
    annotation that follows from other operands than its own."""
    if tuple(args) == e.args:
        return e
    if e.op == TUPLE_GET:
        return tuple_get(args[0], e.attr("index"))
    if e.op == TUPLE and any(a.annotation != b.annotation for a, b in zip(args, e.args, strict=True)):
        return tuple_(args)
    return node(e.op, args, e.attrs, e.annotation)
