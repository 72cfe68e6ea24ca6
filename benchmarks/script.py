"""Texts in Relax's script language: which constructs read, print, read back, optimize, and agree with the reference.

    python -m benchmarks.script [--quick] [--table docs/constructs.md]

There is a text for each construct of `benchmarks/script_constructs.txt`, and texts that combine several: 400 in all.
Each is read, printed and read back, optimized, and compared with the reference interpreter.
"""

from __future__ import annotations

import contextlib
import io
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import typer

import relax_eg as rx
from benchmarks import Quick
from benchmarks.script_constructs import CONSTRUCTS, Construct
from relax_eg.ops.interpret import evaluate
from relax_eg.rules.checking.check import without_checks

TEXTS = 400  # given: what the project promises
QUICK = 12  # chosen: texts of a quick run
STAGES = ("reads", "reads back", "optimizes", "agrees")


@dataclass(frozen=True)
class Outcome:
    """What became of a text.

    - `stages`: the stages that it passed, in order.
    - `problem`: the first line of the error that stopped it.
    """

    stages: int
    problem: str


def text_of(constructs: Sequence[Construct], form: str) -> str:
    """Returns a module whose entry uses constructs one after the other. `form`: plain, dataflow or branch."""
    definitions: list[str] = []
    lines: list[str] = []
    last = "x"
    for i, c in enumerate(constructs):
        names = {"x": last, "y": f"y{i}", "p": f"p{i}", "s": 2}
        lines += c.lines.format(**names).split("\n")
        definitions += [c.definitions.format(**names)] if c.definitions else []
        last = f"y{i}"
    if form == "dataflow":
        lines = ["with R.dataflow():", *(f"    {s}" for s in [*lines, f"R.output({last})"])]
    elif form == "branch":
        lines = [
            'c = R.less(R.const(0, "int32"), R.const(1, "int32"))',
            "if c:",
            *(f"    {s}" for s in [*lines, f"r = {last}"]),
            "else:",
            "    r = R.negative(x)",
        ]
        last = "r"
    shape = (
        '(2, 8), "float32"'
        if any("{s}" in c.definitions or "T.int64(2)" in c.definitions for c in constructs)
        else '("n", 8), "float32"'
    )
    lines = [f"{s}" for s in lines]
    if shape.startswith("(2"):
        lines = [s.replace("(n, 8)", "(2, 8)") for s in lines]
    else:
        lines.insert(0, "n = T.int64()")
    main = [f"def main(x: R.Tensor({shape})) -> R.Tensor({shape}):", *(f"    {s}" for s in [*lines, f"return {last}"])]
    parts = [*definitions, "\n".join(["@R.function", *main])]
    body = "\n\n".join("\n".join("    " + s if s else s for s in p.split("\n")) for p in parts)
    return f"# from tvm.script import ir as I, relax as R, tir as T\n@I.ir_module\nclass Module:\n{body}\n"


def texts(count: int = TEXTS) -> list[tuple[tuple[Construct, ...], str]]:
    """Returns combinations of constructs with their forms: each construct alone first, then several."""
    found: list[tuple[tuple[Construct, ...], str]] = [((c,), "plain") for c in CONSTRUCTS]
    chosen = random.Random(0)
    combined = [c for c in CONSTRUCTS if "T.int64(2)" not in c.definitions]
    while len(found) < count:
        form = chosen.choice(("plain", "dataflow", "branch"))
        pool = [c for c in combined if c.dataflow or form == "plain"]
        found.append((tuple(chosen.sample(pool, 2 if form == "branch" else 3)), form))
    return found[:count]


def _exp_into(x: np.ndarray, y: np.ndarray) -> None:  # type: ignore[type-arg]
    y[...] = np.exp(x)


def _double(x: np.ndarray) -> None:  # type: ignore[type-arg]
    x *= 2


def _scaled(x: np.ndarray, by: object) -> np.ndarray:  # type: ignore[type-arg]
    (number,) = np.ravel(by)  # a whole number is a shape of one size
    return (x * number).astype(np.float32)


def _both_into(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> None:  # type: ignore[type-arg]
    y[...], z[...] = np.exp(x), np.tanh(x)


def _add_to(x: np.ndarray, y: np.ndarray) -> None:  # type: ignore[type-arg]
    y += x


def register() -> None:
    """Registers the functions of the host that the texts call."""
    rx.script.register_function("bench.exp", np.exp, replace=True)
    rx.script.register_function("bench.reshape", lambda x, shape, order: np.reshape(x, shape, order), replace=True)
    rx.script.register_function("bench.exp_into", _exp_into, replace=True)
    rx.script.register_function("bench.double_in_place", _double, replace=True)
    rx.script.register_function("bench.first", lambda pair: pair[0], replace=True)
    rx.script.register_function("bench.both", lambda x: (np.exp(x), np.tanh(x)), replace=True)
    rx.script.register_function("bench.scaled", _scaled, replace=True)
    rx.script.register_function("bench.size", np.shape, replace=True)
    rx.script.register_function("bench.effect", lambda x: (), replace=True)
    rx.script.register_function("bench.both_into", _both_into, replace=True)
    rx.script.register_function("bench.add_to", _add_to, replace=True)


def outcome(text: str) -> Outcome:
    """Returns what becomes of a text."""
    stage = 0
    try:
        module = rx.parse(text)
        stage = 1
        if rx.parse(str(module)) != module:
            return Outcome(1, "the printed text reads back as another module")
        stage = 2
        x = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)
        wanted = np.asarray(evaluate(module, [x]))
        best = rx.optimize(module, measure="off")
        stage = 3
        found = np.asarray(best(jax.numpy.asarray(x)))
        if not np.allclose(found, wanted, rtol=2e-4, atol=2e-5, equal_nan=True):
            return Outcome(3, f"off by {np.abs(found - wanted).max():.2g}")
        return Outcome(4, "")
    except Exception as error:  # any failure is an outcome of the text
        kind = "" if isinstance(error, rx.errors.RelaxEgError) else f"{type(error).__name__}: "
        return Outcome(stage, kind + " | ".join(str(error).split("\n")[:2])[:300])


def table(rows: dict[tuple[str, str], Outcome]) -> str:
    """Returns the page of the constructs."""
    agree = sum(found.stages == len(STAGES) for found in rows.values())
    others = sum(group != "operators" for group, _ in rows)
    lines = [
        "# Constructs of Relax's text",
        "",
        "`python -m benchmarks.script --table docs/constructs.md` writes this page. A construct *agrees* if a text",
        "with it reads, prints, reads back, is optimized, and gives what the reference interpreter gives.",
        f"{len(rows)} constructs, of which {agree} agree. {others} are no operators: what Relax's tests of its",
        "parser, building and running executables, lambda lifting, closures, recursion, branches, shape lowering and",
        "packed calls are about. Where one does not agree, the outcome says why.",
        "",
        "| part | construct | outcome |",
        "|---|---|---|",
    ]
    for (group, name), found in rows.items():
        reached = STAGES[found.stages - 1] if found.stages else "is not read"
        why = f": {found.problem}".replace("|", "/") if found.problem else ""
        lines.append(f"| {group} | {name} | {reached}{why} |")
    return "\n".join(lines) + "\n"


def main(quick: Quick = False, table_file: Annotated[Path | None, typer.Option("--table")] = None) -> None:
    register()
    counted: Counter[int] = Counter()
    rows: dict[tuple[str, str], Outcome] = {}
    chosen = texts()
    chosen = chosen[:: len(chosen) // QUICK] if quick else chosen
    started = time.perf_counter()
    with without_checks():
        for i, (constructs, form) in enumerate(chosen):
            with contextlib.redirect_stdout(io.StringIO()):  # what R.print prints
                found = outcome(text_of(constructs, form))
            counted[found.stages] += 1
            if len(constructs) == 1:
                rows[constructs[0].group, constructs[0].name] = found
            if found.stages < len(STAGES):
                names = ", ".join(c.name for c in constructs)
                print(f"{form}: {names}: {found.problem}", flush=True)
            if (i + 1) % 50 == 0:
                print(f"{i + 1} of {len(chosen)} texts, {time.perf_counter() - started:.0f} s", flush=True)
    for k, stage in enumerate(STAGES, 1):
        passed = sum(n for s, n in counted.items() if s >= k)
        print(f"{stage:12} {passed:4} of {len(chosen)}, {passed / len(chosen):6.1%}")
    if table_file is not None and not quick:  # a part is no table
        table_file.write_text(table(rows))


if __name__ == "__main__":
    typer.run(main)
