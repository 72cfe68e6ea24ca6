"""Scientific kernels written the slow way, as numpy programs often are, each beside its best form by hand.

    python -m benchmarks.slow_kernels [--only sort] [--target cpu] [--json out.json] [--resume] [--budget 280]
    python -m benchmarks.slow_kernels --json out.json --resume --budget 0 --write      # the table into the document

In the spirit of the benchmarks of STENSO (Brauckmann et al., 2025), which are numpy programs with a faster equal one;
none is copied. What holds for all reals is meant: a form by hand may round otherwise. Ours uses the rules that ship and
those that are mined from the kernel; all forms run under `jax.jit` and take turns (`benchmarks.patterns`, of which the
kernels are a set).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import typer
from rich.console import Console

from benchmarks import Quick, write_between
from benchmarks.cases import Case, Form, Function
from benchmarks.timing import duration, machine, told

SIZE = 256  # of `n`
QUICK_KERNELS = 2
DOCUMENT = Path(__file__).parent.parent / "docs" / "discovery.md"
BEGIN, END = "<!-- python -m benchmarks.slow_kernels --write: from here -->", "<!-- to here -->"


def _kernel(name: str, written: Function, specs: str, by_hand: Function, form: str, **sizes: int) -> Case:
    return Case(name, written, tuple(s.strip() for s in specs.split(",")), {form: Form(by_hand)}, sizes)


def _stack_product(x):
    return jnp.stack([x * 2.0, x * 3.0, x * 4.0]).sum(0)


def _horner_by_powers(x):
    return 4.0 * x**4 + 3.0 * x**3 + 2.0 * x**2 + x


def _variance_of_rows(x):
    return jnp.sum((x - jnp.mean(x, 1, keepdims=True)) ** 2, 1) / x.shape[1]


def _laplacian(a, x):
    return (jnp.diag(jnp.sum(a, 1)) - a) @ x


def _gram_by_outer(x):
    return jnp.sum(x[:, :, None] * x[:, None, :], 0)


def _centred(x):
    n = x.shape[0]
    return (jnp.eye(n) - jnp.ones((n, n)) / n) @ x


def _kron_vector(a, b, x):
    return jnp.kron(a, b) @ x.reshape(-1)


def _kron_by_hand(a, b, x):
    return ((a @ x) @ b.T).reshape(-1)


def _distances(x, y):
    return jnp.sum((x[:, None, :] - y[None, :, :]) ** 2, -1)


def _distances_by_hand(x, y):
    return jnp.sum(x * x, 1)[:, None] + jnp.sum(y * y, 1)[None, :] - 2.0 * (x @ y.T)


def _tanh_by_exponentials(x):
    return (jnp.exp(x) - jnp.exp(-x)) / (jnp.exp(x) + jnp.exp(-x))


def _softmax_twice_shifted(x):
    return jax.nn.softmax(jax.nn.softmax(x + 1.0, -1) * 0.0 + x, -1)


CASES = [
    _kernel("diag(A@B)", lambda a, b: jnp.diagonal(a @ b), "n n, n n", lambda a, b: jnp.sum(a * b.T, 1), "row sums"),
    _kernel("trace of three factors", lambda a, b, c: jnp.trace(a @ b @ c), "n n, n 16, 16 n",
            lambda a, b, c: jnp.sum((a @ b) * c.T), "sum of products"),
    _kernel("tr(A'A)", lambda a: jnp.trace(a.T @ a), "n n", lambda a: jnp.sum(a * a), "sum of squares"),
    _kernel("sum(A*xx')", lambda a, x: jnp.sum(a * jnp.outer(x, x)), "n n, n", lambda a, x: x @ (a @ x), "x'Ax"),
    _kernel("outer(u,v)@x", lambda u, v, x: jnp.outer(u, v) @ x, "n, n, n", lambda u, v, x: u * (v @ x), "u(v'x)"),
    _kernel("A@A@A@x", lambda a, x: a @ a @ a @ x, "n n, n", lambda a, x: a @ (a @ (a @ x)), "right to left"),
    _kernel("|UV'|^2", lambda u, v: jnp.sum((u @ v.T) ** 2), "n 16, n 16",
            lambda u, v: jnp.sum((u.T @ u) * (v.T @ v)), "small Gram matrices"),
    _kernel("diag(XAY')", lambda x, a, y: jnp.diagonal(x @ a @ y.T), "n 32, 32 32, n 32",
            lambda x, a, y: jnp.sum((x @ a) * y, 1), "row sums"),
    _kernel("Laplacian", _laplacian, "n n, n", lambda a, x: jnp.sum(a, 1) * x - a @ x, "no matrix"),
    _kernel("X'X by outer products", _gram_by_outer, "n 64", lambda x: x.T @ x, "X'X"),
    _kernel("centring matrix", _centred, "n 64", lambda x: x - jnp.mean(x, 0), "minus the mean"),
    _kernel("kron(A,B)@x", _kron_vector, "n n, 8 8, n 8", _kron_by_hand, "AXB'"),
    _kernel("squared distances", _distances, "n 32, n 32", _distances_by_hand, "by products"),
    _kernel("A*diag", lambda a, d: a @ jnp.diag(d), "n n, n", lambda a, d: a * d, "scaled columns"),
    _kernel("D1@A@D2", lambda d, a, e: jnp.diag(d) @ a @ jnp.diag(e), "n, n n, n",
            lambda d, a, e: d[:, None] * a * e, "scaled"),
    _kernel("ones@A", lambda a: jnp.ones((a.shape[0], a.shape[0])) @ a, "n n",
            lambda a: jnp.broadcast_to(jnp.sum(a, 0), a.shape), "column sums"),
    _kernel("tri@x", lambda x: jnp.tri(x.shape[0]) @ x, "n", lambda x: jnp.cumsum(x), "cumsum"),
    _kernel("cumsum[-1]", lambda x: jnp.cumsum(x, 0)[-1], "n n", lambda x: jnp.sum(x, 0), "sum"),
    _kernel("sort[-1]", lambda x: jnp.sort(x, 0)[-1], "n n", lambda x: jnp.max(x, 0), "max"),
    _kernel("x[argsort(x)]", lambda x: x[jnp.argsort(x)], "n", lambda x: jnp.sort(x), "sort"),
    _kernel("sum(sort(x))", lambda x: jnp.sum(jnp.sort(x, 1), 1), "n n", lambda x: jnp.sum(x, 1), "sum"),
    _kernel("one_hot@W", lambda i, w: jax.nn.one_hot(i, w.shape[0]) @ w, "n @ int32, n 64",
            lambda i, w: jnp.where(((i >= 0) & (i < w.shape[0]))[:, None], w[i], 0.0), "rows"),
    _kernel("(A@B)[:8]", lambda a, b: (a @ b)[:8], "n n, n n", lambda a, b: a[:8] @ b, "first rows"),
    _kernel("mean(A@B,0)", lambda a, b: jnp.mean(a @ b, 0), "n n, n n", lambda a, b: jnp.mean(a, 0) @ b, "mean first"),
    _kernel("(A+A')@x/2", lambda a, x: ((a + a.T) / 2.0) @ x, "n n, n", lambda a, x: (a @ x + x @ a) * 0.5, "two"),
    _kernel("stack and sum", _stack_product, "n n", lambda x: 9.0 * x, "one product"),
    _kernel("polynomial", _horner_by_powers, "n n",
            lambda x: x * (1.0 + x * (2.0 + x * (3.0 + x * 4.0))), "Horner's scheme"),
    _kernel("x**4.0", lambda x: jnp.power(x, 4.0), "n n", lambda x: (x * x) * (x * x), "squares"),
    _kernel("sigmoid by exp", lambda x: jnp.exp(x) / (1.0 + jnp.exp(x)), "n n", lambda x: jax.nn.sigmoid(x), "sigmoid"),
    _kernel("tanh by exp", _tanh_by_exponentials, "n n", lambda x: jnp.tanh(x), "tanh"),
    _kernel("exp(x)*exp(y)", lambda x, y: jnp.exp(x) * jnp.exp(y), "n n, n n", lambda x, y: jnp.exp(x + y), "exp(x+y)"),
    _kernel("log(exp(x)exp(y))", lambda x, y: jnp.log(jnp.exp(x) * jnp.exp(y)), "n n, n n",
            lambda x, y: x + y, "x+y"),
    _kernel("x/sqrt(y)", lambda x, y: x / jnp.sqrt(y * y + 1.0), "n n, n n",
            lambda x, y: x * jax.lax.rsqrt(y * y + 1.0), "rsqrt"),
    _kernel("(x/y)/z", lambda x, y, z: x / (y * y + 1.0) / (z * z + 1.0), "n n, n n, n n",
            lambda x, y, z: x / ((y * y + 1.0) * (z * z + 1.0)), "one division"),
    _kernel("max by where", lambda x, y: jnp.where(x > y, x, y), "n n, n n", lambda x, y: jnp.maximum(x, y), "maximum"),
    _kernel("|x| of sqrt", lambda x: jnp.sqrt(x * x), "n n", lambda x: jnp.abs(x), "abs"),
    _kernel("clip twice", lambda x: jnp.minimum(jnp.maximum(jnp.minimum(jnp.maximum(x, 0.0), 1.0), 0.0), 1.0), "n n",
            lambda x: jnp.clip(x, 0.0, 1.0), "clip"),
    _kernel("sums apart", lambda x, y: jnp.sum(x, 1) + jnp.sum(y, 1), "n n, n n",
            lambda x, y: jnp.sum(x + y, 1), "one sum"),
    _kernel("variance", _variance_of_rows, "n n", lambda x: jnp.var(x, 1), "var"),
    _kernel("softmax of shifted", _softmax_twice_shifted, "n n", lambda x: jax.nn.softmax(x, -1), "softmax"),
]  # fmt: skip


def page(rows: Sequence[Any]) -> str:
    """The rows of `benchmarks.patterns` as Markdown, the best form by hand that wins by most first."""
    from benchmarks.patterns import summary

    lines = [
        f"{machine()}, n = {SIZE}. Speed-ups are over `jax.jit` of the kernel as written.",
        "",
        *("```text", summary(list(rows)), "```", ""),
        "| kernel | as written | form by hand | by hand | ours | slower | misses the form by hand |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in sorted(rows, key=lambda r: -r.best.value):
        slower = "same program" if r.same else told(r.slower, "SLOWER")
        cells = (f"`{r.case}`", duration(r.written), r.best_form, f"{r.best.value:.2f}", str(r.ours), slower)
        lines.append(f"| {' | '.join(cells)} | {told(r.missed, 'missed')} |")
    return "\n".join(lines)


def main(
    only: Annotated[str, typer.Option("--only", help="kernels whose name contains this")] = "",
    target: Annotated[str | None, typer.Option(help="a device profile, or its file; default: this machine")] = None,
    json_out: Annotated[Path | None, typer.Option("--json", help="also write the rows here")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="keep the rows of --json, time the rest")] = False,
    budget: Annotated[float, typer.Option(help="stop after so many seconds; --resume goes on")] = float("inf"),
    write: Annotated[bool, typer.Option("--write", help=f"put the table into {DOCUMENT.name}")] = False,
    quick: Quick = False,
) -> None:
    from benchmarks import patterns

    console = Console(width=None if sys.stdout.isatty() else 190)
    chosen = [c for c in CASES if only.lower() in c.name.lower()][: QUICK_KERNELS if quick else None]
    options = {"target": target, "measure": 0, "mine": True}
    rows = patterns.timed(console, chosen, [SIZE], json_out, resume, budget, True, quick, options)
    console.print(patterns.table(rows))
    console.print(patterns.summary(rows))
    if write and not quick:
        write_between(DOCUMENT, BEGIN, END, page(rows))


if __name__ == "__main__":
    typer.run(main)
