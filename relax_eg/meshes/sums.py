"""Which values may stay partial sums: those of which something comes that sends less.

A partial sum that passes an operator is of use where two of them become one, or where one becomes smaller, there or
further on. All else would only make the integer program larger.

Sums for which no other waits, such as those of gradients, are sent as one: XLA joins all-reduces, and reduce-scatters,
that do not depend on each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from relax_eg.ir.placements import PARTIAL_SUM
from relax_eg.meshes.program import SpreadProgram, ValueWay
from relax_eg.meshes.strategies import SplitStrategy
from relax_eg.traversal import grouped, reached

JOINED = 30 << 20  # given: bytes of sums that XLA sends as one (`xla_gpu_all_reduce_combine_threshold_bytes`)
_SMALLER = 2.0  # limit: how much smaller than a partial sum what is made of it has to be for it to wait


def drop_useless_sums(program: SpreadProgram) -> None:
    """Drops the strategies that pass partial sums where none comes about, or where nothing is gained by it: neither
    there nor further on are two of them summed up, or is one made smaller."""
    values = program.values
    readers = grouped((c, v) for v, value in enumerate(values) for c in {c for w in value.ways for c in w.children})

    def summed(way: ValueWay, s: SplitStrategy) -> set[int]:
        """The operands that come as partial sums."""
        return {c for c, p in zip(way.children, s.operands, strict=True) if s.passes and p == PARTIAL_SUM}

    def comes(v: int) -> bool:
        ways = values[v].ways
        return any(
            s.result == PARTIAL_SUM and (not s.passes or summed(w, s) & partial) for w in ways for s in w.strategies
        )

    def gains(v: int) -> bool:
        return any(worth(v, w, s) for w in values[v].ways for s in w.strategies if s.passes)

    def worth(v: int, way: ValueWay, s: SplitStrategy) -> bool:
        came = summed(way, s) & partial
        smaller = _SMALLER * values[v].bytes <= min((values[c].bytes for c in came), default=0.0)
        return bool(came) and (len(came) > 1 or smaller or not useful.isdisjoint(passing.get(v, ())))

    partial, useful = set[int](), set[int]()
    _closed(range(len(values)), comes, readers, partial)
    # The values that take a value as a partial sum, and what to look at again where one of them is useful.
    passing: dict[int, set[int]] = {}
    taken: dict[int, set[int]] = {}
    for v in partial:
        for c in {c for w in values[v].ways for s in w.strategies for c in summed(w, s)}:
            passing.setdefault(c, set()).add(v)
            taken.setdefault(v, set()).add(c)
    _closed(partial, gains, taken, useful)
    for v, value in enumerate(values):
        for way in value.ways:
            way.strategies = tuple(s for s in way.strategies if not s.passes or worth(v, way, s))


def join_sums(program: SpreadProgram) -> None:
    """Finds the sums of each function that are sent as one: those for which no other sum waits, nor the next step of a
    loop."""
    values, carried = program.values, {v for _, v in program.tied}
    inside = program.read_inside()

    def sums(s: SplitStrategy) -> bool:  # a sum over a size of 1 is none
        return s.result == PARTIAL_SUM and not s.passes and all(d.variables or int(d) > 1 for d in s.extents)

    made = {v for v, x in enumerate(values) if any(sums(s) for w in x.ways for s in w.strategies)}
    awaited = reached([*carried, *(c for v in made for c in inside[v])], inside.__getitem__)
    late = made - awaited.keys()
    each = Counter(values[v].function for v in late)
    passing = (
        v for v, x in enumerate(values)
        if v not in awaited and any(s.passes for w in x.ways for s in w.strategies)
    )  # fmt: skip
    program.joined = {v: max(1, each[values[v].function]) for v in (*late, *passing)}


def _closed(
    candidates: Iterable[int], holds: Callable[[int], bool], again: Mapping[int, Iterable[int]], found: set[int]
) -> None:
    """Adds to `found` the candidates of which something holds, which may follow from what is found: where it holds of
    one, those in `again` are looked at again."""
    work = list(candidates)
    while work:
        v = work.pop()
        if v not in found and holds(v):
            found.add(v)
            work += again.get(v, ())
