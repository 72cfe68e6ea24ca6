"""Operators on PRNG keys, which are values; the random bits equal JAX's bit for bit.

The references compute the hashes themselves: Threefry-2x32 (Salmon et al., 2011) for keys of kind fry, and XLA's
generator for the other kinds, which is Philox-4x32 on the hosts and GPUs that programs here run on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from relax_eg.ir.annotations import Annotation, Tensor, Tuple
from relax_eg.ops.coarse_annotations import is_unknown
from relax_eg.ops.elementwise import jax_broadcast
from relax_eg.ops.keys import GENERATORS, dtype_name, is_key, keyed, words
from relax_eg.ops.record import Attribute, Operator, Site, bytes_of, deduce, register
from relax_eg.ops.sizes import Dims, broadcast, need_equal, need_kind, need_same_dtype, product
from relax_eg.shapes import Dim
from relax_eg.tir import KEY_WORDS, Counts

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

# given: operations on 32-bit integers for one hash: twenty rounds of three, and five key injections.
_HASH = 120
_LOW = np.uint64(0xFFFFFFFF)
_THIRTY_TWO = np.uint64(32)

# --- hashes ---


def threefry(k0: Array, k1: Array, x0: Array, x1: Array) -> tuple[Array, Array]:
    """Returns the hash Threefry-2x32 with 20 rounds, on uint32."""
    ks = (k0, k1, k0 ^ k1 ^ np.uint32(0x1BD11BDA))
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    with np.errstate(over="ignore"):
        x0, x1 = x0 + ks[0], x1 + ks[1]
        for i in range(5):
            for r in rotations[i % 2]:
                x0 = x0 + x1
                x1 = x0 ^ ((x1 << np.uint32(r)) | (x1 >> np.uint32(32 - r)))
            x0, x1 = x0 + ks[(i + 1) % 3], x1 + ks[(i + 2) % 3] + np.uint32(i + 1)
    return x0, x1


def philox(k0: Array, k1: Array, counter: tuple[Array, Array, Array, Array]) -> tuple[Array, ...]:
    """Returns the hash Philox-4x32 with 10 rounds: four words of 32 bits, each in a uint64."""
    c0, c1, c2, c3 = counter
    for _ in range(10):
        p, q = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (q >> _THIRTY_TWO) ^ c1 ^ k0, q & _LOW, (p >> _THIRTY_TWO) ^ c3 ^ k1, p & _LOW
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & _LOW, (k1 + np.uint64(0xBB67AE85)) & _LOW
    return c0, c1, c2, c3


def generated(key: Array, count: int, bits: int) -> tuple[Array, Array]:
    """Returns the next key of XLA's generator (four words) and `count` numbers of 32 or 64 bits, expanded as in XLA:
    the first 64 bits of the key are the hash key and the upper half of the counter, the others its lower half."""
    start = int(key[2]) | int(key[3]) << 32
    needed = count * bits // 32
    steps = math.ceil(needed / 4)
    at = np.arange(steps, dtype=np.uint64) + np.uint64(start)
    upper = np.uint64(int(key[0]) | int(key[1]) << 32) + (at < np.uint64(start)).astype(np.uint64)
    k0, k1 = key[:2].astype(np.uint64)
    hashed = philox(k0, k1, (at & _LOW, at >> _THIRTY_TWO, upper & _LOW, upper >> _THIRTY_TWO))
    flat = np.stack(hashed, -1).reshape(-1)[:needed]
    if bits == 64:
        flat = flat[0::2] | flat[1::2] << _THIRTY_TWO
    after = (start + steps) % 2**64
    return np.array([key[0], key[1], after & 0xFFFFFFFF, after >> 32], np.uint32), flat


# --- keys of kind fry; `data` holds their words along the last axis ---


def _partitionable() -> bool:
    import jax

    return bool(jax.config.values["jax_threefry_partitionable"])


def _counted(data: Array, count: int) -> Array:
    """Returns each key's hash of the numbers 0 to `count` - 1, along a new last axis. The numbers are hashed in two
    halves; a 0 pads the second half where `count` is odd."""
    numbers = np.concatenate([np.arange(count), np.zeros(count % 2)]).astype(np.uint32)
    first, second = np.split(numbers, 2)
    made = threefry(data[..., 0:1], data[..., 1:2], first, second)
    return np.concatenate([np.broadcast_to(m, (*data.shape[:-1], len(first))) for m in made], -1)[..., :count]


def _positions(data: Array, count: int) -> tuple[Array, Array]:
    """Returns each key's hash of the 64-bit numbers 0 to `count` - 1: two words, each along a new last axis."""
    at = np.arange(count, dtype=np.uint64)
    high, low = (at >> _THIRTY_TWO).astype(np.uint32), at.astype(np.uint32)
    return threefry(data[..., 0:1], data[..., 1:2], high, low)


def _fry_bits(data: Array, count: int, width: int) -> Array:
    if _partitionable():
        first, second = _positions(data, count)
        if width == 64:
            return first.astype(np.uint64) << _THIRTY_TWO | second
        return (first ^ second).astype(f"uint{width}")
    flat = _counted(data, math.ceil(count * width / 32))
    if width == 64:
        first, second = np.split(flat.astype(np.uint64), 2, -1)
        return first << _THIRTY_TWO | second
    if width == 32:
        return flat
    parts = flat[..., None] >> (np.uint32(width) * np.arange(32 // width, dtype=np.uint32))
    return parts.astype(f"uint{width}").reshape(*data.shape[:-1], -1)[..., :count]


def _fry_split(data: Array, count: int) -> Array:
    if _partitionable():
        return np.stack(_positions(data, count), -1)
    return _counted(data, 2 * count).reshape(*data.shape[:-1], count, 2)


def _fry_seed(seeds: Array) -> Array:
    wide = seeds.astype(np.uint64 if seeds.dtype.kind == "u" else np.int64).astype(np.uint64)
    high = (wide >> _THIRTY_TWO) if seeds.dtype.itemsize == 8 else np.zeros_like(wide)
    return np.stack([high, wide & _LOW], -1).astype(np.uint32)


def _fry_fold_in(data: Array, messages: Array) -> Array:
    high, low = np.moveaxis(_fry_seed(messages), -1, 0)
    return np.stack(threefry(data[..., 0], data[..., 1], high, low), -1)


# --- keys of kinds rbg and urbg ---


def _rbg_bits(data: Array, shape: Shape, width: int) -> Array:
    """Returns the bits that the first key generates: JAX uses it for all keys."""
    whole = (*data.shape[:-1], *shape)
    count = math.prod(whole)
    if not count:
        return np.zeros(whole, f"uint{width}")
    key = data.reshape(-1, 4)[0]
    return generated(key, count, max(width, 32))[1].astype(f"uint{width}").reshape(whole)


def _rbg_seed(seeds: Array) -> Array:
    return np.concatenate([_fry_seed(seeds)] * 2, -1)


def split_words(kind: str, data: Array, shape: Shape) -> Array:
    """Returns the words of `shape` new keys from each key; the last axis of `data` holds the words of a key."""
    count = math.prod(shape)
    lead = data.shape[:-1]
    if kind == "fry":
        return _fry_split(data, count).reshape(*lead, *shape, 2)
    if kind == "urbg":
        return _rbg_bits(data, (10 * count, 4), 32)[..., ::10, :].reshape(*lead, *shape, 4)
    halves = _fry_split(data.reshape(*lead, 2, 2), count)
    return np.moveaxis(halves, -3, -2).reshape(*lead, *shape, 4)


def _folded_words(kind: str, data: Array, messages: Array) -> Array:
    if kind == "fry":
        return _fry_fold_in(data, messages.astype(np.uint32))
    if kind == "urbg":
        return data ^ _rbg_bits(_rbg_seed(messages), (10, 4), 32)[..., -1, :]
    lead = data.shape[:-1]
    return _fry_fold_in(data.reshape(*lead, 2, 2), messages[..., None]).reshape(*lead, 4)


def bits_of(kind: str, data: Array, shape: Shape, width: int) -> Array:
    """Returns `shape` random integers of `width` bits from each key."""
    if kind == "fry":
        return _fry_bits(data, math.prod(shape), width).reshape((*data.shape[:-1], *shape))
    return _rbg_bits(data, shape, width)


def kind_of(keys: Array) -> str:
    """Returns the kind of a key array: fry, rbg or urbg."""
    return dtype_name(keys)[4:-1]


# --- deduction ---


def need_keys(site: Site, i: int = 0) -> str:
    """Returns the dtype of operand `i`, which must be PRNG keys. Raises OperatorError."""
    dtype = site.dtype(i)
    if not is_key(dtype):
        raise site.error(f"operand {i} is {dtype}; one of {', '.join(f'key<{k}>' for k in KEY_WORDS)} is needed")
    return dtype


def _generator(site: Site) -> str:
    """Returns the dtype of the keys that attribute `impl` asks for."""
    if site["impl"] not in GENERATORS:
        raise site.error(f"impl {site['impl']!r}; accepted: {', '.join(GENERATORS)}")
    return f"key<{GENERATORS[site['impl']]}>"


def _seed(site: Site) -> Annotation:
    need_kind(site, "iu")
    return Tensor(site.shape(), _generator(site))


def _wrap(site: Site) -> Annotation:
    dtype, shape = _generator(site), site.shape()
    if site.dtype() != "uint32":
        raise site.error(f"operand 0 is {site.dtype()}; uint32 is needed")
    if not shape:
        raise site.error("a scalar has no axis of words")
    need_equal(site, shape[-1], Dim.of(KEY_WORDS[dtype[4:-1]]), "the last axis, and the words of a key")
    return Tensor(shape[:-1], dtype)


def _unwrap(site: Site) -> Annotation:
    return Tensor((*site.shape(), KEY_WORDS[need_keys(site)[4:-1]]), "uint32")


def _fold_in(site: Site) -> Annotation:
    dtype = need_keys(site)
    need_kind(site, "iu", 1)
    return Tensor(broadcast(site, [site.shape(0), site.shape(1)]), dtype)


def _split(site: Site) -> Annotation:
    return Tensor((*site.shape(), *site["shape"]), need_keys(site))


def _bits(site: Site) -> Annotation:
    need_keys(site)
    if site["bit_width"] not in (8, 16, 32, 64):
        raise site.error(f"bit_width is {site['bit_width']!r}; accepted: 8, 16, 32, 64")
    return Tensor((*site.shape(), *site["shape"]), f"uint{site['bit_width']}")


def _hash(site: Site) -> Annotation:
    if need_same_dtype(site, range(4)) != "uint32":
        raise site.error(f"operands are {site.dtype()}; uint32 is needed")
    made = Tensor(broadcast(site, [site.shape(i) for i in range(4)]), "uint32")
    return Tuple((made, made))


_ALGORITHMS = ("default", "philox")


def _generate(site: Site) -> Annotation:
    words, shape = {"uint32": 4, "uint64": 2}.get(site.dtype()), site.shape()
    if words is None or len(shape) != 1 or not (is_unknown(shape[0]) or shape[0] == words):
        raise site.error("operand 0, the key, must be 4 words of uint32 or 2 of uint64")
    if site["algorithm"] not in _ALGORITHMS:
        raise site.error(f"algorithm {site['algorithm']!r}; accepted: {', '.join(_ALGORITHMS)}")
    if site["dtype"] not in ("uint8", "uint16", "uint32", "uint64"):
        raise site.error(f"dtype {site['dtype']!r}; accepted: uint8, uint16, uint32, uint64")
    return Tuple((Tensor((words,), site.dtype()), Tensor(site["shape"], site["dtype"])))


# --- references ---


def _seed_reference(seeds: Array, *, impl: str) -> Array:
    kind = GENERATORS[impl]
    return keyed(_fry_seed(seeds) if kind == "fry" else _rbg_seed(seeds), f"key<{kind}>")


def _wrap_reference(data: Array, *, impl: str) -> Array:
    return keyed(data, f"key<{GENERATORS[impl]}>")


def _fold_in_reference(keys: Array, messages: Array) -> Array:
    keys, messages = np.broadcast_arrays(keys, messages)
    return keyed(_folded_words(kind_of(keys), words(keys), messages), dtype_name(keys))


def _split_reference(keys: Array, *, shape: Shape) -> Array:
    return keyed(split_words(kind_of(keys), words(keys), tuple(map(int, shape))), dtype_name(keys))


def _bits_reference(keys: Array, *, shape: Shape, bit_width: int) -> Array:
    return bits_of(kind_of(keys), words(keys), tuple(map(int, shape)), bit_width)


def _hash_reference(*xs: Array) -> tuple[Array, Array]:
    k0, k1, x0, x1 = np.broadcast_arrays(*xs)
    return threefry(k0, k1, x0, x1)


def _generate_reference(key: Array, *, shape: Shape, dtype: str, algorithm: str) -> tuple[Array, Array]:
    sizes = tuple(map(int, shape))
    width = max(32, 8 * np.dtype(dtype).itemsize)
    after, flat = generated(key.view(np.uint32), math.prod(sizes), width)
    return after.view(key.dtype), flat.astype(dtype).reshape(sizes)


# --- costs ---


def _cost(hashes: Callable[[Site], Dim]) -> Callable[[Site], Counts]:
    """Returns a cost function: `hashes(site)` hashes; operands are read and results written once."""

    def cost(site: Site) -> Counts:
        read = Dim.of(0)
        for a in site.operands:
            read = read + bytes_of(a)
        return Counts(hashes(site) * _HASH, read, bytes_of(deduce(site.op, site.operands, site.attrs)))

    return cost


def _nothing(site: Site) -> Dim:
    return Dim.of(0)


def _for_each_result(site: Site) -> Dim:
    result = deduce(site.op, site.operands, site.attrs)
    parts = result.fields if isinstance(result, Tuple) else (result,)
    last = parts[-1]
    sizes: Dims = (last.shape or ()) if isinstance(last, Tensor) else ()
    return product(sizes)


# --- lowering ---


def _jax_seed(seeds: Any, *, impl: str) -> Any:
    import jax

    function: Callable[[Any], Any] = lambda s: jax.random.key(s, impl=impl)  # noqa: E731
    for _ in range(seeds.ndim):
        function = jax.vmap(function)
    return function(seeds)


def _jax_wrap(data: Any, *, impl: str) -> Any:
    import jax

    return jax.random.wrap_key_data(data, impl=impl)


def _jax_fold_in(keys: Any, messages: Any) -> Any:
    from jax.extend.core import primitives

    return primitives.random_fold_in_p.bind(*jax_broadcast(keys, messages))


def _jax_split(keys: Any, *, shape: tuple[int, ...]) -> Any:
    from jax.extend.core import primitives

    return primitives.random_split_p.bind(keys, shape=shape)


def _jax_bits(keys: Any, *, shape: tuple[int, ...], bit_width: int) -> Any:
    from jax.extend.core import primitives

    return primitives.random_bits_p.bind(keys, bit_width=bit_width, shape=shape)


def _jax_hash(*xs: Any) -> Any:
    from jax.extend.core import primitives

    return tuple(primitives.threefry2x32_p.bind(*jax_broadcast(*xs)))


def _jax_generate(key: Any, *, shape: tuple[int, ...], dtype: str, algorithm: str) -> Any:
    from jax import lax

    which = lax.RandomAlgorithm.RNG_DEFAULT if algorithm == "default" else lax.RandomAlgorithm.RNG_PHILOX
    made: Any = np.dtype(dtype)
    return tuple(lax.rng_bit_generator(key, shape, made, which))


_SHAPE = Attribute("shape", "dims")
_IMPL = (Attribute("impl", default="threefry2x32"),)

for _operator in (
    Operator("random_seed", ("seeds",), _seed, _jax_seed, None, _IMPL, _seed_reference, _cost(_nothing),
             doc="a key for each integer"),
    Operator("random_wrap", ("data",), _wrap, _jax_wrap, None, _IMPL, _wrap_reference, _cost(_nothing),
             doc="keys from their words, the last axis"),
    Operator("random_unwrap", ("keys",), _unwrap, "jax.random.key_data", None, (), words, _cost(_nothing),
             doc="the words of keys, as a new last axis"),
    Operator("random_fold_in", ("keys", "data"), _fold_in, _jax_fold_in, None, (), _fold_in_reference,
             _cost(_for_each_result), doc="the key that a key and an integer make, broadcast"),
    Operator("random_split", ("keys",), _split, _jax_split, None, (_SHAPE,), _split_reference,
             _cost(_for_each_result), doc="new keys from each key, as new last axes"),
    Operator("random_bits", ("keys",), _bits, _jax_bits, None, (_SHAPE, Attribute("bit_width")), _bits_reference,
             _cost(_for_each_result), doc="random bits from each key as unsigned integers, as new last axes"),
    Operator("threefry2x32", ("k0", "k1", "x0", "x1"), _hash, _jax_hash, None, (), _hash_reference,
             _cost(_for_each_result), doc="the hash Threefry-2x32 of two words under a key of two, broadcast"),
    Operator("rng_bit_generator", ("key",), _generate, _jax_generate, None,
             (_SHAPE, Attribute("dtype"), Attribute("algorithm", default="default")), _generate_reference,
             _cost(_for_each_result), doc="XLA's generator: the next key, and random bits as unsigned integers"),
):  # fmt: skip
    register(_operator)
