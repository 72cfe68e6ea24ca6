# ruff: noqa: F821  (the names in a tensor program are its own)
"""One XLA program, or a kernel at a time: what `optimize` gives in both ways beside `jax.jit`, and what kernels move.

    python -m benchmarks.kernels [--only matmul] [--seconds 3] [--target h100] [--tables]

The three take turns in one process; ratios are medians over the rounds with their intervals, bytes and kernels those
that the cost model counts, as written with every operator a kernel and as chosen. "predicted": the predicted seconds in
one XLA program over those in kernels. With --tables nothing is run: what
becomes of the operators of a Llama layer and of its halves, which is also told for devices that are not here.
"""

from __future__ import annotations

import sys
from itertools import islice
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import typer
from rich.console import Console
from rich.table import Table

import relax_eg as rx
from benchmarks import Quick
from benchmarks.llama_layer import Case, Layer, Widths, arguments, layer_cases, rms_norm
from benchmarks.timing import QUICK_SECONDS, duration, measure
from relax_eg import ir
from relax_eg.ir.expr import postorder
from relax_eg.ops import site_of
from relax_eg.ops.libraries import library_of
from relax_eg.reports.report import CostReport


@rx.tensor_program
def decode_q4(
    words: rx.Buffer("4*g m", "uint32"), scales: rx.Buffer("g m", "float32"), W: rx.Buffer("32*g m", "float32")
):
    nibble = (words[i // 8, j] >> cast(index(i % 8 * 4), "uint32")) & const(15, "uint32")
    W[i, j] = (cast(nibble, "float32") - 8.0) * scales[i // 32, j]


def quantised(k: int, m: int) -> rx.types.Module:
    """A product with a weight of four bits, decoded by a tensor program; x, words, scales."""
    given = {"x": f"n {k}", "words": f"{k // 8} {m} @ uint32", "scales": f"{k // 32} {m}"}
    x, words, scales = (ir.var(name, ir.Tensor(spec)) for name, spec in given.items())
    weight = ir.call_tir(decode_q4, [words, scales])
    return rx.types.Module((ir.pure_function("main", [x, words, scales], [rx.op.matmul(x, weight)]),))


def dequantised(x: Any, words: Any, scales: Any) -> Any:
    """The same product as one writes it in JAX."""
    nibbles = (words[:, None] >> (jnp.arange(8, dtype="uint32") * 4)[:, None]) & 15
    weight = nibbles.reshape(-1, words.shape[1]).astype("float32") - 8.0
    return x @ (weight.reshape(-1, 32, words.shape[1]) * scales[:, None]).reshape(weight.shape)


def softmax_matmul(x: Any, v: Any) -> Any:
    return jax.nn.softmax(x) @ v


def norm_matmul(x: Any, g: Any, w: Any) -> Any:
    return rms_norm(x, g) @ w


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) * 0.125) @ v


def cases() -> dict[str, Case]:
    """Programs by name."""
    heads, q4 = "b 8 s 64", ("n 1024", "128 1024 @ uint32", "32 1024")
    wide = ("n 4096", "512 4096 @ uint32", "128 4096")
    return {
        "softmax, matmul": Case(softmax_matmul, ("n 2048", "2048 64"), {"n": 2048}),
        "norm, matmul": Case(norm_matmul, ("n 1024", "1024", "1024 1024"), {"n": 512}),
        "attention": Case(attention, (heads, heads, heads), {"b": 1, "s": 512}),
        "attention, 2,048 places": Case(attention, ("b 12 s 64",) * 3, {"b": 1, "s": 2048}),
        "attention, 4,096 places": Case(attention, ("b 12 s 64",) * 3, {"b": 1, "s": 4096}),
        "4-bit matmul, 1 row": Case(dequantised, q4, {"n": 1}),
        "4-bit matmul, 128 rows": Case(dequantised, q4, {"n": 128}),
        "4-bit matmul, own decoder, 1 row": Case(quantised(1024, 1024), q4, {"n": 1}),
        "4-bit matmul, own decoder, 128 rows": Case(quantised(1024, 1024), q4, {"n": 128}),
        "4-bit matmul, width 4096, 1 row": Case(quantised(4096, 4096), wide, {"n": 1}),
        "4-bit matmul, width 4096, 128 rows": Case(quantised(4096, 4096), wide, {"n": 128}),
        **layer_cases(Layer(), 128, 512),
    }


def optimized(case: Case, execution: str, target: str | None) -> rx.types.Optimized:
    specs: tuple[Any, ...] = () if isinstance(case.fn, rx.types.Module) else case.specs
    options: Any = {"execution": execution, "target": target, "at": case.at}
    return rx.optimize(case.fn, *specs, **options)


def timed(seconds: float, only: str, target: str | None, quick: bool) -> Table:
    """Both ways to execute beside `jax.jit` of the program as written."""
    table = Table("program", "jax.jit", "whole", "kernels", "predicted", "number", "as written", "MB", "as written")
    chosen = {name: case for name, case in cases().items() if only in name}
    for name, case in islice(chosen.items(), QUICK_CASES if quick else None):
        whole, kernels = (optimized(case, way, target) for way in ("whole", "kernels"))
        args = arguments(case.specs, case.at)
        plain: Any = jax.jit(dequantised if isinstance(case.fn, rx.types.Module) else case.fn)
        calls = {"jit": lambda: plain(*args), "whole": lambda: whole(*args), "kernels": lambda: kernels(*args)}  # noqa: B023
        found = measure(calls, seconds)
        before, after = kernels.report.before, kernels.report.after
        ratios = [str(found.speedup(way, "jit")) for way in ("whole", "kernels")]
        moved = [f"{c.bytes / 1e6:.3g}" for c in (after, before)]
        predicted = f"{whole.report.after.call / after.call:.2f}"
        launches = str(after.launches), str(before.launches)
        table.add_row(name, duration(found.median("jit")), *ratios, predicted, *launches, *moved)
    return table


def shares(report: CostReport) -> tuple[int, int, int]:
    """Operators of the chosen program, those in its library calls as in their patterns; of these, what library calls
    hold; and what is no kernel of its own, as generated kernels hold it beside others."""
    held = sum(row.operators for row in report.libraries)
    fused = sum((len(row.operators) - 1) * row.times for row in report.kernels)
    calls = sum(row.calls for row in report.libraries)
    return report.after.launches + fused + held - calls, held, fused


_MATMULS = ("matmul", "linear")


def multiplied(best: rx.types.Optimized) -> tuple[int, int]:
    """Matmuls of the chosen program inside library calls, as in their patterns, and in all."""
    held = inside = 0
    for e in (e for f in best.module for e in f.expressions()):
        library = library_of(e)
        if library is not None:
            site = site_of(e)
            pattern, _ = library.sizes_at(site.operands, dict(site["attrs"]))
            inside += sum(x.op in _MATMULS for x in postorder(pattern.results))
        held += e.op in _MATMULS
    for row in best.report.kernels:
        held += row.times * sum(word in _MATMULS for word in row.operators)
    return inside, inside + held


QUICK_CASES = 1
SMALL, LLAMA_3_8B = Widths(), Widths(4096, 32, 8, 14336)


def layers(target: str | None, dtype: str, quick: bool) -> Table:
    """Kernels, library calls and bytes of a Llama layer and its halves, before and after: of a small one, and of the
    widths of Llama 3 8B."""
    columns = "program, as written, kernels, operators, library calls, in these, fused away, matmuls in calls"
    table = Table(*columns.split(", "), "MB", "as written")
    both = (SMALL, 512, 1024, 1), (LLAMA_3_8B, 2048, 1024, 64)
    for widths, tokens, kept, rows in both[:1] if quick else both:
        layer = Layer(widths, dtype)
        one = {"b": 1, "s": tokens}
        found = {f"{n}, {tokens} tokens": (n, one) for n in ("attention_half", "mlp_half", "prefill")}
        found[f"decode of {rows} after {kept}"] = "decode", {"b": rows, "t": kept}
        for name, (part, sizes) in islice(found.items(), QUICK_CASES if quick else None):
            best = optimized(Case(getattr(layer, part), layer.specs(part), sizes), "kernels", target)
            report = best.report
            operators, held, fused = shares(report)
            calls = sum(row.calls for row in report.libraries)
            moved = [f"{c.bytes / 1e6:.3g}" for c in (report.after, report.before)]
            inside = [f"{n} ({n / operators:.0%})" for n in (held, fused)]
            inside.append("{} of {}".format(*multiplied(best)))
            start = f"{name.replace('_', ' ')}, width {widths.width}", report.before.launches, report.after.launches
            table.add_row(*map(str, (*start, operators, calls)), *inside, *moved)
    return table


def main(
    only: Annotated[str, typer.Option(help="programs whose names contain this")] = "",
    seconds: Annotated[float, typer.Option(help="of timing, for each program")] = 3.0,
    target: Annotated[str | None, typer.Option(help="a device profile, or the path of one")] = None,
    dtype: Annotated[str, typer.Option(help="of the layer in the tables")] = "float32",
    quick: Quick = False,
    tables: Annotated[bool, typer.Option(help="what becomes of a Llama layer; nothing is run")] = False,
) -> None:
    """Kernels beside one XLA program."""
    table = layers(target, dtype, quick) if tables else timed(QUICK_SECONDS if quick else seconds, only, target, quick)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


if __name__ == "__main__":
    typer.run(main)
