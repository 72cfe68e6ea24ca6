"""Sorting, ranking metrics, cumulative sums and sizes that depend on data."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.corpus.program import program


@program("n k", "n k")
def ndcg(scores, relevance):
    """Normalised discounted cumulative gain."""
    order = jnp.argsort(-scores, axis=1)
    gains = jnp.take_along_axis(relevance, order, axis=1)
    discount = 1 / jnp.log2(jnp.arange(scores.shape[1]) + 2.0)
    best = -jnp.sort(-relevance, axis=1)
    return jnp.sum(gains * discount, axis=1) / jnp.sum(best * discount, axis=1)


@program("n", "n")
def ranknet(scores, labels):
    """Pairwise logistic loss of all pairs."""
    s = scores[:, None] - scores[None, :]
    y = jnp.sign(labels[:, None] - labels[None, :])
    return jnp.mean(jnp.log1p(jnp.exp(-y * s)))


@program("n k", "n @ int32")
def top_1_accuracy(logits, labels):
    """The share of rows whose largest logit is the label's."""
    return jnp.mean((jnp.argmax(logits, axis=1) == labels).astype(jnp.float32))


@program("n s")
def splade_weights(logits):
    """Term weights of a sparse encoder: the largest saturated activation."""
    return jnp.log1p(jnp.max(jax.nn.relu(logits), axis=1))


@program("n k")
def hardest_negatives(similarity):
    """The hardest negatives, by maxima and minima of negated similarities."""
    return jnp.max(-similarity, axis=1), jnp.min(-similarity, axis=1), jnp.sum(-similarity, axis=1)


@program("n")
def empirical_quantiles(x):
    """Sorted values, of which the sort is asked twice."""
    return jnp.sort(jnp.sort(x))


@program("t n")
def drawdown(prices):
    """The largest fall below a running maximum."""
    peak = jax.lax.cummax(prices, axis=0)
    return jnp.max((peak - prices) / peak, axis=0)


@program("t n")
def range_of_a_walk(steps):
    """The span that a walk has covered when it ends: the last of its running extremes."""
    walk = jnp.cumsum(steps, axis=0)
    high, low = jax.lax.cummax(walk, axis=0), jax.lax.cummin(walk, axis=0)
    return high[-1] - low[-1], jnp.max(high, axis=0)


@program("t n")
def support_levels(prices):
    """Running lows, as a running high of negated prices, and the lowest of them."""
    low = -jax.lax.cummax(-prices, axis=0)
    return low, jnp.min(low, axis=0)


@program("n 64")
def behind_the_beam(scores):
    """How far each score is behind the best one that a beam keeps."""
    kept = jax.lax.top_k(scores, 8)[0]
    return jnp.max(kept, axis=-1, keepdims=True) - scores


@program("n 128")
def median_from_the_top(x):
    """The median of values that a report lists from the highest down, sorted once more."""
    listed = jnp.sort(x, axis=1)[:, ::-1]
    return jnp.median(listed, axis=1)


@program("t n")
def discounted_returns(rewards):
    """Discounted returns, by a reversed scan."""

    def step(total, r):
        total = r + 0.99 * total
        return total, total

    return jax.lax.scan(step, jnp.zeros(rewards.shape[1]), rewards, reverse=True)[1]


@program("n 32")
def top_k_mass(p):
    """The mass of the four largest probabilities."""
    return jax.lax.top_k(p, 4)[0].sum(axis=-1)


@program("n", "n @ bool")
def compacted(x, keep):
    """The sum of those values that are kept, compacted to a fixed size."""
    return jnp.sum(jnp.take(x, jnp.nonzero(keep, size=x.shape[0], fill_value=0)[0]) * keep)


@program("t n")
def high_water_marks(value):
    """Peaks of a fund, from the peaks of each desk, which are running maxima already."""
    peaks = jax.lax.cummax(value, axis=0)
    return jax.lax.cummax(peaks, axis=0) - value


@program("n 32", "n @ int32")
def accuracy_of_encoded_labels(logits, labels):
    """The share of right answers, of labels that arrive encoded."""
    encoded = jax.nn.one_hot(labels, 32)
    return jnp.mean((jnp.argmax(logits, -1) == jnp.argmax(encoded, -1)).astype(jnp.float32))
