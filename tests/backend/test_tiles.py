"""Contractions over tiles of the output: every element as without tiles, and no more than a tile of an operand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from relax_eg.backend.lowering import tiles as module
from relax_eg.backend.lowering.tensor_programs import lower_program
from relax_eg.backend.lowering.tiles import tiles
from relax_eg.tir import TensorProgram, evaluate, parse_program


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of a few columns, so that small programs have several."""
    monkeypatch.setattr(module, "LEAST_BYTES", 256)
    monkeypatch.setattr(module, "TILE_BYTES", 1024)
    monkeypatch.setattr(module, "_LANES", 4)


def read(signature: str, *lines: str) -> TensorProgram:
    return parse_program("\n    ".join([f"def f({signature}):", *lines]))


ROWS = 'X: rx.Buffer("n 64"), Q: rx.Buffer("8 m", "uint32"), S: rx.Buffer("2 m")'
BY_ROWS = "(cast((Q[k // 8, j] >> cast(index(k % 8 * 4), 'uint32')) & 15, 'float32') - 8.0) * S[k // 32, j]"
BY_COLUMNS = "cast((Q[k, j // 8] >> cast(index(j % 8 * 4), 'uint32')) & 15, 'float32')"

PROGRAMS: dict[str, tuple[TensorProgram, dict[str, int]]] = {
    "packed along rows": (
        read(f'{ROWS}, Y: rx.Buffer("n m")', f"Y[i, j] = sum(X[i, k] * ({BY_ROWS}), over=(k, 64))"),
        {"n": 3, "m": 24},
    ),
    "a remainder": (
        read(f'{ROWS}, Y: rx.Buffer("n m")', f"Y[i, j] = sum(X[i, k] * ({BY_ROWS}), over=(k, 64))"),
        {"n": 1, "m": 23},
    ),
    "an epilogue that asks for its place": (
        read(
            f'{ROWS}, B: rx.Buffer("m"), Y: rx.Buffer("n m")',
            f"Y[i, j] = select(index(j) < 5, 0.0, maximum(sum(X[i, k] * ({BY_ROWS}), over=(k, 64)) + B[j], 0.0))",
        ),
        {"n": 3, "m": 24},
    ),
    "packed along columns": (
        read(
            'X: rx.Buffer("n k"), Q: rx.Buffer("k 5", "uint32"), Y: rx.Buffer("n 40")',
            f"Y[i, j] = sum(X[i, k] * {BY_COLUMNS}, over=k)",
        ),
        {"n": 3, "k": 32},
    ),
    "a transposed weight": (
        read(
            'X: rx.Buffer("n k"), W: rx.Buffer("m k", "int8"), S: rx.Buffer("m"), Y: rx.Buffer("n m")',
            "Y[i, j] = sum(X[i, k] * (cast(W[j, k], 'float32') * S[j]), over=k)",
        ),
        {"n": 2, "k": 24, "m": 30},
    ),
    "a table": (
        read(
            'X: rx.Buffer("n k"), T: rx.Buffer("16"), W: rx.Buffer("k m", "uint8"), Y: rx.Buffer("n m")',
            "Y[i, j] = sum(X[i, k] * T[cast(W[k, j], 'int32')], over=k)",
        ),
        {"n": 2, "k": 24, "m": 30},
    ),
    "halves of bytes, and both operands computed": (
        read(
            'X: rx.Buffer("n k"), W: rx.Buffer("k m", "bfloat16"), Y: rx.Buffer("n m")',
            "Y[i, j] = sum(tanh(X[i, k]) * (cast(W[k, j], 'float32') + 1.0), over=k)",
        ),
        {"n": 2, "k": 24, "m": 30},
    ),
    "a batch of weights": (
        read(
            'X: rx.Buffer("b n k"), W: rx.Buffer("b k m", "int8"), Y: rx.Buffer("b n m")',
            "Y[e, i, j] = sum(X[e, i, k] * (cast(W[e, k, j], 'float32') + 1.0), over=k)",
        ),
        {"b": 3, "n": 2, "k": 16, "m": 18},
    ),
    "a stage before and one after": (
        read(
            'X: rx.Buffer("n k"), W: rx.Buffer("k m", "int8"), Y: rx.Buffer("n m"), Z: rx.Buffer("n m")',
            'R = rx.script.local("n")',
            "R[i] = sum(X[i, k] * X[i, k], over=k)",
            "Y[i, j] = sum(X[i, k] * R[i] * (cast(W[k, j], 'float32') + 1.0), over=k)",
            "Z[i, j] = exp(-abs(Y[i, j])) + R[i]",
        ),
        {"n": 3, "k": 24, "m": 22},
    ),
    "another output that is none of it": (
        read(
            'X: rx.Buffer("n k"), W: rx.Buffer("k m", "int8"), Z: rx.Buffer("n"), Y: rx.Buffer("n m")',
            "Z[i] = sum(X[i, k], over=k)",
            "Y[i, j] = sum(X[i, k] * (cast(W[k, j], 'float32') + 1.0), over=k)",
        ),
        {"n": 3, "k": 24, "m": 22},
    ),
    "an operand that a select may skip": (
        read(
            'X: rx.Buffer("n k"), W: rx.Buffer("k m", "int8"), Y: rx.Buffer("n m")',
            "Y[i, j] = select(index(i) < 1, 0.0, sum(exp(X[i - 1, k]) * cast(W[k, j], 'float32'), over=k))",
        ),
        {"n": 3, "k": 24, "m": 22},
    ),
    "a sum within a sum": (
        read(
            'X: rx.Buffer("n k p"), W: rx.Buffer("k p m", "int8"), Y: rx.Buffer("n m")',
            "Y[i, j] = sum(tanh(sum(tanh(X[i, k, q]) * (cast(W[k, q, j], 'float32') + 1.0), over=k)), over=(q, p))",
        ),
        {"n": 3, "k": 24, "m": 22, "p": 2},
    ),
}  # fmt: skip


def arrays(program: TensorProgram, sizes: dict[str, int]) -> list[Any]:
    rng = np.random.default_rng(0)
    found: list[Any] = []
    for b in program.inputs:
        shape = [d.evaluate(sizes) for d in b.shape]
        if "int" in b.dtype:
            high = 2**32 if b.dtype == "uint32" else 16
            found.append(rng.integers(0, high, shape, dtype=np.uint32).astype(b.dtype))
        else:
            found.append(np.asarray(jnp.asarray(rng.standard_normal(shape), b.dtype)))
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_tiles_compute_what_the_equations_say(name: str) -> None:
    program, sizes = PROGRAMS[name]
    given = arrays(program, sizes)
    wanted = evaluate(program, given, sizes)
    run = lower_program(program, sizes)
    assert "platform_index" in str(jax.make_jaxpr(run)(*given))
    for got, want in zip(jax.jit(run)(*given), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_a_tile_reads_what_it_is_made_of() -> None:
    program, sizes = PROGRAMS["packed along columns"]
    found = tiles(program, sizes)
    assert found is not None and found.count > 1 and found.before is None
    length = found.places["Y"].length
    assert length % 8 == 0 and found.places["Q"].length == length // 8 and "X" not in found.places


def test_tiles_begin_where_words_do() -> None:
    """Of 36 columns eight to a word, no tile of another length than eight times something can be cut."""
    program = read(
        'X: rx.Buffer("n k"), Q: rx.Buffer("k 5", "uint32"), Y: rx.Buffer("n 36")',
        f"Y[i, j] = sum(X[i, k] * {BY_COLUMNS}, over=k)",
    )
    sizes = {"n": 3, "k": 32}
    assert tiles(program, sizes) is None
    given = arrays(program, sizes)
    np.testing.assert_allclose(
        lower_program(program, sizes)(*given)[0], evaluate(program, given, sizes)[0], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(
    "value",
    [
        "sum(X[i, k] * W[k, j], over=k)",  # nothing is computed
        "sum(X[i, k] * (W[k, j] * 2.0), over=k)",  # made of as much as itself
        "sum(X[i, k] * cast(index(k % 3 + j), 'float32'), over=k)",  # of nothing at all
        "sum((X[i, k] + 1.0) * X[i, k], over=k) + W[0, j]",  # one operand
    ],
)
def test_what_is_not_cut(value: str) -> None:
    program = read('X: rx.Buffer("n k"), W: rx.Buffer("k m"), Y: rx.Buffer("n m")', f"Y[i, j] = {value}")
    assert tiles(program, {"n": 3, "k": 64, "m": 64}) is None


def test_a_large_operand_is_cut_that_is_made_of_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    program = read(
        'X: rx.Buffer("n k"), W: rx.Buffer("k m"), S: rx.Buffer("m"), Y: rx.Buffer("n m")',
        "Y[i, j] = sum(X[i, k] * (W[k, j] * S[j]), over=k)",
    )
    monkeypatch.setattr(module, "_LARGE", 1 << 14)
    assert tiles(program, {"n": 1, "k": 64, "m": 64}) is not None
    assert tiles(program, {"n": 64, "k": 64, "m": 64}) is None  # all of X for each tile


def test_what_is_read_at_two_places_is_not_cut() -> None:
    program = read(
        'X: rx.Buffer("n k"), W: rx.Buffer("k m", "int8"), Y: rx.Buffer("n m")',
        "Y[i, j] = sum(X[i, k] * cast(W[k, j] + W[k, m - 1 - j], 'float32'), over=k)",
    )
    sizes = {"n": 3, "k": 64, "m": 64}
    assert tiles(program, sizes) is None
    given = arrays(program, sizes)
    np.testing.assert_allclose(lower_program(program, sizes)(*given)[0], evaluate(program, given, sizes)[0], rtol=1e-4)


def test_a_tiled_program_is_mapped_and_differentiated() -> None:
    program, sizes = PROGRAMS["a transposed weight"]
    x, weight, scale = arrays(program, sizes)
    run = lower_program(program, sizes)

    def plain(x: Any, scale: Any) -> Any:
        return x @ (jnp.asarray(weight, "float32") * scale[:, None]).T

    def tiled(x: Any, scale: Any) -> Any:
        return run(x, weight, scale)[0]

    many = np.stack([x, 2 * x])
    np.testing.assert_allclose(jax.vmap(tiled, (0, None))(many, scale), plain(many, scale), rtol=1e-4, atol=1e-4)
    for place in (0, 1):
        got, wanted = (jax.grad(lambda *a: jnp.sin(f(*a)).sum(), place)(x, scale) for f in (tiled, plain))  # noqa: B023
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3)
