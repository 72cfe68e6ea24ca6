"""Optimisers and training loops."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.corpus.program import program


@program("m n", "m n", "m n", "m n", "", facts={"v": "nonnegative"})
def adam(w, g, m, v, t):
    """One step of Adam (Kingma and Ba, 2015)."""
    m = 0.9 * m + (1 - 0.9) * g
    v = 0.999 * v + (1 - 0.999) * g**2
    m_hat, v_hat = m / (1 - 0.9**t), v / (1 - 0.999**t)
    return w - 1e-3 * m_hat / (jnp.sqrt(v_hat) + 1e-8), m, v


@program("m n", "m n", "", "")
def decoupled_weight_decay(w, g, lr, decay):
    """A gradient step with decoupled weight decay, both scaled by the learning rate."""
    return w - (g * lr + w * lr * decay)


@program("n", "n", "n", "")
def momentum_step(w, g, m, lr):
    """Momentum, its sign kept in the velocity."""
    velocity = 0.9 * m + -(lr * g)
    return w - -velocity, velocity


@program("n", "n", "", facts={"lr": "positive"})
def nesterov(w, g, lr):
    """A gradient step of a minus sign at the wrong place: w + (-g) lr."""
    return w + (-g) * lr, w - (g * lr) / 1.0


@program("m n", "m n", "m", "n", facts={"row": "positive", "column": "positive"})
def adafactor(w, g, row, column):
    """Adafactor's factored second moment: an outer product under a root."""
    v = jnp.outer(row, column) / jnp.sum(row)
    return w - g / jnp.sqrt(v)


@program("n d", "")
def clipped_by_norm(g, limit):
    """A gradient clipped by its norm."""
    norm = jnp.sqrt(jnp.sum(g**2))
    return g * jnp.minimum(1.0, limit / norm)


@program("n", "n", "", "", weights=("beta", "scale"))
def moving_average(average, x, beta, scale):
    """An exponential moving average, scaled twice by numbers known ahead."""
    return average + x * beta * scale


@program("n", "n", "n")
def proximal_l1(w, threshold, g):
    """The proximal step of the lasso: soft thresholding."""
    w = w - g
    return jnp.sign(w) * jnp.maximum(jnp.abs(w) - threshold, 0.0)


@program("n", "n", "n")
def projected_gradient(w, g, low):
    """A step projected to the positive orthant twice over, and to lower limits twice."""
    w = jax.nn.relu(jax.nn.relu(w - g))
    return w, jnp.maximum(jnp.maximum(w, low), low), jnp.minimum(jnp.minimum(w, low), low)


@program("m n", "m r")
def galore(g, p):
    """A gradient projected to a low-rank space and back."""
    return p @ (p.T @ g), (p @ p.T) @ g


@program("d d", "d", "d", "")
def bfgs_update(h, s, y, rho):
    """The BFGS update of an inverse Hessian."""
    i = jnp.eye(s.shape[0])
    v = i - rho * jnp.outer(s, y)
    return v @ h @ v.T + rho * jnp.outer(s, s)


@program("n n", "n", "n", "n")
def conjugate_gradient_step(a, x, r, p):
    """One step of conjugate gradients."""
    ap = a @ p
    alpha = jnp.sum(r * r) / jnp.sum(p * ap)
    r_new = r - alpha * ap
    return x + alpha * p, r_new, r_new + (jnp.vdot(r_new, r_new) / jnp.vdot(r, r)) * p


@program("n d", "n", "d")
def sgd_epochs(x, y, w):
    """Ten steps of gradient descent on least squares."""
    return jax.lax.fori_loop(0, 10, lambda _, w: w - 0.01 * (x.T @ (x @ w - y)), w)


@program("n d", "d", "n")
def per_example_gradient(x, w, y):
    """Gradients of every example by itself, as vmap writes them."""
    return jax.vmap(jax.grad(lambda w, row, t: (row @ w - t) ** 2), in_axes=(None, 0, 0))(w, x, y)


@program("n d", "d d")
def gradient_of_scaled_similarity(x, w):
    """The gradient of a cosine-like score."""
    return jax.grad(lambda w: jnp.sum(jnp.tanh(-(x @ w)) ** 2))(w)


@program("m n", "m n")
def muon_step(w, g):
    """One Newton-Schulz iteration of Muon."""
    a = g @ g.T
    b = -4.775 * a + 2.0315 * (a @ a)
    return w - 0.02 * (3.4445 * g + b @ g)
