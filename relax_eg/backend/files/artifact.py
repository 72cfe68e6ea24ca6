"""Artifacts: saves an optimized function to one file of plain data, and reads it.

A file consists of a line with the format version, the length and checksum of the rest, and the variants with the
program as written (`packed_variants`). It also holds the program's calling convention, the bounds and assumptions of
its sizes, its options for many sizes, and the names of the weights. Loading splits off what depends on weights alone
again, by the same rule.

Executables follow if the program says so (`stored`): the length and checksum of a JSON text, the text, and the machine
code, each piece with its length and checksum in the text. Reading a file gives none of it to XLA. The arrays of a
model's weights are last (`held_arrays`).
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np

from relax_eg.backend.calls.held_arrays import HeldArrays, as_parts, read_held
from relax_eg.backend.calls.program import Program
from relax_eg.backend.family import WHOLE, Solution
from relax_eg.backend.files.packed_variants import Unpacked, pack_variants, unpack_variants
from relax_eg.backend.files.stored import NOTHING, Stored, StoredProgram
from relax_eg.backend.files.trees import tree_as_data, tree_of_data
from relax_eg.backend.lowering.jax_library import is_plain, plain_primitives
from relax_eg.backend.lowering.lower import run_function
from relax_eg.dtypes import NUMBERS, numpy_dtype
from relax_eg.errors import ArtifactError, ExplanationError, TraceError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import CALL_DPS_LIBRARY, ConstantData, Expr
from relax_eg.ir.foreign import Foreign
from relax_eg.ir.heads import label_of
from relax_eg.ir.module import Module
from relax_eg.limits import VERSION_DIGITS
from relax_eg.ops.libraries import EXECUTIONS
from relax_eg.plain_data import DAMAGED, read_json, write_file
from relax_eg.plain_data import read_record as checked
from relax_eg.shapes import Scope
from relax_eg.store import checksum

if TYPE_CHECKING:
    from relax_eg.explain.text import Explanation

VERSION = 7  # given: version of the format; files of other versions are refused
_HEAD = b"relax_eg artifact "
_LENGTH, _SUM = 8, 16  # given: bytes of a length and of a checksum
_TEXTS = tuple[str, ...]
_ACCEPTED = "a file that `best.save(path)` of this version of relax_eg wrote"

# The enumerations and records of JAX that a program may hold and a file may name. All of them are plain values.
_CLASSES: Mapping[str, type] = {
    f"{c.__module__}:{c.__qualname__}": c
    for c in (
        jax.lax.AccuracyMode, jax.lax.ConvDimensionNumbers, jax.lax.DotAlgorithm, jax.lax.DotAlgorithmPreset,
        jax.lax.FftType, jax.lax.GatherDimensionNumbers, jax.lax.GatherScatterMode, jax.lax.Precision,
        jax.lax.RaggedDotDimensionNumbers, jax.lax.RandomAlgorithm, jax.lax.RoundingMethod,
        jax.lax.ScatterDimensionNumbers, jax.lax.Tolerance, jax.lax.linalg.EighImplementation,
        jax.lax.linalg.EigImplementation, jax.lax.linalg.SvdAlgorithm, jax.sharding.AxisType,
    )
}  # fmt: skip


class _NotNameable(Exception):
    """Raised for an object that cannot be named in a file, as it exists in this process only."""


class _Objects:
    """The objects of JAX to which the modules of a file refer, stored by their values. Constants are in the file."""

    def name_of(self, foreign: Foreign) -> Any:
        return _name(foreign.value)

    def foreign_of(self, name: Any) -> Foreign:
        return Foreign(_named(name))

    def array_name(self, data: ConstantData) -> str | None:
        return None

    def array_of(self, name: str) -> np.ndarray[Any, Any]:
        raise KeyError(name)


def _name(value: Any) -> Any:
    """A JAX object as plain data. `_NotNameable` where it is of no class that a file may name."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in (tuple, list):
        return [kind.__name__, *map(_name, value)]
    if kind is frozenset:
        return ["frozenset", *sorted(map(_name, value), key=repr)]
    if isinstance(value, np.dtype) and value.name in NUMBERS:
        return ["dtype", value.name]
    if kind.__name__ == "Primitive" and plain_primitives().get(value.name) is value:
        return ["primitive", value.name]
    where = f"{kind.__module__}:{kind.__qualname__}"
    if _CLASSES.get(where) is kind:
        if isinstance(value, enum.Enum):
            return ["enum", where, value.name]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return ["record", where, *map(_name, cast("tuple[Any, ...]", value))]
        if dataclasses.is_dataclass(value):
            fields = [f for f in dataclasses.fields(value) if f.init]
            return ["data", where, *[[f.name, _name(getattr(value, f.name))] for f in fields]]
    raise _NotNameable(f"{kind.__module__}.{kind.__qualname__}")


def _class(where: Any) -> Any:
    """The class of JAX with this name. ValueError for one that a file may not name."""
    if where not in _CLASSES:
        raise ValueError(f"{where!r} is no class that a file may name; accepted: {', '.join(_CLASSES)}")
    return _CLASSES[where]


def _named(name: Any) -> Any:
    if not isinstance(name, list):
        return name
    kind, *items = cast("list[Any]", name)
    if kind in ("tuple", "list", "frozenset"):
        return {"tuple": tuple, "list": list, "frozenset": frozenset}[kind](map(_named, items))
    if kind == "dtype":
        if items[0] not in NUMBERS:
            raise ValueError(f"{items[0]!r} is no dtype that a file may name; accepted: {', '.join(NUMBERS)}")
        return numpy_dtype(items[0])
    if kind == "primitive":
        return plain_primitives()[items[0]]
    if kind == "enum":
        return _class(items[0])[items[1]]
    if kind == "record":
        return _class(items[0])(*map(_named, items[1:]))
    if kind == "data":
        return _class(items[0])(**{k: _named(v) for k, v in items[1:]})
    raise ValueError(f"no object is a {kind!r}")


# --- signatures ---


def _signature(signature: inspect.Signature | None) -> Any:
    if signature is None:
        return None
    parameters = signature.parameters.values()
    return [[p.name, int(p.kind), p.default is not p.empty] for p in parameters]


def _signature_of(data: Any) -> inspect.Signature | None:
    if data is None:
        return None
    kinds = {int(k): k for k in inspect._ParameterKind}  # type: ignore[reportPrivateUsage]
    absent = inspect.Parameter.empty
    made = [inspect.Parameter(n, kinds[k], default=None if optional else absent) for n, k, optional in data]
    return inspect.Signature(made)


# --- saving ---


def save(solution: Solution, path: str | Path, stored: Stored = NOTHING, held: HeldArrays | None = None) -> None:
    """Writes the function to a file, atomically.

    - `stored`: the executables that the file is to have.
    - `held`: the arrays of its weights.
    """
    program, scope = solution.program, solution.program.scope
    listed, arrays = (None, list[bytes]()) if held is None else as_parts(held)
    data: dict[str, Any] = {
        "name": program.name,
        "x64": program.wide,
        "from_function": program.from_function,
        "signature": _signature(program.signature),
        "in_tree": tree_as_data(program.in_tree, f"the arguments of {program.name}()"),
        "out_tree": tree_as_data(program.out_tree, f"the results of {program.name}()"),
        "names": program.names,
        "arguments": program.arguments,
        "weak": [program.weak_in, program.weak_out],
        "effectful": program.effectful,
        "facts": program.facts,
        "bounds": [[name, *scope.bounds(name)] for name in sorted(scope.names)],
        "assumptions": scope.assumptions,
        "weights": solution.weights,
        "tolerance": solution.tolerance,
        "pallas": solution.pallas,
        "at_sizes": dict(program.at_sizes),
        "entry": list(map(list, program.entry)),
        "executables": bool(stored.programs),
        "held": listed,
    }
    written = program.written()
    try:
        payload = pack_variants(solution.variants, _Objects(), data, written)
    except _NotNameable:
        raise _unsavable_error((written, *(v.module for v in solution.variants))) from None
    parts = [_HEAD + f"{VERSION}\n".encode(), *_sealed(payload)]
    if stored.programs:
        codes = [[len(code), checksum(code).hex()] for code in stored.codes]
        table = json.dumps({"programs": list(map(asdict, stored.programs)), "codes": codes}, separators=(",", ":"))
        parts += [*_sealed(table.encode()), *stored.codes]
    write_file(path, b"".join([*parts, *arrays]), ArtifactError, "save")


def _sealed(part: bytes) -> tuple[bytes, bytes, bytes]:
    """A part of a file after its length and checksum."""
    return len(part).to_bytes(_LENGTH, "big"), checksum(part), part


def _unsavable_error(modules: Sequence[Module]) -> ArtifactError:
    """The error for the first call in the modules that holds an object which exists in this process only."""
    for f in (f for module in modules for f in module):
        for e in f.expressions():
            for key, value in (*e.attrs, *(e.attr("attrs") if e.op == CALL_DPS_LIBRARY else ())):
                try:
                    _ = _name(value.value) if isinstance(value, Foreign) and key != "program" else None
                except _NotNameable as error:
                    line = f" ({f.origins[e]})" if e in f.origins else ""
                    call = label_of(e)
                    return ArtifactError(
                        f"save: `{call}` in {f.name}(){line} holds an object of this process: `{key}` is a {error}\n"
                        "  accepted: programs without callbacks and functions of Python inside"
                    )
    return ArtifactError("save: the program holds an object of this process\n  accepted: programs without callbacks")


# --- loading ---


@dataclass(frozen=True, slots=True)
class Saved:
    """The contents of a file.

    - `solution`: the function.
    - `program_bytes`: bytes of it in the file.
    - `stored`: the executables.
    - `held`: the arrays of its weights; None if the file holds none.
    """

    solution: Solution
    program_bytes: int
    stored: Stored
    held: HeldArrays | None


def read(path: str | Path) -> Saved:
    """What is in a file that `best.save(path)` wrote. No code from the file is run.

    ArtifactError for a file that is no artifact, was cut off or changed, or has another version.
    """
    where = Path(path)
    try:
        data = where.read_bytes()
    except OSError as error:
        raise ArtifactError(f"load: cannot read {where}: {error.strerror}\n  accepted: {_ACCEPTED}") from None
    reader = _Reader(data, where)
    reader.skip_head()
    payload = reader.sealed()
    with artifact_errors(where):
        found = unpack_variants(payload, _Objects())
        has_table = checked(bool, found.data["executables"], "executables")
    text = reader.sealed() if has_table else b""
    with artifact_errors(where):
        table = _read_table(text) if has_table else _Table((), ())
    codes = tuple(reader.part(length, sum_) for length, sum_ in table.codes)
    with artifact_errors(where):
        solution = _read_solution(found)
        _check_stored(solution, table)
        held = read_held(found.data["held"], solution.program, reader.part)
    if reader.has_more:
        raise reader.changed()
    return Saved(solution, len(payload), Stored(table.programs, codes), held)


@contextmanager
def artifact_errors(where: str | Path) -> Generator[None]:
    """A block that reads the file `where`: errors due to malformed contents are raised as ArtifactError."""
    try:
        yield
    except ArtifactError:
        raise
    except DAMAGED as error:
        why = f"{type(error).__name__}: {error}"
        raise ArtifactError(f"load: {where} does not describe a program ({why})\n  accepted: {_ACCEPTED}") from None


class _Reader:
    """Takes the parts of a file one by one. ArtifactError where one is cut off or was changed."""

    def __init__(self, data: bytes, where: Path) -> None:
        self._data, self._where, self._at = data, where, 0

    @property
    def has_more(self) -> bool:
        return self._at < len(self._data)

    def changed(self, what: str = "its checksum does not fit") -> ArtifactError:
        return ArtifactError(f"load: {self._where} was changed after it was written: {what}\n  accepted: {_ACCEPTED}")

    def skip_head(self) -> None:
        line, _, _ = self._data.partition(b"\n")
        digits = line[len(_HEAD) :]
        if not self._data.startswith(_HEAD) or not re.fullmatch(rb"\d{1,%d}" % VERSION_DIGITS, digits):
            raise ArtifactError(f"load: {self._where} is no artifact of relax_eg\n  accepted: {_ACCEPTED}")
        if (version := int(digits)) != VERSION:
            problem = f"load: {self._where} is an artifact of version {version}; this relax_eg reads version {VERSION}"
            raise ArtifactError(f"{problem}\n  accepted: {_ACCEPTED}; optimize and save again")
        self._at = len(line) + 1

    def sealed(self) -> bytes:
        """A part after its length and checksum."""
        head = self._taken(_LENGTH + _SUM)
        return self.part(int.from_bytes(head[:_LENGTH], "big"), head[_LENGTH:])

    def part(self, length: int, sum_: bytes) -> bytes:
        found = self._taken(length)
        if checksum(found) != sum_:
            raise self.changed()
        return found

    def _taken(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._data):
            problem = f"load: {self._where} is cut off: {len(self._data)} of at least {end} bytes are there"
            raise ArtifactError(f"{problem}\n  accepted: {_ACCEPTED}, whole")
        found, self._at = self._data[self._at : end], end
        return found


@dataclass(frozen=True, slots=True)
class _Table:
    """What a file says of its executables: programs, and length and checksum of each piece of machine code."""

    programs: tuple[StoredProgram, ...]
    codes: tuple[tuple[int, bytes], ...]


def _read_table(text: bytes) -> _Table:
    data = read_json(text)
    codes = checked(tuple[tuple[int, str], ...], data["codes"], "codes")
    if any(length < 0 for length, _ in codes):
        raise ValueError("machine code has a negative length")
    programs = checked(tuple[StoredProgram, ...], data["programs"], "programs")
    return _Table(programs, tuple((length, bytes.fromhex(sum_)) for length, sum_ in codes))


def _check_stored(solution: Solution, table: _Table) -> None:
    """ValueError unless what the executables name is in the file."""
    for p in table.programs:
        if not 0 <= p.variant < len(solution.variants):
            raise ValueError(f"executables are of variant {p.variant}; it has {len(solution.variants)}")
        if p.execution not in EXECUTIONS:
            raise ValueError(f"executables are run as {p.execution!r}; accepted: {', '.join(EXECUTIONS)}")
        if not p.executables or (p.execution == WHOLE and len(p.executables) > 1):
            raise ValueError(f"a call runs {len(p.executables)} executables")
        for e in p.executables:
            if not 0 <= e.code < len(table.codes):
                raise ValueError(f"`{e.name}` has machine code {e.code}; it holds {len(table.codes)}")
            for tree, arrays in ((e.in_tree, e.arguments), (e.out_tree, e.results)):
                if tree_of_data(tree).num_leaves != len(arrays):
                    raise ValueError(f"`{e.name}` has {len(arrays)} arrays in a structure of another number")


def _read_solution(found: Unpacked) -> Solution:
    data, variants, written = found.data, found.variants, found.written
    if written is None:
        raise ValueError("it lacks the program as written")
    for module in (written, *found.chosen):
        _check_calls(module)
    scope = Scope()
    for size, low, high in checked(tuple[tuple[str, int | None, int | None], ...], data["bounds"], "bounds"):
        scope.declare(size, low, high)
    scope.assume(*checked(_TEXTS, data["assumptions"], "assumptions"))
    name, from_function = checked(str, data["name"], "name"), checked(bool, data["from_function"], "from_function")
    signature = _signature_of(data["signature"])
    out_tree = tree_of_data(data["out_tree"])
    program = Program(
        _as_written(written, name, out_tree, signature, from_function),
        name,
        written.main.params,
        variants[0].chosen,
        checked(_TEXTS, data["names"], "names"),
        checked(_TEXTS, data["arguments"], "arguments"),
        tree_of_data(data["in_tree"]),
        out_tree,
        signature,
        checked(tuple[bool, ...], data["weak"][0], "weak"),
        checked(tuple[bool, ...], data["weak"][1], "weak"),
        scope,
        checked(bool, data["effectful"], "effectful"),
        checked(tuple[_TEXTS, ...], data["facts"], "facts"),
        lambda: written,
        from_function,
        checked(bool, data["x64"], "x64"),
        checked(Mapping[str, Any], data["at_sizes"], "at_sizes"),
        checked(tuple[tuple[str, str], ...], data.get("entry", ()), "entry"),
    )
    _check_fits(program, found.chosen)
    weights, tolerance = checked(_TEXTS, data["weights"], "weights"), checked(float, data["tolerance"], "tolerance")
    return Solution(program, variants, weights, float(tolerance), checked(bool, data["pallas"], "pallas"))


def _kind(e: Expr) -> Any:
    a = e.annotation
    return (a.ndim, a.dtype) if isinstance(a, Tensor) else type(a)


def _check_fits(p: Program, chosen: Sequence[Module]) -> None:
    """ValueError unless all programs have the same parameters, and each list per parameter has an entry for each."""
    for module in (p.written(), *chosen):
        for a, b in zip_longest(p.params, module.main.params):
            if a is None or b is None or _kind(a) != _kind(b):
                raise ValueError("its programs take other parameters than the program as written")
    counts = {
        "names": len(p.names), "arguments": len(p.arguments), "weak types": len(p.weak_in), "facts": len(p.facts),
        "leaves of the arguments": p.in_tree.num_leaves,
    }  # fmt: skip
    if len(set(counts.values())) > 1:
        raise ValueError(f"it has {', '.join(f'{n} {what}' for what, n in counts.items())}; as many of each are needed")
    match jax.tree_util.tree_unflatten(p.in_tree, range(p.in_tree.num_leaves)):
        case (tuple(), dict()):
            pass
        case _:
            raise ValueError("its arguments are no tuple of positional and dictionary of named ones")


def _check_calls(module: Module) -> None:
    """ValueError if a module calls anything of JAX but what computes arrays from arrays."""
    for e in (e for f in module for e in f.expressions() if e.op == CALL_DPS_LIBRARY):
        name = str(e.attr("name"))
        if name.startswith("jax.") and not is_plain(name):
            raise ValueError(f"it calls `{name}`, and a file may call what computes arrays from arrays only")


def no_explanation(name: str) -> Callable[[], Explanation]:
    """In place of the function that explains what a search found."""

    def explained() -> Explanation:
        raise ExplanationError(
            f"{name} was loaded, and an artifact keeps no record of its search\n"
            "  accepted: best.explain() where it was optimized; best.certificate().save(path) keeps the derivation"
        )

    return explained


def _as_written(
    module: Module, name: str, out_tree: Any, signature: inspect.Signature | None, from_function: bool
) -> Callable[..., Any]:
    """The program as written, as a function.

    If it is the trace of a Python function, its derivatives are refused with TraceError: the trace has lost
    `custom_vjp` and `stop_gradient`. A module is differentiated as it stands.
    """

    def flat(*leaves: Any) -> Any:
        return run_function(module, module.main, leaves)

    run: Any = flat
    if from_function:
        run = jax.custom_jvp(flat)

        def derivative(primals: Any, tangents: Any) -> Any:
            raise TraceError(
                f"{name} was loaded from an artifact, which has no derivatives: those are of the function as written\n"
                "  accepted: optimize jax.grad of the function, and save that"
            )

        run.defjvp(derivative)

    def as_written(*args: Any, **kwargs: Any) -> Any:
        value = run(*jax.tree_util.tree_leaves((args, kwargs)))
        return jax.tree_util.tree_unflatten(out_tree, jax.tree_util.tree_leaves(value))

    as_written.__name__ = name
    if signature is not None:
        as_written.__signature__ = signature  # type: ignore[reportFunctionMemberAccess]
    return as_written
