"""Probability: numpyro, distrax, tinygp, blackjax."""

from __future__ import annotations

from typing import Any

import blackjax
import distrax
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO, autoguide
from numpyro.infer.util import initialize_model, log_density
from tinygp import GaussianProcess, kernels

from benchmarks.library_cases.case import Case, Use, case, filled, normal

DENSITIES: list[Case] = []
KEY = jax.random.key(0)
SIX = normal(1, 6, 3)
LABELS = jnp.array([0, 1, 1, 0, 1, 0])


# -- numpyro


def logistic(x: jax.Array, y: jax.Array) -> None:
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
    w = numpyro.sample("w", dist.Normal(0, scale).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def schools(effects: jax.Array) -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.LogNormal(0, 1))
    with numpyro.plate("schools", effects.shape[0]):
        theta = numpyro.sample("theta", dist.StudentT(4.0, mu, tau))
        numpyro.sample("effects", dist.Normal(theta, 2.0), obs=effects)


@case(DENSITIES, "numpyro", "log density of a logistic regression")
def log_density_logistic() -> Use:
    def fn(params: Any, x: jax.Array) -> Any:
        return log_density(logistic, (x, LABELS), {}, params)[0]

    return Use(fn, ({"scale": jnp.array(0.7), "w": normal(2, 3)}, "6 3"))


@case(DENSITIES, "numpyro", "potential of a hierarchical model and its gradient")
def potential() -> Use:
    def fn(z: Any, effects: jax.Array) -> Any:
        made = initialize_model(KEY, schools, model_args=(effects,), init_strategy=numpyro.infer.init_to_median)
        return jax.value_and_grad(made.potential_fn)(z)

    return Use(fn, ({"mu": jnp.array(0.3), "tau": jnp.array(-0.2), "theta": normal(3, 4)}, "4"))


@case(DENSITIES, "numpyro", "step of variational inference")
def variational() -> Use:
    guide = autoguide.AutoNormal(logistic)
    svi = SVI(logistic, guide, numpyro.optim.Adam(1e-2), Trace_ELBO())
    state = jax.tree.map(jnp.abs, filled(jax.eval_shape(lambda: svi.init(jax.random.PRNGKey(0), SIX, LABELS))))

    def fn(state: Any, x: jax.Array) -> Any:
        state, loss = svi.update(state, x, LABELS)
        return svi.get_params(state), loss

    return Use(fn, (state, "6 3"), wrt=1)


@case(DENSITIES, "numpyro", "distributions")
def distributions() -> Use:
    def fn(x: jax.Array, z: jax.Array) -> Any:
        p = jax.nn.sigmoid(x)
        covariance = jnp.eye(3) + jnp.outer(x, x)
        mixture = dist.MixtureSameFamily(dist.Categorical(logits=x), dist.Normal(x, 1 + p))
        return (
            dist.MultivariateNormal(x, covariance).log_prob(z),
            dist.Gamma(1 + p, 2.0).log_prob(jnp.exp(z)),
            dist.Beta(1 + p, 2 - p).log_prob(jax.nn.sigmoid(z)),
            dist.Poisson(jnp.exp(x)).log_prob(jnp.array([1, 0, 4])),
            dist.Dirichlet(1 + p).log_prob(jax.nn.softmax(z)),
            dist.VonMises(x, 1 + p).log_prob(z),
            dist.LKJCholesky(3, 1.0 + p[0]).log_prob(jnp.linalg.cholesky(0.5 * jnp.eye(3) + 0.5)),
            mixture.log_prob(z),
        )

    return Use(fn, ("3", "3"), tolerance=1e-3)


# -- distrax


@case(DENSITIES, "distrax", "coupling flow")
def coupling_flow() -> Use:
    def fn(params: Any, x: jax.Array) -> Any:
        layers = []
        for i, (w, out) in enumerate(params):
            mask = jnp.arange(4) % 2 == i % 2
            layers.append(
                distrax.MaskedCoupling(
                    mask,
                    lambda x, w=w, out=out: (jnp.tanh(x @ w) @ out).reshape(*x.shape, 2),
                    lambda p: distrax.ScalarAffine(p[..., 0], log_scale=jnp.tanh(p[..., 1])),
                )
            )
        base = distrax.MultivariateNormalDiag(jnp.zeros(4), jnp.ones(4))
        return distrax.Transformed(base, distrax.Chain(layers)).log_prob(x)

    return Use(fn, ([("4 8", "8 8"), ("4 8", "8 8")], "b 4"), tolerance=1e-3)


@case(DENSITIES, "distrax", "rational quadratic spline")
def spline() -> Use:
    def fn(params: jax.Array, x: jax.Array) -> Any:
        bijector = distrax.RationalQuadraticSpline(params, -3.0, 3.0)
        y, logdet = bijector.forward_and_log_det(x)
        return y, logdet, bijector.inverse(y)

    return Use(fn, ("13", "b"), tolerance=1e-3)


@case(DENSITIES, "distrax", "mixture, entropies, divergences")
def mixture() -> Use:
    def fn(x: jax.Array, z: jax.Array) -> Any:
        low = jnp.tril(jnp.outer(x, x)) + 2 * jnp.eye(4)
        p, q = (distrax.Categorical(logits=v) for v in (x, z))
        parts = distrax.MultivariateNormalTri(jnp.stack([x, z]), jnp.stack([low, low + jnp.eye(4)]))
        whole = distrax.MixtureSameFamily(distrax.Categorical(logits=jnp.array([0.3, 0.1])), parts)
        return whole.log_prob(z), p.entropy(), p.kl_divergence(q), distrax.Gumbel(x, 1.0).entropy()

    return Use(fn, ("4", "4"))


@case(DENSITIES, "distrax", "hidden Markov model")
def hidden_markov() -> Use:
    def fn(logits: jax.Array, xs: jax.Array) -> Any:
        chain = distrax.HMM(
            distrax.Categorical(logits=logits[0]),
            distrax.Categorical(logits=logits),
            distrax.Normal(jnp.arange(3.0), jnp.ones(3)),
        )
        return chain.forward(xs)[1]

    return Use(fn, ("3 3", "5"))


# -- tinygp


@case(DENSITIES, "tinygp", "marginal likelihood and prediction")
def gaussian_process() -> Use:
    def fn(params: Any, y: jax.Array) -> Any:
        kernel = jnp.exp(params["scale"]) * kernels.Matern32(jnp.exp(params["length"])) + kernels.ExpSquared(2.0)
        process = GaussianProcess(kernel, SIX[:, 0], diag=0.1)
        found = process.condition(y, jnp.linspace(-1.0, 1.0, 3))
        return found.log_probability, found.gp.loc, found.gp.variance

    return Use(fn, ({"scale": jnp.array(0.2), "length": jnp.array(-0.3)}, "6"), tolerance=1e-3)


@case(DENSITIES, "tinygp", "quasi-separable kernel")
def quasiseparable() -> Use:
    def fn(scale: jax.Array, y: jax.Array) -> Any:
        kernel = kernels.quasisep.SHO(omega=jnp.exp(scale), quality=1.5) + kernels.quasisep.Matern32(0.7)
        return GaussianProcess(kernel, jnp.linspace(0.0, 2.0, 6), diag=0.1).log_probability(y)

    return Use(fn, (jnp.array(0.2), "6"), tolerance=1e-3)


# -- blackjax


@case(DENSITIES, "blackjax", "Hamiltonian Monte Carlo step")
def hamiltonian() -> Use:
    def density(z: jax.Array) -> jax.Array:
        return -(z**2).sum() - jnp.sin(z).sum()

    def fn(position: jax.Array, key: jax.Array) -> Any:
        kernel = blackjax.hmc(density, 0.1, jnp.ones(3), 4)
        state, info = kernel.step(key, kernel.init(position))
        return state, info.acceptance_rate, info.energy

    return Use(fn, ("3", KEY), batched=0)
