"""`benchmarks.peers`: processes that take turns, and the page that is made of what they found."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks import peers
from benchmarks.peer_turns import Worker
from benchmarks.peers import JAX, OURS, Figures, Row
from benchmarks.timing import Estimate

SERVER = """
import sys, time
sys.path.insert(0, {folder!r})
import numpy as np
from peer_turns import serve

def make(name):
    if name == "slow":
        time.sleep(60)
    if name == "dying":
        print("no memory", file=sys.stderr, flush=True)
        raise SystemExit(1)
    if name == "wrong":
        raise ValueError("no such program\\nmore")
    print("libraries print")
    return lambda: np.arange(3.0)

serve(make, lambda x: [x], "numpy")
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    folder = str(Path(peers.__file__).parent)
    made = Worker([sys.executable, "-c", SERVER.format(folder=folder)], tmp_path / "log", 60.0)
    yield made
    made.end()


def test_a_worker_answers(worker: Worker, tmp_path: Path) -> None:
    answer = worker.ask(make="good", to=str(tmp_path / "out.npz"))
    assert answer["seconds"] >= 0
    with np.load(tmp_path / "out.npz") as file:
        np.testing.assert_array_equal(file["arr_0"], np.arange(3.0))
    assert worker.ask(turn=True)["seconds"] > 0
    answer = worker.ask(peak=True)
    assert answer["peak"] > 1 and answer["version"] == np.__version__


def test_a_program_that_cannot_be_made_is_told(worker: Worker, tmp_path: Path) -> None:
    to = str(tmp_path / "out.npz")
    assert worker.ask(make="wrong", to=to) == {"error": "ValueError: no such program"}
    assert "seconds" in worker.ask(make="good", to=to)  # the process goes on


def test_a_process_that_ends_is_told(worker: Worker, tmp_path: Path) -> None:
    for _ in range(2):
        assert worker.ask(make="dying", to=str(tmp_path / "out.npz")) == {"error": "no memory"}


def test_a_process_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    folder = str(Path(peers.__file__).parent)
    slow = Worker([sys.executable, "-c", SERVER.format(folder=folder)], tmp_path / "log", 1.0)
    assert slow.ask(make="slow", to=str(tmp_path / "out.npz")) == {"error": "no result in 1 s"}
    slow.end()


def test_results_are_compared() -> None:
    want = [np.array([1.0, 2.0]), np.array([3])]
    assert not peers._why_not_same([np.array([[1.0, 2.0001]]), np.array([3])], want)
    assert peers._why_not_same([np.array([1.0, 2.1])], want) == "another result: off by 0.1 where values reach 2"
    assert peers._why_not_same([np.array([1.0])], want) == "another result: (1,) in place of (2,)"
    assert peers._why_not_same([np.array([np.nan, 2.0])], want)


def known(value: float) -> Estimate:
    return Estimate(value, 0.99 * value, 1.01 * value)


ROWS = [
    Row("patterns", "(A@B)@v", {
        JAX: Figures(0.1, 0.02, known(1.0), known(20.0), 300.0, "0.10"),
        OURS: Figures(0.5, 0.001, known(20.0), None, 400.0, "1"),
        "torch": Figures(0.01, 0.0005, known(40.0), known(0.5), 200.0, "2.13"),
        "tvm": Figures(error="NotImplementedError: the program is no ONNX model"),
    }),
    Row("minilm", "5 tokens", {
        JAX: Figures(0.1, 0.02, known(1.0), known(1.0), 300.0, "0.10"),
        OURS: Figures(0.5, 0.02, known(1.0), None, 400.0, "1"),
        "torch": Figures(error="ImportError: no torch"),
    }),
]  # fmt: skip


def test_rows_on_file_read_back(tmp_path: Path) -> None:
    peers.save(tmp_path / "rows.json", ROWS)
    assert peers.load(tmp_path / "rows.json") == ROWS


def test_the_page_says_what_was_lost_and_what_did_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peers.WHY, ("patterns", "torch"), "It knows the form.")
    lines = peers.page(ROWS, "a machine").splitlines()
    assert "- Machine: a machine." in lines
    assert lines[lines.index("It knows the form.") + 2] == "- patterns, (A@B)@v: torch 2.00"
    assert "- tvm: patterns, (A@B)@v: the program is no ONNX model" in lines
    assert "- torch: minilm, 5 tokens: ImportError: no torch" in lines
    assert "| jax.jit | 2 | 4.47 | 1 | 1 | 0 | 1.00 s | 200 ms |" in lines
    assert "| (A@B)@v | 20.0 ms | 20.00 (19.80 to 20.20) |  | 40.00 |  |  |" in lines
    assert not any("5 tokens: times as fast" in line for line in lines)


def test_every_group_is_described() -> None:
    assert {p.group for p in peers.programs(quick=True)} <= peers.GROUPS.keys()
    names = [(p.group, p.name) for p in peers.programs(quick=True)]
    assert len(set(names)) == len(names) >= 35


def test_the_memory_of_a_process_is_its_own() -> None:
    """Not that of the larger process that started it."""
    code = "from benchmarks.peer_turns import peak_memory; print(peak_memory())"
    held = np.ones(1 << 26)  # 512 MiB
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 5 < float(done.stdout) < 256 < held.nbytes / 2**20
