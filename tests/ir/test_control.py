"""Where ways meet: what is known of a `cond`'s value, of a loop's, and shapes that can never be one."""

from __future__ import annotations

import pytest

from relax_eg import ir
from relax_eg.errors import OperatorError
from relax_eg.ir import Annotation, Callable, Shape, Tensor, Tuple

INDEX = ir.var("i", Tensor("@int32"))
X = ir.var("x", Tensor("n"))


def function(name: str, params: tuple[Annotation, ...], result: Annotation) -> ir.Expr:
    return ir.node("function", (), (("name", name),), Callable(params, result))


def branches(*results: Annotation) -> list[ir.Expr]:
    """Functions of a tensor of `n` elements, and of the sizes `m` and `k`."""
    params = (Tensor("n"), Shape("m k"))
    return [function(f"f{i}", params, Tuple((r,))) for i, r in enumerate(results)]


def switch(*results: Annotation) -> Annotation:
    """What one of several branches gives where n, m and k are the caller's n, q and 3."""
    sizes = ir.shape_value(("q", 3))
    value = ir.cond(INDEX, branches(*results), [X, sizes])
    assert isinstance(value.annotation, Tuple)
    return value.annotation.fields[0]


N = Tensor("n")
MEETINGS: list[tuple[tuple[Annotation, ...], Annotation]] = [
    ((N, N, N), N),
    ((Tensor("m k"), Tensor("m 3")), Tensor("q 3")),  # which the caller knows to be equal
    ((Tensor(("max(n, m) + min(n, m)",)), Tensor(("n + m",))), Tensor(("max(n, q) + min(n, q)",))),
    ((N, N, Tensor("m")), Tensor(ndim=1, dtype="float32")),
    ((Shape("n m"), Shape("m n")), Shape(ndim=2)),
    ((Tuple((N, N)), Tuple((N, Tensor("k")))), Tuple((N, Tensor(ndim=1, dtype="float32")))),
]


@pytest.mark.parametrize(("results", "wanted"), MEETINGS, ids=str)
def test_what_branches_have_in_common(results: tuple[Annotation, ...], wanted: Annotation) -> None:
    assert switch(*results) == wanted


NEVER: list[tuple[tuple[Annotation, ...], str]] = [
    ((N, Tensor("n+1")), 'branch 1 returns R.Tuple(R.Tensor(("n + 1",), dtype="float32")), branch 0 returns R.Tuple('),
    ((N, N, Tensor("n+1")), "branch 2 returns"),
    ((N, Tensor("n+1")), "they must agree: field 0: axis 0: sizes n + 1 and n differ"),
    ((Tensor(("2*m",)), Tensor(("2*n + 1",))), "field 0: axis 0: sizes 2*n + 1 and 2*q differ"),
    ((Tensor("n k"), Tensor(("m", "max(n, 4)"))), "field 0: axis 1: sizes max(4, n) and 3 differ"),
    ((N, Tensor("n m")), "field 0: ranks 2 and 1 differ"),
    ((N, Tensor("n @int32")), "field 0: dtypes int32 and float32 differ"),
    ((N, Shape("n")), "field 0: a shape and a tensor"),
]


@pytest.mark.parametrize(("results", "text"), NEVER, ids=range(len(NEVER)))
def test_branches_that_can_never_agree(results: tuple[Annotation, ...], text: str) -> None:
    with pytest.raises(OperatorError) as error:
        switch(*results)
    assert str(error.value).startswith("cond: branch ") and text in str(error.value)


def test_a_carried_value_keeps_its_sizes() -> None:
    both, total, sizes = Tensor(("max(n, m) + min(n, m)",)), Tensor(("n + m",)), Shape("n m")
    more = function("more", (Tensor(ndim=1),), Tensor("@bool"))

    def loop(after: Annotation) -> Annotation:
        step = function("step", (sizes, total), Tuple((after,)))
        return ir.while_loop(more, step, [], [ir.shape_value(("n", "m"))], [ir.var("x", total)]).annotation

    assert loop(both) == Tuple((total,))  # spelled otherwise, it is the same size
    for after in (Tensor("n"), Tensor(("n + m + 1",)), Tensor(("n + m",), "int32")):
        with pytest.raises(OperatorError, match=r"carried value 0 is .*\"m \+ n\".* before a step and .* after it"):
            loop(after)
