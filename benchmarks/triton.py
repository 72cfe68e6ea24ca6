"""Compilation of tensor programs by Triton for an H100: every scalar function, cast and reduction, and attention.

No GPU is needed, but the packages with which JAX compiles for GPUs are: `relax-eg[cuda]`.

    python -m benchmarks.triton              # all dtypes
    python -m benchmarks.triton --quick      # bfloat16 alone
    python -m benchmarks.triton --dtype int8 --dtype bool

A case is a tensor program with a workspace, which is lowered through Pallas. The command lists the cases that
compile although `relax_eg.ops.triton` leaves them out, and those that do not compile although it has them; it fails for
the latter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import jax
import numpy as np
import typer
from rich.progress import track

from benchmarks import Quick
from relax_eg.backend.gpu.target import target_for
from relax_eg.backend.pallas.plan import Unsuitable
from relax_eg.backend.pallas.programs import lower_pallas
from relax_eg.dtypes import numpy_dtype
from relax_eg.errors import OptionError, RelaxEgError
from relax_eg.ops import triton
from relax_eg.ops.multiprocessors import MULTIPROCESSORS
from relax_eg.shapes import Dim
from relax_eg.tir import Buffer, Const, Read, Reduce, Scalar, Stage, TensorProgram, apply, cast, loop
from relax_eg.tir.expr import ReduceKind
from relax_eg.tir.functions import FUNCTIONS

app = typer.Typer(add_completion=False)
N = 64  # rows and columns of each array
DEVICE = MULTIPROCESSORS["h100"]
Case = tuple[str, TensorProgram]


def computed(name: str, dtypes: Sequence[str], value: Callable[..., Scalar]) -> TensorProgram:
    """`value` of an element of each array, in a workspace, and the greatest of each row."""
    size = Dim.of(N)
    i, j, k = (loop(n) for n in "ijk")
    inputs = [Buffer(f"A{n}", (size, size), dtype) for n, dtype in enumerate(dtypes)]
    made = value(*(b[i, j] for b in inputs))
    between, out = Buffer("P", (size, size), made.dtype), Buffer("Y", (size,), "float32")
    greatest = Reduce("max", ((k, size),), cast(Read("P", (i, k), made.dtype), "float32"))
    return TensorProgram(
        name, tuple(inputs), (Stage(between, (i, j), made), Stage(out, (i,), greatest)), ("Y",), ("P",)
    )


def of_function(fn: str, dtype: str) -> Case | None:
    """A scalar function at one dtype; None where it takes none such."""
    function = FUNCTIONS[fn]
    if fn.startswith("bits_as_") and numpy_dtype(fn.removeprefix("bits_as_")).itemsize != numpy_dtype(dtype).itemsize:
        return None
    constants = {"integer_pow": (3,), "reduce_precision": (5, 7)}.get(fn, ())
    dtypes = [dtype] * (function.arity - len(constants))
    if function.result == "first" and len(dtypes) > 1:
        dtypes[1] = "int32"
    if fn == "reduce_precision" and "float" not in dtype:
        return None
    try:
        return fn, computed(fn, dtypes, lambda *xs: apply(fn, *xs, *(Const(c, "int32") for c in constants)))
    except RelaxEgError:
        return None


def reduced(kind: ReduceKind, dtype: str) -> TensorProgram:
    """Rows reduced in two steps of eight blocks."""
    size, eight = Dim.of(N), Dim.of(N // 8)
    i, j, k = (loop(n) for n in "ijk")
    x, part, out = Buffer("X", (size, size), dtype), Buffer("P", (size, Dim.of(8)), dtype), Buffer("Y", (size,), dtype)
    first = Reduce(kind, ((k, eight),), x[i, j * 8 + k])
    second = Reduce(kind, ((k, Dim.of(8)),), part[i, k])
    return TensorProgram(kind, (x,), (Stage(part, (i, j), first), Stage(out, (i,), second)), ("Y",), ("P",))


def attention(dtype: str) -> TensorProgram:
    """A softmax between two contractions."""
    n = Dim.of(N)
    i, j, k = (loop(name) for name in "ijk")
    q, keys, v = (Buffer(name, (n, n), dtype) for name in "QKV")
    s, e, p, y = (Buffer(name, (n, n), dtype) for name in "SEPY")
    m, t = (Buffer(name, (n,), dtype) for name in "MT")
    stages = (
        Stage(s, (i, j), Reduce("sum", ((k, n),), q[i, k] * keys[j, k])),
        Stage(m, (i,), Reduce("max", ((k, n),), s[i, k])),
        Stage(e, (i, j), apply("exp", apply("subtract", s[i, j], m[i]))),
        Stage(t, (i,), Reduce("sum", ((k, n),), e[i, k])),
        Stage(p, (i, j), apply("divide", e[i, j], t[i])),
        Stage(y, (i, j), Reduce("sum", ((k, n),), p[i, k] * v[k, j])),
    )
    return TensorProgram("attention", (q, keys, v), stages, ("Y",))


def cases(dtypes: Sequence[str]) -> Iterator[tuple[str, str, TensorProgram]]:
    """Yields the cases: a name, a dtype and the program."""
    for dtype in dtypes:
        for fn in FUNCTIONS:
            case = of_function(fn, dtype)
            if case is not None:
                yield *(case[0], dtype), case[1]
        for to in sorted(triton.DTYPES):
            yield f"cast to {to}", dtype, computed("cast", [dtype], lambda x, to=to: cast(x, to))
        for kind in ("sum", "max", "min", "prod"):
            if dtype != "bool":
                yield f"reduction {kind}", dtype, reduced(kind, dtype)
        if "float" in dtype:
            yield "attention", dtype, attention(dtype)


def compiler() -> Callable[..., Any]:
    """Compiles a function of arrays of these shapes and dtypes for the H100."""
    target = target_for("h100")

    def compiled(run: Callable[..., Any], shapes: Sequence[tuple[tuple[int, ...], str]]) -> Any:
        args = [target.place(jax.ShapeDtypeStruct(shape, np.dtype(dtype))) for shape, dtype in shapes]
        with target.lowering():
            lowered = jax.jit(run).lower(*args)
        return target.compile(lowered, {})

    return compiled


def outcome(program: TensorProgram, compiled: Callable[..., Any]) -> str:
    """Returns the reason why a program does not compile; "" if it does."""
    try:
        if any(b.dtype not in triton.DTYPES for b in program.buffers.values()):
            return "of a dtype that Triton does not load"
        run = lower_pallas(program, {}, DEVICE).run
        compiled(run, [(tuple(d.const for d in b.shape), b.dtype) for b in program.inputs])
    except Unsuitable as e:
        return str(e)
    except Exception as e:  # any exception of Pallas, Triton or XLA is a result
        return f"{type(e).__name__}: {str(e).strip().splitlines()[0][:90]}"
    return ""


@app.command(help=(__doc__ or "").splitlines()[0])
def main(
    quick: Quick = False,
    dtypes: Annotated[list[str] | None, typer.Option("--dtype", help="this dtype; may be given again")] = None,
) -> None:
    """Compile, and say where the lists are wrong."""
    try:
        compiled, wrong, n = compiler(), 0, 0
    except OptionError as e:
        print(f"nothing is compiled: {e}")
        return
    chosen = dtypes or (["bfloat16"] if quick else sorted(triton.DTYPES))
    with jax.enable_x64(True):
        for name, dtype, program in track(list(cases(chosen)), "compiling", transient=True):
            found, listed, n = outcome(program, compiled), not triton.unsupported_reason(program), n + 1
            wrong += bool(found) and listed
            if bool(found) == listed:
                print(f"{name} of {dtype}: {found or 'compiles, and is left out'}", flush=True)
    print(f"{n} programs; {wrong} listed that do not compile")
    if wrong:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
