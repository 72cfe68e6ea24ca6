"""Control and Kalman filters."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.corpus.program import program


@program("n", "n n", "n n", "n n", facts={"p": "symmetric"})
def kalman_predict(x, p, f, q):
    """The prediction of a Kalman filter."""
    return f @ x, f @ p @ f.T + q


@program("n", "n n", "k n", "k k", "k", facts={"p": "symmetric", "r": "positive definite"})
def kalman_update(x, p, h, r, z):
    """The update of a Kalman filter as textbooks write it, with an inverse."""
    s = h @ p @ h.T + r
    gain = p @ h.T @ jnp.linalg.inv(s)
    return x + gain @ (z - h @ x), (jnp.eye(x.shape[0]) - gain @ h) @ p


@program("n", "n n", "n n")
def random_walk_predict(x, p, q):
    """The prediction for a random walk, whose transition is the identity."""
    f = jnp.eye(x.shape[0])
    return f @ x, f @ p @ f.T + q


@program("n n", "n k", "k n", "n m")
def closed_loop_ensemble(a, b, k, x):
    """Many states under feedback: (A + B K) X."""
    return (a + b @ k) @ x


@program("t n", "n n", "n")
def linear_rollout(u, a, x0):
    """A linear system driven by inputs, step by step."""

    def step(x, u_t):
        x = a @ x + u_t
        return x, x

    return jax.lax.scan(step, x0, u)[1]


@program("n n", "n n", "n k", "k k", facts={"p": "symmetric", "r": "positive definite"})
def lqr_riccati(a, p, b, r):
    """One step of the Riccati recursion."""
    gain = jnp.linalg.solve(r + b.T @ p @ b, b.T @ p @ a)
    return a.T @ p @ a - a.T @ p @ b @ gain


@program("n", "n n", "k", "k k")
def quadratic_cost(x, q, u, r):
    """The cost of a state and an input."""
    return x @ q @ x + u @ r @ u


@program("n", "", "", facts={"low": "finite", "high": "finite"})
def saturated_input(u, low, high):
    """An input between its limits, limited once more by the actuator."""
    u = jnp.minimum(jnp.maximum(u, low), high)
    return jnp.clip(jnp.clip(u, -1.0, 1.0), -1.0, 1.0), u


@program("n n", "n", "n")
def householder(a, v, x):
    """A reflection of a matrix and of a vector, by its matrix."""
    reflection = jnp.eye(v.shape[0]) - 2.0 * jnp.outer(v, v)
    return reflection @ a, reflection @ x


@program("n n", "n", "")
def deflated_power_step(a, v, value):
    """A power iteration on what is left of a matrix when an eigenpair is taken out."""
    x = jnp.ones(v.shape[0])
    return (a - value * jnp.outer(v, v)) @ x, jnp.outer(v, v) @ x


@program("m n", "n m", "m")
def gauss_newton_product(j, g, v):
    """The product of a Gauss-Newton matrix and a vector."""
    return (j @ g) @ v, v @ (j @ g)


@program("n", "m", "m n")
def sensor_model(x, noise, h):
    """Readings of a sensor, stacked as one column, and of one sample as a row."""
    return h @ x[:, None] + noise[:, None], x[None, :] @ h.T


@program("t b", "t b")
def rewards_to_go(rewards, values):
    """By how much what is still to come exceeds what was expected, as self-imitation weighs steps."""
    to_go = jnp.cumsum(rewards[::-1], axis=0)[::-1]
    return to_go, jnp.maximum(to_go - values, 0.0)


@program("t n", "t n")
def pid_error(reference, measured):
    """Terms of a PID controller on a recorded run."""
    error = reference - measured
    integral = jnp.cumsum(error, axis=0)
    derivative = jnp.diff(error, axis=0)
    return error + 0.1 * integral, derivative


@program("t b 64", "128 128", "64 128", at={"t": 100, "b": 4})
def elman_network(x, w, u):
    """A recurrent network (Elman, 1990), its input projected step by step."""

    def step(h, row):
        h = jnp.tanh(h @ w + row @ u)
        return h, h

    return jax.lax.scan(step, jnp.zeros((x.shape[1], w.shape[0])), x)


@program("n 256", "n 256", "256 256", at={"n": 512})
def antisymmetric_rnn_step(h, x, w):
    """A step of an antisymmetric recurrent network (Chang et al., 2019): h (W - W') is not taken together."""
    return h + 0.1 * jnp.tanh(h @ w + x - h @ w.T)


@program("n n", "n n", "2 n", "n")
def elman_cell_over_a_pair(w, v, pair, h):
    """A recurrent cell over two inputs, as a detector of voice runs it on each short piece of sound."""

    def step(h, x):
        h = jnp.tanh(w @ x + v @ h)
        return h, h

    return jax.lax.scan(step, h, pair)


@program("t b")
def still_to_come(rewards):
    """What is still to come, as the total without what has been, its own step included."""
    to_come = jnp.sum(rewards, axis=0, keepdims=True) - jnp.cumsum(rewards, axis=0) + rewards
    return jnp.abs(to_come)
