"""Random tensor programs, biased towards patterns of the rules, and arguments for them.

A program's shapes come from a palette of two or three sizes, so that operands often fit each other; where nothing fits
a step, it leaves the program as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

from relax_eg import op
from relax_eg.dtypes import is_float, is_integer, numpy_dtype
from relax_eg.errors import OperatorError
from relax_eg.ir import Expr, Module, Tensor, postorder, pure_function, var
from relax_eg.ops.sizes import product
from relax_eg.shapes import Dim, Scope

T = TypeVar("T")
Sizes = Mapping[str, int]
NAMES = ("n", "m", "k")
MOST_INPUTS = 5
MOST_RESULTS = 5
_MOST_ELEMENTS = 600  # of one value, with every size variable at LARGEST
LARGEST = 5
_SCOPE = Scope()


class Builder:
    """The builder of a program.

    - `pool`: the values so far.
    - `params`: the inputs.
    """

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        # Repetitions make a size likelier.
        sizes = self.pick([("n", "m"), ("n", "m", "k"), ("n", 3), ("n", "m", 1), (2, 3), ("n",), ("n", "m", "2*n")])
        self.palette: tuple[Dim, ...] = tuple(map(Dim.of, sizes))
        self.dtype = self.pick(["float32"] * 6 + ["bfloat16", "float16"])
        self.params: list[Expr] = []
        self.pool: list[Expr] = []

    def pick(self, options: Sequence[T]) -> T:
        return options[self._draw(st.integers(0, len(options) - 1))]

    def size(self) -> Dim:
        return self.pick(self.palette)

    def input(self, shape: Sequence[Dim], dtype: str | None = None) -> Expr:
        """Returns an input of this shape, an existing one or a new one."""
        wanted = Tensor(tuple(shape), dtype or self.dtype)
        found = [p for p in self.params if p.annotation == wanted]
        if found and (len(self.params) >= MOST_INPUTS or self.pick([True, False, False])):
            return self.pick(found)
        if len(self.params) >= MOST_INPUTS:
            raise OperatorError("enough inputs")
        self.params.append(var("abcde"[len(self.params)], wanted))
        self.pool.append(self.params[-1])
        return self.params[-1]

    def value(self, fits: Callable[[Expr], bool] = lambda _: True) -> Expr:
        """A value of the program's float type that fits, later ones preferred; OperatorError where there is none."""
        found = [e for e in self.pool if e.dtype == self.dtype and fits(e)]
        if not found:
            raise OperatorError("nothing fits")
        return self.pick(found + found[-2:])

    def ranked(self, *ranks: int) -> Expr:
        return self.value(lambda e: e.ndim in ranks)

    def matrix(self, rows: Dim | None = None, columns: Dim | None = None) -> Expr:
        """A matrix of these sizes, new where there is none, sometimes a transpose."""
        wanted = (rows, columns)

        def fits(e: Expr) -> bool:
            return e.ndim == 2 and all(w is None or w == d for w, d in zip(wanted, e.shape, strict=True))

        def fits_flipped(e: Expr) -> bool:
            return e.ndim == 2 and all(w is None or w == d for w, d in zip(wanted, e.shape[::-1], strict=True))

        for way in (fits, fits_flipped) if self.pick([True, True, False]) else (fits_flipped, fits):
            try:
                found = self.value(way)
            except OperatorError:
                continue
            return found.T if way is fits_flipped else found
        return self.input([self.size() if w is None else w for w in wanted])

    def vector(self, size: Dim) -> Expr:
        try:
            return self.value(lambda e: e.shape == (size,))
        except OperatorError:
            return self.input([size])

    def indexable(self, *ranks: int) -> Expr:
        """A value of one of these ranks that no size makes empty."""
        return self.value(lambda e: e.ndim in ranks and all((_SCOPE.interval(d)[0] or 0) >= 1 for d in e.shape))

    def scalar(self) -> Expr:
        try:
            return self.value(lambda e: e.ndim == 0)
        except OperatorError:
            return self.input([])

    def like(self, x: Expr) -> Expr:
        try:
            return self.value(lambda e: e.shape == x.shape)
        except OperatorError:
            return self.input(x.shape)


Step = Callable[[Builder], "Expr | Sequence[Expr]"]


def _matmul(b: Builder) -> Expr:
    x = b.ranked(1, 2, 3)
    y = b.vector(x.shape[-1]) if b.pick([True, False, False]) else b.matrix(x.shape[-1])
    return b.pick([lambda: x @ y, lambda: op.linear(x, y.T) if y.ndim == 2 else x @ y])()


def _chain(b: Builder) -> Expr:
    x, y = b.ranked(1, 2, 3), b.matrix()
    y = b.matrix(x.shape[-1])
    z = b.pick([b.vector, b.matrix])(y.shape[-1])
    return b.pick([lambda: (x @ y) @ z, lambda: x @ (y @ z)])()


def _batched(b: Builder) -> Expr:
    x = b.ranked(3)
    y = b.value(lambda e: e.ndim == 3 and e.shape[0] == x.shape[0] and e.shape[1] == x.shape[2])
    return x @ y


def _factors(b: Builder) -> Expr:
    x = b.ranked(2, 3)
    y = b.matrix(x.shape[-1])
    if b.pick([True, False]):
        z = b.matrix(*y.shape)
        return b.pick([lambda: x @ y + x @ z, lambda: x @ y - x @ z])()
    w = b.like(x)
    return b.pick([lambda: x @ y + w @ y, lambda: x @ y - w @ y])()


def _adapter(b: Builder) -> Expr:
    x = b.ranked(1, 2, 3)
    w = b.matrix(x.shape[-1])
    a = b.matrix(x.shape[-1])
    v = b.matrix(a.shape[1], w.shape[1])
    s = b.scalar() if b.pick([True, False]) else 0.5
    return b.pick(
        [
            lambda: x @ (w + a @ v),
            lambda: x @ w + (x @ a) @ v,
            lambda: x @ (w + (a @ v) * s),
            lambda: x @ w + ((x @ a) @ v) * s,
        ]
    )()


def _low_rank(b: Builder) -> Expr:
    w = b.matrix()
    u = b.matrix(w.shape[0])
    v = b.matrix(u.shape[1], w.shape[1])
    return (w + u @ v) @ b.pick([b.vector, b.matrix])(w.shape[1])


def _identity(b: Builder) -> Expr:
    x = b.ranked(1, 2)
    front = op.eye(x.shape[0], dtype=b.dtype)
    back = op.eye(x.shape[-1], dtype=b.dtype)
    mask = op.equal(op.iota((x.shape[0],) * 2, 0), op.iota((x.shape[0],) * 2, 1))
    return b.pick([lambda: front @ x, lambda: x @ back, lambda: op.astype(mask, b.dtype) @ x])()


def _diagonal(b: Builder) -> Expr:
    x = b.ranked(1, 2, 3)
    if b.pick([True, False]) and x.ndim > 1:
        return x @ op.diag(b.vector(x.shape[-1]))
    if x.ndim == 3:
        raise OperatorError("a matrix or vector")
    return op.diag(b.vector(x.shape[0])) @ x


def _mask_diagonal(b: Builder) -> Expr:
    a = b.matrix()
    c = b.matrix(a.shape[1], a.shape[0])
    square = a @ c if b.pick([True, True, False]) else b.matrix(a.shape[0], a.shape[0])
    mask = op.equal(op.iota(square.shape, 0), op.iota(square.shape, 1))
    zero: Any = 0.0 if b.pick([True, False]) else op.zeros(square.shape, b.dtype)
    kept = op.where(mask, b.pick([square, square.T]), zero)
    return b.pick([lambda: op.sum(kept), lambda: op.trace(square), lambda: kept, lambda: op.sum(kept, 0)])()


def _scaled_rows(b: Builder) -> Expr:
    y = b.matrix()
    x = b.vector(y.shape[0])
    column = op.expand_dims(x, 1)
    z = b.pick([b.vector, b.matrix])(y.shape[1])
    row = b.vector(y.shape[1])
    return b.pick(
        [
            lambda: (column * y) @ z,
            lambda: (column * row) @ z,
            lambda: (column * op.expand_dims(row, 0)) @ z,
            lambda: column * (y @ b.matrix(y.shape[1])),
            lambda: (y * op.expand_dims(row, 0)) @ z,
            lambda: (op.broadcast_to(column, y.shape) * y) @ z,
        ]
    )()


def _scaled_columns(b: Builder) -> Expr:
    x = b.ranked(2, 3)
    w = b.matrix(x.shape[-1])
    g, h, s = b.vector(x.shape[-1]), b.vector(w.shape[1]), b.scalar()
    return b.pick(
        [lambda: (x * g) @ w, lambda: (x @ w) * h, lambda: (x * s) @ w, lambda: x @ (w * s), lambda: (x @ w) * s]
    )()


def _norm(b: Builder) -> Expr:
    x = b.ranked(2, 3)
    g, h = b.vector(x.shape[-1]), b.vector(x.shape[-1])
    return b.pick([lambda: op.rms_norm(x, g), lambda: op.layer_norm(x, g, h), lambda: op.softmax(x)])()


def _rows(b: Builder) -> Expr:
    x = b.indexable(2, 3)
    y = x @ b.matrix(x.shape[-1]) if b.pick([True, False]) else x
    axis = b.pick(range(y.ndim))
    if b.pick([True, False]):
        return op.take(y, [0] if b.pick([True, False]) else [0, 0, 0], axis)
    return op.take(y, b.input([b.size()], "int32"), axis, b.pick(["fill", "clip", "promise"]))


def _cut(b: Builder, x: Expr) -> Expr:
    begin: list[Dim] = []
    end: list[Dim] = []
    for d in x.shape:
        low, high = b.pick([(0, d), (0, d), (0, 1), (d - 1, d), (0, d - 1), (1, d)])
        begin.append(Dim.of(low))
        end.append(Dim.of(high))
    return op.strided_slice(x, begin, end)


def _slice(b: Builder) -> Expr:
    x = b.indexable(1, 2, 3)
    y = b.pick([lambda: x, lambda: x.T, lambda: x @ b.matrix(x.shape[-1], b.size()), lambda: x + b.like(x)])()
    return b.pick([lambda: _cut(b, y), lambda: y[0], lambda: y[..., -1:], lambda: y[:, -1] if y.ndim > 1 else y[-1]])()


def _concat(b: Builder) -> Sequence[Expr]:
    x = b.ranked(1, 2, 3)
    axis = b.pick(range(x.ndim))
    y = b.value(
        lambda e: (
            e.ndim == x.ndim and all(d == f or i == axis for i, (d, f) in enumerate(zip(x.shape, e.shape, strict=True)))
        )
    )
    both = op.concat([x, y], axis)
    cut = x.shape[axis]
    zeros = (0,) * x.ndim
    first = op.strided_slice(both, zeros, x.shape)
    last = op.strided_slice(both, [cut if i == axis else 0 for i in range(x.ndim)], both.shape)
    parts = op.split(both, [cut], axis)
    return b.pick([[both], [first, last], [last], [parts[0], parts[1]], [op.concat([both, x], axis)]])


def _parallel(b: Builder) -> Sequence[Expr]:
    x = b.ranked(1, 2, 3)
    return [x @ b.matrix(x.shape[-1]) for _ in range(b.pick([2, 3]))]


def _transpose(b: Builder) -> Expr:
    x = b.ranked(2, 3, 4)
    order = b.pick([tuple(range(x.ndim))[::-1], (*range(1, x.ndim), 0), tuple(range(x.ndim))])
    y = op.permute_dims(x, order)
    return b.pick([y, op.permute_dims(y, order)])


def _of_transposes(b: Builder) -> Expr:
    x = b.matrix()
    y = b.matrix(x.shape[1])
    return b.pick([lambda: (x @ y).T, lambda: y.T @ x.T, lambda: (y.T @ x.T).T])()


def _reduce(b: Builder) -> Expr:
    x = b.ranked(1, 2, 3)
    y = b.pick([lambda: x, lambda: x.T, lambda: x @ b.matrix(x.shape[-1]), lambda: x + b.like(x), lambda: -x])()
    if y.ndim == 0:
        return y
    f = b.pick([op.sum, op.sum, op.sum, op.max, op.mean])
    axis = b.pick([None, -1, -1, 0])
    return f(y, axis, keepdims=b.pick([True, False, False]))


def _reduce_twice(b: Builder) -> Expr:
    x = b.ranked(2, 3)
    f = b.pick([op.sum, op.sum, op.max])
    return f(f(x, b.pick([-1, 0])), b.pick([-1, 0, None]))


def _sum_scaled(b: Builder) -> Expr:
    x = b.ranked(1, 2, 3)
    s = b.scalar()
    size = b.size()
    return b.pick([lambda: op.sum(x * s, -1), lambda: op.sum(x, -1) * s, lambda: op.sum(op.broadcast_to(s, (size,)))])()


def _unary(b: Builder) -> Expr:
    f = b.pick([op.negative, op.negative, op.abs, op.square, op.exp, op.tanh, op.relu, op.sigmoid, op.silu])
    return f(b.value())


def _neutral(b: Builder) -> Expr:
    x = b.value()
    return b.pick(
        [
            lambda: x * 1.0,
            lambda: 1.0 * x,
            lambda: x + 0.0,
            lambda: 0.0 + x,
            lambda: x - 0.0,
            lambda: x / 1.0,
            lambda: op.negative(op.negative(x)),
            lambda: op.maximum(x, x),
            lambda: op.minimum(x, x),
            lambda: op.abs(-x),
            lambda: op.abs(op.abs(x)),
            lambda: op.reshape(x, x.shape),
            lambda: op.broadcast_to(x, x.shape),
            lambda: op.pad(x, [(0, 0)] * x.ndim),
            lambda: op.squeeze(op.expand_dims(x, 0), 0),
            lambda: op.where(op.less(x, 0.0), x, x),
        ]
    )()


def _binary(b: Builder) -> Expr:
    x = b.value()
    y = b.pick([b.like, lambda _: b.scalar(), lambda x: b.vector(x.shape[-1]) if x.ndim else b.scalar()])(x)
    f = b.pick([op.add, op.subtract, op.multiply, op.multiply, op.maximum, op.minimum])
    return f(*b.pick([(x, y), (y, x)]))


def _signs(b: Builder) -> Expr:
    x = b.value()
    y = b.like(x)
    z = b.like(x)
    return b.pick([lambda: x + (-y), lambda: x - (-y), lambda: (-x) * (-y), lambda: x * y + x * z])()


def _broadcast(b: Builder) -> Expr:
    x = b.ranked(0, 1, 2)
    lead = b.size()
    y = op.broadcast_to(x, (lead, *x.shape))
    return b.pick(
        [lambda: y, lambda: y * b.like(y), lambda: b.like(y) + y, lambda: op.full((lead, lead), b.scalar())]
    )()


def _spread(b: Builder) -> Expr:
    y = b.ranked(2, 3)
    axis = b.pick(range(y.ndim))
    x = op.sum(y, axis, keepdims=True)
    return b.pick([op.add, op.multiply, op.subtract])(
        *b.pick([(y, x), (op.broadcast_to(x, y.shape), y), (y, op.broadcast_to(x, y.shape))])
    )


def _where(b: Builder) -> Expr:
    x = b.value()
    y = b.like(x)
    c = op.less(x, y)
    s = b.scalar()
    return b.pick(
        [
            lambda: op.where(c, x, y),
            lambda: op.where(op.logical_not(c), x, y),
            lambda: op.where(c, x, op.broadcast_to(s, x.shape)),
            lambda: op.where(c, op.broadcast_to(s, x.shape), y),
            lambda: op.where(c, x, 0.0),
        ]
    )()


def _reshape(b: Builder) -> Expr:
    x = b.value()
    return b.pick(
        [
            lambda: op.expand_dims(x, 0),
            lambda: op.expand_dims(x, x.ndim),
            lambda: op.reshape(x, (product(x.shape),)),
            lambda: op.squeeze(x),
        ]
    )()


def _integers(b: Builder) -> Expr:
    i = b.input([b.size()], "int32")
    return b.pick(
        [lambda: i + 0, lambda: i * 1, lambda: op.astype(i + 0, b.dtype), lambda: op.astype(i * 1, b.dtype)]
    )()


def _input(b: Builder) -> Expr:
    return b.input([b.size() for _ in range(b.pick([0, 1, 2, 2, 3, 4]))])


STEPS: tuple[Step, ...] = (
    _matmul, _matmul, _chain, _chain, _batched, _factors, _factors, _adapter, _low_rank, _identity, _diagonal,
    _mask_diagonal, _scaled_rows, _scaled_columns, _norm, _rows, _rows, _slice, _slice, _concat, _parallel, _transpose,
    _of_transposes, _reduce, _reduce, _reduce_twice, _sum_scaled, _unary, _neutral, _neutral, _binary, _binary, _signs,
    _broadcast, _spread, _where, _reshape, _integers, _input,
)  # fmt: skip


def _small(e: Expr) -> bool:
    """Whether a value is small enough to be computed exactly, and its rank one the e-graph knows."""
    sizes = dict.fromkeys(NAMES, LARGEST)
    return e.ndim <= 4 and int(product(e.shape).evaluate(sizes)) <= _MOST_ELEMENTS


@st.composite
def programs(draw: st.DrawFn, most: int = 8) -> Module:
    """A module of one function: 1 to 5 inputs, up to `most` steps of a few operators each, a few results."""
    b = Builder(draw)
    b.input([b.size(), b.size()][: b.pick([2, 2, 2, 1])])
    for _ in range(draw(st.integers(2, most))):
        step = b.pick(STEPS)
        try:
            made = step(b)
        except (OperatorError, IndexError):
            continue
        b.pool += [e for e in ([made] if isinstance(made, Expr) else made) if _small(e)]
    # The results are the values without readers, so that every step counts, and sometimes a value with readers.
    computed = [e for e in dict.fromkeys(b.pool) if e not in b.params] or b.pool[:1]
    consumed = {a for e in postorder(computed) for a in e.args}
    outputs = [e for e in computed if e not in consumed][-MOST_RESULTS:]
    if b.pick([True, False, False]):
        outputs = list(dict.fromkeys([*outputs, b.pick(computed)]))
    bound = {v for p in b.params for d in p.shape for v in d.variables}
    needed = {v for e in postorder(outputs) if isinstance(e.annotation, Tensor) for d in e.shape for v in d.variables}
    params = [*b.params, *(var(f"size_{v}", Tensor((Dim.var(v),), b.dtype)) for v in sorted(needed - bound))]
    return Module((pure_function("main", params, outputs),))


def size_bindings(module: Module, rng: np.random.Generator, count: int) -> list[dict[str, int]]:
    """`count` bindings of the module's size variables: small ones, one of them with 1 throughout."""
    names = module.main.size_variables
    bindings = [{v: int(rng.integers(1, LARGEST + 1)) for v in names} for _ in range(count)]
    if count > 1:
        bindings[0] = dict.fromkeys(names, 1)
    return bindings


def arguments(module: Module, sizes: Sizes, rng: np.random.Generator) -> list[np.ndarray[Any, Any]]:
    """Arrays for the module's parameters: small numbers, and indices that are in range wherever that matters."""
    made: list[np.ndarray[Any, Any]] = []
    for p in module.main.params:
        shape = tuple(int(d.evaluate(sizes)) for d in p.shape)
        if is_integer(p.dtype):
            limits = [int(e.args[0].shape[e.attr("axis")].evaluate(sizes)) for e in _takes(module, p)]
            array = rng.integers(0, min(limits, default=4), shape)
        else:
            assert is_float(p.dtype)
            array = rng.integers(-8, 9, shape) / 4
        made.append(np.asarray(array).astype(numpy_dtype(p.dtype)))
    return made


def _takes(module: Module, index: Expr) -> list[Expr]:
    """Where a parameter is used as an index; what is computed from it stays equal to it (`i + 0`, `i * 1`)."""
    expressions = module.main.expressions()
    return [e for e in expressions if e.op == "take" and e.attr("mode") != "clip" and index in postorder([e.args[1]])]
