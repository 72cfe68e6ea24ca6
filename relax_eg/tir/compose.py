"""Composition (Relax, 4.2: FuseTensorIR): one tensor program equivalent to several run in sequence.

Composing is substitution in index equations. A stage without a reduction is *inlined*: each read of its buffer becomes
its value at the indices of the read. A stage with a reduction stays, as a local of the composed program. A stage that
computes something and that several other stages read also stays, so that a kernel computes every value once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from relax_eg.errors import ShapeError
from relax_eg.shapes import Dim
from relax_eg.shapes.dim import Atom
from relax_eg.tir.analyze import stage_flops
from relax_eg.tir.expr import (
    INDEX_DTYPE,
    Index,
    IndexValue,
    Read,
    Reduce,
    Scalar,
    Select,
    apply,
    cast,
    const,
    loop_of,
    walk,
)
from relax_eg.tir.program import Buffer, Stage, TensorProgram
from relax_eg.tir.substitute import rebuild, with_parts

Env = Mapping[str, "Dim | Scalar"]  # replacements of size variables and loop variables


@dataclass(frozen=True)
class InlinedProgram:
    """A program inside a kernel.

    - `program`: the tensor program.
    - `reads`, `writes`: the kernel's names of the buffers it reads and writes, in the program's order.
    - `sizes`: values of its size variables in the kernel's sizes; omitted ones keep their names.
    """

    program: TensorProgram
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    sizes: Mapping[str, Dim] = field(default_factory=dict[str, Dim])


def compose(
    name: str, inputs: Sequence[Buffer], uses: Sequence[InlinedProgram], outputs: Sequence[str]
) -> TensorProgram:
    """Returns the program `name` from `inputs` to `outputs` that runs `uses` in order. Unneeded inputs are dropped.

    A size variable that is not by itself an axis of an input (n, if buffers have shape (n-1, 4)) is `passed` at every
    call. A workspace of a program is a workspace of the composed program. ShapeError if a use reads a missing buffer,
    or one of another shape or dtype.
    """
    buffers = {b.name: b for b in inputs}
    if len(buffers) < len(inputs):
        raise ShapeError(f"{name}: two inputs have one name; their names are {', '.join(b.name for b in inputs)}")
    stages: list[Stage] = []
    workspaces: list[str] = []
    for use in uses:
        stages += _stages_of_use(name, use, buffers, workspaces)
    for o in outputs:
        if o not in buffers or o in {b.name for b in inputs}:
            raise ShapeError(f"{name}: the output {o} is written by none of its programs")
    needed = _needed(stages, outputs)
    stages = [made for made in stages if made.output.name in needed]
    workspaces = [w for w in workspaces if w in needed]
    kept = _stored_stages(stages, {*outputs, *workspaces})
    inlined: dict[str, Stage] = {}
    left: list[Stage] = []
    for made in stages:
        new = Stage(made.output, made.indices, inline_stages(made.value, inlined))
        if made.output.name in kept:
            left.append(new)
        else:
            inlined[made.output.name] = new
    read = {term.buffer for made in left for term in walk(made.value) if isinstance(term, Read)}
    taken = tuple(b for b in inputs if b.name in read)
    made = TensorProgram(name, taken, tuple(left), tuple(outputs), tuple(workspaces))
    told = {str(size) for b in taken for size in b.shape}
    return replace(made, passed=tuple(sorted(made.sizes - told))).validate()


def _stages_of_use(
    name: str, use: InlinedProgram, buffers: dict[str, Buffer], workspaces: list[str]
) -> Iterable[Stage]:
    """Yields the stages of a program in the kernel's names and sizes. Adds their outputs to `buffers` and
    `workspaces`."""
    program = use.program
    if len(use.reads) != len(program.inputs) or len(use.writes) != len(program.outputs):
        counts = f"{len(program.inputs)} buffers and writes {len(program.outputs)}"
        raise ShapeError(f"{name}: {program.name} reads {counts}; given are {len(use.reads)} and {len(use.writes)}")
    sizes: dict[str, Dim] = {v: d for v, d in use.sizes.items() if v in program.sizes}
    called = dict(zip(program.outputs, use.writes, strict=True))
    for buffer, given in zip(program.inputs, use.reads, strict=True):
        found = buffers.get(given)
        if found is None:
            raise ShapeError(f"{name}: {program.name} reads {given}, which is not there; known: {', '.join(buffers)}")
        wanted = Buffer(given, _substitute_shape(buffer.shape, sizes), buffer.dtype)
        if found != wanted:
            raise ShapeError(f"{name}: {program.name} takes {wanted}; it gets {found}")
        called[buffer.name] = given
    for made in program.stages:
        own = made.output.name
        if own not in called:
            called[own] = _fresh(own, buffers)
        elif called[own] in buffers:
            raise ShapeError(f"{name}: {program.name} writes {called[own]}, which is there already")
        output = Buffer(called[own], _substitute_shape(made.output.shape, sizes), made.output.dtype)
        buffers[output.name] = output
        if own in program.workspaces:
            workspaces.append(output.name)
        yield Stage(output, made.indices, substitute_variables(made.value, sizes, called))


def _fresh(name: str, taken: Mapping[str, Buffer]) -> str:
    return next(n for n in itertools.chain([name], (f"{name}_{i}" for i in itertools.count(1))) if n not in taken)


def _substitute_shape(shape: Sequence[Dim], sizes: Mapping[str, Dim]) -> tuple[Dim, ...]:
    return tuple(d.substitute(sizes) for d in shape) if sizes else tuple(shape)


def _needed(stages: Sequence[Stage], outputs: Sequence[str]) -> set[str]:
    """Returns the buffers that the outputs depend on."""
    needed = set(outputs)
    for made in reversed(stages):
        if made.output.name in needed:
            needed.update(term.buffer for term in walk(made.value) if isinstance(term, Read))
    return needed


def _stored_stages(stages: Sequence[Stage], stored: set[str]) -> set[str]:
    """Returns the buffers whose stages stay: those `stored`, reductions, scans, and values computed once for several
    remaining stages."""
    kept: set[str] = set()
    readers: dict[str, set[str]] = {}  # the remaining stages in which a buffer is read, after inline_stages others
    for made in reversed(stages):
        name = made.output.name
        inside = readers.get(name, set())
        terms = list(walk(made.value))
        reduces = any(isinstance(term, Reduce) for term in terms)
        shared = len(inside) > 1 and stage_flops(made) != 0
        if name in stored or reduces or shared or made.scans:
            kept.add(name)
            inside = {name}
        for term in terms:
            if isinstance(term, Read):
                readers.setdefault(term.buffer, set()).update(inside)
    return kept


# --- substitution ---


def substitute_variables(value: Scalar, env: Env, buffers: Mapping[str, str] | None = None) -> Scalar:
    """Returns `value` with other sizes and indices, and other buffer names."""
    return _rewrite(value, env, lambda read: read, buffers or {})


def inline_stages(value: Scalar, inlined: Mapping[str, Stage]) -> Scalar:
    """Returns `value` with each read of an inlined stage replaced by that stage's value at the indices of the read."""
    memo: dict[Read, Scalar] = {}

    def instead(read: Read) -> Scalar:
        made = inlined.get(read.buffer)
        if made is None:
            return read
        if read not in memo:
            at = {str(loop_of(i)): index for i, index in zip(made.indices, read.indices, strict=True) if index != i}
            memo[read] = substitute_variables(made.value, at) if at else made.value
        return memo[read]

    return _rewrite(value, {}, instead, {})


def _rewrite(value: Scalar, env: Env, instead: Callable[[Read], Scalar], buffers: Mapping[str, str]) -> Scalar:
    """Rebuilds `value` bottom-up: replaces variables by `env`, buffers by `buffers`, then each read by `instead`."""

    def made(at: Scalar, done: Mapping[Scalar, Scalar]) -> Scalar:
        new = _rewrite_term(at, env, done, buffers)
        return instead(new) if isinstance(new, Read) else new

    return rebuild(value, made)


def _rewrite_term(at: Scalar, env: Env, done: Mapping[Scalar, Scalar], buffers: Mapping[str, str]) -> Scalar:
    match at:
        case Index():
            dim = _index(at.dim, env)
            return cast(dim, at.dtype) if isinstance(dim, Scalar) else Index(dim, at.dtype)
        case Read():
            indices = tuple(done[i] if isinstance(i, Scalar) else _index(i, env) for i in at.indices)
            return Read(buffers.get(at.buffer, at.buffer), indices, at.dtype)
        case Reduce():
            over = tuple((var, _size(extent, env)) for var, extent in at.over)
            return Reduce(at.kind, over, done[at.body])
        case _:
            return with_parts(at, done)


def _size(extent: Dim, env: Env) -> Dim:
    """Returns an extent after substitution. It contains only sizes, so it never becomes data-dependent."""
    found = _index(extent, env)
    assert isinstance(found, Dim)
    return found


def _index(dim: Dim, env: Env) -> IndexValue:
    """Returns an index after substitution: a Dim, or a Scalar if one of its variables is data-dependent."""
    given = {v: env[v] for v in dim.variables if v in env}
    if not given:
        return dim
    plain = {v: x for v, x in given.items() if isinstance(x, Dim)}
    if len(plain) == len(given):
        return dim.substitute(plain)
    name = loop_of(dim)
    if name is not None:
        return given[name]
    return _dim_arithmetic(dim, given)


def _dim_arithmetic(dim: Dim, env: Env) -> Scalar:
    """Returns the value of `dim`, some of whose variables are data-dependent, as arithmetic."""
    total: Scalar | None = None
    for monomial, coefficient in dim.terms:
        term: Scalar = const(coefficient, INDEX_DTYPE)
        for atom in monomial:
            factor = _atom_arithmetic(atom, env)
            term = factor if term == const(1, INDEX_DTYPE) else apply("multiply", term, factor)
        total = term if total is None else apply("add", total, term)
    offset = const(dim.const, INDEX_DTYPE)
    return offset if total is None else total if not dim.const else apply("add", total, offset)


def _atom_arithmetic(atom: Atom, env: Env) -> Scalar:
    if atom.op == "var":
        value = env.get(atom.name, Dim.var(atom.name))
        return Index(value) if isinstance(value, Dim) else cast(value, INDEX_DTYPE)
    args = [_dim_arithmetic(a, env) for a in atom.args]
    if atom.op == "select":
        compare = "greater_equal" if atom.name == ">=" else "equal"
        return Select(apply(compare, args[0], 0), args[1], args[2])
    if atom.op == "ceildiv":
        return apply("negative", apply("floor_divide", apply("negative", args[0]), args[1]))
    fn = {"floordiv": "floor_divide", "max": "maximum", "min": "minimum"}[atom.op]
    total = args[0]
    for a in args[1:]:
        total = apply(fn, total, a)
    return total
