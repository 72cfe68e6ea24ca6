"""Relax modules as importers and exporters leave them: norms as operators, and steps that do nothing."""

from __future__ import annotations

from benchmarks.corpus.program import module

module(
    "exported_rms_norm",
    "A block whose norm is one operator, before its projection",
    """
    @R.function
    def main(x: R.Tensor(("b", "s", 64), "float32"), g: R.Tensor((64,), "float32"),
             w: R.Tensor((64, 128), "float32")):
        with R.dataflow():
            y = R.rms_norm(x, g, axes=(2,), epsilon=1e-06)
            z = R.matmul(y, w)
            R.output(z)
        return z
    """,
    weights=("g", "w"),
)
module(
    "exported_layer_norm",
    "A block whose norm, of a sum that a bias for each row shifts, is one operator",
    """
    @R.function
    def main(x: R.Tensor(("n", 64), "float32"), d: R.Tensor(("n", 1), "float32"), g: R.Tensor((64,), "float32"),
             c: R.Tensor((64,), "float32"), w: R.Tensor((64, 128), "float32")):
        with R.dataflow():
            s = R.add(x, d)
            y = R.layer_norm(s, g, c, axes=(1,), epsilon=1e-05)
            z = R.matmul(y, w)
            R.output(z)
        return z
    """,
    weights=("g", "c", "w"),
)
module(
    "exported_no_ops",
    "What exporters leave: a reshape to the same shape, a transpose that moves nothing, padding by nothing",
    """
    @R.function
    def main(x: R.Tensor(("n", "m"), "float32")):
        with R.dataflow():
            a = R.reshape(x, shape=("n", "m"))
            b = R.permute_dims(a, axes=(0, 1))
            c = R.broadcast_to(b, shape=("n", "m"))
            d = R.pad(c, R.const(0.0, "float32"), low=(0, 0), high=(0, 0), interior=(0, 0))
            e = R.exp(R.where(R.isnan(d), R.const(0.0, "float32"), d))
            R.output(e)
        return e
    """,
    facts={"x": "finite"},
)
module(
    "exported_triangles",
    "A triangular product, whose triangles an exporter takes by the operator Trilu",
    """
    @R.function
    def main(l: R.Tensor(("n", "n"), "float32"), u: R.Tensor(("n", "n"), "float32")):
        with R.dataflow():
            a = R.tril(l, k=0)
            b = R.triu(u, k=0)
            c = R.matmul(a, b)
            R.output(c)
        return c
    """,
    facts={"l": "lower triangular", "u": "upper triangular"},
)
module(
    "exported_split",
    "Two inputs joined by one operator and split by the next",
    """
    @R.function
    def main(x: R.Tensor(("n", "m"), "float32"), y: R.Tensor(("n", "k"), "float32")):
        with R.dataflow():
            both = R.concat(x, y, axis=1)
            parts = R.split(both, sections=("m", "k"), axis=1)
            a = R.exp(parts[0])
            b = R.tanh(parts[1])
            R.output(a, b)
        return (a, b)
    """,
)
module(
    "exported_positions",
    "Learned positions as exporters write them: rows of a table, taken in their order",
    """
    @R.function
    def main(table: R.Tensor(("s + r", 64), "float32"), x: R.Tensor(("s", 64), "float32")):
        with R.dataflow():
            i = R.iota(shape=("s",), axis=0, dtype="int32")
            y = R.add(x, R.take(table, i, axis=0, mode="clip"))
            R.output(y)
        return y
    """,
)
module(
    "exported_calls",
    "A layer as a function of its own, whose result is scored by one vector",
    """
    @R.function
    def layer(x: R.Tensor("s d"), w: R.Tensor("d h")) -> R.Tensor("s h"):
        with R.dataflow():
            y = R.matmul(R.tanh(x), w)
            R.output(y)
        return y
    @R.function
    def main(x: R.Tensor(("n", 64), "float32"), w: R.Tensor((64, 256), "float32"), v: R.Tensor((256,), "float32")):
        with R.dataflow():
            y = R.matmul(layer(x, w), v)
            R.output(y)
        return y
    """,
)
