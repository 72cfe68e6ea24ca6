"""Random uses of operators: ranks 0 to 4, sizes from 0, any attributes the operator takes.

A size in a spec is a variable (its range starts at 0), a number, or 1 where an operand is to broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from ops_library_samples import SERIES, definite, diagonals, dominant, factored, separated, whole_orders
from ops_samples import BINARY, RANGES, UNARY
from ops_use import Use

Rng = np.random.Generator
Draw = Callable[[Rng], Use]

SIZES = {"n": (0, 4), "m": (0, 3), "k": (0, 3)}
SOME = {"n": (1, 4), "m": (1, 3), "k": (1, 3)}  # where an axis must have elements
_TOKENS = ("n", "m", "k", "1", "2", "3")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_NUMBERS = ("float32", "float16", "bfloat16", "int32", "uint8", "int64", "float64", "bool", "complex64")


def one(rng: Rng, items: Sequence[Any]) -> Any:
    return items[int(rng.integers(len(items)))]


def flag(rng: Rng) -> bool:
    return bool(rng.integers(2))


def dims(rng: Rng, low: int = 0, high: int = 4) -> list[str]:
    """The sizes of `low` to `high` axes."""
    tokens = [one(rng, _TOKENS) for _ in range(int(rng.integers(low, high + 1)))]
    return ["0" if rng.integers(20) == 0 else t for t in tokens]


def some_dims(rng: Rng, low: int = 1, high: int = 4) -> list[str]:
    """As `dims`, none of them 0 where `SOME` are the sizes."""
    return [one(rng, _TOKENS) for _ in range(int(rng.integers(low, high + 1)))]


def spec(sizes: Sequence[str], dtype: str = "") -> str:
    return " ".join(sizes) + (f" @{dtype}" if dtype else "")


def subset(rng: Rng, items: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(i for i in items if flag(rng))


def broadcastable(rng: Rng, sizes: Sequence[str]) -> list[str]:
    """A shape that broadcasts to `sizes`: without some of the first axes, others of size 1."""
    kept = list(sizes[int(rng.integers(len(sizes) + 1)) :]) if rng.integers(3) == 0 else list(sizes)
    return ["1" if rng.integers(4) == 0 else s for s in kept]


# --- elementwise ---


def _pointwise(
    count: int, low: float, high: float, attrs: Callable[[Rng], dict[str, Any]] = lambda rng: {}, **others: Any
) -> Draw:
    def draw(rng: Rng) -> Use:
        sizes = dims(rng)
        operands = [sizes] if count == 1 else [broadcastable(rng, sizes) for _ in range(count)]
        return Use(tuple(map(spec, operands)), attrs(rng), SIZES, low, high, **others)

    return draw


def _where(rng: Rng) -> Use:
    sizes = dims(rng)
    condition, x, y = (broadcastable(rng, sizes) for _ in range(3))
    return Use((spec(condition, "bool"), spec(x), spec(y)), {}, SIZES)


# --- reductions and scans ---


def _reduction(rng: Rng) -> Use:
    sizes = dims(rng)
    return Use((spec(sizes),), {"axes": subset(rng, range(len(sizes))), "keepdims": flag(rng)}, SIZES)


def _position(rng: Rng) -> Use:
    sizes = some_dims(rng)
    attrs = {
        "axis": int(rng.integers(len(sizes))),
        "keepdims": flag(rng),
        "dtype": one(rng, ("int32", "uint8", "int64")),
    }
    return Use((spec(sizes),), attrs, SOME, -2, 2, special=flag(rng))


def _scan(rng: Rng) -> Use:
    sizes = dims(rng, 1)
    return Use((spec(sizes),), {"axis": int(rng.integers(len(sizes))), "reverse": flag(rng)}, SIZES, -1.5, 1.5)


# --- movement ---


def _permute_dims(rng: Rng) -> Use:
    sizes = dims(rng)
    return Use((spec(sizes),), {"axes": tuple(map(int, rng.permutation(len(sizes))))}, SIZES)


def _reshape(rng: Rng) -> Use:
    """Groups of axes, each taken together or left as it is."""
    before: list[str] = []
    after: list[str] = []
    for _ in range(int(rng.integers(0, 4))):
        group = one(rng, [("n", "3"), ("2", "m"), ("n", "m"), ("k",), ("6",), ("2", "3"), ("1",), ("4", "n", "2")])
        merged = ["*".join(group)]
        forms = [list(group), merged, *([list(reversed(group))] if len(group) > 1 else [])]
        forms += [["1", *group], ["3", "2"] if group == ("2", "3") else merged]
        before, after = before + one(rng, forms), after + one(rng, forms)
    return Use((spec(before),), {"shape": tuple(after)}, SIZES)


def _expand_dims(rng: Rng) -> Use:
    sizes = dims(rng, 0, 3)
    rank = len(sizes) + int(rng.integers(0, 3))
    axes = sorted(map(int, rng.permutation(rank)[: rank - len(sizes)]))
    return Use((spec(sizes),), {"axes": tuple(axes)}, SIZES)


def _squeeze(rng: Rng) -> Use:
    sizes = ["1" if flag(rng) else s for s in dims(rng)]
    return Use((spec(sizes),), {"axes": subset(rng, [i for i, s in enumerate(sizes) if s == "1"])}, SIZES)


def _broadcast_to(rng: Rng) -> Use:
    sizes = dims(rng)
    return Use((spec(broadcastable(rng, sizes)),), {"shape": tuple(sizes)}, SIZES)


def _concat(rng: Rng) -> Use:
    sizes = dims(rng, 1)
    axis = int(rng.integers(len(sizes)))
    parts = [
        [*sizes[:axis], one(rng, ("n", "m", "2", "0", "n+1")), *sizes[axis + 1 :]] for _ in range(rng.integers(1, 4))
    ]
    return Use(tuple(map(spec, parts)), {"axis": axis}, SIZES)


def _split(rng: Rng) -> Use:
    sizes = dims(rng, 1)
    axis = int(rng.integers(len(sizes)))
    sections = tuple(one(rng, ("n", "2*m", "3", "0", "1")) for _ in range(int(rng.integers(1, 4))))
    return Use(
        (spec([*sizes[:axis], "+".join(sections), *sizes[axis + 1 :]]),), {"sections": sections, "axis": axis}, SIZES
    )


def _strided_slice(rng: Rng) -> Use:
    cuts = [
        ("n+3", "1", "n+2"),
        ("n+m", "n", "n+m"),
        ("5", "1", "4"),
        ("2*n", "0", "2*n"),
        ("4", "2", "2"),
        ("m", "0", "m"),
    ]
    chosen = [one(rng, cuts) for _ in range(int(rng.integers(0, 5)))]
    attrs = {
        "begin": tuple(c[1] for c in chosen), "end": tuple(c[2] for c in chosen),
        "strides": tuple(int(rng.integers(1, 4)) for _ in chosen),
    }  # fmt: skip
    return Use((spec([c[0] for c in chosen]),), attrs, SIZES)


def _pad(rng: Rng) -> Use:
    sizes = [one(rng, ("n+2", "m+2", "3", "4")) for _ in range(int(rng.integers(0, 5)))]
    low, high = ([one(rng, (0, 1, 2, -1, "k")) for _ in sizes] for _ in range(2))
    interior = tuple(int(rng.integers(0, 3)) if flag(rng) else 0 for _ in sizes)
    return Use((spec(sizes), ""), {"low": tuple(low), "high": tuple(high), "interior": interior}, SIZES)


def _take(rng: Rng) -> Use:
    sizes = some_dims(rng, 1, 3)
    indices, mode = dims(rng, 0, 2), one(rng, ("clip", "fill", "promise"))
    axis = int(rng.integers(len(sizes)))
    low, high = (0, 0) if mode == "promise" else (-6, 6)
    dtype = one(rng, _INTEGERS)
    return Use((spec(sizes), spec(indices, dtype)), {"axis": axis, "mode": mode}, SOME, low, high)


def _flip(rng: Rng) -> Use:
    sizes = dims(rng)
    return Use((spec(sizes),), {"axes": subset(rng, range(len(sizes)))}, SIZES)


def _triangle(rng: Rng) -> Use:
    return Use((spec(dims(rng, 2)),), {"k": int(rng.integers(-3, 4))}, SIZES)


# --- creation ---


def _full(rng: Rng) -> Use:
    return Use(("",), {"shape": tuple(dims(rng))}, SIZES)


def _iota(rng: Rng) -> Use:
    sizes = dims(rng, 1)
    dtype = one(rng, [d for d in _NUMBERS if d != "bool"])
    return Use((), {"shape": tuple(sizes), "axis": int(rng.integers(len(sizes))), "dtype": dtype}, SIZES)


def _one_hot(rng: Rng) -> Use:
    attrs = {"depth": (one(rng, ("n", "4", "0")),), "dtype": one(rng, _NUMBERS)}
    return Use((spec(dims(rng, 0, 3), one(rng, _INTEGERS)),), attrs, SIZES, -2, 5)


def _dim_value(rng: Rng) -> Use:
    dim = one(rng, ("n", "n*m+1", "k//2", "7"))
    return Use((), {"dim": (dim,), "dtype": one(rng, ("int32", "uint8", "float32", "bfloat16", "int64"))}, SIZES)


def _astype(rng: Rng) -> Use:
    return Use((spec(dims(rng)),), {"dtype": one(rng, (*_NUMBERS, "int8", "uint32", "int16"))}, SIZES, -4, 4)


# --- contraction, windows ---


def _matmul(rng: Rng) -> Use:
    batch = dims(rng, 0, 2)
    left = [*broadcastable(rng, batch), "n", "k"]
    right = [*broadcastable(rng, batch), "k", "m"]
    if rng.integers(4) == 0:
        left, right = one(rng, [(["k"], right), (left, ["k"]), (["k"], ["k"])])
    return Use((spec(left), spec(right)), {"precision": one(rng, (None, "high", "highest", "default"))}, SIZES)


def _linear(rng: Rng) -> Use:
    return Use((spec([*dims(rng, 0, 3), "k"]), "m k"), {}, SIZES)


def _many(rng: Rng, rank: int, low: int, high: int) -> tuple[int, ...]:
    return tuple(int(rng.integers(low, high + 1)) for _ in range(rank))


def _conv(rng: Rng) -> Use:
    rank = int(rng.integers(0, 4 if rng.integers(4) == 0 else 3))
    groups = int(rng.integers(1, 3))
    space = [one(rng, ("h", "4", "5")) for _ in range(rank)]
    window = [one(rng, ("1", "2", "3")) for _ in range(rank)]
    x = spec([one(rng, ("n", "2")), f"{groups}*c" if groups > 1 else "c", *space])
    w = spec([f"{groups}*o" if groups > 1 else "o", "c", *window])
    low, high = _many(rng, rank, -1, 2), _many(rng, rank, 0, 2)
    attrs = {
        "strides": _many(rng, rank, 1, 3), "low": low, "high": high, "dilation": _many(rng, rank, 1, 2),
        "input_dilation": _many(rng, rank, 1, 2), "groups": groups,
        "precision": one(rng, (None, "highest")),
    }  # fmt: skip
    return Use((x, w), attrs, {"n": (0, 2), "c": (0, 2), "o": (0, 2), "h": (3, 6)}, -2, 2)


def _window(rng: Rng, kinds: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """A shape of rank 0 to 4 and attributes of a window over it."""
    sizes = [one(rng, ("n+1", "m+2", "3", "4", "1")) for _ in range(int(rng.integers(0, 5)))]
    rank = len(sizes)
    window = tuple(one(rng, (1, 1, 2, 3)) for _ in sizes)
    return sizes, {
        "kind": one(rng, kinds), "window": window, "strides": _many(rng, rank, 1, 3),
        "low": _many(rng, rank, 0, 1), "high": _many(rng, rank, 0, 2),
    }  # fmt: skip


def _reduce_window(rng: Rng) -> Use:
    sizes, attrs = _window(rng, ("sum", "prod", "max", "min", "or", "and", "xor"))
    rank = len(sizes)
    attrs |= {"dilation": _many(rng, rank, 1, 2), "input_dilation": _many(rng, rank, 1, 2)}
    return Use((spec(sizes),), attrs, SIZES, -2, 2)


def _window_derivative(name: str) -> Draw:
    def draw(rng: Rng) -> Use:
        sizes, attrs = _window(rng, ("max", "min"))
        if not sizes:
            return draw(rng)
        known = [one(rng, (1, 2, 3, 4)) for _ in sizes]
        parts = zip(known, attrs["window"], attrs["strides"], attrs["low"], attrs["high"], strict=True)
        windows = [max(0, (n + low + high - k) // step + 1) for n, k, step, low, high in parts]
        first = windows if name == "window_scatter" else known
        return Use((spec(list(map(str, first))), spec(list(map(str, known)))), attrs, SIZES, -2, 2)

    return draw


def _ragged_dot(rng: Rng) -> Use:
    return Use(("n k", "m k 2", f"m @{one(rng, _INTEGERS)}"), {}, {"n": (0, 6), "k": (0, 3), "m": (0, 4)}, 0, 2.5)


def _ragged_outer(rng: Rng) -> Use:
    return Use(("n k", "n 2", f"m @{one(rng, _INTEGERS)}"), {}, {"n": (0, 6), "k": (0, 3), "m": (0, 4)}, 0, 2.5)


# --- positions ---


def _dynamic_slice(rng: Rng) -> Use:
    chosen = [
        one(rng, [("n+2", "2"), ("n+2", "n"), ("3", "0"), ("m", "m"), ("4", "3")]) for _ in range(rng.integers(0, 5))
    ]
    index = one(rng, _INTEGERS)
    starts = tuple(f"@{index}" for _ in chosen)
    return Use((spec([c[0] for c in chosen]), *starts), {"sizes": tuple(c[1] for c in chosen)}, SIZES, -4, 8)


def _dynamic_update_slice(rng: Rng) -> Use:
    use = _dynamic_slice(rng)
    return Use((use.operands[0], spec(use.attrs["sizes"]), *use.operands[1:]), {}, SIZES, -4, 8)


def _numbers(rng: Rng) -> tuple[list[str], list[str], list[int], list[int], list[int], list[int], list[str]]:
    """An operand's sizes and the roles of its axes in a gather or scatter: batch sizes of the indices, the axes taken
    together with batch axes, where those are among the indices' axes, the axes that windows do not have, the axes that
    are indexed, and the size of a slice on each."""
    sizes = [one(rng, ("n+1", "m+1", "3", "2")) for _ in range(int(rng.integers(1, 5)))]
    axes = list(range(len(sizes)))
    batching = [a for a in axes if rng.integers(5) == 0]
    collapsed = [a for a in axes if a not in batching and rng.integers(2)]
    free = [a for a in axes if a not in batching]
    indexed = [int(a) for a in rng.permutation([a for a in free if a in collapsed or rng.integers(3) == 0])]
    batch = dims(rng, 0, 2)
    places: list[int] = []
    for a in batching:
        place = int(rng.integers(len(batch) + 1))
        batch.insert(place, sizes[a])
        places = [p + (p >= place) for p in places] + [place]
    slices = ["1" if a in batching or a in collapsed else one(rng, (sizes[a], "1", "2")) for a in axes]
    return sizes, batch, batching, places, collapsed, indexed, slices


def _interleaved(rng: Rng, windows: Sequence[str], batch: Sequence[str]) -> tuple[list[str], tuple[int, ...]]:
    """Window and batch axes in some order that keeps each kind's own, and where the window's are."""
    total = len(windows) + len(batch)
    at = tuple(sorted(map(int, rng.permutation(total)[: len(windows)])))
    inner, outer = iter(windows), iter(batch)
    return [next(inner) if i in at else next(outer) for i in range(total)], at


def _gather(rng: Rng) -> Use:
    sizes, batch, batching, places, collapsed, indexed, slices = _numbers(rng)
    kept = [a for a in range(len(sizes)) if a not in batching and a not in collapsed]
    _, offsets = _interleaved(rng, [slices[a] for a in kept], batch)
    mode = one(rng, ("clip", "fill", "promise"))
    attrs = {
        "slice_sizes": tuple(slices), "mode": mode, "offset_dims": offsets, "collapsed_slice_dims": tuple(collapsed),
        "start_index_map": tuple(indexed), "operand_batching_dims": tuple(batching),
        "start_indices_batching_dims": tuple(places),
    }  # fmt: skip
    indices = spec([*batch, str(len(indexed))], one(rng, _INTEGERS))
    # A slice of 2 fits sizes from 2 on.
    fits = {"n": (1, 4), "m": (1, 3), "k": (0, 3)}
    return Use((spec(sizes), indices), attrs, fits, *((0, 0) if mode == "promise" else (-2, 5)))


def _scatter(rng: Rng) -> Use:
    sizes, batch, batching, places, inserted, indexed, slices = _numbers(rng)
    if not indexed:  # all updates meet at one place, and XLA on CPU leaves out all but the last
        return _scatter(rng)
    kept = [a for a in range(len(sizes)) if a not in batching and a not in inserted]
    updates, windows = _interleaved(rng, [slices[a] for a in kept], batch)
    mode = one(rng, ("clip", "fill", "promise"))
    attrs = {
        "kind": one(rng, ("add", "multiply", "min", "max")), "mode": mode, "update_window_dims": windows,
        "inserted_window_dims": tuple(inserted), "scatter_dims_to_operand_dims": tuple(indexed),
        "operand_batching_dims": tuple(batching), "scatter_indices_batching_dims": tuple(places),
    }  # fmt: skip
    indices = spec([*batch, str(len(indexed))], one(rng, _INTEGERS))
    fits = {"n": (1, 4), "m": (1, 3), "k": (0, 3)}
    return Use(
        (spec(sizes), indices, spec(updates)), attrs, fits, *((0, 0) if mode == "promise" else (-2, 5)), looser=4
    )


# --- order, networks, linear algebra ---


def _sort(rng: Rng) -> Use:
    sizes = dims(rng, 1)
    others = [one(rng, ("float32", "int32", "bool", "bfloat16", "uint8")) for _ in range(int(rng.integers(0, 3)))]
    attrs = {"axis": int(rng.integers(len(sizes))), "num_keys": int(rng.integers(1, len(others) + 2))}
    return Use((spec(sizes), *(spec(sizes, d) for d in others)), attrs, SIZES, -2, 2)


def _top_k(rng: Rng) -> Use:
    sizes = dims(rng, 1)
    axis = int(rng.integers(len(sizes)))
    sizes[axis], k = one(rng, [("n", "n"), ("n+2", "2"), ("3", "1"), ("4", "0"), ("m+1", "1")])
    return Use((spec(sizes),), {"k": (k,), "axis": axis}, SIZES, -2, 2, special=flag(rng))


def _approx_top_k(rng: Rng) -> Use:
    use = _top_k(rng)
    sizes = {**SIZES, "n": (1, 4)}
    if use.attrs["k"] == ("0",):
        return _approx_top_k(rng)
    return replace(use, attrs={**use.attrs, "largest": flag(rng)}, sizes=sizes, special=False)


def _softmax(rng: Rng) -> Use:
    sizes = dims(rng, 1)
    return Use((spec(sizes),), {"axis": int(rng.integers(len(sizes)))}, SIZES)


def _norm(count: int) -> Draw:
    def draw(rng: Rng) -> Use:
        sizes = some_dims(rng)
        axes = tuple(range(int(rng.integers(len(sizes))), len(sizes)))
        scale = spec([sizes[a] for a in axes])
        return Use((spec(sizes), *[scale] * count), {"axes": axes, "epsilon": 1e-3}, SOME)

    return draw


# --- linear algebra; batches of matrices that are not too close to singular ---


def _matrix(kind: str, choices: Mapping[str, Sequence[Any]] = MappingProxyType({})) -> Draw:
    """A draw for a factorisation. `kind`: "definite", "separated" eigenvalues, of "any" form, or "some", not empty;
    `choices`: the values of attributes."""
    prepare = definite if "definite" in kind else separated if kind == "separated" else None

    def draw(rng: Rng) -> Use:
        batch = dims(rng, 0, 2)
        form = ["n", "n"] if kind != "any" else [one(rng, ("n", "3")), one(rng, ("m", "2", "4"))]
        sizes = {**SIZES, "n": (1, 4)} if "some" in kind else SIZES
        attrs = {name: one(rng, values) for name, values in choices.items()}
        return Use((spec([*batch, *form]),), attrs, sizes, prepare=prepare, looser=50)

    return draw


def _cholesky_update(rng: Rng) -> Use:
    return Use(("n n", "n"), {}, SIZES, prepare=factored, looser=50)


def _triangular_solve(rng: Rng) -> Use:
    batch, left = dims(rng, 0, 2), flag(rng)
    names = ("lower", "transpose_a", "conjugate_a", "unit_diagonal")
    attrs = {"left_side": left, **{name: flag(rng) for name in names}}
    sides = ["n", "m"] if left else ["m", "n"]
    return Use((spec([*batch, "n", "n"]), spec([*batch, *sides])), attrs, SIZES, prepare=dominant, looser=50)


def _householder_product(rng: Rng) -> Use:
    batch = dims(rng, 0, 2)
    rows, columns, count = one(rng, [("n", "n", "n"), ("4", "3", "2"), ("n+2", "2", "1"), ("3", "0", "0")])
    return Use((spec([*batch, rows, columns]), spec([*batch, count])), {}, SIZES, looser=20)


def _tridiagonal_solve(rng: Rng) -> Use:
    batch = dims(rng, 0, 2)
    diagonal = spec([*batch, "n"])
    return Use((diagonal, diagonal, diagonal, spec([*batch, "n", "m"])), {}, SIZES, prepare=diagonals, looser=20)


def _permutation(rng: Rng) -> Use:
    return Use((spec([*dims(rng, 0, 2), "n"], "int32"),), {"size": ("n+5",)}, SIZES, 0, 4)


def _fft(rng: Rng) -> Use:
    batch, count = dims(rng, 0, 2), int(rng.integers(1, 4))
    lengths = [one(rng, (1, 2, 3, 4, 6)) for _ in range(count)]
    kind = one(rng, ("fft", "ifft", "rfft", "irfft"))
    last = lengths[-1] // 2 + 1 if kind == "irfft" else lengths[-1]
    sizes = [*batch, *map(str, lengths[:-1]), str(last)]
    return Use((spec(sizes),), {"kind": kind, "lengths": tuple(lengths)}, SIZES, looser=4)


# --- numbers ---


def _reduce_precision(rng: Rng) -> Use:
    attrs = {"exponent_bits": int(rng.integers(1, 12)), "mantissa_bits": int(rng.integers(0, 54))}
    return Use((spec(dims(rng)),), attrs, SIZES, -1e3, 1e3, special=flag(rng))


def _bitcast(rng: Rng) -> Use:
    have, want, parts = one(rng, [
        ("float32", "int32", 1), ("float16", "uint16", 1), ("int8", "uint8", 1), ("float64", "int64", 1),
        ("uint16", "uint32", 2), ("int8", "bfloat16", 2), ("uint32", "float16", 1), ("float32", "uint8", 1),
        ("uint8", "float8_e5m2", 1), ("float8_e4m3fn", "int8", 1),
    ])  # fmt: skip
    return Use((spec([*dims(rng, 0, 3), *(["2"] if parts == 2 else [])], have),), {"dtype": want}, SIZES)


# --- random bits ---

_KEYS = ("key<fry>", "key<fry>", "key<rbg>", "key<urbg>")


def _random_seed(rng: Rng) -> Use:
    impl = one(rng, ("threefry2x32", "rbg", "unsafe_rbg"))
    return Use((spec(dims(rng)),), {"impl": impl}, SIZES, -100, 100, special=flag(rng))


def _random_wrap(rng: Rng) -> Use:
    impl, count = one(rng, [("threefry2x32", "2"), ("rbg", "4"), ("unsafe_rbg", "4")])
    return Use((spec([*dims(rng, 0, 3), count], "uint32"),), {"impl": impl}, SIZES, 0, 1e6)


def _random_unwrap(rng: Rng) -> Use:
    return Use((spec(dims(rng), one(rng, _KEYS)),), {}, SIZES)


def _random_fold_in(rng: Rng) -> Use:
    sizes = some_dims(rng, 0, 3)
    keys, data = broadcastable(rng, sizes), broadcastable(rng, sizes)
    return Use((spec(keys, one(rng, _KEYS)), spec(data, one(rng, ("uint32", "int32", "uint8")))), {}, SOME, 0, 200)


def _random_split(rng: Rng) -> Use:
    attrs = {"shape": tuple(some_dims(rng, 0, 2))}
    return Use((spec(some_dims(rng, 0, 2), one(rng, _KEYS)),), attrs, SOME)


def _random_bits(rng: Rng) -> Use:
    attrs = {"shape": tuple(dims(rng, 0, 3)), "bit_width": one(rng, (8, 16, 32, 64))}
    return Use((spec(some_dims(rng, 0, 2), one(rng, _KEYS)),), attrs, {**SIZES, "n": (1, 4), "m": (1, 3), "k": (1, 3)})


def _random_gamma(rng: Rng) -> Use:
    sizes = some_dims(rng, 0, 2)
    keys = spec(sizes[: int(rng.integers(len(sizes) + 1))], one(rng, _KEYS))
    return Use((keys, spec(sizes)), {"log_space": flag(rng)}, SOME, 0.2, 5, looser=20)


def _threefry2x32(rng: Rng) -> Use:
    sizes = dims(rng)
    return Use(tuple(spec(broadcastable(rng, sizes), "uint32") for _ in range(4)), {}, SIZES, 0, 1e6)


def _rng_bit_generator(rng: Rng) -> Use:
    attrs = {
        "shape": tuple(dims(rng, 0, 3)), "dtype": one(rng, ("uint8", "uint16", "uint32", "uint64")),
        "algorithm": one(rng, ("default", "philox")),
    }  # fmt: skip
    return Use((one(rng, ("4 @uint32", "2 @uint64")),), attrs, SIZES, 0, 1e6)


DRAWS: dict[str, Draw] = {
    **{name: _pointwise(1, *RANGES.get(name, (-2, 2))) for name in UNARY},
    **{name: _pointwise(2, *RANGES.get(name, (-3, 3))) for name in BINARY},
    "round": _pointwise(1, -3, 3, lambda rng: {"method": one(rng, ("to_even", "away"))}),
    "integer_pow": _pointwise(1, 0.5, 2, lambda rng: {"y": int(rng.integers(0, 6))}),
    "clip": _pointwise(3, -3, 3),
    "where": _where,
    "astype": _astype,
    **dict.fromkeys(("sum", "prod", "max", "min", "any", "all", "reduce_or", "reduce_and", "reduce_xor", "mean"),
                    _reduction),
    **dict.fromkeys(("argmax", "argmin"), _position),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), _scan),
    "permute_dims": _permute_dims, "reshape": _reshape, "expand_dims": _expand_dims, "squeeze": _squeeze,
    "broadcast_to": _broadcast_to, "concat": _concat, "split": _split, "strided_slice": _strided_slice, "pad": _pad,
    "take": _take, "flip": _flip, "triu": _triangle, "tril": _triangle,
    "full": _full, "iota": _iota, "one_hot": _one_hot, "dim_value": _dim_value,
    "matmul": _matmul, "linear": _linear, "conv": _conv, "reduce_window": _reduce_window, "ragged_dot": _ragged_dot, "ragged_outer": _ragged_outer,
    **{name: _window_derivative(name) for name in ("window_scatter", "window_gather")},
    "dynamic_slice": _dynamic_slice, "dynamic_update_slice": _dynamic_update_slice, "gather": _gather,
    "scatter": _scatter,
    "sort": _sort, "top_k": _top_k, "approx_top_k": _approx_top_k,
    "softmax": _softmax, "log_softmax": _softmax, "layer_norm": _norm(2), "rms_norm": _norm(1),
    "cholesky": _matrix("definite"), "eigh": _matrix("definite"), "lu": _matrix("any"),
    "qr": _matrix("any", {"pivoting": (False, True), "full_matrices": (False, True)}), "geqrf": _matrix("any"),
    "eig": _matrix("separated", {"left": (False, True), "right": (False, True)}),
    "schur": _matrix("separated", {"vectors": (False, True)}), "hessenberg": _matrix("some"),
    "tridiagonal": _matrix("some definite", {"lower": (False, True)}), "householder_product": _householder_product,
    "tridiagonal_solve": _tridiagonal_solve, "cholesky_update": _cholesky_update,
    "lu_pivots_to_permutation": _permutation,
    "svd": _matrix("any"), "triangular_solve": _triangular_solve, "fft": _fft,
    **dict.fromkeys(("lgamma", "digamma", "bessel_i0e", "bessel_i1e"), _pointwise(1, 0.3, 4)),
    **dict.fromkeys(("igamma", "igammac", "igamma_grad_a"), _pointwise(2, 0.3, 4, looser=SERIES)),
    "zeta": _pointwise(2, 1.5, 4, looser=SERIES), "betainc": _pointwise(3, 0.2, 0.8, looser=SERIES),
    "polygamma": _pointwise(2, 1, 3, prepare=whole_orders, looser=SERIES),
    **dict.fromkeys(("less_total", "less_equal_total", "equal_total"), _pointwise(2, -2, 2, special=True)),
    "nextafter": _pointwise(2, -2, 2, special=True),
    **dict.fromkeys(("population_count", "count_leading_zeros"), _pointwise(1, -2, 2, special=True)),
    "right_shift_logical": _pointwise(2, -9, 70), "complex": _pointwise(2, -2, 2),
    **dict.fromkeys(("real", "imag", "conj"), _pointwise(1, -2, 2)),
    "reduce_precision": _reduce_precision, "bitcast": _bitcast,
    "random_seed": _random_seed, "random_wrap": _random_wrap, "random_unwrap": _random_unwrap,
    "random_fold_in": _random_fold_in, "random_split": _random_split, "random_bits": _random_bits,
    "random_gamma": _random_gamma, "threefry2x32": _threefry2x32, "rng_bit_generator": _rng_bit_generator,
}  # fmt: skip
