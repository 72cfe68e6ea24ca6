"""Routines of other libraries: whether they are available, and running them.

Nothing is imported to find out whether a routine is available. Where it is missing when a program runs, its pattern
runs instead. At its first call with given operands a routine is checked: shape and dtype of its result against the
annotation, and its value, on random operands of these or smaller sizes, against that of the pattern.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import jax
import jaxlib.xla_client
import numpy as np

from relax_eg.contexts import holding
from relax_eg.dtypes import RECORDS
from relax_eg.errors import LibraryError, RelaxEgError
from relax_eg.figures import binding_text
from relax_eg.ir.annotations import Annotation, Object, Tensor, Tuple, substitute
from relax_eg.ir.expr import Expr, node, var
from relax_eg.ir.steps import is_sized
from relax_eg.logs import log, raise_if_exhausted
from relax_eg.memo import Memo
from relax_eg.ops.libraries import FFI, Library, library_call, relative_difference
from relax_eg.ops.library_needs import RoutinePlace, unmet_need, version
from relax_eg.shapes import Dim
from relax_eg.shapes.constraints import dim_of_jax

# chosen: accepted difference from the pattern's value, relative to its largest element. GPUs multiply float32 matrices
# with 10 bits by default.
_ON_ACCELERATOR = 1e-2
_OF_CUDNN, _CUDNN = "cudnn.", "nvidia-cudnn-cu12"  # given: the names of cuDNN's routines begin so; its package
_SHOWN = 6  # limit: elements of a value that an error shows

_lock = threading.Lock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_MOST_FIRST_RUNS = 4096  # limit: results of first runs that are remembered, of all routines; others are tried again
_MOST_WARNINGS = 1024  # limit: warnings that are remembered, so that each is given once
_first_runs = Memo[tuple[Any, ...], str](_MOST_FIRST_RUNS)
_warned = Memo[str, None](_MOST_WARNINGS)


@dataclass(frozen=True, slots=True)
class AbsentDevice:
    """A device that is not here, for which programs are lowered. There no routine is checked at its first run.

    - `place`: the device.
    - `missing`: gets, by name, why the pattern of a routine is lowered in its place.
    """

    place: RoutinePlace
    missing: dict[str, str] = field(default_factory=dict[str, str])

    def unavailable_reason(self, library: Library) -> str:
        """Why a routine cannot be compiled for the device; empty where it can."""
        why = unavailable_reason(library, self.place)
        if why:
            self.missing[library.name] = f"library `{library.name}` is missing: {why}; its pattern is compiled instead"
        return why


_absent: ContextVar[AbsentDevice | None] = ContextVar("relax_eg_absent_device", default=None)


def lowering_for(device: AbsentDevice) -> AbstractContextManager[None]:
    """A context in which routines are those of this device."""
    return holding(_absent, device)


def default_device() -> RoutinePlace:
    """The device that JAX runs on by default."""
    device = jax.devices()[0]
    return RoutinePlace(device.platform, device.device_kind)


def unavailable_reason(library: Library, place: RoutinePlace) -> str:
    """Why a routine cannot be used at `place`, or cannot be compiled for it here; empty where it can."""
    why = unmet_need(library, place)
    if not why and place.platform == "gpu" and library.name.startswith(_OF_CUDNN) and not _has_cudnn():
        return f"XLA compiles it with {_CUDNN}, which is not installed, and no GPU is here"
    if not why and isinstance(library.target, str) and library.target.startswith(FFI):
        return _unregistered(library.target.removeprefix(FFI), place.platform)
    return why


def _has_cudnn() -> bool:
    """Whether XLA can compile routines of cuDNN here: JAX has loaded it wherever it runs on a GPU."""
    return bool(find_spec("nvidia") and find_spec("nvidia.cudnn")) or jax.default_backend() == "gpu"


def _unregistered(target: str, platform: str) -> str:
    """The reason that XLA has no custom call of this name on a platform; empty where it has one."""
    names: set[str] = set()
    for p in {"cpu": ("cpu",), "gpu": ("CUDA", "ROCM")}.get(platform, (platform,)):
        names.update(jaxlib.xla_client.custom_call_targets(p))
    return "" if target in names else f"no ffi target `{target}` is registered for {platform}"


# --- running ---


def run_registered(library: Library, call: Expr, args: Sequence[Any], sizes: Mapping[str, Any]) -> Any:
    """The result of a registered routine for JAX arrays or tracers; that of its pattern where it is missing here.

    LibraryError where its result is not what it should be, unless `first_run` is "fall back": then its pattern runs.
    """
    absent = _absent.get()
    if absent is not None:
        if absent.unavailable_reason(library):
            return library.run_definition(call, args, sizes)
        made, problem = _run(library, call, args, sizes)
        if problem:
            raise LibraryError(problem)
        return made
    why = unavailable_reason(library, default_device())
    if why:
        _warn_once(f"library `{library.name}` is missing: {why}; its pattern runs instead")
        return library.run_definition(call, args, sizes)
    problem = ""
    if library.first_run != "trust":
        problem = _first_run(library, call, args, sizes)
    if not problem:
        made, problem = _run(library, call, args, sizes)
        if not problem:
            return made
    if library.first_run == "fall back":
        _warn_once(f"{problem}\n  its pattern runs instead")
        return library.run_definition(call, args, sizes)
    raise LibraryError(problem)


def _warn_once(text: str) -> None:
    with _lock:
        if text in _warned:
            return
        _warned[text] = None
    log.warning("%s", text)


def _run(library: Library, call: Expr, args: Sequence[Any], sizes: Mapping[str, Any]) -> tuple[Any, str]:
    """The result of the target, and what is wrong with its shape or dtype (empty where nothing is)."""
    name = f"library `{library.name}` ({_version_and_place(library)})"
    filled = _full_annotation(library, call, args, sizes)
    if not is_sized(call.annotation) or isinstance(call.annotation, Object):
        call = node(call.op, call.args, call.attrs, filled)
    try:
        made = library.run(call, args, sizes)
    except RelaxEgError:
        raise
    except Exception as e:
        return None, _raised(library, args, e)
    wanted = _shapes(filled)
    many = isinstance(filled, Tuple)
    if many != isinstance(made, (tuple, list)):
        return None, f"{name} gives {'one result' if many else 'several results'}, annotated {filled}"
    results = list(made) if many else [made]
    got = [
        (tuple(map(_constant_or_dim, getattr(r, "shape", ()))), str(getattr(r, "dtype", type(r).__name__)))
        for r in results
    ]
    if got != wanted:
        shown, expected = (", ".join(f"{d}{list(s)}" for s, d in x) for x in (got, wanted))
        return None, (
            f"{name} gives {shown}, annotated {expected}\n"
            "  accepted: a target whose results have the shapes and dtypes of its pattern's"
        )
    return (tuple(results) if many else made), ""


def _raised(library: Library, args: Sequence[Any], e: Exception) -> str:
    """The message for an exception `e` of a target. An exception that says memory ran out is raised again."""
    raise_if_exhausted(e)
    shown = ", ".join(f"{a.dtype}{list(a.shape)}" for a in args)
    name = f"library `{library.name}` ({_version_and_place(library)})"
    return f"{name} raised {type(e).__name__} for operands {shown}: {str(e)[:500]}"


def _version_and_place(library: Library) -> str:
    return ", ".join(x for x in (version(library), str(library.where)) if x)


def _full_annotation(library: Library, call: Expr, args: Sequence[Any], sizes: Mapping[str, Any]) -> Annotation:
    """The annotation of the result at the sizes of these operands, by the definition of the routine: the call may know
    less."""
    operands = [Tensor(tuple(map(_size, a.shape)), str(a.dtype)) for a in args]
    attrs = {k: tuple(_size(d.evaluate(sizes)) for d in v) if k in library.size_names else v
             for k, v in call.attr("attrs")}  # fmt: skip
    return library.annotation(operands, attrs)


def _size(n: Any) -> Dim:
    """A size as a `Dim`, symbolic where JAX traces for symbolic sizes."""
    return Dim.of(n) if isinstance(n, int) else dim_of_jax(str(n))


def _constant_or_dim(n: Any) -> int | Dim:
    """A size, as an integer where it is constant."""
    d = n if isinstance(n, Dim) else _size(n)
    return d.value if d.is_const else d


def _shapes(filled: Annotation) -> list[tuple[tuple[Any, ...], str]]:
    """The shapes and dtypes of the results that an annotation describes."""
    fields: tuple[Annotation, ...] = filled.fields if isinstance(filled, Tuple) else (filled,)
    tensors = [f for f in fields if isinstance(f, Tensor)]
    return [(tuple(map(_constant_or_dim, t.shape or ())), str(t.dtype)) for t in tensors]


# --- the first run ---


def _first_run(library: Library, call: Expr, args: Sequence[Any], sizes: Mapping[str, Any]) -> str:
    """What is wrong with a routine's value on random operands of these or smaller sizes.

    Empty where nothing is, or where it cannot be tried: sizes are symbolic, or no small ones meet its conditions. The
    answer is remembered.
    """
    shapes = [tuple(a.shape) for a in args]
    static = {k: v for k, v in call.attr("attrs") if k not in library.size_names}
    values = {k: tuple(d.evaluate(sizes) for d in v) for k, v in call.attr("attrs") if k in library.size_names}
    if not all(isinstance(n, int) for n in (*(n for s in shapes for n in s), *(n for v in values.values() for n in v))):
        return ""
    dtypes = tuple(str(a.dtype) for a in args)
    key = (id(library), version(library), tuple(shapes), dtypes, repr(static), repr(values))
    with _lock:
        known = _first_runs.get(key)
    if known is None:
        attrs = {**static, **{k: tuple(map(Dim.of, v)) for k, v in values.items()}}
        operands = [Tensor(tuple(map(Dim.of, s)), d) for s, d in zip(shapes, dtypes, strict=True)]
        with jax.ensure_compile_time_eval():
            known = _compared_with_pattern(library, operands, attrs)
        with _lock:
            _first_runs[key] = known
    return known


def _compared_with_pattern(library: Library, operands: Sequence[Tensor], attrs: Mapping[str, Any]) -> str:
    definition, call_sizes = library.sizes_at(operands, attrs)
    found = library.sample(definition, {v: d.value for v, d in call_sizes.items()})
    if found is None:
        return ""
    sizes, values = found
    known = {v: Dim.of(n) for v, n in sizes.items()}
    smaller = {k: attrs[k] for k in library.attributes}
    for name, single in library.sizes:
        smaller[name] = (known[name],) if single else tuple(known[f"{name}__{i}"] for i in range(len(attrs[name])))
    names = [str(p.attr("name")) for p in definition.params]
    params = [var(n, substitute(p.annotation, known)) for n, p in zip(names, definition.params, strict=True)]
    call = library_call(library, params, smaller)
    arrays = [jax.device_put(values[n]) for n in names]
    problem = ""

    def target(*xs: Any) -> Any:
        nonlocal problem
        made, problem = _run(library, call, xs, {})
        return () if problem else made

    # Compiled as calls are, and released afterwards; without `jit`, JAX would keep an executable per operator.
    try:
        made = jax.block_until_ready(jax.jit(target)(*arrays))
    except RelaxEgError:
        raise
    except Exception as e:
        return _raised(library, arrays, e)
    if problem:
        return problem
    wanted = jax.jit(lambda *xs: library.run_definition(call, xs, {}))(*arrays)
    many = isinstance(made, tuple)
    for i, (got, right) in enumerate(zip(made if many else (made,), wanted if many else (wanted,), strict=True)):
        got, right = np.asarray(got), np.asarray(right)
        off = relative_difference(got, right)
        if not off <= _tolerance(right.dtype.name):
            at = binding_text(sizes)
            which = f"result {i}: " if many else ""
            return (
                f"library `{library.name}` ({_version_and_place(library)}) does not compute its pattern, at {at}: "
                f"off by {off:.2g} of the largest element\n  {which}library {_text(got)}\n"
                f"  {which}pattern {_text(right)}\n"
                '  accepted: a target that computes its pattern; first_run="fall back" runs the pattern instead'
            )
    return ""


def _tolerance(dtype: str) -> float:
    least = RECORDS[dtype].tolerance if dtype in RECORDS else 0.0
    return max(least, _ON_ACCELERATOR) if dtype == "float32" and jax.default_backend() != "cpu" else least


def _text(a: np.ndarray[Any, Any]) -> str:
    shown = ", ".join(f"{x:.6g}" if a.dtype.kind in "fV" else str(x) for x in a.reshape(-1)[:_SHOWN].tolist())
    return f"{a.dtype.name}{list(a.shape)}: {shown}{', ...' if a.size > _SHOWN else ''}"
