"""Functions of real libraries: optimized, run, differentiated and vmapped, they give what plain JAX gives."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import QUICKLY
from sampling import sampled

import relax_eg as rx
from benchmarks import libraries
from benchmarks.coverage import Result
from benchmarks.libraries import BEGIN, DOCUMENT, END
from benchmarks.library_cases import CASES, Case
from relax_eg.driver import prices

ROWS = 2


def assert_close(got: Any, wanted: Any, tolerance: float, what: str) -> None:
    """Structure, shapes and dtypes as wanted, and values but for `tolerance` of the largest magnitude in each array, or
    of a thousandth of that in the whole result: what is 0 but for rounding has no digits to compare. A result without
    numbers, or of zeros only, would not be worth comparing."""
    assert jax.tree.structure(got) == jax.tree.structure(wanted), what
    largest = max(map(_magnitude, jax.tree.leaves(wanted)))
    assert 0 < largest < np.inf, what
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(wanted), strict=True):
        where = f"{what}{jax.tree_util.keystr(path)}"
        assert (x.shape, x.dtype) == (y.shape, y.dtype), where
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        if x.dtype.kind in "biu":
            np.testing.assert_array_equal(x, y, where)
        else:
            assert np.isfinite(y).all(), where
            scale = max(_magnitude(y), 1e-3 * largest)
            np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * scale, err_msg=where)


def _magnitude(x: jax.Array) -> float:
    return float(np.max(np.abs(x), initial=0.0)) if jnp.issubdtype(x.dtype, jnp.floating) else 0.0


NAMED = {f"{c.library}: {c.name}": c for c in CASES}
# Of each library one that takes a second or two.
ALWAYS = (
    "blackjax: Hamiltonian Monte Carlo step", "diffrax: neural equation, steps of Tsit5 by hand",
    "distrax: coupling flow", "equinox: MLP", "flax: linen: dense, dropout off, softmax", "haiku: MLP, layer norm",
    "jaxopt: projections", "lineax: cholesky", "numpyro: log density of a logistic regression", "optax: lion",
    "optimistix: Newton's method", "tinygp: marginal likelihood and prediction",
)  # fmt: skip


@pytest.mark.parametrize("case", sampled(NAMED, 11, ALWAYS))
def test_as_plain_jax(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "NEVER_SLOWER", 0.0)  # run what the search chose, whatever it gains
    use = case.build()
    rows = [use.arguments(row) for row in range(ROWS)]
    plain = jax.jit(lambda *args: (use.fn(*args), use.gradient(*args)), compiler_options=QUICKLY)
    wanted = [plain(*row) for row in rows]

    best = rx.optimize(use.fn, *use.specs)
    slope = rx.optimize(use.gradient, *use.specs)
    assert not best.report.kept_as_written and not slope.report.kept_as_written
    fn = best.to_jax()
    batched = use.batched % len(use.specs)
    axes = [0 if i == batched else None for i in range(len(use.specs))]

    def ours(args: Any, stacked: Any) -> Any:
        run = {"value": best(*args), "gradient": use.of(fn).gradient(*args), "optimized gradient": slope(*args)}
        return run, jax.vmap(fn, axes)(*stacked)

    stacked = list(rows[0])
    stacked[batched] = jax.tree.map(lambda *xs: jnp.stack(xs), *(row[batched] for row in rows))
    got, vmapped = jax.jit(ours, compiler_options=QUICKLY)(rows[0], stacked)

    value, gradient = wanted[0]
    for what, w in ("value", value), ("gradient", gradient), ("optimized gradient", gradient):
        assert_close(got[what], w, use.tolerance, what)
    for row, (value, _) in enumerate(wanted):
        assert_close(jax.tree.map(lambda x, row=row: x[row], vmapped), value, use.tolerance, f"row {row}")


def test_the_document_counts_these_functions() -> None:
    """What it says of operators depends on the libraries' versions; that it counts all functions does not."""
    text = DOCUMENT.read_text()
    table = text.partition(BEGIN)[2].partition(END)[0]
    rows = re.findall(r"^\| ([\w-]+) [\d.]+ \| (\d+) \|", table, re.MULTILINE)
    wanted = Counter(case.library for case in CASES)
    found = {library: int(count) // 2 for library, count in rows}  # each with its gradient
    assert found == wanted, "run `python -m benchmarks.libraries --write`"


def test_every_library_is_in_every_run() -> None:
    assert {NAMED[name].library for name in ALWAYS} == {case.library for case in CASES}


def test_tables_are_written_between_the_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "coverage.md"
    path.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    monkeypatch.setattr(libraries, "DOCUMENT", path)
    uses = [Result("one", Counter(add=2, exp=3), Counter({"jax.eig": 1})), Result("two", Counter(add=1))]
    libraries.write({"optax": uses})
    text = path.read_text()
    assert re.search(r"^\| optax [\d.]+ \| 2 \| 1 \| 6 \| 1 \| eig 1 \|$", text, re.MULTILINE)
    assert "| `add` | 3 | 3 |\n| `exp` | 3 | 3 |\n" in text
    assert text.startswith(f"before\n{BEGIN}\n") and text.endswith(f"{END}\nafter\n") and "old" not in text
