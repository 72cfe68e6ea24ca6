"""Laws: whether a program reaches the least arithmetic, and the least predicted time, however it is spelled.

    python -m benchmarks.laws [--programs 200] [--seed 0] [--kind everyday] [--json laws.json] [--quick]
    python -m benchmarks.laws --ablate [--programs 20]

Two generators: *everyday* matrix programs (products, sums, transposes, traces, diagonals, row sums, outer products,
scales) and *random* sums of products over indices (batch axes, repeated indices, identity matrices, common factors; up
to 3 terms of up to 5 tensors). Each program is spelled in three ways: with matrix operators, with einsum, and with
broadcast products, masks and sums.

The reference searches all contraction orders, all common factors of any group of terms and all groupings of terms,
without the project's planner; what occurs twice is paid once. A program is found where its flops are at most those of
the reference. For the predicted time of a call the reference is the best that any of the three spellings reaches.
Flops are those of float arithmetic; comparisons of positions are free.

`--ablate` leaves out one mechanism at a time and tells what share is still found at the least flops.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import relax_eg as rx
from benchmarks import Quick
from benchmarks.laws_reference import Factor, Letters, Reference, Term, canonical
from relax_eg.dtypes import is_float
from relax_eg.extract.costs.cost_model import NodeCost
from relax_eg.ops import counts

SIZES = {"n": 96, "m": 32, "p": 8}  # the sizes that letters have, by name
SPELLINGS = ("matrix", "einsum", "broadcast")
NEAR = 1.05  # of the least predicted time
SAME = 1.01  # of each other: two spellings that are priced alike
QUICK_PROGRAMS = 3
MOST_FACTORS = 5  # of a term
MOST_TERMS = 4  # of a program


class Flops:
    """A cost model of float arithmetic alone."""

    def price(self, site: Any, result: Any, sizes: Mapping[str, int]) -> NodeCost:
        if not is_float(result.dtype):
            return NodeCost()
        flops = counts(site).flops.evaluate(sizes)
        return NodeCost(flops=flops, seconds=float(flops))


# --- programs ---


@dataclass(frozen=True, eq=False)
class Node:
    """A value of a program.

    - `sizes`: the name of the size of each axis.
    - `tensor`: the name of an input; "eye" is the identity matrix.
    - `factors`, `letters`: a product of values at letters, summed over the letters that are not in `out`.
    - `parts`: a sum of values with signs.
    """

    sizes: Letters
    tensor: str = ""
    factors: tuple[Node, ...] = ()
    letters: tuple[Letters, ...] = ()
    out: Letters = ()
    parts: tuple[tuple[int, Node], ...] = ()


def product(out: str, *factors: tuple[Node, str]) -> Node:
    """The product of the factors, each at its letters, summed over the letters that are not in `out`."""
    size = {x: s for f, at in factors for x, s in zip(at, f.sizes, strict=True)}
    return Node(tuple(size[x] for x in out), "", tuple(f for f, _ in factors), tuple(tuple(a) for _, a in factors),
                tuple(out))  # fmt: skip


def total(*parts: tuple[int, Node]) -> Node:
    return Node(parts[0][1].sizes, parts=parts)


@dataclass
class Everyday:
    """Draws programs as people write them with matrices."""

    rng: np.random.Generator
    inputs: dict[str, Node] = field(default_factory=dict[str, Node])

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def size(self) -> str:
        return self.pick(*SIZES)

    def tensor(self, *sizes: str) -> Node:
        """An input of these sizes: one that is there already as often as not."""
        known = [n for n in self.inputs.values() if n.sizes == sizes]
        if known and self.rng.random() < 0.5:
            return self.pick(*known)
        name = f"x{len(self.inputs)}"
        self.inputs[name] = Node(sizes, name)
        return self.inputs[name]

    def matrix(self, i: str, j: str, depth: int) -> Node:
        if depth <= 0:
            return self.tensor(i, j)
        k, less = self.size(), depth - 1
        made: list[Callable[[], Node]] = [
            lambda: product("ij", (self.matrix(i, k, less), "ik"), (self.matrix(k, j, less - 1), "kj")),
            lambda: product("ij", (self.matrix(i, k, less), "ik"), (self.matrix(k, j, less - 1), "kj")),
            lambda: total((1, self.matrix(i, j, less)), (self.pick(1, -1), self.matrix(i, j, less - 1))),
            lambda: product("ij", (self.matrix(j, i, less), "ji")),
            lambda: product("ij", (self.vector(i, less - 1), "i"), (self.matrix(i, j, less), "ij")),
            lambda: product("ij", (self.vector(i, less - 1), "i"), (self.vector(j, less - 1), "j")),
        ]
        if i == j:
            made.append(lambda: total((1, self.matrix(i, i, less)), (1, Node((i, i), "eye"))))
        return self.pick(*made)()

    def vector(self, i: str, depth: int) -> Node:
        if depth <= 0:
            return self.tensor(i)
        k, less = self.size(), depth - 1
        return self.pick(
            lambda: product("i", (self.matrix(i, k, less), "ik"), (self.vector(k, less - 1), "k")),
            lambda: product("i", (self.matrix(i, k, less), "ik"), (self.vector(k, less - 1), "k")),
            lambda: product("i", (self.matrix(i, k, less), "ik")),
            lambda: product("i", (self.matrix(i, i, less), "ii")),
            lambda: total((1, self.vector(i, less)), (self.pick(1, -1), self.vector(i, less - 1))),
            lambda: product("i", (self.vector(i, less), "i"), (self.vector(i, less - 1), "i")),
        )()

    def program(self) -> Node:
        i, j, depth = self.size(), self.size(), int(self.rng.integers(2, 4))
        return self.pick(
            lambda: self.matrix(i, j, depth),
            lambda: self.vector(i, depth),
            lambda: product("", (self.matrix(i, i, depth), "ii")),
            lambda: product("", (self.matrix(i, j, depth), "ij")),
            lambda: product("", (self.vector(i, depth), "i"), (self.vector(i, depth - 1), "i")),
        )()


@dataclass
class Indexed:
    """Draws sums of products over indices."""

    rng: np.random.Generator
    inputs: dict[str, Node] = field(default_factory=dict[str, Node])

    def program(self) -> Node:
        size = {x: str(self.rng.choice(list(SIZES))) for x in "abcdef"}
        tensors = []
        for i in range(int(self.rng.integers(2, 6))):
            rank = int(self.rng.integers(1, 4))
            letters = "".join(self.rng.choice(list("abcdef"), rank, replace=bool(self.rng.random() < 0.15)))
            name = f"x{i}"
            self.inputs[name] = Node(tuple(size[x] for x in letters), name)
            tensors.append((self.inputs[name], letters))
        terms: list[tuple[int, Node]] = []
        out = ""
        for i in range(int(self.rng.integers(1, 4))):
            count = int(self.rng.integers(1, len(tensors) + 1))
            chosen = [tensors[int(j)] for j in self.rng.choice(len(tensors), count, replace=False)]
            if self.rng.random() < 0.2:
                x = str(self.rng.choice(list(chosen[0][1])))
                chosen.append(
                    (Node((size[x], size[x]), "eye"), x + str(self.rng.choice([y for y in size if size[y] == size[x]])))
                )
            there = sorted({x for _, at in chosen for x in at})
            if i == 0:
                kept = self.rng.choice(there, min(len(there), int(self.rng.integers(0, 3))), replace=False)
                out = "".join(kept)
            if set(out) <= set(there):
                terms.append((int(self.rng.choice([1, 1, -1])), product(out, *chosen)))
        if not terms:
            return self.program()
        return terms[0][1] if len(terms) == 1 and terms[0][0] == 1 else total(*terms)


# --- spellings ---


def spelled(node: Node, style: str, inputs: Mapping[str, Any], size: Mapping[str, Any]) -> Any:
    """The value of a program, written in one style with jax.numpy."""
    if node.tensor == "eye":
        n = size[node.sizes[0]]
        if style == "broadcast":
            return (jnp.arange(n)[:, None] == jnp.arange(n)[None, :]).astype("float32")
        return jnp.eye(n)
    if node.tensor:
        return inputs[node.tensor]
    if node.parts:
        value = None
        for sign, part in node.parts:
            x = spelled(part, style, inputs, size)
            value = (x if sign > 0 else -x) if value is None else value + x if sign > 0 else value - x
        return value
    values = [spelled(f, style, inputs, size) for f in node.factors]
    if style == "einsum":
        return jnp.einsum(f"{','.join(map(''.join, node.letters))}->{''.join(node.out)}", *values)
    if style == "broadcast":
        return _broadcast(values, node.letters, node.out)
    return _matrix(values, node.letters, node.out)


def _broadcast(values: Sequence[Any], letters: Sequence[Letters], out: Letters) -> Any:
    order = [*out, *sorted({x for at in letters for x in at} - set(out))]
    found: Any = None
    for v, at in zip(values, letters, strict=True):
        v, at = _distinct(v, at)
        v = jnp.transpose(v, sorted(range(len(at)), key=lambda i: order.index(at[i])))
        v = jnp.expand_dims(v, [i for i, x in enumerate(order) if x not in at])
        found = v if found is None else found * v
    return jnp.sum(found, tuple(range(len(out), len(order)))) if len(order) > len(out) else found


def _distinct(v: Any, at: Letters) -> tuple[Any, Letters]:
    """A value at letters that differ: diagonals are taken."""
    while len(set(at)) < len(at):
        second = next(i for i, x in enumerate(at) if x in at[:i])
        first = at.index(at[second])
        v = jnp.diagonal(v, axis1=first, axis2=second)
        at = (*(x for i, x in enumerate(at) if i not in (first, second)), at[first])
    return v, at


def _matrix(values: Sequence[Any], letters: Sequence[Letters], out: Letters) -> Any:
    """Factor by factor, with @ where two factors share a letter that nothing else has."""
    rest = list(zip(values, letters, strict=True))
    v, at = _distinct(*rest.pop(0))
    while True:
        needed = {*out, *(x for _, other in rest for x in other)}
        gone = [i for i, x in enumerate(at) if x not in needed]
        if gone:
            v, at = jnp.sum(v, tuple(gone)), tuple(x for x in at if x in needed)
        if not rest:
            return jnp.transpose(v, [at.index(x) for x in out]) if len(out) > 1 else v
        w, other = _distinct(*rest.pop(0))
        needed = {*out, *(x for _, more in rest for x in more)}
        summed = [x for x in at if x in other and x not in needed]
        shared = [x for x in at if x in other and x in needed]
        if len(summed) == 1 and not shared and len(at) <= 2 and len(other) <= 2:
            (k,) = summed
            v = v.T if at[-1] != k else v
            w = w.T if other[0] != k else w
            v, at = v @ w, (*(x for x in at if x != k), *(x for x in other if x != k))
        else:
            order = tuple(dict.fromkeys((*at, *other)))
            v, at = _broadcast((v, w), (at, other), order), order


# --- the reference ---


def terms_of(node: Node, at: Letters, fresh: Iterator[str]) -> list[Term]:
    """The terms of a program at these letters, without identity matrices."""
    if node.tensor:
        return [(1, ((node.tensor, at),))]
    if node.parts:
        return [(s * t, f) for s, p in node.parts for t, f in terms_of(p, at, fresh)]
    names = dict(zip(node.out, at, strict=True))
    for x in {x for letters in node.letters for x in letters} - set(names):
        names[x] = next(fresh)
    found: list[Term] = [(1, ())]
    for f, letters in zip(node.factors, node.letters, strict=True):
        inner = terms_of(f, tuple(names[x] for x in letters), fresh)
        # Letters summed inside a factor are new for each product that the factor is in.
        found = [(s * t, (*a, *_renewed(b, {*names.values(), *at}, fresh))) for s, a in found for t, b in inner]
    return found


def _renewed(factors: tuple[Factor, ...], outer: set[str], fresh: Iterator[str]) -> tuple[Factor, ...]:
    names: dict[str, str] = {}
    return tuple((n, tuple(x if x in outer else names.setdefault(x, next(fresh)) for x in at)) for n, at in factors)


def collected(terms: Sequence[Term], out: Letters) -> list[Term]:
    """The terms with identity matrices removed, and equal terms added up; terms with a coefficient other than 0, 1 and
    -1 are returned as they are."""
    found: dict[Any, tuple[int, tuple[Factor, ...]]] = {}
    for sign, factors in terms:
        made = _without_eyes(factors, out)
        key = canonical(made, out)
        found[key] = (found.get(key, (0, made))[0] + sign, made)
    return [t for t in found.values() if t[0]]


def _without_eyes(factors: tuple[Factor, ...], out: Letters) -> tuple[Factor, ...]:
    rest = list(factors)
    for f in [f for f in rest if f[0] == "eye"]:
        _, (a, b) = rest[rest.index(f)] if f in rest else f
        keep, gone = (a, b) if b not in out else (b, a)
        if gone in out or not any(keep in at or gone in at for n, at in rest if (n, at) != f) or a == b:
            continue
        rest.remove(f)
        rest = [(n, tuple(keep if x == gone else x for x in at)) for n, at in rest]
        return _without_eyes(tuple(rest), out)
    return tuple(rest)


# --- the benchmark ---

# By what it does, the rules of a mechanism.
MECHANISMS: dict[str, rx.RuleSet] = {
    "sums of products": rx.rules.sum_products,
    "sums in semirings": rx.rules.semirings,
    "shorter terms": rx.rules.pointwise,
    "index maps": rx.rules.index_maps,
    "reductions": rx.rules.reductions,
    "operands without broadcasts": rx.rules.broadcasts,
}


@dataclass(frozen=True)
class Result:
    """What one program reaches.

    - `least`: flops of the reference.
    - `flops`: by spelling, flops of the program chosen by flops.
    - `seconds`: by spelling, predicted seconds of a call of the program chosen by time.
    """

    name: str
    least: float
    flops: dict[str, float]
    seconds: dict[str, float]


def drawn(kind: str, seed: int) -> tuple[Node, dict[str, Node], list[Term]]:
    """A program of a kind, with its inputs and its terms, within the limits on these."""
    rng = np.random.default_rng([seed, kind == "random"])
    while True:
        make = Indexed(rng) if kind == "random" else Everyday(rng)
        node = make.program()
        out = tuple(f"o{i}" for i in range(len(node.sizes)))
        fresh = (f"s{i}" for i in itertools.count())
        terms = collected(terms_of(node, out, fresh), out)
        used = {n for _, fs in terms for n, _ in fs if n != "eye"}
        if (
            0 < len(terms) <= MOST_TERMS
            and all(abs(c) == 1 and 0 < len(fs) <= MOST_FACTORS and "eye" not in [n for n, _ in fs] for c, fs in terms)
            and used == set(make.inputs)
            and max(len(fs) for _, fs in terms) + len(terms) > 2
        ):
            return node, make.inputs, terms


def reference_of(node: Node, inputs: Mapping[str, Node], terms: Sequence[Term]) -> float:
    """The least flops of a program."""
    extent: dict[str, int] = {}
    for _, factors in terms:
        for name, at in factors:
            extent |= {x: SIZES[s] for x, s in zip(at, inputs[name].sizes, strict=True)}
    out = tuple(f"o{i}" for i in range(len(node.sizes)))
    extent |= {x: SIZES[s] for x, s in zip(out, node.sizes, strict=True)}
    return Reference(extent).least(terms, out)


def spellings(kind: str, seed: int) -> tuple[float, dict[str, Callable[..., Any]]]:
    """The least flops of one program; and by spelling, what optimizes it with some options and returns the report."""
    node, inputs, terms = drawn(kind, seed)
    names = list(inputs)
    specs = [rx.Tensor(" ".join(inputs[n].sizes)) for n in names]
    at = {s: SIZES[s] for n in names for s in inputs[n].sizes}

    def optimized(style: str, **options: Any) -> Any:
        with rx.debug.options(cache=False, least_gain=1):  # what the rules reach, be it a percent
            return rx.optimize(_function(node, style, names, inputs), *specs, at=at, **options).report

    return reference_of(node, inputs, terms), {s: functools.partial(optimized, s) for s in SPELLINGS}


def found_without(left_out: rx.RuleSet | None, kind: str, seed: int) -> float:
    """The share of the spellings of one program that are found at the least flops without some rules."""
    rules = rx.rules.default if left_out is None else rx.rules.default - left_out
    least, by_spelling = spellings(kind, seed)
    return _share(f(target=Flops(), rules=rules).after.flops <= least * 1.001 for f in by_spelling.values())


def ablation(kinds: Sequence[str], seed: int, count: int, console: Console) -> Table:
    """What share of programs is found at the least flops without one mechanism, without all, and with all."""
    table = Table("left out", title="Found at the least flops")
    for k in kinds:
        table.add_column(k, justify="right")
    every = rx.RuleSet("every")
    for rules in MECHANISMS.values():
        every = every + rules
    rows = {"nothing": None, **MECHANISMS, "all of these": every}
    for name, rules in track(rows.items(), console=console, transient=True):
        shares = [np.mean([found_without(rules, k, seed + i) for i in range(count)]) for k in kinds]
        table.add_row(name, *(f"{s:.0%}" for s in shares))
    return table


def measured(kind: str, seed: int) -> Result:
    """One program in all spellings, by flops and by predicted time."""
    least, by_spelling = spellings(kind, seed)
    flops = {s: f(target=Flops()).after.flops for s, f in by_spelling.items()}
    seconds = {s: f(target="cpu").after.call for s, f in by_spelling.items()}
    return Result(f"{kind} {seed}", least, flops, seconds)


def _function(node: Node, style: str, names: Sequence[str], inputs: Mapping[str, Node]) -> Callable[..., Any]:
    def program(*args: Any) -> Any:
        size = {
            s: n for name, x in zip(names, args, strict=True) for s, n in zip(inputs[name].sizes, x.shape, strict=True)
        }
        return spelled(node, style, dict(zip(names, args, strict=True)), size)

    return program


def shares(results: Sequence[Result]) -> dict[str, float]:
    """The shares of spellings at the least flops and near the least time, and of pairs of spellings priced alike."""
    every = [(r, s) for r in results for s in SPELLINGS]
    pairs = [(r, a, b) for r in results for a, b in itertools.combinations(SPELLINGS, 2)]
    return {
        "at the least flops": _share(r.flops[s] <= r.least * 1.001 for r, s in every),
        "near the least time": _share(r.seconds[s] <= NEAR * min(r.seconds.values()) for r, s in every),
        "spellings with equal flops": _share(_alike(r.flops[a], r.flops[b]) for r, a, b in pairs),
        "spellings priced alike": _share(_alike(r.seconds[a], r.seconds[b]) for r, a, b in pairs),
    }


def _alike(a: float, b: float) -> bool:
    return max(a, b) <= SAME * min(a, b)


def _share(found: Iterator[bool]) -> float:
    every = list(found)
    return sum(every) / len(every)


def main(
    programs: Annotated[int, typer.Option(help="Programs of each kind.")] = 100,
    seed: Annotated[int, typer.Option(help="Number of the first program.")] = 0,
    kind: Annotated[str, typer.Option(help='Only this kind: "everyday" or "random".')] = "",
    json_path: Annotated[Path | None, typer.Option("--json", help="File for the results.")] = None,
    ablate: Annotated[bool, typer.Option("--ablate", help="Leave out one mechanism at a time.")] = False,
    quick: Quick = False,
) -> None:
    """Prints what share of programs reaches the least flops and the least predicted time, and the programs missed."""
    console = Console()
    kinds = [kind] if kind else ["everyday", "random"]
    count = QUICK_PROGRAMS if quick else programs
    if ablate:
        console.print(ablation(kinds, seed, count, console))
        return
    table = Table("", title="Shares of programs")
    found: dict[str, list[Result]] = {}
    for k in kinds:
        found[k] = [measured(k, seed + i) for i in track(range(count), k, console=console, transient=True)]
        table.add_column(k, justify="right")
    figures = {k: shares(r) for k, r in found.items()}
    for name in figures[kinds[0]]:
        table.add_row(name, *(f"{figures[k][name]:.0%}" for k in kinds))
    console.print(table)
    for r in itertools.chain.from_iterable(found.values()):
        if worst := [f"{s} {r.flops[s] / r.least:.2f}" for s in SPELLINGS if r.flops[s] > r.least * 1.001]:
            console.print(f"{r.name}: flops over the least: {', '.join(worst)}", highlight=False)
    if json_path is not None:
        json_path.write_text(json.dumps({k: [asdict(x) for x in r] for k, r in found.items()}))


if __name__ == "__main__":
    typer.run(main)
