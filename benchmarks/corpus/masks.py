"""Booleans, masks, comparisons and choices."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.corpus.program import program


@program("n s @ bool", "n s @ bool")
def valid_positions(padding, banned):
    """Positions that are neither padding nor banned, and rows in which all or any are."""
    valid = ~padding & ~banned
    return valid, jnp.all(~padding, axis=1), jnp.any(padding, axis=1) | jnp.any(banned, axis=1)


@program("n d", "n d", "n d @ bool")
def masked_update(old, new, mask):
    """An update where a mask is off, and the same mask asked twice."""
    return jnp.where(~mask, new, old), jnp.where(mask, jnp.where(mask, new, 0.0), old)


@program("n d", "n d", "n d", "n d @ bool")
def nested_choice(a, b, c, mask):
    """A choice within the other branch of the same choice, and one between equals."""
    return jnp.where(mask, a, jnp.where(mask, b, c)), jnp.where(mask, a, a)


@program("n d", "n d", "n d @ bool")
def dropout_gain(x, gain, keep):
    """A gain where the mask is on, one elsewhere."""
    return jnp.where(keep, gain, 1.0) * x


@program("n", "n")
def comparisons(x, y):
    """Comparisons in the other direction, and their denials."""
    return x > y, x >= y, ~(x == y), ~(~(x < y))


@program("n @ bool", "n @ bool")
def repeated_conditions(a, b):
    """A condition asked twice over."""
    return (a & a) | b, (a & b) | (a & b)


@program("n", "n", facts={"x": "positive finite"})
def safe_division(y, x):
    """A division guarded against zero, where the divisor is known to be positive."""
    return jnp.where(x != 0, y / x, 0.0), jnp.where(x > 0, y / x, 0.0), jnp.where(x <= 0, 0.0, y)


@program("n", facts={"x": "nonnegative finite"})
def guarded_root(x):
    """A root guarded against negative numbers, where there are none."""
    return jnp.where(x >= 0, jnp.sqrt(x), 0.0), jnp.where(x < 0, 0.0, x), jnp.sqrt(jnp.maximum(x, 0.0))


@program("n", facts={"x": "nonnegative"})
def limits_of_counts(x):
    """What is not negative, limited at zero from both sides."""
    return jnp.minimum(x, 0.0), jax.nn.relu(x)


@program("n", facts={"x": "finite"})
def nan_guard(x):
    """Guards against NaN and infinity for what is finite."""
    return jnp.where(jnp.isnan(x), 0.0, x), jnp.where(jnp.isfinite(x), x, 0.0), jnp.nan_to_num(x)


@program("n", "n", facts={"x": "nonzero finite"})
def zero_test(x, y):
    """A test for zero where there is none, and differences and quotients of a value and itself."""
    return jnp.where(x == 0, y, x), x - x, x / x, x * 0.0


@program("n", facts={"x": "positive"})
def sign_of_prices(x):
    """The sign of what is positive."""
    return jnp.sign(x) * x


@program("n d", "n 1", "")
def masked_columns(x, column, fill):
    """A column and a number stretched over a matrix by a causal choice."""
    mask = jnp.tril(jnp.ones(x.shape, dtype=bool))
    column = jnp.broadcast_to(column, x.shape)
    return jnp.where(mask, column, x), jnp.where(mask, column, jnp.broadcast_to(fill, x.shape))


@program("n d", "n d @ bool", "")
def fill_values(x, mask, fill):
    """A fill value stretched to the shape of what it fills."""
    return jnp.where(mask, x, jnp.full_like(x, fill)), jnp.where(mask, jnp.full_like(x, fill), x)


@program("n d", "")
def constants_in_quotients(x, y):
    """Quotients by a constant and by a root."""
    return x / 3.0, 1 / jnp.sqrt(y), x**2, x**0.5, x * jax.nn.sigmoid(x)
