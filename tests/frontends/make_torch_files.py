"""Makes the files of PyTorch models in `tests/frontends/torch_files`, with the results of PyTorch.

    pip install torch==2.9.0 torch_xla==2.9.0 onnx onnxscript onnxruntime transformers
    python tests/frontends/make_torch_files.py

PyTorch is no dependency of the project, so the files are kept. Weights are random.

- `encoder.stablehlo`: a small language model through `torch.export` and `torch_xla`; its weights are arguments.
- `encoder.onnx`: the same through `torch.onnx.export`, with a dynamic batch and length.
- `bert.onnx`: a BERT of two layers, as `transformers` defines it, through `torch.onnx.export`.
- `bert_fused.onnx`: what onnxruntime's optimizer of transformers makes of it, with its Attention and others.
- `results.npz`: arguments and results.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import onnx
import torch
from onnxruntime.transformers import optimizer
from torch import nn
from torch.nn import functional
from torch_xla.stablehlo import exported_program_to_stablehlo
from transformers import BertConfig, BertModel

TO = Path(__file__).parent / "torch_files"
WIDTH, HEADS, WORDS, PLACES = 16, 4, 40, 12
BATCH, LENGTH = 2, 7
OPSET = 18


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        q, k, v = (t.reshape(b, s, HEADS, -1).transpose(1, 2) for t in self.qkv(self.first(x)).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, s, WIDTH))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.layers, self.norm = nn.ModuleList(Layer() for _ in range(2)), nn.LayerNorm(WIDTH)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return functional.log_softmax(self.norm(x) @ self.words.weight.T, -1)


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = BertConfig(
            vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS,
            intermediate_size=2 * WIDTH, max_position_embeddings=PLACES, attn_implementation="eager",
        )  # fmt: skip
        self.model = BertModel(config)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.model(input_ids=ids, attention_mask=mask, use_cache=False)
        return found.last_hidden_state, found.pooler_output


def stablehlo(model: nn.Module, ids: torch.Tensor) -> list[np.ndarray]:
    """Writes the program; returns its arguments in order."""
    made = exported_program_to_stablehlo(torch.export.export(model, (ids,)))
    with tempfile.TemporaryDirectory() as folder:
        made.save(folder)
        root = Path(folder)
        (TO / "encoder.stablehlo").write_bytes((root / "functions" / "forward.bytecode").read_bytes())
        places = json.loads((root / "functions" / "forward.meta").read_text())["input_locations"]
        arguments = []
        for place in places:
            kind, name = place["type_"], place["name"]
            if kind == "input_arg":
                arguments.append(ids.numpy())
            elif kind == "parameter":
                arguments.append(np.load(root / "data" / name))
            else:
                arguments.append(np.load(root / "constants" / str(place["position"])))
        return arguments


def main() -> None:
    torch.manual_seed(5)
    TO.mkdir(exist_ok=True)
    encoder = Encoder().eval()
    ids = torch.randint(0, WORDS, (BATCH, LENGTH))
    with torch.no_grad():
        kept = {"encoder": encoder(ids).numpy(), "ids": ids.numpy()}
        for i, array in enumerate(stablehlo(encoder, ids)):
            kept[f"argument{i}"] = array
        sizes = {"ids": {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", min=2, max=PLACES)}}
        to = str(TO / "encoder.onnx")
        torch.onnx.export(
            encoder, (ids,), to, dynamo=True, dynamic_shapes=sizes, external_data=False, opset_version=OPSET
        )
        bert = Bert().eval()
        mask = torch.tensor([[1] * LENGTH, [1] * (LENGTH - 3) + [0] * 3])
        kept["mask"] = mask.numpy()
        kept["bert"] = bert(ids, mask)[0].numpy()
        names = ["ids", "mask"]
        axes = {n: {0: "batch", 1: "length"} for n in names}
        torch.onnx.export(bert, (ids, mask), str(TO / "bert.onnx"), input_names=names, dynamic_axes=axes,
                          output_names=["hidden", "pooled"], dynamo=False, opset_version=14)  # fmt: skip
    for name in ("encoder", "bert"):
        model = onnx.load(TO / f"{name}.onnx")
        for part in (model, model.graph):
            del part.metadata_props[:]
        del model.graph.value_info[:]
        for node in model.graph.node:
            del node.metadata_props[:]
            node.doc_string = ""
        onnx.save(model, TO / f"{name}.onnx")
    fused = optimizer.optimize_model(str(TO / "bert.onnx"), model_type="bert", num_heads=HEADS, hidden_size=WIDTH)
    fused.save_model_to_file(str(TO / "bert_fused.onnx"))
    np.savez_compressed(TO / "results.npz", **kept)


if __name__ == "__main__":
    main()
