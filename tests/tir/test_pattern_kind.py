"""Pattern kinds by Relax's Algorithm 1: the cases of the paper and of TVM's analysis, and where they end."""

import pytest

from relax_eg.shapes import Dim
from relax_eg.tir import (
    Buffer,
    PatternKind,
    Scalar,
    Stage,
    TensorProgram,
    apply,
    argmax,
    cast,
    classify,
    compute,
    const,
    equal,
    exp,
    index,
    less,
    loops,
    max_,
    maximum,
    program,
    select,
    stage,
    sum_,
    within,
)

M, K, N = map(Dim.var, "mkn")
P, Q, R, S = loops("p q r s")


def buffer(name: str, *shape: Dim | int, dtype: str = "float32") -> Buffer:
    return Buffer(name, tuple(map(Dim.of, shape)), dtype)


A, B, C = buffer("A", M, K), buffer("B", K, N), buffer("C", M, K)
ROW, COLUMN, ONE = buffer("ROW", K), buffer("COLUMN", M, 1), buffer("ONE")
WIDE = buffer("WIDE", 1, 1000)
LINE = buffer("LINE", 1000)
AT = buffer("AT", N, dtype="int32")
HALF, HALVES = buffer("HALF", M, K, dtype="float16"), buffer("HALVES", K, N, dtype="float16")
PACKED, SCALES = buffer("PACKED", M, K // 8, dtype="uint32"), buffer("SCALES", M, K // 32)
IMAGE, FILTER = buffer("IMAGE", 1, 3, 32, 32), buffer("FILTER", 8, 3, 3, 3)
ALL = (A, B, C, ROW, COLUMN, ONE, WIDE, LINE, AT, HALF, HALVES, PACKED, SCALES, IMAGE, FILTER)


def of(*stages: Stage) -> PatternKind:
    return classify(program("p", ALL, *stages))


def matmul(i: Dim, j: Dim) -> Scalar:
    return sum_(A[i, R] * B[R, j], over=(R, K))


def mixed_matmul(i: Dim, j: Dim) -> Scalar:
    product = cast(HALF[i, R], "float32") * cast(HALVES[R, j], "float32")
    return cast(sum_(cast(product, "float32"), over=(R, K)), "float16")


def decode(i: Dim, j: Dim) -> Scalar:
    word = PACKED[i, j // 8] >> cast(index(j % 8 * 4), "uint32")
    return (cast(word & 15, "float32") - 7) * SCALES[i, j // 32]


def softmax(i: Dim, j: Dim) -> Scalar:
    top = max_(A[i, R], over=(R, K))
    return exp(A[i, j] - top) / sum_(exp(A[i, S] - top), over=(S, K))


def convolution(n: Dim, o: Dim, y: Dim, x: Dim) -> Scalar:
    inside = within(0, y + Q - 1, 32)
    image = select(inside, IMAGE[n, P, y + Q - 1, x + R], 0)
    return sum_(image * FILTER[o, P, Q, R], over=[(P, 3), (Q, 3), (R, 3)])


def row_sum(i: Dim) -> Scalar:
    return sum_(A[i, R], over=(R, K))


CASES = [
    ("ElementWise", "add one", (M, K), lambda i, j: A[i, j] + 1),
    ("ElementWise", "two inputs", (M, K), lambda i, j: A[i, j] * exp(C[i, j])),
    ("ElementWise", "with a row", (M, K), lambda i, j: A[i, j] + ROW[j]),
    ("ElementWise", "with a scalar", (M, K), lambda i, j: A[i, j] * ONE[()]),
    ("ElementWise", "(1,1000)+(1000,)", (1, 1000), lambda i, j: WIDE[i, j] + LINE[j]),
    ("ElementWise", "read at 0 where the extent is 1", (1, 1000), lambda i, j: WIDE[0, j] + LINE[j]),
    ("ElementWise", "an index as a value", (M, K), lambda i, j: A[i, j] + i),
    ("ElementWise", "a constant", (M, K), lambda i, j: const(1, "float32")),
    ("Broadcast", "B[i0,j0,i1,j1]=A[j0,j1]", (2, M, 3, K), lambda a, i, b, j: A[i, j]),
    ("Broadcast", "a row", (M, K), lambda i, j: ROW[j]),
    ("Broadcast", "a column", (M, K), lambda i, j: COLUMN[i, 0]),
    ("Broadcast", "a scalar", (M, K), lambda i, j: ONE[()]),
    ("Broadcast", "outer sum", (M, K), lambda i, j: COLUMN[i, 0] + ROW[j]),
    ("Broadcast", "a new axis", (M, 1, K), lambda i, a, j: A[i, j]),
    ("Injective", "transpose", (K, M), lambda j, i: A[i, j]),
    ("Injective", "transpose and add", (M, M), lambda i, j: select(less(i, j), A[i, j], A[j, i])),
    ("Injective", "reshape", (M * K,), lambda i: A[i // K, i % K]),
    ("Injective", "slice", (M - 1, K), lambda i, j: A[i + 1, j]),
    ("Injective", "leading slice", (M - 1, K), lambda i, j: A[i, j]),
    ("Injective", "one row", (K,), lambda j: A[2, j]),
    ("Injective", "diagonal", (M,), lambda i: A[i, i]),
    ("Injective", "flip", (M, K), lambda i, j: A[M - 1 - i, j]),
    ("Injective", "concat", (M * 2, K), lambda i, j: select(less(i, M), A[i, j], C[i - M, j])),
    ("Injective", "gather", (N, K), lambda i, j: A[AT[i], j]),
    ("Injective", "quantised decode", (M, K), decode),
    ("Reduction", "row sum", (M,), row_sum),
    ("Reduction", "sum of all", (), lambda: sum_(A[R, S], over=[(R, M), (S, K)])),
    ("Reduction", "mean", (M,), lambda i: row_sum(i) / K),
    ("Reduction", "mean by multiplying", (M,), lambda i: sum_(A[i, R] * 0.5, over=(R, K))),
    ("Reduction", "sum of squares", (M,), lambda i: sum_(A[i, R] * A[i, R], over=(R, K))),
    ("Reduction", "row-wise dot", (M,), lambda i: sum_(A[i, R] * C[i, R], over=(R, K))),
    ("Reduction", "arg max", (M,), lambda i: argmax(A[i, R], over=(R, K))),
    ("Reduction", "softmax", (M, K), softmax),
    ("Reduction", "sum of a broadcast", (M, K), lambda i, j: sum_(A[i, j], over=(R, N))),
    ("Reduction", "scatter", (M, K), lambda i, j: A[i, j] + sum_(select(equal(AT[R], i), A[i, j], 0), over=(R, N))),
    ("Reduction", "max of products", (M, N), lambda i, j: max_(A[i, R] * B[R, j], over=(R, K))),
    ("ElementWise", "a reduction over one", (M, 1), lambda i, j: sum_(COLUMN[i, R], over=(R, 1))),
    ("OutputWiseFusible", "matmul", (M, N), matmul),
    ("OutputWiseFusible", "static matmul", (M, N), lambda i, j: sum_(A[i, R] * B[R, j], over=(R, 2048))),
    ("OutputWiseFusible", "matmul with casts", (M, N), mixed_matmul),
    ("OutputWiseFusible", "matmul with a bias", (M, K), lambda i, j: sum_(A[i, R] * A[j, R], over=(R, K)) + ROW[j]),
    ("OutputWiseFusible", "matrix times vector", (M,), lambda i: sum_(A[i, R] * ROW[R], over=(R, K))),
    ("OutputWiseFusible", "outer product", (M, K), lambda i, j: sum_(COLUMN[i, R] * ROW[j], over=(R, 2))),
    ("OutputWiseFusible", "convolution", (1, 8, 32, 30), convolution),
]


@pytest.mark.parametrize(("kind", "shape", "value"), [(c[0], *c[2:]) for c in CASES], ids=[c[1] for c in CASES])
def test_of_one_equation(kind: str, shape, value) -> None:
    assert str(of(compute("Y", shape, value))) == kind


def test_a_sum_and_a_sum_of_squares_in_one_loop() -> None:
    squares = compute("Q", (M,), lambda i: sum_(A[i, R] * A[i, R], over=(R, K)))
    assert of(compute("S", (M,), row_sum), squares) is PatternKind.REDUCTION


def test_stages_over_one_domain_compose() -> None:
    product = compute("P", (M, N), matmul)
    assert of(product, compute("Y", (M, N), lambda i, j: maximum(product[i, j], 0))) is PatternKind.OUTPUT_EWISE_FUSIBLE
    shifted = compute("P", (M, K), lambda i, j: A[i, j] + 1)
    assert of(shifted, compute("Y", (M, K), lambda a, b: shifted[a, b] * 2)) is PatternKind.ELEMENT_WISE
    rows = compute("P", (M, K), lambda i, j: ROW[j])
    assert of(rows, compute("Y", (M, K), lambda i, j: rows[i, j] + 1)) is PatternKind.BROADCAST


def test_stages_that_do_not_compose_are_opaque() -> None:
    # A cumulative sum with two stores: sums of blocks, then within them.
    blocks = compute("T", (K,), lambda b: sum_(select(less(R, b * 4), LINE[R], 0), over=(R, 1000)))

    def within_block(i: Dim) -> Scalar:
        at = i // 4 * 4 + R
        return sum_(select(less(at, i + 1), LINE[at], 0), over=(R, 4))

    running = compute("Y", (1000,), lambda i: blocks[i // 4] + within_block(i))
    assert of(blocks, running) is PatternKind.OPAQUE
    total = compute("S", (M,), row_sum)
    assert of(total, compute("Y", (M, K), lambda i, j: A[i, j] / total[i])) is PatternKind.OPAQUE
    square = compute("P", (M, M), lambda i, j: A[i, j])
    assert of(square, compute("Y", (M, M), lambda i, j: square[j, i])) is PatternKind.OPAQUE
    lower = compute("P", (M,), lambda i: A[i, 0])
    assert of(lower, compute("Y", (M,), lambda i: sum_(lower[R], over=(R, M)))) is PatternKind.OPAQUE


def test_names_are_the_papers_and_order_is_ease_of_fusion() -> None:
    assert [str(kind) for kind in sorted(PatternKind)] == [
        "ElementWise", "Broadcast", "Injective", "Reduction", "OutputWiseFusible", "Opaque",
    ]  # fmt: skip


def test_names_of_loops_and_of_stages_do_not_matter() -> None:
    y = buffer("Y", M, K)
    for names in ("a b", "j i", "m k"):
        i, j = loops(names)
        body = TensorProgram("p", (A, ROW), (stage(y, (i, j), apply("negative", A[i, j]) + ROW[j]),), ("Y",)).validate()
        assert classify(body) is PatternKind.ELEMENT_WISE
