"""Every command that a document, a docstring or a message names is there, has the options that it names, and runs,
small: benchmarks with `--quick`, `relax-eg` on small files of the names that the documents use, in this process.

What takes long even when it is small is among the slow tests; its `--help`, which imports all of it, is not.
"""

from __future__ import annotations

import importlib
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnx.numpy_helper
import pytest
import typer
from sampling import sampled
from typer.testing import CliRunner

import relax_eg as rx
from benchmarks import fidelity
from benchmarks.egraphs import KINDS
from benchmarks.fidelity_programs import PROGRAMS
from relax_eg.cli import app
from relax_eg.extract.profiles.devices import profile

ROOT = Path(__file__).parent.parent
OURS = ("benchmarks", "docs", "examples", "relax_eg")

# Why a command is slow even when it is small: regular expressions of whole lines.
HEAVY = {
    r"python -m examples\.demo": "a sentence encoder on four devices, and without each set of rules: a minute",
    r"python -m examples\.two_processes.*": "two processes, each of which searches and compiles",
    r"python -m examples\.training": "compiles a step of training for every length; test_varying.py has it smaller",
    r"python -m examples\.(llava|whisper).*": "whole models; test_generating_examples.py has them smaller",
    r"python -m examples\.beam_search": "two processes; tests/vm/test_beam_search.py has the program",
    r"python -m benchmarks\.dynamic.*": "processes of their own that compile MiniLM-L6 for several lengths",
    r"python -m benchmarks\.(peers|library_times).*": "processes of their own; their tests are in tests/measure",
    r"python -m benchmarks\.minilm --(short|execution).*": "other variants of the encoder, compiled once more",
    r"python -m benchmarks\.memory --limits": "searches for the least memory, at three limits",
    r"python -m benchmarks\.least_laws.*": "proofs without one law at a time; tests/discovery has a few",
    r"python -m benchmarks\.discovery.*": "searches for laws of many operators; tests/discovery has a few",
    r"python -m benchmarks\.mined --.*": "searches of many programs, which write into docs; tests/discovery has a few",
    r"python -m relax_eg\.rules": "tests and proves every rule that ships: minutes",
    r"python -m benchmarks\.tradeoff.*": "searches for fronts of twenty programs, and times them",
    r".*python -m benchmarks\.spread_run": "eight devices, which have to be there when JAX starts",
    r"python -m benchmarks\.(spread --compile|overlap)": "programs for described GPUs; tests/meshes has small ones",
    r"python -m benchmarks\.gpu_decode .*": "32 layers, searched for three numbers of sequences; times need a GPU",
    r"python -m benchmarks\.gpu_kernels --(search|run) .*": "a search for each kernel; times need a GPU",
    r"python -m benchmarks\.(triton|scale|prover).*": "many programs; tests of kernels and proofs have some",
    r"python -m benchmarks\.patterns --cases kalman.*": "loops in two forms; test_benchmark_cases.py computes them",
    r"python -m benchmarks\.gpu --fidelity": "compiles programs for described GPUs; tests/extract has small ones",
    r"relax-eg (pareto|ablate) .* --measure .*": "times programs; test_pareto.py, test_compare.py have small ones",
    r"relax-eg discover .* --save .*": "a search for laws; tests/discovery and discovery.md have some",
    r"relax-eg bench .*": "times programs; test_cli.py has the command",
    r"relax-eg verify": "does every proof of the rules that ship over: minutes",
    r"relax-eg calibrate.*": "measures the device for a minute",
}
# How a command that has no `--quick` is made small, or kept from writing into the repository.
SMALL = {
    "docs.corpus": ["page.md"],
    "docs.rules_table": ["page.md"],
    "docs.picture": ["picture.svg"],
    "examples.training": ["--steps", "2"],
    "examples.two_processes": ["--steps", "2"],
    "examples.llava": ["--tokens", "4"],
    "examples.whisper": ["--tokens", "4"],
    "examples.beam_search": [],
    "examples.demo": [],
    "examples.figures": [],
    "relax_eg.rules": [],
    "docs.report_schema": [],
    "relax_eg.extract.selection.helper": [],
}
# Tools of others, that are there or not.
TOOLS = ("compileall", "mkdocs", "pip", "pytest", "venv")
# What stands for something else in a command line.
PLACEHOLDERS = {"RULE": "matmul_vector_associates", "path": "trace.json"}

MODEL = """import jax
import jax.numpy as jnp

def attend(q):
    return jax.nn.softmax(q @ q.T) @ q

def encode(x):
    return jnp.tanh(x * 2.0) * x

mlp = features = f = fn = function = encode

def block(x, w, up, down):
    return jax.nn.relu((x @ w) @ up) @ down

step = jax.grad(lambda q: jnp.sum(attend(q)))

def overlap(a, b):
    return jnp.trace(a @ b)

def summed(a, b, hole):
    return jnp.sum(hole)
"""
RULES = '''
import relax_eg as rx

book = rx.RuleSet("mine")

@book.rule("x: n", numerics="exact", check=False)
def twice_negated(x):
    """-(-(-x)) = -x"""
    return -(-(-x)), -x
'''


@dataclass(frozen=True)
class Command:
    """A command line as it is named somewhere, with what stands in brackets (`options`) and without (`line`)."""

    line: str
    options: str
    where: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.line)

    @property
    def heavy(self) -> str | None:
        return next((why for line, why in HEAVY.items() if re.fullmatch(line, self.line)), None)

    @property
    def module(self) -> str | None:
        return self.words[2] if self.words[:2] == ["python", "-m"] else None


def texts() -> Iterator[tuple[str, str]]:
    """Where commands are named: (file, text)."""
    for path in (ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "Makefile", ROOT / "pyproject.toml"):
        yield path.name, path.read_text()
    for path in sorted((ROOT / "docs").glob("*.md")):
        yield f"docs/{path.name}", path.read_text()
    for folder in (*OURS, "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path != Path(__file__):
                yield str(path.relative_to(ROOT)), path.read_text()


def commands() -> list[Command]:
    """Lines that begin as a command does, and what stands between backticks and does. The first place of each."""
    found: dict[str, Command] = {}
    for where, text in texts():
        text = re.sub(r"\\\n\s*|(?<=\])\n\s+(?=\[)", " ", text.replace("@$(BIN)/python", "python"))  # goes on
        blocks = re.sub(r"^```.*$", "", text, flags=re.MULTILINE)
        lines = re.findall(r"^[ \t#]*((?:python -m|relax-eg) [-a-z.].*|make [a-z]+(?=  |$))", blocks, re.MULTILINE)
        spans = [" ".join(s.split()) for s in re.findall(r"`([^`]+)`", blocks)]
        for line in [*lines, *(s for s in spans if re.match(r"python -m |relax-eg [a-z-]|make [a-z]+$", s))]:
            # What follows in the line: a comment, a description, another command, the Makefile's own variable.
            line = re.split(r"\s+#|\s{3,}| \| | > |\$\(|`", line)[0].strip()
            line = re.sub(r"(?<=\w)[.:]$", "", line)
            if re.search(r"\{|%", line):  # a text with fields to be filled in
                continue
            bare = " ".join(re.sub(r"\[[^\]]*\]", "", line).split())
            command = Command(bare, re.sub(r"[\[\]]", " ", line), where)
            found.setdefault(command.options, command)
    return list(found.values())


NAMED = commands()
MODULES = [c for c in NAMED if c.module is not None and c.module.split(".")[0] in OURS]
SHELL = [c for c in NAMED if c.words[0] == "relax-eg"]


def runs(named: list[Command], heavy: bool, one_in: int = 1) -> list[Any]:
    """The command lines without what may be left out, each once, and one in `one_in` of them in every run; `--strict`
    is about figures, and these mean little."""
    lines = {" ".join(c.line.replace("--strict", "").split()): c for c in named if bool(c.heavy) == heavy}
    # One that says the same and more, by options with values, runs in its place.
    more = re.compile(r"( --[a-z-]+ [^-\s]\S*)+")
    chosen = [a for a in lines if not any(b.startswith(a) and more.fullmatch(b[len(a) :]) for b in lines)]
    return sampled({line: Command(line, line, lines[line].where) for line in chosen}, one_in)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that documents name."""
    folder = tmp_path_factory.mktemp("named")
    for name in ("model.py", "file.py"):
        (folder / name).write_text(MODEL)
    (folder / "rules.py").write_text(RULES)
    (folder / "graph.json").write_text(json.dumps(KINDS["tensors"](100, 0)))
    profile("cpu").to_json(folder / "here.json")
    (folder / "examples").symlink_to(ROOT / "examples")
    product = PROGRAMS[0]
    fidelity.save(folder / "out.json", [fidelity.timed(product, product.at[0], "cpu", 0.0)], "cpu")
    chain = rx.optimize(lambda a, b, v: (a @ b) @ v, "n n", "n n", "n", at={"n": 512})
    for name in ("a.json", "b.json"):
        chain.report.to_json(folder / name)
    rx.compare(chain).to_json(folder / "c.json")
    chain.certificate().save(folder / "trace.json")
    (folder / "model.mlir").write_text(jax.jit(jnp.tanh).lower(np.ones(4, np.float32)).as_text())
    chain.save(folder / "m.rxe")
    nodes = [
        onnx.helper.make_node("Cast", ["sr"], ["rate"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("Mul", ["x", "rate"], ["y"]),
    ]
    inputs = [
        onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ("batch", 4)),
        onnx.helper.make_tensor_value_info("sr", onnx.TensorProto.INT64, ()),
    ]
    graph = onnx.helper.make_graph(nodes, "g", inputs, [onnx.helper.make_empty_tensor_value_info("y")])
    onnx.save(onnx.helper.make_model(graph, ir_version=10), str(folder / "model.onnx"))
    rng = np.random.default_rng(0)
    weight = onnx.numpy_helper.from_array(rng.standard_normal((32, 64)).astype("float32"), "w")
    ends = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ("n", m)) for n, m in (("x", 32), ("y", 64))]
    layer = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], "layer", ends[:1], ends[1:], [weight]
    )
    onnx.save(onnx.helper.make_model(layer, ir_version=10), str(folder / "layer.onnx"))
    np.savez(folder / "x.npz", x=rng.standard_normal((8, 32)).astype("float32"))
    return folder


@pytest.fixture
def folder(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_library_stays: None) -> Path:
    """A copy of these files, as the working directory."""
    shutil.copytree(files, tmp_path / "here", symlinks=True)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of processes that a command starts
    monkeypatch.setenv("RELAX_EG_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "here"


def run(module: str, args: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m module args`; AssertionError where it ends with another status than 0."""
    if module == "relax_eg.extract.selection.helper":  # it ends its process when nothing is left to read
        subprocess.run([sys.executable, "-m", module, *args], stdin=subprocess.DEVNULL, check=True, timeout=60)
        return
    monkeypatch.setattr(sys, "argv", [module, *args])
    monkeypatch.setattr("relax_eg.rules.checking.certificates.write_verdicts.__defaults__", (Path("verdicts.json"),))
    code: Any = 0
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*found in sys.modules after import", RuntimeWarning)
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as e:
            code = e.code
    assert code in (0, None), f"python -m {module} {shlex.join(args)} ends with {code}"


def small(module: str, args: list[str]) -> list[str]:
    return [*args, *SMALL.get(module, [] if "--quick" in args else ["--quick"])]


def command_of(module: str) -> Any:
    """The command that a module of ours is; None where it takes no options, or reads them in another way."""
    main = getattr(importlib.import_module(module), "main", None)
    if main is None or ("typer.run(main)" not in source_of(module) and not hasattr(sys.modules[module], "app")):
        return None
    made = typer.Typer(add_completion=False)
    made.command()(main)
    return typer.main.get_command(made)


@cache
def shell() -> Any:
    """The command `relax-eg`."""
    return typer.main.get_command(app)


def source_of(module: str) -> str:
    found = find_spec(module)
    assert found is not None and found.origin is not None
    return Path(found.origin).read_text()


def options_of(module: str) -> set[str]:
    command = command_of(module)
    if command is None:
        return set(re.findall(r'add_argument\("(--[a-z-]+)"', source_of(module)))
    return named_by(command)


def named_by(command: Any) -> set[str]:
    return {"--help", *(o for p in command.params for o in (*p.opts, *p.secondary_opts))}


def is_mention(command: Any, words: list[str]) -> bool:
    """Whether this is the name of a command or of an option of it, without what that needs."""
    if "--help" in words:
        return False
    try:
        while hasattr(command, "commands") and words and not words[0].startswith("-"):
            command, words = command.commands[words[0]], words[1:]
        if not hasattr(command, "commands"):
            command.make_context("", list(words))
    except typer.BadParameter as e:  # a wrong value is none
        if "Missing" not in type(e).__name__:
            raise
        return True
    except Exception as e:
        if "requires an argument" not in str(e):
            raise
        return True
    return hasattr(command, "commands") and not words


def asked(line: str) -> list[str]:
    return re.findall(r"(?<=\s)--[a-z][a-z-]*", line)


def test_what_is_named_is_found() -> None:
    found = {c.line for c in NAMED}
    assert {
        "make demo",
        "relax-eg cache info",
        "python -m benchmarks.planning",
        "relax-eg calibrate here.json",
    } <= found
    assert len(MODULES) >= 60 and len(SHELL) >= 40


@pytest.mark.parametrize("command", MODULES, ids=lambda c: c.options)
def test_modules_are_there_and_take_the_options(command: Command) -> None:
    assert command.module is not None
    assert find_spec(command.module) is not None, f"{command.where} names {command.line!r}: no such module"
    known = options_of(command.module)
    missing = [o for o in asked(command.options) if o not in known]
    assert not missing, f"{command.where} names {command.options!r}: there is no {', '.join(missing)}"


@pytest.mark.parametrize("command", SHELL, ids=lambda c: c.options)
def test_subcommands_are_there_and_take_the_options(command: Command) -> None:
    found: Any = shell()
    for word in command.words[1:]:
        if not hasattr(found, "commands") or word.startswith("-"):
            break
        assert word in found.commands, f"{command.where} names {command.line!r}: no such command"
        found = found.commands[word]
    missing = [o for o in asked(command.options) if o not in named_by(found)]
    assert not missing, f"{command.where} names {command.options!r}: there is no {', '.join(missing)}"


def test_targets_are_in_the_makefile() -> None:
    named = {word: c for c in NAMED if c.words[0] == "make" for word in c.words[1:]}
    done = subprocess.run(["make", "-n", *named], cwd=ROOT, capture_output=True, text=True)
    assert len(named) > 3 and done.returncode == 0, f"{done.stderr}\n{named}"


@pytest.mark.parametrize("command", [c for c in NAMED if c.module and c not in MODULES], ids=lambda c: c.line)
def test_tools_are_known_and_paths_are_there(command: Command) -> None:
    assert command.module in TOOLS, f"{command.where} names {command.line!r}"
    for word in command.words:
        if word.startswith("tests/"):
            assert (ROOT / word).exists(), f"{command.where} names {word}"


def test_every_benchmark_has_quick() -> None:
    """One option, spelled alike."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sorted((ROOT / "benchmarks").rglob("*.py"))
        if "__main__" in (source := path.read_text()) and "import torch" not in source
    ]
    assert len(modules) >= 25
    assert [m for m in modules if "--quick" not in options_of(m)] == []
    assert [m for m in modules if m not in {c.module for c in MODULES}] == [], "each says how it is run"


@pytest.mark.parametrize("command", runs(MODULES, heavy=False, one_in=4))
def test_modules_run(command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, args = str(command.module), command.words[3:]
    made = command_of(module)
    if made is None or not is_mention(made, args):
        run(module, small(module, args), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("command", runs(MODULES, heavy=True))
def test_modules_that_take_long_run(command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test_modules_run(command, folder, monkeypatch)


@pytest.mark.parametrize("module", sorted({str(c.module) for c in MODULES if c.heavy}))
def test_modules_that_take_long_say_what_they_do(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if command_of(module) is None:  # it takes no options: all that can be done in a moment is to import it
        importlib.import_module(module)
        return
    run(module, ["--help"], monkeypatch)
    assert "Usage" in capsys.readouterr().out


def in_full(words: list[str]) -> list[str]:
    """A command line with what it leaves to the reader."""
    if words == ["optimize", "..."] or words[:2] == ["optimize", "..."]:
        return ["optimize", "model.py:attend", "--spec", "s 64", "--at", "s=128", *words[2:]]
    found: list[str] = []
    for word in words:
        after = found[-1] if found else ""
        if word == "..." and after in ("--spec", "--at"):
            found.append({"--spec": "n 8", "--at": "n=8"}[after])
        elif word != "...":  # more of the same
            found.append(PLACEHOLDERS.get(word, word))
    return found


@pytest.mark.parametrize("command", runs(SHELL, heavy=False))
def test_subcommands_run(command: Command, folder: Path) -> None:
    words = in_full(command.words[1:])
    if is_mention(shell(), words):
        return
    compiles = "compile" in words or ("verify" in words and "--device" in words)
    if compiles and find_spec("jax_cuda12_plugin") is None and find_spec("jax_cuda13_plugin") is None:
        pytest.skip("relax-eg[cuda] is not installed")
    if "--check" in words:  # it checks what the same command wrote
        saved = words[words.index("--check") + 1]
        made = ["extract", "graph.json", "--time-limit", "1", "--save", saved]
        assert CliRunner().invoke(app, made).exit_code == 0
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, f"{command.where} names {command.line!r}: {result.output}"


@pytest.mark.slow
@pytest.mark.parametrize("command", runs(SHELL, heavy=True))
def test_subcommands_that_take_long_run(command: Command, folder: Path) -> None:
    test_subcommands_run(command, folder)


@pytest.mark.parametrize("name", sorted({c.words[1] for c in SHELL if c.heavy}))
def test_subcommands_that_take_long_say_what_they_do(name: str) -> None:
    result = CliRunner().invoke(app, [name, "--help"])
    assert result.exit_code == 0 and "Usage" in result.output
