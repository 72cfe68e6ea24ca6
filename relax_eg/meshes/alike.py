"""Values that are alike: repeated layers of a program, one of which a small integer program stands for.

Values are alike if nothing differs within a few steps around them, along operands and along readers. This is colour
refinement (Weisfeiler and Leman), stopped early: at its end each layer would differ from the others by its distance to
the ends of the program.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from relax_eg.meshes.program import SpreadProgram

# chosen: steps around a value in which nothing may differ; with more of them the ends of a program have more classes
_STEPS = 3


def alike(program: SpreadProgram, asked: Sequence[Hashable], pairs: Sequence[tuple[int, int]]) -> list[int]:
    """For each value, the one that stands for it: of the values that are like it the middle one, around which most of
    what it reads is like what they read.

    - `asked`: what each value has to keep; alike are only values that have to keep the same.
    - `pairs`: pairs of values that are bound to each other, beside those of the program.
    """
    values = program.values
    around: list[list[tuple[str, int]]] = [[] for _ in values]
    for v, value in enumerate(values):
        for j, way in enumerate(value.ways):
            for slot, c in enumerate(way.children):
                around[c].append((f"{j}.{slot}", v))
    for k, (a, b) in enumerate((*program.tied, *pairs)):
        kind = "tied" if k < len(program.tied) else "state"
        around[a].append((f"{kind} from", b))
        around[b].append((f"{kind} to", a))
    colours = _numbered(
        [
            (
                v.function, v.annotation, v.bytes, v.times, v.is_free, v.parameter >= 0, i in program.staying,
                tuple((w.op, w.strategies, w.along, float(w.cost.seconds), float(w.cost.bytes)) for w in v.ways),
                asked[i],
            )
            for i, v in enumerate(values)
        ]
    )  # fmt: skip
    for _ in range(_STEPS):
        colours = _numbered(
            [
                (
                    colours[i],
                    tuple(tuple(colours[c] for c in w.children) for w in v.ways),
                    tuple(sorted((kind, colours[r]) for kind, r in around[i])),
                )
                for i, v in enumerate(values)
            ]
        )
    same: dict[int, list[int]] = {}
    for i, c in enumerate(colours):
        same.setdefault(c, []).append(i)
    return [same[c][len(same[c]) // 2] for c in colours]


def _numbered(keys: Sequence[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(k, len(numbers)) for k in keys]
