"""relax_eg: a compiler for tensor programs with dynamic shapes, in which rules decide and proofs permit."""

from importlib.metadata import PackageNotFoundError as _NotInstalled
from importlib.metadata import version as _version

from relax_eg import debug, errors, rules, types
from relax_eg.driver.ablation import ablate
from relax_eg.driver.jit import jit
from relax_eg.driver.loading import load
from relax_eg.driver.optimize import optimize
from relax_eg.driver.settling import Settle
from relax_eg.driver.why import why_not
from relax_eg.dynamic.policy import Dynamic
from relax_eg.egraph import Budget
from relax_eg.frontends import trace
from relax_eg.frontends.onnx.graph import from_onnx
from relax_eg.frontends.script import dataflow, function, output, shape, sym_var
from relax_eg.ir import (
    Callable,
    Module,
    Object,
    Shape,
    Tensor,
    Tuple,
    call_dps_library,
    call_tir,
    match_cast,
)
from relax_eg.memory import plan_memory
from relax_eg.ops import api as op
from relax_eg.ops.text import parse
from relax_eg.reports import CostReport, compare
from relax_eg.rules import RuleSet
from relax_eg.rules.verification import verify
from relax_eg.shapes import prove
from relax_eg.tir.script import Buffer, local, tensor_program, workspace

try:
    __version__ = _version("relax-eg")
except _NotInstalled:  # a source tree that is not installed
    __version__ = "0.0.0"

__all__ = [
    "Budget",
    "Buffer",
    "Callable",
    "CostReport",
    "Dynamic",
    "Module",
    "Object",
    "RuleSet",
    "Settle",
    "Shape",
    "Tensor",
    "Tuple",
    "ablate",
    "call_dps_library",
    "call_tir",
    "compare",
    "dataflow",
    "debug",
    "errors",
    "from_onnx",
    "function",
    "jit",
    "load",
    "local",
    "match_cast",
    "op",
    "optimize",
    "output",
    "parse",
    "plan_memory",
    "prove",
    "rules",
    "shape",
    "sym_var",
    "tensor_program",
    "trace",
    "types",
    "verify",
    "why_not",
    "workspace",
]
