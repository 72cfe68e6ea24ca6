"""Random uses of the operators over windows, at computed positions, of the library routines, and of random bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from draw_support import (
    INTEGERS,
    SIZES,
    SOME,
    Draw,
    Rng,
    broadcastable,
    dims,
    flag,
    one,
    pointwise,
    some_dims,
    spec,
)
from ops_library_samples import (
    SERIES,
    definite,
    diagonals,
    dominant,
    eigenvectors_first,
    eigenvectors_last,
    factored,
    factored_matrix,
    magnitudes,
    separated,
    singular_vectors,
    unfactored_matrix,
    whole_orders,
)
from ops_use import Use

# --- windows ---


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


# --- positions ---


def _dynamic_slice(rng: Rng) -> Use:
    chosen = [
        one(rng, [("n+2", "2"), ("n+2", "n"), ("3", "0"), ("m", "m"), ("4", "3")]) for _ in range(rng.integers(0, 5))
    ]
    index = one(rng, INTEGERS)
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
    indices = spec([*batch, str(len(indexed))], one(rng, INTEGERS))
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
    indices = spec([*batch, str(len(indexed))], one(rng, INTEGERS))
    fits = {"n": (1, 4), "m": (1, 3), "k": (0, 3)}
    return Use(
        (spec(sizes), indices, spec(updates)), attrs, fits, *((0, 0) if mode == "promise" else (-2, 5)), looser=4
    )


# --- order ---


def _sort(rng: Rng) -> Use:
    sizes = dims(rng, 1)
    others = [one(rng, ("float32", "int32", "bool", "bfloat16", "uint8")) for _ in range(int(rng.integers(0, 3)))]
    attrs = {"axis": int(rng.integers(len(sizes))), "num_keys": int(rng.integers(1, len(others) + 2))}
    return Use((spec(sizes), *(spec(sizes, d) for d in others)), attrs, SIZES, -2, 2, special=flag(rng))


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


# --- linear algebra; batches of matrices that are not too close to singular ---


def _matrix(kind: str, choices: Mapping[str, Sequence[Any]] = MappingProxyType({}), settle: Any = None) -> Draw:
    """A draw for a factorisation. `kind`: "definite", "separated" eigenvalues, of "any" form, or "some", not empty;
    `choices`: the values of attributes; `settle`: as in a use."""
    prepare = definite if "definite" in kind else separated if kind == "separated" else None

    def draw(rng: Rng) -> Use:
        batch = dims(rng, 0, 2)
        form = ["n", "n"] if kind != "any" else [one(rng, ("n", "3")), one(rng, ("m", "2", "4"))]
        sizes = {**SIZES, "n": (1, 4)} if "some" in kind else SIZES
        attrs = {name: one(rng, values) for name, values in choices.items()}
        return Use((spec([*batch, *form]),), attrs, sizes, prepare=prepare, settle=settle, looser=50)

    return draw


def _cholesky_update(rng: Rng) -> Use:
    return Use(("n n", "n"), {}, SIZES, prepare=factored, looser=50)


def _triangular_solve(rng: Rng) -> Use:
    batch, left = dims(rng, 0, 2), flag(rng)
    names = ("lower", "transpose_a", "conjugate_a", "unit_diagonal")
    attrs = {"left_side": left, **{name: flag(rng) for name in names}}
    sides = ["n", "m"] if left else ["m", "n"]
    return Use((spec([*batch, "n", "n"]), spec([*batch, *sides])), attrs, SIZES, prepare=dominant, looser=50)


def _definite_solve(rng: Rng) -> Use:
    return Use(("n n", "n m", "n n"), {}, SIZES, prepare=one(rng, (factored_matrix, unfactored_matrix)), looser=50)


def _householder_product(rng: Rng) -> Use:
    batch = dims(rng, 0, 2)
    rows, columns, count = one(rng, [("n", "n", "n"), ("4", "3", "2"), ("n+2", "2", "1"), ("3", "0", "0")])
    return Use((spec([*batch, rows, columns]), spec([*batch, count])), {}, SIZES, looser=20)


def _ormqr(rng: Rng) -> Use:
    batch, left = dims(rng, 0, 2), flag(rng)
    rows, columns, count = one(rng, [("n", "n", "n"), ("4", "3", "2"), ("n+2", "2", "1"), ("3", "0", "0")])
    specs = [spec([*batch, rows, columns]), spec([*batch, count])]
    specs.append(spec([*batch, rows, "m"] if left else [*batch, "m", rows]))
    return Use(tuple(specs), {"left": left, "transpose": flag(rng)}, SIZES, looser=20)


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
        "algorithm": one(rng, ("default", "philox", "three_fry")),
    }  # fmt: skip
    return Use((one(rng, ("4 @uint32", "2 @uint64")),), attrs, SIZES, 0, 1e6)


LIBRARY_DRAWS: dict[str, Draw] = {
    "conv": _conv, "reduce_window": _reduce_window,
    **{name: _window_derivative(name) for name in ("window_scatter", "window_gather")},
    "dynamic_slice": _dynamic_slice, "dynamic_update_slice": _dynamic_update_slice, "gather": _gather,
    "scatter": _scatter,
    "sort": _sort, "top_k": _top_k, "approx_top_k": _approx_top_k,
    "cholesky": _matrix("definite"), "eigh": _matrix("definite", settle=eigenvectors_first), "lu": _matrix("any"),
    "qr": _matrix("any", {"pivoting": (False, True), "full_matrices": (False, True)}), "geqrf": _matrix("any"),
    "eig": _matrix("separated", {"left": (False, True), "right": (False, True)}, eigenvectors_last),
    "schur": _matrix("separated", {"vectors": (False, True)}, magnitudes), "hessenberg": _matrix("some"),
    "tridiagonal": _matrix("some definite", {"lower": (False, True)}), "householder_product": _householder_product,
    "ormqr": _ormqr, "definite_solve": _definite_solve,
    "tridiagonal_solve": _tridiagonal_solve, "cholesky_update": _cholesky_update,
    "lu_pivots_to_permutation": _permutation,
    "svd": _matrix("any", settle=singular_vectors), "triangular_solve": _triangular_solve, "fft": _fft,
    **dict.fromkeys(("lgamma", "digamma", "bessel_i0e", "bessel_i1e"), pointwise(1, 0.3, 4)),
    **dict.fromkeys(("igamma", "igammac", "igamma_grad_a"), pointwise(2, 0.3, 4, looser=SERIES)),
    "zeta": pointwise(2, 1.5, 4, looser=SERIES), "betainc": pointwise(3, 0.2, 0.8, looser=SERIES),
    "polygamma": pointwise(2, 1, 3, prepare=whole_orders, looser=SERIES),
    **dict.fromkeys(("less_total", "less_equal_total", "equal_total"), pointwise(2, -2, 2, special=True)),
    "nextafter": pointwise(2, -2, 2, special=True),
    **dict.fromkeys(("population_count", "count_leading_zeros"), pointwise(1, -2, 2, special=True)),
    "right_shift_logical": pointwise(2, -9, 70), "complex": pointwise(2, -2, 2),
    **dict.fromkeys(("real", "imag", "conj"), pointwise(1, -2, 2)),
    "reduce_precision": _reduce_precision, "bitcast": _bitcast,
    "random_seed": _random_seed, "random_wrap": _random_wrap, "random_unwrap": _random_unwrap,
    "random_fold_in": _random_fold_in, "random_split": _random_split, "random_bits": _random_bits,
    "random_gamma": _random_gamma, "threefry2x32": _threefry2x32, "rng_bit_generator": _rng_bit_generator,
}  # fmt: skip
