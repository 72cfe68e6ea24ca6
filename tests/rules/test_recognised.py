"""Operators that no trace has: users' rules about them fire on the JAX functions that compute them, at fixed and at
symbolic sizes, and not on what is near; without such a rule a search is as it was."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import nn

import relax_eg as rx
from relax_eg.errors import ExplanationError
from relax_eg.extract.costs.cost_model import NodeCost
from relax_eg.rules import Numerics
from relax_eg.rules.book import default, recognised
from relax_eg.rules.book.recognised import with_recognitions

op = rx.op
SIZES = {"b": 2, "m": 4, "n": 6}


@dataclass(frozen=True)
class Case:
    """An operator, its use as the left side of a rule, a JAX function that computes it, and one that is near.

    - `signature`: the pattern variables.
    - `specs`: of the function's arguments, in sizes of `SIZES`.
    """

    operator: str
    signature: str
    left: Callable[..., Any]
    function: Callable[..., Any]
    near: Callable[..., Any]
    specs: tuple[str, ...] = ("m n",)

    def rules(self, numerics: Numerics = "reassociate") -> rx.RuleSet:
        """A rule whose right side nobody would choose."""

        def law(*xs: Any) -> Any:
            left = self.left(*xs)
            undone = op.logical_not if left.dtype == "bool" else op.negative
            return left, undone(undone(left))

        names = [part.partition(":")[0].strip() for part in self.signature.split(",")]
        parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
        law.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        book = rx.RuleSet("asks")
        book.rule(self.signature, name="asks", numerics=numerics, check=False)(law)
        return book


def rows(x: Any, **how: Any) -> Any:
    return jnp.mean(x, 1, **how)


CASES = {
    "mean": Case("mean", "x: m n", lambda x: op.mean(x, 1), rows, lambda x: jnp.sum(x, 1) / 5),
    "mean of all": Case("mean", "x: m n", lambda x: op.mean(x), jnp.mean, lambda x: jnp.sum(x) / x.shape[0]),
    "mean, axes kept": Case("mean", "x: m n", lambda x: op.mean(x, 1, keepdims=True),
                            lambda x: rows(x, keepdims=True), lambda x: jnp.max(x, 1, keepdims=True) / x.shape[1]),
    "mean of halves": Case("mean", "x: m n", lambda x: op.mean(x, 1), rows, lambda x: jnp.sum(x, 1) / 5,
                           ("m n@bfloat16",)),
    "isnan": Case("isnan", "x: m n", op.isnan, jnp.isnan, lambda x: x != -x),
    "reciprocal": Case("reciprocal", "x: m n", op.reciprocal, jnp.reciprocal, lambda x: x**-2),
    "one over": Case("reciprocal", "x: m n", op.reciprocal, lambda x: 1 / x, lambda x: 2 / x),
    "clip": Case("clip", "x: m n, lo:, hi:", op.clip, lambda x: jnp.clip(x, -0.5, 0.5), lambda x: jnp.clip(x, 0.5)),
    "clip, element by element": Case("clip", "x: m n, lo: m n, hi: m n", op.clip, jnp.clip,
                                     lambda x, a, b: jnp.maximum(jnp.minimum(x, b), a), ("m n",) * 3),
    "gelu": Case("gelu", "x: m n", lambda x: op.gelu(x, approximate=False), lambda x: nn.gelu(x, approximate=False),
                 nn.gelu),
    "gelu_tanh": Case("gelu_tanh", "x: m n", op.gelu_tanh, nn.gelu, lambda x: x * (0.5 * (1 + jnp.tanh(x)))),
    "gelu_tanh of halves": Case("gelu_tanh", "x: m n", op.gelu_tanh, nn.gelu, nn.silu, ("m n@bfloat16",)),
    "relu": Case("relu", "x: m n", op.relu, nn.relu, lambda x: jnp.maximum(x, 1)),
    "silu": Case("silu", "x: m n", op.silu, nn.silu, lambda x: 2 * nn.sigmoid(x)),
    "softmax": Case("softmax", "x: m n", op.softmax, nn.softmax, lambda x: nn.softmax(x, 0)),
    "softmax of columns": Case("softmax", "x: m n", lambda x: op.softmax(x, 0), lambda x: nn.softmax(x, 0),
                               nn.softmax),
    "softmax of halves": Case("softmax", "x: m n", op.softmax, nn.softmax, nn.log_softmax, ("m n@bfloat16",)),
    "log_softmax": Case("log_softmax", "x: m n", op.log_softmax, nn.log_softmax, nn.softmax),
    "tril": Case("tril", "x: m n", op.tril, jnp.tril, jnp.triu),
    "tril of matrices": Case("tril", "x: b m n", lambda x: op.tril(x, -3), lambda x: jnp.tril(x, -3),
                             lambda x: jnp.tril(x, -2), ("b m n",)),
    "triu": Case("triu", "x: m n", lambda x: op.triu(x, 7), lambda x: jnp.triu(x, 7), lambda x: jnp.triu(x, 6)),
    "one_hot": Case("one_hot", "i: m @ int32", lambda i: op.one_hot(i, 3), lambda i: nn.one_hot(i, 3),
                    lambda i: nn.one_hot(i, 4), ("m@int32",)),
    "one_hot of one": Case("one_hot", "i: @ int32", lambda i: op.one_hot(i, 3, "int32"),
                           lambda i: nn.one_hot(i, 3, dtype="int32"), lambda i: nn.one_hot(i, 3), ("@int32",)),
    "full": Case("full", "s:", lambda s: op.full((3, 4), s), lambda s: jnp.full((3, 4), s),
                 lambda s: jnp.full((4, 3), s), ("",)),
    "linear": Case("linear", "x: m n, w: b n", op.linear, lambda x, w: x @ w.T, lambda x, w: x @ w,
                   ("m n", "n n")),
}  # fmt: skip


class Wants:
    """One operator is cheap, the others cost the same."""

    def __init__(self, operator: str) -> None:
        self.operator = operator

    def price(self, site: Any, result: Any, sizes: Mapping[str, int]) -> NodeCost:
        return NodeCost(seconds=1e-3 if site.op == self.operator else 1.0)


def at_sizes(specs: tuple[str, ...]) -> tuple[str, ...]:
    for name, size in SIZES.items():
        specs = tuple(" ".join(str(size) if w == name else w for w in s.replace("@", " @").split()) for s in specs)
    return tuple(s.replace(" @", "@") for s in specs)


def arguments(specs: tuple[str, ...]) -> list[Any]:
    rng = np.random.default_rng(0)
    made: list[Any] = []
    for spec in at_sizes(specs):
        sizes, _, dtype = spec.partition("@")
        shape = tuple(map(int, sizes.split()))
        made.append(jnp.asarray(rng.integers(-1, 4, shape) if dtype == "int32" else rng.standard_normal(shape),
                                dtype or "float32"))  # fmt: skip
    return made


@pytest.mark.parametrize("fixed", [False, True], ids=["symbolic", "fixed"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_rule_about_an_operator_that_no_trace_has(case: Case, fixed: bool) -> None:
    specs = at_sizes(case.specs) if fixed else case.specs
    assert case.operator not in {e.op for e in rx.trace(case.function, *specs).main.expressions()}
    rules = case.rules()
    assert rx.debug.why_not("asks", case.function, *specs, rules=rules).outcome == "not chosen"
    assert rx.debug.why_not("asks", case.near, *specs, rules=rules).outcome == "no match"
    names = {w for s in specs for w in s.partition("@")[0].split() if w in SIZES}
    best = rx.optimize(case.function, *specs, at={n: SIZES[n] for n in names}, rules=rules, target=Wants(case.operator))
    chosen = {e.op for e in best.module.main.expressions()}
    assert case.operator in chosen and "dim_value" not in chosen
    found, expected = (np.asarray(f(*arguments(case.specs)), "float64") for f in (best, case.function))
    np.testing.assert_allclose(found, expected, rtol=1e-2 if "bfloat16" in str(specs) else 2e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["mean", "tril", "softmax", "full"])
def test_beside_the_rules_that_ship(name: str) -> None:
    case = CASES[name]
    for specs in (case.specs, at_sizes(case.specs)):
        assert rx.debug.why_not("asks", case.function, *specs, rules=default + case.rules()).outcome == "not chosen"


def test_in_the_x64_mode() -> None:
    with jax.enable_x64(True):
        for name in ("mean", "mean, axes kept", "tril", "triu"):
            case = CASES[name]
            for specs in (("m n@float64",), ("4 6@float64",), case.specs):
                assert rx.debug.why_not("asks", case.function, *specs, rules=case.rules()).outcome == "not chosen"


def mean_of_product() -> rx.RuleSet:
    book = rx.RuleSet("mine")

    @book.rule("x: m k, w: k n", when="m >= 1", check=False)
    def mean_of_rows(x: Any, w: Any) -> Any:
        """mean(X W) = mean(X) W"""
        return op.mean(x @ w, 0), op.mean(x, 0) @ w

    return book


@pytest.mark.parametrize("specs", [("m k", "k n"), ("4096 64", "64 32")], ids=["symbolic", "fixed"])
def test_a_derivation_and_a_certificate_name_recognitions(specs: tuple[str, str]) -> None:
    rules, sizes = mean_of_product(), {"m": 4096, "k": 64, "n": 32}
    best = rx.optimize(
        lambda x, w: jnp.mean(jnp.tanh(x) @ w, 0), *specs, at=sizes if specs[0] == "m k" else None, rules=rules
    )
    steps = ["sum_over_int32_count", "mean_of_rows"]
    if specs[0] != "m k":
        steps.insert(0, "number_is_size")
    assert [s.rule for s in best.explain().steps] == steps
    assert "mean_of_rows" in best.report.rules
    certificate = best.certificate()
    certificate.verify(rules)
    with pytest.raises(ExplanationError):
        certificate.verify(default)
    assert rx.debug.why_not("sum_over_int32_count", rows, "m n", rules=rules).outcome != "no match"


def test_only_what_is_asked_for_is_added() -> None:
    assert with_recognitions(default) is default
    assert with_recognitions(default.only("softmax")).schemas == default.only("softmax").schemas
    added = with_recognitions(CASES["triu"].rules())
    assert [r.name for r in added] == ["asks", "triu_by_int32", "triu_by_int64"] and not added.schemas
    added = with_recognitions(default + mean_of_product())
    assert {r.name for r in added} - {r.name for r in default} == {
        "mean_of_rows", *(r.name for r in recognised.only("mean")),
    }  # fmt: skip
    assert {s.name for s in added.schemas} - {s.name for s in default.schemas} == {"number_is_size"}
    book = rx.RuleSet("either")

    @book.rule("x: *b", attrs={"f": "relu | silu"}, check=False)
    def either(x: Any, f: Any) -> Any:
        return op.negative(f(x)), op.multiply(f(x), -1.0)

    assert {r.name for r in with_recognitions(book)} == {
        "either", "maximum_with_zero_is_relu", "product_with_sigmoid"
    }  # fmt: skip


def test_recognitions_are_of_the_classes_that_are_allowed() -> None:
    for name, allowed in (("isnan", True), ("mean", False)):
        case = CASES[name]
        rules = case.rules("exact")
        best = rx.optimize(case.function, *case.specs, rules=rules, numerics="exact", target=Wants(case.operator))
        assert (case.operator in {e.op for e in best.module.main.expressions()}) == allowed


def test_operands_that_no_gelu_takes() -> None:
    rules = CASES["gelu_tanh"].rules()
    for dtype in ("float8_e4m3fn", "int32", "complex64"):
        assert rx.debug.why_not("asks", lambda x: x * x, f"m n@{dtype}", rules=rules).outcome == "no match"
