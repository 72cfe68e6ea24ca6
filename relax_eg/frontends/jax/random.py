"""Translates random keys and bits: every primitive of JAX's generators, for the kinds of keys that operators know."""

from __future__ import annotations

from collections.abc import Sequence

from relax_eg.frontends.jax.equation import JaxprEquation, Rule
from relax_eg.frontends.symbolic import to_dim
from relax_eg.ir.expr import Expr, tuple_get
from relax_eg.ops.record import call

_ALGORITHMS = {0: "default", 1: "three_fry", 2: "philox"}  # by number in jax.lax.RandomAlgorithm


def _from_data(name: str) -> Rule:
    """The rule for a primitive that makes keys for a generator. The operator refuses generators that are not JAX's."""
    return lambda e: call(name, e.args, {"impl": e["impl"].name})


def _split(e: JaxprEquation) -> Expr:
    return call("random_split", e.args, {"shape": tuple(map(to_dim, e["shape"]))})


def _bits(e: JaxprEquation) -> Expr:
    return call("random_bits", e.args, {"shape": tuple(map(to_dim, e["shape"])), "bit_width": int(e["bit_width"])})


def _hash(e: JaxprEquation) -> Sequence[Expr]:
    made = call("threefry2x32", e.args)
    return [tuple_get(made, 0), tuple_get(made, 1)]


def _generate(e: JaxprEquation) -> Sequence[Expr]:
    algorithm = _ALGORITHMS[int(e["algorithm"])]
    attrs = {"shape": tuple(map(to_dim, e["shape"])), "dtype": str(e.out[1].dtype), "algorithm": algorithm}
    made = call("rng_bit_generator", e.args, attrs)
    return [tuple_get(made, 0), tuple_get(made, 1)]


RULES: dict[str, Rule] = {
    "random_seed": _from_data("random_seed"),
    "random_wrap": _from_data("random_wrap"),
    "random_unwrap": lambda e: call("random_unwrap", e.args),
    "random_fold_in": lambda e: call("random_fold_in", e.args),
    "random_split": _split,
    "random_bits": _bits,
    "random_clone": lambda e: e.args,
    "random_gamma": lambda e: call("random_gamma", e.args, {"log_space": e["log_space"]}),
    "threefry2x32": _hash,
    "rng_bit_generator": _generate,
}
