"""ONNX's own node tests through `rx.from_onnx`: which operators are read, and which are refused and why.

    python -m benchmarks.onnx_nodes [--only Resize,Cast] [--expanded] [--json out.json] [--write]

The `onnx` package makes the tests: a model of one node, inputs, outputs and tolerances for each. Expanded tests, in
which ONNX has written the node as its function, are counted apart. A test passes if the dtypes, shapes and values of
all outputs agree, within the test's tolerances. So are the models that the package carries as files: networks whose
weights are computed ("light"), and what early PyTorch exported; `--only light,pytorch-converted` runs these.

The node tests pass everything as an input, shapes too. A module's ranks and sizes cannot depend on the values of its
inputs. So a test that is refused is read once more with its vectors and scalars as initializers; the table counts these
apart, and with them those whose inputs are sequences and optionals, of which the reader is told the
sizes. `--write` writes the table of `docs/onnx.md`.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import ml_dtypes
import numpy as np
import onnx
import typer
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.loader import DATA_DIR, load_model_tests
from onnx.backend.test.runner import Runner
from rich.console import Console
from rich.progress import track
from rich.table import Table

import relax_eg as rx
from benchmarks import Quick, write_between
from relax_eg.backend.lowering.lower import run_function
from relax_eg.dtypes import dtype_of, is_float, is_integer
from relax_eg.errors import OnnxError

Array = np.ndarray[Any, Any]

BATCH = 16  # tests in one XLA program, because compilation dominates the time
MOST_STATIC = 64  # elements of an input that becomes an initializer for the second reading; the longest shape has 6
ROUNDINGS = 2  # units in the last place of the largest number of a result, accepted in each of its numbers
# The folders of models in the `onnx` package. Those of "light" are given what ONNX's own runner gives them.
LIGHT = "light"
LIGHT_RTOL, LIGHT_ATOL = 1e-3, 1e-7  # given: by ONNX's loader of models
FOLDERS = (LIGHT, "pytorch-converted", "pytorch-operator", "simple")
QUICK_EVERY = 60  # of so many tests, --quick runs one
OUTCOMES = ("passed", "with constants", "refused", "wrong", "broken")
DOCUMENT = Path(__file__).parent.parent / "docs" / "onnx.md"
BEGIN, END = "<!-- python -m benchmarks.onnx_nodes --write: from here -->", "<!-- to here -->"


@dataclass(frozen=True)
class NodeTest:
    """A node test of ONNX, or one of a whole model.

    - `kind`: the operator that it tests, with its domain if that is not ONNX's own; the folder of a model.
    - `expanded`: whether ONNX has written the node as its function.
    """

    name: str
    kind: str
    expanded: bool
    model: Any
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    rtol: float
    atol: float


@dataclass(frozen=True)
class Outcome:
    """The outcome of a test, one of `OUTCOMES`, and the error or difference as text."""

    name: str
    kind: str
    expanded: bool
    outcome: str
    text: str = ""


def node_tests() -> list[NodeTest]:
    """All node tests of the installed `onnx`, sorted by name."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found: list[Any] = sorted(collect_testcases(None), key=lambda c: c.name)
    kinds = {c.name: _kind(c.model.graph.node[0]) for c in found if "_expanded" not in c.name}
    made: list[NodeTest] = []
    for c in found:
        base, mark, _ = c.name.partition("_expanded")
        ((inputs, outputs),) = c.data_sets
        kind = kinds.get(base) or _kind(c.model.graph.node[0])
        arrays, wanted = (tuple(map(_array, values)) for values in (inputs, outputs))
        if kind in ("Cast", "CastLike"):
            arrays, wanted = _within_range(arrays, wanted)
        made.append(NodeTest(c.name, kind, bool(mark), c.model, arrays, wanted, c.rtol, c.atol))
    return made


def model_tests(kinds: Sequence[str] = FOLDERS) -> list[NodeTest]:
    """The tests of the models in these folders of the installed `onnx`, sorted by name."""
    made = [t for kind in kinds if kind != LIGHT for t in map(_of_folder, load_model_tests(kind=kind))]
    if LIGHT in kinds:
        made += [_of_light(path) for path in Path(DATA_DIR, LIGHT).glob("*.onnx")]
    return sorted(made, key=lambda t: (t.kind, t.name))


def _of_folder(case: Any) -> NodeTest:
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    first = folder / "test_data_set_0"
    given = [_loaded(first / f"input_{i}.pb", info.type) for i, info in enumerate(inputs_of(model))]
    wanted = [_loaded(first / f"output_{i}.pb", info.type) for i, info in enumerate(model.graph.output)]
    return NodeTest(f"{case.kind}/{case.name}", case.kind, False, model, given, wanted, case.rtol, case.atol)


def _of_light(path: Path) -> NodeTest:
    model = onnx.load(path)
    given = [Runner.generate_dummy_data(info) for info in inputs_of(model)]
    wanted = [_loaded(path.with_name(f"{path.stem}_output_{i}.pb"), o.type) for i, o in enumerate(model.graph.output)]
    return NodeTest(f"{LIGHT}/{path.stem}", LIGHT, False, model, given, wanted, LIGHT_RTOL, LIGHT_ATOL)


def _loaded(path: Path, kind: Any) -> Any:
    data = path.read_bytes()
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def inputs_of(model: Any) -> list[Any]:
    """The inputs of a model that are no initializers."""
    held = {t.name for t in model.graph.initializer}
    return [info for info in model.graph.input if info.name not in held]


def _array(value: Any) -> Any:
    """A value of a test, of which some are given as protos."""
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _within_range(inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """The arrays of a conversion with 0 for floats outside the range of an integer dtype. ONNX leaves their results
    undefined, and the outputs of its tests depend on the version of ml_dtypes."""
    (x, *others), (y,) = inputs, outputs
    if not (is_float(x.dtype.name) and is_integer(y.dtype.name)):
        return inputs, outputs
    whole, limits = np.trunc(x.astype(np.float64)), ml_dtypes.iinfo(y.dtype)
    has_result = (whole >= int(limits.min)) & (whole <= int(limits.max))
    return [np.where(has_result, x, np.zeros_like(x)), *others], [np.where(has_result, y, np.zeros_like(y))]


def _kind(node: Any) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else str(node.op_type)


@dataclass(frozen=True)
class _Read:
    """A test, its module and the arrays that it is called with; `constants`: whether inputs became initializers."""

    test: NodeTest
    module: Any
    arrays: list[Array]
    constants: bool

    @property
    def in_steps(self) -> bool:
        """Whether sizes depend on values, so that it is no single XLA program."""
        return not all(block.dataflow for block in self.module.main.blocks)

    @property
    def passed(self) -> Outcome:
        return outcome(self.test, "with constants" if self.constants else "passed")


def outcome(test: NodeTest, result: str, text: str = "") -> Outcome:
    return Outcome(test.name, test.kind, test.expanded, result, text)


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines() or [""]
    return lines[0] if isinstance(error, OnnxError) else f"{type(error).__name__}: {lines[0]}"


def read(test: NodeTest) -> _Read | Outcome:
    """The module of a test, or why there is none."""
    refused: OnnxError | None = None
    for count in (0, len(test.inputs) - 1, len(test.inputs)):
        try:
            model, arrays = _with_constants(test, count)
            lengths, arrays = _lists(model, arrays)
            module = rx.from_onnx(model, inputs=lengths)
        except OnnxError as error:
            refused = refused or error
        except Exception as error:  # whatever it is, it is no answer
            return outcome(test, "broken", _first_line(error))
        else:
            return _Read(test, module, [*arrays, *module.weights.values()], count > 0 or bool(lengths))
    assert refused is not None
    return outcome(test, "refused", _first_line(refused))


def _with_constants(test: NodeTest, count: int) -> tuple[Any, list[Any]]:
    """The model with those of its last `count` inputs as initializers that are short vectors or scalars, and the arrays
    of the other inputs."""
    inputs = list(zip(inputs_of(test.model), test.inputs, strict=True))
    first = len(inputs) - count
    static = [
        i >= first and isinstance(a, np.ndarray | np.generic) and np.ndim(a) <= 1 and np.size(a) <= MOST_STATIC
        for i, (_, a) in enumerate(inputs)
    ]
    if not any(static):
        return test.model, [a for _, a in inputs]
    model = onnx.ModelProto.FromString(test.model.SerializeToString())
    del model.graph.input[:]
    for (info, array), fixed in zip(inputs, static, strict=True):
        if fixed:
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), info.name))
        else:
            model.graph.input.append(info)
    return model, [a for (_, a), fixed in zip(inputs, static, strict=True) if not fixed]


def _lists(model: Any, arrays: Sequence[Any]) -> tuple[dict[str, Any], list[Any]]:
    """What is declared of inputs that are sequences and optionals, whose lengths no model says, and all arrays one by
    one."""
    said: dict[str, Any] = {}
    made: list[Any] = []
    for info, value in zip(inputs_of(model), arrays, strict=True):
        if info.type.HasField("tensor_type"):
            made.append(value)
            continue
        said[info.name] = (
            [_spec(v) for v in value] if isinstance(value, list) else None if value is None else _spec(value)
        )
        made += value if isinstance(value, list) else [] if value is None else [value]
    return said, made


def _spec(array: Any) -> str:
    return " ".join(map(str, np.shape(array)))


def judged(tests: Sequence[_Read]) -> Iterator[Outcome]:
    """The outcomes of tests that were read, computed in one XLA program; that of a light model operator by operator.

    All weights of a light model are equal, so its logits are, at magnitudes of 1e12. In one program XLA may compute the
    logits of a softmax a second time for their maximum, with sums in another order. Then each logit is 1e5 below the
    maximum, and the softmax is 0/0: `light_squeezenet` in 5 of 8 compilations."""

    def run(arrays: Sequence[Sequence[Any]]) -> list[Any]:
        return [run_function(t.module, t.module.main, xs) for t, xs in zip(tests, arrays, strict=True)]

    try:
        with jax.enable_x64(True):
            if len(tests) == 1 and tests[0].in_steps:
                found = [rx.optimize(tests[0].module)(*tests[0].arrays)]
            elif tests[0].test.kind == LIGHT:
                found = jax.device_get(run([t.arrays for t in tests]))
            else:
                found = jax.device_get(jax.jit(run)([t.arrays for t in tests]))
    except Exception as error:  # whatever it is, it is no answer
        if len(tests) == 1:
            yield outcome(tests[0].test, "broken", _first_line(error))
        else:
            for test in tests:
                yield from judged([test])
        return
    for read_test, values in zip(tests, found, strict=True):
        differs = difference(_flat(values), [x for o in read_test.test.outputs for x in _flat(o)], read_test.test)
        yield read_test.passed if differs is None else outcome(read_test.test, "wrong", differs)


def _flat(values: Any) -> list[Any]:
    """The arrays in results, of which sequences have several."""
    return [x for v in values for x in _flat(v)] if isinstance(values, tuple | list) else [values]


def difference(found: Sequence[Any], outputs: Sequence[Any], test: NodeTest) -> str | None:
    """The difference of results from the outputs of a test as text; None if they agree."""
    if len(found) != len(outputs):
        return f"{len(found)} outputs instead of {len(outputs)}"
    for i, (value, output) in enumerate(zip(found, outputs, strict=True)):
        f, w = np.asarray(value), np.asarray(output)
        if f.dtype != w.dtype or f.shape != w.shape:
            return f"output {i} is {f.dtype}{list(f.shape)} instead of {w.dtype}{list(w.shape)}"
        wide: Any = np.complex128 if f.dtype.kind == "c" else np.float64
        same = f.dtype.kind in "iub" and np.array_equal(f, w)
        wanted = w.astype(wide)
        if not same and not np.allclose(f.astype(wide), wanted, test.rtol, _least(w, test.atol), equal_nan=True):
            with np.printoptions(threshold=8, precision=6):
                return f"output {i}: {f.reshape(-1)[:8]} instead of {w.reshape(-1)[:8]}"
    return None


def _least(wanted: Array, given: float) -> float:
    """The absolute tolerance of a result: that of the test, or a few roundings of the largest number. A sum of numbers
    that cancel is not exactly 0 in another order."""
    if not is_float(wanted.dtype.name):
        return given
    finite = np.abs(wanted[np.isfinite(wanted)].astype(np.float64))
    return max(given, ROUNDINGS * 2 * dtype_of(wanted.dtype.name).half_ulp * float(finite.max(initial=0)))


def run(tests: Sequence[NodeTest], console: Console | None = None) -> list[Outcome]:
    """The outcomes of tests, sorted by name; `console` shows the progress."""
    done: list[Outcome] = []
    starts = range(0, len(tests), BATCH)
    batches = starts if console is None else track(starts, "node tests", console=console, transient=True)
    for start in batches:
        readings = [read(t) for t in tests[start : start + BATCH]]
        done += [r for r in readings if isinstance(r, Outcome)]
        reads = [r for r in readings if isinstance(r, _Read)]
        apart = [r for r in reads if r.in_steps or r.test.kind == LIGHT]
        for group in (*([r] for r in apart), [r for r in reads if r not in apart]):
            done += judged(group) if group else []
    return sorted(done, key=lambda o: o.name)


def reason(text: str) -> str:
    """The error of a refused test without the name of the test and the place of the node."""
    return re.sub(r"^[^:]*: (node \d+ [^:]*\): )?", "", text)


def table(outcomes: Sequence[Outcome], head: str = "operator") -> str:
    """A table of the document: a row for each kind of test, and the reasons of what is refused."""
    rows = [f"| {head} | tests | passed | with constants | refused | why |", "|---|---|---|---|---|---|"]
    for kind in sorted({o.kind for o in outcomes}):
        own = [o for o in outcomes if o.kind == kind]
        counts = Counter(o.outcome for o in own)
        why = Counter(reason(o.text) for o in own if o.outcome not in ("passed", "with constants"))
        said = "; ".join(text if n == 1 else f"{text} ({n})" for text, n in why.most_common()).replace("|", "\\|")
        numbers = (len(own), *(counts[o] for o in OUTCOMES[:2]), sum(counts[o] for o in OUTCOMES[2:]))
        rows.append(f"| {kind} | {' | '.join(str(v or '') for v in numbers)} | {said} |")
    return "\n".join(rows)


def total(outcomes: Sequence[Outcome], kinds: str = "operators") -> str:
    """The counts of outcomes as a sentence. `kinds`: the word for their kinds."""
    counts = Counter(o.outcome for o in outcomes)
    share = (counts["passed"] + counts["with constants"]) / max(len(outcomes), 1)
    listed = ", ".join(f"{counts[o]} {o}" for o in OUTCOMES)
    return f"{len(outcomes)} tests of {len({o.kind for o in outcomes})} {kinds}: {listed}; {share:.1%} pass"


def main(
    only: Annotated[str, typer.Option(help="operators, or folders of models, by commas; all unless given")] = "",
    expanded: Annotated[bool, typer.Option("--expanded", help="run the expanded tests too")] = False,
    each: Annotated[bool, typer.Option("--each", help="list every test that does not pass")] = False,
    quick: Quick = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="also write the outcomes here")] = None,
    write: Annotated[bool, typer.Option("--write", help="write the table of docs/onnx.md")] = False,
) -> None:
    """ONNX's own node tests and models through `rx.from_onnx`."""
    console = Console(width=None if sys.stdout.isatty() else 200)
    kinds = set(only.split(",")) if only else None
    tests = [t for t in (*node_tests(), *model_tests()) if kinds is None or t.kind in kinds]
    tests = [t for t in tests if expanded or not t.expanded]
    found = run(tests[:: QUICK_EVERY if quick else 1], console)
    models = [o for o in found if o.kind in FOLDERS]
    plain = [o for o in found if not o.expanded and o not in models]
    shown = Table("operator", *OUTCOMES)
    for kind in sorted({o.kind for o in found}):
        counts = Counter(o.outcome for o in found if o.kind == kind)
        if each or counts["refused"] or counts["wrong"] or counts["broken"]:
            shown.add_row(kind, *(str(counts[o] or "") for o in OUTCOMES))
    console.print(shown)
    for o in found:
        if o.outcome in ("wrong", "broken") or (each and o.outcome == "refused"):
            console.print(f"{o.outcome}: {o.name}: {o.text}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"not expanded: {total(plain)}\nmodels: {total(models, 'folders')}", highlight=False)
    if expanded:
        console.print(f"expanded: {total([o for o in found if o.expanded])}", highlight=False)
    if json_out is not None:
        json_out.write_text(json.dumps([asdict(o) for o in found], indent=1))
    if write and kinds is None and not quick:
        texts = (f"{total(plain)} (onnx {onnx.__version__}).", table(plain), "The models that the package carries:")
        write_between(DOCUMENT, BEGIN, END, "\n\n".join((*texts, table(models, "folder"))))
    raise typer.Exit(1 if any(o.outcome in ("wrong", "broken") for o in found) else 0)


if __name__ == "__main__":
    typer.run(main)
