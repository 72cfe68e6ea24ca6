"""Training steps with optax: losses, and optimizers that each do their own arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.library_cases.case import Case, Size, Use, case, integers, normal

TRAINING: list[Case] = []


def scores(params: Any, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ params["a"]) @ params["b"]


def cross_entropy(params: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(scores(params, x), labels).mean()


def of_optimizer(
    size: Size, optimizer: optax.GradientTransformationExtraArgs, loss: Callable[..., Any] = cross_entropy
) -> Use:
    """A training step: new parameters and state, and the loss. All moments are 0.1 before."""

    def step(params: Any, state: Any, x: jax.Array, labels: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x, labels)
        extra = {"value": value, "grad": grads, "value_fn": lambda p: loss(p, x, labels)}
        updates, state = optax.with_extra_args_support(optimizer).update(grads, state, params, **extra)
        return optax.apply_updates(params, updates), state, value

    inputs, hidden, classes = size((6, 8, 5), (784, 512, 10))
    params = {"a": size(0.5, 0.05) * normal(1, inputs, hidden), "b": size(0.5, 0.05) * normal(2, hidden, classes)}
    shapes = jax.eval_shape(optimizer.init, params)
    state = jax.tree.map(lambda s: jnp.full(s.shape, 0.1 if s.dtype == jnp.float32 else 0, s.dtype), shapes)
    labels = size("b @ int32", integers(3, classes, 128))
    return Use(step, (params, state, size("b 6", "128 784"), labels), batched=2)


@case(TRAINING, "optax", "adamw, clipped, with a schedule")
def adamw(size: Size) -> Use:
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 5, 50)
    return of_optimizer(size, optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule)))


@case(TRAINING, "optax", "lion")
def lion(size: Size) -> Use:
    return of_optimizer(size, optax.lion(1e-3))


@case(TRAINING, "optax", "adafactor")
def adafactor(size: Size) -> Use:
    return of_optimizer(size, optax.adafactor(1e-2, min_dim_size_to_factor=4))


@case(TRAINING, "optax", "muon")
def muon(size: Size) -> Use:
    return of_optimizer(size, optax.contrib.muon(1e-2))


@case(TRAINING, "optax", "lamb, averaged over steps")
def lamb(size: Size) -> Use:
    return of_optimizer(size, optax.MultiSteps(optax.lamb(1e-2), 2))


@case(TRAINING, "optax", "l-bfgs")
def lbfgs(size: Size) -> Use:
    return of_optimizer(size, optax.lbfgs(1e-1, memory_size=3, linesearch=None))


@case(TRAINING, "optax", "losses")
def losses(size: Size) -> Use:
    steps, classes, text = size((4, 5, [1, 2]), (256, 1000, list(range(1, 33))))

    def fn(x: jax.Array, y: jax.Array) -> Any:
        ctc = optax.ctc_loss(x[None], jnp.zeros((1, steps)), jnp.array([text]), jnp.zeros((1, len(text))))
        targets = jax.nn.softmax(y)
        return (
            ctc,
            optax.huber_loss(x, y),
            optax.sigmoid_focal_loss(x, targets),
            optax.kl_divergence(jax.nn.log_softmax(x), targets),
            optax.cosine_distance(x, y),
        )

    return Use(fn, (f"{steps} {classes}",) * 2)
