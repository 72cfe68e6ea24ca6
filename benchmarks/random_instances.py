"""Whether the two sides of laws have equal values at random instances, evaluated by JAX.

    python -m benchmarks.random_instances [--rules found] [--book traced] [--count 2000] [--only sum] [--quick]

The checker and the prover of rules know operators by their index equations. Here JAX's own functions compute them, in
float64, for many draws at once, so nothing but the statement of the law is shared. Floats are drawn as multiples of a
quarter up to 3, integers from their whole range; with zeros, both signs, and ties between variables; under the
conditions of the law, at sizes from 0 on and several ranks. Of such numbers sums, products and extremes are exact, and
both sides must be the same bits up to what rounding elsewhere explains.

`--rules`: a file of rules or a folder of such, as `python -m benchmarks.discovery --save found` writes them, or
`docs/mined_laws.json`. `--book`: a book that ships, its tested laws too. Without both: the proved laws that ship.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import jax
import numpy as np
import typer

import relax_eg as rx
from benchmarks import Quick
from benchmarks.found_rules import rules_at
from relax_eg.backend.lowering.lower import run_at
from relax_eg.dtypes import is_complex, is_integer, numpy_dtype
from relax_eg.errors import RelaxEgError
from relax_eg.ir.expr import tuple_
from relax_eg.ir.module import Function, Module
from relax_eg.rules import Instance, Rule, RuleSet
from relax_eg.rules.checking.certificates import status
from relax_eg.rules.checking.judge import widen_sides
from relax_eg.rules.checking.samples import (
    adapt_values,
    draw_sizes,
    integers,
    shape_of,
    value_guards,
    value_guards_hold,
)
from relax_eg.rules.rule import instances

Array = np.ndarray[Any, Any]

COUNT = 2000  # instances of each law, as the issue of discovery asks for
PLACES = 8  # choices of typings, ranks and sizes of a law, among which its instances are divided
REACH = 12  # the largest float, in quarters
TOLERANCE = 1e-9  # of float64 values, relative to the largest value on the way to a result, or to 1
SEED = 0
QUICK_COUNT, QUICK_RULES = 16, 3


@dataclass
class Trials:
    """What came of a law.

    - `tried`: the instances at which both sides were compared.
    - `same`: those at which they are the same numbers; the others agree up to rounding.
    - `wrong`: the first instance at which they differ, as text; empty if there is none.
    """

    tried: int = 0
    same: int = 0
    wrong: str = ""


@dataclass
class Totals:
    """`Trials` of many laws. `untried`: names of laws of which no instance was compared."""

    tried: int = 0
    same: int = 0
    wrong: list[str] = field(default_factory=list[str])
    untried: list[str] = field(default_factory=list[str])


def trials(rule: Rule, count: int) -> Trials:
    """Compares the sides of a rule at about `count` random instances."""
    rng = np.random.default_rng((SEED, len(rule.name)))
    chosen = list(instances(rule, limit=PLACES))
    if not chosen:
        return Trials()
    each = -(-count // PLACES)
    found = Trials()
    for k in range(PLACES):
        instance = chosen[k % len(chosen)]
        sizes = draw_sizes(instance, rng, k // len(chosen) + 1, 0)
        if not sizes:
            continue
        _compare(instance, sizes[-1], each, rng, found)
        if found.wrong:
            break
    return found


def _compare(instance: Instance, sizes: dict[str, int], count: int, rng: np.random.Generator, found: Trials) -> None:
    """Adds to `found` what comes of `count` draws at these sizes."""
    p = widen_sides(instance)
    values, held = _under_guards(instance, _draws(instance, sizes, count, rng), rng)
    params = [e for n, e in p.params.items() if n in values]
    given = [values[n] for n in p.params if n in values]
    where = f"{instance.rule} at {sizes}"
    try:
        left = _run(params, p.left, given, sizes)
    except RelaxEgError:  # the left side does not exist there, so nothing is rewritten
        return
    try:
        every = _run(params, p.nodes, given, sizes)
    except RelaxEgError as e:
        found.wrong = f"{where}: the right side does not exist: {e}"
        return
    for e, extent in p.position_promises:
        (at,) = _run(params, (e,), given, sizes)
        held &= ((at >= 0) & (at < extent.evaluate(sizes))).reshape(count, -1).all(1)
    scale = np.ones(count)
    for v in every:
        if v.dtype.kind in "fc" and v[0].size:
            size = np.abs(v.reshape(count, -1))
            scale = np.maximum(scale, np.where(np.isfinite(size), size, 0).max(1))
    same, n = held.copy(), len(left)
    for a, b in zip(every[:n], every[n : 2 * n], strict=True):
        apart, is_same = _differences(a, b, scale)
        bad = np.flatnonzero(apart & held)
        if len(bad):
            k = bad[0]
            point = {name: v[k].tolist() for name, v in values.items()}
            found.wrong = f"{where}: for {point} its sides are {a[k].tolist()} and {b[k].tolist()}"
            return
        same &= is_same
    found.tried += int(held.sum())
    found.same += int(same.sum())


def _differences(a: Array, b: Array, scale: Array) -> tuple[Array, Array]:
    """For each draw, whether two results differ beyond rounding, and whether they are the same numbers."""
    count = len(scale)
    if a.shape != b.shape:
        return np.ones(count, bool), np.zeros(count, bool)
    x, y = a.reshape(count, -1), b.reshape(count, -1)
    same = (x == y) | ((x != x) & (y != y))
    if a.dtype.kind not in "fc":
        return ~same.all(1), same.all(1)
    with np.errstate(all="ignore"):
        finite = np.isfinite(x), np.isfinite(y)
        far = finite[0] & finite[1] & (np.abs(x - y) > TOLERANCE * scale[:, None])
    return (far | (finite[0] != finite[1])).any(1), same.all(1)


def _run(params: Sequence[Any], roots: Sequence[Any], given: Sequence[Array], sizes: dict[str, int]) -> list[Array]:
    """The values of expressions for all draws, by JAX; the draws are the first axis."""
    function = Function("main", tuple(params), (), tuple_(tuple(roots)))
    with jax.enable_x64(True):
        results = jax.vmap(lambda *arrays: run_at(Module((function,)), function, arrays, sizes))(*given)
        return [np.asarray(x) for x in results]


def _draws(instance: Instance, sizes: dict[str, int], count: int, rng: np.random.Generator) -> dict[str, Array]:
    """Values for all pattern variables; the first axis is the draw."""
    found: dict[str, Array] = {}
    for p in instance.params:
        shape = count, *shape_of(p, sizes)
        if p.dtype == "bool":
            share = rng.choice((0.5, 0.9, 0.1), (count, *(1 for _ in shape[1:])))
            found[str(p.attr("name"))] = rng.random(shape) < share
            continue
        if is_integer(p.dtype):
            kinds = [integers(p.dtype, shape, rng, k) for k in range(4)]
        else:
            whole = rng.integers(-REACH, REACH + 1, shape)
            kinds = [whole / 4, np.abs(whole) / 4, rng.choice((-1.0, 0.0, 1.0), shape), (np.abs(whole) + 1) / 4]
            if is_complex(p.dtype):
                kinds = [x + 1j * rng.integers(-REACH, REACH + 1, shape) / 4 for x in kinds]
        made = np.stack(kinds)[np.arange(count) % len(kinds), np.arange(count)]
        same = [v for v in found.values() if v.shape == shape and v.dtype == made.dtype]
        if same:
            made = np.where(rng.random(shape) < 0.25, same[-1], made)
        found[str(p.attr("name"))] = made if not is_integer(p.dtype) else made.astype(numpy_dtype(p.dtype))
    return found


def _under_guards(
    instance: Instance, values: dict[str, Array], rng: np.random.Generator
) -> tuple[dict[str, Array], Array]:
    """The draws, changed so that they meet the conditions of the rule as far as possible, and which of them do."""
    guards = value_guards(instance)
    count = len(next(iter(values.values())))
    for name, facts, tests in guards:
        values[name] = np.stack([adapt_values(v, facts, tests, rng) for v in values[name]])
    one_by_one = ({n: v[k] for n, v in values.items()} for k in range(count))
    return values, np.array([not guards or value_guards_hold(instance, x) for x in one_by_one])


def differences(rules: RuleSet, count: int) -> tuple[int, list[str]]:
    """Returns at how many random instances the sides of rules were compared, and the rules whose sides differ, as
    texts with the instance."""
    total = compare_all(list(rules), count)
    return total.tried, total.wrong


def compare_all(rules: Sequence[Rule], count: int) -> Totals:
    """Compares the sides of rules at about `count` random instances each."""
    total = Totals()
    for rule in rules:
        found = trials(rule, count)
        total.tried += found.tried
        total.same += found.same
        if found.wrong:
            total.wrong.append(found.wrong)
        elif not found.tried:
            total.untried.append(rule.name)
    return total


def main(
    rules: Annotated[str, typer.Option("--rules", help="a file of rules, or a folder of such")] = "",
    count: Annotated[int, typer.Option("--count", help="random instances of each law")] = COUNT,
    only: Annotated[str, typer.Option("--only", help="laws whose name contains this")] = "",
    book: Annotated[str, typer.Option("--book", help="a book that ships")] = "",
    quick: Quick = False,
) -> None:
    if book:
        chosen = list(getattr(rx.rules, book))
    else:
        chosen = list(rules_at(rules)) if rules else [r for r in rx.rules.default if status(r).holds_everywhere]
    chosen = [r for r in chosen if not r.reverse and only in r.name][: QUICK_RULES if quick else None]
    started = time.perf_counter()
    total = compare_all(chosen, QUICK_COUNT if quick else count)
    seconds = time.perf_counter() - started
    for text in total.wrong:
        print(f"  {text}")
    if total.untried:
        print(f"  not tried: {', '.join(total.untried)}")
    print(
        f"{len(chosen)} laws, {total.tried:,} random instances in {seconds:.0f} s: {len(total.wrong)} laws differ; "
        f"{total.same:,} instances are the same numbers on both sides, the others agree up to rounding"
    )


if __name__ == "__main__":
    typer.run(main)
