"""relax_eg: a compiler for tensor programs with dynamic shapes, in which rules decide and proofs permit.

A name is imported when it is first used, because all of the package takes a second.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from relax_eg import debug, errors, rules, types
    from relax_eg.discovery.search import discover
    from relax_eg.driver.ablation import ablate
    from relax_eg.driver.jit import jit
    from relax_eg.driver.loading import load
    from relax_eg.driver.optimize import optimize
    from relax_eg.driver.pareto import pareto
    from relax_eg.driver.quantize import quantize
    from relax_eg.driver.settling import Settle
    from relax_eg.driver.spreading import spread
    from relax_eg.driver.why import why_not
    from relax_eg.dynamic.policy import Dynamic
    from relax_eg.egraph import Budget
    from relax_eg.frontends import trace
    from relax_eg.frontends.onnx.graph import from_onnx
    from relax_eg.frontends.script import dataflow, function, new_ref, output, read_ref, shape, sym_var, write_ref
    from relax_eg.frontends.stablehlo.reading import from_stablehlo
    from relax_eg.ir import (
        Callable,
        Module,
        Never,
        Object,
        Ref,
        Shape,
        Tensor,
        Tuple,
        TypeVar,
        call_dps_library,
        call_tir,
        match_cast,
    )
    from relax_eg.ir.data import List, Option, Tree, data_type, data_types, items_of, list_of
    from relax_eg.memory import plan_memory
    from relax_eg.ops import api as op
    from relax_eg.ops.host_functions import register_function
    from relax_eg.ops.text import parse
    from relax_eg.reports import CostReport, compare
    from relax_eg.rules import RuleSet
    from relax_eg.rules.verification import verify
    from relax_eg.shapes import prove
    from relax_eg.tir.script import Buffer, local, tensor_program, workspace

    __version__: str

# The modules among the names, and the modules of the others.
_MODULES = {"debug": "debug", "errors": "errors", "op": "ops.api", "rules": "rules", "types": "types"}
_HOMES = {
    "ablate": "driver.ablation",
    "Budget": "egraph",
    "Buffer": "tir.script",
    "call_dps_library": "ir",
    "call_tir": "ir",
    "Callable": "ir",
    "compare": "reports",
    "CostReport": "reports",
    "data_type": "ir.data",
    "data_types": "ir.data",
    "dataflow": "frontends.script",
    "discover": "discovery.search",
    "Dynamic": "dynamic.policy",
    "from_onnx": "frontends.onnx.graph",
    "from_stablehlo": "frontends.stablehlo.reading",
    "function": "frontends.script",
    "items_of": "ir.data",
    "jit": "driver.jit",
    "List": "ir.data",
    "list_of": "ir.data",
    "load": "driver.loading",
    "local": "tir.script",
    "match_cast": "ir",
    "Module": "ir",
    "Never": "ir",
    "new_ref": "frontends.script",
    "Object": "ir",
    "optimize": "driver.optimize",
    "Option": "ir.data",
    "output": "frontends.script",
    "pareto": "driver.pareto",
    "parse": "ops.text",
    "plan_memory": "memory",
    "prove": "shapes",
    "quantize": "driver.quantize",
    "read_ref": "frontends.script",
    "Ref": "ir",
    "register_function": "ops.host_functions",
    "RuleSet": "rules",
    "Settle": "driver.settling",
    "shape": "frontends.script",
    "Shape": "ir",
    "spread": "driver.spreading",
    "sym_var": "frontends.script",
    "Tensor": "ir",
    "tensor_program": "tir.script",
    "trace": "frontends",
    "Tree": "ir.data",
    "Tuple": "ir",
    "TypeVar": "ir",
    "verify": "rules.verification",
    "why_not": "driver.why",
    "workspace": "tir.script",
    "write_ref": "frontends.script",
}

__all__ = [
    "Budget",
    "Buffer",
    "Callable",
    "CostReport",
    "Dynamic",
    "List",
    "Module",
    "Never",
    "Object",
    "Option",
    "Ref",
    "RuleSet",
    "Settle",
    "Shape",
    "Tensor",
    "Tree",
    "Tuple",
    "TypeVar",
    "ablate",
    "call_dps_library",
    "call_tir",
    "compare",
    "data_type",
    "data_types",
    "dataflow",
    "debug",
    "discover",
    "errors",
    "from_onnx",
    "from_stablehlo",
    "function",
    "items_of",
    "jit",
    "list_of",
    "load",
    "local",
    "match_cast",
    "new_ref",
    "op",
    "optimize",
    "output",
    "pareto",
    "parse",
    "plan_memory",
    "prove",
    "quantize",
    "read_ref",
    "register_function",
    "rules",
    "shape",
    "spread",
    "sym_var",
    "tensor_program",
    "trace",
    "types",
    "verify",
    "why_not",
    "workspace",
    "write_ref",
]


def __getattr__(name: str) -> _Any:
    if name in _MODULES:
        found: _Any = _import_module(f"{__name__}.{_MODULES[name]}")
    elif name in _HOMES:
        found = getattr(_import_module(f"{__name__}.{_HOMES[name]}"), name)
    elif name == "__version__":
        found = _installed_version()
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
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
