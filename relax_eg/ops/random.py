"""Operators on PRNG keys, which are values; the random bits are JAX's, which is also the reference.

Keys of kind fry hash by Threefry-2x32 (Salmon et al., 2011). Keys of the other kinds use XLA's generator, which is
Philox-4x32 on the hosts and GPUs that programs here run on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from relax_eg.dtypes import KEY_WORDS, is_key, names_where
from relax_eg.ir.annotations import Annotation, Tensor, Tuple
from relax_eg.ops.attribute_values import DTYPES
from relax_eg.ops.elementwise import jax_broadcast
from relax_eg.ops.keys import GENERATORS, from_jax, to_jax, words_from_keys
from relax_eg.ops.lazy_jax import jax, lax, primitives
from relax_eg.ops.partial_annotations import is_unknown
from relax_eg.ops.record import Attribute, Operator, Site, deduce, register, routine_cost
from relax_eg.ops.sizes import Dims, broadcast, need_equal, need_kind, need_same_dtype, product
from relax_eg.ops.unrolled_hash import hash_on_cpu, on_keys
from relax_eg.shapes import Dim
from relax_eg.tir import Counts

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

# given: operations on 32-bit integers for one hash: twenty rounds of three, and five key injections.
_HASH = 120
# measured: times as long that JAX's loop over the rounds of the hash takes on CPUs (`python -m benchmarks.patterns
# --cases random`)
_ROLLED = 3.0
_FRY = f"key<{GENERATORS['threefry2x32']}>"
_HASHING = frozenset(("random_bits", "random_split", "random_fold_in"))


def jax_reference(lower: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the reference of an operator that JAX defines: its lowering, computed at once on numpy arrays. Numbers of
    64 bits keep them, and a trace around it does not see it."""

    def reference(*arrays: Array, **attrs: Any) -> Any:
        with jax.ensure_compile_time_eval(), jax.enable_x64(True):  # type: ignore[reportAttributeAccessIssue]
            made = lower(*(to_jax(a) if a.dtype.names else jax.numpy.asarray(a) for a in arrays), **attrs)
            each = [from_jax(x) if is_key(str(x.dtype)) else np.asarray(x) for x in jax.tree.leaves(made)]
        return tuple(each) if isinstance(made, tuple) else each[0]

    return reference


# --- deduction ---


def need_keys(site: Site) -> str:
    """Returns the dtype of the first operand, which must be PRNG keys. Raises OperatorError."""
    dtype = site.dtype()
    if not is_key(dtype):
        raise site.error(f"operand 0 is {dtype}; one of {', '.join(f'key<{k}>' for k in KEY_WORDS)} is needed")
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


_ALGORITHMS = ("default", "philox", "three_fry")
_WORDS = names_where(lambda d: d.kind == "u" and not d.is_narrow)


def _generate(site: Site) -> Annotation:
    words, shape = {"uint32": 4, "uint64": 2}.get(site.dtype()), site.shape()
    if words is None or len(shape) != 1 or not (is_unknown(shape[0]) or shape[0] == words):
        raise site.error("operand 0, the key, must be 4 words of uint32 or 2 of uint64")
    if site["algorithm"] not in _ALGORITHMS:
        raise site.error(f"algorithm {site['algorithm']!r}; accepted: {', '.join(_ALGORITHMS)}")
    if site["dtype"] not in _WORDS:
        raise site.error(f"dtype {site['dtype']!r}; accepted: {', '.join(_WORDS)}")
    return Tuple((Tensor((words,), site.dtype()), Tensor(site["shape"], site["dtype"])))


# --- costs ---


def _cost(hashes: Callable[[Site], Dim]) -> Callable[[Site], Counts]:
    """Returns a cost function: `hashes(site)` hashes; operands are read and results written once."""
    return routine_cost(lambda site: hashes(site) * _HASH)


def _for_each_result(site: Site) -> Dim:
    result = deduce(site.op, site.operands, site.attrs)
    parts = result.fields if isinstance(result, Tuple) else (result,)
    last = parts[-1]
    sizes: Dims = (last.shape or ()) if isinstance(last, Tensor) else ()
    return product(sizes)


def is_unrolled_hash(site: Site) -> bool:
    """Whether an operator hashes by Threefry-2x32, whose rounds our lowering for CPUs writes out."""
    return site.op == "threefry2x32" or (site.op in _HASHING and site.dtype() == _FRY)


def _slower(site: Site, size: Callable[[Dim], float]) -> float:
    return _ROLLED if is_unrolled_hash(site) else 1.0


# --- lowering ---


def _jax_seed(seeds: Any, *, impl: str) -> Any:
    function: Callable[[Any], Any] = lambda s: jax.random.key(s, impl=impl)  # noqa: E731
    for _ in range(seeds.ndim):
        function = jax.vmap(function)
    return function(seeds)


def _jax_wrap(data: Any, *, impl: str) -> Any:
    return jax.random.wrap_key_data(data, impl=impl)


def _plain_fold_in(keys: Any, messages: Any) -> Any:
    return primitives.random_fold_in_p.bind(*jax_broadcast(keys, messages))


def _plain_split(keys: Any, *, shape: tuple[int, ...]) -> Any:
    return primitives.random_split_p.bind(keys, shape=shape)


def _plain_bits(keys: Any, *, shape: tuple[int, ...], bit_width: int) -> Any:
    return primitives.random_bits_p.bind(keys, bit_width=bit_width, shape=shape)


def _plain_hash(*xs: Any) -> Any:
    return tuple(primitives.threefry2x32_p.bind(*jax_broadcast(*xs)))


def _jax_fold_in(keys: Any, messages: Any) -> Any:
    if not _is_fry(keys):
        return _plain_fold_in(keys, messages)
    keys, messages = jax_broadcast(keys, messages)
    return on_keys(_plain_fold_in, "fold_in", keys, messages, static=())


def _jax_split(keys: Any, *, shape: tuple[int, ...]) -> Any:
    plain = partial(_plain_split, shape=shape)
    return on_keys(plain, "split", keys, static=(shape,)) if _is_fry(keys) else plain(keys)


def _jax_bits(keys: Any, *, shape: tuple[int, ...], bit_width: int) -> Any:
    plain = partial(_plain_bits, shape=shape, bit_width=bit_width)
    return on_keys(plain, "random_bits", keys, static=(bit_width, shape)) if _is_fry(keys) else plain(keys)


def _is_fry(keys: Any) -> bool:
    return str(keys.dtype) == _FRY


def _jax_hash(*xs: Any) -> Any:
    return tuple(hash_on_cpu(_plain_hash, *jax_broadcast(*xs)))


def _jax_generate(key: Any, *, shape: tuple[int, ...], dtype: str, algorithm: str) -> Any:
    which = getattr(lax.RandomAlgorithm, f"RNG_{algorithm.upper()}")
    made: Any = np.dtype(dtype)
    return tuple(lax.rng_bit_generator(key, shape, made, which))


_SHAPE = Attribute("shape", "dims")
_NO_HASHES = _cost(lambda site: Dim.of(0))
_IMPL = (Attribute("impl", default="threefry2x32"),)

for _operator in (
    Operator("random_seed", ("seeds",), _seed, _jax_seed, None, _IMPL, jax_reference(_jax_seed), _NO_HASHES,
             kernel="hash", capacity="elementwise", doc="a key for each integer"),
    Operator("random_wrap", ("data",), _wrap, _jax_wrap, None, _IMPL, jax_reference(_jax_wrap), _NO_HASHES,
             kernel="hash", capacity="elementwise", doc="keys from their words, the last axis"),
    Operator("random_unwrap", ("keys",), _unwrap, "jax.random.key_data", None, (), words_from_keys, _NO_HASHES,
             kernel="hash", capacity="elementwise", doc="the words of keys, as a new last axis"),
    Operator("random_fold_in", ("keys", "data"), _fold_in, _jax_fold_in, None, (), jax_reference(_plain_fold_in),
             _cost(_for_each_result), kernel="hash", capacity="elementwise", slower=_slower,
             doc="the key that a key and an integer make, broadcast"),
    Operator("random_split", ("keys",), _split, _jax_split, None, (_SHAPE,), jax_reference(_plain_split),
             _cost(_for_each_result), kernel="hash", capacity="position_random", slower=_slower,
             doc="new keys from each key, as new last axes"),
    Operator("random_bits", ("keys",), _bits, _jax_bits, None, (_SHAPE, Attribute("bit_width")),
             jax_reference(_plain_bits), _cost(_for_each_result), kernel="hash", capacity="position_random",
             slower=_slower, doc="random bits from each key as unsigned integers, as new last axes"),
    Operator("threefry2x32", ("k0", "k1", "x0", "x1"), _hash, _jax_hash, None, (), jax_reference(_plain_hash),
             _cost(_for_each_result), kernel="hash", capacity="elementwise", slower=_slower,
             doc="the hash Threefry-2x32 of two words under a key of two, broadcast"),
    Operator("rng_bit_generator", ("key",), _generate, _jax_generate, None,
             (_SHAPE, Attribute("dtype", values=DTYPES), Attribute("algorithm", default="default")),
             jax_reference(_jax_generate), _cost(_for_each_result), kernel="hash", capacity="whole_operand",
             doc="XLA's generator: the next key, and random bits as unsigned integers"),
):  # fmt: skip
    register(_operator)
