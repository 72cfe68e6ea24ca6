"""What `import relax_eg` loads, and the names that are imported when they are first used."""

from __future__ import annotations

import ast
import operator
import re
import subprocess
import sys
from pathlib import Path

import pytest

import relax_eg as rx

HEAVY = ("z3", "egglog", "scipy", "highspy", "rich", "jinja2", "pydantic", "typer", "onnx", "packaging", "matplotlib")


def loaded_after(code: str) -> set[str]:
    """The modules that a new process has loaded after `code`."""
    told = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_neither_heavy_packages_nor_its_rooms() -> None:
    loaded = loaded_after("import relax_eg")
    assert sorted(loaded.intersection((*HEAVY, "jax", "numpy"))) == []
    assert sorted(m for m in loaded if m.startswith("relax_eg")) == ["relax_eg"]


def test_the_compiler_loads_solvers_and_pages_only_where_they_are_needed() -> None:
    loaded = loaded_after("import relax_eg as rx\nrx.optimize, rx.jit, rx.load")
    parts_of_scipy = {f"scipy.{part}" for part in ("linalg", "optimize", "sparse", "special")}
    heavy = {"z3", "egglog", "highspy", "jinja2", "pydantic", "typer", "onnx", *parts_of_scipy}
    assert sorted(loaded & heavy) == []
    assert not any(m.startswith("relax_eg.meshes") for m in loaded)


def test_running_a_file_loads_neither_tables_nor_pallas() -> None:
    loaded = loaded_after("import relax_eg.run")
    assert sorted(loaded & {"z3", "egglog", "rich", "jax.extend", "jax._src.pallas.core", "highspy", "typer"}) == []


def test_each_public_name_has_one_home() -> None:
    tree = ast.parse(Path(str(rx.__file__)).read_text(encoding="utf-8"))
    for_types = next(n for n in tree.body if isinstance(n, ast.If))
    typed = {
        alias.asname or alias.name: f"{n.module}.{alias.name}"
        for n in for_types.body
        if isinstance(n, ast.ImportFrom)
        for alias in n.names
    }
    modules, homes = rx.__dict__["_MODULES"], rx.__dict__["_HOMES"]
    named = {n: f"relax_eg.{m}" for n, m in modules.items()} | {n: f"relax_eg.{m}.{n}" for n, m in homes.items()}
    assert named == typed
    assert sorted(rx.__all__) == sorted(named)
    assert set(rx.__all__) <= set(dir(rx))
    for name in rx.__all__:
        assert getattr(rx, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'relax_eg' has no attribute 'optimise'"):
        rx.optimise  # type: ignore[reportAttributeAccessIssue]  # noqa: B018


@pytest.mark.parametrize("name", sorted(rx.__dict__["MOVED"]))
def test_the_error_about_an_old_name_says_the_new_one(name: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; it is relax_eg[.].* now") as raised:
        getattr(rx, name)
    (now,) = re.findall(r"it is relax_eg[.](\S+) now", str(raised.value))
    assert operator.attrgetter(now)(rx) is not None


def test_the_version_is_that_of_the_installed_package() -> None:
    assert rx.__version__.count(".") == 2
