"""How much of JAX becomes operators: functions traced, operators found, primitives left opaque.

    python -m benchmarks.coverage [--json FILE] [--each]

Every function is traced on small shapes, with symbolic sizes where JAX can. What is left opaque is a library call to
the JAX primitive: it runs, and nothing is optimized inside it. `--each` lists the functions that have such calls.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import typer
from jax import lax
from rich.console import Console
from rich.table import Column, Table

from relax_eg.frontends import trace
from relax_eg.ir.expr import CALL_DPS_LIBRARY, CORE

NHWC = ("NHWC", "HWIO", "NHWC")


@dataclass
class Result:
    """What one function became: uses of operators, and of opaque primitives; or why it could not be traced."""

    name: str
    operators: Counter[str] = field(default_factory=Counter[str])
    opaque: Counter[str] = field(default_factory=Counter[str])
    error: str = ""


def _named(module: Any, names: str, *specs: Any) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Functions of a module by name; those that this version of JAX does not have are left out."""
    return {name: (getattr(module, name), specs) for name in names.split() if hasattr(module, name)}


# --- jax.nn ---

_NN = _named(
    jax.nn,
    """relu relu6 sigmoid softplus sparse_plus sparse_sigmoid soft_sign silu swish log_sigmoid leaky_relu hard_sigmoid
    hard_silu hard_swish hard_tanh elu celu selu gelu glu squareplus mish identity softmax log_softmax logsumexp
    logmeanexp standardize""",
    "b 8",
) | {
    "one_hot": (lambda i: jax.nn.one_hot(i, 7), ("b @ int32",)),
    "dot_product_attention": (jax.nn.dot_product_attention, ("b s 2 4", "b s 2 4", "b s 2 4")),
    "dot_product_attention, causal": (
        lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True),
        ("b s 4 4", "b s 2 4", "b s 2 4"),
    ),
}

# --- jax.numpy ---

_NUMPY = (
    _named(
        jnp,
        """abs absolute acos acosh angle arccos arcsin arcsinh arctan arctanh asin atan cbrt ceil conj conjugate cos
        cosh deg2rad degrees exp exp2 expm1 fabs floor frexp i0 imag isfinite isinf isnan isneginf isposinf iscomplex
        isreal log log10 log1p log2 logical_not modf nan_to_num negative positive rad2deg radians real reciprocal rint
        round sign signbit sin sinc sinh spacing sqrt square tan tanh trunc all any amax amin argmax argmin argsort
        average count_nonzero cumprod cumsum max mean median min nanargmax nanargmin nancumprod nancumsum nanmax nanmean
        nanmedian nanmin nanprod nanstd nansum nanvar prod ptp sort sort_complex std sum var atleast_1d
        atleast_2d atleast_3d copy diag diagflat diagonal diff ediff1d fliplr flipud gradient matrix_transpose
        ones_like ravel rot90 squeeze trace transpose tril triu unwrap zeros_like corrcoef cov
        histogram""",
        "6 6",
    )
    | _named(
        jnp,
        """add arctan2 copysign divide divmod equal float_power floor_divide fmax fmin fmod greater greater_equal
        heaviside hypot less less_equal logaddexp logaddexp2 maximum minimum mod multiply nextafter not_equal power
        remainder subtract true_divide allclose array_equal dot inner isclose kron matmul outer vdot append""",
        "6 6",
        "6 6",
    )
    | _named(
        jnp,
        """bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift gcd lcm left_shift right_shift
        logical_and logical_or logical_xor""",
        "n @ int32",
        "n @ int32",
    )
    | _named(jnp, "bitwise_not invert bitwise_count packbits unpackbits", "6 @ uint8")
    | {
        "bincount": (lambda i: jnp.bincount(i, length=7), ("n @ int32",)),
        "unique": (lambda i: jnp.unique(i, size=4), ("9 @ int32",)),
        "hstack": (lambda x: jnp.hstack([x, x]), ("n m",)),
        "argpartition": (lambda x: jnp.argpartition(x, 2), ("n 6",)),
        "block": (lambda x: jnp.block([[x, x], [x, x]]), ("n m",)),
        "broadcast_to": (lambda x: jnp.broadcast_to(x, (3, *x.shape)), ("n m",)),
        "choose": (lambda i, x: jnp.choose(i, [x, -x], mode="clip"), ("4 @ int32", "4")),
        "clip": (lambda x: jnp.clip(x, -1, 1), ("n m",)),
        "compress": (lambda x: jnp.compress(jnp.array([1, 0, 1]) > x[:, 0], x, axis=0, size=2), ("3 4",)),
        "concatenate": (lambda x: jnp.concatenate([x, x], 1), ("n m",)),
        "convolve": (jnp.convolve, ("9", "3")),
        "correlate": (jnp.correlate, ("9", "3")),
        "cross": (jnp.cross, ("n 3", "n 3")),
        "digitize": (jnp.digitize, ("5", "9")),
        "einsum": (lambda x, y: jnp.einsum("bij,bjk->bik", x, y), ("b n m", "b m n")),
        "extract": (lambda x: jnp.extract(x > 0, x, size=3), ("6",)),
        "flip": (jnp.flip, ("n m",)),
        "insert": (lambda x: jnp.insert(x, 1, 5.0), ("6",)),
        "interp": (jnp.interp, ("5", "9", "9")),
        "ix_": (lambda x: x[jnp.ix_(jnp.array([0, 1]), jnp.array([1, 2]))], ("4 4",)),
        "linspace": (lambda a, b: jnp.linspace(a, b, 7), ("", "")),
        "logspace": (lambda a, b: jnp.logspace(a, b, 7), ("", "")),
        "meshgrid": (jnp.meshgrid, ("n", "m")),
        "moveaxis": (lambda x: jnp.moveaxis(x, 0, 2), ("n m 3",)),
        "nonzero": (lambda x: jnp.nonzero(x, size=4), ("9",)),
        "pad": (lambda x: jnp.pad(x, 2), ("n m",)),
        "pad, edge": (lambda x: jnp.pad(x, 2, mode="edge"), ("4 4",)),
        "pad, reflect": (lambda x: jnp.pad(x, 2, mode="reflect"), ("4 4",)),
        "partition": (lambda x: jnp.partition(x, 2), ("n 6",)),
        "percentile": (lambda x: jnp.percentile(x, 30.0), ("9",)),
        "piecewise": (lambda x: jnp.piecewise(x, [x < 0, x > 1], [-1.0, 1.0, 0.0]), ("n",)),
        "polyval": (jnp.polyval, ("4", "n")),
        "put_along_axis": (
            lambda x, i, v: jnp.put_along_axis(x, i, v, 1, inplace=False), ("4 6", "4 2 @ int32", "4 2"),
        ),
        "quantile": (lambda x: jnp.quantile(x, 0.3, axis=1), ("4 9",)),
        "repeat": (lambda x: jnp.repeat(x, 2, 0), ("n m",)),
        "resize": (lambda x: jnp.resize(x, (5, 5)), ("4 4",)),
        "roll": (lambda x: jnp.roll(x, 1, 0), ("n m",)),
        "searchsorted": (jnp.searchsorted, ("9", "5")),
        "select": (lambda x: jnp.select([x > 1, x > 0], [x, -x]), ("n",)),
        "split": (lambda x: jnp.split(x, 3, 1), ("n 6",)),
        "stack": (lambda x: jnp.stack([x, x], 1), ("n m",)),
        "swapaxes": (lambda x: jnp.swapaxes(x, 0, 1), ("n m",)),
        "take": (lambda x, i: jnp.take(x, i, axis=0), ("9 m", "n @ int32")),
        "take_along_axis": (lambda x, i: jnp.take_along_axis(x, i, 1), ("4 6", "4 2 @ int32")),
        "tensordot": (lambda x, y: jnp.tensordot(x, y, 1), ("n 4", "4 m")),
        "tile": (lambda x: jnp.tile(x, (2, 3)), ("n m",)),
        "trapezoid": (jnp.trapezoid, ("n m",)),
        "tri": (lambda x: x * jnp.tri(x.shape[0]), ("n n",)),
        "where": (lambda c, x, y: jnp.where(c, x, y), ("n @ bool", "n", "n")),
        "at.set": (lambda x, i: x.at[i].set(1.0), ("9 m", "n @ int32")),
        "at.add": (lambda x, i: x.at[i].add(1.0), ("9 m", "n @ int32")),
        "at.apply": (lambda x, i: x.at[i].apply(jnp.sin), ("9 m", "n @ int32")),
        "index, computed": (lambda x, i: x[i, 1:], ("9 5", "@ int32")),
    }
)  # fmt: skip

# --- jax.numpy.linalg, jax.scipy, jax.lax ---


def _definite(x: Any) -> Any:
    return x @ x.mT + jnp.eye(x.shape[-1])


_LINEAR = (
    _named(jnp.linalg, "cond det inv matrix_norm matrix_rank norm pinv qr slogdet svd svdvals vector_norm", "4 4")
    | {
        name: (lambda x, name=name: getattr(jnp.linalg, name)(_definite(x)), ("4 4",))
        for name in "cholesky eigh eigvalsh eig eigvals".split()
    }
    | {
        "solve": (jnp.linalg.solve, ("4 4", "4 2")),
        "lstsq": (lambda a, b: jnp.linalg.lstsq(a, b)[0], ("5 3", "5")),
        "matrix_power": (lambda a: jnp.linalg.matrix_power(a, 5), ("4 4",)),
        "multi_dot": (lambda a, b: jnp.linalg.multi_dot([a, b, a]), ("4 4", "4 4")),
        "scipy.cho_solve": (
            lambda a, b: jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(_definite(a)), b), ("4 4", "4 2"),
        ),
        "scipy.expm": (jax.scipy.linalg.expm, ("4 4",)),
        "scipy.lu": (jax.scipy.linalg.lu, ("4 4",)),
        "scipy.solve_triangular": (jax.scipy.linalg.solve_triangular, ("4 4", "4 2")),
        "fft": (jnp.fft.fft, ("n 8",)),
        "fft2": (jnp.fft.fft2, ("n 4 8",)),
        "irfft": (lambda x: jnp.fft.irfft(jnp.fft.rfft(x)), ("n 8",)),
        "fftshift": (jnp.fft.fftshift, ("n 8",)),
    }
)  # fmt: skip

_SPECIAL = _named(
    jax.scipy.special,
    "digamma entr erf erfc erfinv expit expi exp1 gammaln i0 i0e i1 i1e log_ndtr logit logsumexp ndtr ndtri softmax",
    "n 4",
) | {
    "betainc": (lambda x: jax.scipy.special.betainc(x, x, x), ("n",)),
    "gammainc": (jax.scipy.special.gammainc, ("n", "n")),
    "polygamma": (lambda x: jax.scipy.special.polygamma(1, x), ("n",)),
    "xlogy": (jax.scipy.special.xlogy, ("n", "n")),
    "zeta": (jax.scipy.special.zeta, ("n", "n")),
    "norm.logpdf": (jax.scipy.stats.norm.logpdf, ("n",)),
    "gamma.logpdf": (jax.scipy.stats.gamma.logpdf, ("n", "n")),
}


def _convolution(x: Any, w: Any, stride: int = 1, groups: int = 1) -> Any:
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=NHWC, feature_group_count=groups)


def _max_pool(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


_LAX = _named(
    lax,
    """bessel_i0e bessel_i1e cbrt ceil cosh cumlogsumexp cummax cummin cumprod cumsum digamma erf erf_inv exp2 is_finite
    lgamma logistic rsqrt sign""",
    "n 4",
) | {
    "clamp": (lambda x: lax.clamp(-1.0, x, 1.0), ("n",)),
    "clz, population_count": (lambda i: lax.clz(i) + lax.population_count(i), ("n @ int32",)),
    "conv_general_dilated": (_convolution, ("n h w 3", "3 3 3 8")),
    "conv, grouped": (lambda x, w: _convolution(x, w, 2, 4), ("n h w 4", "3 3 1 8")),
    "conv_transpose": (lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"), ("2 8 8 3", "3 3 3 8")),
    "conv, gradient": (
        lambda x, w: jax.grad(lambda x, w: (_convolution(x, w) ** 2).sum(), (0, 1))(x, w), ("2 8 8 3", "3 3 3 8"),
    ),
    "reduce_window": (_max_pool, ("n h+3 w+3 2",)),
    "reduce_window, gradient": (jax.grad(lambda x: _max_pool(x).sum()), ("2 4 4 2",)),
    "dynamic_slice": (lambda x, i: lax.dynamic_slice(x, (i, i), (2, 2)), ("4 4", "@ int32")),
    "dynamic_update_slice": (lambda x, y, i: lax.dynamic_update_slice(x, y, (i, i)), ("4 4", "2 2", "@ int32")),
    "select_n": (lambda i, x: lax.select_n(i, x, -x, x * 2), ("n @ int32", "n")),
    "sort": (lambda x: lax.sort((x, -x), num_keys=1), ("n m",)),
    "top_k": (lambda x: lax.top_k(x, 2), ("n 5",)),
    "approx_max_k": (lambda x: lax.approx_max_k(x, 2), ("4 8",)),
    "reduce_precision": (lambda x: lax.reduce_precision(x, 8, 7), ("n",)),
    "bitcast_convert_type": (lambda x: lax.bitcast_convert_type(x, jnp.int32), ("n",)),
    "dot_general, mixed": (
        lambda x, w: lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32),
        ("n 4 @ bf16", "4 m"),
    ),
    "rng_bit_generator": (lambda k: lax.rng_bit_generator(k, (4,)), ("4 @ uint32",)),
    "random.normal": (lambda k: jax.random.normal(k, (4,)), ("@ key",)),
    "cond": (lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x), ("n",)),
    "scan": (lambda x: lax.scan(lambda c, r: (c + r, c), jnp.zeros(x.shape[1:]), x), ("n m",)),
    "while_loop": (lambda x: lax.fori_loop(0, 9, lambda i, c: c * 2, x), ("n",)),
}  # fmt: skip


# --- models ---


def _mlp(p: Any, x: Any) -> Any:
    return jax.nn.gelu(x @ p["a"]) @ p["b"]


def _step(p: Any, x: Any, y: Any) -> Any:
    value, grads = jax.value_and_grad(lambda p: ((_mlp(p, x) - y) ** 2).mean())(p)
    return value, jax.tree.map(lambda w, g: w - 0.1 * g, p, grads)


def _adam(p: Any, m: Any, v: Any, x: Any, y: Any) -> Any:
    value, g = jax.value_and_grad(lambda p: ((_mlp(p, x) - y) ** 2).mean())(p)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
    v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, v, g)
    return value, jax.tree.map(lambda w, m, v: w - 1e-3 * m / (jnp.sqrt(v) + 1e-8), p, m, v), m, v


def _normalise(x: Any) -> Any:
    return (x - x.mean((0, 1, 2))) * lax.rsqrt(x.var((0, 1, 2)) + 1e-5)


def _resnet(p: Any, x: Any) -> Any:
    x = _max_pool(jax.nn.relu(_normalise(_convolution(x, p["stem"], 2))))
    for w in p["blocks"]:
        x = jax.nn.relu(x + _normalise(_convolution(x, w)))
    return x.mean((1, 2)) @ p["head"]


def _unet(p: Any, x: Any) -> Any:
    a = jax.nn.silu(_convolution(x, p["stem"]))
    b = jax.nn.silu(_convolution(_max_pool(a), p["middle"]))
    return _convolution(jnp.concatenate([a, jax.image.resize(b, a.shape, "bilinear")], -1), p["up"])


def _norm(x: Any) -> Any:
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def _rotary(x: Any) -> Any:
    at = jnp.arange(x.shape[1])[:, None] / 10000.0 ** (jnp.arange(x.shape[-1] // 2) / x.shape[-1])
    a, b = jnp.split(x, 2, -1)
    cos, sin = jnp.cos(at)[:, None], jnp.sin(at)[:, None]
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def _llama(p: Any, ids: Any) -> Any:
    x = p["tokens"][ids]
    b, s = ids.shape
    for layer in p["layers"]:
        q, k, v = (((_norm(x) @ w).reshape(b, s, 2, 4)) for w in layer["qkv"])
        mixed = jax.nn.dot_product_attention(_rotary(q), _rotary(k), v, is_causal=True)
        x = x + mixed.reshape(b, s, 8) @ layer["out"]
        x = x + (jax.nn.silu(_norm(x) @ layer["gate"]) * (_norm(x) @ layer["up"])) @ layer["down"]
    return _norm(x) @ p["tokens"].T


def _language_step(p: Any, ids: Any) -> Any:
    def loss(p: Any) -> Any:
        scores = jax.nn.log_softmax(_llama(p, ids)[:, :-1])
        return -jnp.take_along_axis(scores, ids[:, 1:, None], 2).mean()

    return jax.value_and_grad(loss)(p)


def _experts(p: Any, x: Any) -> Any:
    weight, chosen = lax.top_k(jax.nn.softmax(x @ p["router"]), 2)
    hidden = jax.nn.silu(jnp.einsum("bd,edh->beh", x, p["up"]))
    out = jnp.einsum("beh,ehd->bed", hidden, p["down"])
    return (jnp.take_along_axis(out, chosen[..., None], 1) * weight[..., None]).sum(1)


def _gaussian_process(x: Any, y: Any, z: Any) -> Any:
    def kernel(a: Any, b: Any) -> Any:
        return jnp.exp(-0.5 * ((a[:, None] - b[None]) ** 2).sum(-1))

    factor = jax.scipy.linalg.cho_factor(kernel(x, x) + 0.1 * jnp.eye(x.shape[0]), lower=True)
    return kernel(z, x) @ jax.scipy.linalg.cho_solve(factor, y)


_MLP = {"a": "6 8", "b": "8 3"}
_LAYER = {"qkv": ["8 8", "8 8", "8 8"], "out": "8 8", "gate": "8 16", "up": "8 16", "down": "16 8"}
_DECODER = {"tokens": "20 8", "layers": [_LAYER, _LAYER]}

_MODELS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "mlp": (_mlp, (_MLP, "b 6")),
    "mlp, gradient step": (_step, (_MLP, "b 6", "b 3")),
    "mlp, adam step": (_adam, (_MLP, _MLP, _MLP, "b 6", "b 3")),
    "resnet": (_resnet, ({"stem": "3 3 3 4", "blocks": ["3 3 4 4", "3 3 4 4"], "head": "4 5"}, "b 16 16 3")),
    "resnet, gradient": (
        jax.grad(lambda p, x: _resnet(p, x).sum()),
        ({"stem": "3 3 3 4", "blocks": ["3 3 4 4"], "head": "4 5"}, "2 16 16 3"),
    ),
    "u-net": (_unet, ({"stem": "3 3 3 4", "middle": "3 3 4 4", "up": "3 3 8 2"}, "b 8 8 3")),
    "llama": (_llama, (_DECODER, "b s @ int32")),
    "llama, gradient": (_language_step, (_DECODER, "b 6 @ int32")),
    "mixture of experts": (_experts, ({"router": "8 4", "up": "4 8 16", "down": "4 16 8"}, "b 8")),
    "gaussian process": (_gaussian_process, ("6 2", "6", "b 2")),
}

GROUPS = {
    "jax.nn": _NN,
    "jax.numpy": _NUMPY,
    "linear algebra, fft": _LINEAR,
    "jax.scipy": _SPECIAL,
    "jax.lax": _LAX,
    "models": _MODELS,
}


def cover(name: str, fn: Callable[..., Any], specs: tuple[Any, ...]) -> Result:
    """What `fn` becomes when it is traced."""
    result = Result(name)
    try:
        module = trace(fn, *specs)
    except Exception as error:
        result.error = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        return result
    for function in module.functions:
        for e in function.expressions():
            if e.op == CALL_DPS_LIBRARY:
                result.opaque[str(e.attr("name"))] += 1
            elif e.op not in CORE:
                result.operators[e.op] += 1
    return result


COLUMNS = ("group", "functions", "all operators", "operators", "opaque", "left opaque, and how often")
Found = Mapping[str, Sequence[Result]]


def rows(found: Found) -> list[tuple[str, ...]]:
    """One row for each group, its cells as `COLUMNS` names them: functions traced, those without opaque calls, uses of
    operators and of opaque primitives, the opaque primitives."""
    made: list[tuple[str, ...]] = []
    for group, results in found.items():
        traced = [r for r in results if not r.error]
        opaque = sum((r.opaque for r in traced), Counter[str]())
        left = ", ".join(f"{n.removeprefix('jax.')} {c}" for n, c in opaque.most_common())
        counts = (len(traced), sum(not r.opaque for r in traced), sum(r.operators.total() for r in traced))
        made.append((group, *map(str, (*counts, opaque.total())), left or "-"))
    return made


def show(found: Found, each: bool) -> None:
    """Print the table, and what could not be traced; with `each`, also the functions that have opaque calls."""
    console = Console(width=None if sys.stdout.isatty() else 150)
    first, *counts, last = COLUMNS
    table = Table(first, *(Column(c, justify="right") for c in counts), Column(last, overflow="fold"))
    for row in rows(found):
        table.add_row(*row)
    console.print(table)
    for r in (r for results in found.values() for r in results):
        if each and r.opaque:
            console.print(f"{r.name}: {', '.join(sorted(r.opaque))}", highlight=False)
        if r.error:
            console.print(f"not traced: {r.name}: {r.error}", highlight=False, markup=False)


def save(found: Found, path: Path) -> None:
    """Write the results as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    groups = {group: [asdict(r) for r in results] for group, results in found.items()}
    path.write_text(json.dumps({"version": 1, "jax": jax.__version__, "groups": groups}, indent=1))


def main(
    each: Annotated[bool, typer.Option("--each", help="list the functions that have opaque calls")] = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="also write the results here")] = None,
) -> None:
    """How much of JAX becomes operators: functions traced, uses of operators, primitives left opaque."""
    found = {group: [cover(n, f, s) for n, (f, s) in functions.items()] for group, functions in GROUPS.items()}
    show(found, each)
    if json_out:
        save(found, json_out)


if __name__ == "__main__":
    typer.run(main)
