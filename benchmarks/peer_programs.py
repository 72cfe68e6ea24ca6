"""The programs of `benchmarks.peers`, and how relax_eg and `jax.jit` run them."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import cases, dynamic
from benchmarks.minilm import windows
from benchmarks.models import gpt2_specs, gpt2_step
from benchmarks.peer_turns import serve
from examples import minilm

OURS, JAX = "relax_eg", "jax.jit"
PATTERN_SIZE, QUICK_SIZE = 1024, 64
LENGTHS = (5, 16, 64, 128, 512)
OCR = {"classifier": ("cls", "1 3 48 192"), "detector": ("det", "1 3 320 320"), "recogniser": ("rec", "1 3 48 320")}


@dataclass(frozen=True)
class Program:
    """A program that libraries run.

    - `group`, `name`: its place on the page.
    - `kind`: how a library makes it.
    - `arguments`: its inputs as a pytree; `weights`: how many leaves, the first ones, are known ahead of calls.
    - `function`: its function in `benchmarks.cases`, or the name of a library's case.
    - `more`: what a kind needs besides.
    """

    group: str
    name: str
    kind: str
    arguments: Callable[[], Any]
    weights: int = 0
    function: str = ""
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])


def attention_layer(params: Any, x: jax.Array, heads: int = 12) -> jax.Array:
    """Attention of each row to all rows, with its projections; (batch, length, width)."""
    b, s, d = x.shape
    q, k, v = ((x @ params[n]).reshape(b, s, heads, d // heads).transpose(0, 2, 1, 3) for n in "qkv")
    mixed = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / (d // heads) ** 0.5) @ v
    return mixed.transpose(0, 2, 1, 3).reshape(b, s, d) @ params["out"]


def programs(quick: bool) -> Iterator[Program]:
    for length in LENGTHS:
        more = {"model": str(minilm._model_folder() / "model.safetensors")}
        yield Program("minilm", f"{length} tokens", "minilm", functools.partial(_window, length), more=more)
    lengths = "3 texts" if quick else "200 texts, one at a time"
    yield Program("stream", lengths, "stream", lambda: dynamic.texts(minilm.load()[1], quick), more=more)
    for rows in (16, 256):
        given = functools.partial(_attention, rows, 48 if quick else 768)
        yield Program("attention", f"{rows} tokens", "pattern", given, 4, "attention_layer")
    sizes = {"layers": 1, "width": 48, "vocabulary": 64, "places": 128} if quick else {"layers": 2}
    more = {"heads": 12, "layers": sizes["layers"], "names": [jax.tree_util.keystr(k) for k, _ in _leaves(sizes)]}
    yield Program("training", "GPT-2 small, 2 layers, 2 x 128 tokens", "training", lambda: _gpt2(sizes), more=more)
    for name in ("tinygp: Kalman filter", "tinygp: marginal likelihood and prediction"):
        for what in (name, f"{name}, gradient"):
            yield Program("statistics", what, "library", tuple, function=what, more={"quick": quick})
    folder = folder_of("rapidocr_onnxruntime")
    for name, (file, shape) in OCR.items() if folder else ():
        (path,) = (folder / "models").glob(f"*{file}_infer.onnx")
        given = functools.partial(_image, tuple(map(int, shape.split())))
        yield Program("recognition", name, "onnx", given, more={"onnx": str(path), "shape": shape})
    size = QUICK_SIZE if quick else PATTERN_SIZE
    for case in cases.CASES:
        weights = len(jax.tree.leaves(case.specs[0])) if case.weights else 0
        given = functools.partial(case.arguments, size)
        yield Program("patterns", case.name, "pattern", given, weights, case.written.__name__)


def _window(length: int) -> list[np.ndarray]:
    """Token ids and mask; int64, as torch takes them."""
    return [x.astype(np.int64) for x in windows(minilm.load()[1], minilm.sentences(), 1, length)]


def _attention(rows: int, width: int) -> Any:
    rng = np.random.default_rng(0)
    scale = width**-0.5
    params = {n: (scale * rng.standard_normal((width, width))).astype(np.float32) for n in ("q", "k", "v", "out")}
    return params, rng.standard_normal((1, rows, width)).astype(np.float32)


def _leaves(sizes: Mapping[str, int]) -> list[tuple[Any, str]]:
    return jax.tree_util.tree_leaves_with_path(gpt2_specs(**sizes))


def _gpt2(sizes: Mapping[str, int]) -> Any:
    rng, specs = np.random.default_rng(0), gpt2_specs(**sizes)
    made = jax.tree.map(lambda s: (0.02 * rng.standard_normal(tuple(map(int, s.split())))).astype(np.float32), specs)
    return made, rng.integers(0, len(made["tokens"]), (2, 129)).astype(np.int32)


def _image(shape: tuple[int, ...]) -> list[np.ndarray]:
    return [np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)]


def folder_of(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


# -- the worker of relax_eg and jax.jit


def worker(who: str, quick: bool) -> None:
    import relax_eg as rx

    made = {f"{p.group}: {p.name}": p for p in programs(quick)}
    jax.block_until_ready((rx.jit if who == OURS else jax.jit)(lambda x: x + 1.0)(jnp.zeros(4)))
    params = None

    def make(name: str) -> Callable[[], Any]:
        nonlocal params
        program = made[name]
        if program.kind in ("minilm", "stream") and params is None:
            params = minilm.load()[0]
        return _MAKERS[program.kind](program, params, who == OURS)

    package = "relax-eg" if who == OURS else "jax"
    serve(make, lambda result: [np.asarray(x) for x in jax.tree.leaves(result)], package)


def _jitted(fn: Callable[..., Any], is_ours: bool, weights: Sequence[str] = (), **options: Any) -> Any:
    import relax_eg as rx

    return rx.jit(fn, weights=weights, **options) if is_ours else jax.jit(fn, **options)


def _waiting(fn: Callable[..., Any], args: Any) -> Callable[[], Any]:
    return lambda: jax.block_until_ready(fn(*args))


def _pattern(program: Program, params: Any, is_ours: bool) -> Callable[[], Any]:
    named = {c.name: c for c in cases.CASES}
    fn = attention_layer if program.function == "attention_layer" else named[program.name].written
    args = jax.tree.map(jnp.asarray, tuple(program.arguments()))
    return _waiting(_jitted(fn, is_ours, ["params"] if program.weights else []), args)


def _minilm(program: Program, params: Any, is_ours: bool) -> Callable[[], Any]:
    ids, mask = (jnp.asarray(x, jnp.int32) for x in program.arguments())
    return _waiting(_jitted(minilm.encode, is_ours, ["params"]), (params, ids, mask))


def _stream(program: Program, params: Any, is_ours: bool) -> Callable[[], Any]:
    encode, _ = dynamic.WAYS["ours" if is_ours else "jit"](params)
    texts = program.arguments()
    return lambda: np.concatenate([np.asarray(encode(ids)) for ids in texts])


def _training(program: Program, params: Any, is_ours: bool) -> Callable[[], Any]:
    """Steps of training, each from the state that the one before left; the loss is the result."""
    given, ids = jax.tree.map(jnp.asarray, program.arguments())
    zeros = lambda: jax.tree.map(jnp.zeros_like, given)  # noqa: E731
    state, count, ids = (given, zeros(), zeros()), 0, jnp.asarray(ids)
    step = _jitted(functools.partial(gpt2_step, heads=program.more["heads"]), is_ours, donate_argnums=(0, 1, 2))

    def call() -> Any:
        nonlocal state, count
        count += 1
        loss, *rest = jax.block_until_ready(step(*state, jnp.float32(count), ids))
        state = tuple(rest)
        return loss

    return call


def _of_library(program: Program, params: Any, is_ours: bool) -> Callable[[], Any]:
    from benchmarks.library_times import use_of

    use, fn = use_of(program.function, program.more["quick"])
    return _waiting(_jitted(fn, is_ours), use.arguments())


def _onnx(program: Program, params: Any, is_ours: bool) -> Callable[[], Any]:
    import relax_eg as rx
    from relax_eg.backend.lowering.lower import run_function

    (x,) = map(jnp.asarray, program.arguments())
    module = rx.from_onnx(program.more["onnx"], inputs={"x": program.more["shape"]})
    if is_ours:
        return _waiting(rx.optimize(module, weights=tuple(module.weights)).prepare(**module.weights), (x,))
    weights = [jnp.asarray(w) for w in module.weights.values()]
    return _waiting(jax.jit(lambda *xs: run_function(module, module.main, xs)), (x, *weights))


_MAKERS = {
    "pattern": _pattern, "minilm": _minilm, "stream": _stream, "training": _training, "library": _of_library,
    "onnx": _onnx,
}  # fmt: skip
