"""relax_eg: a compiler for tensor programs with dynamic shapes, in which rules decide and proofs permit.

A name is imported when it is first used, because all of the package takes a second.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from relax_eg import debug, errors, rules, script, types
    from relax_eg.discovery.search import discover
    from relax_eg.driver.jitting.jit import jit
    from relax_eg.driver.limits.pareto import pareto
    from relax_eg.driver.loading import load
    from relax_eg.driver.optimize import optimize
    from relax_eg.driver.quantizing.quantize import quantize
    from relax_eg.driver.spreads.spreading import spread
    from relax_eg.dynamic.policy import Dynamic
    from relax_eg.egraph import Budget
    from relax_eg.frontends import trace
    from relax_eg.frontends.onnx.graph import from_onnx
    from relax_eg.frontends.script import dataflow, function
    from relax_eg.frontends.stablehlo.reading import from_stablehlo
    from relax_eg.ir import Callable, Object, Shape, Tensor, Tuple, call_dps_library, call_tir, match_cast
    from relax_eg.memory import plan_memory
    from relax_eg.ops import api as op
    from relax_eg.ops.text import parse
    from relax_eg.reports import compare
    from relax_eg.rules import RuleSet
    from relax_eg.rules.checking.verification import verify
    from relax_eg.shapes import prove
    from relax_eg.tir.script import Buffer, tensor_program

    __version__: str

# The modules among the names, and the modules of the others.
_MODULES = {"op": "ops.api"} | {name: name for name in ("debug", "errors", "rules", "script", "types")}
_HOMES = {
    "Budget": "egraph",
    "Buffer": "tir.script",
    "call_dps_library": "ir",
    "call_tir": "ir",
    "Callable": "ir",
    "compare": "reports",
    "dataflow": "frontends.script",
    "discover": "discovery.search",
    "Dynamic": "dynamic.policy",
    "from_onnx": "frontends.onnx.graph",
    "from_stablehlo": "frontends.stablehlo.reading",
    "function": "frontends.script",
    "jit": "driver.jitting.jit",
    "load": "driver.loading",
    "match_cast": "ir",
    "Object": "ir",
    "optimize": "driver.optimize",
    "pareto": "driver.limits.pareto",
    "parse": "ops.text",
    "plan_memory": "memory",
    "prove": "shapes",
    "quantize": "driver.quantizing.quantize",
    "RuleSet": "rules",
    "Shape": "ir",
    "spread": "driver.spreads.spreading",
    "Tensor": "ir",
    "tensor_program": "tir.script",
    "trace": "frontends",
    "Tuple": "ir",
    "verify": "rules.checking.verification",
}
# What names of earlier releases are now.
MOVED = {
    **{name: f"script.{name}" for name in ("List", "Option", "Tree", "data_type", "data_types", "items_of", "list_of")},
    **{name: f"script.{name}" for name in ("Never", "Ref", "TypeVar", "local", "new_ref", "output", "read_ref")},
    **{name: f"script.{name}" for name in ("register_function", "shape", "sym_var", "workspace", "write_ref")},
    **{name: f"debug.{name}" for name in ("ablate", "view", "why_not")},
    **{name: f"types.{name}" for name in ("CostReport", "Module", "Settle")},
    "data": "script",
}

__all__ = [
    "Budget",
    "Buffer",
    "Callable",
    "Dynamic",
    "Object",
    "RuleSet",
    "Shape",
    "Tensor",
    "Tuple",
    "call_dps_library",
    "call_tir",
    "compare",
    "dataflow",
    "debug",
    "discover",
    "errors",
    "from_onnx",
    "from_stablehlo",
    "function",
    "jit",
    "load",
    "match_cast",
    "op",
    "optimize",
    "pareto",
    "parse",
    "plan_memory",
    "prove",
    "quantize",
    "rules",
    "script",
    "spread",
    "tensor_program",
    "trace",
    "types",
    "verify",
]


def __getattr__(name: str) -> _Any:
    if name in _MODULES:
        found: _Any = _import_module(f"{__name__}.{_MODULES[name]}")
    elif name in _HOMES:
        found = getattr(_import_module(f"{__name__}.{_HOMES[name]}"), name)
    elif name == "__version__":
        found = _installed_version()
    else:
        now = f"; it is {__name__}.{MOVED[name]} now" if name in MOVED else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{now}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _installed_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("relax-eg")
    except PackageNotFoundError:  # a source tree that is not installed
        return "0.0.0"
