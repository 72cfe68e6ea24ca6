"""Inputs spread over eight devices of the host platform: shardings are kept, and parts are optimized inside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from compiling import FLAGS

PROGRAM = Path(__file__).parent / "eight_devices.py"


def test_on_eight_devices() -> None:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8 {FLAGS}"
    run = subprocess.run(
        [sys.executable, str(PROGRAM)],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.split() == ["spread", "constrained", "mapped", "gathered", "jitted"]
