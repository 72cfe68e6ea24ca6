"""The command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner, Result

import relax_eg as rx
from relax_eg.cli import app
from relax_eg.driver.clock import turns
from relax_eg.extract.report import MeasuredRow

PROGRAM = """
import jax.numpy as jnp

SIZE = 3

def chain(a, b, v):
    return (a @ b) @ v

def branch(x):
    return x if x.shape[0] > 3 else -x

def wave(x):
    return jnp.sin(jnp.exp(x))

def told(x):
    import jax
    jax.debug.print("{}", x)
    return x
"""

GOOD = '''
import relax_eg as rx

book = rx.RuleSet("mine")

@book.rule("x: n", numerics="exact", check=False)
def twice_negated(x):
    """-(-(-x)) = -x"""
    return -(-(-x)), -x
'''

BAD = '''
import relax_eg as rx

book = rx.RuleSet("wrong")

@book.rule("a: n n, b: n n", check=False)
def commutes(a, b):
    """A B = B A"""
    return a @ b, b @ a
'''

CHAIN = ["--spec", "n n", "--spec", "n n", "--spec", "n"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("model.py", PROGRAM), ("good.py", GOOD), ("bad.py", BAD)):
        (tmp_path / name).write_text(text)
    return tmp_path


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(app, [str(a) for a in args])


def text(result: Result) -> str:
    """What the command wrote, lines joined: a narrow terminal wraps."""
    return " ".join(result.output.split())


def test_optimize_prints_the_report(folder: Path) -> None:
    result = run("optimize", f"{folder}/model.py:chain", *CHAIN, "--at", "n=512")
    assert result.exit_code == 0
    assert "chain cpu, whole, at n=512" in text(result)
    assert "same_sum_of_products x2" in text(result)


def test_module_and_json(folder: Path) -> None:
    result = run(
        "optimize", f"{folder}/model.py:chain", *CHAIN, "--at", "n=512", "--module", "--json", folder / "out" / "r.json"
    )
    assert result.exit_code == 0
    assert "@I.ir_module" in result.output and "R.matmul(b, v)" in result.output
    data = json.loads((folder / "out" / "r.json").read_text())
    assert data["schema"] == "relax_eg.report/1" and data["at"] == {"n": 512}


def test_bounds_weights_numerics_and_budget(folder: Path) -> None:
    result = run("optimize", f"{folder}/model.py:branch", "--spec", "n", "--bounds", "n=4:64", "--numerics", "exact")
    assert result.exit_code == 0 and "at n=64" in text(result)
    result = run("optimize", f"{folder}/model.py:chain", *CHAIN, "--weights", "a", "--at", "n=512", "--nodes", "0")
    assert result.exit_code == 0 and "stopped: node limit" in text(result)


@pytest.mark.parametrize("execution", ["whole", "kernels"])
def test_a_memory_limit_is_in_the_report(folder: Path, execution: str) -> None:
    page = folder / "report.html"
    words = ["--at", "n=64", "--memory-limit", "80KiB", "--execution", execution, "--html", page]
    result = run("optimize", f"{folder}/model.py:chain", *CHAIN, *words)
    assert result.exit_code == 0, result.output
    assert " of 80 KiB allowed (" in text(result) and "without a limit" in text(result)
    assert " of 80 KiB allowed (" in page.read_text()


def test_rules_in_and_out(folder: Path) -> None:
    chain = ["optimize", f"{folder}/model.py:chain", *CHAIN, "--at", "n=512"]
    assert "kept as written" in text(run(*chain, "--without", "matmul", "--without", "sum_products"))
    assert "same_sum_of_products" not in text(run(*chain, "--without", "same_sum_of_products"))
    assert run(*chain, "--rules", folder / "good.py").exit_code == 0
    refused = run(*chain, "--rules", folder / "bad.py")
    assert refused.exit_code == 1
    assert "RuleError: bad.py:6 rule `commutes`: is refuted and does not run" in text(refused)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["model.py"], "'{}/model.py': file.py:name, model.onnx, StableHLO (model.mlir) or a file of"),
        (["nothing.txt"], "'{}/nothing.txt': file.py:name, model.onnx,"),
        (["model.py:chain", *CHAIN, "--at", "n=3,n=4"], "--at 'n=4': `n` is 3 already; one size for each name"),
        (["nothing.py:chain"], "no file {}/nothing.py"),
        (["model.py:train"], "{}/model.py has no `train`; it has: chain, branch"),
        (["model.py:SIZE"], "optimize takes a function or a module, got int"),
        (["model.py:chain", *CHAIN, "--at", "n"], "--at 'n': name=size is accepted, as in s=128"),
        (["model.py:chain", *CHAIN, "--at", "m=3"], "chain(): no size is named `m` (at={{'m': ...}}); its sizes are n"),
        (["model.py:chain", *CHAIN, "--bounds", "n=3"], "--bounds 'n=3': name=low:high is accepted, as in s=1:4096"),
        (
            ["model.py:chain", *CHAIN, "--bounds", "n=1:4", "--bounds", "n=2:8"],
            "--bounds 'n=2:8': `n` has other bounds already; one for each size is accepted",
        ),
        (["model.py:chain", *CHAIN, "--target", "tpu"], "target='tpu': one of a100, cpu, h100, h200, laptop, rtx4090"),
        (
            ["model.py:chain", *CHAIN, "--numerics", "fast"],
            "numerics='fast': one of exact, reassociate, approximate, quantised",
        ),
        (["model.py:chain", *CHAIN, "--weights", "w"], "weights: chain has no argument 'w'"),
        (["model.py:chain", *CHAIN, "--rules", "nothing.py"], "no file nothing.py"),
        (
            ["model.py:chain", *CHAIN, "--at", "n=64", "--memory-limit", "2 parsecs"],
            "--memory-limit='2 parsecs': bytes, or a text such as '512 MiB' or '2 GB', is accepted ('parsecs' is no",
        ),
        (["model.py:chain", *CHAIN, "--memory-limit", "0"], "--memory-limit='0': bytes, or a text"),
        (
            ["model.py:chain", *CHAIN, "--memory-limit", "1MB"],
            "memory_limit: sizes to keep it at are needed: at={{...}}",
        ),
        (
            ["model.py:chain", *CHAIN, "--at", "n=64", "--memory-limit", "100B", "--measure", "2"],
            "memory_limit: what is timed is not looked at for its memory; leave measure or it out",
        ),
        (
            ["model.py:chain", *CHAIN, "--at", "n=64", "--memory-limit", "100B"],
            "chain(): memory_limit is 100 B, and of",
        ),
        (
            ["model.py:chain", *CHAIN, "--facts", "a"],
            "--facts 'a': an argument and a fact, as in 'a=positive definite'",
        ),
        (["model.py:chain", *CHAIN, "--facts", "a=funny"], "'funny' is no fact"),
        (["model.py:chain", "--spec", "n"], "missing a required argument: 'b'"),
        (["model.py:chain", *CHAIN, "--without", "nonsense"], "no rule, tag or numerics class `nonsense` in set"),
        (["model.py:branch", "--spec", "n"], "TraceError: cannot trace `branch` (model.py:9)"),
    ],
)
def test_errors_are_said_plainly(folder: Path, args: list[str], said: str) -> None:
    result = run("optimize", f"{folder}/{args[0]}", *args[1:])
    assert result.exit_code == 1
    # rich breaks long paths
    assert said.format(folder).replace(" ", "") in result.output.replace("\n", "").replace(" ", "")
    assert "Traceback" not in result.output


def test_rules_are_listed(folder: Path) -> None:
    result = run("rules")
    assert result.exit_code == 0 and len(result.output.splitlines()) >= 40
    assert "matmul_vector_associates" in result.output
    only = run("rules", "--only", "transpose")
    assert 0 < len(only.output.splitlines()) < len(result.output.splitlines())
    assert run("rules", folder / "good.py").output.splitlines() == ["twice_negated: -(-(-x))  =>  -x"]
    unknown = run("rules", folder / "good.py", "--only", "nonsense")
    assert unknown.exit_code == 1 and "no rule, tag or numerics class `nonsense` in set `mine`" in unknown.output


def test_facts_are_declared(folder: Path) -> None:
    (folder / "root.py").write_text(
        "import relax_eg as rx\nbook = rx.RuleSet('roots')\n"
        "@book.rule('x: n', when='nonnegative(x)', check=False)\n"
        "def size_of_nonnegative(x):\n    return rx.op.abs(x), x\n"
    )
    (folder / "size.py").write_text("import jax.numpy as jnp\ndef size(x):\n    return jnp.exp(jnp.abs(x))\n")
    asked = ["why-not", "size_of_nonnegative", f"{folder}/size.py:size", "--spec", "n", "--rules", folder / "root.py"]
    assert "x is not known to be nonnegative" in text(run(*asked))
    assert "nonnegative" not in text(run(*asked, "--facts", "x=finite", "--facts", "x=nonnegative")).partition("\n")[2]


def test_verify(folder: Path) -> None:
    good = run("verify", folder / "good.py")
    assert good.exit_code == 0 and "twice_negated" in good.output and "1 axioms" in good.output
    bad = run("verify", folder / "bad.py")
    assert bad.exit_code == 1 and "commutes" in bad.output and "refuted" in bad.output
    assert run("verify", folder / "nothing.py").exit_code == 1


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import jax\ndef f(x) return x", "cannot be loaded: line 2: SyntaxError: expected ':'"),
        ("x = 1\nimport no_such_module", "cannot be loaded: line 2: ModuleNotFoundError: No module named"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_told(folder: Path, source: str, said: str) -> None:
    (folder / "broken.py").write_text(source)
    for command in (["optimize", f"{folder}/broken.py:f", "--spec", "n"], ["verify", folder / "broken.py"]):
        result = run(*command)
        assert result.exit_code == 1 and said in text(result) and "Traceback" not in result.output


def test_what_the_users_function_raises_is_told_by_its_lines(folder: Path) -> None:
    (folder / "own.py").write_text("def look(x):\n    return x + {}['bias']\n\ndef f(x):\n    return look(x * 2)\n")
    result = run("optimize", f"{folder}/own.py:f", "--spec", "n")
    assert result.exit_code == 1 and "Traceback" not in result.output
    assert "KeyError: 'bias'" in text(result)
    assert "at own.py:5, in f: return look(x * 2)" in text(result)
    assert "at own.py:2, in look: return x + {}['bias']" in text(result)


def test_modules_of_other_files(folder: Path) -> None:
    """StableHLO and module text are programs, as ONNX models are."""
    exported = jax.export.export(jax.jit(lambda a, b, v: (a @ b) @ v))(*[jnp.ones((64, 64))] * 2, jnp.ones(64))
    (folder / "chain.mlir").write_text(exported.mlir_module())
    chain = rx.trace(lambda a, b, v: (a @ b) @ v, "n n", "n n", "n")
    (folder / "chain.txt").write_text(str(chain))
    for command in ("optimize", "why-not"):
        rule = ["matmul_associates"] * (command == "why-not")
        for name, at in (("chain.mlir", []), ("chain.txt", ["--at", "n=64"])):
            found = run(command, *rule, folder / name, *(at if command == "optimize" else []))
            assert found.exit_code == 0, found.output


def test_a_file_that_is_no_module_text_is_told(folder: Path) -> None:
    (folder / "module.txt").write_bytes(b"\xf8\x00")
    result = run("plan", folder / "module.txt")
    assert result.exit_code == 1 and "is no module text: 'utf-8' codec can't decode byte 0xf8" in text(result)
    (folder / "wrong.relax").write_text("@R.function\ndef main(x: R.Tensor((4,))):\n    return R.expo(x)\n")
    result = CliRunner().invoke(app, ["optimize", str(folder / "wrong.relax")])
    assert result.exit_code == 1 and "wrong.relax,line3:nooperator`expo`" in "".join(text(result).split())


def test_programs_are_timed_beside_the_first_as_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, float] = {}

    def timed(programs: dict[str, tuple[Any, float]], **_: Any) -> list[MeasuredRow]:
        asked.update({name: float(np.sum(call())) for name, (call, _) in programs.items()})
        return [MeasuredRow(name, predicted, 2e-3, 1.5, 1.25, 2.0) for name, (_, predicted) in programs.items()]

    monkeypatch.setattr(turns, "fastest", timed)
    chain, saved = f"{folder}/model.py:chain", folder / "m.rxe"
    assert run("optimize", chain, *CHAIN, "--at", "n=64", "--save", saved).exit_code == 0
    result = run("bench", chain, saved, *CHAIN, "--at", "n=3")
    assert result.exit_code == 0, result.output
    assert text(result).startswith("chain() at n=3: seconds, and how many times faster than as written as written")
    assert text(result).endswith("m.rxe 2 ms, 1.50 (1.25 to 2.00)")
    assert list(asked) == ["as written", chain, str(saved)]
    assert list(asked.values()) == pytest.approx([asked["as written"]] * 3, rel=1e-4) and asked["as written"]
    for args, said in (
        ([saved, "--at", "m=3"], "chain(): no size is named `m` (at={'m': ...}); its sizes are n"),
        ([saved, "--spec", "n"], f"{saved} is saved and not searched again: --spec cannot change it"),
        ([f"{folder}/model.py:told", "--spec", "n", "--at", "n=3"], "told() does more than compute, and is not timed"),
    ):
        refused = run("bench", *args)
        assert refused.exit_code == 1 and said.replace(" ", "") in text(refused).replace(" ", "")


def test_version() -> None:
    result = run("--version")
    assert result.exit_code == 0 and result.output == f"relax-eg {rx.__version__}\n"


def test_help_names_the_commands() -> None:
    result = run("--help")
    assert result.exit_code == 0 and all(c in result.output for c in ("optimize", "rules", "verify"))


def test_kernels_are_shown(folder: Path) -> None:
    more = ["--execution", "kernels", "--show", "kernels"]
    result = run("optimize", f"{folder}/model.py:branch", "--spec", "n", "--bounds", "n=4:64", *more)
    assert result.exit_code == 0, result.output
    assert "no kernel runs" in result.output
    result = run("optimize", f"{folder}/model.py:wave", "--spec", "n", "--at", "n=4096", *more)
    assert result.exit_code == 0, result.output
    shown = [" ".join(line.split()) for line in result.output.splitlines()]
    assert "fused kernels: 1 (2 operators)" in shown
    kernel, *figures = shown[-2].split()
    assert kernel == "fused_exp_sin" and (figures[0], *figures[3:]) == ("1", "32.8k", "32.8k", "1")
    assert shown[-1] == "exp, sin"
    fused = "fused: 2 operators in 1 kernel, 32.8kB moved and 1 launch less; inline_elementwise x1"
    assert fused in " ".join(result.output.split())
    refused = run("optimize", f"{folder}/model.py:branch", "--spec", "n", "--show", "kernels")
    assert refused.exit_code != 0
    assert "'kernels' is accepted, together with --execution kernels or auto" in " ".join(refused.output.split())
