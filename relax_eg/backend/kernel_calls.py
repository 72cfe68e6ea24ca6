"""Calls of a module at one binding of its sizes, each a flat list of executables that follows the memory plan.

The plan is realized by donation: a kernel that is to write into the storage of a dead array gets that array as a
donated argument, and XLA puts the result there. The arrays in the storages at the end of a call are those the next call
starts with. So from the second call on only results are allocated, which are never put into a storage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
import numpy as np

from relax_eg.backend.accounting import lowered_allocated_bytes
from relax_eg.backend.files.loaded import FromFile, LoadedProgram
from relax_eg.backend.lowering.lower import run_block
from relax_eg.backend.lowering.tensor_programs import lower_program
from relax_eg.backend.pallas.choice import Pallas, Preferred
from relax_eg.dtypes import RECORDS, numpy_dtype
from relax_eg.ir.annotations import Annotation, Shape, Tensor, Tuple
from relax_eg.ir.expr import CALL_TIR, CONSTANT, Expr, constant_value, own_dims, postorder
from relax_eg.ir.module import Binding, Block, Module
from relax_eg.memory import Plan, Step, Tree, Value, leaves, operands_of
from relax_eg.ops.fused import VIEWS
from relax_eg.ops.keys import argument_dtype

VIEW = "view"
# chosen: largest number of elements of a constant that is compiled into the kernels that read it, not passed to them
_INSIDE = 16
_NO_ARRAY = jax.ShapeDtypeStruct((), np.bool_)  # what a kernel is lowered for that takes no array


@dataclass(frozen=True, slots=True)
class Donations:
    """The donated arguments of an executable, whose buffers its results may reuse.

    - `operands`: places of donated operands.
    - `unread`: number of donated arrays after the operands, which it does not read.
    """

    operands: tuple[int, ...]
    unread: int


class Kernels:
    """The compiled kernels of a module.

    Equal kernels of several functions or calls are compiled once. A kernel is kept as long as a `Call` refers to it.

    - `pallas`: chooses the programs that are lowered through Pallas; None: none.
    """

    def __init__(self, module: Module, compiler_options: Mapping[str, str], pallas: Pallas | None = None) -> None:
        self._module = module
        self._pallas = pallas
        self.options = dict(compiler_options)
        self._found: WeakValueDictionary[Any, Any] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._found)

    def get(self, e: Expr, reads: tuple[Expr, ...], sizes: Mapping[str, int], donated: Donations) -> Any:
        """The executable that computes `e` from arrays of `reads`, or from arrays that these are views of.

        `sizes`: the sizes of the function that contains `e`.
        """
        place = {r: i for i, r in enumerate(reads)}
        inside = [e, *postorder([e], stop=place.__contains__), *reads]
        names = sorted({v for x in inside for d in own_dims(x) for v in d.variables})
        known = {v: sizes[v] for v in names if v in sizes}
        key = (_key(e, place), tuple(known.items()), donated)
        found = self._found.get(key)
        if found is None:
            module, pallas, block = self._module, self._pallas, Block((Binding(e, e),))

            def through(programs: Callable[..., Any]) -> Any:
                def kernel(*arrays: Any) -> Any:
                    given = [_with_declared_shape(r.annotation, x, known) for r, x in zip(reads, arrays, strict=False)]
                    (result,) = run_block(module, block, dict(zip(reads, given, strict=True)), known, programs)
                    # A result that is an argument is copied: otherwise one array would have two owners.
                    return jax.tree.map(lambda x: jnp.copy(x) if any(x is a for a in arrays) else x, result)

                return self.compiled(kernel, len(reads), donated)

            found = through(lower_program)
            if pallas is not None and e.op == CALL_TIR:
                found = Preferred(e.attr("program").value.name, pallas, through(pallas.lower), found)
            self._found[key] = found
        return found

    def compiled(self, kernel: Callable[..., Any], operands: int, donated: Donations) -> Any:
        behind = range(operands, operands + donated.unread)
        return jax.jit(
            kernel,
            donate_argnums=(*donated.operands, *behind),
            keep_unused=True,
            compiler_options=self.options or None,
        )

    def view(self, shape: tuple[int, ...], donated: Donations) -> Any:
        """The executable that copies an array, in this shape."""
        key = ((VIEW, shape), donated)
        found = self._found.get(key)
        if found is None:

            def copy(x: Any) -> Any:
                return jnp.copy(x).reshape(shape)

            found = self._found[key] = self.compiled(copy, 1, donated)
        return found


@dataclass(frozen=True, slots=True)
class _CallStep:
    """A step of a call.

    - `name`: the name of its kernel.
    - `run`: the executable.
    - `reads`: the places of its arguments in the environment of the call.
    - `writes`: the place of the result, or a place per result.
    - `drops`: places whose values are released after the step.
    """

    name: str
    run: Any
    reads: tuple[int, ...]
    writes: int | tuple[int, ...]
    drops: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Nested:
    """A function of tuples of arrays as one of flat arrays; called and lowered like it.

    - `run`: the function.
    - `arguments`: the trees of values that `run` takes.
    - `places`: the place of each value among the flat arrays. Arrays after these are passed on as they are.
    """

    run: Any
    arguments: tuple[Tree, ...]
    places: Mapping[int, int]

    def trees(self, arrays: Sequence[Any]) -> list[Any]:
        return [*(self._tree(t, arrays) for t in self.arguments), *arrays[len(self.places) :]]

    def _tree(self, t: Tree, arrays: Sequence[Any]) -> Any:
        if isinstance(t, tuple):
            return tuple(self._tree(x, arrays) for x in t)
        return None if t is None else arrays[self.places[t]]

    def __call__(self, *arrays: Any) -> Any:
        return self.run(*self.trees(arrays))

    def lower(self, *arrays: Any) -> Any:
        return self.run.lower(*self.trees(arrays))


class _Arrayless:
    """A kernel of a file that takes no array, which was lowered as one that takes a truth value and does not read it;
    called and lowered like `jitted`."""

    def __init__(self, program: LoadedProgram, index: int, jitted: Any) -> None:
        self._run = FromFile([(program, index)], lambda _: jitted(), counts=index == 0)
        self.lower = jitted.lower

    def __call__(self) -> Any:
        return self._run(np.zeros((), _NO_ARRAY.dtype))


class Call:
    """A call of a module's entry at one binding of sizes.

    - `plan`: its memory plan.
    - `storages`: whether arrays in storages are reused; otherwise they are released.
    """

    def __init__(
        self, kernels: Kernels, plan: Plan, sizes: Mapping[str, int], result: Annotation, storages: bool = True
    ) -> None:
        self.plan, self.sizes = plan, sizes
        self.used = 0  # time of the last use, set by the owner
        self._kernels = kernels
        values = plan.program.values
        places = plan.places
        self._shapes = [_sizes_of(v.annotation, sizes) for v in values]
        self._arguments = sum(v.role == "argument" for v in values)
        # The value in each storage at the end of a call, and so at the start of the next. Workspaces are left out, as
        # XLA allocates its own.
        last = {places[w].storage: w for s in plan.program.steps for w in s.writes if w in places}
        kept = [(n, w) for n, w in last.items() if storages and _is_plain(values[w]) and 0 not in self._shapes[w]]
        self._first = [values[w] for _, w in kept]
        self._last = [w for _, w in kept]
        # For each storage, the place of its array in the environment of a call.
        self._holder = {n: len(values) + i for i, (n, _) in enumerate(kept)}
        self._held: list[list[Any]] = []
        self._written = {v: e for e, v in plan.program.constants.items()}
        self._constants: dict[int, Any] = {}
        self._steps: list[_CallStep] = [self._step(s) for s in plan.program.steps]
        self._result = self._results(plan.program.result, result)
        blank: list[Any] = [None] * (len(values) - self._arguments)
        for v, array in self._constants.items():
            blank[v - self._arguments] = array
        self._blank = blank
        self._copies = [None] * len(list(leaves(plan.program.result)))  # places of results that are copied

    @property
    def planned_bytes(self) -> int:
        """Bytes of the arrays that are kept between calls, as planned."""
        return sum(self._bytes(v) for v in self._first)

    @property
    def held_bytes(self) -> int:
        """Bytes of the arrays that are kept between calls now."""
        return sum(x.nbytes for kept in self._held for x in kept)

    def release_arrays(self) -> None:
        """Releases the arrays that are kept between calls; the next call makes new ones."""
        self._held.clear()

    def run(self, args: Sequence[Any], watch: Callable[[str], None] | None = None) -> Any:
        """The result of the entry. `watch` is called after each kernel, with its name."""
        try:
            held = self._held.pop()  # a concurrent call in another thread has its own arrays
        except IndexError:
            held = [self._zeros(v) for v in self._first]
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

    def temporaries(
        self,
        args: Sequence[Any],
        place: Callable[[Any], Any] | None = None,
        allocated: Callable[[Any], int] | None = None,
    ) -> dict[str, int]:
        """For each kernel an upper bound on the bytes that its executable allocates beside arguments and results.

        - `args`, `place`: as of `lowered`.
        - `allocated`: these bytes of what JAX lowered; None: compiled for the default device, unless it was before.
        """
        count = allocated or (lambda lowered: lowered_allocated_bytes(lowered, self._kernels.options))
        return {name: count(lowered) for name, _, lowered in self.lowered(args, place) if name != VIEW}

    def taken(self, args: Sequence[Any]) -> list[tuple[str, list[Any]]]:
        """For each kernel that a call runs its name and the specs of its arrays, without lowering it."""
        env: list[Any] = [*args, *self._blank, *(self._aval(v) for v in self._first), *self._copies]
        found: list[tuple[str, list[Any]]] = []
        for s in self._steps:
            given: Any = [env[i] for i in s.reads] or [_NO_ARRAY]
            if isinstance(s.run, _Nested):
                given = jax.tree_util.tree_leaves(s.run.trees(given))
            found.append((s.name, given))
            for w in (s.writes,) if isinstance(s.writes, int) else s.writes:
                if w < len(self.plan.program.values):  # others are results
                    env[w] = self._aval(self.plan.program.values[w])
        return found

    def use_loaded(self, program: LoadedProgram) -> None:
        """Lets calls run the executables of a file. To be called before the first call."""
        for i, s in enumerate(self._steps):
            if isinstance(s.run, _Nested):
                run: Any = replace(s.run, run=FromFile([(program, i)], s.run.run, counts=i == 0))
            elif s.reads:
                run = FromFile([(program, i)], s.run, counts=i == 0)
            else:
                run = _Arrayless(program, i, s.run)
            self._steps[i] = replace(s, run=run)

    def lowered(self, args: Sequence[Any], place: Callable[[Any], Any] | None = None) -> Iterator[tuple[str, str, Any]]:
        """Yields, for each kernel that a call runs, its name, the name of the program that it was to be lowered through
        Pallas for ("" for none), and what JAX lowered it to.

        - `args`: arguments of a call, or their `jax.ShapeDtypeStruct`s.
        - `place`: puts a `jax.ShapeDtypeStruct` on the device for which they are lowered, where the kernels have no
          options for XLA (JAX refuses them in a function within another). None: the default device.
        """
        env: list[Any] = [*args, *self._blank, *(self._aval(v) for v in self._first), *self._copies]
        for s in self._steps:
            given = [env[i] if place is None else place(env[i]) for i in s.reads]
            if given or place is None:
                lowered = s.run.lower(*given)
            else:
                # What takes no array is lowered for the default device, unless it is within a function that takes one.
                placed = jax.jit(lambda _, run=s.run: run(), keep_unused=True)
                lowered = placed.lower(place(_NO_ARRAY))
            inner = s.run.run if isinstance(s.run, _Nested) else s.run
            yield s.name, inner.name if isinstance(inner, Preferred) else "", lowered
            outs = jax.tree.leaves(lowered.out_info)
            for w, x in zip((s.writes,) if isinstance(s.writes, int) else s.writes, outs, strict=True):
                env[w] = jax.ShapeDtypeStruct(x.shape, x.dtype)

    def _bytes(self, v: Value) -> int:
        return int(v.bytes.evaluate(self.sizes)) if v.bytes is not None else 0

    def _zeros(self, v: Value) -> Any:
        # `jnp.zeros` would compile an executable per shape.
        return jax.device_put(np.zeros(self._shapes[v.number], numpy_dtype(v.annotation.dtype or "float32")))

    def _aval(self, v: Value) -> Any:
        return jax.ShapeDtypeStruct(self._shapes[v.number], argument_dtype(v.annotation.dtype or "float32"))

    # --- how steps are made ---

    def _step(self, s: Step) -> _CallStep:
        kernel, program, places = s.kernel, self.plan.program, self.plan.places
        values = program.values
        pairs = [
            (e, t)
            for e, t in zip(operands_of(kernel), s.operands, strict=True)
            if not (e.op == CONSTANT and math.prod(self._shapes[int(t)]) <= _INSIDE)  # type: ignore[arg-type]
            and t not in s.workspaces
        ]
        reads = tuple(e for e, _ in pairs)
        sizes = {v: int(d.evaluate(self.sizes)) for v, d in s.sizes.items()}
        over: list[int] = []
        extra: list[int] = []
        given = [t for _, t in pairs]
        for w in s.writes:
            if w not in places or (storage := places[w].storage) not in self._holder:
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
        run = self._kernels.get(kernel, reads, sizes, Donations(tuple(over), len(extra)))
        writes = s.writes if isinstance(kernel.annotation, Tuple) else s.writes[0]
        # An array in a storage is kept until another one is put there.
        drops = tuple(
            v for v in program.dead_values[s.number] if v not in places or places[v].storage not in self._holder
        )
        if all(isinstance(t, int) for t in given):
            for t in given:
                self._keep_constant(int(t))  # type: ignore[arg-type]
            return _CallStep(s.name, run, (*given, *extra), writes, drops)  # type: ignore[arg-type]
        return self._structured(s.name, run, given, extra, writes, drops)

    def _structured(
        self,
        name: str,
        run: Any,
        given: Sequence[Tree],
        extra: Sequence[int],
        writes: int | tuple[int, ...],
        drops: tuple[int, ...],
    ) -> _CallStep:
        """A step whose kernel takes tuples of arrays."""
        flat = [v for t in given for v in leaves(t)]
        for v in flat:
            self._keep_constant(v)
        places = {v: i for i, v in enumerate(dict.fromkeys(flat))}
        return _CallStep(name, _Nested(run, tuple(given), places), (*places, *extra), writes, drops)

    def _keep_constant(self, v: int) -> None:
        if v in self._written and v not in self._constants:
            self._constants[v] = jnp.asarray(constant_value(self._written[v]))

    def _results(self, tree: Tree, annotation: Annotation) -> int | tuple[int, ...]:
        """The places of the results.

        A result that is no array of its own (an argument, a view, a repeated one) is copied at the end, as `jax.jit`
        does.
        """
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
                run = self._kernels.view(shape, donated)
                self._steps.append(_CallStep(VIEW, run, (v,), end + len(found), ()))
                found.append(end + len(found))
            seen.add(v)
        return found[0] if isinstance(tree, int) else tuple(found)


def _is_plain(v: Value) -> bool:
    """Whether the elements of a value are whole bytes: neither random keys nor numbers of less than a byte."""
    dtype = v.annotation.dtype
    return dtype in RECORDS and RECORDS[dtype].kind != "k" and RECORDS[dtype].bits >= 8


def _sizes_of(a: Tensor, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(int(d.evaluate(sizes)) for d in a.shape or ())


def _tensors(a: Annotation) -> list[Tensor]:
    if isinstance(a, Tuple):
        return [t for f in a.fields for t in _tensors(f)]
    return [a] if isinstance(a, Tensor) else []


def _with_declared_shape(a: Annotation, value: Any, sizes: Mapping[str, int]) -> Any:
    """An argument of a kernel in its declared shape. `value`: the argument, or the array of which it is a view."""
    if isinstance(a, Tuple):
        return tuple(_with_declared_shape(f, x, sizes) for f, x in zip(a.fields, value, strict=True))
    if isinstance(a, Shape) and a.dims is not None:  # shapes are not in memory
        return tuple(int(d.evaluate(sizes)) for d in a.dims)
    if not isinstance(a, Tensor) or a.shape is None or any(d.variables - sizes.keys() for d in a.shape):
        return value
    shape = _sizes_of(a, sizes)
    return value if value.shape == shape else value.reshape(shape)


def _key(e: Expr, place: Mapping[Expr, int]) -> Any:
    """A key of what a kernel computes, independent of its operands."""
    return e.op, e.attrs, e.annotation, tuple(_operand_key(a, place) for a in e.args)


def _operand_key(e: Expr, place: Mapping[Expr, int]) -> Any:
    chain: list[Any] = []
    while e not in place:
        if e.op not in VIEWS:
            return tuple(chain), e.op, e.attrs, e.annotation  # a function, a shape, a constant, a workspace
        chain.append((e.op, e.attrs, e.annotation))
        e = e.args[0]
    return tuple(chain), place[e], e.annotation
