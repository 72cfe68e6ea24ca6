"""Statistics."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.corpus.program import program


@program("n d")
def covariance(x):
    """The covariance matrix of rows."""
    centered = x - x.mean(axis=0)
    return centered.T @ centered / (x.shape[0] - 1)


@program("n d")
def correlation(x):
    """The correlation matrix: covariances divided by standard deviations."""
    centered = x - x.mean(axis=0)
    cov = centered.T @ centered / (x.shape[0] - 1)
    std = jnp.sqrt(jnp.diag(cov))
    return cov / std[:, None] / std[None, :]


@program("n d")
def z_scores(x):
    """Columns with mean zero and standard deviation one."""
    return (x - jnp.mean(x, axis=0)) / jnp.std(x, axis=0)


@program("n d")
def pca_whitening(x):
    """Rows whitened by the principal components of their covariance."""
    centered = x - x.mean(axis=0)
    values, vectors = jnp.linalg.eigh(centered.T @ centered / x.shape[0])
    return centered @ vectors @ jnp.diag(1.0 / jnp.sqrt(values + 1e-5))


@program("n d", "n")
def weighted_covariance(x, weights):
    """A weighted covariance matrix, the weights on a diagonal."""
    return x.T @ jnp.diag(weights) @ x / jnp.sum(weights)


@program("n", "n")
def pearson(x, y):
    """The correlation of two samples."""
    x, y = x - x.mean(), y - y.mean()
    return jnp.sum(x * y) / (jnp.sqrt(jnp.sum(x * x)) * jnp.sqrt(jnp.sum(y * y)))


@program("n @ int32", "n")
def histogram_by_one_hot(bins, weights):
    """A weighted histogram from a one-hot matrix."""
    return jax.nn.one_hot(bins, 16).T @ weights


@program("n d", "d d")
def hotelling(x, cov):
    """Mahalanobis distances of rows from their mean."""
    centered = x - x.mean(axis=0)
    return jnp.diag(centered @ jnp.linalg.inv(cov) @ centered.T)


@program("n p", "n n")
def leverage_scores(x, w):
    """The diagonal of a hat matrix of given weights."""
    return jnp.diag(x @ (x.T @ w))


@program("n", "n", facts={"weights": "positive"})
def weighted_mean(x, weights):
    """A weighted mean, the weights' magnitudes made sure of."""
    weights = jnp.abs(weights)
    return jnp.sum(weights * x) / jnp.sum(weights)


@program("n", facts={"x": "positive"})
def geometric_mean(x):
    """The geometric mean, by logarithms."""
    return jnp.exp(jnp.mean(jnp.log(x)))


@program("101", facts={"x": "sorted finite"})
def order_statistics(x):
    """Range and median of a sample that was sorted."""
    return jnp.max(x) - jnp.min(x), jnp.sort(x)[x.shape[0] // 2]


@program("n d", "")
def rescaled_row_sums(x, unit):
    """Row totals after a change of unit."""
    return (x * unit).sum(axis=1), (x / unit).sum(axis=1)


@program("n d", "n d", "n 1")
def paired_differences(before, after, spread):
    """Mean paired differences, in units of their spread."""
    d = after - before
    return jnp.sum(d, axis=1), jnp.sum(d / spread, axis=1), jnp.sum(d * spread, axis=1)


@program("a b")
def grand_mean(table):
    """Means of rows, and their mean."""
    return jnp.mean(jnp.mean(table, axis=1))


@program("n")
def variance_by_hand(x):
    """Root mean square, by a square and its root."""
    return jnp.sqrt(jnp.square(x - x.mean())), jnp.sqrt(jnp.mean(x * x))


@program("n d", "d e", "n e")
def standardized_effects(x, w, y):
    """Sums over columns and rows of a product, for a check of totals."""
    p = x @ w
    return p.sum(axis=0), p.sum(axis=1), p.sum(), jnp.sum(p + y, axis=1)


@program("n 128")
def gini_coefficients(x):
    """Inequality of sorted incomes, by the area below the curve of their running sums."""
    ordered = jnp.sort(x, axis=1)
    n = x.shape[1]
    area = jnp.sum(jnp.cumsum(ordered, axis=1), axis=1)
    return (n + 1 - 2 * area / jnp.sum(ordered, axis=1)) / n


@program("n 64")
def quantiles_that_do_not_cross(predicted):
    """Predicted quantiles, put in order, and made monotone once more."""
    return jax.lax.cummax(jnp.sort(predicted, axis=1), axis=1) * 100.0
