"""Linear algebra."""

from __future__ import annotations

import jax.numpy as jnp

from benchmarks.corpus.program import program


@program("n k", "k n")
def trace_of_a_product(a, b):
    """The trace of a product."""
    return jnp.trace(a @ b)


@program("m n", "n k", "k l", "l p")
def matrix_chain(a, b, c, d):
    """A chain of four products, left to right."""
    return a @ b @ c @ d


@program("m r", "n r")
def norm_of_low_rank(u, v):
    """The squared Frobenius norm of a low-rank matrix."""
    return jnp.sum((u @ v.T) ** 2)


@program("n k", "k n")
def diagonal_of_a_product(a, b):
    """The diagonal of a product."""
    return jnp.diag(a @ b), jnp.diagonal(a @ b)


@program("m k", "n k")
def product_of_transposes(a, b):
    """A product of transposes, transposed."""
    return (b @ a.T).T


@program("4096 8", "4096 4")
def cross_moments(x, y):
    """The products of two sets of features, over thousands of samples."""
    return jnp.tanh(x).T @ y


@program("n", "m")
def sum_of_outer_product(x, y):
    """The sum over an outer product."""
    return jnp.outer(x, y).sum()


@program("n", "n m", "m")
def bilinear_form(x, a, y):
    """A bilinear form, as the sum of a matrix under an outer product."""
    return jnp.sum(jnp.outer(x, y) * a)


@program("n", "m")
def outer_by_matmul(x, y):
    """An outer product as a product of a column and a row."""
    return x[:, None] @ y[None, :]


@program("m n", "n", "n n")
def svd_reconstruction(u, s, vt):
    """A matrix put together from its singular values."""
    return u @ jnp.diag(s) @ vt


@program("n n", "n", "n")
def spectral_function(v, values, x):
    """A function of a matrix through its eigenvectors, applied to a vector."""
    return v @ jnp.diag(jnp.exp(values)) @ v.T @ x, jnp.diag(values) @ x


@program("m n", "m n")
def frobenius_inner(a, b):
    """The Frobenius inner product, entry by entry and by the trace."""
    return jnp.sum(a * b), jnp.trace(a.T @ b), jnp.linalg.norm(a)


@program("n d", "d", "n")
def weighted_design(x, beta, w):
    """A weighted design matrix times coefficients (IRLS)."""
    return (w[:, None] * x) @ beta, jnp.diag(w) @ (x @ beta)


@program("n d", "d")
def linear_model_by_broadcast(x, w):
    """A linear model by broadcasting and a sum."""
    return (x * w).sum(axis=-1)


@program("m n", "k n", "m p", "k p")
def stacked_blocks(a, b, c, d):
    """Blocks joined after being transposed."""
    return jnp.concatenate([a.T, b.T], axis=1), jnp.concatenate([c.T, d.T], axis=1)


@program("n m", "n k")
def columns_stacked(a, b):
    """Transposed blocks stacked."""
    return jnp.concatenate([a.T, b.T], axis=0), jnp.pad(a.T, ((1, 0), (0, 2)))


@program("m k", "k n")
def leading_rows(a, b):
    """The first rows and the first columns of a product."""
    return (a @ b)[:4], (a @ b)[:, :4]


@program("m k", "k n", "r @ int32")
def rows_of_a_product(a, b, rows):
    """Rows picked from a product."""
    return (a @ b)[rows]


@program("m k", "m k", "k n", "k n", "")
def block_sums(a, c, b, d, scale):
    """Sums of products with what they have in common not taken out."""
    return a @ b + c @ b, a @ b - a @ d, a @ b + a @ d, (a * scale) @ b


@program("m n", "n")
def symmetric_normal_equations(a, x):
    """A normal matrix times a vector; the matrix is symmetric whichever way it is written."""
    gram = a.T @ a
    return (gram + gram.T) / 2 @ x, gram.T


@program("b n")
def volumes_of_boxes(edges):
    """Logarithms of the volumes that are spanned by signed edges."""
    return jnp.log(jnp.prod(jnp.abs(edges), axis=1))
