"""Replaces parts of terms: loop variables and sizes by indices, or subterms by others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from relax_eg.dtypes import is_float
from relax_eg.shapes import Dim
from relax_eg.tir.expr import Apply, Cast, Const, Index, Read, Reduce, Scalar, Select, loop_of
from relax_eg.tir.program import Buffer, Stage, TensorProgram
from relax_eg.traversal import made_from_below


def substitute(term: Scalar, env: Mapping[str, Dim | int]) -> Scalar:
    """Returns `term` with the Dim variables in `env` replaced. Linear in the number of distinct terms.

    Variables bound by a reduction are local to it: no key of `env` may have such a name, and no value may mention one.
    """
    if not env:
        return term
    return rebuild(term, lambda at, done: _substitute_children(at, env, done))


def rebuild(
    term: Scalar,
    make: Callable[[Scalar, Mapping[Scalar, Scalar]], Scalar],
    known: Mapping[Scalar, Scalar] | None = None,
) -> Scalar:
    """Rebuilds `term` bottom-up without recursion: `make` gets each distinct term and the replacements of its children.

    `known`: replacements given in advance; these terms are not visited.
    """
    done = dict(known or {})
    return made_from_below(term, lambda at: at.children, lambda at: make(at, done), done)


def _substitute_children(at: Scalar, env: Mapping[str, Dim | int], done: Mapping[Scalar, Scalar]) -> Scalar:
    match at:
        case Index():
            return Index(at.dim.substitute(env), at.dtype)
        case Read():
            indices = tuple(i.substitute(env) if isinstance(i, Dim) else done[i] for i in at.indices)
            return Read(at.buffer, indices, at.dtype)
        case Reduce():
            inner = {name: value for name, value in env.items() if name not in {loop_of(v) for v, _ in at.over}}
            return replace(at, over=tuple((v, e.substitute(inner)) for v, e in at.over), body=done[at.body])
        case _:
            return with_parts(at, done)


def with_parts(at: Scalar, done: Mapping[Scalar, Scalar]) -> Scalar:
    """Returns `at` with each child replaced by its entry in `done`; `at` itself if nothing changes."""
    if all(done[c] is c for c in at.children):
        return at
    match at:
        case Read():
            return Read(at.buffer, tuple(i if isinstance(i, Dim) else done[i] for i in at.indices), at.dtype)
        case Apply():
            return Apply(at.fn, tuple(done[a] for a in at.args))
        case Cast():
            return Cast(done[at.arg], at.dtype)
        case Select():
            return Select(done[at.cond], done[at.then], done[at.other])
        case Reduce():
            return replace(at, body=done[at.body])
        case _:
            return at


def with_sizes(program: TensorProgram, sizes: Mapping[str, Dim]) -> TensorProgram:
    """Returns `program` with its size variables replaced. `sizes` gives all of them."""

    def buffer(b: Buffer) -> Buffer:
        return Buffer(b.name, tuple(d.substitute(sizes) for d in b.shape), b.dtype)

    stages = tuple(Stage(buffer(s.output), s.indices, substitute(s.value, sizes)) for s in program.stages)
    return replace(program, inputs=tuple(map(buffer, program.inputs)), stages=stages, passed=())


def widened(program: TensorProgram) -> TensorProgram:
    """Returns `program` with float64 in place of every float type."""

    def wide(dtype: str) -> str:
        return _WIDEST if is_float(dtype) else dtype

    def buffer(b: Buffer) -> Buffer:
        return Buffer(b.name, b.shape, wide(b.dtype))

    def retyped(at: Scalar, done: Mapping[Scalar, Scalar]) -> Scalar:
        match at:
            case Const():
                return Const(at.value, wide(at.dtype))
            case Index():
                return Index(at.dim, wide(at.dtype))
            case Read():
                indices = tuple(i if isinstance(i, Dim) else done[i] for i in at.indices)
                return Read(at.buffer, indices, wide(at.dtype))
            case Cast():
                return Cast(done[at.arg], wide(at.dtype))
            case _:
                return with_parts(at, done)

    stages = tuple(Stage(buffer(s.output), s.indices, rebuild(s.value, retyped)) for s in program.stages)
    return replace(program, inputs=tuple(map(buffer, program.inputs)), stages=stages)


_WIDEST = "float64"  # given: the float type of the reference over the reals
