"""A step of `benchmarks.decoders.decode` in torch, for the comparison in `benchmarks.gpu_decode`.

    python gpu_decode_torch.py sizes.json out.json

The script imports nothing of this project, because the environment with torch need not have JAX. `sizes.json` has the
fields of `benchmarks.llama.Sizes`, and `batches`, `cached`, `theta`, `seconds`. Ways: eager; `torch.compile`, applied
to the layer, which all layers share; and the compiled step recorded as one CUDA graph.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as f

EPS = 1e-6
WARM = 3  # calls before the clock counts
Tensors = dict[str, torch.Tensor]


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + EPS) * weight.float()).to(x.dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A query's attention to all places of (b, t, kv_heads, head_width), the last of which it writes."""
    keys[:, -1], values[:, -1] = k, v
    found = f.scaled_dot_product_attention(q[:, :, None], keys.transpose(1, 2), values.transpose(1, 2), enable_gqa=True)
    return found.reshape(q.shape[0], -1)


def layer(
    p: Tensors, keys: torch.Tensor, values: torch.Tensor, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
    heads: int, kv_heads: int,
) -> torch.Tensor:  # fmt: skip
    b = x.shape[0]
    h = rms_norm(x, p["norm1"])
    q, k, v = h @ p["q"], h @ p["k"], h @ p["v"]
    q, k = rotate(q.reshape(b, heads, -1), cos, sin), rotate(k.reshape(b, kv_heads, -1), cos, sin)
    v = v.reshape(b, kv_heads, -1)
    x = x + attend(q, k, v, keys, values) @ p["out"]
    h = rms_norm(x, p["norm2"])
    return x + (f.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]


class Decoder:
    """A decoder with random weights in bfloat16 on the GPU."""

    def __init__(self, sizes: dict[str, Any]) -> None:
        self.sizes = sizes
        self.layer: Callable[..., Any] = layer
        d, wide = sizes["width"], sizes["heads"] * sizes["head_width"]
        narrow, inner = sizes["kv_heads"] * sizes["head_width"], sizes["inner"]
        shapes = {"q": (d, wide), "k": (d, narrow), "v": (d, narrow), "out": (wide, d)}
        shapes |= {"gate": (d, inner), "up": (d, inner), "down": (inner, d)}
        self.layers = [
            {name: _drawn(*shape) for name, shape in shapes.items()} | {n: _drawn(d) for n in ("norm1", "norm2")}
            for _ in range(sizes["layers"])
        ]
        self.embedding, self.norm, self.head = _drawn(sizes["vocabulary"], d), _drawn(d), _drawn(d, sizes["vocabulary"])
        half = sizes["head_width"] // 2
        self.frequencies = sizes["theta"] ** (-torch.arange(half, device="cuda") / half)

    def __call__(self, caches: list[Any], ids: torch.Tensor, position: torch.Tensor) -> Any:
        x = self.embedding[ids]
        angle = position.float() * self.frequencies
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for p, (keys, values) in zip(self.layers, caches, strict=True):
            x = self.layer(p, keys, values, x, cos, sin, self.sizes["heads"], self.sizes["kv_heads"])
        return rms_norm(x, self.norm) @ self.head


def _drawn(*shape: int) -> torch.Tensor:
    scale = shape[0] ** -0.5 if len(shape) == 2 else 1.0
    return (scale * torch.randn(*shape, device="cuda", dtype=torch.float32)).to(torch.bfloat16)


def seconds_of(call: Callable[[], Any], seconds: float, in_a_row: int) -> float:
    """The median time of a call, of several in a row that are waited for together."""
    for _ in range(WARM):
        call()
    torch.cuda.synchronize()
    found: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found) < WARM:
        started = time.perf_counter()
        for _ in range(in_a_row):
            call()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - started) / in_a_row)
    return statistics.median(found)


def recorded(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call as one CUDA graph, on the arrays it had."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def main(given: str, out: str) -> None:
    sizes = json.loads(Path(given).read_text())
    rows: list[dict[str, Any]] = []
    with torch.inference_mode():
        model = Decoder(sizes)
        for b in sizes["batches"]:
            one = b, sizes["cached"], sizes["kv_heads"], sizes["head_width"]
            caches = [(_drawn(*one), _drawn(*one)) for _ in model.layers]
            ids = torch.randint(0, sizes["vocabulary"], (b,), device="cuda")
            position = torch.tensor(sizes["cached"], device="cuda")

            def step(caches: Any = caches, ids: Any = ids, position: Any = position) -> Any:
                return model(caches, ids, position)

            model.layer = layer
            row: dict[str, Any] = {"batch": b, "eager": seconds_of(step, sizes["seconds"], sizes["in_a_row"])}
            torch._dynamo.reset()
            model.layer = torch.compile(layer, dynamic=False)
            started = time.perf_counter()
            row["compiled"] = seconds_of(step, sizes["seconds"], sizes["in_a_row"])
            row["compiling"] = time.perf_counter() - started
            row["graph"] = seconds_of(recorded(step), sizes["seconds"], sizes["in_a_row"])
            rows.append(row)
            del caches
    text = {"torch": torch.__version__, "device": torch.cuda.get_device_name(0), "rows": rows}
    Path(out).write_text(json.dumps(text))


if __name__ == "__main__":
    main(*sys.argv[1:])
