"""For every operator, uses of it that the facet test tries: operand specs, attributes and ranges of sizes and values.

Sizes in specs and attributes are symbolic; `sizes` gives each variable's range. The first use of an operator is tried
at every dtype, the others at one.
"""

from __future__ import annotations

from ops_library_samples import library_uses
from ops_use import ANY, N, Use

# Where a function is defined, and not too steep for a relative comparison.
RANGES: dict[str, tuple[float, float]] = {
    "log": (0.2, 4), "log1p": (-0.5, 4), "sqrt": (0.1, 4), "rsqrt": (0.1, 4), "reciprocal": (0.3, 3), "tan": (-1, 1),
    "asin": (-0.9, 0.9), "acos": (-0.9, 0.9), "acosh": (1.1, 4), "atanh": (-0.9, 0.9), "erf_inv": (-0.9, 0.9),
    "power": (0.2, 2), "divide": (1, 4), "remainder": (1, 9), "left_shift": (0, 5), "right_shift": (0, 5),
}  # fmt: skip
UNARY = """negative abs sign floor ceil exp exp2 expm1 log log1p sqrt rsqrt cbrt sin cos tan tanh sinh cosh asin acos
atan asinh acosh atanh sigmoid erf erfc erf_inv square reciprocal isfinite isnan logical_not bitwise_not relu silu gelu
gelu_tanh""".split()
BINARY = """add subtract multiply divide power maximum minimum remainder atan2 logical_and logical_or logical_xor
bitwise_and bitwise_or bitwise_xor left_shift right_shift multiply_high equal not_equal less less_equal greater
greater_equal""".split()


def _unary(low: float, high: float) -> list[Use]:
    return [Use(("n 3",), {}, ANY, low, high), Use(("",), {}, {}, low, high)]


def _binary(low: float, high: float) -> list[Use]:
    specs = [("n 3", "n 3"), ("n m", ""), ("n 1 3", "m 1"), ("", ""), ("m", "1")]
    return [Use(pair, {}, ANY, low, high) for pair in specs]


def _uses() -> dict[str, list[Use]]:
    uses = {name: _unary(*RANGES.get(name, (-2, 2))) for name in UNARY}
    uses |= {name: _binary(*RANGES.get(name, (-3, 3))) for name in BINARY}
    uses["round"] = [Use(("n 3",), {"method": m}, ANY) for m in ("to_even", "away")]
    uses["integer_pow"] = [Use(("n 3",), {"y": y}, N, 0.5, 2) for y in (2, 3, 0, -2)]
    uses["where"] = [
        Use(("n 3 @bool", "n 3", "n 3"), {}, ANY), Use(("@bool", "n 1", "1 m"), {}, ANY),
        Use(("n 1 @bool", "", "m"), {}, ANY),
    ]  # fmt: skip
    uses["clip"] = [Use(("", "n 3", ""), {}, ANY), Use(("n 1", "n m", "m"), {}, ANY), Use(("", "", ""))]
    uses["astype"] = [
        Use(("n 3",), {"dtype": d}, ANY, -4, 4)
        for d in ("float32", "float16", "bfloat16", "int32", "uint8", "int8", "bool", "float64")
    ]
    uses["matmul"] = [
        Use((a, b), attrs, ANY | {"k": (0, 6), "b": (0, 3)})
        for a, b, attrs in [
            ("n k", "k m", {}),
            ("k", "k", {}),
            ("n k", "k", {}),
            ("k", "k m", {}),
            ("b n k", "k m", {"precision": "highest"}),
            ("b n k", "b k m", {"out_dtype": "float32"}),
            ("2 1 n k", "b k 3", {"precision": "high"}),
            ("k", "b k 3", {}),
            ("b 1 k", "k", {}),
        ]
    ]
    uses["matmul"] += (
        [Use(("n k", "k m"), {"precision": p}, ANY | {"k": (0, 6)}) for p in (("highest", "default"), "F32_F32_F32")]
        + [Use(("n k @bool", "k m @bool"), {"out_dtype": d}, ANY | {"k": (0, 6)}) for d in (None, "int32", "float32")]
        + [Use(("n k @float8_e5m2", "k m @float8_e5m2"), {"out_dtype": "float32"}, ANY | {"k": (0, 6)})]
    )
    uses["ragged_dot"] = [
        Use((x, w, f"{g} @{dtype}"), attrs, {"n": (0, 7), "m": (1, 4), "g": (0, 3)}, -2, 2.5)
        for x, w, g, dtype, attrs in [
            ("n 3", "g 3 m", "g", "int32", {}), ("5 m", "2 m 4", "2", "uint8", {"precision": "highest"}),
            ("n 2", "3 2 m", "3", "int32", {}),
        ]
    ]  # fmt: skip
    uses["ragged_outer"] = [
        Use((x, y, f"{g} @{dtype}"), {}, {"n": (0, 7), "m": (1, 4), "g": (0, 3)}, 0, 2.5)
        for x, y, g, dtype in [("n 3", "n m", "g", "int32"), ("5 m", "5 4", "2", "uint8"), ("n 2", "n 1", "3", "int64")]
    ]
    uses["linear"] = [Use((x, "m k"), {}, ANY | {"k": (0, 6), "b": (0, 3)}) for x in ("n k", "k", "b n k")]
    for name in ("sum", "prod", "any", "all"):
        uses[name] = [
            Use(("n m 2",), {"axes": axes, "keepdims": keep}, ANY)
            for axes, keep in [
                ((0,), False),
                ((1, 2), False),
                ((0, 2), True),
                ((0, 1, 2), False),
                ((), False),
                ((), True),
            ]
        ] + [Use(("",), {"axes": ()})]
    for name in ("max", "min", "reduce_or", "reduce_and", "reduce_xor"):
        uses[name] = uses["sum"]
    uses["mean"] = [use for use in uses["sum"] if use.sizes is ANY] + [Use(("",), {"axes": ()})]
    for name in ("argmax", "argmin"):
        uses[name] = [
            Use(("n m 2",), {"axis": axis, "keepdims": keep, "dtype": dtype}, N)
            for axis, keep, dtype in [(0, False, "int32"), (2, True, "uint8"), (1, False, "int32")]
        ]
    for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"):
        uses[name] = [
            Use(("n m",), {"axis": axis, "reverse": r}, ANY, -1.5, 1.5)
            for axis, r in [(0, False), (1, True), (1, False)]
        ]
    uses["permute_dims"] = [
        Use(("n m 2",), {"axes": (2, 0, 1)}, ANY), Use(("n m",), {"axes": (1, 0)}, ANY), Use(("",), {"axes": ()}),
    ]  # fmt: skip
    uses["reshape"] = [
        Use((a,), {"shape": b}, ANY)
        for a, b in [
            ("n 6", ("n", 2, 3)), ("n 2 3", ("n", 6)), ("n m", ("n*m",)), ("n*m", ("m", "n")),
            ("n m 4", ("m", "2*n", 2)),
            ("n 1 4", ("n", 2, 1, 2)), ("1 1", ()), ("", (1, 1)), ("4 n 3", (2, "2*n", 3)), ("6 n", ("n", 6)),
        ]
    ]  # fmt: skip
    uses["expand_dims"] = [Use(("n m",), {"axes": a}, ANY) for a in [(0,), (1, 3), ()]] + [Use(("",), {"axes": (0, 1)})]
    uses["squeeze"] = [Use(("1 n 1 m",), {"axes": a}, ANY) for a in [(0, 2), (0,), ()]] + [Use(("1",), {"axes": (0,)})]
    uses["broadcast_to"] = [
        Use((a,), {"shape": b}, ANY)
        for a, b in [("n 1", ("n", 4)), ("", ("n", "m")), ("1", (2, "n")), ("n m", (3, "n", "m")), ("", ())]
    ]
    uses["concat"] = [
        Use(("n 3", "m 3", "2 3"), {"axis": 0}, ANY), Use(("n m",), {"axis": 1}, ANY),
        Use(("n m", "n 2"), {"axis": 1}, ANY),
    ]  # fmt: skip
    uses["split"] = [
        Use(("3*n m",), {"sections": ("n", "2*n"), "axis": 0}, ANY), Use(("2 5",), {"sections": (0, 2, 3), "axis": 1}),
    ]  # fmt: skip
    uses["strided_slice"] = [
        Use(("n+3 m",), {"begin": (1, 0), "end": ("n+2", "m"), "strides": (1, 1)}, ANY),
        Use(("2*n 7",), {"begin": (0, 1), "end": ("2*n", 6), "strides": (2, 3)}, ANY),
        Use(("n+m",), {"begin": ("n",), "end": ("n+m",), "strides": (3,)}, ANY),
        Use(("",), {"begin": (), "end": (), "strides": ()}),
    ]
    uses["pad"] = [
        Use(("n m", ""), {"low": (1, 0), "high": (0, 2), "interior": (0, 0)}, ANY),
        Use(("n+3 m", ""), {"low": (-1, 1), "high": (-1, 0), "interior": (0, 2)}, ANY),
        Use(("n 3", ""), {"low": ("m", -2), "high": (1, 3), "interior": (1, 2)}, ANY),
        Use(("n", ""), {"low": (0,), "high": (0,), "interior": (0,)}, ANY),
        Use(("", ""), {"low": (), "high": (), "interior": ()}),
    ]
    uses["take"] = [
        Use((x, i), {"axis": axis, "mode": mode}, N, -6, 6)
        for x, i, axis, mode in [
            ("n 3", "m @int32", 0, "fill"), ("n 3", "m 2 @int32", 0, "clip"), ("2 n", "m 2 @int32", 1, "fill"),
            ("2 n 3", "@int32", 1, "clip"), ("n", "m @uint8", 0, "fill"), ("n 3", "0 @int32", 1, "promise"),
        ]
    ]  # fmt: skip
    uses["flip"] = [Use(("n m",), {"axes": a}, ANY) for a in [(0,), (0, 1), ()]]
    uses["on_host"] = uses["from_host"] = [Use((x,), {}, ANY) for x in ("n m", "")]
    uses["after"] = [Use((x, t), {}, ANY) for x, t in [("n m", "n"), ("", "2 m"), ("n", "")]]
    uses["annotate_sharding"] = [
        Use((x,), {"mesh": "x=1", "placement": p}, ANY) for x, p in [("n m", "S[1]"), ("", "R"), ("n", "S[0]")]
    ]
    for name in ("triu", "tril"):
        uses[name] = [Use(("n m",), {"k": k}, ANY) for k in (0, 1, -2)] + [Use(("2 n m",), {}, ANY)]
    uses["full"] = [Use(("",), {"shape": s}, ANY) for s in [("n", 3), (), ("n", "m")]]
    uses["iota"] = [
        Use((), {"shape": s, "axis": a, "dtype": d}, ANY)
        for s, a, d in [
            (("n", 3), 0, "int32"), (("n", "m"), 1, "float32"), ((4,), 0, "uint8"), (("n",), 0, "bfloat16"),
        ]
    ]  # fmt: skip
    uses["one_hot"] = [
        Use(("n @int32",), {"depth": ("m",), "dtype": "float32"}, ANY, -1, 6),
        Use(("n 2 @uint8",), {"depth": (300,), "dtype": "bool"}, ANY, 0, 200),
        Use(("@int32",), {"depth": (3,), "dtype": "int32"}, {}, -1, 4),
    ]
    uses["dim_value"] = [Use((), {"dim": ("n*m + 1",), "dtype": d}, ANY) for d in ("int32", "float32", "float16")]
    for name in ("softmax", "log_softmax"):
        uses[name] = [Use(("n m",), {"axis": a}, ANY) for a in (1, 0)] + [Use(("3 n 2",), {"axis": 1}, N)]
    uses["layer_norm"] = [
        Use(("n m 3", "3", "3"), {"axes": (2,), "epsilon": 1e-5}, N),
        Use(("n m 3", "m 3", "m 3"), {"axes": (1, 2), "epsilon": 1e-3}, N),
    ]
    uses["rms_norm"] = [
        Use(("n m 3", "3"), {"axes": (2,), "epsilon": 1e-5}, N),
        Use(("n 4", "n 4"), {"axes": (0, 1), "epsilon": 1e-3}, N),
    ]  # fmt: skip
    uses |= library_uses()
    return uses


USES = _uses()
