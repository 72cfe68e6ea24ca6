"""What is accepted as a spec, and what the refusals say."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from relax_eg.errors import BoundsError, SpecError, TraceError
from relax_eg.frontends import trace_function
from relax_eg.frontends.symbolic import SymbolicSizes, to_dim
from relax_eg.ir.annotations import Tensor
from relax_eg.shapes import Dim


def first(*args, **kwargs):
    return args[0] if args else None


def annotation(spec) -> Tensor:
    return trace_function(first, (spec,)).leaves[0].annotation


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("b s 768", Tensor("b s 768")),
        ("b s @ int32", Tensor("b s", "int32")),
        ("", Tensor((), "float32")),
        ("@ bool", Tensor((), "bool")),
        ("n 2*n+1 (n // 2)", Tensor("n 2*n+1 n//2")),
        (np.zeros((2, 3), np.float32), Tensor("2 3")),
        (np.zeros(2), Tensor("2")),  # as jit: 64 bits are off
        (jnp.zeros((2, 0), jnp.int8), Tensor("2 0", "int8")),
        (np.float32(3), Tensor((), "float32")),
        (3, Tensor((), "int32")),
        (2.5, Tensor((), "float32")),
        (True, Tensor((), "bool")),
        (1j, Tensor((), "complex64")),
        (jax.ShapeDtypeStruct((2, 3), jnp.bfloat16), Tensor("2 3", "bfloat16")),
        (Tensor("n 4", "float16"), Tensor("n 4", "float16")),
        (jax.ShapeDtypeStruct(jax.export.symbolic_shape("n, 2*n"), jnp.float32), Tensor("n 2*n")),
        ("_ _", Tensor("args_0_0 args_0_1")),
    ],
)
def test_spec(spec, wanted: Tensor) -> None:
    assert annotation(spec) == wanted


def test_keys() -> None:
    assert annotation(jax.random.key(0)) == annotation("@ key") == annotation("@ key<fry>") == Tensor((), "key<fry>")
    with pytest.raises(SpecError, match=r"no kind of PRNG key is `key<x>`"):
        annotation("@ key<x>")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Block:
    w: object
    b: object


def test_registered_dataclasses_and_none() -> None:
    found = trace_function(lambda p, q: p.w + p.b, (Block("n", ""), None))
    assert found.leaf_names == ("p.w", "p.b")


def test_shared_names_are_shared_sizes() -> None:
    found = trace_function(lambda x, y: x + y, ("n 4", "n 4"))
    assert found.module.main.size_variables == ("n",)


@pytest.mark.parametrize(
    ("spec", "pieces"),
    [
        ("n **", ("argument `x`", "^")),
        ("n @ float33", ("argument `x`", "float33")),
        ("*b 4", ("argument `x`", "`*b`", "rules only")),
        (object(), ("argument `x`: object is no spec", "accepted: a spec string")),
        (lambda: 1, ("argument `x`: function is no spec",)),
        ({"w": [object()]}, ("argument `x['w'][0]`",)),
        ("n @ float64", ("argument `x`: float64 is switched off", "jax_enable_x64")),
        (1 << 40, ("argument `x`",)),
        (Tensor(ndim=2), ("argument `x`", "does not say all sizes")),
        ("mod 3", ("argument `x`", "mod")),
    ],
)
def test_refusals(spec, pieces: tuple[str, ...]) -> None:
    with pytest.raises(SpecError) as caught:
        trace_function(lambda x: x, (spec,))
    for piece in pieces:
        assert piece in str(caught.value)


def test_number_of_specs() -> None:
    def model(x, w):
        return x @ w

    with pytest.raises(TraceError, match=r"the specs do not fit `model\(x, w\)`: missing a required argument: 'w'"):
        trace_function(model, ("n 4",))
    with pytest.raises(TraceError, match="unexpected keyword argument 'v'"):
        trace_function(model, ("n 4", "4 4"), {"v": "3"})


def test_bounds() -> None:
    with pytest.raises(BoundsError, match="bounds of `n` are empty"):
        SymbolicSizes({"n": (4, 2)})
    assert SymbolicSizes({"n": (4, 9)}).known_nonnegative(Dim.of("n - 4"))
    assert not SymbolicSizes().known_nonnegative(Dim.of("n - 4"))


@pytest.mark.parametrize(
    "text",
    ["n", "n*m + 1", "n**2 - 3*m", "n//2", "(n + 1)%3", "max(n, m - 1)", "min(n, 4)*2", "ceildiv(n, 4)", "-n//(m + 1)"],
)
def test_dimensions_go_to_jax_and_back(text: str) -> None:
    dim = Dim.of(text)
    back = to_dim(SymbolicSizes().to_jax(dim))
    for n, m in ((1, 2), (5, 3), (16, 9)):
        assert back.evaluate({"n": n, "m": m}) == dim.evaluate({"n": n, "m": m})
