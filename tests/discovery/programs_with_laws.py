"""Tensor programs whose laws tests look for."""
# ruff: noqa: F821

import relax_eg as rx


@rx.tensor_program
def gated(X: rx.Buffer("n"), Y: rx.Buffer("n"), Z: rx.Buffer("n")):
    Z[i] = X[i] * rx.maximum(Y[i], 0.0)


@rx.tensor_program
def shortest(A: rx.Buffer("m k"), B: rx.Buffer("k n"), C: rx.Buffer("m n")):
    C[i, j] = rx.min(A[i, l] + B[l, j], over=(l, k))
