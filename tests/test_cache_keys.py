"""Keys of the cache: programs or options that differ in anything that matters never share one."""

from __future__ import annotations

import logging
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import pytest
from jax import export

import relax_eg as rx
from relax_eg.driver import cache
from relax_eg.driver.cache import EntryPlace
from relax_eg.extract.profiles.devices import CPU
from relax_eg.rules import RuleSet
from relax_eg.rules.book import algebra

SPECS = ("n n", "n n", "n")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAX_EG_CACHE", "1")
    monkeypatch.setenv("RELAX_EG_CACHE_DIR", str(tmp_path))


def chain(a: Any, b: Any, v: Any) -> Any:
    return (a @ b) @ v


class Asked(Exception):
    """What was looked for in the cache."""


def key(fn: Any, *specs: Any, **options: Any) -> str:
    def read(place: EntryPlace) -> None:
        raise Asked(place.key)

    with patch.object(EntryPlace, "read", read), pytest.raises(Asked) as asked:
        rx.optimize(fn, *specs, **options)
    return str(asked.value)


def rule_set(factor: float, phase: Any = "algebra") -> RuleSet:
    book = RuleSet("mine")

    @book.rule("x: n", phase=phase, check=False)
    def halves(x: Any) -> Any:
        return x * factor + x * factor, x * (2 * factor)

    return book


def test_options_that_differ_in_anything_differ() -> None:
    s, t = export.symbolic_shape("s, t", constraints=["s >= 2"])
    u, v = export.symbolic_shape("s, t", constraints=["s >= 3"])

    def scoped(*shape: Any) -> str:
        return key(lambda x: x * 2, jax.ShapeDtypeStruct(shape, jnp.float32))

    with rx.debug.options(sharing=False):
        unshared = key(chain, *SPECS)
    found = [
        key(chain, *SPECS),
        key(chain, "m m", "m m", "m"),
        *(key(chain, *SPECS, at=at) for at in ({"n": 128}, {"n": 512}, [{"n": 512}, {"n": 1}], [{"n": 1}, {"n": 512}])),
        *(key(chain, *SPECS, bounds={"n": b}) for b in ((1, 512), (2, 512), (2, None), (1, 513), 512)),
        *(key(chain, *SPECS, weights=w) for w in (("a",), ("b",), ("a", "b"))),
        *(key(chain, *SPECS, numerics=n) for n in ("exact", "approximate")),
        *(key(chain, *SPECS, budget=b) for b in (rx.Budget(nodes=10), rx.Budget(seconds=5), rx.Budget(rounds=1))),
        unshared,
        *(key(chain, *SPECS, rules=r) for r in (algebra, algebra - "matmul_associates", RuleSet("none"))),
        *(key(chain, *SPECS, rules=r) for r in (rule_set(1.0), rule_set(2.0), rule_set(1.0, "simplify"))),
        *(
            key(chain, *SPECS, target=p)
            for p in (
                replace(CPU, launch=CPU.launch * (1 + 1e-15)), replace(CPU, name="other"),
                replace(CPU, matmul_rate={**CPU.matmul_rate, "float32": 121e9}), replace(CPU, calibrated=True),
            )
        ),
        *(scoped(*shape) for shape in ((s, t), (u, v), (s, 4), (u, 4), (s * 2, t))),
        key(rx.trace(chain, *SPECS)),
    ]  # fmt: skip
    assert [i for i, k in enumerate(found) if found.index(k) != i] == []
    assert key(chain, *SPECS, rules=rule_set(1.0)) == key(chain, *SPECS, rules=rule_set(1.0))
    assert key(chain, *SPECS, target=replace(CPU)) == key(chain, *SPECS, target="cpu") == found[0]
    with jax.enable_x64(True):
        assert key(chain, *SPECS) not in found


def test_every_option_counts() -> None:
    with patch("relax_eg.driver.optimize.place_of", side_effect=Asked) as asked_for, pytest.raises(Asked):
        rx.optimize(chain, *SPECS)
    traced, options = asked_for.call_args.args
    found = cache.key_of(traced, options)
    assert cache.key_of(traced, replace(options)) == found
    asked = [f for f in fields(options) if f.compare]  # others hold what was found before
    assert not [f for f in asked if cache.key_of(traced, replace(options, **{f.name: "another"})) == found]


def test_names_and_structures_are_part_of_the_program() -> None:
    def other(a: Any, b: Any, v: Any) -> Any:
        return chain(a, b, v)

    def named(a: Any, b: Any, w: Any) -> Any:
        return chain(a, b, w)

    def packed(p: Any, v: Any) -> Any:
        return chain(p[0], p[1], v)

    found = [key(chain, *SPECS), key(other, *SPECS), key(named, *SPECS), key(packed, ("n n", "n n"), "n")]
    assert len(set(found)) == len(found)


def test_the_packages_own_source_is_part_of_the_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source, found = tmp_path / "package", {key(chain, *SPECS)}
    (source / "room").mkdir(parents=True)
    try:
        with patch("relax_eg.cache_folder.__file__", str(source / "cache_folder.py")):
            for name, text in (("a.py", "1"), ("a.py", "2"), ("b.py", ""), ("room/c.json", "{}"), ("notes.txt", "")):
                (source / name).write_text(text)
                cache.surroundings.cache_clear()
                found.add(key(chain, *SPECS))
            assert len(found) == 5
            for file in source.rglob("*.*"):
                file.unlink()
            cache.surroundings.cache_clear()
            with caplog.at_level(logging.INFO, "relax_eg"), rx.debug.options(level=1):
                assert not any(rx.optimize(chain, *SPECS).report.cached for _ in range(2))
            assert "chain is not cached: the package's own source is not at hand" in caplog.messages
    finally:
        cache.surroundings.cache_clear()


@pytest.mark.parametrize(
    ("package", "name"), [("relax_eg.cache_folder.version_of", "2.0"), ("relax_eg.driver.cache.FORMAT", 99)]
)
def test_versions_are_part_of_the_key(package: str, name: Any) -> None:
    before = key(chain, *SPECS)
    try:
        cache.surroundings.cache_clear()
        with patch(package, (lambda p: name) if isinstance(name, str) else name):
            assert key(chain, *SPECS) != before
    finally:
        cache.surroundings.cache_clear()
    assert key(chain, *SPECS) == before
