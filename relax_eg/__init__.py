"""relax_eg: a compiler for tensor programs with dynamic shapes, in which rules decide and proofs permit."""

from importlib.metadata import PackageNotFoundError as _NotInstalled
from importlib.metadata import version as _version

from relax_eg import errors, ops, rules
from relax_eg.backend.compare import Check
from relax_eg.backend.family import Variant
from relax_eg.backend.optimized import Optimized
from relax_eg.backend.ready import Ready
from relax_eg.driver import cache
from relax_eg.driver.ablation import Ablation, ablate
from relax_eg.driver.certified import Certificate
from relax_eg.driver.jit import Jitted, jit
from relax_eg.driver.legalize import legalize
from relax_eg.driver.loading import load
from relax_eg.driver.optimize import optimize
from relax_eg.driver.view import View, view
from relax_eg.driver.why import WhyNot, why_not
from relax_eg.egraph import Budget, StopReason
from relax_eg.errors import RelaxEgError
from relax_eg.explain.text import Explanation
from relax_eg.extract.devices import PROFILES
from relax_eg.extract.profile import Profile
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
from relax_eg.memory import Plan, plan_memory
from relax_eg.ops import api as op
from relax_eg.ops.text import parse
from relax_eg.reports import Comparison, CostReport, compare
from relax_eg.rules import RuleSet
from relax_eg.rules.verification import verify
from relax_eg.shapes import Proved, Refuted, Unknown, prove
from relax_eg.tir import TensorProgram
from relax_eg.tir.script import Buffer, local, tensor_program, workspace

try:
    __version__ = _version("relax-eg")
except _NotInstalled:  # a source tree that is not installed
    __version__ = "0.0.0"

__all__ = [
    "PROFILES",
    "Ablation",
    "Budget",
    "Buffer",
    "Callable",
    "Certificate",
    "Check",
    "Comparison",
    "CostReport",
    "Explanation",
    "Jitted",
    "Module",
    "Object",
    "Optimized",
    "Plan",
    "Profile",
    "Proved",
    "Ready",
    "Refuted",
    "RelaxEgError",
    "RuleSet",
    "Shape",
    "StopReason",
    "Tensor",
    "TensorProgram",
    "Tuple",
    "Unknown",
    "Variant",
    "View",
    "WhyNot",
    "ablate",
    "cache",
    "call_dps_library",
    "call_tir",
    "compare",
    "dataflow",
    "errors",
    "from_onnx",
    "function",
    "jit",
    "legalize",
    "load",
    "local",
    "match_cast",
    "op",
    "ops",
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
    "verify",
    "view",
    "why_not",
    "workspace",
]
