"""Small functions that call others, take odd arguments, or use primitives without an operator; more of `CASES`."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from frontend_programs import CASES, Case, case
from jax import lax

TABLE = jnp.asarray(np.random.default_rng(7).normal(size=(4, 3)), jnp.float32)


# --- calls ---


@jax.jit
def _inner(x, flag=None):
    return jnp.where(x > 0, x, 0.1 * x)


@case("b s")
def nested_jit(x):
    return _inner(_inner(x)) + jax.jit(jnp.sin)(x)


@jax.custom_jvp
def _twice(x):
    return 2 * x


_twice.defjvp(lambda primals, tangents: (_twice(*primals), 3 * tangents[0]))


@jax.custom_vjp
def _thrice(x):
    return x * x.shape[0]


_thrice.defvjp(lambda x: (_thrice(x), x), lambda residual, cotangent: (cotangent * residual,))


@case("b s")
def custom_derivatives(x):
    return _twice(x), _thrice(x), jax.checkpoint(jnp.sin)(x), lax.stop_gradient(x) * 2


@case("b 4")
def closures(x):
    return x @ TABLE, x + np.arange(4, dtype=np.float32)


@case("b s", 2.0, 3, flag=True, scale=np.float32(2))
def scalars(x, a, n, *, flag, scale):
    return x * a + n, jnp.where(flag, x, scale), a * n


@case("b s", opts={"scale": "", "shift": "s"}, unused=None)
def keywords(x, *, opts, unused=None, default=1.5):
    return x * opts["scale"] + opts["shift"] * default


@case("b s", "b s", {})
def variadic(x, *rest):
    return x + rest[0], {}


@case({})
def nothing(p):
    return ()


@case("b s")
def passed_through(x):
    return x, x, 1.0, jnp.float32(3)


@case("0 3", "b 0")
def zero_sized(x, y):
    return x.sum(), x + 1, y @ x, jnp.max(y, axis=0, initial=0.0)


@case("_ _ @ f16")
def anonymous_sizes(x):
    return x + x, x.sum(0)


# --- what has no operator ---


@case("b s")
def scan(x):
    return lax.scan(lambda c, row: (c + row * x.shape[0], c * 2), jnp.zeros(x.shape[1:]), x)


@case("b s")
def whiles(x):
    return lax.fori_loop(0, x.shape[0], lambda i, c: c + x[i], jnp.zeros(x.shape[1])), lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, x)
    )


@case("b s")
def conds(x):
    return lax.cond(x.sum() > 0, lambda y: y * y.shape[0], lambda y: jnp.reshape(y.T, y.shape) - 1, x)


@case("b s")
def nested_loops(x):
    def body(c, row):
        inner = lax.fori_loop(0, 3, lambda i, v: jax.nn.relu(_twice(v)) + _thrice(v) / v.shape[0], row)
        return c + inner, lax.cond(c.sum() > 0, jnp.sin, jnp.cos, row)

    return lax.scan(body, jnp.zeros(x.shape[1]), x)


@case("@ key", "b s", opaque="any")  # which routines depends on the version of JAX
def random(key, x):
    a, b = jax.random.split(key)
    return jax.random.normal(a, (4,)), x + jax.random.uniform(b, x.shape)


@case("b s", opaque="jax.pure_callback")
def callback(x):
    return jax.pure_callback(lambda v: np.sin(v), jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential")


@case("b s", opaque="jax.optimization_barrier")
def barrier(x):
    return lax.optimization_barrier(x * 2) + 1


partial_linear = functools.partial(lambda x, w, *, flip: (x @ w)[::-1] if flip else x @ w, flip=True)
CASES.append(Case("partial", partial_linear, ("b 4", "4 3")))
