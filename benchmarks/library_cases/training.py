"""Training steps with optax: losses, and optimizers that each do their own arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.library_cases.case import Case, Use, case, normal

TRAINING: list[Case] = []
PARAMS = {"a": 0.5 * normal(1, 6, 8), "b": 0.5 * normal(2, 8, 5)}


def scores(params: Any, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ params["a"]) @ params["b"]


def cross_entropy(params: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(scores(params, x), labels).mean()


def of_optimizer(optimizer: optax.GradientTransformationExtraArgs, loss: Callable[..., Any] = cross_entropy) -> Use:
    """A training step: new parameters and state, and the loss. All moments are 0.1 before."""

    def step(params: Any, state: Any, x: jax.Array, labels: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x, labels)
        extra = {"value": value, "grad": grads, "value_fn": lambda p: loss(p, x, labels)}
        updates, state = optax.with_extra_args_support(optimizer).update(grads, state, params, **extra)
        return optax.apply_updates(params, updates), state, value

    shapes = jax.eval_shape(optimizer.init, PARAMS)
    state = jax.tree.map(lambda s: jnp.full(s.shape, 0.1 if s.dtype == jnp.float32 else 0, s.dtype), shapes)
    return Use(step, (PARAMS, state, "b 6", "b @ int32"), batched=2)


@case(TRAINING, "optax", "adamw, clipped, with a schedule")
def adamw() -> Use:
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 5, 50)
    return of_optimizer(optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule)))


@case(TRAINING, "optax", "lion")
def lion() -> Use:
    return of_optimizer(optax.lion(1e-3))


@case(TRAINING, "optax", "adafactor")
def adafactor() -> Use:
    return of_optimizer(optax.adafactor(1e-2, min_dim_size_to_factor=4))


@case(TRAINING, "optax", "muon")
def muon() -> Use:
    return of_optimizer(optax.contrib.muon(1e-2))


@case(TRAINING, "optax", "lamb, averaged over steps")
def lamb() -> Use:
    return of_optimizer(optax.MultiSteps(optax.lamb(1e-2), 2))


@case(TRAINING, "optax", "l-bfgs")
def lbfgs() -> Use:
    return of_optimizer(optax.lbfgs(1e-1, memory_size=3, linesearch=None))


@case(TRAINING, "optax", "losses")
def losses() -> Use:
    def fn(x: jax.Array, y: jax.Array) -> Any:
        ctc = optax.ctc_loss(x[None], jnp.zeros((1, 4)), jnp.array([[1, 2]]), jnp.zeros((1, 2)))
        targets = jax.nn.softmax(y)
        return (
            ctc,
            optax.huber_loss(x, y),
            optax.sigmoid_focal_loss(x, targets),
            optax.kl_divergence(jax.nn.log_softmax(x), targets),
            optax.cosine_distance(x, y),
        )

    return Use(fn, ("4 5", "4 5"))
