"""Differential equations, linear systems and optimisation: diffrax, lineax, optimistix, jaxopt."""

from __future__ import annotations

from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jaxopt
import lineax as lx
import optimistix as optx

from benchmarks.library_cases.case import Case, Function, Size, Use, case, filled, normal

SOLVERS: list[Case] = []


def square(size: Size) -> jax.Array:
    n = size(4, 256)
    return normal(1, n, n) + size(3, 40) * jnp.eye(n)


def definite(size: Size) -> jax.Array:
    a = square(size)
    return a @ a.T + jnp.eye(len(a))


def tall(size: Size) -> jax.Array:
    return normal(2, *size((6, 4), (256, 48)))


def of_many(size: Size, solve: Function) -> Function:
    """One problem, or many at once: arguments then have another axis, the first."""
    return size(solve, jax.vmap(solve))


MANY = 256  # problems at once


# -- diffrax


def lotka_volterra(t: Any, y: jax.Array, rates: jax.Array) -> jax.Array:
    a, b, c, d = rates
    return jnp.stack([a * y[0] - b * y[0] * y[1], c * y[0] * y[1] - d * y[1]])


@case(SOLVERS, "diffrax", "adaptive Dopri5")
def dopri5(size: Size) -> Use:
    end, saves, steps = size((1.0, 4, 16), (10.0, 64, 128))

    def fn(rates: jax.Array, y: jax.Array) -> Any:
        control = dfx.PIDController(rtol=1e-3, atol=1e-4)
        saved = dfx.SaveAt(ts=jnp.linspace(0.0, end, saves))
        term = dfx.ODETerm(lotka_volterra)
        return dfx.diffeqsolve(
            term, dfx.Dopri5(), 0.0, end, 0.1, y, rates, saveat=saved, stepsize_controller=control, max_steps=steps
        ).ys

    start = jnp.array([1.0, 0.6])
    starts = size(start, jnp.abs(start[:, None] + 0.1 * normal(4, 2, 1000)))
    return Use(fn, (jnp.array([1.0, 0.5, 0.4, 0.8]), starts), tolerance=1e-3)


@case(SOLVERS, "diffrax", "neural equation, steps of Tsit5 by hand")
def neural_equation(size: Size) -> Use:
    state, hidden = size((3, 8), (128, 512))
    make = lambda: eqx.nn.MLP(state, state, hidden, 1, activation=jnp.tanh, key=jax.random.key(0))  # noqa: E731
    model = filled(eqx.filter_eval_shape(make))
    arrays, static = eqx.partition(model, eqx.is_inexact_array)

    def fn(arrays: Any, y: jax.Array) -> Any:
        term, solver = dfx.ODETerm(lambda t, y, args: eqx.combine(arrays, static)(y)), dfx.Tsit5()
        state = solver.init(term, 0.0, 0.3, y, None)
        for t in size((0.0, 0.3), (0.0, 0.3, 0.6, 0.9)):
            y, error, _, state, _ = solver.step(term, t, t + 0.3, y, None, state, made_jump=False)
        return y, error

    return Use(fn, (arrays, str(state)))


@case(SOLVERS, "diffrax", "stochastic equation, steps of Euler by hand")
def stochastic_equation(size: Size) -> Use:
    states, steps = size((2, 4), (1000, 8))

    def fn(y: jax.Array, key: jax.Array) -> Any:
        path = dfx.VirtualBrownianTree(0.0, 1.0, tol=0.1, shape=(states,), key=key)
        ts = jnp.linspace(0.0, 1.0, steps + 1)
        for noise in jax.vmap(path.evaluate)(ts[:-1], ts[1:]):
            y = y - 1 / steps * y + 0.1 * y * noise
        return y

    return Use(fn, (str(states), jax.random.key(3)), batched=0)


@case(SOLVERS, "diffrax", "cubic interpolation")
def interpolation(size: Size) -> Use:
    def fn(ys: jax.Array, t: jax.Array) -> Any:
        ts = jnp.linspace(0.0, 1.0, len(ys))
        path = dfx.CubicInterpolation(ts, dfx.backward_hermite_coefficients(ts, ys))
        return jax.vmap(path.evaluate)(jax.nn.sigmoid(t)), jax.vmap(path.derivative)(jax.nn.sigmoid(t))

    return Use(fn, (size("5 2", "100 8"), size("b", "10000")))


# -- lineax


def of_solver(solver: Any, matrix: jax.Array, *tags: Any, tolerance: float = 1e-3) -> Use:
    def fn(matrix: jax.Array, b: jax.Array) -> Any:
        return lx.linear_solve(lx.MatrixLinearOperator(matrix, tags), b, solver).value

    return Use(fn, (matrix, str(len(matrix))), tolerance=tolerance)


@case(SOLVERS, "lineax", "conjugate gradients")
def conjugate_gradients(size: Size) -> Use:
    return of_solver(lx.CG(1e-6, 1e-6), definite(size), lx.positive_semidefinite_tag)


@case(SOLVERS, "lineax", "least squares by QR")
def least_squares_qr(size: Size) -> Use:
    return of_solver(lx.QR(), tall(size))


@case(SOLVERS, "lineax", "least squares by SVD")
def least_squares_svd(size: Size) -> Use:
    return of_solver(lx.SVD(), tall(size))


@case(SOLVERS, "lineax", "cholesky")
def cholesky(size: Size) -> Use:
    return of_solver(lx.Cholesky(), definite(size), lx.positive_semidefinite_tag)


@case(SOLVERS, "lineax", "GMRES of a Jacobian")
def gmres(size: Size) -> Use:
    matrix = square(size)

    def fn(matrix: jax.Array, b: jax.Array) -> Any:
        operator = lx.JacobianLinearOperator(lambda x, _: matrix @ x + 0.1 * jnp.tanh(x), b)
        return lx.linear_solve(operator, b, lx.GMRES(1e-5, 1e-5)).value

    return Use(fn, (matrix, str(len(matrix))), tolerance=1e-3)


@case(SOLVERS, "lineax", "tridiagonal")
def tridiagonal(size: Size) -> Use:
    n = size(5, 10_000)

    def fn(diagonals: Any, b: jax.Array) -> Any:
        return lx.linear_solve(lx.TridiagonalLinearOperator(*diagonals), b, lx.Tridiagonal()).value

    return Use(fn, ((3 + normal(1, n) ** 2, normal(2, n - 1), normal(3, n - 1)), str(n)))


# -- optimistix


def residuals(y: jax.Array, data: jax.Array) -> jax.Array:
    return jnp.array([10 * (y[1] - y[0] ** 2), 1 - y[0], y[0] * y[1]]) - data


def problems(size: Size) -> tuple[jax.Array, jax.Array]:
    data, start = jnp.array([0.1, 0.2, 0.3]), jnp.array([0.5, 0.4])
    many = data + 0.05 * normal(1, MANY, 3), start + 0.05 * normal(2, MANY, 2)
    return size((data, start), many)


@case(SOLVERS, "optimistix", "Newton's method")
def newton(size: Size) -> Use:
    def fn(data: jax.Array, start: jax.Array) -> Any:
        solver = optx.Newton(1e-5, 1e-5)
        return optx.root_find(lambda y, a: y + 0.3 * jnp.sin(y[::-1]) - a, solver, start, data).value

    given = size((jnp.array([0.3, 0.7]), jnp.array([0.0, 0.1])), (normal(1, 128), 0.1 * normal(2, 128)))
    return Use(fn, given, tolerance=1e-3)


@case(SOLVERS, "optimistix", "Levenberg-Marquardt")
def levenberg_marquardt(size: Size) -> Use:
    def fn(data: jax.Array, start: jax.Array) -> Any:
        solver = optx.LevenbergMarquardt(1e-4, 1e-4)
        return optx.least_squares(residuals, solver, start, data, max_steps=32, throw=False).value

    return Use(of_many(size, fn), problems(size), tolerance=1e-2)


@case(SOLVERS, "optimistix", "BFGS")
def bfgs(size: Size) -> Use:
    def fn(data: jax.Array, start: jax.Array) -> Any:
        solver = optx.BFGS(1e-4, 1e-4)
        loss = lambda y, data: (residuals(y, data) ** 2).sum()  # noqa: E731
        return optx.minimise(loss, solver, start, data, max_steps=64, throw=False).value

    return Use(of_many(size, fn), problems(size), tolerance=1e-2)


# -- jaxopt


@case(SOLVERS, "jaxopt", "lasso by proximal gradients")
def lasso(size: Size) -> Use:
    x = tall(size)

    def fn(y: jax.Array, x: jax.Array) -> Any:
        solver = jaxopt.ProximalGradient(
            jaxopt.objective.least_squares, jaxopt.prox.prox_lasso, maxiter=20, implicit_diff=False, unroll=True
        )
        return solver.run(jnp.zeros(x.shape[1]), hyperparams_prox=0.01, data=(x, y)).params

    return Use(fn, (normal(3, len(x)), x), tolerance=1e-3)


@case(SOLVERS, "jaxopt", "ridge by LBFGS, differentiated implicitly")
def ridge(size: Size) -> Use:
    x = tall(size)

    def fn(penalty: jax.Array, y: jax.Array) -> Any:
        def loss(w: jax.Array, penalty: jax.Array) -> jax.Array:
            return ((x @ w - y) ** 2).mean() + penalty * (w**2).sum()

        solver = jaxopt.LBFGS(loss, maxiter=30, tol=1e-5, linesearch="backtracking")
        return solver.run(jnp.zeros(x.shape[1]), penalty).params

    return Use(fn, (jnp.array(0.3), str(len(x))), tolerance=1e-2)


@case(SOLVERS, "jaxopt", "projections")
def projections(size: Size) -> Use:
    def fn(x: jax.Array) -> Any:
        return (
            jaxopt.projection.projection_simplex(x),
            jaxopt.projection.projection_l1_ball(x, 0.5),
            jaxopt.projection.projection_l2_ball(x, 1.0),
            jaxopt.projection.projection_box(x, (-0.5, 0.5)),
        )

    return Use(fn, (size("6", "10000"),))
