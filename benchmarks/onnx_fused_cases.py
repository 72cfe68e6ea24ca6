"""Random uses of the operators into which onnxruntime fuses others (`com.microsoft`), as its documentation has them.

Each function draws the inputs and attributes of one operator. Only what the documentation defines is drawn: rows beyond
the length of a sequence, for example, are not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from benchmarks.onnx_draws import Array, Case

DOMAIN = "com.microsoft"
_SYMBOLIC = 1 / 3  # of the sets have named sizes
_SPREAD = 0.5  # of the weights, so that sums stay near 1


class Use:
    """A use of an operator, input by input.

    - `given`: the arrays that the model is called with. `held`: its initializers.
    - `names`: the inputs of the node, "" for one that is left out.
    """

    def __init__(self, kind: str, rng: np.random.Generator) -> None:
        self.kind, self.rng = kind, rng
        self.given: dict[str, Array] = {}
        self.held: dict[str, Array] = {}
        self.names: list[str] = []
        self.attributes: dict[str, Any] = {}
        self.outputs = 1
        self.shown = 0  # outputs of the model, if the others are not defined everywhere

    def chance(self, p: float = 0.5) -> bool:
        return bool(self.rng.random() < p)

    def one(self, *values: Any) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def size(self, low: int = 1, high: int = 5) -> int:
        return int(self.rng.integers(low, high + 1))

    def floats(self, *shape: int) -> Array:
        return self.rng.standard_normal(shape).astype(np.float32)

    def weights(self, *shape: int) -> Array:
        return (self.floats(*shape) * _SPREAD).astype(np.float32)

    def add(self, array: Any, held: bool = False) -> None:
        """Adds an input; None leaves it out."""
        name = "" if array is None else f"x{len(self.names)}"
        self.names.append(name)
        if array is not None:
            (self.held if held else self.given)[name] = np.asarray(array)

    def maybe(self, make: Callable[[], Array], p: float = 0.5, held: bool = False) -> bool:
        there = self.chance(p)
        self.add(make() if there else None, held)
        return there

    def case(self) -> Case:
        while self.names and not self.names[-1]:
            self.names.pop()
        outputs = [f"y{i}" for i in range(self.outputs)]
        domain = "" if self.kind == "SimplifiedLayerNormalization" else DOMAIN
        node = helper.make_node(self.kind, self.names, outputs, domain=domain, **self.attributes)
        named = self.chance(_SYMBOLIC)
        inputs = []
        for n, a in self.given.items():
            sizes = [
                f"{n}_{i}" if named and self.kind in _ANY_SIZES and (n, i) == ("x0", 0) else d
                for i, d in enumerate(a.shape)
            ]
            inputs.append(helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), sizes))
        made = [helper.make_empty_tensor_value_info(n) for n in outputs[: self.shown or self.outputs]]
        held = [numpy_helper.from_array(a, n) for n, a in self.held.items()]
        graph = helper.make_graph([node], "g", inputs, made, held)
        opset = helper.make_opsetid(domain, 1 if domain else 17)
        return Case(self.kind, helper.make_model(graph, opset_imports=[opset], ir_version=10), self.given)


_ANY_SIZES = ("FastGelu", "Gelu", "QuickGelu", "BiasGelu", "MatMulNBits", "DynamicQuantizeMatMul")  # of the first axis


# --- activations, normalisations, products ---


def _shape(u: Use, last: int) -> tuple[int, ...]:
    return (*(u.size() for _ in range(u.size(1, 2))), last)


def _unary(u: Use) -> None:
    u.add(u.floats(*_shape(u, u.size())))
    if u.kind == "QuickGelu" and u.chance():
        u.attributes["alpha"] = u.one(1.0, 0.5)


def _with_bias(u: Use) -> None:
    width = u.size(1, 9)
    u.add(u.floats(*_shape(u, width)))
    if u.kind == "BiasGelu" or u.chance():
        u.add(u.floats(width), u.chance())


def _skip(u: Use) -> None:
    simple = u.kind.startswith("SkipSimplified")
    b, s, width = u.size(1, 3), u.size(1, 4), u.one(4, 8, 17)
    u.add(u.floats(b, s, width))
    u.add(u.floats(*u.one((b, s, width), (1, s, width), (s, width))))
    u.add(u.floats(width), True)
    if not simple:
        u.maybe(lambda: u.floats(width), held=True)
    u.maybe(lambda: u.floats(width), held=True)
    if u.chance():
        u.attributes["epsilon"] = u.one(1e-5, 1e-3)
    u.outputs = 1


def _simple_norm(u: Use) -> None:
    width = u.one(4, 8, 17)
    u.add(u.floats(*_shape(u, width)))
    u.add(u.floats(width), True)
    u.attributes |= {"axis": -1, "epsilon": u.one(1e-5, 1e-3)}


def _embedded(u: Use) -> None:
    b, s, width, words, kinds = u.size(1, 3), u.size(1, 6), 8, 20, 3
    places, coded = 8, u.kind.startswith("Q")
    segments = coded or u.chance()
    u.add(u.rng.integers(0, words, (b, s)).astype(np.int32))
    u.add(u.rng.integers(0, kinds, (b, s)).astype(np.int32) if segments else None)
    for shape in ((words, width), (places, width), (kinds, width), (width,), (width,)):
        made = u.rng.integers(0, 256, shape).astype(np.uint8) if coded else u.floats(*shape)
        u.add(None if shape[0] == kinds and not segments else made, True)
    u.maybe(lambda: (np.arange(s) < u.rng.integers(1, s + 1, (b, 1))).astype(np.int32))
    if coded:
        for _ in range(5):
            u.add(np.asarray(0.01 + u.rng.random() * 0.02, np.float32), True)
        for _ in range(5):
            u.add(np.asarray(u.rng.integers(0, 256), np.uint8), True)
    else:
        u.maybe(lambda: u.rng.integers(0, places, (u.one(1, b), s)).astype(np.int32))
    u.outputs = 2


def _matmul(u: Use) -> None:
    batch, m, k, n = [u.size(1, 3) for _ in range(u.size(0, 2))], u.size(), u.size(), u.size()
    sides = ((m, k), (k, n))
    for side, (rows, columns) in zip("AB", sides, strict=True):
        turned, moved = u.chance(), bool(batch) and u.chance(0.3)
        last = (columns, rows) if turned else (rows, columns)
        shape = [last[0], *batch, last[1]] if moved else [*batch, *last]
        u.add(u.floats(*shape), u.chance(0.3))
        u.attributes |= {f"trans{side}": int(turned), f"transBatch{side}": int(moved)}
    u.attributes["alpha"] = u.one(1.0, 0.25)


_PARAMETERS = {"Relu": 0, "Sigmoid": 0, "Tanh": 0, "LeakyRelu": 1, "HardSigmoid": 2, "Clip": 2}
_VALUES = {"LeakyRelu": [0.2], "HardSigmoid": [0.3, 0.4], "Clip": [-0.5, 0.75]}


def _gemm(u: Use) -> None:
    m, k, n = u.size(), u.size(), u.size()
    turned = u.chance(), u.chance()
    u.add(u.floats(*((k, m) if turned[0] else (m, k))))
    u.add(u.floats(*((n, k) if turned[1] else (k, n))), u.chance())
    u.maybe(lambda: u.floats(*u.one((n,), (m, n), (1, n), (m, 1))))
    name = u.one("Relu", "Sigmoid", "Tanh", "LeakyRelu")
    u.attributes |= {"transA": int(turned[0]), "transB": int(turned[1]), "alpha": u.one(1.0, 0.5), "activation": name}
    u.attributes["beta"] = u.one(1.0, 2.0)
    for key, value in zip(("activation_alpha", "activation_beta"), _VALUES.get(name, []), strict=False):
        u.attributes[key] = value


def _conv(u: Use) -> None:
    group, each, out, k = u.one(1, 2), u.size(1, 2), u.size(1, 2), u.one(1, 3)
    u.add(u.floats(u.size(1, 2), group * each, 7, 6))
    u.add(u.weights(group * out, each, k, k), u.chance())
    u.add(u.floats(group * out) if u.chance() else None, u.chance())
    pads, step = u.one(0, 1), u.one(1, 2)
    if u.chance():
        sizes = [(d + 2 * pads - k) // step + 1 for d in (7, 6)]
        u.add(u.floats(u.given["x0"].shape[0], group * out, *sizes))
    name = u.one(*_PARAMETERS)
    u.attributes |= {
        "group": group,
        "pads": [pads] * 4,
        "strides": [step] * 2,
        "kernel_shape": [k, k],
        "activation": name,
    }
    if name in _VALUES:
        u.attributes["activation_params"] = _VALUES[name]


# --- weights of few bits ---


def _n_bits(u: Use) -> None:
    bits, block = u.one(2, 4, 4, 8), u.one(16, 32)
    n, k = u.size(1, 6), u.one(16, 32, 48, 40)
    blocks = -(-k // block)
    u.add(u.floats(*_shape(u, k)))
    u.add(u.rng.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8), True)
    scales = (u.rng.random((n, blocks)) * 0.1).astype(np.float32)
    u.add(scales, True)
    packed = -(-blocks * bits // 8)
    zeros: Any = u.one(None, u.rng.integers(0, 256, (n, packed)).astype(np.uint8), u.floats(n, blocks) * 3 + 7)
    u.add(zeros, True)
    has_groups = bits == 4 and (zeros is None or zeros.dtype != np.uint8) and u.chance()
    u.add(u.rng.permutation(np.arange(k) // block).astype(np.int32) if has_groups else None, True)
    u.maybe(lambda: u.floats(n), held=True)
    u.attributes |= {"N": n, "K": k, "bits": bits, "block_size": block}


def _integers_to_float(u: Use) -> None:
    dynamic = u.kind.startswith("Dynamic")
    k, n, kind = u.size(1, 9), u.size(1, 6), u.one(np.int8, np.uint8)
    low, high = np.iinfo(kind).min // 2, np.iinfo(kind).max // 2
    columns = u.chance()
    wide = (n,) if columns else ()
    a = u.floats(*_shape(u, k)) if dynamic else u.rng.integers(0, 256, _shape(u, k)).astype(np.uint8)
    u.add(a)
    u.add(u.rng.integers(low, high, (k, n)).astype(kind), u.chance())
    if not dynamic:
        u.add(np.float32(u.rng.random() * 0.1))
    u.add((u.rng.random(wide) * 0.1).astype(np.float32), True)
    if not dynamic:
        u.maybe(lambda: np.asarray(u.rng.integers(0, 256), np.uint8))
    u.maybe(lambda: u.rng.integers(low, high, wide).astype(kind), held=True)
    u.maybe(lambda: u.floats(n), held=True)


# --- attention ---


def _mask(u: Use, b: int, s: int, t: int, *forms: str) -> Array | None:
    form = u.one("none", *forms)
    ends = u.rng.integers(1, t + 1, b)
    if form == "ends":
        return ends.astype(np.int32)
    if form == "ends and starts":
        return np.concatenate(
            [ends, np.zeros(b) if u.attributes["unidirectional"] else u.rng.integers(0, ends)]
        ).astype(np.int32)
    if form in ("keys", "pairs"):
        mask = u.rng.integers(0, 2, (b, t) if form == "keys" else (b, s, t))
        mask[..., 0] = 1  # a query that sees no key has scores near -10000, of which float32 keeps three digits
        return mask.astype(np.int32)
    return None


def _attributes(u: Use) -> None:
    if u.chance(0.3):
        u.attributes["scale"] = 0.3
    if u.chance(0.3):
        u.attributes["mask_filter_value"] = u.one(-1.5, -10000.0)
    u.attributes["unidirectional"] = u.one(0, 1)


def _attention(u: Use) -> None:
    quantized = u.kind == "QAttention"
    b, s, heads, d, width = u.size(1, 3), u.size(1, 5), u.one(1, 2, 4), u.one(4, 8), 6
    past = u.chance()
    # Values of another width are read together with no past only.
    dv = d if past or quantized or u.chance(0.7) else 2 * d
    p, total = (u.size(1, 4), 0) if past else (0, 0)
    total = p + s
    columns = heads * (2 * d + dv)
    kind: Any = u.one(np.int8, np.uint8)
    low, high = np.iinfo(kind).min // 2, np.iinfo(kind).max // 2
    u.attributes["num_heads"] = heads
    _attributes(u)
    if quantized:
        u.add(u.rng.integers(0, 256, (b, s, width)).astype(np.uint8))
        wide = columns if u.chance() else 1
        u.add(u.rng.integers(low, high, (width, columns)).astype(kind), True)
        u.add(u.floats(columns), True)
        u.add(np.asarray(0.01, np.float32), True)
        u.add((u.rng.random(wide) * 0.02).astype(np.float32) if wide > 1 else np.asarray(0.01, np.float32), True)
    else:
        u.add(u.floats(b, s, width))
        u.add(u.weights(width, columns), u.chance())
        u.maybe(lambda: u.floats(columns), 0.8, True)
    u.add(_mask(u, b, s, total, "ends", "ends and starts", "keys", "pairs"))
    if quantized:
        u.maybe(lambda: np.asarray(u.rng.integers(100, 150), np.uint8), held=True)
        u.add(np.asarray(u.rng.integers(low, high), kind) if u.chance() else None, True)
    u.add(u.floats(2, b, heads, p, d) if past else None)
    u.outputs = 1 + int(past)
    if not quantized:
        if dv != d:
            u.attributes["qkv_hidden_sizes"] = [heads * d, heads * d, heads * dv]
        u.maybe(lambda: u.floats(u.one(1, b), u.one(1, heads), s, total), 0.3)


def _multi_head(u: Use) -> None:
    b, s, heads, d = u.size(1, 3), u.size(1, 5), u.one(1, 2, 4), u.one(4, 8)
    form = u.one("apart", "apart", "given keys")  # onnxruntime has no packed ones for processors
    t, dv = u.size(1, 5), d if form != "apart" else u.one(d, 2 * d)
    past = form == "apart" and u.chance()
    if past:
        t, dv = s, d
    p = u.size(1, 4) if past else 0
    u.attributes["num_heads"] = heads
    _attributes(u)
    u.add(u.floats(b, s, heads * d))
    for width in (d, dv):
        u.add(u.floats(b, heads, t, width) if form == "given keys" else u.floats(b, t, heads * width))
    u.maybe(lambda: u.floats(heads * (2 * d + dv)), 0.5 if form == "apart" else 0, True)
    if t != s:
        u.attributes["unidirectional"] = 0
    u.add(_mask(u, b, s, t + p, *(("ends", "keys", "pairs") if not past else ("keys", "pairs"))))
    u.maybe(lambda: u.floats(u.one(1, b), u.one(1, heads), s, t + p), 0.3)
    if past:
        u.add(u.floats(b, heads, p, d))
        u.add(u.floats(b, heads, p, dv))
        u.outputs = 3


def _grouped(u: Use) -> None:
    groups, each, d = u.one(1, 2), u.one(1, 2, 3), u.one(16, 32)
    heads = groups * each
    prompt = u.chance(0.4)
    b = u.size(1, 3)
    s = u.size(1, 6) if prompt else 1 if b > 1 else u.size(1, 4)
    p = 0 if prompt else u.size(1, 5)
    ragged = not prompt and s == 1 and u.chance()
    total = p + s
    q, k, v = u.floats(b, s, heads * d), u.floats(b, s, groups * d), u.floats(b, s, groups * d)
    if u.chance(0.3):
        u.add(np.concatenate([q, k, v], 2))
        u.add(None)
        u.add(None)
    else:
        u.add(q)
        u.add(k)
        u.add(v)
    u.add(u.floats(b, groups, p, d) if p or u.chance() else None)
    u.add(u.floats(b, groups, p, d) if u.names[-1] else None)
    lengths = np.full(b, total - 1, np.int32)
    if ragged:
        lengths[u.rng.permutation(b)[1:]] = u.rng.integers(0, total, b - 1)
    u.add(lengths)
    u.add(np.asarray(total, np.int32), True)
    u.attributes |= {"num_heads": heads, "kv_num_heads": groups}
    rotary = u.chance()
    if rotary:
        half = d // 2 if d == 16 or u.chance() else d // 4
        u.add(u.floats(12, half), True)
        u.add(u.floats(12, half), True)
        u.attributes |= {"do_rotary": 1, "rotary_interleaved": u.one(0, 1)}
    else:
        u.add(None)
        u.add(None)
    u.add(u.rng.integers(0, 6, (b, s)) if rotary and u.chance() else None)
    u.maybe(lambda: u.floats(u.one(1, b), u.one(1, heads), s, total), 0.2)
    u.maybe(lambda: u.floats(heads), 0.2)
    if u.chance(0.3):
        u.attributes["scale"] = 0.3
    if u.chance(0.3):
        u.attributes["softcap"] = 1.5
    if u.chance(0.2):
        u.attributes["causal"] = 0
    elif u.chance(0.3):
        u.attributes["local_window_size"] = u.one(1, 2, 3)
    if not u.names[-1] and u.chance(0.2):
        u.attributes["smooth_softmax"] = 1
    u.outputs, u.shown = 3, 1 if ragged else 3  # places behind the last key of a row may hold anything


def _rotary(u: Use) -> None:
    b, s, heads, d = u.size(1, 3), u.size(1, 5), u.one(1, 2), u.one(8, 16)
    part = u.chance(0.3)
    half = d // 4 if part else d // 2
    u.add(u.floats(b, heads, s, d) if u.chance() else u.floats(b, s, heads * d))
    u.add(np.array([u.size(0, 4)]) if u.chance() else u.rng.integers(0, 12, (b, s)))
    u.add(u.floats(12, half), True)
    u.add(u.floats(12, half), True)
    u.attributes["interleaved"] = u.one(0, 1)
    if part:
        u.attributes |= {"rotary_embedding_dim": 2 * half, "num_heads": heads}


DRAWN_FUSED: dict[str, Callable[[Use], None]] = {
    "com.microsoft.Attention": _attention,
    "com.microsoft.BiasGelu": _with_bias,
    "com.microsoft.DynamicQuantizeMatMul": _integers_to_float,
    "com.microsoft.EmbedLayerNormalization": _embedded,
    "com.microsoft.FastGelu": _with_bias,
    "com.microsoft.FusedConv": _conv,
    "com.microsoft.FusedGemm": _gemm,
    "com.microsoft.FusedMatMul": _matmul,
    "com.microsoft.Gelu": _unary,
    "com.microsoft.GroupQueryAttention": _grouped,
    "com.microsoft.MatMulIntegerToFloat": _integers_to_float,
    "com.microsoft.MatMulNBits": _n_bits,
    "com.microsoft.MultiHeadAttention": _multi_head,
    "com.microsoft.QAttention": _attention,
    "com.microsoft.QEmbedLayerNormalization": _embedded,
    "com.microsoft.QuickGelu": _unary,
    "com.microsoft.RotaryEmbedding": _rotary,
    "SimplifiedLayerNormalization": _simple_norm,
    "com.microsoft.SkipLayerNormalization": _skip,
    "com.microsoft.SkipSimplifiedLayerNormalization": _skip,
}


def draw_fused(kind: str, seed: int) -> Case:
    """A random use of an operator of onnxruntime; the same for the same seed."""
    u = Use(kind.removeprefix(f"{DOMAIN}."), np.random.default_rng([seed, *map(ord, kind)]))
    DRAWN_FUSED[kind](u)
    return u.case()
