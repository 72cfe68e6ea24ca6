"""Random uses of operators: ranks 0 to 4, sizes from 0, any attributes the operator takes."""

from __future__ import annotations

from dataclasses import replace

from draw_support import (
    INTEGERS,
    NUMBERS,
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
    subset,
)
from ops_library_draws import LIBRARY_DRAWS
from ops_samples import BINARY, RANGES, UNARY
from ops_use import Use

# --- elementwise ---


def _where(rng: Rng) -> Use:
    sizes = dims(rng)
    condition, x, y = (broadcastable(rng, sizes) for _ in range(3))
    return Use((spec(condition, "bool"), spec(x), spec(y)), {}, SIZES)


# --- reductions and scans ---


def _reduction(rng: Rng) -> Use:
    sizes = dims(rng)
    return Use((spec(sizes),), {"axes": subset(rng, range(len(sizes))), "keepdims": flag(rng)}, SIZES)


def _extreme(rng: Rng) -> Use:
    return replace(_reduction(rng), special=flag(rng))


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
    dtype = one(rng, INTEGERS)
    return Use((spec(sizes), spec(indices, dtype)), {"axis": axis, "mode": mode}, SOME, low, high)


def _flip(rng: Rng) -> Use:
    sizes = dims(rng)
    return Use((spec(sizes),), {"axes": subset(rng, range(len(sizes)))}, SIZES)


def _on_host(rng: Rng) -> Use:
    return Use((spec(dims(rng)),), {}, SIZES)


def _after(rng: Rng) -> Use:
    return Use((spec(dims(rng)), spec(dims(rng))), {}, SIZES)


def _annotate_sharding(rng: Rng) -> Use:
    sizes = dims(rng)
    places = ["R", *(f"S[{d}]" for d in range(len(sizes)))]
    return Use((spec(sizes),), {"mesh": "x=1", "placement": str(rng.choice(places))}, SIZES)


def _triangle(rng: Rng) -> Use:
    return Use((spec(dims(rng, 2)),), {"k": int(rng.integers(-3, 4))}, SIZES)


# --- creation ---


def _full(rng: Rng) -> Use:
    return Use(("",), {"shape": tuple(dims(rng))}, SIZES)


def _iota(rng: Rng) -> Use:
    sizes = dims(rng, 1)
    dtype = one(rng, [d for d in NUMBERS if d != "bool"])
    return Use((), {"shape": tuple(sizes), "axis": int(rng.integers(len(sizes))), "dtype": dtype}, SIZES)


def _one_hot(rng: Rng) -> Use:
    attrs = {"depth": (one(rng, ("n", "4", "0")),), "dtype": one(rng, NUMBERS)}
    return Use((spec(dims(rng, 0, 3), one(rng, INTEGERS)),), attrs, SIZES, -2, 5)


def _dim_value(rng: Rng) -> Use:
    dim = one(rng, ("n", "n*m+1", "k//2", "7"))
    return Use((), {"dim": (dim,), "dtype": one(rng, ("int32", "uint8", "float32", "bfloat16", "int64"))}, SIZES)


def _astype(rng: Rng) -> Use:
    return Use((spec(dims(rng)),), {"dtype": one(rng, (*NUMBERS, "int8", "uint32", "int16"))}, SIZES, -4, 4)


# --- contraction and networks ---


def _matmul(rng: Rng) -> Use:
    batch = dims(rng, 0, 2)
    left = [*broadcastable(rng, batch), "n", "k"]
    right = [*broadcastable(rng, batch), "k", "m"]
    if rng.integers(4) == 0:
        left, right = one(rng, [(["k"], right), (left, ["k"]), (["k"], ["k"])])
    return Use((spec(left), spec(right)), {"precision": one(rng, (None, "high", "highest", "default"))}, SIZES)


def _linear(rng: Rng) -> Use:
    return Use((spec([*dims(rng, 0, 3), "k"]), "m k"), {}, SIZES)


def _ragged_dot(rng: Rng) -> Use:
    return Use(("n k", "m k 2", f"m @{one(rng, INTEGERS)}"), {}, {"n": (0, 6), "k": (0, 3), "m": (0, 4)}, 0, 2.5)


def _ragged_outer(rng: Rng) -> Use:
    return Use(("n k", "n 2", f"m @{one(rng, INTEGERS)}"), {}, {"n": (0, 6), "k": (0, 3), "m": (0, 4)}, 0, 2.5)


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


# Where infinities, NaN, signed zeros and the ends of integers have one right answer, which XLA gives.
_EXACT = frozenset(
    """negative abs sign floor ceil square isfinite isnan logical_not bitwise_not relu add subtract multiply
    maximum minimum remainder divide bitwise_and bitwise_or bitwise_xor left_shift right_shift multiply_high
    equal not_equal less less_equal greater greater_equal""".split()
)


def _special(name: str) -> bool | None:
    return None if name in _EXACT else False


DRAWS: dict[str, Draw] = LIBRARY_DRAWS | {
    **{name: pointwise(1, *RANGES.get(name, (-2, 2)), special=_special(name)) for name in UNARY},
    **{name: pointwise(2, *RANGES.get(name, (-3, 3)), special=_special(name)) for name in BINARY},
    "round": pointwise(1, -3, 3, lambda rng: {"method": one(rng, ("to_even", "away"))}, special=None),
    "integer_pow": pointwise(1, 0.5, 2, lambda rng: {"y": int(rng.integers(0, 6))}),
    "clip": pointwise(3, -3, 3),
    "where": _where,
    "astype": _astype,
    **dict.fromkeys("sum prod any all mean".split(), _reduction),
    **dict.fromkeys("max min reduce_or reduce_and reduce_xor".split(), _extreme),
    **dict.fromkeys(("argmax", "argmin"), _position),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), _scan),
    "permute_dims": _permute_dims, "reshape": _reshape, "expand_dims": _expand_dims, "squeeze": _squeeze,
    "broadcast_to": _broadcast_to, "concat": _concat, "split": _split, "strided_slice": _strided_slice, "pad": _pad,
    "take": _take, "flip": _flip, "after": _after, "on_host": _on_host, "from_host": _on_host,
    "annotate_sharding": _annotate_sharding,
    "triu": _triangle, "tril": _triangle,
    "full": _full, "iota": _iota, "one_hot": _one_hot, "dim_value": _dim_value,
    "matmul": _matmul, "linear": _linear, "ragged_dot": _ragged_dot, "ragged_outer": _ragged_outer,
    "softmax": _softmax, "log_softmax": _softmax, "layer_norm": _norm(2), "rms_norm": _norm(1),
}  # fmt: skip
