"""`call_tir`: the call of a tensor program in destination-passing style (Relax, 3.3).

The caller annotates the outputs, and passes in `sizes` the sizes that no argument axis determines (Relax's symbolic
arguments). The outputs' annotation is deduced from the program's buffers at the sizes of the arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from relax_eg.argument_checks import NONE, accepts, of_types
from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import Annotation, DimLike, Tensor, Tuple
from relax_eg.ir.annotations import Callable as Signature
from relax_eg.ir.calls import call_annotation, call_sizes
from relax_eg.ir.expr import CALL_TIR, VALUES, Expr, node
from relax_eg.ir.foreign import Foreign
from relax_eg.ir.lattice import annotation_clash
from relax_eg.shapes import Dim
from relax_eg.tir import Buffer, TensorProgram


@accepts(
    OperatorError,
    program=of_types("a tensor program, such as `rx.tensor_program` makes,", TensorProgram),
    args=VALUES,
    out=of_types("an annotation, such as rx.Tensor('n 4'),", Annotation) | NONE,
    sizes=of_types("sizes by name, {'n': 4},", Mapping) | NONE,
)
def call_tir(
    program: TensorProgram,
    args: Iterable[Expr],
    out: Annotation | None = None,
    sizes: Mapping[str, DimLike] | None = None,
) -> Expr:
    """Returns a call of `program` on `args`.

    `out` annotates the outputs, as a tuple if there are several; by default it is deduced. OperatorError if arguments,
    sizes or `out` do not fit the program's buffers.
    """
    operands = tuple(args)
    sizes_by_name = tuple((name, Dim.of(size)) for name, size in (sizes or {}).items())
    found = tir_annotation(program, [a.annotation for a in operands], sizes_by_name)
    if out is not None and (why := annotation_clash(out, found)):
        raise OperatorError(f"call_tir: `{program.name}` fills {found}, to be filled is {out}: {why}")
    return node(
        CALL_TIR, operands, (("program", Foreign(program)), ("sizes", sizes_by_name)), found if out is None else out
    )


def call_with_sizes(program: TensorProgram, args: Iterable[Expr], out: Annotation | None = None) -> Expr:
    """Returns a call of `program` on `args` that passes the sizes that are no axis of an input (Relax, Figure 8). They
    have the same names at the caller."""
    passed = tuple(sorted(program.sizes - {str(d) for b in program.inputs for d in b.shape}))
    return call_tir(replace(program, passed=passed), args, out, {v: Dim.var(v) for v in passed})


def has_own_annotation(e: Expr) -> bool:
    """Whether the annotation of a `call_tir` says more than what follows from its program and arguments."""
    if e.attr("sizes"):
        return True
    try:
        return tir_annotation(e.attr("program").value, [a.annotation for a in e.args], ()) != e.annotation
    except OperatorError:
        return True


def tir_annotation(
    program: TensorProgram,
    args: Sequence[Annotation],
    sizes_by_name: Sequence[tuple[str, Dim]],
    buffers: Sequence[str] | None = None,
) -> Annotation:
    """Returns the annotation of the outputs of `program`, deduced from its buffers.

    - `args`: annotations of the arguments.
    - `sizes_by_name`: the sizes that the call passes by name.
    - `buffers`: names of the buffers to annotate instead of the outputs.
    """
    name = f"call_tir: `{program.name}`"
    if len(args) != len(program.parameters):
        wanted = ", ".join(map(str, program.parameters))
        raise OperatorError(f"{name} takes {len(program.parameters)} arguments ({wanted}), got {len(args)}")
    inputs = [_annotation(b) for b in program.parameters]
    outputs = [_annotation(program.buffers[o]) for o in (program.outputs if buffers is None else buffers)]
    # The sizes passed are treated as one more parameter, as in Relax's Figure 8.
    sizes = Tuple(tuple(Tensor((v,)) for v, _ in sizes_by_name)), Tuple(tuple(Tensor((d,)) for _, d in sizes_by_name))
    for v in program.size_arguments:
        if v not in dict(sizes_by_name):
            raise OperatorError(f"{name}: no argument tells its size `{v}`; sizes={{'{v}': ...}} passes it")
    bare = {str(d) for b in program.parameters for d in b.shape} | {v for v, _ in sizes_by_name}
    solved = call_sizes([sizes[0], *inputs], [sizes[1], *args])
    known = all(isinstance(a, Tensor) and a.shape is not None for a in args)
    for v in sorted(program.sizes - bare):
        if known and v not in solved:
            raise OperatorError(f"{name}: no argument tells its size `{v}`; sizes={{'{v}': ...}} passes it")
    result = outputs[0] if len(outputs) == 1 else Tuple(tuple(outputs))
    return call_annotation(Signature((sizes[0], *inputs), result), [sizes[1], *args], name)


def _annotation(b: Buffer) -> Tensor:
    return Tensor(b.shape, b.dtype)
