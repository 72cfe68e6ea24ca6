"""Sums of products for `benchmarks.patterns --set sums`: in matrix, einsum, broadcast, mask and one-hot spellings.

The sizes besides n are such that at n = 512 a program as written takes about 1 to 15 ms on two cores. Where the
fastest form by hand depends on the machine, there are several.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.cases import Case, Form

CLASSES = 512  # at least n, below which labels are drawn

# -- traces and diagonals


def trace_of_three(a, b, c):
    return jnp.trace(a @ b @ c)


def traces_of_products(a, b):
    return jnp.trace(a @ b, axis1=1, axis2=2)


def diagonal_of_product(a, b):
    return jnp.diagonal(a @ b)


def predictive_variance(x, s):
    return jnp.diagonal(x @ s @ x.T)


def trace_by_mask(a, b):
    row = jnp.arange(a.shape[0])
    return jnp.sum(jnp.where(row[:, None] == row, a @ b, 0.0))


def hutchinson_trace(a, z):
    return jnp.trace(a @ (z @ z.T)) / z.shape[1]


# -- sums over everything


def sum_of_three(a, b, c):
    return jnp.sum(a @ b @ c)


def mean_of_gram(x):
    return jnp.mean(x @ x.T)


def weighted_sum_of_product(u, a, b, v):
    return jnp.sum(u[:, None] * (a @ b) * v)


def squared_norm_of_low_rank(u, v):
    return jnp.sum(jnp.square(u @ v.T))


def bilinear_form(u, a, v):
    return jnp.sum(u[:, None] * v * a)


# -- chains in a bad order


def einsum_of_four(a, b, c, v):
    return jnp.einsum("ij,jk,kl,l->i", a, b, c, v, optimize=[(0, 1), (0, 2), (0, 1)])


def einsum_of_five(a, b, c, d, e):
    return jnp.einsum("ab,bc,cd,de,ef->af", a, b, c, d, e, optimize=[(0, 1), (0, 3), (0, 2), (0, 1)])


def third_power_times_vector(a, v):
    return (a @ a @ a) @ v


def linear_attention_heads(q, k, v):
    return jnp.einsum("bhqk,bhkv->bhqv", jnp.einsum("bhqd,bhkd->bhqk", q, k), v)


def bilinear_scores_times_vector(q, w, k, v):
    return jnp.einsum("bqd,de,bke->bqk", q, w, k) @ v


def mean_scores(q, k):
    return jnp.mean(q @ jnp.swapaxes(k, 1, 2), -1)


# -- broadcast products


def broadcast_product(a, b):
    return jnp.sum(a[:, :, None] * b[None], 1)


def broadcast_scores_times_vector(a, b, v):
    return jnp.sum(a[:, None, :] * b[None], -1) @ v


def logistic_hessian(x, p):
    return jnp.sum((p * (1 - p))[:, None, None] * x[:, :, None] * x[:, None, :], 0)


def quadratic_forms(x, a):
    return jnp.sum(x[:, :, None] * x[:, None, :] * a, (1, 2))


def squared_products(x, y):
    return jnp.sum(jnp.square(x[:, None, :] * y[None]), -1)


def expected_value(p, f, x):
    return jnp.sum(p[:, None] * f[:, None] * x, 0)


# -- gradients with outer products


def linear_gradient(x, w, y):
    residual = x @ w - y
    return jnp.mean(residual[:, :, None] * x[:, None, :], 0)


def logistic_gradient(x, w, labels):
    residual = jax.nn.softmax(x @ w) - jax.nn.one_hot(labels, w.shape[1])
    return jnp.mean(x[:, :, None] * residual[:, None, :], 0)


# -- common factors


def two_factors(a, b, d, c):
    return a @ b @ c + a @ d @ c


def common_elementwise(x, a, b, c):
    return x * a + x * b * c


def matrix_times_two(a, x, y):
    return a @ x + a @ y


def difference_in_two_spellings(a, b, c):
    return jnp.einsum("ij,jk->ik", a, b) - (b.T @ c.T).T


def gram_of_sum(a, b):
    return a @ a.T + a @ b.T + b @ a.T + b @ b.T


def mixture_of_products(p, x, w):
    return p[0] * (x @ w[0]) + p[1] * (x @ w[1]) + p[2] * (x @ w[2])


# -- low rank, scaled, centred


def rank_one_removed(w, u, v, x):
    return (w - jnp.outer(u, v)) @ x


def scaled_both_sides(d, a, e, x):
    return jnp.diag(d) @ a @ jnp.diag(e) @ x


def centred_product(x, w):
    return (x - x.mean(0)) @ w


def factor_covariance(d, u, x):
    return (jnp.diag(d) + u @ u.T) @ x


def kron_times_vector(a, b, x):
    return jnp.kron(a, b) @ x.reshape(-1)


def kron_sum_times_vector(a, b, x):
    return (jnp.kron(a, jnp.eye(b.shape[0])) + jnp.kron(jnp.eye(a.shape[0]), b)) @ x.reshape(-1)


# -- one-hot rows and slices


def embedding(labels, table):
    return jax.nn.one_hot(labels, table.shape[0]) @ table


def picked_entries(labels, scores):
    return jnp.sum(jax.nn.one_hot(labels, scores.shape[1]) * scores)


def confusion_counts(labels, found):
    return jax.nn.one_hot(labels, CLASSES).T @ jax.nn.one_hot(found, CLASSES)


def masked_rows_summed(a, b):
    return jnp.sum(jnp.where((jnp.arange(a.shape[0]) < 100)[:, None], a @ b, 0.0), 0)


def one_column_of_three(a, b, c):
    return (a @ b @ c)[:, 3]


def block_of_product(a, b):
    return (a @ b)[:16, :16]


def slice_summed(a, b):
    return jnp.sum((a @ b)[:16], 0)


# -- hand forms that need more than a line


def _residual(x, w, labels):
    return jax.nn.softmax(x @ w) - jax.nn.one_hot(labels, w.shape[1])


def _picked(labels, scores):
    return jnp.take_along_axis(scores, labels[:, None], 1).sum()


def _centred_after(x, w):
    y = x @ w
    return y - y.mean(0)


def _mean_of_gram(x):
    s = x.sum(0)
    return s @ s / x.shape[0] ** 2


_SQUARES = ("n n",) * 4


CASES = [
    Case(
        "trace(A@B@C)",
        trace_of_three,
        _SQUARES[:3],
        {
            "sum((A@B)*C')": Form(lambda a, b, c: jnp.sum((a @ b) * c.T)),
            "sum((A@B)'*C)": Form(lambda a, b, c: jnp.sum((a @ b).T * c)),
            "sum(A'*(B@C))": Form(lambda a, b, c: jnp.sum(a.T * (b @ c))),
        },
    ),
    Case(
        "traces of 4 products",
        traces_of_products,
        ("4 n n", "4 n n"),
        {
            "sum(A*B')": Form(lambda a, b: jnp.sum(a * jnp.swapaxes(b, 1, 2), (1, 2))),
            "einsum": Form(lambda a, b: jnp.einsum("bij,bji->b", a, b)),
        },
    ),
    Case(
        "diagonal(A@B)",
        diagonal_of_product,
        _SQUARES[:2],
        {
            "sum(A*B', 1)": Form(lambda a, b: jnp.sum(a * b.T, 1)),
            "sum(A'*B, 0)": Form(lambda a, b: jnp.sum(a.T * b, 0)),
            "einsum": Form(lambda a, b: jnp.einsum("ij,ji->i", a, b)),
        },
    ),
    Case(
        "diagonal(X@S@X')",
        predictive_variance,
        ("n n", "n n"),
        {"sum((X@S)*X, 1)": Form(lambda x, s: jnp.sum((x @ s) * x, 1))},
    ),
    Case(
        "trace(A@B) by a mask",
        trace_by_mask,
        _SQUARES[:2],
        {
            "sum(A*B')": Form(lambda a, b: jnp.sum(a * b.T)),
            "sum(A'*B)": Form(lambda a, b: jnp.sum(a.T * b)),
        },
    ),
    Case(
        "Hutchinson, trace(A@Z@Z')/k",
        hutchinson_trace,
        ("n n", "n 32"),
        {
            "sum((A@Z)*Z)/k": Form(lambda a, z: jnp.sum((a @ z) * z) / z.shape[1]),
            "sum((Z'@A)*Z')/k": Form(lambda a, z: jnp.sum((z.T @ a) * z.T) / z.shape[1]),
        },
    ),
    Case(
        "sum(A@B@C)",
        sum_of_three,
        _SQUARES[:3],
        {
            "sum(A, 0)@B@sum(C, 1)": Form(lambda a, b, c: (a.sum(0) @ b) @ c.sum(1)),
            "from the right": Form(lambda a, b, c: a.sum(0) @ (b @ c.sum(1))),
        },
    ),
    Case("mean(X@X')", mean_of_gram, ("1024 n",), {"s = sum(X, 0), s@s/n^2": Form(_mean_of_gram)}),
    Case(
        "sum(u[:,None]*(A@B)*v)",
        weighted_sum_of_product,
        ("n", "n n", "n n", "n"),
        {"(u@A)@(B@v)": Form(lambda u, a, b, v: (u @ a) @ (b @ v))},
    ),
    Case(
        "sum((U@V')^2)",
        squared_norm_of_low_rank,
        ("n 16", "8192 16"),
        {"sum((U'@U)*(V'@V))": Form(lambda u, v: jnp.sum((u.T @ u) * (v.T @ v)))},
    ),
    Case(
        "sum(u[:,None]*v*A)",
        bilinear_form,
        ("n", "n 8192", "8192"),
        {"u@(A@v)": Form(lambda u, a, v: u @ (a @ v)), "(u@A)@v": Form(lambda u, a, v: (u @ a) @ v)},
    ),
    Case(
        "einsum ij,jk,kl,l->i",
        einsum_of_four,
        (*_SQUARES[:3], "n"),
        {"A@(B@(C@v))": Form(lambda a, b, c, v: a @ (b @ (c @ v)))},
    ),
    Case(
        "einsum ab,bc,cd,de,ef->af",
        einsum_of_five,
        ("n n", "n n", "n n", "n 8", "8 n"),
        {"(A(B(CD)))E": Form(lambda a, b, c, d, e: (a @ (b @ (c @ d))) @ e)},
    ),
    Case("(A@A@A)@v", third_power_times_vector, ("n n", "n"), {"A@(A@(A@v))": Form(lambda a, v: a @ (a @ (a @ v)))}),
    Case(
        "einsum (Q@K')@V, heads",
        linear_attention_heads,
        ("2 4 n 32",) * 3,
        {"Q@(K'@V)": Form(lambda q, k, v: q @ (jnp.swapaxes(k, 2, 3) @ v))},
    ),
    Case(
        "einsum bqd,de,bke->bqk, @v",
        bilinear_scores_times_vector,
        ("4 n 64", "64 64", "4 n 64", "n"),
        {
            "Q@(W@(K'@v))": Form(lambda q, w, k, v: jnp.einsum("bqd,bd->bq", q, jnp.einsum("bke,k->be", k, v) @ w.T)),
            "Q@(W@(K'@v)), matmuls": Form(lambda q, w, k, v: (q @ ((v @ k) @ w.T)[:, :, None])[:, :, 0]),
        },
    ),
    Case(
        "mean(Q@K', -1)",
        mean_scores,
        ("8 n 64", "8 n 64"),
        {
            "Q@mean(K)": Form(lambda q, k: (q @ k.mean(1)[:, :, None])[:, :, 0]),
            "sum(Q*mean(K))": Form(lambda q, k: (q * k.mean(1)[:, None]).sum(-1)),
        },
    ),
    Case(
        "sum(A[:,:,None]*B[None], 1)",
        broadcast_product,
        _SQUARES[:2],
        {"A@B": Form(lambda a, b: a @ b)},
    ),
    Case(
        "sum(A[:,None]*B[None], -1)@v",
        broadcast_scores_times_vector,
        ("1024 256", "n 256", "n"),
        {"A@(B'@v)": Form(lambda a, b, v: a @ (b.T @ v)), "A@(v@B)": Form(lambda a, b, v: a @ (v @ b))},
    ),
    Case(
        "sum of p(1-p) outer(x, x)",
        logistic_hessian,
        ("1024 n", "1024"),
        {
            "X'@(p(1-p)*X)": Form(lambda x, p: x.T @ ((p * (1 - p))[:, None] * x)),
            "(p(1-p)*X)'@X": Form(lambda x, p: ((p * (1 - p))[:, None] * x).T @ x),
        },
    ),
    Case(
        "x'Ax of all rows, broadcast",
        quadratic_forms,
        ("n 160", "160 160"),
        {
            "sum((X@A)*X, 1)": Form(lambda x, a: jnp.sum((x @ a) * x, 1)),
            "einsum": Form(lambda x, a: jnp.einsum("ni,ij,nj->n", x, a, x)),
        },
    ),
    Case(
        "sum((x[:,None]*y[None])^2, -1)",
        squared_products,
        ("1024 64", "n 64"),
        {"x^2@(y^2)'": Form(lambda x, y: jnp.square(x) @ jnp.square(y).T)},
    ),
    Case(
        "sum of p f x",
        expected_value,
        ("32768", "32768", "32768 n"),
        {
            "(p*f)@X": Form(lambda p, f, x: (p * f) @ x),
            "X'@(p*f)": Form(lambda p, f, x: x.T @ (p * f)),
            "sum((p*f)*X, 0)": Form(lambda p, f, x: jnp.sum((p * f)[:, None] * x, 0)),
        },
    ),
    Case(
        "gradient of linear regression",
        linear_gradient,
        ("8192 n", "n 16", "8192 16"),
        {
            "R'@X/n": Form(lambda x, w, y: (x @ w - y).T @ x / x.shape[0]),
            "(X'@R)'/n": Form(lambda x, w, y: (x.T @ (x @ w - y)).T / x.shape[0]),
        },
    ),
    Case(
        "gradient of logistic regression",
        logistic_gradient,
        ("1024 64", "64 n", "1024 @ int32"),
        {
            "X'@R/n": Form(lambda x, w, labels: x.T @ _residual(x, w, labels) / x.shape[0]),
            "(X/n)'@R": Form(lambda x, w, labels: (x / x.shape[0]).T @ _residual(x, w, labels)),
        },
    ),
    Case("A@B@C + A@D@C", two_factors, _SQUARES, {"A@(B+D)@C": Form(lambda a, b, d, c: a @ (b + d) @ c)}),
    Case(
        "x*a + x*b*c",
        common_elementwise,
        ("8192 n",) * 4,
        {"x*(a+b*c)": Form(lambda x, a, b, c: x * (a + b * c))},
    ),
    Case(
        "A@x + A@y",
        matrix_times_two,
        ("16384 n", "n", "n"),
        {"A@(x+y)": Form(lambda a, x, y: a @ (x + y))},
    ),
    Case(
        "einsum A@B - (B'@C')'",
        difference_in_two_spellings,
        _SQUARES[:3],
        {"(A-C)@B": Form(lambda a, b, c: (a - c) @ b)},
    ),
    Case(
        "A@A' + A@B' + B@A' + B@B'",
        gram_of_sum,
        ("n 256", "n 256"),
        {"(A+B)@(A+B)'": Form(lambda a, b: (a + b) @ (a + b).T)},
    ),
    Case(
        "sum of p[i]*(x@W[i])",
        mixture_of_products,
        ("3", "n n", "3 n n"),
        {
            "x@(sum of p[i]*W[i])": Form(lambda p, x, w: x @ (p[0] * w[0] + p[1] * w[1] + p[2] * w[2])),
            "x@einsum": Form(lambda p, x, w: x @ jnp.einsum("e,eij->ij", p, w)),
        },
    ),
    Case(
        "(W - u v')@X",
        rank_one_removed,
        ("8192 n", "8192", "n", "n 4"),
        {"W@X - u*(v@X)": Form(lambda w, u, v, x: w @ x - u[:, None] * (v @ x))},
    ),
    Case(
        "diag(d)@A@diag(e)@X",
        scaled_both_sides,
        ("n", "n n", "n", "n 16"),
        {"d*(A@(e*X))": Form(lambda d, a, e, x: d[:, None] * (a @ (e[:, None] * x)))},
    ),
    Case(
        "(X - mean(X))@W",
        centred_product,
        ("8192 n", "n 4"),
        {
            "X@W - mean(X@W)": Form(_centred_after),
            "X@W - mean(X)@W": Form(lambda x, w: x @ w - x.mean(0) @ w),
        },
    ),
    Case(
        "(diag(d) + U@U')@X",
        factor_covariance,
        ("n", "n 8", "n 256"),
        {"d*X + U@(U'@X)": Form(lambda d, u, x: d[:, None] * x + u @ (u.T @ x))},
    ),
    Case(
        "kron(A, B)@x",
        kron_times_vector,
        ("8 8", "128 n", "8 n"),
        {"A@X@B'": Form(lambda a, b, x: (a @ (x @ b.T)).reshape(-1))},
    ),
    Case(
        "(kron(A, I) + kron(I, B))@x",
        kron_sum_times_vector,
        ("4 4", "n n", "4 n"),
        {"A@X + X@B'": Form(lambda a, b, x: (a @ x + x @ b.T).reshape(-1))},
    ),
    Case(
        "one_hot(labels)@table",
        embedding,
        ("1024 @ int32", "n 256"),
        {"table[labels]": Form(lambda labels, table: table[labels])},
    ),
    Case("sum(one_hot(labels)*scores)", picked_entries, ("8192 @ int32", "8192 n"), {"take_along_axis": Form(_picked)}),
    Case(
        "one_hot(a)'@one_hot(b)",
        confusion_counts,
        ("n @ int32", "n @ int32"),
        {"scatter": Form(lambda labels, found: jnp.zeros((CLASSES, CLASSES)).at[labels, found].add(1.0))},
    ),
    Case(
        "100 rows of A@B summed by a mask",
        masked_rows_summed,
        _SQUARES[:2],
        {"sum(A[:100], 0)@B": Form(lambda a, b: a[:100].sum(0) @ b)},
    ),
    Case(
        "(A@B@C)[:, 3]",
        one_column_of_three,
        _SQUARES[:3],
        {"A@(B@C[:, 3])": Form(lambda a, b, c: a @ (b @ c[:, 3]))},
    ),
    Case(
        "(A@B)[:16, :16]",
        block_of_product,
        _SQUARES[:2],
        {"A[:16]@B[:, :16]": Form(lambda a, b: a[:16] @ b[:, :16])},
    ),
    Case(
        "sum((A@B)[:16], 0)",
        slice_summed,
        _SQUARES[:2],
        {"sum(A[:16], 0)@B": Form(lambda a, b: a[:16].sum(0) @ b)},
    ),
]
