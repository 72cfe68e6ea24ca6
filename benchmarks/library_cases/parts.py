"""Single functions of libraries on vectors or rows: losses of optax, densities of numpyro, densities and bijectors of
distrax, kernels of tinygp, steps of optax. They were listed by kind, with no law in view: `python -m benchmarks.mined
--pool parts`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

Function = Callable[..., Any]

_LOSSES = {
    "squared_error": "n, n", "huber_loss": "n, n", "log_cosh": "n, n", "hinge_loss": "n, n", "perceptron_loss": "n, n",
    "sigmoid_binary_cross_entropy": "n, n", "sigmoid_focal_loss": "n, n", "sparsemax_loss": "n, n",
    "cosine_similarity": "b n, b n", "cosine_distance": "b n, b n", "softmax_cross_entropy": "b n, b n",
    "safe_softmax_cross_entropy": "b n, b n", "poly_loss_cross_entropy": "b n, b n", "kl_divergence": "b n, b n",
    "kl_divergence_with_log_targets": "b n, b n", "convex_kl_divergence": "b n, b n",
    "generalized_kl_divergence": "b n, b n", "ranking_softmax_loss": "b n, b n", "binary_dice_loss": "b n, b n",
    "triplet_margin_loss": "b n, b n, b n",
    "softmax_cross_entropy_with_integer_labels": "b n, b @ int32",
}  # fmt: skip
_CLASSES = ("multiclass_hinge_loss", "multiclass_perceptron_loss")  # of one row of scores and its label
# Of numpyro, with the number of parameters; the value is the first argument.
_DENSITIES = {
    "AsymmetricLaplace": 3, "BernoulliLogits": 1, "BernoulliProbs": 1, "Beta": 2, "BetaProportion": 2, "Cauchy": 2,
    "Chi2": 1, "Exponential": 1, "Gamma": 2, "GeometricLogits": 1, "GeometricProbs": 1, "Gompertz": 2, "Gumbel": 2,
    "HalfCauchy": 1, "HalfNormal": 1, "InverseGamma": 2, "Kumaraswamy": 2, "Laplace": 2, "Levy": 2, "LogNormal": 2,
    "LogUniform": 2, "Logistic": 2, "NegativeBinomial2": 2, "NegativeBinomialLogits": 2, "Normal": 2, "Pareto": 2,
    "Poisson": 1, "SoftLaplace": 2, "StudentT": 3, "Uniform": 2, "VonMises": 2, "Weibull": 2,
    "ZeroInflatedPoisson": 2, "BinomialLogits": 1, "GammaPoisson": 2,
}  # fmt: skip
_DISTRIBUTED = (
    "Cauchy", "Exponential", "Gumbel", "HalfCauchy", "HalfNormal", "Laplace", "LogNormal", "Logistic", "Normal",
    "Pareto", "SoftLaplace", "AsymmetricLaplace", "Gompertz", "Levy",
)  # fmt: skip
_OF_DISTRAX = ("Normal", "Laplace", "Gumbel", "Gamma", "Beta", "LogStddevNormal", "Logistic")
_BIJECTORS = ("Sigmoid", "Tanh", "GumbelCDF")
_KERNELS = ("Cosine", "Exp", "ExpSineSquared", "ExpSquared", "Matern32", "Matern52", "RationalQuadratic")
_STEPS = (
    "sgd", "adam", "adamw", "adamax", "adabelief", "adagrad", "adadelta", "rmsprop", "yogi", "novograd", "radam",
    "lion", "nadam", "amsgrad", "adan", "lamb", "lars", "sm3", "sign_sgd", "rprop",
)  # fmt: skip


def _specs(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _loss(name: str, *args: Any) -> Any:
    import optax

    return getattr(optax.losses, name)(*args)


def _classified(name: str, scores: Any, label: Any) -> Any:
    import jax

    return jax.vmap(partial(_loss, name))(scores, label)


def _density(name: str, method: str, x: Any, *parameters: Any) -> Any:
    import numpyro.distributions as dist

    if name == "BinomialLogits":
        return dist.BinomialLogits(*parameters, total_count=10).log_prob(x)
    return getattr(getattr(dist, name)(*parameters), method)(x)


def _of_distrax(name: str, method: str, x: Any, *parameters: Any) -> Any:
    import distrax

    return getattr(getattr(distrax, name)(*parameters), method)(x)


def _divergence(name: str, a: Any, b: Any, c: Any, d: Any) -> Any:
    import distrax

    made = getattr(distrax, name)
    return made(a, b).kl_divergence(made(c, d))


def _entropy(name: str, a: Any, b: Any) -> Any:
    import distrax

    return getattr(distrax, name)(a, b).entropy()


def _bijector(name: str, method: str, x: Any) -> Any:
    import distrax

    return getattr(getattr(distrax, name)(), method)(x)


def _transformed(name: str, x: Any, mean: Any, deviation: Any) -> Any:
    import distrax

    return distrax.Transformed(distrax.Normal(mean, deviation), getattr(distrax, name)()).log_prob(x)


def _kernel(name: str, x: Any, y: Any) -> Any:
    import tinygp

    options = {"gamma": 2.0} if name == "ExpSineSquared" else {"alpha": 1.5} if name == "RationalQuadratic" else {}
    return getattr(tinygp.kernels, name)(**options)(x, y)


def _step(name: str, gradient: Any, parameters: Any) -> Any:
    """The second step, whose moments are those of the first."""
    import optax

    optimiser = getattr(optax, name)(1e-3)
    state = optimiser.init(parameters)
    updates, state = optimiser.update(gradient, state, parameters)
    updates, state = optimiser.update(gradient * 0.5, state, optax.apply_updates(parameters, updates))
    return updates


PARTS: dict[str, tuple[Function, tuple[Any, ...]]] = {
    **{f"optax.{n}": (partial(_loss, n), _specs(specs)) for n, specs in _LOSSES.items()},
    **{f"optax.{n}": (partial(_classified, n), ("b n", "b @ int32")) for n in _CLASSES},
    **{f"numpyro.{n}.log_prob": (partial(_density, n, "log_prob"), ("n",) * (k + 1)) for n, k in _DENSITIES.items()},
    **{
        f"numpyro.{n}.{method}": (partial(_density, n, method), ("n",) * (_DENSITIES[n] + 1))
        for method in ("cdf", "icdf") for n in _DISTRIBUTED
    },
    **{
        f"distrax.{n}.{method}": (partial(_of_distrax, n, method), ("n",) * 3)
        for n in _OF_DISTRAX for method in ("log_prob", "prob", "cdf", "log_cdf")
    },
    **{f"distrax.{n}.kl_divergence": (partial(_divergence, n), ("n",) * 4) for n in _OF_DISTRAX[:-1]},
    **{f"distrax.{n}.entropy": (partial(_entropy, n), ("n",) * 2) for n in _OF_DISTRAX},
    **{
        f"distrax.{n}.{method}": (partial(_bijector, n, method), ("n",))
        for n in _BIJECTORS for method in ("forward_and_log_det", "inverse_and_log_det", "forward", "inverse")
    },
    **{f"distrax.Normal by {n}.log_prob": (partial(_transformed, n), ("n",) * 3) for n in _BIJECTORS},
    **{f"tinygp.{n}": (partial(_kernel, n), ("m 3", "n 3")) for n in _KERNELS},
    **{f"optax.{n}": (partial(_step, n), ("n m", "n m")) for n in _STEPS},
}  # fmt: skip
