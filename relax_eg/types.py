"""The classes of the values that the functions of `relax_eg` take and return, beside those in `relax_eg` itself."""

from relax_eg.backend.calls.optimized import Optimized
from relax_eg.backend.calls.padded import PaddedArray
from relax_eg.backend.calls.ready import Ready
from relax_eg.backend.compare import Check
from relax_eg.backend.family import Variant
from relax_eg.backend.gpu.record import GpuCompilation, GpuExecutable, GpuProgram
from relax_eg.backend.gpu.spread import SpreadCompilation
from relax_eg.backend.spread import Spread
from relax_eg.discovery.result import Discovery
from relax_eg.driver.ablation import Ablation
from relax_eg.driver.certified import Certificate
from relax_eg.driver.clock.settling import Settle
from relax_eg.driver.jitting.jitted import Jitted
from relax_eg.driver.laws.mining import Mined
from relax_eg.driver.limits.pareto import ParetoFront, ParetoPoint
from relax_eg.driver.quantizing.quantize import QuantizedModule
from relax_eg.driver.view import View
from relax_eg.driver.why import WhyNot
from relax_eg.egraph import StopReason
from relax_eg.explain.text import Explanation
from relax_eg.extract.profiles.devices import PROFILES
from relax_eg.extract.profiles.profile import Profile
from relax_eg.ir.module import Module
from relax_eg.memory import Plan
from relax_eg.reports import Comparison, CostReport
from relax_eg.reports.quantization import QuantizationReport
from relax_eg.reports.spread import SpreadReport
from relax_eg.shapes import Proved, Refuted, Unknown
from relax_eg.tir import TensorProgram

__all__ = [
    "PROFILES",
    "Ablation",
    "Certificate",
    "Check",
    "Comparison",
    "CostReport",
    "Discovery",
    "Explanation",
    "GpuCompilation",
    "GpuExecutable",
    "GpuProgram",
    "Jitted",
    "Mined",
    "Module",
    "Optimized",
    "PaddedArray",
    "ParetoFront",
    "ParetoPoint",
    "Plan",
    "Profile",
    "Proved",
    "QuantizationReport",
    "QuantizedModule",
    "Ready",
    "Refuted",
    "Settle",
    "Spread",
    "SpreadCompilation",
    "SpreadReport",
    "StopReason",
    "TensorProgram",
    "Unknown",
    "Variant",
    "View",
    "WhyNot",
]
