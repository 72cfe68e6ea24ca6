"""The programs of `benchmarks.peers` in torch, onnxruntime and TVM, served as `peer_turns` does.

    python -P peers_other.py torch.compile|torch|onnxruntime|tvm|export folder

The folder has the programs and their inputs; `export` writes the programs that torch has as ONNX models beside them,
which onnxruntime and TVM read. The script imports nothing of this project, because its environment need not have JAX.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
OPSET = 18  # of the exported models; TVM reads it


def sibling(name: str) -> Any:
    """A file beside this one. Its folder is not on the path, where its `triton.py` would be taken for the package."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


def inputs(program: dict[str, Any]) -> list[np.ndarray]:
    with np.load(program["inputs"]) as file:
        return [file[f"arr_{i}"] for i in range(len(file.files))]


# -- torch


def patterns() -> dict[str, Callable[..., Any]]:
    """The functions of `benchmarks.cases` by name; weights come first, by name."""
    import torch

    def rms_norm_linear(scale: Any, w: Any, x: Any) -> Any:
        normed = x * torch.rsqrt(torch.mean(x * x, dim=-1, keepdim=True) + 1e-6)
        return (normed * scale) @ w

    def split_of_concat(x: Any, y: Any) -> Any:
        left, right = torch.chunk(torch.cat([x, y], dim=1), 2, dim=1)
        return left * right

    return {
        "product_times_vector": lambda a, b, v: (a @ b) @ v,
        "chain_of_five": lambda a, b, c, d, e: (((a @ b) @ c) @ d) @ e,
        "graph_convolution": lambda adj, x, w: (adj @ x) @ w,
        "linear_attention": lambda q, k, v: (q @ k.T) @ v,
        "scaled_outer_times_vector": lambda x, y, z: (x[:, None] * y) @ z,
        "identity_plus_low_rank": lambda u, v, x: (torch.eye(u.shape[0]) + u @ v.T) @ x,
        "residual_of_two": lambda x, a, y, b: x @ a + y - x @ b,
        "two_products": lambda a, b, c: a @ b + a @ c,
        "lora": lambda x, w, a, b: x @ (w + a @ b),
        "lora_bound": lambda a, b, w, x: x @ (w + a @ b),
        "qkv": lambda k, q, v, x: (x @ q, x @ k, x @ v),
        "rms_norm_linear": rms_norm_linear,
        "trace_of_product": lambda a, b: torch.trace(a @ b),
        "sum_of_product": lambda a, b: torch.sum(a @ b),
        "sum_over_rows": lambda a, b: torch.sum(a @ b, dim=0),
        "sum_over_columns": lambda a, b: torch.sum(a @ b, dim=1),
        "diagonal_times_matrix": lambda d, a: torch.diag(d) @ a,
        "product_of_transposes": lambda a, b: (a.T @ b.T).T,
        "last_token_logits": lambda h, w: (h @ w)[:, -1],
        "rows_of_product": lambda a, b, rows: (a @ b)[rows],
        "split_of_concat": split_of_concat,
        "attention_layer": attention_layer,
    }


def attention_layer(k: Any, out: Any, q: Any, v: Any, x: Any, heads: int = 12) -> Any:
    from torch.nn.functional import scaled_dot_product_attention

    b, s, d = x.shape
    made = ((x @ w).reshape(b, s, heads, d // heads).transpose(1, 2) for w in (q, k, v))
    return scaled_dot_product_attention(*made).transpose(1, 2).reshape(b, s, d) @ out


def module(program: dict[str, Any]) -> tuple[Any, list[Any]]:
    """A module of the program, its weights bound, and the other inputs."""
    import torch

    given = [torch.from_numpy(x) for x in inputs(program)]
    if program["kind"] == "minilm":
        return sibling("dynamic_torch").MiniLM(load_weights(program)).eval(), given
    count, fn = program["weights"], patterns()[program["function"]]

    class Bound(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for i, x in enumerate(given[:count]):
                self.register_buffer(f"weight{i}", x)

        def forward(self, *args: Any) -> Any:
            return fn(*(getattr(self, f"weight{i}") for i in range(count)), *args)

    return Bound().eval(), given[count:]


def load_weights(program: dict[str, Any]) -> Any:
    from safetensors.torch import load_file

    return load_file(program["model"])


def with_torch(program: dict[str, Any], is_compiled: bool) -> Callable[[], Any]:
    import torch

    if program["kind"] == "training":
        return training(program, is_compiled)
    if program["kind"] not in ("pattern", "minilm", "stream"):
        raise NotImplementedError("the program is not written in torch")
    if program["kind"] == "stream":
        model = sibling("dynamic_torch").MiniLM(load_weights(program)).eval()
        fast = torch.compile(model, dynamic=True) if is_compiled else model
        stream = [torch.from_numpy(x) for x in inputs(program)]

        def run() -> Any:
            with torch.inference_mode():
                return torch.cat([fast(ids, torch.ones_like(ids)) for ids in stream])

        return run
    model, args = module(program)
    fast = torch.compile(model) if is_compiled else model

    def call() -> Any:
        with torch.inference_mode():
            return fast(*args)

    return call


def training(program: dict[str, Any], is_compiled: bool) -> Callable[[], Any]:
    """A step of Adam of GPT-2, as `benchmarks.models.gpt2_step`."""
    import torch
    from torch.nn import functional as f

    *leaves, ids = (torch.from_numpy(x) for x in inputs(program))
    named = {name: torch.nn.Parameter(x) for name, x in zip(program["names"], leaves, strict=True)}
    width, heads, layers = named["['norm']['scale']"].shape[0], program["heads"], program["layers"]

    def norm(x: Any, at: str) -> Any:
        return f.layer_norm(x, [width], named[f"{at}['scale']"], named[f"{at}['bias']"])

    def linear(x: Any, at: str) -> Any:
        return x @ named[f"{at}['w']"] + named[f"{at}['b']"]

    def loss(ids: Any) -> Any:
        given, wanted = ids[:, :-1], ids[:, 1:]
        b, s = given.shape
        x = named["['tokens']"][given] + named["['places']"][:s]
        for i in range(layers):
            at = f"['blocks'][{i}]"
            qkv = linear(norm(x, f"{at}['norm1']"), f"{at}['qkv']").reshape(b, s, 3, heads, width // heads)
            q, k, v = (qkv[:, :, j].transpose(1, 2) for j in range(3))
            mixed = f.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + linear(mixed.transpose(1, 2).reshape(b, s, width), f"{at}['out']")
            hidden = f.gelu(linear(norm(x, f"{at}['norm2']"), f"{at}['up']"), approximate="tanh")
            x = x + linear(hidden, f"{at}['down']")
        logits = norm(x, "['norm']") @ named["['tokens']"].T
        return f.cross_entropy(logits.flatten(0, 1), wanted.flatten())

    fast = torch.compile(loss) if is_compiled else loss
    adam = torch.optim.Adam(named.values(), lr=3e-4, fused=True)

    def step() -> Any:
        adam.zero_grad()
        found = fast(ids.long())
        found.backward()
        adam.step()
        return found.detach()

    return step


# -- onnxruntime and TVM


def export(folder: Path, programs: dict[str, dict[str, Any]]) -> None:
    """Writes the model of each program that torch has; one that cannot be exported is told."""
    import torch

    for program in programs.values():
        if program["kind"] not in ("pattern", "minilm", "stream"):
            continue
        if program["kind"] == "stream":
            model, args = sibling("dynamic_torch").MiniLM(load_weights(program)).eval(), []
            ids = torch.from_numpy(inputs(program)[0])
            args = [ids, torch.ones_like(ids)]
            more = {"dynamic_axes": {"ids": {0: "b", 1: "s"}, "mask": {0: "b", 1: "s"}}}
        else:
            (model, args), more = module(program), {}
        names = ["ids", "mask"] if program["kind"] != "pattern" else [f"x{i}" for i in range(len(args))]
        try:
            with torch.inference_mode():
                torch.onnx.export(
                    model, tuple(args), program["onnx"], dynamo=False, opset_version=OPSET, input_names=names, **more
                )
        except Exception as e:
            print(f"{program['onnx']}: {type(e).__name__}: {str(e).splitlines()[0]}", file=sys.stderr)


def fed(program: dict[str, Any]) -> list[np.ndarray]:
    """The inputs that a model takes: its weights are part of it."""
    return inputs(program)[program["weights"] if program["kind"] == "pattern" else 0 :]


def model_of(program: dict[str, Any]) -> str:
    path = program.get("onnx", "")
    if not path or not Path(path).exists():
        raise NotImplementedError("the program is no ONNX model")
    return path


def with_onnxruntime(program: dict[str, Any]) -> Callable[[], Any]:
    import onnxruntime

    session = onnxruntime.InferenceSession(model_of(program), providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_inputs()]
    if program["kind"] == "stream":
        texts = [{"ids": x, "mask": np.ones_like(x)} for x in inputs(program)]
        return lambda: np.concatenate([session.run(None, {n: t[n] for n in names})[0] for t in texts])
    given = dict(zip(names, fed(program), strict=False))
    return lambda: session.run(None, given)


def with_tvm(program: dict[str, Any]) -> Callable[[], Any]:
    """TVM's default pipeline for a CPU: loops that nobody scheduled."""
    if program["kind"] == "stream":
        raise NotImplementedError("one length takes seconds")
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    model, given = onnx.load(model_of(program)), fed(program)
    shapes = {x.name: list(a.shape) for x, a in zip(model.graph.input, given, strict=False)}
    made = from_onnx(model, shape_dict=shapes)
    vm = relax.VirtualMachine(relax.build(made, target="llvm"), tvm.cpu())
    args = [tvm.runtime.tensor(a) for a in given]
    return lambda: vm["main"](*args)


def arrays(result: Any) -> list[np.ndarray]:
    many = result if isinstance(result, list | tuple) or type(result).__name__ == "Array" else [result]  # TVM's
    return [np.asarray(x.numpy() if hasattr(x, "numpy") else x) for x in many]


def warm_up(who: str) -> None:
    """What a process does once, when it first compiles."""
    if who.startswith("torch"):
        import torch

        x = torch.ones(4)
        (torch.compile(lambda x: x + 1.0) if who == "torch.compile" else torch.neg)(x)
    elif who == "onnxruntime":
        import onnxruntime  # noqa: F401
    else:
        from tvm.relax.frontend.onnx import from_onnx  # noqa: F401


def main(who: str, folder: str) -> None:
    programs = json.loads((Path(folder) / "programs.json").read_text())
    if who == "export":
        export(Path(folder), programs)
        return
    makers = {
        "torch": lambda p: with_torch(p, False),
        "torch.compile": lambda p: with_torch(p, True),
        "onnxruntime": with_onnxruntime,
        "tvm": with_tvm,
    }
    warm_up(who)
    package = {"torch.compile": "torch", "tvm": "apache-tvm"}.get(who, who)
    sibling("peer_turns").serve(lambda name: makers[who](programs[name]), arrays, package)


if __name__ == "__main__":
    main(*sys.argv[1:])
