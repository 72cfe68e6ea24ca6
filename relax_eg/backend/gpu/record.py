"""The record of what XLA made of a program for a GPU. It prints as a table."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from relax_eg.backend.gpu.hlo import KINDS, Launch
from relax_eg.backend.gpu.resources import KernelResources
from relax_eg.byte_units import format_bytes
from relax_eg.errors import OptionError
from relax_eg.figures import binding_text, count_text
from relax_eg.plain_data import write_file
from relax_eg.reports.terminal import plain_table, rendered_text

VERSION = 1  # given: version of the JSON
_PAGE_WIDTH = 160  # chosen: letters of a line of the page
_MOST_ROWS = 60  # limit: kernels shown in the text; the JSON has all


@dataclass(frozen=True, slots=True)
class GpuExecutable:
    """An executable that XLA made.

    - `name`: the name of its function, or of its kernel if a call runs several executables.
    - `times`: how often a call runs it.
    - `launches`: the kernels that it launches.
    - `argument_bytes`, `result_bytes`, `temporary_bytes`: bytes of memory as XLA assigns them.
    - `code_bytes`: bytes of the serialized executable.
    - `compile_seconds`: wall time of compiling it.
    - `unknown_loops`: loops with a number of steps that XLA does not know; their kernels count once.
    - `pallas`: why it was lowered through Pallas; "" if it was not.
    - `left`: why it was left to XLA although kernels are lowered through Pallas where XLA compiles them badly, or its
      matmuls to XLA's default tiles; "" if that does not concern it.
    - `ptx`: its kernels in PTX, if asked for.
    - `resources`: what its kernels take of a multiprocessor, if their PTX was asked for.
    - `graphs`: the kernels in each CUDA graph (a command buffer of XLA's), which is launched at once.
    - `options`: the options of XLA's compiler that were chosen for it.
    - `line`: the source line of a kernel that is an executable; "" of a whole program.
    """

    name: str
    times: int
    launches: tuple[Launch, ...]
    argument_bytes: int
    result_bytes: int
    temporary_bytes: int
    code_bytes: int
    compile_seconds: float
    unknown_loops: int = 0
    pallas: str = ""
    left: str = ""
    ptx: tuple[str, ...] = ()
    resources: tuple[KernelResources, ...] = ()
    graphs: tuple[int, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    line: str = ""


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a report predicts of a call.

    - `seconds`: seconds.
    - `launches`: kernels launched.
    - `bytes`: bytes that the kernels read and write.
    - `temporary_bytes`: bytes of memory beside arguments and results; None if it does not say.
    - `lines`: launches and bytes by source line; of a kernel for several lines, they count for the first.
    """

    seconds: float
    launches: int
    bytes: int
    temporary_bytes: int | None
    lines: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])


@dataclass(frozen=True, slots=True)
class GpuProgram:
    """What calls at some sizes run.

    - `at`: the sizes of the calls.
    - `capacities`: the sizes of the buffers, where calls run padded to these; otherwise empty.
    - `execution`: "whole" or "kernels".
    - `as_written`: whether the function runs as written.
    - `executables`: what a call runs, in the order of the first run; equal kernels are one executable.
    - `storage_bytes`: bytes of the arrays between executables, as planned; 0 for a single executable.
    - `predicted`: what the report predicts for its own target; None where it does not cover these sizes.
    - `missing`: by name, the routines of other libraries in whose place their patterns were compiled, with the reason.
    """

    at: Mapping[str, int]
    capacities: Mapping[str, int]
    execution: str
    as_written: bool
    executables: tuple[GpuExecutable, ...]
    storage_bytes: int
    predicted: Predicted | None
    missing: Mapping[str, str]

    @property
    def launches(self) -> int:
        """Kernels that a call launches, copies included."""
        return sum(e.times * k.times for e in self.executables for k in e.launches)

    @property
    def kinds(self) -> Mapping[str, int]:
        """Launches of a call by kind, without kinds that do not occur."""
        found: Counter[str] = Counter()
        for e in self.executables:
            for k in e.launches:
                found[k.kind] += e.times * k.times
        return {kind: found[kind] for kind in KINDS if found[kind]}

    @property
    def lines(self) -> Mapping[str, tuple[int, int]]:
        """Launches and bytes of a call by source line; "" where none is known."""
        counted = ((e, k, e.times * k.times) for e in self.executables for k in e.launches)
        return by_line((k.line or e.line, n, n * k.bytes) for e, k, n in counted)

    @property
    def seconds(self) -> float:
        """XLA's estimates of all kernels that have one, added up."""
        return sum(e.times * k.times * (k.seconds or 0.0) for e in self.executables for k in e.launches)

    @property
    def unpriced(self) -> int:
        """Launches for which XLA has no estimate."""
        return sum(e.times * k.times for e in self.executables for k in e.launches if k.seconds is None)

    @property
    def graphs(self) -> tuple[int, ...]:
        """The kernels in each CUDA graph of a call."""
        return tuple(n for e in self.executables for n in e.graphs * e.times)

    @property
    def bytes(self) -> int:
        """Bytes that the kernels of a call read and write."""
        return sum(e.times * k.times * k.bytes for e in self.executables for k in e.launches)

    @property
    def temporary_bytes(self) -> int:
        """Bytes of memory of a call beside arguments and results: the arrays between executables, and the most that an
        executable allocates for itself."""
        return self.storage_bytes + max((e.temporary_bytes for e in self.executables), default=0)

    @property
    def compile_seconds(self) -> float:
        return sum(e.compile_seconds for e in self.executables)

    @property
    def left(self) -> Mapping[str, str]:
        """Reasons by name of the kernels that were left to XLA."""
        return {e.name: e.left for e in self.executables if e.left}


@dataclass(frozen=True, slots=True)
class GpuCompilation:
    """An optimized function as XLA compiled it for a GPU; print it, or use `to_json`.

    - `name`: the name of the function.
    - `device`: the device as the user named it, and its kind as JAX knows it.
    - `present`: whether it is a GPU of this machine, on which XLA times its candidates while it compiles.
    - `target`: the target for which the program was chosen.
    - `versions`: versions of JAX and jaxlib.
    - `no_estimates`: why XLA gave no estimates; "" if it did.
    - `programs`: one for each binding of the sizes.
    """

    name: str
    device: tuple[str, str]
    present: bool
    target: str
    versions: Mapping[str, str]
    no_estimates: str
    programs: tuple[GpuProgram, ...]

    @property
    def ptx(self) -> str:
        """The kernels in PTX, if asked for; those that several programs share once."""
        texts = dict.fromkeys(text for p in self.programs for e in p.executables for text in e.ptx)
        return "\n".join(t.strip() for t in texts if t.strip()) + "\n"

    def to_json(self, path: str | Path | None = None) -> str:
        """All of it as JSON text, also written to `path` if one is given."""
        text = json.dumps({"relax_eg gpu compilation": VERSION, **asdict(self)}, indent=2) + "\n"
        if path is not None:
            write_file(path, text, OptionError, "the compilation")
        return text

    def to_html(self, path: str | Path | None = None) -> str:
        """What it prints as one page without scripts, also written to `path` if one is given."""
        console = Console(record=True, width=_PAGE_WIDTH, file=io.StringIO())
        console.print(self)
        text = console.export_html(inline_styles=True)
        if path is not None:
            write_file(path, text, OptionError, "the page")
        return text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        described = "present" if self.present else "described: tiles of matmuls by a model of it, untimed"
        versions = ", ".join(f"{k} {v}" for k, v in self.versions.items())
        yield Text(f"{self.name}   for {self.device[0]} ({self.device[1]}; {described}); {versions}", "bold")
        if self.no_estimates:
            yield Text(f"no estimates of times: {self.no_estimates}")
        for program in self.programs:
            yield from _program_text(program, self.target)

    def __str__(self) -> str:
        return rendered_text(self, width=120)


def _program_text(p: GpuProgram, target: str) -> RenderResult:
    at, padded = binding_text(p.at), binding_text(p.capacities)
    how = (
        f"in kernels, {count_text(len(p.executables), 'executable')}" if p.execution == "kernels" else "one executable"
    )
    written = ", as written" * p.as_written
    yield Text(f"\n{f'at {at}' if at else 'at its sizes'}{f', padded to {padded}' if padded else ''}: {how}{written}")
    kinds = ", ".join(f"{n} {kind}" for kind, n in p.kinds.items())
    told = p.predicted
    yield Text(f"  launches      {p.launches} ({kinds})" + _beside(told and told.launches, target))
    inside = sum(p.graphs)
    yield Text(f"  CUDA graphs   {f'{len(p.graphs)}, of {inside} kernels' if p.graphs else 'none'}")
    for name, value in {k: v for e in p.executables for k, v in e.options.items()}.items():
        yield Text(f"  option        {name}={value or '(none)'}")
    yield Text(f"  memory        {format_bytes(p.bytes)} moved" + _beside(told and format_bytes(told.bytes), target))
    estimate = f"{1e6 * p.seconds:.4g} us" + (
        f", {count_text(p.unpriced, 'launch', 'launches')} without one" if p.unpriced else ""
    )
    predicted = told and f"{1e6 * told.seconds:.4g} us a call"
    yield Text(f"  XLA estimates {estimate}" + _beside(predicted, target))
    between = f" ({format_bytes(p.storage_bytes)} between executables)" if p.storage_bytes else ""
    stored = None if told is None or told.temporary_bytes is None else format_bytes(told.temporary_bytes)
    yield Text(f"  temporaries   {format_bytes(p.temporary_bytes)}{between}" + _beside(stored, target))
    code = sum(e.code_bytes for e in p.executables)
    yield Text(f"  compiled in   {p.compile_seconds:.2f} s, {format_bytes(code)} of code")
    table = plain_table(("executable", "kernel", "kind", "made for"), ("times", "us each"))
    table.add_column("model")
    rows = [(e, k) for e in p.executables for k in e.launches]
    last = ""
    for e, k in rows[:_MOST_ROWS]:
        each = "" if k.seconds is None else f"{1e6 * k.seconds:.4g}"
        made = k.operators.rsplit("/", 1)[-1]
        kind = f"{k.kind} {k.matmul.tiles}" if k.matmul is not None else k.kind
        table.add_row(e.name if e.name != last else "", k.name, kind, made, str(e.times * k.times), each, k.model)
        last = e.name
    yield table
    if len(rows) > _MOST_ROWS:
        yield Text(f"and {len(rows) - _MOST_ROWS} kernels more")
    if told is not None and told.lines:
        yield from _beside_lines(told.lines, p.lines)
    for e in p.executables:
        if e.left:
            yield Text(f"left to XLA: {e.name}: {e.left}")
    for text in p.missing.values():
        yield Text(text)


def by_line(costs: Iterable[tuple[str, int, int]]) -> dict[str, tuple[int, int]]:
    """Launches and bytes by source line, added up."""
    found: dict[str, tuple[int, int]] = {}
    for line, launches, moved in costs:
        before = found.get(line, (0, 0))
        found[line] = before[0] + launches, before[1] + moved
    return found


def _beside_lines(predicted: Mapping[str, tuple[int, int]], compiled: Mapping[str, tuple[int, int]]) -> RenderResult:
    """Predicted beside compiled, by source line; lines with most bytes first."""
    table = plain_table(["source line"], ("launches predicted", "compiled", "bytes predicted", "compiled"))
    each = {line: (predicted.get(line, (0, 0)), compiled.get(line, (0, 0))) for line in {**predicted, **compiled}}
    most = {line: max(moved for _, moved in found) for line, found in each.items()}
    for line in sorted(most, key=lambda at: (-most[at], at))[:_MOST_ROWS]:
        (few, less), (many, more) = each[line]
        table.add_row(line or "(not known)", str(few), str(many), format_bytes(less), format_bytes(more))
    yield table


def _beside(predicted: object, target: str) -> str:
    return "" if predicted is None else f"; predicted for {target}: {predicted}"
