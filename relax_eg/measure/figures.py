"""The small array programs that calibration times. Each has a name and measures one parameter of the cost model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from relax_eg.extract.profiles.profile import IN_CALLER, Profile
from relax_eg.ops import get

FLOATS = ("float32", "float64", "float16", "bfloat16")
# chosen: sides of square matmuls that take hardly longer than the call itself
SMALL = (3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 56, 64)
# chosen: rows, columns and depth of matmuls
MATMULS = [
    *((m, 1024, 1024) for m in (1, 2, 4, 8, 16, 64, 256, 1024)),
    *((1024, n, 1024) for n in (4, 16, 64, 256)),
    *((1024, 1024, k) for k in (4, 16, 64, 256)),
    *((n, n, n) for n in (*SMALL, 128, 192, 256, 512)),
    (8, 384, 384), (64, 384, 1536), (128, 64, 128), (1, 256, 256), (16, 256, 256), (16, 16, 4096),
]  # fmt: skip
ROWS = (2, 4, 8, 16, 24, 32, 48, 64, 128)  # chosen: rows of matmuls that are timed with both layouts of the weight
# chosen: bytes of the weights of a chain of matmuls. They are more than a core's own caches hold, as those of a model
# are: a weight that was just read makes the same matmul up to three times as fast.
CHAINED_BYTES = 16 << 20
# chosen: side of weights whose rows are a multiple of a page; lines of their columns share few sets of a cache
PAGED = 1024
# chosen: sides of weights; three weights are timed in separate matmuls, and joined in one matmul
APART = (64, 96, 128, 192, 256, 320, 384, 448, 512)
APART_ROWS = 8  # chosen: rows of the matmuls with the weights of `APART`
CHAINS, LOOPS = (32, 128), (100, 1100)  # chosen: reductions in a chain; steps of a loop
IN_A_CHAIN = 2  # given: kernels of a reduction in a chain on CPUs: the maximum, and the subtraction
# given: reductions in a chain: as many as XLA for CPUs runs in the thread of the call, and one more
HANDED = IN_CALLER // IN_A_CHAIN, IN_CALLER // IN_A_CHAIN + 1
# chosen: kernels in a step of a loop, so many that XLA does not make one kernel of the loop; and the sides of the
# matrices that they multiply, for which they compute next to nothing; the second ones are tiny (`Profile.tiny_launch`),
# the third ones are multiplied with vectors
IN_A_STEP, IN_A_STEP_SIDE, TINY_SIDE, VECTOR_SIDE = 10, 8, 4, 16
CONVOLUTIONS = ((64, 28), (128, 14), (32, 56))  # chosen: channels, side
THIN = (3, 16, 112)  # chosen: channels and output channels of a convolution of many small windows, and its side
TAPS = (128, 28)  # chosen: channels and side of the result of a sum over nine taps, channels last
ONE_ROW = (512, 1024, 2048)  # chosen: sides of weights of matmuls with one row
# chosen: of a quick calibration: reductions in a chain, rows of the matmuls with both layouts and with `PAGED`
FEW_CHAINS, FEW_ROWS, FEW_PAGED = (16, 48), (2, 8, 16, 32), (8, 16, 32)
DEPTH, TRANSPOSED, LAYOUT = 64, 768, 768  # chosen: rows, depth and sides of single figures
LAYOUTS = (False, True)  # given: whether weights are stored output axis first
SLOW_LOOPS: Mapping[str, Callable[[Any], Any]] = {
    "sort": lambda a: get("sort").jax_function()(a, axis=1, num_keys=1, stable=True),
    "argmax": lambda a: get("argmax").jax_function()(a, axis=1, keepdims=False, dtype="int32"),
    "cumsum": lambda a: get("cumsum").jax_function()(a, axis=1, reverse=False),
}


@dataclass(frozen=True)
class Figure:
    """A function with its arguments, to be timed.

    - `name`: its name, by which the fits find its time.
    - `fn`, `args`: the function and its arguments.
    - `options`: XLA's compiler options.
    - `x64`: whether it is compiled with 64-bit types enabled.
    """

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    x64: bool = False

    def compiled(self) -> Callable[[], Any]:
        """A call without arguments that runs the compiled function."""
        with jax.enable_x64(self.x64 or bool(jax.config.jax_enable_x64)):  # type: ignore[reportAttributeAccessIssue]
            made: Any = jax.jit(self.fn).lower(*self.args).compile(compiler_options=dict(self.options) or None)
        return lambda: made(*self.args)


def is_large(p: Profile) -> bool:
    """Whether a device is so fast that the time of a small program is only that of its dispatch."""
    return p.bandwidth > 3e11


def vector_size(p: Profile) -> int:
    return 1 << 24 if is_large(p) else 1 << 14


def transposed_size(p: Profile) -> int:
    return 8192 if is_large(p) else TRANSPOSED


def rate_side(p: Profile) -> int:
    """The side of the square matmuls by which peak rates are measured."""
    return 8192 if is_large(p) else 512


def slow_side(p: Profile) -> int:
    """The side of the square arrays of the figures of `SLOW_LOOPS`."""
    return 4096 if is_large(p) else 512


def images(p: Profile) -> int:
    """The number of images of the figures of convolutions."""
    return 64 if is_large(p) else 1


def has_threads(p: Profile) -> bool:
    """Whether matmuls depend on layouts of weights and on threads that wake, as on a CPU. Those of other devices are
    priced by their tiles, which are not fitted."""
    return p.platform == "cpu"


def matrix_sides(p: Profile) -> list[int]:
    """Sides of the matrices that are factored."""
    return [n * (8 if is_large(p) else 1) for n in (64, 128, 256, 512)]


def triangular_sizes(p: Profile) -> list[tuple[int, int]]:
    """Sides of the triangular matrices, and the numbers of their right-hand sides."""
    return [(n, columns) for n in matrix_sides(p)[1:] for columns in (1, 16, n)]


def memory_sizes(p: Profile) -> list[int]:
    """Bytes of the arrays of the bandwidth figures, largest first."""
    largest = 1 << 30 if is_large(p) else 1 << 26
    return [largest >> k for k in range(0, 13, 2)]


# chosen: bytes. The memory of larger results may go back to the system and be allocated again page by page, which takes
# time that is not due to bandwidth.
LARGEST_RESULT = 1 << 24
# chosen: bytes of results for which fresh memory may take time
_FRESH = (24 << 20, 32 << 20, 48 << 20, 64 << 20)


def result_sizes(p: Profile) -> list[tuple[int, str]]:
    """Pairs (bytes of a newly allocated result, name of its figure), smallest first. Empty for devices other than CPUs,
    because JAX keeps the memory of such a device."""
    if p.platform != "cpu":
        return []
    small = [(n, f"copy {n}") for n in reversed(memory_sizes(p)) if 1 << 22 <= n <= LARGEST_RESULT]
    return [*small, *((n, f"fresh {n}") for n in _FRESH)]


def simple_figures(p: Profile, chained: Iterable[int], read: Iterable[int], copied: Sequence[int]) -> Iterator[Figure]:
    """The figures of dispatch, loops, bandwidth, elementwise operators and transposed reads, of any calibration.

    - `chained`: the numbers of reductions in the chains, besides those of `HANDED`.
    - `read`: the bytes of each of two arrays that are read.
    - `copied`: those of `read` that are copied, too.
    """

    def filled(n: int, x: float) -> Any:  # without a program of XLA, which takes longer to compile
        return jnp.asarray(np.full(n, x, np.float32))

    yield Figure("dispatch", lambda x: x, (filled(8, 0.0),))
    line = jnp.asarray(np.linspace(0.0, 1.0, 64, dtype=np.float32))
    for n in (*chained, *(HANDED if has_threads(p) else ())):
        yield Figure(f"chain {n}", chain_of_kernels(n), (line,))
    for n in LOOPS:
        yield Figure(f"loop {n}", loop(n), (line,))
    yield from loops_of_kernels(p)
    for n in read:
        x, y = filled(n // 4, 0.0), filled(n // 4, 1.0)
        yield Figure(f"read {n}", lambda x, y: jnp.sum(x * y), (x, y))
        if n in copied:
            yield Figure(f"copy {n}", lambda x: x + 1.0, (x,))
    yield Figure("elementwise", polynomial, (filled(vector_size(p), 0.0),))
    normal, side = normal_arrays(), transposed_size(p)
    a, b = normal(side, side), normal(side, side)
    yield Figure("in order", lambda a, b: jnp.sum(a * b), (a, b))
    yield Figure("transposed", lambda a, b: jnp.sum(a * b.T), (a, b))


def normal_arrays() -> Callable[..., Any]:
    """A function that makes a float32 array of random elements of the shape that is given; the same for each call of
    this one."""
    rng = np.random.default_rng(0)
    return lambda *shape: jnp.asarray(rng.standard_normal(shape, np.float32))


def figures(p: Profile) -> Iterator[Figure]:
    """All figures for a device similar to `p`, including those of its compilation modes."""
    normal, sizes = normal_arrays(), memory_sizes(p)
    yield from simple_figures(p, CHAINS, sizes, [n for n in sizes if n <= LARGEST_RESULT or is_large(p)])
    for n, name in result_sizes(p):
        if name.startswith("fresh"):
            yield Figure(name, lambda x: x + 1.0, (jnp.zeros(n // 4),))
    square = normal(rate_side(p), rate_side(p))
    for dtype in (*FLOATS, "int32"):
        x = square.astype("float32" if dtype == "float64" else dtype)
        if dtype == "float64":
            with jax.enable_x64(True):  # type: ignore[reportAttributeAccessIssue]
                x = square.astype(dtype)
        yield Figure(f"rate {dtype}", jnp.matmul, (x, x), x64=dtype == "float64")
    yield bytes_product(rate_side(p))
    for channels, size in CONVOLUTIONS:
        x, w = normal(images(p), channels, size, size), normal(channels, channels, 3, 3)
        yield Figure(f"convolution {channels} {size}", _conv, (x, w))
    channels, out, size = THIN
    yield Figure("thin convolution", _conv, (normal(images(p), channels, size, size), normal(out, channels, 3, 3)))
    x, w = normal(images(p), 128, 28, 28), normal(128, 1, 3, 3)
    yield Figure("depthwise", lambda x, w: _conv(x, w, 128), (x, w))
    if p.tap_rate:
        channels, size = TAPS
        yield Figure("taps", by_taps, (normal(size + 2, size + 2, channels), normal(3, 3, channels)))
    for n in matrix_sides(p):
        x = normal(n, n)
        definite = x @ x.T / n + jnp.eye(n)
        yield Figure(f"cholesky {n}", lambda a: lax.linalg.cholesky(a, symmetrize_input=False), (definite,))
        yield Figure(f"lu {n}", lambda a: lax.linalg.lu(a)[0], (x,))
    for n, columns in triangular_sizes(p):
        lower = jnp.tril(normal(n, n)) / n + jnp.eye(n)  # far from singular: no value overflows
        yield Figure(f"solve {n} {columns}", _solve, (lower, normal(n, columns)))
    for name, fn in SLOW_LOOPS.items():
        yield Figure(name, fn, (normal(slow_side(p), slow_side(p)),))
    if has_threads(p):
        yield from _matmuls_on_threads(p, normal)


def _matmuls_on_threads(p: Profile, normal: Callable[..., Any]) -> Iterator[Figure]:
    for mode, options in (("", {}), *((f"{m.name}: ", m.options) for m in p.modes)):
        for m, n, k in MATMULS:
            yield Figure(f"{mode}matmul {m} {n} {k}", jnp.matmul, (normal(m, k), normal(k, n)), options)
        yield from chains_of_matmuls(ROWS, LAYOUT, LAYOUTS, mode, options)
        yield from chains_of_matmuls(ROWS, PAGED, LAYOUTS[:1], mode, options)
        for n in ONE_ROW:
            yield from chains_of_matmuls((1,), n, LAYOUTS, mode, options)
        for n in APART:
            x, ws = normal(APART_ROWS, n), [normal(n, n) for _ in range(3)]
            yield Figure(f"{mode}apart {n}", lambda x, *ws: [x @ w for w in ws], (x, *ws), options)
            yield Figure(f"{mode}as one {n}", jnp.matmul, (x, jnp.concatenate(ws, axis=1)), options)


def chain_of_kernels(count: int) -> Callable[[Any], Any]:
    def run(x: Any) -> Any:
        for _ in range(count):
            # Each step depends on the one before. Without the barrier XLA makes one kernel of all steps on GPUs.
            x = lax.optimization_barrier(x - jnp.max(x))
        return x

    return run


def loops_of_kernels(p: Profile) -> Iterator[Figure]:
    """On CPUs, loops of small kernels: sums of products, which are XLA's own loops, and matmuls by the library."""
    if not has_threads(p):
        return
    sides = IN_A_STEP_SIDE, TINY_SIDE, VECTOR_SIDE
    w, tiny, wide = (jnp.asarray(np.eye(n, dtype=np.float32)) for n in sides)
    steps: dict[str, tuple[Callable[[Any, Any], Any], tuple[Any, Any]]] = {
        "kernels": (lambda w, x: jnp.sum(w * x, -1), (w, w[0])),
        "matmuls": (jnp.matmul, (w, w)),
        "tiny matmuls": (jnp.matmul, (tiny, tiny)),
        "vectors": (jnp.matmul, (wide, wide[0])),
    }

    def looped(count: int, kernel: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def run(w: Any, x: Any) -> Any:
            def step(_: Any, x: Any) -> Any:
                for _ in range(IN_A_STEP):
                    x = lax.optimization_barrier(kernel(w, x))
                return x

            return lax.fori_loop(0, count, step, x)

        return run

    for n in LOOPS:
        for name, (kernel, arguments) in steps.items():
            yield Figure(f"loop of {name} {n}", looped(n, kernel), arguments)


def chained_weights(side: int) -> int:
    """The number of square weights of a chain of matmuls."""
    return max(2, -(-CHAINED_BYTES // (4 * side * side)))


def chains_of_matmuls(
    rows: Iterable[int], side: int, layouts: Sequence[bool], mode: str = "", options: Mapping[str, str] | None = None
) -> Iterator[Figure]:
    """For each number of rows and each layout, matmuls of the result of the one before with a weight of its own, as the
    layers of a model are; a layout says whether weights are stored output axis first. All share the weights."""
    rng = np.random.default_rng(0)
    # Of this size, values neither grow nor vanish along the chain. The weights are separate arrays of equal values.
    weight = rng.standard_normal((side, side), np.float32) / np.float32(side**0.5)
    weights = [jnp.array(weight) for _ in range(chained_weights(side))]
    for n in rows:
        x = jnp.asarray(rng.standard_normal((n, side), np.float32))
        for turned in layouts:
            name = f"{mode}{'out x in' if turned else 'in x out'} {n} {side}"
            yield Figure(name, partial(_chain, linear if turned else jnp.matmul), (x, *weights), options or {})


def _chain(product: Callable[[Any, Any], Any], x: Any, *weights: Any) -> Any:
    for w in weights:
        x = product(x, w)
    return x


def loop(count: int) -> Callable[[Any], Any]:
    return lambda x: lax.fori_loop(0, count, lambda i, y: y - jnp.max(y), x)


def polynomial(x: Any) -> Any:
    for _ in range(DEPTH):
        x = x * x + 0.5
    return x


def bytes_product(side: int) -> Figure:
    """A square product of bytes, summed in int32."""
    x = jnp.asarray(np.random.default_rng(0).integers(-127, 128, (side, side)).astype(np.int8))
    return Figure("rate int8", lambda x, y: jnp.matmul(x, y, preferred_element_type="int32"), (x, x))


def linear(x: Any, w: Any) -> Any:
    return lax.dot_general(x, w, (((1,), (1,)), ((), ())))


def _solve(a: Any, b: Any) -> Any:
    return lax.linalg.triangular_solve(a, b, left_side=True, lower=True)


def by_taps(x: Any, w: Any) -> Any:
    """The sum over the taps of a window of an image, channels last."""
    (rows, columns), size = w.shape[:2], x.shape[0] - w.shape[0] + 1
    return sum(x[i : i + size, j : j + size] * w[i, j] for i in range(rows) for j in range(columns))


def _conv(x: Any, w: Any, groups: int = 1) -> Any:
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", feature_group_count=groups)
