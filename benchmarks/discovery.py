"""Whether `rx.discover`, from nothing, finds the laws of the books again, and whether what it finds is sound.

    python -m benchmarks.discovery [--family lattices,sums] [--jobs 2] [--random 2000] [--save found]
                                   [--resume]

For each family of operators: the laws found, those of the books whose operators are in the grammar (proved, at most
five operators a side), and how many of these follow from the found ones by equality saturation; at the end, from those
of all families together. `--random N` evaluates the sides of every found law at N random instances, apart from the
checker, and counts differences. `--resume` takes the families that are in the folder of `--save` from there.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

import relax_eg as rx
from benchmarks import Quick
from benchmarks.minimality import BOOKS
from benchmarks.random_instances import differences
from relax_eg.discovery.result import Discovery, FoundLaw
from relax_eg.discovery.sifting import reached
from relax_eg.egraph import Budget
from relax_eg.ir.expr import CONSTANT, VAR, Expr, constant_value, postorder
from relax_eg.ops.facts import facts_named
from relax_eg.rules import Instance, Rule, RuleSet
from relax_eg.rules.checking.certificates import status
from relax_eg.rules.rule import instances
from relax_eg.shapes import parse_signature

LARGEST = 5  # operators of a side of a law that is looked for
AXES = 3  # of an operand of a law that is looked for; terms have no more
TERMS = 100_000  # of one size
BUDGET = Budget(nodes=8000, seconds=60, growth=math.inf)
TOLERANCE = 1e-9  # of float64 values, relative to the largest of both sides


@dataclass(frozen=True)
class Family:
    """A grammar: arguments of `discover`."""

    operators: str
    variables: str
    size: int
    constants: Sequence[float] = ()
    facts: str = ""
    numerics: rx.rules.Numerics = "reassociate"


FAMILIES = {
    "arithmetic": Family("add | subtract | multiply | negative", "x: *b, y: *b", 2, (0, 1)),
    "distribution": Family("add | subtract | multiply", "x: *b, y: *b", 3),
    "integers": Family("add | multiply", "x: *b @ int32, y: *b @ int32", 2, (0, 1)),
    "quotients": Family("multiply | divide", "x: *b, y: *b", 2, (1,), "nonzero finite"),
    "lattices": Family("maximum | minimum | negative", "x: *b, y: *b, z: *b", 2),
    "exponentials": Family("exp | log | multiply | add", "x: *b, y: *b", 3, (), "positive"),
    "activations": Family("log1p | expm1 | tanh | sigmoid | silu | negative | multiply", "x: *b", 2),
    "powers": Family("power | multiply | add", "x: *b, y: *b", 3, (), "positive", "approximate"),
    "logarithms": Family("power | multiply | log", "x: *b, y: *b", 2, (), "positive"),
    "magnitudes": Family("abs | multiply | integer_pow(y=2) | maximum | relu", "x: *b, y: *b", 3, (0,)),
    "choices": Family("where | add", "c: *b @ bool, x: *b, y: *b", 3),
    "conditions": Family(
        "where | logical_and | logical_or | logical_not", "c: *b @ bool, d: *b @ bool, e: *b @ bool, x: *b, y: *b", 2
    ),
    "truth": Family("any(axes=(1,)) | all(axes=(1,)) | logical_not | logical_or", "c: m n @ bool, d: m n @ bool", 3),
    "sums": Family("sum(axes=(1,)) | add | subtract", "a: m n", 3),
    "scaled sums": Family("sum(axes=(1,)) | multiply", "a: m n, s:", 2),
    "extremes": Family("max(axes=(1,)) | min(axes=(1,)) | negative", "a: m n", 3),
    "ones": Family("sum(axes=(1,)) | max(axes=(1,)) | min(axes=(1,)) | squeeze(axes=(1,))", "x: m 1", 1),
    "normalisations": Family(
        "softmax(axis=1) | log_softmax(axis=1) | layer_norm(axes=(1,)) | exp | log | add | subtract",
        "x: m n, s: m 1", 2,
    ),
    "chains": Family("matmul", "a: m k, b: k n, w: n p, v: n, u: m", 2),
    "factors on the right": Family("matmul | add | subtract", "a: m k, c: m k, b: k n", 3),
    "factors on the left": Family("matmul | add | subtract", "a: m k, b: k n, d: k n", 3),
    "scaled products": Family("matmul | multiply", "a: m k, b: k n, s:, r: m 1", 2),
    "outer products": Family("matmul | multiply", "a: m 1, c: 1 n", 1),
    "transposes": Family(
        "permute_dims(axes=(0,1)) | permute_dims(axes=(1,0)) | matmul | multiply | sum(axes=(0,)) | sum(axes=(1,))",
        "a: m k, b: k n", 3,
    ),
    "sums of products": Family("matmul | sum(axes=(0,)) | sum(axes=(1,)) | sum(axes=(0,1))", "a: m k, b: k n", 3),
    "layouts": Family("matmul | linear | permute_dims(axes=(1,0))", "x: m k, w: n k", 2),
    "matrices": Family(
        "matmul | multiply | permute_dims(axes=(1,0)) | sum(axes=(0,)) | sum(axes=(1,),keepdims=True)",
        "d: n n, a: n p, c: p n", 2, (), "symmetric, diagonal",
    ),
    "joints": Family("concat(axis=0) | strided_slice | sum(axes=(1,))", "x: m n, y: k n", 3),
    "joined elements": Family("concat(axis=0) | add | multiply | relu", "x: m n, y: k n, s:", 3),
    "reshapes": Family("reshape", "x: m n", 2),
    "broadcasts": Family("broadcast_to | add | multiply | where", "c: m n @ bool, x: m n, y: n, r: m 1, s:", 2),
    "sorting": Family("sort(axis=1) | max(axes=(1,)) | min(axes=(1,)) | flip(axes=(1,)) | negative", "x: m n", 3),
    "running sums": Family(
        "cumsum(axis=1) | cumsum(axis=1,reverse=True) | flip(axes=(1,)) | sum(axes=(1,)) | add", "x: m n", 3
    ),
    "running extremes": Family(
        "cummax(axis=1) | cummin(axis=1) | cummax(axis=1,reverse=True) | max(axes=(1,)) | flip(axes=(1,)) | negative",
        "x: m n", 3,
    ),
    "running products": Family(
        "cumprod(axis=1) | cumsum(axis=1) | prod(axes=(1,)) | sum(axes=(1,)) | exp | log", "x: m n", 3, (), "positive",
        "approximate",
    ),
    "rounding": Family("floor | ceil | round | negative | abs", "x: *b", 3),
    "comparisons": Family("less | less_equal | logical_not | maximum | minimum | where", "x: *b, y: *b", 2),
    "flips": Family(
        "flip(axes=(0,)) | flip(axes=(1,)) | permute_dims(axes=(1,0)) | sum(axes=(1,)) | max(axes=(1,)) | add",
        "x: m n, y: m n", 2,
    ),
    "triangles": Family("triu(k=0) | tril(k=0) | multiply | permute_dims(axes=(1,0))", "a: n n, b: n n", 2),
    "places": Family("argmax(axis=1) | argmin(axis=1) | negative | exp | sort(axis=1)", "x: m n", 2),
    "TASO": Family(
        "add | multiply | matmul | relu | permute_dims(axes=(1,0)) | concat(axis=0) | concat(axis=1) | "
        "strided_slice(begin=(0,0),end=(n,n),strides=(1,1)) | strided_slice(begin=(n,0),end=(2*n,n),strides=(1,1)) | "
        "strided_slice(begin=(0,n),end=(n,2*n),strides=(1,1))", "a: n n, b: n n, s:", 2,
    ),
}  # fmt: skip
QUICK = "magnitudes"


def found_in(f: Family, jobs: int, quick: bool) -> Discovery:
    return rx.discover(
        f.operators, f.variables, 1 if quick else f.size, facts=f.facts, constants=tuple(f.constants),
        numerics=f.numerics, jobs=jobs, terms=TERMS,
    )  # fmt: skip


def read_found(file: Path) -> tuple[Discovery, float]:
    """Returns a result on file, and the processor time that it took."""
    data = json.loads(file.read_text())
    laws, failed = (tuple(FoundLaw(**{**x, "when": tuple(x["when"])}) for x in data[k]) for k in ("laws", "failed"))
    found = Discovery(data["asked"], data["numerics"], laws, failed, data["followed"], (), data["stopped"])
    return found, data["seconds"]


def laws_within(f: Family) -> list[tuple[Rule, Instance]]:
    """Returns the laws of the books whose operators, dtypes, constants, sizes and facts are in the grammar, over
    operands of at most `AXES` axes, each with its first instance."""
    dtypes = {spec.dtype or "float32" for spec in parse_signature(f.variables).values()}
    names = {part.partition("(")[0].strip() for part in f.operators.split("|")}
    facts = {*facts_named(f.facts)} if f.facts else set[str]()
    found: list[tuple[Rule, Instance]] = []
    for book in BOOKS.values():
        for rule in book:
            instance = next(iter(instances(rule, limit=1)), None)
            if rule.reverse or instance is None or rule.library is not None or not rule.required_facts <= facts:
                continue
            if rule.sizes:  # terms have the sizes of their variables only
                continue
            if not {p.dtype for p in instance.params} <= dtypes or any(len(p.shape) > AXES for p in instance.params):
                continue
            if all(_is_within(side, names, f.constants) for side in (instance.left, instance.right)):
                found.append((rule, instance))
    return found


def _is_within(side: Sequence[Expr], names: set[str], constants: Sequence[float]) -> bool:
    nodes = postorder(side)
    is_filled = {e for e in nodes if e.op == "full" and all(a.op == CONSTANT for a in e.args)}
    operators = [e for e in nodes if e.op not in (VAR, CONSTANT) and e not in is_filled]
    # Terms join two operands; the book joins three too.
    if len(side) > 1 or any(e.op not in names or (e.op == "concat" and len(e.args) > 2) for e in operators):
        return False
    numbers = [constant_value(e) for e in nodes if e.op == CONSTANT]
    return all(n.ndim == 0 and n.item() in constants for n in numbers) and len(operators) <= LARGEST


def processor_seconds() -> float:
    """Returns the processor time of this process and of those that it has ended: other programs do not count."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def proved(rules: Sequence[Rule]) -> set[str]:
    return {r.name for r in rules if status(r).holds_everywhere}


def main(
    family: Annotated[str, typer.Option("--family", help="families, comma-separated")] = "",
    jobs: Annotated[int, typer.Option("--jobs", help="processes that prove")] = 0,
    random: Annotated[int, typer.Option("--random", help="random instances of each found law")] = 0,
    save: Annotated[str, typer.Option("--save", help="a folder for the files of rules and the reports")] = "",
    resume: Annotated[bool, typer.Option("--resume", help="take what is in the folder of --save from there")] = False,
    quick: Quick = False,
) -> None:
    asked: dict[str, Instance] = {}
    missing: set[str] = set()
    union: list[Rule] = []
    laws = 0
    seconds_of_all = 0.0
    chosen = [QUICK] if quick else [n.strip() for n in family.split(",")] if family else list(FAMILIES)
    for name in chosen:
        f = FAMILIES[name]
        started = processor_seconds()
        file = Path(save, f"{name.replace(' ', '_')}.json")
        if resume and file.is_file():
            found, seconds = read_found(file)
        else:
            found = found_in(f, 1 if quick else jobs or os.cpu_count() or 1, quick)
            seconds = processor_seconds() - started
        within = laws_within(f)
        known = proved([r for r, _ in within if r.name not in asked])
        own = {r.name: i for r, i in within if r.name in asked or r.name in known}
        lost = {
            n for n, i in own.items() if (n in missing or n not in asked) and not reached(i, found.equations, BUDGET)
        }
        missing = (missing - own.keys()) | lost
        asked |= own
        print(
            f"{name}: {len(found.laws)} laws, {found.followed:,} follow, {len(found.unknown)} unknown, "
            f"{seconds:.0f} s of processor time; "
            f"{len(own) - len(lost)} of {len(own)} laws of the books follow {found.stopped}".rstrip(),
            flush=True,
        )
        laws, seconds_of_all = laws + len(found.laws), seconds_of_all + seconds
        if random or quick:
            tried, wrong = differences(found.rules, random or 20)
            print(f"  {tried:,} random instances, {len(wrong)} laws differ", *wrong, sep="\n  ", flush=True)
        if save:
            file.parent.mkdir(parents=True, exist_ok=True)
            found.save(file.with_suffix(".py"))
            found = replace(found, seconds=seconds)
            found.to_json(file)
        union += [replace(r, name=f"{name}: {r.name}") for r in found.equations]
    missing = {n for n in missing if not reached(asked[n], RuleSet("found", union), BUDGET)}
    count = f"{len(asked) - len(missing)} of {len(asked)}"
    print(f"all: {count} laws of the books follow; {laws} laws found in {seconds_of_all:.0f} s of processor time")
    for name in sorted(missing):
        print(f"  missing: {name}")


if __name__ == "__main__":
    typer.run(main)
