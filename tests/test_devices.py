"""Checks that need several devices, all in one process: JAX is told how many there are when it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from compiling import FLAGS

MODULES = ("tests.eight_devices", "tests.meshes.on_eight", "tests.vm.on_three_devices")
CHECKING = """
import importlib, sys
for name in sys.argv[1:]:
    for key, check in list(vars(importlib.import_module(name)).items()):
        if key.startswith("check_"):
            print(name, key, flush=True)
            check()
"""


def test_on_eight_devices() -> None:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8 {FLAGS}"
    run = subprocess.run(
        [sys.executable, "-c", CHECKING, *MODULES],
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert {line.split()[0] for line in run.stdout.splitlines()} == set(MODULES)
