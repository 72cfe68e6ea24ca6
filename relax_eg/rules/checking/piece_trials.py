"""Programs on which schemas that compute in pieces are tested: large values on the way to small results.

Arithmetic is exact.
"""

from __future__ import annotations

import numpy as np

from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, postorder, var
from relax_eg.ops import api as op
from relax_eg.rules.checking.drawing import floats_for, integers_for, one_of, variables
from relax_eg.rules.schemas import ModuleAnswers, Trial, trial_of
from relax_eg.shapes import Dim

_ROUNDING = 1e-4  # chosen: as a share of the largest element, of sums of up to 40 terms in float32


class FewPlaces(ModuleAnswers):
    """Answers for small sizes, so that trees of loops have few steps."""

    def extent(self, size: Dim) -> int:
        return int(size.evaluate(dict.fromkeys(size.variables, 16)))


def rows(rng: np.random.Generator) -> Trial:
    """A product or sum whose operand is larger than its result: a matrix product, transformed by elementwise operators,
    reductions, transposes and broadcasts. Some intermediate values have several readers."""
    n, m = (int(rng.integers(0, 20)) for _ in range(2))
    params = x, y, b, v = variables("x: n 2, y: m 2, b: m, v: m 2")
    rows, columns = Dim.var("n"), Dim.var("m")
    e = op.matmul(x, op.permute_dims(y, (1, 0)))
    inside = [e]
    for _ in range(int(rng.integers(1, 6))):
        made = (
            lambda e: op.add(e, b), lambda e: op.multiply(e, e), lambda e: op.maximum(e, inside[0]),
            lambda e: op.subtract(e, op.sum(e, 1, keepdims=True)), lambda e: op.negative(e), lambda e: op.triu(e),
            lambda e: op.subtract(e, op.broadcast_to(op.sum(e, 1, keepdims=True), (rows, columns))),
            lambda e: op.subtract(e, op.sum(e, 0, keepdims=True)), lambda e: op.cumsum(e, 0),
            lambda e: op.permute_dims(op.permute_dims(e, (1, 0)), (1, 0)),
            lambda e: op.reshape(op.reshape(e, (rows * columns,)), (rows, columns)), lambda e: op.flip(e, 0),
            lambda e: op.squeeze(op.expand_dims(e, 1), 1),
            lambda e: op.multiply(e, op.iota((rows, columns), int(rng.integers(2)), "float32")),
            lambda e: op.where(op.less(*(op.iota((rows, columns), a) for a in (0, 1))), e, inside[0]),
        )  # fmt: skip
        e = one_of(rng, made)(e)
        inside.append(e)
    ends = (
        lambda: op.matmul(e, v), lambda: op.matmul(op.permute_dims(v, (1, 0)), op.permute_dims(e, (1, 0))),
        lambda: op.sum(e, 1), lambda: op.matmul(op.permute_dims(e, (1, 0)), x), lambda: op.sum(e, 0),
        lambda: op.add(op.sum(e, 1), op.sum(op.multiply(e, e), 1)),
    )  # fmt: skip
    node = one_of(rng, ends)()
    args = integers_for(rng, params, -2, 2, n=n, m=m)
    large = (0.0, 1024.0, 8192.0)[int(rng.integers(3))]  # bytes; 0 where every byte in memory has a price
    return trial_of(params, node, args, large_bytes=large)


def batches(rng: np.random.Generator) -> Trial:
    """A program as `rows` draws them, for a batch of a few matrices, which may share operands."""
    k, n, m = int(rng.integers(1, 10)), *(int(rng.integers(0, 9)) for _ in range(2))
    params = x, y, b, v, w = variables(f"x: {k} n 2, y: {k} m 2, b: m, v: {k} m 2, w: m 2")
    e = op.matmul(x, op.permute_dims(y, (0, 2, 1)))
    for _ in range(int(rng.integers(1, 4))):
        made = (
            lambda e: op.add(e, b), lambda e: op.multiply(e, e), lambda e: op.triu(e), lambda e: op.flip(e, 0),
            lambda e: op.subtract(e, op.sum(e, int(rng.integers(3)), keepdims=True)), lambda e: op.cumsum(e, 0),
            lambda e: op.permute_dims(op.permute_dims(e, (2, 0, 1)), (1, 2, 0)),
            lambda e: op.multiply(e, op.iota(e.shape, int(rng.integers(3)), "float32")),
        )  # fmt: skip
        e = one_of(rng, made)(e)
    ends = (
        lambda: op.matmul(e, v), lambda: op.matmul(e, w), lambda: op.sum(e, 2), lambda: op.sum(e, 1),
        lambda: op.matmul(op.permute_dims(e, (0, 2, 1)), x),
    )  # fmt: skip
    node = one_of(rng, ends)()
    args = integers_for(rng, params, -2, 2, n=n, m=m)
    large = (0.0, 8192.0, 8192.0)[int(rng.integers(3))]  # bytes; mostly rows are below this and matrices are not
    return trial_of(params, node, args, large_bytes=large)


def _in_groups(e: Expr, groups: int) -> Expr:
    """Rows in groups, of which each is added up, as the attention within each sequence of a batch does."""
    apart = op.reshape(e, (Dim.of(groups), e.shape[0] // groups, e.shape[1]))
    return op.reshape(op.subtract(apart, op.sum(apart, 1, keepdims=True)), e.shape)


def sums_of_rows(rng: np.random.Generator) -> Trial:
    """Results that add up rows of intermediate values, as gradients of weights do: products of a transposed value with
    another one, and sums and maxima over rows. One of them is the node; the others share its intermediate values."""
    groups, each, m = int(rng.integers(1, 10)), int(rng.integers(1, 4)), int(rng.integers(1, 4))
    n, known = groups * each, bool(rng.integers(2))
    params = x, w, v, b = variables(f"x: {n if known else 'n'} 2, w: 2 m, v: m m, b: m")
    inside = [op.matmul(x, w)]
    for _ in range(int(rng.integers(2, 8))):
        e, other = inside[-1], one_of(rng, inside)
        made = (
            lambda e, f: op.add(e, b), lambda e, f: op.multiply(e, f), lambda e, f: op.maximum(e, f),
            lambda e, f: op.matmul(e, v), lambda e, f: op.subtract(e, op.sum(f, 1, keepdims=True)),
            lambda e, f: op.subtract(e, op.sum(f, 0, keepdims=True)), lambda e, f: op.add(e, 1),
            lambda e, f: op.permute_dims(op.permute_dims(e, (1, 0)), (1, 0)),
            lambda e, f: op.multiply(e, op.iota(e.shape, int(rng.integers(2)), "float32")),
            lambda e, f: _in_groups(e, groups) if known else f,
        )  # fmt: skip
        inside.append(one_of(rng, made)(e, other))
    turned = [op.permute_dims(e, (1, 0)) for e in inside]

    def end() -> Expr:
        i, j = (int(rng.integers(len(inside))) for _ in range(2))
        made = (
            lambda: op.matmul(turned[i], inside[j]), lambda: op.sum(inside[i], 0), lambda: op.max(inside[i], 0),
            lambda: op.sum(op.multiply(inside[i], inside[j])), lambda: op.permute_dims(op.matmul(turned[i], x), (1, 0)),
            lambda: op.matmul(inside[i], v),
        )  # fmt: skip
        return one_of(rng, made)()

    ends = [end() for _ in range(int(rng.integers(1, 4)))]
    large = (0.0, 64.0)[int(rng.integers(2))]  # bytes; 0 where every byte in memory has a price
    args = integers_for(rng, params, -2, 2, n=n, m=m)
    answers = ModuleAnswers if not rng.integers(8) else FewPlaces
    return trial_of(params, ends[0], args, of=answers, nodes=postorder(ends), large_bytes=large)


def softmaxes(rng: np.random.Generator) -> Trial:
    """Sums over keys whose terms are exponentials of scores less their maximum, some of which are -inf: a softmax as an
    operator or by its parts, with and without a divisor, times values or not, whose keys are one of three axes."""
    b, n, m = int(rng.integers(1, 3)), int(rng.integers(1, 5)), int(rng.integers(1, 40))
    keys = m if rng.integers(2) else "m"
    params = x, y, mask, v = variables(f"x: b n 2, y: b {keys} 2, mask: n {keys}, v: b {keys} 2")
    s = op.add(op.matmul(x, op.permute_dims(y, (0, 2, 1))), mask)
    axis = 2
    if rng.integers(2):
        s, axis = op.permute_dims(s, (0, 2, 1)), 1
    keeps = bool(rng.integers(2))

    def kept(e: Expr) -> Expr:
        return e if keeps else op.expand_dims(e, axis)

    peak = kept(op.max(s, axis, keepdims=keeps))
    if rng.integers(2):
        peak = op.where(op.isfinite(peak), peak, op.full(peak.shape, 0, "float32"))
    if rng.integers(2):
        peak = op.broadcast_to(peak, s.shape)
    e = op.exp(op.subtract(s, peak))
    total = kept(op.sum(e, axis, keepdims=keeps))
    made = (
        lambda: op.softmax(s, axis), lambda: op.divide(e, total), lambda: e,
        lambda: op.multiply(op.divide(e, op.broadcast_to(total, s.shape)), s),
    )  # fmt: skip
    p = one_of(rng, made)()
    turned = p if axis == 2 else op.permute_dims(p, (0, 2, 1))
    ends = (
        lambda: op.matmul(turned, v), lambda: op.sum(p, axis), lambda: op.divide(op.matmul(turned, v), peak_of_rows()),
    )  # fmt: skip

    def peak_of_rows() -> Expr:
        return op.expand_dims(op.max(s, axis), 2)

    node = one_of(rng, ends)()
    hidden = np.where(rng.random((n, m)) < rng.choice((0.0, 0.4, 0.9, 1.0), (n, 1)), -np.inf, 0.0)
    drawn = (4 * rng.standard_normal((b, k, 2)) for k in (n, m, m))
    xs, ys, vs = (a.astype(np.float32) for a in drawn)
    args = (xs, ys, hidden.astype(np.float32), vs)
    answers = ModuleAnswers if rng.integers(2) else FewPlaces
    return trial_of(params, node, args, "numpy", _ROUNDING, answers)


def images(rng: np.random.Generator) -> Trial:
    """A chain of convolutions, poolings, and pointwise operators between them, on an image with many rows or columns:
    windows with steps, gaps and padding, and values that are read before and after a window."""
    space = [int(rng.integers(8, 50)), int(rng.integers(1, 5))]
    space = space[:: int(rng.choice((-1, 1)))]
    x = e = var("x", Tensor((1, int(rng.integers(1, 4)), *space), "float32"))
    params = [x]
    for _ in range(int(rng.integers(2, 5))):
        window = [int(n) for n in rng.integers(1, 4, 2)]
        steps, gaps = ([int(n) for n in rng.choice((1, 1, 1, 2), 2)] for _ in range(2))
        same = [(d * (k // 2), d * (k - 1 - k // 2)) for k, d in zip(window, gaps, strict=True)]
        pads = same if rng.integers(2) else [(int(n), 3) for n in rng.integers(0, 4, 2)]
        channels = e.shape[1].value
        draw = int(rng.integers(4))
        if draw == 0:
            kind = ("max", "sum", "min")[int(rng.integers(3))]
            around = [(0, 0), (0, 0), *pads]
            e = op.reduce_window(e, kind, (1, 1, *window), (1, 1, *steps), around, (1, 1, *gaps))
        else:
            groups = channels if draw == 1 else 1
            out = channels if draw == 1 else int(rng.integers(1, 4))
            params.append(var(f"w{len(params)}", Tensor((out, channels // groups, *window), "float32")))
            e = op.conv(e, params[-1], steps, pads, gaps, groups)
        made = (
            lambda e: op.relu(e), lambda e: op.add(e, op.full((), 1, "float32")), lambda e: e,
            lambda e: op.subtract(e, op.iota(e.shape, 2, "float32")),
            lambda e: op.add(e, params[-1]) if params[-1].shape == e.shape else e,
            lambda e: op.add(e, op.reduce_window(e, "max", (1, 1, 3, 3), (1,) * 4, [(0, 0)] * 2 + [(1, 1)] * 2)),
            lambda e: op.multiply(e, op.sum(e, 1, keepdims=True)),
        )  # fmt: skip
        e = one_of(rng, made)(e)
    return trial_of(params, e, floats_for(rng, params, -1, 1), "numpy")


def sums_of_images(rng: np.random.Generator) -> Trial:
    """A sum, or a largest or least element, of what `images` draws, over rows, columns and others, or a product with
    its image as the gradient of a convolution's kernel is one."""
    trial = images(rng)
    x, e, pads = trial.module.main.params[0], trial.node, [(int(a), int(b)) for a, b in rng.integers(0, 3, (2, 2))]
    gaps = [a.value // max(b.value, 1) for a, b in zip(x.shape[2:], e.shape[2:], strict=True)]
    if rng.integers(2) and min(gaps) and all(d.value for d in e.shape):
        image, terms = (op.permute_dims(v, (1, 0, 2, 3)) for v in (x, e))
        node = op.conv(image, terms, padding=pads, dilation=gaps)
        return trial_of(trial.module.main.params, node, trial.args, "numpy", large_bytes=0.0)
    axes = [a for a in range(trial.node.ndim) if a >= 2 or rng.integers(2)]
    node = (op.sum, op.max, op.min)[int(rng.integers(3))](trial.node, axes)
    return trial_of(trial.module.main.params, node, trial.args, "numpy", large_bytes=0.0)


def on_host(rng: np.random.Generator) -> Trial:
    """A program as `twice` draws them, whose value comes back from the host."""
    trial = twice(rng)
    x, t = trial.node.args
    node = op.from_host(op.after(op.on_host(x), t))
    return trial_of(trial.module.main.params, node, trial.args)


def twice(rng: np.random.Generator) -> Trial:
    """A value that is computed twice: the second time from an operand that is held back until another value exists."""
    n, m = (int(rng.integers(0, 6)) for _ in range(2))
    params = x, w = variables("x: n m, w: m m")
    first = op.matmul(x, w)
    late = (op.sum(first), op.multiply(first, first), op.max(op.add(first, 1), 0, keepdims=True))[rng.integers(3)]
    node = op.after((x, op.add(x, 1), first)[rng.integers(3)], late)
    return trial_of(params, node, integers_for(rng, params, -2, 2, n=n + 1, m=m))
