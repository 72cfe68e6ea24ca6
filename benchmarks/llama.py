"""Decoders of published language models, at their sizes, without weights: Llama3-8B and its relatives.

    python -m benchmarks.llama [--layers 32] [--picture build/llama]

One function serves prefill and decode: `decoder(params, caches, ids)` gives the logits of each sequence's last token.
The key/value cache is outside: attention is a routine of a library that rotates queries and keys, appends to the cache
and attends, as paged caches have it. Nothing here is run: parameters are specs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import typer
from jax.core import ShapedArray
from jax.extend.core import Primitive
from rich.console import Console
from rich.table import Table

import relax_eg as rx
from benchmarks import Quick
from relax_eg.driver.clock.measured import Search
from relax_eg.driver.options import read_options
from relax_eg.driver.program_ends import traced_program
from relax_eg.ir import Tensor
from relax_eg.ir.heads import label_of
from relax_eg.memory import Step
from relax_eg.memory.picture import draw
from relax_eg.shapes import Dim

Params = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """The published sizes of a decoder.

    - `layers`, `width`, `inner`: the layers, the width of the residual stream, and that of the MLP.
    - `heads`, `kv_heads`, `head_width`: the heads of queries, those of keys and values, and their width.
    - `vocabulary`: the number of tokens.
    - `act`: the activation of the gate in the MLP.
    - `bias`: whether the projections to queries, keys and values have a bias.
    - `tied`: whether the embedding is also the head.
    """

    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    act: str = "silu"
    bias: bool = False
    tied: bool = False


MODELS = {
    "llama3-8b": Sizes(32, 4096, 14336, 32, 8, 128, 128256),
    "gemma1.1-7b": Sizes(28, 3072, 24576, 16, 16, 256, 256000, act="gelu", tied=True),
    "qwen2-7b": Sizes(28, 3584, 18944, 28, 4, 128, 152064, bias=True),
}

# attention(qkv, cache): (b, s, heads and twice kv_heads) and what came before -> (b, s, heads)
attention_p = Primitive("paged_attention")
ROUTINE = "jax.paged_attention"


@attention_p.def_abstract_eval
def _attention_shape(qkv: Any, keys: Any, values: Any, *, width: int) -> Any:
    return ShapedArray((*qkv.shape[:-1], width), qkv.dtype)


SPLITS = 8  # parts of the cache that a decode step attends to at once


def attention_workspace(step: Step) -> Dim | None:
    """Bytes that the attention routine needs beside its operands, by the rows that it attends for: the logarithms of
    the sums in float32; in a decode step (one token of each sequence) that and partial results, for each part of the
    cache."""
    if label_of(step.kernel) != ROUTINE:
        return None
    qkv, keys, _ = (a.annotation for a in step.kernel.args)
    assert isinstance(qkv, Tensor) and isinstance(keys, Tensor) and qkv.shape and keys.shape
    width, head_width = step.kernel.attr("attrs")[0][1], keys.shape[-1].value
    rows = (qkv.shape[0] * qkv.shape[1]).substitute(dict(step.sizes))
    lines = rows * (width // head_width) * 4
    return lines * (head_width + 1) * SPLITS if qkv.shape[1] == 1 else lines


def rms_norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-5)).astype(x.dtype) * weight


def layer(p: Params, x: jax.Array, cache: tuple[jax.Array, jax.Array], sizes: Sizes) -> jax.Array:
    qkv = rms_norm(x, p["norm1"]) @ p["qkv"]
    if "bias" in p:
        qkv = qkv + p["bias"]
    x = x + attention_p.bind(qkv, *cache, width=sizes.heads * sizes.head_width) @ p["out"]
    h = rms_norm(x, p["norm2"])
    act = jax.nn.silu if sizes.act == "silu" else jax.nn.gelu
    return x + (act(h @ p["gate"]) * (h @ p["up"])) @ p["down"]


def decoder(params: Params, caches: list[tuple[jax.Array, jax.Array]], ids: jax.Array, sizes: Sizes) -> jax.Array:
    """Logits (b, vocabulary), float32, of the last of the tokens `ids` (b, s)."""
    x = params["embedding"][ids]
    for p, cache in zip(params["layers"], caches, strict=True):
        x = layer(p, x, cache, sizes)
    last = rms_norm(x[:, -1], params["norm"])
    head = params["embedding"].T if sizes.tied else params["head"]
    return jnp.matmul(last, head, preferred_element_type=jnp.float32)


def specs(sizes: Sizes, rows: str, layers: int | None = None) -> tuple[Any, ...]:
    """Specs of the arguments of `decoder` after `params` come the caches of t tokens and ids of `rows`, "b s"."""
    wide = sizes.heads * sizes.head_width
    both = wide + 2 * sizes.kv_heads * sizes.head_width
    w, n = sizes.width, layers or sizes.layers
    one = {"norm1": f"{w} @ float16", "norm2": f"{w} @ float16", "qkv": f"{w} {both} @ float16"}
    one |= {"out": f"{wide} {w} @ float16", "down": f"{sizes.inner} {w} @ float16"}
    one |= {name: f"{w} {sizes.inner} @ float16" for name in ("gate", "up")}
    if sizes.bias:
        one["bias"] = f"{both} @ float16"
    ends = {"embedding": f"{sizes.vocabulary} {w} @ float16", "norm": f"{w} @ float16"}
    if not sizes.tied:
        ends["head"] = f"{w} {sizes.vocabulary} @ float16"
    pages = f"{rows.split()[0]} t {sizes.kv_heads} {sizes.head_width} @ float16"
    return {**ends, "layers": [one] * n}, [(pages, pages)] * n, f"{rows} @ int32"


@dataclass(frozen=True)
class Workload:
    """Calls of a decoder.

    - `rows`: the axes of its ids.
    - `bounds`: the bounds of its sizes.
    - `name`, `sizes`: the size that varies, and its values in the paper's Table 2.
    - `paper`: MiB of activations in the paper's Table 2.
    - `tvm`: MiB that TVM 0.27 plans for its own graph of the model.
    - `tvm_bound`: MiB of the liveness bound of that graph.
    """

    rows: str
    bounds: Mapping[str, tuple[int, int]]
    name: str
    sizes: tuple[int, ...]
    paper: float
    tvm: float
    tvm_bound: float

    def at(self, size: int | None = None) -> dict[str, int]:
        """All sizes: `size` (the largest if left out), and a cache of 1024 tokens."""
        return {self.name: self.sizes[-1] if size is None else size, "t": 1024}


WORKLOADS = {
    "prefill": Workload("1 s", {"s": (1, 1024)}, "s", (128, 256, 512, 1024), 149.7, 92.25, 92.00),
    "decode": Workload("b 1", {"b": (1, 64)}, "b", (1, 16, 32, 64), 88.2, 49.22, 46.97),
}


def kernels_of(model: str, workload: str, layers: int | None = None, target: str = "a100") -> rx.types.Module:
    """A decoder in kernels, as a search chooses them for the largest size of a workload."""
    sizes, work = MODELS[model], WORKLOADS[workload]
    fn = functools.partial(decoder, sizes=sizes)
    arguments = specs(sizes, work.rows, layers)
    traced = traced_program(fn, arguments)
    options = read_options(traced, at=work.at(), execution="kernels", target=target)
    return Search(traced, options).entry().module


def planned(module: rx.types.Module, work: Workload, size: int | None = None, bounded: bool = True) -> rx.types.Plan:
    """The plan with everything counted: logits, and what library routines need. `bounded`: one number of bytes for all
    sizes; for a single size where one is given."""
    bounds = dict(work.bounds) if size is None else {work.name: (size, size)}
    at = work.at(size)
    options: Any = {"bounds": bounds} if bounded else {}
    options |= {"results": "planned", "layout": "arena"}
    return rx.plan_memory(module, at=at, temporary=attention_workspace, **options)


def main(
    model: Annotated[str, typer.Option(help="one of those here")] = "llama3-8b",
    layers: Annotated[int, typer.Option(help="0: all")] = 0,
    quick: Quick = False,
    picture: Annotated[str, typer.Option(help="where to draw the timelines: build/llama")] = "",
) -> None:
    """Activations of a decoder, planned; with those of the paper's Table 2 and of TVM."""
    out = Console()
    layers = 1 if quick else layers
    mib = 1 << 20
    table = Table("MiB", *WORKLOADS, title=f"{model}: activations")
    rows: dict[str, list[str]] = {}
    modules = {name: kernels_of(model, name, layers or None) for name in WORKLOADS}
    plans = {name: planned(modules[name], work) for name, work in WORKLOADS.items()}
    for name, work in WORKLOADS.items():
        plan = plans[name]
        greedy, whole = plan.laid_out("greedy"), plan.laid_out("storages", results="apart")
        figures = {
            "paper, Table 2": f"{work.paper}",
            "TVM 0.27, its graph": f"{work.tvm}",
            "liveness of that graph": f"{work.tvm_bound}",
            "TVM's algorithm, our graph": f"{int(greedy.bytes.evaluate(plan.at)) / mib:.2f}",
            "ours: whole storages, logits apart": f"{whole.bytes_at(plan.at) / mib:.2f}",
            "ours: arena": f"{int(plan.bytes.evaluate({})) / mib:.2f}",
            "needed at once, our graph": f"{plan.bound_at(plan.at) / mib:.2f}",
            "kernels": f"{len(plan.program.steps)}",
            "planned in": f"{plan.seconds:.2f} s",
        }
        for title, text in figures.items():
            rows.setdefault(title, []).append(text)
    for title, texts in rows.items():
        table.add_row(title, *texts)
    out.print(table)
    for name, plan in plans.items():
        peak = Table("MiB", "tensor", "shape", title=f"{name}: at the peak")
        for x in plan.peak:
            value = plan.program.values[x.values[-1]]
            peak.add_row(f"{int(x.bytes.evaluate(plan.at)) / mib:.2f}", value.name, value.annotation.short)
        out.print(peak)
        if picture:
            draw(plan, f"{picture}_{name}.svg")
    for name, work in WORKLOADS.items():
        free = planned(modules[name], work, bounded=False)
        sizes = Table(work.name, "MiB, no bounds", "MiB, this size alone", title=f"{name}: {free.bytes} bytes")
        for size in work.sizes:
            alone = planned(modules[name], work, size)
            both = free.bytes_at(work.at(size)), alone.bytes_at(work.at(size))
            sizes.add_row(str(size), *(f"{b / mib:.3f}" for b in both))
        out.print(sizes)
        whole = free.laid_out("storages", results="apart")
        out.print(f"{len(whole.storages)} whole storages without bounds")


if __name__ == "__main__":
    typer.run(main)
