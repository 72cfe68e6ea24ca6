"""Programs spread over eight devices of the host platform: results are those of one, and what XLA sends was priced."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from compiling import FLAGS

PROGRAM = Path(__file__).parent / "on_eight.py"
CHECKS = ["drawn", "state_comes_back_where_it_was", "given_shardings_are_kept", "partial_sums",
          "gradients_of_lookups", "matmuls_by_pieces", "meshes_that_begin_at_a_device", "symbolic_sizes",
          "padded_sizes", "families", "loops_and_branches", "shard_maps", "pipelines"]  # fmt: skip


def test_on_eight_devices() -> None:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8 {FLAGS}"
    run = subprocess.run(
        [sys.executable, str(PROGRAM)],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.split() == CHECKS
