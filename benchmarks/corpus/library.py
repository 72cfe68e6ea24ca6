"""Functions of jax.nn, jax.numpy and jax.scipy, and their derivatives, within programs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jax.scipy as jsp

from benchmarks.corpus.program import program


@program("n 128", "128 64")
def mish_layer(x, w):
    """A layer with Misra's activation, as detectors of objects have it."""
    return jax.nn.mish(x @ w)


@program("n", "n")
def positive_rates(raw, counts):
    """The gradient of a Poisson likelihood whose rates are softplus of parameters."""

    def loss(raw):
        rate = jax.nn.softplus(raw)
        return jnp.sum(rate - counts * jnp.log(rate))

    return jax.grad(loss)(raw)


@program("n", "n")
def paired_comparison(ours, theirs):
    """How a team's strength, a sum on a scale of logarithms, depends on one of two players."""
    return jax.grad(lambda a: jnp.sum(jnp.logaddexp(a, theirs)))(ours) * theirs


@program("n d", "n", "d")
def log_cosh_regression(x, y, w):
    """The gradient of a linear regression whose loss is the logarithm of cosh, without overflow."""
    residuals, back = jax.vjp(lambda w: x @ w - y, w)
    return back(jax.grad(lambda r: jnp.sum(jnp.logaddexp(r, -r) - jnp.log(2.0)))(residuals))[0]


@program("n", "n")
def densities_of_noise(x, weights):
    """Weighted densities of residuals under three kinds of noise, and a distribution function of a fourth."""
    logistic, cauchy = jsp.stats.logistic.pdf(x), jsp.stats.cauchy.pdf(x)
    return logistic * weights, cauchy * weights, jsp.stats.gamma.pdf(x, 2.0) * weights, jsp.stats.laplace.cdf(x)


@program("n")
def gamma_tail_gradient(x):
    """How the share of waiting times below some limits changes with the limits."""
    return jax.grad(lambda x: jnp.sum(jsp.stats.gamma.cdf(x, 3.0) ** 2))(x)


@program("n")
def clamped_gradient(x):
    """The gradient of a smooth penalty of what is below zero."""
    return jax.grad(lambda x: jnp.sum(jax.nn.celu(x) ** 2))(x)


@program("64 32")
def scores_with_gaps(x):
    """The spread of a table with missing entries, and how it changes with each entry."""
    return jnp.nanvar(x), jax.grad(lambda x: jnp.nanvar(x))(x)


@program("101", "n 65")
def robust_centre(x, rows):
    """Distances from the median, and rows without their upper quartiles."""
    return jnp.abs(x - jnp.median(x)), rows - jnp.quantile(rows, 0.75, axis=1, keepdims=True)


@program("51", "6 21")
def median_gradient(x, rows):
    """How the median moves with each of the values, and how medians of rows do."""
    of_rows = jax.grad(lambda r: jnp.sum(jnp.median(r, axis=1) ** 2))(rows)
    return jax.grad(lambda x: jnp.median(x) ** 2)(x), of_rows


@program("n n")
def penalty_of_diagonal(x):
    """The gradient of a penalty of self-loops."""
    return jax.grad(lambda x: jnp.sum(jnp.diag(x) ** 4))(x)


@program("16 16")
def spectrum_gradient(x):
    """The gradient of a sum of singular values to the third power."""
    return jax.grad(lambda x: jnp.sum(jnp.linalg.svd(x, full_matrices=False)[0] ** 3) + jnp.sum(x * x))(x)


@program("n n", "n k", facts={"k": "positive definite"})
def kriging_weights(k, targets):
    """Weights of a spatial interpolation by an upper Cholesky factor."""
    return jsp.linalg.cho_solve(jsp.linalg.cho_factor(k), targets)


@program("n n")
def volume_change(jacobian):
    """The sign and the logarithm of a change of volume, both scaled."""
    sign, logarithm = jnp.linalg.slogdet(jacobian)
    return 2.0 * sign, 0.5 * logarithm


@program("12")
def first_peaks(x):
    """The first places at which a signal is above its mean."""
    return jnp.nonzero(x > x.mean(), size=5)[0] + 1


@program("v d", "n @ int32", "n d")
def tied_embedding_gradient(table, ids, target):
    """The gradient of a table that is read by words and decays."""
    return jax.grad(lambda t: jnp.sum((t[ids] - target) ** 2) + 0.1 * jnp.sum(t * t))(table)


@program("n 24")
def split_at_the_middle(x):
    """The gradient of how far the upper part of each row is above its lower part."""

    def gap(x):
        parts = jnp.partition(x, 11, axis=1)
        return jnp.sum((parts[:, 12:] - parts[:, :12]) ** 2)

    return jax.grad(gap)(x)


@program("8")
def one_more(x):
    """A value put between others, squared."""
    return jnp.insert(x, 3, 1.0) ** 2
