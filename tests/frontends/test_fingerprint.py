"""The fingerprint of what JAX traced: it follows everything that a module could depend on, in any process."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from frontend_library import CASES, Case
from jax.extend.core import Primitive

from relax_eg.frontends import Traced, trace_function
from relax_eg.frontends.fingerprint import settings
from relax_eg.ir.packed import pack, unpack
from relax_eg.ir.tokens import NoContentError


def digest(fn: Callable[..., Any], *specs: Any, **options: Any) -> str:
    return trace_function(fn, specs, **options).fingerprint.digest


def text(traced: Traced) -> str:
    """The module's text, but for the places of objects in the registry of this process."""
    return re.sub(r"(R\.foreign\([^,]*, )\d+", r"\1#", str(traced.module))


@pytest.mark.parametrize("case", CASES[::4], ids=lambda c: getattr(c.fn, "__name__", "fn"))
def test_another_trace_has_the_same_and_gives_the_module_back(case: Case) -> None:
    first, again = (trace_function(case.fn, case.specs, case.kwspecs) for _ in range(2))
    assert first.fingerprint.digest == again.fingerprint.digest
    data, blob = pack((first.module,), first.fingerprint)
    (found,) = unpack(json.loads(json.dumps(data)), blob, again.fingerprint)
    assert (found.main.params, found.main.annotation, found.main.name) == (again.params, again.result, again.identifier)
    object.__setattr__(first, "module", found)
    assert text(first) == text(again)


def constant(value: Any) -> Callable[[Any], Any]:
    return lambda x: x + value


def literal(value: float) -> Callable[[Any], Any]:
    return lambda x: jax.lax.select(x > 0, x, jax.lax.full_like(x, value))


def nan(bits: int) -> Any:
    return np.array([bits], "uint32").view("float32")


def body(steps: int, factor: float) -> Callable[[Any], Any]:
    return lambda x: jax.lax.fori_loop(0, steps, lambda i, y: y * factor, x)


def test_programs_that_differ_in_anything_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relax_eg.frontends.fingerprint.line_of", lambda eqn: None)  # no line tells them apart
    programs: list[tuple[Callable[..., Any], Any]] = [
        *((constant(v), "n") for v in (0.0, -0.0, 1.0, 2.0, nan(0x7FC00000), nan(0x7FC00001))),
        *((constant(np.asarray(v, "float32")), "3") for v in ([1, 2, 3], [1, 2, 4], [[1, 2, 3]], [0] * 3, [-0.0] * 3)),
        *((constant(np.arange(1000.0, dtype="float32") + i), "1000") for i in (0, 1)),
        *((literal(v), "n") for v in (0.0, -0.0, 1.0, float("nan"), float("inf"))),
        *((body(*v), "n") for v in ((3, 2.0), (4, 2.0), (3, 2.5))),
        *((lambda x, axis=axis: jnp.sum(x, axis), "n n") for axis in (0, 1, (0, 1))),
        (lambda x: jnp.sum(x, 0, keepdims=True), "n n"),
        *((lambda x, p=p: jnp.dot(x, x, precision=p), "n n") for p in ("high", "highest", None)),
        *((lambda x, d=d: x.astype(d), "n") for d in ("float16", "bfloat16", "int32")),
        *((lambda x: jnp.exp(x), spec) for spec in ("n", "m", "n n", "4", "n @ float16", "2*n", 1.0)),
        (lambda x: jnp.log(x), "n"),
        (lambda x: x - jnp.exp(x), "n"),
        (lambda x: jnp.exp(x) - x, "n"),
        (lambda x: (jnp.exp(x), x), "n"),
        (lambda x: (x, jnp.exp(x)), "n"),
        (lambda x: jax.random.normal(jax.random.key(0), x.shape), "3"),
        (lambda x: jax.random.normal(jax.random.key(1), x.shape), "3"),
        (lambda x: jax.random.normal(jax.random.key(0, impl="rbg"), x.shape), "3"),
        *((lambda x, k=k: jax.random.bits(k, (2,)), "3") for k in map(jax.random.key, (0, 1))),
    ]  # fmt: skip
    found = [digest(fn, spec) for fn, spec in programs]
    assert [i for i, d in enumerate(found) if found.index(d) != i] == []
    assert {digest(constant(v), "n") for v in (1, True, 1.0)} <= {*found}  # to float32 they are one number


def test_lines_are_content() -> None:
    def first(x: Any) -> Any:
        return x + 1

    def second(x: Any) -> Any:
        return x + 1

    assert digest(first, "n") == digest(first, "n") != digest(second, "n")


def test_settings_of_jax() -> None:
    before = settings()
    with jax.enable_x64(True):
        assert settings() != before
    with jax.default_matmul_precision("highest"):
        assert settings() != before
    assert settings() == before


def derived(slope: float) -> Callable[[Any], Any]:
    @jax.custom_jvp
    def f(x: Any) -> Any:
        return jnp.sin(x)

    f.defjvp(lambda p, t: (f(*p), slope * t[0]))
    return f


def test_derivatives_of_the_users_own_are_not_read() -> None:
    one, other = derived(1.0), derived(2.0)
    assert digest(lambda x: one(x), "n")  # it has one at all
    found = {digest(f, "n") for f in (one, other)}
    assert len(found) == 1


def test_meshes_and_what_is_placed_on_them() -> None:
    def placed(name: str, devices: Any) -> str:
        mesh = jax.sharding.Mesh(devices, (name,))
        spec = jax.P(name)
        return digest(jax.shard_map(lambda x: x * 2, mesh=mesh, in_specs=spec, out_specs=spec), "8")

    devices = np.asarray(jax.devices()[:1])
    assert placed("i", devices) == placed("i", devices) != placed("j", devices)


def test_what_has_no_content() -> None:
    mine = Primitive("sin")
    mine.def_abstract_eval(lambda x: x)

    def called_back(x: Any) -> Any:
        return jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    for fn, problem in (
        (called_back, "the content of a builtins.function does not show"),
        (lambda x: mine.bind(x), "what the primitive sin does is not JAX's own"),
    ):
        with pytest.raises(NoContentError, match=problem):
            digest(fn, "3")

    @jax.jit
    def outer(y: Any) -> Any:
        traced = trace_function(lambda x: x + y, ("3",))
        with pytest.raises(NoContentError, match="a value of a surrounding transformation has no content yet"):
            assert traced.fingerprint
        return y

    outer(jnp.ones(3))
