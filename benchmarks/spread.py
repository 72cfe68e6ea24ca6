"""Programs spread over meshes of described devices: the placements found beside the textbook ones.

    python -m benchmarks.spread [--quick] [--only mlp] [--seconds 60] [--compile] [--json rows.json] [--write]

A textbook spreading is given by the placements of its inputs; everything else is chosen as well as the search can, so
its figures are those of its best form. *data* splits the batch, *zero-3* the batch and the state, *tensor* the weights
as Megatron has them, *sequence* the tokens, *expert* the experts of a mixture, *pipeline* the layers. On a mesh of
several axes two names are of what the slow axes do, and the last. `--compile` lets XLA compile the found spreading for
8 or 64 described GPUs, where there are as many, and counts the collectives that it inserts. `--json` keeps the rows,
those of other runs too, and `--write` puts them into docs/spread.md, where other programs keep their lines.
`benchmarks.spread_run` runs programs on devices.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import typer
from rich.console import Console
from rich.table import Table

import relax_eg as rx
from benchmarks import Quick, write_between
from benchmarks.models import gpt2_arguments, gpt2_step, resnet, resnet_specs
from relax_eg.errors import RelaxEgError

DTYPE = "bfloat16"
MOST_COMPILED = 64  # described devices for which programs are compiled here
FEWEST_DEVICES = 8  # of a mesh
QUICK = ("mlp on 8", "block on 8")
DOCUMENT = Path(__file__).parent.parent / "docs" / "spread.md"
BEGIN, END = "<!-- python -m benchmarks.spread --write: from here -->", "<!-- to here -->"
BOOKS_BEGIN, BOOKS_END = "<!-- textbook: from here -->", "<!-- textbook: to here -->"
# The columns of the textbook, each with the names of its spreadings on one axis and on several.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "data": ("data",), "ZeRO-3": ("zero-3",), "tensor": ("tensor", "data, tensor"),
    "sequence": ("sequence", "data, sequence"), "experts": ("expert", "data, expert"),
    "ZeRO-3 x tensor": ("zero-3, tensor",), "pipeline": ("pipeline",), "pipeline x data": ("pipeline, data",),
}  # fmt: skip
BEHIND = 1.005  # given: the gap at which a search ends
MESHES = ({"x": 8}, {"data": 8, "model": 8}, {"pod": 8, "data": 8, "model": 8})

Textbook = Mapping[str, Mapping[str, str]]  # placements of inputs by the name of the spreading


@dataclass(frozen=True)
class Case:
    """A program with its specs, and textbook placements of its inputs by the name of the spreading, one part for each
    axis of the mesh. `microbatches`: those of the textbook pipeline over the slowest axis; 0: there is none."""

    fn: Callable[..., Any]
    specs: tuple[Any, ...]
    textbook: Textbook
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    microbatches: int = 0
    mesh: Mapping[str, int] = field(default_factory=dict[str, int])


def mlp(x: jax.Array, wi: jax.Array, wo: jax.Array) -> jax.Array:
    return jax.nn.gelu(x @ wi) @ wo


def normed(x: jax.Array, gain: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * gain


def block(x: jax.Array, p: Mapping[str, jax.Array], heads: int = 32) -> jax.Array:
    """A layer of Llama, without the rotation of positions, which costs next to nothing."""
    b, s, d = x.shape
    h = normed(x, p["g1"])
    q, k, v = ((h @ p[n]).reshape(b, s, heads, -1).transpose(0, 2, 1, 3) for n in ("wq", "wk", "wv"))
    scores = q @ k.transpose(0, 1, 3, 2) / jnp.sqrt(d / heads).astype(x.dtype)
    x = x + (jax.nn.softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(b, s, d) @ p["wo"]
    h = normed(x, p["g2"])
    return x + (jax.nn.silu(h @ p["w1"]) * (h @ p["w3"])) @ p["w2"]


def weights(d: int, f: int, layers: str = "") -> dict[str, str]:
    shapes = {"g1": f"{d}", "g2": f"{d}", **{f"w{n}": f"{d} {d}" for n in "qkvo"}}
    shapes |= {"w1": f"{d} {f}", "w3": f"{d} {f}", "w2": f"{f} {d}"}
    return {name: f"{layers} {shape} @{DTYPE}".strip() for name, shape in shapes.items()}


def training(heads: int) -> Callable[..., Any]:
    """A step of gradient descent through all layers, each computed again in the backward pass."""

    def loss(ps: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        def layer(c: jax.Array, p: Any) -> tuple[jax.Array, None]:
            return jax.checkpoint(lambda c, p: block(c, p, heads))(c, p), None

        return jnp.mean((jax.lax.scan(layer, x, ps)[0] - y).astype(jnp.float32) ** 2)

    def train(ps: Any, x: jax.Array, y: jax.Array) -> Any:
        value, gradient = jax.value_and_grad(loss)(ps, x, y)
        return jax.tree.map(lambda w, g: w - (1e-3 * g).astype(w.dtype), ps, gradient), value

    return train


def mixture(x: jax.Array, gate: jax.Array, wi: jax.Array, wo: jax.Array) -> jax.Array:
    """A dense mixture of experts: every expert computes, the gate weighs."""
    share = jax.nn.softmax(x @ gate, -1)
    inner = jax.nn.relu(jnp.einsum("td,edf->etf", x, wi))
    return jnp.einsum("te,etd->td", share, jnp.einsum("etf,efd->etd", inner, wo))


def decoding(ps: Any, x: jax.Array, k_cache: jax.Array, v_cache: jax.Array) -> Any:
    """One token of each sequence through all layers of Llama, with grouped queries; returns what the caches grow by."""

    def layer(x: jax.Array, xs: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        p, ks, vs = xs  # caches: sequence, head, place, element
        b, heads, _, width = ks.shape
        h = normed(x, p["g1"])
        q = (h @ p["wq"]).reshape(b, heads, -1, width)
        k, v = ((h @ p[n]).reshape(b, heads, 1, width) for n in ("wk", "wv"))
        scores = jnp.concatenate([q @ ks.transpose(0, 1, 3, 2), q @ k.transpose(0, 1, 3, 2)], -1)
        share = jax.nn.softmax(scores * (1 / width**0.5), -1)
        attended = share[..., :-1] @ vs + share[..., -1:] @ v
        x = x + attended.reshape(b, -1) @ p["wo"]
        h = normed(x, p["g2"])
        return x + (jax.nn.silu(h @ p["w1"]) * (h @ p["w3"])) @ p["w2"], (k, v)

    return jax.lax.scan(layer, x, (ps, k_cache, v_cache))


def _tensor(prefix: str) -> dict[str, str]:
    """Megatron's placements of a layer's weights; those of a training step have an axis of layers in front."""
    split = {"wq": 1, "wk": 1, "wv": 1, "wo": 0, "w1": 1, "w3": 1, "w2": 0}
    return {f"{prefix}['{n}']": f"S[{d + (prefix == 'ps')}]" for n, d in split.items()}


def _on(mesh: Mapping[str, int], textbook: Textbook) -> Textbook:
    """Textbook placements over the axes of a mesh, from those over one: data and state are split over all of them, all
    else over the last, whose devices are neighbours, with the data split over the others. With ZeRO-3 the matrices that
    the last axis splits are split over the others too, along their other dimension."""
    slow = len(mesh) - 1
    data = textbook.get("data", {})
    along_two = {1: 2, 2: 1}  # given: dimensions of a stack of matrices

    def along(label: str, name: str, part: str) -> str:
        if label in ("data", "zero-3"):
            return ", ".join([part] * len(mesh))
        return ", ".join([*[data.get(name, data.get(name.partition("[")[0], "R"))] * slow, part])

    named = {label: label if label in ("data", "zero-3") or not slow else f"data, {label}" for label in textbook}
    found = {named[x]: {n: along(x, n, p) for n, p in given.items()} for x, given in textbook.items()}
    if slow and "zero-3" in textbook and "tensor" in textbook:
        other = {n: f"S[{along_two[int(p[2])]}]" for n, p in textbook["tensor"].items() if "[" in n}
        split = {n: ", ".join([*[part] * slow, textbook["tensor"][n]]) for n, part in other.items()}
        found["zero-3, tensor"] = {**found["data, tensor"], **split}
    return found


def _pipelines(case: Case) -> dict[str, dict[str, Any]]:
    """Options of the textbook pipelines over the slowest axis: all else chosen, or the data split over the others."""
    if not case.microbatches:
        return {}
    first, *others = case.mesh.items()
    found: dict[str, dict[str, Any]] = {"pipeline": {"pipeline": {first[0]: case.microbatches}}}
    if others:
        each = int(case.specs[-1].split()[0]) // math.prod(n for _, n in others)  # sequences of a group of stages
        data = ", ".join(["R", *["S[0]"] * len(others)])
        placed = {"x": data, "y": data, "ps": ", ".join(["S[0]", *["R"] * len(others)])}
        stages = {"pipeline": {first[0]: min(case.microbatches, each)}, "inputs": placed}
        found["pipeline, data"] = stages
    return found


def _programs(devices: int) -> dict[str, Case]:
    """The programs for a mesh of so many devices: batches grow with it. Textbook placements are along one axis."""
    d, f, k = 4096, 14336, devices // 8
    batch, large = f"{64 * k} 4096 {d} @{DTYPE}", f"{devices} 4096 8192 @{DTYPE}"
    step = {"state": ("ps",)}
    tensor = {"x": "R", "y": "R", **_tensor("ps")}
    split = {"x": "S[0]", "y": "S[0]"}
    training_books = {
        "data": {**split, "ps": "R"}, "zero-3": split, "tensor": tensor, "sequence": {"x": "S[1]", "y": "S[1]"},
    }  # fmt: skip
    grouped = weights(8192, 28672, "80") | dict.fromkeys(("wk", "wv"), f"80 8192 1024 @{DTYPE}")
    cache = f"80 {64 * k} 8 4096 128 @{DTYPE}"
    adam = gpt2_arguments()[:-1]
    held = {"params": "R", "first": "R", "second": "R"}
    one = {"data": {"x": "S[0]", "p": "R"}, "tensor": {"x": "R", **_tensor("p")}}
    found = {
        "mlp": Case(
            mlp, (f"{4096 * k} {d} @{DTYPE}", f"{d} {f} @{DTYPE}", f"{f} {d} @{DTYPE}"),
            {"data": {"x": "S[0]", "wi": "R", "wo": "R"}, "tensor": {"x": "R", "wi": "S[1]", "wo": "S[0]"}},
        ),
        "block": Case(
            block, (f"{8 * k} 2048 {d} @{DTYPE}", weights(d, f)), {**one, "sequence": {"x": "S[1]", "p": "R"}}
        ),
        "decode": Case(block, (f"{8 * k} 1 {d} @{DTYPE}", weights(d, f)), one),
        "mixture": Case(
            mixture,
            (f"{8192 * k} 1024 @{DTYPE}", f"1024 16 @{DTYPE}", f"16 1024 4096 @{DTYPE}", f"16 4096 1024 @{DTYPE}"),
            {"data": {"x": "S[0]", "wi": "R", "wo": "R"}, "expert": {"x": "R", "wi": "S[0]", "wo": "S[0]"}},
        ),
        "resnet-50": Case(
            resnet, (resnet_specs(), f"{256 * k} 224 224 3"), {"data": {"images": "S[0]", "params": "R"}}
        ),
        "gpt-2": Case(
            gpt2_step, (*adam, f"{64 * k} 1025 @ int32"), {"data": {"ids": "S[0]", **held}, "zero-3": {"ids": "S[0]"}},
            {"state": {"params": 1, "first": 2, "second": 3}},
        ),
        "llama-3-8b": Case(training(32), (weights(d, f, "32"), batch, batch), training_books, step, 64),
        "llama-3-70b decode": Case(
            decoding, (grouped, f"{64 * k} 8192 @{DTYPE}", cache, cache),
            {"tensor": {"x": "R", "k_cache": "S[2]", "v_cache": "S[2]", **_tensor("ps")},
             "data": {"x": "S[0]", "k_cache": "S[1]", "v_cache": "S[1]", "ps": "R"}},
        ),
        "llama-3-70b": Case(training(64), (weights(8192, 28672, "80"), large, large), training_books, step, 64),
    }  # fmt: skip
    return found if devices > FEWEST_DEVICES else {n: c for n, c in found.items() if n != "llama-3-70b"}


def _cases() -> dict[str, Case]:
    return {
        f"{name} on {math.prod(mesh.values())}": replace(case, mesh=mesh, textbook=_on(mesh, case.textbook))
        for mesh in MESHES
        for name, case in _programs(math.prod(mesh.values())).items()
    }


@dataclass(frozen=True)
class Row:
    """One spreading of a program.

    - `program`, `mesh`, `label`: which; the label "found" is no textbook's.
    - `seconds`, `sending`: predicted, of a call; None if there is none, for the reason `why`.
    - `memory`: bytes of a device, predicted.
    - `gap`: to the bound, as a share.
    - `searched`: seconds of tracing and search; `limit`: those allowed.
    - `day`: when.
    - `priced`, `inserted`: bytes of collectives by kind, where XLA compiled it; `beside`: of these inserted, bytes of
      those beside which it launches kernels; `compiled`: its bytes of a device.
    """

    program: str
    mesh: str
    label: str
    seconds: float | None
    sending: float
    memory: float
    gap: float
    searched: float
    limit: float
    day: str
    why: str = ""
    priced: Mapping[str, float] | None = None
    inserted: Mapping[str, float] | None = None
    compiled: float = 0.0
    beside: Mapping[str, float] | None = None


def row_of(name: str, case: Case, label: str, options: Mapping[str, Any], seconds: float, compiles: bool) -> Row:
    """One spreading of a case. `compiles`: whether XLA compiles it too."""
    started, day = time.perf_counter(), date.today().isoformat()
    mesh = ", ".join(f"{axis}={n}" for axis, n in case.mesh.items())
    try:
        made: Any = rx.spread(
            case.fn, *case.specs, mesh=case.mesh, target="h100", seconds=seconds, **case.options, **options
        )
    except RelaxEgError as e:
        why = str(e).splitlines()[0]
        return Row(name, mesh, label, None, 0.0, 0.0, 0.0, time.perf_counter() - started, seconds, day, why)
    r = made.spreading
    found = Row(
        name, mesh, label, r.total, r.sending, r.memory, r.gap, time.perf_counter() - started, seconds, day
    )  # fmt: skip
    if not compiles or r.devices > MOST_COMPILED:
        return found
    compiled = made.compile_spread("h100", donate=tuple(case.options.get("state", ())))
    return replace(found, priced=r.sent_bytes(), inserted=compiled.bytes_by_kind(), compiled=compiled.memory,
                   beside=compiled.bytes_by_kind(beside=True))  # fmt: skip


def table_of(rows: Sequence[Row]) -> Table:
    table = Table("program", "mesh", "spreading", "seconds a call", "sending", "GB a device", "gap", "search, s")
    for r in rows:
        figures = ["", "", "", ""] if r.seconds is None else [
            f"{r.seconds:.4g}", f"{r.sending:.3g}", f"{r.memory / 1e9:.3g}", f"{r.gap:.1%}",
        ]  # fmt: skip
        table.add_row(r.program, r.mesh, r.label, *(figures if not r.why else [r.why[:60], *figures[1:]]),
                      f"{r.searched:.1f}")  # fmt: skip
    return table


def best_of(rows: Sequence[Row], program: str) -> tuple[Row | None, Row | None]:
    """The found spreading of a program, and the cheapest of the textbook."""
    mine = [r for r in rows if r.program == program]
    books = [r for r in mine if r.label != "found" and r.seconds is not None]
    return next((r for r in mine if r.label == "found"), None), min(books, key=lambda r: r.seconds or 0.0, default=None)


def is_behind(found: Row | None, book: Row | None) -> bool:
    """Whether what was found costs more than the textbook; not where no search for it ran."""
    if found is None or book is None:
        return False
    return (found.seconds or math.inf) > (book.seconds or 0.0) * BEHIND


def found_lines(rows: Sequence[Row]) -> dict[str, str]:
    """The line of what was found for each program, and of what XLA made of it."""

    def sent(bytes_by_kind: Mapping[str, float]) -> str:
        return ", ".join(f"{kind} {n / 1e9:.4g}" for kind, n in bytes_by_kind.items()) or "none"

    found: dict[str, str] = {}
    for r in rows:
        if r.label == "found" and r.seconds is not None:
            known = r.priced is not None and r.inserted is not None
            compiled = (f"{r.compiled / 1e9:.3g}", sent(r.priced or {}), sent(r.inserted or {}))
            found[r.program] = " | ".join(
                [f"| {r.program}", f"{r.seconds:.3g}", f"{r.gap:.1%}", f"{r.searched:.0f} ({r.limit:.0f})",
                 f"{r.memory / 1e9:.3g}", *(compiled if known else ("", "", "")), r.day + " |"]
            )  # fmt: skip
    return found


def book_lines(rows: Sequence[Row], found: Mapping[str, str]) -> dict[str, str]:
    """The line of the textbook spreadings of each program, beside `found`, its line."""
    lines: dict[str, str] = {}
    for program in dict.fromkeys(r.program for r in rows if r.label != "found"):
        mine = {r.label: r for r in rows if r.program == program}
        cells = [f"| {program}", found[program].split("|")[2].strip() if program in found else ""]
        for names in COLUMNS.values():
            r = next((mine[n] for n in names if n in mine), None)
            cells.append("" if r is None else f"{r.seconds:.4g}" if r.seconds is not None else "no room")
        limits = sorted({r.limit for label, r in mine.items() if label != "found"})
        lines[program] = " | ".join([*cells, f"{limits[-1]:.0f} |"])
    return lines


def write_tables(rows: Sequence[Row], programs: Sequence[str]) -> None:
    """Puts the rows into the document. Programs without new rows keep their lines."""

    def merged(begin: str, end: str, new: Mapping[str, str]) -> dict[str, str]:
        old = DOCUMENT.read_text().partition(begin)[2].partition(end)[0].splitlines()
        known = {line.split("|")[1].strip(): line for line in old if line.startswith("|")} | dict(new)
        return {p: known[p] for p in programs if p in known}

    def write(begin: str, end: str, columns: Sequence[str], aligned: str, lines: Mapping[str, str]) -> None:
        head = ["| program, H100s | " + " | ".join(columns) + " |", aligned]
        write_between(DOCUMENT, begin, end, "\n".join([*head, *lines.values()]))

    found = merged(BEGIN, END, found_lines(rows))
    columns = ("found, s", "gap", "search, s (limit)", "GB a device", "GB by XLA", "priced collectives, GB",
               "inserted by XLA, GB", "day")  # fmt: skip
    write(BEGIN, END, columns, "|---|--:|--:|--:|--:|--:|---|---|---|", found)
    books = merged(BOOKS_BEGIN, BOOKS_END, book_lines(rows, found))
    columns = ("found", *COLUMNS, "limit, s")
    write(BOOKS_BEGIN, BOOKS_END, columns, "|---" + "|--:" * len(columns) + "|", books)


def main(
    only: Annotated[str, typer.Option("--only", help="Cases whose names have this in them.")] = "",
    seconds: Annotated[float, typer.Option("--seconds", help="Seconds of a search for placements.")] = 60.0,
    compiles: Annotated[bool, typer.Option("--compile", help="Let XLA compile for 8 and 64 described GPUs.")] = False,
    books_only: Annotated[str, typer.Option("--textbook", help="Only this textbook spreading, or 'all'.")] = "",
    found_only: Annotated[bool, typer.Option("--found", help="Only what is found, not the textbook.")] = False,
    kept: Annotated[Path | None, typer.Option("--json", help="A file of rows, to which those of this run go.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Put the rows into docs/spread.md.")] = False,
    quick: Quick = False,
) -> None:
    """Found and textbook placements: predicted seconds, memory of a device, bound and seconds of the search."""
    console = Console(width=140)
    known = [Row(**r) for r in json.loads(kept.read_text())] if kept is not None and kept.exists() else []
    rows = {(r.program, r.label): r for r in known}
    cases = _cases()
    for name, case in cases.items():
        if (quick and name not in QUICK) or only not in name or only == "none":
            continue
        tried: dict[str, dict[str, Any]] = {
            label: {"inputs": given, "pipeline": False} for label, given in case.textbook.items()
        }
        tried |= _pipelines(case)
        books = {x: o for x, o in tried.items() if books_only in (x, "", "all")}
        for label, options in {**({} if books_only else {"found": {}}), **({} if found_only else books)}.items():
            rows[name, label] = row_of(name, case, label, options, seconds, compiles and label == "found")
            if kept is not None:
                kept.write_text(json.dumps([asdict(r) for r in rows.values()], indent=1))
    ordered = [rows[key] for key in sorted(rows, key=lambda k: list(cases).index(k[0]))]
    console.print(table_of(ordered))
    for r in ordered:
        if r.priced is not None and r.inserted is not None:
            console.print(f"{r.program}: priced {r.priced}, inserted {r.inserted}, beside kernels {r.beside}")
            console.print(f"{r.program}: memory predicted {r.memory / 1e9:.3g} GB, XLA {r.compiled / 1e9:.3g} GB")
    if write and not quick:
        write_tables(ordered, list(cases))
    behind = [n for n in dict.fromkeys(r.program for r in ordered) if is_behind(*best_of(ordered, n))]
    if behind:
        raise SystemExit(f"behind the best textbook spreading: {', '.join(behind)}")


app = typer.Typer(add_completion=False)
app.command()(main)

if __name__ == "__main__":
    app()
