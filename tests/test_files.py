"""Files of other people: what a file says is not run, imported or written, and what is too much is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import relax_eg as rx
from benchmarks import mutations
from benchmarks.mutated_formats import NAMES, SPECS, chain
from relax_eg import limits
from relax_eg.backend.files.artifact import VERSION
from relax_eg.errors import (
    ArtifactError,
    ExplanationError,
    ExtractionError,
    MemoryPlanError,
    ModuleTextError,
    OptionError,
    RelaxEgError,
    RuleError,
    SpecError,
    WellFormedError,
)
from relax_eg.explain.certificate import UnaidedCertificate
from relax_eg.extract.profiles.profile import Profile
from relax_eg.extract.selection.foreign import read_egraph
from relax_eg.memory.files import load as load_plan
from relax_eg.plain_data import compiler_options, read_json
from relax_eg.rules.checking.certificates import read_verdicts
from relax_eg.shapes import Dim
from relax_eg.shapes.guards import Guard
from relax_eg.store import checksum

HEAD = f"relax_eg artifact {VERSION}\n".encode()
FUNCTION = '@R.function\ndef main(x: R.Tensor(("n",), "float32")):\n'


def test_nothing_but_errors_of_ours() -> None:
    """A small part of `python -m benchmarks.mutations`, which see."""
    found = mutations.run(list(NAMES), count=3, seed=3)
    assert set(found) == set(NAMES)
    for name, row in found.items():
        assert set(row) <= {"read", "refused", "slowest, ms"}, (name, row)
        assert row["refused"] >= 1, (name, row)


@pytest.mark.slow
def test_nothing_but_errors_of_ours_in_a_thousand() -> None:
    found = mutations.run(list(NAMES), count=1000, seed=4)
    for name, row in found.items():
        assert set(row) <= {"read", "refused", "slowest, ms"}, (name, row)


# --- artifacts ---


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("files") / "chain.rxe"
    rx.optimize(chain, *SPECS).save(path)
    rx.load(path)  # imports what loading takes
    return path.read_bytes()


def changed(saved: bytes, path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """The artifact with other data and its checksum redone."""
    payload = saved[len(HEAD) + 24 :]
    end = 8 + int.from_bytes(payload[:8], "big")
    data = json.loads(payload[8:end])
    change(data)
    text = json.dumps(data).encode()
    made = len(text).to_bytes(8, "big") + text + payload[end:]
    path.write_bytes(HEAD + len(made).to_bytes(8, "big") + checksum(made) + made)
    return path


@pytest.mark.parametrize(
    "name",
    [
        ["enum", "numpy.f2py.__main__:X", "a"],
        ["enum", "jax._src.config:config", "a"],
        ["data", "jax._src.ffi:FfiEffect"],
        ["record", "jax._src.mesh:ResourceEnv", 1, 2],
        ["primitive", "while"],
        ["primitive", "../abs"],
        ["dtype", "O"],
    ],
)
def test_a_file_names_classes_of_a_list_only(saved: bytes, tmp_path: Path, name: list[Any]) -> None:
    before = set(sys.modules)

    def change(data: dict[str, Any]) -> None:
        data["modules"]["foreign"].append(name)

    with pytest.raises(ArtifactError, match="does not describe a program"):
        rx.load(changed(saved, tmp_path / "m.rxe", change))
    assert set(sys.modules) == before


def test_a_file_sets_options_of_a_list_only(saved: bytes, tmp_path: Path) -> None:
    dumped = tmp_path / "dumped"

    def change(data: dict[str, Any]) -> None:
        for variant in data["variants"]:
            variant["compiler_options"] = {"xla_dump_to": str(dumped)}

    with pytest.raises(ArtifactError, match=r"'xla_dump_to' = .* is none that a file may set"):
        rx.load(changed(saved, tmp_path / "m.rxe", change))
    profile = {**rx.types.PROFILES["cpu"].as_data()}
    profile["modes"] = [{"name": "dump", "options": {"xla_dump_to": str(dumped)}, "changes": {}}]
    with pytest.raises(OptionError, match="mode `dump`: the option 'xla_dump_to'"):
        Profile.from_json(json.dumps(profile))
    assert not dumped.exists()


def test_options_of_the_list_are_those_of_xla() -> None:
    for options in (rx.types.PROFILES["cpu"].modes[0].options, {"xla_backend_optimization_level": "1"}):
        given = compiler_options(dict(options))
        assert given == dict(options)
        jax.jit(lambda x: x @ x, compiler_options=given)(jnp.ones((4, 4)))
    for wrong in ({"xla_backend_optimization_level": "/tmp/x"}, {"xla_backend_optimization_level": 1}, ["xla_dump_to"]):
        with pytest.raises(OptionError, match="compiler"):
            compiler_options(wrong)


def test_a_file_calls_what_computes_only(saved: bytes, tmp_path: Path) -> None:
    def change(data: dict[str, Any]) -> None:
        node = next(n for n in data["modules"]["nodes"] if n[0] == "exp")
        node[0], node[2] = "call_dps_library", ["name", "jax.jit", "attrs", ["tuple"], "pure", True]

    with pytest.raises(ArtifactError, match=r"it calls `jax\.jit`"):
        rx.load(changed(saved, tmp_path / "m.rxe", change))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda d: d["variants"][0].update(execution="quickly"),
            "it is executed as 'quickly'; accepted: whole, kernels",
        ),
        (lambda d: d.update(tolerance="a"), "tolerance is 'a'; a number is accepted"),
        (lambda d: d["names"].append("y"), "as many of each are needed"),
        (lambda d: d["variants"][0].update(guard="n and"), "SpecError"),
        (lambda d: d["variants"][0].update(guard=" and ".join(f"a{i} <= 7" for i in range(5000))), "at most 50000"),
        (lambda d: d["variants"].clear(), "its variants are executed as nothing: it has none"),
        (lambda d: d["variants"][0].update(module=9), "a variant has module 9; it holds"),
        (lambda d: d["at_sizes"].update(capacities={"m": 8}), "its sizes are n"),
        (lambda d: d["at_sizes"]["profile"].update(bandwidth=0), "bandwidth = 0; numbers > 0"),
        (lambda d: d["at_sizes"]["profile"].update(platform="x"), "platform = 'x'; one of cpu, gpu, tpu is accepted"),
    ],
)
def test_what_is_in_an_artifact_is_looked_at(saved: bytes, tmp_path: Path, change: Any, why: str) -> None:
    with pytest.raises(ArtifactError, match=why):
        rx.load(changed(saved, tmp_path / "m.rxe", change))


def test_a_version_of_many_digits(tmp_path: Path) -> None:
    path = tmp_path / "m.rxe"
    path.write_bytes(b"relax_eg artifact " + b"9" * 5000 + b"\n" + bytes(100))
    with pytest.raises(ArtifactError, match="is no artifact"):
        rx.load(path)


# --- JSON ---

READERS: list[tuple[Callable[[Path], Any], type[RelaxEgError]]] = [
    (UnaidedCertificate.load, ExplanationError),
    (Profile.from_json, OptionError),
    (rx.types.CostReport.from_json, OptionError),
    (read_verdicts, RuleError),
    (read_egraph, ExtractionError),
    (lambda path: load_plan(path, rx.trace(chain, *SPECS)), MemoryPlanError),
]


@pytest.mark.parametrize(("read", "error"), READERS)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested 100000 deep; at most 100 are accepted"),
        ('{"a":' * 101 + "1" + "}" * 101, "nested 101 deep"),
        ('{"a": ' + "9" * 5000 + "}", "an integer of 5000 digits; at most 100 are accepted"),
        ('{"a": -' + "9" * 101 + "}", "an integer of 101 digits"),
        (b"\xff\xfe[1]", "decode"),
        ('{"a"', "line 1"),
    ],
)
def test_json_of_every_format_is_bounded(
    read: Callable[[Path], Any], error: type[Exception], text: str | bytes, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "data.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(error, match=says):
        read(path)


def test_json_that_is_within_the_bounds() -> None:
    deep = json.loads('{"a": ' * (limits.JSON_DEPTH - 1) + "[]" + "}" * (limits.JSON_DEPTH - 1))
    for data in (deep, "[" * 500, {'"[': ['\\"[[', "\\"]}, 10**99, 1e300, [float("inf")], "\ud800", None, []):
        assert read_json(json.dumps(data)) == data


# --- small inputs, endless work ---

NAMED = [f"a{i}" for i in range(300)]


@pytest.mark.parametrize(
    ("read", "error", "says"),
    [
        (lambda: Dim.of(f"({'+'.join(NAMED[:60])})**4"), SpecError, "1830 and 60 terms are multiplied; at most 20000"),
        (lambda: Dim.of("+".join(NAMED * 2)), SpecError, "has 1199 names, numbers and operations"),
        (lambda: Dim.of("n" + "".join(f"%{a}" for a in NAMED)), SpecError, "at most 10000 are accepted"),
        (lambda: Dim.of("((((2**16)**16)**16)**16)**16"), SpecError, "an integer of more than 262144 bits"),
        (lambda: str(Dim.of("((2**16)**16)**16") ** 16), SpecError, "at most 14200 are printed"),
        (lambda: rx.trace(lambda x: x, f"(min({', '.join(NAMED)}))"), SpecError, "at most 8 in a size that JAX traces"),
        (lambda: Guard.read(" or ".join(f"{a} <= 7" for a in NAMED * 20)), SpecError, "at most 50000 characters"),
        (lambda: rx.prove(" and ".join(f"{a} <= 7" for a in NAMED * 20)), SpecError, "at most 50000"),
        (lambda: rx.Tensor(ndim=10**9), SpecError, "axes from 0 to 64 are accepted"),
        (lambda: rx.Shape(" ".join(NAMED)), SpecError, "at most 64"),
        (lambda: rx.parse(FUNCTION + "    return R.op.split(x, 10**9)[0]\n"), ModuleTextError, "at most 65536"),
        (lambda: rx.parse(FUNCTION + "    return R.op.full('a'*10**10, 1.0)\n"), ModuleTextError, "no arithmetic"),
        (lambda: rx.parse(FUNCTION + "    return R.op.take(x, 10**40)\n"), ModuleTextError, "line 3"),
        (lambda: rx.parse(FUNCTION + f"    return R.add(x, {'9' * 5000})\n"), ModuleTextError, "more than 4300 digits"),
        (lambda: rx.parse(doubling(40)), ModuleTextError, "131072 values, .* at most 65536 are accepted"),
        (lambda: rx.parse(nested(200)), ModuleTextError, "101 deep .* at most 100 are accepted"),
        (lambda: rx.parse(calling(20)), WellFormedError, "more than 4000 calls"),
    ],
)
def test_what_is_short_and_too_much(read: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        read()


def doubling(lines: int) -> str:
    tuples = [f"    t{i + 1} = (t{i}, t{i})\n" for i in range(lines)]
    return FUNCTION + "    t0 = (x, x)\n" + "".join(tuples) + "    return x\n"


def nested(lines: int) -> str:
    tuples = [f"    t{i + 1} = (t{i},)\n" for i in range(lines)]
    return FUNCTION + "    t0 = (x,)\n" + "".join(tuples) + "    return x\n"


def calling(functions: int) -> str:
    tensor = 'R.Tensor(("n",), "float32")'

    def one(name: str, *lines: str) -> str:
        body = "".join(f"        {line}\n" for line in lines)
        return f"    @R.function\n    def {name}(x: {tensor}) -> {tensor}:\n{body}"

    made = [one("main", f"return f{functions}(x)"), one("f0", "return R.exp(x)")]
    made += [one(f"f{i}", f"y = f{i - 1}(x)", f"return f{i - 1}(y)") for i in range(1, functions + 1)]
    return "@I.ir_module\nclass Module:\n" + "".join(made)


def test_what_is_just_not_too_much() -> None:
    assert len(Dim.of("+".join(NAMED)).variables) == 300
    assert str(rx.parse(doubling(12)))
    assert rx.parse(calling(9)).main.name == "main"
    assert isinstance(rx.prove("n < ((10**16)**16)**16", bounds={"n": (1, 2**63)}), rx.types.Proved)
    assert rx.trace(lambda x: x, "(min(a, b, c, d)) a b c d") is not None


def test_ranks_of_a_rule() -> None:
    rule = next(r for r in rx.rules.default if r.block_names)
    count = len(rule.block_names)
    for ranks in ([10**9] * count, [65] * count, [-1] * count, [], [None]):
        with pytest.raises(RuleError, match=r"the ranks of its blocks are .* 0 to 64 axes are accepted"):
            rule.instance(ranks)


def test_ranks_of_a_certificate(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    rx.optimize(
        lambda a, b, v: (a @ b) @ v, "n n", "n n", "n", rules=rx.rules.default - "sum_products"
    ).certificate().save(path)
    data = json.loads(path.read_text())
    rows = [r for part in data["parts"] for r in part["rules"] if "ranks" in r]
    assert rows
    rows[0]["ranks"] = [10**9] * max(1, len(rows[0]["ranks"]))
    path.write_text(json.dumps(data))
    with pytest.raises(ExplanationError, match="blocks"):
        UnaidedCertificate.load(path).verify(rx.rules.default)
