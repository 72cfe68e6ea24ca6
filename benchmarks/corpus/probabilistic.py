"""Probabilistic models and sampling."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.corpus.program import program


@program("t k", "k k", "k")
def hmm_forward(log_likelihoods, log_transition, log_start):
    """The forward pass of a hidden Markov model, in logarithms."""

    def step(alpha, emission):
        alpha = jax.nn.logsumexp(alpha[:, None] + log_transition, axis=0) + emission
        return alpha, None

    alpha, _ = jax.lax.scan(step, log_start + log_likelihoods[0], log_likelihoods[1:])
    return jax.nn.logsumexp(alpha)


@program("n k", "")
def free_energy(energy, temperature):
    """The free energy of systems with a few states each, as the formula reads."""
    return -temperature * jnp.log(jnp.sum(jnp.exp(-energy / temperature), axis=1))


@program("n d", "k d", "k")
def mixture_responsibilities(x, means, log_weights):
    """Responsibilities of a Gaussian mixture with unit covariances."""
    distances = jnp.sum((x[:, None, :] - means[None, :, :]) ** 2, axis=-1)
    log_joint = log_weights - 0.5 * distances
    return jnp.exp(log_joint - jax.nn.logsumexp(log_joint, axis=1, keepdims=True))


@program("n k", "k d")
def mixture_means(responsibilities, x):
    """Means weighted by responsibilities, each component's total as its divisor."""
    return (responsibilities / responsibilities.sum(axis=1, keepdims=True)) @ x


@program("n", "", "", facts={"sigma": "positive"})
def gaussian_log_density(x, mu, sigma):
    """The log density of a normal distribution."""
    z = (x - mu) / sigma
    return -0.5 * z**2 - jnp.log(sigma) - 0.5 * jnp.log(2 * jnp.pi)


@program("n", "n", "n", facts={"x": "positive", "a": "positive", "b": "positive"})
def gamma_kernel(x, a, b):
    """The log of an unnormalised gamma density, as powers."""
    return jnp.log(x**a), jnp.log(x**2), jnp.log(jnp.sqrt(x)), b * jnp.log(1 / x)


@program("n", "n", facts={"x": "positive", "y": "positive"}, numerics="approximate")
def log_likelihood_ratio(x, y):
    """Log ratios and log products of likelihoods, to be taken apart."""
    return jnp.log(x / y), jnp.log(x * y)


@program("n")
def log_exp_round_trip(logits):
    """A link function and its inverse: logarithm of an exponential, log1p of expm1."""
    return jnp.log(jnp.exp(logits)), jnp.log1p(jnp.expm1(logits))


@program("n", facts={"rate": "positive"})
def exponential_rates(rate):
    """Rates through logarithms and back, and through two reciprocals."""
    return jnp.exp(jnp.log(rate)), 1 / (1 / rate)


@program("n")
def log_expm1_forms(x):
    """Forms of exponentials that lose digits near zero."""
    return jnp.exp(x) - 1, jnp.log(1 + x), 1 / jnp.exp(x)


@program("n", "n")
def boltzmann_ratio(e1, e2):
    """The ratio of two Boltzmann weights (Metropolis), and their product."""
    return jnp.exp(-e1) / jnp.exp(-e2), jnp.exp(-e1) * jnp.exp(-e2)


@program("n", "n", facts={"variance": "positive"})
def standardized_noise(x, variance):
    """Noise over its standard deviation, and scales from variances."""
    return x / jnp.sqrt(variance), variance / jnp.sqrt(variance), variance * jax.lax.rsqrt(variance)


@program("n", "n", facts={"a": "positive", "b": "positive"})
def bhattacharyya(a, b):
    """The overlap of two densities, by roots of each, and the ratio of their roots."""
    return jnp.sum(jnp.sqrt(a) * jnp.sqrt(b)), jnp.sqrt(a) / jnp.sqrt(b), jnp.sqrt(a) ** 2


@program("n d", "n")
def importance_weights(log_p, log_q):
    """Self-normalised importance weights."""
    w = jnp.exp(log_p.sum(axis=1) - log_q)
    return w / jnp.sum(w)


@program("b v", "")
def temperature_sampling(logits, temperature):
    """Probabilities at a temperature, the most likely one's, and the peak of the unnormalised ones."""
    p = jax.nn.softmax(logits / temperature, axis=-1)
    return p, jnp.max(jnp.exp(logits), axis=-1), p.sum(axis=-1)


@program("b v", "2 @ uint32")
def gumbel_max(logits, key):
    """A sample of a categorical distribution by the Gumbel trick."""
    noise = jax.random.gumbel(jax.random.wrap_key_data(key), logits.shape)
    return jnp.argmax(logits + noise, axis=-1)


@program("n d", "2 @ uint32")
def reparameterized(mean, key):
    """A reparameterised Gaussian sample of unit scale."""
    return mean + 1.0 * jax.random.normal(jax.random.wrap_key_data(key), mean.shape)


@program("k k", "k")
def stationary_after_four(transition, start):
    """The distribution of a Markov chain after four steps."""
    return start @ jnp.linalg.matrix_power(transition, 4)


@program("b n k", "b k m")
def batched_emission_totals(x, w):
    """Totals over states, for a batch of models."""
    p = x @ w
    return p / jnp.sum(p, axis=-1, keepdims=True)


@program("n", "n", "n", facts={"p": "positive"})
def bayes_odds(x, y, p):
    """Odds in three spellings of a quotient."""
    return (x * p) / (y * p), x / (y / p), (x / p) * p, (x * p) / p


@program("n t", numerics="approximate")
def survival_curve(hazards):
    """The expected number of intervals that are survived, of hazards that are constant within each."""
    return jnp.sum(jnp.cumprod(jnp.exp(-hazards), axis=1), axis=1)


@program("r s", "r s", "r s 3", numerics="approximate")
def composited_along_rays(density, step, colour):
    """Colours along rays, each weighed by what light gets through to it (NeRF)."""
    alpha = 1.0 - jnp.exp(-density * step)
    through = jnp.cumprod(1.0 - alpha, axis=1)
    return jnp.sum((through * alpha)[:, :, None] * colour, axis=1)


@program("b t", facts={"p": "positive"}, numerics="approximate")
def sequence_probability(p):
    """The probability of each prefix of a sequence, and of the whole, by logarithms."""
    logs = jnp.log(p)
    return jnp.exp(jnp.cumsum(logs, axis=1)), jnp.exp(jnp.sum(logs, axis=1))
