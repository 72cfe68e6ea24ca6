"""`rx.from_stablehlo`: modules of StableHLO, and of what `jax.export` writes."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax
from jax import export

from relax_eg.dtypes import WIDE
from relax_eg.errors import StableHloError
from relax_eg.frontends.jax.trace import trace_function
from relax_eg.frontends.specs import identifier
from relax_eg.frontends.stablehlo.evaluate import as_function, check_operations, exported_function
from relax_eg.frontends.stablehlo.parsing import HloRegion, parse_module
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.module import Module

_ACCEPTED = (
    "the text or bytes of a StableHLO module, a path, what jax.jit(f).lower(...) or jax.export.export returns, or the "
    "bytes of the latter"
)


def from_stablehlo(source: Any, *, inputs: Sequence[str] | None = None) -> Module:
    """The module of a StableHLO program.

    Its operations become operators as those of a JAX function do. Sizes that are symbolic in `jax.export` keep their
    names and constraints. In a StableHLO text, each size that is not known (`?`) becomes a variable of its own.

    - `source`: the text of a StableHLO module, its bytes (MLIR's bytecode or a portable artifact), a path to a file of
      one of these, an `Exported` of `jax.export`, its serialized bytes, or what `jax.jit(f).lower(...)` returns.
    - `inputs`: one spec per input, such as "b 768", that names unknown sizes. Inputs with equal names have equal sizes.

    StableHloError if it cannot be read; it lists every operation that is not supported, with how many there are.
    """
    exported, name = _loaded(source)
    if isinstance(exported, export.Exported):
        if inputs is not None:
            raise StableHloError("inputs for what jax.export wrote, which says its sizes\n  accepted: none")
        function, wide = exported_function(exported)
        specs: list[Any] = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in exported.in_avals]
        names, name = _argument_names(exported), exported.fun_name
    else:
        module = parse_module(exported)
        check_operations(module, name)
        wide = not module.dtypes.isdisjoint(WIDE)
        function, names = as_function(module), [f"arg{i}" for i in range(len(module.main.params))]
        specs = _specs(module.main, names, inputs)
    label = identifier(name, set())

    def main(*args: Any) -> Any:
        return function(*args)

    parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
    main.__name__ = label
    main.__signature__ = inspect.Signature(parameters)  # type: ignore[reportFunctionMemberAccess]
    with jax.enable_x64(True) if wide else nullcontext():
        return trace_function(main, tuple(specs), name=label).module


def _loaded(source: Any) -> tuple[Any, str]:
    """An Exported, or the text or bytes of a module, and its name."""
    if isinstance(source, export.Exported):
        return source, source.fun_name
    if isinstance(source, jax.stages.Lowered):
        return source.as_text(), "main"
    if not source or not isinstance(source, str | bytes | bytearray | Path):
        got = f"a {type(source).__name__}" if source or source is None else "nothing to read"
        raise StableHloError(f"from_stablehlo: got {got}\n  accepted: {_ACCEPTED}")
    name = "main"
    if isinstance(source, Path) or (isinstance(source, str) and "\n" not in source and "{" not in source):
        path = Path(source)
        try:
            source, name = path.read_bytes(), path.stem
        except OSError as error:
            text = f"from_stablehlo: cannot read {path}: {error.strerror or error}"
            raise StableHloError(f"{text}\n  accepted: {_ACCEPTED}") from None
    if isinstance(source, str):
        return source, name
    data = bytes(source)
    if data[:4] == b"ML\xefR":  # given: the first bytes of MLIR's bytecode
        return data, name
    try:
        return data.decode(), name
    except UnicodeDecodeError:
        pass
    try:
        return export.deserialize(bytearray(data)), name
    except Exception as error:  # the reader of JAX's format raises errors of various classes
        first = (str(error).splitlines() or [""])[0]
        raise StableHloError(f"from_stablehlo: bytes of no module ({first})\n  accepted: {_ACCEPTED}") from None


def _argument_names(exported: export.Exported) -> list[str]:
    """A name for each array of the arguments."""
    tree = jax.tree_util.tree_unflatten(exported.in_tree, range(len(exported.in_avals)))
    used: set[str] = set()
    made: list[str] = []
    for path, _ in jax.tree_util.tree_leaves_with_path(tree):
        (kind, first, *rest) = path
        stem = f"arg{first.idx}" if kind.idx == 0 else str(first.key)
        made.append(identifier(stem + jax.tree_util.keystr(tuple(rest)), used))
    return made


def _specs(main: HloRegion, names: Sequence[str], inputs: Sequence[str] | None) -> list[Tensor]:
    if inputs is not None and len(inputs) != len(names):
        raise StableHloError(f"{len(inputs)} specs for {len(names)} inputs\n  accepted: one for each")
    made: list[Any] = []
    for i, (name, kind) in enumerate(zip(names, main.types, strict=True)):
        if kind is None:
            raise StableHloError(f"input {name} is no tensor\n  accepted: tensors of known rank")
        if inputs is None:
            text = " ".join(str(d) if d is not None else f"{name}_{a}" for a, d in enumerate(kind.shape))
        else:
            shape = Tensor(text := inputs[i]).shape or ()
            has = " ".join("?" if d is None else str(d) for d in kind.shape)
            fits = len(shape) == len(kind.shape) and all(
                d is None or (own.is_const and own.value == d) for own, d in zip(shape, kind.shape, strict=True)
            )
            if not fits:
                raise StableHloError(f"inputs[{i}] = {text!r}; the module has {has!r}\n  accepted: its known sizes")
        made.append(f"{text} @ {kind.dtype}")
    return made
