"""TVM's own memory planner on the kernels of one of our plans, where TVM is installed.

Its input is a Relax function of destination-passing calls with the same tensors in the same order, at known sizes; its
output is the bytes of the storages that `StaticPlanBlockMemory` allocates. Results are left to the caller, as in our
plans.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

from relax_eg.memory import MemoryProgram, Value, leaves


def is_there() -> bool:
    """Whether TVM is installed."""
    return importlib.util.find_spec("tvm") is not None


def planned_bytes(program: MemoryProgram, sizes: Mapping[str, int]) -> int:
    """Bytes of the storages that TVM's planner allocates for a call of `program` at these sizes."""
    tvm: Any = importlib.import_module("tvm")
    relax: Any = importlib.import_module("tvm.relax")
    passes = relax.transform
    made = _module(relax, program, sizes)
    chain = [passes.ToNonDataflow(), passes.RemovePurityChecking(), passes.CallTIRRewrite()]
    planned = tvm.transform.Sequential([*chain, passes.StaticPlanBlockMemory()])(made)
    found: list[int] = []

    def look(e: Any) -> None:
        if isinstance(e, relax.Call) and getattr(e.op, "name", "") == "relax.memory.alloc_storage":
            found.append(int(e.args[0].values[0]))

    relax.analysis.post_order_visit(planned["main"], look)
    return sum(found)


def _module(relax: Any, program: MemoryProgram, sizes: Mapping[str, int]) -> Any:
    """Returns the steps of a program as a Relax module. Its kernels are calls of a routine that does not exist."""

    def kind(v: Value) -> Any:
        shape = [int(d.evaluate(sizes)) for d in v.annotation.shape or ()]
        return relax.TensorType(shape, v.annotation.dtype)

    builder = relax.BlockBuilder()
    given = [v for v in program.values if v.role in ("argument", "constant")]
    env = {v.number: relax.Var(f"v{v.number}", kind(v)) for v in given}
    with builder.function("main", list(env.values())):
        with builder.dataflow():
            for s in program.steps:
                outs = [*s.writes, *s.workspaces]
                reads = [env[v] for v in s.reads]
                types = [kind(program.values[v]) for v in outs]
                call = builder.emit(relax.call_dps_packed("kernel", reads, types if len(types) > 1 else types[0]))
                for i, v in enumerate(outs):
                    env[v] = builder.emit(relax.TupleGetItem(call, i)) if len(outs) > 1 else call
            results = [env[v] for v in leaves(program.result)]
            result = builder.emit_output(relax.Tuple(results) if len(results) != 1 else results[0])
        builder.emit_func_output(result)
    return builder.get()
