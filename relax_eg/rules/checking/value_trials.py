"""Programs on which schemas about values are tested: broadcasts, index maps, products, matrices, reductions.

Arithmetic is exact where the generator does not name a tolerance.
"""

from __future__ import annotations

import itertools

import numpy as np

from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, const, var
from relax_eg.ops import api as op
from relax_eg.rules.checking.drawing import integers_for, one_of, variables
from relax_eg.rules.schemas import Trial, trial_of
from relax_eg.shapes import Dim

_ROUNDING = 1e-3  # limit: error of determinants of small float32 matrices, singular ones too


def broadcast_operands(rng: np.random.Generator) -> Trial:
    """An operator on two operands of which one or both are broadcast."""
    k, m = (int(rng.integers(4)) for _ in range(2))
    narrow = ((m,), (k, 1), ())[int(rng.integers(3))]
    x, y = (var(n, Tensor(tuple(map(Dim.of, shape)), "float32")) for n, shape in (("x", (k, m)), ("y", narrow)))
    in_front = rng.random() < 0.4 and len(narrow) < 2
    wide = op.expand_dims(y, list(range(2 - len(narrow)))) if in_front else op.broadcast_to(y, (k, m))
    if rng.random() < 0.3:
        wide = op.broadcast_to(op.expand_dims(wide, 0), (2, k, m))
    made = (
        op.add, op.subtract, op.divide, op.maximum, op.less, lambda a, b: op.where(op.less(a, b), b, a),
        lambda a, b: op.where(op.less(b, 2.0), a, b),
    )  # fmt: skip
    f = one_of(rng, made)
    node = f(x, wide) if rng.random() < 0.5 else f(wide, x)
    args = tuple(rng.integers(1, 4, shape).astype(object) for shape in ((k, m), narrow))
    return trial_of((x, y), node, args)


def sums_of_products(rng: np.random.Generator) -> Trial:
    """A sum of products of matrices, vectors and masks in several spellings: matmuls, broadcast products that are
    summed, identity and triangular masks, transposes, slices, concatenations, diagonals."""
    k = int(rng.integers(1, 5))
    n = Dim.of(k)
    params = a, b, c, v, w = variables(f"a: {k} {k}, b: {k} {k}, c: {k} {k}, v: {k}, w: {k}")
    same = op.equal(op.iota((n, n), 0), op.iota((n, n), 1))

    def matrix(depth: int) -> Expr:
        if depth == 0:
            return (a, b, c)[int(rng.integers(3))]
        x, y = matrix(depth - 1), matrix(int(rng.integers(depth)))
        made = (
            lambda: op.matmul(x, y), lambda: op.add(x, y), lambda: op.subtract(x, y), lambda: op.linear(x, y),
            lambda: op.sum(op.multiply(op.expand_dims(x, 2), op.expand_dims(y, 0)), 1), lambda: op.multiply(x, v),
            lambda: op.permute_dims(x, (1, 0)), lambda: op.matmul(op.astype(same, x.dtype), x), lambda: op.negative(x),
            lambda: op.where(same, op.expand_dims(vector(0), 1), const(0.0)), lambda: op.multiply(x, 2.0),
            lambda: op.multiply(op.expand_dims(vector(0), 1), vector(0)), lambda: op.tril(x),
            lambda: op.strided_slice(op.concat([x, y], 1), (0, 1), (k, k + 1)),
            lambda: op.matmul(op.concat([x, y], 1), op.concat([y, x], 0)),
        )  # fmt: skip
        return one_of(rng, made)()

    def vector(depth: int) -> Expr:
        if depth == 0:
            return (v, w)[int(rng.integers(2))]
        x = matrix(depth - 1)
        made = (
            lambda: op.matmul(x, vector(0)), lambda: op.matmul(vector(0), x), lambda: op.sum(x, int(rng.integers(2))),
            lambda: op.sum(op.where(same, x, const(0.0)), 1), lambda: op.add(vector(0), op.sum(x, 0)),
            lambda: op.squeeze(op.strided_slice(x, (0, 0), (1, k)), 0),
        )  # fmt: skip
        return one_of(rng, made)()

    node = (matrix, vector, lambda d: op.sum(matrix(d)))[int(rng.integers(3))](int(rng.integers(1, 4)))
    return trial_of(params, node, integers_for(rng, params, -2, 2))


def chains_of_products(rng: np.random.Generator) -> Trial:
    """A product of 17 to 20 small matrices in any order, of which the first and the last may be vectors, or some may be
    batches."""
    n = int(rng.integers(17, 21))
    sizes = [int(d) for d in rng.integers(1, 4, n + 1)]
    shapes: list[tuple[int, ...]] = list(itertools.pairwise(sizes))
    if rng.integers(2):
        shapes = [(2, *s) if rng.integers(2) else s for s in shapes]
    elif rng.integers(2):
        shapes[-1] = shapes[-1][:1]
        shapes[0] = shapes[0][1:] if rng.integers(2) else shapes[0]
    params = tuple(var(f"x{i}", Tensor(tuple(map(Dim.of, s)), "float32")) for i, s in enumerate(shapes))
    left = [*params]
    while len(left) > 1:
        i = int(rng.integers(len(left) - 1))
        left[i : i + 2] = [op.matmul(left[i], left[i + 1])]
    return trial_of(params, left[0], integers_for(rng, params, -1, 1))


def sums_in_semirings(rng: np.random.Generator) -> Trial:
    """A largest or smallest sum, or whether conditions hold together, of matrices and vectors whose axes are repeated,
    several of them nested."""
    k = int(rng.integers(1, 5))
    n, total, add, times = Dim.of(k), *(
        (op.max, op.maximum, op.add), (op.min, op.minimum, op.add), (op.max, op.maximum, op.minimum),
        (op.any, op.logical_or, op.logical_and), (op.all, op.logical_and, op.logical_or),
    )[int(rng.integers(5))]  # fmt: skip
    dtype = "bool" if total in (op.any, op.all) else "float32"
    params = a, b, v, w = tuple(var(x, Tensor((n,) * r, dtype)) for x, r in zip("abvw", (2, 2, 1, 1), strict=True))

    def matrix(depth: int) -> Expr:
        if depth == 0:
            return (a, b)[int(rng.integers(2))]
        x, y = matrix(depth - 1), matrix(int(rng.integers(depth)))
        made = (
            lambda: total(times(op.expand_dims(x, 2), op.expand_dims(y, 0)), 1), lambda: add(x, y),
            lambda: times(x, v), lambda: times(op.expand_dims(w, 1), x), lambda: op.permute_dims(x, (1, 0)),
            lambda: times(op.expand_dims(v, 1), w),
        )  # fmt: skip
        return one_of(rng, made)()

    x = matrix(int(rng.integers(1, 4)))
    node = total(times(x, v), (None, (0,), (1,))[int(rng.integers(3))])
    values = rng.integers(-9, 10, (2, k, k)), rng.integers(-9, 10, (2, k))
    args = tuple(x < 0 if dtype == "bool" else x.astype(object) for y in values for x in y)
    return trial_of(params, node, args)


def pointwise_terms(rng: np.random.Generator) -> Trial:
    """A term of up to five elementwise operators on two arrays and small numbers, which often repeats an operand."""
    k = int(rng.integers(1, 5))
    params = x, y = variables(f"x: {k}, y: {k}")
    functions = (
        op.add, op.subtract, op.multiply, op.maximum, op.minimum, lambda a, b: op.where(op.less(a, b), a, b),
        lambda a, b: op.where(op.greater_equal(a, b), a, op.negative(b)), lambda a, b: op.maximum(op.negative(a), b),
        lambda a, b: op.where(op.logical_or(op.less(a, b), op.equal(a, b)), a, b), lambda a, b: op.abs(a),
        lambda a, b: op.add(a, float(rng.integers(-2, 3))), lambda a, b: op.multiply(a, float(rng.integers(-2, 3))),
    )  # fmt: skip
    made: list[Expr] = [x, y]
    for _ in range(int(rng.integers(2, 6))):
        f = one_of(rng, functions)
        made.append(f(made[-1], one_of(rng, made)))
    return trial_of(params, made[-1], integers_for(rng, params, -3, 3))


def moved_values(rng: np.random.Generator) -> Trial:
    """An index map of up to four elementwise operators on index maps of two matrices, or such an operator on maps."""
    n, m = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    params = x, y = variables(f"x: {n} {m}, y: {n} {m}")

    def moved(a: Expr) -> Expr:
        rows, columns = a.shape
        begin = int(rng.integers(0, rows.value))
        made = (
            lambda: op.permute_dims(a),
            lambda: op.flip(a, int(rng.integers(2))),
            lambda: op.strided_slice(a, (begin, 0), (rows, columns), (int(rng.integers(1, 3)), 1)),
            lambda: op.reshape(a, (rows * columns, 1)),
            lambda: op.reshape(op.broadcast_to(a, (2, *a.shape)), (-1, columns)),
            lambda: op.take(a, const(rng.integers(0, rows.value, 3)), 0, mode="clip"),
            lambda: op.pad(a, ((int(rng.integers(3)), 0), (0, int(rng.integers(3)))), 1.0),
            lambda: op.concat([a, op.negative(a)], 0),
            lambda: op.broadcast_to(op.strided_slice(a, (0, 0), (1, columns)), a.shape),
        )
        return one_of(rng, made)()

    functions = (
        op.negative,
        op.abs,
        lambda a: op.add(a, 1.0),
        lambda a: op.multiply(a, a),
        lambda a: op.add(a, y) if a.shape == y.shape else op.negative(a),
        moved,
    )
    made = moved(x)
    for _ in range(int(rng.integers(1, 5))):
        made = one_of(rng, functions)(made)
    if rng.random() < 0.7:
        made = moved(made)
    return trial_of(params, made, integers_for(rng, params, -3, 3))


def matrix_words(rng: np.random.Generator) -> Trial:
    """A product of matrices, solutions of triangular systems, signed permutations and diagonal matrices, whose factors
    may cancel. Its arithmetic is exact: the diagonals of triangles are powers of 2."""
    k = int(rng.integers(1, 5))
    params = a, b, lower, q, v = variables(f"a: {k} {k}, b: {k} {k}, l: {k} {k}, q: {k} {k}, v: {k}")

    def matrix(depth: int) -> Expr:
        if depth == 0:
            return (a, b, lower, q)[int(rng.integers(4))]
        x = matrix(depth - 1)
        made = (
            lambda: op.triangular_solve(lower, x, lower=True), lambda: op.matmul(lower, x), lambda: op.matmul(q, x),
            lambda: op.matmul(op.permute_dims(q, (1, 0)), x), lambda: op.permute_dims(x, (1, 0)),
            lambda: op.triangular_solve(lower, x, lower=True, transpose_a=True), lambda: op.matmul(x, q),
            lambda: op.triangular_solve(lower, x, lower=True, left_side=False), lambda: op.matmul(x, lower),
            lambda: op.add(x, matrix(depth - 1)), lambda: op.multiply(x, 2.0),
        )  # fmt: skip
        return one_of(rng, made)()

    m = matrix(int(rng.integers(2, 5)))
    ends = (lambda: m, lambda: op.matmul(m, v), lambda: op.sum(op.multiply(m, m)), lambda: op.trace(m))
    node = ends[int(rng.integers(4))]()
    square = rng.integers(-3, 4, (2, k, k))
    triangle = np.tril(rng.integers(-2, 3, (k, k)), -1) + np.diag(2.0 ** rng.integers(-1, 2, k))
    turned = np.eye(k)[rng.permutation(k)] * rng.choice((-1.0, 1.0), k)
    drawn = (*square, triangle, turned, rng.integers(-3, 4, k))
    args = tuple(np.asarray(x, np.float32) for x in drawn)
    known = {lower: frozenset(("lower_triangular", "invertible")), q: frozenset(("orthogonal", "invertible"))}
    return trial_of(params, node, args, "numpy", known=known)


def determinants_of_products(rng: np.random.Generator) -> Trial:
    """The determinant of a product of matrices, orthogonal, triangular and diagonal ones, or the logarithm of its
    absolute value, or of a matrix of low rank beside a diagonal one."""
    from relax_eg.rules.matrices.determinants import by_factors  # it imports the prover

    k = int(rng.integers(2, 6))
    n, one = Dim.of(k), Dim.of(1)
    specs = {"a": (n, n), "l": (n, n), "q": (n, n), "u": (n, one), "w": (one, n), "d": (n,)}
    params = a, lower, q, u, w, d = tuple(var(x, Tensor(s, "float32")) for x, s in specs.items())
    same = op.equal(op.iota((n, n), 0), op.iota((n, n), 1))
    diagonal = op.where(same, op.broadcast_to(op.expand_dims(d, 1), (n, n)), op.zeros((n, n)))

    def matrix(depth: int) -> Expr:
        if depth == 0:
            return (a, lower, q, diagonal)[int(rng.integers(4))]
        x = matrix(depth - 1)
        made = (
            lambda: op.matmul(x, matrix(0)), lambda: op.permute_dims(x, (1, 0)), lambda: op.multiply(x, 2.0),
            lambda: op.matmul(q, x), lambda: op.add(diagonal, op.matmul(u, w)),
        )  # fmt: skip
        return one_of(rng, made)()

    of = matrix(int(rng.integers(3)))
    size = by_factors(of, "logarithm")
    whole = op.multiply(by_factors(of, "sign"), op.exp(size))
    node = (size, whole, op.integer_pow(whole, 2))[int(rng.integers(3))]
    shapes = {x: [m.value for m in s] for x, s in specs.items()}
    drawn = {x: (rng.integers(1, 4, s) * rng.choice((-1.0, 1.0), s)).astype(np.float32) for x, s in shapes.items()}
    signs = np.sign(drawn["d"])
    drawn |= {"a": drawn["a"] + 8 * np.eye(k, dtype=np.float32), "l": np.tril(drawn["l"])}
    drawn["q"] = np.asarray(np.eye(k)[rng.permutation(k)] * signs, np.float32)
    known = {
        lower: frozenset(("lower_triangular", "invertible")),
        q: frozenset(("orthogonal", "invertible")),
        d: frozenset(("nonzero",)),
    }
    args = tuple(np.asarray(x, np.float32) for x in drawn.values())
    return trial_of(params, node, args, "numpy", _ROUNDING, known=known)


def reductions(rng: np.random.Generator) -> Trial:
    """A reduction of what is shifted, scaled, centred, moved, joined or reduced, over some axes, which may be empty."""
    shape = tuple(int(n) for n in rng.integers(0, 4, 2))
    params = x, y, d, s = variables("x: {0} {1}, y: {0} {1}, d: {0} 1, s:".format(*shape))
    reduce = (op.sum, op.sum, op.max, op.min)[int(rng.integers(4))]
    axes = ((0,), (1,), (0, 1))[int(rng.integers(3))]
    functions = (
        lambda e: op.add(e, s), lambda e: op.subtract(e, d), lambda e: op.multiply(e, s), lambda e: op.multiply(d, e),
        lambda e: op.multiply(e, float(rng.integers(-2, 3))), lambda e: op.divide(e, 2.0), op.negative,
        lambda e: op.flip(e, int(rng.integers(2))), lambda e: op.square(e), lambda e: op.add(e, y),
        lambda e: op.subtract(e, op.sum(e, 1, keepdims=True)), lambda e: op.maximum(e, y),
        lambda e: op.permute_dims(op.permute_dims(e, (1, 0)), (1, 0)), lambda e: op.relu(e),
        lambda e: op.maximum(e, op.broadcast_to(d, e.shape)), lambda e: op.broadcast_to(d, e.shape),
    )  # fmt: skip
    e = x
    for _ in range(int(rng.integers(1, 5))):
        e = one_of(rng, functions)(e)
    ends = (
        lambda: e, lambda: op.concat([e, y], int(rng.integers(2))), lambda: op.pad(e, [(1, 2), (0, 1)], 0.0),
        lambda: op.pad(e, [(1, 0), (0, 1)], s), lambda: op.concat([e, e, x], axes[0]),
        lambda: op.multiply(e, op.broadcast_to(s, e.shape)),
    )  # fmt: skip
    whole = one_of(rng, ends)()
    if reduce is not op.sum and not all(n.value for n in whole.shape):
        reduce = op.sum  # the extreme of nothing is no number
    node = reduce(whole, axes)
    if rng.integers(3) == 0:
        node = op.subtract(e, op.divide(op.sum(e, 1, keepdims=True), 2.0))
    args = integers_for(rng, params, -3, 3)
    known = {a: frozenset(("finite",)) for a in params}
    return trial_of(params, node, args, known=known)


def searches(rng: np.random.Generator) -> Trial:
    """The position of an extreme of a matrix that is shifted, scaled or negated, along an axis."""
    n, m = (int(k) for k in rng.integers(1, 4, 2))
    params = x, d, s = variables(f"x: {n} {m}, d: {n} 1, s:")
    functions = (
        lambda e: op.add(e, s), lambda e: op.subtract(e, d), lambda e: op.multiply(e, s), lambda e: op.multiply(d, e),
        lambda e: op.multiply(e, float(rng.integers(-2, 3))), op.negative, op.relu,
    )  # fmt: skip
    e = x
    for _ in range(int(rng.integers(1, 4))):
        e = one_of(rng, functions)(e)
    node = (op.argmax, op.argmin)[int(rng.integers(2))](e, int(rng.integers(2)))
    args = (*integers_for(rng, (x,), -3, 3), *integers_for(rng, (d, s), 1, 3))
    known = {
        x: frozenset(("finite",)),
        **{a: frozenset(("finite", "positive", "nonnegative", "nonzero")) for a in (d, s)},
    }
    return trial_of(params, node, args, known=known)
