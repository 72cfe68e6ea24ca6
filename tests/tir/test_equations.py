"""Building and checking index equations, and how they read."""

import copy
import pickle
from dataclasses import replace

import pytest

from relax_eg.errors import ShapeError
from relax_eg.shapes import Dim
from relax_eg.tir import (
    Apply,
    Buffer,
    Cast,
    Const,
    Index,
    Read,
    Stage,
    TensorProgram,
    apply,
    argmax,
    cast,
    compute,
    const,
    equal,
    exp,
    index,
    less,
    loop,
    loops,
    program,
    reduce,
    select,
    stage,
    sum_,
    walk,
    within,
)

M, K, N = map(Dim.var, "mkn")
A = Buffer("A", (M, K), "float32")
B = Buffer("B", (K, N), "float32")
H, J, R = loops("h j r")
Y = Buffer("Y", (M, N), "float32")
INTS = Buffer("T", (M,), "int32")


def test_constants_are_told_apart() -> None:
    distinct = [
        const(True, "bool"), const(1, "int32"), const(1, "int64"), const(1.0, "float32"), const(0.0, "float32"),
        const(-0.0, "float32"), const(float("nan"), "float32"), const(float("inf"), "float32"), const(1, "complex64"),
    ]  # fmt: skip
    assert len(set(distinct)) == len(distinct)
    assert const(float("nan"), "float32") == const(float("nan"), "float32")
    assert const(1, "float32") == const(1.0, "float32")


def test_constants_are_kept_as_the_dtype_holds_them() -> None:
    assert const(0.1, "float32") == const(const(0.1, "float32").value, "float32")
    assert const(70000, "float16").value == float("inf")
    with pytest.raises(ShapeError, match="does not fit int8"):
        const(200, "int8")
    with pytest.raises(ShapeError, match="not an integer"):
        const(0.5, "int32")


def test_a_loop_variable_is_no_size() -> None:
    assert loop("m") != M
    assert pickle.loads(pickle.dumps(loop("m"))) == loop("m")
    assert loop("m").substitute({"m": 3}) == loop("m")


def test_equal_terms_are_one_object() -> None:
    assert exp(A[H, J]) * 2 + 1 is exp(A[H, J]) * 2.0 + 1
    assert select(less(H, N), A[H, J], 0.0) is select(less(H, N), A[H, J], 0)
    assert select(less(H, N), A[H, J], 0.0) is not select(less(H, N), A[H, J], -0.0)
    assert cast(A[H, J], "int32") + 0 is not cast(A[H, J], "int8") + 0
    assert const(float("nan"), "float32") is const(float("nan"), "float32")
    total = sum_(A[H, R] * B[R, J], over=(R, K))
    assert pickle.loads(pickle.dumps(total)) is copy.deepcopy(total) is replace(total, kind="sum") is total
    assert len({exp(A[H, J]), exp(A[H, J]), exp(A[J, H])}) == 2
    assert (A[H, R] * B[R, J]).free == H.variables | J.variables | R.variables
    assert sum_(A[H, R] * B[R, J], over=(R, K)).free == H.variables | J.variables
    shared = A[H, J]
    for _ in range(2000):  # a tree of 2**2000 leaves
        shared = shared * shared
    assert len(list(walk(shared))) == 2001
    assert isinstance(hash(shared), int)


def test_numbers_take_the_dtype_beside_them() -> None:
    assert A[H, J] + 1 == Apply("add", (A[H, J], Const(1.0, "float32")))
    assert 1 - INTS[H] == Apply("subtract", (Const(1, "int32"), INTS[H]))
    assert A[H, J] * N == Apply("multiply", (A[H, J], Index(N, "float32")))
    assert N * A[H, J] == Apply("multiply", (Index(N, "float32"), A[H, J]))
    assert less(H, N) == Apply("less", (Index(H), Index(N)))


@pytest.mark.parametrize(
    "build",
    [
        lambda: A[H, J] + INTS[H],
        lambda: INTS[H] / 2,
        lambda: A[H, J] & True,
        lambda: select(A[H, J], A[H, J], 0),
        lambda: select(less(H, N), A[H, J], INTS[H]),
        lambda: select(less(H, N), 1, 2),
        lambda: A[H],
        lambda: A[A[H, J], J],
        lambda: sum_(less(H, N), over=(H, N)),
        lambda: reduce("any", A[H, J], (H, M)),
        lambda: argmax(A[H, J], [(H, M), (J, K)]),
        lambda: sum_(A[H, J], over=(H + 1, M)),
        lambda: apply("nothing", A[H, J]),
        lambda: const(1, "float"[:3]),
        lambda: bool(A[H, J] < 1),
    ],
)
def test_what_makes_no_sense_is_refused(build) -> None:
    with pytest.raises(ShapeError):
        build()


def test_text() -> None:
    matmul = program("matmul", (A, B), stage(Y, (H, J), sum_(A[H, R] * B[R, J], over=(R, 2048))))
    assert str(matmul).splitlines()[2].strip() == "Y[h, j] = sum(A[h, r] * B[r, j], over=(r, 2048))"
    a, b, t = A[H, J], B[H, J], INTS[H]
    for term, text in [
        ((a + b) * 2 - -a, "(A[h, j] + B[h, j]) * 2.0 - -A[h, j]"),
        (a - (b - a), "A[h, j] - (B[h, j] - A[h, j])"),
        (a / b / a, "A[h, j] / B[h, j] / A[h, j]"),
        ((-a) ** 2, "(-A[h, j])**2"),
        (-(a**2), "-A[h, j]**2"),
        (exp(a) * 0.1, "exp(A[h, j]) * 0.1"),
        (1 - a, "1.0 - A[h, j]"),
        (cast(t, "float32") + H, 'cast(T[h], "float32") + h'),
        (a * (H + 1), "A[h, j] * (h + 1)"),
        (within(0, H - 1, N), "(0 <= (h - 1)) & ((h - 1) < n)"),
        (select(less(H, N), a, 0), "select(h < n, A[h, j], 0.0)"),
        (select(equal(a, b), const(1, "int8"), const(2, "int8")), None),
        (index(H) + index(J), "index(h) + index(j)"),
        (exp(const(2, "float32")), 'exp(const(2.0, "float32"))'),
        (sum_(a, over=[(H, M), (J, K)]), "sum(A[h, j], over=((h, m), (j, k)))"),
        (A[t, J], "A[T[h], j]"),
        ((t >> 4) & 15, "shift_right_arithmetic(T[h], 4) & 15"),
        (Buffer("S", (), "float32")[()], "S[()]"),
    ]:
        assert text is None or str(term) == text
    assert str(select(equal(a, b), const(1, "int8"), const(2, "int8"))) == (
        'select(A[h, j] == B[h, j], const(1, "int8"), const(2, "int8"))'
    )


def test_text_keeps_a_loop_variable_apart_from_a_size() -> None:
    assert str(index(loop("m"))) == "index(m)"
    assert str(index(loop("m") + M)) != "index(2*m)"


def test_compute_names_the_loops() -> None:
    assert compute("Y", (M, K), lambda h, j: A[h, j]) == stage(Buffer("Y", (M, K), "float32"), (H, J), A[H, J])
    assert [str(d) for d in compute("Y", (M, K), lambda *i: A[i]).value.indices] == ["i0·", "i1·"]  # type: ignore[union-attr]
    assert compute("Y", (M,), lambda h: 2, "int8").value == const(2, "int8")
    with pytest.raises(ShapeError, match="dtype"):
        compute("Y", (M,), lambda h: 2)


def test_outputs_are_what_no_stage_reads() -> None:
    total = compute("S", (M,), lambda h: sum_(A[h, R], over=(R, K)))
    square = compute("Q", (M,), lambda h: total[h] * total[h])
    assert program("p", (A,), total, square).outputs == ("Q",)
    both = program("p", (A,), total, square, outputs=("S", "Q"))
    assert both.outputs == ("S", "Q")
    assert both.sizes == {"m", "k"}
    assert 'S = rx.script.local("m")' in str(program("p", (A,), total, square))


def _over(value, shape=(M,), indices=(H,), dtype="float32", inputs=(A, B, INTS)):
    return program("p", inputs, Stage(Buffer("Y", shape, dtype), indices, value))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: _over(Read("Z", (H,), "float32")), "the buffer Z is unknown; known here: A, B, T"),
        (lambda: _over(Read("A", (H,), "float32")), "1 indices read A: .m, k. float32; 2 are needed"),
        (lambda: _over(Read("A", (H, H), "int32"), dtype="int32"), "read as int32"),
        (lambda: _over(A[H, J]), "the loop variable j is not bound"),
        (lambda: _over(A[H, J], (M, K), (H, H)), "distinct loop variables"),
        (lambda: _over(A[H, J], (M, K), (H,)), "1 indices write Y"),
        (lambda: _over(A[H, H], (M,), (M,)), "distinct loop variables"),
        (lambda: _over(INTS[H]), "the value is int32, the buffer float32"),
        (lambda: _over(sum_(A[H, H], over=(H, K))), "sum binds h, which is bound already"),
        (lambda: _over(sum_(A[H, R], over=(R, H + 1))), r"the extent h \+ 1 of r depends on a loop variable"),
        (lambda: _over(Cast(A[H, R], "float32")), "r is not bound"),
        (lambda: _over(A[H, H], inputs=(A, A)), "two buffers are named A"),
        (lambda: _over(A[H, J], (M, H), (H, J)), "depends on a loop variable"),
        (lambda: _over(const(1, "float32"), inputs=(Buffer("Y", (M,), "float32"),)), "two buffers are named Y"),
        (
            lambda: program(
                "p",
                (A,),
                stage(Buffer("S", (M,), "float32"), H, Read("T", (H,), "float32")),
                stage(Buffer("T", (M,), "float32"), H, A[H, H]),
            ),
            "the buffer T is written later",
        ),
        (lambda: TensorProgram("p", (A,), (), ("Y",)).validate(), "output Y is written by no stage"),
        (lambda: TensorProgram("p", (A,), (), ()).validate(), "at least one"),
    ],
)
def test_validate(build, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        build()


def test_a_loop_variable_may_be_bound_again_beside_itself() -> None:
    term = sum_(A[H, R], over=(R, K)) + sum_(A[H, R] * 2, over=(R, K))
    assert _over(term).stages[0].value is term
