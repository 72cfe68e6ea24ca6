"""Random modules: as one XLA program, in kernels, in steps, at capacity and by the reference interpreter they agree.

`RELAX_EG_MODULES=10000 pytest -m slow tests/test_random_modules.py -s` runs so many, from the seed
`RELAX_EG_MODULES_FROM` on and for `RELAX_EG_MODULES_SECONDS` at most, and says how many there were. XLA's optimizations
are not what it looks for: `XLA_FLAGS=--xla_backend_optimization_level=0` makes it faster.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from random_modules import Program, Value, random_module, together

import relax_eg as rx
from relax_eg.frontends.modules import with_dataflow_blocks
from relax_eg.ir import Module
from relax_eg.ops.interpret import evaluate

MODULES = int(os.environ.get("RELAX_EG_MODULES", "10000"))
FROM = int(os.environ.get("RELAX_EG_MODULES_FROM", "1000"))
SECONDS = float(os.environ.get("RELAX_EG_MODULES_SECONDS", "3600"))
TOGETHER = 40
NO_RULES = rx.RuleSet("none", ())
Run = Callable[[Module, list[Any], Any], Any]


def flat(value: Any) -> list[Any]:
    return [x for v in value for x in flat(v)] if isinstance(value, tuple) else [value]


def difference(ours: Any, theirs: Any, v: Value) -> str | None:
    """What two results differ in: dtype, shape, or values by more than rounding explains."""
    x, y = np.asarray(ours), np.asarray(theirs)
    if x.dtype != y.dtype or x.shape != y.shape:
        return f"{x.dtype} {x.shape} for {y.dtype} {y.shape}"
    if v.exact:
        same = np.array_equal(x, y)
    else:
        wide = np.complex128 if x.dtype.kind == "c" else np.float64
        same = np.allclose(x.astype(wide), y.astype(wide), v.near(), v.near(), equal_nan=True)
    return None if same else f"{x}\nfor\n{y}"


def optimized(module: Module, **options: Any) -> rx.types.Optimized:
    return rx.optimize(module, **{"rules": NO_RULES, **options})


def loaded(best: rx.types.Optimized, folder: Any) -> rx.types.Optimized:
    best.save(folder / "artifact")
    return rx.load(folder / "artifact")


def prepared(module: Module, args: Sequence[Any]) -> Any:
    weights = [str(p.attr("name")) for p in module.main.params[::2]]
    best = optimized(module, weights=weights)
    return best.prepare(*args[::2])(*args[1::2])


def checked(module: Module, args: Sequence[Any]) -> Any:
    best = optimized(module)
    found = best.check(*args)
    assert found.passed, str(found)
    return best(*args)


WAYS: dict[str, Run] = {
    "whole": lambda m, args, _: optimized(m, dynamic="exact")(*args),
    "kernels": lambda m, args, _: optimized(m, execution="kernels")(*args),
    "steps": lambda m, args, _: optimized(m)(*args),
    "capacity": lambda m, args, _: optimized(m, dynamic="capacity")(*args),
    "rules": lambda m, args, _: optimized(m, rules=rx.rules.default, budget=rx.Budget(nodes=500))(*args),
    "legalised": lambda m, args, _: evaluate(rx.debug.legalize(with_dataflow_blocks(m)), args),
    "printed": lambda m, args, _: evaluate(rx.parse(str(m)), args),
    "saved": lambda m, args, folder: loaded(optimized(m), folder)(*args),
    "prepared": lambda m, args, _: prepared(m, args),
    "checked": lambda m, args, _: checked(m, args),
    "to_jax": lambda m, args, _: optimized(m).to_jax()(*args),
    "jax.jit": lambda m, args, _: jit_with_x64(optimized(m).to_jax(), args),
}
IN_STEPS = ("steps", "rules", "legalised", "printed", "saved", "checked")  # what they can do


def jit_with_x64(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """As somebody else's program, who has JAX's 64-bit numbers."""
    with jax.enable_x64(True):
        return jax.jit(function)(*args)


def wrong(program: Program, seed: int, way: str, folder: Any = None) -> str | None:
    """What is wrong with a module one way; None where it agrees with the reference."""
    try:
        module = rx.parse(program.text)
        args, _ = program.arguments(np.random.default_rng(seed))
        theirs = flat(evaluate(module, args))
        ours = flat(WAYS[way](module, args, folder))
    except Exception as e:
        return f"{way}: {type(e).__name__}: {e}"
    for x, y, v in zip(ours, theirs, program.results, strict=True):
        found = difference(x, y, v)
        if found is not None:
            return f"{way}: {found}"
    return None


def failures(seeds: Sequence[int], way: str, steps: bool = False, folder: Any = None) -> list[tuple[int, str]]:
    """What is wrong with modules of these seeds: all at once, and one by one if anything is."""
    if wrong(together(seeds, steps), seeds[0], way, folder) is None:
        return []
    alone = ((s, wrong(random_module(s, steps), s, way, folder)) for s in seeds)
    found = [(s, why) for s, why in alone if why is not None]
    return found or [(seeds[0], f"{way}: only together: {wrong(together(seeds, steps), seeds[0], way, folder)}")]


def said(found: Sequence[tuple[int, str]], steps: bool = False) -> str:
    return "\n\n".join(f"seed {s}\n{random_module(s, steps).text}\n{why}" for s, why in found)


@pytest.mark.parametrize("way", ["whole", "kernels", "capacity"])
def test_modules_run_as_the_reference_says(way: str) -> None:
    found = failures(range(12), way)
    assert not found, said(found)


def test_modules_in_steps_run_as_the_reference_says() -> None:
    found = failures(range(12), "steps", steps=True)
    assert not found, said(found, True)


@pytest.mark.parametrize("way", [w for w in WAYS if w not in ("whole", "kernels", "steps", "capacity")])
def test_what_is_made_of_a_module_runs_as_the_reference_says(way: str, tmp_path: Any) -> None:
    found = failures(range(100, 105), way, folder=tmp_path)
    assert not found, said(found)


def test_random_modules_are_what_they_are_meant_to_be() -> None:
    """Calls, tuples, branches, loops, steps and wide numbers are there, and half of the values are exact."""
    made = [random_module(s, steps=s % 4 == 0) for s in range(400)]
    for piece in ("return (", "if ", "R.scan", "R.while_loop", "R.match_cast", "f1(", "int64", "float64", "complex128"):
        assert sum(piece in p.text for p in made) > 20, piece
    exact = Counter(v.exact for p in made for v in p.results)
    assert exact[True] > exact[False] > 20


@pytest.mark.slow
def test_campaign(tmp_path: Any) -> None:
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    until, count = time.monotonic() + SECONDS, Counter[str]()
    found: list[tuple[int, str]] = []
    for start in range(FROM, FROM + MODULES, TOGETHER):
        if time.monotonic() > until:
            break
        seeds, steps = range(start, start + TOGETHER), start // TOGETHER % 4 == 0
        rare = ("rules", "saved", "legalised") if steps else ("capacity", "rules", "saved", "prepared", "legalised")
        ways = ("steps",) if steps else ("whole", "kernels")
        if start // TOGETHER % 3 == 0:
            ways = (*ways, rare[start // TOGETHER // 3 % len(rare)])
        for way in ways:
            more = failures(seeds, way, steps, tmp_path)
            for s, why in more:
                print(f"seed {s} steps={steps} {why}", flush=True)
            found += more
            count[way] += TOGETHER
        count["modules"] += TOGETHER
        print(dict(count), len(found), flush=True)
        jax.clear_caches()
    assert not found, "\n\n".join(f"seed {s}: {why}" for s, why in found)
