"""Formulas of the sciences, finance and reinforcement learning."""

from __future__ import annotations

import jax.numpy as jnp

from benchmarks.corpus.program import program


@program("n d", "d k")
def energy_based_loss(x, w):
    """The negative log-likelihood of an energy-based model: log p is the negated energy, up to a constant."""
    energy = 0.5 * (x @ w) ** 2
    log_likelihood = -energy
    return -log_likelihood


@program("m n", "m n", "")
def sgd_with_defaults(w, g, lr, scale=1.0, decay=0.0, centre=0.0, temperature=1.0):
    """A gradient step whose options are left at their defaults, which do nothing."""
    g = g * scale + decay
    return w - lr * ((g - centre) / temperature)


@program("n f")
def log_magnitudes(spectrum):
    """Log magnitudes of what a helper made magnitudes already."""
    magnitude = jnp.abs(spectrum)
    return jnp.log(jnp.abs(magnitude) + 1e-6)


@program("n", "n", "n")
def arrhenius(activation, temperature, rate):
    """The rate of a reaction: A exp(-E / RT), the sign at the divisor."""
    return rate * jnp.exp(activation / -(8.314 * temperature))


@program("n", "n", "n")
def diagonal_newton_step(w, gradient, curvature):
    """A Newton step with a diagonal Hessian."""
    return w + (-gradient) / curvature


@program("t n", "t n", "t n")
def actor_loss(log_probability, value, reward):
    """The loss of an actor: the advantage as a negated error of the critic."""
    advantage = -(value - reward)
    return -jnp.mean(log_probability * advantage)


@program("n", "n")
def absolute_residual(target, prediction):
    """The mean magnitude of a negated residual."""
    residual = prediction - target
    return jnp.mean(jnp.abs(-(residual * residual * residual)))


@program("n", "n", "n", "n")
def net_revenue(price, sold, shipped, returned):
    """Revenue of what was sold and shipped, and without what came back."""
    return price * sold + price * shipped, price * sold - price * returned
