"""Control flow: nodes that run functions of the module.

    cond(index, f0, f1, ..., *operands)                             f_index(*operands)
    while_loop(condition, body, *constants, *carry)                 carry = body(...) while condition(...)
    scan(body, *constants, *carry, *xs)                             one step for each slice of the xs
    match(value, f0, f1, ..., *operands)                            f_i(*operands, *fields), i the value's constructor
    shard_map(body, *operands)                                      body on each device's part

The functions are operands, given by name and signature, so a node's annotation follows from signatures alone (Relax,
3.2). A `match` has one function for each constructor of the data type. A branch or body returns a tuple, even for one
value; a condition returns a boolean scalar. Values from outside are passed explicitly: as constants in loops, as
operands in `cond` and `match`. Branches may return different annotations; the node's annotation is their join.
"""

from __future__ import annotations

import functools
from collections.abc import Callable as Callable_
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import Annotation, Callable, Data, Ref, Shape, Tensor, Tuple
from relax_eg.ir.calls import call_annotation
from relax_eg.ir.expr import CALL, COND, FUNCTION, MATCH, NEW_REF, READ_REF, SCAN, SHARD_MAP, WHILE, Expr, node
from relax_eg.ir.heads import CONTROL
from relax_eg.ir.lattice import annotation_clash, covers, join
from relax_eg.shapes import Dim

# The attribute of a loop that is one kernel on a CPU, with all of its steps: True or None.
ONE_KERNEL = "one_kernel"

# given: defaults of attributes
ATTRIBUTES: Mapping[str, Mapping[str, Any]] = {
    COND: {"branches": 2},
    MATCH: {"branches": 0},
    WHILE: {"condition_constants": 0, "body_constants": 0, ONE_KERNEL: None},
    SCAN: {"constants": 0, "carry": 0, "length": None, "reverse": False, "unroll": 1, ONE_KERNEL: None},
    SHARD_MAP: {"mesh": None, "in_specs": None, "out_specs": None, "manual_axes": None, "check_vma": True, "out": None},
}


def cond(index: Expr, branches: Sequence[Expr], operands: Iterable[Expr]) -> Expr:
    """Applies branch `index` to `operands`.

    `index` is an int32 scalar, clamped to the valid range, or a bool that chooses between two branches, false first.
    """
    return _control_node(COND, (index, *branches, *operands), {"branches": len(branches)})


def match(value: Expr, branches: Sequence[Expr], operands: Iterable[Expr]) -> Expr:
    """Applies to `operands` and the fields of `value` the branch of its constructor."""
    return _control_node(MATCH, (value, *branches, *operands), {"branches": len(branches)})


def while_loop(
    condition: Expr,
    body: Expr,
    condition_constants: Sequence[Expr],
    body_constants: Sequence[Expr],
    carry: Iterable[Expr],
) -> Expr:
    """Repeats `carry = body(*body_constants, *carry)` while `condition(*condition_constants, *carry)` is true."""
    counts = {"condition_constants": len(condition_constants), "body_constants": len(body_constants)}
    args = (condition, body, *condition_constants, *body_constants, *carry)
    return _control_node(WHILE, args, {**counts, ONE_KERNEL: None})


def scan(
    body: Expr,
    constants: Sequence[Expr],
    carry: Sequence[Expr],
    xs: Iterable[Expr],
    *,
    length: Dim,
    reverse: bool = False,
    unroll: int = 1,
) -> Expr:
    """Runs `(*carry, *y) = body(*constants, *carry, *x)` for each x of `length` slices of the xs along their first
    axis.

    The value is the last carry, then the ys stacked along a new first axis.

    - `reverse`: run from the last slice to the first.
    - `unroll`: number of steps per iteration of the compiled loop.
    """
    attrs = {"constants": len(constants), "carry": len(carry), "length": length, "reverse": reverse, "unroll": unroll}
    return _control_node(SCAN, (body, *constants, *carry, *xs), {**attrs, ONE_KERNEL: None})


def in_one_kernel(loop: Expr, body: Expr) -> Expr:
    """Returns a loop with the function `body` in place of its body as one kernel on CPUs; other devices run it as
    `loop`."""
    *before, _ = group_arguments(loop.op, loop.args, dict(loop.attrs)).functions
    args = (*before, body, *loop.args[len(before) + 1 :])
    return _control_node(loop.op, args, {**dict(loop.attrs), ONE_KERNEL: True})


def is_one_kernel(attrs: Mapping[str, Any]) -> bool:
    """Whether the loop with these attributes is one kernel on CPUs."""
    return bool(attrs.get(ONE_KERNEL))


def _control_node(op: str, args: Sequence[Expr], attrs: Mapping[str, Any]) -> Expr:
    return node(op, args, attrs.items(), deduce_control(op, [a.annotation for a in args], attrs))


def functions_of(e: Expr) -> tuple[str, ...]:
    """Returns the names of the module functions that `e` itself runs, if `e` is a call or a control node."""
    if e.op == CALL:
        return (str(e.args[0].attr("name")),) if e.args and e.args[0].op == FUNCTION else ()
    if e.op not in CONTROL:
        return ()
    return tuple(str(a.attr("name")) for a in e.args if a.op == FUNCTION)


@dataclass(frozen=True, slots=True)
class Parts:
    """The operands of a call or control node, grouped by role. A role that the node does not have is empty.

    - `functions`: the functions that the node runs.
    - `index`: the index of a `cond`, or the value of a `match`; None for other nodes.
    - `constants`: the loop-invariant operands of the body; for nodes that are no loops, all operands.
    - `condition_constants`: the loop-invariant operands of the condition of a `while_loop`.
    - `carry`: the values that a step passes to the next step.
    - `xs`: the operands of a `scan` of which each step gets a slice.
    """

    functions: tuple[Any, ...]
    index: Any
    constants: tuple[Any, ...]
    condition_constants: tuple[Any, ...]
    carry: tuple[Any, ...]
    xs: tuple[Any, ...]


def group_arguments(op: str, args: Sequence[Any], attrs: Mapping[str, Any]) -> Parts:
    """Groups the `args` of a call or control node by role. `args` are expressions or anything in the same order."""
    a = tuple(args)
    if op in (COND, MATCH):
        n = attrs["branches"]
        return Parts(a[1 : 1 + n], a[0], a[1 + n :], (), (), ())
    if op in (SHARD_MAP, CALL):
        return Parts(a[:1], None, a[1:], (), (), ())
    if op == WHILE:
        n, m = attrs["condition_constants"], attrs["body_constants"]
        return Parts(a[:2], None, a[2 + n : 2 + n + m], a[2 : 2 + n], a[2 + n + m :], ())
    n, m = attrs["constants"], attrs["carry"]
    return Parts(a[:1], None, a[1 : 1 + n], (), a[1 + n : 1 + n + m], a[1 + n + m :])


@dataclass(frozen=True, slots=True)
class Run:
    """A function that a call or control node runs, with its arguments in the order of its parameters.

    - `function`: the operand that names the function.
    - `constants`: the arguments that are the same at every step. A function of a `match` takes the fields of the value
      after them.
    - `carry`: the arguments that a step gets from the step before; for the first step, operands of the node.
    - `slices`: the operands of which each step gets one slice along the first axis.
    """

    function: Any
    constants: tuple[Any, ...]
    carry: tuple[Any, ...] = ()
    slices: tuple[Any, ...] = ()


def runs_of(op: str, args: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[Run, ...]:
    """Returns the functions that a call or control node runs; the body of a loop is last. `args` are as for
    `group_arguments`."""
    p = group_arguments(op, args, attrs)
    bodies = (Run(f, p.constants, p.carry, p.xs) for f in p.functions)
    if op == WHILE:
        condition, body = bodies
        return Run(condition.function, p.condition_constants, p.carry), body
    return tuple(bodies)


def arguments_of(run: Run) -> tuple[Annotation, ...]:
    """Returns the annotations of the arguments of one step. `run` holds annotations in place of expressions."""
    slices = (Tensor(x.shape[1:], x.dtype) if isinstance(x, Tensor) and x.shape else x for x in run.slices)
    return (*run.constants, *run.carry, *slices)


def steps_of(op: str, attrs: Mapping[str, Any]) -> Dim | None:
    """Returns the number of times that a call or control node runs its body; None for a `while_loop`, which decides it
    when it runs."""
    if op == WHILE:
        return None
    return Dim.of(attrs["length"] if op == SCAN else 1)


def alternatives(op: str, attrs: Mapping[str, Any]) -> int:
    """Returns the number of functions among which a call or control node chooses one."""
    return attrs["branches"] if op in (COND, MATCH) else 1


def run_control_on_values(
    e: Expr,
    args: Sequence[Any],
    run: Callable_[[int, tuple[Any, ...]], Any],
    length: Callable_[[Dim], int],
    stacked: Callable_[[list[Any], Annotation], Any],
) -> Any:
    """Returns the value of a `cond`, `while_loop` or `scan` on plain values, by running its functions one by one.

    - `run(i, args)`: returns the result of function `i` of the node.
    - `length(size)`: returns the value of a size.
    - `stacked(values, annotation)`: stacks the values of the steps, possibly none, into a value of this annotation.
    """
    p = group_arguments(e.op, args, dict(e.attrs))
    if e.op == COND:
        return run(min(max(int(p.index), 0), len(p.functions) - 1), p.constants)
    if e.op == MATCH:
        return run(p.index.index, (*p.constants, *p.index.fields))
    carry = p.carry
    if e.op == WHILE:
        while run(0, (*p.condition_constants, *carry)):
            carry = run(1, (*p.constants, *carry))
        return carry
    ys: list[tuple[Any, ...]] = []
    order = -1 if e.attr("reverse") else 1
    for i in range(length(e.attr("length")))[::order]:
        result = run(0, (*p.constants, *carry, *(x[i] for x in p.xs)))
        carry = result[: len(carry)]
        ys.append(result[len(carry) :])
    assert isinstance(e.annotation, Tuple)
    fields = e.annotation.fields[len(carry) :]
    return (*carry, *(stacked([y[i] for y in ys[::order]], a) for i, a in enumerate(fields)))


def attributes_of_control(op: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all attributes of a control node in order, with defaults filled in. OperatorError for an unknown
    attribute."""
    known = ATTRIBUTES[op]
    for name in given:
        if name not in known:
            raise OperatorError(f"{op} has no attribute `{name}`; it has: {', '.join(known)}")
    filled = {k: given.get(k, default) for k, default in known.items()}
    if op == SCAN:
        filled["length"] = None if filled["length"] is None else Dim.of(filled["length"])
    return filled


def deduce_control(op: str, operands: Sequence[Annotation], attrs: Mapping[str, Any]) -> Annotation:
    """Returns the annotation of a control node, from its functions' signatures. OperatorError if the operands do not
    fit."""
    if op == SHARD_MAP:
        return attrs["out"]  # the global shape depends on the mesh, not on the body's signature
    p = group_arguments(op, operands, attrs)
    wanted = {COND: attrs.get("branches"), MATCH: attrs.get("branches"), WHILE: 2, SCAN: 1}[op]
    for f in p.functions:
        if not isinstance(f, Callable):
            raise OperatorError(f"{op}: {f} stands where a function is needed")
    if len(p.functions) != wanted:
        raise OperatorError(f"{op} needs {wanted} functions first, got {len(p.functions)}")
    if op in (COND, MATCH):
        return _branches_annotation(op, p)
    if op == WHILE:
        _check_condition(p)
        _check_carry(op, call_annotation(p.functions[1], [*p.constants, *p.carry]), p.carry, exactly=True)
        return Tuple(p.carry)
    length = attrs["length"]
    if length is None:
        raise OperatorError("scan needs `length`, the number of steps")
    result = call_annotation(p.functions[0], [*p.constants, *p.carry, *(_slice(x, length) for x in p.xs)])
    fields = _check_carry(op, result, p.carry, exactly=False)
    return Tuple((*p.carry, *(_stacked(y, length) for y in fields[len(p.carry) :])))


def _branches_annotation(op: str, p: Parts) -> Annotation:
    fields: list[tuple[Annotation, ...]] = [()] * len(p.functions)
    if op == MATCH:
        if not isinstance(p.index, Data):
            raise OperatorError(f"match: the value is {p.index}; a value of a data type is accepted")
        definition = p.index.definition
        if len(p.functions) != len(definition.constructors):
            names = ", ".join(c.name for c in definition.constructors)
            raise OperatorError(f"match: {len(p.functions)} functions for the constructors of {definition}: {names}")
        fields = [p.index.fields(i) for i in range(len(p.functions))]
    results = [call_annotation(f, [*p.constants, *more]) for f, more in zip(p.functions, fields, strict=True)]
    for i, r in enumerate(results):
        if not isinstance(r, Tuple):
            raise OperatorError(f"{op}: branch {i} returns {r}; a branch returns a tuple")
        if why := annotation_clash(r, results[0]):
            raise OperatorError(f"{op}: branch {i} returns {r}, branch 0 returns {results[0]}; they must agree: {why}")
    if op == MATCH:
        return functools.reduce(join, results)
    if not isinstance(p.index, Tensor) or p.index.ndim not in (0, None) or p.index.dtype not in ("int32", "bool", None):
        raise OperatorError(f"cond: the index is {p.index}; an int32 or bool scalar is accepted")
    return functools.reduce(join, results)


def _check_condition(p: Parts) -> None:
    found = call_annotation(p.functions[0], [*p.condition_constants, *p.carry])
    if found != Tensor((), "bool"):
        raise OperatorError(f"while_loop: the condition returns {found}; a boolean scalar is accepted")


def _check_carry(op: str, result: Annotation, carry: Sequence[Annotation], exactly: bool) -> tuple[Annotation, ...]:
    """Returns the fields that a body returns; the first ones are the next carry."""
    n = len(result.fields) if isinstance(result, Tuple) else -1
    if not isinstance(result, Tuple) or n < len(carry) or (exactly and n > len(carry)):
        raise OperatorError(f"{op}: the body returns {result}; a tuple, first the {len(carry)} carried values")
    for i, (before, after) in enumerate(zip(carry, result.fields, strict=False)):
        if not (covers(before, after) and covers(after, before)):
            raise OperatorError(f"{op}: carried value {i} is {before} before a step and {after} after it")
    return result.fields


def _slice(x: Annotation, length: Dim) -> Annotation:
    if not isinstance(x, Tensor) or not x.shape or x.shape[0] != length:
        raise OperatorError(f"scan: it goes over {length} slices of {x}; tensors with this many along their first axis")
    return Tensor(x.shape[1:], x.dtype)


def _stacked(y: Annotation, length: Dim) -> Annotation:
    if isinstance(y, Tensor) and y.shape is not None:
        return Tensor((length, *y.shape), y.dtype)
    if isinstance(y, Tensor):
        return Tensor(dtype=y.dtype, ndim=None if y.ndim is None else y.ndim + 1)
    if isinstance(y, Shape):
        raise OperatorError("scan: the body returns a shape, which cannot be stacked")
    raise OperatorError(f"scan: the body returns {y} at each step; only tensors can be stacked")


def reference_annotation(op: str, operands: Sequence[Annotation], declared: Annotation | None = None) -> Annotation:
    """Returns the annotation of a node that makes, reads or writes a reference. `declared`: the declared
    annotation of a new one. OperatorError if the operands do not fit."""
    if op == NEW_REF:
        wide = isinstance(declared, Ref) and covers(declared.content, operands[0])
        return declared if wide and declared is not None else Ref(operands[0])
    cell = operands[0]
    if not isinstance(cell, Ref):
        raise OperatorError(f"{op}: the first operand is {cell}; a reference is accepted")
    if op == READ_REF:
        return cell.content
    if not covers(cell.content, operands[1]):
        why = annotation_clash(cell.content, operands[1])
        raise OperatorError(f"{op}: {operands[1]} is written to {cell}" + (f": {why}" if why else ""))
    return Tuple(())
