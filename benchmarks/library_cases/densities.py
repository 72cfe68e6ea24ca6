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
from tinygp.solvers.kalman import KalmanSolver

from benchmarks.library_cases.case import Case, Size, Use, case, filled, normal

DENSITIES: list[Case] = []
KEY = jax.random.key(0)


def observed(size: Size) -> tuple[jax.Array, jax.Array]:
    """Rows of features, and a label of 0 or 1 for each."""
    labels = jnp.array([0, 1, 1, 0, 1, 0])
    return normal(1, *size((6, 3), (1200, 50))), size(labels, jnp.tile(labels, 200))


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
def log_density_logistic(size: Size) -> Use:
    x, labels = observed(size)

    def fn(params: Any, x: jax.Array) -> Any:
        return log_density(logistic, (x, labels), {}, params)[0]

    rows, features = x.shape
    return Use(fn, ({"scale": jnp.array(0.7), "w": normal(2, features)}, f"{rows} {features}"))


@case(DENSITIES, "numpyro", "potential of a hierarchical model and its gradient")
def potential(size: Size) -> Use:
    count = size(4, 2000)

    def fn(z: Any, effects: jax.Array) -> Any:
        made = initialize_model(KEY, schools, model_args=(effects,), init_strategy=numpyro.infer.init_to_median)
        return jax.value_and_grad(made.potential_fn)(z)

    return Use(fn, ({"mu": jnp.array(0.3), "tau": jnp.array(-0.2), "theta": normal(3, count)}, str(count)))


@case(DENSITIES, "numpyro", "step of variational inference")
def variational(size: Size) -> Use:
    x, labels = observed(size)
    guide = autoguide.AutoNormal(logistic)
    svi = SVI(logistic, guide, numpyro.optim.Adam(1e-2), Trace_ELBO())
    state = jax.tree.map(jnp.abs, filled(jax.eval_shape(lambda: svi.init(jax.random.PRNGKey(0), x, labels))))

    def fn(state: Any, x: jax.Array) -> Any:
        state, loss = svi.update(state, x, labels)
        return svi.get_params(state), loss

    rows, features = x.shape
    return Use(fn, (state, f"{rows} {features}"), wrt=1)


@case(DENSITIES, "numpyro", "distributions")
def distributions(size: Size) -> Use:
    n = size(3, 64)

    def fn(x: jax.Array, z: jax.Array) -> Any:
        p = jax.nn.sigmoid(x)
        covariance = jnp.eye(n) + jnp.outer(x, x)
        mixture = dist.MixtureSameFamily(dist.Categorical(logits=x), dist.Normal(x, 1 + p))
        return (
            dist.MultivariateNormal(x, covariance).log_prob(z),
            dist.Gamma(1 + p, 2.0).log_prob(jnp.exp(z)),
            dist.Beta(1 + p, 2 - p).log_prob(jax.nn.sigmoid(z)),
            dist.Poisson(jnp.exp(x)).log_prob(jnp.resize(jnp.array([1, 0, 4]), n)),
            dist.Dirichlet(1 + p).log_prob(jax.nn.softmax(z)),
            dist.VonMises(x, 1 + p).log_prob(z),
            dist.LKJCholesky(n, 1.0 + p[0]).log_prob(jnp.linalg.cholesky(0.5 * jnp.eye(n) + 0.5)),
            mixture.log_prob(z),
        )

    return Use(fn, (str(n), str(n)), tolerance=1e-3)


# -- distrax


@case(DENSITIES, "distrax", "coupling flow")
def coupling_flow(size: Size) -> Use:
    width, hidden = size((4, 8), (32, 256))

    def fn(params: Any, x: jax.Array) -> Any:
        layers = []
        for i, (w, out) in enumerate(params):
            mask = jnp.arange(width) % 2 == i % 2
            layers.append(
                distrax.MaskedCoupling(
                    mask,
                    lambda x, w=w, out=out: (jnp.tanh(x @ w) @ out).reshape(*x.shape, 2),
                    lambda p: distrax.ScalarAffine(p[..., 0], log_scale=jnp.tanh(p[..., 1])),
                )
            )
        base = distrax.MultivariateNormalDiag(jnp.zeros(width), jnp.ones(width))
        return distrax.Transformed(base, distrax.Chain(layers)).log_prob(x)

    layer = size(("4 8", "8 8"), (0.1 * normal(1, width, hidden), 0.05 * normal(2, hidden, 2 * width)))
    return Use(fn, ([layer, layer], size("b 4", "512 32")), tolerance=1e-3)


@case(DENSITIES, "distrax", "rational quadratic spline")
def spline(size: Size) -> Use:
    def fn(params: jax.Array, x: jax.Array) -> Any:
        bijector = distrax.RationalQuadraticSpline(params, -3.0, 3.0)
        y, logdet = bijector.forward_and_log_det(x)
        return y, logdet, bijector.inverse(y)

    return Use(fn, size(("13", "b"), ("31", "10000")), tolerance=1e-3)


@case(DENSITIES, "distrax", "mixture, entropies, divergences")
def mixture(size: Size) -> Use:
    n = size(4, 64)

    def fn(x: jax.Array, z: jax.Array) -> Any:
        low = jnp.tril(jnp.outer(x, x)) + 2 * jnp.eye(n)
        p, q = (distrax.Categorical(logits=v) for v in (x, z))
        parts = distrax.MultivariateNormalTri(jnp.stack([x, z]), jnp.stack([low, low + jnp.eye(n)]))
        whole = distrax.MixtureSameFamily(distrax.Categorical(logits=jnp.array([0.3, 0.1])), parts)
        return whole.log_prob(z), p.entropy(), p.kl_divergence(q), distrax.Gumbel(x, 1.0).entropy()

    return Use(fn, (str(n), str(n)))


@case(DENSITIES, "distrax", "hidden Markov model")
def hidden_markov(size: Size) -> Use:
    states, steps = size((3, 5), (32, 500))

    def fn(logits: jax.Array, xs: jax.Array) -> Any:
        chain = distrax.HMM(
            distrax.Categorical(logits=logits[0]),
            distrax.Categorical(logits=logits),
            distrax.Normal(jnp.arange(float(states)), jnp.ones(states)),
        )
        return chain.forward(xs)[1]

    return Use(fn, (f"{states} {states}", str(steps)))


# -- tinygp


@case(DENSITIES, "tinygp", "marginal likelihood and prediction")
def gaussian_process(size: Size) -> Use:
    places, wanted = normal(1, *size((6, 3), (300, 1)))[:, 0], size(3, 100)

    def fn(params: Any, y: jax.Array) -> Any:
        kernel = jnp.exp(params["scale"]) * kernels.Matern32(jnp.exp(params["length"])) + kernels.ExpSquared(2.0)
        process = GaussianProcess(kernel, places, diag=0.1)
        found = process.condition(y, jnp.linspace(-1.0, 1.0, wanted))
        return found.log_probability, found.gp.loc, found.gp.variance

    return Use(fn, ({"scale": jnp.array(0.2), "length": jnp.array(-0.3)}, str(len(places))), tolerance=1e-3)


@case(DENSITIES, "tinygp", "quasi-separable kernel")
def quasiseparable(size: Size) -> Use:
    count = size(6, 1000)

    def fn(scale: jax.Array, y: jax.Array) -> Any:
        kernel = kernels.quasisep.SHO(omega=jnp.exp(scale), quality=1.5) + kernels.quasisep.Matern32(0.7)
        return GaussianProcess(kernel, jnp.linspace(0.0, 2.0, count), diag=0.1).log_probability(y)

    return Use(fn, (jnp.array(0.2), str(count)), tolerance=1e-3)


@case(DENSITIES, "tinygp", "Kalman filter")
def kalman_filter(size: Size) -> Use:
    count = size(6, 1000)

    def fn(scale: jax.Array, y: jax.Array) -> Any:
        kernel = kernels.quasisep.SHO(omega=jnp.exp(scale), quality=1.5) + kernels.quasisep.Matern32(0.7)
        process = GaussianProcess(kernel, jnp.linspace(0.0, 2.0, count), diag=0.1, solver=KalmanSolver)
        return process.log_probability(y)

    return Use(fn, (jnp.array(0.2), str(count)), tolerance=1e-3)


# -- blackjax


@case(DENSITIES, "blackjax", "Hamiltonian Monte Carlo step")
def hamiltonian(size: Size) -> Use:
    n, steps = size((3, 4), (1000, 32))

    def density(z: jax.Array) -> jax.Array:
        return -(z**2).sum() - jnp.sin(z).sum()

    def fn(position: jax.Array, key: jax.Array) -> Any:
        kernel = blackjax.hmc(density, 0.1, jnp.ones(n), steps)
        state, info = kernel.step(key, kernel.init(position))
        return state, info.acceptance_rate, info.energy

    return Use(fn, (str(n), KEY), batched=0)
