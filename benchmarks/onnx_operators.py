"""ONNX operators as `rx.from_onnx` reads them, against onnxruntime: random attributes, dtypes, shapes and versions.

    python -m benchmarks.onnx_operators [--count 50] [--only Resize,Cast] [--first 0] [--json out.json]

Every operator of ONNX that `rx.from_onnx` accepts (`benchmarks.onnx_cases`), and every one into which onnxruntime fuses
others (`benchmarks.onnx_fused_cases`), is drawn until `count` sets were compared: values, shapes and dtypes of all
outputs, with symbolic sizes in a third of the sets. Where onnxruntime has no kernel, or
another result, ONNX's own reference decides; the table says how often. A set is refused if the reader raises OnnxError,
and broken if reading or running raises any other exception.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import jax
import ml_dtypes
import numpy as np
import onnxruntime
import typer
from onnx.reference import ReferenceEvaluator
from rich.console import Console
from rich.table import Table

import relax_eg as rx
from benchmarks import Quick
from benchmarks.onnx_cases import DRAWN, Case, draw
from benchmarks.onnx_fused_cases import DRAWN_FUSED, draw_fused
from relax_eg.backend.lowering.lower import run_function
from relax_eg.errors import OnnxError

Array = np.ndarray[Any, Any]

_NARROW = {"tensor(float8e4m3fn)": ml_dtypes.float8_e4m3fn, "tensor(float8e5m2)": ml_dtypes.float8_e5m2}

KINDS = sorted([*DRAWN, *DRAWN_FUSED])

_TRIES = 4  # sets drawn for each that is to be compared, at most
# Of the result's greatest number, per dtype: a few roundings of sums of a hundred elements.
TOLERANCE = {
    "float64": 1e-6,
    "float32": 1e-4,
    "float16": 8e-3,
    "bfloat16": 4e-2,
    "float8_e4m3fn": 0.13,
    "float8_e5m2": 0.26,
}


@dataclass
class Result:
    """The results of an operator's sets.

    - `kind`: the operator.
    - `agree`: sets whose results agree.
    - `reference`: sets among these that ONNX's reference decided.
    - `departs`: for sets among these, the difference of onnxruntime's result, as text.
    - `refused`: the number of refused sets, by error text.
    - `unjudged`: sets that neither onnxruntime nor the reference can run.
    - `differ`: sets whose results differ.
    """

    kind: str
    agree: int = 0
    reference: int = 0
    departs: list[str] = field(default_factory=list[str])
    refused: dict[str, int] = field(default_factory=dict[str, int])
    unjudged: int = 0
    differ: list[str] = field(default_factory=list[str])


Read = tuple[Case, rx.types.Module, list[Array]]  # a case, its module, and the arrays that it is called with


def read(case: Case, result: Result) -> Read | None:
    """Returns the module of a case; None, recorded in `result`, if it cannot be read."""
    try:
        module = rx.from_onnx(case.model)
    except OnnxError as error:
        text = str(error).splitlines()[0].split("): ", 1)[-1]
        result.refused[text] = result.refused.get(text, 0) + 1
        return None
    except Exception as error:  # whatever it is, it is no answer
        result.differ.append(f"{case}: {type(error).__name__}: {str(error).splitlines()[0]}")
        return None
    return case, module, [*case.arrays.values(), *module.weights.values()]


def computed(cases: Sequence[Read]) -> list[list[Array]]:
    """Returns the results of modules, computed in one XLA program, because compilation dominates the time."""

    def run(arrays: Sequence[Sequence[Any]]) -> list[Any]:
        return [run_function(m, m.main, xs) for (_, m, _), xs in zip(cases, arrays, strict=True)]

    with jax.enable_x64(True):
        found = jax.jit(run)([xs for _, _, xs in cases])
    return [[np.asarray(f) for f in (v if isinstance(v, tuple) else (v,))] for v in found]


def of_runtime(case: Case) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(case.model.SerializeToString(), options)
    given = {n: onnxruntime.OrtValue.ortvalue_from_numpy(a) for n, a in case.arrays.items()}
    found = [np.asarray(f.numpy()) for f in session.run_with_ort_values(None, given)]
    # Narrow floats are handed out as bytes.
    return [f.view(_NARROW.get(o.type, f.dtype)) for f, o in zip(found, session.get_outputs(), strict=True)]


def of_reference(case: Case) -> list[Array]:
    with np.errstate(all="ignore"):
        return [np.asarray(f) for f in ReferenceEvaluator(case.model).run(None, dict(case.arrays))]


def difference(found: Sequence[Array], wanted: Sequence[Array]) -> str | None:
    """Returns the difference of results as text; None if they agree."""
    if len(found) != len(wanted):
        return f"{len(found)} outputs instead of {len(wanted)}"
    for i, (f, w) in enumerate(zip(found, wanted, strict=True)):
        if f.dtype != w.dtype or f.shape != w.shape:
            return f"output {i} is {f.dtype}{list(f.shape)} instead of {w.dtype}{list(w.shape)}"
        if f.dtype.name not in TOLERANCE:
            if not np.array_equal(f, w):
                return f"output {i}: {_some(f)} instead of {_some(w)}"
            continue
        a, b = f.astype(np.float64), w.astype(np.float64)
        finite = np.abs(b[np.isfinite(b)])
        most = TOLERANCE[f.dtype.name] * max(1.0, float(finite.max()) if finite.size else 0.0)
        if not np.allclose(a, b, rtol=TOLERANCE[f.dtype.name], atol=most, equal_nan=True):
            return f"output {i}: {_some(f)} instead of {_some(w)}"
    return None


def _some(x: Array) -> str:
    return str(x.astype(np.float64).reshape(-1)[:12].round(4).tolist())


def judged(cases: Sequence[Read], result: Result) -> None:
    """Adds the outcomes of cases to `result`."""
    try:
        answers = computed(cases)
    except Exception as error:  # whatever it is, it is no answer
        if len(cases) == 1:
            result.differ.append(f"{cases[0][0]}: {type(error).__name__}: {str(error).splitlines()[0]}")
        else:
            for case in cases:
                judged([case], result)
        return
    for (case, _, _), found in zip(cases, answers, strict=True):
        said: list[str] = []
        for name, oracle in (("onnxruntime", of_runtime), ("the reference", of_reference)):
            try:
                wanted = oracle(case)
            except Exception:  # it has no kernel for this dtype, or none of this version
                continue
            differs = difference(found, wanted)
            if differs is None:
                result.agree += 1
                result.reference += name != "onnxruntime"
                result.departs += [f"{case}: {text}" for text in said]
                break
            said.append(f"{name}: {differs}")
        else:
            if said:
                result.differ.append(f"{case}: {'; '.join(said)}")
            result.unjudged += not said


def compared(kind: str, count: int, first: int = 0) -> Result:
    """Returns the result of an operator on `count` compared sets, or on as many as four times `count` draws give."""
    result, seed, last = Result(kind), first, first + _TRIES * count
    while seed < last and (missing := count - result.agree - len(result.differ)) > 0:
        seeds = range(seed, min(seed + missing, last))
        seed = seeds.stop
        drawn = draw_fused if kind in DRAWN_FUSED else draw
        if cases := [r for s in seeds if (r := read(drawn(kind, s), result)) is not None]:
            judged(cases, result)
    return result


QUICK_KINDS, QUICK_COUNT = 3, 2


def main(
    count: Annotated[int, typer.Option(help="sets that are compared, for each operator")] = 50,
    only: Annotated[str, typer.Option(help="operators, by commas; all unless given")] = "",
    first: Annotated[int, typer.Option(help="the first seed")] = 0,
    quick: Quick = False,
    out: Annotated[Path | None, typer.Option("--json", help="a file for the results")] = None,
) -> None:
    table = Table("operator", "agree", "by the reference", "runtime differs", "refused", "no oracle", "differ")
    results: list[Result] = []
    console = Console(width=200)
    kinds = only.split(",") if only else KINDS
    if unknown := [k for k in kinds if k not in KINDS]:
        raise typer.BadParameter(f"no sets are drawn for {', '.join(unknown)}; accepted: {', '.join(KINDS)}")
    if quick:
        kinds, count = kinds[:QUICK_KINDS], min(count, QUICK_COUNT)
    for kind in kinds:
        r = compared(kind, count, first)
        results.append(r)
        counts = (r.agree, r.reference, len(r.departs), sum(r.refused.values()), r.unjudged, len(r.differ))
        table.add_row(r.kind, *map(str, counts))
        for text in r.differ[:5]:
            console.print(text, markup=False, highlight=False)
    console.print(table)
    total = [sum(f(r) for r in results) for f in (lambda r: r.agree, lambda r: r.reference, lambda r: len(r.differ))]
    console.print(f"{len(results)} operators, {total[0]} sets agree ({total[1]} by the reference), {total[2]} differ")
    if out is not None:
        out.write_text(json.dumps([asdict(r) for r in results], indent=1))
    raise typer.Exit(1 if total[2] else 0)


if __name__ == "__main__":
    typer.run(main)
