"""XLA options for tests that run a program a few times; they compile in a third of the time of the defaults."""

from __future__ import annotations

from typing import Any

QUICKLY: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_parallel_codegen_split_count": 1,
    "xla_cpu_use_fusion_emitters": False,
}
# The same for programs that tests start.
FLAGS = " ".join(f"--{name}={str(value).lower()}" for name, value in QUICKLY.items())
# The emitters that XLA uses by default know a clamp of truth values, the others do not.
CLAMPING = {**QUICKLY, "xla_cpu_use_fusion_emitters": True}
