"""Recommenders, embeddings and adapters."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.corpus.program import program


@program({"w": "64 128", "a": "64 4", "b": "4 128", "m": "128"}, "n 64", weights=("p",))
def dora(p, x):
    """A weight-decomposed adapter: directions normalised, magnitudes learned."""
    w = p["w"] + p["a"] @ p["b"]
    return (x @ (w / jnp.sqrt(jnp.sum(w * w, axis=0, keepdims=True)))) * p["m"]


@program("v d", "d e", "n @ int32")
def projected_embeddings(table, w, ids):
    """Rows of an embedding table that was projected as a whole."""
    return (table @ w)[ids]


@program("n @ int32", "100 d")
def embedding_by_one_hot(ids, table):
    """An embedding lookup as a one-hot product."""
    return jax.nn.one_hot(ids, 100) @ table


@program("n f", "f k")
def factorization_machine(x, v):
    """The pairwise term of a factorization machine (Rendle, 2010)."""
    return 0.5 * jnp.sum((x @ v) ** 2 - (x**2) @ (v**2), axis=1)


@program("u k", "i k", "n @ int32", "n @ int32")
def matrix_factorization_scores(users, items, user, item):
    """Scores of pairs of users and items."""
    return jnp.sum(users[user] * items[item], axis=1)


@program("u k", "i k", "n @ int32")
def scores_of_some_users(users, items, user):
    """Scores of all items for some users, cut out of those for all."""
    return (users @ items.T)[user]


@program("n 32", "n 32", "64 h", "h")
def neural_collaborative_filtering(user, item, w, v):
    """Users and items joined, through a hidden layer."""
    return jax.nn.relu(jnp.concatenate([user, item], axis=1) @ w) @ v


@program("n d", "d d")
def cross_layer(x, w):
    """A cross layer of a deep and cross network."""
    return x * (x @ w) + x


@program("n d", "n d", "d")
def two_tower(user, item, w):
    """Two towers: normalised embeddings, similarities of pairs, a bias."""
    user = user / jnp.linalg.norm(user, axis=-1, keepdims=True)
    item = item / jnp.linalg.norm(item, axis=-1, keepdims=True)
    return jnp.sum(user * item * w, axis=-1)


@program("u i", "u 1", "i")
def centered_ratings(ratings, mean, bias):
    """Ratings without the means of users and items."""
    return ratings - mean - bias[None, :]


@program("u k", "k", "")
def popularity(users, item, scale):
    """The scores of one item for every user, scaled, and their total."""
    return jnp.sum(users * item, axis=-1) * scale, jnp.sum(users @ item)


@program("u k", "i k", "i")
def total_scores(users, items, weights):
    """The weighted total of all scores of each user, and of everything."""
    return (users @ items.T) @ weights, jnp.sum(users @ items.T)
