"""Graph networks."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.corpus.program import program


@program("n n", "n f", "f h")
def graph_convolution(adjacency, x, w):
    """A graph convolution (Kipf and Welling, 2017), degrees as a diagonal matrix."""
    degree = jnp.diag(1.0 / jnp.sqrt(adjacency.sum(axis=1)))
    return jax.nn.relu(degree @ adjacency @ degree @ x @ w)


@program("n n", "n f", "f h")
def random_walk_layer(adjacency, x, w):
    """Neighbours averaged: rows of the adjacency matrix divided by degrees."""
    walk = adjacency / adjacency.sum(axis=1, keepdims=True)
    return walk @ x @ w


@program("n n", "n f", "f h")
def degree_scaled_layer(adjacency, x, w):
    """Neighbours averaged by a multiplication with inverse degrees."""
    inverse = 1.0 / adjacency.sum(axis=1, keepdims=True)
    return (inverse * adjacency) @ x @ w


@program("e f", "e @ int32", "n")
def segment_sum_by_one_hot(messages, targets, nodes):
    """Messages summed at their targets by a one-hot matrix."""
    incidence = jax.nn.one_hot(targets, nodes.shape[0])
    return incidence.T @ messages


@program("n n", "n")
def pagerank_step(transition, rank):
    """Two steps of PageRank with damping."""
    rank = 0.85 * (rank @ transition) + 0.15 / rank.shape[0]
    return 0.85 * (rank @ transition) + 0.15 / rank.shape[0]


@program("n n", "n f")
def three_hops(adjacency, x):
    """Features after three hops: the power of the adjacency matrix first."""
    return (adjacency @ adjacency @ adjacency) @ x


@program("n n", "n")
def katz_scores(adjacency, start):
    """Walks of length three from a start, matrix by matrix."""
    return (adjacency @ adjacency) @ (adjacency @ start)


@program("n n")
def triangle_count(adjacency):
    """The number of triangles: the trace of the third power."""
    return jnp.trace(adjacency @ adjacency @ adjacency) / 6


@program("n n", "n f")
def laplacian_smoothness(adjacency, x):
    """The Dirichlet energy trace(X' L X) of features on a graph."""
    laplacian = jnp.diag(adjacency.sum(axis=1)) - adjacency
    return jnp.trace(x.T @ laplacian @ x)


@program("n n", "n f", facts={"d": "diagonal"})
def degree_matrix_products(d, x):
    """A degree matrix that is given as such, on both sides and on one vector."""
    return d @ x, x.T @ d, d @ x[:, 0]


@program("n f", "n f", "f h", "f h")
def graphsage(x, neighbours, w_self, w_neighbours):
    """GraphSAGE: own and neighbours' features, each with a weight."""
    return jax.nn.relu(x @ w_self + neighbours @ w_neighbours)


@program("n 32", "n 16", "48 h")
def message_of_joined_features(x, y, w):
    """An edge network on joined features."""
    return jax.nn.relu(jnp.concatenate([x, y], axis=-1) @ w)


@program("n n", "n f", facts={"a": "symmetric"})
def undirected_messages(a, x):
    """Messages along edges in both directions of an undirected graph."""
    return a.T @ x


@program("n n", "n n", "n n")
def label_alignment(a, b, c):
    """tr(A B'), the inner product of two graphs, and a trace of three factors."""
    return jnp.trace(a @ b.T), jnp.trace((a @ b) @ c), jnp.trace(a.T)


@program("n f", "n")
def rank_one_graph(x, v):
    """A graph of rank one applied to features."""
    return jnp.outer(v, v) @ x
