"""`python -m relax_eg.run m.rxe ARGUMENT ...`: runs a saved program, without importing what a search needs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from relax_eg.backend.calls.optimized import Optimized
from relax_eg.backend.steps import InSteps
from relax_eg.driver.loading import load
from relax_eg.dtypes import numpy_dtype
from relax_eg.errors import OptionError, RelaxEgError
from relax_eg.ir.annotations import Annotation, Data, DataValue, Shape, Tensor, Tuple
from relax_eg.vm.machine import InstructionProfile

ARGUMENTS = (
    'numbers and lists of them as JSON, "x.npy" for an array in a file, {"Cons": [1, {"Nil": []}]} for data, and lists '
    "of these for tuples"
)


def run_file(
    file: str | Path, texts: Sequence[str], profile: bool, trace: Callable[[str], None] | None = None
) -> list[str]:
    """Runs a saved program, and returns the lines to print: its result, and the time of each instruction if `profile`.

    - `trace`: is told each instruction when it has run, with the shapes of what it made; None: nothing is.

    OptionError for arguments that cannot be read, or for a program without instructions whose profile or trace is asked
    for.
    """
    best = load(file)
    params = best.solution.program.params
    if len(texts) != len(params):
        named = ", ".join(f"{p.attr('name')}: {p.annotation}" for p in params)
        raise OptionError(f"{file} takes {len(params)} arguments, got {len(texts)}\n  accepted: {named}")
    args = [_argument(str(p.attr("name")), p.annotation, text) for p, text in zip(params, texts, strict=True)]
    if not profile and trace is None:
        return [str(best(*args))]
    result, found = profile_of(best, args, trace)
    return [str(result), *[str(found)] * profile]


def profile_of(
    best: Optimized, args: Sequence[Any], trace: Callable[[str], None] | None = None
) -> tuple[Any, InstructionProfile]:
    """Returns the result of a call and what each instruction took. OptionError for a program without instructions."""
    strategy = best.strategy
    if not isinstance(strategy, InSteps):
        raise OptionError(
            f"{best.solution.program.name}() is one XLA program and has no instructions\n"
            "  accepted: a program with recursion, data, closures or sizes that depend on values"
        )
    with best.solution.program.width_context():
        return strategy.profiled(strategy.flat_arguments(tuple(args), {}), trace)


def _argument(name: str, a: Annotation, text: str) -> Any:
    if text.endswith(".npy"):
        try:
            return np.load(text, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise OptionError(f"argument `{name}`: {text}: {error}\n  accepted: {ARGUMENTS}") from None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise OptionError(f"argument `{name}`: {text!r} is no JSON: {error}\n  accepted: {ARGUMENTS}") from None
    return _value(name, a, value)


def _value(name: str, a: Annotation, value: Any) -> Any:
    if isinstance(a, Data):
        given = cast("dict[str, Any]", value) if isinstance(value, dict) and len(value) == 1 else {}  # type: ignore[reportUnknownArgumentType]
        names = [c.name for c in a.definition.constructors]
        for constructor, fields in given.items():
            index = names.index(constructor) if constructor in names else -1
            if index >= 0 and isinstance(fields, list) and len(fields) == len(a.fields(index)):  # type: ignore[reportUnknownArgumentType]
                pairs = zip(a.fields(index), cast("list[Any]", fields), strict=True)
                inside = (_value(f"{name}.{constructor}[{i}]", b, v) for i, (b, v) in enumerate(pairs))
                return DataValue(a.definition, index, tuple(inside))
        wanted = ", ".join(f'{{"{c.name}": [{len(c.fields)} fields]}}' for c in a.definition.constructors)
        raise OptionError(f"argument `{name}` is no {a}\n  accepted: {wanted}")
    if isinstance(a, Tuple) and isinstance(value, list) and len(value) == len(a.fields):  # type: ignore[reportUnknownArgumentType]
        return tuple(_value(f"{name}[{i}]", b, v) for i, (b, v) in enumerate(zip(a.fields, value, strict=True)))  # type: ignore[reportUnknownArgumentType]
    if isinstance(a, Shape) and isinstance(value, list):
        return tuple(cast("list[int]", value))
    try:
        dtype = a.dtype if isinstance(a, Tensor) else None
        return np.array(value, None if dtype is None else numpy_dtype(dtype))
    except (ValueError, TypeError, OverflowError) as error:
        raise OptionError(f"argument `{name}` is no {a}: {error}\n  accepted: {ARGUMENTS}") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command. Returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m relax_eg.run", description="Run a saved program.")
    parser.add_argument("file", help="m.rxe: what best.save or --save wrote")
    parser.add_argument("arguments", nargs="*", help=ARGUMENTS)
    parser.add_argument("--profile", action="store_true", help="print what each instruction took")
    parser.add_argument("--trace", action="store_true", help="print each instruction when it has run")
    given = parser.parse_args(argv)
    try:
        print("\n".join(run_file(given.file, given.arguments, given.profile, print if given.trace else None)))
    except RelaxEgError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
