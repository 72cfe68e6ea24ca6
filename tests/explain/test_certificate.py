"""Certificates: derivations that others check, without the search, and that no tampering survives."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

import relax_eg as rx
from relax_eg.cli import app

Data = dict[str, Any]


def logs(x, y):
    return jnp.exp(jnp.log(x)) + jnp.trace(y @ y)


@pytest.fixture(scope="module")
def data() -> Data:
    single_laws = rx.rules.default - "sum_products" - "pointwise"
    best = rx.optimize(logs, "n", "n n", facts={"x": "positive"}, at={"n": 512}, rules=single_laws)
    return json.loads(json.dumps(best.certificate().data))


def verified(data: Data) -> str:
    return str(rx.types.Certificate(data).verify(rx.rules.default))


def changed(data: Data, change: Callable[[Data], None]) -> Data:
    more = copy.deepcopy(data)
    change(more)
    return more


def equations(data: Data, rule: str) -> list[Data]:
    return [e for p in data["parts"] for e in p["rules"] if e["rule"] == rule]


def test_it_is_checked_again(data: Data) -> None:
    assert data["version"] == 4
    assert "R.trace" not in data["written"] and "R.exp" in data["written"] and "R.exp" not in data["chosen"]
    (step,) = equations(data, "exp_of_log")
    assert step["place"].startswith("test_certificate.py:")
    assert step["proofs"] == ["positive(x): derived from what is declared and from the operators"]
    assert "4 uses of rules, 1 side conditions proved" in verified(data)


def test_the_command_needs_no_engine(data: Data, tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    rx.types.Certificate(data).save(path)
    code = (
        "import sys; sys.modules['egglog'] = None\n"
        "from relax_eg.cli import app\n"
        f"app(['verify', '--certificate', {str(path)!r}], standalone_mode=False)\n"
        "assert sys.modules['egglog'] is None and not any(m.startswith('egglog.') for m in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "logs: holds; 4 uses of rules" in done.stdout
    assert "by rules of class exact, reassociate; given" in done.stdout and "x is positive" in done.stdout


def swap_operand(d: Data) -> None:
    e = equations(d, "trace_of_product")[0]
    e["operands"][0] = equations(d, "exp_of_log")[0]["operands"][0]


def other_rule(d: Data) -> None:
    e, other = equations(d, "exp_of_log")[0], equations(d, "plus_zero_int")[0]
    e["rule"], e["content"] = other["rule"], other["content"]


def other_content(d: Data) -> None:
    equations(d, "exp_of_log")[0]["content"] = "0" * 32


def no_such_rule(d: Data) -> None:
    equations(d, "exp_of_log")[0]["rule"] = "exp_of_nothing"


def step_left_out(d: Data) -> None:
    for part in d["parts"]:
        goal = next(g for g in part["goals"] if g[2])
        goal[2].pop()


def step_turned(d: Data) -> None:
    for part in d["parts"]:
        step = next(s for g in part["goals"] for s in g[2] if s[0] == "rule")
        step[4] = not step[4]


def another_place(d: Data) -> None:
    """A step that is right, in another operand than where it stands: both are wholes of the same shape."""
    for part in d["parts"]:
        for goal in part["goals"]:
            for step in goal[2]:
                if step[0] == "inside" and step[2].count(None) == 1:
                    step[2].reverse()
                    return
    raise AssertionError("no step inside one operand")


def another_order(d: Data) -> None:
    """Two steps that follow one another, exchanged."""
    steps = next(g[2] for p in d["parts"] for g in p["goals"] if len(g[2]) > 1)
    steps[0], steps[1] = steps[1], steps[0]


def another_program_order(d: Data) -> None:
    programs = d["parts"][0]["programs"]
    programs[0], programs[1] = programs[1], programs[0]


def program_left_out(d: Data) -> None:
    d["parts"][0]["programs"].pop()


def no_facts(d: Data) -> None:
    d["facts"] = {}


def only_exact(d: Data) -> None:
    d["numerics"] = ["exact"]


def another_text(d: Data) -> None:
    d["chosen"] = d["chosen"].replace("R.add", "R.subtract")


def another_program(d: Data) -> None:
    """Both the text of the chosen program and the program itself."""
    another_text(d)
    nodes, functions = d["programs"]["nodes"], d["programs"]["modules"][0]
    chosen = next(f for f in functions if f[0].startswith("chosen:"))
    value = chosen[2][0][1][0][1]
    assert nodes[value][0] == "add"
    nodes.append(["subtract", *nodes[value][1:]])
    for f in functions:
        if f[0].startswith(("chosen:", "functions:")):
            f[2][0][1][0][1] = len(nodes) - 1
            f[4] = [[len(nodes) - 1 if e == value else e, line] for e, line in f[4]]  # it keeps its source line


def unreadable(d: Data) -> None:
    del d["programs"]["nodes"]


def another_version(d: Data) -> None:
    d["version"] = 99


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (swap_operand, r"step by rule `trace_of_product`.*`a` is .* where .* is wanted"),
        (other_rule, r"rule `plus_zero_int` \(.*\) says nothing of these operands: add"),
        (other_content, r"rule `exp_of_log` \(values.py:\d+\) does not say what the rule of this name said"),
        (no_such_rule, "uses rule `exp_of_nothing`, which no rule file that was given has"),
        (step_left_out, "the steps do not lead to what they are said to lead to"),
        (step_turned, "it does not lead from the expression before it to the one after it"),
        (another_place, r"an operand of \w+ was changed, and no step says why"),
        (another_order, r"in `logs`: an operand of where was changed, and no step says why"),
        (another_program_order, r"whole program 1 of `logs` is said to be made by .*, and the steps make it by"),
        (program_left_out, r"whole program \d+ of `logs` is said to be made by nothing, and the steps make it by"),
        (no_facts, r"step by rule `exp_of_log`.*its condition positive\(x\) is not known to hold"),
        (only_exact, "the rule is of class reassociate; allowed were exact"),
        (another_text, "the text of the program as chosen is not that of the program in the data"),
        (another_program, "the derivation does not end at the chosen program"),
        (unreadable, "the certificate cannot be read: there is no 'nodes' where there should be"),
        (another_version, "certificate of version 99; this is version 4"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_tampering_is_found(data: Data, change: Callable[[Data], None], said: str, tmp_path: Path) -> None:
    with pytest.raises(rx.errors.ExplanationError, match=said):
        verified(changed(data, change))
    path = tmp_path / "c.json"
    rx.types.Certificate(changed(data, change)).save(path)
    assert CliRunner().invoke(app, ["verify", "--certificate", str(path)]).exit_code == 1


def test_a_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    with pytest.raises(rx.errors.ExplanationError, match=r"c\.json cannot be read: No such file or directory"):
        rx.types.Certificate.load(path)
    path.write_text('{"version": 2}')
    with pytest.raises(rx.errors.ExplanationError, match=r"a file that `best.certificate\(\).save\(path\)` wrote"):
        rx.types.Certificate.load(path)


def adapted(x, layers):
    for weight, low, high, scale in layers:
        x = jax.nn.relu((x * scale) @ (weight + low @ high))
    return x


def test_it_grows_with_program_and_steps() -> None:
    """Steps are local: twice the layers, each with steps of its own, make no more than twice the certificate."""
    sizes: list[int] = []
    for layers in (4, 8):
        specs = "n 64", [("64 64", "64 4", "4 64", "64")] * layers
        with rx.debug.options(sharing=False):
            best = rx.optimize(adapted, *specs, weights=("layers",), at={"n": 8})
        data = json.loads(json.dumps(best.certificate().data))
        assert len([step for part in data["parts"] for step in part["rules"]]) >= layers
        sizes.append(len(json.dumps(data)))
    assert sizes[1] <= 2 * sizes[0]


def test_what_has_no_values_is_checked_by_asking() -> None:
    """A rule about whole nodes is asked again, which tells of all values, also where none are finite."""

    def diverging(a, b, x):
        return jax.lax.fori_loop(0, 40, lambda i, y: y + jnp.log(-1.0 - jnp.abs((a @ b) @ y)), x)

    best = rx.optimize(diverging, "64 64", "64 64", "64", target="h100")
    assert "loop_invariants" in {s.rule for s in best.explain().steps}
    data = json.loads(json.dumps(best.certificate().data))
    assert "has no finite values where it was tried" in verified(data)
    (step,) = equations(data, "loop_invariants")
    step["told"]["forms"] = [[*asked, None] for *asked, _ in step["told"]["forms"]]
    with pytest.raises(rx.errors.ExplanationError, match=r"step by rule `loop_invariants` .*the rule proposes nothing"):
        verified(data)
