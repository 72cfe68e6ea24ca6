"""Python code that looks at sizes, under `rx.jit` and `jax.jit`: 60 functions of jax.numpy, and random programs.

    python -m benchmarks.python_sizes [--programs 2000] [--seed 0] [--only histogram]

Each function is called at sizes in a random order, among them 0, 1 and sizes that exactly fill a capacity. Values,
shapes, dtypes and errors must be those of `jax.jit`; the command fails if any differ.
"""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer

import relax_eg as rx
from benchmarks import Quick

Array = Any
SIZES = (5, 8, 3, 4, 1, 7, 2, 6, 16, 0)

# How Python may look at a size `n`, as a number: JAX answers most of them for symbolic sizes without a word.
LOOKS: Mapping[str, Callable[[Any], Any]] = {
    "a key of a dictionary": lambda n: {2: 10.0, 3: 20.0, 8: 30.0}.get(n, 1.0),
    "a member of a set": lambda n: 2.0 if n in {2, 4, 8} else 1.0,
    "a member of a list": lambda n: 3.0 if n in [1, 5] else 1.0,
    "an instance of int": lambda n: 2.0 if isinstance(n, int) else 1.0,
    "its type": lambda n: 2.0 if type(n) is int else 1.0,
    "its text": lambda n: float(len(str(n))),
    "its text in a format": lambda n: 2.0 if f"{n}" == "4" else 1.0,
    "its hash": lambda n: float(hash(n) % 5),
    "itself": lambda n: 2.0 if n is n + 0 else 1.0,
    "a shape as a key": lambda n: {(2,): 3.0, (4,): 5.0}.get((n,), 1.0),
    "equal": lambda n: 2.0 if n == 4 else 1.0,
    "not equal": lambda n: 2.0 if n != 8 else 1.0,
    "a remainder": lambda n: 2.0 if n % 4 == 0 else 1.0,
    "even": lambda n: float(n % 2 == 1),
    "greater": lambda n: 2.0 if n > 4 else 1.0,
    "between": lambda n: 2.0 if 2 <= n <= 5 else 1.0,
    "truth": lambda n: 2.0 if n else 1.0,
    "the least": lambda n: 1.0 * min(n, 4),
    "sorted": lambda n: 1.0 * sorted([n, 4])[0],
    "an attribute": lambda n: 2.0 if hasattr(n, "bit_length") else 1.0,
    "bits": lambda n: float(n.bit_length()),
    "an index": lambda n: [1.0, 2.0, 3.0][n] if n in (0, 1, 2) else 1.0,
    "a try": lambda n: _tried(n),
    "a root": lambda n: float(n) ** 0.5,
    "a range": lambda n: float(sum(range(n))),
    "divided": lambda n: n / 2 + 1 / (n + 1),
    "a shift": lambda n: float(1 << n) if n < 5 else 1.0,
    "a global": lambda n: 2.0 if n == LAST else 1.0,
    "a match": lambda n: _matched(n),
}
LAST = 6


def _tried(n: Any) -> float:
    try:
        return [1.0, 4.0, 9.0, 16.0][n]
    except (IndexError, TypeError):
        return 0.5


def _matched(n: Any) -> float:
    match n:
        case 2 | 4:
            return 2.0
        case 8:
            return 3.0
        case _:
            return 1.0


LIBRARY: Mapping[str, Callable[[Array], Any]] = {
    "unravel_index": lambda x: jnp.unravel_index(jnp.argmax(x), x.shape),
    "triu_indices": lambda x: x[jnp.triu_indices(*x.shape)],
    "tril_indices": lambda x: x[jnp.tril_indices(x.shape[0], 0, x.shape[1])],
    "diag_indices": lambda x: jnp.diag_indices(x.shape[0]),
    "mask_indices": lambda x: jnp.mask_indices(x.shape[0], jnp.triu),
    "histogram": lambda x: jnp.histogram(x, 5)[0],
    "array_split": lambda x: jnp.array_split(x, 3),
    "split": lambda x: jnp.split(jnp.concatenate([x, x]), 2),
    "interp": lambda x: jnp.interp(jnp.linspace(0, 1, 7), jnp.arange(x.shape[0]) / 5.0, x[:, 0]),
    "linspace": lambda x: jnp.linspace(0.0, 1.0, x.shape[0]),
    "logspace": lambda x: jnp.logspace(0.0, 1.0, x.shape[0]),
    "arange": lambda x: jnp.arange(x.shape[0]) * x.sum(1),
    "eye": lambda x: jnp.eye(*x.shape) + x,
    "tri": lambda x: jnp.tri(*x.shape) * x,
    "vander": lambda x: jnp.vander(x[:, 0], 4),
    "roll": lambda x: jnp.roll(x, 2, 0),
    "rot90": lambda x: jnp.rot90(x),
    "flip": lambda x: jnp.flip(x),
    "tile": lambda x: jnp.tile(x, (2, 3)),
    "repeat": lambda x: jnp.repeat(x, 3, axis=0),
    "median": lambda x: jnp.median(x, 0),
    "percentile": lambda x: jnp.percentile(x, 30.0, axis=0),
    "quantile": lambda x: jnp.quantile(x, 0.7, axis=1),
    "cov": lambda x: jnp.cov(x),
    "corrcoef": lambda x: jnp.corrcoef(x),
    "average": lambda x: jnp.average(x, 0),
    "var": lambda x: jnp.var(x, 0, ddof=1),
    "std": lambda x: jnp.std(x, 1),
    "ptp": lambda x: jnp.ptp(x, 0),
    "nanmean": lambda x: jnp.nanmean(x, 0),
    "cumsum": lambda x: jnp.cumsum(x, 0),
    "cumprod": lambda x: jnp.cumprod(x, 1),
    "diff": lambda x: jnp.diff(x, axis=0),
    "ediff1d": lambda x: jnp.ediff1d(x),
    "gradient": lambda x: jnp.gradient(x, axis=0),
    "trapezoid": lambda x: jnp.trapezoid(x, axis=0),
    "convolve": lambda x: jnp.convolve(x[0], jnp.ones(3)),
    "correlate": lambda x: jnp.correlate(x[0], jnp.ones(3)),
    "searchsorted": lambda x: jnp.searchsorted(jnp.sort(x[:, 0]), 0.5),
    "digitize": lambda x: jnp.digitize(x, jnp.array([0.0, 0.5, 1.0])),
    "sort": lambda x: jnp.sort(x, 0),
    "argsort": lambda x: jnp.argsort(x, 0),
    "partition": lambda x: jnp.partition(x, 1, 0),
    "top_k": lambda x: jax.lax.top_k(x, 2),
    "argmax": lambda x: jnp.argmax(x, 0),
    "bincount": lambda x: jnp.bincount(jnp.argmax(x, 1), length=x.shape[1]),
    "outer": lambda x: jnp.outer(x[0], x[:, 0]),
    "kron": lambda x: jnp.kron(x, jnp.ones((2, 2))),
    "trace": lambda x: jnp.trace(x),
    "diagonal": lambda x: jnp.diagonal(x),
    "fill_diagonal": lambda x: jnp.fill_diagonal(x, 0.0, inplace=False),
    "meshgrid": lambda x: jnp.meshgrid(jnp.arange(x.shape[0]), jnp.arange(x.shape[1])),
    "indices": lambda x: jnp.indices(x.shape).sum(0) + x,
    "take_along_axis": lambda x: jnp.take_along_axis(x, jnp.argsort(x, 1), 1),
    "put_along_axis": lambda x: x.at[jnp.arange(x.shape[0]), 0].set(0.0),
    "hamming": lambda x: jnp.hamming(x.shape[0]),
    "fft": lambda x: jnp.abs(jnp.fft.fft(x, axis=0)),
    "fftfreq": lambda x: jnp.fft.fftfreq(x.shape[0]),
    "fftshift": lambda x: jnp.fft.fftshift(x),
    "pad": lambda x: jnp.pad(x, ((1, 2), (0, 1))),
    "hsplit": lambda x: jnp.vsplit(jnp.concatenate([x, x]), 2),
    "apply_along_axis": lambda x: jnp.apply_along_axis(jnp.sum, 0, x),
    "associative_scan": lambda x: jax.lax.associative_scan(jnp.add, x),
    "fori_loop": lambda x: jax.lax.fori_loop(0, x.shape[0], lambda i, c: c + x[i], jnp.zeros(x.shape[1])),
    "one_hot": lambda x: jax.nn.one_hot(jnp.arange(x.shape[0]), 4),
    "reshape": lambda x: x.reshape(-1, 1),
}

# Steps that do not depend on a decision in Python. They keep the size of arrays of one axis.
STEPS: Sequence[Callable[[Array], Array]] = (
    lambda x: jnp.tanh(x), lambda x: x * 2 + 1, lambda x: jnp.cumsum(x), lambda x: x - x.mean(), lambda x: jnp.sort(x),
    lambda x: jax.nn.softmax(x), lambda x: x[::-1], lambda x: jnp.where(x > 0, x, 0.5 * x), lambda x: x + x.max(),
    lambda x: jnp.roll(x, 1), lambda x: x * jnp.arange(x.shape[0]), lambda x: jnp.outer(x, x).sum(0),
    lambda x: x / x.shape[0], lambda x: jnp.concatenate([x, x])[: x.shape[0]], lambda x: jnp.maximum(x, x.sum()),
)  # fmt: skip


def random_program(seed: int) -> Callable[[Array], Any]:
    """Returns a function of an array of one axis: steps, some of them scaled by a number that Python computes from the
    size."""
    draw = random.Random(seed)
    steps = [(draw.choice(STEPS), draw.choice((None, *LOOKS.values()))) for _ in range(draw.randint(1, 4))]
    last = draw.choice(list(LOOKS.values()))
    whole = draw.random() < 0.3

    def program(x: Array) -> Any:
        for step, look in steps:
            x = step(x) if look is None else step(x) * look(x.shape[0])
        x = x * last(x.shape[0])
        return x.sum() if whole else x

    return program


def outcome(run: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Returns the result of a call, or the error that it raises."""
    try:
        return run(*args)
    except Exception as e:
        return e


def differing(ours: Any, wanted: Any) -> str:
    """Returns the difference of two outcomes as text; "" if there is none."""
    if isinstance(ours, Exception) or isinstance(wanted, Exception):
        same = type(ours) is type(wanted)
        return "" if same else f"{ours!r:.80} for {wanted!r:.80}"
    a, b = (jax.tree_util.tree_leaves(x) for x in (ours, wanted))
    if jax.tree_util.tree_structure(ours) != jax.tree_util.tree_structure(wanted):
        return "structure"
    for x, y in zip(a, b, strict=True):
        if jax.typeof(x) != jax.typeof(y):
            return f"{jax.typeof(x)} for {jax.typeof(y)}"
        p, q = np.asarray(x, np.float64), np.asarray(y, np.float64)
        if not np.allclose(p, q, rtol=1e-3, atol=1e-3, equal_nan=True):
            return f"values, up to {np.nanmax(np.abs(p - q)):.3g}"
    return ""


def compared(function: Callable[..., Any], shapes: Sequence[tuple[int, ...]], **options: Any) -> Iterator[str]:
    """Yields the shapes at which `rx.jit` and `jax.jit` differ, with the difference."""
    fast, slow = rx.jit(function, **options), jax.jit(function)
    for shape in shapes:
        x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = differing(outcome(fast, [x]), outcome(slow, [x]))
        if found:
            yield f"{shape}: {found}"


def shapes_of(seed: int, rank: int, calls: int) -> list[tuple[int, ...]]:
    """Shapes in a random order; among them one that fills its capacities."""
    draw = random.Random(seed)
    found = [tuple(draw.choice(SIZES) for _ in range(rank)) for _ in range(calls - 1)]
    return [*found, (8,) * rank]


QUICK_FUNCTIONS, QUICK_PROGRAMS, QUICK_CALLS = 1, 1, 2


def main(
    programs: Annotated[int, typer.Option(help="random programs")] = 2000,
    seed: Annotated[int, typer.Option(help="of the first")] = 0,
    only: Annotated[str, typer.Option(help="functions whose names contain this, and no programs")] = "",
    calls: Annotated[int, typer.Option(help="of each")] = 6,
    quick: Quick = False,
) -> None:
    """Compare `rx.jit` with `jax.jit`."""
    started, bad, count = time.perf_counter(), 0, 0
    chosen = {name: function for name, function in LIBRARY.items() if only in name}
    if quick:
        chosen, programs, calls = dict(islice(chosen.items(), QUICK_FUNCTIONS)), QUICK_PROGRAMS, QUICK_CALLS
    for name, function in chosen.items():
        count += 1
        for found in compared(function, shapes_of(len(name), 2, 2 * calls)):
            bad += 1
            print(f"{name} {found}", flush=True)
    print(f"{count} functions, {bad} calls differ, {time.perf_counter() - started:.0f} s", flush=True)
    wrong = 0
    for i in range(seed, seed + (0 if only else programs)):
        options = {"dims": ["n"]} if i % 8 == 0 else {}
        for found in compared(random_program(i), shapes_of(i, 1, calls), **options):
            wrong += 1
            print(f"program {i} {found}", flush=True)
        if (i - seed) % 50 == 49:
            jax.clear_caches()
            print(f"{i - seed + 1} programs, {time.perf_counter() - started:.0f} s", flush=True)
    print(f"{0 if only else programs} programs, {wrong} calls differ, {time.perf_counter() - started:.0f} s")
    if bad or wrong:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
