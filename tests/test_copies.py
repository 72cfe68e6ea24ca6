"""Modules and expressions copied, pickled, and in processes that were forked."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg import ir, op

N = 20_000


@pytest.fixture(scope="module")
def long() -> ir.Module:
    x = e = ir.var("x", rx.Tensor("n 4"))
    for i in range(N):
        e = op.add(e, x) if i % 3 else op.exp(e)
    return ir.Module((ir.pure_function("main", (x,), [e]),))


def test_a_long_module_is_pickled_and_copied(long: ir.Module) -> None:
    assert pickle.loads(pickle.dumps(long)) == long
    assert copy.deepcopy(long) is long and copy.copy(long) is long
    (binding,) = long.main.blocks[0].bindings
    for part in (long.main, long.main.blocks[0], binding, binding.value):
        again = pickle.loads(pickle.dumps(part))
        assert again == part and copy.deepcopy(part) == part == copy.copy(part)
    assert pickle.loads(pickle.dumps(binding.value)) is binding.value  # interned: the same node


def test_copies_of_an_expression_are_that_expression() -> None:
    x = ir.var("x", rx.Tensor("n 4"))
    y = op.exp(x) + np.float32(1.5)
    assert copy.deepcopy({"a": [y]}) == {"a": [y]} and copy.deepcopy(y) is y and copy.copy(y) is y


def test_what_a_module_carries_is_pickled() -> None:
    def program(x: Any, c: Any) -> Any:
        return jnp.where(c, x, jnp.sort(x))[::-1] * np.float32([1.5, np.nan])[:, None]

    module = rx.trace(program, "2 m", "2 m @ bool")
    again = pickle.loads(pickle.dumps(module))
    assert again == module
    inside = set(module.main.expressions())
    assert dict(again.main.origins) == {e: origin for e, origin in module.main.origins.items() if e in inside} != {}
    scripted = rx.parse("""
@R.tensor_program
def scale(X: T.Buffer(("n",), "float32"), Y: T.Buffer(("n",), "float32")):
    for i in T.grid(n):
        Y[i] = X[i] * 2.0
def main(x: R.Tensor(("n",), "float32"), c: R.Tensor((), "bool"), s: R.Shape(("k", 3))):
    R.func_attr({"assume": ["n % 8 == 0"]})
    if c:
        y = R.call_tir(Module.scale, (x,), out=R.Tensor(("n",), "float32"))
    else:
        y = x
    u = R.match_cast(y, R.Tensor(("m",), "float32"))
    return (u, (x, s))
""")
    assert pickle.loads(pickle.dumps(scripted)) == scripted and copy.deepcopy(scripted) == scripted


def test_what_was_optimized_is_shared_by_copies_and_saved_by_name() -> None:
    best = rx.optimize(lambda x: x * 2.0, "n")
    model = copy.deepcopy({"encode": best})
    assert model["encode"] is best
    with pytest.raises(rx.errors.ArtifactError, match=r"is not pickled\n  accepted: `save\(path\)`"):
        pickle.dumps(best)


def test_a_pickle_is_read_in_another_process(tmp_path: Path) -> None:
    x = ir.var("x", rx.Tensor("n 4"))
    module = ir.Module((ir.pure_function("main", (x,), [op.exp(x) + 1.0]),))
    (tmp_path / "module.pickle").write_bytes(pickle.dumps(module))
    code = "import pickle, sys, relax_eg; print(pickle.load(open(sys.argv[1], 'rb')))"
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "module.pickle")], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == str(module).strip()


FORK = """
import os, sys, threading, time
import relax_eg as rx
from relax_eg.errors import ForkedError
from relax_eg.shapes import solver
TEXT = 'def main(x: R.Tensor("n n"), v: R.Tensor("n")):\\n    return (x @ x) @ v * SCALE\\n'
HARD = "n*m*m + m <= n*m*m*m + 1", {"n": (1, 50), "m": (2, 50)}
if sys.argv[1] != "first":
    rx.optimize(rx.parse(TEXT.replace("SCALE", "2.0")))
rx.prove(HARD[0], bounds=HARD[1])
if sys.argv[1] == "locked":  # another thread is in z3 while this one forks
    held = threading.Event()
    def hold():
        with solver.Z3_LOCK:
            held.set()
            time.sleep(1)
    threading.Thread(target=hold).start()
    held.wait()
pid = os.fork()
if pid == 0:
    rx.parse(TEXT.replace("SCALE", "3.0"))
    print(rx.prove("n*m*m + 2*m <= n*m*m*m + 7", bounds=HARD[1]).__class__.__name__)
    try:
        print(type(rx.optimize(rx.parse(TEXT.replace("SCALE", "4.0")))).__name__)
    except ForkedError as error:
        print("ForkedError", error)
    sys.stdout.flush()
    os._exit(0)
os.waitpid(pid, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
@pytest.mark.parametrize("when", ["first", "after", "locked"])
def test_a_forked_process_works_or_says_at_once_that_it_cannot(when: str) -> None:
    """The engine's threads are not in the child: a search there is refused. What needs none works."""
    started = time.monotonic()
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, when], capture_output=True, text=True, timeout=120, check=True
    )
    assert time.monotonic() - started < 100
    lines = run.stdout.split("\n")
    assert lines[0] == "Proved", run.stdout + run.stderr
    if when == "first":
        assert lines[1] == "Optimized"
    else:
        assert lines[1].startswith("ForkedError this process was forked from one in which relax_eg had searched")
        assert "accepted: processes that are started by themselves" in lines[2]
