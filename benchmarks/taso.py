"""How many of TASO's substitutions follow from the rules that ship.

    python -m benchmarks.taso [--file rules.txt] [--found found] [--every 10] [--only conv2d] [--no-search]
                              [--json taso.json] [--quick]

`--file`: substitutions with one result as Tensat writes those that TASO generated (Jia et al., SOSP 2019; Yang et al.,
MLSys 2021): a line each, `(matmul (matmul ?input_1 ?input_4) ?input_5)=>(matmul ?input_1 (matmul ?input_4 ?input_5))`.
The file is not part of this repository. Inputs 1 to 3 are matrices, 4 to 6 square ones, 7 to 9 images, 10 to 12 and 19
kernels of 3 x 3, 13 to 15 of 1 x 3, 16 to 18 of 3 x 1, and 20 is a number. All sizes but those of kernels are size
variables. Without a file: a few laws in this notation.

A substitution *follows* if the rules, read as equations, lead from one side to the other by equality saturation; or
else, if a program that returns both sides, searched with all that ships, computes one value for both (not with
`--no-search`). `--found`: the laws of a folder that `python -m benchmarks.discovery --save found` has written are used
besides. Before that both sides are evaluated at random arguments; where they differ, the line says something else than
TASO meant, and is told apart.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from jax import lax

import relax_eg as rx
from benchmarks import Quick
from benchmarks.least_laws import Laws, equations_at
from relax_eg.discovery.sifting import all_reached
from relax_eg.egraph import Budget
from relax_eg.errors import RelaxEgError
from relax_eg.ir.expr import postorder
from relax_eg.rules import Rule, RuleSet
from relax_eg.rules.rule import instances

EXAMPLES = """
(matmul (matmul ?input_1 ?input_4) ?input_5)=>(matmul ?input_1 (matmul ?input_4 ?input_5))
(concat 1 (matmul ?input_1 ?input_4) (matmul ?input_1 ?input_5))=>(matmul ?input_1 (concat 1 ?input_4 ?input_5))
(relu (transpose ?input_1))=>(transpose (relu ?input_1))
(conv2d 1 1 0 0 ?input_7 (ewadd ?input_10 ?input_11))=>(ewadd (conv2d 1 1 0 0 ?input_7 ?input_10) (conv2d 1 1 0 0 ?input_7 ?input_11))
"""  # noqa: E501
QUICK_RULES = 2
# of the first question; nodes end it, so that the clock decides nothing
BUDGET = Budget(nodes=8000, seconds=60, growth=math.inf)
SIZES = {"m": 48, "n": 64, "b": 4, "c": 16, "h": 12, "w": 20}  # for prices
SMALL = {"m": 3, "n": 4, "b": 2, "c": 3, "h": 5, "w": 4}  # for evaluation
TOLERANCE = 1e-3  # of float32 values, relative to the largest
KERNELS = {**dict.fromkeys((10, 11, 12, 19), "c c 3 3"), **dict.fromkeys((13, 14, 15), "c c 1 3"),
           **dict.fromkeys((16, 17, 18), "c c 3 1")}  # fmt: skip
SPECS = {**dict.fromkeys((1, 2, 3), "m n"), **dict.fromkeys((4, 5, 6), "n n"), **dict.fromkeys((7, 8, 9), "b c h w"),
         **KERNELS, 20: ""}  # fmt: skip
RELU = "2"  # given: TASO's number of this activation; 0 is none
SAME = "0"  # given: TASO's number of this padding

Term = Any  # a text, or a list of terms


@dataclass(frozen=True)
class Answer:
    """What became of a substitution: "follows", "does not follow", "differs" at random arguments, or an error."""

    rule: str
    outcome: str


def read_term(text: str) -> Term:
    """Returns a term as nested lists of words."""
    stack: list[list[Term]] = [[]]
    for word in re.findall(r"[()]|[^\s()]+", text):
        if word == "(":
            stack.append([])
        elif word == ")":
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(word)
    (only,) = stack[0]
    return only[0] if isinstance(only, list) and len(only) == 1 and str(only[0]).startswith("?") else only


def inputs_of(t: Term) -> Iterator[int]:
    if isinstance(t, str):
        if t.startswith("?input_"):
            yield int(t.removeprefix("?input_"))
        return
    for a in t:
        yield from inputs_of(a)


def evaluate(t: Term, given: dict[int, Any]) -> Any:
    """Returns the value of a term, by JAX."""
    if isinstance(t, str):
        return given[int(t.removeprefix("?input_"))] if t.startswith("?") else _constant(t, given)
    name, *rest = t
    words = [a for a in rest if isinstance(a, str) and not a.startswith("?") and a.isdigit()]
    args = [evaluate(a, given) for a in rest if a not in words]
    return OPERATORS[name](words, given, *args)


def _constant(name: str, given: dict[int, Any]) -> Any:
    matrix = next((x for i, x in given.items() if i <= 6), None)
    if name == "Imatmul":
        assert matrix is not None
        return jnp.eye(matrix.shape[1])
    return jnp.ones_like(next(x for i, x in given.items() if i <= 9))


def _conv(words: list[str], given: dict[int, Any], x: Any, k: Any) -> Any:
    around = [(int((n - 1) // 2),) * 2 for n in k.shape[2:]]
    y = lax.conv_general_dilated(x, k, (int(words[0]), int(words[1])), around)
    return jax.nn.relu(y) if words[3] == RELU else y


def _pool(words: list[str], x: Any, start: float, function: Any) -> Any:
    kh, kw, sh, sw, pad = (int(n) for n in words)
    around = [(0, 0), (0, 0), (kh // 2,) * 2, (kw // 2,) * 2]
    assert str(pad) == SAME
    return lax.reduce_window(x, start, function, (1, 1, kh, kw), (1, 1, sh, sw), around)


def _identity_kernel(words: list[str], given: dict[int, Any]) -> Any:
    image = next(x for i, x in given.items() if 7 <= i <= 19)
    eye = jnp.eye(image.shape[1])[:, :, None, None]
    return _enlarged(words, given, eye)


def _enlarged(words: list[str], given: dict[int, Any], k: Any) -> Any:
    widths = [(int(to) - int(n)) // 2 for to, n in zip(words, k.shape[2:], strict=True)]
    return jnp.pad(k, [(0, 0), (0, 0), *((n, n) for n in widths)])


OPERATORS: dict[str, Callable[..., Any]] = {
    "matmul": lambda words, given, x, y: x @ y,
    "ewadd": lambda words, given, x, y: x + y,
    "ewmul": lambda words, given, x, y: x * y,
    "smul": lambda words, given, x, s: x * s,
    "relu": lambda words, given, x: jax.nn.relu(x),
    "transpose": lambda words, given, x: x.T,
    "concat": lambda words, given, x, y: jnp.concatenate([x, y], int(words[0])),
    "conv2d": _conv,
    "poolavg": lambda words, given, x: _pool(words, x, 0.0, lax.add) / (int(words[0]) * int(words[1])),
    "poolmax": lambda words, given, x: _pool(words, x, -jnp.inf, lax.max),
    "Iconv": _identity_kernel,
    "Cpool": lambda words, given: _mean_kernel(words, given),
    "enlarge": _enlarged,
}


def _mean_kernel(words: list[str], given: dict[int, Any]) -> Any:
    """The kernel whose convolution is the mean of each channel's window."""
    image = next(x for i, x in given.items() if 7 <= i <= 19)
    kh, kw = map(int, words)
    eye = jnp.eye(image.shape[1])[:, :, None, None] / (kh * kw)
    return jnp.broadcast_to(eye, (*eye.shape[:2], kh, kw))


def usable(found: str) -> RuleSet:
    """Returns the rules that ship, without those for kernels and libraries, and the laws of a folder of reports. Rules
    that ship go in both directions where that brings no operator in: a rule against which everything is larger
    without end proves nothing."""
    laws = Laws(equations_at(found)).rules if found else {}
    ships = rx.rules.default - "library" - "fusion" - "memory"
    names = {r.name for r in ships}
    back = [b for r in ships if f"{r.name}_reversed" not in names and (b := backwards(r)) is not None]
    return RuleSet("usable", [*ships, *back, *(r for own in laws.values() for r in own)])


def backwards(r: Rule) -> Rule | None:
    """Returns the other direction of a rule; None where that is no rule, or brings an operator in."""
    common = r.function, r.signature, r.attributes, r.numerics, r.phase, r.when, r.tags, r.doc, r.where
    made = Rule(f"{r.name}_reversed", *common, reverse=not r.reverse, sizes=r.sizes)
    try:
        instance = next(instances(made, limit=1), None)
        if instance is None:
            return None
        here, there = ({e.op for e in postorder(s) if e.args} for s in (instance.left, instance.right))
        return made if there <= here else None
    except RelaxEgError:
        return None


def answer(line: str, rules: RuleSet, searches: bool = True) -> Answer:
    """Returns what becomes of a substitution."""
    left, right = (read_term(side) for side in line.split("=>"))
    numbers = sorted({*inputs_of(left), *inputs_of(right)})
    specs = [SPECS[i] for i in numbers]

    def both(*args: Any) -> Any:
        given = dict(zip(numbers, args, strict=True))
        return evaluate(left, given), evaluate(right, given)

    rng = np.random.default_rng(0)
    drawn = [rng.standard_normal([SMALL.get(d) or int(d) for d in s.split()]).astype(np.float32) for s in specs]
    x, y = (np.asarray(v) for v in both(*map(jnp.asarray, drawn)))
    if x.shape != y.shape or np.abs(x - y).max() > TOLERANCE * max(np.abs(x).max(), 1):
        return Answer(line, "differs")
    sides = _values(rx.trace(both, *specs))
    there = {e.op for e in postorder(sides)} | {"relu"}  # JAX writes it as a maximum, found laws as it is
    near = RuleSet("near", [r for r in rules if r.left_operators <= there])
    if all_reached([sides], near, budget=BUDGET)[0]:
        return Answer(line, "follows")
    if not searches:
        return Answer(line, "does not follow")
    at = {d: SIZES[d] for s in specs for d in s.split() if d in SIZES}
    try:
        with rx.debug.options(least_gain=1):
            best = rx.optimize(both, *specs, at=at, target="cpu", execution="whole")
    except RelaxEgError as e:
        return Answer(line, f"error: {str(e).splitlines()[0]}")
    one, other = _values(best.module)
    return Answer(line, "follows" if one is other else "does not follow")


def _values(module: rx.types.Module) -> tuple[Any, Any]:
    """Returns what the two results of a program stand for: the values that are bound to them."""
    bound = {b.var: b.value for block in module.main.blocks for b in block.bindings}
    found: list[Any] = []
    for e in module.main.result.args:
        while e in bound:
            e = bound[e]
        found.append(e)
    return found[0], found[1]


def main(
    file: Annotated[Path | None, typer.Option("--file", help="a file of substitutions")] = None,
    found: Annotated[str, typer.Option("--found", help="a folder of reports of families")] = "",
    every: Annotated[int, typer.Option("--every", min=1, help="one substitution in so many")] = 1,
    only: Annotated[str, typer.Option("--only", help="substitutions that contain this")] = "",
    no_search: Annotated[bool, typer.Option("--no-search", help="by saturation alone")] = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="write the answers here")] = None,
    quick: Quick = False,
) -> None:
    text = EXAMPLES if file is None else file.read_text()
    lines = [x.strip() for x in text.splitlines() if "=>" in x and only in x]
    chosen = list(dict.fromkeys(lines))[::every][: QUICK_RULES if quick else None]
    answers: list[Answer] = []
    rules = usable(found)
    for line in chosen:
        made = answer(line, rules, not no_search)
        answers.append(made)
        if made.outcome != "follows":
            print(f"{made.outcome}: {line}", flush=True)
        if json_out is not None:
            json_out.write_text(json.dumps([asdict(a) for a in answers], indent=1) + "\n")
    counts = Counter(a.outcome.partition(":")[0] for a in answers)
    told = ", ".join(f"{n} {what}" for what, n in counts.most_common())
    print(f"{len(lines)} substitutions, {len(set(lines))} of them different, {len(answers)} looked at: {told}")


if __name__ == "__main__":
    typer.run(main)
