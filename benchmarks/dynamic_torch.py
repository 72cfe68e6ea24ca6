"""MiniLM-L6 in torch, and exported for onnxruntime, for the comparison in `benchmarks.dynamic`.

    python dynamic_torch.py torch|onnxruntime model.safetensors ids.json out.json

The script imports nothing of this project, because the environment with torch need not have JAX.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn import functional as f

HEADS, EPS = 12, 1e-12


class MiniLM(torch.nn.Module):
    """The encoder as `examples.minilm` writes it."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.layers = 1 + max(int(k.split(".")[2]) for k in weights if k.startswith("encoder.layer."))
        self.width = [weights["embeddings.LayerNorm.bias"].shape[0]]
        for name, w in weights.items():
            if w.is_floating_point():
                self.register_buffer(name.replace(".", "__"), w)

    def weight(self, name: str) -> torch.Tensor:
        return getattr(self, name.replace(".", "__"))

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return f.linear(x, self.weight(f"{name}.weight"), self.weight(f"{name}.bias"))

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return f.layer_norm(x, self.width, self.weight(f"{name}.weight"), self.weight(f"{name}.bias"), EPS)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, s = ids.shape
        table = self.weight("embeddings.position_embeddings.weight")
        x = self.weight("embeddings.word_embeddings.weight")[ids] + table[torch.arange(s)]
        x = self.norm("embeddings.LayerNorm", x + self.weight("embeddings.token_type_embeddings.weight")[0])
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * -1e9
        for i in range(self.layers):
            at = f"encoder.layer.{i}"
            q, k, v = (
                self.linear(f"{at}.attention.self.{n}", x).reshape(b, s, HEADS, -1).transpose(1, 2)
                for n in ("query", "key", "value")
            )
            mixed = f.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).reshape(b, s, -1)
            x = self.norm(f"{at}.attention.output.LayerNorm", x + self.linear(f"{at}.attention.output.dense", mixed))
            hidden = f.gelu(self.linear(f"{at}.intermediate.dense", x))
            x = self.norm(f"{at}.output.LayerNorm", x + self.linear(f"{at}.output.dense", hidden))
        weight = mask[:, :, None].to(x.dtype)
        mean = (x * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return f.normalize(mean, dim=-1, eps=1e-12)


def with_torch(model: MiniLM) -> Any:
    fast = torch.compile(model, dynamic=True)
    return lambda ids: fast(torch.from_numpy(ids), torch.ones(ids.shape, dtype=torch.int64)).numpy()


def with_onnxruntime(path: str) -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda ids: session.run(None, {"ids": ids, "mask": np.ones_like(ids)})[0]


def main(who: str, weights: str, given: str, out: str) -> None:
    stream = [np.array([row], np.int64) for row in json.loads(Path(given).read_text())]
    model = MiniLM(load_file(weights)).eval()
    with torch.inference_mode(), tempfile.TemporaryDirectory() as folder:
        made = str(Path(folder) / "model.onnx")
        if who == "onnxruntime":  # the pass starts from the exported model
            axes = {"ids": {0: "b", 1: "s"}, "mask": {0: "b", 1: "s"}}
            example = torch.from_numpy(stream[0])
            names = {"input_names": ["ids", "mask"], "output_names": ["embedding"], "dynamic_axes": axes}
            torch.onnx.export(model, (example, torch.ones_like(example)), made, dynamo=False, **names)
        started, worked = time.perf_counter(), time.process_time()
        encode = with_torch(model) if who == "torch" else with_onnxruntime(made)
        found = [encode(ids) for ids in stream]
        first, worked, later = time.perf_counter() - started, time.process_time() - worked, []
        for _ in range(2):
            started = time.perf_counter()
            for ids in stream:
                encode(ids)
            later.append(time.perf_counter() - started)
    row = {
        "who": who,
        "first": first,
        "processor": worked,
        "later": min(later),
        "executables": 0 if who == "torch" else 1,
    }
    row |= {"lengths": len({x.shape[1] for x in stream}), "embeddings": np.concatenate(found).tolist()}
    Path(out).write_text(json.dumps(row))


if __name__ == "__main__":
    main(*sys.argv[1:])
