"""Orders in which more factors are joined than every order can be tried of, from `opt_einsum`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from relax_eg.rules.sums_of_products.accesses import Letter

# Each step joins the factors at these places, removes them, and appends the result.
Order = Sequence[tuple[int, ...]]


def orders(
    factors: Sequence[frozenset[Letter]], out: frozenset[Letter], extents: Mapping[Letter, int]
) -> Iterator[Order]:
    """The order of least flops among those that join factors with a common letter, and the one that takes the largest
    reduction first."""
    from opt_einsum.paths import DynamicProgramming, greedy

    names = {x: chr(i) for i, x in enumerate(sorted(frozenset[Letter]().union(out, *factors)), ord("a"))}
    inputs = [frozenset(names[x] for x in f) for f in factors]
    result = frozenset(names[x] for x in out)
    sizes = {names[x]: max(n, 1) for x, n in extents.items() if x in names}
    for find in (DynamicProgramming(minimize="flops"), greedy):
        yield [tuple(step) for step in find(inputs, result, sizes, None)]
