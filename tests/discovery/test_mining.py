"""Laws that fragments of a program could use."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

import relax_eg as rx
from benchmarks.random_instances import differences
from relax_eg.cli import app
from relax_eg.driver.laws.mining import mine
from relax_eg.driver.laws.sketches import fill
from relax_eg.errors import DiscoveryError


def clumsy(x, w):
    return jnp.abs(x) * jnp.abs(x) + jnp.maximum(w, jnp.minimum(w, x))


def test_a_fragment_gets_a_cheaper_term() -> None:
    found = mine(clumsy, "n 512", "n 512", at={"n": 128})
    said = {o.text for o in found.offers}
    assert "maximum(a, minimum(a, b)) = a" in said
    assert "abs(a) * abs(a) = a * a" in said
    assert all(o.after < o.before for o in found.offers)
    assert not differences(found.rules, 40)[1]


def test_the_sizes_of_a_program_become_variables() -> None:
    found = mine(lambda x, w, v: (x @ w) @ v, "n 512", "512 256", "256", at={"n": 128})
    (offer,) = found.offers
    assert "a: n m, b: m k, c: k" in offer.source
    assert offer.text == "a @ b @ c = a @ (b @ c)"
    assert offer.known < offer.before  # the rules that ship have it


def test_constants_become_variables_where_the_law_holds_for_all_numbers() -> None:
    found = mine(lambda x, w: (x * 3.0) * w + w * 3.0, "n 512", "n 512", at={"n": 128}, size=2)
    (offer,) = [o for o in found.offers if "+" in o.text]
    assert offer.text == "a * b + b * w = b * (a + w)"
    assert "w:" in offer.source  # in place of 3.0
    assert "proved (real), reassociate, which the rules that ship reach too by " in str(offer)
    found = mine(lambda x: jnp.where(x > 0.5, x, 0.5) * 1.0, "n 512", at={"n": 128}, size=1)
    assert {o.text.rpartition(" = ")[2] for o in found.offers} == {"a", "maximum(a, w)"}
    assert "a * 1.0 = a" in [o.text for o in found.offers]  # which no other number has


def test_what_is_proved_is_left_by_an_interruption() -> None:
    def stop(text: str, done: int, of: int) -> None:
        if done:
            raise KeyboardInterrupt

    found = mine(clumsy, "n 512", "n 512", at={"n": 128}, tell=stop)
    assert found.stopped == "interrupted"
    assert 0 < found.looked_at < mine(clumsy, "n 512", "n 512", at={"n": 128}, size=1).looked_at
    assert found.offers
    assert str(found).endswith("stopped: interrupted")


def test_a_size_is_missing() -> None:
    with pytest.raises(DiscoveryError, match=r"no size `n`; fragments are priced at sizes: at=\{'n': 64\}"):
        mine(clumsy, "n 4", "n 4")


def test_the_command(tmp_path: Path) -> None:
    arguments = [f"{__file__}:clumsy", "--spec", "n 512", "--spec", "n 512", "--at", "n=128", "--jobs", "1"]
    ran = CliRunner().invoke(app, ["discover", *arguments, "--save", str(tmp_path / "laws.py")])
    assert ran.exit_code == 0, ran.output
    assert "abs(a) * abs(a) = a * a" in ran.output
    assert all(v.holds_everywhere for v in rx.verify(tmp_path / "laws.py"))


# --- sketches ---


def traced(a, b):
    return jnp.trace(a @ b)


def summed(a, b, h):
    return jnp.sum(h)


MATRICES = ("n n", "n n")


def test_a_hole_is_filled() -> None:
    found = fill(
        traced, *MATRICES, at={"n": 256}, sketch=summed, holes=["n n"], operators="multiply | permute_dims(axes=(1,0))",
        size=2,
    )  # fmt: skip
    (offer,) = found.offers
    assert offer.text == "trace(a @ b) = sum(a * b.T)"
    assert offer.after < offer.before
    assert "fillings, 1 laws, 0 not proved" in str(found)
    assert not differences(found.rules, 20)[1]


def test_two_holes_are_filled_together() -> None:
    found = fill(
        lambda x, w, v: (x[:, None] * w[None, :]) @ v, "n", "n", "n", at={"n": 256},
        sketch=lambda x, w, v, h, g: h * g, holes=["n", ""], operators="multiply | sum(axes=(0,))", size=2,
    )  # fmt: skip
    assert [o.text.rpartition(" = ")[2] for o in found.offers] == ["a * sum(b * c)"]


def test_what_is_as_dear_as_the_program_fills_no_hole() -> None:
    """A product of matrices takes longer than a function of elements, so no term has one."""
    tried = {
        operators: fill(
            lambda a, b: jnp.abs(a) + jnp.abs(b), *MATRICES, at={"n": 256}, sketch=lambda a, b, h: h, holes=["n n"],
            operators=operators, size=2,
        ).looked_at
        for operators in ("add", "add | matmul", "add | multiply")
    }  # fmt: skip
    assert tried["add | matmul"] == tried["add"] < tried["add | multiply"]


@pytest.mark.parametrize(
    "sketch, holes, problem",
    [
        (lambda a, b, h: h, ["n n"], r"it gives R\.Tensor\(\(\"n\", \"n\"\).*; one tensor of equal annotation"),
        (lambda a, b: jnp.sum(a), [], "it takes 2 arguments; the 2 of the function, then one for each hole"),
        (lambda a, b, h, g, i, j, k, m, n: jnp.sum(h), ["n n"] * 7, "it has 9 arguments; up to 8 tensors"),
    ],
)
def test_a_sketch_that_does_not_fit(sketch, holes, problem) -> None:
    with pytest.raises(DiscoveryError, match=problem):
        fill(traced, *MATRICES, at={"n": 64}, sketch=sketch, holes=holes)


def test_arguments_of_a_sketch() -> None:
    for given, problem in (
        ({"sketch": 5, "holes": ["n n"]}, "sketch=5"), ({"sketch": summed, "holes": "n n"}, "holes='n n'"),
        ({"sketch": summed, "holes": ["n n"], "operators": 3}, "operators=3"),
    ):  # fmt: skip
        with pytest.raises(DiscoveryError, match=problem):
            fill(traced, *MATRICES, at={"n": 64}, **given)


def test_the_command_with_a_sketch() -> None:
    arguments = [f"{__file__}:traced", "multiply", "permute_dims(axes=(1,0))", "--sketch", f"{__file__}:summed"]
    more = ["--hole", "n n", "--spec", "n n", "--spec", "n n", "--at", "n=256", "--jobs", "1", "--size", "2"]
    ran = CliRunner().invoke(app, ["discover", *arguments, *more])
    assert ran.exit_code == 0, ran.output
    assert "trace(a @ b) = sum(a * b.T)" in ran.output
    ran = CliRunner().invoke(app, ["discover", "multiply", *arguments[3:], *more])
    assert "--sketch: a function that it is a sketch of is needed" in ran.output


def test_a_law_of_an_operator_with_other_arguments_than_attributes_is_written() -> None:
    """`op.scatter` has fewer arguments than the operator has dimension numbers."""
    found = mine(
        lambda x, i, u: x - jnp.zeros_like(x).at[i].add(-u), "k", "m @ int32", "m", at={"k": 64, "m": 64}, size=1
    )
    assert any('call("scatter", ' in o.source and "= scatter(" in o.text for o in found.offers)
