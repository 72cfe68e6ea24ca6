"""Small functions of random keys and bits; more of `CASES`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from frontend_calls import CASES, Case, case
from jax import lax, random


@case("@ key")
def bits_of_every_width(key):
    return [random.bits(key, (3, 2), f"uint{w}") for w in (8, 16, 32)], random.bits(key), random.key_data(key)


@case("@ key", "b s", tolerance=1e-4)
def dropout(key, x):
    keep = random.bernoulli(key, 0.7, x.shape)
    return jnp.where(keep, x / 0.7, 0.0), random.normal(key, x.shape), random.uniform(key, (x.shape[0],), minval=-1)


@case("@ key", "@ int32")
def keys_are_moved(key, i):
    first, *others = random.split(key, 4)
    keys = jnp.stack([*others, random.fold_in(first, i)])
    turned = keys.reshape(2, 2).T[::-1]
    picked = [keys[i % 4], keys[jnp.array([2, 0])], lax.dynamic_slice(keys, (i,), (2,))]
    chosen = jnp.where(i > 2, first, keys[0])
    return [random.key_data(k) for k in (turned, jnp.concatenate([keys, keys[:1]]), *picked, chosen)]


@case("@ key", "b 3")
def keys_are_mapped(key, x):
    keys = random.split(key, 4)
    rows = jax.vmap(lambda k: random.bits(k, (3,)))(keys)
    folded = jax.vmap(random.fold_in, (None, 0))(keys[0], jnp.arange(x.shape[1]))
    return rows, random.key_data(folded), random.key_data(jax.vmap(random.split)(keys)[0, 1])


@case("@ key")
def keys_are_scanned(key):
    def step(carry, k):
        carry, new = random.split(carry)
        return carry, random.bits(k) ^ random.bits(new)

    last, made = lax.scan(step, key, random.split(random.fold_in(key, 7), 3))
    return random.key_data(last), made


@case("2 @ uint32", "@ int32")
def keys_of_the_old_kind(key, seed):
    first, second = random.split(key)
    return random.bits(first, (4,)), second, random.fold_in(key, 3), random.PRNGKey(seed), random.bits(random.key(seed))


@case("@ int32")
def other_generators(seed):
    fast, unsafe = random.key(seed, impl="rbg"), random.key(seed, impl="unsafe_rbg")
    made = [random.key_data(random.split(k, 2)) for k in (fast, unsafe)]
    return random.bits(fast, (5,)), random.bits(unsafe, (3,), "uint8"), made, random.key_data(random.fold_in(fast, 2))


@case("4 @ uint32")
def generator_of_xla(state):
    hashed = lax.rng_bit_generator(state, (2, 3), algorithm=lax.RandomAlgorithm.RNG_THREE_FRY)
    return lax.rng_bit_generator(state, (3, 3)), lax.rng_bit_generator(state, (5,), jnp.uint8), hashed


@case("@ key", "6", tolerance=1e-3)
def distributions(key, x):
    a = jnp.abs(x) + 0.5
    return (
        random.categorical(key, x, shape=(4,)), random.permutation(key, 9), random.choice(key, x, (3,)),
        random.randint(key, (5,), 0, 100), random.gumbel(key, (4,)), random.exponential(key, (4,)),
        random.truncated_normal(key, -1.0, 1.0, (4,)), random.gamma(key, a), random.dirichlet(key, a),
        random.rademacher(key, (4,)), random.t(key, 3.0, (4,)), random.multivariate_normal(key, x[:2], jnp.eye(2)),
    )  # fmt: skip


__all__ = ["CASES", "Case"]
