"""Programs under relax_eg, `jax.jit`, torch, onnxruntime and TVM, on one page: `docs/peers.md`.

    python -m benchmarks.peers [--only minilm,patterns] [--peers relax_eg,jax.jit] [--python other/bin/python]
                               [--quick] [--json out.json] [--resume] [--budget 280]
    python -m benchmarks.peers --json out.json --resume --budget 0 --write      # the page, from the rows on file

torch, onnxruntime and TVM run under `--python`, the interpreter of an environment that has them
(`pip install torch onnx onnxruntime apache-tvm safetensors`); what is missing there is left out, and the page says so.
The character recognition needs the package `rapidocr_onnxruntime` (`pip install --no-deps`) beside relax_eg.

Each library has a process of its own for each group of programs. Its processes take turns, and those whose turn it is
not are stopped (`benchmarks.peer_turns`).

- *first*: seconds from the inputs to the first results: tracing, searching, compiling, one run. Importing the library,
  and what a process does once when it first compiles, is not in it.
- *warm*: the median of turns, after up to 200 calls that are not timed, and the interval of the paired ratios.
- *peak*: the most memory that the process had, for all programs of the group.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from benchmarks import Quick
from benchmarks.peer_programs import JAX, OURS, Program, programs, worker
from benchmarks.peer_turns import Worker
from benchmarks.timing import Estimate, duration, geometric_mean, machine
from relax_eg.processor import cores

PEERS = (OURS, JAX, "torch.compile", "torch", "onnxruntime", "tvm")
ROUNDS, QUICK_ROUNDS = 9, 6  # turns of each; fewer enclose no median
QUICK_PROGRAMS = 1
LONGEST, LONGEST_OF_TVM = 400.0, 60.0  # limit: seconds of an answer, and of TVM, whose loops nobody scheduled
SLOWEST = 50  # limit: how many times slower than the fastest a library takes turns; the first call is then its time
NOT_SLOWER = 1.03  # given: what is told as a loss
TOLERANCE = 2e-3  # of results, relative to their largest magnitude
MOST_FIRSTS = 6  # given: programs of a group whose first results have a line each
DOCUMENT = Path(__file__).parent.parent / "docs" / "peers.md"
VERSION = 1
COMMAND = "python -m benchmarks.peers --python other/bin/python --json build/bench/peers.json --write"
HEAD = """# Peers

Programs under relax_eg, `jax.jit`, torch (eager and `torch.compile`), onnxruntime and TVM. This page is made by
`{command}`; torch, onnxruntime and TVM are in an environment of their own.

- Machine: {machine}.
- Other work on the machine while this was measured: {load:.1f} processes on average, for {cores} cores.
- Versions: {versions}.
- All libraries run with their default options, threads included. relax_eg is `rx.jit` with the arguments named as
  weights that are known ahead of calls (`rx.optimize` for ONNX models and the stream), without its disk cache.
- Every library has a process of its own. The processes take turns, and those whose turn it is not are stopped.
- *warm call*: the median over turns, after up to 200 calls that are not timed. Columns other than `jax.jit` say how
  many times as fast as it they are: medians of ratios within rounds, that of relax_eg with its 95% interval. Of what
  takes more than {slowest} times as long as the fastest, one call is timed, and there is no interval.
- *first results*: from the inputs to the first results: tracing, searching, compiling and one run. Importing a library,
  and what a process does once when it first compiles `x + 1`, is not counted. Exporting to ONNX is not counted either.
- Results are compared with those of `jax.jit`; a library with other results gets no figures.
- A program is *slower* where the whole interval says more than 3%.
"""
GROUPS = {
    "patterns": ("Small programs", """
The patterns of `benchmarks.patterns` at n = 1,024, as a user might write them. Algebra has a better form of each.
"""),
    "minilm": ("A sentence encoder", """
MiniLM-L6 with its real weights, one text of real words.
"""),
    "stream": ("A stream of lengths", """
MiniLM-L6 over 200 texts of some 70 lengths, one at a time; *first results* is the first pass over all of them, and a
*warm call* is a later pass. `jax.jit` compiles for each length; relax_eg is `rx.optimize` with capacities;
`torch.compile(dynamic=True)`; onnxruntime has symbolic sizes.
"""),
    "attention": ("An attention layer", """
Multi-head attention with its four projections, width 768, 12 heads, weights known. torch calls its own
`scaled_dot_product_attention`.
"""),
    "training": ("A step of training", """
The loss of GPT-2 small with 2 of its 12 layers, its gradient and a step of Adam, 2 x 128 tokens; each step takes over
the memory of the state before. torch compiles the loss and has its fused Adam.
"""),
    "statistics": ("A Kalman filter and a Gaussian process", """
tinygp's Kalman solver on 1,000 observations, and its marginal likelihood and prediction on 300. No other library here
has them.
"""),
    "recognition": ("Character recognition", """
The three networks of rapidocr as ONNX models. `jax.jit` runs what relax_eg reads of the model, as it is written there.
"""),
}  # fmt: skip
# Why another library is faster, by program or group and by library.
# Single matmuls of 1 to 512 rows, 384 x 1,536 and 1,024 x 3,072, timed alone on two cores, 26 November 2026.
_MATMULS = "A matmul with a weight takes XLA 1.2 to 4.3 times as long as onnxruntime, which prepares weights once."
# docs/benchmarks.md, ONNX models: onnxruntime's kernel for one core 94 Gflop/s, XLA's loop on two 34.
_CONVOLUTIONS = (
    "XLA's loops over the taps of a depthwise convolution run at a third of the speed of onnxruntime's kernels "
    "(`benchmarks.onnx`)."
)
_PADDED = (
    "relax_eg pads texts to capacities; jax.jit compiles each length, which is in its first results, and takes as long "
    "as torch per call."
)
WHY: dict[tuple[str, str], str] = {
    ("minilm", "onnxruntime"): _MATMULS,
    ("attention", "onnxruntime"): _MATMULS,
    ("stream", "onnxruntime"): _MATMULS,
    ("stream", JAX): _PADDED,
    ("stream", "torch"): _PADDED,
    ("stream", "torch.compile"): _PADDED,
    ("recognition", "onnxruntime"): _CONVOLUTIONS,
    ("x@(W+A@B) bound, batch 8", "onnxruntime"): _MATMULS,
    ("QKV bound, batch 1", "onnxruntime"): _MATMULS,
    ("QKV bound, batch 8", "onnxruntime"): _MATMULS,
    ("QKV bound, batch 24", "onnxruntime"): _MATMULS,
    ("QKV bound, batch 64", "onnxruntime"): _MATMULS,
    ("RMSNorm scale, W bound, batch 8", "onnxruntime"): _MATMULS,
}


# -- turns


@dataclass
class Figures:
    """A library's figures of a program.

    - `first`: seconds of the first results; `warm`: median seconds of a call.
    - `ratio`: how many times as fast as `jax.jit` it is.
    - `ours`: how many times as fast as it relax_eg is.
    - `peak`: MiB of its process, after all programs of the group.
    - `version`: of the library.
    - `error`: why there are none.
    """

    first: float = 0.0
    warm: float = 0.0
    ratio: Estimate | None = None
    ours: Estimate | None = None
    peak: float = 0.0
    version: str = ""
    error: str = ""


@dataclass
class Row:
    """A program and the figures of each library. `load`: the processes of other work that ran on average before."""

    group: str
    name: str
    figures: dict[str, Figures]
    load: float = 0.0


def run_group(
    group: Sequence[Program], peers: Sequence[str], python: str, quick: bool, told: Callable[[str], bool]
) -> list[Row]:
    """The rows of programs of a group, until `told`, which is called before each, is false."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        described = _describe(group, folder)
        workers = {
            who: Worker(
                _command(who, python, folder, quick), folder / f"{who}.log", LONGEST_OF_TVM if who == "tvm" else LONGEST
            )
            for who in peers
        }
        if {*peers} - {OURS, JAX} and any(p.kind in ("pattern", "minilm", "stream") for p in group):
            command = _command("export", python, folder, quick)
            subprocess.run(command, capture_output=True, check=False, timeout=LONGEST)
        try:
            rows = []
            for program in group:
                if not told(f"{program.group}: {program.name}"):
                    break
                rows.append(_run(program, described, workers, folder, QUICK_ROUNDS if quick else ROUNDS))
            for who, w in workers.items():
                answer = w.ask(peak=True)
                for row in rows:
                    row.figures[who].peak = answer.get("peak", 0.0)
                    row.figures[who].version = answer.get("version", "")
        finally:
            for w in workers.values():
                w.end()
    return rows


def _describe(group: Sequence[Program], folder: Path) -> dict[str, str]:
    """Writes the inputs of programs, and what processes of other libraries need to know of them; returns their keys."""
    found = {}
    for i, p in enumerate(group):
        path = folder / f"inputs{i}.npz"
        np.savez(path, *[np.asarray(x) for x in jax.tree.leaves(p.arguments())])
        found[f"{p.group}: {p.name}"] = {
            "kind": p.kind, "function": p.function, "weights": p.weights, "inputs": str(path),
            "onnx": str(folder / f"model{i}.onnx"), **p.more,
        }  # fmt: skip
    (folder / "programs.json").write_text(json.dumps(found))
    return {f"{p.group}: {p.name}": str(i) for i, p in enumerate(group)}


def _command(who: str, python: str, folder: Path, quick: bool) -> list[str]:
    if who in (OURS, JAX):
        return [sys.executable, "-m", "benchmarks.peers", "--worker", who, *(["--quick"] if quick else [])]
    script = Path(__file__).with_name("peers_other.py")
    return [python or sys.executable, "-P", str(script), who, str(folder)]


def _run(program: Program, keys: Mapping[str, str], workers: Mapping[str, Worker], folder: Path, rounds: int) -> Row:
    key = f"{program.group}: {program.name}"
    row = Row(program.group, program.name, {who: Figures() for who in workers}, os.getloadavg()[0])
    wanted: list[np.ndarray] | None = None
    for who in sorted(workers, key=lambda w: w != JAX):  # the others are compared with it
        to = folder / f"{who}-{keys[key]}.npz"
        answer = workers[who].ask(make=key, to=str(to))
        mine = row.figures[who]
        mine.error, mine.first = answer.get("error", ""), answer.get("seconds", 0.0)
        if mine.error:
            continue
        with np.load(to) as file:
            found = [file[name] for name in file.files]
        wanted = found if wanted is None else wanted
        mine.error = _why_not_same(found, wanted)
    taken: dict[str, list[float]] = {who: [] for who, f in row.figures.items() if not f.error}
    for n in range(rounds):
        order = [who for who in taken if n == 0 or not _is_far_behind(who, taken)]
        random.shuffle(order)
        for who in order:
            answer = workers[who].ask(turn=True)
            if "error" in answer:
                row.figures[who].error = answer["error"]
                del taken[who]
            else:
                taken[who].append(answer["seconds"])
    for who, seconds in taken.items():
        row.figures[who].warm = float(np.median(seconds))
        row.figures[who].ratio = _ratio(taken.get(JAX), seconds)
        row.figures[who].ours = _ratio(seconds, taken.get(OURS)) if who != OURS else None
    return row


def _is_far_behind(who: str, taken: Mapping[str, list[float]]) -> bool:
    return taken[who][0] > SLOWEST * min(seconds[0] for seconds in taken.values())


def _ratio(over: Sequence[float] | None, of: Sequence[float] | None) -> Estimate | None:
    """The times `over` divided by the times `of`, taken in the same rounds."""
    if not over or not of:
        return None
    found = np.array(over[: len(of)]) / np.array(of[: len(over)])
    return Estimate.of(found) if len(found) >= QUICK_ROUNDS else Estimate(*(float(found[0]),) * 3)


def _why_not_same(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> str:
    for a, b in zip(found, wanted, strict=False):
        if a.size != b.size:
            return f"another result: {a.shape} in place of {b.shape}"
        if b.dtype.kind in "fc":
            apart = np.abs(a.reshape(b.shape).astype(np.float64) - b)
            if not np.max(apart, initial=0.0) <= TOLERANCE * np.max(np.abs(b), initial=0.0):
                return f"another result: off by {np.max(apart):.2g} where values reach {np.max(np.abs(b)):.2g}"
    return ""


# -- the page


def load(path: Path) -> list[Row]:
    def figures(data: dict[str, Any]) -> Figures:
        return Figures(**{k: Estimate(**v) if k in ("ratio", "ours") and v else v for k, v in data.items()})

    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    return [Row(**{**r, "figures": {w: figures(f) for w, f in r["figures"].items()}}) for r in rows]


def save(path: Path, rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {"version": VERSION, "machine": machine(), "processor": processor(), "rows": [asdict(r) for r in rows]}
    path.write_text(json.dumps(report, indent=1))


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    flags = next((line for line in lines if line.startswith("flags")), "")
    vectors = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else "no AVX2"
    return f"{names[0] if names else 'unknown processor'}, {vectors}"


def table(rows: Sequence[Row]) -> Table:
    out = Table("program", JAX, *OTHERS)
    for r in rows:
        out.add_row(f"{r.group}: {r.name}", *_warm_cells(r))
    return out


OTHERS = tuple(who for who in PEERS if who != JAX)


def _warm_cells(row: Row) -> Iterator[str]:
    """The time of a warm call of `jax.jit`, and how many times as fast as it each other library is."""
    for who in (JAX, *OTHERS):
        f = row.figures.get(who, Figures(error="-"))
        known = duration(f.warm) if who == JAX or f.ratio is None else _times(f.ratio, who == OURS)
        yield known if f.warm else _short(f.error)


def _times(ratio: Estimate, is_whole: bool) -> str:
    if is_whole and ratio.low < ratio.high:
        return str(ratio)
    return f"{ratio.value:.2f}" if ratio.value >= 0.095 else f"{ratio.value:.2g}"


def _short(error: str) -> str:
    """Why there are no figures, for a cell; the page lists the reasons in full."""
    return "" if not error or error.startswith("NotImplementedError") or error == "-" else "failed"


def page(rows: Sequence[Row], on: str) -> str:
    """The page as Markdown."""
    versions = dict.fromkeys(f"{w} {f.version}" for r in rows for w, f in r.figures.items() if f.version)
    load = float(np.median([r.load for r in rows]))
    head = HEAD.format(
        machine=on, versions=", ".join(versions), command=COMMAND, load=load, cores=cores(), slowest=SLOWEST
    )
    parts = [head, "## In short\n", _in_short(rows)]
    for group, (title, text) in GROUPS.items():
        mine = [r for r in rows if r.group == group]
        if mine:
            parts += [f"## {title}\n", text.strip() + "\n", _warm_table(mine), _first_table(mine)]
    parts += ["## Where relax_eg is slower, and why\n", _losses(rows), "## What did not run\n", _failures(rows)]
    return "\n".join(parts)


def _markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["--:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *lines)) + "\n"


def _warm_table(rows: Sequence[Row]) -> str:
    return _markdown(["warm call", JAX, *OTHERS], [[r.name, *_warm_cells(r)] for r in rows])


def _first_table(rows: Sequence[Row]) -> str:
    """First results of each program where they are few, else of all together; and the memory of the processes."""

    def cells(of: Sequence[Row]) -> list[str]:
        found = []
        for who in (JAX, *OTHERS):
            known = [r.figures[who].first for r in of if who in r.figures and r.figures[who].warm]
            found.append(
                duration(sum(known))
                if len(known) == len(of)
                else f"{duration(sum(known))} for {len(known)}"
                if known
                else ""
            )
        return found

    lines = [[r.name, *cells([r])] for r in rows] if len(rows) <= MOST_FIRSTS else [["all together", *cells(rows)]]
    peaks = [
        max((r.figures[w].peak for r in rows if w in r.figures and r.figures[w].warm), default=0.0)
        for w in (JAX, *OTHERS)
    ]
    if any(peaks):
        lines.append(["peak memory of the process", *(f"{p:.0f} MiB" if p else "" for p in peaks)])
    return _markdown(["first results", JAX, *OTHERS], lines)


def _in_short(rows: Sequence[Row]) -> str:
    """Of each other library: the geometric mean of how many times as fast relax_eg is, and how often it is not."""
    lines = []
    for who in PEERS[1:]:
        pairs = [r.figures[who].ours for r in rows if who in r.figures and r.figures[who].ours]
        ours = [x for x in pairs if x is not None]
        firsts = [
            (r.figures[who].first, r.figures[OURS].first)
            for r in rows
            if who in r.figures and r.figures[who].warm and r.figures[OURS].warm
        ]
        if not ours:
            continue
        faster, slower = (sum(f(x) for x in ours) for f in (lambda x: x.low > NOT_SLOWER, _is_loss))
        alike = len(ours) - faster - slower
        mean = geometric_mean(ours).value
        theirs, mine = map(sum, zip(*firsts, strict=True))
        lines.append(
            [who, str(len(ours)), f"{mean:.2f}", str(faster), str(alike), str(slower), duration(mine), duration(theirs)]
        )
    header = [
        "against",
        "programs",
        "geometric mean",
        "relax_eg is faster",
        "alike or unsure",
        "slower",
        "first results, relax_eg",
        "the other",
    ]
    return _markdown(header, lines)


def _is_loss(ours: Estimate) -> bool:
    return ours.high < 1 / NOT_SLOWER


def _losses(rows: Sequence[Row]) -> str:
    """The programs at which another library is faster beyond doubt, by the reasons that are known."""
    found: dict[str, list[str]] = {}
    for r in rows:
        for who, f in r.figures.items():
            if f.ours is not None and _is_loss(f.ours):
                why = WHY.get((r.name, who)) or WHY.get((r.group, who)) or "Not examined."
                found.setdefault(why, []).append(f"{r.group}, {r.name}: {who} {1 / f.ours.value:.2f}")
    lines = [f"{why}\n\n" + "".join(f"- {line}\n" for line in programs) for why, programs in found.items()]
    head = "How many times as fast as relax_eg the other is.\n\n"
    return head + "\n".join(lines) if lines else "Nowhere beyond doubt.\n"


def _failures(rows: Sequence[Row]) -> str:
    found: dict[tuple[str, str], list[str]] = {}
    for r in rows:
        for who, f in r.figures.items():
            if f.error:
                found.setdefault((who, f.error.removeprefix("NotImplementedError: ")), []).append(
                    f"{r.group}, {r.name}"
                )
    lines = [f"- {who}: {_all_or(programs)}: {error}" for (who, error), programs in found.items()]
    return "\n".join(lines) + "\n" if lines else "Everything ran.\n"


def _all_or(programs: Sequence[str]) -> str:
    return "; ".join(programs[:3]) + (f" and {len(programs) - 3} more" if len(programs) > 3 else "")


def main(
    only: Annotated[str, typer.Option(help="programs whose group and name contain one of these words")] = "",
    peers: Annotated[str, typer.Option(help="comma-separated: " + ", ".join(PEERS))] = "",
    python: Annotated[str, typer.Option(help="the Python that has torch, onnxruntime and TVM")] = "",
    worker_of: Annotated[str, typer.Option("--worker", hidden=True)] = "",
    quick: Quick = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="also write the rows here")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="keep the rows of --json, run the others")] = False,
    budget: Annotated[float, typer.Option(help="stop after so many seconds; --resume goes on")] = float("inf"),
    write_document: Annotated[bool, typer.Option("--write", help="make docs/peers.md of the rows")] = False,
) -> None:
    """Programs under relax_eg, jax.jit, torch, onnxruntime and TVM."""
    if worker_of:
        worker(worker_of, quick)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the processes that take turns are ended
    console = Console(width=None if sys.stdout.isatty() else 150)
    found = list(programs(quick))
    groups = list(dict.fromkeys(p.group for p in found))
    words = only.split(",") if only else ["attention"] if quick else [""]
    chosen = peers.split(",") if peers else list(PEERS[:2]) if quick else list(PEERS)
    if unknown := [who for who in chosen if who not in PEERS]:
        raise typer.BadParameter(f"--peers {unknown[0]}: accepted: {', '.join(PEERS)}")
    if python and not shutil.which(python) and {*chosen} - {OURS, JAX}:
        raise typer.BadParameter(f"--python {python}: there is no such interpreter")
    rows = load(json_out) if resume and json_out else []
    known = {(r.group, r.name) for r in rows}
    work = {g: [p for p in found if p.group == g and (g, p.name) not in known] for g in groups}
    work = {g: [p for p in ps if any(w in f"{g}: {p.name}" for w in words)] for g, ps in work.items()}
    if quick:
        work = {g: ps[:QUICK_PROGRAMS] for g, ps in work.items()}
    end = time.perf_counter() + budget
    console.print(f"{machine()}\n{processor()}")
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=sum(map(len, work.values())))
        started = 0

        def told(what: str) -> bool:
            nonlocal started
            progress.update(task, description=escape(what), completed=started)
            started += 1
            return time.perf_counter() < end

        for group in (g for g in groups if work[g]):
            if time.perf_counter() < end:
                rows += run_group(work[group], chosen, python, quick, told)
                rows.sort(key=lambda r: groups.index(r.group))
                if json_out:
                    save(json_out, rows)
    left = sum(map(len, work.values())) + len(known) - len(rows)
    if left:
        console.print(f"{left} left: go on with --resume")
    console.print(table(rows))
    if write_document and not quick:
        DOCUMENT.write_text(page(rows, f"{processor()}; {machine()}"))


if __name__ == "__main__":
    typer.run(main)
