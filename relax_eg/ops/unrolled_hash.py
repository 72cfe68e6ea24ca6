"""The hash Threefry-2x32 with its twenty rounds written out, as CPUs run it.

JAX lowers the hash for CPUs as a loop of five steps, each of which passes over all words in memory, and which XLA runs
on one core. Written out it is one kernel that cores share: it takes a third of the time, and compiles in a half to two
thirds of it (jax 0.10.2, `python -m benchmarks.patterns --cases random`).

XLA would compute such a kernel again in each reader, and one element after the other inside some, so an operator on
keys is a function that is not inlined. Where its only reader is a loop over elements, fusing the two would take 0.4 to
0.8 of the time. What JAX's generator does around the hash is JAX's own code, so the bits are the same in its modes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from relax_eg.ops.lazy_jax import core, generators, jax, primitives, xla_metadata
from relax_eg.ops.on_cpus import on_cpus

# given: the rotations of four rounds, of the next four, and the constant of the key schedule (Salmon et al., 2011)
_ROTATIONS, _PARITY = ((13, 15, 26, 6), (17, 29, 16, 24)), 0x1BD11BDA
_INJECTIONS = 5  # given: times that words of the key are added, after four rounds each
_WORD_BITS = 32  # given: bits of a word
_IMPL = "threefry2x32"  # JAX's name of the generator


def hash_on_cpu(plain: Callable[..., Any], k0: Any, k1: Any, x0: Any, x1: Any) -> Any:
    """The pair of words that `plain`, JAX's hash, gives for words of equal shapes."""
    return on_cpus(partial(_held, _hash, 0), plain)(k0, k1, x0, x1)


def on_keys(plain: Callable[..., Any], method: str, keys: Any, *operands: Any, static: tuple[Hashable, ...]) -> Any:
    """What `plain` gives for keys of kind fry and operands of the shape of the keys.

    - `method`: the function of JAX's generator of which `plain` is the form for many keys.
    - `static`: its arguments that are not arrays.
    """

    def on_cpu(keys: Any, *operands: Any) -> Any:
        return _held(_random_words, 2, method, static, jax.random.key_data(keys), *operands)

    def words(keys: Any, *operands: Any) -> Any:
        made = plain(keys, *operands)
        return jax.random.key_data(made) if jax.dtypes.issubdtype(made.dtype, jax.dtypes.prng_key) else made

    made = on_cpus(on_cpu, words)(keys, *operands)
    return made if method == "random_bits" else jax.random.wrap_key_data(made, impl=_IMPL)


def _random_words(method: str, static: tuple[Hashable, ...], words: Any, *operands: Any) -> Any:
    """What a method of JAX's generator gives for the words of keys."""
    each: Callable[..., Any] = lambda *xs: getattr(generators.threefry_prng_impl, method)(*xs, *static)  # noqa: E731
    for _ in range(words.ndim - 1):
        each = jax.vmap(each)
    (made,) = _written_out(jax.make_jaxpr(each)(words, *operands), (words, *operands))
    return made


def _written_out(traced: Any, arrays: Sequence[Any]) -> Sequence[Any]:
    """What a jaxpr of JAX's generator gives for arrays, with each hash in it written out."""
    env = dict(zip((*traced.jaxpr.constvars, *traced.jaxpr.invars), (*traced.consts, *arrays), strict=True))

    def value(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else env[atom]

    for e in traced.jaxpr.eqns:
        given = list(map(value, e.invars))
        if e.primitive is primitives.threefry2x32_p:
            made: Any = _hash(*given)
        elif isinstance(e.params.get("jaxpr"), core.ClosedJaxpr):
            made = _written_out(e.params["jaxpr"], given)
        else:
            made = e.primitive.bind(*given, **e.primitive.get_bind_params(e.params))
        env.update(zip(e.outvars, made if e.primitive.multiple_results else [made], strict=True))
    return list(map(value, traced.jaxpr.outvars))


def _hash(k0: Any, k1: Any, x0: Any, x1: Any) -> tuple[Any, Any]:
    keys = (k0, k1, k0 ^ k1 ^ np.uint32(_PARITY))
    x0, x1 = x0 + k0, x1 + k1
    for i in range(_INJECTIONS):
        for bits in _ROTATIONS[i % 2]:
            x0 = x0 + x1
            x1 = x0 ^ ((x1 << np.uint32(bits)) | (x1 >> np.uint32(_WORD_BITS - bits)))
        x0, x1 = x0 + keys[(i + 1) % 3], x1 + keys[(i + 2) % 3] + np.uint32(i + 1)
    return x0, x1


def _held(function: Callable[..., Any], static: int, *args: Any) -> Any:
    """What `function` gives, as a function that XLA does not inline. `static`: how many arguments at first are no
    arrays."""
    with xla_metadata.set_xla_metadata(inlineable="false"):
        return _jitted(function, static)(*args)


@lru_cache(1 << 3)  # there are two functions
def _jitted(function: Callable[..., Any], static: int) -> Callable[..., Any]:
    return jax.jit(function, static_argnums=tuple(range(static)))
