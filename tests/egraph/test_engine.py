"""The engine's adapter: what it loads, and what it leaves to others."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOADED = """
import sys
from relax_eg.egraph.engine import Engine

engine = Engine()
answers = engine.run(["(datatype Letter (A i64))", "(A 3)", "(print-size A)"])
assert "1" in str(answers[-1]), answers
engine_graph = engine._graph
engine.close()
assert "egglog" not in sys.modules and "egglog.bindings" not in sys.modules
"""
USED = {
    "after": f"{LOADED}\nimport egglog\nassert egglog.EGraph() and egglog.bindings.EGraph is type(engine_graph)",
    "its module after": f"{LOADED}\nimport egglog.bindings\nassert egglog.bindings.EGraph()",
    "names of it after": f"{LOADED}\nfrom egglog import EGraph, bindings\nassert EGraph() and bindings.EGraph()",
    "before": "import egglog\n" + LOADED.partition('assert "egglog" not')[0] + "\nassert egglog.EGraph()",
}


@pytest.mark.parametrize("order", USED)
def test_egglog_is_imported_in_whole_by_whom_it_serves(order: str) -> None:
    done = subprocess.run([sys.executable, "-c", USED[order]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
