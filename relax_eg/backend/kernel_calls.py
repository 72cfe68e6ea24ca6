"""A module's calls at one binding of its sizes, as a flat list of executables that follow the memory plan.

What is planned is followed by donation: a kernel that is to write where a dead array lies is passed that array, and
XLA puts the result there. The arrays that are in the storages at the end of a call are those the next call begins with,
so that from the second call on nothing is allocated but what is handed out. That is never put into a storage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from relax_eg.backend.accounting import allocated
from relax_eg.backend.lower import run_block
from relax_eg.backend.pallas.choice import Pallas, Preferred
from relax_eg.backend.tensor_programs import lower_program
from relax_eg.ir.annotations import Annotation, Shape, Tensor, Tuple, dims_of
from relax_eg.ir.expr import CALL_TIR, CONSTANT, Expr, constant_value, np_dtype, postorder
from relax_eg.ir.module import Binding, Block, Module
from relax_eg.memory import Plan, RuntimeStep, Tree, Value, leaves, operands_of
from relax_eg.ops.fused import VIEWS
from relax_eg.shapes import Dim

VIEW = "view"
_INSIDE = 16  # elements of a constant that is part of the kernels that read it, instead of an argument of theirs


@dataclass(frozen=True, slots=True)
class Donations:
    """What an executable may write over: the places of operands that its results go on in, and how many arrays that it
    does not read stand behind its operands."""

    operands: tuple[int, ...]
    behind: int


class Executables:
    """The kernels of a module, compiled. Equal ones are one, whichever function they stand in. `pallas`: chooses what
    is lowered through Pallas."""

    def __init__(self, module: Module, compiler_options: Mapping[str, str], pallas: Pallas | None = None) -> None:
        self._module = module
        self._pallas = pallas
        self._options = dict(compiler_options) or None
        self._found: dict[Any, Any] = {}

    @property
    def kinds(self) -> int:
        return len({key[0] for key in self._found})

    def get(self, e: Expr, reads: tuple[Expr, ...], sizes: Mapping[str, int], donated: Donations) -> Any:
        """What computes `e` from arrays of `reads`, or of what they are views of; `sizes`: of the function it is in."""
        place = {r: i for i, r in enumerate(reads)}
        inside = [e, *postorder([e], stop=place.__contains__), *reads]
        names = sorted({v for x in inside for v in _size_names(x)})
        known = {v: sizes[v] for v in names if v in sizes}
        key = (_key(e, place), tuple(known.items()), donated)
        found = self._found.get(key)
        if found is None:
            module, pallas, block = self._module, self._pallas, Block((Binding(e, e),))

            def through(programs: Callable[..., Any]) -> Any:
                def kernel(*arrays: Any) -> Any:
                    given = [_as_declared(r.annotation, x, known) for r, x in zip(reads, arrays, strict=False)]
                    (result,) = run_block(module, block, dict(zip(reads, given, strict=True)), known, programs)
                    # An argument that is handed on would be one array with two owners.
                    return jax.tree.map(lambda x: jnp.copy(x) if any(x is a for a in arrays) else x, result)

                return self.compiled(kernel, len(reads), donated)

            found = through(lower_program)
            if pallas is not None and e.op == CALL_TIR:
                found = Preferred(e.attr("program").value.name, pallas, through(pallas.lower), found)
            self._found[key] = found
        return found

    def compiled(self, kernel: Callable[..., Any], operands: int, donated: Donations) -> Any:
        behind = range(operands, operands + donated.behind)
        return jax.jit(
            kernel,
            donate_argnums=(*donated.operands, *behind),
            keep_unused=True,
            compiler_options=self._options,
        )

    def view(self, shape: tuple[int, ...], donated: Donations) -> Any:
        """What makes an array of its own of another, in this shape."""
        key = ((VIEW, shape), donated)
        found = self._found.get(key)
        if found is None:

            def copy(x: Any) -> Any:
                return jnp.copy(x).reshape(shape)

            found = self._found[key] = self.compiled(copy, 1, donated)
        return found


@dataclass(frozen=True, slots=True)
class _Do:
    """A step of a call: `run` on what is at `reads` gives what goes to `writes` (one place, or one for each result);
    what is at `drops` is let go of."""

    name: str
    run: Any
    reads: tuple[int, ...]
    writes: int | tuple[int, ...]
    drops: tuple[int, ...]


class Call:
    """A call of a module's entry at one binding.

    `plan`: its memory; with `storages` left out, arrays are let go of where the plan would use them again.
    """

    def __init__(
        self, executables: Executables, plan: Plan, sizes: Mapping[str, int], result: Annotation, storages: bool = True
    ) -> None:
        self.plan, self.sizes = plan, sizes
        self._executables = executables
        values = plan.program.values
        runtime = plan.runtime
        self._shapes = [_shape(v, sizes) for v in values]
        self._arguments = sum(v.role == "argument" for v in values)
        # What is in each storage at the end of a call, and so at the beginning of the next. A workspace is none of it:
        # XLA has its own.
        last = {runtime.of_value[w]: w for s in runtime.steps for w in s.step.writes if w in runtime.of_value}
        kept = [(n, w) for n, w in last.items() if storages and _is_plain(values[w]) and 0 not in self._shapes[w]]
        self._first = [values[w] for _, w in kept]
        self._last = [w for _, w in kept]
        # Where in a call the array is that lies in each storage.
        self._holder = {n: len(values) + i for i, (n, _) in enumerate(kept)}
        self._held: list[list[Any]] = []
        self._written = {v: e for e, v in plan.program.constants.items()}
        self._constants: dict[int, Any] = {}
        self._steps: list[_Do] = [self._step(s) for s in runtime.steps]
        self._result = self._results(plan.program.result, result)
        blank: list[Any] = [None] * (len(values) - self._arguments)
        for v, array in self._constants.items():
            blank[v - self._arguments] = array
        self._blank = blank
        self._copies = [None] * len(list(leaves(plan.program.result)))  # places of results that are copied

    @property
    def planned_bytes(self) -> int:
        """Bytes of the arrays that are kept from call to call, as planned."""
        return sum(self._bytes(v) for v in self._first)

    @property
    def held_bytes(self) -> int:
        """Bytes of the arrays that are kept from call to call."""
        return sum(x.nbytes for kept in self._held for x in kept)

    def forget(self) -> None:
        """Let go of the arrays that are kept from call to call; the next call makes new ones."""
        self._held.clear()

    def run(self, args: Sequence[Any], watch: Callable[[str], None] | None = None) -> Any:
        """What the entry returns. `watch` is called after each kernel, with its name."""
        try:
            held = self._held.pop()  # a call at the same time in another thread has its own
        except IndexError:
            held = [jnp.zeros(self._shapes[v.number], np_dtype(v.annotation.dtype or "float32")) for v in self._first]
        env = [*args, *self._blank, *held, *self._copies]
        del held
        for s in self._steps:
            out = s.run(*[env[i] for i in s.reads])
            writes = s.writes
            if isinstance(writes, int):
                env[writes] = out
            else:
                for w, x in zip(writes, jax.tree.leaves(out), strict=True):
                    env[w] = x
            for i in s.drops:
                env[i] = None
            if watch is not None:
                watch(s.name)
        if not self._held:
            self._held.append([env[v] for v in self._last])
        found = self._result
        return env[found] if isinstance(found, int) else tuple([env[i] for i in found])

    def temporaries(self, args: Sequence[Any]) -> dict[str, int]:
        """For each kernel the bytes that its executable allocates beside what it is passed and gives, at most.

        `args`: as of a call, or what `jax.eval_shape` gives of such. Compiles what has not run yet."""
        env: list[Any] = [*args, *self._blank, *(self._aval(v) for v in self._first), *self._copies]
        found: dict[str, int] = {}
        for s in self._steps:
            given = [env[i] for i in s.reads]
            lowered = s.run.lower(*given)
            if s.name != VIEW:
                found[s.name] = allocated(lowered.compile())
            outs = jax.tree.leaves(lowered.out_info)
            for w, x in zip((s.writes,) if isinstance(s.writes, int) else s.writes, outs, strict=True):
                env[w] = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return found

    def _bytes(self, v: Value) -> int:
        return int(v.bytes.evaluate(self.sizes)) if v.bytes is not None else 0

    def _aval(self, v: Value) -> Any:
        return jax.ShapeDtypeStruct(self._shapes[v.number], np_dtype(v.annotation.dtype or "float32"))

    # --- how steps are made ---

    def _step(self, s: RuntimeStep) -> _Do:
        kernel, values = s.step.kernel, self.plan.program.values
        pairs = [
            (e, t)
            for e, t in zip(operands_of(kernel), s.step.operands, strict=True)
            if not (e.op == CONSTANT and _is_small(self._shapes[int(t)]))  # type: ignore[arg-type]
            and t not in s.step.workspaces
        ]
        reads = tuple(e for e, _ in pairs)
        sizes = {v: int(d.evaluate(self.sizes)) for v, d in s.step.sizes.items()}
        over: list[int] = []
        extra: list[int] = []
        given = [t for _, t in pairs]
        for w, storage in zip(s.step.writes, s.storages, strict=True):
            if storage not in self._holder:
                continue
            there = self._holder[storage]
            self._holder[storage] = w
            if (
                not _is_plain(values[w])
                or 0 in self._shapes[w]
                or (there < len(values) and not _is_plain(values[there]))
            ):
                continue
            if there in given:
                over.append(given.index(there))
            else:
                extra.append(there)
        run = self._executables.get(kernel, reads, sizes, Donations(tuple(over), len(extra)))
        writes = s.step.writes if isinstance(kernel.annotation, Tuple) else s.step.writes[0]
        # What lies in a storage stays there until another takes its place.
        drops = tuple(v for v in s.dies if self.plan.runtime.of_value.get(v) not in self._holder)
        if all(isinstance(t, int) for t in given):
            for t in given:
                self._keep_constant(int(t))  # type: ignore[arg-type]
            return _Do(s.step.name, run, (*given, *extra), writes, drops)  # type: ignore[arg-type]
        return self._structured(s.step.name, run, given, extra, writes, drops)

    def _structured(
        self,
        name: str,
        run: Any,
        given: Sequence[Tree],
        extra: Sequence[int],
        writes: int | tuple[int, ...],
        drops: tuple[int, ...],
    ) -> _Do:
        """A step that is passed tuples of arrays."""
        flat = [v for t in given for v in leaves(t)]
        for v in flat:
            self._keep_constant(v)
        places = {v: i for i, v in enumerate(dict.fromkeys(flat))}

        def nested(t: Tree, arrays: Sequence[Any]) -> Any:
            if isinstance(t, tuple):
                return tuple(nested(x, arrays) for x in t)
            return None if t is None else arrays[places[t]]

        def call(*arrays: Any) -> Any:
            return run(*(nested(t, arrays) for t in given), *arrays[len(places) :])

        class _Nested:
            """Called and lowered like what it wraps."""

            __call__ = staticmethod(call)

            @staticmethod
            def lower(*arrays: Any) -> Any:
                return run.lower(*(nested(t, arrays) for t in given), *arrays[len(places) :])

        return _Do(name, _Nested(), (*places, *extra), writes, drops)

    def _keep_constant(self, v: int) -> None:
        if v in self._written and v not in self._constants:
            self._constants[v] = jnp.asarray(constant_value(self._written[v]))

    def _results(self, tree: Tree, annotation: Annotation) -> int | tuple[int, ...]:
        """Where the results are. One that is no array of its own (an argument, a view, the same one twice) is copied
        at the end, as `jax.jit` does."""
        values = self.plan.program.values
        numbers = list(leaves(tree))
        shapes = [_sizes_of(a, self.sizes) for a in _tensors(annotation)]
        end = len(values) + len(self._first)
        found: list[int] = []
        seen: set[int] = set()
        for v, shape in zip(numbers, shapes, strict=True):
            own = values[v].role == "result" and v not in seen
            if own and self._shapes[v] == shape:
                found.append(v)
            else:
                self._keep_constant(v)
                alone = own and numbers.count(v) == 1
                donated = Donations((0,) if alone and 0 not in shape and _is_plain(values[v]) else (), 0)
                run = self._executables.view(shape, donated)
                self._steps.append(_Do(VIEW, run, (v,), end + len(found), ()))
                found.append(end + len(found))
            seen.add(v)
        return found[0] if isinstance(tree, int) else tuple(found)


def _is_plain(v: Value) -> bool:
    """Whether arrays of this dtype are bytes like any others: neither a random key nor parts of bytes."""
    dtype = v.annotation.dtype
    return dtype is not None and not dtype.startswith("key<") and not dtype.endswith(("int4", "int2"))


def _is_small(shape: tuple[int, ...]) -> bool:
    count = 1
    for n in shape:
        count *= n
    return count <= _INSIDE


def _shape(v: Value, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return _sizes_of(v.annotation, sizes)


def _sizes_of(a: Tensor, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(int(d.evaluate(sizes)) for d in a.shape or ())


def _tensors(a: Annotation) -> list[Tensor]:
    if isinstance(a, Tuple):
        return [t for f in a.fields for t in _tensors(f)]
    return [a] if isinstance(a, Tensor) else []


def _as_declared(a: Annotation, value: Any, sizes: Mapping[str, int]) -> Any:
    """An array in the shape in which a kernel reads it: what it is a view of may come in its place."""
    if isinstance(a, Tuple):
        return tuple(_as_declared(f, x, sizes) for f, x in zip(a.fields, value, strict=True))
    if isinstance(a, Shape) and a.dims is not None:  # which is not in memory
        return tuple(int(d.evaluate(sizes)) for d in a.dims)
    if not isinstance(a, Tensor) or a.shape is None or any(d.variables - sizes.keys() for d in a.shape):
        return value
    shape = _sizes_of(a, sizes)
    return value if value.shape == shape else value.reshape(shape)


def _key(e: Expr, place: Mapping[Expr, int]) -> Any:
    """What a kernel does, whatever it is applied to."""
    return e.op, e.attrs, e.annotation, tuple(_operand_key(a, place) for a in e.args)


def _operand_key(e: Expr, place: Mapping[Expr, int]) -> Any:
    chain: list[Any] = []
    while e not in place:
        if e.op not in VIEWS:
            return tuple(chain), e.op, e.attrs, e.annotation  # a function, a shape, a constant, a workspace
        chain.append((e.op, e.attrs, e.annotation))
        e = e.args[0]
    return tuple(chain), place[e], e.annotation


def _size_names(e: Expr) -> frozenset[str]:
    """The size variables that an expression mentions itself."""
    return frozenset[str]().union(*(d.variables for d in (*dims_of(e.annotation), *_dims_in(e.attrs))))


def _dims_in(value: Any) -> list[Dim]:
    if isinstance(value, Dim):
        return [value]
    return [d for v in value for d in _dims_in(v)] if isinstance(value, tuple) else []  # type: ignore[reportUnknownVariableType]
