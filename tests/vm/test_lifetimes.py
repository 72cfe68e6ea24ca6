"""`Kill` instructions: arrays are freed where nothing reads them again, on every path."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import relax_eg as rx
from relax_eg.cli import app
from relax_eg.ir.steps import stepped_functions
from relax_eg.rules.checking.check import without_checks
from relax_eg.vm.instructions import BranchOn, CallFunction, Code, Jump, Kill, MakeTuple, Move, Return
from relax_eg.vm.machine import VirtualMachine
from relax_eg.vm.storages import with_kills

ELEMENTS = 40_961

CHAIN = """
@R.function
def deeper(x: R.Tensor((40961,), "float32"), n: R.Tensor((), "int32")) -> R.Tensor((), "float32"):
    _ = R.call_packed("tests.live", sinfo_args=R.Tensor((), "int32"))
    if n == 0:
        return R.sum(x)
    y = deeper(R.exp(x), n - 1)
    return y + 1.0

@R.function
def main(x: R.Tensor((40961,), "float32")):
    a = R.exp(x)
    _ = R.call_packed("tests.live", sinfo_args=R.Tensor((), "int32"))
    b = R.tanh(a)
    _1 = R.call_packed("tests.live", sinfo_args=R.Tensor((), "int32"))
    c = R.sin(b)
    _2 = R.call_packed("tests.live", sinfo_args=R.Tensor((), "int32"))
    return deeper(c, 4)
"""


def test_arrays_are_freed(tmp_path: Path) -> None:
    live: list[int] = []

    def count() -> Any:
        live.append(sum(x.shape == (ELEMENTS,) for x in jax.live_arrays()))
        return np.int32(0)

    rx.script.register_function("tests.live", count, replace=True)
    with without_checks():
        best = rx.optimize(rx.parse(CHAIN))
    assert stepped_functions(best.module)
    gc.collect()
    x = jax.numpy.linspace(0.0, 1.0, ELEMENTS)
    best(x)
    gc.collect()
    live.clear()
    best(x)
    # The argument, and the one value that is read later: never two of the chain, however deep the recursion is.
    assert live and max(live) == 2, live
    best.save(tmp_path / "m.rxe")
    shown = CliRunner().invoke(app, ["info", str(tmp_path / "m.rxe"), "--instructions"]).output
    assert "kill registers=" in shown and "main: 1 parameters" in shown, shown


@pytest.mark.parametrize("branch", [0, 1])
def test_on_every_path(branch: int) -> None:
    """A register that only one branch reads is dropped at the beginning of the other."""
    code = with_kills((BranchOn(-1, 0, (1, 3)), MakeTuple(3, (1, 2)), Jump(-1, 4), Move(3, 1), Return(-1, 3)), ())
    assert [i.registers for i in code if isinstance(i, Kill)] == [(0,), (1, 2), (0, 2), (1,)]
    called = VirtualMachine(lambda name: Code(name, 3, (None,) * 4, code, None), None)  # type: ignore[arg-type]
    assert called.call("f", (branch, "b", "c")) == (("b", "c") if branch == 0 else "b")


def test_constants_are_kept() -> None:
    (call, _) = with_kills((CallFunction(2, "f", (0, 1)), Return(-1, 2)), [1])
    assert isinstance(call, CallFunction) and call.kills == (0,)
