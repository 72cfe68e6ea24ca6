"""Losses, and gradients of models."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.corpus.program import program


@program("n c", "n @ int32", numerics="approximate")
def naive_cross_entropy(logits, labels):
    """Cross entropy from probabilities."""
    probabilities = jax.nn.softmax(logits, axis=-1)
    return -jnp.mean(jnp.log(probabilities)[jnp.arange(labels.shape[0]), labels])


@program("n c", "n c")
def soft_label_cross_entropy(logits, targets):
    """Cross entropy with soft labels."""
    return jnp.mean(jnp.sum(-targets * jax.nn.log_softmax(logits, axis=-1), axis=-1))


@program("n c", "n c")
def distillation(student, teacher):
    """Kullback-Leibler divergence of a student's distribution from its teacher's."""
    log_p, log_q = jax.nn.log_softmax(teacher), jax.nn.log_softmax(student)
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1).mean()


@program("n", "n")
def binary_cross_entropy(logits, labels):
    """Binary cross entropy through the logistic function."""
    p = 1 / (1 + jnp.exp(-logits))
    return -jnp.mean(labels * jnp.log(p) + (1 - labels) * jnp.log(1 - p))


@program("n", "n")
def logistic_loss(margins, weights):
    """The weighted logistic loss log(1 + exp(-m))."""
    return jnp.sum(weights * jnp.log(1 + jnp.exp(-margins)))


@program("n d", "d", "n")
def least_squares_gradient(x, w, y):
    """The gradient of the squared error of linear regression."""
    return jax.grad(lambda w: jnp.sum((x @ w - y) ** 2))(w)


@program("n d", "d", "n")
def logistic_regression_gradient(x, w, y):
    """The gradient of logistic regression's loss."""
    return jax.grad(lambda w: jnp.mean(jax.nn.softplus(x @ w) - y * (x @ w)))(w)


@program({"w1": "d h", "b1": "h", "w2": "h c", "b2": "c"}, "n d", "n c")
def mlp_gradient(params, x, y):
    """The gradient of a two-layer network's squared error."""

    def loss(p):
        hidden = jax.nn.relu(x @ p["w1"] + p["b1"])
        return jnp.mean(jnp.square(hidden @ p["w2"] + p["b2"] - y))

    return jax.grad(loss)(params)


@program({"enc": "d h", "dec": "h d"}, "n d")
def autoencoder_gradient(params, x):
    """The gradient of a linear autoencoder with weight decay."""

    def loss(p):
        error = x @ p["enc"] @ p["dec"] - x
        return jnp.sum(error * error) + 1e-3 * sum(jnp.sum(w * w) for w in jax.tree.leaves(p))

    return jax.grad(loss)(params)


@program("n d", "n d", "d e")
def siamese_distance(a, b, w):
    """Squared distances after one projection of both branches."""
    return jnp.sum((a @ w - b @ w) ** 2, axis=-1)


@program("n d", "n d", "")
def contrastive_logits(a, b, temperature):
    """InfoNCE: similarities of two views, both stacked."""
    z = jnp.concatenate([a, b], axis=0)
    return jax.nn.log_softmax((z @ z.T) / temperature, axis=1)


@program("n", "n")
def huber(prediction, target):
    """The Huber loss with a threshold of one."""
    error = jnp.abs(prediction - target)
    return jnp.sum(jnp.where(error <= 1.0, 0.5 * error**2, error - 0.5))


@program("n d", "n d", "n d")
def triplet_loss(anchor, positive, negative):
    """The triplet loss with a margin."""
    near = jnp.sum((anchor - positive) ** 2, axis=1)
    far = jnp.sum((anchor - negative) ** 2, axis=1)
    return jnp.maximum(near - far + 1.0, 0.0).mean()


@program("n", "n")
def hinge(scores, labels):
    """The hinge loss."""
    return jnp.mean(jnp.maximum(0, 1 - labels * scores))


@program("n d", "n d")
def gaussian_kl(mean, log_variance):
    """Kullback-Leibler divergence of a diagonal Gaussian from the standard one (VAE)."""
    return -0.5 * jnp.sum(1 + log_variance - mean**2 - jnp.exp(log_variance), axis=1)


@program("n h w c", "n h w c")
def psnr(a, b):
    """Peak signal-to-noise ratio, squared errors summed over flattened images."""
    n = a.shape[0]
    error = jnp.sum(((a - b) ** 2).reshape(n, -1), axis=1)
    return -10 * jnp.log10(error)


@program("n c", "n c", "c")
def focal_loss(logits, labels, alpha):
    """The focal loss of dense detection."""
    p = jax.nn.sigmoid(logits)
    p_t = p * labels + (1 - p) * (1 - labels)
    bce = -(labels * jnp.log(p) + (1 - labels) * jnp.log1p(-p))
    return jnp.sum(alpha * (1 - p_t) ** 2 * bce)


@program("m k", "n k", "m n")
def factorization_error(u, v, r):
    """The squared error of a factorization, expanded: |R|^2 - 2 <R, UV'> + |UV'|^2."""
    return jnp.sum(r**2) - 2 * jnp.sum(r * (u @ v.T)) + jnp.sum((u @ v.T) ** 2)


@program("n s", "n s @ bool")
def masked_mean_loss(loss, mask):
    """The mean of token losses over those that count."""
    m = mask.astype(loss.dtype)
    return jnp.sum(loss * m) / jnp.sum(m)


@program("n c")
def label_smoothing(logits):
    """The uniform part of label smoothing."""
    return -jnp.sum(jax.nn.log_softmax(logits, axis=-1) / logits.shape[-1], axis=-1)


@program("n d", "n d", "d d", "d d")
def tied_gradient(x, g, w, v):
    """The gradient of the input of two layers that share it, added up as autodiff does."""
    return jax.grad(lambda x: jnp.sum(g * (x @ w)) + jnp.sum(g * (x @ v)))(x)


@program("n d", "d e", "n e", "n e")
def shared_weight_gradient(x, w, g, h):
    """The gradient of a weight that is used twice."""
    return jax.grad(lambda w: jnp.sum(g * (x @ w)) + jnp.sum(h * (x @ w)))(w)
