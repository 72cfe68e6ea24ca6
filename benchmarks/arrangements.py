"""Values computed again within a limit: what a local search finds, beside the integer program.

    python -m benchmarks.arrangements [--programs 100]

Random programs of up to 26 stored steps, some of whose values are read once more at the end, at limits of 90, 75 and
60% of the bytes in the best order. Seconds are predicted, and longer than those of each step once.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import jax.numpy as jnp
import typer
from rich.console import Console

import relax_eg as rx
from benchmarks import Quick
from relax_eg.driver.limits.arranging import Arranger
from relax_eg.driver.prices import ByProfile
from relax_eg.extract.profiles.devices import profile
from relax_eg.memory.exact_arrangement import MOST_STEPS, arrange_exactly
from relax_eg.memory.rematerialization import arrange

SHARES = (0.9, 0.75, 0.6)
SECONDS = 10.0  # for one arrangement
SPECS = "256 256", "256 256", "256 64"
KINDS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "sorted": lambda x, _, u, v: jnp.sort(x, axis=0),
    "product": lambda x, _, u, v: x @ u,
    "sums": lambda x, y, u, v: jnp.cumsum(x * y, axis=0),
    "narrowed": lambda x, _, u, v: jnp.sort(x @ v, axis=0) @ v.T,
}
Plan = Sequence[tuple[str, int, int]]  # by step: its kind, and how many values back its operands are


def program(plan: Plan) -> Callable[..., Any]:
    """A function of matrices x, u and v: steps one after the other, the first and second of which are read again."""

    def fn(x: Any, u: Any, v: Any) -> Any:
        values = [x @ u]
        for kind, back, other in plan:
            values.append(KINDS[kind](values[-1 - back % len(values)], values[-1 - other % len(values)], u, v))
        return jnp.sum(values[-1] * values[0]) + jnp.sum(values[-2] * values[1])

    return fn


def drawn(rng: random.Random) -> Plan:
    return [(rng.choice([*KINDS]), rng.randrange(2), rng.randrange(9)) for _ in range(rng.randint(4, 8))]


def arranger(plan: Plan) -> Arranger:
    return Arranger(rx.trace(program(plan), *SPECS), ByProfile(profile("cpu")), {}, set())


def main(
    programs: Annotated[int, typer.Option(help="the number of random programs")] = 100, quick: Quick = False
) -> None:
    rng, count = random.Random(0), {"equal": 0, "faster": 0, "only the integer program": 0, "neither": 0}
    ratios: list[float] = []
    for _ in range(4 if quick else programs):
        of = arranger(drawn(rng))
        part = of.parts[of.module.main.name]
        if len(part.order) > MOST_STEPS:
            continue
        for limit in (int(share * part.peak) for share in SHARES):
            local = arrange(part.problem, part.order, limit)
            exact = arrange_exactly(part.problem, local, limit, SECONDS)
            if local.peak > limit:
                count["neither" if exact.peak > limit else "only the integer program"] += 1
            elif exact is local:
                count["equal"] += 1
            else:
                count["faster"] += 1
                ratios.append(local.seconds / exact.seconds)
    console = Console()
    for what, n in count.items():
        console.print(f"{what:26} {n:5}")
    if ratios:
        console.print(f"where it is faster, the local search adds {statistics.median(ratios):.2f} times as much at the")
        console.print(f"median, and {max(ratios):.2f} times at most")


if __name__ == "__main__":
    typer.run(main)
