"""jax.random: keys, bits and distributions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import random

from benchmarks.functions.named import Functions, named

_KEY = "@ key"
_GIVEN = {"double_sided_maxwell": (0.0, 1.0), "truncated_normal": (-1.0, 1.0)}


def _plain() -> Functions:
    """The distributions of no array parameters."""
    names = """cauchy double_sided_maxwell exponential gumbel laplace logistic lognormal maxwell normal rademacher
    truncated_normal uniform"""
    found: Functions = {}
    for name, (of, _) in named(random, names).items():
        given = _GIVEN.get(name, ())
        found[name] = (lambda k, of=of, given=given: of(k, *given, shape=(3, 4)), (_KEY,))
    return found


RANDOM: Functions = _plain() | {
    "ball": (lambda k: random.ball(k, 3), (_KEY,)),
    "bernoulli": (lambda k, x: random.bernoulli(k, 0.3, x.shape), (_KEY, "b 4")),
    "beta": (lambda k, a: random.beta(k, a, a), (_KEY, "5")),
    "binomial": (lambda k: random.binomial(k, 10.0, 0.3, shape=(5,)), (_KEY,)),
    "bits": (lambda k: random.bits(k, (3, 4)), (_KEY,)),
    "categorical": (random.categorical, (_KEY, "b 4")),
    "chisquare": (lambda k: random.chisquare(k, 3.0, shape=(5,)), (_KEY,)),
    "choice": (lambda k, x: random.choice(k, x, (3,)), (_KEY, "9")),
    "choice, weighted": (lambda k, p: random.choice(k, 9, (3,), replace=False, p=p), (_KEY, "9")),
    "dirichlet": (random.dirichlet, (_KEY, "5")),
    "dropout": (lambda k, x: jnp.where(random.bernoulli(k, 0.9, x.shape), x / 0.9, 0), (_KEY, "b s 4")),
    "f": (lambda k: random.f(k, 2.0, 3.0, (4,)), (_KEY,)),
    "fold_in": (lambda k, i: random.key_data(random.fold_in(k, i)), (_KEY, "@ int32")),
    "gamma": (random.gamma, (_KEY, "5")),
    "gamma, gradient": (jax.grad(lambda a, k: random.gamma(k, a).sum()), ("5", _KEY)),
    "geometric": (lambda k: random.geometric(k, 0.3, (4,)), (_KEY,)),
    "key": (lambda s: random.normal(random.key(s), (3,)), ("@ int32",)),
    "key, rbg": (lambda s: random.normal(random.key(s, impl="rbg"), (3,)), ("@ int32",)),
    "key, philox": (lambda s: random.normal(random.key(s, impl="philox4x32"), (3,)), ("@ int32",)),
    "multivariate_normal": (
        lambda k, m, c: random.multivariate_normal(k, m, c @ c.T + jnp.eye(3)), (_KEY, "3", "3 3"),
    ),
    "orthogonal": (lambda k: random.orthogonal(k, 3), (_KEY,)),
    "pareto": (lambda k: random.pareto(k, 2.0, (4,)), (_KEY,)),
    "permutation": (lambda k: random.permutation(k, 10), (_KEY,)),
    "permutation of rows": (random.permutation, (_KEY, "9 4")),
    "poisson": (lambda k: random.poisson(k, 3.0, (5,)), (_KEY,)),
    "PRNGKey": (lambda s: random.split(random.PRNGKey(s)), ("@ int32",)),
    "randint": (lambda k: random.randint(k, (3,), 0, 10), (_KEY,)),
    "rayleigh": (lambda k: random.rayleigh(k, 2.0, (4,)), (_KEY,)),
    "split": (lambda k: [random.normal(q, (3,)) for q in random.split(k, 3)], (_KEY,)),
    "split, mapped": (lambda k: jax.vmap(lambda q: random.normal(q, (3,)))(random.split(k, 4)), (_KEY,)),
    "split, scanned": (
        lambda k, x: jax.lax.scan(lambda c, q: (c + random.normal(q, c.shape), None), x, random.split(k, 4))[0],
        (_KEY, "n"),
    ),
    "t": (lambda k: random.t(k, 3.0, (5,)), (_KEY,)),
    "triangular": (lambda k: random.triangular(k, 0.0, 0.5, 1.0, (4,)), (_KEY,)),
    "wald": (lambda k: random.wald(k, 1.0, (4,)), (_KEY,)),
    "weibull_min": (lambda k: random.weibull_min(k, 1.0, 2.0, (4,)), (_KEY,)),
}  # fmt: skip
