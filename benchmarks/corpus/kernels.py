"""Kernels, Gaussian processes and linear systems."""

from __future__ import annotations

import jax.numpy as jnp
import jax.scipy as jsp

from benchmarks.corpus.program import program


@program("n d", "m d")
def rbf_kernel(x, y):
    """The Gaussian kernel of all pairs, by broadcasting."""
    return jnp.exp(-0.5 * jnp.sum((x[:, None, :] - y[None, :, :]) ** 2, axis=-1))


@program("n", "m")
def product_kernel(x, y):
    """A product of two exponential kernels on a line."""
    d = jnp.abs(x[:, None] - y[None, :])
    return jnp.exp(-d) * jnp.exp(-0.5 * d * d)


@program("n n", "n m", "n", facts={"k": "positive definite"})
def gp_mean(k, cross, y):
    """The predictive mean of a Gaussian process as the formula reads."""
    return cross.T @ jnp.linalg.inv(k) @ y


@program("n n", "n", facts={"k": "positive definite"})
def gp_weights(k, y):
    """The weights of kernel ridge regression by a general solver."""
    return jnp.linalg.solve(k, y)


@program("n n", "n m", facts={"k": "positive definite"})
def gp_covariance(k, cross):
    """The part of a Gaussian process' covariance that data explain."""
    return cross.T @ jnp.linalg.solve(k, cross)


@program("n n", "n", numerics="approximate")
def inverse_times_vector_system(a, b):
    """A linear system solved by an inverse."""
    return jnp.linalg.inv(a) @ b


@program("n n", "n m", numerics="approximate")
def inverse_times_matrix_system(a, b):
    """Many right sides solved by an inverse."""
    return jnp.linalg.inv(a) @ b


@program("n n", "n", facts={"l": "lower triangular invertible"})
def whitened_residuals(l, r):  # noqa: E741
    """Residuals whitened by a Cholesky factor, with a general solver."""
    return jnp.linalg.solve(l, r)


@program("n n", "n m", facts={"l": "lower triangular invertible"})
def whitened_features(l, x):  # noqa: E741
    """Features whitened by a Cholesky factor, with a general solver."""
    return jnp.linalg.solve(l, x)


@program("n n", "n", facts={"r": "upper triangular"})
def back_substitution(r, b):
    """The second half of QR least squares, with a general solver."""
    return jnp.linalg.solve(r, b)


@program("n n", "n m", facts={"r": "upper triangular"})
def back_substitution_of_many(r, b):
    """QR least squares for many targets, with a general solver."""
    return jnp.linalg.solve(r, b)


@program("n n", "n", facts={"d": "diagonal invertible"})
def preconditioned_residual(d, r):
    """A Jacobi preconditioner, kept as a matrix, applied to a residual."""
    return jnp.linalg.solve(d, r)


@program("n n", "n", facts={"q": "orthogonal"}, numerics="approximate")
def rotated_back(q, x):
    """A rotation undone by a solver."""
    return jnp.linalg.solve(q, x)


@program("n n", "n n", facts={"q": "orthogonal"}, numerics="approximate")
def change_of_basis(q, a):
    """A matrix in another orthonormal basis, with an inverse, and the check of the basis."""
    return jnp.linalg.inv(q) @ a @ q, q @ q.T, q.T @ q, jnp.linalg.inv(q)


@program("n n", facts={"s": "positive definite"})
def cholesky_check(s):
    """A covariance put together again from its Cholesky factor."""
    factor = jnp.linalg.cholesky(s)
    return factor @ factor.T


@program("n n", facts={"d": "positive definite diagonal"})
def independent_noise_factor(d):
    """The Cholesky factor of independent noise."""
    return jnp.linalg.cholesky(d)


@program("n n", "n", facts={"l": "lower triangular"})
def sampled_gaussian(l, z):  # noqa: E741
    """A Gaussian sample from a factor of which the lower triangle is taken."""
    return jnp.tril(l) @ z


@program("n n", facts={"r": "upper triangular"})
def log_determinant_of_factor(r):
    """The log determinant from an upper factor, its triangle taken first."""
    return 2 * jnp.sum(jnp.log(jnp.abs(jnp.diag(jnp.triu(r))))), jnp.triu(r)


@program("n n", "n", facts={"k": "positive definite"})
def gp_log_likelihood(k, y):
    """The log marginal likelihood of a Gaussian process, by Cholesky."""
    factor = jsp.linalg.cho_factor(k, lower=True)
    alpha = jsp.linalg.cho_solve(factor, y)
    return -0.5 * y @ alpha - jnp.sum(jnp.log(jnp.diag(factor[0])))


@program("m n", "p q")
def adjoint_gates(a, b):
    """The adjoint of a real gate on two registers, and how many paths a Kronecker graph has."""
    return jnp.kron(a, b).T, jnp.sum(jnp.kron(a, b))


@program("n d", "n", "", numerics="approximate", facts={"alpha": "positive"})
def ridge_regression(x, y, alpha):
    """Ridge regression by the normal equations."""
    gram = x.T @ x + alpha * jnp.eye(x.shape[1])
    return jnp.linalg.solve(gram, x.T @ y)


@program("n n", "n k", "n", numerics="approximate", facts={"a": "diagonal positive definite"})
def woodbury(a, u, b):
    """A diagonal plus low rank system, solved without its structure."""
    return jnp.linalg.solve(a + u @ u.T, b)


@program("n n", "n", facts={"s": "symmetric"})
def symmetrized_form(s, x):
    """A quadratic form, its matrix made symmetric first."""
    s = (s + s.T) / 2
    return x @ s @ x, s.T @ x
